//! Notifications to many watchers of one object: thousands of watches on hundreds of connections, in a few processes.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use nacre_object::ObjectStore as _;
use nacre_object::watch::{Event, Watch, WatchOptions};
use serde::{Deserialize, Serialize};

use crate::BenchError;
use crate::kit::machine::now_ns;
use crate::kit::process::{self, Crew, together};
use crate::kit::server::{self, ServerPlan, Servers};
use crate::kit::statistic::Spread;

/// The command that makes this program a process of watchers.
const WATCHERS: &str = "class-watchers";
/// The watched object.
const OBJECT: &str = "study/watched";
/// The processes.
const PROCESSES: u32 = 4;
/// The watches on each connection.
const PER_CONNECTION: u32 = 10;
/// The time for which a notification waits for its acknowledgements.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The time that the processes are given to read that a round begins.
const START: Duration = Duration::from_millis(200);
/// The time between two notifications.
const PAUSE: Duration = Duration::from_millis(50);

/// Notifications to watchers of one object.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Notified {
    pub(crate) watchers: u32,
    pub(crate) connections: u32,
    pub(crate) notifications: u32,
    /// From the request to notify until the last watcher had it.
    pub(crate) received_ms: Spread,
    /// From the request to notify until its sender knew that all had acknowledged it.
    pub(crate) acknowledged_ms: Spread,
}

/// The parameters of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Orders {
    uri: String,
    connections: u32,
    per_connection: u32,
}

/// The watches of a process.
struct Watches {
    // Held so that the connections stay.
    _stores: Vec<nacre::Store>,
    watches: Vec<Watch>,
}

/// Runs the hidden command of a process of watchers. A round is a number of notifications; its result is the time, by the machine's clock,
/// at which the last of the watchers had each of them.
pub(crate) fn main() -> Result<(), BenchError> {
    process::serve_rounds(
        async |orders: Orders| open(&orders).await,
        async |watches: &mut Watches, notifications: u32, _| receive(watches, notifications).await,
        async |watches: Watches| drop(watches),
    )
}

async fn open(orders: &Orders) -> Result<Watches, BenchError> {
    let object = nacre::ObjectId::new(Bytes::from_static(OBJECT.as_bytes()))?;
    let (mut stores, mut watches) = (Vec::new(), Vec::new());
    for _ in 0..orders.connections {
        let store = server::open(&orders.uri).await?;
        for _ in 0..orders.per_connection {
            watches.push(store.watch(&object, WatchOptions::default()).await?);
        }
        stores.push(store);
    }
    Ok(Watches { _stores: stores, watches })
}

async fn receive(watches: &mut Watches, notifications: u32) -> Result<Vec<u64>, BenchError> {
    let each = watches.watches.iter_mut().map(|watch| async move {
        let mut times = Vec::with_capacity(notifications as usize);
        while times.len() < notifications as usize {
            let ended = || BenchError::Process("a watch has ended".into());
            match watch.next().await.ok_or_else(ended)?? {
                Event::Notified(notification) => {
                    times.push(now_ns());
                    notification.acknowledge(Bytes::new())?;
                }
                Event::Changed { .. } => {}
                Event::Gap(gap) => {
                    return Err(BenchError::Lost(format!("a watcher missed something: {gap:?}")));
                }
            }
        }
        Ok(times)
    });
    let times = together(each).await?;
    Ok((0..notifications as usize)
        .map(|number| times.iter().map(|times| times[number]).max().unwrap_or(0))
        .collect())
}

/// Measures notifications to a number of watchers, ten on each connection.
pub(super) async fn measure(
    program: &Path,
    folder: Option<&Path>,
    watchers: u32,
    notifications: u32,
) -> Result<Notified, BenchError> {
    let servers = Servers::start(program, ServerPlan::volatile(1), folder).await?;
    let connections = watchers.div_ceil(PER_CONNECTION).next_multiple_of(PROCESSES);
    let each = connections / PROCESSES;
    let orders = |_| Orders { uri: servers.uri.clone(), connections: each, per_connection: PER_CONNECTION };
    let orders: Vec<Orders> = (0..PROCESSES).map(orders).collect();
    let mut crew = Crew::start(WATCHERS, &orders).await?;
    let store = server::open(&servers.uri).await?;
    let object = store.object(OBJECT)?;
    let expected = (connections * PER_CONNECTION) as usize;
    let notify = async {
        let (mut requested, mut acknowledged) = (Vec::new(), Vec::new());
        // By then all watchers look.
        tokio::time::sleep(START).await;
        for _ in 0..notifications {
            tokio::time::sleep(PAUSE).await;
            let begun_ns = now_ns();
            let notified = object.notify("changed", TIMEOUT).await?;
            acknowledged.push(now_ns().saturating_sub(begun_ns) as f64 / 1e6);
            requested.push(begun_ns);
            if !notified.missed.is_empty() || notified.acknowledged.len() != expected {
                let text = format!("{} of {expected} watchers acknowledged", notified.acknowledged.len());
                return Err(BenchError::Lost(text));
            }
        }
        Ok::<_, BenchError>((requested, acknowledged))
    };
    let received = crew.round::<u32, Vec<u64>>(&notifications);
    let (received, (requested, acknowledged)) = futures::future::try_join(received, notify).await?;
    crew.end().await?;
    let last_ms = requested.iter().enumerate().map(|(number, begun_ns)| {
        let last = received.iter().filter_map(|times| times.get(number)).max();
        last.map_or(0, |last| last.saturating_sub(*begun_ns)) as f64 / 1e6
    });
    Ok(Notified {
        watchers: connections * PER_CONNECTION,
        connections,
        notifications,
        received_ms: Spread::of(last_ms),
        acknowledged_ms: Spread::of(acknowledged),
    })
}
