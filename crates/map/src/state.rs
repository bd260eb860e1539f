//! The contents of a map at an epoch, and the step from one epoch to the next by its record: no I/O, no clock.
//!
//! Invariants:
//! - A state at epoch N is that of the empty map with the records 1 to N applied in order.
//! - The number of a change (`version`) is counted over the whole map and never given twice, so an entry that was removed
//!   and made again is never taken for the one that it was.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use nacre_object::{Key, StoreError};

use crate::codec;
use crate::limit::*;
use crate::update::UpdateId;
use crate::validator::Validator;

/// A map's identity, chosen at random by its first update. A map whose object was removed and that was made again has
/// another one, so that its epochs are not taken for those of before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Incarnation(pub [u8; 16]);

/// A map at a glance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The map's identity.
    pub incarnation: Incarnation,
    /// The epoch, from 1.
    pub epoch: u64,
    /// The number of the latest change.
    pub version: u64,
    /// The oldest epoch whose record is kept.
    pub oldest: u64,
    /// The number of entries.
    pub entries: u64,
    /// The bytes of names and values of all entries.
    pub bytes: u64,
}

/// A kind of names in a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Space {
    /// The map's entries.
    Entry = 0,
    /// The map's own configuration: its limits and its validators.
    Setting = 1,
}

/// The value of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The bytes.
    pub value: Bytes,
    /// The number of the change that wrote it.
    pub version: u64,
    /// The epoch in which that was.
    pub epoch: u64,
}

/// The value that a change replaced or removed.
pub type Old = Value;

/// A change of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The kind of name.
    pub space: Space,
    /// The name.
    pub name: Key,
    /// The number of the change.
    pub version: u64,
    /// The value before; `None` if there was none.
    pub old: Option<Old>,
    /// The value since; `None` if the change removed it.
    pub new: Option<Bytes>,
}

/// An update that took effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Updated {
    /// The update's own id, by which its proposer recognises it.
    pub id: UpdateId,
    /// The name that the proposer gave itself.
    pub author: String,
    /// The changes, in order.
    pub changes: Vec<Change>,
}

/// The record of an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The epoch.
    pub epoch: u64,
    /// The time when it was made, in milliseconds since 1970, as the proposer's clock had it. Nothing depends on it.
    pub created_ms: u64,
    /// The updates, in order; at least one.
    pub updates: Vec<Updated>,
}

/// The bounds of a map, part of its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The number of epochs whose records are kept.
    pub history: u64,
    /// The number of entries.
    pub entries: u64,
    /// The bytes of names and values of all entries.
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { history: HISTORY_DEFAULT, entries: ENTRIES_DEFAULT, bytes: BYTES_DEFAULT }
    }
}

impl Limits {
    /// Checks the limits.
    ///
    /// # Errors
    /// A sentence about the one that is out of its bounds.
    pub fn check(&self) -> Result<(), String> {
        for (subject, found, max) in [
            ("epochs of history", self.history, HISTORY_MAX),
            ("entries", self.entries, ENTRIES_MAX),
            ("bytes", self.bytes, BYTES_MAX),
        ] {
            if !(1..=max).contains(&found) {
                return Err(format!("a map keeps 1 to {max} {subject}, and {found} is not among them"));
            }
        }
        Ok(())
    }
}

/// The name of the setting with the limits.
pub(crate) const LIMITS: &str = "limits";
/// The beginning of the names of settings with validators.
pub(crate) const VALIDATOR: &str = "validator/";

/// A record that does not follow a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("epoch {found} does not follow epoch {known}")]
pub struct OutOfOrder {
    /// The state's epoch.
    pub known: u64,
    /// The record's.
    pub found: u64,
}

/// The difference between a state and the map as its header has it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Nothing.
    Nothing,
    /// The records of the epochs after this one.
    After(u64),
    /// More than the records that are kept can give.
    Everything,
}

/// A map at one epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub(crate) incarnation: Incarnation,
    pub(crate) epoch: u64,
    pub(crate) version: u64,
    pub(crate) oldest: u64,
    pub(crate) bytes: u64,
    pub(crate) entries: BTreeMap<Key, Value>,
    pub(crate) settings: BTreeMap<Key, Value>,
}

impl State {
    /// Returns the epoch; 0 if the map has none yet.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the number of the latest change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the map's identity.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Returns all entries, in ascending order of their names.
    pub fn entries(&self) -> &BTreeMap<Key, Value> {
        &self.entries
    }

    /// Returns an entry.
    pub fn get(&self, name: &[u8]) -> Option<&Value> {
        self.entries.get(name)
    }

    /// Returns the map's limits.
    ///
    /// # Errors
    /// `Corrupt` if the setting cannot be read.
    pub fn limits(&self) -> Result<Limits, StoreError> {
        self.settings
            .get(LIMITS.as_bytes())
            .map_or(Ok(Limits::default()), |value| codec::decode_limits(&value.value))
    }

    /// Returns the map's validators by their names, in ascending order, with the numbers of the changes that set them.
    ///
    /// # Errors
    /// `Corrupt` if one of them cannot be read.
    pub fn validators(&self) -> Result<Vec<(String, Validator, u64)>, StoreError> {
        let of_validators = self
            .settings
            .iter()
            .filter_map(|(name, value)| Some((name.as_bytes().strip_prefix(VALIDATOR.as_bytes())?, value)));
        of_validators
            .map(|(name, value)| {
                let name = String::from_utf8_lossy(name).into_owned();
                Ok((name, codec::decode_validator(&value.value)?, value.version))
            })
            .collect()
    }

    /// Returns the header of the map at this epoch; `None` if it has no epoch yet.
    pub fn header(&self) -> Option<Header> {
        let State { incarnation, epoch, version, oldest, bytes, .. } = *self;
        let entries = self.entries.len() as u64;
        (epoch > 0).then_some(Header { incarnation, epoch, version, oldest, entries, bytes })
    }

    /// Returns what the state lacks of a map with this header, or of one that does not exist.
    pub fn missing(&self, header: Option<&Header>) -> Missing {
        match header {
            None if self.epoch == 0 => Missing::Nothing,
            None => Missing::Everything,
            Some(header) if self.epoch > 0 && header.incarnation != self.incarnation => Missing::Everything,
            // A store that lost its latest writes may have a map that is behind.
            Some(header) if header.epoch < self.epoch => Missing::Everything,
            // It may also have made another epoch of that number since.
            Some(header) if header.epoch == self.epoch => match self.header() {
                Some(known) if known == *header => Missing::Nothing,
                _ => Missing::Everything,
            },
            Some(header) if header.oldest > self.epoch + 1 => Missing::Everything,
            Some(_) => Missing::After(self.epoch),
        }
    }

    /// Applies the record of the next epoch. Returns false if the state has that epoch already.
    ///
    /// # Errors
    /// [`OutOfOrder`] if epochs are missing between the two.
    pub fn apply(&mut self, record: &Record) -> Result<bool, OutOfOrder> {
        if record.epoch <= self.epoch {
            return Ok(false);
        }
        if record.epoch != self.epoch + 1 {
            return Err(OutOfOrder { known: self.epoch, found: record.epoch });
        }
        for change in record.updates.iter().flat_map(|update| &update.changes) {
            let new =
                change.new.clone().map(|value| Value { value, version: change.version, epoch: record.epoch });
            self.put(change.space, &change.name, new);
            self.version = self.version.max(change.version);
        }
        self.epoch = record.epoch;
        Ok(true)
    }

    /// Applies records that follow the state, and takes over what only the header says.
    ///
    /// # Errors
    /// [`OutOfOrder`] if epochs are missing.
    pub(crate) fn advance(&mut self, records: &[Record], header: &Header) -> Result<(), OutOfOrder> {
        for record in records {
            self.apply(record)?;
        }
        (self.incarnation, self.oldest) = (header.incarnation, header.oldest);
        Ok(())
    }

    /// Returns the value of a name.
    pub(crate) fn value(&self, space: Space, name: &Key) -> Option<&Value> {
        match space {
            Space::Entry => self.entries.get(name),
            Space::Setting => self.settings.get(name),
        }
    }

    /// Replaces the value of a name, or removes it.
    pub(crate) fn put(&mut self, space: Space, name: &Key, new: Option<Value>) {
        let names = match space {
            Space::Entry => &mut self.entries,
            Space::Setting => &mut self.settings,
        };
        let added = new.as_ref().map_or(0, |new| entry_bytes(name, &new.value));
        let old = match new {
            Some(new) => names.insert(name.clone(), new),
            None => names.remove(name),
        };
        if space == Space::Entry {
            let removed = old.as_ref().map_or(0, |old| entry_bytes(name, &old.value));
            self.bytes = (self.bytes + added).saturating_sub(removed);
        }
    }
}

/// Returns the bytes that an entry counts for.
pub(crate) fn entry_bytes(name: &Key, value: &[u8]) -> u64 {
    (name.as_bytes().len() + value.len()) as u64
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
