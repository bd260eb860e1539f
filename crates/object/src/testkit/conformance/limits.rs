//! Limits: a request beyond one is an error of kind `Invalid` and changes nothing; a request at one is
//! accepted.

use ::bytes::Bytes;

use super::Case;
use super::trial::*;
use crate::limit::*;
use crate::*;

pub(super) const CASES: &[Case] = &[
    ("limits/payload", payload),
    ("limits/operations", operations),
    ("limits/extents", extents),
    ("limits/values", values),
    ("limits/attributes", attributes),
    ("limits/offsets", offsets),
    ("limits/before guards", before_guards),
];

const D: Fork = Fork::DEFAULT;

fn payload(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    t.invalid(&a, tx().write(D, 0, vec![1; TRANSACTION_BYTES_MAX + 1]))?;
    let half = Bytes::from(vec![2; TRANSACTION_BYTES_MAX / 2]);
    t.invalid(&a, tx().write(D, 0, half.clone()).write(fork("f"), 0, half.clone()).write(D, 9, "x"))?;
    let operand = tx().guard(Guard::Key { key: key("k"), check: Check::NotEqual("x".into()) });
    t.invalid(&a, operand.write(D, 0, half.clone()).write(D, 0, half.clone()))?;
    same!(t.stat(&a)?.exists, false, "a transaction that is too large does not make its object");
    let bytes = pattern(TRANSACTION_BYTES_MAX, 5);
    t.done(&a, tx().write(D, 3, bytes.clone()))?;
    let read = t.range(&a, &D, ByteRange::new(3, TRANSACTION_BYTES_MAX as u64))?;
    ensure!(read.data == bytes && read.next.is_none(), "the largest transaction is written and read back");
    Ok(())
}

fn operations(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let third = OPERATIONS_MAX / 3;
    let make = |extra: usize| Transaction {
        guards: vec![Guard::Fence { token: 0 }; third],
        reads: vec![ReadOp::Stat; third],
        writes: vec![WriteOp::Create; OPERATIONS_MAX - 2 * third + extra],
    };
    t.invalid(&a, make(1))?;
    t.invalid(&a, Transaction { reads: vec![ReadOp::Stat; OPERATIONS_MAX + 1], ..tx() })?;
    let done = t.done(&a, make(0))?;
    same!((done.version, done.answers.len()), (1, third), "as many operations as allowed are applied");
    Ok(())
}

fn extents(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let list = |count: usize| -> Vec<(u64, Bytes)> {
        (0..count as u64).map(|index| (index * 2, Bytes::from_static(b"e"))).collect()
    };
    let all = WriteOp::Extents { fork: D, extents: list(EXTENTS_PER_TRANSACTION_MAX) };
    let one = WriteOp::Extents { fork: fork("f"), extents: list(1) };
    t.invalid(&a, tx().change(all.clone()).change(one))?;
    same!(t.stat(&a)?.exists, false, "too many extents write none");
    t.done(&a, tx().change(all))?;
    same!(t.stat(&a)?.bytes, 2 * EXTENTS_PER_TRANSACTION_MAX as u64 - 1, "as many as allowed are written");
    let from = 2 * (EXTENTS_PER_TRANSACTION_MAX as u64 - 2);
    let last = t.extents(&a, &D, span(from, OFFSET_MAX))?;
    same!(last.extents, vec![data(from, from + 1, 1), data(from + 2, from + 3, 1)], "to the last");
    Ok(())
}

fn values(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let long = Bytes::from(vec![3; VALUE_BYTES_MAX + 1]);
    t.invalid(&a, tx().write(D, 0, "x").change(WriteOp::SetKey { key: key("k"), value: long.clone() }))?;
    t.invalid(
        &a,
        tx().change(WriteOp::SetAttribute { name: key("k"), value: long.slice(..ATTRIBUTE_BYTES_MAX + 1) }),
    )?;
    same!(t.stat(&a)?, Stat::default(), "a value that is too long changes nothing");
    let attribute = long.slice(..ATTRIBUTE_BYTES_MAX);
    t.done(&a, tx().change(WriteOp::SetAttribute { name: key("k"), value: attribute.clone() }))?;
    let read = t.answer(&a, ReadOp::Attribute { name: key("k") })?;
    ensure!(read == Answer::Value(Some(attribute)), "the longest attribute is an attribute");
    let longest = Key::new(vec![b'k'; KEY_BYTES_MAX])?;
    t.done(&a, tx().change(WriteOp::SetKey { key: longest.clone(), value: "v".into() }))?;
    same!(
        t.answer(&a, ReadOp::Key { key: longest })?,
        Answer::Value(Some("v".into())),
        "the longest key is a key"
    );
    let id = [t.object("b").as_bytes(), &[b'b'; OBJECT_ID_BYTES_MAX]].concat();
    let longest = ObjectId::new(id[..OBJECT_ID_BYTES_MAX].to_vec())?;
    t.done(&longest, tx().guard(Guard::Absent).write(D, 0, "x"))?;
    same!(t.stat(&longest)?.bytes, 1, "the longest object id names an object");
    Ok(())
}

fn attributes(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let set = |index: usize| WriteOp::SetAttribute { name: key(&format!("{index:03}")), value: "v".into() };
    let fill = Transaction { writes: (0..ATTRIBUTES_MAX).map(set).collect(), ..tx() };
    t.done(&a, fill.clone())?;
    same!(t.stat(&a)?.attributes as usize, ATTRIBUTES_MAX, "an object has as many attributes as allowed");
    t.invalid(&a, tx().write(D, 0, "x").change(set(ATTRIBUTES_MAX)).write(D, 1, "y"))?;
    same!(
        t.range(&a, &D, ByteRange::ALL)?,
        RangeRead::default(),
        "one too many changes nothing, bytes neither"
    );
    t.done(&a, tx().change(set(7)))?;
    t.done(&a, tx().change(WriteOp::RemoveAttribute { name: key("007") }))?;
    t.done(&a, tx().change(set(ATTRIBUTES_MAX)))?;
    t.invalid(&a, tx().change(set(7)))?;
    let refused = tx().guard(Guard::Absent).change(set(7));
    same!(t.refused(&a, refused)?.guard, 0, "a refused transaction would not have exceeded it");
    t.done(&a, Transaction { writes: vec![WriteOp::Remove, set(7)], ..tx() })?;
    same!(t.stat(&a)?.attributes, 1, "a removal makes room");
    t.invalid(&t.object("b"), fill.change(set(ATTRIBUTES_MAX)))?;
    same!(
        t.stat(&t.object("b"))?,
        Stat::default(),
        "and an object that exceeded it from the start is not made"
    );
    Ok(())
}

fn offsets(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    t.done(&a, tx().write(D, 0, "data"))?;
    let ranges = [
        ByteRange::new(OFFSET_MAX, 1),
        ByteRange::new(1, OFFSET_MAX),
        ByteRange::new(0, OFFSET_MAX + 1),
        ByteRange::new(OFFSET_MAX + 1, 0),
        ByteRange::new(u64::MAX, 1),
        ByteRange::new(1, u64::MAX),
        ByteRange::new(u64::MAX, u64::MAX),
    ];
    for range in ranges {
        t.invalid(&a, tx().read_range(D, range))?;
        t.invalid(&a, tx().read(ReadOp::Extents { fork: D, range }))?;
        t.invalid(&a, tx().if_version(D, range, u64::MAX).write(D, 0, "lost"))?;
        t.invalid(&a, tx().guard(Guard::Proposal { fork: D, range, version: 9 }).write(D, 0, "lost"))?;
        t.invalid(&a, tx().write(D, 0, "lost").change(WriteOp::Zero { fork: D, range }))?;
    }
    for offset in [OFFSET_MAX - 2, OFFSET_MAX, u64::MAX - 1, u64::MAX] {
        t.invalid(&a, tx().write(D, 0, "lost").write(D, offset, "xyz"))?;
        let extents = vec![(0, "lost".into()), (offset, "xyz".into()), (4, "lost".into())];
        t.invalid(&a, tx().change(WriteOp::Extents { fork: D, extents }))?;
    }
    for size in [OFFSET_MAX + 1, u64::MAX] {
        t.invalid(&a, tx().write(D, 0, "lost").change(WriteOp::Truncate { fork: D, size }))?;
    }
    let read = t.range(&a, &D, ByteRange::ALL)?;
    same!((&read.data[..], read.version), (&b"data"[..], 1), "none of them changed a byte");
    t.done(&a, tx().read_range(D, span(OFFSET_MAX, OFFSET_MAX)).if_version(D, ByteRange::ALL, 1))?;
    Ok(())
}

fn before_guards(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let past = ByteRange::new(OFFSET_MAX, 1);
    t.invalid(&a, tx().guard(Guard::Exists).read_range(D, past))?;
    t.invalid(&a, tx().guard(Guard::Exists).change(WriteOp::Truncate { fork: D, size: u64::MAX }))?;
    Ok(())
}
