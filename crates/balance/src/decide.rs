//! The decision of a rank at a tick: no clock, no I/O.
//!
//! The policy says how much load goes to which rank, a selector which resources that are. Pins go first, masks limit where
//! resources may go, the ledger holds back those whose moves gained nothing, and no tick makes more moves than allowed.
//!
//! A policy that fails before it has ever succeeded here gives its place back to the one before it. One that fails later
//! stays in force, and the tick makes no moves of it. Either way there is one line about it.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nacre_quantity::Escaped;
use serde::{Deserialize, Serialize};

use crate::ledger::Ledger;
use crate::limit::{OFFERED_MAX, OFFERS_MAX, RANKS_MAX};
use crate::metric::Metrics;
use crate::policy::{Choice, Evaluated, Policy, PolicyError, View};
use crate::resource::{Kind, Resource, ResourceId};
use crate::select::Selection;
use crate::setting::{Mode, Settings};

/// A move of a resource from one rank to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Move {
    /// The resource.
    pub id: ResourceId,
    /// Its load when that was decided.
    pub load: f64,
    /// The rank that it leaves.
    pub from: usize,
    /// The rank that gets it.
    pub to: usize,
    /// The way in which clients reach it there, if it is a sequencer or a subtree.
    pub mode: Mode,
    /// True if it is pinned there: then it is not judged by what it gains.
    pub is_pin: bool,
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Move { id, load, from, to, .. } = self;
        let holder = id.kind.holder();
        write!(f, "{} (load {load:.1}) from {holder} {from} to {holder} {to}", Escaped::of(&id.to_string()))?;
        if id.kind != Kind::Group && self.mode != Mode::Client {
            write!(f, ", mode {}", self.mode.name())?;
        }
        if self.is_pin { f.write_str(", pinned there") } else { Ok(()) }
    }
}

/// Something that is worth a line.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// The policy failed. Which one is in force since; `None`: none is.
    Failed {
        /// The failure.
        error: PolicyError,
        /// The name and the version of the policy in force.
        in_force: Option<(String, u64)>,
    },
    /// There are more ranks than a balancer takes.
    TooManyRanks(usize),
    /// Load that the policy wants to send to a rank, and no resource that may go there fits.
    NothingFits {
        /// The rank.
        to: usize,
        /// The load.
        amount: f64,
    },
    /// The limit of moves at a tick was reached.
    Limit(u32),
    /// A resource that the policy might move rests.
    Rests {
        /// The resource.
        id: ResourceId,
        /// The time for which it still does.
        left: Duration,
    },
    /// A move gained nothing.
    NoGain {
        /// The resource.
        id: ResourceId,
        /// The rank that it left.
        from: usize,
        /// The rank that got it.
        to: usize,
        /// The time until which it rests.
        until: Duration,
    },
    /// A resource went back to where it was shortly before.
    BackAndForth {
        /// The resource.
        id: ResourceId,
        /// The rank that it leaves, and the one that it goes back to.
        between: (usize, usize),
        /// The time until which it rests.
        until: Duration,
    },
}

impl Note {
    /// Returns whether it is worth a line of the cluster log.
    pub fn is_warning(&self) -> bool {
        matches!(self, Note::Failed { .. } | Note::TooManyRanks(_) | Note::BackAndForth { .. })
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::Failed { error, in_force: Some((name, version)) } => {
                write!(f, "{error}; \"{name}\" of version {version} stays in force")
            }
            Note::Failed { error, in_force: None } => write!(f, "{error}; nothing is balanced"),
            Note::TooManyRanks(count) => {
                write!(
                    f,
                    "{count} ranks are more than the {RANKS_MAX} that can be balanced; nothing is moved"
                )
            }
            Note::NothingFits { to, amount } => {
                write!(f, "no resource that may go to rank {to} fits into the load of {amount:.1} for it")
            }
            Note::Limit(moves) => write!(f, "the limit of {moves} moves at a tick was reached"),
            Note::Rests { id, left } => {
                let id = id.to_string();
                write!(f, "{} rests for another {} s", Escaped::of(&id), left.as_secs())
            }
            Note::NoGain { id, from, to, .. } => {
                let (holder, id) = (id.kind.holder(), id.to_string());
                let id = Escaped::of(&id);
                write!(f, "moving {id} from {holder} {from} to {holder} {to} gained nothing; it rests")
            }
            Note::BackAndForth { id, between: (from, to), .. } => {
                let (holder, id) = (id.kind.holder(), id.to_string());
                let id = Escaped::of(&id);
                write!(
                    f,
                    "{id} goes back and forth between {holder}s {from} and {to}; it rests after this move"
                )
            }
        }
    }
}

/// A rank's knowledge at a tick.
#[derive(Clone, Copy, Debug)]
pub struct Tick<'a> {
    /// The time since any fixed moment.
    pub now: Duration,
    /// The metrics of all ranks.
    pub ranks: &'a [Metrics],
    /// The numbers of those ranks, in ascending order; empty if they are 0, 1, 2 and so on. Reflectors that are gone leave
    /// gaps. Policies count those that are there from 0 on; pins, masks and moves have the numbers.
    pub numbers: &'a [usize],
    /// The resources that the rank has.
    pub resources: &'a [Resource],
}

impl Tick<'_> {
    /// Returns the number of the rank at a position.
    fn number(&self, position: usize) -> usize {
        self.numbers.get(position).copied().unwrap_or(position)
    }

    /// Returns the position of the rank of a number; `None` if there is no such rank.
    fn position(&self, number: usize) -> Option<usize> {
        match self.numbers {
            [] => Some(number).filter(|number| *number < self.ranks.len()),
            numbers => numbers.binary_search(&number).ok(),
        }
    }

    /// Returns values by the numbers of ranks, from values by their positions.
    fn by_number(&self, values: impl Iterator<Item = f64>) -> Vec<f64> {
        let mut by_number = Vec::with_capacity(self.ranks.len());
        for (position, value) in values.enumerate() {
            by_number.resize(self.number(position), 0.0);
            by_number.push(value);
        }
        by_number
    }
}

/// A rank's moves at a tick, with the reasons.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// The moves, in the order in which they are to be made.
    pub moves: Vec<Move>,
    /// The load that the policy sends to each rank, by the ranks' numbers; empty if it was not run.
    pub targets: Vec<f64>,
    /// The remarks.
    pub notes: Vec<Note>,
    /// The lines that the policy logged.
    pub log: Vec<String>,
}

/// The number of notes about resting resources at a tick.
const RESTS_NOTED_MAX: usize = 8;

/// The resources that a policy's own function may choose from, with remarks about those that it may not.
#[derive(Debug)]
pub(crate) struct Offered<'a> {
    pub resources: Candidates<'a>,
    notes: Vec<Note>,
}

/// Resources that a rank may move.
type Candidates<'a> = Vec<&'a Resource>;

/// A run of the policy in force that was made before the decision, together with those for other ranks.
pub(crate) struct Run<'a> {
    /// The resources that were offered to it, if its policy is offered any in the first run.
    pub offered: Option<Offered<'a>>,
    /// The result.
    pub evaluated: Result<Evaluated, PolicyError>,
}

/// The balancer of one rank.
#[derive(Clone, Debug)]
pub struct Balancer {
    rank: usize,
    current: Option<Arc<Policy>>,
    /// The policy to go back to, until the current one has succeeded.
    before: Option<(Arc<Policy>, Option<Bytes>)>,
    has_succeeded: bool,
    state: Option<Bytes>,
    ticks: usize,
}

impl Balancer {
    /// Creates the balancer of a rank, without a policy.
    pub fn new(rank: usize) -> Self {
        Self { rank, current: None, before: None, has_succeeded: false, state: None, ticks: 0 }
    }

    /// Returns the policy in force.
    pub fn policy(&self) -> Option<&Arc<Policy>> {
        self.current.as_ref()
    }

    /// Puts a policy into force. It begins without any state.
    pub fn install(&mut self, policy: Arc<Policy>) {
        let state = self.state.take();
        let before = self.current.replace(policy);
        // One that never succeeded is nothing to go back to.
        if self.has_succeeded {
            self.before = before.map(|before| (before, state));
        }
        self.has_succeeded = false;
    }

    /// Takes the policy out of force, and forgets what it kept.
    pub fn remove(&mut self) {
        *self = Self { ticks: self.ticks, ..Self::new(self.rank) };
    }

    /// Returns the name and the version of the policy in force.
    pub fn in_force(&self) -> Option<(String, u64)> {
        self.current.as_ref().map(|policy| (policy.name().to_owned(), policy.version()))
    }

    /// Returns what the policy in force kept at the tick before.
    pub(crate) fn state(&self) -> Option<&Bytes> {
        self.state.as_ref()
    }

    /// Decides. Moves are noted in the ledger as made.
    pub fn tick(&mut self, tick: &Tick<'_>, settings: &Settings, ledger: &mut Ledger) -> Decision {
        self.decide(tick, settings, ledger, None)
    }

    /// Decides as [`Balancer::tick`], with the first run of the policy in force if that has been made.
    pub(crate) fn decide<'a>(
        &mut self,
        tick: &Tick<'a>,
        settings: &Settings,
        ledger: &mut Ledger,
        run: Option<Run<'a>>,
    ) -> Decision {
        let mut decision = Decision::default();
        self.ticks = self.ticks.wrapping_add(1);
        if tick.ranks.len() > RANKS_MAX {
            decision.notes.push(Note::TooManyRanks(tick.ranks.len()));
            return decision;
        }
        let loads = tick.by_number(tick.ranks.iter().map(|metrics| metrics.all_load));
        decision.notes = ledger.judge(&loads, tick.now, settings.tick());
        let most = settings.moves_per_tick as usize;
        self.move_pinned(tick, settings, most, ledger, &mut decision);
        if let Some((policy, evaluated, offered)) = self.evaluate(tick, settings, ledger, run, &mut decision)
        {
            self.move_load(&policy, tick, settings, (evaluated, offered), ledger, &mut decision);
        }
        for made in &decision.moves {
            if !made.is_pin {
                decision.notes.extend(ledger.moved(made, &loads, tick.now, settings.tick()));
            }
        }
        decision
    }

    fn move_pinned(
        &self,
        tick: &Tick<'_>,
        settings: &Settings,
        most: usize,
        ledger: &Ledger,
        decision: &mut Decision,
    ) {
        if settings.pins.is_empty() {
            return;
        }
        for Resource { id, load } in tick.resources {
            let Some(to) = settings.pin(id).filter(|to| *to != self.rank) else { continue };
            let may_go = tick.position(to).is_some() && ledger.failed_until(id, tick.now).is_none();
            if may_go && decision.moves.len() < most {
                let (from, mode) = (self.rank, settings.mode);
                decision.moves.push(Move { id: id.clone(), load: *load, from, to, mode, is_pin: true });
            }
        }
    }

    fn view<'a>(&'a self, tick: &Tick<'a>, settings: &Settings) -> View<'a> {
        let state = self.state.as_ref();
        let whoami = tick.position(self.rank).unwrap_or(self.rank);
        View { whoami, ranks: tick.ranks, now: tick.now, tick: settings.tick(), state }
    }

    /// Runs the policy in force, or the one before it if that fails and has never succeeded.
    fn evaluate<'a>(
        &mut self,
        tick: &Tick<'a>,
        settings: &Settings,
        ledger: &Ledger,
        mut run: Option<Run<'a>>,
        decision: &mut Decision,
    ) -> Option<(Arc<Policy>, Evaluated, Option<Candidates<'a>>)> {
        loop {
            let policy = self.current.clone()?;
            let Run { offered, evaluated } = run.take().unwrap_or_else(|| {
                let offered = policy.has_home().then(|| self.offered(tick, settings, ledger));
                let resources = offered.as_ref().map(|offered| &offered.resources[..]);
                let evaluated = policy.run(&self.view(tick, settings), resources);
                Run { offered, evaluated }
            });
            match evaluated {
                Ok(evaluated) => {
                    (self.has_succeeded, self.before) = (true, None);
                    let offered = offered.map(|offered| {
                        decision.notes.extend(offered.notes);
                        offered.resources
                    });
                    return Some((policy, evaluated, offered));
                }
                Err(error) if self.has_succeeded => {
                    decision.notes.push(Note::Failed { error, in_force: self.in_force() });
                    return None;
                }
                Err(error) => {
                    (self.current, self.state) = match self.before.take() {
                        Some((before, state)) => (Some(before), state),
                        None => (None, None),
                    };
                    // It had succeeded, or would not be here.
                    self.has_succeeded = self.current.is_some();
                    decision.notes.push(Note::Failed { error, in_force: self.in_force() });
                }
            }
        }
    }

    /// Returns the resources that the policy may move, and adds remarks about those that rest.
    fn candidates<'a>(
        &self,
        tick: &Tick<'a>,
        settings: &Settings,
        ledger: &Ledger,
        notes: &mut Vec<Note>,
    ) -> Candidates<'a> {
        let (has_rests, mut rests) = (ledger.has_rests(tick.now), 0);
        let mut candidates = Candidates::new();
        for resource in tick.resources.iter().filter(|resource| resource.load > 0.0) {
            let id = &resource.id;
            if settings.pin(id).is_some() {
                continue;
            }
            let rest = if has_rests { ledger.rests_until(id, tick.now) } else { None };
            match rest {
                None => candidates.push(resource),
                Some(until) => {
                    rests += 1;
                    if rests <= RESTS_NOTED_MAX {
                        notes.push(Note::Rests { id: id.clone(), left: until.saturating_sub(tick.now) });
                    }
                }
            }
        }
        candidates
    }

    /// Returns what is offered to a policy that says of each resource where it belongs.
    pub(crate) fn offered<'a>(&self, tick: &Tick<'a>, settings: &Settings, ledger: &Ledger) -> Offered<'a> {
        let mut notes = Vec::new();
        let mut resources = self.candidates(tick, settings, ledger, &mut notes);
        self.offer(&mut resources, 1);
        Offered { resources, notes }
    }

    fn move_load<'a>(
        &mut self,
        policy: &Policy,
        tick: &Tick<'a>,
        settings: &Settings,
        (mut evaluated, offered): (Evaluated, Option<Candidates<'a>>),
        ledger: &Ledger,
        decision: &mut Decision,
    ) {
        let most = settings.moves_per_tick as usize;
        let targets = evaluated.targets.iter().enumerate();
        let count = targets.filter(|(at, amount)| tick.number(*at) != self.rank && **amount > 0.0).count();
        let candidates: Candidates<'a> = match offered {
            Some(offered) => offered,
            None if count == 0 && evaluated.choice != Choice::Home => Vec::new(),
            None => {
                let mut candidates = self.candidates(tick, settings, ledger, &mut decision.notes);
                if matches!(evaluated.choice, Choice::Own | Choice::Home) {
                    self.offer(&mut candidates, count);
                    match policy.run(&self.view(tick, settings), Some(&candidates[..])) {
                        Ok(again) => evaluated = again,
                        Err(error) => {
                            decision.notes.push(Note::Failed { error, in_force: self.in_force() });
                            return;
                        }
                    }
                }
                candidates
            }
        };
        let selector = match evaluated.choice {
            Choice::Named(selector) => selector,
            Choice::Default | Choice::Own | Choice::Home => settings.selector,
        };
        let is_own = matches!(evaluated.choice, Choice::Own | Choice::Home);
        let own: HashMap<usize, &Vec<usize>> =
            evaluated.chosen.iter().map(|(position, chosen)| (*position, chosen)).collect();
        let mut selection = (!is_own && count > 0).then(|| Selection::new(&candidates));
        for (position, amount) in evaluated.targets.iter().copied().enumerate() {
            let to = tick.number(position);
            if to == self.rank || amount <= 0.0 {
                continue;
            }
            let room = most.saturating_sub(decision.moves.len());
            if room == 0 {
                decision.notes.push(Note::Limit(settings.moves_per_tick));
                break;
            }
            let chosen: Vec<usize> = match &mut selection {
                Some(selection) => {
                    selection.take(selector, amount, room, |resource| settings.permits(&resource.id, to))
                }
                // Each resource is chosen at most once.
                None => {
                    let chosen = own.get(&position).into_iter().flat_map(|chosen| chosen.iter().copied());
                    chosen.filter(|at| settings.permits(&candidates[*at].id, to)).take(room).collect()
                }
            };
            if chosen.is_empty() && !is_own {
                decision.notes.push(Note::NothingFits { to, amount });
            }
            for at in chosen {
                let Resource { id, load } = candidates[at];
                let (from, mode) = (self.rank, settings.mode);
                decision.moves.push(Move { id: id.clone(), load: *load, from, to, mode, is_pin: false });
            }
        }
        if evaluated.state.is_some() {
            self.state = evaluated.state;
        }
        decision.targets = tick.by_number(evaluated.targets.into_iter());
        decision.log = evaluated.log;
    }

    /// Bounds what a policy's own function is offered: the greater half are the biggest resources, and the rest takes turns.
    fn offer(&self, candidates: &mut Vec<&Resource>, targets: usize) {
        let most = OFFERED_MAX.min((OFFERS_MAX / targets.max(1)).max(2));
        if candidates.len() <= most {
            return;
        }
        candidates.sort_unstable_by(|a, b| b.load.total_cmp(&a.load).then_with(|| a.id.cmp(&b.id)));
        let (big, turn) = (most / 2, most - most / 2);
        let others = candidates.split_off(big);
        let start = self.ticks.wrapping_mul(turn) % others.len();
        candidates.extend(others.iter().cycle().skip(start).take(turn.min(others.len())));
    }
}

#[cfg(test)]
mod tests;
