//! Invariants that no sequence of datagrams may break, for property tests and for fuzzing: a script of bytes plays an
//! attacker, honest clients, an operator and the store, and the invariants are checked after every step.
//!
//! - An address that has not returned a cookie gets at most one datagram for each of its own,
//!   no longer than that, and nothing else ever.
//! - Only addresses that have returned a cookie are members.
//! - A repeated datagram makes no address a member.
//! - The table, the seats, the states and the counters agree.

use std::collections::{BTreeSet, HashSet};
use std::net::SocketAddr;

use bytes::Bytes;

use super::{Control, ControlOptions, Counter, Counters, Event, StateOptions};
use crate::cookie::Secret;
use crate::host::{Incoming, Now};
use crate::location::LocationEntry;
use crate::rate::Rate;
use crate::table::{GroupId, GroupIndex, GroupOptions, MemberIndex, Path};
use crate::wire::{
    Answer, Heartbeat, Join, MAGIC, Reflectors, Request, StateGet, StatePart, VERSION, WireError,
};

const ADDRESSES: usize = 6;
const PORTS: [u16; 2] = [7400, 7401];
const RECORDED_MAX: usize = 64;

/// The last values that an address has heard from the reflector.
#[derive(Clone, Copy, Default)]
struct Heard {
    cookie: [u8; 16],
    group: u32,
    session: u64,
    ask: u32,
    version: u64,
    proof: u64,
}

/// A datagram that was sent before.
struct Recorded {
    from: usize,
    port: u16,
    bytes: Vec<u8>,
}

struct Play {
    control: Control,
    now: Now,
    heard: [[Heard; PORTS.len()]; ADDRESSES],
    /// The cookies that were sent to each address.
    cookies: HashSet<(usize, [u8; 16])>,
    /// The addresses that have returned a cookie of their own.
    proven: BTreeSet<usize>,
    recorded: Vec<Recorded>,
    /// The datagrams that have made an address a member.
    spent: HashSet<(usize, Vec<u8>)>,
    /// Requests to the store that it has not answered.
    jobs: Vec<Event>,
}

/// Plays a script and returns the counters.
///
/// # Panics
/// If an invariant is broken.
pub fn run(script: &[u8]) -> Counters {
    let mut script = Script(script);
    let mut play = Play::new();
    while let Some(step) = script.next() {
        play.step(step, &mut script);
        play.look();
    }
    *play.control.counters()
}

struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn byte(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}

fn address(number: usize) -> SocketAddr {
    match number {
        // Nothing may ever be sent there.
        5 => SocketAddr::from(([224, 0, 0, 9], 40_000)),
        4 => SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, number as u16], 40_000)),
        _ => SocketAddr::from(([203, 0, 113, 1], 40_000 + number as u16)),
    }
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([198, 51, 100, 1], port))
}

impl Play {
    fn new() -> Self {
        let options = ControlOptions {
            own: PORTS.map(local).to_vec(),
            group_default: Some(GroupOptions { members_max: 3, ..GroupOptions::default() }),
            state_default: Some(StateOptions { every_ms: 500, ..StateOptions::default() }),
            joins_per_source: Rate::per_second(1, 3),
            state_bytes_max: 0,
            ..ControlOptions::default()
        };
        let mut control = Control::new(options, Secret::new([5; 32]));
        let now = Now { ms: 1_000_000, ns: 1_000_000_000_000, unix_s: 1_700_000_000 };
        for port in PORTS {
            for id in 0..3 {
                let options = GroupOptions { members_max: 2, token: id == 2, ..GroupOptions::default() };
                control.set_group(GroupId { port, id }, options);
                control.set_state(
                    now,
                    GroupId { port, id },
                    Some(StateOptions { every_ms: 200, ..StateOptions::default() }),
                );
            }
        }
        Play {
            control,
            now,
            heard: Default::default(),
            cookies: HashSet::new(),
            proven: BTreeSet::new(),
            recorded: Vec::new(),
            spent: HashSet::new(),
            jobs: Vec::new(),
        }
    }

    fn step(&mut self, step: u8, script: &mut Script<'_>) {
        let sender = script.byte();
        let from = usize::from(sender) % ADDRESSES;
        // Mostly with what it was told itself, at times with what another was told.
        let of = if sender >> 6 == 0 { script.below(ADDRESSES) } else { from };
        let (port_number, group) = (script.below(PORTS.len()), script.below(4) as u32);
        let port = PORTS[port_number];
        let heard = self.heard[of][port_number];
        // A member mostly speaks of the group that it wanted to be in.
        let is_join = matches!(step % 20, 2..=5);
        let group = if !is_join && sender >> 4 & 3 != 0 { heard.group } else { group };
        let request = match step % 20 {
            0 => {
                let len = script.below(256);
                let mut bytes = [&MAGIC[..], &[VERSION - script.byte() % 2]].concat();
                bytes.extend_from_slice(script.bytes(len));
                return self.say(from, port, bytes);
            }
            1 => {
                let len = script.below(256);
                return self.say(from, port, script.bytes(len).to_vec());
            }
            2..=5 => {
                let flags = script.byte();
                let cookie = if step % 20 == 2 { [0; 16] } else { heard.cookie };
                let nonce = u64::from(script.byte() % 4);
                self.heard[from][port_number].group = group;
                let (echo, keeps_state) = (flags & 1 != 0, flags & 2 != 0);
                let leaves = (flags & 4 != 0).then_some(heard.session);
                Request::Join(Join { group, echo, keeps_state, nonce, cookie, leaves, token: &[] }).encode()
            }
            6 => Request::Leave { group, session: heard.session }.encode(),
            7 | 8 => Request::Heartbeat(Heartbeat {
                group,
                number: u32::from(script.byte()) + (self.now.ms - 1_000_000) as u32,
                session: heard.session,
                client_us: 1,
                reflector_us: u64::from(script.byte()) << 30,
                hold_us: 3,
                state_version: 0,
                proof: heard.proof ^ u64::from(script.byte().is_multiple_of(8)),
            })
            .encode(),
            9 => Request::Locate { nonce: 1, location: ["harbour", "moor"][script.below(2)] }.encode(),
            10 => {
                let parts = 1 + script.below(16) as u16;
                let (version, offset) = (heard.version, script.below(4) as u32 * 1024);
                Request::StateGet(StateGet {
                    group,
                    parts,
                    session: heard.session,
                    version,
                    offset,
                    proof: heard.proof,
                })
                .encode()
            }
            11 | 16 | 17 => {
                let state = [script.byte() / 200; 1500];
                let size = [None, Some(0), Some(3), Some(1500)][script.below(4)];
                let offset = if size == Some(1500) { script.below(2) * 1024 } else { 0 };
                let bytes = &state[offset..size.map_or(0, |size| 1500.min(size as usize).min(offset + 1024))];
                let (session, ask, offset) = (heard.session, heard.ask, offset as u32);
                Request::StatePart(StatePart { group, ask, session, size, offset, bytes }).encode()
            }
            12 if !self.recorded.is_empty() => {
                // What was said is said again, by whoever said it, or by somebody else.
                let recorded = &self.recorded[of * 8 % self.recorded.len()];
                let again = Recorded { bytes: recorded.bytes.clone(), ..*recorded };
                let from = if group == 0 { from } else { again.from };
                return self.say(from, again.port, again.bytes);
            }
            13 => {
                let ms = u64::from(script.byte());
                return self.pass(if ms < 230 { ms / 4 } else { ms * 16 });
            }
            14 => return self.operate(group, port, script.byte()),
            _ => return self.work(script.byte()),
        };
        if self.recorded.len() < RECORDED_MAX {
            self.recorded.push(Recorded { from, port, bytes: request.clone() });
        }
        self.say(from, port, request);
    }

    /// Delivers a datagram to the reflector.
    fn say(&mut self, from: usize, port: u16, bytes: Vec<u8>) {
        if let Ok(Request::Join(join)) = Request::decode(&bytes)
            && self.cookies.contains(&(from, join.cookie))
        {
            self.proven.insert(from);
        }
        let joined_before = self.control.counters().get(Counter::Joined);
        let path = Path { device: 1 + u32::from(bytes.len() < 100), local: local(port) };
        self.control.handle(self.now, Incoming { path, from: address(from), bytes: &bytes });
        if self.control.counters().get(Counter::Joined) > joined_before {
            assert!(self.spent.insert((from, bytes.clone())), "a JOIN that was heard before made a member");
        }
        let (mut answers, mut answered_bytes) = (0, 0);
        while let Some(out) = self.control.next_outgoing() {
            if out.to == address(from) && !self.proven.contains(&from) {
                answers += 1;
                answered_bytes += out.bytes.len();
                assert_eq!(out.local, path.local);
            }
            self.hear(out.local, out.to, &out.bytes, Some(from));
        }
        assert!(answers <= 1, "more than one answer to an unproven address");
        assert!(answered_bytes <= bytes.len(), "an answer that is longer than its request");
    }

    /// Delivers a datagram of the reflector. `caller` is the address that may get it although it has proven nothing.
    fn hear(&mut self, local: SocketAddr, to: SocketAddr, bytes: &[u8], caller: Option<usize>) {
        let number =
            (0..ADDRESSES).find(|number| address(*number) == to).expect("nobody else has said anything");
        assert!(caller == Some(number) || self.proven.contains(&number), "sent to an address without proof");
        let port = PORTS.iter().position(|port| *port == local.port()).expect("it is sent from a listener");
        let heard = &mut self.heard[number][port];
        let answer = match Answer::decode(bytes) {
            // It refuses the first version in its own words.
            Err(WireError::Version(1)) => return assert_eq!(bytes.len(), 24),
            answer => answer.expect("what the reflector says is sound"),
        };
        match answer {
            Answer::Challenge { cookie, .. } => {
                heard.cookie = cookie;
                self.cookies.insert((number, cookie));
            }
            Answer::Joined(joined) => (heard.session, heard.proof) = (joined.session, joined.proof),
            // Now and then one is lost.
            Answer::Pulse(pulse) if pulse.number % 3 != 0 => heard.proof = pulse.proof,
            Answer::StateAsk { ask, .. } => heard.ask = ask,
            Answer::State { version, .. } => heard.version = version,
            _ => {}
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now.ms += ms;
        self.now.ns += ms * 1_000_000;
        self.now.unix_s += ms / 1000;
        self.control.tick(self.now);
        while let Some(out) = self.control.next_outgoing() {
            self.hear(out.local, out.to, &out.bytes, None);
        }
    }

    fn operate(&mut self, group: u32, port: u16, what: u8) {
        let here = LocationEntry { reflectors: Reflectors::new(&[local(port)]).expect("one fits"), group };
        let there = LocationEntry {
            reflectors: Reflectors::new(&[address(1), local(port)]).expect("two fit"),
            group,
        };
        let away = LocationEntry { reflectors: Reflectors::new(&[address(2)]).expect("one fits"), group };
        let name = ["harbour", "moor"][usize::from(what & 1)];
        let id = GroupId { port, id: group };
        match what >> 1 & 7 {
            0 => self.control.set_location(self.now, name, Some(here)),
            1 => self.control.set_location(self.now, name, Some(there)),
            2 => self.control.set_location(self.now, name, Some(away)),
            3 => self.control.set_location(self.now, name, None),
            4 => {
                self.control.remove_group(id);
                // The data thread takes the changes after each turn.
                self.control.table.take_changes(|_, _| {});
            }
            5 => self.control.set_group(id, GroupOptions { members_max: 2, ..GroupOptions::default() }),
            6 => self.control.set_state(self.now, id, None),
            _ => self.control.set_state(
                self.now,
                id,
                Some(StateOptions { nearest: false, ..StateOptions::default() }),
            ),
        }
    }

    /// Answers one question to the store, in a way chosen by `how`.
    fn work(&mut self, how: u8) {
        if self.jobs.is_empty() {
            return;
        }
        let now = self.now;
        match self.jobs.swap_remove(usize::from(how >> 2) % self.jobs.len()) {
            Event::LoadState { group, .. } => match how & 3 {
                0 => self.control.state_failed(now, group),
                1 => self.control.state_loaded(now, group, 0, None),
                _ => self.control.state_loaded(now, group, how.into(), Some(Bytes::from(vec![how; 1030]))),
            },
            Event::StoreState { group, base, .. } => match how & 3 {
                0 => self.control.state_failed(now, group),
                1 => self.control.state_conflict(now, group, base + 2),
                _ => self.control.state_stored(now, group, base + 1),
            },
            Event::Joined { .. } | Event::Left { .. } => {}
        }
    }

    /// Checks the invariants that hold at any time.
    fn look(&mut self) {
        let events: Vec<_> = self.control.events().collect();
        for event in events {
            match event {
                Event::LoadState { .. } | Event::StoreState { .. } => self.jobs.push(event),
                Event::Joined { address: at, .. } | Event::Left { address: at, .. } => {
                    assert!(
                        self.proven.iter().any(|number| address(*number) == at),
                        "a member without proof"
                    );
                }
            }
        }
        let control = &self.control;
        let table = control.table();
        let mut live = 0;
        for (index, group) in table.groups() {
            live += group.live as usize;
            let entries = group.lanes.iter().flat_map(|lane| &lane.entries);
            let members: Vec<MemberIndex> = entries.filter_map(|entry| entry.member()).collect();
            assert_eq!(members.len(), group.live as usize);
            for member in members {
                assert_eq!(table.member(member).group, index);
                assert_eq!(table.member_of(group.id, table.member(member).address), Some(member));
                assert_ne!(control.seat(member).session, 0);
                let home = table.member(member).address;
                assert!(self.proven.iter().any(|number| address(*number) == home), "a member without proof");
            }
        }
        assert_eq!(live, table.members_len());
        let count = |counter| control.counters().get(counter);
        let gone = count(Counter::Left) + count(Counter::Expired) + count(Counter::Removed);
        assert_eq!(count(Counter::Joined) - gone, live as u64, "members and counters disagree");
        control.look_at_states();
    }
}

impl Control {
    fn look_at_states(&self) {
        let mut due = 0;
        let (mut taken, mut bytes) = (0, 0);
        for (place, control) in self.controls.iter().enumerate() {
            let Some(state) = &control.state else { continue };
            assert!(self.table.get_group(GroupIndex(place as u32)).is_some(), "a state without a group");
            let (is_taken, kept_bytes, due_ms) = state.account();
            taken += usize::from(is_taken);
            bytes += kept_bytes;
            if let Some(due_ms) = due_ms {
                due += 1;
                assert!(self.state_due.contains(&(due_ms, place as u32)));
            }
        }
        assert_eq!((due, taken, bytes), (self.state_due.len(), self.states_taken, self.states_bytes));
    }
}
