//! Removal of links and inodes, and files that are open while their last link goes.
//!
//! A link leaves its directory first, and leaves a trace there; then it leaves its inode, and the inode goes with its last
//! link; the trace goes at last. So a rank that goes away in the middle has left the trace, and its log tells of the directory.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use nacre_object::{Answer, Guard, KeyRange, ReadOp, Transaction, WriteOp};

use crate::attribute::Attributes;
use crate::credentials::Credentials;
use crate::directory::{gone_key, gone_link};
use crate::error::{Error, Result};
use crate::fragment::{FoundFragment, Fragment, Place};
use crate::inode::{Ino, InodeKind, RECORD, key};
use crate::intent::{Part, Target};
use crate::namespace::PAGE_ENTRIES_MAX;
use crate::quota::Usage;
use crate::rank::{ATTEMPTS_MAX, Loaded, LookupResult, Rank, at_version, nonsense, too_busy, unclaimed};

impl Rank {
    /// Makes sure that a link that is going to leave a directory is found by others, should this rank go away before it
    /// has left its inode too.
    pub(crate) async fn begin_removal(&self, directory: Ino) -> Result<()> {
        self.note(directory_note(directory), Bytes::new()).await?;
        self.unfinished.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn end_removal(&self) {
        self.unfinished.fetch_sub(1, Ordering::Relaxed);
    }

    /// Finishes the removal of a link that has left its directory, unless the file is open. An inode that was read before saves a read.
    pub(crate) async fn removed(&self, fragment: Fragment, link: u64, ino: Ino, known: Option<Loaded>) {
        if let Some(open) = self.open.lock().get_mut(&ino) {
            open.gone.push((fragment, link));
            return;
        }
        match self.reap(fragment, link, ino, known).await {
            Ok(()) => self.end_removal(),
            // The entry is gone, so the call has succeeded; what is left is found by the log.
            Err(error) => {
                tracing::debug!(%error, "a removed file is left to be removed from the store later")
            }
        }
    }

    /// Checks that a user has all of the `wanted` rights ([`READ`](crate::READ), [`WRITE`](crate::WRITE),
    /// [`EXECUTE`](crate::EXECUTE)) to an inode.
    ///
    /// # Errors
    /// [`Error::Denied`], [`Error::NotFound`].
    pub async fn access(&self, user: &Credentials, ino: Ino, wanted: u32) -> Result<()> {
        user.check(&self.load(ino).await?.inode, wanted)
    }

    /// Opens a file: while it is open, its inode and its content stay although its last link goes.
    ///
    /// # Errors
    /// [`Error::Denied`] if the user lacks one of the `wanted` rights; [`Error::NotFound`].
    pub async fn open_file(&self, user: &Credentials, ino: Ino, wanted: u32) -> Result<Attributes> {
        // Before it is looked at: if its last link were removed in between, it would go although it is open.
        self.open.lock().entry(ino).or_default().count += 1;
        let opened = match self.load(ino).await {
            Ok(loaded) => user.check(&loaded.inode, wanted).map(|()| Attributes::of(&loaded)),
            Err(error) => Err(error),
        };
        if opened.is_err() {
            self.close_file(ino).await;
        }
        opened
    }

    /// Closes a file that was opened.
    pub async fn close_file(&self, ino: Ino) {
        let gone = {
            let mut open = self.open.lock();
            let Some(file) = open.get_mut(&ino) else { return };
            file.count -= 1;
            match file.count {
                0 => open.remove(&ino).map_or(Vec::new(), |file| file.gone),
                _ => return,
            }
        };
        for (fragment, link) in gone {
            self.removed(fragment, link, ino, None).await;
        }
    }

    /// Removes a link that has left its directory from its inode, the inode with its last link, and then the trace that
    /// the link left in the directory. Any rank may do so at any time, and again.
    pub(crate) async fn reap(
        &self,
        fragment: Fragment,
        link: u64,
        ino: Ino,
        known: Option<Loaded>,
    ) -> Result<()> {
        self.drop_link(ino, link, known).await?;
        self.remove_trace(fragment, link).await?;
        self.forget(&link_note(ino, link), None).await;
        Ok(())
    }

    /// Reaps all links that have left a directory; those of files that are open here only if `open` too.
    pub(crate) async fn reap_directory(&self, directory: Ino, open: bool) -> Result<()> {
        for found in self.all_fragments(directory, &[]).await?.into_iter().flatten() {
            self.reap_fragment(found.place.fragment, open).await?;
        }
        Ok(())
    }

    async fn reap_fragment(&self, fragment: Fragment, open: bool) -> Result<()> {
        let mut after = None;
        loop {
            let range = KeyRange { after, ..KeyRange::prefix(&b"g"[..]) };
            let keys = ReadOp::Keys { range, limit: PAGE_ENTRIES_MAX as u32, values: true };
            let done = self.read(&fragment.object(), vec![keys]).await?;
            let Some(Answer::Keys(page)) = done.answers.first() else { return Err(nonsense()) };
            for (key, value) in &page.entries {
                let link = gone_link(key).ok_or_else(nonsense)?;
                let ino = Ino(u64::from_le_bytes(value[..].try_into().map_err(|_| nonsense())?));
                let is_open = self.open.lock().contains_key(&ino);
                if is_open && !open {
                    continue;
                }
                if !is_open || !self.keep_open(fragment, link, ino).await? {
                    self.reap(fragment, link, ino, None).await?;
                }
            }
            after = page.entries.last().map(|(key, _)| key.to_bytes()).filter(|_| page.more);
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// Keeps a file that is open here although its directory goes, and the trace of its link with it: from now on the
    /// log alone tells others of the link. Returns false if the file is not open any more.
    async fn keep_open(&self, fragment: Fragment, link: u64, ino: Ino) -> Result<bool> {
        self.note(link_note(ino, link), Bytes::new()).await?;
        if let Some(open) = self.open.lock().get_mut(&ino) {
            if !open.gone.contains(&(fragment, link)) {
                open.gone.push((fragment, link));
                self.unfinished.fetch_add(1, Ordering::Relaxed);
            }
        } else {
            return Ok(false);
        }
        self.remove_trace(fragment, link).await.map(|()| true)
    }

    async fn remove_trace(&self, fragment: Fragment, link: u64) -> Result<()> {
        let transaction =
            Transaction::new().guard(Guard::Exists).change(WriteOp::RemoveKey { key: gone_key(link) });
        self.change(&fragment.object(), transaction).await.map(|_| ())
    }

    /// Removes a link from its inode, and the inode with its last one. The inode is tried first as it is known from before, if it is: each
    /// change is conditional on that, and if it is refused the inode is read.
    pub(crate) async fn drop_link(&self, ino: Ino, link: u64, mut known: Option<Loaded>) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let found = match known.take() {
                Some(loaded) if loaded.is_made() => LookupResult::Found(Box::new(loaded), Vec::new()),
                Some(_) => LookupResult::Missing(0),
                None => self.find_made(ino, Vec::new()).await?,
            };
            match found {
                // It has no object, and must not get one any more.
                LookupResult::Missing(0) => {
                    let transaction = Transaction::new()
                        .guard(Guard::Version { version: 0 })
                        .change(WriteOp::Create)
                        .change(WriteOp::Remove);
                    if self.change(&ino.object(), transaction).await? {
                        self.unmade.forget(ino);
                        return Ok(());
                    }
                }
                // Whoever removed it may have gone away before it removed the state, if there was one.
                LookupResult::Missing(_) => return self.remove_state(ino).await,
                LookupResult::Found(loaded, _) => {
                    let mut inode = loaded.inode.clone();
                    if let Some(position) = inode.links.iter().position(|id| *id == link) {
                        inode.links.remove(position);
                        inode.ctime = self.now();
                        let is_last = inode.links.is_empty() && inode.contents.is_empty();
                        if is_last {
                            if self.remove_inode(&loaded).await? {
                                return Ok(());
                            }
                        } else {
                            self.store_inode(&loaded, &inode).await?;
                        }
                        continue;
                    }
                    if !inode.links.is_empty() {
                        return Ok(());
                    }
                    for content in &inode.contents {
                        self.remove_content(ino, content).await?;
                    }
                    if self.remove_inode(&loaded).await? {
                        return Ok(());
                    }
                }
            }
        }
        Err(too_busy())
    }

    pub(crate) async fn remove_inode(&self, loaded: &Loaded) -> Result<bool> {
        let transaction = Transaction::new()
            .guard(at_version(key(RECORD), loaded.record))
            .guard(unclaimed())
            .change(WriteOp::Remove);
        let removed = self.change(&loaded.ino.object(), transaction).await?;
        // The inode first: whoever finds no state makes it for an inode that is there only.
        if removed && let InodeKind::Typed(_) = loaded.inode.kind {
            self.remove_state(loaded.ino).await?;
        }
        if removed {
            self.release(loaded.inode.quota, Usage::of(&loaded.inode)).await;
        }
        Ok(removed)
    }

    /// Returns parts of an intent, one for each fragment of a directory with its place, on condition that the directory is empty and
    /// that nothing in it changes. `None` if it was removed meanwhile.
    ///
    /// # Errors
    /// [`Error::NotEmpty`].
    pub(crate) async fn parts_of_empty(&self, directory: Ino) -> Result<Option<Vec<(Part, Place)>>> {
        let keys =
            |prefix: &'static [u8]| ReadOp::Keys { range: KeyRange::prefix(prefix), limit: 1, values: false };
        for _ in 0..ATTEMPTS_MAX {
            let found = self.all_fragments(directory, &[keys(b"e"), keys(b"g")]).await?;
            let Some(found) = found else { return Ok(None) };
            let mut parts = Vec::with_capacity(found.len());
            let mut has_gone = false;
            for FoundFragment { place, version, answers } in found {
                let [Answer::Keys(entries), Answer::Keys(gone)] = &answers[..] else {
                    return Err(nonsense());
                };
                if !entries.entries.is_empty() {
                    return Err(Error::NotEmpty);
                }
                has_gone |= !gone.entries.is_empty();
                let part = Part::new(place.fragment.target(), place.moves);
                parts.push((Part { version: Some(version), ..part }, place));
            }
            if !has_gone {
                return Ok(Some(parts));
            }
            // They would be lost with the directory.
            self.reap_directory(directory, true).await?;
        }
        Err(too_busy())
    }

    /// Returns the parts of an intent that removes an empty directory, and its quota if it has one of its own; `None` if it was
    /// removed meanwhile.
    ///
    /// # Errors
    /// [`Error::NotEmpty`].
    pub(crate) async fn removal_of_directory(&self, directory: &Loaded) -> Result<Option<Vec<Part>>> {
        let Some(parts) = self.parts_of_empty(directory.ino).await? else { return Ok(None) };
        let mut parts: Vec<Part> = parts.into_iter().map(|(part, _)| Part { remove: true, ..part }).collect();
        if let Some(part) = parts.iter_mut().find(|part| part.target == Target::Inode(directory.ino)) {
            // It may have been given a quota, or have lost it, since it was loaded.
            part.keys.push((key(RECORD), directory.record));
        }
        parts.extend(self.removal_of_quota(&directory.inode).await?);
        Ok(Some(parts))
    }
}

/// Returns the key under which a rank's log names a directory that links have left.
pub(crate) fn directory_note(directory: Ino) -> Bytes {
    [&b"d"[..], &directory.0.to_be_bytes()].concat().into()
}

/// Returns the key under which a rank's log names a link that no directory has: to a file that is open and has lost its directory, or
/// to one that gets its name when its content is complete.
pub(crate) fn link_note(ino: Ino, link: u64) -> Bytes {
    [&b"u"[..], &ino.0.to_be_bytes(), &link.to_be_bytes()].concat().into()
}

/// Returns the value of the trace that a link leaves in its directory.
pub(crate) fn gone_value(ino: Ino) -> Bytes {
    Bytes::copy_from_slice(&ino.0.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use nacre_object::testkit::{MemoryStore, block_on};
    use nacre_object::{ObjectId, ObjectStore, Outcome, Reply};

    use super::*;
    use crate::{Creation, RankOptions};

    /// A store that counts transactions without writes.
    #[derive(Default)]
    struct Counting {
        store: MemoryStore,
        reads: AtomicU64,
    }

    impl ObjectStore for Counting {
        fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
            self.reads.fetch_add(u64::from(transaction.writes.is_empty()), Ordering::Relaxed);
            self.store.apply(object, transaction)
        }

        fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
            self.store.list(after, limit)
        }
    }

    #[test]
    fn a_file_that_is_removed_is_read_once_unless_somebody_changes_it_meanwhile() {
        block_on(async {
            let store = Arc::new(Counting::default());
            let options = RankOptions { create: true, ..RankOptions::default() };
            let rank = Rank::open(store.clone(), options).await.unwrap();
            let root = Credentials::root();
            let mut inodes = Vec::new();
            for name in [&b"first"[..], b"made", b"unmade", b"changed"] {
                let creation = Creation::new(InodeKind::File, 0o644);
                inodes.push(rank.create(&root, Ino::ROOT, name, creation).await.unwrap().ino);
            }
            let set = crate::SetAttributes { mode: Some(0o600), ..Default::default() };
            rank.set_attributes(&root, inodes[1], &set).await.unwrap();
            // The first removal begins the rank's log.
            rank.unlink(&root, Ino::ROOT, b"first").await.unwrap();
            for name in [&b"made"[..], b"unmade"] {
                let before = store.reads.load(Ordering::Relaxed);
                rank.unlink(&root, Ino::ROOT, name).await.unwrap();
                // The entry, and its inode.
                assert_eq!(store.reads.load(Ordering::Relaxed) - before, 2);
            }
            // What is known of this one is of before its object was made, and of before it was changed.
            let known = rank.load(inodes[3]).await.unwrap();
            rank.set_attributes(&root, inodes[3], &set).await.unwrap();
            rank.drop_link(inodes[3], inodes[3].0, Some(known)).await.unwrap();
            for ino in inodes {
                assert_eq!(rank.stat(ino).await.err(), Some(Error::NotFound));
            }
        });
    }
}
