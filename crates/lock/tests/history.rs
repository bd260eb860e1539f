//! Histories of whole clusters with faults. `NACRE_SEED` replays one; `NACRE_LOCK_HISTORIES` sets their number, and
//! `NACRE_LOCK_CLUSTER=clients,servers` runs one large cluster.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::available_parallelism;

use nacre_lock::client::{Method, Protocol};
use nacre_lock::testkit::history::{Broken, Counts, Plan, Violation, run};

fn plan() -> Plan {
    Plan {
        clients: 5,
        servers: 3,
        operations: 6,
        file_bytes: 48,
        stripe_bytes: 4,
        files: 2,
        method: None,
        protocol: None,
        faults: 8,
        only_records: false,
        broken: Broken::Nothing,
    }
}

/// The seeds of so many histories, or of one for so many of `NACRE_LOCK_HISTORIES`.
fn seeds(quick: u64, share: u64) -> std::ops::Range<u64> {
    if let Ok(seed) = std::env::var("NACRE_SEED") {
        let seed = seed.parse().unwrap();
        return seed..seed + 1;
    }
    let count = std::env::var("NACRE_LOCK_HISTORIES").map(|count| count.parse::<u64>().unwrap());
    0..count.map_or(quick, |count| count.div_ceil(share))
}

fn add(sum: &mut Counts, counts: Counts) {
    sum.messages += counts.messages;
    sum.held += counts.held;
    sum.not_held += counts.not_held;
    sum.lost += counts.lost;
    sum.fences += counts.fences;
    sum.restarts += counts.restarts;
}

/// The plan of a history: most clusters are small, where the interleavings that matter come soon.
fn plan_of(seed: u64) -> Plan {
    match seed % 8 {
        0 => plan(),
        1..=3 => {
            Plan { clients: 3, servers: 2, operations: 4, file_bytes: 16, files: 1, faults: 6, ..plan() }
        }
        4 => Plan { clients: 2, servers: 3, operations: 4, file_bytes: 24, files: 2, faults: 6, ..plan() },
        _ => Plan { clients: 3, servers: 1, operations: 3, file_bytes: 12, files: 1, faults: 4, ..plan() },
    }
}

/// Runs histories on all processors.
fn run_all(seeds: std::ops::Range<u64>) -> Counts {
    let next = AtomicU64::new(seeds.start);
    let work = || {
        let mut sum = Counts::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return sum;
            }
            let counts = run(&plan_of(seed), seed);
            add(&mut sum, counts.unwrap_or_else(|violation| panic!("NACRE_SEED={seed}: {violation:?}")));
        }
    };
    let mut sum = Counts::default();
    std::thread::scope(|scope| {
        let threads = (0..available_parallelism().map_or(1, |count| count.get())).map(|_| scope.spawn(work));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().for_each(|thread| add(&mut sum, thread.join().unwrap()));
    });
    sum
}

#[test]
fn locks_exclude_and_everybody_finishes_whatever_fails() {
    let sum = run_all(seeds(500, 1));
    eprintln!("{sum:?}");
    if std::env::var("NACRE_SEED").is_err() {
        assert!(sum.held > 0 && sum.lost > 0 && sum.fences > 0 && sum.restarts > 0, "{sum:?}");
    }
}

#[test]
fn no_session_is_lost_while_records_cannot_be_written() {
    for seed in seeds(60, 40) {
        let plan = Plan { only_records: true, ..plan_of(seed) };
        let counts = run(&plan, seed).unwrap_or_else(|violation| panic!("NACRE_SEED={seed}: {violation:?}"));
        assert_eq!((counts.lost, counts.fences), (0, 0), "NACRE_SEED={seed}");
    }
}

#[test]
fn every_protocol_and_method_finishes_under_contention() {
    for (_, protocol) in Protocol::NAMES {
        for (_, method) in Method::NAMES {
            let plan = Plan {
                clients: 12,
                files: 1,
                faults: 0,
                method: Some(method),
                protocol: Some(protocol),
                ..plan()
            };
            for seed in seeds(2, 2000) {
                let counts = run(&plan, seed);
                let counts = counts.unwrap_or_else(|violation| {
                    panic!("NACRE_SEED={seed}, {protocol:?}, {method:?}: {violation:?}")
                });
                let lost = (counts.lost, counts.fences);
                assert_eq!(lost, (0, 0), "NACRE_SEED={seed}, {protocol:?}, {method:?}");
            }
        }
    }
}

#[test]
fn a_large_cluster_finishes() {
    let (clients, servers) = match std::env::var("NACRE_LOCK_CLUSTER") {
        Ok(cluster) => {
            let (clients, servers) = cluster.split_once(',').unwrap();
            (clients.parse().unwrap(), servers.parse().unwrap())
        }
        Err(_) => (200, 40),
    };
    let plan = Plan {
        clients,
        servers,
        operations: 2,
        file_bytes: 128,
        stripe_bytes: 8,
        files: clients / 10,
        faults: 20,
        ..plan()
    };
    let seed = std::env::var("NACRE_SEED").map_or(1, |seed| seed.parse().unwrap());
    let counts = run(&plan, seed).unwrap_or_else(|violation| panic!("NACRE_SEED={seed}: {violation:?}"));
    eprintln!("{counts:?}");
    assert!(counts.held > 0);
}

#[test]
fn a_broken_rule_is_noticed() {
    for broken in [Broken::NoFence, Broken::NoGrace, Broken::NoRecords, Broken::NoWait] {
        let plan = Plan { broken, operations: 12, faults: 24, ..plan() };
        let unsafe_history = |seed: &u64| matches!(run(&plan, *seed), Err(Violation::Safety { .. }));
        let noticed = (0..1000).find(unsafe_history);
        eprintln!("{broken:?}: noticed with seed {noticed:?}");
        assert!(noticed.is_some(), "{broken:?} went unnoticed");
    }
}
