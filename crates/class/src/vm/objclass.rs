//! `objclass`: the interface of Ceph's cls_lua, on Nacre's objects.
//!
//! The byte stream is the default fork, the map the object's keys, xattrs its attributes.

use std::ffi::c_int;

use bytes::Bytes;
use nacre_object::limit::PAGE_ENTRIES_MAX;
use nacre_object::{Answer, Fork, KeyPage, KeyRange, ReadOp, WriteOp};

use super::host::Fatal;
use super::stack::{Native, Raise, Stack, ValueKind};
use crate::call::{self, ACCEPTED_ATTRIBUTE, Call, Failed, HEADER_ATTRIBUTE};
use crate::errno;

pub(super) const NATIVES: &[(&str, Native)] = &[
    ("log", log),
    ("create", create),
    ("remove", remove),
    ("stat", stat),
    ("read", read),
    ("write", write),
    ("write_full", write_full),
    ("getxattr", getxattr),
    ("getxattrs", getxattrs),
    ("setxattr", setxattr),
    ("map_get_val", map_get_val),
    ("map_get_vals", map_get_vals),
    ("map_get_keys", map_get_keys),
    ("map_set_val", map_set_val),
    ("map_set_vals", map_set_vals),
    ("map_remove_key", map_remove_key),
    ("map_clear", map_clear),
    ("map_read_header", map_read_header),
    ("map_write_header", map_write_header),
    ("current_version", current_version),
    ("current_subop_num", current_subop_num),
    ("current_subop_version", current_subop_version),
];

impl Stack<'_> {
    /// Runs an operation on the object, and turns its failure into an error of the script.
    pub(super) fn operate<T>(&self, f: impl FnOnce(&mut Call) -> Result<T, Failed>) -> Result<T, Raise> {
        self.charge(4)?;
        self.call(f).map_err(|failed| match failed {
            Failed::Errno(number, text) => Raise::Errno(number, text),
            Failed::Missing => self.fail(Fatal::Missing),
        })
    }

    /// Returns the bytes of a buffer that an argument is, as cls_lua wants them.
    fn buffer_bytes(&self, index: c_int) -> Result<Bytes, Raise> {
        self.buffer(index)?;
        self.payload(index)
    }
}

/// Converts an argument to the name of an attribute that scripts may use.
pub(super) fn attribute(bytes: &[u8]) -> Result<nacre_object::Key, Failed> {
    if is_reserved(bytes) {
        let name = String::from_utf8_lossy(bytes);
        return Err(Failed::Errno(errno::EPERM, format!("attribute \"{name}\" is reserved")));
    }
    call::key(bytes)
}

/// Returns whether an attribute is none of the scripts' own.
fn is_reserved(name: &[u8]) -> bool {
    name == HEADER_ATTRIBUTE.as_bytes() || name == ACCEPTED_ATTRIBUTE.as_bytes()
}

/// Returns the value of a key or an attribute.
pub(super) fn value(call: &mut Call, read: ReadOp) -> Result<Option<Bytes>, Failed> {
    match call.ask(read)? {
        Answer::Value(value) => Ok(value.clone()),
        _ => Err(errno::EIO.into()),
    }
}

fn log(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let top = stack.top();
    if top == 0 {
        return Ok(0);
    }
    // A number in front of other arguments is a level, which matters to nobody here.
    let first = if top > 1 && stack.to_float(1).is_some_and(|level| level >= 0.0) { 2 } else { 1 };
    let mut line = Vec::new();
    for index in first..=top {
        if index > first {
            line.push(b' ');
        }
        match stack.to_bytes(index) {
            Some(bytes) => {
                stack.grow(line.len() + bytes.len(), bytes.len())?;
                line.extend_from_slice(bytes);
            }
            None if stack.kind(index) == ValueKind::Boolean => {
                line.extend_from_slice(if stack.truth(index) { b"true" } else { b"false" });
            }
            None => line.extend_from_slice(stack.kind(index).name().as_bytes()),
        }
    }
    stack.charge(16)?;
    stack.call(|call| call.log(String::from_utf8_lossy(&line).into_owned()));
    stack.push_long(&line)?;
    Ok(1)
}

fn create(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let exclusive = stack.truth(1);
    stack.operate(|call| {
        if exclusive && call.exists_now()? {
            return Err(errno::EEXIST.into());
        }
        call.write(WriteOp::Create)
    })?;
    Ok(0)
}

fn remove(stack: &Stack<'_>) -> Result<c_int, Raise> {
    stack.operate(|call| match call.exists_now()? {
        true => call.write(WriteOp::Remove),
        false => Err(errno::ENOENT.into()),
    })?;
    Ok(0)
}

fn stat(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let size = stack.operate(|call| {
        call.existing()?;
        call.size(&Fork::DEFAULT)
    })?;
    stack.push_integer(size as i64);
    // Nacre's objects have versions and no times.
    stack.push_integer(0);
    Ok(2)
}

fn read(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let (offset, length) = (stack.natural(1)?, stack.natural(2)?);
    let (bytes, _) = stack.operate(|call| {
        call.existing()?;
        // As in Ceph, a length of zero asks for everything.
        let length = if length == 0 { u64::MAX } else { length };
        call.read(&Fork::DEFAULT, offset, length)
    })?;
    stack.charge(bytes.len() as u64 / 64)?;
    stack.push_new_buffer(bytes)?;
    Ok(1)
}

fn write(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let (offset, length) = (stack.natural(1)?, stack.natural(2)?);
    let data = stack.buffer_bytes(3)?;
    if length != data.len() as u64 {
        let text = format!("a write of {length} bytes was given {}", data.len());
        return Err(Raise::invalid(text));
    }
    stack.operate(|call| {
        Call::range(offset, length)?;
        if length == 0 {
            return call.write(WriteOp::Create);
        }
        call.write(WriteOp::Extents { fork: Fork::DEFAULT, extents: vec![(offset, data)] })
    })?;
    Ok(0)
}

fn write_full(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let data = stack.buffer_bytes(1)?;
    stack.operate(|call| {
        call.write(WriteOp::Truncate { fork: Fork::DEFAULT, size: data.len() as u64 })?;
        if data.is_empty() {
            return Ok(());
        }
        call.write(WriteOp::Extents { fork: Fork::DEFAULT, extents: vec![(0, data)] })
    })?;
    Ok(0)
}

fn getxattr(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let name = stack.bytes(1)?;
    let value = stack.operate(|call| {
        call.existing()?;
        value(call, ReadOp::Attribute { name: attribute(name)? })?.ok_or_else(|| errno::ENODATA.into())
    })?;
    stack.push_new_buffer(value)?;
    Ok(1)
}

fn getxattrs(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let page = stack.operate(|call| {
        call.existing()?;
        match call.ask(ReadOp::Attributes)? {
            Answer::Keys(page) => Ok(page.clone()),
            _ => Err(errno::EIO.into()),
        }
    })?;
    let shown = page.entries.iter().filter(|(name, _)| !is_reserved(name.as_bytes()));
    push_values(stack, shown.map(|(name, value)| (name.as_bytes(), value)))?;
    Ok(1)
}

/// Pushes a table of names and buffers.
fn push_values<'e>(
    stack: &Stack<'_>,
    entries: impl Iterator<Item = (&'e [u8], &'e Bytes)>,
) -> Result<(), Raise> {
    stack.push_table(0, entries.size_hint().1.unwrap_or(0))?;
    for (name, value) in entries {
        stack.charge(4)?;
        stack.push_long(name)?;
        stack.push_new_buffer(value.clone())?;
        stack.set_field();
    }
    Ok(())
}

fn setxattr(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let name = stack.bytes(1)?;
    let value = stack.buffer_bytes(2)?;
    stack.operate(|call| call.write(WriteOp::SetAttribute { name: attribute(name)?, value }))?;
    Ok(0)
}

fn map_get_val(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let key = stack.bytes(1)?;
    let value = stack.operate(|call| {
        let read = ReadOp::Key { key: call.key(key)? };
        value(call, read)?.ok_or_else(|| errno::ENOENT.into())
    })?;
    stack.push_new_buffer(value)?;
    Ok(1)
}

/// Returns keys after `after` that begin with `prefix`, at most `max`.
pub(super) fn keys(
    call: &mut Call,
    range: &KeyRange,
    max: u64,
    values: bool,
) -> Result<(Vec<(nacre_object::Key, Bytes)>, bool), Failed> {
    let mut entries: Vec<(nacre_object::Key, Bytes)> = Vec::new();
    let mut range = range.clone();
    loop {
        let limit = (max - entries.len() as u64).min(PAGE_ENTRIES_MAX as u64) as u32;
        if limit == 0 {
            return Ok((entries, true));
        }
        let KeyPage { entries: page, more } =
            match call.ask(ReadOp::Keys { range: range.clone(), limit, values })? {
                Answer::Keys(page) => page.clone(),
                _ => return Err(errno::EIO.into()),
            };
        let Some((last, _)) = page.last() else { return Ok((entries, false)) };
        range.after = Some(last.to_bytes());
        entries.extend(page);
        if !more {
            return Ok((entries, false));
        }
    }
}

fn map_get_vals(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let (after, prefix, max) = (stack.bytes(1)?, stack.bytes(2)?, stack.natural(3)?);
    let range = after_and_prefix(after, prefix);
    let (entries, _) = stack.operate(|call| {
        call.existing()?;
        keys(call, &range, max, true)
    })?;
    push_values(stack, entries.iter().map(|(key, value)| (key.as_bytes(), value)))?;
    Ok(1)
}

fn after_and_prefix(after: &[u8], prefix: &[u8]) -> KeyRange {
    let after = (!after.is_empty()).then(|| Bytes::copy_from_slice(after));
    KeyRange { after, before: None, prefix: Bytes::copy_from_slice(prefix) }
}

fn map_get_keys(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let (after, max) = (stack.bytes(1)?, stack.natural(2)?);
    let range = after_and_prefix(after, b"");
    let (entries, _) = stack.operate(|call| {
        call.existing()?;
        keys(call, &range, max, false)
    })?;
    stack.push_table(0, entries.len())?;
    for (key, _) in &entries {
        stack.charge(2)?;
        stack.push_long(key.as_bytes())?;
        stack.push_boolean(true);
        stack.set_field();
    }
    Ok(1)
}

fn map_set_val(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let key = stack.bytes(1)?;
    let value = stack.buffer_bytes(2)?;
    stack.operate(|call| call.write(WriteOp::SetKey { key: call.key(key)?, value }))?;
    Ok(0)
}

fn map_set_vals(stack: &Stack<'_>) -> Result<c_int, Raise> {
    if stack.kind(1) != ValueKind::Table {
        return Err(stack.bad_argument(1, "table"));
    }
    let mut entries: Vec<(Vec<u8>, Bytes)> = Vec::new();
    stack.push_nil();
    while stack.next(1) {
        // Key and value are on top. The conversion of a number must not change the key in its slot.
        let value = stack.top();
        stack.charge(4)?;
        let kind = stack.kind(value - 1);
        if !matches!(kind, ValueKind::String | ValueKind::Number) {
            return Err(Raise::invalid(format!("map_set_vals: invalid key type ({})", kind.name())));
        }
        if stack.kind(value) != ValueKind::String {
            let text = format!("map_set_vals: invalid val type ({})", stack.kind(value).name());
            return Err(Raise::invalid(text));
        }
        stack.push_value(value - 1);
        let name = stack.bytes(value + 1)?.to_vec();
        let bytes = stack.payload(value)?;
        stack.pop(2);
        entries.push((name, bytes));
    }
    // The order of a table is nobody's business: changes are made in the order of the keys.
    entries.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    // Which of two such values is the last one, only that order could say.
    if let Some(pair) = entries.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        let key = String::from_utf8_lossy(&pair[0].0);
        return Err(Raise::invalid(format!("map_set_vals: two keys have the text \"{key}\"")));
    }
    stack.operate(|call| {
        if entries.is_empty() {
            return call.write(WriteOp::Create);
        }
        for (key, value) in entries {
            call.write(WriteOp::SetKey { key: call::key(&key)?, value })?;
        }
        Ok(())
    })?;
    Ok(0)
}

fn map_remove_key(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let key = stack.bytes(1)?;
    stack.operate(|call| match call.exists_now()? {
        true => call.write(WriteOp::RemoveKey { key: call::key(key)? }),
        false => Err(errno::ENOENT.into()),
    })?;
    Ok(0)
}

fn map_clear(stack: &Stack<'_>) -> Result<c_int, Raise> {
    stack.operate(|call| {
        if !call.exists_now()? {
            return Err(errno::ENOENT.into());
        }
        // Keys that the call itself has set are to go too.
        let set: Vec<_> = call
            .writes
            .iter()
            .filter_map(|write| match write {
                WriteOp::SetKey { key, .. } => Some(key.clone()),
                _ => None,
            })
            .collect();
        let stood = match call.known()?.1 {
            true => keys(call, &KeyRange::all(), nacre_object::limit::OPERATIONS_MAX as u64, false)?.0,
            false => Vec::new(),
        };
        for key in set.into_iter().chain(stood.into_iter().map(|(key, _)| key)) {
            call.write(WriteOp::RemoveKey { key })?;
        }
        Ok(())
    })?;
    Ok(0)
}

fn map_read_header(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let header = stack.operate(|call| {
        let name = call::key(HEADER_ATTRIBUTE.as_bytes())?;
        value(call, ReadOp::Attribute { name })
    })?;
    stack.push_new_buffer(header.unwrap_or_default())?;
    Ok(1)
}

fn map_write_header(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let value = stack.buffer_bytes(1)?;
    stack.operate(|call| {
        let name = call::key(HEADER_ATTRIBUTE.as_bytes())?;
        call.write(WriteOp::SetAttribute { name, value })
    })?;
    Ok(0)
}

fn current_version(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let (version, _) = stack.operate(Call::known)?;
    stack.push_integer(version as i64);
    Ok(1)
}

fn current_subop_num(stack: &Stack<'_>) -> Result<c_int, Raise> {
    // A call is one operation of its own.
    stack.push_integer(0);
    Ok(1)
}

fn current_subop_version(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let (version, _) = stack.operate(Call::known)?;
    stack.push_bytes(format!("{version}.0").as_bytes());
    Ok(1)
}
