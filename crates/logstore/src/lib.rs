//! Nacre's embedded engine: objects of versioned extents on a segmented log.
//!
//! The log is the authority: every transaction's effects are appended to it, and acknowledged when it is as durable as
//! required. The index, which maps each byte of each object to its place in the log, is kept in memory and written
//! now and then, so that opening a store replays only later records. A cleaner moves live extents out of segments
//! that are mostly garbage. `docs/format.md` describes the files.
//!
//! ```
//! use nacre_logstore::{LogStore, Options};
//! use nacre_object::{ByteRange, Fork, ObjectId, ObjectStore, Outcome, Transaction};
//!
//! # fn main() -> Result<(), nacre_object::StoreError> {
//! let store = LogStore::memory(Options::default());
//! let object = ObjectId::try_from("counter")?;
//! let write = Transaction::new().write(Fork::DEFAULT, 0, "1");
//! let outcome = futures::executor::block_on(store.apply(&object, write))?;
//! assert!(matches!(outcome, Outcome::Done(done) if done.version == 1));
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod binding;
mod check;
mod choice;
pub mod cleaner;
mod codec;
pub mod disk;
mod engine;
mod extent_map;
mod extent_tree;
mod fences;
mod fetch;
mod footprint;
mod forks;
#[cfg(feature = "sim")]
pub mod fuzz;
mod heads;
mod index_writer;
mod info;
mod log;
mod maintenance;
mod memory;
mod name;
mod node;
mod page_cache;
mod readers;
mod recall;
pub mod record;
mod recovery;
mod relocate;
mod remains;
mod repair;
mod salvage;
mod scan;
mod scrub;
mod segment;
mod shard;
#[cfg(feature = "sim")]
pub mod sim;
pub mod snapshot;
mod space;
mod superblock;
mod sync;
mod unproven;
mod view;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nacre_object::latency::Latencies;
use nacre_object::watch::{Notified, Watch, WatchOptions};
use nacre_object::window::WINDOW_WRITES_MAX;
use nacre_object::{
    ErrorKind, Escaped, ObjectId, ObjectStore, Once, Outcome, Reply, StoreError, Transaction, WindowPosition,
};

use crate::disk::{Disk, FolderDisk};
use crate::engine::Engine;
pub use crate::info::Info;
pub use crate::log::Committer;
pub use crate::scrub::{Finding, LostPart, ScrubProgress, ScrubReport};
pub use crate::segment::FORMAT_VERSION;
use crate::sync::{JoinHandle, Mutex};

/// The point at which a transaction is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The device has it: nothing acknowledged is ever lost.
    #[default]
    Always,
    /// The operating system has it, and it is synced within this time: a crash of the machine may lose transactions
    /// acknowledged since, a crash of the process loses nothing.
    Interval(Duration),
    /// The operating system has it, and syncs it when it likes.
    None,
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always => f.write_str("always"),
            Self::Interval(interval) => write!(f, "interval({} ms)", interval.as_millis()),
            Self::None => f.write_str("none"),
        }
    }
}

/// Options of a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// The point at which a transaction is acknowledged.
    pub durability: Durability,
    /// Size of a segment in bytes, 64 KiB to 1 GiB. A record that is larger gets a segment of its own size. 0, the
    /// default, depends on the store's capacity or else on the space left on its volume: 64 KiB to 64 MiB.
    pub segment_bytes: u32,
    /// The maximum number of bytes that all files of the store may take, at least 1 MiB: segments, reserve and
    /// snapshots of the index. Without it, the volume's space is the bound.
    pub capacity_bytes: Option<u64>,
    /// The amount of log, in bytes, after which the index is written down again: an opening has to replay that much, or
    /// three quarters of the index's length if that is more.
    pub snapshot_bytes: u64,
    /// True if a store is made where there is none, in a new or an empty folder. One that is opened without this takes
    /// writes too, but prepares nothing for them before the first one comes.
    pub create: bool,
    /// The committer of batches. Values other than [`Committer::Thread`] are for tests, which must then call
    /// [`LogStore::turn`].
    pub committer: Committer,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            durability: Durability::Always,
            segment_bytes: 0,
            capacity_bytes: None,
            snapshot_bytes: 256 << 20,
            create: true,
            committer: Committer::Thread,
        }
    }
}

/// The findings of the opening of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Objects that exist.
    pub objects: u64,
    /// Pieces of extents that hold data.
    pub extents: u64,
    /// Log replayed on top of the snapshot, in bytes.
    pub replayed_bytes: u64,
    /// Records replayed.
    pub replayed_records: u64,
    /// Records with a damaged head that were read from their tail instead.
    pub healed_records: u64,
    /// Records behind the end of the log that a crash tore off: never acknowledged, and dropped.
    pub torn_records: u64,
    /// Damaged snapshots that another one replaced.
    pub damaged_snapshots: u64,
}

/// A store in a folder or in memory. Clones are handles to the same store; the last one closes it.
#[derive(Clone, derive_more::Debug)]
#[debug("LogStore")]
pub struct LogStore {
    owner: Arc<Owner>,
}

/// The work of a thread of a store.
type Work = Box<dyn FnOnce() + Send>;

struct Owner {
    engine: Arc<Engine>,
    opened: Opened,
    threads: Mutex<Vec<JoinHandle<()>>>,
    closed: Mutex<Option<Result<(), StoreError>>>,
}

impl LogStore {
    /// Opens the store in a folder, or makes it, if [`Options::create`] is set and the folder is new or empty. Only one
    /// process at a time may have it open.
    ///
    /// # Errors
    ///
    /// `Busy` if another process has it; `Invalid` if the path is that of a file, or the folder holds other files and no store;
    /// `Io` if there is none and none was to be made, or none could be made; and the errors of recovery about its files.
    pub fn open(path: &Path, options: Options) -> Result<Self, StoreError> {
        Self::open_on(Arc::new(open_folder(path, options.create)?), options)
    }

    /// Checks the files of a store that is not open, whether it can be opened or not; changes nothing, and needs no
    /// right to. It takes as much memory as opening the store.
    ///
    /// # Errors
    ///
    /// `Busy` if a process has it open; `Corrupt` if the folder holds nothing that identifies the store.
    pub fn scrub_closed(path: &Path, progress: impl FnMut(ScrubProgress)) -> Result<ScrubReport, StoreError> {
        let disk = FolderDisk::open_to_read(path).map_err(|error| unopened(path, &error))?;
        repair::scrub(&(Arc::new(disk) as Arc<dyn Disk>), progress)
    }

    /// Repairs the files of a store that is not open, as far as possible, so that it opens; then checks them, and
    /// reports what was done and what is lost. Files that are no longer usable stay under other names.
    ///
    /// # Errors
    ///
    /// Those of [`LogStore::scrub_closed`]; and `Io` or `OutOfSpace` if a file cannot be read or written.
    pub fn repair(
        path: &Path,
        options: Options,
        progress: impl FnMut(ScrubProgress),
    ) -> Result<ScrubReport, StoreError> {
        Self::repair_on(Arc::new(open_folder(path, false)?), options, progress)
    }

    /// Checks a store that is not open on a disk. See [`LogStore::scrub_closed`].
    ///
    /// # Errors
    ///
    /// Those of [`LogStore::scrub_closed`].
    pub fn scrub_closed_on(
        disk: Arc<dyn Disk>,
        progress: impl FnMut(ScrubProgress),
    ) -> Result<ScrubReport, StoreError> {
        repair::scrub(&disk, progress)
    }

    /// Repairs a store on a disk. See [`LogStore::repair`].
    ///
    /// # Errors
    ///
    /// Those of [`LogStore::repair`].
    pub fn repair_on(
        disk: Arc<dyn Disk>,
        options: Options,
        progress: impl FnMut(ScrubProgress),
    ) -> Result<ScrubReport, StoreError> {
        options.validate()?;
        let options = options.with_segments(&*disk)?;
        repair::repair(disk, options, progress)
    }

    /// Opens the store on a disk.
    ///
    /// # Errors
    ///
    /// `Invalid` if an option is outside of its limits, `Io` if a thread cannot be started, and the errors of recovery about its
    /// files.
    pub fn open_on(disk: Arc<dyn Disk>, options: Options) -> Result<Self, StoreError> {
        Self::open_with(disk, options, sync::spawn)
    }

    /// Opens the store on a disk, with threads that `spawn` starts.
    fn open_with(
        disk: Arc<dyn Disk>,
        options: Options,
        spawn: impl FnMut(&str, Work) -> std::io::Result<JoinHandle<()>>,
    ) -> Result<Self, StoreError> {
        options.validate()?;
        let options = options.with_segments(&*disk)?;
        let (engine, opened) = recovery::open(disk, options)?;
        Self::start(engine, opened, spawn)
    }

    /// Creates a volatile store, which is gone with its last handle. Of the options it has the capacity alone, which bounds
    /// the memory that it takes.
    pub fn memory(options: Options) -> Self {
        let capacity_bytes = options.capacity_bytes.map(|bytes| bytes.max(space::CAPACITY_BYTES_MIN));
        let engine = recovery::in_memory(Options { capacity_bytes, ..options });
        Self::own(Arc::new(engine), Opened::default())
    }

    fn start(
        engine: Engine,
        opened: Opened,
        mut spawn: impl FnMut(&str, Work) -> std::io::Result<JoinHandle<()>>,
    ) -> Result<Self, StoreError> {
        let engine = Arc::new(engine);
        // Who opens a store that must be there may only want to read it, and finds it afterwards as it was; the first
        // transaction that asks for room makes what is in reserve too. A store that cannot have all of it works with what
        // it has.
        if engine.options.create
            && let Err(error) = engine.fill_reserve()
        {
            tracing::warn!("{error}");
        }
        let store = Self::own(Arc::clone(&engine), opened);
        if engine.options.committer == Committer::Thread {
            let log = Arc::clone(&engine.log);
            let (rooms, cleaner, snapshots) = (Arc::clone(&engine), Arc::clone(&engine), Arc::clone(&engine));
            let threads: [(&str, Work); 4] = [
                ("nacre-commit", Box::new(move || log.run())),
                ("nacre-maintain", Box::new(move || rooms.maintain())),
                ("nacre-clean", Box::new(move || cleaner.keep_clean())),
                ("nacre-snapshot", Box::new(move || snapshots.keep_written_down())),
            ];
            for (name, work) in threads {
                // If one cannot be started, those that were end with the store.
                let thread = spawn(name, work).map_err(|error| {
                    StoreError::new(ErrorKind::Io, format!("cannot start a thread: {error}"))
                })?;
                store.owner.threads.lock().push(thread);
            }
            engine.maintenance.set_threaded(true);
            if engine.options.create {
                // The first segment is made ready before the first transaction asks for it.
                engine.maintenance.nudge();
            }
        }
        Ok(store)
    }

    fn own(engine: Arc<Engine>, opened: Opened) -> Self {
        let owner = Owner { engine, opened, threads: Mutex::new(Vec::new()), closed: Mutex::new(None) };
        Self { owner: Arc::new(owner) }
    }

    /// Returns the findings of the opening.
    pub fn opened(&self) -> Opened {
        self.owner.opened
    }

    /// Returns random bytes that tell the store from others. They are public: they leave unknown the part of the
    /// identity in the store's files that records are checked against. Zeros for a store in memory.
    pub fn identity(&self) -> [u8; 16] {
        binding::public_identity(&self.owner.engine.identity)
    }

    /// Returns the reason why the store takes no more writes until it is opened again, if it takes none. Takes no time.
    pub fn failure(&self) -> Option<StoreError> {
        self.owner.engine.log.failure().cloned()
    }

    /// Returns the store at a glance. Takes a time that grows with the number of segments, not with that of objects.
    pub fn info(&self) -> Info {
        self.owner.engine.info()
    }

    /// Returns the times that syncs of segments took since the store was opened.
    pub fn sync_latencies(&self) -> &Latencies {
        &self.owner.engine.log.counters.syncs
    }

    /// Reads and checks every byte that the store wrote. Blocks; transactions continue. There is nothing to check in a volatile
    /// store.
    ///
    /// # Errors
    ///
    /// The failure of the log, if a write or a sync fails meanwhile. What is damaged is in the report.
    pub fn scrub(&self, progress: impl FnMut(ScrubProgress)) -> Result<ScrubReport, StoreError> {
        self.owner.engine.scrub(progress)
    }

    /// Cleans until hardly any garbage is left, and writes the index. Blocks; transactions continue. Does nothing in a
    /// volatile store, which has no garbage.
    ///
    /// # Errors
    ///
    /// The failure of the log, if a write or a sync fails; those of the files that are cleaned and of the snapshot.
    pub fn compact(&self) -> Result<(), StoreError> {
        self.owner.engine.compact()
    }

    /// Writes the index. Blocks; transactions continue. Does nothing in a volatile store.
    ///
    /// # Errors
    ///
    /// `Io` or `OutOfSpace` if the snapshot cannot be written; the failure of the log, if there is one.
    pub fn snapshot(&self) -> Result<(), StoreError> {
        let engine = &self.owner.engine;
        if engine.memory.is_some() {
            return Ok(());
        }
        engine.take_snapshot()
    }

    /// Checks the counters against a walk through the index: live bytes of each segment, the index's footprint, and
    /// that nothing refers to a segment that does not exist. For tests; there must be no writers meanwhile.
    ///
    /// # Panics
    ///
    /// If a counter is wrong.
    #[cfg(feature = "sim")]
    pub fn check_counts(&self) {
        self.owner.engine.check_counts();
    }

    /// Cleans a slice of what no snapshot has to unpin, as the cleaner may at any moment; returns whether there was
    /// anything to clean. For tests.
    #[cfg(feature = "sim")]
    pub fn clean_slice(&self) -> Result<bool, StoreError> {
        let engine = &self.owner.engine;
        let newest = engine.space.pool.lock().next_segment;
        let mut cleaning = engine.maintenance.cleaning.lock();
        let cleaned = engine.clean_once(&mut cleaning, newest, cleaner::Effort::Compact, false)?;
        Ok(matches!(cleaned, cleaner::Cleaned::Gained(_)))
    }

    /// Returns whether there is room for a record of up to `bytes` bytes, and for the index to grow by as much.
    /// For tests.
    #[cfg(feature = "sim")]
    pub fn has_space(&self, bytes: u64) -> bool {
        let purpose = log::Purpose::Write;
        self.owner.engine.has_space(&space::SpaceRequest {
            record_bytes: bytes,
            growth_bytes: bytes,
            purpose,
        })
    }

    /// Returns whether the files of snapshots have room for the index to grow by `bytes`. For tests.
    #[cfg(feature = "sim")]
    pub fn index_has_space(&self, bytes: u64) -> bool {
        let purpose = log::Purpose::Write;
        self.owner.engine.index_has_space(&space::SpaceRequest {
            record_bytes: 0,
            growth_bytes: bytes,
            purpose,
        })
    }

    /// Makes room as [`LogStore::has_space`] looks for it, in a store whose [`Committer`] is the caller. For tests.
    #[cfg(feature = "sim")]
    pub fn make_space(&self, bytes: u64) -> Result<(), StoreError> {
        let purpose = log::Purpose::Write;
        let wanted = space::SpaceRequest { record_bytes: bytes, growth_bytes: bytes, purpose };
        self.owner.engine.make_space(&wanted).map(|_| ())
    }

    /// Sets the number of items of a snapshot after which other threads get their turn. For tests.
    #[cfg(feature = "sim")]
    pub fn set_step_items(&self, items: u64) {
        self.owner.engine.set_step_items(items);
    }

    /// Forgets all removed objects that may be forgotten, however few there are, and returns the floor. For tests.
    #[cfg(feature = "sim")]
    pub fn forget_removed(&self) -> u64 {
        self.owner.engine.forget_removed()
    }

    /// Returns the number of removed objects that the store remembers although it need not. For tests.
    #[cfg(feature = "sim")]
    pub fn removed_objects(&self) -> usize {
        self.owner.engine.shards.iter().map(|shard| shard.lock().removed_len()).sum()
    }

    /// Waits until the maintenance thread has nothing to do. For tests; there must be no writers meanwhile.
    #[cfg(feature = "sim")]
    pub fn wait_for_maintenance(&self) {
        self.owner.engine.wait_for_maintenance();
    }

    /// Looks up a write of which every attempt was made when the window's position was at least `since`. For tests.
    #[cfg(feature = "sim")]
    pub fn recall(&self, token: &nacre_object::WriteToken, since: u64) -> nacre_object::window::Recall {
        self.owner.engine.window.lock().recall(token, since)
    }

    /// Checks the counters of the store's files against the files themselves. For tests; there must be no writers
    /// meanwhile, and no file may have been lost to an I/O error since the store was opened.
    ///
    /// # Panics
    ///
    /// If a counter is wrong.
    #[cfg(feature = "sim")]
    pub fn check_files(&self) {
        self.owner.engine.check_files();
    }

    /// Commits the open batch, and takes a snapshot if one is due, in a store whose [`Committer`] is the caller. Does
    /// nothing in other stores, volatile ones among them: they commit by themselves.
    ///
    /// # Errors
    ///
    /// Those of the snapshot. A failure to commit is returned to the waiters for the batch.
    pub fn turn(&self) -> Result<(), StoreError> {
        let engine = &self.owner.engine;
        if !engine.commits_by_caller() {
            return Ok(());
        }
        engine.log.commit();
        if engine.snapshot_is_due() {
            engine.take_snapshot()?;
        }
        Ok(())
    }

    /// Finishes pending transactions, syncs them, writes the index, and refuses further ones. Blocks. Later calls
    /// return the same result.
    pub fn close(&self) -> Result<(), StoreError> {
        self.owner.close()
    }
}

fn open_folder(path: &Path, create: bool) -> Result<FolderDisk, StoreError> {
    FolderDisk::open(path, create).map_err(|error| unopened(path, &error))
}

fn unopened(path: &Path, error: &std::io::Error) -> StoreError {
    match error.kind() {
        std::io::ErrorKind::WouldBlock => {
            let text = format!("{} is open in another process; stop that one first", Escaped::of(path));
            StoreError::new(ErrorKind::Busy, text)
        }
        kind => {
            let kind = match kind {
                // It holds other files, or is none itself.
                std::io::ErrorKind::AlreadyExists | std::io::ErrorKind::NotADirectory => ErrorKind::Invalid,
                _ => ErrorKind::Io,
            };
            StoreError::new(kind, format!("cannot open the folder {}: {error}", Escaped::of(path)))
        }
    }
}

impl Owner {
    fn close(&self) -> Result<(), StoreError> {
        let mut closed = self.closed.lock();
        if let Some(result) = &*closed {
            return result.clone();
        }
        let engine = &self.engine;
        engine.maintenance.close();
        engine.log.close();
        if let Some(memory) = &engine.memory {
            memory.close();
        }
        engine.watchers.close(&StoreError::new(ErrorKind::Closed, "the store was closed"));
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the store ended in a panic");
            }
        }
        while engine.commits_by_caller() && engine.log.commit() {}
        let result = engine.log.sync();
        // Without the snapshot the next opening replays more, and loses nothing.
        if engine.memory.is_none()
            && result.is_ok()
            && engine.log.since_snapshot_bytes() > 0
            && let Err(error) = engine.snapshot(&mut engine.maintenance.work.lock())
        {
            tracing::warn!("{error}");
        }
        *closed = Some(result.clone());
        result
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!("{error}");
        }
    }
}

impl ObjectStore for LogStore {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        self.owner.engine.apply(object, transaction, None)
    }

    fn apply_once(&self, object: &ObjectId, transaction: Transaction, once: Once) -> Reply<Outcome> {
        self.owner.engine.apply(object, transaction, Some(once))
    }

    fn window(&self) -> Option<WindowPosition> {
        self.owner.engine.window()
    }

    fn version_now(&self, object: &ObjectId) -> Option<u64> {
        self.owner.engine.version_now(object)
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.owner.engine.list(after, limit)
    }

    fn watch(&self, object: &ObjectId, options: WatchOptions) -> Reply<Watch> {
        self.owner.engine.watch(object, &options)
    }

    fn notify(&self, object: &ObjectId, payload: Bytes, timeout: Duration) -> Reply<Notified> {
        self.owner.engine.watchers.notify(object, payload, timeout)
    }
}

const SEGMENT_BYTES_MIN: u32 = 64 << 10;
const SEGMENT_BYTES_MAX: u32 = 1 << 30;
/// The maximum size of segments, in bytes, when the options give none.
const SEGMENT_BYTES_DEFAULT_MAX: u32 = 64 << 20;

/// Bytes of a store's capacity for each write that its window keeps.
const CAPACITY_BYTES_PER_WRITE: u64 = 16 << 10;
/// The bounds on the number of removed objects that each shard remembers although it need not.
const REMEMBERED_MIN: u64 = 4;
const REMEMBERED_MAX: u64 = 1024;
/// The least number of writes that a window keeps.
const WINDOW_WRITES_MIN: usize = 1024;

impl Options {
    /// Returns the number of writes that the store's window keeps: it takes 34 bytes for each.
    pub(crate) fn window_writes(&self) -> usize {
        let most = self.capacity_bytes.map_or(u64::MAX, |bytes| bytes / CAPACITY_BYTES_PER_WRITE);
        usize::try_from(most).unwrap_or(usize::MAX).clamp(WINDOW_WRITES_MIN, WINDOW_WRITES_MAX)
    }

    /// Returns the number of removed objects that each shard remembers although it need not: all together they take little of
    /// what the store may take. Segments follow that.
    pub(crate) fn remembered_max(&self) -> usize {
        let share = match (self.segment_bytes, self.capacity_bytes) {
            (0, None) => u64::MAX,
            (0, Some(capacity_bytes)) => capacity_bytes / (256 << 10),
            (segment_bytes, _) => u64::from(segment_bytes) / (4 << 10),
        };
        share.clamp(REMEMBERED_MIN, REMEMBERED_MAX) as usize
    }

    fn segment_bytes_for(&self, capacity_bytes: u64) -> u32 {
        space::segment_bytes_for(capacity_bytes, SEGMENT_BYTES_MIN, SEGMENT_BYTES_DEFAULT_MAX)
    }

    /// Returns the options with segments that suit the disk, if they give no size.
    fn with_segments(self, disk: &dyn Disk) -> Result<Self, StoreError> {
        if self.segment_bytes != 0 {
            return Ok(self);
        }
        let io =
            |error| StoreError::new(ErrorKind::Io, format!("cannot look at the store's volume: {error}"));
        let files = disk.list().map_err(io)?;
        let own_bytes: u64 = files.iter().map(|(_, bytes)| *bytes).sum();
        let volume_bytes = disk.volume().map_err(io)?.map(|volume| volume.available_bytes + own_bytes);
        let capacity_bytes = self.capacity_bytes.unwrap_or(u64::MAX).min(volume_bytes.unwrap_or(u64::MAX));
        let suitable = self.segment_bytes_for(capacity_bytes);
        // What is in reserve is given back where segments have another size now, and on a full volume somebody else may
        // take it. So the size stays until it is far from what suits, and with somebody who only looks in any case.
        let spares = files.iter().filter(|(name, _)| space::parse_spare_name(name).is_some());
        let kept = spares.filter_map(|(_, bytes)| u32::try_from(*bytes).ok()).max();
        let kept = kept.filter(|kept| {
            (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(kept)
                && (!self.create || (suitable / 4..=suitable.saturating_mul(4)).contains(kept))
        });
        Ok(Self { segment_bytes: kept.unwrap_or(suitable), ..self })
    }

    fn validate(&self) -> Result<(), StoreError> {
        if let Some(capacity) = self.capacity_bytes
            && capacity < space::CAPACITY_BYTES_MIN
        {
            let text = format!(
                "a capacity of {capacity} bytes; it must be at least {} bytes",
                space::CAPACITY_BYTES_MIN
            );
            return Err(StoreError::new(ErrorKind::Invalid, text));
        }
        let suits =
            self.segment_bytes == 0 || (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&self.segment_bytes);
        if suits {
            return Ok(());
        }
        let text = format!(
            "segments of {} bytes; they must be {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX} bytes",
            self.segment_bytes
        );
        Err(StoreError::new(ErrorKind::Invalid, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_opening_that_cannot_start_every_thread_leaves_none_and_lets_go_of_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { capacity_bytes: Some(8 << 20), ..Options::default() };
        for started in 0..4 {
            let disk = Arc::new(open_folder(folder.path(), true).unwrap());
            let mut left = started;
            let opened = LogStore::open_with(disk, options.clone(), |name, work| {
                if left == 0 {
                    return Err(std::io::Error::from(std::io::ErrorKind::WouldBlock));
                }
                left -= 1;
                sync::spawn(name, work)
            });
            assert_eq!(opened.unwrap_err().kind, ErrorKind::Io);
        }
        LogStore::open(folder.path(), options).unwrap();
    }
}
