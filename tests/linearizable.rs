//! Concurrent clients over the network, and a server that is killed again and again: the outcomes that they saw of each
//! object must be explained by some order of the transactions.

mod harness;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use harness::{PATIENCE, Random, Server, file};
use nacre::{
    Answer, ByteRange, Fork, Found, Intent, Key, KeyRange, ObjectId, Outcome, ReadOp, Store, Transaction,
    WriteOp,
};
use nacre_object::testkit::linear::Recorder;

const KILLS: u64 = 20;
const CLIENTS: u64 = 6;
const OBJECTS: u64 = 3;
const SPAN_BYTES: u64 = 256;

/// A client, whose next request depends on its last result.
struct Client {
    random: Random,
    /// Its number, which it writes, so that its writes can be told from others'.
    number: u64,
    written: u64,
}

impl Client {
    fn range(&mut self) -> ByteRange {
        let offset = self.random.below(SPAN_BYTES);
        ByteRange::new(offset, 1 + self.random.below(64))
    }

    fn fork(&mut self) -> Fork {
        Fork::try_from(["", "side"][self.random.below(2) as usize]).unwrap()
    }

    fn key(&mut self) -> Key {
        Key::try_from(["k", "l"][self.random.below(2) as usize]).unwrap()
    }

    /// Returns bytes that no other write contains.
    fn bytes(&mut self, len: u64) -> Vec<u8> {
        self.written += 1;
        let tag = (self.number << 32 | self.written).to_le_bytes();
        tag.into_iter().cycle().take(len as usize).collect()
    }

    /// Returns a transaction that does not depend on earlier reads.
    fn plain(&mut self) -> Transaction {
        let (fork, range) = (self.fork(), self.range());
        match self.random.below(10) {
            0 | 1 => Transaction::new().read_range(fork, range),
            2 => Transaction::new().read(ReadOp::Stat).read(ReadOp::Keys {
                range: KeyRange::all(),
                limit: 10,
                values: true,
            }),
            3..=5 => {
                let (one, other) = (self.bytes(range.len), self.bytes(20));
                let extents = vec![(range.offset, one.into()), (range.end() + 10, other.into())];
                Transaction::new().change(WriteOp::Extents { fork, extents }).read(ReadOp::Stat)
            }
            6 => Transaction::new().change(WriteOp::Zero { fork, range }),
            7 => Transaction::new().change(WriteOp::Truncate { fork, size: range.offset }),
            8 => {
                let (key, value) = (self.key(), self.bytes(8).into());
                Transaction::new().change(WriteOp::SetKey { key, value })
            }
            _ if self.random.below(20) == 0 => Transaction::new().change(WriteOp::Remove),
            _ => Transaction::new().change(WriteOp::RemoveKey { key: self.key() }),
        }
    }

    /// Sends requests until the end.
    async fn work(&mut self, store: &Store, recorder: &Recorder, over: &AtomicBool, completed: &AtomicU64) {
        while !over.load(Ordering::SeqCst) {
            let object: ObjectId = format!("object-{}", self.random.below(OBJECTS)).parse().unwrap();
            let done = if self.random.below(2) == 0 {
                let transaction = self.plain();
                recorder.apply(store, &object, transaction).await.map(drop)
            } else {
                self.update(store, recorder, &object).await
            };
            match done {
                Ok(()) => drop(completed.fetch_add(1, Ordering::SeqCst)),
                // The server is down; retrying at once would only make the history longer.
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Reads a range, and writes it on the condition that it did not change; tries once more if it did.
    async fn update(
        &mut self,
        store: &Store,
        recorder: &Recorder,
        object: &ObjectId,
    ) -> Result<(), nacre::Error> {
        let (fork, range) = (self.fork(), self.range());
        let read = ReadOp::Range { fork: fork.clone(), range, intent: Intent::Update };
        let outcome = recorder.apply(store, object, Transaction::new().read(read)).await?;
        let Outcome::Done(done) = outcome else { panic!("nothing was asked that could be refused") };
        let Answer::Range(read) = &done.answers[0] else { panic!("a range was asked for") };
        let mut version = read.version;
        for _ in 0..3 {
            let bytes = self.bytes(range.len);
            let write = Transaction::new().if_version(fork.clone(), range, version).write(
                fork.clone(),
                range.offset,
                bytes,
            );
            match recorder.apply(store, object, write).await? {
                Outcome::Done(_) => break,
                Outcome::Refused(refusal) => {
                    let Found::Region(now) = refusal.found else { panic!("a region was guarded") };
                    version = now.version;
                }
            }
        }
        Ok(())
    }
}

/// Ends the clients when it is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn histories_with_killed_servers_are_linearizable() {
    let mut random = Random::from_environment();
    let folder = harness::folder();
    let data = file(&folder.path().join("data"));
    // A restarted server has the same address, and clients reconnect by themselves.
    let address = format!("unix:{}", folder.path().join("socket").display());
    let start =
        || Server::listen(&address, &data, &["--segment-bytes", "256KiB", "--snapshot-bytes", "512KiB"]);
    let (recorder, over, completed) = (Recorder::new(), AtomicBool::new(false), AtomicU64::new(0));
    let mut server = start();
    let server = std::thread::scope(|scope| {
        for number in 1..=CLIENTS {
            let mut client = Client { random: Random(random.next()), number, written: 0 };
            let (uri, recorder, over, completed) = (server.uri.clone(), &recorder, &over, &completed);
            scope.spawn(move || {
                let store = nacre::open(&uri).unwrap();
                futures::executor::block_on(client.work(&store, recorder, over, completed));
            });
        }
        // The clients must end even if an assertion fails here, or the test never would.
        let _end = End(&over);
        for kill in 0..=KILLS {
            let goal = completed.load(Ordering::SeqCst) + 50 + random.below(500);
            let begun = Instant::now();
            while completed.load(Ordering::SeqCst) < goal {
                assert!(begun.elapsed() < PATIENCE, "the clients get nowhere: {}", server.log());
                std::thread::sleep(Duration::from_millis(1));
            }
            if kill < KILLS {
                server.kill();
                server = start();
            }
        }
        server
    });
    drop(server);
    let (transactions, unknown) = recorder.count();
    println!("{transactions} transactions, {unknown} of unknown fate, {KILLS} kills");
    recorder.check().unwrap();
}
