//! The members for which addresses send.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;

use hashbrown::HashTable;

use super::member::{Member, MemberIndex};
use crate::pages::Pages;

/// The newest member of each port and address: the datagrams of that address go to its group. Port and address are those
/// of the member, and kept nowhere else.
#[derive(Debug, Default)]
pub(super) struct Senders {
    keys: RandomState,
    newest: HashTable<u32>,
}

impl Senders {
    fn hash(&self, port: u16, address: SocketAddr) -> u64 {
        self.keys.hash_one((port, address))
    }

    pub fn get(
        &self,
        members: &Pages<Option<Member>>,
        port: u16,
        address: SocketAddr,
    ) -> Option<MemberIndex> {
        let is = |at: &u32| {
            members[*at as usize].as_ref().is_some_and(|of| (of.port, of.address) == (port, address))
        };
        self.newest.find(self.hash(port, address), is).map(|at| MemberIndex(*at))
    }

    /// Puts a member in the place of the newest one with its port and address, if there was one.
    pub fn put(&mut self, members: &Pages<Option<Member>>, before: Option<MemberIndex>, now: MemberIndex) {
        let of =
            |at: u32| members[at as usize].as_ref().map_or(0, |of| self.keys.hash_one((of.port, of.address)));
        let before = before.and_then(|before| self.newest.find_mut(of(now.0), |at| *at == before.0));
        match before {
            Some(at) => *at = now.0,
            None => drop(self.newest.insert_unique(of(now.0), now.0, |at| of(*at))),
        }
    }

    /// Removes the newest member of a port and address.
    pub fn remove(&mut self, index: MemberIndex, port: u16, address: SocketAddr) {
        let hash = self.hash(port, address);
        if let Ok(found) = self.newest.find_entry(hash, |at| *at == index.0) {
            found.remove();
        }
    }
}
