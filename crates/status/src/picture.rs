//! Pictures of numbers over the last hour, as SVG inside the status page.

use std::collections::VecDeque;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// The time between two samples.
pub const SAMPLE_INTERVAL: Duration = Duration::from_secs(10);
/// The number of samples that are kept: those of an hour.
const SAMPLES_MAX: usize = 360;
/// The time that a picture shows.
const SHOWN: Duration = Duration::from_secs(3600);
/// A gap between samples that is not drawn as a line: the process was stopped, or the machine asleep.
const GAP: Duration = Duration::from_secs(35);

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 200.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 10.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = 24.0;

/// The dashes of the series, so that they are told apart in grey as well. Their colours are in the page's styles, which
/// know whether the page is dark.
const DASHES: [&str; 6] = ["none", "6 3", "2 2", "8 3 2 3", "1 3", "10 4"];

/// The styles of pictures, for a light page and for a dark one.
pub(crate) const STYLE: &str = "svg{width:100%;min-width:40rem;font:11px sans-serif;fill:currentColor}\
    .grid{stroke:currentColor;stroke-opacity:.2}.series{fill:none;stroke-width:1.5;stroke-linecap:round}\
    .s0{stroke:#0b62a4}.s1{stroke:#b4480f}.s2{stroke:#2d7d3a}.s3{stroke:#7a3e9d}.s4{stroke:#8a6d00}.s5{stroke:#444}\
    @media(prefers-color-scheme:dark){.s0{stroke:#6fb7f2}.s1{stroke:#ff9d6b}.s2{stroke:#7fd08d}.s3{stroke:#cf9cf0}\
    .s4{stroke:#e0c04a}.s5{stroke:#bbb}}";

/// The scale and the unit of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Numbers, from zero.
    Count,
    /// Times in seconds, on a logarithmic axis.
    Time,
}

/// Numbers of one kind, sampled over the last hour.
#[derive(Clone, Debug)]
pub struct Picture {
    title: &'static str,
    scale: Scale,
    series: Vec<&'static str>,
    samples: VecDeque<(Instant, Vec<Option<f64>>)>,
}

impl Picture {
    /// Creates a picture without samples, of up to six series.
    pub fn new(title: &'static str, scale: Scale, series: &[&'static str]) -> Picture {
        assert!(series.len() <= DASHES.len(), "each series has a style of its own");
        Picture { title, scale, series: series.to_vec(), samples: VecDeque::new() }
    }

    /// Adds the values of all series at a time; `None` where there is none.
    pub fn push(&mut self, at: Instant, values: Vec<Option<f64>>) {
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back((at, values));
    }

    /// Draws the picture.
    pub(crate) fn svg(&self, now: Instant) -> String {
        let (min, max) = self.bounds(now);
        let y = |value: f64| {
            let share = match self.scale {
                Scale::Count => value / max,
                Scale::Time => (value.max(min).ln() - min.ln()) / (max.ln() - min.ln()),
            };
            HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
        };
        let x = |at: Instant| {
            let age = now.saturating_duration_since(at).as_secs_f64() / SHOWN.as_secs_f64();
            WIDTH - RIGHT - age * (WIDTH - LEFT - RIGHT)
        };
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            self.title, self.title
        );
        for tick in self.ticks(min, max) {
            let at = y(tick);
            let _ = writeln!(
                text,
                "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" class=\"grid\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0,
                self.label(tick)
            );
        }
        for minutes in [60, 45, 30, 15, 0] {
            let at = WIDTH - RIGHT - f64::from(minutes) / 60.0 * (WIDTH - LEFT - RIGHT);
            let label = if minutes == 0 { "now".to_owned() } else { format!("−{minutes} min") };
            let anchor = if minutes == 0 { "end" } else { "middle" };
            let _ = writeln!(
                text,
                "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"{anchor}\">{label}</text>",
                HEIGHT - 6.0
            );
        }
        // A picture without a line would leave open whether there was nothing to draw.
        if self.values(now).next().is_none() {
            let why = if self.samples.is_empty() { "no samples yet" } else { "none in the last hour" };
            let (x, y) = ((LEFT + WIDTH - RIGHT) / 2.0, (TOP + HEIGHT - BOTTOM) / 2.0 - 6.0);
            let _ = writeln!(text, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">{why}</text>");
        }
        let mut legend = LEFT;
        for (index, (name, dashes)) in self.series.iter().zip(DASHES).enumerate() {
            let style = format!("stroke-dasharray=\"{dashes}\" class=\"series s{index}\"");
            let _ = writeln!(
                text,
                "<line x1=\"{legend}\" x2=\"{}\" y1=\"12\" y2=\"12\" {style}/><text x=\"{}\" y=\"16\">{name}</text>",
                legend + 22.0,
                legend + 27.0
            );
            legend += 40.0 + 7.5 * name.len() as f64;
            let mut path = String::new();
            let mut last: Option<Instant> = None;
            for (at, values) in self.shown(now) {
                let Some(value) = values.get(index).copied().flatten() else {
                    last = None;
                    continue;
                };
                let joined = last.is_some_and(|last| at.saturating_duration_since(last) <= GAP);
                let _ = write!(path, "{}{:.1} {:.1}", if joined { "L" } else { "M" }, x(*at), y(value));
                // A sample on its own is a dot.
                if !joined {
                    path.push_str("h0.1");
                }
                last = Some(*at);
            }
            if !path.is_empty() {
                let _ = writeln!(text, "<path d=\"{path}\" {style}/>");
            }
        }
        text.push_str("</svg></figure>\n");
        text
    }

    /// Iterates over the samples of the last hour. Older ones are left where samples were missed.
    fn shown(&self, now: Instant) -> impl Iterator<Item = &(Instant, Vec<Option<f64>>)> {
        self.samples.iter().filter(move |(at, _)| now.saturating_duration_since(*at) <= SHOWN)
    }

    fn values(&self, now: Instant) -> impl Iterator<Item = f64> {
        self.shown(now).flat_map(|(_, values)| values.iter().flatten().copied())
    }

    /// Returns the ends of the vertical axis.
    fn bounds(&self, now: Instant) -> (f64, f64) {
        let greatest = self.values(now).fold(0.0, f64::max);
        match self.scale {
            Scale::Count => (0.0, round_up(greatest.max(1.0))),
            Scale::Time => {
                let least = self.values(now).filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
                let (least, greatest) = if least.is_finite() { (least, greatest) } else { (1e-6, 1e-3) };
                let min = 10f64.powf(least.log10().floor());
                (min, 10f64.powf(greatest.log10().ceil()).max(min * 10.0))
            }
        }
    }

    fn ticks(&self, min: f64, max: f64) -> Vec<f64> {
        match self.scale {
            Scale::Count => (0..=4).map(|quarter| max * f64::from(quarter) / 4.0).collect(),
            Scale::Time => {
                let decades = (max / min).log10().round() as i32;
                (0..=decades).map(|decade| min * 10f64.powi(decade)).collect()
            }
        }
    }

    fn label(&self, value: f64) -> String {
        let (value, units): (f64, &[(f64, &str)]) = match self.scale {
            Scale::Count => (
                value,
                &[(1e18, " E"), (1e15, " P"), (1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k"), (1.0, "")],
            ),
            Scale::Time => (value * 1.000_001, &[(1.0, " s"), (1e-3, " ms"), (1e-6, " µs"), (1e-9, " ns")]),
        };
        let (factor, unit) =
            units.iter().find(|(factor, _)| value >= *factor).unwrap_or(&units[units.len() - 1]);
        let shown = format!("{:.2}", value / factor);
        format!("{}{unit}", shown.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// Returns the least of 1, 2, 4 and 8 times a power of ten that is not less.
fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 4.0, 8.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|up| *up >= value)
        .unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(picture: &Picture, now: Instant) -> String {
        let text = picture.svg(now);
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        text
    }

    #[test]
    fn a_picture_without_samples_has_axes_and_no_lines() {
        for scale in [Scale::Count, Scale::Time] {
            let text = drawn(&Picture::new("Requests", scale, &["a", "b"]), Instant::now());
            assert!(text.contains("now") && text.contains(">b</text>"), "{text}");
            assert!(!text.contains("<path") && text.contains(">no samples yet</text>"), "{text}");
        }
    }

    #[test]
    fn an_hour_in_which_nothing_happened_is_told_from_one_without_samples() {
        let start = Instant::now();
        let mut picture = Picture::new("Latency", Scale::Time, &["a"]);
        picture.push(start, vec![None]);
        assert!(drawn(&picture, start).contains(">none in the last hour</text>"));
        picture.push(start + SAMPLE_INTERVAL, vec![Some(1e-3)]);
        assert!(!drawn(&picture, start + SAMPLE_INTERVAL).contains("none in the last hour"));
        // What is no longer shown does not set the axis either.
        let later = start + SHOWN * 2;
        let text = drawn(&picture, later);
        assert!(text.contains(">none in the last hour</text>") && !text.contains("<path"), "{text}");
        let mut picture = Picture::new("Requests", Scale::Count, &["a"]);
        picture.push(start, vec![Some(8e6)]);
        picture.push(later, vec![Some(2.0)]);
        let text = drawn(&picture, later);
        assert!(text.contains(">2</text>") && !text.contains(" M</text>"), "{text}");
    }

    #[test]
    fn huge_numbers_have_short_labels() {
        let now = Instant::now();
        for (value, label) in [(8e12, "8 T"), (4e15, "4 P"), (1.8e19, "20 E")] {
            let mut picture = Picture::new("Requests", Scale::Count, &["a"]);
            picture.push(now, vec![Some(value)]);
            assert!(drawn(&picture, now).contains(&format!(">{label}</text>")), "{label}");
        }
    }

    #[test]
    fn samples_of_the_last_hour_are_kept_and_drawn() {
        let start = Instant::now();
        let mut picture = Picture::new("Requests", Scale::Count, &["a"]);
        for sample in 0..1000 {
            picture.push(start + SAMPLE_INTERVAL * sample, vec![Some(f64::from(sample))]);
        }
        assert_eq!(picture.samples.len(), SAMPLES_MAX);
        let text = drawn(&picture, start + SAMPLE_INTERVAL * 999);
        assert_eq!(text.matches('L').count(), SAMPLES_MAX - 1);
        assert!(text.contains(">1 k</text>"), "{text}");
    }

    #[test]
    fn gaps_are_not_bridged() {
        let start = Instant::now();
        let mut picture = Picture::new("Latency", Scale::Time, &["a"]);
        for (at, value) in
            [(0, Some(1e-5)), (10, Some(2e-5)), (20, None), (30, Some(3e-3)), (200, Some(1e-4))]
        {
            picture.push(start + Duration::from_secs(at), vec![value]);
        }
        let text = drawn(&picture, start + Duration::from_secs(200));
        let path = text.split("<path d=\"").nth(1).unwrap().split('"').next().unwrap();
        assert_eq!((path.matches('M').count(), path.matches('L').count()), (3, 1), "{path}");
        assert!(text.contains(">10 µs</text>") && text.contains(">10 ms</text>"), "{text}");
    }

    #[test]
    fn axes_end_at_round_numbers() {
        for (value, end) in [(1.0, 1.0), (1.1, 2.0), (3.0, 4.0), (7999.0, 8000.0), (8001.0, 10_000.0)] {
            assert!((round_up(value) - end).abs() < 1e-6, "{value}");
        }
    }
}
