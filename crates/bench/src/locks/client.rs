//! One client of the study, a process of its own.
//!
//! The study tells it round by round what to do: acquire patterns, release them, both by turns, or hand a byte from one
//! waiter to the next. So what all clients acquired is all held before the first of them releases any of it.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::try_join_all;
use futures::stream::FuturesUnordered;
use nacre::lock::{Lock, LockableFile, Mode, Request};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::point::{MethodName, ProtocolName, Shape};
use super::total::totals;
use crate::BenchError;
use crate::kit::latency::{Latencies, LatencyCounts};
use crate::kit::peer::{etcd, ofd, zookeeper};
use crate::kit::process::{self, together};
use crate::kit::server;

/// The parameters of a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Orders {
    /// Its number.
    pub client: u32,
    pub plan: Plan,
}

/// The lock service that a client uses.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Plan {
    /// Nacre, with this number of sessions.
    Nacre { store: String, sessions: u32 },
    /// The kernel, by a file of this machine.
    Ofd { path: PathBuf },
    /// ZooKeeper, with this number of sessions.
    Zookeeper { address: String, sessions: u32 },
    /// etcd, with this number of connections.
    Etcd { address: String, connections: u32 },
}

/// A round of a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Work {
    /// Acquires patterns one after the other, and keeps them.
    Acquire(Batch),
    /// Releases what the last round acquired.
    Release,
    /// Acquires a pattern and releases it, time and again.
    Cycle(Batch),
    /// Locks and unlocks ranges that nobody else wants until the time is over, several at once.
    Loop(Loop),
    /// Hands one byte from each of a number of waiters to the next.
    Queue { waiters: usize },
}

/// Patterns to lock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Batch {
    pub shape: Shape,
    pub method: MethodName,
    pub protocol: ProtocolName,
    /// The distance of the patterns of two neighbours.
    pub neighbour_bytes: u64,
    /// The distance of two patterns of one client, where it holds several.
    pub step_bytes: u64,
    pub operations: u64,
}

impl Batch {
    /// Returns the offset of a pattern of a client.
    pub(super) fn offset(&self, client: u32, operation: u64) -> u64 {
        u64::from(client) * self.neighbour_bytes + operation * self.step_bytes
    }
}

/// Ranges to lock and unlock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Loop {
    pub concurrency: u32,
    /// True if it is waited until the service knows that a range is unlocked; if not, the unlocking goes with the next call.
    pub awaits: bool,
    pub warm_up_ms: u64,
    pub window_ms: u64,
}

/// The result of a round. Times are those of the machine's monotonic clock, the same for all processes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Done {
    pub begun_ns: u64,
    pub ended_ns: u64,
    /// The number of operations; in a loop, of those that ended in the window.
    pub operations: u64,
    /// The latencies of these operations in a loop.
    pub latencies: LatencyCounts,
    /// False if waiters of one session were served out of order.
    pub in_order: bool,
}

/// The file, or the name, whose bytes are locked.
pub(super) const FILE: &str = "bench";

/// The seconds for which an etcd lease lasts: longer than a study of it.
const LEASE_SECONDS: i64 = 3600;

/// A client that is connected.
struct Client {
    number: u32,
    service: Service,
    held: Vec<Held>,
}

/// The connections to a lock service.
pub(super) enum Service {
    Nacre { stores: Vec<nacre::Store>, files: Vec<LockableFile> },
    Ofd(ofd::Locks),
    Zookeeper(Vec<zookeeper_client::Client>),
    Etcd { clients: Vec<etcd::Client>, lease: i64 },
}

enum Held {
    Nacre(Lock),
    /// The regions of a pattern in the kernel, by their offsets.
    Ofd {
        first: u64,
        separation_bytes: u64,
        regions: u64,
    },
}

/// Runs the hidden command of a client process.
pub(crate) fn main() -> Result<(), BenchError> {
    process::serve_rounds(
        async |orders: Orders| Client::open(orders).await,
        async |client: &mut Client, work: Work, _| client.work(work).await,
        async |client: Client| {
            drop(client.held);
            if let Service::Nacre { stores, .. } = client.service {
                for store in stores {
                    store.end_locks().await;
                }
            }
        },
    )
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Client {
    async fn open(orders: Orders) -> Result<Self, BenchError> {
        let service = match orders.plan {
            Plan::Nacre { store, sessions } => {
                let (mut stores, mut files) = (Vec::new(), Vec::new());
                for _ in 0..sessions {
                    // Every handle that is opened has a session of its own.
                    let store = server::open(&store).await?;
                    files.push(store.file(FILE)?);
                    stores.push(store);
                }
                Service::Nacre { stores, files }
            }
            Plan::Ofd { path } => Service::Ofd(ofd::Locks::open(&path)?),
            Plan::Zookeeper { address, sessions } => {
                let clients = (0..sessions).map(|_| zookeeper::connect(&address));
                Service::Zookeeper(try_join_all(clients).await?)
            }
            Plan::Etcd { address, connections } => {
                let clients = (0..connections).map(|_| etcd::Client::connect(&address));
                let mut clients = try_join_all(clients).await?;
                let lease = match clients.first_mut() {
                    Some(first) => first.lease(LEASE_SECONDS).await?,
                    None => 0,
                };
                Service::Etcd { clients, lease }
            }
        };
        Ok(Self { number: orders.client, service, held: Vec::new() })
    }

    async fn work(&mut self, work: Work) -> Result<Done, BenchError> {
        match work {
            Work::Acquire(batch) => self.acquire(&batch).await,
            Work::Release => self.release().await,
            Work::Cycle(batch) => self.cycle(&batch).await,
            Work::Loop(parameters) => self.repeat(&parameters).await,
            Work::Queue { waiters } => self.queue(waiters).await,
        }
    }

    /// Returns the requests of a batch, made before the clock runs.
    fn requests(&self, batch: &Batch) -> Vec<Request> {
        let request = |operation| {
            Request::new(batch.shape.at(batch.offset(self.number, operation)), Mode::Exclusive)
                .method(batch.method.into())
                .protocol(batch.protocol.into())
        };
        (0..batch.operations).map(request).collect()
    }

    async fn acquire(&mut self, batch: &Batch) -> Result<Done, BenchError> {
        let mut done = Done { operations: batch.operations, in_order: true, ..Done::default() };
        match &self.service {
            Service::Nacre { files, .. } => {
                let (file, requests) = (&files[0], self.requests(batch));
                done.begun_ns = now_ns();
                for request in &requests {
                    self.held.push(Held::Nacre(file.lock_by(request).await?));
                }
            }
            Service::Ofd(file) => {
                let Shape::Strided { regions, separation_bytes } = batch.shape else {
                    return Err(unsupported("other than strided patterns"));
                };
                done.begun_ns = now_ns();
                for operation in 0..batch.operations {
                    let first = batch.offset(self.number, operation);
                    for region in 0..regions {
                        file.lock(first + region * separation_bytes, 1)?;
                    }
                    self.held.push(Held::Ofd { first, separation_bytes, regions });
                }
            }
            Service::Zookeeper(_) | Service::Etcd { .. } => return Err(unsupported("patterns")),
        }
        done.ended_ns = now_ns();
        Ok(done)
    }

    async fn release(&mut self) -> Result<Done, BenchError> {
        let held = std::mem::take(&mut self.held);
        let operations = held.len() as u64;
        let begun_ns = now_ns();
        for held in held {
            match (held, &self.service) {
                (Held::Nacre(lock), _) => lock.release().await?,
                (Held::Ofd { first, separation_bytes, regions }, Service::Ofd(file)) => {
                    for region in 0..regions {
                        file.unlock(first + region * separation_bytes, 1)?;
                    }
                }
                (Held::Ofd { .. }, _) => return Err(unsupported("locks of another service")),
            }
        }
        Ok(Done { begun_ns, ended_ns: now_ns(), operations, in_order: true, ..Done::default() })
    }

    async fn cycle(&mut self, batch: &Batch) -> Result<Done, BenchError> {
        let Service::Nacre { files, .. } = &self.service else { return Err(unsupported("patterns")) };
        let (file, requests) = (&files[0], self.requests(batch));
        let begun_ns = now_ns();
        for request in &requests {
            file.lock_by(request).await?.release().await?;
        }
        let operations = batch.operations;
        Ok(Done { begun_ns, ended_ns: now_ns(), operations, in_order: true, ..Done::default() })
    }

    /// Locks and unlocks until the window is over.
    async fn repeat(&mut self, parameters: &Loop) -> Result<Done, BenchError> {
        let begun = Instant::now();
        let from = begun + Duration::from_millis(parameters.warm_up_ms);
        let until = from + Duration::from_millis(parameters.window_ms);
        let counted = RefCell::new((0, Latencies::new()?));
        let (service, shared) = (&self.service, &counted);
        let first = self.number * parameters.concurrency;
        let workers = (0..parameters.concurrency).map(async |worker| {
            let mut place = service.place(worker, first + worker, parameters.awaits).await?;
            let mut started = Instant::now();
            while started < until {
                place.lock_and_unlock().await?;
                let ended = Instant::now();
                if started >= from && ended < until {
                    let (operations, latencies) = &mut *shared.borrow_mut();
                    *operations += 1;
                    latencies.record(ended - started);
                }
                started = ended;
            }
            Ok(())
        });
        together(workers).await?;
        let (operations, latencies) = counted.into_inner();
        let window_ns = parameters.window_ms * 1_000_000;
        Ok(Done {
            begun_ns: 0,
            ended_ns: window_ns,
            operations,
            latencies: latencies.counts(),
            in_order: true,
        })
    }

    /// Lets waiters stand in line for one byte, and then measures how it goes from one to the next.
    async fn queue(&mut self, waiters: usize) -> Result<Done, BenchError> {
        let Service::Nacre { stores, files } = &self.service else { return Err(unsupported("waiters")) };
        let Some((holder, others)) = files.split_first().filter(|(_, others)| !others.is_empty()) else {
            return Err(unsupported("waiters with one session"));
        };
        let request = Request::new(0..1, Mode::Exclusive);
        let held = holder.lock_by(&request).await?;
        let order = RefCell::new(Vec::with_capacity(waiters));
        let mut line = FuturesUnordered::new();
        for waiter in 0..waiters {
            let (file, request, order) = (&others[waiter % others.len()], &request, &order);
            line.push(async move {
                let lock = file.lock_by(request).await?;
                order.borrow_mut().push(waiter);
                lock.release().await?;
                Ok::<(), BenchError>(())
            });
        }
        let all_wait = async {
            while totals(&stores[0]).await?.waiting < waiters as u64 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Ok::<(), BenchError>(())
        };
        // The runtime's fairness budget would let some of them ask after those behind them.
        tokio::task::unconstrained(async {
            tokio::select! {
                _ = line.next() => Err(BenchError::Lost("a byte was granted to two clients".into())),
                waiting = all_wait => waiting,
            }
        })
        .await?;
        let begun_ns = now_ns();
        let served = tokio::task::unconstrained(async {
            while let Some(served) = line.next().await {
                served?;
            }
            Ok::<(), BenchError>(())
        });
        let (released, served) = futures::join!(held.release(), served);
        released?;
        served?;
        let ended_ns = now_ns();
        drop(line);
        let order = order.into_inner();
        let of_session = |session| order.iter().filter(move |waiter| *waiter % others.len() == session);
        let in_order = (0..others.len()).all(|session| of_session(session).is_sorted());
        Ok(Done { begun_ns, ended_ns, operations: order.len() as u64, in_order, ..Done::default() })
    }
}

fn unsupported(what: &str) -> BenchError {
    BenchError::Process(format!("a client was told to lock by a service that has no {what}"))
}
