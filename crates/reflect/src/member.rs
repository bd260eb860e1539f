//! A member: the client's side of the protocol, as a state machine without clock, sockets or randomness of its own.
//!
//! It takes datagrams ([`Member::handle`]) and the time ([`Member::tick`], at the latest when [`Member::timeout_us`]
//! says), and returns datagrams to send ([`Member::poll`]) and [`MemberEvent`]s. One `Member` is one membership: it
//! joins, stays in, and when its reflector falls silent it joins again, there or at the next of its reflectors. Several
//! can share a socket.
//!
//! Invariants:
//! - Only answers that repeat a nonce or a session of this member's, and come from the reflector asked, are accepted.
//! - It joins the next group before it leaves the last.
//! - It never sends faster than its back-off allows, whatever the answers.

mod attempt;
mod gap;
mod link;
mod state;

use std::collections::VecDeque;
use std::net::SocketAddr;

use attempt::{Attempt, Purpose};
use bytes::Bytes;
use link::{Leaving, Link};
use state::{Fetch, Give};

use crate::wire::{self, Answer, Reason};

/// The greatest number of places that a member remembers.
const PLACES_MAX: usize = 8;

/// A group at a reflector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The reflector's address, with the group's port.
    pub reflector: SocketAddr,
    /// The group's id on that port.
    pub group: u32,
}

/// The group that a member is to be in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The first of these groups that admits it: one reflector, and its standbys.
    Group(Vec<Target>),
    /// The group of a location, for whose place these reflectors are asked.
    Location {
        /// The location's name.
        name: String,
        /// The reflectors to ask.
        reflectors: Vec<SocketAddr>,
    },
}

/// Options of a member.
#[derive(Clone, derive_more::Debug)]
pub struct MemberOptions {
    /// True if it wants copies of its own datagrams.
    pub echo: bool,
    /// True if it can give the group's state.
    pub keeps_state: bool,
    /// True if it wants the group's state when it has joined.
    pub wants_state: bool,
    /// The operator's token; empty for none.
    #[debug("{} bytes", token.len())]
    pub token: Vec<u8>,
    /// The number of tries at one reflector before the next is tried.
    pub tries: u32,
    /// The first wait for an answer, in milliseconds. It doubles with each try.
    pub retry_ms: u64,
    /// The longest wait for an answer, in milliseconds.
    pub retry_max_ms: u64,
    /// The number of heartbeats without an answer after which the reflector is given up.
    pub missed_max: u32,
}

impl Default for MemberOptions {
    fn default() -> Self {
        MemberOptions {
            echo: false,
            keeps_state: false,
            wants_state: false,
            token: Vec::new(),
            tries: 3,
            retry_ms: 200,
            retry_max_ms: 5000,
            missed_max: 5,
        }
    }
}

/// An event of a membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberEvent {
    /// The member has joined.
    Joined {
        /// The group that it is in.
        target: Target,
        /// Its address as the reflector sees it.
        seen: SocketAddr,
        /// Members in the group.
        members: u32,
        /// True if it was in a group before, and has been lost in between or has moved.
        again: bool,
    },
    /// Its reflector fell silent, or does not know it any more. It tries to join again.
    Lost {
        /// The group that it was in.
        target: Target,
    },
    /// A reflector refused it.
    Refused {
        /// The reason.
        reason: Reason,
        /// True if it stops trying until it is asked to.
        last: bool,
    },
    /// A failure to join the group that it was to move to; the member stays where it is.
    MoveFailed {
        /// The group that it was to move to.
        target: Target,
    },
    /// The departure from all groups.
    Left,
    /// Datagrams of the group were lost on the way.
    Gap {
        /// The number of the first one that is missing.
        first: u64,
        /// The count of missing datagrams.
        count: u64,
    },
    /// The group's state has been fetched.
    State {
        /// Its version.
        version: u64,
        /// The state.
        bytes: Bytes,
    },
    /// The group's state could not be fetched; there may be none.
    NoState,
    /// The reflector asks for the group's state: answer by [`Member::give_state`].
    StateAsked {
        /// The number of the reflector's request.
        ask: u32,
    },
}

/// A datagram to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The destination.
    pub to: SocketAddr,
    /// The payload.
    pub bytes: Vec<u8>,
}

/// Another member's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received<'a> {
    /// The payload.
    pub payload: &'a [u8],
    /// The number of the datagram, in groups whose datagrams are numbered.
    pub sequence: Option<u64>,
}

/// An error in sending a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The member is in no group.
    #[error("the member is in no group at the moment")]
    NotJoined,
    /// The payload would be taken for a message of the control protocol, and not be copied.
    #[error("the payload begins like a message of the control protocol")]
    LooksLikeControl,
}

/// Random numbers from a given seed: nonces, which must not be guessable, and the jitter of the back-off.
struct Random(blake3::OutputReader);

impl Random {
    fn next(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.0.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Returns a random time between three quarters and five quarters of `time`, so that many members that wait for the
    /// same thing do not come at once.
    fn around(&mut self, time: u64) -> u64 {
        time - time / 4 + self.next() % (time / 2 + 1)
    }
}

/// A membership.
pub struct Member {
    options: MemberOptions,
    wanted: Wanted,
    random: Random,
    /// The groups that it may join, best first: the wanted ones, those of a location, and that of a request to move.
    places: Vec<Target>,
    /// The group that it is in, to which payload is sent.
    current: Option<Link>,
    /// The attempt to join a group, if one is under way.
    attempt: Option<Attempt>,
    /// The number of rounds through all places since it last joined.
    rounds: u32,
    /// The groups that it is leaving.
    leaving: Vec<Leaving>,
    fetch: Option<Fetch>,
    /// True if the state is to be fetched as soon as it has joined.
    wants_fetch: bool,
    give: Option<Give>,
    /// The version of the state that it holds.
    state_version: u64,
    was_in: bool,
    wants_out: bool,
    outgoing: VecDeque<Transmit>,
    events: VecDeque<MemberEvent>,
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member")
            .field("wanted", &self.wanted)
            .field("current", &self.current)
            .field("attempt", &self.attempt)
            .field("leaving", &self.leaving)
            .finish_non_exhaustive()
    }
}

impl Member {
    /// Creates a member that begins to join at its next tick. `seed` must be random, and different for each member.
    pub fn new(wanted: Wanted, options: MemberOptions, seed: [u8; 32]) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(&seed);
        hasher.update(b"nacre reflect member");
        let mut member = Member {
            options,
            wanted: Wanted::Group(Vec::new()),
            random: Random(hasher.finalize_xof()),
            places: Vec::new(),
            current: None,
            attempt: None,
            rounds: 0,
            leaving: Vec::new(),
            fetch: None,
            wants_fetch: false,
            give: None,
            state_version: 0,
            was_in: false,
            wants_out: false,
            outgoing: VecDeque::new(),
            events: VecDeque::new(),
        };
        member.want(0, wanted);
        member
    }

    /// Handles a datagram. Returns the payload in it, if it is another member's.
    pub fn handle<'a>(&mut self, now_us: u64, from: SocketAddr, bytes: &'a [u8]) -> Option<Received<'a>> {
        if !wire::is_control(bytes) {
            if !self.hears(from, false) {
                return None;
            }
            self.heard(now_us, from);
            return Some(Received { payload: bytes, sequence: None });
        }
        // What makes no sense is nobody's answer.
        match Answer::decode(bytes).ok()? {
            Answer::Data { sequence, payload } => {
                if !self.hears(from, true) {
                    return None;
                }
                self.heard(now_us, from);
                let is_current = |link: &&mut Link| link.target.reflector == from && link.sequence;
                if let Some(link) = self.current.as_mut().filter(is_current)
                    && let Some((first, count)) = link.gaps.saw(now_us, sequence)
                {
                    self.events.push_back(MemberEvent::Gap { first, count });
                }
                return Some(Received { payload, sequence: Some(sequence) });
            }
            Answer::Challenge { nonce, cookie, .. } => self.challenged(now_us, from, nonce, cookie),
            Answer::Joined(joined) => self.joined(now_us, from, joined),
            Answer::Refused { nonce, reason, retry_ms } => {
                self.refused(now_us, from, nonce, reason, retry_ms)
            }
            Answer::Redirect { nonce, address, group } => {
                self.redirected(now_us, from, nonce, Target { reflector: address, group });
            }
            Answer::Location { nonce, group, reflectors } => {
                self.located(now_us, from, nonce, group, reflectors.as_slice());
            }
            Answer::Pulse(pulse) => self.pulse(now_us, from, pulse),
            Answer::Goodbye { session, reason } => self.goodbye(now_us, from, session, reason),
            Answer::Move { session, address, group, .. } => {
                if self.is_in(from, session) {
                    self.move_requested(now_us, Target { reflector: address, group });
                }
            }
            Answer::StateAsk { session, ask } => {
                if self.is_in(from, session) {
                    self.state_asked(now_us, ask);
                }
            }
            Answer::StateTaken { session, ask, next, later } => {
                if self.is_in(from, session) {
                    self.state_taken(now_us, ask, next, later);
                }
            }
            Answer::State { session, version, size, offset, pending, bytes } => {
                if self.is_in(from, session) {
                    self.state_part(now_us, version, size, offset, pending, bytes);
                }
            }
        }
        None
    }

    /// Advances the time.
    pub fn tick(&mut self, now_us: u64) {
        self.beat(now_us);
        self.try_on(now_us);
        self.leave_on(now_us);
        self.fetch_on(now_us);
        self.give_on(now_us);
    }

    /// Returns the time at which [`Member::tick`] has something to do, in microseconds; `None` if the member only waits
    /// for datagrams.
    pub fn timeout_us(&self) -> Option<u64> {
        let due = [
            self.current.as_ref().map(Link::due_us),
            self.attempt.as_ref().map(|attempt| attempt.due_us),
            self.leaving.iter().map(|leaving| leaving.due_us).min(),
            self.fetch.as_ref().map(|fetch| fetch.due_us),
            self.give.as_ref().and_then(|give| give.due_us),
        ];
        due.into_iter().flatten().min()
    }

    /// Takes the next datagram to send.
    pub fn poll(&mut self) -> Option<Transmit> {
        self.outgoing.pop_front()
    }

    /// Takes the oldest event that has not been taken.
    pub fn event(&mut self) -> Option<MemberEvent> {
        self.events.pop_front()
    }

    /// Returns the address to send a payload to, and counts the payload as sent.
    ///
    /// # Errors
    /// [`SendError`] if the member is in no group, or the payload looks like a control message.
    pub fn send(&mut self, now_us: u64, payload: &[u8]) -> Result<SocketAddr, SendError> {
        let link = self.current.as_mut().ok_or(SendError::NotJoined)?;
        if wire::is_control(payload) {
            return Err(SendError::LooksLikeControl);
        }
        if !self.options.echo {
            link.gaps.sent(now_us);
        }
        Ok(link.target.reflector)
    }

    /// Returns the group that it is in, if any.
    pub fn target(&self) -> Option<Target> {
        self.current.as_ref().map(|link| link.target)
    }

    /// Returns its address as the reflector sees it, if it is in a group.
    pub fn seen(&self) -> Option<SocketAddr> {
        self.current.as_ref().map(|link| link.seen)
    }

    /// Returns the number of members of the group, itself included, as last heard.
    pub fn members(&self) -> Option<u32> {
        self.current.as_ref().map(|link| link.members)
    }

    /// Returns the round-trip delay to the reflector in microseconds, once measured.
    pub fn delay_us(&self) -> Option<u64> {
        self.current.as_ref().and_then(|link| link.delay_us)
    }

    /// Returns the version of the group's state at the reflector, as last heard; 0 for none.
    pub fn state_version(&self) -> u64 {
        self.current.as_ref().map_or(0, |link| link.state_version)
    }

    /// Returns whether it was asked to leave and has left all groups.
    pub fn is_out(&self) -> bool {
        self.wants_out && self.current.is_none() && self.leaving.is_empty()
    }

    /// Moves the member: it joins the group that it is to be in, and then leaves the present one.
    pub fn move_to(&mut self, now_us: u64, wanted: Wanted) {
        self.want(now_us, wanted);
    }

    /// Replaces the token. If the member was refused with the last one, it tries again; if it is in a group, it shows
    /// the new one there, and stays in meanwhile.
    pub fn set_token(&mut self, now_us: u64, token: Vec<u8>) {
        self.options.token = token;
        self.renew(now_us);
        if self.current.is_none() && self.attempt.is_none() && !self.wants_out {
            self.begin(now_us, Purpose::Enter, 0);
        }
    }

    /// Begins to leave. [`Member::is_out`] says when that is done.
    pub fn leave(&mut self, now_us: u64) {
        self.wants_out = true;
        self.attempt = None;
        self.drop_fetch();
        self.wants_fetch = false;
        self.give = None;
        match self.current.take() {
            Some(link) => self.begin_leaving(now_us, link),
            None if self.leaving.is_empty() => self.events.push_back(MemberEvent::Left),
            None => {}
        }
    }

    fn want(&mut self, now_us: u64, wanted: Wanted) {
        self.places = match &wanted {
            Wanted::Group(targets) => targets.iter().copied().take(PLACES_MAX).collect(),
            Wanted::Location { .. } => Vec::new(),
        };
        self.wanted = wanted;
        self.wants_out = false;
        self.rounds = 0;
        self.begin(now_us, Purpose::Enter, 0);
    }

    fn heard(&mut self, now_us: u64, from: SocketAddr) {
        if let Some(link) = self.current.as_mut().filter(|link| link.target.reflector == from) {
            link.heard(now_us);
        }
    }

    fn is_in(&self, from: SocketAddr, session: u64) -> bool {
        self.current.as_ref().is_some_and(|link| link.target.reflector == from && link.session == session)
    }

    /// Returns whether the member is in a group at this reflector, or is leaving one, whose datagrams are numbered or not.
    fn hears(&self, from: SocketAddr, numbered: bool) -> bool {
        let current = self.current.iter().map(|link| (link.target.reflector, link.sequence));
        let leaving = self.leaving.iter().map(|leaving| (leaving.target.reflector, leaving.sequence));
        current.chain(leaving).any(|there| there == (from, numbered))
    }

    fn transmit(&mut self, to: SocketAddr, bytes: Vec<u8>) {
        self.outgoing.push_back(Transmit { to, bytes });
    }
}
