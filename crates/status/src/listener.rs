//! The listener, on a thread of its own, so that no scrape delays the daemon's main work.
//!
//! Everything that a peer can occupy is bounded: connections, the head of a request, and the duration of a request. A
//! connection carries one request.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use nacre_quantity::repeated::Repeated;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior};

use crate::Part;
use crate::host::{self, Hosts};
use crate::metrics::Format;
use crate::page::{self, Answer};
use crate::picture::SAMPLE_INTERVAL;

/// The number of connections that are served at a time; others wait to be accepted, for [`PLACE_TIME`] at most.
const CONNECTIONS_MAX: usize = 64;
/// The longest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// The greatest number of header fields.
const HEADERS_MAX: usize = 64;
/// The time that a peer may take to send the head of its request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// The time that a connection may last, including the reading of its answer: long enough for a head that comes late and
/// for parts that answer late.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(20);
/// The time for which a connection keeps its place while another one waits for it.
const PLACE_TIME: Duration = Duration::from_secs(1);
/// The pause in accepting connections after the system failed to accept one.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// The settings of a listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The address, `HOST:PORT`; port 0 stands for any free one.
    pub address: String,
    /// Allows addresses other than this machine's loopback.
    pub open: bool,
    /// Further names accepted in the `Host` of requests, besides those of loopback and the address itself.
    pub hosts: Vec<String>,
}

impl Options {
    /// Checks the address and the further names, as far as that can be done before there is a listener.
    ///
    /// # Errors
    /// [`ListenError::Address`] if the address is none; [`ListenError::Host`] if a name is none that a request could have.
    pub fn check(&self) -> Result<(), ListenError> {
        // The rule of the standard library, whose error says less.
        let is_address = |text: &str| {
            text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        };
        if !is_address(&self.address) {
            return Err(ListenError::Address { address: self.address.clone() });
        }
        match self.hosts.iter().find(|name| !host::is_host(name)) {
            Some(name) => Err(ListenError::Host { name: name.clone() }),
            None => Ok(()),
        }
    }
}

/// The reason why a listener cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address can be reached from other machines.
    #[error(
        "{address} can be reached from other machines, whose users could read the metrics and the status \
         page; use an address of 127.0.0.1, or pass --http-open to allow this"
    )]
    Open {
        /// The address as given.
        address: String,
    },
    /// The text is not an address.
    #[error(
        "cannot serve HTTP on \"{address}\", which is not HOST:PORT, such as 127.0.0.1:6471 or [::1]:6471"
    )]
    Address {
        /// The text as given.
        address: String,
    },
    /// A further name is none that a request could have.
    #[error(
        "--http-host {name}: requests never name a host like that; write its name or its address, without a port"
    )]
    Host {
        /// The name as given.
        name: String,
    },
    /// The system refuses to listen.
    #[error("cannot serve HTTP on {address}: {why}")]
    Io {
        /// The address as given.
        address: String,
        /// The system's reason.
        why: io::Error,
    },
}

impl ListenError {
    /// Returns whether the address is already in use.
    pub fn is_taken(&self) -> bool {
        matches!(self, ListenError::Io { why, .. } if why.kind() == io::ErrorKind::AddrInUse)
    }
}

/// A running listener, which stops when it is dropped.
#[derive(derive_more::Debug)]
#[debug("Listener")]
pub struct Listener {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Starts to serve the parts. Requests can be made as soon as this returns.
    ///
    /// # Errors
    /// Those of [`Options::check`], [`ListenError::Open`] if the address is not a loopback one and `open` is not set,
    /// [`ListenError::Io`] if it cannot be listened on.
    pub fn start(options: &Options, parts: Vec<Arc<dyn Part>>) -> Result<Listener, ListenError> {
        options.check()?;
        let failed = |why| ListenError::Io { address: options.address.clone(), why };
        let addresses: Vec<SocketAddr> = options.address.to_socket_addrs().map_err(failed)?.collect();
        if !options.open && addresses.iter().any(|address| !address.ip().is_loopback()) {
            return Err(ListenError::Open { address: options.address.clone() });
        }
        let listener = std::net::TcpListener::bind(&addresses[..]).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let shared = Arc::new(Shared { parts, hosts: Hosts::new(&options.hosts, &options.address) });
        let (stop, stopped) = oneshot::channel::<()>();
        let body = async move {
            let listener = TcpListener::from_std(listener)?;
            let sampled = sample(shared.clone());
            // Connections still open at the end are simply closed: a scrape is not worth waiting for.
            tokio::select! {
                () = accept(listener, shared) => {}
                () = sampled => {}
                _ = stopped => {}
            }
            Ok::<(), io::Error>(())
        };
        let thread = std::thread::Builder::new().name("nacre-http".to_owned());
        let thread = thread.spawn(move || {
            if let Err(error) = runtime.block_on(body) {
                tracing::error!(%error, "metrics and the status page are served no more");
            }
        });
        Ok(Listener { address, stop: Some(stop), thread: Some(thread.map_err(failed)?) })
    }

    /// Returns the address listened on, with the actual port in place of 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic has been reported already; there is nothing else to do about it here.
            let _ = thread.join();
        }
    }
}

struct Shared {
    parts: Vec<Arc<dyn Part>>,
    hosts: Hosts,
}

/// Has all parts sample what their pictures show, for ever.
async fn sample(shared: Arc<Shared>) {
    let mut ticks = tokio::time::interval(SAMPLE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        for part in &shared.parts {
            // A part that does not answer keeps no other one from being sampled.
            let _ = tokio::time::timeout(SAMPLE_INTERVAL, part.sample()).await;
        }
    }
}

/// The connections that are served, and that end when this is dropped.
#[derive(Default)]
struct Places {
    connections: JoinSet<()>,
    /// The connections and the times at which they began, the oldest first; some may have ended.
    begun: VecDeque<(Instant, AbortHandle)>,
}

impl Places {
    /// Waits until there is a place for another connection. If there is none, the oldest connection loses its own once it
    /// has had it for [`PLACE_TIME`], so that clients that are slow on purpose cannot hold all of them.
    async fn free(&mut self) {
        if self.connections.len() >= CONNECTIONS_MAX {
            // Those that have only to be finished get to it first.
            tokio::task::yield_now().await;
        }
        while self.connections.try_join_next().is_some() {}
        loop {
            self.begun.retain(|(_, connection)| !connection.is_finished());
            let Some((since, oldest)) = self.begun.front() else { return };
            if self.connections.len() < CONNECTIONS_MAX {
                return;
            }
            if tokio::time::timeout_at(*since + PLACE_TIME, self.connections.join_next()).await.is_err() {
                oldest.abort();
                self.connections.join_next().await;
            }
        }
    }

    /// Gives a place to a connection.
    fn give(&mut self, connection: impl Future<Output = ()> + Send + 'static) {
        self.begun.push_back((Instant::now(), self.connections.spawn(connection)));
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut places = Places::default();
    let mut failed = Repeated::default();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                places.free().await;
                let shared = shared.clone();
                places.give(async move {
                    // A peer that is too slow or violates HTTP has received its answer, or gets none.
                    let _ = tokio::time::timeout(CONNECTION_TIMEOUT, serve(stream, shared)).await;
                });
            }
            Err(error) => {
                if let Some(times) = failed.happened(std::time::Instant::now()) {
                    tracing::warn!(%error, times, "cannot accept a connection for HTTP");
                }
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) -> hyper::Result<()> {
    let Ok(local) = stream.local_addr() else { return Ok(()) };
    let service = service_fn(move |request: Request<Incoming>| {
        let shared = shared.clone();
        async move { Ok::<_, Infallible>(respond(&shared, local, &request).await) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

async fn respond(shared: &Shared, local: SocketAddr, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let answer = match refusal(shared, local, request) {
        Some(answer) => answer,
        None => {
            let query = request.uri().query().unwrap_or_default();
            let accepts = request.headers().get_all(header::ACCEPT).iter();
            let format = Format::wanted(accepts.filter_map(|field| field.to_str().ok()));
            page::answer(&shared.parts, request.uri().path(), query, format).await
        }
    };
    let refused_method = answer.status == StatusCode::METHOD_NOT_ALLOWED;
    let mut response = Response::new(Full::new(Bytes::from(answer.body)));
    *response.status_mut() = answer.status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(answer.media_type));
    // Pages load nothing and send nothing. They must not be embedded in others, interpreted as another type, or cached on
    // the way.
    for (name, value) in [
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; \
             frame-ancestors 'none'",
        ),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if refused_method {
        headers.insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}

/// Returns the answer to a request that is not for this listener, or does more than read; `None` if it is admissible.
fn refusal(shared: &Shared, local: SocketAddr, request: &Request<Incoming>) -> Option<Answer> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => Some(host.to_str().unwrap_or_default()),
        // Checks of load balancers may be older than the field. Browsers are not: no page can make them leave it out.
        (None, None) if request.version() == Version::HTTP_10 => None,
        _ => {
            return Some(Answer::text(
                StatusCode::BAD_REQUEST,
                "a request names its host, and names it once",
            ));
        }
    };
    // A request may name the host in its first line too.
    let authority = request.uri().authority().map(|authority| authority.as_str());
    for host in [host, authority].into_iter().flatten() {
        if !shared.hosts.include(host, local) {
            let text = "this is another host than the one that the request names; to allow it, pass its \
                        name with --http-host";
            return Some(Answer::text(StatusCode::MISDIRECTED_REQUEST, text));
        }
    }
    match *request.method() {
        Method::GET | Method::HEAD => None,
        _ => {
            let text = "this page shows and changes nothing: GET and HEAD are all that it answers";
            Some(Answer::text(StatusCode::METHOD_NOT_ALLOWED, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;
    use std::os::fd::OwnedFd;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    /// Counts the lines that this crate logs.
    struct Lines(Arc<AtomicUsize>);

    impl Subscriber for Lines {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target().starts_with("nacre_status")
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_connection_makes_room_for_one_that_waits() {
        let mut places = Places::default();
        let start = Instant::now();
        for _ in 0..CONNECTIONS_MAX {
            places.free().await;
            places.give(std::future::pending());
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        places.free().await;
        assert!((PLACE_TIME..PLACE_TIME * 2).contains(&start.elapsed()));
        assert_eq!(
            (places.connections.len(), places.begun.len()),
            (CONNECTIONS_MAX - 1, CONNECTIONS_MAX - 1)
        );
        // Those that end by themselves leave their places at once.
        let later = Instant::now();
        for _ in 0..CONNECTIONS_MAX {
            places.free().await;
            places.give(std::future::ready(()));
        }
        places.free().await;
        assert_eq!((later.elapsed(), places.begun.len()), (Duration::ZERO, CONNECTIONS_MAX - 1));
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_cannot_be_accepted_are_told_once_and_then_counted() {
        let lines = Arc::new(AtomicUsize::new(0));
        let _logged = tracing::subscriber::set_default(Lines(lines.clone()));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        // A socket that listens no more fails each time it is to accept.
        let same = std::net::TcpStream::from(OwnedFd::from(listener.try_clone().unwrap()));
        same.shutdown(Shutdown::Both).unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        let shared = Arc::new(Shared { parts: Vec::new(), hosts: Hosts::default() });
        let pass = async {
            for _ in 0..100 {
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        };
        tokio::select! {
            () = accept(listener, shared) => panic!("it accepts for ever"),
            () = pass => {}
        }
        assert_eq!(lines.load(Ordering::Relaxed), 1);
    }
}
