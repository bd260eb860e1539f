//! ZooKeeper: the published lock recipe, and versioned writes.
//!
//! The recipe (Apache ZooKeeper, "Recipes and Solutions", Locks) with the one change that the paper makes to it: the
//! watch on the predecessor is set by `get`, not by `exists`, because the latter leaves a watch behind where the
//! predecessor is already gone.

use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::Bytes;
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions, Error};

use super::{Peer, find_program, version_of};
use crate::BenchError;

const NAME: &str = "zookeeper";
const PACKAGE: &str = "zookeeper";
const JAR: &str = "/usr/share/java/zookeeper.jar";

/// Starts a ZooKeeper server with the settings of its sample configuration, except `maxClientCnxns=0` as in the paper;
/// its administration page is off, because it would take a fixed port.
pub(crate) async fn start(parent: Option<&Path>) -> Result<Peer, BenchError> {
    let jar = PathBuf::from(JAR);
    if !jar.is_file() {
        return Err(BenchError::MissingProgram { program: format!("ZooKeeper ({JAR})"), package: PACKAGE });
    }
    let java = find_program("java", PACKAGE)?;
    let peer = Peer::start(NAME, parent, |folder, port| {
        let settings = format!(
            "tickTime=2000\ninitLimit=10\nsyncLimit=5\ndataDir={}\nclientPort={port}\n\
             clientPortAddress=127.0.0.1\nmaxClientCnxns=0\nadmin.enableServer=false\n",
            folder.join("data").display()
        );
        let settings_path = folder.join("zoo.cfg");
        std::fs::write(&settings_path, settings)
            .map_err(BenchError::io("write the configuration of ZooKeeper"))?;
        let mut command = Command::new(java);
        command.arg("-Dzookeeper.root.logger=WARN,CONSOLE").arg("-Dzookeeper.jmx.log4j.disable=true");
        command.arg("-cp").arg(format!("/etc/zookeeper/conf:{JAR}"));
        command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain").arg(settings_path);
        Ok(command)
    })?;
    peer.wait_until(|address| async move { connect(&address).await.is_ok() }).await
}

/// Returns the version of the package, since the server reports its own only to connected clients.
pub(crate) fn version() -> Option<String> {
    let dpkg = find_program("dpkg-query", "dpkg").ok()?;
    version_of(&dpkg, &["--show", "--showformat=zookeeper ${Version}", PACKAGE])
        .filter(|_| Path::new(JAR).is_file())
}

/// Opens a new session.
pub(crate) async fn connect(address: &str) -> Result<Client, BenchError> {
    Client::connector().with_fail_eagerly().connect(address).await.map_err(failed)
}

fn failed(error: Error) -> BenchError {
    BenchError::peer(NAME, error)
}

fn options(mode: CreateMode) -> CreateOptions<'static> {
    mode.with_acls(Acls::anyone_all())
}

/// Creates a node and its ancestors.
pub(crate) async fn make_node(client: &Client, path: &str) -> Result<(), BenchError> {
    client.mkdir(path, &options(CreateMode::Persistent)).await.map_err(failed)
}

/// A held lock. Dropping it does not release it, because releasing takes a round trip.
pub(crate) struct Held {
    path: String,
}

/// Takes the lock of the node `lock`, waiting for earlier requests.
pub(crate) async fn acquire(client: &Client, lock: &str) -> Result<Held, BenchError> {
    let prefix = format!("{lock}/lock-");
    let create = client.create(&prefix, &[], &options(CreateMode::EphemeralSequential));
    let (_, sequence) = create.await.map_err(failed)?;
    let own = sequence.into_i64();
    loop {
        let children = client.list_children(lock).await.map_err(failed)?;
        let numbers = children.iter().filter_map(|child| child.strip_prefix("lock-")?.parse::<i64>().ok());
        let Some(predecessor) = numbers.filter(|number| *number < own).max() else {
            return Ok(Held { path: format!("{prefix}{own:010}") });
        };
        match client.get_and_watch_data(&format!("{prefix}{predecessor:010}")).await {
            Ok((_, _, watcher)) => {
                watcher.changed().await;
            }
            Err(Error::NoNode) => {}
            Err(error) => return Err(failed(error)),
        }
    }
}

/// Releases a lock.
pub(crate) async fn release(client: &Client, held: Held) -> Result<(), BenchError> {
    client.delete(&held.path, None).await.map_err(failed)
}

/// Returns the data of a node and its version, or `None` where there is no node.
pub(crate) async fn get(client: &Client, path: &str) -> Result<Option<(Bytes, i32)>, BenchError> {
    match client.get_data(path).await {
        Ok((data, stat)) => Ok(Some((data.into(), stat.version))),
        Err(Error::NoNode) => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Replaces the data of a node unless its version changed, or creates the node if there was none; returns whether it
/// did.
pub(crate) async fn set_if_unchanged(
    client: &Client,
    path: &str,
    data: &[u8],
    version: Option<i32>,
) -> Result<bool, BenchError> {
    let result = match version {
        Some(version) => client.set_data(path, data, Some(version)).await.map(|_| ()),
        None => client.create(path, data, &options(CreateMode::Persistent)).await.map(|_| ()),
    };
    match result {
        Ok(()) => Ok(true),
        Err(Error::BadVersion | Error::NodeExists) => Ok(false),
        Err(error) => Err(failed(error)),
    }
}
