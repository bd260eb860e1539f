//! The place of classes with all their versions.
//!
//! Today it is an object of the store. Whoever runs methods knows only [`Registry`], so that classes can be kept
//! elsewhere.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use nacre_object::limit::PAGE_ENTRIES_MAX;
use nacre_object::{
    Answer, ErrorKind, Guard, Key, KeyRange, ObjectId, ObjectStore, Outcome, ReadOp, StoreError, Transaction,
    WriteOp,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::bounds::Bounds;
use crate::catalogue::{Catalogue, Class, Method};
use crate::error::ClassError;

/// The object that holds the classes of a store.
pub const CLASSES_OBJECT: &str = "nacre/classes";
/// The number of versions of a class that are kept.
pub const HISTORY_MAX: u64 = 100;
/// The first byte of a record.
const RECORD_VERSION: u8 = 1;

/// One version of a class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The version.
    pub version: u64,
    /// The text; empty if this version removed the class.
    pub text: Vec<u8>,
    /// The methods.
    pub methods: Vec<Method>,
    /// The bounds of a call.
    pub bounds: Bounds,
    /// True if this version removed the class.
    pub removed: bool,
    /// The version whose text this one brought back.
    pub restored: Option<u64>,
    /// The time when it was made, in seconds since 1970, as its author's clock had it.
    pub made_s: u64,
}

/// The place where classes are kept.
pub trait Registry: Send + Sync {
    /// Returns the classes that are current.
    fn catalogue(&self) -> BoxFuture<'_, Result<Arc<Catalogue>, StoreError>>;

    /// Returns the versions of a class that are kept, newest first; empty if there never was one.
    fn history<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Vec<Record>, StoreError>>;

    /// Returns the newest version of a class, which may have removed it; `None` if there never was one.
    fn latest<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(async move { Ok(self.history(name).await?.into_iter().next()) })
    }

    /// Adds a version of a class, if its number is the next one. Returns false if it is not.
    fn add<'a>(&'a self, name: &'a str, record: Record) -> BoxFuture<'a, Result<bool, StoreError>>;
}

/// Classes in an object of a store, [`CLASSES_OBJECT`].
#[derive(derive_more::Debug)]
#[debug("StoreRegistry")]
pub struct StoreRegistry {
    store: Arc<dyn ObjectStore>,
    object: ObjectId,
    /// The classes as they were last seen.
    seen: Mutex<Arc<Catalogue>>,
}

impl StoreRegistry {
    /// Creates the registry of a store.
    pub fn new(store: Arc<dyn ObjectStore>) -> Self {
        let object = ObjectId::try_from(CLASSES_OBJECT).expect("the name is short and not empty");
        Self { store, object, seen: Mutex::default() }
    }

    async fn apply(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        let outcome = self.store.apply(&self.object, transaction).await;
        outcome.map_err(|error| error.context(format_args!("cannot use the classes in \"{CLASSES_OBJECT}\"")))
    }

    /// Returns the classes as they were last seen, if they are still current.
    pub(crate) async fn current(&self) -> Result<Option<Arc<Catalogue>>, StoreError> {
        let seen = self.seen.lock().clone();
        if seen.epoch == 0 {
            return Ok(None);
        }
        if self.store.version_now(&self.object) == Some(seen.epoch) {
            return Ok(Some(seen));
        }
        // On Ceph a read of this alone takes no script, as a guard would.
        match self.apply(Transaction::new().read(ReadOp::Stat)).await? {
            Outcome::Done(done) if done.version == seen.epoch => Ok(Some(seen)),
            _ => Ok(None),
        }
    }

    /// Reads the classes, all at one version.
    async fn load(&self) -> Result<Arc<Catalogue>, StoreError> {
        let seen = self.seen.lock().clone();
        'again: loop {
            let mut classes = BTreeMap::new();
            let mut unreadable = BTreeMap::new();
            let mut epoch = None;
            let mut range = KeyRange::prefix(CURRENT);
            loop {
                let read =
                    ReadOp::Keys { range: range.clone(), limit: PAGE_ENTRIES_MAX as u32, values: true };
                let mut transaction = Transaction::new();
                if let Some(version) = epoch {
                    transaction = transaction.guard(Guard::Version { version });
                }
                let Outcome::Done(done) = self.apply(transaction.read(read)).await? else { continue 'again };
                epoch = Some(done.version);
                let Some(Answer::Keys(page)) = done.answers.into_iter().next() else {
                    return Err(nonsense());
                };
                for (key, value) in &page.entries {
                    let name = String::from_utf8_lossy(&key.as_bytes()[CURRENT.len()..]).into_owned();
                    // One that cannot be read fails its own calls, not those of the others.
                    let record = match decode(&name, value) {
                        Ok(record) => record,
                        Err(error) => {
                            unreadable.insert(name, error.to_string());
                            continue;
                        }
                    };
                    let class = match seen.classes.get(&name) {
                        // What has not changed stays compiled. Versions alone do not tell: they start over when the object was
                        // removed.
                        Some(class) if class.is(&record) => class.clone(),
                        _ => {
                            let Record { version, text, methods, bounds, .. } = record;
                            Arc::new(Class::new(name.clone(), version, text.into(), methods, bounds))
                        }
                    };
                    classes.insert(name, class);
                }
                match page.entries.last() {
                    Some((last, _)) if page.more => range.after = Some(last.to_bytes()),
                    _ => break,
                }
            }
            let catalogue = Arc::new(Catalogue { epoch: epoch.unwrap_or(0), classes, unreadable });
            *self.seen.lock() = catalogue.clone();
            return Ok(catalogue);
        }
    }
}

/// The beginning of the keys of current classes.
const CURRENT: &str = "class/";

fn current_key(name: &str) -> Result<Key, StoreError> {
    Key::new(format!("{CURRENT}{name}"))
}

fn history_prefix(name: &str) -> String {
    format!("history/{name}/")
}

fn history_key(name: &str, version: u64) -> Result<Key, StoreError> {
    Key::new(format!("{}{version:016x}", history_prefix(name)))
}

fn nonsense() -> StoreError {
    let text = format!("the store's answer about \"{CLASSES_OBJECT}\" does not fit the question");
    StoreError::new(ErrorKind::Corrupt, text)
}

fn encode(record: &Record) -> Result<Bytes, StoreError> {
    let encoded = postcard::to_extend(record, vec![RECORD_VERSION]);
    encoded.map(Bytes::from).map_err(|error| StoreError::new(ErrorKind::Invalid, error.to_string()))
}

/// Reads a record of a class.
pub(crate) fn decode(name: &str, bytes: &[u8]) -> Result<Record, StoreError> {
    let wrong = |text: String| {
        let text = format!("class \"{name}\" in \"{CLASSES_OBJECT}\" cannot be read: {text}");
        StoreError::new(ErrorKind::Corrupt, text)
    };
    match bytes.split_first() {
        Some((&RECORD_VERSION, rest)) => {
            let record: Record = postcard::from_bytes(rest).map_err(|_| wrong("it is damaged".to_owned()))?;
            Ok(Record { bounds: record.bounds.clamped(), ..record })
        }
        Some((version, _)) => Err(wrong(format!("it is of version {version}, made by a newer program"))),
        None => Err(wrong("it is empty".to_owned())),
    }
}

impl Registry for StoreRegistry {
    fn catalogue(&self) -> BoxFuture<'_, Result<Arc<Catalogue>, StoreError>> {
        Box::pin(async move {
            match self.current().await? {
                Some(current) => Ok(current),
                // Boxed because it is rare: what is asked before each call stays small.
                None => Box::pin(self.load()).await,
            }
        })
    }

    fn history<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        Box::pin(async move {
            let mut records = Vec::new();
            let mut range = KeyRange::prefix(history_prefix(name));
            loop {
                let read =
                    ReadOp::Keys { range: range.clone(), limit: PAGE_ENTRIES_MAX as u32, values: true };
                let Outcome::Done(done) = self.apply(Transaction::new().read(read)).await? else {
                    return Err(nonsense());
                };
                let Some(Answer::Keys(page)) = done.answers.into_iter().next() else {
                    return Err(nonsense());
                };
                for (_, value) in &page.entries {
                    records.push(decode(name, value)?);
                }
                match page.entries.last() {
                    Some((last, _)) if page.more => range.after = Some(last.to_bytes()),
                    _ => break,
                }
            }
            records.reverse();
            Ok(records)
        })
    }

    fn latest<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(async move {
            // A class that is current has its newest record under a key of its own, so the others need not be read.
            let read = ReadOp::Key { key: current_key(name)? };
            let Outcome::Done(done) = self.apply(Transaction::new().read(read)).await? else {
                return Err(nonsense());
            };
            match done.answers.into_iter().next() {
                Some(Answer::Value(Some(value))) => decode(name, &value).map(Some),
                Some(Answer::Value(None)) => Ok(self.history(name).await?.into_iter().next()),
                _ => Err(nonsense()),
            }
        })
    }

    fn add<'a>(&'a self, name: &'a str, record: Record) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let value = encode(&record)?;
            let version = record.version;
            // The number of the version decides: two that are made at the same time have the same.
            let absent = nacre_object::Check::Absent;
            let mut transaction = Transaction::new()
                .guard(Guard::Key { key: history_key(name, version)?, check: absent })
                .change(WriteOp::SetKey { key: history_key(name, version)?, value: value.clone() });
            if version > 1 {
                let key = history_key(name, version - 1)?;
                transaction = transaction.guard(Guard::Key { key, check: nacre_object::Check::Present });
            }
            transaction = transaction.change(match record.removed {
                true => WriteOp::RemoveKey { key: current_key(name)? },
                false => WriteOp::SetKey { key: current_key(name)?, value },
            });
            if version > HISTORY_MAX {
                let key = history_key(name, version - HISTORY_MAX)?;
                transaction = transaction.change(WriteOp::RemoveKey { key });
            }
            Ok(matches!(self.apply(transaction).await?, Outcome::Done(_)))
        })
    }
}

/// Finds the newest record, or fails.
pub(crate) fn newest<'a>(name: &str, history: &'a [Record]) -> Result<&'a Record, ClassError> {
    match history.first() {
        Some(record) if !record.removed => Ok(record),
        _ => Err(ClassError::Missing { name: name.to_owned(), version: None }),
    }
}
