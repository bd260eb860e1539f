//! The rewriter's counters, the text that it leaves alone, and its refusals.

use nacre_class::rewrite::{Unbounded, rewrite};

fn rewritten(text: &str) -> String {
    String::from_utf8(rewrite(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))).unwrap()
}

fn refused(text: &str) -> Unbounded {
    rewrite(text.as_bytes()).expect_err(text)
}

#[test]
fn every_body_and_every_way_back_gets_a_counter() {
    for (text, expected) in [
        ("while x do y() end", " nacre_count(1);while x do nacre_count(1); y() end"),
        ("repeat y() until x", " nacre_count(1);repeat nacre_count(1); y() until x"),
        ("for i = 1, 9 do end", " nacre_count(1);for i = 1, 9 do nacre_count(1); end"),
        ("for k, v in f() do end", " nacre_count(1);for k, v in f() do nacre_count(1); end"),
        (
            "local function f(...) return ... end",
            " nacre_count(1);local function f(...) nacre_count(1); return ... end",
        ),
        ("function a.b:c(x) end", " nacre_count(1);function a.b:c(x) nacre_count(1); end"),
        ("f(function() end)", " nacre_count(1);f(function() nacre_count(1); end)"),
        ("::a:: goto a", " nacre_count(1);::a::  nacre_count(1);goto a"),
        (
            "do goto done local x ::done:: end",
            " nacre_count(1);do  nacre_count(1);goto done local x ::done:: end",
        ),
    ] {
        assert_eq!(rewritten(text), expected, "{text}");
    }
}

#[test]
fn strings_and_comments_are_left_alone() {
    for text in [
        "x = 'while true do end'",
        "x = \"\\\"while true do end\"",
        "x = '\\z \n while true do end'",
        "x = [==[ while true do ]] ]=] end ]==]",
        "-- while true do end\nx = 1",
        "--[[ while true do\n end ]] x = 1",
        "--[=[ ]] while true do end ]=] x = 1",
        "--[ while true do end\nx = 1",
        "x = 0x1p-3 + 1e+5 + .5 + 3. + 0xA.8",
        "x = {1, 2; a = 3, [4] = 5, f 'x', g {}, h:i 'j'.k[1]}",
        "x = not a == -b ^ #c // 2 ~ d & e | f << 1 >> 2 and g or h ~= i",
    ] {
        let rewritten = rewritten(text);
        let (counter, rest) = rewritten.split_once(';').unwrap();
        assert!(counter.starts_with(" nacre_count(") && rest == text, "{rewritten}");
    }
}

#[test]
fn concatenations_become_calls_in_the_order_in_which_lua_makes_them() {
    for (text, expected) in [
        ("x = a .. b", "x =  nacre_join(a , b)"),
        ("x = a..b..c", "x =  nacre_join(a, nacre_join(b,c))"),
        ("x = a + b .. c == d", "x =  nacre_join(a + b , c) == d"),
        ("x = -a .. -b", "x =  nacre_join(-a , -b)"),
        ("x = a .. b + c << d", "x =  nacre_join(a , b + c) << d"),
        ("return'a'..'b'", "return nacre_join('a','b')"),
        ("x = (a .. b):c() .. 1 ^ 2", "x =  nacre_join(( nacre_join(a , b)):c() , 1 ^ 2)"),
    ] {
        assert_eq!(rewritten(text), format!(" nacre_count(1);{expected}"), "{text}");
    }
}

#[test]
fn a_counter_weighs_what_follows_it_and_long_stretches_have_several() {
    let statements = "x = 1 ".repeat(20);
    assert_eq!(rewritten(&statements), format!(" nacre_count(4);{statements}"));
    let long = rewritten(&"x = 1\n".repeat(100));
    assert_eq!(long.matches("nacre_count(9)").count(), 2, "{long}");
    assert_eq!(long.lines().count(), 100, "no line moves");
    let table = format!("x = {{{}}}", "1,".repeat(1000));
    assert!(rewritten(&table).starts_with(" nacre_count(126);x"));
    // A condition is looked at as often as the body runs.
    let condition = format!("while {}x do end", "x and ".repeat(40));
    assert!(rewritten(&condition).ends_with("do nacre_count(6); end"), "{condition}");
    // A jump pays for what it leads to.
    let jump = format!("::a:: x = {{{}}} goto a", "1,".repeat(1000));
    let expected = format!(
        " nacre_count(1);::a::  nacre_count(126);x = {{{}}}  nacre_count(1);goto a",
        "1,".repeat(1000)
    );
    assert_eq!(rewritten(&jump), expected);
    let ends = "while x do if y then goto next end local z ::next:: end x = 1";
    assert!(rewritten(ends).ends_with("local z ::next:: end  nacre_count(1);x = 1"), "{}", rewritten(ends));
    assert!(rewritten("do ::a:: ; return end").ends_with("::a:: ;  nacre_count(1);return end"));
    // What follows a branch is not paid for in it.
    let branch = format!("if a then {} end x = 1", "y = 1 ".repeat(50));
    assert!(rewritten(&branch).starts_with(" nacre_count(9);if a then y"), "{}", rewritten(&branch));
}

#[test]
fn what_cannot_be_bounded_is_refused_with_its_line() {
    for (text, line, part) in [
        ("x = 1\nlocal nacre_count = f", 2, "reserved"),
        ("function f(nacre_join) end", 1, "reserved"),
        ("x = 1..2", 1, "malformed number"),
        ("x = 3x", 1, "malformed number"),
        ("\n\nx = 'open", 3, "not closed"),
        ("x = [[ open", 1, "not closed"),
        ("--[[ open", 1, "not closed"),
        ("local x <const> = 1", 1, "attributes"),
        ("end while true do", 1, "continues after its end"),
        ("function f() return ... end", 1, "outside of a function"),
        ("return 1 x = 2", 1, "last statement"),
        ("x", 1, "not a statement"),
        ("f() = 1", 1, "call"),
        ("x = 1 ? 2", 1, "byte 63"),
        ("x = \0", 1, "byte 0"),
        ("if x then", 1, "\"end\" is expected"),
    ] {
        let error = refused(text);
        assert_eq!(error.line, line, "{text}: {error}");
        assert!(error.reason.contains(part), "{text}: {error}");
    }
    assert!(refused(&format!("x = {}1{}", "(".repeat(1000), ")".repeat(1000))).reason.contains("nested"));
    assert!(refused(&format!("x = '{}'", "y".repeat(20_000))).reason.contains("16384 bytes"));
    assert!(refused(&format!("x = 1{}", " + 1".repeat(10_000))).reason.contains("split it"));
}
