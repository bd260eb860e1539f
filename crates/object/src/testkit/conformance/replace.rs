//! One fork put in the place of another.

use super::Case;
use super::concurrency::clients;
use super::trial::*;
use crate::limit::*;
use crate::testkit::block_on;
use crate::*;

pub(super) const CASES: &[Case] = &[
    ("replace/content", content),
    ("replace/versions", versions),
    ("replace/no such fork", no_such_fork),
    ("replace/itself", itself),
    ("replace/guards", guards),
    ("replace/later writes", later_writes),
    ("replace/in one transaction", in_one_transaction),
    ("replace/back and forth", back_and_forth),
    ("replace/many extents", many_extents),
    ("replace/far offsets", far_offsets),
    ("replace/removed objects", removed_objects),
    ("replace/more than one transaction holds", staged),
    ("replace/readers see the old or the new", readers),
];

const D: Fork = Fork::DEFAULT;

fn replacing(fork: &Fork, from: &Fork) -> Transaction {
    tx().change(WriteOp::ReplaceFork { fork: fork.clone(), from: from.clone() })
}

fn content(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let s = fork("s");
    t.done(&a, tx().write(D, 0, "old content, longer").write(fork("other"), 0, "untouched"))?;
    t.done(&a, tx().write(s.clone(), 2, "new").change(WriteOp::SetKey { key: key("k"), value: "v".into() }))?;
    let before = t.stat(&a)?;
    t.done(&a, replacing(&D, &s))?;
    let read = t.range(&a, &D, ByteRange::ALL)?;
    same!(&read.data[..], &b"\0\0new"[..], "the fork holds what the other one held, and nothing else");
    same!(read.size, 5, "and has its size");
    let expected = vec![hole(0, 2, 3), data(2, 5, 3), hole(5, OFFSET_MAX, 3)];
    same!(read.extents, expected, "every byte of it carries the version of the replacement");
    same!(t.forks(&a, None, 9)?.entries, vec![(D, 5), (fork("other"), 9)], "the other fork is removed");
    let gone = RangeRead { extents: vec![hole(0, OFFSET_MAX, 3)], version: 3, ..RangeRead::default() };
    same!(t.range(&a, &s, ByteRange::ALL)?, gone, "and one hole, as after its removal");
    same!(t.range(&a, &fork("other"), span(0, 9))?.version, 1, "further forks are not touched");
    let after = t.stat(&a)?;
    same!((after.forks, after.bytes), (before.forks - 1, 14), "and all are counted");
    same!((after.keys, t.key(&a, "k")?), (1, Some("v".into())), "keys are not touched");
    let n = fork("new name");
    t.done(&a, replacing(&n, &D))?;
    same!(&t.range(&a, &n, span(0, 9))?.data[..], &b"\0\0new"[..], "a fork that was not there is made");
    same!(t.range(&a, &D, span(0, 9))?.extents, vec![hole(0, 9, 4)], "the default fork can be taken too");
    t.done(&a, tx().write(fork("empty"), 0, ""))?;
    t.done(&a, replacing(&n, &fork("empty")))?;
    let read = t.range(&a, &n, span(0, 9))?;
    same!((read.size, read.extents), (0, vec![hole(0, 9, 6)]), "an empty fork replaces one that holds bytes");
    Ok(())
}

fn versions(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let s = fork("s");
    t.done(&a, tx().write(s.clone(), 0, "aaaa"))?;
    t.done(&a, tx().write(s.clone(), 4, "bbbb"))?;
    t.done(&a, tx().change(WriteOp::Zero { fork: s.clone(), range: span(8, 10) }))?;
    t.done(&a, tx().write(s.clone(), 12, "cccc"))?;
    t.done(&a, tx().write(s.clone(), 2, "dd"))?;
    let done = t.done(&a, replacing(&D, &s))?;
    same!(done.version, 6, "a replacement takes one version");
    let expected = vec![data(0, 8, 6), hole(8, 12, 6), data(12, 16, 6), hole(16, 40, 6)];
    let found = t.extents(&a, &D, span(0, 40))?;
    same!((found.extents, found.version), (expected, 6), "neighbours become one extent");
    same!(
        t.extents(&a, &D, span(3, 3))?,
        RangeRead { size: 16, ..RangeRead::default() },
        "of no bytes: none"
    );
    same!(t.extents(&a, &D, span(1 << 40, (1 << 40) + 1))?.version, 6, "far behind the end too");
    same!(&t.range(&a, &D, span(0, 40))?.data[..], &b"aaddbbbb\0\0\0\0cccc"[..], "with their bytes");
    // A proposal stamps all of it.
    t.done(&a, tx().write(s.clone(), 0, "eeee"))?;
    let proposal = Guard::Proposal { fork: s.clone(), range: ByteRange::ALL, version: 50 };
    t.done(&a, replacing(&D, &s).guard(proposal))?;
    same!(
        t.extents(&a, &D, span(0, 9))?.extents,
        vec![data(0, 4, 50), hole(4, 9, 50)],
        "a proposal stamps it"
    );
    same!(t.extents(&a, &s, span(0, 9))?.extents, vec![hole(0, 9, 50)], "and what is left behind");
    Ok(())
}

fn no_such_fork(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let s = fork("s");
    t.done(&a, replacing(&D, &s))?;
    same!((t.stat(&a)?.exists, t.stat(&a)?.version), (true, 1), "the object exists, at a version");
    same!(t.stat(&a)?.forks, 0, "but no fork is made");
    same!(t.extents(&a, &s, ByteRange::ALL)?, RangeRead::default(), "and no hole is left");
    t.done(&a, tx().write(D, 0, "stays"))?;
    t.done(&a, replacing(&D, &s))?;
    let read = t.range(&a, &D, span(0, 9))?;
    same!((&read.data[..], read.extents), (&b"stays"[..], vec![data(0, 5, 2)]), "the fork is as it was");
    // Forks that were removed or only zeroed are none.
    t.done(&a, tx().write(s.clone(), 0, "x").change(WriteOp::RemoveFork { fork: s.clone() }))?;
    t.done(&a, tx().change(WriteOp::Zero { fork: fork("z"), range: span(3, 5) }))?;
    t.done(&a, replacing(&D, &s).change(WriteOp::ReplaceFork { fork: D, from: fork("z") }))?;
    same!(t.range(&a, &D, span(0, 9))?.extents, vec![data(0, 5, 2)], "also where holes are left of one");
    same!(t.range(&a, &s, span(0, 9))?.extents, vec![hole(0, 9, 4)], "which stay as they were");
    same!(t.range(&a, &fork("z"), span(0, 9))?.extents, vec![hole(3, 5, 5)], "all of them");
    Ok(())
}

fn itself(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    t.done(&a, tx().write(D, 0, "stays").write(fork("f"), 0, "stays"))?;
    t.invalid(&a, replacing(&D, &D))?;
    t.invalid(&a, tx().write(D, 0, "x").change(WriteOp::ReplaceFork { fork: fork("f"), from: fork("f") }))?;
    same!(t.range(&a, &D, span(0, 9))?.version, 1, "nothing of it took effect");
    Ok(())
}

fn guards(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let s = fork("s");
    t.done(&a, tx().write(D, 0, "old").write(s.clone(), 0, "1"))?;
    let read = t.done(&a, tx().write(s.clone(), 1, "2"))?.version;
    t.done(&a, tx().write(s.clone(), 9, "somebody else's"))?;
    let refusal = t.refused(&a, replacing(&D, &s).if_version(s.clone(), ByteRange::ALL, read))?;
    same!((refusal.guard, refusal.version), (0, 3), "what was written to meanwhile is not taken");
    same!(&t.range(&a, &D, span(0, 9))?.data[..], &b"old"[..], "and nothing is lost");
    t.done(&a, replacing(&D, &s).if_version(s.clone(), ByteRange::ALL, 3))?;
    t.refused(&a, tx().write(s.clone(), 0, "late").if_version(s.clone(), span(0, 4), 3))?;
    let refusal = t.refused(&a, tx().write(D, 0, "late").if_version(D, span(0, 4), 1))?;
    same!(refusal.guard, 0, "a guard of what was there before does not hold any more");
    t.refused(&a, tx().write(D, 90, "late").if_version(D, span(90, 94), 3))?;
    t.done(&a, tx().write(D, 90, "in time").if_version(D, span(90, 97), 4))?;
    same!(t.stat(&a)?.version, 5, "one that was read since then does");
    Ok(())
}

fn later_writes(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let s = fork("s");
    t.done(&a, tx().write(s.clone(), 0, "aaaaaaaaaa"))?;
    t.done(&a, replacing(&D, &s))?;
    t.done(&a, tx().write(D, 2, "bb"))?;
    t.done(&a, tx().change(WriteOp::Zero { fork: D, range: span(6, 8) }))?;
    t.done(&a, tx().write(D, 12, "c"))?;
    let read = t.range(&a, &D, span(0, 20))?;
    same!(&read.data[..], &b"aabbaa\0\0aa\0\0c"[..], "later writes go over it");
    let expected = vec![
        data(0, 2, 2),
        data(2, 4, 3),
        data(4, 6, 2),
        hole(6, 8, 4),
        data(8, 10, 2),
        hole(10, 12, 2),
        data(12, 13, 5),
        hole(13, 20, 2),
    ];
    same!(read.extents, expected, "at their own versions");
    t.done(&a, tx().change(WriteOp::Truncate { fork: D, size: 3 }))?;
    let expected = vec![data(0, 2, 2), data(2, 3, 3), hole(3, 20, 6)];
    same!(t.extents(&a, &D, span(0, 20))?.extents, expected, "it can be cut");
    t.done(&a, tx().write(s.clone(), 1, "d"))?;
    let expected = vec![hole(0, 1, 2), data(1, 2, 7), hole(2, 9, 2)];
    let read = t.range(&a, &s, span(0, 9))?;
    same!((&read.data[..], read.extents), (&b"\0d"[..], expected), "what was taken can be made again");
    t.done(&a, tx().change(WriteOp::RemoveFork { fork: D }))?;
    same!(t.extents(&a, &D, span(0, 9))?.extents, vec![hole(0, 9, 8)], "and the fork can be removed");
    Ok(())
}

fn in_one_transaction(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let (s, u) = (fork("s"), fork("u"));
    t.done(&a, tx().write(D, 0, "default").write(s.clone(), 0, "second"))?;
    let replace = |fork: &Fork, from: &Fork| WriteOp::ReplaceFork { fork: fork.clone(), from: from.clone() };
    let exchange = tx().change(replace(&u, &D)).change(replace(&D, &s)).change(replace(&s, &u));
    t.done(&a, exchange)?;
    same!(&t.range(&a, &D, span(0, 9))?.data[..], &b"second"[..], "three replacements exchange two forks");
    same!(&t.range(&a, &s, span(0, 9))?.data[..], &b"default"[..], "one for the other");
    same!(t.stat(&a)?.forks, 2, "and leave no third");
    let last =
        tx().write(s.clone(), 0, "D").change(replace(&D, &s)).write(D, 7, "!").write(s.clone(), 3, "s");
    t.done(&a, last)?;
    let read = t.range(&a, &D, span(0, 9))?;
    same!(&read.data[..], &b"Default!"[..], "writes before it go along, and those after it go over it");
    same!(read.extents, vec![data(0, 8, 3), hole(8, 9, 3)], "at one version");
    same!(&t.range(&a, &s, span(0, 9))?.data[..], &b"\0\0\0s"[..], "also over what was taken");
    let cut = tx().change(WriteOp::Truncate { fork: s.clone(), size: 9 }).change(replace(&D, &s));
    t.done(&a, cut)?;
    let read = t.range(&a, &D, span(0, 20))?;
    same!((&read.data[..], read.size), (&b"\0\0\0s\0\0\0\0\0"[..], 9), "a size goes along");
    t.done(
        &a,
        tx().write(s.clone(), 0, "x").change(replace(&D, &s)).change(WriteOp::RemoveFork { fork: D }),
    )?;
    same!(t.stat(&a)?.forks, 0, "and what follows sees it");
    Ok(())
}

fn back_and_forth(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let forks = [D, fork("f"), fork("g")];
    let mut expected = vec![b'.'; 60];
    t.done(&a, tx().write(D, 0, expected.clone()))?;
    for round in 0..40_usize {
        let (from, to) = (&forks[round % 3], &forks[(round + 1) % 3]);
        let at = round * 7 % 58;
        let mark = vec![b'a' + (round % 26) as u8; 2];
        expected[at..at + 2].copy_from_slice(&mark);
        t.done(&a, tx().write(from.clone(), at as u64, mark))?;
        t.done(&a, replacing(to, from))?;
        let read = t.range(&a, to, span(0, 99))?;
        same!(&read.data[..], &expected[..], "round {round}: the bytes go along");
        same!(read.extents.len(), 2, "round {round}: as one extent and a hole");
        same!(t.stat(&a)?.forks, 1, "round {round}: there is one fork");
    }
    Ok(())
}

fn many_extents(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let (s, count) = (fork("s"), 3 * EXTENTS_PER_READ_MAX as u64 / 2);
    let pieces = |from: u64, step: u64| (from..count).step_by(2).map(move |at| (at * step, "x".into()));
    let write = |from, step| WriteOp::Extents { fork: fork("s"), extents: pieces(from, step).collect() };
    t.done(&a, tx().change(write(0, 1)))?;
    t.done(&a, tx().change(write(1, 1)))?;
    same!(t.extents(&a, &s, ByteRange::ALL)?.extents.len(), EXTENTS_PER_READ_MAX, "there are many extents");
    t.done(&a, replacing(&D, &s))?;
    let read = t.range(&a, &D, ByteRange::ALL)?;
    same!(read.extents, vec![data(0, count, 3), hole(count, OFFSET_MAX, 3)], "replacing makes them one");
    same!((read.data.len() as u64, read.next), (count, None), "which is read at once");
    t.done(&a, tx().change(write(0, 2)).change(write(1, 2)))?;
    t.done(&a, replacing(&D, &s))?;
    let found = t.extents(&a, &D, ByteRange::ALL)?;
    same!(found.extents.len(), EXTENTS_PER_READ_MAX, "pieces with gaps between them stay many");
    same!(found.next, Some(EXTENTS_PER_READ_MAX as u64), "and answers about them are cut");
    let rest = t.extents(&a, &D, span(EXTENTS_PER_READ_MAX as u64, OFFSET_MAX))?;
    same!(
        rest.extents.first(),
        Some(&data(EXTENTS_PER_READ_MAX as u64, EXTENTS_PER_READ_MAX as u64 + 1, 5)),
        "where one begins"
    );
    Ok(())
}

fn far_offsets(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let s = fork("s");
    t.done(&a, tx().write(D, OFFSET_MAX - 3, "old"))?;
    t.done(&a, tx().write(s.clone(), (1 << 32) - 2, "wxyz").write(s.clone(), OFFSET_MAX - 1, "!"))?;
    t.done(&a, replacing(&D, &s))?;
    let found = t.extents(&a, &D, ByteRange::ALL)?;
    let (low, high) = ((1 << 32) - 2, (1 << 32) + 2);
    let expected = vec![
        hole(0, low, 3),
        data(low, high, 3),
        hole(high, OFFSET_MAX - 1, 3),
        data(OFFSET_MAX - 1, OFFSET_MAX, 3),
    ];
    same!((found.extents, found.size), (expected, OFFSET_MAX), "the whole offset space goes along");
    same!(&t.range(&a, &D, span(low, high))?.data[..], &b"wxyz"[..], "with its bytes");
    same!(&t.range(&a, &D, span(OFFSET_MAX - 3, OFFSET_MAX))?.data[..], &b"\0\0!"[..], "and its end");
    Ok(())
}

fn removed_objects(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let s = fork("s");
    t.done(&a, tx().write(s.clone(), 0, "abc"))?;
    t.done(&a, replacing(&D, &s))?;
    t.done(&a, tx().change(WriteOp::Remove))?;
    same!(t.extents(&a, &D, span(0, 9))?.extents, vec![hole(0, 9, 3)], "a removal goes over it");
    t.done(&a, replacing(&D, &s))?;
    same!(t.extents(&a, &D, span(0, 9))?.extents, vec![hole(0, 9, 3)], "what was removed cannot be taken");
    t.done(&a, tx().write(s.clone(), 1, "d"))?;
    t.done(&a, replacing(&D, &s))?;
    let read = t.range(&a, &D, span(0, 9))?;
    let expected = vec![hole(0, 1, 6), data(1, 2, 6), hole(2, 9, 6)];
    same!(
        (&read.data[..], read.extents),
        (&b"\0d"[..], expected),
        "an object made again has replacements too"
    );
    same!(
        t.extents(&a, &fork("x"), span(0, 9))?.extents,
        vec![hole(0, 9, 3)],
        "over the hole of its removal"
    );
    Ok(())
}

fn staged(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let s = fork("s");
    let piece = 4 << 20;
    let whole = pattern(2 * TRANSACTION_BYTES_MAX, 9);
    t.done(&a, tx().write(D, 0, pattern(piece, 8)))?;
    let mut version = 0;
    for (index, piece) in whole.chunks(piece).enumerate() {
        let offset = index as u64 * piece.len() as u64;
        version = t.done(&a, tx().write(s.clone(), offset, whole.slice_ref(piece)))?.version;
    }
    t.done(&a, replacing(&D, &s).if_version(s.clone(), ByteRange::ALL, version))?;
    let half = TRANSACTION_BYTES_MAX as u64;
    let first = t.range(&a, &D, span(0, half))?;
    let second = t.range(&a, &D, span(half, 2 * half))?;
    ensure!(first.data == whole[..half as usize], "the first half is not what was staged");
    ensure!(second.data == whole[half as usize..], "the second half is not what was staged");
    same!(first.extents, vec![data(0, half, version + 1)], "all of it appeared at once");
    t.done(&a, tx().change(WriteOp::Remove))?;
    Ok(())
}

fn readers(t: &Trial<'_>) -> Result<(), Failure> {
    const BYTES: usize = 30_000;
    let a = t.object("a");
    let rounds = t.effort.increments.div_ceil(4);
    t.apply_alone(&a, tx().write(D, 0, vec![0; BYTES]))?;
    let write = |writer: u64| -> Result<(), Failure> {
        let stage = fork(&format!("stage {writer}"));
        for round in 0..rounds {
            let byte = (1 + writer * rounds + round) as u8;
            let mut version = 0;
            // Backwards, and in pieces, so that a mixture would show.
            for start in (0..BYTES).step_by(BYTES / 3).rev() {
                let write = tx().write(stage.clone(), start as u64, vec![byte; BYTES / 3]);
                let Outcome::Done(done) = block_on(t.store.apply(&a, write))? else {
                    return Err(Failure::new("a write without conditions was refused"));
                };
                version = done.version;
            }
            let swap = replacing(&D, &stage).if_version(stage.clone(), ByteRange::ALL, version);
            let Outcome::Done(_) = block_on(t.store.apply(&a, swap))? else {
                return Err(Failure::new("a stage that nobody else wrote to was not taken"));
            };
        }
        Ok(())
    };
    let read = || -> Result<(), Failure> {
        let mut version = 0;
        for _ in 0..rounds * 3 {
            let read = tx().read_range(D, span(0, 2 * BYTES as u64));
            let Outcome::Done(mut done) = block_on(t.store.apply(&a, read))? else {
                return Err(Failure::new("a read was refused"));
            };
            ensure!(done.answers.len() == 1, "{} answers to one read", done.answers.len());
            let found = range_of(done.answers.remove(0))?;
            same!(found.data.len(), BYTES, "what is read is whole");
            let first = found.data[0];
            ensure!(found.data.iter().all(|byte| *byte == first), "a read shows parts of two contents");
            ensure!(found.version >= version, "version {} was read after {version}", found.version);
            ensure!(
                found.extents.iter().all(|extent| extent.version == found.version),
                "a read shows two versions: {:?}",
                found.extents
            );
            version = found.version;
        }
        Ok(())
    };
    clients(t.effort, |client| if client % 2 == 0 { write(client) } else { read() }).map(drop)
}
