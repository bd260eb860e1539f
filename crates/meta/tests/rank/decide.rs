//! Policies by programs: whatever a program decides, there is one holder, and nobody waits for ever.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nacre_meta::capability::{
    Capabilities, Decision, Grant, Order, Policy, ProgramName, Programs, SWAY, Session, Ticket, Undecided,
    View, WAITERS_MAX,
};
use nacre_meta::wire;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const LEASE: Duration = Duration::from_millis(400);
const LOG: u32 = 1;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn policy() -> Policy {
    "lua=any".parse().unwrap()
}

/// Programs that decide by chance.
#[derive(Debug)]
struct Chance(Mutex<StdRng>);

impl Programs for Chance {
    fn prepare(&self, name: ProgramName) {
        assert_eq!(name.as_str(), "any");
    }

    fn on_request(&self, _: Duration, _: ProgramName, view: &View<'_>) -> Result<Decision, Undecided> {
        assert!((1..=WAITERS_MAX).contains(&view.waiters.len()));
        let mut rng = self.0.lock().unwrap();
        match rng.random_range(0..4) {
            0 => Err(Undecided),
            1 => Ok(Decision { after: Duration::MAX, next: Some(view.waiters.len() + 7) }),
            _ => {
                let next = Some(rng.random_range(0..view.waiters.len()));
                Ok(Decision { after: ms(rng.random_range(0..2000)), next })
            }
        }
    }

    fn on_release(&self, _: Duration, _: ProgramName, view: &View<'_>) -> Result<Option<usize>, Undecided> {
        assert!((2..=WAITERS_MAX).contains(&view.waiters.len()));
        let mut rng = self.0.lock().unwrap();
        match rng.random_range(0..4) {
            0 => Err(Undecided),
            1 => Ok(None),
            // The one that came last, again and again.
            _ => Ok(Some(view.waiters.len() - 1)),
        }
    }
}

/// Programs that always decide the same.
#[derive(Debug)]
struct Always(Decision);

impl Programs for Always {
    fn prepare(&self, _: ProgramName) {}

    fn on_request(&self, _: Duration, _: ProgramName, _: &View<'_>) -> Result<Decision, Undecided> {
        Ok(self.0)
    }

    fn on_release(&self, _: Duration, _: ProgramName, _: &View<'_>) -> Result<Option<usize>, Undecided> {
        Ok(None)
    }
}

/// The state of a resource by the orders about it.
struct Known {
    seed: u64,
    holder: Option<(Session, Grant)>,
    asked: bool,
    waiting: BTreeMap<Ticket, (Session, Duration)>,
    grants: usize,
}

impl Known {
    fn take(&mut self, out: &mut Vec<Order<u32>>) {
        let seed = self.seed;
        for order in out.drain(..) {
            match order {
                Order::Grant { session, ticket, grant, .. } => {
                    assert_eq!(self.holder, None, "seed {seed}: two holders");
                    assert!(self.waiting.remove(&ticket).is_some(), "seed {seed}: answered twice");
                    (self.holder, self.asked) = (Some((session, grant)), false);
                    self.grants += 1;
                }
                Order::Serve { ticket, .. } => {
                    assert_eq!(self.holder, None, "seed {seed}: served while it is held");
                    assert!(self.waiting.remove(&ticket).is_some(), "seed {seed}: answered twice");
                }
                Order::Revoke { session, grant, quota, .. } => {
                    assert_eq!((self.holder, quota), (Some((session, grant)), None), "seed {seed}");
                    self.asked = true;
                }
                order => panic!("seed {seed}: {order:?}"),
            }
        }
    }
}

/// Runs a schedule from a seed. Returns the number of grants.
fn schedule(seed: u64) -> usize {
    const SESSIONS: u64 = 5;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut table = Capabilities::new(LEASE, 0);
    table.set_programs(Some(Arc::new(Chance(Mutex::new(StdRng::seed_from_u64(!seed))))));
    table.add(Duration::ZERO, LOG, policy(), None);
    let mut known = Known { seed, holder: None, asked: false, waiting: BTreeMap::new(), grants: 0 };
    let (mut now, mut tickets, mut out) = (Duration::ZERO, 0, Vec::new());
    for _ in 0..2000 {
        now += ms(rng.random_range(0..20));
        for session in 1..=SESSIONS {
            assert!(table.renew(now, session));
        }
        table.tick(now, &mut out);
        known.take(&mut out);
        // A holder that was asked gives it back, any other now and then.
        let gives_back = known.asked || rng.random_range(0..50) == 0;
        if gives_back && let Some((session, grant)) = known.holder.take() {
            table.release(now, &LOG, session, grant, rng.random_range(0..100)).unwrap();
            table.go_on(now, &LOG, &mut out);
            known.take(&mut out);
        }
        let session = rng.random_range(1..=SESSIONS);
        let is_idle = known.holder.is_none_or(|(holder, _)| holder != session)
            && known.waiting.values().all(|(waiter, _)| *waiter != session);
        match rng.random_range(0..40) {
            action @ 0..20 if is_idle => {
                tickets += 1;
                known.waiting.insert(tickets, (session, now));
                match action {
                    0..12 => table.acquire(now, &LOG, session, tickets, &mut out),
                    _ => table.serve(now, &LOG, Some(session), tickets, &mut out),
                }
            }
            20 => {
                if let Some((ticket, _)) = known.waiting.pop_last() {
                    assert!(table.give_up(now, &LOG, ticket, &mut out));
                }
            }
            21 => table.set_policy(now, &LOG, Policy::BestEffort, &mut out),
            22..35 => table.set_policy(now, &LOG, policy(), &mut out),
            35 => table.remind(&LOG, &mut out),
            _ => {}
        }
        known.take(&mut out);
        // Each of those before it in the line has it for a few steps, once it has waited for so long.
        let bound = LEASE * SWAY + ms(20) * 3 * SESSIONS as u32;
        for (session, since) in known.waiting.values() {
            assert!(
                now - *since <= bound,
                "seed {seed}: {session} has waited since {since:?}, it is {now:?}"
            );
        }
    }
    let counts = table.counts();
    assert!(counts.decisions > 0 && counts.undecided > 0, "seed {seed}: {counts:?}");
    known.grants
}

#[test]
fn whatever_programs_decide_there_is_one_holder_and_nobody_waits_for_ever() {
    let grants: usize = (0..100).map(schedule).sum();
    assert!(grants > 5000, "{grants}");
}

#[test]
fn a_decision_stands_until_its_time_or_until_the_resource_is_to_leave() {
    let mut table = Capabilities::new(LEASE, 0);
    table.set_programs(Some(Arc::new(Always(Decision { after: ms(50), next: None }))));
    table.add(Duration::ZERO, LOG, policy(), None);
    for session in [1, 2] {
        assert!(table.renew(Duration::ZERO, session));
    }
    let asks = |out: &mut Vec<Order<u32>>| {
        let asks = out.iter().filter(|order| matches!(order, Order::Revoke { .. })).count();
        out.clear();
        asks
    };
    let mut out = Vec::new();
    table.acquire(ms(0), &LOG, 1, 1, &mut out);
    table.acquire(ms(10), &LOG, 2, 2, &mut out);
    assert_eq!(asks(&mut out), 0);
    assert_eq!(table.next_deadline(), Some(ms(60)));
    // A holder that comes back over another connection is not asked before its time.
    table.remind(&LOG, &mut out);
    table.tick(ms(59), &mut out);
    assert_eq!(asks(&mut out), 0);
    let mut leaving = table.clone();
    leaving.freeze(ms(59), &LOG, &mut out);
    assert_eq!(asks(&mut out), 1);
    let mut changed = table.clone();
    changed.set_policy(ms(59), &LOG, Policy::BestEffort, &mut out);
    assert_eq!(asks(&mut out), 1);
    table.tick(ms(60), &mut out);
    assert_eq!(asks(&mut out), 1);
    table.tick(ms(61), &mut out);
    assert_eq!(asks(&mut out), 0);
    table.remind(&LOG, &mut out);
    assert_eq!(asks(&mut out), 1);
}

#[test]
fn the_name_of_a_program_is_short_and_has_one_spelling() {
    for name in ["a", "fair-1.2_x", "0123456789abcdef"] {
        let policy: Policy = format!("lua={name}").parse().unwrap();
        assert_eq!(policy.to_string(), format!("lua={name}"));
        assert!(policy.caches());
        let (code, first, second) = wire::policy_numbers(policy);
        assert_eq!((code, wire::policy_of(code, first, second)), (5, Some(policy)));
    }
    let named = |text: &[u8]| {
        let mut bytes = [0; 16];
        bytes[..text.len()].copy_from_slice(text);
        let name = u128::from_le_bytes(bytes);
        wire::policy_of(5, name as u64, (name >> 64) as u64)
    };
    assert_eq!(named(b"any"), Some(policy()));
    for text in [&b""[..], b"any\0x", b"any\n", b"\0any", b"an\xe4"] {
        assert_eq!(named(text), None);
    }
    for text in ["lua", "lua=", "lua=0123456789abcdefg", "lua=a b", "lua=.a", "lua=\u{e4}"] {
        assert!(text.parse::<Policy>().is_err(), "{text}");
    }
}
