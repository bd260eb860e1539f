//! The normal form of access patterns.

use crate::{Datatype, Description, OFFSET_MAX, PatternError};
use std::sync::Arc;

/// A range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Region {
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes.
    pub length: u64,
}

impl Region {
    /// Creates a region.
    pub fn new(offset: u64, length: u64) -> Region {
        Region { offset, length }
    }

    /// Returns the offset behind the last byte.
    ///
    /// A region of a description may end past [`OFFSET_MAX`], and is then refused; no region of a pattern does.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// The bytes of a file that are one server's: every so many bytes are the next server's, in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stripe {
    /// The number of bytes in a row that are one server's.
    pub bytes: u64,
    /// The number of servers.
    pub servers: u32,
    /// The number of the server, counted from 0.
    pub server: u32,
}

/// The result of a bounded search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// The first byte is the one at this offset.
    Found(u64),
    /// There is none.
    Absent,
    /// There is none before this offset, and the bound was reached: the search goes on from here.
    Paused(u64),
}

/// A set of bytes of a file.
///
/// Its *regions* are its maximal ranges of bytes in a row: two of them never touch.
#[derive(Clone, Debug)]
pub struct Pattern {
    regions: Arc<[Region]>,
}

impl Pattern {
    /// Returns the pattern without a byte.
    pub fn empty() -> Pattern {
        Pattern { regions: Arc::new([]) }
    }

    /// Returns the pattern of one range of bytes.
    ///
    /// # Errors
    ///
    /// [`PatternError::Overflow`] where it ends past [`OFFSET_MAX`].
    pub fn contiguous(offset: u64, length: u64) -> Result<Pattern, PatternError> {
        Pattern::list(&[Region { offset, length }])
    }

    /// Returns the pattern of ranges of bytes, in any order; they may overlap.
    ///
    /// # Errors
    ///
    /// [`PatternError::Overflow`] where one ends past [`OFFSET_MAX`].
    pub fn list(regions: &[Region]) -> Result<Pattern, PatternError> {
        let mut sorted: Vec<Region> = regions.iter().copied().filter(|region| region.length > 0).collect();
        sorted.sort_unstable();
        let mut merged: Vec<Region> = Vec::with_capacity(sorted.len());
        for region in sorted {
            if region.offset.checked_add(region.length).is_none_or(|end| end > OFFSET_MAX) {
                return Err(PatternError::Overflow { what: "a region" });
            }
            match merged.last_mut() {
                Some(last) if region.offset <= last.end() => {
                    last.length = last.end().max(region.end()) - last.offset;
                }
                _ => merged.push(region),
            }
        }
        Ok(Pattern { regions: merged.into() })
    }

    /// Returns the normal form of a description.
    ///
    /// # Errors
    ///
    /// What is wrong with the description, or why it cannot be brought into normal form.
    pub fn new(description: &Description) -> Result<Pattern, PatternError> {
        match description {
            Description::Contiguous(region) => Pattern::list(&[*region]),
            Description::List(regions) => Pattern::list(regions),
            Description::Datatype(view) => {
                let mut regions = Vec::new();
                let (_, extent) = flatten(&view.datatype, 0, &mut Vec::new())?;
                for copy in 0..view.count as i64 {
                    let mut part = Vec::new();
                    flatten(&view.datatype, view.displacement as i64 + copy * extent, &mut part)?;
                    regions.append(&mut part);
                }
                Pattern::list(&regions)
            }
        }
    }

    /// Returns whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Returns the least region that holds all bytes; none where there is no byte.
    pub fn bounds(&self) -> Option<Region> {
        let (first, last) = (self.regions.first()?, self.regions.last()?);
        Some(Region { offset: first.offset, length: last.end() - first.offset })
    }

    /// Returns the number of regions.
    pub fn region_count(&self) -> u64 {
        self.regions.len() as u64
    }

    /// Returns the number of bytes.
    pub fn byte_count(&self) -> u64 {
        self.regions.iter().map(|region| region.length).sum()
    }

    /// Returns the first region that has a byte at or after an offset, without what lies before the offset.
    pub fn next_region(&self, offset: u64) -> Option<Region> {
        let at = self.regions.partition_point(|region| region.end() <= offset);
        let region = self.regions.get(at)?;
        let start = region.offset.max(offset);
        Some(Region { offset: start, length: region.end() - start })
    }

    /// Returns the offset behind the last byte that lies before an offset; none where no byte does.
    pub fn end_before(&self, offset: u64) -> Option<u64> {
        let at = self.regions.partition_point(|region| region.offset < offset);
        Some(self.regions[at.checked_sub(1)?].end().min(offset))
    }

    /// Returns the regions in order.
    pub fn regions(&self) -> impl Iterator<Item = Region> + '_ {
        self.regions.iter().copied()
    }

    /// Returns the bytes before an offset.
    pub fn before(&self, offset: u64) -> Pattern {
        self.cut(0, offset)
    }

    /// Returns the bytes at and after an offset.
    pub fn from(&self, offset: u64) -> Pattern {
        self.cut(offset, OFFSET_MAX)
    }

    fn cut(&self, from: u64, to: u64) -> Pattern {
        let cut = self.regions.iter().filter_map(|region| {
            let (start, end) = (region.offset.max(from), region.end().min(to));
            (start < end).then(|| Region { offset: start, length: end - start })
        });
        Pattern { regions: cut.collect() }
    }

    /// Returns the bytes that are one server's.
    ///
    /// # Errors
    ///
    /// [`PatternError::Stripe`] where the stripe is not one, or the pattern is already restricted to another.
    pub fn restrict(&self, stripe: Stripe) -> Result<Pattern, PatternError> {
        let Stripe { bytes, servers, server } = stripe;
        if bytes == 0 || server >= servers {
            return Err(PatternError::Stripe { stripe_bytes: bytes, servers, server });
        }
        let mut regions = Vec::new();
        for region in self.regions.iter() {
            let mut start = region.offset;
            while start < region.end() {
                let end = ((start / bytes + 1) * bytes).min(region.end());
                if (start / bytes) % u64::from(servers) == u64::from(server) {
                    regions.push(Region { offset: start, length: end - start });
                }
                start = end;
            }
        }
        Pattern::list(&regions)
    }

    /// Returns the first byte at or after an offset that both patterns have, however long that takes.
    pub fn first_common(&self, other: &Pattern, from: u64) -> Option<u64> {
        match self.search_common(other, from, u32::MAX) {
            Search::Found(offset) => Some(offset),
            Search::Absent | Search::Paused(_) => None,
        }
    }

    /// Searches for the first byte at or after an offset that both patterns have, in a bounded number of steps.
    ///
    /// The answer is never wrong: where the bound is reached, it says up to which offset there is certainly none.
    pub fn search_common(&self, other: &Pattern, from: u64, _steps: u32) -> Search {
        let mut at = from;
        loop {
            let (Some(mine), Some(others)) = (self.next_region(at), other.next_region(at)) else {
                return Search::Absent;
            };
            let start = mine.offset.max(others.offset);
            if start < mine.end().min(others.end()) {
                return Search::Found(start);
            }
            at = start;
        }
    }

    /// Returns the memory that the pattern takes, in bytes. What several patterns share is counted for each.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Pattern>() + self.regions.len() * size_of::<Region>()
    }
}

/// Adds the regions of a datatype at a displacement, and returns its lower bound and its extent.
fn flatten(datatype: &Datatype, at: i64, regions: &mut Vec<Region>) -> Result<(i64, i64), PatternError> {
    let mut blocks = |of: &Datatype, stride: Option<i64>, count: u64, block: u64, unit: bool| {
        let (_, extent) = flatten(of, 0, &mut Vec::new())?;
        let stride = stride.unwrap_or(extent) * if unit { extent } else { 1 };
        for i in 0..count as i64 {
            for j in 0..block as i64 {
                flatten(of, at + i * stride + j * extent, regions)?;
            }
        }
        Ok((0, (count as i64 - 1) * stride + block as i64 * extent))
    };
    match datatype {
        Datatype::Bytes(bytes) => {
            let offset =
                u64::try_from(at).map_err(|_| PatternError::BeforeStart { bytes: at.unsigned_abs() })?;
            regions.push(Region { offset, length: *bytes });
            Ok((0, *bytes as i64))
        }
        Datatype::Contiguous { count, of } => blocks(of, None, *count, 1, false),
        Datatype::Vector { count, block, stride, of } => blocks(of, Some(*stride), *count, *block, true),
        Datatype::Hvector { count, block, stride, of } => blocks(of, Some(*stride), *count, *block, false),
        _ => Err(PatternError::Malformed("this constructor is not known yet")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_vectors_share_no_byte_and_overlapping_ones_do() {
        let at = |offset| Pattern::new(&Datatype::byte().vector(1024, 1, 64).at(offset)).unwrap();
        assert_eq!(at(0).region_count(), 1024);
        assert_eq!(at(0).first_common(&at(1), 0), None);
        assert_eq!(at(0).first_common(&at(64), 0), Some(64));
        let stripe = Stripe { bytes: 4096, servers: 4, server: 3 };
        assert_eq!(at(0).restrict(stripe).unwrap().bounds(), Some(Region::new(3 * 4096, 12 * 4096 + 4033)));
    }
}
