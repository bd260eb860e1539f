//! Drivers of several ranks on one store, with ranks that are tables in memory.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use nacre_balance::{Driver, Metrics, Migrate, Move, Registry, Resource, Sense, published, shipped};
use nacre_map::log::Log;
use nacre_object::testkit::MemoryStore;
use nacre_object::{ErrorKind, ObjectId, ObjectStore, Outcome, Reply, StoreError, Transaction};

/// The resources of all ranks.
type World = Arc<Mutex<Vec<Vec<Resource>>>>;

struct Rank {
    number: usize,
    world: World,
}

impl Sense for Rank {
    fn sense(&mut self, _now: Duration) -> Option<(usize, Metrics, Vec<Resource>)> {
        let resources = self.world.lock().unwrap()[self.number].clone();
        let mut metrics = Metrics::default();
        metrics.count(&resources);
        metrics.all_load = metrics.own_load;
        Some((self.number, metrics, resources))
    }
}

struct Moves {
    world: World,
    fails: bool,
}

impl Migrate for Moves {
    fn migrate(&self, wanted: &Move) -> BoxFuture<'static, Result<(), StoreError>> {
        let (world, wanted, fails) = (self.world.clone(), wanted.clone(), self.fails);
        async move {
            if fails {
                return Err(StoreError::new(ErrorKind::Unavailable, "the rank does not answer"));
            }
            let mut world = world.lock().unwrap();
            let at = world[wanted.from].iter().position(|resource| resource.id == wanted.id).unwrap();
            let resource = world[wanted.from].remove(at);
            world[wanted.to].push(resource);
            Ok(())
        }
        .boxed()
    }
}

fn driver(store: &Arc<dyn ObjectStore>, world: &World, number: usize, fails: bool) -> Driver {
    let rank = Rank { number, world: world.clone() };
    let moves = Moves { world: world.clone(), fails };
    Driver::new(store.clone(), &format!("daemon{number}"), Box::new(rank), Arc::new(moves)).unwrap()
}

fn world(ranks: usize) -> World {
    let mut world = vec![Vec::new(); ranks];
    world[0] =
        ["seven", "eight"].map(|name| sequencer(name, if name == "seven" { 7.0 } else { 8.0 })).to_vec();
    Arc::new(Mutex::new(world))
}

fn sequencer(name: &str, load: f64) -> Resource {
    Resource { id: format!("sequencer:{name}").parse().unwrap(), load }
}

async fn set(store: &Arc<dyn ObjectStore>, name: &str, text: &str) {
    let registry = Registry::new(store.clone()).unwrap();
    registry.set("ada", name, text).await.unwrap();
}

async fn lines(store: &Arc<dyn ObjectStore>) -> Vec<String> {
    let log = Log::new(store.clone(), Default::default()).unwrap();
    log.last(100).await.unwrap().into_iter().map(|line| line.entry.text).collect()
}

fn new() -> Arc<dyn ObjectStore> {
    Arc::new(MemoryStore::new())
}

#[tokio::test]
async fn ranks_publish_their_load_and_move_what_the_policy_says() {
    let (store, world) = (new(), world(3));
    set(&store, "sequencer", shipped("sequencer").unwrap().text).await;
    let mut drivers: Vec<Driver> = (0..3).map(|number| driver(&store, &world, number, false)).collect();
    // The first ones do not know of all ranks yet.
    for _ in 0..3 {
        for driver in &mut drivers {
            driver.tick().await;
        }
    }
    let names: Vec<Vec<String>> = world
        .lock()
        .unwrap()
        .iter()
        .map(|rank| rank.iter().map(|one| one.id.name.to_string()).collect())
        .collect();
    assert_eq!(names, [vec!["eight".to_owned()], vec!["seven".to_owned()], vec![]]);
    let published = published(&*store).await.unwrap();
    assert_eq!(published.len(), 3);
    assert_eq!(published[0].policy, Some(("sequencer".to_owned(), 1)));
    assert_eq!(published[0].moves.len(), 1);
    assert_eq!(published[1].resources, [sequencer("seven", 7.0)]);
    let lines = lines(&store).await;
    assert!(lines.is_empty(), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn drivers_run_by_themselves() {
    let (store, world) = (new(), world(2));
    let registry = Registry::new(store.clone()).unwrap();
    registry
        .change("ada", |mut known| {
            known.settings.tick_ms = 100;
            Ok(known)
        })
        .await
        .unwrap();
    set(&store, "sequencer", shipped("sequencer").unwrap().text).await;
    let mut tasks = Vec::new();
    for number in 0..2 {
        let mut driver = driver(&store, &world, number, false);
        // So that it knows the settings before the first pause.
        driver.tick().await;
        tasks.push(tokio::spawn(driver.run()));
    }
    let until = Instant::now() + Duration::from_secs(60);
    while world.lock().unwrap()[1].is_empty() && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    assert_eq!(world.lock().unwrap()[1].len(), 1);
}

#[tokio::test]
async fn a_policy_that_cannot_be_had_leaves_the_one_before_in_force() {
    let (store, world) = (new(), world(1));
    let mut driver = driver(&store, &world, 0, false);
    set(&store, "adaptable", shipped("adaptable").unwrap().text).await;
    assert!(driver.tick().await.is_some());
    // The text of the next version is lost.
    set(&store, "hash", shipped("hash").unwrap().text).await;
    let stored = Registry::new(store.clone()).unwrap().current().await.unwrap().policy.unwrap();
    let object = ObjectId::new(stored.object).unwrap();
    let remove = Transaction::new().change(nacre_object::WriteOp::Remove);
    store.apply(&object, remove).await.unwrap();
    for _ in 0..3 {
        assert!(driver.tick().await.is_some(), "the policy before decides on");
    }
    let lines = lines(&store).await;
    assert_eq!(lines.len(), 1, "once, not at every tick: {lines:?}");
    assert!(
        lines[0].contains("version 2") && lines[0].contains("\"adaptable\" of version 1 stays in force"),
        "{lines:?}"
    );
}

/// A store that does not say what is in force.
struct Silent(MemoryStore);

impl ObjectStore for Silent {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        if object.as_bytes() == b"nacre/map/balance" {
            return Reply::ready(Err(StoreError::new(ErrorKind::Unavailable, "no answer")));
        }
        self.0.apply(object, transaction)
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.0.list(after, limit)
    }
}

#[tokio::test]
async fn a_store_where_nobody_balances_is_not_written_to() {
    let silent: Arc<dyn ObjectStore> = Arc::new(Silent(MemoryStore::new()));
    for store in [new(), silent] {
        let mut driver = driver(&store, &world(1), 0, false);
        for _ in 0..2 {
            assert!(driver.tick().await.is_none());
        }
        let written = store.list(None, 10).await.unwrap();
        assert!(written.is_empty(), "{written:?}");
    }
}

#[tokio::test]
async fn a_policy_is_loaded_that_has_the_version_of_one_that_is_gone() {
    let (store, world) = (new(), world(1));
    let mut driver = driver(&store, &world, 0, false);
    set(&store, "adaptable", shipped("adaptable").unwrap().text).await;
    assert!(driver.tick().await.is_some());
    let map = ObjectId::new("nacre/map/balance").unwrap();
    let remove = Transaction::new().change(nacre_object::WriteOp::Remove);
    store.apply(&map, remove).await.unwrap();
    assert!(driver.tick().await.is_none());
    set(&store, "hash", shipped("hash").unwrap().text).await;
    assert!(driver.tick().await.is_some());
    assert_eq!(published(&*store).await.unwrap()[0].policy, Some(("hash".to_owned(), 1)));
}

#[tokio::test]
async fn a_policy_that_fails_is_in_the_cluster_log_and_nothing_else_happens() {
    let (store, world) = (new(), world(1));
    set(&store, "picky", "if #mds == 0 then error('alone') end return {}").await;
    let mut driver = driver(&store, &world, 0, false);
    for _ in 0..3 {
        driver.tick().await;
    }
    let lines = lines(&store).await;
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("alone") && lines[0].ends_with("nothing is balanced"), "{lines:?}");
}

#[tokio::test]
async fn a_move_that_fails_is_reported_and_the_resource_rests() {
    let (store, world) = (new(), world(2));
    set(&store, "sequencer", shipped("sequencer").unwrap().text).await;
    let mut drivers: Vec<Driver> = (0..2).map(|number| driver(&store, &world, number, true)).collect();
    for _ in 0..2 {
        for driver in &mut drivers {
            driver.tick().await;
        }
    }
    assert_eq!(world.lock().unwrap()[0].len(), 2);
    let lines = lines(&store).await;
    assert!(lines.iter().any(|line| line.contains("cannot move sequencer:seven to rank 1")), "{lines:?}");
    assert!(published(&*store).await.unwrap()[0].moves.is_empty());
}
