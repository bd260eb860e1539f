//! Appending: entries wait in a queue, and a task takes them from there in order, gets positions for them, and writes them.
//!
//! One write is on its way at a time, and it goes to one object, wholly or not at all: so what a handle appends is in the log in the
//! order in which it was appended, whatever fails. Entries that come meanwhile are written together, and their positions are taken
//! during the write. No position is taken before its entry is there: an append that begins after another
//! handle's was acknowledged would come before it otherwise. For the same reason none is kept in stock.
//!
//! A handle that has appended alone for some time takes no positions before it writes: it reads the counter, which no sync is waited
//! for, and then writes and raises the counter at once (`Task::write_at_once`). A client that dies in between leaves either positions that
//! were counted and not written, a hole that readers fill, or entries that are not counted. These are in the log, as any of which no
//! reply came: who appends next finds the places taken, and goes on behind them, and [`Log::tail`](crate::Log::tail) counts them.
//!
//! Once a write has failed, what waits behind it is refused, and so is what comes until those whose entries failed know of it. Otherwise
//! the entries of a program that submits many before it looks at the first answer would be in the log with some missing in between.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use futures::channel::oneshot;
use futures::future::{BoxFuture, join};
use nacre_object::{ByteRange, ErrorKind, StoreError};
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, TryAcquireError};

use crate::entry::{Entry, INDEX_BYTES, Index, PACKET_HEAD_BYTES, Packed, pack};
use crate::error::LogError;
use crate::layout::View;
use crate::limit::{BATCH_BYTES_MAX, BATCH_ENTRIES_MAX, PLACE_BYTES_MAX, SLOT_BYTES, WAITING_BYTES_MAX};
use crate::log::Inner;
use crate::reserved::Reserved;
use crate::sequencer::{SequencerError, Turn};
use crate::state::{CachedViews, Shape};
use crate::stripe::{Stripe, StripeError, Written};

/// The memory that a waiting entry takes beside its bytes.
const WAITING_ENTRY_BYTES: usize = 128;

/// Appends entries to a log, in the order in which they come. Cheap to clone; all clones append in one order.
#[derive(Clone, derive_more::Debug)]
#[debug("Appender")]
pub struct Appender {
    shared: Arc<Handle>,
}

/// The handle that appenders hold; the task ends when it is gone and the queue is empty.
struct Handle {
    queue: Arc<Queue>,
    log: Arc<Inner>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.queue.closed.store(true, Ordering::Release);
        self.queue.wake.notify_one();
    }
}

/// The entries that wait, and what their submitters and the task share.
struct Queue {
    waiting: Mutex<Line>,
    wake: Notify,
    /// A permit for each byte that may wait or be on its way.
    room: Arc<Semaphore>,
    closed: AtomicBool,
    /// True if there is a task that takes entries from here. It changes only while `waiting` is locked.
    started: AtomicBool,
}

/// The entries that wait, in their order.
#[derive(Default)]
struct Line {
    entries: VecDeque<Waiting>,
    /// The failure of whatever comes behind an entry that failed. Every failure on its way to a submitter keeps it alive, and no entry
    /// is taken as long as it lives.
    refusal: Weak<LogError>,
}

/// Notes that a task has ended, also one whose runtime has: what waits for it is given up, and the next entry starts another.
struct Started(Arc<Queue>);

impl Drop for Started {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting.lock();
        self.0.started.store(false, Ordering::Relaxed);
        let left = std::mem::take(&mut waiting.entries);
        drop(waiting);
        drop(left);
    }
}

/// A failure on its way to the submitter of an entry.
struct Failed {
    error: LogError,
    /// The failure of entries behind it, which are refused until this is dropped.
    _refusal: Arc<LogError>,
}

struct Waiting {
    entry: Entry,
    /// The way to the submitter. It is none of the runtime's channels, with which a task waits after some number of replies although
    /// others are there: one that appends many entries would go on in pieces, and so would its next entries come.
    reply: oneshot::Sender<Result<u64, Failed>>,
    /// The room in the queue, which is given back when the entry is answered or given up.
    _room: OwnedSemaphorePermit,
}

impl Waiting {
    fn bytes(&self) -> usize {
        waiting_bytes(&self.entry)
    }

    fn fail(self, error: LogError, refusal: &Arc<LogError>) {
        let _ = self.reply.send(Err(Failed { error, _refusal: refusal.clone() }));
    }
}

fn waiting_bytes(entry: &Entry) -> usize {
    entry.record_bytes() + WAITING_ENTRY_BYTES
}

/// An entry that is being appended: a future of its position, which is there once the entry is as durable as the store makes it. If
/// this is dropped, the entry is appended nevertheless. Failures are those of [`Appender::append`].
#[must_use]
#[derive(derive_more::Debug)]
#[debug("Appending")]
pub struct Appending {
    reply: oneshot::Receiver<Result<u64, Failed>>,
}

impl Future for Appending {
    type Output = Result<u64, LogError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.reply).poll(context).map(|reply| match reply {
            Ok(Ok(position)) => Ok(position),
            Ok(Err(failed)) => Err(failed.error),
            Err(_) => Err(ended()),
        })
    }
}

fn ended() -> LogError {
    let text = "the runtime that appends has ended; the entry may or may not be in the log";
    StoreError::new(ErrorKind::Unknown, text).into()
}

impl Appender {
    pub(crate) fn new(log: Arc<Inner>) -> Self {
        let queue = Arc::new(Queue {
            waiting: Mutex::default(),
            wake: Notify::new(),
            room: Arc::new(Semaphore::new(WAITING_BYTES_MAX)),
            closed: AtomicBool::new(false),
            started: AtomicBool::new(false),
        });
        Self { shared: Arc::new(Handle { queue, log }) }
    }

    /// Appends an entry, and returns its position once it is as durable as the store makes it.
    ///
    /// An entry that was appended has one position. One whose append failed has none, unless the kind of the failure is
    /// [`ErrorKind::Unknown`]: then it has one or none.
    ///
    /// Nothing of this handle and its clones is in the log behind an entry that failed, until its failure is known: what waits behind it
    /// when it fails is refused ([`LogError::Behind`]), and so is whatever comes before each of these failures was returned, or its
    /// [`Appending`] dropped. Entries that were written together with it failed with it. Other handles, such as
    /// [`Log::apart`](crate::Log::apart) returns, go on.
    ///
    /// # Errors
    /// [`LogError::Invalid`] if the entry exceeds a limit, [`LogError::ReadOnly`], [`LogError::Missing`] if the log was deleted,
    /// [`LogError::Behind`], and those of the store.
    pub async fn append(&self, entry: Entry) -> Result<u64, LogError> {
        self.submit(entry).await?.await
    }

    /// Puts an entry into the queue, and returns what its position can be awaited with: so further ones can follow before it is in
    /// the log. Waits while [`WAITING_BYTES_MAX`] bytes are in the queue and on their way.
    ///
    /// # Errors
    /// As [`Appender::append`].
    pub async fn submit(&self, entry: Entry) -> Result<Appending, LogError> {
        let Handle { queue, log } = &*self.shared;
        log.may_write()?;
        entry.check()?;
        let bytes = waiting_bytes(&entry) as u32;
        // Waiting for room that is there counts as work with the runtime, which lets a task do so much and no more at a time.
        let room = match queue.room.clone().try_acquire_many_owned(bytes) {
            Ok(room) => room,
            Err(TryAcquireError::NoPermits) => {
                queue.room.clone().acquire_many_owned(bytes).await.map_err(|_| ended())?
            }
            Err(TryAcquireError::Closed) => return Err(ended()),
        };
        let (reply, receiver) = oneshot::channel();
        let (was_empty, starts) = {
            let mut waiting = queue.waiting.lock();
            if let Some(refusal) = waiting.refusal.upgrade() {
                return Err(LogError::clone(&refusal));
            }
            waiting.entries.push_back(Waiting { entry, reply, _room: room });
            (waiting.entries.len() == 1, !queue.started.swap(true, Ordering::Relaxed))
        };
        if starts {
            let (log, queue) = (log.clone(), queue.clone());
            let started = Started(queue.clone());
            let task =
                Task { log, queue, reserved: Reserved::default(), taking: None, epoch: 0, _started: started };
            tokio::spawn(task.run());
        }
        if was_empty {
            queue.wake.notify_one();
        }
        Ok(Appending { reply: receiver })
    }
}

/// The result of an attempt to write entries that go to one object.
enum Attempt {
    /// Entries that are in the log.
    Written,
    /// Entries that are not, and never will be at these positions.
    NotThere,
    /// Entries that are not, since the log has another epoch.
    Epoch(Option<u64>),
    /// Entries that are not, since their object holds as many bytes as the store lets one have.
    Full,
    /// Entries of which that is not known, or that are not in the log although another attempt makes no sense.
    Failed(LogError),
}

/// A request for positions on its way, with their number.
struct PositionRequest {
    count: u64,
    first: BoxFuture<'static, Result<u64, SequencerError>>,
}

/// The task that appends.
struct Task {
    log: Arc<Inner>,
    queue: Arc<Queue>,
    /// Positions that were taken and are not used yet: not more than entries have waited since.
    reserved: Reserved,
    /// Positions that are being taken.
    taking: Option<PositionRequest>,
    /// The epoch in which they were taken.
    epoch: u64,
    _started: Started,
}

impl Task {
    async fn run(mut self) {
        while let Some(mut batch) = self.take().await {
            while !batch.is_empty() {
                self.write(&mut batch).await;
            }
        }
    }

    /// Takes what waits; `None` once nobody can append any more.
    async fn take(&mut self) -> Option<VecDeque<Waiting>> {
        loop {
            let woken = self.queue.wake.notified();
            if let Some(batch) = self.take_now() {
                return Some(batch);
            }
            if self.queue.closed.load(Ordering::Acquire) {
                return None;
            }
            woken.await;
        }
    }

    fn take_now(&self) -> Option<VecDeque<Waiting>> {
        let mut line = self.queue.waiting.lock();
        let waiting = &mut line.entries;
        let mut bytes = 0;
        let fits = |next: &Waiting| {
            bytes += next.bytes();
            bytes <= BATCH_BYTES_MAX
        };
        let count = waiting.iter().take(BATCH_ENTRIES_MAX).take_while({
            let mut fits = fits;
            move |next| fits(next)
        });
        let count = count.count().max(1).min(waiting.len());
        if count == 0 {
            return None;
        }
        if count == waiting.len() {
            return Some(std::mem::take(waiting));
        }
        Some(waiting.drain(..count).collect())
    }

    /// Gives up the positions that were taken: they are void, or who was to have them is gone.
    fn forget_positions(&mut self) {
        self.reserved.clear();
        self.taking = None;
    }

    fn reserved_count(&self) -> u64 {
        self.reserved.count()
    }

    /// Writes as many of the first entries as go to one object, and answers them.
    async fn write(&mut self, batch: &mut VecDeque<Waiting>) {
        let known = self.log.known();
        if self.epoch != known.views.epoch() {
            // Positions of an earlier epoch may have been given out again.
            self.forget_positions();
            self.epoch = known.views.epoch();
        }
        if self.reserved.is_empty()
            && let Some(PositionRequest { count, first }) = self.taking.take()
            && let Ok(first) = first.await
        {
            self.reserved.add(first, count);
        }
        if self.reserved.is_empty() && self.write_at_once(&known, batch).await {
            return;
        }
        if self.reserved.is_empty() {
            match self.reserve(&known, batch.len() as u64).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.fail(batch, usize::MAX, None, error),
            }
        }
        let view = known.views.last();
        let Some(next) = self.reserved.first() else { return };
        let first = next.start;
        if first < view.start {
            self.forget_positions();
            let text = format!("its sequencer gives out position {first}, which is before the last view");
            return self.fail(batch, usize::MAX, None, LogError::Corrupt(text));
        }
        if next.end > view.positions_end() {
            return self.begin_view(&known, batch).await;
        }
        let Some(positions) = self.reserved.take(view, batch.len() as u64) else { return };
        let count = positions.end - positions.start;
        let left = batch.len() as u64 - count;
        let attempt = {
            let entries = batch.iter().take(count as usize);
            let log = self.log.clone();
            let mut put = pin!(log.put(&known, view, first, entries));
            let mut takes = true;
            loop {
                if takes {
                    self.take_positions(left);
                }
                tokio::select! {
                    biased;
                    attempt = &mut put => break attempt,
                    taken = taken(&mut self.taking) => match taken {
                        Some((first, count)) => self.reserved.add(first, count),
                        // What is wrong with the sequencer is seen to when the write is done.
                        None => takes = false,
                    },
                    // Entries that come during the write take their positions during it.
                    () = self.queue.wake.notified(), if self.taking.is_none() => {}
                }
            }
        };
        let count = count as usize;
        match attempt {
            Attempt::Written => self.answer(batch, count, first),
            Attempt::Failed(error) => self.fail(batch, count, Some(first), error),
            Attempt::NotThere => {
                // What comes next must not be at a lower position than this.
                self.reserved.pass(first);
                let fill = self.log.fill(first, first + count as u64);
                match self.taking.take() {
                    // Other handles of this process may wait for it.
                    Some(PositionRequest { count, first }) => {
                        if let (_, Ok(first)) = join(fill, first).await {
                            self.reserved.add(first, count);
                        }
                    }
                    None => {
                        let _ = fill.await;
                    }
                }
                self.log.pass_uncounted().await;
            }
            Attempt::Epoch(found) => {
                self.forget_positions();
                if let Err(error) = self.log.refresh(&known, found).await {
                    self.fail(batch, usize::MAX, None, error);
                }
            }
            Attempt::Full => self.begin_view(&known, batch).await,
        }
    }

    /// Begins a view of the same shape, since the objects of the last one take no more.
    async fn begin_view(&mut self, known: &CachedViews, batch: &mut VecDeque<Waiting>) {
        self.forget_positions();
        let view = known.views.last();
        let shape = Shape { width: view.width, unit: view.unit };
        if let Err(error) = self.log.recover(Some(shape), Some(known.version)).await {
            self.fail(batch, usize::MAX, None, error);
        }
    }

    /// Writes the first entries where the log ends, while the counter is raised: a handle that appends alone waits for both together.
    /// Returns false if another handle takes positions, too, or if that is not known, and then has done nothing.
    ///
    /// The counter is read after the entries were there, so all that was acknowledged before is at lower positions. They are acknowledged
    /// after the counter was raised, so all that is appended later is at greater ones. If another handle takes these positions in
    /// between, either its entries are there or these, and the other ones are written elsewhere.
    async fn write_at_once(&mut self, known: &Arc<CachedViews>, batch: &mut VecDeque<Waiting>) -> bool {
        let (log, epoch) = (self.log.clone(), self.epoch);
        let Some(turn) = log.counter.as_ref().and_then(|counter| counter.alone()) else { return false };
        let Some(first) = turn.read(epoch).await else { return false };
        let view = known.views.last();
        if !(view.start..view.positions_end()).contains(&first) {
            return false;
        }
        let room = view.together(first).min(view.positions_end() - first);
        let count = room.min(batch.len() as u64);
        let end = first + count;
        let counting = async {
            let raised = log.count(&turn, epoch, first, end).await;
            // Others need not wait for the entries.
            drop(turn);
            raised
        };
        let count = count as usize;
        let (attempt, raised) = join(log.put(known, view, first, batch.iter().take(count)), counting).await;
        match (attempt, raised) {
            (Attempt::Written, Ok(_)) => self.answer(batch, count, first),
            // The entries are there, and what is appended next could be anywhere.
            (Attempt::Written, Err(error)) => self.fail(batch, count, Some(first), unknown(&error)),
            (Attempt::Failed(error), _) => self.fail(batch, count, Some(first), error),
            (Attempt::NotThere, raised) => {
                // Those that nobody else has taken were taken for nothing.
                if let Ok(Some(taken)) = raised
                    && taken < end
                {
                    let _ = log.fill(taken.max(first), end).await;
                }
                log.pass_uncounted().await;
            }
            (Attempt::Epoch(found), _) => {
                if let Err(error) = log.refresh(known, found).await {
                    self.fail(batch, usize::MAX, None, error);
                }
            }
            (Attempt::Full, _) => self.begin_view(known, batch).await,
        }
        true
    }

    /// Begins to take positions during a write: one for each entry that waits already, of which `left` are in the batch.
    fn take_positions(&mut self, left: u64) {
        if self.taking.is_some() {
            return;
        }
        let waiting = self.queue.waiting.lock().entries.len() as u64;
        let count = (left + waiting).min(BATCH_ENTRIES_MAX as u64).saturating_sub(self.reserved_count());
        if count > 0 {
            let (sequencer, epoch) = (self.log.sequencer.clone(), self.epoch);
            let first = Box::pin(async move { sequencer.next(epoch, count).await });
            self.taking = Some(PositionRequest { count, first });
        }
    }

    /// Takes positions. Returns false if the log turned out to have another epoch.
    async fn reserve(&mut self, known: &Arc<CachedViews>, count: u64) -> Result<bool, LogError> {
        let mut patience = self.log.patience();
        loop {
            match self.log.sequencer.next(self.epoch, count).await {
                Ok(first) => {
                    self.reserved.add(first, count);
                    return Ok(true);
                }
                Err(SequencerError::Epoch(found)) => {
                    self.log.refresh(known, found).await?;
                    return Ok(false);
                }
                // Positions that were taken all the same are filled by readers.
                Err(SequencerError::Store(error)) => patience.wait(error).await?,
            }
        }
    }

    /// Answers the first entries, whose positions follow each other, and makes room for others.
    fn answer(&self, batch: &mut VecDeque<Waiting>, count: usize, first: u64) {
        for (position, waiting) in (first..).zip(batch.drain(..count)) {
            let _ = waiting.reply.send(Ok(position));
        }
    }

    /// Tells the first entries, as many as there are up to `count`, that they failed, and refuses all others. `position` is that of the
    /// first one, if it had one.
    fn fail(&mut self, batch: &mut VecDeque<Waiting>, count: usize, position: Option<u64>, error: LogError) {
        // They were taken for entries that do not come.
        self.forget_positions();
        let refusal = Arc::new(LogError::Behind { position, error: Box::new(error.clone()) });
        let behind = {
            let mut waiting = self.queue.waiting.lock();
            waiting.refusal = Arc::downgrade(&refusal);
            std::mem::take(&mut waiting.entries)
        };
        let refused = batch.split_off(count.min(batch.len()));
        for failed in batch.drain(..) {
            failed.fail(error.clone(), &refusal);
        }
        for refused in refused.into_iter().chain(behind) {
            refused.fail(LogError::clone(&refusal), &refusal);
        }
    }
}

impl Inner {
    /// Raises the counter from `first` to `end`, as long as it takes. Returns what it was; `None` if it was as great already.
    async fn count(
        &self,
        turn: &Turn<'_>,
        epoch: u64,
        first: u64,
        end: u64,
    ) -> Result<Option<u64>, LogError> {
        let mut patience = self.patience();
        loop {
            match turn.raise(epoch, first, end).await {
                Ok(before) => return Ok(before),
                // A recovery has found what was written: it seals the objects before it installs its epoch.
                Err(SequencerError::Epoch(Some(found))) if found > epoch => return Ok(None),
                Err(SequencerError::Epoch(Some(_))) => return Err(self.nonsense()),
                Err(SequencerError::Epoch(None)) => return Err(LogError::Missing(self.name.clone())),
                Err(SequencerError::Store(error)) => patience.wait(error).await?,
            }
        }
    }

    /// Counts entries of a dead client that the counter does not count. What is wrong with the store is seen to with the next attempt.
    async fn pass_uncounted(&self) {
        if self.counter.is_some() {
            let _ = self.tail().await;
        }
    }

    /// Writes entries at consecutive positions of one object, until it is known whether they are there.
    async fn put<'a>(
        &self,
        known: &CachedViews,
        view: &View,
        first: u64,
        entries: impl ExactSizeIterator<Item = &'a Waiting> + Clone,
    ) -> Attempt {
        let (index, place) = view.locate(first);
        let object = match self.object(view, index) {
            Ok(object) => object,
            Err(error) => return Attempt::Failed(error),
        };
        let stripe = Stripe { store: &*self.store, object: &object, epoch: view.epoch, closed: view.closed };
        let (writer, count) = (self.options.random.number(), entries.len() as u64);
        let packed = pack(place, writer, entries.map(|waiting| &waiting.entry));
        let mut patience = self.patience();
        // True if an earlier attempt may have taken effect.
        let mut uncertain = false;
        loop {
            match stripe.write(place, count, &packed).await {
                Ok(Written::Done) => return Attempt::Written,
                Ok(Written::Occupied) if !uncertain => return Attempt::NotThere,
                Err(StripeError::Epoch(found)) if !uncertain => return Attempt::Epoch(found),
                // The guards of the earlier attempt do not hold any more, so what is there now is what came of it.
                Ok(Written::Occupied) => return self.look(first, writer).await,
                Err(StripeError::Epoch(found)) => {
                    let known = Arc::new(known.clone());
                    return match self.refresh(&known, found).await {
                        Ok(()) => self.look(first, writer).await,
                        Err(error) => Attempt::Failed(unknown(&error)),
                    };
                }
                Err(StripeError::Store(error)) => {
                    let is_full = error.kind == ErrorKind::OutOfSpace && !uncertain;
                    if is_full && self.may_be_full(place, &packed).await {
                        return Attempt::Full;
                    }
                    uncertain |= error.kind.is_uncertain();
                    if let Err(error) = patience.wait(error).await {
                        return Attempt::Failed(if uncertain { unknown(&error) } else { error });
                    }
                }
            }
        }
    }

    /// Returns whether the places before one may hold so many bytes that these entries do not fit into the object beside them. If they
    /// would fit beside the longest ones, it is the store that is full, where other objects would be of no use.
    async fn may_be_full(&self, place: u64, packed: &Packed) -> bool {
        let packed_bytes: u64 = packed.packets.iter().map(|(_, data)| data.len() as u64).sum();
        // The store may align them: that takes as much again at most.
        let bytes = place.saturating_add(1).saturating_mul(PLACE_BYTES_MAX).saturating_add(2 * packed_bytes);
        let limits = self.store.limits().await;
        place > 0 && limits.is_ok_and(|limits| bytes >= limits.fork_bytes_max)
    }

    /// Finds out whether a write of this writer took effect at a position, when it cannot do so any more.
    async fn look(&self, position: u64, writer: u64) -> Attempt {
        let mut patience = self.patience();
        loop {
            let known = self.known();
            let found = match known.views.find(position) {
                None => Ok(None),
                Some((view, _)) => {
                    let (index, place) = view.locate(position);
                    match self.object(view, index) {
                        Ok(object) => {
                            let stripe = Stripe {
                                store: &*self.store,
                                object: &object,
                                epoch: view.epoch,
                                closed: view.closed,
                            };
                            wrote(stripe, place, writer).await
                        }
                        Err(error) => return Attempt::Failed(unknown(&error)),
                    }
                }
            };
            match found {
                Ok(Some(true)) => return Attempt::Written,
                Ok(Some(false)) => return Attempt::NotThere,
                Ok(None) => {
                    let text = "the reply was lost, and the position was trimmed since";
                    return Attempt::Failed(StoreError::new(ErrorKind::Unknown, text).into());
                }
                Err(error) => {
                    if let Err(error) = self.again(&known, error, &mut patience).await {
                        return Attempt::Failed(unknown(&error));
                    }
                }
            }
        }
    }
}

/// Waits for positions that are being taken; forever if there are none. Returns `None` if they could not be taken.
async fn taken(taking: &mut Option<PositionRequest>) -> Option<(u64, u64)> {
    let Some(PositionRequest { count, first }) = taking else { return std::future::pending().await };
    let (first, count) = (first.await, *count);
    *taking = None;
    Some((first.ok()?, count))
}

/// Returns whether the packet at a place is a writer's; `None` if it was trimmed.
async fn wrote(stripe: Stripe<'_>, place: u64, writer: u64) -> Result<Option<bool>, StripeError> {
    let index = stripe.read(place, 1, 0).await?.entries;
    let locator = match index.first() {
        Some(Index::Entry(locator)) => locator,
        Some(Index::Trimmed) => return Ok(None),
        _ => return Ok(Some(false)),
    };
    if locator.distance > 0 || locator.offset != PACKET_HEAD_BYTES as u32 {
        return Ok(Some(false));
    }
    let head = ByteRange::new(place * SLOT_BYTES, PACKET_HEAD_BYTES as u64);
    let head = stripe.read_data(&[head]).await?.pop().flatten();
    Ok(head.map(|head| head[..] == writer.to_le_bytes()))
}

/// Returns the failure of an append that may have taken effect.
fn unknown(error: &LogError) -> LogError {
    StoreError::new(ErrorKind::Unknown, error.to_string()).into()
}

const _: () = assert!(BATCH_ENTRIES_MAX as u64 * INDEX_BYTES <= 1 << 20);
