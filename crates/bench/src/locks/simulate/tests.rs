//! Tests of small simulated clusters.

use super::*;

fn run(method: MethodName, protocol: ProtocolName, clients: u32, overlap_percent: u32) -> Simulated {
    let parameters = Parameters { method, protocol, clients, servers: 4, overlap_percent, regions: 16 << 10 };
    simulate(parameters, Model::default()).unwrap()
}

#[test]
fn a_run_takes_what_its_messages_take() {
    let model = Model::default();
    // A call to each of four servers at once, and their replies, which the client takes one after the other.
    let one = run(MethodName::Datatype, ProtocolName::OneTry, 1, 0);
    let round_trip = (2 * model.latency_ns + model.server_ns) as f64 / 1e9;
    assert_eq!(one.messages, 8);
    assert!(one.seconds > round_trip + 4.0 * model.client_ns as f64 / 1e9, "{one:?}");
    assert!(one.seconds < 1.2 * (round_trip + 4.0 * model.client_ns as f64 / 1e9), "{one:?}");
    // 1 MiB in stripes of 64 KiB is 16 rounds, one after the other.
    let ordered = run(MethodName::Datatype, ProtocolName::TwoPhase, 1, 0);
    assert_eq!(ordered.messages, 32);
    assert!(ordered.seconds > 16.0 * round_trip, "{ordered:?}");
}

#[test]
fn the_same_parameters_give_the_same_run() {
    let one = || run(MethodName::Datatype, ProtocolName::AltTry, 50, 100);
    let (first, second) = (one(), one());
    assert_eq!((first.seconds, first.messages), (second.seconds, second.messages));
}

#[test]
fn regions_one_by_one_take_a_request_each() {
    let posix = run(MethodName::Posix, ProtocolName::OneTry, 2, 0);
    assert_eq!(posix.messages, 2 * 2 * (16 << 10));
    let list = run(MethodName::List, ProtocolName::OneTry, 2, 0);
    assert_eq!(list.messages, 2 * 2 * (16 << 10) / 64);
    assert!(list.acquired_per_s > posix.acquired_per_s);
}
