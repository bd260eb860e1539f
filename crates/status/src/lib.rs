//! A daemon's HTTP listener: `/metrics`, `/healthz`, a status page at `/`, and the pages of the daemon's parts.
//!
//! It is read-only. Any client that can send a request to it, a page in an operator's browser included, learns numbers
//! at most: it answers GET and HEAD only, and only if the `Host` of the request is one of its own names, so a foreign
//! name that was made to point here (DNS rebinding) reads nothing. It listens on loopback unless it is explicitly told
//! otherwise. Changes go over the keyed connection of the daemon.
//!
//! A [`Part`] is what a role of the daemon shows. Texts of parts are escaped here, so that no part can omit it.

#![forbid(unsafe_code)]

mod host;
mod listener;
mod metrics;
mod page;
mod picture;
mod process;

use futures::future::{BoxFuture, FutureExt};
pub use hyper::StatusCode;
pub use prometheus_client::collector::Collector;
pub use prometheus_client::encoding::DescriptorEncoder;

pub use crate::listener::{ListenError, Listener, Options};
pub use crate::metrics::{Encoder, Metrics};
pub use crate::page::{Answer, Section, Table};
pub use crate::picture::{Picture, SAMPLE_INTERVAL, Scale};
pub use crate::process::Usage;

/// A part of a daemon, as shown over HTTP.
///
/// All methods may wait, for six seconds at most, after which an error stands in place of the answer. None may block the
/// thread: one thread answers all requests.
pub trait Part: Send + Sync + 'static {
    /// Returns the part's metrics.
    ///
    /// # Errors
    /// The reason why they are not available, with which `/metrics` answers 503.
    fn metrics(&self) -> BoxFuture<'_, Result<Metrics, String>>;

    /// Checks the part's health.
    ///
    /// # Errors
    /// The reason why it is not healthy, with which `/healthz` answers 503.
    fn health(&self) -> BoxFuture<'_, Result<(), String>>;

    /// Returns the part's section of the status page.
    ///
    /// # Errors
    /// The reason why it is not available, which the page shows instead.
    fn section(&self) -> BoxFuture<'_, Result<Section, String>>;

    /// Samples what the part's pictures show; called every [`SAMPLE_INTERVAL`].
    fn sample(&self) -> BoxFuture<'_, ()> {
        std::future::ready(()).boxed()
    }

    /// Returns the paths of the part's own pages, such as `/groups`.
    fn paths(&self) -> &'static [&'static str] {
        &[]
    }

    /// Answers a request for one of [`Part::paths`]; `query` is the text after the question mark, not decoded.
    fn page(&self, path: &'static str, query: &str) -> BoxFuture<'_, Answer> {
        let _ = (path, query);
        std::future::ready(Answer::text(StatusCode::NOT_FOUND, "there is no such page")).boxed()
    }
}
