//! The control protocol's datagrams, byte by byte (`docs/reflect-wire.md`). A pure codec: it does no I/O, never panics,
//! and allocates nothing when it decodes.
//!
//! Invariants, which the reflector's promise not to amplify rests on:
//! - A request that may come from an address that has proven nothing (`JOIN`, `LOCATE`, `LEAVE`, `HEARTBEAT`,
//!   `STATE_GET`, `STATE_PART`) is at least as long as every answer that the reflector may give to it before the proof.
//! - Every length that a message announces is compared with what is there before it is used.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

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

const JOIN_FIXED: usize = 40;
const LOCATE_FIXED: usize = 17;
const LEAVE_BYTES: usize = 24;
const HEARTBEAT_BYTES: usize = 56;
const STATE_GET_BYTES: usize = 40;
const STATE_PART_FIXED: usize = 32;
const CHALLENGE_BYTES: usize = 52;
const JOINED_BYTES: usize = 72;
const REFUSED_BYTES: usize = 24;
const REDIRECT_BYTES: usize = 40;
const PULSE_BYTES: usize = 48;
const LOCATION_BYTES: usize = 24 + 20 * REFLECTORS_MAX;
const STATE_ASK_BYTES: usize = 24;
const STATE_TAKEN_BYTES: usize = 32;
const STATE_FIXED: usize = 40;
const MOVE_FIXED: usize = 44;
const GOODBYE_BYTES: usize = 24;
/// "The member has no state to give."
const NO_STATE: u32 = u32::MAX;

impl Request<'_> {
    /// Writes the datagram.
    pub fn encode(&self) -> Vec<u8> {
        match *self {
            Request::Join(join) => {
                let flags = u8::from(join.echo) | u8::from(join.keeps_state) << 1;
                let token = &join.token[..join.token.len().min(TOKEN_BYTES_MAX)];
                let mut out = Out::new(kind::JOIN, REQUEST_BYTES_MIN);
                out.u32(join.group).u8(flags).u8(token.len() as u8).zeros(2).u64(join.nonce);
                out.bytes(&join.cookie).bytes(token).pad(REQUEST_BYTES_MIN)
            }
            Request::Leave { group, session } => {
                Out::new(kind::LEAVE, LEAVE_BYTES).u32(group).zeros(4).u64(session).done()
            }
            Request::Heartbeat(beat) => {
                let mut out = Out::new(kind::HEARTBEAT, HEARTBEAT_BYTES);
                out.u32(beat.group).u32(beat.number).u64(beat.session).u64(beat.client_us);
                out.u64(beat.reflector_us).u32(beat.hold_us).zeros(4).u64(beat.state_version).done()
            }
            Request::Locate { nonce, location } => {
                let mut out = Out::new(kind::LOCATE, REQUEST_BYTES_MIN);
                out.u64(nonce).text(location).pad(REQUEST_BYTES_MIN)
            }
            Request::StateGet(get) => {
                let mut out = Out::new(kind::STATE_GET, STATE_GET_BYTES);
                out.u32(get.group).u16(get.parts).zeros(2).u64(get.session).u64(get.version);
                out.u32(get.offset).zeros(4).done()
            }
            Request::StatePart(part) => {
                let mut out = Out::new(kind::STATE_PART, STATE_PART_FIXED + part.bytes.len());
                out.u32(part.group).u32(part.ask).u64(part.session).u32(part.size.unwrap_or(NO_STATE));
                out.u32(part.offset).bytes(part.bytes).done()
            }
        }
    }
}

impl<'a> Request<'a> {
    /// Reads a datagram that a reflector got.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (kind, mut body) = Body::open(bytes)?;
        match kind {
            kind::JOIN => {
                body.least(REQUEST_BYTES_MIN)?;
                let (group, flags, token_len) = (body.u32()?, body.u8()?, body.u8()?);
                if flags & !3 != 0 {
                    return Err(WireError::Field("flags"));
                }
                body.zeros(2)?;
                let (nonce, cookie) = (body.u64()?, body.array()?);
                if usize::from(token_len) > TOKEN_BYTES_MAX {
                    return Err(WireError::Field("token length"));
                }
                let token = body.bytes(token_len.into())?;
                let (echo, keeps_state) = (flags & 1 != 0, flags & 2 != 0);
                Ok(Request::Join(Join { group, echo, keeps_state, nonce, cookie, token }))
            }
            kind::LEAVE => {
                body.exactly(LEAVE_BYTES)?;
                let group = body.u32()?;
                body.zeros(4)?;
                Ok(Request::Leave { group, session: body.u64()? })
            }
            kind::HEARTBEAT => {
                body.exactly(HEARTBEAT_BYTES)?;
                let (group, number, session) = (body.u32()?, body.u32()?, body.u64()?);
                let (client_us, reflector_us, hold_us) = (body.u64()?, body.u64()?, body.u32()?);
                body.zeros(4)?;
                let state_version = body.u64()?;
                Ok(Request::Heartbeat(Heartbeat {
                    group,
                    number,
                    session,
                    client_us,
                    reflector_us,
                    hold_us,
                    state_version,
                }))
            }
            kind::LOCATE => {
                body.least(REQUEST_BYTES_MIN)?;
                Ok(Request::Locate { nonce: body.u64()?, location: body.text()? })
            }
            kind::STATE_GET => {
                body.exactly(STATE_GET_BYTES)?;
                let (group, parts) = (body.u32()?, body.u16()?);
                body.zeros(2)?;
                let (session, version, offset) = (body.u64()?, body.u64()?, body.u32()?);
                body.zeros(4)?;
                if !(1..=PARTS_MAX).contains(&parts) {
                    return Err(WireError::Field("parts"));
                }
                if !(offset as usize).is_multiple_of(PART_BYTES) {
                    return Err(WireError::Field("offset"));
                }
                Ok(Request::StateGet(StateGet { group, parts, session, version, offset }))
            }
            kind::STATE_PART => {
                let (group, ask, session) = (body.u32()?, body.u32()?, body.u64()?);
                let (size, offset) = (body.u32()?, body.u32()?);
                let bytes = body.rest();
                let size = match size {
                    NO_STATE if offset == 0 && bytes.is_empty() => None,
                    size => {
                        part_fits(size, offset, bytes.len())?;
                        Some(size)
                    }
                };
                Ok(Request::StatePart(StatePart { group, ask, session, size, offset, bytes }))
            }
            kind => Err(WireError::Kind(kind)),
        }
    }
}

impl Answer<'_> {
    /// Writes the datagram.
    pub fn encode(&self) -> Vec<u8> {
        match *self {
            Answer::Challenge { nonce, cookie, seen } => {
                Out::new(kind::CHALLENGE, CHALLENGE_BYTES).u64(nonce).bytes(&cookie).address(seen).done()
            }
            Answer::Joined(joined) => {
                let flags = u32::from(joined.sequence) | u32::from(joined.state_pending) << 1;
                let mut out = Out::new(kind::JOINED, JOINED_BYTES);
                out.u64(joined.nonce).u64(joined.session).address(joined.seen).u32(joined.heartbeat_ms);
                out.u32(joined.expiry_ms).u32(joined.members).u32(flags).u64(joined.state_version);
                out.u32(joined.state_bytes).done()
            }
            Answer::Refused { nonce, reason, retry_ms } => {
                let mut out = Out::new(kind::REFUSED, REFUSED_BYTES);
                out.u64(nonce).u8(reason as u8).zeros(3).u32(retry_ms).done()
            }
            Answer::Redirect { nonce, address, group } => {
                Out::new(kind::REDIRECT, REDIRECT_BYTES).u64(nonce).address(address).u32(group).done()
            }
            Answer::Pulse(pulse) => {
                let mut out = Out::new(kind::PULSE, PULSE_BYTES);
                out.u64(pulse.session).u32(pulse.number).u32(pulse.members).u64(pulse.client_us);
                out.u64(pulse.reflector_us).u64(pulse.state_version).done()
            }
            Answer::Location { nonce, group, reflectors } => {
                let mut out = Out::new(kind::LOCATION, LOCATION_BYTES);
                out.u64(nonce).u32(group).u8(reflectors.count).zeros(3);
                for &address in reflectors.as_slice() {
                    out.address(address);
                }
                out.pad(LOCATION_BYTES)
            }
            Answer::StateAsk { session, ask } => {
                Out::new(kind::STATE_ASK, STATE_ASK_BYTES).u64(session).u32(ask).zeros(4).done()
            }
            Answer::StateTaken { session, ask, next, later } => {
                let mut out = Out::new(kind::STATE_TAKEN, STATE_TAKEN_BYTES);
                out.u64(session).u32(ask).u32(next).u64(later).done()
            }
            Answer::State { session, version, size, offset, pending, bytes } => {
                let mut out = Out::new(kind::STATE, STATE_FIXED + bytes.len());
                out.u64(session).u64(version).u32(size).u32(offset).u8(u8::from(pending)).zeros(7);
                out.bytes(bytes).done()
            }
            Answer::Move { session, address, group, location } => {
                let mut out = Out::new(kind::MOVE, MOVE_FIXED + location.len());
                out.u64(session).address(address).u32(group).zeros(3).text(location).done()
            }
            Answer::Goodbye { session, reason } => {
                Out::new(kind::GOODBYE, GOODBYE_BYTES).u64(session).u8(reason as u8).zeros(7).done()
            }
            Answer::Data { sequence, payload } => {
                Out::new(kind::DATA, DATA_HEAD_BYTES + payload.len()).u64(sequence).bytes(payload).done()
            }
        }
    }
}

impl<'a> Answer<'a> {
    /// Reads a datagram that a client got.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        if bytes.get(7) == Some(&kind::DATA) && is_control(bytes) {
            let (_, mut body) = Body::open_any(bytes)?;
            return Ok(Answer::Data { sequence: body.u64()?, payload: body.rest() });
        }
        let (kind, mut body) = Body::open(bytes)?;
        match kind {
            kind::CHALLENGE => {
                body.exactly(CHALLENGE_BYTES)?;
                Ok(Answer::Challenge { nonce: body.u64()?, cookie: body.array()?, seen: body.address()? })
            }
            kind::JOINED => {
                body.exactly(JOINED_BYTES)?;
                let (nonce, session, seen) = (body.u64()?, body.u64()?, body.address()?);
                let (heartbeat_ms, expiry_ms, members) = (body.u32()?, body.u32()?, body.u32()?);
                let (flags, state_version, state_bytes) = (body.u32()?, body.u64()?, body.u32()?);
                if flags & !3 != 0 {
                    return Err(WireError::Field("flags"));
                }
                if heartbeat_ms == 0 || expiry_ms < heartbeat_ms {
                    return Err(WireError::Field("heartbeat"));
                }
                if state_bytes as usize > STATE_BYTES_MAX {
                    return Err(WireError::Field("state size"));
                }
                let (sequence, state_pending) = (flags & 1 != 0, flags & 2 != 0);
                Ok(Answer::Joined(Joined {
                    nonce,
                    session,
                    seen,
                    heartbeat_ms,
                    expiry_ms,
                    members,
                    sequence,
                    state_pending,
                    state_version,
                    state_bytes,
                }))
            }
            kind::REFUSED => {
                body.exactly(REFUSED_BYTES)?;
                let (nonce, reason) = (body.u64()?, body.reason()?);
                body.zeros(3)?;
                Ok(Answer::Refused { nonce, reason, retry_ms: body.u32()? })
            }
            kind::REDIRECT => {
                body.exactly(REDIRECT_BYTES)?;
                Ok(Answer::Redirect { nonce: body.u64()?, address: body.address()?, group: body.u32()? })
            }
            kind::PULSE => {
                body.exactly(PULSE_BYTES)?;
                let (session, number, members) = (body.u64()?, body.u32()?, body.u32()?);
                let (client_us, reflector_us, state_version) = (body.u64()?, body.u64()?, body.u64()?);
                Ok(Answer::Pulse(Pulse { session, number, members, client_us, reflector_us, state_version }))
            }
            kind::LOCATION => {
                body.exactly(LOCATION_BYTES)?;
                let (nonce, group, count) = (body.u64()?, body.u32()?, usize::from(body.u8()?));
                body.zeros(3)?;
                let mut list = [SocketAddr::from(([0, 0, 0, 0], 0)); REFLECTORS_MAX];
                let list = list.get_mut(..count).ok_or(WireError::Field("reflectors"))?;
                for place in list.iter_mut() {
                    *place = body.address()?;
                }
                let reflectors = Reflectors::new(list).ok_or(WireError::Field("reflectors"))?;
                Ok(Answer::Location { nonce, group, reflectors })
            }
            kind::STATE_ASK => {
                body.exactly(STATE_ASK_BYTES)?;
                let (session, ask) = (body.u64()?, body.u32()?);
                body.zeros(4)?;
                Ok(Answer::StateAsk { session, ask })
            }
            kind::STATE_TAKEN => {
                body.exactly(STATE_TAKEN_BYTES)?;
                let (session, ask, next, later) = (body.u64()?, body.u32()?, body.u32()?, body.u64()?);
                Ok(Answer::StateTaken { session, ask, next, later })
            }
            kind::STATE => {
                let (session, version) = (body.u64()?, body.u64()?);
                let (size, offset, pending) = (body.u32()?, body.u32()?, body.u8()?);
                body.zeros(7)?;
                if pending > 1 {
                    return Err(WireError::Field("pending"));
                }
                let bytes = body.rest();
                part_fits(size, offset, bytes.len())?;
                Ok(Answer::State { session, version, size, offset, pending: pending == 1, bytes })
            }
            kind::MOVE => {
                let (session, address, group) = (body.u64()?, body.address()?, body.u32()?);
                body.zeros(3)?;
                let location = body.text()?;
                match body.rest() {
                    [] => Ok(Answer::Move { session, address, group, location }),
                    _ => Err(WireError::Length { kind, bytes: bytes.len() }),
                }
            }
            kind::GOODBYE => {
                body.exactly(GOODBYE_BYTES)?;
                let (session, reason) = (body.u64()?, body.reason()?);
                body.zeros(7)?;
                Ok(Answer::Goodbye { session, reason })
            }
            kind => Err(WireError::Kind(kind)),
        }
    }
}

/// A part lies within its state, begins where parts begin, and is as long as parts are there.
fn part_fits(size: u32, offset: u32, len: usize) -> Result<(), WireError> {
    let (size, offset) = (size as usize, offset as usize);
    if size > STATE_BYTES_MAX {
        return Err(WireError::Field("state size"));
    }
    if !offset.is_multiple_of(PART_BYTES) || offset > size || (offset == size && size != 0) {
        return Err(WireError::Field("offset"));
    }
    if len != PART_BYTES.min(size - offset) {
        return Err(WireError::Field("part length"));
    }
    Ok(())
}

/// A datagram being written.
struct Out(Vec<u8>);

impl Out {
    fn new(kind: u8, capacity: usize) -> Self {
        let mut bytes = Vec::with_capacity(capacity);
        bytes.extend_from_slice(&MAGIC);
        bytes.push(kind);
        Out(bytes)
    }

    fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    fn zeros(&mut self, count: usize) -> &mut Self {
        self.0.resize(self.0.len() + count, 0);
        self
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// A location's name. One that is too long is cut, between characters, and will not be found.
    fn text(&mut self, text: &str) -> &mut Self {
        let fits = |end: &usize| text.is_char_boundary(*end);
        let end = (0..=text.len().min(LOCATION_BYTES_MAX)).rev().find(fits).unwrap_or(0);
        let text = &text[..end];
        self.u8(text.len() as u8).bytes(text.as_bytes())
    }

    /// Family (4 or 6), a zero, the port, and 16 bytes for the address, of which IPv4 takes the first four.
    fn address(&mut self, address: SocketAddr) -> &mut Self {
        match address.ip() {
            IpAddr::V4(ip) => self.u8(4).zeros(1).u16(address.port()).bytes(&ip.octets()).zeros(12),
            IpAddr::V6(ip) => self.u8(6).zeros(1).u16(address.port()).bytes(&ip.octets()),
        }
    }

    fn pad(&mut self, len: usize) -> Vec<u8> {
        self.0.resize(self.0.len().max(len), 0);
        self.done()
    }

    fn done(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}

/// What is left of a datagram that is being read.
struct Body<'a> {
    kind: u8,
    whole: usize,
    left: &'a [u8],
}

impl<'a> Body<'a> {
    fn open(bytes: &'a [u8]) -> Result<(u8, Self), WireError> {
        let (kind, body) = Self::open_any(bytes)?;
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(WireError::Length { kind, bytes: bytes.len() });
        }
        Ok((kind, body))
    }

    fn open_any(bytes: &'a [u8]) -> Result<(u8, Self), WireError> {
        let left = bytes.strip_prefix(&MAGIC).ok_or(WireError::Magic)?;
        let (&kind, left) = left.split_first().ok_or(WireError::Length { kind: 0, bytes: bytes.len() })?;
        Ok((kind, Body { kind, whole: bytes.len(), left }))
    }

    fn length(&self) -> WireError {
        WireError::Length { kind: self.kind, bytes: self.whole }
    }

    fn exactly(&self, len: usize) -> Result<(), WireError> {
        if self.whole == len { Ok(()) } else { Err(self.length()) }
    }

    fn least(&self, len: usize) -> Result<(), WireError> {
        if self.whole >= len { Ok(()) } else { Err(self.length()) }
    }

    fn bytes(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let (bytes, left) = self.left.split_at_checked(len).ok_or(self.length())?;
        self.left = left;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (bytes, left) = self.left.split_first_chunk().ok_or(self.length())?;
        self.left = left;
        Ok(*bytes)
    }

    fn u8(&mut self) -> Result<u8, WireError> {
        self.array().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_le_bytes)
    }

    fn zeros(&mut self, count: usize) -> Result<(), WireError> {
        match self.bytes(count)?.iter().all(|byte| *byte == 0) {
            true => Ok(()),
            false => Err(WireError::Field("reserved")),
        }
    }

    fn text(&mut self) -> Result<&'a str, WireError> {
        let len = usize::from(self.u8()?);
        if !(1..=LOCATION_BYTES_MAX).contains(&len) {
            return Err(WireError::Field("location"));
        }
        std::str::from_utf8(self.bytes(len)?).map_err(|_| WireError::Field("location"))
    }

    fn address(&mut self) -> Result<SocketAddr, WireError> {
        let family = self.u8()?;
        self.zeros(1)?;
        let port = self.u16()?;
        let ip: [u8; 16] = self.array()?;
        match (family, ip) {
            (4, [a, b, c, d, rest @ ..]) if rest == [0; 12] => {
                Ok(SocketAddr::from((Ipv4Addr::new(a, b, c, d), port)))
            }
            (6, ip) => Ok(SocketAddr::from((Ipv6Addr::from(ip), port))),
            _ => Err(WireError::Field("address")),
        }
    }

    fn reason(&mut self) -> Result<Reason, WireError> {
        Reason::from_code(self.u8()?).ok_or(WireError::Field("reason"))
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.left)
    }
}

/// The lengths on which the rule about unproven addresses rests, for those who check it.
pub mod length {
    /// The longest answer that the reflector may give to a `JOIN` or a `LOCATE`.
    pub const ANSWER_MAX: usize = {
        let (mut max, all) = (
            0,
            [
                super::CHALLENGE_BYTES,
                super::JOINED_BYTES,
                super::REFUSED_BYTES,
                super::REDIRECT_BYTES,
                super::LOCATION_BYTES,
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
    pub const REFUSED: usize = super::REFUSED_BYTES;
    const _: () = assert!(ANSWER_MAX <= super::REQUEST_BYTES_MIN);
    const _: () = assert!(REFUSED <= super::LEAVE_BYTES && REFUSED <= super::HEARTBEAT_BYTES);
    const _: () = assert!(REFUSED <= super::STATE_GET_BYTES && REFUSED <= super::STATE_PART_FIXED);
    const _: () = assert!(super::JOIN_FIXED + super::TOKEN_BYTES_MAX <= super::REQUEST_BYTES_MIN);
    const _: () = assert!(super::LOCATE_FIXED + super::LOCATION_BYTES_MAX <= super::REQUEST_BYTES_MIN);
    const _: () = assert!(super::STATE_FIXED + super::PART_BYTES <= super::MESSAGE_BYTES_MAX);
}
