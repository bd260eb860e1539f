//! Giving out positions.
//!
//! A sequencer makes a log fast, and is never what makes it correct: entries are written once, so a position that was given out twice
//! costs the second writer another attempt and nothing else. (CORFU; Sevilla et al., *Malacology*, section 5.2.1.)

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use nacre_map::Random;
use nacre_object::{
    Answer, Check, ErrorKind, Found, Guard, Key, ObjectId, ObjectStore, Outcome, ReadOp, StoreError,
    Transaction, WriteOp,
};
use parking_lot::Mutex;

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
/// counter is now. The counter is as durable as the store makes all writes, before the positions are used.
#[derive(derive_more::Debug)]
#[debug("StoreSequencer")]
pub struct StoreSequencer {
    store: Arc<dyn ObjectStore>,
    head: ObjectId,
    /// The counter as it was seen last.
    seen: Mutex<Option<Counter>>,
    random: Random,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counter {
    epoch: u64,
    tail: u64,
}

impl Counter {
    /// Returns the bytes of the counter, which are compared as the epochs are.
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
        Self { store, head, seen: Mutex::new(None), random: Random::default() }
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
        *self.seen.lock() = Some(counter);
        if counter.epoch == epoch { Ok(counter) } else { Err(SequencerError::Epoch(Some(counter.epoch))) }
    }

    /// Replaces the counter if it is as expected; otherwise returns what it is.
    async fn replace(&self, from: Counter, to: Counter) -> Result<Result<(), Counter>, SequencerError> {
        let guard = Guard::Key { key: key(), check: Check::Equal(from.encode()) };
        let write = WriteOp::SetKey { key: key(), value: to.encode() };
        match self.store.apply(&self.head, Transaction::new().guard(guard).change(write)).await? {
            Outcome::Done(_) => {
                *self.seen.lock() = Some(to);
                Ok(Ok(()))
            }
            Outcome::Refused(refusal) => {
                let Found::Value(value) = refusal.found else { return Err(self.nonsense()) };
                let found = self.decode(value)?;
                *self.seen.lock() = Some(found);
                Ok(Err(found))
            }
        }
    }
}

impl Sequencer for StoreSequencer {
    fn next(&self, epoch: u64, count: u64) -> BoxFuture<'_, Result<u64, SequencerError>> {
        Box::pin(async move {
            let seen = *self.seen.lock();
            let mut counter = match seen.filter(|seen| seen.epoch == epoch) {
                Some(counter) => counter,
                None => self.counter(epoch).await?,
            };
            let mut losses = 0;
            loop {
                if counter.epoch != epoch {
                    return Err(SequencerError::Epoch(Some(counter.epoch)));
                }
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
                if losses > 3 {
                    let longest = std::time::Duration::from_micros(50 << losses.min(8));
                    tokio::time::sleep(self.random.part(longest)).await;
                    counter = self.counter(epoch).await?;
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
                    *self.seen.lock() = Some(to);
                    return Ok(());
                }
            }
        })
    }
}
