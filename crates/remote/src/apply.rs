//! The calls of the object service: transactions and listings.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use nacre_object::{ObjectId, Outcome, StoreError, Transaction};
use nacre_rpc::Outbox;
use nacre_rpc::client::{Call, Link, Request};

use crate::{reply, request};

struct Apply {
    object: ObjectId,
    transaction: Transaction,
}

impl Request for Apply {
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
        request::put_apply(outbox, id, &self.object, &self.transaction).map(|_| ())
    }

    fn is_read_only(&self) -> bool {
        self.transaction.writes.is_empty()
    }
}

/// A transaction under way.
pub(crate) struct ApplyCall(Call<Apply>);

impl ApplyCall {
    pub(crate) fn start(link: Arc<Link>, object: ObjectId, transaction: Transaction) -> Self {
        Self(Call::start(link, Apply { object, transaction }))
    }
}

impl Future for ApplyCall {
    type Output = Result<Outcome, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_frame(context.waker()).map(|frame| {
            let frame = frame?;
            reply::get_outcome(&frame).unwrap_or_else(|error| Err(self.0.nonsense(error)))
        })
    }
}

struct List {
    after: Option<ObjectId>,
    limit: usize,
}

impl Request for List {
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
        request::put_list(outbox, id, self.after.as_ref(), self.limit);
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        true
    }
}

/// A listing under way.
pub(crate) struct ListCall(Call<List>);

impl ListCall {
    pub(crate) fn start(link: Arc<Link>, after: Option<ObjectId>, limit: usize) -> Self {
        Self(Call::start(link, List { after, limit }))
    }
}

impl Future for ListCall {
    type Output = Result<Vec<ObjectId>, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_frame(context.waker()).map(|frame| {
            let frame = frame?;
            reply::get_listed(&frame).unwrap_or_else(|error| Err(self.0.nonsense(error)))
        })
    }
}
