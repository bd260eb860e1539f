//! Random transactions from a seed.
//!
//! A [`Generator`] makes the same transactions from the same seed and [`Shape`]. It keeps a [`Model`] of their effects,
//! so that most guards name versions and values that hold, and gives the answer expected of each.
//!
//! ```
//! use nacre_object::testkit::history::{Generator, Shape};
//! use nacre_object::testkit::Model;
//!
//! let mut model = Model::new();
//! for step in Generator::new(7, Shape::default()).take(100) {
//!     assert_eq!(model.apply(&step.object, &step.transaction), step.expected);
//! }
//! ```

use std::collections::BTreeMap;

use ::bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::limit::*;
use crate::testkit::{Model, ObjectState};
use crate::*;

/// The shape of random transactions. All `_max` are inclusive; all `_percent` are chances.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The number of objects.
    pub objects: usize,
    /// The number of forks that an object may have.
    pub forks: usize,
    /// The number of keys that an object may have.
    pub keys: usize,
    /// The number of attributes that an object may have.
    pub attributes: usize,
    /// The upper bound of most offsets, in bytes.
    pub span_bytes: u64,
    /// The longest extent or range, apart from those that cover a whole fork.
    pub extent_bytes_max: u64,
    /// The most extents of one vectored write.
    pub extents_max: usize,
    /// The longest value of a key or an attribute.
    pub value_bytes_max: usize,
    /// The most guards of one transaction.
    pub guards_max: usize,
    /// The most reads of one transaction.
    pub reads_max: usize,
    /// The most changes of one transaction.
    pub writes_max: usize,
    /// The chance that a guard is made without regard to what holds.
    pub miss_percent: u32,
    /// The chance that a range lies near 2^32, or near the end of the offset space.
    pub far_percent: u32,
    /// The chance that a change removes the object.
    pub remove_percent: u32,
    /// The chance that a change replaces one fork with another. At 0, histories are those that seeds gave before there
    /// was such a change.
    pub replace_percent: u32,
    /// True if there are guards on objects' versions. Without them, histories are those that seeds gave before there
    /// were any.
    pub version_guards: bool,
    /// True if keys are guarded by their versions and read with them, and sessions are fenced. Without that, histories
    /// are those that seeds gave before there was any of it.
    pub key_versions_and_sessions: bool,
    /// True if forks are appended to and guarded by their sizes. Without that, histories are those that seeds gave before
    /// there was any of it.
    pub appends: bool,
}

impl Default for Shape {
    /// Returns a shape of small objects in which everything overlaps.
    fn default() -> Self {
        Self {
            objects: 3,
            forks: 3,
            keys: 6,
            attributes: 3,
            span_bytes: 200,
            extent_bytes_max: 60,
            extents_max: 5,
            value_bytes_max: 20,
            guards_max: 2,
            reads_max: 3,
            writes_max: 3,
            miss_percent: 15,
            far_percent: 5,
            remove_percent: 3,
            replace_percent: 5,
            version_guards: true,
            key_versions_and_sessions: true,
            appends: true,
        }
    }
}

impl Shape {
    /// Returns a shape with one object and one fork, of which transactions write and read overlapping ranges and little
    /// else: short steps for concurrent histories.
    pub fn contended() -> Self {
        Self {
            objects: 1,
            forks: 1,
            keys: 2,
            attributes: 1,
            span_bytes: 32,
            extent_bytes_max: 16,
            extents_max: 2,
            guards_max: 1,
            reads_max: 2,
            writes_max: 1,
            far_percent: 0,
            remove_percent: 2,
            ..Self::default()
        }
    }
}

/// One transaction with its expected answer.
#[derive(Clone, Debug)]
pub struct Step {
    /// The object.
    pub object: ObjectId,
    /// The transaction.
    pub transaction: Transaction,
    /// The answer of a store that applied all the steps before.
    pub expected: Result<Outcome, StoreError>,
}

/// A generator of transactions. As an iterator it never ends.
#[derive(Clone, Debug)]
pub struct Generator {
    rng: SmallRng,
    shape: Shape,
    objects: Vec<ObjectId>,
    model: Model,
    /// Versions that outcomes showed, for transactions that the model does not see.
    seen: BTreeMap<ObjectId, u64>,
}

impl Generator {
    /// Creates a generator whose objects are named by small numbers.
    pub fn new(seed: u64, shape: Shape) -> Self {
        let objects = (0..shape.objects).map(|index| index.to_string());
        let objects =
            objects.map(|name| ObjectId::new(name).expect("a number is 1 to 20 bytes long")).collect();
        Self::with_objects(seed, shape, objects)
    }

    /// Creates a generator for given objects, at least one; the shape's number of objects has no meaning.
    pub fn with_objects(seed: u64, shape: Shape, objects: Vec<ObjectId>) -> Self {
        let rng = SmallRng::seed_from_u64(seed);
        Self { rng, shape, objects, model: Model::new(), seen: BTreeMap::new() }
    }

    /// Returns the model of the transactions given out by [`Generator::step`].
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Returns the model, to change what the store that it stands for did by itself.
    pub fn model_mut(&mut self) -> &mut Model {
        &mut self.model
    }

    /// Returns the objects that transactions are about.
    pub fn objects(&self) -> &[ObjectId] {
        &self.objects
    }

    /// Makes a transaction and applies it to the generator's model.
    pub fn step(&mut self) -> Step {
        let (object, transaction) = self.transaction();
        let expected = self.apply(&object, &transaction);
        Step { object, transaction, expected }
    }

    /// Applies a transaction that was not made by [`Generator::step`] to the generator's model.
    pub fn apply(&mut self, object: &ObjectId, transaction: &Transaction) -> Result<Outcome, StoreError> {
        self.model.apply(object, transaction)
    }

    /// Makes a transaction without applying it: for histories of several generators at once, or of stores that
    /// fail. Guards are made from the model and from what [`Generator::observe`] was told.
    pub fn transaction(&mut self) -> (ObjectId, Transaction) {
        let object = self.objects[self.rng.random_range(0..self.objects.len())].clone();
        let state = self.model.state(&object);
        let mut transaction = Transaction::new();
        for _ in 0..self.up_to(self.shape.guards_max) {
            let guard = self.guard(&object, &state);
            transaction.guards.push(guard);
        }
        for _ in 0..self.up_to(self.shape.reads_max) {
            let read = self.read(&state);
            transaction.reads.push(read);
        }
        // Most transactions write: they are what makes a history.
        if self.percent(85) {
            for _ in 0..self.up_to(self.shape.writes_max).max(1) {
                let write = self.write();
                transaction.writes.push(write);
            }
        }
        // Histories have no failures: an append near the end of the offset space may have no room there.
        let appends = transaction.writes.iter().any(|write| matches!(write, WriteOp::Append { .. }));
        if appends && state.clone().apply(&transaction).is_err() {
            for write in &mut transaction.writes {
                if matches!(write, WriteOp::Append { .. }) {
                    *write = WriteOp::Create;
                }
            }
        }
        (object, transaction)
    }

    /// Tells the generator the outcome of a transaction that it did not apply itself, so that its guards keep up with
    /// what other clients do.
    pub fn observe(&mut self, object: &ObjectId, outcome: &Outcome) {
        let version = match outcome {
            Outcome::Done(done) => done.version,
            Outcome::Refused(refusal) => refusal.version,
        };
        self.seen.insert(object.clone(), version);
    }

    fn percent(&mut self, chance: u32) -> bool {
        self.rng.random_range(0..100) < chance
    }

    fn up_to(&mut self, max: usize) -> usize {
        self.rng.random_range(0..=max)
    }

    fn fork(&mut self) -> Fork {
        fork_of(self.up_to(self.shape.forks.saturating_sub(1)))
    }

    /// Makes a replacement of one fork by another. Where the shape has one fork only, its content goes to a second one,
    /// and comes back from there.
    fn replacement(&mut self) -> WriteOp {
        let count = self.shape.forks.max(2);
        let fork = self.rng.random_range(0..count);
        let from = (fork + self.rng.random_range(1..count)) % count;
        WriteOp::ReplaceFork { fork: fork_of(fork), from: fork_of(from) }
    }

    fn key(&mut self, names: usize) -> Key {
        // Names that are prefixes of each other, as well as unlike ones.
        let index = self.up_to(names.saturating_sub(1));
        let name = format!("{}{}", ["k", "k/", "m"][index % 3], "x".repeat(index / 3));
        Key::new(name).expect("a short name is a key's name")
    }

    fn bytes(&mut self, len: usize) -> Bytes {
        let mut bytes = vec![0; len];
        self.rng.fill(&mut bytes[..]);
        bytes.into()
    }

    fn value(&mut self) -> Bytes {
        let len = self.up_to(self.shape.value_bytes_max);
        self.bytes(len)
    }

    fn range(&mut self) -> ByteRange {
        let base = match self.percent(self.shape.far_percent) {
            false => 0,
            true if self.percent(50) => (1 << 32) - self.shape.span_bytes.min(1 << 31),
            true => OFFSET_MAX - (self.shape.span_bytes + self.shape.extent_bytes_max).min(OFFSET_MAX),
        };
        let offset = base + self.rng.random_range(0..=self.shape.span_bytes);
        ByteRange::new(offset, self.rng.random_range(0..=self.shape.extent_bytes_max))
    }

    fn guard(&mut self, object: &ObjectId, state: &ObjectState) -> Guard {
        let miss = self.percent(self.shape.miss_percent);
        if self.shape.key_versions_and_sessions && self.percent(12) {
            return self.recent_guard(state, miss);
        }
        if self.shape.appends && self.percent(6) {
            let fork = self.fork();
            let size = state.fork_size(&fork).unwrap_or(0);
            return Guard::Size { fork, size: if miss { size + 1 } else { size } };
        }
        match self.rng.random_range(0..if self.shape.version_guards { 17 } else { 16 }) {
            0 if state.exists() != miss => Guard::Exists,
            0 => Guard::Absent,
            1..=7 => {
                let fork = self.fork();
                let range = if self.percent(5) { ByteRange::ALL } else { self.range() };
                let mut version = self.region_version(object, state, &fork, range);
                if miss {
                    version = version.saturating_sub(self.rng.random_range(1..4));
                } else if self.percent(10) {
                    version += self.rng.random_range(0..4);
                }
                Guard::Region { fork, range, version }
            }
            8 | 9 => {
                let (fork, range) = (self.fork(), self.range());
                let mut version = self.region_version(object, state, &fork, range);
                if !miss {
                    version += self.rng.random_range(1..4);
                }
                Guard::Proposal { fork, range, version: version.min(PROPOSAL_MAX) }
            }
            10..=12 => {
                let key = self.key(self.shape.keys);
                let check = self.check(state.keys().get(&key), miss);
                Guard::Key { key, check }
            }
            13 | 14 => {
                let name = self.key(self.shape.attributes);
                let check = self.check(state.attributes().get(&name), miss);
                Guard::Attribute { name, check }
            }
            16 => {
                let version = state.version();
                let other = if self.percent(50) { version + 1 } else { version.saturating_sub(1) };
                Guard::Version { version: if miss { other } else { version } }
            }
            _ if miss => Guard::Fence { token: state.fence().saturating_sub(1) },
            _ => Guard::Fence { token: state.fence() + self.rng.random_range(0..3) },
        }
    }

    /// Makes a guard on the version of a key or on a session.
    fn recent_guard(&mut self, state: &ObjectState, miss: bool) -> Guard {
        if self.percent(60) {
            let key = self.key(self.shape.keys);
            let version = state.key_version(&key);
            let other = if self.percent(50) { version + 1 } else { version.saturating_sub(1) };
            return Guard::KeyVersion { key, version: if miss { other } else { version } };
        }
        let fences = state.fences();
        let mut token = fences.fence + self.rng.random_range(0..8);
        if miss && !fences.sessions.is_empty() {
            token = fences.sessions[self.rng.random_range(0..fences.sessions.len())];
        }
        Guard::Fence { token }
    }

    /// Returns the region version as far as the generator knows it: that of the object, where other clients write to it
    /// too.
    fn region_version(&self, object: &ObjectId, state: &ObjectState, fork: &Fork, range: ByteRange) -> u64 {
        self.seen.get(object).copied().unwrap_or_else(|| state.region_version(fork, range))
    }

    fn check(&mut self, value: Option<&Bytes>, miss: bool) -> Check {
        let operand = match value {
            Some(value) if !self.percent(30) => value.clone(),
            _ => self.value(),
        };
        let checks = [
            Check::Present,
            Check::Absent,
            Check::Equal(operand.clone()),
            Check::NotEqual(operand.clone()),
            Check::Less(operand.clone()),
            Check::LessOrEqual(operand.clone()),
            Check::Greater(operand.clone()),
            Check::GreaterOrEqual(operand),
        ];
        let candidates: Vec<Check> =
            checks.into_iter().filter(|check| miss || check.holds(value.map(AsRef::as_ref))).collect();
        // With no value `Absent` holds, and with one `Present`, so there is always a candidate.
        candidates[self.rng.random_range(0..candidates.len())].clone()
    }

    fn read(&mut self, state: &ObjectState) -> ReadOp {
        let limit = self.rng.random_range(0..6);
        if self.shape.key_versions_and_sessions && self.percent(15) {
            return match self.rng.random_range(0..3) {
                0 => ReadOp::versioned_key(self.key(self.shape.keys)),
                1 => ReadOp::VersionedKeys { range: self.key_range(), limit, values: self.percent(50) },
                _ => ReadOp::Fences,
            };
        }
        match self.rng.random_range(0..16) {
            0..=5 => {
                let fork = self.fork();
                // Reading a whole fork is for those that are not far longer than what is written of them.
                let small = state.fork_size(&fork).unwrap_or(0) <= 4 * self.shape.span_bytes;
                let range = if small && self.percent(20) { ByteRange::ALL } else { self.range() };
                let intent = if self.percent(20) { Intent::Update } else { Intent::Look };
                ReadOp::Range { fork, range, intent }
            }
            6..=8 => {
                let range = if self.percent(30) { ByteRange::ALL } else { self.range() };
                ReadOp::Extents { fork: self.fork(), range }
            }
            9 => ReadOp::Stat,
            10 => ReadOp::Forks { after: if self.percent(50) { None } else { Some(self.fork()) }, limit },
            11 => ReadOp::Key { key: self.key(self.shape.keys) },
            12 | 13 => ReadOp::Keys { range: self.key_range(), limit, values: self.percent(50) },
            14 => ReadOp::Attribute { name: self.key(self.shape.attributes) },
            _ => ReadOp::Attributes,
        }
    }

    fn key_range(&mut self) -> KeyRange {
        let mut range = KeyRange::all();
        if self.percent(30) {
            range.prefix = Bytes::from_static(b"k/");
        }
        if self.percent(30) {
            range.after = Some(self.key(self.shape.keys).to_bytes());
        }
        if self.percent(30) {
            range.before = Some(self.key(self.shape.keys).to_bytes());
        }
        range
    }

    fn write(&mut self) -> WriteOp {
        if self.shape.key_versions_and_sessions && self.percent(4) {
            return WriteOp::FenceSession { session: self.rng.random_range(0..24) };
        }
        if self.percent(self.shape.remove_percent) {
            return WriteOp::Remove;
        }
        if self.shape.replace_percent > 0 && self.percent(self.shape.replace_percent) {
            return self.replacement();
        }
        if self.shape.appends && self.percent(8) {
            let len = self.rng.random_range(0..=self.shape.extent_bytes_max);
            return WriteOp::Append { fork: self.fork(), data: self.bytes(len as usize) };
        }
        match self.rng.random_range(0..24) {
            0 => WriteOp::Create,
            1..=10 => {
                let mut extents = Vec::new();
                for _ in 0..self.rng.random_range(1..=self.shape.extents_max.max(1)) {
                    let range = self.range();
                    extents.push((range.offset, self.bytes(range.len as usize)));
                }
                WriteOp::Extents { fork: self.fork(), extents }
            }
            11..=13 => {
                let range = if self.percent(5) { ByteRange::ALL } else { self.range() };
                WriteOp::Zero { fork: self.fork(), range }
            }
            14 | 15 => WriteOp::Truncate { fork: self.fork(), size: self.range().offset },
            16 => WriteOp::RemoveFork { fork: self.fork() },
            17 | 18 => WriteOp::SetKey { key: self.key(self.shape.keys), value: self.value() },
            19 => WriteOp::RemoveKey { key: self.key(self.shape.keys) },
            20 | 21 => WriteOp::SetAttribute { name: self.key(self.shape.attributes), value: self.value() },
            22 => WriteOp::RemoveAttribute { name: self.key(self.shape.attributes) },
            _ => WriteOp::RaiseFence { token: self.rng.random_range(0..20) },
        }
    }
}

/// Returns the fork of a number: the default one for 0.
fn fork_of(index: usize) -> Fork {
    match index {
        0 => Fork::DEFAULT,
        index => Fork::new(format!("f{index}")).expect("a short name is a fork's name"),
    }
}

impl Iterator for Generator {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        Some(self.step())
    }
}
