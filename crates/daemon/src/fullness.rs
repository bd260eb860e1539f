//! The fullness of a store, judged by the transactions that it refuses for want of space.
//!
//! The space that a store takes tells nothing: one that overwrites itself comes to its bound soon, and goes on. The engine counts
//! refusals; repeated looks at the count show it grow.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::Value;

/// The time for which a store is called full after a look that found new refusals.
const LASTS: Duration = Duration::from_secs(60);

/// The refusals seen so far.
#[derive(Debug, Default)]
pub(crate) struct Fullness(Mutex<Seen>);

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    refused: u64,
    /// The time of the last look that found more of them than the one before.
    grew: Option<Instant>,
}

impl Fullness {
    /// Looks at the engine's numbers, and returns whether transactions were refused for want of space since the look
    /// before, or since a look in the last minute.
    pub(crate) fn look(&self, info: &Value) -> bool {
        self.look_at(info["out_of_space"].as_u64().unwrap_or(0), Instant::now())
    }

    fn look_at(&self, refused: u64, now: Instant) -> bool {
        // A panic while it was locked leaves nothing half done.
        let mut seen = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if refused > seen.refused {
            *seen = Seen { refused, grew: Some(now) };
        }
        seen.grew.is_some_and(|grew| now.duration_since(grew) < LASTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_full_while_it_refuses_and_for_a_minute_more() {
        let fullness = Fullness::default();
        let start = Instant::now();
        let look = |refused, second| fullness.look_at(refused, start + Duration::from_secs(second));
        assert!(!look(0, 0) && !look(0, 100));
        assert!(look(1, 110) && look(1, 169) && !look(1, 170));
        assert!(look(5, 200) && look(6, 250) && look(6, 300) && !look(6, 310));
    }
}
