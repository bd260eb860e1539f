//! Contents that are put into files, and become visible as a whole.
//!
//! [`Put`] writes a content of its own beside the present one, and makes it the present one by one transaction: others
//! see the old content or the new one. Of a new file it writes the content first and makes the entry at last, by an intent: others
//! see the whole file or none. Until then the inode has a link that no entry has, of which the rank's log tells.

use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};

use crate::credentials::{Credentials, EXECUTE, WRITE};
use crate::directory::{Entry, entry_key};
use crate::error::{Error, Result};
use crate::file::{REQUESTS_MAX, bury, end_of};
use crate::inode::{CONTENTS_MAX, Content, Ino, Inode, InodeKind, RECORD, key};
use crate::intent::{Part, Target};
use crate::namespace::{Creation, initial};
use crate::quota::Usage;
use crate::rank::{ATTEMPTS_MAX, LookupResult, Rank, nonsense, settled, too_busy};
use crate::remove::link_note;

/// The number of bytes that are read together where a content is copied.
const COPY_BYTES: u64 = 4 << 20;

impl Rank {
    /// Begins to put a new content into a file; its present one stays until [`Put::commit`].
    ///
    /// # Errors
    /// [`Error::Denied`], [`Error::NotFound`], [`Error::IsDirectory`].
    pub async fn put(&self, user: &Credentials, ino: Ino) -> Result<Put<'_>> {
        let number = self.next_id().await?;
        let note: Bytes = [&b"p"[..], &ino.0.to_be_bytes(), &number.to_be_bytes()].concat().into();
        self.note_put(&note).await?;
        match self.begin_content(user, ino, number).await {
            Ok(inode) => {
                let buffer = BytesMut::new();
                let (size, charged) = (0, 0);
                Ok(Put {
                    rank: self,
                    ino,
                    number,
                    note,
                    inode,
                    size,
                    charged,
                    objects: 1,
                    buffer,
                    name: None,
                })
            }
            Err(error) => {
                // Unless it may have begun all the same, there is nothing that others would have to remove.
                if !error.is_unknown() {
                    self.end_put(&note).await;
                }
                Err(error)
            }
        }
    }

    /// Writes down a note about a content that is going to be put. Until [`Rank::end_put`], also if the put is dropped, this rank's log
    /// stays, and with it the note for whoever finishes the work.
    async fn note_put(&self, note: &Bytes) -> Result<()> {
        self.unfinished.fetch_add(1, Ordering::Relaxed);
        let noted = self.note(note.clone(), Bytes::new()).await;
        if noted.is_err() {
            self.unfinished.fetch_sub(1, Ordering::Relaxed);
        }
        noted.map(|_| ())
    }

    /// Forgets the note about a content of which nothing is left to be done by others.
    async fn end_put(&self, note: &Bytes) {
        self.unfinished.fetch_sub(1, Ordering::Relaxed);
        self.forget(note, None).await;
    }

    /// Adds a content that is being put to a file's record. Returns the record.
    async fn begin_content(&self, user: &Credentials, ino: Ino, number: u64) -> Result<Inode> {
        for _ in 0..ATTEMPTS_MAX {
            let loaded = self.load_file(ino).await?;
            user.check(&loaded.inode, WRITE)?;
            let mut inode = loaded.inode.clone();
            if inode.contents.len() >= CONTENTS_MAX {
                self.make_space(&loaded).await?;
                continue;
            }
            inode.contents.push(Content { number, objects: 1, dead: false });
            if self.store_inode(&loaded, &inode).await? {
                return Ok(inode);
            }
        }
        Err(too_busy())
    }

    /// Begins to put the content of a new file, which gets its name with [`Put::commit`]: before, nobody sees it. If somebody else
    /// makes a file of that name meanwhile, the content goes into that one.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::Denied`], [`Error::NotDirectory`], [`Error::NotFound`] if the directory was removed.
    pub async fn put_new(
        &self,
        user: &Credentials,
        directory: Ino,
        name: &[u8],
        mode: u32,
    ) -> Result<Put<'_>> {
        let looked = self.look(directory, name).await?;
        let parent = &looked.directory.inode;
        user.check(parent, EXECUTE)?;
        if looked.entry.is_some() {
            return Err(Error::Exists);
        }
        user.check(parent, WRITE)?;
        let initial = initial(user, parent, &Creation::new(InodeKind::File, mode), self.now());
        for _ in 0..ATTEMPTS_MAX {
            let (ino, number) = (Ino(self.next_id().await?), self.next_id().await?);
            let entry = Entry { ino, link: ino.0, kind: InodeKind::File, initial: Some(initial.clone()) };
            let mut inode = entry.first_record(directory).ok_or_else(nonsense)?;
            inode.contents.push(Content { number, objects: 1, dead: false });
            let note = link_note(ino, ino.0);
            self.charge(inode.quota, Usage::entry()).await?;
            let noted = self.note_put(&note).await;
            self.release_failed(inode.quota, Usage::entry(), &noted).await;
            noted?;
            let created = match settled(self.create_inode(ino, &inode).await) {
                Ok(created) => {
                    created || matches!(self.find(ino, Vec::new()).await?, LookupResult::Found(..))
                }
                Err(error) => {
                    self.end_put(&note).await;
                    self.release(inode.quota, Usage::entry()).await;
                    return Err(error);
                }
            };
            // Otherwise a check has taken this rank for one that went away, or the inode may yet be made, and is then nobody's.
            if created {
                let name =
                    Some(NewName { user: user.clone(), directory, name: Bytes::copy_from_slice(name) });
                let buffer = BytesMut::new();
                let (size, charged) = (0, 0);
                return Ok(Put {
                    rank: self,
                    ino,
                    number,
                    note,
                    inode,
                    size,
                    charged,
                    objects: 1,
                    buffer,
                    name,
                });
            }
            self.unfinished.fetch_sub(1, Ordering::Relaxed);
        }
        Err(too_busy())
    }
}

/// A content that is being put into a file. Dropped without [`Put::commit`] or [`Put::abort`], it leaves its objects to
/// be removed with the file, or by `nacre fs check`; those of a new file, which nobody sees, by the latter.
#[derive(derive_more::Debug)]
#[debug("Put")]
pub struct Put<'a> {
    rank: &'a Rank,
    ino: Ino,
    number: u64,
    note: Bytes,
    inode: Inode,
    size: u64,
    /// The bytes that are counted in the inode's quota. While a content is put, it is counted beside the one that it replaces.
    charged: u64,
    objects: u64,
    buffer: BytesMut,
    /// The name of a new file; `None` if the file has one.
    name: Option<NewName>,
}

/// The name that a file is to get.
#[derive(Clone)]
struct NewName {
    user: Credentials,
    directory: Ino,
    name: Bytes,
}

impl Put<'_> {
    /// Adds bytes.
    ///
    /// # Errors
    /// [`Error::Stale`] if the file was removed, or this content to make room for others; [`Error::QuotaExceeded`].
    pub async fn write(&mut self, data: &[u8]) -> Result<()> {
        self.buffer.extend_from_slice(data);
        let layout = self.inode.layout;
        // Whole rounds of stripes, so that all objects are written side by side.
        let round = layout.unit_bytes as usize * (layout.width as usize).min(REQUESTS_MAX);
        while self.buffer.len() >= round {
            let data = self.buffer.split_to(round).freeze();
            self.flush(data).await?;
        }
        Ok(())
    }

    async fn flush(&mut self, data: Bytes) -> Result<()> {
        let end = end_of(self.size, data.len() as u64)?;
        let wanted = self.inode.layout.objects(end);
        if wanted > self.objects {
            let (number, now_wanted) = (self.number, wanted.max(self.objects * 2));
            let update = self.rank.update_inode(self.ino, |inode| {
                let mut contents = inode.contents.iter_mut();
                let content = contents.find(|content| content.number == number && !content.dead);
                content.ok_or(Error::Stale)?.objects = now_wanted;
                Ok(())
            });
            update.await.map_err(|error| if error == Error::NotFound { Error::Stale } else { error })?;
            self.objects = now_wanted;
        }
        self.rank.charge(self.inode.quota, Usage::bytes(end - self.size)).await?;
        self.charged += end - self.size;
        self.rank.write_content(self.ino, &self.inode, self.number, self.size, data).await?;
        self.size = end;
        Ok(())
    }

    /// Makes the new content that of the file, and gives a new file its name. Returns the content's size in bytes.
    ///
    /// # Errors
    /// As [`Put::write`]; [`Error::NotFound`] if the file was removed; and of a new file [`Error::Denied`], [`Error::NotFound`] if the
    /// directory was removed, [`Error::Exists`] if somebody else has made something of the name that is no file, and
    /// [`Error::OtherQuota`] if the directory has got a quota, or lost it. The content is removed then, unless it is not known whether
    /// it became the file's.
    pub async fn commit(mut self) -> Result<u64> {
        let mut done = self.flush_rest().await;
        // What is not published is nobody's, whatever became of the last bytes.
        let mut is_settled = true;
        if done.is_ok() {
            done = match self.name.clone() {
                Some(name) => self.publish(name).await,
                None => self.replace().await,
            };
            is_settled = !matches!(&done, Err(error) if error.is_unknown());
        }
        if let Err(error) = done {
            if is_settled {
                // The first failure is the one to report.
                let _ = self.abandon().await;
            }
            return Err(error);
        }
        Ok(self.size)
    }

    async fn flush_rest(&mut self) -> Result<()> {
        let rest = self.buffer.split().freeze();
        if rest.is_empty() { Ok(()) } else { self.flush(rest).await }
    }

    /// Makes the new content that of a file that is there.
    async fn replace(&self) -> Result<()> {
        let (rank, number, size) = (self.rank, self.number, self.size);
        let mut replaced = 0;
        let update = rank.update_inode(self.ino, |inode| {
            if !self.is_among(inode) {
                return Err(Error::Stale);
            }
            bury(inode);
            replaced = inode.size;
            let now = rank.now();
            (inode.content, inode.size, inode.mtime, inode.ctime) = (number, size, now, now);
            inode.mode &= !0o6000;
            Ok(())
        });
        update.await?;
        rank.release(self.inode.quota, Usage::bytes(replaced)).await;
        match rank.remove_dead(self.ino).await {
            Ok(()) => rank.end_put(&self.note).await,
            Err(error) => tracing::debug!(%error, "a content that was replaced is left to be removed later"),
        }
        Ok(())
    }

    /// Gives a new file its content and its name, both or none.
    async fn publish(&self, new: NewName) -> Result<()> {
        let (rank, directory) = (self.rank, new.directory);
        for _ in 0..ATTEMPTS_MAX {
            let looked = rank.look(directory, &new.name).await?;
            new.user.check(&looked.directory.inode, EXECUTE)?;
            if let Some((entry, _)) = &looked.entry {
                return match entry.kind {
                    InodeKind::File => self.copy_into(entry.ino, &new.user).await,
                    _ => Err(Error::Exists),
                };
            }
            new.user.check(&looked.directory.inode, WRITE)?;
            let loaded = match rank.load(self.ino).await {
                Err(Error::NotFound) => return Err(Error::Stale),
                loaded => loaded?,
            };
            let mut inode = loaded.inode.clone();
            if !inode.links.contains(&self.ino.0) || !self.is_among(&inode) {
                return Err(Error::Stale);
            }
            if looked.directory.inode.tree != inode.quota {
                return Err(Error::OtherQuota);
            }
            let (link, now) = (rank.next_id().await?, rank.now());
            // Another link than the noted one, which whoever takes this put for dead removes at any time.
            inode.links = vec![link];
            (inode.content, inode.size, inode.mtime, inode.ctime) = (self.number, self.size, now, now);
            let entry = Entry { ino: self.ino, link, kind: InodeKind::File, initial: None };
            let parts = vec![
                Part::new(Target::Inode(self.ino), loaded.moves)
                    .at(key(RECORD), loaded.record)
                    .set(key(RECORD), Some(inode.encode())),
                looked.part(&new.name, now).set(entry_key(&new.name), Some(entry.encode())),
            ];
            if rank.execute(parts).await? {
                rank.end_put(&self.note).await;
                rank.touch(&looked, now).await;
                rank.grew(&looked.place, &new.name).await;
                return Ok(());
            }
        }
        Err(too_busy())
    }

    /// Copies the content into a file that somebody else has made under the name meanwhile, and removes it here.
    async fn copy_into(&self, ino: Ino, user: &Credentials) -> Result<()> {
        let inode = Inode { content: self.number, size: self.size, ..self.inode.clone() };
        let mut put = self.rank.put(user, ino).await?;
        let copied = async {
            let mut offset = 0;
            while offset < self.size {
                let len = (self.size - offset).min(COPY_BYTES);
                let read = self.rank.read_content(self.ino, &inode, offset, len).await?;
                put.write(&read.ok_or(Error::Stale)?).await?;
                offset += len;
            }
            put.flush_rest().await?;
            put.replace().await
        };
        let copied = copied.await;
        match copied {
            Ok(()) => {
                if let Err(error) = self.abandon().await {
                    tracing::debug!(%error, "a content that was copied is left to be removed later");
                }
                Ok(())
            }
            Err(error) => {
                if !error.is_unknown() {
                    let _ = put.abandon().await;
                }
                Err(error)
            }
        }
    }

    /// Returns whether an inode still has this content.
    fn is_among(&self, inode: &Inode) -> bool {
        inode.contents.iter().any(|content| content.number == self.number && !content.dead)
    }

    /// Removes what was put so far; the file stays as it was, and a new one never was.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn abort(self) -> Result<()> {
        self.abandon().await
    }

    async fn abandon(&self) -> Result<()> {
        match self.name {
            Some(_) => self.rank.drop_link(self.ino, self.ino.0, None).await?,
            None => {
                let content = Content { number: self.number, objects: self.objects, dead: false };
                self.rank.remove_contents(self.ino, &[content]).await?;
            }
        }
        self.rank.release(self.inode.quota, Usage::bytes(self.charged)).await;
        self.rank.end_put(&self.note).await;
        Ok(())
    }
}
