//! The programs of the tests, and the jobs that run them.

// Each test program takes some of it.
#![allow(dead_code)]

use std::io::{PipeReader, PipeWriter};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;

/// Returns the launcher of jobs.
pub fn launcher() -> String {
    std::env::var("NACRE_MPIRUN").unwrap_or_else(|_| "mpirun".to_owned())
}

/// Returns whether it is that of Open MPI.
pub fn is_open_mpi() -> bool {
    static IS: OnceLock<bool> = OnceLock::new();
    *IS.get_or_init(|| {
        let about = Command::new(launcher()).arg("--version").output().expect("an MPI launcher");
        let about = String::from_utf8_lossy(&about.stdout).into_owned();
        about.contains("Open MPI") || about.contains("OpenRTE")
    })
}

/// Returns the program `nacre`.
pub fn nacre() -> PathBuf {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/debug/nacre");
    let program = std::env::var_os("NACRE_PROGRAM").map_or_else(beside, PathBuf::from);
    assert!(program.is_file(), "there is no {}: \"cargo build -p nacre-cli\" builds it", program.display());
    program
}

/// Returns the library under test, which cargo builds with the tests.
pub fn library() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libnacre_mpiio.so")
}

/// Compiles a program of `programs`, once, and returns it.
pub fn program(name: &str) -> PathBuf {
    program_with(name, &[])
}

/// Compiles a program with flags that stand behind its name, such as those of libraries.
pub fn program_with(name: &str, flags: &[String]) -> PathBuf {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let folder = FOLDER.get_or_init(|| tempfile::tempdir().unwrap()).path();
    let target = folder.join(name.split('.').next().unwrap());
    if !target.exists() {
        let mut compiler = std::env::var("MPICC").unwrap_or_else(|_| "mpicc".to_owned());
        if name.ends_with(".f90") {
            compiler = compiler.replace("mpicc", "mpifort");
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name);
        let mut command = Command::new(&compiler);
        command.args(["-O1", "-pthread"]).arg(source).args(flags).arg("-o").arg(&target);
        let compiled = command.output();
        let compiled = compiled.unwrap_or_else(|error| panic!("cannot run {compiler}: {error}"));
        assert!(
            compiled.status.success(),
            "{compiler} {name}: {}",
            String::from_utf8_lossy(&compiled.stderr)
        );
    }
    target
}

/// Returns the command of a job, with flags of `nacre mpirun` before those of the launcher.
pub fn job(flags: &[&str], ranks: usize, program: &Path, arguments: &[&str]) -> Command {
    job_with(&library(), flags, ranks, program, arguments)
}

/// Returns the command of a job with a library.
pub fn job_with(library: &Path, flags: &[&str], ranks: usize, program: &Path, arguments: &[&str]) -> Command {
    // A job that waits for ever fails.
    let mut command = Command::new("timeout");
    command
        .arg("300")
        .arg(nacre())
        .arg("mpirun")
        .args(["--launcher", &launcher(), "--library"])
        .arg(library)
        .args(flags);
    if !flags.contains(&"--lock-servers") {
        // Longer than a rank that lives stands still.
        command.args(["--lock-lease", "60s"]);
    }
    if is_open_mpi() {
        // More ranks than processors, and by the administrator, as tests are run.
        command.args(["--oversubscribe", "--allow-run-as-root"]);
        command.env("OMPI_MCA_orte_tmpdir_base", session_folder());
    }
    command.arg("-n").arg(ranks.to_string()).arg(program).args(arguments);
    command.stdin(silence()).env_remove("NACRE_STORE");
    command
}

/// Returns a folder for a job of Open MPI alone: jobs that begin and end at once get in each other's way in a common one.
pub fn session_folder() -> PathBuf {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    static JOBS: AtomicUsize = AtomicUsize::new(0);
    let folder = FOLDER.get_or_init(|| tempfile::tempdir().unwrap()).path();
    let folder = folder.join(JOBS.fetch_add(1, Ordering::Relaxed).to_string());
    std::fs::create_dir(&folder).unwrap();
    folder
}

/// Returns an input that does not end, and in which nothing comes. The launcher of MPICH passes the end of its own input on to the first
/// rank, and SIGPIPE kills it if the job has ended before, as a short one may on a busy machine.
pub fn silence() -> Stdio {
    static PIPE: OnceLock<(PipeReader, PipeWriter)> = OnceLock::new();
    let (reader, _) = PIPE.get_or_init(|| std::io::pipe().unwrap());
    reader.try_clone().unwrap().into()
}

/// Returns how a process ended, and what it printed.
pub fn describe(output: &Output) -> String {
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{}\n{out}{error}", output.status)
}

/// Runs a job that has to succeed at servers whose leases are short: again, if a rank stood still for so long that it rightly lost its own.
pub fn succeed_in_time(flags: &[&str], ranks: usize, program: &Path, arguments: &[&str]) -> String {
    for _ in 0..5 {
        let output = job(flags, ranks, program, arguments).output().unwrap();
        if output.status.success() {
            return String::from_utf8(output.stdout).unwrap();
        }
        let text = describe(&output);
        // By its error, or by what the launcher says of a rank that its watchdog has ended.
        let is_late = text.contains("is lost") || text.contains("Killed");
        assert!(is_late, "{} {arguments:?}: {text}", program.display());
    }
    panic!("{} {arguments:?}: five times a rank lost its lease", program.display());
}

/// Runs a job that has to succeed, and returns its output.
pub fn succeed(flags: &[&str], ranks: usize, program: &Path, arguments: &[&str]) -> String {
    let output = job(flags, ranks, program, arguments).output().unwrap();
    assert!(output.status.success(), "{} {arguments:?}: {}", program.display(), describe(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the path of a name in a folder.
pub fn path(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).to_str().unwrap().to_owned()
}
