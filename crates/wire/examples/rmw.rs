//! Measures the protocol alone: read/modify/write of 4 KiB blocks against a store that is hardly more than a hash
//! map.
//!
//! ```text
//! cargo run --release -p nacre-wire --example rmw -- serve 127.0.0.1:7000
//! cargo run --release -p nacre-wire --example rmw -- load 127.0.0.1:7000 256 3
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use nacre_object::*;

use nacre_wire::{Address, RemoteOptions, RemoteStore, ServeOptions, Server};

const BLOCK_BYTES: u64 = 4096;

/// Blocks of one size, each with a version.
#[derive(Default)]
struct Blocks {
    blocks: parking_lot::Mutex<HashMap<(Bytes, u64), (u64, Bytes)>>,
}

impl ObjectStore for Blocks {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        let mut blocks = self.blocks.lock();
        let at = |offset: u64| (object.to_bytes(), offset);
        for (index, guard) in transaction.guards.iter().enumerate() {
            if let Guard::Region { range, version, .. } = guard {
                let (found, data) = blocks.get(&at(range.offset)).cloned().unwrap_or_default();
                if found > *version {
                    let found = Found::Region(RangeRead { data, version: found, ..Default::default() });
                    return Reply::ready(Ok(Outcome::Refused(Refusal { guard: index, found, version: 0 })));
                }
            }
        }
        let mut done = Done::default();
        for read in &transaction.reads {
            if let Read::Range { range, .. } = read {
                let (version, data) = blocks.get(&at(range.offset)).cloned().unwrap_or_default();
                let kind = ExtentKind::Data;
                let extents = vec![Extent { range: *range, version, kind }];
                let size = data.len() as u64;
                done.answers.push(Answer::Range(RangeRead { data, version, extents, size, next: None }));
            }
        }
        for write in transaction.writes {
            if let Write::Extents { extents, .. } = write {
                for (offset, data) in extents {
                    let key = (Bytes::copy_from_slice(object.as_bytes()), offset);
                    let block = blocks.entry(key).or_default();
                    *block = (block.0 + 1, Bytes::copy_from_slice(&data));
                    done.version = block.0;
                }
            }
        }
        Reply::ready(Ok(Outcome::Done(done)))
    }

    fn list(&self, _: Option<&ObjectId>, _: usize) -> Reply<Vec<ObjectId>> {
        Reply::ready(Ok(Vec::new()))
    }
}

async fn update_for_ever(store: RemoteStore, worker: u64, done: Arc<AtomicU64>, stop: Arc<AtomicBool>) {
    let object: ObjectId = format!("object-{}", worker % 16).parse().unwrap();
    let range = ByteRange::new(worker * BLOCK_BYTES, BLOCK_BYTES);
    let read = Read::Range { fork: Fork::DEFAULT, range, intent: Intent::Update };
    while !stop.load(Ordering::Relaxed) {
        let outcome = store.apply(&object, Transaction::new().read(read.clone())).await.unwrap();
        let Outcome::Done(answers) = outcome else { panic!("a read was refused") };
        let Some(Answer::Range(block)) = answers.answers.first() else { panic!("no answer") };
        let mut data = vec![0; BLOCK_BYTES as usize];
        data[..block.data.len()].copy_from_slice(&block.data);
        data[0] = data[0].wrapping_add(1);
        let write = Transaction::new().if_version(Fork::DEFAULT, range, block.version).write(
            Fork::DEFAULT,
            range.offset,
            data,
        );
        match store.apply(&object, write).await.unwrap() {
            Outcome::Done(_) => done.fetch_add(1, Ordering::Relaxed),
            Outcome::Refused(_) => panic!("a block of one's own was changed by somebody else"),
        };
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let address: Address = arguments[2].parse().unwrap();
    match arguments[1].as_str() {
        "serve" => {
            let options = ServeOptions { listen: vec![address], ..Default::default() };
            let server = Server::start(Arc::new(Blocks::default()), options).unwrap();
            println!("{}", server.addresses()[0]);
            std::thread::park();
        }
        "load" => {
            let concurrency: u64 = arguments[3].parse().unwrap();
            let seconds: u64 = arguments[4].parse().unwrap();
            let first: u64 = arguments.get(5).map_or(0, |first| first.parse().unwrap());
            let threads: usize = arguments.get(6).map_or(1, |threads| threads.parse().unwrap());
            let own_thread = arguments.get(7).is_some();
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            if threads == 1 {
                builder = tokio::runtime::Builder::new_current_thread();
            }
            let runtime = builder.worker_threads(threads).enable_all().build().unwrap();
            runtime.block_on(async {
                let options = RemoteOptions { own_thread, ..Default::default() };
                let store = RemoteStore::new(&[address], options).unwrap();
                let done = Arc::new(AtomicU64::new(0));
                let stop = Arc::new(AtomicBool::new(false));
                let begin = Instant::now();
                let tasks: Vec<_> = (0..concurrency)
                    .map(|n| {
                        tokio::spawn(update_for_ever(store.clone(), first + n, done.clone(), stop.clone()))
                    })
                    .collect();
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                let rate = done.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64();
                println!("{concurrency} concurrent: {rate:.0} updates/s");
                stop.store(true, Ordering::Relaxed);
                for task in tasks {
                    task.await.unwrap();
                }
            });
        }
        other => panic!("{other}: neither serve nor load"),
    }
}
