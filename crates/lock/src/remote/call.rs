//! Requests to a lock server.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use nacre_object::{ErrorKind, StoreError};
use nacre_rpc::client::{Call as Submitted, Link, Request};
use nacre_rpc::{Frame, MessageKind, Outbox, WireError, control};

use crate::message::{Call, Reply};
use crate::wire::{self, Attach, ServerSlot};

/// Encodes a call, to be sent with the next flush. Returns false if there is no room for it at present.
///
/// # Errors
/// `Unavailable` if there is no connection; the call is too long.
pub(super) fn post(link: &Link, number: u64, call: &Call, description: &Bytes) -> Result<bool, StoreError> {
    link.post(number, |outbox, id| {
        wire::put_call(outbox, id, number, call, description)
            .map_err(|body_bytes| WireError::TooLong { body_bytes }.into())
    })
}

/// Returns the reply to a call, or nothing if that follows as an event.
///
/// # Errors
/// The server's.
pub(super) fn answer(link: &Link, frame: &Frame) -> Result<Option<Reply>, StoreError> {
    let nonsense = |error: WireError| {
        let text = format!("the lock server at {} sent an invalid reply: {error}", link.address());
        StoreError::new(ErrorKind::Invalid, text)
    };
    match frame.kind {
        wire::WAITING => Ok(None),
        MessageKind::ERROR => Err(control::get_failure(frame).unwrap_or_else(nonsense)),
        kind => wire::get_reply(kind, &frame.body).map(Some).map_err(nonsense),
    }
}

/// Binds the session to the connection over which it is sent.
pub(super) struct AttachRequest {
    pub session: u64,
    /// The number of connections so far.
    pub connections: Arc<AtomicU64>,
}

impl Request for AttachRequest {
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
        // Sent again, it is sent over another connection.
        let connection = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
        wire::put_attach(outbox, id, &Attach { session: self.session, connection });
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn cancels(&self) -> Option<u8> {
        Some(wire::LOCK)
    }
}

/// A request for the number of a session.
struct NumberRequest;

impl Request for NumberRequest {
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
        control::put_bare(outbox, wire::NUMBER, id);
        Ok(())
    }

    /// A number that is not used does no harm.
    fn is_read_only(&self) -> bool {
        true
    }
}

/// Asks the first lock server for the number of a session.
pub(super) async fn number(link: Arc<Link>) -> Result<(u64, ServerSlot), StoreError> {
    let mut call = Submitted::start(link.clone(), NumberRequest);
    let frame = poll_fn(|context| call.poll_frame(context.waker())).await?;
    match frame.kind {
        wire::NUMBERED => wire::get_numbered(&frame.body).map_err(|error| call.nonsense(error)),
        _ => Err(failure(&link, &frame)),
    }
}

/// Returns the error in a frame that is none of the expected replies.
pub(super) fn failure(link: &Link, frame: &Frame) -> StoreError {
    match control::get_failure(frame) {
        Ok(error) if error.kind == ErrorKind::Unsupported => {
            let text =
                format!("the server at {} keeps no locks: it runs without the role lock", link.address());
            StoreError::new(ErrorKind::Unsupported, text)
        }
        Ok(error) => error,
        Err(error) => {
            let text = format!("the server at {} sent an invalid reply: {error}", link.address());
            StoreError::new(ErrorKind::Unavailable, text)
        }
    }
}
