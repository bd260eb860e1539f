//! The ways to write a file that the studies compare.

use clap::ValueEnum;
use serde::Serialize;

use super::job::Mpi;
use crate::locks::ProtocolName;

/// A way to write a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// The MPI library alone, without atomic mode
    None,
    /// The same without data sieving, which reads and writes back what is between the pieces (MPICH)
    NoneUnsieved,
    /// The MPI library without atomic mode, with Nacre's library preloaded, which has nothing to do
    Preloaded,
    /// The MPI library's own atomic mode: MPICH locks everything from the first to the last byte; Open MPI locks nothing
    Own,
    /// The same without data sieving (MPICH)
    OwnUnsieved,
    /// Nacre's atomic mode, with a request for each region
    Posix,
    /// Nacre's atomic mode, with a request for 64 regions
    List,
    /// Nacre's atomic mode as it is by default, with a request for each access; small pieces with what is between them
    Datatype,
    /// The same without locks of more than the access, for pieces that are written with the bytes between them
    Exact,
    /// Nacre's atomic mode with locks of blocks of 4 KiB
    #[value(name = "block-4k")]
    #[serde(rename = "block-4k")]
    Block4k,
    /// Nacre's atomic mode with locks of blocks of 64 KiB
    #[value(name = "block-64k")]
    #[serde(rename = "block-64k")]
    Block64k,
    /// Locks of blocks of 4 KiB that are flushed before they are unlocked
    #[value(name = "block-4k-flushed")]
    #[serde(rename = "block-4k-flushed")]
    Block4kFlushed,
    /// Locks of blocks of 64 KiB that are flushed before they are unlocked
    #[value(name = "block-64k-flushed")]
    #[serde(rename = "block-64k-flushed")]
    Block64kFlushed,
    /// A file for each rank, without locks (S3D only)
    Files,
    /// One file of which each rank writes consecutive bytes, without locks (S3D only)
    Slabs,
}

impl System {
    /// Returns the name in tables and legends.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Returns whether the file is locked by Nacre.
    pub(super) fn is_ours(self) -> bool {
        !self.hints_of_ours().is_empty()
    }

    /// Returns whether Nacre's library is preloaded.
    pub(super) fn preloads(self) -> bool {
        self.is_ours() || self == System::Preloaded
    }

    /// Returns whether the file is in atomic mode.
    pub(super) fn is_atomic(self) -> bool {
        self.is_ours() || matches!(self, System::Own | System::OwnUnsieved)
    }

    /// Returns whether the ranks share the file and lock nothing: what atomic writes are compared with.
    pub(super) fn is_without_locks(self) -> bool {
        matches!(self, System::None | System::NoneUnsieved)
    }

    /// Returns whether bytes are locked, not blocks: the methods of the paper whose results the targets are about.
    pub(super) fn is_exact(self) -> bool {
        matches!(self, System::Posix | System::List | System::Datatype | System::Exact)
    }

    /// Returns whether only the study of S3D has it.
    pub(super) fn is_of_s3d(self) -> bool {
        matches!(self, System::Files | System::Slabs)
    }

    /// Returns whether it is measured with an MPI library. Open MPI is there for comparison, and has no sieving to turn off.
    fn is_for(self, mpi: Mpi) -> bool {
        mpi == Mpi::Mpich || matches!(self, System::None | System::Preloaded | System::Own | System::Datatype)
    }

    fn hints_of_ours(self) -> &'static [&'static str] {
        match self {
            System::Posix => &["nacre_lock_method=posix"],
            System::List => &["nacre_lock_method=list"],
            System::Datatype => &["nacre_lock_method=datatype"],
            System::Exact => &["nacre_lock_method=datatype", "nacre_sieve=false"],
            System::Block4k => &["nacre_lock_block=4KiB"],
            System::Block64k => &["nacre_lock_block=64KiB"],
            System::Block4kFlushed => &["nacre_lock_block=4KiB", "nacre_lock_flush=true"],
            System::Block64kFlushed => &["nacre_lock_block=64KiB", "nacre_lock_flush=true"],
            System::None
            | System::NoneUnsieved
            | System::Preloaded
            | System::Own
            | System::OwnUnsieved
            | System::Files
            | System::Slabs => &[],
        }
    }
}

/// A way to write a file with an MPI library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Subject {
    pub(super) mpi: Mpi,
    pub(super) system: System,
    /// The protocol of the locks; `None` where Nacre locks nothing.
    pub(super) protocol: Option<ProtocolName>,
}

impl Subject {
    /// Returns the subjects of some systems with an MPI library, those of Nacre by each protocol.
    pub(super) fn all(mpi: Mpi, systems: &[System], protocols: &[ProtocolName]) -> Vec<Subject> {
        let of = |system: System| -> Vec<Option<ProtocolName>> {
            match system.is_ours() {
                true => protocols.iter().copied().map(Some).collect(),
                false => vec![None],
            }
        };
        let systems = systems.iter().copied().filter(|system| system.is_for(mpi));
        systems
            .flat_map(|system| of(system).into_iter().map(move |protocol| Subject { mpi, system, protocol }))
            .collect()
    }

    /// Returns the name in tables and legends.
    pub(super) fn label(&self) -> String {
        let mpi = if self.mpi == Mpi::Mpich { "" } else { "Open MPI " };
        let protocol = self.protocol.map(|protocol| format!("-{}", protocol.name())).unwrap_or_default();
        format!("{mpi}{}{protocol}", self.system.name())
    }

    /// Returns the hints with which the file is opened, as `HINT=VALUE`.
    pub(super) fn hints(&self) -> Vec<String> {
        let unsieved = matches!(self.system, System::NoneUnsieved | System::OwnUnsieved);
        let sieving = unsieved.then(|| "romio_ds_write=disable".to_owned());
        let ours = self.system.hints_of_ours().iter().map(|hint| (*hint).to_owned());
        let protocol = self.protocol.map(|protocol| format!("nacre_protocol={}", protocol.name()));
        sieving.into_iter().chain(ours).chain(protocol).collect()
    }

    /// Returns the index of its colour, the same in all figures.
    pub(super) fn colour(&self) -> usize {
        let mpi = if self.mpi == Mpi::Mpich { 0 } else { 15 };
        let protocol = self.protocol.map_or(0, |protocol| 30 * protocol as usize);
        self.system as usize + mpi + protocol
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_are_measured_by_each_protocol_and_others_once() {
        let protocols = [ProtocolName::TwoPhase, ProtocolName::OneTry];
        let systems = [System::None, System::OwnUnsieved, System::Block4kFlushed, System::List];
        let labels = |mpi| -> Vec<String> {
            Subject::all(mpi, &systems, &protocols).iter().map(Subject::label).collect()
        };
        let ours =
            ["block-4k-flushed-two-phase", "block-4k-flushed-one-try", "list-two-phase", "list-one-try"];
        assert_eq!(labels(Mpi::Mpich), [&["none", "own-unsieved"][..], &ours[..]].concat());
        assert_eq!(labels(Mpi::Openmpi), ["Open MPI none"]);
        let flushed =
            Subject { mpi: Mpi::Mpich, system: System::Block4kFlushed, protocol: Some(ProtocolName::OneTry) };
        let hints = ["nacre_lock_block=4KiB", "nacre_lock_flush=true", "nacre_protocol=one-try"];
        assert_eq!(flushed.hints(), hints);
        assert!(flushed.system.preloads() && flushed.system.is_atomic() && !flushed.system.is_exact());
        assert!(System::Own.is_atomic() && !System::Own.preloads());
        assert!(System::Preloaded.preloads() && !System::Preloaded.is_atomic());
        assert!(System::NoneUnsieved.is_without_locks() && !System::Slabs.is_without_locks());
    }
}
