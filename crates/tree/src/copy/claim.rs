//! The entries of a directory that was there before the copy, and the names of the source that they were copied for: where
//! the file system takes two names for one, the second name finds the entry of the first, and must not replace it.
//!
//! Memory: about 50 bytes for each entry of a directory that is being filled. Where there are many, they are kept only if
//! the directory is found to ignore case.

use std::collections::HashMap;
use std::ffi::CStr;
use std::hash::BuildHasher;

use nacre_walk::directory::Identity;
use parking_lot::Mutex;

/// The number of entries from which on it is worth a look whether they need to be kept.
const ENTRIES_MANY: usize = 4096;

/// The claims on the entries of one directory.
#[derive(Debug, Default)]
pub struct Claims(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    owners: HashMap<Identity, Owner>,
    ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    /// The hash of the name.
    name: u64,
    directory: bool,
}

impl State {
    fn owner(&self, name: &CStr, directory: bool) -> Owner {
        Owner { name: self.owners.hasher().hash_one(name), directory }
    }
}

impl Claims {
    /// Takes an entry that exists for a name; returns false if it is taken for another one.
    pub fn take(&self, entry: Identity, name: &CStr, directory: bool) -> bool {
        let mut state = self.0.lock();
        let owner = state.owner(name, directory);
        state.ended || state.owners.entry(entry).or_insert(owner).name == owner.name
    }

    /// Gives an entry that was made for a name to it; returns false if another name has taken it already, which is
    /// possible for directories, as they are made in their place.
    pub fn give(&self, entry: Identity, name: &CStr, directory: bool) -> bool {
        let mut state = self.0.lock();
        let owner = state.owner(name, directory);
        match state.owners.get(&entry) {
            _ if state.ended => true,
            // Of anything but a directory, the inode was that of an entry which has been replaced since.
            Some(other) if other.directory && directory => other.name == owner.name,
            _ => {
                state.owners.insert(entry, owner);
                true
            }
        }
    }

    /// Returns whether an entry is taken for a name.
    pub fn is_owner(&self, entry: Identity, name: &CStr) -> bool {
        let state = self.0.lock();
        let name = state.owner(name, false).name;
        state.owners.get(&entry).is_some_and(|owner| owner.name == name)
    }

    /// Forgets an entry that was removed.
    pub fn forget(&self, entry: Identity) {
        self.0.lock().owners.remove(&entry);
    }

    /// Returns whether there are so many that memory matters.
    pub fn are_many(&self) -> bool {
        self.0.lock().owners.len() >= ENTRIES_MANY
    }

    /// Forgets all of them for good: every further claim is granted.
    pub fn end(&self) {
        *self.0.lock() = State { owners: HashMap::new(), ended: true };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_belongs_to_the_name_that_took_it_first() {
        let claims = Claims::default();
        assert!(claims.take((1, 2), c"Foo", false) && claims.take((1, 2), c"Foo", false));
        assert!(!claims.take((1, 2), c"FOO", false));
        assert!(claims.take((1, 3), c"FOO", false));
        // The number of a file that was replaced may be that of a new one.
        assert!(claims.give((1, 2), c"new", false) && !claims.take((1, 2), c"Foo", false));
        assert!(claims.give((1, 3), c"directory", true));
        // Of two threads that make one directory, one finds it and may be the first to take it.
        assert!(claims.take((1, 4), c"DIR", true) && !claims.give((1, 4), c"dir", true));
        claims.forget((1, 4));
        assert!(claims.give((1, 4), c"dir", true));
        claims.end();
        assert!(claims.take((1, 2), c"Foo", false) && !claims.are_many());
    }
}
