//! The transport of messages: one trait, implemented by MPI (crate `nacre-mpi`) and, within a process, by [`local`].

use std::convert::Infallible;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::message::Message;

#[cfg(any(test, feature = "testkit"))]
pub mod testkit;

/// One rank's end of the network.
///
/// Messages of one pair of ranks arrive in the order in which they were sent, each exactly once; those of different
/// pairs, in any order. Nothing blocks: a message that was sent belongs to the transport, which keeps it until the
/// network has taken it.
/// `testkit::contract` (with the feature `testkit`) checks an implementation.
pub trait Transport<W> {
    /// The error of a failed network, after which the walk cannot continue.
    type Error: std::error::Error;

    /// Returns this rank.
    fn rank(&self) -> u32;

    /// Returns the number of ranks.
    fn ranks(&self) -> u32;

    /// Sends a message to another rank, or to this one.
    ///
    /// # Errors
    /// If the network failed.
    fn send(&mut self, to: u32, message: Message<W>) -> Result<(), Self::Error>;

    /// Returns a message that has arrived, with its sender, or `None` if none has.
    ///
    /// # Errors
    /// If the network failed.
    fn receive(&mut self) -> Result<Option<(u32, Message<W>)>, Self::Error>;

    /// Drives pending sends, and returns whether the network has taken everything that was sent, so that this end may
    /// be closed once [`Rank::is_finished`](super::Rank::is_finished).
    ///
    /// # Errors
    /// If the network failed.
    fn flush(&mut self) -> Result<bool, Self::Error>;
}

/// An end of a network inside one process: a channel to every rank. May be moved to a thread of its own.
#[derive(Debug)]
pub struct LocalTransport<W> {
    rank: u32,
    peers: Vec<Sender<(u32, Message<W>)>>,
    inbox: Receiver<(u32, Message<W>)>,
}

/// Returns the ends of a network of `ranks` within this process, in order.
pub fn local<W>(ranks: u32) -> Vec<LocalTransport<W>> {
    let (peers, inboxes): (Vec<_>, Vec<_>) = (0..ranks).map(|_| channel()).unzip();
    (0..ranks)
        .zip(inboxes)
        .map(|(rank, inbox)| LocalTransport { rank, peers: peers.clone(), inbox })
        .collect()
}

impl<W> LocalTransport<W> {
    /// Waits for a message, at most for `timeout`.
    pub fn receive_within(&mut self, timeout: std::time::Duration) -> Option<(u32, Message<W>)> {
        self.inbox.recv_timeout(timeout).ok()
    }
}

impl<W> Transport<W> for LocalTransport<W> {
    type Error = Infallible;

    fn rank(&self) -> u32 {
        self.rank
    }

    fn ranks(&self) -> u32 {
        self.peers.len() as u32
    }

    fn send(&mut self, to: u32, message: Message<W>) -> Result<(), Infallible> {
        // An end that is gone was closed after its rank was finished, and then nothing is sent to it; a message that is sent
        // nevertheless has nobody who could miss it.
        let _ = self.peers[to as usize].send((self.rank, message));
        Ok(())
    }

    fn receive(&mut self) -> Result<Option<(u32, Message<W>)>, Infallible> {
        Ok(self.inbox.try_recv().ok())
    }

    fn flush(&mut self) -> Result<bool, Infallible> {
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
