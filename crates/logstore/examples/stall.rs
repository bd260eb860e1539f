//! The longest wait of a small durable write beside a load of another client, the bytes that the load made the store
//! write, and the memory it took.
//!
//! ```text
//! cargo run --release -p nacre-logstore --example stall -- objects /folder/that/is/not/there [count] [capacity MiB]
//! ```
//!
//! Loads:
//! - `objects`: `count` objects of 64 B are made, then rewritten at random, as many times;
//! - `keys`: `count` keys of 600 B in one object are set, then overwritten at random, as many times;
//! - `directories`: the same keys in a thousand objects;
//! - `blocks`: `count` blocks of 64 B in one object are written, then overwritten at random, three times as many times;
//! - `removals`: `count` objects are made and removed.
//!
//! For each phase one line. Bytes are counted at the seam between engine and disk, beside what the system says that the
//! process wrote, which counts whole pages. The longest call of the disk tells the device's own part of a wait.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use futures::executor::block_on;
use futures::stream::FuturesUnordered;
use nacre_logstore::disk::{Disk, DiskFile, FolderDisk, Source, Volume};
use nacre_logstore::{LogStore, Options};
use nacre_object::{Fork, Key, ObjectId, ObjectStore, Outcome, Transaction, WriteOp};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Counters of the disk's work.
#[derive(Default)]
struct Counted {
    log_bytes: AtomicU64,
    index_bytes: AtomicU64,
    longest_write_us: AtomicU64,
    longest_sync_us: AtomicU64,
}

impl Counted {
    fn timed<T>(longest: &AtomicU64, run: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let result = run();
        longest.fetch_max(begun.elapsed().as_micros() as u64, Ordering::Relaxed);
        result
    }
}

/// A disk whose writes are counted.
struct CountedDisk {
    disk: FolderDisk,
    counted: Arc<Counted>,
}

struct CountedFile {
    file: Arc<dyn DiskFile>,
    counted: Arc<Counted>,
    is_index: bool,
}

impl CountedDisk {
    fn file(&self, name: &str, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        let is_index = name.contains("snapshot") || name.contains("index");
        Arc::new(CountedFile { file, counted: Arc::clone(&self.counted), is_index })
    }
}

impl Disk for CountedDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.open(name).map(|file| self.file(name, file))
    }
    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.create(name, bytes).map(|file| self.file(name, file))
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }
    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        self.disk.list()
    }
    fn sync_names(&self) -> io::Result<()> {
        Counted::timed(&self.counted.longest_sync_us, || self.disk.sync_names())
    }
    fn volume(&self) -> io::Result<Option<Volume>> {
        self.disk.volume()
    }
    fn own_bytes(&self) -> u64 {
        self.disk.own_bytes()
    }
    fn allocated_bytes(&self) -> io::Result<Option<u64>> {
        self.disk.allocated_bytes()
    }
    fn describe(&self, name: &str) -> String {
        self.disk.describe(name)
    }
}

impl DiskFile for CountedFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, buffer)
    }
    fn read_now(&self, offset: u64, buffer: &mut [u8]) -> io::Result<bool> {
        self.file.read_now(offset, buffer)
    }
    fn read_device(&self, offset: u64, buffer: &mut [u8]) -> io::Result<Source> {
        self.file.read_device(offset, buffer)
    }
    fn write_at(&self, offset: u64, parts: &[Bytes]) -> io::Result<()> {
        let bytes: usize = parts.iter().map(Bytes::len).sum();
        let count = if self.is_index { &self.counted.index_bytes } else { &self.counted.log_bytes };
        count.fetch_add(bytes as u64, Ordering::Relaxed);
        Counted::timed(&self.counted.longest_write_us, || self.file.write_at(offset, parts))
    }
    fn sync(&self) -> io::Result<()> {
        match self.is_index {
            true => self.file.sync(),
            false => Counted::timed(&self.counted.longest_sync_us, || self.file.sync()),
        }
    }
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }
    fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.file.set_size(bytes)
    }
}

/// Returns the number behind a word in a file of the system about this process.
fn proc_value(file: &str, word: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(word)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Makes small durable writes one after another until it is told to end; returns how long each took, in microseconds.
fn probe(store: &LogStore, end: &AtomicBool) -> Vec<u64> {
    let mut waits = Vec::new();
    for number in 0_u64.. {
        if end.load(Ordering::Relaxed) {
            break;
        }
        let object = ObjectId::try_from(format!("probe {}", number % 256).as_str()).expect("a short name");
        let begun = Instant::now();
        apply(store, &object, Transaction::new().write(Fork::DEFAULT, 0, vec![1; 64]));
        waits.push(begun.elapsed().as_micros() as u64);
        // As somebody would who does something else in between.
        std::thread::sleep(Duration::from_millis(1));
    }
    waits
}

fn apply(store: &LogStore, object: &ObjectId, transaction: Transaction) {
    let outcome = block_on(store.apply(object, transaction)).expect("the store takes writes");
    assert!(matches!(outcome, Outcome::Done(_)));
}

/// Runs a phase of a load: `count` transactions, 256 of them under way at a time.
fn phase(
    name: &str,
    store: &LogStore,
    counted: &Counted,
    count: u64,
    mut transaction: impl FnMut(u64) -> (ObjectId, Transaction),
) {
    let before = (counted.log_bytes.load(Ordering::Relaxed), counted.index_bytes.load(Ordering::Relaxed));
    let system_before = proc_value("io", "write_bytes");
    counted.longest_write_us.store(0, Ordering::Relaxed);
    counted.longest_sync_us.store(0, Ordering::Relaxed);
    let end = Arc::new(AtomicBool::new(false));
    let probing = std::thread::spawn({
        let (store, end) = (store.clone(), Arc::clone(&end));
        move || probe(&store, &end)
    });
    let begun = Instant::now();
    let mut user_bytes = 0;
    block_on(async {
        let mut under_way = FuturesUnordered::new();
        for number in 0..count {
            let (object, transaction) = transaction(number);
            user_bytes += bytes_of(&transaction);
            under_way.push(store.apply(&object, transaction));
            if under_way.len() >= 256 {
                under_way.next().await.expect("one is under way").expect("the store takes writes");
            }
        }
        while let Some(reply) = under_way.next().await {
            reply.expect("the store takes writes");
        }
    });
    let took = begun.elapsed();
    end.store(true, Ordering::Relaxed);
    let mut waits = probing.join().expect("the probe ends");
    waits.sort_unstable();
    let at = |share: f64| waits[((waits.len() - 1) as f64 * share) as usize] as f64 / 1e3;
    let log_bytes = counted.log_bytes.load(Ordering::Relaxed) - before.0;
    let index_bytes = counted.index_bytes.load(Ordering::Relaxed) - before.1;
    let system_bytes = proc_value("io", "write_bytes") - system_before;
    let info = store.info();
    let times = |bytes: u64| bytes as f64 / user_bytes.max(1) as f64;
    println!(
        "{name:>10}: {:7.0}/s; probe p50 {:.1} p99.9 {:.1} max {:.1} ms (disk: write {:.1}, sync {:.1} ms); user {} MiB, \
         written {:.2} x (log {:.2}, index {:.2}; system {:.2}); files {} MiB, live {} MiB; resident {} MiB, peak {} MiB",
        count as f64 / took.as_secs_f64(),
        at(0.5),
        at(0.999),
        at(1.0),
        counted.longest_write_us.load(Ordering::Relaxed) as f64 / 1e3,
        counted.longest_sync_us.load(Ordering::Relaxed) as f64 / 1e3,
        user_bytes >> 20,
        times(log_bytes + index_bytes),
        times(log_bytes),
        times(index_bytes),
        times(system_bytes),
        info.taken_bytes >> 20,
        info.live_bytes >> 20,
        proc_value("status", "VmRSS") >> 10,
        proc_value("status", "VmHWM") >> 10,
    );
}

/// Returns the bytes that a transaction gives the store to keep: data, and keys with their values.
fn bytes_of(transaction: &Transaction) -> u64 {
    let bytes = transaction.writes.iter().map(|write| match write {
        WriteOp::Extents { extents, .. } => extents.iter().map(|(_, data)| data.len()).sum(),
        WriteOp::SetKey { key, value } => key.as_bytes().len() + value.len(),
        _ => 0,
    });
    bytes.sum::<usize>() as u64
}

fn id(name: &str) -> ObjectId {
    ObjectId::try_from(name).expect("a short name")
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [load, folder, rest @ ..] = &arguments[..] else {
        eprintln!("usage: stall objects|keys|directories|blocks|removals FOLDER [COUNT] [CAPACITY-MIB]");
        std::process::exit(2);
    };
    let number = |at: usize| rest.get(at).map(|text: &String| text.parse::<u64>().expect("a number"));
    let count = number(0).unwrap_or(1_000_000);
    let capacity_bytes = number(1).map(|mib| mib << 20);
    let counted = Arc::new(Counted::default());
    let disk = FolderDisk::open(Path::new(folder), true).expect("a new folder");
    let disk = CountedDisk { disk, counted: Arc::clone(&counted) };
    let store = LogStore::open_on(Arc::new(disk), Options { capacity_bytes, ..Options::default() })
        .expect("a store in a new folder");
    let mut rng = SmallRng::seed_from_u64(12);
    let mut any = move || rng.random_range(0..count);
    let run = |name: &str, times: u64, make: &mut dyn FnMut(u64) -> (ObjectId, Transaction)| {
        phase(name, &store, &counted, times, make);
    };
    let block = |number: u64, at: u64| {
        let mut data = vec![number as u8; 64];
        data[..8].copy_from_slice(&number.to_le_bytes());
        Transaction::new().write(Fork::DEFAULT, at, data)
    };
    let key = |name: u64, number: u64| {
        let key = Key::try_from(format!("key {name:08}").as_str()).expect("a short key");
        let mut value = vec![number as u8; 600];
        value[..8].copy_from_slice(&number.to_le_bytes());
        Transaction::new().change(WriteOp::SetKey { key, value: value.into() })
    };
    run("alone", 1, &mut |number| (id("first"), block(number, 0)));
    match load.as_str() {
        "objects" => {
            run("create", count, &mut |number| (id(&format!("object {number}")), block(number, 0)));
            run("rewrite", count, &mut |number| (id(&format!("object {}", any())), block(number, 0)));
        }
        "keys" => {
            run("create", count, &mut |number| (id("map"), key(number, number)));
            run("rewrite", count, &mut |number| (id("map"), key(any(), number)));
        }
        "directories" => {
            let map = |name: u64| id(&format!("map {}", name % 1000));
            run("create", count, &mut |number| (map(number), key(number, number)));
            run("rewrite", count, &mut |number| {
                let name = any();
                (map(name), key(name, number))
            });
        }
        "blocks" => {
            run("create", count, &mut |number| (id("file"), block(number, number * 64)));
            run("rewrite", 3 * count, &mut |number| (id("file"), block(number, any() * 64)));
        }
        "removals" => {
            run("create", count, &mut |number| (id(&format!("object {number}")), block(number, 0)));
            run("remove", count, &mut |number| {
                (id(&format!("object {number}")), Transaction::new().change(WriteOp::Remove))
            });
        }
        other => panic!("{other} is no load"),
    }
    let begun = Instant::now();
    store.close().expect("the store closes");
    println!("{:>10}: {:.2} s", "close", begun.elapsed().as_secs_f64());
    drop(store);
    let begun = Instant::now();
    let store = LogStore::open(Path::new(folder), Options { capacity_bytes, ..Options::default() })
        .expect("the store opens again");
    println!("{:>10}: {:.2} s, {:?}", "open", begun.elapsed().as_secs_f64(), store.opened());
}
