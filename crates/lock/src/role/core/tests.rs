//! The bounds on what waits for records.

use super::*;
use crate::Pattern;
use crate::message::LockSpec;
use crate::server::Settings;

const SESSION: SessionId = SessionId(1);
const LINK: u64 = 1;

/// A server with an open session, whose epoch is on record and nothing else.
struct Host {
    shared: Shared,
    calls: u64,
}

impl Host {
    fn new(records_max: u64) -> Host {
        let settings = Settings::default();
        let lease = settings.lease;
        let slot = ServerSlot { server: 0, servers: 1, stripe_bytes: 1 << 16 };
        let core = Core { records_max, ..Core::new(Server::new(settings), 1, lease) };
        let (core, work) = (Mutex::new(core), Notify::new());
        let mut host = Host { shared: Shared { core, work, slot, connections: AtomicU64::new(0) }, calls: 0 };
        let attached = Attached { unanswered: 0, connection: 1, link: LINK, publisher: None };
        host.shared.core.lock().attached.insert(SESSION, attached);
        assert!(is_full(&host.call(Call::Open)), "nobody is told before the epoch is on record");
        host.shared.core.lock().backlog.begin();
        assert!(matches!(host.call(Call::Open), Some(Reply::Open { .. })));
        host
    }

    /// Makes a call while the account has no memory.
    fn call(&mut self, message: Call) -> Option<Reply> {
        self.calls += 1;
        let reply = self.shared.call(LINK, SESSION, self.calls, message, |_| None);
        reply.unwrap_or_else(|NotAttached| panic!("the session has a connection"))
    }

    /// Makes all records durable.
    fn write(&mut self) {
        let mut core = self.shared.core.lock();
        let changes = core.changes();
        core.changed(&changes);
    }
}

fn acquire(request: u64, file: &str, mode: Mode) -> Call {
    let pattern = Pattern::contiguous(request * 10, 10).unwrap();
    let spec = LockSpec { file: file.into(), operation: request, mode, pattern };
    Call::Acquire { request, spec: Some(spec), until: None }
}

fn is_full(reply: &Option<Reply>) -> bool {
    *reply == Some(Reply::Refused(Refusal::Full(UNWRITTEN)))
}

fn is_held(reply: &Option<Reply>) -> bool {
    matches!(reply, Some(Reply::Acquired { progress, .. }) if progress.next.is_none())
}

#[test]
fn only_what_needs_a_record_is_refused_when_as_many_wait_as_may() {
    let mut host = Host::new(1);
    assert_eq!(host.call(acquire(1, "f", Mode::Exclusive)), None, "it waits for its record");
    host.write();
    assert_eq!(host.call(acquire(2, "g", Mode::Exclusive)), None);
    assert!(is_full(&host.call(acquire(3, "h", Mode::Exclusive))));
    assert!(is_held(&host.call(acquire(4, "h", Mode::Shared))));
    assert!(is_held(&host.call(acquire(5, "f", Mode::Exclusive))));
    host.write();
    assert_eq!(host.call(acquire(6, "h", Mode::Exclusive)), None);
}

#[test]
fn replies_that_would_wait_for_a_record_are_refused_without_memory_for_them() {
    let mut host = Host::new(RECORDS_MAX);
    assert_eq!(host.call(acquire(1, "f", Mode::Exclusive)), None);
    for again in 0..3 {
        assert!(is_full(&host.call(acquire(1, "f", Mode::Exclusive))), "{again}");
        assert!(is_full(&host.call(Call::ReleaseFrom { request: 1, offset: 15 })), "{again}");
    }
    // What does not wait goes on: renewals, shared locks, releases.
    assert!(matches!(host.call(Call::Renew), Some(Reply::Open { .. })));
    assert!(is_held(&host.call(acquire(2, "f", Mode::Shared))));
    assert_eq!(host.call(Call::Release { request: 2 }), Some(Reply::Done));
    host.write();
    assert!(is_held(&host.call(acquire(1, "f", Mode::Exclusive))));
    assert_eq!(host.call(Call::Release { request: 1 }), Some(Reply::Done));
}
