//! Byte streams of any length, in transactions of a few MiB.

use std::collections::VecDeque;
use std::io::SeekFrom;
use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures::channel::oneshot;
use nacre_object::limit::TRANSACTION_BYTES_MAX;
use nacre_object::stage::{STAMP_BYTES, Stage};
use nacre_object::stripe::record::NoStream;
use nacre_object::{
    Answer, ByteRange, ErrorKind, ExtentKind, Fork, Intent, ObjectStore, Outcome, RangeRead, ReadOp,
    StoreError, Transaction, WriteOp,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncSeek, AsyncSeekExt, AsyncWrite, AsyncWriteExt};

use crate::{Object, Store};

/// The bytes of one transaction of a transfer.
pub(crate) const PIECE_BYTES: usize = 4 << 20;
/// The maximum number of transactions of one transfer that are under way together.
pub(crate) const PIECES_MAX: usize = 4;

const STORE: &str = "store all of";
const FETCH: &str = "fetch all of";

/// The wait before another attempt to reach a server that is away.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

impl Object {
    /// Replaces the fork's content with everything that `source` gives, at once: concurrent readers see the old content
    /// or the new one, and a failure before the end leaves the old one. Of several at a time the last to end wins.
    /// Returns the number of bytes.
    ///
    /// Up to 16 MiB go in one transaction. Longer content is staged in a fork of a reserved name, which replaces this
    /// one in the last transaction ([`nacre_object::stage`]); memory for about 32 MiB is used. A writer that dies
    /// leaves its stage, which another `put` on the object removes after a day, and [`Object::remove_staged`] at any
    /// time.
    ///
    /// The content of a [`Stream`](crate::Stream) is not in the object of its name: [`Stream::put`](crate::Stream::put)
    /// replaces it.
    ///
    /// # Errors
    ///
    /// Where the store or the source fails, the content is the old one; only [`ErrorKind::Unknown`] leaves open which of
    /// the two it is. [`ErrorKind::Invalid`] says that the store holds no fork of this length, or that the object is a
    /// stream, whose default fork this is; [`ErrorKind::Busy`] that the stage was taken away. A server that is away when
    /// the transfer has begun, such as one that is started again, is waited for
    /// ([`Options::repeat_timeout`](crate::Options::repeat_timeout)).
    pub async fn put(&self, source: impl AsyncRead + Unpin) -> Result<u64, StoreError> {
        self.put_sized(source, None).await
    }

    /// Replaces the fork's content, as [`Object::put`] does, with a source that is expected to give `bytes` bytes: if
    /// that is more than the store holds in one fork, nothing is read or written.
    ///
    /// # Errors
    ///
    /// Those of [`Object::put`].
    pub async fn put_sized(
        &self,
        mut source: impl AsyncRead + Unpin,
        bytes: Option<u64>,
    ) -> Result<u64, StoreError> {
        let mut upload = Upload::new(self, bytes).await?;
        let stored = async {
            loop {
                let mut piece = BytesMut::with_capacity(PIECE_BYTES);
                while piece.len() < PIECE_BYTES {
                    let room = PIECE_BYTES - piece.len();
                    let read = (&mut source).take(room as u64).read_buf(&mut piece).await;
                    if read.map_err(|error| self.context(source_error(error), STORE))? == 0 {
                        break;
                    }
                }
                let last = piece.len() < PIECE_BYTES;
                upload.push(piece.freeze()).await?;
                if last {
                    return upload.finish().await;
                }
            }
        };
        let stored = stored.await;
        upload.end(stored).await
    }

    /// Writes the bytes of a range to `target`, to the end of the fork at most. Returns the number of bytes.
    ///
    /// All of them stood there at one moment: if the range changes meanwhile, this fails with [`ErrorKind::Busy`].
    ///
    /// # Errors
    /// Those of a [read](crate#errors). [`ErrorKind::Busy`] if the content was replaced or removed meanwhile,
    /// [`ErrorKind::Io`] if the target fails.
    pub async fn get(
        &self,
        range: impl Into<ByteRange>,
        mut target: impl AsyncWrite + Unpin,
    ) -> Result<u64, StoreError> {
        let mut download = Download::new(self, range.into());
        let mut bytes = 0;
        while let Some(piece) = download.next().await? {
            let written = target.write_all(&piece).await;
            written.map_err(|error| self.context(target_error(error), FETCH))?;
            bytes += piece.len() as u64;
        }
        target.flush().await.map_err(|error| self.context(target_error(error), FETCH))?;
        Ok(bytes)
    }

    /// Writes the bytes of a range to `target`, as [`Object::get`] does, but steps over holes of 64 KiB and more, which are neither
    /// fetched nor written: they cost no time, and no space where `target` is a new file. Returns the number of
    /// bytes with the holes; after a hole at the end, `target` is shorter than that until its length is set.
    ///
    /// # Errors
    ///
    /// Those of [`Object::get`].
    pub async fn get_sparse(
        &self,
        range: impl Into<ByteRange>,
        mut target: impl AsyncWrite + AsyncSeek + Unpin,
    ) -> Result<u64, StoreError> {
        let mut download = Download::new(self, range.into());
        let mut bytes = 0;
        loop {
            let hole = download.skip_hole().await?;
            if hole > 0 {
                let Ok(step) = i64::try_from(hole) else { break };
                let stepped = target.seek(SeekFrom::Current(step)).await;
                stepped.map_err(|error| self.context(target_error(error), FETCH))?;
                bytes += hole;
            }
            let Some(piece) = download.next().await? else { break };
            let written = target.write_all(&piece).await;
            written.map_err(|error| self.context(target_error(error), FETCH))?;
            bytes += piece.len() as u64;
        }
        target.flush().await.map_err(|error| self.context(target_error(error), FETCH))?;
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
    /// The maximum number of bytes that the store holds in one fork.
    bytes_max: u64,
    /// The offset of the next piece in the fork, in bytes.
    offset: u64,
    /// The pieces, as long as one transaction holds them all.
    held: Vec<(u64, Bytes)>,
    staging: Option<Staging<'a>>,
    patience: RetryBudget,
}

/// A stream that turned out to be longer than one transaction.
struct Staging<'a> {
    stage: Stage<'a>,
    /// The first bytes, whose place the stage's stamp takes until the end.
    head: Bytes,
    under_way: VecDeque<Piece>,
}

/// A piece of a stage that is being written.
struct Piece {
    offset: u64,
    bytes: Bytes,
    reply: nacre_object::Reply<Outcome>,
}

/// Returns whether a request failed because its server is away, which changed nothing.
pub(crate) fn is_away(error: &StoreError) -> bool {
    matches!(error.kind, ErrorKind::Unavailable | ErrorKind::Closed)
}

/// The patience of a transfer, or of a request, with a server that is away.
pub(crate) struct RetryBudget {
    /// The longest time for which it may be away.
    most: Duration,
    /// The time of the first attempt that did not reach it.
    away_since: Option<Instant>,
}

impl RetryBudget {
    pub(crate) fn new(store: &Store) -> Self {
        Self::of(store.patience)
    }

    pub(crate) fn of(most: Duration) -> Self {
        Self { most, away_since: None }
    }

    /// Decides whether to repeat a request after an error, and waits until it is time for that. Only errors by which
    /// nothing was changed are tried again.
    pub(crate) async fn allows(&mut self, error: &StoreError) -> bool {
        if !is_away(error) {
            return false;
        }
        let away = self.away_since.get_or_insert_with(Instant::now).elapsed();
        if away >= self.most {
            return false;
        }
        // The caller's runtime may have no timer, or there may be no runtime at all.
        let (done, over) = oneshot::channel::<()>();
        let timer = std::thread::Builder::new().name("nacre-pause".to_owned());
        let timer = timer.spawn(move || {
            std::thread::sleep(AGAIN_AFTER);
            drop(done);
        });
        // The channel's end is all that it tells.
        timer.is_ok() && over.await.is_err()
    }

    /// Notes that the server answers.
    fn reset(&mut self) {
        self.away_since = None;
    }
}

impl<'a> Upload<'a> {
    /// Starts an upload that is expected to have `bytes` bytes; fails if that is too long for the store.
    pub(crate) async fn new(object: &'a Object, bytes: Option<u64>) -> Result<Self, StoreError> {
        let limits = object.store().limits().await.map_err(|error| object.context(error, STORE))?;
        let patience = RetryBudget::new(object.store());
        let (held, staging) = (Vec::new(), None);
        let upload = Self { object, bytes_max: limits.fork_bytes_max, offset: 0, held, staging, patience };
        upload.fits(bytes.unwrap_or(0), "the content has")?;
        Ok(upload)
    }

    fn fits(&self, bytes: u64, have: &str) -> Result<(), StoreError> {
        let max = self.bytes_max;
        if bytes <= max {
            return Ok(());
        }
        let text = format!(
            "{have} {bytes} bytes, and this store holds at most {max} in one fork; its content is as it was"
        );
        Err(self.object.context(StoreError::new(ErrorKind::Invalid, text), STORE))
    }

    /// Sends the next piece, and waits for the oldest one if many are under way.
    pub(crate) async fn push(&mut self, piece: Bytes) -> Result<(), StoreError> {
        let offset = self.offset;
        self.offset += piece.len() as u64;
        self.fits(self.offset, "the content has at least")?;
        if self.staging.is_some() {
            return self.send(offset, piece).await;
        }
        self.held.push((offset, piece));
        if self.offset <= TRANSACTION_BYTES_MAX as u64 {
            return Ok(());
        }
        let object = self.object;
        let stage = loop {
            match Stage::claim(object.store(), object.id()).await {
                Err(error) if self.patience.allows(&error).await => {}
                claimed => break claimed.map_err(|error| object.context(error, STORE))?,
            }
        };
        self.patience.reset();
        // The first piece is longer than the stamp: there are more of them than one transaction holds.
        let head = self.held[0].1.split_to(STAMP_BYTES);
        self.held[0].0 = STAMP_BYTES as u64;
        self.staging = Some(Staging { stage, head, under_way: VecDeque::new() });
        for (offset, piece) in std::mem::take(&mut self.held) {
            self.send(offset, piece).await?;
        }
        Ok(())
    }

    async fn send(&mut self, offset: u64, piece: Bytes) -> Result<(), StoreError> {
        let Some(staging) = self.staging.as_mut().filter(|_| !piece.is_empty()) else { return Ok(()) };
        staging.under_way.push_back(staging.begin(offset, piece));
        let sent = staging.settle(PIECES_MAX, &mut self.patience).await;
        sent.map_err(|error| self.object.context(error, STORE))
    }

    /// Waits for all pieces, and makes them the fork's content. Returns the number of bytes.
    pub(crate) async fn finish(&mut self) -> Result<u64, StoreError> {
        let fork = self.object.fork_name().clone();
        let replaced = match self.staging.take() {
            None => self.replace_at_once(fork).await,
            Some(mut staging) => match self.settle_all(&mut staging).await {
                Ok(()) => staging.stage.replace(&fork, staging.head).await.map(drop),
                Err(error) => {
                    self.staging = Some(staging);
                    Err(error)
                }
            },
        };
        replaced.map_err(|error| self.object.context(error, STORE))?;
        Ok(self.offset)
    }

    /// Makes the pieces, which are few, the fork's content.
    async fn replace_at_once(&mut self, fork: Fork) -> Result<(), StoreError> {
        let content = WriteOp::Extents { fork: fork.clone(), extents: std::mem::take(&mut self.held) };
        let is_default = fork == Fork::DEFAULT;
        let transaction = Transaction::new().change(WriteOp::Truncate { fork, size: 0 }).change(content);
        let mut no_stream = NoStream::new()?;
        loop {
            let mut replace = transaction.clone();
            if is_default {
                replace = replace.guard(no_stream.guard());
            }
            match self.object.store().apply(self.object.id(), replace).await {
                Ok(Outcome::Done(_)) => return Ok(()),
                Ok(Outcome::Refused(refusal)) => no_stream.refused(refusal.found)?,
                Err(error) if self.patience.allows(&error).await => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for all pieces, and until the server answers: what ends the transfer is not repeated.
    async fn settle_all(&mut self, staging: &mut Staging<'a>) -> Result<(), StoreError> {
        staging.settle(0, &mut self.patience).await?;
        while !self.patience.most.is_zero() {
            let look = Transaction::new().read(ReadOp::Stat);
            match self.object.store().apply(self.object.id(), look).await {
                Err(error) if self.patience.allows(&error).await => {}
                looked => return looked.map(drop),
            }
        }
        Ok(())
    }

    /// Cleans up after a failure; returns the given result.
    pub(crate) async fn end(self, result: Result<u64, StoreError>) -> Result<u64, StoreError> {
        if let Some(mut staging) = self.staging {
            // What is under way still counts: whether the object is nothing but this stage depends on it.
            for piece in staging.under_way {
                let _ = staging.stage.wrote(piece.reply.await);
            }
            staging.stage.abandon().await;
        }
        result
    }
}

impl Staging<'_> {
    /// Begins to write a piece.
    fn begin(&self, offset: u64, bytes: Bytes) -> Piece {
        let reply = self.stage.write(offset, bytes.clone());
        Piece { offset, bytes, reply }
    }

    /// Waits until at most `limit` pieces are under way.
    async fn settle(&mut self, limit: usize, patience: &mut RetryBudget) -> Result<(), StoreError> {
        // The stamp's version, by which writes know their stage, changes only while none is under way.
        let limit = if self.stage.is_old() { 0 } else { limit };
        while self.under_way.len() > limit {
            let Some(Piece { offset, bytes, reply }) = self.under_way.pop_front() else { break };
            match reply.await {
                Err(error) if patience.allows(&error).await => {
                    self.under_way.push_front(self.begin(offset, bytes));
                }
                reply => {
                    self.stage.wrote(reply)?;
                    patience.reset();
                }
            }
        }
        if self.stage.is_old() { self.stage.refresh().await } else { Ok(()) }
    }
}

/// A range on its way out of an object: a few pieces ahead of the one that is wanted next.
pub(crate) struct Download<'a> {
    object: &'a Object,
    whole: ByteRange,
    /// The offset of the piece that is wanted next, and that of the piece to be asked for next.
    next: u64,
    asked_until: u64,
    /// The pieces that were asked for, side by side from `next` to `asked_until`.
    ahead: VecDeque<(ByteRange, nacre_object::Reply<Outcome>)>,
    /// The version of the whole range and the size of the fork, once they are known.
    known: Option<(u64, u64)>,
    over: bool,
    /// The large holes that are known, and the offset up to which all are; `None` if they are not asked for.
    holes: VecDeque<Range<u64>>,
    holes_until: Option<u64>,
}

/// The length of a hole in bytes from which on it is worth stepping over.
const HOLE_BYTES: u64 = 64 << 10;

impl<'a> Download<'a> {
    pub(crate) fn new(object: &'a Object, whole: ByteRange) -> Self {
        Self {
            object,
            whole,
            next: whole.offset,
            asked_until: whole.offset,
            ahead: VecDeque::new(),
            known: None,
            over: false,
            holes: VecDeque::new(),
            holes_until: None,
        }
    }

    /// Steps over the hole that comes next, if it is large. Returns the number of its bytes.
    async fn skip_hole(&mut self) -> Result<u64, StoreError> {
        self.whole.validate().map_err(|error| self.object.context(error, FETCH))?;
        // Pieces are asked for up to the next hole.
        if !self.ahead.is_empty() {
            return Ok(0);
        }
        let began = self.next;
        while !self.over && self.next < self.whole.end() {
            while self.holes.front().is_some_and(|hole| hole.end <= self.next) {
                self.holes.pop_front();
            }
            match self.holes.front() {
                Some(hole) if hole.start <= self.next => self.next = hole.end,
                _ if self.holes_until.is_some_and(|until| self.next < until) => break,
                _ => self.look_for_holes().await?,
            }
        }
        self.asked_until = self.next;
        Ok(self.next - began)
    }

    /// Reads which holes there are from the next byte on.
    async fn look_for_holes(&mut self) -> Result<(), StoreError> {
        let fork = self.object.fork_name().clone();
        let rest = ByteRange::new(self.next, self.whole.end() - self.next);
        // All is still to come the first time, so that its version is that of the whole range.
        let transaction = self.guarded().read(ReadOp::Extents { fork, range: rest });
        let reply = self.object.store().apply(self.object.id(), transaction);
        let Some(Answer::Range(found)) = self.answers(reply).await?.into_iter().next() else {
            self.over = true;
            return Ok(());
        };
        self.known.get_or_insert((found.version, found.size));
        let end = self.whole.end().min(found.size);
        self.over = self.next >= end;
        let until = found.next.unwrap_or(end).min(end);
        self.holes_until = Some(until);
        // Whatever is not data is a hole, written or not.
        let data =
            found.extents.iter().filter(|extent| extent.kind == ExtentKind::Data).map(|extent| extent.range);
        let mut hole = self.next;
        for data in data.chain([ByteRange::new(until, 0)]) {
            if data.offset.saturating_sub(hole) >= HOLE_BYTES {
                self.holes.push_back(hole..data.offset);
            }
            hole = data.end();
        }
        Ok(())
    }

    /// Returns a transaction on condition that nothing has changed since the first one.
    fn guarded(&self) -> Transaction {
        match self.known {
            None => Transaction::new(),
            Some((version, _)) => {
                Transaction::new().if_version(self.object.fork_name().clone(), self.whole, version)
            }
        }
    }

    async fn answers(&self, reply: nacre_object::Reply<Outcome>) -> Result<Vec<Answer>, StoreError> {
        match reply.await.map_err(|error| self.object.context(error, FETCH))? {
            Outcome::Done(done) => Ok(done.answers),
            Outcome::Refused(_) => {
                let text = match self.object.stat().await {
                    Ok(stat) if !stat.exists => "it was removed meanwhile",
                    _ => "it was changed meanwhile; try again",
                };
                Err(self.object.context(StoreError::new(ErrorKind::Busy, text), FETCH))
            }
        }
    }

    /// Asks for the next piece, before `end`. The first one, from the same moment, brings the version of the whole.
    fn ask(&mut self, end: u64) {
        let fork = self.object.fork_name().clone();
        let range = ByteRange::new(self.asked_until, (end - self.asked_until).min(PIECE_BYTES as u64));
        let mut transaction =
            self.guarded().read(ReadOp::Range { fork: fork.clone(), range, intent: Intent::Look });
        if self.known.is_none() {
            transaction = transaction.read(ReadOp::Extents { fork, range: self.whole });
        }
        self.asked_until = range.end();
        self.ahead.push_back((range, self.object.store().apply(self.object.id(), transaction)));
    }

    /// Returns the next piece, or `None` after the last.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        self.whole.validate().map_err(|error| self.object.context(error, FETCH))?;
        if self.over || self.next >= self.whole.end() {
            return Ok(None);
        }
        let mut end = self.holes.front().map_or(self.whole.end(), |hole| hole.start.min(self.whole.end()));
        end = end.min(self.holes_until.unwrap_or(end));
        // How long the fork is, and what the others are to be guarded by, the first piece tells.
        let pieces_max = if self.known.is_some() { PIECES_MAX } else { 1 };
        end = end.min(self.known.map_or(end, |(_, size)| size));
        while self.ahead.len() < pieces_max && self.asked_until < end {
            self.ask(end);
        }
        let Some((range, reply)) = self.ahead.pop_front() else {
            self.over = true;
            return Ok(None);
        };
        let mut answers = self.answers(reply).await?.into_iter();
        let Some(Answer::Range(RangeRead { data, size, .. })) = answers.next() else {
            self.over = true;
            return Ok(None);
        };
        if let Some(Answer::Range(whole)) = answers.next() {
            self.known = Some((whole.version, whole.size));
        }
        self.next += data.len() as u64;
        self.over = data.is_empty() || self.next >= size;
        if self.next < range.end() {
            // It was cut, because of its many extents: the next one begins earlier than was thought.
            self.ahead.clear();
            self.asked_until = self.next;
        }
        Ok(if data.is_empty() { None } else { Some(data) })
    }
}
