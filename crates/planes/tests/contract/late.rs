//! Devices that are too slow for what is sent: what groups with an age limit get of it, and what those that want every
//! datagram get.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nacre_planes::forward::{Counters, ForwardOptions};
use nacre_planes::plane::PlaneKind;
use nacre_reflect::rate::Rate;
use nacre_reflect::table::GroupOptions;
use nacre_reflect::wire;

use crate::load::{OVERLOAD, flood, numbered, ordered, read, refuses, tried};
use crate::world::{PATIENCE, World};

fn with_age(max_age_ms: u32) -> GroupOptions {
    GroupOptions {
        group_rate: Rate::UNLIMITED,
        member_rate: Rate::UNLIMITED,
        max_age_ms,
        ..GroupOptions::default()
    }
}

/// Waits until all that was sent is admitted or refused, and all copies of what was admitted are accounted for.
fn accounted(world: &World, sent: u64, receivers: u64) -> Counters {
    let counters = world.until("everything is accounted for", |counters| {
        let known = counters.admitted + counters.backlog + counters.socket_full + counters.over_rate;
        known == sent && counters.copies + counters.too_old == counters.admitted * receivers
    });
    assert_eq!((counters.undeliverable, counters.handed_lost), (0, 0), "{counters:?}");
    counters
}

/// The members behind a fast device get everything, and those behind a slow one what it sends in time.
pub fn a_slow_device_throttles_nobody_else(kind: PlaneKind) {
    // A reflector that stands still for longer than the greatest age refuses what has come meanwhile.
    tried(|| throttles_nobody_else(kind));
}

fn throttles_nobody_else(kind: PlaneKind) -> Result<(), String> {
    const SENT: u32 = 300;
    let world = World::new(kind, 2);
    world.sides[1].queue(&world, "tbf rate 200kbit burst 2000 limit 3000");
    let group = world.group(0, with_age(200));
    let members = world.members(group, 6, 4);
    for number in 0..SENT {
        members[0].send(&numbered(0, number, 100));
        std::thread::sleep(Duration::from_millis(2));
    }
    let counters = accounted(&world, u64::from(SENT), 5);
    let from = Instant::now();
    let mut got: Vec<Vec<Vec<u8>>> = members.iter().map(|_| Vec::new()).collect();
    while got.iter().map(|got| got.len() as u64).sum::<u64>() < counters.copies && from.elapsed() < PATIENCE {
        for (member, got) in members.iter().zip(&mut got) {
            got.extend(member.rest());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let got: Vec<u64> = members.iter().zip(&got).map(|(member, got)| ordered(got, member)).collect();
    assert_eq!(got.iter().sum::<u64>(), counters.copies, "{counters:?}");
    // Time makes things old: nothing is left that could come.
    std::thread::sleep(Duration::from_millis(20));
    assert!(members.iter().all(|member| member.rest().is_empty()));
    let of_group = world.with(move |_, forwarder| forwarder.group_counters(group));
    assert_eq!(of_group.too_old, counters.too_old);
    // And the slow device is used again.
    let from = Instant::now();
    loop {
        members[0].send(&numbered(0, SENT, 100));
        members[1].socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        if members[1].socket.recv(&mut [0; 200]).is_ok() {
            break;
        }
        assert!(from.elapsed() < PATIENCE, "the slow device is not used again: {:?}", world.counters());
    }
    let all = u64::from(SENT);
    match counters.admitted == all && got[2] == all && got[4] == all && counters.too_old > 0 {
        true => Ok(()),
        false => {
            Err(format!("the group was throttled, or everything came, however late: {got:?}, {counters:?}"))
        }
    }
}

/// A reflector that could not look for a while does not begin with what is old by then.
pub fn what_has_waited_in_a_socket_is_as_old(kind: PlaneKind) {
    const SENT: u32 = 20;
    let world = World::new(kind, 1);
    // The group with a limit is the second: the kernel begins to note when datagrams come a while after a socket asks.
    for (id, max_age_ms, stall_ms) in [(1, 0, 50), (2, 400, 500)] {
        // A numbered group is copied by user space in every plane.
        let group = world.group(id, GroupOptions { sequence: true, ..with_age(max_age_ms) });
        let members = world.members(group, 2, 4);
        // On a machine that stands still for so long, the first ones are too old as well.
        let before = loop {
            let before = world.counters();
            members[0].send(&numbered(0, 0, 100));
            let counters = world.until("it is admitted or refused", |counters| {
                counters.admitted + counters.backlog == before.admitted + before.backlog + 1
            });
            if counters.admitted > before.admitted {
                assert_eq!(members[1].receive().len(), 116);
                break counters;
            }
        };
        world.stall(|| {
            for number in 1..=SENT {
                members[0].send(&numbered(0, number, 100));
            }
            std::thread::sleep(Duration::from_millis(stall_ms));
        });
        let counters = world.until("all is admitted or refused", |counters| {
            counters.admitted + counters.backlog == before.admitted + before.backlog + u64::from(SENT)
        });
        // A program in the kernel has admitted them, and told user space.
        let refused = max_age_ms > 0 && !kind.in_kernel();
        let backlog = counters.backlog - before.backlog;
        assert_eq!(backlog, if refused { SENT.into() } else { 0 }, "{counters:?}");
        if !refused {
            for number in 1..=SENT {
                assert_eq!(read(&members[1].receive()[16..]), (0, number));
            }
        }
    }
}

/// Tests that the kernel refuses datagrams that come faster than user space can copy them, before they are too old.
pub fn what_comes_too_fast_is_refused_before_it_waits(kind: PlaneKind) {
    if kind.in_kernel() {
        // The sockets get none of it.
        return;
    }
    // A machine that stands still lets datagrams grow old, or sends too few of them.
    tried(|| refused_before_it_waits(kind));
}

fn refused_before_it_waits(kind: PlaneKind) -> Result<(), String> {
    let world = World::new(kind, 1);
    let group = world.group(0, with_age(200));
    let members = world.members(group, 40, 4);
    let mut sent = flood(&members, &[0], 100, Duration::from_millis(500), || true);
    let flooded = accounted(&world, sent, 39);
    // And then everything is taken again.
    let from = Instant::now();
    while world.counters().admitted == flooded.admitted {
        assert!(from.elapsed() < PATIENCE, "nothing is taken any more: {:?}", world.counters());
        members[0].send(&numbered(0, 0, 100));
        sent += 1;
        accounted(&world, sent, 39);
    }
    match flooded.socket_full > flooded.backlog {
        true => Ok(()),
        false => Err(format!("it was received, and refused then: {flooded:?}")),
    }
}

/// A full queue of a device loses the oldest datagrams of its group, and takes the newest.
pub fn the_oldest_make_space_for_the_newest(kind: PlaneKind) {
    const SENT: u32 = 200;
    let options = ForwardOptions { backlog_datagrams: 10, ..ForwardOptions::default() };
    let world = World::with_options(kind, 2, options);
    world.sides[1].queue(&world, "tbf rate 50kbit burst 2000 limit 3000");
    let group = world.group(0, with_age(600_000));
    let members = world.members(group, 6, 4);
    for number in 0..SENT {
        members[0].send(&numbered(0, number, 100));
        assert_eq!(read(&members[2].receive()), (0, number));
    }
    let counters = accounted(&world, u64::from(SENT), 5);
    assert!(counters.too_old > 0, "{counters:?}");
    for member in [&members[1], &members[3], &members[5]] {
        let (mut last, mut count) = (0, 0);
        while last < SENT - 1 {
            last = read(&member.receive()).1;
            count += 1;
        }
        assert!(count < SENT, "{count} came");
    }
}

/// Under overload a plane in the kernel refuses there, and user space has one datagram to finish, not a backlog.
pub fn overload_leaves_no_backlog_in_a_kernel_plane(kind: PlaneKind) {
    let world = World::new(kind, 1);
    world.sides[0].queue(&world, "tbf rate 3mbit burst 2000 limit 20000");
    let group = world.group(0, with_age(600_000));
    let members = world.members(group, 10, 4);
    let done = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let sent = flood(&members, &[0, 1, 5], 100, OVERLOAD, || match kind {
                PlaneKind::Xdp => true,
                PlaneKind::Kernel => refuses(&world),
                PlaneKind::Sendto | PlaneKind::Batch | PlaneKind::Ring => world.counters().full > 0,
            });
            done.store(true, Ordering::Relaxed);
            sent
        });
        while !done.load(Ordering::Relaxed) {
            let waiting = world.with(|_, forwarder| forwarder.waiting_bytes());
            // Of each processor one may be under way when the first is handed over.
            assert!(!kind.in_kernel() || waiting <= 2000, "{waiting} bytes wait: {:?}", world.counters());
            std::thread::sleep(Duration::from_millis(1));
        }
        sender.join().unwrap()
    });
    let counters = accounted(&world, sent, 9);
    let overload = match kind {
        // Copies of programs in drivers go past queues.
        PlaneKind::Xdp => true,
        PlaneKind::Kernel => counters.admitted < sent,
        PlaneKind::Sendto | PlaneKind::Batch | PlaneKind::Ring => counters.full > 0,
    };
    assert!(overload, "that is no overload: {counters:?}");
    let (from, mut got) = (Instant::now(), 0);
    while got < counters.copies && from.elapsed() < PATIENCE {
        got += members.iter().map(|member| member.rest().len() as u64).sum::<u64>();
    }
    assert_eq!(got, counters.copies, "{counters:?}");
}

/// Returns the time for which a device is kept full: a few seconds, or as long as the soak says. Then neighbours age as
/// the system has them do by default.
fn overload_for() -> Duration {
    soak().unwrap_or(Duration::from_secs(3))
}

fn soak() -> Option<Duration> {
    let seconds = std::env::var("NACRE_SOAK_SECONDS").ok()?;
    Some(Duration::from_secs(seconds.parse().expect("a number of seconds")))
}

/// Members behind a full device are heard of, so that the kernel need not ask for them: its questions would not come
/// through, and what is sent to a neighbour of whom it is not sure it drops without a word.
pub fn neighbours_behind_a_full_device_stay_known(kind: PlaneKind) {
    // Neighbours age here within seconds, which a machine may stand still for.
    tried(|| neighbours_stay_known(kind));
}

fn neighbours_stay_known(kind: PlaneKind) -> Result<(), String> {
    let world =
        World::with_options(kind, 2, ForwardOptions { backlog_datagrams: 100, ..ForwardOptions::default() });
    // A queue with room for so many frames, however small these are.
    world.sides[1].queue(&world, "handle 1: tbf rate 2mbit burst 2000 limit 1000000");
    world.reflector.tc(&["qdisc", "add", "dev", "d1", "parent", "1:1", "pfifo", "limit", "30"]).unwrap();
    let ages = [
        ("base_reachable_time_ms", "300"),
        // Longer than a member is left unconfirmed, also where machines are slow; shorter than the overload.
        ("delay_first_probe_time", "2"),
        ("retrans_time_ms", "50"),
        // A neighbour that is not confirmed in time is forgotten without a question, and few wait for the next answer.
        ("ucast_solicit", "0"),
        ("unres_qlen_bytes", "1000"),
        ("mcast_solicit", "1"),
    ];
    for (name, value) in ages.into_iter().filter(|_| soak().is_none()) {
        world.reflector.sysctl(&format!("net/ipv4/neigh/d1/{name}"), value).unwrap();
    }
    let group = world.group(0, with_age(0));
    let members = world.members(group, 6, 4);
    let done = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        // Heartbeats of one member there.
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                members[1].send(&wire::MAGIC);
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let sent = flood(&members, &[0], 100, overload_for(), || refuses(&world));
        done.store(true, Ordering::Relaxed);
        sent
    });
    let counters = accounted(&world, sent, 5);
    assert!(counters.admitted < sent && counters.full > 0, "that is no overload: {counters:?}");
    let (from, mut got) = (Instant::now(), 0);
    // What does not come would make this wait for ever.
    while got < counters.copies && from.elapsed() < Duration::from_secs(10) {
        got += members.iter().map(|member| ordered(&member.rest(), member)).sum::<u64>();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(got <= counters.copies, "{got} came: {counters:?}");
    match got == counters.copies {
        true => Ok(()),
        false => Err(format!("only {got} of the copies that were sent came: {counters:?}")),
    }
}
