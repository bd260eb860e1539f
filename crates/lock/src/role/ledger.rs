//! The records that a lock server needs after a restart, kept as keys of an object of the store.
//!
//! | key | value |
//! |---|---|
//! | `epoch` | the server's epoch, 8 bytes |
//! | `lease` | the longest lease that sessions of that epoch may rely on, in milliseconds, 8 bytes |
//! | `used` | 1 from the first session of an epoch on, until the server is stopped without any session |
//! | `numbers` | the number below which sessions may have been numbered, 8 bytes |
//! | `use/`, session (8 bytes, big-endian), file | empty: the session may have written the file |
//! | `floor/`, file | the session below which the store refuses all at the file, because too many are fenced there, 8 bytes |
//!
//! Numbers are little-endian. The object is made when it is first needed, so a store without locks has none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nacre_object::limit::PAGE_ENTRIES_MAX;
use nacre_object::{
    Answer, ErrorKind, Key, KeyRange, ObjectId, ObjectStore, Outcome, ReadOp, StoreError, Transaction,
    WriteOp,
};

use crate::message::{FileName, SessionId};
use crate::server::Record;
use crate::wire::file_name;

const EPOCH: &str = "epoch";
const LEASE: &str = "lease";
const USED: &str = "used";
const NUMBERS: &str = "numbers";
const USE: &[u8] = b"use/";
const FLOOR: &[u8] = b"floor/";

/// The maximum number of changes in one transaction.
const CHANGES_MAX: usize = 1000;

/// The state that a lock server finds at its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// The epoch of the last server that had a session; 0 if none had.
    pub epoch: u64,
    /// The longest lease that sessions of that epoch may rely on.
    pub lease: Duration,
    /// True if that server may have ended while it had sessions.
    pub used: bool,
    /// All sessions have numbers below this one.
    pub numbers: u64,
    /// The files that sessions may have written.
    pub records: BTreeMap<SessionId, BTreeSet<FileName>>,
    /// The sessions below which the store refuses all, by the files at which it does.
    pub floors: BTreeMap<FileName, SessionId>,
}

/// A change of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// An epoch has its first session.
    Begin { epoch: u64, lease: Duration },
    /// The server ends, and has no session.
    End,
    /// Sessions below this number may be numbered.
    Numbers(u64),
    /// A record of the server.
    Record(Record),
}

/// The object.
pub(super) struct Ledger {
    store: Arc<dyn ObjectStore>,
    object: ObjectId,
    /// True if a predecessor may have ended while it had sessions.
    pub used: bool,
    /// The files on record, to know what the end of a session removes.
    records: BTreeMap<SessionId, BTreeSet<FileName>>,
}

impl Ledger {
    /// Reads the ledger.
    ///
    /// # Errors
    /// Those of the store; `Corrupt` if the object is not a ledger.
    pub async fn open(store: Arc<dyn ObjectStore>, object: ObjectId) -> Result<(Ledger, Found), StoreError> {
        let mut found = Found::default();
        let mut after: Option<Bytes> = None;
        loop {
            let range = KeyRange { after: after.clone(), ..KeyRange::all() };
            let read = ReadOp::Keys { range, limit: PAGE_ENTRIES_MAX as u32, values: true };
            let outcome = store.apply(&object, Transaction::new().read(read)).await?;
            let Outcome::Done(done) = outcome else { return Err(damaged(&object)) };
            let Some(Answer::Keys(page)) = done.answers.into_iter().next() else {
                return Err(damaged(&object));
            };
            for (key, value) in &page.entries {
                found.take(key.as_bytes(), value).ok_or_else(|| damaged(&object))?;
            }
            after = page.entries.last().map(|(key, _)| key.to_bytes());
            if !page.more {
                break;
            }
        }
        let (used, records) = (found.used, found.records.clone());
        Ok((Ledger { store, object, used, records }, found))
    }

    /// Takes in changes, in order. Returns the writes that make them durable.
    ///
    /// # Errors
    /// `Invalid` if a change cannot be put down.
    pub fn take(&mut self, changes: &[Change]) -> Result<Vec<WriteOp>, StoreError> {
        let mut writes = Vec::new();
        for change in changes {
            self.put(change, &mut writes)?;
        }
        Ok(writes)
    }

    /// Makes writes durable, in order. A repetition of writes that may have been made already does no harm.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn write(&self, writes: &[WriteOp]) -> Result<(), StoreError> {
        for batch in writes.chunks(CHANGES_MAX) {
            let transaction = Transaction { writes: batch.to_vec(), ..Transaction::new() };
            self.store.apply(&self.object, transaction).await?;
        }
        Ok(())
    }

    fn put(&mut self, change: &Change, writes: &mut Vec<WriteOp>) -> Result<(), StoreError> {
        let mut set = |name: &str, value: Bytes| -> Result<(), StoreError> {
            writes.push(WriteOp::SetKey { key: name.parse()?, value });
            Ok(())
        };
        let number = |number: u64| Bytes::copy_from_slice(&number.to_le_bytes());
        match change {
            Change::Begin { epoch, lease } => {
                set(EPOCH, number(*epoch))?;
                set(LEASE, number(lease.as_millis() as u64))?;
                set(USED, Bytes::from_static(&[1]))
            }
            Change::End => set(USED, Bytes::from_static(&[0])),
            Change::Numbers(below) => set(NUMBERS, number(*below)),
            Change::Record(Record::Uses { session, file }) => {
                self.records.entry(*session).or_default().insert(file.clone());
                writes.push(WriteOp::SetKey { key: use_key(*session, file)?, value: Bytes::new() });
                Ok(())
            }
            Change::Record(Record::Left { session, file }) => {
                if let Some(files) = self.records.get_mut(session)
                    && files.remove(file)
                    && files.is_empty()
                {
                    self.records.remove(session);
                }
                writes.push(WriteOp::RemoveKey { key: use_key(*session, file)? });
                Ok(())
            }
            Change::Record(Record::Floor { file, floor }) => {
                let key = Key::new([FLOOR, file.as_bytes()].concat())?;
                writes.push(WriteOp::SetKey { key, value: number(floor.0) });
                Ok(())
            }
            Change::Record(Record::Gone { session }) => {
                for file in self.records.remove(session).unwrap_or_default() {
                    writes.push(WriteOp::RemoveKey { key: use_key(*session, &file)? });
                }
                Ok(())
            }
        }
    }
}

impl Found {
    /// Takes a key in; `None` if it makes no sense.
    fn take(&mut self, key: &[u8], value: &Bytes) -> Option<()> {
        let number = || value.as_ref().try_into().ok().map(u64::from_le_bytes);
        if let Some(rest) = key.strip_prefix(USE) {
            let (session, file) = rest.split_first_chunk()?;
            let session = SessionId(u64::from_be_bytes(*session));
            self.records.entry(session).or_default().insert(file_name(file).ok()?);
        } else if let Some(file) = key.strip_prefix(FLOOR) {
            self.floors.insert(file_name(file).ok()?, SessionId(number()?));
        } else if key == EPOCH.as_bytes() {
            self.epoch = number()?;
        } else if key == LEASE.as_bytes() {
            self.lease = Duration::from_millis(number()?);
        } else if key == USED.as_bytes() {
            self.used = value.as_ref() != [0];
        } else if key == NUMBERS.as_bytes() {
            self.numbers = number()?;
        }
        Some(())
    }
}

fn use_key(session: SessionId, file: &FileName) -> Result<Key, StoreError> {
    Key::new([USE, &session.0.to_be_bytes(), file.as_bytes()].concat())
}

fn damaged(object: &ObjectId) -> StoreError {
    let text =
        format!("object \"{object}\", in which the lock server keeps its records, holds something else");
    StoreError::new(ErrorKind::Corrupt, text)
}
