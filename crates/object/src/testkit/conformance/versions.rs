//! Versions: one sequence per object, never reset; region versions; proposals.

use super::Case;
use super::trial::*;
use crate::limit::*;
use crate::*;

pub(super) const CASES: &[Case] = &[
    ("versions/absent object", absent_object),
    ("versions/sequence", sequence),
    ("versions/every write takes one", every_write),
    ("versions/known without a read", known_without_a_read),
    ("versions/one stamp", one_stamp),
    ("versions/region", region),
    ("versions/conditional write over many versions", many_versions),
    ("versions/nothing comes back", nothing_comes_back),
    ("versions/removed object", removed_object),
    ("versions/remove and write at once", remove_and_write),
    ("versions/proposal refused", proposal_refused),
    ("versions/proposal stamps", proposal_stamps),
    ("versions/proposal limit", proposal_limit),
];

const D: Fork = Fork::DEFAULT;

fn absent_object(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    same!(t.stat(&a)?, Stat::default(), "an object that never was has an empty stat");
    same!(t.range(&a, &D, span(3, 90))?, RangeRead::default(), "it reads as nothing, at version 0");
    same!(t.extents(&a, &fork("f"), ByteRange::ALL)?, RangeRead::default(), "it has no extents");
    same!(t.key(&a, "k")?, None, "it has no keys");
    same!(t.keys(&a, KeyRange::all(), 10, true)?, KeyPage::default(), "its page of keys is empty");
    same!(t.forks(&a, None, 10)?, ForkPage::default(), "its page of forks is empty");
    let read = t.done(&a, tx().read(ReadOp::Attributes).read(ReadOp::Attribute { name: key("x") }))?;
    let nothing = vec![Answer::Keys(KeyPage::default()), Answer::Value(None)];
    same!(read, Done { version: 0, existed: false, answers: nothing }, "it has no attributes");
    same!(t.done(&a, tx())?, Done::default(), "an empty transaction does nothing");
    same!(t.stat(&a)?.exists, false, "reading does not make an object");
    Ok(())
}

fn sequence(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let created = t.done(&a, tx().change(WriteOp::Create))?;
    same!((created.version, created.existed), (1, false), "the first write takes version 1");
    for expected in 2..6 {
        let done = t.done(&a, tx().write(D, expected, "x"))?;
        same!((done.version, done.existed), (expected, true), "each write takes the next version");
    }
    let read = t.done(&a, tx().read(ReadOp::Stat))?;
    same!(read.version, 5, "a read gives the object's version and takes none");
    let refused = t.refused(&a, tx().guard(Guard::Absent).write(D, 0, "y"))?;
    same!(refused.version, 5, "a refused transaction takes no version");
    same!(t.done(&a, tx().write(D, 0, "y"))?.version, 6, "the sequence has no gaps");
    let b = t.object("b");
    same!(t.done(&b, tx().write(D, 0, "y"))?.version, 1, "each object has a sequence of its own");
    Ok(())
}

fn known_without_a_read(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    for change in [WriteOp::Create, WriteOp::Create, WriteOp::Remove, WriteOp::Create] {
        let written = t.done(&a, tx().change(change))?.version;
        // No store need know it.
        let known = t.store.version_now(&a).unwrap_or(written);
        same!(known, written, "what is known without a read is what was written last");
    }
    Ok(())
}

fn every_write(t: &Trial<'_>) -> Result<(), Failure> {
    let writes = [
        WriteOp::Create,
        WriteOp::Extents { fork: D, extents: vec![(0, "x".into())] },
        WriteOp::Extents { fork: D, extents: vec![(7, "".into())] },
        WriteOp::Zero { fork: D, range: span(0, 9) },
        WriteOp::Zero { fork: D, range: span(4, 4) },
        WriteOp::Truncate { fork: D, size: 0 },
        WriteOp::RemoveFork { fork: fork("none") },
        WriteOp::ReplaceFork { fork: D, from: fork("none") },
        WriteOp::SetKey { key: key("k"), value: "v".into() },
        WriteOp::RemoveKey { key: key("none") },
        WriteOp::SetAttribute { name: key("a"), value: "v".into() },
        WriteOp::RemoveAttribute { name: key("none") },
        WriteOp::RaiseFence { token: 0 },
        WriteOp::Remove,
    ];
    let all = t.object("all");
    for (index, write) in writes.iter().enumerate() {
        let done = t.done(&all, tx().change(write.clone()))?;
        same!(done.version, index as u64 + 1, "{write:?} takes a version");
        let alone = t.object(&format!("{index}"));
        let done = t.done(&alone, tx().change(write.clone()))?;
        same!((done.version, done.existed), (1, false), "{write:?} takes a version of an absent object");
        let stat = t.stat(&alone)?;
        same!(stat.version, 1, "{write:?} leaves its version");
        same!(
            stat.exists,
            *write != WriteOp::Remove,
            "every write but a removal makes the object exist: {write:?}"
        );
    }
    Ok(())
}

fn one_stamp(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    t.done(&a, tx().write(D, 0, "first"))?;
    let done =
        t.done(&a, tx().write(D, 5, "ab").write(fork("f"), 3, "c").write(D, 7, "de").write(D, 20, "z"))?;
    same!(done.version, 2, "a transaction of several writes takes one version");
    let read = t.range(&a, &D, span(0, 30))?;
    let extents = vec![data(0, 5, 1), data(5, 9, 2), data(20, 21, 2)];
    same!(read.extents, extents, "neighbours of one version are one extent, of two versions two");
    same!(t.range(&a, &fork("f"), span(0, 9))?.extents, vec![data(3, 4, 2)], "all writes carry the stamp");
    t.done(&a, tx().write(D, 9, "q"))?;
    let extents = vec![data(5, 9, 2), data(9, 10, 3), data(20, 21, 2)];
    same!(t.extents(&a, &D, span(5, 30))?.extents, extents, "a later neighbour is another extent");
    Ok(())
}

fn region(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    t.done(&a, tx().write(D, 10, "aaaaaaaaaa"))?;
    t.done(&a, tx().write(D, 30, "bbbbbbbbbb"))?;
    t.done(&a, tx().write(D, 15, "c"))?;
    t.done(&a, tx().write(fork("f"), 0, vec![0; 100]))?;
    let expected = [
        ((0, 10), 0),
        ((0, 11), 1),
        ((10, 15), 1),
        ((10, 16), 3),
        ((15, 16), 3),
        ((16, 20), 1),
        ((16, 30), 1),
        ((20, 30), 0),
        ((16, 31), 2),
        ((39, 40), 2),
        ((40, OFFSET_MAX), 0),
        ((0, OFFSET_MAX), 3),
        ((12, 12), 0),
    ];
    for ((start, end), version) in expected {
        let range = span(start, end);
        same!(t.range(&a, &D, range)?.version, version, "the region version of {range:?} is its greatest");
        same!(
            t.extents(&a, &D, range)?.version,
            version,
            "the region version of {range:?} without its bytes"
        );
        t.done(&a, tx().if_version(D, range, version))?;
        if version > 0 {
            let refusal = t.refused(&a, tx().if_version(D, range, version - 1))?;
            let Found::Region(found) = refusal.found else {
                return Err(Failure::new("a refused conditional write finds a region"));
            };
            same!(found.version, version, "a refusal gives the region version of {range:?}");
        }
    }
    t.done(&a, tx().if_version(D, ByteRange::ALL, u64::MAX))?;
    Ok(())
}

fn many_versions(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    let f = fork("f");
    for place in [20, 0, 10] {
        t.done(&a, tx().write(f.clone(), place, vec![b'.'; 10]))?;
    }
    let whole = span(0, 30);
    let read = t.range(&a, &f, whole)?;
    same!(read.version, 3, "the greatest of many versions guards the region");
    same!(read.extents, vec![data(0, 10, 2), data(10, 20, 3), data(20, 30, 1)], "each extent has its own");
    // Somebody else changes the part whose version was the least.
    t.done(&a, tx().write(f.clone(), 29, "!"))?;
    let refusal =
        t.refused(&a, tx().if_version(f.clone(), whole, read.version).write(f.clone(), 0, "lost"))?;
    same!(refusal.version, 4, "the change is noticed wherever in the region it was");
    let Found::Region(found) = refusal.found else {
        return Err(Failure::new("a refused conditional write finds a region"));
    };
    same!(found.data, [&[b'.'; 29][..], b"!"].concat(), "the refusal hands back the fresh bytes");
    let done = t.done(&a, tx().if_version(f.clone(), whole, found.version).write(f.clone(), 0, "won!"))?;
    same!(done.version, 5, "and the version with which the retry succeeds");
    // Changes outside the region, to the very next byte or in another fork, do not matter.
    t.done(&a, tx().write(f.clone(), 30, "x").write(D, 0, vec![b'x'; 30]))?;
    t.done(&a, tx().if_version(f.clone(), whole, 5).write(f, 15, "again"))?;
    Ok(())
}

/// Tests that a version read earlier does not pass for current, in whatever way a region comes to hold the
/// same bytes as before.
fn nothing_comes_back(t: &Trial<'_>) -> Result<(), Failure> {
    let f = fork("f");
    let write = |bytes: &'static str| WriteOp::Extents { fork: fork("f"), extents: vec![(0, bytes.into())] };
    let other = WriteOp::Extents { fork: fork("other"), extents: vec![(0, "AAAA".into())] };
    let detours: [(&str, Vec<WriteOp>); 7] = [
        ("overwriting", vec![write("BBBB")]),
        ("zeroing", vec![WriteOp::Zero { fork: f.clone(), range: span(0, 4) }]),
        ("truncating", vec![WriteOp::Truncate { fork: f.clone(), size: 0 }]),
        ("removing the fork", vec![WriteOp::RemoveFork { fork: f.clone() }]),
        ("replacing the fork", vec![other, WriteOp::ReplaceFork { fork: f.clone(), from: fork("other") }]),
        ("removing the object", vec![WriteOp::Remove]),
        ("removing and making the object", vec![WriteOp::Remove, WriteOp::Create]),
    ];
    for (what, writes) in detours {
        let a = t.object(what);
        t.done(&a, tx().write(f.clone(), 0, "AAAA"))?;
        let read = t.range(&a, &f, span(0, 4))?;
        t.done(&a, Transaction { writes, ..tx() })?;
        let guarded = || tx().if_version(f.clone(), span(0, 4), read.version).write(f.clone(), 0, "CCCC");
        let refusal = t.refused(&a, guarded())?;
        same!((refusal.guard, refusal.version), (0, 2), "{what} shows");
        t.done(&a, tx().change(write("AAAA")))?;
        let refusal = t.refused(&a, guarded())?;
        same!(refusal.version, 3, "{what} shows when the same bytes are back");
        let again = t.range(&a, &f, span(0, 4))?;
        same!(&again.data[..], &b"AAAA"[..], "{what}: the same bytes are back");
        same!(again.version, 3, "{what}: with a new version");
        // Nor may one byte of it pass for untouched, or a proposal slip below it.
        t.refused(&a, tx().if_version(f.clone(), span(3, 4), 2))?;
        let proposal = Guard::Proposal { fork: f.clone(), range: span(0, 1), version: 2 };
        t.refused(&a, tx().guard(proposal).change(write("DDDD")))?;
    }
    Ok(())
}

fn removed_object(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    t.done(&a, tx().write(D, 0, "data").write(fork("f"), 0, "more"))?;
    let set = tx().change(WriteOp::SetKey { key: key("k"), value: "v".into() });
    let set = set.change(WriteOp::SetAttribute { name: key("a"), value: "v".into() });
    t.done(&a, set.change(WriteOp::RaiseFence { token: 9 }))?;
    same!(t.done(&a, tx().change(WriteOp::Remove))?.version, 3, "removal takes a version");
    let gone = Stat { version: 3, fence: 9, ..Stat::default() };
    same!(t.stat(&a)?, gone, "of a removed object only version and fence are left");
    same!(t.key(&a, "k")?, None, "its keys are gone");
    for name in [D, fork("f"), fork("never there")] {
        let read = t.range(&a, &name, span(1, 8))?;
        let expected = RangeRead { extents: vec![hole(1, 8, 3)], version: 3, ..RangeRead::default() };
        same!(read, expected, "every fork of a removed object is a hole of its removal");
        same!(t.extents(&a, &name, span(5, 5))?.version, 3, "also where the range is empty");
        t.refused(&a, tx().if_version(name.clone(), span(0, 1), 2))?;
        t.done(&a, tx().guard(Guard::Absent).if_version(name, span(0, 1), 3))?;
    }
    let again = t.done(&a, tx().guard(Guard::Absent).write(D, 2, "new"))?;
    same!((again.version, again.existed), (4, false), "made again, it goes on above");
    let read = t.range(&a, &D, span(0, 8))?;
    same!(&read.data[..], &b"\0\0new"[..], "the old bytes do not show");
    same!(read.extents, vec![hole(0, 2, 3), data(2, 5, 4), hole(5, 8, 3)], "around the new ones is the hole");
    same!(read.version, 4, "and the region version is the greatest of them");
    same!(t.range(&a, &fork("f"), span(0, 8))?.version, 3, "forks not written since are at the removal");
    let stat = Stat { exists: true, version: 4, fence: 9, forks: 1, bytes: 5, ..Stat::default() };
    same!(t.stat(&a)?, stat, "only what was written since is there");
    t.done(&a, tx().change(WriteOp::Remove))?;
    same!(
        t.range(&a, &D, span(0, 2))?.extents,
        vec![hole(0, 2, 5)],
        "a second removal raises the tombstone version"
    );
    same!(t.done(&a, tx().change(WriteOp::Remove))?.version, 6, "removing what is not there takes a version");
    same!(t.range(&a, &D, span(0, 2))?.extents, vec![hole(0, 2, 6)], "and raises the tombstone version too");
    Ok(())
}

fn remove_and_write(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    t.done(&a, tx().write(D, 0, "old bytes").change(WriteOp::SetKey { key: key("k"), value: "v".into() }))?;
    let replace = tx().change(WriteOp::Remove).write(D, 2, "new");
    let done = t.done(&a, replace.change(WriteOp::Zero { fork: D, range: span(5, 6) }))?;
    same!((done.version, done.existed), (2, true), "removal and writes are one transaction");
    let read = t.range(&a, &D, span(0, 9))?;
    same!(&read.data[..], &b"\0\0new"[..], "what was written after the removal is there");
    same!(read.extents, vec![hole(0, 2, 2), data(2, 5, 2), hole(5, 9, 2)], "all of it at one version");
    same!(t.stat(&a)?.keys, 0, "what was there before is gone");
    t.done(&a, tx().write(D, 0, "gone").change(WriteOp::Remove))?;
    same!(t.stat(&a)?, Stat { version: 3, ..Stat::default() }, "what was written before the removal is gone");
    same!(t.range(&a, &D, span(0, 4))?.extents, vec![hole(0, 4, 3)], "and leaves only the hole");
    Ok(())
}

fn propose(name: &Fork, range: ByteRange, version: u64) -> Transaction {
    tx().guard(Guard::Proposal { fork: name.clone(), range, version })
}

fn proposal_refused(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    t.refused(&a, propose(&D, span(0, 4), 0).write(D, 0, "zero"))?;
    same!(t.stat(&a)?.exists, false, "0 is not greater than 0");
    for bytes in ["one ", "two ", "3333"] {
        t.done(&a, tx().write(D, 0, bytes))?;
    }
    for version in [0, 1, 2, 3] {
        let refusal = t.refused(&a, propose(&D, span(1, 3), version).write(D, 0, "lost"))?;
        let found =
            RangeRead { data: "33".into(), extents: vec![data(1, 3, 3)], version: 3, size: 4, next: None };
        let expected = Refusal { guard: 0, found: Found::Region(found), version: 3 };
        same!(refusal, expected, "a proposal that is not greater than the region's version is refused");
    }
    same!(&t.range(&a, &D, span(0, 9))?.data[..], &b"3333"[..], "and changes nothing");
    same!(t.done(&a, propose(&D, span(1, 3), 4).write(D, 0, "four"))?.version, 4, "one more is accepted");
    Ok(())
}

fn proposal_stamps(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    same!(t.done(&a, propose(&D, span(0, 4), 10).write(D, 0, "ten "))?.version, 10, "a high proposal stamps");
    same!(t.range(&a, &D, span(0, 4))?.extents, vec![data(0, 4, 10)], "what is written carries it");
    same!(t.stat(&a)?.version, 10, "and the object has it");
    same!(t.done(&a, tx().write(D, 8, "next"))?.version, 11, "the sequence goes on above");
    // Greater than its region's version, but not than the object's.
    same!(
        t.done(&a, propose(&D, span(20, 24), 3).write(D, 20, "low "))?.version,
        12,
        "a low one does not stamp"
    );
    same!(
        t.range(&a, &D, span(20, 24))?.version,
        12,
        "a lower stamp would hide the change in a wider region"
    );
    let two = propose(&D, span(0, 4), 40).guard(Guard::Proposal { fork: D, range: span(8, 12), version: 30 });
    same!(t.done(&a, two.write(D, 0, "x"))?.version, 40, "of several the greatest stamps");
    let one_bad =
        propose(&D, span(8, 12), 50).guard(Guard::Proposal { fork: D, range: span(0, 1), version: 40 });
    same!(t.refused(&a, one_bad.write(D, 0, "y"))?.guard, 1, "each must be greater than its own region's");
    same!(t.done(&a, propose(&D, span(0, 4), 99))?.version, 40, "without a write nothing is stamped");
    same!(t.stat(&a)?.version, 40, "and nothing changes");
    let elsewhere = propose(&D, span(0, 4), 60).change(WriteOp::SetKey { key: key("k"), value: "v".into() });
    same!(t.done(&a, elsewhere)?.version, 60, "a proposal stamps whatever is written");
    same!(t.done(&a, propose(&D, span(0, 4), 70).change(WriteOp::Remove))?.version, 70, "a removal too");
    same!(t.range(&a, &D, span(0, 4))?.version, 70, "so that the tombstone version is the proposal");
    t.refused(&a, propose(&fork("f"), span(0, 4), 70).write(fork("f"), 0, "x"))?;
    Ok(())
}

fn proposal_limit(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    t.done(&a, tx().write(D, 0, "x"))?;
    t.invalid(&a, propose(&D, span(0, 1), PROPOSAL_MAX + 1).write(D, 0, "y"))?;
    t.invalid(&a, propose(&D, span(0, 1), u64::MAX))?;
    let greatest = t.done(&a, propose(&D, span(0, 1), PROPOSAL_MAX).write(D, 0, "y"))?;
    same!(greatest.version, PROPOSAL_MAX, "the greatest proposal is accepted");
    t.refused(&a, propose(&D, span(0, 1), PROPOSAL_MAX).write(D, 0, "z"))?;
    let next = t.done(&a, tx().if_version(D, span(0, 1), PROPOSAL_MAX).write(D, 0, "z"))?;
    same!(next.version, PROPOSAL_MAX + 1, "and the object goes on above it");
    let refusal = t.refused(&a, tx().if_version(D, span(0, 1), PROPOSAL_MAX))?;
    same!(refusal.version, PROPOSAL_MAX + 1, "with guards that still work");
    Ok(())
}
