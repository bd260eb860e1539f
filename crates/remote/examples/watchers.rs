//! The time from a change or a notification to the last of many watchers of one object, who have a process of their own
//! and many connections to the server's.
//!
//! ```text
//! cargo run --release -p nacre-remote --example watchers -- [CONNECTIONS [WATCHES [ROUNDS]]]
//! ```
//!
//! The defaults are 1000 connections of ten watches, and 50 rounds.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nacre_logstore::LogStore;
use nacre_object::watch::{Event, WatchOptions};
use nacre_object::{Fork, ObjectId, ObjectStore, StoreError, Transaction};
use nacre_remote::{Membership, RemoteOptions, RemoteStore, StoreService, WatchService};
use nacre_rpc::{Address, ServeOptions, Server, Services};
use tokio::sync::Notify;

/// The time that watchers have to acknowledge a notification.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The state that the watchers have in common.
#[derive(Default)]
struct Shared {
    changes: AtomicUsize,
    notifications: AtomicUsize,
    gaps: AtomicUsize,
    /// The number of changes, and of notifications, at which the round is over.
    wanted: AtomicUsize,
    over: Notify,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().map(String::as_str) == Some("serve") {
        return serve();
    }
    let number = |index: usize, default| words.get(index).map_or(Ok(default), |word| word.parse());
    let (connections, watches, rounds) = (number(0, 1000)?, number(1, 10)?, number(2, 50)?);
    let mut server = Command::new(std::env::current_exe()?)
        .arg("serve")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut address = String::new();
    BufReader::new(server.stdout.take().ok_or("no output")?).read_line(&mut address)?;
    let address: Address = address.trim().parse()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let measured = runtime.block_on(measure(&address, connections, watches, rounds));
    // It ends with its input.
    drop(server.stdin.take());
    server.wait()?;
    Ok(measured?)
}

/// Serves a store in memory until standard input ends.
fn serve() -> Result<(), Box<dyn std::error::Error>> {
    let store = Arc::new(LogStore::memory(nacre_logstore::Options::default()));
    let membership = Membership::alone([1; 16]);
    let objects = StoreService::new(store.clone(), membership.clone(), Arc::default());
    let services = Services::new().with(objects).with(WatchService::new(store, membership));
    let listen = vec!["127.0.0.1:0".parse()?];
    let server = Server::start(ServeOptions { listen, open: true, services, ..Default::default() })?;
    println!("{}", server.addresses()[0]);
    std::io::stdin().read_to_end(&mut Vec::new())?;
    server.stop();
    Ok(())
}

async fn measure(
    address: &Address,
    connections: usize,
    watches: usize,
    rounds: usize,
) -> Result<(), StoreError> {
    let object: ObjectId = "object".parse()?;
    let shared = Arc::new(Shared::default());
    let mut clients = Vec::new();
    for _ in 0..connections {
        let client = RemoteStore::new(std::slice::from_ref(address), RemoteOptions::default())?;
        for _ in 0..watches {
            let mut watch = client.watch(&object, WatchOptions::default()).await?;
            let shared = shared.clone();
            tokio::spawn(async move {
                while let Some(Ok(event)) = watch.next().await {
                    let count = match event {
                        Event::Changed { .. } => &shared.changes,
                        Event::Notified(notification) => {
                            let _ = notification.acknowledge("");
                            &shared.notifications
                        }
                        Event::Gap(_) => &shared.gaps,
                    };
                    if count.fetch_add(1, Ordering::AcqRel) + 1 == shared.wanted.load(Ordering::Acquire) {
                        shared.over.notify_one();
                    }
                }
            });
        }
        clients.push(client);
    }
    let all = connections * watches;
    println!("{all} watchers of one object, {connections} connections; {rounds} rounds; milliseconds");
    println!("{:36}{:>7}{:>9}{:>9}", "", "median", "p90", "most");
    let writer = RemoteStore::new(std::slice::from_ref(address), RemoteOptions::default())?;
    let (mut changes, mut notifications, mut outcomes) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        begin(&shared, all);
        let began = Instant::now();
        writer.apply(&object, Transaction::new().write(Fork::DEFAULT, 0, "change")).await?;
        shared.over.notified().await;
        changes.push(began.elapsed());

        begin(&shared, all);
        let began = Instant::now();
        let outcome = writer.notify(&object, "notification".into(), TIMEOUT);
        shared.over.notified().await;
        notifications.push(began.elapsed());
        let outcome = outcome.await?;
        outcomes.push(began.elapsed());
        assert_eq!(outcome.acknowledged.len(), all, "watchers that acknowledged a notification");
    }
    print("a change, to the last watcher", changes);
    print("a notification, to the last watcher", notifications);
    print("its outcome, all acknowledged", outcomes);
    println!("gaps: {}", shared.gaps.load(Ordering::Acquire));
    Ok(())
}

fn begin(shared: &Shared, all: usize) {
    shared.changes.store(0, Ordering::Release);
    shared.notifications.store(0, Ordering::Release);
    shared.wanted.store(all, Ordering::Release);
}

fn print(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1e3;
    println!("{what:36}{:>7.1}{:>9.1}{:>9.1}", at(50), at(90), at(100));
}
