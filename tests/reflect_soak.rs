//! Two reflectors under members that join, leave, crash and move concurrently. In the end no member is stuck, nothing
//! has leaked, and the counters add up.
//!
//! A quarter of a minute by default; `make soak` takes ten minutes, or SOAK_SECONDS.

mod harness;

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use harness::reflect::{Reflector, relocate, until};
use harness::{Memory, Random, Server};
use nacre_reflect::client::{Client, ClientError, ClientEvent};
use nacre_reflect::member::{MemberEvent, MemberOptions, SendError, Target, Wanted};

/// The number of threads with members, and of members of each.
const THREADS: u64 = 2;
const MEMBERS: usize = 24;
/// The number of groups that members choose from, at each reflector, and that of locations.
const GROUPS: u64 = 8;
const LOCATIONS: u64 = 4;
/// The number of groups that locations are in.
const LOCATION_GROUPS: u32 = 100;

/// The state shared by all threads.
struct World {
    reflectors: [std::net::SocketAddr; 2],
    /// True while members still come and go.
    moving: AtomicBool,
    /// True while members are still present.
    present: AtomicBool,
    sent: AtomicU64,
    heard: AtomicU64,
    crashed: AtomicU64,
    /// The group and reflector of each member, by thread; `None` for a member in transition.
    there: [Mutex<Vec<Option<Target>>>; THREADS as usize],
}

/// A member, and its record.
struct Member {
    client: Client,
    name: String,
    /// The mark of the datagrams that it sends: a group's number, or a location.
    room: String,
    /// False for locations, which move, so that datagrams in transit may arrive in any order.
    in_order: bool,
    number: u64,
    /// The last number by sender.
    heard: HashMap<String, u64>,
}

impl Member {
    fn new(world: &World, random: &mut Random, name: String) -> Member {
        let (wanted, room, in_order) = choose(world, random);
        let options = MemberOptions { echo: random.below(4) == 0, ..MemberOptions::default() };
        let client = Client::new(wanted, options).unwrap();
        Member { client, name, room, in_order, number: 0, heard: HashMap::new() }
    }

    /// Handles the events that have arrived.
    fn listen(&mut self, world: &World) {
        while let Some(event) = self.client.poll(Duration::ZERO).unwrap() {
            match event {
                ClientEvent::Datagram { payload, .. } => self.hear(world, &payload),
                ClientEvent::Member(MemberEvent::Joined { .. }) => self.heard.clear(),
                ClientEvent::Member(_) => {}
            }
        }
    }

    fn hear(&mut self, world: &World, payload: &[u8]) {
        world.heard.fetch_add(1, Ordering::Relaxed);
        let text = std::str::from_utf8(payload).expect("members send text");
        let words: Vec<&str> = text.split(' ').collect();
        let [room, sender, number, _] = words[..] else { panic!("nobody sent \"{text}\"") };
        // A member that has just moved may still receive datagrams of its former room.
        if room != self.room {
            return;
        }
        let number: u64 = number.parse().unwrap();
        let last = self.heard.insert(sender.to_owned(), number);
        if self.in_order {
            assert!(last.is_none_or(|last| last < number), "{sender} sent {number} after {last:?}");
        }
    }

    fn send(&mut self, world: &World, random: &mut Random) {
        for _ in 0..=random.below(20) {
            self.number += 1;
            let filling = "x".repeat(random.below(1000) as usize);
            let text = format!("{} {} {} {filling}", self.room, self.name, self.number);
            match self.client.send(text.as_bytes()) {
                Ok(()) => drop(world.sent.fetch_add(1, Ordering::Relaxed)),
                Err(ClientError::Send(SendError::NotJoined)) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn choose(world: &World, random: &mut Random) -> (Wanted, String, bool) {
    if random.below(3) == 0 {
        let name = format!("place-{}", random.below(LOCATIONS));
        let wanted = Wanted::Location { name: name.clone(), reflectors: world.reflectors.to_vec() };
        return (wanted, name, false);
    }
    let (reflector, group) = (world.reflectors[random.below(2) as usize], 1 + random.below(GROUPS) as u32);
    let room = format!("{}/{group}", reflector.port());
    (Wanted::Group(vec![Target { reflector, group }]), room, true)
}

/// Runs the members of one thread.
fn live(world: &World, thread: usize, mut random: Random) {
    let mut members: Vec<Member> = Vec::new();
    let mut born = 0;
    while world.present.load(Ordering::Acquire) {
        for member in &mut members {
            member.listen(world);
        }
        if !world.moving.load(Ordering::Acquire) {
            let there = members.iter().map(|member| member.client.target()).collect();
            *world.there[thread].lock().unwrap() = there;
            std::thread::sleep(Duration::from_millis(5));
            continue;
        }
        let at = random.below(members.len().max(1) as u64) as usize;
        match random.below(20) {
            0..4 if members.len() < MEMBERS => {
                born += 1;
                members.push(Member::new(world, &mut random, format!("{thread}.{born}")));
            }
            4 if !members.is_empty() => {
                members.swap_remove(at).client.leave(Duration::from_millis(500)).unwrap();
            }
            5 if !members.is_empty() => {
                // It vanishes without leaving.
                drop(members.swap_remove(at));
                world.crashed.fetch_add(1, Ordering::Relaxed);
            }
            6 if !members.is_empty() => {
                let (wanted, room, in_order) = choose(world, &mut random);
                let member = &mut members[at];
                (member.room, member.in_order) = (room, in_order);
                member.client.move_to(wanted).unwrap();
            }
            _ => {
                if let Some(member) = members.get_mut(at) {
                    member.send(world, &mut random);
                }
            }
        }
        // Each turn takes some time, because members of a game do not send as fast as they can.
        std::thread::sleep(Duration::from_millis(2));
    }
    for member in members {
        member.client.leave(Duration::from_secs(20)).unwrap();
    }
}

/// Returns the memory in KiB and the number of files that a process holds.
fn held(pid: u32) -> (u64, usize) {
    let kib = Memory::of(pid).expect("it runs").now_bytes >> 10;
    (kib, std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count())
}

#[test]
fn members_come_and_go_and_nothing_is_left_of_them() {
    let seconds =
        std::env::var("SOAK_SECONDS").map_or(8, |text| text.parse().expect("SOAK_SECONDS is a number"));
    let mut random = Random::from_environment();
    let store = Server::in_memory();
    let flags =
        ["--store", &store.uri, "--heartbeat", "300ms", "--expiry", "2s", "--joins-per-second", "1000000"];
    let mut reflectors = [Reflector::start(&flags), Reflector::start(&flags)];
    let world = World {
        reflectors: [reflectors[0].address, reflectors[1].address],
        moving: AtomicBool::new(true),
        present: AtomicBool::new(true),
        sent: AtomicU64::new(0),
        heard: AtomicU64::new(0),
        crashed: AtomicU64::new(0),
        there: Default::default(),
    };
    let place = |location: u64, at: usize| {
        let to = reflectors[at].group(LOCATION_GROUPS + location as u32);
        relocate(&reflectors[0].admin, &format!("place-{location}"), &to);
    };
    (0..LOCATIONS).for_each(|location| place(location, 0));
    let pids = [reflectors[0].id(), reflectors[1].id()];
    let mut early = [(0, 0); 2];
    let mut moves = 0;

    std::thread::scope(|scope| {
        // A panic here must not leave the other threads running for ever.
        let _end = EndOnDrop(&world);
        for thread in 0..THREADS {
            let (world, random) = (&world, Random(random.next()));
            scope.spawn(move || {
                let _end = EndOnDrop(world);
                live(world, thread as usize, random);
            });
        }
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(seconds) && world.present.load(Ordering::Acquire) {
            place(random.below(LOCATIONS), random.below(2) as usize);
            moves += 1;
            if begun.elapsed() < Duration::from_secs(seconds.div_ceil(3)) {
                early = pids.map(held);
            }
            std::thread::sleep(Duration::from_millis(700));
        }
        world.moving.store(false, Ordering::Release);

        // Crashed members are forgotten, and present ones are known, in their own group only.
        until("reflectors know exactly those members who are there", || {
            assert!(world.present.load(Ordering::Acquire), "a thread of members has failed");
            let there: Vec<Option<Target>> =
                world.there.iter().flat_map(|there| there.lock().unwrap().clone()).collect();
            let mut expected: HashMap<String, u64> = HashMap::new();
            for target in there {
                let target = target?;
                *expected.entry(format!("{}/{}", target.reflector.port(), target.group)).or_default() += 1;
            }
            let mut found: HashMap<String, u64> = HashMap::new();
            for reflector in &reflectors {
                for group in reflector.get("/groups")["groups"].as_array().unwrap() {
                    let members = group["members"].as_u64().unwrap();
                    if members > 0 {
                        found.insert(group["group"].as_str().unwrap().to_owned(), members);
                    }
                }
            }
            (found == expected).then_some(())
        });
        world.present.store(false, Ordering::Release);
    });

    let (sent, heard) = (world.sent.load(Ordering::Relaxed), world.heard.load(Ordering::Relaxed));
    println!(
        "{sent} datagrams sent, {heard} copies received, {} members crashed, locations were placed {moves} times",
        world.crashed.load(Ordering::Relaxed)
    );
    assert!(sent > 0 && heard > 0, "there was traffic");
    let (mut admitted, mut refused) = (0, 0);
    for (reflector, (before, pid)) in reflectors.iter_mut().zip(early.into_iter().zip(pids)) {
        until("nobody is there any more", || (reflector.report()["members"] == 0).then_some(()));
        reflector.check_alive();
        let all = reflector.get("/groups");
        let about = &all["reflector"];
        let sum = |values: &serde_json::Value| -> u64 {
            values.as_object().unwrap().values().map(|value| value.as_u64().unwrap()).sum()
        };
        let plane = |name: &str| about["plane_counters"][name].as_u64().unwrap();
        let control = |name: &str| about["control"][name].as_u64().unwrap();
        let number = |name: &str| about[name].as_u64().unwrap();
        // Received datagrams were for the reflector, admitted, or refused for a reason.
        let refused_here = sum(&about["refused"]) - about["refused"]["socket_full"].as_u64().unwrap();
        assert_eq!(plane("received"), plane("control") + number("admitted") + refused_here, "{about}");
        // The groups add up to the total.
        for name in ["admitted", "copies", "undeliverable"] {
            let groups = all["groups"].as_array().unwrap();
            let together: u64 = groups.iter().map(|group| group[name].as_u64().unwrap()).sum();
            assert_eq!(together, number(name), "{name}: {all}");
        }
        // All members that joined have left in one way or another.
        assert_eq!(control("joined"), control("left") + control("expired") + control("removed"), "{about}");
        assert_eq!(plane("waiting_bytes"), 0, "{about}");
        admitted += number("admitted");
        refused += sum(&about["refused"]);
        let after = held(pid);
        println!("{}: {before:?} KiB and files early on, {after:?} in the end", reflector.address);
        assert!(after.0 <= before.0 + before.0 / 4 + (12 << 10), "memory grew from {before:?} to {after:?}");
        assert!(after.1 <= before.1 + 4, "files grew from {before:?} to {after:?}");
    }
    // Sent datagrams were admitted, refused, or lost before they arrived.
    println!("{admitted} admitted, {refused} refused");
    assert!(admitted > 0 && admitted <= sent);
}

/// Ends all threads if one of them panics.
struct EndOnDrop<'a>(&'a World);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.present.store(false, Ordering::Release);
    }
}
