//! The worked examples, with several replicas or workers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nacre_object::testkit::MemoryStore;
use nacre_zlog::{Directory, Entry, Log, Shape, Slot};
use parking_lot::Mutex;

use super::{group, replica};

async fn store_with_log() -> Arc<MemoryStore> {
    let store = Arc::new(MemoryStore::new());
    Directory::new(store.clone()).unwrap().create("log", Shape { width: 3, unit: 4 }).await.unwrap();
    store
}

async fn open(store: &Arc<MemoryStore>) -> Log {
    Log::open(store.clone(), "log", Default::default()).await.unwrap()
}

#[tokio::test]
async fn replicas_of_a_map_agree_also_over_snapshots() {
    use replica::{Command, Replica};
    let store = store_with_log().await;
    let replica = async || Replica::open(store.clone(), open(&store).await).await.unwrap();
    // Four replicas count up the same keys, each by conditional changes.
    let mut tasks = Vec::new();
    for client in 0..4 {
        let mut replica = replica().await;
        tasks.push(tokio::spawn(async move {
            let mut created = 0;
            while created < 25 {
                let key = format!("key {}", created % 3);
                let expected = replica.get(&key).await.unwrap();
                let value = expected.as_ref().map_or(0, |value| value.parse::<u64>().unwrap()) + 1;
                let command = Command::SetIf { key, expected, value: value.to_string() };
                created += usize::from(replica.change(command).await.unwrap());
                if created == 10 + client {
                    replica.take_snapshot().await.unwrap();
                }
                tokio::task::yield_now().await;
            }
            replica
                .change(Command::Set { key: format!("client {client}"), value: "x".into() })
                .await
                .unwrap();
            assert!(replica.change(Command::Remove { key: format!("client {client}") }).await.unwrap());
            assert!(!replica.change(Command::Remove { key: format!("client {client}") }).await.unwrap());
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let mut late = replica().await;
    let wanted = BTreeMap::from([("key 0", 36), ("key 1", 32), ("key 2", 32)]);
    let found: BTreeMap<String, u64> =
        late.all().await.unwrap().iter().map(|(key, value)| (key.clone(), value.parse().unwrap())).collect();
    assert_eq!(found, wanted.into_iter().map(|(key, value)| (key.to_owned(), value)).collect());
    assert_eq!(open(&store).await.read(0).await, Ok(Slot::Trimmed), "what is in a snapshot was trimmed");
}

#[tokio::test]
async fn every_entry_is_handled_also_if_workers_die() {
    use group::Worker;
    const ENTRIES: u64 = 60;
    let store = store_with_log().await;
    let log = open(&store).await;
    for number in 0..ENTRIES {
        log.append(Entry::new(number.to_string())).await.unwrap();
    }
    let handled: Arc<Mutex<BTreeMap<u64, u32>>> = Arc::default();
    let mut tasks = Vec::new();
    for number in 0..5 {
        // The time is long: only entries of workers that have died go to others.
        let worker =
            Worker::join(store.clone(), open(&store).await, "group", Duration::from_secs(2)).unwrap();
        let handled = handled.clone();
        tasks.push(tokio::spawn(async move {
            let mut taken = 0;
            while (handled.lock().len() as u64) < ENTRIES {
                let Some(job) = worker.take().await.unwrap() else {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                };
                assert_eq!(job.entry.data, job.position.to_string());
                taken += 1;
                // Two of them die with an entry in hand.
                if number < 2 && taken == 4 {
                    return;
                }
                if worker.done(&job).await.unwrap() {
                    *handled.lock().entry(job.position).or_default() += 1;
                }
                tokio::task::yield_now().await;
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let handled = handled.lock().clone();
    assert_eq!(handled.len() as u64, ENTRIES);
    assert!(handled.values().all(|times| *times == 1), "{handled:?}");
    // A group goes on where it was, and another group begins anew.
    let worker = |name| Worker::join(store.clone(), log.clone(), name, Duration::from_secs(60)).unwrap();
    assert!(worker("group").take().await.unwrap().is_none());
    assert_eq!(worker("other").take().await.unwrap().unwrap().position, 0);
}
