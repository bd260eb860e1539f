//! The lock session of this process: one, for all files.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nacre::lock::{BlockingFile, BlockingLock, Description, Method, Mode, Request};
use nacre::{BlockingStore, Engine, Error, ErrorKind, Store, Uri};
use nacre_lock::Pattern;
use nacre_rpc::{ClusterKey, MemoryKey};

use crate::table::hold;
use crate::watchdog::Watched;
use crate::{hint, signals, watchdog};

/// The environment variable that names the lock servers.
const STORE_VARIABLE: &str = "NACRE_STORE";

/// The environment variable that names the file with the cluster's key.
const KEY_VARIABLE: &str = "NACRE_KEY";

/// The environment variable with the key of the servers that `nacre mpirun` has started on the nodes of the job.
const JOB_KEY_VARIABLE: &str = "NACRE_MPIIO_KEY";

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
    let mut store = hold(&STORE);
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
    // Its file is read when the store is opened.
    let job_key = job_key()?;
    let named = || std::env::var_os(KEY_VARIABLE).filter(|key| !key.is_empty()).map(PathBuf::from);
    if let (Engine::Servers(_), Some(key)) =
        (&uri.engine, job_key.as_ref().map(MemoryKey::path).or_else(named))
    {
        uri.options.key.get_or_insert(key);
    }
    let opened = Store::open(&uri)?.blocking();
    drop(job_key);
    opened.connect()?;
    if let Some(program) = watchdog::program() {
        let started = watchdog::start(&program, lease(&opened)?);
        started.map_err(|sentence| Error::new(ErrorKind::Io, sentence))?;
    }
    *store = Some(opened.clone());
    Ok(opened)
}

/// Returns the key of the job's own servers on its nodes, if it has such.
fn job_key() -> Result<Option<MemoryKey>, Error> {
    let text = std::env::var_os(JOB_KEY_VARIABLE).unwrap_or_default();
    if text.is_empty() {
        return Ok(None);
    }
    // It is a secret, so it is not cited.
    let wrong = || {
        Error::new(ErrorKind::Invalid, format!("{JOB_KEY_VARIABLE} is not a key of 64 hexadecimal digits"))
    };
    ClusterKey::from_hex(text.as_bytes()).ok_or_else(wrong)?.in_memory().map(Some)
}

/// Returns the time for which a lease of the servers lasts.
fn lease(store: &BlockingStore) -> Result<Duration, Error> {
    let totals = store.lock_totals()?;
    let leases = totals.iter().filter_map(|server| server.report["lease_ms"].as_u64());
    let unknown = || Error::new(ErrorKind::Unsupported, "the servers do not tell how long their leases last");
    leases.min().map(Duration::from_millis).ok_or_else(unknown)
}

/// Ends the session of this process, so that the servers need not wait for its lease to end.
pub fn end() {
    let store = hold(&STORE).take();
    signals::without_pipe(|| {
        if let Some(store) = store {
            store.end_locks();
        }
    });
}

/// Returns the stripe of the lock servers in bytes, if they can be asked.
pub fn stripe_bytes() -> Option<u64> {
    let totals = signals::blocked(|| store()?.lock_totals()).ok()?;
    totals.first()?.report["stripe_bytes"].as_u64()
}

/// Locked bytes, until this is released or dropped. The watchdog, if there is one, knows of them.
pub struct Held {
    // Dropped first: nothing is written any more when the lock is released.
    watched: Option<Watched>,
    lock: Arc<BlockingLock>,
}

impl Held {
    fn new(lock: BlockingLock) -> Result<Held, Error> {
        let lock = Arc::new(lock);
        Ok(Held { watched: watchdog::watch(&lock)?, lock })
    }

    /// Checks that the bytes are still locked.
    pub fn check(&self) -> Result<(), Error> {
        match &self.watched {
            Some(watched) => watched.check(&self.lock),
            None => self.lock.check(),
        }
    }

    /// Releases the bytes, and waits until the servers know it.
    pub fn release(self) -> Result<(), Error> {
        drop(self.watched);
        // The watchdog has let go of it, so it is the only one.
        signals::without_pipe(|| Arc::into_inner(self.lock).map_or(Ok(()), BlockingLock::release))
    }
}

/// Locks bytes, and waits for those that others hold. What the servers do not take as it is, because it is too irregular, is locked from
/// its first to its last byte. A method that does not take it is one that the program has asked for, and nothing takes its place.
pub fn lock(file: &BlockingFile, request: &Request) -> Result<Held, Error> {
    signals::without_pipe(|| acquire(file, request)).and_then(Held::new)
}

/// Locks bytes if nobody else holds any of them.
pub fn try_lock(
    file: &BlockingFile,
    bytes: impl Into<Description>,
    mode: Mode,
) -> Result<Option<Held>, Error> {
    signals::without_pipe(|| file.try_lock(bytes, mode))?.map(Held::new).transpose()
}

fn acquire(file: &BlockingFile, request: &Request) -> Result<BlockingLock, Error> {
    let refused = match file.lock_by(request) {
        Err(error) if error.kind == ErrorKind::Invalid => error,
        result => return result,
    };
    if request.method != Method::default() {
        return Err(refused.context(format_args!("the hint {}", hint::asking_for(request.method))));
    }
    let bounds = Pattern::new(&request.description).ok().and_then(|pattern| pattern.bounds());
    file.lock_by(&Request::new(bounds.ok_or(refused)?, request.mode).protocol(request.protocol))
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
