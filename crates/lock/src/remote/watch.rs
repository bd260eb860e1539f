//! A session's connection to one lock server: kept up, and reported on.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use nacre_object::{ErrorKind, StoreError};
use nacre_rpc::client::{Event as Pushed, Link, Subscription};
use tokio::sync::mpsc;

use super::call::{AttachRequest, failure};
use crate::message::Reply;
use crate::wire::{self, Place};

/// The pause after the first failed attempt to reach a server; it doubles with each further failure.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// News of a connection.
pub(super) enum Event {
    /// The session is bound to a connection.
    Connected(u32),
    /// It is not any more.
    Disconnected(u32),
    /// A reply that comes late.
    Reply(u64, Reply),
    /// The server cannot be reached at present.
    Unreachable(u32, StoreError),
    /// The server refuses the client, or is another one than expected.
    Failed(StoreError),
}

/// Binds the session to a connection, and to the next one when that breaks, until the receiver of the events is gone.
pub(super) async fn watch(
    link: Arc<Link>,
    server: u32,
    session: u64,
    place: Place,
    events: mpsc::UnboundedSender<Event>,
) {
    let connections = Arc::new(AtomicU64::new(0));
    let mut pause = PAUSE_MIN;
    while !events.is_closed() {
        let request = AttachRequest { session, connections: connections.clone() };
        let news = match Subscription::start(link.clone(), request).await {
            Ok((frame, Some(mut subscription))) => match wire::get_place(&frame.body) {
                Ok(found) if found == (Place { server, ..place }) => {
                    pause = PAUSE_MIN;
                    let _ = events.send(Event::Connected(server));
                    follow(&mut subscription, &events).await;
                    Event::Disconnected(server)
                }
                Ok(found) => Event::Failed(misplaced(&link, Place { server, ..place }, found)),
                Err(error) => Event::Failed(error.into()),
            },
            Ok((frame, None)) => refused(server, failure(&link, &frame)),
            Err(error) => refused(server, error),
        };
        let failed = matches!(news, Event::Failed(_));
        let _ = events.send(news);
        if failed {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = events.closed() => {}
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Passes on late replies until the connection is gone, or one of them is.
async fn follow(subscription: &mut Subscription<AttachRequest>, events: &mpsc::UnboundedSender<Event>) {
    loop {
        let event = tokio::select! {
            event = subscription.next() => event,
            () = events.closed() => return,
        };
        let Some(Ok(Pushed::Pushed(payload))) = event else { return };
        let Ok((call, reply)) = wire::get_event(&payload) else { return };
        let _ = events.send(Event::Reply(call, reply));
    }
}

/// Returns what an error means: a server that is only away comes back.
fn refused(server: u32, error: StoreError) -> Event {
    match error.kind {
        ErrorKind::Unavailable | ErrorKind::Unknown | ErrorKind::Closed | ErrorKind::Busy => {
            Event::Unreachable(server, error)
        }
        _ => Event::Failed(error),
    }
}

fn misplaced(link: &Link, expected: Place, found: Place) -> StoreError {
    let show = |place: Place| {
        format!(
            "lock server {} of {} with stripes of {} bytes",
            place.server + 1,
            place.servers,
            place.stripe_bytes
        )
    };
    let text = format!("{} is {}, and not {}", link.address(), show(found), show(expected));
    StoreError::new(ErrorKind::Invalid, text)
}
