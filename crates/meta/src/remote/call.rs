//! Requests to a rank.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nacre_object::{ErrorKind, ObjectId, StoreError};
use nacre_rpc::client::{Call as Submitted, Link, Request};
use nacre_rpc::{Frame, MessageKind, Outbox, control};

use super::{Inner, Route};
use crate::service::{Call, Reply};
use crate::wire::{self, Attach, META};

/// The pause before a rank that has moved, or is not there, is asked again.
const PAUSE: Duration = Duration::from_millis(10);

/// A call about a sequencer.
pub(super) struct CallRequest {
    pub id: ObjectId,
    pub call: Call,
}

impl Request for CallRequest {
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
        wire::put_call(outbox, id, &self.id, &self.call);
        Ok(())
    }

    /// A repetition costs a gap at most.
    fn is_read_only(&self) -> bool {
        !matches!(self.call, Call::Create(_) | Call::Remove)
    }

    fn cancels(&self) -> Option<u8> {
        matches!(self.call, Call::Next(_) | Call::Read | Call::Acquire).then_some(META)
    }
}

/// A request without a body.
pub(super) struct BareRequest(pub MessageKind);

impl Request for BareRequest {
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
        control::put_bare(outbox, self.0, id);
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        true
    }
}

/// The binding of a session to a connection.
pub(super) struct AttachRequest {
    pub session: u64,
    pub inner: Arc<Inner>,
}

impl Request for AttachRequest {
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
        let connection = self.inner.connections.fetch_add(1, Ordering::Relaxed) + 1;
        wire::put_attach(outbox, id, &Attach { session: self.session, connection });
        Ok(())
    }

    /// Bound anew, the session is to be looked after anew.
    fn is_read_only(&self) -> bool {
        false
    }

    fn cancels(&self) -> Option<u8> {
        Some(META)
    }
}

/// The reason why there is no reply.
#[derive(Debug)]
pub(super) enum Lost {
    /// The rank is not there, or is another one now.
    Moved(Vec<String>, StoreError),
    Failed(StoreError),
}

/// Returns the reply in a frame.
pub(super) fn reply(link: &Link, frame: &Frame) -> Result<Reply, Lost> {
    match frame.kind {
        wire::MOVED | wire::LAPSED | MessageKind::ERROR => Err(refusal(link, frame)),
        kind => wire::get_reply(kind, &frame.body).map_err(|error| Lost::Failed(error.into())),
    }
}

/// Returns the reason why a frame is none of the expected replies.
pub(super) fn refusal(link: &Link, frame: &Frame) -> Lost {
    let error = |text: &str| {
        let text = format!("the daemon at {} {text}", link.address());
        StoreError::new(ErrorKind::Unavailable, text)
    };
    match frame.kind {
        wire::MOVED => {
            let addresses = wire::get_moved(&frame.body).unwrap_or_default();
            Lost::Moved(addresses, error("is not the metadata rank at present"))
        }
        wire::LAPSED => Lost::Moved(Vec::new(), error("does not renew the session's lease any more")),
        _ => lost(match control::get_failure(frame) {
            Ok(error) if error.kind == ErrorKind::Unsupported => {
                let text = format!(
                    "the server at {} has no sequencers: it runs without the role meta",
                    link.address()
                );
                StoreError::new(ErrorKind::Unsupported, text)
            }
            Ok(error) => error,
            Err(_) => error("sent an invalid reply"),
        }),
    }
}

pub(super) fn lost(error: StoreError) -> Lost {
    match error.kind {
        ErrorKind::Unavailable | ErrorKind::Unknown | ErrorKind::Closed | ErrorKind::Busy => {
            Lost::Moved(Vec::new(), error)
        }
        _ => Lost::Failed(error),
    }
}

/// Sends a request and returns the frame of its reply.
pub(super) async fn exchange<R: Request + Unpin>(link: &Arc<Link>, request: R) -> Result<Frame, Lost> {
    let mut call = Submitted::start(link.clone(), request);
    poll_fn(|context| call.poll_frame(context.waker())).await.map_err(lost)
}

/// Sends a call over a binding.
pub(super) async fn ask(route: &Route, id: &ObjectId, call: Call) -> Result<Reply, Lost> {
    // What needs no session takes the other way.
    let link = if let Call::Next(_) = call { &route.round_trips } else { &route.link };
    let frame = exchange(link, CallRequest { id: id.clone(), call }).await?;
    reply(link, &frame)
}

/// The wait for a rank: calls are made again until there is an answer, for as long as the session's patience.
///
/// Without a binding it counts from the time at which the last one ended or the caller asked, whichever was later: callers that
/// wait for each other meanwhile do not fail one after the other.
pub(super) struct RetryBudget<'a> {
    inner: &'a Inner,
    asked: Instant,
    until: Option<Instant>,
    why: Option<StoreError>,
}

impl<'a> RetryBudget<'a> {
    pub fn new(inner: &'a Inner) -> RetryBudget<'a> {
        RetryBudget { inner, asked: Instant::now(), until: None, why: None }
    }

    /// Returns the present binding, once there is one.
    pub async fn route(&mut self) -> Result<Route, StoreError> {
        if let Some(route) = &*self.inner.route.borrow() {
            return Ok(route.clone());
        }
        let mut routes = self.inner.route.subscribe();
        let since = self.asked.max(*self.inner.unbound_since.lock());
        let until = *self.until.get_or_insert_with(|| since + self.inner.options.patience);
        // The clock of this wait is that of the session's own runtime: the caller may have none.
        let over = || self.inner.over.load(Ordering::SeqCst);
        let found = self.inner.timeout(until, routes.wait_for(|route| route.is_some() || over())).await;
        let route = found.and_then(Result::ok).and_then(|route| route.clone());
        route.ok_or_else(|| match over() {
            true => StoreError::new(ErrorKind::Closed, "the session with the metadata rank has ended"),
            false => self.unavailable(),
        })
    }

    /// Waits before a call is made again whose answer was lost.
    pub async fn again(&mut self, route: &Route, lost: Lost) -> Result<(), StoreError> {
        let why = match lost {
            Lost::Failed(error) => return Err(error),
            Lost::Moved(_, why) => why,
        };
        let until = *self.until.get_or_insert_with(|| Instant::now() + self.inner.options.patience);
        self.why = Some(why);
        if Instant::now() >= until {
            return Err(self.unavailable());
        }
        self.inner.leave(route.number);
        let number = route.number;
        let mut routes = self.inner.route.subscribe();
        let newer = |route: &Option<Route>| route.as_ref().is_some_and(|route| route.number > number);
        // What was said may be over by the time that the binding is made again.
        let _ = self.inner.timeout(until.min(Instant::now() + PAUSE), routes.wait_for(newer)).await;
        Ok(())
    }

    fn unavailable(&self) -> StoreError {
        self.why.clone().or_else(|| self.inner.error.lock().clone()).unwrap_or_else(|| {
            StoreError::new(ErrorKind::Unavailable, "no metadata rank has answered in time")
        })
    }
}

/// Makes a call until it is answered.
pub(super) async fn call(inner: &Inner, id: &ObjectId, call: Call) -> Result<Reply, StoreError> {
    let mut patience = RetryBudget::new(inner);
    loop {
        let route = patience.route().await?;
        match ask(&route, id, call).await {
            Ok(reply) => return Ok(reply),
            Err(lost) => patience.again(&route, lost).await?,
        }
    }
}

/// Asks the rank to hand its authority over.
pub(super) async fn hand_over(inner: &Inner) -> Result<(), StoreError> {
    let mut patience = RetryBudget::new(inner);
    let route = patience.route().await?;
    let frame = exchange(&route.link, BareRequest(wire::HAND_OVER)).await;
    let failed = |lost| match lost {
        Lost::Moved(_, error) | Lost::Failed(error) => error,
    };
    let frame = frame.map_err(failed)?;
    match frame.kind {
        wire::DONE => Ok(()),
        _ => Err(failed(refusal(&route.link, &frame))),
    }
}
