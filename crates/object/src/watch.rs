//! Watching objects, and notifying those who watch one.
//!
//! A [`Watch`] is an ordered stream of [`Event`]s of one object, from the version on that the object had when the watch
//! began. It is complete or says where it is not: whatever the watcher was not told one by one (because it was slow, the
//! connection broke, or the server was started again) is a [`Gap`] in its place in the order, with the version that
//! the object had reached.
//!
//! A change is announced once it is as durable as its writer's own reply says: never before. Events of one object come
//! to all of its watchers in the order in which the store applied them, and a notification after the changes whose
//! replies its sender had seen.
//!
//! Each watcher has a queue of its own, which is bounded in events and bytes. When it is full, further events become
//! one gap at its end: the latest version stays, notifications are counted. So a slow watcher costs the others nothing.

mod hub;
mod queue;

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

pub use self::hub::Hub;
pub use self::queue::{Allowance, Feed};
use self::queue::{Hold, Shared};
use crate::limit::{ACKNOWLEDGEMENT_BYTES_MAX, NOTIFICATION_BYTES_MAX, NOTIFY_TIMEOUT_MAX};
use crate::{ErrorKind, StoreError};

/// The settings of a watch.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    /// The watcher's id in the outcomes of notifications. `None` for a random one.
    pub id: Option<u64>,
    /// The number of events that may wait to be taken, at least 1.
    pub events_max: usize,
    /// The bytes of notifications that may wait to be taken. One may wait in any case.
    pub bytes_max: usize,
    /// A further bound on the bytes of waiting notifications, which several watches share.
    pub allowance: Option<Arc<Allowance>>,
}

impl Default for WatchOptions {
    fn default() -> Self {
        Self { id: None, events_max: 256, bytes_max: 1 << 20, allowance: None }
    }
}

/// An event of a watched object.
#[derive(Debug)]
pub enum Event {
    /// The object was changed.
    Changed {
        /// The version that the object has since.
        version: u64,
    },
    /// A notification was sent to the object's watchers.
    Notified(Notification),
    /// Events are missing here.
    Gap(Gap),
}

/// Events that a watcher was not told one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The version that the object had after what is missing. It is lower than one told before only if the store
    /// itself lost changes that were not durable.
    pub version: u64,
    /// The number of changes that are missing; `None` if it is not known, and there may be none.
    pub changes: Option<u64>,
    /// The number of notifications that are missing; `None` if it is not known, and there may be none.
    pub notifications: Option<u64>,
    /// The reason.
    pub cause: Cause,
}

impl Gap {
    /// Creates a gap of which is known only what the object's version is now.
    pub fn unknown(version: u64, cause: Cause) -> Gap {
        Gap { version, changes: None, notifications: None, cause }
    }

    /// Extends the gap by one that follows it immediately.
    fn extend(&mut self, next: Gap) {
        let sum = |one: Option<u64>, other: Option<u64>| Some(one?.saturating_add(other?));
        self.version = next.version;
        self.changes = sum(self.changes, next.changes);
        self.notifications = sum(self.notifications, next.notifications);
        if next.cause != Cause::Slow {
            self.cause = next.cause;
        }
    }
}

/// The reason for a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// More events came than the watcher took in time.
    Slow,
    /// The connection to the store broke, or the server was started again; the watch goes on over another connection.
    Broken,
    /// Changes were not announced: their writers ended before they could, or do not announce changes.
    Unannounced,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Slow => "slow",
            Self::Broken => "broken",
            Self::Unannounced => "unannounced",
        })
    }
}

/// The receiver of acknowledgements.
pub trait Acknowledge: Send + Sync {
    /// Notes that watcher number `watcher` of the receiver has acknowledged a notification. Never blocks.
    fn acknowledge(&self, notification: u64, watcher: u64, reply: Bytes);
}

/// A notification, as a watcher receives it. If it is not acknowledged, its sender waits until its time is over, and is
/// then told that the watcher did not acknowledge it.
pub struct Notification {
    id: u64,
    payload: Bytes,
    watcher: u64,
    receiver: Arc<dyn Acknowledge>,
}

impl Notification {
    /// Creates a notification for watcher number `watcher` of a receiver of acknowledgements.
    pub fn new(id: u64, payload: Bytes, watcher: u64, receiver: Arc<dyn Acknowledge>) -> Notification {
        Notification { id, payload, watcher, receiver }
    }

    /// Returns the notification's id, which is the same for all watchers.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the payload.
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// Takes the payload out.
    pub fn take_payload(&mut self) -> Bytes {
        std::mem::take(&mut self.payload)
    }

    /// Acknowledges the notification. The sender receives the reply, unless its time is over.
    ///
    /// # Errors
    ///
    /// `Invalid` if the reply is longer than [`ACKNOWLEDGEMENT_BYTES_MAX`].
    pub fn acknowledge(self, reply: impl Into<Bytes>) -> Result<(), StoreError> {
        let reply = reply.into();
        check_reply(&reply)?;
        self.receiver.acknowledge(self.id, self.watcher, reply);
        Ok(())
    }
}

impl fmt::Debug for Notification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notification").field("id", &self.id).field("payload", &self.payload).finish()
    }
}

/// Checks the length of a reply to a notification.
///
/// # Errors
///
/// `Invalid` if it is longer than [`ACKNOWLEDGEMENT_BYTES_MAX`].
pub fn check_reply(reply: &[u8]) -> Result<(), StoreError> {
    if reply.len() <= ACKNOWLEDGEMENT_BYTES_MAX {
        return Ok(());
    }
    let text = format!(
        "the reply to a notification is {} bytes long; it may have {ACKNOWLEDGEMENT_BYTES_MAX}",
        reply.len()
    );
    Err(StoreError::new(ErrorKind::Invalid, text))
}

/// Checks a notification that is to be sent.
///
/// # Errors
///
/// `Invalid` if the payload is longer than [`NOTIFICATION_BYTES_MAX`], or the time longer than [`NOTIFY_TIMEOUT_MAX`].
pub fn check_notification(payload: &[u8], timeout: std::time::Duration) -> Result<(), StoreError> {
    let text = if payload.len() > NOTIFICATION_BYTES_MAX {
        format!("a notification of {} bytes; it may have {NOTIFICATION_BYTES_MAX}", payload.len())
    } else if timeout > NOTIFY_TIMEOUT_MAX {
        let (wanted, most) = (timeout.as_secs(), NOTIFY_TIMEOUT_MAX.as_secs());
        format!("a notification that waits {wanted} s for its acknowledgements; it may wait {most} s")
    } else {
        return Ok(());
    };
    Err(StoreError::new(ErrorKind::Invalid, text))
}

/// The outcome of a notification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notified {
    /// The notification's id.
    pub id: u64,
    /// The watchers that acknowledged it, in the order in which they did.
    pub acknowledged: Vec<Acknowledged>,
    /// The ids of the watchers that did not: their time was over, they were too slow to receive it, or they ended.
    pub missed: Vec<u64>,
    /// The number of replies that were left out, because all together they would be longer than
    /// [`ACKNOWLEDGEMENTS_BYTES_MAX`](crate::limit::ACKNOWLEDGEMENTS_BYTES_MAX).
    pub replies_omitted: u64,
}

/// The acknowledgement of a notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// The watcher's id.
    pub watcher: u64,
    /// Its reply; empty if it was left out.
    pub reply: Bytes,
}

/// A watch of an object: its events, in order. The watch ends when this value is dropped.
pub struct Watch {
    shared: Arc<Shared>,
    id: u64,
    version: u64,
    /// Ends the watch at its source when it is dropped.
    _hold: Hold,
}

impl Watch {
    /// Creates a watch of an object that has `version`, and the handle by which its events come in. `hold` is dropped
    /// with the watch.
    #[doc(hidden)]
    pub fn new(
        id: u64,
        version: u64,
        options: &WatchOptions,
        hold: impl Send + Sync + 'static,
    ) -> (Feed, Watch) {
        let shared = Shared::new(version, options);
        let feed = Feed { shared: shared.clone() };
        (feed, Watch { shared, id, version, _hold: Hold::new(hold) })
    }

    /// Returns the watcher's id in the outcomes of notifications.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the version that the object had when the watch began; 0 if it never existed. The first event follows it.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the next event; `None` once the watch has ended.
    ///
    /// # Errors
    ///
    /// The reason why the watch has ended; `None` follows it. A broken connection is none: the watch goes on with a gap.
    pub async fn next(&mut self) -> Option<Result<Event, StoreError>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Polls for the next event as [`Watch::next`] does.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Event, StoreError>>> {
        self.shared.poll_next(Some(context.waker()))
    }

    /// Returns the next event as [`Watch::next`] does, if it is there; nobody is woken if it is not.
    pub fn try_next(&mut self) -> Poll<Option<Result<Event, StoreError>>> {
        self.shared.poll_next(None)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("id", &self.id).field("version", &self.version).finish_non_exhaustive()
    }
}

/// Returns the error of a store that cannot watch objects.
pub fn unsupported() -> StoreError {
    StoreError::new(ErrorKind::Unsupported, "watch and notify are not supported by this store yet")
}
