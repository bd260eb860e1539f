//! The servers of a study: child processes of the same program, each a `nacre serve` on a store of its own.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::BenchError;
use crate::machine::{cpu_time_of, memory_bytes_of};
use crate::peer::temporary_folder;

/// How the servers keep what they are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Keep {
    /// In memory.
    #[default]
    Volatile,
    /// On disk; every write is durable before it is acknowledged.
    Always,
    /// On disk; synced when the system sees fit.
    None,
}

/// What to start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerPlan {
    pub(crate) servers: u32,
    pub(crate) keep: Keep,
    /// Whether the servers pace regions under contention.
    pub(crate) pacing: bool,
    /// Whether the servers count attempts and failures of every region.
    pub(crate) region_statistics: bool,
    /// Log that may gather before the index is written down, where that is not left to the server.
    pub(crate) snapshot_bytes: Option<u64>,
}

/// Running servers. Dropping it ends their processes and removes their folders.
pub(crate) struct Servers {
    /// How to open all of them as one store.
    pub(crate) uri: String,
    program: PathBuf,
    plan: ServerPlan,
    // Dropped before the folders, so that no process is left that writes into them.
    children: Vec<Child>,
    folders: Vec<TempDir>,
}

impl Servers {
    /// Starts the servers and waits until all listen.
    pub(crate) async fn start(
        program: &Path,
        plan: ServerPlan,
        parent: Option<&Path>,
    ) -> Result<Self, BenchError> {
        let mut servers = Self {
            uri: String::new(),
            program: program.to_owned(),
            plan,
            children: Vec::new(),
            folders: Vec::new(),
        };
        for _ in 0..plan.servers {
            servers.folders.push(temporary_folder(parent)?);
        }
        servers.spawn().await?;
        Ok(servers)
    }

    /// Kills the servers, which have no chance to put anything in order, starts them again on what they kept, and
    /// gives the time from then until all listen.
    pub(crate) async fn kill_and_restart(&mut self) -> Result<Duration, BenchError> {
        for mut child in self.children.drain(..) {
            child.kill().await.map_err(BenchError::io("kill a server"))?;
        }
        let begun = Instant::now();
        self.spawn().await?;
        Ok(begun.elapsed())
    }

    async fn spawn(&mut self) -> Result<(), BenchError> {
        for folder in &self.folders {
            let mut command = Command::new(&self.program);
            command.args(["serve", "--listen", "127.0.0.1:0", "--metrics", "none", "--log", "error"]);
            if self.plan.keep == Keep::Volatile {
                command.args(["--store", "mem:"]);
            } else {
                command.arg("--store").arg(format!("file:{}", folder.path().join("store").display()));
            }
            if self.plan.keep == Keep::None {
                command.args(["--durability", "none"]);
            }
            if !self.plan.pacing {
                command.arg("--no-pacing");
            }
            if self.plan.region_statistics {
                command.arg("--region-statistics");
            }
            if let Some(bytes) = self.plan.snapshot_bytes {
                command.args(["--snapshot-bytes", &bytes.to_string()]);
            }
            let child = command
                // Settings in the folder that the user happens to be in are not for these servers.
                .current_dir(folder)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .map_err(BenchError::io(format!("start a server with {}", self.program.display())))?;
            self.children.push(child);
        }
        let mut addresses = Vec::new();
        for child in &mut self.children {
            addresses.push(address_of(child).await?);
        }
        self.uri = format!("nacre://{}", addresses.join(","));
        Ok(())
    }

    /// The processor time that all of them have used.
    pub(crate) fn cpu_time(&self) -> Duration {
        self.children.iter().filter_map(Child::id).map(cpu_time_of).sum()
    }

    /// The memory that all of them hold, apart from pages of files.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.children.iter().filter_map(Child::id).map(memory_bytes_of).sum()
    }
}

/// Reads what a server prints until it says where it listens, and goes on reading so that it never has to wait.
async fn address_of(child: &mut Child) -> Result<String, BenchError> {
    let Some(output) = child.stdout.take() else {
        return Err(BenchError::Process("a server has no standard output".into()));
    };
    let mut lines = BufReader::new(output).lines();
    while let Some(line) = lines.next_line().await.map_err(BenchError::io("listen to a server"))? {
        if let Some(address) = listening_address(&line) {
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return Ok(address);
        }
    }
    Err(BenchError::Process("a server ended before it said where it listens".into()))
}

/// The loopback address in a line, if there is one.
fn listening_address(line: &str) -> Option<String> {
    let address = &line[line.find("127.0.0.1:")?..];
    let end = address.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ':').unwrap_or(address.len());
    Some(address[..end].to_string())
}

/// Opens a store by its address.
pub(crate) async fn open(uri: &str) -> Result<nacre::Store, BenchError> {
    let store = nacre::open(uri)?;
    store.connect().await?;
    Ok(store)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_what_a_server_prints() {
        let found = |line: &str| listening_address(line);
        assert_eq!(found("listening on nacre://127.0.0.1:4711"), Some("127.0.0.1:4711".into()));
        assert_eq!(found("serving at 127.0.0.1:80, store mem:"), Some("127.0.0.1:80".into()));
        assert_eq!(found("opening the store"), None);
    }
}
