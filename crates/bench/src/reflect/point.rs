//! The measured cells and their results.

use nacre_planes::plane::PlaneKind;
use serde::{Deserialize, Serialize};

use super::serve::Counted;
use super::testbed::Device;
use crate::kit::Spread;

/// A program or plane that copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum System {
    /// One of Nacre's planes.
    Plane(PlaneKind),
    /// The fan-out daemon `samplicate`.
    Samplicate,
}

impl System {
    /// Returns the name in tables, figures and results.
    pub(super) fn name(self) -> &'static str {
        match self {
            System::Plane(kind) => kind.name(),
            System::Samplicate => "samplicate",
        }
    }

    /// Returns whether its copies go from driver to driver, past the network stack.
    pub(super) fn sends_frames(self) -> bool {
        self == System::Plane(PlaneKind::Xdp)
    }

    /// Returns the number of copies that another made than the one that the plane is named after; those of a system
    /// that does not count them are its own.
    pub(super) fn copies_by_others(self, counted: &Counted) -> u64 {
        let System::Plane(kind) = self else { return 0 };
        let own = match kind {
            PlaneKind::Xdp => counted.copy_counts[0],
            PlaneKind::Kernel => counted.copy_counts[1],
            PlaneKind::Ring => counted.copy_counts[2],
            PlaneKind::Sendto | PlaneKind::Batch => counted.copy_counts[3],
        };
        counted.copy_counts.iter().sum::<u64>() - own
    }

    /// Returns the index of its colour.
    pub(super) fn colour(self) -> usize {
        match self {
            System::Plane(kind) => PlaneKind::ALL.iter().position(|other| *other == kind).unwrap_or(0),
            System::Samplicate => 6,
        }
    }
}

impl Serialize for System {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for System {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        match name.as_str() {
            "samplicate" => Ok(System::Samplicate),
            name => name.parse().map(System::Plane).map_err(serde::de::Error::custom),
        }
    }
}

/// A cell of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) who: System,
    pub(super) device: Device,
    /// The payload of each datagram, in bytes.
    pub(super) bytes: usize,
    pub(super) receivers: u32,
}

/// Processor time in nanoseconds, measured in two ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Cost {
    /// The time that the processors were not idle, by the probe.
    pub(super) probe_ns: f64,
    /// The time that the system accounts to the sender (without its waiting), to the reflector's thread and to the
    /// kernel threads for work after interrupts. Such work that interrupted another process is not included; nor is any
    /// work of another process.
    pub(super) task_ns: f64,
}

impl Cost {
    /// Returns the cost of one of `many`.
    pub(super) fn each(self, many: f64) -> Self {
        Self { probe_ns: self.probe_ns / many, task_ns: self.task_ns / many }
    }

    /// Returns the difference to another cost.
    pub(super) fn beyond(self, other: Self) -> Self {
        Self { probe_ns: self.probe_ns - other.probe_ns, task_ns: self.task_ns - other.task_ns }
    }
}

/// The results of one repetition of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Run {
    /// The number of datagrams that the sender sent.
    pub(super) datagrams: u64,
    /// The numbers of copies that should have arrived, and that did.
    pub(super) copies_due: u64,
    pub(super) copies: u64,
    /// The number of copies that came twice, or after one that was sent later.
    pub(super) disorder: u64,
    /// The time from the first datagram to the arrival of the last copy.
    pub(super) seconds: f64,
    /// The processor time of each copy: the sender's, the reflector's and the receivers'.
    pub(super) busy: Cost,
    /// The sender's share of it: that of equal datagrams at an equal rate, dropped where the reflector would get them.
    pub(super) sender: Cost,
    /// The receivers' share of it: the increase over a run without receivers.
    pub(super) receiver: Cost,
    /// The processor time of each copy as in `busy`, but with receivers that are a program in the driver of their device,
    /// which counts and drops.
    pub(super) dropped: Cost,
    /// The counters of the forwarder.
    pub(super) counted: Option<Counted>,
}

impl Run {
    /// Returns the reflector's cost of a copy by the probe, in nanoseconds.
    pub(super) fn copy_ns(&self) -> f64 {
        self.cost().probe_ns
    }

    /// Returns the reflector's cost of a copy by the system's accounting, in nanoseconds.
    pub(super) fn copy_task_ns(&self) -> f64 {
        self.cost().task_ns
    }

    fn cost(&self) -> Cost {
        self.busy.beyond(self.sender).beyond(self.receiver)
    }

    /// Returns the cost of a copy including the receivers' share, in nanoseconds.
    pub(super) fn copy_received_ns(&self) -> f64 {
        self.busy.beyond(self.sender).probe_ns
    }

    /// Returns the cost of a copy including the share of receivers in the driver, in nanoseconds.
    pub(super) fn copy_dropped_ns(&self) -> f64 {
        self.dropped.beyond(self.sender).probe_ns
    }

    pub(super) fn copies_per_s(&self) -> f64 {
        self.copies as f64 / self.seconds
    }

    /// Returns the number of copies that were due and did not arrive.
    pub(super) fn lost(&self) -> u64 {
        self.copies_due.saturating_sub(self.copies)
    }
}

/// Returns whether copies are a plane's own work: at most a twentieth of them may be others'.
pub(super) fn is_own_work(by_others: u64, copies: u64) -> bool {
    by_others * 20 <= copies
}

/// A cell with its repetitions.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Series {
    pub(super) cell: Cell,
    /// The processor time of a copy, without the sender's and the receivers' share.
    pub(super) copy_ns: Spread,
    /// The processor time by the system's accounting: to compare, and for machines that are not quiet.
    pub(super) copy_task_ns: Spread,
    /// The time by the probe, in cycles of the processor's clock.
    pub(super) copy_cycles: Spread,
    /// The processor time of a copy, including the receivers' share.
    pub(super) copy_received_ns: Spread,
    /// The same with receivers in the driver of their device.
    pub(super) copy_dropped_ns: Spread,
    pub(super) copies_per_s: Spread,
    /// The rate of payload in copies.
    pub(super) megabits_per_s: Spread,
    /// The number of copies that were due and did not arrive, over all repetitions.
    pub(super) lost: u64,
    pub(super) disorder: u64,
    /// The number of copies that another made than the one that the plane is named after.
    pub(super) by_others: u64,
    pub(super) repetitions: Vec<Run>,
}

impl Series {
    /// Returns whether what was measured is the plane's own work.
    pub(super) fn is_own_work(&self) -> bool {
        is_own_work(self.by_others, self.repetitions.iter().map(|run| run.copies).sum())
    }
}

impl crate::kit::study::Series for Series {
    /// A cell, and the number of cycles of the processor's clock per nanosecond.
    type Subject = (Cell, f64);
    type Measurement = Run;

    fn of(&(cell, cycles_per_ns): &(Cell, f64), repetitions: Vec<Run>) -> Self {
        let spread = |value: &dyn Fn(&Run) -> f64| Spread::of(repetitions.iter().map(value));
        let bits = 8.0 * cell.bytes as f64;
        let counted = repetitions.iter().filter_map(|run| run.counted.as_ref());
        Self {
            cell,
            copy_ns: spread(&Run::copy_ns),
            copy_task_ns: spread(&Run::copy_task_ns),
            copy_cycles: spread(&|run| cycles_per_ns * run.copy_ns()),
            copy_received_ns: spread(&Run::copy_received_ns),
            copy_dropped_ns: spread(&Run::copy_dropped_ns),
            copies_per_s: spread(&Run::copies_per_s),
            megabits_per_s: spread(&|run| run.copies_per_s() * bits / 1e6),
            lost: repetitions.iter().map(Run::lost).sum(),
            disorder: repetitions.iter().map(|run| run.disorder).sum(),
            by_others: counted.map(|counted| cell.who.copies_by_others(counted)).sum(),
            repetitions,
        }
    }

    fn into_repetitions(self) -> Vec<Run> {
        self.repetitions
    }
}

/// A system that does not work here, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Absent {
    pub(super) who: System,
    pub(super) why: String,
}
