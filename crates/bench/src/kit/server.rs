//! The servers of a study: child processes, each a `nacre serve` with its own store.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use nacre_quantity::Escaped;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::BenchError;
use crate::kit::machine::{cpu_time_of, memory_bytes_of};
use crate::kit::peer::{Peer, temporary_folder};

/// The durability of the servers' stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// In memory.
    #[default]
    Volatile,
    /// On disk; every write is durable before it is acknowledged.
    Always,
    /// On disk; synced when the system chooses.
    None,
}

/// The servers to start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerPlan {
    pub(crate) servers: u32,
    pub(crate) durability: Durability,
    /// Enables pacing of regions under contention.
    pub(crate) pacing: bool,
    /// Enables counting of attempts and failures of every region.
    pub(crate) region_statistics: bool,
    /// The size of the log in bytes after which a snapshot of the index is written; if `None`, the server's default.
    pub(crate) snapshot_bytes: Option<u64>,
    /// Keeps every region of a lock singly, instead of the pattern's description.
    pub(crate) unrolled_locks: bool,
}

impl ServerPlan {
    /// Returns the plan of servers that keep their objects in memory, with the default settings.
    pub(crate) fn volatile(servers: u32) -> Self {
        Self {
            servers,
            durability: Durability::Volatile,
            pacing: true,
            region_statistics: false,
            snapshot_bytes: None,
            unrolled_locks: false,
        }
    }
}

/// Running servers. Dropping it kills their processes and removes their folders.
pub(crate) struct Servers {
    /// The URI that opens all of them as one store.
    pub(crate) uri: String,
    program: PathBuf,
    plan: ServerPlan,
    addresses: Vec<String>,
    // Dropped before the folders, so that no process is left that writes into them.
    children: Vec<Child>,
    folders: Vec<TempDir>,
}

impl Servers {
    /// Starts the servers and waits until all listen.
    ///
    /// # Errors
    /// If a server cannot be started or ends early.
    pub(crate) async fn start(
        program: &Path,
        plan: ServerPlan,
        parent: Option<&Path>,
    ) -> Result<Self, BenchError> {
        let mut servers = Self {
            uri: String::new(),
            program: program.to_owned(),
            plan,
            addresses: (0..plan.servers).map(|_| address()).collect(),
            children: Vec::new(),
            folders: Vec::new(),
        };
        for _ in 0..plan.servers {
            servers.folders.push(temporary_folder(parent)?);
        }
        servers.spawn().await?;
        Ok(servers)
    }

    /// Kills the servers without a chance to clean up, restarts them on their stores, and returns the time from the
    /// restart until all listen.
    pub(crate) async fn kill_and_restart(&mut self) -> Result<Duration, BenchError> {
        for mut child in self.children.drain(..) {
            child.kill().await.map_err(BenchError::io("kill a server"))?;
        }
        let begun = Instant::now();
        self.spawn().await?;
        Ok(begun.elapsed())
    }

    async fn spawn(&mut self) -> Result<(), BenchError> {
        for (folder, address) in self.folders.iter().zip(&self.addresses) {
            let mut command = Command::new(&self.program);
            // Plain TCP, as the peers talk it, on loopback.
            command.args(["serve", "--listen", address, "--open", "--metrics", "none", "--log", "error"]);
            if self.plan.servers > 1 {
                command.args(["--members", &self.addresses.join(",")]);
            }
            if self.plan.durability == Durability::Volatile {
                command.args(["--store", "mem:"]);
            } else {
                command.arg("--store").arg(format!("file:{}", folder.path().join("store").display()));
            }
            if self.plan.durability == Durability::None {
                command.args(["--durability", "none"]);
            }
            if !self.plan.pacing {
                command.arg("--no-pacing");
            }
            if self.plan.region_statistics {
                command.arg("--region-statistics");
            }
            if self.plan.unrolled_locks {
                command.args(["--lock-table", "unrolled"]);
            }
            if let Some(bytes) =
                self.plan.snapshot_bytes.filter(|_| self.plan.durability != Durability::Volatile)
            {
                command.args(["--snapshot-bytes", &bytes.to_string()]);
            }
            let child = command
                // Settings in the folder that the user happens to be in are not for these servers.
                .current_dir(folder)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .map_err(BenchError::io(format!("start a server with {}", Escaped::of(&self.program))))?;
            self.children.push(child);
        }
        for child in &mut self.children {
            until_listening(child).await?;
        }
        self.uri = format!("nacre://{}", self.addresses.join(","));
        Ok(())
    }

    /// Returns the processor time that all servers have used.
    pub(crate) fn cpu_time(&self) -> Duration {
        self.children.iter().filter_map(Child::id).map(cpu_time_of).sum()
    }

    /// Returns the memory that all servers hold, apart from pages of files, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.children.iter().filter_map(Child::id).map(memory_bytes_of).sum()
    }

    /// Returns the space that the files of all servers take on the disk, in bytes.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.folders.iter().map(|folder| disk_bytes_of(folder.path())).sum()
    }
}

/// Returns the space that the files below a folder take on the disk; what is gone meanwhile does not count.
fn disk_bytes_of(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let sizes = entries.flatten().filter_map(|entry| {
        let metadata = entry.metadata().ok()?;
        // The system counts in blocks of 512 bytes, whatever those of the file system are.
        Some(if metadata.is_dir() { disk_bytes_of(&entry.path()) } else { metadata.blocks() * 512 })
    });
    sizes.sum()
}

/// The servers of a measurement, Nacre's or a peer's, which end when this is dropped.
pub(crate) enum Deployed {
    Nacre(Servers),
    Peer(Peer),
}

impl Deployed {
    /// Returns the address that clients are given.
    pub(crate) fn address(&self) -> &str {
        match self {
            Self::Nacre(servers) => &servers.uri,
            Self::Peer(peer) => &peer.address,
        }
    }

    /// Returns the processor time that the servers have used.
    pub(crate) fn cpu_time(&self) -> Duration {
        match self {
            Self::Nacre(servers) => servers.cpu_time(),
            Self::Peer(peer) => peer.cpu_time(),
        }
    }
}

/// A running server with roles of its own choice. Dropping it kills its process.
pub(crate) struct Daemon {
    /// The URI that opens what it serves.
    pub(crate) uri: String,
    child: Child,
}

impl Daemon {
    /// Starts a server with further arguments, and waits until it listens.
    ///
    /// # Errors
    /// If it cannot be started or ends early.
    pub(crate) async fn start(program: &Path, words: &[&str]) -> Result<Daemon, BenchError> {
        let address = address();
        let child = Command::new(program)
            .args(["serve", "--listen", &address, "--open", "--metrics", "none", "--log", "error"])
            .args(words)
            .current_dir(std::env::temp_dir())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(BenchError::io(format!("start a server with {}", Escaped::of(&program))))?;
        let mut daemon = Daemon { uri: format!("nacre://{address}"), child };
        until_listening(&mut daemon.child).await?;
        Ok(daemon)
    }

    /// Returns the id of its process, unless it has ended.
    pub(crate) fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Returns the processor time that it has used.
    pub(crate) fn cpu_time(&self) -> Duration {
        self.child.id().map_or(Duration::ZERO, cpu_time_of)
    }

    /// Kills it without a chance to clean up.
    ///
    /// # Errors
    /// If it cannot be killed.
    pub(crate) async fn kill(&mut self) -> Result<(), BenchError> {
        self.child.kill().await.map_err(BenchError::io("kill a server"))
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// If it has ended.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), BenchError> {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(pid as i32));
        let pid = pid.ok_or_else(|| BenchError::Process("a server has ended early".into()))?;
        kill_process(pid, signal).map_err(|error| BenchError::io("send a server a signal")(error.into()))
    }
}

/// Returns a loopback address that no other process uses: the host depends on this process's id, and the port is used
/// once. So servers can be given each other's addresses before they listen.
fn address() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(10_000);
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let port = NEXT.fetch_add(1, Ordering::Relaxed);
    // Not 127.0.0.1, where the system chooses ports for others, whatever the number of the process.
    format!("127.{}.{middle}.{low}:{port}", 128 | high)
}

/// Reads a server's output until it reports that it listens, and keeps reading so that the server never blocks on it.
async fn until_listening(child: &mut Child) -> Result<(), BenchError> {
    let Some(output) = child.stdout.take() else {
        return Err(BenchError::Process("a server has no standard output".into()));
    };
    let mut lines = BufReader::new(output).lines();
    while let Some(line) = lines.next_line().await.map_err(BenchError::io("listen to a server"))? {
        if line.starts_with("listening on ") {
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return Ok(());
        }
    }
    Err(BenchError::Process("a server ended before it said that it listens".into()))
}

/// Opens a store by its URI, creating it if it is a folder.
pub(crate) async fn open(uri: &str) -> Result<nacre::Store, BenchError> {
    let mut uri: nacre::Uri = uri.parse()?;
    if let nacre::Engine::Folder(_) = &uri.engine {
        // A study writes: it begins in a folder of its own.
        uri.options.create.get_or_insert(true);
    }
    let store = nacre::Store::open(&uri)?;
    store.connect().await?;
    Ok(store)
}
