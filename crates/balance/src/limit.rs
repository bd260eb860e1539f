//! Every limit of the balancer, in one place.

use std::time::Duration;

use nacre_class::Bounds;

/// The maximum length of a policy's text, in bytes.
pub const POLICY_BYTES_MAX: usize = 64 << 10;
/// The maximum length of a policy's name, in bytes.
pub const POLICY_NAME_BYTES_MAX: usize = 64;
/// The maximum number of ranks.
pub const RANKS_MAX: usize = 1024;
/// The maximum length of a resource's name, in bytes.
pub const RESOURCE_NAME_BYTES_MAX: usize = 1024;
/// The maximum number of resources of one rank.
pub const RESOURCES_MAX: usize = 1 << 20;
/// The maximum number of further metrics of one rank.
pub const FURTHER_METRICS_MAX: usize = 32;
/// The maximum length of the name of a further metric, in bytes.
pub const METRIC_NAME_BYTES_MAX: usize = 64;
/// The maximum number of resources that a policy's own selector is offered at a tick.
pub const OFFERED_MAX: usize = 512;
/// The number of targets times resources that a policy's own selector is offered at most.
pub const OFFERS_MAX: usize = 1 << 18;
/// The number of ranks that one call of a policy decides for, times the number of ranks whose metrics it sees: its output has room
/// for as many targets.
pub(crate) const TOGETHER_ROWS_MAX: usize = 1 << 15;
/// The number of resources that are offered in such a call; those of the last rank may exceed it.
pub(crate) const TOGETHER_OFFERED_MAX: usize = 1 << 14;
/// The maximum number of pins, and of masks.
pub const RULES_MAX: usize = 512;
/// The shortest tick.
pub const TICK_MIN: Duration = Duration::from_millis(100);
/// The longest tick. A shorter one that is set takes effect after the present one.
pub const TICK_MAX: Duration = Duration::from_secs(600);
/// The maximum number of moves of one rank at a tick.
pub const MOVES_PER_TICK_MAX: u32 = 1000;
/// The maximum number of resources whose moves are remembered.
pub const REMEMBERED_MAX: usize = 4096;
/// The maximum number of resources that a rank publishes: its biggest ones.
pub const PUBLISHED_RESOURCES_MAX: usize = 256;
/// The maximum number of recent moves that a rank publishes.
pub const PUBLISHED_MOVES_MAX: usize = 64;

/// The maximum number of moves under way that a rank or a reflector publishes.
pub const PUBLISHED_MIGRATIONS_MAX: usize = 64;
/// The maximum length of the name of a place, in bytes.
pub const PLACE_BYTES_MAX: usize = 256;
/// The maximum number of moves that may be under way from ticks before.
pub const LATE_MOVES_MAX: usize = 8;

/// The bounds of one run of a policy.
pub const BOUNDS: Bounds = Bounds {
    instructions: 30_000_000,
    memory_bytes: 64 << 20,
    output_bytes: 1 << 20,
    wall: Duration::from_secs(5),
    reads: 1,
};
