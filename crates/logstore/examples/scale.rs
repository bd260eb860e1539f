//! Measures the embedded store where its index is large or its chunks are fragmented.
//!
//! ```sh
//! cargo run --release -p nacre-logstore --example scale -- SHAPE [FOLDER]
//! ```
//!
//! The shapes are `interleaved` (reads of ranges that were written piece by piece), `compaction` (its peak of memory over
//! such ranges), `guards` (guards and listings of many extents), `memory` (the size of the process with many small
//! objects), `updates` (blocks that are read and written again), and `cached` (reads of what the page cache has, in the
//! folder that is given).

use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use bytes::Bytes;
use futures::executor::block_on;
use nacre_logstore::{Durability, LogStore, Options};
use nacre_object::{
    Answer, ByteRange, Done, Fork, Guard, ObjectId, ObjectStore, Outcome, RangeRead, ReadOp, Transaction,
    WriteOp,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// The maximum number of extents in one transaction, and of their bytes.
const BATCH: usize = 4096;
const BATCH_BYTES: usize = 8 << 20;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let folder = tempfile::tempdir_in(args.get(1).map_or(".", String::as_str))?;
    match args.first().map(String::as_str) {
        Some("interleaved") => interleaved(folder.path()),
        Some("compaction") => compaction(folder.path()),
        Some("guards") => guards(),
        Some("memory") => memory(folder.path()),
        Some("held") => {
            let number = |index: usize| args.get(index).and_then(|text| text.parse().ok()).unwrap_or(1);
            held(folder.path(), number(2), number(3))
        }
        Some("updates") => updates(),
        Some("cached") => cached(folder.path()),
        _ => Err("give one of interleaved, compaction, guards, memory, updates, cached".into()),
    }
}

fn open(folder: &Path) -> Result<LogStore> {
    Ok(LogStore::open(folder, Options { durability: Durability::None, ..Options::default() })?)
}

fn apply(store: &LogStore, object: &ObjectId, transaction: Transaction) -> Result<Done> {
    match block_on(store.apply(object, transaction))? {
        Outcome::Done(done) => Ok(done),
        Outcome::Refused(refusal) => Err(format!("refused: {refusal:?}").into()),
    }
}

fn read(store: &LogStore, object: &ObjectId, range: ByteRange) -> Result<RangeRead> {
    match apply(store, object, Transaction::new().read_range(Fork::DEFAULT, range))?.answers.pop() {
        Some(Answer::Range(read)) => Ok(read),
        other => Err(format!("{other:?}").into()),
    }
}

/// Writes `len` bytes at every multiple of `stride` below `bytes`, many in each transaction.
fn write_pieces(store: &LogStore, object: &ObjectId, bytes: u64, stride: u64, len: u64) -> Result<()> {
    let data = Bytes::from(vec![7; len as usize]);
    let starts: Vec<u64> = (0..bytes / stride).map(|index| index * stride).collect();
    for starts in starts.chunks(BATCH.min(BATCH_BYTES / data.len())) {
        let extents = starts.iter().map(|start| (*start, data.clone())).collect();
        let write = WriteOp::Extents { fork: Fork::DEFAULT, extents };
        apply(store, object, Transaction::new().change(write))?;
    }
    Ok(())
}

/// Returns the median time of one of `calls`, in microseconds.
fn median_us(calls: usize, mut call: impl FnMut(usize) -> Result<()>) -> Result<f64> {
    let mut times = Vec::with_capacity(calls);
    for index in 0..calls {
        let begun = Instant::now();
        call(index)?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[calls / 2])
}

/// Returns a size of this process in bytes, as the kernel names it.
fn process_bytes(name: &str) -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).ok_or("no such size")?;
    Ok(line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>()? * KIB)
}

/// Returns the processor time that this thread has taken, in nanoseconds.
fn thread_ns() -> Result<u64> {
    let schedule = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(schedule.split_whitespace().next().ok_or("no processor time")?.parse()?)
}

fn interleaved(folder: &Path) -> Result<()> {
    let store = open(folder)?;
    let bytes = 16 * MIB;
    for (name, read_bytes, piece) in [
        ("4 KiB of whole chunks", 4 * KIB, 0),
        ("4 KiB, 64 B interleaved", 4 * KIB, 64),
        ("64 KiB of whole chunks", 64 * KIB, 0),
        ("64 KiB, 64 B interleaved", 64 * KIB, 64),
        ("64 KiB, 16 B interleaved", 64 * KIB, 16),
    ] {
        for one_by_one in [false, true] {
            let object = ObjectId::new(Bytes::from(format!("{name} {one_by_one}")))?;
            write_pieces(&store, &object, bytes, 64 * KIB, 64 * KIB)?;
            if piece > 0 && !one_by_one {
                write_pieces(&store, &object, bytes, 2 * piece, piece)?;
            } else if piece > 0 {
                let data = Bytes::from(vec![8; piece as usize]);
                for index in 0..MIB / (2 * piece) {
                    let write = Transaction::new().write(Fork::DEFAULT, index * 2 * piece, data.clone());
                    apply(&store, &object, write)?;
                }
            }
            let places = MIB / read_bytes;
            let us = median_us(400, |index| {
                let at = index as u64 * 7 % places * read_bytes;
                black_box(read(&store, &object, ByteRange::new(at, read_bytes))?);
                Ok(())
            })?;
            let how = if one_by_one { "a transaction each" } else { "many in a transaction" };
            println!("{name:>26}, {how:>21}: {us:9.1} µs");
            if piece == 0 {
                break;
            }
        }
    }
    Ok(())
}

fn compaction(folder: &Path) -> Result<()> {
    let store = open(folder)?;
    let object = ObjectId::try_from("object")?;
    let bytes = 120 * MIB;
    write_pieces(&store, &object, bytes, 64 * KIB, 64 * KIB)?;
    // Of each KiB there remain 64 B as they were.
    let data = Bytes::from(vec![9; 960]);
    let starts: Vec<u64> = (0..bytes / KIB).map(|index| index * KIB + 64).collect();
    for starts in starts.chunks(BATCH.min(BATCH_BYTES / data.len())) {
        let extents = starts.iter().map(|start| (*start, data.clone())).collect();
        let write = WriteOp::Extents { fork: Fork::DEFAULT, extents };
        apply(&store, &object, Transaction::new().change(write))?;
    }
    let before = process_bytes("VmRSS")?;
    let begun = Instant::now();
    store.compact()?;
    let seconds = begun.elapsed().as_secs_f64();
    let (after, most) = (process_bytes("VmRSS")?, process_bytes("VmHWM")?);
    let info = store.info();
    println!("compaction of {} MiB: {seconds:.2} s", bytes / MIB);
    println!("resident before {} MiB, at most {} MiB, after {} MiB", before / MIB, most / MIB, after / MIB);
    println!("{} extents, their index {} MiB", info.extents, info.extent_index_bytes / MIB);
    let us = median_us(1000, |index| {
        let at = index as u64 * 977 % (bytes / (4 * KIB)) * 4 * KIB;
        black_box(read(&store, &object, ByteRange::new(at, 4 * KIB))?);
        Ok(())
    })?;
    println!("4 KiB read afterwards: {us:.1} µs");
    Ok(())
}

fn guards() -> Result<()> {
    let store = LogStore::memory(Options::default());
    let object = ObjectId::try_from("object")?;
    let extents = 4_000_000;
    let begun = Instant::now();
    write_pieces(&store, &object, extents * 32, 32, 16)?;
    println!("{extents} extents made in {:.2} s", begun.elapsed().as_secs_f64());
    let whole = ByteRange::new(0, extents * 32);
    let version = read(&store, &object, ByteRange::new(whole.len - 32, 32))?.version;
    let guard = || Guard::Region { fork: Fork::DEFAULT, range: whole, version };
    let us = median_us(20, |_| apply(&store, &object, Transaction::new().guard(guard())).map(drop))?;
    println!("a guard over all of them: {us:.1} µs");
    let thousand = |_| {
        let mut transaction = Transaction::new();
        for _ in 0..1000 {
            transaction = transaction.guard(guard());
        }
        apply(&store, &object, transaction).map(drop)
    };
    println!("1,000 such guards: {:.1} ms", median_us(1, thousand)? / 1e3);
    let begun = Instant::now();
    let (mut at, mut pages, mut listed) = (0, 0, 0);
    loop {
        let range = ByteRange::new(at, whole.len - at);
        let list = Transaction::new().read(ReadOp::Extents { fork: Fork::DEFAULT, range });
        let Some(Answer::Range(page)) = apply(&store, &object, list)?.answers.pop() else { break };
        pages += 1;
        listed += page.extents.len();
        match page.next {
            Some(next) if begun.elapsed().as_secs() < 60 => at = next,
            _ => break,
        }
    }
    println!("{listed} extents listed in {pages} pages: {:.2} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// Makes the objects in a process of its own for each shape: memory that was freed is not given back to the system.
fn memory(folder: &Path) -> Result<()> {
    for (objects, extents) in
        [(1_000_000, 1), (200_000, 2), (200_000, 3), (100_000, 8), (10_000, 100), (1, 1_000_000)]
    {
        let mut child = std::process::Command::new(std::env::current_exe()?);
        child.arg("held").arg(folder).args([objects.to_string(), extents.to_string()]);
        if !child.status()?.success() {
            return Err("the process that makes the objects failed".into());
        }
    }
    Ok(())
}

fn held(folder: &Path, objects: u64, extents: u64) -> Result<()> {
    let store = open(folder)?;
    let before = process_bytes("VmRSS")?;
    let data = Bytes::from(vec![7; 64]);
    for index in 0..objects {
        let object = ObjectId::new(Bytes::from(format!("object-{index:07}")))?;
        if extents > BATCH as u64 {
            write_pieces(&store, &object, extents * 128, 128, 64)?;
            continue;
        }
        let extents = (0..extents).map(|extent| (extent * 128, data.clone())).collect();
        let write = WriteOp::Extents { fork: Fork::DEFAULT, extents };
        apply(&store, &object, Transaction::new().change(write))?;
    }
    let grown = process_bytes("VmRSS")?.saturating_sub(before);
    println!("{objects:>8} objects of {extents:>8} extents: {:>9} B each", grown / objects);
    Ok(())
}

fn updates() -> Result<()> {
    for (name, objects, blocks, block_bytes) in [
        ("64 objects of 1,024 blocks of 4 KiB", 64, 1024, 4 * KIB),
        ("one object of 256 blocks of 64 B", 1, 256, 64),
        ("100,000 objects of a block of 64 B", 100_000, 1, 64),
    ] {
        let store = LogStore::memory(Options::default());
        let ids: Vec<ObjectId> = (0..objects)
            .map(|index| ObjectId::new(Bytes::from(format!("object-{index:07}"))))
            .collect::<std::result::Result<_, _>>()?;
        for id in &ids {
            write_pieces(&store, id, blocks * block_bytes, block_bytes, block_bytes)?;
        }
        let mut random = SmallRng::seed_from_u64(7);
        let data = Bytes::from(vec![3; block_bytes as usize]);
        let (mut rates, mut costs) = (Vec::new(), Vec::new());
        for _ in 0..9 {
            let count = 100_000;
            let (begun, begun_ns) = (Instant::now(), thread_ns()?);
            for _ in 0..count {
                let id = &ids[random.random_range(0..ids.len())];
                let range = ByteRange::new(random.random_range(0..blocks) * block_bytes, block_bytes);
                let version = read(&store, id, range)?.version;
                let update = Transaction::new().if_version(Fork::DEFAULT, range, version).write(
                    Fork::DEFAULT,
                    range.offset,
                    data.clone(),
                );
                apply(&store, id, update)?;
            }
            rates.push(f64::from(count) / begun.elapsed().as_secs_f64());
            costs.push((thread_ns()? - begun_ns) as f64 / f64::from(count));
        }
        rates.sort_by(f64::total_cmp);
        costs.sort_by(f64::total_cmp);
        println!(
            "{name}: median {:.0}, best {:.0} updates/s; processor time of one: median {:.0}, least {:.0} ns",
            rates[4], rates[8], costs[4], costs[0]
        );
    }
    Ok(())
}

fn cached(folder: &Path) -> Result<()> {
    let store = open(folder)?;
    let object = ObjectId::try_from("object")?;
    let bytes = 64 * MIB;
    write_pieces(&store, &object, bytes, 4 * KIB, 4 * KIB)?;
    let us = median_us(20_000, |index| {
        let at = index as u64 * 977 % (bytes / (4 * KIB)) * 4 * KIB;
        black_box(read(&store, &object, ByteRange::new(at, 4 * KIB))?);
        Ok(())
    })?;
    println!("4 KiB read from the page cache: {us:.2} µs");
    Ok(())
}
