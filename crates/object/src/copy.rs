//! Copying of objects from one store to another with their versions: the way for a site to grow from one machine to a
//! cluster, and back.
//!
//! The seam has no call that sets versions, and needs none: a transaction that proposes a version is stamped with it if
//! it is ahead of the object's ([`Guard::Proposal`]). So an object is *replayed*: its extents are written in ascending
//! order of their versions, all those of one version in one transaction that proposes it; keys and attributes go along,
//! or take versions that no extent has; the last transaction proposes the object's own version. (Everything that
//! carries one version was written by one transaction, and so fits into one again; or it replaced another fork, and
//! does so again: [`WriteOp::ReplaceFork`].)
//!
//! **One version.** A copy is the original as of one version. Everything that a copy must know of an object in advance
//! is read in one transaction, with its bytes and keys as far as a reply holds them, so small objects are copied
//! however often they are written. Other bytes are read on the condition that they did not change since; if they did,
//! the object is started again, and only the newer part is left to do. A copy of an object that changes faster than
//! that is given up after [`ATTEMPTS_MAX`] attempts, and reported.
//!
//! **Not yet whole.** At each moment the copy is what the original would look like if nothing newer than the copy's
//! version had been written yet. An interrupted copy resumes from there, at the destination's version, without any
//! record beside the objects. For the same reason, copying again later brings over only what changed since. An object
//! that takes several transactions has the fork [`MARK`] from the first to the last: its presence marks a copy that is
//! not complete. There is no such moment where a removed object was copied before, or where one transaction does it
//! all.
//!
//! **Streams.** A stream's bytes are in other objects than its head, which names them in its record, and which is replaced as
//! one. So a head is copied, at one version, after all objects of the content that it names at that version, and if it
//! changed in between, all of it again: the objects of the earlier content may be gone.
//!
//! **Files of a namespace.** The same holds for the inode of a file, which names its present content. But it changes with each
//! write into the file too: after a few attempts it is enough that it names the same content. What is written during
//! the copy may then be missing.
//!
//! **Namespaces.** What spans several inodes, such as a move to another directory, would be torn. So the metadata of a
//! namespace is copied again until the copy is what it was at one moment. What was removed meanwhile is
//! removed from the copy too; the objects of such a file's content stay there, for the namespace's own check to remove.
//!
//! **What is not copied**: the records of lock servers, which are about the sessions of the one store, and which those of the
//! other would not read while they run ([`is_lock_ledger`]); staged forks and everything else that has a reserved name ([`crate::stage`]), and what
//! cannot be seen through the seam, which is the versions of objects that were removed, and of forks other than the
//! default one that do not exist (any more). Clients must not carry versions that they read in the one store over to
//! the other for those. Nor are versions of keys: a key of the copy has the version of the transaction that brought it,
//! which is not greater than the object's. Fences and fenced sessions are copied. Where such a fork is created after a first copy was made, its oldest holes get a newer version
//! in the copy.

mod look;
mod namespace;
mod pairs;
mod plan;
mod replay;

use look::ObjectSnapshot;

use crate::limit::PAGE_ENTRIES_MAX;
use crate::stripe::record::{PREFIX, RECORD, Record};
use crate::*;

/// The maximum number of times that a copy of an object is started because the object was written to meanwhile.
pub const ATTEMPTS_MAX: usize = 20;
/// The number of attempts for which the inode of a file must stand still while the objects of its content are copied.
const STILL_ATTEMPTS: usize = 3;
/// The prefixes of the ids of a namespace's inodes, and of the objects that hold the bytes of its files: there, the inode's
/// number and the content's follow.
const INODES: &str = "nacre/fs/i/";
const FILES: &str = "nacre/fs/d/";
/// The name of the object with the records of a lock server; a number may follow, behind a hyphen.
const LOCKS: &str = "nacre/locks";
/// The fork that an object has in the destination as long as its copy is not complete.
pub const MARK: &str = ".nacre.copying";

/// The result of a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Objects that are now the same in both stores.
    pub objects: u64,
    /// Objects among these that were the same already.
    pub unchanged: u64,
    /// Bytes of extents that were written.
    pub bytes: u64,
    /// Objects that were not copied, or not wholly, with the reason.
    pub failed: Vec<(ObjectId, StoreError)>,
}

/// Returns whether an object of this name is that of a lock server's records.
pub fn is_lock_ledger(object: &ObjectId) -> bool {
    let number = |rest: &[u8]| !rest.is_empty() && rest.iter().all(u8::is_ascii_digit);
    match object.as_bytes().strip_prefix(LOCKS.as_bytes()) {
        Some([]) => true,
        Some([b'-', rest @ ..]) => number(rest),
        _ => false,
    }
}

/// Copies all objects of a store into another one, in the order of their ids. `progress` is called after each
/// transaction that was written, and after each object, with the totals so far, which do not count the records of lock
/// servers ([`is_lock_ledger`]): they are left out. An object that cannot be copied
/// (because it is damaged, is written all the time, or has a different namesake in the destination) is reported, and
/// the others are still copied. A namespace is copied as it was at one moment; one that is changed all the time is reported
/// with the object `nacre/fs/tree`.
///
/// # Errors
///
/// Errors that would affect the next object too: a store that cannot be reached, is full or takes no writes. What was
/// copied stays, and the next attempt resumes from there.
pub async fn copy_objects(
    source: &dyn ObjectStore,
    destination: &dyn ObjectStore,
    mut progress: impl FnMut(&ObjectId, &Copied),
) -> Result<Copied, StoreError> {
    let mut totals = Copied::default();
    let mut after = None;
    // Objects of streams that were copied before their turn, with their heads.
    let mut early = 0;
    let mut has_namespace = false;
    loop {
        let page = source.list(after.as_ref(), PAGE_ENTRIES_MAX).await?;
        let Some(last) = page.last() else { break };
        for object in &page {
            has_namespace |= object.as_bytes().starts_with(namespace::NAMESPACE.as_bytes());
            if is_lock_ledger(object) {
                progress(object, &totals);
                continue;
            }
            let mut wrote = |bytes| {
                totals.bytes += bytes;
                progress(object, &totals);
            };
            match copy_one(source, destination, object, &mut early, &mut wrote).await {
                Ok(unchanged) => {
                    totals.objects += 1;
                    let copied_early = unchanged && early > 0 && is_stripe(object);
                    early -= u64::from(copied_early);
                    totals.unchanged += u64::from(unchanged && !copied_early);
                }
                Err(error) if is_of_the_store(error.kind) => return Err(error),
                Err(error) => totals.failed.push((object.clone(), error)),
            }
            progress(object, &totals);
        }
        after = Some(last.clone());
    }
    if has_namespace {
        namespace::settle(source, destination, &mut totals, &mut progress).await?;
    }
    Ok(totals)
}

/// Copies one object, or the part of it that the destination does not have yet. With the head of a stream go the objects of
/// its present content.
///
/// # Errors
///
/// Those of the stores; [`ErrorKind::Busy`] if the object is written all the time, or another client writes the copy;
/// [`ErrorKind::Invalid`] if the destination has an object of this name that is no earlier state of it.
pub async fn copy_object(
    source: &dyn ObjectStore,
    destination: &dyn ObjectStore,
    object: &ObjectId,
) -> Result<Copied, StoreError> {
    let mut copied = Copied { objects: 1, ..Copied::default() };
    let mut wrote = |bytes| copied.bytes += bytes;
    copied.unchanged = u64::from(copy_one(source, destination, object, &mut 0, &mut wrote).await?);
    Ok(copied)
}

/// Returns whether a failure is one of the store rather than of an object.
fn is_of_the_store(kind: ErrorKind) -> bool {
    use ErrorKind::*;
    matches!(kind, OutOfSpace | ReadOnly | Unavailable | Unknown | Denied | Closed)
}

/// Returns whether an object holds bytes of a stream.
fn is_stripe(object: &ObjectId) -> bool {
    object.as_bytes().starts_with(PREFIX.as_bytes())
}

/// Returns whether an object holds bytes of a stream, or of a file of a namespace.
fn is_content(object: &ObjectId) -> bool {
    is_stripe(object) || object.as_bytes().starts_with(FILES.as_bytes())
}

/// Copies one object, the head of a stream after the objects of its content; returns true if there was nothing to do. `early`
/// is raised by the number of those objects that were copied and have their turn yet. `wrote` gets the bytes of each
/// transaction.
async fn copy_one(
    source: &dyn ObjectStore,
    destination: &dyn ObjectStore,
    object: &ObjectId,
    early: &mut u64,
    wrote: &mut dyn FnMut(u64),
) -> Result<bool, StoreError> {
    let (mut ready, mut failed) = (None, None);
    for attempt in 0..ATTEMPTS_MAX {
        match copy_until_done(source, destination, object, ready, wrote).await? {
            Attempt::Head { version, content: Content { prefix, file } } => {
                failed = None;
                match copy_content(source, destination, prefix, object, wrote).await {
                    Ok(copied) => *early += copied,
                    // The rest of a damaged file is of use, and nothing has it without its inode.
                    Err(error) if file.is_some() && !is_of_the_store(error.kind) => failed = Some(error),
                    Err(error) => return Err(error.context(format_args!("copying stream \"{object}\""))),
                }
                ready = Some(Ready { version, file: file.filter(|_| attempt >= STILL_ATTEMPTS) });
            }
            Attempt::Done { unchanged } => return failed.map_or(Ok(unchanged), Err),
            Attempt::Changed => break,
        }
    }
    let text = format!(
        "copying object \"{object}\": it is written all the time, and {ATTEMPTS_MAX} attempts did not find it at one \
         version; try again when it is quiet"
    );
    Err(StoreError::new(ErrorKind::Busy, text))
}

/// Copies the objects of a content. Returns how many of them were copied whose ids are behind the head's.
async fn copy_content(
    source: &dyn ObjectStore,
    destination: &dyn ObjectStore,
    prefix: Option<String>,
    head: &ObjectId,
    wrote: &mut dyn FnMut(u64),
) -> Result<u64, StoreError> {
    let Some(prefix) = prefix else { return Ok(0) };
    let mut after = ObjectId::new(prefix.clone())?;
    let mut copied = 0;
    loop {
        let page = source.list(Some(&after), PAGE_ENTRIES_MAX).await?;
        let Some(last) = page.last().cloned() else { return Ok(copied) };
        for object in &page {
            if !object.as_bytes().starts_with(prefix.as_bytes()) {
                return Ok(copied);
            }
            // It has had its turn, unless it is new: its bytes need not be read again to see that it is the same.
            if object < head && is_same(source, destination, object).await? {
                continue;
            }
            match copy_until_done(source, destination, object, None, wrote).await? {
                Attempt::Done { unchanged } => copied += u64::from(!unchanged && object > head),
                Attempt::Head { .. } | Attempt::Changed => {
                    let text = format!("object \"{object}\" is written all the time");
                    return Err(StoreError::new(ErrorKind::Busy, text));
                }
            }
        }
        after = last;
    }
}

/// Returns whether an object is the same in both stores, as far as can be seen without its bytes.
async fn is_same(
    source: &dyn ObjectStore,
    destination: &dyn ObjectStore,
    object: &ObjectId,
) -> Result<bool, StoreError> {
    let Some(to) = ObjectSnapshot::outline(destination, object, &[]).await? else { return Ok(false) };
    let Some(from) = ObjectSnapshot::outline(source, object, &[]).await? else { return Ok(false) };
    Ok(from.stat == to.stat && !to.marked)
}

/// The content that a head or an inode names.
struct Content {
    /// The prefix of the ids of its objects.
    prefix: Option<String>,
    /// Its number, if it is that of a file of a namespace.
    file: Option<u64>,
}

/// The state of a head for which the objects of its content were copied.
#[derive(Clone, Copy)]
struct Ready {
    /// The version of the head or the inode.
    version: u64,
    /// The content of a file, if its inode may be at any version that names it.
    file: Option<u64>,
}

/// Returns the number of the present content of a file, given the record of its inode. `None` if it has none, or is no
/// file.
fn file_content(record: &[u8]) -> Option<u64> {
    file_names(record).map(|(_, number)| number).filter(|number| *number > 0)
}

/// Returns the links of a file, and the number of its present content, which is 0 if it has none, given the record of its
/// inode as `nacre-meta` writes it. `None` if it is no file.
fn file_names(record: &[u8]) -> Option<(&[u8], u64)> {
    // Format 1, or 2, which has more at the end, and kind 1; permissions, owner and group; four times.
    let (head, rest) = record.split_at_checked(2 + 3 * 4 + 4 * 8)?;
    if !matches!(head, [1 | 2, 1, ..]) {
        return None;
    }
    let (links, rest) = rest.split_first_chunk()?;
    let links = u32::from_le_bytes(*links) as usize;
    let (links, rest) = rest.split_at_checked(links.checked_mul(8)?)?;
    // The size and the layout.
    let (_, rest) = rest.split_at_checked(8 + 16)?;
    Some((links, u64::from_le_bytes(*rest.first_chunk()?)))
}

/// The end of an attempt to copy an object.
enum Attempt {
    /// It is copied.
    Done {
        /// True if there was nothing to do.
        unchanged: bool,
    },
    /// The source was written to meanwhile.
    Changed,
    /// It is the head of a stream, or the inode of a file, at a version for which the objects of its content were not
    /// copied.
    Head { version: u64, content: Content },
}

/// Copies one object, again if it was written to meanwhile, a bounded number of times; a head only if it is `ready`.
async fn copy_until_done(
    source: &dyn ObjectStore,
    destination: &dyn ObjectStore,
    object: &ObjectId,
    ready: Option<Ready>,
    wrote: &mut dyn FnMut(u64),
) -> Result<Attempt, StoreError> {
    for _ in 0..ATTEMPTS_MAX {
        let copy = Copy { source, destination, object, ready, wrote: &mut *wrote };
        // Where the source changed meanwhile, what was brought over stands.
        match copy.run().await.map_err(|error| error.context(format_args!("copying object \"{object}\"")))? {
            Attempt::Changed => {}
            attempt => return Ok(attempt),
        }
    }
    Ok(Attempt::Changed)
}

/// The copying of one object.
struct Copy<'a> {
    source: &'a dyn ObjectStore,
    destination: &'a dyn ObjectStore,
    object: &'a ObjectId,
    /// The state of the head for which the objects of its content were copied.
    ready: Option<Ready>,
    wrote: &'a mut dyn FnMut(u64),
}

impl Copy<'_> {
    /// Runs the copy once.
    async fn run(mut self) -> Result<Attempt, StoreError> {
        // Forks that only one of the two has are looked at in the other as well.
        let Some(to) = ObjectSnapshot::outline(self.destination, self.object, &[]).await? else {
            return Ok(Attempt::Changed);
        };
        let Some(mut from) = ObjectSnapshot::whole(self.source, self.object, &to.names(), &[]).await? else {
            return Ok(Attempt::Changed);
        };
        let Some(to) = ObjectSnapshot::outline(self.destination, self.object, &from.names()).await? else {
            return Ok(Attempt::Changed);
        };
        if from.stat.version == 0 || from.stat == to.stat && !to.marked {
            return Ok(Attempt::Done { unchanged: true });
        }
        // A content's object that was listed and is gone since: the copy's head may name it.
        if !from.stat.exists && is_content(self.object) {
            return Ok(Attempt::Done { unchanged: true });
        }
        if to.stat.version >= from.stat.version {
            return Err(differs(&from, &to));
        }
        let mut steps = plan::steps(&from, &to).ok_or_else(|| differs(&from, &to))?;
        // What has to be read still may be little enough to be read together with all the rest.
        let missing = from.missing(&steps);
        if !missing.is_empty() {
            let Some(again) = ObjectSnapshot::whole(self.source, self.object, &to.names(), &missing).await?
            else {
                return Ok(Attempt::Changed);
            };
            if !to.covers(&again) {
                return Ok(Attempt::Changed);
            }
            steps = plan::steps(&again, &to).ok_or_else(|| differs(&again, &to))?;
            from = again;
        }
        // The look that is copied from must be the one at which the objects of the content are there.
        if let Some(content) = self.content_to_copy(&from) {
            return Ok(Attempt::Head { version: from.stat.version, content });
        }
        let Some(()) = self.replay(&from, &to, steps).await? else { return Ok(Attempt::Changed) };
        match ObjectSnapshot::outline(self.destination, self.object, &[]).await? {
            Some(copy) if copy.equals(&from) && !copy.marked => Ok(Attempt::Done { unchanged: false }),
            Some(copy) => {
                let text = format!("the copy is {:?}, the original {:?}", copy.stat, from.stat);
                Err(StoreError::new(ErrorKind::Corrupt, text))
            }
            None => Err(StoreError::new(ErrorKind::Busy, "another client is writing the copy")),
        }
    }

    /// Returns the content whose objects have to be copied before this one, which is a head.
    fn content_to_copy(&self, from: &ObjectSnapshot) -> Option<Content> {
        let content = self.content_named(from)?;
        let is_ready = self.ready.is_some_and(|ready| {
            ready.version == from.stat.version || ready.file.is_some() && ready.file == content.file
        });
        (!is_ready).then_some(content)
    }

    /// Returns the content that the object names, if it is the head of a stream or the inode of a file.
    fn content_named(&self, from: &ObjectSnapshot) -> Option<Content> {
        if let Some(inode) = self.object.as_bytes().strip_prefix(INODES.as_bytes()) {
            let inode = std::str::from_utf8(inode).ok()?;
            let mut keys = from.keys.iter().flatten();
            let (_, record) = keys.find(|(name, _)| name.as_bytes() == b"a")?;
            let number = file_content(record)?;
            return Some(Content { prefix: Some(format!("{FILES}{inode}/{number:x}/")), file: Some(number) });
        }
        let mut attributes = from.attributes.iter();
        let (_, record) = attributes.find(|(name, _)| name.as_bytes() == RECORD.as_bytes())?;
        if is_content(self.object) {
            return None;
        }
        let record = Record::decode(record);
        let prefix = record.and_then(|record| record.present().map(|content| content.prefix()));
        Some(Content { prefix, file: None })
    }
}

fn differs(from: &ObjectSnapshot, to: &ObjectSnapshot) -> StoreError {
    let text = format!(
        "the destination has an object of that name at version {} which is not an earlier state of the source's at \
         version {}: remove it there first",
        to.stat.version, from.stat.version
    );
    StoreError::new(ErrorKind::Invalid, text)
}
