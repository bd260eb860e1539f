//! Refusals of descriptions.

use crate::limit::{DEPTH_MAX, DESCRIPTION_BYTES_MAX, ITEMS_MAX};

/// The reason why a description is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PatternError {
    /// A byte of the pattern would lie before the first byte of the file.
    #[error("the pattern begins {bytes} bytes before the start of the file")]
    BeforeStart {
        /// The distance in bytes.
        bytes: u64,
    },
    /// A byte of the pattern, or a bound of a datatype in it, is past what 63 bits can count.
    #[error("the pattern reaches past 2^63 - 1 bytes ({quantity})")]
    Overflow {
        /// The part of the description that does.
        quantity: &'static str,
    },
    /// A negative count, a dimension of size 0, or another argument that its constructor does not allow.
    #[error("{constructor}: {reason}")]
    Argument {
        /// The name of the constructor.
        constructor: &'static str,
        /// The rule that is broken.
        reason: String,
    },
    /// Too many datatypes stand inside each other.
    #[error("datatypes stand more than {DEPTH_MAX} deep in each other")]
    TooDeep,
    /// The description has too many parts.
    #[error("the description has more than {ITEMS_MAX} parts")]
    TooManyItems,
    /// Interleaved parts form no regular pattern, and unrolling them would take too long.
    #[error(
        "the parts of the pattern interleave without a common period; unrolled they are more than {pieces_max} pieces"
    )]
    TooIrregular {
        /// The limit that is exceeded.
        pieces_max: usize,
    },
    /// The encoded description is too long.
    #[error("an encoded description of {bytes} bytes; the limit is {DESCRIPTION_BYTES_MAX}")]
    TooLong {
        /// The length in bytes.
        bytes: usize,
    },
    /// The encoded description is not one.
    #[error("malformed description: {0}")]
    Malformed(&'static str),
    /// The text is not a description.
    #[error("{reason}, at character {position} of the pattern")]
    Syntax {
        /// The expected text, and the one found.
        reason: String,
        /// The position of the first wrong character, counted from 1.
        position: usize,
    },
    /// A stripe has no bytes, no servers, or a server out of range.
    #[error("server {server} of {servers} with stripes of {stripe_bytes} bytes is not possible")]
    Stripe {
        /// The size of a stripe in bytes.
        stripe_bytes: u64,
        /// The number of servers.
        servers: u32,
        /// The number of the server.
        server: u32,
    },
    /// A pattern that is restricted to a server is to be restricted to another.
    #[error("the pattern is already restricted to a server")]
    Restricted,
    /// The server's part of the pattern cannot be found in bounded time.
    #[error(
        "the strides of the pattern and the stripes of the file have no common period on several levels; \
         lock the pattern in parts"
    )]
    EvadesStripes,
    /// Described piece by piece, the pattern takes too many requests.
    #[error(
        "a lock of this pattern by this method takes more than {requests_max} requests; describe it as a datatype"
    )]
    TooManyRequests {
        /// The limit that is exceeded.
        requests_max: usize,
    },
    /// A pattern that takes too many rounds in file order, server by server.
    #[error(
        "a lock of this pattern by the protocol {protocol} may take {rounds} rounds at {servers} servers, and the limit is \
         {rounds_max}; alt-try takes it in few"
    )]
    TooManyRounds {
        /// The name of the protocol.
        protocol: &'static str,
        /// The number of servers.
        servers: u32,
        /// The number of rounds that it takes at most.
        rounds: u64,
        /// The limit that is exceeded.
        rounds_max: u64,
    },
    /// A lock server refused the pattern, for this reason.
    #[error("{0}")]
    Refused(String),
}
