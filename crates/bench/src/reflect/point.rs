//! What is measured, and what came of it.

use nacre_reflect::plane::Kind;
use serde::{Deserialize, Serialize};

use super::serve::Counted;
use super::stage::Device;
use crate::Spread;

/// Who copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Contender {
    /// One of Nacre's planes.
    Plane(Kind),
    /// The fan-out daemon of that name.
    Samplicate,
}

impl Contender {
    /// Its name in tables, figures and results.
    pub(super) fn name(self) -> &'static str {
        match self {
            Contender::Plane(kind) => kind.name(),
            Contender::Samplicate => "samplicate",
        }
    }

    /// True if its copies go from driver to driver, past the network's stack.
    pub(super) fn sends_frames(self) -> bool {
        self == Contender::Plane(Kind::Xdp)
    }

    /// The number of its colour.
    pub(super) fn colour(self) -> usize {
        match self {
            Contender::Plane(kind) => Kind::ALL.iter().position(|other| *other == kind).unwrap_or(0),
            Contender::Samplicate => 6,
        }
    }
}

impl Serialize for Contender {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Contender {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        match name.as_str() {
            "samplicate" => Ok(Contender::Samplicate),
            name => name.parse().map(Contender::Plane).map_err(serde::de::Error::custom),
        }
    }
}

/// One cell of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) who: Contender,
    pub(super) device: Device,
    /// Of payload, of each datagram.
    pub(super) bytes: usize,
    pub(super) receivers: u32,
}

/// Processor time, counted in two ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Cost {
    /// What was not idle on any processor, by the probe.
    pub(super) probe_ns: f64,
    /// What the system booked to the sender (but for its waiting), to the reflector's thread and to the kernel's threads
    /// for work after interrupts. Such work that hit another process is not in it; nor is anything that another process did.
    pub(super) task_ns: f64,
}

impl Cost {
    /// The cost of one of many.
    pub(super) fn each(self, many: f64) -> Self {
        Self { probe_ns: self.probe_ns / many, task_ns: self.task_ns / many }
    }

    /// What is more here than there.
    pub(super) fn beyond(self, other: Self) -> Self {
        Self { probe_ns: self.probe_ns - other.probe_ns, task_ns: self.task_ns - other.task_ns }
    }
}

/// One repetition of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Run {
    /// Datagrams that the sender sent.
    pub(super) datagrams: u64,
    /// Copies that should have arrived, and that did.
    pub(super) copies_due: u64,
    pub(super) copies: u64,
    /// Copies that came twice, or after one that was sent later.
    pub(super) disorder: u64,
    /// From the first datagram to the arrival of the last copy.
    pub(super) seconds: f64,
    /// Processor time of each copy: the sender's, the reflector's and the receivers'.
    pub(super) busy: Cost,
    /// Of this, the sender's share: the same datagrams at the same rate, dropped where the reflector would get them.
    pub(super) sender: Cost,
    /// Of this, the receivers' share: what it is more than without receivers.
    pub(super) receiver: Cost,
    /// What the forwarder counted.
    pub(super) counted: Option<Counted>,
}

impl Run {
    /// What a copy costs the reflector.
    pub(super) fn copy_ns(&self) -> f64 {
        self.cost().probe_ns
    }

    /// The same by the other way to count.
    pub(super) fn copy_task_ns(&self) -> f64 {
        self.cost().task_ns
    }

    fn cost(&self) -> Cost {
        self.busy.beyond(self.sender).beyond(self.receiver)
    }

    /// With what a receiver takes.
    pub(super) fn copy_received_ns(&self) -> f64 {
        self.busy.beyond(self.sender).probe_ns
    }

    pub(super) fn copies_per_s(&self) -> f64 {
        self.copies as f64 / self.seconds
    }

    /// Copies that were due and did not arrive.
    pub(super) fn lost(&self) -> u64 {
        self.copies_due.saturating_sub(self.copies)
    }
}

/// A cell with its repetitions.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Series {
    pub(super) cell: Cell,
    /// Processor time of a copy, without the sender's and the receivers' share.
    pub(super) copy_ns: Spread,
    /// The same as the system books it: to compare, and for machines that are not quiet.
    pub(super) copy_task_ns: Spread,
    /// The first in cycles of the processor's clock.
    pub(super) copy_cycles: Spread,
    /// With the receivers' share.
    pub(super) copy_received_ns: Spread,
    pub(super) copies_per_s: Spread,
    /// Of payload.
    pub(super) megabits_per_s: Spread,
    /// Copies that were due and did not arrive, all repetitions together.
    pub(super) lost: u64,
    pub(super) disorder: u64,
    pub(super) repetitions: Vec<Run>,
}

impl Series {
    /// Of repetitions.
    pub(super) fn of(cell: Cell, repetitions: Vec<Run>, cycles_per_ns: f64) -> Self {
        let spread = |value: &dyn Fn(&Run) -> f64| Spread::of(repetitions.iter().map(value));
        let bits = 8.0 * cell.bytes as f64;
        Self {
            cell,
            copy_ns: spread(&Run::copy_ns),
            copy_task_ns: spread(&Run::copy_task_ns),
            copy_cycles: spread(&|run| cycles_per_ns * run.copy_ns()),
            copy_received_ns: spread(&Run::copy_received_ns),
            copies_per_s: spread(&Run::copies_per_s),
            megabits_per_s: spread(&|run| run.copies_per_s() * bits / 1e6),
            lost: repetitions.iter().map(Run::lost).sum(),
            disorder: repetitions.iter().map(|run| run.disorder).sum(),
            repetitions,
        }
    }
}

/// A contender that does not work here, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Absent {
    pub(super) who: Contender,
    pub(super) why: String,
}
