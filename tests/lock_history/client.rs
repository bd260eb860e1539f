//! A client of the history: it locks random bytes of some files, writes and reads them, and keeps a journal.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nacre::lock::{Datatype, Description, Lock, Method, Mode, Protocol, Region, Request};
use nacre::{ErrorKind, Object, Store};
use rustix::process::{Signal, getpid, kill_process};

use super::harness::Random;
use super::journal::{BYTES, CELL_BYTES, Event, Journal, now};

/// The variable with the plan of a client.
pub const PLAN: &str = "NACRE_TEST_LOCK_CLIENT";
pub const FILES: [&str; 2] = ["one", "other"];
/// The number of locks that a client asks for or has at once.
const TASKS: u64 = 3;

pub struct Plan {
    pub uri: String,
    pub journal: PathBuf,
    pub number: u64,
    pub seed: u64,
    /// The end of its work, by the clock of journals.
    pub until: u64,
    pub lease: Duration,
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Plan { uri, journal, number, seed, until, lease } = self;
        write!(f, "{uri} {} {number} {seed} {until} {}", journal.display(), lease.as_millis())
    }
}

impl Plan {
    fn parse(text: &str) -> Plan {
        let words: Vec<&str> = text.split(' ').collect();
        let number = |index: usize| words[index].parse::<u64>().unwrap();
        Plan {
            uri: words[0].to_owned(),
            journal: words[1].into(),
            number: number(2),
            seed: number(3),
            until: number(4),
            lease: Duration::from_millis(number(5)),
        }
    }
}

/// Works until the plan's end.
pub fn run(plan: &str) {
    let plan = Arc::new(Plan::parse(plan));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let (store, journal) = (nacre::open(&plan.uri).unwrap(), Arc::new(Journal::create(&plan.journal)));
        let mut random = Random(plan.seed);
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let mut worker = Worker {
                    plan: plan.clone(),
                    store: store.clone(),
                    journal: journal.clone(),
                    random: Random(random.next()),
                    // Locks and values of different tasks and clients are different.
                    next: plan.number << 32 | task << 28,
                };
                tokio::spawn(async move { worker.work().await })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        store.end_locks().await;
    });
}

struct Worker {
    plan: Arc<Plan>,
    store: Store,
    journal: Arc<Journal>,
    random: Random,
    next: u64,
}

/// A lock, and its number in the journal.
struct Held {
    lock: Lock,
    number: u64,
    bytes: u64,
}

impl Worker {
    async fn work(&mut self) {
        while now() < self.plan.until {
            if let Some(held) = self.lock().await {
                self.use_lock(held).await;
            }
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    async fn pause(&mut self, most_ms: u64) {
        let pause = self.random.below(most_ms + 1);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }

    /// Asks for a lock, and gives up in one of several ways.
    async fn lock(&mut self) -> Option<Held> {
        let (description, bytes) = self.pattern();
        let mode = if self.random.below(2) == 0 { Mode::Shared } else { Mode::Exclusive };
        let request = Request::new(description, mode)
            .method(Method::NAMES[self.random.below(3) as usize].1)
            .protocol(Protocol::NAMES[self.random.below(3) as usize].1);
        let time = Duration::from_millis(self.random.below(200));
        let file = self.random.below(FILES.len() as u64);
        let handle = self.store.file(FILES[file as usize]).unwrap();
        let lock = match self.random.below(4) {
            0 => handle.lock_by(&request.without_wait()).await,
            1 => handle.lock_by(&request.wait(time)).await,
            // A wait that is dropped, perhaps at the moment of its grant.
            2 => tokio::time::timeout(time, handle.lock_by(&request)).await.ok()?,
            _ => handle.lock_by(&request).await,
        };
        let Ok(lock) = lock else {
            self.pause(10).await;
            return None;
        };
        let held = Held { lock, number: self.number(), bytes };
        let session = held.lock.token();
        self.journal.put(held.number, now(), &Event::Granted { file, session, mode, bytes });
        if self.holds(&held) {
            if mode == Mode::Exclusive {
                self.write(&held, file).await
            } else {
                self.read_twice(&held, file).await
            };
        }
        Some(held)
    }

    /// Returns whether the lock holds, and notes since when that is known.
    fn holds(&self, held: &Held) -> bool {
        let time = now();
        let holds = held.lock.check().is_ok();
        if holds {
            self.journal.put(held.number, time, &Event::Holds);
        }
        holds
    }

    /// Holds a lock for a while, and releases it in one of two ways.
    async fn use_lock(&mut self, held: Held) {
        self.pause(5).await;
        self.holds(&held);
        match self.random.below(2) {
            0 => _ = held.lock.release().await,
            _ => drop(held.lock),
        }
    }

    /// Returns the object of a file. Changes by a handle that is not guarded are those of a program that was stopped between its
    /// check of the lock and its write.
    fn object(&self, held: &Held, file: u64, unguarded: bool) -> Object {
        let store = if unguarded { self.store.for_session(held.lock.token()) } else { held.lock.store() };
        store.object(FILES[file as usize]).unwrap()
    }

    /// Stops this process for longer than its lease.
    fn stop(&mut self) {
        let seconds = self.plan.lease.as_secs_f64() * (1.1 + self.random.below(100) as f64 / 100.0);
        let script = format!("sleep {seconds}; kill -CONT {}", std::process::id());
        let mut waker = Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).spawn().unwrap();
        kill_process(getpid(), Signal::STOP).unwrap();
        waker.wait().unwrap();
    }

    async fn read_twice(&mut self, held: &Held, file: u64) {
        let unguarded = self.random.below(2) == 0;
        let object = self.object(held, file, unguarded);
        for _ in 0..2 {
            if !self.read(held, &object).await {
                return;
            }
            self.pause(5).await;
        }
    }

    /// Reads the cells. Returns false if the lock is lost.
    async fn read(&self, held: &Held, object: &Object) -> bool {
        let Ok(read) = object.read(0..BYTES * CELL_BYTES).await else { return false };
        let time = now();
        if held.lock.check().is_err() {
            return false;
        }
        let cell = |byte: u64| {
            let at = (byte * CELL_BYTES) as usize;
            read.data
                .get(at..at + CELL_BYTES as usize)
                .map_or(0, |cell| u64::from_le_bytes(cell.try_into().unwrap()))
        };
        let cells = bytes(held.bytes).map(cell).collect();
        self.journal.put(held.number, time, &Event::Read { cells });
        self.journal.put(held.number, time, &Event::Holds);
        true
    }

    /// Reads, writes and reads, once or a few times.
    async fn write(&mut self, held: &Held, file: u64) {
        let unguarded = self.random.below(2) == 0;
        let object = self.object(held, file, unguarded);
        if !self.read(held, &object).await {
            return;
        }
        for _ in 0..=self.random.below(3) {
            // Now and then so long that something happens to it meanwhile.
            let long = self.plan.lease.as_millis() as u64;
            let most = if self.random.below(20) == 0 { long } else { 5 };
            self.pause(most).await;
            let value = self.number();
            self.journal.put(held.number, now(), &Event::Writes { value });
            if unguarded && self.random.below(20) == 0 {
                self.stop();
            }
            if !self.write_value(held, &object, value).await || !self.read(held, &object).await {
                return;
            }
        }
    }

    /// Writes a value into all cells, however often it takes. Returns false if that is refused.
    async fn write_value(&self, held: &Held, object: &Object, value: u64) -> bool {
        let cell = Bytes::copy_from_slice(&value.to_le_bytes());
        let extents: Vec<(u64, Bytes)> =
            bytes(held.bytes).map(|byte| (byte * CELL_BYTES, cell.clone())).collect();
        let mut doubtful = false;
        loop {
            match object.write_vectored(extents.clone()).await {
                Ok(_) => {
                    self.journal.put(held.number, now(), &Event::Wrote);
                    return true;
                }
                Err(error) if matches!(error.kind, ErrorKind::Denied | ErrorKind::Closed) => {
                    if !doubtful {
                        self.journal.put(held.number, now(), &Event::Refused);
                    }
                    return false;
                }
                Err(_) => {
                    // Whoever released its lock now could not say what the next holder finds.
                    doubtful = true;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }

    /// Draws bytes of a file, described in one of several ways.
    fn pattern(&mut self) -> (Description, u64) {
        loop {
            let below = |random: &mut Random, bound: u64| random.below(bound);
            let random = &mut self.random;
            let (description, mask): (Description, u128) = match below(random, 4) {
                0 => {
                    let (offset, length) = (below(random, BYTES), 1 + below(random, 16));
                    (Description::contiguous(offset, length), bits(offset, length))
                }
                1 => {
                    let regions: Vec<Region> = (0..1 + below(random, 6))
                        .map(|_| Region::new(below(random, BYTES), below(random, 6)))
                        .collect();
                    let mask = regions
                        .iter()
                        .map(|region| bits(region.offset, region.length))
                        .fold(0, |all, one| all | one);
                    (regions.into(), mask)
                }
                _ => {
                    let (count, block, stride) =
                        (1 + below(random, 16), 1 + below(random, 3), 1 + below(random, 9));
                    let (element, start) = (1 + below(random, 2), below(random, 8));
                    let of = Datatype::Bytes(element).vector(count, block, stride as i64).at(start);
                    let blocks =
                        (0..count).map(|index| bits(start + index * stride * element, block * element));
                    (of, blocks.fold(0, |all, one| all | one))
                }
            };
            if let Ok(mask @ 1..) = u64::try_from(mask) {
                return (description, mask);
            }
        }
    }
}

/// The bytes of a region as bits, those from 127 on left out.
fn bits(offset: u64, length: u64) -> u128 {
    (offset..offset + length).map(|byte| 1_u128 << byte.min(127)).fold(0, |all, one| all | one)
}

fn bytes(mask: u64) -> impl Iterator<Item = u64> {
    (0..BYTES).filter(move |byte| mask & 1 << byte != 0)
}
