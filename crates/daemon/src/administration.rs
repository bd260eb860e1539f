//! What clients may ask of the server as a whole.

use bytes::Bytes;
use nacre_logstore::LogStore;
use nacre_object::{ErrorKind, Reply, StoreError};
use nacre_wire::server::{Admin, Progress};
use serde::Serialize;
use tokio::sync::oneshot;

/// Answers calls about a store.
pub(crate) struct Administration {
    store: LogStore,
}

impl Administration {
    pub(crate) fn new(store: LogStore) -> Self {
        Self { store }
    }

    /// Runs what may take long on a thread of its own.
    fn aside(
        &self,
        method: &str,
        work: impl FnOnce(&LogStore) -> Result<Bytes, StoreError> + Send + 'static,
    ) -> Reply<Bytes> {
        let (send, result) = oneshot::channel();
        let store = self.store.clone();
        let thread = std::thread::Builder::new().name(format!("nacre-{method}")).spawn(move || {
            // Whoever asked may have gone away meanwhile.
            let _ = send.send(work(&store));
        });
        if let Err(error) = thread {
            let text = format!("cannot start a thread for {method}: {error}");
            return Reply::ready(Err(StoreError::new(ErrorKind::Io, text)));
        }
        Reply::pending(async move {
            let lost = || StoreError::new(ErrorKind::Unknown, "the thread that did it ended in a panic");
            result.await.unwrap_or_else(|_| Err(lost()))
        })
    }
}

fn json(value: &impl Serialize) -> Result<Bytes, StoreError> {
    serde_json::to_vec(value)
        .map(Bytes::from)
        .map_err(|error| StoreError::new(ErrorKind::Unsupported, error.to_string()))
}

impl Admin for Administration {
    fn call(&self, method: &str, _argument: Bytes, progress: Progress) -> Reply<Bytes> {
        match method {
            // It walks through the index, which takes a while where there are many objects.
            "info" => self.aside(method, |store| json(&store.info())),
            "scrub" => self.aside(method, move |store| {
                let report = store.scrub(|at| {
                    if let Ok(text) = json(&at) {
                        progress.send(text);
                    }
                })?;
                json(&report)
            }),
            "compact" => self.aside(method, |store| {
                store.compact()?;
                json(&store.info())
            }),
            _ => {
                let text = format!("this server knows no call named \"{method}\"");
                Reply::ready(Err(StoreError::new(ErrorKind::Unsupported, text)))
            }
        }
    }
}
