//! Clients that count, with many operations under way each: no acknowledged increment may be lost, and no version may
//! have two contents.
//!
//! Each block of a few objects holds a count and the name of the client that wrote it. Clients read blocks, and write
//! the next count on condition that the block did not change. Two acknowledged writes of one count mean that one of
//! them was lost. Whatever a reply shows of a block at a version must be what every other reply shows of it at that
//! version.
//!
//! Half of the blocks are always written whole, so that they are one extent each; the others by writes of changing
//! lengths, so that extents are cut: engines treat these in different ways, and both must keep each other's order.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ::bytes::Bytes;

use crate::testkit::block_on;
use crate::*;

/// Bytes of a block.
const BLOCK_BYTES: u64 = 64;
/// The distance from one block to the next, in bytes, so that blocks do not become one extent.
const STRIDE_BYTES: u64 = 4096;
/// The maximum number of versions of a block whose contents are kept.
const VERSIONS_MAX: usize = 10_000;

/// A race of any number of clients. Every client, in any thread, takes part through [`Race::run_client`].
#[derive(derive_more::Debug)]
#[debug("Race")]
pub struct Race {
    objects: Vec<ObjectId>,
    blocks: u64,
    seen: Mutex<Seen>,
}

/// Everything that clients saw, together.
#[derive(Default)]
struct Seen {
    blocks: HashMap<(usize, u64), Block>,
    totals: Totals,
}

#[derive(Default)]
struct Block {
    /// A digest of the block's content, by version.
    contents: BTreeMap<u64, u64>,
    /// The versions of acknowledged writes, by count.
    counted: BTreeMap<u64, u64>,
    acknowledged: u64,
    unknown: u64,
}

/// The totals of a race.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Increments that were acknowledged.
    pub acknowledged: u64,
    /// Increments that were refused because another one came first.
    pub refused: u64,
    /// Increments that may or may not have taken effect.
    pub unknown: u64,
    /// Reads, including those that came with refusals.
    pub reads: u64,
}

/// An operation under way.
struct UnderWay {
    object: usize,
    block: u64,
    reply: Reply<Outcome>,
    /// The count that a write writes, the version that it was made for, and its content; `None` for a read.
    write: Option<(u64, u64, Bytes)>,
}

impl Race {
    /// Creates a race on `blocks` blocks of each object. The objects must not exist yet.
    pub fn new(objects: Vec<ObjectId>, blocks: u64) -> Self {
        Self { objects, blocks, seen: Mutex::default() }
    }

    /// Returns the totals so far.
    pub fn totals(&self) -> Totals {
        self.seen().totals
    }

    /// Counts with up to `window` operations under way, until `stop` returns true for the number of increments that
    /// this client had acknowledged; then waits for those under way. `number` is the client's own, and seeds its
    /// choices. Returns the number of acknowledged increments. Errors of the kinds in `tolerated` are part of the race;
    /// all other errors, and contradictions in what is seen, end it with a message.
    pub fn run_client(
        &self,
        store: &dyn ObjectStore,
        number: u64,
        window: usize,
        tolerated: &[ErrorKind],
        stop: impl Fn(u64) -> bool,
    ) -> Result<u64, String> {
        let (mut under_way, mut acknowledged, mut sequence) = (VecDeque::new(), 0, 0);
        let mut random = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        loop {
            while under_way.len() < window && !stop(acknowledged) {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let object = (random >> 8) as usize % self.objects.len();
                under_way.push_back(self.read(store, object, (random >> 40) % self.blocks));
            }
            let Some(oldest) = under_way.pop_front() else { return Ok(acknowledged) };
            let UnderWay { object, block, reply, write } = oldest;
            let found = match (block_on(reply), write) {
                (Ok(Outcome::Done(done)), None) => match done.answers.into_iter().next() {
                    Some(Answer::Range(found)) => found,
                    other => return Err(format!("{other:?} answers a read of a range")),
                },
                (Ok(Outcome::Done(done)), Some((count, before, content))) => {
                    if done.version <= before {
                        return Err(format!("a write for version {before} was stamped {}", done.version));
                    }
                    acknowledged += 1;
                    self.acknowledge(object, block, count, done.version, &content)?;
                    continue;
                }
                (Ok(Outcome::Refused(Refusal { found: Found::Region(found), .. })), Some((_, before, _))) => {
                    if found.version <= before {
                        return Err(format!(
                            "a write for version {before} was refused for {}",
                            found.version
                        ));
                    }
                    self.seen().totals.refused += 1;
                    found
                }
                (Ok(other), _) => return Err(format!("{other:?} answers neither a read nor an increment")),
                (Err(error), write) if tolerated.contains(&error.kind) => {
                    if write.is_some() && error.kind == ErrorKind::Unknown {
                        let mut seen = self.seen();
                        seen.totals.unknown += 1;
                        seen.blocks.entry((object, block)).or_default().unknown += 1;
                    }
                    continue;
                }
                (Err(error), _) => return Err(format!("{:?}: {error}", error.kind)),
            };
            let count = self.look(object, block, &found)? + 1;
            if !stop(acknowledged) {
                sequence += 1;
                under_way.push_back(self.increment(store, object, block, count, &found, (number, sequence)));
            }
        }
    }

    /// Reads every block, and compares it with what was acknowledged. The error describes the first difference.
    pub fn check(&self, store: &dyn ObjectStore) -> Result<Totals, String> {
        for object in 0..self.objects.len() {
            for block in 0..self.blocks {
                let outcome =
                    block_on(self.read(store, object, block).reply).map_err(|error| error.to_string())?;
                let Outcome::Done(done) = outcome else { return Err("a plain read was refused".into()) };
                let Some(Answer::Range(found)) = done.answers.first() else {
                    return Err("a read was not answered".into());
                };
                let count = self.look(object, block, found)?;
                let seen = self.seen();
                let Some(of) = seen.blocks.get(&(object, block)) else { continue };
                if count < of.acknowledged || count > of.acknowledged + of.unknown {
                    return Err(format!(
                        "block {block} of object {}: {} increments were acknowledged and {} may have been made, but \
                         the count is {count}",
                        self.objects[object], of.acknowledged, of.unknown
                    ));
                }
            }
        }
        Ok(self.totals())
    }

    fn range(block: u64) -> ByteRange {
        ByteRange::new(block * STRIDE_BYTES, BLOCK_BYTES)
    }

    fn read(&self, store: &dyn ObjectStore, object: usize, block: u64) -> UnderWay {
        let read = Transaction::new().read_range(Fork::DEFAULT, Self::range(block));
        UnderWay { object, block, reply: store.apply(&self.objects[object], read), write: None }
    }

    fn increment(
        &self,
        store: &dyn ObjectStore,
        object: usize,
        block: u64,
        count: u64,
        found: &RangeRead,
        (client, sequence): (u64, u64),
    ) -> UnderWay {
        let mut content = vec![client as u8; BLOCK_BYTES as usize];
        content[..8].copy_from_slice(&count.to_le_bytes());
        content[8..16].copy_from_slice(&client.to_le_bytes());
        content[16..24].copy_from_slice(&sequence.to_le_bytes());
        if block % 2 == 1 {
            content.truncate(24 + 8 * (sequence as usize % 4));
        }
        let range = Self::range(block);
        let write = Transaction::new().if_version(Fork::DEFAULT, range, found.version).write(
            Fork::DEFAULT,
            range.offset,
            content.clone(),
        );
        // The block as it will be: what a shorter write does not reach stays as it was.
        let mut whole = found.data.to_vec();
        whole.resize(content.len().max(whole.len()), 0);
        whole[..content.len()].copy_from_slice(&content);
        let reply = store.apply(&self.objects[object], write);
        UnderWay { object, block, reply, write: Some((count, found.version, whole.into())) }
    }

    fn acknowledge(
        &self,
        object: usize,
        block: u64,
        count: u64,
        version: u64,
        content: &Bytes,
    ) -> Result<(), String> {
        let mut seen = self.seen();
        seen.totals.acknowledged += 1;
        let of = seen.blocks.entry((object, block)).or_default();
        of.acknowledged += 1;
        if let Some(other) = of.counted.insert(count, version) {
            return Err(format!(
                "block {block} of object {}: count {count} was acknowledged at versions {other} and {version}: an \
                 update was lost",
                self.objects[object]
            ));
        }
        if of.counted.len() > VERSIONS_MAX {
            of.counted.pop_first();
        }
        self.compare(of, object, block, version, content)
    }

    /// Takes in what a reply shows of a block, and returns its count.
    fn look(&self, object: usize, block: u64, found: &RangeRead) -> Result<u64, String> {
        let mut seen = self.seen();
        seen.totals.reads += 1;
        self.compare(
            seen.blocks.entry((object, block)).or_default(),
            object,
            block,
            found.version,
            &found.data,
        )?;
        let count = found.data.get(..8).and_then(|count| count.try_into().ok());
        Ok(count.map_or(0, u64::from_le_bytes))
    }

    fn compare(
        &self,
        of: &mut Block,
        object: usize,
        block: u64,
        version: u64,
        content: &Bytes,
    ) -> Result<(), String> {
        let mut content = content.to_vec();
        // Where the fork ends in the midst of a block, zeros follow when it grows.
        while content.last() == Some(&0) {
            content.pop();
        }
        let mut hasher = DefaultHasher::new();
        content.hash(&mut hasher);
        let digest = hasher.finish();
        if *of.contents.entry(version).or_insert(digest) != digest {
            let object = &self.objects[object];
            return Err(format!("block {block} of object {object} has two contents at version {version}"));
        }
        if of.contents.len() > VERSIONS_MAX {
            of.contents.pop_first();
        }
        Ok(())
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        // Nothing that may panic happens while it is locked.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
