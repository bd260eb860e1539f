//! Administration of a store as a whole: its state, its health, its space.

use std::time::{Duration, Instant};

#[cfg(feature = "file")]
use nacre_logstore::{LogStore, ScrubProgress, ScrubReport};
use nacre_object::{ErrorKind, ObjectId, ReadOp, StoreError, Transaction};
use serde_json::Value;

use crate::engine::Opened;
use crate::store::Store;
#[cfg(feature = "file")]
use crate::uri::{Engine, Uri};

/// The answer of one part of a store: the store itself where it is in this process, or one of its servers.
///
/// ```
/// let store = nacre::open("mem:")?.blocking();
/// let reports: Vec<nacre::Report> = store.info()?;
/// assert_eq!(reports[0].server, "mem:");
/// println!("{}", reports[0].report["objects"]);
/// # Ok::<(), nacre::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The uri of the store, or the address of the server.
    pub server: String,
    /// The answer.
    pub report: Value,
}

impl Store {
    /// Reports the state of every part of the store: segments, live bytes, write amplification, durability, versions.
    ///
    /// # Errors
    /// Those of an [administrator's call](crate#errors).
    pub async fn info(&self) -> Result<Vec<Report>, StoreError> {
        self.administer("info", |_| ()).await
    }

    /// Returns the state of every part of the store as [`Store::info`] does, or why it cannot be had: a server that does not
    /// answer hides no other one.
    ///
    /// # Errors
    ///
    /// Those of the store if none of its servers can be reached.
    pub async fn info_of_each(&self) -> Result<Vec<(String, Result<Value, StoreError>)>, StoreError> {
        self.ask_parts("info", Value::Null).await
    }

    /// Returns what every server of the store says of itself, or why it does not; of a store without servers, its own report.
    ///
    /// # Errors
    ///
    /// Those of the store if none of its servers can be reached.
    pub async fn status(&self) -> Result<Vec<(String, Result<Value, StoreError>)>, StoreError> {
        self.ask_parts("status", Value::Null).await
    }

    /// Returns for every server of the store a future that measures the time which a small request to it takes, there and back;
    /// of a store without servers, that of a look at an object. Each can be given up by itself, so that one that does not
    /// answer hides no other one.
    ///
    /// # Errors
    ///
    /// Those of the store if none of its servers can be reached.
    pub async fn pings(&self) -> Result<Vec<(String, Ping)>, StoreError> {
        #[cfg(feature = "servers")]
        if let Opened::Remote(store) = &self.opened {
            let ping = |address: nacre_rpc::Address| {
                let (name, store) = (address.to_string(), store.clone());
                let ask = async move { store.call(&address, "ping", bytes::Bytes::new(), |_| ()).await };
                (name, timed(ask))
            };
            return Ok(store.addresses().await?.into_iter().map(ping).collect());
        }
        let look = self.apply(&ObjectId::try_from("nacre/ping")?, Transaction::new().read(ReadOp::Stat));
        Ok(vec![(self.name().to_owned(), timed(look))])
    }

    /// Returns for every server of the store a future of its counters: requests by latency, bytes, memory, processor time;
    /// those that `nacre top` shows the growth of. Each can be given up by itself.
    ///
    /// # Errors
    ///
    /// `Unsupported` if the store has no servers, otherwise those of the store if none of its servers can be reached.
    pub async fn counters(&self) -> Result<Vec<(String, Counters)>, StoreError> {
        #[cfg(feature = "servers")]
        if let Opened::Remote(store) = &self.opened {
            let ask = |address: nacre_rpc::Address| -> (String, Counters) {
                let (name, store) = (address.to_string(), store.clone());
                (name, Box::pin(async move { ask_server(&store, &address, "counters", &Value::Null).await }))
            };
            return Ok(store.addresses().await?.into_iter().map(ask).collect());
        }
        Err(StoreError::new(
            ErrorKind::Unsupported,
            format!("{} has no Nacre server, and only servers count requests", self.name()),
        ))
    }

    async fn ask_parts(
        &self,
        method: &'static str,
        argument: Value,
    ) -> Result<Vec<(String, Result<Value, StoreError>)>, StoreError> {
        #[cfg(feature = "servers")]
        if let Opened::Remote(store) = &self.opened {
            return ask_servers(store, method, &argument).await;
        }
        // A store without servers says of itself what it says as a whole.
        let method = if method == "status" { "info" } else { method };
        let reports = self.administer_with(method, argument, |_| ()).await?;
        Ok(reports.into_iter().map(|part| (part.server, Ok(part.report))).collect())
    }

    /// Makes every part of the store read and check every byte that it wrote; transactions go on. `progress` gets the
    /// progress of each part.
    ///
    /// # Errors
    /// Those of an [administrator's call](crate#errors). Damage is no error: it is in the reports.
    pub async fn scrub(
        &self,
        progress: impl FnMut(Report) + Send + 'static,
    ) -> Result<Vec<Report>, StoreError> {
        self.administer("scrub", progress).await
    }

    /// Makes every part of the store give back the space of what was overwritten and removed; transactions go on.
    ///
    /// # Errors
    /// Those of an [administrator's call](crate#errors). [`ErrorKind::OutOfSpace`] if there is no room to move
    /// anything.
    pub async fn compact(&self) -> Result<Vec<Report>, StoreError> {
        self.administer("compact", |_| ()).await
    }

    /// Takes away what removed objects leave behind in a pool of a Ceph cluster: their versions, and their entries in the index of
    /// names. From then on, objects of which there is no trace look as if they had been removed at a later version than any of
    /// those. Objects that were removed less than `older_than` ago are left; a `dry_run` changes nothing. `progress` gets the
    /// number of objects that are done, and of all. Transactions go on; but clients of versions from before there was a purge
    /// must not be used any more.
    ///
    /// # Errors
    /// Those of an [administrator's call](crate#errors). [`ErrorKind::Unsupported`] for other stores, which forget removed objects
    /// by themselves.
    pub async fn purge(
        &self,
        older_than: Duration,
        dry_run: bool,
        progress: impl FnMut(Report) + Send + 'static,
    ) -> Result<Vec<Report>, StoreError> {
        #[cfg(feature = "rados")]
        let is_kept = matches!(self.opened, Opened::Rados(_));
        #[cfg(not(feature = "rados"))]
        let is_kept = false;
        if !is_kept {
            let text = format!(
                "{}: a purge is for a pool of a Ceph cluster that this program opens itself (rados://POOL); other stores forget \
                 removed objects by themselves",
                self.name()
            );
            return Err(StoreError::new(ErrorKind::Unsupported, text));
        }
        let argument = serde_json::json!({ "older_than_s": older_than.as_secs(), "dry_run": dry_run });
        self.administer_with("purge", argument, progress).await
    }

    /// Returns the results of conditional writes on every server: attempts, failures and turns in all; and attempts,
    /// failures and the longest run of failures of up to `limit` regions, those with the longest runs first, where the
    /// server was told to count them.
    ///
    /// # Errors
    /// Those of an [administrator's call](crate#errors).
    pub async fn regions(&self, limit: usize) -> Result<Vec<Report>, StoreError> {
        self.administer_with("regions", serde_json::json!({ "limit": limit }), |_| ()).await
    }

    /// Returns what [`Store::regions`] does of every server, or why it cannot be had: a server that does not answer hides no
    /// other one.
    ///
    /// # Errors
    ///
    /// Those of the store if none of its servers can be reached.
    pub async fn regions_of_each(
        &self,
        limit: usize,
    ) -> Result<Vec<(String, Result<Value, StoreError>)>, StoreError> {
        self.ask_parts("regions", serde_json::json!({ "limit": limit })).await
    }

    /// Makes every server forget its counts of regions.
    ///
    /// # Errors
    /// Those of an [administrator's call](crate#errors).
    pub async fn clear_regions(&self) -> Result<(), StoreError> {
        self.administer("clear-regions", |_| ()).await.map(|_| ())
    }

    /// Finishes what was begun, and closes a store of this process for good; blocks until that is done. Handles on
    /// servers have nothing to close.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] or [`ErrorKind::OutOfSpace`] if what is not durable yet cannot be made so.
    pub fn close(&self) -> Result<(), StoreError> {
        match &self.opened {
            #[cfg(feature = "file")]
            Opened::Log(store) => store.close(),
            _ => Ok(()),
        }
    }

    async fn administer(
        &self,
        method: &'static str,
        progress: impl FnMut(Report) + Send + 'static,
    ) -> Result<Vec<Report>, StoreError> {
        self.administer_with(method, Value::Null, progress).await
    }

    pub(crate) async fn administer_with(
        &self,
        method: &'static str,
        argument: Value,
        mut progress: impl FnMut(Report) + Send + 'static,
    ) -> Result<Vec<Report>, StoreError> {
        let failed = |error: StoreError| error.context(format_args!("{method} of {} failed", self.name()));
        match &self.opened {
            #[cfg(feature = "file")]
            Opened::Log(store) => {
                let (store, server) = (store.clone(), self.name().to_owned());
                let name = server.clone();
                // What reads a whole folder must not hold up the caller's runtime.
                let (send, result) = futures::channel::oneshot::channel();
                let work = move || {
                    let mut report = |report| progress(Report { server: server.clone(), report });
                    // Whoever asked may have gone away meanwhile.
                    let _ = send.send(administer_log(&store, method, &mut report));
                };
                let thread = std::thread::Builder::new().name(format!("nacre-{method}")).spawn(work);
                thread.map_err(|error| failed(StoreError::new(ErrorKind::Io, error.to_string())))?;
                let lost = || StoreError::new(ErrorKind::Unknown, "the thread that did it ended in a panic");
                let report = result.await.unwrap_or_else(|_| Err(lost())).map_err(failed)?;
                Ok(vec![Report { server: name, report }])
            }
            #[cfg(feature = "servers")]
            Opened::Remote(store) => {
                let argument = if argument.is_null() { String::new() } else { argument.to_string() };
                let argument = bytes::Bytes::from(argument);
                let mut reports = Vec::new();
                let progress = std::sync::Arc::new(std::sync::Mutex::new(progress));
                for address in store.addresses().await.map_err(failed)? {
                    let server_name = address.to_string();
                    let (server, progress) = (server_name.clone(), progress.clone());
                    let report = move |report: bytes::Bytes| {
                        let report = serde_json::from_slice(&report).unwrap_or(Value::Null);
                        if let Ok(mut progress) = progress.lock() {
                            progress(Report { server: server.clone(), report });
                        }
                    };
                    let text =
                        store.call(&address, method, argument.clone(), report).await.map_err(failed)?;
                    let report =
                        serde_json::from_slice(&text).map_err(|_| failed(not_understood(&server_name)))?;
                    reports.push(Report { server: server_name, report });
                }
                Ok(reports)
            }
            #[cfg(feature = "rados")]
            Opened::Rados(store) => {
                let server = self.name().to_owned();
                let mut report = |report| progress(Report { server: server.clone(), report });
                let report = administer_rados(store, method, &argument, &mut report).await.map_err(failed)?;
                Ok(vec![Report { server, report }])
            }
            Opened::Other(_) => {
                Err(failed(StoreError::new(ErrorKind::Unsupported, "this engine has no such call")))
            }
        }
    }
}

/// The time that an answer takes. It begins when the future is first polled.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), nacre::Error> {
/// let store = nacre::open("mem:")?;
/// for (server, ping) in store.pings().await? {
///     // Each can be given up by itself.
///     let time = tokio::time::timeout(std::time::Duration::from_secs(5), ping).await;
///     println!("{server}: {time:?}");
/// }
/// # Ok(())
/// # }
/// ```
pub type Ping = futures::future::BoxFuture<'static, Result<Duration, StoreError>>;

/// The counters of a server.
///
/// ```no_run
/// # async fn example() -> Result<(), nacre::Error> {
/// let store = nacre::open("nacre://one,two")?;
/// for (server, counters) in store.counters().await? {
///     match counters.await {
///         Ok(counters) => println!("{server}: {counters}"),
///         Err(error) => println!("{server}: {error}"),
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub type Counters = futures::future::BoxFuture<'static, Result<Value, StoreError>>;

fn timed<T: Send>(answer: impl Future<Output = Result<T, StoreError>> + Send + 'static) -> Ping {
    Box::pin(async move {
        let began = Instant::now();
        answer.await.map(|_| began.elapsed())
    })
}

/// Returns the answer of every server of a store.
#[cfg(feature = "servers")]
async fn ask_servers(
    store: &nacre_remote::RemoteStore,
    method: &'static str,
    argument: &Value,
) -> Result<Vec<(String, Result<Value, StoreError>)>, StoreError> {
    let ask = |address: nacre_rpc::Address| async move {
        (address.to_string(), ask_server(store, &address, method, argument).await)
    };
    Ok(futures::future::join_all(store.addresses().await?.into_iter().map(ask)).await)
}

#[cfg(feature = "servers")]
async fn ask_server(
    store: &nacre_remote::RemoteStore,
    address: &nacre_rpc::Address,
    method: &'static str,
    argument: &Value,
) -> Result<Value, StoreError> {
    let argument = if argument.is_null() { String::new() } else { argument.to_string() };
    let text = store.call(address, method, argument.into(), |_| ()).await?;
    serde_json::from_slice(&text).map_err(|_| not_understood(address))
}

/// Returns the error of an answer that is not JSON.
pub(crate) fn not_understood(server: impl std::fmt::Display) -> StoreError {
    let text =
        format!("the answer of {server} is not understood; it may be of another version than this program");
    StoreError::new(ErrorKind::Unsupported, text)
}

/// Checks the files of a store in a folder that no process has open, whether it can be opened or not; changes nothing.
/// Blocks.
///
/// # Errors
///
/// `Busy` if a process has it open; `Corrupt` if nothing in the folder identifies the store.
#[cfg(feature = "file")]
pub fn scrub_folder(uri: &Uri, progress: impl FnMut(Report)) -> Result<Report, StoreError> {
    offline("scrub", uri, progress, |path, progress| LogStore::scrub_closed(path, progress))
}

/// Repairs the files of a store in a folder that no process has open, as far as possible, so that it opens; reports
/// what was done and what is lost. Files that are of no use any more stay under other names. Blocks.
///
/// # Errors
///
/// Those of [`scrub_folder`]; and `Io` or `OutOfSpace` if a file cannot be read or written.
#[cfg(feature = "file")]
pub fn repair_folder(uri: &Uri, progress: impl FnMut(Report)) -> Result<Report, StoreError> {
    let options = crate::engine::log_options(&uri.options);
    offline("repair", uri, progress, |path, progress| LogStore::repair(path, options, progress))
}

#[cfg(feature = "file")]
fn offline(
    method: &str,
    uri: &Uri,
    mut progress: impl FnMut(Report),
    work: impl FnOnce(&std::path::Path, &mut dyn FnMut(ScrubProgress)) -> Result<ScrubReport, StoreError>,
) -> Result<Report, StoreError> {
    let Engine::Folder(path) = &uri.engine else {
        let text = format!("{uri} is not a folder; this needs direct access to the store's files");
        return Err(StoreError::new(ErrorKind::Unsupported, text));
    };
    let server = uri.to_string();
    let mut report = |at: ScrubProgress| {
        let report = serde_json::to_value(at).unwrap_or(Value::Null);
        progress(Report { server: server.clone(), report });
    };
    let report =
        work(path, &mut report).map_err(|error| error.context(format_args!("{method} of {uri} failed")))?;
    let report = serde_json::to_value(report)
        .map_err(|error| StoreError::new(ErrorKind::Unsupported, error.to_string()))?;
    Ok(Report { server, report })
}

#[cfg(feature = "rados")]
async fn administer_rados(
    store: &nacre_rados::RadosStore,
    method: &str,
    argument: &Value,
    progress: &mut (dyn FnMut(Value) + Send),
) -> Result<Value, StoreError> {
    let by_ceph = |text: &str| Err(StoreError::new(ErrorKind::Unsupported, text));
    match method {
        "info" => {
            let (cluster, location) = (store.cluster_id().await?, store.location());
            Ok(serde_json::json!({
                "engine": "rados",
                "cluster": cluster,
                "pool": location.pool,
                "namespace": location.namespace,
                "user": format!("client.{}", location.id),
                "address": store.client_address().await?,
            }))
        }
        // Ceph compares the bytes of the replicas by itself; whether headers and indexes are sound, only Nacre knows.
        "scrub" => {
            let look = |done, all| progress(serde_json::json!({ "bytes": done, "total_bytes": all }));
            let report = store.scrub(look).await?;
            let finding = |(object, error): &(nacre_object::ObjectId, StoreError)| {
                serde_json::json!({
                    "file": format!("nacre.{object}"),
                    "offset": 0,
                    "bytes": 0,
                    "what": error.message,
                    "objects": [object.to_string()],
                })
            };
            Ok(serde_json::json!({
                "files": report.objects,
                "bytes": report.bytes,
                "source": "osds",
                "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
            }))
        }
        "compact" => {
            let look = |done, all| progress(serde_json::json!({ "objects": done, "total_objects": all }));
            let report = store.compact(look).await?;
            Ok(serde_json::json!({ "objects": report.objects, "compacted": report.compacted }))
        }
        "purge" => {
            let look = |done, all| progress(serde_json::json!({ "objects": done, "total_objects": all }));
            let options = nacre_rados::PurgeOptions {
                older_than: Duration::from_secs(argument["older_than_s"].as_u64().unwrap_or(0)),
                dry_run: argument["dry_run"].as_bool().unwrap_or(false),
            };
            let report = store.purge(options, look).await?;
            Ok(serde_json::json!({
                "objects": report.objects,
                "purged": report.purged,
                "entries": report.entries,
                "remembered": report.remembered,
                "recent": report.recent,
                "watched": report.watched,
                "busy": report.busy,
                "damaged": report.damaged,
                "floor": report.floor,
                "dry_run": options.dry_run,
            }))
        }
        "locks" | "lock-waits" | "break-lock-session" => by_ceph(
            "it has no lock server, which grants locks; start \"nacre serve --roles store,lock\" in front of it, and ask there",
        ),
        _ => by_ceph("only servers that \"nacre serve\" starts keep it"),
    }
}

#[cfg(feature = "file")]
fn administer_log(
    store: &LogStore,
    method: &str,
    progress: &mut dyn FnMut(Value),
) -> Result<Value, StoreError> {
    let value = |result: serde_json::Result<Value>| {
        result.map_err(|error| StoreError::new(ErrorKind::Unsupported, error.to_string()))
    };
    match method {
        "info" => value(serde_json::to_value(store.info())),
        "scrub" => {
            let report = store.scrub(|at| progress(serde_json::to_value(at).unwrap_or(Value::Null)))?;
            value(serde_json::to_value(report))
        }
        "compact" => {
            store.compact()?;
            value(serde_json::to_value(store.info()))
        }
        "locks" | "lock-waits" | "break-lock-session" => {
            let text = "it has no lock server; start \"nacre serve\" on it, which keeps locks, and ask there";
            Err(StoreError::new(ErrorKind::Unsupported, text))
        }
        _ => {
            let text = "it is kept by servers only, which see the attempts of all clients";
            Err(StoreError::new(ErrorKind::Unsupported, text))
        }
    }
}
