//! Servers for tests, and peers that misbehave.

#![allow(dead_code, reason = "every test file uses its own part of it")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use nacre_object::testkit::MemoryStore;
use nacre_object::{ByteRange, Fork, ObjectId, ObjectStore, Outcome, Transaction};
use nacre_remote::join::{self, Proof};
use nacre_remote::{Members, Membership, RemoteOptions, RemoteStore, Requests, StoreService};
use nacre_rpc::control::{self, Beginning, SessionKey};
use nacre_rpc::frame::{self, Frame, MessageKind};
use nacre_rpc::{Address, ClusterKey, Outbox, ServeOptions, Server, ServerLimits, Services};

/// The time that something may take on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(120);

/// Returns options with such times.
pub fn patient() -> RemoteOptions {
    RemoteOptions { connect_timeout: PATIENCE, silence_timeout: PATIENCE, ..Default::default() }
}

pub fn serve_with(limits: ServerLimits, key: Option<ClusterKey>) -> Server {
    serve_store(Arc::new(MemoryStore::new()), limits, key)
}

/// Starts a server. Handshakes have the time of a machine that has much else to do, unless the limits say otherwise.
pub fn serve_store(store: Arc<dyn ObjectStore>, mut limits: ServerLimits, key: Option<ClusterKey>) -> Server {
    if limits.handshake_timeout == ServerLimits::default().handshake_timeout {
        limits.handshake_timeout = PATIENCE;
    }
    let listen = vec!["127.0.0.1:0".parse().unwrap()];
    let open = key.is_none();
    let services = alone(store);
    Server::start(ServeOptions { listen, key, open, limits, threads: 2, services, ..Default::default() })
        .unwrap()
}

/// Returns the service of a store that a server keeps by itself.
pub fn alone(store: Arc<dyn ObjectStore>) -> Services {
    Services::new().with(StoreService::alone(store).unwrap())
}

/// Returns the service of an empty store in memory.
pub fn memory() -> Services {
    alone(Arc::new(MemoryStore::new()))
}

/// Starts a server with a key or without; its requests are counted.
pub fn serve_counted(key: Option<ClusterKey>) -> (Server, Arc<Requests>) {
    let service = StoreService::alone(Arc::new(MemoryStore::new())).unwrap();
    let requests = service.requests().clone();
    let listen = vec!["127.0.0.1:0".parse().unwrap()];
    let (open, services) = (key.is_none(), Services::new().with(service));
    let limits = ServerLimits { handshake_timeout: PATIENCE, ..Default::default() };
    let options = ServeOptions { listen, key, open, limits, threads: 2, services, ..Default::default() };
    (Server::start(options).unwrap(), requests)
}

pub fn serve() -> Server {
    serve_with(ServerLimits::default(), None)
}

pub fn remote(server: &Server) -> RemoteStore {
    remote_with(server, patient())
}

pub fn remote_with(server: &Server, options: RemoteOptions) -> RemoteStore {
    RemoteStore::new(server.addresses(), options).unwrap()
}

/// Opens a raw connection, without a client's handshake.
pub fn raw(server: &Server) -> TcpStream {
    let Address::Tcp(address) = &server.addresses()[0] else { panic!("the server has no TCP address") };
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    stream
}

/// Opens a raw connection after the handshake, as a client that knows nothing of members: its first request may be any.
pub fn introduced(server: &Server) -> TcpStream {
    let mut stream = raw(server);
    stream.write_all(&nacre_rpc::handshake::hello(1, 0)).unwrap();
    let mut hello = [0; 16];
    stream.read_exact(&mut hello).unwrap();
    assert_eq!(hello, nacre_rpc::handshake::hello(1, 0));
    stream
}

/// Answers a client's joins as the only member would, until it has joined.
pub fn let_join(stream: &mut TcpStream) -> std::io::Result<()> {
    let membership = Membership::alone([7; 16]);
    loop {
        let frame = receive(stream)?;
        if frame.kind == MessageKind::BEGIN {
            let beginning = Beginning { features: 0, kept: false, session: SessionKey::NONE };
            let begun =
                |out: &mut Outbox| control::put_beginning(out, MessageKind::BEGUN, frame.id, &beginning);
            stream.write_all(&bytes_of(begun))?;
            continue;
        }
        let joined = join::get_join(&frame.body).unwrap() == Some(Proof::of(membership.members()));
        let answer = if joined { join::Answer::Joined(0) } else { join::Answer::Members(membership.clone()) };
        stream.write_all(&bytes_of(|out| join::put_answer(out, frame.id, &answer)))?;
        if joined {
            return Ok(());
        }
    }
}

/// Starts servers that keep a store together, each at a socket in a folder and with a store of its own.
pub fn serve_together(folder: &Path, names: &[&str], version: u64) -> Vec<Server> {
    let addresses: Vec<Address> = names.iter().map(|name| Address::Unix(folder.join(name))).collect();
    let members = Members::new(version, addresses.iter().map(Address::to_string)).unwrap();
    let server = |address: &Address| {
        let membership = Membership::new(members.clone(), &address.to_string()).unwrap();
        let service = StoreService::new(Arc::new(MemoryStore::new()), membership, Arc::default());
        let services = Services::new().with(service);
        Server::start(ServeOptions { listen: vec![address.clone()], services, ..Default::default() }).unwrap()
    };
    addresses.iter().map(server).collect()
}

pub fn bytes_of(put: impl FnOnce(&mut Outbox)) -> BytesMut {
    let mut outbox = Outbox::default();
    put(&mut outbox);
    let mut bytes = BytesMut::new();
    outbox.copy_to(&mut bytes);
    bytes
}

/// Returns a request that reads `len` bytes of an object.
pub fn read_request(id: u64, object: &str, len: u64) -> BytesMut {
    let transaction = Transaction::new().read_range(Fork::DEFAULT, ByteRange::new(0, len));
    request(id, object, &transaction)
}

pub fn request(id: u64, object: &str, transaction: &Transaction) -> BytesMut {
    let object: ObjectId = object.parse().unwrap();
    bytes_of(|out| assert!(nacre_remote::request::put_apply(out, id, &object, transaction).is_ok()))
}

/// Reads the next frame.
pub fn receive(stream: &mut TcpStream) -> std::io::Result<Frame> {
    let mut bytes = BytesMut::zeroed(16);
    stream.read_exact(&mut bytes)?;
    let len = frame::frame_bytes(&bytes).unwrap().unwrap();
    bytes.resize(len, 0);
    stream.read_exact(&mut bytes[16..])?;
    let frame = frame::take(&mut bytes).unwrap().unwrap();
    assert!(!bytes.has_remaining());
    Ok(frame)
}

/// Returns whether the peer has closed the connection, possibly after some last bytes.
pub fn is_closed(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

/// Waits for a condition that must become true; panics if it does not within a generous time limit.
pub fn eventually(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn write(store: &dyn ObjectStore, object: &str, data: impl Into<bytes::Bytes>) {
    let object: ObjectId = object.parse().unwrap();
    let reply = store.apply(&object, Transaction::new().write(Fork::DEFAULT, 0, data));
    assert!(matches!(nacre_object::testkit::block_on(reply).unwrap(), Outcome::Done(_)));
}

pub fn key_in(folder: &Path, name: &str) -> ClusterKey {
    let key = ClusterKey::generate().unwrap();
    key.save(&folder.join(name)).unwrap();
    ClusterKey::load(&folder.join(name)).unwrap()
}
