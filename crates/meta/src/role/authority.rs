//! The authority of a rank: who has it, kept in an object of the store.
//!
//! | key | value |
//! |---|---|
//! | `authority` | who has the authority, at which epoch, and a count that grows while it shows itself |
//! | `standby/NAME.DRAWN` | a daemon stands by: a count that grows while it does, and its time to take over |
//!
//! The object is `nacre/ranks/NUMBER`. Whoever has the authority renews it before the time to take over has passed: by reading
//! the object as long as nobody stands by, so that an idle store stays as it is, and by counting up once somebody does. A
//! standby takes over when the count has stood still for the time to take over, and an eighth of it for clocks that drift;
//! its transaction raises the object's fence to its epoch, so that the former rank cannot count any more. Since a renewal
//! counts from before it was sent, the former rank has stopped by then.
//!
//! A standby counts up too. Whoever has the authority removes the key of one whose count stood still for [`SILENT_TIMES`] times
//! the time to take over, in a transaction in which it counts up itself. A standby that is only slow finds its key missing,
//! registers anew and waits from the beginning: as long as its key was there the rank had to count, so a count that stood still
//! while the key was there all the time is that of a rank that has stopped. The number that is drawn keeps daemons of one name
//! from taking each other's keys for their own.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use nacre_object::{
    Answer, Check, ErrorKind, Found, Guard, Key, KeyRange, ObjectId, ObjectStore, Outcome, ReadOp,
    StoreError, Transaction, WriteOp,
};

use crate::place::{RANK_MAX, RankNumber};
use crate::wire::{ADDRESS_BYTES_MAX, ADDRESSES_MAX};

/// The beginning of the ids of objects that hold authorities.
pub const PREFIX: &str = "nacre/ranks/";
const AUTHORITY: &str = "authority";
const STANDBY: &str = "standby/";
const VERSION: u8 = 1;
/// The times to take over for which a standby may stand still before its key is removed. It counts up once in each.
pub const SILENT_TIMES: u32 = 4;
/// The number of standbys that are looked at together.
const STANDBYS_MAX: u32 = 64;
/// The number of objects that are listed together in search of ranks.
const RANKS_PER_PAGE: usize = 100;
/// The longest name of a daemon.
const NAME_BYTES_MAX: usize = 200;

/// Returns the object that holds the authority of a rank.
pub fn object(rank: RankNumber) -> Result<ObjectId, StoreError> {
    format!("{PREFIX}{rank}").parse()
}

/// The holder of the authority.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Authority {
    /// The epoch, which grows with each daemon that takes it; 0 if none ever did.
    pub epoch: u64,
    /// A count that grows while the daemon shows itself, from a number that it draws.
    pub count: u64,
    /// The time after which a standby takes over.
    pub takeover: Duration,
    /// True if it was given back, so that a standby need not wait.
    pub free: bool,
    /// The name of the daemon.
    pub name: String,
    /// The addresses at which clients reach it; none if they are those of the store.
    pub addresses: Vec<String>,
}

impl Authority {
    /// Encodes it: version, epoch, count, takeover in milliseconds, flag, name, addresses.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.extend_from_slice(&[VERSION]);
        for number in [self.epoch, self.count, self.takeover.as_millis() as u64] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&[u8::from(self.free)]);
        // Names and addresses are checked when the role begins.
        for text in std::iter::once(&self.name).chain(&self.addresses) {
            out.extend_from_slice(&[text.len() as u8]);
            out.extend_from_slice(text.as_bytes());
        }
        out.freeze()
    }

    /// Decodes it; `None` if the bytes are none.
    pub fn decode(bytes: &[u8]) -> Option<Authority> {
        let (head, mut rest) = bytes.split_at_checked(26)?;
        let number = |at: usize| head[at..at + 8].try_into().ok().map(u64::from_le_bytes);
        let free = match head[25] {
            0 => false,
            1 => true,
            _ => return None,
        };
        let mut texts = Vec::new();
        while let Some((length, behind)) = rest.split_first() {
            let (text, behind) = behind.split_at_checked(*length as usize)?;
            texts.push(String::from_utf8(text.to_vec()).ok()?);
            rest = behind;
            if texts.len() > ADDRESSES_MAX + 1 {
                return None;
            }
        }
        let mut texts = texts.into_iter();
        (head[0] == VERSION).then_some(())?;
        Some(Authority {
            epoch: number(1)?,
            count: number(9)?,
            takeover: Duration::from_millis(number(17)?),
            free,
            name: texts.next()?,
            addresses: texts.collect(),
        })
    }
}

/// Reads who has the authority of a rank; `None` if nobody ever had it.
///
/// # Errors
/// Those of the store; `Corrupt` if the object holds something else.
pub async fn read(store: &dyn ObjectStore, rank: RankNumber) -> Result<Option<Authority>, StoreError> {
    let id = object(rank)?;
    let look = Transaction::new().read(ReadOp::Key { key: AUTHORITY.parse()? });
    let Outcome::Done(done) = store.apply(&id, look).await? else { return Err(damaged(&id)) };
    match done.answers.into_iter().next() {
        Some(Answer::Value(None)) => Ok(None),
        Some(Answer::Value(Some(value))) => Authority::decode(&value).map(Some).ok_or_else(|| damaged(&id)),
        _ => Err(damaged(&id)),
    }
}

/// A rank, as the store shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankStatus {
    /// The rank.
    pub rank: RankNumber,
    /// Its epoch.
    pub epoch: u64,
    /// The name of the daemon that has the authority.
    pub name: String,
    /// The addresses at which clients reach it; none if they are those of the store.
    pub addresses: Vec<String>,
    /// True if the authority was given back, and nobody has taken it yet.
    pub free: bool,
    /// The names of those that stand by, at most 64.
    pub standbys: Vec<String>,
}

/// Returns all ranks that somebody ever had the authority of, in ascending order.
///
/// # Errors
/// Those of the store; `Corrupt` if an object holds something else.
pub async fn ranks(store: &dyn ObjectStore) -> Result<Vec<RankStatus>, StoreError> {
    let mut found = Vec::new();
    let mut after: ObjectId = PREFIX.parse()?;
    loop {
        let page = store.list(Some(&after), RANKS_PER_PAGE).await?;
        let number = |id: &ObjectId| {
            let text = std::str::from_utf8(id.as_bytes().strip_prefix(PREFIX.as_bytes())?).ok()?;
            let number = text.parse::<RankNumber>().ok()?;
            (number <= RANK_MAX && number.to_string() == text).then_some(number)
        };
        found.extend(page.iter().filter_map(number));
        match page.last() {
            Some(last) if last.as_bytes().starts_with(PREFIX.as_bytes()) => after = last.clone(),
            _ => break,
        }
    }
    found.sort_unstable();
    let mut ranks = Vec::new();
    for rank in found {
        ranks.extend(status(store, rank).await?);
    }
    Ok(ranks)
}

/// Returns a rank as the store shows it; `None` if nobody ever had its authority.
async fn status(store: &dyn ObjectStore, rank: RankNumber) -> Result<Option<RankStatus>, StoreError> {
    let id = object(rank)?;
    let standbys = ReadOp::Keys { range: KeyRange::prefix(STANDBY), limit: STANDBYS_MAX, values: false };
    let look = Transaction::new().read(ReadOp::Key { key: AUTHORITY.parse()? }).read(standbys);
    let Outcome::Done(done) = store.apply(&id, look).await? else { return Err(damaged(&id)) };
    let [Answer::Value(value), Answer::Keys(page)] = &done.answers[..] else { return Err(damaged(&id)) };
    let Some(value) = value else { return Ok(None) };
    let Authority { epoch, free, name, addresses, .. } =
        Authority::decode(value).ok_or_else(|| damaged(&id))?;
    let standbys = page.entries.iter().map(|(key, _)| standby_name(key)).collect();
    Ok(Some(RankStatus { rank, epoch, name, addresses, free, standbys }))
}

/// Returns the name of the daemon of a standby's key.
fn standby_name(key: &Key) -> String {
    let text = String::from_utf8_lossy(key.as_bytes());
    let text = text.strip_prefix(STANDBY).unwrap_or(&text);
    // Behind it is the number that was drawn.
    text.rsplit_once('.').map_or(text, |(name, _)| name).to_owned()
}

fn damaged(id: &ObjectId) -> StoreError {
    StoreError::new(ErrorKind::Corrupt, format!("object \"{id}\" holds no authority of a rank"))
}

/// The authority as a daemon sees it and changes it.
pub(super) struct AuthorityStore {
    pub store: Arc<dyn ObjectStore>,
    id: ObjectId,
    rank: RankNumber,
    own: Authority,
    /// True if no other daemon can have this one's name.
    keeps_store: bool,
    /// The authority that this daemon wrote last.
    written: Option<Authority>,
    /// The key by which this daemon stands by, and its count.
    standby: Key,
    stood: u64,
    /// The standbys that whoever has the authority knows: what they wrote, and since when it is there.
    standbys: HashMap<Key, (Bytes, Duration)>,
}

/// The object as it was read.
pub(super) struct Seen {
    pub authority: Option<Authority>,
    /// True if somebody stands by.
    pub standby: bool,
    /// True if this daemon is registered as one that does.
    pub own: bool,
}

/// A count of a standby, as it stands in the store: version, count, time to take over in milliseconds.
fn encode_standby(count: u64, takeover: Duration) -> Bytes {
    let mut out = BytesMut::new();
    out.extend_from_slice(&[VERSION]);
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(&(takeover.as_millis() as u64).to_le_bytes());
    out.freeze()
}

/// Returns the time to take over of a standby; none if the bytes do not tell.
fn standby_takeover(value: &[u8]) -> Option<Duration> {
    let value: &[u8; 17] = value.try_into().ok()?;
    let millis = u64::from_le_bytes(value[9..].try_into().ok()?);
    (value[0] == VERSION).then(|| Duration::from_millis(millis).min(super::TAKEOVER_MAX))
}

impl AuthorityStore {
    pub fn new(
        options: &super::Options,
        name: String,
        addresses: Vec<String>,
    ) -> Result<AuthorityStore, StoreError> {
        let long = |text: &String, most: usize| text.len() > most;
        if long(&name, NAME_BYTES_MAX)
            || addresses.len() > ADDRESSES_MAX
            || addresses.iter().any(|address| long(address, ADDRESS_BYTES_MAX))
        {
            let text =
                "the name of a rank has 200 bytes at most, and it has 16 addresses of 255 bytes at most";
            return Err(StoreError::new(ErrorKind::Invalid, text));
        }
        let standby = format!("{STANDBY}{name}.{:016x}", rand::random::<u64>()).parse()?;
        let own = Authority { takeover: options.takeover, name, addresses, ..Authority::default() };
        let (store, id) = (options.store.clone(), object(options.rank)?);
        let (rank, keeps_store, standbys) = (options.rank, options.keeps_store, HashMap::new());
        Ok(AuthorityStore { store, id, rank, own, keeps_store, written: None, standby, stood: 0, standbys })
    }

    pub fn rank(&self) -> RankNumber {
        self.rank
    }

    pub fn takeover(&self) -> Duration {
        self.own.takeover
    }

    /// Returns whether an authority is this daemon's, from before it was started again.
    pub fn is_own(&self, authority: &Authority) -> bool {
        authority.name == self.own.name && self.keeps_store
    }

    /// Returns whether an authority is the one that this daemon took last.
    pub fn is_written(&self, authority: &Authority) -> bool {
        let same = |written: &Authority| written.epoch == authority.epoch && written.name == authority.name;
        self.written.as_ref().is_some_and(same)
    }

    pub async fn look(&self) -> Result<Seen, StoreError> {
        let standbys = ReadOp::Keys { range: KeyRange::prefix(STANDBY), limit: 1, values: false };
        let look = Transaction::new()
            .read(ReadOp::Key { key: AUTHORITY.parse()? })
            .read(standbys)
            .read(ReadOp::Key { key: self.standby.clone() });
        let Outcome::Done(done) = self.store.apply(&self.id, look).await? else {
            return Err(damaged(&self.id));
        };
        match &done.answers[..] {
            [Answer::Value(value), Answer::Keys(page), Answer::Value(own)] => {
                let decode = |value: &Bytes| Authority::decode(value).ok_or_else(|| damaged(&self.id));
                let authority = value.as_ref().map(decode).transpose()?;
                Ok(Seen { authority, standby: !page.entries.is_empty(), own: own.is_some() })
            }
            _ => Err(damaged(&self.id)),
        }
    }

    fn next_stand(&mut self) -> WriteOp {
        self.stood += 1;
        let value = encode_standby(self.stood, self.own.takeover);
        WriteOp::SetKey { key: self.standby.clone(), value }
    }

    /// Tells whoever has the authority that this daemon stands by.
    pub async fn stand_by(&mut self) -> Result<(), StoreError> {
        let announcement = Transaction::new().change(self.next_stand());
        self.store.apply(&self.id, announcement).await.map(drop)
    }

    /// Tells that this daemon still stands by. Returns false if it does not: its key was removed, because it was silent for
    /// too long.
    pub async fn stand_on(&mut self) -> Result<bool, StoreError> {
        // On condition, since a key that was removed must not come back without the wait that belongs to it.
        let announcement = Transaction::new()
            .guard(Guard::Key { key: self.standby.clone(), check: Check::Present })
            .change(self.next_stand());
        Ok(matches!(self.store.apply(&self.id, announcement).await?, Outcome::Done(_)))
    }

    /// Tells that it does not any more.
    pub async fn leave(&self) -> Result<(), StoreError> {
        let leave = Transaction::new().change(WriteOp::RemoveKey { key: self.standby.clone() });
        self.store.apply(&self.id, leave).await.map(drop)
    }

    /// Takes the authority on condition that it is as it was seen. Returns the new epoch, or `None` if it is not.
    pub async fn take(&mut self, seen: Option<&Authority>) -> Result<Option<u64>, StoreError> {
        let epoch = seen.map_or(0, |seen| seen.epoch) + 1;
        // Drawn, so that two daemons of one name, as in two containers, do not both take what one of them wrote for their own.
        let count = rand::random::<u64>() >> 1;
        let own = Authority { epoch, count, free: false, ..self.own.clone() };
        let check = seen.map_or(Check::Absent, |seen| Check::Equal(seen.encode()));
        let take = Transaction::new()
            .guard(Guard::Fence { token: epoch })
            .guard(Guard::Key { key: AUTHORITY.parse()?, check })
            .change(WriteOp::SetKey { key: AUTHORITY.parse()?, value: own.encode() })
            .change(WriteOp::RemoveKey { key: self.standby.clone() })
            .change(WriteOp::RaiseFence { token: epoch });
        let taken = match self.store.apply(&self.id, take).await? {
            Outcome::Done(_) => true,
            Outcome::Refused(refusal) => is(&refusal.found, &own),
        };
        self.written = taken.then_some(own);
        self.standbys.clear();
        Ok(taken.then_some(epoch))
    }

    /// Counts up, and so shows that this daemon is there; and removes standbys that are silent. Returns whether somebody
    /// stands by, or `None` if another daemon has the authority.
    pub async fn show(&mut self, now: Duration) -> Result<Option<bool>, StoreError> {
        let Some(next) = self.count_up() else { return Ok(None) };
        let silent: Vec<(Key, Bytes)> = {
            let is_silent = |value: &Bytes, since: Duration| {
                let takeover = standby_takeover(value).unwrap_or_default().max(self.own.takeover);
                now.saturating_sub(since) > takeover * SILENT_TIMES
            };
            let silent = self.standbys.iter().filter(|(_, (value, since))| is_silent(value, *since));
            silent.map(|(key, (value, _))| (key.clone(), value.clone())).collect()
        };
        let mut show = Transaction::new().guard(Guard::Fence { token: next.epoch });
        for (key, value) in &silent {
            show = show.guard(Guard::Key { key: key.clone(), check: Check::Equal(value.clone()) });
        }
        let range = KeyRange::prefix(STANDBY);
        show = show
            .read(ReadOp::Keys { range, limit: STANDBYS_MAX, values: true })
            .change(WriteOp::SetKey { key: AUTHORITY.parse()?, value: next.encode() });
        for (key, _) in &silent {
            show = show.change(WriteOp::RemoveKey { key: key.clone() });
        }
        let done = match self.store.apply(&self.id, show).await? {
            Outcome::Done(done) => done,
            Outcome::Refused(refusal) if refusal.guard > 0 => {
                // It has just counted up, or gone. What is known of it is of no use.
                self.standbys.clear();
                return self.replace(next).await.map(|shown| shown.then_some(true));
            }
            Outcome::Refused(_) => {
                self.written = None;
                return Ok(None);
            }
        };
        self.written = Some(next);
        let [Answer::Keys(page)] = &done.answers[..] else { return Err(damaged(&self.id)) };
        let seen = page.entries.iter().filter(|(key, _)| silent.iter().all(|(gone, _)| gone != key));
        let known = std::mem::take(&mut self.standbys);
        for (key, value) in seen {
            let since = match known.get(key) {
                Some((before, since)) if before == value => *since,
                _ => now,
            };
            self.standbys.insert(key.clone(), (value.clone(), since));
        }
        for (key, _) in &silent {
            tracing::info!("a standby of metadata rank {} is gone: \"{key}\"", self.rank);
        }
        Ok(Some(page.more || !self.standbys.is_empty()))
    }

    /// Returns what this daemon has written, with a count that nobody has seen yet, also where a reply is lost: a renewal that
    /// looks like the one before it would not be noticed by a standby.
    fn count_up(&mut self) -> Option<Authority> {
        let written = self.written.as_mut()?;
        written.count += 1;
        Some(written.clone())
    }

    /// Gives the authority back, so that a standby takes it at once.
    pub async fn give_back(&mut self) -> Result<bool, StoreError> {
        let Some(next) = self.count_up() else { return Ok(false) };
        self.replace(Authority { free: true, ..next }).await
    }

    async fn replace(&mut self, next: Authority) -> Result<bool, StoreError> {
        let change = Transaction::new()
            .guard(Guard::Fence { token: next.epoch })
            .change(WriteOp::SetKey { key: AUTHORITY.parse()?, value: next.encode() });
        let done = matches!(self.store.apply(&self.id, change).await?, Outcome::Done(_));
        self.written = done.then_some(next);
        Ok(done)
    }
}

fn is(found: &Found, authority: &Authority) -> bool {
    matches!(found, Found::Value(Some(value)) if *value == authority.encode())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nacre_object::testkit::MemoryStore;

    use super::*;

    fn keeper(store: &Arc<MemoryStore>, name: &str) -> AuthorityStore {
        let options = crate::role::Options {
            store: store.clone(),
            rank: 0,
            keeps_store: false,
            lease: Duration::from_secs(1),
            takeover: Duration::from_secs(1),
            servers: Vec::new(),
            link: Default::default(),
        };
        AuthorityStore::new(&options, name.to_owned(), vec![name.to_owned()]).unwrap()
    }

    #[tokio::test]
    async fn a_standby_that_stands_still_is_removed_and_one_that_counts_is_not() {
        let store = Arc::new(MemoryStore::new());
        // Two of one name, as in two containers.
        let [mut rank, mut silent, mut alive] = ["a", "b", "b"].map(|name| keeper(&store, name));
        rank.take(None).await.unwrap();
        silent.stand_by().await.unwrap();
        alive.stand_by().await.unwrap();
        for second in 0..20 {
            assert_eq!(rank.show(Duration::from_secs(second)).await.unwrap(), Some(true));
            assert!(alive.stand_on().await.unwrap(), "at {second} s");
            assert_eq!(silent.look().await.unwrap().own, second <= 4, "at {second} s");
        }
        // It was only slow. What it would have written is refused, so that it notices.
        assert!(!silent.stand_on().await.unwrap() && !silent.look().await.unwrap().own);
        let seen = silent.look().await.unwrap().authority;
        rank.show(Duration::from_secs(30)).await.unwrap();
        assert_eq!(silent.take(seen.as_ref()).await.unwrap(), None, "the rank has shown itself since");
        alive.leave().await.unwrap();
        assert_eq!(rank.show(Duration::from_secs(30)).await.unwrap(), Some(false));
    }

    #[tokio::test]
    async fn ranks_are_listed_with_those_that_stand_by() {
        let store = Arc::new(MemoryStore::new());
        crate::role::pin::set(&*store, crate::inode::Ino::ROOT, Some(1)).await.unwrap();
        let options = |rank| crate::role::Options {
            store: store.clone(),
            rank,
            keeps_store: false,
            lease: Duration::from_secs(1),
            takeover: Duration::from_secs(1),
            servers: Vec::new(),
            link: Default::default(),
        };
        for rank in [10, 2] {
            let mut keeper = AuthorityStore::new(&options(rank), "a".to_owned(), Vec::new()).unwrap();
            keeper.take(None).await.unwrap();
        }
        let mut standby = AuthorityStore::new(&options(2), "host:1@b".to_owned(), Vec::new()).unwrap();
        standby.stand_by().await.unwrap();
        let found = ranks(&*store).await.unwrap();
        assert_eq!(found.iter().map(|found| found.rank).collect::<Vec<_>>(), [2, 10]);
        assert_eq!((found[0].epoch, &found[0].standbys[..]), (1, &["host:1@b".to_owned()][..]));
        assert!(found[1].standbys.is_empty() && !found[1].free);
    }

    /// A store whose replies are lost while that is wanted.
    struct Mute(Arc<MemoryStore>, std::sync::atomic::AtomicBool);

    impl ObjectStore for Mute {
        fn apply(&self, object: &ObjectId, transaction: Transaction) -> nacre_object::Reply<Outcome> {
            let done = self.0.apply(object, transaction);
            match self.1.load(std::sync::atomic::Ordering::Relaxed) {
                true => nacre_object::Reply::ready(Err(StoreError::new(ErrorKind::Unknown, "lost"))),
                false => done,
            }
        }

        fn list(&self, after: Option<&ObjectId>, limit: usize) -> nacre_object::Reply<Vec<ObjectId>> {
            self.0.list(after, limit)
        }
    }

    #[tokio::test]
    async fn a_rank_shows_something_new_after_each_reply_that_was_lost() {
        let store = Arc::new(MemoryStore::new());
        let mute = Arc::new(Mute(store.clone(), Default::default()));
        let mut rank = keeper(&store, "a");
        rank.take(None).await.unwrap();
        rank.store = mute.clone();
        let mut shown = Vec::new();
        for lost in [false, true, true, false, true, false] {
            mute.1.store(lost, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(rank.show(Duration::ZERO).await.is_err(), lost);
            shown.push(read(&*store, 0).await.unwrap().unwrap().count);
        }
        assert!(shown.is_sorted_by(|one, next| one < next), "{shown:?}");
    }

    #[tokio::test]
    async fn a_standby_that_counts_up_in_the_last_moment_stays() {
        let store = Arc::new(MemoryStore::new());
        let [mut rank, mut slow] = ["a", "b"].map(|name| keeper(&store, name));
        rank.take(None).await.unwrap();
        slow.stand_by().await.unwrap();
        rank.show(Duration::ZERO).await.unwrap();
        assert!(slow.stand_on().await.unwrap());
        // The rank knows nothing of that when it sets out to remove it.
        assert_eq!(rank.show(Duration::from_secs(9)).await.unwrap(), Some(true));
        assert!(slow.look().await.unwrap().own);
        assert_eq!(rank.show(Duration::from_secs(10)).await.unwrap(), Some(true));
        assert_eq!(rank.show(Duration::from_secs(15)).await.unwrap(), Some(false));
    }

    #[tokio::test]
    async fn of_two_daemons_of_one_name_one_has_the_authority() {
        let store = Arc::new(MemoryStore::new());
        let (mut one, mut other) = (keeper(&store, "host:1"), keeper(&store, "host:1"));
        for epoch in 1..4 {
            let seen = one.look().await.unwrap().authority;
            assert_eq!(one.take(seen.as_ref()).await.unwrap(), Some(epoch));
            assert_eq!(other.take(seen.as_ref()).await.unwrap(), None);
            assert_eq!(one.show(Duration::ZERO).await.unwrap(), Some(false));
            assert_eq!(other.show(Duration::ZERO).await.unwrap(), None);
        }
    }
}
