//! Files and locks whose calls block the calling thread.

use std::time::Duration;

use futures::executor::block_on;
use nacre_lock::remote::Request;
use nacre_lock::table::Mode;
use nacre_object::{ErrorKind, StoreError};

use super::{Description, Lock, LockableFile, if_had};
use crate::administration::Report;
use crate::blocking::BlockingStore;

/// A [`LockableFile`] whose calls block the calling thread.
///
/// ```
/// use nacre::lock::{BlockingFile, Mode};
///
/// let store = nacre::open("mem:")?.blocking();
/// let file: BlockingFile = store.file("results")?;
/// let lock = file.lock(0..10, Mode::Shared)?;
/// let other = file.lock(5..15, Mode::Shared)?;
/// lock.release()?;
/// other.release()?;
/// # Ok::<(), nacre::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct BlockingFile {
    file: LockableFile,
}

/// A [`Lock`] whose calls block the calling thread.
///
/// ```
/// use nacre::lock::{BlockingLock, Mode};
///
/// let store = nacre::open("mem:")?.blocking();
/// let lock: BlockingLock = store.file("results")?.lock(0..10, Mode::Exclusive)?;
/// lock.store().object("results")?.write(0, "mine")?;
/// lock.release()?;
/// # Ok::<(), nacre::Error>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct BlockingLock {
    lock: Lock,
}

impl BlockingStore {
    /// Returns a handle on a file. See [`Store::file`](crate::Store::file).
    ///
    /// # Errors
    /// Those of [`Store::file`](crate::Store::file).
    pub fn file(&self, name: impl AsRef<[u8]>) -> Result<BlockingFile, StoreError> {
        Ok(BlockingFile { file: self.nonblocking().file(name)? })
    }

    /// Returns the lock requests at every lock server. See [`Store::locks`](crate::Store::locks).
    ///
    /// # Errors
    /// Those of [`Store::locks`](crate::Store::locks).
    pub fn locks(&self) -> Result<Vec<Report>, StoreError> {
        block_on(self.nonblocking().locks())
    }

    /// Returns the totals of every lock server. See [`Store::lock_totals`](crate::Store::lock_totals).
    ///
    /// # Errors
    /// Those of [`Store::lock_totals`](crate::Store::lock_totals).
    pub fn lock_totals(&self) -> Result<Vec<Report>, StoreError> {
        block_on(self.nonblocking().lock_totals())
    }

    /// Takes a lock session's leases away. See [`Store::break_lock_session`](crate::Store::break_lock_session).
    ///
    /// # Errors
    /// Those of [`Store::break_lock_session`](crate::Store::break_lock_session).
    pub fn break_lock_session(&self, session: u64) -> Result<bool, StoreError> {
        block_on(self.nonblocking().break_lock_session(session))
    }

    /// Ends the lock session of this store's handles. See [`Store::end_locks`](crate::Store::end_locks).
    pub fn end_locks(&self) {
        block_on(self.nonblocking().end_locks());
    }
}

impl BlockingFile {
    /// Returns the file's name.
    pub fn name(&self) -> &str {
        self.file.name()
    }

    /// Locks bytes. See [`LockableFile::lock`].
    ///
    /// # Errors
    /// Those of [`LockableFile::lock`].
    pub fn lock(&self, bytes: impl Into<Description>, mode: Mode) -> Result<BlockingLock, StoreError> {
        self.lock_by(&Request::new(bytes, mode))
    }

    /// Locks bytes if nobody else holds any. See [`LockableFile::try_lock`].
    ///
    /// # Errors
    /// Those of [`LockableFile::try_lock`].
    pub fn try_lock(
        &self,
        bytes: impl Into<Description>,
        mode: Mode,
    ) -> Result<Option<BlockingLock>, StoreError> {
        if_had(self.ask(&Request::new(bytes, mode).without_wait()))
    }

    /// Locks bytes within some time. See [`LockableFile::lock_within`].
    ///
    /// # Errors
    /// Those of [`LockableFile::lock_within`].
    pub fn lock_within(
        &self,
        bytes: impl Into<Description>,
        mode: Mode,
        wait: Duration,
    ) -> Result<Option<BlockingLock>, StoreError> {
        if_had(self.ask(&Request::new(bytes, mode).wait(wait)))
    }

    /// Locks bytes by a method and a protocol. See [`LockableFile::lock_by`].
    ///
    /// # Errors
    /// Those of [`LockableFile::lock_by`].
    pub fn lock_by(&self, request: &Request) -> Result<BlockingLock, StoreError> {
        match self.ask(request) {
            Err(error) if error.kind == ErrorKind::Busy => Err(block_on(self.file.why(error))),
            result => result,
        }
    }

    fn ask(&self, request: &Request) -> Result<BlockingLock, StoreError> {
        // Connections of the store that are made here are not driven by this thread alone.
        let (session, request) = block_on(self.file.session(request))?;
        drive(self.file.lock_in(&session, &request)).map(BlockingLock::new)
    }
}

impl BlockingLock {
    fn new(lock: Lock) -> Self {
        Self { lock }
    }

    /// Returns the fencing token. See [`Lock::token`].
    pub fn token(&self) -> u64 {
        self.lock.token()
    }

    /// Checks that the lock is held. See [`Lock::check`].
    ///
    /// # Errors
    /// Those of [`Lock::check`].
    pub fn check(&self) -> Result<(), StoreError> {
        self.lock.check()
    }

    /// Returns the time for which the lock is held without a renewal. See [`Lock::lease_left`].
    pub fn lease_left(&self) -> Duration {
        self.lock.lease_left()
    }

    /// Returns a handle on the store that acts under the lock. See [`Lock::store`].
    pub fn store(&self) -> BlockingStore {
        self.lock.store().blocking()
    }

    /// Releases the lock. See [`Lock::release`].
    ///
    /// # Errors
    /// Those of [`Lock::release`].
    pub fn release(self) -> Result<(), StoreError> {
        drive(self.lock.release())
    }
}

thread_local! {
    /// Watches the sockets of lock sessions while this thread waits for a lock, so that no other has to be woken.
    static RUNTIME: Option<tokio::runtime::Runtime> =
        tokio::runtime::Builder::new_current_thread().enable_all().build().ok();
}

/// Waits for something that a lock session does.
fn drive<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    if tokio::runtime::Handle::try_current().is_err() {
        let driven = RUNTIME.try_with(|runtime| {
            let runtime = runtime.as_ref()?;
            Some(runtime.block_on(future.as_mut()))
        });
        if let Ok(Some(result)) = driven {
            return result;
        }
    }
    block_on(future)
}
