//! Disconnecting peers that make no progress, or too little of it while others wait for the memory that they hold.
//!
//! A peer owes something while part of its request or of its replies is under way and the server is not what it waits
//! for. While replies are unread, only what it takes of them is progress: otherwise it could keep them in memory for as
//! long as it sends pings. A connection that is not read from for lack of memory owes nothing as long as bytes of it wait
//! in the socket: it would go on if it could. If none wait, its peer has stopped sending, and is not spared for others
//! doing so too.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use super::Connection;

/// The least memory, in bytes, that a connection must hold to be ended for its pace.
const HELD_BYTES_MIN: usize = 16 << 10;
/// The shortest time between two looks at a peer.
const STEP_MIN: Duration = Duration::from_millis(1);

/// The timer that disconnects a peer which makes no progress, or too little.
#[derive(Default)]
pub(super) struct Stall {
    timer: Option<Pin<Box<Sleep>>>,
    /// The time of the latest look, and of the latest progress that was found at one.
    looked: Option<Instant>,
    moved_at: Option<Instant>,
    /// True if there was any progress since the latest look.
    pub(super) moved: bool,
    /// The bytes that the peer has sent since the latest look, and those that it has taken.
    pub(super) sent_bytes: usize,
    pub(super) taken_bytes: usize,
    /// True if there was a moment since the latest look at which the peer owed nothing.
    paid: bool,
    /// The time for which the peer has been too slow.
    slow: Duration,
}

impl Connection {
    /// Ends the connection if its peer makes no progress for too long, or too little while others wait for memory.
    pub(super) fn watch(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let unread = !self.outbox.is_empty()
            || !self.channel.is_flushed()
            // A server that stops waits for the ends of replies.
            || self.draining && self.mailbox.holds_parts();
        let owes = unread || self.is_partial() && !self.waits(context)?;
        let limits = &self.shared.limits;
        let step = (limits.stall_timeout / 12).min(limits.pace_timeout / 2).max(STEP_MIN);
        loop {
            let now = Instant::now();
            let Some(timer) = &mut self.stall.timer else {
                if owes {
                    let timer = Some(Box::pin(tokio::time::sleep(step)));
                    self.stall = Stall { timer, looked: Some(now), moved_at: Some(now), ..Stall::default() };
                    continue;
                }
                return Poll::Pending;
            };
            if timer.as_mut().poll(context).is_pending() {
                self.stall.paid |= !owes;
                return Poll::Pending;
            }
            if !owes {
                self.stall = Stall::default();
                return Poll::Pending;
            }
            timer.as_mut().reset(now + step);
            let passed = now - self.stall.looked.replace(now).unwrap_or(now);
            let moved = std::mem::take(&mut self.stall.moved);
            let sent_bytes = std::mem::take(&mut self.stall.sent_bytes);
            let taken_bytes = std::mem::take(&mut self.stall.taken_bytes);
            let (moved, moved_bytes) = match unread {
                true => (taken_bytes > 0, taken_bytes),
                false => (moved, sent_bytes + taken_bytes),
            };
            if moved {
                self.stall.moved_at = Some(now);
            } else if self.stall.moved_at.is_none_or(|at| now - at >= limits.stall_timeout) {
                let why = match unread {
                    true => "the peer does not read its replies",
                    false => "the peer does not continue its request",
                };
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)));
            }
            let enough = (limits.pace_bytes_min as u128 * passed.as_micros() / 1_000_000) as usize;
            let is_slow = moved_bytes < enough
                && !std::mem::take(&mut self.stall.paid)
                && self.held_bytes >= HELD_BYTES_MIN
                && self.shared.budget.is_awaited(context.waker());
            self.stall.slow = if is_slow { self.stall.slow + passed } else { Duration::ZERO };
            if self.stall.slow >= limits.pace_timeout {
                let why = "the peer is too slow while others wait for the memory that it holds";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)));
            }
        }
    }

    /// Returns whether a peer that has sent part of a request waits for the server rather than the other way round.
    fn waits(&self, context: &mut Context<'_>) -> io::Result<bool> {
        if self.starved {
            return self.has_input(context);
        }
        Ok(!self.may_accept())
    }

    /// Returns whether part of a frame, or of a sealed record, was received and the rest was not.
    pub(super) fn is_partial(&self) -> bool {
        self.inbox.is_partial() || self.channel.is_partial()
    }
}
