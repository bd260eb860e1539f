//! The leases on a daemon's objects: what a restart knows of them, and what pages and metrics show.

use std::fmt;
use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt, ready};
use nacre_object::{ErrorKind, ObjectId, ObjectStore, Outcome, ReadOp, StoreError, Transaction};
use nacre_remote::{Leases, Membership};
use nacre_status::{Collector, DescriptorEncoder, Encoder, Metrics, Part, Section};

use crate::served_store::ServedStore;

/// The object whose existence tells that clients had leases on objects of the server, or the beginning of its name.
const MARK: &str = "nacre/leases";

/// Prepares the leases of a store before it is served. Returns the object that tells of them after a restart, if there can be one.
/// Blocks.
pub(crate) fn recover(kept: &ServedStore, membership: &Membership) -> Result<Option<ObjectId>, StoreError> {
    let Some(leases) = kept.leases().filter(|_| !kept.is_volatile()) else { return Ok(None) };
    let mark = mark(membership)?;
    let look = kept.apply(&mark, Transaction::new().read(ReadOp::Stat));
    let is_marked = match futures::executor::block_on(look)? {
        Outcome::Done(done) => done.existed,
        Outcome::Refused(_) => true,
    };
    leases.recover(mark.clone(), is_marked);
    Ok(Some(mark))
}

/// Returns the name of the object: one that this member keeps.
fn mark(membership: &Membership) -> Result<ObjectId, StoreError> {
    let mut name = MARK.to_owned();
    for number in 1.. {
        let object: ObjectId = name.parse()?;
        if membership.keeps(&object) {
            return Ok(object);
        }
        name = format!("{MARK}-{number}");
    }
    Err(StoreError::new(ErrorKind::Invalid, "no name of an object is this member's"))
}

/// The leases as a part of the daemon's pages.
pub(crate) struct LeasePart(pub(crate) Arc<Leases>);

struct Source(Arc<Leases>);

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source(lease)")
    }
}

impl Collector for Source {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let counts = self.0.counts();
        let mut encoder = Encoder::new(encoder);
        let help = "Sessions of clients with leases, those of lost clients among them until they lapse";
        encoder.gauge("sessions", help, counts.sessions as f64)?;
        encoder.gauge("leases", "Leases of clients on directories and inodes", counts.leases as f64)?;
        let help = "Writes that wait for leases to be given back";
        encoder.gauge("writes_waiting", help, self.0.waiting() as f64)?;
        encoder.counter("granted", "Leases that were granted", counts.granted)?;
        let help = "Leases that were not granted, because the object was being changed, there were too many, or the \
                    client is suspended";
        encoder.counter("refused", help, counts.refused)?;
        let help = "Leases that were asked back, because somebody was to change the object";
        encoder.counter("revoked", help, counts.revoked)?;
        encoder.counter("lapsed", "Leases that ended without being given back", counts.lapsed)?;
        let help = "Leases that were asked back, and given back late or never";
        encoder.counter("late", help, counts.late)?;
        let help = "Connections, machines and users that get no leases for a while, because changes had to wait \
                    for them";
        encoder.gauge("suspended", help, counts.suspended as f64)
    }
}

impl Part for LeasePart {
    fn metrics(&self) -> BoxFuture<'_, Result<Metrics, String>> {
        ready(Ok(Metrics { prefix: "nacre_lease", source: Box::new(Source(self.0.clone())) })).boxed()
    }

    fn health(&self) -> BoxFuture<'_, Result<(), String>> {
        ready(Ok(())).boxed()
    }

    fn section(&self) -> BoxFuture<'_, Result<Section, String>> {
        let counts = self.0.counts();
        let mut section = Section { title: "leases".to_owned(), ..Section::default() };
        section.row("sessions", counts.sessions);
        section.row("leases", counts.leases);
        let asked = format!("{}, {} late, {} lapsed", counts.revoked, counts.late, counts.lapsed);
        section.row("asked back", asked);
        section.row("suspended", counts.suspended);
        section.row("writes that wait", self.0.waiting());
        ready(Ok(section)).boxed()
    }
}
