//! Measures volatile stores: updates by several threads of this process, and the memory that the process takes.
//!
//! ```sh
//! cargo run --release -p nacre-logstore --example volatile -- SHAPE [THREADS] [SECONDS]
//! ```
//!
//! The shapes are `rewriting` (blocks of 4 KiB that are there are read and written again, if they have not changed), `fresh`
//! (the same with a block that is new each time), `small` (blocks of 64 B, each an object of its own), and `memory` (the size
//! of the process, filled and emptied with blocks of several sizes by turns).

use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures::executor::block_on;
use nacre_logstore::{LogStore, Options};
use nacre_object::{
    Answer, ByteRange, Fork, ObjectId, ObjectStore, Outcome, RangeRead, StoreError, Transaction, WriteOp,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const MIB: u64 = 1 << 20;

/// The blocks that are updated.
#[derive(Clone, Copy)]
struct Shape {
    objects: u64,
    /// The number of blocks of each object.
    blocks: u64,
    block_bytes: u64,
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |index: usize, default| args.get(index).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (threads, seconds) = (number(1, 2), number(2, 2));
    let rewriting = Shape { objects: 64, blocks: 256, block_bytes: 4096 };
    match args.first().map(String::as_str) {
        Some("rewriting") => updates(rewriting, threads, seconds),
        Some("fresh") => updates(Shape { blocks: u64::MAX >> 20, ..rewriting }, threads, seconds),
        Some("small") => updates(Shape { objects: 100_000, blocks: 1, block_bytes: 64 }, threads, seconds),
        Some("memory") => memory(number(1, 256) * MIB),
        _ => Err("give one of rewriting, fresh, small, memory".into()),
    }
}

fn object(index: u64) -> Result<ObjectId> {
    Ok(ObjectId::new(Bytes::from(format!("object-{index:07}")))?)
}

fn read(store: &LogStore, id: &ObjectId, range: ByteRange) -> Result<RangeRead> {
    match block_on(store.apply(id, Transaction::new().read_range(Fork::DEFAULT, range)))? {
        Outcome::Done(mut done) => match done.answers.pop() {
            Some(Answer::Range(read)) => Ok(read),
            other => Err(format!("the read gave {other:?}").into()),
        },
        refused => Err(format!("the read gave {refused:?}").into()),
    }
}

/// Reads a block, counts in it, and writes it back if it has not changed; returns whether it had not.
fn update(store: &LogStore, id: &ObjectId, range: ByteRange) -> Result<bool> {
    let found = read(store, id, range)?;
    let mut block = BytesMut::from(found.data);
    block.resize(range.len as usize, 0);
    block[0] = block[0].wrapping_add(1);
    let write = Transaction::new().if_version(Fork::DEFAULT, range, found.version);
    let write = write.write(Fork::DEFAULT, range.offset, block.freeze());
    Ok(matches!(block_on(store.apply(id, write))?, Outcome::Done(_)))
}

fn updates(shape: Shape, threads: u64, seconds: u64) -> Result<()> {
    let Shape { objects, blocks, block_bytes } = shape;
    let store = LogStore::memory(Options::default());
    let ids: Vec<ObjectId> = (0..objects).map(object).collect::<Result<_>>()?;
    if objects * block_bytes <= 1024 * MIB && blocks <= 1024 {
        for id in &ids {
            for block in 0..blocks {
                update(&store, id, ByteRange::new(block * block_bytes, block_bytes))?;
            }
        }
    }
    let mut rates = Vec::new();
    // Fresh blocks take gigabytes in a while.
    let rounds = if blocks > 1024 { 3 } else { 5 };
    for round in 0..rounds {
        let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
        let begun = Instant::now();
        std::thread::scope(|scope| -> Result<()> {
            let work = |thread: u64| -> Result<()> {
                let mut random = SmallRng::seed_from_u64(round * threads + thread);
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    let id = &ids[random.random_range(0..ids.len())];
                    let range = ByteRange::new(random.random_range(0..blocks) * block_bytes, block_bytes);
                    count += u64::from(update(&store, id, range)?);
                }
                done.fetch_add(count, Ordering::Relaxed);
                Ok(())
            };
            let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
            std::thread::sleep(Duration::from_secs(seconds));
            stop.store(true, Ordering::Relaxed);
            running.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
        })?;
        rates.push(done.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64());
    }
    rates.sort_by(f64::total_cmp);
    let resident = resident_bytes()? / MIB;
    let (median, best) = (rates[rates.len() / 2], rates[rates.len() - 1]);
    println!("{threads} threads: median {median:.0}, best {best:.0} updates/s; {resident} MiB resident");
    Ok(())
}

/// Fills a store of a capacity until it refuses, and empties it, with blocks of several sizes.
fn memory(capacity_bytes: u64) -> Result<()> {
    let store = LogStore::memory(Options { capacity_bytes: Some(capacity_bytes), ..Options::default() });
    for (round, block_bytes) in [64, 4096, 100, 65_536, 1000, 64, 16_384, 300].into_iter().enumerate() {
        let mut created = 0;
        let write = |index: u64| -> Result<bool> {
            let data = Bytes::from(vec![index as u8; block_bytes]);
            let write = Transaction::new().write(Fork::DEFAULT, index % 16 * block_bytes as u64, data);
            match block_on(store.apply(&object(index / 16)?, write)) {
                Ok(_) => Ok(true),
                Err(StoreError { kind: nacre_object::ErrorKind::OutOfSpace, .. }) => Ok(false),
                Err(error) => Err(error.into()),
            }
        };
        while write(created)? {
            created += 1;
        }
        let full = (resident_bytes()? / MIB, store.info().taken_bytes / MIB);
        // At first all but every hundredth object, so that what remains is scattered.
        for object_index in 0..created.div_ceil(16) {
            if round % 2 == 1 || object_index % 100 != 0 {
                block_on(store.apply(&object(object_index)?, Transaction::new().change(WriteOp::Remove)))?;
            }
        }
        let rest = (resident_bytes()? / MIB, store.info().taken_bytes / MIB);
        println!(
            "{created} blocks of {block_bytes} B: {} MiB resident, {} counted; after removals {} and {}",
            full.0, full.1, rest.0, rest.1
        );
    }
    Ok(())
}

/// Returns the size of this process in memory, in bytes.
fn resident_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
}
