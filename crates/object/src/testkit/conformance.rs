//! The suite that every [`ObjectStore`] must pass: one case for each sentence of the model.
//!
//! ```
//! use nacre_object::testkit::{MemoryStore, conformance};
//!
//! conformance::run(&MemoryStore::new(), "doc");
//! ```
//!
//! A case drives the store through [`Trial`], which applies every transaction to a [`Model`](crate::testkit::Model) as
//! well and fails where the two answer differently; in addition the cases state explicitly what they expect, so that an
//! error common to an engine and the model does not pass.
//!
//! [`run_connections`] runs the suite through several connections to one store: each transaction of a case goes through
//! the next one, and clients that are at work at once have one each.
//!
//! Stores may be shared: all object ids begin with the namespace that the caller gives, which must be one that was
//! never used in this store before. Objects are left behind.

mod append;
mod bytes;
mod concurrency;
mod connections;
mod differential;
mod fences;
mod guards;
mod key_versions;
mod keys;
mod large;
mod limits;
mod listing;
mod replace;
mod trial;
mod versions;
mod watching;

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

pub use differential::{compare, compare_copies, probes};
pub(super) use trial::brief;
pub use trial::{Connections, Failure, Trial};

use crate::ObjectStore;

/// A case: its name, and the function that runs it.
pub type Case = (&'static str, fn(&Trial<'_>) -> Result<(), Failure>);

/// Every case of the suite, by subject.
pub const CASES: &[&[Case]] = &[
    versions::CASES,
    guards::CASES,
    fences::CASES,
    bytes::CASES,
    append::CASES,
    keys::CASES,
    key_versions::CASES,
    limits::CASES,
    large::CASES,
    replace::CASES,
    listing::CASES,
    concurrency::CASES,
    connections::CASES,
    differential::CASES,
];

/// The amount of work for cases whose number of repetitions is arbitrary.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// The number of random histories compared with the model.
    pub histories: u64,
    /// The number of transactions in each of them.
    pub transactions: usize,
    /// The number of threads of the concurrent cases.
    pub threads: usize,
    /// The number of increments that each of these threads makes.
    pub increments: u64,
    /// The seed of the first history; the others follow it.
    pub seed: u64,
    /// The time after which an event of a watch counts as lost.
    pub patience: Duration,
    /// True if the store's announcements of changes are hints: instead of a change, a watcher may be told of a gap with the
    /// cause [`Unannounced`](crate::watch::Cause::Unannounced).
    pub hints: bool,
}

impl Default for Effort {
    fn default() -> Self {
        Self {
            histories: 60,
            transactions: 40,
            threads: 4,
            increments: 50,
            seed: 1,
            patience: Duration::from_secs(60),
            hints: false,
        }
    }
}

/// Runs every case on the calling thread and a few more, and panics with a list of those that failed.
///
/// A store whose replies are made by an async runtime needs that runtime to run on other threads; from within one,
/// use [`run_async`].
pub fn run(store: &dyn ObjectStore, namespace: &str) {
    run_with(store, namespace, Effort::default());
}

/// Runs every case, as [`run`] does, with a given effort.
pub fn run_with(store: &dyn ObjectStore, namespace: &str, effort: Effort) {
    run_connections(&[store], namespace, effort);
}

/// Runs every case, as [`run_with`] does, through several connections to the same store, at least one.
pub fn run_connections(connections: &[&dyn ObjectStore], namespace: &str, effort: Effort) {
    let failures = failures(connections, namespace, effort);
    let list: Vec<_> = failures.iter().map(|(name, failure)| format!("\n- {name}: {failure}")).collect();
    assert!(list.is_empty(), "{} cases of the conformance suite failed:{}", list.len(), list.concat());
}

/// Runs the cases of [`watch`](crate::watch) through several connections to the same store, at least one. They are not
/// among the others, because not every store can watch objects.
pub fn run_watching(connections: &[&dyn ObjectStore], namespace: &str, effort: Effort) {
    let failures = watching_failures(connections, namespace, effort);
    let list: Vec<_> = failures.iter().map(|(name, failure)| format!("\n- {name}: {failure}")).collect();
    assert!(list.is_empty(), "{} cases of watching failed:{}", list.len(), list.concat());
}

/// Runs the cases of [`run_watching`], and returns the names of those that failed, with the reasons.
pub fn watching_failures(
    connections: &[&dyn ObjectStore],
    namespace: &str,
    effort: Effort,
) -> Vec<(&'static str, Failure)> {
    failures_of(watching::CASES, connections, namespace, effort)
}

/// Runs every case, and returns the names of those that failed, with the reasons.
pub fn failures(
    connections: &[&dyn ObjectStore],
    namespace: &str,
    effort: Effort,
) -> Vec<(&'static str, Failure)> {
    CASES.iter().flat_map(|cases| failures_of(cases, connections, namespace, effort)).collect()
}

fn failures_of(
    cases: &[Case],
    connections: &[&dyn ObjectStore],
    namespace: &str,
    effort: Effort,
) -> Vec<(&'static str, Failure)> {
    let mut failures = Vec::new();
    for (name, case) in cases {
        if let Err(failure) = case(&Trial::new(connections, &format!("{namespace}/{name}"), effort)) {
            failures.push((*name, failure));
        }
    }
    failures
}

/// Runs every case, as [`run_with`] does, on a thread of its own while the caller's async runtime goes on.
pub async fn run_async(store: Arc<dyn ObjectStore>, namespace: &str, effort: Effort) {
    type Slot = (Option<std::thread::Result<()>>, Option<Waker>);
    let slot: Arc<Mutex<Slot>> = Arc::default();
    let namespace = namespace.to_string();
    let theirs = slot.clone();
    std::thread::spawn(move || {
        let suite = std::panic::AssertUnwindSafe(|| run_with(&store, &namespace, effort));
        let result = std::panic::catch_unwind(suite);
        let mut slot = theirs.lock().unwrap_or_else(PoisonError::into_inner);
        slot.0 = Some(result);
        if let Some(waker) = slot.1.take() {
            waker.wake();
        }
    });
    let result = std::future::poll_fn(|context| {
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        match slot.0.take() {
            Some(result) => Poll::Ready(result),
            None => {
                slot.1 = Some(context.waker().clone());
                Poll::Pending
            }
        }
    });
    if let Err(panic) = result.await {
        std::panic::resume_unwind(panic);
    }
}
