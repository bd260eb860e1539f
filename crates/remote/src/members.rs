//! The servers that keep a store together, and one server's place among them.
//!
//! Objects are placed by the members' *names*, which the servers know and send to their clients. So however a client
//! spells the addresses, it places every object where all other clients do.

use std::fmt;

use nacre_object::{ErrorKind, Escaped, ObjectId, StoreError};
use xxhash_rust::xxh3::xxh3_128;

use crate::rendezvous::Rendezvous;

/// The largest number of members of a list.
pub const MEMBERS_MAX: usize = 1024;
/// The longest name of a member, in bytes.
pub const MEMBER_NAME_BYTES_MAX: usize = 255;
/// The bytes of a list's digest.
pub const DIGEST_BYTES: usize = 16;

/// A versioned list of the servers that keep a store together, in ascending order of their names.
///
/// A name is the normalized address by which clients reach the member, or, for a server that keeps a store by itself,
/// the store's identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    version: u64,
    names: Vec<String>,
}

impl Members {
    /// Creates a list from names in any order.
    ///
    /// # Errors
    ///
    /// `Invalid` if there are no names, too many, two alike, or one that is empty, too long, or has control characters.
    pub fn new(version: u64, names: impl IntoIterator<Item = String>) -> Result<Members, StoreError> {
        let invalid = |text: String| Err(StoreError::new(ErrorKind::Invalid, text));
        let mut names: Vec<String> = names.into_iter().collect();
        names.sort_unstable();
        if names.is_empty() || names.len() > MEMBERS_MAX {
            return invalid(format!("a list of {} members; it must have 1 to {MEMBERS_MAX}", names.len()));
        }
        for (index, name) in names.iter().enumerate() {
            if name.is_empty() || name.len() > MEMBER_NAME_BYTES_MAX || name.chars().any(char::is_control) {
                return invalid(format!(
                    "member \"{}\": a name has 1 to {MEMBER_NAME_BYTES_MAX} bytes, and no control characters",
                    Escaped::of(name)
                ));
            }
            if index > 0 && names[index - 1] == *name {
                return invalid(format!("member \"{name}\" is named twice"));
            }
        }
        Ok(Members { version, names })
    }

    /// Returns the version of the list, which grows with every change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the names, in ascending order.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the index of a name.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.names.binary_search_by(|known| known.as_str().cmp(name)).ok()
    }

    /// Returns the XXH3-128 of version and names, by which two sides detect that they have the same list.
    pub fn digest(&self) -> [u8; DIGEST_BYTES] {
        let mut bytes = self.version.to_le_bytes().to_vec();
        for name in &self.names {
            // The length fits: `new` limits it.
            bytes.extend_from_slice(&(name.len() as u16).to_le_bytes());
            bytes.extend_from_slice(name.as_bytes());
        }
        xxh3_128(&bytes).to_le_bytes()
    }

    /// Returns the choice among the members.
    pub(crate) fn rendezvous(&self) -> Rendezvous {
        Rendezvous::new(&self.names)
    }
}

impl fmt::Display for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (version {})", self.names.join(","), self.version)
    }
}

/// One server's place among the members.
#[derive(Clone, Debug)]
pub struct Membership {
    members: Members,
    own: usize,
    rendezvous: Rendezvous,
}

impl Membership {
    /// Creates the place of the member called `own`; `None` if it is not in the list.
    pub fn new(members: Members, own: &str) -> Option<Membership> {
        let own = members.position(own)?;
        Some(Self::at(members, own))
    }

    /// Creates the place at an index, which must be within the list.
    pub(crate) fn at(members: Members, own: usize) -> Membership {
        assert!(own < members.names.len(), "a member's index lies within its list");
        let rendezvous = members.rendezvous();
        Membership { members, own, rendezvous }
    }

    /// Creates the place of a server that keeps a store alone, which is named by the store's identity.
    pub fn alone(store: [u8; 16]) -> Membership {
        let identity: String = store.iter().map(|byte| format!("{byte:02x}")).collect();
        Self::at(Members { version: 0, names: vec![format!("store:{identity}")] }, 0)
    }

    /// Returns all members.
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// Returns the index of this member.
    pub fn own(&self) -> usize {
        self.own
    }

    /// Returns the name of this member.
    pub fn name(&self) -> &str {
        &self.members.names[self.own]
    }

    /// Returns whether there is no other member.
    pub fn is_alone(&self) -> bool {
        self.members.names.len() == 1
    }

    /// Returns the name of the member that keeps an object.
    pub fn keeper(&self, object: &ObjectId) -> &str {
        &self.members.names[self.rendezvous.choose(object.as_bytes())]
    }

    /// Returns whether this member keeps an object.
    pub fn keeps(&self, object: &ObjectId) -> bool {
        self.rendezvous.choose(object.as_bytes()) == self.own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(version: u64, names: &[&str]) -> Members {
        Members::new(version, names.iter().map(|name| name.to_string())).unwrap()
    }

    #[test]
    fn a_list_is_the_same_in_any_order_and_another_in_another_version() {
        let list = members(1, &["b:1", "a:1"]);
        assert_eq!(list, members(1, &["a:1", "b:1"]));
        assert_eq!(list.digest(), members(1, &["a:1", "b:1"]).digest());
        assert_ne!(list.digest(), members(2, &["a:1", "b:1"]).digest());
        assert_ne!(list.digest(), members(1, &["a:1", "b:2"]).digest());
        assert_ne!(members(1, &["ab", "c"]).digest(), members(1, &["a", "bc"]).digest());
        assert_eq!(list.position("b:1"), Some(1));
        assert_eq!(list.to_string(), "a:1,b:1 (version 1)");
    }

    #[test]
    fn bad_lists_are_refused() {
        let list = |names: &[&str]| Members::new(1, names.iter().map(|name| name.to_string()));
        for names in [&[][..], &[""], &["a", "a"], &["a\x1b[2J"], &["x".repeat(256).as_str()]] {
            assert_eq!(list(names).unwrap_err().kind, ErrorKind::Invalid, "{names:?}");
        }
        assert!(Members::new(1, (0..=MEMBERS_MAX).map(|n| n.to_string())).is_err());
        assert!(Members::new(1, (0..MEMBERS_MAX).map(|n| n.to_string())).is_ok());
    }

    #[test]
    fn every_object_has_one_keeper() {
        let list = members(1, &["a:1", "b:1", "c:1"]);
        let places: Vec<Membership> =
            list.names().iter().map(|name| Membership::new(list.clone(), name).unwrap()).collect();
        for n in 0..100 {
            let object: ObjectId = format!("object-{n}").parse().unwrap();
            let keepers: Vec<&Membership> = places.iter().filter(|place| place.keeps(&object)).collect();
            assert_eq!(keepers.len(), 1);
            assert!(places.iter().all(|place| place.keeper(&object) == keepers[0].name()));
        }
        assert!(Membership::new(list, "d:1").is_none());
        let (one, two) = (Membership::alone([1; 16]), Membership::alone([2; 16]));
        assert_ne!(one.members().digest(), two.members().digest());
        assert!(one.name().parse::<nacre_rpc::Address>().is_err(), "an identity is no address");
    }
}
