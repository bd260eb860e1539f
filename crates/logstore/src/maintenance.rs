//! Maintenance behind the transactions: a next segment made ready, snapshots taken, segments cleaned.
//!
//! A store with threads has one for this. Transactions that find no room wait for it: so the cleaner's pace is the
//! writers' pace, and the space bound holds without a throttle of its own. It works in steps (a segment made, a segment
//! cleaned, a snapshot taken), and between any two of them serves the waiters that find room by then. Other work that
//! cleans, or reads everything, holds the lock of the work for one step at a time too.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::channel::oneshot;
use nacre_object::{ErrorKind, StoreError};

use crate::cleaner::{CleanerState, Effort};
use crate::engine::Engine;
use crate::log::Purpose;
use crate::segment::SEGMENT_HEAD_BYTES;
use crate::snapshot::KEPT;
use crate::space::Wanted;
use crate::sync::{AtomicBool, Condvar, Mutex, MutexGuard, pause, unlock_fair};

/// The maximum number of pauses for readers, which hold a segment for as long as their reads take. After these the
/// store counts as full.
const PAUSES_FOR_READERS_MAX: u32 = 200;
const PAUSE_FOR_READERS: Duration = Duration::from_millis(5);

/// The requests and the state of one store's maintenance.
#[derive(Default)]
pub struct Maintenance {
    threaded: AtomicBool,
    requests: Mutex<Requests>,
    wake: Condvar,
    /// The state of the work. Locked for one step: while a segment is cleaned or a snapshot is taken.
    pub(crate) work: Mutex<CleanerState>,
    /// Counters of the work for reports, which read them without waiting for it.
    pub(crate) counters: MaintenanceCounters,
}

/// Counters of the work since the store was opened.
#[derive(Default)]
pub(crate) struct MaintenanceCounters {
    /// Live bytes moved.
    pub(crate) moved_bytes: AtomicU64,
    /// Log bytes that these moves took.
    pub(crate) move_record_bytes: AtomicU64,
    /// Segments cleaned.
    pub(crate) cleaned: AtomicU64,
    /// Snapshots that are kept.
    pub(crate) snapshots: AtomicU64,
}

#[derive(Default)]
struct Requests {
    waiting: Vec<Waiting>,
    ticket: u64,
    nudged: bool,
    closing: bool,
}

struct Waiting {
    ticket: u64,
    wanted: Wanted,
    sender: oneshot::Sender<Result<Purpose, StoreError>>,
}

impl Maintenance {
    /// Returns whether there is a thread that does the work.
    pub fn is_threaded(&self) -> bool {
        self.threaded.load(Ordering::Relaxed)
    }

    /// Sets whether there is a thread.
    pub fn set_threaded(&self, threaded: bool) {
        self.threaded.store(threaded, Ordering::Relaxed);
    }

    /// Makes the thread look for work.
    pub fn nudge(&self) {
        self.requests.lock().nudged = true;
        self.wake.notify_one();
    }

    /// Waits until there is room, and returns the purpose for which it may be taken. Fails if the store is closed or
    /// has no room.
    pub async fn wait_for_room(&self, wanted: Wanted) -> Result<Purpose, StoreError> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut requests = self.requests.lock();
            if requests.closing {
                return Err(closed());
            }
            requests.ticket += 1;
            let ticket = requests.ticket;
            requests.waiting.push(Waiting { ticket, wanted, sender });
        }
        self.wake.notify_one();
        receiver.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Answers the waiters that `meant` selects.
    fn answer(&self, result: &Result<Purpose, StoreError>, meant: impl Fn(&Waiting) -> bool) {
        let mut requests = self.requests.lock();
        let answered: Vec<Waiting> = requests.waiting.extract_if(.., |waiting| meant(waiting)).collect();
        drop(requests);
        for waiting in answered {
            let result = result.clone().map(|purpose| purpose.max(waiting.wanted.purpose));
            // Whoever waited may have lost interest.
            let _ = waiting.sender.send(result);
        }
    }

    /// Returns the waiter to work for next: the first that shrinks, else the first of all.
    fn next(&self) -> Option<(u64, Wanted)> {
        let requests = self.requests.lock();
        let shrinks = requests.waiting.iter().find(|waiting| waiting.wanted.purpose == Purpose::Shrink);
        shrinks.or(requests.waiting.first()).map(|waiting| (waiting.ticket, waiting.wanted))
    }

    fn is_closing(&self) -> bool {
        self.requests.lock().closing
    }

    /// Ends the thread.
    pub fn close(&self) {
        let mut requests = self.requests.lock();
        requests.closing = true;
        requests.waiting.clear();
        self.wake.notify_all();
    }
}

/// Closes the maintenance when its thread ends, also by a panic: nobody may wait for a thread that is gone.
struct Closed<'a>(&'a Maintenance);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn closed() -> StoreError {
    StoreError::new(ErrorKind::Closed, "the store is closed")
}

/// The bounds of the work on room for one waiter.
struct Turn {
    /// True if the room has no waiter yet. Such work is put off while another thread does work of its kind, such as
    /// a compaction that waits for the disk: a writer that needs a segment meanwhile must find this thread free.
    is_ahead: bool,
    /// The number from which on segments were made meanwhile: they are not cleaned in the same turn, so that it ends.
    newest: u32,
    /// True if the cleaning of segments with more than a little garbage has come to its end.
    cleaned_all: bool,
    pauses: u32,
    /// The number of snapshots taken because they would be shorter.
    snapshots: usize,
    /// True if an oversized segment was left. The log may continue in another such one, so a second time would be one
    /// too many: the turn must end.
    left_oversized: bool,
}

/// The result of a step that did not fail.
enum Step {
    /// There may be room now.
    Again,
    /// There is room that may be taken for this purpose.
    Room(Purpose),
    /// Work ahead of need would have had to wait for another thread's, which nudges this thread when it is done.
    Busy,
}

impl Engine {
    /// Does the maintenance thread's work, until [`Maintenance::close`].
    pub(crate) fn maintain(self: &Arc<Self>) {
        let maintenance = &self.maintenance;
        let _closed = Closed(maintenance);
        loop {
            let mut requests = maintenance.requests.lock();
            while !requests.nudged && requests.waiting.is_empty() && !requests.closing {
                maintenance.wake.wait_for(&mut requests, Duration::from_secs(3600));
            }
            if requests.closing {
                return;
            }
            requests.nudged = false;
            drop(requests);
            self.serve_waiting();
            // The next segment is made ready before anybody waits for it. Where that is too much there is still the one
            // that is written to, and whoever needs more is told.
            let wanted = self.next_segment();
            let mut turn = Turn { is_ahead: true, ..self.turn_begins() };
            while maintenance.next().is_none()
                && !maintenance.is_closing()
                && !self.has_room(&wanted)
                && matches!(self.step(&wanted, &mut turn), Ok(Step::Again))
            {}
            self.serve_waiting();
            if self.snapshot_is_due()
                && let Some(mut work) = maintenance.work.try_lock()
                && let Err(error) = self.snapshot(&mut work)
            {
                tracing::warn!("{error}");
            }
        }
    }

    /// Waits until the thread has nothing to do.
    #[cfg(feature = "sim")]
    pub(crate) fn wait_for_maintenance(&self) {
        let is_idle = || {
            let requests = self.maintenance.requests.lock();
            let is_asked = requests.nudged || !requests.waiting.is_empty();
            !is_asked && self.has_room(&self.next_segment()) && !self.snapshot_is_due()
        };
        while !is_idle() {
            pause(PAUSE_FOR_READERS);
        }
        // Whatever it is still doing ends with this.
        drop(self.maintenance.work.lock());
    }

    /// Makes room until there are no waiters.
    fn serve_waiting(self: &Arc<Self>) {
        let maintenance = &self.maintenance;
        let mut turn: Option<(u64, Turn)> = None;
        loop {
            maintenance.answer(&Ok(Purpose::Write), |waiting| self.has_room(&waiting.wanted));
            let Some((ticket, wanted)) = maintenance.next() else { return };
            if turn.as_ref().is_none_or(|(of, _)| *of != ticket) {
                turn = Some((ticket, self.turn_begins()));
            }
            let Some((_, turn)) = &mut turn else { return };
            let result = match self.step(&wanted, turn) {
                Ok(Step::Again | Step::Busy) => continue,
                Ok(Step::Room(purpose)) => Ok(purpose),
                Err(error) => {
                    tracing::warn!("{error}");
                    Err(error)
                }
            };
            maintenance.answer(&result, |waiting| waiting.ticket == ticket);
        }
    }

    /// Makes room as the thread does, for stores that have none, and returns the purpose for which it may be taken.
    pub(crate) fn make_room(self: &Arc<Self>, wanted: &Wanted) -> Result<Purpose, StoreError> {
        let mut turn = self.turn_begins();
        while !self.has_room(wanted) {
            if let Step::Room(purpose) = self.step(wanted, &mut turn)? {
                return Ok(purpose);
            }
        }
        Ok(wanted.purpose)
    }

    fn turn_begins(&self) -> Turn {
        let newest = self.space.pool.lock().next_segment;
        Turn { is_ahead: false, newest, cleaned_all: false, pauses: 0, snapshots: 0, left_oversized: false }
    }

    /// Locks the work; returns `None` if the turn is ahead of need and another thread has the lock.
    fn lock_work(&self, turn: &Turn) -> Option<MutexGuard<'_, CleanerState>> {
        let work = &self.maintenance.work;
        if turn.is_ahead { work.try_lock() } else { Some(work.lock()) }
    }

    /// Does one step towards the wanted room: within the bound on garbage takes what space there is, beyond it cleans
    /// first, and when there is no more space cleans any segment that gains anything.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfSpace`] if there is no room and nothing left to clean.
    fn step(self: &Arc<Self>, wanted: &Wanted, turn: &mut Turn) -> Result<Step, StoreError> {
        if let Some(failure) = self.log.failure() {
            return Err(failure.clone());
        }
        if !turn.cleaned_all && self.is_over_bound(wanted) {
            let Some(work) = self.lock_work(turn) else { return Ok(Step::Busy) };
            if self.clean_step(work, turn, Effort::Bound) {
                return Ok(Step::Again);
            }
            turn.cleaned_all = true;
        }
        let mut grown = self.grow(wanted);
        if grown.is_ok() && !self.index_has_room(wanted) {
            let Some(mut work) = self.lock_work(turn) else { return Ok(Step::Busy) };
            grown = self.raise_snapshot_room(&mut work, wanted);
        }
        match grown {
            Ok(()) => return Ok(Step::Again),
            Err(error) if error.kind != ErrorKind::OutOfSpace => return Err(error),
            Err(_) => {}
        }
        let effort = if wanted.purpose == Purpose::Write { Effort::Room } else { Effort::Utmost };
        let Some(work) = self.lock_work(turn) else { return Ok(Step::Busy) };
        if self.clean_step(work, turn, effort) {
            return Ok(Step::Again);
        }
        // Without a thread it may be the caller who holds them.
        if self.maintenance.is_threaded() && turn.pauses < PAUSES_FOR_READERS_MAX && self.has_held_segments()
        {
            turn.pauses += 1;
            pause(PAUSE_FOR_READERS);
            return Ok(Step::Again);
        }
        if turn.snapshots < KEPT + 1 && self.snapshots_can_shrink() {
            turn.snapshots += 1;
            let Some(mut work) = self.lock_work(turn) else { return Ok(Step::Busy) };
            match self.snapshot(&mut work) {
                Ok(()) => return Ok(Step::Again),
                Err(error) => tracing::warn!("{error}"),
            }
        }
        // A large record's segment, if the record was refused or never came, must not take the room of all others. Work
        // ahead of need leaves it to the writer that it was made for.
        let is_large = SEGMENT_HEAD_BYTES + wanted.record_bytes > self.segment_bytes();
        if !is_large && !turn.is_ahead && self.remove_oversized_ready() {
            return Ok(Step::Again);
        }
        if self.leave_garbage(turn) {
            return Ok(Step::Again);
        }
        if is_large {
            self.remove_oversized_ready();
        }
        // Nothing can be cleaned, so the cleaner needs no room: it is better used for less.
        if wanted.purpose == Purpose::Shrink
            && self.index_has_room(wanted)
            && self.log.has_room(wanted.record_bytes, Purpose::Clean)
        {
            return Ok(Step::Room(Purpose::Clean));
        }
        Err(self.refuse(wanted))
    }

    fn clean_step(
        self: &Arc<Self>,
        mut work: MutexGuard<'_, CleanerState>,
        turn: &Turn,
        effort: Effort,
    ) -> bool {
        let result = self.clean_once(&mut work, turn.newest, effort);
        unlock_fair(work);
        result.unwrap_or_else(|error| {
            tracing::warn!("{error}");
            false
        })
    }

    /// Makes the log continue in the next segment if much of the current one is garbage, so that it can be cleaned, or
    /// if the current one was made for a large record and holds less than others do: the reserve grows with the largest
    /// segment, and on a small volume an empty one of that size could take all the room that there is.
    fn leave_garbage(&self, turn: &mut Turn) -> bool {
        let (position, _) = self.log.position();
        let Some(segment) = self.table.get(position.segment) else { return false };
        let segment_bytes = self.segment_bytes();
        let live_bytes = segment.live_bytes();
        let garbage_bytes = position.offset.saturating_sub(SEGMENT_HEAD_BYTES + live_bytes);
        let is_oversized = segment.capacity > segment_bytes;
        let is_needless = is_oversized && live_bytes <= segment_bytes / 4 * 3 && !turn.left_oversized;
        if garbage_bytes < segment.capacity / 16 && !is_needless {
            return false;
        }
        turn.left_oversized |= is_oversized;
        let mut pool = self.space.pool.lock();
        if !self.log.has_ready() && self.add_segment(&mut pool, segment_bytes).is_err() {
            return false;
        }
        if !self.log.leave_segment() {
            return false;
        }
        self.settle_reserve(&mut pool);
        turn.newest = pool.next_segment;
        true
    }
}
