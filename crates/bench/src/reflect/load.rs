//! Senders, which send at once, at a steady rate, or with a limited number of datagrams in flight.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use super::counting::{Counting, MAGIC};
use super::probe::{Moment, Probe};
use super::system::{self, Batch};
use super::testbed::Network;
use crate::BenchError;

/// The parameters of one sender.
#[derive(Clone, Debug)]
pub(super) struct Load {
    /// The number of the sender.
    pub(super) sender: u32,
    pub(super) from: SocketAddr,
    /// The destinations, used in turn.
    pub(super) to: Vec<SocketAddr>,
    /// The size of each datagram, in bytes.
    pub(super) bytes: usize,
    /// The maximum number of datagrams.
    pub(super) datagrams: u64,
    /// The maximum number of copies that arrive, of all senders; `u64::MAX` if they are not counted.
    pub(super) copies_max: u64,
    /// The maximum time.
    pub(super) window_ns: u64,
    /// The time between two datagrams; 0 sends them without a pause.
    pub(super) interval_ns: f64,
    /// The maximum number of datagrams whose copies have not all arrived, and the number of copies of one datagram.
    /// `None` is no limit.
    pub(super) outstanding: Option<(u64, u64)>,
    /// The number of copies of each datagram to wait for at the end.
    pub(super) wait_for: u64,
    /// The number of datagrams per system call.
    pub(super) batch: usize,
}

/// The results of a sender.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    pub(super) datagrams: u64,
    /// The time from the first datagram to the last one, or to the last copy if these were waited for.
    pub(super) ns: f64,
    /// The moments just before and just after that time.
    pub(super) begun: Option<Moment>,
    pub(super) ended: Option<Moment>,
    /// The processor time of the sender's thread, without its waiting.
    pub(super) thread_ns: f64,
    /// The number of times that copies did not arrive for so long that the sender continued without them.
    pub(super) given_up: u64,
    /// The number of datagrams that the sender's own system did not take.
    pub(super) refused: u64,
}

/// The interval at which the sender checks for copies, in nanoseconds: the counters are on cache lines that the
/// receivers' program writes, and every check takes a line away from it.
const LOOK_NS: f64 = 5000.0;

/// The time after which missing copies count as lost, in nanoseconds: longer than a busy machine holds the reflector up.
const PATIENCE_NS: f64 = 5e9;

impl Load {
    /// Sends from the calling thread, which is in the senders' namespace and on its processor. Copies are counted from
    /// the present state of `counting` on. While it waits it measures idle time.
    pub(super) fn send(&self, counting: &Counting, probe: &Probe) -> Result<Sent, BenchError> {
        let sockets = self.sockets()?;
        let mut batch = Batch::new(self.batch.max(1), self.bytes);
        let per_ns = system::ticks_per_ns();
        let [look, patience, window] =
            [LOOK_NS, PATIENCE_NS, self.window_ns as f64].map(|ns| (ns * per_ns) as u64);
        let interval = self.interval_ns * per_ns * batch.len() as f64;
        let copies_before = counting.copies();
        let mut watcher = probe.watcher();
        let thread_ns = system::thread_ns();
        let mut sent = Sent { begun: Some(probe.now()), ..Sent::default() };
        let mut turn = 0;
        let start = watcher.worked();
        let (mut next, mut looked, mut arrived, mut progress) = (start as f64, start, 0, start);
        // Copies that are not waited for any more.
        let mut lost = 0;
        loop {
            let now = watcher.look();
            if sent.datagrams >= self.datagrams || now.wrapping_sub(start) >= window {
                break;
            }
            if self.copies_max < u64::MAX && now.wrapping_sub(looked) >= look {
                looked = now;
                if counting.copies() - copies_before >= self.copies_max {
                    break;
                }
            }
            if (now as f64) < next {
                std::hint::spin_loop();
                continue;
            }
            if let Some((limit, copies)) = self.outstanding
                && sent.datagrams * copies - (arrived + lost) >= limit * copies
            {
                if now.wrapping_sub(looked) >= look {
                    looked = now;
                    let before = arrived;
                    arrived = counting.copies() - copies_before;
                    if arrived > before {
                        progress = now;
                    } else if now.wrapping_sub(progress) > patience {
                        lost = (sent.datagrams * copies).saturating_sub(arrived);
                        sent.given_up += 1;
                        progress = now;
                    }
                }
                continue;
            }
            let many = (self.datagrams - sent.datagrams).min(batch.len() as u64) as usize;
            for index in 0..many {
                let mark = batch.row(index);
                mark[..4].copy_from_slice(&MAGIC.to_le_bytes());
                mark[4..8].copy_from_slice(&self.sender.to_le_bytes());
                mark[8..16].copy_from_slice(&(sent.datagrams + index as u64).to_le_bytes());
            }
            match batch.send(sockets[turn].as_fd(), many) {
                Ok(taken) => sent.datagrams += taken as u64,
                // A full queue on the sender's side is the sender's affair: the datagram was never sent.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => sent.refused += 1,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => sent.refused += 1,
                Err(error) => return Err(BenchError::io("send a datagram")(error)),
            }
            turn = (turn + 1) % sockets.len();
            next += interval;
            let after = watcher.worked();
            progress = after;
            sent.ns = after.wrapping_sub(start) as f64 / per_ns;
        }
        let due = (sent.datagrams * self.wait_for).saturating_sub(lost);
        while arrived < due {
            let now = watcher.look();
            if now.wrapping_sub(looked) < look {
                continue;
            }
            looked = now;
            let before = arrived;
            arrived = counting.copies() - copies_before;
            if arrived > before {
                progress = now;
                sent.ns = now.wrapping_sub(start) as f64 / per_ns;
            } else if now.wrapping_sub(progress) > patience {
                break;
            }
        }
        sent.ended = Some(probe.now());
        sent.thread_ns = (system::thread_ns() - thread_ns) as f64 - watcher.waited_ns();
        Ok(sent)
    }

    fn sockets(&self) -> Result<Vec<UdpSocket>, BenchError> {
        let open = |to: &SocketAddr| {
            // Several sockets of one sender share its address.
            let socket = socket2::Socket::new(socket2::Domain::for_address(*to), socket2::Type::DGRAM, None)?;
            socket.set_reuse_port(true)?;
            socket.bind(&self.from.into())?;
            socket.connect(&(*to).into())?;
            // Whatever comes back is the reflector's word to its members, and not read.
            Ok::<UdpSocket, std::io::Error>(socket.into())
        };
        self.to
            .iter()
            .map(open)
            .collect::<Result<_, _>>()
            .map_err(BenchError::io(format!("open a sender's sockets at {}", self.from)))
    }
}

/// Runs several senders at once, each on its processor, and returns the results of each.
pub(super) fn send_all(
    network: &Network,
    loads: &[(usize, Load)],
    counting: &Counting,
    probe: &Probe,
) -> Result<Vec<Sent>, BenchError> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = loads
            .iter()
            .map(|(cpu, load)| {
                scope.spawn(move || {
                    network.enter()?;
                    system::pin(*cpu)?;
                    load.send(counting, probe)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}
