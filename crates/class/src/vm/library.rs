//! Native functions behind the prelude: what the base, string and table libraries need, each charged for its work.

use std::ffi::c_int;

use bytes::Bytes;

use super::keep;
use super::stack::{Native, Raise, Stack, ValueKind};
use crate::errno;
use crate::pattern::{self, Capture, Match, PatternError};

pub(super) const NATIVES: &[(&str, Native)] = &[
    ("last", last),
    ("no_method", no_method),
    ("chunk", chunk),
    ("watch", keep::watch),
    ("is_constant", keep::is_constant),
    ("keep", keep::keep),
    ("permit", permit),
    ("metatable", metatable),
    ("sorted_keys", sorted_keys),
    ("sort", sort),
    ("concat", concat),
    ("rep", rep),
    ("sub", sub),
    ("byte", byte),
    ("inspect_format", inspect_format),
    ("search", search),
    ("find", find),
    ("match", match_),
    ("gsub_text", gsub_text),
];

pub(super) const BUFFER_NATIVES: &[(&str, Native)] = &[
    ("new", buffer_new),
    ("str", buffer_str),
    ("append", buffer_append),
    ("__len", buffer_len),
    ("__concat", buffer_concat),
    ("__eq", buffer_eq),
    ("__lt", buffer_lt),
    ("__le", buffer_le),
];

/// Returns the last of its arguments; 0 if there is none.
fn last(stack: &Stack<'_>) -> Result<c_int, Raise> {
    match stack.top() {
        0 => stack.push_integer(0),
        top => stack.push_value(top),
    }
    Ok(1)
}

fn no_method(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let class = String::from_utf8_lossy(stack.bytes(1)?).into_owned();
    let method = String::from_utf8_lossy(stack.bytes(2)?).into_owned();
    Err(Raise::Errno(errno::EOPNOTSUPP, format!("class \"{class}\" has no method \"{method}\"")))
}

/// Returns the compiled text of a class of the call's catalogue, and what is kept of its environment.
fn chunk(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let name = String::from_utf8_lossy(stack.bytes(1)?).into_owned();
    let class = stack.call(|call| call.catalogue.class(&name).cloned());
    let class = class.map_err(|error| Raise::Errno(errno::EOPNOTSUPP, error))?;
    // Otherwise a method could let one text after the other be compiled, for next to nothing.
    let is_compiled = stack.host().compiled().contains_key(&class.id());
    let compiling = if is_compiled { 0 } else { class.text.len() as u64 / 32 };
    stack.charge(100 + compiling)?;
    stack.push_class(&class).map_err(Raise::Message)?;
    stack.push_kept(&class)?;
    Ok(2)
}

/// Sets whether the method that runs may write.
fn permit(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let writable = stack.truth(1);
    stack.call(|call| call.writable = writable);
    Ok(0)
}

fn metatable(stack: &Stack<'_>) -> Result<c_int, Raise> {
    if !stack.push_metatable(1) {
        stack.push_nil();
    }
    Ok(1)
}

/// A key of a table that has a place in an order.
enum SortKey {
    Integer(i64),
    Float(f64),
    Text(Bytes),
    Boolean(bool),
}

impl SortKey {
    fn rank(&self) -> u8 {
        match self {
            SortKey::Integer(_) | SortKey::Float(_) => 0,
            SortKey::Text(_) => 1,
            SortKey::Boolean(_) => 2,
        }
    }

    fn compare(&self, other: &Self) -> std::cmp::Ordering {
        let number = |key: &SortKey| match key {
            SortKey::Integer(value) => *value as f64,
            SortKey::Float(value) => *value,
            _ => 0.0,
        };
        // Integers beyond 2^53 are rounded as floats: those that come to the same number are told apart by what they are, so
        // that all three of two integers and a float between them have one order.
        let whole = |key: &SortKey| match key {
            SortKey::Integer(value) => i128::from(*value),
            SortKey::Float(value) => *value as i128,
            _ => 0,
        };
        match (self, other) {
            (SortKey::Text(a), SortKey::Text(b)) => a.cmp(b),
            (SortKey::Integer(a), SortKey::Integer(b)) => a.cmp(b),
            (SortKey::Boolean(a), SortKey::Boolean(b)) => a.cmp(b),
            _ => {
                let rounded = self.rank().cmp(&other.rank()).then(number(self).total_cmp(&number(other)));
                rounded.then(whole(self).cmp(&whole(other)))
            }
        }
    }
}

/// Appends bytes to a text that is being made, if there is memory for it.
fn append(stack: &Stack<'_>, out: &mut Vec<u8>, bytes: &[u8]) -> Result<(), Raise> {
    stack.grow(out.len() + bytes.len(), bytes.len())?;
    out.extend_from_slice(bytes);
    Ok(())
}

/// Counts the memory for a copy of a value that is to be sorted; `held` is that of those before it.
fn hold(stack: &Stack<'_>, held: &mut usize, index: c_int) -> Result<(), Raise> {
    let bytes = match stack.kind(index) {
        ValueKind::String => stack.to_bytes(index).map_or(0, <[u8]>::len),
        _ => 0,
    };
    *held += bytes + size_of::<SortKey>();
    stack.grow(*held, bytes)
}

/// Returns a value as a key with a place in an order.
fn sort_key(stack: &Stack<'_>, index: c_int) -> Option<SortKey> {
    match stack.kind(index) {
        ValueKind::Number if stack.is_integer(index) => stack.to_integer(index).map(SortKey::Integer),
        ValueKind::Number => stack.to_float(index).map(SortKey::Float),
        ValueKind::String => stack.to_bytes(index).map(|text| SortKey::Text(Bytes::copy_from_slice(text))),
        ValueKind::Boolean => Some(SortKey::Boolean(stack.truth(index))),
        _ => None,
    }
}

fn push_sort_key(stack: &Stack<'_>, key: &SortKey) {
    match key {
        SortKey::Integer(value) => stack.push_integer(*value),
        SortKey::Float(value) => stack.push_float(*value),
        SortKey::Text(text) => stack.push_bytes(text),
        SortKey::Boolean(value) => stack.push_boolean(*value),
    }
}

/// Returns an array of a table's keys: numbers, then strings, then booleans, each in ascending order.
fn sorted_keys(stack: &Stack<'_>) -> Result<c_int, Raise> {
    if stack.kind(1) != ValueKind::Table {
        return Err(stack.bad_argument(1, "table"));
    }
    let (mut keys, mut held) = (Vec::new(), 0);
    stack.push_nil();
    while stack.next(1) {
        stack.charge(1)?;
        stack.pop(1);
        let top = stack.top();
        hold(stack, &mut held, top)?;
        let Some(key) = sort_key(stack, top) else {
            let kind = stack.kind(top).name();
            return Err(Raise::Message(format!(
                "a key that is a {kind} has no place in the order of a table"
            )));
        };
        keys.push(key);
    }
    stack.charge(keys.len() as u64 / 2)?;
    keys.sort_by(SortKey::compare);
    stack.push_table(keys.len(), 0)?;
    for (index, key) in keys.iter().enumerate() {
        push_sort_key(stack, key);
        stack.set_element(index + 1);
    }
    Ok(1)
}

/// Sorts the first `n` elements of a table that are all numbers or all strings; returns false if they are not.
fn sort(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let count = stack.natural(2)?;
    stack.charge(count)?;
    let (mut keys, mut held) = (Vec::new(), 0);
    for number in 1..=count {
        stack.push_element(1, number as i64);
        hold(stack, &mut held, stack.top())?;
        let key = sort_key(stack, stack.top());
        stack.pop(1);
        match key {
            Some(key)
                if key.rank() < 2
                    && keys.first().is_none_or(|first: &SortKey| first.rank() == key.rank()) =>
            {
                keys.push(key);
            }
            _ => {
                stack.push_boolean(false);
                return Ok(1);
            }
        }
    }
    let steps = count.saturating_mul(u64::from(64 - count.leading_zeros()));
    stack.charge(steps / 4)?;
    keys.sort_by(SortKey::compare);
    stack.push_value(1);
    for (index, key) in keys.iter().enumerate() {
        push_sort_key(stack, key);
        stack.set_element(index + 1);
    }
    stack.push_boolean(true);
    Ok(1)
}

/// Concatenates the elements `i` to `j` of a table, which are strings or numbers.
fn concat(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let separator = Bytes::copy_from_slice(stack.bytes(2)?);
    let (first, end) = (stack.integer(3)?, stack.integer(4)?);
    let mut out = Vec::new();
    let mut number = first;
    while number <= end {
        stack.charge(1 + separator.len() as u64 / 64)?;
        stack.push_element(1, number);
        let top = stack.top();
        let Some(bytes) = stack.to_bytes(top) else {
            let kind = stack.kind(top).name();
            return Err(Raise::Message(format!(
                "invalid value (a {kind}) at index {number} in table for 'concat'"
            )));
        };
        append(stack, &mut out, bytes)?;
        stack.pop(1);
        if number == end {
            break;
        }
        append(stack, &mut out, &separator)?;
        number += 1;
    }
    stack.push_long(&out)?;
    Ok(1)
}

fn rep(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let text = stack.bytes(1)?;
    let count = stack.integer(2)?.max(0) as u64;
    let separator = if stack.is_absent(3) { &[][..] } else { stack.bytes(3)? };
    let total = (count as u128 * text.len() as u128)
        .saturating_add(count.saturating_sub(1) as u128 * separator.len() as u128);
    let total = usize::try_from(total).unwrap_or(usize::MAX);
    if total == 0 {
        stack.push_bytes(b"");
        return Ok(1);
    }
    // Twice: the bytes are made here, and become a string of Lua's.
    stack.reserve(total.saturating_mul(2))?;
    let mut out = Vec::with_capacity(total);
    out.extend_from_slice(text);
    if count > 1 {
        out.extend_from_slice(separator);
    }
    // The beginning is whole periods until the last step, so any part of it continues the text.
    while out.len() < total {
        out.extend_from_within(..out.len().min(total - out.len()));
    }
    stack.push_bytes(&out);
    Ok(1)
}

/// Converts a position as Lua's string functions take it, where -1 is the last byte, to one from 1.
fn position(value: i64, len: usize) -> i64 {
    match value {
        0.. => value,
        _ if value.unsigned_abs() > len as u64 => 0,
        _ => len as i64 + value + 1,
    }
}

/// Returns the range from `i` to `j` of a string, cut to it, from 0.
fn slice(len: usize, i: i64, j: i64) -> std::ops::Range<usize> {
    let start = position(i, len).max(1);
    let end = position(j, len).min(len as i64);
    if start > end { 0..0 } else { start as usize - 1..end as usize }
}

fn sub(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let text = stack.bytes(1)?;
    let end = if stack.is_absent(3) { -1 } else { stack.integer(3)? };
    let range = slice(text.len(), stack.integer(2)?, end);
    stack.push_long(&text[range])?;
    Ok(1)
}

fn byte(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let text = stack.bytes(1)?;
    let start = if stack.is_absent(2) { 1 } else { stack.integer(2)? };
    let start = position(start, text.len());
    let end = if stack.is_absent(3) { start } else { stack.integer(3)? };
    let range = slice(text.len(), start, end);
    stack.charge(range.len() as u64)?;
    if range.len() > 8 {
        stack.grow_by(range.len())?;
    }
    let bytes = &text[range];
    for byte in bytes {
        stack.push_integer((*byte).into());
    }
    Ok(bytes.len() as c_int)
}

/// Makes the text of `string.format` where that is an integer alone, for which Lua's own function takes several times as long; otherwise
/// as [`inspect_format`].
pub(super) fn format(stack: &Stack<'_>) -> Result<c_int, Raise> {
    if stack.top() != 2
        || stack.kind(2) != ValueKind::Number
        || !stack.is_integer(2)
        || stack.bytes(1)? != b"%d"
    {
        return inspect_format(stack);
    }
    let number = stack.integer(2)?;
    stack.charge(2)?;
    stack.push_bytes(number.to_string().as_bytes());
    Ok(1)
}

/// Charges for the arguments of `string.format`, and returns whether one of them has to be converted first. An address is
/// not to be had.
fn inspect_format(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let format = stack.bytes(1)?;
    let mut bytes = format.iter().copied();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            // Flags, width and precision come between the percent sign and the letter.
            let letter = bytes.by_ref().find(|byte| !b"-+ #0123456789.".contains(byte));
            if letter == Some(b'p') {
                return Err(Raise::Message("invalid conversion '%p' to 'format'".to_owned()));
            }
        }
    }
    let mut cost = format.len();
    let mut convert = false;
    for index in 2..=stack.top() {
        match stack.kind(index) {
            ValueKind::String => cost += stack.bytes(index)?.len(),
            ValueKind::Table | ValueKind::Function | ValueKind::Userdata => convert = true,
            _ => cost += 32,
        }
    }
    stack.charge(cost as u64 / 16)?;
    stack.push_boolean(convert);
    Ok(1)
}

/// Runs the matcher on the call's budget.
fn run(
    stack: &Stack<'_>,
    subject: &[u8],
    pattern: &[u8],
    from: usize,
    anchors: bool,
    not_ending_at: Option<usize>,
) -> Result<Option<Match>, Raise> {
    // Four steps of the matcher are about as much work as one instruction.
    let before = stack.host().instructions_left().saturating_mul(4);
    let mut left = before;
    let found = pattern::search(subject, pattern, from, anchors, not_ending_at, &mut left);
    stack.charge((before - left).div_ceil(4))?;
    found.map_err(|error| match error {
        PatternError::Invalid(text) => Raise::Message(text.to_owned()),
        PatternError::Exhausted => {
            // Steps are counted in fours, so the last of them may be unpaid.
            let _ = stack.charge(u64::MAX);
            Raise::Fatal
        }
    })
}

fn push_capture(stack: &Stack<'_>, subject: &[u8], capture: Capture) -> Result<(), Raise> {
    match capture {
        Capture::Text { start, end } => stack.push_long(&subject[start..end]),
        Capture::Position(at) => {
            stack.push_integer(at as i64 + 1);
            Ok(())
        }
    }
}

/// Returns the place to search from, as an optional argument gives it; none if it is behind the end.
fn initial(stack: &Stack<'_>, index: c_int, len: usize) -> Result<Option<usize>, Raise> {
    let init = if stack.is_absent(index) { 1 } else { stack.integer(index)? };
    let init = position(init, len).max(1) as usize - 1;
    Ok((init <= len).then_some(init))
}

/// Finds a match from a position on: its beginning, its end, its captures. Used by `gmatch` and `gsub`, which give the end
/// of the match before, so that no empty match follows it.
fn search(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let (subject, pattern) = (stack.bytes(1)?, stack.bytes(2)?);
    let from = stack.natural(3)? as usize;
    let anchors = stack.truth(4);
    let last = stack.to_integer(5).and_then(|last| usize::try_from(last).ok());
    let found = if from > subject.len() { None } else { run(stack, subject, pattern, from, anchors, last)? };
    let Some(found) = found else { return Ok(0) };
    stack.grow_by(40)?;
    stack.push_integer(found.start as i64);
    stack.push_integer(found.end as i64);
    let mut results = 2;
    for capture in found.values() {
        push_capture(stack, subject, capture)?;
        results += 1;
    }
    Ok(results)
}

fn find(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let (subject, pattern) = (stack.bytes(1)?, stack.bytes(2)?);
    let Some(from) = initial(stack, 3, subject.len())? else {
        stack.push_nil();
        return Ok(1);
    };
    if stack.truth(4) || pattern::is_plain(pattern) {
        match find_plain(stack, &subject[from..], pattern)? {
            Some(at) => {
                stack.push_integer((from + at) as i64 + 1);
                stack.push_integer((from + at + pattern.len()) as i64);
                return Ok(2);
            }
            None => stack.push_nil(),
        }
        return Ok(1);
    }
    let Some(found) = run(stack, subject, pattern, from, true, None)? else {
        stack.push_nil();
        return Ok(1);
    };
    stack.grow_by(40)?;
    stack.push_integer(found.start as i64 + 1);
    stack.push_integer(found.end as i64);
    for capture in &found.captures {
        push_capture(stack, subject, *capture)?;
    }
    Ok(2 + found.captures.len() as c_int)
}

/// Finds a text in another one, and charges for every comparison.
fn find_plain(stack: &Stack<'_>, subject: &[u8], text: &[u8]) -> Result<Option<usize>, Raise> {
    let Some(&first) = text.first() else { return Ok(Some(0)) };
    let mut from = 0;
    while subject.len() - from >= text.len() {
        let rest = &subject[from..=subject.len() - text.len()];
        let Some(at) = rest.iter().position(|byte| *byte == first) else {
            stack.charge(rest.len() as u64 / 16)?;
            return Ok(None);
        };
        stack.charge(1 + (at + text.len()) as u64 / 16)?;
        if subject[from + at..].starts_with(text) {
            return Ok(Some(from + at));
        }
        from += at + 1;
    }
    Ok(None)
}

fn match_(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let (subject, pattern) = (stack.bytes(1)?, stack.bytes(2)?);
    let found = match initial(stack, 3, subject.len())? {
        Some(from) => run(stack, subject, pattern, from, true, None)?,
        None => None,
    };
    let Some(found) = found else {
        stack.push_nil();
        return Ok(1);
    };
    stack.grow_by(40)?;
    let mut results = 0;
    for capture in found.values() {
        push_capture(stack, subject, capture)?;
        results += 1;
    }
    Ok(results)
}

/// `string.gsub` where the replacement is a string.
fn gsub_text(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let (subject, pattern) = (stack.bytes(1)?, stack.bytes(2)?);
    let replacement = stack.bytes(3)?;
    let max = if stack.is_absent(4) { u64::MAX } else { stack.integer(4)?.max(0) as u64 };
    let mut out: Vec<u8> = Vec::new();
    let (mut at, mut last, mut count) = (0, None, 0);
    while count < max && at <= subject.len() {
        let Some(found) = run(stack, subject, pattern, at, true, last)? else { break };
        count += 1;
        append(stack, &mut out, &subject[at..found.start])?;
        replace(stack, &mut out, subject, &found, replacement)?;
        (at, last) = (found.end, Some(found.end));
        if pattern.starts_with(b"^") {
            break;
        }
    }
    append(stack, &mut out, &subject[at.min(subject.len())..])?;
    stack.push_long(&out)?;
    stack.push_integer(count as i64);
    Ok(2)
}

/// Appends a replacement, with `%0` to `%9` and `%%` replaced in it.
fn replace(
    stack: &Stack<'_>,
    out: &mut Vec<u8>,
    subject: &[u8],
    found: &Match,
    replacement: &[u8],
) -> Result<(), Raise> {
    let mut rest = replacement;
    while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
        append(stack, out, &rest[..at])?;
        stack.charge(1)?;
        match rest.get(at + 1) {
            Some(b'%') => append(stack, out, b"%")?,
            Some(b'0') => append(stack, out, &subject[found.start..found.end])?,
            Some(digit @ b'1'..=b'9') => {
                let number = usize::from(digit - b'1');
                match found.values().nth(number) {
                    Some(Capture::Text { start, end }) => append(stack, out, &subject[start..end])?,
                    Some(Capture::Position(at)) => append(stack, out, (at + 1).to_string().as_bytes())?,
                    None => {
                        let text = format!("invalid capture index %{} in replacement string", number + 1);
                        return Err(Raise::Message(text));
                    }
                }
            }
            _ => return Err(Raise::Message("invalid use of '%' in replacement string".to_owned())),
        }
        rest = &rest[at + 2..];
    }
    append(stack, out, rest)
}

fn buffer_new(stack: &Stack<'_>) -> Result<c_int, Raise> {
    stack.charge(1)?;
    stack.push_new_buffer(Bytes::new())?;
    Ok(1)
}

fn buffer_str(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let id = stack.buffer(1)?;
    let bytes = stack.call(|call| call.buffers.freeze(id));
    stack.push_long(&bytes)?;
    Ok(1)
}

fn buffer_append(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let id = stack.buffer(1)?;
    if stack.kind(2) != ValueKind::String {
        return Err(stack.bad_argument(2, "string"));
    }
    let bytes = stack.bytes(2)?;
    let (copied, length, is_output) = stack.call(|call| {
        let length = call.buffers.get(id).len();
        let copied = if call.buffers.is_own(id) { 0 } else { length };
        (copied, length, id == call.output)
    });
    stack.charge((copied + bytes.len()) as u64 / 64)?;
    if is_output && length + bytes.len() > stack.host().output_max() {
        return Err(stack.fail(super::host::Fatal::Bound(crate::bounds::Bound::Output)));
    }
    if !stack.host().occupy(copied + bytes.len()) {
        return Err(Raise::Fatal);
    }
    stack.call(|call| call.buffers.append(id, bytes));
    Ok(0)
}

fn buffer_len(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let id = stack.buffer(1)?;
    let len = stack.call(|call| call.buffers.get(id).len());
    stack.push_integer(len as i64);
    Ok(1)
}

fn buffer_concat(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let (a, b) = (stack.buffer(1)?, stack.buffer(2)?);
    let len = stack.call(|call| call.buffers.get(a).len() + call.buffers.get(b).len());
    stack.charge(len as u64 / 64)?;
    if !stack.host().occupy(len) {
        return Err(Raise::Fatal);
    }
    let both = stack.call(|call| [call.buffers.get(a), call.buffers.get(b)].concat());
    stack.push_new_buffer(both.into())?;
    Ok(1)
}

/// Compares two buffers bytewise.
fn compare(stack: &Stack<'_>) -> Result<std::cmp::Ordering, Raise> {
    let (a, b) = (stack.buffer(1)?, stack.buffer(2)?);
    let (order, len) = stack.call(|call| {
        let (a, b) = (call.buffers.get(a), call.buffers.get(b));
        (a.cmp(b), a.len().min(b.len()))
    });
    stack.charge(len as u64 / 64)?;
    Ok(order)
}

fn buffer_eq(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let is_equal = compare(stack)?.is_eq();
    stack.push_boolean(is_equal);
    Ok(1)
}

fn buffer_lt(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let is_less = compare(stack)?.is_lt();
    stack.push_boolean(is_less);
    Ok(1)
}

fn buffer_le(stack: &Stack<'_>) -> Result<c_int, Raise> {
    let is_at_most = compare(stack)?.is_le();
    stack.push_boolean(is_at_most);
    Ok(1)
}
