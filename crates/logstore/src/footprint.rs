//! The size of the index, in memory and in a snapshot. It is counted as the index changes, so that no walk is needed.

use std::ops::{Add, AddAssign, Sub};
use std::sync::atomic::Ordering;

use nacre_object::{Fork, Key, ObjectId};

use crate::extent_map::ExtentMap;
use crate::fences::FencedSessions;
use crate::node::Node;
use crate::record::Effect;
use crate::sync::{AtomicI64, AtomicU64};

/// The maximum bytes of a piece of an extent in a snapshot: its kind, seven numbers, a checksum.
pub const EXTENT_BYTES_MAX: i64 = 42;
/// The maximum bytes around an object's id, a fork's name, and a key and its value.
const OBJECT_BYTES_MAX: i64 = 40;
const FORK_BYTES_MAX: i64 = 28;
const PAIR_BYTES_MAX: i64 = 8;
/// The maximum bytes of a number, such as the version of a key or a fenced session.
const NUMBER_BYTES_MAX: i64 = 10;
/// The maximum bytes around an object's fenced sessions: the kind of the item, and their number.
const FENCES_BYTES_MAX: i64 = 3;

/// The footprint of a part of the index. A difference of two is negative where something went away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// The number of pieces of extents.
    pub extents: i64,
    /// Memory that these pieces take, in bytes.
    pub extent_memory_bytes: i64,
    /// Bytes of a snapshot, at most.
    pub snapshot_bytes: i64,
    /// The part of these that a snapshot has for certain: names and values. The rest are numbers, which are mostly shorter.
    pub certain_bytes: i64,
}

impl Footprint {
    /// Returns the footprint of an object without its forks, keys, attributes and fenced sessions.
    pub fn of_object(name: &[u8]) -> Self {
        let certain_bytes = name.len() as i64;
        Self { snapshot_bytes: certain_bytes + OBJECT_BYTES_MAX, certain_bytes, ..Self::default() }
    }

    /// Returns the footprint of a fork.
    pub fn of_fork(name: &Fork, map: &ExtentMap) -> Self {
        let extents = map.len() as i64;
        let certain_bytes = name.as_bytes().len() as i64;
        Self {
            extents,
            extent_memory_bytes: map.memory_bytes() as i64,
            snapshot_bytes: certain_bytes + FORK_BYTES_MAX + extents * EXTENT_BYTES_MAX,
            certain_bytes,
        }
    }

    /// Returns the footprint of a key with its value and its version.
    pub fn of_key(key: &Key, value: &[u8]) -> Self {
        let version = Self { snapshot_bytes: NUMBER_BYTES_MAX, ..Self::default() };
        Self::of_attribute(key, value) + version
    }

    /// Returns the footprint of an attribute and its value.
    pub fn of_attribute(name: &Key, value: &[u8]) -> Self {
        let certain_bytes = (name.as_bytes().len() + value.len()) as i64;
        Self { snapshot_bytes: certain_bytes + PAIR_BYTES_MAX, certain_bytes, ..Self::default() }
    }

    /// Returns the footprint of an object's fenced sessions; its fence is a part of the object's own.
    pub fn of_fences(fences: &FencedSessions) -> Self {
        let snapshot_bytes = match fences.sessions().len() as i64 {
            0 => 0,
            count => FENCES_BYTES_MAX + count * NUMBER_BYTES_MAX,
        };
        Self { snapshot_bytes, ..Self::default() }
    }

    /// Returns the maximum bytes by which a transaction can make snapshots longer.
    pub fn growth_bytes(object: &ObjectId, effects: &[Effect]) -> u64 {
        let fork_bytes = |fork: &Fork, pieces: i64| {
            fork.as_bytes().len() as i64 + FORK_BYTES_MAX + pieces * EXTENT_BYTES_MAX
        };
        let grown: i64 = effects
            .iter()
            .map(|effect| match effect {
                // A piece in the middle of another makes three of it.
                Effect::Chunk { fork, .. } | Effect::Zero { fork, .. } => fork_bytes(fork, 2),
                Effect::Truncate { fork, .. } => fork_bytes(fork, 1),
                // The fork may be new; what it holds was there before.
                Effect::ReplaceFork { fork, .. } => fork_bytes(fork, 0),
                Effect::SetKey { key, value } => Self::of_key(key, value).snapshot_bytes,
                Effect::SetAttribute { name, value } => Self::of_attribute(name, value).snapshot_bytes,
                Effect::FenceSession { .. } => FENCES_BYTES_MAX + NUMBER_BYTES_MAX,
                _ => 0,
            })
            .sum();
        // Those count an object of their own only where it is new: see below.
        let removes = effects.iter().all(|effect| {
            matches!(
                effect,
                Effect::Remove
                    | Effect::RemoveFork { .. }
                    | Effect::RemoveKey { .. }
                    | Effect::RemoveAttribute { .. }
                    | Effect::RaiseFence { .. }
                    | Effect::FenceSession { .. }
            )
        });
        let object = if removes { 0 } else { Self::of_object(object.as_bytes()).snapshot_bytes };
        (grown + object) as u64
    }
}

impl Footprint {
    /// Returns the bytes by which a transaction's removals and fences can make snapshots longer: an object that never existed
    /// leaves a tombstone, a removed fork that never held anything leaves a hole. If these were not counted, removals alone
    /// could make the index longer than its files, and then nothing could ever be freed. `node` is the object before the
    /// transaction, and new if the index does not have it.
    pub fn removal_growth_bytes(object: &ObjectId, effects: &[Effect], node: &Node, is_new: bool) -> u64 {
        let is_empty = |fork: &Fork| node.forks.get(fork).is_some_and(|fork| fork.map.is_empty());
        let holes = effects.iter().filter(|effect| match effect {
            Effect::RemoveFork { fork } => is_empty(fork),
            _ => false,
        });
        let holes_bytes = holes.count() as i64 * EXTENT_BYTES_MAX;
        let object_bytes = if is_new { Self::of_object(object.as_bytes()).snapshot_bytes } else { 0 };
        (holes_bytes + object_bytes) as u64
    }
}

impl Add for Footprint {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            extents: self.extents + other.extents,
            extent_memory_bytes: self.extent_memory_bytes + other.extent_memory_bytes,
            snapshot_bytes: self.snapshot_bytes + other.snapshot_bytes,
            certain_bytes: self.certain_bytes + other.certain_bytes,
        }
    }
}

impl AddAssign for Footprint {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Footprint {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            extents: self.extents - other.extents,
            extent_memory_bytes: self.extent_memory_bytes - other.extent_memory_bytes,
            snapshot_bytes: self.snapshot_bytes - other.snapshot_bytes,
            certain_bytes: self.certain_bytes - other.certain_bytes,
        }
    }
}

/// Counters of the whole index: its footprint, and what else is known of it without a walk.
#[derive(Default)]
pub struct IndexCounters {
    extents: AtomicI64,
    extent_memory_bytes: AtomicI64,
    snapshot_bytes: AtomicI64,
    certain_bytes: AtomicI64,
    version_max: AtomicU64,
    /// The size of the last snapshot in bytes, the largest size that it could have had, and the certain part of it.
    last_bytes: AtomicU64,
    last_bytes_max: AtomicU64,
    last_certain_bytes: AtomicU64,
}

impl IndexCounters {
    /// Counts a change.
    pub fn add(&self, change: Footprint) {
        // A block written again, whole, changes nothing.
        if change == Footprint::default() {
            return;
        }
        self.extents.fetch_add(change.extents, Ordering::Relaxed);
        self.extent_memory_bytes.fetch_add(change.extent_memory_bytes, Ordering::Relaxed);
        self.snapshot_bytes.fetch_add(change.snapshot_bytes, Ordering::Relaxed);
        if change.certain_bytes != 0 {
            self.certain_bytes.fetch_add(change.certain_bytes, Ordering::Relaxed);
        }
    }

    /// Notes an object's version.
    pub fn saw_version(&self, version: u64) {
        if version > self.version_max.load(Ordering::Relaxed) {
            self.version_max.fetch_max(version, Ordering::Relaxed);
        }
    }

    /// Restarts with a footprint that was found by a walk.
    pub fn reset(&self, found: Footprint, version_max: u64) {
        self.extents.store(found.extents, Ordering::Relaxed);
        self.extent_memory_bytes.store(found.extent_memory_bytes, Ordering::Relaxed);
        self.snapshot_bytes.store(found.snapshot_bytes, Ordering::Relaxed);
        self.certain_bytes.store(found.certain_bytes, Ordering::Relaxed);
        self.version_max.store(version_max, Ordering::Relaxed);
    }

    /// Returns the index's footprint.
    pub fn footprint(&self) -> Footprint {
        Footprint {
            extents: self.extents.load(Ordering::Relaxed),
            extent_memory_bytes: self.extent_memory_bytes.load(Ordering::Relaxed),
            snapshot_bytes: self.snapshot_bytes.load(Ordering::Relaxed),
            certain_bytes: self.certain_bytes.load(Ordering::Relaxed),
        }
    }

    /// Returns the greatest version of any object.
    pub fn version_max(&self) -> u64 {
        self.version_max.load(Ordering::Relaxed)
    }

    /// Returns the maximum bytes that a snapshot taken now would have for objects.
    fn bytes_max(&self) -> u64 {
        self.snapshot_bytes.load(Ordering::Relaxed).max(0) as u64
    }

    /// Notes the size in bytes of a snapshot that was begun when [`IndexCounters::footprint`] returned `begun`.
    pub fn took_snapshot(&self, bytes: u64, begun: Footprint) {
        self.last_bytes.store(bytes, Ordering::Relaxed);
        self.last_bytes_max.store(begun.snapshot_bytes.max(0) as u64, Ordering::Relaxed);
        self.last_certain_bytes.store(begun.certain_bytes.max(0) as u64, Ordering::Relaxed);
    }

    /// Makes the next estimate the maximum possible, because a snapshot turned out to be larger than its file.
    pub fn underestimated(&self) {
        self.last_bytes.store(0, Ordering::Relaxed);
    }

    /// Returns an upper estimate of the size in bytes of a snapshot taken now, from the last one's size and what has
    /// come since. `segments` is their number.
    pub fn snapshot_bytes(&self, segments: u64) -> u64 {
        let most = self.bytes_max();
        let certain = self.certain_bytes.load(Ordering::Relaxed).max(0) as u64;
        let last = self.last_bytes.load(Ordering::Relaxed);
        let last_most = self.last_bytes_max.load(Ordering::Relaxed);
        let last_certain = self.last_certain_bytes.load(Ordering::Relaxed);
        // Each part by itself: numbers that went away took less than they might have, and make no room for as many bytes
        // of values.
        let numbers = most.saturating_sub(certain);
        let last_numbers = last_most.saturating_sub(last_certain);
        let grown = certain.saturating_sub(last_certain) + numbers.saturating_sub(last_numbers);
        let likely = match last {
            0 => most,
            // Numbers may have become longer in place.
            _ => last + last / 8 + grown,
        };
        /// The bytes of the header, the end, and what surrounds the last frame. Frames before it are at least 4 KiB
        /// long.
        const FIXED_BYTES: u64 = 512;
        let payload = likely.min(most);
        payload + payload / 256 + segments * 16 + FIXED_BYTES
    }
}
