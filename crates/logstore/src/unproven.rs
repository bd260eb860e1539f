//! Rewriting everything that an opening reads but that is not proven to be on the device.
//!
//! The previous process's writes are read back from the system's cache, whether or not the device has them. A sync does
//! not settle that: after a failed one Linux treats the unwritten pages as written, keeps them in the cache, and lets
//! later syncs succeed without them. Nor need anyone have seen an error, because the process may have been killed before
//! it synced. So everything that is not proven to be on the device is written again, the same bytes to the same place,
//! and then synced, before its effects become visible.
//!
//! - *Records* are proven up to the greatest number that any record names as synced, and before the position of a snapshot:
//!   both are written only after a sync of them has succeeded. Later records are rewritten, segment headers included; a
//!   header is synced with the first record of its segment, and is made again if it was torn off. Under durability
//!   `always` that is hardly more than the last batch, otherwise everything since the last sync, in as many segments as
//!   that took. It is never more than what is replayed.
//! - *Snapshots* have been synced before they get their names, but nothing proves a name. Each gets a new one.
//! - *Segments* are used only after their names were synced by the process that used them, and so is the *superblock*. A
//!   superblock without other files may come from an opening that failed there, and is written again.
//! - *Removals* are not proven either. A torn segment that came back would cut the log of its successor; its header is
//!   cleared before it becomes a file in reserve, so that it begins empty.
//! - *Files in reserve* get a name that is synced before anything is written to them: as segments, or as the next snapshot.
//!
//! Rewriting is safe at every point: a place holds the same bytes before and after, so a crash in between loses only
//! what was lost before.

use std::io;

use bytes::Bytes;
use nacre_object::{ErrorKind, StoreError};

use crate::disk::Disk;
use crate::segment::{SEGMENT_HEAD_BYTES, Segment};
use crate::snapshot::SnapshotState;
use crate::snapshot::snapshot_name;

/// Writes the contents of a segment from an offset on again, in parts that may be empty, and syncs the whole segment.
pub(crate) fn rewrite(
    disk: &dyn Disk,
    segment: &Segment,
    offset: u64,
    parts: &[Bytes],
) -> Result<(), StoreError> {
    let empty = parts.iter().all(Bytes::is_empty);
    let written = if empty { Ok(()) } else { segment.file.write_at(offset, parts) };
    written.and_then(|()| segment.file.sync()).map_err(|error| {
        let path = disk.describe(&segment.name);
        let text = format!(
            "cannot write the end of the log in {path} again and sync it: {error}; nothing is lost, check the disk \
             and open the store again"
        );
        StoreError::new(ErrorKind::Io, text)
    })
}

/// Gives every snapshot that is kept a new name, and makes the names durable.
///
/// `numbers` are those of all snapshots in the folder, in ascending order.
pub(crate) fn rename_snapshots(
    disk: &dyn Disk,
    numbers: &[u64],
    state: &mut SnapshotState,
) -> Result<(), StoreError> {
    let first = numbers.last().map_or(1, |number| number + 1);
    let error = |name: &str, error: io::Error| {
        let path = disk.describe(name);
        StoreError::new(ErrorKind::Io, format!("cannot rename {path} and sync its name: {error}"))
    };
    // The newest first: so their order is that of their numbers also when only some have their new names.
    let count = state.snapshots.len() as u64;
    for ((number, _), new) in state.snapshots.iter_mut().rev().zip((first..first + count).rev()) {
        let name = snapshot_name(*number);
        disk.rename(&name, &snapshot_name(new)).map_err(|cause| error(&name, cause))?;
        *number = new;
    }
    match state.snapshots.last() {
        Some((number, _)) => disk.sync_names().map_err(|cause| error(&snapshot_name(*number), cause)),
        None => Ok(()),
    }
}

/// Clears a segment's header, durably, so that the segment is an unused one if its renaming is lost.
pub(crate) fn clear_header(disk: &dyn Disk, segment: &Segment) -> Result<(), StoreError> {
    let zeros = Bytes::from_static(&[0; SEGMENT_HEAD_BYTES as usize]);
    segment.file.write_at(0, &[zeros]).and_then(|()| segment.file.sync()).map_err(|error| {
        let path = disk.describe(&segment.name);
        StoreError::new(
            ErrorKind::Io,
            format!("cannot clear {path}, which a crash tore off the log: {error}"),
        )
    })
}
