//! Entries of directories, and the keys of an inode's object.
//!
//! | key | value |
//! |---|---|
//! | `a` | the inode's record ([`Inode`]) |
//! | `c` | the intent that has claimed the object, while one has |
//! | `m` | the last intent that claimed the object |
//! | `s` | the state of an inode of a program's own type |
//! | `t` | the time at which a directory's entries last changed |
//! | `b` | the bounds of the entries that are in this object, if a directory was split |
//! | `e` name | an entry of a directory |
//! | `g` link | a link that has left the directory, and has not left its inode yet |
//! | `x` name | an extended attribute |

use bytes::Bytes;
use nacre_object::{Key, StoreError};

use crate::codec::{Reader, Writer};
use crate::error::{Error, Result};
use crate::inode::{Ino, Inode, InodeKind, Layout, TARGET_BYTES_MAX, decode_layout, encode_layout, key_of};

/// The maximum length of an entry's name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// The key of the intent that has claimed the object.
pub(crate) const CLAIM: &[u8] = b"c";
/// The key of the last intent that claimed the object.
pub(crate) const MOVES: &[u8] = b"m";
/// The key of the time at which a directory's entries last changed.
pub(crate) const CHANGED: &[u8] = b"t";

const FORMAT: u8 = 1;
/// The version of the format of entries whose inodes are counted in a quota from the first.
const FORMAT_COUNTED: u8 = 2;

/// Checks the name of an entry.
///
/// # Errors
/// [`Error::NameTooLong`]; [`Error::Invalid`] if it is empty, `.` or `..`, or has a slash or a zero in it.
pub fn check_name(name: &[u8]) -> Result<()> {
    match name {
        name if name.len() > NAME_BYTES_MAX => Err(Error::NameTooLong),
        b"" => Err(Error::Invalid("the name is empty".into())),
        b"." | b".." => Err(Error::Invalid("the name is . or ..".into())),
        name if name.contains(&b'/') || name.contains(&0) => {
            Err(Error::Invalid("the name has a slash or a zero byte in it".into()))
        }
        _ => Ok(()),
    }
}

/// Returns the key of an entry, whose name was checked.
pub(crate) fn entry_key(name: &[u8]) -> Key {
    key_of([b"e", name].concat())
}

/// Returns the key of a link that has left a directory.
pub(crate) fn gone_key(link: u64) -> Key {
    key_of([&b"g"[..], &link.to_be_bytes()].concat())
}

/// Returns the key of an extended attribute, whose name was checked.
pub(crate) fn attribute_key(name: &[u8]) -> Key {
    key_of([b"x", name].concat())
}

/// Reads the link's id from the key of one that has left a directory.
pub(crate) fn gone_link(key: &Key) -> Option<u64> {
    let bytes = key.as_bytes().strip_prefix(b"g")?;
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

/// The parts of an inode's first record. It stands in the entry that the inode was made with: whoever finds
/// the entry and no inode makes the inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Initial {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub time: i64,
    pub layout: Layout,
    pub target: Bytes,
    /// The quota that the inode is counted in; 0: none.
    pub quota: u64,
}

/// An entry of a directory: a link to an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub ino: Ino,
    /// The id of the link.
    pub link: u64,
    pub kind: InodeKind,
    pub initial: Option<Initial>,
}

impl Entry {
    pub fn encode(&self) -> Bytes {
        let quota = self.initial.as_ref().map_or(0, |initial| initial.quota);
        let mut out = Writer::begin(if quota == 0 { FORMAT } else { FORMAT_COUNTED });
        out.u64(self.ino.0).u64(self.link);
        self.kind.encode(&mut out);
        out.flag(self.initial.is_some());
        if let Some(initial) = &self.initial {
            out.u32(initial.mode).u32(initial.uid).u32(initial.gid).i64(initial.time);
            encode_layout(&initial.layout, &mut out);
            out.bytes(&initial.target);
            if quota != 0 {
                out.u64(quota);
            }
        }
        out.finish()
    }

    pub fn decode(bytes: &[u8]) -> std::result::Result<Entry, StoreError> {
        let (mut reader, format) = Reader::begin_up_to("an entry of a directory", FORMAT_COUNTED, bytes)?;
        let (ino, link) = (Ino(reader.u64()?), reader.u64()?);
        let kind = InodeKind::decode(&mut reader)?;
        let initial = match reader.flag()? {
            false => None,
            true => Some(Initial {
                mode: reader.u32()? & 0o7777,
                uid: reader.u32()?,
                gid: reader.u32()?,
                time: reader.i64()?,
                layout: decode_layout(&mut reader)?,
                target: reader.bytes(TARGET_BYTES_MAX)?,
                quota: if format == FORMAT_COUNTED { reader.u64()? } else { 0 },
            }),
        };
        reader.end()?;
        Ok(Entry { ino, link, kind, initial })
    }

    /// Returns the first record of the inode, if the entry is the one that it was made with.
    pub fn first_record(&self, directory: Ino) -> Option<Inode> {
        let initial = self.initial.as_ref()?;
        Some(Inode {
            kind: self.kind.clone(),
            mode: initial.mode,
            uid: initial.uid,
            gid: initial.gid,
            atime: initial.time,
            mtime: initial.time,
            ctime: initial.time,
            btime: initial.time,
            links: vec![self.link],
            size: match self.kind {
                InodeKind::Symlink => initial.target.len() as u64,
                _ => 0,
            },
            layout: initial.layout,
            content: 0,
            contents: Vec::new(),
            parent: directory,
            target: initial.target.clone(),
            quota: initial.quota,
            tree: if self.kind == InodeKind::Directory { initial.quota } else { 0 },
            is_split: false,
        })
    }

    /// Returns the same link in another place.
    pub fn moved(&self) -> Entry {
        Entry { initial: None, ..self.clone() }
    }
}

/// Encodes a time of a directory.
pub(crate) fn encode_time(time: i64) -> Bytes {
    Bytes::copy_from_slice(&time.to_le_bytes())
}

/// Decodes a time of a directory.
pub(crate) fn decode_time(bytes: &[u8]) -> Option<i64> {
    Some(i64::from_le_bytes(bytes.try_into().ok()?))
}
