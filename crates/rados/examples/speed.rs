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
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
/// The number of guards of each kind that are measured; and of listings.
const GUARDS: usize = 15;
const LISTINGS: usize = 3;

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

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
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

    /// Fills all of a buffer, or as much of it as there is.
    fn fill(&mut self, buffer: &mut [u8]) {
        let mut rest = buffer;
        while self.at < self.end && !rest.is_empty() {
            let len = self.run(rest.len());
            let (part, after) = rest.split_at_mut(len);
            part.fill(Self::value(self.at));
            self.at += part.len() as u64;
            rest = after;
        }
    }

    /// Returns all of the bytes.
    fn bytes(mut self) -> Vec<u8> {
        let mut bytes = vec![0; (self.end - self.at) as usize];
        self.fill(&mut bytes);
        bytes
    }

    /// Checks bytes that were read.
    fn check(&mut self, data: &[u8]) {
        let mut rest = data;
        while !rest.is_empty() {
            let len = self.run(rest.len());
            assert!(len > 0, "more bytes than were written");
            // Compared as a whole, which takes little of the time that is measured.
            let block = [Self::value(self.at); Self::BLOCK as usize];
            assert!(rest[..len] == block[..len], "other bytes at {}", self.at);
            self.at += len as u64;
            rest = &rest[len..];
        }
    }
}

impl AsyncRead for Pattern {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        let len = buffer.remaining().min(left);
        self.fill(buffer.initialize_unfilled_to(len));
        buffer.advance(len);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pattern {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.check(data);
        Poll::Ready(Ok(data.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A striped stream, put and fetched, beside as many bytes in plain objects of a stripe each, as many of them at once. Both are made
/// of the same bytes, which are made on the way and checked on the way back; and each comes first in one round, and last in the other.
fn streams(uri: &str, raw: &RawPool, effort: &Effort) {
    let bytes = effort.stream_bytes / 2;
    let count = (bytes / PIECE as u64) as usize;
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let store = nacre::open(uri).expect("a pool");
    let place = |number: usize| Pattern { at: (number * PIECE) as u64, end: ((number + 1) * PIECE) as u64 };
    let put_plain = |round: usize, count: usize| {
        side_by_side(count, PIECES_AT_ONCE, |number| {
            let data = place(number).bytes();
            block_on(raw.write(&format!("plain-{round}-{number}"), &data)).expect("written");
        });
    };
    let get_plain = |round: usize, count: usize| {
        side_by_side(count, PIECES_AT_ONCE, |number| {
            let (found, _) = block_on(raw.read(&format!("plain-{round}-{number}"), PIECE)).expect("read");
            assert_eq!(found.len(), PIECE);
            place(number).check(&found);
        });
    };
    let remove_plain = |round: usize, count: usize| {
        side_by_side(count, PIECES_AT_ONCE, |number| {
            block_on(raw.remove(&format!("plain-{round}-{number}"))).expect("removed");
        });
    };
    let stream = |round: usize| store.stream(format!("stream-{round}")).expect("a short name");
    let put = |round: usize, bytes: u64| {
        let length = runtime.block_on(stream(round).put(Pattern { at: 0, end: bytes }));
        assert_eq!(length.expect("put"), bytes);
    };
    let get = |round: usize, bytes: u64| {
        let length = runtime.block_on(stream(round).get(ByteRange::ALL, Pattern { at: 0, end: bytes }));
        assert_eq!(length.expect("fetched"), bytes);
    };
    let remove = |round: usize| {
        runtime.block_on(stream(round).remove()).expect("removed");
    };
    // The connections are made, and the OSDs have run each kind of operation.
    const WARM: usize = 2;
    put_plain(WARM, PIECES_AT_ONCE);
    get_plain(WARM, PIECES_AT_ONCE);
    remove_plain(WARM, PIECES_AT_ONCE);
    put(WARM, 9 << 20);
    get(WARM, 9 << 20);
    remove(WARM);

    let mut times = [Duration::ZERO; 4];
    for round in 0..2 {
        let steps: [(usize, &dyn Fn()); 4] = [
            (0, &|| put_plain(round, count)),
            (1, &|| put(round, bytes)),
            (2, &|| get_plain(round, count)),
            (3, &|| get(round, bytes)),
        ];
        let order = if round == 0 { [0, 1, 2, 3] } else { [1, 0, 3, 2] };
        for (number, step) in order.map(|at| steps[at]) {
            times[number] += timed(step).0;
        }
    }
    let [put_plain, put, get_plain, get] = times;
    let ratio = |ours: Duration, plain: Duration| plain.as_secs_f64() / ours.as_secs_f64();
    let (all, target) = (2 * bytes, Target::AtLeast(0.9));
    let mib = all >> 20;
    let name = format!("put of {mib} MiB, of plain objects");
    row(&name, &rate(all, put), &rate(all, put_plain), ratio(put, put_plain), target);
    let name = format!("get of {mib} MiB, of plain objects");
    row(&name, &rate(all, get), &rate(all, get_plain), ratio(get, get_plain), target);
    for round in 0..2 {
        remove_plain(round, count);
        remove(round);
    }
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

/// Conditional updates of blocks, several to an object, beside those of plain objects of a block each: each side reads a block,
/// adds one to its number, and writes it back if nobody else did meanwhile, from as many threads over one connection.
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
    let update = &|block: usize| {
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
    let plain = &|block: usize| {
        let name = format!("block-{block}");
        while !block_on(raw.read_modify_write(&name, BLOCK, increment)).expect("updated") {}
    };
    // In turns, each first once, so that both have the cluster in the same states. The first two rounds are not counted: both
    // have then updated all blocks.
    let (mut counts, mut rates) = ([0_u64; 2], [0.0_f64; 2]);
    for (round, order) in [[0, 1], [1, 0], [0, 1], [1, 0]].into_iter().enumerate() {
        for side in order {
            let time = if round < 2 { effort.update_time / 8 } else { effort.update_time / 2 };
            let (count, rate) = if side == 0 { updates(time, plain) } else { updates(time, update) };
            counts[side] += count;
            rates[side] += if round < 2 { 0.0 } else { rate / 2.0 };
        }
    }
    let ([theirs_count, ours_count], [theirs, ours]) = (counts, rates);
    let found = (0..BLOCKS).map(|block| number_of(&bytes_of(store, &object(block), range(block))));
    assert_eq!(found.sum::<u64>(), ours_count, "an update was lost");
    let found = (0..BLOCKS).map(|block| {
        let (data, _) = block_on(raw.read(&format!("block-{block}"), BLOCK)).expect("read");
        number_of(&data)
    });
    assert_eq!(found.sum::<u64>(), theirs_count, "an update of a plain object was lost");
    let name = format!("updates, {BLOCKS_PER_OBJECT} blocks an object, of an object a block");
    let shown = |rate: f64| format!("{rate:.0}/s");
    row(&name, &shown(ours), &shown(theirs), ours / theirs, Target::AtLeast(0.85));
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
        // Each found what the one before it left: by their versions, they form one chain. Each value is found once, but for the
        // last one, which is there.
        let mut chain: Vec<(u64, usize)> =
            outcomes.iter().enumerate().map(|(number, done)| (done.version, number)).collect();
        chain.sort_unstable();
        let mut before = Answer::Value(None);
        for (position, (version, number)) in chain.into_iter().enumerate() {
            assert_eq!(version, position as u64 + 1, "a version was left out, or given twice");
            assert_eq!(outcomes[number].answers, [before], "transaction {number}");
            before = Answer::Value(Some(number.to_string().into()));
        }
        let last = done(store.apply(&object, Transaction::new().read(ReadOp::Key { key: key.clone() })));
        assert_eq!(last.answers, [before], "the last one");
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
    // In turns, and each where nothing was written before, so that each piece cuts an extent.
    let at = |round: usize, piece: u64| piece * 40_000 + 20 * round as u64;
    let mut latencies = [Vec::new(), Vec::new()];
    for round in 0..2 * effort.spread_rounds {
        let pieces =
            (0..8 + round as u64 % 2).map(|piece| (at(round, piece) + 3, Bytes::from_static(b"abc")));
        let write = Transaction::new().change(extents(pieces));
        latencies[round % 2].push(timed(|| done(store.apply(&object, write))).0);
    }
    for round in 0..2 * effort.spread_rounds {
        for piece in 0..8 + round as u64 % 2 {
            let found = bytes_of(store, &object, ByteRange::new(at(round, piece), 10));
            assert_eq!(found, "012abc6789", "round {round}, piece {piece}");
        }
    }
    let [eight, nine] = latencies.map(median);
    let ratio = nine.as_secs_f64() / eight.as_secs_f64();
    row("9 spread pieces at 20,000 extents, of 8", &shown(nine), &shown(eight), ratio, Target::AtMost(1.3));
}

/// Guards over all of a fork of many extents, which nothing, and something else, was written after. The client that makes them has
/// written the extents: one that knows nothing of the object has them judged by a look at each extent.
fn guards(store: &RadosStore, effort: &Effort) {
    let (object, parts) = (id("guard"), 10);
    let each = effort.guard_extents / parts;
    for part in 0..parts {
        let pieces = (0..each).map(|piece| ((part * each + piece) * 4, Bytes::from_static(b"x")));
        done(store.apply(&object, Transaction::new().change(extents(pieces))));
    }
    let key = Key::try_from("key").expect("a short name");
    let set = |guarded: u64| {
        let set = WriteOp::SetKey { key: key.clone(), value: "value".into() };
        let set = Transaction::new().if_version(Fork::DEFAULT, ByteRange::ALL, guarded).change(set);
        timed(|| done(store.apply(&object, set)))
    };
    // Each leaves the version that the next one guards: nothing at all is newer.
    let (mut version, mut newest) = (parts, Vec::new());
    for _ in 0..GUARDS {
        let (took, done) = set(version);
        assert_eq!(done.version, version + 1);
        version = done.version;
        newest.push(took);
    }
    // The keys are newer now, and the extents are not.
    let older: Vec<Duration> = (0..GUARDS).map(|_| set(parts).0).collect();
    // One that does not hold is refused, however the ones before were judged.
    let late = Transaction::new().if_version(Fork::DEFAULT, ByteRange::ALL, 0).change(WriteOp::Create);
    let refused = block_on(store.apply(&object, late));
    assert!(matches!(refused, Ok(Outcome::Refused(_))), "{refused:?}");
    let count = effort.guard_extents;
    for (name, times) in [("none written since", newest), ("keys set since, by this client", older)] {
        let (name, middle) = (format!("guard over {count} extents, {name}, ms"), median(times));
        row(&name, &shown(middle), "", ms(middle), Target::AtMost(5.0));
    }
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
        let finished = AtomicBool::new(false);
        // Reads that were under way while the write was: when each began, and how long it took. The first ones make the connection
        // to the OSD, and are over before.
        let (reads, written, took) = std::thread::scope(|scope| {
            let (warm, is_warm) = std::sync::mpsc::channel();
            let finished = &finished;
            let object = &object;
            let reader = scope.spawn(move || {
                let mut reads = Vec::new();
                while !finished.load(Ordering::Relaxed) {
                    let from = Instant::now();
                    assert_eq!(bytes_of(other, object, ByteRange::new(0, 4)), "head");
                    reads.push((from, from.elapsed()));
                    if reads.len() == 10 {
                        warm.send(()).expect("the writer waits");
                    }
                }
                reads
            });
            is_warm.recv().expect("the reader reads");
            let from = Instant::now();
            let written = block_on(store.apply(object, Transaction::new().change(pieces(shift))));
            let took = from.elapsed();
            finished.store(true, Ordering::Relaxed);
            assert!(matches!(written, Ok(Outcome::Done(_))), "{written:?}");
            (reader.join().expect("the reader"), from, took)
        });
        let meanwhile = reads.iter().filter(|(from, long)| *from + *long > written && *from < written + took);
        let longest = meanwhile.map(|(_, long)| *long).max().expect("a read while the write was under way");
        let last = 100 + 10 * (effort.large_pieces - 1) + shift;
        assert_eq!(bytes_of(store, &object, ByteRange::new(last, 6)), "abcdef");
        let name = format!("small read during {} pieces {name}, ms", effort.large_pieces);
        row(&name, &shown(longest), &format!("({})", shown(took)), ms(longest), Target::AtMost(20.0));
    }
}

/// The listing of all objects, beside librados' own listing, which `rados ls` prints. Both hand all names over, and both have been
/// made once before they are measured, in turns.
fn listing(store: &RadosStore, raw: &RawPool, effort: &Effort) {
    let from = Instant::now();
    let name = |number: usize| format!("object-{number:07}");
    let mut made = 0;
    let mut per_object = Vec::new();
    for part in [1, 4] {
        let (wanted, until) = (effort.objects * part / 4, effort.making_max * part as u32 / 4);
        while made < wanted && from.elapsed() < until {
            let count = (wanted - made).min(500);
            windowed(count, 64, |number| {
                let create = Transaction::new().guard(Guard::Absent).change(WriteOp::Create);
                store.apply(&id(&name(made + number)), create)
            });
            made += count;
        }
        let list = || {
            let (mut found, mut after) = (Vec::new(), None);
            loop {
                let page = block_on(store.list(after.as_ref(), 1024)).expect("a page");
                let Some(last) = page.last() else { return found };
                after = Some(last.clone());
                found.extend(page.into_iter().map(|object| object.as_bytes().to_vec()));
            }
        };
        let list_plain = || {
            let mut found = Vec::new();
            raw.list(|name| found.push(name.to_vec())).expect("listed");
            found
        };
        let expected: Vec<Vec<u8>> = (0..made).map(|number| name(number).into_bytes()).collect();
        let (mut ours, mut plain) = (Vec::new(), Vec::new());
        // The first round is not counted: the listing may have to fill the index in.
        for round in 0..=LISTINGS {
            let (took, mut found) = timed(list);
            found.retain(|name| name.starts_with(b"object-"));
            assert!(found == expected, "other names than those that were made, or in another order");
            let (took_plain, found) = timed(list_plain);
            let mut found: Vec<Vec<u8>> =
                found.iter().filter_map(|name| name.strip_prefix(b"nacre.").map(<[u8]>::to_vec)).collect();
            found.retain(|name| name.starts_with(b"object-"));
            found.sort();
            assert!(found == expected, "other objects in the pool than those that were made");
            if round > 0 {
                ours.push(took);
                plain.push(took_plain);
            }
        }
        per_object.push((made, median(ours), median(plain)));
    }
    let [(few, ours_few, _), (many, ours, plain)] = per_object[..] else {
        unreachable!("two parts were made")
    };
    assert!(many > few && few > 0, "there was no time to make objects");
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
