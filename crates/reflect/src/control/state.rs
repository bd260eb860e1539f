//! Checkpoints of groups' states: asked from a member every so often, stored, and handed out.
//!
//! The reflector keeps no state of its own making. It asks one member at a time, the nearest first if it is to; the next
//! one if that does not answer. What a member gives becomes the group's state once it has been stored under a version, on
//! the condition that the version before it is still the newest: if another reflector has stored a newer one meanwhile,
//! that is loaded instead, and what was to be stored is dropped.
//!
//! Memory is bounded: by the states that are being taken at a time, and by the bytes of those that are kept to be handed
//! out; one that was let go is loaded again when it is asked for.

use std::net::SocketAddr;

use bytes::Bytes;

use super::{Control, Counter, Event};
use crate::forward::{Incoming, Now};
use crate::rate::Rate;
use crate::table::{GroupId, GroupIndex, MemberIndex};
use crate::wire::{Answer, PART_BYTES, STATE_BYTES_MAX, StateGet, StatePart};

/// How long to wait for a part before the question is repeated.
const REPEAT_MS: u64 = 200;
/// How long to wait after a failure of the store.
const STORE_RETRY_MS: u64 = 2000;
/// States that are taken from members at a time, in all groups.
const TAKING_MAX: usize = 64;
/// How long a group waits for its turn to be one of them.
const TURN_MS: u64 = 100;
/// Groups that get on with their states in one tick.
const TURNS_PER_TICK: usize = 256;
/// Parts that one member may fetch a second: 4 MiB.
fn parts_per_member() -> Rate {
    Rate::per_second(4096, 256)
}

/// How a group's state is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateOptions {
    /// How often a member is asked for it.
    pub every_ms: u64,
    /// The nearest member by measured delay is asked first; else any.
    pub nearest: bool,
    /// How long a member may keep the reflector waiting for its next part.
    pub wait_ms: u64,
    /// How many members are asked one after another, until the next time.
    pub members_max: usize,
}

impl Default for StateOptions {
    fn default() -> Self {
        StateOptions { every_ms: 10_000, nearest: true, wait_ms: 1000, members_max: 8 }
    }
}

/// What is known of the stored state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// Nothing: it is to be loaded.
    No,
    /// It is being loaded.
    Loading,
    /// All.
    Yes,
}

/// A question to a member.
#[derive(Debug)]
struct Ask {
    number: u32,
    member: MemberIndex,
    session: u64,
    /// When something last came.
    progress_ms: u64,
    /// What has come, as long as the whole will be.
    bytes: Vec<u8>,
    have: Vec<bool>,
    next: usize,
}

/// A group's state.
#[derive(Debug)]
pub(super) struct State {
    options: StateOptions,
    known: Known,
    /// The version that the store has, which the next one is based on.
    version: u64,
    /// The size of the state of that version; `None` if there is none.
    size: Option<u32>,
    /// The state itself, unless it was let go.
    bytes: Option<Bytes>,
    used_ms: u64,
    asks: u32,
    ask: Option<Ask>,
    /// The last question that was answered wholly, and its session.
    answered: Option<(u32, u64)>,
    /// Sessions that did not answer this time.
    tried: Vec<u64>,
    storing: Option<Bytes>,
    due_ms: Option<u64>,
}

impl State {
    /// The version and size that members are told.
    pub(super) fn told(&self) -> (u64, u32, bool) {
        match (self.known, self.size) {
            (Known::Yes, Some(size)) => (self.version, size, false),
            (Known::Yes, None) => (0, 0, false),
            _ => (0, 0, true),
        }
    }
}

impl Control {
    /// Whether, and how, the state of a group is kept.
    pub fn set_state(&mut self, now: Now, id: GroupId, options: Option<StateOptions>) {
        let Some(group) = self.table.find(id) else { return };
        let Some(options) = options else { return self.drop_state(group) };
        match &mut self.room_mut(group).state {
            Some(state) => state.options = options,
            none => {
                *none = Some(Box::new(State {
                    options,
                    known: Known::No,
                    version: 0,
                    size: None,
                    bytes: None,
                    used_ms: now.ms,
                    asks: 0,
                    ask: None,
                    answered: None,
                    tried: Vec::new(),
                    storing: None,
                    due_ms: None,
                }));
            }
        }
        self.schedule(group, Some(now.ms));
    }

    /// What the store has: the version, and the state unless there is none. Answers [`Event::LoadState`].
    pub fn state_loaded(&mut self, now: Now, id: GroupId, version: u64, bytes: Option<Bytes>) {
        let Some(group) = self.table.find(id) else { return };
        let Some(state) = &mut self.room_mut(group).state else { return };
        if state.known == Known::Yes && version < state.version {
            return;
        }
        state.known = Known::Yes;
        state.version = version;
        state.size = bytes.as_ref().map(|bytes| bytes.len() as u32);
        let due_ms = match (state.ask.is_some() || state.storing.is_some(), state.due_ms) {
            (true, due_ms) => due_ms,
            // A state that was just let go is not asked for sooner because it was loaded again.
            (false, Some(due_ms)) if due_ms > now.ms && due_ms <= now.ms + state.options.every_ms => {
                Some(due_ms)
            }
            (false, _) => Some(now.ms + state.options.every_ms),
        };
        self.schedule(group, due_ms);
        self.keep_state(now, group, bytes);
    }

    /// The state was stored, under this version. Answers [`Event::StoreState`].
    pub fn state_stored(&mut self, now: Now, id: GroupId, version: u64) {
        let Some(group) = self.table.find(id) else { return };
        let Some(state) = &mut self.room_mut(group).state else { return };
        let Some(bytes) = state.storing.take() else { return };
        state.version = version;
        state.size = Some(bytes.len() as u32);
        let due_ms = now.ms + state.options.every_ms;
        self.states_taken -= 1;
        self.count(Counter::StateStored);
        self.schedule(group, Some(due_ms));
        self.keep_state(now, group, Some(bytes));
    }

    /// The state was not stored: the store has a newer one, which is loaded now. Answers [`Event::StoreState`].
    pub fn state_conflict(&mut self, now: Now, id: GroupId, newer: u64) {
        let Some(group) = self.table.find(id) else { return };
        let Some(state) = &mut self.room_mut(group).state else { return };
        if state.storing.take().is_none() {
            return;
        }
        state.known = Known::No;
        state.version = state.version.max(newer);
        self.states_taken -= 1;
        self.count(Counter::StateConflict);
        self.keep_state(now, group, None);
        self.schedule(group, Some(now.ms));
    }

    /// The store could not do it. Answers [`Event::LoadState`] and [`Event::StoreState`].
    pub fn state_failed(&mut self, now: Now, id: GroupId) {
        self.count(Counter::StateFailed);
        let Some(group) = self.table.find(id) else { return };
        let Some(state) = &mut self.room_mut(group).state else { return };
        // It may have been stored all the same: what the store has is asked before anything else.
        state.known = Known::No;
        if state.storing.take().is_some() {
            self.states_taken -= 1;
        }
        self.schedule(group, Some(now.ms + STORE_RETRY_MS));
    }

    /// What was known of a group's state may be outdated.
    pub(super) fn forget_state(&mut self, now: Now, id: GroupId) {
        let Some(group) = self.table.find(id) else { return };
        let Some(state) = &mut self.room_mut(group).state else { return };
        if state.known == Known::Yes && state.storing.is_none() {
            state.known = Known::No;
        }
        self.schedule(group, Some(now.ms));
    }

    /// The version and size of a group's state that members are told, and whether it is still to be loaded.
    pub(super) fn state_told(&self, group: GroupIndex) -> (u64, u32, bool) {
        self.room(group).state.as_ref().map_or((0, 0, false), |state| state.told())
    }

    /// Gets on with the states whose time has come.
    pub(super) fn take_turns(&mut self, now: Now) {
        for _ in 0..TURNS_PER_TICK {
            match self.state_due.first().copied() {
                Some((due_ms, place)) if due_ms <= now.ms => {
                    self.schedule(GroupIndex(place), None);
                    self.turn(now, GroupIndex(place));
                }
                _ => return,
            }
        }
    }

    fn turn(&mut self, now: Now, group: GroupIndex) {
        let id = self.table.group(group).id;
        let live = self.table.group(group).live;
        let (closing, taking) = (self.closing, self.states_taken);
        let Some(state) = &mut self.room_mut(group).state else { return };
        if state.known == Known::No {
            state.known = Known::Loading;
            return self.tell_surely(Event::LoadState { group: id, name: self.state_name(group) });
        }
        if state.known == Known::Loading || state.storing.is_some() {
            return;
        }
        if let Some(ask) = &state.ask {
            let (member, session, number) = (ask.member, ask.session, ask.number);
            let in_time = now.ms.saturating_sub(ask.progress_ms) <= state.options.wait_ms;
            if in_time && self.is_still(member, session) {
                self.put_ask(group, member, session, number);
                return self.schedule(group, Some(now.ms + REPEAT_MS));
            }
            self.unanswered(group);
        }
        if live == 0 || closing {
            // Whoever comes in next sets it going again.
            return;
        }
        if taking >= TAKING_MAX {
            return self.schedule(group, Some(now.ms + TURN_MS));
        }
        let next = self.next_to_ask(group);
        let Some(state) = &mut self.room_mut(group).state else { return };
        match next {
            None => {
                state.tried.clear();
                let due_ms = now.ms + state.options.every_ms;
                self.schedule(group, Some(due_ms));
            }
            Some((member, session)) => {
                state.asks = state.asks.wrapping_add(1);
                let number = state.asks;
                let (bytes, have) = (Vec::new(), Vec::new());
                state.ask = Some(Ask { number, member, session, progress_ms: now.ms, bytes, have, next: 0 });
                self.states_taken += 1;
                self.count(Counter::StateAsked);
                self.put_ask(group, member, session, number);
                self.schedule(group, Some(now.ms + REPEAT_MS));
            }
        }
    }

    /// The member to ask next, with its session.
    fn next_to_ask(&self, group: GroupIndex) -> Option<(MemberIndex, u64)> {
        let state = self.room(group).state.as_ref()?;
        if state.tried.len() >= state.options.members_max {
            return None;
        }
        let entries = self.table.group(group).lanes.iter().flat_map(|lane| &lane.entries);
        let mut willing = entries.filter_map(|entry| {
            let index = entry.member?;
            let seat = self.seat(index);
            (seat.keeps_state && !state.tried.contains(&seat.session)).then_some((index, seat.session))
        });
        if !state.options.nearest {
            return willing.next();
        }
        // A delay that was not measured yet is a long one.
        willing.min_by_key(|(index, _)| self.table.member(*index).delay_us.wrapping_sub(1))
    }

    fn is_still(&self, member: MemberIndex, session: u64) -> bool {
        self.table.get_member(member).is_some() && self.seat(member).session == session
    }

    fn put_ask(&mut self, group: GroupIndex, member: MemberIndex, session: u64, ask: u32) {
        debug_assert_eq!(self.table.member(member).group, group);
        let (local, address) = (self.local_of(member), self.table.member(member).address);
        self.send(local, address, &Answer::StateAsk { session, ask });
    }

    /// The member that is asked does not answer, has no state, or is gone.
    fn unanswered(&mut self, group: GroupIndex) {
        let Some(state) = &mut self.room_mut(group).state else { return };
        if let Some(ask) = state.ask.take() {
            state.tried.push(ask.session);
            self.states_taken -= 1;
            self.count(Counter::StateUnanswered);
        }
    }

    /// Takes a part from a member.
    pub(super) fn state_part(&mut self, now: Now, incoming: &Incoming<'_>, id: GroupId, part: StatePart<'_>) {
        let Some(member) = self.member(id, incoming.from, part.session) else {
            return self.not_member(now, incoming, part.session);
        };
        let group = self.table.member(member).group;
        let (local, from, session) = (incoming.path.local, incoming.from, part.session);
        let Some(state) = &mut self.room_mut(group).state else { return self.count(Counter::StateUnasked) };
        if state.answered == Some((part.ask, session)) {
            // It does not know yet that everything was taken.
            let next = part.size.unwrap_or(0);
            return self.send(local, from, &Answer::StateTaken { session, ask: part.ask, next, later: 0 });
        }
        let asked = |ask: &&mut Ask| ask.number == part.ask && ask.session == session;
        let Some(ask) = state.ask.as_mut().filter(asked) else { return self.count(Counter::StateUnasked) };
        let Some(size) = part.size else {
            self.unanswered(group);
            return self.schedule(group, Some(now.ms));
        };
        if ask.have.is_empty() {
            ask.bytes = vec![0; size as usize];
            ask.have = vec![false; (size as usize).div_ceil(PART_BYTES).max(1)];
        }
        // The codec has checked that the part lies within its size, which has to be that of the first part.
        let at = part.offset as usize;
        let right_size = ask.bytes.len() == size as usize;
        let place = ask.bytes.get_mut(at..at + part.bytes.len()).filter(|_| right_size);
        let (Some(place), Some(have)) = (place, ask.have.get_mut(at / PART_BYTES)) else {
            return self.count(Counter::StateUnasked);
        };
        if !std::mem::replace(have, true) {
            place.copy_from_slice(part.bytes);
            ask.progress_ms = now.ms;
        }
        while ask.have.get(ask.next) == Some(&true) {
            ask.next += 1;
        }
        let later = ask.have[ask.next..].iter().skip(1).take(64).enumerate();
        let later = later.fold(0, |bits, (bit, have)| bits | u64::from(*have) << bit);
        let next = (ask.next * PART_BYTES).min(ask.bytes.len()) as u32;
        let whole = ask.next == ask.have.len();
        if whole {
            let bytes = Bytes::from(std::mem::take(&mut ask.bytes));
            let base = state.version;
            state.ask = None;
            state.answered = Some((part.ask, session));
            state.tried.clear();
            state.storing = Some(bytes.clone());
            self.schedule(group, None);
            self.tell_surely(Event::StoreState { group: id, name: self.state_name(group), base, bytes });
        }
        self.count(Counter::StatePartsTaken);
        self.send(local, from, &Answer::StateTaken { session, ask: part.ask, next, later });
    }

    /// Gives parts to a member.
    pub(super) fn state_get(&mut self, now: Now, incoming: &Incoming<'_>, id: GroupId, get: StateGet) {
        let StateGet { session, version, offset, parts, .. } = get;
        let Some(member) = self.member(id, incoming.from, session) else {
            return self.not_member(now, incoming, session);
        };
        let group = self.table.member(member).group;
        let mut bucket_ns = self.seat(member).state_bucket_ns;
        if !parts_per_member().take(&mut bucket_ns, now.ns, parts.into()) {
            return self.count(Counter::StateRate);
        }
        self.seats[member.0 as usize].state_bucket_ns = bucket_ns;
        let (local, from) = (incoming.path.local, incoming.from);
        let none = |pending| Answer::State { session, version: 0, size: 0, offset: 0, pending, bytes: &[] };
        let Some(state) = &mut self.room_mut(group).state else {
            return self.send(local, from, &none(false));
        };
        state.used_ms = now.ms;
        let (newest, size, pending) = state.told();
        if newest == 0 {
            return self.send(local, from, &none(pending));
        }
        let Some(bytes) = state.bytes.clone() else {
            state.known = Known::No;
            self.schedule(group, Some(now.ms));
            return self.send(local, from, &none(true));
        };
        // Whoever asks for another version gets the newest from its beginning, and finds out by the answer.
        let offset = if version == 0 || version == newest { offset as usize } else { 0 };
        for number in 0..usize::from(parts) {
            let at = offset + number * PART_BYTES;
            if at >= bytes.len() && !(at == 0 && bytes.is_empty()) {
                break;
            }
            let part = &bytes[at..bytes.len().min(at + PART_BYTES)];
            let (version, offset) = (newest, at as u32);
            self.count(Counter::StatePartsGiven);
            self.send(
                local,
                from,
                &Answer::State { session, version, size, offset, pending: false, bytes: part },
            );
        }
    }

    /// A member came in. The first one after a while sets the checkpoints going, and has what is known looked up again:
    /// other reflectors may have had the group meanwhile.
    pub(super) fn state_wanted(&mut self, now: Now, group: GroupIndex) {
        if self.table.group(group).live == 1 {
            self.forget_state(now, self.table.group(group).id);
        }
    }

    pub(super) fn drop_state(&mut self, group: GroupIndex) {
        self.keep_bytes(group, None);
        self.schedule(group, None);
        if let Some(state) = self.room_mut(group).state.take()
            && (state.ask.is_some() || state.storing.is_some())
        {
            self.states_taken -= 1;
        }
    }

    /// Keeps a state to hand it out, and lets others go, longest unused first, where they are too many.
    fn keep_state(&mut self, now: Now, group: GroupIndex, bytes: Option<Bytes>) {
        self.keep_bytes(group, bytes);
        if let Some(state) = &mut self.room_mut(group).state {
            state.used_ms = now.ms;
        }
        while self.states_bytes > self.options.state_bytes_max.max(STATE_BYTES_MAX) {
            let kept = self.rooms.iter().enumerate().filter_map(|(place, room)| {
                let state = room.state.as_ref()?;
                (state.bytes.is_some() && place != group.0 as usize).then_some((state.used_ms, place))
            });
            let Some((_, place)) = kept.min() else { return };
            self.keep_bytes(GroupIndex(place as u32), None);
        }
    }

    fn keep_bytes(&mut self, group: GroupIndex, bytes: Option<Bytes>) {
        let added = bytes.as_ref().map_or(0, Bytes::len);
        let Some(state) = &mut self.room_mut(group).state else { return };
        let removed = std::mem::replace(&mut state.bytes, bytes).map_or(0, |bytes| bytes.len());
        self.states_bytes = self.states_bytes + added - removed;
    }

    fn schedule(&mut self, group: GroupIndex, due_ms: Option<u64>) {
        let Some(state) = &mut self.room_mut(group).state else { return };
        if let Some(before_ms) = std::mem::replace(&mut state.due_ms, due_ms) {
            self.state_due.remove(&(before_ms, group.0));
        }
        if let Some(due_ms) = due_ms {
            self.state_due.insert((due_ms, group.0));
        }
    }

    /// What the store calls a group's state: by its location, which several reflectors may have one after another, or by
    /// the group.
    fn state_name(&self, group: GroupIndex) -> String {
        match &self.room(group).location {
            Some(location) => format!("location/{location}"),
            None => format!("group/{}", self.table.group(group).id),
        }
    }

    /// The address of a member that is being asked for a group's state, for those who look on.
    pub fn state_asked_of(&self, id: GroupId) -> Option<SocketAddr> {
        let state = self.room(self.table.find(id)?).state.as_ref()?;
        let ask = state.ask.as_ref()?;
        self.is_still(ask.member, ask.session).then(|| self.table.member(ask.member).address)
    }
}
