//! One run of one case: a store, the model beside it, and the helpers that cases are written with.

use std::cell::{Cell, RefCell};
use std::fmt;

use ::bytes::Bytes;

use super::Effort;
use crate::testkit::{Model, block_on};
use crate::*;

/// The reason for a case's failure.
#[derive(Clone, PartialEq, Eq)]
pub struct Failure(String);

impl Failure {
    /// Creates a failure with a sentence as its reason.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self(format!("the store failed: {error:?}"))
    }
}

/// Fails the case with a sentence unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::testkit::conformance::Failure::new(format!($($text)+)));
        }
    };
}

/// Fails the case with a sentence, and both values, unless they are equal.
macro_rules! same {
    ($found:expr, $expected:expr, $($text:tt)+) => {
        match (&$found, &$expected) {
            (found, expected) => if *found != *expected {
                let (found, expected) = (
                    $crate::testkit::conformance::trial::brief(found),
                    $crate::testkit::conformance::trial::brief(expected),
                );
                let text = format!($($text)+);
                return Err($crate::testkit::conformance::Failure::new(
                    format!("{text}: found {found}, expected {expected}"),
                ));
            },
        }
    };
}

pub(super) use {ensure, same};

/// Returns the debug text of a value, cut where it gets long.
pub(in crate::testkit) fn brief(value: &(impl fmt::Debug + ?Sized)) -> String {
    const CHARS_MAX: usize = 1500;

    struct Cut(String);
    impl fmt::Write for Cut {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.push_str(text);
            if self.0.len() > CHARS_MAX { Err(fmt::Error) } else { Ok(()) }
        }
    }
    let mut cut = Cut(String::new());
    // The only error is that the text grew too long.
    if fmt::write(&mut cut, format_args!("{value:?}")).is_err() {
        let chars: String = cut.0.chars().take(CHARS_MAX).collect();
        return format!("{chars}…");
    }
    cut.0
}

/// A set of connections to one store.
#[derive(Clone, Copy, derive_more::Debug)]
#[debug("Connections")]
pub struct Connections<'a>(&'a [&'a dyn ObjectStore]);

impl<'a> Connections<'a> {
    /// Returns the number of connections.
    pub fn count(self) -> usize {
        self.0.len()
    }

    /// Returns the connection of a client.
    pub fn of(self, client: usize) -> &'a dyn ObjectStore {
        self.0[client % self.0.len()]
    }
}

/// The environment of a case.
#[derive(derive_more::Debug)]
#[debug("Trial")]
pub struct Trial<'a> {
    /// The store under test, by the first connection.
    pub store: &'a dyn ObjectStore,
    /// All connections to it; clients that run at the same time have one each.
    pub connections: Connections<'a>,
    /// The number of transactions so far, which decides the connection of the next one.
    turn: Cell<usize>,
    /// The number of repetitions of what may be repeated.
    pub effort: Effort,
    prefix: String,
    model: RefCell<Model>,
}

impl<'a> Trial<'a> {
    /// Creates a trial of the store behind all `connections`, at least one; its objects' ids begin with `prefix`.
    pub fn new(connections: &'a [&'a dyn ObjectStore], prefix: &str, effort: Effort) -> Self {
        let (store, turn, connections) = (connections[0], Cell::new(0), Connections(connections));
        Self { store, connections, turn, effort, prefix: prefix.to_string(), model: RefCell::default() }
    }

    /// Returns the connection whose turn it is.
    pub fn next_connection(&self) -> &'a dyn ObjectStore {
        self.turn.set(self.turn.get().wrapping_add(1));
        self.connections.of(self.turn.get())
    }

    /// Returns the id of an object of this case.
    pub fn object(&self, name: &str) -> ObjectId {
        self.object_bytes(name.as_bytes())
    }

    /// Returns the id of an object of this case, made of any bytes.
    pub fn object_bytes(&self, name: &[u8]) -> ObjectId {
        let id = [self.prefix.as_bytes(), b"/", name].concat();
        ObjectId::new(id).expect("namespaces and names of cases are short")
    }

    /// Applies a transaction to the store alone.
    pub fn apply_alone(&self, object: &ObjectId, transaction: Transaction) -> Result<Outcome, StoreError> {
        block_on(self.next_connection().apply(object, transaction))
    }

    /// Applies a transaction to the store and to the model, and fails unless they agree.
    pub fn apply(&self, object: &ObjectId, transaction: Transaction) -> Result<Outcome, Failure> {
        let expected = self.model.borrow_mut().apply(object, &transaction);
        let found = self.apply_alone(object, transaction.clone());
        let agree = match (&found, &expected) {
            (Ok(found), Ok(expected)) => found == expected,
            (Err(found), Err(expected)) => found.kind == expected.kind,
            _ => false,
        };
        if !agree {
            let (found, expected) = (brief(&found), brief(&expected));
            let transaction = brief(&transaction);
            return Err(Failure(format!("{transaction} on {object}: found {found}, expected {expected}")));
        }
        Ok(found?)
    }

    /// Applies a transaction of which every guard must hold.
    pub fn done(&self, object: &ObjectId, transaction: Transaction) -> Result<Done, Failure> {
        match self.apply(object, transaction)? {
            Outcome::Done(done) => Ok(done),
            Outcome::Refused(refusal) => Err(Failure(format!("refused: {}", brief(&refusal)))),
        }
    }

    /// Applies a transaction of which a guard must fail.
    pub fn refused(&self, object: &ObjectId, transaction: Transaction) -> Result<Refusal, Failure> {
        match self.apply(object, transaction)? {
            Outcome::Refused(refusal) => Ok(refusal),
            Outcome::Done(done) => Err(Failure(format!("not refused: {}", brief(&done)))),
        }
    }

    /// Applies a transaction that exceeds a limit: it must fail as such, and change nothing.
    pub fn invalid(&self, object: &ObjectId, transaction: Transaction) -> Result<(), Failure> {
        let before = self.stat(object)?;
        let text = brief(&transaction);
        match self.apply_alone(object, transaction) {
            Err(error) if error.kind == ErrorKind::Invalid => {
                ensure!(!error.message.is_empty(), "{text}: the error says nothing");
            }
            result => return Err(Failure(format!("{text}: not invalid: {}", brief(&result)))),
        }
        same!(self.stat(object)?, before, "{text}: the object changed");
        Ok(())
    }

    /// Returns the only answer to a transaction of one read.
    pub fn answer(&self, object: &ObjectId, read: ReadOp) -> Result<Answer, Failure> {
        let mut done = self.done(object, Transaction::new().read(read))?;
        ensure!(done.answers.len() == 1, "{} answers to one read", done.answers.len());
        Ok(done.answers.remove(0))
    }

    /// Reads a range.
    pub fn range(&self, object: &ObjectId, fork: &Fork, range: ByteRange) -> Result<RangeRead, Failure> {
        let read = ReadOp::Range { fork: fork.clone(), range, intent: Intent::Look };
        range_of(self.answer(object, read)?)
    }

    /// Reads the extents of a range.
    pub fn extents(&self, object: &ObjectId, fork: &Fork, range: ByteRange) -> Result<RangeRead, Failure> {
        range_of(self.answer(object, ReadOp::Extents { fork: fork.clone(), range })?)
    }

    /// Reads the object at a glance.
    pub fn stat(&self, object: &ObjectId) -> Result<Stat, Failure> {
        match self.answer(object, ReadOp::Stat)? {
            Answer::Stat(stat) => Ok(stat),
            other => Err(Failure(format!("{other:?} answers a stat"))),
        }
    }

    /// Reads the value of a key.
    pub fn key(&self, object: &ObjectId, name: &str) -> Result<Option<Bytes>, Failure> {
        match self.answer(object, ReadOp::Key { key: key(name) })? {
            Answer::Value(value) => Ok(value),
            other => Err(Failure(format!("{other:?} answers a read of a key"))),
        }
    }

    /// Reads a key's value and version.
    pub fn versioned_key(&self, object: &ObjectId, name: &str) -> Result<Option<Versioned>, Failure> {
        match self.answer(object, ReadOp::versioned_key(key(name)))? {
            Answer::VersionedValue(found) => Ok(found),
            other => Err(Failure(format!("{other:?} answers a read of a key and its version"))),
        }
    }

    /// Reads the object's fence and its fenced sessions.
    pub fn fences(&self, object: &ObjectId) -> Result<Fences, Failure> {
        match self.answer(object, ReadOp::Fences)? {
            Answer::Fences(fences) => Ok(fences),
            other => Err(Failure(format!("{other:?} answers a read of fences"))),
        }
    }

    /// Reads a page of keys.
    pub fn keys(
        &self,
        object: &ObjectId,
        range: KeyRange,
        limit: u32,
        values: bool,
    ) -> Result<KeyPage, Failure> {
        match self.answer(object, ReadOp::Keys { range, limit, values })? {
            Answer::Keys(page) => Ok(page),
            other => Err(Failure(format!("{other:?} answers a read of keys"))),
        }
    }

    /// Reads a page of forks.
    pub fn forks(&self, object: &ObjectId, after: Option<Fork>, limit: u32) -> Result<ForkPage, Failure> {
        match self.answer(object, ReadOp::Forks { after, limit })? {
            Answer::Forks(page) => Ok(page),
            other => Err(Failure(format!("{other:?} answers a read of forks"))),
        }
    }
}

/// Returns the range read that an answer holds.
pub(super) fn range_of(answer: Answer) -> Result<RangeRead, Failure> {
    match answer {
        Answer::Range(range) => Ok(range),
        other => Err(Failure(format!("{} answers a read of a range", brief(&other)))),
    }
}

/// Returns a fork of a case.
pub(super) fn fork(name: &str) -> Fork {
    Fork::try_from(name).expect("names in cases are short")
}

/// Returns a key of a case.
pub(super) fn key(name: &str) -> Key {
    Key::try_from(name).expect("names in cases are short, and not empty")
}

/// Returns the range from a first byte to one past the last.
pub(super) fn span(start: u64, end: u64) -> ByteRange {
    ByteRange::from(start..end)
}

/// Returns an extent of data.
pub(super) fn data(start: u64, end: u64, version: u64) -> Extent {
    Extent { range: span(start, end), version, kind: ExtentKind::Data }
}

/// Returns a hole.
pub(super) fn hole(start: u64, end: u64, version: u64) -> Extent {
    Extent { range: span(start, end), version, kind: ExtentKind::Hole }
}

/// Returns an empty transaction.
pub(super) fn tx() -> Transaction {
    Transaction::new()
}

/// Returns bytes that differ from place to place, and from seed to seed.
pub(super) fn pattern(len: usize, seed: u64) -> Bytes {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes.into()
}
