//! Measures the processor time of a reflector that has members and nothing to copy: `nacre reflect serve`, as it is
//! shipped, in a network namespace of its own, with members behind a virtual pair who only send heartbeats. Beside it a
//! loop that does nothing but receive as many datagrams and send each back is measured at the same time: the least that
//! heartbeats can cost on this machine, with what else it does.
//!
//! Run it in release, as root:
//! `cargo run --release -p nacre-planes --example idle -- NACRE [MEMBERS [SECONDS [PLANE [HOSTS]]]]`, with the path of the
//! program, by default for 1,000 members on 250 hosts and 60 seconds after all have the interval that they keep.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nacre_planes::testbed::{Namespace, Testbed};
use nacre_reflect::member::{Member, MemberEvent, MemberOptions, Target, Wanted};
use rustix::event::epoll;

const PORT: u16 = 7400;
/// The port of the loop that only sends back.
const FLOOR_PORT: u16 = 7401;
/// The members of a group.
const GROUP: usize = 10;
/// The time in which the last short interval of heartbeats is over, beyond the longest.
const SETTLE: Duration = Duration::from_secs(20);

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |at: usize, default: usize| words.get(at).map_or(default, |word| word.parse().expect("a number"));
    let program = words.first().expect("the path of nacre").clone();
    let (members, seconds, hosts) = (number(1, 1000), number(2, 60), number(4, 250));
    let plane = words.get(3).map_or("auto", String::as_str);

    let mut testbed = Testbed::new().expect("a testbed");
    let (inside, outside) =
        (testbed.namespace("idle").expect("a namespace"), testbed.namespace("members").expect("one"));
    testbed.link((&inside, "r0"), (&outside, "m0")).expect("a pair");
    for (namespace, device) in [(&inside, "r0"), (&outside, "m0")] {
        namespace.ring(device).expect("a ring");
    }
    inside.address("r0", "10.77.0.1/16").expect("an address");
    outside.address("m0", "10.77.0.2/16").expect("an address");
    outside.ip(&["route", "add", "local", "10.77.128.0/17", "dev", "m0"]).expect("the members' addresses");

    let serve = [
        "reflect",
        "serve",
        "--listen",
        "10.77.0.1:7400",
        "--open",
        "--joins-per-second",
        "10000",
        "--plane",
        plane,
    ];
    let mut reflector: Child = inside.run(|| {
        Command::new(&program).args(serve).stdout(Stdio::null()).spawn().expect("the reflector starts")
    });
    inside.spawn(|| {
        // Its name is how it is found among this process's threads.
        std::fs::write("/proc/thread-self/comm", "floor").expect("a name");
        let socket = UdpSocket::bind(SocketAddr::from(([10, 77, 0, 1], FLOOR_PORT))).expect("a socket");
        let mut bytes = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut bytes) {
            // Who does not listen any more is missed by nobody.
            let _ = socket.send_to(&bytes[..length], from);
        }
    });
    std::thread::sleep(Duration::from_secs(2));
    let process = reflector.id();
    let report = outside.run(|| play(members, hosts, seconds, process));
    reflector.kill().expect("it runs until now");
    reflector.wait().expect("it ends");
    print!("{report}");
    drop::<Namespace>(outside);
}

/// Plays all members until the measurement is over, and returns its report.
fn play(members: usize, hosts: usize, seconds: usize, process: u32) -> String {
    let reflector = SocketAddr::from(([10, 77, 0, 1], PORT));
    let floor = SocketAddr::from(([10, 77, 0, 1], FLOOR_PORT));
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll");
    let mut all: Vec<(UdpSocket, Member)> = (0..members)
        .map(|number| {
            let host = (number % hosts) as u16;
            let [high, low] = (0x8000 + 1 + host).to_be_bytes();
            let port = 40_000 + (number / hosts) as u16;
            let socket =
                UdpSocket::bind(SocketAddr::from(([10, 77, high, low], port))).expect("a member's socket");
            socket.set_nonblocking(true).expect("a socket that does not wait");
            let data = epoll::EventData::new_u64(number as u64);
            epoll::add(&poll, &socket, data, epoll::EventFlags::IN).expect("one more socket");
            let target = Target { reflector, group: (number / GROUP) as u32 };
            let mut seed = [7; 32];
            seed[..8].copy_from_slice(&(number as u64).to_le_bytes());
            (socket, Member::new(Wanted::Group(vec![target]), MemberOptions::default(), seed))
        })
        .collect();
    let start = Instant::now();
    let mut inside = vec![false; members];
    let mut lost = 0;
    let mut bytes = [0; 2048];
    let mut settled: Option<Instant> = None;
    let mut before: Option<(Instant, Thread, BTreeMap<String, Thread>)> = None;
    let mut sent = 0;
    loop {
        let now_us = start.elapsed().as_micros() as u64;
        for (socket, member) in &mut all {
            if member.timeout_us().is_some_and(|due_us| due_us <= now_us) {
                member.tick(now_us);
            }
            while let Some(transmit) = member.poll() {
                sent += 1;
                socket.send_to(&transmit.bytes, transmit.to).expect("a datagram is sent");
                socket.send_to(&transmit.bytes, floor).expect("another is sent");
            }
        }
        let mut events = Vec::with_capacity(64);
        let wait = rustix::event::Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), Some(&wait)).expect("a wait");
        let now_us = start.elapsed().as_micros() as u64;
        for event in &events {
            let number = { event.data }.u64() as usize;
            let (socket, member) = &mut all[number];
            while let Ok((length, from)) = socket.recv_from(&mut bytes) {
                if from == reflector {
                    member.handle(now_us, from, &bytes[..length]);
                }
            }
            while let Some(event) = member.event() {
                match event {
                    MemberEvent::Joined { .. } => inside[number] = true,
                    MemberEvent::Lost { .. } => lost += 1,
                    _ => {}
                }
            }
        }
        if settled.is_none() && inside.iter().all(|inside| *inside) {
            settled = Some(Instant::now());
        }
        match (&before, settled) {
            (None, Some(since)) if since.elapsed() >= SETTLE => {
                before = Some((Instant::now(), floor_thread(), threads(process)));
                sent = 0;
            }
            (Some((since, floor, before)), _) if since.elapsed() >= Duration::from_secs(seconds as u64) => {
                let elapsed_s = since.elapsed().as_secs_f64();
                let text = report(before, &threads(process), elapsed_s, sent, members, lost);
                let floor_ns = floor_thread().ran_ns - floor.ran_ns;
                return text
                    + &format!(
                        "a loop that sends back as many: {:.4} %\n",
                        floor_ns as f64 / elapsed_s / 1e7
                    );
            }
            (None, None) if start.elapsed() > Duration::from_secs(60) => {
                let joined = inside.iter().filter(|inside| **inside).count();
                panic!("{joined} of {members} members could join");
            }
            _ => {}
        }
    }
}

/// The time that a thread ran, in nanoseconds, and how often it waited.
#[derive(Clone, Copy, Default)]
struct Thread {
    ran_ns: u64,
    waits: u64,
}

/// Returns the threads of a process, by name and number.
fn threads(process: u32) -> BTreeMap<String, Thread> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("the process runs").flatten();
    tasks
        .map(|task| {
            let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
            let ran = read("schedstat").split(' ').next().and_then(|ns| ns.parse().ok());
            let status = read("status");
            let waits = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            let waits = waits.and_then(|waits| waits.trim().parse().ok());
            let name = format!("{} {}", read("comm").trim(), task.file_name().to_string_lossy());
            (name, Thread { ran_ns: ran.unwrap_or_default(), waits: waits.unwrap_or_default() })
        })
        .collect()
}

/// Returns the thread of the loop that only sends back.
fn floor_thread() -> Thread {
    let own = threads(std::process::id());
    let floor = own.into_iter().find(|(name, _)| name.starts_with("floor "));
    floor.expect("the loop runs").1
}

fn report(
    before: &BTreeMap<String, Thread>,
    after: &BTreeMap<String, Thread>,
    elapsed_s: f64,
    sent: u64,
    members: usize,
    lost: u64,
) -> String {
    let mut text = format!(
        "{members} members, {lost} times one lost its reflector, {:.1} datagrams of members a second, in {elapsed_s:.0} s\n",
        sent as f64 / elapsed_s
    );
    let mut sum_ns = 0;
    for (name, thread) in after {
        let first = before.get(name).copied().unwrap_or_default();
        let ran_ns = thread.ran_ns - first.ran_ns;
        sum_ns += ran_ns;
        let waits = (thread.waits - first.waits) as f64 / elapsed_s;
        if ran_ns > 0 {
            text += &format!(
                "  {:.4} % of a processor, {waits:6.1} waits/s: {name}\n",
                ran_ns as f64 / elapsed_s / 1e7
            );
        }
    }
    text + &format!("idle: {:.4} % of a processor\n", sum_ns as f64 / elapsed_s / 1e7)
}
