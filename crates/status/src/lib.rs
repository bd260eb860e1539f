//! A daemon's HTTP listener: `/metrics`, `/healthz`, a status page at `/`, and the pages of the daemon's parts.
//!
//! It shows and changes nothing. Whoever can send a request to it, a page in an operator's browser included, learns numbers
//! at most, so it answers GET and HEAD only, and only where the `Host` of the request is one of its own names: a foreign
//! name that was made to point here (DNS rebinding) reads nothing. It listens on loopback unless it is told otherwise in
//! so many words. Changes go over the keyed connection of the daemon.
//!
//! A [`Part`] is what a role of the daemon shows. Texts of parts are escaped here, so that no part can forget it.

#![forbid(unsafe_code)]

mod host;
mod listener;
mod metrics;
mod page;

pub use hyper::StatusCode;
pub use prometheus_client::collector::Collector;
pub use prometheus_client::encoding::DescriptorEncoder;

pub use crate::listener::{ListenError, Listener, Options};
pub use crate::metrics::{Encoder, Metrics};
pub use crate::page::{Answer, Section, Table};

use futures::future::{BoxFuture, FutureExt};

/// A part of a daemon, as it shows itself.
///
/// All methods may wait, but none may block the thread: one thread answers all requests.
pub trait Part: Send + Sync + 'static {
    /// The part's metrics.
    ///
    /// # Errors
    /// The reason why there are none now, with which `/metrics` answers 503.
    fn metrics(&self) -> BoxFuture<'_, Result<Metrics, String>>;

    /// Asks the part for its health.
    ///
    /// # Errors
    /// The trouble that it has, with which `/healthz` answers 503.
    fn health(&self) -> BoxFuture<'_, Result<(), String>>;

    /// The part's section of the status page.
    ///
    /// # Errors
    /// The reason why there is none now, which the page shows instead.
    fn section(&self) -> BoxFuture<'_, Result<Section, String>>;

    /// Paths of the part's own pages, such as `/groups`.
    fn paths(&self) -> &'static [&'static str] {
        &[]
    }

    /// Answers a request for one of [`Part::paths`]; `query` is what follows the question mark, as it was sent.
    fn page(&self, path: &'static str, query: &str) -> BoxFuture<'_, Answer> {
        let _ = (path, query);
        std::future::ready(Answer::text(StatusCode::NOT_FOUND, "there is no such page")).boxed()
    }
}
