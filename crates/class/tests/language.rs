//! The language that scripts see: Lua's own results from the functions that are replaced, the same in every run.

mod kit;

use kit::{eval, value};

#[test]
fn errors_are_where_the_script_is_wrong() {
    let error = |body| eval(body).unwrap_err().to_string();
    let format = error("string.format('%d', 1.5)");
    assert!(format.contains("c:2: bad argument #2 to 'format'"), "{format}");
    // Nobody in the class has called its method.
    assert_eq!(error("error('wrong', 2)"), "c.m on object \"o\" failed: wrong (EIO)");
}

#[test]
fn replaced_functions_give_luas_results() {
    let cases = [
        ("('abc'):rep(3, '-')", "abc-abc-abc"),
        ("('x'):rep(0) .. ('x'):rep(-5) .. (''):rep(1000000000000)", ""),
        ("('hello'):sub(2, -2)", "ell"),
        ("('hello'):sub(-100, 2)", "he"),
        ("('hello'):sub(4, 2)", ""),
        ("('hello'):byte(-1)", "111"),
        ("select('#', ('hello'):byte(1, -1))", "5"),
        ("('hello'):upper():reverse():lower()", "olleh"),
        ("table.concat({('hello'):find('l')}, ',')", "3,3"),
        ("table.concat({('a.b'):find('.', 1, true)}, ',')", "2,2"),
        ("table.concat({('hello'):find('(l)(.)')}, ',')", "3,4,l,l"),
        ("('hello'):find('z')", "nil"),
        ("('hello'):find('', 10)", "nil"),
        ("table.concat({('hello'):find('', 6)}, ',')", "6,5"),
        ("('key=val'):match('(%w+)=(%w+)')", "key"),
        ("('hello'):match('()ll()')", "3"),
        ("('hello world'):gsub('o', '0')", "hell0 w0rld"),
        ("('hello'):gsub('', '-')", "-h-e-l-l-o-"),
        ("('hello'):gsub('l*', 'x')", "xhxexox"),
        ("('abc'):gsub('%w', '%0%0')", "aabbcc"),
        ("('abc def'):gsub('(%w+) (%w+)', '%2 %1')", "def abc"),
        ("('$name is $age'):gsub('%$(%w+)', {name = 'Ada', age = 36})", "Ada is 36"),
        ("('4+5'):gsub('(%d)%+(%d)', function(a, b) return tonumber(a) + tonumber(b) end)", "9"),
        ("('abc'):gsub('%w', function() return false end)", "abc"),
        ("('aaa'):gsub('a', 'b', 2)", "bba"),
        ("('aaa'):gsub('^a', 'b')", "baa"),
        ("('aaa'):gsub('^a', function() return 'b' end)", "baa"),
        ("select(2, ('hello'):gsub('l', {}))", "2"),
        (
            "string.format('%5.2f|%d|%s|%q|%x|%5s|%-5s|', 3.14159, 42, 'x', 'a\\n', 255, 'r', 'l')",
            " 3.14|42|x|\"a\\\n\"|ff|    r|l    |",
        ),
        ("string.format('%s %s %s', nil, true, {})", "nil true table"),
        ("string.format('%d', math.mininteger) .. ('%d'):format(0)", "-92233720368547758080"),
        ("string.format('%d', '3') .. string.format('%d', 4.0) .. string.format('%d', 5, {})", "345"),
        ("string.format('%s', setmetatable({}, {__tostring = function() return 'mine' end}))", "mine"),
        ("string.unpack('<i8', string.pack('<i8', -5))", "-5"),
        ("table.concat({1, 2, 3}, ', ')", "1, 2, 3"),
        ("table.concat({1, 2, 3}, ', ', 2)", "2, 3"),
        ("table.concat({})", ""),
        ("select('#', table.unpack({1, nil, 3}, 1, 3))", "3"),
        ("table.pack(1, nil).n", "2"),
        (
            "tostring(1e15) .. ' ' .. tostring(2^53) .. ' ' .. tostring(10 // 3) .. ' ' .. tostring(-0.0)",
            "1e+15 9.007199254741e+15 3 -0.0",
        ),
        ("select('#', pcall(function() return 1, nil, nil end))", "4"),
        ("select('#', pcall(error)) .. tostring(pcall())", "2false"),
        ("select(2, pcall(nacre.fail, 5, 'x')) .. select(3, pcall(nacre.fail, 5, 'x'))", "-5x"),
        ("select('#', pcall(pcall, nacre.fail, 5, 'x'))", "4"),
        ("tonumber('0x10') + tonumber('z', 36)", "51"),
        ("math.maxinteger // -1", "-9223372036854775807"),
        ("math.type(1) .. math.type(1.0)", "integerfloat"),
        ("tostring(print) .. tostring({}) .. tostring(bufferlist.new())", "functiontablebufferlist"),
    ];
    for (expression, expected) in cases {
        assert_eq!(value(&format!("({expression})")), expected, "{expression}");
    }
}

#[test]
fn tables_are_changed_as_luas_functions_change_them() {
    let show = "local function show(t) output:append(table.concat(t, ',') .. ';') end ";
    let check =
        |body: &str, expected: &str| assert_eq!(eval(&format!("{show}{body}")).unwrap(), expected, "{body}");
    check("local t = {1, 2} table.insert(t, 3) table.insert(t, 1, 0) show(t)", "0,1,2,3;");
    check("local t = {1, 2, 3} show({table.remove(t)}) show({table.remove(t, 1)}) show(t)", "3;1;2;");
    check("show({table.remove({}) == nil and 'nothing'})", "nothing;");
    check("show(table.move({1, 2, 3}, 2, 3, 1))", "2,3,3;");
    check("show(table.move({1, 2, 3}, 1, 3, 2))", "1,1,2,3;");
    check("show(table.move({1, 2}, 1, 2, 1, {}))", "1,2;");
    check("local t = {3, 1, 2} table.sort(t) show(t)", "1,2,3;");
    check("local t = {'b', 'a', 'C'} table.sort(t) show(t)", "C,a,b;");
    check("local t = {3, 1, 2.5} table.sort(t, function(a, b) return a > b end) show(t)", "3,2.5,1;");
    // Integers that no float stands for have their place among floats.
    check("local t = {2^63, math.maxinteger} table.sort(t) show({math.type(t[1])})", "integer;");
    check("local t = {(1 << 53) + 1, 2^53, 1 << 53} table.sort(t) show({t[3]})", "9007199254740993;");
    // Equal elements keep their order.
    check(
        "local t = {} for i = 1, 50 do t[i] = {i % 3, i} end table.sort(t, function(a, b) return a[1] < b[1] end)
         local last = {-1, 0} for _, e in ipairs(t) do
           assert(e[1] > last[1] or e[1] == last[1] and e[2] > last[2]) last = e end",
        "",
    );
    check("for a, b in ('k=v, x=y'):gmatch('(%w+)=(%w+)') do show({a, b}) end", "k,v;x,y;");
    check("for m in ('abc'):gmatch('') do show({'-'}) end", "-;-;-;-;");
}

#[test]
fn tables_are_gone_through_in_order_of_their_keys() {
    let body = "local t = {z = 1, a = 2, [3] = 3, [1] = 4, [2.5] = 5, [true] = 6, m = 7}
        for k, v in pairs(t) do output:append(tostring(k) .. '=' .. v .. ' ') end
        output:append('| ')
        local k, v = next(t) while k ~= nil do output:append(tostring(k) .. ' ') k, v = next(t, k) end";
    assert_eq!(eval(body).unwrap(), "1=4 2.5=5 3=3 a=2 m=7 z=1 true=6 | 1 2.5 3 a m z true ");
    // Entries may be removed on the way.
    let body = "local t = {a = 1, b = 2, c = 3}
        for k in pairs(t) do t.b = nil output:append(k) end output:append(tostring(next({})))";
    assert_eq!(eval(body).unwrap(), "acnil");
    let error = eval("for k in pairs({[{}] = 1}) do end").unwrap_err();
    assert!(error.to_string().contains("has no place in the order"), "{error}");
}

#[test]
fn what_scripts_must_not_have_is_not_there() {
    for name in [
        "load",
        "loadstring",
        "loadfile",
        "dofile",
        "require",
        "collectgarbage",
        "xpcall",
        "coroutine",
        "os",
        "io",
        "debug",
        "package",
        "utf8",
        "warn",
        "module",
        "math.random",
        "math.randomseed",
        "string.dump",
    ] {
        assert_eq!(value(name), "nil", "{name}");
    }
    for name in
        ["string.rep", "table.concat", "math.floor", "objclass.read", "nacre.read", "bufferlist.new", "pcall"]
    {
        assert_eq!(value(&format!("type({name})")), "function", "{name}");
    }
}

#[test]
fn structured_values_survive_packing() {
    let body = "local v = {1, -1, -33, 300, 70000, math.mininteger, 1.5, 'text', true, false, {a = {b = {}}, [7] = 'x'}, ('x'):rep(300)}
        local packed = nacre.pack(v, 'second', nil)
        local back, second, third = nacre.unpack(packed)
        assert(nacre.pack(back, 'second', nil) == packed)
        assert(second == 'second' and third == nil and back[11].a.b and back[6] == math.mininteger and back[7] == 1.5)
        output:append('' .. #packed)";
    assert_eq!(eval(body).unwrap(), "376");
    assert_eq!(
        value("nacre.pack({1, {a = 'b'}}):gsub('.', function(c) return ('%02x '):format(c:byte()) end)"),
        "92 01 81 a1 61 a1 62 "
    );
    for wrong in
        ["'\\x92\\x01'", "'\\xa5abc'", "'\\xc1'", "'\\x81\\xc0\\x01'", "('\\x91'):rep(100)", "'\\xdc'"]
    {
        assert_eq!(value(&format!("pcall(nacre.unpack, {wrong})")), "false", "{wrong}");
    }
}
