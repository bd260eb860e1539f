//! The export format of `ncdu`, made from an index: one JSON array in another, in the order of the tree.

use std::io::{self, Write};

use rusqlite::OptionalExtension;

use crate::open::Index;
use crate::schema::{Name, first_key, last_key, name_bytes, nanoseconds};

/// The reason why an export failed.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The sweep has several roots, or one that is no directory.
    #[error("ncdu's format holds one directory, and this sweep has other roots")]
    Roots,
    /// The index cannot be read.
    #[error("cannot read the index: {0}")]
    Database(#[from] rusqlite::Error),
    /// The export cannot be written.
    #[error("cannot write the export: {0}")]
    Write(#[from] io::Error),
}

/// Writes the sweep in the format that `ncdu -f` reads. Names are written as they are, as ncdu does, so that those that
/// are not UTF-8 make a file that is not either.
///
/// # Errors
/// [`ExportError`].
pub fn export(index: &Index, output: &mut impl Write) -> Result<(), ExportError> {
    let connection = &index.connection;
    let roots: i64 = connection.query_row("SELECT count(*) FROM roots", [], |row| row.get(0))?;
    let root: Option<(i64, Vec<u8>, i64)> = connection
        .query_row("SELECT id, name, device FROM directories WHERE parent = 0", [], |row| {
            Ok((row.get(0)?, name_bytes(row.get_ref(1)?).to_vec(), row.get(2)?))
        })
        .optional()?;
    let Some((root, name, device)) = root.filter(|_| roots == 1) else { return Err(ExportError::Roots) };
    let seconds = nanoseconds(index.began).div_euclid(1_000_000_000);
    let version = env!("CARGO_PKG_VERSION");
    write!(
        output,
        "[1,2,{{\"progname\":\"nacre\",\"progver\":\"{version}\",\"timestamp\":{seconds}}},\n[{{\"name\":\""
    )?;
    write_name(&name, output)?;
    write!(output, "\",\"dev\":{}}}", device as u64)?;
    // One entry at a time, by its key: of a deep tree nothing is kept but the place in each directory.
    let mut next = connection.prepare(
        "SELECT id, name, type, size, allocated, device, inode, links FROM entries WHERE id > ? AND id <= ? LIMIT 1",
    )?;
    // The numbers grow on the way down: a damaged index leads nowhere twice.
    let mut below = connection
        .prepare("SELECT id, complete FROM directories WHERE parent = ? AND name = ? AND id > parent")?;
    let mut open = vec![(root, first_key(root) - 1)];
    while let Some((directory, last)) = open.last_mut() {
        let mut rows = next.query((*last, last_key(*directory)))?;
        let Some(row) = rows.next()? else {
            open.pop();
            write!(output, "]")?;
            continue;
        };
        *last = row.get(0)?;
        let name = name_bytes(row.get_ref(1)?);
        let kind: String = row.get(2)?;
        let entered: Option<(i64, bool)> = match kind.as_str() {
            "d" => {
                below.query_row((*directory, Name(name)), |row| Ok((row.get(0)?, row.get(1)?))).optional()?
            }
            _ => None,
        };
        write!(output, ",\n{}{{\"name\":\"", if kind == "d" { "[" } else { "" })?;
        write_name(name, output)?;
        let (size, allocated): (i64, i64) = (row.get(3)?, row.get(4)?);
        let (device, inode, links): (i64, i64, i64) = (row.get(5)?, row.get(6)?, row.get(7)?);
        write!(output, "\",\"asize\":{size},\"dsize\":{allocated},\"ino\":{}", inode as u64)?;
        write!(output, ",\"dev\":{}", device as u64)?;
        match kind.as_str() {
            "d" if entered.is_none_or(|(_, complete)| !complete) => write!(output, ",\"read_error\":true")?,
            "f" | "d" => {}
            _ => write!(output, ",\"notreg\":true")?,
        }
        if kind != "d" && links > 1 {
            write!(output, ",\"hlnkc\":true,\"nlink\":{links}")?;
        }
        write!(output, "}}")?;
        match (kind.as_str(), entered) {
            ("d", Some((id, _))) => open.push((id, first_key(id) - 1)),
            ("d", None) => write!(output, "]")?,
            _ => {}
        }
    }
    writeln!(output, "]")?;
    Ok(())
}

/// Writes a name as the inside of a JSON string.
fn write_name(name: &[u8], output: &mut impl Write) -> io::Result<()> {
    for byte in name {
        match byte {
            b'"' | b'\\' => output.write_all(&[b'\\', *byte])?,
            0..0x20 | 0x7f => write!(output, "\\u{byte:04x}")?,
            byte => output.write_all(&[*byte])?,
        }
    }
    Ok(())
}
