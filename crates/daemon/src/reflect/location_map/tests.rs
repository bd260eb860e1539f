use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;

use futures::future::{join, join_all};
use nacre::Store;
use nacre_object::Reply;
use nacre_reflect::wire::Reflectors;

use super::*;

/// A store that takes its time, of different length for each operation, and has no more writes at some time.
struct Shaky {
    inner: Store,
    writes_left: AtomicU64,
    random: AtomicU64,
}

impl Shaky {
    fn new(inner: &Store, writes_left: u64, seed: u64) -> Arc<Self> {
        let (writes_left, random) = (AtomicU64::new(writes_left), AtomicU64::new(seed | 1));
        Arc::new(Shaky { inner: inner.clone(), writes_left, random })
    }
}

impl ObjectStore for Shaky {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        if !transaction.writes.is_empty() {
            let Some(left) = self.writes_left.load(Ordering::Relaxed).checked_sub(1) else {
                return Reply::ready(Err(StoreError::new(ErrorKind::ReadOnly, "no more writes")));
            };
            self.writes_left.store(left, Ordering::Relaxed);
        }
        let mut next = self.random.load(Ordering::Relaxed);
        next ^= next << 13;
        next ^= next >> 7;
        next ^= next << 17;
        self.random.store(next, Ordering::Relaxed);
        let (inner, object) = (self.inner.clone(), object.clone());
        Reply::pending(async move {
            for _ in 0..next % 5 {
                tokio::task::yield_now().await;
            }
            inner.apply(&object, transaction).await
        })
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        ObjectStore::list(&self.inner, after, limit)
    }
}

fn in_memory() -> Store {
    nacre::open("mem:").unwrap()
}

fn map_of(store: &Store) -> LocationMap {
    LocationMap::new(Arc::new(store.clone()), "test").unwrap()
}

async fn all_of(store: &Store) -> Snapshot {
    map_of(store).read(&Snapshot::default()).await.unwrap().unwrap()
}

fn entry(port: u16, group: u32) -> LocationEntry {
    let at = |host| SocketAddr::from(([198, 51, 100, host], port));
    LocationEntry { reflectors: Reflectors::new(&[at(1), at(2)]).unwrap(), group }
}

fn key(name: &str) -> Key {
    name.parse().unwrap()
}

async fn write_old(store: &Store, transaction: Transaction) -> Outcome {
    store.apply(&ObjectId::try_from(OLD_OBJECT).unwrap(), transaction).await.unwrap()
}

/// Changes a place as older programs did.
async fn change_old(
    store: &Store,
    name: &str,
    from: Option<LocationEntry>,
    to: Option<LocationEntry>,
) -> Outcome {
    let check = from.map_or(Check::Absent, |from| Check::Equal(from.to_string().into()));
    let write = match to {
        Some(to) => WriteOp::SetKey { key: key(name), value: to.to_string().into() },
        None => WriteOp::RemoveKey { key: key(name) },
    };
    let guard = Guard::Key { key: key(name), check };
    write_old(store, Transaction::new().guard(guard).change(write)).await
}

/// Makes a store as older programs left it.
async fn old_store(locations: u32) -> Store {
    let store = in_memory();
    for number in 0..locations {
        change_old(&store, &format!("cell {number}"), None, Some(entry(7400, number))).await;
    }
    store
}

/// Returns the keys of the old object, but for those of which only the seal is left.
async fn old_keys(store: &Store) -> Vec<Key> {
    let old = map_of(store).old().await.unwrap();
    old.places.into_iter().map(|(key, _)| key).chain(old.marked.then(|| key(MARK))).collect()
}

#[tokio::test]
async fn places_are_changed_on_condition_in_epochs_of_the_map_and_read_whole() {
    let store = in_memory();
    let map = map_of(&store);
    let empty = map.read(&Snapshot::default()).await.unwrap().unwrap();
    assert!(empty.entries.is_empty() && empty.epoch == 0);
    assert_eq!(map.read(&empty).await.unwrap(), None, "nothing has changed");
    for number in 0..20 {
        let done = map.change(&format!("cell {number}"), None, Some(entry(7400, number))).await.unwrap();
        assert_eq!(done, Changed::Done { epoch: u64::from(number) + 1 });
    }
    let snapshot = map.read(&empty).await.unwrap().unwrap();
    assert_eq!((snapshot.entries.len(), snapshot.epoch), (20, 20));
    assert_eq!(snapshot.entries["cell 17"], entry(7400, 17));
    assert_eq!(map.read(&snapshot).await.unwrap(), None, "nothing has changed");

    // One of two who move the same location loses, and is told where it is.
    let (before, to) = (entry(7400, 7), entry(7500, 7));
    let change = |from, to| map.change("cell 7", from, to);
    assert_eq!(change(Some(before), Some(to)).await.unwrap(), Changed::Done { epoch: 21 });
    assert_eq!(change(Some(before), Some(entry(7600, 7))).await.unwrap(), Changed::Refused(Some(to)));
    assert_eq!(change(None, Some(before)).await.unwrap(), Changed::Refused(Some(to)));
    assert_eq!(change(Some(to), None).await.unwrap(), Changed::Done { epoch: 22 });
    assert_eq!(change(Some(to), None).await.unwrap(), Changed::Refused(None));
    let snapshot = map.read(&snapshot).await.unwrap().unwrap();
    assert_eq!(snapshot.entries.len(), 19);
    for wrong in ["", &"x".repeat(65)] {
        assert_eq!(map.change(wrong, None, Some(to)).await.unwrap_err().kind, ErrorKind::Invalid);
    }

    // It is a map like any other, and its history says who moved what.
    let plain = store.map(LOCATIONS_MAP).unwrap();
    let found = plain.get(&key("cell 3")).await.unwrap().0.unwrap();
    assert_eq!(found.value, entry(7400, 3).to_string());
    assert_eq!(plain.history(21, 10).await.unwrap()[0].updates[0].author, "test");
    let wrong = Update::new("ada").set(key("cell 3"), "nowhere");
    plain.proposer(Default::default()).propose(wrong).await.unwrap();
    let error = map.read(&snapshot).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt);
    assert!(error.message.contains("cell 3") && error.message.contains("nowhere"), "{error}");
}

#[tokio::test]
async fn a_reader_that_was_away_for_longer_than_the_history_reads_all_of_the_map() {
    let store = in_memory();
    let (reader, writer) = (map_of(&store), map_of(&store));
    writer.change("here", None, Some(entry(7400, 1))).await.unwrap();
    let known = reader.read(&Snapshot::default()).await.unwrap().unwrap();
    let plain = store.map(LOCATIONS_MAP).unwrap();
    let short = |limits: Limits| Limits { history: 1, ..limits };
    plain.proposer(Default::default()).change_limits("test", short).await.unwrap();
    for number in 0..10 {
        writer.change(&format!("cell {number}"), None, Some(entry(7400, number))).await.unwrap();
    }
    let known = reader.read(&known).await.unwrap().unwrap();
    assert_eq!((known.entries.len(), known.epoch), (11, 12));

    // The same where the map is removed, and where another one of its name has come to the same epoch.
    store.apply(plain.object(), Transaction::new().change(WriteOp::Remove)).await.unwrap();
    let none = reader.read(&known).await.unwrap().unwrap();
    assert_eq!((none.entries.len(), none.epoch), (0, 0));
    for number in 0..12 {
        let made = map_of(&store).change(&format!("new {number}"), None, Some(entry(7400, number))).await;
        made.unwrap();
    }
    for known in [none, known] {
        let now = reader.read(&known).await.unwrap().unwrap();
        assert_eq!((now.entries.len(), now.epoch), (12, 12));
        assert!(now.entries.keys().all(|name| name.starts_with("new ")));
    }
}

#[tokio::test]
async fn an_older_store_is_read_as_it_is_and_moved_by_the_first_change() {
    // More of them than one transaction moves.
    let store = old_store(CHUNK as u32 + 200).await;
    let before = all_of(&store).await;
    assert_eq!((before.entries.len(), before.epoch), (CHUNK + 200, 0));
    // Older programs go on meanwhile, and are followed.
    let reader = map_of(&store);
    let known = reader.read(&Snapshot::default()).await.unwrap().unwrap();
    change_old(&store, "cell 5", Some(entry(7400, 5)), Some(entry(7450, 5))).await;
    let known = reader.read(&known).await.unwrap().unwrap();
    assert_eq!(known.entries["cell 5"], entry(7450, 5));

    let done = map_of(&store).change("cell 9", Some(entry(7400, 9)), Some(entry(7500, 9))).await.unwrap();
    let mut wanted = known.entries.clone();
    wanted.insert("cell 9".to_owned(), entry(7500, 9));
    let now = reader.read(&known).await.unwrap().unwrap();
    assert_eq!(now.entries, wanted);
    assert_eq!(done, Changed::Done { epoch: now.epoch });
    assert_eq!(store.map(LOCATIONS_MAP).unwrap().state().await.unwrap().entries().len(), CHUNK + 200);
    // What is left in the old object is what older programs cannot read as a location.
    assert_eq!(old_keys(&store).await, [key(MARK)]);
    assert!(name_of(MARK.as_bytes()).is_err());
    assert_eq!(reader.read(&now).await.unwrap(), None);
}

#[tokio::test]
async fn a_store_without_locations_is_closed_to_older_programs_by_the_first_one() {
    let store = in_memory();
    map_of(&store).change("here", None, Some(entry(7400, 1))).await.unwrap();
    assert_eq!(old_keys(&store).await, [key(MARK)]);
}

#[tokio::test]
async fn a_move_that_ends_anywhere_is_continued_and_loses_no_place() {
    let mut failures = 0;
    for writes in 0.. {
        let store = old_store(30).await;
        let before = all_of(&store).await.entries;
        let shaky = Shaky::new(&store, writes, 1);
        let map = LocationMap::new(shaky, "test").unwrap();
        let moved = map.change("cell 4", Some(entry(7400, 4)), Some(entry(7500, 4))).await;
        let mut wanted = before.clone();
        wanted.insert("cell 4".to_owned(), entry(7500, 4));
        if moved.is_ok() {
            assert_eq!(all_of(&store).await.entries, wanted);
            break;
        }
        failures += 1;
        assert_eq!(all_of(&store).await.entries, before, "after {writes} writes");
        // A change of an older program that was under way fails once its place is sealed, and otherwise counts.
        let late = change_old(&store, "cell 6", Some(entry(7400, 6)), Some(entry(7600, 6))).await;
        if matches!(late, Outcome::Done(_)) {
            wanted.insert("cell 6".to_owned(), entry(7600, 6));
        }
        map_of(&store).change("cell 4", Some(entry(7400, 4)), Some(entry(7500, 4))).await.unwrap();
        assert_eq!(all_of(&store).await.entries, wanted, "after {writes} writes");
        assert_eq!(old_keys(&store).await, [key(MARK)]);
    }
    // The mark, the seals, the addition, the emptying, and the change itself.
    assert_eq!(failures, 5);
}

#[tokio::test]
async fn a_location_that_an_older_program_was_about_to_make_is_moved_later() {
    let store = old_store(3).await;
    map_of(&store).change("cell 1", Some(entry(7400, 1)), Some(entry(7500, 1))).await.unwrap();
    // Its condition holds: the old object has no such key.
    assert!(matches!(change_old(&store, "late", None, Some(entry(7400, 8))).await, Outcome::Done(_)));
    let all = all_of(&store).await.entries;
    assert_eq!((all["late"], all["cell 1"]), (entry(7400, 8), entry(7500, 1)));
    assert_eq!(map_of(&store).place("late").await.unwrap(), Some(entry(7400, 8)));
    assert_eq!(old_keys(&store).await, [key(MARK)]);
    assert_eq!(all_of(&store).await.entries, all);
}

#[tokio::test]
async fn an_older_program_that_has_read_a_place_before_all_were_moved_cannot_change_it() {
    let store = old_store(3).await;
    map_of(&store).change("cell 0", Some(entry(7400, 0)), Some(entry(7500, 0))).await.unwrap();
    // It learns what is there instead. Were there nothing, it would make the location anew: what it did then would be lost, and
    // the one who asked for it told that it is done.
    let wanted = Some(entry(7600, 1));
    for from in [Some(entry(7400, 1)), None] {
        let Outcome::Refused(refusal) = change_old(&store, "cell 1", from, wanted).await else {
            panic!("from {from:?}: the change of an older program was made");
        };
        let Found::Value(Some(found)) = refusal.found else { panic!("from {from:?}: there is nothing") };
        // For that program, this is no place, which ends its attempts.
        assert!(std::str::from_utf8(&found).unwrap().parse::<LocationEntry>().is_err());
    }
    let all = all_of(&store).await;
    assert_eq!((all.entries["cell 1"], all.entries.len()), (entry(7400, 1), 3));
    assert_eq!(map_of(&store).place("cell 1").await.unwrap(), Some(entry(7400, 1)));
    assert_eq!(old_keys(&store).await, [key(MARK)]);
}

#[tokio::test]
async fn a_place_of_an_older_program_that_cannot_be_read_stops_everything_before_it_begins() {
    let store = old_store(2).await;
    let junk = WriteOp::SetKey { key: key("here"), value: "nowhere".into() };
    write_old(&store, Transaction::new().change(junk)).await;
    let map = map_of(&store);
    let errors = [
        map.read(&Snapshot::default()).await.map(drop).unwrap_err(),
        map.change("cell 1", Some(entry(7400, 1)), None).await.map(drop).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind, ErrorKind::Corrupt);
        assert!(error.message.contains("here") && error.message.contains("nowhere"), "{error}");
    }
    assert!(!map.old().await.unwrap().marked);
}

#[tokio::test]
async fn programs_that_move_an_older_store_at_once_undo_nothing_of_each_other() {
    for seed in 1..=20 {
        let store = old_store(40).await;
        let movers = (0..4_u32).map(|mover| {
            let map = LocationMap::new(Shaky::new(&store, u64::MAX, seed * 31 + u64::from(mover)), "test");
            async move {
                let map = map.unwrap();
                let name = |number: u32| format!("cell {number}");
                let place = |number: u32| Some(entry(7400, number));
                let (moves, removes) = (mover, mover + 10);
                map.change(&name(moves), place(moves), Some(entry(7500, moves))).await.unwrap();
                map.change(&name(removes), place(removes), None).await.unwrap();
                map.change(&format!("new {mover}"), None, place(mover)).await.unwrap();
            }
        });
        // A reader finds every location that is not removed, whatever has come of the move.
        let shaky = Shaky::new(&store, 0, seed);
        let reader = async {
            let map = LocationMap::new(shaky, "test").unwrap();
            for _ in 0..30 {
                let all = match map.read(&Snapshot::default()).await {
                    Ok(all) => all.unwrap().entries,
                    Err(error) if error.kind == ErrorKind::Busy => continue,
                    Err(error) => panic!("seed {seed}: {error}"),
                };
                for number in (0..10).chain(14..40) {
                    assert!(
                        all.contains_key(&format!("cell {number}")),
                        "seed {seed}: cell {number} in {all:?}"
                    );
                }
            }
        };
        join(join_all(movers), reader).await;
        let all = all_of(&store).await.entries;
        for number in 0..40 {
            let wanted = match number {
                0..4 => Some(entry(7500, number)),
                10..14 => None,
                _ => Some(entry(7400, number)),
            };
            assert_eq!(all.get(&format!("cell {number}")).copied(), wanted, "seed {seed}: cell {number}");
        }
        assert_eq!(all.len(), 40, "seed {seed}");
        assert_eq!(old_keys(&store).await, [key(MARK)], "seed {seed}");
    }
}

#[tokio::test]
async fn the_secret_of_relays_is_made_once() {
    let store = in_memory();
    let secret = map_of(&store).relay_secret().await.unwrap();
    assert_eq!(map_of(&store).relay_secret().await.unwrap(), secret);
    assert_ne!(map_of(&in_memory()).relay_secret().await.unwrap(), secret);
}

#[tokio::test]
async fn places_that_several_choose_at_once_among_all_are_different_ones() {
    const COUNT: u32 = 6;
    let store = in_memory();
    for number in 0..COUNT {
        let place = entry(7400, number);
        map_of(&store).change(&format!("cell {number}"), None, Some(place)).await.unwrap();
    }
    let free = |all: &Snapshot| -> Result<LocationEntry, String> {
        let is_free = |id: &u32| all.entries.values().all(|entry| entry.group != *id);
        Ok(entry(7500, (100..200).find(is_free).ok_or("all are taken")?))
    };
    let maps: Vec<LocationMap> = (0..COUNT).map(|_| map_of(&store)).collect();
    let moves = maps.iter().zip(0..COUNT).map(|(map, number)| async move {
        let (from, to) = map.change_among_all(&format!("cell {number}"), free).await.unwrap();
        assert_eq!(from, entry(7400, number));
        to.group
    });
    let mut ids: Vec<u32> = join_all(moves).await;
    ids.sort_unstable();
    assert_eq!(ids, (100..100 + COUNT).collect::<Vec<_>>());
    let refuse = |_: &Snapshot| Err("it is not to move".to_owned());
    let refused = maps[0].change_among_all("cell 0", refuse).await.unwrap_err();
    assert_eq!((refused.kind, &*refused.message), (ErrorKind::Invalid, "it is not to move"));
    let gone = maps[0].change_among_all("nowhere", free).await.unwrap_err();
    assert!(gone.message.contains("no such location"), "{gone}");
}
