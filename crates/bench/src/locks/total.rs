//! The lock servers' own counts.

use crate::BenchError;

/// The sums of some totals over all lock servers of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub requests: u64,
    pub waiting: u64,
    pub calls: u64,
    pub grants: u64,
}

/// Returns what the lock servers of a store count.
pub(super) async fn totals(store: &nacre::Store) -> Result<Totals, BenchError> {
    let mut sums = Totals::default();
    for part in store.lock_totals().await? {
        let of = |name: &str| {
            part.report[name].as_u64().ok_or_else(|| {
                BenchError::Process(format!("the lock server {} does not tell its {name}", part.server))
            })
        };
        sums.requests += of("requests")?;
        sums.waiting += of("waiting")?;
        sums.calls += of("calls")?;
        sums.grants += of("grants")?;
    }
    Ok(sums)
}
