//! Background maintenance: preparing the next segment, cleaning segments, taking snapshots.
//!
//! A store with threads has one for each of the three, so that nobody waits for a segment because of a snapshot. The first
//! serves the transactions that find no room. Within the bound on garbage it makes segments; beyond it, it waits until
//! the second has cleaned. While the second cleans it sets the pace: transactions that keep more data may append as much
//! as it regains, slice by slice, longest waiter first. So the space bound holds, and nobody waits for a whole
//! segment. When there is no more space, the first thread cleans whatever gains anything itself, and takes the snapshots
//! that this needs.
//!
//! Other work that cleans, or takes snapshots, takes the same locks: `cleaning` for one slice, `work` for one snapshot.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use futures::channel::oneshot;
use nacre_object::{ErrorKind, StoreError};

use crate::cleaner::{Cleaned, Cleaning, Effort};
use crate::engine::Engine;
use crate::log::{Log, Purpose};
use crate::segment::SEGMENT_HEAD_BYTES;
use crate::snapshot::{KEPT, SnapshotState};
use crate::space::SpaceRequest;
use crate::sync::{AtomicBool, Condvar, Mutex, MutexGuard, pause, unlock_fair};

/// The maximum number of pauses for readers, which hold a segment for as long as their reads take. After these the
/// store counts as full.
const PAUSES_FOR_READERS_MAX: u32 = 200;
const PAUSE_FOR_READERS: Duration = Duration::from_millis(5);

/// The maximum number of pauses of the cleaner for another thread's snapshot. After these garbage may exceed its bound by a
/// segment at a time.
const PAUSES_FOR_SNAPSHOTS_MAX: u32 = 50;
const PAUSE_FOR_SNAPSHOTS: Duration = Duration::from_millis(2);

/// The length in bytes up to which a snapshot is taken by the cleaning thread itself: it takes no longer than a slice.
const SMALL_SNAPSHOT_BYTES: u64 = 4 << 20;

/// The requests and the state of one store's maintenance.
#[derive(Default)]
pub struct Maintenance {
    threaded: AtomicBool,
    requests: Mutex<Requests>,
    /// Notified when there is something to do for the thread that makes room.
    wake: Condvar,
    /// Notified when there is something to do for the others.
    wake_others: Condvar,
    /// The snapshots. Locked while one is taken.
    pub(crate) work: Mutex<SnapshotState>,
    /// The cleaner. Locked after the snapshots, for one slice of its work.
    pub(crate) cleaning: Mutex<Cleaning>,
    /// The segment from which on snapshots that are kept need the log; 0 if they need all of it.
    pinned_from: AtomicU32,
    /// The number of the next segment when the cleaner last found nothing more to clean; 0 if that may have changed.
    cleaned_at: AtomicU32,
    asked_for_index_space: AtomicBool,
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
    /// True if the cleaner has to look for work.
    clean: bool,
    /// True if it has to be looked whether a snapshot is due, or worth it.
    snapshot: bool,
    /// True if the cleaner has got on, or somebody came to wait, since the thread that makes room last looked.
    changed: bool,
    closing: bool,
}

struct Waiting {
    ticket: u64,
    wanted: SpaceRequest,
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

    /// Makes the threads look for work.
    pub fn nudge(&self) {
        let mut requests = self.requests.lock();
        (requests.nudged, requests.clean, requests.snapshot) = (true, true, true);
        requests.changed = true;
        drop(requests);
        self.asked_for_index_space.store(false, Ordering::Relaxed);
        self.wake.notify_one();
        self.wake_others.notify_all();
    }

    /// Has the thread that takes snapshots look whether they have room for the index to grow. Asks once until it has looked
    /// and found or made some, or the log has gone on in another segment.
    pub(crate) fn ask_for_index_space(&self) {
        if self.is_threaded()
            && !self.asked_for_index_space.load(Ordering::Relaxed)
            && !self.asked_for_index_space.swap(true, Ordering::Relaxed)
        {
            self.ask(|requests| requests.snapshot = true);
        }
    }

    /// Makes one of the other threads look for work: that whose flag `request` sets.
    fn ask(&self, request: impl FnOnce(&mut Requests)) {
        request(&mut self.requests.lock());
        self.wake_others.notify_all();
    }

    /// Waits until a flag is set, and clears it; returns false if the maintenance is closed.
    fn wait_until_asked(&self, flag: impl Fn(&mut Requests) -> &mut bool) -> bool {
        let mut requests = self.requests.lock();
        while !requests.closing && !*flag(&mut requests) {
            self.wake_others.wait_for(&mut requests, Duration::from_secs(3600));
        }
        *flag(&mut requests) = false;
        !requests.closing
    }

    /// Tells the thread that makes room that it may find some.
    fn notify_change(&self, nudge: bool) {
        let mut requests = self.requests.lock();
        requests.changed = true;
        requests.nudged |= nudge;
        drop(requests);
        self.wake.notify_one();
    }

    /// Waits until the cleaner has got on, or somebody comes to wait.
    fn wait_for_change(&self) {
        let mut requests = self.requests.lock();
        while !requests.closing && !requests.changed {
            self.wake.wait_for(&mut requests, Duration::from_secs(3600));
        }
        requests.changed = false;
    }

    /// Returns whether a snapshot that is kept needs a segment's records. See [`SnapshotState::pins`].
    pub(crate) fn pins(&self, segment: u32) -> bool {
        segment >= self.pinned_from.load(Ordering::Acquire)
    }

    /// Notes the needs of the kept snapshots. Called with these locked, or before anybody looks.
    pub(crate) fn set_pinned(&self, state: &SnapshotState) {
        let first = state.snapshots.first().filter(|_| state.snapshots.len() >= state.snapshots_needed);
        self.pinned_from.store(first.map_or(0, |(_, position)| position.segment), Ordering::Release);
        self.cleaned_at.store(0, Ordering::Release);
    }

    /// Waits until there is room, and returns the purpose for which it may be taken. Fails if the store is closed or
    /// has no room.
    pub async fn wait_for_space(&self, wanted: SpaceRequest) -> Result<Purpose, StoreError> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut requests = self.requests.lock();
            if requests.closing {
                return Err(closed());
            }
            requests.ticket += 1;
            let ticket = requests.ticket;
            requests.waiting.push(Waiting { ticket, wanted, sender });
            requests.changed = true;
        }
        self.wake.notify_one();
        receiver.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Answers the waiters that `meant` selects.
    fn answer(&self, result: &Result<Purpose, StoreError>, meant: impl Fn(&Waiting) -> bool) {
        let mut requests = self.requests.lock();
        let done: Vec<Waiting> = requests.waiting.extract_if(.., |waiting| meant(waiting)).collect();
        drop(requests);
        for waiting in done {
            let result = result.clone().map(|purpose| purpose.max(waiting.wanted.purpose));
            // The waiter may have lost interest.
            let _ = waiting.sender.send(result);
        }
    }

    /// Gives regained bytes to the waiters, longest first; anybody may take the rest.
    fn give(&self, log: &Log, bytes: u64) {
        let mut requests = self.requests.lock();
        let Some(mut credit_bytes) = log.take_credit().map(|left| left + bytes) else { return };
        let mut served = Vec::new();
        while let Some(first) =
            requests.waiting.iter().position(|waiting| waiting.wanted.purpose == Purpose::Write)
        {
            let wanted = requests.waiting[first].wanted;
            let has_space = log.has_space(wanted.record_bytes, Purpose::Paced);
            let Some(left) = credit_bytes.checked_sub(wanted.record_bytes).filter(|_| has_space) else {
                break;
            };
            credit_bytes = left;
            served.push(requests.waiting.remove(first));
        }
        // Who comes now finds those who waited before.
        log.add_credit(credit_bytes);
        drop(requests);
        for waiting in served {
            // The waiter may have lost interest.
            let _ = waiting.sender.send(Ok(Purpose::Paced));
        }
    }

    /// Returns the waiter to work for next: the first that shrinks, else the first of all.
    fn next(&self) -> Option<(u64, SpaceRequest)> {
        self.next_but(&[])
    }

    /// Returns the waiter to work for next, leaving out those with some tickets.
    fn next_but(&self, put_off: &[u64]) -> Option<(u64, SpaceRequest)> {
        let requests = self.requests.lock();
        let mut waiting = requests.waiting.iter().filter(|waiting| !put_off.contains(&waiting.ticket));
        let first = waiting.clone().next();
        let shrinks = waiting.find(|waiting| waiting.wanted.purpose == Purpose::Shrink);
        shrinks.or(first).map(|waiting| (waiting.ticket, waiting.wanted))
    }

    /// Returns the maximum number of bytes by which a waiter wants snapshots to become longer.
    fn growth_wanted(&self) -> u64 {
        let requests = self.requests.lock();
        requests.waiting.iter().map(|waiting| waiting.wanted.growth_bytes).max().unwrap_or(0)
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
        self.wake_others.notify_all();
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
    /// True if there was no room for a snapshot: what needs one to be freed is left alone.
    leaves_pinned: bool,
    /// True if the thread that takes snapshots was asked to make room for the index to grow.
    asked_for_index_space: bool,
    pauses: u32,
    /// The number of snapshots taken because they would be shorter.
    snapshots: usize,
    /// True if an oversized segment was left. The log may continue in another such one, so a second time would be one
    /// too many: the turn must end.
    left_oversized: bool,
}

/// The result of a step that did not fail.
enum Step {
    /// A chance of space: the waiter has to look again.
    Again,
    /// Space that may be taken for this purpose.
    FreeSpace(Purpose),
    /// Another thread is at work on it, and tells when it has got on; or work ahead of need would have had to wait for
    /// one that nudges this thread when it is done.
    Busy,
    /// Another thread has the snapshots, and tells when it gives them back. That may take long: other waiters' turn comes
    /// first.
    SnapshotsBusy,
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
                && !self.has_space(&wanted)
                && matches!(self.step(&wanted, &mut turn), Ok(Step::Again))
            {}
            self.serve_waiting();
        }
    }

    /// Does the cleaning thread's work, until [`Maintenance::close`].
    pub(crate) fn keep_clean(self: &Arc<Self>) {
        let maintenance = &self.maintenance;
        let _closed = Closed(maintenance);
        while maintenance.wait_until_asked(|requests| &mut requests.clean) {
            let newest = self.space.pool.lock().next_segment;
            let is_behind_on = |wanted: &SpaceRequest| !self.has_space(wanted) && self.is_over_bound(wanted);
            let is_behind = || {
                let next = maintenance.next();
                is_behind_on(&self.next_segment()) || next.is_some_and(|(_, wanted)| is_behind_on(&wanted))
            };
            if is_behind() && !self.has_cleaned_all() {
                // A part of the room that there is may be taken at once: who comes seldom does not notice anything.
                self.log.set_credit(Some(self.log.free_space().tail_bytes / 8));
            }
            maintenance.cleaned_at.store(0, Ordering::Release);
            let mut found_all = false;
            while !maintenance.is_closing() && self.log.failure().is_none() && !found_all && is_behind() {
                match self.clean_in_pace(newest) {
                    Ok(Some(bytes)) => {
                        maintenance.give(&self.log, bytes);
                        maintenance.notify_change(false);
                    }
                    Ok(None) => found_all = true,
                    Err(error) => {
                        tracing::warn!("{error}");
                        found_all = true;
                    }
                }
            }
            if found_all {
                let next_segment = self.space.pool.lock().next_segment;
                maintenance.cleaned_at.store(next_segment, Ordering::Release);
            }
            self.log.set_credit(None);
            maintenance.notify_change(true);
        }
    }

    /// Cleans a slice; returns the bytes that it gained, or `None` if there is nothing to clean for now.
    fn clean_in_pace(self: &Arc<Self>, newest: u32) -> Result<Option<u64>, StoreError> {
        let mut cleaning = self.maintenance.cleaning.lock();
        let cleaned = self.clean_once(&mut cleaning, newest, Effort::Bound, true);
        unlock_fair(cleaning);
        match cleaned? {
            Cleaned::Gained(bytes) => Ok(Some(bytes)),
            Cleaned::Nothing => Ok(None),
            Cleaned::NeedsSnapshot => {
                let is_small = self.snapshot_bytes_likely() <= SMALL_SNAPSHOT_BYTES;
                if let Some(mut work) = is_small.then(|| self.lock_work_soon()).flatten() {
                    return self.snapshot(&mut work).map(|()| Some(0));
                }
                // That takes a while, and the thread whose work it is tells when it is done.
                self.maintenance.ask(|requests| requests.snapshot = true);
                Ok(None)
            }
        }
    }

    /// Locks the snapshots; returns `None` if another thread has them for long. A waiter for a segment must not wait for
    /// a snapshot that the disk delays.
    fn lock_work_soon(&self) -> Option<MutexGuard<'_, SnapshotState>> {
        for _ in 0..PAUSES_FOR_SNAPSHOTS_MAX {
            if let Some(work) = self.maintenance.work.try_lock() {
                return Some(work);
            }
            pause(PAUSE_FOR_SNAPSHOTS);
        }
        None
    }

    /// Returns whether the cleaner found nothing more to clean, and no segment was made since.
    fn has_cleaned_all(&self) -> bool {
        let cleaned_at = self.maintenance.cleaned_at.load(Ordering::Acquire);
        cleaned_at > 0 && cleaned_at == self.space.pool.lock().next_segment
    }

    /// Does the work of the thread that takes snapshots, until [`Maintenance::close`].
    pub(crate) fn keep_written_down(self: &Arc<Self>) {
        let maintenance = &self.maintenance;
        let _closed = Closed(maintenance);
        while maintenance.wait_until_asked(|requests| &mut requests.snapshot) {
            let mut work = maintenance.work.lock();
            // Snapshots have room before anybody waits for it: nobody does while this thread makes it.
            let mut ahead = self.index_growth_ahead();
            ahead.growth_bytes = ahead.growth_bytes.max(maintenance.growth_wanted());
            if !self.index_has_space(&ahead)
                && !self.is_tight()
                && let Err(error) = self.raise_snapshot_space(&mut work, &ahead)
            {
                tracing::debug!("{error}");
            }
            if self.index_has_space(&ahead) {
                maintenance.asked_for_index_space.store(false, Ordering::Relaxed);
            }
            let wanted = self.next_segment();
            // One that takes long is not taken by the cleaner, which waits for it.
            let is_large = self.snapshot_bytes_likely() > SMALL_SNAPSHOT_BYTES;
            let is_worth_it = self.log.since_snapshot_bytes() >= self.snapshot_spacing_bytes();
            let frees = is_large && is_worth_it && !self.has_space(&wanted) && self.is_over_bound(&wanted);
            if !self.snapshot_is_due() && !frees {
                drop(work);
                // Who found the snapshots busy may be waiting for them.
                maintenance.notify_change(false);
                continue;
            }
            if let Err(error) = self.snapshot(&mut work) {
                tracing::warn!("{error}");
            }
            drop(work);
            // What it pinned may be cleaned now.
            maintenance.ask(|requests| requests.clean = true);
            maintenance.notify_change(true);
        }
    }

    /// Takes a snapshot for a caller that is none of the threads.
    pub(crate) fn take_snapshot(self: &Arc<Self>) -> Result<(), StoreError> {
        let taken = self.snapshot(&mut self.maintenance.work.lock());
        self.maintenance.notify_change(true);
        taken
    }

    /// Sets the number of items of a step.
    #[cfg(feature = "sim")]
    pub(crate) fn set_step_items(&self, items: u64) {
        self.maintenance.work.lock().step_items = items;
        self.maintenance.notify_change(false);
    }

    /// Waits until the thread has nothing to do.
    #[cfg(feature = "sim")]
    pub(crate) fn wait_for_maintenance(&self) {
        if self.memory.is_some() {
            return;
        }
        let is_idle = || {
            let requests = self.maintenance.requests.lock();
            let is_asked =
                requests.nudged || requests.clean || requests.snapshot || !requests.waiting.is_empty();
            !is_asked && self.has_space(&self.next_segment()) && !self.snapshot_is_due()
        };
        while !is_idle() {
            pause(PAUSE_FOR_READERS);
        }
        // Whatever it is still doing ends with this.
        drop(self.maintenance.work.lock());
        self.maintenance.notify_change(false);
        drop(self.maintenance.cleaning.lock());
    }

    /// Makes room until there are no waiters.
    fn serve_waiting(self: &Arc<Self>) {
        let maintenance = &self.maintenance;
        let mut turns: Vec<(u64, Turn)> = Vec::new();
        // Those who need the snapshots while another thread has them.
        let mut put_off: Vec<u64> = Vec::new();
        loop {
            maintenance.answer(&Ok(Purpose::Write), |waiting| self.has_space(&waiting.wanted));
            let Some((ticket, wanted)) = maintenance.next_but(&put_off) else {
                if put_off.is_empty() || maintenance.is_closing() {
                    return;
                }
                maintenance.wait_for_change();
                put_off.clear();
                continue;
            };
            let index = turns.iter().position(|(of, _)| *of == ticket).unwrap_or_else(|| {
                // Turns of those who were served meanwhile are over.
                turns.retain(|(of, _)| put_off.contains(of));
                turns.push((ticket, self.turn_begins()));
                turns.len() - 1
            });
            let result = match self.step(&wanted, &mut turns[index].1) {
                Ok(Step::Again) => continue,
                Ok(Step::Busy) => {
                    if maintenance.is_closing() {
                        return;
                    }
                    maintenance.wait_for_change();
                    put_off.clear();
                    continue;
                }
                Ok(Step::SnapshotsBusy) => {
                    put_off.push(ticket);
                    continue;
                }
                Ok(Step::FreeSpace(purpose)) => Ok(purpose),
                Err(error) => {
                    tracing::warn!("{error}");
                    Err(error)
                }
            };
            maintenance.answer(&result, |waiting| waiting.ticket == ticket);
        }
    }

    /// Makes room as the thread does, for stores that have none, and returns the purpose for which it may be taken.
    pub(crate) fn make_space(self: &Arc<Self>, wanted: &SpaceRequest) -> Result<Purpose, StoreError> {
        let mut turn = self.turn_begins();
        while !self.has_space(wanted) {
            if let Step::FreeSpace(purpose) = self.step(wanted, &mut turn)? {
                return Ok(purpose);
            }
        }
        Ok(wanted.purpose)
    }

    fn turn_begins(&self) -> Turn {
        let newest = self.space.pool.lock().next_segment;
        Turn {
            is_ahead: false,
            newest,
            cleaned_all: false,
            leaves_pinned: false,
            asked_for_index_space: false,
            pauses: 0,
            snapshots: 0,
            left_oversized: false,
        }
    }

    /// Locks the snapshots; returns `None` if another thread has the lock. Without threads it is waited for.
    fn lock_work(&self) -> Option<MutexGuard<'_, SnapshotState>> {
        let work = &self.maintenance.work;
        if self.maintenance.is_threaded() { work.try_lock() } else { Some(work.lock()) }
    }

    /// Returns whether there is the room that is wanted, and it may be taken when the cleaner has got on.
    fn waits_for_turn(&self, wanted: &SpaceRequest) -> bool {
        let paced = SpaceRequest { purpose: Purpose::Paced, ..*wanted };
        let is_paced = wanted.purpose == Purpose::Write && wanted.record_bytes > 0;
        self.maintenance.is_threaded() && is_paced && !self.has_space(wanted) && self.has_space(&paced)
    }

    fn lock_cleaning(&self, turn: &Turn) -> Option<MutexGuard<'_, Cleaning>> {
        let cleaning = &self.maintenance.cleaning;
        if turn.is_ahead { cleaning.try_lock() } else { Some(cleaning.lock()) }
    }

    /// Does one step towards the wanted room: within the bound on garbage takes what space there is, beyond it cleans
    /// first, and when there is no more space cleans any segment that gains anything.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfSpace`] if there is no room and nothing left to clean.
    fn step(self: &Arc<Self>, wanted: &SpaceRequest, turn: &mut Turn) -> Result<Step, StoreError> {
        if let Some(failure) = self.log.failure() {
            return Err(failure.clone());
        }
        if self.waits_for_turn(wanted) {
            return Ok(Step::Busy);
        }
        if !turn.cleaned_all && self.is_over_bound(wanted) {
            if self.maintenance.is_threaded() {
                if !self.has_cleaned_all() {
                    self.maintenance.ask(|requests| requests.clean = true);
                    return Ok(Step::Busy);
                }
            } else if let Some(step) = self.clean_step(turn, Effort::Bound) {
                return Ok(step);
            }
            turn.cleaned_all = true;
        }
        let mut grown = self.grow(wanted);
        if grown.is_ok() && !self.index_has_space(wanted) {
            // That takes up to three snapshots, and others may wait for just a segment.
            if self.maintenance.is_threaded() && !turn.is_ahead && !turn.asked_for_index_space {
                turn.asked_for_index_space = true;
                self.maintenance.ask(|requests| requests.snapshot = true);
                return Ok(Step::SnapshotsBusy);
            }
            let Some(mut work) = self.lock_work() else { return Ok(Step::SnapshotsBusy) };
            grown = self.raise_snapshot_space(&mut work, wanted);
        }
        match grown {
            Ok(()) => return Ok(Step::Again),
            Err(error) if error.kind != ErrorKind::OutOfSpace => return Err(error),
            Err(_) => {}
        }
        let effort = if wanted.purpose.is_write() { Effort::FreeSpace } else { Effort::Utmost };
        if let Some(step) = self.clean_step(turn, effort) {
            return Ok(step);
        }
        // Without a thread it may be the caller who holds them.
        if self.maintenance.is_threaded() && turn.pauses < PAUSES_FOR_READERS_MAX && self.has_held_segments()
        {
            turn.pauses += 1;
            pause(PAUSE_FOR_READERS);
            return Ok(Step::Again);
        }
        if turn.snapshots < KEPT + 1 && self.snapshots_can_shrink() {
            let Some(mut work) = self.lock_work() else { return Ok(Step::SnapshotsBusy) };
            turn.snapshots += 1;
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
            && self.index_has_space(wanted)
            && self.log.has_space(wanted.record_bytes, Purpose::Clean)
        {
            return Ok(Step::FreeSpace(Purpose::Clean));
        }
        Err(self.refuse(wanted))
    }

    /// Cleans a slice, or takes the snapshot which that needs; returns `None` if there is nothing to clean.
    fn clean_step(self: &Arc<Self>, turn: &mut Turn, effort: Effort) -> Option<Step> {
        let Some(mut cleaning) = self.lock_cleaning(turn) else { return Some(Step::Busy) };
        let cleaned = self.clean_once(&mut cleaning, turn.newest, effort, !turn.leaves_pinned);
        unlock_fair(cleaning);
        let result = match cleaned {
            Ok(Cleaned::Gained(_)) => Ok(()),
            Ok(Cleaned::Nothing) => return None,
            Ok(Cleaned::NeedsSnapshot) => {
                let Some(mut work) = self.lock_work() else { return Some(Step::SnapshotsBusy) };
                let taken = self.snapshot(&mut work);
                unlock_fair(work);
                match taken {
                    Err(error) if error.kind == ErrorKind::OutOfSpace => {
                        tracing::warn!("{error}");
                        turn.leaves_pinned = true;
                        Ok(())
                    }
                    taken => taken,
                }
            }
            Err(error) => Err(error),
        };
        result.map(|()| Step::Again).inspect_err(|error| tracing::warn!("{error}")).ok()
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
