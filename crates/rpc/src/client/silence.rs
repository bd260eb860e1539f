//! The watch for a server that stays silent while it owes replies.

use std::io;

use crate::control;
use crate::frame::{Frame, MessageKind};
use crate::outbox::Outbox;

/// The id of pings, which belong to no call.
const PING_ID: u64 = u64::MAX;

/// What was heard of a server since it was looked at last.
pub(super) struct Silence {
    heard: bool,
    pinged: bool,
}

impl Silence {
    /// Begins with a server that has just been heard.
    pub(super) fn new() -> Self {
        Self { heard: true, pinged: false }
    }

    /// Notes that something has arrived from the server.
    pub(super) fn hear(&mut self) {
        self.heard = true;
    }

    /// Returns whether a frame is the answer to a ping.
    pub(super) fn is_pong(frame: &Frame) -> bool {
        frame.kind == MessageKind::PONG && frame.id == PING_ID
    }

    /// Looks at the server, after half of the time for which it may stay silent each time: pings it if it was not heard since
    /// the last look. `quiet` says that it owes nothing.
    ///
    /// # Errors
    ///
    /// If it did not answer the ping before.
    pub(super) fn look(&mut self, quiet: bool, sending: &mut Outbox) -> io::Result<()> {
        if std::mem::take(&mut self.heard) || quiet {
            self.pinged = false;
        } else if self.pinged {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the server has stopped answering"));
        } else {
            // The ping counts as written like a request, so a request may count as written too early, never too late.
            control::put_bare(sending, MessageKind::PING, PING_ID);
            self.pinged = true;
        }
        Ok(())
    }
}
