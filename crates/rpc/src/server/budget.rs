//! The account of the memory that all connections of a server may hold together.
//!
//! The memory for a request's reply, at its largest, is reserved before work on the request starts. The memory that
//! connections hold already (received, waiting, unsent) is counted as it comes and goes. A request that does not fit
//! waits.
//!
//! Small requests may exceed the limit somewhat, and those of a connection that has nothing else under way a little
//! further still; so may any while nothing at all is under way. Thus work goes on however much memory the peers
//! keep occupied. What may last (sessions, subscriptions, events and parts of replies that wait for their readers) takes
//! half of the account at most, so that it cannot keep requests out. For the same reason a connection that holds nothing
//! may always be read from once, and of the connections that have received part of a request, one at a time may receive
//! the rest and have it done: otherwise they might all wait for each other. If the next one went on as soon as a request
//! is received, the requests that wait for the store would add up without bound.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;

use parking_lot::Mutex;

use crate::server::stats::{Counter, Stats};

/// The largest reservation of a small request, in bytes: that of a read of some ten kilobytes with as many extents as
/// a reply may list.
const SMALL_BYTES_MAX: usize = 192 << 10;
/// The step in which the account is drawn on, in bytes, so that most requests cost no access to it.
const STEP_BYTES: usize = 64 << 10;

/// The bytes by which one request at a time may exceed a small account: enough for the largest request with the largest
/// reply.
const BEYOND_BYTES: usize = 64 << 20;

#[derive(Debug)]
pub(crate) struct Budget {
    limit: usize,
    stats: Arc<Stats>,
    /// The bytes of what may last.
    lasting: Counter,
    /// True if `waiting` may be non-empty.
    any_waiting: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
    /// The number of the connection whose request may go beyond the account until it is done; 0 for none.
    privileged: AtomicU64,
}

impl Budget {
    pub(crate) fn new(limit: usize, stats: Arc<Stats>) -> Self {
        let (any_waiting, privileged) = (AtomicBool::new(false), AtomicU64::new(0));
        let lasting = Counter::default();
        Self { limit, stats, lasting, any_waiting, waiting: Mutex::new(Vec::new()), privileged }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Draws on the account for a connection that has drawn `held` bytes and is to hold `wanted`, `bytes` of them for the
    /// reply to a new request. `alone` is set if the connection has nothing else under way, and `privileged` if it may go
    /// beyond the account besides. Returns the new total that it has drawn, or `None` if the account does not have as much.
    pub(crate) fn draw(
        &self,
        held: usize,
        wanted: usize,
        bytes: usize,
        alone: bool,
        privileged: bool,
    ) -> Option<usize> {
        let stats = &self.stats;
        if wanted <= held {
            return Some(held);
        }
        let ceiling = match bytes {
            // Parts of requests may have taken all of the account, and wait for this one to be done.
            _ if privileged => self.limit.saturating_mul(2).max(self.limit.saturating_add(BEYOND_BYTES)),
            // Idle connections do not give back what they hold, so it must not block a request that would otherwise fit
            // forever.
            _ if alone && stats.in_flight.get() == 0 => self.limit.saturating_mul(2),
            ..=SMALL_BYTES_MAX if alone => self.limit + self.limit / 4,
            ..=SMALL_BYTES_MAX => self.limit + self.limit / 8,
            _ => self.limit,
        };
        [wanted.next_multiple_of(STEP_BYTES), wanted]
            .into_iter()
            .find(|drawn| stats.held_bytes.try_add((drawn - held) as u64, ceiling as u64))
    }

    /// Wakes `waker` when memory is given back. Memory given back before this call wakes nothing, so the caller must
    /// check again.
    pub(crate) fn wait(&self, waker: &Waker) {
        let mut waiting = self.waiting.lock();
        if !waiting.iter().any(|other| other.will_wake(waker)) {
            waiting.push(waker.clone());
        }
        self.any_waiting.store(true, Ordering::SeqCst);
    }

    /// Returns whether the account is not exhausted; if it is, `waker` is woken when memory is given back.
    pub(crate) fn has_space(&self, waker: &Waker) -> bool {
        if self.is_below() {
            return true;
        }
        self.wait(waker);
        self.is_below()
    }

    /// Returns whether the account is not exhausted.
    pub(crate) fn is_below(&self) -> bool {
        (self.stats.held_bytes.get() as usize) < self.limit
    }

    /// Takes memory for something that may last. Returns false if its share of the account is exhausted.
    pub(crate) fn keep(&self, bytes: usize) -> bool {
        if !self.lasting.try_add(bytes as u64, (self.limit / 2) as u64) {
            return false;
        }
        let kept = self.stats.held_bytes.try_add(bytes as u64, self.limit as u64);
        if !kept {
            self.lasting.change(bytes, 0);
        }
        kept
    }

    /// Takes memory for something that may last, however much there is.
    pub(crate) fn keep_anyhow(&self, bytes: usize) {
        self.lasting.change(0, bytes);
        self.stats.held_bytes.change(0, bytes);
    }

    /// Gives memory of something that might have lasted back.
    pub(crate) fn give_back(&self, bytes: usize) {
        self.lasting.change(bytes, 0);
        self.hold(bytes, 0);
    }

    /// Returns whether anybody waits for memory but the one whose waker this is.
    pub(crate) fn is_awaited(&self, own: &Waker) -> bool {
        self.any_waiting.load(Ordering::SeqCst)
            && self.waiting.lock().iter().any(|waker| !waker.will_wake(own))
    }

    /// Returns whether connection `number` may go beyond the account.
    pub(crate) fn is_privileged(&self, number: u64) -> bool {
        self.privileged.load(Ordering::SeqCst) == number
    }

    /// Lets connection `number`, which has received part of a request, receive the rest although the account is
    /// exhausted, unless another one does. Returns whether it may.
    pub(crate) fn may_grow(&self, number: u64) -> bool {
        match self.privileged.compare_exchange(0, number, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => true,
            Err(privileged) => privileged == number,
        }
    }

    /// Notes that connection `number` no longer has a large request under way, or is gone.
    pub(crate) fn step_back(&self, number: u64) {
        let is_it = self.privileged.load(Ordering::Relaxed) == number;
        if is_it && self.privileged.compare_exchange(number, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.wake();
        }
    }

    /// Notes that the memory of a connection has changed from `was` to `now` bytes.
    pub(crate) fn hold(&self, was: usize, now: usize) {
        self.stats.held_bytes.change(was, now);
        if now < was && self.any_waiting.load(Ordering::SeqCst) && self.is_below() {
            self.wake();
        }
    }

    fn wake(&self) {
        self.any_waiting.store(false, Ordering::SeqCst);
        let waiting = std::mem::take(&mut *self.waiting.lock());
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// Memory that is drawn from the server's account until this is dropped.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Reservation {
    /// Draws memory for something small that may last; `None` if the share of the account for that is exhausted. That requests
    /// have taken the rest of it is no reason to refuse, since it passes.
    pub(crate) fn draw(budget: &Arc<Budget>, bytes: usize) -> Option<Reservation> {
        let kept = budget.lasting.try_add(bytes as u64, (budget.limit / 2) as u64);
        kept.then(|| {
            budget.stats.held_bytes.change(0, bytes);
            Reservation { budget: budget.clone(), bytes }
        })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use futures::task::noop_waker;

    use super::*;

    const MIB: usize = 1 << 20;

    /// The task of another connection.
    struct Other;

    impl futures::task::ArcWake for Other {
        fn wake_by_ref(_: &Arc<Self>) {}
    }

    /// Returns an account of 16 MiB from which `drawn` bytes are drawn, with `in_flight` requests.
    fn account(drawn: usize, in_flight: usize) -> (Budget, Arc<Stats>) {
        let stats = Arc::new(Stats::default());
        stats.held_bytes.change(0, drawn);
        stats.in_flight.change(0, in_flight);
        (Budget::new(16 * MIB, stats.clone()), stats)
    }

    #[test]
    fn what_does_not_fit_waits_unless_nothing_else_would_ever_be_given_back() {
        let (budget, stats) = account(10 * MIB, 1);
        assert_eq!(budget.draw(0, 7 * MIB, 7 * MIB, true, false), None);
        assert_eq!(budget.draw(0, 6 * MIB, 6 * MIB, true, false), Some(6 * MIB));
        assert_eq!(stats.held_bytes.get() as usize, 16 * MIB);
        // Small ones go on, up to a point.
        assert!(budget.draw(0, 100_000, 100_000, false, false).is_some());
        assert!(budget.draw(0, 3 * MIB, 100_000, false, false).is_none());
        assert!(budget.draw(0, 3 * MIB, 100_000, true, false).is_some());
        assert!(budget.draw(0, 3 * MIB, 100_000, true, false).is_none());

        let (budget, _) = account(10 * MIB, 0);
        assert_eq!(budget.draw(0, 16 * MIB, 16 * MIB, false, false), None);
        assert_eq!(budget.draw(0, 16 * MIB, 16 * MIB, true, false), Some(16 * MIB));
        assert_eq!(budget.draw(0, 16 * MIB, 16 * MIB, true, false), None);
        assert_eq!(budget.draw(0, 16 * MIB, 16 * MIB, true, true), Some(16 * MIB));
        assert_eq!(budget.draw(0, 64 * MIB, 64 * MIB, true, true), None);
    }

    #[test]
    fn a_connection_draws_in_steps_and_exactly_where_there_is_no_more() {
        let (budget, _) = account(0, 1);
        assert_eq!(budget.draw(0, 1, 1, false, false), Some(STEP_BYTES));
        assert_eq!(budget.draw(STEP_BYTES, STEP_BYTES, 9, false, false), Some(STEP_BYTES));
        let (budget, _) = account(18 * MIB - 10, 1);
        assert_eq!(budget.draw(0, 10, 10, false, false), Some(10));
    }

    #[test]
    fn what_may_last_takes_half_of_the_account_at_most() {
        let (budget, stats) = account(0, 0);
        assert!(budget.keep(8 * MIB) && !budget.keep(1));
        assert!(budget.draw(0, 8 * MIB, 8 * MIB, false, false).is_some(), "the other half is for requests");
        budget.give_back(MIB);
        assert!(budget.keep(MIB));
        budget.give_back(8 * MIB);
        assert_eq!(stats.held_bytes.get() as usize, 8 * MIB);
        let budget = Arc::new(budget);
        let kept = Reservation::draw(&budget, 5 * MIB);
        assert!(kept.is_some() && Reservation::draw(&budget, 4 * MIB).is_none());
        drop(kept);
        assert_eq!(stats.held_bytes.get() as usize, 8 * MIB);
        budget.hold(0, 8 * MIB);
        assert!(Reservation::draw(&budget, 8 * MIB).is_some(), "what requests have taken passes");
        let (budget, stats) = account(16 * MIB, 0);
        assert!(!budget.keep(1), "requests have taken everything");
        budget.keep_anyhow(9);
        budget.give_back(9);
        assert_eq!(stats.held_bytes.get() as usize, 16 * MIB);
    }

    #[test]
    fn one_connection_at_a_time_may_receive_the_rest_of_its_request() {
        let (budget, _) = account(16 * MIB, 1);
        let waker = noop_waker();
        let other = futures::task::waker(Arc::new(Other));
        assert!(!budget.is_awaited(&other) && !budget.has_space(&waker));
        assert!(budget.is_awaited(&other) && !budget.is_awaited(&waker));
        assert!(budget.may_grow(1) && budget.is_privileged(1));
        assert!(!budget.may_grow(2));
        assert!(budget.may_grow(1));
        budget.step_back(2);
        assert!(!budget.may_grow(2));
        budget.step_back(1);
        assert!(budget.may_grow(2));
        budget.hold(9 * MIB, 8 * MIB);
        assert!(budget.has_space(&waker) && !budget.is_awaited(&other));
    }
}
