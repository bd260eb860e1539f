//! The arguments that all these studies have.

use std::path::PathBuf;

use clap::ValueEnum;
use nacre_quantity::count_parser;

use super::job::Mpi;
use super::system::System;
use crate::BenchError;
use crate::kit::peer::validate_folder;
use crate::locks::ProtocolName;

/// The arguments of a study of MPI-IO.
#[derive(Clone, Debug, clap::Args)]
pub struct SharedArgs {
    /// Ways to write the file, separated by commas [default: all that the study has]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SYSTEM,…")]
    pub(super) systems: Vec<System>,
    /// Protocols of Nacre's locks, separated by commas; they differ with several lock servers only
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PROTOCOL,…", default_value = "one-try")]
    pub(super) protocols: Vec<ProtocolName>,

    /// MPI libraries, separated by commas [default: MPICH and Open MPI, as far as they are installed]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "MPI,…", help_heading = "MPI")]
    pub(super) mpi: Vec<Mpi>,
    /// Nacre's library for the MPI library, if there is only one [default: the one that nacre mpirun finds]
    #[arg(long, value_name = "FILE", help_heading = "MPI")]
    pub(super) library: Option<PathBuf>,
    /// Number of lock servers: one is that of each job, several are started by the study
    #[arg(
        long,
        default_value_t = 1,
        value_name = "N",
        value_parser = count_parser::<u32>(1..=64),
        help_heading = "MPI"
    )]
    pub(super) lock_servers: u32,
    /// Numbers of ranks, separated by commas [default: up to 8]
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "N,…",
        value_parser = count_parser::<u32>(1..=1024),
        help_heading = "MPI"
    )]
    ranks: Vec<u32>,
    /// Folder for the files that are written [default: the folder for temporary files]
    #[arg(long, value_name = "FOLDER", help_heading = "MPI")]
    pub(super) folder: Option<PathBuf>,

    /// Seed of all that is random, and of the bytes of the files
    #[arg(long, default_value_t = 1, value_name = "N", help_heading = "Measuring")]
    pub(super) seed: u64,
    /// Measure less, and once, for a first look
    #[arg(long, help_heading = "Measuring")]
    pub(super) quick: bool,
    /// Number of repetitions of each point [default: 3; with --quick: 1]
    #[arg(long, value_name = "N", value_parser = count_parser::<u32>(1..=1000), help_heading = "Measuring")]
    repeat: Option<u32>,

    /// Folder for the figures
    #[arg(long, value_name = "FOLDER", default_value = ".", help_heading = "Results")]
    pub(super) out: PathBuf,
    /// Write all results, raw and summarised, with the machine's description, to this file as JSON
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub(super) results: Option<PathBuf>,
}

impl SharedArgs {
    /// Checks what can be checked before anything is started.
    pub(super) fn check(&self) -> Result<(), BenchError> {
        validate_folder(self.folder.as_deref())?;
        validate_folder(Some(&self.out))
    }

    /// Returns the systems to measure, out of those that a study has.
    pub(super) fn systems(&self, has: impl Fn(System) -> bool) -> Result<Vec<System>, BenchError> {
        if let Some(unknown) = self.systems.iter().find(|system| !has(**system)) {
            return Err(BenchError::Usage(format!("this study does not have the system {}", unknown.name())));
        }
        Ok(match self.systems.is_empty() {
            true => System::value_variants().iter().copied().filter(|system| has(*system)).collect(),
            false => self.systems.clone(),
        })
    }

    /// Returns the numbers of ranks, which are these unless others were asked for.
    pub(super) fn ranks(&self, default: &[u32]) -> Vec<u32> {
        if self.ranks.is_empty() { default.to_vec() } else { self.ranks.clone() }
    }

    /// Returns the number of repetitions.
    pub(super) fn repetitions(&self) -> u32 {
        self.repeat.unwrap_or(if self.quick { 1 } else { 3 })
    }
}
