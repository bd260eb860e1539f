//! The client of lock servers: a session, and locks in it.
//!
//! A [`Session`] has a thread of its own, on which its connections are driven and its leases renewed, whatever the
//! program's own threads do. It ends when the last handle on it is dropped; a [`Lock`] is one.

mod begin;
mod call;
mod drive;
mod limit;
mod share;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use drive::Order;
pub use drive::{ANSWER_MAX, LATE_MAX};
pub use limit::within;
use nacre_object::{ErrorKind, StoreError};
use nacre_rpc::Address;
use nacre_rpc::client::LinkOptions;
use share::{Driver, Shared};
use tokio::sync::oneshot;

use crate::client::{Method, Protocol};
use crate::message::{FileName, Refusal, SessionId};
use crate::table::Mode;
use crate::wire::{described, file_name};
use crate::{Description, Pattern, PatternError, clock};

/// The bytes to be locked, and the way in which they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The bytes.
    pub description: Description,
    /// The mode.
    pub mode: Mode,
    /// The description of the bytes to the servers.
    pub method: Method,
    /// The protocol.
    pub protocol: Protocol,
    /// The time for which bytes that others hold are waited for; none to wait for as long as it takes, zero not to wait.
    pub wait: Option<Duration>,
}

impl Request {
    /// Creates a request that waits for as long as it takes, by the default method and protocol.
    pub fn new(description: impl Into<Description>, mode: Mode) -> Request {
        let (method, protocol) = (Method::default(), Protocol::default());
        Request { description: description.into(), mode, method, protocol, wait: None }
    }

    /// Sets the longest time to wait; zero not to wait at all.
    pub fn wait(self, wait: Duration) -> Request {
        Request { wait: Some(wait), ..self }
    }

    /// Does not wait for bytes that others hold.
    pub fn without_wait(self) -> Request {
        self.wait(Duration::ZERO)
    }

    /// Chooses the description of the bytes to the servers.
    pub fn method(self, method: Method) -> Request {
        Request { method, ..self }
    }

    /// Chooses the protocol.
    pub fn protocol(self, protocol: Protocol) -> Request {
        Request { protocol, ..self }
    }
}

/// The reason why bytes are not locked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Others hold some of the bytes, and the request does not wait.
    #[error("others hold some of the bytes")]
    WouldWait,
    /// Others held some of the bytes for as long as the request waits.
    #[error("others held some of the bytes all the time")]
    TimedOut,
    /// A lock server did not answer in time.
    #[error("a lock server did not answer in time")]
    Unanswered,
    /// The description has no normal form.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// A lock server refused.
    #[error("a lock server refused: {0}")]
    Refused(Refusal),
    /// The lock was released.
    #[error("the lock of session {session} was released")]
    Released {
        /// The session.
        session: u64,
    },
    /// The session is lost, and with it all its locks.
    #[error("lock session {session} is lost, and its locks with it: {why}")]
    Lost {
        /// The session.
        session: u64,
        /// The reason.
        why: String,
    },
    /// The lock servers cannot be reached, or what they say makes no sense.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<LockError> for StoreError {
    fn from(error: LockError) -> StoreError {
        let kind = match &error {
            LockError::Store(error) => return error.clone(),
            LockError::WouldWait | LockError::TimedOut => ErrorKind::Busy,
            LockError::Unanswered => ErrorKind::Unavailable,
            LockError::Refused(Refusal::Full(_)) => ErrorKind::OutOfSpace,
            LockError::Pattern(_) | LockError::Refused(_) => ErrorKind::Invalid,
            LockError::Lost { .. } | LockError::Released { .. } => ErrorKind::Closed,
        };
        StoreError::new(kind, error.to_string())
    }
}

/// The state of a session that its handles and its thread share.
struct State {
    session: SessionId,
    /// The reason why the session is lost, once it is.
    lost: std::sync::OnceLock<String>,
    /// The time at which the first lease ends, in nanoseconds of the clock of leases.
    ends_ns: AtomicU64,
    /// True once the session ends.
    ended: AtomicBool,
    /// Tells when the session is lost.
    changed: tokio::sync::Notify,
}

impl State {
    fn lose(&self, why: impl Into<String>) {
        // The first reason stays.
        let _ = self.lost.set(why.into());
        self.changed.notify_waiters();
    }

    /// Notes that the session ends: nothing can be relied on from now on.
    fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    fn check(&self) -> Result<(), LockError> {
        let lost = |why: &str| LockError::Lost { session: self.session.0, why: why.to_owned() };
        if let Some(why) = self.lost.get() {
            return Err(lost(why));
        }
        if clock::now().as_nanos() as u64 >= self.ends_ns.load(Ordering::Acquire) {
            return Err(lost("its lease is over, and could not be renewed in time"));
        }
        if self.ended.load(Ordering::Acquire) {
            return Err(lost("it has ended"));
        }
        Ok(())
    }

    fn lease_left(&self) -> Duration {
        if self.check().is_err() {
            return Duration::ZERO;
        }
        Duration::from_nanos(self.ends_ns.load(Ordering::Acquire)).saturating_sub(clock::now())
    }
}

/// A client's session at all lock servers. Cheap to clone; it ends when the last clone and the last [`Lock`] are dropped.
#[derive(Clone, derive_more::Debug)]
#[debug("Session")]
pub struct Session {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    tickets: AtomicU64,
    /// Resolves when the thread has ended the session.
    ended: tokio::sync::watch::Receiver<bool>,
}

impl Session {
    /// Begins a session at lock servers, given in the order of their numbers.
    ///
    /// # Errors
    /// `Unavailable` if the first server cannot be reached, `Unsupported` if it is no lock server, `Invalid` if there is
    /// another number of servers; `Io` if no thread can be started.
    pub async fn begin(servers: Vec<Address>, options: LinkOptions) -> Result<Session, StoreError> {
        let failed = |error: std::io::Error| {
            StoreError::new(ErrorKind::Io, format!("cannot start a thread for locks: {error}"))
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (ready, begun) = oneshot::channel();
        std::thread::Builder::new()
            .name("nacre-locks".to_owned())
            .spawn(move || runtime.block_on(begin::run(servers, options, ready)))
            .map_err(failed)?;
        let gone = |_| StoreError::new(ErrorKind::Closed, "the thread for locks ended in a panic");
        begun.await.map_err(gone)?
    }

    /// Returns the session's number, by which the store's fences know it.
    pub fn number(&self) -> u64 {
        self.inner.shared.state.session.0
    }

    /// Checks that the session's leases hold.
    ///
    /// # Errors
    /// [`LockError::Lost`].
    pub fn check(&self) -> Result<(), LockError> {
        self.inner.shared.state.check()
    }

    /// Locks bytes of a file. If the returned future is dropped, the wait ends and nothing stays locked.
    ///
    /// # Errors
    /// Those of [`LockError`].
    pub async fn lock(&self, file: &[u8], request: &Request) -> Result<Lock, LockError> {
        let invalid = |why: &str| StoreError::new(ErrorKind::Invalid, why);
        let file: FileName = file_name(file).map_err(invalid)?;
        let pattern = Pattern::new(&request.description)?;
        // What is told piece by piece is not told as a whole.
        let description = match request.method {
            Method::Datatype => described(&pattern, Some(&request.description.encode().into()))?,
            Method::Posix | Method::List => Bytes::new(),
        };
        self.check()?;
        // A time that no clock can show is as long as it takes.
        let deadline = request.wait.map(|wait| if wait.is_zero() { drive::ANSWER_MAX } else { wait });
        let deadline = deadline.and_then(|wait| Instant::now().checked_add(wait));
        let (reply, answer) = oneshot::channel();
        let number = self.inner.tickets.fetch_add(1, Ordering::Relaxed) + 1;
        // Dropped unless the lock is held: then it ends the wait, or releases what was granted meanwhile.
        let ticket = Ticket { inner: self.inner.clone(), number, over: Arc::default() };
        let Request { mode, method, protocol, wait, .. } = *request;
        let order = Order {
            ticket: number,
            file,
            pattern,
            description,
            mode,
            method,
            protocol,
            wait,
            deadline,
            reply,
        };
        self.inner.shared.with(Driver::Caller, |core| core.lock(order));
        match answer.await {
            Ok(Ok(())) => Ok(Lock { ticket }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(self.check().err().unwrap_or(LockError::Lost {
                session: self.number(),
                why: "its thread has ended".to_owned(),
            })),
        }
    }

    /// Ends the session: all its locks are released. Waits until the servers that can be reached know it. Nothing that
    /// was written under a lock may still be under way.
    pub async fn end(&self) {
        self.inner.end();
        let mut ended = self.inner.ended.clone();
        // Its sender is gone only when the session has ended.
        let _ = ended.wait_for(|ended| *ended).await;
    }
}

impl Inner {
    fn end(&self) {
        self.shared.with(Driver::Caller, |core| core.end());
        self.shared.kick();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.end();
    }
}

/// An operation of a session, which is released when this value is dropped.
struct Ticket {
    inner: Arc<Inner>,
    number: u64,
    /// True once it is being released.
    over: Arc<AtomicBool>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        // A session that has ended holds nothing.
        self.inner.shared.with(Driver::Caller, |core| core.release_ticket(self.number, None));
    }
}

/// Locked bytes of a file, until it is released or dropped.
///
/// It can be lost before: when the lease of its session could not be renewed in time, or an administrator broke the
/// session. What is sent to the store under its [token](Lock::token) is then refused by the store before anybody else is
/// granted the bytes.
#[must_use]
#[derive(derive_more::Debug)]
#[debug("Lock")]
pub struct Lock {
    ticket: Ticket,
}

impl Lock {
    /// Returns the fencing token: the number of the session, by which changes are to be guarded.
    pub fn token(&self) -> u64 {
        self.ticket.inner.shared.state.session.0
    }

    /// Checks that the lock is held.
    ///
    /// # Errors
    /// [`LockError::Lost`].
    pub fn check(&self) -> Result<(), LockError> {
        self.ticket.inner.shared.state.check()
    }

    /// Returns the time for which the lock is still held if its lease is not renewed again: zero if the lock is lost.
    pub fn lease_left(&self) -> Duration {
        self.ticket.inner.shared.state.lease_left()
    }

    /// Returns a check that may outlive the lock, for whoever acts under it.
    pub fn checker(&self) -> Checker {
        Checker { state: self.ticket.inner.shared.state.clone(), over: self.ticket.over.clone() }
    }

    /// Returns the session.
    pub fn session(&self) -> Session {
        Session { inner: self.ticket.inner.clone() }
    }

    /// Releases the lock, and waits until the servers know it. Nothing that was written under it may still be under way.
    ///
    /// # Errors
    /// [`LockError::Lost`] if the lock was lost before.
    pub async fn release(self) -> Result<(), LockError> {
        self.check()?;
        let (released, done) = oneshot::channel();
        let number = self.ticket.number;
        self.ticket.over.store(true, Ordering::Release);
        let shared = &self.ticket.inner.shared;
        shared.with(Driver::Caller, |core| core.release_ticket(number, Some(released)));
        // If the session ends meanwhile nothing is held any more.
        let _ = done.await;
        self.check()
    }
}

/// A check that a lock is held.
#[derive(Clone, derive_more::Debug)]
#[debug("Checker")]
pub struct Checker {
    state: Arc<State>,
    /// True once the lock is being released.
    over: Arc<AtomicBool>,
}

impl Checker {
    /// Checks that it is.
    ///
    /// # Errors
    /// [`LockError::Lost`], [`LockError::Released`].
    pub fn check(&self) -> Result<(), LockError> {
        match self.over.load(Ordering::Acquire) {
            true => Err(LockError::Released { session: self.state.session.0 }),
            false => self.state.check(),
        }
    }

    /// Waits until the session is lost. Returns the error.
    pub async fn lost(&self) -> LockError {
        loop {
            let changed = self.state.changed.notified();
            if let Err(error) = self.check() {
                return error;
            }
            changed.await;
        }
    }
}
