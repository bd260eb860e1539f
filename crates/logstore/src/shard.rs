//! A part of the objects, by their names.
//!
//! The table holds a pointer for each object, and the object holds its name: so the free slots of the table, up to a half,
//! take little memory.
//!
//! Removed objects are in a queue, from which they are forgotten once there are too many: the oldest removals first, and only
//! those that the store's floor covers ([`Shard::forget`]).

use std::collections::VecDeque;
use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use nacre_object::ObjectId;
use nacre_object::limit::FLOOR_MAX;

use crate::footprint::Footprint;
use crate::memory::Blocks;
use crate::name::Name;
use crate::node::Node;

/// The maximum number of objects that are forgotten at a time.
const FORGOTTEN_MAX: usize = 8;
/// The number of versions by which the floor rises at most at a time: a removed object with a proposed version far above all others
/// is remembered instead, or a few of them would raise the floor to where nothing is forgotten any more.
const FLOOR_STEP_MAX: u64 = 1 << 22;
/// The number of places in a table below which it does not shrink.
const PLACES_MIN: usize = 1024;

/// The objects whose names have hashes in one class.
#[derive(Default)]
pub struct Shard {
    objects: HashTable<Box<Named>>,
    /// Removed objects that may be forgotten, the longest removed first; among them some that exist again.
    removed: VecDeque<Name>,
    /// The greatest version that any of these ever had when it was removed.
    removed_version_max: u64,
    /// The newest durable batch of the objects that were forgotten.
    forgotten_batch: u64,
    /// The blocks of a volatile store's objects.
    blocks: Blocks,
}

struct Named {
    name: Name,
    node: Node,
}

/// Returns the hash of an object's name.
pub fn hash(name: &[u8]) -> u64 {
    FixedState::default().hash_one(name)
}

impl Shard {
    fn find(&self, object: &ObjectId) -> Option<&Named> {
        let name = object.as_bytes();
        self.objects.find(hash(name), |named| named.name.as_bytes() == name).map(|named| &**named)
    }

    /// Returns an object.
    pub fn get(&self, object: &ObjectId) -> Option<&Node> {
        self.find(object).map(|named| &named.node)
    }

    /// Returns an object that is to be changed.
    pub fn get_mut(&mut self, object: &ObjectId) -> Option<&mut Node> {
        self.find_mut(hash(object.as_bytes()), object).0
    }

    /// Returns an object that is to be changed, by the hash of its name, and the blocks of all objects.
    pub fn find_mut(&mut self, hash: u64, object: &ObjectId) -> (Option<&mut Node>, &mut Blocks) {
        let name = object.as_bytes();
        let found = self.objects.find_mut(hash, |named| named.name.as_bytes() == name);
        (found.map(|named| &mut named.node), &mut self.blocks)
    }

    /// Returns the blocks, for checks.
    #[cfg(feature = "sim")]
    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// Returns whether there is an object.
    #[must_use]
    pub fn contains_key(&self, object: &ObjectId) -> bool {
        self.find(object).is_some()
    }

    /// Returns the name of an object, as it is shared.
    pub fn name(&self, object: &ObjectId) -> Option<&Name> {
        self.find(object).map(|named| &named.name)
    }

    /// Adds an object, or replaces it.
    pub fn insert(&mut self, object: &ObjectId, node: Node) {
        *self.get_or_default(object) = node;
    }

    /// Returns an object, made if there is none.
    pub fn get_or_default(&mut self, object: &ObjectId) -> &mut Node {
        let name = object.as_bytes();
        let entry = self.objects.entry(
            hash(name),
            |named| named.name.as_bytes() == name,
            |named| hash(named.name.as_bytes()),
        );
        let found = match entry {
            Entry::Occupied(found) => found,
            Entry::Vacant(place) => {
                place.insert(Box::new(Named { name: Name::new(object), node: Node::default() }))
            }
        };
        &mut found.into_mut().node
    }

    /// Notes that an object was removed, if the floor may rise as far as its version.
    pub fn note_removed(&mut self, object: &ObjectId, floor: u64) {
        let name = object.as_bytes();
        let found = self.objects.find_mut(hash(name), |named| named.name.as_bytes() == name);
        let Some(Named { name, node }) = found.map(|named| &mut **named) else { return };
        let version_max = FLOOR_MAX.min(floor + FLOOR_STEP_MAX);
        if object.is_remembered() || node.version > version_max || !node.leaves_a_version_only() {
            return;
        }
        self.removed_version_max = self.removed_version_max.max(node.version);
        if !node.is_queued {
            node.is_queued = true;
            self.removed.push_back(name.clone());
        }
    }

    /// Returns the newest batch of a forgotten object's removal: a reply about an object that is not here waits for it.
    pub fn forgotten_batch(&self) -> u64 {
        self.forgotten_batch
    }

    /// Returns the floor that covers all removed objects that may be forgotten.
    pub fn floor_wanted(&self) -> u64 {
        self.removed_version_max
    }

    /// Forgets some removed objects that are not above the floor, if there are more than `remembered_max`; returns the
    /// footprint that they had, and whether the floor has to rise for more.
    pub fn forget_some(&mut self, floor: u64, remembered_max: usize) -> (Footprint, bool) {
        let too_many = self.removed.len().saturating_sub(remembered_max);
        self.forget(floor, too_many.min(FORGOTTEN_MAX))
    }

    /// Forgets the removed objects that are not above the floor, among the `most` that were removed first.
    pub fn forget(&mut self, floor: u64, most: usize) -> (Footprint, bool) {
        let mut gone = Footprint::default();
        for _ in 0..most {
            let Some(name) = self.removed.pop_front() else { break };
            let bytes = name.as_bytes();
            let found = self.objects.find_entry(hash(bytes), |named| named.name.as_bytes() == bytes);
            let Ok(mut entry) = found else { continue };
            let node = &mut entry.get_mut().node;
            // One that was queued, existed again and was removed at a version far above all others is covered by no floor that
            // this shard asks for: in front of the queue, it would hold up all others forever.
            let is_remembered = node.version > FLOOR_MAX.min(self.removed_version_max.max(floor));
            if !node.leaves_a_version_only() || is_remembered {
                // It exists again, or must be remembered.
                node.is_queued = false;
            } else if node.version <= floor {
                // What is said of it from now on speaks of its removal, which may not be on the disk yet.
                self.forgotten_batch = self.forgotten_batch.max(node.durable_batch);
                entry.remove();
                gone += Footprint::of_object(bytes);
            } else {
                self.removed.push_front(name);
                return (gone, true);
            }
        }
        let places = self.objects.capacity();
        if places > PLACES_MIN && self.objects.len() < places / 8 {
            self.objects.shrink_to(places / 4, |named| hash(named.name.as_bytes()));
            self.removed.shrink_to(2 * self.removed.len());
        }
        (gone, false)
    }

    /// Finds the removed objects, when the store was opened, and forgets those that are not above the floor.
    pub fn find_removed(&mut self, floor: u64) {
        let removed = self.objects.iter().filter(|named| named.node.leaves_a_version_only());
        let removed: Vec<ObjectId> = removed.map(|named| named.name.to_id()).collect();
        for object in removed {
            self.note_removed(&object, floor);
        }
        // Those that are not covered go to the end, in no order.
        for _ in 0..self.removed.len() {
            if self.forget(floor, 1).1 {
                self.removed.rotate_left(1);
            }
        }
    }

    /// Returns the number of removed objects that are remembered and may be forgotten, at most.
    #[cfg(any(test, feature = "sim"))]
    pub fn removed_len(&self) -> usize {
        self.removed.len()
    }

    /// Returns all objects, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, &Node)> {
        self.objects.iter().map(|named| (&named.name, &named.node))
    }

    /// Returns all objects without their names, in no order.
    pub fn values(&self) -> impl Iterator<Item = &Node> {
        self.objects.iter().map(|named| &named.node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(index: u64) -> ObjectId {
        ObjectId::try_from(&*format!("object-{index}")).unwrap()
    }

    #[test]
    fn objects_are_found_by_their_names() {
        let mut shard = Shard::default();
        for index in 0..1000 {
            shard.insert(&object(index), Node { version: index, ..Node::default() });
        }
        shard.insert(&object(7), Node { version: 7000, ..Node::default() });
        shard.get_or_default(&object(8)).version += 8000;
        shard.get_mut(&object(9)).unwrap().version += 9000;
        assert!(shard.get(&object(1000)).is_none() && shard.get_mut(&object(1000)).is_none());
        assert!(shard.name(&object(1000)).is_none() && !shard.contains_key(&object(1000)));
        for index in 0..1000 {
            let more = if (7..10).contains(&index) { index * 1000 } else { 0 };
            let expected = if index == 7 { 7000 } else { index + more };
            assert_eq!(shard.get(&object(index)).unwrap().version, expected);
            assert_eq!(shard.name(&object(index)).unwrap().to_id(), object(index));
        }
        assert_eq!(shard.iter().count(), 1000);
        assert_eq!(shard.values().map(|node| node.version).max(), Some(9009));
    }

    #[test]
    fn a_removed_object_that_no_floor_covers_holds_up_no_other() {
        let mut shard = Shard::default();
        let remove = |shard: &mut Shard, index: u64, version: u64| {
            shard.get_or_default(&object(index)).version = version;
            shard.note_removed(&object(index), 0);
        };
        remove(&mut shard, 0, 1);
        remove(&mut shard, 0, FLOOR_STEP_MAX + 1);
        (1..=10).for_each(|index| remove(&mut shard, index, 2));
        let floor = shard.floor_wanted();
        assert_eq!((floor, shard.removed_len()), (2, 11));
        let (_, needs_floor) = shard.forget_some(floor, 4);
        assert!(!needs_floor && shard.removed_len() == 4, "{} are left", shard.removed_len());
        assert!(shard.contains_key(&object(0)) && !shard.contains_key(&object(1)));
    }

    #[test]
    fn an_object_of_one_extent_is_small() {
        assert!(size_of::<Named>() <= 120, "{} bytes", size_of::<Named>());
    }
}
