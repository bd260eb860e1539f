//! The lock session of this process: one, for all files.

use std::sync::Mutex;

use nacre::lock::{BlockingFile, BlockingLock, Description, Method, Mode, Request};
use nacre::{BlockingStore, Engine, Error, ErrorKind, Store, Uri};
use nacre_lock::Pattern;

use crate::signals;

/// The environment variable that names the lock servers.
const STORE_VARIABLE: &str = "NACRE_STORE";

/// The environment variable that names the file with the cluster's key.
const KEY_VARIABLE: &str = "NACRE_KEY";

static STORE: Mutex<Option<BlockingStore>> = Mutex::new(None);

/// Returns a handle on a file whose bytes can be locked, at the servers of this process.
///
/// # Errors
///
/// `Invalid` if the environment names no store, `Unavailable` if no server can be reached, `Unsupported` if it grants no locks.
pub fn file(name: &str) -> Result<BlockingFile, Error> {
    signals::blocked(|| {
        let file = store()?.file(name)?;
        // So that the first write is not the one to learn that there is no server.
        file.lock(Description::contiguous(0, 0), Mode::Shared)?.release()?;
        Ok(file)
    })
}

fn store() -> Result<BlockingStore, Error> {
    // A thread that panicked in here has changed nothing.
    let mut store = STORE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(store) = store.as_ref() {
        return Ok(store.clone());
    }
    let uri = std::env::var_os(STORE_VARIABLE).unwrap_or_default();
    if uri.is_empty() {
        let text = format!(
            "{STORE_VARIABLE} names no lock server: start the program with \"nacre mpirun\", or set it to the uri of a server"
        );
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    let mut uri = Uri::from_os_str(&uri)?;
    if let (Engine::Servers(_), Some(key)) = (&uri.engine, std::env::var_os(KEY_VARIABLE))
        && !key.is_empty()
    {
        uri.options.key.get_or_insert(key.into());
    }
    let opened = Store::open(&uri)?.blocking();
    opened.connect()?;
    *store = Some(opened.clone());
    Ok(opened)
}

/// Ends the session of this process, so that the servers need not wait for its lease to end.
pub fn end() {
    let store = STORE.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
    if let Some(store) = store {
        store.end_locks();
    }
}

/// Locks bytes, and waits for those that others hold. What the servers do not take as it is, because it is too irregular, is locked from
/// its first to its last byte. Another method than that which takes most is one that the program has asked for, and nothing takes its place.
pub fn lock(file: &BlockingFile, request: &Request) -> Result<BlockingLock, Error> {
    match file.lock_by(request) {
        Err(error) if error.kind == ErrorKind::Invalid && request.method == Method::Datatype => {
            let bounds = Pattern::new(&request.description).ok().and_then(|pattern| pattern.bounds());
            file.lock(bounds.ok_or(error)?, request.mode)
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_that_this_library_is_built_without_are_refused_with_a_sentence() {
        for uri in ["mem:", "file:data?create=yes", "rados://pool"] {
            let error = nacre::open(uri).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unsupported, "{uri}: {error}");
            assert!(error.message.contains("is built without stores in"), "{uri}: {error}");
        }
        assert!(nacre::open("nacre://localhost:1").is_ok());
    }
}
