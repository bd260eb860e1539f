//! Prints what locks cost at a server, without network: `cargo run --release --example lock_table`.

use std::time::{Duration, Instant};

use nacre_lock::message::{Call, LockSpec, SessionId};
use nacre_lock::server::{Output, Server, Settings};
use nacre_lock::table::{Indexing, Mode, Owner, Table};
use nacre_lock::{Datatype, OFFSET_MAX, Pattern, Region};

/// The time of one call of `work`, averaged over as many as fit in about a fifth of a second.
fn time(mut work: impl FnMut()) -> Duration {
    let begun = Instant::now();
    let mut calls = 0;
    while begun.elapsed() < Duration::from_millis(200) {
        work();
        calls += 1;
    }
    begun.elapsed() / calls
}

/// Acquires and releases a pattern at a server.
fn lock_and_release(server: &mut Server, pattern: &Pattern, out: &mut Vec<Output>) {
    let spec =
        LockSpec { file: "file".into(), operation: 1, mode: Mode::Exclusive, pattern: pattern.clone() };
    let acquire = Call::Acquire { request: 1, spec: Some(spec), until: Some(OFFSET_MAX) };
    server.handle(Duration::ZERO, SessionId(1), 1, acquire, out);
    server.handle(Duration::ZERO, SessionId(1), 2, Call::Release { request: 1 }, out);
    assert!(out.iter().any(|output| matches!(output, Output::Reply { call: 2, .. })));
    out.clear();
}

fn main() {
    let mut out = Vec::new();
    let mut server = Server::new(Settings::default());
    for session in [1, 2] {
        server.handle(Duration::ZERO, SessionId(session), 0, Call::Open, &mut out);
    }
    println!("acquire and release at a server that holds nothing else:");
    let contiguous = Pattern::contiguous(0, 1 << 20).expect("it is far from the end");
    println!("  contiguous: {:?}", time(|| lock_and_release(&mut server, &contiguous, &mut out)));
    for log in [10, 17, 27] {
        let pattern = Pattern::new(&Datatype::byte().vector(1 << log, 1, 64).at(0)).expect("it is regular");
        println!("  2^{log} regions: {:?}", time(|| lock_and_release(&mut server, &pattern, &mut out)));
    }

    println!("the same beside a held pattern of 2^17 regions that interleaves with it:");
    let held = Pattern::new(&Datatype::byte().vector(1 << 17, 1, 64).at(32)).expect("it is regular");
    let spec = LockSpec { file: "file".into(), operation: 1, mode: Mode::Exclusive, pattern: held };
    let call = Call::Acquire { request: 1, spec: Some(spec), until: None };
    server.handle(Duration::ZERO, SessionId(2), 3, call, &mut out);
    let pattern = Pattern::new(&Datatype::byte().vector(1 << 17, 1, 64).at(0)).expect("it is regular");
    println!("  {:?}", time(|| lock_and_release(&mut server, &pattern, &mut out)));

    println!("an irregular list of 2^17 regions, described and unrolled:");
    let mut at = 0;
    let mut seed = 1_u64;
    let regions: Vec<Region> = (0..1 << 17)
        .map(|_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            at += 2 + (seed >> 59);
            Region::new(at, 1)
        })
        .collect();
    for indexing in [Indexing::Described, Indexing::Unrolled] {
        let mut table = Table::new(indexing, 1 << 20);
        let owner = |program| Owner { program, operation: 0 };
        table.add(1, owner(1), Mode::Exclusive, contiguous.clone()).expect("it is the first");
        let begun = Instant::now();
        let pattern = Pattern::list(&regions).expect("it is far from the end");
        let normal = begun.elapsed();
        let begun = Instant::now();
        table.add(2, owner(2), Mode::Exclusive, pattern).expect("it is the second");
        table.try_acquire(2).expect("there is no conflict");
        let acquired = begun.elapsed();
        let begun = Instant::now();
        table.release(2, &mut Vec::new()).expect("it is held");
        println!(
            "  {indexing:?}: normal form {normal:?}, acquire {acquired:?}, release {:?}",
            begun.elapsed()
        );
    }

    println!("waiters of 4 sessions on one byte, at a server:");
    for waiters in [100, 1_000, 10_000, 100_000] {
        let mut server = Server::new(Settings::default());
        for session in 0..4 {
            server.handle(Duration::ZERO, SessionId(session), 0, Call::Open, &mut out);
        }
        let begun = Instant::now();
        for request in 0..=waiters {
            let pattern = Pattern::contiguous(0, 1).expect("it is far from the end");
            let spec = LockSpec { file: "file".into(), operation: request, mode: Mode::Exclusive, pattern };
            let acquire = Call::Acquire { request, spec: Some(spec), until: Some(OFFSET_MAX) };
            server.handle(Duration::ZERO, SessionId(request % 4), request, acquire, &mut out);
        }
        let joined = begun.elapsed() / waiters as u32;
        out.clear();
        let begun = Instant::now();
        for request in 0..waiters {
            let release = Call::Release { request };
            server.handle(Duration::ZERO, SessionId(request % 4), waiters + request + 1, release, &mut out);
        }
        let handed_over = begun.elapsed() / waiters as u32;
        // A grant and the reply to the release for each.
        assert_eq!(out.len() as u64, 2 * waiters);
        out.clear();
        println!("  {waiters}: {joined:?} to join, {handed_over:?} to hand over");
    }

    println!("10,000 waiters on one byte, at a table:");
    for indexing in [Indexing::Described, Indexing::Unrolled] {
        let mut table = Table::new(indexing, 1 << 20);
        let begun = Instant::now();
        for key in 0..=10_000 {
            let byte = Pattern::contiguous(0, 1).expect("it is far from the end");
            table.add(key, Owner { program: key, operation: 0 }, Mode::Exclusive, byte).expect("it is new");
            table.acquire(key, OFFSET_MAX).expect("it does not wait yet");
        }
        let joined = begun.elapsed() / 10_000;
        let begun = Instant::now();
        let mut woken = Vec::new();
        for key in 0..10_000 {
            table.release(key, &mut woken).expect("it holds the byte");
        }
        assert_eq!(woken.len(), 10_000);
        println!("  {indexing:?}: {joined:?} to join, {:?} to hand over", begun.elapsed() / 10_000);
    }
}
