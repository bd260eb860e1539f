//! Encoding and decoding of messages.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::*;

pub(super) const JOIN_FIXED: usize = 40;
pub(super) const LOCATE_FIXED: usize = 17;
pub(super) const LEAVE_BYTES: usize = 24;
pub(super) const HEARTBEAT_BYTES: usize = 64;
pub(super) const STATE_GET_BYTES: usize = 48;
pub(super) const STATE_PART_FIXED: usize = 32;
pub(super) const CHALLENGE_BYTES: usize = 52;
pub(super) const JOINED_BYTES: usize = 80;
pub(super) const REFUSED_BYTES: usize = 24;
pub(super) const REDIRECT_BYTES: usize = 40;
pub(super) const PULSE_BYTES: usize = 64;
pub(super) const LOCATION_BYTES: usize = 24 + 20 * REFLECTORS_MAX;
pub(super) const STATE_ASK_BYTES: usize = 24;
pub(super) const STATE_TAKEN_BYTES: usize = 32;
pub(super) const STATE_FIXED: usize = 40;
pub(super) const MOVE_FIXED: usize = 44;
pub(super) const GOODBYE_BYTES: usize = 24;
/// The size in a `STATE_PART` of a member that has no state to give.
pub(super) const NO_STATE: u32 = u32::MAX;

impl Request<'_> {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        match *self {
            Request::Join(join) => {
                let flags = u8::from(join.echo)
                    | u8::from(join.keeps_state) << 1
                    | u8::from(join.leaves.is_some()) << 2;
                let token = &join.token[..join.token.len().min(TOKEN_BYTES_MAX)];
                let mut out = Out::new(kind::JOIN, REQUEST_BYTES_MIN);
                out.u32(join.group).u8(flags).zeros(1).u16(token.len() as u16).u64(join.nonce);
                out.bytes(&join.cookie).bytes(token);
                if let Some(session) = join.leaves {
                    out.u64(session);
                }
                out.pad(REQUEST_BYTES_MIN)
            }
            Request::Leave { group, session } => {
                Out::new(kind::LEAVE, LEAVE_BYTES).u32(group).zeros(4).u64(session).done()
            }
            Request::Heartbeat(beat) => {
                let mut out = Out::new(kind::HEARTBEAT, HEARTBEAT_BYTES);
                out.u32(beat.group).u32(beat.number).u64(beat.session).u64(beat.client_us);
                out.u64(beat.reflector_us)
                    .u32(beat.hold_us)
                    .zeros(4)
                    .u64(beat.state_version)
                    .u64(beat.proof)
                    .done()
            }
            Request::Locate { nonce, location } => {
                let mut out = Out::new(kind::LOCATE, REQUEST_BYTES_MIN);
                out.u64(nonce).text(location).pad(REQUEST_BYTES_MIN)
            }
            Request::StateGet(get) => {
                let mut out = Out::new(kind::STATE_GET, STATE_GET_BYTES);
                out.u32(get.group).u16(get.parts).zeros(2).u64(get.session).u64(get.version);
                out.u32(get.offset).zeros(4).u64(get.proof).done()
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
    /// Decodes a datagram that a reflector received.
    ///
    /// # Errors
    /// The reason why it is no message of a client.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (kind, mut body) = Body::open(bytes)?;
        match kind {
            kind::JOIN => {
                body.least(REQUEST_BYTES_MIN)?;
                let (group, flags) = (body.u32()?, body.u8()?);
                if flags & !7 != 0 {
                    return Err(WireError::Field("flags"));
                }
                body.zeros(1)?;
                let (token_len, nonce, cookie) = (body.u16()?, body.u64()?, body.array()?);
                if usize::from(token_len) > TOKEN_BYTES_MAX {
                    return Err(WireError::Field("token length"));
                }
                let token = body.bytes(token_len.into())?;
                let (echo, keeps_state) = (flags & 1 != 0, flags & 2 != 0);
                let leaves = if flags & 4 != 0 { Some(body.u64()?) } else { None };
                Ok(Request::Join(Join { group, echo, keeps_state, nonce, cookie, leaves, token }))
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
                let (state_version, proof) = (body.u64()?, body.u64()?);
                Ok(Request::Heartbeat(Heartbeat {
                    group,
                    number,
                    session,
                    client_us,
                    reflector_us,
                    hold_us,
                    state_version,
                    proof,
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
                let proof = body.u64()?;
                if !(1..=PARTS_MAX).contains(&parts) {
                    return Err(WireError::Field("parts"));
                }
                if !(offset as usize).is_multiple_of(PART_BYTES) {
                    return Err(WireError::Field("offset"));
                }
                Ok(Request::StateGet(StateGet { group, parts, session, version, offset, proof }))
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
    /// Encodes the message.
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
                out.u32(joined.state_bytes).u64(joined.proof).done()
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
                out.u64(pulse.reflector_us).u64(pulse.state_version).u64(pulse.proof);
                out.u32(pulse.heartbeat_ms).u32(pulse.expiry_ms).done()
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
    /// Decodes a datagram that a client received.
    ///
    /// # Errors
    /// The reason why it is no message of a reflector.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        if bytes.get(6..8) == Some(&[VERSION, kind::DATA]) && is_control(bytes) {
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
                let proof = body.u64()?;
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
                    proof,
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
                let (proof, heartbeat_ms, expiry_ms) = (body.u64()?, body.u32()?, body.u32()?);
                if heartbeat_ms == 0 || expiry_ms < heartbeat_ms {
                    return Err(WireError::Field("heartbeat"));
                }
                Ok(Answer::Pulse(Pulse {
                    session,
                    number,
                    members,
                    client_us,
                    reflector_us,
                    state_version,
                    proof,
                    heartbeat_ms,
                    expiry_ms,
                }))
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

/// Checks that a part lies within its state, begins at a multiple of [`PART_BYTES`], and has the length of its place.
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
pub(super) struct Out(Vec<u8>);

impl Out {
    pub(super) fn new(kind: u8, capacity: usize) -> Self {
        let mut bytes = Vec::with_capacity(capacity);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&[VERSION, kind]);
        Out(bytes)
    }

    pub(super) fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    pub(super) fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn zeros(&mut self, count: usize) -> &mut Self {
        self.0.resize(self.0.len() + count, 0);
        self
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Writes the name of a location. One that is too long is cut, between characters, and will not be found.
    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        let fits = |end: &usize| text.is_char_boundary(*end);
        let end = (0..=text.len().min(LOCATION_BYTES_MAX)).rev().find(fits).unwrap_or(0);
        let text = &text[..end];
        self.u8(text.len() as u8).bytes(text.as_bytes())
    }

    /// Writes the family (4 or 6), a zero, the port, and 16 bytes for the address, of which IPv4 takes the first four.
    pub(super) fn address(&mut self, address: SocketAddr) -> &mut Self {
        match address.ip() {
            IpAddr::V4(ip) => self.u8(4).zeros(1).u16(address.port()).bytes(&ip.octets()).zeros(12),
            IpAddr::V6(ip) => self.u8(6).zeros(1).u16(address.port()).bytes(&ip.octets()),
        }
    }

    pub(super) fn pad(&mut self, len: usize) -> Vec<u8> {
        self.0.resize(self.0.len().max(len), 0);
        self.done()
    }

    pub(super) fn done(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}

/// The rest of a datagram that is being read.
pub(super) struct Body<'a> {
    kind: u8,
    whole: usize,
    left: &'a [u8],
}

impl<'a> Body<'a> {
    pub(super) fn open(bytes: &'a [u8]) -> Result<(u8, Self), WireError> {
        let (kind, body) = Self::open_any(bytes)?;
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(WireError::Length { kind, bytes: bytes.len() });
        }
        Ok((kind, body))
    }

    pub(super) fn open_any(bytes: &'a [u8]) -> Result<(u8, Self), WireError> {
        let left = bytes.strip_prefix(&MAGIC).ok_or(WireError::Magic)?;
        let left = match left {
            [VERSION, left @ ..] => left,
            [version, ..] => return Err(WireError::Version(*version)),
            [] => return Err(WireError::Length { kind: 0, bytes: bytes.len() }),
        };
        let (&kind, left) = left.split_first().ok_or(WireError::Length { kind: 0, bytes: bytes.len() })?;
        Ok((kind, Body { kind, whole: bytes.len(), left }))
    }

    pub(super) fn length(&self) -> WireError {
        WireError::Length { kind: self.kind, bytes: self.whole }
    }

    pub(super) fn exactly(&self, len: usize) -> Result<(), WireError> {
        if self.whole == len { Ok(()) } else { Err(self.length()) }
    }

    pub(super) fn least(&self, len: usize) -> Result<(), WireError> {
        if self.whole >= len { Ok(()) } else { Err(self.length()) }
    }

    pub(super) fn bytes(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let (bytes, left) = self.left.split_at_checked(len).ok_or(self.length())?;
        self.left = left;
        Ok(bytes)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (bytes, left) = self.left.split_first_chunk().ok_or(self.length())?;
        self.left = left;
        Ok(*bytes)
    }

    pub(super) fn u8(&mut self) -> Result<u8, WireError> {
        self.array().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn zeros(&mut self, count: usize) -> Result<(), WireError> {
        match self.bytes(count)?.iter().all(|byte| *byte == 0) {
            true => Ok(()),
            false => Err(WireError::Field("reserved")),
        }
    }

    pub(super) fn text(&mut self) -> Result<&'a str, WireError> {
        let len = usize::from(self.u8()?);
        if !(1..=LOCATION_BYTES_MAX).contains(&len) {
            return Err(WireError::Field("location"));
        }
        std::str::from_utf8(self.bytes(len)?).map_err(|_| WireError::Field("location"))
    }

    pub(super) fn address(&mut self) -> Result<SocketAddr, WireError> {
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

    pub(super) fn reason(&mut self) -> Result<Reason, WireError> {
        Reason::from_code(self.u8()?).ok_or(WireError::Field("reason"))
    }

    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.left)
    }
}
