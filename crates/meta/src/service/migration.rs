//! The migration of a sequencer to another rank, as the rank that has authority over it sees it (Sevilla et al.,
//! *Malacology*, sections 4.3 and 6.2).
//!
//! 1. The sequencer is *frozen*: what was accepted before is answered, later requests wait, and its holder is asked for it.
//! 2. When nobody holds it, one transaction writes its exact tail and its new place, and fences this rank.
//! 3. Whoever waits is told the new place, and the other rank that the sequencer is its own ([`Call::Expect`]): it loads the record and
//!    reserves positions while clients turn to it. If that does not reach it, it does so with the first request.
//!
//! The record decides at each moment who has the authority. A rank that crashes before the transaction leaves the sequencer
//! to its successor, one that crashes after it leaves it to the other rank. Nobody needs to know how a migration went.

use std::time::Duration;

use nacre_object::ObjectId;

use super::{ActiveRank, Call, Entry, Live, Output, Record, Reply, StoreOrder};
use crate::capability::Ticket;
use crate::load::{RankLoad, ResourceLoad};
use crate::place::{Mode, Place, RankNumber};

/// The time for which a rank answers by what it knows of the place of a sequencer that it has no authority over. Others may
/// have moved it on since.
const KNOWN: Duration = Duration::from_millis(100);

/// The time for which a rank that forwards requests does so without a look into the record, while they are answered: only the way to the
/// sequencer can have changed. Requests wait for a look.
const CONFIRMED_MAX: Duration = Duration::from_secs(1);

/// The rate of requests below which nobody uses a sequencer: that which is left of one request after half a minute.
const USED_PER_SECOND_MIN: f64 = 1e-3;

/// The most requests that wait for one migration. They are kept until it ends, since a migration goes on for whoever asked for
/// it and is gone.
const WAITERS_MAX: usize = 1 << 12;

/// A migration that waits for its sequencer.
#[derive(Debug)]
pub(super) struct Moving {
    to: RankNumber,
    mode: Mode,
    /// The time at which the sequencer was frozen.
    since: Duration,
    /// The requests for migrations, this one's and those that came later.
    waiters: Vec<(Ticket, RankNumber, Mode)>,
}

impl Moving {
    /// Returns the tickets of those who wait for its end.
    pub fn tickets(&self) -> impl Iterator<Item = Ticket> {
        self.waiters.iter().map(|(ticket, ..)| *ticket)
    }
}

/// Counts of migrations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Migrations {
    /// The migrations away from the rank.
    pub count: u64,
    /// The time for which requests of the sequencers waited for them, in microseconds.
    pub paused_us: u64,
    /// The longest such time.
    pub paused_us_max: u64,
}

/// The place of a sequencer that another rank has authority over.
#[derive(Debug)]
pub(super) struct Known {
    pub place: Place,
    /// The time at which the record was looked at.
    looked_at: Duration,
    /// The latest time at which that rank was sent a request that it has answered as the one with the authority.
    confirmed_at: Duration,
}

impl Known {
    pub fn new(place: Place, now: Duration) -> Known {
        Known { place, looked_at: now, confirmed_at: now }
    }

    /// Returns whether a call is answered by it.
    pub fn answers(&self, call: &Call, now: Duration) -> bool {
        // Whoever is sent to a rank that has it no more is told so there. Whoever makes it is told that it exists, which is to be
        // true: it may just have been removed there. Whoever has handed it over knows better.
        now < self.confirmed_at + KNOWN
            && now < self.looked_at + CONFIRMED_MAX
            && !matches!(call, Call::Create(_) | Call::Expect)
    }
}

/// Returns the reply to a call about a sequencer that another rank has authority over.
pub(super) fn elsewhere(call: &Call, place: Place) -> Reply {
    match call {
        Call::Create(_) => Reply::Exists,
        _ => Reply::Elsewhere(place),
    }
}

/// Orders the record of a frozen sequencer to be moved, unless another one is being written. Nothing is answered of it from
/// then on.
pub(super) fn order_move(id: &ObjectId, live: &mut Live, out: &mut Vec<Output>) {
    let Some(moving) = &live.moving else { return };
    if live.writing.is_some() || live.sequencer.is_lent() {
        return;
    }
    let after = Record {
        // Nothing at or above it was handed out or lent, so nothing is skipped.
        reserved: live.sequencer.tail(),
        cached: None,
        policy: live.policy,
        place: live.record.place.moved(moving.to, moving.mode),
    };
    (live.leaving, live.writing) = (true, Some(after));
    out.push(Output::Store(id.clone(), StoreOrder::Move(live.record, after)));
}

impl ActiveRank {
    /// Begins a migration, or notes that somebody wants one more.
    pub(super) fn begin_move(
        &mut self,
        now: Duration,
        ticket: Ticket,
        id: &ObjectId,
        (to, mode): (RankNumber, Mode),
        out: &mut Vec<Output>,
    ) {
        let Some(Entry::Live(live)) = self.sequencers.get_mut(id) else { return };
        if let Some(moving) = &mut live.moving {
            if moving.waiters.len() < WAITERS_MAX {
                return moving.waiters.push((ticket, to, mode));
            }
            // It is to be asked for again, here.
            return out.push(Output::Reply(ticket, Reply::Elsewhere(live.record.place)));
        }
        if live.leaving {
            // It is being removed, which is not waited for by a request that came later.
            return out.push(Output::Reply(ticket, Reply::Unknown));
        }
        if live.record.place.stays(to, mode) {
            return out.push(Output::Reply(ticket, Reply::Done));
        }
        live.moving = Some(Moving { to, mode, since: now, waiters: vec![(ticket, to, mode)] });
        let mut orders = Vec::new();
        self.capabilities.freeze(now, id, &mut orders);
        self.carry(now, orders, out);
        self.go_on(now, id, out);
    }

    /// Takes in that a record has moved: the sequencer is another rank's, and whoever waits is told so.
    pub fn moved(&mut self, now: Duration, id: &ObjectId, out: &mut Vec<Output>) {
        let Some(Entry::Live(live)) = self.sequencers.get_mut(id) else { return };
        let (Some(moving), Some(after)) = (live.moving.take(), live.writing.take()) else { return };
        let place = after.place;
        for (ticket, to, mode) in moving.waiters {
            let done = (to, mode) == (moving.to, moving.mode);
            out.push(Output::Reply(ticket, if done { Reply::Done } else { Reply::Elsewhere(place) }));
        }
        for (ticket, policy) in live.changes.drain(..) {
            // A change that came too late is made at the other rank.
            let done = policy == after.policy || live.policy == after.policy;
            out.push(Output::Reply(ticket, if done { Reply::Done } else { Reply::Elsewhere(place) }));
        }
        match place.rank == self.rank {
            // Only the way to it has changed: it is loaded with the next request.
            true => _ = self.sequencers.remove(id),
            false => _ = self.sequencers.insert(id.clone(), Entry::Elsewhere(Known::new(place, now))),
        }
        for ticket in self.capabilities.remove(id) {
            self.waiting.remove(&ticket);
            out.push(Output::Reply(ticket, Reply::Elsewhere(place)));
        }
        let paused_us = now.saturating_sub(moving.since).as_micros() as u64;
        self.migrations.count += 1;
        self.migrations.paused_us += paused_us;
        self.migrations.paused_us_max = self.migrations.paused_us_max.max(paused_us);
    }

    /// Takes in that a rank has answered for a sequencer what it was sent at a time.
    pub fn confirm(&mut self, id: &ObjectId, rank: RankNumber, sent_at: Duration) {
        if let Some(Entry::Elsewhere(known)) = self.sequencers.get_mut(id)
            && known.place.rank == rank
        {
            known.confirmed_at = known.confirmed_at.max(sent_at);
        }
    }

    /// Forgets where a sequencer of another rank is: that rank has not got it any more.
    pub fn forget(&mut self, id: &ObjectId) {
        if matches!(self.sequencers.get(id), Some(Entry::Elsewhere(..))) {
            self.sequencers.remove(id);
        }
    }

    /// Returns whether there were requests for a sequencer lately, or some wait.
    pub fn is_used(&self, now: Duration, id: &ObjectId) -> bool {
        let Some(Entry::Live(live)) = self.sequencers.get(id) else { return false };
        live.rate.per_second(now) >= USED_PER_SECOND_MIN || self.capabilities.waiting(id) > 0
    }

    /// Returns the counts of migrations.
    pub fn migrations(&self) -> Migrations {
        self.migrations
    }

    /// Returns up to `limit` migrations that are under way: the sequencer, the rank that it goes to, and since how long.
    pub fn migrating(&self, now: Duration, limit: usize) -> Vec<(ObjectId, RankNumber, Duration)> {
        let moving = self.sequencers.iter().filter_map(|(id, entry)| match entry {
            Entry::Live(live) => {
                let moving = live.moving.as_ref()?;
                Some((id.clone(), moving.to, now.saturating_sub(moving.since)))
            }
            _ => None,
        });
        moving.take(limit).collect()
    }

    /// Returns the number of requests that wait for a sequencer.
    fn queue_of(&self, id: &ObjectId, entry: &Entry) -> u64 {
        let count = match entry {
            Entry::Loading(calls) => calls.len(),
            Entry::Creating(_, calls) => calls.len() + 1,
            Entry::Elsewhere(..) => 0,
            Entry::Live(live) => {
                let moves = live.moving.as_ref().map_or(0, |moving| moving.waiters.len());
                self.capabilities.waiting(id) + live.operations.len() + live.changes.len() + moves
            }
        };
        count as u64
    }

    /// Returns the number of requests that wait.
    pub fn queue(&self) -> u64 {
        self.sequencers.iter().map(|(id, entry)| self.queue_of(id, entry)).sum()
    }

    /// Returns the load of the rank, with that of the `limit` busiest sequencers.
    pub fn load(&self, now: Duration, limit: usize) -> RankLoad {
        self.loads(now).busiest(limit)
    }

    /// Returns the load of the rank, with that of all sequencers in memory, in no order: that takes no longer than to look at each once.
    pub fn loads(&self, now: Duration) -> RankLoad {
        let (mut queue, mut resources) = (0, Vec::with_capacity(self.sequencers.len()));
        for (id, entry) in &self.sequencers {
            let waiting = self.queue_of(id, entry);
            queue += waiting;
            if let Entry::Live(live) = entry {
                resources.push(ResourceLoad {
                    id: id.clone(),
                    requests_per_second: live.rate.per_second(now),
                    waiting,
                    held: self.capabilities.holder(id).is_some(),
                    moving: live.moving.is_some(),
                });
            }
        }
        RankLoad {
            rank: self.rank,
            epoch: self.epoch,
            requests_per_second: self.rate.per_second(now),
            forwarded_per_second: 0.0,
            queue,
            sessions: self.sessions() as u64,
            resources,
        }
    }
}
