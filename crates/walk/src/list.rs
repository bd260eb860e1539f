//! Entries listed as they are found: paths, chosen fields, or JSON, one after the other, in no particular order.
//!
//! Each thread writes into its own buffer, which is written out as a whole, so that lines never mix. The memory of a
//! listing does not grow with the tree.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nacre_quantity::Escaped;
use parking_lot::Mutex;

use crate::entry::{Entry, FileKind, Metadata, Time};
use crate::error::{Operation, WalkError};
use crate::lustre::Layout;
use crate::report::Sums;

/// The size at which a buffer is written, in bytes.
const BUFFER_BYTES: usize = 64 << 10;

/// The age at which a buffer is written, even if it is not full.
const BUFFER_AGE: Duration = Duration::from_millis(250);

/// A field of a list entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Path, beginning with the root as it was given
    Path,
    /// Type: f, d, l, p, s, c, b as in find; in JSON a word
    Type,
    /// Apparent size in bytes
    Size,
    /// Bytes on the device
    Allocated,
    /// Permissions, octal
    Mode,
    /// Owner's name, or number if there is no name
    User,
    /// Group's name, or number if there is no name
    Group,
    /// Owner's number
    Uid,
    /// Group's number
    Gid,
    /// Last modification, in seconds since the epoch
    Mtime,
    /// Last access
    Atime,
    /// Last change of the inode
    Ctime,
    /// Number of hard links
    Links,
    /// Number of the inode
    Inode,
    /// Levels below the root
    Depth,
    /// Number of stripes, on Lustre
    StripeCount,
    /// Size of a stripe in bytes, on Lustre
    StripeSize,
    /// Pool of object storage targets, on Lustre
    Pool,
    /// Numbers of the object storage targets, on Lustre
    Osts,
}

impl Field {
    /// All fields.
    pub const ALL: [Field; 19] = [
        Field::Path,
        Field::Type,
        Field::Size,
        Field::Allocated,
        Field::Mode,
        Field::User,
        Field::Group,
        Field::Uid,
        Field::Gid,
        Field::Mtime,
        Field::Atime,
        Field::Ctime,
        Field::Links,
        Field::Inode,
        Field::Depth,
        Field::StripeCount,
        Field::StripeSize,
        Field::Pool,
        Field::Osts,
    ];

    /// Returns whether it needs an entry's metadata.
    pub fn needs_metadata(self) -> bool {
        !matches!(self, Field::Path | Field::Type | Field::Depth)
    }

    /// Returns whether it needs a file's layout on Lustre.
    pub fn needs_layout(self) -> bool {
        matches!(self, Field::StripeCount | Field::StripeSize | Field::Pool | Field::Osts)
    }

    /// Returns its one-line description for a help text.
    pub fn description(self) -> &'static str {
        match self {
            Field::Path => "Path, beginning with the root as it was given",
            Field::Type => "Type: f, d, l, p, s, c, b as in find; in JSON a word",
            Field::Size => "Apparent size in bytes",
            Field::Allocated => "Bytes on the device",
            Field::Mode => "Permissions, octal",
            Field::User => "Owner's name, or number if there is no name",
            Field::Group => "Group's name, or number if there is no name",
            Field::Uid => "Owner's number",
            Field::Gid => "Group's number",
            Field::Mtime => "Last modification, in seconds since the epoch",
            Field::Atime => "Last access",
            Field::Ctime => "Last change of the inode",
            Field::Links => "Number of hard links",
            Field::Inode => "Number of the inode",
            Field::Depth => "Levels below the root",
            Field::StripeCount => "Number of stripes, on Lustre",
            Field::StripeSize => "Size of a stripe in bytes, on Lustre",
            Field::Pool => "Pool of object storage targets, on Lustre",
            Field::Osts => "Numbers of the object storage targets, on Lustre",
        }
    }

    /// Returns its name, which is its key in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Field::Path => "path",
            Field::Type => "type",
            Field::Size => "size",
            Field::Allocated => "allocated",
            Field::Mode => "mode",
            Field::User => "user",
            Field::Group => "group",
            Field::Uid => "uid",
            Field::Gid => "gid",
            Field::Mtime => "mtime",
            Field::Atime => "atime",
            Field::Ctime => "ctime",
            Field::Links => "links",
            Field::Inode => "inode",
            Field::Depth => "depth",
            Field::StripeCount => "stripe_count",
            Field::StripeSize => "stripe_size",
            Field::Pool => "pool",
            Field::Osts => "osts",
        }
    }
}

/// The format of a listing.
#[derive(Clone, Debug)]
pub struct Format {
    /// The fields of each entry, in order.
    pub fields: Vec<Field>,
    /// One JSON object on each line, instead of text separated by tabs.
    pub json: bool,
    /// A zero byte instead of a newline at the end of each entry.
    pub null: bool,
    /// Escapes paths as they are printed for people ([`Escaped`]), because a terminal would interpret what is in them.
    pub escape: bool,
}

/// The output of a listing, shared by all threads.
#[derive(derive_more::Debug)]
#[debug("Output")]
pub struct Output {
    writer: Mutex<Box<dyn Write + Send>>,
    closed: AtomicBool,
    error: Mutex<Option<io::Error>>,
}

impl Output {
    /// Creates an output to `writer`.
    pub fn new(writer: Box<dyn Write + Send>) -> Output {
        Output { writer: Mutex::new(writer), closed: AtomicBool::new(false), error: Mutex::new(None) }
    }

    /// Takes the error with which writing failed; `None` from the second call on.
    pub fn failure(&self) -> Option<io::Error> {
        self.error.lock().take()
    }

    /// Returns whether writing has failed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    pub(crate) fn write(&self, bytes: &[u8]) -> bool {
        let mut writer = self.writer.lock();
        if self.is_closed() {
            return false;
        }
        let written = writer.write_all(bytes).and_then(|()| writer.flush());
        if let Err(error) = written {
            *self.error.lock() = Some(error);
            self.closed.store(true, Ordering::Relaxed);
            return false;
        }
        true
    }
}

/// The listing of one thread.
#[derive(derive_more::Debug)]
#[debug("Lister")]
pub struct Lister<'a> {
    format: &'a Format,
    output: &'a Output,
    buffer: Vec<u8>,
    path: Vec<u8>,
    written: Instant,
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl<'a> Lister<'a> {
    /// Creates a lister for one thread.
    pub fn new(format: &'a Format, output: &'a Output) -> Lister<'a> {
        Lister {
            format,
            output,
            buffer: Vec::with_capacity(BUFFER_BYTES + (8 << 10)),
            path: Vec::new(),
            written: Instant::now(),
            users: HashMap::new(),
            groups: HashMap::new(),
        }
    }

    /// Lists an entry.
    pub(crate) fn list(&mut self, entry: &Entry<'_, Sums>) {
        if self.format.json {
            self.list_json(entry)
        } else {
            self.list_text(entry)
        }
        self.end_record();
    }

    /// Lists an error, in JSON only: in text every line is an entry.
    pub(crate) fn list_error(&mut self, error: &WalkError) {
        if self.format.json {
            put_error(&mut self.buffer, error);
            self.end_record();
        }
    }

    fn end_record(&mut self) {
        self.buffer.push(if self.format.null { 0 } else { b'\n' });
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush();
        }
    }

    /// Writes the buffer if it is old; called after each batch of a directory. Returns false if the output is closed.
    pub fn pause(&mut self) -> bool {
        if self.written.elapsed() >= BUFFER_AGE { self.flush() } else { !self.output.is_closed() }
    }

    /// Writes the buffer. Returns false if this or an earlier write failed.
    pub fn flush(&mut self) -> bool {
        let written = self.buffer.is_empty() || self.output.write(&self.buffer);
        self.buffer.clear();
        self.written = Instant::now();
        written && !self.output.is_closed()
    }

    fn list_text(&mut self, entry: &Entry<'_, Sums>) {
        for (number, field) in self.format.fields.iter().enumerate() {
            if number > 0 {
                self.buffer.push(b'\t');
            }
            match field {
                Field::Path if self.format.escape => {
                    self.path.clear();
                    entry.write_path(&mut self.path);
                    put(&mut self.buffer, format_args!("{}", Escaped(&self.path)));
                }
                Field::Path => entry.write_path(&mut self.buffer),
                Field::Type => self.buffer.push(entry.kind.letter() as u8),
                Field::Depth => put(&mut self.buffer, format_args!("{}", entry.depth)),
                field if field.needs_layout() => {
                    if let Some(layout) = entry.layout {
                        put_layout(&mut self.buffer, *field, layout);
                    }
                }
                field => {
                    if let Some(metadata) = entry.metadata {
                        self.put_metadata(*field, metadata);
                    }
                }
            }
        }
    }

    fn put_metadata(&mut self, field: Field, metadata: &Metadata) {
        // As find writes times: nine digits of nanoseconds and a zero.
        let time = |buffer: &mut Vec<u8>, Time { seconds, nanoseconds }| {
            put(buffer, format_args!("{seconds}.{nanoseconds:09}0"));
        };
        let buffer = &mut self.buffer;
        match field {
            Field::User => buffer.extend_from_slice(user_name(&mut self.users, metadata.user()).as_bytes()),
            Field::Group => {
                buffer.extend_from_slice(group_name(&mut self.groups, metadata.group()).as_bytes())
            }
            Field::Mode => put(buffer, format_args!("{:o}", metadata.mode() & 0o7777)),
            Field::Mtime => time(buffer, metadata.modified()),
            Field::Atime => time(buffer, metadata.accessed()),
            Field::Ctime => time(buffer, metadata.changed()),
            field => put(buffer, format_args!("{}", number(field, metadata))),
        }
    }

    fn list_json(&mut self, entry: &Entry<'_, Sums>) {
        self.buffer.push(b'{');
        for (number_of_field, field) in self.format.fields.iter().enumerate() {
            if number_of_field > 0 {
                self.buffer.push(b',');
            }
            if *field == Field::Path {
                self.path.clear();
                entry.write_path(&mut self.path);
                put_path(&mut self.buffer, &self.path);
                continue;
            }
            put(&mut self.buffer, format_args!("\"{}\":", field.name()));
            match (field, entry.metadata) {
                (Field::Type, _) => put_string(&mut self.buffer, kind_word(entry.kind)),
                (Field::Depth, _) => put(&mut self.buffer, format_args!("{}", entry.depth)),
                (field, _) if field.needs_layout() => match entry.layout {
                    Some(layout) => put_json_layout(&mut self.buffer, *field, layout),
                    None => self.buffer.extend_from_slice(b"null"),
                },
                (_, None) => self.buffer.extend_from_slice(b"null"),
                (Field::User, Some(metadata)) => {
                    put_string(&mut self.buffer, user_name(&mut self.users, metadata.user()));
                }
                (Field::Group, Some(metadata)) => {
                    put_string(&mut self.buffer, group_name(&mut self.groups, metadata.group()));
                }
                (Field::Mode, Some(metadata)) => {
                    put(&mut self.buffer, format_args!("\"{:04o}\"", metadata.mode() & 0o7777));
                }
                (Field::Mtime, Some(metadata)) => put_json_time(&mut self.buffer, metadata.modified()),
                (Field::Atime, Some(metadata)) => put_json_time(&mut self.buffer, metadata.accessed()),
                (Field::Ctime, Some(metadata)) => put_json_time(&mut self.buffer, metadata.changed()),
                (field, Some(metadata)) => {
                    put(&mut self.buffer, format_args!("{}", number(*field, metadata)));
                }
            }
        }
        self.buffer.push(b'}');
    }
}

/// Returns the value of a field that is a plain number.
fn number(field: Field, metadata: &Metadata) -> u64 {
    match field {
        Field::Size => metadata.size(),
        Field::Allocated => metadata.allocated(),
        Field::Uid => metadata.user().into(),
        Field::Gid => metadata.group().into(),
        Field::Links => metadata.links().into(),
        Field::Inode => metadata.inode(),
        // These have arms of their own wherever this is called.
        _ => 0,
    }
}

/// Appends a field of a layout as text: the OSTs with commas between.
fn put_layout(buffer: &mut Vec<u8>, field: Field, layout: &Layout) {
    match field {
        Field::StripeCount => put(buffer, format_args!("{}", layout.stripe_count)),
        Field::StripeSize => put(buffer, format_args!("{}", layout.stripe_size)),
        Field::Pool => {
            put(buffer, format_args!("{}", Escaped(layout.pool.as_deref().unwrap_or("").as_bytes())))
        }
        _ => {
            for (number, ost) in layout.osts.iter().enumerate() {
                put(buffer, format_args!("{}{ost}", if number > 0 { "," } else { "" }));
            }
        }
    }
}

/// Appends a field of a layout as JSON.
fn put_json_layout(buffer: &mut Vec<u8>, field: Field, layout: &Layout) {
    match (field, &layout.pool) {
        (Field::Pool, Some(pool)) => put_string(buffer, pool),
        (Field::Pool, None) => buffer.extend_from_slice(b"null"),
        (Field::Osts, _) => {
            buffer.push(b'[');
            put_layout(buffer, field, layout);
            buffer.push(b']');
        }
        (field, _) => put_layout(buffer, field, layout),
    }
}

fn put(buffer: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    // Writing to memory does not fail.
    let _ = buffer.write_fmt(text);
}

/// Appends a JSON string.
fn put_string(buffer: &mut Vec<u8>, text: &str) {
    let before = buffer.len();
    if serde_json::to_writer(&mut *buffer, text).is_err() {
        // Writing to memory does not fail; were it to, the line would still be JSON.
        buffer.truncate(before);
        buffer.extend_from_slice(b"null");
    }
}

/// Appends `"path":…`, or `"path_base64":…` where the path is not UTF-8.
pub(crate) fn put_path(buffer: &mut Vec<u8>, path: &[u8]) {
    match std::str::from_utf8(path) {
        Ok(text) => {
            buffer.extend_from_slice(b"\"path\":");
            put_string(buffer, text);
        }
        Err(_) => {
            buffer.extend_from_slice(b"\"path_base64\":");
            put_string(buffer, &STANDARD.encode(path));
        }
    }
}

/// Returns the line for an error, as text or as JSON.
pub(crate) fn error_record(error: &WalkError, json: bool) -> Vec<u8> {
    let mut record = Vec::new();
    if json {
        put_error(&mut record, error);
    } else {
        put(&mut record, format_args!("{error}"));
    }
    record.push(b'\n');
    record
}

fn put_error(buffer: &mut Vec<u8>, error: &WalkError) {
    let operation = match error.operation {
        Operation::Open => "open",
        Operation::List => "list",
        Operation::Stat => "stat",
        Operation::Loop => "loop",
        Operation::Layout => "layout",
    };
    buffer.push(b'{');
    put_path(buffer, &error.path);
    put(buffer, format_args!(",\"error\":\"{operation}\",\"errno\":{},\"message\":", error.errno));
    put_string(buffer, &error.to_string());
    buffer.push(b'}');
}

/// Appends a time as a number with nanoseconds; before the epoch the fraction counts backwards.
fn put_json_time(buffer: &mut Vec<u8>, time: Time) {
    let Time { seconds, nanoseconds } = time;
    if seconds < 0 && nanoseconds > 0 {
        put(buffer, format_args!("-{}.{:09}", -(seconds + 1), 1_000_000_000 - nanoseconds));
    } else {
        put(buffer, format_args!("{seconds}.{nanoseconds:09}"));
    }
}

/// Returns the JSON word for a kind.
pub fn kind_word(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Link => "link",
        FileKind::Pipe => "pipe",
        FileKind::Socket => "socket",
        FileKind::CharacterDevice => "character-device",
        FileKind::BlockDevice => "block-device",
        FileKind::Unknown => "unknown",
    }
}

/// Returns the name of a user; the number if there is none.
pub(crate) fn user_name(known: &mut HashMap<u32, String>, number: u32) -> &str {
    known.entry(number).or_insert_with(|| {
        let user = nix::unistd::User::from_uid(number.into());
        user.ok().flatten().map_or_else(|| number.to_string(), |user| user.name)
    })
}

/// Returns the name of a group; the number if there is none.
pub(crate) fn group_name(known: &mut HashMap<u32, String>, number: u32) -> &str {
    known.entry(number).or_insert_with(|| {
        let group = nix::unistd::Group::from_gid(number.into());
        group.ok().flatten().map_or_else(|| number.to_string(), |group| group.name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_right_for_odd_times_and_names() {
        let time = |seconds, nanoseconds| {
            let mut buffer = Vec::new();
            put_json_time(&mut buffer, Time { seconds, nanoseconds });
            String::from_utf8(buffer).unwrap()
        };
        assert_eq!(time(1, 5), "1.000000005");
        assert_eq!(time(-2, 500_000_000), "-1.500000000");
        assert_eq!(time(-1, 1), "-0.999999999");
        assert_eq!(time(-3, 0), "-3.000000000");
        let mut buffer = Vec::new();
        put_path(&mut buffer, b"a\"\n");
        assert_eq!(buffer, b"\"path\":\"a\\\"\\n\"");
        buffer.clear();
        put_path(&mut buffer, b"\xff");
        assert_eq!(buffer, "\"path_base64\":\"/w==\"".as_bytes());
    }
}
