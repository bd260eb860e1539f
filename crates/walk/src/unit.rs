//! A unit of work that leaves a process: for another rank, or into a checkpoint.

use std::ffi::CStr;

/// A directory to walk, or the rest of one: small whatever the directory's size, and valid in another process that has
/// the same roots.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize)]
#[serde(from = "Written<Vec<u8>, Vec<u64>>")]
pub struct Unit {
    /// The number of the root that it is below.
    pub root: u32,
    /// The path below that root; empty for the root itself.
    pub path: Vec<u8>,
    /// The position at which reading continues, if the directory was begun.
    pub position: Option<u64>,
    /// The position at which reading ends, if there is one, because another unit begins there.
    pub until: Option<u64>,
    /// The name after which reading continues, if a directory of a [`Source`](crate::Source) was begun.
    pub after: Option<Vec<u8>>,
    /// The inode numbers of the directories on the path, from the one in the root down to this one: a directory that
    /// was renamed since is found by its number, and one that took its name is not mistaken for it. 0 where unknown.
    /// Devices are not included: their numbers differ between nodes and after a restart.
    pub inodes: Vec<u64>,
}

impl Unit {
    /// Adds the units of unopened entries in this directory to `units`. The last one takes over its path, which may be long: most
    /// directories far below their root have one subdirectory alone.
    pub(crate) fn children<'n>(
        mut self,
        names: impl Iterator<Item = (&'n CStr, u64)>,
        units: &mut Vec<Unit>,
    ) {
        let mut names = names.peekable();
        while let Some((name, inode)) = names.next() {
            if names.peek().is_some() {
                units.push(self.child(name.to_bytes(), inode));
                continue;
            }
            if !self.path.is_empty() {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(name.to_bytes());
            self.inodes.push(inode);
            return units.push(Unit { position: None, until: None, after: None, ..self });
        }
    }

    /// Returns the length of its path and the inode numbers of that, in bytes.
    pub(crate) fn path_bytes(&self) -> usize {
        self.path.len() + size_of_val(&self.inodes[..])
    }

    /// Returns the unit of an unopened entry in this directory.
    pub(crate) fn child(&self, name: &[u8], inode: u64) -> Unit {
        let mut path = Vec::with_capacity(self.path.len() + 1 + name.len());
        path.extend_from_slice(&self.path);
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        let mut inodes = Vec::with_capacity(self.inodes.len() + 1);
        inodes.extend_from_slice(&self.inodes);
        inodes.push(inode);
        Unit { root: self.root, path, inodes, ..Unit::default() }
    }
}

/// A unit as it is written in checkpoints and messages.
#[derive(serde::Serialize, serde::Deserialize)]
struct Written<Path, Inodes> {
    root: u32,
    path: Path,
    part: Part,
    inodes: Inodes,
}

/// The part of a directory that a unit stands for. The first two are written as an optional position is: before there were
/// the others, that was what a unit had.
#[derive(serde::Serialize, serde::Deserialize)]
enum Part {
    Whole,
    From(u64),
    Between(u64, u64),
    After(Vec<u8>),
}

impl serde::Serialize for Unit {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let part = match (&self.after, self.position, self.until) {
            (Some(after), ..) => Part::After(after.clone()),
            (None, None, _) => Part::Whole,
            (None, Some(from), None) => Part::From(from),
            (None, Some(from), Some(until)) => Part::Between(from, until),
        };
        Written { root: self.root, path: &self.path, part, inodes: &self.inodes }.serialize(serializer)
    }
}

impl From<Written<Vec<u8>, Vec<u64>>> for Unit {
    fn from(written: Written<Vec<u8>, Vec<u64>>) -> Unit {
        let Written { root, path, part, inodes } = written;
        let unit = Unit { root, path, inodes, ..Unit::default() };
        match part {
            Part::Whole => unit,
            Part::From(from) => Unit { position: Some(from), ..unit },
            Part::Between(from, until) => Unit { position: Some(from), until: Some(until), ..unit },
            Part::After(name) => Unit { after: Some(name), ..unit },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_without_an_end_are_written_as_before_there_were_ends() {
        #[derive(serde::Serialize)]
        struct Before {
            root: u32,
            path: Vec<u8>,
            position: Option<u64>,
            inodes: Vec<u64>,
        }
        for position in [None, Some(0), Some(300), Some(u64::MAX)] {
            for until in [None, Some(7), Some(u64::MAX)] {
                let (root, path, inodes) = (3, b"some/path".to_vec(), vec![1, 2_000, 0]);
                let until = position.and(until);
                let unit =
                    Unit { root, path: path.clone(), position, until, after: None, inodes: inodes.clone() };
                let bytes = postcard::to_stdvec(&unit).unwrap();
                assert_eq!(postcard::from_bytes::<Unit>(&bytes).unwrap(), unit);
                let before = postcard::to_stdvec(&Before { root, path, position, inodes }).unwrap();
                assert_eq!(bytes == before, until.is_none(), "{unit:?}");
            }
        }
    }

    #[test]
    fn the_rest_of_a_directory_of_a_source_is_written_by_a_name() {
        let unit =
            Unit { root: 3, path: b"some/path".to_vec(), after: Some(b"a \xff".to_vec()), ..Unit::default() };
        let bytes = postcard::to_stdvec(&unit).unwrap();
        assert_eq!(postcard::from_bytes::<Unit>(&bytes).unwrap(), unit);
    }
}
