//! A process of servers: each has a connection to the store, a registry and a machine for Lua, learns of new versions in one way, and notes
//! when it has them. A call proves that it runs what it has.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nacre::ObjectId;
use nacre::map::Follower;
use nacre_class::{Bounds, CLASSES_OBJECT, Catalogue, Class, Classes, Method, Request};
use nacre_object::ObjectStore as _;
use nacre_object::watch::{Event, Notification, Watch, WatchOptions};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::committer::{decode, failed};
use super::point::Way;
use super::relay::{Relay, sources, targets};
use super::{CLASS, MAP, METHOD, PUSHED, TEXT_BYTES};
use crate::BenchError;
use crate::kit::machine::now_ns;
use crate::kit::{process, server};

/// The longest time for which a server waits for an update.
const LIMIT: Duration = Duration::from_secs(60);
/// The time after which a server that has heard nothing from its group looks whether it missed something.
const REPAIR: Duration = Duration::from_millis(100);
/// The longest record that servers pass on to each other.
const RECORD_BYTES_MAX: u32 = 8 + 2 * TEXT_BYTES as u32;

/// The parameters of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Orders {
    pub(super) way: Way,
    pub(super) uri: String,
    /// The place of the first server of the process, and the number of those that it has.
    pub(super) first: u32,
    pub(super) count: u32,
    /// The number of servers of all processes.
    pub(super) servers: u32,
    pub(super) fan_out: u32,
}

/// A round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Work {
    /// Listens for the servers that will pass records on.
    Listen,
    /// Connects to the servers to which records are passed on, by the addresses of all.
    Link(Vec<String>),
    /// Waits until every server has a version.
    Observe {
        version: u64,
        /// Has one server of the process call that version.
        call: bool,
    },
}

/// The result of a round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Listening(String),
    Linked,
    Seen(Seen),
}

/// The observations of a process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Seen {
    /// For each server, the versions that it has seen, each with the time at which it was live.
    pub(super) live: Vec<Vec<(u64, u64)>>,
    /// The calls that proved that a server runs the version.
    pub(super) verified: u64,
}

/// Runs the hidden command of a process of servers.
pub(crate) fn main() -> Result<(), BenchError> {
    process::serve_rounds(
        async |orders: Orders| Host::open(orders).await,
        async |host: &mut Host, work: Work, _| host.work(work).await,
        async |host: Host| drop(host),
    )
}

/// The servers of a process.
struct Host {
    orders: Orders,
    servers: Vec<Server>,
    /// The socket for the servers that pass records on to the one of this process.
    listener: Option<TcpListener>,
}

/// One server.
struct Server {
    store: nacre::Store,
    classes: Arc<Classes>,
    object: ObjectId,
    source: Source,
    relay: Relay,
    /// The connections to the servers to which it passes records on.
    links: Vec<TcpStream>,
    live: Live,
}

/// The classes that a call at a server runs now, and the version of the study's.
#[derive(Default)]
struct Live {
    catalogue: Arc<Catalogue>,
    version: u64,
}

/// The place from which a server learns what is new.
enum Source {
    Watch(Watch),
    Map(Box<Follower>),
    Push(Watch),
    /// Other servers; the sender is for the tasks that hear them.
    Relay(mpsc::UnboundedSender<Bytes>, mpsc::UnboundedReceiver<Bytes>),
    /// Datagrams of a group.
    Group(Arc<UdpSocket>),
}

/// Something new.
enum News {
    Changed,
    Epoch,
    Notified(Notification),
    Record(Bytes),
}

fn ended() -> BenchError {
    BenchError::Process("a server's watch has ended".into())
}

/// Returns the notification that comes next; `None` where something else does.
fn notification(event: Event) -> Result<Option<Notification>, BenchError> {
    match event {
        Event::Notified(notification) => Ok(Some(notification)),
        Event::Changed { .. } => Ok(None),
        Event::Gap(gap) => Err(BenchError::Process(format!("a server's watch has a gap: {gap:?}"))),
    }
}

async fn watch(store: &nacre::Store, object: &str) -> Result<Watch, BenchError> {
    Ok(store
        .watch(&ObjectId::new(Bytes::copy_from_slice(object.as_bytes()))?, WatchOptions::default())
        .await?)
}

impl Host {
    async fn open(orders: Orders) -> Result<Self, BenchError> {
        let mut servers = Vec::with_capacity(orders.count as usize);
        for place in orders.first..orders.first + orders.count {
            servers.push(Server::open(&orders, place).await?);
        }
        Ok(Self { orders, servers, listener: None })
    }

    async fn work(&mut self, work: Work) -> Result<Answer, BenchError> {
        match work {
            Work::Listen => {
                if let Some(Source::Group(socket)) = self.servers.first().map(|server| &server.source) {
                    let address = socket.local_addr().map_err(BenchError::io("find the own address"))?;
                    return Ok(Answer::Listening(address.to_string()));
                }
                let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(BenchError::io("listen"))?;
                let address = listener.local_addr().map_err(BenchError::io("find the own address"))?;
                self.listener = Some(listener);
                Ok(Answer::Listening(address.to_string()))
            }
            Work::Link(addresses) => {
                self.link(&addresses).await?;
                Ok(Answer::Linked)
            }
            Work::Observe { version, call } => {
                let observing = self.servers.iter_mut().map(|server| server.observe(version));
                let live = process::together(observing).await?;
                let mut seen = Seen { live, verified: 0 };
                if let Some(server) = self.servers.first().filter(|_| call) {
                    server.verify().await?;
                    seen.verified = 1;
                }
                Ok(Answer::Seen(seen))
            }
        }
    }

    /// Connects to the servers to which records are passed on, and waits for those that pass records on to this one.
    async fn link(&mut self, addresses: &[String]) -> Result<(), BenchError> {
        let Orders { way, first, servers, fan_out, .. } = self.orders;
        let (Some(listener), Some(server)) = (&self.listener, self.servers.first_mut()) else {
            return Err(BenchError::Process("a server was not told to listen".into()));
        };
        let Source::Relay(sender, _) = &server.source else {
            return Err(BenchError::Process("a server does not pass records on".into()));
        };
        let sender = sender.clone();
        for target in targets(way, first, servers, fan_out) {
            let address = addresses.get(target as usize).map_or("", String::as_str);
            // The system accepts it; the other process need not have come to it yet.
            let link =
                TcpStream::connect(address).await.map_err(BenchError::io(format!("connect to {address}")))?;
            link.set_nodelay(true).map_err(BenchError::io("set TCP_NODELAY"))?;
            server.links.push(link);
        }
        for _ in 0..sources(way, first, servers, fan_out) {
            let (stream, _) = listener.accept().await.map_err(BenchError::io("accept a server"))?;
            let sender = sender.clone();
            tokio::spawn(hear(stream, sender));
        }
        Ok(())
    }
}

/// Reads the records that another server passes on, until either is gone.
async fn hear(mut stream: TcpStream, sender: mpsc::UnboundedSender<Bytes>) {
    while let Ok(length) = stream.read_u32_le().await {
        if length > RECORD_BYTES_MAX {
            return;
        }
        let mut record = vec![0; length as usize];
        if stream.read_exact(&mut record).await.is_err() || sender.send(record.into()).is_err() {
            return;
        }
    }
}

/// Takes the notifications for the first server, and passes them to it.
async fn hear_store(mut watch: Watch, sender: mpsc::UnboundedSender<Bytes>) {
    while let Some(Ok(event)) = watch.next().await {
        let Ok(Some(notification)) = notification(event) else { continue };
        let record = notification.payload().clone();
        if sender.send(record).is_err() || notification.acknowledge(Bytes::new()).is_err() {
            return;
        }
    }
}

impl Server {
    async fn open(orders: &Orders, place: u32) -> Result<Self, BenchError> {
        let store = server::open(&orders.uri).await?;
        let classes = Arc::new(Classes::new(Arc::new(store.clone())));
        let source = match orders.way {
            // The study measures the servers themselves then.
            Way::Ask => return Err(BenchError::Process("a server that asks is one of Nacre's".into())),
            Way::Watch => {
                let watch = watch(&store, CLASSES_OBJECT).await?;
                classes.catalogue().await?;
                Source::Watch(watch)
            }
            Way::Map => {
                let mut follower = store.map(MAP)?.follow(Default::default());
                follower.next().await?;
                Source::Map(Box::new(follower))
            }
            Way::Push => Source::Push(watch(&store, PUSHED).await?),
            Way::Tree | Way::Gossip => {
                let (sender, receiver) = mpsc::unbounded_channel();
                if place == 0 {
                    tokio::spawn(hear_store(watch(&store, PUSHED).await?, sender.clone()));
                }
                Source::Relay(sender, receiver)
            }
            Way::Reflect => {
                let socket = UdpSocket::bind(("127.0.0.1", 0)).map_err(BenchError::io("open a socket"))?;
                socket.set_read_timeout(Some(REPAIR)).map_err(BenchError::io("set a time limit"))?;
                Source::Group(Arc::new(socket))
            }
        };
        Ok(Self {
            store,
            classes,
            object: ObjectId::new(Bytes::from_static(b"study/object"))?,
            source,
            relay: Relay::new(orders.way, place, orders.servers, orders.fan_out),
            links: Vec::new(),
            live: Live::default(),
        })
    }

    /// Waits until a version is live here. Returns the versions that were, each with its time.
    async fn observe(&mut self, version: u64) -> Result<Vec<(u64, u64)>, BenchError> {
        if let Source::Group(socket) = &self.source {
            let (socket, classes, runtime) = (socket.clone(), self.classes.clone(), Handle::current());
            let live = std::mem::take(&mut self.live);
            // A thread that waits in the system's call for the next datagram takes nothing else for it.
            let hearing =
                tokio::task::spawn_blocking(move || hear_group(&socket, &classes, &runtime, live, version));
            let (live, seen) = hearing.await.map_err(failed)??;
            self.live = live;
            return Ok(seen);
        }
        let mut seen = Vec::new();
        while self.live.version < version {
            let news = tokio::time::timeout(LIMIT, self.wait()).await.map_err(|_| late(version))??;
            let before = self.live.version;
            let at_ns = self.take(news).await?;
            if self.live.version > before {
                seen.push((self.live.version, at_ns));
            }
        }
        Ok(seen)
    }

    /// Waits for something new.
    async fn wait(&mut self) -> Result<News, BenchError> {
        match &mut self.source {
            Source::Watch(watch) => {
                watch.next().await.ok_or_else(ended)??;
                Ok(News::Changed)
            }
            Source::Map(follower) => {
                follower.next().await?;
                Ok(News::Epoch)
            }
            Source::Push(watch) => loop {
                let event = watch.next().await.ok_or_else(ended)??;
                if let Some(notification) = notification(event)? {
                    return Ok(News::Notified(notification));
                }
            },
            Source::Relay(_, receiver) => receiver.recv().await.map(News::Record).ok_or_else(ended),
            // A thread hears them.
            Source::Group(_) => Err(ended()),
        }
    }

    /// Makes what is new live. Returns the time at which it is.
    async fn take(&mut self, news: News) -> Result<u64, BenchError> {
        match news {
            News::Changed => {
                if let Source::Watch(watch) = &mut self.source {
                    // Events up to here are about what is read now.
                    while let std::task::Poll::Ready(Some(Ok(_))) = watch.try_next() {}
                }
                Ok(self.live.replace(self.classes.catalogue().await?))
            }
            News::Epoch => {
                let Source::Map(follower) = &self.source else { return Ok(now_ns()) };
                let (state, epoch) = (follower.state(), follower.state().epoch());
                let Some(value) = state.get(CLASS.as_bytes()) else { return Ok(now_ns()) };
                let text = value.value.clone();
                Ok(self.live.install(epoch, text))
            }
            News::Notified(notification) => {
                let record = notification.payload().clone();
                let at_ns = self.live.install_record(&record)?;
                notification.acknowledge(Bytes::new())?;
                Ok(at_ns)
            }
            News::Record(record) => {
                let (version, text) = decode(&record).ok_or_else(unreadable)?;
                let Some(targets) = self.relay.take(version) else { return Ok(now_ns()) };
                debug_assert_eq!(targets.len(), self.links.len());
                // Others wait for it.
                let frame = [&(record.len() as u32).to_le_bytes()[..], &record[..]].concat();
                for link in &mut self.links {
                    link.write_all(&frame).await.map_err(BenchError::io("pass a record on"))?;
                }
                Ok(self.live.install(version, text))
            }
        }
    }

    /// Calls the method, which has to be that of the newest version.
    async fn verify(&self) -> Result<(), BenchError> {
        let request = Request::new(&self.object, CLASS, METHOD);
        let called =
            self.classes.runtime().call(&self.store, &self.live.catalogue, &request).await.map_err(failed)?;
        let version = self.live.version;
        if called.output != version.to_string() {
            let text = format!("a server called version {:?} when {version} was live", called.output);
            return Err(BenchError::Lost(text));
        }
        Ok(())
    }
}

impl Live {
    /// Makes classes those that calls run, unless they run a newer version. Returns the time at which they are.
    fn replace(&mut self, catalogue: Arc<Catalogue>) -> u64 {
        let at_ns = now_ns();
        let version = catalogue.classes.get(CLASS).map_or(0, |class| class.version);
        if version > self.version {
            *self = Self { catalogue, version };
        }
        at_ns
    }

    /// Makes a text the class that calls run, unless they run a newer one. Returns the time at which it is.
    fn install(&mut self, version: u64, text: Bytes) -> u64 {
        if version > self.version {
            let methods = vec![Method { name: METHOD.to_owned(), ..Method::default() }];
            let class = Class::new(CLASS.to_owned(), version, text, methods, Bounds::default());
            *self = Self { catalogue: Arc::new(Catalogue::of(class)), version };
        }
        now_ns()
    }

    fn install_record(&mut self, record: &Bytes) -> Result<u64, BenchError> {
        let (version, text) = decode(record).ok_or_else(unreadable)?;
        Ok(self.install(version, text))
    }
}

/// Hears the datagrams of a group until a version is live. Returns what is live then, and the versions that were, each with its time.
fn hear_group(
    socket: &UdpSocket,
    classes: &Classes,
    runtime: &Handle,
    mut live: Live,
    version: u64,
) -> Result<(Live, Vec<(u64, u64)>), BenchError> {
    let mut buffer = [0; RECORD_BYTES_MAX as usize];
    let (mut seen, mut silence) = (Vec::new(), Duration::ZERO);
    while live.version < version {
        let before = live.version;
        let at_ns = match socket.recv(&mut buffer) {
            Ok(length) => live.install_record(&Bytes::copy_from_slice(&buffer[..length]))?,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                silence += REPAIR;
                live.replace(runtime.block_on(classes.catalogue())?)
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(BenchError::io("receive a datagram")(error)),
        };
        if live.version > before {
            seen.push((live.version, at_ns));
            silence = Duration::ZERO;
        } else if silence >= LIMIT {
            return Err(late(version));
        }
    }
    Ok((live, seen))
}

fn late(version: u64) -> BenchError {
    BenchError::Process(format!("version {version} was not live at a server within {LIMIT:?}"))
}

fn unreadable() -> BenchError {
    BenchError::Process("a record that was passed on is none of the study's".into())
}

#[cfg(test)]
mod tests {
    use super::super::text;
    use super::*;

    #[test]
    fn a_server_of_a_group_takes_what_it_hears_and_looks_for_what_was_lost() {
        let runtime = crate::kit::study::runtime().unwrap();
        runtime.block_on(async {
            let classes = Classes::new(Arc::new(nacre::open("mem:").unwrap()));
            // A busy machine may stand still for long.
            let bounds = Bounds { wall: LIMIT, ..Bounds::default() };
            for version in 1..=2 {
                assert_eq!(classes.put(CLASS, text(version), bounds).await.unwrap(), version);
            }
            let socket = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
            socket.set_read_timeout(Some(REPAIR)).unwrap();
            let record = [&1u64.to_le_bytes()[..], &text(1)[..]].concat();
            socket.send_to(&record, socket.local_addr().unwrap()).unwrap();
            let handle = Handle::current();
            let hearing = move || hear_group(&socket, &classes, &handle, Live::default(), 2);
            let (live, seen) = tokio::task::spawn_blocking(hearing).await.unwrap().unwrap();
            assert_eq!(seen.iter().map(|(version, _)| *version).collect::<Vec<_>>(), [1, 2]);
            assert_eq!((live.version, live.catalogue.class(CLASS).unwrap().version), (2, 2));
        });
    }
}
