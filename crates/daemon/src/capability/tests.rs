//! The scripts that ship, and bad ones, in simulations of a resource that sessions pass on.

use std::collections::BTreeMap;
use std::time::Instant;

use nacre_class::Bounds;
use nacre_map::{ProposeOptions, Update};
use nacre_meta::capability::{Capabilities, Grant, Order, Party, Policy, SWAY, Session, Ticket};
use nacre_object::testkit::MemoryStore;

use super::script::SCRIPT_BYTES_MAX;
use super::*;

const PRIORITY: &str = include_str!("../../../../policies/capability/priority.lua");
const FAIRNESS: &str = include_str!("../../../../policies/capability/fairness.lua");
const BUSY: &str = include_str!("../../../../policies/capability/busy.lua");

const LEASE: Duration = Duration::from_millis(400);
/// The resource.
const LOG: u32 = 7;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn compiled(text: &str) -> Result<Script, String> {
    // A machine that stands still for a while fails no test.
    Script::new("test", 1, text, Bounds { wall: Duration::from_secs(60), ..BOUNDS })
}

/// One script, by whatever name.
#[derive(Debug)]
struct One(Script);

impl Programs for One {
    fn prepare(&self, _name: ProgramName) {}

    fn on_request(&self, now: Duration, _name: ProgramName, view: &View<'_>) -> Result<Decision, Undecided> {
        self.0.on_request(now, view)
    }

    fn on_release(
        &self,
        now: Duration,
        _name: ProgramName,
        view: &View<'_>,
    ) -> Result<Option<usize>, Undecided> {
        self.0.on_release(now, view)
    }
}

/// A resource with sessions, numbered from 1 in the order in which they began.
struct World {
    table: Capabilities<u32>,
    now: Duration,
    sessions: Session,
    tickets: Ticket,
    holder: Option<(Session, Grant)>,
    /// True if the holder was asked for the resource.
    asked: bool,
    waiting: BTreeMap<Ticket, (Session, Duration)>,
    /// The grants: the sessions, and the times for which they had waited.
    grants: Vec<(Session, Duration)>,
    operations: BTreeMap<Session, u64>,
}

impl World {
    fn new(text: &str, sessions: Session) -> World {
        let mut table = Capabilities::new(LEASE, 0);
        table.set_programs(Some(Arc::new(One(compiled(text).unwrap()))));
        for session in 1..=sessions {
            assert!(table.renew(Duration::ZERO, session));
        }
        table.add(Duration::ZERO, LOG, Policy::Lua("test".parse().unwrap()), None);
        World {
            table,
            now: Duration::ZERO,
            sessions,
            tickets: 0,
            holder: None,
            asked: false,
            waiting: BTreeMap::new(),
            grants: Vec::new(),
            operations: BTreeMap::new(),
        }
    }

    fn carry(&mut self, out: Vec<Order<u32>>) {
        for order in out {
            match order {
                Order::Grant { session, ticket, grant, .. } => {
                    assert_eq!(self.holder, None, "it has two holders");
                    let (waiter, since) = self.waiting.remove(&ticket).unwrap();
                    assert_eq!(waiter, session);
                    self.grants.push((session, self.now - since));
                    (self.holder, self.asked) = (Some((session, grant)), false);
                }
                Order::Revoke { session, grant, quota, .. } => {
                    assert_eq!((self.holder, quota), (Some((session, grant)), None));
                    self.asked = true;
                }
                order => panic!("{order:?}"),
            }
        }
    }

    fn want(&mut self, session: Session) {
        self.tickets += 1;
        self.waiting.insert(self.tickets, (session, self.now));
        let mut out = Vec::new();
        self.table.acquire(self.now, &LOG, session, self.tickets, &mut out);
        self.carry(out);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        for session in 1..=self.sessions {
            assert!(self.table.renew(self.now, session));
        }
        let mut out = Vec::new();
        self.table.tick(self.now, &mut out);
        self.carry(out);
    }

    /// Gives the resource back. Returns who did.
    fn release(&mut self, operations: u64) -> Session {
        let (session, grant) = self.holder.take().unwrap();
        *self.operations.entry(session).or_default() += operations;
        self.table.release(self.now, &LOG, session, grant, operations).unwrap();
        let mut out = Vec::new();
        self.table.go_on(self.now, &LOG, &mut out);
        self.carry(out);
        session
    }

    fn holder(&self) -> Session {
        self.holder.map_or(0, |(session, _)| session)
    }

    /// Passes time until the holder has been asked for it, and passes it on; then it wants it again.
    fn go_round(&mut self, operations: impl Fn(Session) -> u64) {
        while !self.asked {
            self.pass(ms(2));
        }
        let session = self.release(operations(self.holder()));
        self.want(session);
    }

    fn granted(&self, session: Session) -> usize {
        self.grants.iter().filter(|(to, _)| *to == session).count()
    }
}

#[test]
fn priority_goes_by_the_order_of_sessions_but_starves_nobody() {
    let mut world = World::new(PRIORITY, 4);
    world.want(3);
    world.want(4);
    assert_eq!((world.holder(), world.asked), (3, false));
    world.pass(ms(1));
    world.want(2);
    assert!(world.asked, "an earlier session waits");
    world.release(1);
    assert_eq!(world.holder(), 2);
    world.pass(ms(30));
    assert!(!world.asked, "only a later one waits");
    world.pass(ms(11));
    assert!(world.asked);
    world.want(1);
    // The first two always want it. The last one has it all the same, when it has waited for long enough.
    while world.granted(4) == 0 {
        world.go_round(|_| 1);
        assert!(world.now < ms(5000), "{:?}", world.grants);
    }
    let (_, waited) = world.grants[world.grants.len() - 1];
    let bound = LEASE * SWAY;
    assert!((bound - ms(60)..bound + ms(60)).contains(&waited), "{waited:?}");
    assert!(world.granted(1) > 3 && world.granted(2) > 3, "{:?}", world.grants);
}

#[test]
fn priority_is_not_put_off_by_those_who_come_later() {
    let mut world = World::new(PRIORITY, 3);
    world.want(1);
    world.want(2);
    world.pass(ms(30));
    world.want(3);
    assert_eq!((world.holder(), world.asked), (1, false));
    world.pass(ms(11));
    assert!(world.asked, "it has had it for a tenth of the lease");
}

#[test]
fn fairness_goes_by_operations() {
    let mut world = World::new(FAIRNESS, 3);
    world.want(1);
    world.want(2);
    assert!(!world.asked, "neither has had anything");
    world.pass(ms(11));
    assert!(world.asked);
    world.want(3);
    // The first session does twice as much at a time as the third, and that twice and a half as much as the second.
    for _ in 0..120 {
        world.go_round(|session: Session| [50, 10, 25][session as usize - 1]);
    }
    let granted = [1, 2, 3].map(|session| world.granted(session));
    assert!(granted[0] < 30 && granted[1] > 50 && granted[2] > 30, "{granted:?}");
    assert!(world.operations[&1].abs_diff(world.operations[&3]) <= 100, "{:?}", world.operations);
}

#[test]
fn busy_holders_are_left_alone_for_longer() {
    let mut world = World::new(BUSY, 2);
    let operations = |session: Session| -> u64 { if session == 1 { 20_000 } else { 0 } };
    world.want(1);
    world.want(2);
    assert!(!world.asked);
    world.pass(ms(2));
    assert!(world.asked, "nothing is known of it yet");
    world.go_round(operations);
    world.pass(ms(2));
    assert!(world.asked && world.holder() == 2);
    world.go_round(operations);
    world.pass(ms(15));
    assert!(!world.asked && world.holder() == 1, "it has done much");
    world.pass(ms(10));
    assert!(world.asked);
    world.go_round(operations);
    world.pass(ms(2));
    assert!(world.asked && world.holder() == 2, "it has done nothing");
}

#[test]
fn a_script_that_favours_one_for_ever_has_no_more_than_its_time() {
    let hoard = "function on_request(state) return math.huge, #state.waiters end \
                 function on_release(state) return #state.waiters end";
    let mut world = World::new(hoard, 5);
    for session in 1..=5 {
        world.want(session);
    }
    for _ in 0..40 {
        world.go_round(|_| 1);
    }
    let bound = LEASE * SWAY + ms(20);
    assert!(world.grants.iter().all(|(_, waited)| *waited <= bound), "{:?}", world.grants);
    assert!((1..=5).all(|session| world.granted(session) >= 5), "{:?}", world.grants);
}

#[test]
fn a_script_that_fails_is_best_effort() {
    // They fail when it counts, and not when they are tried.
    for failing in [
        "while true do end",
        "return 0, 99",
        "return 'soon'",
        "return 0, 1.5",
        "error('no')",
        "objclass.read(0, 10)",
        "local t = {} for i = 1, 1e9 do t[i] = {} end",
    ] {
        let text =
            format!("function on_request(state) if state.lease_us == 400000 then {failing} end return 5 end");
        let mut world = World::new(&text, 3);
        world.want(1);
        world.want(2);
        assert!(world.asked, "{failing}");
        let counts = world.table.counts();
        assert_eq!((counts.decisions, counts.undecided), (0, 1), "{failing}");
        world.want(3);
        assert_eq!((world.release(0), world.holder()), (1, 2), "{failing}");
    }
}

#[test]
fn a_script_that_exceeds_a_bound_rests() {
    let script =
        compiled("function on_request(state) if state.lease_us == 1 then while true do end end return 5 end");
    let script = script.unwrap();
    let waiters = [Party { session: 2, ..Party::default() }];
    let bad = View { lease: Duration::from_micros(1), holder: Party::default(), waiters: &waiters };
    let good = View { lease: LEASE, ..bad };
    let decision = Ok(Decision { after: Duration::from_micros(5), next: None });
    assert_eq!(script.on_request(ms(0), &good), decision);
    assert_eq!(script.on_request(ms(1), &bad), Err(Undecided));
    assert_eq!(script.on_request(ms(900), &good), Err(Undecided));
    assert_eq!(script.on_request(ms(1100), &good), decision);
}

#[test]
fn texts_that_are_no_policy_are_refused() {
    let long = format!("function on_request(state) end --{}", "x".repeat(SCRIPT_BYTES_MAX));
    for (text, reason) in [
        ("", "defines neither"),
        ("on_request = 5", "defines neither"),
        ("function on_request(state", "expected near"),
        ("function on_request(state) return state.waiters[9].session end", "nil"),
        ("function on_release(state) return 3 end", "numbered 1 to 2"),
        ("while true do end", "does not end"),
        (long.as_str(), "the limit is 49152"),
    ] {
        let refused = compiled(text).unwrap_err();
        assert!(refused.contains(reason), "{text}: {refused}");
        assert!(!refused.contains('\n'));
    }
}

#[test]
fn a_script_sees_the_holder_and_who_waits() {
    let text = "function on_request(state)
        local h, a, b = state.holder, state.waiters[1], state.waiters[2]
        assert(#state.waiters == 2 and state.lease_us > 0)
        if h.session ~= 11 then return 0 end
        assert(h.order == 1 and h.held_us == 1500 and h.requests == 3 and h.grants == 2 and h.operations == 70)
        assert(h.round_trip == false and a.round_trip == true and a.session == 0 and a.waiting_us == 0)
        assert(b.session == 12 and b.order == 2 and b.waiting_us == 9)
        return 42.9, 2
    end";
    let holder = Party {
        session: 11,
        order: 1,
        time: Duration::from_micros(1500),
        requests: 3,
        grants: 2,
        operations: 70,
        is_round_trip: false,
    };
    let waiters = [
        Party { is_round_trip: true, ..Party::default() },
        Party { session: 12, order: 2, time: Duration::from_micros(9), ..Party::default() },
    ];
    let decided = compiled(text).unwrap().run(false, &View { lease: LEASE, holder, waiters: &waiters }, None);
    assert_eq!(decided, Ok(Decision { after: Duration::from_micros(42), next: Some(1) }));
}

#[test]
fn scripts_are_those_that_the_map_names() {
    let store: Arc<dyn ObjectStore> = Arc::new(MemoryStore::new());
    let policies = CapabilityPolicies::start(store.clone()).unwrap();
    let programs = policies.programs();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let proposer = ClusterMap::new(store, MAP).unwrap().proposer(ProposeOptions::default());
    let change = |text: Option<&str>| {
        let (update, key) = (Update::new("test"), "mine".parse().unwrap());
        let update = match text {
            Some(text) => update.set(key, text.to_owned()),
            None => update.remove(key),
        };
        runtime.block_on(proposer.propose(update)).unwrap();
    };
    let name: ProgramName = "mine".parse().unwrap();
    let began = Instant::now();
    let until = |wanted: Result<u64, Undecided>| {
        let waiters = [Party::default()];
        let view = View { lease: LEASE, holder: Party::default(), waiters: &waiters };
        let wanted = wanted.map(|us| Decision { after: Duration::from_micros(us), next: None });
        while programs.on_request(began.elapsed(), name, &view) != wanted {
            assert!(began.elapsed() < Duration::from_secs(120), "{wanted:?}");
            std::thread::sleep(ms(5));
        }
    };
    change(Some("function on_request(state) return 1 end"));
    assert_eq!(
        programs.on_release(ms(0), name, &View { lease: LEASE, holder: Party::default(), waiters: &[] }),
        Err(Undecided)
    );
    programs.prepare(name);
    until(Ok(1));
    change(Some("function on_request(state) return 2 end"));
    until(Ok(2));
    change(Some("function on_request(state) return"));
    until(Err(Undecided));
    change(Some("function on_request(state) return 3 end"));
    until(Ok(3));
    change(None);
    until(Err(Undecided));
    change(Some("function on_request(state) return 4 end"));
    until(Ok(4));
}
