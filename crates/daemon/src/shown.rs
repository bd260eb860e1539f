//! The role `store` as shown over HTTP.

use std::time::Instant;

use futures::future::{BoxFuture, FutureExt, ready};
use nacre_object::pace::PaceTotals;
use nacre_remote::{Operation, RequestOutcome};
use nacre_status::{Metrics, Part, Section};

use crate::metrics::{Source, Sources};

/// The sources as a part of the daemon.
pub(crate) struct StorePart(pub(crate) std::sync::Arc<Sources>);

impl Part for StorePart {
    fn metrics(&self) -> BoxFuture<'_, Result<Metrics, String>> {
        ready(Ok(Metrics { prefix: "nacre", source: Box::new(Source(self.0.clone())) })).boxed()
    }

    /// Checks whether the store takes writes, or, if it is elsewhere, whether it answers. One that is full is well: it can
    /// be read, and made smaller.
    fn health(&self) -> BoxFuture<'_, Result<(), String>> {
        self.0.store.inner().health().boxed()
    }

    fn sample(&self) -> BoxFuture<'_, ()> {
        self.0.pictures.sample(&self.0, Instant::now());
        ready(()).boxed()
    }

    fn section(&self) -> BoxFuture<'_, Result<Section, String>> {
        ready(Ok(self.0.section())).boxed()
    }
}

impl Sources {
    fn section(&self) -> Section {
        let stats = &self.stats;
        let pictures = self.pictures.drawn();
        let mut section = Section { title: "store".to_owned(), pictures, ..Section::default() };
        section.row("store", self.store.inner().name());
        section.row("listening on", self.addresses.join(", "));
        section.row("up for", format!("{} s", self.started.elapsed().as_secs()));
        section.row("connections", stats.connections.get());
        section.row("requests in flight", stats.in_flight.get());
        for (operation, kind) in Operation::ALL {
            let counts = RequestOutcome::ALL
                .map(|(ending, name)| format!("{} {name}", self.requests.get(operation, ending)));
            section.row(kind.replace('_', " "), counts.join(", "));
        }
        let PaceTotals { attempts, failures, waited, tracked, waiting, .. } = self.store.totals();
        section.row("lost races", format!("{failures} of {attempts} conditional writes"));
        let turns = format!("{tracked} regions in turns, {waiting} requests waiting, {waited} waited so far");
        section.row("pacing", turns);
        if let Some(info) = self.store.inner().numbers() {
            section.row("full", if self.fullness.look(&info) { "yes" } else { "no" });
            for (name, value) in info.as_object().into_iter().flatten() {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                section.row(name.replace('_', " "), value);
            }
        }
        section
    }
}
