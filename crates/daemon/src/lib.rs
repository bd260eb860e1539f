//! Nacre's server: opens a store, serves it to clients, tells how it is over HTTP, and stops in good order.
//!
//! ```
//! use nacre_daemon::{Daemon, ServerOptions};
//!
//! let socket = std::env::temp_dir().join(format!("nacre-doc-{}", std::process::id()));
//! let listen = vec![format!("unix:{}", socket.display())];
//! let options = ServerOptions { data: None, listen, metrics: None, ..Default::default() };
//! let daemon = Daemon::start(&options)?;
//! let store = nacre::open(&daemon.addresses()[0].to_string())?.blocking();
//! store.object("greeting")?.write(0, "hello")?;
//! daemon.stop()?;
//! # Ok::<(), nacre::Error>(())
//! ```

#![forbid(unsafe_code)]

mod administration;
mod http;
mod membership;
mod metrics;
mod options;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use nacre_logstore::LogStore;
use nacre_object::pace::Paced;
use nacre_object::{ErrorKind, StoreError};
use nacre_remote::{AdminService, Requests, StoreService};
use nacre_rpc::{Address, ClusterKey, ServeOptions, Server, Services};

use crate::administration::Administration;
use crate::http::Http;
pub use crate::membership::MEMBERS_FILE;
use crate::metrics::Sources;
pub use crate::options::{METRICS_ADDRESS_DEFAULT, ServerOptions};

/// A running server. Dropping it stops it too, but tells nobody what went wrong.
pub struct Daemon {
    server: Server,
    http: Option<Http>,
    store: LogStore,
}

impl Daemon {
    /// Opens the store and begins to serve it. When this returns, clients can connect.
    pub fn start(options: &ServerOptions) -> Result<Daemon, StoreError> {
        let (listen, socket) = (options.addresses()?, options.socket_access()?);
        if options.open && options.key.is_some() {
            let text = "a server with a key is not open: say --open, or give a key, not both";
            return Err(StoreError::new(ErrorKind::Invalid, text));
        }
        let key = options.key.as_deref().map(ClusterKey::load).transpose()?;
        let store = match &options.data {
            None => LogStore::memory(options.log_options()?),
            Some(path) => LogStore::open(path, options.log_options()?)?,
        };
        let membership = membership::settle(options, &listen, &store)?;
        let paced = Paced::new(store.clone(), options.pace_options());
        let requests = Arc::new(Requests::default());
        let administration = Arc::new(Administration::new(paced.clone()));
        let services = Services::new()
            .with(StoreService::new(Arc::new(paced.clone()), membership, requests.clone()))
            .with(AdminService::new(administration, requests.clone()));
        let serve = ServeOptions {
            listen,
            threads: options.threads,
            key,
            open: options.open,
            socket,
            limits: options.limits(),
            services,
        };
        let server = Server::start(serve)?;
        let sources = Arc::new(Sources {
            stats: server.stats().clone(),
            requests,
            store: paced,
            addresses: server.addresses().iter().map(Address::to_string).collect(),
            data: options.data.as_ref().map_or("memory".to_owned(), |path| path.display().to_string()),
            started: Instant::now(),
        });
        let http = match &options.metrics {
            None => None,
            Some(address) => match Http::start(address, sources) {
                Err(error) if error.kind == ErrorKind::Busy && options.metrics_if_free => {
                    tracing::warn!("{error}; this server has none, name another address with --metrics");
                    None
                }
                http => Some(http?),
            },
        };
        Ok(Daemon { server, http, store })
    }

    /// The addresses that it serves clients on, with the ports that were found for those given as 0.
    pub fn addresses(&self) -> &[Address] {
        self.server.addresses()
    }

    /// Where `/metrics`, `/healthz` and the status page are, if anywhere.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(Http::address)
    }

    /// Stops: accepts nothing more, finishes what was accepted, syncs and closes the store. Blocks until that is done.
    pub fn stop(self) -> Result<(), StoreError> {
        let Daemon { server, http, store } = self;
        server.stop();
        drop(http);
        store.close()
    }
}

/// Serves until `shutdown` is done, then stops in good order. `ready` is told when clients can connect.
pub async fn run(
    options: ServerOptions,
    ready: impl FnOnce(&Daemon),
    shutdown: impl Future<Output = ()>,
) -> Result<(), StoreError> {
    let panicked = |error: tokio::task::JoinError| StoreError::new(ErrorKind::Io, error.to_string());
    let daemon = tokio::task::spawn_blocking(move || Daemon::start(&options)).await.map_err(panicked)??;
    ready(&daemon);
    shutdown.await;
    tracing::info!("stopping: finishing what was accepted");
    tokio::task::spawn_blocking(|| daemon.stop()).await.map_err(panicked)??;
    tracing::info!("stopped");
    Ok(())
}

/// Catches SIGTERM and Ctrl-C from now on; the future is done when one of them has come.
///
/// Must be called in a tokio runtime with its I/O enabled.
pub fn signalled() -> Result<impl Future<Output = ()>, StoreError> {
    use tokio::signal::unix::{SignalKind, signal};
    let caught = |kind| {
        signal(kind).map_err(|error| StoreError::new(ErrorKind::Io, format!("cannot catch signals: {error}")))
    };
    let (mut interrupt, mut terminate) = (caught(SignalKind::interrupt())?, caught(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
