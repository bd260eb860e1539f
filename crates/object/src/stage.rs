//! Staged forks: content that is longer than one transaction, on its way to appear at once.
//!
//! A writer claims a fork of a reserved name (`.nacre.staged.N`), writes the content there piece by piece, and puts the
//! fork in the place of the one that is meant ([`WriteOp::ReplaceFork`]) in one transaction. Readers see the old content
//! or the new one, and a writer that dies leaves the old one, and its stage.
//!
//! The first [`STAMP_BYTES`] bytes of a stage are its *stamp*: the writer that claimed it, and the time of its last
//! progress. The content's own first bytes take their place in the transaction that ends it. Taking a stage away, by
//! claiming or removing it, overwrites the stamp; so a guard on that small range tells a writer that it has lost its
//! stage. Names are numbers, which are used again, because the versions of a removed fork are kept for ever.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::limit::{FORK_NAME_BYTES_MAX, PAGE_ENTRIES_MAX};
use crate::stripe::record::NoStream;
use crate::*;

/// The prefix of the names of reserved forks. Programs give their own forks other names.
pub const RESERVED: &str = ".nacre.";
/// The prefix of the names of staged forks; a number follows.
pub const STAGED: &str = ".nacre.staged.";
/// The number of bytes of a stage that its stamp takes. Only content that is longer is staged.
pub const STAMP_BYTES: usize = 64;
/// The time without progress after which the writer of a stage is taken to be dead.
pub const STALE_AFTER: Duration = Duration::from_secs(24 * 3600);
/// The interval at which a writer that makes progress records it in its stamp.
pub const REFRESH_AFTER: Duration = Duration::from_secs(600);

const MAGIC: [u8; 8] = *b"NACRSTAG";
/// The offset in a stamp, in bytes, at which a 1 says that the object was created with the stage.
const CREATED_AT: usize = 24;
/// The number of stage names that writers choose from where there are no stages; each existing stage adds two.
const NUMBERS: u64 = 8;
/// The maximum number of attempts to claim a stage.
const CLAIMS_MAX: usize = 64;

/// Returns whether a fork has a reserved name: a stage, or the mark of a copy that is not complete.
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
    /// The time since its writer last made progress, by the writer's clock and this one's. `None` if its stamp does not
    /// say.
    pub idle: Option<Duration>,
    /// The version of its stamp.
    version: u64,
    /// The version of the object, if it was created with this stage and holds nothing else.
    alone: Option<u64>,
}

/// Lists the staged forks of an object.
///
/// # Errors
///
/// Those of the store.
pub async fn staged(store: &dyn ObjectStore, object: &ObjectId) -> Result<Vec<Staged>, StoreError> {
    let mut found = Vec::new();
    for (fork, bytes) in names(store, object, STAGED).await? {
        let range = ByteRange::new(0, STAMP_BYTES as u64);
        let whole = ReadOp::Extents { fork: fork.clone(), range: ByteRange::ALL };
        let read = Transaction::new().read_range(fork.clone(), range).read(whole).read(ReadOp::Stat);
        let Outcome::Done(done) = store.apply(object, read).await? else { continue };
        let [Answer::Range(read), Answer::Range(whole), Answer::Stat(stat)] = &done.answers[..] else {
            continue;
        };
        // That the stage was written last says nothing of what others wrote before.
        let bare = (stat.forks, stat.keys, stat.attributes) == (1, 0, 0);
        let alone = has_created(&read.data) && bare && whole.version == done.version;
        let alone = alone.then_some(done.version);
        found.push(Staged { fork, bytes, idle: idle(&read.data), version: read.version, alone });
    }
    Ok(found)
}

/// Removes the staged forks of an object whose writers have made no progress for `idle`, and returns those that were
/// removed. A writer that is still alive fails, and leaves its object as it was. Where `idle` is zero, all are removed;
/// otherwise stages whose stamps do not say how long they are idle stay.
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

/// Lists the forks of an object whose names begin with `prefix`, with their sizes in bytes.
pub(crate) async fn names(
    store: &dyn ObjectStore,
    object: &ObjectId,
    prefix: &str,
) -> Result<Vec<(Fork, u64)>, StoreError> {
    let mut found: Vec<(Fork, u64)> = Vec::new();
    let mut after = Fork::try_from(prefix)?;
    loop {
        let read = ReadOp::Forks { after: Some(after), limit: PAGE_ENTRIES_MAX as u32 };
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

/// A claimed stage. Dropping it before it replaces a fork removes it, as far as a request whose reply is not awaited
/// does that.
#[derive(derive_more::Debug)]
#[debug("Stage")]
pub struct Stage<'a> {
    store: &'a dyn ObjectStore,
    object: &'a ObjectId,
    fork: Fork,
    token: u64,
    /// True if the object was created with this stage.
    created: bool,
    /// The version that the claim gave the object, and the number of changes that this stage has made to it since.
    claimed: u64,
    changes: u64,
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
    /// Those of the store, and [`ErrorKind::Busy`] where other writers claim each stage that is tried.
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
            let look = ReadOp::Extents { fork: fork.clone(), range: ByteRange::ALL };
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
                        claimed: version,
                        changes: 0,
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

    /// Returns the fork that holds the stage.
    pub fn fork(&self) -> &Fork {
        &self.fork
    }

    /// Begins to write bytes behind the stamp, at an offset of at least [`STAMP_BYTES`]. The reply is to be passed to
    /// [`Stage::wrote`].
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the piece does not fit behind what was written.
    pub fn write(&self, offset: u64, data: Bytes) -> Reply<Outcome> {
        debug_assert!(offset >= STAMP_BYTES as u64);
        self.store.apply(self.object, self.guarded().write(self.fork.clone(), offset, data))
    }

    /// Notes the result of a write; returns its version.
    ///
    /// # Errors
    ///
    /// The write's, and [`ErrorKind::Busy`] if the stage was taken away. Where it is not known whether the write took
    /// effect, the kind is [`ErrorKind::Unavailable`]: the object is as it was in any case.
    pub fn wrote(&mut self, reply: Result<Outcome, StoreError>) -> Result<u64, StoreError> {
        match reply {
            Ok(Outcome::Done(done)) => {
                self.newest = self.newest.max(done.version);
                self.changes += 1;
                Ok(done.version)
            }
            Ok(Outcome::Refused(_)) => Err(taken_away()),
            Err(error) if error.kind.is_uncertain() => Err(error.with_kind(ErrorKind::Unavailable)),
            Err(error) => Err(error),
        }
    }

    /// Returns whether it is time for [`Stage::refresh`].
    pub fn is_old(&self) -> bool {
        self.refreshed.elapsed() >= REFRESH_AFTER
    }

    /// Records in the stamp that the writer makes progress. No write may be under way.
    ///
    /// # Errors
    ///
    /// Those of [`Stage::wrote`].
    pub async fn refresh(&mut self) -> Result<(), StoreError> {
        let stamp = self.guarded().write(self.fork.clone(), 0, stamp(self.token, self.created));
        let reply = self.store.apply(self.object, stamp).await;
        self.stamp = self.wrote(reply)?;
        self.refreshed = std::time::Instant::now();
        Ok(())
    }

    /// Replaces a fork with the stage, and the stamp with the content's first bytes, `head`. All writes must have been
    /// noted. Returns the version of the new content.
    ///
    /// # Errors
    ///
    /// Those of [`Stage::wrote`], except that [`ErrorKind::Unknown`] stays: the content is the old one or the new one.
    /// [`ErrorKind::Invalid`] if the fork is the default one, and the object a stream.
    pub async fn replace(mut self, fork: &Fork, head: Bytes) -> Result<u64, StoreError> {
        debug_assert_eq!(head.len(), STAMP_BYTES);
        let replaced = self.try_replace(fork, head).await;
        match replaced {
            Ok(_) => self.over = true,
            Err(_) => self.abandon().await,
        }
        replaced
    }

    async fn try_replace(&self, fork: &Fork, head: Bytes) -> Result<u64, StoreError> {
        let mut no_stream = NoStream::new()?;
        loop {
            let mut swap = Transaction::new()
                .if_version(self.fork.clone(), ByteRange::ALL, self.newest)
                .write(self.fork.clone(), 0, head.clone())
                .change(WriteOp::ReplaceFork { fork: fork.clone(), from: self.fork.clone() });
            if *fork == Fork::DEFAULT {
                swap = swap.guard(no_stream.guard());
            }
            match self.store.apply(self.object, swap).await? {
                Outcome::Done(done) => return Ok(done.version),
                Outcome::Refused(Refusal { guard: 0, .. }) => return Err(taken_away()),
                Outcome::Refused(refusal) => no_stream.refused(refusal.found)?,
            }
        }
    }

    /// Removes the stage, if it is still there; and the object, if it was created with the stage and nothing else was
    /// written to it. For that, all writes must have been noted.
    pub async fn abandon(mut self) {
        self.over = true;
        if self.is_alone()
            && let Ok(Outcome::Done(_)) = self.store.apply(self.object, undoing(self.newest)).await
        {
            return;
        }
        // What cannot be removed now is found later: by its age, or by a person.
        let _ = self.store.apply(self.object, removal(&self.fork, self.newest)).await;
    }

    /// Returns whether the object was created with this stage and nobody else has changed it until this stage's last change: every
    /// change raises the version by one.
    fn is_alone(&self) -> bool {
        self.created && self.newest - self.claimed == self.changes
    }

    fn guarded(&self) -> Transaction {
        let range = ByteRange::new(0, STAMP_BYTES as u64);
        Transaction::new().if_version(self.fork.clone(), range, self.stamp)
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        if !self.over {
            if self.is_alone() {
                drop(self.store.apply(self.object, undoing(self.newest)));
            }
            drop(self.store.apply(self.object, removal(&self.fork, self.newest)));
        }
    }
}

/// Returns a transaction that removes an object that is still at a version.
fn undoing(version: u64) -> Transaction {
    let guarded = Transaction::new().guard(Guard::Exists).guard(Guard::Version { version });
    guarded.change(WriteOp::Remove)
}

/// Returns a transaction that removes a stage whose stamp is not newer than `version`.
fn removal(fork: &Fork, version: u64) -> Transaction {
    let range = ByteRange::new(0, STAMP_BYTES as u64);
    let guarded = Transaction::new().guard(Guard::Exists).if_version(fork.clone(), range, version);
    guarded.change(WriteOp::RemoveFork { fork: fork.clone() })
}

fn taken_away() -> StoreError {
    let text = "its staged fork was removed, by a removal of the object or of staged forks, or because it \
                made no progress for a day; the content is unchanged";
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
