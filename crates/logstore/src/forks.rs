//! The forks of an object.

use std::borrow::Borrow;
use std::collections::{BTreeMap, btree_map};
use std::ops::RangeBounds;
use std::slice;

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

/// The maximum number of forks in one array: a node of a map has room for eleven, whether it has them or not.
const FEW: usize = 8;

/// The forks of an object, in the order of their names. Most objects have the default fork only, and it takes no memory of
/// its own.
#[derive(Debug, Default)]
pub enum Forks {
    /// No forks.
    #[default]
    None,
    /// The default fork.
    Default(ForkNode),
    /// Up to [`FEW`] forks.
    Few(Vec<(Fork, ForkNode)>),
    /// Any forks.
    Many(BTreeMap<Fork, ForkNode>),
}

static DEFAULT: Fork = Fork::DEFAULT;

fn is_default(name: &Fork) -> bool {
    name.as_bytes().is_empty()
}

/// Returns the place of a fork among a few, or else the place where it belongs.
fn find(few: &[(Fork, ForkNode)], name: &Fork) -> Result<usize, usize> {
    few.binary_search_by(|(other, _)| other.cmp(name))
}

impl Forks {
    /// Returns a fork.
    pub fn get(&self, name: &Fork) -> Option<&ForkNode> {
        match self {
            Self::Default(fork) if is_default(name) => Some(fork),
            Self::None | Self::Default(_) => None,
            Self::Few(forks) => find(forks, name).ok().map(|at| &forks[at].1),
            Self::Many(forks) => forks.get(name),
        }
    }

    /// Returns a fork that is to be changed.
    pub fn get_mut(&mut self, name: &Fork) -> Option<&mut ForkNode> {
        match self {
            Self::Default(fork) if is_default(name) => Some(fork),
            Self::None | Self::Default(_) => None,
            Self::Few(forks) => find(forks, name).ok().map(|at| &mut forks[at].1),
            Self::Many(forks) => forks.get_mut(name),
        }
    }

    /// Adds a fork, or replaces it.
    pub fn insert(&mut self, name: Fork, fork: ForkNode) {
        *self.get_or_insert(&name, || name.clone()) = fork;
    }

    /// Returns a fork, made if there is none. Names are copied: the caller's may be a slice of a large buffer.
    pub fn get_or_default(&mut self, name: &Fork) -> &mut ForkNode {
        self.get_or_insert(name, || Fork::new(Bytes::copy_from_slice(name.as_bytes())).unwrap_or_default())
    }

    fn get_or_insert(&mut self, name: &Fork, own: impl FnOnce() -> Fork) -> &mut ForkNode {
        if is_default(name) && matches!(self, Self::None) {
            *self = Self::Default(ForkNode::default());
        }
        self.make_room_for(name);
        match self {
            Self::None => unreachable!("there is room for the fork"),
            Self::Default(fork) => fork,
            Self::Few(forks) => {
                let at = find(forks, name).unwrap_or_else(|at| {
                    forks.reserve_exact(1);
                    forks.insert(at, (own(), ForkNode::default()));
                    at
                });
                &mut forks[at].1
            }
            Self::Many(forks) => {
                if !forks.contains_key(name) {
                    forks.insert(own(), ForkNode::default());
                }
                forks.entry(name.clone()).or_default()
            }
        }
    }

    /// Makes it a kind in which there is room for a fork, if it has none of that name.
    fn make_room_for(&mut self, name: &Fork) {
        match self {
            Self::None => *self = Self::Few(Vec::new()),
            Self::Default(_) if !is_default(name) => {
                if let Self::Default(fork) = std::mem::take(self) {
                    *self = Self::Few(vec![(Fork::DEFAULT, fork)]);
                }
            }
            Self::Few(forks) if forks.len() == FEW && find(forks, name).is_err() => {
                *self = Self::Many(std::mem::take(forks).into_iter().collect());
            }
            Self::Default(_) | Self::Few(_) | Self::Many(_) => {}
        }
    }

    /// Returns all forks.
    pub fn iter(&self) -> Iter<'_> {
        self.range::<Fork, _>(..)
    }

    /// Returns the forks whose names are in a range.
    pub fn range<Q, R>(&self, range: R) -> Iter<'_>
    where
        Q: Ord + ?Sized,
        R: RangeBounds<Q>,
        Fork: Borrow<Q>,
    {
        match self {
            Self::None => Iter::One(None),
            Self::Default(fork) => Iter::One(range.contains(DEFAULT.borrow()).then_some(fork)),
            Self::Few(forks) => {
                let is_in = |(name, _): &(Fork, ForkNode)| range.contains(name.borrow());
                let first = forks.iter().position(is_in).unwrap_or(0);
                let end = forks.iter().rposition(is_in).map_or(first, |last| last + 1);
                Iter::Few(forks[first..end].iter())
            }
            Self::Many(forks) => Iter::Many(forks.range(range)),
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
#[derive(Clone, derive_more::Debug)]
pub enum Iter<'a> {
    /// The default fork, if it is left.
    #[debug("One")]
    One(Option<&'a ForkNode>),
    /// Some of a few.
    #[debug("Few")]
    Few(slice::Iter<'a, (Fork, ForkNode)>),
    /// Some of many.
    #[debug("Many")]
    Many(btree_map::Range<'a, Fork, ForkNode>),
}

impl<'a> Iterator for Iter<'a> {
    type Item = (&'a Fork, &'a ForkNode);

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::One(one) => one.take().map(|fork| (&DEFAULT, fork)),
            Self::Few(few) => few.next().map(|(name, fork)| (name, fork)),
            Self::Many(many) => many.next(),
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
        fn behaves_as_a_map(changes in prop::collection::vec((0u8..12, 0u64..1000, 0u8..40), 0..60)) {
            let mut forks = Forks::default();
            let mut model = BTreeMap::new();
            for (name, size, kind) in changes {
                match kind {
                    0 => {
                        forks.clear();
                        model.clear();
                    }
                    1..12 => {
                        forks.insert(fork(name), ForkNode { size, ..ForkNode::default() });
                        model.insert(name, size);
                    }
                    12..26 => {
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
                for index in 0..12 {
                    prop_assert_eq!(forks.get(&fork(index)).map(|found| found.size), model.get(&index).copied());
                    prop_assert_eq!(sizes(forks.range::<Fork, _>(&fork(index)..)), expected(index));
                    let behind = forks.range::<Fork, _>((Excluded(&fork(index)), Unbounded));
                    prop_assert_eq!(sizes(behind), expected(index + 1));
                }
            }
        }
    }
}
