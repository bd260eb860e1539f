//! Measures the engine on Ceph beside plain RADOS objects in the same pool: `speed URI [OBJECTS]`.
//!
//! One line for each measure. Only ratios within one run mean something.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nacre_object::testkit::block_on;
use nacre_object::{
    ByteRange, Fork, Guard, Intent, Key, ObjectId, ObjectStore, Outcome, ReadOp, Reply, Transaction, WriteOp,
};
use nacre_rados::RadosStore;
use nacre_rados::raw::RawPool;

const PIECE: usize = 4 << 20;
const PIECES: usize = 24;
/// The number of pieces under way at a time.
const WINDOW: usize = 4;

fn id(name: &str) -> ObjectId {
    ObjectId::try_from(name).expect("a short name")
}

fn done(reply: Reply<Outcome>) {
    match block_on(reply) {
        Ok(Outcome::Done(_)) => {}
        other => panic!("{other:?}"),
    }
}

fn timed(run: impl FnOnce()) -> Duration {
    let from = Instant::now();
    run();
    from.elapsed()
}

/// Makes a number of requests, so many of them at a time; returns how long each took, in order.
fn windowed(count: usize, window: usize, mut start: impl FnMut(usize) -> Reply<Outcome>) -> Vec<Duration> {
    let (mut under_way, mut latencies) = (VecDeque::new(), Vec::new());
    for number in 0..count {
        under_way.push_back((Instant::now(), start(number)));
        if under_way.len() == window {
            let (from, reply) = under_way.pop_front().expect("a window is not empty");
            done(reply);
            latencies.push(from.elapsed());
        }
    }
    for (from, reply) in under_way {
        done(reply);
        latencies.push(from.elapsed());
    }
    latencies.sort();
    latencies
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let uri = arguments.next().expect("the uri of a pool");
    let objects: usize = arguments.next().map_or(2_000, |count| count.parse().expect("a number of objects"));
    let store = block_on(RadosStore::open(&uri)).expect("a pool");
    let raw = block_on(RawPool::open(&uri)).expect("a pool");

    // Whole objects of a piece each, as many threads as pieces under way, against pieces of one object.
    let data = Bytes::from(vec![7_u8; PIECE]);
    let plain = |work: &(dyn Fn(usize) + Sync)| {
        timed(|| {
            std::thread::scope(|scope| {
                for thread in 0..WINDOW {
                    scope.spawn(move || (thread..PIECES).step_by(WINDOW).for_each(work));
                }
            });
        })
    };
    done(store.apply(&id("pieces"), Transaction::new().write(Fork::DEFAULT, 0, "head")));
    let at = |number: usize| (PIECE + number * PIECE) as u64;
    for round in 0..2 {
        let name = |number: usize| format!("plain-{round}-{number}");
        let put_plain = plain(&|number| block_on(raw.write(&name(number), &data)).expect("written"));
        let object = id(&format!("pieces-{round}"));
        done(store.apply(&object, Transaction::new().write(Fork::DEFAULT, 0, "head")));
        let put = timed(|| {
            windowed(PIECES, WINDOW, |number| {
                store.apply(&object, Transaction::new().write(Fork::DEFAULT, at(number), data.clone()))
            });
        });
        let get_plain = plain(&|number| {
            assert_eq!(block_on(raw.read(&name(number), PIECE)).expect("read").0.len(), PIECE);
        });
        let get = timed(|| {
            windowed(PIECES, WINDOW, |number| {
                let range = ByteRange::new(at(number), PIECE as u64);
                let read = ReadOp::Range { fork: Fork::DEFAULT, range, intent: Intent::Look };
                store.apply(&object, Transaction::new().guard(Guard::Exists).read(read))
            });
        });
        let ratio = |ours: Duration, plain: Duration| plain.as_secs_f64() / ours.as_secs_f64();
        println!(
            "pieces of 4 MiB, 4 at once, of plain RADOS: put {:.2}, get {:.2}",
            ratio(put, put_plain),
            ratio(get, get_plain)
        );
        (0..PIECES).for_each(|number| block_on(raw.remove(&name(number))).expect("removed"));
        done(store.apply(&object, Transaction::new().change(WriteOp::Remove)));
    }

    // Pieces that are spread over many extents.
    for part in 0..4_u64 {
        let extents =
            (0..5_000).map(|piece| ((part * 5_000 + piece) * 20, Bytes::from_static(b"0123456789")));
        let write = WriteOp::Extents { fork: Fork::DEFAULT, extents: extents.collect() };
        done(store.apply(&id("spread"), Transaction::new().change(write)));
    }
    let spread = |pieces: u64| {
        let latencies = windowed(40, 1, |round| {
            let extents =
                (0..pieces).map(|piece| (piece * 40_000 + 20 * round as u64 + 3, Bytes::from_static(b"abc")));
            let write = WriteOp::Extents { fork: Fork::DEFAULT, extents: extents.collect() };
            store.apply(&id("spread"), Transaction::new().change(write))
        });
        latencies[latencies.len() / 2]
    };
    let (eight, nine) = (spread(8), spread(9));
    println!(
        "9 spread pieces at 20,000 extents, of 8: {:.2} ({nine:?})",
        nine.as_secs_f64() / eight.as_secs_f64()
    );

    // A guard over all of a fork of many extents, which nothing, and something else, was written after.
    for part in 0..10_u64 {
        let extents = (0..10_000).map(|piece| ((part * 10_000 + piece) * 4, Bytes::from_static(b"x")));
        let write = WriteOp::Extents { fork: Fork::DEFAULT, extents: extents.collect() };
        done(store.apply(&id("guard"), Transaction::new().change(write)));
    }
    let key = Key::try_from("key").expect("a short name");
    let set = |version| {
        let set = WriteOp::SetKey { key: key.clone(), value: "value".into() };
        store.apply(
            &id("guard"),
            Transaction::new().if_version(Fork::DEFAULT, ByteRange::ALL, version).change(set),
        )
    };
    let newest = timed(|| done(set(10)));
    let older = timed(|| done(set(10)));
    println!("a guard over 100,000 extents: {newest:?}, where something else was written since {older:?}");

    // Transactions that read and write one object.
    for window in [1, 128] {
        let count = 512;
        let mut latencies = Vec::new();
        let took = timed(|| {
            latencies = windowed(count, window, |number| {
                let value = Bytes::from(number.to_le_bytes().to_vec());
                let exchange = Transaction::new()
                    .read(ReadOp::Key { key: key.clone() })
                    .change(WriteOp::SetKey { key: key.clone(), value });
                store.apply(&id("exchange"), exchange)
            });
        });
        let (rate, p99) = (count as f64 / took.as_secs_f64(), latencies[count * 99 / 100]);
        println!("read and write, {window} at once: {rate:.0}/s, p99 {p99:?}");
    }

    // Listing. `rados ls` is to be measured beside it.
    let creation = timed(|| {
        windowed(objects, 64, |number| {
            let create = Transaction::new().guard(Guard::Absent).change(WriteOp::Create);
            store.apply(&id(&format!("object-{number:07}")), create)
        });
    });
    let list = || {
        let (mut count, mut after) = (0, None);
        loop {
            let page = block_on(store.list(after.as_ref(), 1024)).expect("a page");
            count += page.len();
            match page.last() {
                None => return count,
                Some(last) => after = Some(last.clone()),
            }
        }
    };
    let first = timed(|| assert!(list() >= objects));
    let again = timed(|| assert!(list() >= objects));
    println!("{objects} objects: made in {creation:?}, listed at first in {first:?}, then in {again:?}");
}
