//! MPI jobs: a program in C, compiled for each MPI library, and run by its launcher or by `nacre mpirun`.

use std::ffi::OsString;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nacre_quantity::Escaped;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::arguments::SharedArgs;
use super::system::{Subject, System};
use crate::kit::peer::{find_program, in_path, temporary_folder, version_of};
use crate::kit::server::{ServerPlan, Servers};
use crate::kit::study::runtime;
use crate::{BenchError, Common};

/// The parts that the programs share.
const HEADER: &str = include_str!("../../programs/job.h");

/// The lease of a job's own lock server: longer than a rank may stand still where many share the processors.
const LOCK_LEASE: &str = "60s";

/// The maximum length of what is cited of a failed job's messages, in characters.
const CITED_MAX: usize = 2000;

/// An MPI library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Mpi {
    /// MPICH, whose MPI-IO is ROMIO
    Mpich,
    /// Open MPI, whose MPI-IO is OMPIO
    Openmpi,
}

impl Mpi {
    const ALL: [Mpi; 2] = [Mpi::Mpich, Mpi::Openmpi];

    fn name(self) -> &'static str {
        match self {
            Mpi::Mpich => "mpich",
            Mpi::Openmpi => "openmpi",
        }
    }

    /// Returns its name in tables.
    pub(super) fn title(self) -> &'static str {
        match self {
            Mpi::Mpich => "MPICH",
            Mpi::Openmpi => "Open MPI",
        }
    }

    /// Returns its compiler and its launcher, each with the Debian package that brings it.
    fn programs(self) -> [(String, &'static str); 2] {
        let packages = match self {
            Mpi::Mpich => ["libmpich-dev", "mpich"],
            Mpi::Openmpi => ["libopenmpi-dev", "openmpi-bin"],
        };
        let [compiler, launcher] = packages;
        [(format!("mpicc.{}", self.name()), compiler), (format!("mpirun.{}", self.name()), launcher)]
    }

    fn library(self) -> String {
        format!("libnacre_mpiio_{}.so", self.name())
    }
}

/// An MPI library with the program that was compiled for it.
struct Installed {
    mpi: Mpi,
    launcher: PathBuf,
    program: PathBuf,
    version: Option<String>,
    /// Nacre's library for it, if it was built.
    library: Option<PathBuf>,
}

/// Lock servers of the study.
struct LockServers {
    // Ended before the runtime that watches them.
    servers: Servers,
    _runtime: Runtime,
}

/// The launchers, libraries and servers with which a study runs its jobs.
pub(super) struct Jobs {
    nacre: PathBuf,
    installed: Vec<Installed>,
    servers: Option<LockServers>,
    /// The folder of the compiled programs.
    programs: TempDir,
}

impl Jobs {
    /// Compiles a program for each MPI library, and starts lock servers if there are to be several.
    ///
    /// # Errors
    /// If a program is missing, or the source cannot be compiled.
    pub(super) fn new(
        args: &SharedArgs,
        common: &Common,
        name: &str,
        source: &str,
    ) -> Result<Jobs, BenchError> {
        let nacre = common.nacre()?;
        let is_installed = |mpi: &Mpi| mpi.programs().iter().all(|(program, _)| in_path(program).is_some());
        let wanted = match args.mpi.as_slice() {
            // Without any, the first of them is what is missing.
            [] => match Mpi::ALL.into_iter().filter(is_installed).collect::<Vec<Mpi>>() {
                none if none.is_empty() => vec![Mpi::Mpich],
                some => some,
            },
            named => named.to_vec(),
        };
        if args.library.is_some() && wanted.len() != 1 {
            let text = "--library is for one MPI library: say with --mpi for which";
            return Err(BenchError::Usage(text.to_owned()));
        }
        let programs = temporary_folder(None)?;
        let write = |file: &str, text: &str| {
            let path = programs.path().join(file);
            std::fs::write(&path, text).map_err(BenchError::io(format!("write {}", Escaped::of(&path))))?;
            Ok::<PathBuf, BenchError>(path)
        };
        write("job.h", HEADER)?;
        let source = write(&format!("{name}.c"), source)?;
        let mut installed = Vec::with_capacity(wanted.len());
        for mpi in wanted {
            let [compiler, launcher] =
                mpi.programs().map(|(program, package)| find_program(&program, package));
            let (compiler, launcher) = (compiler?, launcher?);
            let program = programs.path().join(format!("{name}-{}", mpi.name()));
            compile(&compiler, &source, &program)?;
            let library = match &args.library {
                Some(library) if library.is_file() => {
                    Some(std::path::absolute(library).map_err(BenchError::io("find the working folder"))?)
                }
                Some(library) => {
                    let text = format!("--library: {} is not there", Escaped::of(&library));
                    return Err(BenchError::Usage(text));
                }
                None => find_library(&nacre, mpi),
            };
            let version = version_of(&program, &["--library"]);
            installed.push(Installed { mpi, launcher, program, version, library });
        }
        let servers = match args.lock_servers {
            1 => None,
            servers => {
                let runtime = runtime()?;
                let plan = ServerPlan::volatile(servers);
                let servers = runtime.block_on(Servers::start(&nacre, plan, None))?;
                Some(LockServers { servers, _runtime: runtime })
            }
        };
        Ok(Jobs { nacre, installed, servers, programs })
    }

    /// Returns the versions of the MPI libraries.
    pub(super) fn versions(&self) -> Vec<Option<String>> {
        self.installed.iter().map(|installed| installed.version.clone()).collect()
    }

    /// Returns what can be measured of some systems, and sentences about what cannot.
    ///
    /// # Errors
    /// If Nacre's library is missing for every MPI library, or for one that was asked for by its name.
    pub(super) fn subjects(
        &self,
        args: &SharedArgs,
        systems: &[System],
    ) -> Result<(Vec<Subject>, Vec<String>), BenchError> {
        let (mut all, mut missing) = (Vec::new(), Vec::new());
        let is_one_there = self.installed.iter().any(|installed| installed.library.is_some());
        for installed in &self.installed {
            let mut subjects = Subject::all(installed.mpi, systems, &args.protocols);
            let needs_library = subjects.iter().any(|subject| subject.system.preloads());
            if needs_library && installed.library.is_none() {
                let (library, name) = (installed.mpi.library(), installed.mpi.name());
                let sentence = format!("{library} is neither beside nacre nor in ../lib/nacre");
                let advice = format!("\"make mpi MPICC=mpicc.{name}\" builds it");
                if !is_one_there || !args.mpi.is_empty() {
                    return Err(BenchError::Usage(format!("{sentence}; {advice}, --library names another")));
                }
                missing.push(format!("Nacre with {name}: {sentence}; {advice}"));
                subjects.retain(|subject| !subject.system.preloads());
            }
            all.extend(subjects);
        }
        Ok((all, missing))
    }

    /// Runs a job to its end, and returns what its first rank printed. The hints of the subject follow the arguments.
    ///
    /// # Errors
    /// If the job fails, or prints something else.
    pub(super) fn run<T: DeserializeOwned>(
        &self,
        subject: &Subject,
        ranks: u32,
        arguments: &[OsString],
    ) -> Result<T, BenchError> {
        let installed = self.installed.iter().find(|installed| installed.mpi == subject.mpi);
        let unknown =
            || BenchError::Process("a subject belongs to an MPI library that is not there".to_owned());
        let installed = installed.ok_or_else(unknown)?;
        let mut command = match &installed.library {
            Some(library) if subject.system.preloads() => {
                let mut command = Command::new(&self.nacre);
                command
                    .args(["mpirun", "--mpi", installed.mpi.name(), "--launcher"])
                    .arg(&installed.launcher);
                command.arg("--library").arg(library);
                match &self.servers {
                    Some(LockServers { servers, .. }) => command.args(["--lock-servers", &servers.uri]),
                    None => command.args(["--lock-lease", LOCK_LEASE]),
                };
                command
            }
            _ => Command::new(&installed.launcher),
        };
        if installed.mpi == Mpi::Openmpi {
            // It refuses more ranks than processors, and the administrator, unless it is told otherwise. ROMIO is there too.
            command.args(["--oversubscribe", "--allow-run-as-root", "--mca", "io", "ompio"]);
            if processors() < ranks as usize {
                // Otherwise ranks that wait may keep the processors from those that write.
                command.args(["--mca", "mpi_yield_when_idle", "1"]);
            }
        }
        command
            .args(["-n", &ranks.to_string()])
            .arg(&installed.program)
            .args(arguments)
            .args(subject.hints());
        // Neither settings in the folder that the user happens to be in nor servers of theirs are for this job.
        command.current_dir(self.programs.path()).env_remove("NACRE_STORE").stdin(Stdio::null());
        let name = format!("the job of {ranks} ranks with {}", subject.label());
        let output = command.output().map_err(BenchError::io(format!("start {name}")))?;
        let (printed, complaint) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if !output.status.success() {
            let cited: String = complaint.trim().chars().take(CITED_MAX).collect();
            return Err(BenchError::Process(format!("{name} ended with {}: {cited}", output.status)));
        }
        let line = printed.lines().rev().find(|line| line.starts_with('{'));
        let line = line.ok_or_else(|| BenchError::Process(format!("{name} printed no measurements")))?;
        serde_json::from_str(line)
            .map_err(|error| BenchError::Process(format!("{name} printed other measurements: {error}")))
    }
}

/// Returns the number of processors that a job has.
fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Compiles a program.
fn compile(compiler: &Path, source: &Path, program: &Path) -> Result<(), BenchError> {
    let mut command = Command::new(compiler);
    command.args(["-std=gnu99", "-O2"]).arg(source).arg("-o").arg(program).stdin(Stdio::null());
    let output = command.output().map_err(BenchError::io(format!("start {}", Escaped::of(&compiler))))?;
    if output.status.success() {
        return Ok(());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    let cited: String = complaint.trim().chars().take(CITED_MAX).collect();
    Err(BenchError::Process(format!("{} cannot compile the program: {cited}", Escaped::of(&compiler))))
}

/// Finds Nacre's library where `nacre mpirun` does.
fn find_library(nacre: &Path, mpi: Mpi) -> Option<PathBuf> {
    let name = mpi.library();
    let places = [nacre.with_file_name(&name), nacre.with_file_name("../lib/nacre").join(&name)];
    places.into_iter().find(|place| place.is_file())?.canonicalize().ok()
}
