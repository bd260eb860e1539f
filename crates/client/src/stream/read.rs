//! Reading a stream: a range whose stripes each show one moment, or one that was there as a whole at one moment.

use std::collections::{BTreeMap, VecDeque};
use std::io::SeekFrom;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream};
use nacre_object::stripe::record::Content;
use nacre_object::{
    Answer, ByteRange, ErrorKind, ExtentKind, Fork, Guard, Intent, Outcome, ReadOp, Reply, StoreError,
    Transaction,
};
use tokio::io::{AsyncSeek, AsyncSeekExt, AsyncWrite, AsyncWriteExt};

use super::{ATTEMPTS_MAX, Piece, REQUESTS_MAX, Stream, nonsense, too_busy};
use crate::transfer::target_error;

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

impl Stream {
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

fn changed() -> StoreError {
    StoreError::new(ErrorKind::Busy, "it was changed meanwhile; try again")
}
