//! The paper's protocols against lock servers that answer at once.

use std::collections::VecDeque;
use std::time::Duration;

use nacre_lock::client::{
    Acquisition, Action, Client, Ended, Method, Order, Outcome, Protocol, REQUESTS_MAX, ROUNDS_MAX, Rounds,
    Wanted,
};
use nacre_lock::message::{Call, Refusal, Reply, SessionId, Token};
use nacre_lock::server::{CallId, Output, Server, Settings};
use nacre_lock::table::{Acquired, Mode};
use nacre_lock::{Datatype, OFFSET_MAX, Pattern, PatternError, Region, Stripe};

const METHODS: [Method; 3] = [Method::Posix, Method::List, Method::Datatype];
const PROTOCOLS: [Protocol; 3] = [Protocol::TwoPhase, Protocol::OneTry, Protocol::AltTry];
const STRIPE_BYTES: u64 = 64 << 10;

/// Servers, and clients with one operation each.
struct Cluster {
    servers: Vec<Server>,
    clients: Vec<Acquisition>,
    /// The call of a server is answered to this client and order.
    calls: Vec<(usize, Order)>,
    orders: VecDeque<(usize, Order)>,
}

impl Cluster {
    fn new(servers: u32, stripe_bytes: u64) -> Self {
        let servers = (0..servers).map(|server| {
            let stripe = Stripe { bytes: stripe_bytes, servers, server };
            Server::new(Settings { stripe, ..Settings::default() })
        });
        Self { servers: servers.collect(), clients: Vec::new(), calls: Vec::new(), orders: VecDeque::new() }
    }

    fn add(&mut self, pattern: &Pattern, method: Method, protocol: Protocol, waits: bool) -> usize {
        let client = self.clients.len();
        let session = SessionId(client as u64);
        for server in &mut self.servers {
            server.handle(Duration::ZERO, session, 0, Call::Open, &mut Vec::new());
        }
        let stripe = self.servers[0].settings().stripe;
        let mut acquisition = Acquisition::new(Wanted {
            file: "file".into(),
            operation: 1,
            first_number: 100,
            mode: Mode::Exclusive,
            pattern: pattern.clone(),
            stripe_bytes: stripe.bytes,
            servers: stripe.servers,
            method,
            protocol,
            waits,
        })
        .unwrap();
        let mut orders = Vec::new();
        acquisition.begin(&mut orders);
        self.clients.push(acquisition);
        self.send(client, orders);
        client
    }

    fn send(&mut self, client: usize, orders: Vec<Order>) {
        self.orders.extend(orders.into_iter().map(|order| (client, order)));
    }

    /// Delivers everything, in the order in which it was sent.
    fn run(&mut self) {
        self.calls.push((0, Order { server: 0, number: 0, serial: 0, call: Call::Open }));
        while let Some((client, order)) = self.orders.pop_front() {
            let id = self.calls.len() as CallId;
            let mut out = Vec::new();
            let server = &mut self.servers[order.server as usize];
            server.handle(Duration::ZERO, SessionId(client as u64), id, order.call.clone(), &mut out);
            self.calls.push((client, order));
            for output in out {
                let Output::Reply { call, reply, .. } = output else { continue };
                self.reply(call, reply);
            }
        }
    }

    fn reply(&mut self, call: CallId, reply: Reply) {
        let (client, order) = &self.calls[call as usize];
        let (client, number, serial) = (*client, order.number, order.serial);
        let mut orders = Vec::new();
        self.clients[client].handle(number, serial, reply, &mut orders);
        self.send(client, orders);
    }

    fn release(&mut self, client: usize) {
        let mut orders = Vec::new();
        self.clients[client].release(&mut orders);
        self.send(client, orders);
        self.run();
    }

    /// The bytes that the servers count as held by a client, exactly.
    fn held(&self, client: usize) -> Vec<Region> {
        let mut regions = Vec::new();
        for part in self.clients[client].parts() {
            let stripe = self.servers[part.server as usize].settings().stripe;
            let whole = self.clients[client].wanted().pattern.restrict(stripe).unwrap();
            let listed = self.servers[part.server as usize].list(None, usize::MAX);
            let found = listed
                .iter()
                .find(|listed| listed.session == SessionId(client as u64) && listed.request == part.number);
            let Some((found, last)) = found.and_then(|found| Some((found, found.progress.last?))) else {
                continue;
            };
            regions.extend(whole.from(found.bounds.0).before(last + 1).regions());
        }
        Pattern::list(&regions).unwrap().regions().collect()
    }
}

fn strided(bytes: u64) -> Pattern {
    Pattern::new(&Datatype::byte().vector(bytes / 64, 1, 64).at(0)).unwrap()
}

fn rounds(pattern: &Pattern, servers: u32, method: Method, protocol: Protocol) -> Rounds {
    let mut cluster = Cluster::new(servers, STRIPE_BYTES);
    let client = cluster.add(pattern, method, protocol, true);
    cluster.run();
    assert_eq!(cluster.clients[client].outcome(), Outcome::Held);
    cluster.clients[client].rounds()
}

#[test]
fn two_phase_takes_a_round_for_each_strip() {
    // 8 MiB, as in figure 4, at 64 bytes' distance; 512 MiB, as in figure 5, at 4096.
    for servers in [2, 32] {
        let small = rounds(&strided(8 << 20), servers, Method::Datatype, Protocol::TwoPhase);
        assert_eq!(small, Rounds { optimistic: 0, two_phase: 128, calls: 128 });
    }
    let large = Pattern::new(&Datatype::byte().vector(128 << 10, 1, 4096).at(0)).unwrap();
    let large = rounds(&large, 32, Method::Datatype, Protocol::TwoPhase);
    assert_eq!(large, Rounds { optimistic: 0, two_phase: 8192, calls: 8192 });
    // One server has all strips, so there is nothing to be in order with.
    let one = rounds(&strided(8 << 20), 1, Method::Datatype, Protocol::TwoPhase);
    assert_eq!(one.two_phase, 1);
}

#[test]
fn without_contention_one_optimistic_round_is_enough() {
    for protocol in [Protocol::OneTry, Protocol::AltTry] {
        let pattern = strided(4 << 20);
        let taken = rounds(&pattern, 16, Method::Datatype, protocol);
        assert_eq!(taken, Rounds { optimistic: 1, two_phase: 0, calls: 16 });
        // 65,536 regions, by 64.
        assert_eq!(rounds(&pattern, 16, Method::List, protocol).calls, 1024);
        assert_eq!(rounds(&strided(1 << 20), 16, Method::Posix, protocol).calls, 16 << 10);
    }
}

#[test]
fn a_region_across_servers_is_cut_at_their_borders() {
    let pattern = Pattern::contiguous(STRIPE_BYTES - 10, 20).unwrap();
    for method in METHODS {
        let mut cluster = Cluster::new(4, STRIPE_BYTES);
        let client = cluster.add(&pattern, method, Protocol::AltTry, true);
        cluster.run();
        assert_eq!(cluster.clients[client].parts().len(), 2);
        assert_eq!(cluster.held(client), pattern.regions().collect::<Vec<_>>());
    }
}

/// The example of section 4: strips of 6 bytes, so that (0, 2) and (4, 2) are the first server's.
#[test]
fn what_is_out_of_order_is_released_and_what_is_in_order_is_kept() {
    let pattern = Pattern::list(&[(0, 2), (4, 2), (6, 2), (8, 2)].map(|(at, n)| Region::new(at, n))).unwrap();
    for protocol in [Protocol::OneTry, Protocol::AltTry] {
        let mut cluster = Cluster::new(2, 6);
        let other = Pattern::contiguous(4, 1).unwrap();
        let holder = cluster.add(&other, Method::Datatype, Protocol::AltTry, true);
        cluster.run();
        let client = cluster.add(&pattern, Method::Datatype, protocol, true);
        cluster.run();
        // It waits for byte 4 and holds nothing behind it.
        assert_eq!(cluster.clients[client].outcome(), Outcome::Pending);
        assert_eq!(cluster.held(client), [Region::new(0, 2)]);
        cluster.release(holder);
        assert_eq!(cluster.clients[client].outcome(), Outcome::Held);
        assert_eq!(cluster.held(client), pattern.regions().collect::<Vec<_>>());
        let optimistic = if protocol == Protocol::AltTry { 2 } else { 1 };
        assert_eq!(cluster.clients[client].rounds().optimistic, optimistic);
        cluster.release(client);
        assert_eq!(cluster.clients[client].outcome(), Outcome::Released);
        assert_eq!(cluster.held(client), []);
    }
}

#[test]
fn a_two_phase_round_takes_nothing_beyond_the_second_least_offset() {
    let mut cluster = Cluster::new(2, 10);
    let other = Pattern::contiguous(12, 1).unwrap();
    let holder = cluster.add(&other, Method::Datatype, Protocol::TwoPhase, true);
    cluster.run();
    let pattern = Pattern::contiguous(0, 40).unwrap();
    let client = cluster.add(&pattern, Method::Datatype, Protocol::TwoPhase, true);
    cluster.run();
    // The first server has bytes 20 to 29 too, which nobody holds; they come after byte 12.
    assert_eq!(cluster.held(client), [Region::new(0, 12)]);
    cluster.release(holder);
    assert_eq!(cluster.held(client), [Region::new(0, 40)]);
    assert_eq!(cluster.clients[client].rounds().two_phase, 4);
}

#[test]
fn an_operation_that_does_not_wait_holds_all_or_nothing() {
    for method in METHODS {
        for protocol in PROTOCOLS {
            let mut cluster = Cluster::new(3, 10);
            let holder = cluster.add(&Pattern::contiguous(15, 1).unwrap(), method, protocol, true);
            cluster.run();
            let pattern = Pattern::contiguous(0, 60).unwrap();
            let client = cluster.add(&pattern, method, protocol, false);
            cluster.run();
            assert_eq!(cluster.clients[client].outcome(), Outcome::WouldWait);
            assert_eq!(cluster.held(client), []);
            cluster.release(holder);
            let client = cluster.add(&pattern, method, protocol, false);
            cluster.run();
            assert_eq!(cluster.clients[client].outcome(), Outcome::Held);
        }
    }
}

#[test]
fn an_operation_that_waits_can_be_given_up() {
    for method in METHODS {
        for protocol in PROTOCOLS {
            let mut cluster = Cluster::new(3, 10);
            let holder = cluster.add(&Pattern::contiguous(15, 1).unwrap(), method, protocol, true);
            let pattern = Pattern::contiguous(0, 60).unwrap();
            let first = cluster.add(&pattern, method, protocol, true);
            let second = cluster.add(&pattern, method, protocol, true);
            cluster.run();
            assert_eq!(cluster.clients[first].outcome(), Outcome::Pending);
            cluster.release(first);
            assert_eq!(cluster.clients[first].outcome(), Outcome::Released);
            assert_eq!(cluster.held(first), []);
            cluster.release(holder);
            assert_eq!(cluster.clients[second].outcome(), Outcome::Held);
        }
    }
}

#[test]
fn nothing_to_lock_is_held_at_once() {
    for protocol in PROTOCOLS {
        let mut cluster = Cluster::new(3, 10);
        let client = cluster.add(&Pattern::empty(), Method::Datatype, protocol, true);
        assert_eq!(cluster.clients[client].outcome(), Outcome::Held);
        cluster.release(client);
        assert_eq!(cluster.clients[client].outcome(), Outcome::Released);
    }
}

#[test]
fn every_method_and_protocol_holds_the_pattern_and_leaves_nothing() {
    let interleaved = |i: u64| Pattern::new(&Datatype::Bytes(3).vector(40, 1, 4).at(i * 12)).unwrap();
    for method in METHODS {
        for protocol in PROTOCOLS {
            let mut cluster = Cluster::new(5, 32);
            let clients: Vec<usize> =
                (0..6).map(|i| cluster.add(&interleaved(i % 4), method, protocol, true)).collect();
            cluster.run();
            let mut left = clients.clone();
            while !left.is_empty() {
                let done = left.iter().position(|client| cluster.clients[*client].outcome() == Outcome::Held);
                let client = left.remove(done.expect("somebody holds its lock"));
                let wanted: Vec<Region> = cluster.clients[client].wanted().pattern.regions().collect();
                assert_eq!(cluster.held(client), wanted);
                cluster.release(client);
            }
            assert!(cluster.servers.iter().all(|server| server.request_counts() == (0, 0)));
        }
    }
}

#[test]
fn a_refusal_releases_what_is_held() {
    let mut cluster = Cluster::new(2, 10);
    // The second server does not know the session.
    let pattern = Pattern::contiguous(0, 40).unwrap();
    let client = cluster.add(&pattern, Method::Datatype, Protocol::TwoPhase, true);
    cluster.servers[1].break_session(SessionId(0), &mut Vec::new());
    cluster.run();
    assert!(matches!(cluster.clients[client].outcome(), Outcome::Refused(_)));
    assert_eq!(cluster.servers[0].request_counts(), (0, 0));
}

/// Bytes of a file at two servers.
fn wanted(pattern: Pattern, method: Method) -> Wanted {
    Wanted {
        file: "file".into(),
        operation: 1,
        first_number: 1,
        mode: Mode::Exclusive,
        pattern,
        stripe_bytes: STRIPE_BYTES,
        servers: 2,
        method,
        protocol: Protocol::AltTry,
        waits: true,
    }
}

#[test]
fn an_operation_of_too_many_requests_is_refused_before_they_are_made() {
    let all = Pattern::contiguous(0, OFFSET_MAX).unwrap();
    for method in [Method::Posix, Method::List] {
        let refused = Acquisition::new(wanted(all.clone(), method)).err();
        assert_eq!(refused, Some(PatternError::TooManyRequests { requests_max: REQUESTS_MAX }));
    }
    assert!(Acquisition::new(wanted(all, Method::Datatype)).is_ok());
}

#[test]
fn an_operation_at_a_server_that_was_never_reached_is_given_up_when_it_is_released() {
    let (mut client, mut actions) = (Client::new(SessionId(1), 2), Vec::new());
    let one = Pattern::contiguous(0, 1).unwrap();
    let id = client.lock(Duration::ZERO, wanted(one, Method::Datatype), &mut actions).unwrap();
    assert!(matches!(actions[..], [Action::Connect { server: 0 }]), "{actions:?}");
    actions.clear();
    client.unreachable(Duration::ZERO, 1, &mut actions);
    assert!(actions.is_empty(), "it needs another server: {actions:?}");
    client.unreachable(Duration::ZERO, 0, &mut actions);
    assert!(matches!(actions[..], [Action::Ended(ended, Ended::Released)] if ended == id), "{actions:?}");
    assert!(client.operation(id).is_none());
}

#[test]
fn a_server_that_is_started_again_may_give_a_shorter_lease() {
    let seconds = Duration::from_secs;
    let mut client = Client::new(SessionId(1), 1);
    let wanted = Wanted {
        file: "file".into(),
        operation: 0,
        first_number: 0,
        mode: Mode::Shared,
        pattern: Pattern::contiguous(0, 1).unwrap(),
        stripe_bytes: STRIPE_BYTES,
        servers: 1,
        method: Method::Datatype,
        protocol: Protocol::AltTry,
        waits: true,
    };
    let mut actions = Vec::new();
    client.lock(seconds(0), wanted, &mut actions).unwrap();
    for (time, epoch, lease) in [(0, 1, 3600), (5, 2, 10)] {
        client.disconnected(0);
        client.connected(seconds(time), 0, &mut actions);
        let call = actions.drain(..).rev().find_map(|action| match action {
            Action::Send { call, .. } => Some(call),
            _ => None,
        });
        let reply = Reply::Open { epoch, lease: seconds(lease) };
        client.handle(seconds(time), call.unwrap(), reply, &mut actions);
        let ends = client.ends().unwrap();
        assert!(ends > seconds(time + lease - lease / 10) && ends <= seconds(time + lease), "{ends:?}");
        assert!(client.next_deadline().unwrap() <= ends);
    }
}

/// The calls that a client sends to a server.
fn sent_to(to: u32, actions: &mut Vec<Action>) -> Vec<(u64, Call)> {
    let sent = |action| match action {
        Action::Send { server, call, message } if server == to => Some((call, message)),
        Action::Lost { .. } | Action::Ended(..) => panic!("{action:?}"),
        _ => None,
    };
    actions.drain(..).filter_map(sent).collect()
}

#[test]
fn a_session_that_opens_too_slowly_at_one_server_is_not_lost_at_the_others() {
    let (seconds, lease) = (Duration::from_secs, Duration::from_secs(10));
    let open = Reply::Open { epoch: 1, lease };
    let (mut client, mut actions) = (Client::new(SessionId(1), 2), Vec::new());
    let lock = |client: &mut Client, time, offset, actions: &mut Vec<Action>| {
        let pattern = Pattern::contiguous(offset, 1).unwrap();
        client.lock(time, wanted(pattern, Method::Datatype), actions).unwrap()
    };
    // A lock at the first server is held all the time.
    let held = lock(&mut client, seconds(0), 0, &mut actions);
    client.connected(seconds(0), 0, &mut actions);
    let opening = sent_to(0, &mut actions);
    client.handle(seconds(0), opening[0].0, open.clone(), &mut actions);
    let acquire = sent_to(0, &mut actions);
    let all = |byte| Reply::Acquired {
        progress: Acquired { last: Some(byte), next: None },
        token: Token { epoch: 1, number: 1 },
    };
    client.handle(seconds(0), acquire[0].0, all(0), &mut actions);
    assert!(matches!(actions[..], [Action::Held(id)] if id == held), "{actions:?}");
    // The second one answers at first when the lease that it grants is over, and then when little is left of it.
    let other = lock(&mut client, seconds(0), STRIPE_BYTES, &mut actions);
    client.connected(seconds(0), 1, &mut actions);
    let mut opening = sent_to(1, &mut actions);
    let mut now = 0;
    for takes in [11, 7] {
        for _ in 0..takes {
            now += 1;
            client.tick(seconds(now), &mut actions);
            for (call, message) in sent_to(0, &mut actions) {
                assert!(matches!(message, Call::Renew), "{message:?}");
                client.handle(seconds(now), call, open.clone(), &mut actions);
            }
        }
        let [(call, Call::Open)] = opening[..] else { panic!("{opening:?}") };
        client.handle(seconds(now), call, open.clone(), &mut actions);
        opening = sent_to(1, &mut actions);
        assert!(!client.has_lease(1) && client.holds(seconds(now)));
    }
    client.handle(seconds(now), opening[0].0, open, &mut actions);
    let acquire = sent_to(1, &mut actions);
    let [(call, Call::Acquire { .. })] = acquire[..] else { panic!("{acquire:?}") };
    client.handle(seconds(now), call, all(STRIPE_BYTES), &mut actions);
    assert!(matches!(actions[..], [Action::Held(id)] if id == other), "{actions:?}");
    assert!(client.operation(held).is_some() && client.holds(seconds(now)));
}

#[test]
fn a_session_that_is_lost_at_one_server_is_closed_at_none() {
    let seconds = Duration::from_secs;
    let (mut client, mut actions) = (Client::new(SessionId(1), 2), Vec::new());
    for (server, offset) in [(0, 0), (1, STRIPE_BYTES)] {
        let pattern = Pattern::contiguous(offset, 1).unwrap();
        client.lock(seconds(0), wanted(pattern, Method::Datatype), &mut actions).unwrap();
        client.connected(seconds(0), server, &mut actions);
        let progress = Acquired { last: Some(offset), next: None };
        let acquired = Reply::Acquired { progress, token: Token { epoch: 1, number: 1 } };
        for reply in [Reply::Open { epoch: 1, lease: seconds(10) }, acquired] {
            let sent = sent_to(server, &mut actions);
            client.handle(seconds(0), sent[0].0, reply, &mut actions);
        }
        assert!(matches!(actions[..], [Action::Held(_)]), "{actions:?}");
    }
    client.tick(seconds(5), &mut actions);
    let renewals = sent_to(1, &mut actions);
    client.handle(seconds(5), renewals[0].0, Reply::Refused(Refusal::Lapsed), &mut actions);
    assert!(matches!(actions[0], Action::Lost { server: 1 }), "{actions:?}");
    actions.clear();
    // The other server would give its bytes away although what was written under the lock may still be on its way.
    client.close(&mut actions);
    assert!(actions.is_empty(), "{actions:?}");
}

#[test]
fn an_operation_that_would_take_rounds_without_end_is_refused_and_alt_try_takes_it() {
    let new = |pattern: &Pattern, protocol, servers, waits| {
        let wanted = Wanted {
            file: "file".into(),
            operation: 1,
            first_number: 1,
            mode: Mode::Exclusive,
            pattern: pattern.clone(),
            stripe_bytes: STRIPE_BYTES,
            servers,
            method: Method::Datatype,
            protocol,
            waits,
        };
        Acquisition::new(wanted).map(|_| ())
    };
    let all = Pattern::contiguous(0, OFFSET_MAX).unwrap();
    for (name, protocol) in Protocol::NAMES {
        let refused = new(&all, protocol, 3, true);
        if protocol == Protocol::AltTry {
            refused.unwrap();
        } else {
            let error = PatternError::TooManyRounds {
                protocol: name,
                servers: 3,
                rounds: 1 << 47,
                rounds_max: ROUNDS_MAX,
            };
            assert_eq!(refused, Err(error));
        }
        // One server takes one round, and who does not wait makes one to all.
        new(&all, protocol, 1, true).unwrap();
        new(&all, protocol, 3, false).unwrap();
        // As many stripes as the limit; few regions far from each other.
        let most = Pattern::contiguous(0, ROUNDS_MAX * STRIPE_BYTES).unwrap();
        new(&most, protocol, 3, true).unwrap();
        let sparse = Pattern::new(&Datatype::byte().vector(1 << 10, 1, 1 << 50).at(0)).unwrap();
        new(&sparse, protocol, 3, true).unwrap();
    }
}
