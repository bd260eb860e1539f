//! The calls of the administration.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use nacre_object::StoreError;
use nacre_rpc::client::{Call, Link, Request};
use nacre_rpc::{Outbox, WireError, control};

use crate::{call, kind};

struct Administer {
    method: String,
    argument: Bytes,
}

impl Request for Administer {
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
        let put = call::put_call(outbox, id, &self.method, &self.argument);
        put.map(|_| ()).map_err(|body_bytes| WireError::TooLong { body_bytes }.into())
    }

    /// All calls may be repeated: compacting twice, for example, does no harm.
    fn is_read_only(&self) -> bool {
        true
    }

    fn wants_latest_part(&self) -> bool {
        true
    }
}

type Report = Box<dyn FnMut(Bytes) + Send>;

/// A call of the administration under way.
pub(crate) struct AdminCall {
    call: Call<Administer>,
    report: Report,
}

impl AdminCall {
    pub(crate) fn start(link: Arc<Link>, method: String, argument: Bytes, report: Report) -> Self {
        Self { call: Call::start(link, Administer { method, argument }), report }
    }
}

impl Future for AdminCall {
    type Output = Result<Bytes, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Some(report) = this.call.take_part() {
            (this.report)(report);
        }
        this.call.poll_frame(context.waker()).map(|frame| {
            let frame = frame?;
            match frame.kind {
                kind::RESULT => Ok(frame.body),
                _ => Err(control::get_failure(&frame).unwrap_or_else(|error| this.call.nonsense(error))),
            }
        })
    }
}
