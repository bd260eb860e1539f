//! Locks on the bytes of files.
//!
//! A *file* is locked by its name: at the servers of a store, or within this process if the store is in it. It is the
//! object of the same name, and need not exist. A lock covers the bytes of an access pattern, exactly those, however many
//! pieces they are.
//!
//! ```no_run
//! # async fn example() -> Result<(), nacre::Error> {
//! use nacre::lock::{Datatype, Mode};
//!
//! let store = nacre::open("nacre://localhost:6470")?;
//! // Every fourth block of 4 KiB.
//! let mine = Datatype::Bytes(4096).vector(1024, 1, 4).at(0);
//! let lock = store.file("results")?.lock(mine, Mode::Exclusive).await?;
//!
//! // What is written through this handle is refused once the lock is lost.
//! lock.store().object("results")?.write(0, vec![1; 4096]).await?;
//! lock.release().await?;
//! # Ok(())
//! # }
//! ```

mod blocking;
mod session;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use blocking::{BlockingFile, BlockingLock};
use bytes::Bytes;
/// The reason why a description is refused.
///
/// ```
/// use nacre::lock::{Description, PatternError};
///
/// let error: PatternError = "vector(count=3)".parse::<Description>().unwrap_err();
/// assert!(matches!(error, PatternError::Syntax { .. }), "{error}");
/// ```
pub use nacre_lock::PatternError;
export! {
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nacre::Error> {
    /// use std::time::Duration;
    ///
    /// use nacre::lock::{Datatype, Method, Mode, Protocol, Request};
    ///
    /// let store = nacre::open("mem:")?;
    /// let even = Datatype::Bytes(1).vector(100, 1, 2).at(0);
    /// let request = Request::new(even, Mode::Exclusive)
    ///     .method(Method::List)
    ///     .protocol(Protocol::TwoPhase)
    ///     .wait(Duration::from_secs(5));
    /// let lock = store.file("results")?.lock_by(&request).await?;
    /// assert!(!Mode::Shared.conflicts(Mode::Shared));
    /// lock.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    "The way in which an operation describes its bytes to the servers (section 3)." nacre_lock::client::Method;
    "The protocol by which locks are acquired (section 4)." nacre_lock::client::Protocol;
}
/// The bytes to be locked, and the way in which they are.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), nacre::Error> {
/// use std::time::Duration;
///
/// use nacre::lock::{Datatype, Method, Mode, Protocol, Request};
///
/// let store = nacre::open("mem:")?;
/// let even = Datatype::Bytes(1).vector(100, 1, 2).at(0);
/// let request = Request::new(even, Mode::Exclusive)
///     .method(Method::List)
///     .protocol(Protocol::TwoPhase)
///     .wait(Duration::from_secs(5));
/// let lock = store.file("results")?.lock_by(&request).await?;
/// assert!(!Mode::Shared.conflicts(Mode::Shared));
/// lock.release().await?;
/// # Ok(())
/// # }
/// ```
pub use nacre_lock::remote::Request;
use nacre_lock::remote::{ANSWER_MAX, Checker, LATE_MAX, LockError, Session, within};
/// The mode of a lock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), nacre::Error> {
/// use std::time::Duration;
///
/// use nacre::lock::{Datatype, Method, Mode, Protocol, Request};
///
/// let store = nacre::open("mem:")?;
/// let even = Datatype::Bytes(1).vector(100, 1, 2).at(0);
/// let request = Request::new(even, Mode::Exclusive)
///     .method(Method::List)
///     .protocol(Protocol::TwoPhase)
///     .wait(Duration::from_secs(5));
/// let lock = store.file("results")?.lock_by(&request).await?;
/// assert!(!Mode::Shared.conflicts(Mode::Shared));
/// lock.release().await?;
/// # Ok(())
/// # }
/// ```
pub use nacre_lock::table::Mode;
export! {
    /// ```
    /// use nacre::lock::{Block, Datatype, Description, Distribution, FileView, Member, Order, Region};
    ///
    /// // A block of 2 × 3 elements of a matrix of 4 × 6 doubles.
    /// let double = Datatype::Bytes(8);
    /// let block = double.clone().subarray(&[4, 6], &[2, 3], &[1, 2]);
    /// let view = FileView { displacement: 0, datatype: block, count: 1 };
    /// // The same, as four programs share it.
    /// let shared = Datatype::Darray {
    ///     rank: 0,
    ///     sizes: vec![4, 6],
    ///     distributions: vec![Distribution::Block(None), Distribution::Cyclic(Some(2))],
    ///     processes: vec![2, 2],
    ///     order: Order::C,
    ///     of: Box::new(double),
    /// };
    /// for description in [
    ///     Description::from(view),
    ///     shared.at(0),
    ///     Description::from(10..20),
    ///     Description::from(vec![Region { offset: 0, length: 4 }, Region { offset: 8, length: 4 }]),
    ///     Datatype::Indexed { blocks: vec![Block { displacement: 3, count: 2 }], of: Box::new(Datatype::byte()) }.at(0),
    ///     Datatype::Struct { members: vec![Member { displacement: 0, count: 1, of: Datatype::byte() }] }.at(0),
    /// ] {
    ///     // Descriptions can be written and read, and locked if this says so.
    ///     assert_eq!(description.to_string().parse::<Description>()?, description);
    ///     nacre::lock::check(&description)?;
    /// }
    /// # Ok::<(), nacre::lock::PatternError>(())
    /// ```
    "A block of an indexed datatype." nacre_lock::Block;
    "A datatype: a tree of MPI's constructors over elements of some bytes." nacre_lock::Datatype;
    "A description of the bytes of a file that an operation accesses." nacre_lock::Description;
    "The distribution of one dimension of an array over processes." nacre_lock::Distribution;
    "A datatype laid over a file: copies of it, one after the other at the distance of its extent." nacre_lock::FileView;
    "A block of a struct." nacre_lock::Member;
    "The dimension of an array in which neighbours in the file differ." nacre_lock::Order;
    "A range of bytes." nacre_lock::Region;
}
pub use nacre_lock::{DEPTH_MAX, ITEMS_MAX, OFFSET_MAX};
use nacre_object::watch::{Notified, Watch, WatchOptions};
use nacre_object::{
    ErrorKind, Escaped, Limits, ObjectId, ObjectStore, Once, Outcome, Reply, StoreError, Transaction,
    WindowPosition,
};
use serde_json::{Value, json};
pub(crate) use session::Sessions;

use crate::administration::Report;
use crate::store::Store;

/// Checks that a description can be locked.
///
/// # Errors
///
/// The reason why it has no normal form.
pub fn check(description: &Description) -> Result<(), PatternError> {
    nacre_lock::Pattern::new(description).map(|_| ())
}

impl Store {
    /// Returns a handle on a file, whose bytes can be locked.
    ///
    /// # Errors
    ///
    /// `Invalid` if the name is not 1 to 255 bytes of UTF-8.
    pub fn file(&self, name: impl AsRef<[u8]>) -> Result<LockableFile, StoreError> {
        let name = nacre_lock::wire::file_name(name.as_ref())
            .map_err(|why| StoreError::new(ErrorKind::Invalid, why))?;
        Ok(LockableFile { store: self.clone(), name })
    }

    /// Returns the lock requests at every lock server: who holds which bytes, and who waits.
    ///
    /// # Errors
    ///
    /// `Unsupported` if the servers keep no locks.
    pub async fn locks(&self) -> Result<Vec<Report>, StoreError> {
        let mut all: Vec<Report> = Vec::new();
        let mut listed: HashMap<String, HashSet<(u64, u64)>> = HashMap::new();
        let mut after = Value::Null;
        loop {
            let pages = self.administer_with("locks", json!({ "after": after }), |_| ()).await?;
            let mut next = Value::Null;
            for page in pages {
                // A server that has no more is asked again only if another one has.
                if let Some(number) = page.report["next"].as_u64() {
                    next = json!(next.as_u64().map_or(number, |least: u64| least.min(number)));
                }
                match all.iter_mut().find(|known| known.server == page.server) {
                    None => all.push(page),
                    Some(known) => {
                        let listed = listed.entry(known.server.clone()).or_default();
                        merge(&mut known.report, page.report, listed);
                    }
                }
            }
            if next.is_null() {
                return Ok(all);
            }
            after = next;
        }
    }

    /// Returns which lock requests wait for which sessions at every lock server, by numbers that name them there. It shows
    /// less than [`Store::locks`], and costs less.
    ///
    /// # Errors
    ///
    /// `Unsupported` if the servers keep no locks.
    pub async fn lock_waits(&self) -> Result<Vec<Report>, StoreError> {
        self.administer_with("lock-waits", Value::Null, |_| ()).await
    }

    /// Returns the totals of every lock server: its place, its epoch, and the numbers of its sessions, requests and waits,
    /// and of calls and grants so far.
    ///
    /// # Errors
    ///
    /// `Unsupported` if the servers keep no locks.
    pub async fn lock_totals(&self) -> Result<Vec<Report>, StoreError> {
        self.administer_with("locks", json!({ "limit": 0 }), |_| ()).await
    }

    /// Takes a lock session's leases away at all servers. Its exclusive locks are released once it is fenced at the objects
    /// that it may have written, its shared ones when its leases would have lapsed. Returns whether any server knew it.
    ///
    /// # Errors
    ///
    /// `Unsupported` if the servers keep no locks.
    pub async fn break_lock_session(&self, session: u64) -> Result<bool, StoreError> {
        let parts = self.administer_with("break-lock-session", json!({ "session": session }), |_| ()).await?;
        Ok(parts.iter().any(|part| part.report["broken"] == true))
    }

    /// Ends the lock session of this store's handles: all its locks are released, and those that wait are not granted. Waits
    /// until the servers that can be reached know it. Without this, the end of a program leaves its session to lapse.
    pub async fn end_locks(&self) {
        if let Some(session) = self.locks.end() {
            session.end().await;
        }
    }
}

/// Adds the requests of a further page to those of the pages before, without those in `listed`: pages of several servers begin at
/// the least place of all, so some come twice.
fn merge(known: &mut Value, page: Value, listed: &mut HashSet<(u64, u64)>) {
    let Value::Object(mut page) = page else { return };
    let Some(Value::Array(more)) = page.remove("locks") else { return };
    if let Some(locks) = known["locks"].as_array_mut() {
        if listed.is_empty() {
            listed.extend(locks.iter().filter_map(name));
        }
        locks.extend(more.into_iter().filter(|lock| name(lock).is_none_or(|name| listed.insert(name))));
    }
    known["next"] = Value::Null;
}

/// Returns the session and the number of a listed request.
fn name(lock: &Value) -> Option<(u64, u64)> {
    Some((lock["session"].as_u64()?, lock["request"].as_u64()?))
}

/// A file whose bytes can be locked.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), nacre::Error> {
/// use nacre::lock::Mode;
///
/// let store = nacre::open("mem:")?;
/// let file = store.file("results")?;
/// let first = file.lock(0..100, Mode::Exclusive).await?;
/// // Nobody else has these bytes.
/// let second = file.lock(100..200, Mode::Exclusive).await?;
/// assert!(file.try_lock(0..1, Mode::Shared).await?.is_none());
/// second.release().await?;
/// first.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LockableFile {
    store: Store,
    name: Arc<str>,
}

impl LockableFile {
    /// Returns the file's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Locks bytes, and waits for those that others hold. If the future is dropped the wait ends, and nothing stays
    /// locked.
    ///
    /// # Errors
    ///
    /// `Invalid` if the description has no normal form, `Unavailable` if a lock server cannot be reached, `Unsupported` if
    /// the store has none, `Closed` if the lock session is lost meanwhile, `OutOfSpace` if a limit of a server is reached.
    pub async fn lock(&self, bytes: impl Into<Description>, mode: Mode) -> Result<Lock, StoreError> {
        self.lock_by(&Request::new(bytes, mode)).await
    }

    /// Locks bytes if nobody else holds any of them in a conflicting mode; `None` if somebody does, or a lock server was
    /// started again and still waits for what its former clients hold.
    ///
    /// # Errors
    ///
    /// Those of [`LockableFile::lock`].
    pub async fn try_lock(
        &self,
        bytes: impl Into<Description>,
        mode: Mode,
    ) -> Result<Option<Lock>, StoreError> {
        self.lock_if_had(Request::new(bytes, mode).without_wait()).await
    }

    /// Locks bytes, and waits at most for some time for those that others hold; `None` if they still hold some then, or a lock
    /// server was started again and still waits for what its former clients hold.
    ///
    /// # Errors
    ///
    /// Those of [`LockableFile::lock`].
    pub async fn lock_within(
        &self,
        bytes: impl Into<Description>,
        mode: Mode,
        wait: Duration,
    ) -> Result<Option<Lock>, StoreError> {
        self.lock_if_had(Request::new(bytes, mode).wait(wait)).await
    }

    async fn lock_if_had(&self, request: Request) -> Result<Option<Lock>, StoreError> {
        if_had(self.ask(&request).await)
    }

    /// Locks bytes by a method and a protocol of the caller's choice.
    ///
    /// # Errors
    ///
    /// Those of [`LockableFile::lock`], and `Busy` if others hold some of the bytes for longer than the request waits,
    /// or a lock server that was started again waits for its former clients all that time.
    pub async fn lock_by(&self, request: &Request) -> Result<Lock, StoreError> {
        match self.ask(request).await {
            Err(error) if error.kind == ErrorKind::Busy => Err(self.why(error).await),
            result => result,
        }
    }

    /// Returns the reason why a request was not granted in time, which is another one than it seems where a server was started
    /// again.
    async fn why(&self, error: StoreError) -> StoreError {
        within(ANSWER_MAX, self.grace()).await.flatten().unwrap_or(error)
    }

    /// Returns the refusal of a lock server that was started again and grants nothing yet, if there is one.
    async fn grace(&self) -> Option<StoreError> {
        // If it cannot be reached now, what it said before holds.
        let totals = self.store.lock_totals().await.ok()?;
        let grace = totals.into_iter().find(|part| part.report["in_grace"] == true)?;
        let left_s = grace.report["grace_left_ms"].as_u64().unwrap_or(0).div_ceil(1000);
        let text = format!(
            "cannot lock \"{}\" of {}: the lock server {} was started again, and for {left_s} s more it takes only what its \
             former clients hold",
            self.shown(),
            self.store.name(),
            grace.server
        );
        Some(StoreError::new(ErrorKind::Busy, text))
    }

    /// Returns the name as it is printed.
    fn shown(&self) -> Escaped<'_> {
        Escaped::of(&*self.name)
    }

    async fn ask(&self, request: &Request) -> Result<Lock, StoreError> {
        let (session, request) = self.session(request).await?;
        self.lock_in(&session, &request).await
    }

    fn failed(&self, error: StoreError) -> StoreError {
        error.context(format_args!("cannot lock \"{}\" of {}", self.shown(), self.store.name()))
    }

    /// Returns the session in which a request is made, and the request with the time that is left to it.
    async fn session(&self, request: &Request) -> Result<(Session, Request), StoreError> {
        let begun = Instant::now();
        let patience = request.wait.map_or(self.store.patience, |wait| wait.min(self.store.patience));
        let session = self.store.locks.session(&self.store, patience);
        let session = match request.wait {
            None => session.await,
            Some(wait) => {
                let limit = if wait.is_zero() { ANSWER_MAX } else { wait.saturating_add(LATE_MAX) };
                within(limit, session).await.unwrap_or_else(|| Err(LockError::Unanswered.into()))
            }
        };
        let session = session.map_err(|error| self.failed(error))?;
        let left = |wait: Duration| match wait.is_zero() {
            true => wait,
            false => wait.saturating_sub(begun.elapsed()).max(WAIT_MIN),
        };
        let request = Request { wait: request.wait.map(left), ..request.clone() };
        Ok((session, request))
    }

    async fn lock_in(&self, session: &Session, request: &Request) -> Result<Lock, StoreError> {
        let lock = session.lock(self.name.as_bytes(), request).await;
        let lock = lock.map_err(|error| self.failed(error.into()))?;
        Ok(Lock { store: self.store.clone(), lock })
    }
}

/// The least time that a request waits for that has used up its time before it is made.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// Returns nothing for a lock that others have.
fn if_had<L>(lock: Result<L, StoreError>) -> Result<Option<L>, StoreError> {
    match lock {
        Ok(lock) => Ok(Some(lock)),
        Err(error) if error.kind == ErrorKind::Busy => Ok(None),
        Err(error) => Err(error),
    }
}

/// Locked bytes of a file. Released by [`Lock::release`], or when it is dropped.
///
/// A lock can be lost before: if the lease of its session cannot be renewed in time, or an administrator breaks the
/// session. What goes through [`Lock::store`] then fails: at once by the client's own clock, and at the store, which is told
/// before anybody else is granted the bytes.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), nacre::Error> {
/// use nacre::lock::{Lock, Mode};
///
/// let store = nacre::open("mem:")?;
/// let lock: Lock = store.file("results")?.lock(0..100, Mode::Exclusive).await?;
/// lock.check()?;
/// // What is written through this handle is refused once the lock is lost.
/// lock.store().object("results")?.write(0, "mine").await?;
/// lock.release().await?;
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct Lock {
    store: Store,
    lock: nacre_lock::remote::Lock,
}

impl Lock {
    /// Returns the fencing token: the number of the session, for [`Store::for_session`].
    pub fn token(&self) -> u64 {
        self.lock.token()
    }

    /// Checks that the lock is held.
    ///
    /// # Errors
    ///
    /// `Closed` if it is lost.
    pub fn check(&self) -> Result<(), StoreError> {
        self.lock.check().map_err(StoreError::from)
    }

    /// Returns the time for which the lock is still held if its lease is not renewed again: zero if the lock is lost. The lease
    /// is renewed in the background as long as the process runs and the servers answer.
    pub fn lease_left(&self) -> Duration {
        self.lock.lease_left()
    }

    /// Waits until the lock is lost. Returns the error.
    pub async fn lost(&self) -> StoreError {
        self.lock.checker().lost().await.into()
    }

    /// Returns a handle on the store that acts under the lock: everything through it fails once the lock is lost or released. The lock
    /// keeps out only changes of other holders of locks, so all programs that share bytes are to lock them.
    pub fn store(&self) -> Store {
        let store = self.store.for_session(self.token());
        let (inner, checker) = (store.objects.clone(), self.lock.checker());
        // Nobody has seen the classes of the handle below, so they are made with these objects.
        Store { objects: Arc::new(UnderLock { inner, checker }), ..store }
    }

    /// Releases the lock, and waits until the servers know it. Replies to what was written under it are to be awaited before.
    ///
    /// # Errors
    ///
    /// `Closed` if it was lost before.
    pub async fn release(self) -> Result<(), StoreError> {
        self.lock.release().await.map_err(StoreError::from)
    }
}

impl std::fmt::Debug for Lock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lock(session {})", self.token())
    }
}

/// A store that is used as long as a lock is held.
struct UnderLock {
    inner: Arc<dyn ObjectStore>,
    checker: Checker,
}

impl UnderLock {
    fn guarded<T>(&self, act: impl FnOnce() -> Reply<T>) -> Reply<T> {
        match self.checker.check() {
            Ok(()) => act(),
            Err(error) => Reply::ready(Err(error.into())),
        }
    }
}

impl ObjectStore for UnderLock {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        self.guarded(|| self.inner.apply(object, transaction))
    }

    fn apply_once(&self, object: &ObjectId, transaction: Transaction, once: Once) -> Reply<Outcome> {
        self.guarded(|| self.inner.apply_once(object, transaction, once))
    }

    fn window(&self) -> Option<WindowPosition> {
        self.inner.window()
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.guarded(|| self.inner.list(after, limit))
    }

    fn limits(&self) -> Reply<Limits> {
        self.inner.limits()
    }

    fn watch(&self, object: &ObjectId, options: WatchOptions) -> Reply<Watch> {
        self.guarded(|| self.inner.watch(object, options))
    }

    fn notify(&self, object: &ObjectId, payload: Bytes, timeout: Duration) -> Reply<Notified> {
        self.guarded(|| self.inner.notify(object, payload, timeout))
    }
}
