//! Requests to ranks.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nacre_object::{ErrorKind, Escaped, ObjectId, StoreError};
use nacre_rpc::client::{Call as Submitted, Greeted, Greeter, Greeting, Link, Request};
use nacre_rpc::{Frame, MessageKind, Outbox, control};

use super::sequencer::State;
use super::{Inner, Ranks, Route};
use crate::load::RankLoad;
use crate::place::RankNumber;
use crate::role::{authority, record};
use crate::service::{Call, Reply};
use crate::wire::{self, Attach, Introduction, META};

/// The pause before a rank that has moved, or is not there, is asked again.
const PAUSE: Duration = Duration::from_millis(10);
/// The number of ranks in a row to which a call goes on without a pause.
const FOLLOWED_MAX: u32 = 2;
/// The time for which a rank is waited for before the store is asked whether it is the right one.
const DOUBT: Duration = Duration::from_secs(1);
/// The time after which a call that is answered has waited in a line, and not among ranks that name each other.
const LINE: Duration = Duration::from_secs(1);

/// The introduction of each connection to a rank.
pub(super) struct Introduces(pub Introduction);

impl Greeter for Introduces {
    fn greet<'a>(&'a self, greeting: &'a mut Greeting) -> Greeted<'a> {
        Box::pin(async move {
            let introduced = greeting.ask(|outbox, id| wire::put_introduction(outbox, id, &self.0)).await;
            match introduced {
                // A daemon of a version without ranks: it acts for rank 0.
                Err(error) if error.kind == ErrorKind::Unsupported && self.0.rank == 0 => Ok(()),
                Err(error) if error.kind == ErrorKind::Unsupported => {
                    let text = format!("it does not know metadata rank {}", self.0.rank);
                    Err(StoreError::new(ErrorKind::Unavailable, text))
                }
                introduced => introduced.map(drop),
            }
        })
    }
}

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

    /// False for all: a call whose connection broke is made again by [`call`], at whichever daemon acts for the rank by then. The
    /// connection would repeat it at the same daemon, and wait for that one alone.
    fn is_read_only(&self) -> bool {
        false
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

impl Lost {
    fn into_error(self) -> StoreError {
        match self {
            Lost::Moved(_, error) | Lost::Failed(error) => error,
        }
    }
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
            Lost::Moved(addresses, error("is not that metadata rank at present"))
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
    ranks: &'a Ranks,
    asked: Instant,
    until: Option<Instant>,
    why: Option<StoreError>,
    /// The number of ranks that named another one.
    followed: u32,
}

/// A binding to a rank, with the session that has it.
pub(super) struct RankRoute {
    pub inner: Arc<Inner>,
    pub route: Route,
    /// The time since which a call may be under way over it.
    pub since: Instant,
}

impl<'a> RetryBudget<'a> {
    pub fn new(ranks: &'a Ranks) -> RetryBudget<'a> {
        RetryBudget { ranks, asked: Instant::now(), until: None, why: None, followed: 0 }
    }

    /// Returns the present binding to the rank at which a sequencer is, once there is one.
    pub async fn route(&mut self, state: &State) -> Result<RankRoute, StoreError> {
        loop {
            let inner = self.ranks.rank(state.rank())?;
            if let Some(route) = self.bound(&inner, Some(DOUBT)).await? {
                return Ok(RankRoute { inner, route, since: Instant::now() });
            }
            // The rank may be gone for good, and its sequencers with other ranks.
            let place = record::place(&*self.ranks.options.store, &state.id);
            let until = Instant::now() + DOUBT;
            if let Some(Ok(Some(place))) = inner.timeout(until, place).await {
                state.turn_to(place.rank);
            }
        }
    }

    /// Returns the present binding to a rank, once there is one.
    pub async fn route_at(&mut self, rank: RankNumber) -> Result<RankRoute, StoreError> {
        let inner = self.ranks.rank(rank)?;
        loop {
            if let Some(route) = self.bound(&inner, None).await? {
                return Ok(RankRoute { inner, route, since: Instant::now() });
            }
        }
    }

    /// Returns the present binding of a session, once there is one; `None` if there is none within a time.
    async fn bound(&mut self, inner: &Inner, within: Option<Duration>) -> Result<Option<Route>, StoreError> {
        // The background may not have taken in yet that a binding was left. A call over it would wait for a connection to the
        // daemon that has just been found not to answer.
        let usable = |route: &Option<Route>| route.clone().filter(|route| inner.is_usable(route));
        let present = usable(&inner.route.borrow());
        if present.is_some() {
            return Ok(present);
        }
        let mut routes = inner.route.subscribe();
        let since = self.asked.max(*inner.unbound_since.lock());
        let until = *self.until.get_or_insert_with(|| since + inner.options.patience);
        let part = within.map_or(until, |within| until.min(Instant::now() + within));
        // The clock of this wait is that of the session's own runtime: the caller may have none.
        let over = || inner.over.load(Ordering::SeqCst);
        let found = inner.timeout(part, routes.wait_for(|route| usable(route).is_some() || over())).await;
        let route = found.and_then(Result::ok).and_then(|route| usable(&route));
        match route {
            Some(route) => Ok(Some(route)),
            None if over() => {
                Err(StoreError::new(ErrorKind::Closed, "the session with the metadata rank has ended"))
            }
            None if Instant::now() < until => Ok(None),
            None => Err(self.unavailable(inner).await),
        }
    }

    /// Waits before a call is made again whose answer was lost.
    pub async fn again(&mut self, at: &RankRoute, lost: Lost) -> Result<(), StoreError> {
        let why = match lost {
            Lost::Failed(error) => return Err(error),
            Lost::Moved(_, why) => why,
        };
        let (inner, number) = (&*at.inner, at.route.number);
        let until = *self.until.get_or_insert_with(|| Instant::now() + inner.options.patience);
        self.why = Some(why);
        if Instant::now() >= until {
            return Err(self.unavailable(inner).await);
        }
        inner.leave(number);
        let mut routes = inner.route.subscribe();
        let newer = |route: &Option<Route>| route.as_ref().is_some_and(|route| route.number > number);
        // What was said may be over by the time that the binding is made again.
        let _ = inner.timeout(until.min(Instant::now() + PAUSE), routes.wait_for(newer)).await;
        Ok(())
    }

    /// Turns to the rank that another one has named, or to the same one again, after a pause if that was so several times.
    pub async fn follow(
        &mut self,
        at: &RankRoute,
        state: &State,
        rank: RankNumber,
    ) -> Result<(), StoreError> {
        state.turn_to(rank);
        if rank != at.route.rank && at.since.elapsed() >= LINE {
            // It stood in a line until the sequencer moved. Patience is for ranks that do not answer.
            (self.until, self.followed) = (None, 0);
        }
        self.followed += 1;
        if self.followed <= FOLLOWED_MAX {
            // A rank has answered: the wait for the next one begins now.
            self.asked = Instant::now();
            return Ok(());
        }
        let inner = &*at.inner;
        let until = *self.until.get_or_insert_with(|| Instant::now() + inner.options.patience);
        if Instant::now() >= until {
            let text = "no metadata rank has answered for the sequencer in time";
            return Err(StoreError::new(ErrorKind::Unavailable, text));
        }
        inner.timeout(until.min(Instant::now() + PAUSE), std::future::pending::<()>()).await;
        Ok(())
    }

    /// Returns why there is no answer. While the store can be asked, that names the daemon that the rank had last.
    async fn unavailable(&self, inner: &Inner) -> StoreError {
        let why = self.why.clone().or_else(|| inner.error.lock().clone()).unwrap_or_else(|| {
            let text = format!("metadata rank {} has not answered in time", inner.rank);
            StoreError::new(ErrorKind::Unavailable, text)
        });
        // A server that has no rank at all says nothing about the one that is away.
        if !matches!(why.kind, ErrorKind::Unavailable | ErrorKind::Unsupported) {
            return why;
        }
        let read = authority::read(&*self.ranks.options.store, inner.rank);
        match inner.timeout(Instant::now() + DOUBT, read).await {
            Some(Ok(Some(last))) => {
                let text = format!("metadata rank {} does not answer", inner.rank);
                // What was said last may be about the daemon of another rank.
                if last.addresses.iter().any(|address| why.message.contains(address)) {
                    return why.context(text);
                }
                let (name, addresses) = (Escaped::of(&last.name), last.addresses.join(", "));
                let at = if addresses.is_empty() { "" } else { " at " };
                let text = format!("{text}; its last daemon was \"{name}\"{at}{}", Escaped::of(&addresses));
                StoreError::new(ErrorKind::Unavailable, text)
            }
            _ => why,
        }
    }
}

/// Makes a call about a sequencer until it is answered.
pub(super) async fn call(ranks: &Ranks, state: &State, call: Call) -> Result<Reply, StoreError> {
    let mut patience = RetryBudget::new(ranks);
    loop {
        let at = patience.route(state).await?;
        match ask(&at.route, &state.id, call).await {
            Ok(Reply::Elsewhere(place)) => patience.follow(&at, state, place.rank).await?,
            Ok(reply) => return Ok(reply),
            Err(lost) => patience.again(&at, lost).await?,
        }
    }
}

/// Makes a call at a rank until it is answered.
pub(super) async fn call_at(
    ranks: &Ranks,
    rank: RankNumber,
    id: &ObjectId,
    call: Call,
) -> Result<Reply, StoreError> {
    let mut patience = RetryBudget::new(ranks);
    loop {
        let at = patience.route_at(rank).await?;
        match ask(&at.route, id, call).await {
            Ok(reply) => return Ok(reply),
            Err(lost) => patience.again(&at, lost).await?,
        }
    }
}

/// Waits until a rank answers.
pub(super) async fn reach(ranks: &Ranks, rank: RankNumber) -> Result<(), StoreError> {
    RetryBudget::new(ranks).route_at(rank).await.map(drop)
}

/// Waits until a rank answers a request that was sent just now.
pub(super) async fn answers(ranks: &Ranks, rank: RankNumber) -> Result<(), StoreError> {
    let mut patience = RetryBudget::new(ranks);
    loop {
        let at = patience.route_at(rank).await?;
        let asked = exchange(&at.route.link, BareRequest(wire::RENEW));
        let lost = match at.inner.timeout(Instant::now() + DOUBT, asked).await {
            Some(Ok(frame)) if frame.kind == wire::DONE => return Ok(()),
            Some(Ok(frame)) => refusal(&at.route.link, &frame),
            Some(Err(lost)) => lost,
            None => {
                let text = format!("metadata rank {rank} has not answered in time");
                Lost::Moved(Vec::new(), StoreError::new(ErrorKind::Unavailable, text))
            }
        };
        patience.again(&at, lost).await?;
    }
}

/// Asks a rank for its load.
pub(super) async fn load(ranks: &Ranks, rank: RankNumber) -> Result<RankLoad, StoreError> {
    let at = RetryBudget::new(ranks).route_at(rank).await?;
    let frame = exchange(&at.route.link, BareRequest(wire::LOAD)).await.map_err(Lost::into_error)?;
    match frame.kind {
        wire::LOADED => Ok(wire::get_load(&frame.body)?),
        _ => Err(refusal(&at.route.link, &frame).into_error()),
    }
}

/// Asks a rank to hand its authority over.
pub(super) async fn hand_over(ranks: &Ranks, rank: RankNumber) -> Result<(), StoreError> {
    let at = RetryBudget::new(ranks).route_at(rank).await?;
    let frame = exchange(&at.route.link, BareRequest(wire::HAND_OVER)).await.map_err(Lost::into_error)?;
    match frame.kind {
        wire::DONE => Ok(()),
        _ => Err(refusal(&at.route.link, &frame).into_error()),
    }
}
