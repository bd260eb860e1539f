//! Giving out positions.
//!
//! A sequencer makes a log fast, and is never what makes it correct: entries are written once, so a position that was given out twice
//! costs the second writer another attempt and nothing else. (CORFU; Sevilla et al., *Malacology*, section 5.2.1.)

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use nacre_object::limit::OFFSET_MAX;
use nacre_object::{
    Answer, ByteRange, Check, ErrorKind, Fork, Found, Guard, Key, ObjectId, ObjectStore, Outcome, ReadOp,
    Refusal, StoreError, Transaction, WriteOp,
};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

/// The number of changes of the counter, with nobody else's in between, after which a handle takes itself to append alone.
const UNDISTURBED_MIN: u32 = 8;
/// The time for which a request waits for its turn: who has it may be in a runtime that does not run at the moment.
const TURN_TIME_MAX: Duration = Duration::from_secs(5);
/// The number of positions that one append takes at most: each is a byte of the transaction.
const APPEND_MAX: u64 = 64 << 10;
/// The number of positions after which the bytes of those before are given back.
const FREED_EVERY: u64 = 1024;

/// The bytes that are appended for positions.
static ZEROS: [u8; APPEND_MAX as usize] = [0; APPEND_MAX as usize];

/// A failure to get positions.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SequencerError {
    /// The sequencer works for another epoch of the log; `None`: there is no sequencer.
    #[error("the sequencer has epoch {0:?}")]
    Epoch(Option<u64>),
    /// The store, or the server, failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The source of a log's positions.
pub trait Sequencer: Send + Sync {
    /// Takes the next `count` positions, at least one, and returns the first of them.
    ///
    /// # Errors
    /// [`SequencerError::Epoch`] if the sequencer works for another epoch. If the reply is lost, positions may have been taken:
    /// readers fill them in time.
    fn next(&self, epoch: u64, count: u64) -> BoxFuture<'_, Result<u64, SequencerError>>;

    /// Returns the position that is given out next.
    ///
    /// # Errors
    /// As [`Sequencer::next`].
    fn read(&self, epoch: u64) -> BoxFuture<'_, Result<u64, SequencerError>>;

    /// Makes the sequencer work for an epoch, from a position on: the end of a recovery.
    ///
    /// # Errors
    /// [`SequencerError::Epoch`] if it works for a later epoch, or for this one already.
    fn install(&self, epoch: u64, tail: u64) -> BoxFuture<'_, Result<(), SequencerError>>;
}

/// A sequencer that needs nothing but the store: an object with a fork that has a byte for each position that was given out.
///
/// Positions are taken by an append to that fork. Its only condition is the epoch, which appends do not change: so however many
/// clients take positions at a time, none refuses another one, and each takes those behind what the fork had before its append. The
/// counter, which is where the epoch began and the size of the fork together, is as durable as the store makes all writes, before an
/// append to the log is acknowledged.
///
/// Requests of one process take turns: one transaction is on its way at a time, and takes positions for all requests that wait then.
#[derive(derive_more::Debug)]
#[debug("StoreSequencer")]
pub struct StoreSequencer {
    store: Arc<dyn ObjectStore>,
    head: ObjectId,
    known: Mutex<Known>,
    /// Requests that no transaction takes positions for yet.
    waiting: Mutex<Vec<Request>>,
    /// Locked by the request whose transaction is on its way.
    turn: tokio::sync::Mutex<()>,
    /// The number of changes of the counter since another client's, or since several requests waited at a time.
    undisturbed: AtomicU32,
    /// True if a change by this handle reached a multiple of [`FREED_EVERY`] unexpectedly: the next one gives bytes back.
    frees: AtomicBool,
}

/// What a handle knows of the counter.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The counter as it was installed for the epoch.
    installed: Option<Counter>,
    /// The greatest counter that was seen.
    seen: Option<Counter>,
}

/// A request for positions.
struct Request {
    epoch: u64,
    count: u64,
    reply: oneshot::Sender<Result<u64, SequencerError>>,
}

/// The result of an attempt to raise the counter from one position to another.
enum Replaced {
    Done,
    /// The counter is at this position instead.
    Found(u64),
    /// The counter was installed otherwise than was known.
    Installed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Counter {
    epoch: u64,
    tail: u64,
}

impl Counter {
    fn encode(self) -> Bytes {
        Bytes::from([self.epoch.to_be_bytes(), self.tail.to_be_bytes()].concat())
    }

    fn decode(value: &[u8]) -> Option<Counter> {
        let (epoch, tail) = value.split_first_chunk::<8>()?;
        Some(Counter { epoch: u64::from_be_bytes(*epoch), tail: u64::from_be_bytes(tail.try_into().ok()?) })
    }

    /// Returns the guard of whatever changes a counter that was installed like this. Only installations refuse it.
    fn guard(self) -> Guard {
        Guard::Key { key: installed_key(), check: Check::Equal(self.encode()) }
    }
}

/// The key with the counter as it was installed for its epoch.
fn installed_key() -> Key {
    Key::new("installed").expect("the name is short and not empty")
}

/// The key in which earlier versions kept the counter itself, and replaced it with every change.
fn replaced_key() -> Key {
    Key::new("sequencer").expect("the name is short and not empty")
}

/// The fork with a byte for each position that was given out since the installation.
fn taken_fork() -> Fork {
    Fork::new("taken").expect("the name is short")
}

/// The read of the number of positions that were given out since the installation.
fn taken_size() -> ReadOp {
    ReadOp::Extents { fork: taken_fork(), range: ByteRange::new(0, 0) }
}

/// Returns whether a counter that is raised from one position to another reaches a multiple of [`FREED_EVERY`].
fn reaches(from: u64, to: u64) -> bool {
    from / FREED_EVERY != to / FREED_EVERY
}

fn append(count: u64) -> WriteOp {
    WriteOp::Append { fork: taken_fork(), data: Bytes::from_static(&ZEROS[..count as usize]) }
}

impl StoreSequencer {
    /// Creates a handle on the sequencer in an object.
    pub fn new(store: Arc<dyn ObjectStore>, head: ObjectId) -> Self {
        Self {
            store,
            head,
            known: Mutex::default(),
            waiting: Mutex::default(),
            turn: tokio::sync::Mutex::new(()),
            undisturbed: AtomicU32::new(0),
            frees: AtomicBool::new(false),
        }
    }

    fn decode(&self, value: Option<&Bytes>) -> Result<Counter, SequencerError> {
        let Some(value) = value else { return Err(SequencerError::Epoch(None)) };
        Counter::decode(value).ok_or_else(|| {
            let text = format!("a key of object \"{}\" is not a sequencer's", self.head);
            StoreError::new(ErrorKind::Corrupt, text).into()
        })
    }

    fn nonsense(&self) -> SequencerError {
        let text =
            format!("the answer of the store about object \"{}\" does not fit the question", self.head);
        StoreError::new(ErrorKind::Corrupt, text).into()
    }

    /// Reads the counter of an epoch. Returns it as it was installed, and as it is.
    async fn look(&self, epoch: u64) -> Result<(Counter, Counter), SequencerError> {
        let transaction = Transaction::new()
            .read(ReadOp::Key { key: installed_key() })
            .read(ReadOp::Key { key: replaced_key() })
            .read(taken_size());
        let Outcome::Done(done) = self.store.apply(&self.head, transaction).await? else {
            return Err(self.nonsense());
        };
        let [Answer::Value(installed), Answer::Value(replaced), Answer::Range(taken)] = &done.answers[..]
        else {
            return Err(self.nonsense());
        };
        let installed = self.decode(installed.as_ref().or(replaced.as_ref()))?;
        let tail = installed.tail.checked_add(taken.size).ok_or_else(|| self.nonsense())?;
        let now = Counter { tail, ..installed };
        let before = {
            let mut known = self.known.lock();
            let before = known.seen;
            // An answer may be older than one that came before it.
            *known = Known { installed: Some(installed), seen: before.max(Some(now)) };
            before
        };
        if before.is_some_and(|before| before < now) {
            self.disturbed();
        }
        if now.epoch == epoch { Ok((installed, now)) } else { Err(SequencerError::Epoch(Some(now.epoch))) }
    }

    /// Returns the counter of an epoch as it was installed, if that is known.
    fn installed(&self, epoch: u64) -> Option<Counter> {
        self.known.lock().installed.filter(|installed| installed.epoch == epoch)
    }

    /// Returns the greatest position that this has seen the counter of an epoch at.
    pub(crate) fn seen(&self, epoch: u64) -> Option<u64> {
        self.known.lock().seen.filter(|seen| seen.epoch == epoch).map(|seen| seen.tail)
    }

    /// Notes that this is not the only one who takes positions.
    fn disturbed(&self) {
        self.undisturbed.store(0, Ordering::Relaxed);
    }

    fn is_undisturbed(&self) -> bool {
        self.undisturbed.load(Ordering::Relaxed) >= UNDISTURBED_MIN
    }

    /// Notes a change of the counter of an epoch by this handle.
    fn changed(&self, epoch: u64, from: u64, to: u64) {
        let before = self.known.lock().seen.replace(Counter { epoch, tail: to });
        match before.is_none_or(|before| before == Counter { epoch, tail: from }) {
            true => {
                let changes = self.undisturbed.load(Ordering::Relaxed);
                self.undisturbed.store(changes.saturating_add(1), Ordering::Relaxed);
            }
            false => {
                self.disturbed();
                // Of all handles that take positions, one reaches each multiple, whatever they expected.
                if reaches(from, to) {
                    self.frees.store(true, Ordering::Relaxed);
                }
            }
        }
    }

    /// Begins a change that takes positions. From time to time it also gives back the bytes of those that were taken long ago: the
    /// size of the fork stays, and its content is never read.
    fn change(&self, installed: Counter, count: u64) -> Transaction {
        let transaction = Transaction::new().guard(installed.guard());
        let seen = self.seen(installed.epoch).unwrap_or(installed.tail);
        let taken = seen.saturating_sub(installed.tail);
        let is_due = self.frees.swap(false, Ordering::Relaxed);
        if taken == 0 || !(is_due || reaches(seen, seen.saturating_add(count))) {
            return transaction;
        }
        let range = ByteRange::new(0, taken.min(OFFSET_MAX));
        transaction.change(WriteOp::Zero { fork: taken_fork(), range })
    }

    /// Takes positions, at most [`APPEND_MAX`], behind all that anybody has taken. Returns `None` if the counter was installed
    /// otherwise than was known.
    async fn take(&self, installed: Counter, count: u64) -> Result<Option<u64>, SequencerError> {
        // The size is that before the append. Beside both there is to be nothing in most transactions: then a server can answer one
        // again whose reply was lost.
        let transaction = self.change(installed, count).read(taken_size()).change(append(count));
        match self.store.apply(&self.head, transaction).await? {
            Outcome::Done(mut done) => {
                let Some(Answer::Range(taken)) = done.answers.pop() else { return Err(self.nonsense()) };
                let first = installed.tail.checked_add(taken.size).ok_or_else(|| self.nonsense())?;
                let end = first.checked_add(count).ok_or_else(|| self.nonsense())?;
                self.changed(installed.epoch, first, end);
                Ok(Some(first))
            }
            Outcome::Refused(refusal) => self.refused(installed, refusal).await.map(|()| None),
        }
    }

    /// Raises the counter from a position to another one, if it is at the first of them.
    async fn replace(&self, installed: Counter, from: u64, to: u64) -> Result<Replaced, SequencerError> {
        let Some(size) = from.checked_sub(installed.tail) else {
            // It was seen before a store that does not make every write durable lost it.
            *self.known.lock() = Known::default();
            return Ok(Replaced::Installed);
        };
        let count = to - from;
        let write = match count <= APPEND_MAX {
            true => append(count),
            false => {
                let end = size.checked_add(count).filter(|end| *end <= OFFSET_MAX);
                WriteOp::Truncate { fork: taken_fork(), size: end.ok_or_else(no_more_positions)? }
            }
        };
        let transaction = self.change(installed, count).if_size(taken_fork(), size).change(write);
        let refusal = match self.store.apply(&self.head, transaction).await? {
            Outcome::Done(_) => {
                self.changed(installed.epoch, from, to);
                return Ok(Replaced::Done);
            }
            Outcome::Refused(refusal) => refusal,
        };
        let Found::Size(size) = refusal.found else {
            return self.refused(installed, refusal).await.map(|()| Replaced::Installed);
        };
        let found = installed.tail.checked_add(size).filter(|found| *found != from);
        let found = found.ok_or_else(|| self.nonsense())?;
        self.disturbed();
        // Also if it is less: a store that does not make every write durable may have lost what was seen.
        self.known.lock().seen = Some(Counter { tail: found, ..installed });
        Ok(Replaced::Found(found))
    }

    /// Takes notice that the counter was not installed as was known. Returns when the change is to be made again.
    async fn refused(&self, installed: Counter, refusal: Refusal) -> Result<(), SequencerError> {
        let Found::Value(value) = refusal.found else { return Err(self.nonsense()) };
        self.disturbed();
        *self.known.lock() = Known::default();
        if value.is_none() {
            return self.adopt(installed).await;
        }
        match self.decode(value.as_ref())? {
            found if found.epoch != installed.epoch => Err(SequencerError::Epoch(Some(found.epoch))),
            found if found == installed => Err(self.nonsense()),
            _ => Ok(()),
        }
    }

    /// Makes the counter of an earlier version one of this version. The old key goes, so that programs that would go on counting
    /// there find no sequencer.
    async fn adopt(&self, counter: Counter) -> Result<(), SequencerError> {
        let transaction = Transaction::new()
            .guard(Guard::Key { key: installed_key(), check: Check::Absent })
            .guard(Guard::Key { key: replaced_key(), check: Check::Equal(counter.encode()) })
            .change(WriteOp::SetKey { key: installed_key(), value: counter.encode() })
            .change(WriteOp::RemoveKey { key: replaced_key() });
        // If it is refused, somebody was faster, or the log is gone: the counter is read again in any case.
        self.store.apply(&self.head, transaction).await?;
        Ok(())
    }

    /// Raises the counter of an epoch to a position, if it is less. Returns what it was; `None` if it was as great already. This may be
    /// repeated, and nothing but another epoch refuses it: who raises it meanwhile brings it nearer to the position.
    ///
    /// # Errors
    /// As [`Sequencer::next`].
    pub(crate) async fn raise(&self, epoch: u64, tail: u64) -> Result<Option<u64>, SequencerError> {
        loop {
            let guess = self.installed(epoch).zip(self.seen(epoch).filter(|seen| *seen < tail));
            let (installed, from) = match guess {
                Some(guess) => guess,
                None => self.look(epoch).await.map(|(installed, now)| (installed, now.tail))?,
            };
            if from >= tail {
                return Ok(None);
            }
            match self.replace(installed, from, tail).await? {
                Replaced::Done => return Ok(Some(from)),
                Replaced::Found(found) if found >= tail => return Ok(None),
                Replaced::Found(_) | Replaced::Installed => {}
            }
        }
    }

    /// Returns the right to be the only one of this process who changes the counter, if nobody else seems to, in this process or another.
    pub(crate) fn alone(&self) -> Option<Turn<'_>> {
        if !self.is_undisturbed() {
            return None;
        }
        match self.turn.try_lock() {
            Ok(turn) if self.waiting.lock().is_empty() => Some(Turn { sequencer: self, _turn: turn }),
            _ => {
                self.disturbed();
                None
            }
        }
    }

    /// Takes positions for all requests of an epoch, and answers them. The caller has the turn.
    async fn take_for_all(&self, epoch: u64) {
        let mut requests = Vec::new();
        let mut first = self.take_together(epoch, &mut requests).await;
        for Request { count, reply, .. } in requests {
            let _ = reply.send(first.clone());
            if let Ok(first) = &mut first {
                *first += count;
            }
        }
    }

    async fn take_together(&self, epoch: u64, requests: &mut Vec<Request>) -> Result<u64, SequencerError> {
        // If the counter cannot be read, all that wait are told.
        self.admit(epoch, requests);
        loop {
            let installed = match self.installed(epoch) {
                Some(installed) => installed,
                None => self.look(epoch).await?.0,
            };
            // Those that have come since, too: it is only now that positions are taken.
            self.admit(epoch, requests);
            if requests.is_empty() {
                return Ok(installed.tail);
            }
            let count = requests.iter().fold(0, |sum: u64, request| sum.saturating_add(request.count));
            let seen = self.seen(epoch).unwrap_or(installed.tail);
            let tail = seen.checked_add(count).ok_or_else(no_more_positions)?;
            if count > APPEND_MAX {
                // More than fit into a transaction: the counter is raised from where it was seen last.
                if let Replaced::Done = self.replace(installed, seen, tail).await? {
                    return Ok(seen);
                }
            } else if let Some(first) = self.take(installed, count).await? {
                return Ok(first);
            }
        }
    }

    /// Adds the requests of an epoch that wait, without those that were given up.
    fn admit(&self, epoch: u64, requests: &mut Vec<Request>) {
        let mut waiting = self.waiting.lock();
        let live = std::mem::take(&mut *waiting).into_iter().filter(|request| !request.reply.is_closed());
        let (admitted, others): (Vec<Request>, Vec<Request>) =
            live.partition(|request| request.epoch == epoch);
        *waiting = others;
        drop(waiting);
        requests.extend(admitted);
        if requests.len() > 1 {
            self.disturbed();
        }
    }
}

/// The right to be the only one of this process who changes a counter.
pub(crate) struct Turn<'a> {
    sequencer: &'a StoreSequencer,
    _turn: tokio::sync::MutexGuard<'a, ()>,
}

impl Turn<'_> {
    /// Returns the position that is given out next; `None` if another process has taken some, or if it cannot be learnt.
    pub(crate) async fn read(&self, epoch: u64) -> Option<u64> {
        let (_, now) = self.sequencer.look(epoch).await.ok()?;
        self.sequencer.is_undisturbed().then_some(now.tail)
    }

    /// As [`StoreSequencer::raise`], of a counter that was read as `from`.
    pub(crate) async fn raise(&self, epoch: u64, from: u64, to: u64) -> Result<Option<u64>, SequencerError> {
        let before = self.sequencer.raise(epoch, to).await?;
        if before != Some(from) {
            self.sequencer.disturbed();
        }
        Ok(before)
    }
}

impl Sequencer for StoreSequencer {
    fn next(&self, epoch: u64, count: u64) -> BoxFuture<'_, Result<u64, SequencerError>> {
        Box::pin(async move {
            loop {
                let (reply, mut answer) = oneshot::channel();
                self.waiting.lock().push(Request { epoch, count, reply });
                let turn = tokio::select! {
                    biased;
                    answered = &mut answer => match answered {
                        Ok(result) => return result,
                        // Whoever was about to take positions for this one was given up.
                        Err(_) => continue,
                    },
                    turn = self.turn.lock() => Some(turn),
                    // Turns save transactions, and are needed for nothing else.
                    () = tokio::time::sleep(TURN_TIME_MAX) => None,
                };
                match answer.try_recv() {
                    Ok(result) => return result,
                    Err(TryRecvError::Closed) => continue,
                    Err(TryRecvError::Empty) => {}
                }
                if turn.is_none() {
                    // Whoever has the turn may have this request, too, so it is made anew.
                    let (reply, other) = oneshot::channel();
                    answer = other;
                    self.waiting.lock().push(Request { epoch, count, reply });
                }
                self.take_for_all(epoch).await;
                drop(turn);
                if let Ok(result) = answer.try_recv() {
                    return result;
                }
            }
        })
    }

    fn read(&self, epoch: u64) -> BoxFuture<'_, Result<u64, SequencerError>> {
        Box::pin(async move { self.look(epoch).await.map(|(_, now)| now.tail) })
    }

    fn install(&self, epoch: u64, tail: u64) -> BoxFuture<'_, Result<(), SequencerError>> {
        Box::pin(async move {
            let to = Counter { epoch, tail };
            loop {
                let read = Transaction::new()
                    .read(ReadOp::Key { key: installed_key() })
                    .read(ReadOp::Key { key: replaced_key() });
                let Outcome::Done(done) = self.store.apply(&self.head, read).await? else {
                    return Err(self.nonsense());
                };
                let [Answer::Value(installed), Answer::Value(replaced)] = &done.answers[..] else {
                    return Err(self.nonsense());
                };
                for value in [installed, replaced].into_iter().flatten() {
                    let found = self.decode(Some(value))?;
                    if found.epoch >= epoch {
                        return Err(SequencerError::Epoch(Some(found.epoch)));
                    }
                }
                // Whoever takes positions in between is counted by the epoch before, and refused from here on.
                let is = |value: &Option<Bytes>| value.clone().map_or(Check::Absent, Check::Equal);
                let mut transaction = Transaction::new()
                    .guard(Guard::Key { key: installed_key(), check: is(installed) })
                    .guard(Guard::Key { key: replaced_key(), check: is(replaced) })
                    .change(WriteOp::SetKey { key: installed_key(), value: to.encode() });
                if replaced.is_some() {
                    transaction = transaction.change(WriteOp::RemoveKey { key: replaced_key() });
                }
                if installed.is_some() {
                    transaction = transaction.change(WriteOp::RemoveFork { fork: taken_fork() });
                }
                if let Outcome::Done(_) = self.store.apply(&self.head, transaction).await? {
                    *self.known.lock() = Known { installed: Some(to), seen: Some(to) };
                    return Ok(());
                }
            }
        })
    }
}

fn no_more_positions() -> SequencerError {
    StoreError::new(ErrorKind::OutOfSpace, "the log has no more positions").into()
}
