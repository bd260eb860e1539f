//! The results of the study as a whole: tables and targets.

use std::fmt;

use serde::Serialize;

use super::point::{Measurement, Series, System};
use super::simulate::{Decided, Simulated};
use crate::kit::quantity::{grouped, latency};
use crate::kit::report;
use crate::kit::table::Table;
use crate::kit::target::{Targets, Unit};

/// The number of ranks with whose metrics a decision has a target.
pub(super) const RANKS_TARGET: usize = 1000;

/// The results of the study.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Results {
    /// The means by which ranks were kept to their shares of a processor.
    pub(crate) shares: String,
    pub(crate) series: Vec<Series>,
    pub(crate) simulated: Vec<Simulated>,
    pub(crate) decided: Vec<Decided>,
    pub(crate) targets: Targets,
    /// The load average of the machine when the study began.
    pub(crate) load_at_start: String,
}

impl Results {
    /// Returns the rate of the first sequencer alone, if that was measured.
    fn baseline(&self) -> Option<f64> {
        let alone = self.series.iter().find(|series| series.point.system == System::Alone)?;
        let rate = alone.median(|one| one.first_after_per_second);
        (rate > 0.0).then_some(rate)
    }
}

/// Returns how far a rate is below another one, in percent of it.
fn below(rate: f64, baseline: f64) -> f64 {
    100.0 * (1.0 - rate / baseline)
}

impl report::Results for Results {
    fn is_empty(&self) -> bool {
        self.series.is_empty() && self.simulated.is_empty() && self.decided.is_empty()
    }

    fn conclude(&mut self) {
        let baseline = self.baseline();
        let Results { series, decided, targets, .. } = self;
        for series in series.iter().filter(|series| series.point.system != System::Alone) {
            let system = series.point.system;
            let gain = format!("{}: positions/s after ÷ before, median", system.label());
            let rate = series.median(|one| one.first_after_per_second);
            let loss = baseline.map(|baseline| below(rate, baseline));
            let (measured, pause) = (series.median(Measurement::gain), series.move_pause_ms());
            if !system.is_balancing() {
                targets.open(gain, measured, Unit::Times);
                if let Some(loss) = loss {
                    targets.open("  first sequencer below the baseline", loss, Unit::Percent);
                }
                if system == System::None {
                    continue;
                }
            } else {
                targets.at_least(gain, measured, Unit::Times, 2.0);
                targets.at_most_if_measured(
                    "  first sequencer below the baseline",
                    loss,
                    Unit::Percent,
                    10.0,
                );
            }
            targets.at_most_if_measured(
                "  longest pause by a move, in all repetitions",
                pause,
                Unit::Milliseconds,
                20.0,
            );
        }
        if !series.is_empty() {
            // A position that came twice would have ended the study.
            targets.at_most("positions handed out twice, in all systems", 0.0, Unit::Count, 0.0);
        }
        for Decided { policy, ranks, ms, .. } in decided.iter() {
            let measure = format!("a tick with the metrics of {} ranks, {policy}", grouped(*ranks as f64));
            match *ranks == RANKS_TARGET {
                true => targets.at_most(measure, ms.median, Unit::Milliseconds, 5.0),
                false => targets.open(measure, ms.median, Unit::Milliseconds),
            }
        }
    }

    fn conditions(&self) -> String {
        let shares = if self.shares.is_empty() { String::new() } else { format!(", {}", self.shares) };
        format!("{shares}, load average {} at the start", self.load_at_start)
    }
}

impl Results {
    fn show_series(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(concat!(
            "system | before/s | after/s | after ÷ before | least | most | first sequencer after/s | below the baseline",
            " | moves | longest pause by one | longest pause at all | processor of rank 0, 1, 2 after",
        ));
        let baseline = self.baseline();
        for series in &self.series {
            let gain = series.spread(Measurement::gain);
            let first = series.median(|one| one.first_after_per_second);
            let ranks = series.repetitions.iter().map(|one| one.load_percent.len()).max().unwrap_or(0);
            let loads: Vec<String> = (0..ranks)
                .map(|rank| {
                    let of_rank = |one: &Measurement| one.load_percent.get(rank).copied().unwrap_or(0.0);
                    format!("{:.0}", series.median(of_rank))
                })
                .collect();
            let mut row = vec![series.point.system.label()];
            row.push(grouped(series.median(|one| one.before_per_second)));
            row.push(grouped(series.median(|one| one.after_per_second)));
            row.extend([gain.median, gain.min, gain.max].map(|gain| format!("{gain:.2} ×")));
            row.push(grouped(first));
            row.push(baseline.map_or("–".to_owned(), |rate| format!("{:.1} %", below(first, rate))));
            row.push(grouped(series.median(|one| one.moves.len() as f64)));
            row.push(series.move_pause_ms().map_or("–".to_owned(), |ms| latency(ms * 1e3)));
            row.push(latency(series.spread(|one| one.longest_ms).max * 1e3));
            row.push(format!("{} %", loads.join(", ")));
            table.row(row);
        }
        write!(f, "{table}")?;
        let positions = self.series.iter().flat_map(|series| &series.repetitions).map(Measurement::positions);
        writeln!(f, "No position of {} was handed out twice.", grouped(positions.sum::<u64>() as f64))?;
        for series in &self.series {
            if series.point.system.policy().is_some() && series.moves_min() == 0 {
                writeln!(f, "{}: at least one repetition has no move.", series.point.system.label())?;
            }
        }
        Ok(())
    }

    fn show_simulated(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(concat!(
            "simulated policy | start | ranks | subtrees | even from tick | last move before tick | busiest ÷ mean at the end",
            " | served | moves | back and forth | without gain | failures",
        ));
        let tick = |tick: Option<usize>| tick.map_or("–".to_owned(), |tick| tick.to_string());
        for one in &self.simulated {
            table.row(vec![
                one.policy.to_owned(),
                one.start.name().to_owned(),
                grouped(one.ranks as f64),
                grouped(one.subtrees as f64),
                tick(one.even_tick),
                tick(one.settled_tick),
                format!("{:.2}", one.imbalances.last().copied().unwrap_or(1.0)),
                format!("{:.0} %", 100.0 * one.served),
                grouped(one.moves as f64),
                grouped(one.back_and_forth as f64),
                grouped(one.without_gain as f64),
                grouped(one.failures as f64),
            ]);
        }
        write!(f, "{table}")
    }

    fn show_decided(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new("decision by policy | ranks | resources | processor time | least | most");
        for one in &self.decided {
            let mut row =
                vec![one.policy.to_owned(), grouped(one.ranks as f64), grouped(one.resources as f64)];
            row.extend([one.ms.median, one.ms.min, one.ms.max].map(|ms| latency(ms * 1e3)));
            table.row(row);
        }
        write!(f, "{table}")
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.series.is_empty() {
            self.show_series(f)?;
        }
        if !self.simulated.is_empty() {
            writeln!(f)?;
            self.show_simulated(f)?;
        }
        if !self.decided.is_empty() {
            writeln!(f)?;
            self.show_decided(f)?;
        }
        match self.targets.is_empty() {
            true => Ok(()),
            false => write!(f, "\n{}", self.targets),
        }
    }
}
