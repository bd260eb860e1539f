//! Measures the joins a second of the control plane on one core, and the memory that a member costs: 10,000 groups and
//! 100,000 members, each admitted by two datagrams through the same path that the forwarder takes.
//!
//! Run it in release: `cargo run --release -p nacre-reflect --example joins`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::Instant;

use nacre_reflect::control::{Control, ControlOptions, Counter};
use nacre_reflect::cookie::Secret;
use nacre_reflect::host::{Host, Incoming, Now};
use nacre_reflect::table::{Entry, GroupId, GroupOptions, Member, MemberIndex, Path};
use nacre_reflect::wire::{Answer, Heartbeat, Join, Request};

const GROUPS: u32 = 10_000;
const MEMBERS: u32 = 100_000;

/// The bytes that are allocated at the moment.
static ALLOCATED: AtomicIsize = AtomicIsize::new(0);

struct Counting;

// SAFETY: every call goes to the system's allocator as it came; only sizes are added up beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`, which is the same.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn main() {
    let local = SocketAddr::from(([198, 51, 100, 1], 7400));
    let mut control = Control::new(ControlOptions::default(), Secret::new([7; 32]));
    let now = |ms: u64| Now { ms, ns: ms * 1_000_000, unix_s: 1_700_000_000 };
    for id in 0..GROUPS {
        control.set_group(GroupId { port: 7400, id }, GroupOptions::default());
    }
    Host::table(&mut control).take_changes(|_, _| {});
    let before = ALLOCATED.load(Ordering::Relaxed);

    let home = |number: u32| {
        let [_, b, c, d] = number.to_be_bytes();
        SocketAddr::from(([203, b, c, d], 40_000))
    };
    let path = Path { device: 1, local };
    let (mut sessions, mut proofs) = (Vec::new(), Vec::new());
    let answer = |control: &mut Control, at_ms: u64, from: SocketAddr, request: Request<'_>| {
        let bytes = request.encode();
        control.control(now(at_ms), Incoming { path, from, bytes: &bytes });
        Host::table(control).take_changes(|_, _| {});
        while control.event().is_some() {}
        control.outgoing().expect("each of these is answered").bytes
    };
    let start = Instant::now();
    for number in 0..MEMBERS {
        let (from, group) = (home(number), number % GROUPS);
        let join = Join {
            group,
            echo: false,
            keeps_state: true,
            nonce: number.into(),
            cookie: [0; 16],
            leaves: None,
            token: &[],
        };
        let challenge = answer(&mut control, 1000, from, Request::Join(join));
        let Ok(Answer::Challenge { cookie, .. }) = Answer::decode(&challenge) else {
            panic!("{challenge:?}")
        };
        let joined = answer(&mut control, 1000, from, Request::Join(Join { cookie, ..join }));
        let Ok(Answer::Joined(joined)) = Answer::decode(&joined) else { panic!("{joined:?}") };
        sessions.push(joined.session);
        proofs.push(joined.proof);
    }
    let took = start.elapsed();
    assert_eq!(control.counters().get(Counter::Joined), u64::from(MEMBERS));
    let own = (sessions.capacity() + proofs.capacity()) * size_of::<u64>();
    let bytes = (ALLOCATED.load(Ordering::Relaxed) - before) as usize - own;
    println!(
        "{MEMBERS} joins to {GROUPS} groups: {:.0} joins/s (two datagrams each, with their encoding and decoding at the client)",
        f64::from(MEMBERS) / took.as_secs_f64()
    );
    println!("memory of a member: {} bytes", bytes / MEMBERS as usize);

    println!(
        "  of which, without what vectors and maps keep free: {} in the table, {} in its lane, {} for its sender",
        size_of::<Option<Member>>(),
        size_of::<Entry>(),
        size_of::<((u16, SocketAddr), MemberIndex)>() + 1,
    );

    let start = Instant::now();
    for number in 0..MEMBERS {
        let heartbeat = Heartbeat {
            group: number % GROUPS,
            number: 1,
            session: sessions[number as usize],
            client_us: 1,
            reflector_us: 0,
            hold_us: 0,
            state_version: 0,
            proof: proofs[number as usize],
        };
        answer(&mut control, 2000, home(number), Request::Heartbeat(heartbeat));
    }
    println!("heartbeats: {:.0} a second", f64::from(MEMBERS) / start.elapsed().as_secs_f64());

    let mut ticks_us = Vec::new();
    for ms in (2000..5000).step_by(10) {
        let start = Instant::now();
        control.tick(now(ms));
        ticks_us.push(start.elapsed().as_micros());
    }
    assert_eq!(control.table().members_len(), MEMBERS as usize);
    print_ticks("with nobody to expire", ticks_us);

    let mut ticks_us = Vec::new();
    for ms in (12_000..15_000).step_by(10) {
        let start = Instant::now();
        control.tick(now(ms));
        while control.outgoing().is_some() {}
        Host::table(&mut control).take_changes(|_, _| {});
        ticks_us.push(start.elapsed().as_micros());
    }
    assert_eq!(control.table().members_len(), 0);
    print_ticks("while all of them expire", ticks_us);
}

fn print_ticks(when: &str, mut ticks_us: Vec<u128>) {
    ticks_us.sort();
    let at = |percent| ticks_us[(ticks_us.len() - 1) * percent / 100];
    println!("ticks 10 ms apart, {when}: median {} µs, 99 % {} µs, longest {} µs", at(50), at(99), at(100));
}
