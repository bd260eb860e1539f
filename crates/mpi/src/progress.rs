//! The progress of a job on standard error: every rank reports its own to rank 0 now and then, which shows the sums.
//!
//! Nothing waits for a report: a rank whose last one was not taken yet sends no other.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use nacre_quantity::{count, grouped, size};
use nacre_walk::Snapshot;
use serde::{Deserialize, Serialize};

use crate::network::{Network, NetworkError, Outgoing};

/// The interval between the reports of a rank, and between changes of the line on a terminal.
const INTERVAL: Duration = Duration::from_secs(1);

/// The interval between lines where standard error is not a terminal.
const INTERVAL_OF_LINES: Duration = Duration::from_secs(10);

/// The pause between looks at a report that MPI has not taken yet.
const PAUSE: Duration = Duration::from_micros(200);

/// The progress of a copy, a comparison or a removal at one moment: of one rank, or of several once added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// The number of entries that are done.
    pub entries: u64,
    /// The number of bytes that are done, where they are counted.
    pub bytes: u64,
    /// The number of errors met.
    pub errors: u64,
    /// The number of directories, or ranges of large files, that are queued.
    pub pending: u64,
    /// The number of bytes of all files, once a rank has counted them.
    pub bytes_total: u64,
}

impl Work {
    fn add(&mut self, other: &Work) {
        self.entries = self.entries.saturating_add(other.entries);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.errors = self.errors.saturating_add(other.errors);
        self.pending = self.pending.saturating_add(other.pending);
        self.bytes_total = self.bytes_total.saturating_add(other.bytes_total);
    }

    fn line(&self, elapsed: Duration) -> String {
        let seconds = elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        let rate = |number: u64| (number as f64 / seconds) as u64;
        let mut line =
            format!("{}, {}/s", count(self.entries, "entry", "entries"), grouped(rate(self.entries)));
        if self.bytes > 0 {
            line += &format!(", {}", size(self.bytes));
            if self.bytes_total > 0 {
                line += &format!(" of {}", size(self.bytes_total));
            }
            line += &format!(", {}/s", size(rate(self.bytes)));
        }
        if self.bytes > 0 && self.bytes_total > self.bytes {
            let left = (self.bytes_total - self.bytes) as f64 * seconds / self.bytes as f64;
            line += &format!(", {} left", time(left as u64));
        }
        line += &format!(", {} pending", grouped(self.pending));
        if self.errors > 0 {
            line += &format!(", {}", count(self.errors, "error", "errors"));
        }
        line
    }
}

/// Returns a time in the two largest of its units.
fn time(seconds: u64) -> String {
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, seconds) => format!("{seconds} s"),
        (0, 0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (0, hours, minutes, _) => format!("{hours} h {minutes} min"),
        (days, hours, _, _) => format!("{days} d {hours} h"),
    }
}

/// The figures that ranks report, by what the job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Figures {
    /// The job walks.
    Walk(Snapshot),
    /// The job copies, compares or removes.
    Work(Work),
}

impl Figures {
    /// Returns the sum of several ranks' figures; all of a job are of one kind.
    fn sum<'a>(ranks: impl Iterator<Item = &'a Figures>) -> Option<Figures> {
        ranks.copied().reduce(|mut sum, other| {
            match (&mut sum, &other) {
                (Figures::Walk(sum), Figures::Walk(other)) => sum.add(other),
                (Figures::Work(sum), Figures::Work(other)) => sum.add(other),
                _ => {}
            }
            sum
        })
    }

    fn line(&self, elapsed: Duration) -> String {
        match self {
            Figures::Walk(snapshot) => snapshot.line(elapsed),
            Figures::Work(work) => work.line(elapsed),
        }
    }
}

/// Returns the figures of this rank; it is given the length of the rank's queue.
pub type Sample<'a> = Box<dyn Fn(u64) -> Figures + 'a>;

/// The progress of a rank and, on rank 0, what it knows of the others.
pub struct Progress<'a> {
    sample: Sample<'a>,
    began: Instant,
    /// The time of the next report or line.
    due: Instant,
    sending: Outgoing,
    /// The number of reports sent.
    sent: u64,
    /// The last report of each rank, and the number of its reports; on rank 0 only.
    ranks: Vec<(Option<Figures>, u64)>,
    /// Standard error is a terminal.
    terminal: bool,
    /// A line is on the terminal.
    shown: bool,
}

impl<'a> Progress<'a> {
    /// Creates the progress of a job of `ranks` that begins now; `sample` gives this rank's figures.
    pub fn new(sample: Sample<'a>, ranks: u32) -> Progress<'a> {
        let began = Instant::now();
        Progress {
            sample,
            began,
            due: began + INTERVAL,
            sending: Outgoing::default(),
            sent: 0,
            ranks: vec![(None, 0); ranks as usize],
            terminal: io::stderr().is_terminal(),
            shown: false,
        }
    }

    /// Reports to rank 0, or on rank 0 shows the progress of all ranks, if it is time. `pending` is the length of this
    /// rank's queue.
    ///
    /// # Errors
    /// If the network failed.
    pub fn report<W>(
        &mut self,
        network: &Network<W>,
        pending: impl FnOnce() -> usize,
        now: Instant,
    ) -> Result<(), NetworkError> {
        if now < self.due {
            return Ok(());
        }
        let in_lines = network.is_root() && !self.terminal;
        self.due = now + if in_lines { INTERVAL_OF_LINES } else { INTERVAL };
        let figures = (self.sample)(pending() as u64);
        if network.is_root() {
            self.ranks[0].0 = Some(figures);
            self.show();
            return Ok(());
        }
        self.sending.settle()?;
        if self.sending.len() == 0 {
            network.send_progress(&figures, &mut self.sending)?;
            self.sent += 1;
        }
        Ok(())
    }

    /// Takes the reports that have arrived at rank 0.
    ///
    /// # Errors
    /// If a report cannot be decoded.
    pub fn receive<W>(&mut self, network: &Network<W>) -> Result<(), NetworkError> {
        while let Some((from, figures)) = network.receive_progress()? {
            let (last, received) = &mut self.ranks[from as usize];
            *last = Some(figures);
            *received += 1;
        }
        Ok(())
    }

    /// Waits until MPI has taken what was sent. Rank 0 has to receive meanwhile.
    ///
    /// # Errors
    /// If the network failed.
    pub fn finish_sending(&mut self) -> Result<(), NetworkError> {
        loop {
            self.sending.settle()?;
            if self.sending.len() == 0 {
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Returns the number of reports that this rank has sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Returns the number of reports received from a rank.
    pub fn received(&self, from: u32) -> u64 {
        self.ranks[from as usize].1
    }

    /// Removes the line from the terminal.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            print("\r\x1b[K");
        }
    }

    /// Returns the figures of this rank at this moment, when its queue is empty.
    pub fn figures(&self) -> Figures {
        (self.sample)(0)
    }

    /// Prints a last line with the progress of all ranks, where no line is replaced by another.
    pub fn conclude<'b>(&self, ranks: impl Iterator<Item = &'b Figures>) {
        if !self.terminal
            && let Some(sum) = Figures::sum(ranks)
        {
            self.print_line(&sum);
        }
    }

    fn show(&mut self) {
        let Some(sum) = Figures::sum(self.ranks.iter().filter_map(|(last, _)| last.as_ref())) else { return };
        if !self.terminal {
            return self.print_line(&sum);
        }
        let line = sum.line(self.began.elapsed());
        // Not wrapped: a part on the next line would stay there.
        print(&format!("\r\x1b[?7l{line}\x1b[K\x1b[?7h"));
        self.shown = true;
    }

    fn print_line(&self, sum: &Figures) {
        print(&format!("nacre-mpi: {}\n", sum.line(self.began.elapsed())));
    }
}

fn print(text: &str) {
    // A walk does not fail because nobody can see how far it is.
    let _ = io::stderr().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_a_copy_shows_rates_and_the_time_left() {
        let one = Work { entries: 500, bytes: 1 << 30, errors: 0, pending: 1, bytes_total: 0 };
        let first = Work { bytes_total: 8 << 30, ..one };
        let ranks = [Figures::Work(first), Figures::Work(one)];
        let sum = Figures::sum(ranks.iter()).unwrap();
        let line = sum.line(Duration::from_secs(20));
        assert!(line.starts_with("1,000 entries, 50/s, "), "{line}");
        assert!(line.contains(", 1 min 0 s left, 2 pending"), "{line}");
        let line = Figures::Work(one).line(Duration::from_secs(1));
        assert!(!line.contains("left") && !line.contains(" of "), "{line}");
        assert_eq!([59, 61, 3661, 90_000].map(time), ["59 s", "1 min 1 s", "1 h 1 min", "1 d 1 h"]);
    }
}
