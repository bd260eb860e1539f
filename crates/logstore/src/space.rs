//! Space: the bounds on what a store takes, and the files that it keeps in reserve.
//!
//! A log needs space to free space: a removal is a record, cleaning a segment writes its live data again, and
//! a segment is freed only when both kept snapshots have moved on. So the store has files in reserve: spare
//! segments, and a file that the next snapshot is written into. They never go back to the file system while they are
//! needed: a segment that is freed becomes a spare one, and a snapshot that is dropped becomes the next one's file. So
//! no other program that fills the volume can take them away.
//!
//! Invariants, as long as the reserve could be made:
//! - the room of the log without new space ([`Log::room`]) suffices to move everything live in any segment, and a little
//!   more for transactions that shrink; those that write leave both alone ([`Reserve`]);
//! - the files of the kept snapshots, and the one for the next, are each as long as a snapshot can become (the
//!   rest is padding); transactions that would make the index grow beyond them wait until they were extended.
//!
//! [`Log::room`]: crate::log::Log::room

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nacre_object::{ErrorKind, StoreError};

use crate::binding::Binding;
use crate::disk::DiskFile;
use crate::engine::Engine;
use crate::footprint::IndexCounters;
use crate::log::{Purpose, Reserve};
use crate::memory::Memory;
use crate::segment::{FORMAT_VERSION, SEGMENT_HEAD_BYTES, SEGMENT_NUMBER_MAX, Segment, segment_name};
use crate::snapshot::SnapshotState;
use crate::snapshot::{KEPT, parse_snapshot_name};
use crate::sync::{AtomicU64, Mutex};

/// The file that the next snapshot is written into.
pub const SNAPSHOT_RESERVE: &str = "reserve-snapshot";
/// The name of that file while a snapshot is written. A file that is found under it when the store is opened is in
/// reserve again.
pub const SNAPSHOT_BEGUN: &str = "reserve-snapshot-begun";

/// The number of segments that the capacity is divided into, as far as the bounds on the size of segments allow.
const SEGMENTS_PER_CAPACITY: u64 = 256;
/// The smallest capacity in bytes: the reserve has to fit several times over.
pub const CAPACITY_BYTES_MIN: u64 = 1 << 20;
/// The size in bytes of the blocks in which file systems allocate space, or a multiple of it.
pub const BLOCK_BYTES: u64 = 4096;
/// The bytes that the superblock's file takes.
const SUPERBLOCK_FILE_BYTES: u64 = BLOCK_BYTES;
/// The bytes that a file's name takes in the folder, with room to spare.
const NAME_BYTES: u64 = 64;
/// The number of files that are neither segments nor spare ones, with some for work under way.
const OTHER_FILES: u64 = 16;
/// The divisor of the capacity that gives the remainder below which the exact size of the files is asked of the file
/// system.
const NEAR_CAPACITY: u64 = 16;
/// The bytes that a file system may take besides the bytes of a file that is made or extended: a block for the list of
/// its pieces, one for its name, and one for the pieces of each snapshot's file, which writing into it may make more
/// of.
const FILE_RECORDS_BYTES: u64 = (2 + KEPT as u64 + 1) * BLOCK_BYTES;
/// The bytes that the snapshot's file has beyond the estimate, for transactions that shrink, which it does not hold up.
const SNAPSHOT_SLACK_BYTES: u64 = 4096;

/// Growth of the index by a transaction that is not counted before it has happened.
const GROWTH_UNCOUNTED_BYTES: u64 = SNAPSHOT_SLACK_BYTES / 16;

/// The space of one store.
pub struct Space {
    /// The maximum number of bytes that all files of the store may take.
    pub capacity_bytes: Option<u64>,
    /// The unused files of the log. Locked after the maintenance's work, and for no longer than it takes to make a
    /// file.
    pub pool: Mutex<Pool>,
    /// The number of times that the names of the store's files could not be made durable. Locked during an attempt.
    name_failures: Mutex<u64>,
    /// Counters of the index's footprint.
    pub index: IndexCounters,
    /// The number of segments when it was last checked.
    segments: AtomicU64,
    /// The bytes of all spare files.
    spare_bytes: AtomicU64,
    /// The bytes of all snapshots and of the file for the next one.
    snapshot_file_bytes: AtomicU64,
    /// The length in bytes that each snapshot can reach without new space, however many are taken.
    snapshot_space_bytes: AtomicU64,
    /// Growth of the index that transactions have room for, and have not counted yet.
    growth_bytes: AtomicU64,
    /// The number of transactions that were refused because of missing space.
    refused: AtomicU64,
}

/// Space in the files of snapshots, kept until the index has grown.
pub(crate) struct Growth<'a> {
    all_bytes: &'a AtomicU64,
    bytes: u64,
}

impl Drop for Growth<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.all_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

/// Files of the log that are not in use.
#[derive(Default)]
pub struct Pool {
    /// The number of the next segment.
    pub next_segment: u32,
    /// Files of one segment's size.
    spares: Vec<Spare>,
    /// Segments that were freed while a reader held them: their files become spare when the readers are done.
    held: Vec<Arc<Segment>>,
}

struct Spare {
    name: String,
    file: Arc<dyn DiskFile>,
}

/// The space that a waiter wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceRequest {
    /// The length of the record in bytes; 0 for just a segment to continue in.
    pub record_bytes: u64,
    /// Bytes by which snapshots may become longer.
    pub growth_bytes: u64,
    /// The purpose of the record.
    pub purpose: Purpose,
}

impl Pool {
    /// The number of the next file.
    fn number(&self) -> Result<u32, StoreError> {
        if self.next_segment > SEGMENT_NUMBER_MAX {
            let text = "the numbers of segments are used up; copy the store's objects to a new one";
            return Err(StoreError::new(ErrorKind::Io, text));
        }
        Ok(self.next_segment)
    }

    /// Increments the number of the next segment, unless there was no space for a file of this one: on a full volume
    /// that happens again and again, and numbers are to last, and to stay short.
    fn took_number<T>(&mut self, created: &Result<T, StoreError>) {
        if created.as_ref().err().is_none_or(|error| error.kind != ErrorKind::OutOfSpace) {
            self.next_segment += 1;
        }
    }
}

impl Space {
    /// Creates the state of a store whose files are not counted yet.
    pub fn new(capacity_bytes: Option<u64>) -> Self {
        Self {
            capacity_bytes,
            pool: Mutex::default(),
            name_failures: Mutex::default(),
            index: IndexCounters::default(),
            segments: AtomicU64::new(0),
            spare_bytes: AtomicU64::new(0),
            snapshot_file_bytes: AtomicU64::new(0),
            snapshot_space_bytes: AtomicU64::new(0),
            growth_bytes: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Returns the bytes of all spare files.
    pub fn spare_bytes(&self) -> u64 {
        self.spare_bytes.load(Ordering::Relaxed)
    }

    /// Returns the bytes of all snapshots and of the file for the next one.
    pub fn snapshot_file_bytes(&self) -> u64 {
        self.snapshot_file_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of transactions that were refused because of missing space.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

/// Returns the size of segments in bytes for a store that may take `capacity_bytes`: a power of two between about
/// `least` and `most`.
pub fn segment_bytes_for(capacity_bytes: u64, least: u32, most: u32) -> u32 {
    let share = (capacity_bytes / SEGMENTS_PER_CAPACITY).clamp(u64::from(least), u64::from(most));
    // The greatest power of two in it. The clamp above keeps it within 32 bits.
    1 << share.ilog2()
}

/// Returns whether an I/O error says that there is no space.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn spare_name(number: u32) -> String {
    format!("reserve-{number:010}")
}

/// Returns the number in the name of a spare file; `None` for other names.
pub fn parse_spare_name(name: &str) -> Option<u32> {
    let number = name.strip_prefix("reserve-")?.parse().ok()?;
    (spare_name(number) == name && number <= SEGMENT_NUMBER_MAX).then_some(number)
}

impl Engine {
    /// Returns the number of times that names could not be made durable. Called before names are changed, for
    /// [`Engine::sync_names`].
    pub(crate) fn name_failures(&self) -> u64 {
        *self.space.name_failures.lock()
    }

    /// Makes names durable that were changed when `failures` was the number of failures. A failure is reported to one
    /// caller only, and changes of other callers before it may be lost with it, whatever their own syncs report.
    pub(crate) fn sync_names(&self, failures: u64) -> io::Result<()> {
        let mut failed = self.space.name_failures.lock();
        let result = self.disk.sync_names();
        *failed += u64::from(result.is_err());
        match result {
            Ok(()) if *failed != failures => {
                Err(io::Error::other("the names of other files could not be synced"))
            }
            result => result,
        }
    }

    /// Returns the bytes of a segment that was not made for a large record.
    pub(crate) fn segment_bytes(&self) -> u64 {
        u64::from(self.options.segment_bytes)
    }

    /// Returns the bytes that all files of the store take.
    pub(crate) fn file_bytes(&self) -> u64 {
        let log_bytes = self.table.capacity_bytes() + self.space.spare_bytes();
        log_bytes + self.space.snapshot_file_bytes() + SUPERBLOCK_FILE_BYTES
    }

    /// Returns the bytes of data that the index refers to.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.memory.as_ref().map_or_else(|| self.table.live_bytes(), Memory::live_bytes)
    }

    /// Returns the bytes that the files take with their folder, or a volatile store in memory.
    pub(crate) fn taken_bytes(&self) -> u64 {
        if let Some(memory) = &self.memory {
            return memory.taken_bytes(&self.space.index);
        }
        let spares = self.space.spare_bytes() / self.segment_bytes();
        let files = self.table.len() as u64 + spares + OTHER_FILES;
        self.file_bytes() + self.disk.own_bytes() + (files * NAME_BYTES).next_multiple_of(BLOCK_BYTES)
    }

    /// Returns the reserved room.
    fn reserve(&self) -> Reserve {
        let segment_bytes = self.segment_bytes();
        let largest_bytes = self.table.largest_bytes().max(segment_bytes);
        Reserve {
            spare_bytes: self.space.spare_bytes() / segment_bytes * (segment_bytes - SEGMENT_HEAD_BYTES),
            // A record of moves is up to a quarter of a segment long, and that much may stay unused at the end of each. What
            // is left of the segment that is written to counts as room until the store is opened again: the log then goes
            // on in another one, so one more is kept.
            clean_bytes: largest_bytes + largest_bytes / 4 + segment_bytes / 2 + segment_bytes,
            shrink_bytes: segment_bytes / 8,
        }
    }

    /// Returns the number of spare files that there should be besides a segment that is ready.
    pub(crate) fn spares_wanted(&self) -> u64 {
        let Reserve { clean_bytes, shrink_bytes, .. } = self.reserve();
        (clean_bytes + shrink_bytes).div_ceil(self.segment_bytes() - SEGMENT_HEAD_BYTES) - 1
    }

    /// Tells the log the size of the reserve. To be called whenever that has changed.
    pub(crate) fn settle_reserve(&self, pool: &mut Pool) {
        let (free, held): (Vec<_>, Vec<_>) =
            std::mem::take(&mut pool.held).into_iter().partition(|segment| Arc::strong_count(segment) == 1);
        pool.held = held;
        pool.spares.extend(
            free.into_iter()
                .map(|segment| Spare { name: spare_name(segment.id), file: Arc::clone(&segment.file) }),
        );
        let held_bytes = pool.held.len() as u64 * self.segment_bytes();
        let spare_bytes = pool.spares.len() as u64 * self.segment_bytes();
        self.space.spare_bytes.store(spare_bytes + held_bytes, Ordering::Relaxed);
        self.space.segments.store(self.table.len() as u64, Ordering::Relaxed);
        let reserve = self.reserve();
        let held_space = pool.held.len() as u64 * (self.segment_bytes() - SEGMENT_HEAD_BYTES);
        self.log.set_reserve(Reserve { spare_bytes: reserve.spare_bytes - held_space, ..reserve });
    }

    /// Returns whether there were freed segments that readers still held. Those whose readers are gone are spare files
    /// afterwards, so a repeated search for room may find it.
    pub(crate) fn has_held_segments(&self) -> bool {
        let mut pool = self.space.pool.lock();
        let had = !pool.held.is_empty();
        self.settle_reserve(&mut pool);
        had
    }

    /// Returns the request for a segment to continue in when the current one is full, with the reserve, and
    /// room for the index to grow meanwhile.
    pub(crate) fn next_segment(&self) -> SpaceRequest {
        // The pieces that small blocks make of a segment.
        SpaceRequest { record_bytes: 0, growth_bytes: self.segment_bytes() / 64, purpose: Purpose::Write }
    }

    /// Returns the request for the index to grow while room is made for more: that takes up to three snapshots, so it
    /// grows with their length.
    pub(crate) fn index_growth_ahead(&self) -> SpaceRequest {
        let segment_bytes = self.segment_bytes();
        let likely_bytes = self.snapshot_bytes_likely();
        let growth_bytes = likely_bytes.clamp(segment_bytes / 16, segment_bytes / 2).max(likely_bytes / 3);
        SpaceRequest { record_bytes: 0, growth_bytes, purpose: Purpose::Write }
    }

    /// Returns whether there is the room that is wanted.
    pub(crate) fn has_space(&self, wanted: &SpaceRequest) -> bool {
        let log = match wanted.record_bytes {
            0 => self.log.has_ready() && self.reserve_is_full(),
            bytes => self.log.has_space(bytes, wanted.purpose),
        };
        log && self.index_has_space(wanted)
    }

    fn reserve_is_full(&self) -> bool {
        let Reserve { clean_bytes, shrink_bytes, .. } = self.reserve();
        self.log.free_space().next_bytes >= clean_bytes + shrink_bytes
    }

    /// Returns whether the files of snapshots will suffice when the index has grown.
    pub(crate) fn index_has_space(&self, wanted: &SpaceRequest) -> bool {
        // What removes objects, forks and keys never makes the index grow. What cuts extents may, and has a little room
        // for it, even as a last resort: beyond that no snapshot could be taken, and nothing be freed, ever again.
        if wanted.growth_bytes == 0 {
            return true;
        }
        self.snapshot_space_wanted(wanted) <= self.space.snapshot_space_bytes.load(Ordering::Relaxed)
    }

    /// Keeps room for the index to grow as wanted; `None` if there is too little.
    pub(crate) fn reserve_growth(&self, wanted: &SpaceRequest) -> Option<Growth<'_>> {
        // Small ones find room in the slack, as many as threads can have under way: they need not be told of each other.
        let bytes = if wanted.growth_bytes > GROWTH_UNCOUNTED_BYTES { wanted.growth_bytes } else { 0 };
        let all_bytes = &self.space.growth_bytes;
        let before = if bytes > 0 { all_bytes.fetch_add(bytes, Ordering::Relaxed) } else { 0 };
        let growth = Growth { all_bytes, bytes };
        let growth_bytes = if wanted.growth_bytes > 0 { wanted.growth_bytes + before } else { 0 };
        if growth_bytes > 0 {
            self.ask_for_index_space();
        }
        self.index_has_space(&SpaceRequest { growth_bytes, ..*wanted }).then_some(growth)
    }

    /// Has room made for snapshots while there is some left, so that nobody has to wait for it.
    fn ask_for_index_space(&self) {
        let likely_bytes = self.snapshot_bytes_likely();
        let room_bytes = self.space.snapshot_space_bytes.load(Ordering::Relaxed);
        if likely_bytes + likely_bytes / 3 + self.segment_bytes() / 64 > room_bytes {
            self.maintenance.ask_for_index_space();
        }
    }

    fn snapshot_space_wanted(&self, wanted: &SpaceRequest) -> u64 {
        let slack_bytes = if wanted.purpose.is_write() { SNAPSHOT_SLACK_BYTES } else { 0 };
        self.snapshot_bytes_likely() + wanted.growth_bytes + slack_bytes
    }

    /// Returns the estimated length in bytes of a snapshot taken now.
    pub(crate) fn snapshot_bytes_likely(&self) -> u64 {
        self.space.index.snapshot_bytes(self.space.segments.load(Ordering::Relaxed))
    }

    /// Returns whether there is so little space left that nothing is made larger than it has to be.
    pub(crate) fn is_tight(&self) -> bool {
        let left_bytes = match self.disk.volume() {
            Ok(Some(volume)) => self.left_bytes().min(volume.available_bytes),
            _ => self.left_bytes(),
        };
        left_bytes < self.taken_bytes() / 4
    }

    /// Returns the length in bytes to give the file of a snapshot that has to have at least `least` bytes, so that it
    /// lasts for a while.
    fn snapshot_file_bytes(&self, least: u64) -> u64 {
        if self.is_tight() { least + least / 32 } else { least + least / 2 + self.segment_bytes() / 64 }
    }

    /// Returns the maximum length in bytes that the file of a snapshot taken now may keep.
    pub(crate) fn snapshot_file_bytes_max(&self) -> u64 {
        let wanted = SpaceRequest {
            record_bytes: 0,
            growth_bytes: self.segment_bytes() / 64,
            purpose: Purpose::Write,
        };
        let bytes = self.snapshot_file_bytes(self.snapshot_space_wanted(&wanted));
        if self.is_tight() { bytes } else { 2 * bytes }
    }

    /// Returns whether snapshots taken now would have shorter files than the existing ones.
    pub(crate) fn snapshots_can_shrink(&self) -> bool {
        let files = KEPT as u64 + 1;
        let needed = files * self.snapshot_file_bytes_max();
        self.space.snapshot_file_bytes() > needed + needed / 16
    }

    /// Makes room without cleaning, from the reserve and the rest of the volume and the capacity.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfSpace`] if that does not suffice.
    pub(crate) fn grow(&self, wanted: &SpaceRequest) -> Result<(), StoreError> {
        let mut pool = self.space.pool.lock();
        self.settle_reserve(&mut pool);
        loop {
            let (there, enough) = match wanted.record_bytes {
                0 => (self.log.has_ready(), self.reserve_is_full()),
                // A writer that has to wait for its turn needs no more room for that.
                bytes => (
                    self.log.has_segment(bytes),
                    self.log.has_space(bytes, wanted.purpose.max(Purpose::Paced)),
                ),
            };
            if !there {
                let needed = (SEGMENT_HEAD_BYTES + wanted.record_bytes).next_multiple_of(BLOCK_BYTES);
                self.add_segment(&mut pool, self.segment_bytes().max(needed))?;
            } else if !enough {
                self.add_spare(&mut pool)?;
            } else {
                break;
            }
        }
        Ok(())
    }

    /// Makes the reserve as large as it should be, as far as there is room for it.
    pub(crate) fn fill_reserve(&self) -> Result<(), StoreError> {
        let mut pool = self.space.pool.lock();
        self.settle_reserve(&mut pool);
        while (pool.spares.len() as u64) < self.spares_wanted() {
            self.add_spare(&mut pool)?;
        }
        Ok(())
    }

    /// Makes a segment of a size in bytes and hands it to the log.
    pub(crate) fn add_segment(&self, pool: &mut Pool, capacity: u64) -> Result<(), StoreError> {
        let id = pool.number()?;
        let name = segment_name(id);
        let failures = self.name_failures();
        let file = match pool.spares.pop_if(|_| capacity == self.segment_bytes()) {
            Some(spare) => match self.disk.rename(&spare.name, &name) {
                Ok(()) => Ok(spare.file),
                // It has its old name: on a full volume there would be no other file to take its place.
                Err(error) if is_full(&error) => {
                    pool.spares.push(spare);
                    Err(self.cannot_make(&name, capacity, &error))
                }
                Err(error) => {
                    // Whichever name it has now: it is given up.
                    let _ = self.disk.remove(&spare.name);
                    let _ = self.disk.remove(&name);
                    Err(self.cannot_make(&name, capacity, &error))
                }
            },
            None => self.create(&name, capacity),
        };
        pool.took_number(&file);
        // The name is durable before anything is written under it that somebody may be told of.
        let named = file.and_then(|file| match self.sync_names(failures) {
            Ok(()) => Ok(file),
            Err(error) => {
                // It may never become so, whatever a later sync says: the file is given up too.
                let _ = self.disk.remove(&name);
                Err(self.cannot_make(&name, capacity, &error))
            }
        });
        let file = named.inspect_err(|_| self.settle_reserve(pool))?;
        let binding = Binding::new(FORMAT_VERSION, &self.identity, id);
        let segment = Arc::new(Segment::new(id, binding, capacity, file));
        self.table.insert(Arc::clone(&segment));
        if let Some(too_small) = self.log.set_ready(segment) {
            self.table.remove(too_small.id);
            self.discard(pool, too_small);
        }
        self.settle_reserve(pool);
        Ok(())
    }

    /// Removes the segment to continue in if it was made for a large record; returns whether it was.
    pub(crate) fn remove_oversized_ready(&self) -> bool {
        let mut pool = self.space.pool.lock();
        let Some(segment) = self.log.take_ready_larger_than(self.segment_bytes()) else { return false };
        self.table.remove(segment.id);
        self.discard(&mut pool, segment);
        true
    }

    fn add_spare(&self, pool: &mut Pool) -> Result<(), StoreError> {
        let name = spare_name(pool.number()?);
        let file = self.create(&name, self.segment_bytes());
        pool.took_number(&file);
        let file = file?;
        pool.spares.push(Spare { name, file });
        self.settle_reserve(pool);
        Ok(())
    }

    /// Makes a file, within the capacity.
    fn create(&self, name: &str, bytes: u64) -> Result<Arc<dyn DiskFile>, StoreError> {
        if !self.may_take(bytes) {
            return Err(self.out_of_space(bytes));
        }
        self.disk.create(name, bytes).map_err(|error| {
            if error.kind() != io::ErrorKind::AlreadyExists {
                // Usually there is nothing.
                let _ = self.disk.remove(name);
            }
            self.cannot_make(name, bytes, &error)
        })
    }

    /// Returns whether the store may take `bytes` more in one file.
    fn may_take(&self, bytes: u64) -> bool {
        let Some(capacity) = self.space.capacity_bytes else { return true };
        let taken = self.taken_bytes() + bytes;
        if taken > capacity {
            return false;
        }
        // File systems keep records of their own about a file's pieces and a folder's names. Far from the end that does not
        // matter; near it the file system is asked, which takes a walk through the folder.
        if taken < capacity - capacity / NEAR_CAPACITY {
            return true;
        }
        match self.disk.allocated_bytes() {
            Ok(Some(allocated)) => allocated + bytes + FILE_RECORDS_BYTES <= capacity,
            _ => true,
        }
    }

    /// Returns the bytes that the store may take beyond those it has, by its capacity.
    pub(crate) fn left_bytes(&self) -> u64 {
        self.space.capacity_bytes.map_or(u64::MAX, |capacity| capacity.saturating_sub(self.taken_bytes()))
    }

    /// Makes the files of snapshots longer, so that the index can grow as wanted, and, if there is room, for a while
    /// after.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfSpace`] if the volume or the capacity has less left.
    pub(crate) fn raise_snapshot_space(
        self: &Arc<Self>,
        work: &mut SnapshotState,
        wanted: &SpaceRequest,
    ) -> Result<(), StoreError> {
        let least = self.snapshot_space_wanted(wanted);
        let result = self.raise_snapshot_space_to(work, self.snapshot_file_bytes(least));
        match result {
            Err(error) if error.kind == ErrorKind::OutOfSpace => self.raise_snapshot_space_to(work, least),
            result => result,
        }
    }

    fn raise_snapshot_space_to(
        self: &Arc<Self>,
        work: &mut SnapshotState,
        bytes: u64,
    ) -> Result<(), StoreError> {
        work.snapshot_bytes_min = bytes;
        let mut result = self.extend_snapshot_reserve(work, bytes);
        // A snapshot takes the file that was made longer, and its predecessor's becomes the next to be.
        for _ in 0..KEPT {
            if self.space.snapshot_space_bytes.load(Ordering::Relaxed) >= bytes {
                break;
            }
            let next = |()| self.snapshot(work).and_then(|()| self.extend_snapshot_reserve(work, bytes));
            result = result.and_then(next);
        }
        work.snapshot_bytes_min = 0;
        result?;
        // Whoever is told that there is room now looks for it again, and must not come back forever.
        match self.space.snapshot_space_bytes.load(Ordering::Relaxed) < bytes {
            true => Err(self.out_of_space(bytes)),
            false => Ok(()),
        }
    }

    fn extend_snapshot_reserve(&self, work: &SnapshotState, bytes: u64) -> Result<(), StoreError> {
        let result = self.extend_snapshot_file(work, bytes);
        // If it cannot be put back, the next attempt begins with that.
        let _ = self.return_snapshot_file(SNAPSHOT_BEGUN);
        self.count_snapshots();
        result
    }

    fn extend_snapshot_file(&self, work: &SnapshotState, bytes: u64) -> Result<(), StoreError> {
        let failed = |error: io::Error| self.cannot_make(SNAPSHOT_RESERVE, bytes, &error);
        let opened = match self.disk.open(SNAPSHOT_RESERVE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.disk.open(SNAPSHOT_BEGUN),
            opened => opened,
        };
        let old_bytes = match opened {
            Ok(file) => file.size().map_err(failed)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(failed(error)),
        };
        if old_bytes >= bytes {
            return Ok(());
        }
        self.begin_snapshot_file(work)
            .and_then(|file| self.extend_file_of_snapshot(&*file, bytes))
            .map_err(failed)
    }

    /// Extends a snapshot's file to `bytes`, if it is shorter, within the capacity.
    pub(crate) fn extend_file_of_snapshot(&self, file: &dyn DiskFile, bytes: u64) -> io::Result<()> {
        let old_bytes = file.size()?;
        if old_bytes >= bytes {
            return Ok(());
        }
        // Held from the look at what is left until it is taken, so that no segment takes the same bytes.
        let _pool = self.space.pool.lock();
        let more_bytes = bytes.next_multiple_of(BLOCK_BYTES) - old_bytes.next_multiple_of(BLOCK_BYTES);
        if !self.may_take(more_bytes) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        file.set_size(bytes)?;
        self.space.snapshot_file_bytes.fetch_add(more_bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Opens the file that the next snapshot is written into, under a name that is durable: until then a crash may
    /// still find it under the name of the snapshot that it was.
    pub(crate) fn begin_snapshot_file(&self, work: &SnapshotState) -> io::Result<Arc<dyn DiskFile>> {
        // One that could not be put back before need not have that name for certain.
        self.return_snapshot_file(SNAPSHOT_BEGUN)?;
        let failures = self.name_failures();
        let reserved = match self.disk.open(SNAPSHOT_RESERVE) {
            // The file may still have the name of the snapshot that it was: a crash undid its last renaming. On a full
            // volume there is no other one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.retire_snapshots(work);
                self.disk.open(SNAPSHOT_RESERVE)
            }
            opened => opened,
        };
        let begun = match reserved {
            Ok(file) => self.disk.rename(SNAPSHOT_RESERVE, SNAPSHOT_BEGUN).map(|()| file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.disk.create(SNAPSHOT_BEGUN, 0),
            Err(error) => Err(error),
        };
        begun.and_then(|file| self.sync_names(failures).map(|()| file)).inspect_err(|_| {
            // If it cannot be put back, the next attempt begins with that.
            let _ = self.return_snapshot_file(SNAPSHOT_BEGUN);
        })
    }

    /// Puts a snapshot's file that is not used after all back in reserve, if there is one of this name.
    pub(crate) fn return_snapshot_file(&self, name: &str) -> io::Result<()> {
        match self.disk.rename(name, SNAPSHOT_RESERVE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// Makes the file of a segment that is no longer referred to a spare one, or removes it.
    pub(crate) fn discard(&self, pool: &mut Pool, segment: Arc<Segment>) {
        let kept = (pool.spares.len() + pool.held.len()) as u64;
        // One more than there should be: what was freed for a writer is not given away before he has it.
        let standard = segment.capacity == self.segment_bytes();
        if standard && kept <= self.spares_wanted() {
            match self.disk.rename(&segment.name, &spare_name(segment.id)) {
                // A reader that still holds the segment must find its bytes: until it lets go nobody writes to the file.
                Ok(()) => pool.held.push(segment),
                Err(error) => tracing::warn!("cannot rename {}: {error}", self.disk.describe(&segment.name)),
            }
        } else if let Err(error) = self.disk.remove(&segment.name) {
            tracing::warn!("cannot remove {}: {error}", self.disk.describe(&segment.name));
        }
        self.settle_reserve(pool);
    }

    /// Takes over the files that an earlier opening had in reserve; removes those of another size.
    pub(crate) fn adopt_reserve(&self, pool: &mut Pool, files: &[(String, u64)]) {
        for (name, bytes) in files {
            let Some(number) = parse_spare_name(name) else { continue };
            pool.next_segment = pool.next_segment.max(number + 1);
            let kept = pool.spares.len() as u64;
            if *bytes == self.segment_bytes()
                && kept <= self.spares_wanted()
                && let Ok(file) = self.disk.open(name)
            {
                pool.spares.push(Spare { name: name.clone(), file });
            } else if let Err(error) = self.disk.remove(name) {
                tracing::warn!("cannot remove {}: {error}", self.disk.describe(name));
            }
        }
        self.settle_reserve(pool);
    }

    /// Counts what snapshots take, after they have changed.
    pub(crate) fn count_snapshots(&self) {
        // Where that cannot be found out, it is as it was.
        let Ok(files) = self.disk.list() else { return };
        let mut snapshots: Vec<(u64, u64)> =
            files.iter().filter_map(|(name, bytes)| Some((parse_snapshot_name(name)?, *bytes))).collect();
        snapshots.sort_unstable();
        let reserve_bytes = files
            .iter()
            .find(|(name, _)| name == SNAPSHOT_RESERVE || name == SNAPSHOT_BEGUN)
            .map_or(0, |(_, bytes)| *bytes);
        let sizes = snapshots.iter().map(|(_, bytes)| *bytes).chain([reserve_bytes]);
        let sum = sizes.map(|bytes| bytes.next_multiple_of(BLOCK_BYTES)).sum();
        self.space.snapshot_file_bytes.store(sum, Ordering::Relaxed);
        // The next snapshots are written into the file in reserve and into those that are kept now, by turns.
        let kept = snapshots.iter().rev().take(KEPT).map(|(_, bytes)| *bytes);
        let least = kept.min().filter(|_| snapshots.len() >= KEPT).unwrap_or(0);
        self.space.snapshot_space_bytes.store(least.min(reserve_bytes), Ordering::Relaxed);
    }

    /// Returns the refusal of a transaction that finds no room, and nothing that could be cleaned for it; counts it.
    pub(crate) fn refuse(&self, wanted: &SpaceRequest) -> StoreError {
        if wanted.record_bytes > 0 {
            self.space.refused.fetch_add(1, Ordering::Relaxed);
        }
        self.out_of_space(wanted.record_bytes + wanted.growth_bytes)
    }

    fn out_of_space(&self, bytes: u64) -> StoreError {
        let taken = self.taken_bytes();
        let live = self.live_bytes();
        let room = match (self.space.capacity_bytes, self.disk.volume()) {
            (Some(capacity), _) => format!("its capacity is {capacity} bytes"),
            (None, Ok(Some(volume))) => {
                format!("its volume of {} bytes has {} left", volume.total_bytes, volume.available_bytes)
            }
            _ => "there is no space left".to_owned(),
        };
        let text = format!(
            "the store is full: it takes {taken} bytes, {live} of them live data, {room}, and there is no room for \
             {bytes} bytes more; remove objects or give the store more room; nothing was changed"
        );
        StoreError::new(ErrorKind::OutOfSpace, text)
    }

    fn cannot_make(&self, name: &str, bytes: u64, error: &io::Error) -> StoreError {
        if is_full(error) {
            return self.out_of_space(bytes);
        }
        let path = self.disk.describe(name);
        let text = format!("cannot make space for {bytes} bytes in {path}: {error}; nothing was changed");
        StoreError::new(ErrorKind::Io, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_follow_the_capacity() {
        let bytes = |capacity| segment_bytes_for(capacity, 64 << 10, 64 << 20);
        assert_eq!(bytes(1 << 20), 64 << 10);
        assert_eq!(bytes(400 << 20), 1 << 20);
        assert_eq!(bytes(u64::MAX), 64 << 20);
    }

    #[test]
    fn names_of_spare_files_are_their_own_inverse() {
        assert_eq!(parse_spare_name(&spare_name(17)), Some(17));
        assert_eq!(parse_spare_name("reserve-17"), None);
        assert_eq!(parse_spare_name(SNAPSHOT_RESERVE), None);
    }
}
