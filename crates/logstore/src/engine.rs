//! The engine: objects in memory, spread over shards, in front of the log.
//!
//! A transaction is checked and takes effect in memory under the lock of its object's shard, in the same critical
//! section in which it takes its place in the log; so the order in the log is the order of effects. No effect is visible
//! before the log has it: every reply waits for the batch that holds the newest change of its object (the
//! *durable batch*).
//!
//! Locks are taken in this order, and the holder of a later one never waits for an earlier one:
//! 1. the snapshots (`Maintenance::work`), while one is taken, and inside of that the cleaner
//!    (`Maintenance::cleaning`), for one slice of its work;
//! 2. the pool of files (`Space::pool`), while one is created, renamed or extended;
//! 3. names that are made durable (`Space::name_failures`); or a shard, one at a time, and inside of that the ordered
//!    names (`Engine::names`); or all shards in their order, one thread at a time, while the
//!    floor is raised;
//! 4. the waiters for room (`Maintenance::requests`);
//! 5. the table of segments, the log's tail, the window of writes: their holders wait for no other lock but
//!    that of the watchers (`Engine::watchers`), which is the last of all.
//!
//! The committing thread takes the log's tail alone, so a caller that waits for a batch may hold any of the others but
//! that.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use nacre_object::limit::{PAGE_ENTRIES_MAX, REPLY_BYTES_MAX};
use nacre_object::once;
use nacre_object::watch::{Hub, Watch, WatchOptions};
use nacre_object::window::{Recall, Window};
use nacre_object::{
    Answer, Done, ErrorKind, Guard, ObjectId, Once, Outcome, RangeRead, ReadOp, Refusal, Reply, StoreError,
    Transaction, WindowPosition,
};

use crate::Options;
use crate::binding::public_identity;
use crate::codec::crc32c;
use crate::disk::Disk;
use crate::fetch::{Fetches, Source};
use crate::footprint::Footprint;
use crate::log::{Appended, Committer, Log, Logged, Purpose, Refused};
use crate::maintenance::Maintenance;
use crate::memory::{self, Blocks, Exchange, FewBlocks, Memory};
use crate::name::Name;
use crate::node::Node;
use crate::readers::Readers;
use crate::record::{self, Effect, Repeatable, Split};
use crate::segment::SegmentTable;
use crate::shard::{self, Shard};
use crate::space::{Space, SpaceRequest};
use crate::sync::{Mutex, RwLock};

const SHARDS: usize = 64;

/// A store.
pub struct Engine {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) options: Options,
    /// The store's random identity.
    pub(crate) identity: [u8; 16],
    /// The blocks of a volatile store. Its log, and all that keeps a log, are there and empty.
    pub(crate) memory: Option<Memory>,
    pub(crate) log: Arc<Log>,
    pub(crate) table: SegmentTable,
    pub(crate) shards: Vec<Mutex<Shard>>,
    /// Locked by who raises the floor.
    raising: Mutex<()>,
    /// The objects that exist, in order.
    pub(crate) names: RwLock<BTreeSet<Name>>,
    pub(crate) maintenance: Maintenance,
    pub(crate) space: Space,
    pub(crate) readers: Readers,
    /// Payload that transactions wrote, in bytes.
    pub(crate) user_bytes: AtomicU64,
    /// The number of replacements of forks. Counted under the lock of the object's shard.
    pub(crate) replacements: AtomicU64,
    /// The hash of the object that a snapshot has written a part of, 0 if there is none; and whether an effect came since
    /// that must not be applied to a mixture of states (see module `index_writer`). Changed with the lock of the object's
    /// shard held.
    pub(crate) watched: AtomicU64,
    pub(crate) watched_changed: AtomicBool,
    /// The latest writes with tokens. Changed with the lock of the object's shard held.
    pub(crate) window: Mutex<Window>,
    /// The id of the window; `None` if the system had no random numbers for it.
    pub(crate) window_id: Option<[u8; 16]>,
    /// The watchers of objects, which are notified of a change once its batch is acknowledged.
    pub(crate) watchers: Hub,
}

/// A transaction, ready to be judged.
struct Work {
    object: ObjectId,
    /// The hash of its name.
    hash: u64,
    guards: Vec<Guard>,
    reads: Vec<ReadOp>,
    effects: Vec<Effect>,
    /// The effects that append, which have their places once the object is known.
    appends: Vec<Range<usize>>,
    /// The payload as a record takes it, its length in bytes, and, in a volatile store instead, the blocks that are made of it.
    payload: Vec<Bytes>,
    payload_bytes: u64,
    blocks: FewBlocks,
    once: Option<Once>,
    /// The record's head as far as it is known in advance.
    head: Vec<u8>,
    head_bytes: usize,
    /// Bytes by which the transaction can make snapshots longer.
    growth_bytes: u64,
    /// The purpose, which decides the room that the transaction may take.
    purpose: Purpose,
}

/// The result of an attempt to apply a transaction.
#[expect(
    clippy::large_enum_variant,
    reason = "almost every attempt is decided, and a box would be an allocation for each"
)]
enum Attempt {
    Decided(Decided),
    NeedsSpace(SpaceRequest),
}

/// A transaction's effects, as they were kept.
#[derive(Default)]
struct Applied {
    /// The change in the index's footprint.
    grown: Footprint,
    /// The batch to wait for.
    batch: u64,
    /// The number of transactions with tokens before it.
    tokens: u64,
    /// True if the log continued in a new segment.
    rolled: bool,
    /// Blocks to which nothing refers any more, to be dropped without a lock.
    freed: FewBlocks,
}

/// The reason why a transaction was not kept.
enum CommitFailure {
    NeedsSpace(SpaceRequest),
    Failed(StoreError),
}

/// An outcome without the bytes that have to be read, and the batch to wait for first.
struct Decided {
    outcome: Outcome,
    durable_batch: u64,
    wrote: bool,
    rolled: bool,
    fetches: Fetches,
}

impl Engine {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        options: Options,
        identity: [u8; 16],
        memory: Option<Memory>,
        log: Log,
        table: SegmentTable,
    ) -> Self {
        let space = Space::new(options.capacity_bytes);
        let window_writes = options.window_writes();
        Self {
            disk,
            options,
            identity,
            memory,
            log: Arc::new(log),
            table,
            shards: (0..SHARDS).map(|_| Mutex::new(Shard::default())).collect(),
            raising: Mutex::new(()),
            names: RwLock::default(),
            maintenance: Maintenance::default(),
            space,
            readers: Readers::default(),
            user_bytes: AtomicU64::new(0),
            replacements: AtomicU64::new(0),
            watched: AtomicU64::new(0),
            watched_changed: AtomicBool::new(false),
            window: Mutex::new(Window::new(window_writes, 0)),
            window_id: Some(public_identity(&identity)),
            watchers: Hub::default(),
        }
    }

    /// Returns the shard that an object belongs to.
    pub(crate) fn shard(&self, object: &ObjectId) -> &Mutex<Shard> {
        self.shard_of(shard::hash(object.as_bytes()))
    }

    fn shard_of(&self, hash: u64) -> &Mutex<Shard> {
        // The map inside takes the lowest and the highest bits of the same hash; these are in the middle.
        &self.shards[(hash >> 32) as usize % SHARDS]
    }

    /// Returns the hash by which an object is watched; never 0.
    pub(crate) fn hash(&self, object: &ObjectId) -> u64 {
        shard::hash(object.as_bytes()) | 1
    }

    /// Applies a transaction to one object, at most once if a token is given. See
    /// [`nacre_object::ObjectStore::apply_once`].
    pub fn apply(
        self: &Arc<Self>,
        object: &ObjectId,
        transaction: Transaction,
        once: Option<Once>,
    ) -> Reply<Outcome> {
        if let Err(error) = transaction.validate() {
            return Reply::ready(Err(error));
        }
        let mut work = self.prepare(object, transaction, once);
        loop {
            match self.attempt(&mut work) {
                Err(error) => return Reply::ready(Err(error)),
                Ok(Attempt::Decided(decided)) => return self.reply(decided),
                Ok(Attempt::NeedsSpace(wanted)) if self.maintenance.is_threaded() => {
                    let engine = Arc::clone(self);
                    return Reply::pending(async move { engine.apply_later(work, wanted).await });
                }
                Ok(Attempt::NeedsSpace(wanted)) => match self.make_space(&wanted) {
                    Ok(purpose) => work.purpose = purpose,
                    Err(error) => return Reply::ready(Err(error)),
                },
            }
        }
    }

    async fn apply_later(
        self: Arc<Self>,
        mut work: Work,
        wanted: SpaceRequest,
    ) -> Result<Outcome, StoreError> {
        let mut wanted = wanted;
        loop {
            work.purpose = self.maintenance.wait_for_space(wanted).await?;
            match self.attempt(&mut work)? {
                Attempt::Decided(decided) => return self.reply(decided).await,
                Attempt::NeedsSpace(more) => wanted = more,
            }
        }
    }

    /// Judges a transaction and applies it in memory.
    fn attempt(&self, work: &mut Work) -> Result<Attempt, StoreError> {
        // Held until the effects are in the index: so the order of records in the log is, for each object, that of effects, and
        // the cleaner and snapshots see a transaction wholly or not at all.
        let mut shard = self.shard_of(work.hash).lock();
        let mut absent = None;
        let forgotten_batch = shard.forgotten_batch();
        let (found, blocks) = shard.find_mut(work.hash, &work.object);
        let is_new = found.is_none();
        let node = match found {
            Some(node) => node,
            None => absent.insert(Node::default()),
        };
        let floor = self.floor_of(&work.object);
        node.rise(floor, self.log.floor_batch().max(forgotten_batch));
        let source = match &self.memory {
            None => Source::Log(&self.table),
            Some(_) => Source::Memory(blocks),
        };
        // Replies speak of this state, which may be on its way to the disk. A refusal and a read wait for it too: told of a
        // change that a crash takes back, a client would act on what never was.
        let durable_batch = node.durable_batch;
        // Before the guards: those of a repetition would be judged against what its first attempt changed.
        if let Some(outcome) = self.recall(work, node)? {
            // Whatever the earlier attempt changed, the object's durable batch covers it.
            let decided =
                Decided { outcome, durable_batch, wrote: true, rolled: false, fetches: Fetches::default() };
            return Ok(Attempt::Decided(decided));
        }
        let mut fetches = Fetches::default();
        if let Some((guard, found, plan)) = node.refusal(&work.guards) {
            if let Some(plan) = plan {
                fetches.add(0, plan, source);
            }
            let outcome = Outcome::Refused(Refusal { guard, found, version: node.version });
            let decided = Decided { outcome, durable_batch, wrote: false, rolled: false, fetches };
            return Ok(Attempt::Decided(decided));
        }
        // Guards and reads see the state before the transaction; nothing is applied yet. What is to be read is pinned under
        // the lock, and read after it is released.
        let existed = node.exists;
        let mut answers = Vec::with_capacity(work.reads.len());
        let mut budget = REPLY_BYTES_MAX;
        for (index, read) in work.reads.iter().enumerate() {
            let (answer, plan) = node.answer(read, &mut budget);
            answers.push(answer);
            if let Some(plan) = plan {
                fetches.add(index, plan, source);
            }
        }
        let mut done = Done { version: node.version, existed, answers };
        if work.effects.is_empty() {
            let decided =
                Decided { outcome: Outcome::Done(done), durable_batch, wrote: false, rolled: false, fetches };
            return Ok(Attempt::Decided(decided));
        }
        // What cannot be applied is refused before it is in the log, where nothing can be taken back.
        node.admit(&work.effects)?;
        if !work.appends.is_empty() {
            work.place_appends(node, self.memory.is_none())?;
        }
        let version = work.proposal().max(node.version + 1);
        let kept = match &self.memory {
            None => self.keep_in_log(work, node, is_new, version),
            Some(memory) => self.keep_in_memory(memory, work, node, is_new, blocks, version),
        };
        let mut applied = match kept {
            Ok(applied) => applied,
            Err(CommitFailure::NeedsSpace(wanted)) => return Ok(Attempt::NeedsSpace(wanted)),
            Err(CommitFailure::Failed(error)) => return Err(error),
        };
        // Nothing below fails: the record is in the log, and the effects are in the index.
        self.space.index.saw_version(version);
        node.durable_batch = applied.batch;
        // Under the lock, so that the order of events is that of the log.
        let mut delivers = false;
        if self.watchers.is_watched(work.hash) {
            match self.log.is_acked(applied.batch) {
                true => delivers = self.watchers.changed_now(&work.object, version),
                false => {
                    let durable = Reply::pending(self.log.wait(applied.batch));
                    self.watchers.changed(&work.object, version, durable);
                }
            }
        }
        if let Some(once) = &work.once {
            self.window.lock().insert(applied.tokens, &once.token, version, existed);
        }
        let exists = node.exists;
        if let Some(node) = absent {
            applied.grown += Footprint::of_object(work.object.as_bytes());
            shard.insert(&work.object, node);
        }
        if existed != exists {
            let mut names = self.names.write();
            match shard.name(&work.object) {
                Some(name) if exists => {
                    names.insert(name.clone());
                }
                _ => {
                    names.remove(work.object.as_bytes());
                }
            }
        }
        let mut needs_floor = false;
        if !exists {
            shard.note_removed(&work.object, self.log.floor());
            let gone;
            (gone, needs_floor) = shard.forget_some(self.log.floor(), self.options.remembered_max());
            applied.grown = applied.grown - gone;
        }
        drop(shard);
        if delivers {
            self.watchers.deliver(&work.object);
        }
        if needs_floor {
            applied.rolled |= self.raise_floor();
        }
        // Blocks that were replaced are given back outside of the lock.
        let Applied { grown, batch: durable_batch, rolled, freed, .. } = applied;
        memory::recycle(freed);
        self.space.index.add(grown);
        self.user_bytes.fetch_add(work.payload_bytes, Ordering::Relaxed);
        done.version = version;
        let outcome = Outcome::Done(done);
        Ok(Attempt::Decided(Decided { outcome, durable_batch, wrote: true, rolled, fetches }))
    }

    /// Appends a transaction's record to the log, and applies its effects.
    fn keep_in_log(
        &self,
        work: &mut Work,
        node: &mut Node,
        is_new: bool,
        version: u64,
    ) -> Result<Applied, CommitFailure> {
        work.head.truncate(work.head_bytes);
        record::put_version(&mut work.head, version);
        if let Some(once) = &work.once {
            record::put_repeatable(&mut work.head, &Repeatable { token: once.token, existed: node.exists });
        }
        let mut wanted = work.wanted();
        wanted.growth_bytes += Footprint::removal_growth_bytes(&work.object, &work.effects, node, is_new);
        let Some(_growth) = self.reserve_growth(&wanted) else {
            return Err(CommitFailure::NeedsSpace(wanted));
        };
        let appended = match self.log.append(&mut work.head, &work.payload, work.purpose) {
            Ok(appended) => appended,
            Err(Refused::NeedsSegment(_)) => return Err(CommitFailure::NeedsSpace(wanted)),
            Err(Refused::Failed(error)) => return Err(CommitFailure::Failed(error)),
        };
        // Asked before the effects are applied, because it depends on what they find.
        if self.watched.load(Ordering::SeqCst) == work.hash | 1 && !node.may_be_replayed(&work.effects) {
            self.watched_changed.store(true, Ordering::SeqCst);
        }
        let changes = Vec::with_capacity(2 * work.effects.len());
        let mut logged =
            Logged { segment: appended.segment, offset: appended.payload_offset, changes: Some(changes) };
        let grown = node.apply(&work.effects, version, &mut logged);
        self.table.add_all_live(&logged.changes.unwrap_or_default());
        if work.effects.iter().any(|effect| matches!(effect, Effect::ReplaceFork { .. })) {
            self.replacements.fetch_add(1, Ordering::SeqCst);
        }
        let Appended { batch, tokens, rolled, .. } = appended;
        Ok(Applied { grown, batch, tokens, rolled, freed: FewBlocks::new() })
    }

    /// Keeps a transaction's blocks in memory, and applies its effects.
    fn keep_in_memory(
        &self,
        memory: &Memory,
        work: &mut Work,
        node: &mut Node,
        is_new: bool,
        blocks: &mut Blocks,
        version: u64,
    ) -> Result<Applied, CommitFailure> {
        memory.check_open().map_err(CommitFailure::Failed)?;
        let growth_bytes =
            work.growth_bytes + Footprint::removal_growth_bytes(&work.object, &work.effects, node, is_new);
        let space = &self.space;
        let purpose = work.purpose;
        let reserved =
            memory.reserve(&work.blocks, growth_bytes, purpose, &space.index, space.capacity_bytes);
        let full = |record_bytes| self.refuse(&SpaceRequest { record_bytes, growth_bytes: 0, purpose });
        let _reserved = reserved.map_err(|bytes| CommitFailure::Failed(full(bytes)))?;
        let mut exchange = Exchange::new(blocks, std::mem::take(&mut work.blocks));
        let grown = node.apply(&work.effects, version, &mut exchange);
        let freed = memory.count(exchange);
        let tokens = if work.once.is_some() { self.log.count_token() } else { 0 };
        Ok(Applied { grown, tokens, freed, ..Applied::default() })
    }

    /// Returns the version that an object shows at least as long as it does not exist. Called with its shard locked.
    fn floor_of(&self, object: &ObjectId) -> u64 {
        if object.is_remembered() { 0 } else { self.log.floor() }
    }

    /// Raises the floor so that it covers all removed objects, if nobody else does; returns whether the log continued in a new
    /// segment. If there is no room for the record, they are remembered for longer.
    ///
    /// All shards are locked meanwhile: so the floor rises between two transactions, for those who read it as for the log. A
    /// transaction behind its record found the object at the floor, if it did not exist, and so does a replay.
    fn raise_floor(&self) -> bool {
        let Some(_raising) = self.raising.try_lock() else { return false };
        let shards: Vec<_> = self.shards.iter().map(|shard| shard.lock()).collect();
        let floor = shards.iter().map(|shard| shard.floor_wanted()).max().unwrap_or(0);
        if floor <= self.log.floor() {
            return false;
        }
        if self.memory.is_some() {
            self.log.set_floor(floor);
            return false;
        }
        let appended = self.log.append(&mut record::encode_floor(floor), &[], Purpose::Shrink);
        appended.is_ok_and(|appended| appended.rolled)
    }

    /// Forgets all removed objects that may be forgotten; returns the floor.
    #[cfg(feature = "sim")]
    pub(crate) fn forget_removed(&self) -> u64 {
        if self.raise_floor() {
            self.maintenance.nudge();
        }
        for shard in &self.shards {
            let mut shard = shard.lock();
            let most = shard.removed_len();
            let (gone, _) = shard.forget(self.log.floor(), most);
            self.space.index.add(Footprint::default() - gone);
        }
        self.log.floor()
    }

    /// Returns the outcome of a repetition of a transaction that took effect before; `None` if the transaction is to be
    /// judged. Called under the lock of the object's shard, so that nothing changes in between.
    ///
    /// # Errors
    ///
    /// `Closed` if the writer has continued over another connection; `Unknown` if it is not known whether the transaction
    /// took effect, or if its answers are lost.
    fn recall(&self, work: &Work, node: &Node) -> Result<Option<Outcome>, StoreError> {
        let Some(once) = &work.once else { return Ok(None) };
        once.check()?;
        let Some(since) = once.since else { return Ok(None) };
        if self.window_id != Some(since.window) {
            return Err(once::not_recalled());
        }
        let recalled = self.window.lock().recall(&once.token, since.position);
        match recalled {
            Recall::New => Ok(None),
            Recall::Unknown => Err(once::not_recalled()),
            Recall::Applied { version, existed } => match work.answers_again(node, version) {
                Some(answers) => Ok(Some(Outcome::Done(Done { version, existed, answers }))),
                None => Err(once::answers_lost(version)),
            },
        }
    }

    /// Returns the version of an object that exists, unless that waits to be durable.
    pub fn version_now(&self, object: &ObjectId) -> Option<u64> {
        let shard = self.shard(object).lock();
        let node = shard.get(object).filter(|node| node.exists)?;
        self.log.is_acked(node.durable_batch).then_some(node.version)
    }

    /// Returns the position of the window of writes, if the store has one.
    pub fn window(&self) -> Option<WindowPosition> {
        self.window_id.map(|window| WindowPosition { window, position: self.log.tokens() })
    }

    fn reply(self: &Arc<Self>, decided: Decided) -> Reply<Outcome> {
        if decided.rolled {
            self.maintenance.nudge();
        }
        let Decided { mut outcome, durable_batch, wrote, mut fetches, .. } = decided;
        if self.log.is_acked(durable_batch) {
            return match fetches.fill(&mut outcome, true) {
                Ok(true) => Reply::ready(Ok(outcome)),
                Err(error) => Reply::ready(Err(unread(error, wrote))),
                Ok(false) => {
                    let engine = Arc::clone(self);
                    Reply::pending(async move { engine.read_slowly(outcome, fetches, wrote).await })
                }
            };
        }
        let engine = Arc::clone(self);
        Reply::pending(async move {
            engine.log.wait(durable_batch).await.map_err(|error| uncertain(error, wrote))?;
            if fetches.fill(&mut outcome, true).map_err(|error| unread(error, wrote))? {
                return Ok(outcome);
            }
            engine.read_slowly(outcome, fetches, wrote).await
        })
    }

    /// Begins a watch of an object. See [`nacre_object::ObjectStore::watch`].
    pub fn watch(self: &Arc<Self>, object: &ObjectId, options: &WatchOptions) -> Reply<Watch> {
        let shard = self.shard(object).lock();
        let (mut version, mut durable_batch) =
            shard.get(object).map_or((0, 0), |node| (node.version, node.durable_batch));
        let floor = self.floor_of(object);
        if version < floor && shard.get(object).is_none_or(Node::leaves_a_version_only) {
            (version, durable_batch) = (floor, self.log.floor_batch().max(shard.forgotten_batch()));
        }
        // Whatever is applied from now on is reported; what was applied before is in the version.
        let watch = self.watchers.watch(&owned(object), shard::hash(object.as_bytes()), version, options);
        drop(shard);
        match (watch, self.durable_batch(durable_batch)) {
            (Ok(watch), Reply::Pending(durable_batch)) => Reply::pending(async move {
                durable_batch.await.map(|()| watch).map_err(|error| uncertain(error, false))
            }),
            (watch, _) => Reply::ready(watch),
        }
    }

    /// Returns a future that is ready as soon as a batch's effects may be visible.
    fn durable_batch(&self, batch: u64) -> Reply<()> {
        match self.log.is_acked(batch) {
            true => Reply::ready(Ok(())),
            false => Reply::pending(self.log.wait(batch)),
        }
    }

    /// Reads bytes that the page cache does not hold, on a thread that may wait for the device.
    async fn read_slowly(
        &self,
        mut outcome: Outcome,
        mut fetches: Fetches,
        wrote: bool,
    ) -> Result<Outcome, StoreError> {
        let result = self.readers.run(move || fetches.fill(&mut outcome, false).map(|_| outcome)).await;
        result.map_err(|error| unread(error, wrote))
    }

    /// Lists objects that exist. See [`nacre_object::ObjectStore::list`].
    pub fn list(self: &Arc<Self>, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, |after| Excluded(after.as_bytes()));
        let limit = limit.min(PAGE_ENTRIES_MAX);
        let names = self.names.read();
        let page = names.range::<[u8], _>((from, Unbounded)).take(limit).map(Name::to_id).collect();
        drop(names);
        let durable_batch = self.log.last_batch();
        if self.log.is_acked(durable_batch) {
            return Reply::ready(Ok(page));
        }
        let log = Arc::clone(&self.log);
        Reply::pending(async move {
            log.wait(durable_batch).await.map_err(|error| uncertain(error, false))?;
            Ok(page)
        })
    }

    /// Returns the maximum length of a chunk: an eighth of a segment, so that a record of moves fits into any, and the
    /// cleaner never has to cut a piece of the index.
    pub(crate) fn chunk_bytes(&self) -> usize {
        if self.memory.is_some() {
            return record::CHUNK_BYTES_MAX;
        }
        record::CHUNK_BYTES_MAX.min(self.options.segment_bytes as usize / 8)
    }

    /// Returns whether batches are committed by the caller of [`Log::commit`].
    pub(crate) fn commits_by_caller(&self) -> bool {
        self.memory.is_none() && self.options.committer == Committer::Caller
    }

    /// Does what can be done before a transaction is judged.
    fn prepare(&self, object: &ObjectId, transaction: Transaction, once: Option<Once>) -> Work {
        let Transaction { guards, reads, writes } = transaction;
        let chunk_bytes = self.chunk_bytes();
        // What never leaves memory needs neither a record nor checksums.
        let checksum = if self.memory.is_some() { |_: &[u8]| 0 } else { crc32c };
        let Split { effects, mut payload, appends } = Split::new(writes, chunk_bytes, checksum);
        let payload_bytes = payload.iter().map(|part| part.len() as u64).sum();
        let (mut head, mut blocks) = (Vec::new(), FewBlocks::new());
        if self.memory.is_some() {
            blocks = memory::blocks_of(&std::mem::take(&mut payload), chunk_bytes);
        } else if !effects.is_empty() {
            head = record::encode_transaction(object, &effects);
        }
        Work {
            object: object.clone(),
            hash: shard::hash(object.as_bytes()),
            guards,
            reads,
            payload,
            payload_bytes,
            blocks,
            once,
            head_bytes: head.len(),
            head,
            growth_bytes: Footprint::growth_bytes(object, &effects),
            purpose: if effects.iter().all(Effect::shrinks) { Purpose::Shrink } else { Purpose::Write },
            effects,
            appends,
        }
    }
}

impl Work {
    /// Gives what is appended its place behind what the object has, also in the record, if there is to be one.
    fn place_appends(&mut self, node: &Node, recorded: bool) -> Result<(), StoreError> {
        node.place_appends(&mut self.effects, &self.appends)?;
        if recorded {
            self.head = record::encode_transaction(&self.object, &self.effects);
            self.head_bytes = self.head.len();
        }
        Ok(())
    }

    /// Returns the answers of a transaction that took effect before, as `version`; `None` if they are lost. The bytes of a lone
    /// append still show the size that the fork had before.
    fn answers_again(&self, node: &Node, version: u64) -> Option<Vec<Answer>> {
        if self.reads.is_empty() {
            return Some(Vec::new());
        }
        let Some(Effect::Chunk { fork, .. }) = self.effects.first() else { return None };
        let is_append = matches!(&self.appends[..], [append] if append.len() == self.effects.len());
        let is_size = |read: &ReadOp| match read {
            ReadOp::Extents { fork: other, range } => other == fork && range.len == 0,
            _ => false,
        };
        if !is_append || !self.reads.iter().all(is_size) {
            return None;
        }
        let size = node.offset_of(fork, version, self.payload_bytes)?;
        let read = RangeRead { size, version: node.tombstone_version, ..RangeRead::default() };
        Some(vec![Answer::Range(read); self.reads.len()])
    }

    /// Returns the room that the transaction needs. Its record is complete except for the head's checksum.
    fn wanted(&self) -> SpaceRequest {
        let payload_bytes = self.payload.iter().map(Bytes::len).sum();
        SpaceRequest {
            record_bytes: record::record_bytes(self.head.len(), payload_bytes) as u64,
            growth_bytes: self.growth_bytes,
            purpose: self.purpose,
        }
    }

    /// Returns the greatest version that the transaction proposes; 0 if none.
    fn proposal(&self) -> u64 {
        let versions = self.guards.iter().map(|guard| match guard {
            Guard::Proposal { version, .. } => *version,
            _ => 0,
        });
        versions.max().unwrap_or(0)
    }
}

/// Copies an id, so that it shares no memory with the caller's, which may be a slice of a large buffer.
pub(crate) fn owned(object: &ObjectId) -> ObjectId {
    ObjectId::new(Bytes::copy_from_slice(object.as_bytes())).unwrap_or_else(|_| object.clone())
}

/// Returns the error for a caller that waited for a batch that failed.
fn uncertain(error: StoreError, wrote: bool) -> StoreError {
    if wrote {
        StoreError::new(
            ErrorKind::Unknown,
            format!("it is not known whether the write took effect: {}", error.message),
        )
    } else {
        let text = format!("the newest state of the object was never made durable: {}", error.message);
        StoreError::new(ErrorKind::ReadOnly, text)
    }
}

/// Returns the error of a failed read for a transaction that may also have written: it must not say that nothing was
/// changed.
fn unread(error: StoreError, wrote: bool) -> StoreError {
    if !wrote {
        return error;
    }
    let text = format!("the write took effect, but what the transaction read is lost: {}", error.message);
    StoreError::new(ErrorKind::Unknown, text)
}
