//! The reflector's control plane: admission, expiry and redirection of members, and the state of each group. A state
//! machine without clock or I/O: it takes datagrams and the time, and returns answers and [`Event`]s.
//!
//! Invariants:
//! - Nothing is sent to an address that has not proven that it listens there, except one answer to each request, no
//!   longer than the request.
//! - An address costs no memory until it has returned its cookie. All tables are bounded.
//! - A datagram counts as a member's only if it comes from the member's exact address and carries its session. A request
//!   that keeps a member in, or has an answer longer than itself, returns one of the last [`PROOFS`] secrets that
//!   were sent to the address; a member stays no longer than it has proven that it still listens there.
//! - A reflector never answers messages from reflectors to members, so two of them cannot be played against each other.
//!   Messages between reflectors (`control/relay.rs`) are signed.

mod beat;
#[cfg(feature = "testkit")]
pub mod check;
mod counter;
mod expel;
mod join;
mod limit;
mod place;
mod relay;
mod state;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};

use bytes::Bytes;
pub use counter::{Counter, Counters};
pub use expel::{BANS_MAX, Ban, Subject, Suppliers};
use limit::{DepartedMembers, Sources};
pub use place::Departure;
use place::Moving;
use relay::{Opening, Relay, Relays};
pub use relay::{RELAY_MS, SILENT_MS};
use state::State;
pub use state::StateOptions;

use crate::cookie::Secret;
use crate::host::{Host, Incoming, Now, Outgoing, Relayed};
use crate::location::LocationEntry;
use crate::pages::Pages;
use crate::rate::Rate;
use crate::table::{GroupId, GroupIndex, GroupOptions, MemberIndex, Table};
use crate::token::{Identity, PublicKey};
use crate::wire::{self, Answer, Reason, Request, WireError};

/// The number of proofs that are accepted: the newest ones.
pub const PROOFS: usize = 3;
/// The number of parts of a state that a member may fetch for each proof that it returns.
const PARTS_PER_PROOF: u16 = 2048;
/// The greatest number of answers that wait to be taken.
const OUTGOING_MAX: usize = 1 << 16;
/// The greatest number of events that wait to be taken.
const EVENTS_MAX: usize = 1 << 16;

/// The reflector's options, which hold for all groups.
#[derive(Clone, Debug)]
pub struct ControlOptions {
    /// The interval between a member's heartbeats, in milliseconds; 0 for one that grows with the number of members, so
    /// that a small reflector is quickly missed when it is gone, and a large one has little to do.
    pub heartbeat_ms: u32,
    /// The longest silence of a member before it is removed, in milliseconds; 0 for two heartbeats and two seconds more.
    pub expiry_ms: u32,
    /// The greatest number of members in all groups together. Each costs about 260 bytes.
    pub members_max: u32,
    /// The limit on joins from one source (an IPv4 address, or an IPv6 network of 64 bits).
    pub joins_per_source: Rate,
    /// The limit on unproven requests from one source that are answered.
    pub answers_per_source: Rate,
    /// True if members may have loopback addresses.
    pub loopback: bool,
    /// True if members may have ports below 1024.
    pub privileged: bool,
    /// The reflector's own listeners, which are never members.
    pub own: Vec<SocketAddr>,
    /// The addresses by which the map of locations names this reflector. If empty, the addresses of its listeners.
    pub advertised: Vec<SocketAddr>,
    /// The options of groups made for locations that the map puts here. `None`: only groups that exist are joined.
    pub group_default: Option<GroupOptions>,
    /// The state options of such groups. `None`: no state is kept.
    pub state_default: Option<StateOptions>,
    /// The greatest number of bytes of states kept to be handed out, in all groups together.
    pub state_bytes_max: usize,
    /// The broadcast addresses of the networks that the reflector is in, which are never members.
    pub broadcast: Vec<Ipv4Addr>,
    /// The public halves of the keys with which tokens are signed. Without one no token is valid.
    pub token_keys: Vec<PublicKey>,
    /// The members that groups' states are asked of.
    pub suppliers: Suppliers,
}

impl Default for ControlOptions {
    fn default() -> Self {
        ControlOptions {
            heartbeat_ms: 3000,
            expiry_ms: 10_000,
            members_max: 1 << 20,
            joins_per_source: Rate::per_second(50, 200),
            answers_per_source: Rate::per_second(200, 1000),
            loopback: false,
            privileged: false,
            own: Vec::new(),
            advertised: Vec::new(),
            group_default: None,
            state_default: None,
            state_bytes_max: 256 << 20,
            broadcast: Vec::new(),
            token_keys: Vec::new(),
            suppliers: Suppliers::Default,
        }
    }
}

/// An event for the server around the control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A member joined.
    Joined {
        /// Its group.
        group: GroupId,
        /// Its address.
        address: SocketAddr,
    },
    /// A member left, or was removed.
    Left {
        /// Its group.
        group: GroupId,
        /// Its address.
        address: SocketAddr,
        /// The reason.
        reason: Reason,
    },
    /// The stored state of a group is wanted: answer by [`Control::state_loaded`] or [`Control::state_failed`].
    LoadState {
        /// The group.
        group: GroupId,
        /// The name of the group's state in the store.
        name: String,
    },
    /// A state is to be stored, unless a newer one than `base` is there: answer by [`Control::state_stored`],
    /// [`Control::state_conflict`] or [`Control::state_failed`].
    StoreState {
        /// The group.
        group: GroupId,
        /// The name of the group's state in the store.
        name: String,
        /// The version that the state is based on.
        base: u64,
        /// The state.
        bytes: Bytes,
    },
}

/// The control plane's own data on a member, beside the table.
#[derive(Clone, Debug, Default)]
struct Seat {
    session: u64,
    /// The nonce of the `JOIN` that made the session.
    nonce: u64,
    /// The time of the join, in milliseconds. Cookies from before are used up.
    joined_ms: u64,
    /// The rate bucket of the member's requests for the group's state.
    state_bucket_ns: u64,
    keeps_state: bool,
    proofs: Proofs,
    /// The time at which the newest returned proof had been sent, in milliseconds.
    proven_ms: u64,
    /// The parts of the state that it may fetch before it returns another proof.
    parts: u16,
    /// The interval between heartbeats that was last sent to it, in milliseconds.
    announced_ms: u32,
    /// The rights of the token that it showed. Most members of most reflectors showed none, and there are very many of them.
    token: Option<Box<Shown>>,
}

impl Seat {
    fn identity(&self) -> Option<Identity> {
        self.token.as_ref().and_then(|shown| shown.identity)
    }

    /// Returns the time until which its token lets it stay, in seconds since 1970.
    fn until_unix_s(&self) -> u64 {
        self.token.as_ref().map_or(u64::MAX, |shown| shown.until_unix_s)
    }
}

/// The part of a token that holds as long as its bearer is in.
#[derive(Clone, Debug)]
struct Shown {
    identity: Option<Identity>,
    until_unix_s: u64,
}

/// The number of the newest proof that a member was sent, and the times of the last ones.
#[derive(Clone, Copy, Debug, Default)]
struct Proofs {
    newest: u32,
    /// The shortest time from a proof's sending to its return, in microseconds. The reflector measures it alone: a member
    /// can make it longer, and not shorter.
    way_us: u32,
    /// The time at which the newest was sent, in microseconds.
    sent_us: u64,
    /// The times from those before it to it, the nearest first; `u32::MAX` is too long ago to be accepted.
    before_us: [u32; PROOFS - 1],
}

impl Proofs {
    /// Adds a proof that is sent now. Returns its number.
    fn next(&mut self, now_us: u64) -> u32 {
        let since_us = u32::try_from(now_us.saturating_sub(self.sent_us)).unwrap_or(u32::MAX);
        self.before_us.rotate_right(1);
        self.before_us[0] = 0;
        for before_us in &mut self.before_us {
            *before_us = before_us.saturating_add(since_us);
        }
        self.newest += 1;
        self.sent_us = now_us;
        self.newest
    }

    /// Returns the numbers of the proofs that are accepted, the newest first, with the times at which they were sent, in
    /// microseconds.
    fn accepted(self) -> impl Iterator<Item = (u32, u64)> {
        let before_us = self.before_us.into_iter().filter(|before_us| *before_us != u32::MAX);
        let numbers = (0..=self.newest).rev();
        numbers
            .zip(std::iter::once(0).chain(before_us))
            .map(move |(number, us)| (number, self.sent_us - u64::from(us)))
    }
}

/// The control plane's own data on a group, beside the table.
#[derive(Debug, Default)]
struct GroupControl {
    /// The location whose group this is.
    location: Option<String>,
    /// The place that the members have to move to, if any.
    moving: Option<Moving>,
    /// The request for a relay to that place, and the relay to it, or from the place that members come from.
    opening: Option<Box<Opening>>,
    relay: Option<Box<Relay>>,
    /// The time of the last hand-over to the reflector in charge, in milliseconds.
    handed_ms: u64,
    /// The number of requests for a relay since the last one that were not answered.
    unanswered: u32,
    state: Option<Box<State>>,
    /// True if the operator removed the group: its members are notified, and then it is dropped.
    removed: bool,
}

/// The control plane.
#[derive(Debug)]
pub struct Control {
    options: ControlOptions,
    secret: Secret,
    table: Table,
    /// Control data of members, by member index.
    seats: Pages<Seat>,
    /// Control data of groups, by group index.
    controls: Vec<GroupControl>,
    /// All locations of the map.
    locations: BTreeMap<String, LocationEntry>,
    /// The groups of locations that are here: by group, the location's name, and true if this reflector is a standby.
    groups_here: HashMap<GroupId, (String, bool)>,
    bans: Vec<Ban>,
    relays: Relays,
    /// Groups whose states are due to be worked on, by time.
    state_due: BTreeSet<(u64, u32)>,
    /// The number of states being taken from members or stored.
    states_taken: usize,
    /// The bytes of all states that are kept.
    states_bytes: usize,
    joins: u64,
    join_sources: Sources,
    answer_sources: Sources,
    departed: DepartedMembers,
    round: beat::Round,
    closing: bool,
    outgoing: VecDeque<Outgoing>,
    events: VecDeque<Event>,
    counters: Counters,
}

impl Control {
    /// Creates a control plane without groups. `secret` must be random.
    pub fn new(options: ControlOptions, secret: Secret) -> Self {
        Control {
            join_sources: Sources::new(options.joins_per_source),
            answer_sources: Sources::new(options.answers_per_source),
            options,
            secret,
            table: Table::new(),
            seats: Pages::default(),
            controls: Vec::new(),
            locations: BTreeMap::new(),
            groups_here: HashMap::new(),
            bans: Vec::new(),
            relays: Relays::default(),
            state_due: BTreeSet::new(),
            states_taken: 0,
            states_bytes: 0,
            joins: 0,
            departed: DepartedMembers::default(),
            round: beat::Round::default(),
            closing: false,
            outgoing: VecDeque::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Creates a group, or changes the options of one.
    pub fn set_group(&mut self, id: GroupId, options: GroupOptions) {
        let index = self.table.set_group(id, options);
        let slot = index.0 as usize;
        if self.controls.len() <= slot {
            self.controls.resize_with(slot + 1, GroupControl::default);
        }
        self.controls[slot].removed = false;
        self.settle(id);
    }

    /// Removes a group: its members are notified, one after another, and then it is gone. Returns false if there is no such
    /// group.
    pub fn remove_group(&mut self, id: GroupId) -> bool {
        let Some(index) = self.table.find(id) else { return false };
        self.controls[index.0 as usize].removed = true;
        self.remove_if_empty(index);
        true
    }

    /// Closes the reflector: nobody may join from here on, and the members are asked to leave, one after another. It is
    /// done when the table has no members left.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// Handles a datagram that begins with the magic of the protocol.
    pub fn handle(&mut self, now: Now, incoming: Incoming<'_>) {
        if self.relay_message(now, &incoming) {
            return;
        }
        let request = match Request::decode(incoming.bytes) {
            Ok(request) => request,
            Err(WireError::Version(1)) => return self.first_version(now, &incoming),
            Err(_) => return self.count(Counter::Malformed),
        };
        if !self.may_send_to(incoming.from, incoming.path.local) {
            return self.count(Counter::Destination);
        }
        let port = incoming.path.local.port();
        let id = |group| GroupId { port, id: group };
        match request {
            Request::Join(join) => self.join(now, &incoming, id(join.group), join),
            Request::Leave { group, session } => self.leave(now, &incoming, id(group), session),
            Request::Heartbeat(heartbeat) => self.heartbeat(now, &incoming, id(heartbeat.group), heartbeat),
            Request::Locate { nonce, location } => self.locate(now, &incoming, nonce, location),
            Request::StateGet(get) => self.state_get(now, &incoming, id(get.group), get),
            Request::StatePart(part) => self.state_part(now, &incoming, id(part.group), part),
        }
    }

    /// Tells a client of the first version that it is not understood.
    fn first_version(&mut self, now: Now, incoming: &Incoming<'_>) {
        let (from, local) = (incoming.from, incoming.path.local);
        match wire::refuse_first_version(incoming.bytes) {
            Some(bytes) if self.may_send_to(from, local) => {
                let source = self.secret.source(from.ip());
                if !self.answer_sources.take(source, now.ns) {
                    return self.count(Counter::SourceBusy);
                }
                self.count(Counter::Version);
                if self.outgoing.len() < OUTGOING_MAX {
                    self.outgoing.push_back(Outgoing { local, to: from, bytes });
                }
            }
            _ => self.count(Counter::Malformed),
        }
    }

    /// Returns the longest time in which [`Control::tick`] has to be called again, in milliseconds.
    pub fn tick_ms(&self) -> u64 {
        // What waits for members' answers, and the end, are not to wait for the clock as well.
        match (self.relays.is_busy(), self.closing || self.states_taken > 0) {
            (true, _) => 10,
            (false, true) => 20,
            (false, false) => 100,
        }
    }

    /// Advances the time. To be called several times a second; work on every member is spread over the calls.
    pub fn tick(&mut self, now: Now) {
        self.table.age(now.ns);
        self.go_round(now);
        self.tick_relays(now);
        self.take_turns(now);
    }

    /// Takes the oldest event that has not been taken.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Takes all events since the last call.
    pub fn events(&mut self) -> impl Iterator<Item = Event> + '_ {
        self.events.drain(..)
    }

    /// Takes the next datagram to be sent.
    pub fn next_outgoing(&mut self) -> Option<Outgoing> {
        self.outgoing.pop_front()
    }

    /// Returns the table of groups and members.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the options.
    pub fn options(&self) -> &ControlOptions {
        &self.options
    }

    fn count(&mut self, counter: Counter) {
        self.counters.add(counter, 1);
    }

    fn emit(&mut self, event: Event) {
        match self.events.len() < EVENTS_MAX {
            true => self.events.push_back(event),
            false => self.count(Counter::EventsFull),
        }
    }

    /// Queues an event that must not be dropped. There is at most one such event for each group.
    fn emit_surely(&mut self, event: Event) {
        self.events.push_back(event);
    }

    fn send(&mut self, local: SocketAddr, to: SocketAddr, answer: &Answer<'_>) {
        self.send_bytes(local, to, answer.encode());
    }

    fn send_bytes(&mut self, local: SocketAddr, to: SocketAddr, bytes: Vec<u8>) {
        match self.outgoing.len() < OUTGOING_MAX {
            true => self.outgoing.push_back(Outgoing { local, to, bytes }),
            false => self.count(Counter::OutgoingFull),
        }
    }

    /// Answers an address that has proven nothing yet, unless its source asks too often.
    fn answer_unproven(&mut self, now: Now, incoming: &Incoming<'_>, counter: Counter, answer: &Answer<'_>) {
        let source = self.secret.source(incoming.from.ip());
        if !self.answer_sources.take(source, now.ns) {
            return self.count(Counter::SourceBusy);
        }
        self.count(counter);
        self.send(incoming.path.local, incoming.from, answer);
    }

    /// Returns the member that sent a datagram, if it came from the member's own address and with its session.
    fn member(&self, id: GroupId, from: SocketAddr, session: u64) -> Option<MemberIndex> {
        let index = self.table.member_of(id, from)?;
        (self.seat(index).session == session).then_some(index)
    }

    fn seat(&self, index: MemberIndex) -> &Seat {
        // Every member got its seat when it joined.
        &self.seats[index.0 as usize]
    }

    /// Takes a proof from a member. Returns the time at which it was sent, in microseconds; `None` if it is not one of
    /// the last [`PROOFS`].
    fn take_proof(&mut self, index: MemberIndex, proof: u64) -> Option<u64> {
        let seat = &mut self.seats[index.0 as usize];
        let mut accepted = seat.proofs.accepted();
        let (_, sent_us) = accepted.find(|(number, _)| self.secret.proof(seat.session, *number) == proof)?;
        seat.proven_ms = seat.proven_ms.max(sent_us / 1000);
        Some(sent_us)
    }

    /// Returns a fresh proof for a member, which takes the place of the oldest.
    fn next_proof(&mut self, now: Now, index: MemberIndex) -> u64 {
        let seat = &mut self.seats[index.0 as usize];
        let number = seat.proofs.next(now.ns / 1000);
        self.secret.proof(seat.session, number)
    }

    /// Answers a member whose proof is too old, or not its own: it has to join again.
    fn stale(&mut self, now: Now, incoming: &Incoming<'_>, session: u64) {
        let answer = Answer::Refused { nonce: session, reason: Reason::Stale, retry_ms: 0 };
        self.answer_unproven(now, incoming, Counter::Stale, &answer);
    }

    /// Stores the control data of a member.
    fn seat_for(&mut self, index: MemberIndex, seat: Seat) {
        let slot = index.0 as usize;
        while self.seats.len() <= slot {
            self.seats.push(Seat::default());
        }
        self.seats[slot] = seat;
    }

    fn group_control(&self, index: GroupIndex) -> &GroupControl {
        // Every group got its room when it was made.
        &self.controls[index.0 as usize]
    }

    fn group_control_mut(&mut self, index: GroupIndex) -> &mut GroupControl {
        &mut self.controls[index.0 as usize]
    }

    /// Returns the reflector's address at which a member is reached.
    fn local_of(&self, index: MemberIndex) -> SocketAddr {
        let member = self.table.member(index);
        self.table.group(member.group).lanes[member.lane as usize].path.local
    }

    /// Removes a member, notifies it, and reports the event.
    fn dismiss(&mut self, now: Now, index: MemberIndex, reason: Reason) {
        let (local, member) = (self.local_of(index), self.table.member(index));
        let Seat { session, joined_ms, .. } = *self.seat(index);
        let (group, address) = (member.group, member.address);
        let id = self.table.group(group).id;
        self.count(match reason {
            Reason::Left => Counter::Left,
            Reason::Expired => Counter::Expired,
            _ => Counter::Removed,
        });
        self.departed.note(self.secret.session(id, address, 0), joined_ms.max(now.ms), now.ms);
        self.table.leave(index);
        self.send(local, address, &Answer::Goodbye { session, reason });
        self.relay_left(now, group, session);
        self.emit(Event::Left { group: id, address, reason });
        self.remove_if_empty(group);
    }

    fn remove_if_empty(&mut self, group: GroupIndex) {
        if self.group_control(group).removed && self.table.group(group).live == 0 {
            self.drop_state(group);
            self.drop_relay(group);
            self.table.remove_group(group);
            self.controls[group.0 as usize] = GroupControl::default();
        }
    }
}

impl Host for Control {
    fn table(&mut self) -> &mut Table {
        &mut self.table
    }

    fn control(&mut self, now: Now, incoming: Incoming<'_>) {
        self.handle(now, incoming);
    }

    fn outgoing(&mut self) -> Option<Outgoing> {
        self.next_outgoing()
    }

    fn receivers_elsewhere(&self, group: GroupIndex) -> Option<u32> {
        self.relay_receivers(group)
    }

    fn relay(
        &mut self,
        now: Now,
        group: GroupIndex,
        sender: Option<MemberIndex>,
        except: Option<SocketAddr>,
        tos: u8,
        payload: &[u8],
    ) -> bool {
        self.relay_payload(now, group, sender, except, tos, payload)
    }

    fn relayed(&mut self, now: Now) -> Option<Relayed> {
        self.next_relayed(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_proofs_are_accepted_with_their_times_unless_these_are_long_ago() {
        let mut proofs = Proofs { sent_us: 1000, ..Proofs::default() };
        assert_eq!(proofs.accepted().collect::<Vec<_>>(), [(0, 1000)]);
        let times = [1500, 9000, 10_000];
        let numbers = times.map(|us| proofs.next(us));
        assert_eq!(numbers, [1, 2, 3]);
        assert_eq!(proofs.accepted().collect::<Vec<_>>(), [(3, 10_000), (2, 9000), (1, 1500)]);
        let hours_us = 2 * 3_600_000_000;
        proofs.next(hours_us);
        assert_eq!(proofs.accepted().collect::<Vec<_>>(), [(4, hours_us)], "an hour is too long");
        proofs.next(hours_us + 7);
        assert_eq!(proofs.accepted().collect::<Vec<_>>(), [(5, hours_us + 7), (4, hours_us)]);
    }
}
