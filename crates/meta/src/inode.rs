//! Inodes: what the namespace names, and the bytes of their records.
//!
//! Each inode is an object of its own, with its record under the key [`RECORD`]. An inode of a program's own type
//! ([`InodeKind::Typed`], such as a sequencer) keeps its state, which the namespace does not look into, in an object beside it
//! ([`Ino::state_object`]), which is made with the first change by a method (Sevilla et al., *Malacology*, section
//! 5.2.1). It is not in the inode, because whoever changes the state has a fence of its own: changes of the state by a
//! metadata rank and changes of names and permissions do not refuse each other.

use std::fmt;

use bytes::Bytes;
pub use nacre_object::stripe::Layout;
use nacre_object::{Key, ObjectId, StoreError};

use crate::codec::{Reader, Writer};

/// The beginning of the names of all objects of the namespace.
pub const PREFIX: &str = "nacre/fs/";
/// The key of an inode's record.
pub const RECORD: &[u8] = b"a";
/// The beginning of the names of objects that hold the states of inodes of programs' own types.
pub const STATE_PREFIX: &str = "nacre/fs/s/";
/// The inode type whose methods the metadata rank has built in: a sequencer.
pub const SEQUENCER: &str = "sequencer";
/// The maximum length of the name of an inode type, in bytes.
pub const TYPE_BYTES_MAX: usize = 64;
/// The maximum number of hard links to a file.
pub const LINKS_MAX: usize = 4096;
/// The maximum length of a symbolic link's target, in bytes.
pub const TARGET_BYTES_MAX: usize = 4095;
/// The maximum number of contents that a file has at a time: the present one, those that are being put, and those that
/// are being removed.
pub const CONTENTS_MAX: usize = 16;

/// The version of the format of records.
const FORMAT: u8 = 1;
/// The version of those that have to do with quotas, or of directories that are split.
const FORMAT_EXTENDED: u8 = 2;

/// The number of an inode. No number is ever given twice in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory.
    pub const ROOT: Ino = Ino(1);

    /// Returns the object of the inode.
    pub fn object(self) -> ObjectId {
        object(format!("{PREFIX}i/{self}"))
    }

    /// Returns the inode that an object is; `None` if it is none.
    pub(crate) fn of_object(object: &ObjectId) -> Option<Ino> {
        let number = object.as_bytes().strip_prefix(PREFIX.as_bytes())?.strip_prefix(b"i/")?;
        Some(Ino(u64::from_str_radix(std::str::from_utf8(number).ok()?, 16).ok()?))
    }

    /// Returns the object that holds the state of an inode of a program's own type.
    pub fn state_object(self) -> ObjectId {
        object(format!("{STATE_PREFIX}{self}"))
    }

    /// Returns the inode whose state an object holds; `None` if it holds none.
    pub fn of_state_object(object: &ObjectId) -> Option<Ino> {
        let number = std::str::from_utf8(object.as_bytes().strip_prefix(STATE_PREFIX.as_bytes())?).ok()?;
        let ino = Ino(u64::from_str_radix(number, 16).ok()?);
        // There is one spelling of a number.
        (ino.state_object() == *object).then_some(ino)
    }

    /// Returns the object that holds a part of a file's content: the `index`th of content number `content`.
    pub fn data_object(self, content: u64, index: u64) -> ObjectId {
        object(format!("{PREFIX}d/{self}/{content:x}/{index:x}"))
    }
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Returns an object's id, given a name of the crate's own.
pub(crate) fn object(name: String) -> ObjectId {
    ObjectId::new(name).expect("all names of the namespace's objects are short")
}

/// Returns one of the crate's own keys, which are neither empty nor long. It costs no copy.
pub(crate) fn key(bytes: &'static [u8]) -> Key {
    key_of(Bytes::from_static(bytes))
}

/// Returns a key that was put together from one of the crate's own and a number or a name that is not long.
pub(crate) fn key_of(bytes: impl Into<Bytes>) -> Key {
    Key::new(bytes).expect("all keys of the namespace are short")
}

/// The kind of an inode.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum InodeKind {
    /// A stream of bytes.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe, which means something to the mount only.
    Fifo,
    /// A socket, which means something to the mount only.
    Socket,
    /// An inode whose state and methods a program defines, with the name of its type, such as `sequencer`.
    Typed(String),
}

impl InodeKind {
    /// Returns the kind's name for people.
    pub fn name(&self) -> &str {
        match self {
            InodeKind::File => "file",
            InodeKind::Directory => "directory",
            InodeKind::Symlink => "symlink",
            InodeKind::Fifo => "fifo",
            InodeKind::Socket => "socket",
            InodeKind::Typed(name) => name,
        }
    }

    pub(crate) fn encode(&self, out: &mut Writer) {
        match self {
            InodeKind::File => out.u8(1),
            InodeKind::Directory => out.u8(2),
            InodeKind::Symlink => out.u8(3),
            InodeKind::Fifo => out.u8(4),
            InodeKind::Socket => out.u8(5),
            InodeKind::Typed(name) => out.u8(6).bytes(name.as_bytes()),
        };
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<InodeKind, StoreError> {
        Ok(match reader.u8()? {
            1 => InodeKind::File,
            2 => InodeKind::Directory,
            3 => InodeKind::Symlink,
            4 => InodeKind::Fifo,
            5 => InodeKind::Socket,
            6 => InodeKind::Typed(reader.text(TYPE_BYTES_MAX)?),
            other => return Err(reader.wrong(format_args!("there is no kind of inode {other}"))),
        })
    }
}

pub(crate) fn encode_layout(layout: &Layout, out: &mut Writer) {
    out.u32(layout.unit_bytes).u32(layout.width).u64(layout.object_bytes);
}

pub(crate) fn decode_layout(reader: &mut Reader<'_>) -> Result<Layout, StoreError> {
    let layout = Layout { unit_bytes: reader.u32()?, width: reader.u32()?, object_bytes: reader.u64()? };
    match layout.is_sound() {
        true => Ok(layout),
        false => Err(reader.wrong("its layout cannot be")),
    }
}

/// One content of a file, in objects of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Content {
    /// Its number, which no other content of the file ever has.
    pub number: u64,
    /// The number of objects, from the first one on, that may exist.
    pub objects: u64,
    /// True if its objects are to be removed: it was the present content, or was not put to its end.
    pub dead: bool,
}

/// The record of an inode. Times are in nanoseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Inode {
    /// The kind.
    pub kind: InodeKind,
    /// The permission bits, at most `0o7777`.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The time of the last access, as far as it is kept.
    pub atime: i64,
    /// The time of the last change of the content.
    pub mtime: i64,
    /// The time of the last change of the inode.
    pub ctime: i64,
    /// The time at which the inode was made.
    pub btime: i64,
    /// The ids of the links to the inode. Each is unique, so that removing one again changes nothing.
    pub links: Vec<u64>,
    /// The size of a file in bytes.
    pub size: u64,
    /// The layout of a file, or the one that the files in a directory inherit.
    pub layout: Layout,
    /// The number of the present content of a file; 0 while it has none.
    pub content: u64,
    /// All contents of a file of which objects may exist.
    pub contents: Vec<Content>,
    /// The directory that a directory is in; the root is in itself.
    pub parent: Ino,
    /// The target of a symbolic link; of a sequencer the policy that it was made with.
    pub target: Bytes,
    /// The quota that the inode is counted in; 0: none.
    pub quota: u64,
    /// The quota of what is made in a directory; 0: none. It is another one than `quota` if the directory is the root of a quota.
    pub tree: u64,
    /// True if entries of the directory are in other objects too, or are being moved there.
    pub is_split: bool,
}

impl Inode {
    /// Returns whether the record needs the extended format. All others are written in the one that every program can read.
    fn is_extended(&self) -> bool {
        self.quota != 0 || self.tree != 0 || self.is_split
    }

    /// Returns whether the inode is a directory with a quota of its own.
    pub fn is_quota_root(&self) -> bool {
        self.tree != self.quota && self.kind == InodeKind::Directory
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        let mut out = Writer::begin(if self.is_extended() { FORMAT_EXTENDED } else { FORMAT });
        self.kind.encode(&mut out);
        out.u32(self.mode).u32(self.uid).u32(self.gid);
        out.i64(self.atime).i64(self.mtime).i64(self.ctime).i64(self.btime);
        out.count(self.links.len());
        for link in &self.links {
            out.u64(*link);
        }
        out.u64(self.size);
        encode_layout(&self.layout, &mut out);
        out.u64(self.content).count(self.contents.len());
        for content in &self.contents {
            out.u64(content.number).u64(content.objects).flag(content.dead);
        }
        out.u64(self.parent.0).bytes(&self.target);
        if self.is_extended() {
            out.u64(self.quota).u64(self.tree).flag(self.is_split);
        }
        out.finish()
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are not a record.
    pub fn decode(bytes: &[u8]) -> Result<Inode, StoreError> {
        let (mut reader, format) = Reader::begin_up_to("the record of an inode", FORMAT_EXTENDED, bytes)?;
        let kind = InodeKind::decode(&mut reader)?;
        let (mode, uid, gid) = (reader.u32()?, reader.u32()?, reader.u32()?);
        if mode > 0o7777 {
            return Err(reader.wrong(format_args!("its permissions are {mode:o}")));
        }
        let (atime, mtime) = (reader.i64()?, reader.i64()?);
        let (ctime, btime) = (reader.i64()?, reader.i64()?);
        let count = reader.count(LINKS_MAX)?;
        let mut links = Vec::with_capacity(count);
        for _ in 0..count {
            links.push(reader.u64()?);
        }
        let size = reader.u64()?;
        let layout = decode_layout(&mut reader)?;
        let content = reader.u64()?;
        let count = reader.count(CONTENTS_MAX)?;
        let mut contents = Vec::with_capacity(count);
        for _ in 0..count {
            contents.push(Content { number: reader.u64()?, objects: reader.u64()?, dead: reader.flag()? });
        }
        let parent = Ino(reader.u64()?);
        let target = reader.bytes(TARGET_BYTES_MAX)?;
        let (quota, tree, is_split) = match format {
            FORMAT => (0, 0, false),
            _ => (reader.u64()?, reader.u64()?, reader.flag()?),
        };
        if format == FORMAT_EXTENDED && quota == 0 && tree == 0 && !is_split {
            return Err(reader.wrong("it has the extended format, and nothing that needs it"));
        }
        reader.end()?;
        Ok(Inode {
            kind,
            mode,
            uid,
            gid,
            atime,
            mtime,
            ctime,
            btime,
            links,
            size,
            layout,
            content,
            contents,
            parent,
            target,
            quota,
            tree,
            is_split,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Inode {
        Inode {
            kind: InodeKind::Typed("sequencer".to_owned()),
            mode: 0o644,
            uid: 1000,
            gid: 100,
            atime: -1,
            mtime: 2,
            ctime: 3,
            btime: 4,
            links: vec![7, 9],
            size: 10,
            layout: Layout::default(),
            content: 3,
            contents: vec![Content { number: 3, objects: 2, dead: true }],
            parent: Ino::ROOT,
            target: Bytes::from_static(b"over/there"),
            quota: 0,
            tree: 0,
            is_split: false,
        }
    }

    #[test]
    fn a_record_decodes_to_itself_and_no_part_of_it_decodes() {
        let bytes = record().encode();
        assert_eq!(Inode::decode(&bytes).unwrap(), record());
        for end in 0..bytes.len() {
            assert!(Inode::decode(&bytes[..end]).is_err(), "{end} bytes");
        }
        assert!(Inode::decode(&[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn only_a_record_that_needs_it_has_the_extended_format() {
        assert_eq!(record().encode()[0], 1);
        for extended in [
            Inode { quota: 5, ..record() },
            Inode { tree: 6, ..record() },
            Inode { is_split: true, ..record() },
            Inode { quota: 5, tree: 5, ..record() },
        ] {
            let bytes = extended.encode();
            assert_eq!((bytes[0], Inode::decode(&bytes).unwrap()), (2, extended));
            assert!(Inode::decode(&bytes[..bytes.len() - 1]).is_err());
        }
        let mut plain = [&record().encode()[..], &[0; 17]].concat();
        plain[0] = 2;
        assert!(Inode::decode(&plain).is_err());
        // What follows is the same in both formats.
        let (plain, split) = (record().encode(), Inode { is_split: true, ..record() }.encode());
        assert_eq!(plain[1..], split[1..plain.len()]);
    }

    #[test]
    fn a_record_has_the_bytes_that_are_written_down() {
        let hex: String = record().encode().iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = concat!(
            "01",
            "06",
            "09000000",
            "73657175656e636572",
            "a4010000",
            "e8030000",
            "64000000",
            "ffffffffffffffff",
            "0200000000000000",
            "0300000000000000",
            "0400000000000000",
            "02000000",
            "0700000000000000",
            "0900000000000000",
            "0a00000000000000",
            "00001000",
            "04000000",
            "0000000400000000",
            "0300000000000000",
            "01000000",
            "0300000000000000",
            "0200000000000000",
            "01",
            "0100000000000000",
            "0a000000",
            "6f7665722f7468657265",
        );
        assert_eq!(hex, expected);
    }
}
