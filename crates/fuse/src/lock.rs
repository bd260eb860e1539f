//! `fcntl` and `flock` locks that hold between mounts, by the lock service of the store.
//!
//! The kernel hands every lock over to the mount. A table of each file decides between the owners on this mount, as the kernel would
//! have. To the lock service they are one: of each file a mount holds what is locked in each mode by any of its owners, as one lock of
//! the service for each mode. Such a lock is granted and released as a whole, so a change of the bytes gives one up and takes another.
//! Nobody may come in between, or a lock that is upgraded in vain would be lost. So whoever takes bytes of a file at the service holds
//! its *gate* meanwhile, a byte that no program can lock. Nobody waits at the service for other bytes than the gate: who waits for a lock
//! of another mount asks for it again and again.
//!
//! All locks of a mount are in one session. When it is lost, all open files by way of which something was locked fail from then on.

mod table;

use std::collections::HashMap;
use std::future::Future;
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fuser::{Errno, INodeNo, Notifier};
use nacre::lock::{Lock, LockableFile, Mode, Region};
use nacre::{ErrorKind, Store};
use parking_lot::Mutex;
use tokio::sync::Notify;

pub(crate) use self::table::Piece;
use self::table::Table;

/// The gate of a file: the last byte that the lock service knows.
const GATE: Range<u64> = OFFSET_MAX - 1..OFFSET_MAX;
const OFFSET_MAX: u64 = nacre::lock::OFFSET_MAX;
/// The file at the lock service that each session locks, to be told when it is lost.
const SESSIONS: &str = "nacre/fs-locks";
/// The number of pieces that may be locked of a file by one mount.
const PIECES_MAX: usize = 4096;
/// The pauses between attempts to get what another mount holds.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// The pause between looks at the signals of a thread that waits.
const SIGNALS: Duration = Duration::from_millis(100);
const MODES: [Mode; 2] = [Mode::Shared, Mode::Exclusive];

/// Returns the bytes between two offsets, both included, without those that no file can have.
pub(crate) fn between(first: u64, last: u64) -> Range<u64> {
    let first = first.min(GATE.start - 1);
    first..last.saturating_add(1).clamp(first + 1, GATE.start)
}

/// The reason why a lock is not had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// Others hold some of the bytes.
    Others,
    /// The thread that waits has a signal to take.
    Signal,
    /// The lock service cannot be asked, or is full.
    Service,
    /// The session is lost, or what had to be given up for a moment.
    Lost,
}

impl From<Refusal> for Errno {
    fn from(refusal: Refusal) -> Errno {
        match refusal {
            Refusal::Others => Errno::EAGAIN,
            Refusal::Signal => Errno::EINTR,
            Refusal::Service => Errno::ENOLCK,
            Refusal::Lost => Errno::EIO,
        }
    }
}

/// The bytes of a file that the lock service holds for this mount in one mode.
#[derive(Default)]
struct Part {
    bytes: Vec<Range<u64>>,
    /// The lock, unless there are no bytes. Dropped, it is released.
    lock: Option<Lock>,
}

/// The locks of a file.
#[derive(Default)]
struct State {
    table: Table,
    /// The bytes that the service holds of it, in the order of [`MODES`].
    parts: [Part; 2],
    /// The session of all of them, unless there are none.
    session: Option<Arc<Lock>>,
}

#[derive(Default)]
struct File {
    /// Held while the service is asked, so changes of the locks of a file are made one after the other.
    state: tokio::sync::Mutex<State>,
    /// Tells that something was unlocked by this mount.
    changed: Notify,
}

/// The standing of the locks of an open file.
enum Standing {
    /// As long as a session is not lost.
    Under(Arc<Lock>),
    /// It cannot.
    Lost,
}

/// The locks of a mount at the lock service of its store.
#[derive(derive_more::Debug)]
#[debug("SharedLocks")]
pub struct SharedLocks {
    store: Store,
    /// The function that reports the loss of locks.
    report: fn(&str),
    session: tokio::sync::Mutex<Option<Arc<Lock>>>,
    ended: Arc<AtomicBool>,
    files: Mutex<HashMap<u64, Arc<File>>>,
    handles: Mutex<HashMap<u64, Standing>>,
    /// The way to the kernel's cache, once there is a mount.
    notifier: OnceLock<Notifier>,
}

impl SharedLocks {
    /// Begins a session at the lock service of a store. The loss of a session is said by `report`.
    ///
    /// # Errors
    /// Those of [`LockableFile::lock`].
    pub async fn begin(store: Store, report: fn(&str)) -> Result<SharedLocks, nacre::Error> {
        let locks = SharedLocks {
            store,
            report,
            session: Default::default(),
            ended: Arc::default(),
            files: Mutex::default(),
            handles: Mutex::default(),
            notifier: OnceLock::new(),
        };
        locks.session().await?;
        Ok(locks)
    }

    /// Ends the session. Without it, the end of the program leaves its locks until its lease is over.
    pub async fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.store.end_locks().await;
    }

    /// Takes the way to the kernel's cache of a mount.
    pub(crate) fn attach(&self, notifier: Notifier) {
        // One mount has these locks.
        let _ = self.notifier.set(notifier);
    }

    /// Returns whether what was locked by way of an open file is still locked.
    pub(crate) fn holds(&self, handle: u64) -> bool {
        match self.handles.lock().get(&handle) {
            Some(Standing::Under(session)) => session.check().is_ok(),
            Some(Standing::Lost) => false,
            None => true,
        }
    }

    /// Locks bytes. The wait ends when a signal is pending for `thread`, unless that is 0.
    ///
    /// # Errors
    /// `EAGAIN` if others hold some of the bytes and `wait` is false, `EINTR`, `ENOLCK` if the lock service cannot be asked or too much
    /// is locked, `EIO` if earlier locks are lost.
    pub(crate) async fn lock(&self, ino: u64, wanted: Piece, wait: bool, thread: u32) -> Result<(), Errno> {
        let file = self.file(ino);
        let locked = self.acquire(ino, &file, &wanted, wait, thread).await;
        self.forget(ino, &file);
        locked.map_err(Errno::from)
    }

    async fn acquire(
        &self,
        ino: u64,
        file: &File,
        wanted: &Piece,
        wait: bool,
        thread: u32,
    ) -> Result<(), Refusal> {
        let mut pause = PAUSE_MIN;
        loop {
            let mut changed = pin!(file.changed.notified());
            changed.as_mut().enable();
            let local = {
                let mut state = unless_signalled(thread, file.state.lock()).await?;
                self.look(&mut state, file);
                if !self.holds(wanted.handle) {
                    return Err(Refusal::Lost);
                }
                if state.table.conflict(wanted).is_some() {
                    true
                } else {
                    let mut next = state.table.clone();
                    next.set(wanted.clone());
                    if next.len() > PIECES_MAX {
                        return Err(Refusal::Service);
                    }
                    match self.arrange(ino, &mut state, next, false, thread).await {
                        Ok(asked) => {
                            if asked {
                                // Before another process of this mount has what is now locked for both.
                                self.invalidate(ino).await;
                            }
                            // It may have been a downgrade, which others wait for.
                            file.changed.notify_waiters();
                            return Ok(());
                        }
                        Err(Refusal::Others) => false,
                        Err(refusal) => return Err(refusal),
                    }
                }
            };
            if !wait {
                return Err(Refusal::Others);
            }
            let again = async {
                match local {
                    true => changed.await,
                    false => tokio::time::sleep(pause).await,
                }
            };
            unless_signalled(thread, again).await?;
            if !local {
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }

    /// Returns what would be in the way of a lock. What another mount holds is shown as all the bytes that were asked for, of process 0.
    ///
    /// # Errors
    /// Those of [`SharedLocks::lock`].
    pub(crate) async fn test(&self, ino: u64, wanted: Piece, thread: u32) -> Result<Option<Piece>, Errno> {
        let file = self.file(ino);
        let found = self.probe(ino, &file, wanted, thread).await;
        self.forget(ino, &file);
        found.map_err(Errno::from)
    }

    async fn probe(
        &self,
        ino: u64,
        file: &File,
        wanted: Piece,
        thread: u32,
    ) -> Result<Option<Piece>, Refusal> {
        let mut state = unless_signalled(thread, file.state.lock()).await?;
        self.look(&mut state, file);
        if !self.holds(wanted.handle) {
            return Err(Refusal::Lost);
        }
        if let Some(held) = state.table.conflict(&wanted) {
            return Ok(Some(held.clone()));
        }
        let mut next = state.table.clone();
        next.set(wanted.clone());
        let needed = MODES.map(|mode| next.union(mode));
        if is_held(&state, &needed) {
            return Ok(None);
        }
        let (session, lockable) = self.reach(ino, &state, thread).await?;
        let gate = gate(&lockable, &session, thread).await?;
        let mut done = change(&lockable, &session, &mut state, needed, false).await;
        if done.is_ok() {
            let before = MODES.map(|mode| state.table.union(mode));
            done = change(&lockable, &session, &mut state, before, true).await;
        }
        self.settle(&mut state, &session, &mut done);
        drop(gate);
        match done {
            Ok(()) => Ok(None),
            Err(Refusal::Others) => Ok(Some(Piece { mode: Mode::Exclusive, process: 0, ..wanted })),
            Err(refusal) => Err(refusal),
        }
    }

    /// Unlocks bytes of an owner.
    ///
    /// # Errors
    /// `EIO` if its locks are lost.
    pub(crate) async fn unlock(
        &self,
        ino: u64,
        handle: u64,
        owner: u64,
        bytes: Range<u64>,
    ) -> Result<(), Errno> {
        self.reduce(ino, |table| table.clear(owner, &bytes)).await;
        if self.holds(handle) { Ok(()) } else { Err(Errno::EIO) }
    }

    /// Unlocks everything of an owner, which has closed the file.
    pub(crate) async fn flush(&self, ino: u64, owner: u64) {
        self.reduce(ino, |table| table.remove_owner(owner)).await;
    }

    /// Takes in that an open file is closed by all: what was locked by way of it is unlocked.
    pub(crate) async fn close(&self, ino: u64, handle: u64) {
        self.reduce(ino, |table| table.remove_handle(handle)).await;
        self.handles.lock().remove(&handle);
    }

    /// Takes something out of the table of a file. Waits until the lock service knows it.
    async fn reduce(&self, ino: u64, remove: impl FnOnce(&mut Table)) {
        let Some(file) = self.files.lock().get(&ino).cloned() else { return };
        {
            let mut state = file.state.lock().await;
            self.look(&mut state, &file);
            let mut next = state.table.clone();
            remove(&mut next);
            let needed = MODES.map(|mode| next.union(mode));
            let whole = state
                .parts
                .iter()
                .zip(&needed)
                .all(|(part, needed)| needed.is_empty() || *needed == part.bytes);
            if whole {
                // What nobody needs any more is given up without the gate, as nothing is taken.
                for (part, _) in state.parts.iter_mut().zip(&needed).filter(|(_, needed)| needed.is_empty()) {
                    if let Some(lock) = std::mem::take(part).lock {
                        // That of a lost session is gone.
                        let _ = lock.release().await;
                    }
                }
                self.adopt(&mut state, next);
            } else if self.arrange(ino, &mut state, next, true, 0).await.is_err() {
                self.lose(&mut state);
            }
            file.changed.notify_waiters();
        }
        self.forget(ino, &file);
    }

    /// Makes a table that of a file, once the lock service holds what it needs. Returns whether that was asked. If `patient`, what
    /// it needs is held already, but for its mode or as a part of more.
    async fn arrange(
        &self,
        ino: u64,
        state: &mut State,
        next: Table,
        patient: bool,
        thread: u32,
    ) -> Result<bool, Refusal> {
        let needed = MODES.map(|mode| next.union(mode));
        if is_held(state, &needed) {
            self.adopt(state, next);
            return Ok(false);
        }
        let (session, lockable) = self.reach(ino, state, thread).await?;
        let gate = gate(&lockable, &session, thread).await?;
        let mut done = change(&lockable, &session, state, needed, patient).await;
        self.settle(state, &session, &mut done);
        drop(gate);
        done?;
        state.session = Some(session);
        self.adopt(state, next);
        Ok(true)
    }

    /// Makes a table that of a file. The lock service holds what it needs.
    fn adopt(&self, state: &mut State, next: Table) {
        if let Some(session) = &state.session {
            let mut handles = self.handles.lock();
            for handle in state.table.handles() {
                // Where the session is lost it stays, for whoever uses the file next.
                if let Some(Standing::Under(known)) = handles.get(&handle)
                    && known.check().is_ok()
                {
                    handles.remove(&handle);
                }
            }
            for handle in next.handles() {
                handles.entry(handle).or_insert_with(|| Standing::Under(session.clone()));
            }
        }
        if next.is_empty() {
            state.session = None;
        }
        state.table = next;
    }

    /// Forgets the locks of a file if their session is lost.
    fn look(&self, state: &mut State, file: &File) {
        if state.session.as_ref().is_some_and(|session| session.check().is_err()) {
            self.lose(state);
            file.changed.notify_waiters();
        }
    }

    /// Forgets the locks of a file, which are lost.
    fn lose(&self, state: &mut State) {
        let lost = std::mem::take(state);
        let mut handles = self.handles.lock();
        for handle in lost.table.handles() {
            handles.insert(handle, Standing::Lost);
        }
    }

    /// Takes in what became of a change at the lock service.
    fn settle(&self, state: &mut State, session: &Lock, done: &mut Result<(), Refusal>) {
        if *done == Err(Refusal::Lost) || session.check().is_err() {
            *done = Err(Refusal::Lost);
            self.lose(state);
        }
    }

    /// Returns the session of a file's locks, and the file at the lock service.
    async fn reach(
        &self,
        ino: u64,
        state: &State,
        thread: u32,
    ) -> Result<(Arc<Lock>, LockableFile), Refusal> {
        let session = match &state.session {
            Some(session) => session.clone(),
            None => unless_signalled(thread, self.session()).await?.map_err(|_| Refusal::Service)?,
        };
        let file = self.store.file(format!("{SESSIONS}/{ino:x}")).map_err(|_| Refusal::Service)?;
        Ok((session, file))
    }

    /// Returns the session, by a lock in it that conflicts with none. Begins one if there is none, or it is lost.
    async fn session(&self) -> Result<Arc<Lock>, nacre::Error> {
        let mut session = self.session.lock().await;
        if let Some(known) = session.as_ref().filter(|known| known.check().is_ok()) {
            return Ok(known.clone());
        }
        let begun = Arc::new(self.store.file(SESSIONS)?.lock(0..1, Mode::Shared).await?);
        *session = Some(begun.clone());
        let (watched, ended, report) = (begun.clone(), self.ended.clone(), self.report);
        tokio::spawn(async move {
            let error = watched.lost().await;
            if !ended.load(Ordering::Acquire) {
                report(&format!(
                    "nacre: all locks of files through this mount are lost: {}. Files that programs have locked fail with EIO \
                     until they are closed",
                    error.message
                ));
            }
        });
        Ok(begun)
    }

    fn file(&self, ino: u64) -> Arc<File> {
        self.files.lock().entry(ino).or_default().clone()
    }

    /// Forgets a file of which nothing is locked, unless another request has it in hand.
    fn forget(&self, ino: u64, file: &Arc<File>) {
        let mut files = self.files.lock();
        // One is in the map, and one is the caller's; others are taken from the map only.
        let idle =
            Arc::strong_count(file) == 2 && file.state.try_lock().is_ok_and(|state| state.table.is_empty());
        if idle {
            files.remove(&ino);
        }
    }

    /// Has the kernel forget what it has read of a file, which others may have changed before it was locked.
    async fn invalidate(&self, ino: u64) {
        let Some(notifier) = self.notifier.get().cloned() else { return };
        // The kernel waits for what is being read, and that is answered by the threads of the runtime.
        let done = tokio::task::spawn_blocking(move || notifier.inval_inode(INodeNo(ino), 0, 0));
        // The only failures are a mount that has ended, and a page that was just written through it.
        let _ = done.await;
    }
}

/// Returns whether the lock service holds exactly some bytes, for each of [`MODES`].
fn is_held(state: &State, needed: &[Vec<Range<u64>>; 2]) -> bool {
    state.parts.iter().zip(needed).all(|(part, needed)| part.bytes == *needed)
}

/// Takes the gate of a file.
async fn gate(file: &LockableFile, session: &Lock, thread: u32) -> Result<Lock, Refusal> {
    let gate = unless_signalled(thread, file.lock(GATE, Mode::Exclusive)).await?;
    match gate {
        Ok(gate) if gate.token() == session.token() => Ok(gate),
        Ok(_) => Err(Refusal::Lost),
        Err(_) if session.check().is_err() => Err(Refusal::Lost),
        Err(_) => Err(Refusal::Service),
    }
}

/// Has the lock service hold some bytes in each of [`MODES`], and no others. The gate is held, so what is given up for that can be had
/// back if others hold some of the bytes.
async fn change(
    file: &LockableFile,
    session: &Lock,
    state: &mut State,
    needed: [Vec<Range<u64>>; 2],
    patient: bool,
) -> Result<(), Refusal> {
    let mut before: [Option<Vec<Range<u64>>>; 2] = Default::default();
    for ((part, needed), before) in state.parts.iter_mut().zip(&needed).zip(&mut before) {
        if part.bytes != *needed {
            // Its lock is dropped. The servers know that before the next request of the session.
            *before = Some(std::mem::take(part).bytes);
        }
    }
    let mut refusal = None;
    for (index, mode) in MODES.into_iter().enumerate() {
        if before[index].is_none() {
            continue;
        }
        match take(file, session, &needed[index], mode, patient).await {
            Ok(part) => state.parts[index] = part,
            Err(why) => {
                refusal = Some(why);
                break;
            }
        }
    }
    let Some(refusal) = refusal else { return Ok(()) };
    for (part, _) in state.parts.iter_mut().zip(&before).filter(|(_, before)| before.is_some()) {
        *part = Part::default();
    }
    for (index, before) in before.iter().enumerate() {
        if let Some(bytes) = before {
            let back = take(file, session, bytes, MODES[index], true).await;
            state.parts[index] = back.map_err(|_| Refusal::Lost)?;
        }
    }
    Err(refusal)
}

/// Locks bytes at the lock service, which may be away for as long as the session lasts. If `patient`, waits also for a server that was
/// started again to grant something.
async fn take(
    file: &LockableFile,
    session: &Lock,
    bytes: &[Range<u64>],
    mode: Mode,
    patient: bool,
) -> Result<Part, Refusal> {
    if bytes.is_empty() {
        return Ok(Part::default());
    }
    let region = |bytes: &Range<u64>| Region { offset: bytes.start, length: bytes.end - bytes.start };
    let regions: Vec<Region> = bytes.iter().map(region).collect();
    loop {
        let taken = match patient {
            true => file.lock(regions.clone(), mode).await.map(Some),
            false => file.try_lock(regions.clone(), mode).await,
        };
        if session.check().is_err() {
            return Err(Refusal::Lost);
        }
        match taken {
            Ok(Some(lock)) if lock.token() == session.token() => {
                return Ok(Part { bytes: bytes.to_vec(), lock: Some(lock) });
            }
            Ok(Some(_)) => return Err(Refusal::Lost),
            Ok(None) => return Err(Refusal::Others),
            Err(error) if error.kind == ErrorKind::Unavailable => tokio::time::sleep(PAUSE_MIN).await,
            Err(_) => return Err(Refusal::Service),
        }
    }
}

/// Waits for something, or for a signal that is pending for a thread.
async fn unless_signalled<T>(thread: u32, work: impl Future<Output = T>) -> Result<T, Refusal> {
    tokio::select! {
        biased;
        done = work => Ok(done),
        () = signalled(thread) => Err(Refusal::Signal),
    }
}

/// Waits until a signal is pending for a thread that does not block it. The kernel would send `FUSE_INTERRUPT`, which the FUSE library
/// answers itself, with the effect that nothing else interrupts a request.
async fn signalled(thread: u32) {
    loop {
        tokio::time::sleep(SIGNALS).await;
        // Threads of other process namespaces are 0, and cannot be looked at.
        if thread != 0
            && std::fs::read_to_string(format!("/proc/{thread}/status"))
                .is_ok_and(|status| is_signalled(&status))
        {
            return;
        }
    }
}

/// Returns whether a signal is pending, by the text of `/proc/THREAD/status`.
fn is_signalled(status: &str) -> bool {
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
    };
    (mask("SigPnd:") | mask("ShdPnd:")) & !mask("SigBlk:") != 0
}

#[cfg(test)]
mod tests;
