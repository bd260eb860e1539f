//! The thread of a session: it feeds the client's state machine, and does what that says.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use nacre_object::{ErrorKind, StoreError};
use nacre_rpc::Address;
use nacre_rpc::client::{Host, Link, LinkOptions};
use tokio::sync::{mpsc, oneshot};

use super::call::{call, number};
use super::watch::{Event, watch};
use super::{Inner, LockError, Request, Session, State};
use crate::client::{Acquisition, Action, Client, Ended, OperationId, Wanted};
use crate::message::{Asked, Call, FileName, Reply, SessionId};
use crate::wire::{Place, described};
use crate::{Pattern, clock};

/// The time that the end of a session may take; servers that do not answer wait for the lease to lapse.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// The time for which the answer to a request whose time is up waits for the servers to take back what they granted.
const LATE_MAX: Duration = Duration::from_millis(500);

/// The longest pause between attempts to reach a server: a lease may be short.
const BACKOFF_MAX: Duration = Duration::from_millis(250);

/// An order to the thread.
pub(super) enum Command {
    /// Locks bytes.
    Lock {
        ticket: u64,
        file: FileName,
        pattern: Pattern,
        description: Bytes,
        request: Box<Request>,
        deadline: Option<Instant>,
        reply: oneshot::Sender<Result<(), LockError>>,
    },
    /// Releases what a lock holds, or ends its wait.
    Release { ticket: u64, released: Option<oneshot::Sender<()>> },
    /// Ends the session.
    End,
}

/// An operation, as its owner knows it.
struct Owned {
    ticket: u64,
    description: Bytes,
    deadline: Option<Instant>,
    /// Waits for the lock.
    reply: Option<oneshot::Sender<Result<(), LockError>>>,
    /// Waits for its release.
    released: Option<oneshot::Sender<()>>,
    /// True if the time was up.
    late: bool,
}

type Answer = (u64, Result<Option<Reply>, StoreError>);

struct Driver {
    client: Client,
    state: Arc<State>,
    place: Place,
    servers: Vec<Address>,
    options: Arc<LinkOptions>,
    host: Arc<Host>,
    links: HashMap<u32, Arc<Link>>,
    calls: FuturesUnordered<Pin<Box<dyn Future<Output = Answer>>>>,
    events: mpsc::UnboundedSender<Event>,
    owned: BTreeMap<OperationId, Owned>,
    tickets: HashMap<u64, OperationId>,
    deadlines: BTreeSet<(Instant, OperationId)>,
    actions: Vec<Action>,
}

/// Begins a session and drives it until its last handle is gone. `ready` gets the first handle.
pub(super) async fn run(
    servers: Vec<Address>,
    mut options: LinkOptions,
    ready: oneshot::Sender<Result<Session, StoreError>>,
) {
    options.backoff_max = options.backoff_max.min(BACKOFF_MAX);
    let (options, host) = (Arc::new(options), Arc::new(Host::new(false)));
    let begun = begin(&servers, &options, &host).await;
    let (session, place, first) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            // Whoever asked may be gone.
            let _ = ready.send(Err(error));
            return;
        }
    };
    let state = Arc::new(State {
        session,
        lost: OnceLock::new(),
        ends_ns: AtomicU64::new(u64::MAX),
        ended: AtomicBool::new(false),
        told: tokio::sync::Notify::new(),
    });
    let (commands, received) = mpsc::unbounded_channel();
    let (over, ended) = tokio::sync::watch::channel(false);
    let inner = Inner { state: state.clone(), commands, tickets: AtomicU64::new(0), ended };
    if ready.send(Ok(Session { inner: Arc::new(inner) })).is_err() {
        return;
    }
    let (events, news) = mpsc::unbounded_channel();
    let client = Client::new(session, place.servers);
    let mut driver = Driver {
        client,
        state: state.clone(),
        place,
        servers,
        options,
        host,
        links: HashMap::from([(0, first)]),
        calls: FuturesUnordered::new(),
        events,
        owned: BTreeMap::new(),
        tickets: HashMap::new(),
        deadlines: BTreeSet::new(),
        actions: Vec::new(),
    };
    driver.drive(received, news).await;
    state.end();
    driver.links.values().for_each(|link| link.close());
    // Those who wait may be gone.
    let _ = over.send(true);
}

/// Asks the first server for a number.
async fn begin(
    servers: &[Address],
    options: &Arc<LinkOptions>,
    host: &Arc<Host>,
) -> Result<(SessionId, Place, Arc<Link>), StoreError> {
    let Some(first) = servers.first() else {
        return Err(StoreError::new(ErrorKind::Invalid, "no lock server is named"));
    };
    let link = Link::new(first.clone(), (), options.clone(), host.clone());
    let (session, place) = number(link.clone()).await?;
    if place.server != 0 || place.servers as usize != servers.len() {
        let text = format!(
            "{first} is lock server {} of {}, and not the first of {}",
            place.server + 1,
            place.servers,
            servers.len()
        );
        return Err(StoreError::new(ErrorKind::Invalid, text));
    }
    Ok((SessionId(session), place, link))
}

impl Driver {
    async fn drive(
        &mut self,
        mut commands: mpsc::UnboundedReceiver<Command>,
        mut news: mpsc::UnboundedReceiver<Event>,
    ) {
        let mut ending: Option<Instant> = None;
        loop {
            self.client.tick(clock::now(), &mut self.actions);
            // Before anybody is told of a lock: were the program stopped in between, its next check would know no end.
            let ends = self.client.ends().map_or(u64::MAX, |ends| ends.as_nanos() as u64);
            self.state.ends_ns.store(ends, Ordering::Release);
            // Whoever was granted a lock is told of it before its time is looked at: a lock that is given back because the time is up is
            // one that nobody was told of.
            self.carry();
            self.expire();
            self.carry();
            if ending.is_some() && self.calls.is_empty() && self.client.is_answered() {
                return;
            }
            let due = self.next_wake(ending);
            let sleep = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                Some((number, answer)) = self.calls.next(), if !self.calls.is_empty() => {
                    self.answered(number, answer);
                }
                Some(event) = news.recv() => self.hear(event),
                command = commands.recv(), if ending.is_none() => match command {
                    Some(Command::End) | None => {
                        // Before the servers give the bytes to others: there may be locks yet, and checks of them.
                        self.state.end();
                        self.client.close(&mut self.actions);
                        ending = Some(Instant::now() + END_TIMEOUT);
                    }
                    Some(command) => self.obey(command),
                },
                () = sleep => {
                    if ending.is_some_and(|until| Instant::now() >= until) {
                        return;
                    }
                }
            }
        }
    }

    /// Returns the next time at which there is something to do.
    fn next_wake(&self, ending: Option<Instant>) -> Option<Instant> {
        let lease = self.client.next_deadline().map(|at| Instant::now() + at.saturating_sub(clock::now()));
        let wait = self.deadlines.first().map(|first| first.0);
        [lease, wait, ending].into_iter().flatten().min()
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Lock { ticket, file, pattern, description, request, deadline, reply } => {
                let wanted = Wanted {
                    file,
                    operation: 0,
                    first_number: 0,
                    mode: request.mode,
                    pattern,
                    stripe_bytes: self.place.stripe_bytes,
                    servers: self.place.servers,
                    method: request.method,
                    protocol: request.protocol,
                    waits: request.wait != Some(Duration::ZERO),
                };
                let mut actions = Vec::new();
                match self.client.lock(clock::now(), wanted, &mut actions) {
                    Err(error) => _ = reply.send(Err(error.into())),
                    Ok(id) => {
                        let (reply, released, late) = (Some(reply), None, false);
                        let owned = Owned { ticket, description, deadline, reply, released, late };
                        self.deadlines.extend(deadline.map(|deadline| (deadline, id)));
                        self.tickets.insert(ticket, id);
                        self.owned.insert(id, owned);
                    }
                }
                self.actions.extend(actions);
            }
            Command::Release { ticket, released } => {
                let Some(id) = self.tickets.get(&ticket) else { return };
                if let Some(owned) = self.owned.get_mut(id) {
                    owned.released = owned.released.take().or(released);
                }
                self.client.release(clock::now(), *id, &mut self.actions);
            }
            Command::End => {}
        }
    }

    fn hear(&mut self, event: Event) {
        let now = clock::now();
        match event {
            Event::Connected(server) => self.client.connected(now, server, &mut self.actions),
            Event::Disconnected(server) => self.client.disconnected(server),
            Event::Reply(call, reply) => self.client.handle(now, call, reply, &mut self.actions),
            Event::Unreachable(server, error) => self.unreachable(server, &error),
            Event::Failed(error) => self.fail(&error),
        }
    }

    fn answered(&mut self, number: u64, answer: Result<Option<Reply>, StoreError>) {
        match answer {
            Ok(Some(reply)) => self.client.handle(clock::now(), number, reply, &mut self.actions),
            Ok(None) => {}
            Err(error) => match error.kind {
                // The connection is gone, or another one has taken its place: that is news of its own, and the client
                // then asks again for all that is unanswered.
                ErrorKind::Unavailable | ErrorKind::Unknown | ErrorKind::Closed => {}
                _ => self.fail(&error),
            },
        }
    }

    /// Gives up the locks that are not had yet and need a server that cannot be reached, unless the session is open there:
    /// then it is waited for as long as the lease lasts.
    fn unreachable(&mut self, server: u32, error: &StoreError) {
        if self.client.has_lease(server) {
            return;
        }
        for (id, owned) in &mut self.owned {
            let needs = |operation: &Acquisition| operation.parts().iter().any(|part| part.server == server);
            if self.client.operation(*id).is_some_and(needs)
                && let Some(reply) = owned.reply.take()
            {
                let _ = reply.send(Err(error.clone().into()));
                self.client.release(clock::now(), *id, &mut self.actions);
            }
        }
        // Nothing of theirs ever came there, so they do not wait for the server to be back.
        self.client.unreachable(clock::now(), server, &mut self.actions);
    }

    /// Gives the session up, because a server makes no sense or refuses it.
    fn fail(&mut self, error: &StoreError) {
        for owned in self.owned.values_mut() {
            if let Some(reply) = owned.reply.take() {
                let _ = reply.send(Err(error.clone().into()));
            }
        }
        self.state.lose(error.message.clone());
        self.client.close(&mut self.actions);
    }

    /// Ends the waits whose time is up.
    fn expire(&mut self) {
        while let Some((deadline, id)) = self.deadlines.first().copied()
            && deadline <= Instant::now()
        {
            self.deadlines.remove(&(deadline, id));
            if let Some(owned) = self.owned.get_mut(&id)
                && owned.reply.is_some()
            {
                if owned.late {
                    // A server that cannot be reached does not hold up the answer; it is told when it is back.
                    let _ = owned.reply.take().map(|reply| reply.send(Err(LockError::TimedOut)));
                    continue;
                }
                owned.late = true;
                let again = deadline + LATE_MAX;
                owned.deadline = Some(again);
                self.deadlines.insert((again, id));
                self.client.release(clock::now(), id, &mut self.actions);
            }
        }
    }

    /// Does what the client says.
    fn carry(&mut self) {
        while !self.actions.is_empty() {
            for action in std::mem::take(&mut self.actions) {
                match action {
                    Action::Connect { server } => self.connect(server),
                    Action::Send { server, call, message } => self.send(server, call, message),
                    Action::Held(id) => self.held(id),
                    Action::Ended(id, ended) => self.over(id, ended),
                    Action::Lost { server } => {
                        let why = format!(
                            "its lease at the lock server {} was not renewed in time, or it was broken there",
                            self.servers.get(server as usize).map_or_else(String::new, Address::to_string)
                        );
                        self.state.lose(why);
                    }
                }
            }
        }
    }

    fn link(&mut self, server: u32) -> Option<Arc<Link>> {
        let address = self.servers.get(server as usize)?.clone();
        let link = self
            .links
            .entry(server)
            .or_insert_with(|| Link::new(address, (), self.options.clone(), self.host.clone()));
        Some(link.clone())
    }

    fn connect(&mut self, server: u32) {
        if let Some(link) = self.link(server) {
            tokio::spawn(watch(link, server, self.state.session.0, self.place, self.events.clone()));
        }
    }

    fn send(&mut self, server: u32, number: u64, message: Call) {
        let description = match &message {
            Call::Acquire { asked: Some(asked), .. } | Call::Assert { asked, .. } => self.description(asked),
            _ => Ok(Bytes::new()),
        };
        let Some(link) = self.link(server) else { return };
        match description {
            Ok(description) => {
                let answer = call(link, number, message, description);
                self.calls.push(Box::pin(async move { (number, answer.await) }));
            }
            // Requests have been checked; what is left has fewer regions than a list may have.
            Err(error) => self.fail(&StoreError::new(ErrorKind::Invalid, error.to_string())),
        }
    }

    /// Returns the description of a request's pattern: that of its operation if it is the whole.
    fn description(&self, asked: &Asked) -> Result<Bytes, crate::PatternError> {
        let whole = self
            .client
            .operation(asked.operation)
            .is_some_and(|operation| operation.wanted().method == crate::client::Method::Datatype);
        let owned = self.owned.get(&asked.operation).filter(|_| whole);
        described(&asked.pattern, owned.map(|owned| &owned.description))
    }

    fn held(&mut self, id: OperationId) {
        let Some(owned) = self.owned.get_mut(&id) else { return };
        if owned.late {
            // It is being given back.
            return;
        }
        if let Some(deadline) = owned.deadline.take() {
            self.deadlines.remove(&(deadline, id));
        }
        // Whoever asked may be gone: then nobody holds it.
        let taken = owned.reply.take().is_some_and(|reply| reply.send(Ok(())).is_ok());
        if !taken {
            self.client.release(clock::now(), id, &mut self.actions);
        }
    }

    fn over(&mut self, id: OperationId, ended: Ended) {
        let Some(owned) = self.owned.remove(&id) else { return };
        self.tickets.remove(&owned.ticket);
        if let Some(deadline) = owned.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        if let Some(reply) = owned.reply {
            let error = match ended {
                Ended::Released if owned.late => LockError::TimedOut,
                Ended::WouldWait => LockError::WouldWait,
                Ended::Refused(refusal) => LockError::Refused(refusal),
                Ended::Released | Ended::Lost => {
                    let why = self.state.lost.get().cloned();
                    let why = why.unwrap_or_else(|| "it was released".to_owned());
                    LockError::Lost { session: self.state.session.0, why }
                }
            };
            let _ = reply.send(Err(error));
        }
        if let Some(released) = owned.released {
            let _ = released.send(());
        }
    }
}
