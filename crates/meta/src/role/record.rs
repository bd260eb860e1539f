//! The record of a sequencer in its object: the value of the key `sequencer`.
//!
//! | bytes | meaning |
//! |---|---|
//! | 1 | the version of the format: 1, or 2 with the place |
//! | 8 | the bound of the positions that may have been handed out |
//! | 8 | the lease of whoever may cache it, in milliseconds; 0 if nobody does |
//! | 1, 8, 8 | the policy: its code and two numbers ([`policy_numbers`]) |
//! | 4, 4 | the place: its rank and its generation |
//! | 1, 4 | 0 without a contact, 1 with one, 2 with one for half of the connections; the rank of the contact, or 0 |
//!
//! Numbers are little-endian. Version 1 is that of a sequencer that never left rank 0. Ranks write the record under their
//! fence ([`Place::token`]), and on condition that it is as they wrote it last.
//!
//! An object keeps its version when it is removed. The transaction that removes a sequencer proposes a version above its
//! bound, and one that is made under its name begins there: a holder that was stopped for longer than its lease may still hand
//! out positions of the former one.

use std::time::Duration;

use bytes::Bytes;
use nacre_object::limit::PROPOSAL_MAX;
use nacre_object::{
    Answer, ByteRange, Check, Done, ErrorKind, Fork, Found, Guard, Key, ObjectId, ObjectStore,
};
use nacre_object::{Outcome, ReadOp, StoreError, Transaction, WriteOp};

use super::pin;
use crate::capability::Policy;
use crate::inode::{Ino, Inode, InodeKind, RECORD, SEQUENCER};
use crate::namespace::sequencer_policy;
use crate::place::{Contact, Place, RANK_MAX, RankNumber};
use crate::sequencer::{POSITIONS, Sequencer};
use crate::service::Record;
use crate::wire::{policy_numbers, policy_of};

/// The key of the record.
pub const KEY: &str = "sequencer";
/// The version of a record without a place, and of one with it.
const VERSION: u8 = 1;
const VERSION_PLACED: u8 = 2;
const BYTES: usize = 34;
const BYTES_PLACED: usize = BYTES + 13;

/// Encodes a record.
pub fn encode(record: &Record) -> Bytes {
    let mut out = Vec::with_capacity(BYTES_PLACED);
    let placed = record.place != Place::default();
    out.push(if placed { VERSION_PLACED } else { VERSION });
    out.extend_from_slice(&record.reserved.to_le_bytes());
    let lease = record.cached.map_or(0, |lease| (lease.as_millis() as u64).max(1));
    out.extend_from_slice(&lease.to_le_bytes());
    let (code, first, second) = policy_numbers(record.policy);
    out.push(code);
    out.extend_from_slice(&first.to_le_bytes());
    out.extend_from_slice(&second.to_le_bytes());
    if placed {
        let Place { rank, generation, contact } = record.place;
        out.extend_from_slice(&rank.to_le_bytes());
        out.extend_from_slice(&generation.to_le_bytes());
        out.push(contact.map_or(0, |contact| 1 + u8::from(contact.half)));
        out.extend_from_slice(&contact.map_or(0, |contact| contact.rank).to_le_bytes());
    }
    out.into()
}

/// Decodes a record; `None` if the bytes are none.
pub fn decode(bytes: &[u8]) -> Option<Record> {
    let (bytes, rest) = bytes.split_first_chunk::<BYTES>()?;
    let number = |at: usize| {
        let mut number = [0; 8];
        number.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(number)
    };
    let (reserved, lease) = (number(1), number(9));
    let place = match bytes[0] {
        VERSION if rest.is_empty() => Place::default(),
        // There is one spelling of each record: ranks compare it byte by byte.
        VERSION_PLACED => decode_place(rest).filter(|place| *place != Place::default())?,
        _ => return None,
    };
    if reserved > POSITIONS {
        return None;
    }
    let cached = (lease > 0).then(|| Duration::from_millis(lease));
    Some(Record { reserved, cached, policy: policy_of(bytes[17], number(18), number(26))?, place })
}

fn decode_place(bytes: &[u8]) -> Option<Place> {
    let bytes: &[u8; BYTES_PLACED - BYTES] = bytes.try_into().ok()?;
    let number = |at: usize| {
        let mut number = [0; 4];
        number.copy_from_slice(&bytes[at..at + 4]);
        u32::from_le_bytes(number)
    };
    let (rank, generation, contact) = (number(0), number(4), number(9));
    let contact = match bytes[8] {
        0 if contact == 0 => None,
        half @ 1..=2 if contact <= RANK_MAX => Some(Contact { rank: contact, half: half == 2 }),
        _ => return None,
    };
    (rank <= RANK_MAX).then_some(Place { rank, generation, contact })
}

/// The end of an order of a rank at the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OrderOutcome<T> {
    /// A write that took effect, or had taken effect before.
    Done(T),
    /// A later rank has touched the object.
    Superseded,
    /// The object is gone: an inode was removed, and its state with it.
    Gone,
}

impl<T> OrderOutcome<T> {
    pub fn map<U>(self, map: impl FnOnce(T) -> U) -> OrderOutcome<U> {
        match self {
            OrderOutcome::Done(value) => OrderOutcome::Done(map(value)),
            OrderOutcome::Superseded => OrderOutcome::Superseded,
            OrderOutcome::Gone => OrderOutcome::Gone,
        }
    }
}

fn key() -> Result<Key, StoreError> {
    KEY.parse()
}

/// A rank at an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Actor {
    pub rank: RankNumber,
    pub epoch: u64,
}

/// Returns the place of the sequencer in an object; `None` if there is none.
///
/// # Errors
/// Those of the store.
pub(crate) async fn place(store: &dyn ObjectStore, id: &ObjectId) -> Result<Option<Place>, StoreError> {
    let look = Transaction::new().read(ReadOp::Key { key: key()? });
    let found = value(store.apply(id, look).await?)?;
    Ok(found.and_then(|found| decode(&found)).map(|record| record.place))
}

/// Reads a sequencer's record. If it says that this rank has authority over it, earlier ones are fenced at its object. What
/// holds something else is not a sequencer, and none can be made there.
pub(super) async fn load(
    store: &dyn ObjectStore,
    id: &ObjectId,
    by: Actor,
) -> Result<OrderOutcome<Option<Record>>, StoreError> {
    let found = look(store, id).await?;
    take(store, id, by, found).await
}

/// Reads a sequencer's record as [`load`] does. If this rank has authority over it and nobody may cache it, positions are reserved in the
/// step that fences earlier ranks: then its tail comes with it.
pub(super) async fn load_ahead(
    store: &dyn ObjectStore,
    id: &ObjectId,
    by: Actor,
) -> Result<OrderOutcome<(Option<Record>, Option<u64>)>, StoreError> {
    let found = look(store, id).await?;
    let known = found.as_ref().and_then(|found| decode(found));
    if let Some(found) = &found
        && let Some(before) = known.filter(|known| known.place.rank == by.rank && known.cached.is_none())
    {
        let after = Record { reserved: Sequencer::first_bound(before.reserved), ..before };
        let token = before.place.token(by.epoch);
        let reserve = Transaction::new()
            .guard(Guard::Fence { token })
            .guard(Guard::Key { key: key()?, check: Check::Equal(found.clone()) })
            .change(WriteOp::SetKey { key: key()?, value: encode(&after) })
            .change(WriteOp::RaiseFence { token });
        if let Outcome::Done(_) = store.apply(id, reserve).await? {
            return Ok(OrderOutcome::Done((Some(after), Some(before.reserved))));
        }
        // An earlier rank has changed it since, or a later one has fenced this one, which the next step tells apart.
    }
    Ok(take(store, id, by, found).await?.map(|record| (record, None)))
}

/// Reads the key of the record before anything is written: most of what does not exist is a mistyped name.
async fn look(store: &dyn ObjectStore, id: &ObjectId) -> Result<Option<Bytes>, StoreError> {
    let look = Transaction::new().read(ReadOp::Key { key: key()? });
    value(store.apply(id, look).await?)
}

/// Takes a record that was looked at, as [`load`] does.
async fn take(
    store: &dyn ObjectStore,
    id: &ObjectId,
    by: Actor,
    found: Option<Bytes>,
) -> Result<OrderOutcome<Option<Record>>, StoreError> {
    let Some(found) = found else {
        return match Ino::of_state_object(id) {
            Some(ino) => begin(store, id, by, ino).await,
            None => Ok(OrderOutcome::Done(None)),
        };
    };
    let Some(record) = decode(&found) else {
        tracing::error!("the key \"{KEY}\" of object \"{id}\" holds no sequencer");
        return Ok(OrderOutcome::Done(None));
    };
    if record.place.rank != by.rank {
        return Ok(OrderOutcome::Done(Some(record)));
    }
    let token = record.place.token(by.epoch);
    let fence = Transaction::new()
        .guard(Guard::Fence { token })
        .read(ReadOp::Key { key: key()? })
        .change(WriteOp::RaiseFence { token });
    let found = match store.apply(id, fence).await? {
        Outcome::Refused(refusal) if generation(&refusal.found) > record.place.generation => {
            return Err(StoreError::new(ErrorKind::Busy, "the sequencer was moved at the same time"));
        }
        Outcome::Refused(_) => return Ok(OrderOutcome::Superseded),
        done => value(done)?,
    };
    // The fence did not rise, so it is of the same generation, whatever an earlier rank wrote meanwhile.
    Ok(OrderOutcome::Done(found.and_then(|found| decode(&found))))
}

/// Returns the generation of the fence that a guard found.
fn generation(found: &Found) -> u32 {
    match found {
        Found::Fence(fence) => (fence >> 32) as u32,
        _ => 0,
    }
}

/// Makes the record of a sequencer in the namespace, if its inode is there. Whoever removes an inode removes it before its
/// state: if the state that was not found had been removed, the inode would be gone too.
async fn begin(
    store: &dyn ObjectStore,
    id: &ObjectId,
    by: Actor,
    ino: Ino,
) -> Result<OrderOutcome<Option<Record>>, StoreError> {
    let look = Transaction::new().read(ReadOp::Key { key: Key::new(Bytes::from_static(RECORD))? });
    let Some(inode) = value(store.apply(&ino.object(), look).await?)? else {
        return Ok(OrderOutcome::Done(None));
    };
    let inode = Inode::decode(&inode).ok();
    let sequencer = inode.filter(|inode| inode.kind == InodeKind::Typed(SEQUENCER.to_owned()));
    let policy = sequencer.as_ref().and_then(|inode| sequencer_policy(&inode.target));
    let (Some(inode), Some(policy)) = (sequencer, policy) else { return Ok(OrderOutcome::Done(None)) };
    let owner = match pin::rank_of(store, inode.parent).await {
        // Repeated, that would be the same, and whoever waits would wait for ever. A sequencer may be moved later.
        Err(error) if error.kind == ErrorKind::Corrupt => {
            tracing::error!("sequencer \"{id}\" is created at rank 0: {error}");
            0
        }
        owner => owner?,
    };
    match create(store, id, by, owner, policy).await? {
        // An earlier rank is at it. Its record is found when this is tried again.
        OrderOutcome::Done(None) => {
            Err(StoreError::new(ErrorKind::Busy, "the sequencer was created at the same time"))
        }
        OrderOutcome::Done(Some(record)) => {
            // The inode may have been removed since, and its state, which was not there yet, before this one was made.
            let look = Transaction::new().read(ReadOp::Key { key: Key::new(Bytes::from_static(RECORD))? });
            match value(store.apply(&ino.object(), look).await?)? {
                Some(_) => Ok(OrderOutcome::Done(Some(record))),
                None => Ok(remove(store, id, by.epoch, &record).await?.map(|()| None)),
            }
        }
        created => Ok(created),
    }
}

fn value(outcome: Outcome) -> Result<Option<Bytes>, StoreError> {
    match outcome {
        Outcome::Done(done) => match done.answers.into_iter().next() {
            Some(Answer::Value(value)) => Ok(value),
            _ => Err(StoreError::new(ErrorKind::Unknown, "the store did not answer a read")),
        },
        Outcome::Refused(_) => {
            Err(StoreError::new(ErrorKind::Unknown, "the store refused a read without guards"))
        }
    }
}

/// Makes a sequencer that begins at the object's version and is the owner's, and returns its record; `None` if there is one.
pub(super) async fn create(
    store: &dyn ObjectStore,
    id: &ObjectId,
    by: Actor,
    owner: RankNumber,
    policy: Policy,
) -> Result<OrderOutcome<Option<Record>>, StoreError> {
    let look = Transaction::new().read(ReadOp::Key { key: key()? });
    let Outcome::Done(Done { version, .. }) = store.apply(id, look).await? else {
        return Err(StoreError::new(ErrorKind::Unknown, "the store refused a read without guards"));
    };
    // Generation 0 is that of sequencers that never left rank 0.
    let mut place = Place { rank: owner, generation: u32::from(by.rank != 0 || owner != 0), contact: None };
    loop {
        let record = Record { reserved: version.min(POSITIONS), cached: None, policy, place };
        // The owner's epoch is not known to another rank, and any passes.
        let token = place.token(if owner == by.rank { by.epoch } else { 0 });
        let make = Transaction::new()
            .guard(Guard::Fence { token })
            .guard(Guard::Key { key: key()?, check: Check::Absent })
            .guard(Guard::Version { version })
            .change(WriteOp::SetKey { key: key()?, value: encode(&record) })
            .change(WriteOp::RaiseFence { token });
        let refusal = match store.apply(id, make).await? {
            Outcome::Done(_) => return Ok(OrderOutcome::Done(Some(record))),
            Outcome::Refused(refusal) => refusal,
        };
        match refusal.guard {
            0 if place.generation == 0 && generation(&refusal.found) == 0 => {
                return Ok(OrderOutcome::Superseded);
            }
            // A sequencer of that name was moved before it was removed. (No generation is above that of a fence that somebody
            // else has raised as far as it goes.)
            0 if generation(&refusal.found) >= place.generation && place.generation < u32::MAX => {
                place.generation = generation(&refusal.found).saturating_add(1);
            }
            1 => return Ok(OrderOutcome::Done(None)),
            _ => return Err(StoreError::new(ErrorKind::Busy, "the object was changed at the same time")),
        }
    }
}

/// Replaces a sequencer's record. It may be repeated.
pub(super) async fn write(
    store: &dyn ObjectStore,
    id: &ObjectId,
    epoch: u64,
    before: &Record,
    after: &Record,
) -> Result<OrderOutcome<()>, StoreError> {
    let value = encode(after);
    let change = Transaction::new()
        .guard(Guard::Fence { token: before.place.token(epoch) })
        .guard(Guard::Key { key: key()?, check: Check::Equal(encode(before)) })
        .change(WriteOp::SetKey { key: key()?, value: value.clone() });
    Ok(match store.apply(id, change).await? {
        Outcome::Done(_) => OrderOutcome::Done(()),
        // An earlier attempt, of which no reply came, has taken effect.
        Outcome::Refused(refusal) if refusal.guard == 1 && is(&refusal.found, &value) => {
            OrderOutcome::Done(())
        }
        Outcome::Refused(refusal)
            if matches!(refusal.found, Found::Value(None)) && Ino::of_state_object(id).is_some() =>
        {
            OrderOutcome::Gone
        }
        Outcome::Refused(_) => OrderOutcome::Superseded,
    })
}

/// Replaces a sequencer's record by one at another place, and fences the rank whose it was. It may be repeated.
pub(super) async fn hand_over(
    store: &dyn ObjectStore,
    id: &ObjectId,
    epoch: u64,
    before: &Record,
    after: &Record,
) -> Result<OrderOutcome<()>, StoreError> {
    let change = Transaction::new()
        .guard(Guard::Key { key: key()?, check: Check::Equal(encode(before)) })
        .guard(Guard::Fence { token: before.place.token(epoch) })
        .change(WriteOp::SetKey { key: key()?, value: encode(after) })
        .change(WriteOp::RaiseFence { token: after.place.token(0) });
    let refusal = match store.apply(id, change).await? {
        Outcome::Done(_) => return Ok(OrderOutcome::Done(())),
        Outcome::Refused(refusal) => refusal,
    };
    // An earlier attempt, of which no reply came, may have taken effect, and the other rank may have changed the record since,
    // or removed it.
    let left = match &refusal.found {
        Found::Value(Some(found)) => {
            decode(found).is_some_and(|found| found.place.generation >= after.place.generation)
        }
        Found::Value(None) => true,
        _ => false,
    };
    Ok(if left { OrderOutcome::Done(()) } else { OrderOutcome::Superseded })
}

/// Removes a sequencer. It may be repeated.
pub(super) async fn remove(
    store: &dyn ObjectStore,
    id: &ObjectId,
    epoch: u64,
    before: &Record,
) -> Result<OrderOutcome<()>, StoreError> {
    let remove = Transaction::new()
        .guard(Guard::Fence { token: before.place.token(epoch) })
        .guard(Guard::Key { key: key()?, check: Check::Equal(encode(before)) })
        .change(WriteOp::Remove);
    let (fork, range) = (Fork::DEFAULT, ByteRange::new(0, 1));
    let version = (before.reserved + 1).min(PROPOSAL_MAX);
    let above = remove.clone().guard(Guard::Proposal { fork, range, version });
    let outcome = match store.apply(id, above).await? {
        // The object's version is above that already.
        Outcome::Refused(refusal) if refusal.guard == 2 => store.apply(id, remove).await?,
        outcome => outcome,
    };
    Ok(match outcome {
        Outcome::Done(_) => OrderOutcome::Done(()),
        Outcome::Refused(refusal) if matches!(refusal.found, Found::Value(None)) => OrderOutcome::Done(()),
        Outcome::Refused(_) => OrderOutcome::Superseded,
    })
}

fn is(found: &Found, value: &Bytes) -> bool {
    matches!(found, Found::Value(Some(found)) if found == value)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use nacre_object::Reply;
    use nacre_object::testkit::MemoryStore;

    use super::*;
    use crate::inode::Layout;
    use crate::place::Mode;

    const RANK: Actor = Actor { rank: 0, epoch: 3 };

    /// A store in which an inode is removed, with its state, just before its state is made.
    struct Overtaken(Arc<MemoryStore>, Ino, AtomicBool);

    impl ObjectStore for Overtaken {
        fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
            let store = self.0.clone();
            let is_created = *object == self.1.state_object() && !transaction.writes.is_empty();
            let ino = (is_created && !self.2.swap(true, Ordering::Relaxed)).then_some(self.1);
            let object = object.clone();
            Reply::pending(async move {
                if let Some(ino) = ino {
                    for object in [ino.object(), ino.state_object()] {
                        let remove = Transaction::new().guard(Guard::Exists).change(WriteOp::Remove);
                        store.apply(&object, remove).await?;
                    }
                }
                store.apply(&object, transaction).await
            })
        }

        fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
            self.0.list(after, limit)
        }
    }

    /// Makes the inode of a sequencer with a policy.
    fn inode(policy: &'static [u8]) -> Inode {
        Inode {
            kind: InodeKind::Typed(SEQUENCER.to_owned()),
            mode: 0o644,
            uid: 0,
            gid: 0,
            atime: 0,
            mtime: 0,
            ctime: 0,
            btime: 0,
            links: vec![1],
            size: 0,
            layout: Layout::default(),
            content: 0,
            contents: Vec::new(),
            parent: Ino::ROOT,
            target: Bytes::from_static(policy),
            quota: 0,
            tree: 0,
            is_split: false,
        }
    }

    async fn make(store: &MemoryStore, ino: Ino, inode: &Inode) {
        let key = Key::new(Bytes::from_static(RECORD)).unwrap();
        let make = Transaction::new().change(WriteOp::SetKey { key, value: inode.encode() });
        store.apply(&ino.object(), make).await.unwrap();
    }

    #[tokio::test]
    async fn positions_are_reserved_in_the_step_that_fences_earlier_ranks() {
        let store = MemoryStore::new();
        let id: ObjectId = "nacre/sequencers/log".parse().unwrap();
        let ahead = async |epoch| load_ahead(&store, &id, Actor { rank: 0, epoch }).await.unwrap();
        assert_eq!(ahead(3).await, OrderOutcome::Done((None, None)));
        let made = create(&store, &id, RANK, 0, Policy::RoundTrip).await.unwrap();
        let OrderOutcome::Done(Some(made)) = made else { panic!("{made:?}") };
        let more = Record { reserved: Sequencer::first_bound(made.reserved), ..made };
        assert_eq!(ahead(4).await, OrderOutcome::Done((Some(more), Some(made.reserved))));
        // The rank of the epoch before is fenced, and one that comes later begins behind all of it.
        assert_eq!(write(&store, &id, 3, &more, &made).await.unwrap(), OrderOutcome::Superseded);
        assert_eq!(ahead(3).await, OrderOutcome::Superseded);
        let later = Actor { rank: 0, epoch: 5 };
        assert_eq!(load(&store, &id, later).await.unwrap(), OrderOutcome::Done(Some(more)));
        // What somebody may cache is loaded as it is, and so is what another rank has.
        let cached = Record { cached: Some(Duration::from_secs(1)), ..more };
        assert_eq!(write(&store, &id, 5, &more, &cached).await.unwrap(), OrderOutcome::Done(()));
        assert_eq!(ahead(5).await, OrderOutcome::Done((Some(cached), None)));
        let moved = Record { cached: None, place: more.place.moved(1, Mode::Client), ..more };
        assert_eq!(hand_over(&store, &id, 5, &cached, &moved).await.unwrap(), OrderOutcome::Done(()));
        assert_eq!(ahead(5).await, OrderOutcome::Done((Some(moved), None)));
    }

    #[tokio::test]
    async fn a_sequencer_whose_policy_is_not_given_any_more_is_still_read() {
        let (store, ino) = (MemoryStore::new(), Ino(7));
        assert!("quota=0/100ms".parse::<Policy>().is_err());
        make(&store, ino, &inode(b"quota=0/100ms")).await;
        let loaded = load(&store, &ino.state_object(), RANK).await.unwrap();
        let OrderOutcome::Done(Some(record)) = loaded else { panic!("{loaded:?}") };
        assert_eq!(record.policy, Policy::Quota { operations: 0, within: Duration::from_millis(100) });
    }

    #[tokio::test]
    async fn what_has_moved_is_changed_by_no_epoch_of_its_old_rank() {
        let (store, id) = (MemoryStore::new(), "nacre/sequencers/log".parse().unwrap());
        let OrderOutcome::Done(Some(first)) = create(&store, &id, RANK, 0, Policy::BestEffort).await.unwrap()
        else {
            panic!("it is made")
        };
        assert_eq!((first.place, encode(&first).len()), (Place::default(), BYTES));
        let moved = Record { reserved: 7, place: first.place.moved(5, Mode::Proxy), ..first };
        // It may be repeated.
        for _ in 0..2 {
            let done = hand_over(&store, &id, 3, &first, &moved).await.unwrap();
            assert_eq!(done, OrderOutcome::Done(()));
        }
        let more = Record { reserved: 100, ..moved };
        for epoch in [3, 1 << 31] {
            let old = Record { reserved: 100, ..first };
            assert_eq!(write(&store, &id, epoch, &first, &old).await.unwrap(), OrderOutcome::Superseded);
            // Also if it knew the record as it is.
            let known = Record { place: first.place, ..moved };
            assert_eq!(write(&store, &id, epoch, &known, &old).await.unwrap(), OrderOutcome::Superseded);
            assert_eq!(remove(&store, &id, epoch, &first).await.unwrap(), OrderOutcome::Superseded);
            let seen = load(&store, &id, Actor { rank: 0, epoch }).await.unwrap();
            assert_eq!(seen, OrderOutcome::Done(Some(moved)));
        }
        // The other rank is at an early epoch, and a later one of it fences this.
        let other = Actor { rank: 5, epoch: 1 };
        assert_eq!(load(&store, &id, other).await.unwrap(), OrderOutcome::Done(Some(moved)));
        assert_eq!(write(&store, &id, 1, &moved, &more).await.unwrap(), OrderOutcome::Done(()));
        let later = Actor { rank: 5, epoch: 2 };
        assert_eq!(load(&store, &id, later).await.unwrap(), OrderOutcome::Done(Some(more)));
        assert_eq!(write(&store, &id, 1, &more, &moved).await.unwrap(), OrderOutcome::Superseded);
        assert_eq!(load(&store, &id, other).await.unwrap(), OrderOutcome::Superseded);
        // The reply to the hand-over may come as late as that.
        assert_eq!(hand_over(&store, &id, 3, &first, &moved).await.unwrap(), OrderOutcome::Done(()));
        // Rank 0 creates it anew, although its fence is that of another generation.
        assert_eq!(remove(&store, &id, 2, &more).await.unwrap(), OrderOutcome::Done(()));
        let anew = create(&store, &id, RANK, 0, Policy::BestEffort).await.unwrap();
        let OrderOutcome::Done(Some(anew)) = anew else { panic!("{anew:?}") };
        assert!(anew.reserved >= 100 && anew.place.generation > moved.place.generation);
        assert_eq!(load(&store, &id, RANK).await.unwrap(), OrderOutcome::Done(Some(anew)));
        assert_eq!(
            create(&store, &id, other, 5, Policy::BestEffort).await.unwrap(),
            OrderOutcome::Done(None)
        );
    }

    #[tokio::test]
    async fn a_sequencer_below_a_pinned_directory_is_made_for_its_rank() {
        let (store, ino) = (MemoryStore::new(), Ino(7));
        make(&store, ino, &inode(b"")).await;
        pin::set(&store, Ino::ROOT, Some(4)).await.unwrap();
        let loaded = load(&store, &ino.state_object(), RANK).await.unwrap();
        let OrderOutcome::Done(Some(record)) = loaded else { panic!("{loaded:?}") };
        assert_eq!(record.place.rank, 4);
        // It may be found first by any rank.
        let found = load(&store, &ino.state_object(), Actor { rank: 4, epoch: 1 }).await.unwrap();
        assert_eq!(found, OrderOutcome::Done(Some(record)));
    }

    #[tokio::test]
    async fn pins_that_cannot_be_read_keep_no_sequencer_from_being_made() {
        let (store, ino) = (MemoryStore::new(), Ino(7));
        make(&store, ino, &inode(b"")).await;
        let value = Bytes::from_static(b"x");
        let set = Transaction::new().change(WriteOp::SetKey { key: "x".parse().unwrap(), value });
        store.apply(&pin::OBJECT.parse().unwrap(), set).await.unwrap();
        let loaded = load(&store, &ino.state_object(), RANK).await.unwrap();
        let OrderOutcome::Done(Some(record)) = loaded else { panic!("{loaded:?}") };
        assert_eq!(record.place, Place::default());
    }

    #[tokio::test]
    async fn no_sequencer_is_made_behind_a_fence_that_is_as_high_as_it_goes() {
        let (store, id) = (MemoryStore::new(), "nacre/sequencers/log".parse().unwrap());
        let raise = Transaction::new().change(WriteOp::RaiseFence { token: u64::MAX });
        store.apply(&id, raise).await.unwrap();
        assert!(create(&store, &id, RANK, 0, Policy::BestEffort).await.is_err());
    }

    #[tokio::test]
    async fn a_sequencer_whose_inode_is_removed_while_it_is_made_leaves_nothing() {
        let (store, ino) = (Arc::new(MemoryStore::new()), Ino(7));
        make(&store, ino, &inode(b"")).await;
        let overtaken = Overtaken(store.clone(), ino, AtomicBool::new(false));
        let loaded = load(&overtaken, &ino.state_object(), RANK).await.unwrap();
        assert_eq!(loaded, OrderOutcome::Done(None));
        let left = store.list(None, 10).await.unwrap();
        assert!(left.is_empty(), "{left:?}");
    }
}
