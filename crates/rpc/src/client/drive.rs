//! The driver of a connection: connects when there is something to send, writes the encoded requests, delivers the
//! replies to the callers, and reports what was lost when the connection breaks.

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
use crate::client::link::{Link, unreachable_server};
use crate::client::silence::Silence;
use crate::client::{Greeting, nonsense};
use crate::control::{self, Beginning, SessionKey};
use crate::frame::{Frame, MessageKind};
use crate::handshake;
use crate::inbox::Inbox;
use crate::limit::{FEATURE_ERROR_PLACES, READ_BYTES};
use crate::outbox::Outbox;
use crate::poll::{Poller, Tap};
use crate::stream::Stream;

/// The largest outbox, in bytes, that a connection keeps for its next requests.
pub(super) const KEPT_BYTES_MAX: usize = 1 << 20;
/// The number of rounds of reading and writing before other tasks of the runtime get their turn.
const ROUNDS_MAX: usize = 8;

/// The place where the drivers of connections run: the caller's runtime, or a thread of their own.
#[derive(derive_more::Debug)]
#[debug("Host")]
pub struct Host {
    own_thread: bool,
    own: OnceLock<OwnThread>,
}

/// A thread with a runtime of its own. It ends when this value is dropped.
struct OwnThread {
    handle: Handle,
    _stop: oneshot::Sender<()>,
}

impl Host {
    /// Creates a place for drivers; with `own_thread`, it is always a separate thread.
    pub fn new(own_thread: bool) -> Self {
        Self { own_thread, own: OnceLock::new() }
    }

    /// Spawns a task.
    ///
    /// # Errors
    ///
    /// `Unavailable` if no thread can be started for it.
    pub fn spawn(&self, driver: impl Future<Output = ()> + Send + 'static) -> Result<(), StoreError> {
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

/// Fails the calls when the driver is gone, including when its runtime ends while it runs.
struct Driving {
    link: Arc<Link>,
    written: Option<u64>,
}

impl Driving {
    fn lose(&self, error: &StoreError) {
        let (mut wakers, timeout) = (Vec::new(), self.link.options.session_timeout);
        self.link.state.lock().lose(self.written, error, timeout, &mut wakers);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Driving {
    fn drop(&mut self) {
        let error = StoreError::new(ErrorKind::Closed, "the runtime that drove the connection has ended");
        self.link.state.lock().undriven();
        self.link.unseat(&error);
        self.link.greeter.failed(&error);
        self.lose(&error);
    }
}

pub(super) async fn drive(link: Arc<Link>) {
    let mut driving = Driving { link: link.clone(), written: None };
    while poll_fn(|context| wanted(&link, context)).await {
        let resuming = link.state.lock().resuming();
        if let Some(until) = resuming {
            tokio::time::sleep_until(until.into()).await;
        }
        let greeting = match connect(&link).await {
            Ok(greeting) => greeting,
            Err(error) => {
                let error = error.context(format_args!("cannot reach the server at {}", link.address));
                link.state.lock().failed(&error, &link.options);
                link.greeter.failed(&error);
                driving.lose(&error);
                continue;
            }
        };
        let written = {
            let mut state = link.state.lock();
            state.connected();
            state.base
        };
        if let Some(seat) = &link.seat {
            match seat.take_in(&link, greeting, written) {
                Ok(()) => seat.is_free().await,
                Err(error) => driving.lose(&unreachable_server(&link.address, error)),
            }
            continue;
        }
        driving.written = Some(written);
        let error = Connection::new(&mut driving, greeting).run().await;
        if let Some(error) = error {
            driving.lose(&unreachable_server(&link.address, error));
        }
        driving.written = None;
    }
}

/// Connects to the server, and has the greeter check that it is the right one.
async fn connect(link: &Link) -> Result<Greeting, StoreError> {
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
    let channel = tokio::time::timeout(timeout, introduced).await.map_err(late)??;
    let mut greeting = Greeting {
        channel,
        inbox: Inbox::default(),
        early: Vec::new(),
        early_bytes: 0,
        timeout,
        features: 0,
    };
    begin(link, &mut greeting).await?;
    link.greeter.greet(&mut greeting).await?;
    Ok(greeting)
}

/// Begins a session, or resumes the one that the last connection had.
async fn begin(link: &Link, greeting: &mut Greeting) -> Result<(), StoreError> {
    let session = link.state.lock().session.unwrap_or(SessionKey::NONE);
    let features = link.options.features | FEATURE_ERROR_PLACES;
    let beginning = Beginning { features, kept: link.options.keeps_session, session };
    let frame =
        greeting.ask(|outbox, id| control::put_beginning(outbox, MessageKind::BEGIN, id, &beginning)).await?;
    if frame.kind != MessageKind::BEGUN {
        return Err(nonsense("it did not begin a session"));
    }
    let begun = control::get_beginning(&frame.body).map_err(nonsense)?;
    greeting.features = features & begun.features;
    let mut wakers = Vec::new();
    link.state.lock().begun(&begun, &mut wakers);
    wakers.into_iter().for_each(Waker::wake);
    Ok(())
}

/// Polls for the next need of a connection; false once none will be needed any more.
fn wanted(link: &Link, context: &mut Context<'_>) -> Poll<bool> {
    let mut state = link.state.lock();
    if !state.outbox.is_empty() || state.asking || state.resuming().is_some() && !state.closed {
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
    /// Events that came while the connection began.
    early: Vec<Frame>,
    sending: Outbox,
    wakers: Vec<Waker>,
    /// True to let the tasks that were woken by the last replies submit their next requests before this batch is
    /// written. On a single-threaded runtime they run first anyway.
    yields: bool,
    yielded: bool,
    tick: Pin<Box<Sleep>>,
    silence: Silence,
    /// Set when the server said goodbye: no more requests are sent on this connection.
    leaving: bool,
    /// Its part in the polling of the thread, where that polls.
    tap: Option<Tap>,
}

impl<'a> Connection<'a> {
    fn new(driving: &'a mut Driving, greeting: Greeting) -> Self {
        let tick = Box::pin(tokio::time::sleep(driving.link.options.silence_timeout / 2));
        let yields = Handle::current().runtime_flavor() != RuntimeFlavor::CurrentThread;
        Self {
            driving,
            channel: greeting.channel,
            inbox: greeting.inbox,
            early: greeting.early,
            sending: Outbox::default(),
            wakers: Vec::new(),
            yields,
            yielded: false,
            tick,
            silence: Silence::new(),
            leaving: false,
            tap: Poller::tap_here(),
        }
    }

    /// Runs until the connection breaks, which returns the reason, or is no longer needed.
    async fn run(mut self) -> Option<io::Error> {
        if let Err(error) = self.deliver() {
            return Some(error);
        }
        poll_fn(|context| match self.poll(context) {
            Err(error) => {
                // Replies that were delivered before the connection broke are valid.
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
            let sent = self.flush(context)?;
            let came = self.read(context)?;
            if let Some(tap) = &self.tap {
                match came {
                    true => tap.came(),
                    false if sent => tap.sent(),
                    false => {}
                }
            }
            if !sent && !came {
                let state = self.driving.link.state.lock();
                if self.leaving && state.is_quiet() {
                    return Err(io::Error::other("the server is shutting down"));
                }
                if state.closed && state.is_quiet() {
                    return Ok(Poll::Ready(()));
                }
                if let Some(tap) = &mut self.tap {
                    tap.set_awaits(state.awaits());
                }
                return Ok(Poll::Pending);
            }
        }
        context.waker().wake_by_ref();
        Ok(Poll::Pending)
    }

    /// Writes the requests that callers have encoded. Returns whether bytes were written.
    fn flush(&mut self, context: &mut Context<'_>) -> io::Result<bool> {
        let mut progress = false;
        loop {
            if self.sending.is_empty() {
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

    /// Reads once and delivers what arrived. Returns whether bytes were read.
    fn read(&mut self, context: &mut Context<'_>) -> io::Result<bool> {
        match self.channel.poll_read(context, &mut self.inbox, READ_BYTES) {
            Poll::Pending => return Ok(false),
            Poll::Ready(Err(error)) => return Err(error),
            Poll::Ready(Ok(0)) => return Err(io::Error::other("the server closed the connection")),
            Poll::Ready(Ok(_)) => {}
        }
        self.silence.hear();
        self.deliver()?;
        Ok(true)
    }

    /// Delivers all complete replies that were received to their callers.
    fn deliver(&mut self) -> io::Result<()> {
        let mut leaves = false;
        let mut state = self.driving.link.state.lock();
        for frame in self.early.drain(..) {
            // Events do not end a call, so the return value does not matter here.
            state.deliver(frame, &mut self.wakers).map_err(io::Error::other)?;
        }
        while let Some(frame) = self.inbox.next().map_err(io::Error::other)? {
            if Silence::is_pong(&frame) {
                continue;
            }
            if frame.kind == MessageKind::GOODBYE {
                leaves |= !std::mem::replace(&mut self.leaving, true);
                continue;
            }
            if frame.id == 0 && frame.kind == MessageKind::ERROR {
                let error = control::get_failure(&frame).map_err(io::Error::other)?;
                return Err(io::Error::other(error));
            }
            if !state.deliver(frame, &mut self.wakers).map_err(io::Error::other)? {
                return Err(io::Error::other("the server sent a reply that belongs to no request"));
            }
        }
        drop(state);
        if leaves {
            self.driving.link.leave(&mut self.wakers);
        }
        self.wakers.drain(..).for_each(Waker::wake);
        self.inbox.settle();
        Ok(())
    }

    /// Fails the connection if the server stays silent for too long while it owes replies.
    fn watch_silence(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        while self.tick.as_mut().poll(context).is_ready() {
            let half = self.driving.link.options.silence_timeout / 2;
            self.tick.as_mut().reset(Instant::now() + half);
            let quiet = self.driving.link.state.lock().is_quiet();
            self.silence.look(quiet, &mut self.sending)?;
        }
        Ok(())
    }
}
