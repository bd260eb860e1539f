//! Giving out positions.
//!
//! A sequencer makes a log fast, and is never what makes it correct: entries are written once, so a position that was given out twice
//! costs the second writer another attempt and nothing else. (CORFU; Sevilla et al., *Malacology*, section 5.2.1.)

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use nacre_map::Random;
use nacre_object::{
    Answer, Check, ErrorKind, Found, Guard, Key, ObjectId, ObjectStore, Outcome, ReadOp, StoreError,
    Transaction, WriteOp,
};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

/// The number of changes of the counter, with nobody else's in between, after which a handle takes itself to append alone.
const UNDISTURBED_MIN: u32 = 4;
/// The number of transactions that others may spoil before the next one waits for a moment.
const LOSSES_WITHOUT_PAUSE: u32 = 8;
/// The time for which a request waits for its turn: who has it may be in a runtime that does not run at the moment.
const TURN_TIME_MAX: Duration = Duration::from_secs(5);

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

/// A sequencer that needs nothing but the store: a counter in an object, which is raised by conditional transactions.
///
/// A transaction's condition is the counter that the client saw last. If another client was faster, the refusal says what the
/// counter is now. The counter is as durable as the store makes all writes, before an append is acknowledged.
///
/// Requests of one process take turns: one transaction is on its way at a time, and takes positions for all requests that wait then. So
/// it may be refused for the sake of other processes only.
#[derive(derive_more::Debug)]
#[debug("StoreSequencer")]
pub struct StoreSequencer {
    store: Arc<dyn ObjectStore>,
    head: ObjectId,
    /// The greatest counter that was seen.
    seen: Mutex<Option<Counter>>,
    /// Requests that no transaction takes positions for yet.
    waiting: Mutex<Vec<Request>>,
    /// Locked by the request whose transaction is on its way.
    turn: tokio::sync::Mutex<()>,
    /// The number of changes of the counter since another client's, or since several requests waited at a time.
    undisturbed: AtomicU32,
    random: Random,
}

/// A request for positions.
struct Request {
    epoch: u64,
    count: u64,
    reply: oneshot::Sender<Result<u64, SequencerError>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Counter {
    epoch: u64,
    tail: u64,
}

impl Counter {
    /// Returns the bytes of the counter, which are compared as counters are.
    fn encode(self) -> Bytes {
        Bytes::from([self.epoch.to_be_bytes(), self.tail.to_be_bytes()].concat())
    }

    fn decode(value: &[u8]) -> Option<Counter> {
        let (epoch, tail) = value.split_first_chunk::<8>()?;
        Some(Counter { epoch: u64::from_be_bytes(*epoch), tail: u64::from_be_bytes(tail.try_into().ok()?) })
    }
}

fn key() -> Key {
    Key::new("sequencer").expect("the name is short and not empty")
}

impl StoreSequencer {
    /// Creates a handle on the sequencer in an object.
    pub fn new(store: Arc<dyn ObjectStore>, head: ObjectId) -> Self {
        Self {
            store,
            head,
            seen: Mutex::new(None),
            waiting: Mutex::default(),
            turn: tokio::sync::Mutex::new(()),
            undisturbed: AtomicU32::new(0),
            random: Random::default(),
        }
    }

    /// Replaces the source of pauses; without this, nobody can foresee them.
    pub fn with_random(self, random: Random) -> Self {
        Self { random, ..self }
    }

    fn decode(&self, value: Option<Bytes>) -> Result<Counter, SequencerError> {
        let Some(value) = value else { return Err(SequencerError::Epoch(None)) };
        Counter::decode(&value).ok_or_else(|| {
            let text = format!("key \"sequencer\" of object \"{}\" is not a sequencer's", self.head);
            StoreError::new(ErrorKind::Corrupt, text).into()
        })
    }

    fn nonsense(&self) -> SequencerError {
        let text =
            format!("the answer of the store about object \"{}\" does not fit the question", self.head);
        StoreError::new(ErrorKind::Corrupt, text).into()
    }

    async fn counter(&self, epoch: u64) -> Result<Counter, SequencerError> {
        let transaction = Transaction::new().read(ReadOp::Key { key: key() });
        let Outcome::Done(mut done) = self.store.apply(&self.head, transaction).await? else {
            return Err(self.nonsense());
        };
        let Some(Answer::Value(value)) = done.answers.pop() else { return Err(self.nonsense()) };
        let counter = self.decode(value)?;
        if self.saw(counter).is_some_and(|before| before < counter) {
            self.disturbed();
        }
        if counter.epoch == epoch { Ok(counter) } else { Err(SequencerError::Epoch(Some(counter.epoch))) }
    }

    /// Notes a counter, and returns the one that was seen before. An answer may be older than one that came before it.
    fn saw(&self, counter: Counter) -> Option<Counter> {
        let mut seen = self.seen.lock();
        let before = *seen;
        *seen = before.max(Some(counter));
        before
    }

    /// Notes that this is not the only one who takes positions.
    fn disturbed(&self) {
        self.undisturbed.store(0, Ordering::Relaxed);
    }

    fn is_undisturbed(&self) -> bool {
        self.undisturbed.load(Ordering::Relaxed) >= UNDISTURBED_MIN
    }

    /// Notes a change of the counter from what it was left at.
    fn changed(&self, to: Counter) {
        self.saw(to);
        let changes = self.undisturbed.load(Ordering::Relaxed);
        self.undisturbed.store(changes.saturating_add(1), Ordering::Relaxed);
    }

    /// Replaces the counter if it is as expected; otherwise returns what it is.
    async fn replace(&self, from: Counter, to: Counter) -> Result<Result<(), Counter>, SequencerError> {
        let guard = Guard::Key { key: key(), check: Check::Equal(from.encode()) };
        let write = WriteOp::SetKey { key: key(), value: to.encode() };
        match self.store.apply(&self.head, Transaction::new().guard(guard).change(write)).await? {
            Outcome::Done(_) => {
                self.changed(to);
                Ok(Ok(()))
            }
            Outcome::Refused(refusal) => {
                let Found::Value(value) = refusal.found else { return Err(self.nonsense()) };
                let found = self.decode(value)?;
                // Also if it is less: a store that does not make every write durable may have lost what was seen.
                *self.seen.lock() = Some(found);
                self.disturbed();
                Ok(Err(found))
            }
        }
    }

    /// Raises the counter of an epoch to a position, if it is less. Returns what it was; `None` if it was as great already. This may be
    /// repeated, and nothing but another epoch refuses it.
    ///
    /// # Errors
    /// As [`Sequencer::next`].
    pub(crate) async fn raise(&self, epoch: u64, tail: u64) -> Result<Option<u64>, SequencerError> {
        let to = Counter { epoch, tail };
        let guard = Guard::Key { key: key(), check: Check::Less(to.encode()) };
        let write = WriteOp::SetKey { key: key(), value: to.encode() };
        let transaction = Transaction::new().guard(guard).read(ReadOp::Key { key: key() }).change(write);
        let (value, raised) = match self.store.apply(&self.head, transaction).await? {
            Outcome::Done(mut done) => match done.answers.pop() {
                Some(Answer::Value(value)) => (value, true),
                _ => return Err(self.nonsense()),
            },
            Outcome::Refused(refusal) => match refusal.found {
                Found::Value(value) => (value, false),
                _ => return Err(self.nonsense()),
            },
        };
        let before = self.decode(value)?;
        self.saw(if raised { to } else { before });
        match before.epoch == epoch {
            true => Ok(raised.then_some(before.tail)),
            false => Err(SequencerError::Epoch(Some(before.epoch))),
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

    /// Returns the greatest position that this has seen the counter of an epoch at.
    pub(crate) fn seen(&self, epoch: u64) -> Option<u64> {
        self.seen.lock().filter(|seen| seen.epoch == epoch).map(|seen| seen.tail)
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
        self.admit(epoch, requests);
        let seen = *self.seen.lock();
        let mut counter = match seen.filter(|seen| seen.epoch == epoch) {
            Some(counter) => counter,
            None => self.counter(epoch).await?,
        };
        let mut losses: u32 = 0;
        loop {
            if counter.epoch != epoch {
                return Err(SequencerError::Epoch(Some(counter.epoch)));
            }
            // Also those that have come since the last attempt: it is only now that positions are taken.
            self.admit(epoch, requests);
            if requests.is_empty() {
                return Ok(counter.tail);
            }
            let count = requests.iter().fold(0, |sum: u64, request| sum.saturating_add(request.count));
            let Some(tail) = counter.tail.checked_add(count) else {
                let text = "the log has no more positions";
                return Err(StoreError::new(ErrorKind::OutOfSpace, text).into());
            };
            match self.replace(counter, Counter { epoch, tail }).await? {
                Ok(()) => return Ok(counter.tail),
                Err(found) => counter = found,
            }
            // Somebody is first each time, so all together go on; those who lose again and again come apart.
            losses += 1;
            if losses > LOSSES_WITHOUT_PAUSE {
                let longest = Duration::from_micros(100 << (losses - LOSSES_WITHOUT_PAUSE).min(5));
                tokio::time::sleep(self.random.part(longest)).await;
                counter = self.counter(epoch).await?;
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
        let counter = self.sequencer.counter(epoch).await.ok()?;
        self.sequencer.is_undisturbed().then_some(counter.tail)
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
        Box::pin(async move { Ok(self.counter(epoch).await?.tail) })
    }

    fn install(&self, epoch: u64, tail: u64) -> BoxFuture<'_, Result<(), SequencerError>> {
        Box::pin(async move {
            let to = Counter { epoch, tail };
            loop {
                let read = Transaction::new().read(ReadOp::Key { key: key() });
                let Outcome::Done(mut done) = self.store.apply(&self.head, read).await? else {
                    return Err(self.nonsense());
                };
                let Some(Answer::Value(value)) = done.answers.pop() else { return Err(self.nonsense()) };
                let check = match value {
                    None => Check::Absent,
                    Some(value) => {
                        let found = self.decode(Some(value.clone()))?;
                        if found.epoch >= epoch {
                            return Err(SequencerError::Epoch(Some(found.epoch)));
                        }
                        Check::Equal(value)
                    }
                };
                let guard = Guard::Key { key: key(), check };
                let write = WriteOp::SetKey { key: key(), value: to.encode() };
                if let Outcome::Done(_) =
                    self.store.apply(&self.head, Transaction::new().guard(guard).change(write)).await?
                {
                    self.saw(to);
                    return Ok(());
                }
            }
        })
    }
}
