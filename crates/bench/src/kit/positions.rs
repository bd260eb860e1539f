//! All positions that the clients of a sequencer got, one bit each: none of them may be there twice, and those that nobody got are
//! gaps.

use std::collections::BTreeMap;

use crate::BenchError;

/// The words of a chunk.
const WORDS: usize = 1024;
/// The positions of a chunk.
const CHUNK: u64 = WORDS as u64 * 64;
/// The maximum number of chunks, which bounds the memory: 256 MiB for two thousand million positions.
const CHUNKS_MAX: usize = 1 << 15;

/// A set of positions. Its memory grows with the range that they lie in, not with their order.
#[derive(Default)]
pub(crate) struct Positions {
    /// By their numbers; one that has no position is not there.
    chunks: BTreeMap<u64, Box<[u64]>>,
    /// The chunk that the last position was in, taken out of the others.
    present: Option<(u64, Box<[u64]>)>,
    count: u64,
    /// The least position, and the greatest one.
    bounds: Option<(u64, u64)>,
}

impl Positions {
    /// Adds a position.
    ///
    /// # Errors
    /// [`BenchError::Lost`] if it is there already; [`BenchError::Process`] if there are too many.
    pub(crate) fn add(&mut self, position: u64) -> Result<(), BenchError> {
        let number = position / CHUNK;
        let mut chunk = match self.present.take() {
            Some((present, chunk)) if present == number => chunk,
            other => {
                if let Some((present, chunk)) = other {
                    self.chunks.insert(present, chunk);
                }
                match self.chunks.remove(&number) {
                    Some(chunk) => chunk,
                    None if self.chunks.len() >= CHUNKS_MAX => {
                        let text = "too many positions to tell whether one came twice: shorten the study";
                        return Err(BenchError::Process(text.into()));
                    }
                    None => vec![0u64; WORDS].into_boxed_slice(),
                }
            }
        };
        let (word, bit) = ((position % CHUNK / 64) as usize, 1u64 << (position % 64));
        let is_there = chunk[word] & bit != 0;
        chunk[word] |= bit;
        self.present = Some((number, chunk));
        if is_there {
            return Err(BenchError::Lost(format!("position {position} was handed out twice")));
        }
        self.count += 1;
        let (least, greatest) = self.bounds.unwrap_or((position, position));
        self.bounds = Some((least.min(position), greatest.max(position)));
        Ok(())
    }

    /// Returns the number of positions.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the number of positions that are missing between the least and the greatest one.
    pub(crate) fn missing(&self) -> u64 {
        self.bounds.map_or(0, |(least, greatest)| greatest - least - (self.count - 1))
    }

    /// Returns the number of gaps: ranges of missing positions.
    pub(crate) fn gaps(&mut self) -> u64 {
        if let Some((number, chunk)) = self.present.take() {
            self.chunks.insert(number, chunk);
        }
        // A position whose successor is missing is the last one before a gap, but for the greatest of all.
        let mut last_ones = 0;
        for (number, chunk) in &self.chunks {
            let next = number.checked_add(1).and_then(|next| self.chunks.get(&next));
            let following = chunk[1..].iter().copied().chain([next.map_or(0, |next| next[0])]);
            for (word, following) in chunk.iter().zip(following) {
                let successors = word >> 1 | following << 63;
                last_ones += u64::from((word & !successors).count_ones());
            }
        }
        last_ones.saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(positions: impl IntoIterator<Item = u64>) -> Positions {
        let mut all = Positions::default();
        positions.into_iter().for_each(|position| all.add(position).unwrap());
        all
    }

    #[test]
    fn a_position_that_comes_twice_is_noticed_wherever_it_is() {
        let mut all = of((0..3 * CHUNK).rev().chain([u64::MAX, 1 << 40]));
        for position in [0, 63, 64, CHUNK - 1, CHUNK, 3 * CHUNK - 1, 1 << 40, u64::MAX] {
            let error = all.add(position).unwrap_err();
            assert!(error.to_string().contains(&format!("position {position} was")), "{error}");
        }
        all.add(3 * CHUNK).unwrap();
    }

    #[test]
    fn what_is_missing_is_counted_with_its_gaps() {
        let mut none = Positions::default();
        assert_eq!((none.count(), none.missing(), none.gaps()), (0, 0, 0));
        let mut dense = of(100..100 + 2 * CHUNK);
        assert_eq!((dense.count(), dense.missing(), dense.gaps()), (2 * CHUNK, 0, 0));
        // A gap in a word, one at the boundary of words, one over whole chunks, and one at the boundary of chunks.
        let is_missing = |position: &u64| {
            [10, 63, 64].contains(position)
                || (CHUNK..3 * CHUNK).contains(position)
                || [4 * CHUNK - 1, 5 * CHUNK].contains(position)
        };
        let mut sparse = of((5..6 * CHUNK).filter(|position| !is_missing(position)));
        assert_eq!(sparse.missing(), 1 + 2 + 2 * CHUNK + 1 + 1);
        assert_eq!(sparse.gaps(), 5);
        // It can be continued after it was looked at.
        sparse.add(10).unwrap();
        assert_eq!(sparse.gaps(), 4);
        assert!(sparse.add(10).is_err());
    }
}
