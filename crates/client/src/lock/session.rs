//! The lock session of a store's handles: begun with the first lock, and again after it was lost.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nacre_lock::remote::Session;
use nacre_object::{ErrorKind, StoreError};
use nacre_rpc::client::LinkOptions;
use tokio::sync::watch::{Receiver, Sender};

use crate::engine::Opened;
#[cfg(feature = "file")]
use crate::lock_local::LocalLocks;
use crate::store::Store;
use crate::transfer::RetryBudget;

/// The lock session of a store's handles: begun with the first lock, and again after it was lost.
#[derive(Default)]
pub(crate) struct Sessions {
    /// True if what the store keeps goes with this process.
    #[cfg(feature = "file")]
    volatile: bool,
    current: Mutex<Option<Session>>,
    /// Held while a session is begun, which may take as long as a server's store takes no writes.
    beginning: tokio::sync::Mutex<()>,
    /// Tells of the ends of sessions to those who begin one.
    ends: Sender<()>,
    /// The lock server of a store in this process, from the first lock on.
    #[cfg(feature = "file")]
    local: tokio::sync::Mutex<Option<LocalLocks>>,
}

impl Sessions {
    pub(crate) fn new(volatile: bool) -> Sessions {
        Sessions {
            #[cfg(feature = "file")]
            volatile,
            current: Mutex::default(),
            beginning: Default::default(),
            ends: Sender::default(),
            #[cfg(feature = "file")]
            local: Default::default(),
        }
    }

    /// Returns the session, or begins one. A server that is away is waited for until `patience` is over.
    pub(super) async fn session(&self, store: &Store, patience: Duration) -> Result<Session, StoreError> {
        let ends = match self.find() {
            Ok(session) => return Ok(session),
            Err(ends) => ends,
        };
        let _one_at_a_time = self.beginning.lock().await;
        if ends.has_changed().unwrap_or(true) {
            return Err(ended());
        }
        // Another one has begun it meanwhile.
        if let Ok(session) = self.find() {
            return Ok(session);
        }
        let beginning = async {
            let mut patience = RetryBudget::of(patience);
            loop {
                match self.begin(store).await {
                    Err(error) if patience.allows(&error).await => {}
                    begun => return begun,
                }
            }
        };
        self.keep(ends, beginning).await
    }

    /// Begins a session at the store's lock servers.
    async fn begin(&self, store: &Store) -> Result<Session, StoreError> {
        let (addresses, options): (_, LinkOptions) = match &store.opened {
            #[cfg(feature = "servers")]
            Opened::Remote(remote) => (remote.addresses().await?, remote.link_options()),
            #[cfg(feature = "file")]
            Opened::Log(log) => {
                let mut local = self.local.lock().await;
                let local = match &mut *local {
                    Some(local) => local,
                    none => none.insert(LocalLocks::start(Arc::new(log.clone()), self.volatile).await?),
                };
                (local.addresses(), LinkOptions::default())
            }
            _ => {
                let text = format!(
                    "{} has no lock server, which grants locks; start \"nacre serve --roles store,lock\" in front of it, and \
                     lock there",
                    store.name()
                );
                return Err(StoreError::new(ErrorKind::Unsupported, text));
            }
        };
        let options = LinkOptions { features: 0, ..options };
        Session::begin(addresses, options).await
    }

    /// Returns the session, and if there is none to be relied on, what tells of the next end.
    fn find(&self) -> Result<Session, Receiver<()>> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        match current.as_ref().filter(|session| session.check().is_ok()) {
            Some(session) => Ok(session.clone()),
            None => Err(self.ends.subscribe()),
        }
    }

    /// Waits for a session to begin, and keeps it. Sessions may be ended meanwhile, which waits for none to begin.
    async fn keep(
        &self,
        mut ends: Receiver<()>,
        beginning: impl Future<Output = Result<Session, StoreError>>,
    ) -> Result<Session, StoreError> {
        let session = tokio::select! {
            session = beginning => session?,
            _ = ends.changed() => return Err(ended()),
        };
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if ends.has_changed().unwrap_or(true) {
            return Err(ended());
        }
        let before = current.replace(session.clone());
        drop(current);
        // It ends without the lock, as that may wake somebody.
        drop(before);
        Ok(session)
    }

    /// Takes the session out. Those who wait for one to begin get none.
    pub(super) fn end(&self) -> Option<Session> {
        // Whoever is woken may run at once and ask for a session, so this is done without the lock. A session that is kept
        // before they notice is taken out next.
        self.ends.send_replace(());
        self.current.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

fn ended() -> StoreError {
    StoreError::new(ErrorKind::Closed, "the store's locks were ended before the lock session began")
}

#[cfg(feature = "file")]
impl Drop for Sessions {
    fn drop(&mut self) {
        let session = self.current.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(local) = self.local.get_mut().take() {
            local.stop(session);
        }
    }
}

#[cfg(all(test, feature = "file"))]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake};

    use futures::FutureExt as _;
    use futures::executor::block_on;

    use super::*;
    use crate::lock::Mode;

    /// Looks for the session when it is woken.
    struct Looks(Store, AtomicUsize);

    impl Wake for Looks {
        fn wake(self: Arc<Self>) {
            let free = self.0.locks.current.try_lock().is_ok();
            self.1.fetch_add(if free { 1 } else { 1000 }, Ordering::SeqCst);
        }
    }

    #[test]
    fn whoever_waits_for_a_session_when_locks_are_ended_is_woken_without_the_lock_of_its_place() {
        let store = crate::open("mem:").unwrap();
        let looks = Arc::new(Looks(store.clone(), AtomicUsize::new(0)));
        let ends = store.locks.find().unwrap_err();
        let mut begins = pin!(store.locks.keep(ends, std::future::pending()));
        let waker = looks.clone().into();
        assert!(begins.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert!(store.locks.end().is_none());
        assert_eq!(looks.1.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn the_end_of_all_locks_waits_for_no_session_that_does_not_begin() {
        // As at a server whose store takes no writes, so that it cannot record the numbers that it gives.
        let store = crate::open("mem:").unwrap();
        let other = store.clone();
        let file = other.file("f").unwrap();
        let mut begins = pin!(async {
            let ends = store.locks.find().unwrap_err();
            let _one_at_a_time = store.locks.beginning.lock().await;
            store.locks.keep(ends, std::future::pending()).await
        });
        assert!(begins.as_mut().now_or_never().is_none());
        let mut waits = pin!(file.lock(0..10, Mode::Exclusive));
        assert!(waits.as_mut().now_or_never().is_none());
        assert_eq!(store.end_locks().now_or_never(), Some(()));
        assert_eq!(block_on(begins).unwrap_err().kind, ErrorKind::Closed);
        assert_eq!(block_on(waits).unwrap_err().kind, ErrorKind::Closed);
        // The next lock begins another session.
        let lock = block_on(file.lock(0..10, Mode::Exclusive)).unwrap();
        block_on(lock.release()).unwrap();
    }
}
