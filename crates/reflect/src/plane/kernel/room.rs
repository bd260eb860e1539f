//! Allocation in arrays that programs in the kernel read. A part that is given up is used again only when no program
//! can refer to it any more: the programs count when they begin and end (`flight` in `bpf/reflect.h`).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::mapped::Mapped;

/// A part that was given up, with the programs that ran then.
struct Given<T> {
    what: T,
    /// The processor and step of each program that ran.
    seen: Vec<(u32, u64)>,
}

/// Parts that were given up and wait until no program sees them.
pub struct Quarantine<T> {
    waiting: VecDeque<Given<T>>,
}

impl<T> Default for Quarantine<T> {
    fn default() -> Self {
        Quarantine { waiting: VecDeque::new() }
    }
}

impl<T> Quarantine<T> {
    /// Adds a part that no program finds from now on. It must have been unlinked before.
    pub fn put(&mut self, what: T, flights: &Mapped) {
        // What was unlinked before this fence is not seen by a program whose beginning is not seen after it.
        fence(Ordering::SeqCst);
        let seen = (0..flights.entries())
            .map(|cpu| (cpu, step(flights, cpu).load(Ordering::SeqCst)))
            .filter(|(_, step)| step % 2 == 1)
            .collect();
        self.waiting.push_back(Given { what, seen });
    }

    /// Takes the oldest part, if it may be used again.
    pub fn take(&mut self, flights: &Mapped) -> Option<T> {
        let given = self.waiting.front_mut()?;
        given.seen.retain(|(cpu, seen)| step(flights, *cpu).load(Ordering::SeqCst) == *seen);
        if !given.seen.is_empty() {
            return None;
        }
        self.waiting.pop_front().map(|given| given.what)
    }
}

fn step(flights: &Mapped, cpu: u32) -> &AtomicU64 {
    &flights.entry(cpu)[0]
}

/// Single entries of an array.
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
        while let Some(slot) = self.quarantine.take(flights) {
            self.free.push(slot);
        }
        self.free.pop().or_else(|| {
            let slot = self.fresh;
            self.fresh += u32::from(slot < self.end);
            (slot < self.end).then_some(slot)
        })
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
    /// The capacity, as a power of two.
    pub class: u8,
}

impl Region {
    /// Returns the number of places that it has room for.
    pub fn capacity(self) -> u32 {
        1 << self.class
    }
}

/// The class of the smallest region, which has room for 8 places.
const CLASS_MIN: u8 = 3;

/// Rows of places, whose lengths are powers of two. A row of a length of which none is free is cut from a longer one.
pub struct Regions {
    free: Vec<Vec<u32>>,
    fresh: u32,
    end: u32,
    quarantine: Quarantine<Region>,
}

impl Regions {
    /// Creates the rows of `end` places, all of them free.
    pub fn new(end: u32) -> Self {
        Regions { free: vec![Vec::new(); 33], fresh: 0, end, quarantine: Quarantine::default() }
    }

    /// Takes a row of at least `len` places, if there is one.
    pub fn take(&mut self, len: u32, flights: &Mapped) -> Option<Region> {
        while let Some(region) = self.quarantine.take(flights) {
            self.free[region.class as usize].push(region.base);
        }
        let class = (len.max(1).next_power_of_two().trailing_zeros() as u8).max(CLASS_MIN);
        if let Some(base) = self.free[class as usize].pop() {
            return Some(Region { base, class });
        }
        let capacity = 1_u32 << class;
        if self.end - self.fresh >= capacity {
            let base = self.fresh;
            self.fresh += capacity;
            return Some(Region { base, class });
        }
        let longer = (class + 1..32).find(|&longer| !self.free[longer as usize].is_empty())?;
        let base = self.free[longer as usize].pop()?;
        // The upper halves stay free.
        for half in class..longer {
            self.free[half as usize].push(base + (1 << half));
        }
        Some(Region { base, class })
    }

    /// Gives up a row that no program finds any more.
    pub fn give(&mut self, region: Region, flights: &Mapped) {
        self.quarantine.put(region, flights);
    }
}
