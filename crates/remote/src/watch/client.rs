//! The client side of the service.
//!
//! A task takes the events of each watch from its connection as soon as they come, and puts them into the watch's own
//! queue; so a slow watcher occupies nothing of the connection. When the connection breaks, the task
//! watches again over the next one, and the watcher gets a gap.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::channel::oneshot;
use futures::future::select;
use nacre_object::watch::{
    Acknowledge, Cause, Feed, Gap, Notification, Notified, Watch, WatchOptions, check_notification,
};
use nacre_object::{ErrorKind, ObjectId, StoreError};
use nacre_rpc::client::{Call, Event, Link, Subscription};
use nacre_rpc::{Frame, MessageKind, Outbox, control};

use super::wire::{self, Acknowledging, Began, Notifying, Report, Taken, WATCH_SERVICE, Watching};
use crate::apply::passing;

/// The number of watches of one client for each of its connections: they leave room for other requests.
const WATCHES_MAX: usize = 8192;
/// The bytes of events after which the client reports them to the server as taken.
const REPORT_BYTES: u64 = 32 << 10;
/// The shortest and the longest pause between attempts to watch again.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(2);

impl nacre_rpc::client::Request for Watching {
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
        wire::put_watch(outbox, id, self)
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn cancels(&self) -> Option<u8> {
        Some(WATCH_SERVICE)
    }
}

impl nacre_rpc::client::Request for Notifying {
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
        wire::put_notify(outbox, id, self)
    }

    /// A notification that was sent twice might be acknowledged twice.
    fn is_read_only(&self) -> bool {
        false
    }

    fn cancels(&self) -> Option<u8> {
        Some(WATCH_SERVICE)
    }
}

impl nacre_rpc::client::Request for Acknowledging {
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
        wire::put_acknowledge(outbox, id, self)
    }

    /// Over another connection it would mean nothing.
    fn is_read_only(&self) -> bool {
        false
    }
}

impl nacre_rpc::client::Request for Taken {
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
        wire::put_taken(outbox, id, self)
    }

    fn is_read_only(&self) -> bool {
        false
    }
}

/// Sends a request whose reply interests nobody.
fn post(link: &Arc<Link>, request: impl nacre_rpc::client::Request + Send + 'static) {
    let mut call = Call::start(link.clone(), request);
    // Without a thread to send it, it is lost with its connection.
    let _ = link.host().spawn(async move {
        let _ = poll_fn(|context| call.poll_frame(context.waker())).await;
    });
}

/// Sends acknowledgements to a server.
struct Acknowledger(Arc<Link>);

impl Acknowledge for Acknowledger {
    fn acknowledge(&self, notification: u64, watcher: u64, reply: Bytes) {
        post(&self.0, Acknowledging { watcher, notification, reply });
    }
}

/// Returns the error that a reply is.
fn failure(link: &Link, frame: &Frame) -> StoreError {
    let address = link.address();
    match control::get_failure(frame) {
        Ok(error) if error.kind == ErrorKind::Unsupported => {
            let text =
                format!("the server at {address} does not allow objects to be watched: {}", error.message);
            StoreError::new(ErrorKind::Unsupported, text)
        }
        Ok(error) => error,
        Err(error) => nonsense(link, error),
    }
}

fn nonsense(link: &Link, error: impl std::fmt::Display) -> StoreError {
    let text = format!("the server at {} sent an invalid message: {error}", link.address());
    StoreError::new(ErrorKind::Unavailable, text)
}

/// A subscription that has begun.
struct Begun {
    events: Subscription<Watching>,
    began: Began,
}

async fn subscribe(link: &Arc<Link>, watching: Watching) -> Result<Begun, StoreError> {
    let (frame, events) = Subscription::start(link.clone(), watching).await?;
    let Some(events) = events else { return Err(failure(link, &frame)) };
    if frame.kind != wire::WATCHED {
        return Err(nonsense(link, "a message that is not a reply to a request to watch"));
    }
    let began = wire::get_began(&frame.body).map_err(|error| nonsense(link, error))?;
    Ok(Begun { events, began })
}

/// One of the watches of a client.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Begins a watch of an object at the server behind a link. `watches` counts those of the client, which has
/// `connections` to each server.
pub(crate) async fn watch(
    link: Arc<Link>,
    object: ObjectId,
    options: WatchOptions,
    watches: Arc<AtomicUsize>,
    connections: usize,
) -> Result<Watch, StoreError> {
    let (before, limit) = (watches.fetch_add(1, Ordering::Relaxed), WATCHES_MAX * connections);
    let counted = Counted(watches);
    if before >= limit {
        let text = format!("{limit} watches, as many as one client may have; open the store once more");
        return Err(StoreError::new(ErrorKind::Busy, text));
    }
    let watching = Watching { watcher: options.id.unwrap_or_else(rand::random), object };
    let begun = subscribe(&link, watching.clone()).await.map_err(passing)?;
    let (dropped, gone) = oneshot::channel::<()>();
    let (feed, watch) = Watch::new(watching.watcher, begun.began.version, &options, dropped);
    let follower = Follower { link: link.clone(), watching, feed, _counted: counted };
    link.host().spawn(async move {
        // The sender is never used, only dropped: with the watch.
        select(gone, Box::pin(follower.run(begun))).await;
    })?;
    Ok(watch)
}

/// The task that takes a watch's events from its connection.
struct Follower {
    link: Arc<Link>,
    watching: Watching,
    feed: Feed,
    _counted: Counted,
}

impl Follower {
    async fn run(self, mut begun: Begun) {
        loop {
            let cause = match self.follow(begun).await {
                Ok(cause) => cause,
                Err(error) => return self.feed.end(Some(error)),
            };
            begun = match self.again(cause).await {
                Ok(begun) => begun,
                Err(error) => return self.feed.end(Some(error)),
            };
            self.feed.gap(Gap::unknown(begun.began.version, cause));
        }
    }

    /// Takes events until some are lost, and returns why.
    async fn follow(&self, begun: Begun) -> Result<Cause, StoreError> {
        let Begun { mut events, began } = begun;
        let receiver: Arc<dyn Acknowledge> = Arc::new(Acknowledger(self.link.clone()));
        // A report of any watch of the connection is one for all of them. What was sent before this watch began may not
        // have been reported, so its first report does not wait for as much of its own.
        let mut reported = 0;
        loop {
            let body = match events.next().await {
                Some(Ok(Event::Pushed(body))) => body,
                Some(Ok(Event::Missed(_))) => return Ok(Cause::Slow),
                Some(Err(error)) if !is_passing(&error) => return Err(error),
                Some(Err(_)) | None => return Ok(Cause::Broken),
            };
            let (report, position) = wire::get_event(&body).map_err(|error| nonsense(&self.link, error))?;
            match report {
                Report::Changed { version } => self.feed.changed(version),
                Report::Gap(gap) => self.feed.gap(gap),
                Report::Notified { id, payload } => {
                    let watcher = self.watching.watcher;
                    self.feed.notified(Notification::new(id, payload, watcher, receiver.clone()));
                }
            }
            if position.saturating_sub(reported) >= REPORT_BYTES {
                reported = position;
                post(&self.link, Taken { line: began.line, position });
            }
        }
    }

    /// Watches again, as soon as the server can be reached.
    async fn again(&self, cause: Cause) -> Result<Begun, StoreError> {
        let mut pause = PAUSE_MIN;
        if cause == Cause::Slow {
            // The connection is there.
            pause = Duration::ZERO;
        }
        loop {
            // Clients that lost the same server must not all come back at the same moment.
            tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
            match subscribe(&self.link, self.watching.clone()).await {
                Err(error) if is_passing(&error) => pause = (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX),
                result => return result,
            }
        }
    }
}

/// Returns whether a watch that has failed may be begun again.
fn is_passing(error: &StoreError) -> bool {
    matches!(
        error.kind,
        ErrorKind::Unavailable | ErrorKind::Closed | ErrorKind::Busy | ErrorKind::Unknown | ErrorKind::Io
    )
}

/// Sends a notification to the watchers of an object, at the server behind a link.
pub(crate) async fn notify(
    link: Arc<Link>,
    object: ObjectId,
    payload: Bytes,
    timeout: Duration,
) -> Result<Notified, StoreError> {
    check_notification(&payload, timeout)?;
    let mut call = Call::start(link.clone(), Notifying { object, timeout, payload });
    let frame = poll_fn(|context| call.poll_frame(context.waker())).await?;
    match frame.kind {
        wire::NOTIFIED => wire::get_notified(&frame.body).map_err(|error| call.nonsense(error)),
        MessageKind::ERROR => Err(failure(&link, &frame)),
        _ => Err(nonsense(&link, "a message that is not a reply to a notification")),
    }
}
