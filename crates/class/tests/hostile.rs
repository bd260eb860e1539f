//! Scripts that mean harm: each is stopped by its bounds, changes nothing, and leaves the next call as it was.

mod kit;

use std::time::{Duration, Instant};

use kit::{Bench, eval};
use nacre_class::{Bound, Bounds, CallError};
use nacre_object::{Answer, ReadOp, Stat};

fn small() -> Bounds {
    Bounds {
        instructions: 500_000,
        memory_bytes: 8 << 20,
        wall: Duration::from_secs(60),
        ..Bounds::default()
    }
}

/// Runs the body of a method that changes the object first, and returns the bound that stopped it.
fn stopped(body: &str) -> Bound {
    stopped_with(body, small())
}

fn stopped_with(body: &str, bounds: Bounds) -> Bound {
    let text = format!(
        "function m(input, output) objclass.create(); {body}\nend objclass.register(m)
         function good(input, output) output:append(('ok'):rep(1) .. table.concat({{1, 2}})) end objclass.register(good)"
    );
    let bench = Bench::bounded(&text, bounds);
    let bound = match bench.call("m", "") {
        Err(CallError::Exceeded { bound, .. }) => bound,
        other => panic!("{body}: {other:?}"),
    };
    assert_eq!(bench.ask(ReadOp::Stat), Answer::Stat(Stat::default()), "{body} changed the object");
    // One that stands still for longer than its time is stopped as well, which says nothing of the call before.
    let stands_still =
        |called: &Result<_, _>| matches!(called, Err(CallError::Exceeded { bound: Bound::Wall, .. }));
    let good = (0..100).map(|_| bench.call("good", "")).find(|called| !stands_still(called));
    assert_eq!(good.expect("no call ends in time").unwrap().output, "ok12", "after {body}");
    bound
}

#[test]
fn endless_loops_end_wherever_they_are() {
    for body in [
        "while true do end",
        "repeat until false",
        "::again:: goto again",
        "local function f() return f() end f()",
        "while true do pcall(function() while true do end end) end",
        "pcall(pcall, function() while true do end end) while true do end",
        "local t = setmetatable({}, {__index = function(t, k) while true do end end}) return t.x",
        "local t = setmetatable({}, {__add = function() while true do end end}) return t + 1",
        "local t = setmetatable({}, {__eq = function() while true do end end}) return t == setmetatable({}, getmetatable(t))",
        "local t = setmetatable({}, {__tostring = function() while true do end end}) return tostring(t)",
        "string.format('%s', setmetatable({}, {__tostring = function() while true do end end}))",
        "for k in pairs(setmetatable({}, {__pairs = function() return function() return 1 end end})) do end",
        "for i in ipairs(setmetatable({}, {__index = function() return 1 end})) do end",
        "table.sort({3, 2, 1}, function() while true do end end)",
        "('x'):gsub('x', function() while true do end end)",
        "for _ in function() return 1 end do end",
        "table.concat(setmetatable({}, {__len = function() return math.maxinteger end, __index = function() return '' end}))",
        "table.insert(setmetatable({}, {__len = function() return math.maxinteger - 1 end}), 1, 'x')",
        "table.remove(setmetatable({}, {__len = function() return math.maxinteger - 1 end}), 1)",
        "table.move({}, 1, math.maxinteger - 1, 2)",
        "table.sort(setmetatable({}, {__len = function() return math.maxinteger end, __index = function() return nil end}))",
        "table.unpack(setmetatable({}, {__index = function() while true do end end}), 1, 10)",
        "for i = 1, math.huge do end",
        "for i = 1, 10 do local s = string.rep('', 1 << 60) end while true do (''):rep(1 << 62) end",
        "while true do nacre.unpack('\\x01') end",
    ] {
        let bound = stopped(body);
        // Some need room for what they loop over, and may run out of that first.
        assert!(matches!(bound, Bound::Instructions | Bound::Memory), "{body}: {bound:?}");
    }
}

#[test]
fn an_error_object_is_not_asked_for_its_text() {
    let error = eval("error(setmetatable({}, {__tostring = function() while true do end end}))").unwrap_err();
    assert_eq!(error.to_string(), "c.m on object \"o\" failed: an error that is a table (EIO)");
}

#[test]
fn patterns_and_searches_pay_for_their_work() {
    for body in [
        "('a'):rep(50):find(('a?'):rep(40) .. ('a*'):rep(20) .. 'b')",
        "('a'):rep(100000):find('.-.-.-.-b')",
        "('a'):rep(100000):match(('a*'):rep(10) .. 'b')",
        "local s = ('a'):rep(1000000) while true do s:find(('a'):rep(1000) .. 'b', 1, true) end",
        "('a'):rep(100000):gsub(('a-'):rep(10) .. 'b', '')",
        "for _ in ('a'):rep(100000):gmatch(('a-'):rep(10) .. 'b') do end",
        "local s = ('('):rep(100000) s:find('%b()') s:gsub('%b()', '')",
        "local s = ('x'):rep(1000000) while true do s:upper() s:byte(1, -1) end",
        "local t = {} for i = 1, 10000 do t[i] = 10000 - i end while true do table.sort(t) table.sort(t, function(a, b) return a > b end) end",
        "local t = {} for i = 1, 10000 do t[i] = i end while true do next(t) end",
    ] {
        let bound = stopped(body);
        assert!(matches!(bound, Bound::Instructions | Bound::Memory), "{body}: {bound:?}");
    }
}

#[test]
fn memory_is_bounded_whatever_asks_for_it() {
    for body in [
        "('x'):rep(1 << 40)",
        "local s = 'x' while true do s = s .. s end",
        "local s = ('x'):rep(1 << 20) local t = {} while true do t[#t + 1] = s .. #t end",
        "local t = {} while true do t[#t + 1] = {} end",
        "local t = {} while true do t = {t} end",
        "local t = {} for i = 1, 1 << 40 do t[i] = i end",
        "string.pack('c' .. (1 << 30), '')",
        "local t = {} for i = 1, 4000 do t[i] = ('x'):rep(10000) end table.concat(t)",
        "('x'):rep(1 << 20):gsub('x', ('y'):rep(1 << 20))",
        "('x'):rep(1 << 20):gsub('x', function() return ('y'):rep(1 << 20) end)",
        "local b = bufferlist.new() local s = ('x'):rep(1 << 20) while true do b:append(s) end",
        "local b = bufferlist.new() b:append(('x'):rep(1 << 20)) while true do b = b .. b end",
        "local function g() return 1 + g() end while true do pcall(g) end",
        "pcall(function() local s = 'x' while true do s = s .. s end end) while true do end",
        "local s = '' while true do s = s .. ('x'):rep(10000) end",
        "for i = 1, 1 << 40 do objclass.log(('x'):rep(1 << 20)) end",
        "for i = 1, 1 << 40 do nacre.pack(('x'):rep(1 << 20)) end",
        "local s = ('x'):rep(1 << 20) for i = 1, 64 do pcall(nacre.fail, 5, s) end",
    ] {
        let bound = stopped_with(body, Bounds { instructions: 100_000_000, ..small() });
        assert_eq!(bound, Bound::Memory, "{body}");
    }
}

#[test]
fn buffers_count_for_what_they_take_beside_their_bytes() {
    let bounds = Bounds { memory_bytes: 1 << 20, ..small() };
    assert_eq!(stopped_with("while true do objclass.map_read_header() end", bounds), Bound::Memory);
}

#[test]
fn output_is_bounded() {
    let bounds = Bounds { output_bytes: 1000, ..small() };
    assert_eq!(stopped_with("while true do output:append('0123456789') end", bounds), Bound::Output);
    assert_eq!(
        stopped_with("pcall(output.append, output, ('x'):rep(1001)) while true do end", bounds),
        Bound::Output
    );
}

#[test]
fn time_is_bounded_where_instructions_are_slow() {
    let bounds = Bounds {
        instructions: 1_000_000_000,
        memory_bytes: 64 << 20,
        wall: Duration::from_millis(50),
        ..Bounds::default()
    };
    for body in [
        "while true do end",
        // One instruction compares sixteen million bytes.
        "local a = ('x'):rep(8 << 20) local b = a .. 'a' a = a .. 'b' while true do local c = a < b end",
        "while true do pcall(error) end",
    ] {
        let began = Instant::now();
        assert_eq!(stopped_with(body, bounds), Bound::Wall, "{body}");
        println!("stopped after {:?}: {body}", began.elapsed());
    }
}

#[test]
fn recursion_ends_with_an_error_or_a_bound() {
    for body in [
        "local function f() return 1 + f() end f()",
        "local t = setmetatable({}, {}) getmetatable(t).__index = t return t.x",
        "local t = {} setmetatable(t, {__index = function(t, k) return t[k .. 'x'] end}) return t.x",
        "local function f() return pcall(f) end f()",
        "local t = setmetatable({}, {__tostring = function(t) return tostring(t) end}) tostring(t)",
        "('('):rep(300):find(('('):rep(300))",
        "nacre.unpack(('\\x91'):rep(1000))",
        "local t = {} t.t = t nacre.pack(t)",
        "local function f(...) return f(1, ...) end f()",
        "local function less() table.sort({2, 1}, less) end table.sort({2, 1}, less)",
        "local function f() return (('x'):gsub('x', f)) end f()",
        "nacre.call('c.m')",
        "local t = {} setmetatable(t, t) t.__call = t t()",
    ] {
        let begun = Instant::now();
        let bench = Bench::bounded(
            &format!(
                "function m(input, output) {body} end objclass.register(m) function ok() end objclass.register(ok)"
            ),
            small(),
        );
        match bench.call("m", "") {
            Err(CallError::Failed { .. } | CallError::Exceeded { .. }) => {}
            // Lua detects a few of these itself, and pcall catches that.
            Ok(_) if body.contains("pcall") => {}
            other => panic!("{body}: {other:?}"),
        }
        assert_eq!(bench.result("ok"), 0, "after {body}");
        // Without a limit of the stack's own, the last one takes minutes.
        assert!(begun.elapsed() < Duration::from_secs(60), "{body}: {:?}", begun.elapsed());
    }
}

#[test]
fn a_call_leaves_nothing_behind_for_the_next() {
    let text = "
        local calls = 0
        shared = shared or {}
        function taint(input, output)
          calls = calls + 1
          shared[#shared + 1] = calls
          leaked = 'here'
          string_rep = string.rep
          for _, f in ipairs({
            function() string.rep = function() return 'tampered' end end,
            function() getmetatable('').__index = {} end,
            function() getmetatable('').__add = print end,
            function() setmetatable(string, {}) end,
            function() rawset(string, 'rep', print) end,
            function() rawset(objclass, 'read', print) end,
            function() table.insert(table, print) end,
            function() objclass.ENOENT = 5 end,
            function() setmetatable(_G, nil) end,
            function() getmetatable(_G).__index = {} end,
            function() getmetatable(bufferlist.new()).__len = print end,
            function() for k in pairs(string) do string[k] = nil end end,
            function() nacre.call = nil end,
            function() local _, t = pairs(string) t.rep = function() return 'tampered' end end,
            function() local _, t = pairs(table) rawset(t, 1, print) end,
            function() local _, t = pairs(objclass) t.ENOENT = 5 end,
          }) do
            local ok = pcall(f)
            if ok then output:append('not refused; ') end
          end
          pcall = nil pairs = nil tostring = print _G.type = nil
        end
        objclass.register(taint)
        function look(input, output)
          assert(calls == 0 and #shared == 0 and leaked == nil and string_rep == nil)
          assert(string.rep('a', 2) == 'aa' and ('a'):rep(2) == 'aa' and objclass.ENOENT == 2)
          assert(type(pcall) == 'function' and tostring(1) == '1' and #bufferlist.new() == 0)
          assert(string.find and nacre.call and table[1] == nil)
          output:append('clean')
        end
        objclass.register(look)";
    let bench = Bench::new(text);
    assert_eq!(bench.output("taint", ""), "");
    assert_eq!(bench.output("look", ""), "clean");
    assert_eq!(bench.output("taint", ""), "");
    assert_eq!(bench.output("look", ""), "clean");
}

#[test]
fn finalizers_weak_tables_and_addresses_are_not_to_be_had() {
    for body in [
        "setmetatable({}, {__gc = function() end})",
        "setmetatable({}, {__mode = 'k'})",
        "setmetatable({}, {__close = function() end})",
        "string.format('%p', {})",
        "string.format('%-20p', print)",
    ] {
        let error = eval(body).unwrap_err();
        assert_eq!(error.errno(), nacre_class::errno::EIO, "{body}: {error}");
    }
    // Set afterwards, they have no effect that a script could see.
    let body = "local m = {} local t, w = setmetatable({}, m), setmetatable({}, m)
        m.__mode = 'v' m.__gc = function() error('ran') end
        t = nil
        w[1] = {}
        for i = 1, 20000 do local x = {i} end
        output:append(tostring(rawlen(w)))";
    assert_eq!(eval(body).unwrap(), "1");
    // What differs from run to run is in no text.
    let texts = "output:append(tostring({}) .. tostring(print) .. tostring(input) .. string.format('%s', {}))
        local ok, text = pcall(function() local x = {} .. 'x' end) output:append(text)
        local ok, text = pcall(function() return {} < {} end) output:append(text)";
    assert_eq!(eval(texts).unwrap(), eval(texts).unwrap());
    assert!(!eval(texts).unwrap().contains("0x"));
}

#[test]
fn an_attempt_to_go_on_after_closing_variables_is_stopped() {
    // Only Lua 5.4 has these; `put` refuses them, and a generic loop has one without its syntax.
    let body = "local m = {} local t = setmetatable({}, m) m.__close = function() while true do end end
        for i = 1, 1000 do
          pcall(function() for _ in function() while true do end end, nil, nil, t do end end)
        end
        while true do end";
    assert_eq!(stopped(body), Bound::Instructions);
}

#[test]
fn a_process_stays_small_under_greedy_scripts() {
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    };
    let greedy = "function m() local t = {} while true do t[#t + 1] = {('x'):rep(100) .. #t} end end objclass.register(m)
        function n() local t = {} for i = 1, 20000 do t[i] = {i} end end objclass.register(n)";
    let bench = Bench::bounded(greedy, Bounds { instructions: 1 << 30, memory_bytes: 16 << 20, ..small() });
    assert_eq!(bench.result("n"), 0);
    let before = resident();
    for _ in 0..20 {
        assert!(matches!(bench.call("m", ""), Err(CallError::Exceeded { bound: Bound::Memory, .. })));
        assert_eq!(bench.result("n"), 0);
    }
    for _ in 0..40 {
        assert_eq!(bench.result("n"), 0);
    }
    let grown = resident().saturating_sub(before);
    // Other tests of this file run in the same process; together they stay below a few machines' bounds.
    assert!(grown < 256 << 20, "grew by {grown} bytes");
}

#[test]
fn texts_that_library_functions_make_are_bounded_before_they_are_made() {
    for body in [
        "string.rep('x', 1 << 20):gsub('.*', string.rep('%0', 500000))",
        "string.rep('x', 1 << 20):gsub('(.*)', string.rep('%1', 1 << 19))",
        "string.rep('x', 1000):gsub('x', string.rep('y', 1 << 20))",
        "local t, s = {}, string.rep('x', 1 << 20) for i = 1, 1000 do t[i] = s end table.sort(t)",
        "local t, s = {}, string.rep('x', 1 << 20) for i = 1, 1000 do t[i] = s end table.concat(t)",
        "local t, s = {}, string.rep('x', 1 << 20) for i = 1, 1000 do t[i] = '' end table.concat(t, s)",
        "local t, s = {}, string.rep('x', 1 << 20) for i = 1, 100 do t[i] = s end objclass.log(table.unpack(t))",
    ] {
        assert_eq!(stopped(body), Bound::Memory, "{body}");
    }
}
