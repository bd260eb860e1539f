//! Files, links and pipes of a tree that is copied.

use std::collections::hash_map::Entry as Slot;
use std::ffi::{CStr, CString};
use std::rc::Rc;
use std::sync::atomic::Ordering;

use bytes::{Buf, Bytes};
use nacre_tree::Cause;
use nacre_tree::copy::attributes::Attributes;
use nacre_walk::{FileKind, Metadata};

use super::side::{Item, Reader, Side, Writer};
use super::{COMPARE, Done, Halt, Job, KEEP, Link, Pass, Place, Purpose, READ, Same, WRITE, add, failed};

/// The difference between an entry and its copy.
enum Differs {
    Nothing,
    /// Owner, mode, times or extended attributes. The metadata is the copy's.
    Metadata(Metadata),
    /// More. The metadata is that of what is there, which is no directory.
    Contents(Option<Metadata>),
}

impl<S: Side, T: Side> Pass<'_, S, T> {
    /// Copies the first name of a file with several, and makes the others further names of the copy.
    pub(super) async fn linked(
        &self,
        place: &Rc<Place<S, T>>,
        name: CString,
        to_name: CString,
        metadata: Metadata,
    ) -> Done<S, T> {
        let key = (metadata.device(), metadata.inode());
        let kept = match self.links.borrow_mut().entry(key) {
            Slot::Vacant(slot) => {
                slot.insert(Link::Busy(Vec::new()));
                None
            }
            Slot::Occupied(mut slot) => match slot.get_mut() {
                Link::Busy(waiting) => {
                    let item = Item { name, metadata: Some(Box::new(metadata)) };
                    waiting.push(Job::Entry(Rc::clone(place), item, to_name));
                    // It was counted, and will be again.
                    self.progress.counters.entries.fetch_sub(1, Ordering::Relaxed);
                    return Done::Later;
                }
                Link::Done(kept, left) => {
                    let kept = kept.clone();
                    *left = left.saturating_sub(1);
                    if *left == 0 {
                        slot.remove();
                    }
                    Some(kept)
                }
            },
        };
        if let Some(kept) = kept {
            if let Err(halt) = self.link(place, &name, &to_name, &metadata, &kept).await {
                self.fail(place, name.to_bytes(), halt);
            }
            return Done::Now(Vec::new());
        }
        let copied = self.other(place, &name, &to_name, &metadata).await;
        let kept = match (&copied, &place.to) {
            (Ok(()), Some(to)) => {
                let (_, root) = &self.ends.to;
                let mut path = root.to_bytes().to_vec();
                let below = place.path(name.to_bytes());
                if !below.is_empty() {
                    path.push(b'/');
                    path.extend_from_slice(&below);
                }
                match self.target.kept(to, &to_name, path).await {
                    Ok(kept) => Some(kept),
                    // Without it, the other names are copied one by one, but if the store is lost, none is.
                    Err(cause) => {
                        if self.target.is_lost() {
                            self.fail(place, name.to_bytes(), Halt::Failed(WRITE, cause));
                        }
                        None
                    }
                }
            }
            _ => None,
        };
        if let Err(halt) = copied {
            self.fail(place, name.to_bytes(), halt);
        }
        let mut links = self.links.borrow_mut();
        let before = match kept {
            Some(kept) => links.insert(key, Link::Done(kept, metadata.links() - 1)),
            None => links.remove(&key),
        };
        match before {
            Some(Link::Busy(waiting)) => Done::Now(waiting),
            _ => Done::Now(Vec::new()),
        }
    }

    /// Gives the copy of a file a further name.
    async fn link(
        &self,
        place: &Place<S, T>,
        name: &CStr,
        to_name: &CStr,
        metadata: &Metadata,
        kept: &T::Kept,
    ) -> Result<(), Halt> {
        let Some(to) = &place.to else { return Ok(()) };
        let counters = &self.progress.counters;
        let there = self.target.look(to, to_name).await.map_err(failed(WRITE))?;
        if there.is_some_and(|there| self.target.is_kept(kept, &there)) {
            add(&counters.unchanged, 1);
            return Ok(());
        }
        if let Some(there) = there {
            check_gives_way(&there)?;
            self.target.remove(to, to_name).await.map_err(failed(WRITE))?;
        }
        match self.target.link(&self.ends.to.0, kept, to, to_name).await {
            Ok(()) => {
                add(&counters.linked, 1);
                Ok(())
            }
            // There are too many names, or a limit between them; so this one is a file of its own.
            Err(_) => self.other(place, name, to_name, metadata).await,
        }
    }

    /// Does what is to be done with a file, a link or a pipe.
    pub(super) async fn other(
        &self,
        place: &Place<S, T>,
        name: &CStr,
        to_name: &CStr,
        metadata: &Metadata,
    ) -> Result<(), Halt> {
        let counters = &self.progress.counters;
        let is_file = metadata.kind() == FileKind::File;
        let differs = self.differs(place, name, to_name, metadata).await?;
        match (&self.purpose, differs) {
            (Purpose::Copy, Differs::Nothing) => {
                add(&counters.unchanged, 1);
                add(&counters.bytes, if is_file { metadata.size() } else { 0 });
                Ok(())
            }
            // Other names of it, perhaps elsewhere, keep their metadata.
            (Purpose::Copy, Differs::Metadata(there)) if !is_file || there.links() == 1 => {
                let Some(to) = &place.to else { return Ok(()) };
                let extended = self.source.extended(&place.from, name).await.map_err(failed(READ))?;
                self.target.keep(to, to_name, metadata, &extended).await.map_err(failed(KEEP))?;
                add(&counters.unchanged, 1);
                add(&counters.bytes, if is_file { metadata.size() } else { 0 });
                Ok(())
            }
            (Purpose::Copy, Differs::Metadata(there)) => {
                self.copy(place, name, to_name, metadata, Some(there)).await
            }
            (Purpose::Copy, Differs::Contents(there)) => {
                self.copy(place, name, to_name, metadata, there).await
            }
            (Purpose::Preview(..), Differs::Nothing) => Ok(()),
            (Purpose::Preview(..), Differs::Metadata(_)) => {
                self.plan("adjust", place, name, 0);
                Ok(())
            }
            (Purpose::Preview(..), Differs::Contents(_)) => {
                self.plan("copy", place, name, if is_file { metadata.size() } else { 0 });
                Ok(())
            }
            (Purpose::Verify, Differs::Nothing) => {
                // Of a link and a pipe nothing is left to be compared.
                let same = !is_file || self.has_same_contents(place, name, to_name).await?;
                add(&counters.verified, 1);
                match same {
                    true => Ok(()),
                    false => {
                        Err(Halt::Failed(COMPARE, Cause::Other("its contents differ from those of its copy")))
                    }
                }
            }
            (Purpose::Verify, Differs::Metadata(_)) => {
                Err(Halt::Failed(COMPARE, Cause::Other("its metadata differs from that of its copy")))
            }
            (Purpose::Verify, Differs::Contents(None)) => {
                Err(Halt::Failed(COMPARE, Cause::Other("it has no copy")))
            }
            (Purpose::Verify, Differs::Contents(Some(_))) => {
                Err(Halt::Failed(COMPARE, Cause::Other("it differs from its copy")))
            }
        }
    }

    /// Compares an entry with its copy.
    async fn differs(
        &self,
        place: &Place<S, T>,
        name: &CStr,
        to_name: &CStr,
        metadata: &Metadata,
    ) -> Result<Differs, Halt> {
        let Some(to) = &place.to else { return Ok(Differs::Contents(None)) };
        let Some(there) = self.target.look(to, to_name).await.map_err(failed(WRITE))? else {
            return Ok(Differs::Contents(None));
        };
        if there.kind() != metadata.kind() {
            check_gives_way(&there)?;
            return Ok(Differs::Contents(Some(there)));
        }
        let is_same = match metadata.kind() {
            FileKind::Link => {
                let ours = self.source.target(&place.from, name).await.map_err(failed(READ))?;
                ours == self.target.target(to, to_name).await.map_err(failed(COMPARE))?
            }
            FileKind::File => {
                let time = metadata.modified() == there.modified();
                let is_same = match (self.settings.same, &self.purpose) {
                    (_, Purpose::Verify) | (Same::Time, _) => time,
                    (Same::Contents, _) => {
                        metadata.size() == there.size()
                            && self.has_same_contents(place, name, to_name).await?
                    }
                    (Same::Never, _) => false,
                };
                // A file of its own becomes one again.
                let alone = metadata.links() > 1 || there.links() == 1;
                is_same && alone && metadata.size() == there.size()
            }
            _ => true,
        };
        if !is_same {
            return Ok(Differs::Contents(Some(there)));
        }
        let extended = match self.settings.extended {
            true => self.source.extended(&place.from, name).await.map_err(failed(READ))?,
            false => Attributes::new(),
        };
        let settled = self.is_settled(to, to_name, metadata, &extended).await.map_err(failed(COMPARE))?;
        Ok(if settled { Differs::Nothing } else { Differs::Metadata(there) })
    }

    /// Returns whether a file and its copy have the same contents.
    async fn has_same_contents(
        &self,
        place: &Place<S, T>,
        name: &CStr,
        to_name: &CStr,
    ) -> Result<bool, Halt> {
        let Some(to) = &place.to else { return Ok(false) };
        let (mut ours, _) = self.source.read(&place.from, name).await.map_err(failed(READ))?;
        let (mut theirs, _) = match self.target.read(to, to_name).await {
            Ok(opened) => opened,
            Err(cause) => {
                ours.end().await;
                return Err(Halt::Failed(COMPARE, cause));
            }
        };
        let same = self.compare(&mut ours, &mut theirs).await;
        ours.end().await;
        theirs.end().await;
        same
    }

    async fn compare(&self, ours: &mut impl Reader, theirs: &mut impl Reader) -> Result<bool, Halt> {
        let (mut one, mut other) = (Bytes::new(), Bytes::new());
        loop {
            if self.progress.control.is_stopped() {
                return Err(Halt::Stopped);
            }
            if one.is_empty() {
                one = ours.next().await.map_err(failed(READ))?;
            }
            if other.is_empty() {
                other = theirs.next().await.map_err(failed(COMPARE))?;
            }
            let len = one.len().min(other.len());
            if len == 0 {
                return Ok(one.is_empty() && other.is_empty());
            }
            if one[..len] != other[..len] {
                return Ok(false);
            }
            one.advance(len);
            other.advance(len);
            add(&self.progress.counters.bytes, len as u64);
        }
    }

    /// Copies a file, a link or a pipe. `there` is what has its place.
    async fn copy(
        &self,
        place: &Place<S, T>,
        name: &CStr,
        to_name: &CStr,
        metadata: &Metadata,
        there: Option<Metadata>,
    ) -> Result<(), Halt> {
        let Some(to) = &place.to else { return Ok(()) };
        if metadata.kind() == FileKind::File {
            self.copy_file(place, (name, to_name), to, there).await?;
            add(&self.progress.files, 1);
        } else {
            let target = match metadata.kind() {
                FileKind::Link => self.source.target(&place.from, name).await.map_err(failed(READ))?,
                _ => Vec::new(),
            };
            let extended = self.source.extended(&place.from, name).await.map_err(failed(READ))?;
            if there.is_some() {
                self.target.remove(to, to_name).await.map_err(failed(WRITE))?;
            }
            self.target.make(to, to_name, metadata.kind(), &target).await.map_err(failed(WRITE))?;
            self.target.keep(to, to_name, metadata, &extended).await.map_err(failed(KEEP))?;
        }
        add(&self.progress.counters.copied, 1);
        Ok(())
    }

    async fn copy_file(
        &self,
        place: &Place<S, T>,
        (name, to_name): (&CStr, &CStr),
        to: &T::Directory,
        there: Option<Metadata>,
    ) -> Result<(), Halt> {
        let extended = self.source.extended(&place.from, name).await.map_err(failed(READ))?;
        let (mut reader, metadata) = self.source.read(&place.from, name).await.map_err(failed(READ))?;
        let written = match self.target.write(to, to_name, there.as_ref()).await {
            Ok(mut writer) => match self.move_bytes(&mut reader, &mut writer).await {
                Ok(bytes) => match writer.commit(&metadata, &extended).await {
                    Ok(()) => Ok(bytes),
                    Err(cause) => Err(Halt::Failed(WRITE, cause)),
                },
                Err(halt) => Err(match (writer.abort().await, halt) {
                    (Some(more), Halt::Failed(attempted, cause)) => {
                        Halt::Failed(attempted, Cause::Said(format!("{cause}; {more}")))
                    }
                    (_, halt) => halt,
                }),
            },
            Err(cause) => Err(Halt::Failed(WRITE, cause)),
        };
        reader.end().await;
        add(&self.progress.counters.bytes_copied, written?);
        Ok(())
    }

    /// Writes what is read. Returns the number of bytes.
    async fn move_bytes(&self, reader: &mut impl Reader, writer: &mut impl Writer) -> Result<u64, Halt> {
        let mut moved = 0;
        loop {
            if self.progress.control.is_stopped() {
                return Err(Halt::Stopped);
            }
            let bytes = reader.next().await.map_err(failed(READ))?;
            if bytes.is_empty() {
                return Ok(moved);
            }
            writer.write(&bytes).await.map_err(failed(WRITE))?;
            moved += bytes.len() as u64;
            add(&self.progress.counters.bytes, bytes.len() as u64);
        }
    }
}

/// Checks that what has the place of a copy may give way to it.
fn check_gives_way(there: &Metadata) -> Result<(), Halt> {
    match there.kind() {
        FileKind::File | FileKind::Link => Ok(()),
        FileKind::Directory => Err(Halt::Failed(WRITE, Cause::Other("there is a directory in its place"))),
        _ => {
            Err(Halt::Failed(WRITE, Cause::Other("something that is neither file nor link is in its place")))
        }
    }
}
