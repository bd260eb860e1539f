//! The bytes of a file that an access through a view touches.
//!
//! A view lays copies of its file type over the file, one after the other, from its displacement on; an access is a range of the data
//! bytes of all these copies. What it touches is described for the lock servers as exactly as it can be, and never by less than what it
//! touches.

use nacre::lock::{Datatype, Description, FileView, Region};
use nacre_lock::Pattern;

use crate::mpi::Numbers;

/// The maximum number of regions that are told to a lock server as a list, where an access touches parts of file types. With more, all of
/// those file types are locked.
const LIST_MAX: u64 = 1 << 14;

/// The mean distance of pieces up to which they are sieved out of what is between them, in bytes.
const SIEVED_STRIDE: u64 = 4096;

/// The number of pieces from which on that is worth it.
const SIEVED_MIN: u64 = 16;

/// The end of the last byte that a file can have.
const END: u64 = nacre_lock::OFFSET_MAX;

/// The view of a file, as it is used for locks.
#[derive(Clone, Debug)]
pub struct View {
    /// The offset in the file from which the view lays its file types.
    pub displacement: u64,
    /// The number of bytes of an elementary type.
    pub etype_bytes: u64,
    /// The file type's size and bounds.
    pub numbers: Numbers,
    /// The file type's bytes in the order of the file, if they can be described.
    pub filetype: Option<Datatype>,
}

/// The bytes that an access touches.
#[derive(Clone, Debug)]
pub struct Access {
    /// The bytes to lock. They include all that is touched.
    pub description: Description,
    /// The bytes that are read or written.
    pub touched: Touched,
}

/// The bytes that are read or written, in the order of the data.
#[derive(Clone, Debug)]
pub enum Touched {
    /// All from the first to the last.
    Row(Region),
    /// Pieces of the file.
    Pieces(Pattern),
    /// The bytes that the MPI library takes for the file type's, which cannot be described here. All of the file is locked.
    Unknown,
}

impl Touched {
    /// Returns the regions, in the order of the data; none if they are not known.
    pub fn regions(&self) -> Option<Box<dyn Iterator<Item = Region> + '_>> {
        match self {
            Touched::Row(region) => Some(Box::new(std::iter::once(*region))),
            Touched::Pieces(pieces) => Some(Box::new(pieces.regions())),
            Touched::Unknown => None,
        }
    }

    /// Returns the pieces if they are so small and so close that one system call for all bytes from the first to the last costs less
    /// than a call for each of them.
    pub fn sieved(&self) -> Option<&Pattern> {
        let Touched::Pieces(pieces) = self else { return None };
        let (span, count) = (pieces.bounds()?.length, pieces.region_count());
        (count >= SIEVED_MIN && span <= count.saturating_mul(SIEVED_STRIDE)).then_some(pieces)
    }
}

impl Access {
    fn row(start: u64, end: u64) -> Access {
        let region = Region::new(start, end.saturating_sub(start));
        Access {
            description: Description::contiguous(region.offset, region.length),
            touched: Touched::Row(region),
        }
    }

    fn unknown() -> Access {
        Access { description: Description::contiguous(0, END), touched: Touched::Unknown }
    }
}

impl View {
    /// Returns the bytes that an access touches, from an offset in elementary types on. None if they are past what a file can have.
    pub fn access(&self, offset: u64, bytes: u64) -> Option<Access> {
        let start = offset.checked_mul(self.etype_bytes)?;
        let end = start.checked_add(bytes)?;
        let size = self.numbers.size;
        if bytes == 0 {
            return Some(Access::row(self.displacement, self.displacement));
        }
        // Nothing can be said of a file type without bytes.
        if size == 0 {
            return Some(Access::unknown());
        }
        if let Some(Datatype::Bytes(all)) = &self.filetype
            && *all == size
            && u64::try_from(self.numbers.extent) == Ok(size)
        {
            let start = self.displacement.checked_add(start)?;
            return Some(Access::row(start, start.checked_add(bytes)?));
        }
        let (first, last) = (start / size, end.div_ceil(size));
        let (skipped, copies) = (start - first * size, last - first);
        let displacement = self.at(first)?;
        // Past the end of files if it cannot be counted.
        self.at(last)?;
        Some(self.exact(displacement, copies, skipped, bytes).unwrap_or_else(Access::unknown))
    }

    /// Returns where a copy of the file type is laid.
    fn at(&self, copy: u64) -> Option<i64> {
        let copy = i64::try_from(copy).ok()?;
        i64::try_from(self.displacement).ok()?.checked_add(copy.checked_mul(self.numbers.extent)?)
    }

    /// Returns where copies of the file type begin and end, as MPI counts it, by which a description is checked: MPI pads some types.
    fn bounds(&self, displacement: i64, copies: u64) -> Option<Region> {
        let start = displacement.checked_add(self.numbers.true_lower)?;
        let last = self.numbers.extent.checked_mul(i64::try_from(copies - 1).ok()?)?;
        let length = last.checked_add(self.numbers.true_extent)?;
        Some(Region::new(u64::try_from(start).ok()?, u64::try_from(length).ok()?))
    }

    /// Returns the bytes of an access exactly: those of copies of the file type, but for some that are skipped and those behind the last.
    fn exact(&self, displacement: i64, copies: u64, skipped: u64, bytes: u64) -> Option<Access> {
        // Copies that overlap are not in the order of the file.
        if copies > 1 && self.numbers.extent < self.numbers.true_extent {
            return None;
        }
        let datatype = self.filetype.clone()?;
        let view = FileView { displacement: u64::try_from(displacement).ok()?, count: copies, datatype };
        let description = Description::Datatype(view);
        let all = Pattern::new(&description).ok()?;
        let all_bytes = self.numbers.size.checked_mul(copies)?;
        if all.byte_count() != all_bytes || Some(all.bounds()?) != self.bounds(displacement, copies) {
            return None;
        }
        if skipped == 0 && bytes == all_bytes {
            return Some(match all.region_count() {
                1 => {
                    let region = all.bounds()?;
                    Access::row(region.offset, region.end())
                }
                _ => Access { description, touched: Touched::Pieces(all) },
            });
        }
        let low = offset_of(&all, skipped)?;
        let high = offset_of(&all, skipped + bytes - 1)? + 1;
        let pieces = all.from(low).before(high);
        match pieces.region_count() {
            1 => Some(Access::row(low, high)),
            regions if regions <= LIST_MAX => {
                let regions: Vec<Region> = pieces.regions().collect();
                Some(Access { description: Description::List(regions), touched: Touched::Pieces(pieces) })
            }
            _ => Some(Access { description, touched: Touched::Pieces(pieces) }),
        }
    }
}

/// Returns the offset of a pattern's byte, counted from 0.
fn offset_of(pattern: &Pattern, number: u64) -> Option<u64> {
    let bounds = pattern.bounds()?;
    // The greatest offset before which there are `number` bytes or less is that of the byte.
    let (mut low, mut high) = (bounds.offset, bounds.end());
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        if pattern.before(middle).byte_count() <= number { low = middle } else { high = middle }
    }
    Some(low)
}

#[cfg(test)]
mod tests {
    use nacre::lock::{Block, Member};
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    /// A random datatype whose bytes follow each other, with the displacements of its bytes and its extent.
    fn datatype(random: &mut StdRng, depth: usize) -> (Datatype, Vec<i64>, i64) {
        if depth == 0 {
            let bytes = random.random_range(1..5);
            return (Datatype::Bytes(bytes as u64), (0..bytes).collect(), bytes);
        }
        let (of, inner, extent) = datatype(random, depth - 1);
        let copies = |places: &[i64]| -> Vec<i64> {
            places.iter().flat_map(|place| inner.iter().map(move |byte| place + byte)).collect()
        };
        match random.random_range(0..4) {
            0 => {
                let (count, block) = (random.random_range(1..5), random.random_range(1..4));
                let stride = block + random.random_range(0..4);
                let places: Vec<i64> = (0..count)
                    .flat_map(|index| (0..block).map(move |item| (index * stride + item) * extent))
                    .collect();
                let all = ((count - 1) * stride + block) * extent;
                (of.vector(count as u64, block as u64, stride), copies(&places), all)
            }
            1 => {
                let (mut at, mut blocks, mut places) = (0, Vec::new(), Vec::new());
                for _ in 0..random.random_range(1..5) {
                    at += random.random_range(0..3);
                    let count = random.random_range(0..3);
                    blocks.push(Block { count: count as u64, displacement: at });
                    places.extend((0..count).map(|item| (at + item) * extent));
                    at += count;
                }
                if places.is_empty() {
                    blocks.push(Block { count: 1, displacement: at });
                    places.push(at * extent);
                    at += 1;
                }
                let lower = places[0] + inner[0].min(0);
                let datatype = Datatype::Indexed { blocks, of: Box::new(of) };
                // With bounds of its own, so that this test need not know MPI's rules.
                let extent = at * extent - lower.min(0);
                (datatype.resized(0, extent), copies(&places), extent)
            }
            2 => {
                let more = random.random_range(0..10);
                (of.resized(0, extent + more), inner.clone(), extent + more)
            }
            _ => {
                let gap = random.random_range(0..7);
                let members = vec![
                    Member { count: 1, displacement: 0, of: of.clone() },
                    Member { count: 1, displacement: extent + gap, of },
                ];
                let all = 2 * extent + gap;
                (Datatype::Struct { members }.resized(0, all), copies(&[0, extent + gap]), all)
            }
        }
    }

    #[test]
    fn accesses_lock_all_that_they_touch_and_write_where_the_view_says() {
        let seed = std::env::var("NACRE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
        let mut random = StdRng::seed_from_u64(seed);
        let (mut exact, mut contiguous) = (0, 0);
        for _ in 0..3000 {
            let depth = random.random_range(0..4);
            let (filetype, bytes, extent) = datatype(&mut random, depth);
            let numbers = Numbers {
                size: bytes.len() as u64,
                lower: 0,
                extent,
                true_lower: bytes[0],
                true_extent: bytes.last().unwrap() + 1 - bytes[0],
            };
            let displacement = random.random_range(0..100);
            let view = View { displacement, etype_bytes: 1, numbers, filetype: Some(filetype.clone()) };
            let offset = random.random_range(0..3 * numbers.size);
            let count = random.random_range(1..3 * numbers.size + 2);
            let expected: Vec<u64> = (offset..offset + count)
                .map(|byte| {
                    let copy = byte / numbers.size;
                    let within = bytes[(byte % numbers.size) as usize];
                    (displacement as i64 + copy as i64 * extent + within) as u64
                })
                .collect();
            let access = view.access(offset, count).unwrap();
            let locked = Pattern::new(&access.description).unwrap();
            let list = |pattern: &Pattern| -> Vec<u64> {
                pattern.regions().flat_map(|region| region.offset..region.end()).collect()
            };
            let shown = format!("seed {seed}: {filetype:?} at {displacement}, {count} bytes from {offset}");
            assert_eq!(list(&locked), expected, "{shown}");
            match &access.touched {
                Touched::Pieces(pieces) => {
                    exact += 1;
                    assert_eq!(list(pieces), expected, "{shown}");
                }
                Touched::Row(region) => {
                    contiguous += 1;
                    assert_eq!(locked.region_count(), 1, "{shown}");
                    assert_eq!(locked.bounds(), Some(*region), "{shown}");
                }
                Touched::Unknown => panic!("{shown}: it can be described"),
            }
        }
        assert!(exact > 300 && contiguous > 300, "{exact} accesses in pieces, {contiguous} in a row");
    }

    #[test]
    fn for_what_cannot_be_described_the_whole_file_is_locked() {
        let numbers = Numbers { size: 8, lower: 0, extent: 100, true_lower: 10, true_extent: 60 };
        let view = View { displacement: 1000, etype_bytes: 4, numbers, filetype: None };
        let access = view.access(3, 8).unwrap();
        assert_eq!(access.description, Description::contiguous(0, END));
        assert!(matches!(access.touched, Touched::Unknown));
    }

    #[test]
    fn long_lists_become_whole_file_types() {
        let filetype = Datatype::byte().vector(1 << 20, 1, 2).resized(0, 1 << 21);
        let numbers =
            Numbers { size: 1 << 20, extent: 1 << 21, true_extent: (1 << 21) - 1, ..Numbers::default() };
        let view = View { displacement: 0, etype_bytes: 1, numbers, filetype: Some(filetype) };
        let access = view.access(1, (1 << 20) - 1).unwrap();
        assert!(matches!(&access.description, Description::Datatype(view) if view.count == 1));
        let Touched::Pieces(pieces) = access.touched else { panic!("{:?}", access.touched) };
        assert_eq!((pieces.region_count(), pieces.bounds().unwrap().offset), ((1 << 20) - 1, 2));
    }

    #[test]
    fn offsets_past_the_end_of_files_are_refused() {
        let numbers = Numbers { size: 8, extent: 16, true_extent: 8, ..Numbers::default() };
        let filetype = Datatype::Bytes(8).resized(0, 16);
        let view = View { displacement: 0, etype_bytes: 8, numbers, filetype: Some(filetype) };
        assert!(view.access(u64::MAX / 8, 64).is_none());
        assert!(view.access(i64::MAX as u64 / 8, 64).is_none());
    }
}
