//! The number of clients of a typical game that a core can serve, as section 6 of the paper computes it: a client's
//! stream is 8 kbit/s in datagrams of 100 bytes.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use nacre_quantity::Escaped;

use super::point::Series;
use super::testbed::Device;
use crate::BenchError;
use crate::kit::figure::distinct;
use crate::kit::quantity::grouped;

const BYTES: usize = 100;
/// The number of datagrams of a client per second.
const PER_CLIENT: f64 = 8000.0 / (8.0 * BYTES as f64);

/// Writes the page, if there are results for it, and returns the name of its file.
pub(super) fn write(series: &[Series], machine: &str, folder: &Path) -> Result<Option<String>, BenchError> {
    let of: Vec<&Series> = series.iter().filter(|series| series.cell.bytes == BYTES).collect();
    if !of.iter().any(|series| series.cell.device == Device::Unlimited) {
        return Ok(None);
    }
    let file = folder.join("CAPACITY.md");
    std::fs::write(&file, page(&of, machine))
        .map_err(BenchError::io(format!("write {}", Escaped::of(&file))))?;
    Ok(Some(Escaped::of(&file).to_string()))
}

fn page(series: &[&Series], machine: &str) -> String {
    let mut text = format!(
        "# Clients per core\n\nA client of a typical game, as the paper takes it, sends 8 kbit/s in datagrams of {BYTES} bytes: \
         {PER_CLIENT:.0} in a second. Written by `nacre bench reflect --out`, from what was measured in one run on: {machine}.\n\n"
    );
    let cpu: Vec<&&Series> = series.iter().filter(|series| series.cell.device == Device::Unlimited).collect();
    let per_s = |series: &Series, each: f64| match series.copy_ns.median {
        ns if ns > 0.0 => grouped(1e9 / (ns * each)),
        _ => "–".into(),
    };
    text += "## Streams that a core can send\n\nThe paper divides what a device can carry by 8 kbit/s: 7,500 clients on Fast Ethernet, 20,000 to \
             30,000 on Gigabit Ethernet. A copy to one member is one datagram of one stream. By processor time, one core:\n\n";
    text += &table(&cpu, |series| per_s(series, PER_CLIENT));
    text += "\n## Clients who all send\n\nIn a group of N + 1 members who all send, each of a client's datagrams is copied N times. One core serves \
             so many clients, in as many groups of that size as it takes:\n\n";
    text += &table(&cpu, |series| per_s(series, PER_CLIENT * f64::from(series.cell.receivers)));
    let limits: BTreeSet<Device> = series.iter().map(|series| series.cell.device).collect();
    for device in limits.into_iter().filter(|device| *device != Device::Unlimited) {
        let of: Vec<&&Series> = series.iter().filter(|series| series.cell.device == device).collect();
        // Writing to a string does not fail.
        let _ = write!(text, "\n## Streams that a device of {device} can carry\n\n");
        text += &table(&of, |series| grouped(series.copies_per_s.median / PER_CLIENT));
        for who in
            distinct(of.iter().map(|series| series.cell.who)).into_iter().filter(|who| who.sends_frames())
        {
            let _ = writeln!(
                text,
                "\nCopies by `{}` go past the queue of the device and its limit: its row is what the processors can do.",
                who.name()
            );
        }
    }
    if series.iter().any(|series| !series.is_own_work()) {
        text += "\n\\* More than a twentieth of the copies were made by another plane.\n";
    }
    text
}

/// Returns a Markdown table with planes as rows and receivers as columns.
fn table(series: &[&&Series], cell: impl Fn(&Series) -> String) -> String {
    let receivers: BTreeSet<u32> = series.iter().map(|series| series.cell.receivers).collect();
    let planes = distinct(series.iter().map(|series| series.cell.who));
    let mut text = String::from("| plane |");
    receivers.iter().for_each(|receivers| text += &format!(" {receivers} receivers |"));
    text += "\n|---|";
    receivers.iter().for_each(|_| text += "---:|");
    text += "\n";
    for plane in planes {
        text += &format!("| `{}` |", plane.name());
        for &receivers in &receivers {
            let found =
                series.iter().find(|series| series.cell.who == plane && series.cell.receivers == receivers);
            text += &found.map_or(" – |".into(), |series| {
                let mark = if series.is_own_work() { "" } else { " \\*" };
                format!(" {}{mark} |", cell(series))
            });
        }
        text += "\n";
    }
    text
}
