//! The state of a log beside its entries: its name, its epoch and its views, which are kept in maps.

use bytes::Bytes;
use nacre_map::{ClusterMap, ProposeError, Proposer, Refused, Update};
use nacre_object::{Escaped, Key};
use serde::{Deserialize, Serialize};

use crate::error::LogError;
use crate::layout::{LogId, View};
use crate::limit::{NAME_BYTES_MAX, UNIT_MAX, VIEWS_MAX, WIDTH_MAX};

/// The map with the names of all logs.
pub const DIRECTORY: &str = "zlogs";
/// The format of the values.
const FORMAT: u32 = 1;

/// The shape of a view: how its positions are spread over objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The number of objects.
    pub width: u32,
    /// The number of consecutive positions that are in one object. A handle writes at most as many entries at a time, unless the
    /// width is 1.
    pub unit: u32,
}

impl Default for Shape {
    fn default() -> Self {
        Self { width: 4, unit: 64 }
    }
}

impl Shape {
    /// Checks the limits.
    ///
    /// # Errors
    /// `Invalid` with the reason.
    pub fn check(&self) -> Result<(), LogError> {
        let text = if !(1..=WIDTH_MAX).contains(&self.width) {
            format!("a width of {}; it must be 1 to {WIDTH_MAX}", self.width)
        } else if !(1..=UNIT_MAX).contains(&self.unit) {
            format!("a unit of {}; it must be 1 to {UNIT_MAX}", self.unit)
        } else {
            return Ok(());
        };
        Err(LogError::Invalid(text))
    }
}

/// The views of a log at an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Views {
    format: u32,
    /// At least one.
    pub(crate) views: Vec<View>,
}

/// The views of a log as they are written down, sound or not.
#[derive(Deserialize)]
struct Written {
    format: u32,
    views: Vec<View>,
}

impl Views {
    /// Creates the views of a log that has one.
    pub fn of(view: View) -> Self {
        Self { format: FORMAT, views: vec![view] }
    }

    /// Notes which views are closed: all but the last one.
    pub(crate) fn close(&mut self) {
        let count = self.views.len();
        for (number, view) in (1..).zip(&mut self.views) {
            view.closed = number < count;
        }
    }

    /// Returns the views, in the order of their positions, at least one. The last one has the log's epoch, and no end.
    pub fn views(&self) -> &[View] {
        &self.views
    }

    /// Returns the log's epoch.
    pub fn epoch(&self) -> u64 {
        self.last().epoch
    }

    /// Returns the last view, to which entries are appended.
    pub fn last(&self) -> &View {
        self.views.last().expect("there is at least one view")
    }

    /// Returns the first position that is kept.
    pub fn start(&self) -> u64 {
        self.views.first().map_or(0, |view| view.start)
    }

    /// Returns the view of a position with its end, which the last one has none of; `None` if it was trimmed.
    pub fn find(&self, position: u64) -> Option<(&View, u64)> {
        let index = self.views.partition_point(|view| view.start <= position).checked_sub(1)?;
        let end = self.views.get(index + 1).map_or(u64::MAX, |next| next.start);
        Some((&self.views[index], end))
    }

    /// Returns the bytes that stand for the views.
    pub(crate) fn encode(&self) -> Result<Bytes, LogError> {
        if self.views.len() > VIEWS_MAX {
            return Err(too_many_views());
        }
        Ok(serde_json::to_vec(self).map_err(|error| LogError::Corrupt(error.to_string()))?.into())
    }

    /// Reads views.
    ///
    /// # Errors
    /// `Corrupt` if they are not a log's.
    pub fn decode(bytes: &[u8]) -> Result<Self, LogError> {
        let damaged = |why: &str| LogError::Corrupt(format!("its views cannot be read: {why}"));
        let Written { format, views } =
            serde_json::from_slice(bytes).map_err(|_| damaged("they are damaged"))?;
        let mut views = Views { format, views };
        views.close();
        let is_in_order = views
            .views
            .windows(2)
            .all(|pair| pair[0].start < pair[1].start && pair[0].epoch <= pair[1].epoch);
        let is_sound = |view: &View| {
            (1..=WIDTH_MAX).contains(&view.width) && (1..=UNIT_MAX).contains(&view.unit) && view.epoch > 0
        };
        match () {
            () if views.format != FORMAT => Err(damaged("they have another format")),
            () if views.views.is_empty() || views.views.len() > VIEWS_MAX => {
                Err(damaged("there are none, or too many"))
            }
            () if !is_in_order || !views.views.iter().all(is_sound) => {
                Err(damaged("they do not fit each other"))
            }
            () => Ok(views),
        }
    }
}

pub(crate) fn too_many_views() -> LogError {
    LogError::Invalid(format!("the log has {VIEWS_MAX} views already; trim the oldest entries first"))
}

/// Views as they were read, with what an update of them is conditional on.
#[derive(Clone, Debug)]
pub(crate) struct CachedViews {
    pub views: Views,
    /// The version of the map's entry.
    pub version: u64,
}

/// The value of a name in the directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Named {
    format: u32,
    pub id: LogId,
    /// The time at which the log was created, in milliseconds since 1970, by the clock of the client that created it.
    pub created_ms: u64,
    /// True if the deletion of the log has begun: it cannot be opened or renamed any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleting: bool,
}

impl Named {
    pub fn new(id: LogId, created_ms: u64) -> Self {
        Self { format: FORMAT, id, created_ms, deleting: false }
    }

    pub fn encode(&self) -> Result<Bytes, LogError> {
        Ok(serde_json::to_vec(self).map_err(|error| LogError::Corrupt(error.to_string()))?.into())
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, LogError> {
        match serde_json::from_slice::<Named>(bytes) {
            Ok(named) if named.format == FORMAT => Ok(named),
            Ok(_) => Err(LogError::Corrupt("its entry in the directory has another format".to_owned())),
            Err(_) => Err(LogError::Corrupt("its entry in the directory is damaged".to_owned())),
        }
    }
}

/// Returns the name of the map with a log's views.
pub(crate) fn map_name(id: LogId) -> String {
    format!("zlog-{id}")
}

/// Returns the entry with the views in a log's map.
pub(crate) fn views_entry() -> Key {
    Key::new("views").expect("the name is short and not empty")
}

/// Checks a log's name, and returns it as an entry of the directory.
///
/// # Errors
/// `Invalid` with the reason.
pub(crate) fn name_entry(name: &str) -> Result<Key, LogError> {
    if !(1..=NAME_BYTES_MAX).contains(&name.len()) || name.chars().any(char::is_control) {
        let name = Escaped::of(name);
        return Err(LogError::Invalid(format!(
            "\"{name}\" is not a valid name for a log: it must have 1 to {NAME_BYTES_MAX} bytes, and no \
             control characters"
        )));
    }
    Ok(Key::new(Bytes::copy_from_slice(name.as_bytes()))?)
}

/// The result of an update of a map that was conditional.
pub(crate) enum Proposed {
    /// An update that took effect; the entry that it set has this version.
    Done(u64),
    /// Somebody else changed what it was about.
    Refused,
}

/// Proposes an update.
pub(crate) async fn propose(proposer: &Proposer, update: Update) -> Result<Proposed, LogError> {
    match proposer.propose(update).await {
        Ok(committed) => {
            let version = committed.changes.iter().map(|change| change.version).max();
            Ok(Proposed::Done(version.unwrap_or(0)))
        }
        Err(ProposeError::Refused(Refused::Version { .. } | Refused::Epoch { .. })) => Ok(Proposed::Refused),
        Err(ProposeError::Refused(refused)) => Err(LogError::Invalid(refused.to_string())),
        Err(ProposeError::Store(error)) => Err(error.into()),
        Err(error) => Err(LogError::Invalid(error.to_string())),
    }
}

/// Reads a log's views.
pub(crate) async fn read_views(map: &ClusterMap, name: &str) -> Result<CachedViews, LogError> {
    match map.get(&views_entry()).await?.0 {
        Some(value) => Ok(CachedViews { views: Views::decode(&value.value)?, version: value.version }),
        None => Err(LogError::Missing(name.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_damaged_is_said_in_words() {
        let said = |error: Option<LogError>| error.unwrap().to_string();
        let views = said(Views::decode(b"{").err());
        assert_eq!(views, "the log is damaged: its views cannot be read: they are damaged");
        let entry = said(Named::decode(b"{").err());
        assert_eq!(entry, "the log is damaged: its entry in the directory is damaged");
        let none = said(Views::decode(br#"{"format":1,"views":[]}"#).err());
        assert_eq!(none, "the log is damaged: its views cannot be read: there are none, or too many");
    }
}
