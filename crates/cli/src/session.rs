//! A command's access to its store.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use nacre::{
    Address, Answer, ByteRange, Fork, Guard, Object, ObjectId, Outcome, ReadOp, Stat, Store, Transaction,
    Uri, stage,
};
use nacre_quantity::Escaped;

use crate::arguments::Common;
use crate::failure::{Failure, advise_for_ceph};

/// The environment variable that names the store.
pub const STORE_VARIABLE: &str = "NACRE_STORE";

/// The environment variable with the number of the lock session that commands act for.
pub const FENCE_VARIABLE: &str = "NACRE_FENCE";

/// The purpose for which a command opens a store.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Reading or removing: without a store there is nothing to do.
    Use,
    /// Writing: a folder that is new or empty becomes a store.
    Fill,
}

/// Returns the uri of the store where the command line names none: that of the environment, or the user's own server.
pub fn default_uri() -> OsString {
    let named = std::env::var_os(STORE_VARIABLE).filter(|uri| !uri.is_empty());
    // The default is never a port of this machine, on which any user could listen.
    named.unwrap_or_else(|| Address::Unix(nacre_rpc::socket::own_socket()).to_os_string())
}

/// Reads a uri from the command line or the environment.
pub fn parse_uri(uri: &OsStr) -> Result<Uri, Failure> {
    Uri::from_os_str(uri).map_err(|error| Failure::Usage(error.message))
}

/// The context of all commands: the store, the key and the output format.
pub struct Context {
    uri: OsString,
    key: Option<PathBuf>,
    fence: Option<u64>,
    /// Whether to print JSON.
    pub json: bool,
}

impl Context {
    /// Creates the session that the command line describes.
    pub fn new(common: &Common) -> Self {
        let uri = common.store.clone().unwrap_or_else(default_uri);
        Self { uri, key: common.key.clone(), fence: common.fence, json: common.json }
    }

    /// Returns the file with the cluster's key.
    pub fn key(&self) -> Option<&std::path::Path> {
        self.key.as_deref()
    }

    /// Returns the store's uri, as given.
    pub fn uri(&self) -> &OsStr {
        &self.uri
    }

    /// Returns the time for which servers that are away are waited for, if the store's uri sets it.
    pub fn repeat_timeout(&self) -> Option<Duration> {
        self.parsed_uri().ok()?.options.repeat_timeout
    }

    /// Returns the store's uri as it is printed.
    pub fn shown_uri(&self) -> Escaped<'_> {
        Escaped::of(&self.uri)
    }

    /// Returns the store's uri in its parts.
    pub fn parsed_uri(&self) -> Result<Uri, Failure> {
        parse_uri(&self.uri)
    }

    /// Opens the store for reading, or for removing something.
    pub fn open(&self) -> Result<Store, Failure> {
        self.open_at(&self.uri, Purpose::Use)
    }

    /// Opens the store for writing.
    pub fn open_to_fill(&self) -> Result<Store, Failure> {
        self.open_at(&self.uri, Purpose::Fill)
    }

    /// Returns the store's uri if it is in a folder.
    pub fn folder(&self) -> Result<Option<Uri>, Failure> {
        let uri = self.parsed_uri()?;
        Ok(matches!(&uri.engine, nacre::Engine::Folder(_)).then_some(uri))
    }

    /// Opens a store that the command line names by other means than `--store`.
    pub fn open_at(&self, uri: &OsStr, purpose: Purpose) -> Result<Store, Failure> {
        let mut uri = parse_uri(uri)?;
        match &uri.engine {
            nacre::Engine::Memory => {
                let text = "the store mem: would be lost when this command ends; name a server or a folder";
                return Err(Failure::Usage(text.into()));
            }
            nacre::Engine::Folder(_) => {
                uri.options.create.get_or_insert(purpose == Purpose::Fill);
            }
            nacre::Engine::Servers(_) if uri.options.key.is_none() => {
                uri.options.key.clone_from(&self.key);
            }
            nacre::Engine::Rados(_) => {
                advise_for_ceph();
                // Its metadata ranks may ask for it.
                uri.options.key = uri.options.key.take().or_else(|| self.key.clone());
            }
            _ => {}
        }
        let store = Store::open(&uri)?;
        Ok(match self.fence {
            Some(session) => store.for_session(session),
            None => store,
        })
    }

    /// Returns an object of the store with one of its forks, for reading.
    pub fn object(&self, id: &ObjectId, fork: &Fork) -> Result<Object, Failure> {
        Ok(self.open()?.object(id)?.fork(fork)?)
    }

    /// Returns an object of the store with one of its forks, for writing.
    pub fn object_to_fill(&self, id: &ObjectId, fork: &Fork) -> Result<Object, Failure> {
        Ok(self.open_to_fill()?.object(id)?.fork(fork)?)
    }
}

/// Returns the failure for an object that does not exist.
pub fn no_such_object(object: &Object) -> Failure {
    let store = object.store().name();
    Failure::Failed(format!(
        "object \"{}\" does not exist in {store}; \"nacre ls\" lists the objects that do",
        object.id()
    ))
}

/// Returns the summary of an object, or the failure that it does not exist.
pub async fn existing(object: &Object) -> Result<Stat, Failure> {
    let stat = object.stat().await?;
    if stat.exists { Ok(stat) } else { Err(no_such_object(object)) }
}

/// Checks that an object and the fork to be read exist. An object of keys or attributes without any fork counts as
/// having an empty default fork; one that holds nothing at all does not: its first content may still be arriving.
pub async fn existing_fork(object: &Object) -> Result<(), Failure> {
    let stat = existing(object).await?;
    let fork = object.fork_name();
    if object.is_incomplete_copy().await? {
        return Err(Failure::Failed(format!(
            "object \"{}\" of {} is an incomplete copy; \"nacre copy-objects\" continues it",
            object.id(),
            object.store().name()
        )));
    }
    if stat.forks == 0 && *fork == Fork::DEFAULT && stat.keys + stat.attributes > 0 {
        return Ok(());
    }
    if stage::is_reserved(fork) {
        // A reserved fork is not listed, but may be named by those who know of it.
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
    let (store, id) = (object.store().name(), object.id());
    let names: Vec<String> = forks.iter().map(|(name, _)| fork_name(name)).collect();
    let advice = match names.is_empty() {
        false => format!("it has {}: name one with --fork", names.join(", ")),
        true if !object.staged().await?.is_empty() => {
            "its first content is still being stored, or its writer was interrupted; \"nacre ls --staged\" shows for how long"
                .to_owned()
        }
        true => "it holds no bytes".to_owned(),
    };
    Err(Failure::Failed(format!("object \"{id}\" in {store} has no {wanted}; {advice}")))
}

/// Returns the size of an object's fork in bytes; 0 if there is no such fork.
pub async fn size(object: &Object) -> Result<u64, Failure> {
    let read = ReadOp::Extents { fork: object.fork_name().clone(), range: ByteRange::new(0, 0) };
    match ask(object, read, "look at").await? {
        Answer::Range(found) => Ok(found.size),
        _ => Err(nonsense(object)),
    }
}

/// Returns the name of a fork for people.
pub fn fork_name(fork: &Fork) -> String {
    if *fork == Fork::DEFAULT { "(default)".to_owned() } else { format!("\"{fork}\"") }
}

/// Reads from an object that must exist.
pub async fn ask(object: &Object, read: ReadOp, attempted: &str) -> Result<Answer, Failure> {
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

/// Returns the failure of a store whose answer does not fit the question.
pub fn nonsense(object: &Object) -> Failure {
    let store = object.store().name();
    Failure::Failed(format!(
        "{store} gave an answer about object \"{}\" that does not match the request",
        object.id()
    ))
}
