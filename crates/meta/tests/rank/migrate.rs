//! Sequencers that move between ranks behind real sockets while sessions take positions of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nacre_meta::capability::Policy;
use nacre_meta::remote::{Sequencer, Session};
use nacre_meta::role::Mode;
use nacre_meta::service::{Call, Reply};
use nacre_meta::{RankOptions, wire};
use nacre_object::testkit::MemoryStore;
use nacre_object::{ErrorKind, ObjectId, StoreError};
use nacre_rpc::client::{Call as Submitted, Host, Link, Request};
use nacre_rpc::{Frame, Outbox};

use crate::network::{Daemon, check, make, session, taker, until, wait};

const LEASE: Duration = Duration::from_secs(60);

fn id(name: &str) -> ObjectId {
    format!("nacre/sequencers/{name}").parse().unwrap()
}

/// Two ranks of a store, and sessions that know the first one.
fn start(sessions: usize) -> (Arc<MemoryStore>, [Daemon; 2], Vec<Session>) {
    let store = Arc::new(MemoryStore::new());
    let daemons = [0, 1].map(|rank| Daemon::ranked(&store, rank, LEASE));
    daemons.iter().for_each(|daemon| daemon.wait_for("active"));
    let sessions = (0..sessions).map(|_| session(&store, &[&daemons[0].address])).collect();
    (store, daemons, sessions)
}

/// Waits until each of the counts has grown by so many.
fn go_on(taken: &[Arc<AtomicU64>], count: u64) {
    let before: Vec<u64> = taken.iter().map(|taken| taken.load(Ordering::Relaxed)).collect();
    until("all take positions", || {
        taken.iter().zip(&before).all(|(taken, before)| taken.load(Ordering::Relaxed) >= before + count)
    });
}

#[test]
fn a_sequencer_moves_to_and_fro_under_load_and_nobody_sees_an_error() {
    let (store, daemons, sessions) = start(3);
    let sequencers: Vec<Sequencer> = sessions.iter().map(|session| session.sequencer(&id("log"))).collect();
    wait(sequencers[0].create(Policy::BestEffort)).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let taken: Vec<Arc<AtomicU64>> = (0..3).map(|_| Arc::default()).collect();
    let takers: Vec<_> = sequencers
        .iter()
        .zip(&taken)
        .map(|(sequencer, taken)| taker(sequencer.clone(), stop.clone(), taken.clone()))
        .collect();
    go_on(&taken, 200);
    for (turn, policy) in ["best-effort", "hold=5ms", "round-trip", "best-effort"].into_iter().enumerate() {
        wait(sequencers[0].set_policy(policy.parse().unwrap())).unwrap();
        let to = 1 - turn as u32 % 2;
        wait(sequencers[1].migrate(to, Mode::Client)).unwrap();
        go_on(&taken, 100);
        until("the other rank has it", || {
            let load = daemons[to as usize].handle().load(10);
            load.resources.iter().any(|resource| resource.id == id("log"))
        });
        until("all have turned to it", || sequencers.iter().all(|sequencer| sequencer.rank() == to));
    }
    assert!(daemons[1].handle().load(10).requests_per_second > 0.0);
    check(&stop, takers);
    let moved = daemons.each_ref().map(|daemon| daemon.handle().totals().migrations.count);
    assert_eq!(moved, [2, 2]);
    let counts = daemons.each_ref().map(|daemon| daemon.handle().totals().counts);
    assert!(counts.iter().all(|counts| (counts.losses, counts.broken) == (0, 0)), "{counts:?}");
    // The tail goes along, so nothing is skipped of what nobody caches.
    let other = sessions[0].sequencer(&id("other"));
    wait(other.create(Policy::RoundTrip)).unwrap();
    assert_eq!(wait(other.next_many(3)).unwrap(), 0);
    wait(other.migrate(1, Mode::Client)).unwrap();
    assert_eq!(wait(other.next()).unwrap(), 3);
    // A session that knows the first rank alone finds it, and what is removed there is removed.
    let late = session(&store, &[&daemons[0].address]).sequencer(&id("other"));
    assert_eq!(wait(late.next()).unwrap(), 4);
    assert_eq!(wait(late.create(Policy::RoundTrip)).unwrap_err().kind, ErrorKind::Busy);
    wait(late.remove()).unwrap();
    assert_eq!(wait(other.next()).unwrap_err().kind, ErrorKind::Invalid);
    wait(other.create(Policy::RoundTrip)).unwrap();
    assert!(wait(late.next()).unwrap() >= 5);
}

#[test]
fn the_other_rank_is_ready_and_clients_have_a_session_there_before_they_ask() {
    let (_store, daemons, sessions) = start(1);
    let sequencer = sessions[0].sequencer(&id("log"));
    wait(sequencer.create(Policy::RoundTrip)).unwrap();
    assert_eq!(wait(sequencer.next()).unwrap(), 0);
    wait(daemons[0].handle().migrate(&id("log"), 1, Mode::Client)).unwrap();
    let handle = daemons[1].handle();
    until("the other rank has positions ready", || {
        handle.list(10).iter().any(|(known, shown)| *known == id("log") && shown.reserved > shown.tail)
    });
    // One is that of the first rank itself.
    until("the client has a session with the other rank", || handle.totals().sessions >= 2);
    assert_eq!(sequencer.rank(), 0, "nobody has redirected it");
    assert_eq!(handle.load(10).requests_per_second, 0.0, "and nobody has asked for a position there");
    assert_eq!((wait(sequencer.next()).unwrap(), sequencer.rank()), (1, 1));
}

#[test]
fn what_cannot_be_moved_stays_where_it_is() {
    let (_store, daemons, sessions) = start(1);
    let sequencer = sessions[0].sequencer(&id("log"));
    assert_eq!(wait(sequencer.migrate(1, Mode::Client)).unwrap_err().kind, ErrorKind::Invalid);
    wait(sequencer.create(Policy::RoundTrip)).unwrap();
    // There is no rank 7.
    let handle = daemons[0].handle();
    let error = wait(handle.migrate(&id("log"), 7, Mode::Client)).unwrap_err();
    assert!(error.to_string().contains("no metadata rank 7"), "{error}");
    assert_eq!(wait(handle.migrate(&id("log"), 1 << 20, Mode::Client)).unwrap_err().kind, ErrorKind::Invalid);
    assert_eq!(wait(sequencer.next()).unwrap(), 0);
    wait(handle.migrate(&id("log"), 1, Mode::Client)).unwrap();
    assert_eq!(wait(handle.migrate(&id("log"), 1, Mode::Client)).unwrap_err().kind, ErrorKind::Invalid);
    assert_eq!((wait(sequencer.next()).unwrap(), sequencer.rank()), (1, 1));
    let ranks = wait(handle.ranks()).unwrap();
    assert_eq!(ranks.iter().map(|rank| rank.rank).collect::<Vec<_>>(), [0, 1]);
    let load = wait(handle.load_of(1)).unwrap();
    assert_eq!((load.rank, load.resources.len(), load.resources[0].id.clone()), (1, 1, id("log")));
}

#[test]
fn the_old_rank_forwards_what_it_is_to() {
    let (store, daemons, sessions) = start(4);
    let sequencers: Vec<Sequencer> = sessions.iter().map(|session| session.sequencer(&id("log"))).collect();
    wait(sequencers[0].create(Policy::BestEffort)).unwrap();
    wait(sequencers[0].next()).unwrap();
    wait(sequencers[0].migrate(1, Mode::Proxy)).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let taken: Vec<Arc<AtomicU64>> = (0..4).map(|_| Arc::default()).collect();
    let takers: Vec<_> = sequencers
        .iter()
        .zip(&taken)
        .map(|(sequencer, taken)| taker(sequencer.clone(), stop.clone(), taken.clone()))
        .collect();
    go_on(&taken, 100);
    let totals = |rank: usize| daemons[rank].handle().totals();
    assert!(totals(0).forwarded > 300 && totals(1).counts.grants == 0, "{:?}", totals(1));
    assert!(sequencers.iter().all(|sequencer| sequencer.rank() == 0));
    assert!(daemons[0].handle().load(10).forwarded_per_second > 0.0);
    // From there on it moves as any other, and its clients go along.
    wait(sequencers[1].migrate(0, Mode::Client)).unwrap();
    go_on(&taken, 100);
    let forwarded = totals(0).forwarded;
    wait(sequencers[1].migrate(1, Mode::Client)).unwrap();
    go_on(&taken, 100);
    until("all have turned to it", || sequencers.iter().all(|sequencer| sequencer.rank() == 1));
    assert_eq!(totals(0).forwarded, forwarded);
    check(&stop, takers);

    // Of many clients some are redirected, and the others not.
    let half = sessions[0].sequencer(&id("half"));
    wait(half.create(Policy::RoundTrip)).unwrap();
    wait(half.migrate(1, Mode::ProxyHalf)).unwrap();
    let many: Vec<Session> = (0..24).map(|_| session(&store, &[&daemons[0].address])).collect();
    let ranks = many.iter().enumerate().map(|(number, session)| {
        let sequencer = session.sequencer(&id("half"));
        assert_eq!(wait(sequencer.next()).unwrap(), number as u64);
        sequencer.rank()
    });
    let redirected: u32 = ranks.sum();
    assert!((1..24).contains(&redirected), "{redirected}");
}

/// A call as a client makes it that knows no redirections.
struct OldCall(ObjectId, Call);

impl Request for OldCall {
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
        wire::put_call(outbox, id, &self.0, &self.1);
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        true
    }
}

#[test]
fn a_client_that_knows_no_ranks_goes_on_at_rank_0() {
    let (_store, daemons, sessions) = start(1);
    let sequencer = sessions[0].sequencer(&id("log"));
    wait(sequencer.create(Policy::BestEffort)).unwrap();
    assert_eq!(wait(sequencer.next_many_by_rank(5)).unwrap(), 0);
    wait(sequencer.migrate(1, Mode::Client)).unwrap();
    let link = |daemon: usize| {
        let address = daemons[daemon].address.clone();
        Link::new(address, (), Arc::new(Default::default()), Arc::new(Host::new(true)))
    };
    let ask = |link: &Arc<Link>, call: Call| -> Frame {
        let mut call = Submitted::start(link.clone(), OldCall(id("log"), call));
        wait(std::future::poll_fn(|context| call.poll_frame(context.waker()))).unwrap()
    };
    let old = link(0);
    for position in 5..10 {
        let frame = ask(&old, Call::Next(1));
        let reply = wire::get_reply(frame.kind, &frame.body);
        // Nothing is to be cached by way of rank 0.
        assert_eq!(reply, Ok(Reply::Positions { first: position, caches: false }));
    }
    let frame = ask(&old, Call::Acquire);
    assert_eq!(wire::get_reply(frame.kind, &frame.body), Ok(Reply::NotCached));
    let frame = ask(&old, Call::Look);
    assert!(matches!(wire::get_reply(frame.kind, &frame.body), Ok(Reply::Shown(shown)) if shown.tail == 10));
    assert_eq!(wait(sequencer.next()).unwrap(), 10);
}

#[test]
fn sequencers_below_a_pinned_directory_are_created_at_its_rank() {
    let (store, daemons, sessions) = start(1);
    let options = RankOptions { create: true, ..RankOptions::default() };
    let tree = wait(nacre_meta::Rank::open(store.clone(), options)).unwrap();
    let before = sessions[0].sequencer(&make(&tree, b"before", Policy::RoundTrip).state_object());
    assert_eq!(wait(before.next()).unwrap(), 0);
    wait(nacre_meta::role::pin::set(&*store, nacre_meta::inode::Ino::ROOT, Some(1))).unwrap();
    let after = sessions[0].sequencer(&make(&tree, b"after", Policy::RoundTrip).state_object());
    assert_eq!((wait(after.next()).unwrap(), after.rank()), (0, 1));
    // What was used before stays until it is moved.
    assert_eq!((wait(before.next()).unwrap(), before.rank()), (1, 0));
    wait(before.migrate(1, Mode::Client)).unwrap();
    assert_eq!((wait(before.next()).unwrap(), before.rank()), (2, 1));
    assert_eq!(daemons[1].handle().load(10).resources.len(), 2);
    assert!(wait(tree.check(false)).unwrap().is_clean());
}

#[test]
fn a_rank_that_falls_over_while_its_sequencers_move_leaves_each_with_one_rank() {
    // Of three sequencers that move all the time, those who use them notice nothing but a pause.
    let store = Arc::new(MemoryStore::new());
    let lease = Duration::from_secs(2);
    let mut daemons: Vec<Daemon> = [0, 1, 0, 1].map(|rank| Daemon::ranked(&store, rank, lease)).into();
    until("both ranks act", || {
        let acting = |rank: u32| {
            let mut totals = daemons.iter().map(|daemon| daemon.handle().totals());
            totals.any(|totals| totals.rank == rank && totals.state == "active")
        };
        acting(0) && acting(1)
    });
    let addresses: Vec<_> = daemons.iter().map(|daemon| daemon.address.clone()).collect();
    let known: Vec<_> = addresses.iter().collect();
    let sessions: Vec<Session> = (0..3).map(|_| session(&store, &known)).collect();
    let names = ["a", "b", "c"];
    for name in names {
        wait(sessions[0].sequencer(&id(name)).create(Policy::Hold(Duration::from_millis(5)))).unwrap();
    }
    let stop = Arc::new(AtomicBool::new(false));
    let taken: Vec<Arc<AtomicU64>> = (0..9).map(|_| Arc::default()).collect();
    let mut takers: Vec<Vec<_>> = Vec::new();
    for (at, name) in names.iter().enumerate() {
        let of_name = sessions.iter().zip(&taken[3 * at..]);
        let start = |(session, taken): (&Session, &Arc<AtomicU64>)| {
            taker(session.sequencer(&id(name)), stop.clone(), taken.clone())
        };
        takers.push(of_name.map(start).collect());
    }
    go_on(&taken, 100);
    let (mover, turns) = (session(&store, &known), Arc::new(AtomicU64::new(0)));
    let moving = {
        let (stop, turns) = (stop.clone(), turns.clone());
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let turn = turns.fetch_add(1, Ordering::Relaxed);
                let name = names[turn as usize % 3];
                let mode = [Mode::Client, Mode::Proxy, Mode::Client, Mode::ProxyHalf][turn as usize / 3 % 4];
                // A rank that is gone for the moment takes nothing.
                let _ = wait(mover.sequencer(&id(name)).migrate((turn / 3 % 2) as u32, mode));
                std::thread::sleep(Duration::from_millis(20));
            }
        })
    };
    go_on(&taken, 100);
    for rank in [1, 0] {
        let active = |daemon: &Daemon| {
            let totals = daemon.handle().totals();
            totals.rank == rank && totals.state == "active"
        };
        let at = daemons.iter().position(active);
        // On a busy machine it may be on its way from one to the other.
        match at {
            // One is cut off, and does not know it; the other one says that it leaves.
            Some(at) if rank == 1 => daemons[at].cut_off(),
            Some(at) => drop(daemons.remove(at)),
            None => {}
        }
        let before = turns.load(Ordering::Relaxed);
        go_on(&taken, 100);
        until("they go on moving", || turns.load(Ordering::Relaxed) > before + 6);
    }
    stop.store(true, Ordering::Relaxed);
    moving.join().unwrap();
    for takers in takers {
        check(&stop, takers);
    }
}
