//! The contents of one directory of an index, with the sizes of everything below its directories.

use rusqlite::OptionalExtension;
use rusqlite::types::ValueRef;

use crate::open::Index;
use crate::schema::{first_key, last_key, name_bytes, sum_of};

/// The number that stands for the directory in which the roots of a sweep are.
pub const ROOTS: i64 = 0;

/// The order of entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Most bytes on the device first
    #[default]
    Allocated,
    /// Most apparent bytes first
    Apparent,
    /// By name, bytewise
    Name,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name; of a root, its path as it was given.
    pub name: Vec<u8>,
    /// The letter of the type, as in `find`.
    pub kind: String,
    /// The apparent bytes: of a directory those of everything below it, each name counted.
    pub apparent: u64,
    /// The same, on the device.
    pub allocated: u64,
    /// The directory that it is, if the sweep entered it.
    pub directory: Option<Directory>,
}

/// A directory that the sweep entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Directory {
    /// The key, for [`Contents::of`].
    pub id: i64,
    /// The number of its own entries.
    pub entries: u64,
    /// False if not everything in it could be read.
    pub complete: bool,
}

/// The contents of one directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The first of its entries, in the order that was asked for.
    pub entries: Vec<Entry>,
    /// The number of all entries.
    pub count: u64,
    /// The apparent bytes of all of them.
    pub apparent: u64,
    /// The bytes on the device of all of them.
    pub allocated: u64,
}

/// The entries of a directory, and of each the key of the directory that it is. One that was replaced while the sweep
/// listed its parent may have been entered twice; the later one is shown. The directories are looked for once, and not for each
/// entry: what a sweep leaves that was killed has no index of their places.
const ENTRIES: &str = "SELECT entries.name AS name, type, coalesce(directories.apparent, size) AS apparent, \
     coalesce(directories.allocated, entries.allocated) AS allocated, directories.id AS directory, \
     directories.entries AS entries, directories.complete AS complete \
     FROM entries LEFT JOIN (SELECT name AS listed, max(id) AS place FROM directories WHERE parent = ?1 GROUP BY name) \
       ON type = 'd' AND listed = entries.name \
     LEFT JOIN directories ON directories.id = place AND place > ?1 WHERE entries.id BETWEEN ?2 AND ?3";

impl Contents {
    /// Returns the contents of a directory, or the roots of the sweep for [`ROOTS`]: at most `entries_max` entries.
    ///
    /// # Errors
    /// The database's error.
    pub fn of(index: &Index, directory: i64, order: Order, entries_max: usize) -> rusqlite::Result<Contents> {
        let keys = (directory, first_key(directory), last_key(directory));
        let mut contents = Contents::default();
        let (apparent, allocated) = (sum_of("apparent"), sum_of("allocated"));
        let totals = format!("SELECT count(*), {apparent}, {allocated} FROM ({ENTRIES})");
        index.connection.prepare_cached(&totals)?.query_row(keys, |row| {
            contents.count = number(row.get_ref(0)?);
            contents.apparent = number(row.get_ref(1)?);
            contents.allocated = number(row.get_ref(2)?);
            Ok(())
        })?;
        let order = match order {
            Order::Allocated => "allocated DESC, apparent DESC, name",
            Order::Apparent => "apparent DESC, allocated DESC, name",
            // Of both tables, only the entries' names are shown.
            Order::Name => "CAST(entries.name AS BLOB)",
        };
        let limit = i64::try_from(entries_max).unwrap_or(i64::MAX);
        let sql = format!("{ENTRIES} ORDER BY {order} LIMIT {limit}");
        let mut statement = index.connection.prepare_cached(&sql)?;
        let mut rows = statement.query(keys)?;
        while let Some(row) = rows.next()? {
            let directory = match row.get(4)? {
                Some(id) => {
                    let complete = number(row.get_ref(6)?) != 0;
                    Some(Directory { id, entries: number(row.get_ref(5)?), complete })
                }
                None => None,
            };
            contents.entries.push(Entry {
                name: name_bytes(row.get_ref(0)?).to_vec(),
                kind: row.get(1)?,
                apparent: number(row.get_ref(2)?),
                allocated: number(row.get_ref(3)?),
                directory,
            });
        }
        Ok(contents)
    }

    /// Returns the key of the directory in which one is; of a root, [`ROOTS`]. None if there is no such directory.
    ///
    /// # Errors
    /// The database's error.
    pub fn parent(index: &Index, directory: i64) -> rusqlite::Result<Option<i64>> {
        let sql = "SELECT parent FROM directories WHERE id = ?";
        index.connection.prepare_cached(sql)?.query_row([directory], |row| row.get(0)).optional()
    }
}

/// Returns a number that is not negative, but for damaged files.
fn number(value: ValueRef<'_>) -> u64 {
    match value {
        ValueRef::Integer(number) => u64::try_from(number).unwrap_or(0),
        _ => 0,
    }
}
