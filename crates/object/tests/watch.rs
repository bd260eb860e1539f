//! Watch and notify on the reference store, and proof that the suite notices what a store must not do.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use nacre_object::testkit::conformance::{self, Effort};
use nacre_object::testkit::{MemoryStore, block_on};
use nacre_object::watch::{Allowance, Cause, Event, Feed, Gap, Hub, Notified, Watch, WatchOptions};
use nacre_object::{ErrorKind, ObjectId, ObjectStore, Outcome, Reply, StoreError, Transaction};

#[test]
fn the_reference_store_passes() {
    let store = MemoryStore::new();
    conformance::run_watching(&[&store], "watch", Effort::default());
}

/// A store whose watchers are told something else.
struct Spoiled {
    store: MemoryStore,
    spoil: fn(&Feed, Event, u64),
}

impl ObjectStore for Spoiled {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        self.store.apply(object, transaction)
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.store.list(after, limit)
    }

    fn watch(&self, object: &ObjectId, options: WatchOptions) -> Reply<Watch> {
        let begun = block_on(self.store.watch(object, options.clone())).map(|mut inner| {
            let (feed, watch) = Watch::new(inner.id(), inner.version(), &options, ());
            let spoil = self.spoil;
            std::thread::spawn(move || {
                let mut count = 0;
                while let Some(Ok(event)) = block_on(inner.next()) {
                    count += 1;
                    spoil(&feed, event, count);
                    if feed.is_closed() {
                        break;
                    }
                }
            });
            watch
        });
        Reply::ready(begun)
    }

    fn notify(&self, object: &ObjectId, payload: Bytes, timeout: Duration) -> Reply<Notified> {
        self.store.notify(object, payload, timeout)
    }
}

fn pass(feed: &Feed, event: Event) {
    match event {
        Event::Changed { version } => feed.changed(version),
        Event::Notified(notification) => {
            feed.notified(notification);
        }
        Event::Gap(gap) => feed.gap(gap),
    }
}

/// Returns the names of the cases that a spoiled store fails.
fn failed(spoil: fn(&Feed, Event, u64)) -> Vec<&'static str> {
    let store = Spoiled { store: MemoryStore::new(), spoil };
    let patience = Duration::from_secs(1);
    let effort = Effort { threads: 2, increments: 20, patience, ..Effort::default() };
    let failures = conformance::watching_failures(&[&store], "spoiled", effort);
    failures.into_iter().map(|(name, _)| name).collect()
}

#[test]
fn a_change_that_is_told_with_a_wrong_version_is_noticed() {
    let names = failed(|feed, event, _| match event {
        Event::Changed { version } => feed.changed(version + 1),
        event => pass(feed, event),
    });
    assert!(names.contains(&"watching/every change is told with its version"), "{names:?}");
}

#[test]
fn a_change_that_is_swallowed_is_noticed() {
    // The next one is told, so the watcher goes on, and finds that one is missing.
    let names = failed(|feed, event, count| {
        if count % 7 != 3 || !matches!(event, Event::Changed { .. }) {
            pass(feed, event);
        }
    });
    assert!(names.contains(&"watching/writers and watchers at once"), "{names:?}");
}

#[test]
fn a_gap_that_counts_too_little_is_noticed() {
    let names = failed(|feed, event, _| match event {
        Event::Gap(gap) => feed.gap(Gap { changes: gap.changes.map(|changes| changes - 1), ..gap }),
        event => pass(feed, event),
    });
    assert!(names.iter().any(|name| name.contains("slow") || name.contains("at once")), "{names:?}");
}

fn object() -> ObjectId {
    ObjectId::try_from("object").unwrap()
}

fn events(watch: &mut Watch) -> Vec<String> {
    let mut events = Vec::new();
    while let Poll::Ready(Some(Ok(event))) = watch.try_next() {
        events.push(match event {
            Event::Changed { version } => format!("changed {version}"),
            Event::Notified(notification) => format!("notified {}", notification.payload().len()),
            Event::Gap(Gap { version, changes, notifications, cause }) => {
                let number = |number: Option<u64>| number.map_or("?".to_owned(), |number| number.to_string());
                format!("gap {version} {} {} {cause}", number(changes), number(notifications))
            }
        });
    }
    events
}

#[test]
fn what_does_not_fit_becomes_one_gap_in_its_place() {
    let options = WatchOptions { events_max: 2, ..WatchOptions::default() };
    let (feed, mut watch) = Watch::new(1, 5, &options, ());
    (6..=10).for_each(|version| feed.changed(version));
    assert_eq!(events(&mut watch), ["changed 6", "changed 7", "gap 10 3 0 slow"]);
    feed.changed(11);
    feed.gap(Gap::unknown(20, Cause::Broken));
    (21..=23).for_each(|version| feed.changed(version));
    assert_eq!(events(&mut watch), ["changed 11", "gap 23 ? ? broken"]);
    assert_eq!(feed.version(), 23);
    feed.end(Some(StoreError::new(ErrorKind::Closed, "over")));
    assert!(matches!(watch.try_next(), Poll::Ready(Some(Err(error))) if error.message == "over"));
    assert!(matches!(watch.try_next(), Poll::Ready(None)));
}

#[test]
fn notifications_are_bounded_in_bytes_for_one_watch_and_for_several_together() {
    let store = MemoryStore::new();
    let all = Allowance::new(3000, None);
    let begin = |bytes_max| {
        let options = WatchOptions { bytes_max, allowance: Some(all.clone()), ..WatchOptions::default() };
        block_on(store.watch(&object(), options)).unwrap()
    };
    let (mut narrow, mut wide) = (begin(1500), begin(100_000));
    // Watchers are told in the order in which they came: once the last one has a notification, so have all that it fits.
    let mut last = block_on(store.watch(&object(), WatchOptions::default())).unwrap();
    let mut notify = || {
        let payload = Bytes::from(vec![0; 1000]);
        let reply = store.notify(&object(), payload, Duration::from_secs(60));
        assert!(matches!(block_on(last.next()), Some(Ok(Event::Notified(_)))));
        drop(reply);
    };
    (0..3).for_each(|_| notify());
    assert_eq!(events(&mut narrow), ["notified 1000", "gap 0 0 2 slow"]);
    let lost = events(&mut wide);
    assert!(lost.len() == 2 && lost[0] == "notified 1000" && lost[1].starts_with("gap 0 0 "), "{lost:?}");
    // What was taken makes room, and so does a watch that ends.
    notify();
    assert_eq!(events(&mut wide), ["notified 1000"]);
    drop(narrow);
    notify();
    notify();
    assert_eq!(events(&mut wide), ["notified 1000", "notified 1000"]);
}

#[test]
fn a_change_is_told_when_its_gate_opens_and_later_ones_wait_for_it() {
    let hub = Hub::default();
    let mut watch = hub.watch(&object(), 1, 0, &WatchOptions::default()).unwrap();
    let (open, barrier) = barrier();
    hub.changed(&object(), 1, barrier);
    hub.changed(&object(), 2, Reply::ready(Ok(())));
    // Another object's events do not wait; once they are there, the first would be too if its barrier were not closed.
    let other = ObjectId::try_from("other").unwrap();
    let mut elsewhere = hub.watch(&other, 2, 0, &WatchOptions::default()).unwrap();
    hub.changed(&other, 9, Reply::ready(Ok(())));
    assert!(matches!(block_on(elsewhere.next()), Some(Ok(Event::Changed { version: 9 }))));
    assert!(matches!(watch.try_next(), Poll::Pending));
    open(Ok(()));
    assert!(matches!(block_on(watch.next()), Some(Ok(Event::Changed { version: 1 }))));
    assert!(matches!(block_on(watch.next()), Some(Ok(Event::Changed { version: 2 }))));
}

#[test]
fn a_writer_tells_a_few_watchers_itself_what_may_be_told_at_once() {
    let hub = Hub::default();
    let begin = || hub.watch(&object(), 1, 0, &WatchOptions::default()).unwrap();
    let next = |watch: &mut Watch| match watch.try_next() {
        Poll::Ready(Some(Ok(Event::Changed { version }))) => Some(version),
        Poll::Pending => None,
        other => panic!("{other:?}"),
    };
    assert!(!hub.changed_now(&object(), 1), "nobody watches it");
    let mut watch = begin();
    assert!(hub.changed_now(&object(), 2));
    // What others change meanwhile is told with it, in the same order.
    assert!(!hub.changed_now(&object(), 3));
    assert_eq!(next(&mut watch), None);
    hub.deliver(&object());
    assert_eq!([next(&mut watch), next(&mut watch), next(&mut watch)], [Some(2), Some(3), None]);
    // What may not be told yet is left to the thread.
    let (open, barrier) = barrier();
    assert!(hub.changed_now(&object(), 4));
    hub.changed(&object(), 5, barrier);
    hub.deliver(&object());
    assert_eq!([next(&mut watch), next(&mut watch)], [Some(4), None]);
    open(Ok(()));
    assert!(matches!(block_on(watch.next()), Some(Ok(Event::Changed { version: 5 }))));
    // And so are many watchers, for which no writer is to be held up.
    let many: Vec<Watch> = (0..100).map(|_| begin()).collect();
    assert!(!hub.changed_now(&object(), 6));
    assert!(matches!(block_on(watch.next()), Some(Ok(Event::Changed { version: 6 }))));
    drop(many);
}

#[test]
fn a_watch_that_begins_when_a_change_is_lost_is_told_by_its_own_writer() {
    /// Begins another watch when it is woken, and changes the object again.
    struct Anew(Hub, std::sync::Mutex<Option<Watch>>);
    impl std::task::Wake for Anew {
        fn wake(self: Arc<Self>) {
            let watch = self.0.watch(&object(), 1, 0, &WatchOptions::default()).unwrap();
            assert!(self.0.changed_now(&object(), 3));
            *self.1.lock().unwrap() = Some(watch);
        }
    }
    let anew = Arc::new(Anew(Hub::default(), std::sync::Mutex::default()));
    let hub = &anew.0;
    let _first = hub.watch(&object(), 1, 0, &WatchOptions::default()).unwrap();
    assert!(hub.changed_now(&object(), 1));
    // Version 1 is not for this one, so only the end of the watch wakes it.
    let mut watch = hub.watch(&object(), 1, 1, &WatchOptions::default()).unwrap();
    let waker = Waker::from(anew.clone());
    assert!(watch.poll_next(&mut Context::from_waker(&waker)).is_pending());
    hub.end(&object(), &StoreError::new(ErrorKind::Io, "the disk is gone"));
    hub.deliver(&object());
    let mut later = anew.1.lock().unwrap().take().expect("the watch has ended");
    assert!(later.try_next().is_pending(), "its writer has not released the object yet");
    hub.deliver(&object());
    assert!(matches!(later.try_next(), Poll::Ready(Some(Ok(Event::Changed { version: 3 })))));
}

#[test]
fn a_change_that_was_lost_ends_the_watch_and_is_not_told() {
    let hub = Hub::default();
    let mut watch = hub.watch(&object(), 1, 0, &WatchOptions::default()).unwrap();
    let (open, barrier) = barrier();
    hub.changed(&object(), 1, barrier);
    open(Err(StoreError::new(ErrorKind::ReadOnly, "a failed sync")));
    assert!(matches!(block_on(watch.next()), Some(Err(error)) if error.kind == ErrorKind::ReadOnly));
    assert_eq!(hub.watchers(), 0);
    drop(hub);
}

#[test]
fn a_store_that_is_closed_ends_its_watches_and_notifications() {
    let hub = Hub::default();
    let mut watch = hub.watch(&object(), 1, 0, &WatchOptions::default()).unwrap();
    let waiting = hub.notify(&object(), Bytes::new(), Duration::from_secs(60));
    drop(hub);
    assert!(matches!(block_on(waiting), Err(error) if error.kind == ErrorKind::Closed));
    loop {
        match block_on(watch.next()) {
            Some(Ok(Event::Notified(_))) => {}
            Some(Err(error)) => break assert_eq!(error.kind, ErrorKind::Closed),
            other => panic!("{other:?}"),
        }
    }
}

/// Returns a barrier, and what opens it.
fn barrier() -> (impl FnOnce(Result<(), StoreError>), Reply<()>) {
    type Slot = (Option<Result<(), StoreError>>, Option<std::task::Waker>);
    let slot: Arc<std::sync::Mutex<Slot>> = Arc::default();
    let theirs = slot.clone();
    let open = move |result| {
        let mut slot = slot.lock().unwrap();
        slot.0 = Some(result);
        if let Some(waker) = slot.1.take() {
            waker.wake();
        }
    };
    let wait = std::future::poll_fn(move |context| {
        let mut slot = theirs.lock().unwrap();
        match slot.0.clone() {
            Some(result) => Poll::Ready(result),
            None => {
                slot.1 = Some(context.waker().clone());
                Poll::Pending
            }
        }
    });
    (open, Reply::pending(wait))
}

#[test]
fn an_event_reaches_all_of_many_watchers_while_others_come_and_go() {
    let hub = Hub::default();
    let begin = || hub.watch(&object(), 1, 0, &WatchOptions::default()).unwrap();
    let mut lasting: Vec<Watch> = (0..2000).map(|_| begin()).collect();
    let (done, coming) = (AtomicBool::new(false), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            coming.wait();
            while !done.load(Ordering::Relaxed) {
                drop([begin(), begin()]);
            }
        });
        coming.wait();
        for version in 1..=20 {
            hub.changed(&object(), version, Reply::ready(Ok(())));
            let mut late = begin();
            for watch in &mut lasting {
                let event = block_on(watch.next());
                assert!(
                    matches!(event, Some(Ok(Event::Changed { version: reported })) if reported == version)
                );
            }
            assert!(matches!(late.try_next(), Poll::Pending), "it came after the change");
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(hub.watchers(), lasting.len());
}

#[test]
fn the_acknowledgements_that_notifications_wait_for_are_bounded_together() {
    let hub = Hub::default();
    let mut watches: Vec<Watch> =
        (0..40_000).map(|_| hub.watch(&object(), 1, 0, &WatchOptions::default()).unwrap()).collect();
    let mut waiting = Vec::new();
    let refused = loop {
        assert!(waiting.len() < 64, "notifications without bound");
        let mut reply = hub.notify(&object(), Bytes::new(), Duration::from_secs(60));
        match Pin::new(&mut reply).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => waiting.push(reply),
            Poll::Ready(result) => break result.unwrap_err(),
        }
    };
    assert!(refused.kind == ErrorKind::Busy && refused.message.contains("acknowledgements"), "{refused}");
    // A sender that is gone makes room, once its notification has reached the watchers.
    for watch in watches.iter_mut().rev() {
        waiting.iter().for_each(|_| drop(block_on(watch.next())));
    }
    drop(waiting);
    let last = hub.notify(&object(), Bytes::new(), Duration::from_millis(1));
    assert_eq!(block_on(last).unwrap().missed.len(), watches.len());
}

#[test]
fn an_engine_that_learns_of_changes_from_others_reports_gaps_passes_notifications_on_and_ends_watches() {
    let hub = Hub::default();
    let options = WatchOptions { id: Some(7), ..WatchOptions::default() };
    let mut watch = hub.watch(&object(), 0, 3, &options).unwrap();
    assert!(hub.has_watchers(&object()));
    hub.changed(&object(), 4, Reply::ready(Ok(())));
    let gap = Gap::unknown(9, Cause::Unannounced);
    hub.gap(&object(), gap);
    let minute = Duration::from_secs(60);
    let notified = hub.notify_as(&object(), 55, "news".into(), minute);
    let twice = block_on(hub.notify_as(&object(), 55, "news".into(), minute));
    assert_eq!(twice.unwrap_err().kind, ErrorKind::Busy);
    assert!(matches!(block_on(watch.next()), Some(Ok(Event::Changed { version: 4 }))));
    assert!(matches!(block_on(watch.next()), Some(Ok(Event::Gap(found))) if found == gap));
    let Some(Ok(Event::Notified(notification))) = block_on(watch.next()) else { panic!("not notified") };
    assert_eq!(notification.id(), 55);
    notification.acknowledge("seen").unwrap();
    let outcome = block_on(notified).unwrap();
    assert_eq!((outcome.id, outcome.acknowledged[0].watcher), (55, 7));
    hub.end(&object(), &StoreError::new(ErrorKind::Denied, "over"));
    assert!(matches!(block_on(watch.next()), Some(Err(error)) if error.message == "over"));
    assert!(block_on(watch.next()).is_none());
    assert!(!hub.has_watchers(&object()));
}
