//! The linearizability check: on histories whose verdict is plain, and against a trial of every order.

use nacre_object::testkit::history::{Generator, Shape};
use nacre_object::testkit::linear::{Observed, Record, Recorder, Violation, check};
use nacre_object::testkit::{MemoryStore, ObjectState, block_on};
use nacre_object::*;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

const D: Fork = Fork::DEFAULT;
const BLOCK: ByteRange = ByteRange::new(0, 4);

fn write(bytes: &'static str) -> Transaction {
    Transaction::new().write(D, 0, bytes)
}

fn read() -> Transaction {
    Transaction::new().read_range(D, BLOCK)
}

/// Makes a record of a transaction with a state's answer, and applies it to the state.
fn record(state: &mut ObjectState, invoked: u64, returned: u64, transaction: Transaction) -> Record {
    let outcome = state.apply(&transaction).unwrap();
    Record { invoked, returned, transaction, observed: Observed::Outcome(outcome) }
}

fn unknown(invoked: u64, transaction: Transaction) -> Record {
    Record { invoked, returned: u64::MAX, transaction, observed: Observed::Unknown }
}

fn verdict(history: &[Record]) -> Result<(), Violation> {
    check(&ObjectState::default(), history)
}

/// Returns the operation that the check complains of.
fn offender(history: &[Record]) -> usize {
    match verdict(history) {
        Err(Violation::NotLinearizable { operation, message }) => {
            assert!(!message.is_empty());
            operation
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_after_another() {
    let mut s = ObjectState::default();
    let history = [
        record(&mut s, 0, 1, read()),
        record(&mut s, 2, 3, write("aaaa")),
        record(&mut s, 4, 5, read()),
        record(&mut s, 6, 7, write("bbbb").if_version(D, BLOCK, 1)),
        record(&mut s, 8, 9, write("cccc").if_version(D, BLOCK, 1)),
        record(&mut s, 10, 11, Transaction::new().change(WriteOp::Remove)),
        record(&mut s, 12, 13, read()),
    ];
    assert_eq!(verdict(&history), Ok(()));
    assert_eq!(verdict(&[]), Ok(()));
}

#[test]
fn overlapping_in_any_order() {
    let mut s = ObjectState::default();
    // All overlap; they are recorded in another order than the one in which they took effect.
    let mut history = vec![
        record(&mut s, 5, 90, write("aaaa")),
        record(&mut s, 4, 91, read()),
        record(&mut s, 3, 92, write("bbbb")),
        record(&mut s, 2, 93, read()),
        record(&mut s, 1, 94, write("cccc").if_version(D, BLOCK, 1)),
    ];
    history.reverse();
    assert_eq!(verdict(&history), Ok(()));
}

#[test]
fn stale_read() {
    let mut s = ObjectState::default();
    let first = record(&mut s, 0, 1, write("aaaa"));
    let mut old = s.clone();
    let second = record(&mut s, 2, 3, write("bbbb"));
    // While the second write was on its way, the old bytes may be read; once it returned, they may not.
    let during = record(&mut old, 2, 9, read());
    assert_eq!(verdict(&[first.clone(), second.clone(), during]), Ok(()));
    let after = record(&mut old, 4, 9, read());
    assert_eq!(offender(&[first, second, after]), 1);
}

#[test]
fn read_of_the_future() {
    let mut s = ObjectState::default();
    let first = record(&mut s, 4, 5, write("aaaa"));
    let read = record(&mut s, 2, 3, read());
    assert_eq!(offender(&[read, first]), 0);
}

#[test]
fn lost_update() {
    let mut s = ObjectState::default();
    let first = record(&mut s, 0, 1, write("aaaa"));
    let mut stale = s.clone();
    // Two conditional writes of the same version were both told that they won.
    let one = record(&mut s, 2, 9, write("bbbb").if_version(D, BLOCK, 1));
    let two = record(&mut stale, 3, 8, write("cccc").if_version(D, BLOCK, 1));
    assert_eq!(offender(&[first.clone(), one.clone(), two.clone()]), 2);
    // Also if the second was given a version of its own.
    let Observed::Outcome(Outcome::Done(mut done)) = two.observed.clone() else { panic!() };
    done.version = 3;
    let two = Record { observed: Observed::Outcome(Outcome::Done(done)), ..two };
    assert_eq!(offender(&[first, one, two]), 2);
}

#[test]
fn resurrected_value() {
    let mut s = ObjectState::default();
    let first = record(&mut s, 0, 1, write("aaaa"));
    let old = s.clone();
    let remove = record(&mut s, 2, 3, Transaction::new().change(WriteOp::Remove));
    let mut late = record(&mut s, 4, 5, read());
    assert_eq!(verdict(&[first.clone(), remove.clone(), late.clone()]), Ok(()));
    // The version is that of the removal, but the bytes are those from before it.
    let Outcome::Done(before) = old.clone().apply(&read()).unwrap() else { panic!() };
    late.observed = Observed::Outcome(Outcome::Done(Done { version: 2, ..before }));
    assert_eq!(offender(&[first, remove, late]), 2);
}

#[test]
fn lost_acknowledged_write() {
    let mut s = ObjectState::default();
    let first = record(&mut s, 0, 1, write("aaaa"));
    let old = s.clone();
    let second = record(&mut s, 2, 3, write("bbbb"));
    let mut after_crash = old;
    let third = record(&mut after_crash, 4, 5, write("cccc").read_range(D, BLOCK));
    assert_eq!(offender(&[first, second, third]), 2);
}

#[test]
fn unknown_that_took_effect() {
    let mut s = ObjectState::default();
    let first = record(&mut s, 0, 1, write("aaaa"));
    let without = s.clone();
    let lost = unknown(2, write("bbbb"));
    s.apply(&lost.transaction).unwrap();
    let late = record(&mut s, 4, 5, read());
    assert_eq!(verdict(&[first.clone(), lost.clone(), late.clone()]), Ok(()));
    // Without the transaction of unknown fate, nobody wrote what was read.
    assert_eq!(offender(&[first.clone(), late.clone()]), 1);
    // One that came later than the read was over does not explain it.
    assert_eq!(offender(&[first.clone(), unknown(6, write("bbbb")), late.clone()]), 2);
    // Nor does one that wrote something else, or whose guard did not hold.
    assert_eq!(offender(&[first.clone(), unknown(2, write("xxxx")), late.clone()]), 2);
    assert_eq!(
        offender(&[first.clone(), unknown(2, write("bbbb").if_version(D, BLOCK, 0)), late.clone()]),
        2
    );
    // It may take effect late, after a read that did not see it.
    let early = record(&mut without.clone(), 2, 3, read());
    assert_eq!(verdict(&[first.clone(), lost.clone(), early.clone(), late.clone()]), Ok(()));
    // But not first be seen and then be gone.
    let gone = record(&mut without.clone(), 6, 7, read());
    assert!(verdict(&[first, lost, late, gone]).is_err());
}

#[test]
fn unknown_that_never_took_effect() {
    let mut s = ObjectState::default();
    let history = [
        record(&mut s, 0, 1, write("aaaa")),
        unknown(2, write("bbbb")),
        unknown(2, read()),
        record(&mut s, 4, 5, read()),
        record(&mut s, 6, 7, write("cccc").if_version(D, BLOCK, 1)),
    ];
    assert_eq!(verdict(&history), Ok(()));
}

#[test]
fn unknown_takes_effect_once() {
    let mut s = ObjectState::default();
    let append = |at| Transaction::new().write(D, at, "x");
    let first = record(&mut s, 0, 1, append(0));
    s.apply(&append(1)).unwrap();
    s.apply(&append(1)).unwrap();
    let late = record(&mut s, 4, 5, read());
    assert!(verdict(&[first.clone(), unknown(2, append(1)), late.clone()]).is_err());
    assert_eq!(verdict(&[first, unknown(2, append(1)), unknown(3, append(1)), late]), Ok(()));
}

#[test]
fn unknown_proposals() {
    let mut s = ObjectState::default();
    let propose = |version| write("pppp").guard(Guard::Proposal { fork: D, range: BLOCK, version });
    let first = record(&mut s, 0, 1, propose(10));
    let lost = unknown(2, propose(50));
    s.apply(&lost.transaction).unwrap();
    let late = record(&mut s, 4, 5, propose(60).read_range(D, BLOCK));
    assert_eq!(verdict(&[first.clone(), lost, late.clone()]), Ok(()));
    assert!(verdict(&[first.clone(), unknown(2, propose(49)), late.clone()]).is_err());
    assert!(verdict(&[first, unknown(2, propose(61)), late]).is_err());
}

/// Tries every order of every choice of the transactions of unknown fate; returns whether one explains the
/// history.
fn brute_force(state: &ObjectState, left: &[Record]) -> bool {
    if left.iter().all(|record| record.observed == Observed::Unknown) {
        return true;
    }
    let first_return = left.iter().map(|record| record.returned).min().unwrap();
    (0..left.len()).filter(|index| left[*index].invoked <= first_return).any(|index| {
        let record = &left[index];
        let mut next = state.clone();
        let outcome = next.apply(&record.transaction).unwrap();
        let rest = [&left[..index], &left[index + 1..]].concat();
        match &record.observed {
            Observed::Outcome(seen) => outcome == *seen && brute_force(&next, &rest),
            _ => brute_force(&next, &rest),
        }
    })
}

/// Makes a history of a few transactions that is linearizable as it is made, and then perhaps is spoiled.
fn random_history(seed: u64, len: usize, unknown_percent: u32) -> Vec<Record> {
    let rng = &mut SmallRng::seed_from_u64(seed);
    let shape = Shape { span_bytes: 6, extent_bytes_max: 6, remove_percent: 10, ..Shape::contended() };
    let mut history = Vec::new();
    for (index, step) in Generator::new(seed, shape).take(len).enumerate() {
        // Each took effect at a moment of its own, and its interval is around that.
        let moment = index as u64 * 100 + 1000;
        let (invoked, returned) = (moment - rng.random_range(0..300), moment + rng.random_range(0..300));
        let (invoked, returned) = (invoked * 2, returned * 2 + 1);
        let (transaction, outcome) = (step.transaction, step.expected.unwrap());
        history.push(if rng.random_range(0..100) < unknown_percent {
            unknown(invoked, transaction)
        } else {
            Record { invoked, returned, transaction, observed: Observed::Outcome(outcome) }
        });
    }
    for _ in 0..[0, 0, 1, 2][rng.random_range(0..4)] {
        let (one, two) = (rng.random_range(0..len), rng.random_range(0..len));
        match rng.random_range(0..4) {
            0 => history[one].observed = history[two].observed.clone(),
            1 => {
                let invoked = rng.random_range(0..len as u64 * 200 + 2000);
                let returned =
                    if history[one].observed == Observed::Unknown { u64::MAX } else { invoked + 301 };
                (history[one].invoked, history[one].returned) = (invoked, returned);
            }
            2 => {
                history.remove(one);
                return history;
            }
            _ => {
                if let Observed::Outcome(Outcome::Done(done)) = &mut history[one].observed {
                    done.version += 1;
                }
            }
        }
        for record in &mut history {
            if record.observed == Observed::Unknown {
                record.returned = u64::MAX;
            } else if record.returned == u64::MAX {
                record.returned = record.invoked + 301;
            }
        }
    }
    history.shuffle(rng);
    history
}

#[test]
fn agrees_with_trying_every_order() {
    let mut verdicts = [0, 0];
    for seed in 0..6000 {
        let history = random_history(seed, 2 + seed as usize % 6, [0, 20, 50][seed as usize % 3]);
        let expected = brute_force(&ObjectState::default(), &history);
        let found = verdict(&history);
        assert_eq!(found.is_ok(), expected, "seed {seed}: {found:?}\n{history:#?}");
        verdicts[usize::from(expected)] += 1;
    }
    assert!(verdicts.iter().all(|count| *count > 1000), "both verdicts occur: {verdicts:?}");
}

#[test]
fn long_histories() {
    for (seed, unknown_percent) in [(1, 0), (2, 1), (3, 5)] {
        let rng = &mut SmallRng::seed_from_u64(seed);
        let mut generator = Generator::new(seed, Shape { remove_percent: 0, ..Shape::contended() });
        let mut history = Vec::new();
        for index in 0..5000 {
            // A client reads all it may depend on, as those do that read, modify and write.
            let (object, mut transaction) = generator.transaction();
            transaction = transaction.read_range(D, ByteRange::new(0, 64));
            let lost = rng.random_range(0..100) < unknown_percent;
            let moment = index * 10 + 100;
            if lost {
                history.push(unknown(moment - rng.random_range(0..90), transaction.clone()));
                if rng.random_range(0..2) == 0 {
                    continue;
                }
            }
            let outcome = generator.apply(&object, &transaction).unwrap();
            if !lost {
                let (invoked, returned) =
                    (moment - rng.random_range(0..90), moment + rng.random_range(0..90));
                history.push(Record { invoked, returned, transaction, observed: Observed::Outcome(outcome) });
            }
        }
        assert_eq!(verdict(&history), Ok(()), "seed {seed}");
        // An acknowledged write that nobody did is found however long the history is.
        let spoiled = history.iter_mut().rev().find_map(|record| match &mut record.observed {
            Observed::Outcome(Outcome::Done(done)) if !record.transaction.writes.is_empty() => Some(done),
            _ => None,
        });
        spoiled.unwrap().existed = false;
        assert!(verdict(&history).is_err(), "seed {seed}");
    }
}

#[test]
fn recorder() {
    let (store, recorder) = (MemoryStore::new(), Recorder::new());
    let object = ObjectId::try_from("a").unwrap();
    block_on(recorder.apply(&store, &object, write("aaaa"))).unwrap();
    let too_far = Transaction::new().write(D, u64::MAX, "x");
    block_on(recorder.apply(&store, &object, too_far)).unwrap_err();
    // Asked for, and then not waited for.
    drop(recorder.apply(&store, &object, write("bbbb")));
    block_on(recorder.apply(&store, &object, read())).unwrap();
    recorder.check().unwrap();
    assert_eq!(recorder.count(), (3, 0), "a future that was never polled asked nothing");
    // What happens behind the recorder's back cannot be explained.
    block_on(store.apply(&object, write("cccc"))).unwrap();
    block_on(recorder.apply(&store, &object, read())).unwrap();
    let error = recorder.check().unwrap_err();
    assert!(error.contains("object a") && error.contains("operation 3"), "{error}");
}
