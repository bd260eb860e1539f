//! Measures a server and the client library: read/modify/write of 4 KiB blocks by many tasks of one process.
//!
//! ```text
//! cargo run --release -p nacre-daemon --example rmw -- serve ADDRESS [FOLDER] [unpaced] [key=FILE]
//! cargo run --release -p nacre-daemon --example rmw -- load ADDRESS CONCURRENT SECONDS [BLOCKS] [key=FILE]
//! ```
//!
//! ADDRESS is `unix:PATH` or `HOST:PORT`, which is open to everybody without a key. Without BLOCKS every task updates a
//! block of its own; with it, a random one of that many blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nacre::{
    Answer, ByteRange, Error, Fork, Found, Intent, ObjectId, Outcome, RangeRead, ReadOp, Refusal, Store,
    Transaction,
};
use nacre_daemon::{Daemon, ServerOptions};

const BLOCK_BYTES: u64 = 4096;

#[derive(Default)]
struct Counts {
    attempts: u64,
    updates: u64,
    latencies_us: Vec<u32>,
}

async fn update(store: &Store, block: u64) -> Result<u64, Error> {
    let object: ObjectId = format!("object-{}", block % 16).parse()?;
    let range = ByteRange::new(block / 16 * BLOCK_BYTES, BLOCK_BYTES);
    let read = ReadOp::Range { fork: Fork::DEFAULT, range, intent: Intent::Update };
    let mut seen = match store.apply(&object, Transaction::new().read(read)).await? {
        Outcome::Done(done) => match done.answers.into_iter().next() {
            Some(Answer::Range(range)) => range,
            _ => RangeRead::default(),
        },
        Outcome::Refused(_) => RangeRead::default(),
    };
    let mut attempts = 0;
    loop {
        attempts += 1;
        let mut data = vec![0; BLOCK_BYTES as usize];
        data[..seen.data.len()].copy_from_slice(&seen.data);
        data[0] = data[0].wrapping_add(1);
        let write = Transaction::new().if_version(Fork::DEFAULT, range, seen.version);
        match store.apply(&object, write.write(Fork::DEFAULT, range.offset, data)).await? {
            Outcome::Refused(Refusal { found: Found::Region(now), .. }) => seen = now,
            _ => return Ok(attempts),
        }
    }
}

async fn load(store: Store, task: u64, blocks: Option<u64>, stop: Arc<AtomicBool>) -> Result<Counts, Error> {
    let mut counts = Counts::default();
    // A small generator is enough to choose blocks.
    let mut random = task.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
    while !stop.load(Ordering::Relaxed) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let begin = Instant::now();
        counts.attempts += update(&store, blocks.map_or(task, |blocks| random % blocks)).await?;
        counts.updates += 1;
        counts.latencies_us.push(begin.elapsed().as_micros() as u32);
    }
    Ok(counts)
}

fn main() -> Result<(), Error> {
    let (keys, arguments): (Vec<String>, Vec<String>) =
        std::env::args().partition(|argument| argument.starts_with("key="));
    let key = keys.first();
    let usage = "rmw serve ADDRESS [FOLDER] [unpaced] [key=FILE] | rmw load ADDRESS CONCURRENT SECONDS [BLOCKS] [key=FILE]";
    let number = |index: usize| arguments.get(index).map(|text| text.parse::<u64>().expect(usage));
    match arguments.get(1).map(String::as_str) {
        Some("serve") => {
            let pacing = !arguments.iter().any(|argument| argument == "unpaced");
            let folder = arguments.get(3).filter(|argument| *argument != "unpaced");
            let store = Some(folder.map_or("mem:".to_owned(), |folder| format!("file:{folder}")).parse()?);
            let listen = vec![arguments[2].clone().into()];
            let file = key.map(|key| key["key=".len()..].into());
            let open = key.is_none();
            let options =
                ServerOptions { store, listen, http: None, pacing, key: file, open, ..Default::default() };
            let daemon = Daemon::start(&options)?;
            println!("{}", daemon.addresses()[0]);
            loop {
                std::thread::park();
            }
        }
        Some("load") => {
            let (concurrent, seconds) = (number(3).expect(usage), number(4).expect(usage));
            let blocks = number(5);
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let query = key.map_or(String::new(), |key| format!("?{key}"));
                let store = nacre::open(&format!("nacre://{}{query}", arguments[2]))?;
                store.connect().await?;
                let stop = Arc::new(AtomicBool::new(false));
                let begin = Instant::now();
                let tasks: Vec<_> = (0..concurrent)
                    .map(|task| tokio::spawn(load(store.clone(), task, blocks, stop.clone())))
                    .collect();
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                stop.store(true, Ordering::Relaxed);
                let mut all = Counts::default();
                for task in tasks {
                    let counts = task.await.expect("a task does not panic")?;
                    all.attempts += counts.attempts;
                    all.updates += counts.updates;
                    all.latencies_us.extend(counts.latencies_us);
                }
                let rate = all.updates as f64 / begin.elapsed().as_secs_f64();
                all.latencies_us.sort_unstable();
                let at = |part: f64| all.latencies_us[(all.latencies_us.len() as f64 * part) as usize];
                println!(
                    "{concurrent} concurrent: {rate:.0} updates/s, {:.1} % of attempts succeed, p50 {} us, p99 {} us",
                    100.0 * all.updates as f64 / all.attempts as f64,
                    at(0.5),
                    at(0.99),
                );
                Ok(())
            })
        }
        _ => panic!("{usage}"),
    }
}
