//! The daemon's end, its rights, and its memory.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use aya::programs::{SchedClassifier, TcAttachType};
use nacre_planes::forward::{ForwardOptions, Forwarder, Listeners};
use nacre_planes::plane::kernel::Kernel;
use nacre_planes::plane::{self, Plane, PlaneKind, PlaneOptions};
use nacre_planes::testbed::{Namespace, Testbed, socket};
use nacre_reflect::host::Host;
use nacre_reflect::table::{GroupId, GroupOptions, Path, Table};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use crate::world::{Desk, PATIENCE, PORT, patient};

/// The environment variable with the members of the daemon below.
const MEMBERS: &str = "NACRE_TEST_MEMBERS";

fn path(device: u32) -> Path {
    Path { device, local: SocketAddr::from(([10, 78, 0, 1], PORT)) }
}

/// Not a test, but a daemon that a test runs in another process: it serves until it is killed.
#[test]
#[ignore = "a process that a test starts"]
fn daemon() {
    let Ok(members) = std::env::var(MEMBERS) else { return };
    let mut words = members.split(' ');
    let device = words.next().unwrap().parse().unwrap();
    let listeners = Listeners::open(&[SocketAddr::from(([0, 0, 0, 0], PORT))]).unwrap();
    let plane = plane::open(PlaneKind::Kernel, &listeners, &PlaneOptions::default()).unwrap();
    let mut forwarder = Forwarder::new(listeners, plane, ForwardOptions::default()).unwrap();
    let mut desk = Desk::default();
    let group = desk.table().set_group(GroupId { port: PORT, id: 0 }, patient());
    for member in words {
        desk.table().join(group, path(device), member.parse().unwrap(), false, 0);
    }
    forwarder.poll(&mut desk, Duration::ZERO).unwrap();
    println!("\nserving");
    loop {
        forwarder.poll(&mut desk, PATIENCE).unwrap();
    }
}

/// A daemon's process, which is killed when this is dropped.
struct Daemon(Child);

impl Daemon {
    fn start(namespace: &Namespace, members: &[SocketAddr]) -> Daemon {
        let mut argument = namespace.device("d0").unwrap().to_string();
        for member in members {
            argument.push_str(&format!(" {member}"));
        }
        let child = Command::new("ip")
            .args(["netns", "exec", namespace.name()])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "daemon::daemon", "--ignored", "--nocapture"])
            .env(MEMBERS, argument)
            .stdout(Stdio::piped())
            .spawn()
            .expect("`ip` of iproute2 runs");
        let mut daemon = Daemon(child);
        let said = BufReader::new(daemon.0.stdout.take().unwrap());
        let serving = said.lines().map_while(Result::ok).any(|line| line == "serving");
        assert!(serving, "the daemon ended instead of serving");
        daemon
    }

    fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // One that was killed already is not killed again: it has been waited for.
        if let Ok(None) = self.0.try_wait() {
            self.end();
        }
    }
}

/// Returns the number of programs at a device's ingress hook.
fn attached(namespace: &Namespace) -> usize {
    namespace.run(|| SchedClassifier::query_tcx("d0", TcAttachType::Ingress).unwrap().1.len())
}

/// A killed daemon takes its program with it, packets go up again, and another daemon starts as if there had been
/// none.
#[test]
fn a_killed_daemon_leaves_nothing_behind() {
    let mut testbed = Testbed::new().unwrap();
    let (r, m) = (testbed.namespace("r").unwrap(), testbed.namespace("m").unwrap());
    testbed.link((&r, "d0"), (&m, "e0")).unwrap();
    r.address("d0", "10.78.0.1/24").unwrap();
    m.address("e0", "10.78.0.2/24").unwrap();
    let members: Vec<_> = (0..2)
        .map(|_| {
            let member = m.run(|| socket("10.78.0.2:0".parse().unwrap())).unwrap();
            member.set_read_timeout(Some(PATIENCE)).unwrap();
            member.connect(path(0).local).unwrap();
            member
        })
        .collect();
    let addresses: Vec<_> = members.iter().map(|member| member.local_addr().unwrap()).collect();
    let mut bytes = [0; 100];
    for turn in [b"first ", b"second"] {
        let daemon = Daemon::start(&r, &addresses);
        assert_eq!(attached(&r), 1);
        for _ in 0..20 {
            members[0].send(turn).unwrap();
            assert_eq!(members[1].recv(&mut bytes).unwrap(), turn.len());
        }
        daemon.kill();
        // The kernel may still be closing what the process had open.
        let from = Instant::now();
        while attached(&r) != 0 {
            assert!(from.elapsed() < PATIENCE, "the program outlived its daemon");
            std::thread::sleep(Duration::from_millis(1));
        }
        // Whoever listens there now gets what is sent there.
        let plain = r.run(|| socket(path(0).local)).unwrap();
        plain.set_read_timeout(Some(PATIENCE)).unwrap();
        members[0].send(b"up").unwrap();
        assert_eq!(plain.recv(&mut bytes).unwrap(), 2);
    }
}

/// Returns the number of files of this process that are a program, or a link of it to a device, which may be gone.
fn files_of(program: u32) -> usize {
    let line = format!("prog_id:\t{program}");
    let files = std::fs::read_dir("/proc/self/fdinfo").unwrap().map_while(Result::ok);
    // Other tests close files meanwhile.
    let texts = files.filter_map(|file| std::fs::read_to_string(file.path()).ok());
    texts.filter(|text| text.lines().any(|of| of == line)).count()
}

/// A daemon serves for years, and devices of tunnels and containers come and go.
#[test]
fn devices_that_go_leave_no_open_files() {
    let mut testbed = Testbed::new().unwrap();
    let (r, m) = (testbed.namespace("r").unwrap(), testbed.namespace("m").unwrap());
    r.run(|| {
        let listeners = Listeners::open(&[SocketAddr::from(([0, 0, 0, 0], PORT))]).unwrap();
        let mut plane = Kernel::open(&listeners, &PlaneOptions::default()).unwrap();
        let program = plane.program().unwrap().info().unwrap().id();
        let mut table = Table::new();
        let group = table.set_group(GroupId { port: PORT, id: 0 }, GroupOptions::default());
        let before = files_of(program);
        for host in 2..5_u8 {
            testbed.link((&r, "d0"), (&m, "e0")).unwrap();
            let member = SocketAddr::from(([10, 78, 0, host], 9));
            table.join(group, path(r.device("d0").unwrap()), member, false, 0);
            table.take_changes(|table, change| plane.follow(table, change).unwrap());
            assert_eq!(files_of(program), before + 1, "the program is at the device");
            r.ip(&["link", "delete", "d0"]).unwrap();
            plane.maintain(&table).unwrap();
            assert_eq!(files_of(program), before);
        }
    });
}

/// Opens the plane in a thread that has these rights only. Returns the error, if it could not.
fn open_with(rights: CapabilitySet) -> Option<String> {
    // The loader finds out once in a process what the kernel can do, which is not for a thread without rights to try.
    aya::features();
    let listeners = Listeners::open(&["127.0.0.1:0".parse().unwrap()]).unwrap();
    let thread = std::thread::spawn(move || {
        let none = CapabilitySet::empty();
        let rights = CapabilitySets { effective: rights, permitted: rights, inheritable: none };
        set_capabilities(None, rights).unwrap();
        Kernel::open(&listeners, &PlaneOptions::default()).err().map(|error| error.to_string())
    });
    thread.join().unwrap()
}

/// Without rights, the error names the missing ones; with those that it names, the plane opens.
#[test]
fn without_rights_it_says_what_it_needs() {
    let error = open_with(CapabilitySet::empty()).expect("it cannot work without rights");
    assert!(error.starts_with("the kernel plane cannot be loaded: "), "{error}");
    assert!(error.contains("root, or the capabilities CAP_BPF"), "{error}");
    assert!(!error.contains('\n'), "{error}");
    let needed = CapabilitySet::BPF | CapabilitySet::NET_ADMIN | CapabilitySet::PERFMON;
    assert_eq!(open_with(needed), None);
}

/// The tables take a bounded number of bytes for each of a hundred thousand members.
#[test]
fn memory_for_many_members_is_bounded() {
    let listeners = Listeners::open(&["127.0.0.1:0".parse().unwrap()]).unwrap();
    let memory = Kernel::open(&listeners, &PlaneOptions::default()).unwrap().memory();
    let each = memory.fixed_bytes / 100_000 + memory.member_bytes;
    println!("{memory:?}: {each} bytes for each of 100,000 members");
    assert!(each <= 250, "{memory:?}");
}
