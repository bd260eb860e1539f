//! The administration of a server, as a service.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nacre_object::{Reply, StoreError};
use nacre_rpc::server::Parts;
use nacre_rpc::{Handled, Incoming, Outbox, Peer, Service, WireError, control};

use crate::requests::{Operation, RequestCounts, RequestOutcome, Requests};
use crate::{call, kind};

/// The number of calls that one connection may have under way.
const CALLS_MAX: usize = 16;

/// The longest name of a method, in bytes.
pub const METHOD_BYTES_MAX: usize = 64;

/// A handler of calls.
pub trait Admin: Send + Sync + 'static {
    /// Answers a call. The argument, the progress reports and the result are JSON texts.
    fn call(&self, method: &str, argument: Bytes, progress: ReportSender) -> Reply<Bytes>;
}

/// A sender for reports on the progress of a call. A report that the caller has not seen when the next one comes is
/// dropped.
#[derive(Clone, Debug)]
pub struct ReportSender(Parts);

impl ReportSender {
    /// Sends a report, in place of an earlier one that is still unsent.
    pub fn send(&self, report: impl Into<Bytes>) {
        self.0.replace(report.into());
    }
}

/// The administration as a service.
#[derive(derive_more::Debug)]
#[debug("AdminService")]
pub struct AdminService {
    admin: Arc<dyn Admin>,
    requests: Arc<Requests>,
}

impl AdminService {
    /// Creates the service that has `admin` answer calls, and counts them in `requests`.
    pub fn new(admin: Arc<dyn Admin>, requests: Arc<Requests>) -> AdminService {
        AdminService { admin, requests }
    }
}

/// The state that is kept for a connection.
#[derive(Default, derive_more::Debug)]
#[debug("AdminConnection")]
pub struct AdminConnection {
    tally: RequestCounts,
}

impl Service for AdminService {
    type Connection = AdminConnection;
    type Pending = Reply<Bytes>;

    fn number(&self) -> u8 {
        kind::ADMIN
    }

    fn requests_max(&self) -> usize {
        CALLS_MAX
    }

    /// Calls such as scrubbing may take hours, and can be repeated without harm.
    fn is_awaited(&self) -> bool {
        false
    }

    fn open(&self, _peer: &Peer) -> AdminConnection {
        AdminConnection::default()
    }

    fn handle(
        &self,
        connection: &mut AdminConnection,
        request: Incoming<'_>,
        outbox: &mut Outbox,
    ) -> Handled<Reply<Bytes>> {
        if request.kind != kind::CALL {
            control::put_error(outbox, request.id, &request.unsupported());
            return Handled::Uncounted;
        }
        match call::get_call(&request.body) {
            Ok((method, argument)) => {
                let progress = ReportSender(request.parts(kind::PROGRESS));
                Handled::Later(self.admin.call(&method, argument, progress))
            }
            Err(error) => {
                self.finish(connection, request.id, Err(error.into()), outbox);
                Handled::Answered
            }
        }
    }

    fn finish(
        &self,
        connection: &mut AdminConnection,
        id: u64,
        result: Result<Bytes, StoreError>,
        outbox: &mut Outbox,
    ) {
        let error = match result {
            Err(error) => error,
            Ok(text) => match control::put_body(outbox, kind::RESULT, id, &text) {
                Ok(_) => return connection.tally.count(Operation::Call, RequestOutcome::Done),
                Err(body_bytes) => WireError::TooLong { body_bytes }.into(),
            },
        };
        connection.tally.count(Operation::Call, RequestOutcome::Failed);
        control::put_error(outbox, id, &error);
    }

    fn timed(&self, connection: &mut AdminConnection, latency: Duration) {
        connection.tally.timed(latency, &self.requests);
    }

    fn settle(&self, connection: &mut AdminConnection) {
        connection.tally.settle(&self.requests);
    }
}
