//! The suite that every engine passes, on a Ceph cluster: with native operations, and by calls alone.
//!
//! `NACRE_CEPH_HISTORIES=n` sets how many random histories are run in each way, and `make soak-ceph` runs many.

mod cluster;

use cluster::{Cluster, open};
use nacre_object::testkit::conformance::{self, Effort};

/// The effort for one way, with a seed of its own.
fn effort(seed: u64) -> Effort {
    match std::env::var("NACRE_CEPH_HISTORIES") {
        Ok(count) => Effort {
            histories: count.parse().expect("NACRE_CEPH_HISTORIES is a number"),
            seed,
            ..Effort::default()
        },
        Err(_) => Effort { histories: 4, increments: 12, seed, ..Effort::default() },
    }
}

#[test]
fn native_operations_and_calls_together() {
    let cluster = Cluster::shared();
    conformance::run_with(&cluster.open("mixed"), "suite", effort(1));
}

#[test]
fn several_clients() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("clients");
    let clients = [(); 3].map(|()| open(&uri));
    conformance::run_connections(&[&clients[0], &clients[1], &clients[2]], "suite", effort(2000));
}

#[test]
fn calls_alone() {
    let cluster = Cluster::shared();
    let store = open(&format!("{}&native=off", cluster.uri("calls")));
    conformance::run_with(&store, "suite", effort(1000));
}
