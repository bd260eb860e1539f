//! The forks of an object.

use std::borrow::Borrow;
use std::collections::{BTreeMap, btree_map};
use std::ops::RangeBounds;

use bytes::Bytes;
use nacre_object::Fork;

use crate::extent_map::ExtentMap;

/// A fork in memory.
#[derive(Debug, Default)]
pub struct ForkNode {
    /// True if the fork exists.
    pub exists: bool,
    /// Its size in bytes.
    pub size: u64,
    /// The version at which it last replaced another fork, or was taken by another one: no byte of it is older,
    /// whatever its entry says, and every byte that has no entry is a hole of this version. 0 if that never happened.
    pub base: u64,
    /// The places of its bytes.
    pub map: ExtentMap,
}

/// The forks of an object, in the order of their names. Most objects have the default fork only, and it takes no memory of
/// its own.
#[derive(Debug, Default)]
pub enum Forks {
    /// No forks.
    #[default]
    None,
    /// The default fork.
    Default(ForkNode),
    /// Any forks.
    Many(BTreeMap<Fork, ForkNode>),
}

static DEFAULT: Fork = Fork::DEFAULT;

fn is_default(name: &Fork) -> bool {
    name.as_bytes().is_empty()
}

impl Forks {
    /// Returns a fork.
    pub fn get(&self, name: &Fork) -> Option<&ForkNode> {
        match self {
            Self::Default(fork) if is_default(name) => Some(fork),
            Self::None | Self::Default(_) => None,
            Self::Many(forks) => forks.get(name),
        }
    }

    /// Returns a fork that is to be changed.
    pub fn get_mut(&mut self, name: &Fork) -> Option<&mut ForkNode> {
        match self {
            Self::Default(fork) if is_default(name) => Some(fork),
            Self::None | Self::Default(_) => None,
            Self::Many(forks) => forks.get_mut(name),
        }
    }

    /// Adds a fork, or replaces it.
    pub fn insert(&mut self, name: Fork, fork: ForkNode) {
        match self {
            Self::None | Self::Default(_) if is_default(&name) => *self = Self::Default(fork),
            _ => {
                self.many().insert(name, fork);
            }
        }
    }

    /// Returns a fork, made if there is none. Names are copied: the caller's may be a slice of a large buffer.
    pub fn get_or_default(&mut self, name: &Fork) -> &mut ForkNode {
        if is_default(name) && matches!(self, Self::None) {
            *self = Self::Default(ForkNode::default());
        }
        if !is_default(name) && !matches!(self, Self::Many(_)) {
            self.many();
        }
        match self {
            Self::Default(fork) => fork,
            forks => {
                let forks = forks.many();
                if !forks.contains_key(name) {
                    let name = Fork::new(Bytes::copy_from_slice(name.as_bytes())).unwrap_or_default();
                    forks.insert(name, ForkNode::default());
                }
                forks.entry(name.clone()).or_default()
            }
        }
    }

    fn many(&mut self) -> &mut BTreeMap<Fork, ForkNode> {
        if !matches!(self, Self::Many(_)) {
            let mut forks = BTreeMap::new();
            if let Self::Default(fork) = std::mem::take(self) {
                forks.insert(Fork::DEFAULT, fork);
            }
            *self = Self::Many(forks);
        }
        match self {
            Self::Many(forks) => forks,
            _ => unreachable!("it was made so above"),
        }
    }

    /// Returns all forks.
    pub fn iter(&self) -> Iter<'_> {
        match self {
            Self::None => Iter { one: None, many: None },
            Self::Default(fork) => Iter { one: Some(fork), many: None },
            Self::Many(forks) => Iter { one: None, many: Some(forks.range::<Fork, _>(..)) },
        }
    }

    /// Returns the forks whose names are in a range.
    pub fn range<Q, R>(&self, range: R) -> Iter<'_>
    where
        Q: Ord + ?Sized,
        R: RangeBounds<Q>,
        Fork: Borrow<Q>,
    {
        match self {
            Self::None => Iter { one: None, many: None },
            Self::Default(fork) => Iter { one: range.contains(DEFAULT.borrow()).then_some(fork), many: None },
            Self::Many(forks) => Iter { one: None, many: Some(forks.range(range)) },
        }
    }

    /// Returns all forks without their names.
    pub fn values(&self) -> impl Iterator<Item = &ForkNode> + Clone {
        self.iter().map(|(_, fork)| fork)
    }

    /// Removes all forks.
    pub fn clear(&mut self) {
        *self = Self::None;
    }
}

/// Forks with their names, in the order of these.
#[derive(Clone)]
pub struct Iter<'a> {
    one: Option<&'a ForkNode>,
    many: Option<btree_map::Range<'a, Fork, ForkNode>>,
}

impl<'a> Iterator for Iter<'a> {
    type Item = (&'a Fork, &'a ForkNode);

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.many {
            Some(many) => many.next(),
            None => self.one.take().map(|fork| (&DEFAULT, fork)),
        }
    }
}

impl<'a> IntoIterator for &'a Forks {
    type Item = (&'a Fork, &'a ForkNode);
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Bound::{Excluded, Unbounded};

    use proptest::prelude::*;

    use super::*;

    fn fork(index: u8) -> Fork {
        Fork::new(vec![b'a'; usize::from(index)]).unwrap()
    }

    proptest! {
        #[test]
        fn behaves_as_a_map(changes in prop::collection::vec((0u8..4, 0u64..1000, 0u8..12), 0..30)) {
            let mut forks = Forks::default();
            let mut model = BTreeMap::new();
            for (name, size, kind) in changes {
                match kind {
                    0 => {
                        forks.clear();
                        model.clear();
                    }
                    1..4 => {
                        forks.insert(fork(name), ForkNode { size, ..ForkNode::default() });
                        model.insert(name, size);
                    }
                    4..8 => {
                        forks.get_or_default(&fork(name)).size += size;
                        *model.entry(name).or_default() += size;
                    }
                    _ => {
                        let found = forks.get_mut(&fork(name)).map(|found| found.size += size);
                        prop_assert_eq!(found, model.get_mut(&name).map(|found| *found += size));
                    }
                }
                let sizes = |forks: Iter<'_>| -> Vec<(Fork, u64)> {
                    forks.map(|(name, fork)| (name.clone(), fork.size)).collect()
                };
                let expected = |from: u8| -> Vec<(Fork, u64)> {
                    model.range(from..).map(|(name, size)| (fork(*name), *size)).collect()
                };
                prop_assert_eq!(sizes(forks.iter()), expected(0));
                prop_assert_eq!(forks.values().count(), model.len());
                for index in 0..4 {
                    prop_assert_eq!(forks.get(&fork(index)).map(|found| found.size), model.get(&index).copied());
                    prop_assert_eq!(sizes(forks.range::<Fork, _>(&fork(index)..)), expected(index));
                    let behind = forks.range::<Fork, _>((Excluded(&fork(index)), Unbounded));
                    prop_assert_eq!(sizes(behind), expected(index + 1));
                }
            }
        }
    }
}
