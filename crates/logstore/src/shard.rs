//! A part of the objects, by their names.
//!
//! The table holds a pointer for each object, and the object its name: what a table leaves free of its slots, up to a half,
//! is then little.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use nacre_object::ObjectId;

use crate::memory::Blocks;
use crate::name::Name;
use crate::node::Node;

/// The objects whose names have hashes in one class.
#[derive(Default)]
pub struct Shard {
    objects: HashTable<Box<Named>>,
    /// The blocks of a volatile store's objects.
    blocks: Blocks,
    /// Payload that transactions wrote, in bytes.
    pub written_bytes: u64,
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
    fn an_object_of_one_extent_is_small() {
        assert!(size_of::<Named>() <= 120, "{} bytes", size_of::<Named>());
    }
}
