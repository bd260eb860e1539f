//! The progress of a job on standard error: every rank reports its own to rank 0 now and then, which shows the sums.
//!
//! Nothing waits for a report: a rank whose last one was not taken yet sends no other.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nacre_walk::report::Sums;
use nacre_walk::{Queue, Snapshot};

use crate::network::{Network, NetworkError, Outgoing};

/// The interval between the reports of a rank, and between changes of the line on a terminal.
const INTERVAL: Duration = Duration::from_secs(1);

/// The interval between lines where standard error is not a terminal.
const INTERVAL_OF_LINES: Duration = Duration::from_secs(10);

/// The pause between looks at a report that MPI has not taken yet.
const PAUSE: Duration = Duration::from_micros(200);

/// The progress of a rank and, on rank 0, what it knows of the others.
pub struct Progress {
    engine: Arc<Queue<Sums>>,
    began: Instant,
    /// The time of the next report or line.
    due: Instant,
    sending: Outgoing,
    /// The number of reports sent.
    sent: u64,
    /// The last report of each rank, and the number of its reports; on rank 0 only.
    ranks: Vec<(Snapshot, u64)>,
    /// Standard error is a terminal.
    terminal: bool,
    /// A line is on the terminal.
    shown: bool,
}

impl Progress {
    /// Creates the progress of a job of `ranks` that begins now; `engine` is this rank's.
    pub fn new(engine: Arc<Queue<Sums>>, ranks: u32) -> Progress {
        let began = Instant::now();
        Progress {
            engine,
            began,
            due: began + INTERVAL,
            sending: Outgoing::default(),
            sent: 0,
            ranks: vec![(Snapshot::default(), 0); ranks as usize],
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
        let snapshot = Snapshot { pending: pending() as u64, ..self.engine.snapshot() };
        if network.is_root() {
            self.ranks[0].0 = snapshot;
            self.show();
            return Ok(());
        }
        self.sending.settle()?;
        if self.sending.len() == 0 {
            network.send_progress(&snapshot, &mut self.sending)?;
            self.sent += 1;
        }
        Ok(())
    }

    /// Takes the reports that have arrived at rank 0.
    ///
    /// # Errors
    /// If a report cannot be decoded.
    pub fn receive<W>(&mut self, network: &Network<W>) -> Result<(), NetworkError> {
        while let Some((from, snapshot)) = network.receive_progress()? {
            let (last, received) = &mut self.ranks[from as usize];
            *last = snapshot;
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

    /// Prints a last line with the progress of all ranks, where no line is replaced by another.
    pub fn conclude<'a>(&self, ranks: impl Iterator<Item = &'a Snapshot>) {
        if !self.terminal {
            self.print_line(ranks);
        }
    }

    fn show(&mut self) {
        if !self.terminal {
            return self.print_line(self.ranks.iter().map(|(last, _)| last));
        }
        let line = sum(self.ranks.iter().map(|(last, _)| last)).line(self.began.elapsed());
        // Not wrapped: a part on the next line would stay there.
        print(&format!("\r\x1b[?7l{line}\x1b[K\x1b[?7h"));
        self.shown = true;
    }

    fn print_line<'a>(&self, ranks: impl Iterator<Item = &'a Snapshot>) {
        print(&format!("nacre-mpi: {}\n", sum(ranks).line(self.began.elapsed())));
    }
}

fn sum<'a>(ranks: impl Iterator<Item = &'a Snapshot>) -> Snapshot {
    let mut sum = Snapshot::default();
    ranks.for_each(|snapshot| sum.add(snapshot));
    sum
}

fn print(text: &str) {
    // A walk does not fail because nobody can see how far it is.
    let _ = io::stderr().write_all(text.as_bytes());
}
