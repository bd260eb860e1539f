//! A lock server and a client that means it ill: bodies that are none, patterns without end, sessions and requests that nobody
//! releases. The server refuses what is too much, stays within its memory, and serves others meanwhile.

mod harness;

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use harness::{Random, Server};
use nacre::lock::{Datatype, Description, Member, Mode, Region};
use nacre_object::StoreError;
use nacre_rpc::client::{self, Host, Link, Subscription};
use nacre_rpc::{Frame, MessageKind, Outbox, control};

/// The time within which others are to be served, on a busy machine too.
const BOUND: Duration = Duration::from_secs(60);

/// The kinds of messages, as docs/wire.md has them.
const ATTACH: u8 = 3;
const OPEN: u8 = 5;
const ACQUIRE: u8 = 8;
const RELEASE: u8 = 10;
const ASSERTED: u8 = 12;
const PROGRESS: u8 = 21;
const REFUSED: u8 = 23;
const WAITING: u8 = 24;

/// A request as it is: a kind and a body.
struct Raw(u8, Bytes);

impl client::Request for Raw {
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
        assert!(control::put_body(outbox, MessageKind::new(4, self.0), id, &self.1).is_ok());
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        false
    }
}

/// A client that sends what it likes.
struct Hostile {
    link: Arc<Link>,
    calls: AtomicU64,
}

impl Hostile {
    fn new(server: &Server) -> Hostile {
        let address = server.uri.strip_prefix("nacre://").unwrap_or(&server.uri).parse().unwrap();
        let link = Link::new(address, (), Arc::default(), Arc::new(Host::new(false)));
        Hostile { link, calls: AtomicU64::new(0) }
    }

    async fn send(&self, kind: u8, body: impl Into<Bytes>) -> Result<Frame, StoreError> {
        let mut call = client::Call::start(self.link.clone(), Raw(kind, body.into()));
        poll_fn(|context| call.poll_frame(context.waker())).await
    }

    /// Sends a call: its number, and the rest.
    async fn call(&self, kind: u8, rest: &[u8]) -> Frame {
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        self.send(kind, [&number.to_le_bytes(), rest].concat()).await.unwrap()
    }

    /// Speaks for a session from now on.
    async fn attach(&self, session: u64) -> Subscription<Raw> {
        let body = [session.to_le_bytes(), 1_u64.to_le_bytes()].concat();
        let (_, subscription) =
            Subscription::start(self.link.clone(), Raw(ATTACH, body.into())).await.unwrap();
        self.call(OPEN, &[]).await;
        subscription.unwrap()
    }

    /// Asks for bytes by a request of its own; returns the code of the reply's kind, and its body.
    async fn acquire(
        &self,
        request: u64,
        file: &str,
        mode: u8,
        description: &[u8],
        waits: bool,
    ) -> (u8, Bytes) {
        let mut body = request.to_le_bytes().to_vec();
        body.push(2 + u8::from(waits));
        if waits {
            body.extend_from_slice(&(1_u64 << 62).to_le_bytes());
        }
        body.extend_from_slice(&request.to_le_bytes());
        body.extend_from_slice(&[mode, file.len() as u8]);
        body.extend_from_slice(file.as_bytes());
        body.extend_from_slice(description);
        let frame = self.call(ACQUIRE, &body).await;
        (frame.kind.code, frame.body)
    }
}

/// Another client, which locks and releases bytes of a file all the time.
struct Other {
    over: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<(u64, Duration)>,
}

impl Other {
    fn start(server: &Server, file: &'static str) -> Other {
        let (store, over) = (nacre::open(&server.uri).unwrap().blocking(), Arc::new(AtomicBool::new(false)));
        let stop = over.clone();
        let thread = std::thread::spawn(move || {
            let (mut locks, mut longest) = (0, Duration::ZERO);
            while !stop.load(Ordering::SeqCst) {
                let begin = Instant::now();
                let lock = store.file(file).unwrap().lock(1 << 40..(1 << 40) + 10, Mode::Exclusive).unwrap();
                lock.release().unwrap();
                longest = longest.max(begin.elapsed());
                locks += 1;
            }
            (locks, longest)
        });
        Other { over, thread }
    }

    /// Checks that it was served all the time.
    fn end(self, what: &str) {
        self.over.store(true, Ordering::SeqCst);
        let (locks, longest) = self.thread.join().unwrap();
        println!("{what}: another client had {locks} locks, the slowest in {longest:?}");
        assert!(locks > 0 && longest < BOUND, "{what}: {locks} locks, the slowest in {longest:?}");
    }
}

/// Patterns that are too much, or nearly.
fn monsters(random: &mut Random) -> Vec<(&'static str, Description)> {
    let byte = Datatype::byte;
    let mut deep = byte();
    for _ in 0..500 {
        deep = deep.contiguous(1);
    }
    let mut nested = byte();
    for level in 0..30 {
        nested = nested.vector(2, 1, 2 + level % 3);
    }
    let member = |count, displacement, of| Member { count, displacement, of };
    let primes = [2_i64, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53];
    let combs =
        primes.iter().map(|prime| member(1, *prime, byte().hvector(1 << 40, 1, 64 + prime))).collect();
    let mut layers = byte();
    for level in 0..8 {
        let members =
            (0..3).map(|index| member(1 + index, 97 * index as i64 * (level + 1), layers.clone())).collect();
        layers = Datatype::Struct { members }.vector(1 << 6, 1, 3);
    }
    let nodes = (0..1_000_000).map(|index| member(1, 2 * index, byte())).collect();
    let regions = (0..1 << 18).map(|_| Region::new(random.below(1 << 40), 1 + random.below(100)));
    vec![
        ("500 levels", deep.at(0)),
        ("30 levels of vectors", nested.at(0)),
        ("2^62 in a row", byte().contiguous(1 << 62).at(0)),
        ("2^62 apart", byte().vector(1 << 62, 1, 2).at(0)),
        ("2^62 too far apart", byte().vector(1 << 62, 1, 4).at(0)),
        ("2^62 backwards", byte().hvector(1 << 62, 1, -1).at(1 << 62)),
        ("2^62 empty ones", Datatype::Bytes(0).vector(1 << 62, 1 << 62, 1).at(0)),
        ("interleaved combs", Datatype::Struct { members: combs }.at(0)),
        ("layers of structs", layers.at(0)),
        ("a million members", Datatype::Struct { members: nodes }.at(0)),
        ("random regions", Description::from(regions.collect::<Vec<_>>())),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_pattern_or_too_much_of_one_is_refused_in_bounded_time() {
    let (server, mut random) = (Server::start("mem:", &["--lock-lease", "1h"]), Random::from_environment());
    let other = Other::start(&server, "monsters");
    let hostile = Hostile::new(&server);
    let _events = hostile.attach(1 << 40).await;
    let before = server.memory().now_bytes;
    for (request, (what, description)) in monsters(&mut random).into_iter().enumerate() {
        let begin = Instant::now();
        let (kind, _) = hostile.acquire(request as u64, "monsters", 1, &description.encode(), false).await;
        println!("{what}: kind {kind} after {:?}", begin.elapsed());
        assert!([PROGRESS, REFUSED].contains(&kind) && begin.elapsed() < BOUND, "{what}: kind {kind}");
        if ["500 levels", "2^62 too far apart", "a million members"].contains(&what) {
            assert_eq!(kind, REFUSED, "{what}");
        }
        hostile.call(RELEASE, &(request as u64).to_le_bytes()).await;
    }
    // Bodies of all lengths, of all kinds of calls; some of them are calls.
    for _ in 0..3000 {
        let kind = OPEN + random.below(u64::from(ASSERTED - OPEN) + 1) as u8;
        let body: Vec<u8> = (0..random.below(60)).map(|_| random.below(4) as u8).collect();
        // Whatever the answer is, there is one.
        drop(hostile.send(kind, body).await.unwrap());
    }
    other.end("monsters");
    let grown = server.memory().now_bytes.saturating_sub(before);
    assert!(grown < 256 << 20, "{} MiB more", grown >> 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patterns_sessions_and_waits_that_nobody_releases_take_bounded_memory() {
    let (server, mut random) = (Server::start("mem:", &["--lock-lease", "1h"]), Random::from_environment());
    let hostile = Arc::new(Hostile::new(&server));
    let store = nacre::open(&server.uri).unwrap();
    let before = server.memory().now_bytes;
    // Other bytes of the same file, so that every pattern is compared with what the other client asks for.
    let other = Other::start(&server, "crowded");
    let session = 1_u64 << 40;
    let _events = hostile.attach(session).await;
    // 4,096 patterns, no two regions of which are at equal distances. Even bytes only.
    let mut full = 0;
    for request in 0..4096 {
        let mut at = 0;
        let mut regions = Vec::new();
        for _ in 0..4000 {
            regions.push(Region::new(at, 1));
            at += 2 + 2 * random.below(1000);
        }
        regions.push(Region::new(1 << 41, 1));
        let description = Description::from(regions).encode();
        let (kind, body) = hostile.acquire(request, "crowded", 1, &description, false).await;
        assert!(kind == PROGRESS || kind == WAITING || (kind == REFUSED && body[0] == 6), "{kind} {body:?}");
        full += u64::from(kind == REFUSED);
    }
    let with_patterns = server.memory().now_bytes.saturating_sub(before);
    println!("{full} of 4,096 patterns refused, {} MiB", with_patterns >> 20);
    assert!(full > 0, "256 MiB of a session are the limit");
    assert!(with_patterns < 640 << 20, "{} MiB", with_patterns >> 20);
    // Whoever asks for bytes between all of them.
    let odd = Datatype::byte().vector(1 << 20, 1, 2).at(1);
    let begin = Instant::now();
    let taken = store.file("crowded").unwrap().lock_within(odd, Mode::Exclusive, BOUND).await.unwrap();
    println!("the bytes between them: {} after {:?}", taken.is_some(), begin.elapsed());
    assert!(taken.is_some() && begin.elapsed() < BOUND);
    drop(taken);
    other.end("patterns");

    // Waits without end, and sessions that hold something and are not heard of again.
    let other = Other::start(&server, "others");
    let held = store.file("held").unwrap().lock(0..1, Mode::Exclusive).await.unwrap();
    let one = Description::contiguous(0, 1).encode();
    let (waiter, waiting) = (Arc::new(Hostile::new(&server)), session + 5000);
    let _late = waiter.attach(waiting).await;
    let waits = stream::iter(0..20_000).map(|request| {
        let (waiter, one) = (waiter.clone(), one.clone());
        async move { waiter.acquire(request, "held", 2, &one, true).await.0 }
    });
    assert!(waits.buffer_unordered(64).all(|kind| async move { kind == WAITING }).await);
    for session in session + 1..session + 4000 {
        let hostile = if session % 100 == 0 { Arc::new(Hostile::new(&server)) } else { hostile.clone() };
        let _events = hostile.attach(session).await;
        hostile.acquire(1, "shared", 1, &one, false).await;
    }
    other.end("waits and sessions");
    let at_last = server.memory().now_bytes.saturating_sub(before);
    println!("{} MiB at last", at_last >> 20);
    assert!(at_last < 768 << 20, "{} MiB", at_last >> 20);
    // An end is made of it, and it does not take long.
    let begin = Instant::now();
    for session in [session, waiting] {
        assert!(store.break_lock_session(session).await.unwrap());
    }
    held.release().await.unwrap();
    drop(store.file("held").unwrap().lock(0..1, Mode::Exclusive).await.unwrap());
    assert!(begin.elapsed() < BOUND, "{:?}", begin.elapsed());
}
