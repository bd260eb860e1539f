//! Peers: servers of other projects, measured beside Nacre in the same run.
//!
//! Each is the real server from its Debian package, started by the study as its own process in its own folder on a free
//! port of the loopback interface, and ended by its process id when the study drops it.

pub(crate) mod etcd;
pub(crate) mod nats;
pub(crate) mod ofd;
pub(crate) mod redis;
mod stream;
pub(crate) mod zookeeper;

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nacre_quantity::Escaped;
use tempfile::TempDir;

use crate::BenchError;
use crate::kit::machine::cpu_time_of;

/// The maximum time until a peer accepts connections. A Java server on a busy machine is slow to start.
const START_MAX: Duration = Duration::from_secs(180);

/// A running peer. Dropping it kills its process and removes its folder.
pub(crate) struct Peer {
    name: &'static str,
    child: Child,
    folder: TempDir,
    /// The address that it listens on, as `127.0.0.1:PORT`.
    pub(crate) address: String,
}

impl Peer {
    /// Starts a server. `command` is given its folder and its port, and returns the command to run.
    fn start(
        name: &'static str,
        parent: Option<&Path>,
        command: impl FnOnce(&Path, u16) -> Result<Command, BenchError>,
    ) -> Result<Self, BenchError> {
        let folder = temporary_folder(parent)?;
        let port = free_port()?;
        let log_path = folder.path().join("log");
        let log = File::create(&log_path).map_err(BenchError::io("make a log file for a peer"))?;
        let log_too = log.try_clone().map_err(BenchError::io("open the log file of a peer twice"))?;
        let child = command(folder.path(), port)?
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(log_too)
            .spawn()
            .map_err(BenchError::io(format!("start {name}")))?;
        Ok(Self { name, child, folder, address: format!("127.0.0.1:{port}") })
    }

    /// Waits until the server accepts connections and `probe` returns true.
    async fn wait_until<F: Future<Output = bool>>(
        mut self,
        probe: impl Fn(String) -> F,
    ) -> Result<Self, BenchError> {
        let started = Instant::now();
        loop {
            if probe(self.address.clone()).await {
                return Ok(self);
            }
            let ended = self.child.try_wait().map_err(BenchError::io(format!("watch {}", self.name)))?;
            if let Some(status) = ended {
                let message = format!("ended at once ({status}); its log ends with: {}", self.log_tail());
                return Err(BenchError::peer(self.name, message));
            }
            if started.elapsed() > START_MAX {
                let message =
                    format!("did not answer within {START_MAX:?}; its log ends with: {}", self.log_tail());
                return Err(BenchError::peer(self.name, message));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns the processor time that its process has used.
    pub(crate) fn cpu_time(&self) -> Duration {
        cpu_time_of(self.child.id())
    }

    /// Returns the last lines of its output.
    fn log_tail(&self) -> String {
        let log = std::fs::read(self.folder.path().join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Its folder goes too, so there is nothing that a gentler end would save.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Creates a folder in `parent`, or in the folder for temporary files, that is removed when dropped.
pub(crate) fn temporary_folder(parent: Option<&Path>) -> Result<TempDir, BenchError> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("nacre-bench-");
    match parent {
        Some(parent) => builder
            .tempdir_in(parent)
            .map_err(BenchError::io(format!("make a temporary folder in {}", Escaped::of(&parent)))),
        None => builder.tempdir().map_err(BenchError::io("make a temporary folder")),
    }
}

/// Checks that a folder given by the user exists, before anything is started in it.
pub(crate) fn validate_folder(folder: Option<&Path>) -> Result<(), BenchError> {
    match folder {
        Some(folder) if !folder.is_dir() => {
            Err(BenchError::Usage(format!("{} is not a folder", Escaped::of(&folder))))
        }
        _ => Ok(()),
    }
}

/// Returns a port that nobody listens on. It is not one of those that the system gives to outgoing connections, so none of these
/// takes it before the peer does.
fn free_port() -> Result<u16, BenchError> {
    let mut tried = 0;
    loop {
        let port = rand::random_range(10_000..32_000);
        match TcpListener::bind(("127.0.0.1", port)) {
            Ok(_) => return Ok(port),
            Err(_) if tried < 100 => tried += 1,
            Err(error) => return Err(BenchError::io("find a free port")(error)),
        }
    }
}

/// Finds a program in `PATH`.
pub(crate) fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Finds a program in `PATH`, or in the folders of system programs, which `PATH` may omit.
pub(crate) fn find_program(program: &str, package: &'static str) -> Result<PathBuf, BenchError> {
    let system = ["/usr/sbin", "/usr/local/sbin", "/sbin"].map(|folder| Path::new(folder).join(program));
    in_path(program)
        .or_else(|| system.into_iter().find(|file| file.is_file()))
        .ok_or(BenchError::MissingProgram { program: program.to_string(), package })
}

/// Returns the first line that a program prints when asked for its version.
pub(crate) fn version_of(program: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().ok()?;
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    Some(String::from_utf8_lossy(&text).lines().next()?.trim().to_string())
}
