//! Listing of objects. The store may be shared, so only ids with the case's prefix count.

use super::Case;
use super::trial::*;
use crate::limit::*;
use crate::testkit::block_on;
use crate::*;

pub(super) const CASES: &[Case] =
    &[("listing/order", order), ("listing/existence", existence), ("listing/pages", pages)];

/// Lists the objects of this case, in pages of a size.
fn all(t: &Trial<'_>, limit: usize) -> Result<Vec<ObjectId>, Failure> {
    let prefix = t.object("");
    let mut found: Vec<ObjectId> = Vec::new();
    let mut after = prefix.clone();
    loop {
        let page = block_on(t.next_connection().list(Some(&after), limit))?;
        ensure!(
            page.len() <= limit.min(PAGE_ENTRIES_MAX),
            "a page of at most {limit} has {} ids",
            page.len()
        );
        let Some(last) = page.last() else { return Ok(found) };
        ensure!(page[0] > after && page.is_sorted_by(|a, b| a < b), "ids ascend, after {after}: {page:?}");
        let past = !last.as_bytes().starts_with(prefix.as_bytes());
        after = last.clone();
        found.extend(page.into_iter().filter(|id| id.as_bytes().starts_with(prefix.as_bytes())));
        if past {
            return Ok(found);
        }
    }
}

fn order(t: &Trial<'_>) -> Result<(), Failure> {
    same!(all(t, 100)?, vec![], "there is nothing to list yet");
    let names: [&[u8]; 9] = [b"b", b"a", b"a\0", b"a/b", b"\xff\xff", b"\0", b"\xc3\x28", b"aa", b"B"];
    let mut expected: Vec<ObjectId> = names.iter().map(|name| t.object_bytes(name)).collect();
    for id in &expected {
        t.done(id, tx().guard(Guard::Absent).write(Fork::DEFAULT, 0, id.to_bytes()))?;
    }
    expected.sort();
    for id in &expected {
        let read = t.range(id, &Fork::DEFAULT, ByteRange::ALL)?;
        same!(&read.data[..], id.as_bytes(), "an id of any bytes names its own object");
    }
    for limit in [1, 2, 4, 100, usize::MAX] {
        same!(
            all(t, limit)?,
            expected,
            "every object is listed once, in order of its bytes, {limit} at a time"
        );
    }
    same!(block_on(t.next_connection().list(Some(&t.object("")), 0))?, vec![], "a page of none is empty");
    let from_start = block_on(t.next_connection().list(None, 1))?;
    same!(from_start.len(), 1, "the list may begin at its start");
    ensure!(from_start[0] <= expected[0], "which is not after any object");
    let absent = t.object("a/a");
    let next = block_on(t.next_connection().list(Some(&absent), 1))?;
    same!(next.first(), Some(&t.object("a/b")), "a page may begin after an id that names nothing");
    Ok(())
}

fn existence(t: &Trial<'_>) -> Result<(), Failure> {
    let (a, b, c) = (t.object("a"), t.object("b"), t.object("c"));
    t.done(&a, tx().change(WriteOp::Create))?;
    t.done(&b, tx().change(WriteOp::SetKey { key: key("k"), value: "v".into() }))?;
    t.stat(&c)?;
    t.done(&t.object("d"), tx().change(WriteOp::Remove))?;
    t.refused(&t.object("e"), tx().guard(Guard::Exists).change(WriteOp::Create))?;
    same!(all(t, 100)?, vec![a.clone(), b.clone()], "objects that exist are listed, and no others");
    t.done(&a, tx().change(WriteOp::Remove))?;
    same!(all(t, 100)?, vec![b.clone()], "a removed object is not listed");
    t.done(&a, tx().write(Fork::DEFAULT, 0, "x"))?;
    t.done(&c, tx().change(WriteOp::Create).change(WriteOp::Remove))?;
    t.done(&b, tx().change(WriteOp::Remove).change(WriteOp::RaiseFence { token: 1 }))?;
    same!(all(t, 100)?, vec![a, b], "one that was made again is");
    Ok(())
}

fn pages(t: &Trial<'_>) -> Result<(), Failure> {
    let count = PAGE_ENTRIES_MAX + 20;
    let mut replies = Vec::new();
    let expected: Vec<ObjectId> = (0..count).map(|index| t.object(&format!("{index:05}"))).collect();
    // Made all at once rather than one after another, so that a durable store need not sync for each.
    for id in expected.iter().rev() {
        replies.push(t.next_connection().apply(id, tx().change(WriteOp::Create)));
        if replies.len() == 128 {
            replies.drain(..).try_for_each(|reply| block_on(reply).map(drop))?;
        }
    }
    replies.into_iter().try_for_each(|reply| block_on(reply).map(drop))?;
    ensure!(all(t, usize::MAX)? == expected, "more objects than fit a page are listed in several");
    ensure!(all(t, 333)? == expected, "of any size");
    Ok(())
}
