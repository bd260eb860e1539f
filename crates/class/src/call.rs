//! One call under way: what it knows of the object, what it wants changed, what it has said.
//!
//! The script runs without waiting for anything. A question to the object that was not asked before ends the run; the
//! answer is fetched at the version that the call has seen, and the script runs again from its beginning, with the same
//! input and the same answers. Nothing else comes in from outside, so it takes the same way until there.
//!
//! Rules, kept by all of `objclass` and `nacre`:
//! - Every question is answered from the object as it stood before the call, whatever the call has changed since.
//! - Bytes must not be read after bytes were written in the same call (a stock OSD would hang): that fails with EINVAL.
//! - Whether the object exists is the exception: `create` and `remove` go by what the call did before.

use std::sync::Arc;

use bytes::Bytes;
use nacre_object::limit::{
    ATTRIBUTE_BYTES_MAX, EXTENTS_PER_TRANSACTION_MAX, OFFSET_MAX, OPERATIONS_MAX, REPLY_BYTES_MAX,
    TRANSACTION_BYTES_MAX, VALUE_BYTES_MAX,
};
use nacre_object::{Answer, ByteRange, Fork, Key, RangeRead, ReadOp, WriteOp};

use crate::buffer::{BufferId, Buffers};
use crate::catalogue::Catalogue;
use crate::errno::{self, Errno};

/// The attribute that holds what `objclass.map_write_header` wrote. `getxattrs` does not show it.
pub const HEADER_ATTRIBUTE: &str = "nacre.map-header";
/// The attribute that holds the least version of each class that an object on Ceph accepts. `getxattrs` does not show it.
pub(crate) const ACCEPTED_ATTRIBUTE: &str = "nacre.classes";
/// The maximum number of lines that a call may log.
const LOG_LINES_MAX: usize = 256;
/// The maximum bytes that a call may log.
const LOG_BYTES_MAX: usize = 64 << 10;
/// The number of answers among which a key is looked for.
const KNOWN_KEYS_MAX: usize = 4;
/// The number of guards that the commit adds to the writes.
const GUARDS_MAX: usize = 8;
/// The maximum bytes of one read: half of what one answer of a store can hold.
const READ_BYTES_MAX: u64 = REPLY_BYTES_MAX as u64 / 2;
/// The bytes that a read of bytes fetches at least, so that small reads side by side are one.
const READ_AHEAD_BYTES: u64 = 4096;

/// The reason for which an operation on the object failed.
#[derive(Debug)]
pub(crate) enum Failed {
    /// A failure, with an error number and a text.
    Errno(Errno, String),
    /// Its answer is not here yet.
    Missing,
}

impl From<Errno> for Failed {
    fn from(number: Errno) -> Self {
        Failed::Errno(number, errno::text(number))
    }
}

/// The knowledge of an object, all at one version.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    /// Version and existence, once something was read.
    pub known: Option<(u64, bool)>,
    /// Questions and answers.
    pub answers: Vec<(ReadOp, Answer)>,
}

/// One call, and all that happens in it.
#[derive(Debug)]
pub(crate) struct Call {
    pub view: View,
    /// The question that has no answer yet. A read of nothing but the version is `Some(None)`.
    pub missing: Option<Option<ReadOp>>,
    /// The answers that were used, in order of first use, as positions in the view.
    pub used: Vec<usize>,
    /// The position at which the search for the next answer begins: answers are used in the order in which they were asked for.
    cursor: usize,
    pub writes: Vec<WriteOp>,
    payload: usize,
    extents: usize,
    wrote_bytes: bool,
    /// True if the object exists after the changes so far; `None` if the call has not changed that.
    exists_now: Option<bool>,
    /// False while a method runs that is declared not to write.
    pub writable: bool,
    pub buffers: Buffers,
    pub output: BufferId,
    pub log: Vec<String>,
    log_bytes: usize,
    pub catalogue: Arc<Catalogue>,
}

impl Call {
    /// Creates a call on what is known of the object. It is boxed, because it is handed to a machine and back.
    pub fn new(view: View, catalogue: Arc<Catalogue>) -> Box<Self> {
        Box::new(Self {
            view,
            missing: None,
            used: Vec::new(),
            cursor: 0,
            writes: Vec::new(),
            payload: 0,
            extents: 0,
            wrote_bytes: false,
            exists_now: None,
            writable: true,
            buffers: Buffers::default(),
            output: 0,
            log: Vec::new(),
            log_bytes: 0,
            catalogue,
        })
    }

    /// Returns the object's version and whether it existed, before the call.
    pub fn known(&mut self) -> Result<(u64, bool), Failed> {
        if self.view.known.is_none() {
            self.missing.get_or_insert(None);
        }
        self.view.known.ok_or(Failed::Missing)
    }

    /// Fails with ENOENT if the object did not exist.
    pub fn existing(&mut self) -> Result<(), Failed> {
        match self.known()? {
            (_, true) => Ok(()),
            (_, false) => Err(errno::ENOENT.into()),
        }
    }

    /// Converts bytes to a key's name, which is not made again where one of the first answers has it.
    pub fn key(&self, bytes: &[u8]) -> Result<Key, Failed> {
        let known = self.view.answers.iter().take(KNOWN_KEYS_MAX).find_map(|(read, _)| match read {
            ReadOp::Key { key } | ReadOp::VersionedKey { key, .. } if key.as_bytes() == bytes => Some(key),
            _ => None,
        });
        known.map_or_else(|| key(bytes), |key| Ok(key.clone()))
    }

    /// Returns the answer to a question.
    pub fn ask(&mut self, read: ReadOp) -> Result<&Answer, Failed> {
        let answers = &self.view.answers;
        let count = answers.len();
        let found = (0..count).map(|step| (self.cursor + step) % count).find(|&at| answers[at].0 == read);
        match found {
            Some(at) => Ok(self.take(at)),
            None => {
                self.missing.get_or_insert(Some(read));
                Err(Failed::Missing)
            }
        }
    }

    fn take(&mut self, at: usize) -> &Answer {
        self.cursor = at + 1;
        if !self.used.contains(&at) {
            self.used.push(at);
        }
        &self.view.answers[at].1
    }

    /// Returns bytes of a fork, from an answer that has them. The range is cut at the fork's end.
    pub fn read(&mut self, fork: &Fork, offset: u64, length: u64) -> Result<(Bytes, u64), Failed> {
        if self.wrote_bytes {
            let text = "bytes cannot be read after bytes were written in the same call: read first";
            return Err(Failed::Errno(errno::EINVAL, text.to_owned()));
        }
        let offset = offset.min(OFFSET_MAX);
        let mut end = offset.saturating_add(length).min(OFFSET_MAX);
        if end - offset > READ_BYTES_MAX {
            // What is behind the fork's end does not count.
            end = end.min(self.size(fork)?).max(offset);
            if end - offset > READ_BYTES_MAX {
                let text = format!("a read of {} bytes; the limit is {READ_BYTES_MAX}", end - offset);
                return Err(Failed::Errno(errno::EFBIG, text));
            }
        }
        let holds = |read: &ReadOp, answer: &Answer| match (read, answer) {
            (ReadOp::Range { fork: of, range, .. }, Answer::Range(found)) if of == fork => {
                let covered = match found.next {
                    Some(next) => next,
                    None if found.size <= range.end() => OFFSET_MAX,
                    None => range.end(),
                };
                range.offset <= offset && end <= covered
            }
            _ => false,
        };
        let found = self.view.answers.iter().position(|(read, answer)| holds(read, answer));
        let Some(at) = found else {
            let len = (end - offset).max(READ_AHEAD_BYTES).min(OFFSET_MAX - offset);
            let range = ByteRange::new(offset, len);
            let intent = Default::default();
            self.missing.get_or_insert(Some(ReadOp::Range { fork: fork.clone(), range, intent }));
            return Err(Failed::Missing);
        };
        let start = match &self.view.answers[at].0 {
            ReadOp::Range { range, .. } => range.offset,
            _ => 0,
        };
        let Answer::Range(found) = self.take(at) else { return Err(errno::EIO.into()) };
        let from = usize::try_from(offset - start).unwrap_or(usize::MAX).min(found.data.len());
        let to = usize::try_from(end - start).unwrap_or(usize::MAX).clamp(from, found.data.len());
        let version = found.version;
        Ok((found.data.slice(from..to), version))
    }

    /// Returns a fork's size: from any answer about its bytes, or by asking.
    pub fn size(&mut self, fork: &Fork) -> Result<u64, Failed> {
        let about = |read: &ReadOp| match read {
            ReadOp::Range { fork: of, .. } | ReadOp::Extents { fork: of, .. } => of == fork,
            _ => false,
        };
        if let Some(at) = self.view.answers.iter().position(|(read, _)| about(read)) {
            let Answer::Range(found) = self.take(at) else { return Err(errno::EIO.into()) };
            return Ok(found.size);
        }
        // Whoever asks for the size mostly reads then; a small fork comes with the answer.
        let range = ByteRange::new(0, READ_AHEAD_BYTES);
        let read = ReadOp::Range { fork: fork.clone(), range, intent: Default::default() };
        self.missing.get_or_insert(Some(read));
        Err(Failed::Missing)
    }

    /// Returns the extents of a range.
    pub fn extents(&mut self, fork: &Fork, range: ByteRange) -> Result<&RangeRead, Failed> {
        match self.ask(ReadOp::Extents { fork: fork.clone(), range })? {
            Answer::Range(found) => Ok(found),
            _ => Err(errno::EIO.into()),
        }
    }

    /// Adds a change.
    pub fn write(&mut self, write: WriteOp) -> Result<(), Failed> {
        if !self.writable {
            let text = "the method is declared not to write";
            return Err(Failed::Errno(errno::EROFS, text.to_owned()));
        }
        let (bytes, limit) = match &write {
            WriteOp::Extents { extents, .. } => {
                self.wrote_bytes = true;
                self.extents += extents.len();
                (extents.iter().map(|(_, data)| data.len()).sum(), TRANSACTION_BYTES_MAX)
            }
            WriteOp::SetKey { value, .. } => (value.len(), VALUE_BYTES_MAX),
            WriteOp::SetAttribute { value, .. } => (value.len(), ATTRIBUTE_BYTES_MAX),
            WriteOp::Zero { .. } | WriteOp::Truncate { .. } | WriteOp::RemoveFork { .. } => {
                self.wrote_bytes = true;
                (0, 0)
            }
            _ => (0, 0),
        };
        if bytes > limit {
            let text = format!("{bytes} bytes are more than {limit}");
            return Err(Failed::Errno(errno::E2BIG, text));
        }
        self.payload += bytes;
        if self.payload > TRANSACTION_BYTES_MAX {
            let text = format!("the call writes more than {TRANSACTION_BYTES_MAX} bytes");
            return Err(Failed::Errno(errno::E2BIG, text));
        }
        if self.writes.len() + GUARDS_MAX >= OPERATIONS_MAX || self.extents > EXTENTS_PER_TRANSACTION_MAX {
            let text = format!("the call makes more than {} changes", OPERATIONS_MAX - GUARDS_MAX);
            return Err(Failed::Errno(errno::E2BIG, text));
        }
        self.exists_now = Some(!matches!(write, WriteOp::Remove));
        // Extents that are written one after another into the same fork are one write.
        if let WriteOp::Extents { fork, extents } = &write
            && let Some(WriteOp::Extents { fork: last_fork, extents: last }) = self.writes.last_mut()
            && last_fork == fork
        {
            last.extend(extents.iter().cloned());
            return Ok(());
        }
        self.writes.push(write);
        Ok(())
    }

    /// Checks a range of bytes that is to be written.
    pub fn range(offset: u64, length: u64) -> Result<ByteRange, Failed> {
        let range = ByteRange::new(offset, length);
        range.validate().map_err(|error| Failed::Errno(errno::EFBIG, error.message))?;
        Ok(range)
    }

    /// Returns whether the object exists after the changes so far.
    pub fn exists_now(&mut self) -> Result<bool, Failed> {
        match self.exists_now {
            Some(exists) => Ok(exists),
            None => Ok(self.known()?.1),
        }
    }

    /// Adds a line to the log. What is too much is dropped.
    pub fn log(&mut self, line: String) {
        if self.log.len() < LOG_LINES_MAX && self.log_bytes + line.len() <= LOG_BYTES_MAX {
            self.log_bytes += line.len();
            self.log.push(line);
        }
    }
}

/// Converts bytes to a key's name.
pub(crate) fn key(bytes: &[u8]) -> Result<Key, Failed> {
    Key::new(Bytes::copy_from_slice(bytes)).map_err(|error| Failed::Errno(errno::EINVAL, error.message))
}

/// Converts bytes to a fork's name.
pub(crate) fn fork(bytes: &[u8]) -> Result<Fork, Failed> {
    let fork = Fork::new(Bytes::copy_from_slice(bytes))
        .map_err(|error| Failed::Errno(errno::EINVAL, error.message))?;
    if nacre_object::stage::is_reserved(&fork) {
        return Err(Failed::Errno(errno::EPERM, format!("fork \"{fork}\" is reserved")));
    }
    Ok(fork)
}
