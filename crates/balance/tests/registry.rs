//! The registry of policies: versions, earlier ones, settings, and what a rank fetches.

use std::sync::Arc;
use std::time::Duration;

use nacre_balance::{BalanceError, InForce, MAP, POLICY_ENTRY, Registry, shipped};
use nacre_map::{ClusterMap, Update};
use nacre_object::testkit::MemoryStore;
use nacre_object::{ErrorKind, ObjectId, ObjectStore, Transaction, WriteOp};

fn new() -> (Arc<dyn ObjectStore>, Registry) {
    let store: Arc<dyn ObjectStore> = Arc::new(MemoryStore::new());
    (store.clone(), Registry::new(store).unwrap())
}

fn text(name: &str) -> &'static str {
    shipped(name).unwrap().text
}

fn named(in_force: &InForce) -> Option<&str> {
    in_force.policy.as_ref().map(|stored| stored.name.as_str())
}

#[tokio::test]
async fn versions_grow_and_earlier_ones_come_back() {
    let (_, registry) = new();
    assert_eq!(registry.current().await.unwrap(), InForce::default());
    let first = registry.set("ada", "hash", text("hash")).await.unwrap();
    let second = registry.set("eve", "adaptable", text("adaptable")).await.unwrap();
    assert_eq!((first.version, second.version), (1, 2));
    assert_eq!(registry.text(second.policy.as_ref().unwrap()).await.unwrap(), text("adaptable"));
    let back = registry.rollback("ada", None).await.unwrap();
    assert_eq!((back.version, named(&back)), (3, Some("hash")));
    assert_eq!(back.policy, first.policy, "the same object, whose text is still there");
    let off = registry.off("ada").await.unwrap();
    assert_eq!((off.version, named(&off)), (4, None));
    let again = registry.rollback("ada", Some(2)).await.unwrap();
    assert_eq!((again.version, named(&again)), (5, Some("adaptable")));
    assert!(matches!(registry.rollback("ada", Some(99)).await, Err(BalanceError::Invalid(_))));
    let history = registry.history().await.unwrap();
    let shown: Vec<(u64, &str)> =
        history.iter().map(|past| (past.in_force.version, past.author.as_str())).collect();
    assert_eq!(shown, [(1, "ada"), (2, "eve"), (3, "ada"), (4, "ada"), (5, "ada")]);
}

#[tokio::test]
async fn a_policy_that_is_not_sound_changes_nothing() {
    let (store, registry) = new();
    registry.set("ada", "hash", text("hash")).await.unwrap();
    let before = store.list(None, 100).await.unwrap();
    for text in ["return 1 +", "while true do end return {}", "return { [7] = 1 }"] {
        assert!(matches!(registry.set("eve", "bad", text).await, Err(BalanceError::Policy(_))), "{text}");
    }
    assert_eq!(registry.current().await.unwrap().version, 1);
    assert_eq!(store.list(None, 100).await.unwrap(), before);
}

#[tokio::test]
async fn settings_are_kept_beside_the_policy_and_bounded() {
    let (_, registry) = new();
    registry
        .change("ada", |mut known| {
            known.settings.pins.insert("subtree:/home".parse().unwrap(), 2);
            Ok(known)
        })
        .await
        .unwrap();
    let set = registry.set("ada", "hash", text("hash")).await.unwrap();
    assert_eq!(set.settings.pins.len(), 1);
    assert_eq!(registry.off("ada").await.unwrap().settings.pins.len(), 1);
    let long = registry
        .change("ada", |mut known| {
            for number in 0..300 {
                let id = format!("subtree:/{}/{number}", "x".repeat(500)).parse().unwrap();
                known.settings.pins.insert(id, 1);
            }
            Ok(known)
        })
        .await;
    assert!(matches!(long, Err(BalanceError::Invalid(_))), "{long:?}");
    let short = registry.change("ada", |mut known| {
        known.settings.tick_ms = 0;
        Ok(known)
    });
    assert!(matches!(short.await, Err(BalanceError::Invalid(_))));
}

#[tokio::test]
async fn what_is_damaged_is_named() {
    let (store, registry) = new();
    let set = registry.set("ada", "hash", text("hash")).await.unwrap();
    let stored = set.policy.clone().unwrap();
    let second = Duration::from_secs(60);
    assert_eq!(registry.fetch(&set, &stored, second).await.unwrap().name(), "hash");
    let remove = Transaction::new().change(WriteOp::Remove);
    store.apply(&ObjectId::new(stored.object.clone()).unwrap(), remove).await.unwrap();
    let (why, is_worth_another) = registry.fetch(&set, &stored, second).await.unwrap_err();
    assert!(why.contains("missing") && is_worth_another, "{why}");
    for value in ["{", "{\"format\": 2, \"version\": 1, \"policy\": null}"] {
        let map = ClusterMap::new(store.clone(), MAP).unwrap();
        let update = Update::new("eve").set(POLICY_ENTRY.parse().unwrap(), value);
        map.proposer(Default::default()).propose(update).await.unwrap();
        assert_eq!(registry.current().await.unwrap_err().kind, ErrorKind::Corrupt);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_changes_at_the_same_time_none_is_lost() {
    let (store, registry) = new();
    let tasks: Vec<_> = (0..8)
        .map(|number| {
            let registry = Registry::new(store.clone()).unwrap();
            tokio::spawn(async move {
                let changed = registry.change("ada", |mut known| {
                    known.settings.pins.insert(format!("group:{number}").parse().unwrap(), number);
                    Ok(known)
                });
                changed.await.unwrap();
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(registry.current().await.unwrap().settings.pins.len(), 8);
}
