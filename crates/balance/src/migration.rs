//! The progress of moves, as ranks and reflectors publish it.

use serde::{Deserialize, Serialize};

use crate::limit::{PLACE_BYTES_MAX, PUBLISHED_MIGRATIONS_MAX};
use crate::resource::ResourceId;

/// The step that a move is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// It is decided, and others go before it.
    Waiting,
    /// The reflector that gets a group is asked for a relay, or the rank that gets a subtree whether it is there; no member has
    /// been told to move yet, and no sequencer has moved.
    Asking,
    /// A sequencer is handed over, or those of a subtree one by one, or the members of a group are on their way.
    Moving,
}

impl Phase {
    /// Returns the phase's name.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Waiting => "waiting",
            Phase::Asking => "asking",
            Phase::Moving => "moving",
        }
    }
}

/// A move that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Migration {
    /// The resource.
    pub id: ResourceId,
    /// The place that it leaves: `rank 0`, or `reflector HOST:PORT`.
    pub from: String,
    /// The place that it goes to.
    pub to: String,
    /// The step that it is at.
    pub phase: Phase,
    /// The time at which it began, in milliseconds since 1970, by the clock of the place that it leaves.
    pub since_ms: u64,
    /// The number of members that have yet to move, if it is a group, and of sequencers, if it is a subtree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<u64>,
}

/// Checks what another one has published.
pub(crate) fn check(migrations: &[Migration]) -> Result<(), String> {
    if migrations.len() > PUBLISHED_MIGRATIONS_MAX {
        return Err("it has too many moves under way".to_owned());
    }
    let mut places = migrations.iter().flat_map(|migration| [&migration.from, &migration.to]);
    match places.any(|place| place.len() > PLACE_BYTES_MAX) {
        true => Err(format!("the name of a place has more than {PLACE_BYTES_MAX} bytes")),
        false => Ok(()),
    }
}
