//! Nacre's daemon: roles in one process, with one set of addresses for clients and the administration, one HTTP
//! listener and one shutdown.
//!
//! The role `store` serves a store to clients and runs methods of object classes beside the objects, the role `lock` grants locks on bytes of its objects; the role `reflect`
//! reflects datagrams. A daemon has any of them:
//!
//! ```
//! use nacre_daemon::{Daemon, ServerOptions};
//!
//! let socket = std::env::temp_dir().join(format!("nacre-doc-{}", std::process::id()));
//! let listen = vec![nacre::Address::Unix(socket).to_os_string()];
//! let store = Some("mem:".parse()?);
//! let options = ServerOptions { store, listen, http: None, ..Default::default() };
//! let daemon = Daemon::start(&options)?;
//! let store = nacre::open(&daemon.addresses()[0].to_string())?.blocking();
//! store.object("greeting")?.write(0, "hello")?;
//! daemon.stop()?;
//! # Ok::<(), nacre::Error>(())
//! ```

#![forbid(unsafe_code)]

mod administration;
mod balance;
mod capability;
mod class;
mod cluster;
mod counters;
mod fullness;
mod guard;
mod lease;
mod lock;
mod lock_cycles;
mod membership;
mod meta;
mod metrics;
mod options;
pub mod reflect;
mod served_store;
mod shown;
mod watch;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use nacre_class::network::Runner;
use nacre_lock::role::LockRole;
pub use nacre_lock::role::{LEASE_MAX, LEASE_MIN};
pub use nacre_lock::table::Indexing;
/// The format of the stores that this program writes; it reads those of every older one.
pub use nacre_logstore::FORMAT_VERSION as STORE_FORMAT;
use nacre_meta::role::MetaRole;
pub use nacre_meta::role::{
    LEASE_MAX as META_LEASE_MAX, LEASE_MIN as META_LEASE_MIN, TAKEOVER_MAX as META_TAKEOVER_MAX,
    TAKEOVER_MIN as META_TAKEOVER_MIN,
};
pub use nacre_object::copy::is_lock_ledger;
use nacre_object::pace::Paced;
use nacre_object::{ErrorKind, ObjectStore, StoreError};
use nacre_planes::forward::ForwardError;
use nacre_remote::{AdminService, LeaseService, Leases, Requests, StoreService, WatchService, WatchStats};
use nacre_rpc::{Address, ClusterKey, ServeOptions, Server, Services};
use nacre_status::{ListenError, Listener, Part};

use crate::administration::Administration;
use crate::balance::Balancing;
use crate::capability::CapabilityPolicies;
use crate::class::ClassPart;
use crate::cluster::{Cluster, Summary};
use crate::guard::Guarded;
use crate::lease::LeasePart;
use crate::lock_cycles::CycleWatch;
pub use crate::membership::MEMBERS_FILE;
use crate::metrics::Sources;
pub use crate::options::{
    Beacons, FOLDER_DEFAULT, HTTP_ADDRESS_DEFAULT, LOCK_STRIPE_BYTES_DEFAULT, MAILBOX_BYTES_MIN,
    ServerOptions,
};
use crate::reflect::{ReflectService, Server as Reflector, ServerError as ReflectorError};
use crate::served_store::{NoObjects, ServedStore};
use crate::shown::StorePart;
use crate::watch::WatchPart;

/// A running daemon. Dropping it stops it too, but discards any error.
#[derive(derive_more::Debug)]
#[debug("Daemon")]
pub struct Daemon {
    server: Option<Server>,
    lock: Option<LockRole>,
    lock_cycles: Option<CycleWatch>,
    balancing: Option<Balancing>,
    policies: Option<CapabilityPolicies>,
    meta: Option<MetaRole>,
    cluster: Option<Cluster>,
    classes: Option<Arc<Runner>>,
    watches: Option<WatchStats>,
    leases: Option<Arc<Leases>>,
    reflector: Option<Reflector>,
    http: Option<Listener>,
    store: Option<Paced<ServedStore>>,
    requests: Arc<Requests>,
    sources: Arc<OnceLock<Arc<Sources>>>,
}

impl Daemon {
    /// Starts all roles. When this returns, clients can connect and members can join.
    ///
    /// # Errors
    /// `Invalid` if the options contradict each other, or name what cannot be used however often it is tried; otherwise the
    /// reason why a role cannot start. No role runs then.
    pub fn start(options: &ServerOptions) -> Result<Daemon, StoreError> {
        let invalid = |text: &str| Err(StoreError::new(ErrorKind::Invalid, text));
        if options.open && options.key.is_some() {
            return invalid("a server with a key is not open: pass --open or --key, not both");
        }
        if options.store.is_none() && options.reflect.is_none() {
            return invalid(match options.lock {
                true => "the role lock locks bytes of objects, and is for a daemon with the role store",
                false => "a daemon without a role has nothing to do",
            });
        }
        if let Some(http) = options.http_options() {
            http.check().map_err(http_error)?;
        }
        let listen = options.addresses()?;
        if options.lock && options.store.is_none() {
            return invalid("the role lock locks bytes of objects, and is for a daemon with the role store");
        }
        if options.meta && options.store.is_none() {
            return invalid(
                "the role meta keeps its state in a store, and is for a daemon with the role store",
            );
        }
        if options.store.is_some() && listen.is_empty() {
            return invalid("the role store needs an address to listen on");
        }
        let key = options.key.as_deref().map(ClusterKey::load).transpose().map_err(wrong_setting)?;
        if options.store.is_some() {
            // No store is created for a daemon that cannot start.
            Server::check_addresses(&listen, key.is_some() || options.open).map_err(address_error)?;
        }
        let kept = options.store.as_ref().map(|uri| ServedStore::open(uri, options)).transpose()?;
        let store = kept.clone().map(|kept| Paced::new(kept, options.pace_options()));
        let reflector = match &options.reflect {
            None => None,
            Some(reflect) => {
                let mut reflect = reflect.clone();
                reflect.store = reflect.store.or_else(|| kept.as_ref().map(ServedStore::handle));
                Some(Reflector::start(reflect).map_err(reflector_error)?)
            }
        };
        let requests = Arc::new(Requests::default());
        let mut daemon = Daemon {
            server: None,
            lock: None,
            lock_cycles: None,
            balancing: None,
            policies: None,
            meta: None,
            cluster: None,
            classes: None,
            watches: None,
            leases: None,
            reflector,
            http: None,
            store,
            requests,
            sources: Arc::default(),
        };
        daemon.server = match daemon.serve(options, listen, key, kept.as_ref()) {
            Err(error) if options.store.is_none() && options.listen_if_possible => {
                tracing::warn!("{error}; this daemon has no administration, name an address for it");
                None
            }
            server => server?,
        };
        daemon.http = serve_http(options, daemon.parts())?;
        Ok(daemon)
    }

    /// Serves clients and the administration, if there are addresses to listen on.
    fn serve(
        &mut self,
        options: &ServerOptions,
        listen: Vec<Address>,
        key: Option<ClusterKey>,
        kept: Option<&ServedStore>,
    ) -> Result<Option<Server>, StoreError> {
        if listen.is_empty() {
            return Ok(None);
        }
        let membership = membership::settle(options, &listen, kept)?;
        let mut guarded = Vec::new();
        if let Some(kept) = kept {
            guarded.extend(lease::recover(kept, &membership)?.map(|mark| (mark, guard::MARK)));
            self.leases = kept.leases().cloned();
        }
        self.lock = match kept {
            Some(kept) if options.lock => Some(lock::start(options, &membership, kept)?),
            _ => None,
        };
        self.meta = match kept {
            Some(kept) if options.meta => Some(meta::create(options, &membership, kept, key.clone())?),
            _ => None,
        };
        let lock = self.lock.as_ref().map(LockRole::handle);
        if let Some(lock) = lock.as_ref().filter(|_| membership.own() == 0 && !membership.is_alone()) {
            let servers = membership.members().names().len() as u32;
            let members = lock::members(options, &membership)?;
            self.lock_cycles = Some(CycleWatch::start(members, servers, lock.clone())?);
        }
        let summary = kept.map(|kept| {
            let name = match membership.is_alone() {
                // Daemons in front of one store know nothing of each other, so their names have the machine's in them.
                true => format!("{}@{}", listen[0], machine()),
                false => membership.name().to_owned(),
            };
            let roles = [
                ("store", true),
                ("lock", lock.is_some()),
                ("meta", self.meta.is_some()),
                ("reflect", self.reflector.is_some()),
            ];
            let roles = roles.into_iter().filter_map(|(role, has)| has.then_some(role)).collect();
            let (kept, requests) = (kept.clone(), self.requests.clone());
            let (started, stats) = (Instant::now(), Default::default());
            Arc::new(Summary { kept, requests, roles, name, started, stats })
        });
        let administration = Administration {
            store: self.store.clone(),
            lock,
            summary: summary.clone(),
            sources: self.sources.clone(),
        };
        if self.lock.is_some() {
            guarded.push((lock::ledger(&membership)?, guard::LEDGER));
        }
        let objects: Arc<dyn ObjectStore> = match &self.store {
            Some(store) => Arc::new(Guarded { store: store.clone(), kept: guarded }),
            None => Arc::new(NoObjects),
        };
        if let Some(kept) = kept {
            self.classes = Some(class::start(options, &membership, kept, objects.clone())?);
        }
        let requests = self.requests.clone();
        let watches = WatchService::new(objects.clone(), membership.clone());
        self.watches = kept.map(|_| watches.stats());
        let mut services = Services::new()
            .with(StoreService::new(objects.clone(), membership.clone(), requests.clone()))
            .with(watches)
            .with(AdminService::new(Arc::new(administration), requests));
        if let Some(leases) = &self.leases {
            services = services.with(LeaseService::new(objects, membership.clone(), leases.clone()));
        }
        if let Some(reflector) = &self.reflector {
            services = services.with(ReflectService::new(reflector.handle()));
        }
        if let Some(lock) = &self.lock {
            services = services.with(lock.service());
        }
        if let Some(meta) = &self.meta {
            services = services.with(meta.service());
        }
        if let Some(classes) = &self.classes {
            services = services.with(classes.service());
        }
        let serve = ServeOptions {
            listen,
            threads: options.threads,
            key,
            open: options.open,
            socket: options.socket_access()?,
            limits: options.limits()?,
            services,
            poll: options.poll,
        };
        let server = Server::start(serve).map_err(|error| match kept {
            Some(_) => address_error(error),
            None => error,
        })?;
        if let Some(store) = &self.store {
            let addresses = server.addresses().iter().map(Address::to_string).collect();
            let (stats, store, requests) = (server.stats().clone(), store.clone(), self.requests.clone());
            let (started, fullness, pictures) = (Instant::now(), Default::default(), Default::default());
            let sources = Sources { stats, requests, store, addresses, started, fullness, pictures };
            let _ = self.sources.set(Arc::new(sources));
        }
        if let (Some(kept), Some(meta)) = (kept, &mut self.meta) {
            let policies = CapabilityPolicies::start(lock::objects(options, &membership, kept)?)?;
            meta.set_programs(policies.programs());
            self.policies = Some(policies);
            meta::begin(meta, &membership, kept, server.addresses())?;
            let name = summary.as_ref().map_or_else(machine, |summary| summary.name.clone());
            let (rank, objects) = (meta.handle(), lock::objects(options, &membership, kept)?);
            self.balancing = Some(Balancing::start(objects, &name, rank)?);
        }
        if let (Some(kept), Some(summary)) = (kept, summary) {
            let _ = summary.stats.set(server.stats().clone());
            self.cluster = cluster::start(options, &membership, kept, summary)?;
        }
        Ok(Some(server))
    }

    /// Returns the parts shown over HTTP, one for each role.
    fn parts(&self) -> Vec<Arc<dyn Part>> {
        let mut parts: Vec<Arc<dyn Part>> = Vec::new();
        if let Some(sources) = self.sources.get() {
            parts.push(Arc::new(StorePart(sources.clone())));
        }
        if let Some(lock) = &self.lock {
            parts.push(Arc::new(lock::LockPart(lock.handle())));
        }
        if let Some(meta) = &self.meta {
            parts.push(Arc::new(meta::MetaPart(meta.handle())));
        }
        if let Some(classes) = &self.classes {
            parts.push(Arc::new(ClassPart(classes.clone())));
        }
        if let Some(watches) = &self.watches {
            parts.push(Arc::new(WatchPart(watches.clone())));
        }
        if let Some(leases) = &self.leases {
            parts.push(Arc::new(LeasePart(leases.clone())));
        }
        if let Some(reflector) = &self.reflector {
            parts.push(Arc::new(reflector.handle()));
        }
        parts
    }

    /// Returns the addresses of clients and the administration, with the actual ports in place of 0.
    pub fn addresses(&self) -> &[Address] {
        self.server.as_ref().map_or(&[], Server::addresses)
    }

    /// Returns the address of `/metrics`, `/healthz` and the status page, if they are served.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(Listener::address)
    }

    /// Returns the reflector, if the daemon has that role.
    pub fn reflector(&self) -> Option<&Reflector> {
        self.reflector.as_ref()
    }

    /// Completes when a role has ended by itself, a failure that [`Daemon::stop`] reports.
    pub fn failed(&self) -> impl Future<Output = ()> + Send + 'static {
        let ended = self.reflector.as_ref().map(Reflector::ended);
        async move {
            match ended {
                Some(ended) => ended.await,
                None => std::future::pending().await,
            }
        }
    }

    /// Stops the daemon: accepts nothing more, finishes accepted requests, tells the reflector's members, saves what
    /// they left, syncs and closes the store. Blocks until that is done.
    ///
    /// # Errors
    /// The reason why a role failed, earlier or while stopping; the other roles are stopped in good order in any case.
    pub fn stop(self) -> Result<(), StoreError> {
        let Daemon {
            server,
            lock,
            lock_cycles,
            balancing,
            policies,
            meta,
            cluster,
            classes,
            reflector,
            http,
            store,
            ..
        } = self;
        // What it has begun to move is moved; it begins nothing more.
        drop(balancing);
        // The rank goes on with the scripts that it has.
        drop(policies);
        // It says that the server stops, while the others can still be reached over their connections and this one.
        drop(cluster);
        // A standby can take over while the last replies are still on their way.
        if let Some(meta) = meta {
            meta.stop();
        }
        // Its calls are to end before the connections over which it makes them.
        drop(lock_cycles);
        if let Some(classes) = &classes {
            classes.stop();
        }
        // Members are told while clients receive their last replies: neither waits for the other. Both need the store.
        let reflected = std::thread::scope(|scope| {
            let reflected = reflector.map(|reflector| scope.spawn(|| reflector.stop()));
            if let Some(server) = server {
                server.stop();
            }
            reflected.map_or(Ok(()), |thread| thread.join().unwrap_or(Err(ReflectorError::Panicked)))
        });
        drop(http);
        // Calls whose callers are gone may still run, to their bounds at most; the store is closed to them then.
        drop(classes);
        if let Some(lock) = lock {
            lock.stop();
        }
        let closed = store.map_or(Ok(()), |store| store.inner().close());
        reflected.map_err(reflector_error).and(closed)
    }
}

/// Returns the name of this machine.
fn machine() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the failure to use a file or a folder that the options name. One that each further start would repeat is `Invalid`:
/// a key that others may read, or a store of a format that this program does not know.
fn wrong_setting(error: StoreError) -> StoreError {
    match error.kind {
        ErrorKind::Denied | ErrorKind::Unsupported => error.with_kind(ErrorKind::Invalid),
        _ => error,
    }
}

/// Adds advice to the error about an address that is in use.
fn address_error(error: StoreError) -> StoreError {
    match error.kind {
        ErrorKind::Busy => {
            let text = format!(
                "{}; another server listens there: stop it, or choose another address with --listen",
                error.message
            );
            StoreError::new(ErrorKind::Busy, text)
        }
        _ => error,
    }
}

/// Converts the reflector's error to the daemon's.
fn reflector_error(error: ReflectorError) -> StoreError {
    match error {
        ReflectorError::Store(error) => error,
        ReflectorError::Forward(ForwardError::Listen { .. }) => {
            StoreError::new(ErrorKind::Busy, format!("{error}; choose another address"))
        }
        error => StoreError::new(ErrorKind::Io, error.to_string()),
    }
}

impl ServerOptions {
    /// Returns the settings of the HTTP listener, if there is to be one.
    fn http_options(&self) -> Option<nacre_status::Options> {
        let (address, hosts) = (self.http.clone()?, self.http_hosts.clone());
        Some(nacre_status::Options { address, open: self.http_open, hosts })
    }
}

/// Serves the parts over HTTP, if the options ask for it.
fn serve_http(options: &ServerOptions, parts: Vec<Arc<dyn Part>>) -> Result<Option<Listener>, StoreError> {
    let Some(listen) = options.http_options() else { return Ok(None) };
    match Listener::start(&listen, parts) {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if error.is_taken() && options.http_if_free => {
            tracing::warn!("{error}; this server has none, name another address with --http");
            Ok(None)
        }
        Err(error) => Err(http_error(error)),
    }
}

/// Converts the HTTP listener's error to the daemon's.
fn http_error(error: ListenError) -> StoreError {
    let kind = match &error {
        ListenError::Open { .. } | ListenError::Address { .. } | ListenError::Host { .. } => {
            ErrorKind::Invalid
        }
        ListenError::Io { .. } if error.is_taken() => ErrorKind::Busy,
        ListenError::Io { .. } => ErrorKind::Io,
    };
    StoreError::new(kind, error.to_string())
}

/// Runs until `shutdown` completes or a role fails, then stops in good order. `ready` is called when clients can
/// connect.
///
/// # Errors
/// Those of [`Daemon::start`] and [`Daemon::stop`].
pub async fn run(
    options: ServerOptions,
    ready: impl FnOnce(&Daemon),
    shutdown: impl Future<Output = ()>,
) -> Result<(), StoreError> {
    let panicked = |error: tokio::task::JoinError| StoreError::new(ErrorKind::Io, error.to_string());
    let daemon = tokio::task::spawn_blocking(move || Daemon::start(&options)).await.map_err(panicked)??;
    ready(&daemon);
    tokio::select! {
        () = shutdown => tracing::info!("stopping: finishing what was accepted"),
        () = daemon.failed() => tracing::error!("stopping: a role has failed"),
    }
    tokio::task::spawn_blocking(|| daemon.stop()).await.map_err(panicked)??;
    tracing::info!("stopped");
    Ok(())
}
