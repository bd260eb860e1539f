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
