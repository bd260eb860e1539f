//! Sessions: the state that a client has at the server beyond one connection.
//!
//! A session is identified by a random id, and resumed with its token. While it has a connection, the connection owns
//! the state of the services; when the connection breaks, that state waits here for the next one, for a limited time. A
//! connection that the server still believes to be alive, although its client has come back on another, is ended in
//! favour of the new one.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use nacre_object::{ErrorKind, StoreError};
use parking_lot::Mutex;
use rand::TryRngCore;
use tokio::task::AbortHandle;

use crate::control::{SESSION_ID_BYTES, SessionKey};
use crate::server::budget::Budget;
use crate::server::mailbox::Mailbox;
use crate::server::service::Handler;

/// The memory of a session, with the state that services keep for it, in bytes. Its subscriptions and what waits in its
/// mailbox are counted by themselves.
const SESSION_BYTES: usize = 2 << 10;

/// The state that the services keep for a session.
pub(crate) struct SessionState {
    pub(crate) handlers: Vec<Box<dyn Handler>>,
    pub(crate) mailbox: Arc<Mailbox>,
}

/// The sessions of a server that outlive their connections.
pub(crate) struct Sessions {
    max: usize,
    budget: Arc<Budget>,
    table: Mutex<HashMap<[u8; SESSION_ID_BYTES], Arc<Session>>>,
}

/// One session.
pub(crate) struct Session {
    key: SessionKey,
    budget: Arc<Budget>,
    state: Mutex<State>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.budget.give_back(SESSION_BYTES);
    }
}

#[derive(Default)]
struct State {
    /// The state of the services, while there is no connection.
    kept: Option<SessionState>,
    /// The number of the connection, which grows with each one, so that an old one cannot be taken for the present one.
    connection: u64,
    /// True if the present connection is to make room for another one.
    wanted: bool,
    /// The waker of the present connection, for when it is to make room; `next` is that of the connection that waits
    /// for it.
    owner: Option<Waker>,
    next: Option<Waker>,
    /// The task that ends the session if no connection comes.
    expiry: Option<AbortHandle>,
    ended: bool,
}

impl Sessions {
    pub(crate) fn new(max: usize, budget: Arc<Budget>) -> Sessions {
        Sessions { max, budget, table: Mutex::default() }
    }

    /// Returns the number of sessions.
    pub(crate) fn len(&self) -> usize {
        self.table.lock().len()
    }

    /// Begins a session, owned by the calling connection. Returns `None` if the limit of sessions is reached,
    /// or there is no memory for one more.
    pub(crate) fn begin(&self) -> Result<Option<Arc<Session>>, StoreError> {
        let random = || -> Result<[u8; SESSION_ID_BYTES], StoreError> {
            let mut bytes = [0; SESSION_ID_BYTES];
            rand::rngs::OsRng.try_fill_bytes(&mut bytes).map_err(|error| {
                StoreError::new(ErrorKind::Io, format!("the system gives no random numbers: {error}"))
            })?;
            Ok(bytes)
        };
        let key = SessionKey { id: random()?, token: random()? };
        let mut table = self.table.lock();
        if table.len() >= self.max || !self.budget.keep(SESSION_BYTES) {
            return Ok(None);
        }
        let session = Arc::new(Session { key, budget: self.budget.clone(), state: Mutex::default() });
        table.insert(key.id, session.clone());
        Ok(Some(session))
    }

    /// Returns the session of a key, if it exists and the token is right.
    pub(crate) fn find(&self, key: &SessionKey) -> Option<Arc<Session>> {
        let session = self.table.lock().get(&key.id).cloned()?;
        // The comparison takes the same time wherever the tokens differ.
        let pairs = session.key.token.iter().zip(&key.token);
        let differing = pairs.fold(0, |differing, (one, other)| differing | (one ^ other));
        (differing == 0).then_some(session)
    }

    /// Ends a session that has had no connection since the one numbered `connection`.
    pub(crate) fn expire(&self, session: &Session, connection: u64) {
        let mut state = session.state.lock();
        if state.connection != connection || state.kept.is_none() {
            return;
        }
        self.table.lock().remove(&session.key.id);
        state.ended = true;
        let next = state.next.take();
        let kept = state.kept.take();
        drop(state);
        // The services are told outside of the lock.
        if let Some(kept) = kept {
            kept.mailbox.close();
        }
        if let Some(next) = next {
            next.wake();
        }
    }

    /// Ends a session that still has its connection.
    pub(crate) fn end(&self, session: &Session) {
        self.table.lock().remove(&session.key.id);
        let mut state = session.state.lock();
        state.ended = true;
        let next = state.next.take();
        drop(state);
        if let Some(next) = next {
            next.wake();
        }
    }
}

impl Session {
    pub(crate) fn key(&self) -> SessionKey {
        self.key
    }

    /// Takes the session over for a new connection as soon as the old one has released it. Returns `None` if it has
    /// ended.
    pub(crate) fn poll_resume(&self, context: &mut Context<'_>) -> Poll<Option<SessionState>> {
        let mut state = self.state.lock();
        if state.ended {
            return Poll::Ready(None);
        }
        if let Some(kept) = state.kept.take() {
            state.connection += 1;
            state.wanted = false;
            state.owner = None;
            if let Some(expiry) = state.expiry.take() {
                expiry.abort();
            }
            let other = state.next.take().filter(|next| !next.will_wake(context.waker()));
            drop(state);
            if let Some(other) = other {
                other.wake();
            }
            return Poll::Ready(Some(kept));
        }
        state.wanted = true;
        let waiting_before = state.next.replace(context.waker().clone());
        let owner = state.owner.take();
        drop(state);
        for waker in owner.into_iter().chain(waiting_before) {
            // Of several connections that want it, each checks again.
            if !waker.will_wake(context.waker()) {
                waker.wake();
            }
        }
        Poll::Pending
    }

    /// Returns whether the connection that owns the session is to make room for another one; its task is woken when it
    /// is.
    pub(crate) fn is_wanted(&self, context: &mut Context<'_>) -> bool {
        let mut state = self.state.lock();
        if !state.wanted && !state.owner.as_ref().is_some_and(|owner| owner.will_wake(context.waker())) {
            state.owner = Some(context.waker().clone());
        }
        state.wanted
    }

    /// Notes the task that ends the session which connection number `connection` has left.
    pub(crate) fn expires(&self, connection: u64, expiry: AbortHandle) {
        let mut state = self.state.lock();
        if state.kept.is_some() && state.connection == connection {
            state.expiry = Some(expiry);
        } else {
            expiry.abort();
        }
    }

    /// Stores the state of the services after the connection broke. Returns the connection's number.
    pub(crate) fn detach(&self, kept: SessionState) -> u64 {
        let mut state = self.state.lock();
        state.kept = Some(kept);
        state.owner = None;
        let next = state.next.take();
        let connection = state.connection;
        drop(state);
        if let Some(next) = next {
            next.wake();
        }
        connection
    }
}
