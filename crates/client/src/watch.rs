//! Watching objects, and notifying those who watch one.
//!
//! ```
//! use std::time::Duration;
//! use nacre::watch::Event;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), nacre::Error> {
//! let store = nacre::open("mem:")?;
//! let settings = store.object("settings")?;
//! let mut watch = settings.watch().await?;
//!
//! settings.set_key("color", "blue").await?;
//! match watch.next().await {
//!     Some(Ok(Event::Changed { version })) => println!("version {version}: read what is new"),
//!     Some(Ok(Event::Gap(gap))) => println!("events were missed; it is at version {} now", gap.version),
//!     other => panic!("{other:?}"),
//! }
//!
//! // Whoever watches an object receives notifications, and acknowledges them when it has acted on them.
//! let listener = tokio::spawn(async move {
//!     while let Some(Ok(event)) = watch.next().await {
//!         if let Event::Notified(notification) = event {
//!             return notification.acknowledge("done");
//!         }
//!     }
//!     Ok(())
//! });
//! let outcome = settings.notify("reload", Duration::from_secs(5)).await?;
//! assert_eq!(outcome.acknowledged[0].reply, "done");
//! assert!(outcome.missed.is_empty());
//! # listener.await.unwrap()?;
//! # Ok(())
//! # }
//! ```

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::Stream;
use futures::executor::block_on;
export! {
    /// An engine takes the acknowledgements of the notifications that it hands out:
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    ///
    /// use bytes::Bytes;
    /// use nacre::watch::{Acknowledge, Notification};
    ///
    /// #[derive(Default)]
    /// struct Collected(Mutex<Vec<Bytes>>);
    ///
    /// impl Acknowledge for Collected {
    ///     fn acknowledge(&self, _notification: u64, _watcher: u64, reply: Bytes) {
    ///         self.0.lock().unwrap().push(reply);
    ///     }
    /// }
    ///
    /// let collected = Arc::new(Collected::default());
    /// let notification = Notification::new(1, "reload".into(), 7, collected.clone());
    /// assert_eq!(notification.payload(), "reload");
    /// notification.acknowledge("done")?;
    /// assert_eq!(collected.0.lock().unwrap()[..], ["done"]);
    /// # Ok::<(), nacre::Error>(())
    /// ```
    "The receiver of acknowledgements." nacre_object::watch::Acknowledge;
    "A notification, as a watcher receives it. If it is not acknowledged, its sender waits until its time is over, and is then told that the watcher did not acknowledge it." nacre_object::watch::Notification;
}
export! {
    /// ```
    /// use std::time::Duration;
    ///
    /// use nacre::watch::{Acknowledged, Notified, WatchOptions};
    ///
    /// let settings = nacre::open("mem:")?.blocking().object("settings")?;
    /// // A watcher that does not answer.
    /// let _silent = settings.watch_with(WatchOptions { events_max: 10, ..WatchOptions::default() })?;
    /// let Notified { acknowledged, missed, .. } = settings.notify("reload", Duration::from_millis(1))?;
    /// for Acknowledged { watcher, reply } in acknowledged {
    ///     println!("{watcher} answers {reply:?}");
    /// }
    /// assert_eq!(missed.len(), 1);
    /// # Ok::<(), nacre::Error>(())
    /// ```
    "The acknowledgement of a notification." nacre_object::watch::Acknowledged;
    "The outcome of a notification." nacre_object::watch::Notified;
    "The settings of a watch." nacre_object::watch::WatchOptions;
}
export! {
    /// ```
    /// use std::future::poll_fn;
    ///
    /// use nacre::ObjectStore as _;
    /// use nacre::watch::{Allowance, Event, WatchOfEngine, WatchOptions};
    ///
    /// # futures::executor::block_on(async {
    /// let store = nacre::open("mem:")?;
    /// // Watches that share a bound on the bytes that wait.
    /// let allowance = Allowance::new(1 << 20, None);
    /// let options = WatchOptions { allowance: Some(allowance), ..WatchOptions::default() };
    /// let mut watch: WatchOfEngine = store.watch(&"settings".parse()?, options).await?;
    /// store.object("settings")?.write(0, "new").await?;
    /// let event = poll_fn(|context| watch.poll_next(context)).await;
    /// assert!(matches!(event, Some(Ok(Event::Changed { .. }))));
    /// # Ok::<(), nacre::Error>(()) }).unwrap();
    /// ```
    "A bound on the bytes of notifications that wait in several queues together. While none waits, one may in any case." nacre_object::watch::Allowance;
    "A watch of an object: its events, in order. The watch ends when this value is dropped." nacre_object::watch::Watch as WatchOfEngine;
}
export! {
    /// The events that a watcher gets, and the gaps in which it misses some:
    ///
    /// ```
    /// use nacre::watch::{Cause, Event, Gap};
    ///
    /// fn show(event: Event) {
    ///     match event {
    ///         Event::Changed { version } => println!("it is at version {version}"),
    ///         Event::Notified(notification) => println!("told {:?}", notification.payload()),
    ///         // The object has to be read again.
    ///         Event::Gap(Gap { version, cause: Cause::Slow, .. }) => println!("too slow; it is at version {version}"),
    ///         Event::Gap(Gap { version, .. }) => println!("it is at version {version}"),
    ///     }
    /// }
    /// show(Event::Gap(Gap::unknown(7, Cause::Broken)));
    /// ```
    "The reason for a gap." nacre_object::watch::Cause;
    "An event of a watched object." nacre_object::watch::Event;
    "Events that a watcher was not told one by one." nacre_object::watch::Gap;
}
use nacre_object::{ErrorKind, ObjectId, ObjectStore, StoreError};

use crate::blocking::BlockingObject;
use crate::object::Object;

/// A watch of an object: the stream of its events, in order. It ends when this value is dropped.
///
/// The stream is complete, or says with [`Event::Gap`] where it is not. A broken connection, or a server that is started
/// again, is such a gap: the watch goes on by itself as soon as the server can be reached.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), nacre::Error> {
/// use nacre::watch::{Event, Watch};
///
/// let object = nacre::open("mem:")?.object("settings")?;
/// let mut watch: Watch = object.watch().await?;
/// let written = object.write(0, "new").await?;
/// assert!(matches!(watch.next().await, Some(Ok(Event::Changed { version })) if version == written));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use]
pub struct Watch {
    inner: nacre_object::watch::Watch,
    object: ObjectId,
}

/// A [`Watch`] whose calls block the calling thread. As an iterator, it returns the events until the watch ends.
///
/// ```
/// use std::time::Duration;
///
/// use nacre::watch::{BlockingWatch, Event};
///
/// let object = nacre::open("mem:")?.blocking().object("settings")?;
/// let mut watch: BlockingWatch = object.watch()?;
/// assert!(watch.next_within(Duration::ZERO)?.is_none());
/// object.write(0, "new")?;
/// assert!(matches!(watch.next(), Some(Ok(Event::Changed { .. }))));
/// # Ok::<(), nacre::Error>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct BlockingWatch {
    watch: Watch,
}

impl Object {
    /// Watches the object, which need not exist.
    ///
    /// # Errors
    ///
    /// `Unsupported` on a store that cannot watch objects, `Busy` if there are as many watches as may be.
    pub async fn watch(&self) -> Result<Watch, StoreError> {
        self.watch_with(WatchOptions::default()).await
    }

    /// Watches the object, as [`Object::watch`] does, with a queue of another length or an id of the caller's choice.
    ///
    /// # Errors
    ///
    /// Those of [`Object::watch`].
    pub async fn watch_with(&self, options: WatchOptions) -> Result<Watch, StoreError> {
        let watch = ObjectStore::watch(self.store(), self.id(), options).await;
        let inner = watch.map_err(|error| self.context(error, "watch"))?;
        Ok(Watch { inner, object: self.id().clone() })
    }

    /// Notifies all who watch the object, wherever they are, and waits until all of them have acknowledged it or the time
    /// is over. Notifications come to all watchers in the same order, and after the changes that were made before.
    ///
    /// # Errors
    ///
    /// `Invalid` if the payload is longer than 60 KiB or the time longer than a minute, `Busy` if too many notifications
    /// are under way, `Unknown` if the connection broke and watchers may have received it.
    pub async fn notify(&self, payload: impl Into<Bytes>, timeout: Duration) -> Result<Notified, StoreError> {
        let notified = ObjectStore::notify(self.store(), self.id(), payload.into(), timeout).await;
        notified.map_err(|error| self.context(error, "notify the watchers of"))
    }
}

impl Watch {
    /// Returns the id of the watched object.
    pub fn object(&self) -> &ObjectId {
        &self.object
    }

    /// Returns the watcher's id, by which outcomes of notifications name it.
    pub fn id(&self) -> u64 {
        self.inner.id()
    }

    /// Returns the version that the object had when the watch began; 0 if it never existed. The first event follows it.
    pub fn version(&self) -> u64 {
        self.inner.version()
    }

    /// Returns the next event; `None` once the watch has ended.
    ///
    /// # Errors
    ///
    /// The reason why the watch has ended: the store was closed, or refuses this client. `None` follows it.
    pub async fn next(&mut self) -> Option<Result<Event, StoreError>> {
        self.inner.next().await
    }

    /// Returns the watch with calls that block the calling thread.
    pub fn blocking(self) -> BlockingWatch {
        BlockingWatch { watch: self }
    }
}

impl Stream for Watch {
    type Item = Result<Event, StoreError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.inner.poll_next(context)
    }
}

/// The waker of a parked thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl BlockingWatch {
    /// Returns the watch with calls that are awaited.
    pub fn nonblocking(&mut self) -> &mut Watch {
        &mut self.watch
    }

    /// Returns the next event; `None` if there is none within the time.
    ///
    /// # Errors
    ///
    /// The reason why the watch has ended; `Closed` if it had ended before.
    pub fn next_within(&mut self, time: Duration) -> Result<Option<Event>, StoreError> {
        let until = Instant::now() + time;
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        loop {
            match self.watch.inner.poll_next(&mut Context::from_waker(&waker)) {
                Poll::Ready(Some(event)) => return event.map(Some),
                Poll::Ready(None) => {
                    let text = format!("the watch of object \"{}\" has ended", self.watch.object);
                    return Err(StoreError::new(ErrorKind::Closed, text));
                }
                Poll::Pending => match until.checked_duration_since(Instant::now()) {
                    None => return Ok(None),
                    Some(left) => std::thread::park_timeout(left),
                },
            }
        }
    }
}

impl Iterator for BlockingWatch {
    type Item = Result<Event, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        block_on(self.watch.next())
    }
}

impl BlockingObject {
    /// Watches the object. See [`Object::watch`].
    ///
    /// # Errors
    ///
    /// Those of [`Object::watch`].
    pub fn watch(&self) -> Result<BlockingWatch, StoreError> {
        self.watch_with(WatchOptions::default())
    }

    /// Watches the object. See [`Object::watch_with`].
    ///
    /// # Errors
    ///
    /// Those of [`Object::watch`].
    pub fn watch_with(&self, options: WatchOptions) -> Result<BlockingWatch, StoreError> {
        block_on(self.nonblocking().watch_with(options)).map(Watch::blocking)
    }

    /// Notifies all who watch the object. See [`Object::notify`].
    ///
    /// # Errors
    ///
    /// Those of [`Object::notify`].
    pub fn notify(&self, payload: impl Into<Bytes>, timeout: Duration) -> Result<Notified, StoreError> {
        block_on(self.nonblocking().notify(payload, timeout))
    }
}
