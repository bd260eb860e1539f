//! The client's side: links to servers, and calls over them.

mod call;
mod drive;
mod link;

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use nacre_object::{ErrorKind, StoreError};

use crate::channel::Channel;
use crate::control;
use crate::frame::{Frame, Kind};
use crate::inbox::Inbox;
use crate::key::ClusterKey;
use crate::outbox::Outbox;

pub use call::{Call, Request};
pub use drive::Host;
pub use link::Link;

/// The id of the requests by which a connection begins.
const GREETING_ID: u64 = 1;

/// How a link reaches its server.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    /// The cluster key, for a server that has one.
    pub key: Option<ClusterKey>,
    /// The user that a server at a Unix socket runs as; where none is named, it must be this process's own or root.
    pub owner: Option<u32>,
    /// How long connecting and introducing oneself may take, and each answer to a greeting.
    pub connect_timeout: Duration,
    /// A server that says nothing at all for so long, although requests are under way, is given up.
    pub silence_timeout: Duration,
    /// The pause after the first failed attempt to connect; it doubles with each further one.
    pub backoff_min: Duration,
    /// The longest such pause.
    pub backoff_max: Duration,
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self {
            key: None,
            owner: None,
            connect_timeout: Duration::from_secs(5),
            silence_timeout: Duration::from_secs(30),
            backoff_min: Duration::from_millis(20),
            backoff_max: Duration::from_secs(2),
        }
    }
}

/// The future of a greeting.
pub type Greeted<'a> = Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send + 'a>>;

/// What a service has to say on a new connection before requests are sent over it.
pub trait Greeter: Send + Sync + 'static {
    /// Greets the server. The connection is given up if this fails.
    fn greet<'a>(&'a self, greeting: &'a mut Greeting) -> Greeted<'a>;

    /// Learns why there is no connection.
    fn failed(&self, _error: &StoreError) {}
}

/// A greeter that says nothing.
impl Greeter for () {
    fn greet<'a>(&'a self, _greeting: &'a mut Greeting) -> Greeted<'a> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// A connection that is not in use yet.
pub struct Greeting {
    channel: Channel,
    timeout: Duration,
}

impl Greeting {
    /// Sends a request, written by `put` with the id that it is given, and gives the reply.
    ///
    /// # Errors
    ///
    /// That of the server, if it answers with one; `Unavailable` if it does not answer, or not in time.
    pub async fn ask(&mut self, put: impl FnOnce(&mut Outbox, u64)) -> Result<Frame, StoreError> {
        let late = |_| StoreError::new(ErrorKind::Unavailable, "it did not answer in time");
        tokio::time::timeout(self.timeout, exchange(&mut self.channel, put)).await.map_err(late)?
    }
}

async fn exchange(channel: &mut Channel, put: impl FnOnce(&mut Outbox, u64)) -> Result<Frame, StoreError> {
    let broken = |error: io::Error| StoreError::new(ErrorKind::Unavailable, error.to_string());
    let (mut inbox, mut outbox, mut taken) = (Inbox::default(), Outbox::default(), 0);
    put(&mut outbox, GREETING_ID);
    poll_fn(|context| channel.poll_write(context, &mut outbox, &mut taken)).await.map_err(broken)?;
    let frame = loop {
        if let Some(frame) = inbox.next().map_err(nonsense)? {
            break frame;
        }
        if poll_fn(|context| channel.poll_read(context, &mut inbox)).await.map_err(broken)? == 0 {
            return Err(broken(io::Error::other("it closed the connection")));
        }
    };
    if frame.kind == Kind::GOODBYE || inbox.is_partial() {
        // What a server says unasked is that it is about to stop.
        return Err(broken(io::Error::other("it is shutting down")));
    }
    if frame.kind == Kind::ERROR {
        return Err(control::get_failure(&frame).unwrap_or_else(nonsense));
    }
    Ok(frame)
}

/// The error for a server that does not keep to the protocol.
pub fn nonsense(why: impl std::fmt::Display) -> StoreError {
    StoreError::new(ErrorKind::Unavailable, format!("it sent something that makes no sense: {why}"))
}
