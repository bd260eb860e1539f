//! Guards: all of them hold or nothing happens; the first that fails is reported, with what stood there.

use ::bytes::Bytes;

use super::Case;
use super::trial::*;
use crate::limit::*;
use crate::*;

pub(super) const CASES: &[Case] = &[
    ("guards/existence", existence),
    ("guards/first failing", first_failing),
    ("guards/nothing applied", nothing_applied),
    ("guards/before the writes", before_the_writes),
    ("guards/refused region", refused_region),
    ("guards/refused region is cut", refused_region_is_cut),
    ("guards/checks of keys and attributes", checks),
    ("guards/version", version),
    ("guards/fence", fence),
];

const D: Fork = Fork::DEFAULT;

fn existence(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let refusal = t.refused(&a, tx().guard(Guard::Exists).write(D, 0, "x"))?;
    let expected = Refusal { guard: 0, found: Found::Object { exists: false }, version: 0 };
    same!(refusal, expected, "there is no such object");
    same!(t.stat(&a)?.exists, false, "and the refused write does not make it");
    t.done(&a, tx().guard(Guard::Absent).change(WriteOp::Create))?;
    let refusal = t.refused(&a, tx().guard(Guard::Absent).change(WriteOp::Create))?;
    let expected = Refusal { guard: 0, found: Found::Object { exists: true }, version: 1 };
    same!(refusal, expected, "only one creates it");
    t.done(&a, tx().guard(Guard::Exists).change(WriteOp::Remove))?;
    t.refused(&a, tx().guard(Guard::Exists))?;
    t.done(&a, tx().guard(Guard::Absent))?;
    Ok(())
}

fn first_failing(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let set = tx().write(D, 0, "data").change(WriteOp::SetKey { key: key("k"), value: "1".into() });
    let set = set.change(WriteOp::SetAttribute { name: key("k"), value: "2".into() });
    let set = set.change(WriteOp::RaiseFence { token: 5 }).change(WriteOp::FenceSession { session: 8 });
    t.done(&a, set)?;
    let holding = [
        Guard::Exists,
        Guard::Region { fork: D, range: span(0, 4), version: 1 },
        Guard::Proposal { fork: D, range: span(4, 8), version: 1 },
        Guard::Key { key: key("k"), check: Check::Equal("1".into()) },
        Guard::Attribute { name: key("k"), check: Check::Equal("2".into()) },
        Guard::Version { version: 1 },
        Guard::KeyVersion { key: key("k"), version: 1 },
        Guard::KeyVersion { key: key("none"), version: 0 },
        Guard::Size { fork: D, size: 4 },
        Guard::Size { fork: fork("none"), size: 0 },
        Guard::Fence { token: 5 },
    ];
    let region =
        RangeRead { data: "at".into(), extents: vec![data(1, 3, 1)], version: 1, size: 4, next: None };
    let failing = [
        (Guard::Absent, Found::Object { exists: true }),
        (Guard::Region { fork: D, range: span(1, 3), version: 0 }, Found::Region(region.clone())),
        (Guard::Proposal { fork: D, range: span(1, 3), version: 1 }, Found::Region(region)),
        (Guard::Key { key: key("k"), check: Check::Equal("2".into()) }, Found::Value(Some("1".into()))),
        (
            Guard::Attribute { name: key("k"), check: Check::Equal("1".into()) },
            Found::Value(Some("2".into())),
        ),
        (Guard::Key { key: key("none"), check: Check::Present }, Found::Value(None)),
        (Guard::Version { version: 0 }, Found::Object { exists: true }),
        (Guard::Version { version: 2 }, Found::Object { exists: true }),
        (Guard::KeyVersion { key: key("k"), version: 0 }, Found::KeyVersion(1)),
        (Guard::KeyVersion { key: key("k"), version: 2 }, Found::KeyVersion(1)),
        (Guard::KeyVersion { key: key("none"), version: 1 }, Found::KeyVersion(0)),
        (Guard::Size { fork: D, size: 3 }, Found::Size(4)),
        (Guard::Size { fork: D, size: 5 }, Found::Size(4)),
        (Guard::Size { fork: D, size: u64::MAX }, Found::Size(4)),
        (Guard::Size { fork: fork("none"), size: 1 }, Found::Size(0)),
        (Guard::Fence { token: 4 }, Found::Fence(5)),
        (Guard::Fence { token: 8 }, Found::Fence(5)),
    ];
    for (guard, found) in &failing {
        for at in 0..=holding.len() {
            // The guard under test stands at every place, and the others that fail stand after it.
            let mut guards = holding[..at].to_vec();
            guards.push(guard.clone());
            guards.extend_from_slice(&holding[at..]);
            guards.extend(failing.iter().map(|(guard, _)| guard.clone()));
            let refusal = t.refused(&a, Transaction { guards, ..tx().write(D, 0, "lost") })?;
            let expected = Refusal { guard: at, found: found.clone(), version: 1 };
            same!(refusal, expected, "the first guard that fails is reported, with what stood there");
        }
    }
    let done = t.done(&a, Transaction { guards: holding.to_vec(), ..tx().write(D, 0, "won!") })?;
    same!(done.version, 2, "with every guard holding, the transaction is applied");
    Ok(())
}

fn nothing_applied(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    t.done(&a, tx().write(D, 0, "keep").change(WriteOp::SetKey { key: key("k"), value: "v".into() }))?;
    let before = t.stat(&a)?;
    let writes = vec![
        WriteOp::Extents { fork: D, extents: vec![(0, "lost".into()), (90, "lost".into())] },
        WriteOp::Extents { fork: fork("f"), extents: vec![(0, "lost".into())] },
        WriteOp::Append { fork: D, data: "lost".into() },
        WriteOp::Zero { fork: D, range: span(1, 2) },
        WriteOp::Truncate { fork: D, size: 1 },
        WriteOp::RemoveFork { fork: D },
        WriteOp::ReplaceFork { fork: fork("f"), from: D },
        WriteOp::SetKey { key: key("k"), value: "lost".into() },
        WriteOp::SetKey { key: key("l"), value: "lost".into() },
        WriteOp::RemoveKey { key: key("k") },
        WriteOp::SetAttribute { name: key("a"), value: "lost".into() },
        WriteOp::RaiseFence { token: 7 },
        WriteOp::FenceSession { session: 9 },
        WriteOp::Remove,
    ];
    t.refused(&a, Transaction { writes, ..tx().if_version(D, span(0, 4), 0) })?;
    same!(t.stat(&a)?, before, "a refused transaction changes nothing");
    let read = t.range(&a, &D, span(0, 100))?;
    let kept =
        RangeRead { data: "keep".into(), extents: vec![data(0, 4, 1)], version: 1, size: 4, next: None };
    same!(read, kept, "not the bytes, nor their extents");
    same!(t.range(&a, &fork("f"), span(0, 100))?, RangeRead::default(), "in no fork");
    same!(t.key(&a, "k")?, Some("v".into()), "nor keys");
    same!(t.fences(&a)?, Fences::default(), "nor fences");
    Ok(())
}

fn before_the_writes(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let create = tx().guard(Guard::Absent).read(ReadOp::Stat).read_range(D, span(0, 9)).write(D, 0, "one");
    let create = create.change(WriteOp::SetKey { key: key("k"), value: "1".into() });
    let done = t.done(&a, create.read(ReadOp::Key { key: key("k") }))?;
    let answers =
        vec![Answer::Stat(Stat::default()), Answer::Range(RangeRead::default()), Answer::Value(None)];
    same!(done, Done { version: 1, existed: false, answers }, "reads see the object as it stood before");
    // A counter moved on in one transaction: its guard and its read see the old value.
    let swap = tx().guard(Guard::Key { key: key("k"), check: Check::Equal("1".into()) });
    let swap =
        swap.if_version(D, span(0, 3), 1).read_range(D, span(0, 3)).read(ReadOp::Key { key: key("k") });
    let done =
        t.done(&a, swap.change(WriteOp::SetKey { key: key("k"), value: "2".into() }).write(D, 0, "two"))?;
    let old = RangeRead { data: "one".into(), extents: vec![data(0, 3, 1)], version: 1, size: 3, next: None };
    same!(
        done.answers,
        vec![Answer::Range(old), Answer::Value(Some("1".into()))],
        "reads see the old values"
    );
    let removal = tx().guard(Guard::Exists).read(ReadOp::Stat).change(WriteOp::Remove);
    let Answer::Stat(stat) = t.done(&a, removal)?.answers.remove(0) else {
        return Err(Failure::new("a stat is answered by something else"));
    };
    same!((stat.exists, stat.keys, stat.bytes), (true, 1, 3), "also of what is being removed");
    Ok(())
}

fn refused_region(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let f = fork("f");
    t.done(&a, tx().write(f.clone(), 3, "abcdef"))?;
    t.done(&a, tx().write(f.clone(), 5, "X"))?;
    t.done(&a, tx().change(WriteOp::Zero { fork: f.clone(), range: span(7, 8) }))?;
    let found = RangeRead {
        data: Bytes::from_static(b"\0abXd\0f"),
        extents: vec![data(3, 5, 1), data(5, 6, 2), data(6, 7, 1), hole(7, 8, 3), data(8, 9, 1)],
        version: 3,
        size: 9,
        next: None,
    };
    let refusal = t.refused(&a, tx().if_version(f.clone(), span(2, 20), 2).write(f.clone(), 2, "lost"))?;
    same!(refusal.found, Found::Region(found.clone()), "a refusal shows bytes, extents, version and size");
    same!(t.range(&a, &f, span(2, 20))?, found, "just as a read does");
    let proposal = Guard::Proposal { fork: f.clone(), range: span(2, 20), version: 3 };
    same!(t.refused(&a, tx().guard(proposal))?.found, Found::Region(found), "so does a refused proposal");
    Ok(())
}

fn refused_region_is_cut(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let bytes = pattern(REFUSAL_BYTES_MAX + 10, 1);
    t.done(&a, tx().write(D, 0, bytes.clone()))?;
    t.done(&a, tx().write(D, REFUSAL_BYTES_MAX as u64 + 9, "!"))?;
    let cases =
        [(0, REFUSAL_BYTES_MAX, false), (0, REFUSAL_BYTES_MAX + 10, true), (9, REFUSAL_BYTES_MAX + 1, true)];
    for (offset, len, cut) in cases {
        let range = ByteRange::new(offset, len as u64);
        let Found::Region(found) = t.refused(&a, tx().if_version(D, range, 0))?.found else {
            return Err(Failure::new("a refused conditional write finds a region"));
        };
        let end = offset as usize + len.min(REFUSAL_BYTES_MAX);
        ensure!(found.data == bytes[offset as usize..end], "a refusal's bytes are those of the region");
        same!(found.next, cut.then_some(end as u64), "a refusal says where it was cut");
        let version = if range.end() == bytes.len() as u64 { 2 } else { 1 };
        same!(found.version, version, "its version is that of the whole region");
        same!(found.extents, vec![data(offset, end as u64, 1)], "its extents end where it was cut");
    }
    Ok(())
}

fn checks(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let values: [Option<&[u8]>; 7] =
        [None, Some(b""), Some(b"a"), Some(b"m"), Some(b"m\0"), Some(b"z"), Some(b"\xff\0\xfe")];
    let mut set = tx();
    for (index, value) in values.iter().enumerate() {
        if let Some(value) = value {
            let (name, value) = (key(&format!("{index}")), Bytes::from_static(value));
            set = set.change(WriteOp::SetKey { key: name.clone(), value: value.clone() });
            set = set.change(WriteOp::SetAttribute { name, value });
        }
    }
    t.done(&a, set)?;
    let mut cases = vec![Check::Present, Check::Absent];
    for operand in [&b""[..], b"a", b"m", b"m\0", b"z", b"\xff"] {
        let operand = Bytes::copy_from_slice(operand);
        cases.push(Check::Equal(operand.clone()));
        cases.push(Check::NotEqual(operand.clone()));
        cases.push(Check::Less(operand.clone()));
        cases.push(Check::LessOrEqual(operand.clone()));
        cases.push(Check::Greater(operand.clone()));
        cases.push(Check::GreaterOrEqual(operand));
    }
    for check in &cases {
        for (index, value) in values.iter().enumerate() {
            let name = key(&format!("{index}"));
            let guards = [
                Guard::Key { key: name.clone(), check: check.clone() },
                Guard::Attribute { name, check: check.clone() },
            ];
            for guard in guards {
                let text = format!("{guard:?} where there is {value:?}");
                let outcome = t.apply(&a, tx().guard(guard))?;
                if check.holds(*value) {
                    ensure!(matches!(outcome, Outcome::Done(_)), "{text} must hold");
                } else {
                    let found = Found::Value(value.map(Bytes::from_static));
                    let refusal = Refusal { guard: 0, found, version: 1 };
                    same!(outcome, Outcome::Refused(refusal), "{text} must fail, and show the value");
                }
            }
        }
    }
    // Keys and attributes are two name spaces.
    t.done(&a, tx().change(WriteOp::SetKey { key: key("only"), value: "v".into() }))?;
    t.done(&a, tx().guard(Guard::Attribute { name: key("only"), check: Check::Absent }))?;
    t.refused(&a, tx().guard(Guard::Key { key: key("only"), check: Check::Absent }))?;
    Ok(())
}

fn version(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let at = |version| tx().guard(Guard::Version { version });
    t.done(&a, at(0))?;
    let refusal = t.refused(&a, at(1).write(D, 0, "x"))?;
    let expected = Refusal { guard: 0, found: Found::Object { exists: false }, version: 0 };
    same!(refusal, expected, "an object that never was has version 0");
    t.done(&a, at(0).write(D, 0, "0123"))?;
    // Whatever is changed, wherever it is: the object is another version.
    let changes = [
        tx().write(D, 0, "0123"),
        tx().write(D, 100, "far"),
        tx().write(fork("other"), 0, "y"),
        tx().change(WriteOp::SetKey { key: key("k"), value: "1".into() }),
        tx().change(WriteOp::RemoveKey { key: key("k") }),
        tx().change(WriteOp::SetAttribute { name: key("k"), value: "1".into() }),
        tx().change(WriteOp::RaiseFence { token: 1 }),
        tx().change(WriteOp::RemoveFork { fork: fork("other") }),
    ];
    for (change, version) in changes.into_iter().zip(1..) {
        t.done(&a, change)?;
        let refusal = t.refused(&a, at(version).write(D, 0, "lost"))?;
        let expected = Refusal { guard: 0, found: Found::Object { exists: true }, version: version + 1 };
        same!(refusal, expected, "the object has changed");
        t.done(&a, at(version + 1).read(ReadOp::Stat))?;
        same!(t.stat(&a)?.version, version + 1, "reading changes nothing");
    }
    // A version is proposed, and holds from then on.
    let proposal = Guard::Proposal { fork: D, range: span(0, 4), version: 1000 };
    t.done(&a, at(9).guard(proposal).write(D, 0, "4567"))?;
    t.done(&a, at(1000).write(D, 0, "89ab"))?;
    t.done(&a, at(1001).change(WriteOp::Remove))?;
    let refusal = t.refused(&a, at(1001).write(D, 0, "back"))?;
    let expected = Refusal { guard: 0, found: Found::Object { exists: false }, version: 1002 };
    same!(refusal, expected, "a removal is a change, and its version stays");
    t.done(&a, at(1002).write(D, 0, "new"))?;
    Ok(())
}

fn fence(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    t.done(&a, tx().guard(Guard::Fence { token: 0 }))?;
    t.done(&a, tx().change(WriteOp::RaiseFence { token: 7 }))?;
    same!(t.stat(&a)?.fence, 7, "a fence rises");
    t.done(&a, tx().guard(Guard::Fence { token: 7 }).write(D, 0, "x"))?;
    t.done(&a, tx().guard(Guard::Fence { token: u64::MAX }).write(D, 0, "y"))?;
    same!(t.stat(&a)?.fence, 7, "a guard alone does not raise it");
    let refusal = t.refused(&a, tx().guard(Guard::Fence { token: 6 }).write(D, 0, "old"))?;
    same!(refusal, Refusal { guard: 0, found: Found::Fence(7), version: 3 }, "older tokens are refused");
    t.done(&a, tx().change(WriteOp::RaiseFence { token: 3 }))?;
    same!(t.stat(&a)?.fence, 7, "a fence never falls");
    let both = tx().guard(Guard::Fence { token: 7 }).change(WriteOp::RaiseFence { token: 9 });
    t.done(&a, both.change(WriteOp::RaiseFence { token: 8 }))?;
    same!(t.stat(&a)?.fence, 9, "a guard sees the fence as it stood before");
    t.done(&a, tx().change(WriteOp::Remove))?;
    same!(t.stat(&a)?.fence, 9, "a removal keeps it");
    t.refused(&a, tx().guard(Guard::Fence { token: 8 }).change(WriteOp::Create))?;
    t.done(&a, tx().change(WriteOp::Remove).change(WriteOp::RaiseFence { token: u64::MAX }))?;
    same!(t.stat(&a)?.fence, u64::MAX, "the greatest token is a token");
    t.refused(&a, tx().guard(Guard::Fence { token: u64::MAX - 1 }))?;
    Ok(())
}
