//! The positions that the clients of a process take from a sequencer: each of them once, those of each client in order, counted in
//! intervals of time.

use std::time::{Duration, Instant};

use crate::BenchError;
use crate::kit::positions::Positions;

/// The positions that were taken so far.
pub(crate) struct Tally {
    begin: Instant,
    end: Instant,
    interval_ms: u64,
    counts: Vec<u32>,
    positions: Positions,
    /// The last position of each client.
    last: Vec<Option<u64>>,
}

/// The results of a tally.
pub(crate) struct Counts {
    /// The positions of each interval.
    pub(crate) bins: Vec<u32>,
    pub(crate) positions: u64,
    /// The positions that nobody got, between those that somebody got, and the ranges that they make.
    pub(crate) lost: u64,
    pub(crate) gaps: u64,
}

impl Tally {
    /// Begins to count, for a number of clients, in a window that is divided into intervals, both in milliseconds.
    pub(crate) fn new(begin: Instant, window_ms: u64, interval_ms: u64, clients: usize) -> Self {
        Self {
            begin,
            end: begin + Duration::from_millis(window_ms),
            interval_ms,
            counts: vec![0; window_ms.div_ceil(interval_ms) as usize],
            positions: Positions::default(),
            last: vec![None; clients],
        }
    }

    /// Returns the beginning of the window.
    pub(crate) fn begin(&self) -> Instant {
        self.begin
    }

    /// Returns the end of the window.
    pub(crate) fn end(&self) -> Instant {
        self.end
    }

    /// Returns the number of intervals.
    pub(crate) fn intervals(&self) -> usize {
        self.counts.len()
    }

    /// Returns the number of the interval in which a moment lies. Moments after the window lie behind the last interval.
    pub(crate) fn interval(&self, now: Instant) -> usize {
        ((now - self.begin).as_millis() / u128::from(self.interval_ms)) as usize
    }

    /// Adds a position of a client without counting it in an interval.
    ///
    /// # Errors
    /// [`BenchError::Lost`] if somebody has it already, or the client has a greater one.
    pub(crate) fn add(&mut self, client: usize, position: u64) -> Result<(), BenchError> {
        self.positions.add(position)?;
        match self.last[client].replace(position) {
            Some(before) if before > position => {
                let text = format!("a client got position {position} after position {before}");
                Err(BenchError::Lost(text))
            }
            _ => Ok(()),
        }
    }

    /// Adds a position that a client has got now, and counts it. What comes after the window is checked, and not counted.
    ///
    /// # Errors
    /// Those of [`Tally::add`].
    pub(crate) fn note(&mut self, client: usize, now: Instant, position: u64) -> Result<(), BenchError> {
        self.add(client, position)?;
        let interval = self.interval(now);
        if let Some(count) = self.counts.get_mut(interval) {
            *count += 1;
        }
        Ok(())
    }

    /// Returns the counts.
    pub(crate) fn finish(mut self) -> Counts {
        Counts {
            positions: self.positions.count(),
            lost: self.positions.missing(),
            gaps: self.positions.gaps(),
            bins: self.counts,
        }
    }
}

/// Takes one position after the other until the window is over, and waits for the last one.
///
/// # Errors
/// Those of `next` and of `note`.
pub(crate) async fn take(
    end: Instant,
    mut next: impl AsyncFnMut() -> Result<u64, BenchError>,
    mut note: impl FnMut(Instant, u64) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    while Instant::now() < end {
        let position = next().await?;
        note(Instant::now(), position)?;
    }
    Ok(())
}
