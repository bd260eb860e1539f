//! Jobs of `nacre-mpi`, and the measurements of their ranks.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nacre_quantity::Escaped;
use nacre_ranks::{Algorithm, Counters, Traffic};
use nacre_walk::Profile;
use serde::{Deserialize, Serialize};

use crate::BenchError;
use crate::kit::peer::in_path;

/// The arguments for MPI jobs.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "MPI")]
pub struct MpiArgs {
    /// The program nacre-mpi [default: beside this program, or where `make mpi` puts it]
    #[arg(long, value_name = "PROGRAM")]
    pub nacre_mpi: Option<PathBuf>,
    /// The command that starts jobs of the MPI library that it was built with
    #[arg(long, value_name = "COMMAND", default_value = "mpirun")]
    pub mpirun: String,
}

/// The program and the launcher, both found.
#[derive(Clone, Debug)]
pub(super) struct Mpi {
    launcher: Vec<String>,
    program: PathBuf,
    /// The library and its version.
    pub(super) library: String,
}

/// A job to run.
#[derive(Clone, Debug)]
pub(super) struct Job<'a> {
    pub(super) ranks: u32,
    pub(super) algorithm: Algorithm,
    /// The number of threads of each rank; the program's default if `None`.
    pub(super) threads: Option<u32>,
    pub(super) seed: u64,
    pub(super) root: &'a Path,
}

/// The measurements that `nacre-mpi walk --measurements` writes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Measurements {
    pub(super) algorithm: Algorithm,
    pub(super) threads: u32,
    pub(super) ranks: Vec<RankMeasurements>,
}

/// The measurements of one rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RankMeasurements {
    /// The number of entries that it visited.
    pub(super) entries: u64,
    /// The time from the beginning of the walk to its end.
    pub(super) wall_ns: u64,
    /// The processor time of the whole process, including the start of the MPI library.
    pub(super) user_ns: u64,
    pub(super) system_ns: u64,
    /// The processor time of all threads but the communicating one, which also starts the MPI library.
    pub(super) walking_ns: u64,
    /// The time from the beginning of the walk until the rank first had work, or until its end.
    pub(super) first_idle_ns: u64,
    /// The processor time of the rank in this time.
    pub(super) first_idle_processor_ns: u64,
    /// The time from the beginning of the walk until the rank last had work.
    pub(super) worked_until_ns: u64,
    pub(super) resident_bytes_max: u64,
    /// The profile of its walking threads.
    pub(super) profile: Profile,
    /// The time that the communicating thread spent with messages.
    pub(super) communication_ns: u64,
    pub(super) counters: Counters,
    /// The number of bytes that were handed to MPI for each rank.
    pub(super) wire_bytes: Vec<u64>,
}

impl Mpi {
    /// Finds the program and the launcher.
    ///
    /// # Errors
    /// If one of them is missing, or the launcher does not fit the library.
    pub(super) fn find(args: &MpiArgs) -> Result<Self, BenchError> {
        let program = match &args.nacre_mpi {
            Some(program) if program.is_file() => program.clone(),
            Some(program) => {
                return Err(BenchError::Usage(format!("--nacre-mpi: {} is not there", Escaped::of(&program))));
            }
            None => Self::beside().ok_or_else(|| {
                BenchError::Usage(
                    "nacre-mpi is not beside this program; make it with `make mpi` (on Debian: apt-get install \
                     mpich libmpich-dev libclang-dev), or say where it is with --nacre-mpi, or measure without \
                     MPI jobs (--source simulated for figures, --no-mpi for the table)"
                        .into(),
                )
            })?,
        };
        let program = std::path::absolute(&program).map_err(BenchError::io("find the working folder"))?;
        let mut launcher: Vec<String> = args.mpirun.split_whitespace().map(str::to_owned).collect();
        let Some(name) = launcher.first().cloned() else {
            return Err(BenchError::Usage("--mpirun names the command that starts MPI jobs".into()));
        };
        let about = Command::new(&name).arg("--version").stdin(Stdio::null()).output().map_err(|error| {
            BenchError::Usage(format!(
                "cannot start {name} ({error}); --mpirun says how jobs are started (on Debian: apt-get install \
                 mpich, or openmpi-bin)"
            ))
        })?;
        let about = String::from_utf8_lossy(&about.stdout).into_owned();
        let version = |text: &str| {
            text.split_whitespace()
                .find(|word| word.starts_with(|c: char| c.is_ascii_digit()))
                .map(str::to_owned)
        };
        let open = about.contains("Open MPI") || about.contains("OpenRTE");
        let library = match (open, version(&about)) {
            (true, Some(version)) => format!("Open MPI {version}"),
            (true, None) => "Open MPI".into(),
            (false, Some(version)) if about.contains("HYDRA") => format!("MPICH {version}"),
            _ => name,
        };
        if open {
            // It refuses more ranks than processors, and the administrator, unless it is told otherwise.
            launcher.extend(["--oversubscribe".into(), "--allow-run-as-root".into()]);
        }
        Ok(Self { launcher, program, library })
    }

    /// Returns the program where `make mpi` or `cargo` puts it.
    fn beside() -> Option<PathBuf> {
        let own = std::env::current_exe().ok()?;
        let folder = own.parent()?;
        let target = folder.parent()?;
        let places = [
            folder.join("nacre-mpi"),
            target.join("mpi/release/nacre-mpi"),
            PathBuf::from("target/mpi/release/nacre-mpi"),
        ];
        places.into_iter().find(|file| file.is_file()).or_else(|| in_path("nacre-mpi"))
    }

    /// Runs a job to its end, and returns its measurements.
    pub(super) fn walk(&self, job: &Job) -> Result<Measurements, BenchError> {
        let file = tempfile::NamedTempFile::new().map_err(BenchError::io("make a temporary file"))?;
        let mut command = Command::new(&self.launcher[0]);
        command.args(&self.launcher[1..]).arg("-n").arg(job.ranks.to_string()).arg(&self.program);
        command.arg("walk");
        match job.algorithm.has_master() {
            // For studies alone, and not among the algorithms that the program offers.
            true => command.arg("--cp"),
            false => command.args(["--algorithm", job.algorithm.name()]),
        };
        command.args(["--seed", &job.seed.to_string()]);
        if let Some(threads) = job.threads {
            command.args(["--threads", &threads.to_string()]);
        }
        command.args([OsStr::new("--measurements"), file.path().as_os_str(), job.root.as_os_str()]);
        let outcome = crate::kit::usage::run(&mut command, None)?;
        let name = job.algorithm.name();
        if outcome.code != 0 {
            return Err(BenchError::Process(format!(
                "the job of {} ranks with {name} ended with exit code {}: {}",
                job.ranks, outcome.code, outcome.complaint
            )));
        }
        let text = std::fs::read(file.path()).map_err(BenchError::io("read what the ranks measured"))?;
        let measured: Measurements = serde_json::from_slice(&text).map_err(|error| {
            BenchError::Process(format!("what the ranks measured is not what this program knows: {error}"))
        })?;
        if measured.ranks.len() != job.ranks as usize || measured.algorithm != job.algorithm {
            return Err(BenchError::Process(format!(
                "a job of {} ranks had {}: {} does not belong to the MPI library that {} was built with; name the \
                 right one with --mpirun",
                job.ranks,
                measured.ranks.len(),
                self.launcher[0],
                Escaped::of(&self.program)
            )));
        }
        Ok(measured)
    }
}

impl Measurements {
    /// Returns the time from the beginning of the walk until the last rank ended, in seconds.
    pub(super) fn seconds(&self) -> f64 {
        self.ranks.iter().map(|rank| rank.wall_ns).max().unwrap_or(0) as f64 / 1e9
    }

    /// Returns the messages between ranks, by the algorithm's own counters.
    pub(super) fn sent(&self) -> Traffic {
        let mut sent = Traffic::default();
        self.ranks.iter().for_each(|rank| sent.add(rank.counters.sent));
        sent
    }

    /// Returns the number of bytes that were handed to MPI.
    pub(super) fn wire_bytes(&self) -> u64 {
        self.ranks.iter().flat_map(|rank| &rank.wire_bytes).sum()
    }

    /// Returns the number of entries of the busiest rank, over the mean of those that visit.
    pub(super) fn imbalance(&self) -> f64 {
        self.most_to_mean(|rank| rank.entries)
    }

    /// Returns the processor time that the busiest rank spent on its work, over the mean of those that visit.
    pub(super) fn walking_imbalance(&self) -> f64 {
        self.most_to_mean(|rank| rank.walking_ns)
    }

    fn most_to_mean(&self, value: fn(&RankMeasurements) -> u64) -> f64 {
        let values = || self.ranks.iter().map(value);
        let mean = values().sum::<u64>() as f64 / self.visiting().len().max(1) as f64;
        values().max().unwrap_or(0) as f64 / mean.max(1.0)
    }

    /// Returns the time until the last rank had work for the last time, over that of the first one.
    pub(super) fn last_to_first_end(&self) -> f64 {
        let ends = || self.visiting().iter().map(|rank| rank.worked_until_ns);
        let (first, last) = (ends().min().unwrap_or(0), ends().max().unwrap_or(0));
        last.max(1) as f64 / first.max(1) as f64
    }

    /// Returns the ranks that visit entries: all but a master.
    fn visiting(&self) -> &[RankMeasurements] {
        let master = usize::from(self.algorithm.has_master() && self.ranks.len() > 1);
        &self.ranks[master..]
    }

    /// Returns the largest memory of a rank, in bytes.
    pub(super) fn resident_bytes_max(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.resident_bytes_max).max().unwrap_or(0)
    }
}

impl RankMeasurements {
    /// Returns the processor time in nanoseconds.
    pub(super) fn cpu_ns(&self) -> u64 {
        self.user_ns + self.system_ns
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::walk) fn rank(entries: u64, wall_ns: u64, wire_bytes: Vec<u64>) -> RankMeasurements {
        RankMeasurements {
            entries,
            wall_ns,
            user_ns: 3,
            system_ns: 4,
            walking_ns: 100 * entries,
            first_idle_ns: 10_000_000 * entries,
            first_idle_processor_ns: 100_000 * entries,
            worked_until_ns: 1_000 + entries,
            resident_bytes_max: entries,
            profile: Profile::default(),
            communication_ns: 0,
            counters: Counters { sent: Traffic { messages: 2, bytes: 30 }, ..Counters::default() },
            wire_bytes,
        }
    }

    #[test]
    fn a_job_is_summed_up() {
        let ranks = vec![
            rank(0, 5_000_000_000, vec![0, 7, 8]),
            rank(30, 1, vec![1, 0, 0]),
            rank(10, 2, vec![0, 0, 0]),
        ];
        let job = Measurements { algorithm: Algorithm::Cp, threads: 1, ranks };
        assert_eq!(
            (job.seconds(), job.wire_bytes(), job.sent()),
            (5.0, 16, Traffic { messages: 6, bytes: 90 })
        );
        assert_eq!((job.imbalance(), job.resident_bytes_max()), (1.5, 30));
        assert_eq!((job.walking_imbalance(), job.last_to_first_end()), (1.5, 1_030.0 / 1_010.0));
        let job = Measurements { algorithm: Algorithm::Drqs, ..job };
        assert_eq!(job.imbalance(), 30.0 * 3.0 / 40.0);
        assert_eq!((job.walking_imbalance(), job.last_to_first_end()), (30.0 * 3.0 / 40.0, 1.03));
        assert_eq!(job.ranks[0].cpu_ns(), 7);
    }

    /// Returns a launcher that runs a script in place of the ranks.
    fn launcher(folder: &Path, script: &str) -> Mpi {
        use std::os::unix::fs::PermissionsExt;
        let file = folder.join("launcher");
        std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        let launcher = vec![file.to_str().unwrap().to_owned()];
        Mpi { launcher, program: "/bin/true".into(), library: "none".into() }
    }

    #[test]
    fn a_launcher_of_another_library_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let alone = Measurements { algorithm: Algorithm::Drqs, threads: 1, ranks: vec![rank(7, 1, vec![0])] };
        let text = serde_json::to_string(&alone).unwrap();
        // The file's name follows upon the flag.
        let script = format!(
            "until [ \"$1\" = --measurements ]; do words=\"$words $1\"; shift; done\n\
             case \"$words\" in *\"walk --algorithm drqs --seed 3 --threads 1\"*) echo '{text}' >\"$2\";; esac"
        );
        let mpi = launcher(folder.path(), &script);
        let job =
            |ranks| Job { ranks, algorithm: Algorithm::Drqs, threads: Some(1), seed: 3, root: folder.path() };
        assert_eq!(mpi.walk(&job(1)).unwrap().ranks[0].entries, 7);
        let error = mpi.walk(&job(4)).unwrap_err().to_string();
        assert!(error.contains("a job of 4 ranks had 1") && error.contains("--mpirun"), "{error}");
        let failing = launcher(folder.path(), "echo 'no such host' >&2; exit 7");
        let error = failing.walk(&job(2)).unwrap_err().to_string();
        assert!(error.contains("exit code 7") && error.contains("no such host"), "{error}");
    }

    #[test]
    fn what_is_missing_is_told_with_what_to_do() {
        let args = |program: Option<&str>, mpirun: &str| MpiArgs {
            nacre_mpi: program.map(PathBuf::from),
            mpirun: mpirun.into(),
        };
        let refused = |args| Mpi::find(&args).unwrap_err().to_string();
        assert!(refused(args(Some("/nonexistent"), "mpirun")).contains("--nacre-mpi: /nonexistent"));
        assert!(refused(args(Some("/bin/true"), "no-such-mpirun")).contains("--mpirun"));
        assert!(refused(args(Some("/bin/true"), " ")).contains("--mpirun"));
    }
}
