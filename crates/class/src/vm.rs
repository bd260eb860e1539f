//! The Lua machine: a state, the environment in it, and calls of methods in protected mode.
//!
//! This module and its parts are the only ones with `unsafe` code. Two rules make it sound:
//! - Lua reports errors by jumping over the frames of whoever called it. Native functions therefore call nothing that may
//!   raise one: while they run, allocations are not refused and garbage is not collected, and tables are accessed without
//!   metamethods. What they return as an error is raised when their frames are gone, by the functions that call [`enter`].
//! - What scripts run under is entered by `lua_pcall` in [`Vm::protect`], from a frame that outlives it.
//!
//! Garbage is collected between calls only. So a call's memory is what it allocates, the same in every run, and no
//! finalizer and no weak table shows when the collector comes by.

mod blocks;
mod host;
mod keep;
mod library;
mod module;
mod objclass;
mod stack;

use std::ffi::{CStr, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use bytes::Bytes;
use mlua_sys as ffi;

pub(crate) use self::host::Fatal;
use self::host::{Host, allocate, host_of, raise_fatal};
use self::stack::{BUFFER_KEY, Native, Raise, Stack};
use crate::bounds::Bounds;
use crate::buffer::BufferId;
use crate::call::Call;
use crate::catalogue::Class;
use crate::errno::{self, Errno};

/// The growth of a machine, in bytes, after which its garbage is collected between two calls.
const GARBAGE_BYTES: usize = 1 << 20;
/// The memory of small blocks that a machine may keep beyond what it uses, in bytes.
const SPARE_BYTES_MAX: usize = 8 << 20;
/// The text of the environment.
pub(crate) const PRELUDE: &str = include_str!("prelude.lua");
/// Its name, which is that of no class.
const PRELUDE_NAME: &CStr = c"=[nacre]";
/// The variables that the prelude's `begin` sets, in the order in which it has them.
const BEGINNING: [&CStr; 4] = [c"depth", c"writable", c"registered", c"earlier"];
/// The numbers of a call's input and output, which are its first buffers.
const INPUT: BufferId = 0;
const OUTPUT: BufferId = 1;

/// The end of a run.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The method returned a number, which may stand for a failure.
    Returned(i64),
    /// A failure, with an error number and a message.
    Failed(Errno, String),
    /// A call that cannot go on.
    Fatal(Fatal),
}

/// A Lua machine. One call runs in it at a time.
pub(crate) struct Vm {
    state: *mut ffi::lua_State,
    /// Lua holds its address: in the allocator, and in the state's extra space.
    host: Box<Host>,
    /// Functions of the prelude, by their references in the registry.
    prepare: c_int,
    begin: c_int,
    inspect: c_int,
    /// The buffers that every call has, as values of Lua's.
    input: c_int,
    output: c_int,
    /// Bytes in use after the last collection.
    floor: usize,
}

// SAFETY: a Lua state belongs to no thread; it must only not be used by two at once, which `&mut self` sees to.
unsafe impl Send for Vm {}

/// All natives, by the name of their table; the order gives their numbers.
const TABLES: &[(&CStr, &[(&str, Native)])] = &[
    (c"base", library::NATIVES),
    (c"bufferlist", library::BUFFER_NATIVES),
    (c"objclass", objclass::NATIVES),
    (c"nacre", module::NATIVES),
];

/// Runs the native function whose number is the closure's upvalue.
unsafe extern "C-unwind" fn dispatch(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: Lua calls this with a Vm's state and the upvalue that Vm::new gave; lua_error is called in a frame with nothing
    // to drop.
    unsafe {
        let number = ffi::lua_tointegerx(state, ffi::lua_upvalueindex(1), std::ptr::null_mut());
        match enter(state, NATIVES[number as usize]) {
            Outcome::Results(count) => count,
            Outcome::Error => ffi::lua_error(state),
            Outcome::Fatal => raise_fatal(state),
        }
    }
}

enum Outcome {
    Results(c_int),
    /// The error is on top of the stack.
    Error,
    Fatal,
}

/// Runs a native function, and catches its panics.
///
/// # Safety
///
/// Called from a function that Lua has called.
unsafe fn enter(state: *mut ffi::lua_State, native: Native) -> Outcome {
    // SAFETY: the state is a Vm's.
    let host = unsafe { host_of(state) };
    let before = host.enter_native();
    // SAFETY: native mode lasts until the end of this function, and a C function has LUA_MINSTACK free slots.
    let stack = unsafe { Stack::new(state, host) };
    let result = catch_unwind(AssertUnwindSafe(|| native(&stack)));
    let outcome = match result {
        Ok(Ok(count)) if !host.is_fatal() => Outcome::Results(count),
        Ok(Ok(_) | Err(Raise::Fatal)) => Outcome::Fatal,
        Ok(Err(Raise::Errno(number, text))) => {
            host.set_errno(Some(number));
            raised(&stack, &text)
        }
        Ok(Err(Raise::Message(text))) => raised(&stack, &text),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            host.fail(Fatal::Panic(text.unwrap_or_default()));
            Outcome::Fatal
        }
    };
    host.leave_native(before);
    outcome
}

/// Pushes the text of an error. A script that catches it may have made it as long as it likes, again and again.
fn raised(stack: &Stack<'_>, text: &str) -> Outcome {
    match stack.push_long(text.as_bytes()) {
        Ok(()) => Outcome::Error,
        Err(_) => Outcome::Fatal,
    }
}

/// The natives of all tables, one after another.
static NATIVES: [Native; native_count()] = {
    let mut all: [Native; native_count()] = [library::NATIVES[0].1; native_count()];
    let (mut table, mut number) = (0, 0);
    while table < TABLES.len() {
        let mut index = 0;
        while index < TABLES[table].1.len() {
            all[number] = TABLES[table].1[index].1;
            number += 1;
            index += 1;
        }
        table += 1;
    }
    all
};

const fn native_count() -> usize {
    let (mut table, mut count) = (0, 0);
    while table < TABLES.len() {
        count += TABLES[table].1.len();
        table += 1;
    }
    count
}

/// Charges for the lengths of the string arguments, the first or all, and calls the function of Lua's library that is the
/// closure's first upvalue.
unsafe extern "C-unwind" fn linear(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: the upvalues are those that `make_linear` gave. Nothing in this frame has to be dropped when the library's
    // function raises an error; it uses no upvalues.
    unsafe {
        let all = ffi::lua_toboolean(state, ffi::lua_upvalueindex(2)) != 0;
        let last = if all { ffi::lua_gettop(state) } else { 1 };
        let mut cost = 0;
        for index in 1..=last {
            if ffi::lua_type(state, index) == ffi::LUA_TSTRING {
                cost += ffi::lua_rawlen(state, index) as u64 / 16;
            }
        }
        if !host_of(state).charge(cost) {
            return raise_fatal(state);
        }
        match ffi::lua_tocfunction(state, ffi::lua_upvalueindex(1)) {
            Some(function) => function(state),
            None => 0,
        }
    }
}

/// Wraps a function of Lua's library with [`linear`]. The closure's upvalue says whether all arguments are charged for.
unsafe extern "C-unwind" fn make_linear(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: called by the prelude with a C function.
    unsafe {
        ffi::lua_settop(state, 1);
        ffi::lua_pushvalue(state, ffi::lua_upvalueindex(1));
        ffi::lua_pushcclosure(state, linear, 2);
        1
    }
}

/// `pcall`: Lua's own function, the upvalue. What ends a call for good is raised again, and the error number is put before the text where
/// an operation failed.
unsafe extern "C-unwind" fn pcall(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: the upvalue is the one that `make_pcall` gave. Nothing in this frame has to be dropped when an error is raised; Lua's own
    // function uses no upvalues. It leaves its results on top, and after an error far fewer values than there is room for.
    unsafe {
        if ffi::lua_gettop(state) == 0 {
            ffi::lua_pushnil(state);
        }
        let Some(function) = ffi::lua_tocfunction(state, ffi::lua_upvalueindex(1)) else { return 0 };
        let results = function(state);
        let host = host_of(state);
        if host.is_fatal() {
            return raise_fatal(state);
        }
        // An error may have been that too many calls were nested in each other, those around the class's own among them.
        host.touch();
        if ffi::lua_toboolean(state, -results) == 0
            && let Some(number) = host.take_errno()
        {
            ffi::lua_pushinteger(state, -i64::from(number));
            ffi::lua_insert(state, -2);
            return results + 1;
        }
        results
    }
}

/// Makes [`pcall`] of Lua's function.
unsafe extern "C-unwind" fn make_pcall(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: called by the prelude with the function.
    unsafe {
        ffi::lua_settop(state, 1);
        ffi::lua_pushcclosure(state, pcall, 1);
        1
    }
}

/// `string.format`: Lua's own function, the first upvalue, or the prelude's, the second one, where a value has to be converted first.
unsafe extern "C-unwind" fn format(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: the upvalues are those that `make_format` gave. Nothing in this frame has to be dropped when one of the functions raises an
    // error; Lua's own uses no upvalues. The answer of the native function is removed, so there is a slot for the other function.
    unsafe {
        match enter(state, library::format) {
            // It is the text.
            Outcome::Results(_) if ffi::lua_type(state, -1) == ffi::LUA_TSTRING => 1,
            Outcome::Results(_) => {
                let convert = ffi::lua_toboolean(state, -1) != 0;
                ffi::lua_settop(state, -2);
                if convert {
                    ffi::lua_pushvalue(state, ffi::lua_upvalueindex(2));
                    ffi::lua_insert(state, 1);
                    ffi::lua_call(state, ffi::lua_gettop(state) - 1, 1);
                    return 1;
                }
                match ffi::lua_tocfunction(state, ffi::lua_upvalueindex(1)) {
                    Some(function) => function(state),
                    None => 0,
                }
            }
            Outcome::Error => ffi::lua_error(state),
            Outcome::Fatal => raise_fatal(state),
        }
    }
}

/// Makes [`format()`] of Lua's function and the prelude's.
unsafe extern "C-unwind" fn make_format(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: called by the prelude with the two functions.
    unsafe {
        ffi::lua_settop(state, 2);
        ffi::lua_pushcclosure(state, format, 2);
        1
    }
}

impl Vm {
    /// Makes a machine with its environment.
    pub fn new() -> Self {
        let host = Box::new(Host::new());
        let address = &raw const *host;
        // SAFETY: the host outlives the state, since it is dropped after lua_close. It is in native mode, so allocations are
        // not refused and no function below raises an error.
        let state = unsafe {
            let state = ffi::lua_newstate(allocate, address as *mut c_void);
            assert!(!state.is_null(), "no memory for a Lua state");
            *(ffi::lua_getextraspace(state) as *mut *const Host) = address;
            state
        };
        host.set_state(state);
        let mut vm = Self { state, host, prepare: 0, begin: 0, inspect: 0, input: 0, output: 0, floor: 0 };
        vm.furnish();
        vm
    }

    /// Opens Lua's libraries and runs the prelude.
    fn furnish(&mut self) {
        let state = self.state;
        let open: [(&CStr, ffi::lua_CFunction); 4] = [
            (c"_G", ffi::luaopen_base),
            (c"table", ffi::luaopen_table),
            (c"string", ffi::luaopen_string),
            (c"math", ffi::luaopen_math),
        ];
        // SAFETY: the state is new and in native mode; values are pushed and removed in pairs, within LUA_MINSTACK slots.
        unsafe {
            #[cfg(feature = "lua54")]
            ffi::lua_gc(state, ffi::LUA_GCSTOP);
            #[cfg(not(feature = "lua54"))]
            ffi::lua_gc(state, ffi::LUA_GCSTOP, 0);
            for (name, function) in open {
                ffi::luaL_requiref(state, name.as_ptr(), function, 1);
                ffi::lua_settop(state, 0);
            }
            let status = ffi::luaL_loadbufferx(
                state,
                PRELUDE.as_ptr().cast(),
                PRELUDE.len(),
                PRELUDE_NAME.as_ptr(),
                c"t".as_ptr(),
            );
            assert_eq!(status, ffi::LUA_OK, "the prelude does not compile: {}", top_text(state));
            self.push_natives();
            ffi::lua_rawgeti(state, ffi::LUA_REGISTRYINDEX, ffi::LUA_RIDX_GLOBALS);
            ffi::lua_createtable(state, 0, errno::ALL.len() as c_int);
            for (name, number, _) in errno::ALL {
                ffi::lua_pushlstring(state, name.as_ptr().cast(), name.len());
                ffi::lua_pushinteger(state, (*number).into());
                ffi::lua_rawset(state, -3);
            }
            let status = ffi::lua_pcall(state, 3, 4, 0);
            assert_eq!(status, ffi::LUA_OK, "the prelude fails: {}", top_text(state));
            for (number, name) in (1..).zip(BEGINNING) {
                let found = ffi::lua_getupvalue(state, -1, number);
                assert!(!found.is_null() && CStr::from_ptr(found) == name, "{name:?} is variable {number}");
                ffi::lua_settop(state, -2);
            }
            self.begin = ffi::luaL_ref(state, ffi::LUA_REGISTRYINDEX);
            self.prepare = ffi::luaL_ref(state, ffi::LUA_REGISTRYINDEX);
            self.inspect = ffi::luaL_ref(state, ffi::LUA_REGISTRYINDEX);
            // The first one calls a method as an OSD does.
            ffi::lua_settop(state, 0);
        }
        let stack = self.stack();
        stack.push_buffer(INPUT);
        let input = stack.register();
        stack.push_buffer(OUTPUT);
        let output = stack.register();
        (self.input, self.output) = (input, output);
        self.collect();
    }

    /// Pushes the table of natives.
    ///
    /// # Safety
    ///
    /// As in [`Vm::furnish`].
    unsafe fn push_natives(&self) {
        let state = self.state;
        let mut number = 0;
        // SAFETY: the caller's.
        unsafe {
            ffi::lua_createtable(state, 0, 32);
            for (table, natives) in TABLES {
                // Those of the base are in the table itself.
                let nested = *table != c"base";
                if nested {
                    ffi::lua_createtable(state, 0, natives.len() as c_int);
                }
                for (name, _) in *natives {
                    ffi::lua_pushlstring(state, name.as_ptr().cast(), name.len());
                    ffi::lua_pushinteger(state, number);
                    ffi::lua_pushcclosure(state, dispatch, 1);
                    ffi::lua_rawset(state, -3);
                    number += 1;
                }
                if *table == c"bufferlist" {
                    ffi::lua_pushvalue(state, -1);
                    ffi::lua_rawsetp(state, ffi::LUA_REGISTRYINDEX, &raw const BUFFER_KEY as *const c_void);
                }
                if nested {
                    ffi::lua_setfield(state, -2, table.as_ptr());
                }
            }
            ffi::lua_pushcclosure(state, make_format, 0);
            ffi::lua_setfield(state, -2, c"format".as_ptr());
            ffi::lua_pushcclosure(state, make_pcall, 0);
            ffi::lua_setfield(state, -2, c"pcall".as_ptr());
            for (name, all) in [(c"linear", 1), (c"linear_first", 0)] {
                ffi::lua_pushboolean(state, all);
                ffi::lua_pushcclosure(state, make_linear, 1);
                ffi::lua_setfield(state, -2, name.as_ptr());
            }
        }
    }

    /// Returns the stack, to prepare a call or to look at what came of it.
    fn stack(&self) -> Stack<'_> {
        // SAFETY: outside of `protect` the host is in native mode, and the stack is empty but for a few values.
        unsafe { Stack::new(self.state, &self.host) }
    }

    /// Calls the function below its arguments in protected mode, and returns whether it succeeded.
    fn protect(&self, arguments: c_int, results: c_int) -> bool {
        self.host.leave_native(false);
        // SAFETY: function and arguments are on the stack. Errors end in lua_pcall.
        let status = unsafe { ffi::lua_pcall(self.state, arguments, results, 0) };
        self.host.enter_native();
        status == ffi::LUA_OK
    }

    /// Runs a method. The call is returned with all that happened in it, and the instructions that it took.
    pub fn run(
        &mut self,
        mut call: Box<Call>,
        class: &Class,
        method: &str,
        input: Bytes,
        bounds: &Bounds,
    ) -> (Box<Call>, Ended, u64) {
        let input = call.buffers.add(input);
        call.output = call.buffers.add(Bytes::new());
        assert_eq!((input, call.output), (INPUT, OUTPUT), "a new call has no buffers");
        self.host.begin(call, bounds);
        let ended = match self.push_method(class, method) {
            Err(ended) => ended,
            Ok(()) => {
                let stack = self.stack();
                stack.push_registered(self.input);
                stack.push_registered(self.output);
                match self.protect(2, ffi::LUA_MULTRET) {
                    true => self.returned(),
                    false => self.failed(),
                }
            }
        };
        let taken = bounds.instructions.saturating_sub(self.host.instructions_left());
        let (call, ended) = self.finish(ended);
        (call, ended, taken)
    }

    /// Pushes the function that a method is.
    fn push_method(&self, class: &Class, method: &str) -> Result<(), Ended> {
        let stack = self.stack();
        // What was exceeded, the host knows.
        let exceeded = |_: Raise| Ended::Failed(errno::EIO, String::new());
        if keep::push_method(&stack, class, method, self.begin).map_err(exceeded)? {
            return Ok(());
        }
        stack.push_registered(self.prepare);
        stack.push_bytes(class.name.as_bytes());
        stack.push_bytes(method.as_bytes());
        stack.push_class(class).map_err(|text| Ended::Failed(errno::EIO, text))?;
        stack.push_kept(class).map_err(exceeded)?;
        if self.protect(4, 1) { Ok(()) } else { Err(self.failed()) }
    }

    /// Returns the time that is left to the last call.
    pub fn wall_left(&self) -> Duration {
        self.host.wall_left()
    }

    /// Runs the text of a class, and returns the methods that it registers: five strings for each.
    pub fn inspect(&mut self, call: Box<Call>, class: &Class, bounds: &Bounds) -> (Ended, Vec<String>) {
        self.host.begin(call, bounds);
        let stack = self.stack();
        stack.push_registered(self.inspect);
        let mut found = Vec::new();
        let ended = match stack.push_class(class) {
            Err(text) => Ended::Failed(errno::EINVAL, text),
            Ok(()) if self.protect(1, 1) => {
                let table = stack.top();
                for number in 1..=stack.length(table) {
                    stack.push_element(table, number as i64);
                    let text = stack.to_bytes(-1).unwrap_or_default();
                    found.push(String::from_utf8_lossy(text).into_owned());
                    stack.pop(1);
                }
                Ended::Returned(0)
            }
            Ok(()) => self.failed(),
        };
        let (_, ended) = self.finish(ended);
        (ended, found)
    }

    /// Reads the last of the results, of which there may be none.
    fn returned(&self) -> Ended {
        if self.stack().top() == 0 {
            return Ended::Returned(0);
        }
        match self.stack().to_integer(-1) {
            Some(value) if i32::try_from(value).is_ok() => Ended::Returned(value),
            Some(value) => Ended::Failed(
                errno::EIO,
                format!("the method returned {value}, which is not a 32-bit integer"),
            ),
            None => {
                let kind = self.stack().kind(-1).name();
                Ended::Failed(
                    errno::EIO,
                    format!("the method returned a {kind}, where an integer is expected"),
                )
            }
        }
    }

    /// Reads the error on top of the stack.
    fn failed(&self) -> Ended {
        let stack = self.stack();
        let text = match stack.to_bytes(-1) {
            Some(text) => String::from_utf8_lossy(&text[..text.len().min(1024)]).into_owned(),
            None => format!("an error that is a {}", stack.kind(-1).name()),
        };
        Ended::Failed(self.host.take_errno().unwrap_or(errno::EIO), text)
    }

    fn finish(&mut self, ended: Ended) -> (Box<Call>, Ended) {
        let (call, fatal) = self.host.end();
        // SAFETY: empties the stack.
        unsafe { ffi::lua_settop(self.state, 0) };
        // A call was begun before, and natives only borrow it.
        let call = call.expect("the call that was begun");
        let ended = match fatal {
            Some(fatal) => Ended::Fatal(fatal),
            None => ended,
        };
        if self.host.used() > self.floor + GARBAGE_BYTES {
            self.collect();
        }
        (call, ended)
    }

    /// Returns whether the machine holds much more memory than it uses: another one is made faster than blocks of other sizes
    /// are found.
    pub fn is_bloated(&self) -> bool {
        self.host.small_bytes() > self.floor + SPARE_BYTES_MAX
    }

    /// Returns the bytes that it uses, garbage among them.
    pub fn used(&self) -> usize {
        self.host.used()
    }

    /// Collects all garbage.
    fn collect(&mut self) {
        // SAFETY: no function runs. Nothing has a finalizer.
        unsafe {
            #[cfg(feature = "lua54")]
            ffi::lua_gc(self.state, ffi::LUA_GCCOLLECT);
            #[cfg(not(feature = "lua54"))]
            ffi::lua_gc(self.state, ffi::LUA_GCCOLLECT, 0);
        }
        self.floor = self.host.used();
    }
}

/// Returns the text on top of the stack.
///
/// # Safety
///
/// The state is in native mode.
unsafe fn top_text(state: *mut ffi::lua_State) -> String {
    let mut len = 0;
    // SAFETY: the caller's; a text is copied before anything else happens.
    unsafe {
        let text = ffi::lua_tolstring(state, -1, &mut len);
        if text.is_null() {
            return String::new();
        }
        String::from_utf8_lossy(std::slice::from_raw_parts(text as *const u8, len)).into_owned()
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        // SAFETY: the state is not used again; the host is dropped after this.
        unsafe { ffi::lua_close(self.state) };
    }
}
