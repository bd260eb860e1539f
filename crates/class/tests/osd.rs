//! The client's part of calls in OSDs: what it sends, and what it makes of the answers. The OSDs are played by a list.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::executor::block_on;
use futures::future::BoxFuture;
use nacre_class::osd::{Osds, Script, ScriptRun};
use nacre_class::{Bounds, CallError, Called, ClassError, Classes, Request, errno};
use nacre_object::testkit::MemoryStore;
use nacre_object::{ErrorKind, ObjectId, StoreError};

const COUNTER: &str = include_str!("../../../classes/counter.lua");

/// OSDs that give answers in turn, and note what they were given.
#[derive(Clone, Default)]
struct Played {
    answers: Arc<Mutex<VecDeque<Result<ScriptRun, StoreError>>>>,
    loaded: Arc<Mutex<Vec<String>>>,
    sent: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Osds for Played {
    fn load(&self, before: &[u8], body: &str) -> Arc<dyn Script> {
        assert!(body.contains("local function method()"));
        self.loaded.lock().unwrap().push(String::from_utf8_lossy(before).into_owned());
        Arc::new(self.clone())
    }
}

impl Script for Played {
    fn run<'a>(
        &'a self,
        _object: &'a ObjectId,
        request: &'a [u8],
    ) -> BoxFuture<'a, Result<ScriptRun, StoreError>> {
        self.sent.lock().unwrap().push(request.to_vec());
        let answer = self.answers.lock().unwrap().pop_front().expect("nothing more is asked");
        Box::pin(async move { answer })
    }
}

/// An answer that changes nothing.
fn said(text: Vec<u8>) -> Result<ScriptRun, StoreError> {
    Ok(ScriptRun { version: None, output: Some(text.into()) })
}

/// The answer to a change.
fn changed(version: u64, output: Option<&'static [u8]>) -> Result<ScriptRun, StoreError> {
    Ok(ScriptRun { version: Some(version), output: output.map(Bytes::from_static) })
}

/// The report of a method that has ended (32), or whose change is still to be made (34).
fn report(status: u8, version: u64, output: &str) -> Vec<u8> {
    let mut text = vec![status];
    text.extend(version.to_le_bytes());
    text.push(1);
    text.extend(0_i32.to_le_bytes());
    text.extend(3_u64.to_le_bytes());
    text.extend((output.len() as u32).to_le_bytes());
    text.extend(output.bytes());
    text.extend([0, 0]);
    text
}

/// Puts the counter, and calls it at OSDs that give these answers.
fn call(answers: Vec<Result<ScriptRun, StoreError>>) -> (Result<Called, CallError>, Played) {
    let played = Played { answers: Arc::new(Mutex::new(answers.into())), ..Played::default() };
    let classes = Classes::new(Arc::new(MemoryStore::new())).run_in(Box::new(played.clone()));
    for name in ["counter", "other"] {
        block_on(classes.put(name, COUNTER.into(), Bounds::default())).unwrap();
    }
    let object = ObjectId::try_from("o").unwrap();
    let called = block_on(classes.call(&Request::new(&object, "counter", "add").input("5")));
    assert!(played.answers.lock().unwrap().is_empty(), "all answers are asked for");
    (called, played)
}

/// Returns the version that a request expects.
fn expected(request: &[u8]) -> u64 {
    u64::from_le_bytes(request[..8].try_into().unwrap())
}

#[test]
fn a_short_answer_takes_one_call() {
    let (called, played) = call(vec![changed(7, Some(b"\x005"))]);
    let called = called.unwrap();
    assert_eq!((&called.output[..], called.result, called.version), (&b"5"[..], 0, Some(7)));
    assert_eq!((called.wrote, called.class_version, called.attempts), (true, 1, 1));
    let loaded = played.loaded.lock().unwrap();
    assert_eq!(loaded.len(), 1);
    assert!(
        loaded[0]
            .starts_with("local nacre_classes={[\"counter\"]={1,function(_ENV,nacre_count,nacre_join,...)")
    );
    let (called, _) = call(vec![changed(7, Some(b"\x01\x09\0\0\0yes"))]);
    assert_eq!(called.map(|called| (called.result, called.output)), Ok((9, "yes".into())));
    let (called, _) = call(vec![said(report(32, 4, "only read"))]);
    let called = called.unwrap();
    assert_eq!((&called.output[..], called.wrote, called.version), (&b"only read"[..], false, Some(4)));
}

#[test]
fn a_long_answer_comes_before_its_change_and_counts_for_that_version_alone() {
    let long = "a text of more than 14 bytes";
    let (called, played) = call(vec![said(report(34, 6, long)), changed(7, Some(b""))]);
    let called = called.unwrap();
    assert_eq!((called.output, called.version, called.attempts), (long.into(), Some(7), 2));
    let sent: Vec<u64> = played.sent.lock().unwrap().iter().map(|request| expected(request)).collect();
    assert_eq!(sent, [u64::MAX, 6]);
    // Another client was faster: what the method says then is what counts.
    let answers =
        vec![said(report(34, 6, long)), said(report(34, 8, "something else")), changed(9, Some(b""))];
    let called = call(answers).0.unwrap();
    assert_eq!((&called.output[..], called.version, called.attempts), (&b"something else"[..], Some(9), 3));
    let called = call(vec![said(report(34, 6, long)), changed(9, Some(b"\0short"))]).0.unwrap();
    assert_eq!((&called.output[..], called.version), (&b"short"[..], Some(9)));
}

#[test]
fn a_change_whose_answer_got_lost_is_not_said_to_have_failed() {
    let Err(CallError::Store(error)) = call(vec![changed(7, None)]).0 else { panic!("it is not known") };
    assert_eq!(error.kind, ErrorKind::Unknown);
    assert!(error.message.contains("at version 7"), "{error}");
    // An OSD that got the call again says so: it was made at a later version than what had been prepared.
    let answers = vec![said(report(34, 6, "a text of more than 14 bytes")), changed(9, Some(b"\x02"))];
    let Err(CallError::Store(error)) = call(answers).0 else { panic!("it is not known") };
    assert_eq!(error.kind, ErrorKind::Unknown);
}

#[test]
fn classes_that_a_method_calls_are_sent_once_it_asks_for_them() {
    let wanted = |name: &str| said([&[37][..], name.as_bytes()].concat());
    let answers = vec![wanted("other"), wanted("a]b"), changed(2, Some(b"\x001"))];
    let (called, played) = call(answers);
    assert_eq!(called.unwrap().attempts, 3);
    let loaded = played.loaded.lock().unwrap();
    assert_eq!(loaded.len(), 3);
    assert!(!loaded[0].contains("[\"other\"]") && loaded[1].contains("[\"other\"]={1,function"));
    // A name that no class can have ends no literal.
    assert!(loaded[2].contains("[\"a\\093b\"]=\"there\\032is\\032no\\032class"), "{}", loaded[2]);
}

#[test]
fn an_object_that_wants_a_later_version_makes_the_client_read_the_classes_again() {
    let stale = |least: u64| said([&[36][..], &least.to_le_bytes(), b"counter"].concat());
    let (called, _) = call(vec![stale(1), changed(2, Some(b"\x001"))]);
    assert_eq!(called.unwrap().attempts, 2);
    let error = call(vec![stale(9)]).0.unwrap_err();
    assert_eq!(error.errno(), errno::ESTALE);
    assert!(error.to_string().contains("version 9 of class \"counter\""), "{error}");
}

#[test]
fn methods_run_here_where_osds_run_none() {
    let denied = StoreError::new(ErrorKind::Unsupported, "this user may not call the class");
    let (called, _) = call(vec![Err(denied)]);
    assert_eq!(called.unwrap().output, "5");
    let error = StoreError::new(ErrorKind::Unavailable, "no answer");
    assert_eq!(call(vec![Err(error.clone())]).0, Err(CallError::Store(error)));
    let (called, _) = call(vec![said(vec![99])]);
    assert!(matches!(called, Err(CallError::Store(error)) if error.kind == ErrorKind::Io));
}

#[test]
fn failures_and_bounds_arrive() {
    let mut failed = vec![33, 34, 0, 0, 0];
    failed.extend([0; 18]);
    let error = call(vec![said(failed)]).0.unwrap_err();
    assert_eq!(error.errno(), errno::ERANGE);
    assert!(error.to_string().contains("result out of range"), "{error}");
    let error = call(vec![said(vec![35, 1])]).0.unwrap_err();
    assert!(error.to_string().contains("10000000 instructions"), "{error}");
    let fenced = call(vec![said([&[38][..], &3_u64.to_le_bytes()].concat())]).0;
    assert!(matches!(fenced, Err(CallError::Fenced { fence: 3, .. })));
}

#[test]
fn a_class_may_be_longer_with_its_counters_than_a_class_may_be() {
    let classes = Classes::new(Arc::new(MemoryStore::new())).run_in(Box::new(Played::default()));
    let body = "a=a..a ".repeat(36_000);
    let text = format!("function m() end objclass.register(m) function n(a) {body}end");
    let bounds = Bounds { wall: Duration::from_secs(60), ..Bounds::default() };
    assert_eq!(block_on(classes.put("c", text.into(), bounds)).unwrap(), 1);
}

#[test]
fn a_class_that_osds_could_not_run_is_refused_with_the_reason() {
    let classes = Classes::new(Arc::new(MemoryStore::new())).run_in(Box::new(Played::default()));
    let text = "function m()\n  local nacre_join = 1\nend\nobjclass.register(m)";
    let error = block_on(classes.put("c", text.into(), Bounds::default())).unwrap_err();
    assert!(matches!(error, ClassError::Refused { .. }));
    let said = error.to_string();
    assert!(said.contains("OSDs cannot run it: line 2") && said.contains("nacre_join"), "{said}");
    assert!(block_on(classes.history("c")).is_err(), "nothing was installed");
}
