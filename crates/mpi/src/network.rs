//! The network of an MPI job, as a transport of the walk's algorithms.
//!
//! - A sent message belongs to this end until MPI has taken it: each has its own buffer, and none is ever waited for.
//! - Received messages are polled for, and never waited for either.
//! - Only one thread uses it, the one that initialised MPI.
#![allow(unsafe_code)]

use std::borrow::Cow;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::time::Duration;

use mpi::Rank;
use mpi::ffi;
use mpi::point_to_point::MatchedReceiveVec;
use mpi::raw::AsRaw;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use nacre_ranks::{Message, Transport};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::processor::Mask;
use crate::progress::Figures;

/// The error with which the network failed.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// A call of MPI failed. MPI itself usually ends the job before this error is seen.
    #[error("MPI could not {0} (error {1})")]
    Mpi(&'static str, i32),
    /// A rank sent a message that cannot be decoded.
    #[error(
        "rank {0} sent {1} bytes that are not a message: do all ranks run the same version of this program?"
    )]
    Nonsense(u32, usize),
    /// A message cannot be encoded.
    #[error("a message cannot be encoded: {0}")]
    Encoding(postcard::Error),
    /// A message is longer than MPI allows.
    #[error("a message of {0} bytes is too long for MPI")]
    TooLong(usize),
}

/// A message in flight: MPI reads the buffer until the request is done.
struct Sending {
    request: ffi::MPI_Request,
    _buffer: Box<[u8]>,
}

/// Messages in flight, in the order in which they were sent.
#[derive(Default)]
pub struct Outgoing(VecDeque<Sending>);

impl Outgoing {
    /// Returns the number of messages that MPI has not taken yet.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Drops the buffers that MPI has taken. The oldest are checked first, and those behind an unfinished one wait.
    ///
    /// # Errors
    /// If MPI reports an error.
    pub fn settle(&mut self) -> Result<(), NetworkError> {
        while let Some(oldest) = self.0.front_mut() {
            let mut done = 0;
            // SAFETY: the request was made by `MPI_Isend` and is not done, or it would have been taken out below.
            let code = unsafe { ffi::MPI_Test(&mut oldest.request, &mut done, ffi::RSMPI_STATUS_IGNORE) };
            check(code, "finish sending")?;
            if done == 0 {
                break;
            }
            self.0.pop_front();
        }
        Ok(())
    }

    fn send(
        &mut self,
        world: &SimpleCommunicator,
        to: u32,
        tag: i32,
        bytes: Vec<u8>,
    ) -> Result<(), NetworkError> {
        self.settle()?;
        let buffer = bytes.into_boxed_slice();
        let count = i32::try_from(buffer.len()).map_err(|_| NetworkError::TooLong(buffer.len()))?;
        // SAFETY: null is what MPI overwrites.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        // SAFETY: the buffer is on the heap, is not changed, and stays in the queue until `MPI_Test` says that MPI has
        // done with it, or for ever (see `Drop`); the communicator is alive.
        let code = unsafe {
            ffi::MPI_Isend(
                buffer.as_ptr().cast(),
                count,
                ffi::RSMPI_UINT8_T,
                to as Rank,
                tag,
                world.as_raw(),
                &mut request,
            )
        };
        check(code, "send")?;
        self.0.push_back(Sending { request, _buffer: buffer });
        Ok(())
    }
}

/// Leaks the buffers that were not taken, because MPI may still read them.
impl Drop for Outgoing {
    fn drop(&mut self) {
        self.0.drain(..).for_each(std::mem::forget);
    }
}

/// Messages of the algorithms.
const TALK: i32 = 0;
/// Pieces of output.
const OUTPUT: i32 = 1;
/// The result of a rank at the end of a phase.
const PART: i32 = 2;
/// Rank 0's decision at the end of a phase.
const DECISION: i32 = 3;
/// The progress of a rank.
const PROGRESS: i32 = 4;
/// Pieces that ranks exchange between phases.
const EXCHANGE: i32 = 5;

/// The maximum number of a rank's pieces in an exchange that MPI has not taken yet.
const EXCHANGED_MAX: usize = 16;

/// One rank's end of the network.
pub struct Network<W> {
    world: SimpleCommunicator,
    sending: Outgoing,
    sent_bytes: Vec<u64>,
    _units: PhantomData<fn() -> W>,
}

impl<W> Network<W> {
    /// Creates the network over a communicator that has no other user.
    pub fn new(world: SimpleCommunicator) -> Network<W> {
        let sent_bytes = vec![0; world.size() as usize];
        Network { world, sending: Outgoing::default(), sent_bytes, _units: PhantomData }
    }

    /// Returns the number of bytes that the algorithms sent to each rank.
    pub fn sent_bytes(&self) -> &[u64] {
        &self.sent_bytes
    }

    /// Returns whether this is rank 0.
    pub fn is_root(&self) -> bool {
        self.world.rank() == 0
    }

    /// Returns this rank.
    pub fn number(&self) -> u32 {
        self.world.rank() as u32
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> u32 {
        self.world.size() as u32
    }

    /// Sends a piece of output to rank 0.
    ///
    /// # Errors
    /// If MPI reports an error.
    pub fn send_output(&self, bytes: Vec<u8>, outgoing: &mut Outgoing) -> Result<(), NetworkError> {
        outgoing.send(&self.world, 0, OUTPUT, bytes)
    }

    /// Returns a piece of output that has arrived, with its sender.
    pub fn receive_output(&self) -> Option<(u32, Vec<u8>)> {
        self.take_one(OUTPUT)
    }

    /// Sends the progress of this rank to rank 0.
    ///
    /// # Errors
    /// If MPI reports an error.
    pub fn send_progress(&self, figures: &Figures, outgoing: &mut Outgoing) -> Result<(), NetworkError> {
        let bytes = postcard::to_stdvec(figures).map_err(NetworkError::Encoding)?;
        outgoing.send(&self.world, 0, PROGRESS, bytes)
    }

    /// Returns the progress of a rank that has arrived, with its sender.
    ///
    /// # Errors
    /// If it cannot be decoded.
    pub fn receive_progress(&self) -> Result<Option<(u32, Figures)>, NetworkError> {
        let Some((from, bytes)) = self.take_one(PROGRESS) else { return Ok(None) };
        let figures = postcard::from_bytes(&bytes);
        Ok(Some((from, figures.map_err(|_| NetworkError::Nonsense(from, bytes.len()))?)))
    }

    /// Sends `bytes` to rank 0, and waits until MPI has taken them. Only between phases.
    pub fn send_part(&self, bytes: &[u8]) {
        self.world.process_at_rank(0).send_with_tag(bytes, PART);
    }

    /// Returns what a rank sent by [`Network::send_part`], if it has arrived, with its sender.
    pub fn receive_part(&self) -> Option<(u32, Vec<u8>)> {
        self.take_one(PART)
    }

    fn take_one(&self, tag: i32) -> Option<(u32, Vec<u8>)> {
        let found = self.world.any_process().immediate_matched_probe_with_tag(tag)?;
        let (bytes, status) = found.matched_receive_vec::<u8>();
        Some((status.source_rank() as u32, bytes))
    }

    /// Sends a number from rank 0 to all ranks, and returns it on each. Only between phases. Rank 0 may take a long
    /// time, during which the others sleep; in a broadcast of MPI's they would keep their processors busy.
    pub fn decide(&self, number: i32) -> i32 {
        if self.is_root() {
            for rank in 1..self.world.size() {
                self.world.process_at_rank(rank).send_with_tag(&number.to_le_bytes()[..], DECISION);
            }
            return number;
        }
        let mut pause = Duration::from_micros(50);
        loop {
            if let Some((_, bytes)) = self.take_one(DECISION)
                && let Ok(number) = bytes.try_into()
            {
                return i32::from_le_bytes(number);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(2));
        }
    }

    /// Sends a value from rank 0 to all ranks, and returns it on each. Only between phases.
    ///
    /// # Errors
    /// If the value cannot be encoded or decoded.
    pub fn same<T: Serialize + DeserializeOwned>(&self, said: &T) -> Result<T, NetworkError> {
        let mut bytes = postcard::to_stdvec(said).map_err(NetworkError::Encoding)?;
        let len = self.decide(bytes.len() as i32) as usize;
        bytes.resize(len, 0);
        self.world.process_at_rank(0).broadcast_into(&mut bytes[..]);
        postcard::from_bytes(&bytes).map_err(|_| NetworkError::Nonsense(0, len))
    }

    /// Gathers a number from every rank, and returns all of them on each, by rank.
    pub fn share(&self, number: u64) -> Vec<u64> {
        let mut all = vec![0; self.world.size() as usize];
        self.world.all_gather_into(&number, &mut all[..]);
        all
    }

    /// Gathers the processor mask of every rank, and returns all of them on each, by rank.
    pub fn share_masks(&self, mask: &Mask) -> Vec<Mask> {
        let mut all = vec![0; mask.len() * self.world.size() as usize];
        self.world.all_gather_into(&mask[..], &mut all[..]);
        all.as_chunks().0.to_vec()
    }

    /// Sends the pieces that `next` gives, each to a rank, until it gives none, and passes those that arrive to `receive`,
    /// with their senders. No piece is empty. Returns when this rank has sent and received everything; before another
    /// exchange, all ranks have to wait for each other. Only between phases.
    ///
    /// # Errors
    /// If MPI reports an error, and those of `next` and `receive`.
    pub fn exchange<E: From<NetworkError>>(
        &self,
        mut next: impl FnMut() -> Result<Option<(u32, Vec<u8>)>, E>,
        mut receive: impl FnMut(u32, Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (own, ranks) = (self.number(), self.size());
        let mut outgoing = Outgoing::default();
        let mut sending = true;
        // An empty piece is the last one of its sender.
        let mut unended = (0..ranks).filter(|rank| *rank != own).peekable();
        let mut open = ranks - 1;
        while sending || open > 0 || unended.peek().is_some() || outgoing.len() > 0 {
            let mut quiet = true;
            outgoing.settle()?;
            if outgoing.len() < EXCHANGED_MAX {
                if sending {
                    match next()? {
                        Some((to, piece)) if to == own => receive(own, piece)?,
                        Some((to, piece)) => outgoing.send(&self.world, to, EXCHANGE, piece)?,
                        None => sending = false,
                    }
                    quiet = false;
                } else if let Some(to) = unended.next() {
                    outgoing.send(&self.world, to, EXCHANGE, Vec::new())?;
                    quiet = false;
                }
            }
            if let Some((from, piece)) = self.take_one(EXCHANGE) {
                match piece.is_empty() {
                    true => open -= 1,
                    false => receive(from, piece)?,
                }
                quiet = false;
            }
            if quiet {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        Ok(())
    }

    /// Ends the whole job at once.
    pub fn abort(&self, code: i32) -> ! {
        self.world.abort(code)
    }
}

fn check(code: i32, doing: &'static str) -> Result<(), NetworkError> {
    if code == ffi::MPI_SUCCESS as i32 { Ok(()) } else { Err(NetworkError::Mpi(doing, code)) }
}

impl<W: Serialize + DeserializeOwned> Transport<W> for Network<W> {
    type Error = NetworkError;

    fn rank(&self) -> u32 {
        self.world.rank() as u32
    }

    fn ranks(&self) -> u32 {
        self.world.size() as u32
    }

    fn send(&mut self, to: u32, message: Message<W>) -> Result<(), NetworkError> {
        let bytes = pack(postcard::to_stdvec(&message).map_err(NetworkError::Encoding)?);
        self.sent_bytes[to as usize] += bytes.len() as u64;
        self.sending.send(&self.world, to, TALK, bytes)
    }

    fn receive(&mut self) -> Result<Option<(u32, Message<W>)>, NetworkError> {
        let Some((from, bytes)) = self.take_one(TALK) else { return Ok(None) };
        let message = unpack(&bytes).and_then(|plain| postcard::from_bytes(&plain).ok());
        let message = message.ok_or(NetworkError::Nonsense(from, bytes.len()))?;
        Ok(Some((from, message)))
    }

    fn flush(&mut self) -> Result<bool, NetworkError> {
        self.sending.settle()?;
        Ok(self.sending.len() == 0)
    }
}

/// The size below which messages are not compressed, in bytes.
const PACK_MIN_BYTES: usize = 100;

/// The maximum size of a compressed message when it is unpacked, in bytes. Longer ones are not compressed.
const UNPACKED_MAX_BYTES: usize = 64 << 20;

/// Compresses a message, unless it is short or very long. Paths that are sent together have much in common: compressed they take a
/// third or less. The first byte says whether the rest is compressed.
fn pack(plain: Vec<u8>) -> Vec<u8> {
    if !(PACK_MIN_BYTES..=UNPACKED_MAX_BYTES).contains(&plain.len()) {
        return [&[0], &plain[..]].concat();
    }
    [&[1], &lz4_flex::compress_prepend_size(&plain)[..]].concat()
}

fn unpack(bytes: &[u8]) -> Option<Cow<'_, [u8]>> {
    match bytes.split_first()? {
        (0, plain) => Some(Cow::Borrowed(plain)),
        (1, packed) => {
            let (len, packed) = packed.split_first_chunk()?;
            let len = u32::from_le_bytes(*len) as usize;
            // Compression gains at most a factor of 255: a length that lies costs no memory.
            if len > UNPACKED_MAX_BYTES || len > packed.len().saturating_mul(255) {
                return None;
            }
            lz4_flex::decompress(packed, len).ok().map(Cow::Owned)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_packed_and_unpacked() {
        for len in [0, 1, 99, 100, 5_000, 1 << 20] {
            let plain: Vec<u8> = (0..len).map(|index: usize| (index / 7 * 3) as u8).collect();
            let packed = pack(plain.clone());
            assert!(packed.len() <= plain.len() + 1 + plain.len() / 200 + 20);
            assert_eq!(unpack(&packed).unwrap(), plain);
            // What was cut or changed is an error or something else, and never a panic.
            for cut in 0..packed.len().min(200) {
                let _ = unpack(&packed[..cut]);
                let mut changed = packed.clone();
                changed[cut] ^= 0x41;
                let _ = unpack(&changed);
            }
        }
        // What would be refused when it is unpacked is sent as it is.
        let long = vec![7; UNPACKED_MAX_BYTES + 1];
        assert!(unpack(&pack(long.clone())).is_some_and(|plain| *plain == long[..]));
        assert_eq!(unpack(&[1, 0xff, 0xff, 0xff, 0xff, 0]), None);
        assert_eq!(unpack(&[2, 0]), None);
    }
}
