//! Stores that break one rule each and must not pass the conformance suite, which is worth something only if it fails.

mod answers;
mod fences;
mod guards;
mod key_versions;
mod writes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use nacre_object::limit::OFFSET_MAX;
use nacre_object::testkit::conformance::{CASES, Effort, Trial};
use nacre_object::testkit::{MemoryStore, block_on};
use nacre_object::*;

type Result<T> = std::result::Result<T, StoreError>;

/// A store that misbehaves in one way.
struct Mutant<A, L> {
    inner: MemoryStore,
    apply: A,
    list: L,
}

impl<A, L> ObjectStore for Mutant<A, L>
where
    A: Fn(&MemoryStore, &ObjectId, Transaction) -> Result<Outcome> + Send + Sync + 'static,
    L: Fn(&MemoryStore, Option<&ObjectId>, usize) -> Vec<ObjectId> + Send + Sync + 'static,
{
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        Reply::ready((self.apply)(&self.inner, object, transaction))
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        Reply::ready(Ok((self.list)(&self.inner, after, limit)))
    }
}

fn applied(store: &MemoryStore, object: &ObjectId, transaction: Transaction) -> Result<Outcome> {
    block_on(store.apply(object, transaction))
}

fn listed(store: &MemoryStore, after: Option<&ObjectId>, limit: usize) -> Vec<ObjectId> {
    store.model().list(after, limit)
}

/// Creates a store that applies transactions in its own way.
fn applying(
    apply: impl Fn(&MemoryStore, &ObjectId, Transaction) -> Result<Outcome> + Send + Sync + 'static,
) -> Box<dyn ObjectStore> {
    Box::new(Mutant { inner: MemoryStore::new(), apply, list: listed })
}

/// Creates a store that lists objects in its own way.
fn listing(
    list: impl Fn(&MemoryStore, Option<&ObjectId>, usize) -> Vec<ObjectId> + Send + Sync + 'static,
) -> Box<dyn ObjectStore> {
    Box::new(Mutant { inner: MemoryStore::new(), apply: applied, list })
}

/// Creates a store that understands another transaction than it was given.
fn hearing(change: impl Fn(&mut Transaction) + Send + Sync + 'static) -> Box<dyn ObjectStore> {
    applying(move |store, object, mut transaction| {
        change(&mut transaction);
        applied(store, object, transaction)
    })
}

/// Creates a store that does what it ought to, and answers something else.
fn saying(change: impl Fn(&mut Outcome) + Send + Sync + 'static) -> Box<dyn ObjectStore> {
    applying(move |store, object, transaction| {
        let mut outcome = applied(store, object, transaction)?;
        change(&mut outcome);
        Ok(outcome)
    })
}

/// Creates a store that reads ranges wrongly, also for refusals.
fn reading(change: impl Fn(&mut RangeRead) + Send + Sync + 'static) -> Box<dyn ObjectStore> {
    saying(move |outcome| match outcome {
        Outcome::Done(done) => done.answers.iter_mut().for_each(|answer| {
            if let Answer::Range(read) = answer {
                change(read);
            }
        }),
        Outcome::Refused(Refusal { found: Found::Region(read), .. }) => change(read),
        Outcome::Refused(_) => {}
    })
}

/// Creates a store that gives wrong answers to anything but ranges.
fn answering(change: impl Fn(&mut Answer) + Send + Sync + 'static) -> Box<dyn ObjectStore> {
    saying(move |outcome| {
        if let Outcome::Done(done) = outcome {
            done.answers.iter_mut().for_each(&change);
        }
    })
}

fn guards(change: impl Fn(&mut Guard) + Send + Sync + 'static) -> Box<dyn ObjectStore> {
    hearing(move |transaction| transaction.guards.iter_mut().for_each(&change))
}

fn writes(change: impl Fn(&mut WriteOp) + Send + Sync + 'static) -> Box<dyn ObjectStore> {
    hearing(move |transaction| transaction.writes.iter_mut().for_each(&change))
}

fn reads(change: impl Fn(&mut ReadOp) + Send + Sync + 'static) -> Box<dyn ObjectStore> {
    hearing(move |transaction| transaction.reads.iter_mut().for_each(&change))
}

/// A guard that always holds.
const HOLDS: Guard = Guard::Region { fork: Fork::DEFAULT, range: ByteRange::new(0, 0), version: u64::MAX };

/// Returns the cases, of those whose names begin with `prefix`, that a store fails; only the first unless `all`.
fn failures(store: &dyn ObjectStore, prefix: &str, all: bool) -> Vec<&'static str> {
    let effort = Effort { histories: 2, increments: 20, ..Effort::default() };
    let mut failures = Vec::new();
    for (name, case) in CASES.iter().copied().flatten().filter(|(name, _)| name.starts_with(prefix)) {
        if case(&Trial::new(&[store], &format!("m/{name}"), effort)).is_err() {
            failures.push(*name);
            if !all {
                break;
            }
        }
    }
    failures
}

fn caught(mutants: Vec<(&str, Box<dyn ObjectStore>)>) {
    let passing: Vec<_> = mutants
        .iter()
        .filter(|(_, store)| failures(&**store, "", false).is_empty())
        .map(|(name, _)| *name)
        .collect();
    assert!(passing.is_empty(), "the suite does not notice: {passing:?}");
}

#[test]
fn right_stores_pass() {
    assert_eq!(failures(&*applying(applied), "", true), Vec::<&str>::new());
}

#[test]
fn wrong_lists() {
    caught(vec![
        (
            "removed objects are listed",
            listing(|store, after, limit| {
                let model = store.model();
                let ids =
                    model.objects().map(|(id, _)| id).filter(|id| after.is_none_or(|after| *id > after));
                ids.take(limit).cloned().collect()
            }),
        ),
        (
            "pages begin with the object they are after",
            listing(|store, after, limit| {
                let mut page = listed(store, after, limit);
                let after = after.filter(|id| store.model().object(id).is_some_and(|state| state.exists()));
                page.splice(..0, after.cloned());
                page.truncate(limit);
                page
            }),
        ),
        (
            "pages pass over an object",
            listing(|store, after, limit| match after {
                None => listed(store, after, limit),
                Some(_) => listed(store, after, limit.saturating_add(1)).into_iter().skip(1).collect(),
            }),
        ),
        (
            "pages are in some other order",
            listing(|store, after, limit| {
                let mut page = listed(store, after, limit);
                page.sort_by_key(|id| id.as_bytes().iter().rev().copied().collect::<Vec<_>>());
                page
            }),
        ),
        (
            "pages are not bounded",
            listing(|store, after, limit| {
                let model = store.model();
                let exist = model.objects().filter(|(_, state)| state.exists()).map(|(id, _)| id);
                exist.filter(|id| after.is_none_or(|after| *id > after)).take(limit).cloned().collect()
            }),
        ),
        (
            "an object is listed twice",
            listing(|store, after, limit| {
                let mut page = listed(store, after, limit);
                if let Some(last) = page.last().cloned()
                    && page.len() < limit
                {
                    page.push(last);
                }
                page
            }),
        ),
    ]);
}

/// A meeting point that lets threads meet in the midst of an operation: each waits for another, but not for long.
#[derive(Default)]
struct Meeting(Mutex<u64>, Condvar);

impl Meeting {
    fn meet(&self) {
        let mut arrived = self.0.lock().unwrap();
        *arrived += 1;
        self.1.notify_all();
        let mine = *arrived;
        drop(
            self.1
                .wait_timeout_while(arrived, Duration::from_millis(10), |arrived| *arrived == mine)
                .unwrap(),
        );
    }
}

#[test]
fn wrong_only_under_concurrency() {
    let gap = Meeting::default();
    // Guards hold at one moment, and the writes take effect at another.
    let late = applying(move |store, object, tx| {
        let stamps = tx.guards.iter().any(|guard| matches!(guard, Guard::Proposal { .. }));
        if tx.guards.is_empty() || tx.writes.is_empty() || !tx.reads.is_empty() || stamps {
            return applied(store, object, tx);
        }
        let check = applied(store, object, Transaction { guards: tx.guards, ..Transaction::new() })?;
        if matches!(check, Outcome::Refused(_)) {
            return Ok(check);
        }
        gap.meet();
        applied(store, object, Transaction { writes: tx.writes, ..Transaction::new() })
    });
    let found: BTreeSet<_> = failures(&*late, "concurrency/", true).into_iter().collect();
    assert!(found.contains("concurrency/no lost update of bytes"), "{found:?}");
    assert!(found.contains("concurrency/no lost update of keys"), "{found:?}");
    assert!(found.contains("concurrency/no lost update by versions of keys"), "{found:?}");
    assert!(found.contains("concurrency/one creator"), "{found:?}");

    let gap = Meeting::default();
    // Reads of one transaction see different moments.
    let torn = applying(move |store, object, tx| {
        if tx.reads.len() < 2 || !tx.guards.is_empty() || !tx.writes.is_empty() {
            return applied(store, object, tx);
        }
        let mut all = Done::default();
        for read in tx.reads {
            if let Outcome::Done(done) = applied(store, object, Transaction::new().read(read))? {
                all = Done { answers: [all.answers, done.answers].concat(), ..done };
            }
            gap.meet();
        }
        Ok(Outcome::Done(all))
    });
    let found: BTreeSet<_> = failures(&*torn, "concurrency/", true).into_iter().collect();
    assert!(found.contains("concurrency/atomic"), "{found:?}");
}
