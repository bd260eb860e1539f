//! The classes of the objects that a daemon keeps: the start of the threads that run their methods, and what it shows of
//! them.

use std::fmt;
use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt, ready};
use nacre_class::network::{Counts, Options, Runner};
use nacre_object::{ObjectStore, StoreError};
use nacre_remote::Membership;
use nacre_status::{Collector, DescriptorEncoder, Encoder, Metrics, Part, Section};

use crate::lock;
use crate::options::ServerOptions;
use crate::served_store::ServedStore;

/// Starts the threads that run methods on a daemon's objects, `objects` as its clients reach them.
pub(crate) fn start(
    options: &ServerOptions,
    membership: &Membership,
    kept: &ServedStore,
    objects: Arc<dyn ObjectStore>,
) -> Result<Arc<Runner>, StoreError> {
    let mine = membership.clone();
    let options = Options {
        objects,
        store: lock::objects(options, membership, kept)?,
        keeps: Box::new(move |object| mine.keeps(object)),
        threads: 0,
    };
    Runner::start(options).map(Arc::new)
}

/// The classes as a part of the daemon's pages.
pub(crate) struct ClassPart(pub(crate) Arc<Runner>);

struct Source(Arc<Runner>);

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source(class)")
    }
}

impl Collector for Source {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Counts { done, failed, stopped, refused, conflicts, instructions } = self.0.counts();
        let mut encoder = Encoder::new(encoder);
        encoder.gauge("threads", "Threads that run methods", self.0.threads() as f64)?;
        encoder.counter("calls_done", "Calls of methods that took effect", done)?;
        encoder.counter("calls_failed", "Calls whose method failed", failed)?;
        encoder.counter("calls_stopped", "Calls that exceeded a bound", stopped)?;
        encoder.counter(
            "calls_refused",
            "Calls that were fenced off, given up, or failed with the store",
            refused,
        )?;
        let help = "Attempts that were made again because others changed the object meanwhile";
        encoder.counter("conflicts", help, conflicts)?;
        encoder.counter("instructions", "Instructions of calls that took effect", instructions)
    }
}

impl Part for ClassPart {
    fn metrics(&self) -> BoxFuture<'_, Result<Metrics, String>> {
        ready(Ok(Metrics { prefix: "nacre_class", source: Box::new(Source(self.0.clone())) })).boxed()
    }

    fn health(&self) -> BoxFuture<'_, Result<(), String>> {
        ready(Ok(())).boxed()
    }

    fn section(&self) -> BoxFuture<'_, Result<Section, String>> {
        async move {
            let Counts { done, failed, stopped, refused, conflicts, .. } = self.0.counts();
            let mut section = Section { title: "classes".to_owned(), ..Section::default() };
            match self.0.classes().await {
                Ok(classes) => section.row("classes", classes),
                Err(error) => section.row("classes", error),
            }
            section
                .row("calls", format!("{done} done, {failed} failed, {stopped} stopped, {refused} refused"));
            section.row("attempts made again", conflicts);
            Ok(section)
        }
        .boxed()
    }
}
