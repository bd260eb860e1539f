//! Drivers of several ranks on one store, with ranks that are tables in memory.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use nacre_balance::{
    Driver, Metrics, Migrate, Migration, Move, Phase, Published, Reflector, Registry, Resource, Sense,
    Strays, published, published_reflectors, shipped,
};
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

/// A reflector of the world: its number there is that of its address, not the one that it gets.
struct Member {
    at: usize,
    world: World,
}

impl Sense for Member {
    fn sense(&mut self, now: Duration) -> Option<(usize, Metrics, Vec<Resource>)> {
        Rank { number: self.at, world: self.world.clone() }.sense(now)
    }

    fn reflector(&mut self) -> Option<Reflector> {
        Some(Reflector { address: format!("192.0.2.{}:7400", self.at), ..Reflector::default() })
    }
}

/// Moves of groups, by the addresses that the numbers stand for.
struct GroupMoves {
    at: usize,
    world: World,
    addresses: Mutex<Vec<(usize, String)>>,
}

impl Migrate for GroupMoves {
    fn migrate(&self, wanted: &Move) -> BoxFuture<'static, Result<(), StoreError>> {
        let addresses = self.addresses.lock().unwrap();
        let (_, address) = addresses.iter().find(|(number, _)| *number == wanted.to).unwrap();
        let to: usize =
            address.strip_prefix("192.0.2.").unwrap().strip_suffix(":7400").unwrap().parse().unwrap();
        let moved = Move { from: self.at, to, ..wanted.clone() };
        Moves { world: self.world.clone(), fails: false }.migrate(&moved)
    }

    fn learn(&self, others: &[Published]) {
        let seats = others.iter().map(|one| (one.rank, one.reflector.as_ref().unwrap().address.clone()));
        *self.addresses.lock().unwrap() = seats.collect();
    }
}

fn reflector(store: &Arc<dyn ObjectStore>, world: &World, at: usize) -> Driver {
    let moves = GroupMoves { at, world: world.clone(), addresses: Mutex::default() };
    let sense = Box::new(Member { at, world: world.clone() });
    Driver::new(store.clone(), &format!("reflector{at}"), sense, Arc::new(moves)).unwrap()
}

fn group(name: &str, load: f64) -> Resource {
    Resource { id: format!("group:{name}").parse().unwrap(), load }
}

#[tokio::test]
async fn reflectors_are_a_set_of_their_own_and_one_that_is_gone_stops_nobody() {
    let (store, world) = (new(), world(1));
    set(&store, "adaptable", shipped("adaptable").unwrap().text).await;
    let groups: Vec<Resource> = ["a", "b", "c", "d", "e", "f"].map(|name| group(name, 10.0)).to_vec();
    let busy: World = Arc::new(Mutex::new(vec![Vec::new(), Vec::new(), groups]));
    let mut rank = driver(&store, &world, 0, false);
    let mut drivers: Vec<Driver> = (0..3).map(|at| reflector(&store, &busy, at)).collect();
    for _ in 0..3 {
        rank.tick().await;
        for driver in &mut drivers {
            driver.tick().await;
        }
    }
    let counts: Vec<usize> = busy.lock().unwrap().iter().map(Vec::len).collect();
    assert_eq!(counts, [2, 2, 2]);
    assert_eq!(published(&*store).await.unwrap().len(), 1, "ranks do not see reflectors");
    let known = published_reflectors(&*store).await.unwrap();
    assert_eq!(known.iter().map(|one| one.rank).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(known[2].moves.len(), 4);

    // The one in the middle goes, and what it published becomes old.
    drop(drivers.remove(1));
    let mut old = serde_json::to_value(&known[1]).unwrap();
    old["at_ms"] = 1000.into();
    let write = nacre_object::WriteOp::SetKey {
        key: nacre_object::Key::new("00000001").unwrap(),
        value: old.to_string().into(),
    };
    let object = ObjectId::new(nacre_balance::REFLECTORS_OBJECT).unwrap();
    store.apply(&object, Transaction::new().change(write)).await.unwrap();
    {
        // In front of the others, so that none of those goes back to where it was.
        let mut busy = busy.lock().unwrap();
        drop(busy[0].splice(0..0, ["g", "h", "i", "j"].map(|name| group(name, 10.0))));
    }
    for _ in 0..2 {
        for driver in &mut drivers {
            driver.tick().await;
        }
    }
    let counts: Vec<usize> = busy.lock().unwrap().iter().map(Vec::len).collect();
    assert_eq!(counts, [4, 2, 4], "nothing goes to the one that is gone");
    let lines = lines(&store).await;
    assert!(lines.is_empty(), "{lines:?}");
}

#[tokio::test]
async fn a_move_that_fails_again_and_again_is_reported_once() {
    let (store, world) = (new(), world(2));
    let registry = Registry::new(store.clone()).unwrap();
    let pin = |mut known: nacre_balance::InForce| {
        known.settings.pins.insert("sequencer:seven".parse().unwrap(), 1);
        // So that it is tried again soon.
        known.settings.tick_ms = 100;
        Ok(known)
    };
    registry.change("ada", pin).await.unwrap();
    set(&store, "idle", "return {}").await;
    let mut drivers: Vec<Driver> = (0..2).map(|number| driver(&store, &world, number, true)).collect();
    let until = Instant::now() + Duration::from_secs(60);
    let mut tries = 0;
    while tries < 3 && Instant::now() < until {
        for driver in &mut drivers {
            let decision = driver.tick().await;
            tries += decision.map_or(0, |decision| decision.moves.len());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(tries >= 3, "it is tried again");
    let lines = lines(&store).await;
    let failures = lines.iter().filter(|line| line.contains("cannot move sequencer:seven to rank 1"));
    assert_eq!(failures.count(), 1, "{lines:?}");
}

/// Moves that wait until they are let go.
struct Slow {
    gate: Arc<tokio::sync::Notify>,
    moves: Moves,
}

impl Migrate for Slow {
    fn migrate(&self, wanted: &Move) -> BoxFuture<'static, Result<(), StoreError>> {
        // What is moved is looked for when it is polled.
        let (gate, moved) = (self.gate.clone(), self.moves.migrate(wanted));
        async move {
            gate.notified().await;
            moved.await
        }
        .boxed()
    }
}

#[tokio::test]
async fn a_move_longer_than_a_tick_is_shown_while_it_lasts_and_noted_at_its_end() {
    let (store, world) = (new(), world(2));
    let registry = Registry::new(store.clone()).unwrap();
    let shorten = |mut known: nacre_balance::InForce| {
        known.settings.tick_ms = 100;
        Ok(known)
    };
    registry.change("ada", shorten).await.unwrap();
    set(&store, "sequencer", shipped("sequencer").unwrap().text).await;
    let gate = Arc::new(tokio::sync::Notify::new());
    let rank = Rank { number: 0, world: world.clone() };
    let moves = Slow { gate: gate.clone(), moves: Moves { world: world.clone(), fails: false } };
    let mut slow = Driver::new(store.clone(), "slow", Box::new(rank), Arc::new(moves)).unwrap();
    let mut other = driver(&store, &world, 1, false);
    let until = Instant::now() + Duration::from_secs(60);
    let mut shown: Vec<Migration> = Vec::new();
    while shown.is_empty() && Instant::now() < until {
        other.tick().await;
        slow.tick().await;
        shown = published(&*store).await.unwrap()[0].migrations.clone();
    }
    let seven = &shown[0];
    assert_eq!((&*seven.id.to_string(), seven.phase), ("sequencer:seven", Phase::Moving));
    assert_eq!((&*seven.from, &*seven.to), ("rank 0", "rank 1"));
    gate.notify_one();
    while published(&*store).await.unwrap()[0].moves.is_empty() && Instant::now() < until {
        other.tick().await;
        slow.tick().await;
    }
    let own = &published(&*store).await.unwrap()[0];
    assert_eq!(&*own.moves[0].made.id.name, "seven");
    assert!(own.migrations.iter().all(|migration| migration.id != own.moves[0].made.id), "{own:?}");
}

/// A rank some of whose resources belong to others, or are on their way.
struct Placed {
    rank: Rank,
    /// `None` if that cannot be read.
    strays: Option<Strays>,
    migrations: Arc<Mutex<Vec<Migration>>>,
}

impl Sense for Placed {
    fn sense(&mut self, now: Duration) -> Option<(usize, Metrics, Vec<Resource>)> {
        self.rank.sense(now)
    }

    fn arrange<'a>(
        &'a mut self,
        _metrics: &'a mut Metrics,
        _resources: &'a mut Vec<Resource>,
    ) -> BoxFuture<'a, Result<Strays, StoreError>> {
        let unread = || StoreError::new(ErrorKind::Corrupt, "there are no pins");
        futures::future::ready(self.strays.clone().ok_or_else(unread)).boxed()
    }

    fn migrations(&mut self) -> Vec<Migration> {
        self.migrations.lock().unwrap().clone()
    }
}

fn placed(
    store: &Arc<dyn ObjectStore>,
    world: &World,
    number: usize,
    strays: Option<Strays>,
) -> (Driver, Arc<Mutex<Vec<Migration>>>) {
    let (rank, migrations) = (Rank { number, world: world.clone() }, Arc::<Mutex<Vec<Migration>>>::default());
    let sense = Placed { rank, strays, migrations: migrations.clone() };
    let moves = Moves { world: world.clone(), fails: false };
    let name = format!("daemon{number}");
    (Driver::new(store.clone(), &name, Box::new(sense), Arc::new(moves)).unwrap(), migrations)
}

fn subtree(path: &str, load: f64) -> Resource {
    Resource { id: format!("subtree:{path}").parse().unwrap(), load }
}

#[tokio::test]
async fn what_belongs_to_another_rank_is_published_and_moved_there() {
    let (store, world) = (new(), Arc::new(Mutex::new(vec![vec![subtree("/jobs", 3.0)], Vec::new()])));
    set(&store, "idle", "return {}").await;
    let strays = Strays::from([("subtree:/jobs".parse().unwrap(), 1)]);
    let (mut rank, _) = placed(&store, &world, 0, Some(strays.clone()));
    let mut other = driver(&store, &world, 1, false);
    rank.tick().await;
    assert_eq!(published(&*store).await.unwrap()[0].strays, strays);
    assert_eq!(world.lock().unwrap()[0].len(), 1, "the other one is not known yet");
    other.tick().await;
    rank.tick().await;
    assert_eq!(world.lock().unwrap()[1], [subtree("/jobs", 3.0)]);
    let own = &published(&*store).await.unwrap()[0];
    assert!(own.moves[0].made.is_pin && own.moves.len() == 1, "{own:?}");
}

#[tokio::test]
async fn what_is_left_of_a_subtree_does_not_go_back_and_forth() {
    let (store, world) = (new(), Arc::new(Mutex::new(vec![vec![subtree("/jobs", 3.0)], Vec::new()])));
    set(&store, "back", "if whoami == 1 then return { [0] = 100 } end return {}").await;
    let strays = Strays::from([("subtree:/jobs".parse().unwrap(), 1)]);
    let (mut rank, _) = placed(&store, &world, 0, Some(strays));
    let mut other = driver(&store, &world, 1, false);
    rank.tick().await;
    other.tick().await;
    rank.tick().await;
    assert_eq!(world.lock().unwrap()[1].len(), 1);
    other.tick().await;
    assert_eq!(world.lock().unwrap()[0].len(), 1, "the policy has moved all of it");
    let lines = lines(&store).await;
    assert!(lines.iter().all(|line| !line.contains("back and forth")), "{lines:?}");
}

#[tokio::test]
async fn a_subtree_is_moved_on_once_all_of_it_is_there() {
    let here = vec![subtree("/jobs", 1.0), subtree("/home", 1.0)];
    let (store, world) = (new(), Arc::new(Mutex::new(vec![Vec::new(), here])));
    set(&store, "back", "if whoami == 1 then return { [0] = 100 } end return {}").await;
    let (mut rank, migrations) = placed(&store, &world, 0, Some(Strays::new()));
    let mut other = driver(&store, &world, 1, false);
    let (from, to) = ("rank 0".to_owned(), "rank 1".to_owned());
    let id = subtree("/jobs", 1.0).id;
    let coming = Migration { id, from, to, phase: Phase::Moving, since_ms: 1, members: Some(7) };
    *migrations.lock().unwrap() = vec![coming];
    rank.tick().await;
    other.tick().await;
    assert_eq!(world.lock().unwrap()[1], [subtree("/jobs", 1.0)], "the other one goes");
    migrations.lock().unwrap().clear();
    rank.tick().await;
    other.tick().await;
    assert!(world.lock().unwrap()[1].is_empty());
}

#[tokio::test]
async fn nothing_is_moved_while_it_is_not_known_what_belongs_together() {
    let (store, world) = (new(), world(2));
    set(&store, "sequencer", shipped("sequencer").unwrap().text).await;
    let (mut rank, _) = placed(&store, &world, 0, None);
    let mut other = driver(&store, &world, 1, false);
    for _ in 0..3 {
        other.tick().await;
        assert!(rank.tick().await.is_none());
    }
    assert_eq!(world.lock().unwrap()[0].len(), 2);
    let lines = lines(&store).await;
    assert!(lines.iter().any(|line| line.contains("placed directories cannot be read")), "{lines:?}");
}
