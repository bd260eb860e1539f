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
    /// Time that all processors were busy, for each copy: with the sender, the reflector and the receivers.
    pub(super) busy_ns: f64,
    /// Of this, the sender's share: the same datagrams at the same rate, dropped where the reflector would get them.
    pub(super) sender_ns: f64,
    /// Of this, the receivers' share: what it is more than without receivers, or, for frames that a driver sends, what
    /// receivers alone take.
    pub(super) receiver_ns: f64,
    /// Time that the reflector's thread ran, with the interrupts that hit it, for each copy.
    pub(super) process_ns: f64,
    /// What the forwarder counted.
    pub(super) counted: Option<Counted>,
}

impl Run {
    /// What a copy costs the reflector.
    pub(super) fn copy_ns(&self) -> f64 {
        self.busy_ns - self.sender_ns - self.receiver_ns
    }

    /// With what a receiver takes.
    pub(super) fn copy_received_ns(&self) -> f64 {
        self.busy_ns - self.sender_ns
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
    /// The same in cycles of the processor's clock.
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
