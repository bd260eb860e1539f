//! Single steps of the rank, its records and its messages.

use std::time::Duration;

use bytes::BytesMut;
use nacre_meta::capability::Policy;
use nacre_meta::place::{Mode, Place};
use nacre_meta::role::authority::Authority;
use nacre_meta::role::record;
use nacre_meta::service::{ActiveRank, Call, Output, Record, Reply, Shown, StoreOrder};
use nacre_meta::wire;
use nacre_object::ObjectId;
use nacre_rpc::{Frame, Outbox};

const LEASE: Duration = Duration::from_secs(1);

/// A rank whose store takes everything at once.
struct At {
    rank: ActiveRank,
    now: Duration,
    tickets: u64,
    record: Option<Record>,
    replies: Vec<(u64, Reply)>,
    revoked: Vec<(u64, u64, Option<u64>)>,
}

impl At {
    fn new(epoch: u64, record: Option<Record>) -> At {
        let (replies, revoked) = (Vec::new(), Vec::new());
        At { rank: ActiveRank::new(epoch, LEASE), now: Duration::ZERO, tickets: 0, record, replies, revoked }
    }

    fn id() -> ObjectId {
        "log".parse().unwrap()
    }

    fn carry(&mut self, mut out: Vec<Output>) {
        while !out.is_empty() {
            for output in std::mem::take(&mut out) {
                match output {
                    Output::Reply(ticket, reply) => self.replies.push((ticket, reply)),
                    Output::Revoke { session, grant, quota, .. } => {
                        self.revoked.push((session, grant, quota))
                    }
                    Output::Lapsed(_) => {}
                    Output::Store(id, order) => match order {
                        StoreOrder::Load { .. } => self.rank.loaded(self.now, &id, self.record, &mut out),
                        StoreOrder::Create(policy) => {
                            self.record = Some(Record { policy, ..Record::default() });
                            self.rank.created(self.now, &id, self.record, &mut out);
                        }
                        StoreOrder::Write(before, after) => {
                            assert_eq!(self.record, Some(before));
                            self.record = Some(after);
                            self.rank.written(self.now, &id, &mut out);
                        }
                        StoreOrder::Remove(before) => {
                            assert_eq!(self.record.take(), Some(before));
                            self.rank.removed(&id, &mut out);
                        }
                        StoreOrder::Move(before, after) => {
                            assert_eq!(self.record, Some(before));
                            self.record = Some(after);
                            self.rank.moved(self.now, &id, &mut out);
                        }
                    },
                }
            }
        }
    }

    /// Makes a call, and returns the reply if it is there.
    fn call(&mut self, session: u64, call: Call) -> Option<Reply> {
        self.tickets += 1;
        let ticket = self.tickets;
        let mut out = Vec::new();
        self.rank.renew(self.now, session);
        self.rank.call(self.now, ticket, Some(session), &At::id(), call, &mut out);
        self.carry(out);
        self.take(ticket)
    }

    fn take(&mut self, ticket: u64) -> Option<Reply> {
        let at = self.replies.iter().position(|(known, _)| *known == ticket)?;
        Some(self.replies.remove(at).1)
    }

    fn pass(&mut self, time: Duration, renewing: &[u64]) {
        self.now += time;
        for session in renewing {
            self.rank.renew(self.now, *session);
        }
        let mut out = Vec::new();
        self.rank.tick(self.now, &mut out);
        self.carry(out);
    }

    fn granted(reply: Option<Reply>) -> (u64, u64, u64) {
        match reply {
            Some(Reply::Granted { grant, first, bound }) => (grant, first, bound),
            reply => panic!("{reply:?}"),
        }
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn a_holder_gives_its_tail_to_the_next_one() {
    let mut at = At::new(1, None);
    assert_eq!(at.call(1, Call::Next(1)), Some(Reply::Unknown));
    assert_eq!(at.call(1, Call::Create(Policy::BestEffort)), Some(Reply::Done));
    assert_eq!(at.call(1, Call::Create(Policy::BestEffort)), Some(Reply::Exists));
    let (grant, first, bound) = At::granted(at.call(1, Call::Acquire));
    assert!(first == 0 && bound >= 1000);
    assert!(at.record.unwrap().reserved >= bound && at.record.unwrap().cached == Some(LEASE));

    // Two wait, and the holder is asked once.
    assert_eq!((at.call(2, Call::Acquire), at.call(3, Call::Next(5))), (None, None));
    assert_eq!(at.revoked, [(1, grant, None)]);
    assert_eq!(at.call(1, Call::Release(grant, 17)), Some(Reply::Done));
    let (second, first, _) = At::granted(at.take(at.tickets - 2));
    assert_eq!(first, 17);
    assert_eq!(at.revoked.pop(), Some((2, second, None)));
    // What makes no sense costs a gap.
    assert_eq!(at.call(2, Call::Release(second, 3)), Some(Reply::Done));
    match at.take(at.tickets - 2) {
        Some(Reply::Positions { first, caches: true }) => assert!(first >= bound, "{first}"),
        reply => panic!("{reply:?}"),
    }
}

#[test]
fn a_rank_that_ends_says_where_its_sequencers_ended() {
    let mut at = At::new(1, Some(Record { policy: Policy::RoundTrip, ..Record::default() }));
    assert!(matches!(at.call(1, Call::Next(5)), Some(Reply::Positions { first: 0, .. })));
    let record = at.record.unwrap();
    assert!(record.reserved > 5, "{record:?}");
    let settled = Record { reserved: 5, ..record };
    assert_eq!(at.rank.settled(), [(At::id(), record, settled)]);
    let mut successor = At::new(2, Some(settled));
    assert!(matches!(successor.call(1, Call::Next(1)), Some(Reply::Positions { first: 5, .. })));
    // A holder may hand out all that it was lent.
    let mut at = At::new(1, Some(Record::default()));
    let (grant, ..) = At::granted(at.call(1, Call::Acquire));
    assert!(at.rank.settled().is_empty());
    // It stays on record for a while, as one that may still have some.
    assert_eq!(at.call(1, Call::Release(grant, 3)), Some(Reply::Done));
    assert!(at.record.unwrap().cached.is_some() && at.rank.settled().is_empty());
}

#[test]
fn policies_say_when_a_holder_is_asked() {
    let mut at = At::new(1, Some(Record { policy: Policy::Hold(ms(50)), ..Record::default() }));
    let (grant, ..) = At::granted(at.call(1, Call::Acquire));
    at.pass(ms(10), &[1]);
    assert_eq!(at.call(2, Call::Acquire), None);
    at.pass(ms(39), &[1, 2]);
    assert_eq!(at.revoked, []);
    at.pass(ms(1), &[1, 2]);
    assert_eq!(at.revoked, [(1, grant, None)]);

    // The next one has a quota, and is asked for the rest when its time is over.
    let quota = Policy::Quota { operations: 7, within: ms(30) };
    assert_eq!(at.call(3, Call::SetPolicy(quota)), Some(Reply::Done));
    at.call(1, Call::Release(grant, 1)).unwrap();
    at.revoked.clear();
    let (second, ..) = At::granted(at.take(2));
    assert_eq!(at.call(1, Call::Acquire), None);
    assert_eq!(at.revoked, [(2, second, Some(7))]);
    at.pass(ms(31), &[1, 2]);
    assert_eq!(at.revoked, [(2, second, Some(7)), (2, second, None)]);

    // Nobody caches it from now on: who waits for a grant is told so, and the holder is asked.
    assert_eq!(at.call(3, Call::SetPolicy(Policy::RoundTrip)), Some(Reply::Done));
    assert_eq!(at.take(at.tickets - 1), Some(Reply::NotCached));
    at.call(2, Call::Release(second, 9)).unwrap();
    assert_eq!(at.call(2, Call::Acquire), Some(Reply::NotCached));
    assert_eq!(at.call(2, Call::Next(2)), Some(Reply::Positions { first: 9, caches: false }));
    assert_eq!(at.call(2, Call::Read), Some(Reply::Positions { first: 11, caches: false }));
    assert_eq!(at.record.unwrap().cached, None);
}

#[test]
fn a_holder_that_does_not_answer_loses_the_sequencer_with_its_lease() {
    let mut at = At::new(1, Some(Record::default()));
    let (_, _, bound) = At::granted(at.call(1, Call::Acquire));
    assert_eq!(at.call(2, Call::Next(1)), None);
    let waits = at.tickets;
    // It renews its lease, and does not give back what it was asked for.
    let mut time = Duration::ZERO;
    while at.replies.is_empty() {
        at.pass(ms(100), &[1, 2]);
        time += ms(100);
        assert!(time < LEASE * 3);
    }
    assert!(time >= LEASE, "{time:?}");
    assert_eq!(at.take(waits), Some(Reply::Positions { first: bound, caches: true }));
    assert_eq!((at.rank.counts().broken, at.rank.counts().losses), (1, 1));
}

#[test]
fn a_new_rank_waits_for_a_holder_or_for_its_lease() {
    let cached = Record { reserved: 5000, cached: Some(LEASE), ..Record::default() };
    // The holder comes back.
    let mut at = At::new(2, Some(cached));
    assert_eq!(at.call(2, Call::Next(1)), None);
    let waits = at.tickets;
    let before = (1 << 32) + 1;
    let (grant, _, bound) = At::granted(at.call(1, Call::Assert(before)));
    assert_eq!((bound, &at.revoked[..]), (5000, &[(1, grant, None)][..]));
    assert_eq!(at.call(3, Call::Assert(before)), Some(Reply::NotHeld));
    assert_eq!(at.call(1, Call::Release(grant, 1234)), Some(Reply::Done));
    assert_eq!(at.take(waits), Some(Reply::Positions { first: 5000, caches: true }));

    // It does not.
    let mut at = At::new(2, Some(cached));
    assert_eq!(at.call(2, Call::Next(1)), None);
    at.pass(LEASE - ms(1), &[2]);
    assert_eq!(at.replies, []);
    at.pass(ms(1), &[2]);
    assert_eq!(at.take(1), Some(Reply::Positions { first: 5000, caches: true }));

    // Nobody had it: there is nothing to wait for.
    let mut at = At::new(2, Some(Record { cached: None, ..cached }));
    assert_eq!(at.call(2, Call::Next(1)), Some(Reply::Positions { first: 5000, caches: true }));
}

#[test]
fn reservations_grow_with_use() {
    let mut at = At::new(1, Some(Record { policy: Policy::RoundTrip, ..Record::default() }));
    for round in 0..20_000u64 {
        assert_eq!(at.call(1, Call::Next(100)), Some(Reply::Positions { first: round * 100, caches: false }));
        at.now += Duration::from_micros(10);
    }
    let ahead = at.record.unwrap().reserved - 2_000_000;
    assert!((10_000..100_000_000).contains(&ahead), "{ahead}");
    assert_eq!(at.call(1, Call::Next(u64::MAX)), Some(Reply::Exhausted));
    assert_eq!(at.call(1, Call::Remove), Some(Reply::Done));
    assert_eq!(at.record, None);
    assert_eq!(at.call(1, Call::Read), Some(Reply::Unknown));
}

#[test]
fn records_and_messages_stay_the_same_as_bytes() {
    let policies = ["best-effort", "hold=10ms", "quota=5/20ms", "round-trip", "lua=fairness"];
    let policies = policies.map(|text| text.parse::<Policy>().unwrap());
    for policy in policies {
        assert_eq!(policy.to_string().parse(), Ok(policy));
        let record = Record { reserved: 7 << 40, cached: Some(ms(3000)), policy, place: Place::default() };
        // One that never left rank 0 is as versions without ranks wrote it.
        assert_eq!((record::encode(&record)[0], record::encode(&record).len()), (1, 34));
        let moved = record.place.moved(3, Mode::Client);
        for place in [record.place, moved, moved.moved(9, Mode::Proxy), moved.moved(1, Mode::ProxyHalf)] {
            let record = Record { place, ..record };
            let bytes = record::encode(&record);
            assert_eq!(record::decode(&bytes), Some(record));
            for end in 0..bytes.len() {
                assert_eq!(record::decode(&bytes[..end]), None);
            }
            assert_eq!(record::decode(&[&bytes[..], &[0]].concat()), None);
        }
        let id: ObjectId = "a".parse().unwrap();
        for call in [
            Call::Create(policy),
            Call::SetPolicy(policy),
            Call::Next(3),
            Call::Release(5, 6),
            Call::Read,
            Call::Move(7, Mode::ProxyHalf),
            Call::Expect,
        ] {
            let frame = frame(|outbox| wire::put_call(outbox, 9, &id, &call));
            assert_eq!(wire::get_call(frame.kind, &frame.body), Ok((id.clone(), call)));
        }
    }
    let authority = Authority {
        epoch: 3,
        count: 9,
        takeover: ms(600),
        free: true,
        name: "one".to_owned(),
        addresses: vec!["unix:/a".to_owned(), "host:1".to_owned()],
    };
    assert_eq!(Authority::decode(&authority.encode()), Some(authority.clone()));
    let bytes = authority.encode();
    for end in 0..30 {
        assert_eq!(Authority::decode(&bytes[..end]), None);
    }
    let shown = Shown { tail: 1, reserved: 2, policy: policies[1], holder: 3, held: true, waiting: 4 };
    for reply in [
        Reply::Shown(shown),
        Reply::Positions { first: 8, caches: true },
        Reply::Granted { grant: 1, first: 2, bound: 3 },
        Reply::Unknown,
        Reply::Elsewhere(Place { rank: 5, ..Place::default() }),
    ] {
        let frame = frame(|outbox| wire::put_reply(outbox, 9, &reply));
        assert_eq!(wire::get_reply(frame.kind, &frame.body), Ok(reply));
    }
}

fn frame(put: impl FnOnce(&mut Outbox)) -> Frame {
    let (mut outbox, mut bytes) = (Outbox::default(), BytesMut::new());
    put(&mut outbox);
    outbox.copy_to(&mut bytes);
    nacre_rpc::frame::take(&mut bytes).unwrap().unwrap()
}

#[test]
fn nobody_waits_for_a_sequencer_that_is_used_up() {
    let end = 1 << 63;
    let mut at = At::new(1, Some(Record { reserved: end - 3, ..Record::default() }));
    let (grant, first, bound) = At::granted(at.call(1, Call::Acquire));
    assert_eq!((first, bound), (end - 3, end));
    // Many wait, and the holder gives back nothing.
    let waiting: Vec<u64> = (0..50_000)
        .map(|number| {
            let call = if number % 2 == 0 { Call::Acquire } else { Call::Next(1) };
            assert_eq!(at.call(2 + number, call), None);
            at.tickets
        })
        .collect();
    assert_eq!(at.call(1, Call::Release(grant, end)), Some(Reply::Done));
    let replies: std::collections::HashMap<u64, Reply> = at.replies.drain(..).collect();
    assert!(waiting.iter().all(|ticket| replies.get(ticket) == Some(&Reply::Exhausted)));
    assert_eq!(at.call(1, Call::Read), Some(Reply::Positions { first: end, caches: true }));
    assert_eq!(at.call(1, Call::Acquire), Some(Reply::Exhausted));
    assert_eq!(at.call(1, Call::Remove), Some(Reply::Done));
}

/// With work for each one that waits it would take minutes.
#[test]
fn a_line_of_many_is_left_and_switched_at_once() {
    const COUNT: u64 = 300_000;
    let began = std::time::Instant::now();
    let mut at = At::new(1, Some(Record::default()));
    At::granted(at.call(1, Call::Acquire));
    at.call(1, Call::SetPolicy(Policy::RoundTrip));
    let first = at.tickets + 1;
    for _ in 0..COUNT {
        assert_eq!(at.call(2, Call::Read), None);
    }
    let waiting = |at: &mut At| match at.call(3, Call::Look) {
        Some(Reply::Shown(shown)) => shown.waiting,
        reply => panic!("{reply:?}"),
    };
    assert_eq!(waiting(&mut at), COUNT);
    let mut out = Vec::new();
    for ticket in first..first + COUNT {
        at.rank.cancel(at.now, ticket, &mut out);
        assert!(began.elapsed() < Duration::from_secs(60), "it is too slow at {ticket}");
    }
    assert_eq!((waiting(&mut at), out.len()), (0, 0));
}

/// With work for each of them at each call it would take minutes.
#[test]
fn calls_do_not_look_at_all_sequencers_that_were_cached_lately() {
    const COUNT: u64 = 50_000;
    let began = std::time::Instant::now();
    let (mut rank, now) = (ActiveRank::new(1, LEASE), ms(1));
    let (mut cached, mut granted) = (std::collections::HashSet::new(), 0);
    let mut carry = |rank: &mut ActiveRank, now: Duration, mut out: Vec<Output>| {
        while let Some(output) = out.pop() {
            match output {
                Output::Store(id, StoreOrder::Load { .. }) => {
                    rank.loaded(now, &id, Some(Record::default()), &mut out);
                }
                Output::Store(id, StoreOrder::Write(_, after)) => {
                    rank.written(now, &id, &mut out);
                    _ = if after.cached.is_some() { cached.insert(id) } else { cached.remove(&id) };
                }
                Output::Reply(_, Reply::Granted { grant, .. }) => granted = grant,
                _ => {}
            }
        }
        (granted, cached.len() as u64)
    };
    for number in 0..COUNT {
        let id: ObjectId = format!("log {number}").parse().unwrap();
        rank.renew(now, 1);
        let mut out = Vec::new();
        rank.tick(now, &mut out);
        rank.call(now, 2 * number, Some(1), &id, Call::Acquire, &mut out);
        let (grant, cached) = carry(&mut rank, now, out);
        assert_eq!(cached, number + 1);
        let mut out = Vec::new();
        rank.call(now, 2 * number + 1, Some(1), &id, Call::Release(grant, 0), &mut out);
        carry(&mut rank, now, out);
        assert!(rank.next_deadline().is_some());
        assert!(began.elapsed() < Duration::from_secs(60), "it is too slow at {number}");
    }
    // They are on record as not cached after a while.
    let now = now + ms(2500);
    let mut out = Vec::new();
    rank.tick(now, &mut out);
    assert_eq!(carry(&mut rank, now, out).1, 0);
}

#[test]
fn sessions_are_bounded() {
    let most = nacre_meta::capability::SESSIONS_MAX as u64;
    let mut rank = ActiveRank::new(1, LEASE);
    assert!((1..=most).all(|session| rank.renew(ms(1), session)));
    assert!(!rank.renew(ms(1), most + 1));
    // Those that are there stay, and their places are free when their leases are over.
    assert!(rank.renew(ms(500), 7));
    rank.tick(LEASE + ms(2), &mut Vec::new());
    assert_eq!(rank.sessions(), 1);
    assert!(rank.renew(LEASE + ms(2), most + 1));
}

#[test]
fn no_one_is_told_the_number_of_a_session() {
    let mut at = At::new(1, Some(Record::default()));
    let session = 0x1234_5678_9abc_def0;
    At::granted(at.call(session, Call::Acquire));
    match at.call(2, Call::Look) {
        Some(Reply::Shown(shown)) => assert_eq!(shown.holder, 0xbc_def0),
        reply => panic!("{reply:?}"),
    }
}

#[test]
fn a_sequencer_is_frozen_and_its_tail_goes_to_the_other_rank() {
    // The policy would let the holder keep it for an hour.
    let policy = Policy::Hold(Duration::from_secs(3600));
    let mut at = At::new(7, Some(Record { policy, ..Record::default() }));
    let (grant, first, _) = At::granted(at.call(1, Call::Acquire));
    assert_eq!((first, at.call(2, Call::Next(5))), (0, None));
    let before = at.tickets;
    assert_eq!(at.call(3, Call::Move(2, Mode::Client)), None);
    let moving = at.tickets;
    assert_eq!(at.revoked, [(1, grant, None)]);
    // Whoever comes later waits as well, and another migration.
    assert_eq!((at.call(4, Call::Acquire), at.call(4, Call::Read)), (None, None));
    assert_eq!(at.call(3, Call::Move(5, Mode::Client)), None);
    let load = at.rank.load(at.now, 10);
    assert!(load.resources[0].moving && load.resources[0].held && load.queue == 5, "{load:?}");
    assert_eq!(at.call(1, Call::Release(grant, 23)), Some(Reply::Done));
    let record = at.record.unwrap();
    let place = Place::default().moved(2, Mode::Client);
    assert_eq!((record.reserved, record.cached, record.place), (23, None, place));
    assert_eq!(at.take(moving), Some(Reply::Done));
    for ticket in [before, moving + 1, moving + 2, moving + 3] {
        assert_eq!(at.take(ticket), Some(Reply::Elsewhere(place)), "{ticket}");
    }
    assert_eq!(at.replies, []);
    // It knows where the sequencer is, and that there is one.
    assert_eq!(at.call(1, Call::Next(1)), Some(Reply::Elsewhere(place)));
    assert_eq!(at.call(1, Call::Create(policy)), Some(Reply::Exists));
    assert_eq!(at.rank.migrations().count, 1);
    // The other rank begins at the tail, whatever its epoch, and asks nobody for the sequencer.
    let mut other = At::new(1, Some(record));
    other.rank = ActiveRank::numbered(2, 1, LEASE);
    assert_eq!(other.call(9, Call::Next(1)), Some(Reply::Positions { first: 23, caches: true }));
    assert_eq!(other.call(9, Call::Move(2, Mode::Client)), Some(Reply::Done));
    // A later one finds the new place once what it knows is old.
    at.record = Some(Record { place: place.moved(0, Mode::Client), ..other.record.unwrap() });
    at.pass(ms(200), &[]);
    match at.call(1, Call::Next(1)) {
        Some(Reply::Positions { first, .. }) => assert!(first > 23, "{first}"),
        reply => panic!("{reply:?}"),
    }
}

#[test]
fn a_rank_that_is_told_of_a_sequencer_is_ready_before_anybody_asks() {
    let mut other = At::new(1, Some(Record { reserved: 23, ..Record::default() }));
    other.rank = ActiveRank::numbered(2, 1, LEASE);
    let before = Some(Reply::Elsewhere(Place::default()));
    assert_eq!(other.call(9, Call::Next(1)), before);
    let place = Place::default().moved(2, Mode::Client);
    other.record = Some(Record { reserved: 23, place, ..Record::default() });
    assert_eq!(other.call(9, Call::Next(1)), before, "it has looked a moment ago");
    let used = other.rank.load(other.now, 1).requests_per_second;
    // Whoever has handed it over knows better.
    assert_eq!(other.call(8, Call::Expect), Some(Reply::Done));
    assert!(other.record.unwrap().reserved > 23, "{:?}", other.record);
    let load = other.rank.load(other.now, 1);
    assert_eq!((load.requests_per_second, load.resources[0].requests_per_second), (used, 0.0));
    let reply = other.rank.next_at_once(other.now, &At::id(), 1, &mut Vec::new());
    assert!(matches!(reply, Some(Reply::Positions { first: 23, .. })), "{reply:?}");
    assert!(other.rank.is_used(other.now, &At::id()));
    // It may come late: the sequencer is not there any more.
    other.rank = ActiveRank::numbered(3, 1, LEASE);
    assert_eq!(other.call(8, Call::Expect), Some(Reply::Elsewhere(place)));
    assert!(!other.rank.is_used(other.now, &At::id()));
}

#[test]
fn a_rank_that_forwards_looks_into_the_record_now_and_then_and_not_for_each_request() {
    let mut at = At::new(1, Some(Record::default()));
    assert_eq!(at.call(1, Call::Move(2, Mode::Proxy)), Some(Reply::Done));
    let place = at.record.unwrap().place;
    // The other rank has handed it on, and the record says so.
    at.record = Some(Record { place: place.moved(3, Mode::Client), ..at.record.unwrap() });
    let moved = at.record.unwrap().place;
    for _ in 0..9 {
        at.pass(ms(100), &[]);
        // What it was sent was answered.
        at.rank.confirm(&At::id(), 2, at.now);
        at.rank.confirm(&At::id(), 3, at.now);
        at.pass(ms(10), &[]);
        assert_eq!(at.call(1, Call::Next(1)), Some(Reply::Elsewhere(place)), "{:?}", at.now);
    }
    at.pass(ms(10), &[]);
    at.rank.confirm(&At::id(), 2, at.now);
    assert_eq!(at.call(1, Call::Next(1)), Some(Reply::Elsewhere(moved)), "a second is over");
    // Without an answer it looks sooner.
    at.record = Some(Record { place: moved.moved(4, Mode::Client), ..at.record.unwrap() });
    at.rank.confirm(&At::id(), 2, at.now + ms(50));
    at.pass(ms(110), &[]);
    assert_eq!(at.call(1, Call::Next(1)), Some(Reply::Elsewhere(at.record.unwrap().place)));
}

#[test]
fn what_was_reserved_when_it_was_loaded_is_handed_out_at_once() {
    let mut rank = ActiveRank::new(1, LEASE);
    let (mut out, now) = (Vec::new(), Duration::ZERO);
    rank.call(now, 1, None, &At::id(), Call::Next(2), &mut out);
    assert!(matches!(&out[..], [Output::Store(_, StoreOrder::Load { reserves: true })]), "{out:?}");
    out.clear();
    let record = Record { reserved: 5000, policy: Policy::RoundTrip, ..Record::default() };
    rank.loaded_ahead(now, &At::id(), record, 23, &mut out);
    let first = Reply::Positions { first: 23, caches: false };
    assert_eq!(out, [Output::Reply(1, first)], "nothing is written before");
    // What is only looked at reserves nothing.
    let (mut rank, mut out) = (ActiveRank::new(1, LEASE), Vec::new());
    rank.call(now, 1, None, &At::id(), Call::Look, &mut out);
    assert!(matches!(&out[..], [Output::Store(_, StoreOrder::Load { reserves: false })]), "{out:?}");
}

#[test]
fn what_a_session_is_told_is_read_as_it_was_written() {
    let id: ObjectId = "a".parse().unwrap();
    for mode in [Mode::Client, Mode::Proxy, Mode::ProxyHalf] {
        let moving = wire::Moving { to: 1023, mode, id: id.clone() };
        let event = wire::moving(&moving);
        assert_eq!(wire::get_moving(&event), Ok(moving));
        assert!(wire::get_revoked(&event).is_err(), "earlier versions take it for nothing");
    }
    let revoked = wire::Revoked { grant: 5, quota: Some(3), id: id.clone() };
    assert!(wire::get_moving(&wire::revoked(&revoked)).is_err());
    // A session with a rank takes a thread.
    assert!(wire::get_moving(&wire::moving(&wire::Moving { to: 1024, mode: Mode::Client, id })).is_err());
}

#[test]
fn what_was_removed_at_the_other_rank_is_made_anew() {
    let mut at = At::new(1, Some(Record::default()));
    assert_eq!(at.call(1, Call::Move(2, Mode::Client)), Some(Reply::Done));
    assert!(matches!(at.call(1, Call::Next(1)), Some(Reply::Elsewhere(_))));
    // The other rank has removed it, and whoever knows that is not told that it exists.
    at.record = None;
    assert_eq!(at.call(1, Call::Create(Policy::RoundTrip)), Some(Reply::Done));
    assert_eq!(at.call(1, Call::Next(1)), Some(Reply::Positions { first: 0, caches: false }));
}

#[test]
fn nothing_is_shown_of_a_sequencer_that_leaves() {
    let mut at = At::new(1, Some(Record::default()));
    assert!(matches!(at.call(1, Call::Look), Some(Reply::Shown(_))));
    at.tickets += 1;
    let (moving, mut out) = (at.tickets, Vec::new());
    at.rank.call(at.now, moving, Some(1), &At::id(), Call::Move(2, Mode::Client), &mut out);
    assert!(matches!(&out[..], [Output::Store(_, StoreOrder::Move(..))]), "{out:?}");
    // The other rank may hand out positions before this one hears that it does.
    assert_eq!(at.call(1, Call::Look), None);
    let looking = at.tickets;
    at.carry(out);
    assert_eq!(at.take(moving), Some(Reply::Done));
    assert!(matches!(at.take(looking), Some(Reply::Elsewhere(_))));
}

#[test]
fn requests_for_a_migration_that_wait_are_bounded() {
    let mut at = At::new(1, Some(Record::default()));
    let (grant, ..) = At::granted(at.call(1, Call::Acquire));
    let asked = (0..1 << 14).map(|_| at.call(2, Call::Move(2, Mode::Client))).collect::<Vec<_>>();
    let waiting = asked.iter().filter(|reply| reply.is_none()).count();
    assert!((1..1 << 13).contains(&waiting), "{waiting}");
    // The others are to ask this rank again.
    assert_eq!(asked.last(), Some(&Some(Reply::Elsewhere(Place::default()))));
    assert_eq!(at.call(1, Call::Release(grant, 1)), Some(Reply::Done));
    let done = at.replies.iter().filter(|(_, reply)| *reply == Reply::Done).count();
    assert_eq!(done, waiting);
}

#[test]
fn a_migration_waits_for_a_holder_that_is_gone_and_for_the_record() {
    let mut at = At::new(1, Some(Record::default()));
    let (_, _, bound) = At::granted(at.call(1, Call::Acquire));
    assert_eq!(at.call(2, Call::Move(1, Mode::Proxy)), None);
    let moving = at.tickets;
    let mut time = Duration::ZERO;
    while at.take(moving).is_none() {
        at.pass(ms(100), &[1, 2]);
        time += ms(100);
        assert!(time < LEASE * 3);
    }
    // All that the holder was lent counts as handed out.
    let record = at.record.unwrap();
    assert!(time >= LEASE && record.reserved == bound, "{time:?}, {record:?}");
    assert_eq!(record.place, Place::default().moved(1, Mode::Proxy));
}
