//! The one place that knows every way of keeping objects: a new one is a variant of [`Engine`] and an arm here.

use std::sync::Arc;

#[cfg(feature = "file")]
use nacre_logstore::LogStore;
#[cfg(not(all(feature = "file", feature = "servers", feature = "rados")))]
use nacre_object::ErrorKind;
use nacre_object::{ObjectStore, StoreError};
#[cfg(feature = "rados")]
use nacre_rados::RadosStore;
#[cfg(feature = "servers")]
use nacre_remote::{RemoteOptions, RemoteStore};

#[cfg(any(feature = "file", feature = "servers"))]
use crate::uri::Options;
use crate::uri::{Engine, Uri};

/// An opened engine, with its abilities beyond keeping objects.
#[derive(Clone)]
pub(crate) enum Opened {
    /// A store in this process: in a folder or in memory.
    #[cfg(feature = "file")]
    Log(LogStore),
    /// A store on servers.
    #[cfg(feature = "servers")]
    Remote(RemoteStore),
    /// A store in a pool of a Ceph cluster.
    #[cfg(feature = "rados")]
    Rados(RadosStore),
    /// An engine that the caller brought along.
    Other(Arc<dyn ObjectStore>),
}

impl Opened {
    pub(crate) fn open(uri: &Uri, own_thread: bool) -> Result<Opened, StoreError> {
        match &uri.engine {
            #[cfg(feature = "file")]
            Engine::Memory => Ok(Opened::Log(LogStore::memory(log_options(&uri.options)))),
            #[cfg(feature = "file")]
            Engine::Folder(path) => Ok(Opened::Log(LogStore::open(path, log_options(&uri.options))?)),
            #[cfg(not(feature = "file"))]
            Engine::Memory | Engine::Folder(_) => Err(not_built("stores in this process", "file")),
            #[cfg(not(feature = "servers"))]
            Engine::Servers(_) => Err(not_built("stores on servers", "servers")),
            #[cfg(feature = "servers")]
            Engine::Servers(servers) => {
                let options = RemoteOptions { own_thread, ..remote_options(&uri.options)? };
                Ok(Opened::Remote(RemoteStore::new(servers, options)?))
            }
            #[cfg(feature = "rados")]
            Engine::Rados(location) => Ok(Opened::Rados(RadosStore::new(location.clone()))),
        }
    }

    /// Returns the engine behind the seam.
    pub(crate) fn objects(&self) -> Arc<dyn ObjectStore> {
        match self {
            #[cfg(feature = "file")]
            Opened::Log(store) => Arc::new(store.clone()),
            #[cfg(feature = "servers")]
            Opened::Remote(store) => Arc::new(store.clone()),
            #[cfg(feature = "rados")]
            Opened::Rados(store) => Arc::new(store.clone()),
            Opened::Other(store) => store.clone(),
        }
    }
}

/// Returns the refusal of a store for which this program was built without the feature.
#[cfg(not(all(feature = "file", feature = "servers", feature = "rados")))]
pub(crate) fn not_built(component: &str, feature: &str) -> StoreError {
    let text =
        format!("this program is built without {component} (the feature \"{feature}\" of the package nacre)");
    StoreError::new(ErrorKind::Unsupported, text)
}

#[cfg(feature = "file")]
pub(crate) fn log_options(options: &Options) -> nacre_logstore::Options {
    use crate::uri::Durability;

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

#[cfg(feature = "servers")]
fn remote_options(options: &Options) -> Result<RemoteOptions, StoreError> {
    let mut remote = RemoteOptions { owner: options.owner, ..RemoteOptions::default() };
    if let Some(path) = &options.key {
        remote.key = Some(nacre_rpc::ClusterKey::load(path)?);
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
