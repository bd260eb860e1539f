//! `nacre`: what Nacre's objects have beyond those of Ceph.

use std::ffi::c_int;

use bytes::Bytes;
use nacre_object::limit::PAGE_ENTRIES_MAX;
use nacre_object::{Answer, ByteRange, ExtentKind, Fork, Key, KeyRange, ReadOp, WriteOp};

use super::objclass::{attribute, keys, value};
use super::stack::{Native, Raise, Stack, ValueKind};
use crate::call::{self, Call, Failed};
use crate::errno;

pub(super) const NATIVES: &[(&str, Native)] = &[
    ("version", version),
    ("exists", exists),
    ("epoch", epoch),
    ("size", size),
    ("forks", forks),
    ("read", read),
    ("extents", extents),
    ("write", write),
    ("zero", zero),
    ("truncate", truncate),
    ("remove_fork", remove_fork),
    ("get", get),
    ("set", set),
    ("unset", unset),
    ("keys", key_range),
    ("attribute", get_attribute),
    ("set_attribute", set_attribute),
    ("remove_attribute", remove_attribute),
    ("fail", fail),
];

/// Returns the fork that an argument names; the default one where there is none.
fn fork(stack: &Stack<'_>, index: c_int) -> Result<Fork, Raise> {
    if stack.is_absent(index) {
        return Ok(Fork::DEFAULT);
    }
    let name = stack.bytes(index)?;
    stack.operate(|_| call::fork(name))
}

fn version(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let (version, _) = stack.operate(Call::known)?;
    stack.push_integer(version as i64);
    Ok(1)
}

fn exists(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let (_, exists) = stack.operate(Call::known)?;
    stack.push_boolean(exists);
    Ok(1)
}

fn epoch(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let epoch = stack.call(|call| call.catalogue.epoch);
    stack.push_integer(epoch as i64);
    Ok(1)
}

fn size(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let fork = fork(stack, 1)?;
    let size = stack.operate(|call| call.size(&fork))?;
    stack.push_integer(size as i64);
    Ok(1)
}

fn forks(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let page = stack.operate(|call| {
        let read = ReadOp::Forks { after: None, limit: PAGE_ENTRIES_MAX as u32 };
        match call.ask(read)? {
            Answer::Forks(page) if page.more => Err(Failed::from(errno::E2BIG)),
            Answer::Forks(page) => Ok(page.clone()),
            _ => Err(errno::EIO.into()),
        }
    })?;
    stack.push_table(0, page.entries.len())?;
    for (fork, size) in &page.entries {
        if nacre_object::stage::is_reserved(fork) {
            continue;
        }
        stack.push_long(fork.as_bytes())?;
        stack.push_integer(*size as i64);
        stack.set_field();
    }
    Ok(1)
}

fn read(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let (offset, length) = (stack.natural(1)?, stack.natural(2)?);
    let fork = fork(stack, 3)?;
    let bytes = stack.operate(|call| call.read(&fork, offset, length))?.0;
    stack.push_long(&bytes)?;
    Ok(1)
}

fn extents(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let (offset, length) = (stack.natural(1)?, stack.natural(2)?);
    let fork = fork(stack, 3)?;
    let found = stack.operate(|call| {
        let range = Call::range(offset, length)?;
        call.extents(&fork, range).cloned()
    })?;
    stack.push_table(found.extents.len(), 0)?;
    for (index, extent) in found.extents.iter().enumerate() {
        stack.charge(8)?;
        stack.push_table(0, 4)?;
        let fields =
            [("offset", extent.range.offset), ("length", extent.range.len), ("version", extent.version)];
        for (name, number) in fields {
            stack.push_bytes(name.as_bytes());
            stack.push_integer(number as i64);
            stack.set_field();
        }
        stack.push_bytes(b"hole");
        stack.push_boolean(extent.kind == ExtentKind::Hole);
        stack.set_field();
        stack.set_element(index + 1);
    }
    stack.push_integer(found.version as i64);
    match found.next {
        Some(next) => stack.push_integer(next as i64),
        None => stack.push_nil(),
    }
    Ok(3)
}

fn write(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let offset = stack.natural(1)?;
    let data = stack.payload(2)?;
    let fork = fork(stack, 3)?;
    stack.operate(|call| {
        Call::range(offset, data.len() as u64)?;
        if data.is_empty() {
            return call.write(WriteOp::Create);
        }
        call.write(WriteOp::Extents { fork, extents: vec![(offset, data)] })
    })?;
    Ok(0)
}

fn zero(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let (offset, length) = (stack.natural(1)?, stack.natural(2)?);
    let fork = fork(stack, 3)?;
    stack.operate(|call| {
        let range = Call::range(offset, length)?;
        call.write(WriteOp::Zero { fork, range })
    })?;
    Ok(0)
}

fn truncate(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let size = stack.natural(1)?;
    let fork = fork(stack, 2)?;
    stack.operate(|call| {
        let ByteRange { len, .. } = Call::range(0, size)?;
        call.write(WriteOp::Truncate { fork, size: len })
    })?;
    Ok(0)
}

fn remove_fork(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let fork = fork(stack, 1)?;
    stack.operate(|call| call.write(WriteOp::RemoveFork { fork }))?;
    Ok(0)
}

fn get(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let key = stack.bytes(1)?;
    let found = stack.operate(|call| match call.ask(ReadOp::versioned_key(call.key(key)?))? {
        Answer::VersionedValue(value) => Ok(value.clone()),
        _ => Err(errno::EIO.into()),
    })?;
    match found {
        Some(found) => {
            stack.push_long(&found.value)?;
            stack.push_integer(found.version as i64);
        }
        None => {
            stack.push_nil();
            stack.push_integer(0);
        }
    }
    Ok(2)
}

fn set(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let key = stack.bytes(1)?;
    let value = stack.payload(2)?;
    stack.operate(|call| call.write(WriteOp::SetKey { key: call.key(key)?, value }))?;
    Ok(0)
}

fn unset(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let key = stack.bytes(1)?;
    stack.operate(|call| call.write(WriteOp::RemoveKey { key: call.key(key)? }))?;
    Ok(0)
}

/// Returns a field of the options at index 1 as bytes, if it is there.
fn option(stack: &Stack<'_>, name: &str) -> Result<Option<Bytes>, Raise> {
    stack.push_field(1, name);
    let top = stack.top();
    let found = match stack.kind(top) {
        ValueKind::Nil => None,
        ValueKind::String | ValueKind::Number => Some(Bytes::copy_from_slice(stack.bytes(top)?)),
        kind => return Err(Raise::Message(format!("keys: \"{name}\" is a {}", kind.name()))),
    };
    stack.pop(1);
    Ok(found)
}

fn key_range(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let mut range = KeyRange::all();
    let mut limit = PAGE_ENTRIES_MAX as u64;
    if !stack.is_absent(1) {
        if stack.kind(1) != ValueKind::Table {
            return Err(stack.bad_argument(1, "table"));
        }
        range.after = option(stack, "after")?;
        range.before = option(stack, "before")?;
        range.prefix = option(stack, "prefix")?.unwrap_or_default();
        stack.push_field(1, "limit");
        let top = stack.top();
        if !stack.is_absent(top) {
            limit = stack
                .to_integer(top)
                .and_then(|limit| u64::try_from(limit).ok())
                .ok_or_else(|| Raise::invalid("keys: \"limit\" is not a count"))?;
        }
        stack.pop(1);
    }
    let (entries, more) = stack.operate(|call| keys(call, &range, limit, true))?;
    stack.push_table(entries.len(), 0)?;
    stack.push_table(entries.len(), 0)?;
    // Two tables are on top: names below, values above. Each is filled through a copy of itself on top.
    let (names, values) = (stack.top() - 1, stack.top());
    for (index, (key, value)) in entries.iter().enumerate() {
        stack.charge(4)?;
        stack.push_value(names);
        stack.push_long(key.as_bytes())?;
        stack.set_element(index + 1);
        stack.push_value(values);
        stack.push_long(value)?;
        stack.set_element(index + 1);
        stack.pop(2);
    }
    stack.push_boolean(more);
    Ok(3)
}

fn name(stack: &Stack<'_>) -> Result<Key, Raise> {
    let bytes = stack.bytes(1)?;
    stack.operate(|_| attribute(bytes))
}

fn get_attribute(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let name = name(stack)?;
    match stack.operate(|call| value(call, ReadOp::Attribute { name }))? {
        Some(value) => stack.push_long(&value)?,
        None => stack.push_nil(),
    }
    Ok(1)
}

fn set_attribute(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let name = name(stack)?;
    let value = stack.payload(2)?;
    stack.operate(|call| call.write(WriteOp::SetAttribute { name, value }))?;
    Ok(0)
}

fn remove_attribute(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let name = name(stack)?;
    stack.operate(|call| call.write(WriteOp::RemoveAttribute { name }))?;
    Ok(0)
}

fn fail(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let number = stack.integer(1)?.unsigned_abs();
    let number = i32::try_from(number).ok().filter(|number| (1..4096).contains(number));
    let number = number.ok_or_else(|| Raise::invalid("fail: it is not an error number"))?;
    match stack.to_bytes(2) {
        Some(text) => {
            // A byte that is not UTF-8 becomes three.
            stack.reserve(text.len().saturating_mul(3))?;
            Err(Raise::Errno(number, String::from_utf8_lossy(text).into_owned()))
        }
        None => Err(Raise::errno(number)),
    }
}
