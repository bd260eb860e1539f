//! A connection after the handshake: a stream, sealed or not.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use crate::inbox::Inbox;
use crate::outbox::Outbox;
use crate::seal::Seal;
use crate::stream::Stream;

/// Slices of one vectored write.
const SLICES_MAX: usize = 64;

pub(crate) struct Channel {
    stream: Stream,
    seal: Option<Box<Seal>>,
    /// The bytes that the socket has taken.
    written: u64,
}

impl Channel {
    pub(crate) fn new(stream: Stream, seal: Option<Box<Seal>>) -> Self {
        Self { stream, seal, written: 0 }
    }

    /// Returns the stream and the seal.
    pub(crate) fn into_parts(self) -> (Stream, Option<Box<Seal>>) {
        (self.stream, self.seal)
    }

    /// Reads once, at most `bytes_max` bytes, as soon as there is something to read. Returns how many bytes arrived; 0 means the end of the
    /// stream.
    pub(crate) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        inbox: &mut Inbox,
        bytes_max: usize,
    ) -> Poll<io::Result<usize>> {
        loop {
            std::task::ready!(self.stream.poll_read_ready(context))?;
            let read = match &mut self.seal {
                None => inbox.read(&self.stream, bytes_max),
                Some(seal) => {
                    let read = self.stream.try_read_buf(seal.receive(), bytes_max);
                    if read.is_ok() {
                        inbox.fill(|buffer| seal.open(buffer))?;
                    }
                    read
                }
            };
            match read {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read),
            }
        }
    }

    /// Writes until the outbox is empty and everything is flushed (`Ready`) or the socket takes no more (`Pending`).
    /// Adds the number of bytes that left the outbox to `taken`.
    pub(crate) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        outbox: &mut Outbox,
        taken: &mut usize,
    ) -> Poll<io::Result<()>> {
        loop {
            let written = match &mut self.seal {
                None => {
                    if outbox.is_empty() {
                        return Poll::Ready(Ok(()));
                    }
                    let mut slices = [IoSlice::new(&[]); SLICES_MAX];
                    let filled = outbox.slices(&mut slices);
                    let written = self.stream.try_write_vectored(&slices[..filled]);
                    if let Ok(count) = written {
                        outbox.advance(count);
                        *taken += count;
                    }
                    written
                }
                Some(seal) => {
                    if seal.unwritten().is_empty() {
                        if outbox.is_empty() {
                            return Poll::Ready(Ok(()));
                        }
                        *taken += seal.seal(outbox)?;
                    }
                    let written = self.stream.try_write_vectored(&[IoSlice::new(seal.unwritten())]);
                    if let Ok(count) = written {
                        seal.advance(count);
                    }
                    written
                }
            };
            match written {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => self.written += count as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    std::task::ready!(self.stream.poll_write_ready(context))?;
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Returns the number of bytes that the socket has taken so far, sealed or not.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Returns whether everything that left the outbox has been written.
    pub(crate) fn is_flushed(&self) -> bool {
        self.seal.as_ref().is_none_or(|seal| seal.unwritten().is_empty())
    }

    /// Returns whether there is something to read; if not, the task is woken when there is.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` if the peer has closed the connection.
    pub(crate) fn has_input(&self, context: &mut Context<'_>) -> io::Result<bool> {
        while let Poll::Ready(ready) = self.stream.poll_read_ready(context) {
            ready?;
            match self.stream.try_peek() {
                Ok(false) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(true) => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Returns whether part of a sealed record was received and the rest was not.
    pub(crate) fn is_partial(&self) -> bool {
        self.seal.as_ref().is_some_and(|seal| seal.is_partial())
    }

    /// Releases the memory that an idle connection does not need.
    pub(crate) fn release(&mut self) {
        if let Some(seal) = &mut self.seal {
            seal.release();
        }
    }

    /// Returns the bytes of memory held by the seal.
    pub(crate) fn held_bytes(&self) -> usize {
        self.seal.as_ref().map_or(0, |seal| seal.held_bytes())
    }
}
