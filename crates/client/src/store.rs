//! The handle on a store.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::channel::oneshot;
use nacre_object::copy::{self, Copied};
use nacre_object::watch::{Notified, Watch, WatchOptions};
use nacre_object::{
    ErrorKind, Limits, ObjectId, ObjectStore, Once, Outcome, ReadOp, Reply, StoreError, Transaction,
    WindowPosition,
};

use crate::blocking::BlockingStore;
use crate::engine::Opened;
use crate::lock::Sessions;
use crate::object::Object;
use crate::pager::Objects;
use crate::uri::{Engine, Uri};

/// A handle on a store. Cheap to clone; all clones are handles on the same store.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), nacre::Error> {
/// let store = nacre::open("mem:")?;
/// // The same store, in another task.
/// let same = store.clone();
/// tokio::spawn(async move { same.object("a")?.write(0, "hello").await }).await.unwrap()?;
/// assert_eq!(store.object("a")?.read(0..5).await?.data, "hello");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Store {
    pub(crate) objects: Arc<dyn ObjectStore>,
    pub(crate) opened: Opened,
    pub(crate) name: Arc<str>,
    /// The longest time for which a transfer that has begun waits for servers that are away.
    pub(crate) patience: Duration,
    pub(crate) locks: Arc<Sessions>,
    /// The store by which this handle caches, if it does.
    #[cfg(feature = "meta")]
    pub(crate) cached: Option<nacre_remote::LeasedStore>,
    #[cfg(feature = "meta")]
    pub(crate) meta: Arc<crate::sequencer::Sessions>,
    #[cfg(feature = "class")]
    pub(crate) classes: crate::class::Shared,
    /// True if methods run in this process even where there are servers, because the handle guards what they change.
    #[cfg(feature = "class")]
    pub(crate) calls_here: bool,
}

impl Store {
    /// Opens the store at a place: [`open`](crate::open), with the place already parsed.
    ///
    /// # Errors
    /// Those of [`open`](crate::open).
    pub fn open(uri: &Uri) -> Result<Store, StoreError> {
        Store::open_by(uri, false)
    }

    /// Opens the store at a place without blocking the thread that awaits it. See [`open_async`](crate::open_async).
    ///
    /// # Errors
    /// Those of [`open`](crate::open).
    pub async fn open_async(uri: &Uri) -> Result<Store, StoreError> {
        if !matches!(uri.engine, Engine::Folder(_)) {
            return Store::open(uri);
        }
        let (sender, receiver) = oneshot::channel();
        let opened = uri.clone();
        let open = move || drop(sender.send(Store::open(&opened)));
        let thread = std::thread::Builder::new().name("nacre-open".to_owned()).spawn(open);
        let failed = |why: String| {
            StoreError::new(ErrorKind::Io, why).context(format_args!("cannot open {}", uri.name()))
        };
        thread.map_err(|error| failed(format!("no thread can be started: {error}")))?;
        // The sender is gone without an answer only if opening panicked.
        receiver.await.unwrap_or_else(|_| Err(failed("the thread that opened it panicked".to_owned())))
    }

    /// Opens a store whose connections to servers, if it has any, do not depend on the runtime of whoever uses it: for
    /// programs whose runtimes come and go. Otherwise like [`Store::open`].
    ///
    /// # Errors
    /// Those of [`open`](crate::open).
    pub fn open_apart(uri: &Uri) -> Result<Store, StoreError> {
        Store::open_by(uri, true)
    }

    fn open_by(uri: &Uri, own_thread: bool) -> Result<Store, StoreError> {
        let name = uri.name();
        let opened = Opened::open(uri, own_thread)
            .map_err(|error| error.context(format_args!("cannot open {name}")))?;
        let patience = match &uri.engine {
            #[cfg(feature = "servers")]
            Engine::Servers(_) => {
                let default = nacre_remote::RemoteOptions::default().repeat_timeout;
                uri.options.repeat_timeout.unwrap_or(default)
            }
            _ => Duration::ZERO,
        };
        let locks = Arc::new(Sessions::new(matches!(uri.engine, Engine::Memory)));
        Ok(Store {
            objects: opened.objects(),
            opened,
            name: name.into(),
            patience,
            locks,
            #[cfg(feature = "meta")]
            cached: None,
            #[cfg(feature = "meta")]
            meta: Arc::new(crate::sequencer::Sessions::new(&uri.options)),
            #[cfg(feature = "class")]
            classes: Arc::default(),
            #[cfg(feature = "class")]
            calls_here: false,
        })
    }

    /// Creates a handle on an engine of the caller's own, with a name for it in messages.
    pub fn from_engine(engine: Arc<dyn ObjectStore>, name: &str) -> Store {
        Store {
            objects: engine.clone(),
            opened: Opened::Other(engine),
            name: name.into(),
            patience: Duration::ZERO,
            locks: Arc::default(),
            #[cfg(feature = "meta")]
            cached: None,
            #[cfg(feature = "meta")]
            meta: Arc::default(),
            #[cfg(feature = "class")]
            classes: Arc::default(),
            #[cfg(feature = "class")]
            calls_here: true,
        }
    }

    /// Connects to the servers now, where there are any, instead of when they are first needed. Fails if none of
    /// them can be reached, or if one refuses this client.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if no server can be reached, [`ErrorKind::Denied`] if one refuses this client,
    /// [`ErrorKind::Invalid`] if they are not one store.
    pub async fn connect(&self) -> Result<(), StoreError> {
        match &self.opened {
            #[cfg(feature = "servers")]
            Opened::Remote(remote) => remote.connect().await,
            #[cfg(feature = "rados")]
            Opened::Rados(rados) => rados.connect().await,
            _ => Ok(()),
        }
    }

    /// Returns the store's uri, or the name of the caller's own engine, as messages show it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a handle on an object of the store, whether the object exists or not. Fails only if the id is not 1 to
    /// 255 bytes long.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the id is not 1 to 255 bytes long.
    pub fn object(&self, id: impl AsRef<[u8]>) -> Result<Object, StoreError> {
        let id = ObjectId::new(bytes::Bytes::copy_from_slice(id.as_ref()))?;
        Ok(Object::new(self.clone(), id))
    }

    /// Applies a transaction to one object: wholly, or not at all. It is under way when this returns, whether its
    /// reply is awaited or not, unless so much waits to be sent to the server already (16 MiB, or 16,384 requests on a
    /// connection) that it is sent only when the reply is polled.
    ///
    /// # Errors
    /// Those of a [read](crate#errors), and if the transaction changes something those of a [write](crate#errors).
    /// [`ErrorKind::Unknown`]: it took effect wholly, or not at all, or still may. They say neither the object nor
    /// the store as data, which the caller knows. [`ErrorKind::Invalid`] if [`Transaction::validate`] fails.
    pub fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        self.objects.apply(object, transaction)
    }

    /// Copies all objects to another store, with their versions; `progress` is called after each one with the totals so
    /// far. Content that the other store has already is not copied again, so an interrupted copy resumes where it
    /// stopped. See [`nacre_object::copy`] for what is kept, and what cannot be.
    ///
    /// # Errors
    /// Those of reading the one store and of writing the other. What was copied stays, and copying again goes on from
    /// there.
    pub async fn copy_objects(
        &self,
        destination: &Store,
        progress: impl FnMut(&ObjectId, &Copied),
    ) -> Result<Copied, StoreError> {
        let copied = copy::copy_objects(&*self.objects, &*destination.objects, progress).await;
        copied.map_err(|error| error.context(format_args!("copying {} to {}", self.name, destination.name)))
    }

    /// Lists all objects that exist, in ascending order of their ids, page by page.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nacre::Error> {
    /// let store = nacre::open("mem:")?;
    /// for id in ["a", "b", "c"] {
    ///     store.object(id)?.create().await?;
    /// }
    /// let mut objects = store.list();
    /// let mut found = Vec::new();
    /// while let Some(id) = objects.next().await? {
    ///     found.push(id.to_string());
    /// }
    /// assert_eq!(found, ["a", "b", "c"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn list(&self) -> Objects {
        Objects::new(self.objects.clone(), None)
    }

    /// Lists objects, as [`Store::list`] does, from the first one after `after`.
    pub fn list_after(&self, after: ObjectId) -> Objects {
        Objects::new(self.objects.clone(), Some(after))
    }

    /// Discards an object of which nothing can be read, because its header is damaged; the remainder is an object that
    /// was removed. Returns false if there is no object of that name.
    ///
    /// # Errors
    /// `Unsupported` if objects are not kept in a pool of a Ceph cluster: damage of other stores concerns bytes, which
    /// can be written again. `Invalid` if the object is not damaged like that.
    pub async fn discard_damaged(&self, object: &ObjectId) -> Result<bool, StoreError> {
        match &self.opened {
            #[cfg(feature = "rados")]
            Opened::Rados(rados) => rados.discard_damaged(object).await,
            _ => {
                let text =
                    format!("object \"{object}\" of {} cannot be discarded: write it again", self.name);
                Err(StoreError::new(ErrorKind::Unsupported, text))
            }
        }
    }

    /// Returns the store with calls that block the calling thread instead of being awaited.
    ///
    /// They must not be called on the only thread of an async runtime, least of all on that of the runtime in which
    /// the store was used before: what they wait for might need that thread.
    pub fn blocking(&self) -> BlockingStore {
        BlockingStore::new(self.clone())
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store({})", self.name)
    }
}

impl ObjectStore for Store {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        self.objects.apply(object, transaction)
    }

    fn apply_once(&self, object: &ObjectId, transaction: Transaction, once: Once) -> Reply<Outcome> {
        self.objects.apply_once(object, transaction, once)
    }

    fn window(&self) -> Option<WindowPosition> {
        self.objects.window()
    }

    fn version_now(&self, object: &ObjectId) -> Option<u64> {
        self.objects.version_now(object)
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.objects.list(after, limit)
    }

    fn limits(&self) -> Reply<Limits> {
        self.objects.limits()
    }

    fn read_ahead(&self, objects: &[ObjectId], reads: &[ReadOp]) -> Option<Reply<usize>> {
        self.objects.read_ahead(objects, reads)
    }

    fn watch(&self, object: &ObjectId, options: WatchOptions) -> Reply<Watch> {
        self.objects.watch(object, options)
    }

    fn notify(&self, object: &ObjectId, payload: Bytes, timeout: Duration) -> Reply<Notified> {
        self.objects.notify(object, payload, timeout)
    }
}
