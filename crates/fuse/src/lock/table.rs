//! The locks of one file by their owners on one mount, as the kernel would keep them: no I/O.
//!
//! Pieces of one owner never overlap, and those of one mode that touch are one.

use std::ops::Range;

use nacre::lock::Mode;

/// Locked bytes of an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) bytes: Range<u64>,
    pub(crate) mode: Mode,
    /// The owner: of `fcntl` locks a process, of `flock` locks an open file.
    pub(crate) owner: u64,
    /// The open file by way of which the bytes were locked.
    pub(crate) handle: u64,
    /// The process, as `F_GETLK` shows it.
    pub(crate) process: u32,
}

/// The locks of a file.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    pieces: Vec<Piece>,
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Table {
    /// Returns the number of pieces.
    pub(super) fn len(&self) -> usize {
        self.pieces.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Returns the first piece of another owner that is in the way.
    pub(super) fn conflict(&self, wanted: &Piece) -> Option<&Piece> {
        self.pieces
            .iter()
            .filter(|held| held.owner != wanted.owner && held.mode.conflicts(wanted.mode))
            .filter(|held| overlap(&held.bytes, &wanted.bytes))
            .min_by_key(|held| held.bytes.start)
    }

    /// Locks bytes, in place of what the owner has of them. Nothing of other owners is in the way.
    pub(super) fn set(&mut self, wanted: Piece) {
        self.clear(wanted.owner, &wanted.bytes);
        let mut bytes = wanted.bytes.clone();
        self.pieces.retain(|held| {
            let touches = held.bytes.end == bytes.start || held.bytes.start == bytes.end;
            let joins = held.owner == wanted.owner && held.mode == wanted.mode && touches;
            if joins {
                bytes = bytes.start.min(held.bytes.start)..bytes.end.max(held.bytes.end);
            }
            !joins
        });
        self.pieces.push(Piece { bytes, ..wanted });
    }

    /// Unlocks bytes of an owner.
    pub(super) fn clear(&mut self, owner: u64, bytes: &Range<u64>) {
        let mut kept = Vec::with_capacity(self.pieces.len() + 1);
        for held in self.pieces.drain(..) {
            if held.owner != owner || !overlap(&held.bytes, bytes) {
                kept.push(held);
                continue;
            }
            if held.bytes.start < bytes.start {
                kept.push(Piece { bytes: held.bytes.start..bytes.start, ..held.clone() });
            }
            if bytes.end < held.bytes.end {
                kept.push(Piece { bytes: bytes.end..held.bytes.end, ..held });
            }
        }
        self.pieces = kept;
    }

    /// Unlocks everything of an owner.
    pub(super) fn remove_owner(&mut self, owner: u64) {
        self.pieces.retain(|held| held.owner != owner);
    }

    /// Unlocks everything that was locked by way of an open file.
    pub(super) fn remove_handle(&mut self, handle: u64) {
        self.pieces.retain(|held| held.handle != handle);
    }

    /// Returns the open files by way of which something is locked.
    pub(super) fn handles(&self) -> impl Iterator<Item = u64> + '_ {
        self.pieces.iter().map(|held| held.handle)
    }

    /// Returns the bytes that are locked in a mode, in their order, without overlaps.
    pub(super) fn union(&self, mode: Mode) -> Vec<Range<u64>> {
        let held = self.pieces.iter().filter(|held| held.mode == mode);
        let mut ranges: Vec<_> = held.map(|held| held.bytes.clone()).collect();
        ranges.sort_by_key(|range| range.start);
        let mut union: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match union.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => union.push(range),
            }
        }
        union
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(owner: u64, mode: Mode, bytes: Range<u64>) -> Piece {
        Piece { bytes, mode, owner, handle: owner + 100, process: 1 }
    }

    /// The same table, byte by byte: for each owner the mode of each byte.
    #[derive(Default)]
    struct Model([[Option<Mode>; 24]; 3]);

    impl Model {
        fn conflicts(&self, wanted: &Piece) -> bool {
            self.0.iter().enumerate().any(|(owner, held)| {
                let held = &held[wanted.bytes.start as usize..wanted.bytes.end as usize];
                owner as u64 != wanted.owner && held.iter().flatten().any(|mode| mode.conflicts(wanted.mode))
            })
        }

        fn union(&self, mode: Mode) -> Vec<Range<u64>> {
            let mut union: Vec<Range<u64>> = Vec::new();
            for byte in 0..24 {
                if self.0.iter().any(|held| held[byte as usize] == Some(mode)) {
                    match union.last_mut() {
                        Some(last) if last.end == byte => last.end += 1,
                        _ => union.push(byte..byte + 1),
                    }
                }
            }
            union
        }
    }

    #[test]
    fn ranges_are_split_and_merged_as_if_every_byte_were_kept() {
        let mut seed = 7_u64;
        let mut below = |bound: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % bound
        };
        let (mut table, mut model) = (Table::default(), Model::default());
        let (mut granted, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let (owner, start) = (below(3), below(24));
            let bytes = start..start + 1 + below(24 - start);
            let held = bytes.start as usize..bytes.end as usize;
            match below(8) {
                kind @ 0..4 => {
                    let mode = if kind == 0 { Mode::Exclusive } else { Mode::Shared };
                    let wanted = piece(owner, mode, bytes);
                    assert_eq!(table.conflict(&wanted).is_some(), model.conflicts(&wanted));
                    if model.conflicts(&wanted) {
                        refused += 1;
                        continue;
                    }
                    granted += 1;
                    table.set(wanted);
                    model.0[owner as usize][held].fill(Some(mode));
                }
                4..7 => {
                    table.clear(owner, &bytes);
                    model.0[owner as usize][held].fill(None);
                }
                _ if owner == 0 => {
                    table.remove_handle(100);
                    model.0[0].fill(None);
                }
                _ => {
                    table.remove_owner(owner);
                    model.0[owner as usize].fill(None);
                }
            }
            for mode in [Mode::Shared, Mode::Exclusive] {
                assert_eq!(table.union(mode), model.union(mode));
            }
            // No piece of an owner touches another one of the same mode.
            for one in &table.pieces {
                let same =
                    table.pieces.iter().filter(|other| (other.owner, other.mode) == (one.owner, one.mode));
                assert_eq!(same.filter(|other| other.bytes.start == one.bytes.end).count(), 0);
            }
        }
        assert!(granted > 1000 && refused > 1000, "{granted} {refused}");
    }
}
