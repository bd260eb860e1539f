//! The contract of [`Transport`], as a program that all ranks run at once, each in its own thread or process.

use super::super::{Choose, Message, Random};
use super::Transport;

/// Checks the contract on every rank of a network that is used for nothing else, with the same `seed` everywhere, and
/// returns when all ranks are done. `unit` makes a unit of about the given number of bytes that is identified by a
/// number, and `number` reads that back (`u64::MAX` if the unit is damaged).
///
/// Checked: each message arrives once, whole, at its destination, with the right sender; messages of one pair in order;
/// large ones (1 MiB) among small ones; messages to oneself; many unreceived ones at a time, because no rank receives
/// until it has sent all of its own; and that [`Transport::flush`] completes.
///
/// # Panics
///
/// If the contract is broken. If a message is lost, the check waits for it: run it with a time limit.
pub fn contract<W, T: Transport<W>>(
    transport: &mut T,
    seed: u64,
    unit: impl Fn(u64, usize) -> W,
    number: impl Fn(&W) -> u64,
) {
    let rank = transport.rank();
    let ranks = transport.ranks();
    assert!(rank < ranks, "rank {rank} of {ranks}");
    let per_pair = 200u64;
    // One more says that a rank has sent everything of a round.
    let per_round = per_pair + 1;
    let mut seen = vec![0u64; ranks as usize];
    let fail = |error: T::Error| -> ! { panic!("rank {rank}: {error}") };
    let label = |from: u32, to: u32, index: u64| (u64::from(from) << 40) | (u64::from(to) << 20) | index;
    for round in 0..2u64 {
        let mut random = Random::part(seed ^ round, u64::from(rank));
        let mut left: Vec<(u32, u64)> = (0..ranks).map(|to| (to, 0)).collect();
        while !left.is_empty() {
            let chosen = random.below(left.len() as u64) as usize;
            let (to, index) = left[chosen];
            let bytes = if index == 77 { 1 << 20 } else { 16 + random.below(200) as usize };
            let message = match index % 4 {
                0 => {
                    Message::Work(vec![unit(label(rank, to, index), bytes), unit(label(rank, to, index), 16)])
                }
                1 => Message::Results(vec![unit(label(rank, to, index), bytes)]),
                2 => Message::Drained { sent: label(rank, to, index), received: index },
                _ => Message::Request,
            };
            transport.send(to, message).unwrap_or_else(|error| fail(error));
            left[chosen].1 += 1;
            if left[chosen].1 == per_pair {
                left.swap_remove(chosen);
            }
        }
        for to in 0..ranks {
            transport.send(to, Message::Exit).unwrap_or_else(|error| fail(error));
        }
        // Whoever is through may be in the next round already: what comes is told apart by its number.
        while seen.iter().any(|count| *count < (round + 1) * per_round) {
            let Some((from, message)) = transport.receive().unwrap_or_else(|error| fail(error)) else {
                std::thread::yield_now();
                continue;
            };
            let index = seen[from as usize] % per_round;
            let expected = label(from, rank, index);
            match (index % 4, &message) {
                _ if index == per_pair => assert_eq!(message.name(), "exit", "rank {rank}: from rank {from}"),
                (0, Message::Work(units)) => {
                    assert_eq!(units.iter().map(&number).collect::<Vec<_>>(), [expected, expected]);
                }
                (1, Message::Results(units)) => {
                    assert_eq!(units.iter().map(&number).collect::<Vec<_>>(), [expected]);
                }
                (2, Message::Drained { sent, received }) => assert_eq!((*sent, *received), (expected, index)),
                (3, Message::Request) => {}
                _ => panic!("rank {rank}: message {index} from rank {from} is a {}", message.name()),
            }
            seen[from as usize] += 1;
            assert!(seen[from as usize] <= 2 * per_round, "rank {rank}: more from rank {from} than it sent");
        }
        while !transport.flush().unwrap_or_else(|error| fail(error)) {
            std::thread::yield_now();
        }
    }
}
