//! Watch and notify on Ceph.
//!
//! All watchers of an object in this process share one watch of RADOS (module `follow`) and are told by a [`Hub`]. What RADOS
//! tells is what clients tell each other (module `message`): an OSD by itself says nothing of changes. So a change is announced
//! by its writer, after the write (module `announce`), where the object's header says that it is watched; a watcher sets that mark,
//! and a writer whom nobody answers clears it. An announcement is a hint: it may be missing, or come late. Whoever watches reads the
//! object's version when the watch begins, after each break, before each notification, and from time to time.
//!
//! Invariant: what a watcher is told of versions ascends, but for a store that lost some, and every version between two that it was
//! told of in a row is covered by a gap, or was never given to a change.
//!
//! A thread runs all of this. It waits for nothing but futures; neither librados nor a watcher ever waits for it.

mod announce;
mod follow;
mod message;

use std::collections::HashMap;
use std::ffi::CStr;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use nacre_object::watch::{Hub, Notified, Watch, WatchOptions, check_notification};
use nacre_object::{ErrorKind, ObjectId, StoreError};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;

use self::follow::Join;
pub(crate) use self::message::Link;
use crate::error::{Attempt, errno, failed};
use crate::mark::Marker;
use crate::name::object_name;
use crate::read::pool_is_there;
use crate::store::Tokens;
use crate::sys::{self, Pool};
use crate::uri::Location;

/// The number of notifications of this client that may wait for their answers.
const NOTIFICATIONS_MAX: usize = 1024;
/// The time that OSDs wait longer for answers than the notifier has given its watchers: each connection answers for all of its
/// watchers once that time is over.
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// The time for which answers and announcements under way are waited for when the store is closed.
const FAREWELL: Duration = Duration::from_secs(1);

/// A part of the work of the thread.
enum Job {
    /// One that ends with the store.
    Background(Pin<Box<dyn Future<Output = ()> + Send>>),
    /// One that the store waits for, for a moment, when it is closed.
    Announcement(Pin<Box<dyn Future<Output = ()> + Send>>),
}

/// The watches of a store, its announcements and notifications.
pub(crate) struct Watching {
    shared: Arc<Shared>,
    worker: Mutex<Option<Worker>>,
}

struct Shared {
    pool: Pool,
    location: Location,
    /// The stamps of headers whose mark is set or cleared.
    tokens: Tokens,
    marker: Arc<Marker>,
    hub: Hub,
    /// The way to whoever follows an object, for those who join in.
    followed: Mutex<HashMap<ObjectId, mpsc::UnboundedSender<Join>>>,
    /// Changes that are not announced yet, of the objects that are being announced.
    unannounced: Mutex<HashMap<ObjectId, Vec<Link>>>,
    notifications: Arc<Semaphore>,
    /// The answers to notifications of others, which wait for the watchers.
    answers: Mutex<JoinSet<()>>,
}

impl Watching {
    pub(crate) fn new(pool: Pool, location: &Location, marker: Arc<Marker>) -> Self {
        let shared = Shared {
            pool,
            location: location.clone(),
            tokens: Tokens::new(),
            marker,
            hub: Hub::default(),
            followed: Mutex::default(),
            unannounced: Mutex::default(),
            notifications: Arc::new(Semaphore::new(NOTIFICATIONS_MAX)),
            answers: Mutex::default(),
        };
        Self { shared: Arc::new(shared), worker: Mutex::new(None) }
    }

    /// Begins a watch. See [`ObjectStore::watch`](nacre_object::ObjectStore::watch).
    pub(crate) async fn watch(&self, object: &ObjectId, options: WatchOptions) -> Result<Watch, StoreError> {
        let (reply, receiver) = oneshot::channel();
        {
            let mut followed = self.shared.followed.lock();
            let mut join = Some(Join { options, reply });
            if let Some(follower) = followed.get(object)
                && let Some(wanted) = join.take()
                && let Err(mpsc::error::SendError(back)) = follower.send(wanted)
            {
                // It was lost with a panic.
                join = Some(back);
            }
            if let Some(join) = join {
                let (sender, joins) = mpsc::unbounded_channel();
                // The receiver is there.
                drop(sender.send(join));
                followed.insert(object.clone(), sender);
                let work = follow::follow(Arc::clone(&self.shared), object.clone(), joins);
                if let Err(error) = self.run(Job::Background(Box::pin(work))) {
                    followed.remove(object);
                    return Err(error);
                }
            }
        }
        receiver.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Notifies the watchers of an object. See [`ObjectStore::notify`](nacre_object::ObjectStore::notify).
    pub(crate) async fn notify(
        &self,
        object: &ObjectId,
        payload: Bytes,
        timeout: Duration,
    ) -> Result<Notified, StoreError> {
        check_notification(&payload, timeout)?;
        let Ok(permit) = Arc::clone(&self.shared.notifications).try_acquire_owned() else {
            let text = format!("{NOTIFICATIONS_MAX} notifications of this client are under way");
            return Err(StoreError::new(ErrorKind::Busy, text));
        };
        let (reply, receiver) = oneshot::channel();
        let (shared, object) = (Arc::clone(&self.shared), object.clone());
        self.run(Job::Background(Box::pin(async move {
            let notified = shared.notify(&object, &payload, timeout).await;
            drop(permit);
            // Let go before the answer is sent: whoever gets it may end the process.
            drop(shared);
            reply.send(notified).ok();
        })))?;
        receiver.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Announces a change of an object that is watched. Does not wait; nobody learns of a failure.
    pub(crate) fn announce(&self, object: &ObjectId, link: Link) {
        if !self.shared.location.announce || !self.shared.is_first(object, link) {
            return;
        }
        let work = announce::announce(Arc::clone(&self.shared), object.clone());
        if let Err(error) = self.run(Job::Announcement(Box::pin(work))) {
            tracing::debug!(%object, %error, "a change is not announced");
            self.shared.unannounced.lock().remove(object);
        }
    }

    /// Asks those who watch an object whether they are there. They may be there although none answers: then they notice that their
    /// watch has ended.
    pub(crate) async fn has_watchers(&self, name: &CStr) -> bool {
        const SECONDS: u64 = 2;
        let completed = self.shared.pool.notify(name, &message::changes(&[]), SECONDS).await;
        let answer = completed.answers.into_iter().next().map(|answer| answer.into_bytes());
        let answers = message::answers(0, answer.unwrap_or_default());
        completed.code < 0 || answers.is_none_or(|answers| answers.connections > 0)
    }

    fn run(&self, job: Job) -> Result<(), StoreError> {
        let mut worker = self.worker.lock();
        if worker.is_none() {
            *worker = Some(Worker::start(Arc::clone(&self.shared))?);
        }
        let sent = worker.as_ref().is_some_and(|worker| worker.jobs.send(job).is_ok());
        if sent { Ok(()) } else { Err(StoreError::new(ErrorKind::Io, "the thread for watches on Ceph died")) }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        // This ends what waits for watchers, so that all notifications of others are answered before the thread ends.
        self.shared.hub.close(&closed());
        let Some(Worker { jobs, thread }) = self.worker.get_mut().take() else { return };
        drop(jobs);
        // The connection is to be closed when the store is gone. A thread of librados must not wait, though.
        if !sys::in_callback() && std::thread::current().id() != thread.thread().id() {
            thread.join().ok();
        }
    }
}

fn closed() -> StoreError {
    StoreError::new(ErrorKind::Closed, "the store was closed")
}

/// The thread that does the work.
struct Worker {
    jobs: mpsc::UnboundedSender<Job>,
    thread: JoinHandle<()>,
}

impl Worker {
    fn start(shared: Arc<Shared>) -> Result<Worker, StoreError> {
        let (jobs, receiver) = mpsc::unbounded_channel();
        let thread = std::thread::Builder::new().name("nacre-ceph".into()).spawn(move || {
            // Without a runtime the receiver is dropped, which whoever sends a job notices.
            match tokio::runtime::Builder::new_current_thread().enable_time().build() {
                Ok(runtime) => runtime.block_on(work(&shared, receiver)),
                Err(error) => tracing::warn!("cannot start a runtime for watches on Ceph: {error}"),
            }
        });
        match thread {
            Ok(thread) => Ok(Worker { jobs, thread }),
            Err(error) => {
                let text = format!("cannot start a thread for watches on Ceph: {error}");
                Err(StoreError::new(ErrorKind::Io, text))
            }
        }
    }
}

/// Does jobs until the store is closed.
async fn work(shared: &Shared, mut jobs: mpsc::UnboundedReceiver<Job>) {
    let mut announcements = JoinSet::new();
    loop {
        tokio::select! {
            job = jobs.recv() => match job {
                Some(Job::Background(work)) => drop(tokio::spawn(work)),
                Some(Job::Announcement(work)) => drop(announcements.spawn(work)),
                None => break,
            },
            Some(_) = announcements.join_next() => {}
        }
    }
    let farewell = async {
        let mut answers = std::mem::take(&mut *shared.answers.lock());
        while answers.join_next().await.is_some() {}
        while announcements.join_next().await.is_some() {}
    };
    tokio::time::timeout(FAREWELL, farewell).await.ok();
}

impl Shared {
    /// Sends a notification and waits for the answers.
    async fn notify(
        &self,
        object: &ObjectId,
        payload: &[u8],
        timeout: Duration,
    ) -> Result<Notified, StoreError> {
        // Random, so that no two clients give the same, and a store that is opened again does not either.
        let id = RandomState::new().hash_one(std::process::id()) >> 1 | 1;
        // Watchers are told first of what this client has changed.
        let links = self.unannounced.lock().get(object).cloned().unwrap_or_default();
        let message = message::notification(&links, id, timeout, payload);
        let seconds = (timeout + ANSWER_TIME).as_millis().div_ceil(1000) as u64;
        let operation = self.pool.notify(&object_name(object), &message, seconds);
        // Where the OSD cannot be reached, librados waits for it without an end.
        let limit = Duration::from_secs(seconds).saturating_add(self.location.timeout);
        let Ok(completed) = tokio::time::timeout(limit, operation).await else {
            let text = format!("no answer within {} s: watchers may have received it", limit.as_secs());
            let error = StoreError::new(ErrorKind::Unknown, text);
            return Err(error.context(format_args!("notifying watchers of object \"{object}\"")));
        };
        match -completed.code {
            // Nobody watches what is not there.
            errno::ENOENT => {
                pool_is_there(&self.pool, &self.location, object)?;
                return Ok(Notified { id, ..Notified::default() });
            }
            // Some did not answer, and the answer says who.
            code if code <= 0 || code == errno::ETIMEDOUT => {}
            code => return Err(failed(-code, Attempt::Read, &self.location, object)),
        }
        let answer =
            completed.answers.into_iter().next().map(|answer| answer.into_bytes()).unwrap_or_default();
        match message::answers(id, answer) {
            Some(answers) => Ok(answers.notified),
            None => {
                let error =
                    StoreError::new(ErrorKind::Unknown, "the OSD's answer to a notification is invalid");
                Err(error.context(format_args!("notifying watchers of object \"{object}\"")))
            }
        }
    }
}
