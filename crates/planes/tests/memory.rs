//! The memory of a member, by the size of a process with very many of them and that of its plane's tables in the kernel.
//! Each plane has a process of its own, so that nothing else is in its size. It needs root and iproute2.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Command;

use nacre_planes::forward::{ForwardOptions, Forwarder, Listeners, read_clocks};
use nacre_planes::plane::{self, PlaneKind, PlaneOptions};
use nacre_planes::testbed::Testbed;
use nacre_reflect::control::{Control, ControlOptions, Counter};
use nacre_reflect::cookie::Secret;
use nacre_reflect::host::{Host, Incoming, Now, Outgoing};
use nacre_reflect::table::{GroupId, GroupOptions, Path, Table};
use nacre_reflect::wire::{Answer, Join, Request};

const PORT: u16 = 7400;
const GROUPS: u32 = 10_000;
const MEMBERS: u32 = 100_000;
/// The members of one address: as many joins as one is allowed at once.
const PORTS: u32 = 4;
/// The greatest number of bytes that a member may take, by the kind of plane.
const BYTES_MAX: [(PlaneKind, u64); 3] =
    [(PlaneKind::Batch, 300), (PlaneKind::Kernel, 512), (PlaneKind::Xdp, 512)];

/// A control plane whose answers are taken by its members, and not sent.
struct Silent(Control);

impl Host for Silent {
    fn table(&mut self) -> &mut Table {
        Host::table(&mut self.0)
    }

    fn control(&mut self, _: Now, _: Incoming<'_>) {}

    fn outgoing(&mut self) -> Option<Outgoing> {
        None
    }
}

/// The variable that names the plane to the process that measures it.
const PLANE: &str = "NACRE_TEST_MEMORY_OF";

#[test]
fn a_member_takes_a_bounded_number_of_bytes_of_the_process_and_of_the_kernel() {
    if let Ok(kind) = std::env::var(PLANE) {
        return measure(kind.parse().unwrap());
    }
    let each = BYTES_MAX.map(|(kind, _)| {
        let mut own = Command::new(std::env::current_exe().unwrap());
        let own = own.args(["--exact", "--nocapture", "--test-threads=1"]).env(PLANE, kind.name());
        let output =
            own.arg("a_member_takes_a_bounded_number_of_bytes_of_the_process_and_of_the_kernel").output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        let line = text.lines().find_map(|line| line.split_once("bytes a member: "));
        let mut parts =
            line.unwrap_or_else(|| panic!("{text}")).1.split(" + ").map(|part| part.parse::<u64>().unwrap());
        let [process, kernel] = std::array::from_fn(|_| parts.next().unwrap());
        println!("{kind}: {process} + {kernel} bytes a member, of the process and of the kernel");
        process + kernel
    });
    for ((kind, bytes_max), each) in BYTES_MAX.into_iter().zip(each) {
        assert!(each <= bytes_max, "{kind}: {each} bytes for each member");
    }
}

fn measure(kind: PlaneKind) {
    let mut testbed = Testbed::new().unwrap();
    let (reflector, router) = (testbed.namespace("reflector").unwrap(), testbed.namespace("router").unwrap());
    testbed.link((&reflector, "r0"), (&router, "m0")).unwrap();
    for (namespace, device) in [(&reflector, "r0"), (&router, "m0")] {
        namespace.ring(device).unwrap();
    }
    reflector.address("r0", "10.77.0.1/16").unwrap();
    router.address("m0", "10.77.0.2/16").unwrap();
    reflector.ip(&["route", "add", "default", "via", "10.77.0.2"]).unwrap();
    let device = reflector.device("r0").unwrap();
    let (members_bytes, tables_bytes) = reflector.run(|| grown(kind, device));
    let each = |bytes: u64| bytes.div_ceil(u64::from(MEMBERS));
    println!("bytes a member: {} + {}", each(members_bytes), each(tables_bytes));
}

/// Returns the bytes by which the process grows by all members, and those of its tables in the kernel.
fn grown(kind: PlaneKind, device: u32) -> (u64, u64) {
    let local = SocketAddr::from(([10, 77, 0, 1], PORT));
    let listeners = Listeners::open(&[local]).unwrap();
    let plane = plane::open(kind, &listeners, &PlaneOptions::default()).unwrap();
    let mut forwarder = Forwarder::new(listeners, plane, ForwardOptions::default()).unwrap();
    let mut host = Silent(Control::new(ControlOptions::default(), Secret::new([7; 32])));
    for id in 0..GROUPS {
        host.0.set_group(GroupId { port: PORT, id }, GroupOptions::default());
    }
    forwarder.poll(&mut host, std::time::Duration::ZERO).unwrap();
    let before = process_bytes();
    let path = Path { device, local };
    for number in 0..MEMBERS {
        let [_, b, c, d] = (number / PORTS).to_be_bytes();
        let from = SocketAddr::from(([203, b, c, d], 40_000 + (number % PORTS) as u16));
        let mut ask = |cookie| {
            let group = number % GROUPS;
            let nonce = u64::from(number);
            let join =
                Join { group, echo: false, keeps_state: false, nonce, cookie, token: &[], leaves: None };
            let bytes = Request::Join(join).encode();
            host.0.handle(read_clocks(), Incoming { path, from, bytes: &bytes });
            let answer = host.0.next_outgoing().unwrap().bytes;
            match Answer::decode(&answer) {
                Ok(Answer::Challenge { cookie, .. }) => Some(cookie),
                Ok(Answer::Joined(_)) => None,
                answer => panic!("{answer:?}"),
            }
        };
        let cookie = ask([0; 16]).expect("a challenge");
        assert_eq!(ask(cookie), None, "it has joined");
        host.0.events().for_each(drop);
        forwarder.poll(&mut host, std::time::Duration::ZERO).unwrap();
    }
    assert_eq!(host.0.counters().get(Counter::Joined), u64::from(MEMBERS));
    assert_eq!(host.0.table().members_len(), MEMBERS as usize);
    (process_bytes().saturating_sub(before), tables_bytes())
}

/// Returns the memory of this process that is nobody else's, in bytes.
fn process_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kib =
        status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB")).unwrap();
    kib.parse::<u64>().unwrap() << 10
}

/// The kinds of maps with a part for each processor (linux/bpf.h), and the length of a value of another that has one.
const PERCPU_ARRAY: u64 = 6;
const RINGBUF: u64 = 27;
const ROOM_BYTES: u64 = 1 << 16;

/// Returns the memory of the maps that this process has in the kernel, in bytes; of those with a part for each processor,
/// as much as they take for two.
fn tables_bytes() -> u64 {
    let cpus = aya::util::nr_cpus().unwrap() as u64;
    let mut maps = BTreeMap::new();
    for file in std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten() {
        let text = std::fs::read_to_string(file.path()).unwrap_or_default();
        let field = |name: &str| -> Option<u64> {
            text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
        };
        // One map may be open several times.
        if let (Some(id), Some(bytes)) = (field("map_id:"), field("memlock:")) {
            let kind = field("map_type:").unwrap();
            let is_shared_out =
                kind == PERCPU_ARRAY || kind == RINGBUF || field("value_size:").unwrap() >= ROOM_BYTES;
            maps.insert(id, if is_shared_out { bytes * 2 / cpus.max(2) } else { bytes });
        }
    }
    maps.values().sum()
}
