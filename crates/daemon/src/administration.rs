//! What clients may ask of the server as a whole.

use bytes::Bytes;
use nacre_logstore::LogStore;
use nacre_object::pace::Paced;
use nacre_object::{ErrorKind, Reply, StoreError};
use nacre_remote::{Admin, Progress};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::oneshot;

/// Answers calls about a store.
pub(crate) struct Administration {
    store: Paced<LogStore>,
}

impl Administration {
    pub(crate) fn new(store: Paced<LogStore>) -> Self {
        Self { store }
    }

    /// Runs what may take long on a thread of its own.
    fn aside(
        &self,
        method: &str,
        work: impl FnOnce(&LogStore) -> Result<Bytes, StoreError> + Send + 'static,
    ) -> Reply<Bytes> {
        let (send, result) = oneshot::channel();
        let store = self.store.inner().clone();
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

/// How many regions to report on.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RegionsArgument {
    limit: usize,
}

impl Default for RegionsArgument {
    fn default() -> Self {
        Self { limit: 100 }
    }
}

/// Regions of one reply, at most: with the longest names it takes less than a frame may.
const REGIONS_MAX: usize = 8192;

impl Administration {
    /// What conditional writes came to: in all, and region by region.
    fn regions(&self, argument: &Bytes) -> Result<Bytes, StoreError> {
        let argument = match &argument[..] {
            [] => RegionsArgument::default(),
            text => serde_json::from_slice(text)
                .map_err(|error| StoreError::new(ErrorKind::Invalid, format!("regions: {error}")))?,
        };
        let totals = self.store.totals();
        let (regions, uncounted) = self.store.regions(argument.limit.min(REGIONS_MAX));
        let regions: Vec<Value> = regions
            .iter()
            .map(|region| {
                serde_json::json!({
                    "object": region.object.to_string(),
                    "fork": region.fork.to_string(),
                    "offset": region.range.offset,
                    "len": region.range.len,
                    "attempts": region.attempts,
                    "failures": region.failures,
                    "longest_run": region.longest_run,
                })
            })
            .collect();
        json(&serde_json::json!({
            "attempts": totals.attempts,
            "failures": totals.failures,
            "waited": totals.waited,
            "lapsed": totals.lapsed,
            "tracked": totals.tracked,
            "waiting": totals.waiting,
            "uncounted": uncounted,
            "regions": regions,
        }))
    }
}

fn json(value: &impl Serialize) -> Result<Bytes, StoreError> {
    serde_json::to_vec(value)
        .map(Bytes::from)
        .map_err(|error| StoreError::new(ErrorKind::Unsupported, error.to_string()))
}

impl Admin for Administration {
    fn call(&self, method: &str, argument: Bytes, progress: Progress) -> Reply<Bytes> {
        match method {
            "info" => Reply::ready(json(&self.store.inner().info())),
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
            "regions" => Reply::ready(self.regions(&argument)),
            "clear-regions" => {
                self.store.clear_regions();
                Reply::ready(self.regions(&argument))
            }
            _ => {
                let text = format!("this server knows no call named \"{method}\"");
                Reply::ready(Err(StoreError::new(ErrorKind::Unsupported, text)))
            }
        }
    }
}
