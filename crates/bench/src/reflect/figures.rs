//! Figures in the manner of the paper's 4 to 9: the processor time of a copy, and the throughput, over the number of
//! receivers, for each size of datagram.

use std::collections::BTreeSet;
use std::path::Path;

use nacre_planes::plane::PlaneKind;

use super::point::{Run, Series, System};
use super::system;
use super::testbed::Device;
use crate::BenchError;
use crate::kit::figure::{self, Drawing, Figure, Line, Scale};

/// Draws the measured cells, and returns the names of the files.
pub(super) fn draw(series: &[Series], machine: &str, folder: &Path) -> Result<Vec<String>, BenchError> {
    let mut files = Vec::new();
    let devices: BTreeSet<Device> = series.iter().map(|series| series.cell.device).collect();
    let sizes: BTreeSet<usize> = series.iter().map(|series| series.cell.bytes).collect();
    for device in devices {
        for &bytes in &sizes {
            let of: Vec<&Series> = series
                .iter()
                .filter(|series| series.cell.device == device && series.cell.bytes == bytes)
                .collect();
            if of.is_empty() {
                continue;
            }
            let name = match device {
                Device::Unlimited => "veth".to_string(),
                Device::Limited(mbit) => format!("{mbit}mbit"),
            };
            let mut write = |kind: &str, figure: &Figure| {
                files.push(figure::write(folder, &format!("{kind}-{name}-{bytes}"), figure.svg())?);
                Ok::<(), BenchError>(())
            };
            if device == Device::Unlimited {
                write("cpu", &cpu(&of, bytes, machine))?;
            }
            write("throughput", &throughput(&of, device, bytes, machine))?;
        }
    }
    Ok(files)
}

/// Draws a figure in the manner of the paper's figures 4, 5, 6 and 9.
fn cpu(series: &[&Series], bytes: usize, machine: &str) -> Figure {
    let note = |who: System| match who {
        // Its frames pass no hook at which copies could be dropped before the receivers have them.
        System::Plane(PlaneKind::Ring) => Some("with receivers"),
        who if who.sends_frames() => Some("with the way over the pair"),
        _ => None,
    };
    let lines = lines(series, &|run| run.copy_ns() * system::ticks_per_ns(), &note);
    Figure::of(
        format!("Processor cycles of a copy, {bytes}-byte datagrams"),
        format!(
            "all that the reflector causes, without senders, and without receivers unless noted; {machine}"
        ),
        ("receivers", Scale::Linear),
        ("cycles", Scale::Decades),
        lines,
    )
}

/// Draws a figure in the manner of the paper's figures 7 and 8.
fn throughput(series: &[&Series], device: Device, bytes: usize, machine: &str) -> Figure {
    let is_limited = device != Device::Unlimited;
    let note = |who: System| (is_limited && who.sends_frames()).then_some("past the device's queue");
    let lines = lines(series, &|run| run.copies_per_s() * 8.0 * bytes as f64 / 1e6, &note);
    let (what, scale) = match device {
        Device::Unlimited => ("veth without a limit".to_string(), Scale::Decades),
        Device::Limited(mbit) => (format!("a device of {mbit} Mbit/s with a queue of 100"), Scale::Linear),
    };
    Figure::of(
        format!("Throughput, {bytes}-byte datagrams, {what}"),
        format!("payload of all copies; {machine}"),
        ("receivers", Scale::Linear),
        ("Mbit/s", scale),
        lines,
    )
}

/// Returns one line for each system, in the order of the series, with a note on it if there is one, and on cells that are
/// not its own work.
fn lines(
    series: &[&Series],
    value: &dyn Fn(&Run) -> f64,
    note: &dyn Fn(System) -> Option<&'static str>,
) -> Vec<Line> {
    let mut lines = figure::lines(
        series,
        |series| series.cell.who.name().to_owned(),
        |series| (f64::from(series.cell.receivers), series.repetitions.iter().map(value).collect()),
        |series| series.cell.who.colour(),
    );
    for line in &mut lines {
        let cells: Vec<&Series> =
            series.iter().copied().filter(|series| series.cell.who.name() == line.name).collect();
        let known = cells.first().and_then(|first| note(first.cell.who)).map(str::to_owned);
        let notes: Vec<String> = known.into_iter().chain(not_its_own(&cells)).collect();
        line.note = (!notes.is_empty()).then(|| notes.join("; "));
    }
    lines
}

/// Returns a note on the numbers of receivers at which another plane made the copies of a line.
fn not_its_own(cells: &[&Series]) -> Option<String> {
    let others: Vec<String> = cells
        .iter()
        .filter(|series| !series.is_own_work())
        .map(|series| series.cell.receivers.to_string())
        .collect();
    match others.len() {
        0 => None,
        all if all == cells.len() => Some("not its own work".into()),
        _ => Some(format!("not its own work at {}", others.join(", "))),
    }
}
