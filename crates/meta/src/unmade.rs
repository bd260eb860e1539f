//! Inodes that have no object of their own yet.
//!
//! A new file is an entry of its directory, which says what the inode is to be ([`Entry::first_record`]); the object of the inode is made
//! with the first change of it. Until then everybody reads what the entry says. So the creation of a file is one transaction, on
//! the directory, and there is nothing else that would have to become durable before it is acknowledged.
//!
//! Nothing that was acknowledged depends on an object that is not durable, whoever goes away in the middle:
//!
//! - An entry keeps the first record as long as the inode has no object. A rename leaves it out only if the object was read, and the store
//!   answers a read when what it tells is durable. A second link is made after the object ([`Rank::load_made`]).
//! - A change of an inode without an object is one transaction, which makes the object with the new record: chmod, the beginning of a
//!   content, and everything else is there with the object or not at all.
//! - Every transaction that makes an object is on condition that it has version 0, so that it never existed. An inode that goes
//!   without ever having had an object leaves a removed one ([`Rank::drop_link`]). So of those who make it at the same time one
//!   succeeds, and whoever knows of the inode from before its removal does not make it anew.
//! - A trace of a removed link stands in the directory until that is done.
//!
//! Other inodes are made at once, after their entries, or by whoever finds the entry: directories, because entries are in their objects;
//! those of a type with methods, whose servers know their numbers only; those that a quota counts, because the check counts objects;
//! and those of an exclusive rank, which shuts out others by the fences of the objects that it changes.
//!
//! An inode without an object cannot be found by its number. So a rank remembers the first records of those whose numbers it has
//! given out, and makes the oldest when they are too many. Where it cannot, because the store is full say, it forgets the oldest of
//! those that were looked up: they are found by their names again.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;

use crate::directory::Entry;
use crate::error::Result;
use crate::inode::{Ino, Inode, InodeKind};
use crate::rank::{ATTEMPTS_MAX, Loaded, LookupResult, Rank, settled, too_busy};

/// The number of inodes without objects above which a rank makes some: about 10 MiB, and the targets of symbolic links.
const UNMADE_MAX: usize = 32_768;
/// The part of them that is made together.
const MADE_SHARE: usize = 64;
/// The number of requests that are under way at a time.
const REQUESTS_MAX: usize = 64;

/// The first records of inodes whose numbers a rank has given out, and which had no objects then. Some may have got one, or have been
/// removed, by other ranks since: the records count only where there is no object, and never was.
pub(crate) struct Unmade {
    records: Mutex<BTreeMap<Ino, Arc<Inode>>>,
    max: usize,
    /// Held by the call that makes room.
    room: futures::lock::Mutex<()>,
}

impl Default for Unmade {
    fn default() -> Self {
        Self { records: Mutex::default(), max: UNMADE_MAX, room: Default::default() }
    }
}

impl Unmade {
    /// Returns the first record of an inode, if it is known.
    pub fn get(&self, ino: Ino) -> Option<Arc<Inode>> {
        self.records.lock().get(&ino).cloned()
    }

    pub fn insert(&self, ino: Ino, inode: Inode) {
        self.records.lock().insert(ino, Arc::new(inode));
    }

    /// Forgets an inode that has got its object, or never will have one.
    pub fn forget(&self, ino: Ino) {
        self.records.lock().remove(&ino);
    }

    fn has_room(&self) -> bool {
        self.records.lock().len() < self.max
    }

    /// Returns the number of those that are made together.
    fn share(&self) -> usize {
        (self.max / MADE_SHARE).max(1)
    }

    /// Returns those that are to be made first: numbers grow.
    fn oldest(&self) -> Vec<(Ino, Arc<Inode>)> {
        self.records.lock().iter().take(self.share()).map(|(ino, inode)| (*ino, inode.clone())).collect()
    }

    /// Forgets as many as are made together, those that would be made first.
    fn forget_oldest(&self) {
        let mut records = self.records.lock();
        for _ in 0..self.share() {
            records.pop_first();
        }
    }
}

impl Rank {
    /// Returns whether an inode is made with the first change of it.
    pub(crate) fn is_made_later(&self, inode: &Inode) -> bool {
        let is_alone = match inode.kind {
            InodeKind::File | InodeKind::Symlink | InodeKind::Fifo | InodeKind::Socket => true,
            InodeKind::Directory | InodeKind::Typed(_) => false,
        };
        is_alone && inode.quota == 0 && !self.exclusive
    }

    /// Loads the inode of an entry, which need not be made if it can be made later; another one is made if it was not. `None` if it was
    /// removed.
    pub(crate) async fn load_entry(&self, directory: Ino, entry: &Entry) -> Result<Option<Loaded>> {
        for _ in 0..ATTEMPTS_MAX {
            match self.find_made(entry.ino, Vec::new()).await? {
                LookupResult::Found(loaded, _) => return Ok(Some(*loaded)),
                LookupResult::Missing(0) => match entry.first_record(directory) {
                    Some(inode) if self.is_made_later(&inode) => {
                        return Ok(Some(Loaded::unmade(entry.ino, inode)));
                    }
                    Some(inode) => settled(self.create_inode(entry.ino, &inode).await)?,
                    None => return Ok(None),
                },
                LookupResult::Missing(_) => return Ok(None),
            };
        }
        Err(too_busy())
    }

    /// Loads an inode that should be there, and makes it if it was not made yet: for an intent, whose parts rely on what is in objects.
    ///
    /// # Errors
    /// [`Error::NotFound`](crate::Error::NotFound) if it was removed.
    pub(crate) async fn load_made(&self, ino: Ino) -> Result<Loaded> {
        for _ in 0..ATTEMPTS_MAX {
            let loaded = self.load(ino).await?;
            if loaded.is_made() {
                return Ok(loaded);
            }
            self.make(ino, &loaded.inode).await?;
        }
        Err(too_busy())
    }

    /// Makes an inode, unless there is one of that number or ever was. Whether it is there is for the caller to look.
    async fn make(&self, ino: Ino, inode: &Inode) -> Result<()> {
        // Known until the answer is there: others of this rank's calls read what is known before they read the object, so they find one or
        // the other.
        match self.create_inode(ino, inode).await {
            Ok(_) => {
                self.unmade.forget(ino);
                Ok(())
            }
            Err(error) if error.is_unknown() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Remembers an inode whose number the caller gets, if it was not made yet. That never fails: who only reads can do so where nothing
    /// can be written.
    pub(crate) async fn remember(&self, loaded: &Loaded) {
        if loaded.is_made() || self.unmade.get(loaded.ino).is_some() {
            return;
        }
        if let Err(error) = self.make_room().await {
            tracing::debug!(%error, "inodes without objects are forgotten, since none can be made");
            self.unmade.forget_oldest();
        }
        self.unmade.insert(loaded.ino, loaded.inode.clone());
    }

    /// Makes some inodes if there are too many to be remembered. As many more as there are calls at a time may be.
    pub(crate) async fn make_room(&self) -> Result<()> {
        if self.unmade.has_room() {
            return Ok(());
        }
        let _room = self.unmade.room.lock().await;
        for _ in 0..ATTEMPTS_MAX {
            if self.unmade.has_room() {
                return Ok(());
            }
            let oldest = self.unmade.oldest().into_iter();
            let made = oldest.map(async |(ino, inode)| self.make(ino, &inode).await);
            stream::iter(made).buffer_unordered(REQUESTS_MAX).try_collect::<()>().await?;
        }
        Err(too_busy())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use nacre_object::testkit::{MemoryStore, block_on};
    use nacre_object::{ErrorKind, ObjectId, ObjectStore, Outcome, Reply, StoreError, Transaction};

    use super::*;
    use crate::{Creation, Credentials, RankOptions};

    #[test]
    fn inodes_are_found_by_their_numbers_although_only_some_of_them_are_remembered() {
        block_on(async {
            let store = Arc::new(MemoryStore::new());
            let options = RankOptions { create: true, ..RankOptions::default() };
            let mut rank = Rank::open(store.clone(), options).await.unwrap();
            rank.unmade.max = 4;
            let root = Credentials::root();
            let mut numbers = Vec::new();
            for number in 0..32 {
                let creation = Creation::new(InodeKind::File, 0o600 + number);
                let name = format!("{number}");
                numbers.push(rank.create(&root, Ino::ROOT, name.as_bytes(), creation).await.unwrap().ino);
                assert!(rank.unmade.records.lock().len() <= 4);
            }
            let mut made = 0;
            for (number, ino) in numbers.iter().enumerate() {
                assert_eq!(rank.stat(*ino).await.unwrap().mode, 0o600 + number as u32);
                let Outcome::Done(done) = store.apply(&ino.object(), Transaction::new()).await.unwrap()
                else {
                    panic!("refused")
                };
                made += usize::from(done.existed);
            }
            assert_eq!(made, 28);
        });
    }

    /// A store that takes no changes once it was told so.
    struct Frozen {
        store: MemoryStore,
        is_frozen: AtomicBool,
    }

    impl ObjectStore for Frozen {
        fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
            if self.is_frozen.load(Ordering::Relaxed) && !transaction.writes.is_empty() {
                return Reply::ready(Err(StoreError::new(ErrorKind::ReadOnly, "it takes no changes")));
            }
            self.store.apply(object, transaction)
        }

        fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
            self.store.list(after, limit)
        }
    }

    #[test]
    fn more_inodes_than_are_remembered_are_looked_up_where_nothing_can_be_written() {
        block_on(async {
            let store = Arc::new(Frozen { store: MemoryStore::new(), is_frozen: AtomicBool::new(false) });
            let options = RankOptions { create: true, ..RankOptions::default() };
            let rank = Rank::open(store.clone(), options).await.unwrap();
            let root = Credentials::root();
            for number in 0..32 {
                let creation = Creation::new(InodeKind::File, 0o600);
                rank.create(&root, Ino::ROOT, format!("{number}").as_bytes(), creation).await.unwrap();
            }
            store.is_frozen.store(true, Ordering::Relaxed);
            let mut reader = Rank::open(store, RankOptions::default()).await.unwrap();
            reader.unmade.max = 4;
            for number in 0..32 {
                let name = format!("{number}");
                let found = reader.lookup(&root, Ino::ROOT, name.as_bytes()).await.unwrap();
                assert_eq!(reader.stat(found.ino).await.unwrap(), found);
                assert!(reader.unmade.records.lock().len() <= 4);
            }
            let page = reader.readdir(&root, Ino::ROOT, b"", 100, true).await.unwrap();
            assert_eq!(page.entries.len(), 32);
        });
    }
}
