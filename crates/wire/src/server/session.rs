//! One connection of a server.
//!
//! A session reads large batches, decodes every whole frame, hands each request to the store, and writes the
//! replies of the whole batch at once. Replies that are there at once cost no allocation and no task switch.
//!
//! Invariants: a session stops reading while it has as many requests in flight, or as many bytes of replies
//! unwritten, as its limits allow; so a peer that does not read its replies is soon not read from either. Whatever
//! the budget of the whole server, a session that holds nothing may read, so none can starve.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use nacre_object::{ErrorKind, ObjectId, ObjectStore, Outcome, Reply, StoreError};
use tokio::sync::watch;

use crate::frame::{Frame, Kind};
use crate::inbox::Inbox;
use crate::outbox::Outbox;
use crate::server::ServerLimits;
use crate::stream::Stream;
use crate::{reply, request};

/// Buffers of a session that is idle are given back if they are larger than this.
const IDLE_BYTES: usize = 4 << 10;
/// Rounds of reading and writing before other connections of the thread get their turn.
const ROUNDS_MAX: usize = 8;
/// How long a session that ends waits for its peer to close the connection.
const LINGER: Duration = Duration::from_millis(500);

pub(crate) struct Session {
    stream: Stream,
    store: Arc<dyn ObjectStore>,
    limits: ServerLimits,
    inbox: Inbox,
    outbox: Outbox,
    pending: FuturesUnordered<InFlight>,
    /// Bytes of the requests in `pending`.
    pending_bytes: usize,
    /// Set when the server stops: what was accepted is finished, everything else is refused.
    draining: bool,
    /// Set when the peer will send no more, or sent what is not the protocol.
    ended: bool,
}

/// A request whose reply is still being made.
struct InFlight {
    id: u64,
    request_bytes: usize,
    reply: PendingReply,
}

enum PendingReply {
    Apply(Reply<Outcome>),
    List(Reply<Vec<ObjectId>>),
}

enum Finished {
    Apply(Result<Outcome, StoreError>),
    List(Result<Vec<ObjectId>, StoreError>),
}

impl Future for InFlight {
    type Output = (u64, usize, Finished);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (id, bytes) = (self.id, self.request_bytes);
        match &mut self.reply {
            PendingReply::Apply(reply) => {
                Pin::new(reply).poll(context).map(|result| (id, bytes, Finished::Apply(result)))
            }
            PendingReply::List(reply) => {
                Pin::new(reply).poll(context).map(|result| (id, bytes, Finished::List(result)))
            }
        }
    }
}

impl Session {
    pub(crate) fn new(stream: Stream, store: Arc<dyn ObjectStore>, limits: ServerLimits) -> Self {
        Self {
            stream,
            store,
            limits,
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            pending: FuturesUnordered::new(),
            pending_bytes: 0,
            draining: false,
            ended: false,
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
        // Refusing what still comes in, instead of closing, keeps the system from discarding replies under way.
        let drained = tokio::time::timeout(LINGER, poll_fn(|context| self.poll(context))).await;
        if drained.is_err() && !self.idle() {
            self.ended = true;
            return poll_fn(|context| self.poll(context)).await;
        }
        Ok(())
    }

    fn idle(&self) -> bool {
        self.pending.is_empty() && self.outbox.is_empty()
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        for _ in 0..ROUNDS_MAX {
            let mut progress = self.collect(context);
            progress |= self.flush(context)?;
            progress |= self.read(context)?;
            if self.ended && self.idle() {
                return Poll::Ready(Ok(()));
            }
            if !progress {
                self.outbox.release(IDLE_BYTES);
                return Poll::Pending;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Encodes the replies that were finished meanwhile.
    fn collect(&mut self, context: &mut Context<'_>) -> bool {
        let mut progress = false;
        while !self.pending.is_empty() && self.outbox.len() < self.limits.reply_bytes_max {
            let Poll::Ready(Some((id, bytes, finished))) = self.pending.poll_next_unpin(context) else {
                break;
            };
            self.pending_bytes -= bytes;
            match finished {
                Finished::Apply(result) => put_applied(&mut self.outbox, id, result),
                Finished::List(result) => put_listed(&mut self.outbox, id, result),
            }
            progress = true;
        }
        progress
    }

    /// Writes as much as the socket takes.
    fn flush(&mut self, context: &mut Context<'_>) -> io::Result<bool> {
        let mut progress = false;
        while !self.outbox.is_empty() {
            let mut slices = [IoSlice::new(&[]); 64];
            let filled = self.outbox.slices(&mut slices);
            match self.stream.try_write_vectored(&slices[..filled]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.outbox.advance(count);
                    progress = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    match self.stream.poll_write_ready(context) {
                        Poll::Pending => break,
                        Poll::Ready(ready) => ready?,
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(progress)
    }

    fn may_accept(&self) -> bool {
        self.pending.len() < self.limits.requests_max
            && self.pending_bytes < self.limits.request_bytes_max
            && self.outbox.len() < self.limits.reply_bytes_max
    }

    /// Reads once, and accepts all whole frames.
    fn read(&mut self, context: &mut Context<'_>) -> io::Result<bool> {
        let mut progress = self.accept();
        while !self.ended && self.may_accept() {
            match self.stream.poll_read_ready(context) {
                Poll::Pending => break,
                Poll::Ready(ready) => ready?,
            }
            match self.inbox.read(&self.stream) {
                Ok(0) => self.ended = true,
                Ok(_) => {
                    self.accept();
                    progress = true;
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        self.inbox.settle();
        Ok(progress)
    }

    /// Hands all whole frames that were received to the store, as far as the limits allow.
    fn accept(&mut self) -> bool {
        let mut progress = false;
        while !self.ended && self.may_accept() {
            match self.inbox.next() {
                Ok(None) => break,
                Ok(Some(frame)) => self.execute(frame),
                Err(error) => {
                    // The stream cannot be understood from here on.
                    reply::put_error(&mut self.outbox, 0, &error.into());
                    self.ended = true;
                }
            }
            progress = true;
        }
        progress
    }

    fn execute(&mut self, frame: Frame) {
        let id = frame.id;
        let request_bytes = frame.body.len();
        if self.draining && frame.kind != Kind::Ping {
            let error = StoreError::new(ErrorKind::Closed, "the server is shutting down");
            return reply::put_error(&mut self.outbox, id, &error);
        }
        let pending = match frame.kind {
            Kind::Apply => match request::get_apply(&frame.body) {
                Err(error) => return reply::put_error(&mut self.outbox, id, &error.into()),
                Ok((object, transaction)) => match self.store.apply(&object, transaction) {
                    Reply::Ready(Some(result)) => return put_applied(&mut self.outbox, id, result),
                    reply => PendingReply::Apply(reply),
                },
            },
            Kind::List => match request::get_list(&frame.body) {
                Err(error) => return reply::put_error(&mut self.outbox, id, &error.into()),
                Ok((after, limit)) => match self.store.list(after.as_ref(), limit) {
                    Reply::Ready(Some(result)) => return put_listed(&mut self.outbox, id, result),
                    reply => PendingReply::List(reply),
                },
            },
            Kind::Ping => {
                let open = self.outbox.begin(Kind::Pong, id);
                // It has no body.
                let _ = self.outbox.end(open);
                return;
            }
            _ => {
                let text = format!("message {:?} is not a request", frame.kind);
                return reply::put_error(&mut self.outbox, id, &StoreError::new(ErrorKind::Invalid, text));
            }
        };
        self.pending_bytes += request_bytes;
        self.pending.push(InFlight { id, request_bytes, reply: pending });
    }
}

fn put_applied(outbox: &mut Outbox, id: u64, result: Result<Outcome, StoreError>) {
    let error = match result {
        Err(error) => error,
        Ok(outcome) => match reply::put_outcome(outbox, id, &outcome) {
            Ok(_) => return,
            Err(body_bytes) => crate::WireError::TooLong { body_bytes }.into(),
        },
    };
    reply::put_error(outbox, id, &error);
}

fn put_listed(outbox: &mut Outbox, id: u64, result: Result<Vec<ObjectId>, StoreError>) {
    match result {
        Ok(objects) => reply::put_listed(outbox, id, &objects),
        Err(error) => reply::put_error(outbox, id, &error),
    }
}
