//! The logs of a store by their names.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::future::join_all;
use nacre_map::{ClusterMap, MAP_PREFIX, Random, Update, Value};
use nacre_object::limit::PAGE_ENTRIES_MAX;
use nacre_object::{Escaped, Key, ObjectId, ObjectStore, StoreError, Transaction, WriteOp};

use crate::error::LogError;
use crate::layout::{self, LogId, PREFIX, View};
use crate::limit::PATIENCE;
use crate::log::RetryBudget;
use crate::sequencer::{Sequencer as _, StoreSequencer};
use crate::state::{DIRECTORY, Named, Proposed, Shape, Views, map_name, name_entry, propose, views_entry};
use crate::stripe::{Stripe, StripeError};

/// The name under which this library changes maps.
pub(crate) const WHO: &str = "zlog";

/// A log of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub id: LogId,
    /// The time at which it was created, in milliseconds since 1970, by the clock of the client that created it.
    pub created_ms: u64,
}

/// The logs of a store by their names. It needs a tokio runtime with a clock around its calls.
///
/// Every call waits at its beginning for a store that does not answer ([`Directory::with_patience`]).
#[derive(Clone, derive_more::Debug)]
#[debug("Directory")]
pub struct Directory {
    store: Arc<dyn ObjectStore>,
    map: ClusterMap,
    random: Random,
    patience: Duration,
}

impl Directory {
    /// Creates a handle on the logs of a store.
    ///
    /// # Errors
    /// None but those of a name that no store refuses.
    pub fn new(store: Arc<dyn ObjectStore>) -> Result<Directory, LogError> {
        let map = ClusterMap::new(store.clone(), DIRECTORY)?;
        Ok(Directory { store, map, random: Random::default(), patience: PATIENCE })
    }

    /// Replaces the source of pauses and ids; without this, nobody can foresee them.
    pub fn with_random(self, random: Random) -> Directory {
        Directory { map: self.map.with_random(random.clone()), random, ..self }
    }

    /// Replaces the time for which a store that does not answer is tried again, [`PATIENCE`] without this.
    pub fn with_patience(self, patience: Duration) -> Directory {
        Directory { patience, ..self }
    }

    /// Creates a log.
    ///
    /// # Errors
    /// [`LogError::Exists`] if there is one of that name, [`LogError::Invalid`] if name or shape are not allowed or the directory is
    /// full, and those of the store.
    pub async fn create(&self, name: &str, shape: Shape) -> Result<LogId, LogError> {
        let entry = name_entry(name)?;
        shape.check()?;
        if self.get(name).await?.is_some() {
            return Err(LogError::Exists(name.to_owned()));
        }
        let id = LogId(self.random.number());
        let view = View {
            start: 0,
            epoch: 1,
            generation: self.random.number(),
            width: shape.width,
            unit: shape.unit,
            closed: false,
        };
        let error = match self.make(id, view, entry).await {
            Ok(Proposed::Done(_)) => return Ok(id),
            Ok(Proposed::Refused) => LogError::Exists(name.to_owned()),
            // The log may have its name, and with it the objects are needed.
            Err(error) if error.kind().is_uncertain() => return Err(error),
            // What stood there before is not ours.
            Err(error @ LogError::Corrupt(_)) => return Err(error),
            Err(error) => error,
        };
        // Nobody can find the log. What is left of it, should the store fail again, takes room and does no harm.
        if let Err(why) = self.remove_objects(id).await {
            tracing::warn!(log = name, "objects of a log that could not be created are left: {why}");
        }
        Err(error)
    }

    /// Makes a log with one view, and names it.
    async fn make(&self, id: LogId, view: View, entry: Key) -> Result<Proposed, LogError> {
        create_objects(&*self.store, id, &view).await?;
        let head = layout::head(id)?;
        StoreSequencer::new(self.store.clone(), head).install(1, 0).await.map_err(sequencer_error)?;
        let map = ClusterMap::new(self.store.clone(), &map_name(id))?.with_random(self.random.clone());
        let update = Update::new(WHO).set(views_entry(), Views::of(view).encode()?).if_absent(views_entry());
        propose(&map.proposer(Default::default()), update).await?;
        // The name comes last: before it nobody can find the log.
        let update = Update::new(WHO).set(entry.clone(), Named::new(id, now_ms()).encode()?).if_absent(entry);
        propose(&self.map.proposer(Default::default()), update).await
    }

    /// Returns a log by its name.
    ///
    /// # Errors
    /// [`LogError::Missing`] if there is none, and those of the store.
    pub async fn find(&self, name: &str) -> Result<Listed, LogError> {
        let (Named { id, created_ms, .. }, _) = self.kept(name).await?;
        Ok(Listed { name: name.to_owned(), id, created_ms })
    }

    fn patience(&self) -> RetryBudget {
        RetryBudget::new(self.patience, self.random.clone())
    }

    /// Reads the entry of a name, as long as it takes.
    async fn get(&self, name: &str) -> Result<Option<Value>, LogError> {
        let entry = name_entry(name)?;
        let mut patience = self.patience();
        loop {
            match self.map.get(&entry).await {
                Ok((value, _)) => return Ok(value),
                Err(error) => patience.wait(of_log(name, error)).await?,
            }
        }
    }

    /// Returns the entry of a name with its version.
    async fn named(&self, name: &str) -> Result<(Named, u64), LogError> {
        let Some(value) = self.get(name).await? else {
            return Err(LogError::Missing(name.to_owned()));
        };
        Ok((Named::decode(&value.value)?, value.version))
    }

    /// Returns the entry of a name whose log is not being deleted, with its version.
    async fn kept(&self, name: &str) -> Result<(Named, u64), LogError> {
        match self.named(name).await? {
            (Named { deleting: true, .. }, _) => Err(LogError::Missing(name.to_owned())),
            named => Ok(named),
        }
    }

    /// Returns the logs, in ascending order of their names.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn list(&self) -> Result<Vec<Listed>, LogError> {
        let mut patience = self.patience();
        let state = loop {
            match self.map.state().await {
                Ok(state) => break state,
                Err(error) => patience.wait(told_of("the list of logs", error)).await?,
            }
        };
        let entries = state.entries().iter().filter_map(|(name, value)| {
            let Named { id, created_ms, .. } = Named::decode(&value.value).ok()?;
            let name = std::str::from_utf8(name.as_bytes()).ok()?.to_owned();
            Some(Listed { name, id, created_ms })
        });
        Ok(entries.collect())
    }

    /// Renames a log. Handles on it go on.
    ///
    /// # Errors
    /// [`LogError::Missing`] and [`LogError::Exists`], and those of the store.
    pub async fn rename(&self, from: &str, to: &str) -> Result<(), LogError> {
        let (old, new) = (name_entry(from)?, name_entry(to)?);
        let proposer = self.map.proposer(Default::default());
        loop {
            let (named, version) = self.kept(from).await?;
            if self.get(to).await?.is_some() {
                return Err(LogError::Exists(to.to_owned()));
            }
            let update = Update::new(WHO)
                .if_version(old.clone(), version)
                .if_absent(new.clone())
                .remove(old.clone())
                .set(new.clone(), named.encode()?);
            if let Proposed::Done(_) = propose(&proposer, update).await? {
                return Ok(());
            }
        }
    }

    /// Deletes a log with all its entries. Handles on it fail from then on. A deletion that was interrupted is completed by another
    /// one.
    ///
    /// # Errors
    /// [`LogError::Missing`], and those of the store.
    pub async fn delete(&self, name: &str) -> Result<(), LogError> {
        let entry = name_entry(name)?;
        let proposer = self.map.proposer(Default::default());
        // It is written down first, so that nobody renames the log while its objects go.
        let (named, version) = loop {
            let (mut named, version) = self.named(name).await?;
            if named.deleting {
                break (named, version);
            }
            named.deleting = true;
            let update =
                Update::new(WHO).if_version(entry.clone(), version).set(entry.clone(), named.encode()?);
            if let Proposed::Done(version) = propose(&proposer, update).await? {
                break (named, version);
            }
        };
        self.remove_objects(named.id).await?;
        // The name goes last, so that whoever is interrupted can go on.
        let update = Update::new(WHO).if_version(entry.clone(), version).remove(entry);
        match propose(&proposer, update).await? {
            Proposed::Done(_) => Ok(()),
            Proposed::Refused => Err(LogError::Missing(name.to_owned())),
        }
    }

    /// Removes the map and the objects of a log. Writers that are under way are refused, since the objects' epochs are gone.
    async fn remove_objects(&self, id: LogId) -> Result<(), LogError> {
        let remove = async |object: &ObjectId| {
            self.store.apply(object, Transaction::new().change(WriteOp::Remove)).await.map(drop)
        };
        remove(&ObjectId::new(format!("{MAP_PREFIX}{}", map_name(id)))?).await?;
        for object in objects(&*self.store, id).await? {
            remove(&object).await?;
        }
        Ok(())
    }
}

/// Returns the failure to look a log up. It names the log, and not the map in which the names of all logs are kept.
fn of_log(name: &str, error: StoreError) -> StoreError {
    told_of(format_args!("log \"{}\"", Escaped::of(name)), error)
}

fn told_of(what: impl std::fmt::Display, mut error: StoreError) -> StoreError {
    if let Some(why) = error.message.strip_prefix(&format!("map \"{DIRECTORY}\": ")) {
        error.message = format!("{what}: {why}");
    }
    error
}

/// Makes the objects of a view.
pub(crate) async fn create_objects(store: &dyn ObjectStore, id: LogId, view: &View) -> Result<(), LogError> {
    let create = |index| async move {
        let object = layout::object(id, view, index)?;
        match (Stripe { store, object: &object, epoch: view.epoch, closed: false }).create().await {
            Ok(()) => Ok(()),
            Err(StripeError::Store(error)) => Err(LogError::Store(error)),
            Err(StripeError::Epoch(_)) => {
                Err(LogError::Corrupt(format!("object \"{object}\" is there already")))
            }
        }
    };
    // All are waited for, so that none is made after those that were made have been removed.
    join_all((0..view.width).map(create)).await.into_iter().collect()
}

/// Returns all objects of a log, also those that no view has.
pub(crate) async fn objects(store: &dyn ObjectStore, id: LogId) -> Result<Vec<ObjectId>, LogError> {
    let prefix = format!("{PREFIX}{id}/");
    let mut after = ObjectId::new(prefix.clone())?;
    let mut found = Vec::new();
    loop {
        let page = store.list(Some(&after), PAGE_ENTRIES_MAX).await?;
        let ours = page.iter().take_while(|object| object.as_bytes().starts_with(prefix.as_bytes()));
        found.extend(ours.cloned());
        match page.last() {
            Some(last) if last.as_bytes().starts_with(prefix.as_bytes()) => after = last.clone(),
            _ => return Ok(found),
        }
    }
}

pub(crate) fn sequencer_error(error: crate::sequencer::SequencerError) -> LogError {
    match error {
        crate::sequencer::SequencerError::Store(error) => LogError::Store(error),
        error @ crate::sequencer::SequencerError::Epoch(_) => LogError::Corrupt(error.to_string()),
    }
}

pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Returns the key of the first position that is kept, in the object with the sequencer.
pub(crate) fn begin_key() -> Key {
    Key::new("begin").expect("the name is short and not empty")
}
