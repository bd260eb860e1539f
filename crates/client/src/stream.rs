//! Streams: byte streams larger than one object, striped over many.
//!
//! A stream has a *head*, the object of its name, whose attribute [`RECORD`] says how long the stream is and which
//! *contents* it has: the present one, those that are being put, and those that are to be removed. Each content has
//! objects of its own, whose names no other content ever has. Before an object is first written, the record says that
//! it may exist, so whoever removes the stream knows all that there is to remove; and an object that was removed is
//! never made again, so what a late writer sends finds nothing and leaves nothing.
//!
//! An object stays the unit of atomicity: a write into one stripe takes effect wholly or not at all, one that
//! covers several stripes may be seen in parts. What is atomic all the same is [`Stream::put`], which writes a content
//! beside the present one and makes it the present one by one transaction on the head.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), nacre::Error> {
//! let stream = nacre::open("mem:")?.stream("video")?;
//! stream.put(&b"first"[..]).await?;
//! // It is the old content, or the new one.
//! stream.put(&b"second"[..]).await?;
//! assert_eq!(stream.read(0, 100).await?, "second");
//! assert!(stream.remove().await?);
//! # Ok(())
//! # }
//! ```
//!
//! - [`Stream::write`] first makes the stream as long as it will be, then writes: what was never written reads as zeros.
//! - Bytes behind the end, left by a truncation or by a writer that was too late for one, are zeroed before the stream
//!   grows over them. `reached` bounds where there can be any.

use std::collections::{BTreeMap, VecDeque};
use std::io::SeekFrom;
use std::ops::Range;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream};
use nacre_object::limit::OFFSET_MAX;
use nacre_object::stripe::record::{Content, Record, State, now};
pub use nacre_object::stripe::record::{PREFIX, RECORD};
use nacre_object::{
    Answer, ByteRange, Check, ErrorKind, ExtentKind, Fork, Guard, Intent, Key, ObjectId, ObjectStore,
    Outcome, ReadOp, Reply, StoreError, Transaction, WriteOp,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncSeek, AsyncSeekExt, AsyncWrite, AsyncWriteExt};

use crate::Store;
use crate::transfer::{RetryBudget, source_error, target_error};

export! {
    /// ```
    /// use nacre::stream::{Layout, Piece};
    ///
    /// // Stripes of 64 KiB over four objects.
    /// let layout = Layout { unit_bytes: 64 << 10, width: 4, object_bytes: 1 << 20 };
    /// assert!(layout.is_sound());
    /// // The second stripe begins in the second object.
    /// let pieces: Vec<Piece> = layout.pieces(60 << 10, 8 << 10).collect();
    /// assert_eq!((pieces[0].object, pieces[0].len), (0, 4 << 10));
    /// assert_eq!((pieces[1].object, pieces[1].offset, pieces[1].at), (1, 0, 64 << 10));
    /// ```
    "The way in which a stream's bytes are dealt out to objects: stripes of `unit_bytes` go round `width` objects until each of them holds `object_bytes`, then round the next `width` ones." nacre_object::stripe::Layout;
    "A piece of a byte range of a stream: what one object holds of it, without a gap." nacre_object::stripe::Piece;
}

/// The time without progress after which the writer of a content is taken to be dead.
const STALE_AFTER: Duration = nacre_object::stage::STALE_AFTER;
/// The interval at which a writer that makes progress writes that down.
const REFRESH_AFTER: Duration = nacre_object::stage::REFRESH_AFTER;
/// The number of requests about objects of one stream that are under way at a time.
const REQUESTS_MAX: usize = 8;
/// The maximum number of attempts to change a record that others change.
const ATTEMPTS_MAX: usize = 1000;
/// The maximum number of objects that are removed one by one; of more, the store lists those that exist.
const OBJECTS_ASKED_MAX: u64 = 4096;
/// The length of a stripe where nothing else is said: one transfer's piece.
const UNIT_BYTES: u64 = 4 << 20;
const WIDTH: u32 = 4;
const OBJECT_BYTES: u64 = 64 << 20;

/// A stream of a store: a byte stream of up to 2^63 bytes under the name of an object.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), nacre::Error> {
/// let store = nacre::open("mem:")?;
/// let stream = store.stream("video")?;
/// stream.put(&b"0123456789"[..]).await?;
/// assert_eq!(stream.read(2, 3).await?, "234");
///
/// // Parts that share no stripe are written side by side.
/// stream.write(10, "abc").await?;
/// let nacre::StreamStat { size, layout } = stream.stat().await?.unwrap();
/// assert_eq!(size, 13);
/// assert!(layout.is_sound());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Stream {
    store: Store,
    head: ObjectId,
}

/// A stream at a glance.
///
/// ```
/// use nacre::stream::{Layout, StreamStat};
///
/// # futures::executor::block_on(async {
/// let stream = nacre::open("mem:")?.stream("video")?;
/// assert!(stream.stat().await?.is_none());
/// stream.create(Layout::default()).await?;
/// assert_eq!(stream.stat().await?, Some(StreamStat { size: 0, layout: Layout::default() }));
/// # Ok::<(), nacre::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamStat {
    /// The size in bytes.
    pub size: u64,
    /// The layout of what is written next.
    pub layout: Layout,
}

/// The outcome of a write into an object of a content.
enum Sent {
    Done,
    /// The content was removed.
    Stale,
}

/// An object of a content, as it was found.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Found {
    index: u64,
    version: u64,
    exists: bool,
}

impl Found {
    /// Returns whether bytes of the content are lost with the object, if the content is still the present one: objects of
    /// the present content are never removed.
    fn is_lost(&self, content: &Content) -> bool {
        !self.exists && (self.version > 0 || self.index < content.dense)
    }

    fn error(&self, content: &Content) -> StoreError {
        let object = content.object(self.index);
        let text =
            format!("object \"{object}\", which holds some of its bytes, is missing: it was removed or lost");
        StoreError::new(ErrorKind::Corrupt, text)
    }
}

impl Store {
    /// Returns a handle on a stream of the store, whether it exists or not.
    ///
    /// A stream is a byte stream of any length, striped over objects; what stands about atomicity at [`Object`] holds for
    /// each of its stripes ([`Layout`]), and for [`Stream::put`] as a whole.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the name is not 1 to 255 bytes long.
    ///
    /// [`Object`]: crate::Object
    pub fn stream(&self, name: impl AsRef<[u8]>) -> Result<Stream, StoreError> {
        let head = ObjectId::new(Bytes::copy_from_slice(name.as_ref()))?;
        Ok(Stream { store: self.clone(), head })
    }
}

impl Stream {
    /// Returns the id of the head.
    pub fn id(&self) -> &ObjectId {
        &self.head
    }

    /// Returns the layout that suits the store.
    ///
    /// # Errors
    /// Those of a [read](crate#errors).
    pub async fn default_layout(&self) -> Result<Layout, StoreError> {
        let most = self.store.limits().await?.fork_bytes_max;
        let unit = UNIT_BYTES.min(most / 2).max(4096) / 4096 * 4096;
        // Half of what an object may hold: what is overwritten may take as much again until it is compacted.
        let object_bytes = (OBJECT_BYTES.min(most / 2) / unit).max(1) * unit;
        Ok(Layout { unit_bytes: unit as u32, width: WIDTH, object_bytes })
    }

    fn context(&self, error: StoreError, attempted: &str) -> StoreError {
        let error = error.with_operation(attempted).with_object(&self.head).with_store(self.store.name());
        error.context(format_args!("cannot {attempted} stream \"{}\" of {}", self.head, self.store.name()))
    }

    /// Reads the record, and its text. `None` if the object has none.
    async fn load(&self) -> Result<Option<(Record, Bytes)>, StoreError> {
        let read = Transaction::new().read(ReadOp::Attribute { name: Key::try_from(RECORD)? });
        match answers(self.store.apply(&self.head, read).await?)?.pop() {
            Some(Answer::Value(Some(text))) => match Record::decode(&text) {
                Some(record) => Ok(Some((record, text))),
                None => {
                    let text = "its record is damaged, or a newer version of Nacre wrote it";
                    Err(StoreError::new(ErrorKind::Corrupt, text))
                }
            },
            Some(Answer::Value(None)) => Ok(None),
            _ => Err(nonsense()),
        }
    }

    async fn load_created(&self) -> Result<(Record, Bytes), StoreError> {
        self.load().await?.filter(|(record, _)| record.created).ok_or_else(no_such_stream)
    }

    /// Replaces the record if it is still the given one; with that, makes other changes of the head.
    async fn replace_record(
        &self,
        before: Option<&Bytes>,
        record: &Record,
        changes: Vec<WriteOp>,
    ) -> Result<bool, StoreError> {
        let name = Key::try_from(RECORD)?;
        let check = before.map_or(Check::Absent, |before| Check::Equal(before.clone()));
        let transaction = Transaction::new()
            .guard(Guard::Attribute { name: name.clone(), check })
            .change(WriteOp::SetAttribute { name, value: record.encode() });
        let transaction = changes.into_iter().fold(transaction, Transaction::change);
        Ok(matches!(self.store.apply(&self.head, transaction).await?, Outcome::Done(_)))
    }

    /// Changes the record of a stream that exists.
    async fn update<T>(
        &self,
        mut change: impl FnMut(&mut Record) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        for _ in 0..ATTEMPTS_MAX {
            let (mut record, text) = self.load().await?.ok_or_else(no_such_stream)?;
            let result = change(&mut record)?;
            if record.encode() == text || self.replace_record(Some(&text), &record, Vec::new()).await? {
                return Ok(result);
            }
        }
        Err(too_busy())
    }

    /// Creates an empty stream. Returns false if there is one already.
    ///
    /// # Errors
    /// Those of a [write](crate#errors). [`ErrorKind::Invalid`] if the layout makes no sense, or does not fit the store, or
    /// if there is an object of that name which is no stream.
    pub async fn create(&self, layout: Layout) -> Result<bool, StoreError> {
        self.create_stream(layout).await.map_err(|error| self.context(error, "create"))
    }

    async fn create_stream(&self, layout: Layout) -> Result<bool, StoreError> {
        let most = self.store.limits().await?.fork_bytes_max;
        if !layout.is_sound() || layout.object_bytes > most {
            let text = format!(
                "stripes of {} bytes over {} objects of {} bytes: stripes have 4 KiB to 16 MiB, widths go to 1024, and \
                 objects are multiples of stripes and at most {most} bytes long in this store",
                layout.unit_bytes, layout.width, layout.object_bytes
            );
            return Err(StoreError::new(ErrorKind::Invalid, text));
        }
        for _ in 0..ATTEMPTS_MAX {
            let (mut record, before) = match self.load().await? {
                Some((record, _)) if record.created => return Ok(false),
                Some((record, text)) => (record, Some(text)),
                None => (Record { created: false, layout, contents: Vec::new() }, None),
            };
            (record.created, record.layout) = (true, layout);
            let name = Key::try_from(RECORD)?;
            let fresh = match &before {
                Some(text) => Guard::Attribute { name: name.clone(), check: Check::Equal(text.clone()) },
                None => Guard::Absent,
            };
            let create = Transaction::new()
                .guard(fresh)
                .change(WriteOp::SetAttribute { name, value: record.encode() });
            if let Outcome::Done(_) = self.store.apply(&self.head, create).await? {
                return Ok(true);
            }
            if before.is_none() && self.load().await?.is_none() {
                let text = "there is an object of that name, and it is not a stream";
                return Err(StoreError::new(ErrorKind::Invalid, text));
            }
        }
        Err(too_busy())
    }

    /// Returns the stream at a glance, or `None` if there is none.
    ///
    /// # Errors
    /// Those of a [read](crate#errors).
    pub async fn stat(&self) -> Result<Option<StreamStat>, StoreError> {
        let loaded = self.load().await.map_err(|error| self.context(error, "look at"))?;
        let created = loaded.filter(|(record, _)| record.created);
        Ok(created.map(|(record, _)| StreamStat { size: record.size(), layout: record.layout }))
    }

    /// Reads at most `len` bytes. Fewer come only at the end. Each stripe shows one moment.
    ///
    /// # Errors
    /// Those of a [read](crate#errors). [`ErrorKind::Invalid`] if there is no such stream.
    pub async fn read(&self, offset: u64, len: usize) -> Result<Bytes, StoreError> {
        let read = async {
            for _ in 0..ATTEMPTS_MAX {
                let (record, _) = self.load_created().await?;
                let len = record.size().saturating_sub(offset).min(len as u64);
                let Some(content) = record.present().filter(|_| len > 0) else { return Ok(Bytes::new()) };
                let pieces = content.layout.pieces(offset, len);
                let reads = pieces.map(|piece| self.read_piece(content, piece));
                let parts: Vec<(Bytes, Found)> =
                    stream::iter(reads).buffered(REQUESTS_MAX).try_collect().await?;
                if parts.iter().any(|(_, found)| !found.exists) {
                    // Perhaps a hole, perhaps a content that has been removed.
                    let (now, _) = self.load_created().await?;
                    if now.present().map(|now| now.number) != Some(content.number) {
                        continue;
                    }
                    if let Some((_, lost)) = parts.iter().find(|(_, found)| found.is_lost(content)) {
                        return Err(lost.error(content));
                    }
                }
                if let [(only, _)] = &parts[..] {
                    return Ok(only.clone());
                }
                let mut bytes = BytesMut::with_capacity(len as usize);
                parts.iter().for_each(|(part, _)| bytes.extend_from_slice(part));
                return Ok(bytes.freeze());
            }
            Err(too_busy())
        };
        read.await.map_err(|error| self.context(error, "read"))
    }

    /// Reads a piece; returns also what became known of its object.
    async fn read_piece(&self, content: &Content, piece: Piece) -> Result<(Bytes, Found), StoreError> {
        let (object, mut bytes) = (content.object(piece.object), BytesMut::new());
        loop {
            let have = bytes.len() as u64;
            let range = ByteRange::new(piece.offset + have, piece.len - have);
            let read = Transaction::new().read_range(Fork::DEFAULT, range);
            let Outcome::Done(done) = self.store.apply(&object, read).await? else { return Err(nonsense()) };
            let found = Found { index: piece.object, version: done.version, exists: done.existed };
            let Some(Answer::Range(read)) = done.answers.into_iter().next() else { return Err(nonsense()) };
            if bytes.is_empty() && read.data.len() as u64 == piece.len {
                return Ok((read.data, found));
            }
            bytes.extend_from_slice(&read.data);
            // What the answer covers and does not give are zeros behind the object's end.
            let covered = read.next.unwrap_or(range.end()).clamp(range.offset, range.end()) - piece.offset;
            bytes.resize(bytes.len().max(covered as usize), 0);
            if bytes.len() as u64 >= piece.len {
                return Ok((bytes.freeze(), found));
            }
            if covered <= have {
                return Err(nonsense());
            }
        }
    }

    /// Writes bytes; the stream becomes longer if they go beyond its end. Writers of ranges that share no stripe do not
    /// disturb each other. Where many of them write a stream whose length is known, [`Stream::truncate`] it to that
    /// length first: then none of them has to make it longer.
    ///
    /// # Errors
    /// Those of a [write](crate#errors), which say what became of one stripe. Of bytes that go over several, others may
    /// have been written, or may yet, and the stream may be longer already; writing the same again does no harm.
    /// [`ErrorKind::Unknown`]: each stripe may or may not be written. [`ErrorKind::Invalid`] if there is no such stream, or
    /// the bytes go past 2^63.
    pub async fn write(&self, offset: u64, data: impl Into<Bytes>) -> Result<(), StoreError> {
        let data = data.into();
        let written = async {
            if data.is_empty() {
                return self.load_created().await.map(drop);
            }
            let end = end_of(offset, data.len() as u64)?;
            for _ in 0..ATTEMPTS_MAX {
                let content = self.grow(end).await?;
                match self.write_content(&content, offset, &data, false).await? {
                    Sent::Done => return Ok(()),
                    // Truncated to nothing, or replaced, since: this write comes after that.
                    Sent::Stale => {}
                }
            }
            Err(too_busy())
        };
        written.await.map_err(|error| self.context(error, "write"))
    }

    /// Makes the stream at least `end` bytes long. Returns its present content.
    async fn grow(&self, end: u64) -> Result<Content, StoreError> {
        for _ in 0..ATTEMPTS_MAX {
            let (mut record, text) = self.load_created().await?;
            self.owned(&record)?;
            let content = match record.present() {
                Some(content) if content.size >= end => return Ok(*content),
                Some(content) => *content,
                None => record.begin(&self.head, State::Present)?,
            };
            // Behind what the stream ever reached, there is nothing.
            if !self.clear(&content, content.size, end.min(content.reached), &text).await? {
                continue;
            }
            let mut longer = content;
            longer.size = end;
            longer.reached = content.reached.max(end);
            longer.objects = content.objects.max(content.layout.objects(end));
            if let Some(kept) = record.content_mut(content.number) {
                *kept = longer;
            }
            if self.replace_record(Some(&text), &record, Vec::new()).await? {
                return Ok(longer);
            }
        }
        Err(too_busy())
    }

    /// Checks that the present content may be changed: a head that was copied names that of another stream.
    fn owned(&self, record: &Record) -> Result<(), StoreError> {
        if record.present().is_none_or(|content| !content.is_foreign(&self.head)) {
            return Ok(());
        }
        let text = "its head was copied from another stream, to which its bytes belong: store all of it again, or remove it";
        Err(StoreError::new(ErrorKind::Invalid, text))
    }

    /// Zeroes what stands behind the stream's end, between two offsets, as long as the record stays as it was. Returns
    /// false if it did not.
    async fn clear(&self, content: &Content, from: u64, to: u64, record: &Bytes) -> Result<bool, StoreError> {
        let within = content.layout.objects_behind(content.objects, from, to);
        let mut dirty = Vec::new();
        for index in self.objects_of(content, within).await? {
            let Some(range) = content.layout.region_behind(index, from, to) else { continue };
            let object = content.object(index);
            let read = Transaction::new().read(ReadOp::Extents { fork: Fork::DEFAULT, range });
            let Some(Answer::Range(read)) = answers(self.store.apply(&object, read).await?)?.pop() else {
                return Err(nonsense());
            };
            if read.next.is_some() || read.extents.iter().any(|extent| extent.kind == ExtentKind::Data) {
                dirty.push((object, range, read.version));
            }
        }
        if dirty.is_empty() {
            return Ok(true);
        }
        // Whoever made the stream longer since may have written there; only then may the versions just read be theirs.
        if self.load().await?.is_none_or(|(_, now)| now != *record) {
            return Ok(false);
        }
        for (object, range, version) in dirty {
            let zero = Transaction::new()
                .guard(Guard::Exists)
                .if_version(Fork::DEFAULT, range, version)
                .change(WriteOp::Zero { fork: Fork::DEFAULT, range });
            if !matches!(self.store.apply(&object, zero).await?, Outcome::Done(_)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes bytes into the objects of a content; `again` if an earlier attempt may have made some of them.
    async fn write_content(
        &self,
        content: &Content,
        offset: u64,
        data: &Bytes,
        again: bool,
    ) -> Result<Sent, StoreError> {
        let pieces = content.layout.pieces(offset, data.len() as u64);
        let writes = pieces.map(|piece| {
            let from = (piece.at - offset) as usize;
            self.write_piece(content, piece, data.slice(from..from + piece.len as usize), again)
        });
        let mut writes = stream::iter(writes).buffer_unordered(REQUESTS_MAX);
        while let Some(sent) = writes.try_next().await? {
            if let Sent::Stale = sent {
                return Ok(Sent::Stale);
            }
        }
        Ok(Sent::Done)
    }

    async fn write_piece(
        &self,
        content: &Content,
        piece: Piece,
        data: Bytes,
        again: bool,
    ) -> Result<Sent, StoreError> {
        let object = content.object(piece.object);
        // An object that is made is made once: a guard tells it from one that was removed.
        let mut guard = Guard::Exists;
        for _ in 0..ATTEMPTS_MAX {
            let write =
                Transaction::new().guard(guard.clone()).write(Fork::DEFAULT, piece.offset, data.clone());
            match (self.store.apply(&object, write).await?, &guard) {
                (Outcome::Done(_), expected)
                    if piece.object >= OBJECTS_ASKED_MAX && (again || *expected != Guard::Exists) =>
                {
                    // Whoever removed the content meanwhile may not have known that there would be this object.
                    let loaded = self.load().await?;
                    if loaded.is_some_and(|(mut record, _)| record.content_mut(content.number).is_some()) {
                        return Ok(Sent::Done);
                    }
                    self.store.apply(&object, Transaction::new().change(WriteOp::Remove)).await?;
                    return Ok(Sent::Stale);
                }
                (Outcome::Done(_), _) => return Ok(Sent::Done),
                (Outcome::Refused(refusal), Guard::Exists) if refusal.version == 0 => {
                    guard = Guard::Version { version: 0 };
                }
                (Outcome::Refused(_), Guard::Exists) => return Ok(Sent::Stale),
                (Outcome::Refused(_), _) => guard = Guard::Exists,
            }
        }
        Err(too_busy())
    }

    /// Sets the size in bytes.
    ///
    /// # Errors
    /// Those of a [write](crate#errors). [`ErrorKind::Unknown`]: the stream may or may not have the size.
    /// [`ErrorKind::Invalid`] if there is no such stream, or the size is above 2^63.
    pub async fn truncate(&self, size: u64) -> Result<(), StoreError> {
        self.truncate_stream(size).await.map_err(|error| self.context(error, "truncate"))
    }

    async fn truncate_stream(&self, size: u64) -> Result<(), StoreError> {
        end_of(size, 0)?;
        for _ in 0..ATTEMPTS_MAX {
            let (mut record, text) = self.load_created().await?;
            self.owned(&record)?;
            if size >= record.size() {
                if size > record.size() {
                    self.grow(size).await?;
                }
                return Ok(());
            }
            match record.contents.iter_mut().find(|content| content.state == State::Present) {
                Some(content) if size > 0 => content.size = size,
                _ => record.bury_present(),
            }
            let shorter = record.encode();
            if !self.replace_record(Some(&text), &record, Vec::new()).await? {
                continue;
            }
            // Nothing depends on the rest: what stands behind the end is zeroed before the stream grows over it, and
            // what is dead is removed with the stream at last.
            match record.present() {
                Some(content) => drop(self.clear(content, size, content.reached, &shorter).await),
                None => drop(self.remove_dead().await),
            }
            return Ok(());
        }
        Err(too_busy())
    }

    /// Returns whether the stream's head was copied from another stream, to which its bytes belong. Such a stream can be read
    /// as long as the other one has them; to remove it removes its head alone.
    ///
    /// # Errors
    /// Those of a [read](crate#errors).
    pub async fn is_copied_head(&self) -> Result<bool, StoreError> {
        let loaded = self.load().await.map_err(|error| self.context(error, "look at"))?;
        let foreign = |content: &Content| content.is_foreign(&self.head);
        Ok(loaded.is_some_and(|(record, _)| record.present().is_some_and(foreign)))
    }

    /// Returns whether there is no stream, but what one leaves behind whose first content was not stored to its end, or whose
    /// removal did not end. [`Stream::remove`] takes that away, and [`Stream::put`] makes it a stream.
    ///
    /// # Errors
    /// Those of a [read](crate#errors).
    pub async fn is_incomplete(&self) -> Result<bool, StoreError> {
        let loaded = self.load().await.map_err(|error| self.context(error, "look at"))?;
        Ok(loaded.is_some_and(|(record, _)| !record.created))
    }

    /// Removes the stream with all its bytes. Returns false if there was none. Bytes that belong to another stream
    /// ([`Stream::is_copied_head`]) stay.
    ///
    /// # Errors
    /// Those of a [write](crate#errors). A removal that fails has left the stream as it was, or no stream and what is left of
    /// it ([`Stream::is_incomplete`]); to remove it again takes that up.
    pub async fn remove(&self) -> Result<bool, StoreError> {
        let removed = async {
            for _ in 0..ATTEMPTS_MAX {
                let Some((mut record, text)) = self.load().await? else { return Ok(false) };
                if record.contents.is_empty() {
                    let name = Key::try_from(RECORD)?;
                    let guard = Guard::Attribute { name, check: Check::Equal(text) };
                    let remove = Transaction::new().guard(guard).change(WriteOp::Remove);
                    if let Outcome::Done(_) = self.store.apply(&self.head, remove).await? {
                        return Ok(true);
                    }
                    continue;
                }
                record.contents.iter_mut().for_each(|content| content.state = State::Dead);
                // From here on there is no stream: nobody is to take what is left of it for an empty one.
                record.created = false;
                if record.encode() == text || self.replace_record(Some(&text), &record, Vec::new()).await? {
                    self.remove_dead().await?;
                }
            }
            Err(too_busy())
        };
        removed.await.map_err(|error| self.context(error, "remove"))
    }

    /// Removes the objects of contents that are dead, and takes them off the record.
    async fn remove_dead(&self) -> Result<(), StoreError> {
        let Some((record, _)) = self.load().await? else { return Ok(()) };
        let dead: Vec<Content> =
            record.contents.iter().filter(|content| content.state == State::Dead).copied().collect();
        for content in dead.iter().filter(|content| !content.is_foreign(&self.head)) {
            // The first ones are removed whether they exist or not, so that late writers find them removed; those of the
            // other ones look at the record.
            let first = 0..content.objects.min(OBJECTS_ASKED_MAX);
            let mut indexes = self.objects_of(content, first.clone()).await?;
            indexes.extend(self.objects_of(content, first.end..content.objects).await?);
            let removals = indexes.into_iter().map(async |index| {
                // So that none is ever made again, also those that were not there yet.
                let remove = Transaction::new().change(WriteOp::Create).change(WriteOp::Remove);
                self.store.apply(&content.object(index), remove).await.map(drop)
            });
            stream::iter(removals).buffer_unordered(REQUESTS_MAX).try_collect::<()>().await?;
        }
        let gone = |content: &Content| {
            dead.iter().any(|one| one.number == content.number && one.objects >= content.objects)
        };
        let taken_off = self.update(|record| {
            record.contents.retain(|content| content.state != State::Dead || !gone(content));
            Ok(())
        });
        match taken_off.await {
            // Somebody else removed the stream, to the end.
            Err(error) if error.kind == ErrorKind::Invalid => Ok(()),
            result => result,
        }
    }

    /// Returns the objects of a content, within a range of their numbers, that may exist: all of them if they are few, and
    /// otherwise those that the store lists. One byte far behind a stream's end may make its objects more than can be counted.
    async fn objects_of(&self, content: &Content, range: Range<u64>) -> Result<Vec<u64>, StoreError> {
        if range.end.saturating_sub(range.start) <= OBJECTS_ASKED_MAX {
            return Ok(range.collect());
        }
        let prefix = content.prefix();
        let (mut indexes, mut objects) = (Vec::new(), self.store.list_after(ObjectId::new(prefix.clone())?));
        while let Some(object) = objects.next().await? {
            let Some(index) = object.as_bytes().strip_prefix(prefix.as_bytes()) else { break };
            let index = std::str::from_utf8(index).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
            indexes.extend(index.filter(|index| range.contains(index)));
        }
        Ok(indexes)
    }

    /// Replaces the stream, or the object of that name, with everything that `source` gives, at once: others see the old
    /// content or the new one, and a failure before the end leaves the old one. Makes the stream if there is none.
    /// Returns the number of bytes.
    ///
    /// # Errors
    /// Where the store or the source fails, the content is the old one; only [`ErrorKind::Unknown`] leaves open which of
    /// the two it is. [`ErrorKind::Busy`] if what was written so far was taken away: by a removal of the stream, or because
    /// it had not got on for a day.
    pub async fn put(&self, source: impl AsyncRead + Unpin) -> Result<u64, StoreError> {
        let put = async {
            let layout = self.default_layout().await?;
            let begun = self.begin_put(layout).await?;
            let put = match self.fill(begun, source).await {
                Ok(content) => match self.patiently(|| self.load()).await {
                    // What ends the put is not repeated, so it is sent to a server that answers.
                    Ok(_) => self.commit(content).await.map(|()| content.size),
                    Err(error) => Err(error),
                },
                Err(error) => Err(without_effect(error)),
            };
            match put {
                Ok(bytes) => Ok(bytes),
                Err(error) => {
                    // What cannot be removed now is removed by a later put, or with the stream.
                    if error.kind != ErrorKind::Unknown {
                        drop(self.abandon(begun.number).await);
                    }
                    Err(error)
                }
            }
        };
        put.await.map_err(|error| self.context(error, "store all of"))
    }

    /// Makes an attempt again, as often as is needed, while the server is away. It must be one that may take effect twice.
    async fn patiently<T, Attempt>(&self, mut attempt: impl FnMut() -> Attempt) -> Result<T, StoreError>
    where
        Attempt: Future<Output = Result<T, StoreError>>,
    {
        let mut patience = RetryBudget::new(&self.store);
        loop {
            match attempt().await {
                Err(error) if patience.allows(&without_effect(error.clone())).await => {}
                result => return result,
            }
        }
    }

    /// Adds a content that is being put to the record, and makes the record if there is none.
    async fn begin_put(&self, layout: Layout) -> Result<Content, StoreError> {
        for attempt in 0..ATTEMPTS_MAX {
            let (mut record, before) = match self.load().await? {
                Some((record, text)) => (record, Some(text)),
                None => (Record { created: false, layout, contents: Vec::new() }, None),
            };
            // Writers that died are not waited for.
            let stale = now().saturating_sub(STALE_AFTER.as_secs());
            for content in &mut record.contents {
                if content.state == State::Pending && content.alive_at < stale {
                    content.state = State::Dead;
                }
            }
            let dead = record.contents.iter().any(|content| content.state == State::Dead);
            if dead && attempt == 0 {
                if before.is_some() && self.replace_record(before.as_ref(), &record, Vec::new()).await? {
                    self.remove_dead().await?;
                }
                continue;
            }
            let content = record.begin(&self.head, State::Pending)?;
            match self.replace_record(before.as_ref(), &record, Vec::new()).await {
                Ok(true) => return Ok(content),
                Ok(false) => {}
                Err(error) => {
                    // It may have begun all the same.
                    if error.kind.is_uncertain() {
                        drop(self.abandon(content.number).await);
                    }
                    return Err(without_effect(error));
                }
            }
        }
        Err(too_busy())
    }

    /// Writes the bytes of a content that is being put, and returns it with its size.
    async fn fill(
        &self,
        mut content: Content,
        mut source: impl AsyncRead + Unpin,
    ) -> Result<Content, StoreError> {
        let unit = u64::from(content.layout.unit_bytes);
        let mut refreshed = std::time::Instant::now();
        let mut under_way = stream::FuturesUnordered::new();
        let this = self;
        loop {
            let mut data = BytesMut::with_capacity(unit as usize);
            while (data.len() as u64) < unit {
                let room = unit - data.len() as u64;
                if (&mut source).take(room).read_buf(&mut data).await.map_err(source_error)? == 0 {
                    break;
                }
            }
            let (offset, data) = (content.size, data.freeze());
            let last = (data.len() as u64) < unit;
            content.size = end_of(offset, data.len() as u64)?;
            let wanted = content.layout.objects(content.size);
            if wanted > content.objects || refreshed.elapsed() >= REFRESH_AFTER {
                // The record is changed seldom: it runs ahead of what is written.
                if wanted > content.objects {
                    content.objects = wanted.max(2 * content.objects);
                }
                let (number, objects) = (content.number, content.objects);
                let refresh = move |record: &mut Record| {
                    let kept = record.content_mut(number).ok_or_else(taken_away)?;
                    (kept.objects, kept.alive_at) = (objects, now());
                    Ok(())
                };
                self.patiently(|| self.update(refresh)).await?;
                refreshed = std::time::Instant::now();
            }
            if !data.is_empty() {
                under_way.push(async move {
                    // Nobody reads these bytes before the end: to write them twice does no harm.
                    let mut again = false;
                    this.patiently(|| {
                        let again = std::mem::replace(&mut again, true);
                        this.write_content(&content, offset, &data, again)
                    })
                    .await
                });
            }
            while under_way.len() >= REQUESTS_MAX || last && !under_way.is_empty() {
                if let Some(Sent::Stale) = under_way.try_next().await? {
                    return Err(taken_away());
                }
            }
            if last {
                break;
            }
        }
        drop(under_way);
        Ok(content)
    }

    /// Makes a content the present one, and removes the one that it replaces.
    async fn commit(&self, content: Content) -> Result<(), StoreError> {
        for attempt in 0..ATTEMPTS_MAX {
            let loaded = self.load().await.map_err(|error| match attempt {
                0 => error,
                // An attempt that was refused may have taken effect all the same.
                _ => error.with_kind(ErrorKind::Unknown),
            });
            let gone = || match attempt {
                0 => taken_away(),
                _ => replaced(),
            };
            let (mut record, text) = loaded?.ok_or_else(gone)?;
            match record.content_mut(content.number).map(|kept| kept.state) {
                None => return Err(gone()),
                // An attempt took effect though its outcome was lost.
                Some(State::Present) => {
                    drop(self.remove_dead().await);
                    return Ok(());
                }
                Some(_) => {}
            }
            record.bury_present();
            (record.created, record.layout) = (true, content.layout);
            if let Some(kept) = record.content_mut(content.number) {
                let dense = content.layout.objects(content.size);
                let objects = kept.objects.max(dense);
                *kept = Content { state: State::Present, objects, reached: content.size, dense, ..content };
            }
            // What the object of that name held is replaced with it.
            let whole = WriteOp::RemoveFork { fork: Fork::DEFAULT };
            if self.replace_record(Some(&text), &record, vec![whole]).await? {
                drop(self.remove_dead().await);
                return Ok(());
            }
        }
        Err(too_busy())
    }

    /// Takes away a content that was being put; and the head, if nothing but that content made it.
    async fn abandon(&self, number: u128) -> Result<(), StoreError> {
        self.update(|record| {
            // One that became the present content is the stream's, and no put takes it away.
            if let Some(content) = record.content_mut(number)
                && content.state == State::Pending
            {
                content.state = State::Dead;
            }
            Ok(())
        })
        .await?;
        self.remove_dead().await?;
        let Some((record, text)) = self.load().await? else { return Ok(()) };
        if record.created || !record.contents.is_empty() {
            return Ok(());
        }
        let name = Key::try_from(RECORD)?;
        let guarded =
            Transaction::new().guard(Guard::Attribute { name: name.clone(), check: Check::Equal(text) });
        // An object that was there before keeps what it had; one of which nothing else is known goes.
        let look = guarded.clone().read(ReadOp::Stat);
        let Outcome::Done(done) = self.store.apply(&self.head, look).await? else { return Ok(()) };
        let Some(Answer::Stat(stat)) = done.answers.first() else { return Err(nonsense()) };
        let alone = (stat.forks, stat.keys, stat.attributes) == (0, 0, 1);
        let change = if alone { WriteOp::Remove } else { WriteOp::RemoveAttribute { name } };
        let undo = guarded.guard(Guard::Version { version: done.version }).change(change);
        self.store.apply(&self.head, undo).await.map(drop)
    }

    /// Writes the bytes of a range to `target`, to the end of the stream at most. Returns the number of bytes.
    ///
    /// All of them stood there at one moment: if the stream changes meanwhile, this fails with [`ErrorKind::Busy`].
    ///
    /// # Errors
    /// Those of a [read](crate#errors). [`ErrorKind::Busy`] if the stream was changed or removed meanwhile, [`ErrorKind::Io`] if the
    /// target fails, [`ErrorKind::Invalid`] if there is no such stream.
    pub async fn get(
        &self,
        range: impl Into<ByteRange>,
        mut target: impl AsyncWrite + Unpin,
    ) -> Result<u64, StoreError> {
        let range = range.into();
        let fetched = async {
            let (mut bytes, mut zeros) = (0, Bytes::new());
            let mut download = Download::new(self, range).await?;
            while let Some(part) = download.next().await? {
                let data = match part {
                    Part::Data(data) => data,
                    Part::Hole(len) => {
                        if (zeros.len() as u64) < len {
                            zeros = vec![0; len as usize].into();
                        }
                        zeros.slice(..len as usize)
                    }
                };
                target.write_all(&data).await.map_err(target_error)?;
                bytes += data.len() as u64;
            }
            target.flush().await.map_err(target_error)?;
            Ok(bytes)
        };
        fetched.await.map_err(|error| self.context(error, "fetch all of"))
    }

    /// Writes the bytes of a range to `target`, as [`Stream::get`] does, but steps over stripes that hold nothing: they
    /// cost no space where `target` is a new file. Returns the number of bytes with the holes; after a hole at the end,
    /// `target` is shorter than that until its length is set.
    ///
    /// # Errors
    /// Those of [`Stream::get`].
    pub async fn get_sparse(
        &self,
        range: impl Into<ByteRange>,
        mut target: impl AsyncWrite + AsyncSeek + Unpin,
    ) -> Result<u64, StoreError> {
        let range = range.into();
        let fetched = async {
            let (mut bytes, mut hole) = (0, 0);
            let mut download = Download::new(self, range).await?;
            while let Some(part) = download.next().await? {
                match part {
                    Part::Hole(len) => {
                        hole += len;
                        bytes += len;
                    }
                    Part::Data(data) => {
                        if hole > 0 {
                            let step = SeekFrom::Current(i64::try_from(hole).unwrap_or(i64::MAX));
                            target.seek(step).await.map_err(target_error)?;
                            hole = 0;
                        }
                        target.write_all(&data).await.map_err(target_error)?;
                        bytes += data.len() as u64;
                    }
                }
            }
            target.flush().await.map_err(target_error)?;
            Ok(bytes)
        };
        fetched.await.map_err(|error| self.context(error, "fetch all of"))
    }
}

/// A part of a stream on its way out.
enum Part {
    Data(Bytes),
    /// Zeros, as many as a stripe at most.
    Hole(u64),
}

/// A range on its way out of a stream.
///
/// The versions of all objects are read before the first byte and again after the last one. Where they are the same,
/// no object changed in between, and so all bytes stood there together in that time.
struct Download<'a> {
    stream: &'a Stream,
    content: Option<Content>,
    /// The numbers of the objects that may hold bytes of the range.
    objects: Range<u64>,
    /// The objects that were found; where there are many, those alone that the store listed.
    found: BTreeMap<u64, Found>,
    pieces: Box<dyn Iterator<Item = Piece> + Send>,
    under_way: VecDeque<(Piece, Option<Reply<Outcome>>)>,
}

impl<'a> Download<'a> {
    async fn new(stream: &'a Stream, range: ByteRange) -> Result<Self, StoreError> {
        range.validate()?;
        let (record, _) = stream.load_created().await?;
        let content = record.present().copied();
        let end = range.end().min(record.size());
        let len = end.saturating_sub(range.offset);
        let mut download = Self {
            stream,
            content,
            objects: 0..0,
            found: BTreeMap::new(),
            pieces: Box::new(std::iter::empty()),
            under_way: VecDeque::new(),
        };
        if let Some(content) = content.filter(|_| len > 0) {
            download.pieces = Box::new(content.layout.pieces(range.offset, len));
            download.objects = content.layout.objects_behind(content.objects, range.offset, end);
            download.found = download.look().await?;
        }
        Ok(download)
    }

    /// Looks at the objects: at all of them if they are few, and otherwise at those that the store lists, so that memory and
    /// time go with what there is, and not with what a record says.
    async fn look(&self) -> Result<BTreeMap<u64, Found>, StoreError> {
        let Some(content) = self.content else { return Ok(BTreeMap::new()) };
        let indexes = self.stream.objects_of(&content, self.objects.clone()).await?;
        let looks = indexes.into_iter().map(async |index| Ok((index, self.look_at(&content, index).await?)));
        stream::iter(looks).buffered(4 * REQUESTS_MAX).try_collect().await
    }

    async fn look_at(&self, content: &Content, index: u64) -> Result<Found, StoreError> {
        let look = Transaction::new().read(ReadOp::Stat);
        match self.stream.store.apply(&content.object(index), look).await? {
            Outcome::Done(done) => Ok(Found { index, version: done.version, exists: done.existed }),
            Outcome::Refused(_) => Err(nonsense()),
        }
    }

    /// Asks for a piece. There is nothing to ask of an object that is known not to exist.
    fn ask(&self, content: &Content, piece: &Piece) -> Option<Reply<Outcome>> {
        let found = self.found.get(&piece.object);
        if found.is_some_and(|found| !found.exists) {
            return None;
        }
        // One that was not listed is asked whether it ever was there.
        let version = found.map_or(0, |found| found.version);
        let range = ByteRange::new(piece.offset, piece.len);
        let read = ReadOp::Range { fork: Fork::DEFAULT, range, intent: Intent::Look };
        let transaction = Transaction::new().guard(Guard::Version { version }).read(read);
        Some(self.stream.store.apply(&content.object(piece.object), transaction))
    }

    /// Returns the next part, or `None` after the last, when it is certain that nothing has changed.
    async fn next(&mut self) -> Result<Option<Part>, StoreError> {
        let Some(content) = self.content else { return Ok(None) };
        while self.under_way.len() < REQUESTS_MAX {
            let Some(piece) = self.pieces.next() else { break };
            let reply = self.ask(&content, &piece);
            self.under_way.push_back((piece, reply));
        }
        let Some((piece, reply)) = self.under_way.pop_front() else {
            self.check().await?;
            return Ok(None);
        };
        let found = self.found.get(&piece.object).copied();
        let found = found.unwrap_or(Found { index: piece.object, version: 0, exists: false });
        let Some(reply) = reply else { return self.hole(&content, found, piece.len).await };
        let Outcome::Done(done) = reply.await? else {
            let now = self.look_at(&content, piece.object).await?;
            return match found.exists || now.exists {
                true => Err(self.changed().await),
                false => self.hole(&content, now, piece.len).await,
            };
        };
        if !done.existed {
            return self.hole(&content, found, piece.len).await;
        }
        let Some(Answer::Range(read)) = done.answers.into_iter().next() else { return Err(nonsense()) };
        if read.next.is_none() && read.extents.iter().all(|extent| extent.kind == ExtentKind::Hole) {
            return Ok(Some(Part::Hole(piece.len)));
        }
        if read.data.len() as u64 == piece.len {
            return Ok(Some(Part::Data(read.data)));
        }
        // The object ends before the piece does, or the answer was cut; the check at the end covers what is read here.
        let (data, _) = self.stream.read_piece(&content, piece).await?;
        Ok(Some(Part::Data(data)))
    }

    /// Returns the zeros of an object that does not exist, unless bytes were lost with it.
    async fn hole(&self, content: &Content, found: Found, len: u64) -> Result<Option<Part>, StoreError> {
        if !found.is_lost(content) {
            return Ok(Some(Part::Hole(len)));
        }
        // The objects of a content that was replaced are gone, and nothing is wrong with that.
        let now = self.stream.load().await?.and_then(|(now, _)| now.present().copied());
        match now.is_some_and(|now| now.number == content.number) {
            true => Err(found.error(content)),
            false => Err(self.changed().await),
        }
    }

    /// Returns the failure of a read whose stream was changed, or removed, since it began.
    async fn changed(&self) -> StoreError {
        match self.stream.load().await.map(|found| found.is_some_and(|(record, _)| record.created)) {
            Ok(false) => StoreError::new(ErrorKind::Busy, "it was removed meanwhile"),
            _ => changed(),
        }
    }

    async fn check(&self) -> Result<(), StoreError> {
        if self.look().await? != self.found {
            return Err(self.changed().await);
        }
        // Other contents may come and go.
        let Some((now, _)) = self.stream.load().await?.filter(|(now, _)| now.created) else {
            return Err(self.changed().await);
        };
        let same = |a: &Content, b: &Content| (a.number, a.size) == (b.number, b.size);
        match (now.present(), self.content) {
            (Some(now), Some(before)) if same(now, &before) => Ok(()),
            (None, None) => Ok(()),
            _ => Err(changed()),
        }
    }
}

fn answers(outcome: Outcome) -> Result<Vec<Answer>, StoreError> {
    match outcome {
        Outcome::Done(done) => Ok(done.answers),
        Outcome::Refused(_) => Err(nonsense()),
    }
}

fn end_of(offset: u64, len: u64) -> Result<u64, StoreError> {
    let end = offset.checked_add(len).filter(|end| *end <= OFFSET_MAX);
    end.ok_or_else(|| StoreError::new(ErrorKind::Invalid, "streams end before 2^63 bytes"))
}

/// Returns the failure of a put before its content was to become the present one. Whether the request that failed took effect
/// makes no difference to the stream: its content is the old one.
fn without_effect(error: StoreError) -> StoreError {
    match error.kind {
        ErrorKind::Unknown => error.with_kind(ErrorKind::Unavailable),
        _ => error,
    }
}

fn no_such_stream() -> StoreError {
    StoreError::new(ErrorKind::Invalid, "there is no such stream")
}

fn taken_away() -> StoreError {
    let text = "what was written so far was discarded, because the stream was removed or the write made no \
                progress for a day; the content is unchanged";
    StoreError::new(ErrorKind::Busy, text)
}

/// Returns the failure of a put whose content is gone after an attempt to make it the present one was refused, though that may
/// have taken effect.
fn replaced() -> StoreError {
    let text = "others changed the stream at the same time: the new content was removed or replaced, or never took effect";
    StoreError::new(ErrorKind::Unknown, text)
}

fn changed() -> StoreError {
    StoreError::new(ErrorKind::Busy, "it was changed meanwhile; try again")
}

fn too_busy() -> StoreError {
    StoreError::new(ErrorKind::Busy, "others change it all the time; try again")
}

fn nonsense() -> StoreError {
    StoreError::new(ErrorKind::Corrupt, "the store's answer does not fit the question")
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::*;

    #[test]
    fn an_object_that_an_earlier_attempt_made_for_a_removed_content_is_removed() {
        block_on(async {
            let store = crate::open("mem:").unwrap();
            let stream = store.stream("big").unwrap();
            let layout = Layout { unit_bytes: 4096, width: 1, object_bytes: 4096 };
            let content = stream.begin_put(layout).await.unwrap();
            // Whoever removes the content does not know of this object.
            let (offset, data) = (OBJECTS_ASKED_MAX * 4096, Bytes::from_static(b"late"));
            let sent = stream.write_content(&content, offset, &data, false).await.unwrap();
            assert!(matches!(sent, Sent::Done));
            stream.abandon(content.number).await.unwrap();
            assert!(store.list().next().await.unwrap().is_some());
            // The answer to the first attempt was lost.
            let sent = stream.write_content(&content, offset, &data, true).await.unwrap();
            assert!(matches!(sent, Sent::Stale));
            assert_eq!(store.list().next().await.unwrap(), None);
        });
    }
}
