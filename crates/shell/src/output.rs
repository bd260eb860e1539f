//! Standard output: lines, tables, and JSON.

use std::borrow::Cow;
use std::io::{self, IsTerminal as _, Write};
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use comfy_table::CellAlignment;
use comfy_table::presets::NOTHING;
use nacre_object::{Extent, ExtentKind, RangeRead};
use nacre_quantity::{Escaped, escaped_text};
use serde_json::{Map, Value, json};

/// Prints a line.
pub fn line(text: &str) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{text}")
}

/// Prints bytes without changes.
pub fn raw(bytes: &[u8]) -> io::Result<()> {
    io::stdout().lock().write_all(bytes)
}

/// True if standard output is a terminal.
static ON_TERMINAL: LazyLock<bool> = LazyLock::new(|| io::stdout().is_terminal());

/// Returns bytes that others chose as they are printed: without changes, but escaped on a terminal.
pub fn shown(bytes: &[u8]) -> Cow<'_, [u8]> {
    match *ON_TERMINAL {
        true => Escaped(bytes).to_string().into_bytes().into(),
        false => bytes.into(),
    }
}

/// Prints bytes that others chose: without changes, but escaped on a terminal.
pub fn foreign(bytes: &[u8]) -> io::Result<()> {
    raw(&shown(bytes))
}

/// Prints a text of several lines that others chose: without changes, but on a terminal without what would command it.
pub fn foreign_text(bytes: &[u8]) -> io::Result<()> {
    match *ON_TERMINAL {
        true => raw(escaped_text(&String::from_utf8_lossy(bytes)).as_bytes()),
        false => raw(bytes),
    }
}

/// Prints a line that others chose on standard error: without changes, but escaped on a terminal.
pub fn complain_foreign(line: &str) {
    match io::stderr().is_terminal() {
        true => complain(&Escaped::of(line).to_string()),
        false => complain(line),
    }
}

/// Prints a line on standard error. A failure to do so is ignored.
pub fn complain(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Flushes standard output.
pub fn flush() -> io::Result<()> {
    io::stdout().lock().flush()
}

/// A table whose columns are as wide as their contents. Columns of numbers are aligned to the right.
#[derive(Clone, Debug)]
pub struct Table(comfy_table::Table);

impl Table {
    /// Creates a table without rows.
    pub fn new(heads: &[&str]) -> Self {
        let mut table = comfy_table::Table::new();
        table.load_style(NOTHING).set_header(heads.iter().map(|head| head.replace('_', " ").to_uppercase()));
        Self(table)
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.add_row(cells.into_iter());
    }

    /// Prints the table.
    pub fn print(mut self) -> io::Result<()> {
        // A name such as 7400/5 begins with a digit, and is no number.
        let is_number =
            |text: &str| text.starts_with(|c: char| c.is_ascii_digit() || c == '-') && !text.contains('/');
        for index in 0..self.0.column_count() {
            let mut cells = self.0.column_cells_iter(index).flatten().peekable();
            let numbers = cells.peek().is_some() && cells.all(|cell| is_number(&cell.content()));
            let Some(column) = self.0.column_mut(index) else { continue };
            column.set_padding((0, 2));
            column.set_cell_alignment(if numbers { CellAlignment::Right } else { CellAlignment::Left });
        }
        let mut output = io::stdout().lock();
        self.0.lines().try_for_each(|line| writeln!(output, "{}", line.trim_end()))
    }
}

/// A JSON array that is printed entry by entry, so that it may be of any length.
#[derive(Debug)]
pub struct Array {
    empty: bool,
}

impl Array {
    /// Prints the beginning.
    pub fn begin() -> io::Result<Self> {
        raw(b"[")?;
        Ok(Self { empty: true })
    }

    /// Prints an entry.
    pub fn entry(&mut self, value: &Value) -> io::Result<()> {
        raw(if self.empty { b"\n  " } else { b",\n  " })?;
        self.empty = false;
        raw(value.to_string().as_bytes())
    }

    /// Prints the end.
    pub fn end(self) -> io::Result<()> {
        line(if self.empty { "]" } else { "\n]" })
    }
}

/// Adds bytes to a JSON object: as text under `name` if they are UTF-8, otherwise under `name_base64`.
pub fn put_bytes(map: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => map.insert(name.to_owned(), text.into()),
        Err(_) => map.insert(format!("{name}_base64"), STANDARD.encode(bytes).into()),
    };
}

/// Returns an extent as JSON.
pub fn extent(extent: &Extent) -> Value {
    json!({
        "offset": extent.range.offset,
        "length": extent.range.len,
        "version": extent.version,
        "kind": kind(extent.kind),
    })
}

/// Returns the name of a kind of extent.
pub fn kind(kind: ExtentKind) -> &'static str {
    match kind {
        ExtentKind::Data => "data",
        ExtentKind::Hole => "hole",
    }
}

/// Adds the result of a read to a JSON object.
pub fn put_range(map: &mut Map<String, Value>, range: &RangeRead) {
    map.insert("version".into(), range.version.into());
    map.insert("size".into(), range.size.into());
    put_bytes(map, "data", &range.data);
    map.insert("extents".into(), range.extents.iter().map(extent).collect());
    if let Some(next) = range.next {
        map.insert("next".into(), next.into());
    }
}
