//! The relay of a location's datagrams while its members move from one reflector to another.
//!
//! A location's former reflector (the *old* one) asks the one that the map names now (the *new* one) for a relay, before it
//! tells any member to move. From then on the old one puts datagrams in order. A datagram sent to
//! the new one goes to the old one first; the old one copies it to its members and reports its place in the order, and
//! then the new one copies it to its own. A datagram sent to the old one is copied there, and goes to the new one.
//!
//! Invariants:
//! - Each member gets copies from one of the two: from the old one until it has left there, from the new one
//!   after that point of the order. A member that comes to the new one names the session that it leaves. It gets nothing
//!   there, and its datagrams are held back, until the old one has reported that this session is over.
//! - A group has one relay at a time, so nothing goes in circles.
//! - Nothing is sent because of a message that is not signed with a key derived from the store's secret. Beyond
//!   one answer, shorter than the request, nothing is sent to an address that has not returned its cookie.
//! - Waiting datagrams are bounded ([`crate::relay::BYTES_MAX`]), and so is the time: a relay ends when the old reflector
//!   has no members left, after [`RELAY_MS`], or when the other side is silent for [`SILENT_MS`].

mod hand_over;
mod open;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

pub(super) use open::Opening;

use super::{Control, Counter};
use crate::host::{Incoming, Now, Relayed};
use crate::relay::{BYTES_MAX, Channel};
use crate::table::{Group, GroupIndex, MemberIndex, Terms};
use crate::wire::kind;
use crate::wire::relay::{Item, ItemKind, Key, STEP_PART_MAX, Step, encode_step, kind_of, relay_of};

/// The longest time of a relay, in milliseconds.
pub const RELAY_MS: u64 = 30_000;
/// The silence after which the other reflector is given up, in milliseconds.
pub const SILENT_MS: u64 = 1000;
/// The interval between the empty messages of an idle side, in milliseconds.
const STEADY_MS: u64 = 100;
/// The time that a member which has joined at the new reflector has to leave the old one, in milliseconds.
const CLAIM_MS: u64 = 1000;
/// The longest time of a relay with its end, in milliseconds, whatever the other side says: what a reflector has said while it
/// lived can be said again by whoever recorded it, and would keep the relay alive for ever.
const LIFE_MAX_MS: u64 = 2 * RELAY_MS;
/// The greatest datagram that is put together from its parts, in bytes: no reflector hears a longer one.
const DATAGRAM_BYTES_MAX: usize = 64 << 10;
/// The time for which an ended relay answers repeated messages, in milliseconds.
const LINGER_MS: u64 = 2000;

/// A member's datagram that waits for its place in the order.
#[derive(Debug)]
struct Waiting {
    except: Option<SocketAddr>,
    tos: u8,
    payload: Vec<u8>,
}

impl Waiting {
    /// The memory that it takes, in bytes: an empty datagram takes some too.
    fn bytes(&self) -> usize {
        size_of::<Waiting>() + self.payload.len()
    }
}

/// A member that has come from the old reflector and has not left it yet.
#[derive(Debug)]
struct ArrivingMember {
    address: SocketAddr,
    terms: Terms,
    /// The items that it has sent meanwhile.
    sent: Vec<Waiting>,
}

/// A side of a relay.
#[derive(Debug)]
pub(super) struct Relay {
    /// True at the reflector that is left.
    is_old: bool,
    number: u64,
    /// The keys to sign with and to check with.
    keys: [Key; 2],
    peer: SocketAddr,
    local: SocketAddr,
    channel: Channel,
    /// The parts of a datagram that is not whole yet.
    parts: Vec<u8>,
    /// The number of members that get copies at the other side.
    receivers: u32,
    begun_ms: u64,
    heard_ms: u64,
    reported_ms: u64,
    /// The time of its end, in milliseconds.
    ended_ms: Option<u64>,
    /// Old: the members' addresses, by session.
    sessions: HashMap<u64, SocketAddr>,
    /// Old: members that are at the new reflector, and the time at which they have left here at the latest.
    claims: HashMap<u64, u64>,
    /// New: datagrams that wait for their place in the order, oldest first.
    waiting: VecDeque<Waiting>,
    /// New: members that are coming, by the session that they leave, and those sessions by address.
    coming: HashMap<u64, ArrivingMember>,
    coming_at: HashMap<SocketAddr, u64>,
    /// The bytes in `waiting` and `coming`.
    bytes: usize,
}

impl Relay {
    fn direction(is_old: bool) -> u8 {
        if is_old { kind::RELAY_ON } else { kind::RELAY_BACK }
    }

    fn push_datagram(&mut self, tos: u8, payload: &[u8]) {
        let mut rest = payload;
        while rest.len() > STEP_PART_MAX {
            let (part, later) = rest.split_at(STEP_PART_MAX);
            self.channel.push(Item { kind: ItemKind::Part, tos, bytes: part.to_vec() });
            rest = later;
        }
        self.channel.push(Item { kind: ItemKind::Last, tos, bytes: rest.to_vec() });
    }

    /// Sends a member's datagram to be put in order, and keeps it until that is done.
    fn wait(&mut self, waiting: Waiting) {
        self.push_datagram(waiting.tos, &waiting.payload);
        self.bytes += waiting.bytes();
        self.waiting.push_back(waiting);
    }
}

/// A control plane's relays.
#[derive(Debug, Default)]
pub(super) struct Relays {
    /// The key for requests; `None` while the store's secret is not known.
    key: Option<Key>,
    /// True if other reflectors may know the secret.
    shared: bool,
    /// The number of requests made, from which their nonces are derived.
    requests: u64,
    /// The groups of the relays that are under way, by number and side.
    by_number: HashMap<(u64, bool), GroupIndex>,
    /// The relays that began here as the new side, newest last.
    begun: VecDeque<u64>,
    /// The groups with a relay, or a request for one.
    groups: Vec<GroupIndex>,
    /// Groups whose relays have items to be taken.
    ready: VecDeque<GroupIndex>,
    /// Datagrams whose turn has come.
    due: VecDeque<Relayed>,
}

impl Relays {
    pub(super) fn is_busy(&self) -> bool {
        !self.groups.is_empty()
    }
}

impl Control {
    /// Sets the secret that the reflectors on one store share. `shared` is false if that store is this process's own: only
    /// moves within this reflector are relayed then.
    pub fn set_relay_secret(&mut self, secret: &[u8; 32], shared: bool) {
        self.relays.key = Some(Key::of_secret(secret));
        self.relays.shared = shared;
    }

    /// Ends the relay of a group that stays after all, and the request for one.
    pub(super) fn close_relay(&mut self, now: Now, index: GroupIndex) {
        self.group_control_mut(index).opening = None;
        if self.group_control(index).relay.as_ref().is_some_and(|relay| relay.is_old) {
            self.end_relay(now, index);
        }
    }

    /// Returns whether this group's datagrams are relayed, and members are to move.
    pub(super) fn is_relayed(&self, index: GroupIndex) -> bool {
        self.group_control(index).relay.as_ref().is_some_and(|relay| relay.is_old && relay.ended_ms.is_none())
    }

    fn follow_relay(&mut self, index: GroupIndex) {
        if !self.relays.groups.contains(&index) {
            self.relays.groups.push(index);
        }
    }

    /// Handles a message of another reflector. Returns false if it is none.
    pub(super) fn relay_message(&mut self, now: Now, incoming: &Incoming<'_>) -> bool {
        let Some(kind) = kind_of(incoming.bytes) else { return false };
        let Some(key) = self.relays.key else {
            self.count(Counter::RelayForged);
            return true;
        };
        let handled = match kind {
            kind::RELAY_OPEN => self.relay_asked(now, incoming, &key),
            kind::RELAY_ACCEPT => self.relay_accepted(now, incoming, &key),
            _ => self.relay_step(now, incoming, kind == kind::RELAY_ON),
        };
        if handled.is_none() {
            self.count(Counter::RelayForged);
        }
        true
    }

    #[expect(clippy::too_many_arguments, reason = "all of it is one side of a relay")]
    fn begin_relay(
        &mut self,
        now: Now,
        index: GroupIndex,
        is_old: bool,
        number: u64,
        keys: [Key; 2],
        peer: SocketAddr,
        local: SocketAddr,
    ) {
        let mut sessions = HashMap::new();
        if is_old {
            let members = (0..self.table.members_end()).map(MemberIndex);
            for at in members {
                if let Some(member) = self.table.get_member(at).filter(|member| member.group == index) {
                    sessions.insert(self.seat(at).session, member.address);
                }
            }
        }
        self.group_control_mut(index).relay = Some(Box::new(Relay {
            is_old,
            number,
            keys,
            peer,
            local,
            channel: Channel::default(),
            parts: Vec::new(),
            receivers: 0,
            begun_ms: now.ms,
            heard_ms: now.ms,
            reported_ms: 0,
            ended_ms: None,
            sessions,
            claims: HashMap::new(),
            waiting: VecDeque::new(),
            coming: HashMap::new(),
            coming_at: HashMap::new(),
            bytes: 0,
        }));
        self.group_control_mut(index).unanswered = 0;
        self.relays.by_number.insert((number, is_old), index);
        self.follow_relay(index);
        self.table.set_relayed(index, true);
        self.count(Counter::RelayBegun);
        self.send_receipt(now, index);
    }

    /// Takes a step of a relay. `None` if it is not genuine, or of no relay that is under way.
    fn relay_step(&mut self, now: Now, incoming: &Incoming<'_>, to_new: bool) -> Option<()> {
        let number = relay_of(incoming.bytes)?;
        let Some(&index) = self.relays.by_number.get(&(number, !to_new)) else {
            return self.first_step(now, incoming, number, to_new);
        };
        let relay = self.controls[index.0 as usize].relay.as_mut()?;
        if relay.peer != incoming.from {
            return None;
        }
        let step = Step::decode(incoming.bytes, &relay.keys[1]).ok()?;
        relay.heard_ms = now.ms;
        relay.receivers = step.receipt.receivers;
        relay.channel.take(now.ns / 1000, &step.receipt, step.item);
        if !relay.channel.ready.is_empty() && !self.relays.ready.contains(&index) {
            self.relays.ready.push_back(index);
        }
        self.send_relay(now, index, false);
        Some(())
    }

    /// Returns the number of members that get copies of this group's datagrams elsewhere; `None` if too much waits.
    pub(super) fn relay_receivers(&self, index: GroupIndex) -> Option<u32> {
        match &self.group_control(index).relay {
            Some(relay) if relay.ended_ms.is_none() => {
                let has_space = relay.channel.has_space() && relay.bytes < BYTES_MAX;
                has_space.then_some(relay.receivers)
            }
            _ => Some(0),
        }
    }

    /// Takes a member's datagram, which was admitted. Returns true if it is to be copied here now.
    pub(super) fn relay_payload(
        &mut self,
        now: Now,
        index: GroupIndex,
        sender: Option<MemberIndex>,
        except: Option<SocketAddr>,
        tos: u8,
        payload: &[u8],
    ) -> bool {
        let from = sender.map(|sender| self.table.member(sender).address);
        let Some(relay) =
            self.controls[index.0 as usize].relay.as_mut().filter(|relay| relay.ended_ms.is_none())
        else {
            return true;
        };
        if relay.is_old {
            relay.push_datagram(tos, payload);
        } else {
            let payload = payload.to_vec();
            let leaves = from.and_then(|from| relay.coming_at.get(&from));
            match leaves.and_then(|session| relay.coming.get_mut(session)) {
                Some(coming) => {
                    // As long as it gets no copies its place in the table does not say whom it wants to get them.
                    let except = (!coming.terms.echo).then_some(coming.address);
                    let waiting = Waiting { except, tos, payload };
                    relay.bytes += waiting.bytes();
                    coming.sent.push(waiting);
                }
                None => relay.wait(Waiting { except, tos, payload }),
            }
        }
        let copies_here = relay.is_old;
        self.count(Counter::RelaySent);
        self.send_relay(now, index, false);
        copies_here
    }

    /// Returns the next datagram whose turn has come.
    pub(super) fn next_relayed(&mut self, now: Now) -> Option<Relayed> {
        loop {
            if let Some(relayed) = self.relays.due.pop_front() {
                return Some(relayed);
            }
            let index = *self.relays.ready.front()?;
            let relay = self.controls.get_mut(index.0 as usize).and_then(|control| control.relay.as_mut());
            match relay.and_then(|relay| relay.channel.ready.pop_front()) {
                Some(item) => self.relay_item(now, index, item),
                None => {
                    self.relays.ready.pop_front();
                    if self.group_control(index).relay.is_some() {
                        self.send_relay(now, index, false);
                    }
                }
            }
        }
    }

    fn relay_item(&mut self, now: Now, index: GroupIndex, item: Item) {
        let Some(relay) = self.controls[index.0 as usize].relay.as_mut() else { return };
        if relay.ended_ms.is_some() {
            // What the new reflector had sent before it knew of the end it copies itself.
            return;
        }
        match (item.kind, relay.is_old) {
            (ItemKind::Part | ItemKind::Last, is_old) => {
                if relay.parts.len() + item.bytes.len() > DATAGRAM_BYTES_MAX {
                    relay.parts.clear();
                    return self.count(Counter::RelayForged);
                }
                relay.parts.extend_from_slice(&item.bytes);
                if item.kind == ItemKind::Part {
                    return;
                }
                let payload = std::mem::take(&mut relay.parts);
                if is_old {
                    relay.channel.push(Item::plain(ItemKind::Yours));
                }
                self.relays.due.push_back(Relayed { group: index, except: None, tos: item.tos, payload });
                self.count(Counter::RelayTaken);
            }
            (ItemKind::Yours, false) => {
                if let Some(waiting) = relay.waiting.pop_front() {
                    relay.bytes -= waiting.bytes();
                    let Waiting { except, tos, payload } = waiting;
                    self.relays.due.push_back(Relayed { group: index, except, tos, payload });
                }
            }
            (ItemKind::Left, false) => {
                let session = item.session().unwrap_or_default();
                self.has_come(now, index, session);
            }
            (ItemKind::End, false) => self.end_relay(now, index),
            (ItemKind::Claim, true) => {
                let session = item.session().unwrap_or_default();
                let address = relay.sessions.get(&session).copied();
                let id = self.table.group(index).id;
                let is_here = address.is_some_and(|address| self.member(id, address, session).is_some());
                let Some(relay) = self.controls[index.0 as usize].relay.as_mut() else { return };
                match is_here {
                    true => drop(relay.claims.insert(session, now.ms + CLAIM_MS)),
                    false => relay.channel.push(Item::of_session(ItemKind::Left, session)),
                }
            }
            // What makes no sense in this direction.
            _ => self.count(Counter::RelayForged),
        }
    }

    /// Ends the relay of a group. At the new side all that waits is copied.
    fn end_relay(&mut self, now: Now, index: GroupIndex) {
        let Some(relay) =
            self.controls[index.0 as usize].relay.as_mut().filter(|relay| relay.ended_ms.is_none())
        else {
            return;
        };
        relay.ended_ms = Some(now.ms);
        if relay.is_old {
            relay.channel.push(Item::plain(ItemKind::End));
        }
        let waiting = std::mem::take(&mut relay.waiting);
        let coming = std::mem::take(&mut relay.coming);
        let mut left: Vec<Waiting> = waiting.into();
        for ArrivingMember { address, terms, sent } in coming.into_values() {
            left.extend(sent);
            self.receive_here(now, index, address, terms);
        }
        for Waiting { except, tos, payload } in left {
            self.relays.due.push_back(Relayed { group: index, except, tos, payload });
        }
        self.table.set_relayed(index, false);
        self.send_relay(now, index, false);
    }

    /// Forgets the relay of a group.
    pub(super) fn drop_relay(&mut self, index: GroupIndex) {
        if let Some(relay) = self.group_control_mut(index).relay.take() {
            self.relays.by_number.remove(&(relay.number, relay.is_old));
        }
    }

    /// Sends the due messages of a relay.
    fn send_relay(&mut self, now: Now, index: GroupIndex, late: bool) {
        let Some(receivers) = self.table.get_group(index).map(Group::receivers) else { return };
        let Control { controls, outgoing, .. } = self;
        let Some(relay) = controls[index.0 as usize].relay.as_mut() else { return };
        let (direction, receipt) = (Relay::direction(relay.is_old), relay.channel.receipt(receivers));
        let Relay { number, keys, peer, local, channel, reported_ms, .. } = &mut **relay;
        let mut put = |item: Option<(u32, &Item)>| {
            let bytes = encode_step(direction, *number, &receipt, item, &keys[0]);
            outgoing.push_back(crate::host::Outgoing { local: *local, to: *peer, bytes });
        };
        let mut sent = channel.send(now.ns / 1000, |number, item| put(Some((number, item))));
        if !sent && (channel.owes_receipt(late) || late && now.ms >= *reported_ms + STEADY_MS) {
            put(None);
            channel.receipt_sent();
            sent = true;
        }
        if sent {
            *reported_ms = now.ms;
        }
    }

    fn send_receipt(&mut self, now: Now, index: GroupIndex) {
        if let Some(relay) = &mut self.group_control_mut(index).relay {
            relay.reported_ms = 0;
        }
        self.send_relay(now, index, true);
    }

    /// Advances the time of all relays.
    pub(super) fn tick_relays(&mut self, now: Now) {
        for at in (0..self.relays.groups.len()).rev() {
            let index = self.relays.groups[at];
            self.ask_for_relay(now, index);
            self.tick_relay(now, index);
            let control = self.group_control(index);
            if control.opening.is_none() && control.relay.is_none() {
                self.relays.groups.swap_remove(at);
            }
        }
    }

    fn tick_relay(&mut self, now: Now, index: GroupIndex) {
        let is_empty = self.table.get_group(index).is_none_or(|group| group.live == 0);
        let Some(relay) = &mut self.controls[index.0 as usize].relay else { return };
        if now.ms >= relay.heard_ms + SILENT_MS || now.ms >= relay.begun_ms + LIFE_MAX_MS {
            let was_live = relay.ended_ms.is_none();
            if was_live {
                self.count(Counter::RelayLost);
            }
            self.end_relay(now, index);
            return self.drop_relay(index);
        }
        if let Some(ended_ms) = relay.ended_ms {
            // The old side waits until its last word was heard, the new one in case that its receipt was lost.
            let is_over = match relay.is_old {
                true => relay.channel.is_done(),
                false => now.ms >= ended_ms + LINGER_MS,
            };
            if is_over {
                return self.drop_relay(index);
            }
        } else if relay.is_old {
            let due: Vec<u64> = relay
                .claims
                .iter()
                .filter(|(_, due_ms)| **due_ms <= now.ms)
                .map(|(session, _)| *session)
                .collect();
            let over = is_empty || now.ms >= relay.begun_ms + RELAY_MS;
            for session in due {
                self.take_away(now, index, session);
            }
            if over {
                self.end_relay(now, index);
            }
        }
        self.send_relay(now, index, true);
    }
}
