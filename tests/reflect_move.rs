//! A location that moves while its members talk: every member hears everybody once and in order, whatever moves where.
//! With the planes that need them, in network namespaces: those tests need root and iproute2.

mod harness;

use std::time::{Duration, Instant};

use harness::Server;
use harness::reflect::{Reflector, free_port, relocate, until};
use harness::talk::{Talk, check_all_heard, undisturbed};
use nacre_planes::testbed::{Namespace, Testbed};

fn control(reflector: &Reflector, name: &str) -> u64 {
    reflector.report()["control"][name].as_u64().unwrap_or_else(|| panic!("{name} is counted"))
}

/// Returns the number of relays between reflectors that one of them broke off, because it did not hear of the other.
fn relays_lost(reflectors: &[&Reflector]) -> u64 {
    reflectors.iter().map(|reflector| control(reflector, "relays_lost")).sum()
}

/// Waits until so many members are in a group.
#[track_caller]
fn until_in(reflector: &Reflector, group: u32, members: u64) {
    reflector.until(group, "all are there", |report| report["members"] == members);
}

const TALK: Duration = Duration::from_millis(400);

#[test]
fn a_location_moves_and_nobody_misses_a_datagram() {
    undisturbed(move_once);
}

fn move_once() -> Result<(), String> {
    let store = Server::in_memory();
    let flags = ["--store", &store.uri];
    let (old, new) = (Reflector::start(&flags), Reflector::start(&flags));
    relocate(&old.admin, "harbour", &old.group(1));
    let talk = Talk::begin(6, "harbour", &[old.address], 40);
    std::thread::sleep(TALK);
    relocate(&old.admin, "harbour", &new.group(2));
    let relocated = Instant::now();
    until_in(&new, 2, 6);
    println!("all had moved after {:?}", relocated.elapsed());
    std::thread::sleep(TALK);
    let heard = talk.end();
    check_all_heard(&heard, relays_lost(&[&old, &new]))?;
    if relays_lost(&[&old, &new]) > 0 {
        return Err("a reflector was not heard of".to_owned());
    }
    assert_eq!(control(&old, "relay_members_handed"), 6);
    assert_eq!(control(&old, "relays_begun"), 1);
    Ok(())
}

#[test]
fn a_location_moves_to_another_group_of_its_reflector_and_back() {
    undisturbed(move_to_another_group_and_back);
}

fn move_to_another_group_and_back() -> Result<(), String> {
    let reflector = Reflector::start(&["--group", "2:sequence"]);
    relocate(&reflector.admin, "harbour", &reflector.group(1));
    // Longer than one step of a relay, and than one frame.
    let talk = Talk::begin(4, "harbour", &[reflector.address], 4000);
    std::thread::sleep(TALK);
    relocate(&reflector.admin, "harbour", &reflector.group(2));
    until_in(&reflector, 2, 4);
    relocate(&reflector.admin, "harbour", &reflector.group(1));
    until_in(&reflector, 1, 4);
    std::thread::sleep(TALK);
    check_all_heard(&talk.end(), relays_lost(&[&reflector]))
}

#[test]
fn a_location_moves_by_the_store_and_newcomers_hear_those_who_have_not_moved() {
    undisturbed(move_by_the_store);
}

fn move_by_the_store() -> Result<(), String> {
    let store = Server::in_memory();
    let flags = ["--store", &store.uri];
    let (old, new) = (Reflector::start(&flags), Reflector::start(&flags));
    let move_to = |to: &str| {
        let mut command = harness::program();
        command.args(["reflect", "move", "harbour", "--to", to, "--store", &store.uri]);
        harness::run_with(command, b"").ok();
    };
    move_to(&old.group(1));
    until("the map was read", || (old.get("/locations")["version"].as_u64() > Some(0)).then_some(()));
    let talk = Talk::begin(5, "harbour", &[old.address], 200);
    move_to(&new.group(1));
    until_in(&new, 1, 5);
    // From the new reflector's own group to the location: it comes like anybody else.
    std::thread::sleep(TALK);
    move_to(&old.group(7));
    until_in(&old, 7, 5);
    let heard = talk.end();
    check_all_heard(&heard, relays_lost(&[&old, &new]))
}

#[test]
fn a_standby_hands_its_members_back_without_a_gap() {
    undisturbed(hand_back);
}

fn hand_back() -> Result<(), String> {
    let store = Server::in_memory();
    let flags = ["--store", &store.uri];
    let address = format!("127.0.0.1:{}", free_port());
    let (main, standby) = (Reflector::listen(&address, &flags), Reflector::start(&flags));
    let other = standby.address.to_string();
    let mut command = harness::program();
    command.args(["reflect", "move", "harbour", "--to", &main.group(1), "--standby", &other]);
    command.args(["--admin", &main.admin]);
    harness::run_with(command, b"").ok();
    until("the standby has read the map", || {
        (standby.get("/locations")["version"].as_u64() > Some(0)).then_some(())
    });
    main.kill();
    // Those who come while the one in charge is gone come to the standby.
    let talk = Talk::begin(4, "harbour", &[standby.address], 50);
    std::thread::sleep(TALK);
    let main = Reflector::listen(&address, &flags);
    until_in(&main, 1, 4);
    std::thread::sleep(TALK);
    let heard = talk.end();
    check_all_heard(&heard, relays_lost(&[&main, &standby]))
}

/// Two reflectors in namespaces, and between them one for members, who have another address towards each.
struct Apart {
    old: Reflector,
    new: Reflector,
    inside: [Namespace; 2],
    members: Namespace,
    _store: Server,
    _lab: Testbed,
}

impl Apart {
    fn new(plane: &str) -> Apart {
        let mut testbed = Testbed::new().unwrap();
        let members = testbed.namespace("members").unwrap();
        let store = Server::in_memory();
        let mut begin = |number: u8| {
            let inside = testbed.namespace(&format!("r{number}")).unwrap();
            let device = format!("out{number}");
            testbed.link((&inside, "in"), (&members, &device)).unwrap();
            inside.address("in", &format!("10.78.{number}.1/24")).unwrap();
            members.address(&device, &format!("10.78.{number}.2/24")).unwrap();
            inside.ring("in").unwrap();
            members.ring(&device).unwrap();
            inside.ip(&["route", "add", "default", "via", &format!("10.78.{number}.2")]).unwrap();
            let own = format!("10.78.{number}.1:7400");
            let flags = ["--store", &store.uri, "--open", "--advertise", &own, "--plane", plane];
            let reflector = inside.run(|| Reflector::listen("0.0.0.0:7400", &flags));
            (inside, reflector)
        };
        let ((first, old), (second, new)) = (begin(1), begin(2));
        members.sysctl("net/ipv4/ip_forward", "1").unwrap();
        Apart { old, new, inside: [first, second], members, _store: store, _lab: testbed }
    }

    fn until_in(&self, number: usize, members: u64) {
        let reflector = [&self.old, &self.new][number];
        self.inside[number].run(|| until_in(reflector, 1, members));
    }

    fn copies_made(&self, number: usize, by: &str) -> u64 {
        let reflector = [&self.old, &self.new][number];
        self.inside[number].run(|| reflector.report()["made"][by].as_u64()).unwrap()
    }
}

fn move_apart(plane: &str, by: &str) -> Result<(), String> {
    let apart = Apart::new(plane);
    relocate(&apart.old.admin, "harbour", "1@10.78.1.1:7400");
    let address = "10.78.1.1:7400".parse().unwrap();
    let talk = apart.members.run(|| Talk::begin(5, "harbour", &[address], 60));
    std::thread::sleep(TALK);
    until("the plane copies", || (apart.copies_made(0, by) > 0).then_some(()));
    for round in 0..2 {
        let (to, from) = (1 - round, round);
        relocate(&apart.old.admin, "harbour", &format!("1@10.78.{}.1:7400", to + 1));
        apart.until_in(to, 5);
        // By then the plane does it alone again.
        std::thread::sleep(2 * TALK);
        let before = apart.copies_made(to, by);
        until("the plane copies where they are", || (apart.copies_made(to, by) > before).then_some(()));
        apart.until_in(from, 0);
    }
    let (heard, mut lost) = (talk.end(), 0);
    for (reflector, inside) in [&apart.old, &apart.new].into_iter().zip(&apart.inside) {
        let report = inside.run(|| reflector.report());
        println!("{} {}", report["refused"], report["control"]);
        // A reflector was not heard of for a second, or did not answer.
        for name in ["relays_lost", "relays_unanswered"] {
            lost += report["control"][name].as_u64().unwrap();
        }
    }
    check_all_heard(&heard, lost)?;
    if lost == 0 { Ok(()) } else { Err(format!("{lost} relays were broken off")) }
}

#[test]
fn nobody_misses_a_datagram_with_ring() {
    undisturbed(|| move_apart("ring", "frames"));
}

#[test]
fn nobody_misses_a_datagram_with_kernel() {
    undisturbed(|| move_apart("kernel", "hook"));
}

#[test]
fn nobody_misses_a_datagram_with_xdp() {
    undisturbed(|| move_apart("xdp", "driver"));
}
