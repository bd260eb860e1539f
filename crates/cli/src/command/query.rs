//! `nacre query`: questions to an index of a sweep.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use nacre_index::Index;
use nacre_index::ncdu::{self, ExportError};
use nacre_index::query::{By, Condition, Query};
use nacre_quantity::Escaped;
use rusqlite::types::{Value as Cell, ValueRef};
use serde_json::{Map, Value};

use crate::failure::Failure;
use crate::output::{self, Table};
use crate::quantity;
use crate::session::Context;

/// Query an index of a sweep
///
/// The index is written by "nacre walk ROOT --index FILE.sqlite". Without further flags, the sweep itself is described.
/// The bytes of a file with several names are counted once, except in directories. Ages are relative to the beginning of
/// the sweep. Times are in UTC; in tables, in nanoseconds since 1970. docs/index.md describes the tables for --where and
/// --sql.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The index
    #[arg(value_name = "INDEX")]
    index: PathBuf,
    /// Sum up entries by this
    #[arg(long, value_name = "OF", value_parser = by_parser())]
    by: Option<By>,
    /// Show only the first N rows; without --by, the N largest files
    #[arg(long, value_name = "N", value_parser = nacre_quantity::count_parser::<u64>(1..=u64::MAX))]
    top: Option<u64>,
    /// List all entries
    #[arg(long, conflicts_with_all = ["by", "top"])]
    list: bool,
    /// Print the rows of this query, which must be read-only
    #[arg(long, value_name = "SELECT", conflicts_with_all = ["by", "top", "list", "conditions"])]
    sql: Option<String>,
    /// With --by directory: only directories at most this many levels below their root
    #[arg(long, value_name = "N", requires = "by")]
    levels: Option<u32>,
    /// Export the sweep to this new file in ncdu's format, for "ncdu -f FILE"; - is standard output
    #[arg(long, value_name = "FILE", conflicts_with_all = ["by", "top", "list", "sql", "conditions"])]
    ncdu: Option<PathBuf>,
    /// Read an index whose sweep is not complete
    #[arg(long)]
    incomplete: bool,
    #[command(flatten)]
    conditions: Conditions,
}

/// The conditions on entries.
#[derive(clap::Args, Debug)]
#[group(id = "conditions", multiple = true)]
struct Conditions {
    /// Entries of this owner
    #[arg(long, help_heading = "Filters", value_name = "NAME|UID")]
    user: Option<String>,
    /// Entries of this group
    #[arg(long, help_heading = "Filters", value_name = "NAME|GID")]
    group: Option<String>,
    /// Entries of this type: f, d, l, p, s, c or b
    #[arg(long = "type", help_heading = "Filters", value_name = "TYPE", value_parser = ["f", "d", "l", "p", "s", "c", "b"])]
    kind: Option<String>,
    /// Entries whose names match
    #[arg(long, help_heading = "Filters", value_name = "GLOB")]
    name: Option<String>,
    /// Entries for which this SQL expression is true, such as "size > 1000000 AND days(atime) > 365"
    #[arg(long = "where", help_heading = "Filters", value_name = "SQL")]
    expression: Option<String>,
}

impl Conditions {
    fn condition(&self) -> Condition {
        let mut condition = Condition::default();
        // Whatever is a number is one: names are those of the machine that was swept.
        let mut owner = |table: &str, column: &str, name: &Option<String>| {
            if let Some(name) = name {
                let number = name.parse().map_or(Cell::Null, Cell::Integer);
                let by_name = format!("{column} IN (SELECT {column} FROM {table} WHERE name = ?)");
                match number {
                    Cell::Null => condition.and(&by_name, name.clone()),
                    number => condition.and(&format!("{column} = ?"), number),
                }
            }
        };
        owner("users", "uid", &self.user);
        owner("groups", "gid", &self.group);
        if let Some(kind) = &self.kind {
            condition.and("type = ?", kind.clone());
        }
        if let Some(name) = &self.name {
            condition.and("CAST(name AS TEXT) GLOB ?", name.clone());
        }
        if let Some(expression) = &self.expression {
            condition.and_sql(expression);
        }
        condition
    }
}

fn by_parser() -> impl TypedValueParser<Value = By> {
    let names = By::ALL.map(|by| PossibleValue::new(by.name()).help(by.description()));
    PossibleValuesParser::new(names)
        .try_map(|name| By::ALL.into_iter().find(|by| by.name() == name).ok_or("no such quantity"))
}

/// The number of rows of a table, unless another is asked for: so many are read at once.
const ROWS: u64 = 100;

/// Runs `nacre query`.
pub fn run(session: &Context, args: &Args) -> Result<(), Failure> {
    let index =
        Index::open(&args.index, args.incomplete).map_err(|error| Failure::Usage(error.to_string()))?;
    let condition = args.conditions.condition();
    if let Some(sql) = &args.sql {
        return print(session, &index, &Query::plain(sql), true);
    }
    if let Some(file) = &args.ncdu {
        return export(&index, file);
    }
    if let Some(by) = args.by {
        if args.levels.is_some() && by != By::Directory {
            return Err(Failure::Usage("--levels is for --by directory".into()));
        }
        if by == By::Directory && !condition.is_empty() {
            let text = "sums of directories cover everything below them, and cannot be filtered";
            return Err(Failure::Usage(text.into()));
        }
        return table(
            session,
            &index,
            by,
            &Query::sums(by, &condition, args.levels, args.top.unwrap_or(ROWS)),
        );
    }
    if args.list || args.top.is_some() || !condition.is_empty() {
        return print(session, &index, &Query::entries(&condition, args.top), false);
    }
    describe(session, &index)
}

fn failed(index: &Index) -> impl Fn(rusqlite::Error) -> Failure {
    let path = index.path().to_owned();
    move |error| match error {
        rusqlite::Error::InvalidQuery => {
            Failure::Usage("the query would change the index, and was not run; only SELECT is allowed".into())
        }
        rusqlite::Error::MultipleStatement => {
            Failure::Usage("the query was not run; it must be one statement only".into())
        }
        error @ rusqlite::Error::SqlInputError { .. } => {
            Failure::Usage(format!("cannot run the query: {error}"))
        }
        error => Failure::Failed(format!("cannot query \"{}\": {error}", Escaped::of(&path))),
    }
}

fn cell(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Null => String::new(),
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Real(number) => number.to_string(),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Escaped(bytes).to_string(),
    }
}

fn put(json: &mut Map<String, Value>, column: &str, value: ValueRef<'_>) {
    match value {
        ValueRef::Null => drop(json.insert(column.into(), Value::Null)),
        ValueRef::Integer(number) => drop(json.insert(column.into(), number.into())),
        ValueRef::Real(number) => drop(json.insert(column.into(), number.into())),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => output::put_bytes(json, column, bytes),
    }
}

/// Prints rows as they come: with tabs between the values, or each as JSON.
fn print(session: &Context, index: &Index, query: &Query, heads: bool) -> Result<(), Failure> {
    let mut written = Ok(());
    let mut first = heads && !session.json;
    let row = &mut |columns: &[String], values: &[ValueRef<'_>]| {
        let line = if session.json {
            let mut json = Map::new();
            for (column, value) in columns.iter().zip(values) {
                put(&mut json, column, *value);
            }
            Value::Object(json).to_string()
        } else {
            values.iter().map(|value| cell(*value)).collect::<Vec<_>>().join("\t")
        };
        written = match std::mem::take(&mut first) {
            true => output::line(&columns.join("\t")).and_then(|()| output::line(&line)),
            false => output::line(&line),
        };
        written.is_ok()
    };
    query.run(index, row).map_err(failed(index))?;
    Ok(written?)
}

/// Prints a table of sums.
fn table(session: &Context, index: &Index, by: By, query: &Query) -> Result<(), Failure> {
    if session.json {
        return print(session, index, query, false);
    }
    let mut table = Table::new(&[by.name(), "entries", "apparent", "allocated"]);
    let row = &mut |_: &[String], values: &[ValueRef<'_>]| {
        let cells = values.iter().enumerate().map(|(column, value)| match (column, value) {
            (1, ValueRef::Integer(number)) => quantity::grouped(number.unsigned_abs()),
            (2.., ValueRef::Integer(bytes)) => quantity::size(bytes.unsigned_abs()),
            (_, value) => cell(*value),
        });
        table.row(cells);
        true
    };
    query.run(index, row).map_err(failed(index))?;
    Ok(table.print()?)
}

/// Describes the sweep.
fn describe(session: &Context, index: &Index) -> Result<(), Failure> {
    let mut json = Map::new();
    let roots = index.roots().map_err(|error| Failure::Failed(error.to_string()))?;
    let roots: Vec<String> = roots.iter().map(|root| Escaped(root).to_string()).collect();
    json.insert("roots".into(), roots.into());
    let row = &mut |_: &[String], values: &[ValueRef<'_>]| {
        if let [key, value] = values {
            put(&mut json, &cell(*key), *value);
        }
        true
    };
    Query::plain("SELECT key, value FROM sweep ORDER BY key").run(index, row).map_err(failed(index))?;
    let numbers = "SELECT (SELECT count(*) FROM entries) AS entries, (SELECT count(*) FROM directories) AS directories, \
                   (SELECT count(*) FROM errors) AS errors, (SELECT count(*) FROM mount_points) AS mount_points";
    let row = &mut |columns: &[String], values: &[ValueRef<'_>]| {
        for (column, value) in columns.iter().zip(values) {
            put(&mut json, column, *value);
        }
        true
    };
    Query::plain(numbers).run(index, row).map_err(failed(index))?;
    if session.json {
        return Ok(output::line(&Value::Object(json).to_string())?);
    }
    for (key, value) in &json {
        let text = match value {
            Value::Array(all) => all.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "),
            Value::Number(number) if matches!(key.as_str(), "began" | "ended") => {
                when(number.as_i64().unwrap_or(0))
            }
            Value::Number(number) if key == "whole" => match number.as_u64() {
                Some(1) => "yes".to_owned(),
                _ => "no, filters left entries out".to_owned(),
            },
            Value::Number(number) => number.as_u64().map_or_else(|| number.to_string(), quantity::grouped),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        output::line(&format!("{}: {text}", key.trim_start_matches("flag ")))?;
    }
    Ok(())
}

/// Writes ncdu's format.
fn export(index: &Index, file: &Path) -> Result<(), Failure> {
    let written = if file.as_os_str() == "-" {
        let mut output = BufWriter::new(std::io::stdout().lock());
        ncdu::export(index, &mut output).and_then(|()| Ok(output.flush()?))
    } else {
        let (output, is_new) = create(index, file)?;
        let mut output = BufWriter::new(output);
        let written = ncdu::export(index, &mut output).and_then(|()| Ok(output.flush()?));
        if written.is_err() && is_new {
            // Half an export is of no use, and would be in the way of the next attempt. The error is told in any case.
            let _ = std::fs::remove_file(file);
        }
        written
    };
    written.map_err(|error| match error {
        ExportError::Write(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Failure::Unread,
        error @ ExportError::Roots => Failure::Usage(error.to_string()),
        error => Failure::Failed(error.to_string()),
    })
}

/// Opens the file to export to, and returns whether it is new. An existing one is kept, unless it is a pipe or a device,
/// where nothing is lost.
fn create(index: &Index, file: &Path) -> Result<(File, bool), Failure> {
    let cannot = |error| Failure::Failed(ExportError::Write(error).to_string());
    match File::create_new(file) {
        Ok(created) => return Ok((created, true)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(cannot(error)),
    }
    let found = file.metadata();
    if found.as_ref().is_ok_and(|found| !found.is_file()) {
        return Ok((File::options().write(true).open(file).map_err(cannot)?, false));
    }
    let is_index = |own: std::fs::Metadata| {
        found.is_ok_and(|found| (found.dev(), found.ino()) == (own.dev(), own.ino()))
    };
    let shown = Escaped::of(file);
    Err(Failure::Usage(match index.path().metadata().is_ok_and(is_index) {
        true => format!("\"{shown}\" is the index itself; give another name for the export"),
        false => format!("the file \"{shown}\" already exists; give another name, or remove it"),
    }))
}

fn when(nanoseconds: i64) -> String {
    jiff::Timestamp::from_nanosecond(nanoseconds.into())
        .map(|time| time.round(jiff::Unit::Second).unwrap_or(time).to_string())
        .unwrap_or_default()
}
