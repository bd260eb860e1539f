//! The administration of the store that a daemon serves. A reflector's is a service of its own.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use nacre_object::pace::Paced;
use nacre_object::{ErrorKind, Reply, StoreError};
use nacre_remote::{Admin, ReportSender};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cluster::Summary;
use crate::lock;
use crate::metrics::Sources;
use crate::served_store::ServedStore;

/// The calls that the daemon answers.
pub(crate) struct Administration {
    pub(crate) store: Option<Paced<ServedStore>>,
    pub(crate) lock: Option<nacre_lock::role::Handle>,
    pub(crate) summary: Option<Arc<Summary>>,
    /// The sources of counters, once the server listens.
    pub(crate) sources: Arc<OnceLock<Arc<Sources>>>,
}

/// The number of regions to report on.
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

/// The largest number of regions in one reply: even with the longest names it fits into a frame.
const REGIONS_MAX: usize = 8192;

impl Administration {
    /// Answers a call about the store; `None` if the method is not one of the store's.
    fn store(
        store: &Paced<ServedStore>,
        method: &str,
        argument: &Bytes,
        progress: ReportSender,
    ) -> Option<Reply<Bytes>> {
        let method = match method {
            "info" => "info",
            "scrub" => "scrub",
            "compact" => "compact",
            "regions" => return Some(Reply::ready(Self::regions(store, argument))),
            "clear-regions" => {
                store.clear_regions();
                return Some(Reply::ready(Self::regions(store, argument)));
            }
            _ => return None,
        };
        let report = move |at: Value| progress.send(at.to_string());
        let answer = match store.inner().administer(method, report) {
            Reply::Ready(Some(answer)) => Reply::ready(answer.and_then(|answer| json(&answer))),
            answer => Reply::pending(async move { json(&answer.await?) }),
        };
        Some(answer)
    }

    /// Returns the statistics of conditional writes: in total, and by region.
    fn regions(store: &Paced<ServedStore>, argument: &Bytes) -> Result<Bytes, StoreError> {
        let argument = match &argument[..] {
            [] => RegionsArgument::default(),
            text => serde_json::from_slice(text).map_err(|_| wrong_argument("regions"))?,
        };
        let totals = store.totals();
        let (regions, uncounted) = store.regions(argument.limit.min(REGIONS_MAX));
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

/// Returns the error of an argument that is not as this version of the call has it.
pub(crate) fn wrong_argument(method: &str) -> StoreError {
    let text = format!(
        "the argument of \"{method}\" is not understood; the client may be of another version than the server"
    );
    StoreError::new(ErrorKind::Invalid, text)
}

pub(crate) fn json(value: &impl Serialize) -> Result<Bytes, StoreError> {
    serde_json::to_vec(value)
        .map(Bytes::from)
        .map_err(|error| StoreError::new(ErrorKind::Unsupported, error.to_string()))
}

impl Admin for Administration {
    fn call(&self, method: &str, argument: Bytes, progress: ReportSender) -> Reply<Bytes> {
        if let Some(summary) = self.summary.clone().filter(|_| method == "status") {
            return Reply::pending(async move { json(&summary.report().await) });
        }
        if let Some(sources) = self.sources.get().filter(|_| method == "counters") {
            return Reply::ready(json(&sources.counters()));
        }
        if method == "ping" {
            return Reply::ready(Ok(Bytes::from_static(b"{}")));
        }
        let store = self.store.as_ref().and_then(|store| Self::store(store, method, &argument, progress));
        let lock = || lock::call(self.lock.as_ref()?, method, &argument);
        store.or_else(lock).unwrap_or_else(|| {
            let text = match self.lock.is_none() && lock::METHODS.contains(&method) {
                true => "the server keeps no locks: it runs without the role lock".to_owned(),
                false => format!("no role of this daemon knows a call named \"{method}\""),
            };
            Reply::ready(Err(StoreError::new(ErrorKind::Unsupported, text)))
        })
    }
}
