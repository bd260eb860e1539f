//! Quotas: limits of what is in a directory and everything below it.
//!
//! An inode stores in which quota it is counted, which is that of the directory that it is made in; it never changes. What
//! belongs to one quota is not moved or linked to a directory of another one ([`Error::OtherQuota`]), as with the project quotas
//! of XFS, so that programs copy it. A directory gets a quota of its own while it is empty.
//!
//! The usage of a quota is in an object of its own. If every writer changed it with every write, all would wait for that
//! object; so a rank *reserves* some more than it needs, and counts down from that in memory. Three rules keep the limit:
//!
//! - What grows is counted before it grows, and what shrinks after it has shrunk. So the usage that is stored is never less than
//!   what is there, and a rank that goes away leaves it too high: by what it had reserved and by what it was about to add.
//! - A reserve is a small part of the limit, and gets smaller as less is left.
//! - Before a rank reserves, it has a log. So the check, which counts what is there, knows whether others have reserves. When it
//!   has stored what it has counted, it starts a new *epoch*, and reserves of older ones are void.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use nacre_object::{Answer, Guard, ObjectId, ReadOp, StoreError, Transaction, WriteOp};

use crate::check::Report;
use crate::codec::{Reader, Writer};
use crate::credentials::Credentials;
use crate::directory::{CLAIM, MOVES};
use crate::error::{Error, Result};
use crate::fragment::{BOUNDS, Place};
use crate::inode::{Ino, Inode, InodeKind, PREFIX, RECORD, key, object};
use crate::intent::{Claim, Part, Target};
use crate::namespace::PAGE_ENTRIES_MAX;
use crate::rank::{ATTEMPTS_MAX, LookupResult, Rank, at_version, settled, too_busy, unclaimed, versioned};

/// The key of a quota's limits.
const LIMITS: &[u8] = b"q";
/// The key of its usage.
const USED: &[u8] = b"u";
const FORMAT: u8 = 1;
/// The most that a rank reserves at a time beyond what it needs.
const RESERVE_MAX: Usage = Usage { bytes: 64 << 20, entries: 1024 };
/// The part of a limit that a rank reserves at a time, at most.
const RESERVE_SHARE: u64 = 256;
/// The part of what is left that a rank reserves at a time, at most.
const LEFT_SHARE: u64 = 8;
/// The number of inodes that are read side by side.
const READS_MAX: usize = 64;

/// An amount of what a quota limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The bytes of files, by their sizes: holes count.
    pub bytes: u64,
    /// The number of inodes: files, directories and all others, each once however many links it has.
    pub entries: u64,
}

impl Usage {
    pub(crate) fn bytes(bytes: u64) -> Usage {
        Usage { bytes, entries: 0 }
    }

    pub(crate) fn entry() -> Usage {
        Usage { bytes: 0, entries: 1 }
    }

    /// Returns the amount of an inode.
    pub(crate) fn of(inode: &Inode) -> Usage {
        Usage { bytes: if inode.kind == InodeKind::File { inode.size } else { 0 }, entries: 1 }
    }

    fn is_zero(self) -> bool {
        self == Usage::default()
    }

    fn plus(self, other: Usage) -> Usage {
        Usage {
            bytes: self.bytes.saturating_add(other.bytes),
            entries: self.entries.saturating_add(other.entries),
        }
    }

    fn at_most(self, other: Usage) -> Usage {
        Usage { bytes: self.bytes.min(other.bytes), entries: self.entries.min(other.entries) }
    }

    fn minus(self, other: Usage) -> Usage {
        Usage {
            bytes: self.bytes.saturating_sub(other.bytes),
            entries: self.entries.saturating_sub(other.entries),
        }
    }
}

/// The limits of a quota; `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The maximum of bytes of files.
    pub bytes: Option<u64>,
    /// The maximum of inodes.
    pub entries: Option<u64>,
}

impl Limits {
    /// Returns what a rank reserves at a time, at most.
    fn reserve(self) -> Usage {
        let share =
            |limit: Option<u64>, max: u64| limit.map_or(max, |limit| (limit / RESERVE_SHARE).min(max));
        Usage {
            bytes: share(self.bytes, RESERVE_MAX.bytes),
            entries: share(self.entries, RESERVE_MAX.entries),
        }
    }

    /// Returns what a rank that lacks something gets, at a usage; `None` if that is too much.
    fn grant(self, used: Usage, lacking: Usage) -> Option<Usage> {
        let grant = |limit: Option<u64>, used: u64, lacking: u64, reserve: u64| match limit {
            _ if lacking == 0 => Some(0),
            None => lacking.checked_add(reserve),
            Some(limit) => {
                let left = limit.checked_sub(used)?.checked_sub(lacking)?;
                Some(lacking + reserve.min(left / LEFT_SHARE))
            }
        };
        let reserve = self.reserve();
        Some(Usage {
            bytes: grant(self.bytes, used.bytes, lacking.bytes, reserve.bytes)?,
            entries: grant(self.entries, used.entries, lacking.entries, reserve.entries)?,
        })
    }
}

/// A quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The directory that it was set on. The directory itself is not counted in it.
    pub root: Ino,
    /// The limits.
    pub limits: Limits,
    /// The usage, with what ranks that are at work have reserved.
    pub used: Usage,
}

/// The limits of a quota as they are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub root: Ino,
    pub limits: Limits,
}

impl Record {
    pub fn encode(&self) -> Bytes {
        let mut out = Writer::begin(FORMAT);
        out.u64(self.root.0);
        for limit in [self.limits.bytes, self.limits.entries] {
            out.flag(limit.is_some()).u64(limit.unwrap_or(0));
        }
        out.finish()
    }

    pub fn decode(bytes: &[u8]) -> std::result::Result<Record, StoreError> {
        let mut reader = Reader::begin("the record of a quota", FORMAT, bytes)?;
        let root = Ino(reader.u64()?);
        let mut limits = [None; 2];
        for limit in &mut limits {
            *limit = match (reader.flag()?, reader.u64()?) {
                (true, limit) => Some(limit),
                (false, 0) => None,
                (false, _) => return Err(reader.wrong("it has a limit that is none")),
            };
        }
        reader.end()?;
        let [bytes, entries] = limits;
        Ok(Record { root, limits: Limits { bytes, entries } })
    }
}

/// The usage of a quota as it is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Used {
    pub usage: Usage,
    /// The number of times that a check has corrected it.
    pub epoch: u64,
}

impl Used {
    pub fn encode(&self) -> Bytes {
        let mut out = Writer::begin(FORMAT);
        out.u64(self.usage.bytes).u64(self.usage.entries).u64(self.epoch);
        out.finish()
    }

    pub fn decode(bytes: &[u8]) -> std::result::Result<Used, StoreError> {
        let mut reader = Reader::begin("the usage of a quota", FORMAT, bytes)?;
        let usage = Usage { bytes: reader.u64()?, entries: reader.u64()? };
        let used = Used { usage, epoch: reader.u64()? };
        reader.end().map(|()| used)
    }
}

/// A rank's unused reserve of a quota.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reserve {
    spare: Usage,
    epoch: u64,
    limits: Limits,
}

impl Reserve {
    /// Takes what is wanted, or says what is lacking.
    fn take(&mut self, wanted: Usage) -> std::result::Result<(), Usage> {
        let lacking = wanted.minus(self.spare);
        if lacking.is_zero() {
            self.spare = self.spare.minus(wanted);
            return Ok(());
        }
        Err(lacking)
    }

    /// Takes out what is too much to keep.
    fn take_surplus(&mut self) -> Usage {
        let keep = self.limits.reserve();
        let surplus = |spare: u64, keep: u64| if spare > 2 * keep { spare - keep } else { 0 };
        let surplus = Usage {
            bytes: surplus(self.spare.bytes, keep.bytes),
            entries: surplus(self.spare.entries, keep.entries),
        };
        self.spare = self.spare.minus(surplus);
        surplus
    }
}

/// A quota as it was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundQuota {
    record: Record,
    /// The version of the record's key.
    record_version: u64,
    used: Used,
    /// The version of the usage's key.
    used_version: u64,
    /// The version of the key of the last intent.
    moves: u64,
}

/// Returns the object of a quota.
pub(crate) fn quota_object(quota: u64) -> ObjectId {
    object(format!("{PREFIX}q/{quota:016x}"))
}

/// Returns the key under which a rank's log names a quota of which it may have reserved something.
fn quota_note(quota: u64) -> Bytes {
    [&b"q"[..], &quota.to_be_bytes()].concat().into()
}

impl Rank {
    /// Returns the quota in which an inode is counted, or what is made in a directory; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub async fn quota(&self, ino: Ino) -> Result<Option<Quota>> {
        let inode = self.load(ino).await?.inode;
        let quota = if inode.kind == InodeKind::Directory { inode.tree } else { inode.quota };
        if quota == 0 {
            return Ok(None);
        }
        let found = self.read_quota(quota).await?;
        Ok(found.map(|found| Quota {
            root: found.record.root,
            limits: found.record.limits,
            used: found.used.usage,
        }))
    }

    /// Sets the limits of a directory's quota, and gives the directory a quota if it has none of its own. Limits below the usage
    /// remove nothing, and let nothing grow.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] to all but root and the owner of the root directory; [`Error::NotDirectory`], [`Error::NotFound`];
    /// [`Error::Invalid`] if the directory is not empty and has no quota of its own yet.
    pub async fn set_quota(&self, user: &Credentials, directory: Ino, limits: Limits) -> Result<()> {
        self.check_administrator(user).await?;
        for _ in 0..ATTEMPTS_MAX {
            let loaded = self.load(directory).await?;
            let inode = &loaded.inode;
            if inode.kind != InodeKind::Directory {
                return Err(Error::NotDirectory);
            }
            let record = Record { root: directory, limits };
            if inode.is_quota_root() {
                // Others may have removed it since.
                let Some(found) = self.read_quota(inode.tree).await? else { continue };
                let transaction = Transaction::new()
                    .guard(at_version(key(LIMITS), found.record_version))
                    .guard(unclaimed())
                    .change(WriteOp::SetKey { key: key(LIMITS), value: record.encode() });
                if self.change(&quota_object(inode.tree), transaction).await? {
                    return Ok(());
                }
                continue;
            }
            let quota = self.next_id().await?;
            let with_quota = Inode { tree: quota, ctime: self.now(), ..inode.clone() };
            let Some(mut parts) = self.parts_with_record(directory, loaded.record, &with_quota).await? else {
                continue;
            };
            let new = Part { version: Some(0), ..Part::new(Target::Quota(quota), 0) }
                .set(key(LIMITS), Some(record.encode()))
                .set(key(USED), Some(Used::default().encode()));
            parts.push(new);
            if self.execute(parts).await? {
                return Ok(());
            }
        }
        Err(too_busy())
    }

    /// Removes the quota of an empty directory.
    ///
    /// # Errors
    /// As [`Rank::set_quota`]; [`Error::Invalid`] if the directory has no quota of its own, or is not empty.
    pub async fn remove_quota(&self, user: &Credentials, directory: Ino) -> Result<()> {
        self.check_administrator(user).await?;
        for _ in 0..ATTEMPTS_MAX {
            let loaded = self.load(directory).await?;
            if loaded.inode.kind != InodeKind::Directory {
                return Err(Error::NotDirectory);
            }
            if !loaded.inode.is_quota_root() {
                return Err(Error::Invalid("it has no quota of its own".into()));
            }
            let without = Inode { tree: loaded.inode.quota, ctime: self.now(), ..loaded.inode.clone() };
            let Some(mut parts) = self.parts_with_record(directory, loaded.record, &without).await? else {
                continue;
            };
            parts.extend(self.removal_of_quota(&loaded.inode).await?);
            if self.execute(parts).await? {
                self.reserves.lock().remove(&loaded.inode.tree);
                return Ok(());
            }
        }
        Err(too_busy())
    }

    async fn check_administrator(&self, user: &Credentials) -> Result<()> {
        match user.owns(&self.load(Ino::ROOT).await?.inode) {
            true => Ok(()),
            false => Err(Error::NotPermitted),
        }
    }

    /// Returns the parts of an intent that changes the record of a directory as long as it is empty. In all its fragments something
    /// is changed, so that nothing is made there any more by whoever has seen the old record. `None` if it was removed.
    async fn parts_with_record(
        &self,
        directory: Ino,
        version: u64,
        inode: &Inode,
    ) -> Result<Option<Vec<Part>>> {
        let parts = match self.parts_of_empty(directory).await {
            Err(Error::NotEmpty) => {
                let text = "the directory is not empty, and what is in it is counted already: make a new directory, set \
                            its quota, and copy everything there; to lift a limit, set it to \"none\"";
                return Err(Error::Invalid(text.into()));
            }
            parts => parts?,
        };
        let changed = |(part, place): (Part, Place)| match place.fragment.index {
            0 => part.at(key(RECORD), version).set(key(RECORD), Some(inode.encode())),
            _ => part.set(key(BOUNDS), Some(place.bounds.encode())),
        };
        Ok(parts.map(|parts| parts.into_iter().map(changed).collect()))
    }

    /// Returns the part of an intent that removes the quota of a directory, if it has one of its own.
    pub(crate) async fn removal_of_quota(&self, inode: &Inode) -> Result<Option<Part>> {
        if !inode.is_quota_root() {
            return Ok(None);
        }
        let found = self.read_quota(inode.tree).await?;
        Ok(found.map(|found| Part {
            remove: true,
            ..Part::new(Target::Quota(inode.tree), found.moves).at(key(LIMITS), found.record_version)
        }))
    }

    /// Reads a quota. If an intent has claimed it, it is brought to its end first.
    async fn read_quota(&self, quota: u64) -> Result<Option<FoundQuota>> {
        let object = quota_object(quota);
        for _ in 0..ATTEMPTS_MAX {
            let mut reads = vec![ReadOp::Key { key: key(CLAIM) }];
            reads.extend([MOVES, LIMITS, USED].map(|name| ReadOp::versioned_key(key(name))));
            let done = self.read(&object, reads).await?;
            if let Some(Answer::Value(Some(claim))) = done.answers.first() {
                self.help(Claim::decode(claim)?, &object).await?;
                continue;
            }
            let (Some(record), Some(used)) =
                (versioned(done.answers.get(2))?, versioned(done.answers.get(3))?)
            else {
                return Ok(None);
            };
            return Ok(Some(FoundQuota {
                record: Record::decode(&record.value)?,
                record_version: record.version,
                used: Used::decode(&used.value)?,
                used_version: used.version,
                moves: versioned(done.answers.get(1))?.map_or(0, |value| value.version),
            }));
        }
        Err(too_busy())
    }

    /// Stores a usage of a quota on condition that nobody did so since it was read.
    async fn store_used(&self, quota: u64, found: &FoundQuota, used: Used) -> Result<bool> {
        let transaction = Transaction::new()
            .guard(at_version(key(USED), found.used_version))
            .change(WriteOp::SetKey { key: key(USED), value: used.encode() });
        self.change(&quota_object(quota), transaction).await
    }

    /// Makes sure that others know that this rank is changing what is counted in a quota.
    pub(crate) async fn note_quota(&self, quota: u64) -> Result<()> {
        if quota != 0 {
            self.note(quota_note(quota), Bytes::new()).await?;
        }
        Ok(())
    }

    /// Counts something that is going to be added.
    ///
    /// # Errors
    /// [`Error::QuotaExceeded`].
    pub(crate) async fn charge(&self, quota: u64, wanted: Usage) -> Result<()> {
        if quota == 0 || wanted.is_zero() {
            return Ok(());
        }
        for _ in 0..ATTEMPTS_MAX {
            let taken = match self.reserves.lock().get_mut(&quota) {
                Some(reserve) => reserve.take(wanted),
                None => Err(wanted),
            };
            let Err(lacking) = taken else { return Ok(()) };
            self.note_quota(quota).await?;
            if !self.reserve(quota, lacking).await? {
                return Ok(());
            }
        }
        Err(too_busy())
    }

    /// Reserves what is lacking and some more, if nobody else changes the usage at the same time. Returns false if there is no such
    /// quota any more.
    async fn reserve(&self, quota: u64, lacking: Usage) -> Result<bool> {
        let Some(found) = self.read_quota(quota).await? else {
            self.reserves.lock().remove(&quota);
            return Ok(false);
        };
        let (epoch, limits) = (found.used.epoch, found.record.limits);
        let is_void = {
            let mut reserves = self.reserves.lock();
            let empty = Reserve { spare: Usage::default(), epoch, limits };
            let reserve = reserves.entry(quota).or_insert(empty);
            reserve.limits = limits;
            let is_void = reserve.epoch != epoch;
            if is_void {
                *reserve = empty;
            }
            is_void
        };
        if is_void {
            // More is lacking than was thought.
            return Ok(true);
        }
        let granted = limits.grant(found.used.usage, lacking).ok_or(Error::QuotaExceeded)?;
        let used = Used { usage: found.used.usage.plus(granted), epoch };
        // If the reply is lost, what was granted is counted and not used.
        if settled(self.store_used(quota, &found, used).await)? {
            let mut reserves = self.reserves.lock();
            let empty = Reserve { spare: Usage::default(), epoch, limits };
            let reserve = reserves.entry(quota).or_insert(empty);
            if reserve.epoch == epoch {
                reserve.spare = reserve.spare.plus(granted);
            }
        }
        Ok(true)
    }

    /// Counts something off that was removed, or was not added after all.
    pub(crate) async fn release(&self, quota: u64, usage: Usage) {
        if quota == 0 || usage.is_zero() {
            return;
        }
        let (surplus, epoch) = match self.reserves.lock().get_mut(&quota) {
            Some(reserve) => {
                reserve.spare = reserve.spare.plus(usage);
                (reserve.take_surplus(), Some(reserve.epoch))
            }
            None => (usage, None),
        };
        self.give_back(quota, surplus, epoch, usage).await;
    }

    /// Counts something off again if the call that it was counted for has failed, and certainly had no effect.
    pub(crate) async fn release_failed<T>(&self, quota: u64, usage: Usage, result: &Result<T>) {
        if matches!(result, Err(error) if !error.is_unknown()) {
            self.release(quota, usage).await;
        }
    }

    /// Gives back all that this rank has reserved.
    pub(crate) async fn return_reserves(&self) {
        let reserves = std::mem::take(&mut *self.reserves.lock());
        for (quota, reserve) in reserves {
            self.give_back(quota, reserve.spare, Some(reserve.epoch), Usage::default()).await;
        }
    }

    /// Takes a surplus off the usage that is stored. What was reserved in an earlier epoch is void; but what was `removed` just now has
    /// been counted in this one.
    async fn give_back(&self, quota: u64, surplus: Usage, epoch: Option<u64>, removed: Usage) {
        if surplus.is_zero() {
            return;
        }
        let done = async {
            for _ in 0..ATTEMPTS_MAX {
                let Some(found) = self.read_quota(quota).await? else { return Ok(()) };
                let mut usage = surplus;
                if epoch.is_some_and(|epoch| epoch != found.used.epoch) {
                    self.reserves.lock().remove(&quota);
                    usage = surplus.at_most(removed);
                }
                let used = Used { usage: found.used.usage.minus(usage), ..found.used };
                // If the reply is lost, it may have been taken off: not again.
                if usage.is_zero() || self.store_used(quota, &found, used).await? {
                    return Ok(());
                }
            }
            Err::<(), Error>(too_busy())
        };
        if let Err(error) = done.await {
            tracing::debug!(%error, "what was given back to a quota is counted until the next check");
        }
    }

    /// Checks that every quota belongs to a directory, and has the usage of what is counted in it. The latter can be judged only while
    /// no other rank has a log.
    pub(crate) async fn check_quotas(
        &self,
        repair: bool,
        own: Option<u64>,
        quotas: &[u64],
        roots: &[(Ino, u64)],
        report: &mut Report,
    ) -> Result<()> {
        self.return_reserves().await;
        for &(root, quota) in roots {
            if self.read_quota(quota).await?.is_some() || !self.has_quota(root, quota).await? {
                continue;
            }
            // Nobody removes it while there is the directory. It begins anew without limits, and what is there is counted by the next
            // check.
            let record = Record { root, limits: Limits::default() };
            let repaired = repair && {
                let transaction = Transaction::new()
                    .guard(at_version(key(LIMITS), 0))
                    .guard(at_version(key(USED), 0))
                    .guard(unclaimed())
                    .change(WriteOp::SetKey { key: key(LIMITS), value: record.encode() })
                    .change(WriteOp::SetKey { key: key(USED), value: Used::default().encode() });
                self.change(&quota_object(quota), transaction).await?
            };
            report.add(format!("the quota of directory {root} is missing"), repaired);
        }
        let mut before = Vec::new();
        for &quota in quotas {
            let found = self.read_quota(quota).await?;
            let has_root = match &found {
                Some(found) => self.has_quota(found.record.root, quota).await?,
                None => false,
            };
            if let Some(found) = found.filter(|_| has_root) {
                before.push((quota, found));
                continue;
            }
            let object = quota_object(quota);
            let done = self.read(&object, Vec::new()).await?;
            if done.existed {
                let remove = Transaction::new()
                    .guard(Guard::Version { version: done.version })
                    .guard(unclaimed())
                    .change(WriteOp::Remove);
                let removed = repair && self.change(&object, remove).await?;
                report.add(format!("object \"{object}\" is the quota of no directory"), removed);
            }
        }
        if before.is_empty() || self.has_other_logs(own).await? {
            return Ok(());
        }
        let counted = self.count_usage().await?;
        if self.has_other_logs(own).await? {
            return Ok(());
        }
        for (quota, before) in before {
            let Some(found) = self.read_quota(quota).await? else { continue };
            let usage = counted.get(&quota).copied().unwrap_or_default();
            // A rank that came and went has changed what was counted.
            if found.used_version != before.used_version || found.used.usage == usage {
                continue;
            }
            let used = Used { usage, epoch: found.used.epoch + 1 };
            let repaired = repair && self.store_used(quota, &found, used).await?;
            let text = format!(
                "the quota of directory {} counts {} bytes and {} entries, and there are {} and {}",
                found.record.root,
                found.used.usage.bytes,
                found.used.usage.entries,
                usage.bytes,
                usage.entries
            );
            report.add(text, repaired);
        }
        Ok(())
    }

    /// Returns whether a directory has a quota of its own that is this one.
    async fn has_quota(&self, directory: Ino, quota: u64) -> Result<bool> {
        Ok(match self.find(directory, Vec::new()).await? {
            LookupResult::Found(loaded, _) => loaded.inode.is_quota_root() && loaded.inode.tree == quota,
            LookupResult::Missing(_) => false,
        })
    }

    async fn has_other_logs(&self, own: Option<u64>) -> Result<bool> {
        Ok(self.ranks().await?.into_iter().any(|rank| Some(rank) != own))
    }

    /// Counts what is in each quota.
    async fn count_usage(&self) -> Result<BTreeMap<u64, Usage>> {
        let mut usage: BTreeMap<u64, Usage> = BTreeMap::new();
        let prefix = object(format!("{PREFIX}i/"));
        let mut after = prefix.clone();
        loop {
            let page = self.store.list(Some(&after), PAGE_ENTRIES_MAX).await?;
            let Some(last) = page.last().cloned() else { return Ok(usage) };
            let is_last = !last.as_bytes().starts_with(prefix.as_bytes());
            let inodes: Vec<Ino> = page.iter().filter_map(Ino::of_object).collect();
            let loads = inodes.into_iter().map(|ino| self.find(ino, Vec::new()));
            let loaded: Vec<LookupResult> = stream::iter(loads).buffered(READS_MAX).try_collect().await?;
            for found in loaded {
                if let LookupResult::Found(loaded, _) = found
                    && loaded.inode.quota != 0
                {
                    let sum = usage.entry(loaded.inode.quota).or_default();
                    *sum = sum.plus(Usage::of(&loaded.inode));
                }
            }
            if is_last {
                return Ok(usage);
            }
            after = last;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_decode_to_themselves_and_no_part_of_them_decodes() {
        for limits in [
            Limits::default(),
            Limits { bytes: Some(1 << 40), entries: None },
            Limits { bytes: None, entries: Some(0) },
        ] {
            let record = Record { root: Ino(77), limits };
            let bytes = record.encode();
            assert_eq!(Record::decode(&bytes).unwrap(), record);
            assert!((0..bytes.len()).all(|end| Record::decode(&bytes[..end]).is_err()));
        }
        let used = Used { usage: Usage { bytes: 5, entries: 6 }, epoch: 7 };
        assert_eq!(Used::decode(&used.encode()).unwrap(), used);
    }

    #[test]
    fn grants_stay_within_the_limit_and_get_smaller_as_less_is_left() {
        let limits = Limits { bytes: Some(1 << 20), entries: Some(10) };
        let grant = |bytes, entries, lacking| limits.grant(Usage { bytes, entries }, lacking);
        assert_eq!(grant(0, 0, Usage::bytes(1)), Some(Usage::bytes(1 + 4096)));
        assert_eq!(grant((1 << 20) - 81, 0, Usage::bytes(1)), Some(Usage::bytes(11)));
        assert_eq!(grant((1 << 20) - 1, 0, Usage::bytes(1)), Some(Usage::bytes(1)));
        assert_eq!(grant(1 << 20, 0, Usage::bytes(1)), None);
        // What is used up of one thing does not keep another one from growing.
        assert_eq!(grant(2 << 20, 9, Usage::entry()), Some(Usage::entry()));
        assert_eq!(grant(0, 10, Usage::entry()), None);
        let unlimited = Limits::default().grant(Usage::bytes(u64::MAX), Usage::bytes(1));
        assert_eq!(unlimited, Some(Usage::bytes(1 + RESERVE_MAX.bytes)));
    }

    #[test]
    fn a_reserve_gives_what_it_has_and_keeps_no_more_than_twice_its_share() {
        let limits = Limits { bytes: Some(256 * 100), entries: None };
        let mut reserve = Reserve { spare: Usage { bytes: 150, entries: 2 }, epoch: 0, limits };
        assert_eq!(reserve.take(Usage { bytes: 151, entries: 1 }), Err(Usage::bytes(1)));
        assert_eq!(reserve.take(Usage { bytes: 50, entries: 1 }), Ok(()));
        assert_eq!(reserve.take_surplus(), Usage::default());
        reserve.spare = Usage { bytes: 201, entries: 2048 };
        assert_eq!(reserve.take_surplus(), Usage::bytes(101));
        assert_eq!(reserve.spare, Usage { bytes: 100, entries: 2048 });
    }
}
