//! What a rank lists goes to rank 0, which prints it: whole pieces, so that no line is broken.
//!
//! A thread that lists waits while too much is under way, so a slow reader slows the walk down and nothing piles up.

use crate::network::{Network, NetworkError, Outgoing};
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

/// Pieces of a rank's own that wait to be sent.
const WAITING_MAX: usize = 4;

/// Pieces of a rank that MPI has not taken yet.
const SENDING_MAX: usize = 4;

/// Where the threads of a rank write to.
pub struct Forwarder {
    pieces: SyncSender<Vec<u8>>,
}

impl Write for Forwarder {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pieces.send(bytes.to_vec()).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The end of it that belongs to the thread that communicates.
pub struct Output {
    pieces: Receiver<Vec<u8>>,
    sending: Outgoing,
    /// Where rank 0 prints to; taken away when nobody reads any more.
    printer: Option<std::fs::File>,
    failure: Option<io::Error>,
    /// Pieces that this rank sent, and on rank 0 those that came from each.
    sent: u64,
    received: Vec<u64>,
}

impl Output {
    /// Both ends. Only rank 0 has something to print to.
    pub fn new(printer: Option<std::fs::File>, ranks: u32) -> (Forwarder, Output) {
        let (sender, pieces) = sync_channel(WAITING_MAX);
        let received = vec![0; ranks as usize];
        let output = Output { pieces, sending: Outgoing::default(), printer, failure: None, sent: 0, received };
        (Forwarder { pieces: sender }, output)
    }

    /// Sends or prints what there is, without waiting for anybody but rank 0's reader: whether there was something.
    pub fn go_on<W>(&mut self, network: &Network<W>) -> Result<bool, NetworkError> {
        let mut busy = false;
        while let Some((from, bytes)) = network.receive_output() {
            self.received[from as usize] += 1;
            self.print(&bytes);
            busy = true;
        }
        self.sending.settle()?;
        while self.sending.len() < SENDING_MAX {
            match self.pieces.try_recv() {
                Ok(bytes) if network.is_root() => self.print(&bytes),
                Ok(bytes) => {
                    network.send_output(bytes, &mut self.sending)?;
                    self.sent += 1;
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
            busy = true;
        }
        Ok(busy)
    }

    /// After the last piece was written: whether MPI has everything.
    pub fn is_empty(&self) -> bool {
        self.sending.len() == 0
    }

    /// Pieces that this rank has sent to rank 0 so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Pieces that have come from a rank so far.
    pub fn received(&self, from: u32) -> u64 {
        self.received[from as usize]
    }

    /// Prints, on rank 0.
    pub fn print(&mut self, bytes: &[u8]) {
        if let Some(printer) = &mut self.printer
            && let Err(error) = printer.write_all(bytes)
        {
            self.failure = Some(error);
            self.printer = None;
        }
    }

    /// Why printing failed. Nothing is printed any more since.
    pub fn failure(&self) -> Option<&io::Error> {
        self.failure.as_ref()
    }
}
