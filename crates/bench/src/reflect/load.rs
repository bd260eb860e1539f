//! Senders, as fast as they are let: at once, at a steady rate, or with no more than so many datagrams on their way.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use super::counting::{Counting, MAGIC};
use super::probe::{Moment, Probe};
use super::stage::Network;
use super::system::{self, Batch};
use crate::BenchError;

/// What one sender does.
#[derive(Clone, Debug)]
pub(super) struct Load {
    /// Its number.
    pub(super) sender: u32,
    pub(super) from: SocketAddr,
    /// Its datagrams go to these, in turn.
    pub(super) to: Vec<SocketAddr>,
    /// Bytes of each datagram.
    pub(super) bytes: usize,
    /// Datagrams, at most.
    pub(super) datagrams: u64,
    /// Copies of all senders that arrive, at most; u64::MAX if nobody counts them.
    pub(super) copies_max: u64,
    /// Time, at most.
    pub(super) window_ns: u64,
    /// Time between two datagrams; 0 sends them without a pause.
    pub(super) interval_ns: f64,
    /// Datagrams whose copies have not all arrived, at most, and the copies of one datagram. `None` is no limit.
    pub(super) outstanding: Option<(u64, u64)>,
    /// At the end, wait for so many copies of each datagram.
    pub(super) wait_for: u64,
    /// Datagrams by one call of the system.
    pub(super) batch: usize,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    pub(super) datagrams: u64,
    /// From the first datagram to the last one, or to the last copy if these were waited for.
    pub(super) ns: f64,
    /// Just before that, and just after it.
    pub(super) begun: Option<Moment>,
    pub(super) ended: Option<Moment>,
    /// Processor time of the sender's thread, without its waiting.
    pub(super) thread_ns: f64,
    /// Times that copies did not arrive for so long that the sender went on without them.
    pub(super) given_up: u64,
    /// Datagrams that the sender's own system did not take.
    pub(super) refused: u64,
}

/// How often the sender looks whether copies have arrived: the counters lie on lines of the cache that the receivers'
/// program writes, and every look takes one away from it.
const LOOK_NS: f64 = 5000.0;

/// How long copies may take to arrive before they are lost for good.
const PATIENCE_NS: f64 = 5e8;

impl Load {
    /// Sends from the calling thread, which is in the senders' namespace and on its processor. Copies are counted from
    /// `counting`'s present state on. While it waits it watches for idle time.
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

/// Has several send at once, each on its processor, and gives what came of each.
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
