//! Serves an object store over TCP and Unix sockets.
//!
//! A server runs a few threads of its own, each with a runtime that nothing else uses; a connection stays on the
//! thread that it was given when it was accepted, so that serving a request never crosses threads.

mod admin;
mod budget;
mod session;
mod stats;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use nacre_object::{ErrorKind, ObjectStore, StoreError};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{mpsc, watch};

use crate::channel::Channel;
use crate::handshake;
use crate::key::ClusterKey;
use crate::server::budget::Budget;
use crate::server::session::Session;
use crate::stream::{Accepted, Address, Stream};

pub use admin::{Admin, METHOD_BYTES_MAX, Progress};
pub use stats::{Counter, Ending, LATENCY_BUCKETS, Operation, Stats, latency_bound};

/// How much connections may hold, and for how long.
#[derive(Clone, Debug)]
pub struct ServerLimits {
    /// Requests of one connection that wait for the store.
    pub requests_max: usize,
    /// Bytes of those requests.
    pub request_bytes_max: usize,
    /// Bytes of replies that wait for one peer to read them.
    pub reply_bytes_max: usize,
    /// Bytes that all connections together may hold: received, waiting for the store, or waiting to be sent.
    pub held_bytes_max: usize,
    /// Connections.
    pub connections_max: usize,
    /// A peer that leaves a request half sent, or replies unread, for so long is disconnected.
    pub stall_timeout: Duration,
    /// How long a peer may take to introduce itself.
    pub handshake_timeout: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            requests_max: 4096,
            request_bytes_max: 32 << 20,
            reply_bytes_max: 8 << 20,
            held_bytes_max: 1 << 30,
            connections_max: 10_000,
            stall_timeout: Duration::from_secs(60),
            handshake_timeout: Duration::from_secs(5),
        }
    }
}

/// How to serve.
#[derive(Clone, Default)]
pub struct ServeOptions {
    /// Addresses to listen on. Port 0 means any port that is free.
    pub listen: Vec<Address>,
    /// Threads; 0 means one for each processor, and at most four.
    pub threads: usize,
    /// The cluster key. Without one, only loopback addresses and Unix sockets may be listened on; with one, every
    /// client must prove that it has it.
    pub key: Option<ClusterKey>,
    /// How much connections may hold, and for how long.
    pub limits: ServerLimits,
    /// Who answers calls of the administration.
    pub admin: Option<Arc<dyn Admin>>,
}

/// What all connections of a server share.
pub(crate) struct Shared {
    store: Arc<dyn ObjectStore>,
    key: Option<ClusterKey>,
    limits: ServerLimits,
    admin: Option<Arc<dyn Admin>>,
    stats: Arc<Stats>,
    budget: Budget,
}

/// A running server. Dropping it stops it without waiting.
pub struct Server {
    addresses: Vec<Address>,
    stats: Arc<Stats>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

enum Listener {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener),
}

impl Server {
    /// Starts to serve `store`. When this returns, clients can connect.
    pub fn start(store: Arc<dyn ObjectStore>, options: ServeOptions) -> Result<Server, StoreError> {
        let mut listeners = Vec::new();
        let mut addresses = Vec::new();
        for address in &options.listen {
            if options.key.is_none() && !address.is_local() {
                let text = format!(
                    "cannot listen on {address} without a cluster key: others than this machine could connect; \
                     make a key with nacre keygen, or listen on a loopback address"
                );
                return Err(StoreError::new(ErrorKind::Denied, text));
            }
            let (listener, actual) = listen(address).map_err(|error| {
                let kind =
                    if error.kind() == io::ErrorKind::AddrInUse { ErrorKind::Busy } else { ErrorKind::Io };
                StoreError::new(kind, format!("cannot listen on {address}: {error}"))
            })?;
            listeners.push(listener);
            addresses.push(actual);
        }
        let cannot = |error: io::Error| {
            StoreError::new(ErrorKind::Io, format!("cannot start a thread of the server: {error}"))
        };
        let count = match options.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from).min(4),
            count => count,
        };
        let stats = Arc::new(Stats::default());
        let shared = Arc::new(Shared {
            store,
            key: options.key,
            budget: Budget::new(options.limits.held_bytes_max),
            limits: options.limits,
            admin: options.admin,
            stats: stats.clone(),
        });
        let (stop, stopped) = watch::channel(false);
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..count).map(|_| mpsc::unbounded_channel()).unzip();
        let mut listeners = Some(listeners);
        let mut threads = Vec::new();
        for (index, receiver) in receivers.into_iter().enumerate() {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot)?;
            let acceptors = listeners.take().map(|listeners| (listeners, senders.clone()));
            let (shared, stopped) = (shared.clone(), stopped.clone());
            let body = move || runtime.block_on(work(shared, acceptors, receiver, stopped));
            let thread = std::thread::Builder::new().name(format!("nacre-serve-{index}"));
            threads.push(thread.spawn(body).map_err(cannot)?);
        }
        Ok(Server { addresses, stats, stop, threads })
    }

    /// The addresses that it listens on, with the ports that were found for those given as 0.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// What it counts.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// Stops: accepts nothing more, finishes what was accepted, writes the replies, closes the connections. Blocks
    /// until that is done.
    pub fn stop(mut self) {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            // A thread that panicked has printed why; the others are waited for all the same.
            let _ = thread.join();
        }
        for address in &self.addresses {
            if let Address::Unix(path) = address {
                // Nobody can connect any more, whether the file goes or not.
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

fn listen(address: &Address) -> io::Result<(Listener, Address)> {
    match address {
        Address::Tcp(text) => {
            let listener = std::net::TcpListener::bind(text.as_str())?;
            listener.set_nonblocking(true)?;
            let actual = listener.local_addr()?;
            Ok((Listener::Tcp(listener), Address::Tcp(actual.to_string())))
        }
        Address::Unix(path) => {
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            // What nobody answers on was left behind by a server that was killed.
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let listener = std::os::unix::net::UnixListener::bind(path)?;
            listener.set_nonblocking(true)?;
            Ok((Listener::Unix(listener), address.clone()))
        }
    }
}

type Acceptors = (Vec<Listener>, Vec<mpsc::UnboundedSender<Accepted>>);

/// What a thread of the server does: the first one also accepts connections for all.
async fn work(
    shared: Arc<Shared>,
    acceptors: Option<Acceptors>,
    mut accepted: mpsc::UnboundedReceiver<Accepted>,
    mut stop: watch::Receiver<bool>,
) {
    if let Some((listeners, workers)) = acceptors {
        let next = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        for listener in listeners {
            tokio::spawn(accept(listener, workers.clone(), next.clone(), stop.clone()));
        }
    }
    let mut sessions = tokio::task::JoinSet::new();
    let stopped = stop.clone();
    loop {
        tokio::select! {
            stream = accepted.recv() => match stream {
                None => break,
                Some(stream) => {
                    sessions.spawn(serve(stream, shared.clone(), stopped.clone()));
                }
            },
            Some(_) = sessions.join_next() => {}
            _ = stop.wait_for(|stop| *stop) => break,
        }
    }
    while sessions.join_next().await.is_some() {}
}

async fn accept(
    listener: Listener,
    workers: Vec<mpsc::UnboundedSender<Accepted>>,
    next: Arc<std::sync::atomic::AtomicUsize>,
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
    loop {
        let one = async {
            match &listener {
                Bound::Tcp(listener) => {
                    let (stream, peer) = listener.accept().await?;
                    Ok(Accepted::Tcp(stream.into_std()?, peer))
                }
                Bound::Unix(listener) => Ok(Accepted::Unix(listener.accept().await?.0.into_std()?)),
            }
        };
        let stream: io::Result<Accepted> = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
            stream = one => stream,
        };
        match stream {
            Ok(stream) => {
                let worker = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % workers.len();
                // A worker that is gone is stopping, and so is this task.
                let _ = workers[worker].send(stream);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                // Usually too many open files: closing some takes time, and spinning does not help.
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Serves one connection, from its first byte to its last.
async fn serve(stream: Accepted, shared: Arc<Shared>, mut stop: watch::Receiver<bool>) {
    let peer = match &stream {
        Accepted::Tcp(_, peer) => peer.to_string(),
        Accepted::Unix(_) => "a Unix socket".to_owned(),
    };
    let stats = &shared.stats;
    stats.accepted.add(1);
    stats.connections.change(0, 1);
    let full = stats.connections.get() > shared.limits.connections_max as u64;
    let introduced = async {
        let stream = Stream::adopt(stream)?;
        let seal = handshake::accept(&stream, shared.key.as_ref(), full).await?;
        Ok::<_, handshake::Refused>(Channel::new(stream, seal))
    };
    let introduced = tokio::select! {
        introduced = tokio::time::timeout(shared.limits.handshake_timeout, introduced) => introduced,
        _ = stop.wait_for(|stop| *stop) => return stats.connections.change(1, 0),
    };
    match introduced {
        Ok(Ok(channel)) => {
            if let Err(error) = Session::new(channel, shared.clone()).run(stop).await {
                tracing::debug!(%peer, %error, "connection ended");
            }
        }
        Ok(Err(error)) => {
            stats.rejected.add(1);
            tracing::info!(%peer, %error, "connection rejected");
        }
        Err(_) => {
            stats.rejected.add(1);
            tracing::info!(%peer, "connection rejected: the peer did not introduce itself in time");
        }
    }
    stats.connections.change(1, 0);
}
