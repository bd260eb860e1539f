//! The store that a command names.

use std::path::Path;

use nacre::{Engine, Store, Uri};

use super::CommandError;

/// Opens a store, which is not connected before it is needed. `key` is for servers that ask for one.
pub fn open_store(uri: &str, key: Option<&Path>) -> Result<Store, CommandError> {
    let mut uri: Uri = uri.parse().map_err(|error: nacre::Error| CommandError::Usage(error.message))?;
    if let (Engine::Servers(_), None, Some(key)) = (&uri.engine, &uri.options.key, key) {
        uri.options.key = Some(key.to_owned());
    }
    Store::open(&uri).map_err(|error| CommandError::Failed(error.message))
}
