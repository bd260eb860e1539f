//! The arguments and results of a native function: a safe view of Lua's stack.
//!
//! While a native function runs, allocations are never refused and garbage is not collected, so none of the calls made
//! here can raise an error and jump over Rust's frames. Arguments stay on the stack until the function returns, so bytes
//! borrowed from them stay where they are.

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::slice;

use bytes::Bytes;
use mlua_sys as ffi;

use super::host::{Fatal, Host};
use super::keep::{Compiled, Kept};
use crate::buffer::{BUFFER_BYTES, BufferId};
use crate::call::Call;
use crate::catalogue::Class;
use crate::errno::{self, Errno};

/// The reason for which a native function failed.
#[derive(Debug)]
pub(crate) enum Raise {
    /// A failed operation: uncaught, the call's result is the error number.
    Errno(Errno, String),
    /// Any other error, such as a wrong argument.
    Message(String),
    /// The call cannot go on; the host knows why.
    Fatal,
}

impl Raise {
    /// Creates the failure of an operation, with the text of its number.
    pub fn errno(number: Errno) -> Self {
        Self::Errno(number, errno::text(number))
    }

    /// Creates the failure for an operation that was called wrongly.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::Errno(errno::EINVAL, text.into())
    }
}

/// A native function: takes the stack, returns the number of results on top of it.
pub(crate) type Native = fn(&Stack<'_>) -> Result<c_int, Raise>;

/// The kinds of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueKind {
    None,
    Nil,
    Boolean,
    Number,
    String,
    Table,
    Function,
    Userdata,
}

impl ValueKind {
    pub fn name(self) -> &'static str {
        match self {
            ValueKind::None => "no value",
            ValueKind::Nil => "nil",
            ValueKind::Boolean => "boolean",
            ValueKind::Number => "number",
            ValueKind::String => "string",
            ValueKind::Table => "table",
            ValueKind::Function => "function",
            ValueKind::Userdata => "userdata",
        }
    }
}

/// Lua's stack, while a native function runs.
pub(crate) struct Stack<'a> {
    state: *mut ffi::lua_State,
    host: &'a Host,
}

/// The maximum number of compiled classes that a machine keeps.
const COMPILED_MAX: usize = 256;

/// The mark of a buffer's userdata: its metatable, by this address in the registry.
pub(super) static BUFFER_KEY: u8 = 0;

impl<'a> Stack<'a> {
    /// Creates the view.
    ///
    /// # Safety
    ///
    /// The state is `host`'s, the host is in native mode for as long as the view lives, and the stack has room for
    /// LUA_MINSTACK values more.
    pub(super) unsafe fn new(state: *mut ffi::lua_State, host: &'a Host) -> Self {
        Self { state, host }
    }

    pub fn host(&self) -> &Host {
        self.host
    }

    /// Runs a function on the call under way.
    pub fn call<T>(&self, f: impl FnOnce(&mut Call) -> T) -> T {
        self.host.with(f)
    }

    /// Takes instructions from the budget.
    pub fn charge(&self, instructions: u64) -> Result<(), Raise> {
        if self.host.charge(instructions) { Ok(()) } else { Err(Raise::Fatal) }
    }

    /// Makes sure that there is memory for a number of bytes, and charges for filling them.
    pub fn reserve(&self, bytes: usize) -> Result<(), Raise> {
        if !self.host.reserve(bytes) {
            return Err(Raise::Fatal);
        }
        self.charge(bytes as u64 / 64)
    }

    /// Makes sure that there is memory for a text or list that has grown by `more` bytes to `total`, and charges for the growth.
    /// Room is there for it twice, since it grows by doubling, and once more as a value of Lua's.
    pub fn grow(&self, total: usize, more: usize) -> Result<(), Raise> {
        if !self.host.reserve(total.saturating_mul(3)) {
            return Err(Raise::Fatal);
        }
        self.charge(more as u64 / 64)
    }

    /// Returns the number of values on the stack.
    pub fn top(&self) -> c_int {
        // SAFETY: reads the stack.
        unsafe { ffi::lua_gettop(self.state) }
    }

    pub fn kind(&self, index: c_int) -> ValueKind {
        // SAFETY: reads a slot, which need not be there.
        match unsafe { ffi::lua_type(self.state, index) } {
            ffi::LUA_TNONE => ValueKind::None,
            ffi::LUA_TNIL => ValueKind::Nil,
            ffi::LUA_TBOOLEAN => ValueKind::Boolean,
            ffi::LUA_TNUMBER => ValueKind::Number,
            ffi::LUA_TSTRING => ValueKind::String,
            ffi::LUA_TTABLE => ValueKind::Table,
            ffi::LUA_TFUNCTION => ValueKind::Function,
            _ => ValueKind::Userdata,
        }
    }

    /// Returns whether an argument is missing or nil.
    pub fn is_absent(&self, index: c_int) -> bool {
        matches!(self.kind(index), ValueKind::None | ValueKind::Nil)
    }

    /// Returns whether a value is true: neither nil nor false.
    pub fn truth(&self, index: c_int) -> bool {
        // SAFETY: reads a slot.
        unsafe { ffi::lua_toboolean(self.state, index) != 0 }
    }

    /// Returns an integer, or a string or float that stands for one.
    pub fn to_integer(&self, index: c_int) -> Option<i64> {
        let mut is_integer = 0;
        // SAFETY: reads a slot.
        let value = unsafe { ffi::lua_tointegerx(self.state, index, &mut is_integer) };
        (is_integer != 0).then_some(value)
    }

    /// Returns a number if it is a float.
    pub fn to_float(&self, index: c_int) -> Option<f64> {
        let mut is_number = 0;
        // SAFETY: reads a slot.
        let value = unsafe { ffi::lua_tonumberx(self.state, index, &mut is_number) };
        (is_number != 0).then_some(value)
    }

    /// Returns whether a number is an integer by its type.
    pub fn is_integer(&self, index: c_int) -> bool {
        // SAFETY: reads a slot.
        unsafe { ffi::lua_isinteger(self.state, index) != 0 }
    }

    /// Returns the bytes of a string or number.
    pub fn to_bytes(&self, index: c_int) -> Option<&[u8]> {
        if !matches!(self.kind(index), ValueKind::String | ValueKind::Number) {
            return None;
        }
        let mut len = 0;
        // SAFETY: the value is a string, or a number that becomes one in its slot; it stays on the stack while `self` is
        // borrowed, and strings do not move.
        unsafe {
            let data = ffi::lua_tolstring(self.state, index, &mut len);
            Some(slice::from_raw_parts(data as *const u8, len))
        }
    }

    /// Returns the error for an argument of the wrong type.
    pub fn bad_argument(&self, index: c_int, expected: &str) -> Raise {
        let found = if self.to_buffer(index).is_some() { "bufferlist" } else { self.kind(index).name() };
        Raise::Message(format!("bad argument #{index} ({expected} expected, got {found})"))
    }

    pub fn integer(&self, index: c_int) -> Result<i64, Raise> {
        self.to_integer(index).ok_or_else(|| self.bad_argument(index, "integer"))
    }

    /// Returns an integer argument that must not be negative.
    pub fn natural(&self, index: c_int) -> Result<u64, Raise> {
        let value = self.integer(index)?;
        u64::try_from(value).map_err(|_| Raise::invalid(format!("argument #{index} is negative: {value}")))
    }

    pub fn bytes(&self, index: c_int) -> Result<&[u8], Raise> {
        self.to_bytes(index).ok_or_else(|| self.bad_argument(index, "string"))
    }

    /// Returns a copy of a string's bytes, or a buffer's bytes.
    pub fn payload(&self, index: c_int) -> Result<Bytes, Raise> {
        if let Some(id) = self.to_buffer(index) {
            return Ok(self.call(|call| call.buffers.freeze(id)));
        }
        let bytes = self.to_bytes(index).ok_or_else(|| self.bad_argument(index, "string or bufferlist"))?;
        self.charge(bytes.len() as u64 / 64)?;
        if !self.host.occupy(bytes.len()) {
            return Err(Raise::Fatal);
        }
        Ok(Bytes::copy_from_slice(bytes))
    }

    /// Returns a buffer's number, if the value is one.
    pub fn to_buffer(&self, index: c_int) -> Option<BufferId> {
        if self.kind(index) != ValueKind::Userdata {
            return None;
        }
        // SAFETY: a full userdata with the metatable of buffers holds a BufferId, which push_buffer stored there. There are
        // slots for the two tables that are compared.
        unsafe {
            let block = ffi::lua_touserdata(self.state, index);
            if block.is_null() || ffi::lua_getmetatable(self.state, index) == 0 {
                return None;
            }
            ffi::lua_rawgetp(self.state, ffi::LUA_REGISTRYINDEX, &raw const BUFFER_KEY as *const c_void);
            let is_buffer = ffi::lua_rawequal(self.state, -1, -2) != 0;
            ffi::lua_settop(self.state, -3);
            is_buffer.then(|| *(block as *const BufferId))
        }
    }

    pub fn buffer(&self, index: c_int) -> Result<BufferId, Raise> {
        self.to_buffer(index).ok_or_else(|| self.bad_argument(index, "bufferlist"))
    }

    pub fn push_nil(&self) {
        // SAFETY: there is a free slot.
        unsafe { ffi::lua_pushnil(self.state) };
    }

    pub fn push_boolean(&self, value: bool) {
        // SAFETY: there is a free slot.
        unsafe { ffi::lua_pushboolean(self.state, value.into()) };
    }

    pub fn push_integer(&self, value: i64) {
        // SAFETY: there is a free slot.
        unsafe { ffi::lua_pushinteger(self.state, value) };
    }

    pub fn push_float(&self, value: f64) {
        // SAFETY: there is a free slot.
        unsafe { ffi::lua_pushnumber(self.state, value) };
    }

    /// Pushes a string, whose memory was reserved if it may be long.
    pub fn push_bytes(&self, bytes: &[u8]) {
        // SAFETY: there is a free slot, and the allocation is not refused.
        unsafe { ffi::lua_pushlstring(self.state, bytes.as_ptr().cast(), bytes.len()) };
    }

    /// Reserves memory for a string, and pushes it.
    pub fn push_long(&self, bytes: &[u8]) -> Result<(), Raise> {
        self.reserve(bytes.len())?;
        self.push_bytes(bytes);
        Ok(())
    }

    /// Pushes a copy of a value.
    pub fn push_value(&self, index: c_int) {
        // SAFETY: there is a free slot.
        unsafe { ffi::lua_pushvalue(self.state, index) };
    }

    /// Pushes the value of the registry with a number.
    pub fn push_registered(&self, reference: c_int) {
        // SAFETY: there is a free slot.
        unsafe { ffi::lua_rawgeti(self.state, ffi::LUA_REGISTRYINDEX, reference.into()) };
    }

    /// Pushes a buffer.
    pub fn push_buffer(&self, id: BufferId) {
        // SAFETY: there are free slots; the block is large enough for the number and aligned for it.
        unsafe {
            let block = new_userdata(self.state, size_of::<BufferId>());
            (block as *mut BufferId).write(id);
            ffi::lua_rawgetp(self.state, ffi::LUA_REGISTRYINDEX, &raw const BUFFER_KEY as *const c_void);
            ffi::lua_setmetatable(self.state, -2);
        }
    }

    /// Makes a buffer of bytes that are counted already or shared with the store, and pushes it. What it takes beside them is
    /// counted here, since a script may make any number of buffers of the same bytes.
    pub fn push_new_buffer(&self, bytes: Bytes) -> Result<(), Raise> {
        if !self.host.occupy(BUFFER_BYTES) {
            return Err(Raise::Fatal);
        }
        let id = self.call(|call| call.buffers.add(bytes));
        self.push_buffer(id);
        Ok(())
    }

    pub fn push_table(&self, elements: usize, fields: usize) -> Result<(), Raise> {
        self.reserve(56 + elements.saturating_mul(16) + fields.saturating_mul(40))?;
        let narrow = |count: usize| c_int::try_from(count).unwrap_or(0);
        // SAFETY: there is a free slot, and the allocation is not refused.
        unsafe { ffi::lua_createtable(self.state, narrow(elements), narrow(fields)) };
        Ok(())
    }

    /// Sets an element of the table below the top to the value on top, which is removed.
    pub fn set_element(&self, number: usize) {
        // SAFETY: the table is below the top; a raw assignment calls nothing.
        unsafe { ffi::lua_rawseti(self.state, -2, number as i64) };
    }

    /// Sets a field of the table below key and value, which are removed.
    pub fn set_field(&self) {
        // SAFETY: the table is below the two; the key is neither nil nor NaN, as the callers see to.
        unsafe { ffi::lua_rawset(self.state, -3) };
    }

    /// Pushes an element of a table.
    pub fn push_element(&self, table: c_int, number: i64) {
        // SAFETY: the value is a table, as the callers have checked; a raw access calls nothing.
        unsafe { ffi::lua_rawgeti(self.state, table, number) };
    }

    /// Pushes a field of a table, without metamethods.
    pub fn push_field(&self, table: c_int, name: &str) {
        self.push_bytes(name.as_bytes());
        // SAFETY: the value is a table, as the callers have checked, by its index from the bottom.
        unsafe { ffi::lua_rawget(self.state, table) };
    }

    /// Replaces the key on top by its value in a table, without metamethods.
    pub fn look_up(&self, table: c_int) {
        // SAFETY: the value is a table, as the callers have checked, by its index from the bottom.
        unsafe { ffi::lua_rawget(self.state, table) };
    }

    /// Returns the border of a table, without metamethods.
    pub fn length(&self, index: c_int) -> usize {
        // SAFETY: reads a slot.
        unsafe { ffi::lua_rawlen(self.state, index) as usize }
    }

    /// Pushes a value's metatable; false, and nothing pushed, if it has none.
    pub fn push_metatable(&self, index: c_int) -> bool {
        // SAFETY: there is a free slot.
        unsafe { ffi::lua_getmetatable(self.state, index) != 0 }
    }

    /// Returns whether a table has the value on top as a key, and something true there, without metamethods.
    pub fn is_key_of(&self, table: c_int) -> bool {
        // SAFETY: there are free slots, and `table` is a table by its index from the bottom, as the callers have checked.
        unsafe {
            ffi::lua_pushvalue(self.state, -1);
            ffi::lua_rawget(self.state, table);
            let found = ffi::lua_toboolean(self.state, -1) != 0;
            ffi::lua_settop(self.state, -2);
            found
        }
    }

    /// Returns the address of a table or function, which does not change as long as it lives.
    pub fn address(&self, index: c_int) -> usize {
        // SAFETY: reads a slot.
        unsafe { ffi::lua_topointer(self.state, index) as usize }
    }

    /// Returns whether a value is a function that is not in Lua.
    pub fn is_native(&self, index: c_int) -> bool {
        // SAFETY: reads a slot.
        unsafe { ffi::lua_iscfunction(self.state, index) != 0 }
    }

    /// Returns whether the function on top comes from a text of this name, as Lua has it.
    pub fn is_from(&self, source: &str) -> bool {
        let mut about = MaybeUninit::<ffi::lua_Debug>::uninit();
        // SAFETY: the copy of the function is removed by lua_getinfo, which fills the fields about its source; that is a string of the
        // function on top, or a constant.
        unsafe {
            ffi::lua_pushvalue(self.state, -1);
            ffi::lua_getinfo(self.state, c">S".as_ptr(), about.as_mut_ptr());
            CStr::from_ptr((*about.as_ptr()).source).to_bytes() == source.as_bytes()
        }
    }

    /// Pushes the variable with a number, from 1, that the function on top uses and that is not its own, and returns its name; `None`,
    /// and nothing pushed, if there is none.
    pub fn push_upvalue(&self, number: c_int) -> Option<&[u8]> {
        // SAFETY: there is a free slot. The name is a string of the function, which stays on the stack.
        unsafe {
            let name = ffi::lua_getupvalue(self.state, -1, number);
            if name.is_null() { None } else { Some(CStr::from_ptr(name).to_bytes()) }
        }
    }

    /// Sets the variable with a number, from 1, that a function uses and that is not its own, to the value on top, which is removed.
    pub fn set_upvalue(&self, function: c_int, number: c_int) {
        // SAFETY: the value is a function by its index from the bottom, and another value is on top of the stack.
        let name = unsafe { ffi::lua_setupvalue(self.state, function, number) };
        assert!(!name.is_null(), "the function has no variable {number}");
    }

    /// Makes space for more values if there is memory for them, without charging for it.
    pub fn has_room(&self, count: usize) -> bool {
        // SAFETY: lua_checkstack tells of failure by its result.
        c_int::try_from(count).is_ok_and(|count| unsafe { ffi::lua_checkstack(self.state, count) != 0 })
    }

    /// Pushes the next key and value of a table, after the key on top, which is removed. The table is not changed
    /// meanwhile.
    pub fn next(&self, table: c_int) -> bool {
        // SAFETY: the key on top is nil or came from this table, which has not changed, so no error is raised.
        unsafe { ffi::lua_next(self.state, table) != 0 }
    }

    /// Removes values from the top. Nothing may be borrowed from them.
    pub fn pop(&self, count: c_int) {
        // SAFETY: callers pushed them.
        unsafe { ffi::lua_settop(self.state, -count - 1) };
    }

    /// Moves the value on top to a place further down.
    pub fn insert(&self, index: c_int) {
        // SAFETY: the place is on the stack.
        unsafe { ffi::lua_rotate(self.state, index, 1) };
    }

    /// Makes space for `count` more values.
    pub fn grow_by(&self, count: usize) -> Result<(), Raise> {
        self.reserve(count.saturating_mul(16))?;
        let wanted = c_int::try_from(count).unwrap_or(c_int::MAX);
        // SAFETY: lua_checkstack tells of failure by its result.
        match unsafe { ffi::lua_checkstack(self.state, wanted) } {
            0 => Err(Raise::Message(format!("stack overflow: too many values ({count})"))),
            _ => Ok(()),
        }
    }

    /// Compiles a text, and pushes the function; or returns the message why not.
    pub fn compile(&self, text: &[u8], name: &str) -> Result<(), String> {
        let name = format!("={name}\0");
        // SAFETY: the text is given by its length, the name ends with a zero; only text is accepted, no bytecode.
        // luaL_loadbufferx catches its own errors.
        unsafe {
            let status = ffi::luaL_loadbufferx(
                self.state,
                text.as_ptr().cast(),
                text.len(),
                name.as_ptr().cast(),
                c"t".as_ptr(),
            );
            if status == ffi::LUA_OK {
                return Ok(());
            }
        }
        let message = self.to_bytes(-1).map(|text| String::from_utf8_lossy(text).into_owned());
        self.pop(1);
        Err(message.unwrap_or_else(|| "it cannot be compiled".to_owned()))
    }

    /// Pushes the function that a class's text is, compiled at most once; or returns the message why not.
    pub fn push_class(&self, class: &Class) -> Result<(), String> {
        let mut compiled = self.host.compiled();
        if let Some(found) = compiled.get(&class.id()) {
            self.push_registered(found.chunk);
            return Ok(());
        }
        if compiled.len() >= COMPILED_MAX {
            for (_, Compiled { chunk, kept }) in compiled.drain() {
                self.unregister(chunk);
                if let Kept::Methods { reference, .. } = kept {
                    self.unregister(reference);
                }
            }
        }
        // Each run of the text gets an environment of its own, as the argument; functions keep the one they were made in.
        let text = [b"local _ENV=...;", &class.text[..]].concat();
        self.compile(&text, &class.name)?;
        self.push_value(-1);
        compiled.insert(class.id(), Compiled { chunk: self.register(), kept: Kept::Untried });
        Ok(())
    }

    /// Pushes the methods of a compiled class if they were kept, and takes what its text took from the bounds; otherwise false if they
    /// cannot be kept, and nil if that is not known.
    pub fn push_kept(&self, class: &Class) -> Result<(), Raise> {
        let kept = self.host.compiled().get(&class.id()).map_or(Kept::Untried, |found| found.kept);
        match kept {
            Kept::Untried => self.push_nil(),
            Kept::Nothing => self.push_boolean(false),
            Kept::Methods { reference, instructions, bytes } => {
                self.charge(instructions)?;
                if !self.host.occupy(bytes) {
                    return Err(Raise::Fatal);
                }
                self.push_registered(reference);
            }
        }
        Ok(())
    }

    /// Removes the value on top, and keeps it in the registry.
    pub fn register(&self) -> c_int {
        // SAFETY: there is a value on top.
        unsafe { ffi::luaL_ref(self.state, ffi::LUA_REGISTRYINDEX) }
    }

    fn unregister(&self, reference: c_int) {
        // SAFETY: the reference is one of luaL_ref's, and is not used again.
        unsafe { ffi::luaL_unref(self.state, ffi::LUA_REGISTRYINDEX, reference) };
    }

    /// Sets why the call cannot go on.
    pub fn fail(&self, fatal: Fatal) -> Raise {
        self.host.fail(fatal);
        Raise::Fatal
    }
}

/// Makes a userdata without user values.
///
/// # Safety
///
/// As lua_newuserdata.
pub(super) unsafe fn new_userdata(state: *mut ffi::lua_State, bytes: usize) -> *mut c_void {
    #[cfg(feature = "lua54")]
    // SAFETY: the caller's.
    unsafe {
        ffi::lua_newuserdatauv(state, bytes, 0)
    }
    #[cfg(not(feature = "lua54"))]
    // SAFETY: the caller's.
    unsafe {
        ffi::lua_newuserdata(state, bytes)
    }
}
