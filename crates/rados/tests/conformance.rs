//! The suite that every engine passes, on a Ceph cluster: with native operations, and by calls alone.

mod cluster;

use cluster::{Cluster, open};
use nacre_object::testkit::conformance;

#[test]
fn native_operations_and_calls_together() {
    let cluster = Cluster::shared();
    conformance::run(&cluster.open("mixed"), "suite");
}

#[test]
fn several_clients() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("clients");
    let clients = [(); 3].map(|()| open(&uri));
    let effort = conformance::Effort { histories: 15, seed: 2000, ..conformance::Effort::default() };
    conformance::run_connections(&[&clients[0], &clients[1], &clients[2]], "suite", effort);
}

#[test]
fn calls_alone() {
    let cluster = Cluster::shared();
    let store = open(&format!("{}&native=off", cluster.uri("calls")));
    let effort = conformance::Effort { histories: 15, seed: 1000, ..conformance::Effort::default() };
    conformance::run_with(&store, "suite", effort);
}
