//! Checkpoints of groups' states: requested from a member at intervals, stored, and handed out.
//!
//! The reflector makes no state itself. It asks one member at a time, the nearest first if so configured,
//! and the next one if that does not answer. A member's state becomes the group's once it has been stored under a
//! version, on condition that the version before it is still the newest: if another reflector has stored a newer
//! one meanwhile, that is loaded instead, and the member's is dropped.
//!
//! Memory is bounded by the number of states being received at a time, and by the bytes of those kept to be handed out;
//! one that was dropped from memory is loaded again when it is requested.

use std::collections::HashSet;

use bytes::Bytes;

use super::{Control, Counter, Event};
use crate::host::{Incoming, Now};
use crate::rate::Rate;
use crate::table::{GroupId, GroupIndex, MemberIndex};
use crate::wire::{Answer, PART_BYTES, STATE_BYTES_MAX, StateGet, StatePart};

/// The wait for a part before the question is repeated, in milliseconds.
const REPEAT_MS: u64 = 200;
/// The time for a whole state: so many times the longest wait for a part, and so much for each part, in milliseconds. A
/// state of 1 MiB has to come within some 75 seconds.
const WHOLE_WAITS: u64 = 10;
const PART_MS: u64 = 64;
/// The wait after a failure of the store, in milliseconds.
const STORE_RETRY_MS: u64 = 2000;
/// The greatest number of states that are taken from members at a time, in all groups.
const TAKING_MAX: usize = 64;
/// The interval at which a group asks for its turn to be one of them, in milliseconds.
const TURN_MS: u64 = 100;
/// The greatest number of members of a group that are remembered for not having answered.
const TRIED_MAX: usize = 4096;
/// The greatest number of groups whose states are worked on in one tick.
const TURNS_PER_TICK: usize = 256;
/// Returns the rate at which one member may fetch parts: 4 MiB a second.
fn parts_per_member() -> Rate {
    Rate::per_second(4096, 256)
}

/// Options of a group's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateOptions {
    /// The interval at which a member is asked for the state, in milliseconds.
    pub every_ms: u64,
    /// True if the nearest member by measured delay is asked first; otherwise any is.
    pub nearest: bool,
    /// The longest wait for a member's next part, in milliseconds.
    pub wait_ms: u64,
    /// The greatest number of members asked one after another in one interval.
    pub members_max: usize,
}

impl Default for StateOptions {
    fn default() -> Self {
        StateOptions { every_ms: 10_000, nearest: true, wait_ms: 1000, members_max: 8 }
    }
}

/// The progress of a question to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lookup {
    /// None is needed.
    No,
    /// A member to be asked at the next turn.
    Wanted,
    /// Asked, and not answered yet.
    Underway,
}

/// A question to a member.
#[derive(Debug)]
struct Ask {
    number: u32,
    member: MemberIndex,
    session: u64,
    /// The times at which the member was first asked, and at which the last part came, in milliseconds.
    began_ms: u64,
    progress_ms: u64,
    /// The bytes that have come, in a buffer of the size of the whole state.
    bytes: Vec<u8>,
    have: Vec<bool>,
    next: usize,
}

impl Ask {
    /// Returns whether the member may still send further parts: the next comes soon enough, and so does the whole.
    fn is_in_time(&self, now_ms: u64, wait_ms: u64) -> bool {
        let whole_ms = wait_ms.saturating_mul(WHOLE_WAITS).saturating_add(self.have.len() as u64 * PART_MS);
        now_ms.saturating_sub(self.progress_ms) <= wait_ms && now_ms.saturating_sub(self.began_ms) <= whole_ms
    }
}

/// A group's state.
#[derive(Debug)]
pub(super) struct State {
    options: StateOptions,
    lookup: Lookup,
    /// The number of questions to the store that are not answered yet, and of those among them that were asked under a
    /// former name: their answers say nothing about the state.
    under_way: u32,
    outdated: u32,
    /// True if the store has answered: the fields below are as they were in the store then.
    known: bool,
    /// The version in the store, which the next one is based on.
    version: u64,
    /// The size of the state of that version; `None` if there is none.
    size: Option<u32>,
    /// The state itself, unless it was dropped from memory.
    bytes: Option<Bytes>,
    /// The version before, for members that are in the middle of fetching it.
    previous: Option<(u64, Bytes)>,
    used_ms: u64,
    asks: u32,
    ask: Option<Ask>,
    /// The last question that was answered in full, and its session.
    completed: Option<(u32, u64)>,
    /// The sessions that did not answer since one last did.
    tried: HashSet<u64>,
    /// The number of members tried in this interval.
    tried_now: usize,
    /// The time of the next question to members, in milliseconds.
    ask_ms: u64,
    storing: Option<Bytes>,
    /// The number of times in a row that no member gave anything.
    idle: u32,
    due_ms: Option<u64>,
}

impl State {
    /// Returns the version and size that are announced to members, and true if the state is still to be loaded.
    pub(super) fn announced(&self) -> (u64, u32, bool) {
        match (self.known, self.size) {
            (true, Some(size)) => (self.version, size, false),
            (true, None) => (0, 0, false),
            _ => (0, 0, true),
        }
    }

    #[cfg(feature = "testkit")]
    /// Returns true if the state is being taken or stored, the bytes that it keeps, and the time at which it is due.
    pub(super) fn account(&self) -> (bool, usize, Option<u64>) {
        let kept = self.bytes.as_ref().map_or(0, Bytes::len);
        let previous = self.previous.as_ref().map_or(0, |(_, bytes)| bytes.len());
        (self.ask.is_some() || self.storing.is_some(), kept + previous, self.due_ms)
    }
}

impl Control {
    /// Sets the options of a group's state; `None` to keep none. No effect if there is no such group.
    pub fn set_state(&mut self, now: Now, id: GroupId, options: Option<StateOptions>) {
        let Some(group) = self.table.find(id) else { return };
        let Some(options) = options else { return self.drop_state(group) };
        match &mut self.group_control_mut(group).state {
            Some(state) => state.options = options,
            none => {
                *none = Some(Box::new(State {
                    options,
                    lookup: Lookup::Wanted,
                    under_way: 0,
                    outdated: 0,
                    known: false,
                    version: 0,
                    size: None,
                    bytes: None,
                    previous: None,
                    used_ms: now.ms,
                    asks: 0,
                    ask: None,
                    completed: None,
                    tried: HashSet::new(),
                    tried_now: 0,
                    ask_ms: now.ms + options.every_ms,
                    storing: None,
                    idle: 0,
                    due_ms: None,
                }));
            }
        }
        self.schedule(group, Some(now.ms));
    }

    /// Answers [`Event::LoadState`]: the store's version, and the state unless there is none.
    pub fn state_loaded(&mut self, now: Now, id: GroupId, version: u64, bytes: Option<Bytes>) {
        let Some(group) = self.take_answer(now, id) else { return };
        let Some(state) = &mut self.group_control_mut(group).state else { return };
        state.lookup = Lookup::No;
        // Something newer may have been stored from here meanwhile.
        let bytes = if state.known && version < state.version { state.bytes.clone() } else { bytes };
        state.version = state.version.max(version);
        state.known = true;
        state.size = bytes.as_ref().map(|bytes| bytes.len() as u32);
        let due_ms = match (&state.ask, &state.storing) {
            (Some(_), _) => Some(now.ms),
            (None, Some(_)) => None,
            (None, None) => Some(state.ask_ms.max(now.ms)),
        };
        self.schedule(group, due_ms);
        self.keep_state(now, group, bytes);
    }

    /// Answers [`Event::StoreState`]: the state was stored under this version.
    pub fn state_stored(&mut self, now: Now, id: GroupId, version: u64) {
        let Some(group) = self.take_answer(now, id) else { return };
        let Some(state) = &mut self.group_control_mut(group).state else { return };
        let Some(bytes) = state.storing.take() else { return };
        let before = state.bytes.clone().map(|bytes| (state.version, bytes));
        state.version = version;
        state.size = Some(bytes.len() as u32);
        state.idle = 0;
        state.ask_ms = now.ms + state.options.every_ms;
        let due_ms = state.ask_ms;
        self.states_taken -= 1;
        self.count(Counter::StateStored);
        self.schedule(group, Some(due_ms));
        self.keep_state(now, group, Some(bytes));
        let before_bytes = before.as_ref().map_or(0, |(_, bytes)| bytes.len());
        if let Some(state) = &mut self.group_control_mut(group).state {
            state.previous = before;
            self.states_bytes += before_bytes;
        }
    }

    /// Answers [`Event::StoreState`]: the state was not stored, as the store has a newer one, which is loaded now.
    pub fn state_conflict(&mut self, now: Now, id: GroupId, newer: u64) {
        let Some(group) = self.take_answer(now, id) else { return };
        let Some(state) = &mut self.group_control_mut(group).state else { return };
        if state.storing.take().is_none() {
            return;
        }
        (state.known, state.lookup) = (false, Lookup::Wanted);
        state.version = state.version.max(newer);
        self.states_taken -= 1;
        self.count(Counter::StateConflict);
        self.keep_state(now, group, None);
        self.schedule(group, Some(now.ms));
    }

    /// Answers [`Event::LoadState`] or [`Event::StoreState`]: the store failed.
    pub fn state_failed(&mut self, now: Now, id: GroupId) {
        self.count(Counter::StateFailed);
        let Some(group) = self.take_answer(now, id) else { return };
        let Some(state) = &mut self.group_control_mut(group).state else { return };
        // It may have been stored all the same: the store is asked before anything else.
        state.lookup = Lookup::Wanted;
        if state.storing.take().is_some() {
            self.states_taken -= 1;
        }
        self.schedule(group, Some(now.ms + STORE_RETRY_MS));
    }

    /// Notes an answer of the store. Returns its group, unless the question was about a name that the group's state does
    /// not have any more, or there is no such state.
    fn take_answer(&mut self, now: Now, id: GroupId) -> Option<GroupIndex> {
        let group = self.table.find(id)?;
        let state = self.group_control_mut(group).state.as_mut()?;
        state.under_way = state.under_way.saturating_sub(1);
        if state.outdated == 0 {
            return Some(group);
        }
        state.outdated -= 1;
        if state.outdated == 0 {
            self.schedule(group, Some(now.ms));
        }
        None
    }

    /// Notes that a group's state has another name in the store from now on: it is loaded from there. A version of one
    /// object says nothing about another. As a base it would let a state replace a newer one that was never seen here.
    pub(super) fn rename_state(&mut self, now: Now, group: GroupIndex) {
        let Some(state) = &mut self.group_control_mut(group).state else { return };
        let (ask, storing) = (state.ask.take(), state.storing.take());
        (state.lookup, state.outdated) = (Lookup::Wanted, state.under_way);
        (state.known, state.version, state.size, state.completed) = (false, 0, None, None);
        if ask.is_some() || storing.is_some() {
            self.states_taken -= 1;
        }
        self.keep_bytes(group, None);
        self.schedule(group, Some(now.ms));
    }

    /// Marks a group's state as possibly outdated: it is loaded again.
    pub(super) fn forget_state(&mut self, now: Now, id: GroupId) {
        let Some(group) = self.table.find(id) else { return };
        let Some(state) = &mut self.group_control_mut(group).state else { return };
        state.known = false;
        if state.lookup == Lookup::No {
            state.lookup = Lookup::Wanted;
        }
        self.schedule(group, Some(now.ms));
    }

    /// Returns the version and size of a group's state that are announced to members, and true if it is still to be loaded.
    pub(super) fn announced_state(&self, group: GroupIndex) -> (u64, u32, bool) {
        self.group_control(group).state.as_ref().map_or((0, 0, false), |state| state.announced())
    }

    /// Works on the states whose time has come.
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
        let Some(state) = &mut self.group_control_mut(group).state else { return };
        if state.lookup == Lookup::Underway || state.storing.is_some() || state.outdated > 0 {
            // Its answer sets this going again.
            return;
        }
        if state.lookup == Lookup::Wanted {
            state.lookup = Lookup::Underway;
            state.under_way += 1;
            return self.emit_surely(Event::LoadState { group: id, name: self.state_name(group) });
        }
        if let Some(ask) = &state.ask {
            let (member, session, number) = (ask.member, ask.session, ask.number);
            let in_time = ask.is_in_time(now.ms, state.options.wait_ms);
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
        let Some(state) = &mut self.group_control_mut(group).state else { return };
        match next {
            None => {
                // Nobody who was asked knows. The store is asked again, which another reflector may have told meanwhile;
                // less and less often if there is nobody else to ask.
                let everybody = state.tried_now == 0;
                if everybody {
                    state.tried.clear();
                    state.idle += 1;
                }
                state.tried_now = 0;
                state.lookup = Lookup::Wanted;
                state.ask_ms = now.ms + (state.options.every_ms << state.idle.min(4));
                let due_ms = state.ask_ms;
                self.schedule(group, Some(due_ms));
            }
            Some((member, session)) => {
                state.asks = state.asks.wrapping_add(1);
                let number = state.asks;
                let (bytes, have) = (Vec::new(), Vec::new());
                let (began_ms, progress_ms) = (now.ms, now.ms);
                state.ask =
                    Some(Ask { number, member, session, began_ms, progress_ms, bytes, have, next: 0 });
                self.states_taken += 1;
                self.count(Counter::StateAsked);
                self.put_ask(group, member, session, number);
                self.schedule(group, Some(now.ms + REPEAT_MS));
            }
        }
    }

    /// Returns the member to ask next, with its session.
    fn next_to_ask(&self, group: GroupIndex) -> Option<(MemberIndex, u64)> {
        let state = self.group_control(group).state.as_ref()?;
        if state.tried_now >= state.options.members_max {
            return None;
        }
        let entries = self.table.group(group).lanes.iter().flat_map(|lane| &lane.entries);
        let mut willing = entries.filter_map(|entry| {
            let index = entry.member()?;
            let seat = self.seat(index);
            (seat.keeps_state && !state.tried.contains(&seat.session)).then_some((index, seat.session))
        });
        if !state.options.nearest {
            return willing.next();
        }
        // What members say of their delay is not looked at: whoever lied would be the nearest.
        willing.min_by_key(|(index, _)| self.seat(*index).proofs.way_us)
    }

    fn is_still(&self, member: MemberIndex, session: u64) -> bool {
        self.table.get_member(member).is_some() && self.seat(member).session == session
    }

    fn put_ask(&mut self, group: GroupIndex, member: MemberIndex, session: u64, ask: u32) {
        debug_assert_eq!(self.table.member(member).group, group);
        let (local, address) = (self.local_of(member), self.table.member(member).address);
        self.send(local, address, &Answer::StateAsk { session, ask });
    }

    /// Gives up the member that was asked: it does not answer, has no state, or is gone.
    fn unanswered(&mut self, group: GroupIndex) {
        let Some(state) = &mut self.group_control_mut(group).state else { return };
        if let Some(ask) = state.ask.take() {
            if state.tried.len() >= TRIED_MAX {
                state.tried.clear();
            }
            state.tried.insert(ask.session);
            state.tried_now += 1;
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
        let Some(state) = &mut self.group_control_mut(group).state else {
            return self.count(Counter::StateUnasked);
        };
        if state.completed == Some((part.ask, session)) {
            // It does not know yet that everything was taken.
            let next = part.size.unwrap_or(0);
            return self.send(local, from, &Answer::StateTaken { session, ask: part.ask, next, later: 0 });
        }
        let matches = |ask: &&mut Ask| ask.number == part.ask && ask.session == session;
        let Some(ask) = state.ask.as_mut().filter(matches) else { return self.count(Counter::StateUnasked) };
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
            state.completed = Some((part.ask, session));
            state.tried.clear();
            (state.tried_now, state.idle) = (0, 0);
            if state.known && state.bytes.as_ref() == Some(&bytes) {
                // Nothing has changed: what is stored is the newest.
                state.ask_ms = now.ms + state.options.every_ms;
                let due_ms = state.ask_ms;
                self.states_taken -= 1;
                self.count(Counter::StateUnchanged);
                self.schedule(group, Some(due_ms));
            } else {
                state.storing = Some(bytes.clone());
                state.under_way += 1;
                self.schedule(group, None);
                self.emit_surely(Event::StoreState { group: id, name: self.state_name(group), base, bytes });
            }
        }
        self.count(Counter::StatePartsTaken);
        self.send(local, from, &Answer::StateTaken { session, ask: part.ask, next, later });
    }

    /// Sends the parts that a member asks for.
    pub(super) fn state_get(&mut self, now: Now, incoming: &Incoming<'_>, id: GroupId, get: StateGet) {
        let StateGet { session, version, offset, parts, .. } = get;
        let Some(member) = self.member(id, incoming.from, session) else {
            return self.not_member(now, incoming, session);
        };
        let group = self.table.member(member).group;
        if self.take_proof(member, get.proof).is_none() {
            return self.stale(now, incoming, session);
        }
        let seat = &mut self.seats[member.0 as usize];
        // Who gave the address up may know the newest proof, and no later one: it is good for so much and no more.
        if seat.parts < parts || !parts_per_member().take(&mut seat.state_bucket_ns, now.ns, parts.into()) {
            return self.count(Counter::StateRate);
        }
        seat.parts -= parts;
        let (local, from) = (incoming.path.local, incoming.from);
        let none = |pending| Answer::State { session, version: 0, size: 0, offset: 0, pending, bytes: &[] };
        let Some(state) = &mut self.group_control_mut(group).state else {
            return self.send(local, from, &none(false));
        };
        state.used_ms = now.ms;
        let (newest, _, pending) = state.announced();
        if newest == 0 {
            return self.send(local, from, &none(pending));
        }
        if let Some((before, bytes)) = &state.previous
            && *before == version
        {
            let bytes = bytes.clone();
            return self.give_parts(incoming, get, version, &bytes);
        }
        let Some(bytes) = state.bytes.clone() else {
            if state.lookup == Lookup::No {
                state.lookup = Lookup::Wanted;
                self.schedule(group, Some(now.ms));
            }
            return self.send(local, from, &none(true));
        };
        // Whoever asks for another version gets the newest from its beginning, and finds out by the answer.
        let offset = if version == 0 || version == newest { offset } else { 0 };
        self.give_parts(incoming, StateGet { offset, ..get }, newest, &bytes);
    }

    fn give_parts(&mut self, incoming: &Incoming<'_>, get: StateGet, version: u64, state: &Bytes) {
        let (session, size) = (get.session, state.len() as u32);
        for number in 0..usize::from(get.parts) {
            let at = get.offset as usize + number * PART_BYTES;
            if at >= state.len() && at > 0 {
                break;
            }
            let bytes = &state[at..state.len().min(at + PART_BYTES)];
            let offset = at as u32;
            self.count(Counter::StatePartsGiven);
            let answer = Answer::State { session, version, size, offset, pending: false, bytes };
            self.send(incoming.path.local, incoming.from, &answer);
        }
    }

    /// Notes that a member joined. The first one after a while starts the checkpoints, and has the state looked up
    /// again: other reflectors may have had the group meanwhile.
    pub(super) fn state_wanted(&mut self, now: Now, group: GroupIndex) {
        if self.table.group(group).live == 1 {
            self.forget_state(now, self.table.group(group).id);
        }
    }

    pub(super) fn drop_state(&mut self, group: GroupIndex) {
        self.keep_bytes(group, None);
        self.schedule(group, None);
        if let Some(state) = self.group_control_mut(group).state.take()
            && (state.ask.is_some() || state.storing.is_some())
        {
            self.states_taken -= 1;
        }
    }

    /// Keeps a state in memory to hand it out, and drops others, longest unused first, when they are too many.
    fn keep_state(&mut self, now: Now, group: GroupIndex, bytes: Option<Bytes>) {
        self.keep_bytes(group, bytes);
        if let Some(state) = &mut self.group_control_mut(group).state {
            state.used_ms = now.ms;
        }
        while self.states_bytes > self.options.state_bytes_max.max(STATE_BYTES_MAX) {
            let kept = self.controls.iter().enumerate().filter_map(|(place, control)| {
                let state = control.state.as_ref()?;
                (state.bytes.is_some() && place != group.0 as usize).then_some((state.used_ms, place))
            });
            let Some((_, place)) = kept.min() else { return };
            self.keep_bytes(GroupIndex(place as u32), None);
        }
    }

    fn keep_bytes(&mut self, group: GroupIndex, bytes: Option<Bytes>) {
        let Some(state) = &mut self.group_control_mut(group).state else { return };
        let previous = state.previous.take().map_or(0, |(_, bytes)| bytes.len());
        let removed = std::mem::replace(&mut state.bytes, bytes).map_or(0, |bytes| bytes.len());
        let added = state.bytes.as_ref().map_or(0, Bytes::len);
        self.states_bytes = self.states_bytes + added - removed - previous;
    }

    fn schedule(&mut self, group: GroupIndex, due_ms: Option<u64>) {
        let Some(state) = &mut self.group_control_mut(group).state else { return };
        if let Some(before_ms) = std::mem::replace(&mut state.due_ms, due_ms) {
            self.state_due.remove(&(before_ms, group.0));
        }
        if let Some(due_ms) = due_ms {
            self.state_due.insert((due_ms, group.0));
        }
    }

    /// Returns the name of a group's state in the store: by its location, which several reflectors may have one after
    /// another, or by the group. Members of a location that has moved away are of it until they follow.
    pub(super) fn state_name(&self, group: GroupIndex) -> String {
        let control = self.group_control(group);
        let left = control.moving.as_ref().map(|moving| &moving.location);
        match control.location.as_ref().or(left) {
            Some(location) => format!("location/{location}"),
            None => format!("group/{}", self.table.group(group).id),
        }
    }

    /// Returns the version of a group's state that is announced to members; 0 for none.
    pub fn state_version(&self, group: GroupIndex) -> u64 {
        self.announced_state(group).0
    }
}
