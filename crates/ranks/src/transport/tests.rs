//! The in-process transport keeps the contract, and the algorithms run on it with real threads and a real clock.

use std::time::{Duration, Instant};

use super::*;
use crate::hybrid::SharedQueue;
use crate::{Algorithm, Options, Outbox, Queue, Rank, Shutdown, Unit};

#[test]
fn the_local_transport_keeps_the_contract() {
    for ranks in [1, 2, 5] {
        std::thread::scope(|scope| {
            for mut transport in local::<Vec<u8>>(ranks) {
                scope.spawn(move || {
                    testkit::contract(
                        &mut transport,
                        7,
                        |number, bytes| {
                            let mut unit = number.to_le_bytes().to_vec();
                            unit.resize(bytes.max(8), number as u8);
                            unit
                        },
                        |unit| {
                            let number = u64::from_le_bytes(unit[..8].try_into().unwrap());
                            if unit[8..].iter().all(|byte| *byte == number as u8) { number } else { u64::MAX }
                        },
                    );
                });
            }
        });
    }
}

/// A node of a complete tree, given by its depth; visits are counted.
#[derive(Clone, Debug)]
struct Node(u32);

impl Unit for Node {
    fn size_bytes(&self) -> u64 {
        4
    }
}

const FAN_OUT: usize = 4;
const DEPTH: u32 = 6;

/// One process: a communicating thread and workers, as in a real program.
fn process(
    mut transport: LocalTransport<Node>,
    options: &Options,
    threads: usize,
    stop_after: Option<u64>,
) -> (u64, Vec<Node>, Shutdown) {
    let rank = transport.rank();
    let shared = SharedQueue::new((rank == 0).then_some(Node(0)));
    let assigned_only = options.algorithm == Algorithm::Cp;
    let (done, dones) = channel();
    let visited = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                let (queue, done) = (shared.clone(), done.clone());
                scope.spawn(move || {
                    let mut visited = 0u64;
                    while let Some(Node(depth)) = queue.begin(assigned_only) {
                        visited += 1;
                        let children = if depth < DEPTH { FAN_OUT } else { 0 };
                        queue.finish(std::iter::repeat_n(Node(depth + 1), children));
                        let _ = done.send(());
                    }
                    visited
                })
            })
            .collect();
        let start = Instant::now();
        let mut queue = shared.clone();
        let mut state = Rank::new(rank, transport.ranks(), options);
        let mut outbox = Outbox::new();
        let mut units = 0;
        let mut stopped = false;
        while !state.is_finished() {
            let now_ns = start.elapsed().as_nanos() as u64;
            match transport.receive_within(Duration::from_micros(50)) {
                Some((from, message)) => state.handle(now_ns, from, message, &mut queue, &mut outbox),
                None => state.poll(now_ns, &mut queue, &mut outbox),
            }
            units += dones.try_iter().count() as u64;
            if stop_after.is_some_and(|limit| units >= limit) && !stopped {
                stopped = true;
                state.stop(now_ns, &mut queue, &mut outbox);
            }
            while let Some((to, message)) = outbox.pop() {
                transport.send(to, message).unwrap();
            }
            if state.shutdown().is_some() {
                shared.close();
            }
        }
        shared.close();
        let visited = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        assert!(queue.working() == 0);
        (visited, state.shutdown().unwrap())
    });
    (visited.0, shared.drain(), visited.1)
}

fn run(algorithm: Algorithm, ranks: u32, threads: usize, stop_after: Option<u64>) {
    let options = Options { refined: ranks > 2, ..Options::new(algorithm, ranks, 11) };
    let results: Vec<(u64, Vec<Node>, Shutdown)> = std::thread::scope(|scope| {
        let handles: Vec<_> = local(ranks)
            .into_iter()
            .map(|transport| {
                let options = &options;
                let stop_after = stop_after.filter(|_| transport.rank() == ranks - 1 || ranks == 1);
                scope.spawn(move || process(transport, options, threads, stop_after))
            })
            .collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    });
    let below = |depth: u32| (FAN_OUT.pow(DEPTH + 1 - depth) as u64 - 1) / (FAN_OUT as u64 - 1);
    let visited: u64 = results.iter().map(|(visited, _, _)| visited).sum();
    let pending: u64 = results.iter().flat_map(|(_, pending, _)| pending).map(|node| below(node.0)).sum();
    assert_eq!(
        visited + pending,
        below(0),
        "{algorithm} on {ranks} ranks: {visited} visited, {pending} pending"
    );
    assert!(results.iter().all(|result| result.2 == results[0].2), "all ranks agree on how it ended");
    if results[0].2 == Shutdown::Finished {
        assert_eq!(pending, 0);
    }
    if stop_after.is_none() {
        assert_eq!(results[0].2, Shutdown::Finished);
    }
}

#[test]
fn every_algorithm_visits_everything_with_real_threads() {
    for algorithm in Algorithm::ALL {
        let threads = if algorithm.has_threads() { 3 } else { 1 };
        for ranks in [1, 2, 3, 6] {
            run(algorithm, ranks, threads, None);
        }
    }
}

#[test]
fn a_stop_keeps_what_was_not_visited() {
    for algorithm in Algorithm::ALL {
        let threads = if algorithm.has_threads() { 3 } else { 1 };
        for ranks in [1, 2, 4] {
            for after in [1, 40, 300] {
                run(algorithm, ranks, threads, Some(after));
            }
        }
    }
}
