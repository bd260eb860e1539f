//! One command's view of its store.

use std::path::PathBuf;

use nacre::{Answer, Fork, Guard, Object, ObjectId, Outcome, Read, Stat, Store, Transaction, stage};

use crate::arguments::Common;
use crate::failure::{Failure, advise_for_ceph};

/// The environment variable that names the store.
pub const STORE_VARIABLE: &str = "NACRE_STORE";

/// What a command does with a store.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// It reads, or removes something: without a store there is nothing to do.
    Use,
    /// It writes: a folder that is new or empty becomes a store.
    Fill,
}

/// What all commands need.
pub struct Session {
    uri: String,
    key: Option<PathBuf>,
    /// Whether to print JSON.
    pub json: bool,
}

impl Session {
    /// The session that the command line describes.
    pub fn new(common: &Common) -> Self {
        let named = || std::env::var(STORE_VARIABLE).ok().filter(|uri| !uri.is_empty());
        let uri = common.store.clone().or_else(named);
        // Never a port of this machine, on which anybody could listen.
        let default = || format!("unix:{}", nacre_rpc::socket::own_socket().display());
        Self { uri: uri.unwrap_or_else(default), key: common.key.clone(), json: common.json }
    }

    /// The file with the cluster's key.
    pub fn key(&self) -> Option<&std::path::Path> {
        self.key.as_deref()
    }

    /// The store's uri, as it was given.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Opens the store, to read it or to remove something.
    pub fn open(&self) -> Result<Store, Failure> {
        self.open_at(&self.uri, Purpose::Use)
    }

    /// Opens the store, to write something.
    pub fn open_to_fill(&self) -> Result<Store, Failure> {
        self.open_at(&self.uri, Purpose::Fill)
    }

    /// The store's folder, if it is in one, as a uri.
    pub fn folder(&self) -> Result<Option<nacre::Uri>, Failure> {
        let uri: nacre::Uri =
            self.uri.parse().map_err(|error: nacre::Error| Failure::Usage(error.message))?;
        Ok(matches!(&uri.engine, nacre::Engine::Folder(_)).then_some(uri))
    }

    /// Opens a store that the command line names otherwise than by `--store`.
    pub fn open_at(&self, uri: &str, purpose: Purpose) -> Result<Store, Failure> {
        let mut uri: nacre::Uri = uri.parse().map_err(|error: nacre::Error| Failure::Usage(error.message))?;
        match &uri.engine {
            nacre::Engine::Memory => {
                let text = "the store mem: would be gone when this command ends; name a server or a folder";
                return Err(Failure::Usage(text.into()));
            }
            nacre::Engine::Folder(_) => {
                uri.options.create.get_or_insert(purpose == Purpose::Fill);
            }
            nacre::Engine::Servers(_) => {
                if uri.options.key.is_none() {
                    uri.options.key.clone_from(&self.key);
                }
            }
            nacre::Engine::Rados(_) => advise_for_ceph(),
        }
        Ok(Store::open(&uri)?)
    }

    /// An object of the store, and one of its forks, to read it.
    pub fn object(&self, id: &ObjectId, fork: &Fork) -> Result<Object, Failure> {
        Ok(self.open()?.object(id)?.fork(fork)?)
    }

    /// An object of the store, and one of its forks, to write it.
    pub fn object_to_fill(&self, id: &ObjectId, fork: &Fork) -> Result<Object, Failure> {
        Ok(self.open_to_fill()?.object(id)?.fork(fork)?)
    }
}

/// The sentence about an object that is not there.
pub fn no_such_object(object: &Object) -> Failure {
    let store = object.store().name();
    Failure::Failed(format!(
        "object \"{}\" does not exist in {store}; \"nacre ls\" lists the objects that do",
        object.id()
    ))
}

/// The object at a glance, if it exists, else the sentence that it does not.
pub async fn existing(object: &Object) -> Result<Stat, Failure> {
    let stat = object.stat().await?;
    if stat.exists { Ok(stat) } else { Err(no_such_object(object)) }
}

/// Checks that an object and the fork that is to be read exist. An object of keys or attributes without any fork counts
/// as having the default one, empty; one that holds nothing at all does not: its first content may be on its way.
pub async fn existing_fork(object: &Object) -> Result<(), Failure> {
    let stat = existing(object).await?;
    let fork = object.fork_name();
    if object.is_incomplete_copy().await? {
        return Err(Failure::Failed(format!(
            "object \"{}\" of {} is a copy that is not complete; \"nacre copy-objects\" goes on with it",
            object.id(),
            object.store().name()
        )));
    }
    if stat.forks == 0 && *fork == Fork::DEFAULT && stat.keys + stat.attributes > 0 {
        return Ok(());
    }
    if stage::is_reserved(fork) {
        // Whoever names one knows of it, though it is not listed.
        return Ok(());
    }
    let forks = object.forks().await?;
    if forks.iter().any(|(name, _)| name == fork) {
        return Ok(());
    }
    let wanted = match *fork == Fork::DEFAULT {
        true => "default fork".to_owned(),
        false => format!("fork \"{fork}\""),
    };
    let names: Vec<String> = forks.iter().map(|(name, _)| fork_name(name)).collect();
    let there = if names.is_empty() { "no fork at all".to_owned() } else { names.join(", ") };
    let store = object.store().name();
    Err(Failure::Failed(format!(
        "object \"{}\" in {store} has no {wanted}; it has {there}: name one with --fork",
        object.id()
    )))
}

/// The name of a fork for people.
pub fn fork_name(fork: &Fork) -> String {
    if *fork == Fork::DEFAULT { "(default)".to_owned() } else { format!("\"{fork}\"") }
}

/// Reads something of an object that must exist.
pub async fn ask(object: &Object, read: Read, attempted: &str) -> Result<Answer, Failure> {
    let transaction = Transaction::new().guard(Guard::Exists).read(read);
    match apply(object, transaction, attempted).await? {
        Outcome::Done(done) => done.answers.into_iter().next().ok_or_else(|| nonsense(object)),
        Outcome::Refused(_) => Err(no_such_object(object)),
    }
}

/// Applies a transaction to an object.
pub async fn apply(object: &Object, transaction: Transaction, attempted: &str) -> Result<Outcome, Failure> {
    let outcome = object.store().apply(object.id(), transaction).await;
    outcome.map_err(|error| {
        let error = error.context(format_args!(
            "cannot {attempted} object \"{}\" of {}",
            object.id(),
            object.store().name()
        ));
        error.into()
    })
}

/// The failure of a store that answers another question than the one that was asked.
pub fn nonsense(object: &Object) -> Failure {
    let store = object.store().name();
    Failure::Failed(format!(
        "{store} gave an answer about object \"{}\" that does not fit the question",
        object.id()
    ))
}
