//! Jobs of the built program, which tests start, and end. The launcher is that of the MPI that the program was built with,
//! named by `NACRE_MPIRUN` (`mpirun` if it is not set).

use std::io::{PipeReader, PipeWriter};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use tempfile::TempDir;

/// Returns the program that starts jobs, and whether it is that of Open MPI.
fn program() -> (String, bool) {
    let launcher = std::env::var("NACRE_MPIRUN").unwrap_or_else(|_| "mpirun".to_owned());
    let about = Command::new(&launcher).arg("--version").output().unwrap_or_else(|error| {
        panic!("cannot run {launcher}: {error}; install it with `apt-get install mpich` or `openmpi-bin`, or see `make mpi`")
    });
    let about = String::from_utf8_lossy(&about.stdout);
    let is_open_mpi = about.contains("Open MPI") || about.contains("OpenRTE");
    (launcher, is_open_mpi)
}

/// Returns the number of bytes of a job's arguments that every launcher passes on. That of Open MPI puts all of them into one
/// variable, which has at most 128 KiB.
#[allow(dead_code, reason = "one of the two suites passes many")]
pub fn arguments_bytes_max() -> usize {
    if program().1 { 100 << 10 } else { 240 << 10 }
}

/// Returns the command of a job of `ranks`.
pub fn job(ranks: usize, arguments: &[&str]) -> Command {
    let mut command = launcher(ranks);
    command.arg(env!("CARGO_BIN_EXE_nacre-mpi")).args(arguments);
    command
}

/// Returns the command that starts `ranks` processes of the program that is its next argument.
pub fn launcher(ranks: usize) -> Command {
    let (launcher, is_open_mpi) = program();
    let mut command = Command::new(launcher);
    if is_open_mpi {
        // More ranks than processors, and by the administrator, as tests are run.
        command.args(["--oversubscribe", "--allow-run-as-root"]);
        command.env("OMPI_MCA_orte_tmpdir_base", session_folder());
    }
    command.arg("-n").arg(ranks.to_string());
    command.stdin(silence());
    command
}

/// Returns a folder for a job of Open MPI alone: jobs that begin and end at once get in each other's way in a common one.
fn session_folder() -> PathBuf {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    static JOBS: AtomicUsize = AtomicUsize::new(0);
    let folder = FOLDER.get_or_init(|| tempfile::tempdir().unwrap()).path();
    let folder = folder.join(JOBS.fetch_add(1, Ordering::Relaxed).to_string());
    std::fs::create_dir(&folder).unwrap();
    folder
}

/// Returns an input that does not end, and in which nothing comes. The launcher of MPICH passes the end of its own input
/// on to the first rank, and SIGPIPE kills it if the job has ended before, as a short one may on a busy machine.
fn silence() -> Stdio {
    static PIPE: OnceLock<(PipeReader, PipeWriter)> = OnceLock::new();
    let (reader, _) = PIPE.get_or_init(|| std::io::pipe().unwrap());
    reader.try_clone().unwrap().into()
}

/// Runs a job to its end.
pub fn run(ranks: usize, arguments: &[&str]) -> Output {
    job(ranks, arguments).output().unwrap()
}

/// Returns the processes of a job's ranks: those with `argument` in their command lines.
pub fn ranks_with(argument: &str) -> Vec<Pid> {
    let mut found = Vec::new();
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(line) = std::fs::read(process.path().join("cmdline")) else { continue };
        let mut arguments = line.split(|byte| *byte == 0);
        let program = arguments.next().unwrap_or_default();
        if program.ends_with(b"nacre-mpi") && arguments.any(|other| other == argument.as_bytes()) {
            found.extend(Pid::from_raw(pid));
        }
    }
    found
}

/// Waits for a job whose ranks have to end in bounded time. A launcher that outlives them for long is killed: that of
/// Open MPI 4.1 sometimes waits for itself when a rank was killed.
pub fn wait(mut running: Child, mark: &str) -> Output {
    let begun = Instant::now();
    // They may not have been started yet.
    let (mut were_seen, mut alone) = (false, Instant::now());
    while running.try_wait().unwrap().is_none() {
        if ranks_with(mark).is_empty() {
            let patience = Duration::from_secs(if were_seen { 15 } else { 120 });
            if alone.elapsed() > patience {
                running.kill().unwrap();
            }
        } else {
            (were_seen, alone) = (true, Instant::now());
            assert!(begun.elapsed() < Duration::from_secs(240), "the job does not end");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    running.wait_with_output().unwrap()
}
