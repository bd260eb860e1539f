//! Nothing stays from one call to the next, whether the text of a class runs again or the methods of an earlier call are called.

mod kit;

use std::sync::Arc;

use futures::executor::block_on;
use kit::{Bench, unhurried};
use nacre_class::errno::*;
use nacre_class::{Bound, Bounds, CallError, Catalogue, Class, Request, Runtime};
use nacre_object::ObjectId;
use nacre_object::testkit::MemoryStore;

/// Calls a method on an object, and returns all that its caller learns.
fn outcome(bench: &Bench, object: &str, method: &str) -> String {
    let object = ObjectId::try_from(object).unwrap();
    let request = Request::new(&object, "c", method).input("x");
    match block_on(bench.runtime.call(&*bench.store, &bench.catalogue, &request)) {
        Ok(called) => {
            format!("{} {} {:?}", called.result, String::from_utf8_lossy(&called.output), called.log)
        }
        Err(error) => error.to_string(),
    }
}

/// Checks that the calls of one machine have the outcomes that they have in machines of their own.
fn check(text: &str) {
    let text = format!("{text} objclass.register(m) if n then objclass.register(n) end");
    let used = Bench::new(&text);
    for _ in 0..3 {
        for object in ["a", "b"] {
            for method in ["m", "n", "h"] {
                let expected = outcome(&Bench::new(&text), object, method);
                assert_eq!(outcome(&used, object, method), expected, "{method} on {object}: {text}");
            }
        }
    }
}

#[test]
fn variables_start_as_the_text_made_them() {
    for text in [
        "local k = 0 function m(i, o) k = k + 1 o:append('' .. k) end",
        "k = 0 function m(i, o) k = k + 1 o:append('' .. k) end function n(i, o) o:append('' .. k) end",
        "function m(i, o) k = (k or 0) + 1 o:append('' .. k) end function n(i, o) o:append(tostring(k)) end",
        "function m(i, o) _G.k = (_G.k or 0) + 1 o:append('' .. k) end",
        "function m(i, o) local _ENV = _ENV k = (k or 0) + 1 o:append('' .. k) end",
        "local function set(_ENV) k = (k or 0) + 1 end function m(i, o) set(_G) o:append('' .. k) end",
        "function m(i, o) rawset(_G, 'k', (k or 0) + 1) o:append('' .. k) end",
        "local g = _G function m(i, o) g.k = (g.k or 0) + 1 o:append('' .. k) end",
        "local g = ... function m(i, o) g.k = (g.k or 0) + 1 o:append('' .. k) end",
        "local all = {...} function m(i, o) all[1].k = (k or 0) + 1 o:append('' .. k) end",
        "local first function m(i, o) o:append(tostring(first)) first = 'called' end",
        "local kept function m(i, o) o:append(tostring(kept ~= nil)) kept = i end",
        "function m(i, o) o:append('old') function m() return 5 end end",
        "function h() return 1 end function m(i, o) local was = h h = function() return was() + 1 end o:append('' .. h()) end",
        "local f f = function(o) o:append('first') f = function(o) o:append('later') end end function m(i, o) f(o) end",
        "local k = 0 function m(i, o) do local k = 5 end k = k + 1 o:append('' .. k) end",
        "local k = 0 function m(i, o) goto add ::add:: k = k + 1 o:append('' .. k) end",
        "local k = 0 function m(i, o) repeat local j = k k = j + 1 until j >= 0 o:append('' .. k) end",
        "local k = 0 --[==[ ]] k = 5 ]==] function m(i, o) local s = [[--]] k = k + 1 o:append(k .. s) end",
        "do local k f = function() k = 1 end f = nil end function m(i, o) k = (k or 0) + 1 o:append('' .. k) end",
    ] {
        check(text);
    }
}

#[test]
fn tables_start_as_the_text_made_them() {
    for text in [
        "local seen = {} function m(i, o) seen[#seen + 1] = 'x' o:append('' .. #seen) end",
        "seen = {} function m(i, o) table.insert(seen, 'x') o:append('' .. #seen) end",
        "local memo = {} function m(i, o) memo.k = (memo.k or 0) + 1 o:append('' .. memo.k) end",
        "local memo = {} function m(i, o) rawset(memo, 'k', (memo.k or 0) + 1) o:append('' .. memo.k) end",
        "local memo = {{}} function m(i, o) local t = memo[1] t.k = (t.k or 0) + 1 o:append('' .. t.k) end",
        "local memo = {t = {}} function m(i, o) memo.t.k = (memo.t.k or 0) + 1 o:append('' .. memo.t.k) end",
        "local memo = {k = 0} function memo.add() memo.k = memo.k + 1 return memo.k end function m(i, o) o:append('' .. memo.add()) end",
        "local memo = {k = 0} function memo:add() self.k = self.k + 1 return self.k end function m(i, o) o:append('' .. memo:add()) end",
        "local memo = {} local get = function() return memo end function m(i, o) local t = get() t.k = (t.k or 0) + 1 o:append('' .. t.k) end",
        "local memo = {} local all = {memo} function m(i, o) for _, t in ipairs(all) do t.k = (t.k or 0) + 1 end o:append('' .. memo.k) end",
        "local names = {'c', 'a', 'b'} function m(i, o) o:append(names[1]) table.sort(names) end",
        "local names = {'c', 'a', 'b'} function m(i, o) o:append(table.remove(names)) end",
        "local order = {3, 2, 1} function m(i, o) o:append(table.concat(order)) table.move(order, 1, 2, 2) end",
        "local t = {} function m(i, o) o:append(tostring(t.x)) setmetatable(t, {__index = {x = 1}}) end",
        "local t = setmetatable({}, {__index = function(t, k) rawset(t, k, 1) return k end}) function m(i, o) o:append(tostring(t.x)) end",
        "local meta = {} local t = setmetatable({}, meta) function m(i, o) o:append(tostring(t.x)) meta.__index = {x = 1} end",
        "local t = setmetatable({}, {__newindex = function(t, k, v) rawset(t, k, v) end}) function m(i, o) o:append(tostring(t.x)) t.x = 1 end",
        "local k = 0 local t = setmetatable({}, {__call = function() k = k + 1 return k end}) function m(i, o) o:append('' .. t()) end",
        "local object = {} function m(i, o) local ok, e = pcall(error, object) e.k = (e.k or 0) + 1 o:append('' .. e.k) end",
        "local memo = {k = 0} local alias = memo function m(i, o) alias.k = alias.k + 1 o:append('' .. memo.k) end",
        "local memo = {k = 0} function m(i, o) (memo).k = memo.k + 1 o:append('' .. memo.k) end",
        "local memo = {k = 0} function m(i, o) local t = {memo} t[1].k = t[1].k + 1 o:append('' .. memo.k) end",
        "local memo = {k = 0} local function add(t) t.k = t.k + 1 return t.k end function m(i, o) o:append('' .. add(memo)) end",
        "local all = {{k = 0}} function m(i, o) for _, t in pairs(all) do t.k = t.k + 1 o:append('' .. t.k) end end",
        "local memo = {k = 0} function n() error(memo) end
         function m(i, o) local _, t = pcall(nacre.call, 'c.n') t.k = t.k + 1 o:append('' .. t.k) end",
        "local declaration = {} function m(i, o) declaration.writes = false end
         function h() objclass.create() end objclass.register(h, declaration)",
    ] {
        check(text);
    }
}

#[test]
fn functions_remember_nothing() {
    for text in [
        "local function counter() local k = 0 return function() k = k + 1 return k end end
         local following = counter() function m(i, o) o:append('' .. following()) end",
        "local fs = {} for k = 1, 3 do fs[k] = function() k = k + 1 return k end end function m(i, o) o:append('' .. fs[1]()) end",
        "local get, set do local k = 0 get = function() return k end set = function(v) k = v end end
         function m(i, o) o:append('' .. get()) set(5) end",
        "local following = ('a b c'):gmatch('%w') function m(i, o) o:append(tostring(following())) end",
        "local following = pairs({'a', 'b'}) function m(i, o) o:append(tostring(following())) end",
        "local buffer = bufferlist.new() function m(i, o) buffer:append('x') o:append(buffer:str()) end",
        "buffers = {bufferlist.new()} function m(i, o) buffers[1]:append('x') o:append(buffers[1]:str()) end",
        "function m(i, o) o:append(tostring(coroutine) .. tostring(debug) .. tostring(load)) end",
        "local function sum(...) local s = 0 for _, v in ipairs({...}) do s = s + v end return s end
         function m(i, o) o:append('' .. sum(1, 2, 3)) end",
        "function m(i, o) local k = 0 ::again:: k = k + 1 if k < 3 then goto again end o:append('' .. k) end",
        "function m(i, o) local t = {} for k = 1, 3 do t[k] = function() k = k + 1 return k end end
           o:append(t[1]() .. t[1]() .. t[2]()) end",
        "function m(i, o) local k, t = 0, {} local function add() k = k + 1 t[k] = k end add() add() o:append('' .. #t) end",
    ] {
        check(text);
    }
}

#[test]
fn libraries_and_registrations_are_those_of_the_call() {
    for text in [
        "function m(i, o) o:append(tostring(pcall(function() string.rep = print end)) .. ('a'):rep(2)) end",
        "function m(i, o) o:append(tostring(pcall(rawset, string, 'rep', print)) .. string.rep('a', 2)) end",
        "local s = string function m(i, o) o:append(tostring(pcall(function() s.k = 1 end)) .. tostring(s.k)) end",
        "function m(i, o) o:append(tostring(getmetatable('')) .. tostring(pcall(function() getmetatable('').__index.k = 1 end))) end",
        "function m(i, o) local _, t = pairs(string) o:append(tostring(pcall(function() t.k = 1 end)) .. tostring(('').k)) end",
        "function h() end function m(i, o) objclass.register(h) o:append(tostring(pcall(objclass.register, h))) end",
        "function h() end function m(i, o) o:append(tostring(pcall(objclass['reg' .. 'ister'], h))) end",
        "function h() end function m(i, o) pcall(function() objclass.register(h) error('x') end)
           o:append(tostring(pcall(objclass.register, h))) end",
        "function m(i, o) o:append(tostring(pcall(objclass.register, m))) objclass.register(function() end) end",
        "function h() end function n(i, o) objclass.register(h) o:append('n') end
         function m(i, o) o:append(nacre.call('c.n') .. tostring(pcall(objclass.register, h))) end",
        "function h() end function n() objclass.register(h) error('n') end
         function m(i, o) pcall(nacre.call, 'c.n') o:append(tostring(pcall(objclass.register, h))) end",
        "objclass.log('loaded') function m(i, o) o:append('called') end",
        "local ok, text = pcall(error, 'caught') function m(i, o) o:append(text) end",
        "local before = nacre.version function m(i, o) o:append('' .. before()) end",
        "function m() return h end h = 5",
    ] {
        check(text);
    }
}

#[test]
fn what_a_method_may_do_is_the_same_in_every_call() {
    let bench = Bench::new(
        "local late = {} function reads() objclass.create() end objclass.register(reads, { writes = false })
         function becomes() objclass.create() end objclass.register(becomes, late) late.writes = false
         function hidden() end value = 1
         function nested() nacre.call('c.reads') end objclass.register(nested)
         function both() assert(not pcall(nacre.call, 'c.reads')) objclass.create() end objclass.register(both)",
    );
    for _ in 0..3 {
        for (method, result) in [
            ("reads", -EROFS),
            ("becomes", -EROFS),
            ("nested", -EROFS),
            ("hidden", -EIO),
            ("value", -EOPNOTSUPP),
            ("nothing", -EOPNOTSUPP),
            ("_G", -EOPNOTSUPP),
            ("print", -EOPNOTSUPP),
            ("both", 0),
        ] {
            assert_eq!(bench.result(method), result, "{method}");
        }
    }
}

#[test]
fn each_call_pays_for_the_text_of_its_class() {
    let bounded = |bench: &Bench, bounds: Bounds| {
        let request = Request { bounds: Some(bounds), ..Request::new(&bench.object, "c", "m") };
        match block_on(bench.runtime.call(&*bench.store, &bench.catalogue, &request)) {
            Err(CallError::Exceeded { bound, .. }) => bound,
            other => panic!("{other:?}"),
        }
    };
    let long = "for i = 1, 20000 do end function m() end objclass.register(m)";
    let large = "local s = ('x'):rep(40000) function m() return #s - 40000 end objclass.register(m)";
    let few = Bounds { instructions: 10_000, ..unhurried() };
    let small = Bounds { memory_bytes: 30_000, ..unhurried() };
    for (text, bounds, bound) in [(long, few, Bound::Instructions), (large, small, Bound::Memory)] {
        let bench = Bench::new(text);
        let before = bench.call("m", "").unwrap().instructions;
        let after = bench.call("m", "").unwrap().instructions;
        assert!(before.abs_diff(after) <= 2000, "{before} and {after} instructions");
        assert_eq!(bounded(&bench, bounds), bound, "after other calls");
        assert_eq!(bounded(&Bench::new(text), bounds), bound, "at first");
    }
}

#[test]
fn a_machine_forgets_classes_and_finds_them_again() {
    let (store, runtime) = (MemoryStore::new(), Runtime::new(1));
    let object = ObjectId::try_from("o").unwrap();
    let catalogues: Vec<Arc<Catalogue>> = (0..300)
        .map(|number| {
            let text = format!(
                "local number = {number} function m(i, o) o:append('' .. number) end objclass.register(m)"
            );
            Arc::new(Catalogue::of(Class::new("c".to_owned(), 1, text.into(), Vec::new(), unhurried())))
        })
        .collect();
    for _ in 0..2 {
        for (number, catalogue) in catalogues.iter().enumerate() {
            for _ in 0..2 {
                let called = block_on(runtime.call(&store, catalogue, &Request::new(&object, "c", "m")));
                assert_eq!(called.unwrap().output, number.to_string());
            }
        }
    }
}
