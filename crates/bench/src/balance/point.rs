//! The points of the study, and what was measured of them.

use nacre::rank::Mode;
use serde::Serialize;

use crate::kit::server::Durability;
use crate::kit::statistic::Spread;
use crate::kit::study;

/// The interval of the record of positions over time, in milliseconds.
pub(super) const BIN_MS: u64 = 50;
/// The time after a move from which on rates count as those after it.
const SETTLING_MS: f64 = 500.0;

/// A way to relieve a rank of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// The first sequencer alone, which nothing is done about: the baseline
    Alone,
    /// All sequencers at one rank, and no balancing
    None,
    /// The policy of that name, which moves sequencers at its first tick
    Sequencer,
    /// The policy of that name, with a shorter wait
    Conservative,
    /// The policy of that name
    GreedySpillEven,
    /// A sequencer is moved at once, and its clients are redirected
    Client,
    /// A sequencer is moved at once, and the old rank forwards the requests of its clients
    Proxy,
    /// A sequencer is moved at once, and the old rank forwards the requests of half of its clients
    ProxyHalf,
}

impl System {
    /// All systems, in the order in which they are measured.
    pub(super) const ALL: [System; 8] = [
        System::Alone,
        System::None,
        System::Sequencer,
        System::Conservative,
        System::GreedySpillEven,
        System::Client,
        System::Proxy,
        System::ProxyHalf,
    ];

    /// Returns its name, as in the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            System::Alone => "alone",
            System::None => "none",
            System::Sequencer => "sequencer",
            System::Conservative => "conservative",
            System::GreedySpillEven => "greedy-spill-even",
            System::Client => "client",
            System::Proxy => "proxy",
            System::ProxyHalf => "proxy-half",
        }
    }

    /// Returns its name for tables and figures.
    pub(super) fn label(self) -> String {
        match self {
            System::Alone => "alone (baseline)".to_owned(),
            System::None => "no balancing".to_owned(),
            system if system.mode().is_some() => format!("moved at once, {}", self.name()),
            _ => format!("policy {}", self.name()),
        }
    }

    /// Returns the policy that it puts into force.
    pub(super) fn policy(self) -> Option<&'static str> {
        matches!(self, System::Sequencer | System::Conservative | System::GreedySpillEven)
            .then_some(self.name())
    }

    /// Returns the mode in which it moves a sequencer at once.
    pub(super) fn mode(self) -> Option<Mode> {
        match self {
            System::Client => Some(Mode::Client),
            System::Proxy => Some(Mode::Proxy),
            System::ProxyHalf => Some(Mode::ProxyHalf),
            _ => None,
        }
    }

    /// Returns whether it takes load off the rank and leaves nothing of it there.
    pub(super) fn is_balancing(self) -> bool {
        self.policy().is_some() || self == System::Client
    }
}

/// A point of the study.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Point {
    pub(crate) system: System,
    /// The number of clients of each sequencer.
    pub(crate) clients: Vec<u32>,
    /// The share of a processor that each rank has, where ranks have one.
    pub(crate) share_percent: u32,
    /// The time until something is done, and from there to the end.
    pub(crate) before_ms: u64,
    pub(crate) after_ms: u64,
    /// The time between two decisions of a policy, and the wait of the conservative one.
    pub(crate) tick_ms: u64,
    pub(crate) wait_ms: u64,
    pub(crate) durability: Durability,
}

/// The measurement of a sequencer.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SequencerRecord {
    /// The positions that its clients got; none was there twice.
    pub(crate) positions: u64,
    /// The positions between the least and the greatest of them that nobody got, and the number of ranges that they are.
    pub(crate) lost: u64,
    pub(crate) gaps: u64,
    /// The positions of each interval of 50 ms.
    pub(crate) bins: Vec<u32>,
    /// The longest time without a position, of those that ended in each interval.
    pub(crate) longest_ms: Vec<f64>,
}

impl SequencerRecord {
    /// Returns the positions per second in a range of intervals; 0 for an empty one.
    fn per_second(&self, from: usize, to: usize) -> f64 {
        let bins = self.bins.get(from..to).unwrap_or_default();
        let seconds = bins.len() as f64 * BIN_MS as f64 / 1e3;
        let positions = bins.iter().map(|count| f64::from(*count)).sum::<f64>();
        if bins.is_empty() { 0.0 } else { positions / seconds }
    }

    /// Returns the longest time without a position of those that have a part in a time.
    fn pause_ms(&self, from_ms: f64, to_ms: f64) -> f64 {
        let has_part = |(bin, pause_ms): &(usize, f64)| {
            // The pause ended somewhere in its interval.
            let (least, most) = (*bin as u64 * BIN_MS, (*bin as u64 + 1) * BIN_MS);
            most as f64 >= from_ms && least as f64 - pause_ms <= to_ms
        };
        let pauses = self.longest_ms.iter().copied().enumerate().filter(has_part);
        pauses.map(|(_, pause_ms)| pause_ms).fold(0.0, f64::max)
    }
}

/// A move of a sequencer during a measurement, whose times are since its beginning.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Move {
    pub(crate) sequencer: u32,
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// The time at which it was done.
    pub(crate) at_ms: f64,
    /// The time within which the pause of the sequencer was looked for.
    pub(crate) within_ms: (f64, f64),
    /// The longest time without a position of that sequencer in that time.
    pub(crate) pause_ms: f64,
}

/// The processor time of the ranks in an interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Load {
    /// The end of the interval.
    pub(crate) at_ms: f64,
    /// For each rank, in percent of one processor.
    pub(crate) percent: Vec<f64>,
}

/// One repetition of a point.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measurement {
    /// The time at which something was done.
    pub(crate) at_ms: f64,
    /// Positions per second of all sequencers before that, and after the last move.
    pub(crate) before_per_second: f64,
    pub(crate) after_per_second: f64,
    /// The same of the first sequencer.
    pub(crate) first_before_per_second: f64,
    pub(crate) first_after_per_second: f64,
    /// The longest time without a position of any sequencer, whatever the reason.
    pub(crate) longest_ms: f64,
    pub(crate) moves: Vec<Move>,
    /// The mean load of each rank's processor after the last move, in percent of one processor.
    pub(crate) load_percent: Vec<f64>,
    pub(crate) loads: Vec<Load>,
    pub(crate) sequencers: Vec<SequencerRecord>,
}

impl Measurement {
    /// Sums up what the clients of each sequencer saw, and what the ranks did meanwhile. The pauses of the moves are filled in here.
    pub(super) fn of(
        at_ms: f64,
        sequencers: Vec<SequencerRecord>,
        mut moves: Vec<Move>,
        loads: Vec<Load>,
    ) -> Self {
        let intervals = sequencers.iter().map(|sequencer| sequencer.bins.len()).min().unwrap_or(0);
        let window_ms = (intervals as u64 * BIN_MS) as f64;
        moves.retain(|moved| moved.at_ms < window_ms);
        for moved in &mut moves {
            let record = sequencers.get(moved.sequencer as usize);
            let (from, to) = moved.within_ms;
            moved.pause_ms = record.map_or(0.0, |record| record.pause_ms(from, to));
        }
        let settled_ms =
            moves.iter().map(|moved| moved.at_ms + moved.pause_ms + SETTLING_MS).fold(at_ms, f64::max);
        // Intervals that an end of a phase is in belong to none; the first tenth is for clients to come up to speed.
        let event = ((at_ms / BIN_MS as f64) as usize).min(intervals);
        let settled = ((settled_ms / BIN_MS as f64) as usize + 1).min(intervals);
        let sum =
            |from: usize, to: usize| sequencers.iter().map(|record| record.per_second(from, to)).sum::<f64>();
        let first =
            |from: usize, to: usize| sequencers.first().map_or(0.0, |record| record.per_second(from, to));
        let ranks = loads.iter().map(|load| load.percent.len()).max().unwrap_or(0);
        let mean = |rank: usize| {
            let after = loads.iter().filter(|load| load.at_ms > settled_ms && load.at_ms <= window_ms);
            let after: Vec<f64> = after.filter_map(|load| load.percent.get(rank).copied()).collect();
            after.iter().sum::<f64>() / after.len().max(1) as f64
        };
        let warm_ms = (event as u64 / 10 * BIN_MS) as f64;
        Self {
            at_ms,
            before_per_second: sum(event / 10, event),
            after_per_second: sum(settled, intervals),
            first_before_per_second: first(event / 10, event),
            first_after_per_second: first(settled, intervals),
            longest_ms: sequencers
                .iter()
                .map(|record| record.pause_ms(warm_ms + 1.0, window_ms))
                .fold(0.0, f64::max),
            load_percent: (0..ranks).map(mean).collect(),
            moves,
            loads,
            sequencers,
        }
    }

    /// Returns the rate after the last move as a multiple of the rate before; 0 if nothing came before.
    pub(super) fn gain(&self) -> f64 {
        if self.before_per_second > 0.0 { self.after_per_second / self.before_per_second } else { 0.0 }
    }

    /// Returns the longest pause of a sequencer that was moved.
    pub(super) fn move_pause_ms(&self) -> Option<f64> {
        self.moves.iter().map(|moved| moved.pause_ms).reduce(f64::max)
    }

    /// Returns the number of positions that were handed out.
    pub(super) fn positions(&self) -> u64 {
        self.sequencers.iter().map(|record| record.positions).sum()
    }
}

/// All repetitions of a point.
pub(crate) type Series = study::Repetitions<Point, Measurement>;

impl Series {
    pub(super) fn spread(&self, value: impl Fn(&Measurement) -> f64) -> Spread {
        Spread::of(self.repetitions.iter().map(value))
    }

    /// Returns the longest pause of a move in all repetitions.
    pub(super) fn move_pause_ms(&self) -> Option<f64> {
        self.repetitions.iter().filter_map(Measurement::move_pause_ms).reduce(f64::max)
    }

    /// Returns the least number of moves in a repetition.
    pub(super) fn moves_min(&self) -> usize {
        self.repetitions.iter().map(|one| one.moves.len()).min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(bins: Vec<u32>, longest_ms: Vec<f64>) -> SequencerRecord {
        SequencerRecord { positions: 1, lost: 0, gaps: 0, bins, longest_ms }
    }

    #[test]
    fn the_rate_after_is_that_after_the_last_move_and_a_pause_is_one_of_the_sequencer_that_moved() {
        // 100 in each interval for 1 s, then nothing for 100 ms, then 250.
        let (mut bins, mut longest_ms) = (vec![100; 20], vec![1.0; 20]);
        bins.extend([0, 0]);
        bins.extend([250; 38]);
        longest_ms.extend([0.0, 0.0, 120.0]);
        longest_ms.extend([2.0; 37]);
        let (first, other) = (record(bins.clone(), longest_ms), record(bins, vec![7.0; 60]));
        let moved =
            Move { sequencer: 0, from: 0, to: 1, at_ms: 1090.0, within_ms: (1000.0, 1100.0), pause_ms: 0.0 };
        let late = Move { at_ms: 9e3, ..moved.clone() };
        let loads =
            [500.0, 2000.0, 2500.0].map(|at_ms| Load { at_ms, percent: vec![at_ms / 100.0, 1.0] }).to_vec();
        let measured = Measurement::of(1000.0, vec![first, other], vec![moved, late], loads);
        assert_eq!(measured.moves.len(), 1, "what is moved after the end is not measured");
        assert_eq!((measured.move_pause_ms(), measured.longest_ms), (Some(120.0), 120.0));
        assert_eq!((measured.before_per_second, measured.after_per_second), (4000.0, 10_000.0));
        assert_eq!((measured.first_before_per_second, measured.first_after_per_second), (2000.0, 5000.0));
        assert_eq!((measured.gain(), measured.positions()), (2.5, 2));
        assert_eq!(measured.load_percent, [22.5, 1.0]);
    }

    #[test]
    fn a_pause_counts_where_it_has_a_part() {
        let one = record(vec![0; 40], [vec![0.0; 30], vec![900.0], vec![3.0; 9]].concat());
        // It ended after 1,500 ms and began before 650 ms.
        assert_eq!(one.pause_ms(1000.0, 1100.0), 900.0);
        assert_eq!(one.pause_ms(0.0, 500.0), 0.0);
        assert_eq!(one.pause_ms(1600.0, 1700.0), 3.0);
    }

    #[test]
    fn the_names_of_systems_are_those_of_the_command_line() {
        for system in System::ALL {
            let value = clap::ValueEnum::to_possible_value(&system).unwrap();
            assert_eq!(value.get_name(), system.name());
        }
    }
}
