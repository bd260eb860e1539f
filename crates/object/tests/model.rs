//! The model against something even plainer: a row of bytes, each with its own version. And the histories that engines
//! are tested with: they are reproducible, and they contain everything.

use std::collections::{BTreeMap, BTreeSet};

use nacre_object::testkit::ObjectState;
use nacre_object::testkit::history::{Generator, Shape};
use nacre_object::*;

/// The number of bytes of a fork that the rows keep.
const SPAN: usize = 4000;

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

    fn change(&mut self, write: &Write, version: u64, sizes: &BTreeMap<Fork, u64>) {
        let hole = (version, false, 0);
        match write {
            Write::Extents { fork, extents } => {
                for (offset, bytes) in extents {
                    for (at, byte) in (*offset as usize..).zip(bytes) {
                        self.row(fork)[at] = (version, true, *byte);
                    }
                }
            }
            Write::Append { fork, data } => {
                let from = sizes.get(fork).copied().unwrap_or(0);
                for (at, byte) in (from as usize..).zip(data) {
                    self.row(fork)[at] = (version, true, *byte);
                }
            }
            Write::Zero { fork, range } => {
                let end = range.end().min(SPAN as u64) as usize;
                self.row(fork)[(range.offset as usize).min(end)..end].fill(hole);
            }
            Write::Truncate { fork, size } => {
                let from = sizes.get(fork).copied().unwrap_or(0).min(*size) as usize;
                self.row(fork)[from..].fill(hole);
            }
            // Forks that were never there were not touched by any write that makes a row.
            Write::RemoveFork { fork } => {
                if let Some(row) = self.forks.get_mut(fork)
                    && (sizes.contains_key(fork) || row.iter().any(|cell| *cell != self.tombstone_version))
                {
                    row.fill(hole);
                }
            }
            Write::ReplaceFork { fork, from } if sizes.contains_key(from) => {
                let mut row = std::mem::replace(self.row(from), vec![hole; SPAN]);
                for (taken, is_data, value) in &mut row {
                    (*taken, *value) = (version, if *is_data { *value } else { 0 });
                }
                self.forks.insert(fork.clone(), row);
            }
            Write::Remove => *self = Self { tombstone_version: hole, ..Self::default() },
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
            let object = generator.model().object(&step.object).cloned().unwrap_or_default();
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
    assert_eq!((guards.len(), checks.len()), (9, 8), "{guards:?} {checks:?}");
    assert_eq!(refused.len(), 9, "each guard fails at times: {refused:?}");
    assert_eq!((reads.len(), writes.len()), (11, 13), "{reads:?} {writes:?}");
    assert!(done * 10 > steps * 7 && done * 100 < steps * 97, "most guards hold: {done} of {steps}");
}
