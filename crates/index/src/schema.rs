//! The schema of an index, its version, and how values are stored.
//!
//! The entries of a directory have consecutive keys, `directory << 32 | number`, so that they lie side by side without
//! a second index, and rows are appended to the table as long as the walk goes on.

use nacre_walk::{FileKind, Time};
use rusqlite::types::{ToSqlOutput, ValueRef};

/// The number by which SQLite files of this kind are recognised: "NacW".
pub const APPLICATION_ID: i32 = 0x4e61_6357;

/// The version of the schema.
pub const VERSION: i32 = 1;

/// The number of bits of an entry's key that count the entries of one directory.
pub const NUMBER_BITS: u32 = 32;

/// The maximum number of directories in one index.
pub const DIRECTORIES_MAX: u64 = 1 << 31;

/// The tables, as they are created.
pub const TABLES: &str = "
CREATE TABLE sweep (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE roots (root INTEGER PRIMARY KEY, path);
CREATE TABLE directories (
  id INTEGER PRIMARY KEY, parent INTEGER NOT NULL, name NOT NULL, root INTEGER NOT NULL, depth INTEGER NOT NULL,
  device INTEGER NOT NULL, inode INTEGER NOT NULL, mtime INTEGER NOT NULL, ctime INTEGER NOT NULL,
  complete INTEGER NOT NULL, entries INTEGER NOT NULL, apparent INTEGER NOT NULL, allocated INTEGER NOT NULL
);
CREATE TABLE entries (
  id INTEGER PRIMARY KEY, name NOT NULL, type TEXT NOT NULL, mode INTEGER NOT NULL, links INTEGER NOT NULL,
  uid INTEGER NOT NULL, gid INTEGER NOT NULL, size INTEGER NOT NULL, allocated INTEGER NOT NULL,
  atime INTEGER NOT NULL, mtime INTEGER NOT NULL, ctime INTEGER NOT NULL,
  device INTEGER NOT NULL, inode INTEGER NOT NULL,
  directory INTEGER GENERATED ALWAYS AS (id >> 32) VIRTUAL
);
CREATE TABLE errors (path NOT NULL, operation TEXT NOT NULL, errno INTEGER NOT NULL, message TEXT NOT NULL);
CREATE TABLE mount_points (path NOT NULL);
CREATE TABLE users (uid INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE groups (gid INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE VIEW directory_paths (id, path) AS
  WITH RECURSIVE below (id, path) AS (
    SELECT id, name FROM directories WHERE parent = 0
    UNION ALL
    SELECT directories.id, CASE WHEN path LIKE '%/' THEN path || directories.name
      ELSE path || '/' || directories.name END
    FROM below JOIN directories ON directories.parent = below.id
  )
  SELECT id, path FROM below;
";

/// The table of layouts on Lustre, which is there only if they were asked for.
pub const LAYOUTS: &str = "
CREATE TABLE layouts (
  id INTEGER PRIMARY KEY, stripe_count INTEGER NOT NULL, stripe_size INTEGER NOT NULL, pool TEXT, osts TEXT NOT NULL
);
";

/// The indices, which are created once everything is written. Not unique: a directory that is replaced while its parent is
/// listed may be listed twice, and is entered twice then.
pub const INDICES: &str = "CREATE INDEX directories_by_place ON directories (parent, name);";

/// The insertion of an entry.
pub const INSERT_ENTRY: &str = "INSERT INTO entries (id, name, type, mode, links, uid, gid, size, allocated, atime, mtime, \
                                ctime, device, inode) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)";

/// The insertion of a directory.
pub const INSERT_DIRECTORY: &str = "INSERT INTO directories VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)";

/// The insertion of a layout.
pub const INSERT_LAYOUT: &str = "INSERT INTO layouts VALUES (?,?,?,?,?)";

/// Returns the key of the first entry of a directory.
pub fn first_key(directory: i64) -> i64 {
    directory << NUMBER_BITS
}

/// Returns the key behind which no entry of a directory is.
pub fn last_key(directory: i64) -> i64 {
    (directory << NUMBER_BITS) | ((1 << NUMBER_BITS) - 1)
}

/// Returns the SQL of the sum of a column that is nowhere negative. Where `sum` fails, because no number holds it, as with a few sparse
/// files, it is the largest number.
pub fn sum_of(column: &str) -> String {
    // Of the upper and the lower halves of the bits, neither sum is too large.
    let (high, low) = (format!("sum({column} >> 32)"), format!("sum({column} & 4294967295)"));
    format!("iif({high} + ({low} >> 32) > 2147483647, {max}, ({high} << 32) + {low})", max = i64::MAX)
}

/// A name as it is stored: text where it is UTF-8, else a blob.
#[derive(Debug)]
pub struct Name<'a>(pub &'a [u8]);

impl rusqlite::ToSql for Name<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match std::str::from_utf8(self.0) {
            Ok(_) => ValueRef::Text(self.0),
            Err(_) => ValueRef::Blob(self.0),
        }))
    }
}

/// Returns the bytes of a stored name.
pub fn name_bytes(value: ValueRef<'_>) -> &[u8] {
    match value {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes,
        _ => b"",
    }
}

const SECOND_NS: i64 = 1_000_000_000;

/// Returns a time as nanoseconds since the epoch; times before 1678 and after 2262 become the first and the last one.
pub fn nanoseconds(time: Time) -> i64 {
    let whole = i128::from(time.seconds) * i128::from(SECOND_NS) + i128::from(time.nanoseconds);
    whole.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// Returns the time that is stored as nanoseconds.
pub fn time(nanoseconds: i64) -> Time {
    Time { seconds: nanoseconds.div_euclid(SECOND_NS), nanoseconds: nanoseconds.rem_euclid(SECOND_NS) as u32 }
}

/// Returns the letter of a kind, as text.
pub fn letter(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "f",
        FileKind::Directory => "d",
        FileKind::Link => "l",
        FileKind::Pipe => "p",
        FileKind::Socket => "s",
        FileKind::CharacterDevice => "c",
        FileKind::BlockDevice => "b",
        FileKind::Unknown => "?",
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    #[test]
    fn a_sum_is_exact_or_the_largest_number() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE numbers (number)").unwrap();
        let sql = format!("SELECT {} FROM numbers", sum_of("number"));
        let sum = || connection.query_row(&sql, [], |row| row.get::<_, Option<i64>>(0)).unwrap();
        assert_eq!(sum(), None);
        let mut expected = 0_i64;
        for number in [0, 7, u32::MAX.into(), 1 << 32, i64::MAX - (3 << 32), (2 << 32) - 7, 1, i64::MAX] {
            connection.execute("INSERT INTO numbers VALUES (?)", [number]).unwrap();
            expected = expected.saturating_add(number);
            assert_eq!(sum(), Some(expected), "with {number}");
        }
        assert_eq!(expected, i64::MAX);
    }

    #[test]
    fn times_come_back_as_they_were() {
        for (seconds, nanoseconds_part) in [(0, 0), (-1, 999_999_999), (1_700_000_000, 5), (-2, 500_000_000)]
        {
            let before = Time { seconds, nanoseconds: nanoseconds_part };
            assert_eq!(time(nanoseconds(before)), before);
        }
        assert_eq!(nanoseconds(Time { seconds: i64::MAX, nanoseconds: 0 }), i64::MAX);
    }
}
