//! Methods that run at a server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::join_all;
use nacre_class::network::{CALL, Options, Runner, call};
use nacre_class::{Bound, Bounds, CallError, Called, Classes, Request};
use nacre_object::testkit::MemoryStore;
use nacre_object::{ErrorKind, ObjectId, ObjectStore, StoreError, Transaction, WriteOp};
use nacre_rpc::client::{self, Host, Link, LinkOptions};
use nacre_rpc::{MessageKind, Outbox, ServeOptions, Server, Services, control};

const TEXT: &str = "
function add(input, output)
  local count = (tonumber((nacre.get('count'))) or 0) + 1
  nacre.set('count', tostring(count))
  output:append(tostring(count))
end
objclass.register(add)
function echo(input, output)
  objclass.log('heard', #input)
  output:append(input:str())
end
objclass.register(echo, { writes = false })
function fill(input, output) output:append(string.rep('x', tonumber(input:str()))) end
objclass.register(fill, { writes = false })
function hang() while true do end end
objclass.register(hang)
function loop(input, output) for _ = 1, tonumber(input:str()) do end output:append('done') end
objclass.register(loop, { writes = false })
function refuse(input, output) output:append('so far') nacre.fail(objclass.EBUSY, 'come back later') end
objclass.register(refuse)
";

/// A server with classes, on a port of its own.
struct Daemon {
    server: Option<Server>,
    runner: Runner,
    store: Arc<MemoryStore>,
    classes: Classes,
}

impl Daemon {
    fn start(threads: usize) -> Daemon {
        let store = Arc::new(MemoryStore::new());
        let objects: Arc<dyn ObjectStore> = store.clone();
        let keeps = Box::new(|object: &ObjectId| !object.as_bytes().starts_with(b"elsewhere"));
        let options = Options { objects: objects.clone(), store: objects.clone(), keeps, threads };
        let runner = Runner::start(options).unwrap();
        let serve = ServeOptions {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            open: true,
            services: Services::new().with(runner.service()),
            ..Default::default()
        };
        let classes = Classes::new(objects);
        let host = Daemon { server: Some(Server::start(serve).unwrap()), runner, store, classes };
        host.put(TEXT, unhurried());
        host
    }

    fn put(&self, text: &'static str, bounds: Bounds) {
        futures::executor::block_on(self.classes.put("test", text.into(), bounds)).unwrap();
    }

    fn link(&self) -> Arc<Link> {
        let address = self.server.as_ref().unwrap().addresses()[0].clone();
        // As long as on a machine that has much else to do.
        let options = LinkOptions { connect_timeout: Duration::from_secs(60), ..Default::default() };
        Link::new(address, (), Arc::new(options), Arc::new(Host::new(false)))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

/// Returns the default bounds, except that a call may stand still for long, as on a busy machine.
fn unhurried() -> Bounds {
    Bounds { wall: Duration::from_secs(60), ..Bounds::default() }
}

/// A method that runs for ever, for callers who give it so much time. Honest calls have all the time that a class can give.
async fn hang(link: &Arc<Link>, object: &ObjectId, wall: Duration) -> Result<Called, CallError> {
    let bounds = Some(Bounds { wall, ..Bounds::MAX });
    call(link.clone(), &Request { bounds, ..Request::new(object, "test", "hang") }).await
}

async fn make(
    link: &Arc<Link>,
    object: &ObjectId,
    method: &str,
    input: impl Into<Bytes>,
) -> Result<Called, CallError> {
    call(link.clone(), &Request::new(object, "test", method).input(input)).await
}

fn object(name: &str) -> ObjectId {
    name.parse().unwrap()
}

#[tokio::test]
async fn a_call_brings_back_all_that_there_is_to_know() {
    let host = Daemon::start(4);
    let (link, object) = (host.link(), object("object"));
    let added = make(&link, &object, "add", "").await.unwrap();
    assert_eq!(
        (&added.output[..], added.version, added.wrote, added.attempts),
        (&b"1"[..], Some(1), true, 1)
    );
    let echoed = make(&link, &object, "echo", "words").await.unwrap();
    assert_eq!((&echoed.output[..], &echoed.log[..]), (&b"words"[..], &["heard 5".to_owned()][..]));
    assert_eq!((echoed.class_version, echoed.wrote), (1, false));

    let refused = make(&link, &object, "refuse", "").await.unwrap_err();
    assert_eq!(refused.to_string(), "test.refuse on object \"object\" failed: come back later (EBUSY)");
    let CallError::Failed { failure, .. } = refused else { panic!("{refused:?}") };
    assert_eq!(failure.output, "so far");
    let missing = make(&link, &object, "nothing", "").await.unwrap_err();
    assert!(missing.to_string().contains("no method \"nothing\""), "{missing}");
    let nobody = call(link.clone(), &Request::new(&object, "nobody", "add")).await.unwrap_err();
    assert!(nobody.to_string().contains("there is no class \"nobody\""), "{nobody}");

    let counts = host.runner.counts();
    assert_eq!((counts.done, counts.failed, counts.stopped, counts.refused), (2, 3, 0, 0));
}

#[tokio::test]
async fn a_fence_is_kept_by_the_server() {
    let host = Daemon::start(4);
    let (link, object) = (host.link(), object("object"));
    let raise = Transaction::new().change(WriteOp::RaiseFence { token: 7 });
    host.store.apply(&object, raise).await.unwrap();
    let request = Request { fence: Some(6), ..Request::new(&object, "test", "add") };
    let refused = call(link.clone(), &request).await.unwrap_err();
    assert!(matches!(refused, CallError::Fenced { fence: 7, .. }), "{refused:?}");
    let request = Request { fence: Some(7), ..request };
    assert_eq!(call(link.clone(), &request).await.unwrap().output, "1");
}

#[tokio::test]
async fn no_call_of_many_is_lost() {
    const LINKS: usize = 3;
    const CALLS: usize = 300;
    let host = Daemon::start(8);
    let object = object("object");
    let links: Vec<Arc<Link>> = (0..LINKS).map(|_| host.link()).collect();
    let calls = links.iter().flat_map(|link| (0..CALLS).map(|_| make(link, &object, "add", "")));
    let mut counts: Vec<u64> = join_all(calls)
        .await
        .into_iter()
        .map(|called| std::str::from_utf8(&called.unwrap().output).unwrap().parse().unwrap())
        .collect();
    counts.sort_unstable();
    assert_eq!(counts, (1..=(LINKS * CALLS) as u64).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_loop_without_an_end_disturbs_nobody_else() {
    let host = Daemon::start(4);
    host.put(TEXT, Bounds { instructions: u64::MAX, ..unhurried() });
    let (hostile, honest, object) = (host.link(), host.link(), object("object"));
    // A busy machine may rightly hold up the small calls for longer than all loops take: once, it does not.
    let mut round = 0;
    loop {
        let wall = Duration::from_secs(2 + round);
        // More loops than the connection may have threads; what is honest goes on beside them.
        let loops = join_all((0..6).map(|_| hang(&hostile, &object, wall)));
        let others = async {
            for count in 50 * round + 1..=50 * (round + 1) {
                assert_eq!(make(&honest, &object, "add", "").await.unwrap().output, count.to_string());
            }
            host.runner.counts().stopped
        };
        let (stopped, stopped_before) = futures::join!(loops, others);
        for stopped in stopped {
            let stopped = stopped.unwrap_err();
            assert!(matches!(stopped, CallError::Exceeded { bound: Bound::Wall, .. }), "{stopped:?}");
        }
        assert_eq!(host.runner.counts().stopped, 6 * (round + 1));
        round += 1;
        // Six loops on two threads take three times their bound.
        if stopped_before < 6 * round {
            break;
        }
        assert!(round < 5, "fifty small calls waited for all loops, each time");
    }
}

#[tokio::test]
async fn large_outputs_arrive_whole_and_those_beyond_the_bound_do_not() {
    let host = Daemon::start(4);
    let (link, object) = (host.link(), object("object"));
    for bytes in [0, 1, 32 << 10, (32 << 10) + 1, 1 << 20, 4 << 20] {
        let filled = make(&link, &object, "fill", bytes.to_string()).await.unwrap();
        assert_eq!(filled.output.len(), bytes);
        assert!(filled.output.iter().all(|byte| *byte == b'x'));
    }
    let beyond = make(&link, &object, "fill", ((4 << 20) + 1).to_string()).await.unwrap_err();
    assert!(matches!(beyond, CallError::Exceeded { bound: Bound::Output, .. }), "{beyond:?}");
    // More than there is memory for at once.
    let many = join_all((0..100).map(|_| make(&link, &object, "fill", (4 << 20).to_string()))).await;
    assert!(many.into_iter().all(|filled| filled.unwrap().output.len() == 4 << 20));
}

#[tokio::test]
async fn callers_may_tighten_bounds_and_not_widen_them() {
    let host = Daemon::start(4);
    let (link, object) = (host.link(), object("object"));
    let instructions = |instructions| Bounds { instructions, ..Bounds::MAX };
    for (wanted, given) in [(5000, 5000), (u64::MAX, 10_000_000)] {
        let bounds = Some(instructions(wanted));
        let request = Request { bounds, ..Request::new(&object, "test", "hang") };
        match call(link.clone(), &request).await.unwrap_err() {
            CallError::Exceeded { bound: Bound::Instructions, bounds, .. } => {
                assert_eq!(bounds.instructions, given);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn bounds_that_one_caller_tightens_hold_up_no_other() {
    let host = Daemon::start(2);
    host.put(TEXT, Bounds { instructions: u64::MAX, ..unhurried() });
    let (links, honest, object) = ([host.link(), host.link()], host.link(), object("object"));
    // A pause of the machine sends a call to the threads: once, there is none.
    for round in 1..=5 {
        // The classes are loaded after the first one, and a pause before is forgotten after the last one.
        for _ in 0..110 {
            assert_eq!(make(&honest, &object, "loop", "1").await.unwrap().output, "done");
        }
        let bounds = Some(Bounds { instructions: 2000, ..Bounds::MAX });
        let tight = Request { bounds, ..Request::new(&object, "test", "loop").input("5000") };
        match call(honest.clone(), &tight).await.unwrap_err() {
            CallError::Exceeded { bound: Bound::Instructions, bounds, .. } => {
                assert_eq!(bounds.instructions, 2000);
            }
            other => panic!("{other:?}"),
        }
        let before = host.runner.counts().stopped;
        // They take both threads.
        let hangs = join_all(links.iter().map(|link| hang(link, &object, Duration::from_secs(2))));
        let short = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            assert_eq!(make(&honest, &object, "loop", "1").await.unwrap().output, "done");
            host.runner.counts().stopped
        };
        let (_, stopped) = futures::join!(hangs, short);
        if stopped == before {
            return;
        }
        assert!(round < 5, "a short call waited for a thread each time");
    }
}

#[tokio::test]
async fn calls_that_one_connection_sends_at_once_are_all_made() {
    let host = Daemon::start(4);
    let (many, one, object) = (host.link(), host.link(), object("object"));
    // All of them are short, and together take longer than one connection may have its thread at a stretch.
    let all = join_all((0..2000).map(|_| make(&many, &object, "loop", "2000")));
    let other = make(&one, &object, "loop", "1");
    let (all, other) = futures::join!(all, other);
    assert_eq!(other.unwrap().output, "done");
    assert!(all.into_iter().all(|called| called.unwrap().output == "done"));
}

#[tokio::test]
async fn a_class_is_replaced_under_calls_each_of_which_runs_one_version() {
    const OLD: &str = "
local word = 'old'
function both(input, output) output:append(word) output:append(nacre.call('test.other', '')) end
function other(input, output) output:append(word) end
objclass.register(both) objclass.register(other)";
    const NEW: &str = "
local word = 'new'
function both(input, output) output:append(word) output:append(nacre.call('test.other', '')) end
function other(input, output) output:append(word) end
objclass.register(both) objclass.register(other)";
    let host = Daemon::start(4);
    let (link, object) = (host.link(), object("object"));
    host.put(OLD, unhurried());
    for round in 0..20 {
        let calls = join_all((0..50).map(|_| make(&link, &object, "both", "")));
        let text = if round % 2 == 0 { NEW } else { OLD };
        let put = host.classes.put("test", text.into(), unhurried());
        let (called, put) = futures::join!(calls, put);
        put.unwrap();
        for called in called {
            let output = called.unwrap().output;
            assert!(output == "oldold" || output == "newnew", "{output:?}");
        }
        // Whoever calls after a change gets it.
        let word = if round % 2 == 0 { "newnew" } else { "oldold" };
        assert_eq!(make(&link, &object, "both", "").await.unwrap().output, word);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_waits_for_what_has_begun_and_refuses_the_rest() {
    let mut host = Daemon::start(2);
    let wall = Duration::from_secs(2);
    host.put(TEXT, Bounds { wall, instructions: u64::MAX, ..Bounds::default() });
    let (link, object) = (host.link(), object("object"));
    let calls: Vec<_> = (0..40)
        .map(|_| {
            let (link, object) = (link.clone(), object.clone());
            tokio::spawn(async move { make(&link, &object, "hang", "").await.unwrap_err() })
        })
        .collect();
    while host.runner.counts().stopped == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let begun = Instant::now();
    host.runner.stop();
    let server = host.server.take().unwrap();
    tokio::task::spawn_blocking(move || server.stop()).await.unwrap();
    // One after the other they would take forty times as long as one.
    assert!(begun.elapsed() < 30 * wall, "{:?}", begun.elapsed());
    let mut refused = 0;
    for call in calls {
        match call.await.unwrap() {
            CallError::Exceeded { .. } => {}
            CallError::Store(error) if error.kind == ErrorKind::Closed => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    // More have begun if this thread stood still before it stopped them.
    assert!(refused > 10, "{refused}");
}

/// A message as it is.
struct Raw(MessageKind, Bytes);

impl client::Request for Raw {
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
        assert!(control::put_body(outbox, self.0, id, &self.1).is_ok());
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        false
    }
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_and_the_connection_goes_on() {
    let host = Daemon::start(4);
    let link = host.link();
    let elsewhere = make(&link, &object("elsewhere/object"), "add", "").await.unwrap_err();
    assert!(elsewhere.to_string().contains("kept by another member"), "{elsewhere}");
    for (kind, body) in
        [(CALL, &b""[..]), (CALL, b"\xff\xff\xff\xff\xff"), (MessageKind::new(CALL.service, 77), b"")]
    {
        let mut raw = client::Call::start(link.clone(), Raw(kind, Bytes::from_static(body)));
        let frame = std::future::poll_fn(|context| raw.poll_frame(context.waker())).await.unwrap();
        let error = control::get_failure(&frame).unwrap();
        let wanted = if kind == CALL { ErrorKind::Invalid } else { ErrorKind::Unsupported };
        assert_eq!(error.kind, wanted, "{error}");
    }
    assert_eq!(make(&link, &object("object"), "add", "").await.unwrap().output, "1");
}

#[tokio::test]
async fn a_call_whose_caller_is_gone_gives_its_thread_back() {
    let host = Daemon::start(2);
    let wall = Duration::from_secs(4);
    host.put(TEXT, Bounds { instructions: u64::MAX, ..unhurried() });
    let (link, object) = (host.link(), object("object"));
    for _ in 0..20 {
        // It is left, unless this thread stands still for so long that it ends before.
        let _ = tokio::time::timeout(Duration::from_millis(10), hang(&link, &object, wall)).await;
    }
    // One loop may run to its bound; those that had not begun never do.
    let begun = Instant::now();
    assert_eq!(make(&link, &object, "add", "").await.unwrap().output, "1");
    assert!(begun.elapsed() < 8 * wall, "{:?}", begun.elapsed());
}

#[test]
fn messages_are_decoded_as_they_were_encoded() {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    let mut random = StdRng::seed_from_u64(5);
    for _ in 0..200_000 {
        let bytes: Vec<u8> = (0..random.random_range(0..40))
            .map(|_| if random.random_bool(0.7) { random.random_range(0..6) } else { random.random() })
            .collect();
        nacre_class::network::fuzz(&bytes);
    }
}
