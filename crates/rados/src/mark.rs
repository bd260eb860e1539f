//! Marks in the index of names: whoever is about to make an object, or to remove it, sets one first, and learns with it above which
//! version the object begins.
//!
//! A mark is set in one operation that compares the floor of the shard (module `floor`). So it stands for the floor that its owner
//! knows, and an owner that was stopped for long in front of it finds out. One that was stopped behind it keeps the object from
//! being purged until the mark is gone, and from showing a later floor.

use std::ffi::{CStr, CString};
use std::time::SystemTime;

use bytes::Bytes;
use nacre_object::{ErrorKind, ObjectId, StoreError};
use parking_lot::Mutex;

use crate::error::{Attempt, errno, failed, index_failed};
use crate::floor::{self, Floor};
use crate::index::{ROOT, SHARDS, STATE, encode_root, entry_key, shard_name, shard_of};
use crate::read::pool_is_there;
use crate::record::Token;
use crate::store::{Inner, Tokens};
use crate::sys::{Completed, Operation, Pool, ReadStep, WriteStep, flag};
use crate::uri::Location;

/// The format of marks.
const FORMAT: u8 = 1;
/// The separator in the key of a mark, between the object's name and the mark's token. No escape begins like this, so
/// that an object's marks follow its entry, and no other entry comes between.
pub(crate) const MARK: [u8; 2] = [1, 1];
/// The flags of writes into the index. Where the pool is full, objects can still be removed and purged; so must be what that takes.
pub(crate) const FLAGS: i32 = flag::FULL_TRY | flag::FULL_FORCE;
/// The maximum number of times that a mark, or a floor, is tried to be set because the floor turns out to be another.
const ATTEMPTS_MAX: u32 = 16;
/// The number of attempts after which an earlier floor than this client knows is believed.
const EARLIER_AFTER: u32 = 4;

/// A mark that this client has set.
pub(crate) struct Mark {
    pub(crate) shard: CString,
    pub(crate) entry: Vec<u8>,
    pub(crate) key: Vec<u8>,
    /// The value with which it was set.
    pub(crate) value: Vec<u8>,
    /// The value of the entry when the mark was set, empty if there was none. `None` where others had marks of the object too,
    /// so that it will probably change before the mark is settled, or where it could not be read.
    pub(crate) before: Option<Bytes>,
    /// The floor for the object when the mark was set.
    pub(crate) floor: Floor,
}

/// Encodes the value of a mark: the time at which it was set, by the clock of the client; and that at which a listing
/// noticed it, if one did, by the clock of an OSD. Both are in seconds.
pub(crate) fn encode_mark(set_at: u64, noticed_at: Option<u64>) -> Vec<u8> {
    let mut record = vec![FORMAT];
    record.extend(set_at.to_le_bytes());
    record.extend(noticed_at.into_iter().flat_map(u64::to_le_bytes));
    record
}

/// Returns the times in the value of a mark; one that is unsound was set long ago, and not noticed yet.
pub(crate) fn decode_mark(record: &[u8]) -> (u64, Option<u64>) {
    let Some((&FORMAT, times)) = record.split_first() else { return (0, None) };
    match times.as_chunks::<8>() {
        ([set_at], []) => (u64::from_le_bytes(*set_at), None),
        ([set_at, noticed_at], []) => (u64::from_le_bytes(*set_at), Some(u64::from_le_bytes(*noticed_at))),
        _ => (0, None),
    }
}

pub(crate) fn now() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs()
}

pub(crate) fn mark_key(entry: &[u8], token: &Token) -> Vec<u8> {
    let mut key = [entry, &MARK].concat();
    key.extend(token.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()));
    key
}

/// Returns the steps that make a shard, with a floor if there is one to be had. They fail with EEXIST if it is there by then, and
/// may not if there is no floor.
pub(crate) fn shard_steps(floor: &[u8]) -> Vec<WriteStep<'_>> {
    match floor {
        [] => vec![WriteStep::Create],
        _ => vec![WriteStep::CreateNew, WriteStep::SetOmap(floor::KEY, floor)],
    }
}

/// Returns the only pair that a read asked for.
fn first_value(completed: Completed) -> Option<Bytes> {
    let pairs = completed.answers.into_iter().next().map(|answer| answer.into_pairs().0);
    pairs.unwrap_or_default().into_iter().next().map(|(_, value)| value)
}

/// A setter of marks, with what this client knows of the floors.
pub(crate) struct Marker {
    pool: Pool,
    location: Location,
    tokens: Tokens,
    floors: Mutex<[Floor; SHARDS]>,
}

impl Marker {
    pub(crate) fn new(pool: Pool, location: Location) -> Self {
        Self { pool, location, tokens: Tokens::new(), floors: Mutex::default() }
    }

    /// Returns the floor for an object, as far as this client knows it: an earlier one, or that of now. There is none for objects
    /// that are never purged.
    pub(crate) fn floor(&self, object: &ObjectId) -> Floor {
        if object.is_remembered() { Floor::default() } else { self.floors.lock()[shard_of(object)] }
    }

    /// Returns the floor for an object, from the index.
    pub(crate) async fn floor_now(&self, object: &ObjectId) -> Result<Floor, StoreError> {
        if object.is_remembered() {
            return Ok(Floor::default());
        }
        self.read_floor(shard_of(object)).await
    }

    /// Takes a floor in that was found, and returns it.
    pub(crate) fn saw(&self, shard: usize, floor: Floor) -> Floor {
        let mut floors = self.floors.lock();
        floors[shard] = floors[shard].later(floor);
        floor
    }

    /// Reads the floor of a shard. One that has lost it, because it was made anew by somebody who does not know floors, gets that of
    /// the master.
    pub(crate) async fn read_floor(&self, shard: usize) -> Result<Floor, StoreError> {
        let name = shard_name(shard);
        let mut lost = None;
        for _ in 0..ATTEMPTS_MAX {
            let known = self.floors.lock()[shard];
            let reading = self.pool.read(&name, &[ReadStep::OmapKey(floor::KEY)], 0);
            // Where nothing was purged, as far as is known, the master is wanted in any case.
            let master = (known == Floor::default()).then(|| self.read_master(shard));
            let read = reading.await;
            let is_there = match -read.code {
                code if code <= 0 => true,
                errno::ENOENT => false,
                code => return Err(self.failed(-code)),
            };
            if let Some(stored) = first_value(read).filter(|_| is_there) {
                let floor = Floor::decode(&stored).ok_or_else(|| unsound(&name))?;
                return Ok(self.saw(shard, floor));
            }
            let master = match master {
                Some(master) => self.decode_master(master.await)?,
                None => self.master(shard).await?,
            };
            let floor = Floor::at(master.start.max(known.start));
            if floor == Floor::default() {
                return Ok(floor);
            }
            // The master gets a floor after the shard has got one. So the shard has lost it, if it has none after this look.
            if lost.replace(floor).is_none() {
                continue;
            }
            if !is_there {
                return Ok(self.saw(shard, floor));
            }
            let record = floor.encode();
            let steps = [WriteStep::IfOmapEqual(floor::KEY, b""), WriteStep::SetOmap(floor::KEY, &record)];
            match -self.pool.write(&name, &steps, FLAGS).await.code {
                code if code <= 0 => return Ok(self.saw(shard, floor)),
                // This user may only read.
                errno::EPERM | errno::EACCES => return Ok(self.saw(shard, floor)),
                errno::ECANCELED | errno::ENOENT => {}
                code => return Err(self.failed(-code)),
            }
        }
        Err(self.busy(&name))
    }

    /// Returns what the master says of a shard: 0 if nothing of it was ever purged.
    async fn master(&self, shard: usize) -> Result<Floor, StoreError> {
        let read = self.read_master(shard).await;
        self.decode_master(read)
    }

    /// Returns what the master says of all shards.
    pub(crate) async fn masters(&self) -> Result<Vec<Floor>, StoreError> {
        let reads: Vec<Operation> = (0..SHARDS).map(|shard| self.read_master(shard)).collect();
        let mut floors = Vec::with_capacity(SHARDS);
        for read in reads {
            floors.push(self.decode_master(read.await)?);
        }
        Ok(floors)
    }

    fn read_master(&self, shard: usize) -> Operation {
        self.pool.read(floor::MASTER, &[ReadStep::OmapKey(&floor::master_key(shard))], 0)
    }

    fn decode_master(&self, read: Completed) -> Result<Floor, StoreError> {
        match -read.code {
            code if code <= 0 => {}
            errno::ENOENT => return Ok(Floor::default()),
            code => return Err(self.failed(-code)),
        }
        let stored = first_value(read).unwrap_or_default();
        Floor::decode(&stored).ok_or_else(|| unsound(floor::MASTER))
    }

    /// Has the master keep a version for a shard, if it keeps an earlier one.
    pub(crate) async fn raise_master(&self, shard: usize, version: u64) -> Result<(), StoreError> {
        let key = floor::master_key(shard);
        for _ in 0..ATTEMPTS_MAX {
            let found = self.master(shard).await?;
            if found.start >= version {
                return Ok(());
            }
            let (before, after) = (found.encode(), Floor::at(version).encode());
            let steps = [WriteStep::IfOmapEqual(&key, &before), WriteStep::SetOmap(&key, &after)];
            let mut code = self.pool.write(floor::MASTER, &steps, FLAGS).await.code;
            if code >= 0 {
                return Ok(());
            }
            if code == -errno::ENOENT {
                code = self.pool.write(floor::MASTER, &[WriteStep::Create], FLAGS).await.code;
            }
            if code < 0 && code != -errno::ECANCELED {
                return Err(self.failed(code));
            }
        }
        Err(self.busy(floor::MASTER))
    }

    /// Replaces the floor of a shard, if it is the one that is given. Returns whether it was.
    pub(crate) async fn replace_floor(
        &self,
        shard: usize,
        before: Floor,
        after: Floor,
    ) -> Result<bool, StoreError> {
        let (old, new) = (before.encode(), after.encode());
        let steps = [WriteStep::IfOmapEqual(floor::KEY, &old), WriteStep::SetOmap(floor::KEY, &new)];
        match -self.pool.write(&shard_name(shard), &steps, FLAGS).await.code {
            code if code <= 0 => {
                self.saw(shard, after);
                Ok(true)
            }
            errno::ECANCELED => Ok(false),
            code => Err(self.failed(-code)),
        }
    }

    /// Notes in the index that an object is about to be made or removed.
    pub(crate) async fn mark(&self, object: &ObjectId) -> Result<Mark, StoreError> {
        let number = shard_of(object);
        let (shard, entry) = (shard_name(number), entry_key(object));
        let key = mark_key(&entry, &self.tokens.next());
        let value = encode_mark(now(), None);
        let after = CString::new(&entry[..]).unwrap_or_default();
        let marks = CString::new([&entry[..], &MARK].concat()).unwrap_or_default();
        for attempt in 0..ATTEMPTS_MAX {
            let floor = self.floors.lock()[number];
            let stored = floor.encode();
            let steps = [WriteStep::IfOmapEqual(floor::KEY, &stored), WriteStep::SetOmap(&key, &value)];
            let marking = self.pool.write(&shard, &steps, FLAGS);
            // Sent side by side, and behind the mark, so that of two clients one at least sees the mark of the other.
            let marks = ReadStep::OmapAfter { after: &after, prefix: &marks, limit: 2 };
            let looking = self.pool.read(&shard, &[ReadStep::OmapKey(&entry), marks], 0);
            // Where it fails, nothing of the object was changed so far, whatever became of the mark.
            match -marking.await.code {
                code if code <= 0 => {
                    let looked = looking.await;
                    let found = looked.answers.into_iter().filter(|_| looked.code >= 0);
                    let mut found = found.map(|answer| answer.into_pairs().0);
                    let before = match (found.next(), found.next()) {
                        (Some(facts), Some(marks)) if marks.len() == 1 => {
                            Some(facts.into_iter().next().map(|(_, fact)| fact).unwrap_or_default())
                        }
                        _ => None,
                    };
                    let floor = if object.is_remembered() { Floor::default() } else { floor };
                    return Ok(Mark { shard, entry, key, value, before, floor });
                }
                errno::ECANCELED => {
                    let found = self.read_floor(number).await?;
                    // A shard that was lost may have been made anew at an earlier floor than it had.
                    if attempt >= EARLIER_AFTER {
                        self.floors.lock()[number] = found;
                    }
                }
                errno::ENOENT => {
                    pool_is_there(&self.pool, &self.location, object)?;
                    let code = self.make_shard(number).await?;
                    if code < 0 {
                        return Err(failed(code, Attempt::Read, &self.location, object));
                    }
                }
                code => return Err(failed(-code, Attempt::Read, &self.location, object)),
            }
        }
        Err(self.busy(&shard))
    }

    /// Takes a mark away whose change certainly did not take place.
    pub(crate) fn unmark(&self, mark: &Mark) {
        drop(self.pool.write(&mark.shard, &[WriteStep::RemoveOmap(&mark.key)], FLAGS));
    }

    /// Makes a shard that is not there, after the root says that the index is not complete. Returns 0 or more, or a negative errno.
    async fn make_shard(&self, number: usize) -> Result<i32, StoreError> {
        let code = self.take_root_back().await;
        if code < 0 {
            return Ok(code);
        }
        let floor = self.master(number).await?.encode();
        let code = self.pool.write(&shard_name(number), &shard_steps(&floor), FLAGS).await.code;
        Ok(if code == -errno::EEXIST { 0 } else { code })
    }

    /// Has the root say that the index is not complete, if it says that it is. Returns 0 or more, or a negative errno.
    async fn take_root_back(&self) -> i32 {
        let (complete, incomplete) = (encode_root(true), encode_root(false));
        let steps = [WriteStep::IfXattr(STATE, &complete), WriteStep::SetXattr(STATE, &incomplete)];
        let code = self.pool.write(ROOT, &steps, FLAGS).await.code;
        if matches!(-code, errno::ECANCELED | errno::ENOENT | errno::ENODATA) { 0 } else { code }
    }

    fn failed(&self, code: i32) -> StoreError {
        index_failed(code, self.pool.exists(), &self.location)
    }

    fn busy(&self, name: &CStr) -> StoreError {
        let (pool, name) = (&self.location.pool, name.to_string_lossy());
        let text = format!("\"{name}\" in pool \"{pool}\": the floor of versions changes all the time");
        StoreError::new(ErrorKind::Busy, text)
    }
}

fn unsound(name: &CStr) -> StoreError {
    let text = format!("\"{}\" holds no floor of versions of Nacre", name.to_string_lossy());
    StoreError::new(ErrorKind::Corrupt, text)
}

impl Inner {
    /// Notes in the index that an object is about to be made or removed.
    pub(crate) async fn mark(&self, object: &ObjectId) -> Result<Mark, StoreError> {
        self.marker.mark(object).await
    }

    /// Takes a mark away whose change certainly did not take place.
    pub(crate) fn unmark(&self, mark: &Mark) {
        self.marker.unmark(mark);
    }
}
