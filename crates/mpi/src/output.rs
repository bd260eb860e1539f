//! What a rank lists goes to rank 0, which prints it: whole pieces, so that no line is broken.
//!
//! A thread that lists waits while too much is under way, so a slow reader slows the walk down and nothing piles up.

use crate::network::{Network, NetworkError, Outgoing};
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

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
    printer: Option<Printer>,
    /// Pieces that this rank sent, and on rank 0 those that came from each.
    sent: u64,
    received: Vec<u64>,
}

impl Output {
    /// Both ends. Only rank 0 has something to print to.
    pub fn new(printer: Option<Printer>, ranks: u32) -> (Forwarder, Output) {
        let (sender, pieces) = sync_channel(WAITING_MAX);
        let received = vec![0; ranks as usize];
        (
            Forwarder { pieces: sender },
            Output { pieces, sending: Outgoing::default(), printer, sent: 0, received },
        )
    }

    /// Sends or prints what there is, without waiting for anybody: whether there was something.
    pub fn go_on<W>(&mut self, network: &Network<W>) -> Result<bool, NetworkError> {
        let mut busy = false;
        self.sending.settle()?;
        if let Some(printer) = &mut self.printer {
            while printer.has_room() {
                let piece = match network.receive_output() {
                    Some((from, bytes)) => {
                        self.received[from as usize] += 1;
                        bytes
                    }
                    None => match self.pieces.try_recv() {
                        Ok(bytes) => bytes,
                        Err(_) => break,
                    },
                };
                printer.print(piece);
                busy = true;
            }
            return Ok(busy);
        }
        while self.sending.len() < SENDING_MAX
            && let Ok(bytes) = self.pieces.try_recv()
        {
            network.send_output(bytes, &mut self.sending)?;
            self.sent += 1;
            busy = true;
        }
        Ok(busy)
    }

    /// After the last piece was written: whether MPI, or rank 0's reader, has everything.
    pub fn is_empty(&mut self) -> bool {
        self.sending.len() == 0 && self.printer.as_mut().is_none_or(Printer::is_empty)
    }

    /// Pieces that this rank has sent to rank 0 so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Pieces that have come from a rank so far.
    pub fn received(&self, from: u32) -> u64 {
        self.received[from as usize]
    }

    /// Why printing failed. Nothing is printed any more since.
    pub fn failure(&self) -> Option<io::Error> {
        self.printer.as_ref()?.shared.failure()
    }
}

/// A thread that prints: a reader that reads slowly, or not at all, holds up nobody else than those who write.
pub struct Printer {
    pieces: SyncSender<Vec<u8>>,
    waiting: Option<Vec<u8>>,
    handed: u64,
    shared: Arc<Printed>,
}

#[derive(Default)]
struct Printed {
    pieces: AtomicU64,
    failure: Mutex<Option<(io::ErrorKind, String)>>,
}

impl Printed {
    fn failure(&self) -> Option<io::Error> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.as_ref().map(|(kind, sentence)| io::Error::new(*kind, sentence.clone()))
    }
}

impl Printer {
    /// To that file.
    pub fn new(mut file: std::fs::File) -> io::Result<Printer> {
        let (sender, pieces) = sync_channel::<Vec<u8>>(WAITING_MAX);
        let shared = Arc::new(Printed::default());
        let printed = shared.clone();
        std::thread::Builder::new().name("printer".to_owned()).spawn(move || {
            for piece in pieces {
                if printed.failure().is_none()
                    && let Err(error) = file.write_all(&piece)
                {
                    let mut failure = printed.failure.lock().unwrap_or_else(PoisonError::into_inner);
                    *failure = Some((error.kind(), error.to_string()));
                }
                printed.pieces.fetch_add(1, Ordering::Release);
            }
        })?;
        Ok(Printer { pieces: sender, waiting: None, handed: 0, shared })
    }

    fn has_room(&mut self) -> bool {
        let Some(piece) = self.waiting.take() else { return true };
        self.print(piece);
        self.waiting.is_none()
    }

    fn print(&mut self, piece: Vec<u8>) {
        match self.pieces.try_send(piece) {
            Ok(()) => self.handed += 1,
            Err(TrySendError::Full(piece)) => self.waiting = Some(piece),
            // The thread never ends before this end does.
            Err(TrySendError::Disconnected(_)) => {}
        }
    }

    fn is_empty(&mut self) -> bool {
        self.has_room() && self.shared.pieces.load(Ordering::Acquire) == self.handed
    }
}
