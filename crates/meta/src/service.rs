//! A metadata rank's sequencers and the capabilities on them: a state machine without clock or I/O.
//!
//! Calls, the store's answers and time go in; replies, requests to holders and orders for the store come out. A rank acts at
//! an *epoch*, which is its fence at the store: what it orders has no effect once a later rank has touched the object.
//!
//! Invariants:
//! - A sequencer's record in the store bounds what may have been handed out, and says whether somebody may cache it. Both are
//!   durable before the first position, or the grant, goes out.
//! - What was accepted in an order is answered in that order, also when it waits for the store.
//! - A rank answers for a sequencer only if the record says that it has authority over it, and nothing any more once it has
//!   ordered that to change.

mod message;
mod migration;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

pub use message::{Call, Output, Record, Reply, Shown, StoreOrder};
pub use migration::Migrations;
use nacre_object::ObjectId;

use self::migration::{Known, Moving, order_move};
use crate::capability::{
    self, Capabilities, Counts, Grant, NotHeld, Order, Policy, Programs, Session, Ticket,
};
use crate::load::Rate;
use crate::place::RankNumber;
use crate::sequencer::{POSITIONS, Sequencer};

/// The most positions in one request.
pub const COUNT_MAX: u64 = 1 << 40;
/// The time without a holder after which a sequencer is on record as one that nobody caches.
const IDLE: Duration = Duration::from_secs(1);

/// An operation that was accepted, and may wait for the store.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Next(Ticket, u64),
    Read(Ticket),
    Lend(Ticket, Grant),
    More(Ticket, Grant),
    Remove(Ticket),
}

#[derive(Debug)]
struct Live {
    sequencer: Sequencer,
    record: Record,
    writing: Option<Record>,
    operations: VecDeque<Operation>,
    policy: Policy,
    /// The waiters for the policy to be durable.
    changes: Vec<(Ticket, Policy)>,
    /// The migration that it waits for.
    moving: Option<Moving>,
    /// True once its removal or its migration is ordered: nothing of it is answered any more.
    leaving: bool,
    /// The requests for it.
    rate: Rate,
    /// The time since which nobody holds it.
    idle_since: Duration,
    /// True if it is among those that are looked at when they are idle.
    idle_noted: bool,
}

#[derive(Debug)]
enum Entry {
    Loading(Vec<(Ticket, Option<Session>, Call)>),
    Creating(Ticket, Vec<(Ticket, Option<Session>, Call)>),
    Live(Box<Live>),
    /// Another rank has authority over it.
    Elsewhere(Known),
}

/// A rank that has authority, with the sequencers that it keeps. (The namespace is changed by [`crate::Rank`], which needs none.)
#[derive(Debug)]
pub struct ActiveRank {
    rank: RankNumber,
    epoch: u64,
    lease: Duration,
    capabilities: Capabilities<ObjectId>,
    sequencers: HashMap<ObjectId, Entry, foldhash::fast::RandomState>,
    /// The calls that wait in a line.
    waiting: HashMap<Ticket, (ObjectId, Call)>,
    /// The sequencers that nobody holds and that are on record as cached, with the times at which they are looked at.
    idle: BTreeSet<(Duration, ObjectId)>,
    positions: u64,
    rate: Rate,
    migrations: Migrations,
}

impl ActiveRank {
    /// Creates rank 0, which knows nothing yet.
    pub fn new(epoch: u64, lease: Duration) -> ActiveRank {
        ActiveRank::numbered(0, epoch, lease)
    }

    /// Creates the rank of a number, which knows nothing yet.
    pub fn numbered(rank: RankNumber, epoch: u64, lease: Duration) -> ActiveRank {
        ActiveRank {
            rank,
            epoch,
            lease,
            // Grants are numbered across ranks, so that none is taken for one of an earlier rank.
            capabilities: Capabilities::new(lease, epoch << 32),
            sequencers: HashMap::default(),
            waiting: HashMap::new(),
            idle: BTreeSet::new(),
            positions: 0,
            rate: Rate::default(),
            migrations: Migrations::default(),
        }
    }

    /// Sets the programs that decide about sequencers whose policy is one.
    pub fn set_programs(&mut self, programs: Option<Arc<dyn Programs>>) {
        self.capabilities.set_programs(programs);
    }

    /// Returns the number.
    pub fn number(&self) -> RankNumber {
        self.rank
    }

    /// Returns the epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the lease of sessions.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Returns the counts of capabilities.
    pub fn counts(&self) -> Counts {
        self.capabilities.counts()
    }

    /// Returns the number of positions that the rank itself has handed out.
    pub fn positions(&self) -> u64 {
        self.positions
    }

    /// Returns the number of sequencers in memory that the rank has authority over.
    pub fn sequencers(&self) -> usize {
        self.sequencers.values().filter(|entry| matches!(entry, Entry::Live(_))).count()
    }

    /// Returns the number of sessions.
    pub fn sessions(&self) -> usize {
        self.capabilities.sessions()
    }

    /// Returns the sequencers that are in memory, as they are shown.
    pub fn list(&self, limit: usize) -> Vec<(ObjectId, Shown)> {
        let live = self.sequencers.iter().filter_map(|(id, entry)| match entry {
            Entry::Live(live) => Some((id.clone(), self.shown(id, live))),
            _ => None,
        });
        let mut live: Vec<_> = live.collect();
        live.sort_by(|(one, _), (other, _)| one.cmp(other));
        live.truncate(limit);
        live
    }

    /// Returns where sequencers end if the rank hands out nothing any more: their records, and those with which a successor goes
    /// on at the tail, and not behind all that was reserved. Left out are those of which anything is lent or under way.
    pub fn settled(&self) -> Vec<(ObjectId, Record, Record)> {
        let settled = self.sequencers.iter().filter_map(|(id, entry)| {
            let Entry::Live(live) = entry else { return None };
            let is_still = live.writing.is_none()
                && live.operations.is_empty()
                && !live.leaving
                && live.moving.is_none()
                // Whoever has it on record as cached may have been lent positions by an earlier rank.
                && live.record.cached.is_none()
                && !live.sequencer.is_lent()
                && self.capabilities.is_free(id);
            let after = Record { reserved: live.sequencer.tail(), ..live.record };
            (is_still && after.reserved < live.record.reserved).then(|| (id.clone(), live.record, after))
        });
        settled.collect()
    }

    fn shown(&self, id: &ObjectId, live: &Live) -> Shown {
        let holder = self.capabilities.holder(id);
        Shown {
            tail: live.sequencer.tail(),
            reserved: live.sequencer.reserved(),
            policy: live.policy,
            holder: match holder {
                Some((session, _)) if session > 0 => capability::shown(session),
                _ => 0,
            },
            held: holder.is_some(),
            waiting: self.capabilities.waiting(id) as u64,
        }
    }

    /// Begins a session or renews its lease; false if that is not renewed any more.
    pub fn renew(&mut self, now: Duration, session: Session) -> bool {
        self.capabilities.renew(now, session)
    }

    /// Returns whether a session has a lease.
    pub fn has_session(&self, session: Session) -> bool {
        self.capabilities.has_session(session)
    }

    /// Ends a session.
    pub fn end(&mut self, now: Duration, session: Session, out: &mut Vec<Output>) {
        let mut orders = Vec::new();
        self.capabilities.end(now, session, &mut orders);
        self.carry(now, orders, out);
    }

    /// Hands out positions if that can be done at once: the common case of a round trip.
    #[inline]
    pub fn next_at_once(
        &mut self,
        now: Duration,
        id: &ObjectId,
        count: u64,
        out: &mut Vec<Output>,
    ) -> Option<Reply> {
        let Some(Entry::Live(live)) = self.sequencers.get_mut(id) else { return None };
        if count == 0
            || !live.operations.is_empty()
            || live.sequencer.is_lent()
            || !self.capabilities.is_free(id)
        {
            return None;
        }
        let first = live.sequencer.next(count)?;
        live.rate.count(now);
        self.rate.count(now);
        self.capabilities.count_served();
        self.positions += count;
        let caches = live.policy.caches();
        // It was used, so that more is reserved ahead.
        live.sequencer.want(0);
        if live.sequencer.is_short() {
            write_if_needed(now, self.lease, id, live, out);
        }
        Some(Reply::Positions { first, caches })
    }

    /// Handles a call, which is answered by an output with this ticket: by [`Reply::Elsewhere`] if another rank has authority
    /// over the sequencer, or gets it while the call waits.
    pub fn call(
        &mut self,
        now: Duration,
        ticket: Ticket,
        session: Option<Session>,
        id: &ObjectId,
        call: Call,
        out: &mut Vec<Output>,
    ) {
        if let Call::Next(count) = call
            && (count == 0 || count > COUNT_MAX)
        {
            return out.push(Output::Reply(ticket, Reply::Exhausted));
        }
        // What another rank says is no load.
        if call != Call::Expect {
            self.rate.count(now);
        }
        self.admit(now, ticket, session, id, call, out);
    }

    fn admit(
        &mut self,
        now: Duration,
        ticket: Ticket,
        session: Option<Session>,
        id: &ObjectId,
        call: Call,
        out: &mut Vec<Output>,
    ) {
        match self.sequencers.get_mut(id) {
            Some(Entry::Elsewhere(known)) if known.answers(&call, now) => {
                out.push(Output::Reply(ticket, migration::elsewhere(&call, known.place)));
            }
            None | Some(Entry::Elsewhere(..)) => {
                let reserves = matches!(call, Call::Next(_) | Call::Expect);
                self.sequencers.insert(id.clone(), Entry::Loading(vec![(ticket, session, call)]));
                out.push(Output::Store(id.clone(), StoreOrder::Load { reserves }));
            }
            Some(Entry::Loading(calls) | Entry::Creating(_, calls)) => calls.push((ticket, session, call)),
            Some(Entry::Live(live)) => {
                if call != Call::Expect {
                    live.rate.count(now);
                }
                self.call_live(now, ticket, session, id, call, out);
            }
        }
    }

    fn call_live(
        &mut self,
        now: Duration,
        ticket: Ticket,
        session: Option<Session>,
        id: &ObjectId,
        call: Call,
        out: &mut Vec<Output>,
    ) {
        let mut orders = Vec::new();
        let Some(Entry::Live(live)) = self.sequencers.get_mut(id) else { return };
        let reply = |out: &mut Vec<Output>, reply| out.push(Output::Reply(ticket, reply));
        match call {
            Call::Create(_) => reply(out, Reply::Exists),
            Call::Move(to, mode) => return self.begin_move(now, ticket, id, (to, mode), out),
            Call::Expect => {
                live.sequencer.want(0);
                reply(out, Reply::Done);
            }
            Call::Look if !live.leaving => {
                let shown = match self.sequencers.get(id) {
                    Some(Entry::Live(live)) => self.shown(id, live),
                    _ => return,
                };
                reply(out, Reply::Shown(shown));
            }
            Call::SetPolicy(policy) => {
                live.policy = policy;
                live.changes.push((ticket, policy));
                self.capabilities.set_policy(now, id, policy, &mut orders);
            }
            // What is looked at while it leaves waits for that, as the others do: its tail may be another rank's by now.
            Call::Next(_) | Call::Read | Call::Remove | Call::Look => {
                self.waiting.insert(ticket, (id.clone(), call));
                self.capabilities.serve(now, id, session, ticket, &mut orders);
            }
            Call::Acquire => {
                let Some(session) = session else { return reply(out, Reply::NotHeld) };
                // Whoever asks for it does not have it: an earlier grant of this session has not reached it.
                if self.capabilities.disown(id, session) {
                    lose(live, out);
                }
                self.waiting.insert(ticket, (id.clone(), call));
                self.capabilities.acquire(now, id, session, ticket, &mut orders);
            }
            Call::Extend(grant) => match self.capabilities.check(id, session.unwrap_or(0), grant) {
                Ok(()) if live.sequencer.is_lent_before() => {
                    // It is to ask anew: which positions an earlier rank lent it is not known here.
                    reply(out, Reply::NotHeld);
                    self.capabilities.disown(id, session.unwrap_or(0));
                    lose(live, out);
                    live.idle_since = now;
                    self.capabilities.go_on(now, id, &mut orders);
                }
                Ok(()) => {
                    live.operations.push_back(Operation::More(ticket, grant));
                }
                Err(NotHeld) => return reply(out, Reply::NotHeld),
            },
            Call::Release(grant, tail) => {
                let Some(by) = session else { return reply(out, Reply::NotHeld) };
                if self.capabilities.check(id, by, grant).is_err() {
                    return reply(out, Reply::NotHeld);
                }
                lose_operations(live, out);
                let used = live.sequencer.give_back(tail).unwrap_or(0);
                live.idle_since = now;
                // Checked above.
                let _ = self.capabilities.release(now, id, by, grant, used);
                self.capabilities.go_on(now, id, &mut orders);
                reply(out, Reply::Done);
            }
            Call::Assert(grant) => {
                let Some(by) = session else { return reply(out, Reply::NotHeld) };
                let held = match self.capabilities.check(id, by, grant) {
                    Ok(()) => {
                        self.capabilities.remind(id, &mut orders);
                        Ok(grant)
                    }
                    Err(NotHeld) if grant >> 32 < self.epoch => {
                        self.capabilities.assert(now, id, by, &mut orders)
                    }
                    Err(NotHeld) => Err(NotHeld),
                };
                match (held, live.sequencer.bound()) {
                    (Ok(grant), Some(bound)) => {
                        reply(out, Reply::Granted { grant, first: live.sequencer.tail(), bound });
                    }
                    _ => reply(out, Reply::NotHeld),
                }
            }
        }
        self.carry(now, orders, out);
        self.go_on(now, id, out);
    }

    /// Gives up a call that was not answered, or of which nobody has taken the reply.
    pub fn cancel(&mut self, now: Duration, ticket: Ticket, out: &mut Vec<Output>) {
        let Some((id, _)) = self.waiting.remove(&ticket) else { return };
        let mut orders = Vec::new();
        self.capabilities.give_up(now, &id, ticket, &mut orders);
        self.carry(now, orders, out);
        self.go_on(now, &id, out);
    }

    /// Takes in what was loaded: a record, or that there is no such sequencer.
    pub fn loaded(&mut self, now: Duration, id: &ObjectId, found: Option<Record>, out: &mut Vec<Output>) {
        self.take_loaded(now, id, found.map(|record| (record, record.reserved)), out);
    }

    /// Takes in that a record of this rank was loaded, which nobody caches, and that positions from the tail on were reserved with that.
    pub fn loaded_ahead(
        &mut self,
        now: Duration,
        id: &ObjectId,
        record: Record,
        tail: u64,
        out: &mut Vec<Output>,
    ) {
        self.take_loaded(now, id, Some((record, tail)), out);
    }

    fn take_loaded(
        &mut self,
        now: Duration,
        id: &ObjectId,
        found: Option<(Record, u64)>,
        out: &mut Vec<Output>,
    ) {
        let Some(Entry::Loading(calls)) = self.sequencers.get_mut(id) else { return };
        let mut calls = std::mem::take(calls);
        match found {
            Some((record, _)) if record.place.rank != self.rank => {
                self.sequencers.insert(id.clone(), Entry::Elsewhere(Known::new(record.place, now)));
                for (ticket, _, call) in calls {
                    out.push(Output::Reply(ticket, migration::elsewhere(&call, record.place)));
                }
            }
            Some(found) => self.begin(now, id, found, true, calls, out),
            None => {
                let create = calls.iter().position(|(_, _, call)| matches!(call, Call::Create(_)));
                let later = calls.split_off(create.unwrap_or(calls.len()));
                for (ticket, _, _) in calls {
                    out.push(Output::Reply(ticket, Reply::Unknown));
                }
                let mut later = later.into_iter();
                match later.next() {
                    Some((ticket, _, Call::Create(policy))) => {
                        let entry = Entry::Creating(ticket, later.collect());
                        self.sequencers.insert(id.clone(), entry);
                        out.push(Output::Store(id.clone(), StoreOrder::Create(policy)));
                    }
                    _ => _ = self.sequencers.remove(id),
                }
            }
        }
    }

    fn begin(
        &mut self,
        now: Duration,
        id: &ObjectId,
        (record, tail): (Record, u64),
        held: bool,
        calls: Vec<(Ticket, Option<Session>, Call)>,
        out: &mut Vec<Output>,
    ) {
        let mut sequencer = Sequencer::new(tail);
        if tail < record.reserved {
            sequencer.reserved_ahead(now, record.reserved);
        }
        // Its lease may have been asked for just before the earlier rank ended.
        let held_for = record.cached.filter(|_| held);
        if held_for.is_some() {
            sequencer.lent_before();
        }
        let live = Live {
            sequencer,
            record,
            writing: None,
            operations: VecDeque::new(),
            policy: record.policy,
            changes: Vec::new(),
            moving: None,
            leaving: false,
            rate: Rate::default(),
            idle_since: now,
            idle_noted: false,
        };
        self.sequencers.insert(id.clone(), Entry::Live(Box::new(live)));
        self.capabilities.add(now, id.clone(), record.policy, held_for);
        for (ticket, session, call) in calls {
            self.admit(now, ticket, session, id, call, out);
        }
    }

    /// Takes in that an object was made, with its record, or that there was one.
    pub fn created(&mut self, now: Duration, id: &ObjectId, stored: Option<Record>, out: &mut Vec<Output>) {
        let Some(Entry::Creating(ticket, calls)) = self.sequencers.get_mut(id) else { return };
        let (ticket, calls) = (*ticket, std::mem::take(calls));
        if let Some(record) = stored {
            out.push(Output::Reply(ticket, Reply::Done));
            return self.begin(now, id, (record, record.reserved), false, calls, out);
        }
        out.push(Output::Reply(ticket, Reply::Exists));
        self.sequencers.insert(id.clone(), Entry::Loading(calls));
        out.push(Output::Store(id.clone(), StoreOrder::Load { reserves: false }));
    }

    /// Takes in that the record that was to be written is durable.
    pub fn written(&mut self, now: Duration, id: &ObjectId, out: &mut Vec<Output>) {
        let Some(Entry::Live(live)) = self.sequencers.get_mut(id) else { return };
        let Some(record) = live.writing.take() else { return };
        if record.reserved > live.record.reserved {
            live.sequencer.reserved_durably();
        }
        live.record = record;
        live.changes.retain(|(ticket, policy)| {
            // A later change stands for this one.
            let done = *policy == record.policy || live.policy == record.policy;
            if done {
                out.push(Output::Reply(*ticket, Reply::Done));
            }
            !done
        });
        self.go_on(now, id, out);
    }

    /// Takes in that an object is removed.
    pub fn removed(&mut self, id: &ObjectId, out: &mut Vec<Output>) {
        let Some(Entry::Live(live)) = self.sequencers.remove(id) else { return };
        for operation in &live.operations {
            let (ticket, reply) = match operation {
                Operation::Remove(ticket) => (ticket, Reply::Done),
                Operation::Next(ticket, _) | Operation::Read(ticket) => (ticket, Reply::Unknown),
                Operation::Lend(ticket, _) | Operation::More(ticket, _) => (ticket, Reply::Unknown),
            };
            out.push(Output::Reply(*ticket, reply));
        }
        let moves = live.moving.iter().flat_map(|moving| moving.tickets());
        for ticket in live.changes.iter().map(|(ticket, _)| *ticket).chain(moves) {
            out.push(Output::Reply(ticket, Reply::Unknown));
        }
        for ticket in self.capabilities.remove(id) {
            self.waiting.remove(&ticket);
            out.push(Output::Reply(ticket, Reply::Unknown));
        }
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Duration, out: &mut Vec<Output>) {
        let mut orders = Vec::new();
        self.capabilities.tick(now, &mut orders);
        self.carry(now, orders, out);
        while self.idle.first().is_some_and(|(due, _)| *due <= now)
            && let Some((_, id)) = self.idle.pop_first()
        {
            if let Some(Entry::Live(live)) = self.sequencers.get_mut(&id) {
                live.idle_noted = false;
                self.go_on(now, &id, out);
            }
        }
    }

    /// Returns the time at which [`ActiveRank::tick`] is to be called; none if nothing is due.
    pub fn next_deadline(&self) -> Option<Duration> {
        let idle = self.idle.first().map(|(due, _)| *due);
        idle.into_iter().chain(self.capabilities.next_deadline()).min()
    }

    /// Carries out the orders of the capabilities.
    fn carry(&mut self, now: Duration, orders: Vec<Order<ObjectId>>, out: &mut Vec<Output>) {
        for id in self.take_in(now, orders, out) {
            self.go_on(now, &id, out);
        }
    }

    /// Notes what the orders of the capabilities ask for. Returns the sequencers that go on.
    fn take_in(
        &mut self,
        now: Duration,
        orders: Vec<Order<ObjectId>>,
        out: &mut Vec<Output>,
    ) -> Vec<ObjectId> {
        let mut touched: Vec<ObjectId> = Vec::new();
        for order in orders {
            match order {
                Order::Grant { resource, ticket, grant, .. } => {
                    self.waiting.remove(&ticket);
                    if let Some(Entry::Live(live)) = self.sequencers.get_mut(&resource) {
                        live.operations.push_back(Operation::Lend(ticket, grant));
                    }
                    touched.push(resource);
                }
                Order::Serve { resource, ticket } => {
                    let call = self.waiting.remove(&ticket);
                    if let (Some(Entry::Live(live)), Some((_, call))) =
                        (self.sequencers.get_mut(&resource), call)
                    {
                        live.operations.push_back(match call {
                            Call::Next(count) => Operation::Next(ticket, count),
                            Call::Remove => Operation::Remove(ticket),
                            _ => Operation::Read(ticket),
                        });
                    }
                    touched.push(resource);
                }
                Order::NotCached { ticket } => {
                    self.waiting.remove(&ticket);
                    out.push(Output::Reply(ticket, Reply::NotCached));
                }
                Order::Revoke { resource, session, grant, quota } => {
                    out.push(Output::Revoke { session, id: resource, grant, quota });
                }
                Order::Lost { resource } => {
                    if let Some(Entry::Live(live)) = self.sequencers.get_mut(&resource) {
                        lose(live, out);
                        live.idle_since = now;
                    }
                    touched.push(resource);
                }
                Order::Lapsed { session } => out.push(Output::Lapsed(session)),
            }
        }
        touched
    }

    /// Answers what can be answered of a sequencer's operations, and orders what the store has to do for the next.
    fn go_on(&mut self, now: Duration, id: &ObjectId, out: &mut Vec<Output>) {
        while self.advance(now, id, out) {
            // Whoever was to get the sequencer got nothing, as all who wait will.
            let mut orders = Vec::new();
            self.capabilities.vacate(now, id, &mut orders);
            self.take_in(now, orders, out);
        }
    }

    /// Answers operations in order. Returns true if one was to be lent positions and there will never be any.
    fn advance(&mut self, now: Duration, id: &ObjectId, out: &mut Vec<Output>) -> bool {
        let Some(Entry::Live(live)) = self.sequencers.get_mut(id) else { return false };
        if live.leaving {
            return false;
        }
        let caches = live.policy.caches();
        // A record under way that says that nobody caches may be durable already.
        let on_record =
            live.record.cached.is_some() && live.writing.is_none_or(|record| record.cached.is_some());
        let mut empty = false;
        while let Some(operation) = live.operations.front() {
            let reply = match *operation {
                Operation::Next(ticket, count) => match live.sequencer.next(count) {
                    Some(first) => {
                        self.positions += count;
                        live.sequencer.want(0);
                        Output::Reply(ticket, Reply::Positions { first, caches })
                    }
                    None if !live.sequencer.has(count) => Output::Reply(ticket, Reply::Exhausted),
                    None => {
                        live.sequencer.want(count);
                        break;
                    }
                },
                Operation::Read(ticket) => {
                    Output::Reply(ticket, Reply::Positions { first: live.sequencer.tail(), caches })
                }
                Operation::Lend(ticket, grant) => {
                    let lent = if on_record { live.sequencer.lend() } else { None };
                    match lent {
                        Some((first, bound)) => Output::Reply(ticket, Reply::Granted { grant, first, bound }),
                        None if !live.sequencer.has(1) => {
                            // There will never be anything to lend.
                            empty = true;
                            Output::Reply(ticket, Reply::Exhausted)
                        }
                        None => {
                            live.sequencer.want(1);
                            break;
                        }
                    }
                }
                Operation::More(ticket, grant) => match live.sequencer.lend_more() {
                    Some(bound) => {
                        Output::Reply(ticket, Reply::Granted { grant, first: live.sequencer.tail(), bound })
                    }
                    None if live.sequencer.reserved() == POSITIONS => Output::Reply(ticket, Reply::Exhausted),
                    None => {
                        live.sequencer.want(1);
                        break;
                    }
                },
                Operation::Remove(_) => {
                    if live.writing.is_none() {
                        live.leaving = true;
                        out.push(Output::Store(id.clone(), StoreOrder::Remove(live.record)));
                        return false;
                    }
                    break;
                }
            };
            out.push(reply);
            live.operations.pop_front();
            if empty {
                return true;
            }
        }
        if live.moving.is_some() && live.operations.is_empty() && self.capabilities.holder(id).is_none() {
            order_move(id, live, out);
            return false;
        }
        write_if_needed(now, self.lease, id, live, out);
        // While a record is being written, it is looked at when that is durable.
        let cached = live.record.cached.is_some() && live.writing.is_none();
        if cached && !live.sequencer.is_lent() && !live.idle_noted {
            live.idle_noted = true;
            // One that waits for the store is not idle, and is looked at again.
            self.idle.insert((live.idle_since.max(now) + IDLE, id.clone()));
        }
        false
    }
}

/// Orders a record to be written if it is to be another one than the store has.
fn write_if_needed(now: Duration, lease: Duration, id: &ObjectId, live: &mut Live, out: &mut Vec<Output>) {
    if live.writing.is_some() || live.leaving {
        return;
    }
    let lends = live.operations.iter().any(|operation| matches!(operation, Operation::Lend(..)));
    let held = live.sequencer.is_lent();
    let cached = match live.record.cached {
        // The holder may rely on the longest lease since it was granted.
        Some(before) if held => Some(before.max(lease)),
        before if lends => Some(before.map_or(lease, |before| before.max(lease))),
        Some(before) if live.policy.caches() && now < live.idle_since + IDLE => Some(before),
        _ => None,
    };
    let reserved = live.sequencer.reserve(now).unwrap_or(live.record.reserved);
    let record = Record { reserved, cached, policy: live.policy, place: live.record.place };
    if record != live.record {
        live.writing = Some(record);
        out.push(Output::Store(id.clone(), StoreOrder::Write(live.record, record)));
    }
}

/// Takes in that the holder is gone: what it was lent counts as handed out, and what it asked for is refused.
fn lose(live: &mut Live, out: &mut Vec<Output>) {
    lose_operations(live, out);
    live.sequencer.lose();
}

fn lose_operations(live: &mut Live, out: &mut Vec<Output>) {
    live.operations.retain(|operation| match operation {
        Operation::Lend(ticket, _) | Operation::More(ticket, _) => {
            out.push(Output::Reply(*ticket, Reply::NotHeld));
            false
        }
        _ => true,
    });
}
