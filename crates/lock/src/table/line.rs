//! The line of requests that wait for one byte.

use std::collections::{BTreeSet, HashMap};

use super::{Mode, Owner, RequestKey};

/// The requests that wait for one byte, in the order of their tickets. Requests of one operation share its ticket.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    entries: BTreeSet<(u64, RequestKey)>,
    exclusive: BTreeSet<(u64, RequestKey)>,
    /// The ticket of each operation, and the number of its requests in this line.
    tickets: HashMap<Owner, (u64, usize), foldhash::fast::RandomState>,
}

impl Line {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn first(&self) -> Option<RequestKey> {
        self.entries.first().map(|entry| entry.1)
    }

    pub(super) fn requests(&self) -> impl Iterator<Item = RequestKey> + '_ {
        self.entries.iter().map(|entry| entry.1)
    }

    /// Adds a request, with a new ticket unless its operation stands here already. Returns the ticket.
    pub(super) fn join(&mut self, new: u64, request: RequestKey, owner: Owner, mode: Mode) -> u64 {
        let operation = self.tickets.entry(owner).or_insert((new, 0));
        operation.1 += 1;
        let entry = (operation.0, request);
        self.entries.insert(entry);
        if mode == Mode::Exclusive {
            self.exclusive.insert(entry);
        }
        entry.0
    }

    /// Removes a request.
    pub(super) fn leave(&mut self, ticket: u64, request: RequestKey, owner: Owner, mode: Mode) {
        self.entries.remove(&(ticket, request));
        if mode == Mode::Exclusive {
            self.exclusive.remove(&(ticket, request));
        }
        if let Some(operation) = self.tickets.get_mut(&owner) {
            operation.1 -= 1;
            if operation.1 == 0 {
                self.tickets.remove(&owner);
            }
        }
    }

    /// Returns whether another operation that came before stands here in a conflicting mode.
    pub(super) fn refuses(&self, owner: Owner, mode: Mode) -> bool {
        let own = self.tickets.get(&owner).map_or(u64::MAX, |operation| operation.0);
        let entries = match mode {
            Mode::Exclusive => &self.entries,
            Mode::Shared => &self.exclusive,
        };
        entries.first().is_some_and(|entry| entry.0 < own)
    }
}
