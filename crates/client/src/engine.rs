//! The one place that knows every way of keeping objects: a new one is a variant of [`Engine`] and an arm here.

use std::sync::Arc;

use nacre_object::testkit::MemoryStore;
use nacre_object::{ErrorKind, ObjectStore, StoreError};
use nacre_wire::{RemoteOptions, RemoteStore};

use crate::uri::{Engine, Options, Uri};

/// An engine that was opened, with what it can do beyond keeping objects.
#[derive(Clone)]
pub(crate) enum Opened {
    Memory(Arc<MemoryStore>),
    Remote(RemoteStore),
    /// An engine that the caller brought along.
    Other(Arc<dyn ObjectStore>),
}

impl Opened {
    pub(crate) fn open(uri: &Uri) -> Result<Opened, StoreError> {
        match &uri.engine {
            Engine::Memory => Ok(Opened::Memory(Arc::default())),
            Engine::Folder(_) => {
                Err(StoreError::new(ErrorKind::Unsupported, "folders are not supported yet"))
            }
            Engine::Servers(servers) => {
                Ok(Opened::Remote(RemoteStore::new(servers, remote_options(&uri.options)?)?))
            }
        }
    }

    /// The engine behind the seam.
    pub(crate) fn objects(&self) -> Arc<dyn ObjectStore> {
        match self {
            Opened::Memory(store) => store.clone(),
            Opened::Remote(store) => Arc::new(store.clone()),
            Opened::Other(store) => store.clone(),
        }
    }
}

fn remote_options(options: &Options) -> Result<RemoteOptions, StoreError> {
    let mut remote = RemoteOptions::default();
    if let Some(connections) = options.connections {
        remote.connections = connections;
    }
    if let Some(time) = options.connect_timeout {
        remote.connect_timeout = time;
    }
    if let Some(time) = options.silence_timeout {
        remote.silence_timeout = time;
    }
    Ok(remote)
}
