//! The index of names: which objects there are, in ascending order, though RADOS lists a pool in none.
//!
//! The index is spread over [`SHARDS`] RADOS objects by a checksum of the object's id. For each object that ever was,
//! the omap of its shard holds an entry: whether the object exists, and at which version that was so. Beside the entry
//! stand the *marks* of changes under way.
//!
//! An object and its entry are two RADOS objects, which no operation changes together. So whoever is about to make an
//! object, or to remove it, first sets a mark of its own (module `mark`); then changes the object; and then, in one operation, writes
//! down what it knows now and takes its mark away (*settles*). The entry only ever goes to a fact of a greater version, until the
//! object is purged (module `purge`): then there is none.
//!
//! Invariant: where an entry has no mark, it says what is, and no entry says that there is nothing. For the last change of whether the object exists had a mark;
//! that is gone, so its fact was written; and no fact has a greater version. An entry with a mark says nothing, and the
//! object itself is asked. A client that dies leaves its mark, which costs a look at the object in each listing, until
//! one settles it that finds it to be old.
//!
//! The age of a mark is not taken from the clock of the client that set it, which may differ from a lister's by any amount: a
//! mark that is settled before its change takes place would leave the change unlisted. That clock only says which marks
//! look old. The first listing that finds such a one writes beside it the time by an OSD's clock, and one that finds it
//! there a day later, by an OSD's clock too, settles it. The clocks of OSDs cannot differ by so much: Ceph's own
//! authentication would shut them out.
//!
//! The class refuses to make or to remove an object without a mark (`UNINDEXED` in `extent.lua`), so that no
//! client has to know beforehand whether an object is there; and what does neither needs no look at the index at all.
//!
//! A pool that was filled before there was an index, or from which the index was removed, has no *root* that says that
//! the index is complete. The first that lists it, and may write, fills the index in. Every listing reads the root beside
//! the entries, and a complete index has all its shards: so it is noticed if somebody removes them while clients run, or if
//! one is lost. Whoever has to set a mark in a shard that is not there takes the root back before it makes the shard anew.

mod cursor;

use std::collections::{BTreeSet, HashMap};
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use nacre_object::{ErrorKind, ObjectId, StoreError};

use self::cursor::{Cursor, Listings};
pub(crate) use self::cursor::{Entry, Shard};
use crate::error::errno;
use crate::floor::Floor;
use crate::mark::{FLAGS, MARK, Mark, decode_mark, encode_mark, now, shard_steps};
use crate::name::{keyed, object_name, unescaped};
use crate::read::header_of;
use crate::record::{Header, checksum};
use crate::store::Inner;
use crate::sys::{Completed, Operation, ReadStep, WriteStep, flag};

/// The number of RADOS objects that the index is spread over.
pub(crate) const SHARDS: usize = 32;
/// The RADOS object whose attribute says whether the index is complete.
pub(crate) const ROOT: &CStr = c"nacre-index";
/// The root's attribute.
pub(crate) const STATE: &CStr = c"nacre-index";
/// The format of the root and of entries.
const FORMAT: u8 = 1;
/// The letter that keys of entries and marks begin with.
const LETTER: u8 = b'n';
/// The time for which a mark has to be there, after it was noticed, to be taken for that of a client that died: what such a
/// client sent has long been applied, or never will be. Also the age from which on a mark is noticed.
const MARK_AGE_MAX: Duration = Duration::from_secs(24 * 3600);
/// The maximum number of headers read at once.
pub(crate) const LOOKS_MAX: usize = 128;
/// The maximum number of entries that one operation fills in.
const FILLED_MAX: usize = 128;
/// The maximum number of entries that are asked of a shard at once.
pub(crate) const PAGE_MAX: usize = 512;
/// The maximum number of times that a listing begins anew because the index turned out to be incomplete.
const ATTEMPTS_MAX: u32 = 3;

/// The client's knowledge of the index.
#[derive(Default)]
pub(crate) struct IndexState {
    /// The known state of its root, as a number.
    root: AtomicU8,
    listings: Listings,
}

impl IndexState {
    /// Nothing is known: the root tells.
    const UNKNOWN: u8 = 0;
    /// The root said so when it was last read.
    const COMPLETE: u8 = 1;
    /// It is not complete, whatever the root says.
    const BROKEN: u8 = 2;
}

/// The state of the index, by its root.
enum Root {
    Complete,
    Incomplete,
    /// The index was made by a later version; this one leaves it alone.
    Newer,
}

/// A fact about an object: whether it exists at a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Existence {
    pub(crate) version: u64,
    pub(crate) exists: bool,
}

impl Existence {
    const BYTES: usize = 14;
    /// The assumption about an object whose header cannot be read. It must not be written over what is known: no object
    /// that exists has version 0.
    const UNREADABLE: Existence = Existence { version: 0, exists: true };

    /// Encodes the fact so that those of greater versions are greater, byte by byte.
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut record = self.version.to_be_bytes().to_vec();
        record.extend([FORMAT, u8::from(self.exists)]);
        record.extend(checksum(&record).to_le_bytes());
        record
    }

    /// Decodes a fact; `None` if it is unsound.
    pub(crate) fn decode(record: &[u8]) -> Option<Self> {
        let (body, sum) = record.split_at_checked(Self::BYTES - 4)?;
        let (version, [FORMAT, exists @ 0..=1]) = body.split_first_chunk::<8>()? else { return None };
        (sum == checksum(body).to_le_bytes())
            .then(|| Self { version: u64::from_be_bytes(*version), exists: *exists == 1 })
    }
}

impl From<&Header> for Existence {
    fn from(header: &Header) -> Self {
        Self { version: header.version, exists: header.exists }
    }
}

/// A fact to be written into an entry while the index is filled in.
struct Correction {
    object: ObjectId,
    /// The fact that was found there.
    before: Option<Existence>,
    fact: Existence,
}

pub(crate) fn entry_key(object: &ObjectId) -> Vec<u8> {
    keyed(Some(LETTER), object.as_bytes())
}

/// Returns the object that a key is of, and whether the key is that of a mark; `None` if it is neither's.
fn decode_index_key(key: &[u8]) -> Option<(ObjectId, bool)> {
    let rest = key.strip_prefix(&[LETTER])?;
    // No escape begins like a mark's, and its token holds none of it.
    let at = rest.windows(MARK.len()).rposition(|window| window == MARK);
    let name = at.map_or(rest, |at| &rest[..at]);
    Some((ObjectId::new(unescaped(name)?).ok()?, at.is_some()))
}

pub(crate) fn shard_of(object: &ObjectId) -> usize {
    checksum(object.as_bytes()) as usize % SHARDS
}

pub(crate) fn shard_name(shard: usize) -> CString {
    // There is no zero byte in it: the conversion cannot fail.
    CString::new(format!("nacre-index.{shard:02}")).unwrap_or_default()
}

/// Encodes the root's attribute.
pub(crate) fn encode_root(complete: bool) -> Vec<u8> {
    let mut record = vec![FORMAT, u8::from(complete), SHARDS as u8];
    record.extend(checksum(&record).to_le_bytes());
    record
}

/// The clock of an OSD, which is looked at once, when the time is first wanted.
#[derive(Default)]
struct OsdClock(Option<Option<u64>>);

impl OsdClock {
    /// The input of the method: Ceph's encoding of a structure without fields.
    const INPUT: [u8; 6] = [1, 1, 0, 0, 0, 0];

    /// Returns the time in seconds, by the clock of the OSD that keeps a shard; `None` if it does not tell this user. The class
    /// of Ceph that tells it is there, and allowed, unless an administrator chose otherwise.
    async fn now(&mut self, inner: &Inner, shard: &CStr) -> Option<u64> {
        if let Some(time) = self.0 {
            return time;
        }
        let step = ReadStep::Call { class: c"otp", method: c"get_current_time", input: &Self::INPUT };
        let completed = inner.pool.read(shard, &[step], 0).await;
        let first = completed.answers.into_iter().next().filter(|_| completed.code >= 0);
        let time = Self::decode(&first.map(|answer| answer.into_bytes()).unwrap_or_default());
        self.0 = Some(time);
        time
    }

    /// Decodes the output: the structure's two versions and its length, and of the time the seconds and the nanoseconds.
    fn decode(output: &[u8]) -> Option<u64> {
        let seconds = output.get(6..14)?.first_chunk::<4>()?;
        Some(u64::from(u32::from_le_bytes(*seconds))).filter(|seconds| *seconds > 0)
    }
}

impl Inner {
    /// Writes down what is known of an object after its change, and takes the mark away. Where no other client was about to
    /// change the entry, nobody waits for it: until it is done, and also where another client has changed the entry all the
    /// same, the mark makes listings ask the object.
    pub(crate) async fn settle(&self, mark: &Mark, version: u64, exists: bool) {
        let fact = Existence { version, exists };
        match &mark.before {
            Some(before) => drop(self.send_fact(mark, before, fact)),
            None => {
                self.raise_fact(&mark.shard, &mark.entry, fact, Some(&mark.key[..])).await;
            }
        }
    }

    /// Writes a fact into an entry that is as it was before the change, and so is older. The OSD must not compare versions: it
    /// takes 128 for less than 127, and would put a fact that arrives late over a later one. A mark that somebody has noticed, or
    /// settled, is left to the listings.
    fn send_fact(&self, mark: &Mark, before: &[u8], fact: Existence) -> Operation {
        let fact = fact.encode();
        let steps = [
            WriteStep::IfOmapEqual(&mark.key, &mark.value),
            WriteStep::IfOmapEqual(&mark.entry, before),
            WriteStep::SetOmap(&mark.entry, &fact),
            WriteStep::RemoveOmap(&mark.key),
        ];
        self.pool.write(&mark.shard, &steps, FLAGS)
    }

    /// Writes a fact into an entry, unless it says this already or a later fact, and takes a mark away, if one is given. The entry is
    /// read, and the versions are compared here. Returns 0 or more, or a negative errno: ENOENT if there is no shard. It is not made
    /// anew here, because the root may say that the index is complete.
    ///
    /// Where the mark is gone, somebody else has settled it, and nothing is written: the object may have been removed and purged
    /// since, so that there is no later fact any more that a late one would be compared with.
    async fn raise_fact(&self, shard: &CStr, entry: &[u8], fact: Existence, mark: Option<&[u8]>) -> i32 {
        let record = fact.encode();
        let flags = if mark.is_some() { FLAGS } else { flag::FULL_TRY };
        loop {
            let mut looks = vec![ReadStep::OmapKey(entry)];
            looks.extend(mark.map(ReadStep::OmapKey));
            let completed = self.pool.read(shard, &looks, 0).await;
            if completed.code < 0 {
                return completed.code;
            }
            let mut found = completed.answers.into_iter().map(|answer| answer.into_pairs().0);
            let (facts, marks) = (found.next().unwrap_or_default(), found.next().unwrap_or_default());
            let before: &[u8] = facts.first().map_or(&[][..], |(_, value)| &value[..]);
            let mut steps = Vec::new();
            if let Some(mark) = mark {
                let Some((_, value)) = marks.first() else { return 0 };
                steps.push(WriteStep::IfOmapEqual(mark, value));
            }
            if Existence::decode(before).is_none_or(|before| before.version < fact.version) {
                steps.extend([WriteStep::IfOmapEqual(entry, before), WriteStep::SetOmap(entry, &record)]);
            }
            steps.extend(mark.map(WriteStep::RemoveOmap));
            if steps.is_empty() {
                return 0;
            }
            let code = self.pool.write(shard, &steps, flags).await.code;
            // Where somebody changed the entry meanwhile, theirs may be the later fact.
            if code != -errno::ECANCELED {
                return code;
            }
        }
    }

    /// Lists objects.
    pub(crate) async fn list(
        &self,
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<Vec<ObjectId>, StoreError> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        for _ in 0..ATTEMPTS_MAX {
            if !self.complete_index().await? {
                break;
            }
            if let Some(found) = self.list_by_index(after.as_ref(), limit).await? {
                return Ok(found);
            }
        }
        self.list_by_walk(after, limit).await
    }

    /// Lists objects by the index. Returns `None` if that turns out not to be complete any more.
    async fn list_by_index(
        &self,
        after: Option<&ObjectId>,
        limit: usize,
    ) -> Result<Option<Vec<ObjectId>>, StoreError> {
        // Asked side by side with the shards.
        let root = self.read_root();
        let mut cursor = self.index.listings.resume(after, limit);
        let mut found = Vec::new();
        // Entries are looked into in groups, so that the looks go side by side.
        let (mut group, mut uncertain): (Vec<Entry>, usize) = (Vec::new(), 0);
        loop {
            let next = cursor.next(self).await?;
            if cursor.broken {
                self.index.root.store(IndexState::BROKEN, Ordering::Relaxed);
                return Ok(None);
            }
            let over = next.is_none();
            if let Some(entry) = next.filter(|entry| entry.exists() != Some(false)) {
                uncertain += usize::from(entry.exists().is_none());
                group.push(entry);
            }
            if over || uncertain >= LOOKS_MAX || found.len() + group.len() >= limit {
                self.append_existing(std::mem::take(&mut group), &mut found).await?;
                uncertain = 0;
            }
            if over || found.len() >= limit {
                break;
            }
        }
        if !matches!(self.root(root.await)?, Root::Complete) {
            self.index.root.store(IndexState::UNKNOWN, Ordering::Relaxed);
            return Ok(None);
        }
        self.index.listings.keep(cursor, found.last());
        Ok(Some(found))
    }

    /// Appends the objects of a group of entries that exist.
    async fn append_existing(&self, group: Vec<Entry>, found: &mut Vec<ObjectId>) -> Result<(), StoreError> {
        let uncertain = |entry: &&Entry| entry.exists().is_none();
        let requested: Vec<&ObjectId> = group.iter().filter(uncertain).map(|entry| &entry.object).collect();
        let mut facts = self.facts(&requested).await?.into_iter();
        let mut clock = OsdClock::default();
        for entry in group {
            let exists = match entry.exists() {
                Some(exists) => exists,
                None => {
                    let fact = facts.next().unwrap_or(Existence::UNREADABLE);
                    // Where the object does not tell, its mark is what keeps a stale entry from being believed.
                    if fact != Existence::UNREADABLE {
                        self.tend_marks(&entry, fact, &mut clock).await;
                    }
                    fact.exists
                }
            };
            if exists {
                found.push(entry.object);
            }
        }
        Ok(())
    }

    /// Settles those marks of an object that were noticed long ago, and notices those that look old. A failure leaves a mark as
    /// it is.
    async fn tend_marks(&self, entry: &Entry, fact: Existence, clock: &mut OsdClock) {
        let shard = shard_name(shard_of(&entry.object));
        for (key, value) in &entry.marks {
            let (set_at, noticed_at) = decode_mark(value);
            if noticed_at.is_none() && now().abs_diff(set_at) < MARK_AGE_MAX.as_secs() {
                continue;
            }
            let Some(now) = clock.now(self, &shard).await else { return };
            match noticed_at.and_then(|noticed_at| now.checked_sub(noticed_at)) {
                Some(age) if age >= MARK_AGE_MAX.as_secs() => {
                    self.raise_fact(&shard, &entry_key(&entry.object), fact, Some(&key[..])).await;
                }
                Some(_) => {}
                None => {
                    let noticed = encode_mark(set_at, Some(now));
                    // It may be gone by now.
                    let steps = [WriteStep::IfOmapEqual(key, value), WriteStep::SetOmap(key, &noticed)];
                    self.pool.write(&shard, &steps, flag::FULL_TRY).await;
                }
            }
        }
    }

    /// Looks at objects: which of them exist. One of which there is no trace has version 0, whatever the floor: a fact of it must
    /// not be put over that of an object which is being made.
    async fn facts(&self, objects: &[&ObjectId]) -> Result<Vec<Existence>, StoreError> {
        let mut facts = Vec::with_capacity(objects.len());
        for chunk in objects.chunks(LOOKS_MAX) {
            let looks: Vec<_> =
                chunk.iter().map(|id| self.pool.read(&object_name(id), &[ReadStep::Xattrs], 0)).collect();
            for (id, look) in chunk.iter().zip(looks) {
                facts.push(match header_of(&self.pool, &self.location, id, look.await, 0) {
                    Ok((header, _)) => Existence::from(&header),
                    // One whose header cannot be read is there, under a name that can: whoever asks it for more is told
                    // what is wrong with it, and nobody else is stopped by that.
                    Err(error) if matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Unsupported) => {
                        Existence::UNREADABLE
                    }
                    Err(error) => return Err(error),
                });
            }
        }
        Ok(facts)
    }

    /// Lists objects without the index: walks over all names of the namespace and sorts them.
    async fn list_by_walk(&self, after: Option<ObjectId>, limit: usize) -> Result<Vec<ObjectId>, StoreError> {
        let mut ids = self.names().await?;
        ids.retain(|id| after.as_ref().is_none_or(|after| id > after));
        ids.sort_unstable();
        let mut found = Vec::new();
        for chunk in ids.chunks(LOOKS_MAX) {
            let requested: Vec<&ObjectId> = chunk.iter().collect();
            let facts = self.facts(&requested).await?;
            found.extend(chunk.iter().zip(facts).filter(|(_, fact)| fact.exists).map(|(id, _)| id.clone()));
            if found.len() >= limit {
                break;
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    /// Returns whether the index is complete; fills it in if it is not, and this user may.
    pub(crate) async fn complete_index(&self) -> Result<bool, StoreError> {
        let state = self.index.root.load(Ordering::Relaxed);
        if state == IndexState::COMPLETE {
            return Ok(true);
        }
        let complete = match self.root(self.read_root().await)? {
            Root::Complete if state != IndexState::BROKEN => true,
            Root::Newer => false,
            _ => self.fill_index().await?,
        };
        let state = if complete { IndexState::COMPLETE } else { IndexState::UNKNOWN };
        self.index.root.store(state, Ordering::Relaxed);
        Ok(complete)
    }

    fn read_root(&self) -> Operation {
        self.pool.read(ROOT, &[ReadStep::Xattrs], 0)
    }

    /// Returns what the root says, of which the attributes were read.
    fn root(&self, completed: Completed) -> Result<Root, StoreError> {
        if completed.code < 0 && completed.code != -errno::ENOENT {
            return Err(self.index_failed(completed.code));
        }
        let first = completed.answers.into_iter().next().filter(|_| completed.code >= 0);
        let attributes = first.map(|answer| answer.into_pairs().0).unwrap_or_default();
        let root = attributes.iter().find(|(name, _)| name == STATE.to_bytes()).map(|(_, value)| &value[..]);
        Ok(match root {
            Some(root) if root == encode_root(true) => Root::Complete,
            Some(root) if root.first().is_some_and(|format| *format > FORMAT) => Root::Newer,
            _ => Root::Incomplete,
        })
    }

    /// Fills the index in with the objects that were there before it. Returns false if this user may not, or if there is
    /// no space for it. What is done when it is interrupted need not be done again.
    pub(crate) async fn fill_index(&self) -> Result<bool, StoreError> {
        // Whoever may not write learns it before the work.
        if self.write_root(false).await? {
            self.make_shards().await?;
            // What an entry says may have been changed by a client without the index: all objects are looked at, those that
            // have entries too.
            let mut names: BTreeSet<ObjectId> = self.names().await?.into_iter().collect();
            let mut known = HashMap::new();
            let mut cursor = Cursor::new(None, usize::MAX);
            while let Some(entry) = cursor.next(self).await? {
                // One that has marks alone may lose them without a fact, if their changes do not take place.
                if let Some(fact) = entry.fact {
                    names.insert(entry.object.clone());
                    known.insert(entry.object, fact);
                }
            }
            let names: Vec<ObjectId> = names.into_iter().collect();
            let mut shards: Vec<Vec<Correction>> = (0..SHARDS).map(|_| Vec::new()).collect();
            for chunk in names.chunks(FILLED_MAX * SHARDS) {
                let requested: Vec<&ObjectId> = chunk.iter().collect();
                let facts = self.facts(&requested).await?;
                for (id, fact) in chunk.iter().zip(facts) {
                    let before = known.get(id).copied();
                    let stale = match before {
                        Some(before) => before.exists != fact.exists && before.version < fact.version,
                        None => fact.exists,
                    };
                    if stale {
                        shards[shard_of(id)].push(Correction { object: id.clone(), before, fact });
                    }
                }
                for (number, shard) in shards.iter_mut().enumerate() {
                    for part in shard.chunks(FILLED_MAX) {
                        self.fill_in(number, part).await?;
                        self.take_in_purges(number, part).await?;
                    }
                    shard.clear();
                }
            }
            return self.write_root(true).await;
        }
        Ok(false)
    }

    /// Makes all shards, so that one that is not there is known to have been removed.
    async fn make_shards(&self) -> Result<(), StoreError> {
        let floors = self.marker.masters().await?.into_iter().enumerate();
        let make = |(shard, floor): (usize, Floor)| {
            self.pool.write(&shard_name(shard), &shard_steps(&floor.encode()), flag::FULL_TRY)
        };
        let made: Vec<Operation> = floors.map(make).collect();
        for made in made {
            let code = made.await.code;
            if code < 0 && code != -errno::EEXIST {
                return Err(self.index_failed(code));
            }
        }
        Ok(())
    }

    /// Looks again at objects of which entries were written that had none: one that was removed and purged since the first look
    /// has left no later fact which would have kept that of the first look out.
    async fn take_in_purges(&self, shard: usize, corrections: &[Correction]) -> Result<(), StoreError> {
        let listed: Vec<&Correction> = corrections.iter().filter(|of| of.fact.exists).collect();
        let objects: Vec<&ObjectId> = listed.iter().map(|of| &of.object).collect();
        for (Correction { object, fact, .. }, found) in listed.into_iter().zip(self.facts(&objects).await?) {
            if !found.exists {
                let gone = Existence { version: found.version.max(fact.version + 1), exists: false };
                let code = self.raise_fact(&shard_name(shard), &entry_key(object), gone, None).await;
                if code < 0 {
                    return Err(self.index_failed(code));
                }
            }
        }
        Ok(())
    }

    /// Writes facts into a shard, except those that are older than what stands there.
    async fn fill_in(&self, shard: usize, corrections: &[Correction]) -> Result<(), StoreError> {
        let name = shard_name(shard);
        let records: Vec<_> = corrections
            .iter()
            .map(|Correction { object, before, fact }| {
                (entry_key(object), before.map(Existence::encode).unwrap_or_default(), fact.encode())
            })
            .collect();
        let compare = records.iter().map(|(key, before, _)| WriteStep::IfOmapEqual(key, before));
        let set = records.iter().map(|(key, _, value)| WriteStep::SetOmap(key, value));
        let steps: Vec<_> = compare.chain(set).collect();
        match self.pool.write(&name, &steps, flag::FULL_TRY).await.code {
            code if code >= 0 => return Ok(()),
            code if code != -errno::ECANCELED => return Err(self.index_failed(code)),
            _ => {}
        }
        // Somebody wrote one of them meanwhile, or one of them is unsound.
        for Correction { object, fact, .. } in corrections {
            let code = self.raise_fact(&name, &entry_key(object), *fact, None).await;
            if code < 0 {
                return Err(self.index_failed(code));
            }
        }
        Ok(())
    }

    /// Writes the root. Returns false if this user may not, or if there is no space for it.
    async fn write_root(&self, complete: bool) -> Result<bool, StoreError> {
        let record = encode_root(complete);
        let completed = self.pool.write(ROOT, &[WriteStep::SetXattr(STATE, &record)], flag::FULL_TRY).await;
        match -completed.code {
            code if code <= 0 => Ok(true),
            errno::EPERM | errno::EACCES | errno::ENOSPC | errno::EDQUOT | errno::EOPNOTSUPP => Ok(false),
            code => Err(self.index_failed(-code)),
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::mark::mark_key;

    fn id(bytes: &[u8]) -> ObjectId {
        ObjectId::new(bytes.to_vec()).unwrap()
    }

    #[test]
    fn records_are_pinned() {
        // What a cluster holds today must be read for ever.
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let fact = Existence { version: 0x0102, exists: true };
        assert_eq!(hex(&fact.encode())[..20], *"00000000000001020101");
        assert_eq!(Existence::decode(&fact.encode()), Some(fact));
        assert_eq!(hex(&encode_mark(7, None)), "010700000000000000");
        assert_eq!(hex(&encode_mark(7, Some(258))), "0107000000000000000201000000000000");
        for mark in [(7, None), (7, Some(258))] {
            assert_eq!(decode_mark(&encode_mark(mark.0, mark.1)), mark);
        }
        assert_eq!(decode_mark(b"\x01too short"), (0, None));
        assert_eq!(hex(&encode_root(true))[..6], *"010120");
        let key = mark_key(&entry_key(&id(b"a\x01")), b"sixteen letters!");
        assert_eq!(key, b"na\x01\x03\x01\x017369787465656e206c65747465727321");
        assert_eq!(shard_of(&id(b"name")), 4);
    }

    #[test]
    fn the_time_of_an_osd_is_decoded() {
        let output = [1, 1, 8, 0, 0, 0, 0x78, 0x56, 0x34, 0x12, 9, 9, 9, 9];
        assert_eq!(OsdClock::decode(&output), Some(0x1234_5678));
        for length in 0..output.len() {
            assert_eq!(OsdClock::decode(&output[..length]), None);
        }
    }

    #[test]
    fn later_facts_are_greater_byte_by_byte() {
        let facts = [0, 1, 255, 256, 1 << 40, (1 << 63) - 1]
            .map(|version| Existence { version, exists: version % 2 == 0 });
        for pair in facts.windows(2) {
            assert!(pair[0].encode() < pair[1].encode(), "{pair:?}");
        }
        assert!(facts[0].encode() > Vec::new(), "an entry that is not there is the least");
    }

    #[test]
    fn keys_are_in_the_order_of_the_ids_and_marks_follow_their_entry() {
        let ids = [
            &b"\0"[..],
            b"\0\0",
            b"\x01",
            b"\x01\x01",
            b"\x01\x02",
            b"a",
            b"a\0",
            b"a\x01\x01",
            b"ab",
            b"\xff",
        ]
        .map(id);
        let mut keys = Vec::new();
        for id in &ids {
            let entry = entry_key(id);
            assert_eq!(decode_index_key(&entry), Some((id.clone(), false)));
            let mark = mark_key(&entry, &[0xab; 16]);
            assert_eq!(decode_index_key(&mark), Some((id.clone(), true)));
            keys.extend([entry, mark]);
        }
        assert!(keys.is_sorted(), "{keys:?}");
    }

    #[test]
    fn damage_never_panics_and_is_never_a_fact() {
        let seed = rand::random();
        let mut random = StdRng::seed_from_u64(seed);
        for _ in 0..20_000 {
            let fact = Existence { version: random.random(), exists: random.random() };
            let mut record = fact.encode();
            let at = random.random_range(0..record.len());
            record[at] ^= 1 << random.random_range(0..8);
            record.truncate(random.random_range(at + 1..=record.len()));
            assert_eq!(Existence::decode(&record), None, "seed {seed}");
            let noise: Vec<u8> = (0..random.random_range(0..60)).map(|_| random.random_range(0..4)).collect();
            decode_index_key(&noise);
            decode_mark(&noise);
            Existence::decode(&noise);
        }
    }
}
