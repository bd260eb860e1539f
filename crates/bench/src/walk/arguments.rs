//! The arguments of `nacre bench walk`.

use std::path::PathBuf;

use nacre_quantity::parse_size;

use super::mpi::MpiArgs;
use super::study::{FigureName, Source};
use super::system::System;
use super::tree::Shape;
use crate::BenchError;

/// Walk a large tree with Nacre, with common tools, and with bare system calls
///
/// Creates a tree from a seed and a shape, or uses an existing one. Runs every program once to warm the caches and to
/// check that it finds everything, then measures them in turn, several times, each as its own process. A tree that was
/// created is removed at the end, unless it is to be kept; an existing one of the same seed and shape is used, and
/// stays. Then measures jobs of nacre-mpi on the same tree, and simulates larger machines.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Measure only these, separated by commas [default: all that are installed or given]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "WHO,…")]
    pub only: Vec<System>,
    /// Number of threads, for programs with such an option
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub threads: usize,
    /// Also measure dwalk: the command that starts it, such as "mpirun -n 2 dwalk"
    #[arg(long, value_name = "COMMAND", help_heading = "Peers")]
    pub dwalk: Option<String>,
    /// Also measure pdu (parallel-disk-usage): its program
    #[arg(long, value_name = "PROGRAM", help_heading = "Peers")]
    pub pdu: Option<PathBuf>,

    /// Jobs of nacre-mpi
    #[command(flatten)]
    pub mpi: MpiArgs,
    /// Skip MPI jobs and the simulation
    #[arg(long, help_heading = "MPI")]
    pub no_mpi: bool,

    /// An existing tree, which is not changed
    #[arg(long, value_name = "FOLDER", conflicts_with = "at", help_heading = "Tree")]
    pub tree: Option<PathBuf>,
    /// The parameters of a new tree
    #[command(flatten)]
    pub make: MakeArgs,
    /// Keep the tree for later runs
    #[arg(long, help_heading = "Tree")]
    pub keep: bool,

    /// Number of repetitions of each [default: 7; with --quick, and for figures: 3]
    #[arg(long, value_name = "N", help_heading = "Measuring")]
    pub repeat: Option<u32>,

    /// Make the paper's figures instead of the table; several separated by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "FIGURE,…", help_heading = "Results")]
    pub figure: Vec<FigureName>,
    /// Source of the figures' runs [default: both, each in figures of its own]
    #[arg(long, value_enum, help_heading = "Results")]
    pub source: Option<Source>,
    /// Instead, simulate CP beside the other algorithms: with equal processes and equal cores, with other message costs
    /// and rates of the file system, and on the whole of the paper's machine; and the balance of a thousand ranks
    #[arg(long, conflicts_with = "runs", help_heading = "Results")]
    pub compare: bool,
    /// Measure nothing, and draw the paper's figures from the runs in this file: earlier results, or one JSON object
    /// per line
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub runs: Vec<PathBuf>,
    /// Folder for the figures
    #[arg(long, value_name = "FOLDER", default_value = ".", help_heading = "Results")]
    pub out: PathBuf,
    /// Write all results, raw and summarised, with the machine's description, to this file as JSON
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub results: Option<PathBuf>,
}

/// Create the tree of the walk study, and keep it
#[derive(Clone, Debug, clap::Args)]
pub struct TreeArgs {
    /// The parameters of the tree
    #[command(flatten)]
    pub make: MakeArgs,
    /// Number of threads that create it
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub threads: usize,
}

/// The place and the parameters of a tree to make.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Tree")]
pub struct MakeArgs {
    /// Folder of the tree [default: in the folder for temporary files]
    #[arg(long, value_name = "FOLDER")]
    pub at: Option<PathBuf>,
    /// Seed of the tree
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Use a tenth of the entries and fewer repetitions, for a first look
    #[arg(long)]
    pub quick: bool,
    /// Directories [default: 20000]
    #[arg(long, value_name = "N")]
    pub directories: Option<u32>,
    /// Maximum directories in one directory
    #[arg(long, default_value_t = 12, value_name = "N")]
    pub fan_out: u32,
    /// Maximum levels of directories
    #[arg(long, default_value_t = 12, value_name = "N")]
    pub depth: u32,
    /// Files in these directories [default: 370000]
    #[arg(long, value_name = "N")]
    pub files: Option<u32>,
    /// Directories with very many files
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub large_directories: u32,
    /// Files in each directory of very many files [default: 100000]
    #[arg(long, value_name = "N")]
    pub large_entries: Option<u32>,
    /// Chains: directories that hold a file and the next directory
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub chains: u32,
    /// Directories in each chain [default: 300]
    #[arg(long, value_name = "N")]
    pub chain_depth: Option<u32>,
    /// Symbolic links [default: 4000]
    #[arg(long, value_name = "N")]
    pub symbolic_links: Option<u32>,
    /// Additional names of files [default: 3600]
    #[arg(long, value_name = "N")]
    pub hard_links: Option<u32>,
    /// Size that all files, which are sparse, are smaller than; a power of two
    #[arg(long, default_value = "4GiB", value_parser = parse_size, value_name = "SIZE")]
    pub file_size: u64,
}

impl MakeArgs {
    /// Returns the shape of the tree.
    ///
    /// # Errors
    /// [`BenchError::Usage`] if the shape is invalid.
    pub(crate) fn shape(&self) -> Result<Shape, BenchError> {
        let default =
            |given: Option<u32>, full: u32| given.unwrap_or(if self.quick { full / 10 } else { full });
        let shape = Shape {
            directories: default(self.directories, 20_000),
            fan_out: self.fan_out,
            depth: self.depth,
            files: default(self.files, 370_000),
            large_directories: self.large_directories,
            large_entries: default(self.large_entries, 100_000),
            chains: self.chains,
            chain_depth: self.chain_depth.unwrap_or(300),
            symbolic_links: default(self.symbolic_links, 4000),
            hard_links: default(self.hard_links, 3600),
            file_bytes_max: self.file_size,
        };
        shape.validate()?;
        Ok(shape)
    }
}

impl Args {
    /// Returns the number of repetitions of each program.
    pub(crate) fn repetitions(&self) -> u32 {
        self.repeat.unwrap_or(if self.make.quick { 3 } else { 7 })
    }

    /// Returns the number of runs of each job of the figures.
    pub(crate) fn figure_repetitions(&self) -> u32 {
        self.repeat.unwrap_or(if self.make.quick { 1 } else { 3 }).max(1)
    }

    /// Returns the requested figures.
    pub(crate) fn figures(&self) -> Vec<FigureName> {
        match self.figure.contains(&FigureName::All) {
            true => FigureName::ALL.to_vec(),
            false => self.figure.clone(),
        }
    }

    /// Returns whether figures from this source were requested.
    pub(crate) fn wants(&self, source: Source) -> bool {
        self.source.is_none_or(|wanted| wanted == source)
    }

    /// Returns the programs to measure, in the order of the table.
    ///
    /// # Errors
    /// [`BenchError::Usage`] if the arguments are inconsistent.
    pub(crate) fn systems(&self) -> Result<Vec<System>, BenchError> {
        let usage = |text: &str| Err(BenchError::Usage(text.into()));
        if self.repetitions() == 0 || self.threads == 0 {
            return usage("repetitions and threads are at least 1 each");
        }
        if self.only.contains(&System::Dwalk) && self.dwalk.is_none() {
            return usage("--dwalk says how to start dwalk");
        }
        if self.only.contains(&System::Pdu) && self.pdu.is_none() {
            return usage("--pdu says where the program is");
        }
        let given = |system| match system {
            System::Dwalk => self.dwalk.is_some(),
            System::Pdu => self.pdu.is_some(),
            _ => true,
        };
        let selected = |system| match self.only.as_slice() {
            [] => given(system),
            only => only.contains(&system),
        };
        Ok(System::ALL.into_iter().filter(|system| selected(*system)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Args {
        crate::kit::parse(words).unwrap()
    }

    #[test]
    fn figures_and_their_source_are_chosen() {
        assert!(crate::kit::parse::<Args>(&["--tree", "a", "--at", "b"]).is_err());
        assert_eq!(parse(&["--figure", "3b,all"]).figures(), FigureName::ALL);
        assert_eq!(parse(&["--figure", "6,1"]).figures(), [FigureName::Six, FigureName::One]);
        let simulated = parse(&["--source", "simulated"]);
        assert!(simulated.wants(Source::Simulated) && !simulated.wants(Source::Measured));
        assert!(parse(&[]).wants(Source::Measured));
    }

    #[test]
    fn without_flags_it_is_the_studys_tree() {
        let shape = parse(&[]).make.shape().unwrap();
        assert_eq!(shape.entries(), 600_002);
        assert_eq!((shape.large_directories, shape.large_entries), (2, 100_000));
        let quick = parse(&["--quick", "--files", "5"]).make.shape().unwrap();
        assert_eq!((quick.directories, quick.files), (2000, 5));
    }

    #[test]
    fn peers_that_are_no_packages_are_given_by_a_flag() {
        let all = parse(&[]).systems().unwrap();
        assert!(!all.contains(&System::Dwalk) && all.contains(&System::Fd));
        assert!(parse(&["--pdu", "/opt/pdu"]).systems().unwrap().contains(&System::Pdu));
        assert!(parse(&["--only", "pdu"]).systems().is_err());
        let some = parse(&["--only", "du,floor"]).systems().unwrap();
        assert_eq!(some, [System::Floor, System::Du]);
        assert!(parse(&["--threads", "0"]).systems().is_err());
    }
}
