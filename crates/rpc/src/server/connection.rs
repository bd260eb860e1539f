//! One connection of a server.
//!
//! A connection reads large batches, takes out every complete frame, hands each request to its service, and writes the
//! replies of the whole batch at once. Replies that are ready at once cost no allocation and no task switch.
//!
//! Invariants: a connection stops reading while it has as many bytes of replies unwritten as its limits allow; so a peer that does not read
//! its replies is soon not read from either. While it has as many requests in flight as it may, it reads on up to the next request, so that
//! pings, cancels and windows come through. A peer that leaves a frame half sent, or replies unread, for too long is disconnected, which
//! frees the memory that it holds.

mod resumption;
mod stall;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use nacre_object::{ErrorKind, StoreError};
use stall::Stall;
use tokio::sync::watch;
use tokio::time::Sleep;

use crate::channel::Channel;
use crate::control;
use crate::error::WireError;
use crate::frame::{CONTROL, Frame, MessageKind, flag};
use crate::inbox::Inbox;
use crate::limit::{PROTOCOL_VERSION_EVENTS, READ_BYTES};
use crate::outbox::Outbox;
use crate::poll::Tap;
use crate::server::Shared;
use crate::server::mailbox::Mailbox;
use crate::server::service::{self, Fate, Handler, Incoming, Peer, RequestBudget, unsupported};
use crate::server::sessions::Session;
use crate::server::stats::ConnectionCounts;

/// The largest buffer, in bytes, that an idle connection keeps.
const IDLE_BYTES: usize = 4 << 10;
/// The place of the handler for the deadline of a request that waits for room.
const BLOCKED: usize = usize::MAX;
/// The bytes that a connection without a request under way may receive while all memory is taken.
const SCANT_BYTES: usize = 16 << 10;
/// The number of rounds of reading and writing before other connections of the thread get their turn.
const ROUNDS_MAX: usize = 8;
/// The time that a stopping server waits for a peer to read its last replies, and the bytes of them for each of which it
/// waits a second more.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
const FLUSH_PACE: usize = 16 << 20;
/// The time that it then waits for the peer to close the connection.
const LINGER: Duration = Duration::from_millis(500);

pub(crate) struct Connection {
    channel: Channel,
    shared: Arc<Shared>,
    inbox: Inbox,
    outbox: Outbox,
    peer: Peer,
    /// The features that the peer offered.
    features: u64,
    /// The session, if it outlives the connection.
    session: Option<Arc<Session>>,
    /// The session that the peer wants to resume, and the id of its request.
    resuming: Option<(Arc<Session>, u64)>,
    /// The services' handlers for this connection; empty until the first is needed.
    handlers: Vec<Box<dyn Handler>>,
    /// Parts of replies that are sent ahead of their ends, and events.
    mailbox: Arc<Mailbox>,
    /// The deadlines of requests under way, with the index of the handler and the id of the request.
    deadlines: BTreeSet<(Instant, usize, u64)>,
    deadline_timer: Option<Pin<Box<Sleep>>>,
    /// The number of requests under way; `pending_bytes` is their size.
    pending: usize,
    pending_bytes: usize,
    /// The bytes reserved for their replies.
    reserved: usize,
    /// A request that waits for room for its reply.
    blocked: Option<Blocked>,
    /// True if the connection was not read from for lack of memory.
    starved: bool,
    /// The number of the connection.
    number: u64,
    /// The values last reported to the budget and the counters.
    held_bytes: usize,
    in_flight: usize,
    tally: ConnectionCounts,
    /// The time at which the current frames were read.
    read_at: Instant,
    /// Set when the server stops: accepted requests are finished, all others are refused.
    draining: bool,
    /// Set when the peer will send no more, or has violated the protocol.
    ended: bool,
    stall: Stall,
    /// Its part in the polling of the thread.
    tap: Tap,
}

/// A request that waits for room for its reply.
struct Blocked {
    kind: MessageKind,
    id: u64,
    body: Bytes,
    deadline: Option<Instant>,
}

impl Connection {
    pub(crate) fn new(channel: Channel, shared: Arc<Shared>, peer: Peer, mut tap: Tap) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let modern = peer.version >= PROTOCOL_VERSION_EVENTS;
        let mailbox = Mailbox::new(shared.limits.mailbox_bytes_max, shared.budget.clone(), modern);
        // Whether the peer has another request soon is not known before.
        tap.set_awaits(true);
        Self {
            channel,
            shared,
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            peer,
            features: 0,
            session: None,
            resuming: None,
            handlers: Vec::new(),
            mailbox,
            deadlines: BTreeSet::new(),
            deadline_timer: None,
            pending: 0,
            pending_bytes: 0,
            reserved: 0,
            blocked: None,
            starved: false,
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            held_bytes: 0,
            in_flight: 0,
            tally: ConnectionCounts::default(),
            read_at: Instant::now(),
            draining: false,
            ended: false,
            stall: Stall::default(),
            tap,
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
        control::put_bare(&mut self.outbox, MessageKind::GOODBYE, 0);
        for handler in self.handlers.iter_mut().filter(|handler| !handler.is_awaited()) {
            self.pending -= handler.pending();
            handler.refuse(&closed(), &self.mailbox, &mut self.outbox);
        }
        // It has not begun, and the memory that it waits for may be that of replies which this very peer does not read.
        if let Some(Blocked { id, .. }) = self.blocked.take() {
            control::put_error(&mut self.outbox, id, &closed());
        }
        // Accepted requests are finished and their replies sent. Further requests are refused rather than the
        // connection closed, which keeps the system from discarding replies under way.
        let (began, written) = (Instant::now(), self.channel.written());
        loop {
            let answered = poll_fn(|context| self.poll_until(context, Self::is_answered));
            match tokio::time::timeout(FLUSH_TIMEOUT, answered).await {
                Ok(Some(result)) => return result,
                Ok(None) => break,
                // A reply in parts goes on only as its reader does.
                Err(_) if began.elapsed() >= flush_timeout((self.channel.written() - written) as usize) => {
                    self.mailbox.give_up_parts(&mut self.outbox);
                }
                Err(_) => {}
            }
        }
        let timeout = flush_timeout(self.outbox.len());
        let flushed = poll_fn(|context| self.poll_until(context, Self::is_idle));
        if let Ok(Some(result)) = tokio::time::timeout(timeout, flushed).await {
            return result;
        }
        // The peer has been told, and closes the connection as soon as it has read everything.
        tokio::time::timeout(LINGER, poll_fn(|context| self.poll(context))).await.unwrap_or(Ok(()))
    }

    /// Polls until the connection ends, which returns its result, or until a condition holds.
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
        self.pending == 0 && self.blocked.is_none()
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

    /// Returns the bytes that are received, waiting or unsent.
    fn buffers(&self) -> usize {
        let blocked = self.blocked.as_ref().map_or(0, |blocked| blocked.body.len());
        self.inbox.held_bytes()
            + self.outbox.held_bytes()
            + self.channel.held_bytes()
            + self.pending_bytes
            + blocked
    }

    /// Reports the memory and the requests of this connection to the server.
    fn account(&mut self) {
        let held = self.buffers() + self.reserved;
        self.shared.stats.in_flight.change(self.in_flight, self.pending);
        self.in_flight = self.pending;
        self.shared.budget.hold(self.held_bytes, held);
        self.held_bytes = held;
    }

    fn turn(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        for _ in 0..ROUNDS_MAX {
            if self.session.as_ref().is_some_and(|session| session.is_wanted(context)) {
                return Poll::Ready(Err(io::Error::other("the session continues on another connection")));
            }
            let mut progress = self.resume(context);
            progress |= self.collect(context);
            progress |= self.unblock(context);
            progress |= self.flush(context)?;
            progress |= self.read(context)?;
            if self.ended && self.is_idle() {
                return Poll::Ready(Ok(()));
            }
            if !progress {
                self.outbox.release(IDLE_BYTES);
                self.channel.release();
                return self.watch(context);
            }
            self.stall.moved = true;
            self.tap.came();
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Encodes the replies that have been finished in the meantime. Returns whether there was progress.
    fn collect(&mut self, context: &mut Context<'_>) -> bool {
        let mut progress = self.expire(context);
        for (index, handler) in self.handlers.iter_mut().enumerate() {
            // When the server stops all replies are encoded, which have their memory already: a peer that reads nothing
            // would hold up the end of the server as long as it likes.
            while self.draining || self.outbox.len() < self.shared.limits.reply_bytes_max {
                let finished = handler.poll_finished(context, &self.mailbox, &mut self.outbox);
                let Some(finished) = finished else { break };
                self.pending -= 1;
                self.pending_bytes -= finished.request_bytes;
                self.reserved -= finished.reserved;
                if let Some(deadline) = finished.deadline {
                    self.deadlines.remove(&(deadline, index, finished.id));
                }
                let latency = finished.began.elapsed();
                self.tally.latency(latency, 1, &self.shared.stats);
                handler.timed(latency);
                progress = true;
            }
        }
        progress | self.mailbox.collect(context.waker(), &mut self.outbox)
    }

    /// Cancels the requests whose deadlines have passed. Returns whether there were any.
    fn expire(&mut self, context: &mut Context<'_>) -> bool {
        let mut progress = false;
        while let Some(&(deadline, index, id)) = self.deadlines.first() {
            let timer = self
                .deadline_timer
                .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline.into())));
            if timer.deadline() != deadline.into() {
                timer.as_mut().reset(deadline.into());
            }
            if timer.as_mut().poll(context).is_pending() {
                return progress;
            }
            self.deadlines.pop_first();
            self.deadline_timer = None;
            let expired = match self.handlers.get_mut(index) {
                None => self.blocked.take().is_some(),
                Some(handler) => {
                    let finished = handler.cancel(id, Some(deadline), &self.mailbox);
                    if let Some(finished) = &finished {
                        self.pending -= 1;
                        self.pending_bytes -= finished.request_bytes;
                        self.reserved -= finished.reserved;
                    }
                    finished.is_some()
                }
            };
            if expired {
                let text = "the deadline of the request passed before the reply was there";
                control::put_error(&mut self.outbox, id, &StoreError::new(ErrorKind::Unknown, text));
                progress = true;
            }
        }
        self.deadline_timer = None;
        progress
    }

    /// Writes as much as the socket takes. Returns whether bytes were written.
    fn flush(&mut self, context: &mut Context<'_>) -> io::Result<bool> {
        // A request is counted before its reply is visible to the peer.
        self.settle();
        let (mut sent, written) = (0, self.channel.written());
        if let Poll::Ready(result) = self.channel.poll_write(context, &mut self.outbox, &mut sent) {
            result?;
        }
        self.tally.sent_bytes += sent as u64;
        // A slow peer may take long for what was sealed at once.
        self.stall.taken_bytes += (self.channel.written() - written) as usize;
        Ok(sent > 0)
    }

    /// Returns whether the limits of this connection allow one more request.
    fn may_accept(&self) -> bool {
        let limits = &self.shared.limits;
        self.resuming.is_none()
            && self.blocked.is_none()
            && self.pending < limits.requests_max
            && self.pending_bytes < limits.request_bytes_max
            && self.outbox.len() < limits.reply_bytes_max
            && self.handlers.iter().all(|handler| handler.may_accept())
    }

    /// Returns whether the next frame is taken: where a further request would not be, a message of the connection itself still is.
    /// Otherwise a client could not even cancel what it waits for, nor consume the parts that hold up a reply.
    fn may_take(&self) -> bool {
        self.may_accept()
            || self.resuming.is_none()
                && self.blocked.is_none()
                && self.outbox.len() < self.shared.limits.reply_bytes_max
                && self.inbox.is_own_next()
    }

    /// Reads once, and accepts all complete frames. Returns whether there was progress.
    fn read(&mut self, context: &mut Context<'_>) -> io::Result<bool> {
        self.read_at = Instant::now();
        let mut progress = self.accept();
        self.starved = false;
        if !self.ended
            && self.may_take()
            && let Some(bytes_max) = self.may_read(context)?
        {
            match self.channel.poll_read(context, &mut self.inbox, bytes_max) {
                Poll::Pending => {}
                Poll::Ready(Err(error)) => return Err(error),
                // A peer that closes its end is gone and waits for no replies.
                Poll::Ready(Ok(0)) if self.mailbox.is_modern() => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Poll::Ready(Ok(0)) => {
                    self.ended = true;
                    progress = true;
                }
                Poll::Ready(Ok(count)) => {
                    self.tally.received_bytes += count as u64;
                    self.stall.sent_bytes += count;
                    self.read_at = Instant::now();
                    self.accept();
                    progress = true;
                }
            }
        }
        self.inbox.settle();
        if !self.is_large() {
            self.shared.budget.step_back(self.number);
        }
        Ok(progress)
    }

    /// True while a large request may be under way: received in part, waiting for room, or waiting for its service. One
    /// that went beyond the account keeps others from doing so until it is done, not only until it is received.
    fn is_large(&self) -> bool {
        self.is_partial() || self.blocked.is_some() || self.pending_bytes > READ_BYTES
    }

    /// Returns the number of bytes that may be read at once; `None` if there is no memory for any.
    fn may_read(&mut self, context: &mut Context<'_>) -> io::Result<Option<usize>> {
        let budget = &self.shared.budget;
        if budget.is_below() {
            return Ok(Some(READ_BYTES));
        }
        if self.pending == 0 && self.outbox.is_empty() && !self.is_partial() {
            return Ok(Some(SCANT_BYTES));
        }
        if budget.has_space(context.waker()) {
            return Ok(Some(READ_BYTES));
        }
        // A peer that has sent nothing more must not keep others from going on.
        let has_more = self.has_input(context)?;
        let may = match budget.is_privileged(self.number) {
            // Beyond the account goes one request. Behind it, only what is short is read: it may be what ends the wait.
            true if self.pending_bytes > READ_BYTES => {
                self.starved = self.is_partial();
                return Ok((!self.starved).then_some(SCANT_BYTES));
            }
            true => true,
            false => has_more && budget.may_grow(self.number),
        };
        self.starved = !may;
        Ok(may.then_some(READ_BYTES))
    }

    /// Returns whether the peer has sent something more; if not, the task is woken when it has.
    fn has_input(&self, context: &mut Context<'_>) -> io::Result<bool> {
        match self.channel.has_input(context) {
            // A peer of an older version may close its end and still wait for replies.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && !self.mailbox.is_modern() => {
                Ok(true)
            }
            known => known,
        }
    }

    /// Hands all complete frames that were received to their services, as far as the limits allow.
    fn accept(&mut self) -> bool {
        let mut progress = false;
        let mut replied = 0;
        while !self.ended && self.may_take() {
            match self.inbox.next() {
                Ok(None) if self.refuse_too_large() => {}
                Ok(None) => break,
                Ok(Some(frame)) if frame.flags != 0 && !self.mailbox.is_modern() => {
                    let error = WireError::Malformed("the reserved bytes of a header are not zero");
                    control::put_error(&mut self.outbox, 0, &error.into());
                    self.ended = true;
                }
                Ok(Some(frame)) => replied += u64::from(self.execute(frame)),
                Err(error) => {
                    // The stream cannot be decoded from here on.
                    control::put_error(&mut self.outbox, 0, &error.into());
                    self.ended = true;
                }
            }
            progress = true;
        }
        self.time(replied);
        progress
    }

    /// Refuses and skips the request being received if it is larger than all connections together may hold. Returns
    /// false if there is no such request.
    fn refuse_too_large(&mut self) -> bool {
        let limit = self.shared.budget.limit();
        let Some((id, frame_bytes)) = self.inbox.announced().filter(|(_, bytes)| *bytes > limit) else {
            return false;
        };
        let text = format!(
            "the request takes {frame_bytes} bytes, and all connections to this server together may hold {limit}; send less at once"
        );
        control::put_error(&mut self.outbox, id, &StoreError::new(ErrorKind::Invalid, text));
        self.inbox.skip(frame_bytes);
        true
    }

    /// Executes the request that waits for room for its reply, if there is room now.
    fn unblock(&mut self, context: &mut Context<'_>) -> bool {
        let Some(Blocked { kind, id, body, deadline }) = self.blocked.take() else { return false };
        self.shared.budget.wait(context.waker());
        let Some(index) = self.shared.services.find(kind) else { return false };
        if let Some(deadline) = deadline {
            self.deadlines.remove(&(deadline, BLOCKED, id));
        }
        let replied = self.hand_over(index, kind, id, body, deadline);
        if self.blocked.is_some() {
            self.deadlines.extend(deadline.map(|deadline| (deadline, BLOCKED, id)));
        }
        self.time(u64::from(replied));
        self.blocked.is_none()
    }

    /// Counts the latency of requests that were answered at once.
    fn time(&mut self, replied: u64) {
        if replied > 0 {
            let latency = self.read_at.elapsed();
            self.tally.latency(latency, replied, &self.shared.stats);
            self.handlers.iter_mut().for_each(|handler| handler.timed(latency));
        }
    }

    /// Executes a request. Returns true if it was answered at once.
    fn execute(&mut self, frame: Frame) -> bool {
        let Frame { kind, flags, id, mut body } = frame;
        if kind.service == CONTROL && self.control(kind, id, &body) {
            return false;
        }
        if self.draining {
            control::put_error(&mut self.outbox, id, &closed());
            return true;
        }
        let index = self.shared.services.find(kind).filter(|_| flags & !flag::DEADLINE == 0);
        let Some(index) = index else {
            control::put_error(&mut self.outbox, id, &unsupported(kind));
            return false;
        };
        let mut deadline = None;
        if flags & flag::DEADLINE != 0 {
            if body.len() < 4 {
                control::put_error(&mut self.outbox, id, &WireError::Truncated.into());
                return false;
            }
            let time_ms = body.get_u32_le();
            deadline = Some(self.read_at + Duration::from_millis(time_ms.into()));
        }
        if self.handlers.is_empty() {
            self.handlers = self.shared.services.open(&self.peer);
        }
        let replied = self.hand_over(index, kind, id, service::lasting(body), deadline);
        if let Some(blocked) = &mut self.blocked {
            // It may wait for long.
            blocked.body = control::detached(std::mem::take(&mut blocked.body));
            self.deadlines.extend(deadline.map(|deadline| (deadline, BLOCKED, id)));
        }
        replied
    }

    /// Hands a request to its service. Returns true if it was answered at once.
    fn hand_over(
        &mut self,
        index: usize,
        kind: MessageKind,
        id: u64,
        body: Bytes,
        deadline: Option<Instant>,
    ) -> bool {
        let request_bytes = service::lasting_bytes(&body);
        let alone = self.pending == 0 && self.outbox.is_empty();
        let room = RequestBudget {
            budget: &self.shared.budget,
            base: self.buffers() + self.reserved + request_bytes,
            drawn: Cell::new(self.held_bytes),
            reserved: Cell::new(0),
            alone,
            privileged: alone && self.shared.budget.is_privileged(self.number),
        };
        let mailbox = &self.mailbox;
        let request = Incoming { kind, id, body, request_bytes, deadline, mailbox, room: Some(&room) };
        let fate = self.handlers[index].handle(request, self.read_at, &mut self.outbox);
        self.held_bytes = room.drawn.get();
        let reserved = room.reserved.get();
        match fate {
            Fate::Later => {
                self.pending += 1;
                self.pending_bytes += request_bytes;
                self.reserved += reserved;
                self.deadlines.extend(deadline.map(|deadline| (deadline, index, id)));
                false
            }
            Fate::NoCapacity(body) => {
                self.blocked = Some(Blocked { kind, id, body, deadline });
                false
            }
            Fate::Answered | Fate::Uncounted => {
                self.mailbox.replied(id, &mut self.outbox);
                fate == Fate::Answered
            }
        }
    }

    /// Handles a message of the connection itself. Returns false if it is not one.
    fn control(&mut self, kind: MessageKind, id: u64, body: &Bytes) -> bool {
        if kind == MessageKind::PING {
            control::put_bare(&mut self.outbox, MessageKind::PONG, id);
            return true;
        }
        if !self.mailbox.is_modern() {
            return false;
        }
        let done = match kind {
            MessageKind::BEGIN => control::get_beginning(body).map(|beginning| self.begin(id, &beginning)),
            MessageKind::CANCEL => control::get_cancel(body).map(|number| self.cancel(number, id)),
            MessageKind::WINDOW => control::get_window(body).map(|bytes| self.mailbox.consumed(id, bytes)),
            _ => return false,
        };
        if let Err(error) = done {
            control::put_error(&mut self.outbox, id, &error.into());
        }
        true
    }

    /// Cancels a request, or ends a subscription.
    fn cancel(&mut self, number: u8, id: u64) {
        let ended = self.mailbox.unsubscribe(id, &mut self.outbox);
        let Some(index) = self.shared.services.find_number(number) else { return };
        let Some(handler) = self.handlers.get_mut(index) else { return };
        let Some(finished) = handler.cancel(id, None, &self.mailbox) else { return };
        self.pending -= 1;
        self.pending_bytes -= finished.request_bytes;
        self.reserved -= finished.reserved;
        if let Some(deadline) = finished.deadline {
            self.deadlines.remove(&(deadline, index, id));
        }
        // Its id may be reused once it has been answered.
        if !ended {
            let error = StoreError::new(ErrorKind::Closed, "the request was cancelled");
            control::put_error(&mut self.outbox, id, &error);
        }
    }
}

/// Returns the time that a stopping server waits for a peer to read a number of bytes.
fn flush_timeout(bytes: usize) -> Duration {
    FLUSH_TIMEOUT + Duration::from_secs((bytes / FLUSH_PACE) as u64)
}

fn closed() -> StoreError {
    StoreError::new(ErrorKind::Closed, "the server is shutting down")
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.budget.step_back(self.number);
        match self.session.take() {
            Some(session) if self.draining => self.shared.sessions.end(&session),
            Some(session) => self.detach(session),
            None => {}
        }
        if !self.handlers.is_empty() || self.draining {
            self.mailbox.close();
        }
        self.shared.budget.hold(self.held_bytes, 0);
        self.shared.stats.in_flight.change(self.in_flight, 0);
    }
}
