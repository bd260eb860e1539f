//! Texts with counters, as OSDs run them: they do what the originals do, and end.

mod kit;

use std::sync::Arc;

use futures::executor::block_on;
use kit::{Bench, unhurried};
use nacre_class::rewrite::{COUNT, JOIN, rewrite};
use nacre_class::{Bound, Bounds, CallError, Classes, osd, transcript};
use nacre_object::ObjectId;
use nacre_object::testkit::MemoryStore;

/// Returns a text with counters that end it when so many units are used up. It has as many lines as before.
fn bounded(text: &str, units: u64) -> String {
    let counted = rewrite(text.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
    format!(
        "local left = {units} local function {COUNT}(n) left = left - n if left < 0 then error('no units are left', 0) end \
         end local function {JOIN}(a, b) return a .. b end {}",
        String::from_utf8(counted).unwrap()
    )
}

const SHIPPED: [(&str, &str); 7] = [
    ("counter", include_str!("../../../classes/counter.lua")),
    ("queue", include_str!("../../../classes/queue.lua")),
    ("refcount", include_str!("../../../classes/refcount.lua")),
    ("version", include_str!("../../../classes/version.lua")),
    ("log", include_str!("../../../classes/log.lua")),
    ("index", include_str!("../../../classes/index.lua")),
    ("zlog", include_str!("../../../classes/zlog.lua")),
];

#[test]
fn transcripts_come_true_with_counters() {
    let classes = Classes::new(Arc::new(MemoryStore::new()));
    for (name, text) in SHIPPED {
        block_on(classes.put(name, bounded(text, 100_000).into(), unhurried())).unwrap();
    }
    for (name, text) in SHIPPED {
        let steps = transcript::parse(text).unwrap();
        let object = ObjectId::try_from(name).unwrap();
        let differences = block_on(transcript::run(&classes, name, &steps, &object)).unwrap();
        assert!(differences.is_empty(), "{name}: {differences:#?}");
    }
}

#[test]
fn what_runs_for_ever_is_ended_by_its_counters() {
    for body in [
        "while true do end",
        "repeat until false",
        "repeat local x = 1 until x == 2",
        "::again:: goto again",
        "do ::a:: do goto a end end",
        "local function f() return f() end f()",
        "local function f() return 1 + f() end f()",
        "local function f(n) if n == 0 then return 1 end return f(n) + f(n) end f(1)",
        "while true do pcall(function() while true do end end) end",
        "local function f() return pcall(f) end while true do f() end",
        "pcall(pcall, function() while true do end end) while true do end",
        "local t = setmetatable({}, {__index = function(t, k) while true do end end}) return t.x",
        "local t = setmetatable({}, {__add = function() while true do end end}) return t + 1",
        "local t = setmetatable({}, {__concat = function() while true do end end}) return t .. 'x'",
        "local t = setmetatable({}, {__tostring = function() while true do end end}) return tostring(t)",
        "for k in pairs(setmetatable({}, {__pairs = function() return function() return 1 end end})) do end",
        "for i in ipairs(setmetatable({}, {__index = function() return 1 end})) do end",
        "for _ in function() return 1 end do end",
        "for i = 1, math.huge do end",
        "for i = 1, 0, 0.0 do end for i = 1, 2, 1e-300 do end",
        "table.sort({3, 2, 1}, function() while true do end end)",
        "('x'):gsub('x', function() while true do end end)",
        "local s = [[ end ]] while true do s = 'while' --[[ end ]] end",
        "local function nacre() end while nacre do nacre() end",
        "local _ENV = {} while true do end",
        "local t = {f = function(self) while self do end end} t:f()",
    ] {
        let text = format!("function m(input, output) {body} end objclass.register(m)");
        let wide = Bounds { instructions: 1_000_000_000, memory_bytes: 1 << 28, ..unhurried() };
        let bench = Bench::bounded(&bounded(&text, 20_000), wide);
        match bench.call("m", "") {
            Err(CallError::Failed { failure, .. }) => {
                let ended = ["no units are left", "overflow", "'for' step is zero"];
                assert!(ended.iter().any(|why| failure.message.contains(why)), "{body}: {}", failure.message);
            }
            // Here the stack ends before the units.
            Err(CallError::Exceeded { bound: Bound::Memory, .. }) if body.contains("+ f(") => {}
            other => panic!("{body}: {other:?}"),
        }
    }
}

#[test]
fn what_the_osds_run_is_in_the_language() {
    let text = format!("{}\nfunction m() end objclass.register(m)", osd::body());
    let classes = Classes::new(Arc::new(MemoryStore::new()));
    // It compiles, and as long as nobody calls it, does nothing.
    block_on(classes.put("body", text.into(), unhurried())).unwrap();
}

/// A generator of texts: the same for the same seed.
struct Texts(u64);

impl Texts {
    fn below(&mut self, limit: u64) -> u64 {
        // Knuth's multiplier; the upper bits are the good ones.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn expression(&mut self, depth: u64) -> String {
        if depth == 0 {
            return match self.below(6) {
                0 => self.below(100).to_string(),
                1 => "'end'".to_owned(),
                2 => "[[ while ]]".to_owned(),
                3 => "(1.5)".to_owned(),
                4 => "a".to_owned(),
                _ => "b".to_owned(),
            };
        }
        let (x, y) = (self.expression(depth - 1), self.expression(depth - 1));
        match self.below(9) {
            0..=2 => format!("{x} .. {y}"),
            3 => format!("({x} == {y} and {x} or {y})"),
            4 => format!("t({x},{y}) .. {x}"),
            5 => format!("#({x} .. {y})"),
            6 => format!("(function(...) local a, b = ... return b .. a end)({x}, {y})"),
            7 => format!("({{{x}, [2] = {y}}})[{}]", 1 + self.below(2)),
            _ => format!("(({x})..({y})):len() * 2"),
        }
    }

    fn statements(&mut self, depth: u64) -> String {
        let mut out = String::new();
        for _ in 0..1 + self.below(4) {
            let e = self.expression(2);
            let inner = if depth == 0 { "a = b".to_owned() } else { self.statements(depth - 1) };
            out.push_str(&match self.below(8) {
                0 => format!("a = cut({e});"),
                1 => format!("b = cut({e}) -- end\n"),
                2 => format!("for i = 1, {} do {inner} a = i end ", self.below(4)),
                3 => format!("local n = 0 while n < {} do n = n + 1 {inner} end ", self.below(4)),
                4 => format!("local n = 0 repeat n = n + 1 local done = n > 2 {inner} until done "),
                5 => format!("if {e} == a then {inner} elseif b then {inner} else {inner} end "),
                6 => {
                    let label = format!("top{}", self.below(1 << 30));
                    format!("do local n = 0 ::{label}:: n = n + 1 do {inner} end if n < 3 then goto {label} end end ")
                }
                _ => format!("local function f(a, b) {inner} return a end b = cut(f({e}, b)) "),
            });
            out.push_str("put(a) ");
        }
        out
    }
}

#[test]
fn random_texts_do_the_same_with_counters() {
    let seed: u64 = std::env::var("NACRE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut compared = 0;
    for number in 0..300 {
        let body = Texts(seed.wrapping_mul(1_000_003).wrapping_add(number)).statements(2);
        let text = format!(
            "local function t(x, y) return tostring(x == y) end
             local function cut(x) return tostring(x):sub(1, 20) end
             function m(input, output)
               local a, b = 1, 'two'
               local function put(x) output:append(tostring(x):sub(1, 40) .. ';') end
               {body}
             end
             objclass.register(m)"
        );
        let said = |text: &str| {
            let bench = Bench::bounded(text, unhurried());
            match bench.call("m", "") {
                Ok(called) => Ok(called.output),
                // The texts of errors name what Lua was at.
                Err(CallError::Failed { errno, failure, .. }) => Err((errno, failure.output)),
                Err(error) => panic!("seed {seed}, text {number}: {error}"),
            }
        };
        let expected = said(&text);
        assert_eq!(said(&bounded(&text, 10_000_000)), expected, "seed {seed}, text {number}: {text}");
        compared += u32::from(expected.is_ok());
    }
    assert!(compared > 50, "{compared} texts ran to their end");
}
