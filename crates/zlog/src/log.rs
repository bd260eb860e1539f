//! The handle on a log: reading, filling, trimming, and its recovery.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{join_all, try_join_all};
use nacre_map::{Map, Proposer, Update};
use nacre_object::{
    Answer, ByteRange, Check, ErrorKind, Guard, ObjectId, ObjectStore, Outcome, Read, StoreError,
    Transaction, Write,
};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::append::Appender;
use crate::directory::{Directory, WHO, begin_key, create_objects, sequencer_error};
use crate::entry::{Entry, Index, Slot, signature};
use crate::error::LogError;
use crate::follow::{FollowOptions, Follower};
use crate::layout::{self, LogId, View};
use crate::limit::{BATCH_ENTRIES_MAX, FILL_AFTER, PATIENCE, RECOVER_AFTER};
use crate::sequencer::{Sequencer, SequencerError, StoreSequencer};
use crate::state::{Known, Proposed, Shape, Views, map_name, propose, read_views, views_entry};
use crate::stripe::{Indices, Stripe, StripeError, Written, is_whole};

/// The number of attempts at a recovery that others may spoil.
const RECOVERIES_MAX: u32 = 50;
/// The bytes of entries that one read returns at most, unless a single entry has more.
const READ_BYTES_MAX: u64 = 4 << 20;
/// The number of ranges that one request asks for at most.
const RANGES_MAX: usize = 1024;
/// The bytes that a read of one entry guesses at least, and at most.
const GUESS_BYTES: std::ops::RangeInclusive<u64> = 256..=(64 << 10);

/// The settings of a handle.
#[derive(Clone)]
pub struct Options {
    /// True if the handle must change nothing: then it neither fills holes nor recovers the log, and waits until others do.
    pub read_only: bool,
    /// The time for which a reader waits for an entry whose position was given out, before it fills the position.
    pub fill_after: Duration,
    /// The time for which a store that does not answer is tried again.
    pub patience: Duration,
    /// The sequencer; `None` for that in the store.
    pub sequencer: Option<Arc<dyn Sequencer>>,
}

impl Default for Options {
    fn default() -> Self {
        Self { read_only: false, fill_after: FILL_AFTER, patience: PATIENCE, sequencer: None }
    }
}

/// A handle on a log. Cheap to clone; all clones append in one order.
///
/// It needs a tokio runtime with a clock around its calls.
#[derive(Clone)]
pub struct Log {
    pub(crate) inner: Arc<Inner>,
    appender: Appender,
}

/// What all parts of a handle share.
pub(crate) struct Inner {
    pub store: Arc<dyn ObjectStore>,
    name: String,
    id: LogId,
    pub options: Options,
    pub sequencer: Arc<dyn Sequencer>,
    map: Map,
    proposer: Proposer,
    known: Mutex<Arc<Known>>,
    refreshing: tokio::sync::Mutex<()>,
    /// The bytes that the record of an entry is guessed to have.
    guess: AtomicU64,
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
}

/// Positions as they were read.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// Positions with what is there, in ascending order without gaps; `None` for an entry that was not selected.
    pub slots: Vec<(u64, Option<Slot>)>,
}

impl Log {
    /// Opens a log.
    ///
    /// # Errors
    /// [`LogError::Missing`] if there is none of that name, and those of the store.
    pub async fn open(store: Arc<dyn ObjectStore>, name: &str, options: Options) -> Result<Log, LogError> {
        let listed = Directory::new(store.clone())?.find(name).await?;
        let id = listed.id;
        let map = Map::new(store.clone(), &map_name(id))?;
        let known = Mutex::new(Arc::new(read_views(&map, name).await?));
        let sequencer = match &options.sequencer {
            Some(sequencer) => sequencer.clone(),
            None => Arc::new(StoreSequencer::new(store.clone(), layout::head(id)?)),
        };
        let proposer = map.proposer(Default::default());
        let (name, refreshing, guess) = (listed.name, Default::default(), AtomicU64::new(4096));
        let inner =
            Arc::new(Inner { store, name, id, options, sequencer, map, proposer, known, refreshing, guess });
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
        let slots = self.inner.scan(from, to, None).await?.slots;
        Ok(slots.into_iter().filter_map(|(position, slot)| Some((position, slot?))).collect())
    }

    /// Returns the position that is given out next. Entries before it may still be on their way.
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
        if before > 0 {
            self.given_out(before - 1).await?;
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

    /// Returns the log at a glance.
    ///
    /// # Errors
    /// As [`Log::read`].
    pub async fn info(&self) -> Result<Info, LogError> {
        let (begin, tail) = (self.inner.begin().await?, self.inner.tail().await?);
        let known = self.inner.known();
        let (name, id) = (self.inner.name.clone(), self.inner.id);
        Ok(Info { name, id, epoch: known.views.epoch(), begin, tail, views: known.views.views.clone() })
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
    pub fn known(&self) -> Arc<Known> {
        self.known.lock().clone()
    }

    pub fn may_write(&self) -> Result<(), LogError> {
        if self.options.read_only { Err(LogError::ReadOnly) } else { Ok(()) }
    }

    pub fn object(&self, view: &View, index: u32) -> Result<ObjectId, LogError> {
        Ok(layout::object(self.id, view, index)?)
    }

    fn stripe<'a>(&'a self, object: &'a ObjectId, epoch: u64) -> Stripe<'a> {
        Stripe { store: &*self.store, object, epoch }
    }

    /// Takes notice that a request of what was known then was refused. Returns when something else is known.
    ///
    /// The objects of a log whose recovery is under way have an epoch that nobody was told. Whoever waits for the end of it for
    /// too long recovers the log, because the other one may have died.
    pub async fn refresh(&self, refused: &Arc<Known>, found: Option<u64>) -> Result<(), LogError> {
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
                tracing::warn!(log = self.name, ?found, "nobody completes the recovery of the log");
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
        known: &Arc<Known>,
        error: StripeError,
        patience: &mut Patience,
    ) -> Result<(), LogError> {
        match error {
            StripeError::Epoch(found) => self.refresh(known, found).await,
            StripeError::Store(error) => patience.wait(error).await,
        }
    }

    /// Reads the views, as long as it takes.
    async fn views(&self) -> Result<Known, LogError> {
        let mut patience = Patience::new(self.options.patience);
        loop {
            match read_views(&self.map, &self.name).await {
                Err(LogError::Store(error)) => patience.wait(error).await?,
                result => return result,
            }
        }
    }

    /// Applies a transaction that may be applied twice, as long as it takes.
    async fn apply(&self, object: &ObjectId, transaction: Transaction) -> Result<Outcome, LogError> {
        let mut patience = Patience::new(self.options.patience);
        loop {
            match self.store.apply(object, transaction.clone()).await {
                Ok(outcome) => return Ok(outcome),
                Err(error) => patience.wait(error).await?,
            }
        }
    }

    pub async fn read(&self, position: u64) -> Result<Slot, LogError> {
        let guess = self.guess.load(Ordering::Relaxed);
        let mut patience = Patience::new(self.options.patience);
        loop {
            let known = self.known();
            let Some((view, _)) = known.views.find(position) else { return Ok(Slot::Trimmed) };
            let (index, place) = view.locate(position);
            let object = self.object(view, index)?;
            match self.read_place(self.stripe(&object, view.epoch), place, guess).await {
                Ok(slot) => return Ok(slot),
                Err(error) => self.again(&known, error, &mut patience).await?,
            }
        }
    }

    async fn read_place(&self, stripe: Stripe<'_>, place: u64, guess: u64) -> Result<Slot, StripeError> {
        let Indices { entries, data, .. } = stripe.read(place, 1, guess).await?;
        let locator = match entries.first() {
            Some(Index::Entry(locator)) => locator,
            Some(Index::Filled) => return Ok(Slot::Filled),
            Some(Index::Trimmed) => return Ok(Slot::Trimmed),
            Some(Index::Nothing) | None => return Ok(Slot::Unwritten),
        };
        let range = ByteRange::new(locator.begins(place), u64::from(locator.length));
        // The guess may have been right: an entry that is the first of its packet is where its place says.
        let within = locator.offset as usize..locator.offset as usize + locator.length as usize;
        let guessed = data.filter(|data| {
            locator.distance == 0 && within.end <= data.data.len() && is_whole(&data.extents, range)
        });
        let record = match guessed {
            Some(data) => Some(data.data.slice(within)),
            None => {
                let wanted = u64::from(locator.length) + 64;
                self.guess.store(wanted.clamp(*GUESS_BYTES.start(), *GUESS_BYTES.end()), Ordering::Relaxed);
                stripe.read_data(&[range]).await?.pop().flatten()
            }
        };
        match record {
            Some(record) => Entry::get(&record).map(Slot::Entry).ok_or_else(|| stripe.damaged(place)),
            // Entries are never changed but by trimming.
            None => Ok(Slot::Trimmed),
        }
    }

    /// Reads positions from `from` on, before `to`: at least one, which is not to be an empty range.
    ///
    /// With a tag, entries whose signature says that they do not have it are left out, and are not read.
    pub async fn scan(&self, from: u64, to: u64, tag: Option<&Bytes>) -> Result<Scan, LogError> {
        let mut patience = Patience::new(self.options.patience);
        loop {
            let known = self.known();
            let Some((view, end)) = known.views.find(from) else {
                // All before the first view was trimmed.
                let end = known.views.start().min(to).min(from + BATCH_ENTRIES_MAX as u64);
                let slots = (from..end).map(|position| (position, Some(Slot::Trimmed))).collect();
                return Ok(Scan { slots });
            };
            let to = to.min(end).min(from.saturating_add(BATCH_ENTRIES_MAX as u64));
            match self.scan_view(view, from, to, tag).await {
                Ok(scan) => return Ok(scan),
                Err(error) => self.again(&known, error, &mut patience).await?,
            }
        }
    }

    async fn scan_view(
        &self,
        view: &View,
        from: u64,
        to: u64,
        tag: Option<&Bytes>,
    ) -> Result<Scan, StripeError> {
        let parts: Vec<_> = view.parts(from, to).collect();
        let objects: Vec<ObjectId> =
            parts.iter().map(|part| layout::object(self.id, view, part.object)).collect::<Result<_, _>>()?;
        let reads = parts
            .iter()
            .zip(&objects)
            .map(|(part, object)| self.stripe(object, view.epoch).read(part.place, part.count, 0));
        let indices = try_join_all(reads).await?;
        // The index of each position, with the part that it is of and its place there; as far as all answers go.
        let mut found = vec![None; (to - from) as usize];
        for (number, (part, indices)) in parts.iter().zip(&indices).enumerate() {
            for (place, index) in (part.place..).zip(&indices.entries) {
                let position =
                    view.position(part.object, place).filter(|position| (from..to).contains(position));
                if let Some(position) = position {
                    found[(position - from) as usize] = Some((number, place, *index));
                }
            }
        }
        let wanted = tag.map(|tag| signature(std::slice::from_ref(tag)));
        let is_wanted = |found: u32| wanted.is_none_or(|wanted| found & wanted == wanted);
        let mut ranges: Vec<Vec<ByteRange>> = vec![Vec::new(); parts.len()];
        let mut slots = Vec::new();
        // The entries that are read: the index in `slots`, and where in which answer the record is.
        let mut records: Vec<(usize, usize, usize, ByteRange)> = Vec::new();
        let mut bytes = 0;
        for (position, found) in (from..to).zip(found) {
            let Some((number, place, index)) = found else { break };
            let slot = match index {
                Index::Nothing => Some(Slot::Unwritten),
                Index::Filled => Some(Slot::Filled),
                Index::Trimmed => Some(Slot::Trimmed),
                Index::Entry(locator) if is_wanted(locator.signature) => {
                    let range = ByteRange::new(locator.begins(place), u64::from(locator.length));
                    bytes += range.len;
                    let full = ranges[number].len() >= RANGES_MAX || bytes > READ_BYTES_MAX;
                    if full && !records.is_empty() {
                        break;
                    }
                    // Records that follow each other are read in one piece.
                    match ranges[number].last_mut() {
                        Some(last) if last.end() == range.offset => last.len += range.len,
                        _ => ranges[number].push(range),
                    }
                    records.push((slots.len(), number, ranges[number].len() - 1, range));
                    None
                }
                Index::Entry(_) => None,
            };
            slots.push((position, slot));
        }
        let reads = ranges.iter().zip(&objects).map(|(ranges, object)| async move {
            match ranges.is_empty() {
                true => Ok(Vec::new()),
                false => self.stripe(object, view.epoch).read_data(ranges).await,
            }
        });
        let data = try_join_all(reads).await?;
        for (slot, number, at, range) in records {
            let slot = &mut slots[slot];
            let piece = data[number].get(at);
            let record = match piece {
                Some(Some(piece)) => {
                    let begin = (range.offset - ranges[number][at].offset) as usize;
                    Some(piece.slice(begin..begin + range.len as usize))
                }
                // Something of the piece was trimmed, or the answer was cut: the record is read by itself.
                Some(None) | None => {
                    let object = &objects[number];
                    self.stripe(object, view.epoch).read_data(&[range]).await?.pop().flatten()
                }
            };
            slot.1 = match record.map(|record| Entry::get(&record)) {
                None => Some(Slot::Trimmed),
                Some(Some(entry)) if tag.is_some_and(|tag| !entry.tags.contains(tag)) => None,
                Some(Some(entry)) => Some(Slot::Entry(entry)),
                Some(None) => {
                    let (object, place) = (&objects[number], view.locate(slot.0).1);
                    return Err(self.stripe(object, view.epoch).damaged(place));
                }
            };
        }
        Ok(Scan { slots })
    }

    /// Returns the first position of the view of a position that nothing was written to, nor to any after it.
    pub async fn written_end(&self, position: u64) -> Result<u64, LogError> {
        let mut patience = Patience::new(self.options.patience);
        loop {
            let known = self.known();
            let Some((view, end)) = known.views.find(position) else { return Ok(known.views.start()) };
            if end < u64::MAX {
                return Ok(end);
            }
            let ends = (0..view.width).map(|index| async move {
                let object = layout::object(self.id, view, index)?;
                let end = self.stripe(&object, view.epoch).end().await?;
                Ok(last_position(view, index, end))
            });
            match try_join_all(ends).await {
                Ok(ends) => return Ok(ends.into_iter().max().unwrap_or(view.start)),
                Err(error) => self.again(&known, error, &mut patience).await?,
            }
        }
    }

    /// Fills those of the positions from `from` to before `to` to which nothing was written.
    pub async fn fill(&self, from: u64, to: u64) -> Result<(), LogError> {
        self.may_write()?;
        let mut patience = Patience::new(self.options.patience);
        let mut from = from;
        'views: while from < to {
            let known = self.known();
            let Some((view, end)) = known.views.find(from) else {
                from = known.views.start();
                continue;
            };
            let upto = to.min(end).min(from.saturating_add(BATCH_ENTRIES_MAX as u64));
            for part in view.parts(from, upto) {
                let object = self.object(view, part.object)?;
                let filled = fill_part(self.stripe(&object, view.epoch), part.place, part.count).await;
                match filled {
                    Ok(()) => {}
                    Err(error) => {
                        self.again(&known, error, &mut patience).await?;
                        continue 'views;
                    }
                }
            }
            from = upto;
        }
        Ok(())
    }

    pub async fn tail(&self) -> Result<u64, LogError> {
        let mut patience = Patience::new(self.options.patience);
        loop {
            let known = self.known();
            match self.sequencer.read(known.views.epoch()).await {
                Ok(tail) => return Ok(tail),
                Err(SequencerError::Epoch(found)) => self.refresh(&known, found).await?,
                Err(SequencerError::Store(error)) => patience.wait(error).await?,
            }
        }
    }

    pub async fn begin(&self) -> Result<u64, LogError> {
        let head = layout::head(self.id)?;
        let read = Transaction::new().read(Read::Key { key: begin_key() });
        let Outcome::Done(done) = self.apply(&head, read).await? else { return Err(self.nonsense()) };
        match &done.answers[..] {
            [Answer::Value(None)] => Ok(0),
            [Answer::Value(Some(value))] => {
                Ok(u64::from_be_bytes(value[..].try_into().map_err(|_| self.nonsense())?))
            }
            _ => Err(self.nonsense()),
        }
    }

    fn nonsense(&self) -> LogError {
        let text =
            format!("log \"{}\": the store's answer does not fit the question", self.name.escape_debug());
        StoreError::new(ErrorKind::Corrupt, text).into()
    }

    async fn trim(&self, position: u64) -> Result<(), LogError> {
        let mut patience = Patience::new(self.options.patience);
        loop {
            let known = self.known();
            let Some((view, _)) = known.views.find(position) else { return Ok(()) };
            let (index, place) = view.locate(position);
            let object = self.object(view, index)?;
            match self.stripe(&object, view.epoch).trim(place).await {
                Ok(()) => return Ok(()),
                Err(error) => self.again(&known, error, &mut patience).await?,
            }
        }
    }

    async fn trim_prefix(&self, before: u64) -> Result<(), LogError> {
        // First it is written down, so that readers need not look at what is being removed.
        let head = layout::head(self.id)?;
        loop {
            let begin = self.begin().await?;
            if begin >= before {
                break;
            }
            let check = match begin {
                0 => Check::Absent,
                begin => Check::Equal(Bytes::copy_from_slice(&begin.to_be_bytes())),
            };
            let guard = Guard::Key { key: begin_key(), check };
            let value = Bytes::copy_from_slice(&before.to_be_bytes());
            let write = Write::SetKey { key: begin_key(), value };
            let transaction = Transaction::new().guard(Guard::Exists).guard(guard).change(write);
            match self.apply(&head, transaction).await? {
                Outcome::Done(_) => break,
                Outcome::Refused(refusal) if refusal.guard == 0 => {
                    return Err(LogError::Missing(self.name.clone()));
                }
                Outcome::Refused(_) => {}
            }
        }
        let mut patience = Patience::new(self.options.patience);
        loop {
            let known = self.known();
            let (mut refused, mut again) = (None, false);
            let views = &known.views.views;
            for (number, view) in views.iter().enumerate().filter(|(_, view)| view.start < before) {
                let end = views.get(number + 1).map_or(u64::MAX, |next| next.start);
                if end <= before {
                    // It goes as a whole.
                    continue;
                }
                let trims = (0..view.width).map(|index| async move {
                    let object = layout::object(self.id, view, index)?;
                    let places = view.places_before(index, before);
                    self.stripe(&object, view.epoch).trim_prefix(places).await
                });
                for trimmed in join_all(trims).await {
                    match trimmed {
                        Ok(()) => {}
                        Err(StripeError::Epoch(found)) => refused = Some(found),
                        Err(StripeError::Store(error)) => {
                            patience.wait(error).await?;
                            again = true;
                        }
                    }
                }
            }
            if let Some(found) = refused {
                self.refresh(&known, found).await?;
                again = true;
            }
            if again {
                continue;
            }
            let kept: Vec<View> = (views.iter().enumerate())
                .filter(|(number, _)| views.get(number + 1).is_none_or(|next| next.start > before))
                .map(|(_, view)| view.clone())
                .collect();
            let gone: Vec<View> = views.iter().filter(|view| !kept.contains(view)).cloned().collect();
            if gone.is_empty() {
                return Ok(());
            }
            let mut next = known.views.clone();
            next.views = kept;
            let Some(_) = self.publish(&known, next).await? else {
                self.refresh(&known, None).await?;
                continue;
            };
            // Readers that do not know it yet find the objects gone, and look at the map.
            for view in gone {
                self.remove_objects(&view).await;
            }
            return Ok(());
        }
    }

    /// Removes the objects of a view that is no view any more. What is left of them if the store fails takes room until the log is
    /// deleted, and does no harm.
    async fn remove_objects(&self, view: &View) {
        for index in 0..view.width {
            let Ok(object) = self.object(view, index) else { return };
            if let Err(error) = self.apply(&object, Transaction::new().change(Write::Remove)).await {
                tracing::warn!(log = self.name, %object, %error, "an object that is not needed any more is left");
            }
        }
    }

    /// Replaces the views that are known by others. Returns `None` if somebody else has done so before.
    async fn publish(&self, known: &Known, views: Views) -> Result<Option<()>, LogError> {
        let entry = views_entry();
        let update = Update::new(WHO).if_version(entry.clone(), known.version).set(entry, views.encode()?);
        match propose(&self.proposer, update).await? {
            Proposed::Done(version) => {
                *self.known.lock() = Arc::new(Known { views, version });
                Ok(Some(()))
            }
            Proposed::Conflict => Ok(None),
        }
    }

    /// Seals the objects of the last view, finds out the tail, makes the sequencer go on from there, and publishes the new epoch:
    /// in this order. A request of an earlier epoch is refused from the first of these steps on, and nobody can know the new epoch
    /// before the last: so the tail stays what it was found to be (section 5.2.2).
    ///
    /// With a shape, a new view begins at the tail. With a version, nothing is done if the views have another one.
    pub async fn recover(&self, shape: Option<Shape>, version: Option<u64>) -> Result<Recovered, LogError> {
        let mut least = 0;
        for attempt in 0..RECOVERIES_MAX {
            if attempt > 0 {
                let longest = Duration::from_millis(1 << attempt.min(8));
                tokio::time::sleep(longest.mul_f64(rand::random_range(0.0..1.0))).await;
            }
            let known = self.views().await?;
            if version.is_some_and(|version| version != known.version) {
                let epoch = known.views.epoch();
                return Ok(Recovered { epoch, tail: known.views.last().start, sealed: 0 });
            }
            let view = known.views.last();
            let epoch = known.views.epoch().max(least) + 1;
            let seals = (0..view.width).map(|index| async move {
                let object = layout::object(self.id, view, index)?;
                let end = self.seal_object(&object, epoch).await?;
                Ok(last_position(view, index, end))
            });
            let mut tail = view.start;
            let mut other = None;
            for sealed in join_all(seals).await {
                match sealed {
                    Ok(end) => tail = tail.max(end),
                    // Somebody else recovers it at the same time, or has begun to: the one with the greater epoch wins.
                    Err(StripeError::Epoch(Some(found))) => other = other.max(Some(found)),
                    Err(StripeError::Epoch(None)) => {
                        // It may be gone with the whole log.
                        read_views(&self.map, &self.name).await?;
                        let text = "an object is missing; if the log was to be deleted, delete it again";
                        return Err(LogError::Corrupt(text.to_owned()));
                    }
                    Err(StripeError::Store(error)) => return Err(error.into()),
                }
            }
            if let Some(found) = other {
                least = found;
                continue;
            }
            let mut views = known.views.clone();
            let last = views.views.len() - 1;
            views.views[last].epoch = epoch;
            let (mut created, mut replaced) = (None, None);
            if let Some(Shape { width, unit }) = shape {
                let next = View { start: tail, epoch, generation: rand::random(), width, unit };
                create_objects(&*self.store, self.id, &next).await?;
                // A view without entries is replaced.
                replaced = (views.views[last].start == tail).then(|| views.views.remove(last));
                views.views.push(next.clone());
                created = Some(next);
            }
            let installed = match self.sequencer.install(epoch, tail).await {
                Ok(()) => true,
                Err(SequencerError::Epoch(found)) => {
                    least = found.unwrap_or(epoch);
                    false
                }
                Err(error) => return Err(sequencer_error(error)),
            };
            if installed && self.publish(&known, views).await?.is_some() {
                tracing::info!(log = self.name, epoch, tail, "the log was recovered");
                if let Some(view) = replaced {
                    self.remove_objects(&view).await;
                }
                return Ok(Recovered { epoch, tail, sealed: view.width });
            }
            least = least.max(epoch);
            // Nobody knows the objects that were made.
            if let Some(view) = created {
                self.remove_objects(&view).await;
            }
        }
        let text = "others recover the log again and again; try again";
        Err(StoreError::new(ErrorKind::Busy, text).into())
    }

    /// Seals one object, as long as it takes. If a reply is lost, the repetition finds the object at this epoch, which is not less.
    async fn seal_object(&self, object: &ObjectId, epoch: u64) -> Result<u64, StripeError> {
        let mut patience = Patience::new(self.options.patience);
        loop {
            match self.stripe(object, epoch).seal().await {
                Err(StripeError::Store(error)) => match patience.wait(error.clone()).await {
                    Ok(()) => {}
                    Err(_) => return Err(error.into()),
                },
                result => return result,
            }
        }
    }
}

/// Fills the free ones of consecutive places.
async fn fill_part(stripe: Stripe<'_>, place: u64, count: u64) -> Result<(), StripeError> {
    let mut place = place;
    let end = place + count;
    while place < end {
        let indices = stripe.read(place, end - place, 0).await?.entries;
        let free = indices.iter().position(|index| *index == Index::Nothing);
        let Some(free) = free else {
            place += indices.len() as u64;
            continue;
        };
        let run = indices[free..].iter().take_while(|index| **index == Index::Nothing).count();
        // If somebody was faster, the index is looked at again.
        place += free as u64;
        if stripe.fill(place, run as u64).await? == Written::Done {
            place += run as u64;
        }
    }
    Ok(())
}

/// Returns the position after that of the last place of an object, or the first of the view if there is none.
fn last_position(view: &View, index: u32, end: u64) -> u64 {
    match end.checked_sub(1) {
        Some(place) => view.position(index, place).map_or(u64::MAX, |position| position.saturating_add(1)),
        None => view.start,
    }
}

/// The attempts at a store that does not answer.
pub(crate) struct Patience {
    patience: Duration,
    since: Option<Instant>,
    pause: Duration,
}

impl Patience {
    pub fn new(patience: Duration) -> Self {
        Self { patience, since: None, pause: Duration::from_millis(2) }
    }

    /// Waits before the next attempt.
    ///
    /// # Errors
    /// The failure itself, if waiting does not heal it or has lasted for too long.
    pub async fn wait(&mut self, error: StoreError) -> Result<(), LogError> {
        let since = *self.since.get_or_insert_with(Instant::now);
        let heals = matches!(error.kind, ErrorKind::Unavailable | ErrorKind::Unknown | ErrorKind::Busy);
        if !heals || since.elapsed() >= self.patience {
            return Err(error.into());
        }
        tokio::time::sleep(self.pause.mul_f64(rand::random_range(0.5..1.0))).await;
        self.pause = (self.pause * 2).min(Duration::from_millis(200));
        Ok(())
    }
}
