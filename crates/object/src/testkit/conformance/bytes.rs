//! Bytes: written, zeroed, truncated and removed at byte granularity; forks.

use ::bytes::Bytes;

use super::Case;
use super::trial::*;
use crate::limit::*;
use crate::*;

pub(super) const CASES: &[Case] = &[
    ("bytes/single bytes", single_bytes),
    ("bytes/read", read),
    ("bytes/vectored", vectored),
    ("bytes/partial overwrites", partial_overwrites),
    ("bytes/zero", zero),
    ("bytes/truncate", truncate),
    ("bytes/remove fork", remove_fork),
    ("bytes/empty extents", empty_extents),
    ("bytes/in order", in_order),
    ("bytes/forks", forks),
    ("bytes/pages of forks", fork_pages),
    ("bytes/far offsets", far_offsets),
    ("bytes/boundaries", boundaries),
];

const D: Fork = Fork::DEFAULT;

fn zeroing(name: &Fork, start: u64, end: u64) -> Transaction {
    tx().change(WriteOp::Zero { fork: name.clone(), range: span(start, end) })
}

fn truncating(name: &Fork, size: u64) -> Transaction {
    tx().change(WriteOp::Truncate { fork: name.clone(), size })
}

fn single_bytes(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    for (index, offset) in [7, 3, 5, 4097, 511].into_iter().enumerate() {
        let version = t.done(&a, tx().write(D, offset, vec![b'a' + index as u8]))?.version;
        let around = t.range(&a, &D, span(offset - 1, offset + 2))?;
        let own = data(offset, offset + 1, version);
        ensure!(around.extents.contains(&own), "one byte at {offset} is an extent of one byte");
    }
    let read = t.range(&a, &D, span(0, 10))?;
    same!(&read.data[..], &b"\0\0\0b\0c\0a\0\0"[..], "single bytes stand where they were written");
    same!(read.extents, vec![data(3, 4, 2), data(5, 6, 3), data(7, 8, 1)], "each with its own version");
    t.done(&a, tx().if_version(D, span(4, 5), 0).if_version(D, span(5, 6), 3).write(D, 5, "C"))?;
    t.refused(&a, tx().if_version(D, span(5, 6), 5).write(D, 5, "x"))?;
    t.done(&a, tx().if_version(D, span(4, 5), 0).if_version(D, span(6, 8), 1).write(D, 6, "-"))?;
    same!(&t.range(&a, &D, span(3, 8))?.data[..], &b"b\0C-a"[..], "guards are exact to the byte");
    Ok(())
}

fn read(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    t.done(&a, tx().write(D, 2, "abc").write(D, 7, "xyz"))?;
    let both = vec![data(2, 5, 1), data(7, 10, 1)];
    let expected = RangeRead {
        data: Bytes::from_static(b"\0\0abc\0\0xyz"),
        extents: both.clone(),
        version: 1,
        size: 10,
        next: None,
    };
    same!(t.range(&a, &D, span(0, 100))?, expected, "bytes never written read as zeros, up to the size");
    same!(t.range(&a, &D, ByteRange::ALL)?, expected, "the whole fork is read by the range of everything");
    let bare = RangeRead { data: Bytes::new(), ..expected };
    same!(t.extents(&a, &D, ByteRange::ALL)?, bare, "a read of extents is the same without the bytes");
    let inner = t.range(&a, &D, span(3, 8))?;
    same!(&inner.data[..], &b"bc\0\0x"[..], "a range reads its own bytes");
    same!(inner.extents, vec![data(3, 5, 1), data(7, 8, 1)], "extents are clipped to it");
    let past = t.range(&a, &D, span(10, 20))?;
    same!(past, RangeRead { size: 10, ..RangeRead::default() }, "past the end there is nothing");
    let empty = t.range(&a, &D, span(4, 4))?;
    same!(
        (empty.data.len(), empty.extents.len(), empty.next),
        (0, 0, None),
        "an empty range reads as nothing"
    );
    let update = ReadOp::Range { fork: D, range: span(0, 100), intent: Intent::Update };
    let found = range_of(t.answer(&a, update)?)?;
    same!(found.extents, both, "the intent does not change the answer");
    let many =
        tx().read_range(D, span(2, 4)).read(ReadOp::Stat).read_range(D, span(7, 8)).read_range(D, span(2, 4));
    let answers = t.done(&a, many)?.answers;
    same!(answers.len(), 4, "each read is answered");
    ensure!(matches!(&answers[1], Answer::Stat(_)), "in order");
    same!(answers[0], answers[3], "and the same question alike");
    Ok(())
}

fn vectored(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let write = |extents: &[(u64, &'static str)]| WriteOp::Extents {
        fork: fork("f"),
        extents: extents
            .iter()
            .map(|(offset, bytes)| (*offset, Bytes::from_static(bytes.as_bytes())))
            .collect(),
    };
    let f = fork("f");
    let done =
        t.done(&a, tx().change(write(&[(10, "aaaa"), (0, "bb"), (12, "cccc"), (13, "d"), (30, "e")])))?;
    same!(done.version, 1, "many extents are written at one version");
    let read = t.range(&a, &f, span(0, 40))?;
    same!(&read.data[10..16], &b"aacdcc"[..], "where they overlap, the later one wins");
    same!(read.extents, vec![data(0, 2, 1), data(10, 16, 1), data(30, 31, 1)], "and they are one extent");
    same!(read.size, 31, "the fork grows to hold them all");
    let guarded =
        tx().if_version(f.clone(), span(0, 40), 0).change(write(&[(0, "XX"), (10, "XXXX"), (30, "X")]));
    t.refused(&a, guarded)?;
    same!(t.range(&a, &f, span(0, 40))?, read, "a refused one writes none of them");
    let many: Vec<(u64, Bytes)> = (0..500).map(|i| (i * 3, vec![(i % 251) as u8 + 1].into())).collect();
    t.done(&a, tx().change(WriteOp::Extents { fork: D, extents: many.into_iter().rev().collect() }))?;
    let read = t.range(&a, &D, ByteRange::ALL)?;
    same!(read.extents.len(), 500, "extents that do not touch stay apart");
    let right = (0..500).all(|i| read.data[i * 3] == (i % 251) as u8 + 1);
    ensure!(right && read.size == 1498, "each of many extents stands in its place");
    Ok(())
}

fn partial_overwrites(t: &Trial<'_>) -> Result<(), Failure> {
    let f = fork("f");
    // What is overwritten of [10, 20), and what is left of it.
    let cases: [(u64, u64, &[Extent]); 8] = [
        (10, 20, &[data(10, 20, 2)]),
        (5, 25, &[data(5, 25, 2)]),
        (5, 11, &[data(5, 11, 2), data(11, 20, 1)]),
        (5, 10, &[data(5, 10, 2), data(10, 20, 1)]),
        (19, 25, &[data(10, 19, 1), data(19, 25, 2)]),
        (20, 25, &[data(10, 20, 1), data(20, 25, 2)]),
        (14, 15, &[data(10, 14, 1), data(14, 15, 2), data(15, 20, 1)]),
        (10, 11, &[data(10, 11, 2), data(11, 20, 1)]),
    ];
    for (start, end, extents) in cases {
        let a = t.object(&format!("{start}-{end}"));
        t.done(&a, tx().write(f.clone(), 10, "0123456789"))?;
        let bytes = vec![b'#'; (end - start) as usize];
        t.done(&a, tx().write(f.clone(), start, bytes))?;
        let read = t.range(&a, &f, span(0, 40))?;
        same!(read.extents, extents, "writing {start}..{end} over 10..20 leaves the rest");
        let mut expected = vec![0; read.size as usize];
        for at in 10..20.min(expected.len()) {
            expected[at] = b'0' + (at - 10) as u8;
        }
        expected[start as usize..end as usize].fill(b'#');
        same!(&read.data[..], &expected[..], "and no other byte changes");
    }
    Ok(())
}

fn zero(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    t.done(&a, tx().write(D, 0, "0123456789"))?;
    t.done(&a, zeroing(&D, 3, 6))?;
    let read = t.range(&a, &D, span(0, 10))?;
    same!(&read.data[..], &b"012\0\0\x006789"[..], "zeroed bytes read as zeros");
    same!(read.extents, vec![data(0, 3, 1), hole(3, 6, 2), data(6, 10, 1)], "zeroing leaves a hole");
    t.done(&a, zeroing(&D, 8, 30))?;
    let read = t.range(&a, &D, ByteRange::ALL)?;
    same!(read.size, 10, "zeroing does not change the size");
    same!(read.extents[2..], [data(6, 8, 1), hole(8, 30, 3)], "the hole may reach past it");
    t.refused(&a, tx().if_version(D, span(20, 21), 2))?;
    t.done(&a, tx().write(D, 28, "end"))?;
    let read = t.range(&a, &D, span(6, 40))?;
    same!(&read.data[..4], &b"67\0\0"[..], "the hole stays when the fork grows over it");
    same!(read.extents, vec![data(6, 8, 1), hole(8, 28, 3), data(28, 31, 4)], "with its version");
    let missing = fork("missing");
    t.done(&a, zeroing(&missing, 5, 9))?;
    let read = t.range(&a, &missing, span(0, 20))?;
    let expected = RangeRead { extents: vec![hole(5, 9, 5)], version: 5, ..RangeRead::default() };
    same!(read, expected, "zeroing a fork that is not there leaves a hole");
    same!(t.forks(&a, None, 9)?.entries, vec![(D, 31)], "but makes no fork");
    t.done(&a, zeroing(&D, 4, 4))?;
    same!(t.range(&a, &D, span(0, 40))?.version, 4, "an empty range is not touched");
    t.done(&a, zeroing(&D, 0, OFFSET_MAX))?;
    let read = t.range(&a, &D, ByteRange::ALL)?;
    same!(read.extents, vec![hole(0, OFFSET_MAX, 7)], "everything may be zeroed");
    same!(&read.data[..], &[0; 31][..], "and then reads as zeros");
    Ok(())
}

fn truncate(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    t.done(&a, tx().write(D, 0, "0123456789"))?;
    t.done(&a, truncating(&D, 4))?;
    let read = t.range(&a, &D, ByteRange::ALL)?;
    same!((&read.data[..], read.size), (&b"0123"[..], 4), "truncating cuts");
    same!(read.extents, vec![data(0, 4, 1), hole(4, OFFSET_MAX, 2)], "and leaves a hole to the very end");
    t.refused(&a, tx().if_version(D, span(1 << 40, (1 << 40) + 1), 1))?;
    t.done(&a, tx().write(D, 6, "x"))?;
    let read = t.range(&a, &D, span(0, 12))?;
    same!(&read.data[..], &b"0123\0\0x"[..], "old bytes do not come back");
    let extents = vec![data(0, 4, 1), hole(4, 6, 2), data(6, 7, 3), hole(7, 12, 2)];
    same!(read.extents, extents, "the hole is what stands there");
    t.done(&a, truncating(&D, 9))?;
    let read = t.range(&a, &D, ByteRange::ALL)?;
    same!((&read.data[..], read.size), (&b"0123\0\0x\0\0"[..], 9), "truncating grows too");
    same!(read.extents[3..], [hole(7, OFFSET_MAX, 4)], "and leaves a hole from the old end");
    t.done(&a, truncating(&D, 9))?;
    let extents = t.extents(&a, &D, span(6, 20))?.extents;
    same!(
        extents,
        vec![data(6, 7, 3), hole(7, 9, 4), hole(9, 20, 5)],
        "the same size again is a hole past it"
    );
    t.done(&a, truncating(&D, 0))?;
    let read = t.range(&a, &D, ByteRange::ALL)?;
    let expected = RangeRead { extents: vec![hole(0, OFFSET_MAX, 6)], version: 6, ..RangeRead::default() };
    same!(read, expected, "nothing is left at size 0");
    same!(t.forks(&a, None, 9)?.entries, vec![(D, 0)], "but the fork");
    let f = fork("f");
    t.done(&a, truncating(&f, 5))?;
    let read = t.range(&a, &f, ByteRange::ALL)?;
    same!((&read.data[..], read.size), (&[0; 5][..], 5), "truncating makes a fork");
    same!(read.extents, vec![hole(0, OFFSET_MAX, 7)], "that is one hole");
    t.done(&a, truncating(&f, OFFSET_MAX))?;
    same!(t.extents(&a, &f, ByteRange::ALL)?.size, OFFSET_MAX, "the greatest size is a size");
    Ok(())
}

fn remove_fork(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let f = fork("f");
    let removing = || tx().change(WriteOp::RemoveFork { fork: fork("f") });
    t.done(&a, removing())?;
    same!(t.range(&a, &f, span(0, 9))?, RangeRead::default(), "a fork that never was leaves no hole");
    t.done(&a, tx().write(f.clone(), 2, "data").write(D, 0, "other"))?;
    t.done(&a, removing())?;
    let gone = RangeRead { extents: vec![hole(0, OFFSET_MAX, 3)], version: 3, ..RangeRead::default() };
    same!(t.range(&a, &f, ByteRange::ALL)?, gone, "a removed fork is one hole");
    same!(t.forks(&a, None, 9)?.entries, vec![(D, 5)], "and is not listed");
    same!((t.stat(&a)?.forks, t.stat(&a)?.bytes), (1, 5), "or counted");
    same!(t.range(&a, &D, span(0, 9))?.version, 2, "other forks are not touched");
    t.done(&a, tx().write(f.clone(), 4, "new"))?;
    let read = t.range(&a, &f, span(0, 9))?;
    same!(&read.data[..], &b"\0\0\0\0new"[..], "made again, it holds only what was written since");
    same!(read.extents, vec![hole(0, 4, 3), data(4, 7, 4), hole(7, 9, 3)], "over the hole of its removal");
    t.done(&a, removing())?;
    t.done(&a, removing())?;
    same!(t.range(&a, &f, span(0, 2))?.version, 6, "a removed fork has a hole to remove");
    let zeroed = fork("zeroed");
    t.done(&a, zeroing(&zeroed, 3, 5))?;
    t.done(&a, tx().change(WriteOp::RemoveFork { fork: zeroed.clone() }))?;
    same!(t.range(&a, &zeroed, span(0, 9))?.extents, vec![hole(0, 9, 8)], "so has one that was only zeroed");
    same!(t.stat(&a)?.exists, true, "an object may have no forks at all");
    Ok(())
}

fn empty_extents(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    t.done(&a, tx().write(fork("e"), 9, ""))?;
    same!(t.forks(&a, None, 9)?.entries, vec![(fork("e"), 0)], "an empty extent makes its fork");
    same!(t.range(&a, &fork("e"), span(0, 20))?, RangeRead::default(), "and changes nothing more");
    let extents = vec![(0, "ab".into()), (1, "".into()), (OFFSET_MAX, "".into())];
    t.done(&a, tx().change(WriteOp::Extents { fork: D, extents }))?;
    let read = t.range(&a, &D, ByteRange::ALL)?;
    same!((read.size, read.extents), (2, vec![data(0, 2, 2)]), "also among others");
    Ok(())
}

fn in_order(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let zero = |start, end| WriteOp::Zero { fork: D, range: span(start, end) };
    t.done(&a, tx().write(D, 0, "aaaaaaaa").change(zero(2, 6)).write(D, 3, "bb"))?;
    let read = t.range(&a, &D, span(0, 9))?;
    same!(&read.data[..], &b"aa\0bb\0aa"[..], "writes take effect in order");
    let extents = vec![data(0, 2, 1), hole(2, 3, 1), data(3, 5, 1), hole(5, 6, 1), data(6, 8, 1)];
    same!(read.extents, extents, "holes and data of one version are extents apart");
    t.done(&a, tx().change(WriteOp::Truncate { fork: D, size: 4 }).write(D, 6, "c"))?;
    let read = t.range(&a, &D, span(0, 9))?;
    same!(&read.data[..], &b"aa\0b\0\0c"[..], "truncate, then write");
    t.done(&a, tx().write(D, 8, "d").change(WriteOp::Truncate { fork: D, size: 1 }))?;
    same!((t.range(&a, &D, span(0, 9))?.size, t.stat(&a)?.bytes), (1, 1), "write, then truncate");
    t.done(&a, tx().change(WriteOp::RemoveFork { fork: D }).write(D, 1, "e"))?;
    let read = t.range(&a, &D, span(0, 9))?;
    same!((&read.data[..], read.version), (&b"\0e"[..], 4), "remove the fork, then write");
    t.done(&a, tx().write(D, 0, "f").change(WriteOp::RemoveFork { fork: D }))?;
    same!(t.forks(&a, None, 9)?.entries, vec![], "write, then remove the fork");
    let set = |value: &'static str| WriteOp::SetKey { key: key("k"), value: value.into() };
    let remove = || WriteOp::RemoveKey { key: key("k") };
    t.done(&a, tx().change(set("1")).change(remove()).change(set("2")))?;
    same!(t.key(&a, "k")?, Some("2".into()), "set, remove, set");
    t.done(&a, tx().change(set("3")).change(remove()))?;
    same!(t.key(&a, "k")?, None, "set, remove");
    t.done(&a, tx().change(WriteOp::Remove).change(set("4")).change(WriteOp::Remove).write(D, 0, "g"))?;
    same!((t.key(&a, "k")?, t.stat(&a)?.forks), (None, 1), "remove, set, remove, write");
    Ok(())
}

fn forks(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let longest = vec![0xfe; FORK_NAME_BYTES_MAX];
    let names: [&[u8]; 8] = [b"", b"\0", b"\0\0", b"a", b"a\0", b"b", b"\xff", &longest];
    let names: Vec<Fork> =
        names.iter().map(|name| Fork::new(Bytes::copy_from_slice(name))).collect::<Result<_, _>>()?;
    for (index, name) in names.iter().enumerate() {
        t.done(&a, tx().write(name.clone(), index as u64, vec![b'0' + index as u8]))?;
    }
    for (index, name) in names.iter().enumerate() {
        let read = t.range(&a, name, span(0, 90))?;
        let extents = vec![data(index as u64, index as u64 + 1, index as u64 + 1)];
        same!(read.extents, extents, "a fork of any name keeps its own bytes");
        same!(read.data.last(), Some(&(b'0' + index as u8)), "and gives them back");
    }
    let mut expected: Vec<(Fork, u64)> =
        names.iter().enumerate().map(|(index, name)| (name.clone(), index as u64 + 1)).collect();
    expected.sort();
    let page = t.forks(&a, None, 100)?;
    same!(page, ForkPage { entries: expected, more: false }, "forks are listed bytewise, with sizes");
    same!((t.stat(&a)?.forks, t.stat(&a)?.bytes), (8, 36), "and counted");
    Ok(())
}

fn fork_pages(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let count = PAGE_ENTRIES_MAX + 6;
    let mut create = tx();
    for index in 0..count {
        create = create.change(WriteOp::Truncate { fork: fork(&format!("{index:05}")), size: index as u64 });
    }
    t.done(&a, create)?;
    t.done(&a, tx().change(WriteOp::RemoveFork { fork: fork("00003") }))?;
    let page = t.forks(&a, None, 3)?;
    same!((page.entries.len(), page.more), (3, true), "a page has the entries that were asked for");
    let page = t.forks(&a, Some(fork("00002")), 1)?;
    same!(page.entries, vec![(fork("00004"), 4)], "removed forks are passed over");
    same!(t.forks(&a, Some(fork("00002x")), 1)?.entries, page.entries, "a page may begin between two");
    same!(t.forks(&a, Some(fork("zz")), 1)?, ForkPage::default(), "after the last there are none");
    let page = t.forks(&a, None, u32::MAX)?;
    same!((page.entries.len(), page.more), (PAGE_ENTRIES_MAX, true), "a page holds no more than the limit");
    let last = page.entries.last().map(|(name, _)| name.clone());
    let rest = t.forks(&a, last, u32::MAX)?;
    same!((rest.entries.len(), rest.more), (5, false), "the next page has the rest");
    let exact = t.forks(&a, Some(fork("01027")), 2)?;
    same!((exact.entries.len(), exact.more), (2, false), "a page that ends with the last has no more");
    Ok(())
}

fn far_offsets(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let far = OFFSET_MAX - 6;
    t.done(&a, tx().write(D, far, "abcdef"))?;
    t.done(&a, tx().write(D, OFFSET_MAX - 1, "!"))?;
    t.done(&a, tx().write(D, (1 << 32) - 2, "wxyz"))?;
    let read = t.range(&a, &D, span(far - 2, OFFSET_MAX))?;
    same!(&read.data[..], &b"\0\0abcde!"[..], "the last bytes of the offset space can be written");
    same!(
        read.extents,
        vec![data(far, OFFSET_MAX - 1, 1), data(OFFSET_MAX - 1, OFFSET_MAX, 2)],
        "and overwritten"
    );
    same!((read.size, t.stat(&a)?.bytes), (OFFSET_MAX, OFFSET_MAX), "the fork is as long as a fork can be");
    let all = t.extents(&a, &D, ByteRange::ALL)?;
    same!((all.extents.len(), all.version, all.next), (3, 3, None), "however far its extents are apart");
    t.refused(&a, tx().if_version(D, ByteRange::ALL, 2))?;
    t.done(
        &a,
        tx().if_version(D, span(1 << 33, OFFSET_MAX), 2).change(WriteOp::Truncate { fork: D, size: far + 1 }),
    )?;
    let read = t.range(&a, &D, span(far, OFFSET_MAX))?;
    same!(&read.data[..], &b"a"[..], "and truncated there");
    same!(
        read.extents,
        vec![data(far, far + 1, 1), hole(far + 1, OFFSET_MAX, 4)],
        "leaving a hole to the end"
    );
    t.done(&a, zeroing(&D, 5, far))?;
    let all = t.extents(&a, &D, ByteRange::ALL)?;
    same!(all.extents.len(), 3, "most of the offset space may be one hole");
    let f = fork("f");
    t.done(&a, truncating(&f, OFFSET_MAX))?;
    t.done(&a, truncating(&fork("g"), OFFSET_MAX))?;
    same!(t.range(&a, &f, span(OFFSET_MAX - 3, OFFSET_MAX))?.data.len(), 3, "a hole reads to the very end");
    Ok(())
}

/// Tests sizes around powers of two, where an engine that rounds to blocks would show it.
fn boundaries(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    for block in [512_u64, 4096, 65_536] {
        let f = fork(&format!("{block}"));
        for (start, len) in
            [(block - 1, 2), (2 * block, block), (4 * block + 1, block - 1), (6 * block - 1, block + 2)]
        {
            let bytes = pattern(len as usize, start);
            let version = t.done(&a, tx().write(f.clone(), start, bytes.clone()))?.version;
            let read = t.range(&a, &f, span(start - 1, start + len + 1))?;
            ensure!(read.data[1..=len as usize] == bytes, "{len} bytes at {start} read back");
            same!(read.data[0], 0, "the byte before {start} is not touched");
            same!(read.extents, vec![data(start, start + len, version)], "the extent is exact");
            t.done(&a, zeroing(&f, start + len - 1, start + len))?;
            let read = t.range(&a, &f, span(start, start + len))?;
            let rest = len as usize - 1;
            ensure!(
                read.data[..rest] == bytes[..rest] && read.data[rest] == 0,
                "one byte of {len} is zeroed"
            );
            t.done(&a, tx().if_version(f.clone(), span(start, start + len - 1), version))?;
            t.refused(&a, tx().if_version(f.clone(), span(start, start + len), version))?;
        }
    }
    Ok(())
}
