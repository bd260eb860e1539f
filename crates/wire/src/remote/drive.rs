//! The driver of a connection: connects when there is something to send, writes what callers encoded, hands them
//! what comes back, and says what was lost when the connection breaks.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use nacre_object::{ErrorKind, StoreError};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};

use crate::channel::Channel;
use crate::frame::Kind;
use crate::handshake;
use crate::inbox::Inbox;
use crate::join::{self, Answer, Proof};
use crate::outbox::Outbox;
use crate::remote::link::{Link, Role, unreachable_server};
use crate::remote::roster;
use crate::stream::Stream;

/// Memory that a connection keeps for the requests that it sends next.
const KEPT_BYTES_MAX: usize = 1 << 20;
/// Rounds of reading and writing before other tasks of the runtime get their turn.
const ROUNDS_MAX: usize = 8;
/// The id of the request by which a connection begins.
const JOIN_ID: u64 = 1;
/// The id of pings, which belong to no call.
const PING_ID: u64 = u64::MAX;

/// Where drivers run.
pub(super) struct Host {
    own_thread: bool,
    own: OnceLock<OwnThread>,
}

/// A thread with a runtime that nothing else uses. It ends when this is dropped.
struct OwnThread {
    handle: Handle,
    _stop: oneshot::Sender<()>,
}

impl Host {
    pub(super) fn new(own_thread: bool) -> Self {
        Self { own_thread, own: OnceLock::new() }
    }

    pub(super) fn spawn(&self, driver: impl Future<Output = ()> + Send + 'static) -> Result<(), StoreError> {
        if !self.own_thread
            && let Ok(handle) = Handle::try_current()
        {
            handle.spawn(driver);
            return Ok(());
        }
        if self.own.get().is_none() {
            let own = OwnThread::start().map_err(|error| {
                StoreError::new(
                    ErrorKind::Unavailable,
                    format!("cannot start a thread for connections: {error}"),
                )
            })?;
            // If another thread was faster, this one ends again at once.
            let _ = self.own.set(own);
        }
        if let Some(own) = self.own.get() {
            own.handle.spawn(driver);
        }
        Ok(())
    }
}

impl OwnThread {
    fn start() -> io::Result<OwnThread> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        std::thread::Builder::new().name("nacre-remote".to_owned()).spawn(move || {
            // The sender is never used, only dropped.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(OwnThread { handle, _stop: stop })
    }
}

/// Tells the callers when the driver is gone, also when its runtime ends under it.
struct Driving {
    link: Arc<Link>,
    written: Option<u64>,
}

impl Driving {
    fn lose(&self, error: &StoreError) {
        let mut wakers = Vec::new();
        self.link.state.lock().lose(self.written, error, &mut wakers);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Driving {
    fn drop(&mut self) {
        let error = StoreError::new(ErrorKind::Closed, "the runtime that drove the connection has ended");
        self.link.state.lock().undriven();
        self.link.answered(Err(error.clone()));
        self.lose(&error);
    }
}

pub(super) async fn drive(link: Arc<Link>) {
    let mut driving = Driving { link: link.clone(), written: None };
    while poll_fn(|context| wanted(&link, context)).await {
        let channel = match connect(&link).await {
            Ok(channel) => channel,
            Err(error) => {
                let error = error.context(format_args!("cannot reach the server at {}", link.address));
                link.state.lock().failed(&error, &link.options);
                link.answered(Err(error.clone()));
                driving.lose(&error);
                continue;
            }
        };
        let written = {
            let mut state = link.state.lock();
            state.connected();
            state.base
        };
        driving.written = Some(written);
        let error = Connection::new(&mut driving, channel).run().await;
        if let Some(error) = error {
            driving.lose(&unreachable_server(&link.address, error));
        }
        driving.written = None;
    }
}

/// Connects to the server, and makes sure that it is the member that it should be of the store that it should keep.
async fn connect(link: &Link) -> Result<Channel, StoreError> {
    let timeout = link.options.connect_timeout;
    let late = |_| StoreError::new(ErrorKind::Unavailable, "it did not answer in time");
    let introduced = async {
        let stream = Stream::connect(&link.address, link.options.owner).await.map_err(|error| {
            let kind = match error.kind() {
                io::ErrorKind::PermissionDenied => ErrorKind::Denied,
                _ => ErrorKind::Unavailable,
            };
            StoreError::new(kind, error.to_string())
        })?;
        let seal = handshake::introduce(&stream, link.options.key.as_ref()).await?;
        Ok::<_, StoreError>(Channel::new(stream, seal))
    };
    let mut channel = tokio::time::timeout(timeout, introduced).await.map_err(late)??;
    loop {
        let known = link.roster.known();
        let asked = join(&mut channel, known.map(|known| &known.proof));
        match (tokio::time::timeout(timeout, asked).await.map_err(late)??, known) {
            (Answer::Joined(own), Some(known)) => {
                let wanted = match link.role {
                    Role::Contact(index) => known.contacts[index],
                    Role::Member(member) => member,
                };
                if own == wanted {
                    return Ok(channel);
                }
                let name = |member: usize| known.members.names().get(member).map_or("?", String::as_str);
                let text = format!("it says that it is member {}, not {}", name(own), name(wanted));
                return Err(StoreError::new(ErrorKind::Invalid, text));
            }
            (Answer::Members(theirs), Some(known)) => return Err(roster::changed(known, &theirs)),
            (Answer::Members(theirs), None) => {
                // Its answer alone need not settle who the members are.
                let outcome = link.roster.follow();
                link.answered(Ok(theirs));
                match outcome {
                    Some(outcome) => outcome.await.unwrap_or_else(|_| Err(unsettled()))?,
                    // The round was over meanwhile: it has told the members, or nobody wants to know any more.
                    None if link.roster.known().is_some() => {}
                    None => return Err(unsettled()),
                }
            }
            (Answer::Joined(_), None) => return Err(nonsense("it agreed to a list that it was not shown")),
        }
    }
}

/// Shows the server which members the client knows, and gives its answer.
async fn join(channel: &mut Channel, proof: Option<&Proof>) -> Result<Answer, StoreError> {
    let broken = |error: io::Error| StoreError::new(ErrorKind::Unavailable, error.to_string());
    let (mut inbox, mut outbox, mut taken) = (Inbox::default(), Outbox::default(), 0);
    join::put_join(&mut outbox, JOIN_ID, proof);
    poll_fn(|context| channel.poll_write(context, &mut outbox, &mut taken)).await.map_err(broken)?;
    let frame = loop {
        if let Some(frame) = inbox.next().map_err(nonsense)? {
            break frame;
        }
        if poll_fn(|context| channel.poll_read(context, &mut inbox)).await.map_err(broken)? == 0 {
            return Err(broken(io::Error::other("it closed the connection")));
        }
    };
    if frame.kind == Kind::Goodbye || inbox.is_partial() {
        // What a server says unasked is that it is about to stop.
        return Err(broken(io::Error::other("it is shutting down")));
    }
    if frame.kind == Kind::Error {
        return Err(crate::reply::get_failure(&frame).unwrap_or_else(nonsense));
    }
    join::get_answer(&frame).map_err(nonsense)
}

fn unsettled() -> StoreError {
    StoreError::new(ErrorKind::Unavailable, "the members of the store could not be found out")
}

fn nonsense(why: impl std::fmt::Display) -> StoreError {
    StoreError::new(ErrorKind::Unavailable, format!("it sent something that makes no sense: {why}"))
}

/// Whether a connection is wanted; false when none will be any more.
fn wanted(link: &Link, context: &mut Context<'_>) -> Poll<bool> {
    let mut state = link.state.lock();
    if !state.outbox.is_empty() || state.asking {
        return Poll::Ready(true);
    }
    if state.closed {
        return Poll::Ready(false);
    }
    state.listen(context.waker());
    Poll::Pending
}

struct Connection<'a> {
    driving: &'a mut Driving,
    channel: Channel,
    inbox: Inbox,
    sending: Outbox,
    wakers: Vec<Waker>,
    /// Lets the tasks that were woken by the last replies submit their next requests before this batch is written.
    /// On a runtime of one thread they come first anyway.
    yields: bool,
    yielded: bool,
    tick: Pin<Box<Sleep>>,
    heard: bool,
    pinged: bool,
    /// Set when the server said goodbye: it gets no more requests on this connection.
    leaving: bool,
}

impl<'a> Connection<'a> {
    fn new(driving: &'a mut Driving, channel: Channel) -> Self {
        let tick = Box::pin(tokio::time::sleep(driving.link.options.silence_timeout / 2));
        let yields = Handle::current().runtime_flavor() != RuntimeFlavor::CurrentThread;
        Self {
            driving,
            channel,
            inbox: Inbox::default(),
            sending: Outbox::default(),
            wakers: Vec::new(),
            yields,
            yielded: false,
            tick,
            heard: true,
            pinged: false,
            leaving: false,
        }
    }

    /// Runs until the connection breaks, which gives the reason, or is needed no more.
    async fn run(mut self) -> Option<io::Error> {
        poll_fn(|context| match self.poll(context) {
            Err(error) => {
                // Replies that were handed out before the connection broke are as good as any.
                self.wakers.drain(..).for_each(Waker::wake);
                Poll::Ready(Some(error))
            }
            Ok(Poll::Ready(())) => Poll::Ready(None),
            Ok(Poll::Pending) => Poll::Pending,
        })
        .await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> io::Result<Poll<()>> {
        self.watch_silence(context)?;
        if self.yields && !self.yielded {
            self.yielded = true;
            context.waker().wake_by_ref();
            return Ok(Poll::Pending);
        }
        self.yielded = false;
        for _ in 0..ROUNDS_MAX {
            let mut progress = self.flush(context)?;
            progress |= self.read(context)?;
            if !progress {
                let state = self.driving.link.state.lock();
                if self.leaving && state.is_quiet() {
                    return Err(io::Error::other("the server is shutting down"));
                }
                if state.closed && state.is_quiet() {
                    return Ok(Poll::Ready(()));
                }
                return Ok(Poll::Pending);
            }
        }
        context.waker().wake_by_ref();
        Ok(Poll::Pending)
    }

    /// Writes what callers have encoded.
    fn flush(&mut self, context: &mut Context<'_>) -> io::Result<bool> {
        let mut progress = false;
        loop {
            if self.sending.is_empty() && !self.leaving {
                self.sending.release(KEPT_BYTES_MAX);
                let mut state = self.driving.link.state.lock();
                state.listen(context.waker());
                if !state.outbox.is_empty() {
                    state.take_outbox(&mut self.sending, &mut self.wakers);
                    drop(state);
                    self.wakers.drain(..).for_each(Waker::wake);
                }
            }
            let mut taken = 0;
            let written = self.channel.poll_write(context, &mut self.sending, &mut taken);
            if let Some(position) = &mut self.driving.written {
                *position += taken as u64;
            }
            progress |= taken > 0;
            match written {
                Poll::Pending => return Ok(progress),
                Poll::Ready(result) => result?,
            }
            if taken == 0 {
                return Ok(progress);
            }
        }
    }

    /// Reads once, and hands all whole replies to their callers.
    fn read(&mut self, context: &mut Context<'_>) -> io::Result<bool> {
        match self.channel.poll_read(context, &mut self.inbox) {
            Poll::Pending => return Ok(false),
            Poll::Ready(Err(error)) => return Err(error),
            Poll::Ready(Ok(0)) => return Err(io::Error::other("the server closed the connection")),
            Poll::Ready(Ok(_)) => {}
        }
        self.heard = true;
        let mut state = self.driving.link.state.lock();
        while let Some(frame) = self.inbox.next().map_err(io::Error::other)? {
            if frame.id == PING_ID && frame.kind == Kind::Pong {
                continue;
            }
            if frame.kind == Kind::Goodbye {
                self.leaving = true;
                continue;
            }
            if frame.id == 0 && frame.kind == Kind::Error {
                let error = crate::reply::get_failure(&frame).map_err(io::Error::other)?;
                return Err(io::Error::other(error));
            }
            if !state.deliver(frame, &mut self.wakers) {
                return Err(io::Error::other("the server sent a reply that belongs to no request"));
            }
        }
        drop(state);
        if self.leaving {
            self.driving.link.leave(&mut self.wakers);
        }
        self.wakers.drain(..).for_each(Waker::wake);
        self.inbox.settle();
        Ok(true)
    }

    /// Gives the server up if it says nothing for too long although it should.
    fn watch_silence(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        while self.tick.as_mut().poll(context).is_ready() {
            let half = self.driving.link.options.silence_timeout / 2;
            self.tick.as_mut().reset(Instant::now() + half);
            let quiet = self.driving.link.state.lock().is_quiet();
            if std::mem::take(&mut self.heard) || quiet {
                self.pinged = false;
            } else if self.pinged {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the server has stopped answering"));
            } else {
                // It counts as written like a request, so a request may count as written too early, never too late.
                let open = self.sending.begin(Kind::Ping, PING_ID);
                // It has no body.
                let _ = self.sending.end(open);
                self.pinged = true;
            }
        }
        Ok(())
    }
}
