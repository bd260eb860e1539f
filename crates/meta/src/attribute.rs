//! Attributes of inodes, extended ones too.

use bytes::Bytes;
use nacre_object::{Answer, KeyRange, ReadOp, WriteOp};

use crate::credentials::{Credentials, READ, WRITE};
use crate::directory::{CHANGED, attribute_key};
use crate::error::{Error, Result};
use crate::inode::{Ino, Inode, InodeKind, Layout, key};
use crate::rank::{ATTEMPTS_MAX, Loaded, LookupResult, Rank, at_version, nonsense, too_busy, versioned};

/// The maximum length of the name of an extended attribute, in bytes.
pub const ATTRIBUTE_NAME_BYTES_MAX: usize = 255;
/// The maximum length of the value of an extended attribute, in bytes.
pub const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;

/// The attributes of an inode. Times are in nanoseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The number.
    pub ino: Ino,
    /// The kind.
    pub kind: InodeKind,
    /// The permission bits.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The number of links; 1 for a directory, whose subdirectories are not counted.
    pub links: u32,
    /// The size in bytes: of a file's content, of a symbolic link's target.
    pub size: u64,
    /// The time of the last access, as far as it is kept: reading does not change it.
    pub atime: i64,
    /// The time of the last change of the content, or of a directory's entries.
    pub mtime: i64,
    /// The time of the last change of the inode.
    pub ctime: i64,
    /// The time at which the inode was made.
    pub btime: i64,
    /// The layout of a file, or of the files in a directory.
    pub layout: Layout,
    /// The target of a symbolic link.
    pub target: Bytes,
}

impl Attributes {
    pub(crate) fn of(loaded: &Loaded) -> Attributes {
        Attributes::of_inode(loaded.ino, &loaded.inode)
    }

    pub(crate) fn of_inode(ino: Ino, inode: &Inode) -> Attributes {
        Attributes {
            ino,
            kind: inode.kind.clone(),
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            links: inode.links.len() as u32,
            size: inode.size,
            atime: inode.atime,
            mtime: inode.mtime,
            ctime: inode.ctime,
            btime: inode.btime,
            layout: inode.layout,
            target: inode.target.clone(),
        }
    }
}

/// A time to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The present time, which who may write may set.
    Now,
    /// A time in nanoseconds since 1970, which only the owner may set.
    To(i64),
}

/// Changes of attributes; what is `None` stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// The permission bits.
    pub mode: Option<u32>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The time of the last access.
    pub atime: Option<SetTime>,
    /// The time of the last change of the content.
    pub mtime: Option<SetTime>,
    /// The layout of files that are made in a directory from now on.
    pub layout: Option<Layout>,
}

impl Rank {
    /// Changes attributes of an inode.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] if the user is not the owner; changing the owner is for root, changing the group for an
    /// owner who is in it. [`Error::Denied`] if times are set to the present by who may not write. [`Error::NotFound`].
    pub async fn set_attributes(
        &self,
        user: &Credentials,
        ino: Ino,
        set: &SetAttributes,
    ) -> Result<Attributes> {
        if let Some(layout) = &set.layout {
            self.check_room(layout).await?;
        }
        for _ in 0..ATTEMPTS_MAX {
            let loaded = self.load(ino).await?;
            let mut inode = loaded.inode.clone();
            let now = self.now();
            apply(user, &mut inode, set, now)?;
            inode.ctime = now;
            let mut transaction = loaded.replacement(&inode);
            if set.mtime.is_some() {
                // The time at which entries changed would hide the one that is set.
                transaction = transaction.change(WriteOp::RemoveKey { key: key(CHANGED) });
            }
            if self.change_inode(&loaded, transaction).await? {
                return Ok(Attributes::of(&Loaded { inode, ..loaded }));
            }
        }
        Err(too_busy())
    }

    /// Returns the value of an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoAttribute`], [`Error::Denied`], [`Error::NotFound`], [`Error::Unsupported`] for a name space of
    /// attributes that is neither `user.` nor `trusted.` nor `security.`.
    pub async fn attribute(&self, user: &Credentials, ino: Ino, name: &[u8]) -> Result<Bytes> {
        check_attribute_name(name)?;
        match self.find(ino, vec![ReadOp::versioned_key(attribute_key(name))]).await? {
            LookupResult::Found(loaded, answers) => {
                check_attribute(user, &loaded.inode, name, READ)?;
                let value = versioned(answers.first())?.ok_or(Error::NoAttribute)?;
                Ok(value.value.clone())
            }
            LookupResult::Missing(_) => Err(Error::NotFound),
        }
    }

    /// Lists the names of an inode's extended attributes that the user may see.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub async fn attributes(&self, user: &Credentials, ino: Ino) -> Result<Vec<Bytes>> {
        let mut names = Vec::new();
        let mut after = None;
        loop {
            let range = KeyRange { after, ..KeyRange::prefix(&b"x"[..]) };
            match self.find(ino, vec![ReadOp::Keys { range, limit: 1024, values: false }]).await? {
                LookupResult::Found(_, answers) => {
                    let Some(Answer::Keys(page)) = answers.first() else { return Err(nonsense()) };
                    let found = page.entries.iter().map(|(key, _)| key.to_bytes().slice(1..));
                    names.extend(found.filter(|name| user.is_root() || !name.starts_with(b"trusted.")));
                    after = page.entries.last().map(|(key, _)| key.to_bytes()).filter(|_| page.more);
                    if after.is_none() {
                        return Ok(names);
                    }
                }
                LookupResult::Missing(_) => return Err(Error::NotFound),
            }
        }
    }

    /// Sets an extended attribute, or removes it if there is no `value`. With `exists`, only if it is there already, or
    /// only if it is not.
    ///
    /// # Errors
    /// As [`Rank::attribute`]; [`Error::Exists`].
    pub async fn set_attribute(
        &self,
        user: &Credentials,
        ino: Ino,
        name: &[u8],
        value: Option<Bytes>,
        exists: Option<bool>,
    ) -> Result<()> {
        check_attribute_name(name)?;
        if value.as_ref().is_some_and(|value| value.len() > ATTRIBUTE_BYTES_MAX) {
            return Err(Error::Invalid("the value of the attribute is too long".into()));
        }
        for _ in 0..ATTEMPTS_MAX {
            let found = self.find(ino, vec![ReadOp::versioned_key(attribute_key(name))]).await?;
            let LookupResult::Found(loaded, answers) = found else { return Err(Error::NotFound) };
            check_attribute(user, &loaded.inode, name, WRITE)?;
            let version = versioned(answers.first())?.map_or(0, |value| value.version);
            match (exists, version) {
                (Some(true), 0) => return Err(Error::NoAttribute),
                (Some(false), 1..) => return Err(Error::Exists),
                _ if value.is_none() && version == 0 => return Err(Error::NoAttribute),
                _ => {}
            }
            let inode = Inode { ctime: self.now(), ..loaded.inode.clone() };
            let transaction = loaded
                .replacement(&inode)
                .guard(at_version(attribute_key(name), version))
                .change(match &value {
                    Some(value) => WriteOp::SetKey { key: attribute_key(name), value: value.clone() },
                    None => WriteOp::RemoveKey { key: attribute_key(name) },
                });
            if self.change_inode(&loaded, transaction).await? {
                return Ok(());
            }
        }
        Err(too_busy())
    }
}

/// Applies changes to a record, as far as the user may make them.
fn apply(user: &Credentials, inode: &mut Inode, set: &SetAttributes, now: i64) -> Result<()> {
    let owns = user.owns(inode);
    let is_not_owned = || if owns { Ok(()) } else { Err(Error::NotPermitted) };
    let may_write = user.may(inode, WRITE);
    if set.uid.is_some_and(|uid| uid != inode.uid) && !user.is_root() {
        return Err(Error::NotPermitted);
    }
    if let Some(gid) = set.gid {
        is_not_owned()?;
        if gid != inode.gid && !user.is_root() && !user.is_in(gid) {
            return Err(Error::NotPermitted);
        }
    }
    if set.uid.is_some() || set.gid.is_some() {
        is_not_owned()?;
        // A program must not go on with rights of an owner that it no longer has.
        if inode.kind != InodeKind::Directory && !user.is_root() {
            inode.mode &= !0o6000;
        }
    }
    inode.uid = set.uid.unwrap_or(inode.uid);
    inode.gid = set.gid.unwrap_or(inode.gid);
    if let Some(mode) = set.mode {
        is_not_owned()?;
        inode.mode = mode & 0o7777;
        if inode.kind != InodeKind::Directory && !user.is_root() && !user.is_in(inode.gid) {
            inode.mode &= !0o2000;
        }
    }
    for (time, at) in [(set.atime, &mut inode.atime), (set.mtime, &mut inode.mtime)] {
        match time {
            None => {}
            Some(SetTime::Now) if owns || may_write => *at = now,
            Some(SetTime::Now) => return Err(Error::Denied),
            Some(SetTime::To(time)) => {
                is_not_owned()?;
                *at = time;
            }
        }
    }
    if let Some(layout) = set.layout {
        is_not_owned()?;
        if inode.kind != InodeKind::Directory {
            return Err(Error::NotDirectory);
        }
        if !layout.is_sound() {
            return Err(Error::Invalid("the layout cannot be".into()));
        }
        inode.layout = layout;
    }
    Ok(())
}

fn check_attribute_name(name: &[u8]) -> Result<()> {
    if name.len() > ATTRIBUTE_NAME_BYTES_MAX {
        return Err(Error::NameTooLong);
    }
    match name {
        name if name.contains(&0) => Err(Error::Invalid("the name has a zero byte in it".into())),
        name if [&b"user."[..], b"trusted.", b"security."].iter().any(|space| name.starts_with(space)) => {
            Ok(())
        }
        _ => Err(Error::Unsupported(
            "there are only attributes whose names begin with user., trusted. or security.".into(),
        )),
    }
}

fn check_attribute(user: &Credentials, inode: &Inode, name: &[u8], wanted: u32) -> Result<()> {
    if name.starts_with(b"user.") {
        if !matches!(inode.kind, InodeKind::File | InodeKind::Directory | InodeKind::Typed(_)) {
            return Err(Error::NotPermitted);
        }
        return user.check(inode, wanted);
    }
    let is_read = wanted == READ && name.starts_with(b"security.");
    if user.is_root() || is_read { Ok(()) } else { Err(Error::NotPermitted) }
}
