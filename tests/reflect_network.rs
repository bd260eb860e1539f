//! A reflector in network namespaces, between two networks: forged addresses, which must not make it send more to an
//! address than arrived in its name; devices that go down; a full table of connections; missing rights; and its traces
//! in the kernel after it was killed.
//!
//! Needs root, iproute2, nftables, and setpriv of util-linux.

mod harness;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Instant;

use harness::reflect::{Joined, Reflector, http, until};
use harness::{PATIENCE, Random, run_with};
use nacre_planes::testbed::{Namespace, Testbed};
use nacre_reflect::wire::{COOKIE_BYTES, Heartbeat, Join, Request, StateGet};
use rustix::process::Signal;
use serde_json::Value;

/// A reflector in a namespace, between two others.
struct Between {
    reflector: Reflector,
    inside: Namespace,
    left: Namespace,
    right: Namespace,
    /// Dropped last.
    _lab: Testbed,
}

impl Between {
    fn new(flags: &[&str]) -> Between {
        let mut testbed = Testbed::new().unwrap();
        let inside = testbed.namespace("reflector").unwrap();
        let (left, right) = (testbed.namespace("left").unwrap(), testbed.namespace("right").unwrap());
        for (number, outer) in [(1, &left), (2, &right)] {
            let device = format!("in{number}");
            testbed.link((&inside, &device), (outer, "out")).unwrap();
            // Devices with rings, like physical ones; programs in the driver need them.
            inside.ring(&device).unwrap();
            outer.ring("out").unwrap();
            // Only the test's own traffic: no IPv6, and neighbours that need no resolution.
            inside.sysctl(&format!("net/ipv6/conf/{device}/disable_ipv6"), "1").unwrap();
            outer.sysctl("net/ipv6/conf/out/disable_ipv6", "1").unwrap();
            inside.sysctl(&format!("net/ipv4/conf/{device}/rp_filter"), "0").unwrap();
            inside.address(&device, &format!("10.77.{number}.1/24")).unwrap();
            outer.address("out", &format!("10.77.{number}.2/24")).unwrap();
            outer.ip(&["route", "add", "default", "via", &format!("10.77.{number}.1")]).unwrap();
            let neighbour = |namespace: &Namespace, address: &str, mac: &str, device: &str| {
                namespace.ip(&["neigh", "replace", address, "lladdr", mac, "dev", device]).unwrap();
            };
            neighbour(&inside, &format!("10.77.{number}.2"), &mac(outer, "out"), &device);
            neighbour(outer, &format!("10.77.{number}.1"), &mac(&inside, &device), "out");
        }
        inside.sysctl("net/ipv4/conf/all/rp_filter", "0").unwrap();
        let reflector = inside.run(|| Reflector::listen("0.0.0.0:7400", flags));
        Between { reflector, inside, left, right, _lab: testbed }
    }

    /// Returns the report of its administration.
    fn report(&self) -> Value {
        let (status, body) = self.inside.run(|| http(&self.reflector.http, "GET", "/groups", ""));
        assert_eq!(status, 200);
        serde_json::from_str::<Value>(&body).unwrap()["reflector"].clone()
    }

    fn until(&self, what: &str, holds: impl Fn(&Value) -> bool) {
        until(what, || holds(&self.report()).then_some(()));
    }

    fn member(&self, namespace: &Namespace, number: u8) -> Joined {
        let group = format!("1@10.77.{number}.1:7400");
        namespace.run(|| Joined::join(&group, &[]))
    }
}

/// Returns the hardware address of a device.
fn mac(namespace: &Namespace, device: &str) -> String {
    let text = namespace.ip(&["-j", "link", "show", "dev", device]).unwrap();
    let links: Value = serde_json::from_str(&text).unwrap();
    links[0]["address"].as_str().unwrap().to_owned()
}

/// Returns the bytes and packets that a namespace's device received, and those that it sent.
fn traffic(namespace: &Namespace) -> (u64, u64, u64, u64) {
    let text = namespace.ip(&["-j", "-s", "link", "show", "dev", "out"]).unwrap();
    let links: Value = serde_json::from_str(&text).unwrap();
    let number = |way: &str, what: &str| links[0]["stats64"][way][what].as_u64().unwrap();
    (number("rx", "bytes"), number("rx", "packets"), number("tx", "bytes"), number("tx", "packets"))
}

/// Builds an IPv4 datagram with any source address.
fn forged(from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) -> Vec<u8> {
    let udp_bytes = 8 + payload.len() as u16;
    let mut packet = vec![0x45, 0];
    packet.extend((20 + udp_bytes).to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    packet.extend(from.ip().octets());
    packet.extend(to.ip().octets());
    // The system computes the header's checksum; a UDP datagram without a checksum of its own is accepted.
    for word in [from.port(), to.port(), udp_bytes, 0] {
        packet.extend(word.to_be_bytes());
    }
    packet.extend(payload);
    packet
}

#[test]
fn forged_addresses_get_no_more_than_was_sent_in_their_name() {
    forge("batch");
}

#[test]
fn forged_addresses_get_no_more_from_a_plane_in_the_kernel() {
    forge("kernel");
}

#[test]
fn forged_addresses_get_no_more_from_a_plane_in_the_driver() {
    forge("xdp");
}

fn forge(plane: &str) {
    let between = Between::new(&["--open", "--plane", plane]);
    assert_eq!(between.report()["plane"], plane);
    let _member = between.member(&between.left, 1);
    let raw = between.left.run(|| {
        let protocol = Some(socket2::Protocol::from(255));
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::RAW, protocol).unwrap()
    });
    let reflector = SocketAddrV4::new(Ipv4Addr::new(10, 77, 1, 1), 7400);
    let mut random = Random::from_environment();
    let mut requests: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
    let join = |group, cookie, token: &[u8]| {
        Request::Join(Join { group, echo: true, keeps_state: true, nonce: 1, cookie, leaves: None, token })
            .encode()
    };
    requests.insert("join", join(1, [0; COOKIE_BYTES], &[]));
    requests.insert("join with a guessed cookie", join(1, [9; COOKIE_BYTES], &[]));
    requests.insert("join with a token", join(1, [0; COOKIE_BYTES], &[1; 60]));
    requests.insert("join of a group that is not there", join(999_999, [0; COOKIE_BYTES], &[]));
    requests.insert("leave", Request::Leave { group: 1, session: 5 }.encode());
    requests.insert("locate", Request::Locate { nonce: 1, location: "harbour" }.encode());
    requests.insert(
        "heartbeat",
        Request::Heartbeat(Heartbeat {
            group: 1,
            number: 1,
            session: 5,
            client_us: 1,
            reflector_us: 1,
            hold_us: 1,
            state_version: 1,
            proof: 1,
        })
        .encode(),
    );
    requests.insert(
        "fetch of a state",
        Request::StateGet(StateGet { group: 1, parts: 16, session: 5, version: 0, offset: 0, proof: 1 })
            .encode(),
    );
    requests.insert("payload", vec![b'x'; 1000]);
    requests.insert("a cut join", requests["join"][..60].to_vec());
    let mut replies = 0;
    for (number, (name, request)) in (10..).zip(&requests) {
        // A different victim each time, because the answers to one address are limited as well.
        let victim = Ipv4Addr::new(10, 77, 2, number);
        between.right.address("out", &format!("{victim}/24")).unwrap();
        let right = mac(&between.right, "out");
        let neighbour = ["neigh", "replace", &victim.to_string(), "lladdr", &right, "dev", "in2"];
        between.inside.ip(&neighbour).unwrap();
        let before = traffic(&between.right);
        // Payload of non-members may be counted in the kernel, and never reach the socket.
        let arrived = |report: &Value| match *name {
            "payload" => report["refused"]["non_members"].as_u64().unwrap(),
            _ => report["plane_counters"]["received"].as_u64().unwrap(),
        };
        let received = arrived(&between.report());
        let mut bytes_in = 0;
        let count = 500;
        for _ in 0..count {
            let from = SocketAddrV4::new(victim, 1024 + random.below(60_000) as u16);
            let packet = forged(from, reflector, request);
            bytes_in += 14 + packet.len() as u64;
            raw.send_to(&packet, &SocketAddr::V4(reflector).into()).unwrap();
        }
        // A datagram is counted as received only after it was answered.
        between.until("all has arrived", |report| {
            let dropped = report["refused"]["socket_full"].as_u64().unwrap();
            arrived(report) + dropped >= received + count
        });
        let after = traffic(&between.right);
        let (bytes_out, packets_out) = (after.0 - before.0, after.1 - before.1);
        println!(
            "{name}: {bytes_in} bytes in the victim's name, {bytes_out} to the victim, in {packets_out} packets"
        );
        assert!(bytes_out <= bytes_in, "{name}");
        replies += packets_out;
    }
    assert!(replies > 0, "a forged request is answered like any other, or this would show nothing");
    assert_eq!(between.report()["members"], 1, "nobody came in who did not prove its address");
}

#[test]
fn a_device_that_goes_down_takes_nobody_else_along() {
    // Longer than a member may stand still.
    let mut between = Between::new(&["--open", "--heartbeat", "400ms", "--expiry", "12s"]);
    let mut left = between.member(&between.left, 1);
    let right = between.member(&between.right, 2);
    let also_left = between.member(&between.left, 1);
    left.say("one");
    assert_eq!(right.hear(), "one");
    assert_eq!(also_left.hear(), "one");

    between.inside.ip(&["link", "set", "in2", "down"]).unwrap();
    left.say("two");
    assert_eq!(also_left.hear(), "two");
    between.until("who is behind it has expired", |report| report["members"] == 2);
    left.say("three");
    assert_eq!(also_left.hear(), "three");

    between.inside.ip(&["link", "set", "in2", "up"]).unwrap();
    between.until("it is back", |report| report["members"] == 3);
    left.say("four");
    assert_eq!(right.hear(), "four");
    between.reflector.check_alive();
}

#[test]
fn a_full_table_of_connections_costs_datagrams_and_not_the_reflector() {
    let mut between = Between::new(&["--open", "--heartbeat", "400ms", "--expiry", "20s"]);
    let rules = "table ip t { chain c { type filter hook prerouting priority 0; ct state established accept; }\n\
                 chain d { type filter hook output priority 0; ct state established accept; }\n}";
    let nft = |arguments: &[&str]| {
        let name = between.inside.name().to_owned();
        let output =
            std::process::Command::new("ip").args(["netns", "exec", &name, "nft"]).args(arguments).output();
        let output = output.unwrap();
        assert!(
            output.status.success(),
            "nft failed ({}); apt-get install nftables",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    nft(&[rules]);
    let mut left = between.member(&between.left, 1);
    let listener = between.member(&between.left, 1);
    left.say("before");
    assert_eq!(listener.hear(), "before");

    let read = |path: &str| -> u64 {
        let text = between.inside.run(|| std::fs::read_to_string(path).unwrap());
        text.trim().parse().unwrap()
    };
    let most = read("/proc/sys/net/netfilter/nf_conntrack_max");
    let raw = between.left.run(|| {
        let protocol = Some(socket2::Protocol::from(255));
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::RAW, protocol).unwrap()
    });
    let to = SocketAddrV4::new(Ipv4Addr::new(10, 77, 1, 1), 7400);
    let join = Request::Join(Join {
        group: 1,
        echo: false,
        keeps_state: false,
        nonce: 1,
        cookie: [0; COOKIE_BYTES],
        leaves: None,
        token: &[],
    })
    .encode();
    let begun = Instant::now();
    let mut number = 0_u32;
    // Each is a connection of its own in the table; answers keep it there.
    while read("/proc/sys/net/netfilter/nf_conntrack_count") + 64 < most {
        for _ in 0..2000 {
            number += 1;
            let from = SocketAddrV4::new(
                Ipv4Addr::from(0x0a4d_0200 + 3 + number / 60_000),
                (1024 + number % 60_000) as u16,
            );
            raw.send_to(&forged(from, to, &join), &SocketAddr::V4(to).into()).unwrap();
        }
        assert!(begun.elapsed() < PATIENCE, "the table does not fill: it holds at most {most}");
    }
    println!("{number} connections filled the table of {most}");
    // The existing members are still served.
    left.say("while it is full");
    assert_eq!(listener.hear(), "while it is full");
    between.reflector.check_alive();
    nft(&["flush", "ruleset"]);
    let late = between.member(&between.right, 2);
    left.say("afterwards");
    assert_eq!(late.hear(), "afterwards");
}

#[test]
fn a_reflector_without_rights_says_so_and_goes_on_in_user_space() {
    let between = Between::new(&["--open"]);
    let without = |plane: &str| {
        let mut command = std::process::Command::new("setpriv");
        let serve = Reflector::command("0.0.0.0:7500", &["--open", "--plane", plane]);
        command.args(["--bounding-set", "-all", "--"]).arg(serve.get_program()).args(serve.get_args());
        command
    };
    let ended = between.inside.run(|| run_with(without("kernel"), b""));
    ended.failed(1, &["kernel plane", "CAP_", "--plane", "auto"]);
    let reflector = between.inside.run(|| Reflector::spawn(without("auto")));
    let (plane, reason) = (&reflector.ready["plane"], reflector.ready["plane_reason"].as_str().unwrap());
    assert!(["batch", "sendto"].contains(&plane.as_str().unwrap()), "{reason}");
    assert!(reason.contains("kernel plane") && reason.contains("CAP_"), "{reason}");
    let listener = between.right.run(|| Joined::join("1@10.77.2.1:7500", &[]));
    let mut speaker = between.left.run(|| Joined::join("1@10.77.1.1:7500", &[]));
    speaker.say("as well as it can");
    assert_eq!(listener.hear(), "as well as it can");
}

#[test]
fn a_killed_reflector_leaves_nothing_in_the_kernel() {
    let between = Between::new(&["--open", "--plane", "kernel", "--heartbeat", "400ms", "--expiry", "12s"]);
    let (mut left, right) = (between.member(&between.left, 1), between.member(&between.right, 2));
    left.say("by the kernel");
    assert_eq!(right.hear(), "by the kernel");
    between.until("the kernel has copied it", |report| report["copies"] == 1);

    let inside = &between.inside;
    let flags = ["--open", "--plane", "batch", "--heartbeat", "400ms", "--expiry", "12s"];
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(between.reflector.id() as i32).unwrap(),
        Signal::KILL,
    )
    .unwrap();
    left.next("lost");
    right.next("lost");
    // Another reflector in user space has the port to itself: nothing in the kernel takes its datagrams, or copies them
    // again.
    let again = inside.run(|| Reflector::listen("0.0.0.0:7400", &flags));
    let report = || -> Value {
        let (_, body) = inside.run(|| http(&again.http, "GET", "/groups", ""));
        serde_json::from_str::<Value>(&body).unwrap()["reflector"].clone()
    };
    until("both are back", || (report()["members"] == 2).then_some(()));
    left.say("by the socket");
    assert_eq!(right.hear(), "by the socket");
    assert_eq!(report()["copies"], 1);
    let (_, rest) = right.close();
    assert!(rest.iter().all(|event| event["event"] != "datagram"), "{rest:?}");
}
