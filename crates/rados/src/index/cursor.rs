//! The entries of the index in the order of the ids: those of all shards, merged, and kept from one page of a listing to the next.
//!
//! A shard is read ahead, more and more at a time. What was read ahead is used by a later page only if RADOS' own version of the
//! shard is still the one that it was read at, which an OSD tells without a look at the entries: every page shows what stands in
//! the index while it is made, just as if all of it had been read then. A shard that was changed is read anew from where the
//! listing is, and no longer read ahead in that listing.

use std::cmp::Ordering;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};
use std::ffi::CString;

use bytes::Bytes;
use nacre_object::{ObjectId, StoreError};
use parking_lot::Mutex;

use super::{Existence, LETTER, PAGE_MAX, SHARDS, decode_index_key, entry_key, shard_name};
use crate::error::errno;
use crate::name::behind;
use crate::store::Inner;
use crate::sys::{Operation, Pool, ReadStep};

/// The maximum number of entries that are read ahead of a shard at once.
const READ_AHEAD_MAX: usize = 256;
/// The maximum number of listings whose entries are kept between their pages.
const LISTINGS_MAX: usize = 4;
/// The number of rounds of reads in which entries that were read before must be of the same state of their shard as those that
/// follow. It ends where a shard is changed all the time and an object has more marks than one read returns.
const STRICT_ROUNDS: u32 = 8;

/// An object in the index.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) object: ObjectId,
    /// The fact; `None` if there is none, or if it is unsound.
    pub(crate) fact: Option<Existence>,
    /// Its marks: their keys and values.
    pub(crate) marks: Vec<(Bytes, Bytes)>,
}

impl Entry {
    /// Returns whether the object exists; `None` if only the object itself tells.
    pub(super) fn exists(&self) -> Option<bool> {
        self.fact.filter(|_| self.marks.is_empty()).map(|fact| fact.exists)
    }
}

/// The entries of one shard, in order, as far as they were read.
pub(crate) struct Shard {
    name: CString,
    /// The key after which the next page begins.
    after: CString,
    pub(crate) ready: VecDeque<Entry>,
    /// The entry whose marks may go on in the next page.
    open: Option<Entry>,
    pub(crate) over: bool,
    /// RADOS' own version of the shard when all that is here stood there; 0 if it was not read yet.
    version: u64,
    /// True if what is here is of no use for another page, because the shard is changed while the listing goes on.
    restless: bool,
}

impl Shard {
    pub(crate) fn new(number: usize, after: Option<&ObjectId>) -> Self {
        let mut shard = Self {
            name: shard_name(number),
            after: CString::default(),
            ready: VecDeque::new(),
            open: None,
            over: false,
            version: 0,
            restless: false,
        };
        shard.restart(after);
        shard
    }

    /// Forgets what was read, to begin behind an object.
    fn restart(&mut self, after: Option<&ObjectId>) {
        self.ready.clear();
        self.open = None;
        self.over = false;
        self.version = 0;
        // Marks of the object after which the listing begins are skipped as they come.
        self.after = CString::new(after.map_or(vec![LETTER], entry_key)).unwrap_or_default();
    }

    pub(crate) fn read(&self, pool: &Pool, limit: usize) -> Operation {
        self.ask(pool, false, limit)
    }

    /// Asks for as many further entries; on condition that the shard is in the state in which it was read last, or on none.
    fn ask(&self, pool: &Pool, strict: bool, limit: usize) -> Operation {
        let prefix = CString::from(c"n");
        let mut steps = Vec::with_capacity(2);
        if strict {
            steps.push(ReadStep::IfVersion(self.version));
        }
        if limit > 0 {
            steps.push(ReadStep::OmapAfter { after: &self.after, prefix: &prefix, limit: limit as u64 });
        }
        pool.read(&self.name, &steps, 0)
    }

    /// Takes in a page. Keys that are none of ours are passed over: the scrub names them.
    pub(crate) fn take(&mut self, page: Vec<(Bytes, Bytes)>, more: bool, from: Option<&ObjectId>) {
        if let Some((last, _)) = page.last() {
            self.after = behind(last);
        }
        self.over = !more || page.is_empty();
        for (key, value) in page {
            let Some((object, is_mark)) = decode_index_key(&key) else { continue };
            if from.is_some_and(|from| object <= *from) {
                continue;
            }
            if self.open.as_ref().is_some_and(|open| open.object != object) {
                self.ready.extend(self.open.take());
            }
            let open = self.open.get_or_insert(Entry { object, fact: None, marks: Vec::new() });
            if is_mark {
                open.marks.push((key, value));
            } else {
                open.fact = Existence::decode(&value);
            }
        }
        if self.over {
            self.ready.extend(self.open.take());
        }
    }

    /// Returns whether there is neither an entry to be had, nor certain that there is none.
    fn is_dry(&self) -> bool {
        self.ready.is_empty() && !self.over
    }

    /// Returns whether entries are here that a later read has to continue.
    fn is_begun(&self) -> bool {
        self.open.is_some() || !self.ready.is_empty()
    }
}

/// The first entry of a shard that is not merged yet. The least one is the greatest in a heap.
struct Head {
    entry: Entry,
    shard: usize,
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        other.entry.object.cmp(&self.entry.object)
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head {}

/// A read of a shard that is under way.
struct Asked {
    shard: usize,
    /// True if it fails where the shard was changed.
    strict: bool,
    /// True if it asks for entries.
    pages: bool,
    operation: Operation,
}

/// All shards, merged.
pub(super) struct Cursor {
    /// The object behind which it goes on.
    position: Option<ObjectId>,
    shards: Vec<Shard>,
    /// The first entry of each shard that has one ready.
    heads: BinaryHeap<Head>,
    /// The number of entries that one page is likely to take of each shard; and the number that is asked for at once.
    share: usize,
    ahead: usize,
    /// True if the shards have to be compared with what was read of them before this page.
    begins: bool,
    /// True if a shard has to be asked before the next entry is certain.
    is_dry: bool,
    /// True if one of the shards is not there.
    pub(super) broken: bool,
}

impl Cursor {
    /// Begins behind an object; `limit` is about how many entries will be wanted.
    pub(super) fn new(from: Option<&ObjectId>, limit: usize) -> Self {
        let shards = (0..SHARDS).map(|shard| Shard::new(shard, from)).collect();
        let share = Self::share_of(limit);
        let (position, heads) = (from.cloned(), BinaryHeap::with_capacity(SHARDS));
        Self { position, shards, heads, share, ahead: share, begins: true, is_dry: true, broken: false }
    }

    fn share_of(limit: usize) -> usize {
        // Names are spread evenly, but not quite.
        let share = limit.saturating_add(limit / 4).div_ceil(SHARDS) + 8;
        share.min(PAGE_MAX)
    }

    /// Begins another page where the last one ended.
    fn turn(&mut self, limit: usize) {
        self.share = Self::share_of(limit);
        self.ahead = (2 * self.ahead).min(READ_AHEAD_MAX).max(self.share);
        (self.begins, self.is_dry) = (true, true);
    }

    /// Returns the next entry in ascending order of the ids.
    pub(super) async fn next(&mut self, inner: &Inner) -> Result<Option<Entry>, StoreError> {
        if self.is_dry {
            self.fill(inner).await?;
        }
        let Some(mut head) = self.heads.peek_mut() else { return Ok(None) };
        let shard = &mut self.shards[head.shard];
        let entry = match shard.ready.pop_front() {
            Some(next) => std::mem::replace(&mut head.entry, next),
            None => {
                self.is_dry = !shard.over;
                PeekMut::pop(head).entry
            }
        };
        self.position = Some(entry.object.clone());
        Ok(Some(entry))
    }

    /// Asks the shards for what is missing, until each has an entry or none is left in it.
    async fn fill(&mut self, inner: &Inner) -> Result<(), StoreError> {
        for Head { entry, shard } in self.heads.drain() {
            self.shards[shard].ready.push_front(entry);
        }
        let mut round = 0;
        loop {
            let asked = self.ask(&inner.pool, round < STRICT_ROUNDS);
            for asked in asked {
                self.take(inner, asked).await?;
            }
            self.begins = false;
            round += 1;
            if !self.shards.iter().any(Shard::is_dry) {
                break;
            }
        }
        for (number, shard) in self.shards.iter_mut().enumerate() {
            let head = shard.ready.pop_front().map(|entry| Head { entry, shard: number });
            self.heads.extend(head);
        }
        self.is_dry = false;
        Ok(())
    }

    /// Asks those shards that have run dry, and on the way those that soon will; where a page begins, all shards, whether they are
    /// still as they were read.
    fn ask(&mut self, pool: &Pool, strict: bool) -> Vec<Asked> {
        let low = if self.begins { self.share } else { (self.share / 4).max(1) };
        let mut asked = Vec::new();
        for (number, shard) in self.shards.iter_mut().enumerate() {
            if self.begins && (shard.restless || shard.version == 0) {
                shard.restart(self.position.as_ref());
            }
            let pages = !shard.over && shard.ready.len() < low;
            let compares = shard.version > 0 && (self.begins || shard.is_begun());
            let is_asked = pages || self.begins && compares;
            if !is_asked {
                continue;
            }
            // What is continued without being compared is not of one state.
            shard.restless |= compares && !strict;
            let strict = compares && strict;
            let limit = match (pages, shard.restless) {
                (false, _) => 0,
                (true, false) => self.ahead,
                (true, true) => self.share,
            };
            let operation = shard.ask(pool, strict, limit);
            asked.push(Asked { shard: number, strict, pages, operation });
        }
        asked
    }

    /// Takes in what a shard answered.
    async fn take(&mut self, inner: &Inner, asked: Asked) -> Result<(), StoreError> {
        let Asked { shard: number, strict, pages, operation } = asked;
        let mut completed = operation.await;
        let shard = &mut self.shards[number];
        match -completed.code {
            code if code <= 0 => {
                // The entries are the answer to the last step.
                if pages {
                    let last = completed.answers.pop();
                    let (pairs, more) = last.map(|answer| answer.into_pairs()).unwrap_or_default();
                    shard.take(pairs, more, self.position.as_ref());
                }
                shard.version = completed.version;
            }
            // Somebody changed the shard: it is asked again in the next round.
            errno::ERANGE | errno::EOVERFLOW if strict => {
                shard.restart(self.position.as_ref());
                shard.restless = true;
            }
            errno::ENOENT => {
                shard.restart(self.position.as_ref());
                shard.over = true;
                self.broken = true;
            }
            code => return Err(inner.index_failed(-code)),
        }
        Ok(())
    }
}

/// Listings that may go on, with what was read ahead for them.
#[derive(Default)]
pub(super) struct Listings(Mutex<VecDeque<Cursor>>);

impl Listings {
    /// Returns a cursor that goes on behind an object, to be asked for about `limit` entries: that of the listing which ended there,
    /// or a new one.
    pub(super) fn resume(&self, after: Option<&ObjectId>, limit: usize) -> Cursor {
        let kept = after.and_then(|after| {
            let mut kept = self.0.lock();
            let at = kept.iter().position(|cursor| cursor.position.as_ref() == Some(after))?;
            kept.remove(at)
        });
        match kept {
            Some(mut cursor) => {
                cursor.turn(limit);
                cursor
            }
            None => Cursor::new(after, limit),
        }
    }

    /// Keeps a cursor for the page that follows, if it is where that will begin: behind the last object of this page.
    pub(super) fn keep(&self, cursor: Cursor, last: Option<&ObjectId>) {
        // Where it is further, an object in between may exist by now of which there was only a mark.
        if last.is_none() || cursor.position.as_ref() != last {
            return;
        }
        let mut kept = self.0.lock();
        if kept.len() >= LISTINGS_MAX {
            kept.pop_front();
        }
        kept.push_back(cursor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mark::{encode_mark, mark_key};

    fn id(bytes: &[u8]) -> ObjectId {
        ObjectId::new(bytes.to_vec()).unwrap()
    }

    fn entry(name: &str) -> Entry {
        let fact = Some(Existence { version: 3, exists: true });
        Entry { object: id(name.as_bytes()), fact, marks: Vec::new() }
    }

    #[test]
    fn pages_may_end_anywhere_between_an_entry_and_its_marks() {
        let fact = Bytes::from(Existence { version: 3, exists: true }.encode());
        let mut pairs = Vec::new();
        for name in [&b"a"[..], b"b", b"c"] {
            let entry = entry_key(&id(name));
            pairs.push((Bytes::from(entry.clone()), fact.clone()));
            for token in 0..2 {
                pairs.push((
                    mark_key(&entry, &[token; 16]).into(),
                    encode_mark(u64::from(token), None).into(),
                ));
            }
        }
        for length in 1..=pairs.len() {
            let mut shard = Shard::new(0, None);
            let pages = pairs.chunks(length).collect::<Vec<_>>();
            for (number, page) in pages.iter().enumerate() {
                shard.take(page.to_vec(), number + 1 < pages.len(), None);
            }
            assert!(shard.over && shard.open.is_none());
            let found: Vec<_> =
                shard.ready.iter().map(|entry| (entry.fact.is_some(), entry.marks.len())).collect();
            assert_eq!(found, [(true, 2); 3], "pages of {length}");
        }
    }

    #[test]
    fn a_page_that_ends_with_a_key_of_somebody_else_is_not_read_again() {
        let mut shard = Shard::new(0, None);
        let before = shard.after.clone();
        shard.take(vec![(Bytes::from_static(b"nzz\0top"), Bytes::new())], true, None);
        assert!(!shard.over && shard.after > before, "{:?}", shard.after);
    }

    #[test]
    fn the_least_of_all_heads_comes_first() {
        let heads = ["m", "a", "z", "ab"].into_iter().enumerate();
        let mut heap: BinaryHeap<Head> =
            heads.map(|(shard, name)| Head { entry: entry(name), shard }).collect();
        let order: Vec<usize> = std::iter::from_fn(|| heap.pop().map(|head| head.shard)).collect();
        assert_eq!(order, [1, 3, 0, 2]);
    }

    #[test]
    fn a_cursor_is_kept_for_the_page_that_begins_where_it_is_and_for_no_other() {
        let (listings, [a, b]) = (Listings::default(), [id(b"a"), id(b"b")]);
        let ended_at = |object: &ObjectId| Cursor { ahead: 100, ..Cursor::new(Some(object), 10) };
        let is_kept = |cursor: &Cursor| cursor.ahead > 100;
        // One that has passed an object which the page does not show is not kept.
        listings.keep(ended_at(&b), Some(&a));
        listings.keep(ended_at(&b), None);
        assert!(!is_kept(&listings.resume(Some(&b), 10)) && !is_kept(&listings.resume(Some(&a), 10)));
        listings.keep(ended_at(&b), Some(&b));
        assert!(!is_kept(&listings.resume(None, 10)) && !is_kept(&listings.resume(Some(&a), 10)));
        let resumed = listings.resume(Some(&b), 10);
        assert!(is_kept(&resumed) && resumed.begins && resumed.is_dry, "its shards are compared first");
        assert!(!is_kept(&listings.resume(Some(&b), 10)), "it is used once");
        // The oldest one goes where there are too many.
        let many: Vec<ObjectId> = (0..=LISTINGS_MAX as u8).map(|number| id(&[number + 1])).collect();
        many.iter().for_each(|object| listings.keep(ended_at(object), Some(object)));
        let kept: Vec<bool> = many.iter().map(|object| is_kept(&listings.resume(Some(object), 10))).collect();
        assert_eq!(kept.iter().filter(|kept| **kept).count(), LISTINGS_MAX);
        assert!(!kept[0]);
    }

    #[test]
    fn a_shard_that_begins_anew_has_nothing_left_of_what_was_read() {
        let fact = Bytes::from(Existence { version: 3, exists: true }.encode());
        let pair = |name: &[u8]| (Bytes::from(entry_key(&id(name))), fact.clone());
        let mut shard = Shard::new(0, None);
        shard.take(vec![pair(b"a"), pair(b"b"), pair(b"c")], true, None);
        assert_eq!((shard.ready.len(), shard.is_begun()), (2, true));
        shard.restart(Some(&id(b"a")));
        assert!(shard.is_dry() && !shard.is_begun());
        shard.take(vec![pair(b"b"), pair(b"c")], false, Some(&id(b"a")));
        assert_eq!(shard.ready.len(), 2);
        assert!(shard.ready.iter().all(|entry| entry.object > id(b"a")));
    }
}
