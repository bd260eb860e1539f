//! The state that Lua and Rust share: the account of instructions and memory, the call under way, and the errors on their way.
//!
//! Everything here is reached through shared references and cells, because the allocator and the hook are called from
//! within Lua while a native function may hold a reference too.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::time::{Duration, Instant};

use mlua_sys as ffi;

use super::blocks::Blocks;
use super::keep::Compiled;
use crate::bounds::{Bound, Bounds};
use crate::call::Call;
use crate::errno::Errno;

/// The number of instructions between two looks at the clock.
const PERIOD: c_int = 1000;
/// The same number once a block of [`LARGE_BYTES`] was allocated: comparing long strings is one instruction each.
const PERIOD_LARGE: c_int = 100;
/// The same number once a block of [`HUGE_BYTES`] was allocated.
const PERIOD_HUGE: c_int = 1;
const LARGE_BYTES: usize = 64 << 10;
const HUGE_BYTES: usize = 1 << 20;

/// The reason for which a call cannot go on. No script can catch it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fatal {
    /// A bound is exceeded.
    Bound(Bound),
    /// The call needs an answer that it does not have: it is run again with it.
    Missing,
    /// A native function panicked.
    Panic(String),
}

/// The Rust side of a Lua state.
pub(crate) struct Host {
    blocks: Blocks,
    /// Bytes that Lua has allocated.
    used: Cell<usize>,
    /// The greatest value of `used` at which Lua is given more.
    limit: Cell<usize>,
    /// Bytes of the call's buffers, which are not Lua's, but count.
    external: Cell<usize>,
    /// True while a native function runs. Its allocations are never refused, because a refusal would jump over its
    /// frames; it reserves what it needs before.
    native: Cell<bool>,
    instructions: Cell<i64>,
    period: Cell<c_int>,
    deadline: Cell<Option<Instant>>,
    fatal: RefCell<Option<Fatal>>,
    is_fatal: Cell<bool>,
    /// The error number of the error that is on its way.
    errno: Cell<Option<Errno>>,
    call: RefCell<Option<Box<Call>>>,
    state: Cell<*mut ffi::lua_State>,
    /// The number of blocks that Lua has taken, up to that of its stack.
    taken: Cell<u8>,
    /// The block of Lua's stack.
    stack: Cell<*mut c_void>,
    output_max: Cell<usize>,
    /// Compiled classes, by their numbers.
    compiled: RefCell<HashMap<u64, Compiled>>,
    /// The number of times that anything of the call was looked at or changed, or an error was caught.
    touches: Cell<u64>,
}

impl Host {
    pub(super) fn new() -> Self {
        Self {
            blocks: Blocks::new(),
            used: Cell::new(0),
            limit: Cell::new(usize::MAX),
            external: Cell::new(0),
            native: Cell::new(true),
            instructions: Cell::new(i64::MAX),
            period: Cell::new(PERIOD),
            deadline: Cell::new(None),
            fatal: RefCell::new(None),
            is_fatal: Cell::new(false),
            errno: Cell::new(None),
            call: RefCell::new(None),
            state: Cell::new(ptr::null_mut()),
            taken: Cell::new(0),
            stack: Cell::new(ptr::null_mut()),
            output_max: Cell::new(usize::MAX),
            compiled: RefCell::new(HashMap::new()),
            touches: Cell::new(0),
        }
    }

    pub(super) fn set_state(&self, state: *mut ffi::lua_State) {
        self.state.set(state);
    }

    /// Returns the bytes that Lua has allocated.
    pub(super) fn used(&self) -> usize {
        self.used.get()
    }

    /// Returns the bytes that were taken for small blocks, used or not.
    pub(super) fn small_bytes(&self) -> usize {
        self.blocks.small_bytes()
    }

    /// Begins a call: sets its bounds, and arms the hook.
    pub(super) fn begin(&self, call: Box<Call>, bounds: &Bounds) {
        *self.call.borrow_mut() = Some(call);
        *self.fatal.borrow_mut() = None;
        self.is_fatal.set(false);
        self.errno.set(None);
        self.external.set(0);
        self.limit.set(self.used.get().saturating_add(bounds.memory_bytes as usize));
        self.instructions.set(bounds.instructions as i64);
        self.output_max.set(bounds.output_bytes as usize);
        self.deadline.set(Some(Instant::now() + bounds.wall));
        self.period.set(PERIOD);
        self.arm(PERIOD);
    }

    /// Ends a call: returns it, and the reason why it could not go on, if there is one.
    pub(super) fn end(&self) -> (Option<Box<Call>>, Option<Fatal>) {
        self.limit.set(usize::MAX);
        (self.call.borrow_mut().take(), self.fatal.borrow_mut().take())
    }

    /// Returns the instructions that are left.
    pub(super) fn instructions_left(&self) -> u64 {
        self.instructions.get().max(0) as u64
    }

    /// Returns the time that is left to the call.
    pub(super) fn wall_left(&self) -> Duration {
        let deadline = self.deadline.get();
        deadline.map_or(Duration::ZERO, |deadline| deadline.saturating_duration_since(Instant::now()))
    }

    pub(super) fn is_fatal(&self) -> bool {
        self.is_fatal.get()
    }

    /// Returns the maximum bytes of output.
    pub(super) fn output_max(&self) -> usize {
        self.output_max.get()
    }

    /// Returns the compiled classes.
    pub(super) fn compiled(&self) -> RefMut<'_, HashMap<u64, Compiled>> {
        self.compiled.borrow_mut()
    }

    pub(super) fn enter_native(&self) -> bool {
        self.native.replace(true)
    }

    pub(super) fn leave_native(&self, before: bool) {
        self.native.set(before);
    }

    /// Sets why the call cannot go on, unless that is known already. From now on every instruction fails.
    pub(crate) fn fail(&self, fatal: Fatal) {
        if !self.is_fatal.replace(true) {
            *self.fatal.borrow_mut() = Some(fatal);
        }
        self.period.set(1);
        self.arm(1);
    }

    /// Takes instructions from the budget; false if it is spent.
    pub(super) fn charge(&self, instructions: u64) -> bool {
        let left = self.instructions.get().saturating_sub(i64::try_from(instructions).unwrap_or(i64::MAX));
        self.instructions.set(left);
        if left < 0 {
            self.fail(Fatal::Bound(Bound::Instructions));
        }
        left >= 0
    }

    /// Makes sure that a native function may allocate a number of bytes; false if it may not.
    pub(super) fn reserve(&self, bytes: usize) -> bool {
        let wanted = self.occupied().saturating_add(bytes);
        if wanted > self.limit.get() {
            self.fail(Fatal::Bound(Bound::Memory));
            return false;
        }
        self.watch(bytes);
        true
    }

    /// Counts bytes of buffers; false if there is no room for them.
    pub(super) fn occupy(&self, bytes: usize) -> bool {
        let fits = self.reserve(bytes);
        if fits {
            self.external.set(self.external.get() + bytes);
        }
        fits
    }

    /// Looks at the clock more often once there are large blocks.
    fn watch(&self, bytes: usize) {
        let period = match bytes {
            HUGE_BYTES.. => PERIOD_HUGE,
            LARGE_BYTES.. => PERIOD_LARGE,
            _ => return,
        };
        if period < self.period.get() {
            self.period.set(period);
            self.arm(period);
        }
    }

    fn arm(&self, period: c_int) {
        let state = self.state.get();
        if !state.is_null() {
            // SAFETY: the state is alive as long as this host is known to it, and lua_sethook may be called at any time.
            unsafe { ffi::lua_sethook(state, Some(hook), ffi::LUA_MASKCOUNT, period) };
        }
    }

    pub(super) fn set_errno(&self, errno: Option<Errno>) {
        self.errno.set(errno);
    }

    pub(super) fn take_errno(&self) -> Option<Errno> {
        self.errno.take()
    }

    /// Returns the bytes that Lua has allocated, and those of the call's buffers.
    pub(super) fn occupied(&self) -> usize {
        self.used.get().saturating_add(self.external.get())
    }

    /// Returns a number that differs from an earlier one if anything of the call was looked at or changed since, or an error was caught.
    pub(super) fn touches(&self) -> u64 {
        self.touches.get()
    }

    pub(super) fn touch(&self) {
        self.touches.set(self.touches.get().wrapping_add(1));
    }

    /// Runs a function on the call under way.
    pub(super) fn with<T>(&self, f: impl FnOnce(&mut Call) -> T) -> T {
        self.touch();
        let mut call = self.call.borrow_mut();
        // Natives run only between `begin` and `end`, and never within one another.
        f(call.as_deref_mut().expect("a native function runs within a call"))
    }
}

/// Returns the host of a state.
///
/// # Safety
///
/// The state was made by [`super::Vm`], whose host outlives it.
pub(super) unsafe fn host_of<'a>(state: *mut ffi::lua_State) -> &'a Host {
    // SAFETY: the extra space of every state holds the pointer that Vm::new stored, and new threads copy it.
    unsafe { &*(*(ffi::lua_getextraspace(state) as *const *const Host)) }
}

/// The place of the stack's block among those that a new state takes: it follows the state itself.
const STACK_PLACE: u8 = 2;

/// The greatest length of the stack in bytes: some ten thousand values of 16 bytes, and those that Lua adds to them. A chain of tables that
/// call each other makes Lua move the whole stack again and again, without one instruction of the script, so a stack of a million values,
/// which is Lua's own limit, would take minutes.
const STACK_BYTES_MAX: usize = 12_000 * 16;

/// Lua's allocator.
///
/// # Safety
///
/// Lua calls it, with the host, and with a block of this allocator and its size.
pub(super) unsafe extern "C" fn allocate(
    host: *mut c_void,
    block: *mut c_void,
    old_bytes: usize,
    new_bytes: usize,
) -> *mut c_void {
    // SAFETY: `host` is what Vm::new passed to lua_newstate, and outlives the state.
    let host = unsafe { &*(host as *const Host) };
    // Without a block, the old size is a kind of object.
    let old_bytes = if block.is_null() { 0 } else { old_bytes };
    if new_bytes == 0 {
        if old_bytes > 0 {
            // SAFETY: the block was made below with this size.
            unsafe { host.blocks.give(block.cast(), old_bytes) };
            host.used.set(host.used.get() - old_bytes);
        }
        return ptr::null_mut();
    }
    if new_bytes > old_bytes && !host.native.get() {
        let wanted = host.occupied() - old_bytes;
        let limit = host.limit.get();
        let too_deep = block == host.stack.get() && new_bytes > STACK_BYTES_MAX;
        if host.is_fatal.get() || too_deep || wanted.saturating_add(new_bytes) > limit {
            host.fail(Fatal::Bound(Bound::Memory));
            return ptr::null_mut();
        }
        host.watch(new_bytes);
    }
    let allocated = match old_bytes {
        0 => host.blocks.take(new_bytes),
        // SAFETY: neither size is zero, and the block was made here with its old size.
        _ => unsafe { host.blocks.resize(block.cast(), old_bytes, new_bytes) },
    };
    if !allocated.is_null() {
        host.used.set(host.used.get() - old_bytes + new_bytes);
        if block.is_null() && host.taken.get() < STACK_PLACE {
            host.taken.set(host.taken.get() + 1);
            if host.taken.get() == STACK_PLACE {
                host.stack.set(allocated.cast());
            }
        } else if block == host.stack.get() {
            host.stack.set(allocated.cast());
        }
    }
    allocated.cast()
}

/// Called by Lua after a fixed number of instructions each time.
///
/// # Safety
///
/// Lua calls it, with a state of a [`super::Vm`].
unsafe extern "C-unwind" fn hook(state: *mut ffi::lua_State, _: *mut ffi::lua_Debug) {
    // SAFETY: the state is a Vm's.
    let host = unsafe { host_of(state) };
    if !host.is_fatal.get() {
        let spent = u64::try_from(host.period.get()).unwrap_or(1);
        let in_time = host.deadline.get().is_none_or(|deadline| Instant::now() < deadline);
        if host.charge(spent) && !in_time {
            host.fail(Fatal::Bound(Bound::Wall));
        }
    }
    if host.is_fatal.get() {
        // SAFETY: hooks may raise errors; nothing in this frame has to be dropped.
        unsafe { raise_fatal(state) };
    }
}

/// Raises the error of a call that cannot go on.
///
/// # Safety
///
/// Called where errors may be raised, with nothing to be dropped in the caller's frame.
pub(super) unsafe fn raise_fatal(state: *mut ffi::lua_State) -> c_int {
    static MARK: c_char = 0;
    // SAFETY: pushing a light userdata allocates nothing; a hook has LUA_MINSTACK slots.
    unsafe {
        ffi::lua_pushlightuserdata(state, &raw const MARK as *mut c_void);
        ffi::lua_error(state)
    }
}
