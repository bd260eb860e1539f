//! The model against something even plainer: a row of bytes, each with its own version. And the histories that engines
//! are tested with: they are reproducible, and they contain everything.

use std::collections::{BTreeMap, BTreeSet};

use nacre_object::testkit::history::{Generator, Shape};
use nacre_object::testkit::{Model, ObjectState};
use nacre_object::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// The number of bytes of a fork that the rows keep.
const SPAN: usize = 1000;

/// A byte: its version, whether it is data, and its value.
type Cell = (u64, bool, u8);

#[derive(Default)]
struct Rows {
    forks: BTreeMap<Fork, Vec<Cell>>,
    /// The initial cell of forks that have no row yet.
    tombstone_version: Cell,
}

impl Rows {
    fn row(&mut self, fork: &Fork) -> &mut Vec<Cell> {
        let tombstone_version = self.tombstone_version;
        self.forks.entry(fork.clone()).or_insert_with(|| vec![tombstone_version; SPAN])
    }

    fn change(&mut self, write: &WriteOp, version: u64, sizes: &BTreeMap<Fork, u64>) {
        let hole = (version, false, 0);
        match write {
            WriteOp::Extents { fork, extents } => {
                for (offset, bytes) in extents {
                    for (at, byte) in (*offset as usize..).zip(bytes) {
                        self.row(fork)[at] = (version, true, *byte);
                    }
                }
            }
            WriteOp::Append { fork, data } => {
                let from = sizes.get(fork).copied().unwrap_or(0);
                for (at, byte) in (from as usize..).zip(data) {
                    self.row(fork)[at] = (version, true, *byte);
                }
            }
            WriteOp::Zero { fork, range } => {
                let end = range.end().min(SPAN as u64) as usize;
                self.row(fork)[(range.offset as usize).min(end)..end].fill(hole);
            }
            WriteOp::Truncate { fork, size } => {
                let from = sizes.get(fork).copied().unwrap_or(0).min(*size) as usize;
                self.row(fork)[from..].fill(hole);
            }
            // Forks that were never there were not touched by any write that makes a row.
            WriteOp::RemoveFork { fork } => {
                if let Some(row) = self.forks.get_mut(fork)
                    && (sizes.contains_key(fork) || row.iter().any(|cell| *cell != self.tombstone_version))
                {
                    row.fill(hole);
                }
            }
            WriteOp::ReplaceFork { fork, from } if sizes.contains_key(from) => {
                let mut row = std::mem::replace(self.row(from), vec![hole; SPAN]);
                for (taken, is_data, value) in &mut row {
                    (*taken, *value) = (version, if *is_data { *value } else { 0 });
                }
                self.forks.insert(fork.clone(), row);
            }
            WriteOp::Remove => *self = Self { tombstone_version: hole, ..Self::default() },
            _ => {}
        }
    }
}

fn sizes(state: &ObjectState) -> BTreeMap<Fork, u64> {
    state.known_forks().filter_map(|fork| Some((fork.clone(), state.fork_size(fork)?))).collect()
}

fn range_of(answer: Answer) -> RangeRead {
    match answer {
        Answer::Range(read) => read,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_byte_is_that_of_its_last_write() {
    let shape = Shape { objects: 1, writes_max: 1, far_percent: 0, remove_percent: 4, ..Shape::default() };
    for seed in 0..150 {
        let mut generator = Generator::new(seed, shape.clone());
        let (mut rows, mut before) = (Rows::default(), ObjectState::default());
        for _ in 0..60 {
            let step = generator.step();
            let object = generator.model().state(&step.object);
            if matches!(step.expected, Ok(Outcome::Done(_))) {
                // One write for each transaction, so that the sizes it saw are those before the transaction.
                for write in &step.transaction.writes {
                    rows.change(write, object.version(), &sizes(&before));
                }
            }
            before = object.clone();
            for fork in ["", "f1", "f2"].map(|name| Fork::try_from(name).unwrap()) {
                let row = rows.row(&fork).clone();
                for (start, end) in [(0, SPAN), (0, 1), (13, 14), (50, 111), (77, 78), (199, 320)] {
                    let range = ByteRange::from(start as u64..end as u64);
                    let read = Transaction::new().read_range(fork.clone(), range);
                    let Ok(Outcome::Done(mut done)) = object.clone().apply(&read) else { panic!() };
                    let read = range_of(done.answers.remove(0));
                    let mut cells: Vec<Cell> = vec![(0, false, 0); end - start];
                    for extent in &read.extents {
                        let from = (extent.range.offset as usize) - start;
                        for cell in &mut cells[from..from + extent.range.len as usize] {
                            assert_eq!(cell.0, 0, "seed {seed}: extents overlap");
                            (cell.0, cell.1) = (extent.version, extent.kind == ExtentKind::Data);
                        }
                    }
                    for (cell, byte) in cells.iter_mut().zip(&read.data) {
                        cell.2 = *byte;
                    }
                    assert_eq!(cells, row[start..end], "seed {seed}: {fork:?} {range:?}");
                    let version = row[start..end].iter().map(|cell| cell.0).max().unwrap();
                    assert_eq!((read.version, read.next), (version, None), "seed {seed}: {fork:?} {range:?}");
                    let apart = |pair: &[Extent]| {
                        let touching = pair[0].range.end() == pair[1].range.offset;
                        let alike = (pair[0].version, pair[0].kind) == (pair[1].version, pair[1].kind);
                        pair[0].range.end() <= pair[1].range.offset && !(touching && alike)
                    };
                    assert!(read.extents.windows(2).all(apart), "seed {seed}: extents are maximal: {read:?}");
                }
            }
        }
    }
}

#[test]
fn histories_reproduce() {
    let history = |seed| Generator::new(seed, Shape::default()).take(50).map(|step| format!("{step:?}"));
    assert!(history(3).eq(history(3)));
    assert!(!history(3).eq(history(4)));
}

/// Returns the name of a variant.
fn name(value: &impl std::fmt::Debug) -> String {
    format!("{value:?}").split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_string()
}

#[test]
fn histories_have_everything() {
    let (mut guards, mut checks, mut refused) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let (mut reads, mut writes) = (BTreeSet::new(), BTreeSet::new());
    let (mut done, mut steps) = (0, 0);
    for seed in 0..40 {
        for step in Generator::new(seed, Shape::default()).take(50) {
            steps += 1;
            for guard in &step.transaction.guards {
                guards.insert(name(guard));
                if let Guard::Key { check, .. } | Guard::Attribute { check, .. } = guard {
                    checks.insert(name(check));
                }
            }
            reads.extend(step.transaction.reads.iter().map(name));
            writes.extend(step.transaction.writes.iter().map(name));
            match step.expected.unwrap() {
                Outcome::Done(_) => done += 1,
                Outcome::Refused(refusal) => refused.extend([name(&step.transaction.guards[refusal.guard])]),
            }
        }
    }
    assert_eq!((guards.len(), checks.len()), (10, 8), "{guards:?} {checks:?}");
    assert_eq!(refused.len(), 10, "each guard fails at times: {refused:?}");
    assert_eq!((reads.len(), writes.len()), (11, 14), "{reads:?} {writes:?}");
    assert!(done * 10 > steps * 7 && done * 100 < steps * 97, "most guards hold: {done} of {steps}");
}

/// A guard that held when it was made, with the number of writes to the object before, and what it is about.
struct Seen {
    object: ObjectId,
    guard: Guard,
    writes: u64,
    /// The version of the region by a model that remembers everything.
    plain_version: u64,
}

/// Histories of a store that forgets, beside one that raises the same floor and forgets nothing, and one that has no floor.
#[test]
fn what_is_forgotten_is_never_taken_for_what_it_was() {
    let names = ["a", "b", "c", "d", "e", "nacre/own"].map(|name| ObjectId::try_from(name).unwrap());
    let (mut forgotten, mut kept, mut refused, mut raised) = (0, 0, 0, 0);
    for seed in 0..100 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let shape = Shape { remove_percent: 15, far_percent: 0, miss_percent: 5, ..Shape::default() };
        let mut generator = Generator::with_objects(seed, shape, names.to_vec());
        let (mut store, mut remembering, mut plain) = (Model::new(), Model::new(), Model::new());
        let mut writes: BTreeMap<ObjectId, u64> = BTreeMap::new();
        let mut latest: BTreeMap<ObjectId, u64> = BTreeMap::new();
        let mut seen: Vec<Seen> = Vec::new();
        let mut fenced: BTreeSet<(ObjectId, u64)> = BTreeSet::new();
        for _ in 0..120 {
            if rng.random_bool(0.1) {
                let removed = names.iter().map(|name| store.state(name)).filter(|state| !state.exists());
                let floor = removed.map(|state| state.version()).max().unwrap_or(0) + rng.random_range(0..3);
                store.raise_floor(floor);
                remembering.raise_floor(floor);
                raised += 1;
            }
            if rng.random_bool(0.3) {
                let object = &names[rng.random_range(0..names.len())];
                let fences = store.state(object).fences();
                if store.forget(object) {
                    assert!(!object.is_remembered() && fences == Fences::default());
                    forgotten += 1;
                } else {
                    kept += 1;
                }
            }
            // Mostly what the store of this history says, and now and then whatever comes.
            let (object, transaction) = generator.transaction();
            let outcome = store.apply(&object, &transaction);
            assert_eq!(remembering.apply(&object, &transaction), outcome, "seed {seed}: nobody can tell");
            let Ok(outcome) = outcome else { continue };
            generator.observe(&object, &outcome);
            let version = match &outcome {
                Outcome::Done(done) => done.version,
                Outcome::Refused(refusal) => refusal.version,
            };
            let before = latest.insert(object.clone(), version).unwrap_or(0);
            assert!(version >= before, "seed {seed}: version {version} of {object} after {before}");
            if matches!(outcome, Outcome::Done(_)) && !transaction.writes.is_empty() {
                assert!(version > before, "seed {seed}: version {version} is given twice");
                *writes.entry(object.clone()).or_default() += 1;
                let effects = Transaction { writes: transaction.writes.clone(), ..Transaction::new() };
                plain.apply(&object, &effects).unwrap();
                let _ = generator.apply(&object, &effects);
            }
            for Seen { object, guard, writes: count, plain_version } in &seen {
                let probe = Transaction::new().guard(guard.clone());
                let holds = matches!(store.state(object).apply(&probe), Ok(Outcome::Done(_)));
                let written = writes.get(object).copied().unwrap_or(0) != *count;
                match guard {
                    Guard::Version { .. } => {
                        assert!(!holds || !written, "seed {seed}: {guard:?} of {object} holds again")
                    }
                    Guard::Region { fork, range, .. } => {
                        let now = plain.state(object).region_version(fork, *range);
                        assert!(!holds || now == *plain_version, "seed {seed}: {guard:?} of {object}");
                    }
                    Guard::Fence { token } => {
                        // Refused is who was fenced, from then on, and nobody else.
                        let is_fenced = plain.state(object).fences();
                        let is_fenced = *token < is_fenced.fence || is_fenced.sessions.contains(token);
                        assert_eq!(holds, !is_fenced, "seed {seed}: {guard:?} of {object}");
                        if !holds {
                            fenced.insert((object.clone(), *token));
                        }
                        assert!(!holds || !fenced.contains(&(object.clone(), *token)));
                    }
                    _ => unreachable!(),
                }
                refused += u32::from(!holds);
            }
            let object = names[rng.random_range(0..names.len())].clone();
            let state = store.state(&object);
            let range = ByteRange::new(rng.random_range(0..200), rng.random_range(1..60));
            let region = state.region_version(&Fork::DEFAULT, range);
            let guards = [
                Guard::Version { version: state.version() },
                Guard::Region { fork: Fork::DEFAULT, range, version: region },
                Guard::Fence { token: rng.random_range(0..24) },
            ];
            if seen.len() == 25 {
                seen.swap_remove(rng.random_range(0..25));
            }
            seen.push(Seen {
                guard: guards[rng.random_range(0..guards.len())].clone(),
                writes: writes.get(&object).copied().unwrap_or(0),
                plain_version: plain.state(&object).region_version(&Fork::DEFAULT, range),
                object,
            });
        }
    }
    assert!(
        forgotten > 50 && kept > 300 && refused > 1000 && raised > 300,
        "{forgotten} {kept} {refused} {raised}"
    );
}
