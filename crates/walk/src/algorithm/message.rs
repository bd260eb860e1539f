//! What ranks say to each other, and how large it is on the wire.

/// Bytes in front of every message: its kind, and how many units follow.
pub const HEADER_BYTES: u64 = 8;

/// The colour of a rank, or of the token (section IV-A).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Colour {
    /// Nothing suspicious was seen.
    White,
    /// Work went back to a rank that the token may have passed already.
    Black,
}

/// Why the ranks end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// Everything was visited.
    Finished,
    /// Somebody asked for a stop. What was not visited is in the ranks' queues.
    Stopped,
}

/// A unit of work, as far as the algorithms care: they hand it around and never look inside.
pub trait Unit {
    /// Bytes that it takes inside a message.
    fn size_bytes(&self) -> u64;

    /// How many units it stands for. One, except where a simulation bundles many small ones into one value.
    fn count(&self) -> u64 {
        1
    }
}

/// A message from one rank to another.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Message<W> {
    /// "I am idle: give me work." Answered by [`Message::Work`] or [`Message::Refusal`], always and at once, except by the master
    /// of [`Cp`](crate::algorithm::Algorithm::Cp), who answers when there is work.
    Request,
    /// "I have none to give."
    Refusal,
    /// An answer to a request: units that now belong to the receiver.
    Work(Vec<W>),
    /// To the master of CP: what a unit uncovered.
    Results(Vec<W>),
    /// The token of termination detection.
    Token(Colour),
    /// To rank 0: "let everybody stop".
    Stop,
    /// Downwards through the tree of ranks: ask for nothing and give nothing from now on.
    Halt(Ending),
    /// Upwards: the ranks of this subtree have no request open. Carries the messages they sent and received, those that nobody
    /// answers; the counts of several such messages add up.
    Drained {
        /// Messages sent.
        sent: u64,
        /// Messages received.
        received: u64,
    },
    /// Downwards: nothing is under way any more, leave.
    Exit,
}

impl<W> Message<W> {
    /// Whether it is among those that the end has to count ([`Message::Drained`]): it bears something that must not be lost, or
    /// nobody answers it.
    pub fn is_counted(&self) -> bool {
        matches!(self, Self::Work(_) | Self::Results(_) | Self::Token(_) | Self::Stop)
    }

    /// Its name, for a log.
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
    /// Bytes on the wire: [`HEADER_BYTES`] and what it carries.
    pub fn size_bytes(&self) -> u64 {
        HEADER_BYTES
            + match self {
                Self::Work(units) | Self::Results(units) => units.iter().map(Unit::size_bytes).sum(),
                Self::Drained { .. } => 16,
                _ => 0,
            }
    }

    /// Units that it carries.
    pub fn units(&self) -> u64 {
        match self {
            Self::Work(units) | Self::Results(units) => units.iter().map(Unit::count).sum(),
            _ => 0,
        }
    }
}

/// Messages to be sent, in order, each with the rank that it is for.
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
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a message.
    pub fn push(&mut self, to: u32, message: Message<W>) {
        self.messages.push_back((to, message));
    }

    /// The next message to be sent.
    pub fn pop(&mut self) -> Option<(u32, Message<W>)> {
        self.messages.pop_front()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}
