//! A consumer group: workers share out the entries of a log. Each entry goes to one of them, and to another one if that one does not
//! say in time that it is done. Workers may come, go, and start again.
//!
//! The state of a group is an object: a cursor, the position up to which entries were given to workers; and a key for each entry
//! that is being handled, with the time at which it goes to somebody else. A worker takes an entry, and says that it is done, by
//! transactions that are conditional on these keys' versions: so of two that want the same, one gets it.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use nacre_object::{
    Answer, Guard, Key, KeyRange, ObjectId, ObjectStore, Outcome, ReadOp, Transaction, Versioned, WriteOp,
};
use nacre_zlog::{Entry, Log, Slot};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// A worker of a group.
pub struct Worker {
    store: Arc<dyn ObjectStore>,
    log: Log,
    group: ObjectId,
    /// The time that a worker has for an entry.
    time: Duration,
}

/// An entry that was given to a worker.
pub struct Job {
    /// Its position.
    pub position: u64,
    /// The entry.
    pub entry: Entry,
    /// The version of the key by which the worker has it.
    claim: u64,
}

const CURSOR: &str = "cursor";
const CLAIMS: &str = "claim/";

fn claim_key(position: u64) -> Result<Key, Error> {
    Ok(Key::new(format!("{CLAIMS}{position:016x}"))?)
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

fn number(bytes: &[u8]) -> Result<u64, Error> {
    Ok(u64::from_be_bytes(bytes.try_into()?))
}

impl Worker {
    /// Joins a group of a log. `time` is how long a worker may take for an entry.
    pub fn join(store: Arc<dyn ObjectStore>, log: Log, group: &str, time: Duration) -> Result<Worker, Error> {
        let group = ObjectId::new(format!("{}-group/{group}", log.id()))?;
        Ok(Worker { store, log, group, time })
    }

    /// Takes an entry; `None` if all were given to workers, and none of these has exceeded its time.
    pub async fn take(&self) -> Result<Option<Job>, Error> {
        loop {
            let claims = ReadOp::VersionedKeys { range: KeyRange::prefix(CLAIMS), limit: 1024, values: true };
            let read = Transaction::new().read(ReadOp::versioned_key(Key::new(CURSOR)?)).read(claims);
            let Outcome::Done(done) = self.store.apply(&self.group, read).await? else { continue };
            let [Answer::VersionedValue(cursor), Answer::VersionedKeys(claims)] = &done.answers[..] else {
                return Err("the store's answer does not fit the question".into());
            };
            // First what another worker has not done in time.
            for (key, Versioned { value, version }) in &claims.entries {
                if number(value)? > now_ms() {
                    continue;
                }
                let position =
                    u64::from_str_radix(std::str::from_utf8(&key.as_bytes()[CLAIMS.len()..])?, 16)?;
                if let Some(job) = self.claim(position, key.clone(), *version, None).await? {
                    return Ok(Some(job));
                }
            }
            let (next, version) = match cursor {
                Some(Versioned { value, version }) => (number(value)?, *version),
                None => (0, 0),
            };
            match self.log.read(next).await? {
                Slot::Unwritten if next >= self.log.tail().await? => return Ok(None),
                // It is on its way, or its writer has died: a follower waits for one and fills the other.
                Slot::Unwritten => {
                    drop(self.log.follow(next, Default::default()).next_before(next + 1).await?)
                }
                _ => {}
            }
            if let Some(job) = self.claim(next, claim_key(next)?, 0, Some(version)).await? {
                return Ok(Some(job));
            }
        }
    }

    /// Takes the entry at a position, on condition that the claim has a version, and the cursor too, which then moves on. Returns
    /// `None` if somebody was faster, or if there is no entry.
    async fn claim(
        &self,
        position: u64,
        key: Key,
        version: u64,
        cursor: Option<u64>,
    ) -> Result<Option<Job>, Error> {
        let slot = self.log.read(position).await?;
        let mut transaction = Transaction::new().guard(Guard::KeyVersion { key: key.clone(), version });
        if let Some(version) = cursor {
            let next = Bytes::copy_from_slice(&(position + 1).to_be_bytes());
            let cursor = Key::new(CURSOR)?;
            transaction = transaction
                .guard(Guard::KeyVersion { key: cursor.clone(), version })
                .change(WriteOp::SetKey { key: cursor, value: next });
        }
        let until = now_ms() + self.time.as_millis() as u64;
        transaction = match &slot {
            Slot::Entry(_) => {
                let value = Bytes::copy_from_slice(&until.to_be_bytes());
                transaction.change(WriteOp::SetKey { key, value })
            }
            // There is nothing to do, and never will be.
            _ => transaction.change(WriteOp::RemoveKey { key }),
        };
        match (self.store.apply(&self.group, transaction).await?, slot) {
            (Outcome::Done(done), Slot::Entry(entry)) => {
                Ok(Some(Job { position, entry, claim: done.version }))
            }
            _ => Ok(None),
        }
    }

    /// Says that a job is done: nobody else will get it. Returns false if it took too long, and somebody else has it.
    pub async fn done(&self, job: &Job) -> Result<bool, Error> {
        let key = claim_key(job.position)?;
        let transaction = Transaction::new()
            .guard(Guard::KeyVersion { key: key.clone(), version: job.claim })
            .change(WriteOp::RemoveKey { key });
        Ok(matches!(self.store.apply(&self.group, transaction).await?, Outcome::Done(_)))
    }
}
