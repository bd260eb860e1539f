//! One lock operation: acquiring the bytes of a pattern from many servers, and releasing them.

use std::collections::BTreeSet;

use super::part::{Outstanding, Part, cut};
use super::{Method, Protocol};
use crate::message::{Call, FileName, LockSpec, Refusal, Reply, RequestNumber};
use crate::table::{Acquired, Mode};
use crate::{OFFSET_MAX, Pattern, PatternError};

/// The bytes and the mode that an operation asks for.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The file.
    pub file: FileName,
    /// The number of the operation, unique in its session.
    pub operation: u64,
    /// The number of its first request. The others follow it without a gap.
    pub first_number: RequestNumber,
    /// The mode.
    pub mode: Mode,
    /// The bytes.
    pub pattern: Pattern,
    /// The number of consecutive bytes that are one server's.
    pub stripe_bytes: u64,
    /// The number of servers.
    pub servers: u32,
    /// The description of the bytes to the servers.
    pub method: Method,
    /// The protocol.
    pub protocol: Protocol,
    /// True if it waits for bytes that others hold. An operation that does not wait makes one optimistic round.
    pub waits: bool,
}

/// A call to be sent. Its reply is given to [`Acquisition::handle`] with the same number and serial.
#[derive(Clone, Debug)]
pub struct Order {
    /// The server.
    pub server: u32,
    /// The request that it is about.
    pub number: RequestNumber,
    /// The call's number among those about this request.
    pub serial: u32,
    /// The call.
    pub call: Call,
}

/// The state of an operation, as its owner sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The operation goes on.
    Pending,
    /// All bytes are held.
    Held,
    /// Nothing is held any more, as wanted.
    Released,
    /// Nothing is held: others hold some of the bytes, and the operation does not wait.
    WouldWait,
    /// Nothing is held, because a server refused.
    Refused(Refusal),
}

/// The rounds that an operation took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rounds {
    /// Rounds to all servers at once.
    pub optimistic: u64,
    /// Rounds to the server with the next byte.
    pub two_phase: u64,
    /// Calls.
    pub calls: u64,
}

/// A lock operation, from its first round until all is released.
///
/// Two rounds make all protocols (section 5.1). The *optimistic* round asks every server for all that can be had at once,
/// and then releases what is out of order: everything behind the least offset that is missing. The *two-phase* round asks the
/// server of the least missing offset, up to the second least of all requests and nothing beyond it, and waits.
///
/// While it waits, an operation holds only bytes below the one that it waits for, so operations never deadlock
/// ([`table`](crate::table)). Every two-phase round ends with more held than before and nothing else is released, so they
/// do not starve each other either.
#[derive(Clone, Debug)]
pub struct Acquisition {
    wanted: Wanted,
    parts: Vec<Part>,
    /// The requests that miss something, by the first byte that is missing (`next_abs_offset`).
    missing: BTreeSet<(u64, usize)>,
    /// The requests that hold something, by the last byte that is held (`last_abs_offset`).
    held: BTreeSet<(u64, usize)>,
    phase: Phase,
    /// The calls of this phase that are not answered yet.
    unanswered: usize,
    rounds: Rounds,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    New,
    Optimistic,
    /// Bytes out of order are being released.
    Revoking,
    /// The next byte is waited for.
    Ordered,
    Held,
    /// All is being released, and then this is the outcome.
    Releasing(Outcome),
    Ended(Outcome),
}

impl Acquisition {
    /// Cuts an operation into requests. It begins with [`Acquisition::begin`].
    ///
    /// # Errors
    ///
    /// The stripe is impossible, the pattern cannot be restricted to it, or the protocol takes too many rounds for it.
    pub fn new(wanted: Wanted) -> Result<Self, PatternError> {
        let Wanted { pattern, method, stripe_bytes, servers, first_number, .. } = &wanted;
        if *stripe_bytes == 0 || *servers == 0 {
            return Err(PatternError::Stripe { stripe_bytes: *stripe_bytes, servers: *servers, server: 0 });
        }
        super::rounds::check(&wanted)?;
        let parts = cut(pattern, *method, *stripe_bytes, *servers, *first_number)?;
        let missing = parts.iter().enumerate().map(|(i, part)| (part.below(), i)).collect();
        let held = BTreeSet::new();
        let rounds = Rounds::default();
        Ok(Self { wanted, parts, missing, held, phase: Phase::New, unanswered: 0, rounds })
    }

    /// The requests of the operation.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The bytes and the mode that the operation asks for.
    pub fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// The rounds so far.
    pub fn rounds(&self) -> Rounds {
        self.rounds
    }

    /// The state.
    pub fn outcome(&self) -> Outcome {
        match &self.phase {
            Phase::Held => Outcome::Held,
            Phase::Ended(outcome) => outcome.clone(),
            _ => Outcome::Pending,
        }
    }

    /// Makes the first round.
    pub fn begin(&mut self, orders: &mut Vec<Order>) {
        match self.wanted.protocol {
            Protocol::TwoPhase if self.wanted.waits => self.two_phase_round(orders),
            _ => self.optimistic_round(orders),
        }
    }

    /// Takes the reply to an order. A reply to an order that a later one about the same request replaced changes nothing.
    pub fn handle(&mut self, number: RequestNumber, serial: u32, reply: Reply, orders: &mut Vec<Order>) {
        let index = number.wrapping_sub(self.wanted.first_number) as usize;
        let Some(part) = self.parts.get_mut(index).filter(|part| part.serial == serial) else { return };
        if part.outstanding.take().is_none() {
            return;
        }
        self.unanswered -= 1;
        match reply {
            Reply::Acquired { progress, token } => {
                part.token = token;
                self.set_progress(index, progress);
            }
            Reply::Refused(refusal) if !matches!(self.phase, Phase::Releasing(_)) => {
                self.release_all(Outcome::Refused(refusal), orders);
                return;
            }
            // A release is done, or there was nothing to release.
            Reply::Done | Reply::Open { .. } | Reply::Refused(_) => {
                let next = part.progress.next;
                self.set_progress(index, Acquired { last: None, next });
            }
        }
        if self.unanswered == 0 {
            self.finish_phase(orders);
        }
    }

    /// Releases everything, whether all is held or not. A wait ends.
    pub fn release(&mut self, orders: &mut Vec<Order>) {
        if !matches!(self.phase, Phase::Releasing(_) | Phase::Ended(_)) {
            self.release_all(Outcome::Released, orders);
        }
    }

    /// The calls that assert, at a server that restarted, what the operation held there. Their replies are not given to
    /// [`Acquisition::handle`]; when they have come, [`Acquisition::repeat`] repeats what was unanswered.
    pub fn assert(&self, server: u32) -> Vec<Call> {
        let held = self.parts.iter().filter(|part| part.server == server && part.progress.last.is_some());
        held.filter_map(|part| {
            let below = match part.outstanding {
                // Some of it may be another's by now.
                Some(Outstanding::ReleaseFrom { offset }) => part.below().min(offset),
                Some(Outstanding::Release) => return None,
                _ => part.below(),
            };
            Some(Call::Assert { request: part.number, spec: self.spec(part), below })
        })
        .collect()
    }

    /// Repeats the calls to a server that are unanswered, with all that a server must know which may have forgotten them.
    pub fn repeat(&mut self, server: u32, orders: &mut Vec<Order>) {
        for index in 0..self.parts.len() {
            let part = &mut self.parts[index];
            if part.server != server {
                continue;
            }
            part.sent = false;
            if let Some(outstanding) = part.outstanding {
                self.send(index, outstanding, orders);
            }
        }
    }

    /// Hashes all that decides what the operation does next, and nothing that only counts.
    #[cfg(feature = "testkit")]
    pub(crate) fn hash_state(&self, hasher: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        std::mem::discriminant(&self.phase).hash(hasher);
        std::mem::discriminant(&self.outcome()).hash(hasher);
        self.unanswered.hash(hasher);
        for part in &self.parts {
            (part.progress, part.sent, part.outstanding).hash(hasher);
        }
    }

    /// Notes that there is no session at a server, and nothing came there: what waits for this server is given up, and with
    /// it the operation, which ends like this.
    pub(super) fn give_up(&mut self, server: u32, outcome: &Outcome, orders: &mut Vec<Order>) {
        let mut given_up = 0;
        for part in self.parts.iter_mut().filter(|part| part.server == server) {
            if part.outstanding.take().is_some() {
                // It never came there, so there is nothing to release.
                part.serial = 0;
                given_up += 1;
            }
        }
        match self.phase {
            _ if given_up == 0 => {}
            Phase::Releasing(_) => {
                self.unanswered -= given_up;
                if self.unanswered == 0 {
                    self.finish_phase(orders);
                }
            }
            _ => self.release_all(outcome.clone(), orders),
        }
    }

    fn optimistic_round(&mut self, orders: &mut Vec<Order>) {
        self.phase = Phase::Optimistic;
        self.rounds.optimistic += 1;
        let missing: Vec<usize> = self.missing.iter().map(|missing| missing.1).collect();
        self.order_all(missing, Outstanding::Acquire { until: None }, orders);
    }

    fn two_phase_round(&mut self, orders: &mut Vec<Order>) {
        self.phase = Phase::Ordered;
        let mut missing = self.missing.iter();
        let first = missing.next().map(|missing| missing.1);
        let until = missing.next().map_or(OFFSET_MAX, |missing| missing.0);
        if first.is_some() {
            self.rounds.two_phase += 1;
        }
        self.order_all(first.into_iter().collect(), Outstanding::Acquire { until: Some(until) }, orders);
    }

    fn finish_phase(&mut self, orders: &mut Vec<Order>) {
        let first_missing = self.missing.first().map(|missing| missing.0);
        match (&self.phase, first_missing) {
            (Phase::Optimistic | Phase::Revoking | Phase::Ordered, None) => self.phase = Phase::Held,
            (Phase::Optimistic, Some(_)) if !self.wanted.waits => {
                self.release_all(Outcome::WouldWait, orders);
            }
            (Phase::Optimistic, Some(offset)) => {
                self.phase = Phase::Revoking;
                let out_of_order = self.held.range((offset, 0)..).map(|held| held.1).collect();
                self.order_all(out_of_order, Outstanding::ReleaseFrom { offset }, orders);
            }
            (Phase::Ordered, Some(_)) if self.wanted.protocol == Protocol::AltTry => {
                self.optimistic_round(orders);
            }
            (Phase::Revoking | Phase::Ordered, Some(_)) => self.two_phase_round(orders),
            (Phase::Releasing(outcome), _) => self.phase = Phase::Ended(outcome.clone()),
            (Phase::New | Phase::Held | Phase::Ended(_), _) => {}
        }
    }

    fn release_all(&mut self, outcome: Outcome, orders: &mut Vec<Order>) {
        self.phase = Phase::Releasing(outcome);
        self.unanswered = 0;
        let known = (0..self.parts.len()).filter(|index| self.parts[*index].serial > 0).collect();
        self.order_all(known, Outstanding::Release, orders);
    }

    /// Sends a call about each of some requests; without any, the phase is over.
    fn order_all(&mut self, indexes: Vec<usize>, call: Outstanding, orders: &mut Vec<Order>) {
        self.unanswered = indexes.len();
        self.rounds.calls += indexes.len() as u64;
        for index in indexes {
            self.send(index, call, orders);
        }
        if self.unanswered == 0 {
            self.finish_phase(orders);
        }
    }

    fn send(&mut self, index: usize, outstanding: Outstanding, orders: &mut Vec<Order>) {
        let spec = (!self.parts[index].sent).then(|| self.spec(&self.parts[index]));
        let part = &mut self.parts[index];
        let request = part.number;
        let call = match outstanding {
            Outstanding::Acquire { until } => {
                part.sent = true;
                Call::Acquire { request, spec, until }
            }
            Outstanding::ReleaseFrom { offset } => Call::ReleaseFrom { request, offset },
            Outstanding::Release => Call::Release { request },
        };
        part.outstanding = Some(outstanding);
        part.serial += 1;
        orders.push(Order { server: part.server, number: request, serial: part.serial, call });
    }

    fn spec(&self, part: &Part) -> LockSpec {
        LockSpec {
            file: self.wanted.file.clone(),
            operation: self.wanted.operation,
            mode: self.wanted.mode,
            pattern: part.announced.clone(),
        }
    }

    fn set_progress(&mut self, index: usize, progress: Acquired) {
        let part = &mut self.parts[index];
        let before = std::mem::replace(&mut part.progress, progress);
        if let Some(next) = before.next {
            self.missing.remove(&(next, index));
        }
        if let Some(last) = before.last {
            self.held.remove(&(last, index));
        }
        if let Some(next) = progress.next {
            self.missing.insert((next, index));
        }
        if let Some(last) = progress.last {
            self.held.insert((last, index));
        }
    }
}
