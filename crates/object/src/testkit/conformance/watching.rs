//! Watch and notify: every change is told in its place or covered by a gap, and nothing is told that did not happen.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use ::bytes::Bytes;

use super::Case;
use super::trial::*;
use crate::limit::{ACKNOWLEDGEMENT_BYTES_MAX, NOTIFICATION_BYTES_MAX, NOTIFY_TIMEOUT_MAX};
use crate::testkit::wait::{block_on, block_on_for};
use crate::watch::{Cause, Event, Gap, Notification, Notified, Watch, WatchOptions};
use crate::*;

/// The cases, which a store that cannot watch objects does not pass.
pub const CASES: &[Case] = &[
    ("watching/an absent object is watched from its creation on", absent),
    ("watching/every change is told with its version", changes),
    ("watching/what changes nothing is not told", silence),
    ("watching/an object that is removed and made again", removed),
    ("watching/several watchers see the same", several),
    ("watching/notifications keep their place among changes", order),
    ("watching/who acknowledges and who does not", acknowledgements),
    ("watching/a watch that has ended is not waited for", ended),
    ("watching/a slow watcher finds a gap", slow),
    ("watching/limits", limits),
    ("watching/writers and watchers at once", at_once),
];

const D: Fork = Fork::DEFAULT;

fn watch(store: &dyn ObjectStore, object: &ObjectId) -> Result<Watch, Failure> {
    Ok(block_on(store.watch(object, WatchOptions::default()))?)
}

/// Returns the next event; one that does not come counts as lost.
fn next(watch: &mut Watch, patience: Duration) -> Result<Event, Failure> {
    match block_on_for(patience, |context| watch.poll_next(context)) {
        Some(Some(event)) => Ok(event?),
        Some(None) => Err(Failure::new("the watch has ended")),
        None => Err(Failure::new("an event does not come")),
    }
}

/// Takes events until the watcher is told of a version, by a change or, where that is allowed, by a gap. Returns the version that it
/// then knows: only a gap may stand for later changes as well.
fn told(t: &Trial<'_>, watch: &mut Watch, version: u64, what: &str) -> Result<u64, Failure> {
    loop {
        match next(watch, t.effort.patience)? {
            Event::Changed { version: found } => {
                same!(found, version, "{what}");
                return Ok(found);
            }
            Event::Gap(Gap { version: found, cause: Cause::Unannounced, .. }) if t.effort.hints => {
                if found >= version {
                    return Ok(found);
                }
            }
            other => return Err(Failure::new(format!("{} instead of a change", brief(&other)))),
        }
    }
}

fn next_notification(watch: &mut Watch, patience: Duration) -> Result<Notification, Failure> {
    match next(watch, patience)? {
        Event::Notified(notification) => Ok(notification),
        other => Err(Failure::new(format!("{} instead of a notification", brief(&other)))),
    }
}

fn notify(
    store: &dyn ObjectStore,
    object: &ObjectId,
    payload: &'static str,
    timeout: Duration,
) -> Result<Notified, Failure> {
    Ok(block_on(store.notify(object, Bytes::from_static(payload.as_bytes()), timeout))?)
}

/// Sends a notification that one of two watchers acknowledges, by a function that is given its time. Where that is over before
/// the acknowledgement arrives, as it may be on a busy machine, sends another one with more time.
fn notify_in_time(mut send: impl FnMut(Duration) -> Result<Notified, Failure>) -> Result<Notified, Failure> {
    for seconds in [2, 8] {
        let notified = send(Duration::from_secs(seconds))?;
        if !notified.acknowledged.is_empty() {
            return Ok(notified);
        }
    }
    send(Duration::from_secs(32))
}

fn absent(t: &Trial<'_>) -> Result<(), Failure> {
    let object = t.object("absent");
    let mut watch = watch(t.next_connection(), &object)?;
    same!(watch.version(), 0, "the version of an object that never existed");
    ensure!(!t.stat(&object)?.exists, "an object exists because it is watched");
    let done = t.done(&object, tx().change(WriteOp::Create))?;
    told(t, &mut watch, done.version, "the version of the creation")?;
    Ok(())
}

fn changes(t: &Trial<'_>) -> Result<(), Failure> {
    let object = t.object("object");
    let first = t.done(&object, tx().write(D, 0, "one"))?.version;
    let mut watch = watch(t.next_connection(), &object)?;
    same!(watch.version(), first, "the version at which the watch begins");
    for index in 0..20u64 {
        // A proposal leaves versions out: no change is missing there.
        let guard = Guard::Proposal { fork: D, range: span(0, 8), version: first + 3 * index + 10 };
        let version = match index % 4 {
            0 => t.done(&object, tx().write(D, index, "bytes"))?.version,
            1 => {
                t.done(&object, tx().change(WriteOp::SetKey { key: key("key"), value: "v".into() }))?.version
            }
            2 => t.done(&object, tx().change(WriteOp::Truncate { fork: D, size: 100 }))?.version,
            _ => t.done(&object, tx().guard(guard).write(D, 0, "proposed"))?.version,
        };
        told(t, &mut watch, version, &format!("the version of change {index}"))?;
        let now = t.stat(&object)?.version;
        ensure!(now >= version, "version {version} was told, and a later read finds {now}");
    }
    Ok(())
}

fn silence(t: &Trial<'_>) -> Result<(), Failure> {
    let (object, other) = (t.object("object"), t.object("other"));
    t.done(&object, tx().write(D, 0, "one"))?;
    let mut watch = watch(t.next_connection(), &object)?;
    t.range(&object, &D, span(0, 3))?;
    let refused = Guard::Region { fork: D, range: span(0, 3), version: 0 };
    t.refused(&object, tx().guard(refused).write(D, 0, "two"))?;
    t.done(&other, tx().write(D, 0, "another object"))?;
    let version = t.done(&object, tx().write(D, 0, "three"))?.version;
    told(t, &mut watch, version, "the first event")?;
    Ok(())
}

fn removed(t: &Trial<'_>) -> Result<(), Failure> {
    let object = t.object("object");
    t.done(&object, tx().write(D, 0, "one"))?;
    let mut watch = watch(t.next_connection(), &object)?;
    let removed = t.done(&object, tx().change(WriteOp::Remove))?.version;
    let again = t.done(&object, tx().write(D, 0, "two"))?.version;
    if told(t, &mut watch, removed, "the version of the removal")? < again {
        told(t, &mut watch, again, "the version of the object that was made again")?;
    }
    Ok(())
}

fn several(t: &Trial<'_>) -> Result<(), Failure> {
    let object = t.object("object");
    let begin = || watch(t.next_connection(), &object);
    let mut watches = (0..8).map(|_| begin()).collect::<Result<Vec<_>, _>>()?;
    for round in 0..5 {
        let version = t.done(&object, tx().write(D, 0, "more"))?.version;
        for (index, watch) in watches.iter_mut().enumerate() {
            told(t, watch, version, &format!("round {round}, watcher {index}"))?;
        }
        // Others come and go.
        watches.remove(round);
        watches.push(begin()?);
    }
    Ok(())
}

fn order(t: &Trial<'_>) -> Result<(), Failure> {
    let patience = t.effort.patience;
    let object = t.object("object");
    let mut watch = watch(t.next_connection(), &object)?;
    for _ in 0..5 {
        let version = t.done(&object, tx().write(D, 0, "more"))?.version;
        let store = t.next_connection();
        thread::scope(|scope| {
            let notified = scope.spawn(|| notify(store, &object, "after it", patience));
            told(t, &mut watch, version, "the change before the notification")?;
            let notification = next_notification(&mut watch, patience)?;
            same!(notification.payload(), "after it", "the payload");
            notification.acknowledge("")?;
            let notified = notified.join().expect("the notifier ends");
            same!(notified?.missed.len(), 0, "the watchers that missed it");
            Ok(())
        })?;
    }
    Ok(())
}

fn acknowledgements(t: &Trial<'_>) -> Result<(), Failure> {
    let patience = t.effort.patience;
    let object = t.object("object");
    let nobody = notify(t.next_connection(), &object, "nobody", patience)?;
    same!((nobody.acknowledged.len(), nobody.missed.len()), (0, 0), "the watchers where there are none");
    let options = WatchOptions { id: Some(77), ..WatchOptions::default() };
    let mut one = block_on(t.next_connection().watch(&object, options))?;
    same!(one.id(), 77, "the id that the watcher has chosen");
    let mut other = watch(t.next_connection(), &object)?;
    let (ids, store, object) = ((one.id(), other.id()), t.next_connection(), &object);
    let notified = thread::scope(|scope| {
        let notified = scope.spawn(|| notify(store, object, "both", patience));
        let (first, second) =
            (next_notification(&mut one, patience)?, next_notification(&mut other, patience)?);
        same!(first.id(), second.id(), "the id of the notification");
        first.acknowledge("the first")?;
        second.acknowledge("the second")?;
        notified.join().expect("the notifier ends")
    })?;
    let mut replies = notified.acknowledged;
    replies.sort_by_key(|acknowledged| acknowledged.watcher != ids.0);
    let replies: Vec<_> = replies.iter().map(|one| (one.watcher, &one.reply[..])).collect();
    same!(replies, [(ids.0, &b"the first"[..]), (ids.1, &b"the second"[..])], "the replies");
    same!(notified.missed, Vec::<u64>::new(), "the watchers that missed it");

    // One acknowledges in time, the other not.
    let notified = notify_in_time(|time| {
        thread::scope(|scope| {
            let notified = scope.spawn(move || notify(store, object, "one", time));
            let (first, late) =
                (next_notification(&mut one, patience)?, next_notification(&mut other, patience)?);
            first.acknowledge("")?;
            let notified = notified.join().expect("the notifier ends");
            // It interests nobody any more.
            late.acknowledge("too late")?;
            notified
        })
    })?;
    let acknowledged: Vec<_> = notified.acknowledged.iter().map(|one| one.watcher).collect();
    same!(acknowledged, [ids.0], "who acknowledged it");
    same!(notified.missed, [ids.1], "who did not");
    // Both go on.
    let version = t.done(object, tx().write(D, 0, "more"))?.version;
    told(t, &mut one, version, "what one is told next")?;
    told(t, &mut other, version, "what the other is told next")?;
    Ok(())
}

fn ended(t: &Trial<'_>) -> Result<(), Failure> {
    let patience = t.effort.patience;
    let object = t.object("object");
    let (mut stays, mut leaves) =
        (watch(t.next_connection(), &object)?, watch(t.next_connection(), &object)?);
    let (id, store) = (leaves.id(), t.next_connection());
    let notified = thread::scope(|scope| {
        // If it were waited for, this would take as long as the suite's caller has patience.
        let notified = scope.spawn(|| notify(store, &object, "leave", patience));
        next_notification(&mut leaves, patience)?;
        drop(leaves);
        next_notification(&mut stays, patience)?.acknowledge("stayed")?;
        notified.join().expect("the notifier ends")
    })?;
    same!(notified.missed, [id], "the watcher that ended");
    same!(notified.acknowledged.len(), 1, "the watchers that acknowledged it");
    Ok(())
}

fn slow(t: &Trial<'_>) -> Result<(), Failure> {
    let patience = t.effort.patience;
    let object = t.object("object");
    let options = WatchOptions { events_max: 4, ..WatchOptions::default() };
    let mut slow = block_on(t.next_connection().watch(&object, options))?;
    let mut quick = watch(t.next_connection(), &object)?;
    let mut last = 0;
    for _ in 0..100 {
        last = t.done(&object, tx().write(D, 0, "more"))?.version;
        told(t, &mut quick, last, "what a quick watcher is told")?;
    }
    // A notification comes behind all changes; the slow one has no room for it.
    let (id, store, watched) = (quick.id(), t.next_connection(), &object);
    let mut sent = 0;
    let notified = notify_in_time(|time| {
        sent += 1;
        thread::scope(|scope| {
            let notified = scope.spawn(move || notify(store, watched, "lost", time));
            next_notification(&mut quick, patience)?.acknowledge("")?;
            notified.join().expect("the notifier ends")
        })
    })?;
    let acknowledged: Vec<_> = notified.acknowledged.iter().map(|one| one.watcher).collect();
    same!((acknowledged, notified.missed), (vec![id], vec![slow.id()]), "who acknowledged it, and who not");
    let (mut reported, mut missing, mut notifications, mut uncounted) = (0, 0, 0, false);
    let mut told_of = 0;
    while told_of != last || notifications != sent {
        match next(&mut slow, patience)? {
            Event::Changed { version } => {
                reported += 1;
                told_of = version;
                ensure!(uncounted || version == reported, "version {version} was told before the gap");
            }
            Event::Gap(Gap { version, changes, notifications: lost, cause }) => {
                if t.effort.hints && cause == Cause::Unannounced {
                    uncounted = true;
                } else {
                    same!(cause, Cause::Slow, "the cause of the gap");
                }
                missing += changes.unwrap_or(0);
                notifications += lost.unwrap_or(0);
                told_of = version;
            }
            // What was not announced is one gap, whose events take one place: the queue need not have been full.
            Event::Notified(_) if uncounted => notifications += 1,
            Event::Notified(notification) => {
                return Err(Failure::new(format!("{notification:?} found room in a full queue")));
            }
        }
    }
    same!(notifications, sent, "the notifications that are missing");
    ensure!(
        uncounted || reported + missing == 100,
        "{reported} changes were told, and {missing} are missing"
    );
    let version = t.done(&object, tx().write(D, 0, "more"))?.version;
    told(t, &mut slow, version, "what is told behind the gap")?;
    Ok(())
}

fn limits(t: &Trial<'_>) -> Result<(), Failure> {
    let patience = t.effort.patience;
    let object = t.object("object");
    let store = t.next_connection();
    let mut watch = watch(store, &object)?;
    let most = Bytes::from(vec![7; NOTIFICATION_BYTES_MAX]);
    let sent = most.clone();
    thread::scope(|scope| {
        let notified = scope.spawn(|| block_on(store.notify(&object, sent, patience)));
        let notification = next_notification(&mut watch, patience)?;
        ensure!(*notification.payload() == most, "the longest payload has changed on its way");
        notification.acknowledge(vec![8; ACKNOWLEDGEMENT_BYTES_MAX])?;
        let notified = notified.join().expect("the notifier ends")?;
        same!(notified.acknowledged[0].reply.len(), ACKNOWLEDGEMENT_BYTES_MAX, "the longest reply");
        Ok::<(), Failure>(())
    })?;
    let longer = Bytes::from(vec![7; NOTIFICATION_BYTES_MAX + 1]);
    let second = Duration::from_secs(1);
    for (payload, time) in [(longer, patience), (Bytes::new(), NOTIFY_TIMEOUT_MAX + second)] {
        match block_on(store.notify(&object, payload, time)) {
            Err(error) if error.kind == ErrorKind::Invalid => {}
            other => return Err(Failure::new(format!("{} instead of a refusal", brief(&other)))),
        }
    }
    Ok(())
}

/// Tests that each of many watchers, some of them slow, can account for every change that many writers made, in order,
/// and knows the last version in the end.
fn at_once(t: &Trial<'_>) -> Result<(), Failure> {
    let patience = t.effort.patience;
    let object = t.object("object");
    let (writers, changes, hints) = (t.effort.threads.max(1), t.effort.increments, t.effort.hints);
    let total = writers as u64 * changes;
    let watchers = 2 * writers;
    let barrier = Barrier::new(writers + watchers);
    thread::scope(|scope| {
        let (barrier, object) = (&barrier, &object);
        let watching: Vec<_> = (0..watchers)
            .map(|index| {
                let store = t.connections.of(index);
                scope.spawn(move || {
                    let events_max = if index % 2 == 0 { 2 } else { 256 };
                    let options = WatchOptions { events_max, ..WatchOptions::default() };
                    let watch = block_on(store.watch(object, options));
                    barrier.wait();
                    account(&mut watch?, total, patience, hints)
                })
            })
            .collect();
        for index in 0..writers {
            let store = t.connections.of(index);
            scope.spawn(move || {
                barrier.wait();
                for _ in 0..changes {
                    let set = WriteOp::SetKey { key: key(&format!("writer-{index}")), value: "v".into() };
                    // A failure shows as a change that no watcher can account for.
                    let _ = block_on(store.apply(object, tx().change(set)));
                }
            });
        }
        watching.into_iter().try_for_each(|watching| watching.join().expect("the watcher ends"))
    })?;
    let version = outcome_version(block_on(t.next_connection().apply(&object, tx().read(ReadOp::Stat)))?)?;
    same!(version, total, "the object's version in the end");
    Ok(())
}

fn outcome_version(outcome: Outcome) -> Result<u64, Failure> {
    match outcome {
        Outcome::Done(done) => Ok(done.version),
        other => Err(Failure::new(format!("{} answers a read", brief(&other)))),
    }
}

/// Follows a watch until it has accounted for changes up to version `total`, each of which makes the next version.
fn account(watch: &mut Watch, total: u64, patience: Duration, hints: bool) -> Result<(), Failure> {
    let mut known = watch.version();
    while known < total {
        match next(watch, patience)? {
            Event::Changed { version } => {
                same!(version, known + 1, "the version told after {known}");
                known = version;
            }
            Event::Gap(Gap { version, changes: Some(changes), cause: Cause::Slow, .. }) => {
                same!(
                    version,
                    known + changes,
                    "the version behind a gap of {changes} changes after {known}"
                );
                known = version;
            }
            Event::Gap(Gap { version, cause: Cause::Unannounced, .. }) if hints && version > known => {
                known = version;
            }
            other => return Err(Failure::new(format!("{} came unexpectedly", brief(&other)))),
        }
    }
    Ok(())
}
