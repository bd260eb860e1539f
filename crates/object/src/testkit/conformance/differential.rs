//! Random histories, compared with the model step by step; and whole objects, compared with the model's.

use super::trial::*;
use super::{Case, Failure};
use crate::limit::*;
use crate::testkit::history::{Generator, Shape};
use crate::testkit::{Model, ObjectState, block_on};
use crate::*;

pub(super) const CASES: &[Case] = &[
    ("differential/small objects", small_objects),
    ("differential/one busy fork", busy_fork),
    ("differential/large extents", large_extents),
];

fn small_objects(t: &Trial<'_>) -> Result<(), Failure> {
    histories(t, t.effort.histories, t.effort.transactions, Shape::default())
}

fn busy_fork(t: &Trial<'_>) -> Result<(), Failure> {
    let shape = Shape { objects: 1, forks: 1, span_bytes: 40, remove_percent: 1, ..Shape::default() };
    histories(t, t.effort.histories.div_ceil(2), t.effort.transactions, shape)
}

fn large_extents(t: &Trial<'_>) -> Result<(), Failure> {
    let shape = Shape {
        objects: 1,
        forks: 2,
        span_bytes: 400_000,
        extent_bytes_max: 150_000,
        value_bytes_max: 3000,
        ..Shape::default()
    };
    histories(t, t.effort.histories.div_ceil(20), t.effort.transactions, shape)
}

fn histories(t: &Trial<'_>, count: u64, transactions: usize, shape: Shape) -> Result<(), Failure> {
    for seed in t.effort.seed..t.effort.seed + count {
        let objects = (0..shape.objects).map(|index| t.object(&format!("{seed}-{index}"))).collect();
        let mut generator = Generator::with_objects(seed, shape.clone(), objects);
        for number in 0..transactions {
            let step = generator.step();
            t.apply(&step.object, step.transaction)
                .map_err(|failure| Failure::new(format!("seed {seed}, transaction {number}: {failure}")))?;
        }
        compare(t.next_connection(), generator.model(), generator.objects())
            .map_err(|failure| Failure::new(format!("seed {seed}, at the end: {failure}")))?;
    }
    Ok(())
}

/// Compares every byte, extent, key and attribute of objects with the model's, their versions, and fences: a failure
/// says what differs.
pub fn compare(store: &dyn ObjectStore, model: &Model, objects: &[ObjectId]) -> Result<(), Failure> {
    compare_by(store, model, objects, |_| true)
}

/// Compares as [`compare`] does, but for the versions of keys, which copies of an object do not keep.
pub fn compare_copies(store: &dyn ObjectStore, model: &Model, objects: &[ObjectId]) -> Result<(), Failure> {
    let shows_versions = |read: &ReadOp| matches!(read, ReadOp::VersionedKeys { .. });
    compare_by(store, model, objects, |probe| !probe.reads.iter().any(shows_versions))
}

fn compare_by(
    store: &dyn ObjectStore,
    model: &Model,
    objects: &[ObjectId],
    is_meant: impl Fn(&Transaction) -> bool,
) -> Result<(), Failure> {
    for object in objects {
        let mut state = model.state(object);
        for probe in probes(&state).into_iter().filter(&is_meant) {
            let expected = state.apply(&probe);
            let found = block_on(store.apply(object, probe.clone()));
            if found != expected {
                let (probe, found, expected) = (brief(&probe.reads), brief(&found), brief(&expected));
                return Err(Failure::new(format!("{probe} of {object}: found {found}, expected {expected}")));
            }
        }
    }
    Ok(())
}

/// Returns transactions of reads that together show everything of an object in a state, and that it has nothing else.
pub fn probes(state: &ObjectState) -> Vec<Transaction> {
    let mut probes = vec![Transaction::new().read(ReadOp::Stat).read(ReadOp::Fences)];
    let mut after = None;
    loop {
        // The greatest page without values is never cut for its length.
        let range = KeyRange { after: after.take(), ..KeyRange::all() };
        let names = state.keys().keys().filter(|key| range.contains(key.as_bytes()));
        after = names.take(PAGE_ENTRIES_MAX).nth(PAGE_ENTRIES_MAX - 1).map(Key::to_bytes);
        let limit = PAGE_ENTRIES_MAX as u32;
        probes.push(Transaction::new().read(ReadOp::VersionedKeys { range, limit, values: false }));
        if after.is_none() {
            break;
        }
    }
    let mut after = None;
    for (index, key) in state.keys().keys().enumerate() {
        // A page of 8 values of the greatest size is never cut.
        if index % 8 == 0 {
            let range = KeyRange { after: after.take(), ..KeyRange::all() };
            probes.push(Transaction::new().read(ReadOp::Keys { range, limit: 8, values: true }));
        }
        after = Some(key.to_bytes());
    }
    let rest = ReadOp::Keys { range: KeyRange { after, ..KeyRange::all() }, limit: 8, values: true };
    let mut forks = Transaction::new().read(rest);
    for name in state.attributes().keys() {
        probes.push(Transaction::new().read(ReadOp::Attribute { name: name.clone() }));
    }
    let mut after = None;
    let names: Vec<&Fork> = state.known_forks().collect();
    for chunk in names.chunks(PAGE_ENTRIES_MAX) {
        forks = forks.read(ReadOp::Forks { after: after.take(), limit: PAGE_ENTRIES_MAX as u32 });
        after = chunk.last().map(|name| (*name).clone());
    }
    probes.push(forks.read(ReadOp::Forks { after, limit: PAGE_ENTRIES_MAX as u32 }));
    // The default fork is always asked for, so that a store cannot hide there what the model does not know.
    for fork in std::iter::once(&Fork::DEFAULT).chain(names) {
        probe_fork(state, fork, &mut probes);
    }
    probes
}

fn probe_fork(state: &ObjectState, fork: &Fork, probes: &mut Vec<Transaction>) {
    let mut extents = state.all_extents(fork);
    // In stretches that no answer cuts, and that may end within a gap.
    let mut start = 0;
    while !extents.is_empty() {
        let rest = extents.split_off(extents.len().min(EXTENTS_PER_READ_MAX - 1));
        let end = rest.first().map_or(OFFSET_MAX, |extent| extent.range.offset);
        let range = ByteRange::from(start..end);
        probes.push(Transaction::new().read(ReadOp::Extents { fork: fork.clone(), range }));
        start = end;
        for extent in extents.into_iter().filter(|extent| extent.kind == ExtentKind::Data) {
            let mut at = extent.range.offset;
            while at < extent.range.end() {
                let len = (extent.range.end() - at).min(REPLY_BYTES_MAX as u64);
                probes.push(Transaction::new().read_range(fork.clone(), ByteRange::new(at, len)));
                at += len;
            }
        }
        extents = rest;
    }
    // Nothing but zeros may stand in holes and gaps either; a look at the first stretch stands for them.
    let first = state.fork_size(fork).unwrap_or(0).clamp(1, 4096);
    probes.push(Transaction::new().read_range(fork.clone(), ByteRange::new(0, first)));
}
