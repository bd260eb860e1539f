//! Content of files: byte streams striped over objects.
//!
//! A file's record says how long it is, and which *contents* it has: the present one, and those that are being put or
//! removed. Each content has objects of its own, whose names no other content ever has. Before an object is first
//! written, the record says that it may exist, so whoever removes the file knows all that there is to remove; and an
//! object that was removed is never made again, so what a late writer sends finds nothing and leaves nothing. (Of contents
//! with thousands of objects, only those that exist are removed: what a late writer makes of the others is found by the
//! check.)
//!
//! - [`Rank::write`] first makes the file as long as it will be, then writes: what was never written reads as zeros.
//!   Bytes behind a file's end, left by a writer that was too late for a truncation, are zeroed before the file grows
//!   over them.
//! - [`Put`](crate::Put) writes a content of its own beside the present one ([`crate::put`]).

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream};
pub use nacre_object::stripe::Piece;
use nacre_object::{
    Answer, ByteRange, ErrorKind, Fork, Guard, Intent, Outcome, ReadOp, StoreError, Transaction, WriteOp,
    limit::OFFSET_MAX,
};

use crate::credentials::{Credentials, WRITE};
use crate::error::{Error, Result};
use crate::inode::{CONTENTS_MAX, Content, Ino, Inode, InodeKind, PREFIX, object};
use crate::quota::Usage;
use crate::rank::{ATTEMPTS_MAX, Loaded, Rank, nonsense, too_busy};

/// The maximum length of a file in bytes.
pub const SIZE_MAX: u64 = OFFSET_MAX;
/// The maximum number of objects that are asked for one by one; of more, the store lists those that exist.
const OBJECTS_ASKED_MAX: u64 = 4096;
/// The number of objects that are listed at a time.
const LIST_MAX: usize = 1024;
/// The number of requests about objects of one file that are under way at a time.
pub(crate) const REQUESTS_MAX: usize = 16;

impl Rank {
    /// Reads at most `len` bytes of a file. Fewer come only at the file's end.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsDirectory`].
    pub async fn read_file(&self, ino: Ino, offset: u64, len: usize) -> Result<Bytes> {
        self.read_file_content(ino, None, offset, len).await.map(|(_, bytes)| bytes)
    }

    /// Reads from one content of a file, so that several calls read nothing of another: from the present one if `content` is
    /// `None`, else from the one of that number. Returns the content's number and at most `len` bytes; fewer come only at
    /// the file's end. Writing into a file and making it longer leave it its content. It gets another one with
    /// [`Rank::put`], when it is truncated to nothing, and when bytes are written into it for the first time.
    ///
    /// # Errors
    /// As [`Rank::read_file`]; [`Error::Stale`] if the file has another content by now.
    pub async fn read_file_content(
        &self,
        ino: Ino,
        content: Option<u64>,
        offset: u64,
        len: usize,
    ) -> Result<(u64, Bytes)> {
        for _ in 0..ATTEMPTS_MAX {
            let inode = self.load_file(ino).await?.inode;
            if content.is_some_and(|content| content != inode.content) {
                return Err(Error::Stale);
            }
            let len = inode.size.saturating_sub(offset).min(len as u64);
            if let Some(bytes) = self.read_content(ino, &inode, offset, len).await? {
                return Ok((inode.content, bytes));
            }
        }
        Err(too_busy())
    }

    /// Reads a range of a file that lies within its size. `None` if the content was replaced meanwhile.
    pub(crate) async fn read_content(
        &self,
        ino: Ino,
        inode: &Inode,
        offset: u64,
        len: u64,
    ) -> Result<Option<Bytes>> {
        if inode.content == 0 || len == 0 {
            return Ok(Some(vec![0; len as usize].into()));
        }
        let pieces = inode.layout.pieces(offset, len);
        let reads = pieces.map(|piece| self.read_piece(ino, inode.content, piece));
        let parts: Vec<(Bytes, bool)> = stream::iter(reads).buffered(REQUESTS_MAX).try_collect().await?;
        if parts.iter().any(|(_, exists)| !exists) {
            // Perhaps a hole, perhaps a content that has been removed.
            match self.load(ino).await {
                Ok(now) if now.inode.content == inode.content => {}
                Ok(_) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        if let [(only, _)] = &parts[..] {
            return Ok(Some(only.clone()));
        }
        let mut bytes = BytesMut::with_capacity(len as usize);
        for (part, _) in parts {
            bytes.extend_from_slice(&part);
        }
        Ok(Some(bytes.freeze()))
    }

    /// Reads a piece; returns also whether its object exists.
    async fn read_piece(&self, ino: Ino, content: u64, piece: Piece) -> Result<(Bytes, bool)> {
        let object = ino.data_object(content, piece.object);
        let mut bytes = Bytes::new();
        loop {
            let have = bytes.len() as u64;
            let range = ByteRange::new(piece.offset + have, piece.len - have);
            let read = ReadOp::Range { fork: Fork::DEFAULT, range, intent: Intent::Look };
            let done = self.read(&object, vec![read]).await?;
            let Some(Answer::Range(read)) = done.answers.into_iter().next() else { return Err(nonsense()) };
            let next = read.next;
            bytes = match bytes.is_empty() {
                true => read.data,
                false => [bytes, read.data].concat().into(),
            };
            match next {
                Some(next) if next > range.offset => {
                    // What the answer covers and does not give are zeros behind the object's end.
                    let covered = (next - piece.offset) as usize;
                    bytes = padded(bytes, covered);
                    if covered as u64 >= piece.len {
                        return Ok((bytes, done.existed));
                    }
                }
                Some(_) => return Err(nonsense()),
                None => return Ok((padded(bytes, piece.len as usize), done.existed)),
            }
        }
    }

    /// Writes bytes into a file, which becomes longer if they go beyond its end.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsDirectory`], [`Error::TooLarge`], [`Error::QuotaExceeded`].
    pub async fn write_file(&self, ino: Ino, offset: u64, data: Bytes) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        for _ in 0..ATTEMPTS_MAX {
            let end = end_of(offset, data.len() as u64)?;
            let inode = self.extend(ino, end, true).await?;
            match self.write_content(ino, &inode, inode.content, offset, data.clone()).await {
                // Truncated to nothing, or replaced, since: this write comes after that. (One that came before a truncation
                // to less may leave bytes behind the new end, which are zeroed before the file grows over them.)
                Err(Error::Stale) => {}
                result => return result,
            }
        }
        Err(too_busy())
    }

    /// Writes bytes at the end of a file, as one piece also where others do the same. Returns the offset.
    ///
    /// # Errors
    /// As [`Rank::write_file`].
    pub async fn append_file(&self, ino: Ino, data: Bytes) -> Result<u64> {
        for _ in 0..ATTEMPTS_MAX {
            let loaded = self.load_file(ino).await?;
            let offset = loaded.inode.size;
            let end = end_of(offset, data.len() as u64)?;
            let Some(inode) = self.grow(&loaded, end, true).await? else { continue };
            match self.write_content(ino, &inode, inode.content, offset, data.clone()).await {
                Err(Error::Stale) => {}
                result => return result.map(|()| offset),
            }
        }
        Err(too_busy())
    }

    pub(crate) async fn load_file(&self, ino: Ino) -> Result<Loaded> {
        let loaded = self.load(ino).await?;
        match loaded.inode.kind {
            InodeKind::File => Ok(loaded),
            InodeKind::Directory => Err(Error::IsDirectory),
            InodeKind::Typed(_) => Err(Error::Unsupported("it has methods, and no content".into())),
            _ => Err(Error::Invalid("it is not a file".into())),
        }
    }

    /// Makes a file at least `end` bytes long, with objects to hold bytes up to there.
    async fn extend(&self, ino: Ino, end: u64, objects: bool) -> Result<Inode> {
        for _ in 0..ATTEMPTS_MAX {
            let loaded = self.load_file(ino).await?;
            if let Some(inode) = self.grow(&loaded, end, objects).await? {
                return Ok(inode);
            }
        }
        Err(too_busy())
    }

    /// Makes a file longer in one attempt. `None` if another change came between.
    async fn grow(&self, loaded: &Loaded, end: u64, objects: bool) -> Result<Option<Inode>> {
        let mut inode = loaded.inode.clone();
        if inode.size < end {
            if inode.content != 0 && !self.clear(loaded, inode.size, end).await? {
                return Ok(None);
            }
            inode.size = end;
        }
        if objects {
            if inode.content == 0 {
                inode.content = self.next_id().await?;
                if inode.contents.len() >= CONTENTS_MAX {
                    self.make_space(loaded).await?;
                    return Ok(None);
                }
                inode.contents.push(Content { number: inode.content, objects: 0, dead: false });
            }
            let wanted = inode.layout.objects(end);
            let number = inode.content;
            for content in inode.contents.iter_mut().filter(|content| content.number == number) {
                content.objects = content.objects.max(wanted);
            }
        }
        let now = self.now();
        (inode.mtime, inode.ctime) = (now, now);
        inode.mode &= !0o6000;
        let added = Usage::bytes(inode.size - loaded.inode.size);
        self.charge(inode.quota, added).await?;
        let stored = self.store_inode(loaded, &inode).await;
        self.release_failed(inode.quota, added, &stored).await;
        if !stored? {
            self.release(inode.quota, added).await;
            return Ok(None);
        }
        Ok(Some(inode))
    }

    /// Zeroes what stands behind a file's end, between two offsets, as long as the record stays as it was loaded. Returns
    /// false if it did not.
    async fn clear(&self, loaded: &Loaded, from: u64, to: u64) -> Result<bool> {
        let inode = &loaded.inode;
        let objects = inode.contents.iter().find(|content| content.number == inode.content);
        let objects = objects.map_or(0, |content| content.objects);
        let within = inode.layout.objects_behind(objects, from, to);
        let mut regions: Vec<(u64, ByteRange)> = Vec::new();
        for object in self.objects_of(loaded.ino, inode.content, within).await? {
            regions.extend(inode.layout.region_behind(object, from, to).map(|range| (object, range)));
        }
        let mut dirty = Vec::new();
        for (number, range) in regions {
            let object = loaded.ino.data_object(inode.content, number);
            let done = self.read(&object, vec![ReadOp::Extents { fork: Fork::DEFAULT, range }]).await?;
            let Some(Answer::Range(read)) = done.answers.first() else { return Err(nonsense()) };
            let data = |extent: &nacre_object::Extent| extent.kind == nacre_object::ExtentKind::Data;
            if read.extents.iter().any(data) || read.next.is_some() {
                dirty.push((object, range, read.version));
            }
        }
        if dirty.is_empty() {
            return Ok(true);
        }
        // Whoever made the file longer since may have written there; only then may the versions just read be theirs.
        if self.load(loaded.ino).await?.record != loaded.record {
            return Ok(false);
        }
        for (object, range, version) in dirty {
            let transaction = Transaction::new()
                .guard(Guard::Exists)
                .guard(Guard::Region { fork: Fork::DEFAULT, range, version })
                .change(WriteOp::Zero { fork: Fork::DEFAULT, range });
            if !self.change(&object, transaction).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes bytes into the objects of a content.
    pub(crate) async fn write_content(
        &self,
        ino: Ino,
        inode: &Inode,
        content: u64,
        offset: u64,
        data: Bytes,
    ) -> Result<()> {
        let pieces = inode.layout.pieces(offset, data.len() as u64);
        let writes = pieces.map(|piece| {
            let from = (piece.at - offset) as usize;
            self.write_piece(ino, content, piece, data.slice(from..from + piece.len as usize))
        });
        stream::iter(writes).buffer_unordered(REQUESTS_MAX).try_collect::<()>().await
    }

    async fn write_piece(&self, ino: Ino, content: u64, piece: Piece, data: Bytes) -> Result<()> {
        let object = ino.data_object(content, piece.object);
        // An object that is made is made once: a guard tells it from one that was removed.
        let mut guard = Guard::Exists;
        for _ in 0..ATTEMPTS_MAX {
            let transaction =
                Transaction::new().guard(guard.clone()).write(Fork::DEFAULT, piece.offset, data.clone());
            match (self.apply(&object, transaction).await?, &guard) {
                (Outcome::Done(_), _) => return Ok(()),
                (Outcome::Refused(refusal), Guard::Exists) if refusal.version == 0 => {
                    guard = Guard::Version { version: 0 };
                }
                (Outcome::Refused(_), Guard::Exists) => return Err(Error::Stale),
                (Outcome::Refused(_), _) => guard = Guard::Exists,
            }
        }
        Err(too_busy())
    }

    /// Changes the size of a file.
    ///
    /// # Errors
    /// [`Error::Denied`] if the user may not write, [`Error::NotFound`], [`Error::IsDirectory`], [`Error::TooLarge`],
    /// [`Error::QuotaExceeded`].
    pub async fn truncate(&self, user: &Credentials, ino: Ino, size: u64) -> Result<()> {
        end_of(size, 0)?;
        for _ in 0..ATTEMPTS_MAX {
            let loaded = self.load_file(ino).await?;
            user.check(&loaded.inode, WRITE)?;
            if size >= loaded.inode.size {
                if size == loaded.inode.size || self.grow(&loaded, size, false).await?.is_some() {
                    return Ok(());
                }
                continue;
            }
            let mut inode = loaded.inode.clone();
            let now = self.now();
            (inode.size, inode.mtime, inode.ctime) = (size, now, now);
            inode.mode &= !0o6000;
            if size == 0 {
                bury(&mut inode);
            }
            self.note_quota(inode.quota).await?;
            if !self.store_inode(&loaded, &inode).await? {
                continue;
            }
            self.release(inode.quota, Usage::bytes(loaded.inode.size - size)).await;
            // Nothing depends on the rest: what stands behind the end is zeroed before the file grows over it.
            let rest = match size {
                0 => self.remove_dead(ino).await,
                _ => match self.load(ino).await {
                    Ok(now) if now.inode.size == size && now.inode.content == inode.content => {
                        self.clear(&now, size, loaded.inode.size).await.map(|_| ())
                    }
                    other => other.map(|_| ()),
                },
            };
            if let Err(error) = rest {
                tracing::debug!(%error, "bytes behind the end of a file are left where they are");
            }
            return Ok(());
        }
        Err(too_busy())
    }

    /// Makes room in a record for one more content.
    pub(crate) async fn make_space(&self, loaded: &Loaded) -> Result<()> {
        if !loaded.inode.contents.iter().any(|content| content.dead) {
            let text = format!(
                "{} contents of it are being put, or were left by commands that were killed; \"nacre fs check --mend\" \
                 removes those",
                CONTENTS_MAX - 1
            );
            return Err(StoreError::new(ErrorKind::Busy, text).into());
        }
        self.remove_dead(loaded.ino).await
    }

    /// Removes the objects of contents that were replaced, and takes them off the record.
    pub(crate) async fn remove_dead(&self, ino: Ino) -> Result<()> {
        let inode = self.load(ino).await?.inode;
        let dead: Vec<Content> = inode.contents.iter().filter(|content| content.dead).copied().collect();
        self.remove_contents(ino, &dead).await
    }

    /// Removes contents that are not the present one.
    pub(crate) async fn remove_contents(&self, ino: Ino, contents: &[Content]) -> Result<()> {
        let mut contents = contents.to_vec();
        if contents.iter().any(|content| !content.dead) {
            // The record says so first: a put that is at work after all must not end with objects that are being removed.
            let named = |number: u64| contents.iter().any(|content| content.number == number);
            let buried = self.update_inode(ino, |inode| {
                let present = inode.content;
                let left = |content: &&mut Content| content.number != present && named(content.number);
                inode.contents.iter_mut().filter(left).for_each(|content| content.dead = true);
                Ok(())
            });
            let inode = match buried.await {
                Ok(inode) => inode,
                // Whoever removed the file removed all its contents.
                Err(Error::NotFound) => return Ok(()),
                Err(error) => return Err(error),
            };
            let dead = |content: &&Content| content.dead && named(content.number);
            contents = inode.contents.iter().filter(dead).copied().collect();
        }
        if contents.is_empty() {
            return Ok(());
        }
        for content in &contents {
            self.remove_content(ino, content).await?;
        }
        let removed = |content: &Content| {
            contents.iter().any(|one| one.number == content.number && one.objects >= content.objects)
        };
        let result = self.update_inode(ino, |inode| {
            let present = inode.content;
            inode.contents.retain(|content| content.number == present || !removed(content));
            Ok(())
        });
        match result.await {
            Ok(_) | Err(Error::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes the objects of a content, so that none of them is ever made again.
    pub(crate) async fn remove_content(&self, ino: Ino, content: &Content) -> Result<()> {
        let indexes = self.objects_of(ino, content.number, 0..content.objects).await?;
        let removals = indexes.into_iter().map(async |index| {
            let transaction = Transaction::new().change(WriteOp::Create).change(WriteOp::Remove);
            self.change(&ino.data_object(content.number, index), transaction).await.map(|_| ())
        });
        stream::iter(removals).buffer_unordered(REQUESTS_MAX).try_collect::<()>().await
    }

    /// Returns the objects of a content, within a range of their numbers, that may exist: all of them if they are few, and
    /// otherwise those that the store lists. One byte far behind a file's end may make its objects more than can be counted.
    async fn objects_of(&self, ino: Ino, content: u64, range: Range<u64>) -> Result<Vec<u64>> {
        if range.end.saturating_sub(range.start) <= OBJECTS_ASKED_MAX {
            return Ok(range.collect());
        }
        let (mut indexes, mut after) = (Vec::new(), object(format!("{PREFIX}d/{ino}/{content:x}/")));
        let prefix = after.clone();
        loop {
            let page = self.store.list(Some(&after), LIST_MAX).await?;
            let Some(last) = page.last().cloned() else { return Ok(indexes) };
            for object in &page {
                let Some(index) = object.as_bytes().strip_prefix(prefix.as_bytes()) else {
                    return Ok(indexes);
                };
                let index =
                    std::str::from_utf8(index).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
                indexes.extend(index.filter(|index| range.contains(index)));
            }
            after = last;
        }
    }
}

/// Takes the present content away from a file; its objects are to be removed.
pub(crate) fn bury(inode: &mut Inode) {
    for content in inode.contents.iter_mut().filter(|content| content.number == inode.content) {
        content.dead = true;
    }
    inode.content = 0;
}

pub(crate) fn end_of(offset: u64, len: u64) -> Result<u64> {
    offset.checked_add(len).filter(|end| *end <= SIZE_MAX).ok_or(Error::TooLarge)
}

fn padded(bytes: Bytes, len: usize) -> Bytes {
    if bytes.len() >= len {
        return bytes;
    }
    let mut longer = BytesMut::with_capacity(len);
    longer.extend_from_slice(&bytes);
    longer.resize(len, 0);
    longer.freeze()
}
