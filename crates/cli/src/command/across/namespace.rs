//! The namespace of a store as a side of a copy.

use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::hash::{DefaultHasher, Hash, Hasher};

use bytes::Bytes;
use nacre::ErrorKind;
use nacre::fs::{
    Attributes as Found, Creation, EXECUTE, Error, Ino, InodeKind, Put, READ, SetAttributes, SetTime,
    check_name,
};
use nacre_tree::Cause;
use nacre_tree::copy::attributes::{Attributes, Preserver, belongs_to_system};
use nacre_walk::{FileKind, Metadata, Time};

use super::side::{Item, PAGE_ENTRIES, Page, Reader, Side, Writer};
use crate::command::fs::{Tree, metadata_of};

/// The number of bytes that are read together.
const READ_BYTES: usize = 4 << 20;

/// The addition to a failure after which parts of a content may be left.
const REMAINS: &str = "parts that it has stored may take space until \"nacre fs check --mend\" removes them";

/// The namespace of a store, for the user who called.
pub struct Namespace<'t> {
    tree: &'t Tree,
    keeper: Preserver,
    extended: bool,
    /// The store cannot be reached any more.
    lost: Cell<bool>,
}

impl<'t> Namespace<'t> {
    /// Creates a side; `extended` keeps extended attributes.
    pub fn new(tree: &'t Tree, extended: bool) -> Namespace<'t> {
        Namespace { tree, keeper: Preserver::new(extended), extended, lost: Cell::new(false) }
    }

    fn cause(&self, error: Error) -> Cause {
        if let Error::Store(failed) = &error
            && matches!(failed.kind, ErrorKind::Unavailable | ErrorKind::Closed)
        {
            self.lost.set(true);
        }
        Cause::Said(error.to_string())
    }

    fn metadata(&self, found: &Found) -> Result<Metadata, Cause> {
        Ok(metadata_of(found, FileKind::Unknown)?)
    }

    /// Finds an entry, or the directory itself under the name `.`.
    async fn find(&self, directory: Ino, name: &CStr) -> Result<Option<Found>, Error> {
        let (rank, user) = (&self.tree.rank, &self.tree.user);
        let found = match name.to_bytes() {
            b"." => rank.stat(directory).await,
            name => rank.lookup(user, directory, name).await,
        };
        match found {
            Err(Error::NotFound) => Ok(None),
            found => found.map(Some),
        }
    }

    async fn found(&self, directory: Ino, name: &CStr) -> Result<Found, Cause> {
        let found = self.find(directory, name).await.and_then(|found| found.ok_or(Error::NotFound));
        found.map_err(|error| self.cause(error))
    }

    /// Returns the extended attributes that are kept.
    async fn attributes(&self, ino: Ino) -> Result<Attributes, Error> {
        let (rank, user) = (&self.tree.rank, &self.tree.user);
        let mut attributes = Attributes::new();
        for name in rank.attributes(user, ino).await? {
            // The store refuses names with zeros.
            let Ok(known) = CString::new(&name[..]) else { continue };
            if belongs_to_system(&known) {
                continue;
            }
            match rank.attribute(user, ino, &name).await {
                Ok(value) => drop(attributes.insert(known, value.to_vec())),
                // It went away meanwhile, or is none that the user may see.
                Err(Error::NoAttribute | Error::NotPermitted) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(attributes)
    }

    /// Gives an inode the extended attributes of its source, and no others that a copy has to have.
    async fn set_extended(&self, found: &Found, wanted: &Attributes) -> Result<(), Error> {
        let (rank, user) = (&self.tree.rank, &self.tree.user);
        let wanted = self.keeper.owed(wanted.clone());
        let mut present = self.keeper.owed(self.attributes(found.ino).await?);
        let missing: Vec<_> =
            wanted.iter().filter(|(name, value)| present.remove(*name).as_ref() != Some(*value)).collect();
        if missing.is_empty() && present.is_empty() {
            return Ok(());
        }
        if !user.is_root() && found.mode & 0o200 == 0 {
            // It gets its mode afterwards.
            let set = SetAttributes { mode: Some(found.mode | 0o200), ..SetAttributes::default() };
            rank.set_attributes(user, found.ino, &set).await?;
        }
        for (name, value) in missing {
            let value = Bytes::copy_from_slice(value);
            rank.set_attribute(user, found.ino, name.to_bytes(), Some(value), None).await?;
        }
        for name in present.keys() {
            rank.set_attribute(user, found.ino, name.to_bytes(), None, None).await?;
        }
        Ok(())
    }

    async fn give(&self, found: &Found, metadata: &Metadata, extended: &Attributes) -> Result<(), Error> {
        let user = &self.tree.user;
        let kept = match self.extended {
            true => self.set_extended(found, extended).await,
            false => Ok(()),
        };
        let group = match user.is_root() || user.is_in(metadata.group()) {
            true => metadata.group(),
            false => found.gid,
        };
        let set = SetAttributes {
            mode: (found.kind != InodeKind::Symlink).then(|| self.keeper.mode(&metadata.0, group)),
            uid: user.is_root().then(|| metadata.user()),
            gid: Some(group),
            atime: Some(SetTime::To(nanoseconds(metadata.accessed()))),
            mtime: Some(SetTime::To(nanoseconds(metadata.modified()))),
            layout: None,
        };
        self.tree.rank.set_attributes(user, found.ino, &set).await?;
        kept
    }
}

/// Returns what a copy is called before it takes the place of what has several names, or is a link. It is the same for the next copy,
/// which removes what a killed one has left, and no other entry of the directory has it.
fn meanwhile(name: &CStr) -> CString {
    let mut hasher = DefaultHasher::new();
    name.to_bytes().hash(&mut hasher);
    CString::new(format!(".nacre-copy-{:016x}", hasher.finish())).unwrap_or_default()
}

fn nanoseconds(time: Time) -> i64 {
    time.seconds.saturating_mul(1_000_000_000).saturating_add(time.nanoseconds.into())
}

impl Side for Namespace<'_> {
    type Directory = Ino;
    type Cursor = Bytes;
    type Kept = Ino;
    type Reader<'a>
        = NamespaceReader<'a>
    where
        Self: 'a;
    type Writer<'a>
        = NamespaceWriter<'a>
    where
        Self: 'a;

    async fn look(&self, directory: &Ino, name: &CStr) -> Result<Option<Metadata>, Cause> {
        let found = self.find(*directory, name).await.map_err(|error| self.cause(error))?;
        found.map(|found| self.metadata(&found)).transpose()
    }

    async fn list(&self, directory: &Ino, cursor: Option<Bytes>) -> Result<Page<Bytes>, Cause> {
        let after = cursor.unwrap_or_default();
        let page = self.tree.rank.readdir(&self.tree.user, *directory, &after, PAGE_ENTRIES, true).await;
        let page = page.map_err(|error| self.cause(error))?;
        let next = page.entries.last().filter(|_| page.more).map(|last| last.name.clone());
        let (mut items, mut refused) = (Vec::new(), Vec::new());
        for listed in page.entries {
            // Whoever writes to the store's objects can make names that lead elsewhere.
            let name = match (check_name(&listed.name), CString::new(&listed.name[..])) {
                (Ok(()), Ok(name)) => name,
                (Err(error), _) => {
                    refused.push((listed.name.to_vec(), Cause::Said(error.to_string())));
                    continue;
                }
                (_, Err(error)) => {
                    refused.push((listed.name.to_vec(), Cause::Said(error.to_string())));
                    continue;
                }
            };
            let metadata = listed.attributes.as_ref().map(|found| self.metadata(found)).transpose()?;
            items.push(Item { name, metadata: metadata.map(Box::new) });
        }
        Ok(Page { items, refused, next })
    }

    async fn enter(&self, directory: &Ino, name: &CStr) -> Result<Ino, Cause> {
        let found = self.found(*directory, name).await?;
        match found.kind {
            InodeKind::Directory => Ok(found.ino),
            _ => Err(self.cause(Error::NotDirectory)),
        }
    }

    async fn target(&self, directory: &Ino, name: &CStr) -> Result<Vec<u8>, Cause> {
        Ok(self.found(*directory, name).await?.target.to_vec())
    }

    async fn extended(&self, directory: &Ino, name: &CStr) -> Result<Attributes, Cause> {
        if !self.extended {
            return Ok(Attributes::new());
        }
        let ino = self.found(*directory, name).await?.ino;
        self.attributes(ino).await.map_err(|error| self.cause(error))
    }

    async fn read(&self, directory: &Ino, name: &CStr) -> Result<(NamespaceReader<'_>, Metadata), Cause> {
        let ino = self.found(*directory, name).await?.ino;
        let opened = self.tree.rank.open_file(&self.tree.user, ino, READ).await;
        let found = opened.map_err(|error| self.cause(error))?;
        let metadata = match self.metadata(&found) {
            Ok(metadata) => metadata,
            Err(cause) => {
                self.tree.rank.close_file(ino).await;
                return Err(cause);
            }
        };
        let reader = NamespaceReader { side: self, ino, content: None, offset: 0, ended: false };
        Ok((reader, metadata))
    }

    async fn make_directory(&self, directory: &Ino, name: &CStr) -> Result<Ino, Cause> {
        let creation = Creation::new(InodeKind::Directory, 0o700);
        let made = self.tree.rank.create(&self.tree.user, *directory, name.to_bytes(), creation).await;
        made.map(|made| made.ino).map_err(|error| self.cause(error))
    }

    async fn make(&self, directory: &Ino, name: &CStr, kind: FileKind, target: &[u8]) -> Result<(), Cause> {
        let creation = match kind {
            FileKind::Link => Creation::symlink(Bytes::copy_from_slice(target)),
            FileKind::Pipe => Creation::new(InodeKind::Fifo, 0o600),
            _ => return Err(Cause::Other("the namespace has no such inodes")),
        };
        let made = self.tree.rank.create(&self.tree.user, *directory, name.to_bytes(), creation).await;
        made.map(|_| ()).map_err(|error| self.cause(error))
    }

    async fn write(
        &self,
        directory: &Ino,
        name: &CStr,
        before: Option<&Metadata>,
    ) -> Result<NamespaceWriter<'_>, Cause> {
        let (rank, user) = (&self.tree.rank, &self.tree.user);
        let mut own = name.to_owned();
        let put = match before {
            // Its content is replaced in one step.
            Some(before) if before.kind() == FileKind::File && before.links() == 1 => {
                rank.put(user, Ino(before.inode())).await
            }
            None => rank.put_new(user, *directory, name.to_bytes(), 0o600).await,
            // Other names, perhaps elsewhere, keep their content, and a link gives way when the content is complete.
            Some(_) => {
                own = meanwhile(name);
                match rank.put_new(user, *directory, own.to_bytes(), 0o600).await {
                    // A copy was killed before it gave the file its name.
                    Err(Error::Exists) => match rank.unlink(user, *directory, own.to_bytes()).await {
                        Ok(()) => rank.put_new(user, *directory, own.to_bytes(), 0o600).await,
                        Err(error) => Err(error),
                    },
                    put => put,
                }
            }
        };
        let put = put.map_err(|error| self.cause(error))?;
        Ok(NamespaceWriter { side: self, put, directory: *directory, name: name.to_owned(), own })
    }

    async fn keep(
        &self,
        directory: &Ino,
        name: &CStr,
        metadata: &Metadata,
        extended: &Attributes,
    ) -> Result<(), Cause> {
        let found = self.found(*directory, name).await?;
        self.give(&found, metadata, extended).await.map_err(|error| self.cause(error))
    }

    async fn remove(&self, directory: &Ino, name: &CStr) -> Result<(), Cause> {
        let removed = self.tree.rank.unlink(&self.tree.user, *directory, name.to_bytes()).await;
        removed.map_err(|error| self.cause(error))
    }

    async fn kept(&self, directory: &Ino, name: &CStr, _: Vec<u8>) -> Result<Ino, Cause> {
        Ok(self.found(*directory, name).await?.ino)
    }

    fn is_kept(&self, kept: &Ino, there: &Metadata) -> bool {
        there.inode() == kept.0
    }

    async fn link(&self, _: &Ino, kept: &Ino, directory: &Ino, name: &CStr) -> Result<(), Cause> {
        let linked = self.tree.rank.link(&self.tree.user, *kept, *directory, name.to_bytes()).await;
        linked.map(|_| ()).map_err(|error| self.cause(error))
    }

    fn is_lost(&self) -> bool {
        self.lost.get()
    }
}

/// A file of the namespace that is read.
pub struct NamespaceReader<'a> {
    side: &'a Namespace<'a>,
    ino: Ino,
    /// The number of the content that is read, so that it is not mixed with one that replaces it meanwhile.
    content: Option<u64>,
    offset: u64,
    ended: bool,
}

impl Reader for NamespaceReader<'_> {
    async fn next(&mut self) -> Result<Bytes, Cause> {
        if self.ended {
            return Ok(Bytes::new());
        }
        let rank = &self.side.tree.rank;
        let read = rank.read_file_content(self.ino, self.content, self.offset, READ_BYTES).await;
        let (content, bytes) = read.map_err(|error| self.side.cause(error))?;
        self.content = Some(content);
        self.offset += bytes.len() as u64;
        // Fewer bytes come only at the file's end.
        self.ended = bytes.len() < READ_BYTES;
        Ok(bytes)
    }

    async fn end(self) {
        self.side.tree.rank.close_file(self.ino).await;
    }
}

/// A file of the namespace that is written.
pub struct NamespaceWriter<'a> {
    side: &'a Namespace<'a>,
    put: Put<'a>,
    directory: Ino,
    /// The name that it gets in the end.
    name: CString,
    /// The name that it gets with its content.
    own: CString,
}

impl Writer for NamespaceWriter<'_> {
    async fn write(&mut self, bytes: &[u8]) -> Result<(), Cause> {
        self.put.write(bytes).await.map_err(|error| self.side.cause(error))
    }

    async fn commit(self, metadata: &Metadata, extended: &Attributes) -> Result<(), Cause> {
        let NamespaceWriter { side, put, directory, name, own } = self;
        let committed = put.commit().await;
        committed.map_err(|error| {
            let remain = matches!(error, Error::Store(_));
            match (side.cause(error), remain) {
                (Cause::Said(text), true) => Cause::Said(format!("{text}; {REMAINS}")),
                (cause, _) => cause,
            }
        })?;
        let kept = side.keep(&directory, &own, metadata, extended).await;
        if own == name {
            return kept;
        }
        let (rank, user) = (&side.tree.rank, &side.tree.user);
        let (from, to) = ((directory, own.to_bytes()), (directory, name.to_bytes()));
        let named = match kept {
            Ok(()) => rank.rename(user, from, to, false).await.map_err(|error| side.cause(error)),
            Err(cause) => Err(cause),
        };
        if named.is_err() && !side.lost.get() {
            // The first failure is the one to report.
            let _ = rank.unlink(user, directory, own.to_bytes()).await;
        }
        named
    }

    async fn abort(self) -> Option<&'static str> {
        self.put.abort().await.is_err().then_some(REMAINS)
    }
}

/// Finds where a copy of `name` is made: in the directory that `path` names, if it can only be one or if the source is none, or else at
/// `path` itself.
pub async fn locate_target(
    tree: &Tree,
    path: &[u8],
    by_name: bool,
    source_is_directory: bool,
) -> Result<Option<Ino>, Error> {
    let found = match tree.rank.resolve(&tree.user, path, by_name).await {
        Err(Error::NotFound) if !by_name => return Ok(None),
        found => found?,
    };
    let is_directory = found.kind == InodeKind::Directory;
    if by_name && !is_directory {
        return Err(Error::NotDirectory);
    }
    if by_name || is_directory && !source_is_directory {
        tree.rank.access(&tree.user, found.ino, EXECUTE).await?;
        return Ok(Some(found.ino));
    }
    Ok(None)
}
