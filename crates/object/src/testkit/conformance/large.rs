//! Large things: answers that are cut and continued, and writes of more than an engine keeps in one piece.

use ::bytes::{Bytes, BytesMut};

use super::Case;
use super::trial::*;
use crate::limit::*;
use crate::*;

pub(super) const CASES: &[Case] = &[
    ("large/many extents", many_extents),
    ("large/much data", much_data),
    ("large/sparse", sparse),
    ("large/one budget for all reads", budget),
    ("large/pages of large values", large_values),
    ("large/partial overwrites", partial_overwrites),
];

const D: Fork = Fork::DEFAULT;

/// Tests answers with more extents than one may list. Where the bytes between two extents were never written, an answer
/// may end with the one or just before the other, so the model is not asked here.
fn many_extents(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let count = EXTENTS_PER_READ_MAX as u64 * 2 + 50;
    let bytes = |index: u64| vec![(index % 250) as u8 + 1, 7];
    let extents = (0..count).map(|index| (index * 5 + 1, Bytes::from(bytes(index)))).collect();
    t.done(&a, tx().change(WriteOp::Extents { fork: D, extents }))?;
    t.done(&a, tx().write(D, (count - 1) * 5 + 1, bytes(count - 1)))?;
    let expected: Vec<Extent> = (0..count)
        .map(|index| data(index * 5 + 1, index * 5 + 3, if index == count - 1 { 2 } else { 1 }))
        .collect();
    let mut whole = vec![0; (count * 5 - 2) as usize];
    for index in 0..count as usize {
        whole[index * 5 + 1..index * 5 + 3].copy_from_slice(&bytes(index as u64));
    }
    for with_bytes in [false, true] {
        let (mut found, mut at, mut pages) = (Vec::new(), 0, 0);
        loop {
            let range = ByteRange::from(at..count * 5 + 100);
            let read = match with_bytes {
                true => ReadOp::Range { fork: D, range, intent: Intent::Look },
                false => ReadOp::Extents { fork: D, range },
            };
            let Outcome::Done(mut done) = t.apply_alone(&a, tx().read(read))? else {
                return Err(Failure::new("a read is not refused"));
            };
            let read = range_of(done.answers.remove(0))?;
            pages += 1;
            same!(read.version, 2, "the version is that of the whole range, however much the answer covers");
            let end = read.next.unwrap_or(range.end());
            ensure!(
                read.extents.len() <= EXTENTS_PER_READ_MAX,
                "an answer lists no more extents than the limit"
            );
            let within =
                expected.iter().filter(|extent| extent.range.offset >= at && extent.range.end() <= end);
            ensure!(within.eq(&read.extents), "an answer lists the extents up to where it was cut");
            if with_bytes {
                let upto = (end as usize).min(whole.len());
                ensure!(read.data[..] == whole[at as usize..upto], "and has the bytes up to there");
            } else {
                ensure!(read.data.is_empty(), "a read of extents has no bytes");
            }
            found.extend(read.extents);
            let Some(next) = read.next else { break };
            ensure!(next > at, "a continuation goes on");
            at = next;
        }
        ensure!(found == expected, "the continued answers list every extent once");
        same!(pages, 3, "in as many answers as it takes");
    }
    let refused = t.apply_alone(&a, tx().if_version(D, ByteRange::ALL, 1))?;
    let Outcome::Refused(Refusal { found: Found::Region(found), .. }) = refused else {
        return Err(Failure::new("a stale conditional write is refused with its region"));
    };
    same!((found.extents.len(), found.version), (EXTENTS_PER_READ_MAX, 2), "a refusal is cut alike");
    ensure!(found.next.is_some(), "and says so");
    Ok(())
}

fn much_data(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let half = 11 << 20;
    let bytes = [pattern(half, 1), pattern(half, 2)];
    t.done(&a, tx().write(D, 1, bytes[0].clone()))?;
    t.done(&a, tx().write(D, 1 + half as u64, bytes[1].clone()))?;
    let (mut found, mut at, mut cuts) = (BytesMut::new(), 1, Vec::new());
    loop {
        let read = t.range(&a, &D, span(at, OFFSET_MAX))?;
        same!(read.version, 2, "the version is that of the whole range");
        found.extend_from_slice(&read.data);
        let end = read.extents.last().map(|extent| extent.range.end());
        same!(end, Some(at + read.data.len() as u64), "the extents end where the bytes do");
        let Some(next) = read.next else { break };
        same!(next, at + read.data.len() as u64, "the continuation begins there too");
        cuts.push(next);
        at = next;
    }
    same!(cuts, vec![1 + REPLY_BYTES_MAX as u64], "an answer holds as many bytes as a reply may");
    ensure!(found[..] == bytes.concat(), "the continued answers have every byte once");
    Ok(())
}

/// Tests that a fork of the greatest size costs no more than what was written of it, and reads in replies of bounded
/// size.
fn sparse(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    t.done(&a, tx().write(D, 5, "here").write(D, OFFSET_MAX - 1, "!"))?;
    let read = t.range(&a, &D, ByteRange::ALL)?;
    same!(read.data.len(), REPLY_BYTES_MAX, "a sparse fork is read reply by reply");
    same!(read.next, Some(REPLY_BYTES_MAX as u64), "and continued");
    same!(read.extents, vec![data(5, 9, 1)], "with the extents of what was read");
    let zeros = read.data[..5].iter().chain(&read.data[9..]).all(|byte| *byte == 0);
    ensure!(zeros && read.data[5..9] == b"here"[..], "and zeros where nothing was written");
    let all = t.extents(&a, &D, ByteRange::ALL)?;
    same!((all.extents.len(), all.next), (2, None), "its extents are listed at once");
    Ok(())
}

fn budget(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let bytes = pattern(10 << 20, 4);
    t.done(&a, tx().write(D, 0, bytes.clone()).change(WriteOp::SetKey { key: key("k"), value: "v".into() }))?;
    let whole = ByteRange::new(0, 10 << 20);
    let keys = || ReadOp::Keys { range: KeyRange::all(), limit: 9, values: true };
    let reads =
        tx().read_range(D, whole).read(ReadOp::Extents { fork: D, range: whole }).read_range(D, whole);
    let reads = reads
        .read_range(D, span(3, 5))
        .read(ReadOp::Stat)
        .read(keys())
        .read_range(D, span(10 << 20, 11 << 20));
    let mut answers = t.done(&a, reads)?.answers.into_iter();
    let mut range =
        || answers.next().map(range_of).unwrap_or_else(|| Err(Failure::new("an answer is missing")));
    let first = range()?;
    ensure!(first.data == bytes && first.next.is_none(), "the first read is answered whole");
    same!(range()?.extents, vec![data(0, 10 << 20, 1)], "a read of extents takes nothing of the budget");
    let second = range()?;
    let left = REPLY_BYTES_MAX - (10 << 20);
    ensure!(second.data == bytes[..left], "the next one is cut to what is left");
    same!(second.next, Some(left as u64), "and says where");
    same!(second.extents, vec![data(0, left as u64, 1)], "with its extents");
    let third = range()?;
    let nothing = RangeRead { version: 1, size: 10 << 20, next: Some(3), ..RangeRead::default() };
    same!(third, nothing, "where nothing is left, a read still has version and size");
    ensure!(matches!(answers.next(), Some(Answer::Stat(_))), "a stat is answered");
    let page = Answer::Keys(KeyPage { entries: vec![], more: true });
    same!(answers.next(), Some(page), "a page may be empty, and say that there are more");
    let Some(Answer::Range(past)) = answers.next() else { return Err(Failure::new("an answer is missing")) };
    same!((past.data.len(), past.next), (0, None), "where there are no bytes to read, nothing is cut");
    Ok(())
}

fn large_values(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let values: Vec<Bytes> = (0..20).map(|seed| pattern(VALUE_BYTES_MAX - 7 * seed, seed as u64)).collect();
    for (index, half) in values.chunks(10).enumerate() {
        let set = half.iter().enumerate().fold(tx(), |tx, (at, value)| {
            tx.change(WriteOp::SetKey { key: key(&format!("{:02}", index * 10 + at)), value: value.clone() })
        });
        t.done(&a, set)?;
    }
    let first = t.keys(&a, KeyRange::all(), 100, true)?;
    same!((first.entries.len(), first.more), (16, true), "a page has the entries that fit into a reply");
    ensure!(first.entries.iter().map(|(_, value)| value).eq(&values[..16]), "and these whole");
    let after = first.entries.last().map(|(name, _)| name.to_bytes());
    let rest = t.keys(&a, KeyRange { after, ..KeyRange::all() }, 100, true)?;
    same!((rest.entries.len(), rest.more), (4, false), "the next page has the rest");
    ensure!(rest.entries.iter().map(|(_, value)| value).eq(&values[16..]), "whole too");
    same!(t.keys(&a, KeyRange::all(), 100, false)?.entries.len(), 20, "names alone fit");
    Ok(())
}

fn partial_overwrites(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let mut expected = vec![0; 3 << 20];
    // Sizes and places around 64 KiB and 1 MiB, off by one and odd, each over parts of those before.
    let writes = [
        (0, 3 << 20),
        (1 << 20, 65_536),
        ((1 << 20) - 1, 2),
        (65_535, 65_538),
        (100_003, (1 << 20) + 1),
        (65_536, 1),
        ((2 << 20) - 77, 200_001),
        (7, 65_536 * 3),
        ((3 << 20) - 1, 1),
    ];
    for (index, (offset, len)) in writes.into_iter().enumerate() {
        let bytes = pattern(len, index as u64 + 10);
        expected[offset..offset + len].copy_from_slice(&bytes);
        t.done(&a, tx().write(D, offset as u64, bytes))?;
        let read = t.range(&a, &D, span(0, 3 << 20))?;
        ensure!(
            read.data == expected,
            "after {len} bytes at {offset} every byte is that of the last write to it"
        );
    }
    for (offset, len) in [(65_530_u64, 13), (99_999, 9), (1_048_570, 70_000), (3_145_727, 100)] {
        let read = t.range(&a, &D, ByteRange::new(offset, len))?;
        let end = (offset + len).min(3 << 20) as usize;
        ensure!(read.data == expected[offset as usize..end], "a part reads as the whole does");
    }
    Ok(())
}
