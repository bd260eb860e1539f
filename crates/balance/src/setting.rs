//! The settings of the balancer, one set for all ranks.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::limit::{MOVES_PER_TICK_MAX, RANKS_MAX, RULES_MAX, TICK_MAX, TICK_MIN};
use crate::resource::{Kind, ResourceId, Strays};

/// The way in which clients reach a sequencer after a move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The new rank answers the clients, which are redirected.
    #[default]
    Client,
    /// The old rank stays the contact of all clients, and forwards their requests.
    Proxy,
    /// The old rank forwards the requests of half of the clients; the others are redirected.
    ProxyHalf,
}

impl Mode {
    /// All modes.
    pub const ALL: [Mode; 3] = [Mode::Client, Mode::Proxy, Mode::ProxyHalf];

    /// Returns the mode's name.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Client => "client",
            Mode::Proxy => "proxy",
            Mode::ProxyHalf => "proxy-half",
        }
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Mode::ALL.into_iter().find(|mode| mode.name() == text);
        known.ok_or_else(|| format!("\"{text}\" is not a mode: it is client, proxy or proxy-half"))
    }
}

/// A rule by which resources are chosen for a target load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Selector {
    /// The biggest ones first that fit into what is left of the target.
    #[default]
    Biggest,
    /// As few as possible: one that comes close to the target, if there is such a one, even if it is a little bigger.
    Fewest,
    /// Neighbours together: those of one directory, the biggest directories first.
    Locality,
}

impl Selector {
    /// All selectors.
    pub const ALL: [Selector; 3] = [Selector::Biggest, Selector::Fewest, Selector::Locality];

    /// Returns the selector's name.
    pub fn name(self) -> &'static str {
        match self {
            Selector::Biggest => "biggest",
            Selector::Fewest => "fewest",
            Selector::Locality => "locality",
        }
    }
}

impl FromStr for Selector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Selector::ALL.into_iter().find(|selector| selector.name() == text);
        known.ok_or_else(|| format!("\"{text}\" is not a selector: it is biggest, fewest or locality"))
    }
}

/// The resources of a rule: one, or all of a kind, which is printed as `subtree:*`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Pattern {
    /// One resource.
    One(ResourceId),
    /// All resources of a kind.
    All(Kind),
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::One(id) => id.fmt(f),
            Pattern::All(kind) => write!(f, "{}:*", kind.name()),
        }
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_suffix(":*") {
            Some(kind) => kind.parse().map(Pattern::All),
            None => text.parse().map(Pattern::One),
        }
    }
}

impl TryFrom<String> for Pattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> String {
        pattern.to_string()
    }
}

/// The settings of the balancer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// The time between two decisions, in milliseconds.
    pub tick_ms: u64,
    /// The maximum number of moves away from one rank at a tick.
    pub moves_per_tick: u32,
    /// The selector of a policy that names none.
    pub selector: Selector,
    /// The mode in which sequencers are moved, alone or with their subtrees.
    pub mode: Mode,
    /// The ranks at which resources are to be. They stay there, or are moved there.
    pub pins: BTreeMap<ResourceId, u32>,
    /// The ranks to which resources may be moved; a rule for one resource goes before one for its kind.
    pub masks: BTreeMap<Pattern, Vec<u32>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            tick_ms: 10_000,
            moves_per_tick: 8,
            selector: Selector::default(),
            mode: Mode::default(),
            pins: BTreeMap::new(),
            masks: BTreeMap::new(),
        }
    }
}

impl Settings {
    /// Returns the time between two decisions.
    pub fn tick(&self) -> Duration {
        Duration::from_millis(self.tick_ms)
    }

    /// Returns the rank at which a resource is to be.
    pub fn pin(&self, id: &ResourceId) -> Option<usize> {
        self.pins.get(id).map(|rank| *rank as usize)
    }

    /// Returns the settings for a rank with strays, which are pinned to the ranks that they belong to.
    pub fn with_strays(&self, strays: &Strays) -> Settings {
        let mut settings = self.clone();
        settings.pins.extend(strays.iter().map(|(id, rank)| (id.clone(), *rank)));
        settings
    }

    /// Returns whether a resource may be moved to a rank.
    pub fn permits(&self, id: &ResourceId, rank: usize) -> bool {
        if self.masks.is_empty() {
            return true;
        }
        let mask =
            self.masks.get(&Pattern::One(id.clone())).or_else(|| self.masks.get(&Pattern::All(id.kind)));
        mask.is_none_or(|ranks| ranks.iter().any(|allowed| *allowed as usize == rank))
    }

    /// Checks the limits.
    ///
    /// # Errors
    /// A sentence about the one that is exceeded.
    pub fn check(&self) -> Result<(), String> {
        if !(TICK_MIN..=TICK_MAX).contains(&self.tick()) {
            let text = format!("the tick is {:?}", self.tick());
            return Err(format!("{text}; it must be between {TICK_MIN:?} and {TICK_MAX:?}"));
        }
        if !(1..=MOVES_PER_TICK_MAX).contains(&self.moves_per_tick) {
            let text = format!("{} moves at a tick", self.moves_per_tick);
            return Err(format!("{text}; it must be 1 to {MOVES_PER_TICK_MAX}"));
        }
        if self.pins.len() > RULES_MAX || self.masks.len() > RULES_MAX {
            let text = format!("{} pins and {} masks", self.pins.len(), self.masks.len());
            return Err(format!("{text}; the limit is {RULES_MAX} of each"));
        }
        let mut ranks = self.pins.values().chain(self.masks.values().flatten());
        match ranks.find(|rank| **rank as usize >= RANKS_MAX) {
            Some(rank) => Err(format!("rank {rank} cannot be; the greatest rank is {}", RANKS_MAX - 1)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_and_pins_apply_and_survive() {
        let orders: ResourceId = "sequencer:orders".parse().unwrap();
        let other: ResourceId = "sequencer:other".parse().unwrap();
        let settings = Settings {
            pins: BTreeMap::from([(other.clone(), 3)]),
            masks: BTreeMap::from([
                ("sequencer:*".parse().unwrap(), vec![0, 1]),
                ("sequencer:orders".parse().unwrap(), vec![2]),
            ]),
            ..Settings::default()
        };
        assert!(settings.permits(&orders, 2) && !settings.permits(&orders, 1));
        assert!(settings.permits(&other, 1) && !settings.permits(&other, 2));
        assert!(settings.permits(&"subtree:/".parse().unwrap(), 9));
        assert_eq!((settings.pin(&other), settings.pin(&orders)), (Some(3), None));
        settings.check().unwrap();
        let json = serde_json::to_string(&settings).unwrap();
        assert_eq!(serde_json::from_str::<Settings>(&json).unwrap(), settings);
        assert_eq!(serde_json::from_str::<Settings>("{}").unwrap(), Settings::default());
    }

    #[test]
    fn settings_out_of_bounds_are_refused() {
        assert!(Settings { tick_ms: 1, ..Settings::default() }.check().is_err());
        assert!(Settings { moves_per_tick: 0, ..Settings::default() }.check().is_err());
        let pins = BTreeMap::from([("group:1".parse().unwrap(), 5000)]);
        assert!(Settings { pins, ..Settings::default() }.check().unwrap_err().contains("5000"));
    }
}
