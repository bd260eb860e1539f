//! Allocation in arrays that programs in the kernel read. A part that is given up is used again only when no program
//! can refer to it any more: the programs count when they begin and end (`flight` in `bpf/reflect.h`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::mapped::Mapped;

/// A part that was given up, with the programs that ran then.
struct Released<T> {
    item: T,
    /// The processor and step of each program that ran.
    seen: Vec<(u32, u64)>,
}

/// Parts that were given up and wait until no program sees them.
#[derive(derive_more::Debug)]
#[debug("Quarantine")]
pub struct Quarantine<T> {
    waiting: VecDeque<Released<T>>,
}

impl<T> Default for Quarantine<T> {
    fn default() -> Self {
        Quarantine { waiting: VecDeque::new() }
    }
}

impl<T> Quarantine<T> {
    /// Adds a part that no program finds from now on. It must have been unlinked before.
    pub fn put(&mut self, item: T, flights: &Mapped) {
        // What was unlinked before this fence is not seen by a program whose beginning is not seen after it.
        fence(Ordering::SeqCst);
        let seen = (0..flights.entries())
            .map(|cpu| (cpu, step(flights, cpu).load(Ordering::SeqCst)))
            .filter(|(_, step)| step % 2 == 1)
            .collect();
        self.waiting.push_back(Released { item, seen });
    }

    /// Returns whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes the oldest part, if it may be used again.
    pub fn take(&mut self, flights: &Mapped) -> Option<T> {
        let given = self.waiting.front_mut()?;
        given.seen.retain(|(cpu, seen)| step(flights, *cpu).load(Ordering::SeqCst) == *seen);
        if !given.seen.is_empty() {
            return None;
        }
        self.waiting.pop_front().map(|given| given.item)
    }
}

fn step(flights: &Mapped, cpu: u32) -> &AtomicU64 {
    &flights.entry(cpu)[0]
}

/// Single entries of an array.
#[derive(derive_more::Debug)]
#[debug("Slots")]
pub struct Slots {
    free: Vec<u32>,
    fresh: u32,
    end: u32,
    quarantine: Quarantine<u32>,
}

impl Slots {
    /// Creates the entries of an array of this length, all of them free.
    pub fn new(end: u32) -> Self {
        Slots { free: Vec::new(), fresh: 0, end, quarantine: Quarantine::default() }
    }

    /// Takes a free entry, if there is one.
    pub fn take(&mut self, flights: &Mapped) -> Option<u32> {
        self.waits(flights);
        self.free.pop().or_else(|| {
            let slot = self.fresh;
            self.fresh += u32::from(slot < self.end);
            (slot < self.end).then_some(slot)
        })
    }

    /// Returns whether entries that were given up wait for programs still.
    pub fn waits(&mut self, flights: &Mapped) -> bool {
        while let Some(slot) = self.quarantine.take(flights) {
            self.free.push(slot);
        }
        !self.quarantine.is_empty()
    }

    /// Gives up an entry that no program finds any more.
    pub fn give(&mut self, slot: u32, flights: &Mapped) {
        self.quarantine.put(slot, flights);
    }
}

/// A row of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The first place.
    pub base: u32,
    /// The number of places.
    pub len: u32,
}

impl Region {
    /// Returns the number of places that it has room for.
    pub fn capacity(self) -> u32 {
        self.len
    }
}

/// The number of places that the lengths of rows are multiples of, so that what is left between rows is of use.
const GRAIN: u32 = 4;

/// Rows of places. Each is cut from the shortest free row that is long enough, and joins its free neighbours when it is
/// given up: rows of growing lanes leave room for longer ones.
#[derive(derive_more::Debug)]
#[debug("Regions")]
pub struct Regions {
    /// The free rows: lengths by first place, and the same by length.
    free: BTreeMap<u32, u32>,
    by_len: BTreeSet<(u32, u32)>,
    quarantine: Quarantine<Region>,
}

impl Regions {
    /// Creates one free row of `end` places.
    pub fn new(end: u32) -> Self {
        let mut regions =
            Regions { free: BTreeMap::new(), by_len: BTreeSet::new(), quarantine: Quarantine::default() };
        regions.add(Region { base: 0, len: end });
        regions
    }

    /// Takes a row of at least `len` places, if there is one.
    pub fn take(&mut self, len: u32, flights: &Mapped) -> Option<Region> {
        self.waits(flights);
        self.cut(len)
    }

    fn cut(&mut self, len: u32) -> Option<Region> {
        let len = len.max(1).next_multiple_of(GRAIN);
        let &(found, base) = self.by_len.range((len, 0)..).next()?;
        self.remove(base, found);
        if found > len {
            self.add(Region { base: base + len, len: found - len });
        }
        Some(Region { base, len })
    }

    /// Returns whether rows that were given up wait for programs still.
    pub fn waits(&mut self, flights: &Mapped) -> bool {
        while let Some(region) = self.quarantine.take(flights) {
            self.join(region);
        }
        !self.quarantine.is_empty()
    }

    /// Gives up a row that no program finds any more.
    pub fn give(&mut self, region: Region, flights: &Mapped) {
        self.quarantine.put(region, flights);
    }

    /// Makes a row free, together with the free ones beside it.
    fn join(&mut self, Region { mut base, mut len }: Region) {
        if let Some((&before, &before_len)) = self.free.range(..base).next_back()
            && before + before_len == base
        {
            self.remove(before, before_len);
            (base, len) = (before, before_len + len);
        }
        if let Some(&after_len) = self.free.get(&(base + len)) {
            self.remove(base + len, after_len);
            len += after_len;
        }
        self.add(Region { base, len });
    }

    fn add(&mut self, Region { base, len }: Region) {
        self.free.insert(base, len);
        self.by_len.insert((len, base));
    }

    fn remove(&mut self, base: u32, len: u32) {
        self.free.remove(&base);
        self.by_len.remove(&(len, base));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Rows never overlap, all places are free again when all rows were given up, and then they are one row.
        #[test]
        fn rows_share_no_places_and_join_again(steps in prop::collection::vec((any::<bool>(), 1..40_u32), 1..200)) {
            const END: u32 = 512;
            let mut regions = Regions::new(END);
            let mut owners = vec![false; END as usize];
            let mut taken = Vec::new();
            for (gives, number) in steps {
                if gives && !taken.is_empty() {
                    let region: Region = taken.swap_remove(number as usize % taken.len());
                    owners[region.base as usize..(region.base + region.len) as usize].fill(false);
                    regions.join(region);
                } else if let Some(region) = regions.cut(number) {
                    let places = &mut owners[region.base as usize..(region.base + region.len) as usize];
                    prop_assert!(places.iter().all(|taken| !taken), "{region:?}");
                    places.fill(true);
                    taken.push(region);
                }
                let free: u32 = regions.free.values().sum();
                prop_assert_eq!(free as usize, owners.iter().filter(|taken| !**taken).count());
            }
            taken.into_iter().for_each(|region| regions.join(region));
            prop_assert_eq!(regions.free, BTreeMap::from([(0, END)]));
        }
    }
}
