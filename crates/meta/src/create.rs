//! The creation of inodes.
//!
//! One transaction on the directory does it: the entry says what the inode is to be, and whoever finds the entry finds the inode
//! ([`crate::unmade`]). Where much is made in a directory, its object changes all the time, and the store answers each read of it when
//! the changes before are durable. So a rank does not read the directory each time. It assumes that the directory is as it was
//! when something was made in it last, and the transaction is conditional on that: on the record, by which permissions were judged,
//! on the bounds of the entries, and on the absence of the entry. If it is refused, the directory is read.

use std::collections::HashMap;
use std::sync::Arc;

use nacre_object::WriteOp;
use parking_lot::Mutex;

use crate::attribute::Attributes;
use crate::credentials::{Credentials, EXECUTE, WRITE};
use crate::directory::{Entry, check_name, entry_key};
use crate::error::{Error, Result};
use crate::fragment::Place;
use crate::inode::Ino;
use crate::namespace::{Creation, LookedUpEntry, check_creation, initial};
use crate::quota::Usage;
use crate::rank::{ATTEMPTS_MAX, Loaded, Rank, nonsense, too_busy};

/// The maximum number of directories that are remembered.
const RECENT_MAX: usize = 256;

/// The directories in which a rank has made something lately, as they were read last.
#[derive(Default)]
pub(crate) struct Recent(Mutex<HashMap<Ino, Arc<(Loaded, Place)>>>);

impl Recent {
    /// Returns a directory, without an entry.
    fn get(&self, directory: Ino) -> Option<LookedUpEntry> {
        let known = self.0.lock().get(&directory).cloned()?;
        let (directory, place) = (*known).clone();
        Some(LookedUpEntry { directory, place, entry: None })
    }

    /// Remembers a directory, if a transaction on an entry of it is conditional on the directory's record: that is in the same object
    /// only as long as the directory is not split.
    fn keep(&self, looked: LookedUpEntry) {
        let LookedUpEntry { directory, place, .. } = looked;
        if place.fragment.index != 0 || directory.inode.is_split {
            return;
        }
        let mut known = self.0.lock();
        if known.len() >= RECENT_MAX {
            known.clear();
        }
        known.insert(directory.ino, Arc::new((directory, place)));
    }

    fn forget(&self, directory: Ino) {
        self.0.lock().remove(&directory);
    }
}

impl Rank {
    /// Makes an inode, and an entry for it.
    ///
    /// The inode is found by its number at once through this rank, and through others once they have looked up the entry, or the inode
    /// was changed.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::Denied`], [`Error::NotDirectory`], [`Error::NotFound`] if the directory was removed;
    /// [`Error::Invalid`] if the store does not hold such inodes: of a layout with objects that are too large for it, say.
    pub async fn create(
        &self,
        user: &Credentials,
        directory: Ino,
        name: &[u8],
        creation: Creation,
    ) -> Result<Attributes> {
        self.add(user, directory, name, creation, false).await
    }

    /// Makes an inode as [`Rank::create`] does, and opens it as [`Rank::open_file`] does: who makes a file may use it whatever its
    /// permissions are.
    ///
    /// # Errors
    /// As [`Rank::create`].
    pub async fn create_open(
        &self,
        user: &Credentials,
        directory: Ino,
        name: &[u8],
        creation: Creation,
    ) -> Result<Attributes> {
        self.add(user, directory, name, creation, true).await
    }

    async fn add(
        &self,
        user: &Credentials,
        directory: Ino,
        name: &[u8],
        creation: Creation,
        opens: bool,
    ) -> Result<Attributes> {
        check_creation(&creation)?;
        check_name(name)?;
        // What this user may not do by what is remembered, may be allowed by now.
        let may = |looked: &LookedUpEntry| user.may(&looked.directory.inode, EXECUTE | WRITE);
        let mut recent = self.recent.get(directory).filter(may);
        for _ in 0..ATTEMPTS_MAX {
            let (looked, is_recent) = match recent.take() {
                Some(looked) => (looked, true),
                None => (self.look(directory, name).await?, false),
            };
            let parent = &looked.directory.inode;
            user.check(parent, EXECUTE)?;
            if looked.entry.is_some() {
                return Err(Error::Exists);
            }
            user.check(parent, WRITE)?;
            if let Some(layout) = creation.layout.filter(|layout| *layout != parent.layout) {
                self.check_room(&layout).await?;
            }
            let number = self.next_id().await?;
            let now = self.now();
            let initial = initial(user, parent, &creation, now);
            let quota = initial.quota;
            let entry =
                Entry { ino: Ino(number), link: number, kind: creation.kind.clone(), initial: Some(initial) };
            let inode = entry.first_record(directory).ok_or_else(nonsense)?;
            let is_made_later = self.is_made_later(&inode);
            if is_made_later {
                // Now, since the entry could not be taken back.
                self.make_room().await?;
            }
            let transaction = looked
                .transaction(name, now)
                .change(WriteOp::SetKey { key: entry_key(name), value: entry.encode() });
            if let Err(error) = self.charge(quota, Usage::entry()).await {
                if is_recent {
                    // The directory may have got another quota since.
                    self.recent.forget(directory);
                    continue;
                }
                return Err(error);
            }
            if opens {
                // Before anybody can see the entry: if it were removed before the inode is open, the inode would go.
                self.open.lock().entry(entry.ino).or_default().count += 1;
            }
            let changed = self.change(&looked.place.fragment.object(), transaction).await;
            self.release_failed(quota, Usage::entry(), &changed).await;
            if opens && !matches!(changed, Ok(true)) {
                self.close_file(entry.ino).await;
            }
            if !changed? {
                if is_recent {
                    self.recent.forget(directory);
                }
                self.release(quota, Usage::entry()).await;
                continue;
            }
            if is_made_later {
                self.unmade.insert(entry.ino, inode.clone());
            } else if let Err(error) = self.create_inode(entry.ino, &inode).await {
                // The entry stands, and the inode is made by whoever needs it.
                tracing::debug!(%error, "an inode is left to be made later");
            }
            self.touch(&looked, now).await;
            self.grew(&looked.place, name).await;
            if !is_recent {
                self.recent.keep(looked);
            }
            return Ok(Attributes::of_inode(entry.ino, &inode));
        }
        Err(too_busy())
    }
}
