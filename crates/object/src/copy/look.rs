//! An object's state at one version, as far as a copy has to know it.
//!
//! All of it is read in one transaction where a reply holds it. The division of the questions (pages of extents, of
//! keys) is found in advance, by reads that need not agree with each other.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::MARK;
use super::plan::{ForkState, Step};
use crate::limit::PAGE_ENTRIES_MAX;
use crate::stage::is_reserved;
use crate::*;

/// The maximum number of bytes of ranges, and of keys with their values, that one look holds: together, and with
/// attributes, less than a reply does.
const HELD_BYTES_MAX: u64 = 6 << 20;
/// The maximum number of answers with extents in one transaction: each may be 100 KiB long.
const EXTENT_READS_MAX: usize = 100;
/// The maximum number of reads in one transaction.
const READS_MAX: usize = 4000;
/// The number of keys that one read asks for; the answer may have room for twice as many.
const KEYS_PER_READ: u32 = PAGE_ENTRIES_MAX as u32 / 2;
/// The maximum number of looks until the questions are cut small enough.
const LOOKS_MAX: usize = 4;

/// An object at one version.
pub(super) struct ObjectSnapshot {
    /// The object at a glance, without forks of reserved names.
    pub(super) stat: Stat,
    /// True if the object is a copy that is not complete.
    pub(super) marked: bool,
    /// The version of its last removal.
    pub(super) tombstone_version: u64,
    /// Its forks, and those that were asked for in addition.
    pub(super) forks: BTreeMap<Fork, ForkState>,
    /// Its keys with their values, if they were asked for and are few enough.
    pub(super) keys: Option<Vec<(Key, Bytes)>>,
    /// Its attributes, if they were asked for.
    pub(super) attributes: Vec<(Key, Bytes)>,
    /// Its fenced sessions; `None` if the store knows no such thing.
    pub(super) fences: Option<Fences>,
    /// The bytes of its forks, by the offset of the first byte.
    bytes: BTreeMap<Fork, BTreeMap<u64, Bytes>>,
}

/// The division of the questions.
#[derive(Default)]
struct Cut {
    /// True unless the store knows no fences of single sessions.
    fences: bool,
    /// All the names of forks, in order.
    names: Vec<Fork>,
    /// The starts of the pages of a fork's extents, in bytes, if there is more than one page.
    extents: BTreeMap<Fork, Vec<u64>>,
    /// The last keys of all pages of keys but the last; `None` if there are too many to be held.
    keys: Option<Vec<Bytes>>,
}

/// The questions besides the outline.
struct Wanted<'a> {
    content: bool,
    ranges: &'a [(Fork, ByteRange)],
}

impl ObjectSnapshot {
    /// Looks at everything of an object except its bytes, keys and attributes. `None` if it was written to meanwhile.
    pub(super) async fn outline(
        store: &dyn ObjectStore,
        object: &ObjectId,
        more_forks: &[Fork],
    ) -> Result<Option<ObjectSnapshot>, StoreError> {
        Self::look(store, object, more_forks, &Wanted { content: false, ranges: &[] }).await
    }

    /// Looks at an object with its attributes, with its keys if they are few enough, and with the bytes of `ranges`; if
    /// there are none, with all bytes if they are few enough. `None` if it was written to meanwhile.
    pub(super) async fn whole(
        store: &dyn ObjectStore,
        object: &ObjectId,
        more_forks: &[Fork],
        ranges: &[(Fork, ByteRange)],
    ) -> Result<Option<ObjectSnapshot>, StoreError> {
        Self::look(store, object, more_forks, &Wanted { content: true, ranges }).await
    }

    /// Returns the names of the forks that were looked at.
    pub(super) fn names(&self) -> Vec<Fork> {
        self.forks.keys().cloned().collect()
    }

    /// Returns the sessions that are fenced here and not in another look.
    pub(super) fn fenced_beside(&self, other: &ObjectSnapshot) -> Vec<u64> {
        let theirs = other.fences.as_ref().map_or(&[][..], |fences| &fences.sessions);
        let ours = self.fences.iter().flat_map(|fences| &fences.sessions).copied();
        ours.filter(|session| theirs.binary_search(session).is_err()).collect()
    }

    /// Returns whether the object has the same stat here as in another look, and the same fenced sessions, as far as
    /// both stores know any.
    pub(super) fn equals(&self, other: &ObjectSnapshot) -> bool {
        let fences = self.fences.as_ref().zip(other.fences.as_ref());
        self.stat == other.stat && fences.is_none_or(|(ours, theirs)| ours == theirs)
    }

    /// Returns whether all forks of another look were looked at here.
    pub(super) fn covers(&self, other: &ObjectSnapshot) -> bool {
        other.forks.keys().all(|fork| self.forks.contains_key(fork))
    }

    /// Returns the bytes of a range, if they were read.
    pub(super) fn held(&self, fork: &Fork, range: ByteRange) -> Option<Bytes> {
        let (start, bytes) = self.bytes.get(fork)?.range(..=range.offset).next_back()?;
        let from = range.offset - start;
        (from + range.len <= bytes.len() as u64)
            .then(|| bytes.slice(from as usize..(from + range.len) as usize))
    }

    /// Returns the parts of a range that are not newer than `version`.
    pub(super) fn unchanged(&self, fork: &Fork, range: ByteRange, version: u64) -> Vec<ByteRange> {
        let extents = self.forks.get(fork).map_or(&[][..], |fork| &fork.extents);
        let first = extents.partition_point(|extent| extent.range.end() <= range.offset);
        let within = extents[first..].iter().take_while(|extent| extent.range.offset < range.end());
        let old = within.filter(|extent| extent.version <= version).map(|extent| {
            ByteRange::from(extent.range.offset.max(range.offset)..extent.range.end().min(range.end()))
        });
        let mut parts: Vec<ByteRange> = Vec::new();
        for part in old {
            match parts.last_mut() {
                Some(last) if last.end() == part.offset => last.len += part.len,
                _ => parts.push(part),
            }
        }
        parts
    }

    /// Returns the ranges that the steps read and that are not held; none if all are held, or if they are too long to
    /// be.
    pub(super) fn missing(&self, steps: &BTreeMap<u64, Step>) -> Vec<(Fork, ByteRange)> {
        let data = steps.values().flat_map(|step| &step.data);
        let data = data.flat_map(|(fork, ranges)| ranges.iter().map(move |range| (fork, *range)));
        let replaced = steps.values().flat_map(|step| &step.replaced);
        let replaced = replaced.flat_map(|new| new.data.iter().map(|range| (&new.fork, *range)));
        let needed: Vec<(Fork, ByteRange)> =
            data.chain(replaced).map(|(fork, range)| (fork.clone(), range)).collect();
        let bytes: u64 = needed.iter().map(|(_, range)| range.len).sum();
        let held = needed.iter().all(|(fork, range)| self.held(fork, *range).is_some());
        if held || bytes > HELD_BYTES_MAX || needed.len() > EXTENT_READS_MAX / 2 {
            Vec::new()
        } else {
            needed
        }
    }

    async fn look(
        store: &dyn ObjectStore,
        object: &ObjectId,
        more_forks: &[Fork],
        wanted: &Wanted<'_>,
    ) -> Result<Option<ObjectSnapshot>, StoreError> {
        let mut cut = Cut { fences: true, keys: Some(Vec::new()), ..Cut::default() };
        let mut ranges: Vec<(Fork, ByteRange)> = wanted.ranges.to_vec();
        let Some(stat) = cut.names(store, object).await? else { return Ok(None) };
        if wanted.content && ranges.is_empty() && stat.bytes <= HELD_BYTES_MAX && stat.forks <= 64 {
            ranges.extend(cut.names.iter().map(|name| (name.clone(), ByteRange::ALL)));
        }
        for _ in 0..LOOKS_MAX {
            let reads = cut.reads(more_forks, wanted.content, &ranges);
            let Some(answers) = ask(store, object, &reads).await? else { return Ok(None) };
            match cut.gather(&reads, answers)? {
                Ok(look) => return Ok(Some(look)),
                Err(again) => cut.refine(store, object, again).await?,
            }
        }
        Ok(None)
    }
}

/// The reason why a look has to be repeated with another division of the questions.
enum Again {
    /// The set of forks is different.
    Names,
    /// A fork has more extents than one answer holds.
    Extents(Fork),
    /// More keys than the answers hold.
    Keys,
}

impl Cut {
    /// Finds out which forks exist, and whether the store knows fences of sessions: a server of an earlier version of
    /// Nacre does not.
    async fn names(
        &mut self,
        store: &dyn ObjectStore,
        object: &ObjectId,
    ) -> Result<Option<Stat>, StoreError> {
        self.names.clear();
        loop {
            let page = ReadOp::Forks { after: self.names.last().cloned(), limit: PAGE_ENTRIES_MAX as u32 };
            let mut reads = vec![ReadOp::Stat, page];
            reads.extend(self.fences.then_some(ReadOp::Fences));
            let answers = match ask(store, object, &reads).await {
                Err(error)
                    if self.fences && matches!(error.kind, ErrorKind::Invalid | ErrorKind::Unsupported) =>
                {
                    self.fences = false;
                    continue;
                }
                answers => answers?,
            };
            let Some([Answer::Stat(stat), Answer::Forks(page), ..]) = answers.as_deref() else {
                return Ok(None);
            };
            self.names.extend(page.entries.iter().map(|(fork, _)| fork.clone()));
            if !page.more || page.entries.is_empty() {
                return Ok(Some(stat.clone()));
            }
        }
    }

    fn reads(&self, more_forks: &[Fork], content: bool, ranges: &[(Fork, ByteRange)]) -> Vec<ReadOp> {
        let mut reads = vec![ReadOp::Stat];
        reads.extend(self.fences.then_some(ReadOp::Fences));
        let limit = PAGE_ENTRIES_MAX as u32;
        reads.push(ReadOp::Forks { after: None, limit });
        for page in self.names.chunks_exact(PAGE_ENTRIES_MAX) {
            reads.push(ReadOp::Forks { after: page.last().cloned(), limit });
        }
        // A fork that nobody has shows nothing but the hole that the object's last removal left.
        let mut unused = Fork::new(vec![0xff; 255]).unwrap_or_default();
        let mut digit = 0xff_u8;
        while self.names.contains(&unused) || more_forks.contains(&unused) {
            digit = digit.wrapping_sub(1);
            unused = Fork::new(vec![digit; 254]).unwrap_or_default();
        }
        reads.push(ReadOp::Extents { fork: unused, range: ByteRange::new(0, 1) });
        // The default fork is looked at whether it exists or not: all objects have the same name for it.
        let default = Fork::DEFAULT;
        let mut forks: Vec<&Fork> = self.names.iter().chain(more_forks).chain([&default]).collect();
        forks.retain(|fork| !is_reserved(fork));
        forks.sort();
        forks.dedup();
        for fork in forks {
            let starts = self.extents.get(fork).map_or(&[][..], Vec::as_slice);
            let starts = std::iter::once(&0).chain(starts);
            let ends = self.extents.get(fork).into_iter().flatten().copied().chain([ByteRange::ALL.end()]);
            for (start, end) in starts.zip(ends) {
                reads.push(ReadOp::Extents { fork: fork.clone(), range: ByteRange::from(*start..end) });
            }
        }
        if content {
            reads.push(ReadOp::Attributes);
            if let Some(lasts) = &self.keys {
                let afters = std::iter::once(None).chain(lasts.iter().map(Some));
                let befores = lasts.iter().map(|last| Some(behind(last))).chain([None]);
                for (after, before) in afters.zip(befores) {
                    let range = KeyRange { after: after.cloned(), before, ..KeyRange::all() };
                    reads.push(ReadOp::Keys { range, limit, values: true });
                }
            }
            for (fork, range) in ranges.iter().filter(|(fork, _)| !is_reserved(fork)) {
                reads.push(ReadOp::Range { fork: fork.clone(), range: *range, intent: Intent::Look });
            }
        }
        reads
    }

    /// Assembles a look from answers.
    fn gather(
        &self,
        reads: &[ReadOp],
        answers: Vec<Answer>,
    ) -> Result<Result<ObjectSnapshot, Again>, StoreError> {
        let mut look = ObjectSnapshot {
            stat: Stat::default(),
            marked: false,
            tombstone_version: 0,
            forks: BTreeMap::new(),
            keys: None,
            attributes: Vec::new(),
            fences: None,
            bytes: BTreeMap::new(),
        };
        let mut sizes: Vec<(Fork, u64)> = Vec::new();
        let mut first_extents = true;
        for (read, answer) in reads.iter().zip(answers) {
            match (read, answer) {
                (_, Answer::Stat(stat)) => look.stat = stat,
                (_, Answer::Fences(fences)) => look.fences = Some(fences),
                (_, Answer::Forks(page)) => sizes.extend(page.entries),
                (ReadOp::Extents { .. }, Answer::Range(found)) if std::mem::take(&mut first_extents) => {
                    look.tombstone_version = found.version;
                }
                (ReadOp::Extents { fork, .. }, Answer::Range(found)) => {
                    if found.next.is_some() {
                        return Ok(Err(Again::Extents(fork.clone())));
                    }
                    let state = look.forks.entry(fork.clone()).or_default();
                    found.extents.into_iter().for_each(|extent| coalesce(&mut state.extents, extent));
                }
                (ReadOp::Attributes, Answer::Keys(page)) => {
                    if page.more {
                        // There is no way to ask for the rest of them.
                        let text = "its attributes are more than one reply holds";
                        return Err(StoreError::new(ErrorKind::Unsupported, text));
                    }
                    look.attributes = page.entries;
                }
                (ReadOp::Keys { .. }, Answer::Keys(page)) => {
                    if page.more {
                        return Ok(Err(Again::Keys));
                    }
                    look.keys.get_or_insert_default().extend(page.entries);
                }
                (ReadOp::Range { fork, range, .. }, Answer::Range(found)) => {
                    look.bytes.entry(fork.clone()).or_default().insert(range.offset, found.data);
                }
                _ => {
                    return Err(StoreError::new(
                        ErrorKind::Io,
                        "the store's answer does not fit the question",
                    ));
                }
            }
        }
        if !sizes.iter().map(|(fork, _)| fork).eq(&self.names) {
            return Ok(Err(Again::Names));
        }
        for (fork, size) in sizes {
            if is_reserved(&fork) {
                look.marked |= fork.as_bytes() == MARK.as_bytes();
                look.stat.forks = look.stat.forks.saturating_sub(1);
                look.stat.bytes = look.stat.bytes.saturating_sub(size);
            } else {
                look.forks.entry(fork).or_default().size = Some(size);
            }
        }
        Ok(Ok(look))
    }

    /// Divides the questions further, according to the object's current state, which may change meanwhile.
    async fn refine(
        &mut self,
        store: &dyn ObjectStore,
        object: &ObjectId,
        again: Again,
    ) -> Result<(), StoreError> {
        match again {
            Again::Names => {
                self.names(store, object).await?;
            }
            Again::Extents(fork) => {
                let mut starts = Vec::new();
                let mut start = 0;
                loop {
                    let range = ByteRange::from(start..ByteRange::ALL.end());
                    let answers =
                        ask(store, object, &[ReadOp::Extents { fork: fork.clone(), range }]).await?;
                    let Some([Answer::Range(found)]) = answers.as_deref() else { break };
                    let Some(next) = found.next.filter(|next| *next > start) else { break };
                    // In halves, so that there may be more of them by the next look.
                    let middle = found.extents.get(found.extents.len() / 2).map(|extent| extent.range.offset);
                    starts.extend(middle.filter(|middle| *middle > start));
                    starts.push(next);
                    start = next;
                }
                self.extents.insert(fork, starts);
            }
            Again::Keys => {
                let (mut lasts, mut bytes, mut after): (Vec<Bytes>, u64, Option<Bytes>) =
                    (Vec::new(), 0, None);
                loop {
                    let range = KeyRange { after, ..KeyRange::all() };
                    let page = ReadOp::Keys { range, limit: KEYS_PER_READ, values: true };
                    let answers = ask(store, object, &[page]).await?;
                    let Some([Answer::Keys(page)]) = answers.as_deref() else { break };
                    bytes += page
                        .entries
                        .iter()
                        .map(|(key, value)| (key.as_bytes().len() + value.len()) as u64)
                        .sum::<u64>();
                    if bytes > HELD_BYTES_MAX {
                        self.keys = None;
                        return Ok(());
                    }
                    let Some((last, _)) = page.entries.last().filter(|_| page.more) else { break };
                    after = Some(last.to_bytes());
                    lasts.push(last.to_bytes());
                }
                // Where that is how they were asked for before, the reply has no room for them.
                self.keys = Some(lasts).filter(|lasts| self.keys.as_ref() != Some(lasts));
            }
        }
        Ok(())
    }
}

/// Asks questions in as few transactions as the answers allow. `None` unless all answers are of one version.
async fn ask(
    store: &dyn ObjectStore,
    object: &ObjectId,
    reads: &[ReadOp],
) -> Result<Option<Vec<Answer>>, StoreError> {
    let mut all = Vec::with_capacity(reads.len());
    let mut version = None;
    let mut rest = reads;
    while !rest.is_empty() {
        let mut extent_reads = 0;
        let fits = |read: &&ReadOp| {
            extent_reads += usize::from(matches!(read, ReadOp::Extents { .. } | ReadOp::Range { .. }));
            extent_reads <= EXTENT_READS_MAX
        };
        let count = rest.iter().take(READS_MAX).take_while(fits).count().max(1);
        let (now, later) = rest.split_at(count);
        let transaction = Transaction { reads: now.to_vec(), ..Transaction::default() };
        let Outcome::Done(done) = store.apply(object, transaction).await? else { return Ok(None) };
        if *version.get_or_insert(done.version) != done.version || done.answers.len() != now.len() {
            return Ok(None);
        }
        all.extend(done.answers);
        rest = later;
    }
    Ok(Some(all))
}

/// Returns the least key that is greater than `key`.
pub(super) fn behind(key: &Bytes) -> Bytes {
    [&key[..], &[0]].concat().into()
}
