//! The servers of a study: child processes of the same program, each a `nacre serve` on a store of its own.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use nacre_logstore::{LogStore, Options};
use nacre_object::ObjectStore;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::BenchError;
use crate::machine::cpu_time_of;
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
}

/// Running servers. Dropping it ends their processes and removes their folders.
pub(crate) struct Servers {
    /// How to open all of them as one store.
    pub(crate) uri: String,
    // Dropped first, so that the processes are ended before their folders are removed.
    children: Vec<Child>,
    _folders: Vec<TempDir>,
}

impl Servers {
    /// Starts the servers and waits until all listen.
    pub(crate) async fn start(
        program: &Path,
        plan: ServerPlan,
        parent: Option<&Path>,
    ) -> Result<Self, BenchError> {
        let mut children = Vec::new();
        let mut folders = Vec::new();
        for _ in 0..plan.servers {
            let store = match plan.keep {
                Keep::Volatile => "mem:".to_string(),
                Keep::Always | Keep::None => {
                    let folder = temporary_folder(parent)?;
                    let path: PathBuf = folder.path().join("store");
                    folders.push(folder);
                    format!("file:{}", path.display())
                }
            };
            let mut command = Command::new(program);
            command.args(["serve", "--listen", "127.0.0.1:0", "--store", &store]);
            if plan.keep == Keep::None {
                command.args(["--durability", "none"]);
            }
            if !plan.pacing {
                command.arg("--no-pacing");
            }
            let child = command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .map_err(BenchError::io(format!("start a server with {}", program.display())))?;
            children.push(child);
        }
        let mut addresses = Vec::new();
        for child in &mut children {
            addresses.push(address_of(child).await?);
        }
        Ok(Self { uri: format!("nacre://{}", addresses.join(",")), children, _folders: folders })
    }

    /// The processor time that all of them have used.
    pub(crate) fn cpu_time(&self) -> Duration {
        self.children.iter().filter_map(Child::id).map(cpu_time_of).sum()
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
pub(crate) async fn open(uri: &str) -> Result<Arc<dyn ObjectStore>, BenchError> {
    // The embedded engine is used without the handle around it: what is measured in process is the engine.
    match uri.split_once(':') {
        Some(("mem", _)) => Ok(Arc::new(LogStore::memory(Options::default()))),
        Some(("file", path)) => Ok(Arc::new(LogStore::open(Path::new(path), Options::default())?)),
        _ => {
            let store = nacre::open(uri)?;
            store.connect().await?;
            Ok(Arc::new(store))
        }
    }
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
