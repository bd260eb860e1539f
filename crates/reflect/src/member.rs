//! A member: the client's side of the protocol, as a state machine without clock, sockets or randomness of its own.
//!
//! Fed with datagrams ([`Member::handle`]) and time ([`Member::tick`], at the latest when [`Member::timeout_us`] says); gives datagrams to
//! send ([`Member::poll`]) and [`MemberEvent`]s. One `Member` is one membership: it comes in, stays in, and when its reflector
//! falls silent it comes in again, there or at the next of its reflectors. Several can share a socket.
//!
//! Invariants:
//! - Only answers that repeat a nonce or a session of this member's, and come from the reflector asked, are heard.
//! - It joins the next group before it leaves the last.
//! - It never sends faster than its back-off allows, whatever it is answered.

mod attempt;
mod gap;
mod link;
mod state;

use std::collections::VecDeque;
use std::net::SocketAddr;

use bytes::Bytes;

use crate::wire::{self, Answer, Reason};
use attempt::{Attempt, Purpose};
use link::{Leaving, Link};
use state::{Fetch, Give};

/// Places that a member keeps in mind, at most.
const PLACES_MAX: usize = 8;

/// A group at a reflector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The reflector's address, with the group's port.
    pub reflector: SocketAddr,
    /// The group's id on that port.
    pub group: u32,
}

/// Where a member wants to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// In the first of these groups that takes it: one reflector, and its standbys.
    Group(Vec<Target>),
    /// In the group of a location, for which these reflectors are asked.
    Location {
        /// The location's name.
        name: String,
        /// Who is asked.
        reflectors: Vec<SocketAddr>,
    },
}

/// How a member behaves.
#[derive(Clone, Debug)]
pub struct MemberOptions {
    /// It wants copies of its own datagrams.
    pub echo: bool,
    /// It can give the group's state.
    pub keeps_state: bool,
    /// It wants the group's state when it comes in.
    pub wants_state: bool,
    /// The operator's permission.
    pub token: Vec<u8>,
    /// Tries at one reflector before the next is tried.
    pub tries: u32,
    /// The first wait for an answer. It doubles with each try.
    pub retry_ms: u64,
    /// The longest wait.
    pub retry_max_ms: u64,
    /// Heartbeats without an answer after which the reflector is given up.
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

/// What happened to a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberEvent {
    /// It is in.
    Joined {
        /// Where.
        target: Target,
        /// The address as which it is connected.
        seen: SocketAddr,
        /// Members in the group.
        members: u32,
        /// It was in before, and has been lost in between or has moved.
        again: bool,
    },
    /// Its reflector fell silent, or does not know it any more. It tries to come in again.
    Lost {
        /// Where it was.
        target: Target,
    },
    /// A reflector refused it. If `last`, it tries no more until it is told to.
    Refused {
        /// Why.
        reason: Reason,
        /// Whether it has stopped trying.
        last: bool,
    },
    /// It could not get in where it was to move, and stays where it is.
    Stayed {
        /// Where it was to go.
        target: Target,
    },
    /// It has left everything.
    Left,
    /// Datagrams of the group were lost on the way: `count` of them, from the number `first` on.
    Gap {
        /// The first that is missing.
        first: u64,
        /// How many.
        count: u64,
    },
    /// The group's state.
    State {
        /// Its version.
        version: u64,
        /// The state.
        bytes: Bytes,
    },
    /// The group's state could not be had; there may be none.
    NoState,
    /// The reflector wants the group's state: answer by [`Member::give_state`].
    StateAsked {
        /// The number of the question.
        ask: u32,
    },
}

/// A datagram to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Where to.
    pub to: SocketAddr,
    /// What.
    pub bytes: Vec<u8>,
}

/// A member's payload that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received<'a> {
    /// The payload.
    pub payload: &'a [u8],
    /// Its number, in groups whose datagrams are numbered.
    pub sequence: Option<u64>,
}

/// Why a payload cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The member is not in.
    #[error("the member is in no group at the moment")]
    NotJoined,
    /// It would be taken for a message of the control protocol, and not be copied.
    #[error("the payload begins like a message of the control protocol")]
    LooksLikeControl,
}

/// Random numbers from a seed that was given: nonces, which nobody may guess, and the jitter of the back-off.
struct Random(blake3::OutputReader);

impl Random {
    fn next(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.0.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Between three quarters and five quarters of a time, so that many who wait for the same thing do not come at once.
    fn around(&mut self, time: u64) -> u64 {
        time - time / 4 + self.next() % (time / 2 + 1)
    }
}

/// A membership.
pub struct Member {
    options: MemberOptions,
    wanted: Wanted,
    random: Random,
    /// Where it may come in, best first: what was wanted, what a location named, where it was moved to.
    places: Vec<Target>,
    /// It is in here: this is where payload is sent.
    current: Option<Link>,
    /// It is trying to come in here.
    attempt: Option<Attempt>,
    /// Rounds through all places since it was last let in somewhere.
    rounds: u32,
    /// It is leaving these.
    leaving: Vec<Leaving>,
    fetch: Option<Fetch>,
    /// The state is to be fetched as soon as it is in.
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
    /// A member that begins to come in at its next tick. `seed` must be random, and another one for each member.
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

    /// Takes a datagram. Gives the payload in it, if it is another member's.
    pub fn handle<'a>(&mut self, now_us: u64, from: SocketAddr, bytes: &'a [u8]) -> Option<Received<'a>> {
        if !wire::is_control(bytes) {
            let numbered = self.sequence_of(from)?;
            return (!numbered).then_some(Received { payload: bytes, sequence: None });
        }
        // What makes no sense is nobody's answer.
        match Answer::decode(bytes).ok()? {
            Answer::Data { sequence, payload } => {
                if !self.sequence_of(from)? {
                    return None;
                }
                if let Some(link) = self.current.as_mut().filter(|link| link.target.reflector == from)
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
                    self.told_to_move(now_us, Target { reflector: address, group });
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

    /// Lets time pass.
    pub fn tick(&mut self, now_us: u64) {
        self.beat(now_us);
        self.try_on(now_us);
        self.leave_on(now_us);
        self.fetch_on(now_us);
        self.give_on(now_us);
    }

    /// When [`Member::tick`] has something to do; `None` if it just waits for datagrams.
    pub fn timeout_us(&self) -> Option<u64> {
        let due = [
            self.current.as_ref().map(|link| link.beat_due_us),
            self.attempt.as_ref().map(|attempt| attempt.due_us),
            self.leaving.iter().map(|leaving| leaving.due_us).min(),
            self.fetch.as_ref().map(|fetch| fetch.due_us),
            self.give.as_ref().and_then(|give| give.due_us),
        ];
        due.into_iter().flatten().min()
    }

    /// The next datagram to send.
    pub fn poll(&mut self) -> Option<Transmit> {
        self.outgoing.pop_front()
    }

    /// The next thing that happened.
    pub fn event(&mut self) -> Option<MemberEvent> {
        self.events.pop_front()
    }

    /// Where a payload is to be sent. It counts as sent.
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

    /// Where it is, if it is in.
    pub fn target(&self) -> Option<Target> {
        self.current.as_ref().map(|link| link.target)
    }

    /// The address as which it is connected.
    pub fn seen(&self) -> Option<SocketAddr> {
        self.current.as_ref().map(|link| link.seen)
    }

    /// Members of the group, itself included, as last heard.
    pub fn members(&self) -> Option<u32> {
        self.current.as_ref().map(|link| link.members)
    }

    /// The delay to the reflector and back, once measured.
    pub fn delay_us(&self) -> Option<u64> {
        self.current.as_ref().and_then(|link| link.delay_us)
    }

    /// The version of the group's state that the reflector has, as last heard; 0 for none.
    pub fn state_version(&self) -> u64 {
        self.current.as_ref().map_or(0, |link| link.state_version)
    }

    /// True if it has left everything, and was told to.
    pub fn is_out(&self) -> bool {
        self.wants_out && self.current.is_none() && self.leaving.is_empty()
    }

    /// It is to be elsewhere: it joins there, and then leaves where it is.
    pub fn move_to(&mut self, now_us: u64, wanted: Wanted) {
        self.want(now_us, wanted);
    }

    /// Another token from here on. If it was refused for the last one, it tries again.
    pub fn set_token(&mut self, now_us: u64, token: Vec<u8>) {
        self.options.token = token;
        if self.current.is_none() && self.attempt.is_none() && !self.wants_out {
            self.begin(now_us, Purpose::Enter, 0);
        }
    }

    /// Leaves. Done when [`Member::is_out`] says so.
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

    fn is_in(&self, from: SocketAddr, session: u64) -> bool {
        self.current.as_ref().is_some_and(|link| link.target.reflector == from && link.session == session)
    }

    /// Whether payload from there is numbered; `None` if the member is in no group there.
    fn sequence_of(&self, from: SocketAddr) -> Option<bool> {
        let current = self.current.iter().map(|link| (link.target.reflector, link.sequence));
        let leaving = self.leaving.iter().map(|leaving| (leaving.target.reflector, leaving.sequence));
        current.chain(leaving).find(|(reflector, _)| *reflector == from).map(|(_, sequence)| sequence)
    }

    fn transmit(&mut self, to: SocketAddr, bytes: Vec<u8>) {
        self.outgoing.push_back(Transmit { to, bytes });
    }
}
