//! Names of objects, shared by all that keep them.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use nacre_object::ObjectId;

/// The name of an object in memory: half as long as an id, and its bytes are there once however many have it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Name(Arc<[u8]>);

impl Name {
    /// Creates the name of an object. The bytes are copied: the caller's may be a slice of a large buffer.
    pub fn new(object: &ObjectId) -> Self {
        Self(object.as_bytes().into())
    }

    /// Returns the name's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the first bytes of the name as a number. Where those of two names differ, the names are in the same order.
    pub fn prefix(&self) -> u128 {
        let mut bytes = [0; size_of::<u128>()];
        let len = self.0.len().min(bytes.len());
        bytes[..len].copy_from_slice(&self.0[..len]);
        u128::from_be_bytes(bytes)
    }

    /// Returns the id, as everybody else knows the object.
    pub fn to_id(&self) -> ObjectId {
        // It was made of an id, so its length is allowed.
        ObjectId::new(Bytes::copy_from_slice(&self.0)).expect("the name of an object is an id")
    }
}

impl Borrow<[u8]> for Name {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_id().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_in_the_order_of_names() {
        let long = ["object-0123456789", "object-0123456789-0", "object-0123456789-1"];
        let short = ["a", "a\0", "a\0b", "aa", "b"];
        let names = short.iter().chain(&long).map(|name| Name::new(&ObjectId::try_from(*name).unwrap()));
        let names: Vec<Name> = names.collect();
        assert!(names.is_sorted());
        assert!(names.is_sorted_by_key(Name::prefix));
        let mut pairs: Vec<_> = names.iter().rev().map(|name| (name.prefix(), name.clone())).collect();
        pairs.sort_unstable();
        assert!(pairs.into_iter().map(|(_, name)| name).eq(names));
    }
}
