//! The calls about sequencers, their replies, and what a rank orders.

use std::time::Duration;

use nacre_object::ObjectId;

use crate::capability::{Grant, Policy, Session, Ticket};
use crate::place::{Mode, Place, RankNumber};
#[cfg(doc)]
use crate::service::ActiveRank;

/// A sequencer as it is in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The bound of the positions that may have been handed out.
    pub reserved: u64,
    /// The lease of whoever may cache it; none if nobody does.
    pub cached: Option<Duration>,
    /// Its policy.
    pub policy: Policy,
    /// The rank that has authority over it.
    pub place: Place,
}

/// A call about a sequencer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Makes it.
    Create(Policy),
    /// Removes it.
    Remove,
    /// Changes its policy.
    SetPolicy(Policy),
    /// Shows it, without asking a holder for it.
    Look,
    /// Asks for the next positions.
    Next(u64),
    /// Asks for the tail.
    Read,
    /// Asks for a grant.
    Acquire,
    /// Asks for more positions to hand out.
    Extend(Grant),
    /// Gives it back with its tail; one that makes no sense stands for all positions that were lent.
    Release(Grant, u64),
    /// Says that the session holds it, after a break of the connection or at a rank that has taken over.
    Assert(Grant),
    /// Moves it to another rank.
    Move(RankNumber, Mode),
    /// Says that it has just been moved to this rank, by the one that had it: it is loaded, and positions are reserved, before a client
    /// asks for any.
    Expect,
}

/// A sequencer as it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The next position; with a holder, the first that it was lent.
    pub tail: u64,
    /// The durable bound of what may be handed out.
    pub reserved: u64,
    /// The policy.
    pub policy: Policy,
    /// The last 24 bits of the session that holds it, at least 1; 0 if none does or it is not known yet. Whoever knows all
    /// of them can speak for the session.
    pub holder: Session,
    /// True if somebody holds it.
    pub held: bool,
    /// The number of requests that wait for it.
    pub waiting: u64,
}

/// A reply to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Success.
    Done,
    /// The sequencer as it is.
    Shown(Shown),
    /// The first of the positions, or the tail; and whether the sequencer may be cached.
    Positions {
        /// The position.
        first: u64,
        /// True if its policy lets it be cached.
        caches: bool,
    },
    /// The sequencer is the session's: positions from `first` up to `bound`. After [`Call::Assert`] the holder's own count.
    Granted {
        /// The grant.
        grant: Grant,
        /// The tail. After [`Call::Extend`] the holder's own counts.
        first: u64,
        /// The bound of the positions that it may hand out.
        bound: u64,
    },
    /// The sequencer is not cached.
    NotCached,
    /// An unknown sequencer.
    Unknown,
    /// A sequencer that exists already.
    Exists,
    /// The session does not hold it by that grant.
    NotHeld,
    /// A sequencer without so many positions left.
    Exhausted,
    /// Another rank has authority over it. On the wire, the rank of the place is the one to be asked.
    Elsewhere(Place),
}

/// An order of the rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// The reply to a call.
    Reply(Ticket, Reply),
    /// A session is asked for a sequencer.
    Revoke {
        /// The session.
        session: Session,
        /// The sequencer.
        id: ObjectId,
        /// The grant.
        grant: Grant,
        /// The positions, counted from the grant, that it may still hand out; none if it is to give it back at once.
        quota: Option<u64>,
    },
    /// The lease of a session is over.
    Lapsed(Session),
    /// Something is to be read or made durable. There is one such order at a time for a sequencer.
    Store(ObjectId, StoreOrder),
}

/// An order for the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOrder {
    /// Read the record, and if it is this rank's, fence earlier ones. Answered by [`ActiveRank::loaded`], or, if positions were reserved in
    /// the same step, by [`ActiveRank::loaded_ahead`].
    Load {
        /// True if somebody waits for positions.
        reserves: bool,
    },
    /// Make an object with a record, unless there is one: nobody caches it, and what is reserved is all that a sequencer
    /// that was removed ever was. Answered by [`ActiveRank::created`].
    Create(Policy),
    /// Replace the one record by the other. Answered by [`ActiveRank::written`].
    Write(Record, Record),
    /// Remove the object. Answered by [`ActiveRank::removed`].
    Remove(Record),
    /// Replace the record by one at another place, and fence this rank. Answered by [`ActiveRank::moved`].
    Move(Record, Record),
}
