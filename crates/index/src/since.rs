//! The entries that an earlier index holds of a directory whose identity and times have not changed since.
//!
//! The times of a directory change whenever a name in it is made, removed or renamed, so its names are the same ones,
//! and most probably the files behind them too. A file that was written in place, or given another owner, does not
//! change its directory: that is not seen.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nacre_walk::{FileKind, Metadata, Time};
use rusqlite::{Connection, OptionalExtension};

use crate::open::{Index, OpenError};
use crate::schema::{Name, first_key, last_key, letter, name_bytes, nanoseconds, time};

/// The maximum number of entries of an earlier index that are in memory at once. What is beyond is read from the file
/// system again.
const HELD_MAX: usize = 200_000;

/// The age that a directory's times must have had when the earlier sweep began: within the resolution of the file
/// system's clock a later change may have left the same time. Times without a fraction are of whole or even seconds.
const FINE_NS: i64 = 100_000_000;
const COARSE_NS: i64 = 3_000_000_000;

/// An earlier index, as one thread reads it.
#[derive(Debug)]
pub struct Earlier {
    connection: Connection,
    began: i64,
    held: Arc<AtomicUsize>,
}

/// The entries that an earlier index holds of a directory.
#[derive(Debug)]
pub(crate) struct Kept {
    /// The directory's number there.
    pub number: i64,
    entries: Option<Entries>,
}

#[derive(Debug)]
struct Entries {
    rows: HashMap<Box<[u8]>, Row>,
    /// The metadata of the directory, for what entries have in common with it.
    template: Metadata,
    held: Arc<AtomicUsize>,
    count: usize,
}

impl Drop for Entries {
    fn drop(&mut self) {
        self.held.fetch_sub(self.count, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Row {
    kind: &'static str,
    mode: u16,
    links: u32,
    uid: u32,
    gid: u32,
    size: u64,
    allocated: u64,
    times: [Time; 3],
    inode: u64,
}

impl Earlier {
    /// Opens an earlier index once for each of `threads` threads.
    ///
    /// # Errors
    /// [`OpenError`] if it cannot be read, or is not complete.
    pub fn open(path: &Path, threads: usize) -> Result<Vec<Earlier>, OpenError> {
        let held = Arc::<AtomicUsize>::default();
        let open = |_| {
            let index = Index::open(path, false)?;
            Ok(Earlier {
                began: nanoseconds(index.began),
                connection: index.connection,
                held: Arc::clone(&held),
            })
        };
        (0..threads).map(open).collect()
    }

    /// Returns what is known of a directory that is `above` there, and has this metadata now.
    pub(crate) fn directory(&mut self, above: i64, name: &[u8], now: &Metadata) -> Option<Kept> {
        // What cannot be read here is read from the file system.
        let sql = "SELECT id, device, inode, mtime, ctime, complete, entries FROM directories WHERE parent = ? AND name = ?";
        let mut statement = self.connection.prepare_cached(sql).ok()?;
        let known = statement
            .query_row((above, Name(name)), |row| {
                let id: i64 = row.get(0)?;
                let identity: (i64, i64) = (row.get(1)?, row.get(2)?);
                let times: (i64, i64) = (row.get(3)?, row.get(4)?);
                Ok((id, identity, times, row.get::<_, bool>(5)?, row.get::<_, i64>(6)?))
            })
            .optional()
            .ok()??;
        drop(statement);
        let (number, identity, times, complete, entries) = known;
        let times_now = (nanoseconds(now.modified()), nanoseconds(now.changed()));
        let settled = |time: i64| {
            let margin = if time % 1_000_000_000 == 0 { COARSE_NS } else { FINE_NS };
            time != i64::MIN && time < self.began.saturating_sub(margin)
        };
        let unchanged = complete
            && identity == (now.device() as i64, now.inode() as i64)
            && times == times_now
            && settled(times.0)
            && settled(times.1);
        if !unchanged {
            return Some(Kept { number, entries: None });
        }
        let count = usize::try_from(entries).unwrap_or(usize::MAX);
        let held = self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
            held.checked_add(count).filter(|sum| *sum <= HELD_MAX)
        });
        if held.is_err() {
            return Some(Kept { number, entries: None });
        }
        let mut kept = Entries { rows: HashMap::new(), template: *now, held: Arc::clone(&self.held), count };
        match self.rows(number, count) {
            Ok(rows) => kept.rows = rows,
            Err(_) => return Some(Kept { number, entries: None }),
        }
        Some(Kept { number, entries: Some(kept) })
    }

    fn rows(&self, directory: i64, count: usize) -> rusqlite::Result<HashMap<Box<[u8]>, Row>> {
        let sql = "SELECT name, type, mode, links, uid, gid, size, allocated, atime, mtime, ctime, inode FROM entries \
                   WHERE id BETWEEN ? AND ? AND type <> 'd' LIMIT ?";
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query((first_key(directory), last_key(directory), count as i64))?;
        let mut kept = HashMap::with_capacity(count);
        while let Some(row) = rows.next()? {
            let kind: String = row.get(1)?;
            let Some(kind) = ["f", "l", "p", "s", "c", "b"].into_iter().find(|letter| *letter == kind) else {
                continue;
            };
            let row_time = |column| row.get(column).map(time);
            let saturated = (8..11)
                .any(|column| matches!(row.get::<_, i64>(column), Err(_) | Ok(i64::MIN) | Ok(i64::MAX)));
            if saturated {
                continue;
            }
            let values = Row {
                kind,
                mode: row.get(2)?,
                links: row.get(3)?,
                uid: row.get(4)?,
                gid: row.get(5)?,
                size: row.get::<_, i64>(6)? as u64,
                allocated: row.get::<_, i64>(7)? as u64,
                times: [row_time(8)?, row_time(9)?, row_time(10)?],
                inode: row.get::<_, i64>(11)? as u64,
            };
            kept.insert(name_bytes(row.get_ref(0)?).into(), values);
        }
        Ok(kept)
    }
}

impl Kept {
    /// Returns the metadata of an entry, if the earlier index has it, and it is the same file by its inode and type.
    pub fn metadata(&self, name: &[u8], kind: FileKind, inode: u64) -> Option<Metadata> {
        let entries = self.entries.as_ref()?;
        let row = entries.rows.get(name)?;
        // A file with several names may have changed by any of the others, which are in other directories.
        if row.inode != inode || row.kind != letter(kind) || row.links > 1 {
            return None;
        }
        let mut stat = entries.template.0;
        stat.stx_mode = row.mode | kind.mode_bits() as u16;
        stat.stx_nlink = row.links;
        stat.stx_uid = row.uid;
        stat.stx_gid = row.gid;
        stat.stx_size = row.size;
        stat.stx_blocks = row.allocated / 512;
        stat.stx_ino = row.inode;
        stat.stx_attributes = rustix::fs::StatxAttributes::empty();
        let [accessed, modified, changed] = row.times;
        (stat.stx_atime.tv_sec, stat.stx_atime.tv_nsec) = (accessed.seconds, accessed.nanoseconds);
        (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec) = (modified.seconds, modified.nanoseconds);
        (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec) = (changed.seconds, changed.nanoseconds);
        Some(Metadata(stat))
    }
}
