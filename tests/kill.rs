//! `kill -9` at random moments, under load: acknowledged transactions survive, and others have taken effect completely
//! or not at all.
//!
//! Every client keeps its own record. Each of its transactions writes pieces that lie far apart, in two forks, a key
//! and an attribute, and puts its number into each of them; and it adds an entry to a log inside the object. After each
//! kill all pieces must hold the same number, which must be that of the last acknowledged transaction, or of the one
//! whose outcome was open; and the log must hold every entry up to there and nothing after it.

mod harness;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use harness::{PATIENCE, Random, Server, file};
use nacre::{ErrorKind, Fork, Key, ReadOp, Transaction, WriteOp};
use rustix::process::Signal;

const KILLS: u64 = 24;
const CLIENTS: usize = 4;
/// The offsets and lengths of a transaction's pieces in the default fork.
const PIECES: [(u64, usize); 3] = [(1 << 30, 4096), ((1 << 30) + 100_000, 700), (1 << 40, 9000)];
const ENTRY_BYTES: usize = 64;

/// A client's record of its object.
struct Client {
    object: String,
    /// The last transaction that was acknowledged.
    acknowledged: u64,
    /// The transaction whose outcome is open.
    open: Option<u64>,
    /// The numbers of transactions whose outcome was open, by whether they turned out to have taken effect.
    fates: [u64; 2],
}

fn entry(object: &str, number: u64) -> Vec<u8> {
    let mut entry = format!("{object} {number} ").into_bytes();
    entry.resize(ENTRY_BYTES, b'.');
    entry
}

fn filled(number: u64, len: usize) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(len).collect()
}

fn transaction(object: &str, number: u64) -> Transaction {
    let mut extents = vec![((number - 1) * ENTRY_BYTES as u64, entry(object, number).into())];
    extents.extend(PIECES.map(|(offset, len)| (offset, filled(number, len).into())));
    let value = number.to_string();
    let write = |fork, extents| WriteOp::Extents { fork, extents };
    Transaction::new()
        .change(write(Fork::DEFAULT, extents))
        .change(write(side(), vec![(number % 1000, filled(number, 300).into())]))
        .change(WriteOp::SetKey { key: name("key"), value: value.clone().into() })
        .change(WriteOp::SetAttribute { name: name("attribute"), value: value.into() })
}

fn side() -> Fork {
    Fork::try_from("side").unwrap()
}

fn name(text: &str) -> Key {
    Key::try_from(text).unwrap()
}

impl Client {
    /// Writes until the server is gone.
    fn work(&mut self, uri: &str, acknowledged: &AtomicU64) {
        // The server comes back at another address, so there is nothing to wait for.
        let store = nacre::open(&format!("{uri}?repeat_timeout=1ms")).unwrap().blocking();
        let object = store.object(&self.object).unwrap();
        loop {
            let number = self.acknowledged + 1;
            self.open = Some(number);
            match store.apply(object.id(), transaction(&self.object, number)) {
                Ok(_) => {
                    (self.acknowledged, self.open) = (number, None);
                    acknowledged.fetch_add(1, Ordering::SeqCst);
                }
                // Nothing was changed: the number can be used again.
                Err(error) if error.kind == ErrorKind::Unavailable || error.kind == ErrorKind::Closed => {
                    self.open = None;
                    return;
                }
                Err(error) => {
                    assert_eq!(error.kind, ErrorKind::Unknown, "{error}");
                    return;
                }
            }
        }
    }

    /// Compares the store's contents with the record.
    fn check(&mut self, uri: &str) {
        let store = nacre::open(uri).unwrap().blocking();
        let object = store.object(&self.object).unwrap();
        let value = object.key("key").unwrap().map(|value| String::from_utf8(value.to_vec()).unwrap());
        let found: u64 = value.map_or(0, |value| value.parse().unwrap());
        let context = format!("{}: {} acknowledged, {:?} open", self.object, self.acknowledged, self.open);
        assert!(found == self.acknowledged || Some(found) == self.open, "{found} found; {context}");
        if self.open.is_some() {
            self.fates[usize::from(found == self.acknowledged)] += 1;
        }
        (self.acknowledged, self.open) = (found, None);
        if found == 0 {
            assert!(!object.stat().unwrap().exists, "{context}");
            return;
        }
        let attribute = object.attribute("attribute").unwrap().unwrap();
        assert_eq!(attribute, found.to_string(), "{context}");
        for (offset, len) in PIECES {
            let read = object.read(offset..offset + len as u64).unwrap();
            assert!(read.data == filled(found, len), "the piece at {offset}; {context}");
            assert_eq!(read.extents.len(), 1, "the piece at {offset} has one version; {context}");
        }
        let offset = found % 1000;
        let read = object.fork("side").unwrap().read(offset..offset + 300).unwrap();
        assert!(read.data == filled(found, 300), "the other fork; {context}");
        let mut log = Vec::new();
        object.get(0..(found + 1) * ENTRY_BYTES as u64, &mut log).unwrap();
        assert_eq!(log.len() as u64, (found + 1) * ENTRY_BYTES as u64);
        for (index, bytes) in log.chunks(ENTRY_BYTES).enumerate() {
            let number = index as u64 + 1;
            let expected = if number <= found { entry(&self.object, number) } else { vec![0; ENTRY_BYTES] };
            assert!(bytes == expected, "entry {number} of {found}; {context}");
        }
    }
}

#[test]
fn acknowledged_writes_survive_kill_9() {
    let mut random = Random::from_environment();
    let folder = harness::folder();
    let store = file(folder.path());
    // The sizes are small, so that segments are cleaned and the index is written while the server is killed.
    let flags = ["--segment-bytes", "256KiB", "--snapshot-bytes", "1MiB"];
    let mut clients: Vec<Client> = (0..CLIENTS)
        .map(|index| Client { object: format!("client-{index}"), acknowledged: 0, open: None, fates: [0; 2] })
        .collect();
    let mut server = Server::start(&store, &flags);
    for _ in 0..KILLS {
        let uri = server.uri.clone();
        let acknowledged = AtomicU64::new(0);
        let (progress, delay) = (random.below(400), Duration::from_micros(random.below(50_000)));
        std::thread::scope(|scope| {
            for client in &mut clients {
                scope.spawn(|| client.work(&uri, &acknowledged));
            }
            // The kill comes under load: after so many acknowledgements of this round, and a little later.
            let begun = Instant::now();
            while acknowledged.load(Ordering::SeqCst) < progress {
                assert!(begun.elapsed() < PATIENCE, "the clients get nowhere: {}", server.log());
                std::thread::yield_now();
            }
            std::thread::sleep(delay);
            server.kill();
        });
        server = Server::start(&store, &flags);
        for client in &mut clients {
            client.check(&server.uri);
        }
    }
    let total: u64 = clients.iter().map(|client| client.acknowledged).sum();
    let fates =
        clients.iter().fold([0; 2], |sum, client| [sum[0] + client.fates[0], sum[1] + client.fates[1]]);
    println!(
        "{KILLS} kills, {total} transactions kept; of those of open fate {} had taken effect, {} had not",
        fates[0], fates[1]
    );
    assert!(server.run(["scrub"]).text().ends_with("no damage found"));
    let cleaned = server.run(["info", "--json"]).json();
    assert!(cleaned[0]["report"]["read_only"].is_null(), "{cleaned}");
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn a_stop_in_good_order_keeps_what_was_accepted() {
    for signal in [Signal::TERM, Signal::INT] {
        let folder = harness::folder();
        let store = file(folder.path());
        // Syncing is left to the system, so only a regular stop makes the writes durable.
        let server = Server::start(&store, &["--durability", "none", "--segment-bytes", "1MiB"]);
        let uri = server.uri.clone();
        let mut clients: Vec<Client> = (0..CLIENTS)
            .map(|index| Client {
                object: format!("client-{index}"),
                acknowledged: 0,
                open: None,
                fates: [0; 2],
            })
            .collect();
        let acknowledged = AtomicU64::new(0);
        let status = std::thread::scope(|scope| {
            for client in &mut clients {
                scope.spawn(|| client.work(&uri, &acknowledged));
            }
            let begun = Instant::now();
            while acknowledged.load(Ordering::SeqCst) < 500 {
                assert!(begun.elapsed() < PATIENCE, "the clients get nowhere: {}", server.log());
                std::thread::yield_now();
            }
            server.stop(signal)
        });
        assert_eq!(status.code(), Some(0), "{signal:?}");
        let server = Server::start(&store, &[]);
        for client in &mut clients {
            client.check(&server.uri);
        }
    }
}

#[test]
fn requests_that_were_accepted_are_answered_before_the_end() {
    let folder = harness::folder();
    let server = Server::start(&file(folder.path()), &[]);
    let store = nacre::open(&server.uri).unwrap();
    let object = store.object("a").unwrap();
    futures::executor::block_on(async {
        // Writes are sent when the server has said that it recognises repeated ones, so the first one is waited for. From then
        // on the answer to the last request before the stop proves that the server had accepted all earlier ones.
        let first = Transaction::new().write(Fork::DEFAULT, 0, 0u64.to_le_bytes().to_vec());
        store.apply(object.id(), first).await.unwrap();
        let mut replies = Vec::new();
        for number in 0..200u64 {
            let write = Transaction::new().write(Fork::DEFAULT, number * 8, number.to_le_bytes().to_vec());
            replies.push(store.apply(object.id(), write));
        }
        let look = Transaction::new().read(ReadOp::Stat);
        store.apply(&"elsewhere".parse().unwrap(), look).await.unwrap();
        let stop = std::thread::spawn(move || server.stop(Signal::TERM));
        for reply in replies {
            reply.await.expect("what was accepted is finished");
        }
        assert_eq!(stop.join().unwrap().code(), Some(0));
    });
    let store = nacre::open(&file(folder.path())).unwrap().blocking();
    let read = store.object("a").unwrap().read(0..1600).unwrap();
    let expected: Vec<u8> = (0..200u64).flat_map(u64::to_le_bytes).collect();
    assert_eq!(read.data, expected);
}
