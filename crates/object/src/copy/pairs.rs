//! Keys and attributes: the changes that make those of the copy the same as the original's.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::Copy;
use super::look::{ObjectSnapshot, behind};
use crate::limit::PAGE_ENTRIES_MAX;
use crate::*;

/// The number of pending changes at which the search for more of them stops.
const WAITING_MAX: usize = 4096;

/// A walk over the keys and then the attributes of both objects, which fenced sessions precede.
pub(super) struct Pairs {
    /// True if the destination has nothing.
    fresh: bool,
    /// The original's keys that were read with the look at it, as far as they have not been walked over.
    held: Option<VecDeque<(Key, Bytes)>>,
    after: Option<Bytes>,
    keys_done: bool,
    done: bool,
    /// The changes that were found and not made.
    waiting: VecDeque<WriteOp>,
}

impl Pairs {
    /// Creates the walk. Sessions of an object that exists are fenced with its keys; otherwise there are none.
    pub(super) fn new(from: &ObjectSnapshot, fresh: bool, fenced: Vec<u64>) -> Self {
        let done = !from.stat.exists;
        let held = from.keys.clone().map(VecDeque::from);
        let waiting = fenced.into_iter().map(|session| WriteOp::FenceSession { session }).collect();
        Self { fresh, held, after: None, keys_done: false, done, waiting }
    }

    /// Returns the next changes, as many as `operations` and `bytes` leave room for; none when there are none left.
    /// `None` if the original changed.
    pub(super) async fn next(
        &mut self,
        copy: &Copy<'_>,
        from: &ObjectSnapshot,
        operations: usize,
        bytes: usize,
    ) -> Result<Option<Vec<WriteOp>>, StoreError> {
        while self.waiting.len() < WAITING_MAX && !self.done {
            let Some(()) = self.fetch(copy, from).await? else { return Ok(None) };
        }
        let mut taken = 0;
        let fits = |write: &&WriteOp| {
            taken += payload_bytes(write);
            taken <= bytes
        };
        let count = self.waiting.iter().take(operations).take_while(fits).count();
        Ok(Some(self.waiting.drain(..count).collect()))
    }

    /// Returns whether no changes are left, or `None` if the original changed.
    pub(super) async fn is_empty(
        &mut self,
        copy: &Copy<'_>,
        from: &ObjectSnapshot,
    ) -> Result<Option<bool>, StoreError> {
        while self.waiting.is_empty() && !self.done {
            let Some(()) = self.fetch(copy, from).await? else { return Ok(None) };
        }
        Ok(Some(self.waiting.is_empty()))
    }

    /// Compares the next page. Returns `None` if the original changed.
    async fn fetch(&mut self, copy: &Copy<'_>, from: &ObjectSnapshot) -> Result<Option<()>, StoreError> {
        let limit = PAGE_ENTRIES_MAX as u32;
        let keys = |after: &Option<Bytes>, before: Option<Bytes>| {
            let range = KeyRange { after: after.clone(), before, ..KeyRange::all() };
            Transaction::new().read(ReadOp::Keys { range, limit, values: true })
        };
        let (ours, more) = match (&mut self.held, self.keys_done) {
            (_, true) => (from.attributes.clone(), false),
            (Some(held), false) => {
                let page = held.drain(..held.len().min(PAGE_ENTRIES_MAX)).collect();
                (page, !held.is_empty())
            }
            (None, false) => match copy.source.apply(copy.object, keys(&self.after, None)).await? {
                Outcome::Done(done) if done.version == from.stat.version => {
                    let Some(Answer::Keys(page)) = done.answers.into_iter().next() else { return Ok(None) };
                    (page.entries, page.more)
                }
                _ => return Ok(None),
            },
        };
        // The destination's keys of the same stretch: up to the page's last key, or to the end.
        let last = ours.last().filter(|_| more).map(|(key, _)| key.to_bytes());
        let mut theirs: BTreeMap<Key, Bytes> = BTreeMap::new();
        let mut after = self.after.clone();
        let mut theirs_more = !self.fresh;
        while theirs_more {
            let read = match self.keys_done {
                true => Transaction::new().read(ReadOp::Attributes),
                false => keys(&after, last.as_ref().map(behind)),
            };
            let Outcome::Done(done) = copy.destination.apply(copy.object, read).await? else {
                return Ok(None);
            };
            let Some(Answer::Keys(page)) = done.answers.into_iter().next() else { return Ok(None) };
            after = page.entries.last().map(|(key, _)| key.to_bytes());
            theirs.extend(page.entries);
            theirs_more = page.more && after.is_some() && !self.keys_done;
        }
        let attributes = self.keys_done;
        let mut set = Vec::new();
        for (key, value) in ours {
            if theirs.remove(&key).is_none_or(|theirs| theirs != value) {
                set.push(match attributes {
                    false => WriteOp::SetKey { key, value },
                    true => WriteOp::SetAttribute { name: key, value },
                });
            }
        }
        // Removals first, so that there are never too many attributes.
        self.waiting.extend(theirs.into_keys().map(|key| match attributes {
            false => WriteOp::RemoveKey { key },
            true => WriteOp::RemoveAttribute { name: key },
        }));
        self.waiting.extend(set);
        self.after = last;
        if self.after.is_none() {
            (self.keys_done, self.done) = (true, attributes);
        }
        Ok(Some(()))
    }
}

/// Returns the payload of a change, in bytes.
pub(super) fn payload_bytes(write: &WriteOp) -> usize {
    match write {
        WriteOp::SetKey { value, .. } | WriteOp::SetAttribute { value, .. } => value.len(),
        WriteOp::Extents { extents, .. } => extents.iter().map(|(_, data)| data.len()).sum(),
        _ => 0,
    }
}
