//! Copying objects from one store to another with their versions: how a site grows from one machine to a cluster, and
//! back.
//!
//! The seam has no call that sets versions, and needs none: a transaction that proposes a version is stamped with it
//! if it is ahead of the object's ([`Guard::Proposal`]). So an object is *replayed*: its extents are written in
//! ascending order of their versions, all those of one version in one transaction that proposes it; keys and
//! attributes go along, or take versions that no extent has; the last transaction proposes the object's own version.
//! (Whatever carries one version was written by one transaction, and so fits into one again.)
//!
//! At each moment the copy is what the original would look like if nothing newer than the copy's version had been
//! written yet. That is also where an interrupted copy takes up again: at the destination's version, without any
//! record beside the objects. For the same reason, copying again later brings over only what changed since.
//!
//! What cannot be seen through the seam is not copied: the versions of objects that were removed, and of forks other
//! than the default one that do not exist (any more). Clients must not carry versions that they read in the one
//! store over to the other for those. Where such a fork comes to be after a first copy was made, what the copy lacks
//! cannot be added any more: the object is refused, and has to be copied anew into a fresh store.

mod plan;

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::limit::{OPERATIONS_MAX, PAGE_ENTRIES_MAX, TRANSACTION_BYTES_MAX};
use crate::*;
use plan::{ForkState, Step};

/// How often an object is begun anew because somebody wrote it meanwhile.
const ATTEMPTS_MAX: usize = 10;
/// Payload of keys and attributes that goes along with one step.
const KEY_BYTES_PER_STEP_MAX: usize = 4 << 20;
/// Keys and attributes that go along with one step.
const KEYS_PER_STEP_MAX: usize = 1024;

/// What copying came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Objects that are now the same in both stores.
    pub objects: u64,
    /// Those among them that were the same before.
    pub unchanged: u64,
    /// Bytes of extents that were written.
    pub bytes: u64,
}

/// Copies all objects of a store into another one, in the order of their ids. `progress` is called after each object
/// with the totals so far. An object that the destination has in a state that the source never went through is an
/// error, [`ErrorKind::Invalid`], and ends the copying.
pub async fn copy_objects(
    source: &dyn ObjectStore,
    destination: &dyn ObjectStore,
    mut progress: impl FnMut(&ObjectId, &Copied),
) -> Result<Copied, StoreError> {
    let mut totals = Copied::default();
    let mut after = None;
    loop {
        let page = source.list(after.as_ref(), PAGE_ENTRIES_MAX).await?;
        let Some(last) = page.last() else { return Ok(totals) };
        for object in &page {
            let copied = copy_object(source, destination, object).await?;
            totals.objects += copied.objects;
            totals.unchanged += copied.unchanged;
            totals.bytes += copied.bytes;
            progress(object, &totals);
        }
        after = Some(last.clone());
    }
}

/// Copies one object, or what of it the destination does not have yet.
pub async fn copy_object(
    source: &dyn ObjectStore,
    destination: &dyn ObjectStore,
    object: &ObjectId,
) -> Result<Copied, StoreError> {
    for _ in 0..ATTEMPTS_MAX {
        let result = Copy { source, destination, object, bytes: 0 }.run().await;
        // Where there is nothing, the source changed meanwhile. What was brought over stands.
        if let Some(copied) =
            result.map_err(|error| error.context(format_args!("copying object \"{object}\"")))?
        {
            return Ok(copied);
        }
    }
    let text = format!("copying object \"{object}\": it is written all the time; try again when it is quiet");
    Err(StoreError::new(ErrorKind::Busy, text))
}

/// The copying of one object.
struct Copy<'a> {
    source: &'a dyn ObjectStore,
    destination: &'a dyn ObjectStore,
    object: &'a ObjectId,
    bytes: u64,
}

/// An object but for its bytes, keys and attributes.
struct Outline {
    stat: Stat,
    /// The version of its last removal.
    floor: u64,
    forks: BTreeMap<Fork, ForkState>,
}

impl Copy<'_> {
    /// `None` if the source was written to meanwhile.
    async fn run(mut self) -> Result<Option<Copied>, StoreError> {
        // Forks that only one of the two has are looked at in the other as well.
        let Some(to) = outline(self.destination, self.object, &[]).await? else { return Ok(None) };
        let Some(from) = outline(self.source, self.object, &names(&to)).await? else { return Ok(None) };
        let Some(to) = outline(self.destination, self.object, &names(&from)).await? else { return Ok(None) };
        if from.stat.version == 0 || from.stat == to.stat {
            return Ok(Some(Copied { objects: 1, unchanged: 1, bytes: 0 }));
        }
        if to.stat.version >= from.stat.version {
            return Err(differs(&from, &to));
        }
        let mut base = to.stat.version;
        let mut steps: BTreeMap<u64, Step> = BTreeMap::new();
        // Everything before the last removal is gone, in the copy as well. The removal may have been part of a
        // transaction that made the object again, so its own version counts as missing.
        let reset = from.floor > base;
        if reset {
            steps.entry(from.floor).or_default().remove = true;
            base = from.floor - 1;
        }
        if from.stat.exists {
            for (name, fork) in &from.forks {
                let copy = to.forks.get(name).filter(|_| !reset).cloned().unwrap_or_default();
                plan::fork(name, fork, &copy, base, &mut steps).ok_or_else(|| differs(&from, &to))?;
            }
            steps.entry(from.stat.version).or_default().last = true;
        }
        let Some(()) = self.replay(&from, to.stat.version, steps).await? else { return Ok(None) };
        let copy = stat(self.destination, self.object).await?;
        if copy != from.stat {
            let text = format!("the copy is {copy:?}, the original {:?}", from.stat);
            return Err(StoreError::new(ErrorKind::Corrupt, text));
        }
        Ok(Some(Copied { objects: 1, unchanged: 0, bytes: self.bytes }))
    }

    /// Brings the copy from one version to the original's, step by step.
    async fn replay(
        &mut self,
        from: &Outline,
        mut version: u64,
        steps: BTreeMap<u64, Step>,
    ) -> Result<Option<()>, StoreError> {
        // What the destination had before a removal will be gone by then.
        let fresh = steps.values().any(|step| step.remove);
        let mut pairs = Pairs { fresh, ..Pairs::default() };
        for (target, step) in steps {
            let mut transaction = Transaction::new();
            if from.stat.fence > 0 {
                transaction = transaction.change(Write::RaiseFence { token: from.stat.fence });
            }
            if step.remove {
                transaction = transaction.change(Write::Remove);
            }
            // Keys that do not fit into the steps of extents take versions of their own.
            while !step.remove && version + 1 < target {
                let Some(changes) = pairs.next(self, from.stat.version, &transaction.writes).await? else {
                    return Ok(None);
                };
                if changes.is_empty() {
                    break;
                }
                self.write(Transaction { writes: changes, ..Transaction::new() }, version + 1).await?;
                version += 1;
            }
            let Some(extents) = self.extents(&step, from.stat.version).await? else { return Ok(None) };
            transaction.writes.extend(extents);
            if step.last {
                transaction.writes.push(Write::Create);
                let empty = from.forks.iter().filter(|(_, fork)| fork.size == Some(0));
                let create = |fork: &Fork| Write::Extents { fork: fork.clone(), extents: Vec::new() };
                transaction.writes.extend(empty.map(|(fork, _)| create(fork)));
            }
            if from.stat.exists {
                let Some(changes) = pairs.next(self, from.stat.version, &transaction.writes).await? else {
                    return Ok(None);
                };
                transaction.writes.extend(changes);
            }
            self.write(transaction, target).await?;
            version = target;
        }
        let rest =
            if from.stat.exists { pairs.next(self, from.stat.version, &[]).await? } else { Some(Vec::new()) };
        let Some(rest) = rest else { return Ok(None) };
        if !rest.is_empty() {
            let text =
                "its keys and attributes do not fit into as few transactions as its version leaves room for";
            return Err(StoreError::new(ErrorKind::Unsupported, text));
        }
        Ok(Some(()))
    }

    /// The changes of one step, with the bytes of its extents.
    async fn extents(&mut self, step: &Step, version: u64) -> Result<Option<Vec<Write>>, StoreError> {
        let mut writes = step.changes.clone();
        for (fork, ranges) in &step.data {
            let mut extents = Vec::new();
            for range in ranges {
                let mut at = *range;
                while at.len > 0 {
                    let read = Transaction::new().read_range(fork.clone(), at);
                    let Some(Answer::Range(found)) = answer(self.source, self.object, read, version).await?
                    else {
                        return Ok(None);
                    };
                    if found.data.is_empty() {
                        let text = format!("bytes of fork \"{fork}\" at {} are missing", at.offset);
                        return Err(StoreError::new(ErrorKind::Corrupt, text));
                    }
                    let read = found.data.len() as u64;
                    self.bytes += read;
                    extents.push((at.offset, found.data));
                    at = ByteRange::new(at.offset + read, at.len - read);
                }
            }
            writes.push(Write::Extents { fork: fork.clone(), extents });
        }
        Ok(Some(writes))
    }

    /// Applies a step to the copy, which must get exactly the version that it proposes.
    async fn write(&self, mut transaction: Transaction, version: u64) -> Result<(), StoreError> {
        let range = ByteRange::new(0, 0);
        transaction.guards.push(Guard::Proposal { fork: Fork::DEFAULT, range, version });
        match self.destination.apply(self.object, transaction).await? {
            Outcome::Done(done) if done.version == version => Ok(()),
            Outcome::Done(Done { version, .. }) | Outcome::Refused(Refusal { version, .. }) => {
                let text = format!("somebody else writes the copy, which has version {version} by now");
                Err(StoreError::new(ErrorKind::Busy, text))
            }
        }
    }
}

/// Walks over the keys and then the attributes of both objects, and gives the changes that make them the same.
#[derive(Default)]
struct Pairs {
    /// Whether the destination has nothing.
    fresh: bool,
    after: Option<Bytes>,
    keys_done: bool,
    done: bool,
    waiting: Vec<Write>,
}

impl Pairs {
    /// The next changes, as many as go along with one step beside its other changes; none when there are none left.
    async fn next(
        &mut self,
        copy: &Copy<'_>,
        version: u64,
        beside: &[Write],
    ) -> Result<Option<Vec<Write>>, StoreError> {
        while self.waiting.len() < KEYS_PER_STEP_MAX && !self.done {
            let Some(()) = self.fetch(copy, version).await? else { return Ok(None) };
        }
        let taken: usize = beside.iter().map(payload_bytes).sum();
        let bytes_max = KEY_BYTES_PER_STEP_MAX.min(TRANSACTION_BYTES_MAX.saturating_sub(taken));
        let count_max = KEYS_PER_STEP_MAX.min(OPERATIONS_MAX.saturating_sub(beside.len() + 1));
        let mut bytes = 0;
        let fits = |write: &&Write| {
            bytes += payload_bytes(write);
            bytes <= bytes_max
        };
        let count = self.waiting.iter().take(count_max).take_while(fits).count();
        Ok(Some(self.waiting.drain(..count).collect()))
    }

    async fn fetch(&mut self, copy: &Copy<'_>, version: u64) -> Result<Option<()>, StoreError> {
        let read = |after: &Option<Bytes>, before: Option<Bytes>| {
            let range = KeyRange { after: after.clone(), before, ..KeyRange::all() };
            Transaction::new().read(if self.keys_done {
                Read::Attributes
            } else {
                Read::Keys { range, limit: PAGE_ENTRIES_MAX as u32, values: true }
            })
        };
        let found = answer(copy.source, copy.object, read(&self.after, None), version).await?;
        let Some(Answer::Keys(page)) = found else { return Ok(None) };
        // The destination's keys of the same stretch: up to the page's last key, or to the end.
        let last = page.entries.last().filter(|_| page.more).map(|(key, _)| key.to_bytes());
        let before = last.as_ref().map(|last| [&last[..], &[0]].concat().into());
        let mut theirs: BTreeMap<Key, Bytes> = BTreeMap::new();
        let mut after = self.after.clone();
        let mut more = !self.fresh;
        while more {
            let Outcome::Done(done) =
                copy.destination.apply(copy.object, read(&after, before.clone())).await?
            else {
                return Ok(None);
            };
            let Some(Answer::Keys(page)) = done.answers.into_iter().next() else { return Ok(None) };
            after = page.entries.last().map(|(key, _)| key.to_bytes());
            theirs.extend(page.entries);
            more = page.more && after.is_some() && !self.keys_done;
        }
        if self.keys_done && page.more {
            // There is no way to ask for the rest of them.
            let text = "its attributes are more than one reply holds";
            return Err(StoreError::new(ErrorKind::Unsupported, text));
        }
        let (attributes, start) = (self.keys_done, self.waiting.len());
        for (key, value) in page.entries {
            if theirs.remove(&key).is_none_or(|theirs| theirs != value) {
                self.waiting.push(match attributes {
                    false => Write::SetKey { key, value },
                    true => Write::SetAttribute { name: key, value },
                });
            }
        }
        // Removals first, so that there are never too many attributes.
        self.waiting.splice(
            start..start,
            theirs.into_keys().map(|key| match attributes {
                false => Write::RemoveKey { key },
                true => Write::RemoveAttribute { name: key },
            }),
        );
        self.after = last;
        if self.after.is_none() {
            (self.keys_done, self.done) = (true, attributes);
        }
        Ok(Some(()))
    }
}

/// The answer to one read, if the object still has a version.
async fn answer(
    store: &dyn ObjectStore,
    object: &ObjectId,
    read: Transaction,
    version: u64,
) -> Result<Option<Answer>, StoreError> {
    match store.apply(object, read).await? {
        Outcome::Done(done) if done.version == version => Ok(done.answers.into_iter().next()),
        _ => Ok(None),
    }
}

fn payload_bytes(write: &Write) -> usize {
    match write {
        Write::SetKey { value, .. } | Write::SetAttribute { value, .. } => value.len(),
        Write::Extents { extents, .. } => extents.iter().map(|(_, data)| data.len()).sum(),
        _ => 0,
    }
}

fn names(outline: &Outline) -> Vec<Fork> {
    outline.forks.keys().cloned().collect()
}

async fn stat(store: &dyn ObjectStore, object: &ObjectId) -> Result<Stat, StoreError> {
    match store.apply(object, Transaction::new().read(Read::Stat)).await? {
        Outcome::Done(Done { answers, .. }) => match answers.into_iter().next() {
            Some(Answer::Stat(stat)) => Ok(stat),
            _ => Err(StoreError::new(ErrorKind::Io, "the store left a question unanswered")),
        },
        Outcome::Refused(_) => {
            Err(StoreError::new(ErrorKind::Io, "the store refused a question without conditions"))
        }
    }
}

/// An object's outline, with the extents of all its forks and of some more. `None` if it changed meanwhile.
async fn outline(
    store: &dyn ObjectStore,
    object: &ObjectId,
    more_forks: &[Fork],
) -> Result<Option<Outline>, StoreError> {
    let stat = stat(store, object).await?;
    let version = stat.version;
    let mut forks: BTreeMap<Fork, ForkState> =
        more_forks.iter().map(|fork| (fork.clone(), ForkState::default())).collect();
    // The default fork is looked at whether it exists or not: all objects have the same name for it.
    forks.entry(Fork::DEFAULT).or_default();
    let mut after = None;
    loop {
        let read = Transaction::new().read(Read::Forks { after, limit: PAGE_ENTRIES_MAX as u32 });
        let Some(Answer::Forks(page)) = answer(store, object, read, version).await? else { return Ok(None) };
        after = page.entries.last().map(|(fork, _)| fork.clone());
        forks.extend(
            page.entries
                .into_iter()
                .map(|(fork, size)| (fork, ForkState { size: Some(size), extents: Vec::new() })),
        );
        if !page.more || after.is_none() {
            break;
        }
    }
    // A fork that nobody has shows nothing but the hole that the object's last removal left.
    let mut unused = Fork::new(vec![0xff; 255]).unwrap_or_default();
    let mut digit = 0xff_u8;
    while forks.contains_key(&unused) {
        digit = digit.wrapping_sub(1);
        unused = Fork::new(vec![digit; 254]).unwrap_or_default();
    }
    let read = Transaction::new().read(Read::Extents { fork: unused, range: ByteRange::ALL });
    let Some(Answer::Range(found)) = answer(store, object, read, version).await? else { return Ok(None) };
    let floor = found.version;
    for (name, fork) in &mut forks {
        let mut at = ByteRange::ALL;
        loop {
            let read = Transaction::new().read(Read::Extents { fork: name.clone(), range: at });
            let Some(Answer::Range(found)) = answer(store, object, read, version).await? else {
                return Ok(None);
            };
            for extent in found.extents {
                coalesce(&mut fork.extents, extent);
            }
            let Some(next) = found.next else { break };
            at = ByteRange::from(next..at.end());
        }
    }
    Ok(Some(Outline { stat, floor, forks }))
}

fn differs(from: &Outline, to: &Outline) -> StoreError {
    let text = format!(
        "the destination has an object of that name at version {} which is not an earlier state of the source's at \
         version {}: remove it there first",
        to.stat.version, from.stat.version
    );
    StoreError::new(ErrorKind::Invalid, text)
}

// A step holds all that one version wrote, besides keys: both together must stay within a transaction's limits.
const _: () = assert!(KEYS_PER_STEP_MAX < OPERATIONS_MAX && KEY_BYTES_PER_STEP_MAX < TRANSACTION_BYTES_MAX);
