//! What goes on behind the transactions: a next segment made ready, snapshots taken, segments cleaned.
//!
//! A store with threads has one for this. Transactions that find no room wait for it: so the cleaner's pace is the
//! writers' pace, and the space bound holds without a throttle of its own. It works in steps (a segment made, a segment
//! cleaned, a snapshot taken), and between any two of them serves whoever finds room by then. Others who clean, or
//! read everything, hold the lock of the work for one step at a time too.

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

/// A reader holds a segment for as long as its read takes. After so many pauses the store is full all the same.
const PAUSES_FOR_READERS_MAX: u32 = 200;
const PAUSE_FOR_READERS: Duration = Duration::from_millis(5);

/// What the maintenance of one store has to do, and what it knows.
#[derive(Default)]
pub struct Maintenance {
    threaded: AtomicBool,
    requests: Mutex<Requests>,
    wake: Condvar,
    /// Held for one step of the work: while a segment is cleaned or a snapshot is taken.
    pub(crate) work: Mutex<CleanerState>,
    /// What reports say of the work, without waiting for it.
    pub(crate) counters: MaintenanceCounters,
}

/// What maintenance has done since the store was opened.
#[derive(Default)]
pub(crate) struct MaintenanceCounters {
    /// Live bytes moved.
    pub(crate) moved_bytes: AtomicU64,
    /// Log bytes that took.
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
    /// Whether there is a thread that does the work.
    pub fn is_threaded(&self) -> bool {
        self.threaded.load(Ordering::Relaxed)
    }

    /// Says whether there is a thread.
    pub fn set_threaded(&self, threaded: bool) {
        self.threaded.store(threaded, Ordering::Relaxed);
    }

    /// Has the thread look at what there is to do.
    pub fn nudge(&self) {
        self.requests.lock().nudged = true;
        self.wake.notify_one();
    }

    /// Waits until there is room, and gives the purpose for which it may be taken.
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

    /// Answers those who wait and are meant.
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

    /// Who is worked for next: those who shrink first, else who came first.
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

fn closed() -> StoreError {
    StoreError::new(ErrorKind::Closed, "the store is closed")
}

/// Work on room for somebody: what bounds it.
struct Turn {
    /// Whether nobody waits for the room yet. Such work is left alone while somebody else does work of its kind, a compaction
    /// that waits for the disk perhaps: whoever needs a segment meanwhile must find this thread.
    is_ahead: bool,
    /// Segments from here on were made meanwhile: they are not cleaned in the same turn, so that it ends.
    newest: u32,
    /// Whether cleaning what has more than a little garbage has come to its end.
    cleaned_all: bool,
    pauses: u32,
    /// Snapshots taken because they would be shorter.
    snapshots: usize,
}

/// How a step ended that gave no error.
enum Step {
    /// There may be room now.
    Again,
    /// There is room that may be taken for this purpose.
    Room(Purpose),
    /// Work ahead of need would have had to wait for somebody else's, who nudges the thread when that is done.
    Busy,
}

impl Engine {
    /// The maintenance thread's work, until [`Maintenance::close`].
    pub(crate) fn maintain(self: &Arc<Self>) {
        let maintenance = &self.maintenance;
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

    /// Makes room until nobody waits for any.
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

    /// Makes room for somebody, and gives the purpose for which it may be taken: what the thread does, for stores that
    /// have none.
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
        Turn { is_ahead: false, newest, cleaned_all: false, pauses: 0, snapshots: 0 }
    }

    /// The lock of the work, unless that is done ahead of need and somebody else has it.
    fn lock_work(&self, turn: &Turn) -> Option<MutexGuard<'_, CleanerState>> {
        let work = &self.maintenance.work;
        if turn.is_ahead { work.try_lock() } else { Some(work.lock()) }
    }

    /// Does one step towards room for somebody: within the bound on garbage takes what space there is, beyond it cleans
    /// first, and when there is no more space cleans whatever gains anything.
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
        if self.leave_garbage(turn) {
            return Ok(Step::Again);
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

    /// If much of the segment that is written to is garbage, has the log go on to the next one, so that it can be cleaned.
    fn leave_garbage(&self, turn: &mut Turn) -> bool {
        let (position, _) = self.log.position();
        let Some(segment) = self.table.get(position.segment) else { return false };
        let written = position.offset.saturating_sub(SEGMENT_HEAD_BYTES);
        if written.saturating_sub(segment.live_bytes()) < segment.capacity / 16 {
            return false;
        }
        let mut pool = self.space.pool.lock();
        if !self.log.has_ready()
            && self.add_segment(&mut pool, u64::from(self.options.segment_bytes)).is_err()
        {
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
