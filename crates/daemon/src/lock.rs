//! The role `lock`: the daemon's lock server, its place among those of the store, its administration, and what it shows.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt, ready};
use nacre::{Engine, Store, Uri};
use nacre_lock::Stripe;
use nacre_lock::cycle::cycles;
use nacre_lock::message::SessionId;
use nacre_lock::role::{Handle, HeldLock, LockRole, Options, Totals};
use nacre_lock::server::Wait;
use nacre_object::watch::{Watch, WatchOptions};
use nacre_object::{ErrorKind, ObjectId, ObjectStore, Outcome, Reply, StoreError, Transaction};
use nacre_remote::Membership;
use nacre_rpc::Address;
use nacre_status::{Collector, DescriptorEncoder, Encoder, Metrics, Part, Section, Table};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::options::ServerOptions;
use crate::served_store::ServedStore;

/// The name of the object with the server's records, unless another member keeps the object of that name.
const LEDGER: &str = "nacre/locks";

/// The largest number of requests in one reply: even with the longest names it fits into a frame.
const LOCKS_MAX: usize = 8192;
/// The number of waiting requests up to which a report says who waits for whom, and that of the waits in it: finding them out
/// takes time for each pair.
const WAITING_MAX: usize = 512;
const WAITS_MAX: usize = 8192;
/// The number of requests that the status page shows.
const SHOWN_MAX: usize = 100;

/// Starts the lock server of a daemon. Blocks.
pub(crate) fn start(
    options: &ServerOptions,
    membership: &Membership,
    kept: &ServedStore,
) -> Result<LockRole, StoreError> {
    let servers = membership.members().names().len() as u32;
    let server = membership.own() as u32;
    LockRole::start(Options {
        stripe: Stripe { bytes: options.lock_stripe_bytes, servers, server },
        lease: options.lock_lease,
        indexing: options.lock_table,
        records: Arc::new(kept.clone()),
        ledger: ledger(membership)?,
        volatile: kept.is_volatile(),
        objects: objects(options, membership, kept)?,
    })
}

/// Returns the name of the object with the records: one that this member keeps.
pub(crate) fn ledger(membership: &Membership) -> Result<ObjectId, StoreError> {
    let mut name = LEDGER.to_owned();
    for number in 1.. {
        let object: ObjectId = name.parse()?;
        if membership.keeps(&object) {
            return Ok(object);
        }
        name = format!("{LEDGER}-{number}");
    }
    Err(StoreError::new(ErrorKind::Invalid, "no name of an object is this member's"))
}

/// Returns all objects of a store: this member's, and those of the other members behind their addresses.
pub(crate) fn objects(
    options: &ServerOptions,
    membership: &Membership,
    kept: &ServedStore,
) -> Result<Arc<dyn ObjectStore>, StoreError> {
    if membership.is_alone() {
        return Ok(Arc::new(kept.clone()));
    }
    let all = members(options, membership)?;
    Ok(Arc::new(AllMembers { own: kept.clone(), membership: membership.clone(), all }))
}

/// Returns a handle on the servers of the store, this one included.
pub(crate) fn members(options: &ServerOptions, membership: &Membership) -> Result<Store, StoreError> {
    let names = membership.members().names();
    let servers = names.iter().map(|name| name.parse()).collect::<Result<Vec<Address>, _>>()?;
    let uri_options = nacre::Options { key: options.key.clone(), ..Default::default() };
    Store::open_apart(&Uri { engine: Engine::Servers(servers), options: uri_options })
}

/// The objects of all members, as one of them reaches them.
struct AllMembers {
    own: ServedStore,
    membership: Membership,
    all: Store,
}

impl ObjectStore for AllMembers {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        match self.membership.keeps(object) {
            true => self.own.apply(object, transaction),
            false => self.all.apply(object, transaction),
        }
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        ObjectStore::list(&self.all, after, limit)
    }

    fn watch(&self, object: &ObjectId, options: WatchOptions) -> Reply<Watch> {
        match self.membership.keeps(object) {
            true => self.own.watch(object, options),
            false => self.all.watch(object, options),
        }
    }
}

/// The part of the requests to list.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LocksArgument {
    after: Option<u64>,
    limit: Option<usize>,
}

/// The session to break.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BreakArgument {
    session: u64,
}

/// The calls about the lock server.
pub(crate) const METHODS: [&str; 3] = ["locks", "lock-waits", "break-lock-session"];

/// Answers a call about the lock server; `None` if the method is not one of its own.
pub(crate) fn call(lock: &Handle, method: &str, argument: &Bytes) -> Option<Reply<Bytes>> {
    let wrong = |_: serde_json::Error| crate::administration::wrong_argument(method);
    let answer = match method {
        "locks" => {
            let argument: Result<LocksArgument, _> = match &argument[..] {
                [] => Ok(LocksArgument::default()),
                text => serde_json::from_slice(text),
            };
            argument.map_err(wrong).map(|LocksArgument { after, limit }| {
                report(lock, after, limit.unwrap_or(LOCKS_MAX).min(LOCKS_MAX))
            })
        }
        "lock-waits" => Ok(waits_json(lock)),
        "break-lock-session" => {
            let argument: Result<BreakArgument, _> = serde_json::from_slice(argument);
            argument
                .map_err(wrong)
                .map(|BreakArgument { session }| json!({ "broken": lock.break_session(SessionId(session)) }))
        }
        _ => return None,
    };
    Some(Reply::ready(answer.and_then(|answer| crate::administration::json(&answer))))
}

fn report(lock: &Handle, after: Option<u64>, limit: usize) -> Value {
    let (totals, locks) = (lock.totals(), lock.list(after, limit));
    let next =
        if limit > 0 && locks.len() == limit { locks.last().map(|lock| lock.request.key) } else { None };
    // Who asks for no requests asks for the totals alone.
    let waits = if limit > 0 { few_waits(lock, &totals) } else { None };
    let pairs = waits.as_ref().map(|waits| {
        let mut pairs: Vec<[u64; 2]> = waits.iter().map(|wait| [wait.session.0, wait.holder.0]).collect();
        pairs.sort_unstable();
        pairs.dedup();
        pairs
    });
    // Those that this server sees now, and those that span servers, which the first one looks for.
    let mut cycles = cycles(waits.into_iter().flatten().map(|wait| (wait.session, wait.holder)));
    cycles.extend(lock.spanning_cycles());
    let cycles: Vec<Vec<u64>> =
        cycles.into_iter().map(|cycle| cycle.into_iter().map(|session| session.0).collect()).collect();
    let mut report = json!({
        "server": totals.slot.server,
        "servers": totals.slot.servers,
        "stripe_bytes": totals.slot.stripe_bytes,
        "epoch": totals.epoch,
        "lease_ms": totals.lease.as_millis() as u64,
        "in_grace": totals.in_grace,
        "grace_left_ms": totals.grace_left.as_millis() as u64,
        "sessions": totals.sessions,
        "requests": totals.requests,
        "waiting": totals.waiting,
        "calls": totals.calls,
        "grants": totals.grants,
        "locks": locks.iter().map(lock_json).collect::<Vec<_>>(),
        "waits": pairs,
        "cycles": cycles,
        "next": next,
    });
    if let Some(report) = report.as_object_mut().filter(|_| limit == 0) {
        ["locks", "waits", "cycles", "next"].into_iter().for_each(|name| _ = report.remove(name));
    }
    report
}

/// Returns the waits at a server, unless so many requests wait that finding out for whom would take long.
fn few_waits(lock: &Handle, totals: &Totals) -> Option<Vec<Wait>> {
    (totals.waiting <= WAITING_MAX).then(|| lock.waits(WAITS_MAX))
}

/// The waits at a server, for whoever looks for cycles that span servers.
fn waits_json(lock: &Handle) -> Value {
    let totals = lock.totals();
    let waits = few_waits(lock, &totals).map(|waits| {
        let numbers = |wait: &Wait| [wait.session.0, wait.request, wait.byte, wait.holder.0, wait.held_by];
        waits.iter().map(numbers).collect::<Vec<_>>()
    });
    json!({ "server": totals.slot.server, "epoch": totals.epoch, "waits": waits })
}

fn lock_json(lock: &HeldLock) -> Value {
    let request = &lock.request;
    json!({
        "file": &*request.file,
        "session": request.session.0,
        "request": request.request,
        "mode": lock.mode(),
        "state": lock.state(),
        "offset": request.bounds.0,
        "end": request.bounds.1,
        "last_held": request.progress.last,
        "next_wanted": request.progress.next,
        "grant": { "epoch": request.token.epoch, "number": request.token.number },
    })
}

/// The lock server as a part of the daemon's pages.
pub(crate) struct LockPart(pub(crate) Handle);

struct Source(Handle);

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source(lock)")
    }
}

impl Collector for Source {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Totals {
            epoch,
            in_grace,
            sessions,
            requests,
            waiting,
            calls,
            grants,
            refusals,
            fences,
            cycles,
            ..
        } = self.0.totals();
        let mut encoder = Encoder::new(encoder);
        encoder.gauge("epoch", "The lock server's epoch", epoch as f64)?;
        encoder.gauge("in_grace", "1 in the grace period after a restart", f64::from(in_grace))?;
        encoder.gauge("sessions", "Lock sessions", sessions as f64)?;
        encoder.gauge("requests", "Lock requests that hold bytes or wait", requests as f64)?;
        encoder.gauge("waiting", "Lock requests that wait", waiting as f64)?;
        encoder.counter("calls", "Calls of clients", calls)?;
        encoder.counter("grants", "Replies that reported held bytes", grants)?;
        encoder.counter("refusals", "Calls that were refused", refusals)?;
        encoder.counter("fences", "Fences raised against sessions that lapsed or were broken", fences)?;
        encoder.counter("cycles", "Cycles of sessions that wait for each other", cycles)
    }
}

impl Part for LockPart {
    fn metrics(&self) -> BoxFuture<'_, Result<Metrics, String>> {
        ready(Ok(Metrics { prefix: "nacre_lock", source: Box::new(Source(self.0.clone())) })).boxed()
    }

    fn health(&self) -> BoxFuture<'_, Result<(), String>> {
        ready(Ok(())).boxed()
    }

    fn section(&self) -> BoxFuture<'_, Result<Section, String>> {
        let totals = self.0.totals();
        let mut section = Section { title: "lock".to_owned(), ..Section::default() };
        let slot = totals.slot;
        section.row("server", format!("{} of {}", slot.server + 1, slot.servers));
        section.row("stripe", format!("{} bytes", slot.stripe_bytes));
        section.row("epoch", totals.epoch);
        if totals.in_grace {
            section.row("grace period", "only locks from before the restart are taken");
        }
        section.row("lease", format!("{} ms", totals.lease.as_millis()));
        section.row("sessions", totals.sessions);
        section.row("requests", format!("{}, {} of them waiting", totals.requests, totals.waiting));
        section.row("fences raised", totals.fences);
        let cells = |lock: &HeldLock| {
            let request = &lock.request;
            let bytes = format!("{}..{}", request.bounds.0, request.bounds.1);
            let next = request.progress.next.map_or_else(|| "-".to_owned(), |next| next.to_string());
            let (mode, state) = (lock.mode().to_owned(), lock.state().to_owned());
            let file =
                ObjectId::try_from(&*request.file).map_or_else(|_| String::new(), |file| file.to_string());
            vec![file, request.session.to_string(), mode, state, bytes, next]
        };
        section.tables.push(Table {
            title: "locks".to_owned(),
            heads: vec!["file", "session", "mode", "state", "bytes", "waits for byte"],
            rows: self.0.list(None, SHOWN_MAX).iter().map(cells).collect(),
        });
        ready(Ok(section)).boxed()
    }
}
