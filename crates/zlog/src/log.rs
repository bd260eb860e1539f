//! The handle on a log, and what all its parts share.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join;
use nacre_map::{ClusterMap, Proposer, Random};
use nacre_object::{ErrorKind, Escaped, ObjectId, ObjectStore, Outcome, StoreError, Transaction};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::append::Appender;
use crate::directory::Directory;
use crate::entry::{Entry, Index, Slot};
use crate::error::LogError;
use crate::follow::{FollowOptions, Follower};
use crate::layout::{self, LogId, View};
use crate::limit::{BATCH_ENTRIES_MAX, FILL_AFTER, PATIENCE, RECOVER_AFTER};
use crate::read::{Guess, Located};
use crate::sequencer::{Sequencer, SequencerError, StoreSequencer};
use crate::state::{CachedViews, Shape, map_name, read_views};
use crate::stripe::{Stripe, StripeError};

/// The settings of a handle.
#[derive(Clone, derive_more::Debug)]
pub struct Options {
    /// True if the handle must change nothing: then it neither fills holes nor recovers the log, and waits until others do.
    pub read_only: bool,
    /// The time for which a reader waits for an entry whose position was given out, before it fills the position.
    pub fill_after: Duration,
    /// The time for which a store that does not answer is tried again.
    pub patience: Duration,
    /// The sequencer; `None` for that in the store.
    #[debug(skip)]
    pub sequencer: Option<Arc<dyn Sequencer>>,
    /// The source of pauses and ids. With one that was seeded, a test on a clock of its own can be repeated.
    pub random: Random,
}

impl Default for Options {
    fn default() -> Self {
        let (read_only, sequencer, random) = (false, None, Random::default());
        Self { read_only, fill_after: FILL_AFTER, patience: PATIENCE, sequencer, random }
    }
}

/// A handle on a log. Cheap to clone; all clones append in one order.
///
/// It needs a tokio runtime with a clock around its calls.
#[derive(Clone, derive_more::Debug)]
#[debug("Log")]
pub struct Log {
    pub(crate) inner: Arc<Inner>,
    appender: Appender,
}

/// The state that all parts of a handle share.
pub(crate) struct Inner {
    pub store: Arc<dyn ObjectStore>,
    pub name: String,
    pub id: LogId,
    pub options: Options,
    pub sequencer: Arc<dyn Sequencer>,
    /// The sequencer, if it is the counter in the store.
    pub counter: Option<Arc<StoreSequencer>>,
    pub map: ClusterMap,
    pub proposer: Proposer,
    pub known: Mutex<Arc<CachedViews>>,
    refreshing: tokio::sync::Mutex<()>,
    /// The bytes that are asked for in advance: where one entry is read, and where many are.
    pub read_guess: Guess,
    pub scan_guess: Guess,
    pub located: Located,
}

/// The result of a recovery, or of a change of view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The log's epoch since.
    pub epoch: u64,
    /// The first position that is given out since.
    pub tail: u64,
    /// The number of objects that were sealed.
    pub sealed: u32,
}

/// Positions of a range, without the entries of other tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tagged {
    /// The positions in ascending order, each with what is there.
    pub slots: Vec<(u64, Slot)>,
    /// The first position that was not looked at: the beginning of the next range.
    pub next: u64,
}

/// A log at a glance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// The log's name when it was opened.
    pub name: String,
    /// Its identity.
    pub id: LogId,
    /// Its epoch.
    pub epoch: u64,
    /// The first position that is not trimmed with all before it.
    pub begin: u64,
    /// The position that is given out next.
    pub tail: u64,
    /// Its views.
    pub views: Vec<View>,
    /// True if a recovery is under way that gives positions out from `tail` on, and has not published its epoch yet. If its client
    /// has died, the next one that appends completes it.
    pub recovering: bool,
}

impl Log {
    /// Opens a log. A store that does not answer is tried again for [`Options::patience`].
    ///
    /// # Errors
    /// [`LogError::Missing`] if there is none of that name, and those of the store.
    pub async fn open(store: Arc<dyn ObjectStore>, name: &str, options: Options) -> Result<Log, LogError> {
        let (patience, random) = (options.patience, options.random.clone());
        let directory = Directory::new(store.clone())?.with_random(random.clone()).with_patience(patience);
        let listed = directory.find(name).await?;
        let id = listed.id;
        let map = ClusterMap::new(store.clone(), &map_name(id))?.with_random(random.clone());
        let views = read_views_patiently(&map, name, RetryBudget::new(patience, random)).await?;
        let known = Mutex::new(Arc::new(views));
        let (sequencer, counter): (Arc<dyn Sequencer>, _) = match &options.sequencer {
            Some(sequencer) => (sequencer.clone(), None),
            None => {
                let counter = Arc::new(StoreSequencer::new(store.clone(), layout::head(id)?));
                let sequencer: Arc<dyn Sequencer> = counter.clone();
                (sequencer, Some(counter))
            }
        };
        let proposer = map.proposer(Default::default());
        let inner = Arc::new(Inner {
            store,
            name: listed.name,
            id,
            options,
            sequencer,
            counter,
            map,
            proposer,
            known,
            refreshing: Default::default(),
            read_guess: Guess::default(),
            scan_guess: Guess::default(),
            located: Located::default(),
        });
        Ok(Log { appender: Appender::new(inner.clone()), inner })
    }

    /// Returns the name that the log had when it was opened.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the log's identity.
    pub fn id(&self) -> LogId {
        self.inner.id
    }

    /// Returns the shape of the view that entries are appended to, as far as this handle knows.
    pub fn shape(&self) -> Shape {
        let known = self.inner.known();
        let view = known.views.last();
        Shape { width: view.width, unit: view.unit }
    }

    /// Returns what appends for this handle and its clones.
    pub fn appender(&self) -> &Appender {
        &self.appender
    }

    /// Returns a handle that appends in an order of its own, beside this one.
    pub fn apart(&self) -> Log {
        Log { appender: Appender::new(self.inner.clone()), inner: self.inner.clone() }
    }

    /// Appends an entry, and returns its position once it is as durable as the store makes it.
    ///
    /// # Errors
    /// As [`Appender::append`].
    pub async fn append(&self, entry: Entry) -> Result<u64, LogError> {
        self.appender.append(entry).await
    }

    /// Returns what is at a position.
    ///
    /// # Errors
    /// Those of the store; [`LogError::Missing`] if the log was deleted.
    pub async fn read(&self, position: u64) -> Result<Slot, LogError> {
        self.inner.read(position).await
    }

    /// Returns what is at the positions from `from` to before `to`, in their order: as many as fit into some megabytes, and at
    /// least one, unless the range is empty.
    ///
    /// # Errors
    /// As [`Log::read`].
    pub async fn read_range(&self, from: u64, to: u64) -> Result<Vec<(u64, Slot)>, LogError> {
        if from >= to {
            return Ok(Vec::new());
        }
        let slots = self.inner.scan(from, to, None, false).await?.slots;
        Ok(slots.into_iter().filter_map(|(position, slot)| Some((position, slot?))).collect())
    }

    /// Returns what is at the positions from `from` to before `to` as [`Log::read_range`] does, but for entries without the tag:
    /// these are left out, and their content is not read.
    ///
    /// # Errors
    /// As [`Log::read`].
    pub async fn read_tagged(&self, tag: impl Into<Bytes>, from: u64, to: u64) -> Result<Tagged, LogError> {
        if from >= to {
            return Ok(Tagged { slots: Vec::new(), next: from });
        }
        let slots = self.inner.scan(from, to, Some(&tag.into()), false).await?.slots;
        let next = slots.last().map_or(from, |(position, _)| position + 1);
        let slots = slots.into_iter().filter_map(|(position, slot)| Some((position, slot?)));
        Ok(Tagged { slots: slots.collect(), next })
    }

    /// Returns the position that is given out next. Entries before it may still be on their way. A recovery of the log may bring it
    /// back to the end of what was written; nothing else makes it less. Whatever was read before this was called is before it.
    ///
    /// # Errors
    /// As [`Log::read`].
    pub async fn tail(&self) -> Result<u64, LogError> {
        self.inner.tail().await
    }

    /// Returns the first position that is not trimmed with all before it.
    ///
    /// # Errors
    /// As [`Log::read`].
    pub async fn begin(&self) -> Result<u64, LogError> {
        self.inner.begin().await
    }

    /// Fills a position to which nothing was written, so that nothing ever will be. Returns what is there then.
    ///
    /// # Errors
    /// [`LogError::Invalid`] if the position was not given out yet, and as [`Log::read`].
    pub async fn fill(&self, position: u64) -> Result<Slot, LogError> {
        self.inner.may_write()?;
        self.given_out(position).await?;
        loop {
            match self.inner.read(position).await? {
                Slot::Unwritten => self.inner.fill(position, position + 1).await?,
                slot => return Ok(slot),
            }
        }
    }

    /// Trims a position: its entry is gone, and its space is given back.
    ///
    /// # Errors
    /// As [`Log::fill`].
    pub async fn trim(&self, position: u64) -> Result<(), LogError> {
        self.inner.may_write()?;
        self.given_out(position).await?;
        self.inner.trim(position).await
    }

    /// Trims all positions before one: their entries are gone, and their space is given back. Views that end before it are removed
    /// with their objects.
    ///
    /// # Errors
    /// [`LogError::Invalid`] if the position is beyond the tail, and as [`Log::read`].
    pub async fn trim_prefix(&self, before: u64) -> Result<(), LogError> {
        self.inner.may_write()?;
        if let Some(last) = before.checked_sub(1) {
            self.given_out(last).await?;
            // A position that was given out and not used may be given out again by a recovery. From the moment on that the last one
            // is marked, no recovery does so: otherwise what is appended there would be taken for trimmed.
            self.inner.trim(last).await?;
            self.given_out(last).await?;
        }
        self.inner.trim_prefix(before).await
    }

    async fn given_out(&self, position: u64) -> Result<(), LogError> {
        let tail = self.inner.tail().await?;
        if position < tail {
            return Ok(());
        }
        Err(LogError::Invalid(format!(
            "position {position} was not given out yet: the log ends before {tail}"
        )))
    }

    /// Follows the log from a position on.
    pub fn follow(&self, from: u64, options: FollowOptions) -> Follower {
        Follower::new(self.inner.clone(), from, options)
    }

    /// Returns the log at a glance. Waits for no recovery.
    ///
    /// # Errors
    /// As [`Log::read`].
    pub async fn info(&self) -> Result<Info, LogError> {
        let inner = &self.inner;
        let begin = inner.begin().await?;
        let mut patience = inner.patience();
        let (mut known, mut unpublished) = (inner.known(), None);
        let tail = loop {
            let epoch = unpublished.unwrap_or(known.views.epoch());
            match inner.sequencer.read(epoch).await {
                Ok(tail) => break tail,
                Err(SequencerError::Epoch(found)) => {
                    let is_later = found.is_some_and(|found| found > epoch);
                    if is_later && inner.views().await?.version == known.version {
                        unpublished = found;
                    } else {
                        inner.refresh(&known, found).await?;
                        (known, unpublished) = (inner.known(), None);
                    }
                }
                Err(SequencerError::Store(error)) => patience.wait(error).await?,
            }
        };
        let (name, id, views) = (inner.name.clone(), inner.id, &known.views);
        let (epoch, recovering) = (views.epoch(), unpublished.is_some());
        Ok(Info { name, id, epoch, begin, tail, views: views.views.clone(), recovering })
    }

    /// Recovers the log: seals its objects with a new epoch, finds out the tail, and makes the sequencer go on from there. Entries
    /// that were appended stay where they are; writers and readers under way go on with the new epoch.
    ///
    /// # Errors
    /// [`LogError::Corrupt`] if an object of the log is missing, and as [`Log::read`].
    pub async fn seal(&self) -> Result<Recovered, LogError> {
        self.inner.may_write()?;
        self.inner.recover(None, None).await
    }

    /// Changes the view: what is appended from now on is spread over new objects, as many as the shape says. Appends go on
    /// meanwhile.
    ///
    /// # Errors
    /// As [`Log::seal`].
    pub async fn reshape(&self, shape: Shape) -> Result<Recovered, LogError> {
        self.inner.may_write()?;
        shape.check()?;
        self.inner.recover(Some(shape), None).await
    }
}

impl Inner {
    pub fn known(&self) -> Arc<CachedViews> {
        self.known.lock().clone()
    }

    pub fn may_write(&self) -> Result<(), LogError> {
        if self.options.read_only { Err(LogError::ReadOnly) } else { Ok(()) }
    }

    /// Returns the attempts of one request.
    pub fn patience(&self) -> RetryBudget {
        RetryBudget::new(self.options.patience, self.options.random.clone())
    }

    pub fn object(&self, view: &View, index: u32) -> Result<ObjectId, LogError> {
        Ok(layout::object(self.id, view, index)?)
    }

    pub fn stripe<'a>(&'a self, object: &'a ObjectId, view: &View) -> Stripe<'a> {
        Stripe { store: &*self.store, object, epoch: view.epoch, closed: view.closed }
    }

    /// Takes notice that a request of what was known then was refused. Returns when something else is known.
    ///
    /// The objects of a log whose recovery is under way have an epoch that nobody was told. Whoever waits for the end of it for
    /// too long recovers the log, because the other one may have died.
    pub async fn refresh(&self, refused: &Arc<CachedViews>, found: Option<u64>) -> Result<(), LogError> {
        let _turn = self.refreshing.lock().await;
        let begun = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            if self.known().version != refused.version {
                return Ok(());
            }
            let now = self.views().await?;
            if now.version != refused.version {
                *self.known.lock() = Arc::new(now);
                return Ok(());
            }
            let waited = begun.elapsed();
            if waited >= self.options.patience.max(RECOVER_AFTER * 2) {
                let text = match found {
                    Some(found) => format!("its objects are at epoch {found}, and its views are not"),
                    None => "an object is missing; if the log was to be deleted, delete it again".to_owned(),
                };
                return Err(LogError::Corrupt(text));
            }
            if waited >= RECOVER_AFTER && !self.options.read_only && found.is_some() {
                tracing::warn!(log = self.name, ?found, "no client has completed the recovery of the log");
                self.recover(None, Some(refused.version)).await?;
                continue;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// Takes notice of the failure of a request of what was known then. Returns when it is to be made again.
    pub async fn again(
        &self,
        known: &Arc<CachedViews>,
        error: StripeError,
        patience: &mut RetryBudget,
    ) -> Result<(), LogError> {
        match error {
            StripeError::Epoch(found) => self.refresh(known, found).await,
            StripeError::Store(error) => patience.wait(error).await,
        }
    }

    /// Reads the views, as long as it takes.
    pub async fn views(&self) -> Result<CachedViews, LogError> {
        read_views_patiently(&self.map, &self.name, self.patience()).await
    }

    /// Applies a transaction that may be applied twice, as long as it takes.
    pub async fn apply(&self, object: &ObjectId, transaction: Transaction) -> Result<Outcome, LogError> {
        let mut patience = self.patience();
        loop {
            match self.store.apply(object, transaction.clone()).await {
                Ok(outcome) => return Ok(outcome),
                Err(error) => patience.wait(error).await?,
            }
        }
    }

    pub async fn tail(&self) -> Result<u64, LogError> {
        let mut patience = self.patience();
        // The position up to which entries were found that the counter did not count.
        let mut uncounted = 0;
        loop {
            let known = self.known();
            let epoch = known.views.epoch();
            // The counter is most often as it was: then what is there is known at the same time.
            let guess = self.counter.as_ref().and_then(|counter| counter.seen(epoch));
            let guessed = async {
                match guess {
                    Some(guess) => Some(self.written_from(&known, guess).await),
                    None => None,
                }
            };
            let (read, guessed) = join(self.sequencer.read(epoch), guessed).await;
            let tail = match read {
                Ok(tail) => tail.max(uncounted),
                Err(SequencerError::Epoch(found)) => {
                    self.refresh(&known, found).await?;
                    continue;
                }
                Err(SequencerError::Store(error)) => {
                    patience.wait(error).await?;
                    continue;
                }
            };
            let Some(counter) = &self.counter else { return Ok(tail) };
            let written = match guessed {
                Some(written) if guess == Some(tail) => written,
                _ => self.written_from(&known, tail).await,
            };
            uncounted = match written {
                Ok(end) if end == tail => return Ok(tail),
                Ok(end) => end,
                Err(error) => {
                    self.again(&known, error, &mut patience).await?;
                    continue;
                }
            };
            if !self.options.read_only {
                match counter.raise(epoch, uncounted).await {
                    Ok(_) => {}
                    Err(SequencerError::Epoch(found)) => self.refresh(&known, found).await?,
                    Err(SequencerError::Store(error)) => patience.wait(error).await?,
                }
            }
        }
    }

    /// Returns the end of the positions from one on to which something was written, as far as they are in one object. An entry that is
    /// written while the counter is raised may be there before the counter says so, also for ever, if its writer has died: a reader that
    /// has seen it must not be told an earlier end of the log.
    async fn written_from(&self, known: &CachedViews, position: u64) -> Result<u64, StripeError> {
        let view = known.views.last();
        if !(view.start..view.positions_end()).contains(&position) {
            return Ok(position);
        }
        let (index, place) = view.locate(position);
        let object = layout::object(self.id, view, index)?;
        let stripe = self.stripe(&object, view);
        if stripe.read(place, 1, 0).await?.entries.first().is_none_or(|index| *index == Index::Nothing) {
            return Ok(position);
        }
        let room = view.together(position).min(view.positions_end() - position);
        let indices = stripe.read(place, room.min(BATCH_ENTRIES_MAX as u64), 0).await?.entries;
        let written = indices.iter().take_while(|index| **index != Index::Nothing).count();
        Ok(position + written as u64)
    }

    pub fn nonsense(&self) -> LogError {
        let text =
            format!("log \"{}\": the store's answer does not fit the question", Escaped::of(&self.name));
        StoreError::new(ErrorKind::Corrupt, text).into()
    }
}

/// Reads the views of a log, as long as it takes.
async fn read_views_patiently(
    map: &ClusterMap,
    name: &str,
    mut patience: RetryBudget,
) -> Result<CachedViews, LogError> {
    loop {
        match read_views(map, name).await {
            Err(LogError::Store(error)) => patience.wait(error).await?,
            result => return result,
        }
    }
}

/// The attempts at a store that does not answer.
pub(crate) struct RetryBudget {
    patience: Duration,
    since: Option<Instant>,
    pause: Duration,
    random: Random,
}

impl RetryBudget {
    pub fn new(patience: Duration, random: Random) -> Self {
        Self { patience, since: None, pause: Duration::from_millis(2), random }
    }

    /// Waits before the next attempt.
    ///
    /// # Errors
    /// The failure itself, if waiting does not heal it or has lasted for too long.
    pub async fn wait(&mut self, mut error: StoreError) -> Result<(), LogError> {
        let since = *self.since.get_or_insert_with(Instant::now);
        let heals = error.is_retryable() || error.kind == ErrorKind::Unknown;
        if !heals {
            return Err(error.into());
        }
        if since.elapsed() >= self.patience {
            error.message.push_str(&format!(" (tried for {:?})", self.patience));
            return Err(error.into());
        }
        tokio::time::sleep(self.pause / 2 + self.random.part(self.pause / 2)).await;
        self.pause = (self.pause * 2).min(Duration::from_millis(200));
        Ok(())
    }
}
