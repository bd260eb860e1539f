//! An index that is open to be read, and never changed.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nacre_quantity::Escaped;
use nacre_walk::Time;
use rusqlite::functions::FunctionFlags;
use rusqlite::limits::Limit;
use rusqlite::{Connection, OpenFlags, OptionalExtension};

use crate::columns;
use crate::schema::{APPLICATION_ID, VERSION, name_bytes, time};

/// The reason why an index cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file cannot be opened.
    #[error("cannot open \"{file}\": {1}", file = Escaped::of(.0))]
    File(PathBuf, io::Error),
    /// The file is no index.
    #[error(
        "\"{}\" is not an index of a sweep; \"nacre walk ROOT --index FILE.sqlite\" creates one",
        Escaped::of(.0)
    )]
    Foreign(PathBuf),
    /// The file is a Parquet file.
    #[error(
        "\"{}\" is a Parquet file, which is for other programs: queries, comparisons and --since read an SQLite database; \"nacre \
         walk ROOT --index FILE.sqlite\" creates one",
        Escaped::of(.0)
    )]
    Parquet(PathBuf),
    /// The index is of another version of the schema.
    #[error(
        "\"{file}\" has version {1} of the schema, and this program reads version {VERSION}; sweep again",
        file = Escaped::of(.0)
    )]
    Version(PathBuf, i32),
    /// The sweep did not come to its end.
    #[error(
        "\"{}\" is of a sweep that did not finish, and lacks part of the tree; run the sweep again, or read \
         what there is with --incomplete",
        Escaped::of(.0)
    )]
    Incomplete(PathBuf),
    /// The database cannot be read.
    #[error("cannot read \"{file}\": {1}", file = Escaped::of(.0))]
    Database(PathBuf, rusqlite::Error),
}

/// An index that is open to be read.
#[derive(Debug)]
pub struct Index {
    /// The connection, which cannot change anything.
    pub connection: Connection,
    /// The time at which the sweep began.
    pub began: Time,
    /// True if filters left nothing out.
    pub whole: bool,
    path: PathBuf,
}

impl Index {
    /// Opens an index. One that is not complete is refused unless `incomplete` says otherwise.
    ///
    /// # Errors
    /// [`OpenError`] if it is none, or cannot be read.
    pub fn open(path: &Path, incomplete: bool) -> Result<Index, OpenError> {
        check_header(path)?;
        let database = |error| OpenError::Database(path.to_owned(), error);
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let open = || {
            let connection = Connection::open_with_flags(path, flags)?;
            protect(&connection)?;
            connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
            Ok(connection)
        };
        let connection = open().map_err(database)?;
        open().and_then(|paths| add_path(&connection, paths)).map_err(database)?;
        let text = |key: &str| -> Result<Option<rusqlite::types::Value>, OpenError> {
            connection
                .query_row("SELECT value FROM sweep WHERE key = ?", [key], |row| row.get(0))
                .optional()
                .map_err(database)
        };
        use rusqlite::types::Value;
        let complete = text("state")? == Some(Value::Text("complete".into()));
        if !complete && !incomplete {
            return Err(OpenError::Incomplete(path.to_owned()));
        }
        let began = match text("began")? {
            Some(Value::Integer(began)) => time(began),
            _ => return Err(OpenError::Foreign(path.to_owned())),
        };
        let whole = text("whole")? == Some(Value::Integer(1));
        Ok(Index { connection, began, whole, path: path.to_owned() })
    }

    /// Returns the path under which it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the roots of the sweep, as they were given.
    ///
    /// # Errors
    /// [`OpenError::Database`] if they cannot be read.
    pub fn roots(&self) -> Result<Vec<Vec<u8>>, OpenError> {
        self.read("SELECT path FROM roots ORDER BY root", |row| Ok(name_bytes(row.get_ref(0)?).to_vec()))
    }

    /// Returns all rows of a query.
    fn read<T>(
        &self,
        sql: &str,
        row: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, OpenError> {
        let database = |error| OpenError::Database(self.path.clone(), error);
        let mut statement = self.connection.prepare(sql).map_err(database)?;
        let rows = statement.query_map([], row).map_err(database)?;
        rows.collect::<Result<_, _>>().map_err(database)
    }
}

/// Refuses a file that is no index of this version.
pub(crate) fn check_header(path: &Path) -> Result<(), OpenError> {
    let mut header = Vec::new();
    File::open(path)
        .and_then(|file| file.take(100).read_to_end(&mut header))
        .map_err(|error| OpenError::File(path.to_owned(), error))?;
    if header.starts_with(&columns::HEAD[..columns::MAGIC_BYTES]) {
        return Err(OpenError::Parquet(path.to_owned()));
    }
    let number =
        |at: usize| header.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(i32::from_be_bytes);
    if !header.starts_with(b"SQLite format 3\0") || number(68) != Some(APPLICATION_ID) {
        return Err(OpenError::Foreign(path.to_owned()));
    }
    match number(60) {
        Some(VERSION) => Ok(()),
        version => Err(OpenError::Version(path.to_owned(), version.unwrap_or(0))),
    }
}

/// Has SQLite trust nothing that a file says of itself, and change nothing.
pub(crate) fn protect(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "temp_store", "FILE")?;
    connection.pragma_update(None, "cache_size", -16_384)?;
    connection.pragma_update(None, "query_only", true)
}

/// Adds the function `path(directory, name)`, which asks a connection of its own.
fn add_path(connection: &Connection, paths: Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DIRECTONLY;
    let paths = Mutex::new(paths);
    connection.create_scalar_function("path", 2, flags, move |context| {
        let directory: i64 = context.get(0)?;
        let paths = paths.lock().unwrap_or_else(PoisonError::into_inner);
        let path = path_of(&paths, "main", directory, name_bytes(context.get_raw(1)))?;
        Ok(match String::from_utf8(path) {
            Ok(text) => rusqlite::types::Value::Text(text),
            Err(error) => rusqlite::types::Value::Blob(error.into_bytes()),
        })
    })
}

/// The maximum number of levels of a path.
const LEVELS_MAX: usize = 10_000_000;

/// Returns the path of a name in a directory of the database `schema`.
pub(crate) fn path_of(
    connection: &Connection,
    schema: &str,
    directory: i64,
    name: &[u8],
) -> rusqlite::Result<Vec<u8>> {
    let sql = format!("SELECT parent, name FROM {schema}.directories WHERE id = ?");
    let mut statement = connection.prepare_cached(&sql)?;
    let mut names = vec![name.to_vec()];
    let mut at = directory;
    while at != 0 && names.len() < LEVELS_MAX {
        let above = statement
            .query_row([at], |row| Ok((row.get::<_, i64>(0)?, name_bytes(row.get_ref(1)?).to_vec())))
            .optional()?;
        // A directory that was not left belongs to an interrupted sweep.
        let Some((parent, name)) = above else {
            names.push(b"\xe2\x80\xa6".to_vec());
            break;
        };
        // Those that a directory is in have smaller numbers, but for damaged files.
        if parent >= at {
            break;
        }
        names.push(name);
        at = parent;
    }
    let mut path = Vec::new();
    for name in names.iter().rev() {
        if !path.is_empty() && path.last() != Some(&b'/') {
            path.push(b'/');
        }
        path.extend_from_slice(name);
    }
    Ok(path)
}

/// Returns the URI by which SQLite attaches a file to be read only.
pub(crate) fn read_only_uri(path: &Path) -> String {
    let mut uri = String::from("file:");
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
                uri.push(char::from(*byte))
            }
            byte => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri + "?mode=ro"
}
