//! What has to be written, at which version, so that one fork becomes another: no I/O.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::limit::OFFSET_MAX;
use crate::*;

/// A fork but for its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ForkState {
    /// Its size, or `None` if it does not exist; it may have extents all the same.
    pub(super) size: Option<u64>,
    /// All its extents, in order.
    pub(super) extents: Vec<Extent>,
}

/// What one version wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    /// The object is removed.
    pub(super) remove: bool,
    /// It is the object's own version.
    pub(super) last: bool,
    /// Changes of forks, before the data, in order.
    pub(super) changes: Vec<Write>,
    /// Ranges of forks whose bytes are copied.
    pub(super) data: BTreeMap<Fork, Vec<ByteRange>>,
}

/// Gaps up to so many bytes between pieces of one version are written too if something newer goes over them anyhow:
/// pieces that were one extent once become one again.
const FILL_BYTES_MAX: u64 = 512;

/// Adds the steps that bring the copy of a fork, which has everything up to version `base`, to where the original is.
/// `None` if the copy cannot be an earlier state of the original.
pub(super) fn fork(
    name: &Fork,
    original: &ForkState,
    copy: &ForkState,
    base: u64,
    steps: &mut BTreeMap<u64, Step>,
) -> Option<()> {
    within(&copy.extents, &original.extents, base)?;
    let old: Vec<Extent> = original.extents.iter().filter(|extent| extent.version <= base).copied().collect();
    within(&old, &copy.extents, u64::MAX)?;
    resize(name, original, copy, base, steps)?;
    let newer: Vec<Extent> = original.extents.clone();
    for (range, version) in runs(&newer, ExtentKind::Hole, base) {
        steps.entry(version).or_default().changes.push(Write::Zero { fork: name.clone(), range });
    }
    for (range, version) in runs(&newer, ExtentKind::Data, base) {
        steps.entry(version).or_default().data.entry(name.clone()).or_default().push(range);
    }
    Some(())
}

/// Checks that each of some extents is among others, or lies under something newer than `base` there; where `base` is
/// the greatest number, under nothing.
fn within(extents: &[Extent], others: &[Extent], base: u64) -> Option<()> {
    let mut others = others.iter().peekable();
    for extent in extents {
        let (mut at, end) = (extent.range.offset, extent.range.end());
        while at < end {
            while others.peek().is_some_and(|other| other.range.end() <= at) {
                others.next();
            }
            let other = others.peek().filter(|other| other.range.offset <= at)?;
            let same = other.version == extent.version && other.kind == extent.kind;
            if !same && other.version <= base {
                return None;
            }
            at = other.range.end();
        }
    }
    Some(())
}

/// Makes the fork exist, or not, and gives it its size. Sizes cannot be set without painting holes, so that is done
/// at the version that painted the hole there anyhow.
fn resize(
    name: &Fork,
    original: &ForkState,
    copy: &ForkState,
    base: u64,
    steps: &mut BTreeMap<u64, Step>,
) -> Option<()> {
    let mut change = |version: u64, writes: Vec<Write>| {
        let changes = &mut steps.entry(version).or_default().changes;
        changes.extend(writes);
    };
    let byte = |offset: u64| Write::Extents {
        fork: name.clone(),
        extents: vec![(offset, Bytes::from_static(&[0]))],
    };
    let Some(size) = original.size else {
        if copy.size.is_some() {
            // It was removed since: that painted all of it, at the least of the versions that are there now.
            let version = oldest(original, 0).filter(|version| *version > base)?;
            change(version, vec![Write::RemoveFork { fork: name.clone() }]);
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
            let mut writes = vec![Write::Truncate { fork: name.clone(), size }];
            if copied < size {
                // Something to cut off, so that nothing before the cut is painted.
                writes.insert(0, byte(size));
            }
            change(version, writes);
        }
    }
    Some(())
}

/// The least version among the extents from an offset to the end of the offset space, if they cover all of that.
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

/// The ranges of one kind that each version above `base` wrote, joined where only newer extents lie between them:
/// later steps write those over it.
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
