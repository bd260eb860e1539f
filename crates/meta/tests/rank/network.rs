//! Ranks behind real sockets, and sessions of clients: passing a sequencer on, taking over, handing over.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nacre_meta::capability::Policy;
use nacre_meta::inode::{Ino, InodeKind};
use nacre_meta::remote::{Sequencer, Session, SessionOptions};
use nacre_meta::role::{Handle, MetaRole, Options, RankNumber};
use nacre_meta::{Creation, Credentials, Rank, RankOptions, SetAttributes};
use nacre_object::testkit::MemoryStore;
use nacre_object::{
    Answer, ErrorKind, KeyRange, ObjectId, ObjectStore, Outcome, ReadOp, Reply, StoreError, Transaction,
    WriteOp,
};
use nacre_rpc::{Address, ServeOptions, Server, ServerLimits, Services};

/// A store that can be cut off.
struct Cut {
    store: Arc<MemoryStore>,
    cut: AtomicBool,
}

impl ObjectStore for Cut {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        match self.cut.load(Ordering::SeqCst) {
            true => Reply::ready(Err(StoreError::new(ErrorKind::Unavailable, "it is cut off"))),
            false => self.store.apply(object, transaction),
        }
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.store.list(after, limit)
    }
}

/// The longest time that anything takes that has to come about.
const PATIENCE: Duration = Duration::from_secs(300);

pub struct Daemon {
    role: Option<MetaRole>,
    server: Option<Server>,
    store: Arc<Cut>,
    pub address: Address,
}

impl Daemon {
    fn start(store: &Arc<MemoryStore>) -> Daemon {
        Daemon::with_lease(store, Duration::from_secs(2))
    }

    /// Starts one whose sessions outlive any pause of a busy machine.
    fn patient(store: &Arc<MemoryStore>) -> Daemon {
        Daemon::with_lease(store, Duration::from_secs(60))
    }

    fn with_lease(store: &Arc<MemoryStore>, lease: Duration) -> Daemon {
        Daemon::ranked(store, 0, lease)
    }

    /// Starts one that acts for a rank, or stands by for it.
    pub fn ranked(store: &Arc<MemoryStore>, rank: RankNumber, lease: Duration) -> Daemon {
        let store = Arc::new(Cut { store: store.clone(), cut: AtomicBool::new(false) });
        let mut role = MetaRole::new(Options {
            store: store.clone(),
            rank,
            keeps_store: false,
            lease,
            takeover: Duration::from_millis(600),
            servers: Vec::new(),
            link: Default::default(),
        })
        .unwrap();
        let server = Server::start(ServeOptions {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            open: true,
            threads: 2,
            key: None,
            socket: Default::default(),
            limits: ServerLimits::default(),
            services: Services::new().with(role.service()),
            poll: Some(Duration::ZERO),
        })
        .unwrap();
        let address = server.addresses()[0].clone();
        role.begin(address.to_string(), vec![address.to_string()]).unwrap();
        Daemon { role: Some(role), server: Some(server), store, address }
    }

    /// Cuts it off from the store.
    pub fn cut_off(&self) {
        self.store.cut.store(true, Ordering::SeqCst);
    }

    pub fn handle(&self) -> Handle {
        self.role.as_ref().unwrap().handle()
    }

    pub fn wait_for(&self, state: &str) {
        let began = Instant::now();
        while self.handle().totals().state != state {
            assert!(began.elapsed() < PATIENCE, "it is not {state}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until it stands by. Returns false if it has the authority instead, as it does if the one that had it stood still.
    fn stands_by(&self) -> bool {
        let state = || self.handle().totals().state;
        until("it knows who has the authority", || matches!(state(), "standby" | "active"));
        state() == "standby"
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.server.take());
        drop(self.role.take());
    }
}

/// Starts a rank and a daemon that stands by for it. Returns nothing if that one has the authority instead, as it does if the
/// first one stood still.
fn rank_with_standby() -> Option<(Arc<MemoryStore>, Daemon, Daemon)> {
    let store = Arc::new(MemoryStore::new());
    let first = Daemon::start(&store);
    first.wait_for("active");
    let second = Daemon::start(&store);
    second.stands_by().then_some((store, first, second))
}

pub fn session(store: &Arc<MemoryStore>, addresses: &[&Address]) -> Session {
    Session::begin(SessionOptions {
        store: store.clone(),
        rank: 0,
        addresses: addresses.iter().map(|address| (*address).clone()).collect(),
        link: Default::default(),
        patience: Duration::from_secs(60),
    })
    .unwrap()
}

fn id() -> ObjectId {
    "nacre/sequencers/log".parse().unwrap()
}

pub fn wait<T>(future: impl Future<Output = T>) -> T {
    futures::executor::block_on(future)
}

/// Takes positions until told to stop. Returns them.
pub fn taker(
    sequencer: Sequencer,
    stop: Arc<AtomicBool>,
    taken: Arc<AtomicU64>,
) -> std::thread::JoinHandle<Vec<u64>> {
    std::thread::spawn(move || {
        let mut positions = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            positions.push(wait(sequencer.next()).unwrap());
            taken.fetch_add(1, Ordering::Relaxed);
            // Enough positions to compare, and no more than fit.
            if positions.len().is_multiple_of(64) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        positions
    })
}

pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Stops takers, and checks that each one's positions ascend and that nobody has another one's.
pub fn check(stop: &AtomicBool, takers: Vec<std::thread::JoinHandle<Vec<u64>>>) {
    stop.store(true, Ordering::Relaxed);
    let mut all = BTreeSet::new();
    for taker in takers {
        let positions = taker.join().unwrap();
        assert!(positions.is_sorted_by(|one, next| one < next));
        for position in positions {
            assert!(all.insert(position), "{position} was handed out twice");
        }
    }
}

#[test]
fn a_sequencer_is_passed_on_by_every_policy() {
    let store = Arc::new(MemoryStore::new());
    let daemon = Daemon::patient(&store);
    let sessions: Vec<Session> = (0..3).map(|_| session(&store, &[&daemon.address])).collect();
    let sequencers: Vec<Sequencer> = sessions.iter().map(|session| session.sequencer(&id())).collect();
    assert_eq!(wait(sequencers[0].next()).unwrap_err().kind, ErrorKind::Invalid);
    wait(sequencers[0].create(Policy::BestEffort)).unwrap();
    assert_eq!(wait(sequencers[1].create(Policy::BestEffort)).unwrap_err().kind, ErrorKind::Busy);
    assert_eq!((wait(sequencers[0].next_many(10)).unwrap(), wait(sequencers[1].read()).unwrap()), (0, 10));

    let (stop, taken) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    // Two threads share a session.
    let takers: Vec<_> = [0, 0, 1, 2]
        .into_iter()
        .map(|session| taker(sequencers[session].clone(), stop.clone(), taken.clone()))
        .collect();
    for policy in ["best-effort", "hold=5ms", "quota=20/50ms", "round-trip", "hold=1ms"] {
        wait(sequencers[0].set_policy(policy.parse().unwrap())).unwrap();
        let (positions, served) = (taken.load(Ordering::Relaxed), daemon.handle().totals().counts);
        until(policy, || {
            let counts = daemon.handle().totals().counts;
            let passed_on = match policy {
                "round-trip" => counts.served > served.served + 200,
                _ => counts.releases > served.releases + 20,
            };
            passed_on && taken.load(Ordering::Relaxed) > positions + 200
        });
    }
    check(&stop, takers);
    let counts = daemon.handle().totals().counts;
    assert_eq!((counts.losses, counts.broken), (0, 0), "{counts:?}");
    // What a session holds is given back with its end, so nobody waits for its lease.
    wait(sequencers[0].next()).unwrap();
    wait(sessions[0].end());
    until("the session has ended", || daemon.handle().totals().sessions == 2);
    assert_eq!(daemon.handle().totals().counts.losses, 0);
    assert!(wait(sequencers[0].next()).is_err());
    wait(sequencers[1].next()).unwrap();
}

#[test]
fn a_standby_takes_over_and_nobody_sees_an_error() {
    // One that stands still for long is replaced as one that is cut off, which nobody asked for here.
    assert!((0..5).any(|_| take_over_and_hand_over()), "the authority moves by itself each time");
}

/// Has the authority pass to another daemon, and back. Returns false if it moved without being asked to.
fn take_over_and_hand_over() -> bool {
    let Some((store, first, second)) = rank_with_standby() else { return false };
    let addresses = [&first.address, &second.address];
    let sessions: Vec<Session> = (0..3).map(|_| session(&store, &addresses)).collect();
    let trips = |session: &Session| session.sequencer(&"nacre/sequencers/trips".parse().unwrap());
    wait(sessions[0].sequencer(&id()).create(Policy::Hold(Duration::from_millis(20)))).unwrap();
    wait(trips(&sessions[0]).create(Policy::RoundTrip)).unwrap();
    let (stop, taken) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let start = |sequencer: Sequencer| taker(sequencer, stop.clone(), taken.clone());
    let cached: Vec<_> = sessions.iter().map(|session| start(session.sequencer(&id()))).collect();
    let tripped: Vec<_> = sessions.iter().map(|session| start(trips(session))).collect();
    until("all take positions", || taken.load(Ordering::Relaxed) > 1000);

    // The first one believes that it is the rank until it cannot renew; it is not stopped by anybody.
    first.store.cut.store(true, Ordering::SeqCst);
    second.wait_for("active");
    let before = taken.load(Ordering::Relaxed);
    until("all take positions again", || taken.load(Ordering::Relaxed) > before + 1000);
    until("by the new rank", || second.handle().totals().positions > 100);
    if second.handle().totals().epoch != 2 {
        check(&stop, cached);
        check(&stop, tripped);
        return false;
    }

    // The first one comes back as a standby, and is handed the authority.
    first.store.cut.store(false, Ordering::SeqCst);
    first.stands_by();
    until("the authority is handed over", || wait(sessions[1].hand_over(0)).is_ok());
    let epochs = || [&first, &second].map(|daemon| daemon.handle().totals().epoch);
    until("it has moved", || epochs().iter().any(|epoch| *epoch > 2));
    if !matches!(epochs(), [3, 0..=2]) {
        check(&stop, cached);
        check(&stop, tripped);
        return false;
    }
    let before = taken.load(Ordering::Relaxed);
    until("all take positions again", || taken.load(Ordering::Relaxed) > before + 1000);
    until("by the first rank", || first.handle().totals().positions > 100);
    check(&stop, cached);
    check(&stop, tripped);
    true
}

#[test]
fn a_sequencer_that_is_handed_over_goes_on_where_it_ended() {
    // If the store does not take in time where it ended, or the authority moves by itself, that costs a gap.
    assert!((0..5).any(|_| hand_over_without_a_gap()), "positions are lost each time");
}

/// Hands the authority over. Returns false if that has cost positions.
fn hand_over_without_a_gap() -> bool {
    let Some((store, first, second)) = rank_with_standby() else { return false };
    let session = session(&store, &[&first.address, &second.address]);
    let log = session.sequencer(&id());
    wait(log.create(Policy::RoundTrip)).unwrap();
    let taken: Vec<u64> = (0..10).map(|_| wait(log.next()).unwrap()).collect();
    until("the authority is handed over", || wait(session.hand_over(0)).is_ok());
    let epochs = || [&first, &second].map(|daemon| daemon.handle().totals().epoch);
    until("it has moved", || epochs().iter().any(|epoch| *epoch > 1));
    let next = wait(log.next()).unwrap();
    assert!(next > taken[9], "{next} after {taken:?}");
    taken.iter().copied().eq(0..10) && next == 10
}

/// Returns the version of the object of the authority, and the number of daemons that stand by.
fn authority(store: &MemoryStore) -> (u64, usize) {
    let range = KeyRange::prefix("standby/");
    let look = Transaction::new().read(ReadOp::Keys { range, limit: 10, values: false });
    match wait(store.apply(&"nacre/ranks/0".parse().unwrap(), look)).unwrap() {
        Outcome::Done(done) => match &done.answers[..] {
            [Answer::Keys(page)] => (done.version, page.entries.len()),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_rank_stops_to_write_once_its_killed_standby_is_gone() {
    // A standby takes over by right from one that stands still for long.
    assert!((0..5).any(|_| stop_to_write()), "the authority moves by itself each time");
}

/// Has the only standby killed. Returns false if the authority moved before.
fn stop_to_write() -> bool {
    let Some((store, first, second)) = rank_with_standby() else { return false };
    until("it stands by", || authority(&store).1 == 1);
    let (version, _) = authority(&store);
    until("the rank shows itself", || authority(&store).0 > version + 3);
    // As if killed: it tells nobody that it leaves.
    second.store.cut.store(true, Ordering::SeqCst);
    drop(second);
    until("its key is removed", || authority(&store).1 == 0);
    let (version, _) = authority(&store);
    // The rank renewed its authority every 150 ms.
    std::thread::sleep(Duration::from_millis(1500));
    let after = authority(&store).0;
    let totals = first.handle().totals();
    if totals.epoch != 1 {
        return false;
    }
    assert_eq!(after, version, "the rank writes although nobody stands by");
    assert_eq!(totals.state, "active");
    true
}

#[test]
fn a_standby_that_was_taken_for_dead_comes_back_and_takes_over() {
    // It takes over by right from one that stands still for long.
    assert!((0..5).any(|_| come_back()), "it takes over although it has seen nothing");
}

/// Has a standby taken for dead and come back. Returns false if it took over before it was to.
fn come_back() -> bool {
    let Some((store, first, second)) = rank_with_standby() else { return false };
    until("it stands by", || authority(&store).1 == 1);
    let sessions: Vec<Session> =
        (0..3).map(|_| session(&store, &[&first.address, &second.address])).collect();
    wait(sessions[0].sequencer(&id()).create(Policy::Hold(Duration::from_millis(5)))).unwrap();
    let (stop, taken) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let takers: Vec<_> =
        sessions.iter().map(|session| taker(session.sequencer(&id()), stop.clone(), taken.clone())).collect();
    until("all take positions", || taken.load(Ordering::Relaxed) > 1000);
    for _ in 0..2 {
        second.store.cut.store(true, Ordering::SeqCst);
        until("its key is removed", || authority(&store).1 == 0);
        // It has seen nothing of the rank for longer than the time to take over, and must not act on that.
        second.store.cut.store(false, Ordering::SeqCst);
        until("it is back", || authority(&store).1 == 1);
        let epoch = first.handle().totals().epoch;
        if (epoch, second.handle().totals().state) != (1, "standby") {
            check(&stop, takers);
            return false;
        }
    }
    first.store.cut.store(true, Ordering::SeqCst);
    second.wait_for("active");
    let before = taken.load(Ordering::Relaxed);
    until("all take positions again", || taken.load(Ordering::Relaxed) > before + 1000);
    check(&stop, takers);
    true
}

/// Begins to take a position, and leaves the reply where it is. Returns false if the reply was there already, as it may
/// be on a busy machine.
fn begin<T>(taking: &mut std::pin::Pin<Box<impl Future<Output = T>>>) -> bool {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    taking.as_mut().poll(&mut context).is_pending()
}

#[test]
fn a_grant_that_is_taken_in_after_the_lease_is_not_used() {
    // On a busy machine the rank may move before its reply has left, and then nothing was lent.
    assert!((0..20).any(|_| take_in_late()), "nothing was ever lent");
}

/// Takes a reply in after the lease of its grant. Returns false if the grant was given up instead.
fn take_in_late() -> bool {
    let store = Arc::new(MemoryStore::new());
    let first = Daemon::start(&store);
    let second = Daemon::start(&store);
    let sessions: Vec<Session> =
        (0..2).map(|_| session(&store, &[&first.address, &second.address])).collect();
    let [late, other] = [0, 1].map(|index| sessions[index].sequencer(&id()));
    wait(other.create(Policy::Hold(Duration::from_secs(3600)))).unwrap();
    // Its session is bound now, so that the request goes out when the future is first polled.
    wait(late.look()).unwrap();
    let mut taking = Box::pin(late.next());
    if !begin(&mut taking) {
        return false;
    }
    until("it is granted", || wait(other.look()).unwrap().held);
    // A program that is slow to take its reply: meanwhile the rank moves, and its lease there ends.
    let active = if first.handle().totals().state == "active" { first } else { second };
    drop(active);
    let next = wait(other.next()).unwrap();
    if next < 1000 {
        return false;
    }
    wait(other.set_policy(Policy::BestEffort)).unwrap();
    wait(taking).unwrap();
    let after = wait(late.next()).unwrap();
    assert!(after > next, "{after} was handed out when {next} was known");
    true
}

#[test]
fn who_gives_up_while_it_is_asked_back_does_not_lose_its_session() {
    assert!((0..20).any(|_| give_up_while_asked_back()), "no reply was ever waited for");
}

/// Gives up a call whose grant is asked back. Returns false if its reply came before it could be given up.
fn give_up_while_asked_back() -> bool {
    let store = Arc::new(MemoryStore::new());
    let daemon = Daemon::patient(&store);
    let sessions: Vec<Session> = (0..2).map(|_| session(&store, &[&daemon.address])).collect();
    let [one, other] = [0, 1].map(|index| sessions[index].sequencer(&id()));
    wait(one.create(Policy::BestEffort)).unwrap();
    let mut taking = Box::pin(one.next());
    if !begin(&mut taking) {
        return false;
    }
    until("it is granted", || wait(other.look()).unwrap().held);
    let waiting = std::thread::spawn(move || wait(other.next()).unwrap());
    until("it is asked back", || one.statistics().revocations > 0);
    drop(taking);
    waiting.join().unwrap();
    let counts = daemon.handle().totals().counts;
    assert_eq!((counts.losses, counts.broken), (0, 0), "{counts:?}");
    true
}

#[test]
fn what_is_no_sequencer_is_left_alone() {
    let store = Arc::new(MemoryStore::new());
    let daemon = Daemon::start(&store);
    let session = session(&store, &[&daemon.address]);
    // An object that holds something else.
    let foreign = Transaction::new()
        .change(WriteOp::SetKey { key: "sequencer".parse().unwrap(), value: "something else".into() });
    assert!(matches!(wait(store.apply(&id(), foreign)), Ok(Outcome::Done(_))));
    let sequencer = session.sequencer(&id());
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let kind = |result: Result<(), StoreError>| result.unwrap_err().kind;
        let read = kind(wait(sequencer.read()).map(drop));
        done.send((read, kind(wait(sequencer.remove())), kind(wait(sequencer.create(Policy::BestEffort)))))
    });
    let kinds = ended.recv_timeout(PATIENCE).expect("each call is answered");
    assert_eq!(kinds, (ErrorKind::Invalid, ErrorKind::Invalid, ErrorKind::Busy));
    // The object of the authority, and one of somebody else.
    for id in ["nacre/ranks/0", "results", "nacre/sequencers/"] {
        let sequencer = session.sequencer(&id.parse().unwrap());
        let error = wait(sequencer.create(Policy::BestEffort)).unwrap_err();
        assert!(error.to_string().contains("cannot hold a sequencer"), "{id}: {error}");
    }
}

#[test]
fn a_name_goes_on_above_what_a_removed_sequencer_gave() {
    let store = Arc::new(MemoryStore::new());
    let daemon = Daemon::patient(&store);
    let session = session(&store, &[&daemon.address]);
    let sequencer = session.sequencer(&id());
    let mut last = None;
    for round in 0..4 {
        // Also of a name that was removed without use, or in front of which something else changed.
        wait(sequencer.create(Policy::BestEffort)).unwrap();
        if round % 2 == 0 {
            let first = wait(sequencer.next_many(5000)).unwrap();
            assert!(last.is_none_or(|last| first > last), "{first} after {last:?}");
            assert!(last.is_some() || first == 0);
            last = Some(first + 4999);
        }
        wait(sequencer.remove()).unwrap();
    }
}

/// Makes a sequencer in the namespace of the store, and returns its inode.
pub fn make(rank: &Rank, name: &[u8], policy: Policy) -> Ino {
    wait(rank.create(&Credentials::root(), Ino::ROOT, name, Creation::sequencer(policy, 0o644))).unwrap().ino
}

#[test]
fn a_sequencer_in_the_namespace_is_handed_on_and_goes_with_its_inode() {
    // A daemon that stands still for long loses the authority by right, and takes it again.
    assert!((0..5).any(|_| hand_on_and_go()), "the authority moves by itself each time");
}

/// Has the rank of a sequencer move, and its inode go. Returns false if the authority moved without being asked to.
fn hand_on_and_go() -> bool {
    let store = Arc::new(MemoryStore::new());
    let options = RankOptions { create: true, ..RankOptions::default() };
    let tree = wait(Rank::open(store.clone(), options)).unwrap();
    let root = Credentials::root();
    let first = Daemon::start(&store);
    first.wait_for("active");
    let ino = make(&tree, b"log", Policy::Hold(Duration::from_millis(5)));
    let sessions: Vec<Session> = (0..3).map(|_| session(&store, &[&first.address])).collect();
    let sequencer = |session: usize| sessions[session].sequencer(&ino.state_object());
    // Nobody has made its state: the rank does, with the policy that the inode names.
    assert_eq!(wait(sequencer(0).look()).unwrap().policy, Policy::Hold(Duration::from_millis(5)));
    for refused in [wait(sequencer(0).create(Policy::RoundTrip)), wait(sequencer(0).remove())] {
        assert!(refused.unwrap_err().to_string().contains("with its inode"));
    }
    let (stop, taken) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let takers: Vec<_> =
        (0..3).map(|session| taker(sequencer(session), stop.clone(), taken.clone())).collect();
    until("all take positions", || taken.load(Ordering::Relaxed) > 1000);
    // Names and permissions change while positions are taken.
    let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    wait(tree.set_attributes(&root, ino, &set)).unwrap();
    wait(tree.rename(&root, (Ino::ROOT, b"log"), (Ino::ROOT, b"renamed"), false)).unwrap();
    let second = Daemon::start(&store);
    if !second.stands_by() {
        check(&stop, takers);
        return false;
    }
    let before = taken.load(Ordering::Relaxed);
    first.store.cut.store(true, Ordering::SeqCst);
    second.wait_for("active");
    until("all go on at the standby", || taken.load(Ordering::Relaxed) > before + 1000);
    check(&stop, takers);
    assert!(wait(tree.check(false)).unwrap().is_clean());

    // Another one is not disturbed when the first goes, although it is in use.
    let other = sessions[1].sequencer(&make(&tree, b"other", Policy::RoundTrip).state_object());
    assert_eq!(wait(other.next()).unwrap(), 0);
    wait(sequencer(0).set_policy(Policy::RoundTrip)).unwrap();
    wait(sequencer(0).next()).unwrap();
    wait(tree.unlink(&root, Ino::ROOT, b"renamed")).unwrap();
    let began = Instant::now();
    let gone = loop {
        // The rank goes on with what it has reserved, and no further.
        match wait(sequencer(2).next_many(1 << 20)) {
            Ok(_) => assert!(began.elapsed() < PATIENCE),
            Err(error) => break error,
        }
    };
    assert_eq!(gone.kind, ErrorKind::Invalid, "{gone}");
    let next = wait(other.next()).unwrap();
    let totals = second.handle().totals();
    if (totals.state, totals.epoch) != ("active", 2) {
        return false;
    }
    assert_eq!(next, 1);
    assert!(wait(tree.check(false)).unwrap().is_clean());
    // There never was one, and an inode of another type is none.
    let file = wait(tree.create(&root, Ino::ROOT, b"file", Creation::new(InodeKind::File, 0o644))).unwrap();
    for ino in [Ino(1 << 40), file.ino] {
        assert!(wait(sessions[0].sequencer(&ino.state_object()).next()).is_err());
    }
    assert!(wait(tree.check(false)).unwrap().is_clean());
    true
}
