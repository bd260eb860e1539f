//! Several connections to one store, with several transactions under way on each: a transaction that relies on what its
//! client believes of an object must not conflict unnoticed with what another client has made of it.
//!
//! With one connection these cases say less, but still hold.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;

use super::Case;
use super::trial::*;
use crate::testkit::block_on;
use crate::testkit::history::{Generator, Shape};
use crate::testkit::linear::Recorder;
use crate::testkit::race::Race;
use crate::*;

pub(super) const CASES: &[Case] = &[
    ("connections/nothing is built on another client's write", behind_a_lost_write),
    ("connections/nothing is read as another client's write", read_behind_a_lost_write),
    ("connections/counting with many writes under way", counting),
    ("connections/linearizable with many transactions under way", linearizable),
];

const D: Fork = Fork::DEFAULT;
/// The number of operations that a client has under way.
const WINDOW: usize = 8;

/// Writes two blocks that are extents of their own, and reads them over every connection often enough for each client
/// to know where they are.
fn known_blocks(t: &Trial<'_>, object: &ObjectId) -> Result<[(ByteRange, u64); 2], Failure> {
    let blocks = [span(0, 64), span(8192, 8192 + 64)];
    for block in blocks {
        t.done(object, tx().write(D, block.offset, vec![1; 64]))?;
    }
    let mut versions = [0; 2];
    for connection in 0..t.connections.count() {
        for _ in 0..3 {
            for (index, block) in blocks.into_iter().enumerate() {
                versions[index] = read(t.connections.of(connection), object, block)?.version;
            }
        }
    }
    Ok([(blocks[0], versions[0]), (blocks[1], versions[1])])
}

fn read(store: &dyn ObjectStore, object: &ObjectId, range: ByteRange) -> Result<RangeRead, Failure> {
    outcome_of_read(block_on(store.apply(object, tx().read_range(D, range)))?)
}

fn outcome_of_read(outcome: Outcome) -> Result<RangeRead, Failure> {
    match outcome {
        Outcome::Done(mut done) if !done.answers.is_empty() => range_of(done.answers.remove(0)),
        other => Err(Failure::new(format!("{} answers a read", brief(&other)))),
    }
}

/// Tests that a client that does not know of another one's write notices it: it writes another block, and then the
/// changed one on condition, without waiting in between. Only the second of its writes must be refused.
fn behind_a_lost_write(t: &Trial<'_>) -> Result<(), Failure> {
    // Whole extents, and parts of them.
    for len in [64, 40] {
        let a = t.object(&format!("{len}"));
        let [(first, first_version), (second, second_version)] = known_blocks(t, &a)?;
        let (first, second) = (ByteRange::new(first.offset, len), ByteRange::new(second.offset, len));
        let (knowing, unknowing) = (t.connections.of(1), t.connections.of(0));
        let write = tx().if_version(D, first, first_version).write(D, first.offset, vec![7; len as usize]);
        let Outcome::Done(other_write) = block_on(knowing.apply(&a, write))? else {
            return Err(Failure::new("a write that nobody raced with was refused"));
        };
        let other = tx().if_version(D, second, second_version).write(D, second.offset, vec![2; len as usize]);
        let lost = tx().if_version(D, first, first_version).write(D, first.offset, vec![9; len as usize]);
        let replies = [unknowing.apply(&a, other), unknowing.apply(&a, lost)];
        let [other, lost] = replies.map(block_on);
        ensure!(matches!(other?, Outcome::Done(_)), "a write of another block is not refused");
        match lost? {
            Outcome::Refused(Refusal { found: Found::Region(found), .. }) => {
                same!(found.version, other_write.version, "the refusal shows the other client's version");
                same!(&found.data[..], &vec![7; len as usize][..], "and what it wrote");
            }
            outcome => {
                return Err(Failure::new(format!("a write over a newer one: {}", brief(&outcome))));
            }
        }
        for connection in 0..t.connections.count() {
            let found = read(t.connections.of(connection), &a, first)?;
            same!(&found.data[..], &vec![7; len as usize][..], "an acknowledged update is not lost");
            same!(found.version, other_write.version, "nor is its version another one");
        }
    }
    Ok(())
}

/// Tests a read in place of the second write of [`behind_a_lost_write`]: the content that it gives for a version must
/// be that version's.
fn read_behind_a_lost_write(t: &Trial<'_>) -> Result<(), Failure> {
    for len in [64, 40] {
        let a = t.object(&format!("{len}"));
        let [(first, first_version), (second, second_version)] = known_blocks(t, &a)?;
        let (first, second) = (ByteRange::new(first.offset, len), ByteRange::new(second.offset, len));
        let (knowing, unknowing) = (t.connections.of(1), t.connections.of(0));
        let write = tx().if_version(D, second, second_version).write(D, second.offset, vec![7; len as usize]);
        ensure!(matches!(block_on(knowing.apply(&a, write))?, Outcome::Done(_)), "nobody raced with it");
        let own = tx().if_version(D, first, first_version).write(D, first.offset, vec![2; len as usize]);
        let replies = [unknowing.apply(&a, own), unknowing.apply(&a, tx().read_range(D, first))];
        let [own, found] = replies.map(block_on);
        let Outcome::Done(own) = own? else { return Err(Failure::new("its block did not change")) };
        let found = outcome_of_read(found?)?;
        let expected = match found.data.first() {
            Some(2) => own.version,
            _ => first_version,
        };
        same!(found.version, expected, "bytes are read at the version that wrote them: {}", brief(&found));
    }
    Ok(())
}

fn counting(t: &Trial<'_>) -> Result<(), Failure> {
    let race = Race::new((0..2).map(|index| t.object(&format!("{index}"))).collect(), 4);
    let clients = t.connections.count().max(2);
    let increments = 4 * t.effort.increments;
    let results: Vec<Result<u64, String>> = thread::scope(|scope| {
        let race = &race;
        let threads: Vec<_> = (0..clients)
            .map(|number| {
                let store = t.connections.of(number);
                let stop = move |acknowledged| acknowledged >= increments;
                scope.spawn(move || race.run_client(store, 1 + number as u64, WINDOW, &[], stop))
            })
            .collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended.map(|result| result.unwrap_or_else(|_| Err("a client panicked".into()))).collect()
    });
    for result in results {
        result.map_err(Failure::new)?;
    }
    for connection in 0..t.connections.count() {
        race.check(t.connections.of(connection)).map_err(Failure::new)?;
    }
    Ok(())
}

fn linearizable(t: &Trial<'_>) -> Result<(), Failure> {
    let recorder = Arc::new(Recorder::new());
    let shapes = [
        ("overlapping", Shape::contended()),
        // Extents that are mostly replaced whole, which engines may have a faster way for.
        ("whole", Shape { span_bytes: 2, extent_bytes_max: 1, remove_percent: 0, ..Shape::contended() }),
    ];
    for (name, shape) in shapes {
        let object = t.object(name);
        let results: Vec<Result<(), StoreError>> = thread::scope(|scope| {
            let threads: Vec<_> = (0..t.connections.count().max(2))
                .map(|number| {
                    let (store, shape, object) = (t.connections.of(number), shape.clone(), object.clone());
                    let (recorder, effort) = (recorder.clone(), t.effort);
                    scope.spawn(move || {
                        let seed = effort.seed.wrapping_mul(2000) + number as u64;
                        let mut generator = Generator::with_objects(seed, shape, vec![object]);
                        let mut under_way = VecDeque::new();
                        let mut left = effort.increments;
                        while left > 0 || !under_way.is_empty() {
                            if left > 0 && under_way.len() < WINDOW {
                                left -= 1;
                                let (object, transaction) = generator.transaction();
                                let record = recorder.begin(&object, &transaction);
                                under_way.push_back((store.apply(&object, transaction), object, record));
                                continue;
                            }
                            let Some((reply, object, record)) = under_way.pop_front() else { break };
                            let outcome = recorder.end(&object, record, block_on(reply))?;
                            generator.observe(&object, &outcome);
                        }
                        Ok(())
                    })
                })
                .collect();
            let ended = threads.into_iter().map(|thread| thread.join());
            let panicked = || Err(StoreError::new(ErrorKind::Io, "a client panicked"));
            ended.map(|result| result.unwrap_or_else(|_| panicked())).collect()
        });
        results.into_iter().collect::<Result<(), _>>()?;
    }
    recorder.check().map_err(Failure::new)
}
