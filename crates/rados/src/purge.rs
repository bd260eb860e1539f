//! The purge of what removed objects leave behind, on demand: their headers and their entries in the index of names.
//!
//! Clients go on meanwhile. For each shard of the index, the purge
//!
//! 1. raises the version above which objects begin that are made (module `floor`), in the shard and then in the master;
//! 2. looks for marks that were set before, whose owners may be about to make objects that begin lower, and gives these objects a
//!    trace, so that the floor is no matter of theirs any more;
//! 3. lets the version follow that objects show of which there is no trace;
//! 4. looks for marks of the objects, and leaves those that have one: whoever set it may have set it before step 3;
//! 5. takes each object away, if its header is still the same, and then its entry, if that is.
//!
//! It may end at each step: an earlier one has raised a floor, which is then used, or taken objects away whose entries the next purge
//! takes out.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::time::Duration;

use bytes::Bytes;
use nacre_object::limit::FLOOR_MAX;
use nacre_object::{ErrorKind, ObjectId, StoreError};
use tokio::sync::oneshot;

use crate::error::{Attempt, errno, failed};
use crate::floor::Floor;
use crate::index::{Entry, Existence, LOOKS_MAX, PAGE_MAX, SHARDS, Shard, entry_key, shard_name, shard_of};
use crate::mark::{FLAGS, MARK, now};
use crate::name::object_name;
use crate::native::HEADER;
use crate::read::header_of;
use crate::record::{Author, Header};
use crate::store::{Inner, spawn};
use crate::sys::{Answer, Completed, Operation, ReadStep, WriteStep};

/// The number of versions by which a purge raises a floor at most: an object that was removed at a proposed version far above all
/// others is left, or a few of them would raise the floor to where nothing is purged any more.
const STEP_MAX: u64 = 1 << 22;
/// The maximum number of objects that are taken away side by side.
const GROUP_MAX: usize = 64;
/// The time for which those who watch an object are waited for, if they do not answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The options of a purge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PurgeOptions {
    /// The least time since the object was last changed, by the clocks of the clients. How long it is matters to nothing but the
    /// work: an object that is soon made again need not be taken away.
    pub older_than: Duration,
    /// True if nothing is to be changed: the report then says what would be.
    pub dry_run: bool,
}

/// The result of a purge. All numbers but the first are of removed objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PurgeReport {
    /// Objects looked at, including those that exist.
    pub objects: u64,
    /// Objects that were taken away.
    pub purged: u64,
    /// Entries that were taken out of the index of names, also of objects that were gone before.
    pub entries: u64,
    /// Objects left because they are remembered for ever: those with fences, those of Nacre's services, and those that were
    /// removed at a version far above the others.
    pub remembered: u64,
    /// Objects left because they were changed too recently.
    pub recent: u64,
    /// Objects left because somebody watches them.
    pub watched: u64,
    /// Objects left because clients were about to make them or remove them.
    pub busy: u64,
    /// Objects left because their headers cannot be read.
    pub damaged: u64,
    /// The greatest version that objects without a trace show now.
    pub floor: u64,
}

/// A removed object that may be taken away.
struct Candidate {
    object: ObjectId,
    /// Its header; `None` if only its entry in the index is left.
    header: Option<Header>,
    version: u64,
}

/// A removed object that is being taken away.
struct Removal {
    /// True if there is more of it than an entry.
    has_header: bool,
    operation: Operation,
    entry: Vec<u8>,
    /// The value of its entry, if it has one.
    before: Option<Bytes>,
}

/// Waits for a time, with any runtime or none.
async fn pause(time: Duration) {
    let (sender, receiver) = oneshot::channel();
    // Dropped with this future: a thread that nobody waits for any more ends, or there would be one for each object for all the time.
    let (_held, dropped) = std::sync::mpsc::channel::<()>();
    let waiting = spawn(move || {
        dropped.recv_timeout(time).ok();
        sender.send(()).ok();
    });
    // Without a thread there is no pause.
    if waiting.is_ok() {
        receiver.await.ok();
    }
}

impl Inner {
    /// Purges removed objects. See [`RadosStore::purge`](crate::RadosStore::purge).
    pub(crate) async fn purge(
        &self,
        options: PurgeOptions,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<PurgeReport, StoreError> {
        if !options.dry_run && !self.complete_index().await? {
            let text = format!(
                "the index of names in pool \"{}\" cannot be completed: this user may not write, there is no space, or a newer \
                 version of Nacre made it",
                self.location.pool
            );
            return Err(StoreError::new(ErrorKind::Unsupported, text));
        }
        let mut shards: Vec<Vec<ObjectId>> = (0..SHARDS).map(|_| Vec::new()).collect();
        for object in self.names().await? {
            shards[shard_of(&object)].push(object);
        }
        let all: usize = shards.iter().map(Vec::len).sum();
        let mut report = PurgeReport::default();
        for (number, objects) in shards.into_iter().enumerate() {
            let mut done = |done| progress(done, all as u64);
            self.purge_shard(number, &objects, options, &mut report, &mut done).await?;
            report.floor = report.floor.max(self.marker.read_floor(number).await?.shown);
        }
        Ok(report)
    }

    /// Purges the objects of one shard of the index.
    async fn purge_shard(
        &self,
        number: usize,
        objects: &[ObjectId],
        options: PurgeOptions,
        report: &mut PurgeReport,
        progress: &mut impl FnMut(u64),
    ) -> Result<(), StoreError> {
        // Entries that say that there is no object: what is left of them below has nothing but the entry.
        let mut removed: BTreeMap<ObjectId, u64> = BTreeMap::new();
        self.each_entry(number, |entry| {
            if let Some(Existence { version, exists: false }) = entry.fact.filter(|_| entry.marks.is_empty())
            {
                removed.insert(entry.object, version);
            }
        })
        .await?;
        let floor = self.marker.read_floor(number).await?;
        let limit = FLOOR_MAX.min(floor.start.saturating_add(STEP_MAX));
        let mut candidates = Vec::new();
        for chunk in objects.chunks(LOOKS_MAX) {
            let steps = [ReadStep::Xattrs, ReadStep::Stat];
            let looks: Vec<Operation> =
                chunk.iter().map(|object| self.pool.read(&object_name(object), &steps, 0)).collect();
            for (object, look) in chunk.iter().zip(looks) {
                report.objects += 1;
                removed.remove(object);
                candidates.extend(self.candidate(object, look.await, limit, options, report)?);
            }
            progress(report.objects);
        }
        let entries = removed.into_iter().filter(|(_, version)| *version <= limit);
        candidates.extend(entries.map(|(object, version)| Candidate { object, header: None, version }));
        if options.dry_run {
            report.entries += candidates.len() as u64;
            report.purged += candidates.iter().filter(|candidate| candidate.header.is_some()).count() as u64;
            return Ok(());
        }
        let Some(wanted) = candidates.iter().map(|candidate| candidate.version).max() else { return Ok(()) };
        self.raise_floor(number, wanted).await?;
        for group in candidates.chunks(GROUP_MAX) {
            self.purge_group(number, group, report).await?;
        }
        Ok(())
    }

    /// Judges by its header, which was read with the time of its last change, whether an object may be taken away.
    fn candidate(
        &self,
        object: &ObjectId,
        completed: Completed,
        limit: u64,
        options: PurgeOptions,
        report: &mut PurgeReport,
    ) -> Result<Option<Candidate>, StoreError> {
        let (header, answers) = match header_of(&self.pool, &self.location, object, completed, 0) {
            Ok(found) => found,
            Err(error) if matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Unsupported) => {
                report.damaged += 1;
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if header.exists || header.is_absent() {
            return Ok(None);
        }
        let is_fenced = header.fence > 0 || header.sessions > 0;
        if is_fenced || object.is_remembered() || header.version > limit {
            report.remembered += 1;
            return Ok(None);
        }
        let changed_at = match answers.get(1) {
            Some(Answer::Stat { time, .. }) => *time,
            _ => 0,
        };
        if now().saturating_sub(changed_at) < options.older_than.as_secs() {
            report.recent += 1;
            return Ok(None);
        }
        Ok(Some(Candidate { object: object.clone(), header: Some(header), version: header.version }))
    }

    /// Passes on all entries of a shard; none if it is not there.
    async fn each_entry(&self, number: usize, mut visit: impl FnMut(Entry)) -> Result<(), StoreError> {
        let mut shard = Shard::new(number, None);
        while !shard.over {
            let completed = shard.read(&self.pool, PAGE_MAX).await;
            match -completed.code {
                code if code <= 0 => {}
                errno::ENOENT => return Ok(()),
                code => return Err(self.index_failed(-code)),
            }
            let first = completed.answers.into_iter().next();
            let (pairs, more) = first.map(|answer| answer.into_pairs()).unwrap_or_default();
            shard.take(pairs, more, None);
            shard.ready.drain(..).for_each(&mut visit);
        }
        Ok(())
    }

    /// Raises the floor of a shard, so that objects without a trace show at least a version.
    async fn raise_floor(&self, number: usize, wanted: u64) -> Result<(), StoreError> {
        let mut floor = self.marker.read_floor(number).await?;
        if floor.shown >= wanted {
            return Ok(());
        }
        while floor.start < wanted {
            let next = Floor { start: wanted, ..floor };
            floor = match self.marker.replace_floor(number, floor, next).await? {
                true => next,
                false => self.marker.read_floor(number).await?,
            };
        }
        // Whoever sets a mark from here on begins above this.
        let reached = floor.start;
        self.marker.raise_master(number, reached).await?;
        self.leave_traces(number).await?;
        while floor.shown < reached {
            let next = Floor { shown: reached, ..floor };
            floor = match self.marker.replace_floor(number, floor, next).await? {
                true => next,
                false => self.marker.read_floor(number).await?,
            };
        }
        Ok(())
    }

    /// Gives those objects of a shard a header that have a mark and no trace: of an object that was removed at the floor. Whoever set
    /// the mark may make it at any time, above an earlier floor and below what is to be shown.
    async fn leave_traces(&self, number: usize) -> Result<(), StoreError> {
        let mut marked = Vec::new();
        self.each_entry(number, |entry| {
            if !entry.marks.is_empty() && !entry.object.is_remembered() {
                marked.push(entry.object);
            }
        })
        .await?;
        for chunk in marked.chunks(LOOKS_MAX) {
            let steps = [ReadStep::Xattrs];
            let looks: Vec<Operation> =
                chunk.iter().map(|object| self.pool.read(&object_name(object), &steps, 0)).collect();
            for (object, look) in chunk.iter().zip(looks) {
                match -look.await.code {
                    code if code <= 0 => {}
                    errno::ENOENT => self.leave_trace(object).await?,
                    code => return Err(failed(-code, Attempt::Read, &self.location, object)),
                }
            }
        }
        Ok(())
    }

    /// Gives an object a header that has none. Like everybody who makes something of an object without a trace, this sets a mark
    /// first, and its version is the second one of the floor: another purge may have looked for marks before this one was there, and
    /// raise what the object shows up to that version before the header is there.
    async fn leave_trace(&self, object: &ObjectId) -> Result<(), StoreError> {
        let mark = self.mark(object).await?;
        let header = Header { author: Author::Token(self.token()), ..Header::absent(mark.floor.start) };
        let record = header.encode();
        let steps = [WriteStep::CreateNew, WriteStep::SetXattr(HEADER, &record)];
        let code = self.pool.write(&object_name(object), &steps, FLAGS).await.code;
        // Where the outcome is not known, the mark is left to the listings.
        if code != -errno::ETIMEDOUT {
            self.unmark(&mark);
        }
        if code < 0 && code != -errno::EEXIST {
            return Err(failed(code, Attempt::Read, &self.location, object));
        }
        Ok(())
    }

    /// Takes away objects of one shard, whose floor covers them, and their entries.
    async fn purge_group(
        &self,
        number: usize,
        group: &[Candidate],
        report: &mut PurgeReport,
    ) -> Result<(), StoreError> {
        let shard = shard_name(number);
        let keys: Vec<(Vec<u8>, CString, CString)> = group
            .iter()
            .map(|candidate| {
                let entry = entry_key(&candidate.object);
                // Keys hold no zero byte: the conversions cannot fail.
                let after = CString::new(&entry[..]).unwrap_or_default();
                let marks = CString::new([&entry[..], &MARK].concat()).unwrap_or_default();
                (entry, after, marks)
            })
            .collect();
        let steps: Vec<ReadStep<'_>> = keys
            .iter()
            .flat_map(|(entry, after, marks)| {
                [ReadStep::OmapKey(entry), ReadStep::OmapAfter { after, prefix: marks, limit: 1 }]
            })
            .collect();
        let looked = self.pool.read(&shard, &steps, 0).await;
        if looked.code < 0 {
            return Err(self.index_failed(looked.code));
        }
        let mut found = looked.answers.into_iter().map(|answer| answer.into_pairs().0);
        let mut removals = Vec::new();
        for (candidate, (entry, ..)) in group.iter().zip(&keys) {
            let (facts, marks) = (found.next(), found.next());
            let before = facts.and_then(|facts| facts.into_iter().next()).map(|(_, value)| value);
            let fact = before.as_ref().and_then(|value| Existence::decode(value));
            // Without a mark, an entry that says that the object exists is a later one.
            if marks.is_none_or(|marks| !marks.is_empty()) || fact.is_some_and(|fact| fact.exists) {
                report.busy += 1;
                continue;
            }
            let name = object_name(&candidate.object);
            if candidate.header.is_some_and(|header| header.watched) {
                let is_watched = tokio::select! {
                    found = self.watching.has_watchers(&name) => found,
                    () = pause(PATIENCE) => true,
                };
                if is_watched {
                    report.watched += 1;
                    continue;
                }
            }
            let operation = match candidate.header.map(|header| header.encode()) {
                Some(record) => {
                    self.pool.write(&name, &[WriteStep::IfXattr(HEADER, &record), WriteStep::Remove], FLAGS)
                }
                None => self.pool.read(&name, &[ReadStep::Xattrs], 0),
            };
            let has_header = candidate.header.is_some();
            removals.push((candidate, Removal { has_header, operation, entry: entry.clone(), before }));
        }
        let mut gone: Vec<(Vec<u8>, Bytes)> = Vec::new();
        for (candidate, Removal { has_header, operation, entry, before }) in removals {
            match (has_header, -operation.await.code) {
                (true, code) if code <= 0 => report.purged += 1,
                (_, errno::ENOENT) => {}
                // Somebody has made it, or watches it, meanwhile.
                (false, code) if code <= 0 => {
                    report.busy += 1;
                    continue;
                }
                (true, errno::ECANCELED | errno::ENODATA) => {
                    report.busy += 1;
                    continue;
                }
                (_, code) => {
                    let error = failed(-code, Attempt::Read, &self.location, &candidate.object);
                    return Err(error);
                }
            }
            gone.extend(before.map(|before| (entry, before)));
        }
        report.entries += self.remove_entries(&shard, &gone).await?;
        Ok(())
    }

    /// Takes entries out of a shard, but for those that are not what they were. Returns their number.
    async fn remove_entries(&self, shard: &CStr, entries: &[(Vec<u8>, Bytes)]) -> Result<u64, StoreError> {
        let remove = |entries: &[(Vec<u8>, Bytes)]| {
            let compare = entries.iter().map(|(key, value)| WriteStep::IfOmapEqual(key, value));
            let remove = entries.iter().map(|(key, _)| WriteStep::RemoveOmap(key));
            self.pool.write(shard, &compare.chain(remove).collect::<Vec<_>>(), FLAGS)
        };
        if entries.is_empty() {
            return Ok(0);
        }
        match -remove(entries).await.code {
            code if code <= 0 => return Ok(entries.len() as u64),
            errno::ECANCELED => {}
            code => return Err(self.index_failed(-code)),
        }
        let mut count = 0;
        for entry in entries.chunks(1) {
            match -remove(entry).await.code {
                code if code <= 0 => count += 1,
                // What somebody else wrote there is later.
                errno::ECANCELED => {}
                code => return Err(self.index_failed(-code)),
            }
        }
        Ok(count)
    }
}
