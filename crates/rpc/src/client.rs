//! The client side: links to servers, and calls over them.

mod call;
mod drive;
mod event;
mod link;
mod part;
mod seat;
mod silence;
mod state;

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::time::Duration;

pub use call::{Call, Request, Subscription};
pub use drive::Host;
pub use event::Event;
pub use link::Link;
use nacre_object::{ErrorKind, StoreError};
pub use seat::{Flow, Watch};

use crate::channel::Channel;
use crate::control::{self, cost};
use crate::frame::{Frame, MessageKind};
use crate::inbox::Inbox;
use crate::key::ClusterKey;
use crate::limit::{READ_BYTES, WINDOW_BYTES};
use crate::outbox::Outbox;

/// The id of the requests that begin a connection.
const GREETING_ID: u64 = 1;

/// The settings of a link.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    /// The cluster key, for a server that requires one.
    pub key: Option<ClusterKey>,
    /// The user id that a server at a Unix socket must run as; if `None`, this process's own user or root.
    pub owner: Option<u32>,
    /// The time limit for connecting together with the handshake, and for each answer to a greeting.
    pub connect_timeout: Duration,
    /// The time after which a server that sends nothing at all, although requests are under way, is given up.
    pub silence_timeout: Duration,
    /// The pause after the first failed attempt to connect; it doubles with each further failure.
    pub backoff_min: Duration,
    /// The longest pause between attempts to connect.
    pub backoff_max: Duration,
    /// True if the session outlives its connection, so that subscriptions go on over the next one.
    pub keeps_session: bool,
    /// The time for which the server may be out of reach before a session that outlives connections is given up.
    pub session_timeout: Duration,
    /// The features that the client offers, one bit each; their meaning is the services'.
    pub features: u64,
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
            keeps_session: false,
            session_timeout: Duration::from_secs(30),
            features: 0,
        }
    }
}

/// The future of a greeting.
pub type Greeted<'a> = Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send + 'a>>;

/// The first exchange of a service on a new connection, before requests are sent over it.
pub trait Greeter: Send + Sync + 'static {
    /// Greets the server. The connection is closed if this fails.
    fn greet<'a>(&'a self, greeting: &'a mut Greeting) -> Greeted<'a>;

    /// Handles a failure to connect.
    fn failed(&self, _error: &StoreError) {}
}

/// A greeter that sends nothing.
impl Greeter for () {
    fn greet<'a>(&'a self, _greeting: &'a mut Greeting) -> Greeted<'a> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// A connection that is not in use yet.
#[derive(derive_more::Debug)]
#[debug("Greeting")]
pub struct Greeting {
    channel: Channel,
    inbox: Inbox,
    /// Events of a resumed session that came between the replies.
    early: Vec<Frame>,
    early_bytes: usize,
    timeout: Duration,
    features: u64,
}

impl Greeting {
    /// Returns the features that both sides have.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Sends a request, which `put` writes with the id that it is given, and returns the reply.
    ///
    /// # Errors
    ///
    /// The server's error if it answers with one; `Unavailable` if it does not answer, or not in time.
    pub async fn ask(&mut self, put: impl FnOnce(&mut Outbox, u64)) -> Result<Frame, StoreError> {
        let late = |_| StoreError::new(ErrorKind::Unavailable, "it did not answer in time");
        tokio::time::timeout(self.timeout, self.exchange(put)).await.map_err(late)?
    }

    async fn exchange(&mut self, put: impl FnOnce(&mut Outbox, u64)) -> Result<Frame, StoreError> {
        let broken = |error: io::Error| StoreError::new(ErrorKind::Unavailable, error.to_string());
        let (mut outbox, mut taken) = (Outbox::default(), 0);
        put(&mut outbox, GREETING_ID);
        poll_fn(|context| self.channel.poll_write(context, &mut outbox, &mut taken)).await.map_err(broken)?;
        loop {
            while let Some(frame) = self.inbox.next().map_err(nonsense)? {
                match frame.kind {
                    MessageKind::EVENT | MessageKind::END => {
                        self.early_bytes += cost(&frame.body);
                        if self.early_bytes > 2 * WINDOW_BYTES {
                            return Err(nonsense("more events than the window allows"));
                        }
                        self.early.push(frame);
                    }
                    MessageKind::GOODBYE => return Err(broken(io::Error::other("it is shutting down"))),
                    MessageKind::ERROR => return Err(control::get_failure(&frame).unwrap_or_else(nonsense)),
                    _ => return Ok(frame),
                }
            }
            self.inbox.settle();
            if poll_fn(|context| self.channel.poll_read(context, &mut self.inbox, READ_BYTES))
                .await
                .map_err(broken)?
                == 0
            {
                return Err(broken(io::Error::other("it closed the connection")));
            }
        }
    }
}

/// Returns the error for a server that violates the protocol.
pub fn nonsense(why: impl std::fmt::Display) -> StoreError {
    StoreError::new(ErrorKind::Unavailable, format!("it sent an invalid message: {why}"))
}
