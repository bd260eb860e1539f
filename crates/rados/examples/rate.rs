//! A measurement, side by side, of conditional read/modify/writes of 4 KiB blocks by Nacre and by raw
//! librados.
//!
//! `cargo run --release -p nacre-rados --example rate -- URI [CONCURRENT] [BLOCKS] [SECONDS]`

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nacre_object::{
    Answer, ByteRange, Fork, Found, Intent, ObjectId, ObjectStore, Outcome, ReadOp, Refusal, Transaction,
};
use nacre_rados::RadosStore;
use nacre_rados::raw::RawPool;

const BLOCK: usize = 4096;

#[derive(Default)]
struct Count {
    done: AtomicU64,
    lost: AtomicU64,
}

async fn nacre(store: RadosStore, block: usize, until: Instant, count: Arc<Count>) {
    let id = ObjectId::try_from(format!("block-{block}").as_str()).unwrap();
    let range = ByteRange::new(0, BLOCK as u64);
    while Instant::now() < until {
        let update = ReadOp::Range { fork: Fork::DEFAULT, range, intent: Intent::Update };
        let outcome = store.apply(&id, Transaction::new().read(update)).await.unwrap();
        let Outcome::Done(done) = outcome else { unreachable!() };
        let Some(Answer::Range(mut read)) = done.answers.into_iter().next() else { unreachable!() };
        loop {
            let mut data = read.data.to_vec();
            data.resize(BLOCK, 0);
            data[0] = data[0].wrapping_add(1);
            let write = Transaction::new().if_version(Fork::DEFAULT, range, read.version);
            match store.apply(&id, write.write(Fork::DEFAULT, 0, data)).await.unwrap() {
                Outcome::Done(_) => {
                    count.done.fetch_add(1, Ordering::Relaxed);
                    break;
                }
                // A refusal brings what stands there now: no need to read it again.
                Outcome::Refused(Refusal { found: Found::Region(found), .. }) => {
                    count.lost.fetch_add(1, Ordering::Relaxed);
                    read = found;
                }
                Outcome::Refused(_) => unreachable!(),
            }
        }
    }
}

async fn write(store: RadosStore, block: usize, until: Instant, count: Arc<Count>) {
    let id = ObjectId::try_from(format!("written-{block}").as_str()).unwrap();
    let range = ByteRange::new(0, BLOCK as u64);
    let block = || Transaction::new().write(Fork::DEFAULT, 0, vec![7; BLOCK]);
    store.apply(&id, block()).await.unwrap();
    // From here on the store knows where the block is.
    store.apply(&id, Transaction::new().read_range(Fork::DEFAULT, range)).await.unwrap();
    while Instant::now() < until {
        store.apply(&id, block()).await.unwrap();
        count.done.fetch_add(1, Ordering::Relaxed);
    }
}

async fn raw(pool: RawPool, block: usize, until: Instant, count: Arc<Count>) {
    let name = format!("raw-{block}");
    while Instant::now() < until {
        match pool.read_modify_write(&name, BLOCK, |data| data[0] = data[0].wrapping_add(1)).await.unwrap() {
            true => count.done.fetch_add(1, Ordering::Relaxed),
            false => count.lost.fetch_add(1, Ordering::Relaxed),
        };
    }
}

async fn run<F: Future<Output = ()> + Send + 'static>(
    what: &str,
    concurrent: usize,
    blocks: usize,
    seconds: f64,
    start: impl Fn(usize, Instant, Arc<Count>) -> F,
) {
    let count = Arc::new(Count::default());
    let from = Instant::now();
    let until = from + Duration::from_secs_f64(seconds);
    let tasks: Vec<_> =
        (0..concurrent).map(|i| tokio::spawn(start(i % blocks, until, Arc::clone(&count)))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    let (done, lost) = (count.done.load(Ordering::Relaxed), count.lost.load(Ordering::Relaxed));
    let rate = done as f64 / from.elapsed().as_secs_f64();
    println!(
        "{what:14} {rate:8.0}/s, {:5.1} % of attempts",
        100.0 * done as f64 / (done + lost).max(1) as f64
    );
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |i: usize, or: usize| arguments.get(i).map_or(or, |text| text.parse().unwrap());
    let (uri, concurrent) = (&arguments[1], number(2, 16));
    let (blocks, seconds) = (number(3, concurrent), number(4, 2) as f64);
    let store = RadosStore::open(uri).await.unwrap();
    let calls = RadosStore::open(&format!("{uri}&native=off")).await.unwrap();
    let pool = RawPool::open(uri).await.unwrap();
    for (store, seconds) in [(&store, 0.3), (&calls, 0.3)] {
        run("(warm-up)", concurrent, blocks, seconds, |block, until, count| {
            nacre(store.clone(), block, until, count)
        })
        .await;
    }
    run("(warm-up)", concurrent, blocks, 0.3, |block, until, count| raw(pool.clone(), block, until, count))
        .await;
    for _ in 0..2 {
        run("raw librados", concurrent, blocks, seconds, |block, until, count| {
            raw(pool.clone(), block, until, count)
        })
        .await;
        run("nacre", concurrent, blocks, seconds, |block, until, count| {
            nacre(store.clone(), block, until, count)
        })
        .await;
        run("native writes", concurrent, blocks, seconds, |block, until, count| {
            write(store.clone(), block, until, count)
        })
        .await;
        run("write calls", concurrent, blocks, seconds, |block, until, count| {
            write(calls.clone(), block, until, count)
        })
        .await;
        run("nacre by calls", concurrent, blocks, seconds, |block, until, count| {
            nacre(calls.clone(), block, until, count)
        })
        .await;
    }
}
