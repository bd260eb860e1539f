//! The role `meta`: the daemon's metadata rank, and what it shows.

use std::collections::HashMap;
use std::fmt;

use futures::future::{BoxFuture, FutureExt, ready};
use nacre::Engine;
use nacre_meta::role::{Handle, MetaRole, Options, Totals};
use nacre_object::StoreError;
use nacre_remote::Membership;
use nacre_rpc::client::LinkOptions;
use nacre_rpc::{Address, ClusterKey};
use nacre_status::{Collector, DescriptorEncoder, Encoder, Metrics, Part, Section, Table};

use crate::lock;
use crate::options::ServerOptions;
use crate::served_store::ServedStore;

/// The name of a daemon that keeps its store alone: there is no other one.
const KEEPER: &str = "store";
/// The number of sequencers that the status page shows.
const SHOWN_MAX: usize = 100;
/// The number of sequencers whose rates are metrics.
const BUSIEST_MAX: usize = 20;

/// Creates the rank of a daemon.
pub(crate) fn create(
    options: &ServerOptions,
    membership: &Membership,
    kept: &ServedStore,
    key: Option<ClusterKey>,
) -> Result<MetaRole, StoreError> {
    MetaRole::new(Options {
        store: lock::objects(options, membership, kept)?,
        rank: options.meta_rank,
        keeps_store: matches!(kept, ServedStore::Log { .. }),
        lease: options.meta_lease,
        takeover: options.meta_takeover,
        servers: servers(options, membership),
        link: LinkOptions { key, ..LinkOptions::default() },
    })
}

/// Returns the addresses of the servers of the store, at which a rank may be that names none of its own.
fn servers(options: &ServerOptions, membership: &Membership) -> Vec<Address> {
    match options.store.as_ref().map(|uri| &uri.engine) {
        _ if !membership.is_alone() => {
            membership.members().names().iter().filter_map(|name| name.parse().ok()).collect()
        }
        Some(Engine::Servers(servers)) => servers.clone(),
        _ => Vec::new(),
    }
}

/// Lets the rank of a daemon that listens begin.
pub(crate) fn begin(
    role: &mut MetaRole,
    membership: &Membership,
    kept: &ServedStore,
    listen: &[Address],
) -> Result<(), StoreError> {
    let (name, addresses) = match kept {
        _ if !membership.is_alone() => (membership.name().to_owned(), vec![membership.name().to_owned()]),
        ServedStore::Log { .. } => (KEEPER.to_owned(), Vec::new()),
        ServedStore::Other(_) => {
            for address in listen.iter().filter(|address| reachable(address).is_none()) {
                tracing::warn!(
                    "clients of the store cannot be told of {address}, because its path is not UTF-8"
                );
            }
            let addresses: Vec<String> = listen.iter().filter_map(reachable).collect();
            let first = listen.first().map(|first| reachable(first).unwrap_or_else(|| first.to_string()));
            (format!("{}@{}", first.unwrap_or_default(), crate::machine()), addresses)
        }
    };
    role.begin(name, addresses)
}

/// Returns an address as others reach it: one that stands for all of the machine's by the machine's name. `None` if it is a path that is
/// not UTF-8, which the records of a rank do not hold.
fn reachable(address: &Address) -> Option<String> {
    let text = address.to_os_string().into_string().ok()?;
    for all in ["0.0.0.0:", "[::]:"] {
        if let Some(port) = text.strip_prefix(all) {
            return Some(format!("{}:{port}", crate::machine()));
        }
    }
    Some(text)
}

/// The rank as a part of the daemon's pages.
pub(crate) struct MetaPart(pub(crate) Handle);

struct Source(Handle);

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source(meta)")
    }
}

impl Collector for Source {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Totals {
            rank,
            state,
            epoch,
            sessions,
            sequencers,
            positions,
            takeovers,
            counts,
            migrations,
            queue,
            forwarded,
            ..
        } = self.0.totals();
        let load = self.0.load(BUSIEST_MAX);
        let mut encoder = Encoder::new(encoder);
        encoder.gauge("active", "1 if the daemon has the authority", f64::from(state == "active"))?;
        encoder.gauge("rank", "The number of the daemon's rank", f64::from(rank))?;
        let help = "Requests of clients in about the last 5 seconds, per second";
        encoder.gauge("requests_per_second", help, load.requests_per_second)?;
        let help = format!("Requests for each of the {BUSIEST_MAX} busiest sequencers, per second");
        let names = load.resources.iter().map(|resource| resource.id.to_string()).collect::<Vec<_>>();
        let rates = names.iter().zip(&load.resources);
        encoder.gauges(
            "sequencer_requests_per_second",
            &help,
            rates.map(|(name, resource)| ([("object", name.as_str())], resource.requests_per_second)),
        )?;
        encoder.gauge("queue", "Requests that wait", queue as f64)?;
        encoder.counter("forwarded", "Requests that were forwarded to other ranks", forwarded)?;
        encoder.counter("migrations", "Sequencers that were moved to other ranks", migrations.count)?;
        let help = "Time for which sequencers were frozen before they moved";
        encoder.seconds("paused_seconds", help, migrations.paused_us as f64 / 1e6)?;
        let help = "The longest time for which a sequencer was frozen before it moved";
        encoder.gauge("paused_seconds_max", help, migrations.paused_us_max as f64 / 1e6)?;
        encoder.gauge("epoch", "The rank's epoch", epoch as f64)?;
        encoder.gauge("sessions", "Sessions of clients", sessions as f64)?;
        encoder.gauge("sequencers", "Sequencers in memory", sequencers as f64)?;
        encoder.counter("takeovers", "Times that the daemon took the authority", takeovers)?;
        encoder.counter("positions", "Positions that the rank itself handed out", positions)?;
        encoder.counter("served", "Requests that the rank itself answered", counts.served)?;
        encoder.counter("grants", "Grants of capabilities", counts.grants)?;
        encoder.counter("revocations", "Requests to holders for their capabilities", counts.revocations)?;
        encoder.counter("releases", "Capabilities that were given back", counts.releases)?;
        encoder.counter("losses", "Capabilities that were lost with their holders", counts.losses)?;
        encoder.counter(
            "sessions_broken",
            "Sessions that did not give back what they were asked for",
            counts.broken,
        )?;
        encoder.counter("decisions", "Decisions of capability policies in Lua", counts.decisions)?;
        let help = "Decisions that capability policies in Lua failed to make";
        encoder.counter("undecided", help, counts.undecided)?;
        let help = "Time for which capabilities that were given back had been held";
        encoder.seconds("held_seconds", help, counts.held_us as f64 / 1e6)?;
        encoder.counter(
            "held_operations",
            "Operations under capabilities that were given back",
            counts.operations,
        )
    }
}

impl Part for MetaPart {
    fn metrics(&self) -> BoxFuture<'_, Result<Metrics, String>> {
        ready(Ok(Metrics { prefix: "nacre_meta", source: Box::new(Source(self.0.clone())) })).boxed()
    }

    fn health(&self) -> BoxFuture<'_, Result<(), String>> {
        ready(Ok(())).boxed()
    }

    fn section(&self) -> BoxFuture<'_, Result<Section, String>> {
        let totals = self.0.totals();
        let mut section = Section { title: "meta".to_owned(), ..Section::default() };
        section.row(format!("rank {}", totals.rank), totals.state);
        match totals.epoch {
            0 => section.row(
                "authority",
                match &totals.elsewhere[..] {
                    [] => "with another daemon, or with none yet".to_owned(),
                    addresses => addresses.join(", "),
                },
            ),
            epoch => section.row("epoch", epoch),
        }
        section.row("lease", format!("{} ms", totals.lease.as_millis()));
        section.row("sessions", totals.sessions);
        let counts = totals.counts;
        section.row(
            "grants",
            format!("{}, {} asked back, {} lost", counts.grants, counts.revocations, counts.losses),
        );
        let load = self.0.load(usize::MAX);
        section.row("requests", format!("{:.0} per second, {} wait", load.requests_per_second, load.queue));
        let migrations = totals.migrations;
        if migrations.count > 0 {
            let longest_ms = migrations.paused_us_max as f64 / 1e3;
            section.row("moved away", format!("{}, {longest_ms:.1} ms at the longest", migrations.count));
        }
        if totals.forwarded > 0 {
            section.row("forwarded", totals.forwarded);
        }
        let rates: HashMap<_, _> =
            load.resources.iter().map(|resource| (&resource.id, resource.requests_per_second)).collect();
        let cells = |(id, shown): &(nacre_object::ObjectId, nacre_meta::service::Shown)| {
            let holder = match (shown.held, shown.holder) {
                (false, _) => "-".to_owned(),
                (true, 0) => "not known yet".to_owned(),
                (true, session) => session.to_string(),
            };
            vec![
                id.to_string(),
                shown.policy.to_string(),
                shown.tail.to_string(),
                holder,
                shown.waiting.to_string(),
                format!("{:.0}", rates.get(id).copied().unwrap_or(0.0)),
            ]
        };
        section.tables.push(Table {
            title: "sequencers".to_owned(),
            heads: vec!["object", "policy", "tail", "holder", "waiting", "requests/s"],
            rows: self.0.list(SHOWN_MAX).iter().map(cells).collect(),
        });
        ready(Ok(section)).boxed()
    }
}
