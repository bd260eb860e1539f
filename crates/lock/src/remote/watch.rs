//! A session's binding to a connection of one lock server: made, and made again when the connection broke.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use nacre_object::{ErrorKind, StoreError};
use nacre_rpc::client::{Link, Subscription};
use tokio::sync::Notify;

use super::call::{AttachRequest, failure};
use super::share::{Driver, Shared};
use crate::wire::{self, ServerSlot};

/// The pause after the first failed attempt to reach a server; it doubles with each further failure.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// Binds the session to a connection, and to the next one whenever `broken` is told, until the server refuses it.
pub(super) async fn watch(
    shared: Arc<Shared>,
    link: Arc<Link>,
    server: u32,
    slot: ServerSlot,
    broken: Arc<Notify>,
) {
    let session = shared.state.session.0;
    let connections = Arc::new(AtomicU64::new(0));
    let mut pause = PAUSE_MIN;
    loop {
        let request = AttachRequest { session, connections: connections.clone() };
        let attached = match Subscription::start(link.clone(), request).await {
            Ok((frame, Some(subscription))) => match wire::get_slot(&frame.body) {
                Ok(found) if found == (ServerSlot { server, ..slot }) => Ok(subscription),
                Ok(found) => Err((misplaced(&link, ServerSlot { server, ..slot }, found), true)),
                Err(error) => Err((error.into(), true)),
            },
            Ok((frame, None)) => Err(refused(failure(&link, &frame))),
            Err(error) => Err(refused(error)),
        };
        match attached {
            Ok(subscription) => {
                pause = PAUSE_MIN;
                shared.with(Driver::Background, |core| core.connected(server, subscription));
                shared.kick();
                broken.notified().await;
            }
            Err((error, true)) => {
                shared.with(Driver::Background, |core| core.fail(&error));
                return shared.kick();
            }
            Err((error, false)) => {
                shared.with(Driver::Background, |core| core.unreachable(server, &error));
                shared.kick();
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Returns an error, and whether it is the end of the session: a server that is only away comes back.
fn refused(error: StoreError) -> (StoreError, bool) {
    let away = matches!(
        error.kind,
        ErrorKind::Unavailable | ErrorKind::Unknown | ErrorKind::Closed | ErrorKind::Busy
    );
    (error, !away)
}

fn misplaced(link: &Link, expected: ServerSlot, found: ServerSlot) -> StoreError {
    let show = |slot: ServerSlot| {
        format!(
            "lock server {} of {} with stripes of {} bytes",
            slot.server + 1,
            slot.servers,
            slot.stripe_bytes
        )
    };
    let text = format!("{} is {}, and not {}", link.address(), show(found), show(expected));
    StoreError::new(ErrorKind::Invalid, text)
}
