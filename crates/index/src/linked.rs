//! The end of a sweep since an earlier one: entries that have got further names meanwhile are examined again.
//!
//! A file that had one name may have been linked into another directory, and written there. That changes neither the first
//! directory nor the identity of the file, so that the row was taken from the earlier index; but the row of the new name
//! says that there are several.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nacre_quantity::Escaped;
use nacre_walk::Time;
use rusqlite::{Connection, OptionalExtension};

use crate::open::path_of;
use crate::schema::{NUMBER_BITS, Name, name_bytes, nanoseconds};

/// The entries that have one name by their own rows, and several by the rows of others. What is not in memory of the
/// database is in its own temporary file.
const LINKED: &str = "
CREATE TEMP TABLE linked (device INTEGER NOT NULL, inode INTEGER NOT NULL, PRIMARY KEY (device, inode)) WITHOUT ROWID;
INSERT OR IGNORE INTO linked SELECT device, inode FROM entries WHERE links > 1 AND type <> 'd';
CREATE TEMP TABLE doubtful (id INTEGER PRIMARY KEY);
INSERT INTO doubtful SELECT id FROM entries WHERE links = 1 AND type <> 'd'
  AND EXISTS (SELECT 1 FROM linked WHERE linked.device = entries.device AND linked.inode = entries.inode);
";

/// Examines entries again that have got further names since the earlier sweep. Adds their owners to those that are known.
pub fn ask_again(
    connection: &Connection,
    users: &mut BTreeSet<u32>,
    groups: &mut BTreeSet<u32>,
) -> rusqlite::Result<()> {
    connection.execute_batch("BEGIN")?;
    connection.execute_batch(LINKED)?;
    let (mut last, mut next) = (
        i64::MIN,
        connection.prepare(
            "SELECT entries.id, name, size, allocated, device, inode FROM doubtful JOIN entries USING (id) \
         WHERE doubtful.id > ? ORDER BY doubtful.id LIMIT 1",
        )?,
    );
    let mut update = connection.prepare(
        "UPDATE entries SET mode = ?, links = ?, uid = ?, gid = ?, size = ?, allocated = ?, atime = ?, mtime = ?, \
         ctime = ? WHERE id = ?",
    )?;
    loop {
        let row = |row: &rusqlite::Row<'_>| {
            let sizes: (i64, i64) = (row.get(2)?, row.get(3)?);
            let identity: (i64, i64) = (row.get(4)?, row.get(5)?);
            Ok((row.get::<_, i64>(0)?, name_bytes(row.get_ref(1)?).to_vec(), sizes, identity))
        };
        let Some((id, name, before, identity)) = next.query_row([last], row).optional()? else { break };
        last = id;
        let directory = id >> NUMBER_BITS;
        let path = path_of(connection, "main", directory, &name)?;
        let about = match Path::new(OsStr::from_bytes(&path)).symlink_metadata() {
            Ok(about) => about,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => {
                fail(connection, directory, &path, &error)?;
                continue;
            }
        };
        if (about.dev() as i64, about.ino() as i64) != identity {
            continue;
        }
        let time = |seconds, part: i64| nanoseconds(Time { seconds, nanoseconds: part as u32 });
        let size = i64::try_from(about.size()).unwrap_or(i64::MAX);
        let allocated = i64::try_from(about.blocks().saturating_mul(512)).unwrap_or(i64::MAX);
        update.execute((
            about.mode() & 0o7777,
            i64::try_from(about.nlink()).unwrap_or(i64::MAX),
            about.uid(),
            about.gid(),
            size,
            allocated,
            time(about.atime(), about.atime_nsec()),
            time(about.mtime(), about.mtime_nsec()),
            time(about.ctime(), about.ctime_nsec()),
            id,
        ))?;
        users.insert(about.uid());
        groups.insert(about.gid());
        add_above(
            connection,
            directory,
            (size.saturating_sub(before.0), allocated.saturating_sub(before.1)),
        )?;
    }
    drop((next, update));
    connection.execute_batch("DROP TABLE doubtful; DROP TABLE linked; COMMIT")
}

/// Adds bytes to the sums of a directory and all that it is in.
fn add_above(
    connection: &Connection,
    directory: i64,
    (apparent, allocated): (i64, i64),
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(
        "UPDATE directories SET apparent = apparent + ?, allocated = allocated + ? WHERE id = ? RETURNING parent",
    )?;
    let mut at = directory;
    while at != 0 {
        let parent = statement.query_row((apparent, allocated, at), |row| row.get::<_, i64>(0)).optional()?;
        // Those that a directory is in have smaller numbers.
        at = parent.filter(|parent| *parent < at).unwrap_or(0);
    }
    Ok(())
}

/// Keeps the error of an entry that cannot be examined.
fn fail(
    connection: &Connection,
    directory: i64,
    path: &[u8],
    error: &std::io::Error,
) -> rusqlite::Result<()> {
    let errno = error.raw_os_error().unwrap_or_default();
    let message = format!("cannot stat \"{}\": {error}", Escaped(path));
    connection.execute("INSERT INTO errors VALUES (?, 'stat', ?, ?)", (Name(path), errno, message))?;
    connection.execute("UPDATE directories SET complete = 0 WHERE id = ?", [directory]).map(drop)
}
