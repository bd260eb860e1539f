//! A check of whether what concurrent clients saw of an object could have happened one transaction after another.
//!
//! A history is linearizable if every transaction can be given one moment between its invocation and its return, so
//! that applying them in that order to the [`Model`] gives each the outcome that its client saw (Herlihy and Wing). A
//! transaction of unknown fate has its moment at any time after its invocation, or never.
//!
//! In general the search for such an order is exponential (Wing and Gong; Lowe adds memoisation). Here versions
//! determine nearly all of it: an outcome carries the object's version, so every answered transaction has its place
//! between two versions, and only those of unknown fate are left to be tried, where a version is missing that no
//! answered transaction took. What later reads saw of the missing version (extents carry it) tells most of the
//! candidates apart at once.
//!
//! Times are ticks of any clock that all clients share; [`Recorder`] brings one.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ::bytes::Bytes;

use crate::testkit::conformance::brief;
use crate::testkit::{Model, ObjectState};
use crate::*;

/// One transaction, as its client saw it.
#[derive(Clone, Debug)]
pub struct Record {
    /// The tick before it was sent.
    pub invoked: u64,
    /// The tick after its reply arrived; `u64::MAX` if none did.
    pub returned: u64,
    /// The transaction.
    pub transaction: Transaction,
    /// The result that the client saw.
    pub observed: Observed,
}

/// The result of a transaction, as its client saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observed {
    /// Its outcome.
    Outcome(Outcome),
    /// An error that says that nothing was changed.
    Nothing,
    /// No reply, or one that leaves open whether it took effect.
    Unknown,
}

/// The reason why a history is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// No order of the transactions explains what was seen.
    NotLinearizable {
        /// The index in the history of the transaction that could not be explained, in the order that came furthest.
        operation: usize,
        /// The contradiction, as a sentence.
        message: String,
    },
    /// The search was given up, because transactions of unknown fate fit in too many ways.
    Undecided {
        /// The index of the transaction that could not be explained in the order that came furthest.
        operation: usize,
        /// The contradiction in that order, as a sentence.
        message: String,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLinearizable { operation, message } => write!(f, "operation {operation}: {message}"),
            Self::Undecided { operation, message } => write!(
                f,
                "gave up after placing transactions of unknown fate {TRIALS_MAX} times; at best operation \
                 {operation} was left: {message}"
            ),
        }
    }
}

impl std::error::Error for Violation {}

/// The maximum number of placements of transactions of unknown fate before the search is given up.
const TRIALS_MAX: usize = 200_000;

/// Checks the history of one object, which was in the state `initial` before the first transaction.
pub fn check(initial: &ObjectState, history: &[Record]) -> Result<(), Violation> {
    let search = Search::new(history);
    let mut failure = Failure { position: 0, operation: 0, message: String::new() };
    let mut trials = 0;
    let mut known_dead = HashSet::new();
    let words = search.unknown.len().div_ceil(64);
    let mut nodes = vec![Node {
        position: 0,
        state: initial.clone(),
        used: vec![0; words],
        latest_invoked: 0,
        latest: 0,
    }];
    while let Some(mut node) = nodes.pop() {
        loop {
            let Some(&operation) = search.known.get(node.position) else { return Ok(()) };
            if search.has_gap(&node) {
                if !known_dead.insert((node.position, node.used.clone(), node.state.clone())) {
                    break;
                }
                for next in search.alternatives(&node, &mut trials) {
                    nodes.push(next);
                }
                if trials > TRIALS_MAX {
                    let Failure { operation, message, .. } = failure;
                    return Err(Violation::Undecided { operation, message });
                }
            }
            if let Err(message) = search.advance(&mut node, operation) {
                if failure.message.is_empty() || node.position > failure.position {
                    failure = Failure { position: node.position, operation, message };
                }
                break;
            }
        }
    }
    Err(Violation::NotLinearizable { operation: failure.operation, message: failure.message })
}

/// The explanation that came furthest.
struct Failure {
    position: usize,
    operation: usize,
    message: String,
}

/// A node of the search.
struct Node {
    /// The number of answered transactions that are placed.
    position: usize,
    /// The object's state after them, and after those of unknown fate placed among them.
    state: ObjectState,
    /// The placed transactions of unknown fate: a bit each.
    used: Vec<u64>,
    /// The latest invocation of a placed transaction, and that transaction's index.
    latest_invoked: u64,
    latest: usize,
}

/// An extent that an outcome showed: the transaction that took its version must have written it.
#[derive(PartialEq, Eq, Hash)]
struct Evidence<'a> {
    fork: &'a Fork,
    extent: Extent,
    data: Option<Bytes>,
}

/// The part of a search that does not change in its course.
struct Search<'a> {
    history: &'a [Record],
    /// The answered transactions in the one order that their versions allow: by version, with the one that took
    /// the version before those that saw it.
    known: Vec<usize>,
    /// The earliest return of the answered transactions from each position on.
    returns_next: Vec<u64>,
    /// The transactions of unknown fate that may have changed something, in the order of their invocations.
    unknown: Vec<usize>,
    evidence: HashMap<u64, HashSet<Evidence<'a>>>,
}

impl<'a> Search<'a> {
    fn new(history: &'a [Record]) -> Self {
        let mut known: Vec<usize> = Vec::new();
        let mut unknown: Vec<usize> = Vec::new();
        for (index, record) in history.iter().enumerate() {
            match &record.observed {
                Observed::Outcome(_) => known.push(index),
                Observed::Unknown if !record.transaction.writes.is_empty() => unknown.push(index),
                Observed::Unknown | Observed::Nothing => {}
            }
        }
        known.sort_by_key(|index| {
            let record = &history[*index];
            (version(record), !took_version(record), record.invoked)
        });
        unknown.sort_by_key(|index| history[*index].invoked);
        let mut returns_next: Vec<u64> = known.iter().map(|index| history[*index].returned).collect();
        for position in (1..returns_next.len()).rev() {
            returns_next[position - 1] = returns_next[position - 1].min(returns_next[position]);
        }
        let mut search = Self { history, known, returns_next, unknown, evidence: HashMap::new() };
        if !search.unknown.is_empty() {
            search.collect_evidence();
        }
        search
    }

    /// Collects all extents that outcomes showed of versions that no answered transaction took.
    fn collect_evidence(&mut self) {
        let history = self.history;
        let taken: HashSet<u64> = history.iter().filter(|record| took_version(record)).map(version).collect();
        let evidence = &mut self.evidence;
        let mut add = |fork: &'a Fork, start: u64, read: &RangeRead| {
            for extent in &read.extents {
                // An answer that is not one to this question is found out when its transaction is placed.
                let Some(from) = extent.range.offset.checked_sub(start) else { continue };
                if taken.contains(&extent.version) || extent.range.validate().is_err() {
                    continue;
                }
                let end = from + extent.range.len;
                let shown = extent.kind == ExtentKind::Data && end <= read.data.len() as u64;
                let data = shown.then(|| read.data.slice(from as usize..end as usize));
                evidence.entry(extent.version).or_default().insert(Evidence { fork, extent: *extent, data });
            }
        };
        for record in history {
            match &record.observed {
                Observed::Outcome(Outcome::Done(done)) => {
                    for (read, answer) in record.transaction.reads.iter().zip(&done.answers) {
                        if let (
                            ReadOp::Range { fork, range, .. } | ReadOp::Extents { fork, range },
                            Answer::Range(found),
                        ) = (read, answer)
                        {
                            add(fork, range.offset, found);
                        }
                    }
                }
                Observed::Outcome(Outcome::Refused(Refusal {
                    guard, found: Found::Region(found), ..
                })) => {
                    if let Some(Guard::Region { fork, range, .. } | Guard::Proposal { fork, range, .. }) =
                        record.transaction.guards.get(*guard)
                    {
                        add(fork, range.offset, found);
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns whether a version lies between the node's and the one that the next answered transaction saw.
    fn has_gap(&self, node: &Node) -> bool {
        let record = &self.history[self.known[node.position]];
        version(record) > node.state.version() + u64::from(took_version(record))
    }

    /// Returns every way to place one transaction of unknown fate next; the likeliest, the one invoked last, at the
    /// end.
    fn alternatives(&self, node: &Node, trials: &mut usize) -> Vec<Node> {
        let record = &self.history[self.known[node.position]];
        let version_max = version(record) - u64::from(took_version(record));
        let mut nodes = Vec::new();
        for (bit, &operation) in self.unknown.iter().enumerate() {
            let candidate = &self.history[operation];
            // What returned before it was invoked must already be placed.
            if candidate.invoked > self.returns_next[node.position] {
                break;
            }
            if node.used[bit / 64] >> (bit % 64) & 1 == 1 {
                continue;
            }
            *trials += 1;
            let mut state = node.state.clone();
            let applied = matches!(state.apply(&candidate.transaction), Ok(Outcome::Done(_)));
            if !applied || state.version() > version_max || !self.fits(&state) {
                continue;
            }
            let mut used = node.used.clone();
            used[bit / 64] |= 1 << (bit % 64);
            let mut next = Node { state, used, ..*node };
            next.place(operation, candidate);
            nodes.push(next);
        }
        nodes
    }

    /// Returns whether a state has everything that was ever seen of its last version.
    fn fits(&self, state: &ObjectState) -> bool {
        let Some(evidence) = self.evidence.get(&state.version()) else { return true };
        evidence.iter().all(|seen| {
            let extents = state.extents(seen.fork, seen.extent.range);
            let range = seen.extent.range;
            extents == [seen.extent]
                && seen
                    .data
                    .as_ref()
                    .is_none_or(|data| state.bytes(seen.fork, range.offset, range.end()) == data)
        })
    }

    /// Places the next answered transaction; the error says why it cannot be placed there.
    fn advance(&self, node: &mut Node, operation: usize) -> Result<(), String> {
        let record = &self.history[operation];
        let text = || brief(&record.transaction);
        if record.returned < node.latest_invoked {
            return Err(format!(
                "{} returned at {}, yet what it saw is older than what operation {} saw, which was invoked only at {}",
                text(),
                record.returned,
                node.latest,
                node.latest_invoked,
            ));
        }
        let Observed::Outcome(seen) = &record.observed else {
            // Only answered transactions are in the order.
            return Err("it has no outcome".to_string());
        };
        let before = node.state.version();
        match node.state.apply(&record.transaction) {
            Ok(expected) if expected == *seen => {
                node.place(operation, record);
                node.position += 1;
                Ok(())
            }
            expected => Err(format!(
                "{} from {} to {} saw {}; at version {before} it ought to have seen {}",
                text(),
                record.invoked,
                record.returned,
                brief(seen),
                brief(&expected),
            )),
        }
    }
}

impl Node {
    fn place(&mut self, operation: usize, record: &Record) {
        if record.invoked > self.latest_invoked {
            (self.latest_invoked, self.latest) = (record.invoked, operation);
        }
    }
}

/// Returns the object's version that an answered transaction saw or took.
fn version(record: &Record) -> u64 {
    match &record.observed {
        Observed::Outcome(Outcome::Done(done)) => done.version,
        Observed::Outcome(Outcome::Refused(refusal)) => refusal.version,
        Observed::Nothing | Observed::Unknown => 0,
    }
}

/// Returns whether an answered transaction took the version that it saw.
fn took_version(record: &Record) -> bool {
    matches!(record.observed, Observed::Outcome(Outcome::Done(_))) && !record.transaction.writes.is_empty()
}

/// A recorder of what concurrent clients do, and a check of it. Clients share one recorder, and send their transactions
/// through it.
///
/// ```
/// use nacre_object::testkit::{MemoryStore, block_on, linear::Recorder};
/// use nacre_object::{Fork, ObjectId, Transaction};
///
/// let (store, recorder) = (MemoryStore::new(), Recorder::new());
/// let object = ObjectId::try_from("a")?;
/// std::thread::scope(|scope| {
///     for byte in 0..4 {
///         let (store, recorder, object) = (&store, &recorder, &object);
///         let write = Transaction::new().write(Fork::DEFAULT, 0, vec![byte]);
///         scope.spawn(move || block_on(recorder.apply(store, object, write)).map(drop));
///     }
/// });
/// recorder.check()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct Recorder {
    clock: AtomicU64,
    history: Mutex<BTreeMap<ObjectId, Vec<Record>>>,
}

impl Recorder {
    /// Creates a recorder of nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies a transaction and records its result. If the future is dropped before it is done, the result counts as
    /// unknown.
    pub async fn apply(
        &self,
        store: &(impl ObjectStore + ?Sized),
        object: &ObjectId,
        transaction: Transaction,
    ) -> Result<Outcome, StoreError> {
        let record = self.begin(object, &transaction);
        let result = store.apply(object, transaction).await;
        self.end(object, record, result)
    }

    /// Records that a transaction is about to be sent, for clients that have several under way. Returns the index of
    /// the record among those of the object.
    pub fn begin(&self, object: &ObjectId, transaction: &Transaction) -> usize {
        let mut history = self.history();
        let invoked = self.tick();
        let records = history.entry(object.clone()).or_default();
        let transaction = transaction.clone();
        records.push(Record { invoked, returned: u64::MAX, transaction, observed: Observed::Unknown });
        records.len() - 1
    }

    /// Records the result of a transaction, and returns it.
    pub fn end(
        &self,
        object: &ObjectId,
        record: usize,
        result: Result<Outcome, StoreError>,
    ) -> Result<Outcome, StoreError> {
        let returned = self.tick();
        let observed = match &result {
            Ok(outcome) => Observed::Outcome(outcome.clone()),
            Err(error) if error.kind == ErrorKind::Unknown => Observed::Unknown,
            Err(_) => Observed::Nothing,
        };
        if let Some(record) = self.history().get_mut(object).and_then(|records| records.get_mut(record))
            && observed != Observed::Unknown
        {
            (record.returned, record.observed) = (returned, observed);
        }
        result
    }

    /// Returns the records by object, in the order of invocation.
    pub fn records(&self) -> BTreeMap<ObjectId, Vec<Record>> {
        self.history().clone()
    }

    /// Returns the number of transactions that were recorded, and the number of those with an unknown fate.
    pub fn count(&self) -> (usize, usize) {
        let history = self.history();
        let unknown = |record: &&Record| record.observed == Observed::Unknown;
        let all = || history.values().flatten();
        (all().count(), all().filter(unknown).count())
    }

    /// Checks the histories of all objects, which must not have been written to before. The error names the object and
    /// the violation.
    pub fn check(&self) -> Result<(), String> {
        self.check_from(&Model::new())
    }

    /// Checks the histories of all objects, which were in the states of `initial` before. The error names the object
    /// and the violation.
    pub fn check_from(&self, initial: &Model) -> Result<(), String> {
        for (object, records) in &*self.history() {
            let state = initial.object(object).cloned().unwrap_or_default();
            check(&state, records).map_err(|violation| {
                format!("the history of object {object} is not linearizable: {violation}")
            })?;
        }
        Ok(())
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn history(&self) -> MutexGuard<'_, BTreeMap<ObjectId, Vec<Record>>> {
        // Nothing that may panic happens while it is locked.
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
