//! The memory of a server, measured from outside, under peers that never read their replies.
//!
//! Run with the argument `serve`, this program is the server; otherwise it starts itself as one for each case.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};

use futures::channel::oneshot;
use nacre_logstore::LogStore;
use nacre_object::testkit::block_on;
use nacre_object::{
    ByteRange, Fork, Guard, ObjectId, ObjectStore, Outcome, ReadOp as ReadOperation, Reply, StoreError,
    Transaction,
};
use nacre_remote::RemoteStore;
use nacre_rpc::handshake::hello;
use nacre_rpc::{Address, ServerLimits, control};
use support::{receive, request, serve_store};

/// The memory that all connections together may hold.
const ACCOUNT_BYTES: usize = 64 << 20;
/// The memory that the allocator and the store itself take besides the connections.
const SLACK_BYTES: usize = 32 << 20;

fn main() {
    if std::env::args().nth(1).as_deref() == Some("serve") {
        return serve();
    }
    let cases: [(&str, fn()); 4] = [
        ("small reads of many extents whose replies nobody reads", extents),
        ("reads whose replies nobody reads", reads),
        ("stale conditional writes whose refusals nobody reads", refusals),
        ("one small request for a huge reply", huge_reply),
    ];
    for (name, case) in cases {
        case();
        println!("memory: {name}: ok");
    }
}

/// Serves a store in memory until standard input ends.
fn serve() {
    let limits = ServerLimits { held_bytes_max: ACCOUNT_BYTES, ..Default::default() };
    let store = LogStore::memory(nacre_logstore::Options::default());
    let server = serve_store(Arc::new(Aside::new(store)), limits, None);
    println!("{}", server.addresses()[0]);
    let _ = std::io::stdin().read(&mut [0]);
    std::process::exit(0);
}

/// A store that makes every reply on another thread, whether it is awaited or not, like a store that reads from a
/// device.
struct Aside {
    jobs: mpsc::Sender<Job>,
    store: Arc<LogStore>,
}

type Job = (ObjectId, Transaction, oneshot::Sender<Result<Outcome, StoreError>>);

impl Aside {
    fn new(store: LogStore) -> Aside {
        let (jobs, queue) = mpsc::channel::<Job>();
        let store = Arc::new(store);
        let worker = store.clone();
        std::thread::spawn(move || {
            for (object, transaction, reply) in queue {
                // The caller may be gone.
                let _ = reply.send(block_on(worker.apply(&object, transaction)));
            }
        });
        Aside { jobs, store }
    }
}

impl ObjectStore for Aside {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        let (sender, reply) = oneshot::channel();
        self.jobs.send((object.clone(), transaction, sender)).unwrap();
        Reply::pending(async move { reply.await.unwrap() })
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.store.list(after, limit)
    }
}

struct Served {
    child: Child,
    address: Address,
    store: RemoteStore,
}

impl Served {
    fn start() -> Served {
        let program = std::env::current_exe().unwrap();
        let mut child =
            Command::new(program).arg("serve").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address: Address = line.trim().parse().unwrap();
        let store = RemoteStore::new(std::slice::from_ref(&address), support::patient()).unwrap();
        Served { child, address, store }
    }

    fn apply(&self, transaction: Transaction) -> Outcome {
        block_on(self.store.apply(&object(), transaction)).unwrap()
    }

    fn introduced(&self) -> TcpStream {
        let Address::Tcp(address) = &self.address else { panic!("a TCP address") };
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&hello(1, 0)).unwrap();
        stream.read_exact(&mut [0; 16]).unwrap();
        stream
    }

    /// Returns a line of the process's status, in bytes.
    fn status(&self, name: &str) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }

    /// Returns how much the process has grown at most since its size was `before`, after the deaf connections have
    /// received their first replies and the server has served others for a while.
    fn growth(&self, before: usize, deaf: &[TcpStream]) -> usize {
        for stream in deaf {
            assert!(stream.peek(&mut [0]).unwrap() > 0);
        }
        for _ in 0..2000 {
            self.apply(Transaction::new().read(ReadOperation::Stat));
        }
        self.status("VmHWM").saturating_sub(before)
    }

    /// Returns the present size, and makes it the starting point for the largest one.
    fn settle(&self) -> usize {
        std::fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5").unwrap();
        self.status("VmRSS")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It ends when its standard input does; it is waited for, so that it is not left over.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn object() -> ObjectId {
    "o".parse().unwrap()
}

fn check(what: &str, growth: usize) {
    println!("memory: {what}: the server grew by {} MiB", growth >> 20);
    assert!(growth <= 2 * ACCOUNT_BYTES + SLACK_BYTES, "{what}: the server grew by {growth} bytes");
}

/// Sends 60 reads of 16 MiB over one connection, and 20 over each of two more.
fn reads() {
    let served = Served::start();
    served.apply(Transaction::new().write(Fork::DEFAULT, 0, vec![7; 16 << 20]));
    let before = served.settle();
    let read = Transaction::new().read_range(Fork::DEFAULT, ByteRange::new(0, 16 << 20));
    let mut deaf: Vec<TcpStream> = (0..3).map(|_| served.introduced()).collect();
    for (stream, reads) in deaf.iter_mut().zip([60, 20, 20]) {
        for id in 1..=reads {
            stream.write_all(&request(id, "o", &read)).unwrap();
        }
    }
    check("100 reads of 16 MiB", served.growth(before, &deaf[..1]));
}

/// Sends 4,096 reads of 4 KiB over each of two connections, of an object in which every byte is an extent.
fn extents() {
    let served = Served::start();
    // Neighbours are of different versions.
    for parity in [0, 1] {
        let extents = (0..2048u64).map(|n| (n * 2 + parity, bytes::Bytes::from_static(b"x"))).collect();
        served.apply(
            Transaction::new().change(nacre_object::WriteOp::Extents { fork: Fork::DEFAULT, extents }),
        );
    }
    let read = Transaction::new().read_range(Fork::DEFAULT, ByteRange::new(0, 4095));
    let Outcome::Done(done) = served.apply(read.clone()) else { panic!("not refused") };
    let nacre_object::Answer::Range(range) = &done.answers[0] else { panic!("a range") };
    assert_eq!(range.extents.len(), 4095);
    let before = served.settle();
    let mut deaf: Vec<TcpStream> = (0..2).map(|_| served.introduced()).collect();
    for id in 1..=4096 {
        for stream in &mut deaf {
            stream.write_all(&request(id, "o", &read)).unwrap();
        }
    }
    check("8,192 reads of 4,095 extents", served.growth(before, &deaf[..1]));
}

/// Sends 1,024 conditional writes that are refused, each with a region of a mebibyte.
fn refusals() {
    let served = Served::start();
    served.apply(Transaction::new().write(Fork::DEFAULT, 0, vec![7; 1 << 20]));
    served.apply(Transaction::new().write(Fork::DEFAULT, 0, vec![8; 1 << 20]));
    let before = served.settle();
    let range = ByteRange::new(0, 1 << 20);
    let stale = Transaction::new().guard(Guard::Region { fork: Fork::DEFAULT, range, version: 1 });
    let stale = stale.write(Fork::DEFAULT, 0, "x");
    let mut deaf = served.introduced();
    for id in 1..=1024 {
        deaf.write_all(&request(id, "o", &stale)).unwrap();
    }
    check("1,024 stale conditional writes", served.growth(before, &[deaf]));
}

/// Sends 4,096 reads of the extents of an object that has many, in one transaction.
fn huge_reply() {
    let served = Served::start();
    let extents = |base: u64| (0..4096u64).map(move |n| ((base + n) * 2, bytes::Bytes::from_static(b"x")));
    for base in [0, 4096] {
        let write = nacre_object::WriteOp::Extents { fork: Fork::DEFAULT, extents: extents(base).collect() };
        served.apply(Transaction::new().change(write));
    }
    let before = served.settle();
    let read = ReadOperation::Extents { fork: Fork::DEFAULT, range: ByteRange::new(0, 1 << 40) };
    let many = (0..4096).fold(Transaction::new(), |many, _| many.read(read.clone()));
    let bytes = request(1, "o", &many);
    assert!(bytes.len() < 100_000);
    let mut stream = served.introduced();
    stream.write_all(&bytes).unwrap();
    let error = control::get_failure(&receive(&mut stream).unwrap()).unwrap();
    assert_eq!(error.kind, nacre_object::ErrorKind::Invalid, "{error}");
    check("one request for a huge reply", served.growth(before, &[]));
}
