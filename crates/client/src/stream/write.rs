//! Writing ranges of a stream, and its length.
//!
//! A write first makes the stream as long as it will be, after the bytes that it grows over have been zeroed; then it writes
//! into the objects of the content, each of which is made once.

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use nacre_object::stripe::record::{Content, Record, State};
use nacre_object::{
    Answer, ErrorKind, ExtentKind, Fork, Guard, Outcome, ReadOp, StoreError, Transaction, WriteOp,
};

use super::{
    ATTEMPTS_MAX, OBJECTS_ASKED_MAX, Piece, REQUESTS_MAX, Stream, answers, end_of, nonsense, too_busy,
};

/// The outcome of a write into an object of a content.
pub(super) enum Sent {
    Done,
    /// The content was removed.
    Stale,
}

impl Stream {
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
    pub(super) async fn write_content(
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
}
