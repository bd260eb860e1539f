//! The lock server of a store in this process, which has no daemon to grant locks.
//!
//! It is the server that a daemon runs, reached by a socket that only this user finds, so a lock here behaves as one there. Its
//! records are the store's: a folder that a daemon served before, or serves after, goes on with the same sessions and fences.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use futures::executor::block_on;
use nacre_lock::Stripe;
use nacre_lock::remote::{Session, within};
use nacre_lock::role::{LockRole, Options};
use nacre_lock::server::Settings;
use nacre_object::{ErrorKind, ObjectStore, StoreError};
use nacre_rpc::Address;
use nacre_rpc::server::{ServeOptions, Server, Services};
use tempfile::TempDir;
use tokio::sync::oneshot;

/// The object with the server's records, the same as that of a daemon that serves the store alone.
const LEDGER: &str = "nacre/locks";
/// The longest time that the end of a session takes, unless the machine is stuck.
const END_MAX: Duration = Duration::from_secs(5);

/// A running lock server of this process.
pub(crate) struct LocalLocks {
    role: LockRole,
    server: Server,
    /// The folder of the socket.
    folder: TempDir,
}

impl LocalLocks {
    /// Starts a lock server over a store; `volatile` says that its records go with the process.
    ///
    /// # Errors
    ///
    /// `Io` if no socket can be made below the folder for temporary files, or no thread started; those of the store otherwise.
    pub(crate) async fn start(
        objects: Arc<dyn ObjectStore>,
        volatile: bool,
    ) -> Result<LocalLocks, StoreError> {
        let (done, started) = oneshot::channel();
        // The start blocks until the records are read, which the caller's executor is not to do.
        let start = move || _ = done.send(LocalLocks::start_here(objects, volatile));
        thread::Builder::new().spawn(start).map_err(failed)?;
        let gone = |_| StoreError::new(ErrorKind::Closed, "the start of the lock server ended in a panic");
        started.await.map_err(gone)?
    }

    fn start_here(objects: Arc<dyn ObjectStore>, volatile: bool) -> Result<LocalLocks, StoreError> {
        let folder = tempfile::Builder::new().prefix("nacre-").tempdir().map_err(failed)?;
        let settings = Settings::default();
        let role = LockRole::start(Options {
            stripe: Stripe { servers: 1, server: 0, ..settings.stripe },
            lease: settings.lease,
            indexing: settings.indexing,
            records: objects.clone(),
            ledger: LEDGER.parse()?,
            volatile,
            objects,
        })?;
        let server = Server::start(ServeOptions {
            listen: vec![Address::Unix(folder.path().join("locks"))],
            threads: 1,
            services: Services::new().with(role.service()),
            ..ServeOptions::default()
        })?;
        Ok(LocalLocks { role, server, folder })
    }

    /// Returns the address of the server.
    pub(crate) fn addresses(&self) -> Vec<Address> {
        self.server.addresses().to_vec()
    }

    /// Ends the last session and then the server. Blocks until the store is no longer used.
    pub(crate) fn stop(self, session: Option<Session>) {
        // A thread of its own, because whoever drops a store may be within an executor.
        let stopping = thread::spawn(move || {
            if let Some(session) = session {
                // A session that is left open has the next server wait for its client.
                block_on(within(END_MAX, session.end()));
            }
            self.server.stop();
            self.role.stop();
            drop(self.folder);
        });
        // A panic has been printed.
        let _ = stopping.join();
    }
}

fn failed(error: io::Error) -> StoreError {
    StoreError::new(ErrorKind::Io, format!("cannot start the lock server of this process: {error}"))
}
