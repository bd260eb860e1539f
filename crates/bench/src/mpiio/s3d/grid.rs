//! The grid of a checkpoint and its division into blocks.

use std::ffi::OsString;
use std::ops::Range;

use crate::BenchError;

/// The number of components of all arrays together: 11, 3, 1 and 1 for each point of the grid.
const COMPONENTS: u64 = 16;

/// A grid of as many points in each direction, divided into a block for each rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    edge: u64,
    /// The number of blocks in the directions x, y and z; x varies fastest in the file.
    blocks: [u64; 3],
}

impl Grid {
    /// Divides a grid. The blocks are as near to cubes as the number of ranks allows, and there are the most where they make the fewest
    /// pieces: in the direction that varies slowest.
    ///
    /// # Errors
    /// If there are fewer points than blocks in a direction.
    pub(super) fn new(edge: u32, ranks: u32) -> Result<Grid, BenchError> {
        let (mut blocks, mut factors, mut rest) = ([1; 3], Vec::new(), u64::from(ranks));
        let mut factor = 2;
        while rest > 1 {
            match rest.is_multiple_of(factor) {
                true => {
                    factors.push(factor);
                    rest /= factor;
                }
                false => factor += 1,
            }
        }
        for factor in factors.into_iter().rev() {
            blocks[0] *= factor;
            blocks.sort_unstable();
        }
        let edge = u64::from(edge);
        match blocks.iter().all(|blocks| *blocks <= edge) {
            true => Ok(Grid { edge, blocks }),
            false => {
                let text = format!("{edge} points in a direction are too few for {ranks} ranks");
                Err(BenchError::Usage(text))
            }
        }
    }

    /// Returns the number of bytes of all arrays.
    pub(super) fn bytes(&self) -> u64 {
        8 * COMPONENTS * self.edge.pow(3)
    }

    /// Returns the arguments of the program that writes it.
    pub(super) fn arguments(&self) -> impl Iterator<Item = OsString> {
        let [across, down, deep] = self.blocks;
        [self.edge, across, down, deep].into_iter().map(|number| number.to_string().into())
    }

    /// Returns the bytes of a rank's rows in the file that all share, in the order in which they are in a file of its own.
    pub(super) fn rows(&self, rank: u64) -> impl Iterator<Item = Range<u64>> {
        let Grid { edge, blocks: [across, down, deep] } = *self;
        let part = |blocks: u64, index: u64| edge * index / blocks..edge * (index + 1) / blocks;
        let x = part(across, rank % across);
        let y = part(down, rank / across % down);
        let z = part(deep, rank / (across * down));
        (0..COMPONENTS).flat_map(move |component| {
            let (x, y) = (x.clone(), y.clone());
            z.clone().flat_map(move |z| {
                let x = x.clone();
                y.clone().map(move |y| {
                    let row = ((component * edge + z) * edge + y) * edge;
                    8 * (row + x.start)..8 * (row + x.end)
                })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranks_rows_are_all_of_the_file_once() {
        for (edge, ranks, blocks) in [
            (6, 1, [1, 1, 1]),
            (7, 2, [1, 1, 2]),
            (6, 4, [1, 2, 2]),
            (9, 6, [1, 2, 3]),
            (7, 8, [2, 2, 2]),
            (5, 5, [1, 1, 5]),
            (8, 64, [4, 4, 4]),
        ] {
            let grid = Grid::new(edge, ranks).unwrap();
            assert_eq!(grid.blocks, blocks, "{ranks} ranks");
            let rows = |rank: u32| grid.rows(u64::from(rank));
            let mut all: Vec<Range<u64>> = (0..ranks).flat_map(rows).collect();
            all.sort_by_key(|row| row.start);
            let mut end = 0;
            for row in all {
                assert_eq!(row.start, end, "{ranks} ranks");
                end = row.end;
            }
            assert_eq!(end, grid.bytes(), "{ranks} ranks");
        }
        assert_eq!(Grid::new(210, 1).unwrap().bytes(), 1_185_408_000);
        assert!(Grid::new(3, 5).unwrap_err().to_string().contains("too few for 5 ranks"));
    }
}
