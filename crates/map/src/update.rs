//! Updates, their conditions, and the draft of the epoch in which several of them may come together: no I/O, no clock.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use nacre_object::{ErrorKind, Escaped, Key, StoreError};

use crate::codec;
use crate::limit::*;
use crate::state::{
    Change, Header, Incarnation, Limits, Record, Space, State, Updated, VALIDATOR, Value, entry_bytes,
};

/// The id of an update, chosen at random. It proves who made an epoch when the reply to its proposal was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UpdateId(pub [u8; 16]);

impl fmt::Display for UpdateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A condition on the map as it stood before the update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The map is at this epoch; 0: it has none yet.
    Epoch(u64),
    /// The entry was last written by the change of this number; 0: there is no such entry.
    Version {
        /// The kind of name.
        space: Space,
        /// The name.
        name: Key,
        /// The number of the change.
        version: u64,
    },
}

/// A change that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProposedChange {
    pub space: Space,
    pub name: Key,
    pub new: Option<Bytes>,
}

/// Changes of a map that take effect together, in one epoch, if all of their conditions hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Update {
    pub(crate) author: String,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) changes: Vec<ProposedChange>,
}

impl Update {
    /// Creates an update without changes. `author` is the name that the proposer gives itself: validators and the history
    /// see it, and nobody proves it.
    pub fn new(author: impl Into<String>) -> Self {
        Self { author: author.into(), ..Self::default() }
    }

    /// Sets an entry.
    pub fn set(self, name: Key, value: impl Into<Bytes>) -> Self {
        self.change(Space::Entry, name, Some(value.into()))
    }

    /// Removes an entry, if there is one.
    pub fn remove(self, name: Key) -> Self {
        self.change(Space::Entry, name, None)
    }

    /// Makes the update conditional on the map's epoch.
    pub fn if_epoch(mut self, epoch: u64) -> Self {
        self.conditions.push(Condition::Epoch(epoch));
        self
    }

    /// Makes the update conditional on the number of the change that last wrote an entry; 0: there is no such entry.
    pub fn if_version(mut self, name: Key, version: u64) -> Self {
        self.conditions.push(Condition::Version { space: Space::Entry, name, version });
        self
    }

    /// Makes the update conditional on the absence of an entry.
    pub fn if_absent(self, name: Key) -> Self {
        self.if_version(name, 0)
    }

    pub(crate) fn condition(mut self, condition: Condition) -> Self {
        self.conditions.push(condition);
        self
    }

    pub(crate) fn change(mut self, space: Space, name: Key, new: Option<Bytes>) -> Self {
        self.changes.push(ProposedChange { space, name, new });
        self
    }

    /// Checks the limits that do not depend on the map.
    ///
    /// # Errors
    /// `Invalid` with a sentence about the one that is exceeded.
    pub fn check(&self) -> Result<(), StoreError> {
        at_most("bytes in the name of an update's proposer", self.author.len(), AUTHOR_BYTES_MAX)?;
        at_most("conditions in one update", self.conditions.len(), CONDITIONS_MAX)?;
        at_most("changes in one update", self.changes.len(), CHANGES_MAX)?;
        self.changes.iter().try_for_each(ProposedChange::check)
    }
}

impl ProposedChange {
    /// Checks the limits of a change.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        at_most("bytes in the name of an entry", self.name.as_bytes().len(), ENTRY_NAME_BYTES_MAX)?;
        let len = self.new.as_ref().map_or(0, Bytes::len);
        at_most(&format!("bytes in the value of entry \"{}\"", self.name), len, VALUE_BYTES_MAX)
    }
}

fn at_most(subject: &str, found: usize, limit: usize) -> Result<(), StoreError> {
    if found <= limit {
        return Ok(());
    }
    Err(StoreError::new(ErrorKind::Invalid, format!("{found} {subject}; the limit is {limit}")))
}

/// The reason why an update took no effect, though the store did not fail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The map is at another epoch.
    #[error("the map is at epoch {found}, not at {wanted}")]
    Epoch {
        /// The epoch that the update named.
        wanted: u64,
        /// The epoch that the map has.
        found: u64,
    },
    /// An entry has another version.
    #[error("entry \"{name}\" {}, not {}", shown_version(found.as_ref().map_or(0, |value| value.version)), of_version(*wanted))]
    Version {
        /// The entry.
        name: Key,
        /// The version that the update named; 0 for none.
        wanted: u64,
        /// The entry as it is.
        found: Option<Value>,
    },
    /// A validator refused a change, or failed.
    #[error("validator \"{}\" refuses entry \"{name}\": {}", Escaped::of(validator), Escaped::of(message))]
    Rejected {
        /// The validator.
        validator: String,
        /// The entry.
        name: Key,
        /// The reason.
        message: String,
    },
    /// A limit would be exceeded.
    #[error("{0}")]
    Limit(String),
}

fn shown_version(version: u64) -> String {
    if version == 0 { "is absent".to_owned() } else { format!("has version {version}") }
}

fn of_version(version: u64) -> String {
    if version == 0 { "absent".to_owned() } else { version.to_string() }
}

/// The judgement of an update by a draft.
#[derive(Debug)]
pub(crate) enum Evaluation {
    /// Part of the epoch.
    Taken,
    /// No change.
    Unchanged,
    /// A refusal.
    Refused(Refused),
    /// No more space in this epoch: the update has to be judged by the next one.
    Full,
}

/// The next epoch of a map, as it is put together. Later updates see the changes of earlier ones.
pub(crate) struct Draft<'a> {
    state: &'a State,
    limits: Limits,
    /// The values of all names that were changed so far.
    changed: BTreeMap<(Space, Key), Option<Value>>,
    version: u64,
    entries: u64,
    bytes: u64,
    updates: Vec<Updated>,
    record_bytes: usize,
    changes: usize,
    /// True once the configuration is changed: what follows is to be judged by the new one.
    closed: bool,
}

impl<'a> Draft<'a> {
    /// Begins the epoch that follows a state.
    pub fn new(state: &'a State, limits: Limits) -> Self {
        Self {
            state,
            limits,
            changed: BTreeMap::new(),
            version: state.version,
            entries: state.entries.len() as u64,
            bytes: state.bytes,
            updates: Vec::new(),
            record_bytes: codec::RECORD_HEAD_BYTES,
            changes: 0,
            closed: false,
        }
    }

    /// Returns whether the epoch has no update yet.
    pub fn is_empty(&self) -> bool {
        self.updates.is_empty()
    }

    /// Returns whether no further update can come into the epoch.
    pub fn is_closed(&self) -> bool {
        self.closed || self.updates.len() >= UPDATES_PER_EPOCH_MAX || self.changes >= CHANGES_MAX
    }

    /// Returns the epoch that a further update would find.
    fn epoch(&self) -> u64 {
        self.state.epoch + u64::from(!self.is_empty())
    }

    /// Returns the value of a name, after the updates so far.
    pub fn value(&self, space: Space, name: &Key) -> Option<&Value> {
        match self.changed.get(&(space, name.clone())) {
            Some(changed) => changed.as_ref(),
            None => self.state.value(space, name),
        }
    }

    /// Checks the conditions of an update.
    pub fn check(&self, conditions: &[Condition]) -> Result<(), Refused> {
        for condition in conditions {
            match condition {
                Condition::Epoch(wanted) if *wanted != self.epoch() => {
                    return Err(Refused::Epoch { wanted: *wanted, found: self.epoch() });
                }
                Condition::Version { space, name, version } => {
                    let found = self.value(*space, name);
                    if found.map_or(0, |found| found.version) != *version {
                        let (name, found) = (name.clone(), found.cloned());
                        return Err(Refused::Version { name, wanted: *version, found });
                    }
                }
                Condition::Epoch(_) => {}
            }
        }
        Ok(())
    }

    /// Adds an update whose conditions hold and whose changes are what the validators made of them.
    pub fn add(&mut self, id: UpdateId, author: &str, wanted: Vec<ProposedChange>) -> Evaluation {
        if self.is_closed() || (!self.is_empty() && self.changes + wanted.len() > CHANGES_MAX) {
            return Evaluation::Full;
        }
        let (mut version, mut entries, mut bytes) = (self.version, self.entries, self.bytes);
        let mut record_bytes = self.record_bytes + codec::updated_bytes(author);
        let mut fresh: BTreeMap<(Space, Key), Option<Value>> = BTreeMap::new();
        let mut changes = Vec::with_capacity(wanted.len());
        for ProposedChange { space, name, new } in wanted {
            let slot = (space, name);
            let old = match fresh.get(&slot) {
                Some(value) => value.clone(),
                None => self.value(space, &slot.1).cloned(),
            };
            if old.is_none() && new.is_none() {
                continue;
            }
            version += 1;
            let name = slot.1.clone();
            if space == Space::Entry {
                let count = |value: &Bytes| entry_bytes(&name, value);
                entries = entries + u64::from(new.is_some()) - u64::from(old.is_some());
                bytes =
                    bytes + new.as_ref().map_or(0, count) - old.as_ref().map_or(0, |old| count(&old.value));
            }
            let epoch = self.state.epoch + 1;
            fresh.insert(slot, new.clone().map(|value| Value { value, version, epoch }));
            let change = Change { space, name, version, old, new };
            record_bytes += codec::change_bytes(&change);
            changes.push(change);
        }
        if changes.is_empty() {
            return Evaluation::Unchanged;
        }
        if let Some(refused) = self.exceeded(changes.len(), entries, bytes, record_bytes, &fresh) {
            return match self.is_empty() {
                true => Evaluation::Refused(refused),
                // The same may be said of it alone, or not: the next epoch decides.
                false => Evaluation::Full,
            };
        }
        self.closed |= changes.iter().any(|change| change.space == Space::Setting);
        (self.version, self.entries, self.bytes, self.record_bytes) = (version, entries, bytes, record_bytes);
        self.changes += changes.len();
        self.changed.extend(fresh);
        self.updates.push(Updated { id, author: author.to_owned(), changes });
        Evaluation::Taken
    }

    /// Adds an update without changes, so that there is an epoch. Its id is its own, so that nobody takes it for another one.
    pub fn add_nothing(&mut self, id: UpdateId, author: &str) {
        self.updates.push(Updated { id, author: author.to_owned(), changes: Vec::new() });
    }

    /// Returns the limit that would be exceeded, if any. What makes a map smaller is never too much.
    fn exceeded(
        &self,
        changes: usize,
        entries: u64,
        bytes: u64,
        record_bytes: usize,
        fresh: &BTreeMap<(Space, Key), Option<Value>>,
    ) -> Option<Refused> {
        let text = if changes > CHANGES_MAX {
            format!("the update has {changes} changes; the limit is {CHANGES_MAX}")
        } else if entries > self.limits.entries.max(self.entries) {
            format!("the map would have {entries} entries; its limit is {}", self.limits.entries)
        } else if bytes > self.limits.bytes.max(self.bytes) {
            format!("the map would have {bytes} bytes; its limit is {}", self.limits.bytes)
        } else if record_bytes > RECORD_BYTES_MAX {
            format!(
                "the update and the values that it replaces have {record_bytes} bytes; the limit is \
                 {RECORD_BYTES_MAX}: split the update"
            )
        } else {
            let is_validator = |name: &Key| name.as_bytes().starts_with(VALIDATOR.as_bytes());
            let before = self.state.settings.keys().filter(|name| is_validator(name)).count();
            let added = fresh.iter().filter(|((space, name), value)| {
                *space == Space::Setting
                    && is_validator(name)
                    && value.is_some()
                    && self.value(*space, name).is_none()
            });
            let after = before + added.count();
            if after <= VALIDATORS_MAX.max(before) {
                return None;
            }
            format!("the map would have {after} validators; the limit is {VALIDATORS_MAX}")
        };
        Some(Refused::Limit(text))
    }

    /// Ends the draft, and returns the epoch's record with the header that the map has by it, but for its oldest record;
    /// `None` if there is no update in it.
    pub fn finish(self, incarnation: Incarnation, created_ms: u64) -> Option<(Record, Header)> {
        let Self { state, version, entries, bytes, updates, .. } = self;
        let epoch = state.epoch + 1;
        let header = Header { incarnation, epoch, version, oldest: state.oldest.max(1), entries, bytes };
        (!updates.is_empty()).then_some((Record { epoch, created_ms, updates }, header))
    }
}
