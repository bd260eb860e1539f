//! The one place that knows every way of keeping objects: a new one is a variant of [`Engine`] and an arm here.

use std::sync::Arc;

use nacre_logstore::LogStore;
use nacre_object::{ObjectStore, StoreError};
use nacre_rados::RadosStore;
use nacre_remote::{RemoteOptions, RemoteStore};
use nacre_rpc::ClusterKey;

use crate::uri::{Durability, Engine, Options, Uri};

/// An opened engine, with its abilities beyond keeping objects.
#[derive(Clone)]
pub(crate) enum Opened {
    /// A store in this process: in a folder or in memory.
    Log(LogStore),
    /// A store on servers.
    Remote(RemoteStore),
    /// A store in a pool of a Ceph cluster.
    Rados(RadosStore),
    /// An engine that the caller brought along.
    Other(Arc<dyn ObjectStore>),
}

impl Opened {
    pub(crate) fn open(uri: &Uri, own_thread: bool) -> Result<Opened, StoreError> {
        match &uri.engine {
            Engine::Memory => Ok(Opened::Log(LogStore::memory(log_options(&uri.options)))),
            Engine::Folder(path) => Ok(Opened::Log(LogStore::open(path, log_options(&uri.options))?)),
            Engine::Servers(servers) => {
                let options = RemoteOptions { own_thread, ..remote_options(&uri.options)? };
                Ok(Opened::Remote(RemoteStore::new(servers, options)?))
            }
            Engine::Rados(location) => Ok(Opened::Rados(RadosStore::new(location.clone()))),
        }
    }

    /// Returns the engine behind the seam.
    pub(crate) fn objects(&self) -> Arc<dyn ObjectStore> {
        match self {
            Opened::Log(store) => Arc::new(store.clone()),
            Opened::Remote(store) => Arc::new(store.clone()),
            Opened::Rados(store) => Arc::new(store.clone()),
            Opened::Other(store) => store.clone(),
        }
    }
}

pub(crate) fn log_options(options: &Options) -> nacre_logstore::Options {
    let create = options.create.unwrap_or(false);
    let capacity_bytes = options.capacity;
    let mut log = nacre_logstore::Options { create, capacity_bytes, ..nacre_logstore::Options::default() };
    if let Some(durability) = options.durability {
        log.durability = match durability {
            Durability::Always => nacre_logstore::Durability::Always,
            Durability::Interval(time) => nacre_logstore::Durability::Interval(time),
            Durability::None => nacre_logstore::Durability::None,
        };
    }
    log
}

fn remote_options(options: &Options) -> Result<RemoteOptions, StoreError> {
    let mut remote = RemoteOptions { owner: options.owner, ..RemoteOptions::default() };
    if let Some(path) = &options.key {
        remote.key = Some(ClusterKey::load(path)?);
    }
    if let Some(connections) = options.connections {
        remote.connections = connections;
    }
    if let Some(time) = options.connect_timeout {
        remote.connect_timeout = time;
    }
    if let Some(time) = options.silence_timeout {
        remote.silence_timeout = time;
    }
    if let Some(time) = options.repeat_timeout {
        remote.repeat_timeout = time;
    }
    Ok(remote)
}
