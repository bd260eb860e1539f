//! The suite that every engine passes, on a Ceph cluster: as the store works by itself, and by calls alone.

mod cluster;

use cluster::{Cluster, open_calls_only};
use nacre_object::testkit::conformance;

#[test]
fn native_operations_and_calls_together() {
    let cluster = Cluster::shared();
    conformance::run(&cluster.open("mixed"), "suite");
}

#[test]
fn calls_alone() {
    let cluster = Cluster::shared();
    conformance::run(&open_calls_only(&cluster.uri("calls")), "suite");
}
