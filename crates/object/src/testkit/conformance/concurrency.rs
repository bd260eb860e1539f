//! Cases with many clients at once.

use std::collections::BTreeSet;
use std::thread;

use ::bytes::Bytes;

use super::trial::*;
use super::{Case, Effort};
use crate::testkit::block_on;
use crate::testkit::history::{Generator, Shape};
use crate::testkit::linear::Recorder;
use crate::*;

pub(super) const CASES: &[Case] = &[
    ("concurrency/no lost update of bytes", no_lost_update),
    ("concurrency/no lost update of keys", no_lost_update_of_keys),
    ("concurrency/no lost update by versions of keys", no_lost_update_by_versions),
    ("concurrency/fenced sessions write no more", fenced_sessions),
    ("concurrency/one creator", one_creator),
    ("concurrency/versions", versions),
    ("concurrency/atomic", atomic),
    ("concurrency/many replies at once", many_replies),
    ("concurrency/linearizable", linearizable),
];

const D: Fork = Fork::DEFAULT;

/// Runs a client on each of several threads, and returns their results.
pub(super) fn clients<T: Send>(
    effort: Effort,
    client: impl Fn(u64) -> Result<T, Failure> + Sync,
) -> Result<Vec<T>, Failure> {
    let client = &client;
    thread::scope(|scope| {
        let threads: Vec<_> =
            (0..effort.threads as u64).map(|number| scope.spawn(move || client(number))).collect();
        let results = threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(Failure::new("a client panicked; its message stands above")))
        });
        // All threads have ended before the first failure is returned.
        results.collect::<Vec<_>>().into_iter().collect()
    })
}

fn apply(store: &dyn ObjectStore, object: &ObjectId, transaction: Transaction) -> Result<Outcome, Failure> {
    Ok(block_on(store.apply(object, transaction))?)
}

fn count(bytes: &[u8]) -> u64 {
    let mut count = [0; 8];
    count[..bytes.len().min(8)].copy_from_slice(&bytes[..bytes.len().min(8)]);
    u64::from_le_bytes(count)
}

/// Tests that no update is lost when clients read, add one, and write back on condition: the losers of a race go on
/// with what the refusal showed.
fn no_lost_update(t: &Trial<'_>) -> Result<(), Failure> {
    let connections = t.connections;
    let (a, f, effort) = (t.object("a"), fork("counter"), t.effort);
    let at = span(3, 11);
    let stamps = clients(effort, |number| {
        let store = connections.of(number as usize);
        let mut stamps = Vec::new();
        let read = ReadOp::Range { fork: f.clone(), range: at, intent: Intent::Update };
        let mut known: Option<RangeRead> = None;
        while (stamps.len() as u64) < effort.increments {
            let current = match known.take() {
                Some(current) => current,
                None => match apply(store, &a, tx().read(read.clone()))? {
                    Outcome::Done(mut done) => range_of(done.answers.remove(0))?,
                    Outcome::Refused(refusal) => {
                        return Err(Failure::new(format!("a plain read was refused: {refusal:?}")));
                    }
                },
            };
            let next = Bytes::copy_from_slice(&(count(&current.data) + 1).to_le_bytes());
            let write = tx().if_version(f.clone(), at, current.version).write(f.clone(), at.offset, next);
            match apply(store, &a, write)? {
                Outcome::Done(done) => stamps.push(done.version),
                Outcome::Refused(Refusal { found: Found::Region(found), .. }) => {
                    ensure!(found.version > current.version, "a refusal shows something newer");
                    known = Some(found);
                }
                Outcome::Refused(refusal) => {
                    return Err(Failure::new(format!("a lost race shows no region: {refusal:?}")));
                }
            }
        }
        ensure!(stamps.is_sorted_by(|a, b| a < b), "a client's versions grow: {stamps:?}");
        Ok(stamps)
    })?;
    let total = effort.threads as u64 * effort.increments;
    let Outcome::Done(mut done) = apply(t.store, &a, tx().read_range(f.clone(), at))? else {
        return Err(Failure::new("a plain read was refused"));
    };
    let read = range_of(done.answers.remove(0))?;
    same!(count(&read.data), total, "every acknowledged increment is counted, once");
    let stamps: BTreeSet<u64> = stamps.concat().into_iter().collect();
    ensure!(stamps.into_iter().eq(1..=total), "each successful write has a version of its own");
    Ok(())
}

fn no_lost_update_of_keys(t: &Trial<'_>) -> Result<(), Failure> {
    let connections = t.connections;
    let (a, effort) = (t.object("a"), t.effort);
    let name = key("counter");
    clients(effort, |number| {
        let store = connections.of(number as usize);
        let mut known: Option<Bytes> = None;
        let mut left = effort.increments;
        while left > 0 {
            let check = known.clone().map_or(Check::Absent, Check::Equal);
            let next = Bytes::copy_from_slice(&(count(known.as_deref().unwrap_or(&[])) + 1).to_le_bytes());
            let swap = tx().guard(Guard::Key { key: name.clone(), check });
            match apply(store, &a, swap.change(WriteOp::SetKey { key: name.clone(), value: next.clone() }))? {
                Outcome::Done(_) => (left, known) = (left - 1, Some(next)),
                Outcome::Refused(Refusal { found: Found::Value(found), .. }) => known = found,
                Outcome::Refused(refusal) => {
                    return Err(Failure::new(format!("a lost race shows no value: {refusal:?}")));
                }
            }
        }
        Ok(())
    })?;
    let Outcome::Done(done) = apply(t.store, &a, tx().read(ReadOp::Key { key: name }))? else {
        return Err(Failure::new("a plain read was refused"));
    };
    let Some(Answer::Value(Some(value))) = done.answers.first() else {
        return Err(Failure::new("the counter is gone"));
    };
    let total = effort.threads as u64 * effort.increments;
    same!(count(value), total, "every acknowledged increment is counted, once");
    Ok(())
}

/// Updates of one key of which only the versions tell: its value is the same all the time.
fn no_lost_update_by_versions(t: &Trial<'_>) -> Result<(), Failure> {
    let connections = t.connections;
    let (a, effort) = (t.object("a"), t.effort);
    let name = key("counter");
    clients(effort, |number| {
        let store = connections.of(number as usize);
        let mut version = 0;
        let mut left = effort.increments;
        while left > 0 {
            let swap = tx().guard(Guard::KeyVersion { key: name.clone(), version });
            match apply(store, &a, swap.change(WriteOp::SetKey { key: name.clone(), value: "same".into() }))?
            {
                Outcome::Done(done) => {
                    // Nobody writes anything else.
                    same!(done.version, version + 1, "an update follows the one that it was made from");
                    (left, version) = (left - 1, done.version);
                }
                Outcome::Refused(Refusal { found: Found::KeyVersion(found), .. }) => {
                    ensure!(found > version, "the key was at {version}, and is at {found} now");
                    version = found;
                }
                Outcome::Refused(refusal) => {
                    return Err(Failure::new(format!("a lost race shows no version: {refusal:?}")));
                }
            }
        }
        Ok(())
    })?;
    let read = tx().read(ReadOp::versioned_key(name));
    let Outcome::Done(done) = apply(t.store, &a, read)? else {
        return Err(Failure::new("a plain read was refused"));
    };
    let total = effort.threads as u64 * effort.increments;
    let found = Versioned { value: "same".into(), version: total };
    same!(done.answers, [Answer::VersionedValue(Some(found))], "every update took a version, once");
    Ok(())
}

/// Sessions write until the next one fences them: whatever was written in a session is older than its fence.
fn fenced_sessions(t: &Trial<'_>) -> Result<(), Failure> {
    let connections = t.connections;
    for round in 0..5 {
        let a = t.object(&format!("{round}"));
        let last = t.effort.threads as u64 - 1;
        let ends = clients(t.effort, |number| {
            let store = connections.of(number as usize);
            let own = || tx().guard(Guard::Fence { token: number });
            if number == last {
                // The last one lets each of the others write a little, and fences it.
                let mut fences = Vec::new();
                for session in 0..last {
                    let Outcome::Done(done) =
                        apply(store, &a, own().change(WriteOp::FenceSession { session }))?
                    else {
                        return Err(Failure::new("who is not fenced is refused"));
                    };
                    fences.push(done.version);
                }
                return Ok((0, fences));
            }
            let mut newest = 0;
            loop {
                let range = ByteRange::new(number, 1);
                match apply(store, &a, own().write(D, range.offset, "x"))? {
                    Outcome::Done(done) => newest = done.version,
                    Outcome::Refused(refusal) => {
                        same!(refusal.found, Found::Fence(0), "only single sessions are fenced");
                        return Ok((newest, Vec::new()));
                    }
                }
            }
        })?;
        let fences = ends.iter().flat_map(|(_, fences)| fences.clone()).collect::<Vec<u64>>();
        for (session, fence) in fences.into_iter().enumerate() {
            let Outcome::Done(done) = apply(
                t.store,
                &a,
                tx().read(ReadOp::Extents { fork: D, range: ByteRange::new(session as u64, 1) }),
            )?
            else {
                return Err(Failure::new("a plain read was refused"));
            };
            let Some(Answer::Range(read)) = done.answers.first() else {
                return Err(Failure::new("a read of extents is answered by something else"));
            };
            ensure!(read.version < fence, "session {session} wrote at {}, fenced at {fence}", read.version);
            let acknowledged = ends.iter().map(|(newest, _)| *newest).nth(session);
            same!(Some(read.version), acknowledged, "and all that it was told is there");
        }
    }
    Ok(())
}

fn one_creator(t: &Trial<'_>) -> Result<(), Failure> {
    let connections = t.connections;
    for round in 0..10 {
        let a = t.object(&format!("{round}"));
        let won = clients(t.effort, |number| {
            let create = tx().guard(Guard::Absent).write(D, 0, vec![number as u8]);
            Ok(matches!(apply(connections.of(number as usize), &a, create)?, Outcome::Done(_))
                .then_some(number as u8))
        })?;
        let winners: Vec<u8> = won.into_iter().flatten().collect();
        same!(winners.len(), 1, "exactly one of many creates an object");
        let Outcome::Done(done) = apply(t.store, &a, tx().read_range(D, span(0, 9)))? else {
            return Err(Failure::new("a plain read was refused"));
        };
        let Some(Answer::Range(read)) = done.answers.first() else {
            return Err(Failure::new("a read was not answered"));
        };
        same!(&read.data[..], &winners[..], "and it is what the winner wrote");
    }
    Ok(())
}

/// Tests unconditional writes at once: each is stamped with a version of its own, and none is skipped.
fn versions(t: &Trial<'_>) -> Result<(), Failure> {
    let connections = t.connections;
    let (a, effort) = (t.object("a"), t.effort);
    let stamps = clients(effort, |number| {
        let mut stamps: Vec<u64> = Vec::new();
        for index in 0..effort.increments {
            let write = tx().read(ReadOp::Stat).write(D, (number + index) % 7, vec![number as u8; 5]);
            let Outcome::Done(done) = apply(connections.of(number as usize), &a, write)? else {
                return Err(Failure::new("an unconditional write was refused"));
            };
            let Some(Answer::Stat(stat)) = done.answers.first() else {
                return Err(Failure::new("a stat was not answered"));
            };
            same!(
                stat.version + 1,
                done.version,
                "a transaction reads the state just before its own version"
            );
            ensure!(stamps.last().is_none_or(|last| *last < done.version), "a client's versions grow");
            stamps.push(done.version);
        }
        Ok(stamps)
    })?;
    let mut stamps = stamps.concat();
    stamps.sort_unstable();
    let total = effort.threads as u64 * effort.increments;
    ensure!(stamps.into_iter().eq(1..=total), "versions of concurrent writes are distinct and without gaps");
    Ok(())
}

/// Tests that readers see all of a vectored write or nothing of it, over extents, forks and keys.
fn atomic(t: &Trial<'_>) -> Result<(), Failure> {
    let connections = t.connections;
    let (a, effort) = (t.object("a"), t.effort);
    let f = fork("f");
    clients(effort, |number| {
        for index in 0..effort.increments {
            let fill = vec![(number * 16 + index % 16) as u8; 3];
            let extents = [0_u64, 70_000, 1 << 40].map(|at| (at, Bytes::from(fill.clone()))).to_vec();
            let write = tx().change(WriteOp::Extents { fork: f.clone(), extents }).write(D, 1, fill.clone());
            let write = write.change(WriteOp::SetKey { key: key("k"), value: fill.into() });
            let reads = tx().read_range(f.clone(), span(0, 3)).read_range(f.clone(), span(70_000, 70_003));
            let reads = reads.read_range(f.clone(), span(1 << 40, (1 << 40) + 3)).read_range(D, span(1, 4));
            let reads = reads.read(ReadOp::Key { key: key("k") });
            apply(connections.of(number as usize), &a, write)?;
            let Outcome::Done(done) = apply(connections.of(1 + number as usize), &a, reads)? else {
                return Err(Failure::new("a plain read was refused"));
            };
            let mut values = Vec::new();
            for answer in done.answers {
                match answer {
                    Answer::Range(read) => {
                        same!(read.version, done.version, "every part carries the last version");
                        values.push(read.data);
                    }
                    Answer::Value(value) => values.push(value.unwrap_or_default()),
                    other => return Err(Failure::new(format!("{other:?} answers neither"))),
                }
            }
            same!(values.len(), 5, "every read is answered");
            ensure!(values.iter().all(|value| *value == values[0]), "a write is seen whole: {values:?}");
        }
        Ok(())
    })?;
    Ok(())
}

/// Tests one client with many transactions under way: each is applied once, and each is answered.
fn many_replies(t: &Trial<'_>) -> Result<(), Failure> {
    let connections = t.connections;
    let (a, b) = (t.object("a"), t.object("b"));
    let count = 200;
    let replies: Vec<_> = (0..count)
        .map(|index| {
            let object = if index % 2 == 0 { &a } else { &b };
            connections.of(index as usize / 2).apply(object, tx().write(D, index, vec![1]))
        })
        .collect();
    let mut stamps = [BTreeSet::new(), BTreeSet::new()];
    for (index, reply) in replies.into_iter().enumerate().rev() {
        let Outcome::Done(done) = block_on(reply)? else {
            return Err(Failure::new("an unconditional write was refused"));
        };
        stamps[index % 2].insert(done.version);
    }
    for (object, stamps) in [&a, &b].into_iter().zip(stamps) {
        ensure!(stamps.into_iter().eq(1..=count / 2), "each was applied once");
        let Outcome::Done(done) = apply(t.store, object, tx().read_range(D, ByteRange::ALL))? else {
            return Err(Failure::new("a plain read was refused"));
        };
        let Some(Answer::Range(read)) = done.answers.first() else {
            return Err(Failure::new("a read was not answered"));
        };
        same!(
            read.data.iter().map(|byte| u64::from(*byte)).sum::<u64>(),
            count / 2,
            "and all of it is there"
        );
    }
    Ok(())
}

/// Tests that whatever concurrent clients do to a few objects, what they saw can have happened one after another.
fn linearizable(t: &Trial<'_>) -> Result<(), Failure> {
    let connections = t.connections;
    let (recorder, effort) = (Recorder::new(), t.effort);
    // Where others write near the end of the offset space, an append may fail.
    let any = Shape { objects: 2, appends: false, ..Shape::default() };
    for (name, shape) in [("contended", Shape::contended()), ("any", any)] {
        let objects: Vec<ObjectId> =
            (0..shape.objects).map(|index| t.object(&format!("{name}-{index}"))).collect();
        clients(effort, |number| {
            let seed = effort.seed.wrapping_mul(1000) + number;
            let mut generator = Generator::with_objects(seed, shape.clone(), objects.clone());
            for _ in 0..effort.increments {
                let (object, transaction) = generator.transaction();
                let outcome =
                    block_on(recorder.apply(connections.of(number as usize), &object, transaction))?;
                generator.observe(&object, &outcome);
            }
            Ok(())
        })?;
    }
    recorder.check().map_err(Failure::new)
}
