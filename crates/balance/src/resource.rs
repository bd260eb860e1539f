//! The resources that move between ranks: subtrees, sequencers, groups of a reflector, each with its load.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use nacre_quantity::{Escaped, unescape};
use serde::{Deserialize, Serialize};

use crate::limit::RESOURCE_NAME_BYTES_MAX;

/// The kind of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A subtree of the namespace: a directory that is placed at a rank, with the rank's sequencers below it; its name is its path.
    Subtree,
    /// A sequencer.
    Sequencer,
    /// A group of a reflector.
    Group,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 3] = [Kind::Subtree, Kind::Sequencer, Kind::Group];

    /// Returns the kind's name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Subtree => "subtree",
            Kind::Sequencer => "sequencer",
            Kind::Group => "group",
        }
    }

    /// Returns the word for what has resources of this kind.
    pub fn holder(self) -> &'static str {
        match self {
            Kind::Subtree | Kind::Sequencer => "rank",
            Kind::Group => "reflector",
        }
    }

    /// Returns the name of the metric with the load of a rank's resources of this kind.
    pub fn metric(self) -> &'static str {
        match self {
            Kind::Subtree => "load.subtree",
            Kind::Sequencer => "load.sequencer",
            Kind::Group => "load.group",
        }
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Kind::ALL.into_iter().find(|kind| kind.name() == text);
        known
            .ok_or_else(|| format!("\"{text}\" is not a kind of resource: it is subtree, sequencer or group"))
    }
}

/// The kind and the name of a resource, printed as `sequencer:orders`. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ResourceId {
    /// The kind.
    pub kind: Kind,
    /// The name: that of a subtree or a sequencer as it is printed, with escapes.
    pub name: Arc<str>,
}

impl ResourceId {
    /// Creates the id of a resource. What has no escapes in the name of a subtree or a sequencer, and needs them, gets them.
    ///
    /// # Errors
    /// A sentence, if the name is empty or too long.
    pub fn new(kind: Kind, name: &str) -> Result<Self, String> {
        if name.is_empty() {
            return Err("the name of a resource is empty".to_owned());
        }
        let name = match kind {
            Kind::Subtree | Kind::Sequencer => printed(name),
            Kind::Group => name.to_owned(),
        };
        if name.len() > RESOURCE_NAME_BYTES_MAX {
            let len = name.len();
            return Err(format!(
                "the name of a resource has {len} bytes; the limit is {RESOURCE_NAME_BYTES_MAX}"
            ));
        }
        Ok(Self { kind, name: name.into() })
    }
}

/// Returns a name, which may be escaped already, as it is printed.
fn printed(name: &str) -> String {
    match unescape(name.as_bytes()) {
        Ok(bytes) => Escaped(&bytes).to_string(),
        Err(_) => Escaped::of(name).to_string(),
    }
}

impl fmt::Display for ResourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.name(), self.name)
    }
}

impl FromStr for ResourceId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("\"{text}\" is not KIND:NAME, such as sequencer:orders or subtree:/home");
        let (kind, name) = text.split_once(':').ok_or_else(wrong)?;
        Self::new(kind.parse()?, name)
    }
}

impl TryFrom<String> for ResourceId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<ResourceId> for String {
    fn from(id: ResourceId) -> String {
        id.to_string()
    }
}

/// The resources of a rank that belong to other ranks, and to which: what is left of moves that were begun.
pub type Strays = BTreeMap<ResourceId, u32>;

/// A resource with its load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resource {
    /// The kind and the name.
    pub id: ResourceId,
    /// The load: requests per second, unless the counters say otherwise.
    pub load: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_they_are_printed() {
        for text in ["subtree:/a/b:c", "sequencer:orders", "group:7400/5"] {
            let id: ResourceId = text.parse().unwrap();
            assert_eq!(id.to_string(), text);
            let json = serde_json::to_string(&id).unwrap();
            assert_eq!(serde_json::from_str::<ResourceId>(&json).unwrap(), id);
        }
        // Names have one form, whoever wrote them.
        for (text, printed) in [
            ("subtree:/a\nb", "subtree:/a\\x0ab"),
            ("subtree:/a\\x0ab", "subtree:/a\\x0ab"),
            ("sequencer:a\\q", "sequencer:a\\\\q"),
        ] {
            assert_eq!(text.parse::<ResourceId>().unwrap().to_string(), printed);
            assert_eq!(printed.parse::<ResourceId>().unwrap().to_string(), printed);
        }
        for text in ["orders", "lock:a", "sequencer:", "", ":"] {
            assert!(text.parse::<ResourceId>().is_err(), "{text}");
        }
    }
}
