//! The points of the study, and what was measured of them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::kit::quantity::{grouped, latency};
use crate::kit::report;
use crate::kit::server::Durability;
use crate::kit::statistic::Spread;
use crate::kit::study;
use crate::kit::table::Table;
use crate::kit::target::{Targets, Unit};

/// The interval of the record of positions over time, in milliseconds.
pub(super) const BIN_MS: u64 = 50;

/// The program under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum System {
    /// Sequencers of Nacre.
    Nacre,
    /// The store's revision of a cluster of etcd, which each put counts up.
    Etcd,
}

/// The event of a run: the active rank loses its authority, or nothing happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// The daemon is killed (SIGKILL)
    Kill,
    /// The authority is handed over, as by "nacre fail 0"
    HandOver,
    /// The daemon is ended (SIGTERM)
    Terminate,
    /// The daemon is stopped (SIGSTOP), and continued later
    Stop,
    /// The daemon is cut off from the store, but not from its clients, and joined again later
    Partition,
    /// Nothing happens: how much rates and pauses differ anyway
    Nothing,
}

impl Event {
    /// All events, in the order in which they are measured.
    pub(super) const ALL: [Event; 6] =
        [Event::Kill, Event::HandOver, Event::Terminate, Event::Stop, Event::Partition, Event::Nothing];

    /// Returns its name, as in the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Event::Kill => "kill",
            Event::HandOver => "hand-over",
            Event::Terminate => "terminate",
            Event::Stop => "stop",
            Event::Partition => "partition",
            Event::Nothing => "nothing",
        }
    }

    /// Returns whether the rank has the time to write down where it ends.
    fn is_orderly(self) -> bool {
        matches!(self, Event::HandOver | Event::Terminate)
    }
}

/// A point of the study.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Point {
    pub(crate) label: String,
    pub(crate) system: System,
    pub(crate) event: Event,
    /// The number of sequencers, each of which has a client process.
    pub(crate) sequencers: u32,
    /// The number of clients of each.
    pub(crate) clients: u32,
    /// The time until the event, and from there to the end.
    pub(crate) before_ms: u64,
    pub(crate) after_ms: u64,
    pub(crate) durability: Durability,
}

/// A time without a position.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Pause {
    /// The time of its beginning, since that of the measurement.
    pub(crate) from_ms: f64,
    pub(crate) ms: f64,
}

/// The measurement of a sequencer.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SequencerRecord {
    /// The positions that its clients got; none was there twice.
    pub(crate) positions: u64,
    /// The positions between the least and the greatest of them that nobody got, and the number of ranges that they are.
    pub(crate) lost: u64,
    pub(crate) gaps: u64,
    /// The longest pause of each client.
    pub(crate) pauses: Vec<Pause>,
    /// The positions of each interval of 50 ms.
    pub(crate) bins: Vec<u32>,
}

/// One repetition of a point.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measurement {
    /// The time of the event.
    pub(crate) at_ms: f64,
    /// The longest pause of all clients.
    pub(crate) pause_ms: f64,
    /// Positions per second of all sequencers before the event, and after the last pause that it caused.
    pub(crate) before_per_second: f64,
    pub(crate) after_per_second: f64,
    pub(crate) positions: u64,
    pub(crate) lost: u64,
    pub(crate) gaps: u64,
    pub(crate) sequencers: Vec<SequencerRecord>,
}

impl Measurement {
    /// Sums up what the clients of each sequencer saw of an event at a time.
    pub(super) fn of(event: Event, at_ms: f64, sequencers: Vec<SequencerRecord>) -> Self {
        let pauses = || sequencers.iter().flat_map(|sequencer| &sequencer.pauses);
        let pause_ms = pauses().map(|pause| pause.ms).fold(0.0, f64::max);
        let resumed_ms = match event {
            // The longest pause may be at any time.
            Event::Nothing => at_ms,
            _ => pauses().map(|pause| pause.from_ms + pause.ms).fold(at_ms, f64::max),
        };
        let intervals = sequencers.iter().map(|sequencer| sequencer.bins.len()).min().unwrap_or(0);
        // Intervals that an end of a phase is in belong to none.
        let event = ((at_ms / BIN_MS as f64) as usize).min(intervals);
        let resumed = ((resumed_ms / BIN_MS as f64) as usize + 1).min(intervals);
        let per_second = |from: usize, to: usize| {
            let positions = |record: &SequencerRecord| {
                record.bins[from..to].iter().map(|count| f64::from(*count)).sum::<f64>()
            };
            let seconds = (to - from) as f64 * BIN_MS as f64 / 1e3;
            if from < to { sequencers.iter().map(positions).sum::<f64>() / seconds } else { 0.0 }
        };
        // The first tenth is for clients to come up to speed.
        let (before_per_second, after_per_second) =
            (per_second(event / 10, event), per_second(resumed, intervals));
        let sum = |value: fn(&SequencerRecord) -> u64| sequencers.iter().map(value).sum::<u64>();
        Measurement {
            at_ms,
            pause_ms,
            before_per_second,
            after_per_second,
            positions: sum(|record| record.positions),
            lost: sum(|record| record.lost),
            gaps: sum(|record| record.gaps),
            sequencers,
        }
    }

    /// Returns the rate after the event as a share of that before it, in percent; 0 if nothing came before it.
    fn after_percent(&self) -> f64 {
        match self.before_per_second > 0.0 {
            true => 100.0 * self.after_per_second / self.before_per_second,
            false => 0.0,
        }
    }
}

/// All repetitions of a point.
pub(crate) type Series = study::Repetitions<Point, Measurement>;

impl Series {
    fn spread(&self, value: impl Fn(&Measurement) -> f64) -> Spread {
        Spread::of(self.repetitions.iter().map(value))
    }
}

/// The results of the study.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Results {
    pub(crate) series: Vec<Series>,
    pub(crate) targets: Targets,
    /// The load average of the machine when the study began.
    pub(crate) load_at_start: String,
}

impl report::Results for Results {
    fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    fn conclude(&mut self) {
        let Results { series, targets, .. } = self;
        for series in series.iter() {
            let (Point { label, system, event, .. }, pause_ms) =
                (&series.point, series.spread(|one| one.pause_ms));
            let after = series.spread(Measurement::after_percent);
            let longest = format!("{label}: longest pause of a client, in all repetitions");
            // Neither a peer nor a run without an event has a target to keep.
            if *system != System::Nacre || *event == Event::Nothing {
                targets.open(longest, pause_ms.max, Unit::Milliseconds);
                targets.open("  positions/s after it ÷ before it, median", after.median, Unit::Percent);
                continue;
            }
            targets.at_most(longest, pause_ms.max, Unit::Milliseconds, 1000.0);
            targets.at_least("  positions/s after it ÷ before it, median", after.median, Unit::Percent, 95.0);
            // A position that came twice would have ended the study.
            targets.at_most("  positions handed out twice", 0.0, Unit::Count, 0.0);
            let lost = series.spread(|one| one.lost as f64).max;
            match event.is_orderly() {
                true => targets.at_most("  positions lost, at most", lost, Unit::Count, 0.0),
                // What the rank had reserved, and did not hand out, is a gap: that is what a reservation costs.
                false => targets.open("  positions lost, at most", lost, Unit::Count),
            }
        }
    }

    fn conditions(&self) -> String {
        format!(", load average {} at the start", self.load_at_start)
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(concat!(
            "event | longest pause | least | most | before/s | after/s | after ÷ before | least | most",
            " | positions | lost | gaps",
        ));
        for series in &self.series {
            let pause = series.spread(|one| one.pause_ms);
            let after = series.spread(Measurement::after_percent);
            let mut row = vec![series.point.label.clone()];
            row.extend([pause.median, pause.min, pause.max].map(|ms| latency(ms * 1e3)));
            row.push(grouped(series.median(|one| one.before_per_second)));
            row.push(grouped(series.median(|one| one.after_per_second)));
            row.extend([after.median, after.min, after.max].map(|percent| format!("{percent:.1} %")));
            row.push(grouped(series.median(|one| one.positions as f64)));
            row.push(grouped(series.median(|one| one.lost as f64)));
            row.push(grouped(series.median(|one| one.gaps as f64)));
            table.row(row);
        }
        write!(f, "{table}")?;
        writeln!(f, "No position was handed out twice.")?;
        match self.targets.is_empty() {
            true => Ok(()),
            false => write!(f, "\n{}", self.targets),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_after_an_event_is_that_after_its_pause() {
        // 100 in each interval up to 1,000 ms; none for 500 ms; then 90.
        let mut bins = vec![100; 20];
        bins.extend([0; 10]);
        bins.extend([90; 20]);
        let record = |pause: Pause| SequencerRecord {
            positions: 3800,
            lost: 7,
            gaps: 1,
            pauses: vec![Pause { from_ms: 20.0, ms: 3.0 }, pause],
            bins: bins.clone(),
        };
        let pause = Pause { from_ms: 999.0, ms: 501.0 };
        let measured =
            Measurement::of(Event::Kill, 1000.0, vec![record(pause), record(Pause { ms: 400.0, ..pause })]);
        assert_eq!(
            (measured.pause_ms, measured.positions, measured.lost, measured.gaps),
            (501.0, 7600, 14, 2)
        );
        assert_eq!(measured.before_per_second, 2.0 * 2000.0);
        assert_eq!(measured.after_per_second, 2.0 * 1800.0);
        assert_eq!(measured.after_percent(), 90.0);
        // Clients that never went on have no rate.
        let over = Measurement::of(Event::Kill, 1000.0, vec![record(Pause { from_ms: 999.0, ms: 1501.0 })]);
        assert_eq!(over.after_per_second, 0.0);
        // Where nothing happens, a pause says nothing of the time up to it: 500 ms without, and 1,000 ms with positions.
        let nothing =
            Measurement::of(Event::Nothing, 1000.0, vec![record(Pause { from_ms: 1900.0, ms: 20.0 })]);
        assert_eq!(nothing.after_per_second, 1800.0 / 1.45);
    }
}
