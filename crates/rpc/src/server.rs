//! The server, which offers services over TCP and Unix sockets.
//!
//! A server runs a few threads of its own, each with a runtime of its own; a connection stays on the thread that it was
//! assigned when it was accepted, so that serving a request never crosses threads.

mod budget;
mod connection;
mod mailbox;
mod placement;
mod service;
mod sessions;
mod stats;

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{fmt, io};

pub use budget::Reservation;
pub use mailbox::{Parts, Publisher};
use nacre_object::{ErrorKind, StoreError};
use nacre_quantity::count;
use nacre_quantity::repeated::{REPORT_INTERVAL, Repeated};
use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
pub use service::{Handled, Incoming, Origin, Peer, Service, Services};
pub use stats::{Counter, Stats};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{mpsc, watch};

use crate::channel::Channel;
use crate::handshake::{self, AdmissionPolicy, Status};
use crate::key::ClusterKey;
use crate::limit::{PROTOCOL_VERSION, PROTOCOL_VERSION_MIN};
use crate::poll::{self, Poller, Tap};
use crate::server::budget::Budget;
use crate::server::connection::Connection;
use crate::server::placement::{Load, Placement};
use crate::server::sessions::Sessions;
use crate::socket::{self, SocketAccess, SocketFile};
use crate::stream::{Accepted, Address, Stream};

/// The limits of connections in memory, number and time.
#[derive(Clone, Debug)]
pub struct ServerLimits {
    /// The number of requests of one connection that may wait for their replies.
    pub requests_max: usize,
    /// The bytes of those requests.
    pub request_bytes_max: usize,
    /// The bytes of replies that may wait for one peer to read them.
    pub reply_bytes_max: usize,
    /// The bytes of events, and of parts of replies, that may wait for one peer to read them. Further events are
    /// dropped, and the peer is told that it has missed some; what makes further parts waits.
    pub mailbox_bytes_max: usize,
    /// The bytes that all connections together may hold: received, waiting for a reply, or waiting to be sent. Sessions,
    /// subscriptions, events and parts of replies take half of it at most.
    pub held_bytes_max: usize,
    /// The number of connections; lower if the system allows the process fewer open files.
    pub connections_max: usize,
    /// The number of further connections that have not completed the handshake yet.
    pub unproven_max: usize,
    /// The time after which a peer that leaves a request half sent, or replies unread, is disconnected.
    pub stall_timeout: Duration,
    /// The slowest pace, in bytes per second, at which a peer may send a request or read its replies while others wait
    /// for memory.
    pub pace_bytes_min: usize,
    /// The time for which it may be slower than that before it is disconnected.
    pub pace_timeout: Duration,
    /// The time that a peer has for the handshake.
    pub handshake_timeout: Duration,
    /// The number of sessions that outlive their connections, including those that have a connection.
    pub sessions_max: usize,
    /// The time for which a session waits for its client to come back.
    pub session_timeout: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            requests_max: 4096,
            request_bytes_max: 32 << 20,
            reply_bytes_max: 8 << 20,
            mailbox_bytes_max: 256 << 10,
            held_bytes_max: 1 << 30,
            connections_max: 10_000,
            unproven_max: 1000,
            stall_timeout: Duration::from_secs(60),
            pace_bytes_min: 64 << 10,
            pace_timeout: Duration::from_secs(10),
            handshake_timeout: Duration::from_secs(5),
            sessions_max: 20_000,
            session_timeout: Duration::from_secs(30),
        }
    }
}

/// The configuration of a server.
#[derive(Clone, Debug, Default)]
pub struct ServeOptions {
    /// The addresses to listen on. Port 0 stands for any free port.
    pub listen: Vec<Address>,
    /// The number of threads; 0 means one for each processor, and at most four.
    pub threads: usize,
    /// The cluster key. Without one, the server listens only on Unix sockets, unless `open` is set; with one, every
    /// client must prove that it has it.
    pub key: Option<ClusterKey>,
    /// True if TCP addresses may be served without a key, which gives full access to anybody who can reach them.
    pub open: bool,
    /// The access to the Unix sockets.
    pub socket: SocketAccess,
    /// The limits of connections in memory, number and time.
    pub limits: ServerLimits,
    /// The services that are offered.
    pub services: Services,
    /// The time for which a thread that has nothing to do polls before it sleeps; zero not to. By default that of the
    /// environment ([`poll::time`]).
    pub poll: Option<Duration>,
}

/// The state that all connections of a server share.
pub(crate) struct Shared {
    services: Services,
    key: Option<ClusterKey>,
    socket: SocketAccess,
    limits: ServerLimits,
    stats: Arc<Stats>,
    budget: Arc<Budget>,
    sessions: Sessions,
    /// The connections that were rejected.
    rejected: Mutex<Repeated>,
}

impl Shared {
    /// Counts a rejected connection, and logs it: the first of a series by default, all of them at level `debug`.
    fn reject(&self, peer: &str, why: &dyn fmt::Display) {
        let due = self.rejected.lock().happened(Instant::now());
        self.stats.rejected.add(1);
        match due {
            None => tracing::debug!(peer, "connection rejected: {why}"),
            Some(_) => tracing::info!(peer, "connection rejected: {why}"),
        }
    }

    /// Logs the number of rejected connections that no line told of.
    fn report_rejected(&self) {
        let unreported = self.rejected.lock().ended();
        if let Some(more) = unreported.filter(|unreported| *unreported > 0) {
            tracing::info!(
                "{} rejected; --log nacre_rpc=debug says which",
                count(more, "further connection", "further connections")
            );
        }
    }
}

/// A running server. Dropping it stops it without waiting.
#[derive(derive_more::Debug)]
#[debug("Server")]
pub struct Server {
    addresses: Vec<Address>,
    shared: Arc<Shared>,
    stats: Arc<Stats>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
    /// Dropped last, so that the socket files exist for as long as the server listens.
    sockets: Vec<SocketFile>,
}

enum Listener {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener),
}

impl Server {
    /// Checks that a server could listen on addresses, without doing so. TCP addresses must be `protected` by a key, or
    /// declared open.
    ///
    /// # Errors
    ///
    /// As of [`Server::start`]; `Invalid` also if two of them are in each other's way.
    pub fn check_addresses(addresses: &[Address], protected: bool) -> Result<(), StoreError> {
        let mut taken: Vec<(Place<'_>, &Address)> = Vec::new();
        for address in addresses {
            let places: Vec<Place<'_>> = match address {
                Address::Tcp(_) if !protected => return Err(unprotected(address)),
                Address::Tcp(text) => {
                    let found = text.to_socket_addrs().map_err(|error| cannot_listen(address, &error))?;
                    found.map(Place::Tcp).collect()
                }
                Address::Unix(path) => vec![Place::Unix(path)],
            };
            // A server listens at the first of them that it can.
            let mut result = Ok(());
            for place in places {
                result = match taken.iter().find(|(other, _)| place.is_in_the_way_of(other)) {
                    Some((_, other)) => Err(in_the_way(address, other)),
                    None => place.check_free().map_err(|error| cannot_listen(address, &error)),
                };
                if result.is_ok() {
                    taken.push((place, address));
                    break;
                }
            }
            result?;
        }
        Ok(())
    }

    /// Starts a server. Clients can connect as soon as this returns.
    ///
    /// # Errors
    ///
    /// `Invalid` if a TCP address is to be listened on without a key and without `open`, or if there can be no socket at the
    /// address, `Busy` if it is in use, `Io` if listening or starting threads fails.
    pub fn start(options: ServeOptions) -> Result<Server, StoreError> {
        let (mut listeners, mut addresses, mut sockets) = (Vec::new(), Vec::new(), Vec::new());
        for address in &options.listen {
            if options.key.is_none() && !options.open && matches!(address, Address::Tcp(_)) {
                return Err(unprotected(address));
            }
            let (listener, actual, file) =
                listen(address, options.socket).map_err(|error| cannot_listen(address, &error))?;
            listeners.push(listener);
            addresses.push(actual);
            sockets.extend(file);
        }
        let cannot = |error: io::Error| {
            StoreError::new(ErrorKind::Io, format!("cannot start a thread of the server: {error}"))
        };
        let count = match options.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from).min(4),
            count => count,
        };
        let mut options = options;
        let poll = options.poll.unwrap_or_else(poll::time);
        fit_descriptors(&mut options.limits);
        let stats = Arc::new(Stats::default());
        let budget = Arc::new(Budget::new(options.limits.held_bytes_max, stats.clone()));
        let shared = Arc::new(Shared {
            services: options.services,
            key: options.key,
            socket: options.socket,
            sessions: Sessions::new(options.limits.sessions_max, budget.clone()),
            budget,
            limits: options.limits,
            stats: stats.clone(),
            rejected: Mutex::default(),
        });
        let (stop, stopped) = watch::channel(false);
        let (workers, receivers): (Vec<Worker>, Vec<_>) = (0..count)
            .map(|_| {
                let (sender, receiver) = mpsc::unbounded_channel();
                (Worker { sender, poller: Poller::default() }, receiver)
            })
            .unzip();
        let mut listeners = Some(listeners);
        let mut threads = Vec::new();
        for (index, receiver) in receivers.into_iter().enumerate() {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot)?;
            let acceptors = listeners.take().map(|listeners| (listeners, workers.clone()));
            let (shared, stopped, poller) = (shared.clone(), stopped.clone(), workers[index].poller.clone());
            let body = move || {
                runtime.block_on(async {
                    poller.run(poll);
                    work(shared, acceptors, receiver, stopped).await;
                })
            };
            let thread = std::thread::Builder::new().name(format!("nacre-serve-{index}"));
            threads.push(thread.spawn(body).map_err(cannot)?);
        }
        Ok(Server { addresses, shared, stats, stop, threads, sockets })
    }

    /// Returns the addresses listened on, with the actual ports in place of 0.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Returns the counters of the server.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// Returns the number of sessions that outlive their connections, including those that have a connection.
    pub fn sessions(&self) -> usize {
        self.shared.sessions.len()
    }

    /// Stops the server: accepts nothing more, finishes accepted requests, writes their replies and closes the
    /// connections. Blocks until that is done.
    pub fn stop(mut self) {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            // A thread that panicked has printed the reason; the others are still joined.
            let _ = thread.join();
        }
        self.sockets.clear();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

/// Returns the error for an address that cannot be listened on.
fn cannot_listen(address: &Address, error: &io::Error) -> StoreError {
    let kind = match error.kind() {
        io::ErrorKind::AddrInUse => ErrorKind::Busy,
        // A path that is too long or that something else than a socket has, or no address at all.
        io::ErrorKind::InvalidInput | io::ErrorKind::AlreadyExists => ErrorKind::Invalid,
        _ => ErrorKind::Io,
    };
    StoreError::new(kind, format!("cannot listen on {address}: {error}"))
}

/// Returns the error for an address that another one of the same server excludes.
fn in_the_way(address: &Address, other: &Address) -> StoreError {
    let text = format!(
        "cannot listen on {address}: {other}, on which the server is to listen too, is in the way; name one of them"
    );
    StoreError::new(ErrorKind::Invalid, text)
}

/// A place at which a server listens.
enum Place<'a> {
    Tcp(SocketAddr),
    Unix(&'a Path),
}

impl Place<'_> {
    /// Returns whether no server can listen at both places.
    fn is_in_the_way_of(&self, other: &Place<'_>) -> bool {
        match (self, other) {
            // For port 0, the system chooses one that is free.
            (Place::Tcp(one), Place::Tcp(other)) => {
                one.port() == other.port() && one.port() != 0 && overlap(one.ip(), other.ip())
            }
            (Place::Unix(one), Place::Unix(other)) => socket::is_same(one, other),
            _ => false,
        }
    }

    /// Checks that a server could listen here. Nobody can connect meanwhile, since a socket is bound and not listened on.
    fn check_free(&self) -> io::Result<()> {
        let address = match self {
            Place::Unix(path) => return socket::check_free(path),
            Place::Tcp(address) => *address,
        };
        let domain = socket2::Domain::for_address(address);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
        // Connections that an earlier server has left are not in the way of a listener.
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())
    }
}

/// Returns whether what is sent to one of two addresses may be for a listener at the other.
fn overlap(one: IpAddr, other: IpAddr) -> bool {
    let (one, other) = (one.to_canonical(), other.to_canonical());
    let covers = |all: IpAddr, one: IpAddr| {
        all.is_unspecified() && (all.is_ipv4() == one.is_ipv4() || all.is_ipv6() && takes_ipv4())
    };
    one == other || covers(one, other) || covers(other, one)
}

/// Returns whether listeners at all IPv6 addresses listen at all IPv4 addresses too, as the system is set.
fn takes_ipv4() -> bool {
    let socket = socket2::Socket::new(socket2::Domain::IPV6, socket2::Type::STREAM, None);
    socket.and_then(|socket| socket.only_v6()).is_ok_and(|only| !only)
}

fn listen(address: &Address, access: SocketAccess) -> io::Result<(Listener, Address, Option<SocketFile>)> {
    match address {
        Address::Tcp(text) => {
            let listener = std::net::TcpListener::bind(text.as_str())?;
            listener.set_nonblocking(true)?;
            let actual = listener.local_addr()?;
            Ok((Listener::Tcp(listener), Address::Tcp(actual.to_string()), None))
        }
        Address::Unix(path) => {
            let (listener, file) = socket::listen(path, access)?;
            Ok((Listener::Unix(listener), address.clone(), Some(file)))
        }
    }
}

/// The number of open files that a server leaves to other purposes than connections.
const OTHER_FILES: usize = 256;

/// The number of connections beyond the limits that are told so at once; further ones are closed without a word.
const REFUSED_MAX: usize = 64;

/// Raises the limit of open files as far as the system allows, and limits the connections to what is available.
fn fit_descriptors(limits: &mut ServerLimits) {
    let now = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: now.maximum, maximum: now.maximum };
    // If this is refused, the limit stays as it is.
    let _ = setrlimit(Resource::Nofile, raised);
    let Some(files) = getrlimit(Resource::Nofile).current else { return };
    let files = usize::try_from(files).unwrap_or(usize::MAX);
    let (connections, unproven) = shares(files, limits.connections_max, limits.unproven_max);
    if connections < limits.connections_max {
        tracing::warn!(
            "the system allows this process {files} open files: there may be {connections} connections, not {}",
            limits.connections_max
        );
    }
    (limits.connections_max, limits.unproven_max) = (connections, unproven);
}

/// Returns the number of connections, and of unproven ones besides, that fit into a limit of open files.
fn shares(files: usize, connections_max: usize, unproven_max: usize) -> (usize, usize) {
    let room = files.saturating_sub(OTHER_FILES.min(files / 4)).max(2);
    let unproven = unproven_max.min((room / 4).max(1));
    (connections_max.min(room - unproven), unproven)
}

/// Returns the error for a TCP address that nothing protects.
fn unprotected(address: &Address) -> StoreError {
    let audience = match address.is_local() {
        true => "every user of this machine",
        false => "everybody who can reach it",
    };
    let text = format!(
        "cannot listen on {address} without a cluster key: {audience} could read and remove everything; \
         make a key with \"nacre keygen FILE\" and give it with --key, listen on a Unix socket, or pass \
         --open to allow this"
    );
    StoreError::new(ErrorKind::Invalid, text)
}

/// A thread of the server, as the acceptors of connections see it.
#[derive(Clone)]
struct Worker {
    sender: mpsc::UnboundedSender<(Accepted, Tap)>,
    poller: Poller,
}

impl Worker {
    fn load(&self) -> Load {
        let (connections, turns) = self.poller.load();
        Load { connections, turns }
    }
}

type Acceptors = (Vec<Listener>, Vec<Worker>);

/// Runs a thread of the server; the first one also accepts connections for all.
async fn work(
    shared: Arc<Shared>,
    acceptors: Option<Acceptors>,
    mut accepted: mpsc::UnboundedReceiver<(Accepted, Tap)>,
    mut stop: watch::Receiver<bool>,
) {
    let is_first = acceptors.is_some();
    // The first tick of an interval comes at once, and would end a series that has just begun.
    let mut report_interval =
        tokio::time::interval_at(tokio::time::Instant::now() + REPORT_INTERVAL, REPORT_INTERVAL);
    if let Some((listeners, workers)) = acceptors {
        let placement = Arc::new(Mutex::new(Placement::new(workers.len(), Instant::now())));
        for listener in listeners {
            tokio::spawn(accept(listener, shared.clone(), workers.clone(), placement.clone(), stop.clone()));
        }
    }
    let mut sessions = tokio::task::JoinSet::new();
    let stopped = stop.clone();
    loop {
        tokio::select! {
            stream = accepted.recv() => match stream {
                None => break,
                Some((stream, tap)) => {
                    sessions.spawn(serve(stream, shared.clone(), stopped.clone(), tap));
                }
            },
            Some(_) = sessions.join_next() => {}
            _ = report_interval.tick(), if is_first => shared.report_rejected(),
            _ = stop.wait_for(|stop| *stop) => break,
        }
    }
    while sessions.join_next().await.is_some() {}
    if is_first {
        shared.report_rejected();
    }
}

async fn accept(
    listener: Listener,
    shared: Arc<Shared>,
    workers: Vec<Worker>,
    placement: Arc<Mutex<Placement>>,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    enum Bound {
        Tcp(TcpListener),
        Unix(UnixListener),
    }
    let listener = match listener {
        Listener::Tcp(listener) => Bound::Tcp(TcpListener::from_std(listener)?),
        Listener::Unix(listener) => Bound::Unix(UnixListener::from_std(listener)?),
    };
    let mut failed = Repeated::default();
    loop {
        let one = async {
            match &listener {
                Bound::Tcp(listener) => {
                    let (stream, peer) = listener.accept().await?;
                    Ok(Accepted::Tcp(stream.into_std()?, peer))
                }
                Bound::Unix(listener) => {
                    let (stream, _) = listener.accept().await?;
                    let user = stream.peer_cred().ok().map(|peer| peer.uid());
                    Ok(Accepted::Unix(stream.into_std()?, user))
                }
            }
        };
        let stream: io::Result<Accepted> = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
            stream = one => stream,
        };
        match stream {
            Ok(stream) => {
                shared.stats.accepted.add(1);
                // Each costs an open file until it has introduced itself, which the other parts of the process need.
                if shared.stats.unproven.get() >= (shared.limits.unproven_max + REFUSED_MAX) as u64 {
                    shared.reject("unknown", &"too many peers have not introduced themselves yet");
                    continue;
                }
                shared.stats.unproven.change(0, 1);
                let loads: Vec<Load> = workers.iter().map(Worker::load).collect();
                let dice = |count: usize| rand::random_range(0..count);
                let worker = &workers[placement.lock().choose(Instant::now(), &loads, dice)];
                // A worker that is gone is stopping, and so is this task.
                if worker.sender.send((stream, worker.poller.tap())).is_err() {
                    shared.stats.unproven.change(1, 0);
                }
            }
            Err(error) => {
                if let Some(times) = failed.happened(Instant::now()) {
                    tracing::warn!(%error, times, "cannot accept a connection");
                }
                // Usually there are too many open files: closing some takes time, and a busy loop does not help.
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Serves one connection, from its first byte to its last.
async fn serve(stream: Accepted, shared: Arc<Shared>, mut stop: watch::Receiver<bool>, tap: Tap) {
    let (name, admitted, origin) = match &stream {
        Accepted::Tcp(_, peer) => (peer.to_string(), true, Some(Origin::of_address(peer.ip()))),
        Accepted::Unix(_, user) => {
            let admitted = user.is_some_and(|user| shared.socket.admits(user));
            ("a Unix socket".to_owned(), admitted, user.map(Origin::User))
        }
    };
    let stats = &shared.stats;
    // Unproven peers must not take the places of those that have proven the key.
    let full = stats.connections.get() >= shared.limits.connections_max as u64
        || stats.unproven.get() > shared.limits.unproven_max as u64;
    let shut = match () {
        _ if !admitted => Some(Status::NonMember),
        _ if full => Some(Status::Full),
        _ => None,
    };
    let introduced = async {
        let stream = Stream::adopt(stream)?;
        let oldest = (PROTOCOL_VERSION_MIN..PROTOCOL_VERSION)
            .find(|version| shared.services.serve_version(*version))
            .unwrap_or(PROTOCOL_VERSION);
        let versions = oldest..=PROTOCOL_VERSION;
        let guest =
            handshake::accept(&stream, AdmissionPolicy { key: shared.key.as_ref(), versions, shut }).await?;
        let peer = Peer { version: guest.version, origin };
        Ok::<_, handshake::Refused>((Channel::new(stream, guest.seal), peer))
    };
    let introduced = tokio::select! {
        introduced = tokio::time::timeout(shared.limits.handshake_timeout, introduced) => introduced,
        _ = stop.wait_for(|stop| *stop) => return stats.unproven.change(1, 0),
    };
    stats.unproven.change(1, 0);
    match introduced {
        Ok(Ok((channel, peer))) => {
            stats.connections.change(0, 1);
            if let Err(error) = Connection::new(channel, shared.clone(), peer, tap).run(stop).await {
                tracing::debug!(peer = %name, %error, "connection ended");
            }
            stats.connections.change(1, 0);
        }
        Ok(Err(error)) => shared.reject(&name, &error),
        Err(_) => shared.reject(&name, &"the peer did not introduce itself in time"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_one_origin_whichever_of_its_addresses_it_uses() {
        let origin = |text: &str| Origin::of_address(text.parse().unwrap());
        assert_eq!(origin("2001:db8:1:2::3"), origin("2001:db8:1:2:ffff::4"));
        assert_ne!(origin("2001:db8:1:2::3"), origin("2001:db8:1:3::3"));
        assert_eq!(origin("::ffff:192.0.2.1"), origin("192.0.2.1"));
        assert_ne!(origin("192.0.2.1"), origin("192.0.2.2"));
    }

    #[test]
    fn connections_fit_into_the_open_files_that_there_are() {
        assert_eq!(shares(1 << 20, 10_000, 1000), (10_000, 1000));
        assert_eq!(shares(1024, 10_000, 1000), (576, 192));
        assert_eq!(shares(64, 10_000, 1000), (36, 12));
        for files in 0..3000 {
            let (connections, unproven) = shares(files, 10_000, 1000);
            assert!(connections >= 1 && unproven >= 1);
            assert!(files < 8 || connections + unproven < files, "{files}");
        }
    }
}
