//! Calls on the namespace: look-ups and changes of entries, for a user.

use std::collections::HashSet;

use bytes::Bytes;
use futures::future::join;
use futures::{StreamExt, TryStreamExt, stream};
use nacre_object::{Answer, Escaped, Guard, ReadOp, Transaction, WriteOp};

use crate::attribute::Attributes;
use crate::capability::Policy;
use crate::credentials::{Credentials, EXECUTE, READ, WRITE};
use crate::directory::{
    CHANGED, Entry, Initial, NAME_BYTES_MAX, check_name, encode_time, entry_key, gone_key,
};
use crate::error::{Error, Result};
use crate::fragment::{BOUNDS, Place};
use crate::inode::{
    Ino, Inode, InodeKind, LINKS_MAX, Layout, RECORD, SEQUENCER, TARGET_BYTES_MAX, TYPE_BYTES_MAX, key,
};
use crate::intent::{Part, Target};
use crate::quota::Usage;
use crate::rank::{ATTEMPTS_MAX, Loaded, Rank, at_version, corrupt, namespace_object, too_busy, versioned};
use crate::remove::{directory_note, gone_value};

/// The maximum number of symbolic links that one path may lead through.
const SYMLINKS_MAX: usize = 40;
/// The maximum length of a path in bytes.
pub const PATH_BYTES_MAX: usize = 1 << 20;
/// The maximum number of entries in a page of a directory.
pub const PAGE_ENTRIES_MAX: usize = nacre_object::limit::PAGE_ENTRIES_MAX;
/// The names of kinds, which no type of a program may have.
const KINDS: [&str; 5] = ["file", "directory", "symlink", "fifo", "socket"];
/// The number of inodes that are read side by side for a page of a directory.
const READS_MAX: usize = 64;
/// The time within which changes of a directory's entries may leave the directory the time of the first of them, where entry and
/// time are in different objects: the resolution that such times have on other file systems of Linux.
const RESOLUTION_NS: i64 = 4_000_000;

/// The inode to be made by [`Rank::create`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Creation {
    /// The kind.
    pub kind: InodeKind,
    /// The permission bits.
    pub mode: u32,
    /// The target of a symbolic link.
    ///
    /// Of a sequencer it is the policy, as text; the default one if it is empty.
    pub target: Bytes,
    /// The layout of a file, or of the files in a directory; that of the directory it is made in if there is none.
    pub layout: Option<Layout>,
}

impl Creation {
    /// Describes an inode without a target.
    pub fn new(kind: InodeKind, mode: u32) -> Self {
        Self { kind, mode, target: Bytes::new(), layout: None }
    }

    /// Describes a symbolic link.
    pub fn symlink(target: impl Into<Bytes>) -> Self {
        Self { target: target.into(), ..Self::new(InodeKind::Symlink, 0o777) }
    }

    /// Describes a sequencer.
    pub fn sequencer(policy: Policy, mode: u32) -> Self {
        let kind = InodeKind::Typed(SEQUENCER.to_owned());
        Self { target: policy.to_string().into(), ..Self::new(kind, mode) }
    }
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: Bytes,
    /// The inode.
    pub ino: Ino,
    /// The inode's kind.
    pub kind: InodeKind,
    /// The inode's attributes, where they were asked for.
    pub attributes: Option<Attributes>,
}

/// A page of a directory, in the order of the names' bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The entries.
    pub entries: Vec<Listed>,
    /// True if there are more, after the last of these.
    pub more: bool,
}

/// A directory and one of its entries, as they were read together.
pub(crate) struct LookedUpEntry {
    pub directory: Loaded,
    /// The fragment of the directory in which the entry is or would be.
    pub place: Place,
    /// The entry, with the version of its key.
    pub entry: Option<(Entry, u64)>,
}

impl LookedUpEntry {
    pub(crate) fn entry_version(&self) -> u64 {
        self.entry.as_ref().map_or(0, |(_, version)| *version)
    }

    /// Begins a transaction that changes the entry, of this name, as long as it and the directory are as they were read, and sets
    /// the time of the change.
    pub(crate) fn transaction(&self, name: &[u8], now: i64) -> Transaction {
        let transaction =
            self.place.transaction(&self.directory).guard(at_version(entry_key(name), self.entry_version()));
        match self.place.fragment.index {
            0 => transaction.change(WriteOp::SetKey { key: key(CHANGED), value: encode_time(now) }),
            _ => transaction,
        }
    }

    /// Begins the part of an intent that changes the entry, under the same conditions.
    pub(crate) fn part(&self, name: &[u8], now: i64) -> Part {
        let part = self.place.part(&self.directory).at(entry_key(name), self.entry_version());
        match self.place.fragment.index {
            0 => part.set(key(CHANGED), Some(encode_time(now))),
            _ => part,
        }
    }
}

impl Rank {
    /// Reads a directory and one of its entries.
    pub(crate) async fn look(&self, directory: Ino, name: &[u8]) -> Result<LookedUpEntry> {
        check_name(name)?;
        self.look_at(directory, name).await
    }

    /// Reads a directory and one of its entries, whose name may be one that no entry should have.
    pub(crate) async fn look_at(&self, directory: Ino, name: &[u8]) -> Result<LookedUpEntry> {
        let read = ReadOp::versioned_key(entry_key(name));
        let (directory, place, answers) = self.find_place(directory, name, &[read]).await?;
        let entry = match versioned(answers.first())? {
            Some(entry) => Some((Entry::decode(&entry.value)?, entry.version)),
            None => None,
        };
        Ok(LookedUpEntry { directory, place, entry })
    }

    /// Sets the time of a change of an entry that is in another object than the directory's inode, where the time is. Nothing depends
    /// on it.
    pub(crate) async fn touch(&self, looked: &LookedUpEntry, now: i64) {
        let is_recent =
            now.saturating_sub(looked.directory.inode.mtime).unsigned_abs() < RESOLUTION_NS as u64;
        if looked.place.fragment.index == 0 || is_recent {
            return;
        }
        let value = encode_time(now);
        let transaction =
            Transaction::new().guard(Guard::Exists).change(WriteOp::SetKey { key: key(CHANGED), value });
        if let Err(error) = self.change(&looked.directory.ino.object(), transaction).await {
            tracing::debug!(%error, "a directory keeps the time of an earlier change");
        }
    }

    /// Reads a directory, one of its entries, and the inode of that.
    async fn look_up(&self, directory: Ino, name: &[u8]) -> Result<(LookedUpEntry, Option<Loaded>)> {
        let mut before = 0;
        for _ in 0..ATTEMPTS_MAX {
            let looked = self.look(directory, name).await?;
            let Some((entry, version)) = &looked.entry else { return Ok((looked, None)) };
            if let Some(inode) = self.load_entry(directory, entry).await? {
                return Ok((looked, Some(inode)));
            }
            // The entry was removed between the two reads, or it has lost its inode.
            if before == *version {
                let name = Escaped(name);
                return Err(corrupt(format!("entry \"{name}\" of directory {directory} has no inode")));
            }
            before = *version;
        }
        Err(too_busy())
    }

    /// Returns the attributes of an entry's inode.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::Denied`].
    pub async fn lookup(&self, user: &Credentials, directory: Ino, name: &[u8]) -> Result<Attributes> {
        let (looked, inode) = self.look_up(directory, name).await?;
        user.check(&looked.directory.inode, EXECUTE)?;
        let inode = inode.ok_or(Error::NotFound)?;
        self.remember(&inode).await;
        Ok(Attributes::of(&inode))
    }

    /// Returns the attributes of an inode.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it was removed.
    pub async fn stat(&self, ino: Ino) -> Result<Attributes> {
        Ok(Attributes::of(&self.load(ino).await?))
    }

    /// Finds the inode that a path from the root leads to. A symbolic link at its end is followed if `follow`.
    ///
    /// # Errors
    /// As [`Rank::lookup`]; [`Error::Loop`].
    pub async fn resolve(&self, user: &Credentials, path: &[u8], follow: bool) -> Result<Attributes> {
        self.resolve_from(user, Ino::ROOT, path, follow).await
    }

    /// Finds the inode that a path leads to from a directory, or from the root if it begins with a slash.
    ///
    /// # Errors
    /// As [`Rank::resolve`].
    pub async fn resolve_from(
        &self,
        user: &Credentials,
        from: Ino,
        path: &[u8],
        follow: bool,
    ) -> Result<Attributes> {
        if path.len() > PATH_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        // The rest of the path, component by component, the next one last.
        let mut rest: Vec<Bytes> = components(path).rev().collect();
        let mut must_be_directory = path.ends_with(b"/") || path.ends_with(b"/.");
        let mut here = self.stat(if path.starts_with(b"/") { Ino::ROOT } else { from }).await?;
        let mut symlinks = 0;
        while let Some(name) = rest.pop() {
            if here.kind != InodeKind::Directory {
                return Err(Error::NotDirectory);
            }
            if name == ".." {
                let directory = self.load(here.ino).await?;
                user.check(&directory.inode, EXECUTE)?;
                here = self.stat(directory.inode.parent).await?;
                continue;
            }
            let next = self.lookup(user, here.ino, &name).await?;
            if next.kind != InodeKind::Symlink || (rest.is_empty() && !follow && !must_be_directory) {
                here = next;
                continue;
            }
            symlinks += 1;
            if symlinks > SYMLINKS_MAX {
                return Err(Error::Loop);
            }
            if rest.is_empty() {
                must_be_directory |= next.target.ends_with(b"/");
            }
            if next.target.starts_with(b"/") {
                here = self.stat(Ino::ROOT).await?;
            }
            rest.extend(components(&next.target).rev());
            let length: usize = rest.iter().map(|name| name.len() + 1).sum();
            if length > PATH_BYTES_MAX {
                return Err(Error::NameTooLong);
            }
        }
        if must_be_directory && here.kind != InodeKind::Directory {
            return Err(Error::NotDirectory);
        }
        Ok(here)
    }

    /// Finds the directory that the last component of a path is or would be in, and that component.
    ///
    /// # Errors
    /// As [`Rank::resolve`]; [`Error::Invalid`] if the path has no last component, or it is `.` or `..`.
    pub async fn resolve_parent(&self, user: &Credentials, path: &[u8]) -> Result<(Attributes, Bytes)> {
        let mut parts: Vec<Bytes> = components(path).collect();
        let name = parts.pop().ok_or(Error::Invalid("the path names the root".into()))?;
        if name == ".." || path.ends_with(b"/.") {
            return Err(Error::Invalid("the path ends in . or ..".into()));
        }
        check_name(&name)?;
        let directory = self.resolve(user, &parts.join(&b'/'), true).await?;
        match directory.kind {
            InodeKind::Directory => Ok((directory, name)),
            _ => Err(Error::NotDirectory),
        }
    }

    /// Lists a page of a directory, from the first entry whose name is greater than `after`: at most `limit`, and at most
    /// [`PAGE_ENTRIES_MAX`]. With `attributes`, an entry whose inode was removed while the page was read is left out. Without, other calls
    /// may not find the number of an entry before it was looked up ([`Rank::lookup`]).
    ///
    /// # Errors
    /// [`Error::NotDirectory`], [`Error::Denied`], [`Error::NotFound`].
    pub async fn readdir(
        &self,
        user: &Credentials,
        directory: Ino,
        after: &[u8],
        limit: usize,
        attributes: bool,
    ) -> Result<Page> {
        let limit = limit.clamp(1, PAGE_ENTRIES_MAX);
        // No name is longer, so what is greater than the beginning of that length is greater than all of it.
        let mut after = Bytes::copy_from_slice(&after[..after.len().min(NAME_BYTES_MAX)]);
        loop {
            let (loaded, entries, more) = self.list_entries(directory, &after, limit).await?;
            user.check(&loaded.inode, READ)?;
            let listed = |name, entry: &Entry, attributes| Listed {
                name,
                ino: entry.ino,
                kind: entry.kind.clone(),
                attributes,
            };
            if !attributes {
                let entries = entries.into_iter().map(|(name, entry)| listed(name, &entry, None)).collect();
                return Ok(Page { entries, more });
            }
            user.check(&loaded.inode, EXECUTE)?;
            let last = entries.last().map(|(name, _)| name.clone()).filter(|_| more);
            let inodes = entries.into_iter().map(async |(name, entry)| {
                let inode = self.load_entry(directory, &entry).await?;
                if let Some(inode) = &inode {
                    self.remember(inode).await;
                }
                Ok::<_, Error>(inode.map(|inode| listed(name, &entry, Some(Attributes::of(&inode)))))
            });
            let inodes: Vec<Option<Listed>> = stream::iter(inodes).buffered(READS_MAX).try_collect().await?;
            let entries: Vec<Listed> = inodes.into_iter().flatten().collect();
            // A page without entries would be taken for the last one.
            match last {
                Some(last) if entries.is_empty() => after = last,
                _ => return Ok(Page { entries, more }),
            }
        }
    }

    /// Checks that the store lets objects have as many bytes as those of a layout, and some more: what is overwritten may take room beside
    /// what takes its place.
    pub(crate) async fn check_room(&self, layout: &Layout) -> Result<()> {
        let most = self.store.limits().await?.fork_bytes_max;
        if layout.object_bytes.saturating_add(layout.unit_bytes.into()) <= most {
            return Ok(());
        }
        let text = format!(
            "its files would have objects of {} bytes; the store holds {most} bytes in one at most, and a stripe of them has to be free",
            layout.object_bytes
        );
        Err(Error::Invalid(text.into()))
    }

    /// Makes a further link to a file.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NotPermitted`] for a directory, [`Error::TooManyLinks`], [`Error::Denied`],
    /// [`Error::NotFound`].
    pub async fn link(
        &self,
        user: &Credentials,
        ino: Ino,
        directory: Ino,
        name: &[u8],
    ) -> Result<Attributes> {
        for _ in 0..ATTEMPTS_MAX {
            let looked = self.look(directory, name).await?;
            user.check(&looked.directory.inode, EXECUTE)?;
            if looked.entry.is_some() {
                return Err(Error::Exists);
            }
            user.check(&looked.directory.inode, WRITE)?;
            let loaded = self.load_made(ino).await?;
            let mut inode = loaded.inode.clone();
            match inode.kind {
                InodeKind::Directory => return Err(Error::NotPermitted),
                _ if inode.links.is_empty() => return Err(Error::NotFound),
                _ if inode.links.len() >= LINKS_MAX => return Err(Error::TooManyLinks),
                _ if inode.quota != looked.directory.inode.tree => return Err(Error::OtherQuota),
                _ => {}
            }
            let link = self.next_id().await?;
            let now = self.now();
            inode.links.push(link);
            inode.ctime = now;
            let entry = Entry { ino, link, kind: inode.kind.clone(), initial: None };
            let parts = vec![
                Part::new(Target::Inode(ino), loaded.moves)
                    .at(key(RECORD), loaded.record)
                    .set(key(RECORD), Some(inode.encode())),
                looked.part(name, now).set(entry_key(name), Some(entry.encode())),
            ];
            if self.execute(parts).await? {
                self.touch(&looked, now).await;
                self.grew(&looked.place, name).await;
                return Ok(Attributes::of(&Loaded { inode, ..loaded }));
            }
        }
        Err(too_busy())
    }

    /// Removes an entry that is not a directory's; its inode goes with its last link, once nobody has it open here.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsDirectory`], [`Error::Denied`], [`Error::NotPermitted`] in a directory with the
    /// sticky bit.
    pub async fn unlink(&self, user: &Credentials, directory: Ino, name: &[u8]) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let (looked, inode) = self.look_up(directory, name).await?;
            user.check(&looked.directory.inode, EXECUTE)?;
            let (Some((entry, _)), Some(inode)) = (&looked.entry, inode) else {
                return Err(Error::NotFound);
            };
            check_removal(user, &looked.directory.inode, &inode.inode)?;
            if entry.kind == InodeKind::Directory {
                return Err(Error::IsDirectory);
            }
            self.begin_removal(directory).await?;
            let (now, fragment) = (self.now(), looked.place.fragment);
            let transaction = looked
                .transaction(name, now)
                .change(WriteOp::RemoveKey { key: entry_key(name) })
                .change(WriteOp::SetKey { key: gone_key(entry.link), value: gone_value(entry.ino) });
            let done = self.change(&fragment.object(), transaction).await;
            if matches!(done, Ok(false)) {
                self.end_removal();
                continue;
            }
            done?;
            self.touch(&looked, now).await;
            self.removed(fragment, entry.link, entry.ino, Some(inode)).await;
            return Ok(());
        }
        Err(too_busy())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::NotEmpty`], [`Error::Denied`], [`Error::NotPermitted`].
    pub async fn rmdir(&self, user: &Credentials, directory: Ino, name: &[u8]) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let (looked, inode) = self.look_up(directory, name).await?;
            user.check(&looked.directory.inode, EXECUTE)?;
            let (Some((entry, _)), Some(inode)) = (&looked.entry, inode) else {
                return Err(Error::NotFound);
            };
            check_removal(user, &looked.directory.inode, &inode.inode)?;
            if entry.kind != InodeKind::Directory {
                return Err(Error::NotDirectory);
            }
            let Some(mut parts) = self.removal_of_directory(&inode).await? else { continue };
            let now = self.now();
            parts.push(looked.part(name, now).set(entry_key(name), None));
            if self.execute(parts).await? {
                self.touch(&looked, now).await;
                self.release(inode.inode.quota, Usage::entry()).await;
                self.forget(&directory_note(entry.ino), None).await;
                return Ok(());
            }
        }
        Err(too_busy())
    }

    /// Renames an entry, also to another directory. An entry that is in the way is replaced, unless `keep`: a file by
    /// anything but a directory, an empty directory by a directory. At every moment there is something of the new name,
    /// if there was before.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Exists`] with `keep`, [`Error::IsDirectory`], [`Error::NotDirectory`],
    /// [`Error::NotEmpty`], [`Error::Denied`], [`Error::NotPermitted`]; [`Error::Invalid`] if a directory is to be moved
    /// into itself; [`Error::OtherQuota`].
    pub async fn rename(
        &self,
        user: &Credentials,
        (from, from_name): (Ino, &[u8]),
        (to, to_name): (Ino, &[u8]),
        keep: bool,
    ) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            // Side by side: nothing relies on their order, since the change is conditional on both entries.
            let (source, destination) = join(self.look_up(from, from_name), self.look_up(to, to_name)).await;
            let (source, moved) = source?;
            user.check(&source.directory.inode, EXECUTE)?;
            let (Some((entry, version)), Some(moved)) = (&source.entry, moved) else {
                return Err(Error::NotFound);
            };
            let (destination, victim) = destination?;
            user.check(&destination.directory.inode, EXECUTE)?;
            check_removal(user, &source.directory.inode, &moved.inode)?;
            user.check(&destination.directory.inode, WRITE)?;
            let is_directory = entry.kind == InodeKind::Directory;
            if moved.inode.quota != destination.directory.inode.tree {
                return Err(Error::OtherQuota);
            }
            if victim.is_some() && keep {
                return Err(Error::Exists);
            }
            // Only one directory at a time goes to another one. What is above `to` is looked at behind this version, so it
            // stays as it is until the intent has claimed it.
            let moves = if is_directory && from != to {
                if !user.owns(&moved.inode) {
                    user.check(&moved.inode, WRITE)?;
                }
                let moves = self.directory_moves().await?;
                self.check_not_above(entry.ino, to, moves).await?;
                Some(moves)
            } else {
                None
            };
            if let (Some(victim), Some((there, _))) = (&victim, &destination.entry) {
                if there.ino == entry.ino {
                    // Two links to one inode: nothing happens, if both are there at the same time.
                    // Each was looked at twice, and the second time after both had been there.
                    let is_same = self.look(from, from_name).await?.entry_version() == *version
                        && self.look(to, to_name).await?.entry_version() == destination.entry_version();
                    match is_same {
                        true => return Ok(()),
                        false => continue,
                    }
                }
                check_removal(user, &destination.directory.inode, &victim.inode)?;
                match (is_directory, there.kind == InodeKind::Directory) {
                    (true, false) => return Err(Error::NotDirectory),
                    (false, true) => return Err(Error::IsDirectory),
                    _ => {}
                }
            }
            let now = self.now();
            // As long as the inode has no object, only the entry tells what it is.
            let renamed = if moved.is_made() { entry.moved().encode() } else { entry.encode() };
            let (ours, theirs) = (source.place.fragment, destination.place.fragment);
            let there = destination.entry.as_ref().map(|(there, _)| there);
            let gone = there.filter(|there| there.kind != InodeKind::Directory);
            let replaced = victim.filter(|_| gone.is_none());
            if gone.is_some() {
                self.begin_removal(to).await?;
            }
            let done = if ours == theirs && replaced.is_none() {
                let mut transaction = source
                    .transaction(from_name, now)
                    .guard(at_version(key(BOUNDS), destination.place.version))
                    .guard(at_version(entry_key(to_name), destination.entry_version()))
                    .change(WriteOp::RemoveKey { key: entry_key(from_name) })
                    .change(WriteOp::SetKey { key: entry_key(to_name), value: renamed });
                if let Some(gone) = gone {
                    let value = gone_value(gone.ino);
                    transaction = transaction.change(WriteOp::SetKey { key: gone_key(gone.link), value });
                }
                self.change(&ours.object(), transaction).await
            } else {
                let mut parts = Vec::new();
                let mut source_part = source.part(from_name, now).set(entry_key(from_name), None);
                let add = |part: Part| {
                    let part = part.set(entry_key(to_name), Some(renamed));
                    match gone {
                        Some(gone) => part.set(gone_key(gone.link), Some(gone_value(gone.ino))),
                        None => part,
                    }
                };
                if ours == theirs {
                    source_part = add(source_part
                        .at(key(BOUNDS), destination.place.version)
                        .at(entry_key(to_name), destination.entry_version()));
                } else {
                    parts.push(add(destination.part(to_name, now)));
                }
                parts.push(source_part);
                if let Some(replaced) = &replaced {
                    let Some(removal) = self.removal_of_directory(replaced).await? else { continue };
                    parts.extend(removal);
                }
                if let Some(moves) = moves {
                    let inode = Inode { parent: to, ..moved.inode.clone() };
                    parts.push(
                        Part::new(Target::Inode(entry.ino), moved.moves)
                            .at(key(RECORD), moved.record)
                            .set(key(RECORD), Some(inode.encode())),
                    );
                    parts.push(Part::new(Target::Namespace, moves));
                }
                self.execute(parts).await
            };
            if let (Ok(false), Some(_)) = (&done, gone) {
                self.end_removal();
            }
            if !done? {
                continue;
            }
            self.touch(&source, now).await;
            if from != to {
                self.touch(&destination, now).await;
            }
            if let Some(gone) = gone {
                self.removed(theirs, gone.link, gone.ino, None).await;
            }
            if let Some(replaced) = &replaced {
                self.release(replaced.inode.quota, Usage::entry()).await;
            }
            if there.is_none() {
                self.grew(&destination.place, to_name).await;
            }
            return Ok(());
        }
        Err(too_busy())
    }

    /// Returns the version of the last move of a directory to another one.
    async fn directory_moves(&self) -> Result<u64> {
        for _ in 0..ATTEMPTS_MAX {
            let namespace = namespace_object();
            let claim = ReadOp::Key { key: key(crate::directory::CLAIM) };
            let moves = ReadOp::versioned_key(key(crate::directory::MOVES));
            let done = self.read(&namespace, vec![claim, moves]).await?;
            match done.answers.first() {
                Some(Answer::Value(Some(claim))) => {
                    self.help(crate::intent::Claim::decode(claim)?, &namespace).await?;
                }
                _ => return Ok(versioned(done.answers.get(1))?.map_or(0, |value| value.version)),
            }
        }
        Err(too_busy())
    }

    /// Checks that a directory is neither `below` nor above it, behind the version `moves` of the last move.
    async fn check_not_above(&self, directory: Ino, below: Ino, moves: u64) -> Result<()> {
        let mut at = below;
        let mut seen = HashSet::new();
        loop {
            if at == directory {
                return Err(Error::Invalid("a directory cannot be moved into itself".into()));
            }
            if at == Ino::ROOT {
                return Ok(());
            }
            if !seen.insert(at) {
                // Moves that were made meanwhile may lead around, and then the version refuses this one.
                if self.directory_moves().await? != moves {
                    return Ok(());
                }
                return Err(corrupt(format!("directory {at} is in itself: check the namespace")));
            }
            at = self.load(at).await?.inode.parent;
        }
    }
}

fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = Bytes> {
    path.split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty() && *name != b".")
        .map(Bytes::copy_from_slice)
}

/// Returns the policy with which a sequencer was made, given its inode's target.
pub(crate) fn sequencer_policy(target: &[u8]) -> Option<Policy> {
    match target {
        [] => Some(Policy::default()),
        text => Policy::from_record(std::str::from_utf8(text).ok()?).ok(),
    }
}

/// Returns the first state of an inode that a user makes in a directory.
pub(crate) fn initial(user: &Credentials, parent: &Inode, creation: &Creation, now: i64) -> Initial {
    // The bit setgid of a directory: what is made in it has its group, and directories the bit too.
    let inherits = parent.mode & 0o2000 != 0;
    let mut mode = creation.mode & 0o7777;
    let gid = if inherits { parent.gid } else { user.gid };
    if creation.kind == InodeKind::Directory {
        mode |= parent.mode & 0o2000;
    } else if !user.is_root() && !user.is_in(gid) {
        mode &= !0o2000;
    }
    Initial {
        mode,
        uid: user.uid,
        gid,
        time: now,
        layout: creation.layout.unwrap_or(parent.layout),
        target: creation.target.clone(),
        quota: parent.tree,
    }
}

pub(crate) fn check_creation(creation: &Creation) -> Result<()> {
    match &creation.kind {
        InodeKind::Symlink if creation.target.is_empty() => Err(Error::NotFound),
        InodeKind::Symlink if creation.target.len() > TARGET_BYTES_MAX => Err(Error::NameTooLong),
        InodeKind::Symlink if creation.target.contains(&0) => {
            Err(Error::Invalid("the target has a zero byte in it".into()))
        }
        InodeKind::Symlink => Ok(()),
        InodeKind::Typed(name) if name.is_empty() || name.len() > TYPE_BYTES_MAX => {
            Err(Error::Invalid("the name of the inode type is empty or too long".into()))
        }
        InodeKind::Typed(name) if KINDS.contains(&name.as_str()) => {
            Err(Error::Invalid("the name of the inode type is that of a kind of inode".into()))
        }
        InodeKind::Typed(name) if name == SEQUENCER => match sequencer_policy(&creation.target) {
            None | Some(Policy::Quota { operations: 0, .. }) => {
                Err(Error::Invalid("the sequencer's policy is none".into()))
            }
            Some(_) => Ok(()),
        },
        _ if !creation.target.is_empty() => Err(Error::Invalid("only a symbolic link has a target".into())),
        _ if creation.layout.is_some_and(|layout| !layout.is_sound()) => {
            Err(Error::Invalid("the layout cannot be".into()))
        }
        _ => Ok(()),
    }
}

/// Checks that a user may remove an entry of a directory: in one with the sticky bit only its owner and the entry's may.
fn check_removal(user: &Credentials, directory: &Inode, inode: &Inode) -> Result<()> {
    user.check(directory, WRITE)?;
    let sticky = directory.mode & 0o1000 != 0;
    match !sticky || user.owns(directory) || user.owns(inode) {
        true => Ok(()),
        false => Err(Error::NotPermitted),
    }
}
