//! The Lua machines of a process: a few, each used by one call at a time, without a lock that all share.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::vm::Vm;

/// Machines, made when they are first needed. A call takes the one of its thread if that is free.
pub(crate) struct Machines {
    slots: Box<[Mutex<Option<Vm>>]>,
}

thread_local! {
    /// The number of this thread, which says where it looks for a machine first.
    static HOME: Cell<usize> = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        Cell::new(NEXT.fetch_add(1, Ordering::Relaxed))
    };
}

impl Machines {
    /// Creates room for `count` machines, at least one.
    pub fn new(count: usize) -> Self {
        Self { slots: (0..count.max(1)).map(|_| Mutex::new(None)).collect() }
    }

    /// Runs a function on a machine. It is kept for the next call if the function says so, and else dropped.
    pub fn with<T>(&self, f: impl FnOnce(&mut Vm) -> (T, bool)) -> T {
        let mut slot = self.free();
        // The slot is empty while the machine runs, so that one whose call panics is not used again.
        let mut vm = slot.take().unwrap_or_else(Vm::new);
        let (result, keep) = f(&mut vm);
        if keep {
            *slot = Some(vm);
        }
        result
    }

    fn free(&self) -> MutexGuard<'_, Option<Vm>> {
        let count = self.slots.len();
        let home = HOME.get() % count;
        let mut slots = (0..count).map(|step| &self.slots[(home + step) % count]);
        slots.find_map(Mutex::try_lock).unwrap_or_else(|| self.slots[home].lock())
    }
}
