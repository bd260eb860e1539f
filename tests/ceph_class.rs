//! Methods of classes in the OSDs of a Ceph cluster: they do what they do elsewhere, in one operation each, and end.

#[path = "../crates/rados/tests/cluster/mod.rs"]
mod cluster;
mod harness;

use cluster::Cluster;
use harness::{program, run_with};
use nacre_class::{Bound, Bounds, CallError, Called, Request, errno, transcript};
use nacre_object::testkit::block_on;
use nacre_object::{Answer, Key, ObjectId, Outcome, ReadOp, Transaction, WriteOp};

const SHIPPED: [(&str, &str); 7] = [
    ("counter", include_str!("../classes/counter.lua")),
    ("queue", include_str!("../classes/queue.lua")),
    ("refcount", include_str!("../classes/refcount.lua")),
    ("version", include_str!("../classes/version.lua")),
    ("log", include_str!("../classes/log.lua")),
    ("index", include_str!("../classes/index.lua")),
    ("zlog", include_str!("../classes/zlog.lua")),
];

fn open(uri: &str) -> nacre::Store {
    nacre::open(uri).unwrap()
}

fn put(store: &nacre::Store, name: &str, text: &str) -> u64 {
    block_on(store.classes().put(name, text.to_owned().into(), Bounds::default())).unwrap()
}

fn object(name: &str) -> ObjectId {
    ObjectId::try_from(name).unwrap()
}

fn call(store: &nacre::Store, name: &str, method: &str, input: &str) -> Result<Called, CallError> {
    let (object, (class, method)) = (object(name), method.split_once('.').unwrap());
    block_on(store.classes().call(&Request::new(&object, class, method).input(input.to_owned())))
}

fn output(store: &nacre::Store, name: &str, method: &str, input: &str) -> String {
    let called = call(store, name, method, input).unwrap_or_else(|error| panic!("{method}: {error}"));
    String::from_utf8(called.output.to_vec()).unwrap()
}

/// Returns the attribute in which an object keeps the versions of the classes that have changed it in an OSD.
fn accepted(store: &nacre::Store, name: &str) -> Option<String> {
    let read = ReadOp::Attribute { name: Key::try_from("nacre.classes").unwrap() };
    match block_on(store.apply(&object(name), Transaction::new().read(read))).unwrap() {
        Outcome::Done(done) => match &done.answers[0] {
            Answer::Value(value) => value.as_ref().map(|value| String::from_utf8(value.to_vec()).unwrap()),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_counter_is_put_and_called_by_commands() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("command");
    let class = |words: &[&str], input: &str| {
        let mut command = program();
        command.args(["--store", &uri, "class"]).args(words);
        run_with(command, input.as_bytes())
    };
    assert_eq!(class(&["put", "-", "--name", "counter"], SHIPPED[0].1).text(), "1");
    assert_eq!(class(&["call", "votes", "counter.add"], "").text(), "1");
    assert_eq!(class(&["call", "votes", "counter.add", "41"], "").text(), "42");
    assert_eq!(class(&["call", "votes", "counter.get"], "").text(), "42");
    class(&["call", "votes", "counter.set", "x"], "").failed(1, &["EINVAL"]);
    // It was an OSD that made the changes.
    let store = open(&uri);
    assert_eq!(accepted(&store, "votes").as_deref(), Some("counter 1\n"));
    let refused = "local nacre_count = 1\nfunction m() end objclass.register(m)";
    class(&["put", "-", "--name", "fooling"], refused)
        .failed(1, &["OSDs cannot run it", "line 1", "reserved"]);
    assert!(class(&["ls"], "").text().contains("counter"));
}

#[test]
fn every_class_that_ships_does_what_its_transcript_says() {
    let cluster = Cluster::shared();
    let store = open(&cluster.uri("shipped"));
    for (name, text) in SHIPPED {
        put(&store, name, text);
        let steps = transcript::parse(text).unwrap();
        let differences = block_on(transcript::run(store.classes(), name, &steps, &object(name))).unwrap();
        assert!(differences.is_empty(), "{name}: {differences:#?}");
        // All but that one leave an object, which an OSD has changed.
        if name != "refcount" {
            assert_eq!(accepted(&store, name), Some(format!("{name} 1\n")), "{name}");
        }
    }
}

#[test]
fn no_addition_is_lost_and_no_entry_is_given_twice() {
    const CONNECTIONS: usize = 4;
    const CALLS: usize = 20;
    let cluster = Cluster::shared();
    let uri = cluster.uri("contended");
    let first = open(&uri);
    for (name, text) in &SHIPPED[..2] {
        put(&first, name, text);
    }
    let popped: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CONNECTIONS)
            .map(|number| {
                let uri = &uri;
                scope.spawn(move || {
                    let store = open(uri);
                    let mut popped = Vec::new();
                    for entry in 0..CALLS {
                        call(&store, "shared", "counter.add", "1").unwrap();
                        // Some are too long for the answer to a change.
                        let padding = "x".repeat(entry * 3);
                        call(&store, "shared", "queue.push", &format!("{number}-{entry}-{padding}")).unwrap();
                        popped.push(output(&store, "shared", "queue.pop", ""));
                    }
                    popped
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(output(&first, "shared", "counter.get", ""), (CONNECTIONS * CALLS).to_string());
    let mut unique = popped.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), CONNECTIONS * CALLS);
}

const OUTPUTS: &str = "
function big(input, output)
  nacre.set('n', tostring((tonumber((nacre.get('n'))) or 0) + 1))
  output:append(('x'):rep(100000))
end
objclass.register(big)
function short(input, output) nacre.set('s', input) output:append('14 bytes long!') return 0 end
objclass.register(short)
function result(input, output) nacre.set('s', input) output:append('ten bytes!') return 1 << 30 end
objclass.register(result)
function said(input, output) nacre.set('s', input) objclass.log('said', 1, true) end
objclass.register(said)
function both(input, output)
  output:append(nacre.call('counter.add', '2') .. '/' .. nacre.call('counter.get'))
end
objclass.register(both)
function nobody() return nacre.call('nobody.none') end
objclass.register(nobody)
function fails(input, output) nacre.set('s', 'lost') output:append('why') nacre.fail(objclass.EBUSY, 'later') end
objclass.register(fails)";

#[test]
fn long_outputs_of_changes_logs_and_nested_calls_arrive() {
    let cluster = Cluster::shared();
    let store = open(&cluster.uri("outputs"));
    put(&store, "counter", SHIPPED[0].1);
    put(&store, "big", OUTPUTS);
    for _ in 0..3 {
        let called = call(&store, "o", "big.big", "").unwrap();
        assert_eq!((called.output.len(), called.wrote, called.attempts), (100_000, true, 2));
    }
    let n = Transaction::new().read(ReadOp::Key { key: Key::try_from("n").unwrap() });
    let Outcome::Done(done) = block_on(store.apply(&object("o"), n)).unwrap() else { panic!("no guards") };
    assert_eq!(done.answers, [Answer::Value(Some("3".into()))]);
    let called = call(&store, "o", "big.short", "v").unwrap();
    assert_eq!((&called.output[..], called.attempts, called.result), (&b"14 bytes long!"[..], 1, 0));
    let called = call(&store, "o", "big.result", "v").unwrap();
    assert_eq!((&called.output[..], called.attempts, called.result), (&b"ten bytes!"[..], 1, 1 << 30));
    let version = called.version.unwrap();
    let called = call(&store, "o", "big.said", "v").unwrap();
    assert_eq!((called.log, called.version), (vec!["said 1 true".to_owned()], Some(version + 1)));
    assert_eq!(output(&store, "o", "big.both", ""), "2/0");
    assert_eq!(output(&store, "o", "counter.get", ""), "2");
    assert_eq!(accepted(&store, "o").as_deref(), Some("big 1\ncounter 1\n"));
    assert_eq!(call(&store, "o", "big.nobody", "").unwrap_err().errno(), errno::EOPNOTSUPP);
    match call(&store, "o", "big.fails", "").unwrap_err() {
        CallError::Failed { errno: errno::EBUSY, failure, .. } => {
            assert_eq!((&failure.message[..], &failure.output[..]), ("later", &b"why"[..]));
        }
        other => panic!("{other:?}"),
    }
}

const HOSTILE: [&str; 26] = [
    "while true do end",
    "repeat until false",
    "::again:: goto again",
    "local function f() return f() end f()",
    "while true do pcall(function() while true do end end) end",
    "local t = setmetatable({}, {__index = function(t, k) while true do end end}) return t.x",
    "table.sort({3, 2, 1}, function() while true do end end)",
    "for k in pairs(setmetatable({}, {__pairs = function() return function() return 1 end end})) do end",
    "table.concat(setmetatable({}, {__len = function() return math.maxinteger end, __index = function() return '' end}))",
    "('x'):rep(1 << 40)",
    "local s = 'x' while true do s = s .. s end",
    "local s = 'x' while true do s = string.format('%s%s', s, s) end",
    "local s = 'x' while true do s = table.concat({s, s}) end",
    "string.pack('c' .. (1 << 30), '')",
    "('a'):rep(50):find(('a?'):rep(40) .. ('a*'):rep(20) .. 'b')",
    "('a'):rep(100000):match(('a*'):rep(10) .. 'b')",
    "('a'):rep(100000):gsub(('a-'):rep(10) .. 'b', '')",
    "for _ in ('a'):rep(100000):gmatch(('a-'):rep(10) .. 'b') do end",
    "('x'):rep(1 << 20):gsub('x', function() return ('y'):rep(1 << 20) end)",
    "('x'):rep(1 << 20):gsub('x', ('y'):rep(1 << 20))",
    "local b = bufferlist.new() local s = ('x'):rep(1 << 20) while true do b:append(s) end",
    "local b = bufferlist.new() b:append(('x'):rep(1 << 20)) while true do b = b .. b end",
    "local t = {} while true do t = {t, t, t, t} end",
    "local a = ('x'):rep(1 << 20) local b = a .. 'a' a = a .. 'b' while true do local c = a < b end",
    "while true do output:append('0123456789') end",
    "while true do nacre.read(0, 1 << 20) nacre.get('k') end",
];

#[test]
fn scripts_that_would_hang_an_osd_end_and_change_nothing() {
    let cluster = Cluster::shared();
    let store = open(&cluster.uri("hostile"));
    let bounds = Bounds { instructions: 400_000, memory_bytes: 8 << 20, ..Bounds::default() };
    for (number, body) in HOSTILE.into_iter().enumerate() {
        let text = format!(
            "function m(input, output) nacre.set('k', 'changed'); {body} end objclass.register(m)
             function ok(input, output) output:append('ok') end objclass.register(ok)"
        );
        let name = format!("hostile{number}");
        block_on(store.classes().put(&name, text.into(), bounds)).unwrap();
        match call(&store, "o", &format!("{name}.m"), "") {
            Err(CallError::Exceeded { bound, .. }) => {
                assert!(matches!(bound, Bound::Instructions | Bound::Memory | Bound::Output), "{body}");
            }
            other => panic!("{body}: {other:?}"),
        }
        let called = call(&store, "o", &format!("{name}.ok"), "").unwrap();
        assert_eq!((&called.output[..], called.version), (&b"ok"[..], Some(0)), "after {body}");
    }
}

const REACHING: &str = "
function m(input, output)
  for _, name in ipairs({'load', 'collectgarbage', 'coroutine', 'xpcall', 'cmsgpack', 'header', 'sets', 'token',
    'nacre_' .. 'count', 'nacre_' .. 'join', 'nacre_classes', 'fail', 'commit', 'dofile', 'require'}) do
    if _G[name] ~= nil then output:append(name .. ' ') end
  end
  for _, f in ipairs({
    function() string.rep = print end, function() getmetatable('').__index = {} end,
    function() getmetatable(bufferlist.new()).__len = print end, function() rawset(objclass, 'read', print) end,
    function() objclass.getxattr('nacre.classes') end, function() nacre.set_attribute('nacre.classes', 'x') end,
    function() nacre.write(0, 'x', '.nacre.x') end,
  }) do
    if pcall(f) then output:append('not refused ') end
  end
  local high, low = bufferlist.new(), bufferlist.new()
  high:append('\\255')
  low:append('a')
  assert(low < high and low <= high and low ~= high and not (high <= low))
  assert(objclass.ENOENT == 2 and ('a'):rep(2) == 'aa' and #bufferlist.new() == 0 and type(input) == 'userdata')
end
objclass.register(m)";

#[test]
fn what_a_script_must_not_reach_is_out_of_its_reach() {
    let cluster = Cluster::shared();
    let store = open(&cluster.uri("reach"));
    put(&store, "reach", REACHING);
    assert_eq!(output(&store, "o", "reach.m", ""), "");
}

/// A method that asks for the object's size with ever more room on a stack that is all but full.
const FULL: &str = "
function m(input, output)
  local filler, reached, levels, steps, last = {}
  for i = 1, 4000 do filler[i] = i end
  local function fine(n)
    steps = n
    if n == last then return (nacre.size()) end
    return (fine(n + 1))
  end
  local function deep(n, ...)
    reached = n
    if n == levels then return (fine(1)) end
    return (deep(n + 1, ...))
  end
  pcall(deep, 1, table.unpack(filler))
  levels = reached - 1
  pcall(deep, 1, table.unpack(filler))
  local most = steps
  for less = 0, 40 do
    last = most - less
    pcall(deep, 1, table.unpack(filler))
    if ('').dump then return -objclass.EPERM end
  end
end
objclass.register(m)";

#[test]
fn a_full_stack_leaves_no_script_the_methods_of_the_osd() {
    let cluster = Cluster::shared();
    let store = open(&cluster.uri("full"));
    put(&store, "full", FULL);
    // Where the stack is full within an operation, the call ends for good.
    let ended = call(&store, "o", "full.m", "");
    assert!(!matches!(&ended, Err(CallError::Failed { errno: errno::EPERM, .. })), "{ended:?}");
}

#[test]
fn an_object_refuses_earlier_versions_of_a_class_than_the_one_that_changed_it() {
    let cluster = Cluster::shared();
    let store = open(&cluster.uri("stale"));
    put(&store, "counter", SHIPPED[0].1);
    assert_eq!(output(&store, "o", "counter.add", "1"), "1");
    // As a client leaves it that has seen a later version.
    let name = Key::try_from("nacre.classes").unwrap();
    let newer = WriteOp::SetAttribute { name, value: "counter 3\n".into() };
    block_on(store.apply(&object("o"), Transaction::new().change(newer))).unwrap();
    let error = call(&store, "o", "counter.add", "1").unwrap_err();
    assert_eq!(error.errno(), errno::ESTALE, "{error}");
    assert!(error.to_string().contains("version 3"), "{error}");
    for version in 2..=4 {
        assert_eq!(put(&store, "counter", &format!("-- {version}\n{}", SHIPPED[0].1)), version);
    }
    // The version rises, and with it what the object accepts.
    assert_eq!(output(&store, "o", "counter.add", "1"), "2");
    assert_eq!(accepted(&store, "o").as_deref(), Some("counter 4\n"));
    // Who removes the object removes what an earlier version could misread.
    block_on(store.apply(&object("o"), Transaction::new().change(WriteOp::Remove))).unwrap();
    assert_eq!(accepted(&store, "o"), None);
}

#[test]
fn a_fenced_session_changes_nothing_by_a_method() {
    let cluster = Cluster::shared();
    let store = open(&cluster.uri("fenced"));
    put(&store, "counter", SHIPPED[0].1);
    let fence = Transaction::new().change(WriteOp::RaiseFence { token: 5 });
    block_on(store.apply(&object("o"), fence)).unwrap();
    let (object, classes) = (object("o"), store.classes());
    let by = |session, method| {
        let request = Request { fence: Some(session), ..Request::new(&object, "counter", method) };
        block_on(classes.call(&request))
    };
    assert!(matches!(by(4, "add"), Err(CallError::Fenced { fence: 5, .. })));
    assert_eq!(by(4, "get").unwrap().output, "0");
    assert_eq!(by(5, "add").unwrap().output, "1");
}

/// Tests that a user who must not call the class still calls methods that only read, in its own process.
#[test]
fn a_user_that_may_only_read_calls_methods_that_only_read() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("reader");
    let store = open(&uri);
    put(&store, "counter", SHIPPED[0].1);
    assert_eq!(output(&store, "o", "counter.add", "7"), "7");
    let caps = ["auth", "get-or-create", "client.reader", "mon", "allow r", "osd", "allow r pool=nacre"];
    std::fs::write(cluster.dir().join("client.reader.keyring"), cluster.ceph(&caps)).unwrap();
    let reader = open(&uri.replace("id=nacre", "id=reader"));
    assert_eq!(output(&reader, "o", "counter.get", ""), "7");
    assert!(matches!(call(&reader, "o", "counter.add", "1"), Err(CallError::Store(_))));
    assert_eq!(output(&store, "o", "counter.get", ""), "7");
}
