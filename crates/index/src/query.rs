//! The common questions that an index answers, as SQL.

use rusqlite::functions::FunctionFlags;
use rusqlite::types::{Value, ValueRef};

use crate::open::Index;
use crate::schema::{name_bytes, nanoseconds, sum_of};

/// The quantity by which entries are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Owners
    Owner,
    /// Groups
    Group,
    /// Types of entries
    Type,
    /// The part of a file's name behind its last dot
    Extension,
    /// Apparent sizes of files, by powers of two
    Size,
    /// Days since the last modification, by powers of two
    Age,
    /// Days since the last access, by powers of two
    Access,
    /// Days since the last change of the inode, by powers of two
    Change,
    /// Levels below the root
    Depth,
    /// Directories, with everything below them
    Directory,
}

impl By {
    /// All quantities.
    pub const ALL: [By; 10] = [
        By::Owner,
        By::Group,
        By::Type,
        By::Extension,
        By::Size,
        By::Age,
        By::Access,
        By::Change,
        By::Depth,
        By::Directory,
    ];

    /// Returns its name, which is the name of the first column too.
    pub fn name(self) -> &'static str {
        match self {
            By::Owner => "owner",
            By::Group => "group",
            By::Type => "type",
            By::Extension => "extension",
            By::Size => "size",
            By::Age => "age",
            By::Access => "access",
            By::Change => "change",
            By::Depth => "depth",
            By::Directory => "directory",
        }
    }

    /// Returns its one-line description for a help text.
    pub fn description(self) -> &'static str {
        match self {
            By::Owner => "Owners",
            By::Group => "Groups",
            By::Type => "Types of entries",
            By::Extension => "The part of a file's name behind its last dot",
            By::Size => "Apparent sizes of files, by powers of two",
            By::Age => "Days since the last modification, by powers of two",
            By::Access => "Days since the last access, by powers of two",
            By::Change => "Days since the last change of the inode, by powers of two",
            By::Depth => "Levels below the root",
            By::Directory => "Directories, with everything below them",
        }
    }

    /// Returns whether its rows have an order of their own; others come with the largest first.
    fn is_scale(self) -> bool {
        matches!(self, By::Size | By::Age | By::Access | By::Change | By::Depth)
    }
}

/// A condition on entries: SQL, and the values of its parameters.
#[derive(Clone, Debug, Default)]
pub struct Condition {
    parts: Vec<String>,
    values: Vec<Value>,
}

impl Condition {
    /// Adds a condition with one parameter.
    pub fn and(&mut self, sql: &str, value: impl Into<Value>) {
        self.parts.push(format!("({sql})"));
        self.values.push(value.into());
    }

    /// Adds a condition as the user wrote it.
    pub fn and_sql(&mut self, sql: &str) {
        // On lines of its own, so that a comment ends.
        self.parts.push(format!("(\n{sql}\n)"));
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    fn sql(&self) -> String {
        if self.parts.is_empty() { "1".into() } else { self.parts.join(" AND ") }
    }
}

/// A query, ready to be run.
#[derive(Clone, Debug)]
pub struct Query {
    sql: String,
    values: Vec<Value>,
}

impl Query {
    /// Returns the query of one statement that a user wrote.
    pub fn plain(sql: &str) -> Query {
        Query { sql: sql.to_owned(), values: Vec::new() }
    }

    /// Returns the sums of entries for each value of a quantity. The bytes of a file with several names are counted
    /// once. Of directories there are those at most `levels` below their root.
    pub fn sums(by: By, condition: &Condition, levels: Option<u32>, rows_max: u64) -> Query {
        let limit = i64::try_from(rows_max).unwrap_or(i64::MAX);
        if by == By::Directory {
            let sql = format!(
                "SELECT path(parent, name) AS directory, entries, apparent, allocated FROM directories \
                 WHERE depth <= {} ORDER BY allocated DESC, apparent DESC, id LIMIT {limit}",
                levels.unwrap_or(u32::MAX)
            );
            return Query::plain(&sql);
        }
        let (key, group, only) = match by {
            By::Owner => {
                ("coalesce((SELECT users.name FROM users WHERE users.uid = counted.uid), uid)", "uid", "")
            }
            By::Group => {
                ("coalesce((SELECT groups.name FROM groups WHERE groups.gid = counted.gid), gid)", "gid", "")
            }
            By::Type => ("type", "type", ""),
            By::Extension => ("extension(name)", "extension(name)", " AND type = 'f'"),
            By::Size => ("range(bits(size))", "bits(size)", " AND type = 'f'"),
            By::Age => ("range(bits(days(mtime)))", "bits(days(mtime))", ""),
            By::Access => ("range(bits(days(atime)))", "bits(days(atime))", ""),
            By::Change => ("range(bits(days(ctime)))", "bits(days(ctime))", ""),
            By::Depth | By::Directory => (
                "level",
                "coalesce((SELECT directories.depth + 1 FROM directories WHERE directories.id = counted.directory), 0)",
                "",
            ),
        };
        let order = if by.is_scale() { "1_key" } else { "allocated DESC, apparent DESC, 1_key" };
        let key = key.replace("level", group);
        let name = by.name();
        let condition_sql = condition.sql();
        let (apparent, allocated) = (sum_of("bytes"), sum_of("device_bytes"));
        let sql = format!(
            "WITH chosen AS (SELECT * FROM entries WHERE {condition_sql}{only}), \
             counted AS ( \
               SELECT *, size AS bytes, allocated AS device_bytes FROM chosen WHERE links = 1 OR type = 'd' \
               UNION ALL \
               SELECT *, iif(row_number() OVER one = 1, size, 0), iif(row_number() OVER one = 1, allocated, 0) \
               FROM chosen WHERE links <> 1 AND type <> 'd' WINDOW one AS (PARTITION BY device, inode ORDER BY id)) \
             SELECT \"{name}\", entries, apparent, allocated FROM ( \
               SELECT {key} AS \"{name}\", {group} AS \"1_key\", count(*) AS entries, {apparent} AS apparent, \
                 {allocated} AS allocated FROM counted GROUP BY {group}) \
             ORDER BY {} LIMIT {limit}",
            order.replace("1_key", "\"1_key\"")
        );
        Query { sql, values: condition.values.clone() }
    }

    /// Returns the entries themselves: the largest files, or all in the order in which they are kept.
    pub fn entries(condition: &Condition, largest: Option<u64>) -> Query {
        let columns =
            "path(directory, name) AS path, type, size, allocated, uid, gid, mtime, ctime, device, inode";
        let condition_sql = condition.sql();
        let sql = match largest {
            Some(number) => {
                let number = i64::try_from(number).unwrap_or(i64::MAX);
                // Paths are made for those alone that are printed.
                format!(
                    "SELECT {columns} FROM (SELECT * FROM entries WHERE {condition_sql} AND type = 'f' \
                     ORDER BY size DESC, id LIMIT {number})"
                )
            }
            None => format!("SELECT {columns} FROM entries WHERE {condition_sql}"),
        };
        Query { sql, values: condition.values.clone() }
    }

    /// Runs it. `row` is given the names of the columns and the values of each row, and ends the query by returning
    /// false.
    ///
    /// # Errors
    /// The database's error; [`rusqlite::Error::InvalidQuery`] if the query would change something.
    pub fn run(
        &self,
        index: &Index,
        row: &mut dyn FnMut(&[String], &[ValueRef<'_>]) -> bool,
    ) -> rusqlite::Result<()> {
        add_functions(index)?;
        let mut statement = index.connection.prepare(&self.sql)?;
        let columns: Vec<String> = statement.column_names().map(str::to_owned).collect();
        if !statement.readonly() || columns.is_empty() {
            return Err(rusqlite::Error::InvalidQuery);
        }
        let mut rows = statement.query(rusqlite::params_from_iter(&self.values))?;
        while let Some(current) = rows.next()? {
            let values =
                (0..columns.len()).map(|column| current.get_ref(column)).collect::<Result<Vec<_>, _>>()?;
            if !row(&columns, &values) {
                break;
            }
        }
        Ok(())
    }
}

/// Adds the functions that the questions use, and users may: `extension(name)`, `days(time)`, `bits(number)` and
/// `range(bits)`.
fn add_functions(index: &Index) -> rusqlite::Result<()> {
    let flags =
        FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC | FunctionFlags::SQLITE_DIRECTONLY;
    let connection = &index.connection;
    connection.create_scalar_function("extension", 1, flags, |context| {
        Ok(extension(name_bytes(context.get_raw(0)))
            .map(|extension| String::from_utf8_lossy(extension).to_ascii_lowercase()))
    })?;
    let began = nanoseconds(index.began);
    connection.create_scalar_function("days", 1, flags, move |context| {
        let time: i64 = context.get(0)?;
        Ok(began.saturating_sub(time).div_euclid(86_400_000_000_000))
    })?;
    connection.create_scalar_function("bits", 1, flags, |context| {
        // What is from the future has a bucket of its own, before all others.
        let number: i64 = context.get(0)?;
        Ok(u64::try_from(number).map_or(-1, |number| i64::from(u64::BITS - number.leading_zeros())))
    })?;
    connection.create_scalar_function("range", 1, flags, |context| {
        let bits: i64 = context.get(0)?;
        Ok(match bits {
            ..0 => "future".to_owned(),
            0 => "0".to_owned(),
            1 => "1".to_owned(),
            2..=62 => format!("{}..{}", 1_u64 << (bits - 1), (1_u64 << bits) - 1),
            _ => format!("{}..", 1_u64 << 62),
        })
    })
}

/// Returns what follows the last dot of a name, unless nothing is before or behind it.
fn extension(name: &[u8]) -> Option<&[u8]> {
    let dot = name.iter().rposition(|byte| *byte == b'.')?;
    (dot > 0 && dot + 1 < name.len()).then(|| &name[dot + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_are_what_follows_the_last_dot() {
        assert_eq!(extension(b"a.tar.gz"), Some(&b"gz"[..]));
        for none in [&b"a"[..], b".profile", b"a.", b""] {
            assert_eq!(extension(none), None);
        }
    }
}
