//! The difference between two sweeps.
//!
//! Directories that have the same place in both are compared name by name, in the order of their names. What only one
//! of them has goes into tables in a temporary file, with everything below it, and is matched by type, device and inode
//! afterwards: what was removed in one place and made in another was moved. What is in a moved directory moved along
//! with it, and is no news. So memory is bounded, whatever the size of the trees and of the difference.

use std::path::{Path, PathBuf};

use nacre_quantity::Escaped;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, Rows};

use crate::open::{Index, OpenError, check_header, path_of, protect, read_only_uri};
use crate::schema::{first_key, last_key, name_bytes};

/// The reason why two indices cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum DifferenceError {
    /// One of them cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The sweeps had different filters.
    #[error(
        "cannot compare \"{one}\" with \"{other}\": the sweeps had different filters ({2})",
        one = Escaped::of(.0),
        other = Escaped::of(.1)
    )]
    Filters(PathBuf, PathBuf, String),
    /// The databases cannot be read, or the temporary file not written.
    #[error("cannot compare the indices: {0}")]
    Database(#[from] rusqlite::Error),
}

/// The way in which an entry differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is new.
    Created,
    /// It is gone.
    Removed,
    /// It is in the same place, or moved along with its directory, and something about it is different.
    Changed,
    /// It has another name, or is in another directory.
    Moved,
}

impl Change {
    /// Returns its word in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Change::Created => "made",
            Change::Removed => "removed",
            Change::Changed => "changed",
            Change::Moved => "moved",
        }
    }
}

/// An entry that differs.
#[derive(Clone, Debug)]
pub struct Changed {
    /// The way in which it differs.
    pub change: Change,
    /// Its path; the new one if it was moved.
    pub path: Vec<u8>,
    /// The path where it was before, if it was moved.
    pub from: Option<Vec<u8>>,
    /// The letter of its type, now or when it was last there.
    pub kind: String,
    /// The names of the columns that differ.
    pub fields: Vec<&'static str>,
}

/// The numbers of entries that differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of new entries.
    pub created: u64,
    /// The number of entries that are gone.
    pub removed: u64,
    /// The number of entries that are different.
    pub changed: u64,
    /// The number of entries that were moved.
    pub moved: u64,
    /// The number of directories that one of the sweeps could not read, so that nothing is known of what is in them.
    pub unknown: u64,
}

impl Counts {
    /// Returns whether there is no difference.
    pub fn is_same(&self) -> bool {
        self.created + self.removed + self.changed + self.moved == 0
    }
}

/// The columns that are compared, behind the key, the name, the type and the directory's number.
const COMPARED: [&str; 8] = ["mode", "uid", "gid", "links", "inode", "size", "mtime", "ctime"];

/// The number of those that are compared of directories: the rest of theirs changes with every entry in them.
const COMPARED_OF_DIRECTORIES: usize = 3;

/// The tables of the temporary database.
const TABLES: &str = "
CREATE TABLE pairs (number INTEGER PRIMARY KEY, old INTEGER NOT NULL, new INTEGER NOT NULL);
CREATE TABLE gone (id INTEGER PRIMARY KEY, type, device, inode, mtime, within INTEGER);
CREATE TABLE come (id INTEGER PRIMARY KEY, type, device, inode, mtime, within INTEGER);
CREATE TABLE gone_queue (number INTEGER PRIMARY KEY, directory INTEGER NOT NULL UNIQUE);
CREATE TABLE come_queue (number INTEGER PRIMARY KEY, directory INTEGER NOT NULL UNIQUE);
CREATE TABLE moved (old INTEGER PRIMARY KEY, new INTEGER NOT NULL UNIQUE);
INSERT INTO pairs (old, new) VALUES (0, 0);
";

/// The matching of what is gone with what has come. The time of the last modification tells a file that was moved from
/// another one that was given the inode of a removed one, unless the directory that it is in was moved as well; that of a
/// directory changes with its entries.
const MATCH: &str = "
CREATE INDEX come_by_identity ON come (type, device, inode);
INSERT OR IGNORE INTO moved
  SELECT earlier.id, later.id FROM
    (SELECT *, row_number() OVER (PARTITION BY type, device, inode ORDER BY id) AS turn FROM gone) AS earlier
    JOIN (SELECT *, row_number() OVER (PARTITION BY type, device, inode ORDER BY id) AS turn FROM come) AS later
    USING (type, device, inode, turn)
  WHERE earlier.type = 'd' OR earlier.mtime = later.mtime;
CREATE INDEX gone_by_directory ON gone (within) WHERE within IS NOT NULL;
CREATE INDEX come_by_directory ON come (within) WHERE within IS NOT NULL;
INSERT OR IGNORE INTO moved
  SELECT earlier.id, later.id FROM gone AS earlier
    JOIN gone AS above ON above.within = earlier.id >> 32
    JOIN moved ON moved.old = above.id
    JOIN come AS above_now ON above_now.id = moved.new
    JOIN come AS later ON later.type = earlier.type AND later.device = earlier.device AND later.inode = earlier.inode
  WHERE later.id >> 32 = above_now.within AND earlier.type <> 'd';
";

/// An entry as it is compared.
struct Compared {
    id: i64,
    name: Vec<u8>,
    /// Names that are not text come behind all others.
    blob: bool,
    kind: String,
    values: [i64; COMPARED.len()],
}

impl Compared {
    fn read(row: &Row<'_>) -> rusqlite::Result<Compared> {
        let name = row.get_ref(1)?;
        let mut values = [0; COMPARED.len()];
        for (column, value) in values.iter_mut().enumerate() {
            *value = row.get(column + 3)?;
        }
        Ok(Compared {
            id: row.get(0)?,
            blob: matches!(name, rusqlite::types::ValueRef::Blob(_)),
            name: name_bytes(name).to_vec(),
            kind: row.get(2)?,
            values,
        })
    }

    fn key(&self) -> (bool, &[u8]) {
        (self.blob, &self.name)
    }

    /// Returns the next entry that has another name than the last one: what was replaced while its directory was listed may
    /// have been listed twice.
    fn next(rows: &mut Rows<'_>, last: Option<&Compared>) -> rusqlite::Result<Option<Compared>> {
        loop {
            let next = rows.next()?.map(Compared::read).transpose()?;
            if next.as_ref().zip(last).is_none_or(|(next, last)| next.key() != last.key()) {
                return Ok(next);
            }
        }
    }

    /// Returns the names of what differs from an earlier state.
    fn differences(&self, earlier: &Compared) -> Vec<&'static str> {
        let mut fields = Vec::new();
        if self.kind != earlier.kind {
            fields.push("type");
        }
        let compared = if self.kind == "d" { COMPARED_OF_DIRECTORIES } else { COMPARED.len() };
        let values = self.values.iter().zip(&earlier.values).zip(COMPARED).take(compared);
        fields.extend(values.filter(|((now, before), _)| now != before).map(|(_, name)| name));
        fields
    }
}

/// Compares two indices, and gives every difference to `report`, which ends the comparison by returning false.
///
/// # Errors
/// [`DifferenceError`] if they cannot be compared.
pub fn compare(
    old: &Path,
    new: &Path,
    report: &mut dyn FnMut(&Changed) -> bool,
) -> Result<Counts, DifferenceError> {
    // What is wrong with either of them is said before anything is compared.
    for path in [old, new] {
        Index::open(path, false)?;
        check_header(path)?;
    }
    // An empty name is a temporary file, which is removed when it is closed.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags("", flags)?;
    protect(&connection)?;
    connection.pragma_update(None, "query_only", false)?;
    connection.pragma_update_and_check(None, "journal_mode", "OFF", |_| Ok(()))?;
    connection.execute("ATTACH ? AS old", [read_only_uri(old)])?;
    connection.execute("ATTACH ? AS new", [read_only_uri(new)])?;
    let differing: Option<String> = connection
        .query_row(
            "SELECT key FROM (SELECT * FROM (SELECT * FROM old.sweep EXCEPT SELECT * FROM new.sweep) UNION ALL \
             SELECT * FROM (SELECT * FROM new.sweep EXCEPT SELECT * FROM old.sweep)) WHERE key LIKE 'flag %'",
            [],
            |row| row.get(0),
        )
        .optional()?;
    if let Some(flag) = differing {
        let flag = flag.trim_start_matches("flag ").to_owned();
        return Err(DifferenceError::Filters(old.to_owned(), new.to_owned(), flag));
    }
    connection.execute_batch("BEGIN")?;
    connection.execute_batch(TABLES)?;
    let mut comparison =
        Comparison { connection: &connection, report, counts: Counts::default(), ended: false };
    comparison.compare_pairs()?;
    for (table, schema) in [("gone", "old"), ("come", "new")] {
        comparison.expand(table, schema)?;
    }
    connection.execute_batch(MATCH)?;
    comparison.report_moved()?;
    comparison.report_rest("gone", "old", Change::Removed)?;
    comparison.report_rest("come", "new", Change::Created)?;
    Ok(comparison.counts)
}

struct Comparison<'a> {
    connection: &'a Connection,
    report: &'a mut dyn FnMut(&Changed) -> bool,
    counts: Counts,
    ended: bool,
}

impl Comparison<'_> {
    fn report(&mut self, changed: &Changed) {
        if self.ended {
            return;
        }
        match changed.change {
            Change::Created => self.counts.created += 1,
            Change::Removed => self.counts.removed += 1,
            Change::Changed => self.counts.changed += 1,
            Change::Moved => self.counts.moved += 1,
        }
        self.ended = !(self.report)(changed);
    }

    /// Compares the directories that have the same place in both.
    fn compare_pairs(&mut self) -> rusqlite::Result<()> {
        let mut number = 0;
        let mut next =
            self.connection.prepare("SELECT number, old, new FROM pairs WHERE number > ? LIMIT 1")?;
        while !self.ended {
            let pair: Option<(i64, i64, i64)> =
                next.query_row([number], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).optional()?;
            let Some((this, old, new)) = pair else { break };
            number = this;
            self.compare_directory(old, new)?;
        }
        Ok(())
    }

    fn compare_directory(&mut self, old: i64, new: i64) -> rusqlite::Result<()> {
        let connection = self.connection;
        let columns = COMPARED.join(", ");
        let select = |schema: &str| {
            connection.prepare_cached(&format!(
                "SELECT id, name, type, {columns} FROM {schema}.entries WHERE id BETWEEN ? AND ? ORDER BY name"
            ))
        };
        let (mut earlier, mut later) = (select("old")?, select("new")?);
        let mut earlier = earlier.query((first_key(old), last_key(old)))?;
        let mut later = later.query((first_key(new), last_key(new)))?;
        // What is missing in a directory that was read in part may well be there.
        let (old_complete, new_complete) = (self.is_complete("old", old)?, self.is_complete("new", new)?);
        if !old_complete || !new_complete {
            self.counts.unknown += 1;
        }
        let mut before = Compared::next(&mut earlier, None)?;
        let mut after = Compared::next(&mut later, None)?;
        while !self.ended {
            let order = match (&before, &after) {
                (None, None) => break,
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some(before), Some(after)) => before.key().cmp(&after.key()),
            };
            if order.is_eq()
                && let (Some(before), Some(after)) = (&before, &after)
            {
                self.compare_entries((old, before), (new, after))?;
            } else if order.is_lt()
                && let Some(before) = &before
                && new_complete
            {
                self.set_apart("gone", "old", before.id)?;
            } else if order.is_gt()
                && let Some(after) = &after
                && old_complete
            {
                self.set_apart("come", "new", after.id)?;
            }
            if order.is_le() {
                before = Compared::next(&mut earlier, before.as_ref())?;
            }
            if order.is_ge() {
                after = Compared::next(&mut later, after.as_ref())?;
            }
        }
        Ok(())
    }

    fn compare_entries(
        &mut self,
        (old, before): (i64, &Compared),
        (new, after): (i64, &Compared),
    ) -> rusqlite::Result<()> {
        if before.kind != after.kind {
            // Another thing took the name: this one is gone, perhaps to another place.
            self.set_apart("gone", "old", before.id)?;
            return self.set_apart("come", "new", after.id);
        }
        let fields = after.differences(before);
        if !fields.is_empty() {
            let path = path_of(self.connection, "new", new, &after.name)?;
            let kind = after.kind.clone();
            self.report(&Changed { change: Change::Changed, path, from: None, kind, fields });
        }
        if after.kind != "d" {
            return Ok(());
        }
        match (self.directory("old", old, before)?, self.directory("new", new, after)?) {
            (Some(old), Some(new)) => {
                let mut insert =
                    self.connection.prepare_cached("INSERT INTO pairs (old, new) VALUES (?, ?)")?;
                insert.execute((old, new)).map(|_| ())
            }
            // Neither sweep entered it: it is a mount point, or not theirs to read.
            (None, None) => Ok(()),
            _ => {
                self.counts.unknown += 1;
                Ok(())
            }
        }
    }

    fn directory(&self, schema: &str, parent: i64, entry: &Compared) -> rusqlite::Result<Option<i64>> {
        // The numbers grow on the way down: a damaged index leads nowhere twice.
        let sql =
            format!("SELECT id FROM {schema}.directories WHERE parent = ? AND name = ? AND id > parent");
        let mut statement = self.connection.prepare_cached(&sql)?;
        statement.query_row((parent, crate::schema::Name(&entry.name)), |row| row.get(0)).optional()
    }

    fn is_complete(&self, schema: &str, directory: i64) -> rusqlite::Result<bool> {
        if directory == 0 {
            return Ok(true);
        }
        let sql = format!("SELECT complete FROM {schema}.directories WHERE id = ?");
        self.connection.prepare_cached(&sql)?.query_row([directory], |row| row.get(0))
    }

    /// Keeps an entry that only one of them has.
    fn set_apart(&self, table: &str, schema: &str, id: i64) -> rusqlite::Result<()> {
        self.set_range_apart(table, schema, id, id)
    }

    fn set_range_apart(&self, table: &str, schema: &str, first: i64, last: i64) -> rusqlite::Result<()> {
        // An entry may name two directories, and a directory be named by two entries (see `INDICES`).
        let insert = format!(
            "INSERT OR IGNORE INTO {table} SELECT entries.id, type, entries.device, entries.inode, entries.mtime, directories.id \
             FROM {schema}.entries AS entries LEFT JOIN {schema}.directories AS directories ON entries.type = 'd' \
             AND directories.parent = entries.id >> 32 AND directories.name = entries.name \
             AND directories.id > directories.parent \
             WHERE entries.id BETWEEN ? AND ?"
        );
        self.connection.prepare_cached(&insert)?.execute((first, last))?;
        let queue = format!(
            "INSERT OR IGNORE INTO {table}_queue (directory) SELECT within FROM {table} WHERE id BETWEEN ? AND ? AND within > 0"
        );
        self.connection.prepare_cached(&queue)?.execute((first, last)).map(|_| ())
    }

    /// Adds everything that is below what only one of them has.
    fn expand(&self, table: &str, schema: &str) -> rusqlite::Result<()> {
        let sql = format!("SELECT number, directory FROM {table}_queue WHERE number > ? LIMIT 1");
        let mut next = self.connection.prepare(&sql)?;
        let mut number = 0;
        loop {
            let queued: Option<(i64, i64)> =
                next.query_row([number], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
            let Some((this, directory)) = queued else { break };
            number = this;
            self.set_range_apart(table, schema, first_key(directory), last_key(directory))?;
        }
        Ok(())
    }

    fn entry(&self, schema: &str, id: i64) -> rusqlite::Result<Compared> {
        let columns = COMPARED.join(", ");
        let sql = format!("SELECT id, name, type, {columns} FROM {schema}.entries WHERE id = ?");
        self.connection.prepare_cached(&sql)?.query_row([id], Compared::read)
    }

    fn report_moved(&mut self) -> rusqlite::Result<()> {
        let connection = self.connection;
        let mut moved = connection.prepare("SELECT old, new FROM moved ORDER BY new")?;
        // The directories that they are in are the same one.
        let mut along = connection.prepare(
            "SELECT 1 FROM gone JOIN moved ON moved.old = gone.id JOIN come ON come.id = moved.new \
             WHERE gone.within = ? AND come.within = ?",
        )?;
        let mut rows = moved.query([])?;
        while !self.ended
            && let Some(row) = rows.next()?
        {
            let (old, new): (i64, i64) = (row.get(0)?, row.get(1)?);
            let (before, after) = (self.entry("old", old)?, self.entry("new", new)?);
            let with_directory = before.key() == after.key() && along.exists([old >> 32, new >> 32])?;
            let mut fields = after.differences(&before);
            if !with_directory {
                // Renaming changes that of what is renamed.
                fields.retain(|field| *field != "ctime");
            } else if fields.is_empty() {
                continue;
            }
            let path = path_of(connection, "new", new >> 32, &after.name)?;
            let from = match with_directory {
                true => None,
                false => Some(path_of(connection, "old", old >> 32, &before.name)?),
            };
            let change = if with_directory { Change::Changed } else { Change::Moved };
            self.report(&Changed { change, path, from, kind: after.kind, fields });
        }
        Ok(())
    }

    fn report_rest(&mut self, table: &str, schema: &str, change: Change) -> rusqlite::Result<()> {
        let column = if change == Change::Removed { "old" } else { "new" };
        let sql = format!(
            "SELECT id FROM {table} WHERE NOT EXISTS (SELECT 1 FROM moved WHERE moved.{column} = {table}.id)"
        );
        let mut statement = self.connection.prepare(&sql)?;
        let mut rows = statement.query([])?;
        while !self.ended
            && let Some(row) = rows.next()?
        {
            let id: i64 = row.get(0)?;
            let entry = self.entry(schema, id)?;
            let path = path_of(self.connection, schema, id >> 32, &entry.name)?;
            self.report(&Changed { change, path, from: None, kind: entry.kind, fields: Vec::new() });
        }
        Ok(())
    }
}
