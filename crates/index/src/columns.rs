//! A sweep as a Parquet file, for programs that read columns: one row for each entry, in row groups of bounded size.
//!
//! - The file begins with [`HEAD`], by which it is recognised whether it is complete or not. Readers find everything by the
//!   footer, and pass over what lies before the first row group.
//! - Entries wait in the batches in which they came until their row group is written, one column after the other. The footer,
//!   which describes every row group, is in memory until the end.
//! - A path is text. One that is not UTF-8 is text as it is printed for people, and has its bytes in a column of their own.

use std::collections::HashMap;
use std::fs::File;
use std::io::Seek;
use std::sync::Arc;

use nacre_quantity::Escaped;
use nacre_walk::Time;
use nacre_walk::lustre::Layout;
use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;

use crate::record::{Batch, EntryRow};
use crate::schema::{letter, nanoseconds};
use crate::write::{Ending, Settings};

/// The first bytes of every file: Parquet's own, and those by which a sweep is recognised.
pub const HEAD: &[u8] = b"PAR1nacre sweep 1\n";

/// The number of bytes of [`HEAD`] that are Parquet's own.
pub const MAGIC_BYTES: usize = 4;

/// The maximum number of rows of a row group.
pub const GROUP_ROWS: usize = 1 << 16;

/// The length of all paths and lists of OSTs of a row group after which it is written.
const GROUP_BYTES: usize = 8 << 20;

/// The columns, in the order in which [`write_columns`] writes them.
const COLUMNS: &str = "
  REQUIRED BYTE_ARRAY path (STRING);
  OPTIONAL BYTE_ARRAY path_bytes;
  REQUIRED BYTE_ARRAY type (STRING);
  REQUIRED INT64 mode;
  REQUIRED INT64 links;
  REQUIRED INT64 uid;
  REQUIRED INT64 gid;
  OPTIONAL BYTE_ARRAY user (STRING);
  OPTIONAL BYTE_ARRAY group (STRING);
  REQUIRED INT64 size;
  REQUIRED INT64 allocated;
  REQUIRED INT64 atime (TIMESTAMP(NANOS,true));
  REQUIRED INT64 mtime (TIMESTAMP(NANOS,true));
  REQUIRED INT64 ctime (TIMESTAMP(NANOS,true));
  REQUIRED INT64 device;
  REQUIRED INT64 inode;
  REQUIRED INT64 depth;
";

/// The columns of layouts on Lustre, which are there only if they were asked for.
const LAYOUT_COLUMNS: &str = "
  OPTIONAL INT64 stripe_count;
  OPTIONAL INT64 stripe_size;
  OPTIONAL BYTE_ARRAY pool (STRING);
  OPTIONAL group osts (LIST) { REPEATED group list { REQUIRED INT64 element; } }
";

type Group<'a> = SerializedRowGroupWriter<'a, File>;
type Names = HashMap<u32, Option<ByteArray>>;

/// A Parquet file that is being written.
#[derive(Debug)]
pub struct Columns {
    writer: SerializedFileWriter<File>,
    /// The entries of the row group that is written next, their number, and the length of what varies in length.
    batches: Vec<Batch>,
    rows: usize,
    bytes: usize,
    /// The names of the owners and groups that were met.
    users: Names,
    groups: Names,
    errors: u64,
    mount_points: u64,
    /// True if there are columns of layouts.
    layouts: bool,
}

impl Columns {
    /// Begins the file, which is empty.
    ///
    /// # Errors
    /// [`ParquetError`] if it cannot be written.
    pub fn begin(mut file: File, settings: &Settings) -> Result<Columns, ParquetError> {
        file.rewind()?;
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            // Statistics of every page would be in memory until the end.
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_offset_index_disabled(true)
            // No path is there twice.
            .set_column_dictionary_enabled(ColumnPath::from("path"), false)
            .build();
        let layouts = if settings.layouts { LAYOUT_COLUMNS } else { "" };
        let schema = Arc::new(parse_message_type(&format!("message sweep {{ {COLUMNS} {layouts} }}"))?);
        let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties))?;
        writer.write_all(&HEAD[MAGIC_BYTES..])?;
        let mut put = |key: &str, value: String| {
            writer.append_key_value_metadata(KeyValue::new(format!("nacre.{key}"), value));
        };
        put("program", concat!("nacre ", env!("CARGO_PKG_VERSION")).to_owned());
        put("began", nanoseconds(settings.began).to_string());
        put("whole", settings.whole.to_string());
        let roots: Vec<String> = settings.roots.iter().map(|root| Escaped(root).to_string()).collect();
        put("roots", roots.join("\n"));
        for (flag, value) in &settings.flags {
            put(&format!("flag {flag}"), value.clone());
        }
        Ok(Columns {
            writer,
            batches: Vec::new(),
            rows: 0,
            bytes: 0,
            users: Names::new(),
            groups: Names::new(),
            errors: 0,
            mount_points: 0,
            layouts: settings.layouts,
        })
    }

    /// Adds the entries of a batch. Of its errors and mount points only the numbers are kept.
    ///
    /// # Errors
    /// [`ParquetError`] if a row group cannot be written.
    pub fn add(&mut self, batch: Batch) -> Result<(), ParquetError> {
        self.errors += batch.errors.len() as u64;
        self.mount_points += batch.mount_points.len() as u64;
        let batch = batch.only_entries();
        if batch.entries.is_empty() {
            return Ok(());
        }
        if self.rows + batch.entries.len() > GROUP_ROWS || self.bytes >= GROUP_BYTES {
            self.write_group()?;
        }
        self.rows += batch.entries.len();
        self.bytes += batch.bytes();
        self.batches.push(batch);
        Ok(())
    }

    /// Writes the last row group and the footer.
    ///
    /// # Errors
    /// [`ParquetError`] if they cannot be written.
    pub fn close(mut self, ending: Ending, ended: Time) -> Result<(), ParquetError> {
        if self.rows > 0 {
            self.write_group()?;
        }
        let state = match ending {
            Ending::Complete => "complete",
            Ending::Interrupted => "interrupted",
        };
        let mut put = |key: &str, value: String| {
            self.writer.append_key_value_metadata(KeyValue::new(format!("nacre.{key}"), value));
        };
        put("state", state.to_owned());
        put("ended", nanoseconds(ended).to_string());
        put("errors", self.errors.to_string());
        put("mount_points", self.mount_points.to_string());
        self.writer.close()?;
        Ok(())
    }

    /// Writes the entries that wait as a row group.
    fn write_group(&mut self) -> Result<(), ParquetError> {
        let batches = std::mem::take(&mut self.batches);
        (self.rows, self.bytes) = (0, 0);
        let mut group = self.writer.next_row_group()?;
        write_columns(&mut group, &batches, &mut self.users, &mut self.groups)?;
        if self.layouts {
            write_layouts(&mut group, &batches)?;
        }
        group.close()?;
        Ok(())
    }
}

/// Writes the columns of a row group in the order of [`COLUMNS`].
fn write_columns(
    group: &mut Group<'_>,
    batches: &[Batch],
    users: &mut Names,
    groups: &mut Names,
) -> Result<(), ParquetError> {
    write_texts(group, batches, |batch, entry| path_text(batch.name(entry)))?;
    write_some_texts(group, batches, |batch, entry| path_bytes(batch.name(entry)))?;
    write_texts(group, batches, |_, entry| ByteArray::from(letter(entry.kind)))?;
    write_numbers(group, batches, |entry| entry.mode.into())?;
    write_numbers(group, batches, |entry| entry.links.into())?;
    write_numbers(group, batches, |entry| entry.uid.into())?;
    write_numbers(group, batches, |entry| entry.gid.into())?;
    write_some_texts(group, batches, |_, entry| name_of(users, entry.uid, user_name))?;
    write_some_texts(group, batches, |_, entry| name_of(groups, entry.gid, group_name))?;
    write_numbers(group, batches, |entry| entry.size)?;
    write_numbers(group, batches, |entry| entry.allocated)?;
    write_numbers(group, batches, |entry| entry.atime)?;
    write_numbers(group, batches, |entry| entry.mtime)?;
    write_numbers(group, batches, |entry| entry.ctime)?;
    write_numbers(group, batches, |entry| entry.device)?;
    write_numbers(group, batches, |entry| entry.inode)?;
    write_numbers(group, batches, |entry| entry.depth.into())
}

/// Writes the columns of layouts in the order of [`LAYOUT_COLUMNS`].
fn write_layouts(group: &mut Group<'_>, batches: &[Batch]) -> Result<(), ParquetError> {
    write_some_numbers(group, batches, |layout| layout.stripe_count.into())?;
    write_some_numbers(group, batches, |layout| i64::try_from(layout.stripe_size).unwrap_or(i64::MAX))?;
    write_some_texts(group, batches, |_, entry| {
        entry.layout.as_ref().and_then(|layout| layout.pool.as_deref()).map(ByteArray::from)
    })?;
    let mut column = next_column(group)?;
    for batch in batches {
        let mut values: Vec<i64> = Vec::new();
        let (mut defined, mut repeated): (Vec<i16>, Vec<i16>) = (Vec::new(), Vec::new());
        for entry in &batch.entries {
            // 0 stands for no list, 1 for an empty one, and 2 for an element, which belongs to the list of the one before it
            // if it is repeated.
            match entry.layout.as_ref().map(|layout| &layout.osts[..]) {
                None => defined.push(0),
                Some([]) => defined.push(1),
                Some(osts) => {
                    values.extend(osts.iter().copied().map(i64::from));
                    defined.extend(osts.iter().map(|_| 2));
                    repeated.extend(osts.iter().enumerate().map(|(number, _)| i16::from(number > 0)));
                    continue;
                }
            }
            repeated.push(0);
        }
        column.typed::<Int64Type>().write_batch(&values, Some(&defined), Some(&repeated))?;
    }
    column.close()
}

/// Returns the writer of the next column.
fn next_column<'g>(group: &'g mut Group<'_>) -> Result<SerializedColumnWriter<'g>, ParquetError> {
    group.next_column()?.ok_or_else(|| ParquetError::General("the schema has no more columns".into()))
}

/// Writes a column of numbers.
fn write_numbers(
    group: &mut Group<'_>,
    batches: &[Batch],
    value: impl Fn(&EntryRow) -> i64,
) -> Result<(), ParquetError> {
    let mut column = next_column(group)?;
    for batch in batches {
        let values: Vec<i64> = batch.entries.iter().map(&value).collect();
        column.typed::<Int64Type>().write_batch(&values, None, None)?;
    }
    column.close()
}

/// Writes a column of numbers of layouts, which a row may lack.
fn write_some_numbers(
    group: &mut Group<'_>,
    batches: &[Batch],
    value: impl Fn(&Layout) -> i64,
) -> Result<(), ParquetError> {
    let mut column = next_column(group)?;
    for batch in batches {
        let layouts = || batch.entries.iter().map(|entry| entry.layout.as_deref());
        let values: Vec<i64> = layouts().flatten().map(&value).collect();
        let levels: Vec<i16> = layouts().map(|layout| layout.is_some().into()).collect();
        column.typed::<Int64Type>().write_batch(&values, Some(&levels), None)?;
    }
    column.close()
}

/// Writes a column of texts.
fn write_texts(
    group: &mut Group<'_>,
    batches: &[Batch],
    value: impl Fn(&Batch, &EntryRow) -> ByteArray,
) -> Result<(), ParquetError> {
    let mut column = next_column(group)?;
    for batch in batches {
        let values: Vec<ByteArray> = batch.entries.iter().map(|entry| value(batch, entry)).collect();
        column.typed::<ByteArrayType>().write_batch(&values, None, None)?;
    }
    column.close()
}

/// Writes a column of texts that a row may lack.
fn write_some_texts(
    group: &mut Group<'_>,
    batches: &[Batch],
    mut value: impl FnMut(&Batch, &EntryRow) -> Option<ByteArray>,
) -> Result<(), ParquetError> {
    let mut column = next_column(group)?;
    for batch in batches {
        let mut values = Vec::new();
        let mut levels: Vec<i16> = Vec::with_capacity(batch.entries.len());
        for entry in &batch.entries {
            let value = value(batch, entry);
            levels.push(value.is_some().into());
            values.extend(value);
        }
        column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None)?;
    }
    column.close()
}

/// Returns a path as text.
fn path_text(path: &[u8]) -> ByteArray {
    match std::str::from_utf8(path) {
        Ok(text) => ByteArray::from(text),
        Err(_) => ByteArray::from(Escaped(path).to_string().into_bytes()),
    }
}

/// Returns the bytes of a path, if they are no text.
fn path_bytes(path: &[u8]) -> Option<ByteArray> {
    std::str::from_utf8(path).is_err().then(|| ByteArray::from(path))
}

/// Returns the name of a number, if it has one.
fn name_of(known: &mut Names, number: u32, name: fn(u32) -> Option<String>) -> Option<ByteArray> {
    known.entry(number).or_insert_with(|| name(number).map(|name| ByteArray::from(name.into_bytes()))).clone()
}

fn user_name(number: u32) -> Option<String> {
    nix::unistd::User::from_uid(number.into()).ok().flatten().map(|user| user.name)
}

fn group_name(number: u32) -> Option<String> {
    nix::unistd::Group::from_gid(number.into()).ok().flatten().map(|group| group.name)
}
