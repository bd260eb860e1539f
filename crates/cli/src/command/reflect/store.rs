//! The store that a command names.

use std::ffi::OsStr;
use std::path::Path;

use nacre::{Engine, ErrorKind, Store};

use crate::failure::Failure;
use crate::session::parse_uri;

/// Opens a store, which connects only when it is needed. `key` is for servers that require one.
pub fn open_store(uri: &OsStr, key: Option<&Path>) -> Result<Store, Failure> {
    let mut uri = parse_uri(uri)?;
    if let (Engine::Servers(_), None, Some(key)) = (&uri.engine, &uri.options.key, key) {
        uri.options.key = Some(key.to_owned());
    }
    // Reflectors keep their groups and their map there: a store of their own may begin in an empty folder.
    if let Engine::Folder(_) = &uri.engine {
        uri.options.create.get_or_insert(true);
    }
    Store::open(&uri).map_err(|error| match error.kind {
        // A key that others may read, a folder of something else, a newer format: another try would find the same.
        ErrorKind::Denied | ErrorKind::Invalid | ErrorKind::Unsupported => Failure::Usage(error.message),
        _ => Failure::Failed(error.message),
    })
}
