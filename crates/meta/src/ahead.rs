//! Reading ahead: what look-ups of many names of a directory will need, in a round trip or two for all of them.
//!
//! The entries are a page of the directory's object, and the inodes are objects of their own; a store that remembers answers reads many
//! of these together ([`ObjectStore::read_ahead`](nacre_object::ObjectStore::read_ahead)). Nothing depends on it: look-ups find what the
//! store says, whether it was read ahead or not.

use bytes::Bytes;
use nacre_object::{Answer, KeyRange, ObjectId, ReadOp};

use crate::directory::{Entry, NAME_BYTES_MAX, entry_key};
use crate::error::Result;
use crate::inode::Ino;
use crate::namespace::PAGE_ENTRIES_MAX;
use crate::rank::{Rank, inode_reads, nonsense};

impl Rank {
    /// Has the store make ready what look-ups of the names of a directory will need, from the first name that is greater than `after`: at
    /// most `limit` names, of those that are in the same part of the directory as `after`. Returns their number, and the last of them if
    /// there are more. There are none if the store would not remember the entries: because it never does, or because the directory was
    /// changed lately.
    ///
    /// That shows nothing to anybody: look-ups judge permissions as always.
    ///
    /// # Errors
    /// [`Error::NotFound`](crate::Error::NotFound), [`Error::NotDirectory`](crate::Error::NotDirectory).
    pub async fn read_ahead(
        &self,
        directory: Ino,
        after: &[u8],
        limit: usize,
    ) -> Result<(usize, Option<Bytes>)> {
        if !self.remembers(directory.object()).await? {
            return Ok((0, None));
        }
        // No name is longer.
        let after = &after[..after.len().min(NAME_BYTES_MAX)];
        let range = KeyRange { after: Some(entry_key(after).to_bytes()), ..KeyRange::prefix(&b"e"[..]) };
        let limit = limit.clamp(1, PAGE_ENTRIES_MAX) as u32;
        // With their versions, as look-ups ask for them.
        let keys = ReadOp::VersionedKeys { range, limit, values: true };
        let (_, place, answers) = self.find_place(directory, after, &[keys]).await?;
        if place.fragment.index != 0 && !self.remembers(place.fragment.object()).await? {
            return Ok((0, None));
        }
        let Some(Answer::VersionedKeys(page)) = answers.first() else { return Err(nonsense()) };
        let mut objects = Vec::with_capacity(page.entries.len());
        for (_, value) in &page.entries {
            objects.push(Entry::decode(&value.value)?.ino.object());
        }
        if let Some(ready) = self.store.read_ahead(&objects, &inode_reads()) {
            ready.await?;
        }
        let last = page.entries.last().filter(|_| page.more);
        Ok((objects.len(), last.map(|(key, _)| Bytes::copy_from_slice(&key.as_bytes()[1..]))))
    }

    /// Returns whether the store remembers answers about an object with entries.
    async fn remembers(&self, object: ObjectId) -> Result<bool> {
        match self.store.read_ahead(&[object], &inode_reads()) {
            Some(ready) => Ok(ready.await? > 0),
            None => Ok(false),
        }
    }
}
