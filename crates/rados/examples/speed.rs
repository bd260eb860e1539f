//! Measures the engine on Ceph beside plain RADOS objects in the same pool, and compares each measure with its target:
//!
//! ```text
//! cargo run --release -p nacre-rados --example speed -- --conf FILE [--pool POOL] [--id USER] [--keyring FILE] [--quick]
//! cargo run --release -p nacre-rados --example speed -- rados://POOL?conf=FILE [--quick]
//! ```
//!
//! It works in a namespace of its own, checks what it reads and what it has written, and removes it all at the end. It takes up to
//! four minutes, with `--quick` half a minute. Only ratios within one run mean something, and only those of a long run.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use nacre_object::testkit::block_on;
use nacre_object::{
    Answer, ByteRange, Done, Fork, Found, Guard, Intent, Key, ObjectId, ObjectStore, Outcome, ReadOp,
    Refusal, Reply, Transaction, WriteOp,
};
use nacre_rados::raw::RawPool;
use nacre_rados::{Location, RadosStore};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The length of a stripe, and the number of them under way at a time.
const PIECE: usize = 4 << 20;
const PIECES_AT_ONCE: usize = 8;
/// The length of a block of the updates; how many there are in one object, and in all; and how many clients update them.
const BLOCK: usize = 4096;
const BLOCKS_PER_OBJECT: usize = 16;
const BLOCKS: usize = 128;
const CLIENTS: usize = 16;

/// The size of the measurements.
struct Effort {
    stream_bytes: u64,
    update_time: Duration,
    exchanges: usize,
    spread_rounds: usize,
    guard_extents: u64,
    large_pieces: u64,
    objects: usize,
    /// The longest time that objects are made for the listing.
    making_max: Duration,
}

const FULL: Effort = Effort {
    stream_bytes: 1 << 30,
    update_time: Duration::from_secs(8),
    exchanges: 2000,
    spread_rounds: 40,
    guard_extents: 100_000,
    large_pieces: 20_000,
    objects: 100_000,
    making_max: Duration::from_secs(75),
};

const QUICK: Effort = Effort {
    stream_bytes: 64 << 20,
    update_time: Duration::from_secs(1),
    exchanges: 256,
    spread_rounds: 8,
    guard_extents: 10_000,
    large_pieces: 5_000,
    objects: 1000,
    making_max: Duration::from_secs(5),
};

/// The target of a measure.
#[derive(Clone, Copy)]
enum Target {
    AtLeast(f64),
    AtMost(f64),
}

/// Prints one line of the table.
fn row(measure: &str, nacre: &str, peer: &str, value: f64, target: Target) {
    let (sign, limit, met) = match target {
        Target::AtLeast(limit) => (">=", limit, value >= limit),
        Target::AtMost(limit) => ("<=", limit, value <= limit),
    };
    let verdict = if met { "met" } else { "MISSED" };
    println!("{measure:<58} {nacre:>14} {peer:>14} {value:>9.2} {sign} {limit:<6} {verdict}");
}

fn rate(bytes: u64, time: Duration) -> String {
    format!("{:.0} MB/s", bytes as f64 / 1e6 / time.as_secs_f64())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn shown(time: Duration) -> String {
    format!("{:.2} ms", ms(time))
}

fn id(name: &str) -> ObjectId {
    ObjectId::try_from(name).expect("a short name")
}

fn done(reply: Reply<Outcome>) -> Done {
    match block_on(reply) {
        Ok(Outcome::Done(done)) => done,
        other => panic!("{other:?}"),
    }
}

fn timed<T>(run: impl FnOnce() -> T) -> (Duration, T) {
    let from = Instant::now();
    let result = run();
    (from.elapsed(), result)
}

fn extents(extents: impl Iterator<Item = (u64, Bytes)>) -> WriteOp {
    WriteOp::Extents { fork: Fork::DEFAULT, extents: extents.collect() }
}

fn read(range: ByteRange) -> ReadOp {
    ReadOp::Range { fork: Fork::DEFAULT, range, intent: Intent::Look }
}

/// Reads a range of an object's default fork.
fn bytes_of(store: &RadosStore, object: &ObjectId, range: ByteRange) -> Bytes {
    match done(store.apply(object, Transaction::new().read(read(range)))).answers.pop() {
        Some(Answer::Range(read)) => read.data,
        other => panic!("{other:?}"),
    }
}

/// Makes a number of requests, so many of them at a time; returns how long each took, in order, and their outcomes.
fn windowed(
    count: usize,
    window: usize,
    mut start: impl FnMut(usize) -> Reply<Outcome>,
) -> (Vec<Duration>, Vec<Done>) {
    let (mut under_way, mut latencies, mut outcomes) = (VecDeque::new(), Vec::new(), Vec::new());
    for number in 0..count {
        under_way.push_back((Instant::now(), start(number)));
        if under_way.len() == window {
            let (from, reply) = under_way.pop_front().expect("a window is not empty");
            outcomes.push(done(reply));
            latencies.push(from.elapsed());
        }
    }
    for (from, reply) in under_way {
        outcomes.push(done(reply));
        latencies.push(from.elapsed());
    }
    latencies.sort();
    (latencies, outcomes)
}

/// Runs a piece of work for each number, on so many threads.
fn side_by_side(count: usize, threads: usize, work: impl Fn(usize) + Sync) {
    let work = &work;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || (thread..count).step_by(threads).for_each(work));
        }
    });
}

/// Bytes that tell where they stand: each block of 4 KiB is filled with one of its own. As a source it gives them, as a target
/// it checks them.
struct Pattern {
    at: u64,
    end: u64,
}

impl Pattern {
    const BLOCK: u64 = 4096;

    fn value(at: u64) -> u8 {
        ((at / Self::BLOCK).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
    }

    /// Returns the number of bytes, at most `most`, that are alike from here on.
    fn run(&self, most: usize) -> usize {
        let len = (Self::BLOCK - self.at % Self::BLOCK).min(self.end - self.at);
        len.min(most as u64) as usize
    }
}

impl AsyncRead for Pattern {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.at < self.end && buffer.remaining() > 0 {
            let len = self.run(buffer.remaining());
            buffer.initialize_unfilled_to(len).fill(Self::value(self.at));
            buffer.advance(len);
            self.at += len as u64;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pattern {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let mut rest = data;
        while !rest.is_empty() {
            let len = self.run(rest.len());
            assert!(len > 0, "more bytes than were written");
            let value = Self::value(self.at);
            assert!(rest[..len].iter().all(|byte| *byte == value), "other bytes at {}", self.at);
            self.at += len as u64;
            rest = &rest[len..];
        }
        Poll::Ready(Ok(data.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A striped stream, put and fetched, beside as many bytes in plain objects of a stripe each, as many of them at once.
fn streams(uri: &str, raw: &RawPool, effort: &Effort) {
    let bytes = effort.stream_bytes;
    let count = (bytes / PIECE as u64) as usize;
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let store = nacre::open(uri).expect("a pool");
    let stream = store.stream("stream").expect("a short name");
    // The connection is made, and the OSDs have run each kind of operation.
    runtime.block_on(stream.put(Pattern { at: 0, end: 9 << 20 })).expect("put");

    let data = vec![7_u8; PIECE];
    let (put_plain, ()) = timed(|| {
        side_by_side(count, PIECES_AT_ONCE, |number| {
            block_on(raw.write(&format!("plain-{number}"), &data)).expect("written");
        });
    });
    let (put, length) = timed(|| runtime.block_on(stream.put(Pattern { at: 0, end: bytes })));
    assert_eq!(length.expect("put"), bytes);
    let (get_plain, ()) = timed(|| {
        side_by_side(count, PIECES_AT_ONCE, |number| {
            let (found, _) = block_on(raw.read(&format!("plain-{number}"), PIECE)).expect("read");
            assert_eq!(found.len(), PIECE);
        });
    });
    let (get, length) = timed(|| runtime.block_on(stream.get(ByteRange::ALL, Pattern { at: 0, end: bytes })));
    assert_eq!(length.expect("fetched"), bytes);
    let ratio = |ours: Duration, plain: Duration| plain.as_secs_f64() / ours.as_secs_f64();
    let mib = bytes >> 20;
    let target = Target::AtLeast(0.9);
    let name = format!("put of {mib} MiB, of plain objects");
    row(&name, &rate(bytes, put), &rate(bytes, put_plain), ratio(put, put_plain), target);
    let name = format!("get of {mib} MiB, of plain objects");
    row(&name, &rate(bytes, get), &rate(bytes, get_plain), ratio(get, get_plain), target);
    side_by_side(count, PIECES_AT_ONCE, |number| {
        block_on(raw.remove(&format!("plain-{number}"))).expect("removed");
    });
    runtime.block_on(stream.remove()).expect("removed");
}

/// Adds one to the number at the head of a block.
fn increment(block: &mut [u8]) {
    let (number, _) = block.split_first_chunk_mut::<8>().expect("a block");
    *number = (u64::from_le_bytes(*number) + 1).to_le_bytes();
}

fn number_of(block: &[u8]) -> u64 {
    block.first_chunk::<8>().map_or(0, |number| u64::from_le_bytes(*number))
}

/// Updates random blocks from several threads for a time, by `update`, and returns how many a second.
fn updates(time: Duration, update: impl Fn(usize) + Sync) -> (u64, f64) {
    let (count, from) = (AtomicU64::new(0), Instant::now());
    let (update, counted) = (&update, &count);
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(rand::random());
                while from.elapsed() < time {
                    update(random.random_range(0..BLOCKS));
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let count = count.into_inner();
    (count, count as f64 / from.elapsed().as_secs_f64())
}

/// Conditional updates of blocks, several to an object, beside those of plain objects of a block each.
fn blocks(store: &RadosStore, raw: &RawPool, effort: &Effort) {
    let object = |block: usize| id(&format!("blocks-{}", block / BLOCKS_PER_OBJECT));
    let range = |block: usize| ByteRange::new((block % BLOCKS_PER_OBJECT * BLOCK) as u64, BLOCK as u64);
    for block in 0..BLOCKS {
        let zeros = vec![0; BLOCK];
        block_on(raw.write(&format!("block-{block}"), &zeros)).expect("written");
        done(
            store.apply(&object(block), Transaction::new().write(Fork::DEFAULT, range(block).offset, zeros)),
        );
    }
    let update = |block: usize| {
        let (object, range) = (object(block), range(block));
        let update = ReadOp::Range { fork: Fork::DEFAULT, range, intent: Intent::Update };
        let answers = done(store.apply(&object, Transaction::new().read(update))).answers;
        let Some(Answer::Range(mut found)) = answers.into_iter().next() else { panic!("no range") };
        loop {
            let mut data = found.data.to_vec();
            increment(&mut data);
            let write = Transaction::new().if_version(Fork::DEFAULT, range, found.version);
            match block_on(store.apply(&object, write.write(Fork::DEFAULT, range.offset, data))) {
                Ok(Outcome::Done(_)) => break,
                Ok(Outcome::Refused(Refusal { found: Found::Region(now), .. })) => found = now,
                other => panic!("{other:?}"),
            }
        }
    };
    let plain = |block: usize| {
        let name = format!("block-{block}");
        while !block_on(raw.read_modify_write(&name, BLOCK, increment)).expect("updated") {}
    };
    // In turns, so that both have the cluster in the same states.
    let (mut ours, mut theirs) = ((0_u64, 0.0_f64), (0_u64, 0.0_f64));
    for _ in 0..2 {
        for (sum, (count, rate)) in [
            (&mut theirs, updates(effort.update_time / 2, plain)),
            (&mut ours, updates(effort.update_time / 2, update)),
        ] {
            sum.0 += count;
            sum.1 += rate / 2.0;
        }
    }
    let found = (0..BLOCKS).map(|block| number_of(&bytes_of(store, &object(block), range(block))));
    assert_eq!(found.sum::<u64>(), ours.0, "an update was lost");
    let found = (0..BLOCKS).map(|block| {
        let (data, _) = block_on(raw.read(&format!("block-{block}"), BLOCK)).expect("read");
        number_of(&data)
    });
    assert_eq!(found.sum::<u64>(), theirs.0, "an update of a plain object was lost");
    let name = format!("updates, {BLOCKS_PER_OBJECT} blocks an object, of an object a block");
    let shown = |rate: f64| format!("{rate:.0}/s");
    row(&name, &shown(ours.1), &shown(theirs.1), ours.1 / theirs.1, Target::AtLeast(0.85));
}

/// Transactions that read and write one object, one at a time and 128 at once.
fn exchanges(store: &RadosStore, effort: &Effort) {
    let key = Key::try_from("key").expect("a short name");
    let mut one = 0.0;
    for window in [1, 128] {
        let (object, count) = (id(&format!("exchange-{window}")), effort.exchanges);
        let (took, (latencies, outcomes)) = timed(|| {
            windowed(count, window, |number| {
                let value = Bytes::from(number.to_string());
                let exchange = Transaction::new()
                    .read(ReadOp::Key { key: key.clone() })
                    .change(WriteOp::SetKey { key: key.clone(), value });
                store.apply(&object, exchange)
            })
        });
        // Each found what the one before it left: no two the same.
        let mut found: Vec<String> = outcomes.iter().map(|done| format!("{:?}", done.answers)).collect();
        found.sort();
        found.dedup();
        assert_eq!(found.len(), count, "two transactions found the same");
        let (rate, p99) = (count as f64 / took.as_secs_f64(), latencies[count * 99 / 100]);
        if window == 1 {
            one = rate;
            continue;
        }
        let shown = |rate: f64| format!("{rate:.0}/s");
        let name = "read and write of one object, 128 at once, of 1";
        row(name, &shown(rate), &shown(one), rate / one, Target::AtLeast(1.0));
        let name = "read and write of one object, 128 at once, p99 in ms";
        row(name, &format!("{:.1} ms", ms(p99)), "", ms(p99), Target::AtMost(100.0));
    }
}

/// Writes of pieces that are spread over many extents.
fn spread(store: &RadosStore, effort: &Effort) {
    let object = id("spread");
    for part in 0..4_u64 {
        let pieces = (0..5_000).map(|piece| ((part * 5_000 + piece) * 20, Bytes::from_static(b"0123456789")));
        done(store.apply(&object, Transaction::new().change(extents(pieces))));
    }
    let median = |pieces: u64| {
        let (latencies, _) = windowed(effort.spread_rounds, 1, |round| {
            let at = |piece: u64| piece * 40_000 + 20 * round as u64 + 3;
            let pieces = (0..pieces).map(|piece| (at(piece), Bytes::from_static(b"abc")));
            store.apply(&object, Transaction::new().change(extents(pieces)))
        });
        latencies[latencies.len() / 2]
    };
    let (eight, nine) = (median(8), median(9));
    for piece in 0..9 {
        let found = bytes_of(store, &object, ByteRange::new(piece * 40_000, 10));
        assert_eq!(found, "012abc6789", "piece {piece}");
    }
    let ratio = nine.as_secs_f64() / eight.as_secs_f64();
    row("9 spread pieces at 20,000 extents, of 8", &shown(nine), &shown(eight), ratio, Target::AtMost(1.3));
}

/// Guards over all of a fork of many extents, which nothing, and something else, was written after.
fn guards(store: &RadosStore, effort: &Effort) {
    let (object, parts) = (id("guard"), 10);
    let each = effort.guard_extents / parts;
    for part in 0..parts {
        let pieces = (0..each).map(|piece| ((part * each + piece) * 4, Bytes::from_static(b"x")));
        done(store.apply(&object, Transaction::new().change(extents(pieces))));
    }
    let key = Key::try_from("key").expect("a short name");
    let set = || {
        let set = WriteOp::SetKey { key: key.clone(), value: "value".into() };
        let guarded = Transaction::new().if_version(Fork::DEFAULT, ByteRange::ALL, parts).change(set);
        timed(|| done(store.apply(&object, guarded))).0
    };
    let (newest, older) = (set(), set());
    let count = effort.guard_extents;
    let name = format!("guard over {count} extents, none written since, ms");
    row(&name, &shown(newest), "", ms(newest), Target::AtMost(5.0));
    let name = format!("guard over {count} extents, a key set since, ms");
    row(&name, &shown(older), "", ms(older), Target::AtMost(5.0));
}

/// Small reads of an object while a large transaction changes it.
fn readers(store: &RadosStore, other: &RadosStore, effort: &Effort) {
    let object = id("large");
    done(store.apply(&object, Transaction::new().write(Fork::DEFAULT, 0, "head")));
    let pieces = |shift: u64| {
        let at = move |piece: u64| 100 + 10 * piece + shift;
        extents((0..effort.large_pieces).map(move |piece| (at(piece), Bytes::from_static(b"abcdef"))))
    };
    // Pieces where nothing is yet; and pieces that each cut one that is there.
    for (name, shift) in [("behind the end", 0), ("over others", 3)] {
        let from = Instant::now();
        let write = store.apply(&object, Transaction::new().change(pieces(shift)));
        let finished = std::sync::atomic::AtomicBool::new(false);
        let (longest, took) = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut longest = Duration::ZERO;
                while !finished.load(Ordering::Relaxed) {
                    let (took, found) = timed(|| bytes_of(other, &object, ByteRange::new(0, 4)));
                    assert_eq!(found, "head");
                    longest = longest.max(took);
                }
                longest
            });
            let written = block_on(write);
            let took = from.elapsed();
            finished.store(true, Ordering::Relaxed);
            assert!(matches!(written, Ok(Outcome::Done(_))), "{written:?}");
            (reader.join().expect("the reader"), took)
        });
        let last = 100 + 10 * (effort.large_pieces - 1) + shift;
        assert_eq!(bytes_of(store, &object, ByteRange::new(last, 6)), "abcdef");
        let name = format!("small read during {} pieces {name}, ms", effort.large_pieces);
        row(&name, &shown(longest), &format!("({})", shown(took)), ms(longest), Target::AtMost(20.0));
    }
}

/// The listing of all objects, beside librados' own listing, which `rados ls` prints.
fn listing(store: &RadosStore, raw: &RawPool, effort: &Effort) {
    let from = Instant::now();
    let mut made = 0;
    let mut per_object = Vec::new();
    for part in [effort.objects / 4, effort.objects - effort.objects / 4] {
        let mut left = part;
        while left > 0 && from.elapsed() < effort.making_max {
            let count = left.min(500);
            windowed(count, 64, |number| {
                let create = Transaction::new().guard(Guard::Absent).change(WriteOp::Create);
                store.apply(&id(&format!("object-{:07}", made + number)), create)
            });
            made += count;
            left -= count;
        }
        let list = || {
            let (mut found, mut after) = (0, None);
            loop {
                let page = block_on(store.list(after.as_ref(), 1024)).expect("a page");
                found += page.iter().filter(|object| object.as_bytes().starts_with(b"object-")).count();
                match page.last() {
                    None => return found,
                    Some(last) => after = Some(last.clone()),
                }
            }
        };
        // The first one may have to fill the index in.
        assert_eq!(list(), made);
        let (ours, found) = timed(list);
        assert_eq!(found, made);
        let (plain, count) = timed(|| {
            let mut count = 0;
            raw.list(|name| count += usize::from(name.starts_with(b"nacre.object-"))).expect("listed");
            count
        });
        assert_eq!(count, made);
        per_object.push((made, ours, plain));
    }
    let [(few, ours_few, _), (many, ours, plain)] = per_object[..] else { unreachable!() };
    let name = format!("listing of {many} objects, of rados ls");
    let ratio = ours.as_secs_f64() / plain.as_secs_f64();
    row(&name, &shown(ours), &shown(plain), ratio, Target::AtMost(3.0));
    let growth = ours.as_secs_f64() / many as f64 / (ours_few.as_secs_f64() / few as f64);
    let name = format!("listing, time an object at {many}, of that at {few}");
    row(&name, &shown(ours), &shown(ours_few), growth, Target::AtMost(1.5));
}

/// Removes everything in the namespace.
fn clear(raw: &RawPool) {
    let mut names = Vec::new();
    raw.list(|name| names.push(String::from_utf8_lossy(name).into_owned())).expect("listed");
    side_by_side(names.len(), 64, |number| {
        // One that is gone already is no failure.
        drop(block_on(raw.remove(&names[number])));
    });
}

/// Returns the location that the arguments name, and whether it is to be quick.
fn arguments() -> (Location, bool) {
    let mut arguments = std::env::args().skip(1);
    let (mut location, mut quick) = (Location::new("nacre"), false);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().expect("a value behind each option");
        match &argument[..] {
            "--quick" => quick = true,
            "--conf" => location.conf = Some(value()),
            "--pool" => location.pool = value(),
            "--id" => location.id = value(),
            "--keyring" => location.keyring = Some(value()),
            uri => location = Location::parse(uri).expect("the uri of a pool"),
        }
    }
    location.namespace = format!("speed-{:016x}", rand::random::<u64>());
    (location, quick)
}

fn main() {
    let (location, quick) = arguments();
    let (uri, effort) = (location.to_string(), if quick { QUICK } else { FULL });
    let open = || block_on(RadosStore::open(&uri)).expect("a pool");
    let (store, other) = (open(), open());
    let raw = block_on(RawPool::open(&uri)).expect("a pool");
    let from = Instant::now();
    println!("{:<58} {:>14} {:>14} {:>9}    target", "measure", "Nacre", "peer", "value");
    streams(&uri, &raw, &effort);
    blocks(&store, &raw, &effort);
    exchanges(&store, &effort);
    spread(&store, &effort);
    guards(&store, &effort);
    readers(&store, &other, &effort);
    listing(&store, &raw, &effort);
    clear(&raw);
    println!("in all {:.0} s", from.elapsed().as_secs_f64());
}
