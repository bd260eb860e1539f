//! The floor of versions: what an object shows of which there is no trace, and where the versions begin of one that is made.
//!
//! Removed objects leave their headers behind, because versions must never go back. A purge takes such remains away, and raises
//! the floor before: from then on, every object of which there is no trace looks as if it had been removed at the floor. Each shard
//! of the index of names has a floor of its own, since whoever is about to make an object sets a mark there: the floor comes with it.
//!
//! A floor has two versions. Objects without a trace *show* the first, and those that are made begin above the second. A purge
//! raises the second one; gives a header, as of an object that was removed, to each object without a trace that has a mark from
//! before; and then lets the first one follow. So every object that is made begins above everything that was ever shown of it, also by a
//! client that was stopped in between for any time, as long as its mark is there. Headers of objects that are not made, of those that
//! are watched too, have the second version for the same reason.
//!
//! Invariants, for an object that has a mark which was set at a floor: as long as the object has no trace, nothing that anybody was shown
//! of it is above the second version of that floor; and no version that it ever had is above the first one. For nobody purges an object
//! that has a mark.
//!
//! The master, a RADOS object of its own, keeps for each shard a version that is not below what the shard lets objects show: for
//! shards that are made anew, because somebody has removed the index.

use std::ffi::CStr;

use nacre_object::limit::FLOOR_MAX;

use crate::record::checksum;

/// The key of the floor in the omap of a shard. Those of entries and marks begin with another letter.
pub(crate) const KEY: &[u8] = b"f";
/// The RADOS object that is the master: its omap has a floor for each shard of which something was purged.
pub(crate) const MASTER: &CStr = c"nacre-floor";
const FORMAT: u8 = 1;

/// Returns the key of a shard's floor in the master.
pub(crate) fn master_key(shard: usize) -> Vec<u8> {
    format!("{shard:02}").into_bytes()
}

/// The floor of a shard of the index. Where nothing was ever purged, it is 0, and none is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Floor {
    /// The version of an object of which there is no trace, and of all its bytes.
    pub(crate) shown: u64,
    /// The version above which those of an object begin that is made.
    pub(crate) start: u64,
}

impl Floor {
    /// Creates a floor of which both versions are the same.
    pub(crate) fn at(version: u64) -> Self {
        Self { shown: version, start: version }
    }

    /// Returns the later one of two floors of one shard, of which both versions only rise.
    pub(crate) fn later(self, other: Self) -> Self {
        Self { shown: self.shown.max(other.shown), start: self.start.max(other.start) }
    }

    /// Encodes the floor as it is stored: as nothing if it is 0.
    pub(crate) fn encode(self) -> Vec<u8> {
        if self == Self::default() {
            return Vec::new();
        }
        let mut record = vec![FORMAT];
        record.extend(self.shown.to_le_bytes());
        record.extend(self.start.to_le_bytes());
        record.extend(checksum(&record).to_le_bytes());
        record
    }

    /// Decodes a stored floor; `None` if it is unsound.
    pub(crate) fn decode(record: &[u8]) -> Option<Self> {
        if record.is_empty() {
            return Some(Self::default());
        }
        let (body, sum) = record.split_at_checked(record.len().checked_sub(4)?)?;
        let (&FORMAT, versions) = body.split_first()? else { return None };
        let ([shown, start], []) = versions.as_chunks::<8>() else { return None };
        let floor = Self { shown: u64::from_le_bytes(*shown), start: u64::from_le_bytes(*start) };
        let is_sound = sum == checksum(body).to_le_bytes() && floor.start > 0;
        (is_sound && floor.shown <= floor.start && floor.start <= FLOOR_MAX).then_some(floor)
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn records_are_pinned() {
        // What a cluster holds today must be read for ever.
        let floor = Floor { shown: 0x0102, start: 0x0304 };
        let record = floor.encode();
        assert_eq!(record[..17], [1, 2, 1, 0, 0, 0, 0, 0, 0, 4, 3, 0, 0, 0, 0, 0, 0]);
        assert_eq!((record.len(), Floor::decode(&record)), (21, Some(floor)));
        assert_eq!(Floor::decode(&Floor::default().encode()), Some(Floor::default()));
        assert!(Floor::default().encode().is_empty(), "nothing is stored where nothing was purged");
    }

    #[test]
    fn what_is_no_floor_is_refused() {
        for floor in [Floor { shown: 2, start: 1 }, Floor::at(FLOOR_MAX + 1)] {
            assert_eq!(Floor::decode(&floor.encode()), None, "{floor:?}");
        }
        let seed = rand::random();
        let mut random = StdRng::seed_from_u64(seed);
        for _ in 0..10_000 {
            let shown = random.random_range(0..FLOOR_MAX);
            let mut record = Floor { shown, start: FLOOR_MAX }.encode();
            let at = random.random_range(0..record.len());
            record[at] ^= 1 << random.random_range(0..8);
            record.truncate(random.random_range(at + 1..=record.len()));
            assert_eq!(Floor::decode(&record), None, "seed {seed}");
        }
    }

    #[test]
    fn floors_only_rise() {
        let (before, after) = (Floor { shown: 1, start: 9 }, Floor::at(9));
        assert_eq!((before.later(after), after.later(before)), (after, after));
    }
}
