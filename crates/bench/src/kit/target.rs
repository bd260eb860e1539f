//! Targets of Nacre beside the measured values.

use std::fmt;

use serde::Serialize;

use crate::kit::quantity::grouped;
use crate::kit::table::Table;

/// A measured value with its target.
#[derive(Clone, Debug, Serialize)]
struct Target {
    measure: String,
    /// `None` if there was nothing to measure.
    measured: Option<f64>,
    unit: Unit,
    bound: Bound,
}

/// The unit of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Unit {
    PerSecond,
    Times,
    Percent,
    Microseconds,
    Milliseconds,
    Seconds,
    Bytes,
    Megabytes,
    Mebibytes,
    MebibytesPerSecond,
    Count,
}

/// The bound that a value is meant to keep.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
    Open,
}

impl Target {
    fn is_met(&self) -> Option<bool> {
        let measured = self.measured?;
        match self.bound {
            Bound::AtLeast(bound) => Some(measured >= bound),
            Bound::AtMost(bound) => Some(measured <= bound),
            Bound::Open => None,
        }
    }
}

impl Unit {
    fn show(self, number: f64) -> String {
        match self {
            Unit::PerSecond => format!("{}/s", grouped(number)),
            Unit::Times => format!("{number:.2} ×"),
            Unit::Percent => format!("{number:.1} %"),
            Unit::Microseconds => format!("{number:.2} µs"),
            Unit::Milliseconds => format!("{number:.2} ms"),
            Unit::Seconds => format!("{number:.2} s"),
            Unit::Bytes => format!("{number:.1} B"),
            Unit::Megabytes => format!("{number:.3} MB"),
            Unit::Mebibytes => format!("{number:.1} MiB"),
            Unit::Count => grouped(number),
            Unit::MebibytesPerSecond => format!("{} MiB/s", grouped(number)),
        }
    }
}

/// All targets, printed as a table.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Targets(Vec<Target>);

impl Targets {
    /// Adds a value with its lower bound.
    pub(crate) fn at_least(&mut self, measure: impl Into<String>, measured: f64, unit: Unit, bound: f64) {
        self.add(measure.into(), Some(measured), unit, Bound::AtLeast(bound));
    }

    /// Adds a value with its upper bound.
    pub(crate) fn at_most(&mut self, measure: impl Into<String>, measured: f64, unit: Unit, bound: f64) {
        self.add(measure.into(), Some(measured), unit, Bound::AtMost(bound));
    }

    /// Adds a value with its upper bound, or the remark that it was not measured.
    pub(crate) fn at_most_if_measured(
        &mut self,
        measure: impl Into<String>,
        measured: Option<f64>,
        unit: Unit,
        bound: f64,
    ) {
        self.add(measure.into(), measured, unit, Bound::AtMost(bound));
    }

    /// Adds a value without a bound: the larger the better, for comparison with others' values.
    pub(crate) fn open(&mut self, measure: impl Into<String>, measured: f64, unit: Unit) {
        self.add(measure.into(), Some(measured), unit, Bound::Open);
    }

    fn add(&mut self, measure: String, measured: Option<f64>, unit: Unit, bound: Bound) {
        self.0.push(Target { measure, measured, unit, bound });
    }

    /// Returns whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Targets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new("measure | measured | target | measured ÷ target | met");
        for target in &self.0 {
            let (shown, bound) = match target.bound {
                Bound::AtLeast(bound) => (format!("≥ {}", target.unit.show(bound)), Some(bound)),
                Bound::AtMost(bound) => (format!("≤ {}", target.unit.show(bound)), Some(bound)),
                Bound::Open => ("–".into(), None),
            };
            let share = target.measured.zip(bound).map(|(measured, bound)| measured / bound);
            let met = target.is_met().map_or("–", |met| if met { "yes" } else { "no" });
            // Zero of an allowed zero is no share.
            let share = share.filter(|share| share.is_finite());
            let share = share.map_or("–".to_owned(), |share| format!("{share:.2}"));
            let measured =
                target.measured.map_or("not measured".to_owned(), |measured| target.unit.show(measured));
            table.row(vec![target.measure.clone(), measured, shown, share, met.into()]);
        }
        write!(f, "{table}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_say_whether_they_are_met() {
        let mut targets = Targets::default();
        targets.at_least("rate", 100.0, Unit::PerSecond, 200.0);
        targets.at_most("p99", 2.0, Unit::Milliseconds, 3.0);
        targets.open("times", 9.0, Unit::Times);
        targets.at_most_if_measured("age", None, Unit::Seconds, 1.0);
        targets.at_most("lost", 0.0, Unit::Count, 0.0);
        let text = targets.to_string();
        let lines: Vec<Vec<&str>> =
            text.lines().skip(2).map(|line| line.split("  ").map(str::trim).collect()).collect();
        let row =
            |index: usize| lines[index].iter().filter(|cell| !cell.is_empty()).copied().collect::<Vec<_>>();
        assert_eq!(row(0), ["rate", "100/s", "≥ 200/s", "0.50", "no"]);
        assert_eq!(row(1), ["p99", "2.00 ms", "≤ 3.00 ms", "0.67", "yes"]);
        assert_eq!(row(2), ["times", "9.00 ×", "–", "–", "–"]);
        assert_eq!(row(3), ["age", "not measured", "≤ 1.00 s", "–", "–"]);
        assert_eq!(row(4), ["lost", "0", "≤ 0", "–", "yes"]);
    }
}
