//! The calls of the object service: transactions and listings.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use nacre_object::{ErrorKind, ObjectId, Outcome, StoreError, Transaction, WindowPosition};
use nacre_rpc::client::{Call, Link, Request};
use nacre_rpc::{Frame, MessageKind, Outbox, control};

use crate::once::{self, Attempt};
use crate::writer::{Stamp, Writer};
use crate::{reply, request};

/// A request to apply a transaction.
pub(crate) struct Apply {
    object: ObjectId,
    transaction: Transaction,
    writer: Arc<Writer>,
    /// The number of the write; `None` for a transaction that is never repeated, or that only reads.
    stamp: Option<Stamp>,
    /// Set for a repetition: a position of the server's window from before the first attempt.
    since: Option<WindowPosition>,
    /// The time for which a write is repeated.
    repeat_timeout: Duration,
}

impl Request for Apply {
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
        let transaction = match self.writer.has(request::APPEND) {
            Some(true) => Cow::Borrowed(&self.transaction),
            Some(false) if request::needs_append(&self.transaction) => return Err(no_appends()),
            _ => request::without_hints(&self.transaction),
        };
        let written = match &self.stamp {
            Some(Stamp { sequence, .. }) => {
                let attempt = Attempt { sequence: *sequence, since: self.since };
                once::put_apply_once(outbox, id, &attempt, &self.object, &transaction)
            }
            None => request::put_apply(outbox, id, &self.object, &transaction),
        };
        written.map(|_| ())
    }

    fn is_read_only(&self) -> bool {
        self.transaction.writes.is_empty()
    }

    fn repeat(&mut self) -> Option<Duration> {
        self.since = Some(self.writer.since(self.stamp.as_ref()?)?);
        Some(self.repeat_timeout)
    }

    /// A server that is stopping, or has no room, refuses a request without a look at it.
    fn is_settled_by(&self, reply: &Frame) -> bool {
        let kind = match reply.kind {
            MessageKind::ERROR => control::get_failure(reply).ok().map(|error| error.kind),
            _ => None,
        };
        !matches!(kind, Some(ErrorKind::Closed | ErrorKind::Unavailable | ErrorKind::Busy))
    }
}

/// A transaction under way.
pub(crate) enum ApplyCall {
    /// A transaction that is to be the first on its link. It waits for the opening of the connection: a write has its number
    /// from it, and an operation that older servers do not know needs the server's features.
    Held {
        link: Arc<Link>,
        /// `None` once it is submitted.
        request: Option<Apply>,
        /// The number of failed attempts to connect so far.
        failures: u64,
    },
    Submitted(Call<Apply>),
}

impl ApplyCall {
    pub(crate) fn start(
        link: Arc<Link>,
        writer: Arc<Writer>,
        object: ObjectId,
        transaction: Transaction,
        repeat_timeout: Duration,
    ) -> Self {
        let writes = !transaction.writes.is_empty();
        let stamp = if writes { writer.stamp() } else { None };
        let appends = request::needs_append(&transaction);
        let waits = writes && stamp.is_none() && writer.repeats() || appends;
        if appends && writer.has(request::APPEND) == Some(false) {
            // It fails without being sent, so by itself it would never find out that the server has been updated.
            link.ask();
        }
        let request = Apply { object, transaction, writer, stamp, since: None, repeat_timeout };
        if waits && let Some(failures) = request.writer.is_unopened() {
            link.ask();
            return Self::Held { link, request: Some(request), failures };
        }
        Self::Submitted(Call::start(link, request))
    }

    /// Returns the link of a transaction that waits for its opening, and so has to be polled to be submitted.
    pub(crate) fn held(&self) -> Option<Arc<Link>> {
        match self {
            Self::Held { link, .. } => Some(link.clone()),
            Self::Submitted(_) => None,
        }
    }

    /// Submits a transaction that was held, as soon as it is known whether the connection can be opened.
    fn poll_submitted(&mut self, context: &mut Context<'_>) -> Poll<&mut Call<Apply>> {
        if let Self::Held { link, request: held, failures } = self
            && let Some(request) = held
        {
            std::task::ready!(request.writer.poll_opened(*failures, context.waker()));
            let link = link.clone();
            if let Some(mut request) = held.take() {
                if !request.is_read_only() {
                    request.stamp = request.writer.stamp();
                }
                *self = Self::Submitted(Call::start(link, request));
            }
        }
        match self {
            Self::Submitted(call) => Poll::Ready(call),
            Self::Held { .. } => unreachable!("a transaction is held until it is submitted"),
        }
    }
}

impl Future for ApplyCall {
    type Output = Result<Outcome, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let call = std::task::ready!(self.poll_submitted(context));
        call.poll_frame(context.waker()).map(|frame| {
            let frame = frame?;
            let (result, position) = match once::get_outcome(&frame) {
                Ok(outcome) => outcome,
                Err(error) => return Err(call.nonsense(error)),
            };
            let Apply { transaction, writer, stamp, since, .. } = call.request();
            if let (Some(stamp), Some(position)) = (stamp, position) {
                writer.heard(stamp, position);
            }
            result.map_err(|error| match since {
                Some(_) => unsettled(error),
                // It was sent before anything was known of the server, which could not read it.
                None if writer.has(request::APPEND) == Some(false) && request::needs_append(transaction) => {
                    no_appends()
                }
                None => passing(error),
            })
        })
    }
}

/// Returns the error for a transaction that a server is too old for.
fn no_appends() -> StoreError {
    let text =
        "the server is older than this client, and knows neither appends nor guards of sizes: update it";
    StoreError::new(ErrorKind::Unsupported, text)
}

/// Returns the error for a request that a server has refused. One that is stopping may be back soon, unlike a store that was closed in
/// this process.
pub(crate) fn passing(error: StoreError) -> StoreError {
    match error.kind {
        ErrorKind::Closed => error.with_kind(ErrorKind::Unavailable),
        _ => error,
    }
}

/// Returns the error for a write whose repetition failed. Only these come from a store that looked for the earlier
/// attempt; others may come from a server that did not, and say nothing about it.
fn unsettled(error: StoreError) -> StoreError {
    match error.kind {
        ErrorKind::Unknown | ErrorKind::OutOfSpace | ErrorKind::ReadOnly => error,
        _ => {
            let text = "the connection broke, so the transaction may or may not have taken effect; its repetition failed";
            error.with_kind(ErrorKind::Unknown).context(text)
        }
    }
}

struct List {
    after: Option<ObjectId>,
    limit: usize,
}

impl Request for List {
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
        request::put_list(outbox, id, self.after.as_ref(), self.limit);
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        true
    }
}

/// A listing under way.
pub(crate) struct ListCall(Call<List>);

impl ListCall {
    pub(crate) fn start(link: Arc<Link>, after: Option<ObjectId>, limit: usize) -> Self {
        Self(Call::start(link, List { after, limit }))
    }
}

impl Future for ListCall {
    type Output = Result<Vec<ObjectId>, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_frame(context.waker()).map(|frame| {
            let frame = frame?;
            let listed = reply::get_listed(&frame).unwrap_or_else(|error| Err(self.0.nonsense(error)));
            listed.map_err(passing)
        })
    }
}
