//! The messages between ranks, and their sizes on the wire.

/// The number of bytes before the contents of every message: its kind, and the number of units that follow.
pub const HEADER_BYTES: u64 = 8;

/// The colour of a rank, or of the token (section IV-A).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Colour {
    /// No work was sent back to a rank that the token may have passed.
    White,
    /// Work went back to a rank that the token may have passed already.
    Black,
}

/// The reason why the ranks end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shutdown {
    /// Everything was visited.
    Finished,
    /// A stop was requested. The entries not visited are in the ranks' queues.
    Stopped,
}

/// A unit of work, which the algorithms pass on without inspecting it.
pub trait Unit {
    /// Returns its size inside a message, in bytes.
    fn size_bytes(&self) -> u64;

    /// Returns the number of units that it stands for: one, except where a simulation bundles many small ones into one
    /// value.
    fn count(&self) -> u64 {
        1
    }
}

/// A message from one rank to another.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Message<W> {
    /// A request for work. Always answered at once by [`Message::Work`] or [`Message::Refusal`], except by the master
    /// of [`Cp`](crate::Algorithm::Cp), which answers when there is work.
    Request,
    /// An answer to a request: no work to give.
    Refusal,
    /// An answer to a request: units that now belong to the receiver.
    Work(Vec<W>),
    /// The units that a finished unit uncovered, to the master of CP.
    Results(Vec<W>),
    /// The token of termination detection.
    Token(Colour),
    /// A request to rank 0 that all ranks stop.
    Stop,
    /// Downwards through the tree of ranks: from now on no rank requests or gives work.
    Halt(Shutdown),
    /// Upwards: the ranks of this subtree have no request open. Carries the numbers of messages that they sent and
    /// received, of those that the shutdown counts ([`Message::is_counted`]); the numbers of several such messages add
    /// up.
    Drained {
        /// The number of messages sent.
        sent: u64,
        /// The number of messages received.
        received: u64,
    },
    /// Downwards: no message is in flight any more, so ranks may leave.
    Exit,
}

impl<W> Message<W> {
    /// Returns whether the shutdown must count it ([`Message::Drained`]): it carries something that must not be lost, or
    /// has no answer.
    pub fn is_counted(&self) -> bool {
        matches!(self, Self::Work(_) | Self::Results(_) | Self::Token(_) | Self::Stop)
    }

    /// Returns the name, for a log.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Refusal => "refusal",
            Self::Work(_) => "work",
            Self::Results(_) => "results",
            Self::Token(_) => "token",
            Self::Stop => "stop",
            Self::Halt(_) => "halt",
            Self::Drained { .. } => "drained",
            Self::Exit => "exit",
        }
    }
}

impl<W: Unit> Message<W> {
    /// Returns the size on the wire in bytes: [`HEADER_BYTES`] and the contents.
    pub fn size_bytes(&self) -> u64 {
        HEADER_BYTES
            + match self {
                Self::Work(units) | Self::Results(units) => units.iter().map(Unit::size_bytes).sum(),
                Self::Drained { .. } => 16,
                _ => 0,
            }
    }

    /// Returns the number of units that it carries.
    pub fn units(&self) -> u64 {
        match self {
            Self::Work(units) | Self::Results(units) => units.iter().map(Unit::count).sum(),
            _ => 0,
        }
    }
}

/// Messages to be sent, in order, each with its destination rank.
#[derive(Clone, Debug)]
pub struct Outbox<W> {
    messages: std::collections::VecDeque<(u32, Message<W>)>,
}

impl<W> Default for Outbox<W> {
    fn default() -> Self {
        Self { messages: std::collections::VecDeque::new() }
    }
}

impl<W> Outbox<W> {
    /// Creates an empty outbox.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a message to rank `to`.
    pub fn push(&mut self, to: u32, message: Message<W>) {
        self.messages.push_back((to, message));
    }

    /// Removes and returns the next message to be sent, with its destination.
    pub fn pop(&mut self) -> Option<(u32, Message<W>)> {
        self.messages.pop_front()
    }

    /// Returns whether it holds no message.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}
