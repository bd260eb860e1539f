//! The progress of a walk at one moment, which can be sent and added up.

use std::time::Duration;

use nacre_quantity::{count, grouped};
use serde::{Deserialize, Serialize};

/// The progress of a walk at one moment: of one process, or of several once added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The number of entries visited.
    pub entries: u64,
    /// The number of directories opened.
    pub directories: u64,
    /// The number of directories that are queued.
    pub pending: u64,
    /// The number of errors met.
    pub errors: u64,
    /// The number of threads at work.
    pub busy: u64,
    /// The number of threads.
    pub threads: u64,
}

impl Snapshot {
    /// Adds the progress of another process.
    pub fn add(&mut self, other: &Snapshot) {
        self.entries = self.entries.saturating_add(other.entries);
        self.directories = self.directories.saturating_add(other.directories);
        self.pending = self.pending.saturating_add(other.pending);
        self.errors = self.errors.saturating_add(other.errors);
        self.busy = self.busy.saturating_add(other.busy);
        self.threads = self.threads.saturating_add(other.threads);
    }

    /// Returns the line that shows it, `elapsed` after the start of the walk.
    pub fn line(&self, elapsed: Duration) -> String {
        let rate = self.entries as f64 / elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        let mut line = format!(
            "{} in {}, {}/s, {} pending, {}/{} threads busy",
            count(self.entries, "entry", "entries"),
            count(self.directories, "directory", "directories"),
            grouped(rate as u64),
            count(self.pending, "directory", "directories"),
            self.busy,
            self.threads,
        );
        if self.errors > 0 {
            line += &format!(", {}", count(self.errors, "error", "errors"));
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_shows_the_sums_of_all_processes() {
        let one = Snapshot { entries: 1500, directories: 20, pending: 1, errors: 0, busy: 2, threads: 4 };
        let mut all = Snapshot::default();
        all.add(&one);
        all.add(&one);
        assert_eq!(
            all.line(Duration::from_secs(2)),
            "3,000 entries in 40 directories, 1,500/s, 2 directories pending, 4/8 threads busy"
        );
        all.errors = 1;
        assert!(all.line(Duration::ZERO).ends_with(" threads busy, 1 error"));
    }
}
