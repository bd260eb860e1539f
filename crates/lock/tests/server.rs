//! A lock server whose clients, clock and store are this test.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nacre_lock::message::{Call, FileName, LockSpec, Refusal, Reply, SessionId, Token};
use nacre_lock::server::{Backlog, CallId, Limits, Output, Record, Server, Settings};
use nacre_lock::table::{Acquired, Mode, TableError};
use nacre_lock::{Datatype, OFFSET_MAX, Pattern, Region, Stripe};

const A: SessionId = SessionId(0xa);
const B: SessionId = SessionId(0xb);
const C: SessionId = SessionId(0xc);
const D: SessionId = SessionId(0xd);

/// A server with the time, and the calls counted.
struct Trial {
    server: Server,
    now: Duration,
    calls: CallId,
}

impl Trial {
    fn new() -> Self {
        Self::with(Server::new(Settings::default()))
    }

    fn with(server: Server) -> Self {
        Self { server, now: Duration::from_secs(100), calls: 0 }
    }

    fn call(&mut self, session: SessionId, call: Call) -> Vec<Output> {
        self.calls += 1;
        let mut out = Vec::new();
        self.server.handle(self.now, session, self.calls, call, &mut out);
        out
    }

    fn open(&mut self, sessions: &[SessionId]) {
        for session in sessions {
            assert!(matches!(self.call(*session, Call::Open)[..], [Output::Reply { .. }]));
        }
    }

    fn pass(&mut self, seconds: u64) -> Vec<Output> {
        self.now += Duration::from_secs(seconds);
        let mut out = Vec::new();
        self.server.tick(self.now, &mut out);
        out
    }

    fn fenced(&mut self, session: SessionId, file: &str) -> Vec<Output> {
        let mut out = Vec::new();
        self.server.fenced(session, &file.into(), &mut out);
        out
    }
}

fn spec(file: &str, mode: Mode, from: u64, to: u64) -> LockSpec {
    let pattern = Pattern::contiguous(from, to - from).unwrap();
    LockSpec { file: file.into(), operation: from, mode, pattern }
}

fn lock(request: u64, file: &str, mode: Mode, from: u64, to: u64) -> Call {
    Call::Acquire { request, spec: Some(spec(file, mode, from, to)), until: Some(OFFSET_MAX) }
}

/// The replies among outputs, by their calls.
fn replies(outputs: &[Output]) -> BTreeMap<CallId, Reply> {
    let replies = outputs.iter().filter_map(|output| match output {
        Output::Reply { call, reply, .. } => Some((*call, reply.clone())),
        _ => None,
    });
    replies.collect()
}

fn progress(reply: &Reply) -> Acquired {
    match reply {
        Reply::Acquired { progress, .. } => *progress,
        other => panic!("{other:?}"),
    }
}

fn uses(session: SessionId, file: &str) -> Output {
    Output::Record(Record::Uses { session, file: file.into() })
}

fn raised(session: SessionId, file: &str) -> Output {
    Output::Raise { session, file: file.into() }
}

#[test]
fn a_grant_comes_after_the_record_of_its_file_and_tokens_grow() {
    let mut trial = Trial::new();
    trial.open(&[A]);
    let out = trial.call(A, lock(1, "f", Mode::Exclusive, 0, 10));
    assert_eq!(out[0], uses(A, "f"));
    let Output::Reply { reply: Reply::Acquired { progress, token }, .. } = &out[1] else { panic!() };
    assert_eq!(*progress, Acquired { last: Some(9), next: None });
    let out = trial.call(A, lock(2, "f", Mode::Exclusive, 10, 20));
    let [Output::Reply { reply: Reply::Acquired { token: second, .. }, .. }] = &out[..] else { panic!() };
    assert!(second > token && *token > Token { epoch: 1, number: 0 });
}

#[test]
fn exclusive_bytes_of_a_lapsed_session_are_granted_only_after_it_is_fenced() {
    let mut trial = Trial::new();
    trial.open(&[A, B]);
    trial.call(A, lock(1, "f", Mode::Exclusive, 0, 10));
    trial.call(A, lock(2, "g", Mode::Shared, 0, 10));
    trial.pass(6);
    trial.call(B, Call::Renew);
    assert_eq!(trial.call(B, lock(1, "f", Mode::Exclusive, 5, 6)), [uses(B, "f")]);
    let waits = trial.calls;
    assert_eq!(trial.server.next_deadline(), Some(Duration::from_secs(110)));
    assert_eq!(trial.pass(4), [raised(A, "f")]);
    // Shared bytes are free at once.
    assert_eq!(replies(&trial.call(B, lock(2, "g", Mode::Exclusive, 0, 1))).len(), 1);
    assert_eq!(
        replies(&trial.call(A, Call::Renew)).into_values().next(),
        Some(Reply::Refused(Refusal::Lapsed))
    );
    let out = trial.fenced(A, "f");
    assert_eq!(progress(&replies(&out)[&waits]), Acquired { last: Some(5), next: None });
    assert_eq!(
        out[0],
        Output::Record(Record::Left { session: A, file: "f".into() }),
        "before others are told"
    );
    assert_eq!(
        replies(&trial.call(A, Call::Renew)).into_values().next(),
        Some(Reply::Refused(Refusal::UnknownSession { epoch: 1 }))
    );
}

#[test]
fn a_session_that_renews_keeps_its_locks_and_a_broken_one_does_not() {
    let mut trial = Trial::new();
    trial.open(&[A, B]);
    trial.call(A, lock(1, "f", Mode::Exclusive, 0, 10));
    for _ in 0..5 {
        trial.pass(9);
        trial.open(&[A, B]);
    }
    assert_eq!(trial.call(B, lock(1, "f", Mode::Shared, 0, 1)), []);
    let mut out = Vec::new();
    assert!(trial.server.break_session(A, &mut out));
    assert_eq!(out, [raised(A, "f")]);
    assert!(!trial.server.break_session(A, &mut out));
    assert_eq!(replies(&trial.fenced(A, "f")).len(), 1);
}

#[test]
fn a_broken_session_may_rely_on_shared_locks_until_its_lease_is_over() {
    let mut trial = Trial::new();
    trial.open(&[A, B]);
    trial.call(A, lock(1, "f", Mode::Shared, 0, 10));
    trial.call(A, lock(2, "f", Mode::Exclusive, 10, 20));
    trial.call(B, lock(1, "f", Mode::Exclusive, 0, 1));
    let waits = trial.calls;
    trial.pass(5);
    trial.open(&[B]);
    let mut out = Vec::new();
    assert!(trial.server.break_session(A, &mut out));
    assert_eq!(out, [raised(A, "f")]);
    assert_eq!(trial.fenced(A, "f"), [Output::Record(Record::Left { session: A, file: "f".into() })]);
    // The client, which cannot renew its lease, knows at its end.
    assert_eq!(trial.pass(4), []);
    let out = trial.pass(1);
    assert_eq!(progress(&replies(&out)[&waits]), Acquired { last: Some(0), next: None });
    assert!(!trial.server.knows(A));
}

#[test]
fn the_wait_of_a_lapsed_session_ends_and_those_behind_it_are_served() {
    let mut trial = Trial::new();
    trial.open(&[A, B, C]);
    trial.call(A, lock(1, "f", Mode::Shared, 0, 10));
    trial.call(B, lock(1, "f", Mode::Exclusive, 0, 10));
    let waits = trial.calls;
    trial.call(C, lock(1, "f", Mode::Shared, 0, 10));
    trial.pass(9);
    trial.open(&[A, C]);
    let replies = replies(&trial.pass(1));
    assert_eq!(replies[&waits], Reply::Refused(Refusal::Lapsed));
    assert_eq!(progress(&replies[&(waits + 1)]), Acquired { last: Some(9), next: None });
}

#[test]
fn a_call_that_comes_again_keeps_its_place_and_is_answered_once() {
    let mut trial = Trial::new();
    trial.open(&[A, B, C]);
    trial.call(A, lock(1, "f", Mode::Exclusive, 0, 1));
    trial.call(B, lock(1, "f", Mode::Exclusive, 0, 1));
    trial.call(C, lock(1, "f", Mode::Exclusive, 0, 1));
    assert_eq!(trial.call(B, lock(1, "f", Mode::Exclusive, 0, 1)), [], "it is on record since it waits");
    let again = trial.calls;
    let out = trial.call(A, Call::Release { request: 1 });
    assert_eq!(replies(&out).into_keys().collect::<Vec<_>>(), [again, again + 1]);
    assert_eq!(replies(&trial.call(A, Call::Release { request: 1 })).into_values().next(), Some(Reply::Done));
}

#[test]
fn a_server_has_the_bytes_of_its_stripe() {
    let settings = Settings { stripe: Stripe { bytes: 100, servers: 4, server: 1 }, ..Settings::default() };
    let mut trial = Trial::with(Server::new(settings));
    trial.open(&[A]);
    let out = trial.call(A, lock(1, "f", Mode::Exclusive, 0, 1000));
    assert_eq!(progress(replies(&out).values().next().unwrap()), Acquired { last: Some(999), next: None });
    let listed = trial.server.list(None, 10);
    assert_eq!((listed.len(), listed[0].bounds), (1, (100, 1000)));
}

fn restarted(records: &[(SessionId, &[&str])]) -> Trial {
    let settings = Settings { epoch: 2, ..Settings::default() };
    let records: BTreeMap<SessionId, BTreeSet<FileName>> = records
        .iter()
        .map(|(session, files)| (*session, files.iter().map(|file| FileName::from(*file)).collect()))
        .collect();
    Trial::with(Server::restarted(Duration::from_secs(100), settings, records))
}

#[test]
fn after_a_restart_asserted_locks_are_kept_and_lost_sessions_are_fenced() {
    let mut trial = restarted(&[(A, &["f"]), (B, &["f", "g"])]);
    assert_eq!(
        replies(&trial.call(A, Call::Renew)).into_values().next(),
        Some(Reply::Refused(Refusal::UnknownSession { epoch: 2 }))
    );
    trial.open(&[A, C, D]);
    let assert = Call::Assert { request: 1, spec: spec("f", Mode::Exclusive, 0, 10), below: 5 };
    let out = trial.call(A, assert.clone());
    assert_eq!(progress(replies(&out).values().next().unwrap()), Acquired { last: Some(4), next: Some(5) });
    // Another that asserts the same bytes is refused.
    let other = Call::Assert { request: 1, spec: spec("f", Mode::Shared, 4, 6), below: 6 };
    assert_eq!(
        replies(&trial.call(D, other)).into_values().next(),
        Some(Reply::Refused(Refusal::Table(TableError::Held(4))))
    );
    trial.call(A, Call::Asserted);
    // New locks wait, whether they would wait in a table or not; what does not wait is told that there is nothing to be had.
    let tried = Call::Acquire { request: 2, spec: Some(spec("f", Mode::Shared, 6, 9)), until: None };
    let out = trial.call(C, tried.clone());
    assert_eq!(progress(replies(&out).values().next().unwrap()), Acquired { last: None, next: Some(6) });
    assert_eq!(trial.call(C, lock(4, "f", Mode::Shared, 6, 9)), []);
    let first = trial.calls;
    assert_eq!(trial.call(C, lock(3, "h", Mode::Exclusive, 0, 9)), []);
    trial.pass(9);
    trial.open(&[A, C]);
    let out = trial.pass(3);
    // The file that no lost session may write is open; the other waits for the fence.
    assert_eq!(replies(&out).into_keys().collect::<Vec<_>>(), [first + 1]);
    assert!(out.contains(&raised(B, "f")) && out.contains(&raised(B, "g")));
    assert_eq!(
        replies(&trial.call(B, Call::Open)).into_values().next(),
        Some(Reply::Refused(Refusal::Lapsed))
    );
    let out = trial.fenced(B, "f");
    assert_eq!(progress(&replies(&out)[&first]), Acquired { last: Some(8), next: None });
    let out = trial.call(C, tried);
    assert_eq!(progress(replies(&out).values().next().unwrap()), Acquired { last: Some(8), next: None });
    assert_eq!(trial.fenced(B, "g"), [Output::Record(Record::Gone { session: B })]);
    assert_eq!(
        replies(&trial.call(A, assert)).into_values().next(),
        Some(Reply::Refused(Refusal::GraceOver))
    );
}

#[test]
fn a_session_that_came_back_but_did_not_assert_everything_is_fenced() {
    let mut trial = restarted(&[(A, &["f"])]);
    trial.open(&[A, B]);
    trial.pass(9);
    trial.open(&[A, B]);
    trial.call(B, lock(1, "f", Mode::Exclusive, 0, 1));
    let waits = trial.calls;
    let out = trial.pass(3);
    assert_eq!(out, [raised(A, "f")]);
    let out = trial.fenced(A, "f");
    assert_eq!(
        out[0],
        Output::Record(Record::Left { session: A, file: "f".into() }),
        "before others are told"
    );
    assert!(replies(&out).contains_key(&waits) && !trial.server.knows(A));
}

#[test]
fn a_session_broken_before_a_restart_cannot_assert_its_locks() {
    // It was fenced, the other one had its bytes, and then the server died: it knows nothing of that yet.
    let mut trial = restarted(&[(B, &["f"])]);
    trial.open(&[A, B]);
    let assert = |below| Call::Assert { request: 1, spec: spec("f", Mode::Exclusive, 0, 10), below };
    let answer = |trial: &mut Trial, session, call| replies(&trial.call(session, call)).into_values().next();
    assert_eq!(answer(&mut trial, A, assert(5)), Some(Reply::Refused(Refusal::Lapsed)));
    assert_eq!(
        answer(&mut trial, A, Call::Asserted),
        Some(Reply::Refused(Refusal::UnknownSession { epoch: 2 })),
        "its session has ended"
    );
    let taken = answer(&mut trial, B, assert(OFFSET_MAX));
    assert_eq!(progress(&taken.unwrap()), Acquired { last: Some(9), next: None });
    assert_eq!(answer(&mut trial, B, Call::Asserted), Some(Reply::Done));
    // Whose assertion is refused is fenced wherever it may have written, even if it says that it has asserted all.
    let mut trial = restarted(&[(A, &["f", "g"]), (B, &["f"])]);
    trial.open(&[A, B]);
    trial.call(A, assert(5));
    let out = trial.call(B, assert(5));
    assert_eq!(replies(&out).into_values().next(), Some(Reply::Refused(Refusal::Table(TableError::Held(0)))));
    assert!(out.contains(&raised(B, "f")));
    assert_eq!(answer(&mut trial, B, Call::Asserted), Some(Reply::Refused(Refusal::Lapsed)));
}

#[test]
fn cycles_of_sessions_are_reported_also_when_a_waiter_moves_on() {
    let mut trial = Trial::new();
    trial.open(&[A, B, C]);
    trial.call(A, lock(1, "f", Mode::Exclusive, 10, 11));
    trial.call(B, lock(1, "g", Mode::Exclusive, 20, 21));
    trial.call(C, lock(1, "f", Mode::Exclusive, 5, 6));
    assert_eq!(trial.call(A, lock(2, "g", Mode::Exclusive, 20, 21)), [uses(A, "g")]);
    // It waits for the third session at first, and nothing is wrong.
    assert_eq!(trial.call(B, lock(2, "f", Mode::Exclusive, 5, 11)), [uses(B, "f")]);
    let out = trial.call(C, Call::Release { request: 1 });
    let cycle: Vec<_> = out
        .iter()
        .filter_map(|output| match output {
            Output::Cycle { sessions } => Some(sessions.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(cycle, [[B, A]]);
    let waits = trial.server.waits(100).into_iter().map(|wait| (wait.session, wait.holder));
    assert_eq!(nacre_lock::cycle::cycles(waits).len(), 1);
    assert_eq!(trial.server.waits(1).len(), 1);
    // A reader that reads again behind a writer waits for itself.
    let mut trial = Trial::new();
    trial.open(&[A, B]);
    trial.call(A, lock(1, "f", Mode::Shared, 0, 10));
    assert_eq!(trial.call(B, lock(1, "f", Mode::Exclusive, 1, 2)), [uses(B, "f")]);
    assert_eq!(trial.call(A, lock(2, "f", Mode::Shared, 1, 2)), [Output::Cycle { sessions: vec![A] }]);
}

#[test]
fn limits_refuse_what_would_take_too_much_memory_and_leave_nothing() {
    let limits = Limits {
        sessions_max: 2,
        files_max: 2,
        name_bytes_max: 8,
        requests_max: 5,
        requests_per_session_max: 3,
        ..Limits::default()
    };
    let mut trial = Trial::with(Server::new(Settings { limits, ..Settings::default() }));
    trial.open(&[A, B]);
    let refused = |out: Vec<Output>| match replies(&out).into_values().next() {
        Some(Reply::Refused(Refusal::Full(what))) => what,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(trial.call(C, Call::Open)), "sessions");
    assert_eq!(
        refused(trial.call(A, lock(1, "too long a name", Mode::Shared, 0, 1))),
        "bytes in a file's name"
    );
    for request in 1..=3 {
        trial.call(A, lock(request, if request == 1 { "f" } else { "g" }, Mode::Shared, 0, 1));
    }
    assert_eq!(refused(trial.call(A, lock(4, "f", Mode::Shared, 0, 1))), "lock requests of one session");
    assert_eq!(refused(trial.call(B, lock(1, "h", Mode::Shared, 0, 1))), "files with locks");
    trial.call(B, lock(1, "f", Mode::Shared, 0, 1));
    trial.call(B, lock(2, "f", Mode::Shared, 0, 1));
    assert_eq!(refused(trial.call(B, lock(3, "f", Mode::Shared, 0, 1))), "lock requests");
    for session in [A, B] {
        trial.call(session, Call::Close);
    }
    assert_eq!((trial.server.request_counts(), trial.server.sessions()), ((0, 0), 0));
}

#[test]
fn a_pattern_too_large_for_a_session_is_refused() {
    let limits = Limits { pattern_bytes_per_session_max: 10_000, ..Limits::default() };
    let mut trial = Trial::with(Server::new(Settings { limits, ..Settings::default() }));
    trial.open(&[A]);
    let mut regions = Vec::new();
    let (mut at, mut seed) = (0, 1_u64);
    for _ in 0..4096 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        at += 2 + (seed >> 60);
        regions.push(nacre_lock::Region::new(at, 1));
        at += 1;
    }
    let mut call = lock(1, "f", Mode::Exclusive, 0, 1);
    if let Call::Acquire { spec: Some(spec), .. } = &mut call {
        spec.pattern = Pattern::list(&regions).unwrap();
    }
    assert_eq!(
        replies(&trial.call(A, call.clone())).into_values().next(),
        Some(Reply::Refused(Refusal::Full("memory for patterns of one session")))
    );
    // A regular one of as many regions is small, but that is the patterns' matter.
    if let Call::Acquire { spec: Some(spec), .. } = &mut call {
        spec.pattern = Pattern::new(&Datatype::byte().vector(100, 1, 64).at(0)).unwrap();
    }
    assert_eq!(replies(&trial.call(A, call)).len(), 1);
}

/// The calls among outputs that are answered at once, and the backlog's part in that.
fn replied_calls(backlog: &mut Backlog, out: Vec<Output>) -> Vec<CallId> {
    let ready = out.into_iter().filter_map(|output| backlog.pass(output));
    replies(&ready.collect::<Vec<_>>()).into_keys().collect()
}

#[test]
fn only_what_relies_on_a_record_waits_for_it() {
    let mut trial = Trial::new();
    let mut backlog = Backlog::default();
    let call = |trial: &mut Trial, backlog: &mut Backlog, session, message| {
        let out = trial.call(session, message);
        replied_calls(backlog, out).contains(&trial.calls)
    };
    let calls = |ready: Vec<Output>| replies(&ready).into_keys().collect::<Vec<_>>();
    // Nobody has a session before the epoch is on record.
    assert!(!call(&mut trial, &mut backlog, A, Call::Open));
    assert!(backlog.needs_epoch() && backlog.take().is_empty());
    assert_eq!(backlog.written(), []);
    assert_eq!(calls(backlog.begin()), [1]);
    for session in [A, B, C] {
        assert!(call(&mut trial, &mut backlog, session, Call::Open));
    }
    assert!(call(&mut trial, &mut backlog, B, lock(1, "f", Mode::Shared, 50, 60)));
    // A file that is new to the session, while records cannot be written.
    assert!(!call(&mut trial, &mut backlog, A, lock(1, "f", Mode::Exclusive, 0, 10)));
    let first = trial.calls;
    assert_eq!(backlog.take(), [Record::Uses { session: A, file: "f".into() }]);
    assert!(!call(&mut trial, &mut backlog, A, lock(2, "f", Mode::Exclusive, 10, 20)), "the same record");
    assert!(
        !call(&mut trial, &mut backlog, A, Call::ReleaseFrom { request: 2, offset: 15 }),
        "it holds some"
    );
    assert!(!call(&mut trial, &mut backlog, C, lock(1, "g", Mode::Exclusive, 0, 1)), "a later record");
    for session in [A, B, C] {
        assert!(call(&mut trial, &mut backlog, session, Call::Renew));
    }
    assert!(call(&mut trial, &mut backlog, A, lock(3, "f", Mode::Shared, 50, 60)), "on no record");
    assert!(call(&mut trial, &mut backlog, B, lock(2, "f", Mode::Shared, 60, 70)));
    assert!(call(&mut trial, &mut backlog, A, Call::Release { request: 3 }));
    let tried = Call::Acquire { request: 3, spec: Some(spec("f", Mode::Exclusive, 5, 6)), until: None };
    assert!(call(&mut trial, &mut backlog, B, tried), "it has nothing");
    assert!(call(&mut trial, &mut backlog, B, Call::Close));
    assert_eq!(calls(backlog.written()), [first, first + 1, first + 2]);
    assert!(call(&mut trial, &mut backlog, A, lock(4, "f", Mode::Exclusive, 30, 40)));
    assert!(!call(&mut trial, &mut backlog, C, lock(2, "g", Mode::Exclusive, 5, 6)));
    // Bytes of a session that was struck off are told of when that is durable.
    let mut out = Vec::new();
    assert!(trial.server.break_session(A, &mut out));
    assert_eq!(backlog.pass(out.remove(0)), Some(raised(A, "f")), "a fence waits for no record");
    let fenced = trial.fenced(A, "f");
    assert_eq!(replied_calls(&mut backlog, fenced), [0; 0]);
    assert!(!call(&mut trial, &mut backlog, C, lock(3, "f", Mode::Shared, 0, 10)));
    assert!(call(&mut trial, &mut backlog, C, lock(4, "h", Mode::Shared, 0, 10)), "another file");
    assert_eq!(backlog.records(), 2);
    backlog.take();
    assert_eq!(backlog.written().len(), 3);
    assert_eq!((backlog.records(), backlog.has_work()), (0, false));
}

#[test]
fn a_session_that_the_store_shuts_out_of_a_file_is_lost_and_not_granted_what_it_cannot_write() {
    let mut trial = Trial::new();
    trial.open(&[A, B, C]);
    trial.call(A, lock(1, "f", Mode::Exclusive, 0, 10));
    trial.call(B, lock(1, "g", Mode::Exclusive, 0, 10));
    let mut out = Vec::new();
    trial.server.set_floor(&"f".into(), C, &mut out);
    let floor = Output::Record(Record::Floor { file: "f".into(), floor: C });
    assert_eq!(out, [raised(A, "f"), floor], "it could write the file, and the other one could not");
    let answer = |trial: &mut Trial, session, call| replies(&trial.call(session, call)).into_values().next();
    assert_eq!(answer(&mut trial, A, Call::Renew), Some(Reply::Refused(Refusal::Lapsed)));
    let reads = answer(&mut trial, B, lock(2, "f", Mode::Shared, 20, 30)).unwrap();
    assert_eq!(progress(&reads).next, None, "a reader writes nothing");
    let refused = answer(&mut trial, B, lock(3, "f", Mode::Exclusive, 31, 40));
    assert_eq!(refused, Some(Reply::Refused(Refusal::Lapsed)));
    assert_eq!(
        answer(&mut trial, B, Call::Renew),
        Some(Reply::Refused(Refusal::Lapsed)),
        "its session is lost"
    );
    let granted = answer(&mut trial, C, lock(1, "f", Mode::Exclusive, 40, 50)).unwrap();
    assert_eq!(progress(&granted).next, None);
}

#[test]
fn a_cycle_is_reported_once_however_many_requests_wait_in_it() {
    let mut trial = Trial::new();
    trial.open(&[A, B]);
    trial.call(A, lock(1, "f", Mode::Exclusive, 0, 1));
    trial.call(B, lock(1, "f", Mode::Exclusive, 1, 2));
    let mut reports = 0;
    for request in 10..30 {
        let mut ask = |trial: &mut Trial, session, byte| {
            let spec = LockSpec { operation: request, ..spec("f", Mode::Exclusive, byte, byte + 1) };
            let out =
                trial.call(session, Call::Acquire { request, spec: Some(spec), until: Some(OFFSET_MAX) });
            reports += out.iter().filter(|output| matches!(output, Output::Cycle { .. })).count();
        };
        ask(&mut trial, B, 0);
        ask(&mut trial, A, 1);
    }
    // Once for each of the two, from its own point of view.
    assert_eq!(reports, 2);
    // When its waits are over and it waits again, it is told again.
    for request in 10..30 {
        trial.call(A, Call::Release { request });
    }
    let out = trial.call(A, lock(40, "f", Mode::Exclusive, 1, 2));
    assert!(out.contains(&Output::Cycle { sessions: vec![A, B] }), "{out:?}");
}

/// Two sessions that wait for the first one, in a file each, and are to wait for the third there next: it has so many locks that
/// the steps of one call suffice for one search among them and not for two, and it waits for both.
fn two_cycles_to_come() -> Trial {
    let mut trial = Trial::new();
    trial.open(&[A, B, C, D]);
    for (session, request, file) in [(B, 1, "f"), (D, 2, "g")] {
        trial.call(A, lock(request, file, Mode::Exclusive, 0, 1));
        for number in 0..2100 {
            trial.call(C, lock(request * 10_000 + number, file, Mode::Shared, 1, 2));
        }
        trial.call(session, lock(1, "h", Mode::Exclusive, request, request + 1));
        trial.call(C, lock(request, "h", Mode::Exclusive, request, request + 1));
        trial.call(session, lock(2, file, Mode::Exclusive, 0, 2));
    }
    trial
}

#[test]
fn the_searches_for_cycles_that_one_call_leads_to_share_their_steps() {
    let cycles = |out: Vec<Output>| -> Vec<Vec<SessionId>> {
        let cycles = out.into_iter().filter_map(|output| match output {
            Output::Cycle { sessions } => Some(sessions),
            _ => None,
        });
        cycles.collect()
    };
    let mut trial = two_cycles_to_come();
    assert_eq!(cycles(trial.call(A, Call::Release { request: 1 })), [[B, C]]);
    assert_eq!(cycles(trial.call(A, Call::Release { request: 2 })), [[D, C]]);
    // A session that ends releases all of its locks in one call.
    let mut trial = two_cycles_to_come();
    assert_eq!(cycles(trial.call(A, Call::Close)), [[B, C]]);
}

#[test]
fn a_session_with_locks_in_many_files_is_released_file_by_file() {
    let mut trial = Trial::new();
    trial.open(&[A]);
    let name = |file: u64| format!("file {file}");
    for file in 0..30_000 {
        trial.call(A, lock(file, &name(file), Mode::Exclusive, 0, 1));
    }
    let raised = trial.pass(11);
    assert_eq!(raised.len(), 30_000);
    for file in 0..30_000 {
        trial.fenced(A, &name(file));
        if file % 1000 == 999 {
            assert_eq!(trial.server.request_counts(), (29_999 - file as usize, 0));
        }
    }
    assert!(!trial.server.knows(A));
}

#[test]
fn a_deferred_request_is_not_granted_below_the_floor_of_a_file() {
    let mut trial = restarted(&[(B, &["f"])]);
    trial.open(&[A]);
    trial.call(A, Call::Asserted);
    // The file is closed until the session that has not come back is fenced there.
    assert!(trial.call(A, lock(1, "f", Mode::Exclusive, 0, 10)).is_empty());
    for _ in 0..4 {
        trial.pass(4);
        trial.call(A, Call::Renew);
    }
    let mut out = Vec::new();
    trial.server.set_floor(&"f".into(), C, &mut out);
    trial.server.fenced(B, &"f".into(), &mut out);
    let replies: Vec<&Reply> = out
        .iter()
        .filter_map(|output| match output {
            Output::Reply { reply, .. } => Some(reply),
            _ => None,
        })
        .collect();
    assert_eq!(replies, [&Reply::Refused(Refusal::Lapsed)]);
}

/// Byte 0, if that is wanted, and irregular regions behind it. Two lists, one shifted by 3, share no other byte.
fn spread(shift: u64, first: bool) -> Pattern {
    let (mut at, mut seed) = (0_u64, 7_u64);
    let region = |_| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        at += 8 + (seed >> 33) % 1000 * 8;
        Region::new(at + shift, 1 + (seed >> 50) % 2)
    };
    let regions: Vec<Region> =
        first.then_some(Region::new(0, 1)).into_iter().chain((0..1500).map(region)).collect();
    Pattern::list(&regions).unwrap()
}

#[test]
fn what_one_release_leads_to_for_many_others_goes_on_at_the_next_ticks() {
    const WAITERS: u64 = 40;
    let mut trial = Trial::new();
    trial.open(&[A, B, C]);
    let ask = |request, operation, mode, pattern: &Pattern| {
        let spec = LockSpec { file: "f".into(), operation, mode, pattern: pattern.clone() };
        Call::Acquire { request, spec: Some(spec), until: Some(OFFSET_MAX) }
    };
    let (held, wanted) = (spread(0, false), spread(3, true));
    for request in 1..=100 {
        assert_eq!(replies(&trial.call(A, ask(request, 1, Mode::Exclusive, &held))).len(), 1);
    }
    assert_eq!(replies(&trial.call(A, lock(200, "f", Mode::Exclusive, 0, 1))).len(), 1);
    for request in 1..=WAITERS {
        let asked = trial.call(B, ask(request, request, Mode::Shared, &wanted));
        assert_eq!(replies(&asked), BTreeMap::new());
    }
    let mut all = replies(&trial.call(A, Call::Release { request: 200 }));
    // The release itself is answered, and not everybody whom it wakes.
    assert_eq!(all.remove(&trial.calls), Some(Reply::Done));
    assert!((all.len() as u64) < WAITERS, "one call went through all comparisons");
    assert_eq!(trial.server.next_deadline(), Some(Duration::ZERO));
    // Others are served meanwhile.
    assert_eq!(replies(&trial.call(C, Call::Renew)).len(), 1);
    for _ in 0..2 * WAITERS {
        all.extend(replies(&trial.pass(0)));
    }
    assert_eq!(all.len() as u64, WAITERS);
    assert!(all.values().all(|reply| progress(reply).next.is_none()), "{all:?}");
    assert_ne!(trial.server.next_deadline(), Some(Duration::ZERO));
}
