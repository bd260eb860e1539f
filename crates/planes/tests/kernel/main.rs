//! Tests of the `kernel` plane alone: its program on packets of all kinds, checksums, hand-over, neighbours and devices
//! that change, and the end of the daemon. It needs root, iproute2, and a nacre that was built with clang.

#[path = "../contract/world.rs"]
#[allow(dead_code)]
mod world;

mod daemon;
mod fuzz;
mod network;
mod rate;
mod run;
