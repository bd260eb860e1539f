//! Keys and attributes.

use std::collections::BTreeMap;

use ::bytes::Bytes;

use super::Case;
use super::trial::*;
use crate::limit::*;
use crate::*;

pub(super) const CASES: &[Case] = &[
    ("keys/values", values),
    ("keys/ranges", ranges),
    ("keys/pages", pages),
    ("keys/binary", binary),
    ("keys/attributes", attributes),
    ("keys/no region version", no_region_version),
];

fn set(name: &Key, value: impl Into<Bytes>) -> WriteOp {
    WriteOp::SetKey { key: name.clone(), value: value.into() }
}

fn values(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let done = t.done(&a, tx().change(set(&key("k"), "v")).change(set(&key("empty"), "")))?;
    same!(done.version, 1, "keys take a version");
    same!(t.key(&a, "k")?, Some("v".into()), "a key has its value");
    same!(t.key(&a, "empty")?, Some(Bytes::new()), "an empty value is a value");
    same!(t.key(&a, "K")?, None, "names are compared bytewise");
    t.done(&a, tx().change(set(&key("k"), "w")))?;
    same!(t.key(&a, "k")?, Some("w".into()), "a key is set again");
    same!(t.stat(&a)?.keys, 2, "keys are counted");
    let remove = |name| WriteOp::RemoveKey { key: key(name) };
    let done = t.done(&a, tx().change(remove("k")).change(remove("none")))?;
    same!((done.version, t.key(&a, "k")?, t.stat(&a)?.keys), (3, None, 1), "a removed key is gone");
    let value = pattern(VALUE_BYTES_MAX, 3);
    t.done(&a, tx().change(set(&key("big"), value.clone())))?;
    ensure!(t.key(&a, "big")? == Some(value), "the largest value is a value");
    Ok(())
}

/// Returns the names of a page's keys.
fn names(page: &KeyPage) -> Vec<&[u8]> {
    page.entries.iter().map(|(name, _)| name.as_bytes()).collect()
}

fn ranges(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let all = ["a", "a/", "a/1", "a/2", "a/2/3", "a0", "b", "b/1", "c"];
    let transaction = all.iter().rev().fold(tx(), |tx, name| tx.change(set(&key(name), *name)));
    t.done(&a, transaction)?;
    let options = |list: &[&'static str]| -> Vec<Option<Bytes>> {
        std::iter::once(None)
            .chain(list.iter().map(|name| Some(Bytes::from_static(name.as_bytes()))))
            .collect()
    };
    for after in options(&["", "a", "a/", "a/1x", "b", "c", "\u{7f}"]) {
        for before in options(&["", "a", "a/2", "a/3", "b", "c", "\u{7f}"]) {
            for prefix in ["", "a", "a/", "a/2", "b", "bb", "c", "d"] {
                let range = KeyRange { after: after.clone(), before: before.clone(), prefix: prefix.into() };
                let expected: Vec<&[u8]> =
                    all.iter().map(|name| name.as_bytes()).filter(|name| range.contains(name)).collect();
                let page = t.keys(&a, range.clone(), 100, false)?;
                same!(names(&page), expected, "the keys of {range:?}");
                same!(page.more, false, "and there are no more of {range:?}");
            }
        }
    }
    Ok(())
}

fn pages(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let count = PAGE_ENTRIES_MAX + 76;
    let mut expected = BTreeMap::new();
    let mut fill = tx();
    for index in 0..count {
        let (name, value) = (key(&format!("k{index:05}")), Bytes::from(format!("value {index}")));
        fill = fill.change(set(&name, value.clone()));
        expected.insert(name, value);
    }
    t.done(&a, fill.change(set(&key("other"), "x")))?;
    same!(t.stat(&a)?.keys as usize, count + 1, "all keys are counted");
    for (limit, values) in [(7, true), (100, false), (u32::MAX, true)] {
        let mut found = BTreeMap::new();
        let mut range = KeyRange::prefix("k");
        loop {
            let page = t.keys(&a, range.clone(), limit, values)?;
            let most = (limit as usize).min(PAGE_ENTRIES_MAX);
            let left = count - found.len();
            same!(
                page.entries.len(),
                left.min(most),
                "a page holds what was asked for, and at most the limit"
            );
            same!(page.more, left > most, "a page says whether there are more");
            ensure!(page.entries.is_sorted(), "keys ascend");
            range.after = page.entries.last().map(|(name, _)| name.to_bytes());
            found.extend(page.entries);
            if !page.more {
                break;
            }
        }
        ensure!(found.keys().eq(expected.keys()), "pages of {limit} give every key once");
        let right = found
            .iter()
            .all(|(name, value)| if values { *value == expected[name] } else { value.is_empty() });
        ensure!(right, "values are given where they were asked for, and only there");
    }
    let none = t.keys(&a, KeyRange::prefix("k"), 0, true)?;
    same!((none.entries.len(), none.more), (0, true), "a page of nothing says that there are more");
    Ok(())
}

fn binary(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let longest = vec![0xfd; KEY_BYTES_MAX];
    let raw: [&[u8]; 9] = [b"\0", b"\0\0", b"\0\xff", b"a", b"a\0", b"a\0b", b"\xff", b"\xff\xff", &longest];
    let mut expected = Vec::new();
    for (index, name) in raw.into_iter().enumerate() {
        let (name, value) =
            (Key::new(Bytes::copy_from_slice(name))?, Bytes::from(vec![index as u8, 0, 0xff]));
        t.done(&a, tx().change(set(&name, value.clone())))?;
        expected.push((name, value));
    }
    expected.sort();
    same!(t.keys(&a, KeyRange::all(), 100, true)?.entries, expected, "names and values may be any bytes");
    let page = t.keys(&a, KeyRange::prefix(&b"\xff"[..]), 100, true)?;
    same!(page.entries.len(), 2, "a prefix may be the greatest byte");
    let page = t.keys(&a, KeyRange { after: Some(longest.into()), ..KeyRange::all() }, 100, true)?;
    same!(page.entries.len(), 2, "a page may begin after the longest name");
    t.done(&a, tx().change(WriteOp::RemoveKey { key: Key::new(&b"a\0"[..])? }))?;
    same!(t.stat(&a)?.keys, 8, "of names that begin alike only the one is removed");
    Ok(())
}

fn attributes(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let set =
        |name: &str, value: &'static str| WriteOp::SetAttribute { name: key(name), value: value.into() };
    t.done(&a, tx().change(set("b", "2")).change(set("a", "1")).change(set("c", "")))?;
    t.done(&a, tx().change(WriteOp::SetKey { key: key("a"), value: "key".into() }))?;
    let read = || tx().read(ReadOp::Attributes).read(ReadOp::Attribute { name: key("a") });
    let done = t.done(&a, read().read(ReadOp::Attribute { name: key("d") }))?;
    let page = KeyPage {
        entries: vec![(key("a"), "1".into()), (key("b"), "2".into()), (key("c"), "".into())],
        more: false,
    };
    let answers = vec![Answer::Keys(page), Answer::Value(Some("1".into())), Answer::Value(None)];
    same!(done.answers, answers, "attributes are listed in order, apart from keys");
    same!((t.stat(&a)?.attributes, t.stat(&a)?.keys), (3, 1), "and counted apart");
    let remove = |name: &str| WriteOp::RemoveAttribute { name: key(name) };
    t.done(&a, tx().change(remove("b")).change(remove("none")).change(set("a", "one")))?;
    let page = KeyPage { entries: vec![(key("a"), "one".into()), (key("c"), "".into())], more: false };
    same!(t.done(&a, read())?.answers[0], Answer::Keys(page), "they are set again and removed");
    same!(t.key(&a, "a")?, Some("key".into()), "without touching a key of that name");
    Ok(())
}

fn no_region_version(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    t.done(&a, tx().write(Fork::DEFAULT, 0, "data"))?;
    t.done(
        &a,
        tx().change(set(&key("k"), "v")).change(WriteOp::SetAttribute { name: key("a"), value: "v".into() }),
    )?;
    t.done(&a, tx().change(WriteOp::RaiseFence { token: 1 }).change(WriteOp::Create))?;
    same!(t.stat(&a)?.version, 3, "keys, attributes and fences take versions");
    let done =
        t.done(&a, tx().if_version(Fork::DEFAULT, ByteRange::ALL, 1).write(Fork::DEFAULT, 0, "more"))?;
    same!(done.version, 4, "but do not make bytes newer");
    Ok(())
}
