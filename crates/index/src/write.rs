//! The one thread that writes an index: a database, in large transactions, or a Parquet file, in row groups.
//!
//! - The file is made beside its name, as `NAME.partial`, and takes its name when it is complete and synced. What
//!   is there before stays until then. A sweep that ends early leaves the partial file, which says so itself.
//! - The database has no journal: nobody reads the file before it is complete, and a partial one is never continued.
//! - Neither the name nor the partial one is ever taken from a file that is not an index of the same format.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use nacre_quantity::Escaped;
use nacre_walk::{Operation, Time, WalkError};
use parquet::errors::ParquetError;
use rusqlite::{Connection, Statement};

use crate::columns::{self, Columns};
use crate::linked;
use crate::record::Batch;
use crate::schema::{
    APPLICATION_ID, INDICES, INSERT_DIRECTORY, INSERT_ENTRY, INSERT_LAYOUT, LAYOUTS, Name, TABLES, VERSION,
    letter, nanoseconds,
};

/// The number of rows that are sorted and written at once.
const SORTED_ROWS: usize = 1 << 15;

/// The number of rows of a transaction.
const TRANSACTION_ROWS: usize = 1 << 18;

/// The size of the cache of pages, in KiB.
const CACHE_KIB: i32 = 8 << 10;

/// The format of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// An SQLite database, which can be queried and compared, and from which a later sweep can take what did not change.
    Sqlite,
    /// A Parquet file, for other programs.
    Parquet,
}

impl Format {
    /// Returns the format that the extension of a name stands for: a name without one is that of a database. `None` for any
    /// other extension.
    pub fn of(path: &Path) -> Option<Format> {
        match path.extension() {
            None => Some(Format::Sqlite),
            Some(extension) if extension == "sqlite" => Some(Format::Sqlite),
            Some(extension) if extension == "parquet" => Some(Format::Parquet),
            Some(_) => None,
        }
    }
}

/// The reason why an index cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The name has an extension that stands for no format.
    #[error(
        "cannot write \"{}\": an index is an SQLite database, with a name that ends in .sqlite, or a Parquet file, with one \
         that ends in .parquet",
        Escaped::of(.0)
    )]
    Format(PathBuf),
    /// A Parquet file was asked for of a sweep that reuses an earlier one.
    #[error(
        "cannot write \"{}\" with --since, which needs an SQLite database on both sides; give a name that ends in .sqlite, or \
         sweep without --since",
        Escaped::of(.0)
    )]
    Since(PathBuf),
    /// There is something else under the name.
    #[error(
        "\"{}\" is not an index of a sweep, and is not replaced; give another name, or remove it",
        Escaped::of(.0)
    )]
    Foreign(PathBuf),
    /// Another process is writing the same index.
    #[error("another sweep is writing \"{}\"", Escaped::of(.0))]
    Busy(PathBuf),
    /// The file cannot be created, written or renamed.
    #[error("cannot write the index \"{file}\": {1}", file = Escaped::of(.0))]
    File(PathBuf, io::Error),
    /// The database refused something.
    #[error("cannot write the index \"{file}\": {1}", file = Escaped::of(.0))]
    Database(PathBuf, rusqlite::Error),
    /// The Parquet file cannot be written.
    #[error("cannot write the index \"{file}\": {1}", file = Escaped::of(.0))]
    Columns(PathBuf, ParquetError),
    /// The tree has more directories than an index can hold.
    #[error("cannot write the index \"{}\": it holds at most 2^31 directories", Escaped::of(.0))]
    Full(PathBuf),
}

/// The facts about a sweep that are kept with it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The roots, as they were given.
    pub roots: Vec<Vec<u8>>,
    /// The flags, as names and values.
    pub flags: Vec<(String, String)>,
    /// True if filters left nothing out.
    pub whole: bool,
    /// The time at which the sweep began.
    pub began: Time,
    /// The index from which unchanged directories were taken, if any.
    pub since: Option<Vec<u8>>,
    /// True if the layouts of files on Lustre are read, and kept.
    pub layouts: bool,
}

/// The way in which a sweep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Everything was visited, as far as possible.
    Complete,
    /// The sweep was interrupted.
    Interrupted,
}

/// The counters and flags that threads and writer share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// The number of directories so far.
    pub directories: AtomicU64,
    /// The number of roots that are entries so far.
    pub roots: AtomicU64,
    /// True if nothing can be written any more.
    pub failed: AtomicBool,
    /// True if there were too many directories.
    pub full: AtomicBool,
}

/// An index that is being written.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    partial: PathBuf,
    format: Format,
    shared: std::sync::Arc<Shared>,
    /// True if entries may be taken from an earlier index.
    since: bool,
    sender: SyncSender<Batch>,
    thread: JoinHandle<Result<Written, WriteError>>,
    /// Holds the lock that keeps others from writing the same file.
    lock: File,
}

/// A sweep that is being written.
enum Begun {
    Database(Connection),
    Columns(Box<Columns>),
}

/// A sweep that is written except for its end.
#[derive(Debug)]
enum Written {
    Database(Box<Database>),
    Columns(Box<Columns>),
}

/// The database with what is written at its end.
#[derive(Debug)]
struct Database {
    connection: Connection,
    users: BTreeSet<u32>,
    groups: BTreeSet<u32>,
}

impl Writer {
    /// Creates the file beside `path`, in the format that its extension stands for ([`Format::of`]), and begins to wait for
    /// batches. At most `batches` wait to be written.
    ///
    /// # Errors
    /// [`WriteError`] if the extension stands for no format, something else has the name, or the file cannot be created.
    pub fn create(path: &Path, settings: &Settings, batches: usize) -> Result<Writer, WriteError> {
        let format = Format::of(path).ok_or_else(|| WriteError::Format(path.to_owned()))?;
        let since = settings.since.is_some();
        if since && format == Format::Parquet {
            return Err(WriteError::Since(path.to_owned()));
        }
        refuse_foreign(path, format)?;
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let lock = take_over(&partial, format)?;
        let begun = match format {
            Format::Sqlite => Begun::Database(
                begin(&partial, settings).map_err(|error| WriteError::Database(path.to_owned(), error))?,
            ),
            Format::Parquet => {
                let file = lock.try_clone().map_err(|error| WriteError::File(path.to_owned(), error))?;
                Begun::Columns(Box::new(
                    Columns::begin(file, settings).map_err(|error| columns_error(path, error))?,
                ))
            }
        };
        let (sender, receiver) = sync_channel(batches);
        let shared = std::sync::Arc::<Shared>::default();
        let (failed, name) = (std::sync::Arc::clone(&shared), path.to_owned());
        let layouts = settings.layouts;
        let thread = std::thread::Builder::new().name("index".into()).spawn(move || {
            let written = match begun {
                Begun::Database(connection) => write(connection, &receiver, layouts)
                    .map(|database| Written::Database(Box::new(database)))
                    .map_err(|error| WriteError::Database(name, error)),
                Begun::Columns(columns) => write_columns(columns, &receiver)
                    .map(Written::Columns)
                    .map_err(|error| columns_error(&name, error)),
            };
            if written.is_err() {
                failed.failed.store(true, Ordering::Relaxed);
            }
            written
        });
        let thread = thread.map_err(|error| WriteError::File(path.to_owned(), error))?;
        Ok(Writer { path: path.to_owned(), partial, format, shared, since, sender, thread, lock })
    }

    /// Returns the format.
    pub fn format(&self) -> Format {
        self.format
    }

    pub(crate) fn shared(&self) -> &std::sync::Arc<Shared> {
        &self.shared
    }

    pub(crate) fn sender(&self) -> SyncSender<Batch> {
        self.sender.clone()
    }

    /// Returns whether writing has failed; [`Writer::finish`] gives the reason.
    pub fn has_failed(&self) -> bool {
        self.shared.failed.load(Ordering::Relaxed)
    }

    /// Returns the path of the file until it is complete.
    pub fn partial(&self) -> &Path {
        &self.partial
    }

    /// Writes what is left, and gives a complete index its name. All recorders must be gone by now.
    ///
    /// # Errors
    /// [`WriteError`] if anything could not be written. The file keeps its partial name then.
    pub fn finish(self, ending: Ending, ended: Time) -> Result<(), WriteError> {
        let Writer { path, partial, format, shared, since, sender, thread, lock } = self;
        drop(sender);
        let joined = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let written = joined?;
        if shared.full.load(Ordering::Relaxed) {
            return Err(WriteError::Full(path.clone()));
        }
        match written {
            Written::Database(mut written) => {
                let database = |error| WriteError::Database(path.clone(), error);
                if since && ending == Ending::Complete {
                    let Database { connection, users, groups } = &mut *written;
                    linked::ask_again(connection, users, groups).map_err(database)?;
                }
                close(*written, ending, ended).map_err(database)?;
            }
            Written::Columns(columns) => {
                columns.close(ending, ended).map_err(|error| columns_error(&path, error))?;
            }
        }
        let file = |error| WriteError::File(path.clone(), error);
        lock.sync_all().map_err(file)?;
        if ending == Ending::Interrupted {
            return Ok(());
        }
        // Somebody may have put another file there while the walk went on.
        refuse_foreign(&path, format)?;
        std::fs::rename(&partial, &path).map_err(file)?;
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(file)
    }
}

/// Returns the error of a Parquet file that cannot be written: the system's, if it has one.
fn columns_error(path: &Path, error: ParquetError) -> WriteError {
    match error {
        ParquetError::External(cause) => match cause.downcast::<io::Error>() {
            Ok(cause) => WriteError::File(path.to_owned(), *cause),
            Err(cause) => WriteError::Columns(path.to_owned(), ParquetError::External(cause)),
        },
        error => WriteError::Columns(path.to_owned(), error),
    }
}

/// Refuses a path under which there is anything but an index of this format or an empty file.
fn refuse_foreign(path: &Path, format: Format) -> Result<(), WriteError> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(WriteError::File(path.to_owned(), error)),
        Ok(about) if about.is_file() => {
            let ours = File::open(path)
                .and_then(|file| is_ours(&file, format))
                .map_err(|error| WriteError::File(path.to_owned(), error))?;
            if ours { Ok(()) } else { Err(WriteError::Foreign(path.to_owned())) }
        }
        Ok(_) => Err(WriteError::Foreign(path.to_owned())),
    }
}

/// Returns whether a file is an index of this format, or empty.
fn is_ours(mut file: &File, format: Format) -> io::Result<bool> {
    let mut header = Vec::new();
    file.by_ref().take(100).read_to_end(&mut header)?;
    let ours = match format {
        Format::Sqlite => {
            header.starts_with(b"SQLite format 3\0")
                && header.get(68..72) == Some(&APPLICATION_ID.to_be_bytes())
        }
        Format::Parquet => header.starts_with(columns::HEAD),
    };
    Ok(ours || header.is_empty())
}

/// Creates the partial file empty, in place of one that an earlier sweep left, and locks it.
fn take_over(partial: &Path, format: Format) -> Result<File, WriteError> {
    loop {
        refuse_foreign(partial, format)?;
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(partial);
        let file = file.map_err(|error| WriteError::File(partial.to_owned(), error))?;
        if let Some(file) = take_over_opened(partial, file, format)? {
            return Ok(file);
        }
    }
}

/// Locks and empties the partial file that was opened; `None` if it has that name no more, since the sweep that wrote it
/// was done before it could be locked.
fn take_over_opened(partial: &Path, file: File, format: Format) -> Result<Option<File>, WriteError> {
    let cannot = |error| WriteError::File(partial.to_owned(), error);
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(WriteError::Busy(partial.to_owned())),
        Err(TryLockError::Error(error)) => return Err(cannot(error)),
    }
    let opened = file.metadata().map_err(cannot)?;
    match partial.symlink_metadata() {
        Ok(named) if (named.dev(), named.ino()) == (opened.dev(), opened.ino()) => {}
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(cannot(error)),
    }
    if !is_ours(&file, format).map_err(cannot)? {
        return Err(WriteError::Foreign(partial.to_owned()));
    }
    file.set_len(0).map_err(cannot)?;
    Ok(Some(file))
}

fn begin(partial: &Path, settings: &Settings) -> rusqlite::Result<Connection> {
    let connection = Connection::open(partial)?;
    connection.pragma_update(None, "page_size", 16_384)?;
    connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    connection.pragma_update(None, "user_version", VERSION)?;
    connection.pragma_update_and_check(None, "journal_mode", "OFF", |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "OFF")?;
    connection.pragma_update_and_check(None, "locking_mode", "EXCLUSIVE", |_| Ok(()))?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    connection.execute_batch("BEGIN")?;
    connection.execute_batch(TABLES)?;
    if settings.layouts {
        connection.execute_batch(LAYOUTS)?;
    }
    let put = |key: &str, value: &dyn rusqlite::ToSql| {
        connection.execute("INSERT INTO sweep VALUES (?, ?)", (key, value)).map(|_| ())
    };
    put("state", &"incomplete")?;
    put("program", &concat!("nacre ", env!("CARGO_PKG_VERSION")))?;
    put("began", &nanoseconds(settings.began))?;
    put("whole", &settings.whole)?;
    if let Some(since) = &settings.since {
        put("since", &Name(since))?;
    }
    for (flag, value) in &settings.flags {
        put(&format!("flag {flag}"), value)?;
    }
    for (number, root) in settings.roots.iter().enumerate() {
        connection.execute("INSERT INTO roots VALUES (?, ?)", (number as i64, Name(root)))?;
    }
    connection.execute_batch("COMMIT")?;
    Ok(connection)
}

/// Writes batches until all senders are gone.
fn write(connection: Connection, receiver: &Receiver<Batch>, layouts: bool) -> rusqlite::Result<Database> {
    let (mut users, mut groups) = (BTreeSet::new(), BTreeSet::new());
    {
        let mut entry = connection.prepare(INSERT_ENTRY)?;
        let mut layout = layouts.then(|| connection.prepare(INSERT_LAYOUT)).transpose()?;
        let mut directory = connection.prepare(INSERT_DIRECTORY)?;
        let mut error = connection.prepare("INSERT INTO errors VALUES (?, ?, ?, ?)")?;
        let mut mount_point = connection.prepare("INSERT INTO mount_points VALUES (?)")?;
        let (mut batches, mut rows, mut since_commit) = (Vec::new(), 0, 0);
        connection.execute_batch("BEGIN")?;
        loop {
            let received = receiver.recv();
            let over = received.is_err();
            if let Ok(batch) = received {
                rows += batch.entries.len();
                batches.push(batch);
            }
            if over || rows >= SORTED_ROWS || batches.len() >= SORTED_ROWS {
                insert_entries(&batches, &mut entry, layout.as_mut())?;
                for batch in &batches {
                    users.extend(&batch.users);
                    groups.extend(&batch.groups);
                    insert_directories(batch, &mut directory)?;
                    for failed in &batch.errors {
                        insert_error(failed, &mut error)?;
                    }
                    for path in &batch.mount_points {
                        mount_point.execute([Name(path)])?;
                    }
                }
                since_commit += rows;
                rows = 0;
                batches.clear();
            }
            if over || since_commit >= TRANSACTION_ROWS {
                connection.execute_batch("COMMIT")?;
                since_commit = 0;
                if over {
                    break;
                }
                connection.execute_batch("BEGIN")?;
            }
        }
    }
    Ok(Database { connection, users, groups })
}

/// Writes batches to a Parquet file until all senders are gone.
fn write_columns(
    mut columns: Box<Columns>,
    receiver: &Receiver<Batch>,
) -> Result<Box<Columns>, ParquetError> {
    while let Ok(batch) = receiver.recv() {
        columns.add(batch)?;
    }
    Ok(columns)
}

/// Inserts the entries of some batches in the order of their keys, so that the table grows at its end.
fn insert_entries(
    batches: &[Batch],
    statement: &mut Statement<'_>,
    mut layouts: Option<&mut Statement<'_>>,
) -> rusqlite::Result<()> {
    let mut order: Vec<(u64, u32, u32)> = Vec::new();
    for (number, batch) in batches.iter().enumerate() {
        order.extend(
            batch.entries.iter().enumerate().map(|(row, entry)| (entry.id, number as u32, row as u32)),
        );
    }
    order.sort_unstable();
    for (id, number, row) in order {
        let batch = &batches[number as usize];
        let entry = &batch.entries[row as usize];
        statement.raw_bind_parameter(1, id as i64)?;
        statement.raw_bind_parameter(2, Name(batch.name(entry)))?;
        statement.raw_bind_parameter(3, letter(entry.kind))?;
        statement.raw_bind_parameter(4, entry.mode)?;
        statement.raw_bind_parameter(5, entry.links)?;
        statement.raw_bind_parameter(6, entry.uid)?;
        statement.raw_bind_parameter(7, entry.gid)?;
        statement.raw_bind_parameter(8, entry.size)?;
        statement.raw_bind_parameter(9, entry.allocated)?;
        statement.raw_bind_parameter(10, entry.atime)?;
        statement.raw_bind_parameter(11, entry.mtime)?;
        statement.raw_bind_parameter(12, entry.ctime)?;
        statement.raw_bind_parameter(13, entry.device)?;
        statement.raw_bind_parameter(14, entry.inode)?;
        statement.raw_execute()?;
        if let (Some(layouts), Some(layout)) = (&mut layouts, &entry.layout) {
            let osts: Vec<String> = layout.osts.iter().map(u32::to_string).collect();
            let size = i64::try_from(layout.stripe_size).unwrap_or(i64::MAX);
            let osts = format!("[{}]", osts.join(","));
            layouts.execute((id as i64, layout.stripe_count, size, layout.pool.as_deref(), osts))?;
        }
    }
    Ok(())
}

fn insert_directories(batch: &Batch, statement: &mut Statement<'_>) -> rusqlite::Result<()> {
    for row in &batch.directories {
        statement.raw_bind_parameter(1, row.id as i64)?;
        statement.raw_bind_parameter(2, row.parent as i64)?;
        statement.raw_bind_parameter(3, Name(&row.name))?;
        statement.raw_bind_parameter(4, row.root)?;
        statement.raw_bind_parameter(5, row.depth)?;
        statement.raw_bind_parameter(6, row.device)?;
        statement.raw_bind_parameter(7, row.inode)?;
        statement.raw_bind_parameter(8, row.mtime)?;
        statement.raw_bind_parameter(9, row.ctime)?;
        statement.raw_bind_parameter(10, row.complete)?;
        statement.raw_bind_parameter(11, row.entries)?;
        statement.raw_bind_parameter(12, row.apparent)?;
        statement.raw_bind_parameter(13, row.allocated)?;
        statement.raw_execute()?;
    }
    Ok(())
}

fn insert_error(error: &WalkError, statement: &mut Statement<'_>) -> rusqlite::Result<()> {
    let operation = match error.operation {
        Operation::Open => "open",
        Operation::List => "list",
        Operation::Stat => "stat",
        Operation::Loop => "loop",
        Operation::Layout => "layout",
    };
    let message = error.to_string();
    statement.execute((Name(&error.path), operation, error.errno, message)).map(|_| ())
}

/// Writes what is known at the end only, and closes the database.
fn close(database: Database, ending: Ending, ended: Time) -> rusqlite::Result<()> {
    let Database { connection, users, groups } = database;
    connection.execute_batch("BEGIN")?;
    {
        let mut insert = connection.prepare("INSERT INTO users VALUES (?, ?)")?;
        for uid in users {
            let user = nix::unistd::User::from_uid(uid.into()).ok().flatten();
            if let Some(user) = user {
                insert.execute((uid, user.name))?;
            }
        }
        let mut insert = connection.prepare("INSERT INTO groups VALUES (?, ?)")?;
        for gid in groups {
            let group = nix::unistd::Group::from_gid(gid.into()).ok().flatten();
            if let Some(group) = group {
                insert.execute((gid, group.name))?;
            }
        }
    }
    connection.execute_batch(INDICES)?;
    let state = match ending {
        Ending::Complete => "complete",
        Ending::Interrupted => "interrupted",
    };
    connection.execute("INSERT INTO sweep VALUES ('ended', ?)", [nanoseconds(ended)])?;
    connection.execute("UPDATE sweep SET value = ? WHERE key = 'state'", [state])?;
    connection.execute_batch("COMMIT")?;
    connection.close().map_err(|(_, error)| error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_that_was_finished_before_it_was_locked_is_not_emptied() {
        let folder = tempfile::tempdir().unwrap();
        let (name, partial) = (folder.path().join("index"), folder.path().join("index.partial"));
        let header = [&b"SQLite format 3\0"[..], &[0; 52], &APPLICATION_ID.to_be_bytes(), &[0; 28]].concat();
        std::fs::write(&partial, &header).unwrap();
        let open = || OpenOptions::new().read(true).write(true).open(&partial).unwrap();
        let opened = open();
        std::fs::rename(&partial, &name).unwrap();
        let take_over_opened = |partial, opened| take_over_opened(partial, opened, Format::Sqlite);
        assert!(take_over_opened(&partial, opened).unwrap().is_none());
        // Another sweep has begun since.
        std::fs::rename(&name, &partial).unwrap();
        let opened = open();
        std::fs::rename(&partial, &name).unwrap();
        std::fs::write(&partial, &header).unwrap();
        assert!(take_over_opened(&partial, opened).unwrap().is_none());
        assert_eq!(std::fs::read(&name).unwrap(), header);
        assert!(take_over_opened(&partial, open()).unwrap().is_some());
        assert_eq!(std::fs::metadata(&partial).unwrap().len(), 0);
        assert_eq!(std::fs::read(&name).unwrap(), header);
    }
}
