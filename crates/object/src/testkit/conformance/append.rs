//! Appends, which write at the end of a fork, and guards of a fork's size.

use super::Case;
use super::concurrency::clients;
use super::trial::*;
use crate::limit::*;
use crate::testkit::block_on;
use crate::*;

pub(super) const CASES: &[Case] = &[
    ("append/at the end", at_the_end),
    ("append/in one transaction", in_one_transaction),
    ("append/of many bytes", many_bytes),
    ("append/past the last offset", past_the_last_offset),
    ("append/by many", by_many),
];

const D: Fork = Fork::DEFAULT;

fn append(fork: &Fork, data: impl Into<::bytes::Bytes>) -> WriteOp {
    WriteOp::Append { fork: fork.clone(), data: data.into() }
}

fn at_the_end(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let f = fork("f");
    t.done(&a, tx().change(append(&f, "one")))?;
    let read = t.range(&a, &f, span(0, 9))?;
    let expected =
        RangeRead { data: "one".into(), extents: vec![data(0, 3, 1)], version: 1, size: 3, next: None };
    same!(read, expected, "an append makes object and fork, and begins at 0");
    let size = ReadOp::Extents { fork: f.clone(), range: span(0, 0) };
    let done = t.done(&a, tx().read(size).change(append(&f, "two")))?;
    let [Answer::Range(before)] = &done.answers[..] else {
        return Err(Failure::new("a read of extents is answered by something else"));
    };
    same!(before.size, 3, "a read beside it tells where it began");
    same!(t.range(&a, &f, span(0, 9))?.extents, vec![data(0, 3, 1), data(3, 6, 2)], "behind what was there");
    t.done(&a, tx().change(WriteOp::Truncate { fork: f.clone(), size: 9 }))?;
    t.done(&a, tx().change(append(&f, "!")))?;
    let read = t.range(&a, &f, span(0, 20))?;
    same!(&read.data[..], &b"onetwo\0\0\0!"[..], "a size without bytes counts");
    t.done(&a, tx().change(WriteOp::Zero { fork: f.clone(), range: span(0, 10) }))?;
    t.done(&a, tx().change(append(&f, "x")))?;
    same!(t.range(&a, &f, span(0, 20))?.size, 11, "so do zeros");
    t.done(&a, tx().change(append(&D, "")))?;
    same!((t.stat(&a)?.forks, t.stat(&a)?.bytes), (2, 11), "no bytes make a fork too");
    let refusal =
        t.refused(&a, tx().guard(Guard::Size { fork: f.clone(), size: 10 }).change(append(&f, "?")))?;
    same!(refusal.found, Found::Size(11), "a guard of the size shows the size");
    t.done(&a, tx().guard(Guard::Size { fork: f.clone(), size: 11 }).change(append(&f, "y")))?;
    t.done(&a, tx().change(WriteOp::Remove))?;
    t.done(&a, tx().change(append(&f, "z")))?;
    same!(&t.range(&a, &f, span(0, 9))?.data[..], &b"z"[..], "a removal takes all there was");
    Ok(())
}

fn in_one_transaction(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let (f, g) = (fork("f"), fork("g"));
    t.done(&a, tx().change(append(&D, "a")).change(append(&D, "b")).change(append(&f, "c")))?;
    same!(&t.range(&a, &D, span(0, 9))?.data[..], &b"ab"[..], "appends of one transaction follow each other");
    let all = tx().write(D, 5, "x").change(append(&D, "y")).change(WriteOp::Truncate { fork: D, size: 3 });
    let all =
        all.change(append(&D, "z")).change(WriteOp::RemoveFork { fork: f.clone() }).change(append(&f, "n"));
    t.done(&a, all)?;
    same!(&t.range(&a, &D, span(0, 9))?.data[..], &b"ab\0z"[..], "and the writes before them");
    same!(&t.range(&a, &f, span(0, 9))?.data[..], &b"n"[..], "also a removal");
    let replace = |fork: &Fork, from: &Fork| WriteOp::ReplaceFork { fork: fork.clone(), from: from.clone() };
    t.done(&a, tx().change(replace(&g, &D)).change(append(&g, "!")).change(append(&D, "D")))?;
    same!(&t.range(&a, &g, span(0, 9))?.data[..], &b"ab\0z!"[..], "a fork is as long as what replaced it");
    same!(&t.range(&a, &D, span(0, 9))?.data[..], &b"D"[..], "and what was taken is empty");
    t.done(&a, tx().change(replace(&g, &fork("none"))).change(append(&g, "?")))?;
    same!(&t.range(&a, &g, span(0, 9))?.data[..], &b"ab\0z!?"[..], "what is not there replaces nothing");
    t.done(&a, tx().change(WriteOp::Remove).change(append(&g, "1")).change(append(&g, "2")))?;
    same!(&t.range(&a, &g, span(0, 9))?.data[..], &b"12"[..], "nor is there anything after a removal");
    Ok(())
}

fn many_bytes(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let whole = pattern(300_000, 4);
    let mut expected = Vec::new();
    for len in [1, 100_000, 65_536, 3, 134_460] {
        let piece = whole.slice(expected.len()..expected.len() + len);
        t.done(&a, tx().change(append(&D, piece.clone())))?;
        expected.extend_from_slice(&piece);
    }
    let read = t.range(&a, &D, span(0, 400_000))?;
    ensure!(read.data == expected, "what was appended is not what is read");
    same!(read.extents.len(), 5, "each append is one extent");
    Ok(())
}

fn past_the_last_offset(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    t.done(&a, tx().change(WriteOp::Truncate { fork: D, size: OFFSET_MAX - 2 }))?;
    t.invalid(&a, tx().change(append(&D, "123")))?;
    t.invalid(&a, tx().change(append(&D, "1")).change(append(&D, "23")))?;
    same!(t.stat(&a)?.version, 1, "an append that does not fit changes nothing");
    t.done(&a, tx().change(append(&D, "12")))?;
    same!(&t.range(&a, &D, span(OFFSET_MAX - 2, OFFSET_MAX))?.data[..], &b"12"[..], "one that fits is made");
    t.done(&a, tx().change(append(&D, "")))?;
    Ok(())
}

fn by_many(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let (connections, count) = (t.connections, t.effort.increments);
    let places = clients(t.effort, |client| {
        let store = connections.of(client as usize);
        let mut places = Vec::new();
        for number in 0..count {
            let size = ReadOp::Extents { fork: D, range: span(0, 0) };
            let entry = [client.to_le_bytes(), number.to_le_bytes()].concat();
            let transaction = tx().read(size).change(append(&D, entry));
            let Outcome::Done(done) = block_on(store.apply(&a, transaction))? else {
                return Err(Failure::new("an append without conditions was refused"));
            };
            let [Answer::Range(before)] = &done.answers[..] else {
                return Err(Failure::new("a read of extents is answered by something else"));
            };
            places.push((before.size, client, number));
        }
        Ok(places)
    })?;
    let mut places: Vec<(u64, u64, u64)> = places.into_iter().flatten().collect();
    places.sort_unstable();
    let read = tx().read_range(D, span(0, 16 * places.len() as u64 + 16));
    let Outcome::Done(mut done) = block_on(t.store.apply(&a, read))? else {
        return Err(Failure::new("a read was refused"));
    };
    let found = range_of(done.answers.remove(0))?;
    same!(found.size, 16 * places.len() as u64, "no append goes over another one");
    for (index, (place, client, number)) in places.into_iter().enumerate() {
        same!(place, 16 * index as u64, "each is where it was said to be");
        let entry = [client.to_le_bytes(), number.to_le_bytes()].concat();
        ensure!(found.data[16 * index..][..16] == entry, "what is at {place} is not what was appended there");
    }
    Ok(())
}
