//! Histories of lock, write, read and unlock over the network, checked for mutual exclusion: clients in processes of their
//! own, up to three lock servers, and everything that can happen to them. Ten seconds by default;
//! `SOAK_SECONDS` sets the time, `NACRE_SEED` the seed of all that is drawn.

#[path = "lock_history/client.rs"]
mod client;
mod harness;
#[path = "lock_history/journal.rs"]
mod journal;
#[path = "lock_history/relay.rs"]
mod relay;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use harness::{PATIENCE, Random, Server};
use journal::{Counts, History, now};
use nacre::lock::Mode;
use relay::Relay;
use rustix::process::{Pid, Signal, kill_process};

const LEASE: Duration = Duration::from_secs(1);
/// The number of client processes at once.
const CLIENTS: usize = 4;

/// Does the work of a client process, which the history starts; otherwise nothing.
#[test]
fn a_client_of_the_history() {
    if let Ok(plan) = std::env::var(client::PLAN) {
        client::run(&plan);
    }
}

/// A client process.
struct Worker {
    child: Child,
    name: String,
    stopped: bool,
}

impl Worker {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), signal).unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have been reaped already, in which case this does nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server behind its relay.
struct Host {
    server: Option<Server>,
    relay: Relay,
}

/// The cluster and what has happened to it.
struct World {
    folder: PathBuf,
    members: Vec<String>,
    hosts: Vec<Host>,
    workers: Vec<Worker>,
    started: u64,
    /// The end of the clients' work.
    until: u64,
    /// The sessions that were broken, and when.
    broken: Vec<(u64, u64)>,
    random: Random,
    faults: Faults,
}

/// The faults so far.
#[derive(Debug, Default)]
struct Faults {
    kills: usize,
    stops: usize,
    restarts: usize,
    cuts: usize,
    breaks: usize,
}

impl World {
    fn new(folder: &Path, servers: usize, time: Duration, mut random: Random) -> World {
        let near = |index: usize| folder.join(format!("socket-{index}"));
        let members = (0..servers).map(|index| format!("unix:{}", near(index).display())).collect();
        let relays =
            (0..servers).map(|index| Relay::start(near(index), folder.join(format!("behind-{index}"))));
        let hosts = relays.map(|relay| Host { server: None, relay }).collect();
        let random = Random(random.next());
        let mut world = World {
            folder: folder.to_owned(),
            members,
            hosts,
            workers: Vec::new(),
            started: 0,
            until: now() + time.as_nanos() as u64,
            broken: Vec::new(),
            random,
            faults: Faults::default(),
        };
        (0..servers).for_each(|index| world.start_server(index));
        (0..CLIENTS).for_each(|_| world.start_client());
        world
    }

    fn start_server(&mut self, index: usize) {
        let behind = self.folder.join(format!("behind-{index}"));
        let lease = format!("{}ms", LEASE.as_millis());
        let members = self.members.join(",");
        let flags = [
            ["--lock-lease", &lease],
            ["--lock-stripe", "4"],
            ["--members", &members],
            ["--member", &self.members[index]],
        ];
        let store = harness::file(&self.folder.join(format!("store-{index}")));
        let server = Server::listen(&format!("unix:{}", behind.display()), &store, flags.as_flattened());
        self.hosts[index].server = Some(server);
    }

    fn start_client(&mut self) {
        self.started += 1;
        let name = format!("client-{}", self.started);
        let plan = client::Plan {
            uri: format!("nacre://{}", self.members.join(",")),
            journal: self.folder.join(&name),
            number: self.started,
            seed: self.random.next(),
            until: self.until,
            lease: LEASE,
        };
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_client_of_the_history", "--nocapture"])
            .env(client::PLAN, plan.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        self.workers.push(Worker { child, name, stopped: false });
    }

    /// Draws a time around the lease.
    fn time(&mut self) -> Duration {
        LEASE.mul_f64(self.random.below(250) as f64 / 100.0)
    }

    /// Makes something fail, and brings back what failed.
    async fn fault(&mut self) {
        let (worker, host) =
            (self.random.below(CLIENTS as u64) as usize, self.random.below(self.hosts.len() as u64) as usize);
        match self.random.below(8) {
            0 => {
                drop(self.workers.swap_remove(worker));
                self.faults.kills += 1;
                self.start_client();
            }
            1..=3 => {
                self.workers[worker].signal(Signal::STOP);
                self.workers[worker].stopped = true;
                self.faults.stops += 1;
                // Another fault may hit meanwhile.
                tokio::time::sleep(self.time()).await;
                self.workers[worker].signal(Signal::CONT);
                self.workers[worker].stopped = false;
            }
            4 => {
                self.hosts[host].server.take().unwrap().kill();
                let away = self.time() / 2;
                tokio::time::sleep(away).await;
                self.start_server(host);
                self.faults.restarts += 1;
            }
            5 | 6 => {
                let (time, what) = (self.time(), self.random.below(3));
                let (relay, random) = (&self.hosts[host].relay, &mut self.random);
                self.faults.cuts += 1;
                match what {
                    0 => relay.hold_up(time, || random.below(2) == 0),
                    1 => relay.cut(|| random.below(2) == 0),
                    _ => {
                        relay.refuse(true);
                        relay.cut(|| true);
                        tokio::time::sleep(time).await;
                        self.hosts[host].relay.refuse(false);
                    }
                }
            }
            _ => self.break_session().await,
        }
    }

    /// Breaks a session that has locks, if the servers say which.
    async fn break_session(&mut self) {
        let store = nacre::open(&format!("nacre://{}", self.members.join(","))).unwrap();
        let Ok(Ok(reports)) = tokio::time::timeout(LEASE, store.locks()).await else { return };
        let locks = reports.iter().flat_map(|part| part.report["locks"].as_array().unwrap());
        let sessions: Vec<u64> = locks.map(|lock| lock["session"].as_u64().unwrap()).collect();
        if sessions.is_empty() {
            return;
        }
        let session = sessions[self.random.below(sessions.len() as u64) as usize];
        self.broken.push((session, now()));
        self.faults.breaks += 1;
        let _ = tokio::time::timeout(LEASE, store.break_lock_session(session)).await;
    }

    /// Waits until all clients have ended, and nothing is locked. Returns the checked history.
    async fn end(mut self) -> (Faults, Result<Counts, String>) {
        for worker in &mut self.workers {
            let status = harness::wait(&mut worker.child, PATIENCE);
            assert!(status.success(), "{} ended with {status}", worker.name);
        }
        let store = nacre::open(&format!("nacre://{}", self.members.join(","))).unwrap();
        for file in client::FILES {
            let all = store.file(file).unwrap();
            let lock = tokio::time::timeout(PATIENCE, all.lock(0..1 << 40, Mode::Exclusive)).await;
            lock.expect("what nobody holds is granted").unwrap().release().await.unwrap();
        }
        store.end_locks().await;
        // A session that was lost at one server has yet to lapse at the others.
        let until = Instant::now() + PATIENCE;
        loop {
            let reports = store.locks().await.unwrap();
            if reports.iter().all(|report| report.report["requests"] == 0) {
                break;
            }
            assert!(Instant::now() < until, "{reports:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut history = History::default();
        for number in 1..=self.started {
            let name = format!("client-{number}");
            // One that was killed at once has none.
            let text = std::fs::read_to_string(self.folder.join(&name)).unwrap_or_default();
            history.add(&name, &text);
        }
        self.broken.iter().for_each(|(session, time)| history.broken(*session, *time));
        (self.faults, history.check())
    }
}

#[test]
fn no_byte_has_two_holders_whatever_fails() {
    let seconds =
        std::env::var("SOAK_SECONDS").map_or(10, |text| text.parse().expect("SOAK_SECONDS is a number"));
    let mut random = Random::from_environment();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    // Half of the time with one server, half with three.
    let share = Duration::from_secs(seconds) / 2;
    for servers in [3, 1] {
        // A machine that stands still may leave too little of the time.
        let run = || history(&runtime, servers, share, Random(random.next()));
        let enough = std::iter::repeat_with(run).take(5).any(|(faults, counts)| {
            println!("{servers} servers: {faults:?}, {counts:?}");
            let Faults { kills, stops, restarts, cuts, .. } = faults;
            // Something was locked, changed and read between all that failed.
            counts.exclusive > 5
                && counts.shared > 5
                && counts.writes > 5
                && counts.at_once > 0
                && kills + stops + restarts + cuts > 1
                && (counts.refused > 0 || seconds < 120)
        });
        assert!(enough, "little was locked, changed or refused, or little failed, as said above");
    }
}

/// Runs a history, and checks it. Returns the faults in it, and what it has of everything.
fn history(
    runtime: &tokio::runtime::Runtime,
    servers: usize,
    time: Duration,
    mut random: Random,
) -> (Faults, Counts) {
    let folder = harness::folder();
    let (faults, counts) = runtime.block_on(async {
        let mut world = World::new(folder.path(), servers, time, Random(random.next()));
        let begin = Instant::now();
        while begin.elapsed() < time {
            let pause = world.random.below(300);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            world.fault().await;
        }
        world.end().await
    });
    let counts = counts.unwrap_or_else(|breach| panic!("{servers} servers, {faults:?}: {breach}"));
    (faults, counts)
}
