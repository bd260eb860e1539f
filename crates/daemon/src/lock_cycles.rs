//! The search for lock sessions that wait for each other in a circle over several servers. The first of the lock servers
//! looks at the waits of all.

use std::thread::JoinHandle;
use std::time::Duration;

use nacre::Store;
use nacre_lock::cycle::{Seen, Watch};
use nacre_lock::message::SessionId;
use nacre_lock::role::Handle;
use nacre_lock::server::Wait;
use nacre_object::{ErrorKind, StoreError};
use serde::Deserialize;
use tokio::sync::oneshot;

/// The time between two looks, and what each server adds to it.
const PAUSE: Duration = Duration::from_secs(2);
const PAUSE_PER_SERVER: Duration = Duration::from_millis(10);

/// A thread that looks for cycles. Dropping this ends it.
pub(crate) struct CycleWatch {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl CycleWatch {
    /// Starts to look for cycles at all servers of a store, and tells a lock server of those that are found.
    ///
    /// # Errors
    /// `Io` if no thread can be started.
    pub(crate) fn start(store: Store, servers: u32, lock: Handle) -> Result<CycleWatch, StoreError> {
        let failed = |error: std::io::Error| {
            StoreError::new(ErrorKind::Io, format!("cannot start a thread that looks at locks: {error}"))
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (stop, stopped) = oneshot::channel();
        let watch = async move {
            tokio::select! {
                () = watch(&store, servers, &lock) => {}
                _ = stopped => {}
            }
        };
        let thread = std::thread::Builder::new()
            .name("nacre-lock-waits".to_owned())
            .spawn(move || runtime.block_on(watch))
            .map_err(failed)?;
        Ok(CycleWatch { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for CycleWatch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that looks at locks ended in a panic");
        }
    }
}

async fn watch(store: &Store, servers: u32, lock: &Handle) {
    let mut watch = Watch::default();
    loop {
        tokio::time::sleep(PAUSE.max(PAUSE_PER_SERVER * servers)).await;
        // A server that is away is looked at when it is back: a wait that is the same then has lasted.
        let Ok(reports) = store.lock_waits().await else { continue };
        let new = watch.look(reports.into_iter().filter_map(|part| seen(part.report)).flatten());
        lock.note_cycles(&new, watch.standing().map(<[SessionId]>::to_vec).collect());
    }
}

/// The waits at a server: session, request, byte, holder and the holder's request of each.
#[derive(Deserialize)]
struct Waits {
    server: u32,
    epoch: u64,
    waits: Option<Vec<[u64; 5]>>,
}

/// Returns what a server shows; nothing if so many requests wait there that it does not say.
fn seen(report: serde_json::Value) -> Option<Vec<Seen>> {
    let Waits { server, epoch, waits } = serde_json::from_value(report).ok()?;
    let seen = |[session, request, byte, holder, held_by]: [u64; 5]| {
        let (session, holder) = (SessionId(session), SessionId(holder));
        Seen { server, epoch, wait: Wait { session, request, byte, holder, held_by } }
    };
    Some(waits?.into_iter().map(seen).collect())
}
