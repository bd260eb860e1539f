//! The simulated receivers: a small program at the ingress hook of their devices, which counts and drops (`count.c` of
//! `nacre-reflect-bpf`), and its counters, which this process shares with it.

use aya::Ebpf;
use aya::maps::Map;
use aya::programs::tc::{self, NlOptions, SchedClassifierLink, TcAttachOptions};
use aya::programs::xdp::{XdpLink, XdpMode};
use aya::programs::{SchedClassifier, TcAttachType, Xdp};

use super::system::Words;
use crate::BenchError;

/// The maximum number of receivers.
pub(super) const RECEIVERS_MAX: u32 = 4096;
const SENDERS: usize = super::testbed::SENDERS_MAX as usize;
const CPUS: usize = 256;
const SEAT_WORDS: usize = 4;
const TOTAL_WORDS: usize = 8;

/// The beginning of every datagram: this number, the sender (32 bits) and the sequence number (64 bits).
pub(super) const MAGIC: u32 = 0x4e42_454e;
/// The size of that beginning, in bytes.
pub(super) const MARK_BYTES: usize = 16;

/// The programs and their counters.
pub(super) struct Counting {
    programs: Ebpf,
    seats: Words,
    totals: Words,
    cpus: Vec<usize>,
}

/// The totals over all receivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Total {
    pub(super) copies: u64,
    /// The payload in bytes.
    pub(super) bytes: u64,
    /// The number of datagrams that no sender of the study sent.
    pub(super) strange: u64,
    /// The number of datagrams dropped by the program that only drops.
    pub(super) dropped: u64,
}

/// The counts of one receiver for one sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seat {
    pub(super) copies: u64,
    /// One more than the greatest sequence number.
    pub(super) next: u64,
    /// The number of sequence numbers that were skipped.
    pub(super) gaps: u64,
    /// The number of copies that came twice, or after one with a greater sequence number.
    pub(super) disorder: u64,
}

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Process(format!("the receivers' program: {error}"))
}

impl Counting {
    /// Loads the programs.
    pub(super) fn load() -> Result<Self, BenchError> {
        let mut programs = Ebpf::load(nacre_reflect_bpf::COUNT.map_err(failed)?).map_err(failed)?;
        for name in ["count", "take", "drop"] {
            classifier(&mut programs, name)?.load().map_err(failed)?;
        }
        driver_program(&mut programs)?.load().map_err(failed)?;
        let words = |name: &str, many| match programs.map(name) {
            Some(Map::Array(map)) => Words::map(map.fd(), many),
            _ => Err(failed(format!("there is no array {name}"))),
        };
        let seats = words("seats", RECEIVERS_MAX as usize * SENDERS * SEAT_WORDS)?;
        let totals = words("totals", CPUS * TOTAL_WORDS)?;
        let cpus = super::system::cpus().into_iter().filter(|cpu| *cpu < CPUS).collect();
        Ok(Self { programs, seats, totals, cpus })
    }

    /// Counts and drops the input of a device of the calling thread's namespace, as long as this lives.
    pub(super) fn count(&mut self, device: &str) -> Result<(), BenchError> {
        classifier(&mut self.programs, "count")?.attach(device, TcAttachType::Ingress).map_err(failed)?;
        Ok(())
    }

    /// Counts the output of a device of the calling thread's namespace, and consumes it as if the device had sent it,
    /// until the returned link is dropped, in the same namespace, and the device's `clsact` is removed.
    pub(super) fn take_at(&mut self, device: &str) -> Result<SchedClassifierLink, BenchError> {
        tc::qdisc_add_clsact(device).map_err(failed)?;
        let program = classifier(&mut self.programs, "take")?;
        let options = TcAttachOptions::Netlink(NlOptions::default());
        let link = program.attach_with_options(device, TcAttachType::Egress, options).map_err(failed)?;
        program.take_link(link).map_err(failed)
    }

    /// Counts frames in the driver of a device of the calling thread's namespace, and drops them there, as long as the
    /// returned link lives.
    pub(super) fn take_frames_at(&mut self, device: &str) -> Result<XdpLink, BenchError> {
        let program = driver_program(&mut self.programs)?;
        let link = program.attach(device, XdpMode::Driver).map_err(failed)?;
        program.take_link(link).map_err(failed)
    }

    /// Drops the input or, with `outwards`, the output of a device, as long as the returned link lives.
    pub(super) fn drop_at(
        &mut self,
        device: &str,
        outwards: bool,
    ) -> Result<SchedClassifierLink, BenchError> {
        let hook = if outwards { TcAttachType::Egress } else { TcAttachType::Ingress };
        let program = classifier(&mut self.programs, "drop")?;
        let link = program.attach(device, hook).map_err(failed)?;
        program.take_link(link).map_err(failed)
    }

    /// Resets the counters.
    pub(super) fn clear(&self) {
        self.seats.clear();
        self.totals.clear();
    }

    /// Returns the number of copies that have arrived.
    #[inline]
    pub(super) fn copies(&self) -> u64 {
        self.cpus.iter().map(|cpu| self.totals.get(cpu * TOTAL_WORDS)).sum()
    }

    /// Returns the totals.
    pub(super) fn total(&self) -> Total {
        let sum =
            |word: usize| self.cpus.iter().map(|cpu| self.totals.get(cpu * TOTAL_WORDS + word)).sum::<u64>();
        Total { copies: sum(0), bytes: sum(1), strange: sum(2), dropped: sum(3) }
    }

    /// Returns the counts of one receiver for one sender.
    pub(super) fn seat(&self, receiver: u32, sender: u32) -> Seat {
        let at = (receiver as usize * SENDERS + sender as usize) * SEAT_WORDS;
        let [copies, next, gaps, disorder] = [0, 1, 2, 3].map(|word| self.seats.get(at + word));
        Seat { copies, next, gaps, disorder }
    }
}

fn classifier<'a>(programs: &'a mut Ebpf, name: &str) -> Result<&'a mut SchedClassifier, BenchError> {
    let program = programs.program_mut(name).ok_or_else(|| failed(format!("there is no program {name}")))?;
    program.try_into().map_err(failed)
}

fn driver_program(programs: &mut Ebpf) -> Result<&mut Xdp, BenchError> {
    let program = programs.program_mut("take_frame");
    program.ok_or_else(|| failed("there is no program take_frame"))?.try_into().map_err(failed)
}
