//! Classes whose text need not run again for each call.
//!
//! A class's text runs in an environment of its own, so that no call leaves anything to the next. Where its functions can change nothing
//! that outlives a call, the environment of the first call may serve all later ones. That is so if
//! - the text has done nothing but define: it has neither touched the call nor caught an error, which might tell how deep it is nested;
//! - its functions assign to no global variable, and to no variable around them that one of the functions that stay can reach
//!   ([`SharedNames`]);
//! - whatever the functions that stay can reach is a number, a string, a boolean, a library, another such function, or a table of
//!   these in which they only look up fields.
//!
//! A table in which only fields are looked up is never a value in the hands of a function, so nobody can change it, or see whether it is
//! the one of an earlier call.

use std::collections::HashSet;
use std::ffi::c_int;
use std::sync::Arc;

use super::stack::{Raise, Stack, ValueKind};
use crate::catalogue::Class;
use crate::rewrite::SharedNames;

/// The maximum memory of an environment that is kept, in bytes. A machine may keep that of each class that it has compiled.
const KEPT_BYTES_MAX: usize = 48 << 10;
/// The maximum length of the text of a class whose environment is kept, in bytes: it is parsed where its first call runs.
const TEXT_BYTES_MAX: usize = 64 << 10;
/// The maximum number of values that are looked at.
const VALUES_MAX: usize = 4096;
/// The maximum number of functions and tables through which a value is reached.
const DEPTH_MAX: usize = 64;
/// The name of the variable that holds the environment.
const ENVIRONMENT: &[u8] = b"_ENV";

/// The state of a class in a machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Compiled {
    /// The function that the text is: a reference into the registry, as below.
    pub chunk: c_int,
    pub kept: Kept,
}

/// The state of the environment in which a class's text has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// Nothing yet.
    Untried,
    /// Nothing, for good: calls could change it.
    Nothing,
    /// The methods, with what running the text took: each call pays for that.
    Methods { reference: c_int, instructions: u64, bytes: usize },
}

/// Returns what is to be compared once a class's text has run: how often the call was touched, the instructions that are left, and the
/// memory that is used.
pub(super) fn watch(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let host = stack.host();
    stack.push_integer(host.touches() as i64);
    stack.push_integer(host.instructions_left() as i64);
    stack.push_integer(host.occupied() as i64);
    Ok(3)
}

/// Returns whether the environment in which a class's text has run can serve later calls. The arguments are the name of the class,
/// how often the call had been touched before, the environment, the set of libraries, the set of functions that scripts are given, and
/// the memory that was used before.
pub(super) fn is_constant(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let is_untouched = stack.host().touches() as i64 == stack.integer(2)?;
    // What is large would take long to look at, which nobody pays for.
    let is_small = taken_since(stack, 6)? <= KEPT_BYTES_MAX;
    let class = class(stack)?;
    let is_constant = is_untouched && is_small && class.text.len() <= TEXT_BYTES_MAX && stays(stack, &class);
    if !is_constant && let Some(compiled) = stack.host().compiled().get_mut(&class.id()) {
        compiled.kept = Kept::Nothing;
    }
    stack.push_boolean(is_constant);
    Ok(1)
}

/// Keeps the methods of a class for later calls. The arguments are its name, the methods, and what was there before its text ran: the
/// instructions that were left, and the memory that was used.
pub(super) fn keep(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let class = class(stack)?;
    let instructions = stack.natural(3)?.saturating_sub(stack.host().instructions_left());
    let bytes = taken_since(stack, 4)?;
    if let Some(compiled) = stack.host().compiled().get_mut(&class.id()) {
        compiled.kept = match bytes > KEPT_BYTES_MAX {
            true => Kept::Nothing,
            false => {
                stack.push_value(2);
                Kept::Methods { reference: stack.register(), instructions, bytes }
            }
        };
    }
    Ok(0)
}

/// The places of what was registered, and of what of it only reads, among the methods that are kept.
const DECLARED: i64 = 1;
const READS: i64 = 2;

/// Pushes a method of a class whose methods were kept, and begins its call by the variables of `begin`, a function of the prelude's. Takes
/// what the class's text took from the bounds. Returns false, with nothing pushed, if none were kept or there is no such method.
pub(super) fn push_method(
    stack: &Stack<'_>,
    class: &Class,
    method: &str,
    begin: c_int,
) -> Result<bool, Raise> {
    let kept = stack.host().compiled().get(&class.id()).map(|found| found.kept);
    let Some(Kept::Methods { reference, instructions, bytes }) = kept else { return Ok(false) };
    stack.push_registered(reference);
    let methods = stack.top();
    stack.push_field(methods, method);
    stack.push_element(methods, READS);
    stack.push_value(methods + 1);
    stack.look_up(methods + 2);
    if stack.kind(methods + 1) != ValueKind::Function || stack.kind(-1) != ValueKind::Boolean {
        stack.pop(4);
        return Ok(false);
    }
    let only_reads = stack.truth(-1);
    stack.charge(instructions)?;
    if !stack.host().occupy(bytes) {
        return Err(Raise::Fatal);
    }
    stack.push_registered(begin);
    let begin = stack.top();
    stack.push_integer(0);
    stack.set_upvalue(begin, 1);
    stack.push_boolean(!only_reads);
    stack.set_upvalue(begin, 2);
    stack.push_nil();
    stack.set_upvalue(begin, 3);
    stack.push_element(methods, DECLARED);
    stack.set_upvalue(begin, 4);
    if only_reads {
        stack.call(|call| call.writable = false);
    }
    // The method alone stays.
    stack.pop(3);
    stack.insert(methods);
    stack.pop(1);
    Ok(true)
}

/// Returns the memory that was taken since an argument was the memory that was used.
fn taken_since(stack: &Stack<'_>, index: c_int) -> Result<usize, Raise> {
    Ok(stack.host().occupied().saturating_sub(stack.natural(index)? as usize))
}

/// Returns the class whose name is the first argument.
fn class(stack: &Stack<'_>) -> Result<Arc<Class>, Raise> {
    let name = String::from_utf8_lossy(stack.bytes(1)?).into_owned();
    stack.call(|call| call.catalogue.class(&name).cloned()).map_err(Raise::Message)
}

/// Returns whether whatever functions can reach in the environment, which is the third argument, stays as it is.
fn stays(stack: &Stack<'_>, class: &Class) -> bool {
    let Some(names) = class.shared_names() else { return false };
    if stack.kind(3) != ValueKind::Table {
        return false;
    }
    let source = format!("={}", class.name);
    let mut walk =
        Walk { stack, names, source, environment: stack.address(3), seen: HashSet::new(), values: 0 };
    stack.push_nil();
    while stack.next(3) {
        // The key is below its value. Only a string is looked at as bytes: a number would be changed by that.
        let name = match stack.kind(-2) {
            ValueKind::String => stack.to_bytes(-2).unwrap_or_default(),
            _ => return false,
        };
        let stays = match name {
            b"_G" => stack.address(-1) == walk.environment,
            _ => walk.stays(name, 0),
        };
        if !stays {
            return false;
        }
        stack.pop(1);
    }
    true
}

/// A walk through all that functions can reach. What is left on the stack where it ends early goes with the native function.
struct Walk<'w, 's> {
    stack: &'w Stack<'s>,
    names: &'w SharedNames,
    /// The source that Lua names for the functions of the class.
    source: String,
    environment: usize,
    /// The functions and tables that were looked at, by their addresses: nothing moves, and nothing is collected.
    seen: HashSet<usize>,
    values: usize,
}

/// The places of the arguments with the libraries and the functions that scripts are given.
const LIBRARIES: c_int = 4;
const GIVEN: c_int = 5;
/// The room on the stack for each step of the way, which leaves some at the end. Little at once: more would make Lua's stack grow
/// otherwise than by doubling, and so end at another length.
const STEP_VALUES: usize = 8;

impl Walk<'_, '_> {
    /// Returns whether the value on top of the stack, that of a variable, stays as it is.
    fn stays(&mut self, name: &[u8], depth: usize) -> bool {
        self.values += 1;
        if depth > DEPTH_MAX || self.values > VALUES_MAX {
            return false;
        }
        match self.stack.kind(-1) {
            ValueKind::Nil | ValueKind::Boolean | ValueKind::Number | ValueKind::String => true,
            ValueKind::Function => self.function_stays(depth),
            ValueKind::Table => {
                self.stack.is_key_of(LIBRARIES) || !self.names.is_used_whole(name) && self.table_stays(depth)
            }
            // Buffers are the call's.
            ValueKind::Userdata | ValueKind::None => false,
        }
    }

    fn function_stays(&mut self, depth: usize) -> bool {
        let stack = self.stack;
        // Native functions keep nothing.
        if stack.is_native(-1) || !self.seen.insert(stack.address(-1)) {
            return true;
        }
        if !stack.has_room(STEP_VALUES) {
            return false;
        }
        // Of the prelude, those that scripts are given keep nothing; iterators, for instance, do.
        if !stack.is_from(&self.source) {
            return stack.is_key_of(GIVEN);
        }
        let mut number = 1;
        while let Some(name) = stack.push_upvalue(number) {
            let stays = match name {
                ENVIRONMENT => stack.address(-1) == self.environment,
                _ => !self.names.is_assigned(name) && self.stays(name, depth + 1),
            };
            if !stays {
                return false;
            }
            stack.pop(1);
            number += 1;
        }
        true
    }

    fn table_stays(&mut self, depth: usize) -> bool {
        let stack = self.stack;
        // By which name it was reached does not matter here.
        if !self.seen.insert(stack.address(-1)) {
            return true;
        }
        if !stack.has_room(STEP_VALUES) || stack.push_metatable(-1) {
            return false;
        }
        let table = stack.top();
        stack.push_nil();
        while stack.next(table) {
            let is_plain =
                matches!(stack.kind(-2), ValueKind::Boolean | ValueKind::Number | ValueKind::String);
            let stays = is_plain
                && match stack.kind(-1) {
                    // It would be in the hands of whoever looks it up.
                    ValueKind::Table => stack.is_key_of(LIBRARIES),
                    _ => self.stays(b"", depth + 1),
                };
            if !stays {
                return false;
            }
            stack.pop(1);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use bytes::Bytes;

    use super::Kept;
    use crate::bounds::Bounds;
    use crate::call::{Call, View};
    use crate::catalogue::{Catalogue, Class};
    use crate::vm::Vm;

    /// Calls a method of a class, which may fail, and returns whether the next call finds its environment.
    fn is_kept(text: &str, method: &str) -> bool {
        // A busy machine may stand still for long.
        let bounds = Bounds { wall: Duration::from_secs(60), ..Bounds::default() };
        let class = Class::new("c".to_owned(), 1, text.to_owned().into(), Vec::new(), bounds);
        let catalogue = Arc::new(Catalogue::of(class));
        let class = catalogue.class("c").unwrap().clone();
        let mut vm = Vm::new();
        for _ in 0..3 {
            let call = Call::new(View::default(), catalogue.clone());
            vm.run(call, &class, method, Bytes::new(), &bounds);
        }
        let kept = vm.host.compiled()[&class.id()].kept;
        matches!(kept, Kept::Methods { .. })
    }

    #[test]
    fn the_classes_that_ship_run_their_text_once() {
        for (text, method) in [
            (include_str!("../../../../classes/counter.lua"), "get"),
            (include_str!("../../../../classes/index.lua"), "get"),
            (include_str!("../../../../classes/log.lua"), "trim"),
            (include_str!("../../../../classes/queue.lua"), "pop"),
            (include_str!("../../../../classes/refcount.lua"), "get"),
            (include_str!("../../../../classes/version.lua"), "check"),
            (include_str!("../../../../classes/zlog.lua"), "seal"),
        ] {
            assert!(is_kept(text, method), "{}", text.lines().next().unwrap_or_default());
        }
    }

    #[test]
    fn what_stays_as_it_is_is_kept() {
        for text in [
            "function m() end",
            "local a, b, c, d = 1, 'x', nil, true function m() return a, b, c, d end",
            "local text, library, f = string.format, string, print function m() return text, library, f end",
            "local names = {'a', b = {} and 1, f = function() end} function m() return names[1], names.b, names.f() end",
            "local function even(n) return n == 0 or odd(n - 1) end function odd(n) return n > 0 and even(n - 1) end
             function m() return even(4) end",
            "function m() local n, t = 0, {} local function f() n = n + 1 t[n] = n end f() return n end",
            "local function twice(f) return function(x) return f(f(x)) end end
             local g = twice(function(x) return x + 1 end) function m() return g(1) end",
            "for _, n in ipairs({'a', 'b'}) do _G[n] = function() return n end end function m() return a() .. b() end",
            "local n = 0 for i = 1, 10 do n = n + i end function m() return n end",
            "local t = {} t.x = 1 setmetatable(t, nil) function m() return t.x end",
            "local s = 'a' function m() return s:rep(2), #s end",
            "local t = {1} local u = t function m() return t[1] + u[1] end",
            "local n = 0 function m() do local n = 1 n = n + 1 end return n end",
            "local t = {} --[==[ ]] t.x = 1 ]==] function m() local s = [[ t.x = 1 --]] return t.x and 1 or #s end",
        ] {
            assert!(is_kept(&format!("{text} objclass.register(m)"), "m"), "{text}");
        }
    }

    #[test]
    fn what_a_call_could_change_is_not_kept() {
        for text in [
            "local n = 0 function m() n = n + 1 end",
            "n = 0 function m() n = n + 1 end",
            "function m() local function f() n = 1 end f() end",
            "function m() _G.n = 1 end",
            "function m() local g = _ENV g.n = 1 end",
            "local g = _G function m() g.n = 1 end",
            "g = _G function m() g.n = 1 end",
            "local g = ... function m() g.n = 1 end",
            "local t = {} function m() t[1] = 1 end",
            "t = {} function m() t.x = 1 end",
            "local t = {} function m() table.insert(t, 1) end",
            "local t = {} function m() rawset(t, 1, 1) end",
            "local t = {} function m() local alias = t alias[1] = 1 end",
            "local t = {} function m() for i, alias in ipairs({t}) do alias[1] = 1 end end",
            "local t = {x = {}} function m() t.x.y = 1 end",
            "local t = {} local u = {t} function m() u[1].x = 1 end",
            "local t = {} function t:add() self.n = 1 end function m() t:add() end",
            "local t = setmetatable({}, {__index = {}}) function m() getmetatable(t.x) end",
            "local meta = {} local t = setmetatable({}, meta) function m() meta.__index = print return t.x end",
            "local function count() local n = 0 return function() n = n + 1 return n end end
             local following = count() function m() return following() end",
            "local following = ('a b c'):gmatch('%w') function m() return following() end",
            "local following = pairs({1, 2, 3}) function m() return following() end",
            "local buffer = bufferlist.new() function m() buffer:append('x') end",
            "local t = {bufferlist.new()} function m() t[1]:append('x') end",
            "local ok = pcall(error) function m() return ok end",
            "objclass.log('loaded') function m() end",
            "epoch = nacre.epoch() function m() end",
            "local big = ('x'):rep(100000) function m() return #big end",
            "local t = {[{}] = 1} function m() return t.x end",
            "local function f() return f end local t = {f = f} function m() t, f = {}, nil end",
            "local f = function() f = 1 end function m() f() end",
            "do local n f = function() n = 1 end f = nil end function m() n = 1 end",
            "local n = 0 function m() do local n end n = n + 1 end",
            "local n = 0 function m() for n = 1, 2 do end n = n + 1 end",
            "local n = 0 function m() local s = 'a\\z  \\'' n = n + 1 --[[' ]] end",
            "local t = {} function m() (t).x = 1 end",
            "local t = {} function m() local u = {t} u[1].x = 1 end",
            "local t = {} local u = t function m() u.x = 1 return t.x end",
            "local t = {} local function set(u) u.x = 1 end function m() set(t) end",
            "local t = {} function m() return setmetatable({}, t) end",
            "local t = {} function m() error(t) end",
            "local t = {} function m() return t == t end",
            "local function set(g) return function() g.n = 1 end end local f = set(...) function m() f() end",
            "local function get(g) return function() return g.n end end local f = get(_G) function m() return f() end",
            "print('loaded') function m() end",
            "local t = {} for i = 1, 5000 do t[i] = i end function m() return t[1] end",
        ] {
            assert!(!is_kept(&format!("{text} objclass.register(m)"), "m"), "{text}");
        }
    }
}
