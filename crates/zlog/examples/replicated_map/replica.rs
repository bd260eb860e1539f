//! A map of strings that every replica holds in memory: a state machine whose commands are the entries of a log.
//!
//! A replica applies the entries in their order, so all replicas are in the same state at the same position. A change is appended, and
//! has taken effect once the replica has applied it; a read first applies all that was appended before it began. A snapshot is the
//! state at a position, in an object of the store: a replica begins with it, and what is before it can be trimmed.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use nacre_object::{
    Answer, ByteRange, Check, Fork, Guard, Key, ObjectId, ObjectStore, Outcome, ReadOp, Transaction, WriteOp,
};
use nacre_zlog::{Entry, FollowOptions, Followed, Follower, Log};
use serde::{Deserialize, Serialize};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// A change of the map.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Sets a key.
    Set { key: String, value: String },
    /// Sets a key if it has a value, or none.
    SetIf { key: String, expected: Option<String>, value: String },
    /// Removes a key.
    Remove { key: String },
}

/// A change with what its replica recognises it by.
#[derive(Serialize, Deserialize)]
struct Numbered {
    replica: u64,
    number: u64,
    command: Command,
}

/// The state of the machine.
#[derive(Default, Serialize, Deserialize)]
struct State {
    map: BTreeMap<String, String>,
    /// The number of the last change of each replica, and whether it was made. It is part of the state, so that a replica that has
    /// to take another one's snapshot learns what has become of its own change.
    results: BTreeMap<u64, (u64, bool)>,
}

/// A replica of the map.
pub struct Replica {
    store: Arc<dyn ObjectStore>,
    log: Log,
    snapshot: ObjectId,
    follower: Follower,
    state: State,
    id: u64,
    /// The number of changes so far.
    changes: u64,
    /// The position up to which entries were applied.
    applied: u64,
}

impl Replica {
    /// Opens a replica: with the latest snapshot, if there is one.
    pub async fn open(store: Arc<dyn ObjectStore>, log: Log) -> Result<Replica, Error> {
        let snapshot = ObjectId::new(format!("{}-snapshot", log.id()))?;
        let follower = log.follow(0, FollowOptions::default());
        let (state, id, changes, applied) = (State::default(), rand::random(), 0, 0);
        let mut replica = Replica { store, log, snapshot, follower, state, id, changes, applied };
        replica.load().await?;
        Ok(replica)
    }

    /// Changes the map. Returns whether the change was made, by the state that it found.
    pub async fn change(&mut self, command: Command) -> Result<bool, Error> {
        self.changes += 1;
        let numbered = Numbered { replica: self.id, number: self.changes, command };
        let position = self.log.append(Entry::new(serde_json::to_vec(&numbered)?)).await?;
        while self.applied <= position {
            self.apply_next(position + 1).await?;
        }
        match self.state.results.get(&self.id) {
            Some((number, outcome)) if *number == self.changes => Ok(*outcome),
            _ => Err("the state does not know of the change".into()),
        }
    }

    /// Returns a value, which is at least as new as anything that was acknowledged before the call.
    pub async fn get(&mut self, key: &str) -> Result<Option<String>, Error> {
        self.catch_up().await?;
        Ok(self.state.map.get(key).cloned())
    }

    /// Returns the whole map, like [`Replica::get`].
    pub async fn all(&mut self) -> Result<&BTreeMap<String, String>, Error> {
        self.catch_up().await?;
        Ok(&self.state.map)
    }

    /// Writes a snapshot of the map, unless there is a later one, and trims what is before it.
    pub async fn take_snapshot(&mut self) -> Result<u64, Error> {
        self.catch_up().await?;
        let position = Bytes::copy_from_slice(&self.applied.to_be_bytes());
        let name = || Key::new("position");
        let write = Transaction::new()
            .change(WriteOp::RemoveFork { fork: Fork::DEFAULT })
            .write(Fork::DEFAULT, 0, serde_json::to_vec(&self.state)?)
            .change(WriteOp::SetAttribute { name: name()?, value: position.clone() });
        // Positions are compared as bytes; of two replicas that do this at once, the later state stays.
        for check in [Check::Absent, Check::Less(position)] {
            let guarded = write.clone().guard(Guard::Attribute { name: name()?, check });
            if let Outcome::Done(_) = self.store.apply(&self.snapshot, guarded).await? {
                break;
            }
        }
        // Whatever is there now is no older than this state.
        self.log.trim_prefix(self.applied).await?;
        Ok(self.applied)
    }

    async fn catch_up(&mut self) -> Result<(), Error> {
        let tail = self.log.tail().await?;
        while self.applied < tail {
            self.apply_next(tail).await?;
        }
        Ok(())
    }

    /// Applies the next entry before a position, if there is one.
    async fn apply_next(&mut self, end: u64) -> Result<(), Error> {
        match self.follower.next_before(end).await? {
            Some(Followed::Entry { position, entry }) => {
                self.applied = position + 1;
                self.state.apply(serde_json::from_slice(&entry.data)?);
            }
            // Whoever trimmed it has written a snapshot before.
            Some(Followed::Trimmed { .. }) => self.load().await?,
            None => self.applied = end,
        }
        Ok(())
    }

    /// Takes the state of the latest snapshot, and goes on from there.
    async fn load(&mut self) -> Result<(), Error> {
        let read = Transaction::new()
            .read(ReadOp::Attribute { name: Key::new("position")? })
            .read_range(Fork::DEFAULT, ByteRange::new(0, 16 << 20));
        let Outcome::Done(done) = self.store.apply(&self.snapshot, read).await? else { return Ok(()) };
        if let [Answer::Value(Some(position)), Answer::Range(read)] = &done.answers[..] {
            self.applied = u64::from_be_bytes(position[..].try_into()?);
            self.state = serde_json::from_slice(&read.data)?;
        }
        self.follower = self.log.follow(self.applied, FollowOptions::default());
        Ok(())
    }
}

impl State {
    fn apply(&mut self, change: Numbered) {
        let outcome = match change.command {
            Command::Set { key, value } => {
                self.map.insert(key, value);
                true
            }
            Command::SetIf { key, expected, value } => {
                let holds = self.map.get(&key) == expected.as_ref();
                if holds {
                    self.map.insert(key, value);
                }
                holds
            }
            Command::Remove { key } => self.map.remove(&key).is_some(),
        };
        self.results.insert(change.replica, (change.number, outcome));
    }
}
