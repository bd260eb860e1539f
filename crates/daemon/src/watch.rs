//! The watches of a daemon's objects on its pages and in its metrics.

use std::fmt;

use futures::future::{BoxFuture, FutureExt, ready};
use nacre_remote::WatchStats;
use nacre_status::{Collector, DescriptorEncoder, Encoder, Metrics, Part, Section};

/// The watches as a part of the daemon's pages.
pub(crate) struct WatchPart(pub(crate) WatchStats);

struct Source(WatchStats);

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source(watch)")
    }
}

impl Collector for Source {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut encoder = Encoder::new(encoder);
        encoder.gauge("watches", "Watches of all clients", self.0.watches() as f64)?;
        let help = "Notifications that wait for acknowledgements";
        encoder.gauge("notifications_in_flight", help, self.0.notifications() as f64)?;
        encoder.counter("events", "Changes and notifications that were sent to watchers", self.0.events())?;
        encoder.counter("gaps", "Gaps that were sent to watchers in place of events", self.0.gaps())
    }
}

impl Part for WatchPart {
    fn metrics(&self) -> BoxFuture<'_, Result<Metrics, String>> {
        ready(Ok(Metrics { prefix: "nacre_watch", source: Box::new(Source(self.0.clone())) })).boxed()
    }

    fn health(&self) -> BoxFuture<'_, Result<(), String>> {
        ready(Ok(())).boxed()
    }

    fn section(&self) -> BoxFuture<'_, Result<Section, String>> {
        let mut section = Section { title: "watches".to_owned(), ..Section::default() };
        section.row("watches", self.0.watches());
        section.row("notifications in flight", self.0.notifications());
        section.row("sent", format!("{} events, {} gaps", self.0.events(), self.0.gaps()));
        ready(Ok(section)).boxed()
    }
}
