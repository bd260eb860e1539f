//! Byte streams of any length, in transactions of a few MiB.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use nacre_object::{
    Answer, ByteRange, ErrorKind, Intent, Outcome, RangeRead, Read, StoreError, Transaction, Write,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::Object;

/// Bytes of one transaction of a transfer.
pub(crate) const PIECE_BYTES: usize = 4 << 20;
/// Transactions of one transfer that are under way together.
pub(crate) const PIECES_MAX: usize = 4;

impl Object {
    /// Replaces the fork's content by all that `source` gives. Gives the number of bytes.
    ///
    /// The first few MiB go with the truncation of the old content, in one transaction; what is longer arrives in
    /// several, and who reads meanwhile sees it grow.
    pub async fn put(&self, mut source: impl AsyncRead + Unpin) -> Result<u64, StoreError> {
        let mut upload = Upload::new(self);
        loop {
            let mut piece = BytesMut::with_capacity(PIECE_BYTES);
            while piece.len() < PIECE_BYTES {
                let room = PIECE_BYTES - piece.len();
                let read = (&mut source).take(room as u64).read_buf(&mut piece).await;
                match read {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(error) => return Err(self.context(source_error(error), "store all of")),
                }
            }
            let last = piece.len() < PIECE_BYTES;
            upload.push(piece.freeze()).await?;
            if last {
                return upload.finish().await;
            }
        }
    }

    /// Writes the bytes of a range to `target`, to the end of the fork at most. Gives the number of bytes.
    ///
    /// All of them stood there at one moment: if the range changes meanwhile, this fails with [`ErrorKind::Busy`].
    pub async fn get(
        &self,
        range: impl Into<ByteRange>,
        mut target: impl AsyncWrite + Unpin,
    ) -> Result<u64, StoreError> {
        let mut download = Download::new(self, range.into());
        let mut bytes = 0;
        while let Some(piece) = download.next().await? {
            let written = target.write_all(&piece).await;
            written.map_err(|error| self.context(target_error(error), "fetch all of"))?;
            bytes += piece.len() as u64;
        }
        target.flush().await.map_err(|error| self.context(target_error(error), "fetch all of"))?;
        Ok(bytes)
    }
}

pub(crate) fn source_error(error: std::io::Error) -> StoreError {
    StoreError::new(ErrorKind::Io, format!("reading the source failed: {error}"))
}

pub(crate) fn target_error(error: std::io::Error) -> StoreError {
    StoreError::new(ErrorKind::Io, format!("writing the target failed: {error}"))
}

/// A stream on its way into an object.
pub(crate) struct Upload<'a> {
    object: &'a Object,
    offset: u64,
    under_way: VecDeque<nacre_object::Reply<Outcome>>,
}

impl<'a> Upload<'a> {
    pub(crate) fn new(object: &'a Object) -> Self {
        Self { object, offset: 0, under_way: VecDeque::new() }
    }

    /// Sends the next piece, and waits for the oldest one if many are under way.
    pub(crate) async fn push(&mut self, piece: Bytes) -> Result<(), StoreError> {
        let fork = self.object.fork_name().clone();
        let mut transaction = Transaction::new();
        if self.offset == 0 {
            transaction = transaction.change(Write::Truncate { fork: fork.clone(), size: 0 });
        } else if piece.is_empty() {
            return Ok(());
        }
        let len = piece.len() as u64;
        let transaction = transaction.write(fork, self.offset, piece);
        self.under_way.push_back(self.object.store().apply(self.object.id(), transaction));
        // Nothing may overtake the truncation.
        let limit = if self.offset == 0 { 0 } else { PIECES_MAX };
        self.offset += len;
        self.settle(limit).await
    }

    async fn settle(&mut self, limit: usize) -> Result<(), StoreError> {
        while self.under_way.len() > limit {
            let Some(reply) = self.under_way.pop_front() else { break };
            reply.await.map_err(|error| self.object.context(error, "store all of"))?;
        }
        Ok(())
    }

    /// Waits for all pieces. Gives the number of bytes.
    pub(crate) async fn finish(mut self) -> Result<u64, StoreError> {
        self.settle(0).await?;
        Ok(self.offset)
    }
}

/// A range on its way out of an object.
pub(crate) struct Download<'a> {
    object: &'a Object,
    whole: ByteRange,
    next: u64,
    /// The version of the whole range, once it is known.
    version: Option<u64>,
    over: bool,
}

impl<'a> Download<'a> {
    pub(crate) fn new(object: &'a Object, whole: ByteRange) -> Self {
        Self { object, whole, next: whole.offset, version: None, over: false }
    }

    /// The next piece, or `None` after the last.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        let attempted = "fetch all of";
        self.whole.validate().map_err(|error| self.object.context(error, attempted))?;
        if self.over || self.next >= self.whole.end() {
            return Ok(None);
        }
        let fork = self.object.fork_name().clone();
        let len = (self.whole.end() - self.next).min(PIECE_BYTES as u64);
        let range = ByteRange::new(self.next, len);
        let mut transaction =
            Transaction::new().read(Read::Range { fork: fork.clone(), range, intent: Intent::Look });
        transaction = match self.version {
            // The version of the whole range comes with the first piece, from the same moment.
            None => transaction.read(Read::Extents { fork, range: self.whole }),
            Some(version) => transaction.if_version(fork, self.whole, version),
        };
        let outcome = self.object.store().apply(self.object.id(), transaction).await;
        let done = match outcome.map_err(|error| self.object.context(error, attempted))? {
            Outcome::Done(done) => done,
            Outcome::Refused(_) => {
                let error = StoreError::new(ErrorKind::Busy, "it was changed meanwhile; try again");
                return Err(self.object.context(error, attempted));
            }
        };
        let mut answers = done.answers.into_iter();
        let Some(Answer::Range(RangeRead { data, size, .. })) = answers.next() else { return Ok(None) };
        if let Some(Answer::Range(whole)) = answers.next() {
            self.version = Some(whole.version);
        }
        self.next += data.len() as u64;
        self.over = data.is_empty() || self.next >= size;
        Ok(if data.is_empty() { None } else { Some(data) })
    }
}
