//! Metrics, health and a status page over HTTP, on a thread of their own so that no scrape holds up a client.

use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse};
use axum::routing::get;
use nacre_object::pace::PaceTotals;
use nacre_object::{ErrorKind, StoreError};
use nacre_remote::{Ending, Operation};
use tokio::sync::oneshot;

use crate::metrics::{self, Sources};

/// A running HTTP server. It ends when this is dropped.
pub(crate) struct Http {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Http {
    pub(crate) fn start(address: &str, sources: Arc<Sources>) -> Result<Http, StoreError> {
        let failed = |error: std::io::Error| {
            let kind = match error.kind() {
                std::io::ErrorKind::AddrInUse => ErrorKind::Busy,
                _ => ErrorKind::Io,
            };
            StoreError::new(kind, format!("cannot serve metrics on {address}: {error}"))
        };
        let listener = std::net::TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let actual = listener.local_addr().map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (stop, stopped) = oneshot::channel::<()>();
        let body = move || {
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                let router = Router::new()
                    .route("/", get(page))
                    .route("/metrics", get(scrape))
                    .route("/healthz", get(health))
                    .with_state(sources);
                // Connections that are open when the server stops are simply closed: nobody waits for a scrape.
                tokio::select! {
                    served = async { axum::serve(listener, router).await } => served,
                    _ = stopped => Ok(()),
                }
            })
        };
        let thread = std::thread::Builder::new().name("nacre-http".to_owned());
        let thread = thread.spawn(move || {
            if let Err(error) = body() {
                tracing::error!(%error, "metrics are served no more");
            }
        });
        Ok(Http { address: actual, stop: Some(stop), thread: Some(thread.map_err(failed)?) })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // If it panicked it has said so; there is nothing else to do about it here.
            let _ = thread.join();
        }
    }
}

async fn scrape(State(sources): State<Arc<Sources>>) -> impl IntoResponse {
    match metrics::text(&sources) {
        Ok(text) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            (StatusCode::OK, [(header::CONTENT_TYPE, kind)], text)
        }
        Err(_) => {
            let text = "the metrics cannot be written down\n".to_owned();
            (StatusCode::INTERNAL_SERVER_ERROR, [(header::CONTENT_TYPE, "text/plain")], text)
        }
    }
}

/// 200 while the store takes writes, 503 with the reason when it does not.
async fn health(State(sources): State<Arc<Sources>>) -> (StatusCode, String) {
    match sources.store.inner().failure() {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(failure) => (StatusCode::SERVICE_UNAVAILABLE, format!("read-only: {}\n", failure.message)),
    }
}

async fn page(State(sources): State<Arc<Sources>>) -> Html<String> {
    let stats = &sources.stats;
    let mut rows = String::new();
    let mut row = |name: &str, value: String| {
        // Writing to a string does not fail.
        let _ = writeln!(rows, "<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(&value));
    };
    row("store", sources.data.clone());
    row("listening on", sources.addresses.join(", "));
    row("up for", format!("{} s", sources.started.elapsed().as_secs()));
    row("connections", stats.connections.get().to_string());
    row("requests in flight", stats.in_flight.get().to_string());
    for (operation, kind) in Operation::ALL {
        let counts =
            Ending::ALL.map(|(ending, name)| format!("{} {name}", sources.requests.get(operation, ending)));
        row(&kind.replace('_', " "), counts.join(", "));
    }
    let totals = sources.store.totals();
    let PaceTotals { attempts, failures, waited, tracked, waiting, .. } = totals;
    row("lost races", format!("{failures} of {attempts} conditional writes"));
    row("pacing", format!("{tracked} regions in turns, {waiting} requests waiting, {waited} waited so far"));
    if let Ok(serde_json::Value::Object(info)) = serde_json::to_value(sources.store.inner().info()) {
        for (name, value) in &info {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            row(&name.replace('_', " "), value);
        }
    }
    Html(format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>nacre</title>\
         <style>body{{font:16px/1.4 sans-serif;margin:2em}}th{{text-align:left;padding-right:2em}}</style>\
         <h1>nacre</h1><table>\n{rows}</table>\
         <p><a href=\"/metrics\">metrics</a> · <a href=\"/healthz\">health</a></p></html>\n"
    ))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
