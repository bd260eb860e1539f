//! Calls on the namespace as messages, for those who reach a rank over a connection.
//!
//! A request begins with the number of its call, a reply with that of its kind; numbers are little-endian, and every
//! length is bounded. [`Rank::answer`] is all that a service needs to call.

use bytes::Bytes;
use nacre_object::{ErrorKind, StoreError};

use crate::attribute::{ATTRIBUTE_BYTES_MAX, ATTRIBUTE_NAME_BYTES_MAX, Attributes, SetAttributes, SetTime};
use crate::codec::{Reader, Writer};
use crate::credentials::Credentials;
use crate::directory::NAME_BYTES_MAX;
use crate::error::{Error, Result};
use crate::inode::{Ino, Kind, Layout, TARGET_BYTES_MAX};
use crate::namespace::{Creation, Listed, PAGE_ENTRIES_MAX, PATH_BYTES_MAX, Page};
use crate::rank::Rank;

/// The maximum number of groups of a user.
pub const GROUPS_MAX: usize = 65_536;
/// The maximum number of bytes of a file's content in one message.
pub const CONTENT_BYTES_MAX: usize = 8 << 20;
/// The maximum number of extended attributes that one reply names.
pub const NAMES_MAX: usize = 65_536;
/// The maximum length of a failure's text, in bytes.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// A call on the namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The user that it is made for.
    pub user: Credentials,
    /// The call.
    pub call: Call,
}

/// What is called. The methods of [`Rank`] of the same names say what they do, and what their arguments mean.
#[allow(missing_docs)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// [`Rank::lookup`]
    Lookup { directory: Ino, name: Bytes },
    /// [`Rank::stat`]
    Stat { ino: Ino },
    /// [`Rank::resolve_from`]
    Resolve { from: Ino, path: Bytes, follow: bool },
    /// [`Rank::readdir`]
    Readdir { directory: Ino, after: Bytes, limit: u32, attributes: bool },
    /// [`Rank::create`]
    Create { directory: Ino, name: Bytes, creation: Creation },
    /// [`Rank::link`]
    Link { ino: Ino, directory: Ino, name: Bytes },
    /// [`Rank::unlink`]
    Unlink { directory: Ino, name: Bytes },
    /// [`Rank::rmdir`]
    Rmdir { directory: Ino, name: Bytes },
    /// [`Rank::rename`]
    Rename { from: Ino, name: Bytes, to: Ino, new: Bytes, keep: bool },
    /// [`Rank::set_attributes`]
    SetAttributes { ino: Ino, set: SetAttributes },
    /// [`Rank::attribute`]
    Attribute { ino: Ino, name: Bytes },
    /// [`Rank::attributes`]
    Attributes { ino: Ino },
    /// [`Rank::set_attribute`]
    SetAttribute { ino: Ino, name: Bytes, value: Option<Bytes>, exists: Option<bool> },
    /// [`Rank::open_file`]
    OpenFile { ino: Ino, wanted: u32 },
    /// [`Rank::close_file`]
    CloseFile { ino: Ino },
    /// [`Rank::read_file`], at most [`CONTENT_BYTES_MAX`]
    ReadFile { ino: Ino, offset: u64, len: u32 },
    /// [`Rank::write_file`]
    WriteFile { ino: Ino, offset: u64, data: Bytes },
    /// [`Rank::append_file`]
    AppendFile { ino: Ino, data: Bytes },
    /// [`Rank::truncate`]
    Truncate { ino: Ino, size: u64 },
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// It is done.
    Done,
    /// The attributes of an inode.
    Attributes(Box<Attributes>),
    /// A page of a directory.
    Page(Page),
    /// Bytes of a file, or the value of an attribute.
    Bytes(Bytes),
    /// The names of attributes.
    Names(Vec<Bytes>),
    /// An offset.
    Offset(u64),
    /// It failed.
    Failed(Error),
}

impl Rank {
    /// Makes a call, and returns its answer.
    pub async fn answer(&self, request: Request) -> Response {
        self.call(request).await.unwrap_or_else(Response::Failed)
    }

    async fn call(&self, Request { user, call }: Request) -> Result<Response> {
        let attributes = |found| Response::Attributes(Box::new(found));
        Ok(match call {
            Call::Lookup { directory, name } => attributes(self.lookup(&user, directory, &name).await?),
            Call::Stat { ino } => attributes(self.stat(ino).await?),
            Call::Resolve { from, path, follow } => {
                attributes(self.resolve_from(&user, from, &path, follow).await?)
            }
            Call::Readdir { directory, after, limit, attributes } => {
                let page = self.readdir(&user, directory, &after, limit as usize, attributes).await?;
                Response::Page(page)
            }
            Call::Create { directory, name, creation } => {
                attributes(self.create(&user, directory, &name, creation).await?)
            }
            Call::Link { ino, directory, name } => attributes(self.link(&user, ino, directory, &name).await?),
            Call::Unlink { directory, name } => done(self.unlink(&user, directory, &name).await)?,
            Call::Rmdir { directory, name } => done(self.rmdir(&user, directory, &name).await)?,
            Call::Rename { from, name, to, new, keep } => {
                done(self.rename(&user, (from, &name), (to, &new), keep).await)?
            }
            Call::SetAttributes { ino, set } => attributes(self.set_attributes(&user, ino, &set).await?),
            Call::Attribute { ino, name } => Response::Bytes(self.attribute(&user, ino, &name).await?),
            Call::Attributes { ino } => Response::Names(self.attributes(&user, ino).await?),
            Call::SetAttribute { ino, name, value, exists } => {
                done(self.set_attribute(&user, ino, &name, value, exists).await)?
            }
            Call::OpenFile { ino, wanted } => attributes(self.open_file(&user, ino, wanted).await?),
            Call::CloseFile { ino } => {
                self.close_file(ino).await;
                Response::Done
            }
            Call::ReadFile { ino, offset, len } => {
                let len = (len as usize).min(CONTENT_BYTES_MAX);
                Response::Bytes(self.read_file(ino, offset, len).await?)
            }
            Call::WriteFile { ino, offset, data } => done(self.write_file(ino, offset, data).await)?,
            Call::AppendFile { ino, data } => Response::Offset(self.append_file(ino, data).await?),
            Call::Truncate { ino, size } => done(self.truncate(&user, ino, size).await)?,
        })
    }
}

fn done(result: Result<()>) -> Result<Response> {
    result.map(|()| Response::Done)
}

type Decoded<T> = std::result::Result<T, StoreError>;

impl Request {
    /// Encodes the request.
    pub fn encode(&self) -> Bytes {
        let mut out = Writer::new();
        let out = &mut out;
        out.u8(self.call.number()).u32(self.user.uid).u32(self.user.gid).count(self.user.groups.len());
        for group in &self.user.groups {
            out.u32(*group);
        }
        match &self.call {
            Call::Lookup { directory, name }
            | Call::Unlink { directory, name }
            | Call::Rmdir { directory, name } => out.u64(directory.0).bytes(name),
            Call::Stat { ino } | Call::Attributes { ino } | Call::CloseFile { ino } => out.u64(ino.0),
            Call::Resolve { from, path, follow } => out.u64(from.0).bytes(path).flag(*follow),
            Call::Readdir { directory, after, limit, attributes } => {
                out.u64(directory.0).bytes(after).u32(*limit).flag(*attributes)
            }
            Call::Create { directory, name, creation } => {
                out.u64(directory.0).bytes(name);
                creation.kind.encode(out);
                out.u32(creation.mode).bytes(&creation.target);
                put_layout(out, creation.layout)
            }
            Call::Link { ino, directory, name } => out.u64(ino.0).u64(directory.0).bytes(name),
            Call::Rename { from, name, to, new, keep } => {
                out.u64(from.0).bytes(name).u64(to.0).bytes(new).flag(*keep)
            }
            Call::SetAttributes { ino, set } => {
                out.u64(ino.0);
                for number in [set.mode, set.uid, set.gid] {
                    out.flag(number.is_some()).u32(number.unwrap_or(0));
                }
                for time in [set.atime, set.mtime] {
                    match time {
                        None => out.u8(0).i64(0),
                        Some(SetTime::Now) => out.u8(1).i64(0),
                        Some(SetTime::To(time)) => out.u8(2).i64(time),
                    };
                }
                put_layout(out, set.layout)
            }
            Call::Attribute { ino, name } => out.u64(ino.0).bytes(name),
            Call::SetAttribute { ino, name, value, exists } => {
                out.u64(ino.0).bytes(name).flag(value.is_some()).bytes(value.as_deref().unwrap_or(&[]));
                out.u8(exists.map_or(0, |exists| 1 + u8::from(exists)))
            }
            Call::OpenFile { ino, wanted } => out.u64(ino.0).u32(*wanted),
            Call::ReadFile { ino, offset, len } => out.u64(ino.0).u64(*offset).u32(*len),
            Call::WriteFile { ino, offset, data } => out.u64(ino.0).u64(*offset).bytes(data),
            Call::AppendFile { ino, data } => out.u64(ino.0).bytes(data),
            Call::Truncate { ino, size } => out.u64(ino.0).u64(*size),
        };
        out.finish()
    }

    /// Decodes a request.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are none.
    pub fn decode(bytes: &[u8]) -> Decoded<Request> {
        let mut reader = Reader::new("a call on the namespace", bytes);
        let reader = &mut reader;
        let number = reader.u8()?;
        let (uid, gid) = (reader.u32()?, reader.u32()?);
        let mut groups = Vec::new();
        for _ in 0..reader.count(GROUPS_MAX)? {
            groups.push(reader.u32()?);
        }
        let ino = Ino(reader.u64()?);
        let name = |reader: &mut Reader<'_>| reader.bytes(NAME_BYTES_MAX);
        let call = match number {
            1 => Call::Lookup { directory: ino, name: name(reader)? },
            2 => Call::Stat { ino },
            3 => Call::Resolve { from: ino, path: reader.bytes(PATH_BYTES_MAX)?, follow: reader.flag()? },
            4 => Call::Readdir {
                directory: ino,
                after: name(reader)?,
                limit: reader.u32()?,
                attributes: reader.flag()?,
            },
            5 => Call::Create {
                directory: ino,
                name: name(reader)?,
                creation: Creation {
                    kind: Kind::decode(reader)?,
                    mode: reader.u32()?,
                    target: reader.bytes(TARGET_BYTES_MAX)?,
                    layout: take_layout(reader)?,
                },
            },
            6 => Call::Link { ino, directory: Ino(reader.u64()?), name: name(reader)? },
            7 => Call::Unlink { directory: ino, name: name(reader)? },
            8 => Call::Rmdir { directory: ino, name: name(reader)? },
            9 => Call::Rename {
                from: ino,
                name: name(reader)?,
                to: Ino(reader.u64()?),
                new: name(reader)?,
                keep: reader.flag()?,
            },
            10 => {
                let mut number = || {
                    let (is_set, number) = (reader.flag()?, reader.u32()?);
                    Decoded::Ok(is_set.then_some(number))
                };
                let (mode, uid, gid) = (number()?, number()?, number()?);
                let mut time = || match (reader.u8()?, reader.i64()?) {
                    (0, _) => Ok(None),
                    (1, _) => Ok(Some(SetTime::Now)),
                    (2, time) => Ok(Some(SetTime::To(time))),
                    _ => Err(reader.wrong("there is no such way to set a time")),
                };
                let (atime, mtime) = (time()?, time()?);
                let layout = take_layout(reader)?;
                Call::SetAttributes { ino, set: SetAttributes { mode, uid, gid, atime, mtime, layout } }
            }
            11 => Call::Attribute { ino, name: reader.bytes(ATTRIBUTE_NAME_BYTES_MAX)? },
            12 => Call::Attributes { ino },
            13 => {
                let name = reader.bytes(ATTRIBUTE_NAME_BYTES_MAX)?;
                let is_set = reader.flag()?;
                let value = reader.bytes(ATTRIBUTE_BYTES_MAX)?;
                let exists = match reader.u8()? {
                    0 => None,
                    1 => Some(false),
                    2 => Some(true),
                    _ => return Err(reader.wrong("there is no such condition")),
                };
                Call::SetAttribute { ino, name, value: is_set.then_some(value), exists }
            }
            14 => Call::OpenFile { ino, wanted: reader.u32()? },
            15 => Call::CloseFile { ino },
            16 => Call::ReadFile { ino, offset: reader.u64()?, len: reader.u32()? },
            17 => Call::WriteFile { ino, offset: reader.u64()?, data: reader.bytes(CONTENT_BYTES_MAX)? },
            18 => Call::AppendFile { ino, data: reader.bytes(CONTENT_BYTES_MAX)? },
            19 => Call::Truncate { ino, size: reader.u64()? },
            other => return Err(reader.wrong(format_args!("there is no call {other}"))),
        };
        std::mem::replace(reader, Reader::new("", &[])).end()?;
        Ok(Request { user: Credentials { uid, gid, groups }, call })
    }
}

impl Call {
    fn number(&self) -> u8 {
        match self {
            Call::Lookup { .. } => 1,
            Call::Stat { .. } => 2,
            Call::Resolve { .. } => 3,
            Call::Readdir { .. } => 4,
            Call::Create { .. } => 5,
            Call::Link { .. } => 6,
            Call::Unlink { .. } => 7,
            Call::Rmdir { .. } => 8,
            Call::Rename { .. } => 9,
            Call::SetAttributes { .. } => 10,
            Call::Attribute { .. } => 11,
            Call::Attributes { .. } => 12,
            Call::SetAttribute { .. } => 13,
            Call::OpenFile { .. } => 14,
            Call::CloseFile { .. } => 15,
            Call::ReadFile { .. } => 16,
            Call::WriteFile { .. } => 17,
            Call::AppendFile { .. } => 18,
            Call::Truncate { .. } => 19,
        }
    }
}

fn put_layout(out: &mut Writer, layout: Option<Layout>) -> &mut Writer {
    out.flag(layout.is_some());
    if let Some(layout) = layout {
        layout.encode(out);
    }
    out
}

fn take_layout(reader: &mut Reader<'_>) -> Decoded<Option<Layout>> {
    match reader.flag()? {
        true => Layout::decode(reader).map(Some),
        false => Ok(None),
    }
}

fn put_attributes(out: &mut Writer, found: &Attributes) {
    out.u64(found.ino.0);
    found.kind.encode(out);
    out.u32(found.mode).u32(found.uid).u32(found.gid).u32(found.links).u64(found.size);
    out.i64(found.atime).i64(found.mtime).i64(found.ctime).i64(found.btime);
    found.layout.encode(out);
    out.bytes(&found.target);
}

fn take_attributes(reader: &mut Reader<'_>) -> Decoded<Attributes> {
    Ok(Attributes {
        ino: Ino(reader.u64()?),
        kind: Kind::decode(reader)?,
        mode: reader.u32()?,
        uid: reader.u32()?,
        gid: reader.u32()?,
        links: reader.u32()?,
        size: reader.u64()?,
        atime: reader.i64()?,
        mtime: reader.i64()?,
        ctime: reader.i64()?,
        btime: reader.i64()?,
        layout: Layout::decode(reader)?,
        target: reader.bytes(TARGET_BYTES_MAX)?,
    })
}

impl Response {
    /// Encodes the response.
    pub fn encode(&self) -> Bytes {
        let mut out = Writer::new();
        match self {
            Response::Done => {
                out.u8(1);
            }
            Response::Attributes(found) => {
                out.u8(2);
                put_attributes(&mut out, found);
            }
            Response::Page(page) => {
                out.u8(3).flag(page.more).count(page.entries.len());
                for listed in &page.entries {
                    out.bytes(&listed.name).u64(listed.ino.0);
                    listed.kind.encode(&mut out);
                    out.flag(listed.attributes.is_some());
                    if let Some(attributes) = &listed.attributes {
                        put_attributes(&mut out, attributes);
                    }
                }
            }
            Response::Bytes(bytes) => {
                out.u8(4).bytes(bytes);
            }
            Response::Names(names) => {
                out.u8(5).count(names.len().min(NAMES_MAX));
                for name in names.iter().take(NAMES_MAX) {
                    out.bytes(name);
                }
            }
            Response::Offset(offset) => {
                out.u8(6).u64(*offset);
            }
            Response::Failed(error) => {
                out.u8(7);
                put_error(&mut out, error);
            }
        }
        out.finish()
    }

    /// Decodes a response.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are none.
    pub fn decode(bytes: &[u8]) -> Decoded<Response> {
        let mut reader = Reader::new("an answer about the namespace", bytes);
        let response = match reader.u8()? {
            1 => Response::Done,
            2 => Response::Attributes(Box::new(take_attributes(&mut reader)?)),
            3 => {
                let more = reader.flag()?;
                let mut entries = Vec::new();
                for _ in 0..reader.count(PAGE_ENTRIES_MAX)? {
                    let name = reader.bytes(NAME_BYTES_MAX)?;
                    let ino = Ino(reader.u64()?);
                    let kind = Kind::decode(&mut reader)?;
                    let attributes = match reader.flag()? {
                        true => Some(take_attributes(&mut reader)?),
                        false => None,
                    };
                    entries.push(Listed { name, ino, kind, attributes });
                }
                Response::Page(Page { entries, more })
            }
            4 => Response::Bytes(reader.bytes(CONTENT_BYTES_MAX)?),
            5 => {
                let mut names = Vec::new();
                for _ in 0..reader.count(NAMES_MAX)? {
                    names.push(reader.bytes(ATTRIBUTE_NAME_BYTES_MAX)?);
                }
                Response::Names(names)
            }
            6 => Response::Offset(reader.u64()?),
            7 => Response::Failed(take_error(&mut reader)?),
            other => return Err(reader.wrong(format_args!("there is no answer {other}"))),
        };
        reader.end()?;
        Ok(response)
    }
}

/// The failures without a text, by the numbers that stand for them.
const PLAIN: [Error; 15] = [
    Error::NotFound,
    Error::Exists,
    Error::NotDirectory,
    Error::IsDirectory,
    Error::NotEmpty,
    Error::Denied,
    Error::NotPermitted,
    Error::Loop,
    Error::NameTooLong,
    Error::TooManyLinks,
    Error::NoAttribute,
    Error::QuotaExceeded,
    Error::TooLarge,
    Error::Stale,
    Error::Fenced,
];
const INVALID: u8 = 128;
const UNSUPPORTED: u8 = 129;
const STORE: u8 = 130;

fn put_error(out: &mut Writer, error: &Error) {
    let text = |out: &mut Writer, text: &str| {
        let end = (0..=text.len().min(TEXT_BYTES_MAX)).rev().find(|end| text.is_char_boundary(*end));
        out.bytes(&text.as_bytes()[..end.unwrap_or(0)]);
    };
    match error {
        Error::Invalid(why) => text(out.u8(INVALID), why),
        Error::Unsupported(what) => text(out.u8(UNSUPPORTED), what),
        Error::Store(error) => text(out.u8(STORE).u8(error.kind.code()), &error.message),
        plain => {
            let number = PLAIN.iter().position(|one| one == plain).unwrap_or(0);
            out.u8(number as u8 + 1);
        }
    }
}

fn take_error(reader: &mut Reader<'_>) -> Decoded<Error> {
    Ok(match reader.u8()? {
        INVALID => Error::Invalid(reader.text(TEXT_BYTES_MAX)?.into()),
        UNSUPPORTED => Error::Unsupported(reader.text(TEXT_BYTES_MAX)?.into()),
        STORE => {
            let kind = ErrorKind::from_code(reader.u8()?).unwrap_or(ErrorKind::Io);
            Error::Store(StoreError::new(kind, reader.text(TEXT_BYTES_MAX)?))
        }
        number => {
            let plain = (number as usize).checked_sub(1).and_then(|index| PLAIN.get(index));
            plain.cloned().ok_or_else(|| reader.wrong(format_args!("there is no failure {number}")))?
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_decode_to_themselves_and_no_part_of_them_decodes() {
        let (ino, name) = (Ino(77), Bytes::from_static(b"name"));
        let set = SetAttributes {
            mode: Some(0o600),
            gid: Some(4),
            atime: Some(SetTime::Now),
            mtime: Some(SetTime::To(-3)),
            layout: Some(Layout::default()),
            ..SetAttributes::default()
        };
        let calls = [
            Call::Lookup { directory: ino, name: name.clone() },
            Call::Stat { ino },
            Call::Resolve { from: ino, path: name.clone(), follow: true },
            Call::Readdir { directory: ino, after: Bytes::new(), limit: 10, attributes: true },
            Call::Create { directory: ino, name: name.clone(), creation: Creation::symlink("over/there") },
            Call::Link { ino, directory: Ino(3), name: name.clone() },
            Call::Unlink { directory: ino, name: name.clone() },
            Call::Rmdir { directory: ino, name: name.clone() },
            Call::Rename { from: ino, name: name.clone(), to: Ino(9), new: "new".into(), keep: true },
            Call::SetAttributes { ino, set },
            Call::Attribute { ino, name: name.clone() },
            Call::Attributes { ino },
            Call::SetAttribute { ino, name: name.clone(), value: None, exists: Some(true) },
            Call::OpenFile { ino, wanted: 6 },
            Call::CloseFile { ino },
            Call::ReadFile { ino, offset: 5, len: 6 },
            Call::WriteFile { ino, offset: 7, data: name.clone() },
            Call::AppendFile { ino, data: name.clone() },
            Call::Truncate { ino, size: 8 },
        ];
        for (number, call) in calls.into_iter().enumerate() {
            assert_eq!(usize::from(call.number()), number + 1);
            let user = Credentials { uid: 1, gid: 2, groups: vec![3, 4] };
            let request = Request { user, call };
            let bytes = request.encode();
            assert_eq!(Request::decode(&bytes).unwrap(), request);
            for end in 0..bytes.len() {
                assert!(Request::decode(&bytes[..end]).is_err(), "{request:?}, {end} bytes");
            }
        }
    }

    #[test]
    fn responses_decode_to_themselves() {
        let found = Attributes {
            ino: Ino(5),
            kind: Kind::Typed("sequencer".into()),
            mode: 0o644,
            uid: 1,
            gid: 2,
            links: 3,
            size: 4,
            atime: 5,
            mtime: 6,
            ctime: 7,
            btime: 8,
            layout: Layout::default(),
            target: Bytes::new(),
        };
        let listed =
            Listed { name: "n".into(), ino: Ino(5), kind: Kind::File, attributes: Some(found.clone()) };
        let mut responses = vec![
            Response::Done,
            Response::Attributes(Box::new(found)),
            Response::Page(Page { entries: vec![listed], more: true }),
            Response::Bytes("bytes".into()),
            Response::Names(vec!["user.a".into()]),
            Response::Offset(7),
            Response::Failed(Error::Invalid("why".into())),
            Response::Failed(Error::Unsupported("what".into())),
            Response::Failed(StoreError::new(ErrorKind::Unknown, "lost").into()),
        ];
        responses.extend(PLAIN.map(Response::Failed));
        for response in responses {
            let bytes = response.encode();
            assert_eq!(Response::decode(&bytes).unwrap(), response);
            for end in 0..bytes.len() {
                assert!(Response::decode(&bytes[..end]).is_err(), "{response:?}, {end} bytes");
            }
        }
    }
}
