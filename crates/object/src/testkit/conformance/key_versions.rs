//! Versions of keys: each is that of the transaction that last set the key, and goes with the key.

use ::bytes::Bytes;

use super::trial::*;
use super::{Case, Failure};
use crate::limit::*;
use crate::*;

pub(super) const CASES: &[Case] = &[
    ("key versions/last set", last_set),
    ("key versions/guarded", guarded),
    ("key versions/pages", pages),
    ("key versions/budget", budget),
];

fn set(name: &str, value: impl Into<Bytes>) -> WriteOp {
    WriteOp::SetKey { key: key(name), value: value.into() }
}

fn remove(name: &str) -> WriteOp {
    WriteOp::RemoveKey { key: key(name) }
}

fn at(name: &str, version: u64) -> Guard {
    Guard::KeyVersion { key: key(name), version }
}

fn versioned(value: impl Into<Bytes>, version: u64) -> Versioned {
    Versioned { value: value.into(), version }
}

fn last_set(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    same!(t.versioned_key(&a, "k")?, None, "a key that was never set has no version");
    t.done(&a, tx().write(Fork::DEFAULT, 0, "x"))?;
    t.done(&a, tx().change(set("k", "v")).change(set("l", "")))?;
    same!(t.versioned_key(&a, "k")?, Some(versioned("v", 2)), "a key has the version that set it");
    same!(t.versioned_key(&a, "l")?, Some(versioned("", 2)), "and so has one without a value");
    t.done(&a, tx().write(Fork::DEFAULT, 0, "y").change(set("l", "2")))?;
    let attribute = WriteOp::SetAttribute { name: key("k"), value: "attribute".into() };
    t.done(&a, tx().change(attribute).change(remove("none")))?;
    same!(t.versioned_key(&a, "k")?, Some(versioned("v", 2)), "whatever happens to the rest of the object");
    same!(t.versioned_key(&a, "l")?, Some(versioned("2", 3)), "a key that is set again has a new version");
    t.done(&a, tx().change(set("k", "v")))?;
    same!(t.versioned_key(&a, "k")?, Some(versioned("v", 5)), "though it is set to the same value");
    t.done(&a, tx().change(set("k", "1")).change(remove("k")).change(set("k", "2")).change(remove("l")))?;
    same!(t.versioned_key(&a, "k")?, Some(versioned("2", 6)), "the last change of a transaction counts");
    same!(t.versioned_key(&a, "l")?, None, "the version of a removed key is gone with it");
    let proposal = Guard::Proposal { fork: Fork::DEFAULT, range: span(0, 1), version: 100 };
    t.done(&a, tx().guard(proposal).change(set("m", "3")))?;
    same!(t.versioned_key(&a, "m")?, Some(versioned("3", 100)), "a version may be proposed");
    let read = tx().read(ReadOp::versioned_key(key("m"))).change(set("m", "4"));
    let answers = t.done(&a, read)?.answers;
    same!(answers, [Answer::VersionedValue(Some(versioned("3", 100)))], "a read sees the key as it stood");
    t.done(&a, tx().change(set("n", "5")).change(WriteOp::Remove).change(set("o", "6")))?;
    let page = VersionedKeyPage { entries: vec![(key("o"), versioned("6", 102))], more: false };
    let all = ReadOp::VersionedKeys { range: KeyRange::all(), limit: 9, values: true };
    same!(t.answer(&a, all)?, Answer::VersionedKeys(page), "a removal of the object takes all keys");
    Ok(())
}

fn guarded(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    t.done(&a, tx().guard(at("k", 0)))?;
    let refusal = t.refused(&a, tx().guard(at("k", 1)).change(set("k", "lost")))?;
    let expected = Refusal { guard: 0, found: Found::KeyVersion(0), version: 0 };
    same!(refusal, expected, "a key that was never set is found at 0");
    t.done(&a, tx().guard(at("k", 0)).change(set("k", "a")))?;
    let refusal = t.refused(&a, tx().guard(at("k", 0)).change(set("k", "lost")))?;
    let expected = Refusal { guard: 0, found: Found::KeyVersion(1), version: 1 };
    same!(refusal, expected, "only one makes it");
    t.done(&a, tx().guard(at("k", 1)).change(set("other", "x")))?;
    t.done(&a, tx().guard(at("k", 1)).guard(at("other", 2)).change(set("k", "b")))?;
    // It goes back to its first value, and is not what it was.
    t.done(&a, tx().guard(at("k", 3)).change(set("k", "a")))?;
    for version in [0, 1, 2, 3, 5, u64::MAX] {
        let refusal = t.refused(&a, tx().guard(at("k", version)).change(set("k", "lost")))?;
        let expected = Refusal { guard: 0, found: Found::KeyVersion(4), version: 4 };
        same!(refusal, expected, "version {version} is not the key's");
    }
    let refusal = t.refused(&a, tx().guard(at("k", 4)).guard(at("other", 4)))?;
    same!((refusal.guard, refusal.found), (1, Found::KeyVersion(2)), "each key has its own version");
    t.done(&a, tx().guard(at("k", 4)).change(remove("k")))?;
    same!(t.refused(&a, tx().guard(at("k", 4)))?.found, Found::KeyVersion(0), "a removed key is at 0");
    t.done(&a, tx().guard(at("k", 0)).change(set("k", "a")))?;
    let refusal = t.refused(&a, tx().guard(at("k", 4)))?;
    same!(refusal.found, Found::KeyVersion(6), "and never at its old version again");
    t.done(&a, tx().change(WriteOp::Remove))?;
    t.done(&a, tx().guard(at("k", 0)).guard(Guard::Absent).change(set("k", "a")))?;
    same!(t.refused(&a, tx().guard(at("k", 6)))?.found, Found::KeyVersion(8), "nor after a removal");
    // Attributes are another name space, and have no versions.
    t.done(&a, tx().change(WriteOp::SetAttribute { name: key("only"), value: "x".into() }))?;
    t.done(&a, tx().guard(at("only", 0)).guard(at("k", 8)))?;
    Ok(())
}

fn pages(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let count = 40;
    for index in 0..count {
        t.done(&a, tx().change(set(&format!("k{index:02}"), format!("{index}"))))?;
    }
    // The first half is set again, so that versions do not ascend with the keys.
    for index in 0..count / 2 {
        t.done(&a, tx().change(set(&format!("k{index:02}"), format!("{index}"))))?;
    }
    t.done(&a, tx().change(set("other", "x")))?;
    for (limit, values) in [(7, true), (40, false), (u32::MAX, true)] {
        let mut range = KeyRange::prefix("k");
        let mut found = Vec::new();
        loop {
            let read = ReadOp::VersionedKeys { range: range.clone(), limit, values };
            let both = tx().read(read).read(ReadOp::Keys { range: range.clone(), limit, values });
            let answers = t.done(&a, both)?.answers;
            let [Answer::VersionedKeys(page), Answer::Keys(plain)] = &answers[..] else {
                return Err(Failure::new(format!("{answers:?} answer reads of keys")));
            };
            same!(page.more, plain.more, "a page says whether there are more");
            let pairs = page.entries.iter().map(|(key, found)| (key.clone(), found.value.clone()));
            same!(
                pairs.collect::<Vec<_>>(),
                plain.entries,
                "keys and values are those of a page without versions"
            );
            found.extend(page.entries.iter().map(|(key, found)| (key.clone(), found.version)));
            range.after = page.entries.last().map(|(key, _)| key.to_bytes());
            if !page.more {
                break;
            }
        }
        let version = |index: u64| if index < count / 2 { count + index + 1 } else { index + 1 };
        let expected: Vec<_> =
            (0..count).map(|index| (key(&format!("k{index:02}")), version(index))).collect();
        same!(found, expected, "every key has its own version, in pages of {limit}");
    }
    Ok(())
}

fn budget(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let value = pattern(VALUE_BYTES_MAX, 7);
    let names: Vec<String> = (0..17).map(|index| format!("k{index:02}")).collect();
    for name in &names {
        t.done(&a, tx().change(set(name, value.clone())))?;
    }
    let all = || ReadOp::VersionedKeys { range: KeyRange::all(), limit: 100, values: true };
    let answers = t.done(&a, tx().read(all()).read(all()))?.answers;
    let [Answer::VersionedKeys(first), Answer::VersionedKeys(second)] = &answers[..] else {
        return Err(Failure::new("two reads of keys are answered by something else"));
    };
    same!((first.entries.len(), first.more), (15, true), "values fill a reply");
    same!((second.entries.len(), second.more), (0, true), "what comes behind finds no room");
    let right = |(index, (name, found)): (usize, &(Key, Versioned))| {
        name.as_bytes() == names[index].as_bytes()
            && found.version == index as u64 + 1
            && found.value == value
    };
    ensure!(first.entries.iter().enumerate().all(right), "they are the first keys, with their versions");
    let one = ReadOp::versioned_key(key("k16"));
    let answers = t.done(&a, tx().read(all()).read(one))?.answers;
    let whole = Answer::VersionedValue(Some(versioned(value, 17)));
    ensure!(answers[1..] == [whole], "the value of one key is given whole all the same");
    Ok(())
}
