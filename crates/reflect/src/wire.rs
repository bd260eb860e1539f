//! The control protocol's datagrams, byte by byte (`docs/reflect-wire.md`). A pure codec: it does no I/O, never panics,
//! and allocates nothing when it decodes.
//!
//! Invariants, which the reflector's promise not to amplify rests on:
//! - A request that may come from an address that has proven nothing (`JOIN`, `LOCATE`, `LEAVE`, `HEARTBEAT`,
//!   `STATE_GET`, `STATE_PART`) is at least as long as every answer that the reflector may give to it before the proof.
//! - Every length that a message announces is compared with what is there before it is used.

use std::net::SocketAddr;

mod codec;

/// What every datagram of the control protocol begins with. The last byte is the protocol's version.
pub const MAGIC: [u8; 7] = [0x89, b'n', b'r', b'f', b'l', b'\n', 1];
/// Bytes of the head: the magic, and the kind of the message.
pub const HEAD_BYTES: usize = 8;
/// The least length of a `JOIN` and of a `LOCATE`, to which they are padded with zeros.
pub const REQUEST_BYTES_MIN: usize = 128;
/// The greatest length of a message, but of `DATA`, which is as long as its payload makes it.
pub const MESSAGE_BYTES_MAX: usize = 1200;
/// Bytes of a cookie.
pub const COOKIE_BYTES: usize = 16;
/// The longest name of a location.
pub const LOCATION_BYTES_MAX: usize = 64;
/// The greatest number of reflectors that a `LOCATION` names: the one in charge, and its standbys.
pub const REFLECTORS_MAX: usize = 4;
/// The largest state of a group.
pub const STATE_BYTES_MAX: usize = 1 << 20;
/// The largest part of a state that one datagram carries. Every part but the last is of this size.
pub const PART_BYTES: usize = 1024;
/// The most parts that one `STATE_GET` asks for.
pub const PARTS_MAX: u16 = 16;
/// The longest token that a `JOIN` carries.
pub const TOKEN_BYTES_MAX: usize = 64;
/// Bytes before the payload of a `DATA`.
pub const DATA_HEAD_BYTES: usize = 16;

/// True if a datagram is of the control protocol. Such a datagram is never copied to members.
pub fn is_control(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// The bytes before the payload of a datagram of a group whose datagrams are numbered.
pub fn data_head(sequence: u64) -> [u8; DATA_HEAD_BYTES] {
    let mut head = [0; DATA_HEAD_BYTES];
    head[..7].copy_from_slice(&MAGIC);
    head[7] = kind::DATA;
    head[8..].copy_from_slice(&sequence.to_le_bytes());
    head
}

/// The kinds of messages. What a reflector says has the highest bit set: a reflector never answers such a message.
pub mod kind {
    /// A client wants to be a member.
    pub const JOIN: u8 = 0x01;
    /// A member leaves.
    pub const LEAVE: u8 = 0x02;
    /// A member is still there.
    pub const HEARTBEAT: u8 = 0x03;
    /// A client asks where a location is.
    pub const LOCATE: u8 = 0x04;
    /// A member asks for parts of the group's state.
    pub const STATE_GET: u8 = 0x05;
    /// A member gives a part of the group's state.
    pub const STATE_PART: u8 = 0x06;
    /// The client is to prove that it listens at its address.
    pub const CHALLENGE: u8 = 0x81;
    /// The client is a member.
    pub const JOINED: u8 = 0x82;
    /// What was asked is refused.
    pub const REFUSED: u8 = 0x83;
    /// The group is elsewhere.
    pub const REDIRECT: u8 = 0x84;
    /// The answer to a heartbeat.
    pub const PULSE: u8 = 0x85;
    /// Where a location is.
    pub const LOCATION: u8 = 0x86;
    /// The reflector asks for the group's state.
    pub const STATE_ASK: u8 = 0x87;
    /// The reflector has taken a part.
    pub const STATE_TAKEN: u8 = 0x88;
    /// A part of the group's state.
    pub const STATE: u8 = 0x89;
    /// The member is to move.
    pub const MOVE: u8 = 0x8a;
    /// The client is no member any more.
    pub const GOODBYE: u8 = 0x8b;
    /// Numbered payload.
    pub const DATA: u8 = 0x8c;
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        /// Why something is refused, or a membership ends.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Reason {
            $($(#[$doc])* $name = $code,)*
        }

        impl Reason {
            /// All of them.
            pub const ALL: &[Reason] = &[$(Reason::$name,)*];

            /// What it says, as a sentence's end.
            pub fn text(self) -> &'static str {
                match self {
                    $(Reason::$name => $text,)*
                }
            }
        }
    };
}

reasons! {
    /// No such group.
    UnknownGroup = 1, "there is no such group at this reflector";
    /// The group, or the reflector, has as many members as it may.
    Full = 2, "the group is full";
    /// Too many joins from this address of late.
    TooManyJoins = 3, "too many joins from this address";
    /// The group requires a token.
    TokenMissing = 4, "the group requires a token";
    /// The token's time is over.
    TokenExpired = 5, "the token has expired";
    /// The token is for another group or location.
    TokenGroup = 6, "the token is for another group";
    /// The token is for another address.
    TokenAddress = 7, "the token is for another address";
    /// The token was not signed with the operator's key, or was changed.
    TokenForged = 8, "the token was not signed by the operator, or was changed";
    /// The token is cut short, or of a version that is not known.
    TokenMalformed = 9, "the token is cut, or of an unknown version";
    /// Whoever asks is no member.
    NotMember = 10, "this address is no member, or of another session";
    /// No such location.
    UnknownLocation = 11, "there is no such location";
    /// The member left by its own wish.
    Left = 12, "the member has left";
    /// The member was not heard of for too long.
    Expired = 13, "the member was not heard of for too long";
    /// The operator removed the member, or the group.
    Removed = 14, "the operator removed it";
    /// The reflector is shutting down.
    Closing = 15, "the reflector is shutting down";
}

impl Reason {
    /// The reason that a code stands for.
    pub fn from_code(code: u8) -> Option<Reason> {
        Self::ALL.iter().copied().find(|reason| *reason as u8 == code)
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

/// Why a datagram is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// It does not begin with the magic.
    #[error("it does not begin with the magic of version {}", MAGIC[6])]
    Magic,
    /// It is of a kind that is not known here.
    #[error("messages of kind {0:#04x} are not expected here")]
    Kind(u8),
    /// It is too short, or too long.
    #[error("a message of kind {kind:#04x} cannot have {bytes} bytes")]
    Length {
        /// Its kind.
        kind: u8,
        /// How long it is.
        bytes: usize,
    },
    /// A field makes no sense.
    #[error("the field '{0}' makes no sense")]
    Field(&'static str),
}

/// What a client that wants to be a member says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Join<'a> {
    /// The group's id on the port.
    pub group: u32,
    /// It wants copies of its own datagrams.
    pub echo: bool,
    /// It can give the group's state when asked.
    pub keeps_state: bool,
    /// Chosen by the client, and repeated by the answer.
    pub nonce: u64,
    /// What the reflector's challenge gave; zeros at first.
    pub cookie: [u8; COOKIE_BYTES],
    /// The operator's permission; empty if the client has none.
    pub token: &'a [u8],
}

/// What a member says every so often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// The group's id on the port.
    pub group: u32,
    /// Greater than that of every earlier heartbeat of the session.
    pub number: u32,
    /// The session.
    pub session: u64,
    /// The member's clock, in microseconds: the reflector repeats it.
    pub client_us: u64,
    /// The reflector's clock as the last `PULSE` gave it; 0 if there was none.
    pub reflector_us: u64,
    /// How long ago that was, in microseconds.
    pub hold_us: u32,
    /// The version of the group's state that the member holds; 0 for none.
    pub state_version: u64,
}

/// A member's question for parts of the group's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateGet {
    /// The group's id on the port.
    pub group: u32,
    /// How many parts: 1 to [`PARTS_MAX`].
    pub parts: u16,
    /// The session.
    pub session: u64,
    /// Of which version; 0 for the newest.
    pub version: u64,
    /// From where on: a multiple of [`PART_BYTES`].
    pub offset: u32,
}

/// A part of a group's state from a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatePart<'a> {
    /// The group's id on the port.
    pub group: u32,
    /// The number of the `STATE_ASK`.
    pub ask: u32,
    /// The session.
    pub session: u64,
    /// The size of the whole state. `None` if the member has none to give.
    pub size: Option<u32>,
    /// Where this part begins: a multiple of [`PART_BYTES`].
    pub offset: u32,
    /// The part.
    pub bytes: &'a [u8],
}

/// What clients say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Let me in.
    Join(Join<'a>),
    /// I leave.
    Leave {
        /// The group's id on the port.
        group: u32,
        /// The session.
        session: u64,
    },
    /// I am still there.
    Heartbeat(Heartbeat),
    /// Where is this location?
    Locate {
        /// Chosen by the client, and repeated by the answer.
        nonce: u64,
        /// The location's name.
        location: &'a str,
    },
    /// Give me parts of the state.
    StateGet(StateGet),
    /// Here is a part of the state.
    StatePart(StatePart<'a>),
}

/// What a reflector tells a new member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The nonce of the `JOIN`.
    pub nonce: u64,
    /// The session: the member's proof, from here on, that it got this answer.
    pub session: u64,
    /// The address as which the member is connected.
    pub seen: SocketAddr,
    /// How often to send heartbeats, in milliseconds.
    pub heartbeat_ms: u32,
    /// How long the reflector waits for one, in milliseconds.
    pub expiry_ms: u32,
    /// Members in the group, this one included.
    pub members: u32,
    /// The payload that members get has a head with a number.
    pub sequence: bool,
    /// The group has a state, but the reflector is still fetching it: ask again.
    pub state_pending: bool,
    /// The version of the group's state; 0 for none.
    pub state_version: u64,
    /// Its size in bytes.
    pub state_bytes: u32,
}

/// A reflector's answer to a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pulse {
    /// The session.
    pub session: u64,
    /// The number of the heartbeat.
    pub number: u32,
    /// Members in the group.
    pub members: u32,
    /// The member's clock, as the heartbeat gave it.
    pub client_us: u64,
    /// The reflector's clock, in microseconds.
    pub reflector_us: u64,
    /// The version of the group's state; 0 for none.
    pub state_version: u64,
}

/// Reflectors of one location: the one in charge first, then its standbys. At least one, at most [`REFLECTORS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reflectors {
    addresses: [SocketAddr; REFLECTORS_MAX],
    count: u8,
}

impl Reflectors {
    /// Those of a list; `None` if it is empty or too long.
    pub fn new(list: &[SocketAddr]) -> Option<Self> {
        let mut addresses = [*list.first()?; REFLECTORS_MAX];
        addresses.get_mut(..list.len())?.copy_from_slice(list);
        Some(Reflectors { addresses, count: list.len() as u8 })
    }

    /// All of them.
    pub fn as_slice(&self) -> &[SocketAddr] {
        &self.addresses[..self.count as usize]
    }

    /// The one in charge.
    pub fn first(&self) -> SocketAddr {
        self.addresses[0]
    }
}

/// What reflectors say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// Prove that you listen where you say.
    Challenge {
        /// The nonce of the `JOIN`.
        nonce: u64,
        /// To be sent back in the next `JOIN`.
        cookie: [u8; COOKIE_BYTES],
        /// The address that the `JOIN` came from.
        seen: SocketAddr,
    },
    /// You are a member.
    Joined(Joined),
    /// No.
    Refused {
        /// The nonce of the `JOIN` or `LOCATE`; the session of any other request.
        nonce: u64,
        /// Why.
        reason: Reason,
        /// When to try again, in milliseconds; 0 for not at all, unless something else changes.
        retry_ms: u32,
    },
    /// The group that you want is elsewhere.
    Redirect {
        /// The nonce of the `JOIN`.
        nonce: u64,
        /// The reflector.
        address: SocketAddr,
        /// The group's id there.
        group: u32,
    },
    /// I heard you.
    Pulse(Pulse),
    /// The location is there.
    Location {
        /// The nonce of the `LOCATE`.
        nonce: u64,
        /// The group's id there.
        group: u32,
        /// The reflectors.
        reflectors: Reflectors,
    },
    /// Give me the group's state.
    StateAsk {
        /// The session.
        session: u64,
        /// The number of this question.
        ask: u32,
    },
    /// I have these parts.
    StateTaken {
        /// The session.
        session: u64,
        /// The number of the question.
        ask: u32,
        /// Everything before this offset has been taken.
        next: u32,
        /// Bit n: the part n + 1 parts after `next` has been taken as well.
        later: u64,
    },
    /// A part of the group's state. Of version 0 and without bytes if there is none, or none yet.
    State {
        /// The session.
        session: u64,
        /// The version.
        version: u64,
        /// The size of the whole state.
        size: u32,
        /// Where this part begins.
        offset: u32,
        /// The state is still being fetched: ask again.
        pending: bool,
        /// The part.
        bytes: &'a [u8],
    },
    /// Join there, then leave here.
    Move {
        /// The session.
        session: u64,
        /// The reflector.
        address: SocketAddr,
        /// The group's id there.
        group: u32,
        /// The location that has moved.
        location: &'a str,
    },
    /// You are no member any more.
    Goodbye {
        /// The session.
        session: u64,
        /// Why.
        reason: Reason,
    },
    /// A member's payload, with its number.
    Data {
        /// Grows by one with each datagram of the group.
        sequence: u64,
        /// The payload.
        payload: &'a [u8],
    },
}

/// The lengths on which the rule about unproven addresses rests, for those who check it.
pub mod length {
    /// The longest answer that the reflector may give to a `JOIN` or a `LOCATE`.
    pub const ANSWER_MAX: usize = {
        let (mut max, all) = (
            0,
            [
                super::codec::CHALLENGE_BYTES,
                super::codec::JOINED_BYTES,
                super::codec::REFUSED_BYTES,
                super::codec::REDIRECT_BYTES,
                super::codec::LOCATION_BYTES,
            ],
        );
        let mut at = 0;
        while at < all.len() {
            max = if all[at] > max { all[at] } else { max };
            at += 1;
        }
        max
    };
    /// The length of a `REFUSED`, which is what every other request may get that names no session.
    pub const REFUSED: usize = super::codec::REFUSED_BYTES;
    const _: () = assert!(ANSWER_MAX <= super::REQUEST_BYTES_MIN);
    const _: () = assert!(REFUSED <= super::codec::LEAVE_BYTES && REFUSED <= super::codec::HEARTBEAT_BYTES);
    const _: () =
        assert!(REFUSED <= super::codec::STATE_GET_BYTES && REFUSED <= super::codec::STATE_PART_FIXED);
    const _: () = assert!(super::codec::JOIN_FIXED + super::TOKEN_BYTES_MAX <= super::REQUEST_BYTES_MIN);
    const _: () = assert!(super::codec::LOCATE_FIXED + super::LOCATION_BYTES_MAX <= super::REQUEST_BYTES_MIN);
    const _: () = assert!(super::codec::STATE_FIXED + super::PART_BYTES <= super::MESSAGE_BYTES_MAX);
}
