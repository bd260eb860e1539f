//! Events that come again and again, of which the log is not to have a line each.

use std::time::{Duration, Instant};

/// The time from a line about such events to the next.
pub const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// A series of like events, of which the log has the first, then how many there were, and that they are over.
#[derive(Debug, Default)]
pub struct Repeated {
    /// The time of the last line, if the series goes on.
    reported: Option<Instant>,
    /// The number of events since that line.
    unreported: u64,
}

impl Repeated {
    /// Notes an event. Returns the number of those that no line told of, this one included, if a line is due.
    pub fn happened(&mut self, now: Instant) -> Option<u64> {
        self.unreported += 1;
        if self.reported.is_some_and(|reported| now.duration_since(reported) < REPORT_INTERVAL) {
            return None;
        }
        self.reported = Some(now);
        Some(std::mem::take(&mut self.unreported))
    }

    /// Ends the series. Returns the number of events that no line told of, if there were any events.
    pub fn ended(&mut self) -> Option<u64> {
        self.reported.take().map(|_| std::mem::take(&mut self.unreported))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_event_is_told_once_then_counted_and_its_end_is_told() {
        let (mut repeated, begin) = (Repeated::default(), Instant::now());
        assert_eq!(repeated.ended(), None);
        assert_eq!(repeated.happened(begin), Some(1));
        let reported: Vec<_> =
            (0..3000).filter_map(|ms| repeated.happened(begin + Duration::from_millis(2 * ms))).collect();
        assert!(reported.is_empty(), "{reported:?}");
        assert_eq!(repeated.happened(begin + REPORT_INTERVAL), Some(3001));
        assert_eq!(repeated.happened(begin + REPORT_INTERVAL), None);
        assert_eq!(repeated.ended(), Some(1));
        assert_eq!(repeated.ended(), None);
        assert_eq!(repeated.happened(begin + REPORT_INTERVAL), Some(1), "that is a new series");
    }
}
