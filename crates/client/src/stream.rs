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

mod put;
mod read;
mod write;

use std::ops::Range;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use nacre_object::limit::OFFSET_MAX;
use nacre_object::stripe::record::{Content, Record, State};
pub use nacre_object::stripe::record::{PREFIX, RECORD};
use nacre_object::{
    Answer, Check, ErrorKind, Guard, Key, ObjectId, ObjectStore, Outcome, ReadOp, StoreError, Transaction,
    WriteOp,
};

use crate::Store;

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

/// The number of requests about objects of one stream that are under way at a time.
const REQUESTS_MAX: usize = 8;
/// The maximum number of attempts to change a record that others change.
const ATTEMPTS_MAX: usize = 1000;
/// The maximum number of objects that are removed one by one; of more, the store lists those that exist.
const OBJECTS_ASKED_MAX: u64 = 4096;
/// The layout where nothing else is said. A stripe is one transfer's piece.
const LAYOUT: Layout = Layout { unit_bytes: 4 << 20, width: 4, object_bytes: 64 << 20 };

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
        Ok(LAYOUT.within(self.store.limits().await?.fork_bytes_max))
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

fn no_such_stream() -> StoreError {
    StoreError::new(ErrorKind::Invalid, "there is no such stream")
}

fn too_busy() -> StoreError {
    StoreError::new(ErrorKind::Busy, "others change it all the time; try again")
}

fn nonsense() -> StoreError {
    StoreError::new(ErrorKind::Corrupt, "the store's answer does not fit the question")
}
