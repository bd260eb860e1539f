//! Listed output of all ranks, sent to rank 0, which prints it in whole pieces, so that no line is broken.
//!
//! A thread that lists waits while too much output is in flight, so a slow reader slows the walk down and nothing piles
//! up.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::network::{Network, NetworkError, Outgoing};
use crate::progress::Progress;

/// The maximum number of a rank's pieces that wait to be sent.
const WAITING_MAX: usize = 4;

/// The maximum number of a rank's pieces that MPI has not taken yet.
const SENDING_MAX: usize = 4;

/// The output that the threads of a rank write to.
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

/// The end of the output that belongs to the communicating thread.
pub struct Output<'a> {
    pieces: Receiver<Vec<u8>>,
    sending: Outgoing,
    printer: Option<Printer>,
    /// The number of pieces that this rank sent, and, on rank 0, of those received from each rank.
    sent: u64,
    received: Vec<u64>,
    /// The progress, if it is shown.
    progress: Option<Progress<'a>>,
}

impl<'a> Output<'a> {
    /// Creates both ends. Only rank 0 has a `printer`.
    pub fn new(printer: Option<Printer>, ranks: u32) -> (Forwarder, Output<'a>) {
        let (sender, pieces) = sync_channel(WAITING_MAX);
        let received = vec![0; ranks as usize];
        (
            Forwarder { pieces: sender },
            Output { pieces, sending: Outgoing::default(), printer, sent: 0, received, progress: None },
        )
    }

    /// Ends the output early: whoever writes to it gets an error, and is not waited for.
    pub fn close(&mut self) {
        self.pieces = sync_channel(0).1;
    }

    /// Sends or prints what is available without waiting, and returns whether there was anything.
    ///
    /// # Errors
    /// If the network failed.
    pub fn go_on<W>(&mut self, network: &Network<W>) -> Result<bool, NetworkError> {
        let mut busy = false;
        self.sending.settle()?;
        if let Some(printer) = &mut self.printer {
            if let Some(progress) = &mut self.progress {
                progress.receive(network)?;
            }
            while printer.has_space() {
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

    /// Has the progress of the walk shown.
    pub fn show_progress(&mut self, progress: Progress<'a>) {
        self.progress = Some(progress);
    }

    /// Returns the progress, if it is shown.
    pub fn progress(&self) -> Option<&Progress<'a>> {
        self.progress.as_ref()
    }

    /// Returns the progress, if it is shown, for changes.
    pub fn progress_mut(&mut self) -> Option<&mut Progress<'a>> {
        self.progress.as_mut()
    }

    /// Reports or shows the progress, if it is shown and it is time; see [`Progress::report`].
    ///
    /// # Errors
    /// If the network failed.
    pub fn report_progress<W>(
        &mut self,
        network: &Network<W>,
        pending: impl FnOnce() -> usize,
        now: Instant,
    ) -> Result<(), NetworkError> {
        self.progress.as_mut().map_or(Ok(()), |progress| progress.report(network, pending, now))
    }

    /// Returns whether MPI, or rank 0's reader, has taken everything; called after the last piece was written.
    pub fn is_empty(&mut self) -> bool {
        self.sending.len() == 0 && self.printer.as_mut().is_none_or(Printer::is_empty)
    }

    /// Returns the number of pieces that this rank has sent to rank 0.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Returns the number of pieces received from a rank.
    pub fn received(&self, from: u32) -> u64 {
        self.received[from as usize]
    }

    /// Returns whether all that the ranks have sent, as pieces and reports of their progress, has come and is printed. `sent` has
    /// both numbers of each rank, in their order; `None` for one that has not told them yet.
    pub fn is_complete(&mut self, sent: impl IntoIterator<Item = Option<(u64, u64)>>) -> bool {
        let has_come = |(rank, sent): (u32, Option<(u64, u64)>)| {
            let reports = self.progress().map_or(0, |progress| progress.received(rank));
            sent.is_some_and(|sent| rank == 0 || sent == (self.received(rank), reports))
        };
        let all_came = (0..).zip(sent).all(has_come);
        all_came && self.is_empty()
    }

    /// Returns the error with which printing failed. Nothing is printed after it.
    pub fn failure(&self) -> Option<io::Error> {
        self.printer.as_ref()?.shared.failure()
    }
}

/// A printing thread: a slow or stopped reader holds up only the threads that write.
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
    /// Starts a thread that prints to `file`.
    ///
    /// # Errors
    /// If the thread cannot be started.
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

    fn has_space(&mut self) -> bool {
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
        self.has_space() && self.shared.pieces.load(Ordering::Acquire) == self.handed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_to_write_to_an_output_that_was_closed() {
        let (mut forwarder, mut output) = Output::new(None, 1);
        let pieces = WAITING_MAX + 1;
        let writer =
            std::thread::spawn(move || (0..pieces).find_map(|_| forwarder.write_all(b"piece").err()));
        output.close();
        assert_eq!(writer.join().unwrap().map(|error| error.kind()), Some(io::ErrorKind::BrokenPipe));
    }
}
