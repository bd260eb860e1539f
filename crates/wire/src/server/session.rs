//! One connection of a server.
//!
//! A session reads large batches, decodes every whole frame, hands each request to the store, and writes the
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

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use nacre_object::{ErrorKind, ObjectId, Outcome, Reply, StoreError};
use tokio::sync::watch;
use tokio::time::Sleep;

use crate::channel::Channel;
use crate::frame::{Frame, Kind};
use crate::inbox::Inbox;
use crate::join::Proof;
use crate::outbox::Outbox;
use crate::server::Shared;
use crate::server::admin::Progress;
use crate::server::stats::{Ending, Operation, Tally};
use crate::{WireError, call, join, reply, request};

/// Buffers of a session that is idle are given back if they are larger than this.
const IDLE_BYTES: usize = 4 << 10;
/// Rounds of reading and writing before other connections of the thread get their turn.
const ROUNDS_MAX: usize = 8;
/// How long a server that stops waits for a peer to read its last replies.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// How long it then waits for the peer to close the connection.
const LINGER: Duration = Duration::from_millis(500);
/// Calls of the administration that one connection may have under way.
const CALLS_MAX: usize = 16;

pub(crate) struct Session {
    channel: Channel,
    shared: Arc<Shared>,
    /// Whether the peer has the same list of members, so that it asks the right server.
    joined: bool,
    inbox: Inbox,
    outbox: Outbox,
    pending: FuturesUnordered<InFlight>,
    calls: Vec<CallInFlight>,
    /// Bytes of the requests in `pending`.
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

/// A request whose reply is still being made.
struct InFlight {
    id: u64,
    request_bytes: usize,
    began: Instant,
    reply: PendingReply,
}

enum PendingReply {
    Apply(Operation, Reply<Outcome>),
    List(Reply<Vec<ObjectId>>),
}

enum Finished {
    Apply(Operation, Result<Outcome, StoreError>),
    List(Result<Vec<ObjectId>, StoreError>),
}

struct CallInFlight {
    id: u64,
    progress: Progress,
    reply: Reply<Bytes>,
}

/// Watches over a peer that owes something.
#[derive(Default)]
struct Stall {
    timer: Option<Pin<Box<Sleep>>>,
    moved: bool,
}

impl Future for InFlight {
    type Output = (u64, usize, Instant, Finished);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (id, bytes, began) = (self.id, self.request_bytes, self.began);
        let finished = match &mut self.reply {
            PendingReply::Apply(operation, reply) => {
                let operation = *operation;
                Pin::new(reply).poll(context).map(|result| Finished::Apply(operation, result))
            }
            PendingReply::List(reply) => Pin::new(reply).poll(context).map(Finished::List),
        };
        finished.map(|finished| (id, bytes, began, finished))
    }
}

impl Session {
    pub(crate) fn new(channel: Channel, shared: Arc<Shared>, joined: bool) -> Self {
        Self {
            channel,
            shared,
            joined,
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            pending: FuturesUnordered::new(),
            calls: Vec::new(),
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
        let open = self.outbox.begin(Kind::Goodbye, 0);
        // It has no body.
        let _ = self.outbox.end(open);
        for call in std::mem::take(&mut self.calls) {
            // Scrubbing and the like may take hours, and harm nobody by being begun again.
            self.put_called(call.id, Err(closed()));
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
        self.pending.is_empty()
    }

    fn is_idle(&self) -> bool {
        self.pending.is_empty()
            && self.calls.is_empty()
            && self.outbox.is_empty()
            && self.channel.is_flushed()
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = self.turn(context);
        self.tally.settle(&self.shared.stats);
        if result.is_pending() {
            self.account();
        }
        result
    }

    /// Tells the server what the session holds.
    fn account(&mut self) {
        let held = self.inbox.held_bytes()
            + self.outbox.held_bytes()
            + self.channel.held_bytes()
            + self.pending_bytes;
        self.shared.budget.hold(&self.shared.stats, self.held_bytes, held);
        self.held_bytes = held;
        let in_flight = self.pending.len() + self.calls.len();
        self.shared.stats.in_flight.change(self.in_flight, in_flight);
        self.in_flight = in_flight;
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
        let mut progress = false;
        while !self.pending.is_empty() && self.outbox.len() < self.shared.limits.reply_bytes_max {
            let polled = self.pending.poll_next_unpin(context);
            let Poll::Ready(Some((id, bytes, began, finished))) = polled else { break };
            self.pending_bytes -= bytes;
            match finished {
                Finished::Apply(operation, result) => self.put_applied(id, operation, result),
                Finished::List(result) => self.put_listed(id, result),
            }
            self.tally.latency(began.elapsed(), 1);
            progress = true;
        }
        let mut index = 0;
        while index < self.calls.len() {
            let call = &mut self.calls[index];
            if let Some(report) = call.progress.take(context.waker()) {
                // A report that is too long is one that nobody sees.
                let _ = call::put_text(&mut self.outbox, Kind::Progress, call.id, &report);
                progress = true;
            }
            match Pin::new(&mut call.reply).poll(context) {
                Poll::Pending => index += 1,
                Poll::Ready(result) => {
                    let id = self.calls.swap_remove(index).id;
                    self.put_called(id, result);
                    progress = true;
                }
            }
        }
        progress
    }

    /// Writes as much as the socket takes.
    fn flush(&mut self, context: &mut Context<'_>) -> io::Result<bool> {
        // Who has a reply finds it counted.
        self.tally.settle(&self.shared.stats);
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
        self.pending.len() < limits.requests_max
            && self.pending_bytes < limits.request_bytes_max
            && self.outbox.len() < limits.reply_bytes_max
            && self.calls.len() < CALLS_MAX
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
        let nothing = self.pending.is_empty() && self.outbox.is_empty() && !self.inbox.is_partial();
        nothing || self.shared.budget.may_grow(&self.shared.stats, context.waker())
    }

    /// Hands all whole frames that were received to the store, as far as the limits allow.
    fn accept(&mut self) -> bool {
        let mut progress = false;
        let mut answered = 0;
        while !self.ended && self.may_accept() {
            match self.inbox.next() {
                Ok(None) => break,
                Ok(Some(frame)) => answered += u64::from(self.execute(frame)),
                Err(error) => {
                    // The stream cannot be understood from here on.
                    reply::put_error(&mut self.outbox, 0, &error.into());
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
        let id = frame.id;
        let request_bytes = frame.body.len();
        if self.draining && frame.kind != Kind::Ping {
            reply::put_error(&mut self.outbox, id, &closed());
            return true;
        }
        if !self.joined && matches!(frame.kind, Kind::Apply | Kind::List | Kind::Call) {
            let text = "the client has not shown that it knows the members of this store";
            reply::put_error(&mut self.outbox, id, &StoreError::new(ErrorKind::Invalid, text));
            return true;
        }
        let pending = match frame.kind {
            Kind::Join => {
                self.join(id, &frame.body);
                return false;
            }
            Kind::Apply => match request::get_apply(&frame.body) {
                Err(error) => {
                    reply::put_error(&mut self.outbox, id, &error.into());
                    return true;
                }
                Ok((object, transaction)) => {
                    let operation = Operation::of(&transaction);
                    let valid = transaction.validate().and_then(|()| reply::check_room(&transaction));
                    if let Err(error) = valid.and_then(|()| self.check_place(&object)) {
                        self.put_applied(id, operation, Err(error));
                        return true;
                    }
                    match self.shared.store.apply(&object, transaction) {
                        Reply::Ready(Some(result)) => {
                            self.put_applied(id, operation, result);
                            return true;
                        }
                        reply => PendingReply::Apply(operation, reply),
                    }
                }
            },
            Kind::List => match request::get_list(&frame.body) {
                Err(error) => {
                    reply::put_error(&mut self.outbox, id, &error.into());
                    return true;
                }
                Ok((after, limit)) => match self.shared.store.list(after.as_ref(), limit) {
                    Reply::Ready(Some(result)) => {
                        self.put_listed(id, result);
                        return true;
                    }
                    reply => PendingReply::List(reply),
                },
            },
            Kind::Call => return self.execute_call(id, &frame.body),
            Kind::Ping => {
                let open = self.outbox.begin(Kind::Pong, id);
                // It has no body.
                let _ = self.outbox.end(open);
                return false;
            }
            _ => {
                let text = format!("message {:?} is not a request", frame.kind);
                reply::put_error(&mut self.outbox, id, &StoreError::new(ErrorKind::Invalid, text));
                return false;
            }
        };
        self.pending_bytes += request_bytes;
        self.pending.push(InFlight { id, request_bytes, began: self.read_at, reply: pending });
        false
    }

    /// Compares the peer's list of members with the server's.
    fn join(&mut self, id: u64, body: &Bytes) {
        let proof = match join::get_join(body) {
            Ok(proof) => proof,
            Err(error) => return reply::put_error(&mut self.outbox, id, &error.into()),
        };
        let membership = &self.shared.membership;
        self.joined = proof == Some(Proof::of(membership.members()));
        let answer = match self.joined {
            true => join::Answer::Joined(membership.own()),
            false => join::Answer::Members(membership.clone()),
        };
        join::put_answer(&mut self.outbox, id, &answer);
    }

    /// Checks that an object belongs here. A client that has joined knows where each belongs; but an object that is kept
    /// in two places is two objects, and no client's mistake must bring that about.
    fn check_place(&self, object: &ObjectId) -> Result<(), StoreError> {
        let membership = &self.shared.membership;
        if membership.keeps(object) {
            return Ok(());
        }
        let text = format!(
            "wrong server: object \"{object}\" is kept by {}, and this is {}",
            membership.keeper(object),
            membership.name()
        );
        Err(StoreError::new(ErrorKind::Invalid, text))
    }

    fn execute_call(&mut self, id: u64, body: &Bytes) -> bool {
        let (method, argument) = match call::get_call(body) {
            Ok(call) => call,
            Err(error) => {
                self.put_called(id, Err(error.into()));
                return true;
            }
        };
        let Some(admin) = &self.shared.admin else {
            let error = StoreError::new(ErrorKind::Unsupported, "this server has no administration");
            self.put_called(id, Err(error));
            return true;
        };
        let progress = Progress::default();
        let reply = admin.call(&method, argument, progress.clone());
        self.calls.push(CallInFlight { id, progress, reply });
        false
    }

    fn put_applied(&mut self, id: u64, operation: Operation, result: Result<Outcome, StoreError>) {
        self.tally.request(operation, Ending::of(&result));
        let error = match result {
            Err(error) => error,
            Ok(outcome) => match reply::put_outcome(&mut self.outbox, id, &outcome) {
                Ok(_) => return,
                Err(body_bytes) => WireError::TooLong { body_bytes }.into(),
            },
        };
        reply::put_error(&mut self.outbox, id, &error);
    }

    fn put_listed(&mut self, id: u64, result: Result<Vec<ObjectId>, StoreError>) {
        match result {
            Ok(objects) => {
                self.tally.request(Operation::List, Ending::Done);
                reply::put_listed(&mut self.outbox, id, &objects);
            }
            Err(error) => {
                self.tally.request(Operation::List, Ending::Failed);
                reply::put_error(&mut self.outbox, id, &error);
            }
        }
    }

    fn put_called(&mut self, id: u64, result: Result<Bytes, StoreError>) {
        let error = match result {
            Err(error) => error,
            Ok(text) => match call::put_text(&mut self.outbox, Kind::Result, id, &text) {
                Ok(_) => return self.tally.request(Operation::Call, Ending::Done),
                Err(body_bytes) => WireError::TooLong { body_bytes }.into(),
            },
        };
        self.tally.request(Operation::Call, Ending::Failed);
        reply::put_error(&mut self.outbox, id, &error);
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
