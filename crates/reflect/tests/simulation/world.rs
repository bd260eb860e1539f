//! A world of reflectors and members: one clock, and a network that loses, repeats, delays and reorders datagrams, all
//! from one seed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use nacre_object::testkit::{MemoryStore, block_on};
use nacre_reflect::control::{Control, ControlOptions, Event};
use nacre_reflect::cookie::Secret;
use nacre_reflect::host::{Host, Incoming, Now};
use nacre_reflect::member::{Member, MemberEvent, MemberOptions, Wanted};
use nacre_reflect::state::{Checkpoints, Saved};
use nacre_reflect::table::{GroupIndex, Path};
use nacre_reflect::wire;

/// Numbers from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Seeded(pub u64);

impl Seeded {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn bytes(&mut self) -> [u8; 32] {
        std::array::from_fn(|_| self.next() as u8)
    }
}

/// The faults of the network.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    pub lost_percent: u64,
    pub twice_percent: u64,
    pub delay_us: u64,
}

pub const FAIR: Weather = Weather { lost_percent: 0, twice_percent: 0, delay_us: 2_000 };
pub const FOUL: Weather = Weather { lost_percent: 20, twice_percent: 10, delay_us: 40_000 };

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Flying {
    at_us: u64,
    number: u64,
    from: SocketAddr,
    to: SocketAddr,
    bytes: Vec<u8>,
}

/// A member, with its events.
#[derive(Debug)]
pub struct Player {
    pub member: Member,
    pub events: Vec<MemberEvent>,
    /// The state that it gives when it is asked for the group's; `None` for no answer at all.
    pub state: Option<Bytes>,
    /// True if it crashed: it neither receives nor sends anything.
    pub gone: bool,
    /// The payload that it got.
    pub heard: Vec<Vec<u8>>,
}

/// A request of a reflector to the store.
struct Job {
    at_us: u64,
    reflector: SocketAddr,
    /// The number of the reflector's start: one that was killed takes no answers.
    start: u64,
    event: Event,
}

pub struct World {
    pub now_us: u64,
    pub random: Seeded,
    pub weather: Weather,
    /// The faults of the network between reflectors, if they are others. The weather between members and reflectors is
    /// perfect then: nothing is lost or overtaken.
    pub between: Option<Weather>,
    /// The messages between reflectors: from, to, and the bytes.
    pub recorded: Vec<(SocketAddr, SocketAddr, Vec<u8>)>,
    pub reflectors: BTreeMap<SocketAddr, Control>,
    pub events: Vec<(SocketAddr, Event)>,
    pub players: BTreeMap<SocketAddr, Player>,
    pub store: Arc<MemoryStore>,
    starts: BTreeMap<SocketAddr, u64>,
    jobs: Vec<Job>,
    flying: BinaryHeap<Reverse<Flying>>,
    number: u64,
}

pub fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Returns the address of a player.
pub fn home(number: u32) -> SocketAddr {
    let [_, b, c, d] = number.to_be_bytes();
    SocketAddr::from(([203, b, c, d], 40_000))
}

impl World {
    pub fn new(seed: u64, weather: Weather) -> Self {
        World {
            now_us: 1_000_000,
            random: Seeded(seed),
            weather,
            between: None,
            recorded: Vec::new(),
            reflectors: BTreeMap::new(),
            events: Vec::new(),
            players: BTreeMap::new(),
            store: Arc::new(MemoryStore::new()),
            starts: BTreeMap::new(),
            jobs: Vec::new(),
            flying: BinaryHeap::new(),
            number: 0,
        }
    }

    pub fn now(&self) -> Now {
        Now {
            ms: self.now_us / 1000,
            ns: self.now_us * 1000,
            unix_s: 1_700_000_000 + self.now_us / 1_000_000,
        }
    }

    /// Starts a reflector, or restarts it with nothing in its memory.
    pub fn start(&mut self, at: SocketAddr, options: ControlOptions, setup: impl FnOnce(&mut Control, Now)) {
        let options = ControlOptions { own: vec![at], ..options };
        let mut control = Control::new(options, Secret::new(self.random.bytes()));
        setup(&mut control, self.now());
        self.reflectors.insert(at, control);
        *self.starts.entry(at).or_default() += 1;
    }

    /// Kills a reflector.
    pub fn kill(&mut self, at: SocketAddr) {
        self.reflectors.remove(&at).unwrap();
    }

    pub fn checkpoints(&self) -> Checkpoints<MemoryStore> {
        Checkpoints::new(self.store.clone(), "state/")
    }

    pub fn player(&mut self, number: u32) -> &mut Player {
        self.players.get_mut(&home(number)).unwrap()
    }

    pub fn play(&mut self, number: u32, wanted: Wanted, options: MemberOptions) {
        let member = Member::new(wanted, options, self.random.bytes());
        self.players.insert(
            home(number),
            Player { member, events: Vec::new(), state: None, gone: false, heard: Vec::new() },
        );
    }

    /// Puts a datagram on its way.
    pub fn post(&mut self, from: SocketAddr, to: SocketAddr, bytes: Vec<u8>) {
        let among = self.reflectors.contains_key(&from) && self.reflectors.contains_key(&to);
        if among {
            self.recorded.push((from, to, bytes.clone()));
        }
        let weather = match self.between {
            Some(between) if among => between,
            Some(_) => Weather { lost_percent: 0, twice_percent: 0, delay_us: 1 },
            None => self.weather,
        };
        let copies =
            match (self.random.percent(weather.lost_percent), self.random.percent(weather.twice_percent)) {
                (true, _) => 0,
                (false, true) => 2,
                (false, false) => 1,
            };
        for _ in 0..copies {
            self.number += 1;
            let at_us = self.now_us + 200 + self.random.below(weather.delay_us);
            self.flying.push(Reverse(Flying { at_us, number: self.number, from, to, bytes: bytes.clone() }));
        }
    }

    /// Advances the time.
    pub fn run(&mut self, ms: u64) {
        let end_us = self.now_us + ms * 1000;
        while self.now_us < end_us {
            self.now_us += 5_000;
            while self.flying.peek().is_some_and(|Reverse(next)| next.at_us <= self.now_us) {
                let Reverse(next) = self.flying.pop().unwrap();
                self.arrive(next);
            }
            let now = self.now();
            for at in self.reflectors.keys().copied().collect::<Vec<_>>() {
                let control = self.reflectors.get_mut(&at).unwrap();
                control.tick(now);
                while let Some(event) = control.event() {
                    if let Event::LoadState { .. } | Event::StoreState { .. } = event {
                        let at_us = self.now_us + self.random.below(50_000);
                        self.jobs.push(Job {
                            at_us,
                            reflector: at,
                            start: self.starts[&at],
                            event: event.clone(),
                        });
                    }
                    self.events.push((at, event));
                }
                self.take_out(at);
            }
            self.work();
            for at in self.players.keys().copied().collect::<Vec<_>>() {
                let player = self.players.get_mut(&at).unwrap();
                if !player.gone && player.member.timeout_us().is_some_and(|due_us| due_us <= self.now_us) {
                    player.member.tick(self.now_us);
                }
                self.play_out(at);
            }
        }
    }

    /// Advances the time until a condition holds. Returns false if it does not within that time.
    pub fn run_until(&mut self, ms_max: u64, mut holds: impl FnMut(&World) -> bool) -> bool {
        let end_us = self.now_us + ms_max * 1000;
        while !holds(self) {
            if self.now_us >= end_us {
                return false;
            }
            self.run(5);
        }
        true
    }

    /// Carries out the requests to the store that are due.
    fn work(&mut self) {
        let (due, later) =
            std::mem::take(&mut self.jobs).into_iter().partition(|job| job.at_us <= self.now_us);
        self.jobs = later;
        let (now, checkpoints) = (self.now(), self.checkpoints());
        for Job { reflector, start, event, .. } in due {
            let control = self.reflectors.get_mut(&reflector).filter(|_| self.starts[&reflector] == start);
            match event {
                Event::LoadState { group, name } => {
                    let found = block_on(checkpoints.load(&name)).unwrap();
                    if let Some(control) = control {
                        control.state_loaded(now, group, found.version, found.bytes);
                    }
                }
                Event::StoreState { group, name, base, bytes } => {
                    // Who is killed now may have got through to the store.
                    let saved = block_on(checkpoints.save(&name, base, &bytes)).unwrap();
                    match (control, saved) {
                        (Some(control), Saved::Stored(version)) => control.state_stored(now, group, version),
                        (Some(control), Saved::Newer(newer)) => control.state_conflict(now, group, newer),
                        (None, _) => {}
                    }
                }
                Event::Joined { .. } | Event::Left { .. } => unreachable!("not a job"),
            }
        }
    }

    fn arrive(&mut self, datagram: Flying) {
        let now = self.now();
        let Flying { from, to, bytes, .. } = datagram;
        if let Some(control) = self.reflectors.get_mut(&to) {
            let path = Path { device: 1, local: to };
            match wire::is_control(&bytes) {
                true => control.handle(now, Incoming { path, from, bytes: &bytes }),
                false => self.reflect(to, from, &bytes),
            }
            self.take_out(to);
        } else if let Some(player) = self.players.get_mut(&to).filter(|player| !player.gone) {
            if let Some(received) = player.member.handle(self.now_us, from, &bytes) {
                player.heard.push(received.payload.to_vec());
            }
            self.play_out(to);
        }
    }

    /// Does with a member's payload what a forwarder does.
    fn reflect(&mut self, at: SocketAddr, from: SocketAddr, payload: &[u8]) {
        let now = self.now();
        let Some(control) = self.reflectors.get_mut(&at) else { return };
        let Some(sender) = control.table().sender(at.port(), from) else { return };
        let member = control.table().member(sender);
        let (group, except) = (member.group, (!member.echo).then_some(from));
        if control.table().group(group).relayed {
            assert!(control.receivers_elsewhere(group).is_some(), "there is room for so little");
            if !control.relay(now, group, Some(sender), except, 0, payload) {
                return;
            }
        }
        self.copy(at, group, except, payload);
    }

    fn copy(&mut self, at: SocketAddr, group: GroupIndex, except: Option<SocketAddr>, payload: &[u8]) {
        let lanes = &self.reflectors[&at].table().group(group).lanes;
        let entries = lanes.iter().flat_map(|lane| &lane.entries).filter(|entry| entry.member().is_some());
        let to: Vec<SocketAddr> =
            entries.map(|entry| entry.address).filter(|to| Some(*to) != except).collect();
        for to in to {
            self.post(at, to, payload.to_vec());
        }
    }

    /// Has a player send a payload to its group. Returns false if it is in none.
    pub fn say(&mut self, number: u32, payload: &[u8]) -> bool {
        let now_us = self.now_us;
        let to = self.player(number).member.send(now_us, payload);
        to.map(|to| self.post(home(number), to, payload.to_vec())).is_ok()
    }

    fn take_out(&mut self, at: SocketAddr) {
        let now = self.now();
        while let Some(due) = self.reflectors.get_mut(&at).unwrap().relayed(now) {
            self.copy(at, due.group, due.except, &due.payload);
        }
        while let Some(out) = self.reflectors.get_mut(&at).unwrap().next_outgoing() {
            assert_eq!(out.local, at);
            self.post(at, out.to, out.bytes);
        }
    }

    fn play_out(&mut self, at: SocketAddr) {
        let player = self.players.get_mut(&at).unwrap();
        let mut out = Vec::new();
        while let Some(transmit) = player.member.poll() {
            out.push(transmit);
        }
        while let Some(event) = player.member.event() {
            if let (MemberEvent::StateAsked { ask }, Some(state)) = (&event, &player.state) {
                player.member.give_state(self.now_us, *ask, Some(state.clone()));
            }
            player.events.push(event);
        }
        while let Some(transmit) = player.member.poll() {
            out.push(transmit);
        }
        if !player.gone {
            for transmit in out {
                self.post(at, transmit.to, transmit.bytes);
            }
        }
    }
}
