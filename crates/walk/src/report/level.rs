//! The entries of a walk by their levels below the roots, in bounded memory however deep a tree is.

use serde::{Deserialize, Serialize};

use crate::entry::{Entry, FileKind};
use crate::report::{Sums, Tally};

/// The deepest level that is counted by itself; the entries of all deeper ones are counted together.
pub const LEVEL_MAX: u32 = 4096;

/// The number of counts: of the roots, of each level down to [`LEVEL_MAX`], and of the deeper ones.
const LEVELS_MAX: usize = LEVEL_MAX as usize + 2;

/// The maximum size of encoded counts in bytes: five numbers of at most ten bytes for each level, and their number.
const ENCODED_BYTES_MAX: usize = LEVELS_MAX * 50 + 10;

/// The counts of one level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Level {
    /// The number of entries and their bytes. Files with several names are counted once for each name.
    pub tally: Tally,
    /// The number of directories.
    pub directories: u64,
    /// The number of regular files.
    pub files: u64,
}

/// The counts of all levels, beginning with that of the roots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Levels(Vec<Level>);

impl Levels {
    pub(crate) fn count(&mut self, entry: &Entry<'_, Sums>) {
        let level = self.at(entry.depth);
        level.directories += u64::from(entry.kind == FileKind::Directory);
        level.files += u64::from(entry.kind == FileKind::File);
        let (apparent, allocated) =
            entry.metadata.map_or((0, 0), |metadata| (metadata.size(), metadata.allocated()));
        level.tally.add(&Tally { entries: 1, apparent, allocated });
    }

    fn at(&mut self, depth: u32) -> &mut Level {
        let index = (depth as usize).min(LEVELS_MAX - 1);
        if self.0.len() <= index {
            self.0.resize(index + 1, Level::default());
        }
        &mut self.0[index]
    }

    /// Adds the counts of another part of the walk.
    pub fn merge(&mut self, other: &Levels) {
        for (depth, theirs) in other.0.iter().enumerate() {
            let mine = self.at(depth as u32);
            mine.tally.add(&theirs.tally);
            mine.directories = mine.directories.saturating_add(theirs.directories);
            mine.files = mine.files.saturating_add(theirs.files);
        }
    }

    /// Iterates over the levels from the first with entries to the last, including the empty ones between, with their
    /// depths. The one after [`LEVEL_MAX`] stands for all that are deeper.
    pub fn shown(&self) -> impl Iterator<Item = (u32, &Level)> {
        let levels = self.0.iter().enumerate().map(|(depth, level)| (depth as u32, level));
        levels.skip_while(|(_, level)| level.tally.entries == 0)
    }

    /// Decodes the counts of another process or an earlier run; `None` if they are invalid.
    pub fn decode(bytes: &[u8]) -> Option<Levels> {
        if bytes.len() > ENCODED_BYTES_MAX {
            return None;
        }
        let (levels, rest): (Levels, _) = postcard::take_from_bytes(bytes).ok()?;
        (rest.is_empty() && levels.0.len() <= LEVELS_MAX).then_some(levels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_merged_in_any_order_and_the_deepest_are_put_together() {
        let mut parts = vec![Levels::default(); 3];
        for number in 0..9000_u32 {
            let level = parts[number as usize % 3].at(number);
            level.tally.add(&Tally { entries: 1, apparent: 2, allocated: 3 });
            level.files += 1;
        }
        let merged = |order: [usize; 3]| {
            let mut all = Levels::default();
            order.iter().for_each(|part| all.merge(&parts[*part]));
            all
        };
        let all = merged([0, 1, 2]);
        assert!(
            [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]]
                .map(merged)
                .iter()
                .all(|other| *other == all)
        );
        assert_eq!(all.0.len(), LEVELS_MAX);
        for (depth, level) in all.shown() {
            let entries = if depth <= LEVEL_MAX { 1 } else { 9000 - u64::from(LEVEL_MAX) - 1 };
            let tally = Tally { entries, apparent: 2 * entries, allocated: 3 * entries };
            assert_eq!(*level, Level { tally, directories: 0, files: entries }, "{depth}");
        }
        let encoded = postcard::to_stdvec(&all).unwrap();
        assert_eq!(Levels::decode(&encoded), Some(all));
    }

    #[test]
    fn empty_levels_are_shown_only_below_others() {
        let mut levels = Levels::default();
        for depth in [2, 4] {
            levels.at(depth).tally.entries = 1;
        }
        let shown: Vec<_> = levels.shown().map(|(depth, level)| (depth, level.tally.entries)).collect();
        assert_eq!(shown, [(2, 1), (3, 0), (4, 1)]);
    }

    #[test]
    fn counts_of_more_levels_than_there_are_are_refused() {
        let decoded = |levels: usize, counts: u64| {
            let tally = Tally { entries: counts, apparent: counts, allocated: counts };
            let level = Level { tally, directories: counts, files: counts };
            Levels::decode(&postcard::to_stdvec(&Levels(vec![level; levels])).unwrap())
        };
        assert!(decoded(LEVELS_MAX, u64::MAX).is_some() && decoded(0, 0).is_some());
        assert!(decoded(LEVELS_MAX + 1, 0).is_none() && decoded(LEVELS_MAX + 1, u64::MAX).is_none());
        assert!(Levels::decode(&[]).is_none() && Levels::decode(&[0, 0]).is_none());
    }
}
