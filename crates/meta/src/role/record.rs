//! The record of a sequencer in its object: the value of the key `sequencer`.
//!
//! | bytes | meaning |
//! |---|---|
//! | 1 | 1, the version of the format |
//! | 8 | the bound of the positions that may have been handed out |
//! | 8 | the lease of whoever may cache it, in milliseconds; 0 if nobody does |
//! | 1, 8, 8 | the policy: its code and two numbers ([`policy_numbers`]) |
//!
//! Numbers are little-endian. Ranks write it under their fence, and on condition that it is as they wrote it last.
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

use crate::capability::Policy;
use crate::inode::{Ino, Inode, InodeKind, RECORD, SEQUENCER};
use crate::namespace::sequencer_policy;
use crate::sequencer::POSITIONS;
use crate::service::Record;
use crate::wire::{policy_numbers, policy_of};

/// The key of the record.
pub const KEY: &str = "sequencer";
const VERSION: u8 = 1;
const BYTES: usize = 34;

/// Encodes a record.
pub fn encode(record: &Record) -> Bytes {
    let mut out = Vec::with_capacity(BYTES);
    out.push(VERSION);
    out.extend_from_slice(&record.reserved.to_le_bytes());
    let lease = record.cached.map_or(0, |lease| (lease.as_millis() as u64).max(1));
    out.extend_from_slice(&lease.to_le_bytes());
    let (code, first, second) = policy_numbers(record.policy);
    out.push(code);
    out.extend_from_slice(&first.to_le_bytes());
    out.extend_from_slice(&second.to_le_bytes());
    out.into()
}

/// Decodes a record; `None` if the bytes are none.
pub fn decode(bytes: &[u8]) -> Option<Record> {
    let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
    let number = |at: usize| {
        let mut number = [0; 8];
        number.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(number)
    };
    let (reserved, lease) = (number(1), number(9));
    if bytes[0] != VERSION || reserved > POSITIONS {
        return None;
    }
    let cached = (lease > 0).then(|| Duration::from_millis(lease));
    Some(Record { reserved, cached, policy: policy_of(bytes[17], number(18), number(26))? })
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

/// Reads a sequencer's record, and fences earlier ranks at its object if there is one. What holds something else is not a
/// sequencer, and none can be made there.
pub(super) async fn load(
    store: &dyn ObjectStore,
    id: &ObjectId,
    epoch: u64,
) -> Result<OrderOutcome<Option<Record>>, StoreError> {
    // Looked at before anything is written: most of what does not exist is a mistyped name.
    let look = Transaction::new().read(ReadOp::Key { key: key()? });
    if value(store.apply(id, look).await?)?.is_none() {
        return match Ino::of_state_object(id) {
            Some(ino) => begin(store, id, epoch, ino).await,
            None => Ok(OrderOutcome::Done(None)),
        };
    }
    let fence = Transaction::new()
        .guard(Guard::Fence { token: epoch })
        .read(ReadOp::Key { key: key()? })
        .change(WriteOp::RaiseFence { token: epoch });
    let found = match store.apply(id, fence).await? {
        Outcome::Refused(_) => return Ok(OrderOutcome::Superseded),
        done => value(done)?,
    };
    let Some(found) = found else { return Ok(OrderOutcome::Done(None)) };
    let record = decode(&found);
    if record.is_none() {
        tracing::error!("the key \"{KEY}\" of object \"{id}\" holds no sequencer");
    }
    Ok(OrderOutcome::Done(record))
}

/// Makes the record of a sequencer in the namespace, if its inode is there. Whoever removes an inode removes it before its
/// state: if the state that was not found had been removed, the inode would be gone too.
async fn begin(
    store: &dyn ObjectStore,
    id: &ObjectId,
    epoch: u64,
    ino: Ino,
) -> Result<OrderOutcome<Option<Record>>, StoreError> {
    let look = Transaction::new().read(ReadOp::Key { key: Key::new(Bytes::from_static(RECORD))? });
    let Some(inode) = value(store.apply(&ino.object(), look).await?)? else {
        return Ok(OrderOutcome::Done(None));
    };
    let policy = match Inode::decode(&inode) {
        Ok(inode) if inode.kind == InodeKind::Typed(SEQUENCER.to_owned()) => sequencer_policy(&inode.target),
        _ => None,
    };
    let Some(policy) = policy else { return Ok(OrderOutcome::Done(None)) };
    match create(store, id, epoch, policy).await? {
        // An earlier rank is at it. Its record is found when this is tried again.
        OrderOutcome::Done(None) => {
            Err(StoreError::new(ErrorKind::Busy, "the sequencer was created at the same time"))
        }
        OrderOutcome::Done(Some(record)) => {
            // The inode may have been removed since, and its state, which was not there yet, before this one was made.
            let look = Transaction::new().read(ReadOp::Key { key: Key::new(Bytes::from_static(RECORD))? });
            match value(store.apply(&ino.object(), look).await?)? {
                Some(_) => Ok(OrderOutcome::Done(Some(record))),
                None => Ok(remove(store, id, epoch, &record).await?.map(|()| None)),
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

/// Makes a sequencer that begins at the object's version, and returns its record; `None` if there is one.
pub(super) async fn create(
    store: &dyn ObjectStore,
    id: &ObjectId,
    epoch: u64,
    policy: Policy,
) -> Result<OrderOutcome<Option<Record>>, StoreError> {
    let look = Transaction::new().read(ReadOp::Key { key: key()? });
    let Outcome::Done(Done { version, .. }) = store.apply(id, look).await? else {
        return Err(StoreError::new(ErrorKind::Unknown, "the store refused a read without guards"));
    };
    let record = Record { reserved: version.min(POSITIONS), cached: None, policy };
    let make = Transaction::new()
        .guard(Guard::Fence { token: epoch })
        .guard(Guard::Key { key: key()?, check: Check::Absent })
        .guard(Guard::Version { version })
        .change(WriteOp::SetKey { key: key()?, value: encode(&record) })
        .change(WriteOp::RaiseFence { token: epoch });
    match store.apply(id, make).await? {
        Outcome::Done(_) => Ok(OrderOutcome::Done(Some(record))),
        Outcome::Refused(refusal) => match refusal.guard {
            0 => Ok(OrderOutcome::Superseded),
            1 => Ok(OrderOutcome::Done(None)),
            _ => Err(StoreError::new(ErrorKind::Busy, "the object was changed at the same time")),
        },
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
        .guard(Guard::Fence { token: epoch })
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

/// Removes a sequencer. It may be repeated.
pub(super) async fn remove(
    store: &dyn ObjectStore,
    id: &ObjectId,
    epoch: u64,
    before: &Record,
) -> Result<OrderOutcome<()>, StoreError> {
    let remove = Transaction::new()
        .guard(Guard::Fence { token: epoch })
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
    async fn a_sequencer_whose_policy_is_not_given_any_more_is_still_read() {
        let (store, ino) = (MemoryStore::new(), Ino(7));
        assert!("quota=0/100ms".parse::<Policy>().is_err());
        make(&store, ino, &inode(b"quota=0/100ms")).await;
        let loaded = load(&store, &ino.state_object(), 3).await.unwrap();
        let OrderOutcome::Done(Some(record)) = loaded else { panic!("{loaded:?}") };
        assert_eq!(record.policy, Policy::Quota { operations: 0, within: Duration::from_millis(100) });
    }

    #[tokio::test]
    async fn a_sequencer_whose_inode_is_removed_while_it_is_made_leaves_nothing() {
        let (store, ino) = (Arc::new(MemoryStore::new()), Ino(7));
        make(&store, ino, &inode(b"")).await;
        let overtaken = Overtaken(store.clone(), ino, AtomicBool::new(false));
        let loaded = load(&overtaken, &ino.state_object(), 3).await.unwrap();
        assert_eq!(loaded, OrderOutcome::Done(None));
        let left = store.list(None, 10).await.unwrap();
        assert!(left.is_empty(), "{left:?}");
    }
}
