//! The arguments of `nacre bench reflect`.

use std::path::PathBuf;
use std::time::Duration;

use nacre_planes::plane::PlaneKind;
use nacre_quantity::parse_time;

use super::counting::{MARK_BYTES, RECEIVERS_MAX};
use super::point::System;
use super::testbed::Device;
use crate::BenchError;
use crate::kit::peer::{in_path, validate_folder};

/// Copy datagrams to groups with each of the reflector's planes, and measure the cost of a copy
///
/// Creates three network namespaces, for the sender, the reflector and the receivers, with veth pairs between them, and
/// removes them at the end. The sender sends as fast as the reflector copies; the receivers are a small kernel program
/// that counts and drops. Every cell shows the copies that arrived, the rate, and the processor time per copy that the
/// reflector causes, without the share of the sender and the receivers. Needs root.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Measure only these planes, separated by commas [default: all]
    #[arg(long, value_delimiter = ',', value_name = "PLANE,…")]
    pub plane: Vec<PlaneKind>,
    /// Also measure this fan-out daemon: its program [default: samplicate, if it is installed]
    #[arg(long, value_name = "PROGRAM")]
    pub samplicate: Option<PathBuf>,
    /// Measure only Nacre's planes
    #[arg(long, conflicts_with = "samplicate")]
    pub no_peer: bool,

    /// Payload of a datagram in bytes
    #[arg(long, value_delimiter = ',', value_name = "N,…", default_values_t = [50, 100, 500, 1000])]
    pub bytes: Vec<usize>,
    /// Number of receivers in the group
    #[arg(long, value_delimiter = ',', value_name = "N,…", default_values_t = [3, 30, 60, 90])]
    pub receivers: Vec<u32>,
    /// Rate of the reflector's device: unlimited, or megabits per second, behind a queue of 100 frames
    #[arg(long, value_delimiter = ',', value_parser = parse_device, value_name = "MBIT,…", default_value = "unlimited")]
    pub device: Vec<Device>,

    /// Measure briefly: once for 100 ms, for a first look
    #[arg(long, help_heading = "Measuring")]
    pub quick: bool,
    /// Duration of each repetition of each cell [default: 300ms]
    #[arg(long, value_parser = parse_time, value_name = "TIME", help_heading = "Measuring")]
    pub window: Option<Duration>,
    /// Number of repetitions of each cell [default: 3]
    #[arg(long, value_name = "N", help_heading = "Measuring")]
    pub repeat: Option<u32>,
    /// Seed of the order of the planes, which differs in each repetition
    #[arg(long, default_value_t = 1, help_heading = "Measuring")]
    pub seed: u64,

    /// Instead, send ten times what each plane can copy to 90 receivers behind three devices, one of them slow, and
    /// check that no admitted datagram is lost
    #[arg(long, group = "study", help_heading = "Results")]
    pub overload: bool,
    /// With --overload, minimum number of copies by each plane
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10_000_000,
        requires = "overload",
        help_heading = "Results"
    )]
    pub copies: u64,
    /// Measure joins instead: 100,000 members in 10,000 groups
    #[arg(long, group = "study", help_heading = "Results")]
    pub joins: bool,
    /// Measure loops of known length instead, to validate the measurement of processor time
    #[arg(long, group = "study", help_heading = "Results")]
    pub validate: bool,
    /// Measure all of these, and compare with Nacre's targets
    #[arg(long, alias = "reach", group = "study", help_heading = "Results")]
    pub targets: bool,
    /// Folder for figures like the paper's, and for a page on how many clients a core can serve
    #[arg(long, value_name = "FOLDER", help_heading = "Results")]
    pub out: Option<PathBuf>,
    /// Write all results, raw and summarised, with the machine's description, to this file as JSON
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub results: Option<PathBuf>,
}

fn parse_device(text: &str) -> Result<Device, String> {
    match text {
        "unlimited" => Ok(Device::Unlimited),
        _ => match text.parse() {
            Ok(mbit) if mbit > 0 => Ok(Device::Limited(mbit)),
            _ => Err(format!("\"{text}\" is no number of megabits, and not unlimited")),
        },
    }
}

impl Args {
    /// Checks the arguments beyond the parser's checks.
    pub(super) fn validate(&self) -> Result<(), BenchError> {
        if let Some(bytes) = self.bytes.iter().find(|bytes| !(MARK_BYTES..=1400).contains(*bytes)) {
            return Err(BenchError::Usage(format!(
                "--bytes {bytes}: a datagram has to have {MARK_BYTES} to 1400 bytes of payload"
            )));
        }
        if let Some(many) = self.receivers.iter().find(|many| !(1..=RECEIVERS_MAX).contains(*many)) {
            return Err(BenchError::Usage(format!(
                "--receivers {many}: a group has to have 1 to {RECEIVERS_MAX} receivers here"
            )));
        }
        validate_folder(self.out.as_deref())
    }

    pub(super) fn window(&self) -> Duration {
        self.window.unwrap_or(Duration::from_millis(if self.quick { 100 } else { 300 }))
    }

    pub(super) fn repetitions(&self) -> u32 {
        self.repeat.unwrap_or(if self.quick { 1 } else { 3 }).max(1)
    }

    /// Returns the requested planes.
    pub(super) fn planes(&self) -> Vec<PlaneKind> {
        match self.plane.as_slice() {
            [] => PlaneKind::ALL.to_vec(),
            planes => planes.to_vec(),
        }
    }

    /// Returns the program of the peer, if it is to be measured and is installed.
    pub(super) fn samplicate(&self) -> Option<PathBuf> {
        let found = self.samplicate.clone().or_else(|| in_path("samplicate"));
        found.filter(|_| !self.no_peer)
    }

    /// Returns the planes and programs to measure.
    pub(super) fn systems(&self) -> Vec<System> {
        let planes = self.planes().into_iter().map(System::Plane);
        planes.chain((!self.no_peer).then_some(System::Samplicate)).collect()
    }
}
