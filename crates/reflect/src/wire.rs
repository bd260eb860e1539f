//! The control protocol's datagrams, byte by byte (`docs/reflect-wire.md`). A pure codec: it does no I/O, never panics,
//! and allocates nothing when it decodes.
//!
//! Invariants, on which the reflector's promise not to amplify rests:
//! - A request that may come from an unproven address (`JOIN`, `LOCATE`, `LEAVE`, `HEARTBEAT`,
//!   `STATE_GET`, `STATE_PART`) is at least as long as every answer that the reflector may give to it before the proof.
//! - Every announced length is compared with the actual one before it is used.

use std::net::SocketAddr;

mod codec;
pub mod relay;

/// The first bytes of every datagram of the control protocol, in every version.
pub const MAGIC: [u8; 6] = [0x89, b'n', b'r', b'f', b'l', b'\n'];
/// The version of the protocol, which is the byte after the magic.
pub const VERSION: u8 = 2;
/// The length of the head in bytes: the magic, the version, and the kind of the message.
pub const HEAD_BYTES: usize = 8;
/// The least length in bytes of a `JOIN` and of a `LOCATE`, to which they are padded with zeros.
pub const REQUEST_BYTES_MIN: usize = 128;
/// The greatest length of a message in bytes, except of `DATA`, which is as long as its payload makes it.
pub const MESSAGE_BYTES_MAX: usize = 1200;
/// The length of a cookie in bytes.
pub const COOKIE_BYTES: usize = 16;
/// The greatest length in bytes of a location's name.
pub const LOCATION_BYTES_MAX: usize = 64;
/// The greatest number of reflectors that a `LOCATION` names: the one in charge, and its standbys.
pub const REFLECTORS_MAX: usize = 4;
/// The greatest size of a group's state, in bytes.
pub const STATE_BYTES_MAX: usize = 1 << 20;
/// The greatest part of a state that one datagram carries, in bytes. Every part but the last is of this size.
pub const PART_BYTES: usize = 1024;
/// The greatest number of parts that one `STATE_GET` asks for.
pub const PARTS_MAX: u16 = 16;
/// The greatest length in bytes of a token in a `JOIN`.
pub const TOKEN_BYTES_MAX: usize = 256;
/// The length in bytes of the head before the payload of a `DATA`.
pub const DATA_HEAD_BYTES: usize = 16;

/// Returns whether a datagram is of the control protocol, in whatever version. Such a datagram is never copied to members.
pub fn is_control(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// Returns the bytes that precede the payload in a group whose datagrams are numbered.
pub fn data_head(sequence: u64) -> [u8; DATA_HEAD_BYTES] {
    let mut head = [0; DATA_HEAD_BYTES];
    head[..6].copy_from_slice(&MAGIC);
    head[6] = VERSION;
    head[7] = kind::DATA;
    head[8..].copy_from_slice(&sequence.to_le_bytes());
    head
}

/// The kinds of messages. Those of a reflector have the highest bit set: a reflector never answers such a message.
pub mod kind {
    /// A client's request to join.
    pub const JOIN: u8 = 0x01;
    /// A member's request to leave.
    pub const LEAVE: u8 = 0x02;
    /// A member's heartbeat.
    pub const HEARTBEAT: u8 = 0x03;
    /// A client's question for the place of a location.
    pub const LOCATE: u8 = 0x04;
    /// A member's request for parts of the group's state.
    pub const STATE_GET: u8 = 0x05;
    /// A part of the group's state, from a member.
    pub const STATE_PART: u8 = 0x06;
    /// A reflector's request to another to relay a location's datagrams while its members move.
    pub const RELAY_OPEN: u8 = 0x41;
    /// The answer to it, with a cookie to return.
    pub const RELAY_ACCEPT: u8 = 0x42;
    /// A step of a relay, from the reflector that is left.
    pub const RELAY_ON: u8 = 0x43;
    /// A step of a relay, from the reflector that is moved to.
    pub const RELAY_BACK: u8 = 0x44;
    /// The reflector's request to prove that the client listens at its address.
    pub const CHALLENGE: u8 = 0x81;
    /// The reflector's confirmation that the client is a member.
    pub const JOINED: u8 = 0x82;
    /// A refusal of the request.
    pub const REFUSED: u8 = 0x83;
    /// The reflector and the group to join instead.
    pub const REDIRECT: u8 = 0x84;
    /// The answer to a heartbeat.
    pub const PULSE: u8 = 0x85;
    /// The place of a location.
    pub const LOCATION: u8 = 0x86;
    /// The reflector's request for the group's state.
    pub const STATE_ASK: u8 = 0x87;
    /// The reflector's receipt for parts of the state.
    pub const STATE_TAKEN: u8 = 0x88;
    /// A part of the group's state, from the reflector.
    pub const STATE: u8 = 0x89;
    /// The reflector's request to move to another group or reflector.
    pub const MOVE: u8 = 0x8a;
    /// The notice that the client is no member any more.
    pub const GOODBYE: u8 = 0x8b;
    /// Numbered payload.
    pub const DATA: u8 = 0x8c;
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        /// The reason of a refusal, or of the end of a membership.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Reason {
            $($(#[$doc])* $name = $code,)*
        }

        impl Reason {
            /// All reasons.
            pub const ALL: &[Reason] = &[$(Reason::$name,)*];

            /// Returns the reason in words, to end a sentence with.
            pub fn text(self) -> &'static str {
                match self {
                    $(Reason::$name => $text,)*
                }
            }
        }
    };
}

reasons! {
    /// The group does not exist.
    UnknownGroup = 1, "there is no such group at this reflector";
    /// The group, or the reflector, has as many members as it may.
    Full = 2, "the group is full";
    /// Too many recent joins from this address.
    TooManyJoins = 3, "too many joins from this address";
    /// The group requires a token.
    TokenMissing = 4, "the group requires a token";
    /// The token has expired.
    TokenExpired = 5, "the token has expired";
    /// The token is for another group or location.
    TokenGroup = 6, "the token is for another group";
    /// The token is for another address.
    TokenAddress = 7, "the token is for another address";
    /// The token was not signed with the operator's key, or was changed.
    TokenForged = 8, "the token was not signed by the operator, or was changed";
    /// The token is cut short, or of an unknown version.
    TokenMalformed = 9, "the token is cut, or of an unknown version";
    /// The sender is not a member, or not in this session.
    NotMember = 10, "this address is not a member, or belongs to another session";
    /// The location does not exist.
    UnknownLocation = 11, "there is no such location";
    /// The member left of its own accord.
    Left = 12, "the member has left";
    /// The member was silent for too long.
    Expired = 13, "the member was not heard of for too long";
    /// The operator removed the member, or the group.
    Removed = 14, "the operator removed it";
    /// The reflector is shutting down.
    Closing = 15, "the reflector is shutting down";
    /// The operator removed the member, which is to stay away until its user wants otherwise.
    Kicked = 17, "the operator removed the member";
    /// The operator does not let the member in for some time.
    Banned = 18, "the operator does not let it in";
    /// The proof that the member still listens at its address is too old: it has to join again.
    Stale = 16, "the proof of the address is too old";
}

impl Reason {
    /// Returns the reason with this code.
    pub fn from_code(code: u8) -> Option<Reason> {
        Self::ALL.iter().copied().find(|reason| *reason as u8 == code)
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

/// An error in reading a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The datagram does not begin with the magic.
    #[error("it does not begin with the magic")]
    Magic,
    /// The message is of another version of the protocol.
    #[error("it is of version {0} of the protocol, and not {VERSION}")]
    Version(u8),
    /// The kind of message is not known.
    #[error("messages of kind {0:#04x} are not expected here")]
    Kind(u8),
    /// The message is too short, or too long.
    #[error("a message of kind {kind:#04x} cannot have {bytes} bytes")]
    Length {
        /// The kind of the message.
        kind: u8,
        /// The length of the datagram, in bytes.
        bytes: usize,
    },
    /// The value of a field is not valid.
    #[error("the field '{0}' is invalid")]
    Field(&'static str),
}

/// A client's request to join a group.
#[derive(Clone, Copy, derive_more::Debug, PartialEq, Eq)]
pub struct Join<'a> {
    /// The group's id on the port.
    pub group: u32,
    /// True if the client wants copies of its own datagrams.
    pub echo: bool,
    /// True if the client can give the group's state when asked.
    pub keeps_state: bool,
    /// A number chosen by the client, and repeated by the answer.
    pub nonce: u64,
    /// The cookie of the reflector's challenge; zeros at first.
    #[debug("…")]
    pub cookie: [u8; COOKIE_BYTES],
    /// The session of the membership elsewhere that this one takes the place of, if there is one.
    pub leaves: Option<u64>,
    /// The operator's permission; empty if the client has none.
    #[debug("{} bytes", token.len())]
    pub token: &'a [u8],
}

/// A member's heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// The group's id on the port.
    pub group: u32,
    /// The number of the heartbeat, greater than that of every earlier one of the session.
    pub number: u32,
    /// The session.
    pub session: u64,
    /// The member's clock, in microseconds: the reflector repeats it.
    pub client_us: u64,
    /// The reflector's clock in the last `PULSE`, in microseconds; 0 if there was none.
    pub reflector_us: u64,
    /// The time since that `PULSE` came, in microseconds.
    pub hold_us: u32,
    /// The version of the group's state that the member holds; 0 for none.
    pub state_version: u64,
    /// The newest proof that the reflector sent.
    pub proof: u64,
}

/// A member's request for parts of the group's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateGet {
    /// The group's id on the port.
    pub group: u32,
    /// The number of parts: 1 to [`PARTS_MAX`].
    pub parts: u16,
    /// The session.
    pub session: u64,
    /// The version of the state; 0 for the newest.
    pub version: u64,
    /// The offset of the first part in bytes: a multiple of [`PART_BYTES`].
    pub offset: u32,
    /// The newest proof that the reflector sent.
    pub proof: u64,
}

/// A part of a group's state from a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatePart<'a> {
    /// The group's id on the port.
    pub group: u32,
    /// The number of the `STATE_ASK` that this answers.
    pub ask: u32,
    /// The session.
    pub session: u64,
    /// The size of the whole state in bytes. `None` if the member has none to give.
    pub size: Option<u32>,
    /// The offset of this part in bytes: a multiple of [`PART_BYTES`].
    pub offset: u32,
    /// The part.
    pub bytes: &'a [u8],
}

/// The messages of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// A request to join.
    Join(Join<'a>),
    /// A request to leave.
    Leave {
        /// The group's id on the port.
        group: u32,
        /// The session.
        session: u64,
    },
    /// A sign of life.
    Heartbeat(Heartbeat),
    /// A question for the place of a location.
    Locate {
        /// A number chosen by the client, and repeated by the answer.
        nonce: u64,
        /// The location's name.
        location: &'a str,
    },
    /// A request for parts of the state.
    StateGet(StateGet),
    /// A part of the state.
    StatePart(StatePart<'a>),
}

/// The reflector's confirmation to a new member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The nonce of the `JOIN`.
    pub nonce: u64,
    /// The session, with which the member proves from here on that it got this answer.
    pub session: u64,
    /// The address of the member as the reflector sees it.
    pub seen: SocketAddr,
    /// The interval between heartbeats, in milliseconds.
    pub heartbeat_ms: u32,
    /// The longest time without a heartbeat before the member is removed, in milliseconds.
    pub expiry_ms: u32,
    /// Members in the group, this one included.
    pub members: u32,
    /// True if payload is preceded by a head with its number.
    pub sequence: bool,
    /// True if the group has a state that the reflector is still fetching: ask again.
    pub state_pending: bool,
    /// The version of the group's state; 0 for none.
    pub state_version: u64,
    /// The size of the state in bytes.
    pub state_bytes: u32,
    /// A secret to return, which proves that the member listens at its address.
    pub proof: u64,
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
    /// The member's clock, as the heartbeat gave it, in microseconds.
    pub client_us: u64,
    /// The reflector's clock, in microseconds.
    pub reflector_us: u64,
    /// The version of the group's state; 0 for none.
    pub state_version: u64,
    /// A fresh secret to return.
    pub proof: u64,
    /// The interval between heartbeats from here on, in milliseconds.
    pub heartbeat_ms: u32,
    /// The longest time without a heartbeat before the member is removed from here on, in milliseconds.
    pub expiry_ms: u32,
}

/// The reflectors of one location: the one in charge first, then its standbys. At least one, at most
/// [`REFLECTORS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reflectors {
    addresses: [SocketAddr; REFLECTORS_MAX],
    count: u8,
}

impl Reflectors {
    /// Creates the list from addresses; `None` if there are none or too many.
    pub fn new(list: &[SocketAddr]) -> Option<Self> {
        let mut addresses = [*list.first()?; REFLECTORS_MAX];
        addresses.get_mut(..list.len())?.copy_from_slice(list);
        Some(Reflectors { addresses, count: list.len() as u8 })
    }

    /// Returns all of them.
    pub fn as_slice(&self) -> &[SocketAddr] {
        &self.addresses[..self.count as usize]
    }

    /// Returns the one in charge.
    pub fn first(&self) -> SocketAddr {
        self.addresses[0]
    }
}

/// The messages of reflectors.
#[derive(Clone, Copy, derive_more::Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// A request to prove that the client listens at its address.
    Challenge {
        /// The nonce of the `JOIN`.
        nonce: u64,
        /// The cookie to be sent back in the next `JOIN`.
        #[debug("…")]
        cookie: [u8; COOKIE_BYTES],
        /// The address that the `JOIN` came from.
        seen: SocketAddr,
    },
    /// A confirmation that the client is a member.
    Joined(Joined),
    /// A refusal.
    Refused {
        /// The nonce of the `JOIN` or `LOCATE`; the session of any other request.
        nonce: u64,
        /// The reason.
        reason: Reason,
        /// The time after which to try again, in milliseconds; 0 for not at all, unless something else changes.
        retry_ms: u32,
    },
    /// Another reflector or group to join instead.
    Redirect {
        /// The nonce of the `JOIN`.
        nonce: u64,
        /// The reflector.
        address: SocketAddr,
        /// The group's id there.
        group: u32,
    },
    /// The answer to a heartbeat.
    Pulse(Pulse),
    /// The place of the location.
    Location {
        /// The nonce of the `LOCATE`.
        nonce: u64,
        /// The group's id there.
        group: u32,
        /// The reflectors.
        reflectors: Reflectors,
    },
    /// A request for the group's state.
    StateAsk {
        /// The session.
        session: u64,
        /// The number of this request.
        ask: u32,
    },
    /// A receipt for parts of the state.
    StateTaken {
        /// The session.
        session: u64,
        /// The number of the request.
        ask: u32,
        /// The offset before which every part has been taken, in bytes.
        next: u32,
        /// The later parts that have been taken as well. Bit n: the part n + 1 parts after `next`.
        later: u64,
    },
    /// A part of the group's state. Version 0 and no bytes if there is no state, or none yet.
    State {
        /// The session.
        session: u64,
        /// The version.
        version: u64,
        /// The size of the whole state in bytes.
        size: u32,
        /// The offset of this part in bytes.
        offset: u32,
        /// True if the state is still being fetched: ask again.
        pending: bool,
        /// The part.
        bytes: &'a [u8],
    },
    /// A request to join there, and then to leave here.
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
    /// A notice that the client is no member any more.
    Goodbye {
        /// The session.
        session: u64,
        /// The reason.
        reason: Reason,
    },
    /// A member's payload, with its number.
    Data {
        /// The number of the datagram, which grows by one with each datagram of the group.
        sequence: u64,
        /// The payload.
        payload: &'a [u8],
    },
}

/// Returns the refusal, in version 1, of a request to join or to locate of that version: its token is "cut, or of an
/// unknown version", which ends the trying. `None` for any other datagram. The answer is shorter than the request.
pub fn refuse_first_version(bytes: &[u8]) -> Option<Vec<u8>> {
    let nonce_at = match bytes.get(6..8)? {
        [1, kind::JOIN] => 16,
        [1, kind::LOCATE] => 8,
        _ => return None,
    };
    if !is_control(bytes) || bytes.len() < REQUEST_BYTES_MIN {
        return None;
    }
    let nonce: [u8; 8] = bytes[nonce_at..nonce_at + 8].try_into().ok()?;
    let reason = Reason::TokenMalformed;
    let answer = Answer::Refused { nonce: u64::from_le_bytes(nonce), reason, retry_ms: 0 };
    let mut answer = answer.encode();
    answer[6] = 1;
    Some(answer)
}

/// Lengths on which the rule about unproven addresses rests, for tests of that rule.
pub mod length {
    /// The longest answer to a `JOIN` or a `LOCATE`, in bytes.
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
    /// The length in bytes of a `REFUSED`, which is the only answer to every other request that names no valid session.
    pub const REFUSED: usize = super::codec::REFUSED_BYTES;
    const _: () = assert!(ANSWER_MAX <= super::REQUEST_BYTES_MIN);
    const _: () = assert!(REFUSED <= super::codec::LEAVE_BYTES && REFUSED <= super::codec::HEARTBEAT_BYTES);
    const _: () =
        assert!(REFUSED <= super::codec::STATE_GET_BYTES && REFUSED <= super::codec::STATE_PART_FIXED);
    const _: () = assert!(super::codec::PULSE_BYTES <= super::codec::HEARTBEAT_BYTES);
    const _: () = assert!(super::codec::JOIN_FIXED + super::TOKEN_BYTES_MAX <= super::MESSAGE_BYTES_MAX);
    const _: () = assert!(super::codec::LOCATE_FIXED + super::LOCATION_BYTES_MAX <= super::REQUEST_BYTES_MIN);
    const _: () = assert!(super::codec::STATE_FIXED + super::PART_BYTES <= super::MESSAGE_BYTES_MAX);
}
