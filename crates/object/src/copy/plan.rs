//! The writes, each with its version, that turn one fork into another: no I/O.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::look::ObjectSnapshot;
use crate::limit::{OFFSET_MAX, TRANSACTION_BYTES_MAX};
use crate::*;

/// A fork without its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ForkState {
    /// Its size in bytes, or `None` if it does not exist; it may still have extents.
    pub(super) size: Option<u64>,
    /// All its extents, in order.
    pub(super) extents: Vec<Extent>,
}

/// The changes made by one version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    /// True if the object is removed.
    pub(super) remove: bool,
    /// True if the version is the object's own.
    pub(super) last: bool,
    /// Forks that were replaced whole, with content that is more than one transaction holds.
    pub(super) replaced: Vec<Replacement>,
    /// Changes of forks, before the data, in order.
    pub(super) changes: Vec<WriteOp>,
    /// Ranges of forks whose bytes are copied.
    pub(super) data: BTreeMap<Fork, Vec<ByteRange>>,
}

/// A fork that is replaced whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Replacement {
    /// The fork.
    pub(super) fork: Fork,
    /// Its size in bytes.
    pub(super) size: u64,
    /// Ranges of it whose bytes are copied.
    pub(super) data: Vec<ByteRange>,
}

/// The maximum length, in bytes, of a gap between pieces of one version that is written too, if something newer
/// overwrites it anyway: pieces that were one extent once become one again.
const FILL_BYTES_MAX: u64 = 512;

/// Returns everything that has to be written so that a copy becomes the original. `None` if it cannot be an earlier
/// state of it.
pub(super) fn steps(from: &ObjectSnapshot, to: &ObjectSnapshot) -> Option<BTreeMap<u64, Step>> {
    let mut base = to.stat.version;
    let mut steps: BTreeMap<u64, Step> = BTreeMap::new();
    // Everything before the last removal is gone, in the copy as well. The removal may have been part of a
    // transaction that made the object again, so its own version counts as missing.
    let reset = from.tombstone_version > base;
    if reset {
        steps.entry(from.tombstone_version).or_default().remove = true;
        base = from.tombstone_version - 1;
    }
    if from.stat.exists {
        let replaced = replaced(from, base);
        for (name, original) in &from.forks {
            let copy = to.forks.get(name).filter(|_| !reset).cloned().unwrap_or_default();
            let last = from.stat.version;
            match replaced.get(name) {
                None => fork(name, original, &copy, base, last, &mut steps)?,
                Some(version) => {
                    within(&copy.extents, &original.extents, base)?;
                    let data = runs(&original.extents, ExtentKind::Data, version - 1);
                    let data =
                        data.into_iter().filter(|(_, written)| written == version).map(|(range, _)| range);
                    let size = original.size.unwrap_or(0);
                    let new = Replacement { fork: name.clone(), size, data: data.collect() };
                    steps.entry(*version).or_default().replaced.push(new);
                    // From there on it is written to like any other.
                    let all = Extent { range: ByteRange::ALL, version: *version, kind: ExtentKind::Hole };
                    let copy = ForkState { size: original.size, extents: vec![all] };
                    changes(name, original, &copy, *version, &mut steps)?;
                }
            }
        }
        steps.entry(from.stat.version).or_default().last = true;
    }
    Some(steps)
}

/// Returns the forks of which more carries one version than a transaction holds, with that version: they replaced
/// another fork, so all of such a fork is at least as new.
fn replaced(from: &ObjectSnapshot, base: u64) -> BTreeMap<Fork, u64> {
    let mut sums: BTreeMap<u64, u64> = BTreeMap::new();
    let mut candidates = Vec::new();
    for (name, fork) in &from.forks {
        let least = oldest(fork, 0).filter(|least| fork.size.is_some() && *least > base);
        let mut own = 0;
        for (range, version) in runs(&fork.extents, ExtentKind::Data, base) {
            *sums.entry(version).or_default() += range.len;
            own += if Some(version) == least { range.len } else { 0 };
        }
        candidates.extend(least.map(|least| (own, name, least)));
    }
    // The largest first, until what is left fits.
    candidates.sort();
    let mut replaced = BTreeMap::new();
    for (own, name, version) in candidates.into_iter().rev() {
        let sum = sums.entry(version).or_default();
        if own > 0 && *sum > TRANSACTION_BYTES_MAX as u64 {
            *sum -= own;
            replaced.insert(name.clone(), version);
        }
    }
    replaced
}

/// Adds the steps that bring the copy of a fork, which has everything up to version `base`, to the state of the
/// original. `None` if the copy cannot be an earlier state of the original.
fn fork(
    name: &Fork,
    original: &ForkState,
    copy: &ForkState,
    base: u64,
    last: u64,
    steps: &mut BTreeMap<u64, Step>,
) -> Option<()> {
    within(&copy.extents, &original.extents, base)?;
    let old: Vec<Extent> = original.extents.iter().filter(|extent| extent.version <= base).copied().collect();
    // Holes that the fork had before it came to be, and so before it could be copied: they come with its first new version.
    let lacking = lacking(&old, &copy.extents)?;
    if original.size.is_some() {
        let newer = original.extents.iter().map(|extent| extent.version).filter(|version| *version > base);
        let version = newer.min().unwrap_or(last);
        let zero = |range| WriteOp::Zero { fork: name.clone(), range };
        steps.entry(version).or_default().changes.extend(lacking.into_iter().map(zero));
    }
    changes(name, original, copy, base, steps)
}

/// Adds the steps for what is newer than `base`.
fn changes(
    name: &Fork,
    original: &ForkState,
    copy: &ForkState,
    base: u64,
    steps: &mut BTreeMap<u64, Step>,
) -> Option<()> {
    resize(name, original, copy, base, steps)?;
    for (range, version) in runs(&original.extents, ExtentKind::Hole, base) {
        steps.entry(version).or_default().changes.push(WriteOp::Zero { fork: name.clone(), range });
    }
    for (range, version) in runs(&original.extents, ExtentKind::Data, base) {
        steps.entry(version).or_default().data.entry(name.clone()).or_default().push(range);
    }
    Some(())
}

/// Checks that each of the copy's extents is among the original's, or lies under something newer than `base` there.
/// Holes may be of other versions.
fn within(copy: &[Extent], original: &[Extent], base: u64) -> Option<()> {
    let mut others = original.iter().peekable();
    for extent in copy {
        let (mut at, end) = (extent.range.offset, extent.range.end());
        while at < end {
            while others.peek().is_some_and(|other| other.range.end() <= at) {
                others.next();
            }
            let other = others.peek();
            let Some(other) = other.filter(|other| other.range.offset <= at) else {
                // A hole over what was never written, or so it seems: harmless.
                let next = other.map_or(end, |other| other.range.offset);
                if extent.kind == ExtentKind::Data {
                    return None;
                }
                at = next.min(end);
                continue;
            };
            // Which of two holes is newer is looked at by [`lacking`].
            let hole = extent.kind == ExtentKind::Hole;
            let same = extent.kind == other.kind && (other.version == extent.version || hole);
            if !same && other.version <= base {
                return None;
            }
            at = other.range.end();
        }
    }
    Some(())
}

/// Returns the ranges of the original's old holes for which the copy has nothing, or an older hole. Returns `None` if
/// it lacks data.
fn lacking(old: &[Extent], copy: &[Extent]) -> Option<Vec<ByteRange>> {
    let mut ranges = Vec::new();
    let mut others = copy.iter().peekable();
    for extent in old {
        let (mut at, end) = (extent.range.offset, extent.range.end());
        while at < end {
            while others.peek().is_some_and(|other| other.range.end() <= at) {
                others.next();
            }
            let (next, found) = match others.peek() {
                Some(other) if other.range.offset <= at => (other.range.end().min(end), Some(**other)),
                Some(other) => (other.range.offset.min(end), None),
                None => (end, None),
            };
            match (extent.kind, found) {
                (kind, Some(other)) if other.kind == kind && other.version == extent.version => {}
                (ExtentKind::Hole, Some(other)) if other.kind == ExtentKind::Hole => {
                    if other.version < extent.version {
                        ranges.push(ByteRange::from(at..next));
                    }
                }
                (ExtentKind::Hole, None) => ranges.push(ByteRange::from(at..next)),
                _ => return None,
            }
            at = next;
        }
    }
    Some(ranges)
}

/// Makes the fork exist, or not, and sets its size. Sizes cannot be set without painting holes, so that is done at the
/// version that painted the hole there anyway.
fn resize(
    name: &Fork,
    original: &ForkState,
    copy: &ForkState,
    base: u64,
    steps: &mut BTreeMap<u64, Step>,
) -> Option<()> {
    let mut change = |version: u64, writes: Vec<WriteOp>| {
        let changes = &mut steps.entry(version).or_default().changes;
        changes.extend(writes);
    };
    let byte = |offset: u64| WriteOp::Extents {
        fork: name.clone(),
        extents: vec![(offset, Bytes::from_static(&[0]))],
    };
    let Some(size) = original.size else {
        if copy.size.is_some() {
            // It was removed since: that painted all of it, at the least of the versions that are there now.
            let version = oldest(original, 0).filter(|version| *version > base)?;
            change(version, vec![WriteOp::RemoveFork { fork: name.clone() }]);
        }
        return Some(());
    };
    let copied = copy.size.unwrap_or(0);
    if copied == size {
        return Some(());
    }
    let last = original
        .extents
        .iter()
        .find(|extent| size > 0 && extent.range.offset < size && extent.range.end() >= size);
    let last = last.filter(|extent| extent.version > base);
    match last {
        // The last byte is written: that makes the fork as large.
        Some(extent) if copied < size && extent.kind == ExtentKind::Data => {}
        // It was zeroed, which changed no size: first a byte, then the hole over it.
        Some(extent) if copied < size => change(extent.version, vec![byte(size - 1)]),
        // It was cut to that size, which painted a hole from there to the end of the offset space.
        _ => {
            let version = oldest(original, size).filter(|version| *version > base)?;
            let mut writes = vec![WriteOp::Truncate { fork: name.clone(), size }];
            if copied < size {
                // Something to cut off, so that nothing before the cut is painted.
                writes.insert(0, byte(size));
            }
            change(version, writes);
        }
    }
    Some(())
}

/// Returns the least version among the extents from an offset to the end of the offset space, if they cover all of
/// that.
fn oldest(fork: &ForkState, from: u64) -> Option<u64> {
    let (mut at, mut least) = (from, None::<u64>);
    for extent in fork.extents.iter().filter(|extent| extent.range.end() > from) {
        if extent.range.offset > at {
            return None;
        }
        at = extent.range.end();
        least = Some(least.map_or(extent.version, |least| least.min(extent.version)));
    }
    least.filter(|_| at == OFFSET_MAX)
}

/// Returns the ranges of one kind that each version above `base` wrote, joined where only newer extents lie between
/// them: later steps overwrite those.
fn runs(extents: &[Extent], kind: ExtentKind, base: u64) -> Vec<(ByteRange, u64)> {
    let mut done = Vec::new();
    // Runs that may still grow, older below newer.
    let mut open: Vec<(ByteRange, u64)> = Vec::new();
    let mut at = 0;
    for extent in extents {
        if extent.range.offset > at {
            // Never written, or not since the object was removed: nothing goes over it.
            done.append(&mut open);
        }
        at = extent.range.end();
        let matches = extent.kind == kind && extent.version > base;
        // A hole may pass under data of the same version, which is written after it.
        let closes = |version: u64| match kind {
            ExtentKind::Hole => version > extent.version,
            ExtentKind::Data => version > extent.version || version == extent.version && !matches,
        };
        while open.last().is_some_and(|(_, version)| closes(*version)) {
            done.extend(open.pop());
        }
        if !matches {
            continue;
        }
        match open.last_mut() {
            Some((range, version))
                if *version == extent.version
                    && (kind == ExtentKind::Hole || extent.range.offset - range.end() <= FILL_BYTES_MAX) =>
            {
                range.len = extent.range.end() - range.offset;
            }
            _ => open.push((extent.range, extent.version)),
        }
    }
    done.append(&mut open);
    done
}
