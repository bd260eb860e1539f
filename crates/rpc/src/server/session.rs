//! One connection of a server.
//!
//! A session reads large batches, takes out every whole frame, hands each request to its service, and writes the
//! replies of the whole batch at once. Replies that are there at once cost no allocation and no task switch.
//!
//! Invariants: a session stops reading while it has as many requests in flight, or as many bytes of replies
//! unwritten, as its limits allow; so a peer that does not read its replies is soon not read from either. A peer
//! that leaves a frame half sent, or replies unread, for too long is disconnected, so what it holds is given back.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use nacre_object::{ErrorKind, StoreError};
use tokio::sync::watch;
use tokio::time::Sleep;

use crate::channel::Channel;
use crate::control;
use crate::frame::{Frame, Kind};
use crate::inbox::Inbox;
use crate::outbox::Outbox;
use crate::server::Shared;
use crate::server::parts::Mailbox;
use crate::server::service::{Fate, Handler, Incoming, Peer, unsupported};
use crate::server::stats::Tally;

/// Buffers of a session that is idle are given back if they are larger than this.
const IDLE_BYTES: usize = 4 << 10;
/// Rounds of reading and writing before other connections of the thread get their turn.
const ROUNDS_MAX: usize = 8;
/// How long a server that stops waits for a peer to read its last replies.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// How long it then waits for the peer to close the connection.
const LINGER: Duration = Duration::from_millis(500);

pub(crate) struct Session {
    channel: Channel,
    shared: Arc<Shared>,
    inbox: Inbox,
    outbox: Outbox,
    /// The services, each with what it keeps for this connection.
    handlers: Vec<Box<dyn Handler>>,
    /// Parts of replies that are sent ahead of their ends.
    mailbox: Arc<Mailbox>,
    /// Requests whose replies are being made, and the bytes of these requests.
    pending: usize,
    pending_bytes: usize,
    /// What the budget and the counters were told last.
    held_bytes: usize,
    in_flight: usize,
    tally: Tally,
    /// When the frames at hand were read.
    read_at: Instant,
    /// Set when the server stops: what was accepted is finished, everything else is refused.
    draining: bool,
    /// Set when the peer will send no more, or sent what is not the protocol.
    ended: bool,
    stall: Stall,
}

/// Watches over a peer that owes something.
#[derive(Default)]
struct Stall {
    timer: Option<Pin<Box<Sleep>>>,
    moved: bool,
}

impl Session {
    pub(crate) fn new(channel: Channel, shared: Arc<Shared>, peer: Peer) -> Self {
        let handlers = shared.services.open(&peer);
        Self {
            channel,
            shared,
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            handlers,
            mailbox: Arc::default(),
            pending: 0,
            pending_bytes: 0,
            held_bytes: 0,
            in_flight: 0,
            tally: Tally::default(),
            read_at: Instant::now(),
            draining: false,
            ended: false,
            stall: Stall::default(),
        }
    }

    /// Serves the connection until it ends, or until the server stops.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) -> io::Result<()> {
        tokio::select! {
            biased;
            result = poll_fn(|context| self.poll(context)) => return result,
            _ = stop.wait_for(|stop| *stop) => {}
        }
        self.draining = true;
        control::put_bare(&mut self.outbox, Kind::GOODBYE, 0);
        for handler in self.handlers.iter_mut().filter(|handler| !handler.is_awaited()) {
            self.pending -= handler.pending();
            handler.refuse(&closed(), &self.mailbox, &mut self.outbox);
        }
        // What was accepted is finished, and its replies are sent. Refusing what still comes in, instead of closing,
        // keeps the system from discarding replies under way.
        if let Some(result) = poll_fn(|context| self.poll_until(context, Self::is_answered)).await {
            return result;
        }
        let flushed = poll_fn(|context| self.poll_until(context, Self::is_idle));
        if let Ok(Some(result)) = tokio::time::timeout(FLUSH_TIMEOUT, flushed).await {
            return result;
        }
        // The peer knows by now, and closes the connection as soon as it has read everything.
        tokio::time::timeout(LINGER, poll_fn(|context| self.poll(context))).await.unwrap_or(Ok(()))
    }

    /// Polls until the session ends, which gives how, or until a condition holds.
    fn poll_until(
        &mut self,
        context: &mut Context<'_>,
        condition: impl FnOnce(&Self) -> bool,
    ) -> Poll<Option<io::Result<()>>> {
        match self.poll(context) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending if condition(self) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_answered(&self) -> bool {
        self.pending == 0
    }

    fn is_idle(&self) -> bool {
        self.pending == 0 && self.outbox.is_empty() && self.channel.is_flushed()
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = self.turn(context);
        self.settle();
        if result.is_pending() {
            self.account();
        }
        result
    }

    fn settle(&mut self) {
        self.tally.settle(&self.shared.stats);
        self.handlers.iter_mut().for_each(|handler| handler.settle());
    }

    /// Tells the server what the session holds.
    fn account(&mut self) {
        let held = self.inbox.held_bytes()
            + self.outbox.held_bytes()
            + self.channel.held_bytes()
            + self.pending_bytes;
        self.shared.budget.hold(&self.shared.stats, self.held_bytes, held);
        self.held_bytes = held;
        self.shared.stats.in_flight.change(self.in_flight, self.pending);
        self.in_flight = self.pending;
    }

    fn turn(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        for _ in 0..ROUNDS_MAX {
            let mut progress = self.collect(context);
            progress |= self.flush(context)?;
            progress |= self.read(context)?;
            if self.ended && self.is_idle() {
                return Poll::Ready(Ok(()));
            }
            if !progress {
                self.outbox.release(IDLE_BYTES);
                return self.watch(context);
            }
            self.stall.moved = true;
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Ends a connection whose peer owes something for too long.
    fn watch(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let owes = !self.outbox.is_empty() || !self.channel.is_flushed() || self.inbox.is_partial();
        let half = self.shared.limits.stall_timeout / 2;
        loop {
            match &mut self.stall.timer {
                None if !owes => return Poll::Pending,
                None => {
                    self.stall.moved = true;
                    self.stall.timer = Some(Box::pin(tokio::time::sleep(half)));
                }
                Some(timer) => {
                    if timer.as_mut().poll(context).is_pending() {
                        return Poll::Pending;
                    }
                    if !owes {
                        self.stall.timer = None;
                    } else if std::mem::take(&mut self.stall.moved) {
                        timer.as_mut().reset(tokio::time::Instant::now() + half);
                    } else {
                        let why = "the peer neither reads its replies nor goes on with its request";
                        return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)));
                    }
                }
            }
        }
    }

    /// Encodes the replies that were finished meanwhile.
    fn collect(&mut self, context: &mut Context<'_>) -> bool {
        let mut progress = self.mailbox.collect(context.waker(), &mut self.outbox);
        for handler in &mut self.handlers {
            while self.outbox.len() < self.shared.limits.reply_bytes_max {
                let finished = handler.poll_finished(context, &self.mailbox, &mut self.outbox);
                let Some(finished) = finished else { break };
                self.pending -= 1;
                self.pending_bytes -= finished.request_bytes;
                self.tally.latency(finished.began.elapsed(), 1);
                progress = true;
            }
        }
        progress
    }

    /// Writes as much as the socket takes.
    fn flush(&mut self, context: &mut Context<'_>) -> io::Result<bool> {
        // Who has a reply finds it counted.
        self.settle();
        let mut sent = 0;
        if let Poll::Ready(result) = self.channel.poll_write(context, &mut self.outbox, &mut sent) {
            result?;
        }
        self.tally.sent_bytes += sent as u64;
        Ok(sent > 0)
    }

    /// Whether the limits of this connection allow one more request.
    fn may_accept(&self) -> bool {
        let limits = &self.shared.limits;
        self.pending < limits.requests_max
            && self.pending_bytes < limits.request_bytes_max
            && self.outbox.len() < limits.reply_bytes_max
            && self.handlers.iter().all(|handler| handler.may_accept())
    }

    /// Reads once, and accepts all whole frames.
    fn read(&mut self, context: &mut Context<'_>) -> io::Result<bool> {
        self.read_at = Instant::now();
        let mut progress = self.accept();
        if !self.ended && self.may_accept() && self.may_hold_more(context) {
            match self.channel.poll_read(context, &mut self.inbox) {
                Poll::Pending => {}
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Ready(Ok(0)) => {
                    self.ended = true;
                    progress = true;
                }
                Poll::Ready(Ok(count)) => {
                    self.tally.received_bytes += count as u64;
                    self.read_at = Instant::now();
                    self.accept();
                    progress = true;
                }
            }
        }
        self.inbox.settle();
        Ok(progress)
    }

    fn may_hold_more(&mut self, context: &mut Context<'_>) -> bool {
        let nothing = self.pending == 0 && self.outbox.is_empty() && !self.inbox.is_partial();
        nothing || self.shared.budget.may_grow(&self.shared.stats, context.waker())
    }

    /// Hands all whole frames that were received to their services, as far as the limits allow.
    fn accept(&mut self) -> bool {
        let mut progress = false;
        let mut answered = 0;
        while !self.ended && self.may_accept() {
            match self.inbox.next() {
                Ok(None) => break,
                Ok(Some(frame)) => answered += u64::from(self.execute(frame)),
                Err(error) => {
                    // The stream cannot be understood from here on.
                    control::put_error(&mut self.outbox, 0, &error.into());
                    self.ended = true;
                }
            }
            progress = true;
        }
        if answered > 0 {
            self.tally.latency(self.read_at.elapsed(), answered);
        }
        progress
    }

    /// Executes a request. True if it was answered at once.
    fn execute(&mut self, frame: Frame) -> bool {
        let Frame { kind, id, body } = frame;
        if kind == Kind::PING {
            control::put_bare(&mut self.outbox, Kind::PONG, id);
            return false;
        }
        if self.draining {
            control::put_error(&mut self.outbox, id, &closed());
            return true;
        }
        let Some(index) = self.shared.services.find(kind) else {
            control::put_error(&mut self.outbox, id, &unsupported(kind));
            return false;
        };
        let request_bytes = body.len();
        let request = Incoming { kind, id, body, mailbox: &self.mailbox };
        match self.handlers[index].handle(request, self.read_at, &mut self.outbox) {
            Fate::Answered => true,
            Fate::Uncounted => false,
            Fate::Later => {
                self.pending += 1;
                self.pending_bytes += request_bytes;
                false
            }
        }
    }
}

fn closed() -> StoreError {
    StoreError::new(ErrorKind::Closed, "the server is shutting down")
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.budget.hold(&self.shared.stats, self.held_bytes, 0);
        self.shared.stats.in_flight.change(self.in_flight, 0);
    }
}
