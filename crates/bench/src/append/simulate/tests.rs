//! Tests of small simulated clusters.

use super::*;

/// Times of service such as a machine of today has.
const COSTS: Costs = Costs {
    positions_ns: 5_000,
    write_ns: 20_000,
    entry_ns: 4_000,
    sync_ns: 0,
    client_write_ns: 10_000,
    client_entry_ns: 1_000,
};

fn parameters(servers: u32, clients: u32, batch: u64) -> Parameters {
    let of = Parameters::of(Durability::Volatile, servers, batch, 0);
    Parameters { clients, writes: 40 * u64::from(clients), ..of }
}

fn run(parameters: Parameters, costs: Costs) -> Simulated {
    simulate(parameters, costs, NETWORK).unwrap()
}

/// Asserts that a run has the rate that its resources allow, and that this one bounds it.
fn assert_bound(run: &Simulated, resource: Resource) {
    let share = run.per_second / run.allowed_per_second;
    assert!((0.98..1.02).contains(&share), "{run:?}");
    assert_eq!(run.bound_by, Some(resource), "{run:?}");
}

#[test]
fn the_rate_is_what_the_busiest_resource_allows() {
    // A server takes 20 µs for 128 entries, and 4 µs for each.
    let one_server = run(parameters(1, 64, 128), COSTS);
    assert_bound(&one_server, Resource::Server);
    let expected = 128e9 / (20_000.0 + 128.0 * 4_000.0);
    assert!((one_server.per_second / expected - 1.0).abs() < 0.02, "{one_server:?}");
    // A sequencer gives out 16 positions in a millisecond.
    let slow = Costs { positions_ns: 1_000_000, ..COSTS };
    let one_sequencer = run(parameters(10, 64, 16), slow);
    assert_bound(&one_sequencer, Resource::Sequencer);
    assert!((one_sequencer.per_second / 16_000.0 - 1.0).abs() < 0.02, "{one_sequencer:?}");
    let slow = Costs { client_entry_ns: 1_000_000, ..COSTS };
    assert_bound(&run(parameters(10, 4, 16), slow), Resource::Client);
    let fast = Costs { positions_ns: 0, write_ns: 0, entry_ns: 0, ..COSTS };
    assert_bound(&run(parameters(1, 64, 128), fast), Resource::Link);
}

#[test]
fn one_client_waits_for_each_reply() {
    let alone = parameters(1, 1, 128);
    let on_link = |bytes: u64| bytes as f64 * 0.8;
    let client_ns = 10_000.0 + 128.0 * 1_000.0;
    let server_ns = 20_000.0 + 128.0 * 4_000.0;
    // Its positions come while it waits for the write before.
    let write_ns =
        client_ns + on_link(alone.write_bytes(128)) + server_ns + on_link(HEAD_BYTES) + 2.0 * 25_000.0;
    let run = run(alone, COSTS);
    assert!((run.per_second / (128e9 / write_ns) - 1.0).abs() < 0.01, "{run:?}");
    assert_eq!(run.bound_by, None);
}

#[test]
fn a_sequencer_allows_as_many_times_more_as_a_request_asks_for() {
    let slow = Costs { positions_ns: 100_000, ..COSTS };
    let [one, many] = [1, 16].map(|batch| run(parameters(30, 64, batch), slow));
    assert_bound(&one, Resource::Sequencer);
    assert_bound(&many, Resource::Sequencer);
    assert!((many.per_second / one.per_second / 16.0 - 1.0).abs() < 0.05, "{one:?} {many:?}");
}

#[test]
fn the_same_parameters_give_the_same_run() {
    let one = || run(parameters(7, 20, 16), COSTS);
    assert_eq!(one(), one());
    let other = Parameters { seed: 2, ..parameters(7, 20, 16) };
    assert_ne!(one().per_second, run(other, COSTS).per_second);
}

#[test]
fn no_position_is_given_twice_and_none_is_lost_when_the_sequencer_fails() {
    for seed in 1..6 {
        for forgets in [false, true] {
            // Batches are longer than units in some, so that they are written in pieces.
            let unit = if seed % 2 == 0 { 16 } else { 5 };
            let failure = Some(Failure { at_ns: 3_000_000, forgets });
            let run = run(Parameters { seed, unit, failure, ..parameters(5, 64, 16) }, COSTS);
            assert!(run.refused > 0, "{run:?}");
            // It takes the replies of all objects, at least, and ends before the run does.
            let recovered_ms = run.recovered_ms.unwrap();
            assert!((0.1..50.0).contains(&recovered_ms), "{run:?}");
        }
    }
}

#[test]
fn the_proof_of_a_history_finds_what_is_wrong_with_it() {
    let after = || {
        let mut cluster = Cluster::new(parameters(3, 10, 16), COSTS, NETWORK).unwrap();
        cluster.run().unwrap();
        cluster
    };
    let twice = |mut cluster: Cluster| {
        let (first, end) = cluster.clients[1].spans.list()[0];
        cluster.clients[0].spans.add(first, end);
        cluster.prove().unwrap_err().to_string()
    };
    assert!(twice(after()).contains("given to two entries"));
    let lost = |mut cluster: Cluster| {
        cluster.objects[0].written.clear();
        cluster.prove().unwrap_err().to_string()
    };
    assert!(lost(after()).contains("is lost"));
}

#[test]
fn an_object_takes_each_place_once_and_only_from_its_epoch() {
    let mut object = Object { epoch: 1, ..Object::default() };
    assert_eq!(object.write(1, 10..20), Ok(()));
    assert_eq!(object.write(1, 20..30), Ok(()));
    assert_eq!(object.write(1, 5..10), Ok(()));
    assert_eq!(object.written, BTreeMap::from([(5, 30)]));
    for taken in [4..6, 5..6, 29..31, 0..100, 10..20] {
        assert_eq!(object.write(1, taken), Err(Refusal::Occupied));
    }
    assert_eq!(object.write(1, 40..41), Ok(()));
    assert!(object.has(6..30) && !object.has(29..31) && !object.has(0..6));
    assert_eq!(object.seal(2), 41);
    assert_eq!(object.write(1, 50..51), Err(Refusal::Epoch));
    assert_eq!(object.write(2, 50..51), Ok(()));
}

#[test]
fn the_runs_of_the_study_go_to_a_thousand_servers() {
    let args: Args = crate::kit::parse(&[]).unwrap();
    let runs = runs(&args, Durability::Volatile);
    assert!(runs.iter().any(|run| run.servers == SERVERS_MAX && run.failure.is_some()));
    for run in &runs {
        // A handle writes no more than this at a time.
        assert!(run.write_bytes(run.batch) <= limit::BATCH_BYTES_MAX as u64);
        assert!(run.batch <= limit::BATCH_ENTRIES_MAX as u64 && run.width <= limit::WIDTH_MAX);
    }
    let homes = runs[1].homes().unwrap();
    assert!(homes.len() == runs[1].width as usize && homes.iter().all(|home| *home < runs[1].servers));
}
