//! One side of a copy: a file system of this machine, or the namespace of a store.

use std::ffi::{CStr, CString};

use bytes::Bytes;
use nacre_tree::Cause;
use nacre_tree::copy::attributes::Attributes;
use nacre_walk::{FileKind, Metadata};

/// The number of entries of a directory that are listed together.
pub const PAGE_ENTRIES: usize = 512;

/// An entry of a directory.
pub struct Item {
    pub name: CString,
    /// The metadata, where it came with the list.
    pub metadata: Option<Box<Metadata>>,
}

/// A page of a directory.
pub struct Page<Cursor> {
    pub items: Vec<Item>,
    /// Names that lead elsewhere, each with what is wrong with it.
    pub refused: Vec<(Vec<u8>, Cause)>,
    /// The place at which the next page begins, if there is one.
    pub next: Option<Cursor>,
}

/// A side of a copy. Entries are named in their open directory, and links are never followed.
pub trait Side {
    /// An open directory.
    type Directory: Clone;
    /// A position in a directory.
    type Cursor;
    /// A file that further names are to be given to.
    type Kept: Clone;
    /// A file that is read.
    type Reader<'a>: Reader
    where
        Self: 'a;
    /// A file that is written.
    type Writer<'a>: Writer
    where
        Self: 'a;

    /// Returns the metadata of an entry; `None` if there is none.
    async fn look(&self, directory: &Self::Directory, name: &CStr) -> Result<Option<Metadata>, Cause>;

    /// Lists a page of a directory.
    async fn list(
        &self,
        directory: &Self::Directory,
        cursor: Option<Self::Cursor>,
    ) -> Result<Page<Self::Cursor>, Cause>;

    /// Opens a directory.
    async fn enter(&self, directory: &Self::Directory, name: &CStr) -> Result<Self::Directory, Cause>;

    /// Returns the target of a symbolic link.
    async fn target(&self, directory: &Self::Directory, name: &CStr) -> Result<Vec<u8>, Cause>;

    /// Returns the extended attributes that are kept of an entry.
    async fn extended(&self, directory: &Self::Directory, name: &CStr) -> Result<Attributes, Cause>;

    /// Opens a file to be read. Returns its metadata as it was then.
    async fn read(
        &self,
        directory: &Self::Directory,
        name: &CStr,
    ) -> Result<(Self::Reader<'_>, Metadata), Cause>;

    /// Makes a directory, for its owner alone.
    async fn make_directory(
        &self,
        directory: &Self::Directory,
        name: &CStr,
    ) -> Result<Self::Directory, Cause>;

    /// Makes a symbolic link, or a pipe.
    async fn make(
        &self,
        directory: &Self::Directory,
        name: &CStr,
        kind: FileKind,
        target: &[u8],
    ) -> Result<(), Cause>;

    /// Begins to write a file. It gets its name when it is complete, in place of `before`, which is no directory.
    async fn write(
        &self,
        directory: &Self::Directory,
        name: &CStr,
        before: Option<&Metadata>,
    ) -> Result<Self::Writer<'_>, Cause>;

    /// Gives an entry the metadata of its source.
    async fn keep(
        &self,
        directory: &Self::Directory,
        name: &CStr,
        metadata: &Metadata,
        extended: &Attributes,
    ) -> Result<(), Cause>;

    /// Removes an entry that is no directory.
    async fn remove(&self, directory: &Self::Directory, name: &CStr) -> Result<(), Cause>;

    /// Returns what further names can be given to. `path` is the file's, below the directory in which the copy is made.
    async fn kept(
        &self,
        directory: &Self::Directory,
        name: &CStr,
        path: Vec<u8>,
    ) -> Result<Self::Kept, Cause>;

    /// Returns whether an entry is a name of a file.
    fn is_kept(&self, kept: &Self::Kept, there: &Metadata) -> bool;

    /// Gives a file a further name. `top` is the directory in which the copy is made.
    async fn link(
        &self,
        top: &Self::Directory,
        kept: &Self::Kept,
        directory: &Self::Directory,
        name: &CStr,
    ) -> Result<(), Cause>;

    /// Returns whether nothing can be done any more.
    fn is_lost(&self) -> bool {
        false
    }
}

/// A file that is read.
pub trait Reader {
    /// Reads the next bytes; none at the end.
    async fn next(&mut self) -> Result<Bytes, Cause>;

    /// Closes it.
    async fn end(self);
}

/// A file that is written.
pub trait Writer {
    /// Writes the next bytes.
    async fn write(&mut self, bytes: &[u8]) -> Result<(), Cause>;

    /// Gives the file its metadata and its name.
    async fn commit(self, metadata: &Metadata, extended: &Attributes) -> Result<(), Cause>;

    /// Removes what was written. Returns an addition to the sentence about the failure if some of it may be left.
    async fn abort(self) -> Option<&'static str>;
}
