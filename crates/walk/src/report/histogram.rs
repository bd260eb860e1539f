//! The distribution of entries over sizes, ages, depths, owners and types.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::entry::{Entry, FileKind, Time};
use crate::report::level::LEVEL_MAX;
use crate::report::{Sums, Tally};

/// The quantity that a histogram measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Apparent sizes of regular files, by powers of two
    Size,
    /// Days since the last modification, by powers of two
    Age,
    /// Levels below the root
    Depth,
    /// Owners
    Owner,
    /// Types of entries
    Type,
    /// Groups
    Group,
    /// Days since the last access, by powers of two
    Access,
    /// Days since the last change of the inode, by powers of two
    Change,
}

impl Measure {
    /// All measures.
    pub const ALL: [Measure; 8] = [
        Measure::Size,
        Measure::Age,
        Measure::Access,
        Measure::Change,
        Measure::Depth,
        Measure::Owner,
        Measure::Group,
        Measure::Type,
    ];

    /// Returns its one-line description for a help text.
    pub fn description(self) -> &'static str {
        match self {
            Measure::Size => "Apparent sizes of regular files, by powers of two",
            Measure::Age => "Days since the last modification, by powers of two",
            Measure::Depth => "Levels below the root",
            Measure::Owner => "Owners",
            Measure::Type => "Types of entries",
            Measure::Group => "Groups",
            Measure::Access => "Days since the last access, by powers of two",
            Measure::Change => "Days since the last change of the inode, by powers of two",
        }
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Measure::Size => "size",
            Measure::Age => "age",
            Measure::Depth => "depth",
            Measure::Owner => "owner",
            Measure::Type => "type",
            Measure::Group => "group",
            Measure::Access => "access",
            Measure::Change => "change",
        }
    }

    /// Returns whether it needs an entry's metadata.
    pub fn needs_metadata(self) -> bool {
        !matches!(self, Measure::Depth | Measure::Type)
    }

    /// Returns whether it counts days.
    pub fn is_age(self) -> bool {
        matches!(self, Measure::Age | Measure::Access | Measure::Change)
    }
}

/// The number of buckets that are accessed without a search.
const SMALL: usize = 128;

/// The bucket of all depths beyond [`LEVEL_MAX`], which are counted together, so that memory is bounded however deep a tree is.
const DEEPER: u32 = LEVEL_MAX + 1;

const DAY_S: i64 = 86_400;

/// A histogram. Files with several names are counted once for each name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    measure: Measure,
    now: i64,
    small: Vec<Tally>,
    large: BTreeMap<u32, Tally>,
}

impl Histogram {
    /// Creates an empty histogram; ages are relative to `now`, in seconds since the epoch.
    pub fn new(measure: Measure, now: i64) -> Histogram {
        Histogram { measure, now, small: vec![Tally::default(); SMALL], large: BTreeMap::new() }
    }

    /// Returns the quantity that it measures.
    pub fn measure(&self) -> Measure {
        self.measure
    }

    pub(crate) fn count(&mut self, entry: &Entry<'_, Sums>) {
        let Some(bucket) = self.bucket(entry) else { return };
        let tally = self.tally(bucket);
        tally.entries += 1;
        if let Some(metadata) = entry.metadata {
            tally.apparent = tally.apparent.saturating_add(metadata.size());
            tally.allocated = tally.allocated.saturating_add(metadata.allocated());
        }
    }

    fn bucket(&self, entry: &Entry<'_, Sums>) -> Option<u32> {
        Some(match self.measure {
            Measure::Size if entry.kind == FileKind::File => logarithm(entry.metadata?.size()),
            Measure::Size => return None,
            Measure::Age => self.age_bucket(entry.metadata?.modified()),
            Measure::Access => self.age_bucket(entry.metadata?.accessed()),
            Measure::Change => self.age_bucket(entry.metadata?.changed()),
            Measure::Group => entry.metadata?.group(),
            Measure::Depth => entry.depth.min(DEEPER),
            Measure::Owner => entry.metadata?.user(),
            Measure::Type => entry.kind as u32,
        })
    }

    fn age_bucket(&self, time: Time) -> u32 {
        let age = self.now.saturating_sub(time.seconds);
        // What is from the future has a bucket of its own.
        if age < 0 { 0 } else { logarithm((age / DAY_S) as u64) + 1 }
    }

    fn tally(&mut self, bucket: u32) -> &mut Tally {
        match self.small.get_mut(bucket as usize) {
            Some(tally) => tally,
            None => self.large.entry(bucket).or_default(),
        }
    }

    /// Counts the depths together that an earlier version has counted by themselves.
    pub(crate) fn put_depths_together(&mut self) {
        if self.measure == Measure::Depth {
            for tally in self.large.split_off(&DEEPER).into_values() {
                self.tally(DEEPER).add(&tally);
            }
        }
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: Histogram) {
        for (bucket, tally) in other.buckets() {
            self.tally(bucket).add(&tally);
        }
    }

    /// Iterates over the buckets that are not empty, in order.
    pub fn buckets(&self) -> impl Iterator<Item = (u32, Tally)> {
        let small = self.small.iter().enumerate().map(|(bucket, tally)| (bucket as u32, *tally));
        let large = self.large.iter().map(|(bucket, tally)| (*bucket, *tally));
        small.chain(large).filter(|(_, tally)| tally.entries > 0)
    }

    /// Returns the buckets as they are displayed: for a scale, including the empty ones between others, so that gaps
    /// are visible.
    pub fn shown_buckets(&self) -> Vec<(u32, Tally)> {
        let held: BTreeMap<u32, Tally> = self.buckets().collect();
        let scale = matches!(self.measure, Measure::Size | Measure::Depth) || self.measure.is_age();
        match (held.first_key_value(), held.last_key_value()) {
            (Some((first, _)), Some((last, _))) if scale && (*last as usize) < SMALL => (*first..=*last)
                .map(|bucket| (bucket, held.get(&bucket).copied().unwrap_or_default()))
                .collect(),
            _ => held.into_iter().collect(),
        }
    }

    /// Returns the bounds of a bucket, both inclusive, in bytes or days; for other measures, the bucket itself.
    pub fn bounds(&self, bucket: u32) -> Option<(u64, u64)> {
        let bounds = |bucket| match bucket {
            0 => (0, 0),
            1..=63 => (1 << (bucket - 1), (1 << bucket) - 1),
            _ => (1 << 63, u64::MAX),
        };
        match self.measure {
            Measure::Size => Some(bounds(bucket)),
            Measure::Age | Measure::Access | Measure::Change => bucket.checked_sub(1).map(bounds),
            Measure::Depth | Measure::Owner | Measure::Group | Measure::Type => None,
        }
    }
}

/// Returns 0 for 0, else one more than the base-2 logarithm, rounded down.
fn logarithm(value: u64) -> u32 {
    u64::BITS - value.leading_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_lies_within_the_bounds_of_its_bucket() {
        let histogram = Histogram::new(Measure::Size, 0);
        for size in [0, 1, 2, 3, 4, 7, 8, 1023, 1024, u64::MAX / 2, u64::MAX / 2 + 1, u64::MAX] {
            let (low, high) = histogram.bounds(logarithm(size)).unwrap();
            assert!(low <= size && size <= high, "{size}: {low} to {high}");
        }
        // One from a checkpoint may hold its buckets in either place.
        for small in [SMALL, 5, 0] {
            let mut gaps = Histogram::new(Measure::Size, 0);
            gaps.small.truncate(small);
            for bucket in [3, 7] {
                gaps.tally(bucket).entries = 1;
            }
            let shown: Vec<_> =
                gaps.shown_buckets().iter().map(|(bucket, tally)| (*bucket, tally.entries)).collect();
            assert_eq!(shown, [(3, 1), (4, 0), (5, 0), (6, 0), (7, 1)]);
            assert_eq!(gaps.buckets().count(), 2);
        }
        let mut old = Histogram::new(Measure::Depth, 0);
        (0..9000).for_each(|depth| old.tally(depth).entries = 1);
        old.put_depths_together();
        let shown = old.shown_buckets();
        assert_eq!(shown.len(), LEVEL_MAX as usize + 2);
        let (deeper, tally) = shown[shown.len() - 1];
        assert_eq!((deeper, tally.entries), (DEEPER, 9000 - u64::from(LEVEL_MAX) - 1));
        assert_eq!(Histogram::new(Measure::Age, 0).bounds(0), None);
        assert_eq!(Histogram::new(Measure::Age, 0).bounds(1), Some((0, 0)));
    }
}
