//! A queue of units that is kept in a temporary file beyond some length, first in, first out.
//!
//! The oldest and the newest units are in memory; those between them are in the file, in order of arrival. Space in the
//! file is reused when everything in it was read.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

use nacre_walk::Unit;

/// The maximum number of units that each end keeps in memory. One takes some 200 bytes, and more for a long path.
const IN_MEMORY_MAX: usize = 8_192;

/// A first-in, first-out queue of units, partly in a file.
pub struct Spill {
    oldest: VecDeque<Unit>,
    newest: Vec<Unit>,
    file: Option<File>,
    read_at: u64,
    write_at: u64,
    /// The lengths of the runs in the file, in bytes.
    runs: VecDeque<u64>,
    in_file: usize,
}

impl Spill {
    /// Creates an empty queue; the file is created when it is needed.
    pub fn new() -> Spill {
        Spill {
            oldest: VecDeque::new(),
            newest: Vec::new(),
            file: None,
            read_at: 0,
            write_at: 0,
            runs: VecDeque::new(),
            in_file: 0,
        }
    }

    /// Returns the number of units.
    pub fn len(&self) -> usize {
        self.oldest.len() + self.in_file + self.newest.len()
    }

    /// Adds a unit.
    ///
    /// # Errors
    /// If the file cannot be created or written.
    pub fn push(&mut self, unit: Unit) -> io::Result<()> {
        self.newest.push(unit);
        if self.newest.len() < IN_MEMORY_MAX {
            return Ok(());
        }
        if self.runs.is_empty() && self.oldest.len() < IN_MEMORY_MAX {
            self.oldest.extend(self.newest.drain(..));
            return Ok(());
        }
        let bytes = postcard::to_stdvec(&self.newest).map_err(io::Error::other)?;
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(tempfile::tempfile()?),
        };
        file.seek(SeekFrom::Start(self.write_at))?;
        file.write_all(&bytes)?;
        self.write_at += bytes.len() as u64;
        self.runs.push_back(bytes.len() as u64);
        self.in_file += self.newest.len();
        self.newest.clear();
        Ok(())
    }

    /// Removes and returns the oldest unit.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn pop(&mut self) -> io::Result<Option<Unit>> {
        if self.oldest.is_empty() {
            self.refill()?;
        }
        Ok(self.oldest.pop_front())
    }

    fn refill(&mut self) -> io::Result<()> {
        let Some(len) = self.runs.front().copied() else {
            self.oldest.extend(self.newest.drain(..));
            return Ok(());
        };
        let Some(file) = &mut self.file else { return Ok(()) };
        let mut bytes = vec![0; len as usize];
        file.seek(SeekFrom::Start(self.read_at))?;
        file.read_exact(&mut bytes)?;
        let units: Vec<Unit> = postcard::from_bytes(&bytes).map_err(io::Error::other)?;
        self.runs.pop_front();
        self.read_at += len;
        self.in_file -= units.len();
        self.oldest.extend(units);
        if self.runs.is_empty() {
            file.set_len(0)?;
            (self.read_at, self.write_at) = (0, 0);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out_in_order() {
        let unit = |number: u32| Unit {
            root: number,
            path: format!("path {number}").into_bytes(),
            ..Unit::default()
        };
        let mut spill = Spill::new();
        let (mut pushed, mut popped) = (0, 0);
        // Grows far beyond what is kept in memory, shrinks to nothing, and grows again.
        for (up, down) in [(400_000, 1_000), (100_000, 499_000), (130_000, 20_000), (1, 110_001)] {
            for _ in 0..up {
                spill.push(unit(pushed)).unwrap();
                pushed += 1;
            }
            for _ in 0..down {
                assert_eq!(spill.pop().unwrap(), Some(unit(popped)));
                popped += 1;
            }
            assert_eq!(spill.len(), (pushed - popped) as usize);
            assert!(spill.oldest.len() + spill.newest.len() <= 3 * IN_MEMORY_MAX);
        }
        assert_eq!(spill.pop().unwrap(), None);
    }
}
