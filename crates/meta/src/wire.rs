//! The messages of sequencers and capabilities as bytes. `docs/wire.md` has them.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use nacre_object::ObjectId;
use nacre_object::limit::OBJECT_ID_BYTES_MAX;
use nacre_rpc::{Cursor, MessageKind, Outbox, WireError};

use crate::capability::{Grant, Policy, ProgramName};
use crate::load::{RankLoad, ResourceLoad};
use crate::place::{Caller, Mode, Place, RANK_MAX, RankNumber};
use crate::service::{Call, Reply, Shown};

/// The number of the service.
pub const META: u8 = 7;
/// Binds a session to the connection, and subscribes to what its holder is asked for. Body: an [`Attach`].
pub const ATTACH: MessageKind = MessageKind::new(META, 1);
/// The reply to [`ATTACH`]. Body: an [`Attached`].
pub const ATTACHED: MessageKind = MessageKind::new(META, 2);
/// The reply to any request to a daemon that has no authority. Body: the addresses of the rank that has it, if it is known.
pub const MOVED: MessageKind = MessageKind::new(META, 3);
/// A renewal of the session's lease. No body. Answered by [`DONE`], or by [`LAPSED`].
pub const RENEW: MessageKind = MessageKind::new(META, 4);
/// The reply to a request of a session whose lease is not renewed any more. No body.
pub const LAPSED: MessageKind = MessageKind::new(META, 5);
/// The end of a session. No body. Answered by [`DONE`].
pub const END: MessageKind = MessageKind::new(META, 6);
/// A hand-over of the authority to a standby. No body. Answered by [`DONE`].
pub const HAND_OVER: MessageKind = MessageKind::new(META, 7);
/// [`Call::Next`]. The bodies of calls end with the id of the sequencer.
pub const NEXT: MessageKind = MessageKind::new(META, 8);
/// [`Call::Read`].
pub const READ: MessageKind = MessageKind::new(META, 9);
/// [`Call::Create`].
pub const CREATE: MessageKind = MessageKind::new(META, 10);
/// [`Call::Remove`].
pub const REMOVE: MessageKind = MessageKind::new(META, 11);
/// [`Call::SetPolicy`].
pub const SET_POLICY: MessageKind = MessageKind::new(META, 12);
/// [`Call::Look`].
pub const LOOK: MessageKind = MessageKind::new(META, 13);
/// [`Call::Acquire`].
pub const ACQUIRE: MessageKind = MessageKind::new(META, 14);
/// [`Call::Extend`].
pub const EXTEND: MessageKind = MessageKind::new(META, 15);
/// [`Call::Release`].
pub const RELEASE: MessageKind = MessageKind::new(META, 16);
/// [`Call::Assert`].
pub const ASSERT: MessageKind = MessageKind::new(META, 17);
/// The introduction of a connection: the rank that is meant, and what the other end knows. Body: an [`Introduction`].
/// Answered by [`DONE`]. Whoever does not introduce itself means rank 0, and knows no redirections.
pub const INTRODUCE: MessageKind = MessageKind::new(META, 18);
/// [`Call::Move`].
pub const MOVE: MessageKind = MessageKind::new(META, 19);
/// [`Reply::Positions`].
pub const POSITIONS: MessageKind = MessageKind::new(META, 20);
/// [`Reply::Done`].
pub const DONE: MessageKind = MessageKind::new(META, 21);
/// [`Reply::Shown`].
pub const SHOWN: MessageKind = MessageKind::new(META, 22);
/// [`Reply::Granted`].
pub const GRANTED: MessageKind = MessageKind::new(META, 23);
/// [`Reply::NotCached`].
pub const NOT_CACHED: MessageKind = MessageKind::new(META, 24);
/// [`Reply::Unknown`].
pub const UNKNOWN: MessageKind = MessageKind::new(META, 25);
/// [`Reply::Exists`].
pub const EXISTS: MessageKind = MessageKind::new(META, 26);
/// [`Reply::NotHeld`].
pub const NOT_HELD: MessageKind = MessageKind::new(META, 27);
/// [`Reply::Exhausted`].
pub const EXHAUSTED: MessageKind = MessageKind::new(META, 28);
/// [`Reply::Elsewhere`], over connections that were introduced. Body: the rank to be asked.
pub const ELSEWHERE: MessageKind = MessageKind::new(META, 29);
/// A request for the load of the rank. No body.
pub const LOAD: MessageKind = MessageKind::new(META, 30);
/// The reply to [`LOAD`]. Body: a [`RankLoad`].
pub const LOADED: MessageKind = MessageKind::new(META, 31);
/// [`Call::Expect`], from the rank that had the sequencer.
pub const EXPECT: MessageKind = MessageKind::new(META, 32);

/// The most addresses of a rank.
pub const ADDRESSES_MAX: usize = 16;
/// The longest address, in bytes.
pub const ADDRESS_BYTES_MAX: usize = 255;

/// The binding of a session to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attach {
    /// The session: a number that its client drew at random.
    pub session: u64,
    /// The number of the connection, which grows with each of the session. What comes over an earlier connection is
    /// refused from then on.
    pub connection: u64,
}

/// The answer to an [`Attach`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The rank's epoch.
    pub epoch: u64,
    /// The lease of the session, which counts from before the request was sent.
    pub lease: Duration,
}

/// The introduction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// The rank that is meant: a daemon that acts for another one is not it.
    pub rank: RankNumber,
    /// The other end.
    pub caller: Caller,
    /// A number that the client has drawn: it says to which half of the clients it belongs.
    pub client: u64,
}

/// The most sequencers in a [`LOADED`].
pub const LOADED_MAX: usize = 1000;

/// A request to a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revoked {
    /// The grant.
    pub grant: Grant,
    /// The positions, counted from the grant, that the holder may still hand out; none if it is to give the sequencer
    /// back at once.
    pub quota: Option<u64>,
    /// The sequencer.
    pub id: ObjectId,
}

/// Writes an [`ATTACH`].
pub fn put_attach(outbox: &mut Outbox, id: u64, attach: &Attach) {
    let open = outbox.begin(ATTACH, id);
    outbox.u64(attach.session);
    outbox.u64(attach.connection);
    // The body is 16 bytes long.
    let _ = outbox.end(open);
}

/// Reads the body of an [`ATTACH`].
///
/// # Errors
/// If the body is malformed, or the session's number is 0.
pub fn get_attach(body: &Bytes) -> Result<Attach, WireError> {
    let mut cursor = Cursor::new(body);
    let attach = Attach { session: cursor.u64()?, connection: cursor.u64()? };
    cursor.end()?;
    match attach.session {
        0 => Err(WireError::Malformed("session 0 does not exist")),
        _ => Ok(attach),
    }
}

/// Writes an [`ATTACHED`].
pub fn put_attached(outbox: &mut Outbox, id: u64, attached: &Attached) {
    let open = outbox.begin(ATTACHED, id);
    outbox.u64(attached.epoch);
    outbox.u64(attached.lease.as_millis() as u64);
    // The body is 16 bytes long.
    let _ = outbox.end(open);
}

/// Reads the body of an [`ATTACHED`].
///
/// # Errors
/// If the body is malformed.
pub fn get_attached(body: &Bytes) -> Result<Attached, WireError> {
    let mut cursor = Cursor::new(body);
    let attached = Attached { epoch: cursor.u64()?, lease: Duration::from_millis(cursor.u64()?) };
    cursor.end()?;
    Ok(attached)
}

/// Writes an [`INTRODUCE`].
pub fn put_introduction(outbox: &mut Outbox, id: u64, introduction: &Introduction) {
    let open = outbox.begin(INTRODUCE, id);
    outbox.u32(introduction.rank);
    outbox.u8(u8::from(introduction.caller == Caller::Rank));
    outbox.u64(introduction.client);
    // The body is 13 bytes long.
    let _ = outbox.end(open);
}

/// Reads the body of an [`INTRODUCE`]. Bytes that a later version adds are ignored.
///
/// # Errors
/// If the body is malformed.
pub fn get_introduction(body: &Bytes) -> Result<Introduction, WireError> {
    let mut cursor = Cursor::new(body);
    let rank = cursor.u32()?;
    let caller = match cursor.u8()? {
        0 => Caller::Client,
        1 => Caller::Rank,
        _ => return Err(WireError::Malformed("an unknown kind of caller")),
    };
    Ok(Introduction { rank, caller, client: cursor.u64()? })
}

/// Writes a [`LOADED`], with the first [`LOADED_MAX`] sequencers.
pub fn put_load(outbox: &mut Outbox, id: u64, load: &RankLoad) {
    let open = outbox.begin(LOADED, id);
    outbox.u32(load.rank);
    outbox.u64(load.epoch);
    outbox.u64(load.requests_per_second.to_bits());
    outbox.u64(load.forwarded_per_second.to_bits());
    outbox.u64(load.queue);
    outbox.u64(load.sessions);
    for resource in load.resources.iter().take(LOADED_MAX) {
        outbox.u64(resource.requests_per_second.to_bits());
        outbox.u64(resource.waiting);
        outbox.u8(u8::from(resource.held) | (u8::from(resource.moving) << 1));
        outbox.u8(resource.id.as_bytes().len() as u8);
        outbox.slice(resource.id.as_bytes());
    }
    // Some 300 KB at most.
    let _ = outbox.end(open);
}

/// Reads the body of a [`LOADED`].
///
/// # Errors
/// If the body is malformed.
pub fn get_load(body: &Bytes) -> Result<RankLoad, WireError> {
    let mut cursor = Cursor::new(body);
    let rate = |cursor: &mut Cursor<'_>| match f64::from_bits(cursor.u64()?) {
        rate if rate.is_finite() && rate >= 0.0 => Ok(rate),
        _ => Err(WireError::Malformed("a rate that is none")),
    };
    let (rank, epoch) = (cursor.u32()?, cursor.u64()?);
    let (requests_per_second, forwarded_per_second) = (rate(&mut cursor)?, rate(&mut cursor)?);
    let (queue, sessions) = (cursor.u64()?, cursor.u64()?);
    let mut resources = Vec::new();
    while cursor.left() > 0 {
        if resources.len() == LOADED_MAX {
            return Err(WireError::Malformed("a load of too many sequencers"));
        }
        let (requests_per_second, waiting) = (rate(&mut cursor)?, cursor.u64()?);
        let (held, moving) = match cursor.u8()? {
            flags @ 0..4 => (flags & 1 != 0, flags & 2 != 0),
            _ => return Err(WireError::Malformed("an unknown flag of a load")),
        };
        let length = cursor.u8()? as usize;
        let id = ObjectId::new(cursor.bytes(length)?);
        let id = id.map_err(|_| WireError::Malformed("the id of a sequencer has 1 to 255 bytes"))?;
        resources.push(ResourceLoad { id, requests_per_second, waiting, held, moving });
    }
    Ok(RankLoad { rank, epoch, requests_per_second, forwarded_per_second, queue, sessions, resources })
}

/// Writes a [`MOVED`]. Addresses that are too many or too long are left out.
pub fn put_moved(outbox: &mut Outbox, id: u64, addresses: &[String]) {
    let open = outbox.begin(MOVED, id);
    let fit = |address: &&String| address.len() <= ADDRESS_BYTES_MAX;
    for address in addresses.iter().filter(fit).take(ADDRESSES_MAX) {
        outbox.u8(address.len() as u8);
        outbox.slice(address.as_bytes());
    }
    // Bounded by the limits above.
    let _ = outbox.end(open);
}

/// Reads the body of a [`MOVED`].
///
/// # Errors
/// If the body is malformed.
pub fn get_moved(body: &Bytes) -> Result<Vec<String>, WireError> {
    let mut cursor = Cursor::new(body);
    let mut addresses = Vec::new();
    while cursor.left() > 0 {
        if addresses.len() == ADDRESSES_MAX {
            return Err(WireError::Malformed("a rank has too many addresses"));
        }
        let length = cursor.u8()? as usize;
        let address = String::from_utf8(cursor.bytes(length)?.to_vec());
        addresses.push(address.map_err(|_| WireError::Malformed("an address of a rank is not UTF-8"))?);
    }
    Ok(addresses)
}

/// Returns the payload of the event by which a holder is asked for a sequencer.
pub fn revoked(revoked: &Revoked) -> Bytes {
    let mut out = BytesMut::with_capacity(17 + revoked.id.as_bytes().len());
    out.extend_from_slice(&revoked.grant.to_le_bytes());
    out.extend_from_slice(&[u8::from(revoked.quota.is_some())]);
    out.extend_from_slice(&revoked.quota.unwrap_or(0).to_le_bytes());
    out.extend_from_slice(revoked.id.as_bytes());
    out.freeze()
}

/// Reads such an event.
///
/// # Errors
/// If the payload is malformed.
pub fn get_revoked(payload: &Bytes) -> Result<Revoked, WireError> {
    let mut cursor = Cursor::new(payload);
    let grant = cursor.u64()?;
    let bounded = cursor.u8()?;
    let quota = cursor.u64()?;
    let quota = match bounded {
        0 if quota == 0 => None,
        1 => Some(quota),
        _ => return Err(WireError::Malformed("an unknown flag of a revocation")),
    };
    Ok(Revoked { grant, quota, id: get_id(&mut cursor)? })
}

/// A sequencer that is about to move, as the sessions of its rank are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moving {
    /// The rank that gets it.
    pub to: RankNumber,
    /// The way to it from then on.
    pub mode: Mode,
    /// The sequencer.
    pub id: ObjectId,
}

/// The mark of a [`Moving`] in the place of a flag that no [`Revoked`] has: earlier versions of clients do not read it.
const MOVING: u8 = 2;

/// Returns an event that tells a session where a sequencer is about to move.
pub fn moving(moving: &Moving) -> Bytes {
    let mut out = BytesMut::with_capacity(17 + moving.id.as_bytes().len());
    out.extend_from_slice(&u64::from(moving.to).to_le_bytes());
    out.extend_from_slice(&[MOVING]);
    out.extend_from_slice(&u64::from(mode_number(moving.mode)).to_le_bytes());
    out.extend_from_slice(moving.id.as_bytes());
    out.freeze()
}

/// Reads such an event.
///
/// # Errors
/// If the payload is malformed.
pub fn get_moving(payload: &Bytes) -> Result<Moving, WireError> {
    let mut cursor = Cursor::new(payload);
    let (to, mark, mode) = (cursor.u64()?, cursor.u8()?, cursor.u64()?);
    let to = RankNumber::try_from(to).ok().filter(|to| *to <= RANK_MAX);
    let mode = u8::try_from(mode).ok().and_then(mode_of);
    match (to, mode) {
        (Some(to), Some(mode)) if mark == MOVING => Ok(Moving { to, mode, id: get_id(&mut cursor)? }),
        _ => Err(WireError::Malformed("no event about a sequencer that moves")),
    }
}

/// Returns the kind of a call.
pub fn kind(call: &Call) -> MessageKind {
    match call {
        Call::Create(_) => CREATE,
        Call::Remove => REMOVE,
        Call::SetPolicy(_) => SET_POLICY,
        Call::Look => LOOK,
        Call::Next(_) => NEXT,
        Call::Read => READ,
        Call::Acquire => ACQUIRE,
        Call::Extend(_) => EXTEND,
        Call::Release(..) => RELEASE,
        Call::Assert(_) => ASSERT,
        Call::Move(..) => MOVE,
        Call::Expect => EXPECT,
    }
}

/// Writes a call.
#[inline]
pub fn put_call(outbox: &mut Outbox, id: u64, sequencer: &ObjectId, call: &Call) {
    let open = outbox.begin(kind(call), id);
    match call {
        Call::Remove | Call::Look | Call::Read | Call::Acquire | Call::Expect => {}
        Call::Create(policy) | Call::SetPolicy(policy) => {
            let (code, first, second) = policy_numbers(*policy);
            outbox.u8(code);
            outbox.u64(first);
            outbox.u64(second);
        }
        Call::Next(number) | Call::Extend(number) | Call::Assert(number) => outbox.u64(*number),
        Call::Release(grant, tail) => {
            outbox.u64(*grant);
            outbox.u64(*tail);
        }
        Call::Move(rank, mode) => {
            outbox.u32(*rank);
            outbox.u8(mode_number(*mode));
        }
    }
    outbox.slice(sequencer.as_bytes());
    // An id has 255 bytes at most.
    let _ = outbox.end(open);
}

/// Reads a call and the sequencer that it is about.
///
/// # Errors
/// If the body is malformed.
#[inline]
pub fn get_call(kind: MessageKind, body: &Bytes) -> Result<(ObjectId, Call), WireError> {
    let mut cursor = Cursor::new(body);
    let call = match kind {
        NEXT => Call::Next(cursor.u64()?),
        READ => Call::Read,
        CREATE => Call::Create(get_policy(&mut cursor)?),
        REMOVE => Call::Remove,
        SET_POLICY => Call::SetPolicy(get_policy(&mut cursor)?),
        LOOK => Call::Look,
        ACQUIRE => Call::Acquire,
        EXPECT => Call::Expect,
        EXTEND => Call::Extend(cursor.u64()?),
        RELEASE => Call::Release(cursor.u64()?, cursor.u64()?),
        ASSERT => Call::Assert(cursor.u64()?),
        MOVE => {
            let (rank, mode) = (cursor.u32()?, cursor.u8()?);
            Call::Move(rank, mode_of(mode).ok_or(WireError::Malformed("an unknown mode"))?)
        }
        _ => return Err(WireError::Malformed("no call about a sequencer")),
    };
    Ok((get_id(&mut cursor)?, call))
}

fn get_id(cursor: &mut Cursor<'_>) -> Result<ObjectId, WireError> {
    let left = cursor.left();
    if left == 0 || left > OBJECT_ID_BYTES_MAX {
        return Err(WireError::Malformed("the id of a sequencer has 1 to 255 bytes"));
    }
    let id = ObjectId::new(cursor.bytes(left)?);
    id.map_err(|_| WireError::Malformed("the id of a sequencer has 1 to 255 bytes"))
}

fn mode_number(mode: Mode) -> u8 {
    match mode {
        Mode::Client => 0,
        Mode::Proxy => 1,
        Mode::ProxyHalf => 2,
    }
}

fn mode_of(code: u8) -> Option<Mode> {
    [Mode::Client, Mode::Proxy, Mode::ProxyHalf].get(usize::from(code)).copied()
}

/// Returns the code of a policy and its two numbers: times in microseconds, operations, the halves of a name.
pub fn policy_numbers(policy: Policy) -> (u8, u64, u64) {
    match policy {
        Policy::BestEffort => (1, 0, 0),
        Policy::Hold(time) => (2, micros(time), 0),
        Policy::Quota { operations, within } => (3, operations, micros(within)),
        Policy::RoundTrip => (4, 0, 0),
        Policy::Lua(name) => {
            let (first, second) = name.numbers();
            (5, first, second)
        }
    }
}

/// Returns the policy of a code and two numbers; `None` if there is none.
pub fn policy_of(code: u8, first: u64, second: u64) -> Option<Policy> {
    let time = |micros: u64| (micros <= HOLD_MAX.as_micros() as u64).then_some(Duration::from_micros(micros));
    match (code, first, second) {
        (1, 0, 0) => Some(Policy::BestEffort),
        (2, hold, 0) => Some(Policy::Hold(time(hold)?)),
        (3, operations, within) => Some(Policy::Quota { operations, within: time(within)? }),
        (4, 0, 0) => Some(Policy::RoundTrip),
        (5, first, second) => Some(Policy::Lua(ProgramName::from_numbers(first, second)?)),
        _ => None,
    }
}

/// The longest time for which a holder may keep a sequencer that others wait for.
pub const HOLD_MAX: Duration = Duration::from_secs(3600);

fn micros(time: Duration) -> u64 {
    time.min(HOLD_MAX).as_micros() as u64
}

fn get_policy(cursor: &mut Cursor<'_>) -> Result<Policy, WireError> {
    let (code, first, second) = (cursor.u8()?, cursor.u64()?, cursor.u64()?);
    policy_of(code, first, second).ok_or(WireError::Malformed("an unknown policy"))
}

/// Writes a reply.
#[inline]
pub fn put_reply(outbox: &mut Outbox, id: u64, reply: &Reply) {
    let bare = |outbox: &mut Outbox, kind| nacre_rpc::control::put_bare(outbox, kind, id);
    match reply {
        Reply::Positions { first, caches } => {
            let open = outbox.begin(POSITIONS, id);
            outbox.u64(*first);
            outbox.u8(u8::from(*caches));
            // The body is 9 bytes long.
            let _ = outbox.end(open);
        }
        Reply::Done => bare(outbox, DONE),
        Reply::Shown(shown) => {
            let open = outbox.begin(SHOWN, id);
            let (code, first, second) = policy_numbers(shown.policy);
            for number in [shown.tail, shown.reserved, shown.holder, shown.waiting, first, second] {
                outbox.u64(number);
            }
            outbox.u8(code);
            outbox.u8(u8::from(shown.held));
            // The body is 50 bytes long.
            let _ = outbox.end(open);
        }
        Reply::Granted { grant, first, bound } => {
            let open = outbox.begin(GRANTED, id);
            for number in [grant, first, bound] {
                outbox.u64(*number);
            }
            // The body is 24 bytes long.
            let _ = outbox.end(open);
        }
        Reply::NotCached => bare(outbox, NOT_CACHED),
        Reply::Unknown => bare(outbox, UNKNOWN),
        Reply::Exists => bare(outbox, EXISTS),
        Reply::NotHeld => bare(outbox, NOT_HELD),
        Reply::Exhausted => bare(outbox, EXHAUSTED),
        Reply::Elsewhere(place) => {
            let open = outbox.begin(ELSEWHERE, id);
            outbox.u32(place.rank);
            // The body is 4 bytes long.
            let _ = outbox.end(open);
        }
    }
}

/// Reads a reply.
///
/// # Errors
/// If the body is malformed.
#[inline]
pub fn get_reply(kind: MessageKind, body: &Bytes) -> Result<Reply, WireError> {
    let mut cursor = Cursor::new(body);
    let flag = |cursor: &mut Cursor<'_>| match cursor.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(WireError::Malformed("an unknown flag of a reply")),
    };
    let reply = match kind {
        POSITIONS => Reply::Positions { first: cursor.u64()?, caches: flag(&mut cursor)? },
        DONE => Reply::Done,
        SHOWN => {
            let (tail, reserved, holder, waiting) =
                (cursor.u64()?, cursor.u64()?, cursor.u64()?, cursor.u64()?);
            let (first, second, code) = (cursor.u64()?, cursor.u64()?, cursor.u8()?);
            let policy = policy_of(code, first, second).ok_or(WireError::Malformed("an unknown policy"))?;
            let held = flag(&mut cursor)?;
            Reply::Shown(Shown { tail, reserved, policy, holder, held, waiting })
        }
        GRANTED => Reply::Granted { grant: cursor.u64()?, first: cursor.u64()?, bound: cursor.u64()? },
        NOT_CACHED => Reply::NotCached,
        UNKNOWN => Reply::Unknown,
        EXISTS => Reply::Exists,
        NOT_HELD => Reply::NotHeld,
        EXHAUSTED => Reply::Exhausted,
        ELSEWHERE => match cursor.u32()? {
            // A session with it takes a thread.
            rank if rank <= RANK_MAX => Reply::Elsewhere(Place { rank, ..Place::default() }),
            _ => return Err(WireError::Malformed("a rank that there cannot be")),
        },
        _ => return Err(WireError::Malformed("no reply about a sequencer")),
    };
    cursor.end()?;
    Ok(reply)
}
