//! Maps, beacons and the cluster log on a pool of a Ceph cluster: proposers, followers and servers with a connection each.

#[path = "../../rados/tests/cluster/mod.rs"]
mod cluster;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use cluster::Cluster;
use nacre_map::cluster::{self as servers, Load, Phase, SERVERS_MAP, ServerEntry};
use nacre_map::log::{Entry, Level, Log, LogBounds, Writer};
use nacre_map::{ClusterMap, FollowOptions, Followed, ProposeError, Refused, Update};
use nacre_object::{Key, ObjectStore};
use nacre_rados::RadosStore;
use tokio::time::timeout;

/// Longer than any test: nothing is learnt by looking from time to time.
const NEVER: Duration = Duration::from_secs(24 * 3600);
const PROPOSERS: u64 = 3;
const ROUNDS: u64 = 12;

/// Waits for something that must come about.
async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(180), future).await.unwrap_or_else(|_| panic!("waited in vain until {what}"))
}

async fn connect(uri: &str) -> Arc<dyn ObjectStore> {
    Arc::new(RadosStore::open(uri).await.unwrap())
}

fn key(name: &str) -> Key {
    name.parse().unwrap()
}

fn number(value: &[u8]) -> u64 {
    std::str::from_utf8(value).unwrap().parse().unwrap()
}

/// Adds one to an entry, on condition that nobody else has changed it meanwhile, until that succeeds; and sets an entry of its
/// own with each of them.
async fn count(map: ClusterMap, proposer: u64) {
    let (total, own) = (key("total"), key(&format!("proposer-{proposer}")));
    let proposing = map.proposer(Default::default());
    for round in 1..=ROUNDS {
        loop {
            let (found, _) = map.get(&total).await.unwrap();
            let (before, version) = found.map_or((0, 0), |found| (number(&found.value), found.version));
            let update = Update::new(format!("proposer-{proposer}"))
                .set(total.clone(), (before + 1).to_string())
                .set(own.clone(), round.to_string())
                .if_version(total.clone(), version);
            match proposing.propose(update).await {
                Ok(_) => break,
                Err(ProposeError::Refused(Refused::Version { .. })) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_update_of_several_proposers_is_lost_and_followers_see_each_epoch_in_order() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("maps");
    let mut following = Vec::new();
    for _ in 0..2 {
        let map = ClusterMap::new(connect(&uri).await, "counted").unwrap();
        following.push(tokio::spawn(async move {
            let mut follower = map.follow(FollowOptions { poll: NEVER });
            assert_eq!(follower.next().await.unwrap(), Followed::Snapshot);
            while follower.state().get(b"end").is_none() {
                let before = follower.state().epoch();
                match follower.next().await.unwrap() {
                    Followed::Epoch(record) => assert_eq!(record.epoch, before + 1),
                    // The map that there was not when the follower began.
                    Followed::Snapshot => assert_eq!(before, 0, "the follower was left behind"),
                }
            }
            follower.state().clone()
        }));
    }
    let mut proposing = Vec::new();
    for proposer in 0..PROPOSERS {
        // One of them does not tell of what it has done, as if it were killed each time.
        let silent = if proposer == 0 { "&announce=off" } else { "" };
        let map = ClusterMap::new(connect(&format!("{uri}{silent}")).await, "counted").unwrap();
        proposing.push(tokio::spawn(count(map, proposer)));
    }
    for proposer in proposing {
        within("the proposers are done", proposer).await.unwrap();
    }
    let map = ClusterMap::new(connect(&uri).await, "counted").unwrap();
    map.proposer(Default::default()).propose(Update::new("end").set(key("end"), "")).await.unwrap();
    let state = map.state().await.unwrap();
    assert_eq!(state.get(b"total").map(|total| number(&total.value)), Some(PROPOSERS * ROUNDS));
    for proposer in 0..PROPOSERS {
        let own = state.get(format!("proposer-{proposer}").as_bytes()).unwrap();
        assert_eq!(number(&own.value), ROUNDS);
    }
    for follower in following {
        assert_eq!(within("the followers are at the end", follower).await.unwrap(), state);
    }
}

/// Starts a server that takes part, over a connection of its own.
async fn server(uri: &str, name: &str, rank: u64) -> tokio::task::JoinHandle<()> {
    let store = connect(uri).await;
    let (writer, appended) = Writer::new(Log::new(store.clone(), LogBounds::default()).unwrap(), name);
    tokio::spawn(appended);
    let options = servers::Options {
        name: name.to_owned(),
        rank,
        address: name.to_owned(),
        roles: vec!["lock".to_owned()],
        interval: Duration::from_millis(500),
        health: Default::default(),
    };
    tokio::spawn(async move {
        let load = || -> futures::future::BoxFuture<'static, Load> { Box::pin(async { Load::default() }) };
        servers::run(store, options, Box::new(load), writer, std::future::pending()).await.unwrap();
    })
}

/// Waits until the servers of the map are in these states.
async fn until(store: &Arc<dyn ObjectStore>, wanted: &[(&str, Phase)]) {
    let map = ClusterMap::new(store.clone(), SERVERS_MAP).unwrap();
    let mut follower = map.follow(FollowOptions { poll: NEVER });
    let reached = async {
        loop {
            follower.next().await.unwrap();
            let is = |(name, phase): &(&str, Phase)| {
                let entry = follower.state().get(name.as_bytes());
                entry
                    .and_then(|entry| ServerEntry::decode(&entry.value))
                    .is_some_and(|entry| entry.state == *phase)
            };
            if wanted.iter().all(is) {
                return;
            }
        }
    };
    within("the servers are up or down", reached).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_that_sends_no_beacons_any_more_is_marked_down() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("beacons");
    let (one, _other) = (server(&uri, "one", 1).await, server(&uri, "other", 2).await);
    let store = connect(&uri).await;
    until(&store, &[("one", Phase::Up), ("other", Phase::Up)]).await;
    one.abort();
    until(&store, &[("one", Phase::Down), ("other", Phase::Up)]).await;
    let beacons = servers::beacons(&*store).await.unwrap();
    assert_eq!(beacons.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn lines_of_several_sources_are_followed_in_their_order() {
    const LINES: u64 = 15;
    let cluster = Cluster::shared();
    let uri = cluster.uri("log");
    let reader = Log::new(connect(&uri).await, LogBounds::default()).unwrap();
    let following = tokio::spawn(async move {
        let (mut follower, mut lines) = (reader.follow(0, NEVER), Vec::new());
        while lines.len() < 2 * LINES as usize {
            lines.extend(follower.next().await.unwrap());
        }
        lines
    });
    let mut appending = Vec::new();
    for source in ["left", "right"] {
        let log = Log::new(connect(&uri).await, LogBounds::default()).unwrap();
        appending.push(tokio::spawn(async move {
            for number in 0..LINES {
                let text = format!("{number:02}");
                within("a line is appended", log.append(&[Entry::new(source, Level::Info, &text)]))
                    .await
                    .unwrap();
            }
        }));
    }
    for source in appending {
        source.await.unwrap();
    }
    let lines = within("all lines are read", following).await.unwrap();
    assert!(lines.iter().map(|line| line.number).eq(1..=2 * LINES));
    for source in ["left", "right"] {
        let texts =
            lines.iter().filter(|line| line.entry.source == source).map(|line| line.entry.text.clone());
        assert!(texts.eq((0..LINES).map(|number| format!("{number:02}"))), "{source}");
    }
}
