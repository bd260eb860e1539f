//! The place of policies and settings: the text in an object of its own, written before the map names it, and the policy
//! in force, its version and the settings in one entry of a map (Sevilla et al., *Malacology*, sections 5.1.1 and 5.1.2).
//!
//! So all ranks have the same version, and whoever sees a version can read its text. Objects are never written twice; those
//! of earlier versions stay, for going back to them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nacre_map::{ClusterMap, ProposeError, Proposer, Refused, Space, Update};
use nacre_object::{
    Answer, ByteRange, ErrorKind, Fork, Guard, Key, ObjectId, ObjectStore, Outcome, StoreError, Transaction,
};
use nacre_quantity::Escaped;
use serde::{Deserialize, Serialize};

use crate::limit::POLICY_BYTES_MAX;
use crate::policy::{Policy, PolicyError};
use crate::setting::Settings;

/// The map with the policy in force.
pub const MAP: &str = "balance";
/// Its entry.
pub const POLICY_ENTRY: &str = "policy";
/// The beginning of the ids of objects that hold texts.
const OBJECTS: &str = "nacre/balance/policy/";
/// The format of the entry.
const FORMAT: u32 = 1;
/// The number of attempts at a change while others change the same.
const ATTEMPTS_MAX: usize = 20;
/// The number of records that one read of the history asks for.
const PAGE: u32 = 256;

/// A policy in an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// The policy's name.
    pub name: String,
    /// The object with its text.
    pub object: String,
}

/// The policy in force and the settings, as the map has them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InForce {
    format: u32,
    /// The version, which every change of the policy raises; 0 before the first one.
    pub version: u64,
    /// The policy; `None` if nothing is balanced.
    pub policy: Option<Stored>,
    /// The settings.
    #[serde(default)]
    pub settings: Settings,
}

impl Default for InForce {
    fn default() -> Self {
        Self { format: FORMAT, version: 0, policy: None, settings: Settings::default() }
    }
}

/// A former or the present state of the entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Past {
    /// The epoch of the map that made it.
    pub epoch: u64,
    /// The time, in milliseconds since 1970, by the clock of whoever made it.
    pub created_ms: u64,
    /// Whoever made it.
    pub author: String,
    /// The state.
    pub in_force: InForce,
}

/// A change that was not made, or a policy that cannot be had.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BalanceError {
    /// The policy is not sound.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The request cannot be granted.
    #[error("{0}")]
    Invalid(String),
    /// The map was not changed, or it is not known whether it was.
    #[error(transparent)]
    Propose(#[from] ProposeError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The policies of a store. It needs a tokio runtime with a clock around its calls.
#[derive(Clone, derive_more::Debug)]
#[debug("Registry")]
pub struct Registry {
    store: Arc<dyn ObjectStore>,
    map: ClusterMap,
    proposer: Proposer,
    entry: Key,
}

impl Registry {
    /// Returns a handle on the policies of a store, whether there are any or not.
    ///
    /// # Errors
    /// None that a store is the cause of.
    pub fn new(store: Arc<dyn ObjectStore>) -> Result<Registry, StoreError> {
        let map = ClusterMap::new(store.clone(), MAP)?;
        let proposer = map.proposer(Default::default());
        Ok(Registry { store, map, proposer, entry: Key::new(POLICY_ENTRY)? })
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// Returns the policy in force and the settings.
    ///
    /// # Errors
    /// Those of the store; `Corrupt` if the entry cannot be read.
    pub async fn current(&self) -> Result<InForce, StoreError> {
        Ok(self.read().await?.0)
    }

    /// Returns what is in force, and the number of the change that made the entry.
    async fn read(&self) -> Result<(InForce, u64), StoreError> {
        match self.map.get(&self.entry).await?.0 {
            Some(found) => Ok((decode(&found.value)?, found.version)),
            None => Ok((InForce::default(), 0)),
        }
    }

    /// Changes the entry as a function says, from what it is: should another one change it at the same time, the function is
    /// called again.
    ///
    /// # Errors
    /// [`BalanceError`]; nothing was changed, unless the store does not know.
    pub async fn change(
        &self,
        author: &str,
        change: impl Fn(InForce) -> Result<InForce, BalanceError>,
    ) -> Result<InForce, BalanceError> {
        for _ in 0..ATTEMPTS_MAX {
            let (known, version) = self.read().await?;
            let wanted = change(known.clone())?;
            if wanted == known {
                return Ok(known);
            }
            let value = encode(&wanted)?;
            let update =
                Update::new(author).if_version(self.entry.clone(), version).set(self.entry.clone(), value);
            match self.proposer.propose(update).await {
                Err(ProposeError::Refused(Refused::Version { .. })) => {}
                proposed => return Ok(proposed.map(|_| wanted)?),
            }
        }
        let text = "others change the balancer's settings again and again; nothing was changed, try again";
        Err(StoreError::new(ErrorKind::Busy, text).into())
    }

    /// Puts a policy into force: its text is checked and tried, and written into an object before the map names it.
    ///
    /// # Errors
    /// [`BalanceError`]; what was in force before stays so, unless the store does not know.
    pub async fn set(&self, author: &str, name: &str, text: &str) -> Result<InForce, BalanceError> {
        let version = self.current().await?.version.saturating_add(1);
        Policy::new(name, version, text)?;
        let stored = self.write(name, text).await?;
        self.put(author, &stored).await
    }

    async fn put(&self, author: &str, stored: &Stored) -> Result<InForce, BalanceError> {
        self.change(author, |known| {
            let (version, policy) = (next(&known)?, Some(stored.clone()));
            Ok(InForce { version, policy, ..known })
        })
        .await
    }

    /// Takes the policy out of force. The settings stay.
    ///
    /// # Errors
    /// As [`Registry::change`].
    pub async fn off(&self, author: &str) -> Result<InForce, BalanceError> {
        self.change(author, |known| match known.policy {
            None => Ok(known),
            Some(_) => Ok(InForce { version: next(&known)?, policy: None, ..known }),
        })
        .await
    }

    /// Puts the policy of an earlier version into force again, as a new version; without a version, the latest one that
    /// differs from what is in force. The settings stay.
    ///
    /// # Errors
    /// `Invalid` if there is no such version, and as [`Registry::change`].
    pub async fn rollback(&self, author: &str, version: Option<u64>) -> Result<InForce, BalanceError> {
        let current = self.current().await?;
        let history = self.history().await?;
        let mut earlier = history.into_iter().rev().map(|past| past.in_force);
        let found = match version {
            Some(version) => earlier.find(|past| past.version == version),
            None => earlier.find(|past| past.policy.is_some() && past.policy != current.policy),
        };
        match (found.map(|found| found.policy), version) {
            (Some(Some(stored)), _) => self.put(author, &stored).await,
            (Some(None), _) => self.off(author).await,
            (None, Some(version)) => {
                let text = format!("there is no version {version}, or it is not kept any more");
                Err(BalanceError::Invalid(format!("{text}; \"nacre balance history\" lists those that are")))
            }
            (None, None) => Err(BalanceError::Invalid("there is no earlier policy to go back to".to_owned())),
        }
    }

    /// Returns the states of the entry that are kept, in order.
    ///
    /// # Errors
    /// Those of the store; `Corrupt` if the map cannot be read.
    pub async fn history(&self) -> Result<Vec<Past>, StoreError> {
        let last = self.map.header().await?.map_or(0, |header| header.epoch);
        let (mut found, mut reached) = (Vec::new(), 0);
        while reached < last {
            let page = self.map.history(reached, PAGE).await?;
            for record in &page {
                for updated in &record.updates {
                    for change in &updated.changes {
                        let is_entry = change.space == Space::Entry && change.name == self.entry;
                        // What cannot be read is no state to go back to.
                        let state = change.new.as_ref().filter(|_| is_entry).and_then(|new| decode(new).ok());
                        if let Some(in_force) = state {
                            let (epoch, created_ms, author) =
                                (record.epoch, record.created_ms, updated.author.clone());
                            found.push(Past { epoch, created_ms, author, in_force });
                        }
                    }
                }
            }
            reached = page.last().map_or(last, |record| record.epoch);
        }
        Ok(found)
    }

    /// Writes a text into an object of its own.
    async fn write(&self, name: &str, text: &str) -> Result<Stored, BalanceError> {
        for _ in 0..ATTEMPTS_MAX {
            let object = format!("{OBJECTS}{name}/{:016x}", rand::random::<u64>());
            let id = ObjectId::new(object.clone())?;
            let bytes = Bytes::copy_from_slice(text.as_bytes());
            let transaction = Transaction::new().guard(Guard::Absent).write(Fork::DEFAULT, 0, bytes);
            if let Outcome::Done(_) = self.store.apply(&id, transaction).await? {
                return Ok(Stored { name: name.to_owned(), object });
            }
        }
        Err(StoreError::new(ErrorKind::Busy, "no object for the policy's text is free; try again").into())
    }

    /// Returns the text of a policy.
    ///
    /// # Errors
    /// Those of the store; `Corrupt` if the object is not there or holds no text.
    pub async fn text(&self, stored: &Stored) -> Result<String, StoreError> {
        let corrupt = |why: &str| {
            let (name, object) = (Escaped::of(&stored.name), Escaped::of(&stored.object));
            let text = format!("the text of policy \"{name}\", in object \"{object}\", {why}");
            StoreError::new(ErrorKind::Corrupt, text)
        };
        let id = ObjectId::new(stored.object.clone())?;
        let range = ByteRange::new(0, POLICY_BYTES_MAX as u64 + 1);
        let transaction = Transaction::new().guard(Guard::Exists).read_range(Fork::DEFAULT, range);
        let done = match self.store.apply(&id, transaction).await? {
            Outcome::Done(done) => done,
            Outcome::Refused(_) => return Err(corrupt("is missing")),
        };
        match done.answers.into_iter().next() {
            Some(Answer::Range(found)) if found.size <= POLICY_BYTES_MAX as u64 => {
                String::from_utf8(found.data.to_vec()).map_err(|_| corrupt("is not UTF-8"))
            }
            _ => Err(corrupt("is too long")),
        }
    }

    /// Returns the policy in force, ready to run, within a time: half of a tick, so that no tick waits for a store that does
    /// not answer.
    ///
    /// # Errors
    /// A sentence, and whether another attempt may succeed.
    pub async fn fetch(
        &self,
        in_force: &InForce,
        stored: &Stored,
        within: Duration,
    ) -> Result<Policy, (String, bool)> {
        let (name, version) = (stored.name.clone(), in_force.version);
        let text = match tokio::time::timeout(within, self.text(stored)).await {
            Ok(Ok(text)) => text,
            Ok(Err(error)) => return Err((error.message, true)),
            Err(_) => {
                let name = Escaped::of(&name);
                let text = format!("the text of policy \"{name}\" was not there within {within:?}");
                return Err((text, true));
            }
        };
        let compiled = tokio::task::spawn_blocking(move || Policy::new(&name, version, &text)).await;
        match compiled {
            Ok(compiled) => compiled.map_err(|error| (error.to_string(), error.is_late)),
            Err(_) => Err(("the policy's thread was ended".to_owned(), true)),
        }
    }
}

/// Returns the version after one.
fn next(known: &InForce) -> Result<u64, BalanceError> {
    let next = known.version.checked_add(1);
    next.ok_or_else(|| BalanceError::Invalid("there are no more versions".to_owned()))
}

fn encode(in_force: &InForce) -> Result<Bytes, BalanceError> {
    in_force.settings.check().map_err(BalanceError::Invalid)?;
    let bytes = serde_json::to_vec(in_force).map_err(|error| BalanceError::Invalid(error.to_string()))?;
    let max = nacre_map::limit::VALUE_BYTES_MAX;
    if bytes.len() > max {
        let text = format!("pins and masks take {} bytes; the limit is {max}", bytes.len());
        return Err(BalanceError::Invalid(format!(
            "{text}: remove some, or use masks for all resources of a kind"
        )));
    }
    Ok(bytes.into())
}

fn decode(bytes: &[u8]) -> Result<InForce, StoreError> {
    let corrupt = |why: String| {
        let text = format!("entry \"{POLICY_ENTRY}\" of map \"{MAP}\" cannot be read: {why}");
        StoreError::new(ErrorKind::Corrupt, text)
    };
    let in_force: InForce = serde_json::from_slice(bytes).map_err(|error| corrupt(error.to_string()))?;
    if in_force.format != FORMAT {
        return Err(corrupt(format!("it has format {}, which a newer program made", in_force.format)));
    }
    in_force.settings.check().map_err(corrupt)?;
    Ok(in_force)
}

/// Decodes bytes as the entry, and checks that what decodes does so again. Returns whether it did.
pub(crate) fn fuzz(bytes: &[u8]) -> bool {
    let Ok(in_force) = decode(bytes) else { return false };
    if let Ok(again) = encode(&in_force) {
        assert_eq!(decode(&again), Ok(in_force));
    }
    true
}
