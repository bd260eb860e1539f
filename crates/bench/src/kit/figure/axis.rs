//! Axes: their ranges, and ticks at round numbers.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// The division of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Evenly, from zero.
    Linear,
    /// By powers of ten.
    Decades,
    /// By powers of two.
    Octaves,
}

/// An axis with its ticks.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    pub(super) label: String,
    pub(super) scale: Scale,
    /// The range in the units of the scale: exponents where it is logarithmic.
    pub(super) range: Range<f64>,
    /// The positions and labels of the ticks.
    pub(super) ticks: Vec<(f64, String)>,
}

impl Axis {
    /// Creates an axis that holds all of `values`, with its ticks at round numbers.
    pub(crate) fn holding(label: &str, scale: Scale, values: impl IntoIterator<Item = f64>) -> Self {
        let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.into_iter().filter(|value| scale.shows(*value)) {
            least = least.min(scale.position(value));
            most = most.max(scale.position(value));
        }
        if least > most {
            (least, most) = (0.0, 1.0);
        }
        let (range, ticks) = match scale {
            Scale::Linear => linear(most, false),
            Scale::Decades => {
                let (first, last) =
                    (least.floor() as i32, (most.ceil() as i32).max(least.floor() as i32 + 1));
                let places = (first..=last).map(|decade| (f64::from(decade), 10f64.powi(decade)));
                (f64::from(first)..f64::from(last), named(scale, places.collect()))
            }
            Scale::Octaves => {
                let (first, last) = (least.floor() as i32, most.ceil() as i32);
                let places = (first..=last).map(|octave| (f64::from(octave), 2f64.powi(octave)));
                (f64::from(first) - 0.25..f64::from(last) + 0.25, named(scale, places.collect()))
            }
        };
        Self { label: label.into(), scale, range, ticks }
    }

    /// Creates an axis of counts of whole things from zero to a round number above `most`.
    pub(crate) fn counting(label: &str, most: f64) -> Self {
        let (range, ticks) = linear(most, true);
        Self { label: label.into(), scale: Scale::Linear, range, ticks }
    }

    /// Creates an axis of named positions, at 0, 1, 2 and so on.
    pub(crate) fn naming(label: &str, names: Vec<String>) -> Self {
        let range = -0.4..names.len() as f64 - 0.6;
        let ticks = names.into_iter().enumerate().map(|(place, name)| (place as f64, name)).collect();
        Self { label: label.into(), scale: Scale::Linear, range, ticks }
    }

    /// Returns the position of a value.
    pub(super) fn position(&self, value: f64) -> f64 {
        self.scale.position(value).clamp(self.range.start, self.range.end)
    }
}

impl Scale {
    pub(super) fn position(self, value: f64) -> f64 {
        match self {
            Scale::Linear => value,
            Scale::Decades => value.log10(),
            Scale::Octaves => value.log2(),
        }
    }

    /// Returns whether a value has a place: on a logarithmic axis only what is positive has one.
    pub(super) fn shows(self, value: f64) -> bool {
        self == Scale::Linear || value > 0.0
    }
}

/// Returns a range from zero to a round number above `most`, and ticks in four to eight steps; in fewer where those are to
/// be whole numbers, and `most` is small.
fn linear(most: f64, whole: bool) -> (Range<f64>, Vec<(f64, String)>) {
    let most = if most > 0.0 { most } else { 1.0 };
    let magnitude = 10f64.powf(most.log10().floor());
    let step = [0.1, 0.2, 0.25, 0.5, 1.0, 2.0]
        .map(|step| step * magnitude)
        .into_iter()
        .find(|step| most / step <= 8.0 && (!whole || (step - step.round()).abs() < 1e-9))
        .unwrap_or(2.0 * magnitude);
    let steps = (most / step - 1e-9).ceil() as u32;
    let places = (0..=steps).map(|tick| (f64::from(tick) * step, f64::from(tick) * step));
    (0.0..f64::from(steps) * step, named(Scale::Linear, places.collect()))
}

/// Returns the ticks of an axis from their positions and numbers, all in one form: `1000` is not beside `10k`. On a linear
/// axis all have the unit of the greatest.
fn named(scale: Scale, places: Vec<(f64, f64)>) -> Vec<(f64, String)> {
    let most = places.iter().map(|(_, number)| *number).fold(0.0, f64::max);
    let thousands_from = if most >= THOUSANDS_FROM { 1e3 } else { THOUSANDS_FROM };
    let name = |number: f64| {
        let sized = if scale == Scale::Linear { most } else { number };
        in_unit(number, unit(sized, thousands_from))
    };
    places.into_iter().map(|(position, number)| (position, name(number))).collect()
}

/// Formats a number in few characters: `20k`, `1.5M`.
pub(super) fn short(number: f64) -> String {
    in_unit(number, unit(number, THOUSANDS_FROM))
}

/// The number from which on thousands are a unit: four digits are as short as three with a unit.
const THOUSANDS_FROM: f64 = 1e4;

/// Returns the unit of a number of this size, and its name.
fn unit(number: f64, thousands_from: f64) -> (f64, &'static str) {
    match number.abs() {
        size if size >= 1e9 => (1e9, "G"),
        size if size >= 1e6 => (1e6, "M"),
        size if size >= thousands_from => (1e3, "k"),
        _ => (1.0, ""),
    }
}

fn in_unit(number: f64, (size, unit): (f64, &str)) -> String {
    let text = format!("{:.3}", number / size);
    let unit = if number == 0.0 { "" } else { unit };
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value - self.range.start) / (self.range.end - self.range.start);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.ticks.iter().map(|(position, _)| *position).collect()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        let tick = self.ticks.iter().find(|(position, _)| (position - value).abs() < 1e-9);
        tick.map(|(_, text)| text.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_on_axes_are_short() {
        assert_eq!(short(0.5), "0.5");
        assert_eq!(short(1000.0), "1000");
        assert_eq!(short(20_000.0), "20k");
        assert_eq!(short(1_500_000.0), "1.5M");
        assert_eq!(short(20e9), "20G");
    }

    #[test]
    fn the_numbers_of_an_axis_have_one_form() {
        let names = |scale, most: f64| -> Vec<String> {
            Axis::holding("", scale, [1.0, most]).ticks.into_iter().map(|(_, name)| name).collect()
        };
        assert_eq!(names(Scale::Linear, 9900.0), ["0", "2k", "4k", "6k", "8k", "10k"]);
        assert_eq!(
            names(Scale::Linear, 3900.0),
            ["0", "500", "1000", "1500", "2000", "2500", "3000", "3500", "4000"]
        );
        assert_eq!(names(Scale::Decades, 9e5), ["1", "10", "100", "1k", "10k", "100k", "1M"]);
        assert_eq!(names(Scale::Decades, 900.0), ["1", "10", "100", "1000"]);
    }

    #[test]
    fn axes_hold_their_values_between_round_numbers() {
        let axis = Axis::holding("", Scale::Decades, [30.0, 4500.0]);
        assert_eq!(axis.range, 1.0..4.0);
        let axis = Axis::holding("", Scale::Linear, [3.0, 97.0]);
        assert_eq!(axis.range, 0.0..100.0);
        let axis = Axis::holding("", Scale::Octaves, [1.0, 32.0]);
        assert_eq!(axis.ticks.first().unwrap().1, "1");
        assert_eq!(axis.ticks.last().unwrap().1, "32");
        // A value of nothing has no place on a logarithmic axis, and must not spoil it.
        assert_eq!(Axis::holding("", Scale::Decades, [0.0, 50.0]).range, 1.0..2.0);
        assert_eq!(Axis::holding("", Scale::Linear, []).range, 0.0..1.0);
    }

    #[test]
    fn whole_things_are_counted_in_whole_numbers() {
        for most in [1.0, 2.0, 3.0, 9.0, 17.0, 250.0] {
            let axis = Axis::counting("", most);
            assert!(axis.range.end >= most, "{axis:?}");
            assert!(axis.ticks.iter().all(|(_, name)| !name.contains('.')), "{axis:?}");
        }
        assert_eq!(Axis::counting("", 1.0).ticks.len(), 2);
    }
}
