//! Proposals: updates of a map, one epoch for each, or one for all that came together.
//!
//! There is no master to lose. An epoch is one transaction, on condition that the header is still that of the epoch before
//! it: of several proposers one is first, and the others read what it did, judge their updates anew and try again.
//!
//! An update is never applied twice. If the reply to a proposal is lost, the same epoch is proposed again: either that
//! proposal takes effect, and the first one never can, or its guard fails, and the records since show by the update's id
//! whether it took effect. Should it then be refused, because others that were proposed with it have gone away or because
//! a validator has come to another result, an epoch without changes is made first: it shows that the first proposal has not
//! taken effect, and keeps it from doing so later.
//!
//! Within a process, updates that wait while an epoch is on its way come into the next one together. Whoever waits for an
//! update makes epochs, so no task of its own is needed; if it goes away in the middle, the next one goes on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::channel::oneshot;
use futures::future::{Either, select};
use nacre_object::{ErrorKind, Key, StoreError};
use parking_lot::Mutex;

use crate::codec;
use crate::limit::UPDATES_PER_EPOCH_MAX;
use crate::map::{ClusterMap, News};
use crate::state::{Change, Header, Incarnation, LIMITS, Limits, Record, Space, State, VALIDATOR};
use crate::update::{Condition, Draft, Evaluation, Refused, Update, UpdateId};
use crate::validator::{Validator, Validators};

/// The number of proposals without an answer after which their updates are given up as unknown.
const UNKNOWN_MAX: u32 = 10;
/// The longest pause between two proposals that are not answered.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The number of times that others may be first before an update waits a little before it tries again.
const LOSSES_MIN: u32 = 3;

/// The number of times that others may change a map's limits first before a change of them is given up.
const LIMITS_ATTEMPTS_MAX: usize = 20;

/// The settings of a proposer.
#[derive(Clone, Debug, Default)]
pub struct ProposeOptions {
    /// The time for which updates are gathered before they are proposed as one epoch. 0: nothing waits, but what comes
    /// while an epoch is on its way is gathered nevertheless.
    pub gather: Duration,
}

/// An update that took effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The epoch; the map's present one if the update changed nothing.
    pub epoch: u64,
    /// The changes as they took effect: with what validators made of them.
    pub changes: Vec<Change>,
}

/// An update that took no effect, or of which it is not known.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProposeError {
    /// A condition did not hold, a validator refused it, or a limit would be exceeded. Nothing was changed.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The store failed. The update may or may not have taken effect if the kind is
    /// [`Unknown`](nacre_object::ErrorKind::Unknown).
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The result of an update.
type Verdict = Result<Committed, ProposeError>;

/// An update that waits for its epoch.
struct Pending {
    id: UpdateId,
    update: Update,
    /// True if it was part of a proposal, which may be on its way if the engine is uncertain.
    sent: bool,
    reply: oneshot::Sender<Verdict>,
}

/// Proposes updates of a map. Cheap to clone; all clones gather their updates together.
///
/// It needs a tokio runtime with a clock around its calls.
#[derive(Clone, derive_more::Debug)]
#[debug("Proposer")]
pub struct Proposer {
    map: ClusterMap,
    options: ProposeOptions,
    queue: Arc<Mutex<VecDeque<Pending>>>,
    engine: Arc<futures::lock::Mutex<Engine>>,
}

impl Proposer {
    pub(crate) fn new(map: ClusterMap, options: ProposeOptions) -> Self {
        let engine = Engine::new(map.clone());
        Self { map, options, queue: Arc::default(), engine: Arc::new(futures::lock::Mutex::new(engine)) }
    }

    /// Returns the map.
    pub fn map(&self) -> &ClusterMap {
        &self.map
    }

    /// Proposes an update, and returns once its epoch is as durable as the store makes it. A call that is dropped may or
    /// may not take effect.
    ///
    /// # Errors
    /// [`ProposeError`]; nothing was changed, unless the store does not know.
    pub async fn propose(&self, update: Update) -> Verdict {
        update.check().map_err(|error| self.map.at(error))?;
        let (reply, mut verdict) = oneshot::channel();
        {
            let mut queue = self.queue.lock();
            // While nobody gets an answer, those who have gone away must not pile up.
            if queue.len() >= UPDATES_PER_EPOCH_MAX && queue.len().is_power_of_two() {
                queue.retain(|pending| !pending.reply.is_canceled());
            }
            queue.push_back(Pending { id: self.map.update_id(), update, sent: false, reply });
        }
        loop {
            let mut engine = match select(&mut verdict, self.engine.lock()).await {
                Either::Left((verdict, _)) => {
                    return verdict.unwrap_or_else(|_| Err(self.map.nonsense().into()));
                }
                Either::Right((engine, _)) => engine,
            };
            // Another one may have made the epoch of this update while it waited for its turn.
            if let Ok(Some(verdict)) = verdict.try_recv() {
                return verdict;
            }
            if !self.options.gather.is_zero() {
                tokio::time::sleep(self.options.gather).await;
            }
            engine.round(&self.queue).await;
        }
    }

    /// Installs a validator, or replaces the one of that name.
    ///
    /// # Errors
    /// `Invalid` if it is not sound, and as [`Proposer::propose`].
    pub async fn set_validator(&self, author: &str, name: &str, validator: &Validator) -> Verdict {
        validator.check(name).map_err(|error| self.map.at(error))?;
        let value = codec::encode_validator(validator);
        self.propose(Update::new(author).change(Space::Setting, setting(VALIDATOR, name)?, Some(value))).await
    }

    /// Removes a validator. Returns false if there is none of that name.
    ///
    /// # Errors
    /// As [`Proposer::propose`].
    pub async fn remove_validator(&self, author: &str, name: &str) -> Result<bool, ProposeError> {
        let update = Update::new(author).change(Space::Setting, setting(VALIDATOR, name)?, None);
        Ok(!self.propose(update).await?.changes.is_empty())
    }

    /// Changes the map's limits.
    ///
    /// # Errors
    /// `Invalid` if they are out of bounds, and as [`Proposer::propose`].
    pub async fn set_limits(&self, author: &str, limits: &Limits) -> Verdict {
        limits.check().map_err(|why| self.map.at(StoreError::new(ErrorKind::Invalid, why)))?;
        let value = codec::encode_limits(limits);
        self.propose(Update::new(author).change(Space::Setting, setting(LIMITS, "")?, Some(value))).await
    }

    /// Changes the map's limits as a function says, from those that they are: should another one change them at the same
    /// time, the function is called again with what that one has made of them. Returns the limits since.
    ///
    /// # Errors
    /// As [`Proposer::set_limits`]; `Busy` if others change them again and again.
    pub async fn change_limits(
        &self,
        author: &str,
        change: impl Fn(Limits) -> Limits,
    ) -> Result<Limits, ProposeError> {
        let name = setting(LIMITS, "")?;
        for _ in 0..LIMITS_ATTEMPTS_MAX {
            let state = self.map.state().await?;
            let limits = change(state.limits()?);
            limits.check().map_err(|why| self.map.at(StoreError::new(ErrorKind::Invalid, why)))?;
            let version = state.value(Space::Setting, &name).map_or(0, |value| value.version);
            let unchanged = Condition::Version { space: Space::Setting, name: name.clone(), version };
            let update = Update::new(author).condition(unchanged).change(
                Space::Setting,
                name.clone(),
                Some(codec::encode_limits(&limits)),
            );
            match self.propose(update).await {
                Err(ProposeError::Refused(Refused::Version { .. })) => {}
                verdict => return verdict.map(|_| limits),
            }
        }
        let text = "others change its limits again and again; nothing was changed, try again";
        Err(self.map.at(StoreError::new(ErrorKind::Busy, text)).into())
    }
}

fn setting(prefix: &str, name: &str) -> Result<Key, StoreError> {
    Key::new(format!("{prefix}{name}"))
}

/// The part of a proposer of which one call at a time has the use.
struct Engine {
    map: ClusterMap,
    /// The map as it was last seen, and its header in the store; `None` until it is read.
    known: Option<(State, Option<Header>)>,
    validators: Validators,
    /// The updates of the epoch that is being made.
    working: Vec<Pending>,
    /// True if an earlier proposal of theirs may be on its way.
    uncertain: bool,
    unanswered: u32,
    losses: u32,
}

/// The end of an attempt at an epoch.
enum Attempt {
    /// All updates that it was made of have their verdicts.
    Settled,
    /// Another proposer was first, or nobody knows.
    Again,
}

impl Engine {
    fn new(map: ClusterMap) -> Self {
        let validators = Validators::new(map.name().to_owned(), map.object().clone());
        Self { map, known: None, validators, working: Vec::new(), uncertain: false, unanswered: 0, losses: 0 }
    }

    /// Takes what waits, and makes one epoch of it. If this is dropped in the middle, the next round goes on with those
    /// that are still waited for.
    async fn round(&mut self, queue: &Mutex<VecDeque<Pending>>) {
        loop {
            let room = UPDATES_PER_EPOCH_MAX - self.working.len();
            {
                let mut queue = queue.lock();
                let count = room.min(queue.len());
                self.working.extend(queue.drain(..count));
            }
            // Whoever has gone away is not waited for. A proposal of it may be on its way, which the guard of the next one
            // keeps from taking effect beside that.
            self.working.retain(|pending| !pending.reply.is_canceled());
            if self.working.is_empty() {
                return;
            }
            match self.attempt().await {
                Ok(Attempt::Settled) => {
                    (self.unanswered, self.losses) = (0, 0);
                    return;
                }
                Ok(Attempt::Again) => self.pause().await,
                Err(error) => {
                    if error.kind.is_uncertain() && self.unanswered < UNKNOWN_MAX {
                        self.unanswered += 1;
                        self.pause().await;
                        continue;
                    }
                    let kind = if self.uncertain { ErrorKind::Unknown } else { error.kind };
                    self.fail(&error.with_kind(kind));
                    return;
                }
            }
        }
    }

    async fn pause(&self) {
        let pause = match (self.unanswered, self.losses) {
            (0, losses) if losses < LOSSES_MIN => return,
            (0, losses) => self.map.pause(losses - LOSSES_MIN),
            (unanswered, _) => {
                self.map.random().part((Duration::from_millis(50) * unanswered).min(PAUSE_MAX))
            }
        };
        tokio::time::sleep(pause).await;
    }

    fn fail(&mut self, error: &StoreError) {
        for pending in self.working.drain(..) {
            let _ = pending.reply.send(Err(error.clone().into()));
        }
        // What the store holds after a failure is read again.
        self.known = None;
        (self.uncertain, self.unanswered, self.losses) = (false, 0, 0);
    }

    /// Judges the updates by the map as it is known, and proposes those that are sound as its next epoch.
    async fn attempt(&mut self) -> Result<Attempt, StoreError> {
        if self.uncertain || self.known.is_none() {
            self.catch_up().await?;
            if self.working.is_empty() {
                return Ok(Attempt::Settled);
            }
        }
        let Some((state, header)) = &mut self.known else { return Ok(Attempt::Again) };
        self.validators.refresh(state)?;
        let mut draft = Draft::new(state, state.limits()?);
        let mut evaluations = Vec::with_capacity(self.working.len());
        for pending in &self.working {
            let verdict = evaluate(&mut draft, &self.validators, state.epoch() + 1, pending).await;
            let is_full = matches!(verdict, Evaluation::Full);
            evaluations.push(verdict);
            if is_full || draft.is_closed() {
                break;
            }
        }
        let incarnation = match state.epoch() {
            0 => Incarnation(self.map.random().number()),
            _ => state.incarnation(),
        };
        if self.uncertain && draft.is_empty() {
            // A verdict on an update that may take effect yet would be wrong then. An epoch without changes, on the same
            // condition as the proposal that may be on its way, keeps that from taking effect.
            let sent = self.working.iter().take(evaluations.len()).find(|pending| pending.sent);
            if let Some(sent) = sent {
                draft.add_nothing(self.map.update_id(), &sent.update.author);
            }
        }
        let Some((record, after)) = draft.finish(incarnation, now_ms()) else {
            // Nothing to propose, so no guard has shown that the map is still what the verdicts are about.
            if self.map.header().await? != *header {
                self.losses += 1;
                self.catch_up().await?;
                return Ok(Attempt::Again);
            }
            let epoch = state.epoch();
            self.deliver(evaluations, epoch, &mut std::iter::empty());
            return Ok(Attempt::Settled);
        };
        let history = history_after(state, &record)?;
        for (pending, evaluation) in self.working.iter_mut().zip(&evaluations) {
            pending.sent |= matches!(evaluation, Evaluation::Taken);
        }
        // From here on the proposal may be on its way, also if this is dropped before the reply has come.
        let was_uncertain = std::mem::replace(&mut self.uncertain, true);
        match self.map.commit(header.as_ref(), after, &record, history).await {
            Ok(Some(after)) => {
                let advanced = state.advance(std::slice::from_ref(&record), &after);
                advanced.map_err(|error| StoreError::new(ErrorKind::Corrupt, error.to_string()))?;
                *header = Some(after);
                self.uncertain = false;
                let mut changes = record.updates.into_iter().map(|update| update.changes);
                self.deliver(evaluations, record.epoch, &mut changes);
                Ok(Attempt::Settled)
            }
            Ok(None) => {
                self.losses += 1;
                self.uncertain = was_uncertain;
                self.catch_up().await?;
                Ok(if self.working.is_empty() { Attempt::Settled } else { Attempt::Again })
            }
            Err(error) => {
                self.uncertain = was_uncertain || error.kind.is_uncertain();
                Err(error)
            }
        }
    }

    /// Gives each update that was judged its verdict; the others stay for the next epoch.
    fn deliver(
        &mut self,
        evaluations: Vec<Evaluation>,
        epoch: u64,
        changes: &mut dyn Iterator<Item = Vec<Change>>,
    ) {
        let taken =
            evaluations.iter().take_while(|evaluation| !matches!(evaluation, Evaluation::Full)).count();
        for (pending, evaluation) in self.working.drain(..taken).zip(evaluations) {
            let verdict = match evaluation {
                Evaluation::Taken => Ok(Committed { epoch, changes: changes.next().unwrap_or_default() }),
                Evaluation::Refused(refused) => Err(refused.into()),
                Evaluation::Unchanged | Evaluation::Full => Ok(Committed { epoch, changes: Vec::new() }),
            };
            let _ = pending.reply.send(verdict);
        }
    }

    /// Reads what others did since, and gives those updates their verdicts that turn out to have taken effect.
    async fn catch_up(&mut self) -> Result<(), StoreError> {
        // What may be on its way is settled by the records since the epoch before it, so these are read even if the
        // state is not known any more.
        let Some((state, header)) = &mut self.known else {
            let state = self.map.state().await?;
            let header = state.header();
            self.known = Some((state, header));
            return Ok(());
        };
        loop {
            match self.map.news(state).await? {
                News::Nothing => return Ok(()),
                News::Records(records, now) => {
                    let advanced = state.advance(&records, &now);
                    advanced.map_err(|error| StoreError::new(ErrorKind::Corrupt, error.to_string()))?;
                    let is_all = state.epoch() >= now.epoch;
                    // Should this end in the middle, the header of a part guards against a proposal on that.
                    *header = if is_all { Some(now) } else { state.header() };
                    for record in records {
                        for update in record.updates {
                            if let Some(ours) =
                                self.working.iter().position(|pending| pending.id == update.id)
                            {
                                let (epoch, changes) = (record.epoch, update.changes);
                                let _ =
                                    self.working.remove(ours).reply.send(Ok(Committed { epoch, changes }));
                            }
                        }
                    }
                    // The guard of whatever was on its way does not hold any more; had it taken effect, it would be the
                    // first of these records.
                    self.uncertain = false;
                    if is_all {
                        return Ok(());
                    }
                }
                News::Everything(whole) => {
                    self.known = Some((whole.clone(), whole.header()));
                    if self.uncertain {
                        let text = "the reply was lost, and so much was changed since that the history does not tell \
                                    whether the update took effect";
                        let error = self.map.at(StoreError::new(ErrorKind::Unknown, text));
                        self.fail(&error);
                    }
                    return Ok(());
                }
            }
        }
    }
}

/// Has an update judged: its conditions, its changes by the validators, and the limits.
async fn evaluate(
    draft: &mut Draft<'_>,
    validators: &Validators,
    epoch: u64,
    pending: &Pending,
) -> Evaluation {
    let Update { author, conditions, changes } = &pending.update;
    if let Err(refused) = draft.check(conditions) {
        return Evaluation::Refused(refused);
    }
    match validators.evaluate(draft, epoch, author, changes).await {
        Ok(wanted) => draft.add(pending.id, author, wanted),
        Err(refused) => Evaluation::Refused(refused),
    }
}

/// Returns the number of records that are kept once a record is applied: it may be about that itself.
fn history_after(state: &State, record: &Record) -> Result<u64, StoreError> {
    let changes = record.updates.iter().flat_map(|update| &update.changes);
    let limits = changes
        .rev()
        .find(|change| change.space == Space::Setting && change.name.as_bytes() == LIMITS.as_bytes());
    match limits.map(|change| &change.new) {
        None => Ok(state.limits()?.history),
        Some(None) => Ok(Limits::default().history),
        Some(Some(value)) => Ok(codec::decode_limits(value)?.history),
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
