//! The copies that the ring plane sends as frames, past the kernel's path for datagrams, and those that it must not.

use nacre_planes::plane::PlaneKind;

use crate::world::{World, patient};

/// Returns the number of datagrams that have left the reflector's namespace by sockets.
fn by_sockets(world: &World) -> u64 {
    let number = |text: &str| text.trim().parse::<u64>().unwrap();
    let (four, six) = world.reflector.run(|| {
        let read = |name| std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap();
        (read("snmp"), read("snmp6"))
    });
    let mut lines = four.lines().filter(|line| line.starts_with("Udp:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split(' ').position(|name| name == "OutDatagrams").unwrap();
    let six = six.lines().find_map(|line| line.strip_prefix("Udp6OutDatagrams")).unwrap();
    number(values.split(' ').nth(at).unwrap()) + number(six)
}

fn exchange(world: &World) {
    for (id, version) in [(1, 4), (2, 6)] {
        let group = world.group(id, patient());
        let members = world.members(group, 5, version);
        for number in 0..10 {
            members[number % 5].send(&[number as u8; 100]);
            for (at, member) in members.iter().enumerate() {
                if at != number % 5 {
                    assert_eq!(member.receive(), [number as u8; 100]);
                }
            }
        }
    }
    assert_eq!(world.counters().copies, 80);
}

#[test]
fn known_neighbours_of_both_families_get_frames() {
    let world = World::new(PlaneKind::Ring, 1);
    exchange(&world);
    assert_eq!(by_sockets(&world), 0);
}

#[test]
fn a_queue_that_somebody_has_chosen_is_respected() {
    let world = World::new(PlaneKind::Ring, 1);
    world.sides[0].queue(&world, "tbf rate 100mbit burst 20000 limit 100000");
    exchange(&world);
    assert_eq!(by_sockets(&world), 80);
}

#[test]
fn other_planes_send_by_sockets() {
    let world = World::new(PlaneKind::Batch, 1);
    exchange(&world);
    assert_eq!(by_sockets(&world), 80);
}
