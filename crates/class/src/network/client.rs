//! The client side: a call that is sent to the server that keeps the object.

use std::future::poll_fn;
use std::sync::Arc;

use nacre_object::{ErrorKind, StoreError};
use nacre_rpc::client::{Call, Link};
use nacre_rpc::{MessageKind, Outbox, control};

use super::wire::{self, CLASS, Received, Reply};
use crate::error::CallError;
use crate::runtime::{Called, Request};

/// The number of times that a call is sent whose output was longer than expected.
const SENT_MAX: u32 = 8;

/// A call as it is sent, once: the server would not recognise a repetition.
struct Sent(Received);

impl nacre_rpc::client::Request for Sent {
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
        wire::put_call(outbox, id, &self.0.request())
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn cancels(&self) -> Option<u8> {
        Some(CLASS)
    }
}

/// Calls a method at the server behind a link, which must be the one that keeps the object. Bounds of the request that are
/// higher than the class's own have no effect there.
///
/// # Errors
///
/// As [`Runtime::call`](crate::Runtime::call); [`CallError::Store`] of the kind `Unknown` if the connection broke while the
/// call may have taken effect, and of the kind `Unsupported` if the server runs no classes.
pub async fn call(link: Arc<Link>, request: &Request<'_>) -> Result<Called, CallError> {
    for _ in 0..SENT_MAX {
        match send(link.clone(), request).await? {
            Reply::Called(called) => return Ok(called),
            Reply::Failed(failed) => return Err(failed),
            // Nothing was changed.
            Reply::Again => {}
        }
    }
    let text = format!("the server at {} repeatedly had no memory for the output", link.address());
    Err(StoreError::new(ErrorKind::Busy, text).into())
}

async fn send(link: Arc<Link>, request: &Request<'_>) -> Result<Reply, StoreError> {
    let sent = Sent(Received {
        object: request.object.clone(),
        class: request.class.to_owned(),
        method: request.method.to_owned(),
        input: request.input.clone(),
        fence: request.fence,
        bounds: request.bounds,
    });
    let address = link.address().clone();
    let mut call = Call::start(link, sent);
    let frame = poll_fn(|context| call.poll_frame(context.waker())).await?;
    if frame.kind != MessageKind::ERROR {
        return wire::get_reply(frame.kind, &frame.body, request).map_err(|error| call.nonsense(error));
    }
    let error = control::get_failure(&frame).unwrap_or_else(|error| call.nonsense(error));
    Err(match error.kind {
        ErrorKind::Unsupported => {
            let text = format!("the server at {address} runs no classes: {}", error.message);
            StoreError::new(ErrorKind::Unsupported, text)
        }
        _ => error,
    })
}
