//! Calls on the namespace: look-ups and changes of entries, for a user.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use nacre_object::{Answer, Escaped, Guard, KeyRange, ReadOp, Transaction, WriteOp};

use crate::attribute::Attributes;
use crate::capability::Policy;
use crate::credentials::{Credentials, EXECUTE, READ, WRITE};
use crate::directory::{
    CHANGED, Entry, Initial, NAME_BYTES_MAX, check_name, encode_time, entry_key, gone_key, gone_link,
};
use crate::error::{Error, Result};
use crate::inode::{
    Ino, Inode, InodeKind, LINKS_MAX, Layout, RECORD, SEQUENCER, TARGET_BYTES_MAX, TYPE_BYTES_MAX, key,
};
use crate::intent::{Part, Target};
use crate::rank::{
    ATTEMPTS_MAX, Loaded, LookupResult, Rank, at_version, corrupt, namespace_object, nonsense, too_busy,
    unclaimed, versioned,
};

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
    /// The entry, with the version of its key.
    pub entry: Option<(Entry, u64)>,
}

impl LookedUpEntry {
    fn entry_version(&self) -> u64 {
        self.entry.as_ref().map_or(0, |(_, version)| *version)
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
        match self.find(directory, vec![ReadOp::versioned_key(entry_key(name))]).await? {
            LookupResult::Found(directory, answers) => {
                if directory.inode.kind != InodeKind::Directory {
                    return Err(Error::NotDirectory);
                }
                let entry = match versioned(answers.first())? {
                    Some(entry) => Some((Entry::decode(&entry.value)?, entry.version)),
                    None => None,
                };
                Ok(LookedUpEntry { directory: *directory, entry })
            }
            LookupResult::Missing(_) => Err(Error::NotFound),
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
        inode.map(|inode| Attributes::of(&inode)).ok_or(Error::NotFound)
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
    /// [`PAGE_ENTRIES_MAX`]. With `attributes`, an entry whose inode was removed while the page was read is left out.
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
        let limit = limit.clamp(1, PAGE_ENTRIES_MAX) as u32;
        // No name is longer, so what is greater than the beginning of that length is greater than all of it.
        let after = &after[..after.len().min(NAME_BYTES_MAX)];
        let mut after = (!after.is_empty()).then(|| entry_key(after).to_bytes());
        loop {
            let range = KeyRange { after, ..KeyRange::prefix(&b"e"[..]) };
            let found = self.find(directory, vec![ReadOp::Keys { range, limit, values: true }]).await?;
            let LookupResult::Found(loaded, answers) = found else { return Err(Error::NotFound) };
            if loaded.inode.kind != InodeKind::Directory {
                return Err(Error::NotDirectory);
            }
            user.check(&loaded.inode, READ)?;
            let Some(Answer::Keys(page)) = answers.first() else { return Err(nonsense()) };
            let mut entries = Vec::with_capacity(page.entries.len());
            for (key, value) in &page.entries {
                let entry = Entry::decode(value)?;
                let name = key.to_bytes().slice(1..);
                entries.push((name, entry));
            }
            let listed = |name, entry: &Entry, attributes| Listed {
                name,
                ino: entry.ino,
                kind: entry.kind.clone(),
                attributes,
            };
            if !attributes {
                let entries = entries.into_iter().map(|(name, entry)| listed(name, &entry, None)).collect();
                return Ok(Page { entries, more: page.more });
            }
            user.check(&loaded.inode, EXECUTE)?;
            let inodes = entries.into_iter().map(async |(name, entry)| {
                let inode = self.load_entry(directory, &entry).await?;
                Ok::<_, Error>(inode.map(|inode| listed(name, &entry, Some(Attributes::of(&inode)))))
            });
            let inodes: Vec<Option<Listed>> = stream::iter(inodes).buffered(READS_MAX).try_collect().await?;
            let entries: Vec<Listed> = inodes.into_iter().flatten().collect();
            after = page.entries.last().map(|(key, _)| key.to_bytes()).filter(|_| page.more);
            // A page without entries would be taken for the last one.
            if !entries.is_empty() || after.is_none() {
                return Ok(Page { entries, more: page.more });
            }
        }
    }

    /// Makes an inode, and an entry for it.
    ///
    /// One transaction on the directory does it: the entry says what the inode is to be, and whoever finds the entry
    /// without the inode makes that. It is made at once here, but nothing depends on it.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::Denied`], [`Error::NotDirectory`], [`Error::NotFound`] if the directory was removed.
    pub async fn create(
        &self,
        user: &Credentials,
        directory: Ino,
        name: &[u8],
        creation: Creation,
    ) -> Result<Attributes> {
        check_creation(&creation)?;
        for _ in 0..ATTEMPTS_MAX {
            let looked = self.look(directory, name).await?;
            let parent = &looked.directory.inode;
            user.check(parent, EXECUTE)?;
            if looked.entry.is_some() {
                return Err(Error::Exists);
            }
            user.check(parent, WRITE)?;
            let number = self.next_id().await?;
            let now = self.now();
            let initial = initial(user, parent, &creation, now);
            let entry =
                Entry { ino: Ino(number), link: number, kind: creation.kind.clone(), initial: Some(initial) };
            let transaction = Transaction::new()
                .guard(at_version(key(RECORD), looked.directory.record))
                .guard(at_version(entry_key(name), 0))
                .guard(unclaimed())
                .change(WriteOp::SetKey { key: entry_key(name), value: entry.encode() })
                .change(WriteOp::SetKey { key: key(CHANGED), value: encode_time(now) });
            if self.change(&directory.object(), transaction).await?
                && let Some(inode) = entry.first_record(directory)
            {
                let created = self.create_inode(entry.ino, &inode).await;
                if let Err(error) = created {
                    // The entry stands, and the inode is made by whoever needs it.
                    tracing::debug!(%error, "an inode is left to be made later");
                }
                let loaded = Loaded { ino: entry.ino, inode, record: 0, moves: 0, version: 0 };
                return Ok(Attributes::of(&loaded));
            }
        }
        Err(too_busy())
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
            let loaded = self.load(ino).await?;
            let mut inode = loaded.inode.clone();
            match inode.kind {
                InodeKind::Directory => return Err(Error::NotPermitted),
                _ if inode.links.is_empty() => return Err(Error::NotFound),
                _ if inode.links.len() >= LINKS_MAX => return Err(Error::TooManyLinks),
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
                Part::new(Target::Inode(directory), looked.directory.moves)
                    .at(key(RECORD), looked.directory.record)
                    .at(entry_key(name), 0)
                    .set(entry_key(name), Some(entry.encode()))
                    .set(key(CHANGED), Some(encode_time(now))),
            ];
            if self.execute(parts).await? {
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
            let (Some((entry, version)), Some(inode)) = (&looked.entry, inode) else {
                return Err(Error::NotFound);
            };
            check_removal(user, &looked.directory.inode, &inode.inode)?;
            if entry.kind == InodeKind::Directory {
                return Err(Error::IsDirectory);
            }
            self.begin_removal(directory).await?;
            let transaction = Transaction::new()
                .guard(at_version(key(RECORD), looked.directory.record))
                .guard(at_version(entry_key(name), *version))
                .guard(unclaimed())
                .change(WriteOp::RemoveKey { key: entry_key(name) })
                .change(WriteOp::SetKey { key: gone_key(entry.link), value: gone_value(entry.ino) })
                .change(WriteOp::SetKey { key: key(CHANGED), value: encode_time(self.now()) });
            let done = self.change(&directory.object(), transaction).await;
            if matches!(done, Ok(false)) {
                self.end_removal();
                continue;
            }
            done?;
            self.removed(directory, entry.link, entry.ino).await;
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
            let (Some((entry, version)), Some(inode)) = (&looked.entry, inode) else {
                return Err(Error::NotFound);
            };
            check_removal(user, &looked.directory.inode, &inode.inode)?;
            if entry.kind != InodeKind::Directory {
                return Err(Error::NotDirectory);
            }
            let Some(part) = self.removal_of_directory(entry.ino).await? else { continue };
            let parts = vec![
                part,
                Part::new(Target::Inode(directory), looked.directory.moves)
                    .at(key(RECORD), looked.directory.record)
                    .at(entry_key(name), *version)
                    .set(entry_key(name), None)
                    .set(key(CHANGED), Some(encode_time(self.now()))),
            ];
            if self.execute(parts).await? {
                self.forget(&directory_note(entry.ino), None).await;
                return Ok(());
            }
        }
        Err(too_busy())
    }

    /// Returns the part of an intent that removes an empty directory; `None` if it was removed meanwhile.
    async fn removal_of_directory(&self, ino: Ino) -> Result<Option<Part>> {
        for _ in 0..ATTEMPTS_MAX {
            let keys = |prefix: &'static [u8]| ReadOp::Keys {
                range: KeyRange::prefix(prefix),
                limit: 1,
                values: false,
            };
            let found = self.find(ino, vec![keys(b"e"), keys(b"g")]).await?;
            let LookupResult::Found(loaded, answers) = found else { return Ok(None) };
            let [Answer::Keys(entries), Answer::Keys(gone)] = &answers[..] else { return Err(nonsense()) };
            if !entries.entries.is_empty() {
                return Err(Error::NotEmpty);
            }
            if !gone.entries.is_empty() {
                // They would be lost with the directory.
                self.reap_directory(ino, true).await?;
                continue;
            }
            let part = Part::new(Target::Inode(ino), loaded.moves);
            return Ok(Some(Part { version: Some(loaded.version), remove: true, ..part }));
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
    /// into itself.
    pub async fn rename(
        &self,
        user: &Credentials,
        (from, from_name): (Ino, &[u8]),
        (to, to_name): (Ino, &[u8]),
        keep: bool,
    ) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let (source, moved) = self.look_up(from, from_name).await?;
            user.check(&source.directory.inode, EXECUTE)?;
            let (Some((entry, version)), Some(moved)) = (&source.entry, moved) else {
                return Err(Error::NotFound);
            };
            let (destination, victim) = self.look_up(to, to_name).await?;
            user.check(&destination.directory.inode, EXECUTE)?;
            check_removal(user, &source.directory.inode, &moved.inode)?;
            user.check(&destination.directory.inode, WRITE)?;
            let is_directory = entry.kind == InodeKind::Directory;
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
                    match self.look(from, from_name).await?.entry_version() {
                        now if now == *version => return Ok(()),
                        _ => continue,
                    }
                }
                check_removal(user, &destination.directory.inode, &victim.inode)?;
                match (is_directory, there.kind == InodeKind::Directory) {
                    (true, false) => return Err(Error::NotDirectory),
                    (false, true) => return Err(Error::IsDirectory),
                    _ => {}
                }
            }
            let now = encode_time(self.now());
            let to_version = destination.entry_version();
            let victim = destination.entry.as_ref().map(|(there, _)| there);
            let gone = victim.filter(|there| there.kind != InodeKind::Directory);
            if gone.is_some() {
                self.begin_removal(to).await?;
            }
            let done = if from == to && (victim.is_none() || gone.is_some()) {
                let mut transaction = Transaction::new()
                    .guard(at_version(key(RECORD), source.directory.record))
                    .guard(at_version(entry_key(from_name), *version))
                    .guard(at_version(entry_key(to_name), to_version))
                    .guard(unclaimed())
                    .change(WriteOp::RemoveKey { key: entry_key(from_name) })
                    .change(WriteOp::SetKey { key: entry_key(to_name), value: entry.moved().encode() })
                    .change(WriteOp::SetKey { key: key(CHANGED), value: now });
                if let Some(gone) = gone {
                    let value = gone_value(gone.ino);
                    transaction = transaction.change(WriteOp::SetKey { key: gone_key(gone.link), value });
                }
                self.change(&from.object(), transaction).await
            } else {
                let mut parts = Vec::new();
                let mut source_part = Part::new(Target::Inode(from), source.directory.moves)
                    .at(key(RECORD), source.directory.record)
                    .at(entry_key(from_name), *version)
                    .set(entry_key(from_name), None)
                    .set(key(CHANGED), Some(now.clone()));
                let add = |part: Part| {
                    let part = part
                        .at(entry_key(to_name), to_version)
                        .set(entry_key(to_name), Some(entry.moved().encode()));
                    match gone {
                        Some(gone) => part.set(gone_key(gone.link), Some(gone_value(gone.ino))),
                        None => part,
                    }
                };
                if from == to {
                    source_part = add(source_part);
                } else {
                    let part = Part::new(Target::Inode(to), destination.directory.moves)
                        .at(key(RECORD), destination.directory.record)
                        .set(key(CHANGED), Some(now));
                    parts.push(add(part));
                }
                parts.push(source_part);
                if let Some(victim) = victim.filter(|_| gone.is_none()) {
                    let Some(part) = self.removal_of_directory(victim.ino).await? else { continue };
                    parts.push(part);
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
            match (done, gone) {
                (Ok(true), Some(gone)) => self.removed(to, gone.link, gone.ino).await,
                (Ok(true), None) => {}
                (Ok(false), gone) => {
                    if gone.is_some() {
                        self.end_removal();
                    }
                    continue;
                }
                (Err(error), _) => return Err(error),
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

    /// Makes sure that a link that is going to leave a directory is found by others, should this rank go away before it
    /// has left its inode too.
    async fn begin_removal(&self, directory: Ino) -> Result<()> {
        self.note(directory_note(directory), Bytes::new()).await?;
        self.unfinished.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn end_removal(&self) {
        self.unfinished.fetch_sub(1, Ordering::Relaxed);
    }

    /// Finishes the removal of a link that has left its directory, unless the file is open.
    async fn removed(&self, directory: Ino, link: u64, ino: Ino) {
        if let Some(open) = self.open.lock().get_mut(&ino) {
            open.gone.push((directory, link));
            return;
        }
        match self.reap(directory, link, ino).await {
            Ok(()) => self.end_removal(),
            // The entry is gone, so the call has succeeded; what is left is found by the log.
            Err(error) => {
                tracing::debug!(%error, "a removed file is left to be removed from the store later")
            }
        }
    }

    /// Checks that a user has all of the `wanted` rights ([`READ`], [`WRITE`], [`EXECUTE`]) to an inode.
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
        for (directory, link) in gone {
            self.removed(directory, link, ino).await;
        }
    }

    /// Removes a link that has left its directory from its inode, the inode with its last link, and then the trace that
    /// the link left in the directory. Any rank may do so at any time, and again.
    pub(crate) async fn reap(&self, directory: Ino, link: u64, ino: Ino) -> Result<()> {
        self.drop_link(ino, link).await?;
        self.remove_trace(directory, link).await?;
        self.forget(&link_note(ino, link), None).await;
        Ok(())
    }

    /// Reaps all links that have left a directory; those of files that are open here only if `open` too.
    pub(crate) async fn reap_directory(&self, directory: Ino, open: bool) -> Result<u64> {
        let mut reaped = 0;
        let mut after = None;
        loop {
            let range = KeyRange { after, ..KeyRange::prefix(&b"g"[..]) };
            let keys = ReadOp::Keys { range, limit: PAGE_ENTRIES_MAX as u32, values: true };
            let done = self.read(&directory.object(), vec![keys]).await?;
            let Some(Answer::Keys(page)) = done.answers.first() else { return Err(nonsense()) };
            for (key, value) in &page.entries {
                let link = gone_link(key).ok_or_else(nonsense)?;
                let ino = Ino(u64::from_le_bytes(value[..].try_into().map_err(|_| nonsense())?));
                let is_open = self.open.lock().contains_key(&ino);
                if is_open && !open {
                    continue;
                }
                if !is_open || !self.keep_open(directory, link, ino).await? {
                    self.reap(directory, link, ino).await?;
                }
                reaped += 1;
            }
            after = page.entries.last().map(|(key, _)| key.to_bytes()).filter(|_| page.more);
            if after.is_none() {
                return Ok(reaped);
            }
        }
    }

    /// Keeps a file that is open here although its directory goes, and the trace of its link with it: from now on the
    /// log alone tells others of the link. Returns false if the file is not open any more.
    async fn keep_open(&self, directory: Ino, link: u64, ino: Ino) -> Result<bool> {
        self.note(link_note(ino, link), Bytes::new()).await?;
        if let Some(open) = self.open.lock().get_mut(&ino) {
            if !open.gone.contains(&(directory, link)) {
                open.gone.push((directory, link));
                self.unfinished.fetch_add(1, Ordering::Relaxed);
            }
        } else {
            return Ok(false);
        }
        self.remove_trace(directory, link).await.map(|()| true)
    }

    async fn remove_trace(&self, directory: Ino, link: u64) -> Result<()> {
        let transaction =
            Transaction::new().guard(Guard::Exists).change(WriteOp::RemoveKey { key: gone_key(link) });
        self.change(&directory.object(), transaction).await.map(|_| ())
    }

    pub(crate) async fn drop_link(&self, ino: Ino, link: u64) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            match self.find(ino, Vec::new()).await? {
                // It was never made, and must not be made any more.
                LookupResult::Missing(0) => {
                    let transaction = Transaction::new()
                        .guard(Guard::Version { version: 0 })
                        .change(WriteOp::Create)
                        .change(WriteOp::Remove);
                    if self.change(&ino.object(), transaction).await? {
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
        Ok(removed)
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

fn gone_value(ino: Ino) -> Bytes {
    Bytes::copy_from_slice(&ino.0.to_le_bytes())
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
    }
}

fn check_creation(creation: &Creation) -> Result<()> {
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
