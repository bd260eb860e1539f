//! Staged forks: content that is longer than one transaction, on its way to appear at once.
//!
//! A writer claims a fork of a reserved name (`.nacre.staged.N`), writes the content there piece by piece, and puts the
//! fork in the place of the one that is meant ([`Write::ReplaceFork`]) in one transaction. Readers see the old content
//! or the new one, and a writer that dies leaves the old one, and its stage.
//!
//! The first [`STAMP_BYTES`] bytes of a stage are its *stamp*: who claimed it, and when it last got on. The content's own
//! first bytes take their place in the transaction that ends it. Whoever takes a stage away, by claiming or removing it,
//! writes over the stamp; so a guard of that small range tells a writer that its stage is not its own any more. Names are
//! numbers, which are used again, because the versions of a removed fork are kept for ever.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::limit::{FORK_NAME_BYTES_MAX, PAGE_ENTRIES_MAX};
use crate::*;

/// What the names of reserved forks begin with. Programs give their own forks other names.
pub const RESERVED: &str = ".nacre.";
/// What the names of staged forks begin with; a number follows.
pub const STAGED: &str = ".nacre.staged.";
/// Bytes of a stage that its stamp takes. Only content that is longer is staged.
pub const STAMP_BYTES: usize = 64;
/// A stage whose writer has not got on for so long is taken to be a dead writer's.
pub const STALE_AFTER: Duration = Duration::from_secs(24 * 3600);
/// How often a writer that gets on says so in its stamp.
pub const REFRESH_AFTER: Duration = Duration::from_secs(600);

const MAGIC: [u8; 8] = *b"NACRSTAG";
/// Where in a stamp a 1 says that the object came to be with the stage.
const CREATED_AT: usize = 24;
/// Numbers of stages that writers choose from where there are none; with each one there is, two more.
const NUMBERS: u64 = 8;
/// How often a writer tries to claim a stage.
const CLAIMS_MAX: usize = 64;

/// Whether a fork is none of a user's: a stage, or the mark of a copy that is not complete.
pub fn is_reserved(fork: &Fork) -> bool {
    fork.as_bytes().starts_with(RESERVED.as_bytes())
}

/// A staged fork that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staged {
    /// Its name.
    pub fork: Fork,
    /// Its size in bytes.
    pub bytes: u64,
    /// How long ago its writer last got on, by the writer's clock and this one's. `None` if it does not say.
    pub idle: Option<Duration>,
    /// The version of its stamp.
    version: u64,
    /// The version of the object, if it came to be with this stage and nothing else of it was written since.
    alone: Option<u64>,
}

/// The staged forks of an object.
///
/// # Errors
///
/// Those of the store.
pub async fn staged(store: &dyn ObjectStore, object: &ObjectId) -> Result<Vec<Staged>, StoreError> {
    let mut found = Vec::new();
    for (fork, bytes) in names(store, object, STAGED).await? {
        let range = ByteRange::new(0, STAMP_BYTES as u64);
        let whole = Read::Extents { fork: fork.clone(), range: ByteRange::ALL };
        let read = Transaction::new().read_range(fork.clone(), range).read(whole);
        let Outcome::Done(done) = store.apply(object, read).await? else { continue };
        let [Answer::Range(read), Answer::Range(whole)] = &done.answers[..] else { continue };
        let alone = has_created(&read.data) && whole.version == done.version;
        let alone = alone.then_some(done.version);
        found.push(Staged { fork, bytes, idle: idle(&read.data), version: read.version, alone });
    }
    Ok(found)
}

/// Removes the staged forks of an object whose writers have not got on for `idle`, and gives those that were removed.
/// A writer that is alive all the same fails, and leaves its object as it was. Where `idle` is zero, all are removed;
/// else those that do not say how long ago stay.
///
/// # Errors
///
/// Those of the store.
pub async fn remove_staged(
    store: &dyn ObjectStore,
    object: &ObjectId,
    idle: Duration,
) -> Result<Vec<Staged>, StoreError> {
    let mut removed = Vec::new();
    for stage in staged(store, object).await? {
        if !idle.is_zero() && stage.idle.is_none_or(|found| found < idle) {
            continue;
        }
        let gone = match stage.alone {
            Some(version) => matches!(store.apply(object, undoing(version)).await?, Outcome::Done(_)),
            None => false,
        };
        if gone || matches!(store.apply(object, removal(&stage.fork, stage.version)).await?, Outcome::Done(_))
        {
            removed.push(stage);
        }
    }
    Ok(removed)
}

/// The forks of an object whose names begin with `prefix`, and their sizes.
pub(crate) async fn names(
    store: &dyn ObjectStore,
    object: &ObjectId,
    prefix: &str,
) -> Result<Vec<(Fork, u64)>, StoreError> {
    let mut found: Vec<(Fork, u64)> = Vec::new();
    let mut after = Fork::try_from(prefix)?;
    loop {
        let read = Read::Forks { after: Some(after), limit: PAGE_ENTRIES_MAX as u32 };
        let read = answer(store, object, Transaction::new().read(read)).await?;
        let Some(Answer::Forks(page)) = read else { return Ok(found) };
        let Some((last, _)) = page.entries.last().cloned() else { return Ok(found) };
        let matches = |fork: &Fork| fork.as_bytes().starts_with(prefix.as_bytes());
        found.extend(page.entries.into_iter().filter(|(fork, _)| matches(fork)));
        if !page.more || !matches(&last) {
            return Ok(found);
        }
        after = last;
    }
}

async fn answer(
    store: &dyn ObjectStore,
    object: &ObjectId,
    read: Transaction,
) -> Result<Option<Answer>, StoreError> {
    match store.apply(object, read).await? {
        Outcome::Done(done) => Ok(done.answers.into_iter().next()),
        Outcome::Refused(_) => Ok(None),
    }
}

/// A claimed stage. Dropping it before it was put in its place removes it, as far as a request without anybody to wait
/// for its reply does that.
pub struct Stage<'a> {
    store: &'a dyn ObjectStore,
    object: &'a ObjectId,
    fork: Fork,
    token: u64,
    /// Whether the object came to be with this stage.
    created: bool,
    /// The version of the stamp.
    stamp: u64,
    /// The greatest version that a write of this stage got.
    newest: u64,
    refreshed: std::time::Instant,
    over: bool,
}

impl<'a> Stage<'a> {
    /// Claims a stage of an object. Stages of dead writers are removed first ([`STALE_AFTER`]).
    ///
    /// # Errors
    ///
    /// Those of the store, and [`ErrorKind::Busy`] where others claim each stage that this one chooses.
    pub async fn claim(store: &'a dyn ObjectStore, object: &'a ObjectId) -> Result<Stage<'a>, StoreError> {
        remove_staged(store, object, STALE_AFTER).await?;
        let mut taken: Vec<Fork> =
            names(store, object, STAGED).await?.into_iter().map(|(fork, _)| fork).collect();
        for attempt in 0..CLAIMS_MAX as u64 {
            let token = RandomState::new().hash_one(attempt);
            let number = token % (NUMBERS + 2 * taken.len() as u64);
            let fork = Fork::try_from(format!("{STAGED}{number}").as_str())?;
            if taken.contains(&fork) {
                continue;
            }
            let look = Read::Extents { fork: fork.clone(), range: ByteRange::ALL };
            let Outcome::Done(found) = store.apply(object, Transaction::new().read(look)).await? else {
                continue;
            };
            let Some(Answer::Range(RangeRead { version, size: 0, .. })) = found.answers.first() else {
                taken.push(fork);
                continue;
            };
            let mut claim = Transaction::new().if_version(fork.clone(), ByteRange::ALL, *version);
            let created = !found.existed;
            if created {
                claim = claim.guard(Guard::Absent);
            }
            let claim = claim.write(fork.clone(), 0, stamp(token, created));
            match store.apply(object, claim).await? {
                Outcome::Done(Done { version, .. }) => {
                    let refreshed = std::time::Instant::now();
                    let over = false;
                    return Ok(Stage {
                        store,
                        object,
                        fork,
                        token,
                        created,
                        stamp: version,
                        newest: version,
                        refreshed,
                        over,
                    });
                }
                // Somebody else made the object meanwhile.
                Outcome::Refused(refusal) if refusal.guard > 0 => {}
                Outcome::Refused(_) => taken.push(fork),
            }
        }
        let text = format!("others claim one staged fork after the other; {} are there", taken.len());
        Err(StoreError::new(ErrorKind::Busy, text))
    }

    /// The fork that holds the stage.
    pub fn fork(&self) -> &Fork {
        &self.fork
    }

    /// Begins to write bytes behind the stamp. The reply is for [`Stage::wrote`].
    pub fn write(&self, offset: u64, data: Bytes) -> Reply<Outcome> {
        debug_assert!(offset >= STAMP_BYTES as u64);
        self.store.apply(self.object, self.guarded().write(self.fork.clone(), offset, data))
    }

    /// Notes what a write came to.
    ///
    /// # Errors
    ///
    /// The write's, and [`ErrorKind::Busy`] if the stage was taken away. Where it is not known whether the write took
    /// effect, the kind is [`ErrorKind::Unavailable`]: the object is as it was in any case.
    pub fn wrote(&mut self, reply: Result<Outcome, StoreError>) -> Result<u64, StoreError> {
        match reply {
            Ok(Outcome::Done(done)) => {
                self.newest = self.newest.max(done.version);
                Ok(done.version)
            }
            Ok(Outcome::Refused(_)) => Err(taken_away()),
            Err(error) if error.kind == ErrorKind::Unknown => {
                Err(StoreError { kind: ErrorKind::Unavailable, ..error })
            }
            Err(error) => Err(error),
        }
    }

    /// Whether it is time for [`Stage::refresh`].
    pub fn is_old(&self) -> bool {
        self.refreshed.elapsed() >= REFRESH_AFTER
    }

    /// Says in the stamp that the writer gets on. No write may be under way.
    ///
    /// # Errors
    ///
    /// As those of [`Stage::wrote`].
    pub async fn refresh(&mut self) -> Result<(), StoreError> {
        let stamp = self.guarded().write(self.fork.clone(), 0, stamp(self.token, self.created));
        let reply = self.store.apply(self.object, stamp).await;
        self.stamp = self.wrote(reply)?;
        self.refreshed = std::time::Instant::now();
        Ok(())
    }

    /// Puts the stage in a fork's place, with the content's first bytes in the place of the stamp. All writes must
    /// have been noted. Gives the version of the new content.
    ///
    /// # Errors
    ///
    /// As those of [`Stage::wrote`], but that [`ErrorKind::Unknown`] stays: the content is the old one or the new one.
    pub async fn replace(mut self, fork: &Fork, head: Bytes) -> Result<u64, StoreError> {
        debug_assert_eq!(head.len(), STAMP_BYTES);
        let swap = Transaction::new()
            .if_version(self.fork.clone(), ByteRange::ALL, self.newest)
            .write(self.fork.clone(), 0, head)
            .change(Write::ReplaceFork { fork: fork.clone(), from: self.fork.clone() });
        match self.store.apply(self.object, swap).await {
            Ok(Outcome::Done(done)) => {
                self.over = true;
                Ok(done.version)
            }
            Ok(Outcome::Refused(_)) => {
                self.abandon().await;
                Err(taken_away())
            }
            Err(error) => {
                self.abandon().await;
                Err(error)
            }
        }
    }

    /// Removes the stage, if it is still there; and the object, if it came to be with the stage and nothing else was
    /// written to it. For that, all writes must have been noted.
    pub async fn abandon(mut self) {
        self.over = true;
        if self.created
            && let Ok(Outcome::Done(_)) = self.store.apply(self.object, undoing(self.newest)).await
        {
            return;
        }
        // What cannot be removed now is found later: by its age, or by a person.
        let _ = self.store.apply(self.object, removal(&self.fork, self.newest)).await;
    }

    fn guarded(&self) -> Transaction {
        let range = ByteRange::new(0, STAMP_BYTES as u64);
        Transaction::new().if_version(self.fork.clone(), range, self.stamp)
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        if !self.over {
            if self.created {
                drop(self.store.apply(self.object, undoing(self.newest)));
            }
            drop(self.store.apply(self.object, removal(&self.fork, self.newest)));
        }
    }
}

/// Removes an object that is still at a version.
fn undoing(version: u64) -> Transaction {
    let guarded = Transaction::new().guard(Guard::Exists).guard(Guard::Version { version });
    guarded.change(Write::Remove)
}

/// Removes a stage whose stamp is not newer than `version`.
fn removal(fork: &Fork, version: u64) -> Transaction {
    let range = ByteRange::new(0, STAMP_BYTES as u64);
    let guarded = Transaction::new().guard(Guard::Exists).if_version(fork.clone(), range, version);
    guarded.change(Write::RemoveFork { fork: fork.clone() })
}

fn taken_away() -> StoreError {
    let text = "its staged fork was taken away: by a removal of the object or of staged forks, or because it had not got \
                on for a day; the content is as it was";
    StoreError::new(ErrorKind::Busy, text)
}

fn stamp(token: u64, created: bool) -> Bytes {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_millis() as u64;
    let mut stamp = vec![0; STAMP_BYTES];
    stamp[..8].copy_from_slice(&MAGIC);
    stamp[8..16].copy_from_slice(&now.to_le_bytes());
    stamp[16..24].copy_from_slice(&token.to_le_bytes());
    stamp[CREATED_AT] = u8::from(created);
    stamp.into()
}

fn has_created(stamp: &[u8]) -> bool {
    stamp.starts_with(&MAGIC) && stamp.get(CREATED_AT) == Some(&1)
}

fn idle(stamp: &[u8]) -> Option<Duration> {
    let rest = stamp.strip_prefix(&MAGIC)?;
    let written = Duration::from_millis(u64::from_le_bytes(*rest.first_chunk()?));
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    Some(now.saturating_sub(written))
}

const _: () = assert!(STAGED.len() + 20 <= FORK_NAME_BYTES_MAX);
