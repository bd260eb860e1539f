//! The cluster log: the few lines that matter from everywhere, in one order, bounded, in one object of the store.
//!
//! | key | value |
//! |---|---|
//! | `header` | the number of the next line, that of the oldest one, and the bytes of all lines so far |
//! | `line/NUMBER` | a line, its number as 16 hexadecimal digits |
//!
//! Lines are appended by transactions on condition that the header is unchanged, so their numbers have no gaps. If the
//! reply is lost, the same lines are appended again on the same condition: if that fails, the line at their place shows by
//! the writer's mark whether they were there already.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use nacre_object::limit::PAGE_ENTRIES_MAX;
use nacre_object::watch::{Watch, WatchOptions};
use nacre_object::{
    Answer, Check, ErrorKind, Found, Guard, Key, KeyRange, ObjectId, ObjectStore, Outcome, ReadOp,
    StoreError, Transaction, WriteOp,
};
use tokio::sync::mpsc;

use crate::codec::{self, Reader};

/// The object with the cluster log.
pub const LOG_OBJECT: &str = "nacre/log";
/// The maximum length of a line's text, in bytes; the rest of a longer one is cut off.
pub const TEXT_BYTES_MAX: usize = 1024;
/// The maximum length of a line's source, in bytes.
pub const SOURCE_BYTES_MAX: usize = 255;
/// The number of lines that one transaction appends at most.
const APPEND_MAX: usize = 100;
/// The number of lines that wait in a daemon to be appended.
const QUEUE_MAX: usize = 1000;
/// The number of appends without an answer after which a call gives them up.
const UNKNOWN_MAX: u32 = 10;
/// The pause before lines that could not be appended are tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// The bounds of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogBounds {
    /// The number of lines.
    pub lines: u64,
    /// The bytes of all lines.
    pub bytes: u64,
}

impl Default for LogBounds {
    fn default() -> Self {
        Self { lines: 10_000, bytes: 4 << 20 }
    }
}

/// The weight of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Something has changed.
    Info = 0,
    /// Something deserves a look.
    Warning = 1,
    /// Something does not work.
    Error = 2,
}

impl Level {
    /// Returns the level's name.
    pub fn name(self) -> &'static str {
        match self {
            Level::Info => "info",
            Level::Warning => "warning",
            Level::Error => "error",
        }
    }
}

/// A line that is to be appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The time, in milliseconds since 1970, by the source's clock. The order of lines does not depend on it.
    pub time_ms: u64,
    /// The name of who says it.
    pub source: String,
    /// The weight.
    pub level: Level,
    /// The text, one line.
    pub text: String,
}

impl Entry {
    /// Creates a line of now.
    pub fn new(source: &str, level: Level, text: &str) -> Entry {
        let time_ms =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let text = cut(text, TEXT_BYTES_MAX).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        Entry { time_ms, source: cut(source, SOURCE_BYTES_MAX).to_owned(), level, text }
    }
}

impl Entry {
    /// Checks what a reader of the log checks.
    fn check(&self) -> Result<(), StoreError> {
        let (source, text) = (self.source.len(), self.text.len());
        if source <= SOURCE_BYTES_MAX && text <= TEXT_BYTES_MAX {
            return Ok(());
        }
        let limits = format!("the limits are {SOURCE_BYTES_MAX} and {TEXT_BYTES_MAX}");
        let text = format!("a line has {source} bytes in its source and {text} in its text; {limits}");
        Err(StoreError::new(ErrorKind::Invalid, text))
    }
}

fn cut(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    &text[..end]
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Its number, from 1: lines follow each other without gaps.
    pub number: u64,
    /// The text.
    pub entry: Entry,
    /// The mark of the transaction that appended it.
    mark: [u8; 16],
    /// The bytes of all lines up to this one.
    total: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    next: u64,
    oldest: u64,
    total: u64,
    /// The bytes of the lines that were removed.
    removed: u64,
}

fn encode_header(header: &Header) -> Bytes {
    let mut out = codec::begin(32);
    for number in [header.next, header.oldest, header.total, header.removed] {
        out.extend(number.to_le_bytes());
    }
    out.into()
}

fn decode_header(bytes: &[u8]) -> Result<Header, StoreError> {
    let mut reader = Reader::begin("the header of the log", bytes)?;
    let header =
        Header { next: reader.u64()?, oldest: reader.u64()?, total: reader.u64()?, removed: reader.u64()? };
    if header.oldest == 0
        || header.oldest > header.next
        || header.removed > header.total
        || header.next.max(header.total) > u64::MAX >> 1
    {
        return Err(reader.wrong("its numbers cannot be"));
    }
    reader.end()?;
    Ok(header)
}

fn encode_line(line: &Line) -> Bytes {
    let mut out = codec::begin(64 + line.entry.source.len() + line.entry.text.len());
    out.extend(line.mark);
    out.extend(line.total.to_le_bytes());
    out.extend(line.entry.time_ms.to_le_bytes());
    out.push(line.entry.level as u8);
    codec::put_bytes(&mut out, line.entry.source.as_bytes());
    codec::put_bytes(&mut out, line.entry.text.as_bytes());
    out.into()
}

fn decode_line(number: u64, bytes: &[u8]) -> Result<Line, StoreError> {
    let mut reader = Reader::begin("a line of the log", bytes)?;
    let mut mark = [0; 16];
    mark.copy_from_slice(reader.take(16)?);
    let (total, time_ms) = (reader.u64()?, reader.u64()?);
    let level = match reader.u8()? {
        0 => Level::Info,
        1 => Level::Warning,
        2 => Level::Error,
        other => return Err(reader.wrong(format_args!("{other} is not a level"))),
    };
    let source = reader.text(SOURCE_BYTES_MAX)?;
    let text = reader.text(TEXT_BYTES_MAX)?;
    reader.end()?;
    Ok(Line { number, entry: Entry { time_ms, source, level, text }, mark, total })
}

/// Decodes bytes as a header and as a line, and checks that what decodes encodes to the same bytes: for the fuzz target.
pub fn fuzz(bytes: &[u8]) {
    let _ = decode_header(bytes).map(|header| assert_eq!(encode_header(&header), bytes));
    let _ = decode_line(1, bytes).map(|line| assert_eq!(encode_line(&line), bytes));
}

/// An attempt to append lines, which goes on over failures of the store.
struct Attempt {
    /// The mark of its lines.
    mark: [u8; 16],
    /// The header of a transaction that may be on its way.
    uncertain: Option<Header>,
    /// True if it will never be known whether the lines were appended.
    is_lost: bool,
}

impl Default for Attempt {
    fn default() -> Self {
        Self { mark: rand::random(), uncertain: None, is_lost: false }
    }
}

/// A part of the lines.
struct Page {
    /// The number of the last line that there is.
    last: u64,
    /// Lines by their numbers; `None` for one that cannot be read.
    lines: Vec<(u64, Option<Line>)>,
    /// The key behind which there are more.
    next: Option<Bytes>,
}

/// The cluster log of a store. Cheap to clone.
#[derive(Clone, derive_more::Debug)]
#[debug("Log")]
pub struct Log {
    store: Arc<dyn ObjectStore>,
    object: ObjectId,
    bounds: LogBounds,
}

impl Log {
    /// Returns a handle on the log of a store, whether there is one yet or not. The bounds are those that appending keeps.
    ///
    /// # Errors
    /// `Invalid` if the bounds are 0.
    pub fn new(store: Arc<dyn ObjectStore>, bounds: LogBounds) -> Result<Log, StoreError> {
        if bounds.lines == 0 || bounds.bytes == 0 {
            return Err(StoreError::new(
                ErrorKind::Invalid,
                "a log keeps at least a line, and at least a byte",
            ));
        }
        Ok(Log { store, object: ObjectId::new(LOG_OBJECT)?, bounds })
    }

    /// Appends lines, in order and one behind the other, each exactly once. Returns the number of the first.
    ///
    /// # Errors
    /// Those of the store; `Unknown` if it is not known whether all of them were appended, and `Invalid` if one of them is
    /// longer than a line can be.
    pub async fn append(&self, entries: &[Entry]) -> Result<u64, StoreError> {
        entries.iter().try_for_each(Entry::check).map_err(at)?;
        let mut first = None;
        for entries in entries.chunks(APPEND_MAX) {
            let mut attempt = Attempt::default();
            let number = self.append_chunk(entries, &mut attempt).await.map_err(|error| {
                let nothing = first.is_none() && attempt.uncertain.is_none();
                at(if nothing { error } else { error.with_kind(ErrorKind::Unknown) })
            })?;
            first.get_or_insert(number);
        }
        first.ok_or_else(|| at(StoreError::new(ErrorKind::Invalid, "there is no line to append")))
    }

    /// Appends lines in one transaction. After a failure, the same lines may be appended again with the same attempt,
    /// which tells whether they were there already.
    async fn append_chunk(&self, entries: &[Entry], attempt: &mut Attempt) -> Result<u64, StoreError> {
        let Attempt { mark, uncertain, is_lost } = attempt;
        let mut header = self.header().await?;
        let mut unanswered = 0;
        loop {
            let before = header.unwrap_or(Header { next: 1, oldest: 1, total: 0, removed: 0 });
            if let Some(earlier) = uncertain.filter(|earlier| earlier.next != before.next) {
                // Another one was first, or it was this one.
                match self.line(earlier.next).await? {
                    Some(line) if line.mark == *mark => return Ok(line.number),
                    Some(_) => *uncertain = None,
                    None => {
                        *is_lost = true;
                        return Err(StoreError::new(
                            ErrorKind::Unknown,
                            "the reply was lost, and the lines since are gone",
                        ));
                    }
                }
            }
            let check = header.map_or(Check::Absent, |header| Check::Equal(encode_header(&header)));
            let mut transaction = Transaction::new().guard(Guard::Key { key: header_key(), check });
            let mut after = before;
            for entry in entries {
                let number = after.next;
                let mut line = Line { number, entry: entry.clone(), mark: *mark, total: 0 };
                line.total = after.total + encode_line(&line).len() as u64;
                (after.next, after.total) = (number + 1, line.total);
                transaction =
                    transaction.change(WriteOp::SetKey { key: line_key(number)?, value: encode_line(&line) });
            }
            let gone;
            (after.oldest, after.removed, gone) = self.trim(&before, &after).await?;
            for number in gone {
                transaction = transaction.change(WriteOp::RemoveKey { key: line_key(number)? });
            }
            transaction =
                transaction.change(WriteOp::SetKey { key: header_key(), value: encode_header(&after) });
            match self.store.apply(&self.object, transaction).await {
                Ok(Outcome::Done(_)) => return Ok(before.next),
                Ok(Outcome::Refused(refusal)) => {
                    header = match refusal.found {
                        Found::Value(value) => value.map(|value| decode_header(&value)).transpose()?,
                        _ => return Err(nonsense()),
                    };
                }
                Err(error) if error.kind.is_uncertain() && unanswered < UNKNOWN_MAX => {
                    *uncertain = Some(before);
                    unanswered += 1;
                    tokio::time::sleep(Duration::from_millis(20) * unanswered).await;
                    header = self.header().await?;
                }
                Err(error) => {
                    if error.kind.is_uncertain() {
                        *uncertain = Some(before);
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Returns the oldest line that stays, the bytes of those before it, and the numbers of those that go.
    async fn trim(&self, before: &Header, after: &Header) -> Result<(u64, u64, Vec<u64>), StoreError> {
        let lines = after.next - before.oldest;
        let is_over = lines > self.bounds.lines || after.total - before.removed > self.bounds.bytes;
        // What is beyond the bounds goes in large pieces, so that it need not be looked at with every line: an eighth of
        // the log at least. What a transaction can remove is bounded, should the bounds have become much smaller.
        let (lines_kept, bytes_kept) =
            (self.bounds.lines - self.bounds.lines / 8, self.bounds.bytes - self.bounds.bytes / 8);
        let (mut oldest, mut removed, mut gone) = (before.oldest, before.removed, Vec::new());
        if !is_over {
            return Ok((oldest, removed, gone));
        }
        let page = self.page(line_key(before.oldest - 1)?.to_bytes(), PAGE_ENTRIES_MAX as u32).await?;
        for (number, line) in page.lines.iter().filter(|(number, _)| *number < before.next) {
            if after.next - oldest <= lines_kept && after.total - removed <= bytes_kept {
                return Ok((oldest, removed, gone));
            }
            oldest = number + 1;
            // What another client has put there counts for nothing.
            removed = match line {
                Some(line) if (removed..=before.total).contains(&line.total) => line.total,
                _ => removed,
            };
            gone.push(*number);
        }
        // Without any line left, whatever the header counted is gone.
        if page.next.is_none() {
            (oldest, removed) = (before.next, before.total);
        }
        Ok((oldest, removed, gone))
    }

    async fn header(&self) -> Result<Option<Header>, StoreError> {
        match self.read(vec![ReadOp::Key { key: header_key() }]).await?.pop() {
            Some(Answer::Value(value)) => value.map(|value| decode_header(&value)).transpose(),
            _ => Err(nonsense()),
        }
    }

    async fn line(&self, number: u64) -> Result<Option<Line>, StoreError> {
        match self.read(vec![ReadOp::Key { key: line_key(number)? }]).await?.pop() {
            Some(Answer::Value(value)) => value.map(|value| decode_line(number, &value)).transpose(),
            _ => Err(nonsense()),
        }
    }

    /// Reads the lines behind a key. Whatever another client has put among them is passed over: keys that are no numbers,
    /// numbers that the log has not reached, and values that cannot be read.
    async fn page(&self, after: Bytes, limit: u32) -> Result<Page, StoreError> {
        let range = KeyRange { after: Some(after), ..KeyRange::prefix(LINE) };
        let reads = vec![ReadOp::Key { key: header_key() }, ReadOp::Keys { range, limit, values: true }];
        let mut answers = self.read(reads).await?;
        let (Some(Answer::Keys(page)), Some(Answer::Value(header))) = (answers.pop(), answers.pop()) else {
            return Err(nonsense());
        };
        let header = header.map(|header| decode_header(&header)).transpose()?;
        let last = header.map_or(0, |header| header.next - 1);
        let numbered = page.entries.iter().filter_map(|(key, value)| Some((line_number(key)?, value)));
        let lines: Vec<_> = numbered
            .take_while(|(number, _)| *number <= last)
            .map(|(number, value)| (number, decode_line(number, value).ok()))
            .collect();
        let is_end = !page.more || lines.last().is_some_and(|(number, _)| *number >= last);
        let next = page.entries.last().map(|(key, _)| key.to_bytes()).filter(|_| !is_end);
        Ok(Page { last, lines, next })
    }

    async fn read(&self, reads: Vec<ReadOp>) -> Result<Vec<Answer>, StoreError> {
        match self.store.apply(&self.object, Transaction { reads, ..Transaction::new() }).await? {
            Outcome::Done(done) => Ok(done.answers),
            Outcome::Refused(_) => Err(nonsense()),
        }
    }

    /// Returns the last `count` lines, in order.
    ///
    /// # Errors
    /// Those of the store; `Corrupt` if the log's header cannot be read.
    pub async fn last(&self, count: u64) -> Result<Vec<Line>, StoreError> {
        let last = self.header().await.map_err(at)?.map_or(0, |header| header.next - 1);
        self.after(last.saturating_sub(count)).await
    }

    /// Returns all lines after a number, as far as they are kept, in order.
    ///
    /// # Errors
    /// As [`Log::last`].
    pub async fn after(&self, number: u64) -> Result<Vec<Line>, StoreError> {
        Ok(self.read_after(number).await.map_err(at)?.1)
    }

    /// Returns the number of the last line that there is, and all lines after a number.
    async fn read_after(&self, number: u64) -> Result<(u64, Vec<Line>), StoreError> {
        let mut found: Vec<Line> = Vec::new();
        let mut after = line_key(number)?.to_bytes();
        loop {
            let Page { last, lines, next } = self.page(after, PAGE_ENTRIES_MAX as u32).await?;
            found.extend(lines.into_iter().filter_map(|(_, line)| line));
            match next {
                Some(next) => after = next,
                None => return Ok((last, found)),
            }
        }
    }

    /// Begins to follow the log, after a line.
    pub fn follow(&self, after: u64, poll: Duration) -> LogFollower {
        LogFollower { log: self.clone(), reached: after, poll, watch: None, stale: true }
    }
}

/// A reader of the log that waits for further lines. It needs a tokio runtime with a clock around its calls.
#[derive(derive_more::Debug)]
#[debug("LogFollower")]
pub struct LogFollower {
    log: Log,
    reached: u64,
    poll: Duration,
    /// `Some(None)`: the store cannot watch.
    watch: Option<Option<Watch>>,
    stale: bool,
}

impl LogFollower {
    /// Returns the next lines, at least one, and waits until there are some. Lines that were removed before they could be
    /// read are missing in the numbers. A store that does not answer is waited for.
    ///
    /// # Errors
    /// Those of the store that waiting does not heal.
    pub async fn next(&mut self) -> Result<Vec<Line>, StoreError> {
        loop {
            match self.step().await {
                Ok(lines) if lines.is_empty() => {}
                Ok(lines) => return Ok(lines),
                Err(error) if error.is_retryable() || error.kind == ErrorKind::Unknown => {
                    self.stale = true;
                    tokio::time::sleep(self.poll).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn step(&mut self) -> Result<Vec<Line>, StoreError> {
        if self.watch.is_none() {
            self.watch = match self.log.store.watch(&self.log.object, WatchOptions::default()).await {
                Ok(watch) => Some(Some(watch)),
                Err(error) if error.kind == ErrorKind::Unsupported => Some(None),
                Err(error) => return Err(at(error)),
            };
        }
        if !self.stale {
            match &mut self.watch {
                Some(Some(watch)) => match watch.next().await {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => {
                        self.watch = None;
                        return Err(at(error));
                    }
                    None => {
                        self.watch = None;
                        tokio::time::sleep(self.poll).await;
                    }
                },
                _ => tokio::time::sleep(self.poll).await,
            }
        }
        self.stale = true;
        let (last, mut lines) = self.log.read_after(self.reached).await.map_err(at)?;
        if last < self.reached {
            // The log was removed: if there is another one, it is read from its beginning.
            self.reached = 0;
            (_, lines) = self.log.read_after(0).await.map_err(at)?;
        }
        self.stale = false;
        if let Some(last) = lines.last() {
            self.reached = last.number;
        }
        Ok(lines)
    }
}

/// A way for a daemon to write lines, which never waits: lines wait in a bounded queue, and what does not fit is counted and
/// becomes a line of its own. Cheap to clone.
#[derive(Clone, derive_more::Debug)]
#[debug("Writer")]
pub struct Writer {
    source: Arc<str>,
    queue: mpsc::Sender<Entry>,
    dropped: Arc<AtomicU64>,
}

impl Writer {
    /// Creates a writer, and what appends its lines: a future to be run by the daemon. It ends when all writers are gone and
    /// their lines are appended, or when the store is closed. Lines that the store does not take for another reason than that
    /// it cannot be reached are dropped and counted.
    pub fn new(log: Log, source: &str) -> (Writer, impl Future<Output = ()> + Send + 'static) {
        let (queue, lines) = mpsc::channel(QUEUE_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let writer = Writer { source: source.into(), queue, dropped: dropped.clone() };
        (writer, append_all(log, source.to_owned(), lines, dropped))
    }

    /// Writes a line.
    pub fn write(&self, level: Level, text: &str) {
        if self.queue.try_send(Entry::new(&self.source, level, text)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

async fn append_all(log: Log, source: String, mut lines: mpsc::Receiver<Entry>, dropped: Arc<AtomicU64>) {
    let mut batch = Vec::new();
    let mut is_failing = false;
    loop {
        batch.clear();
        // What was dropped is told by itself where no line follows.
        let room = APPEND_MAX - 1;
        if dropped.load(Ordering::Relaxed) == 0 {
            lines.recv_many(&mut batch, room).await;
        } else {
            batch.extend(std::iter::from_fn(|| lines.try_recv().ok()).take(room));
        }
        let count = dropped.swap(0, Ordering::Relaxed);
        if batch.is_empty() && (count == 0 || (is_failing && lines.is_closed())) {
            return;
        }
        let own = batch.len() as u64;
        if count > 0 {
            let text = format!("{count} lines of this source were dropped before this one");
            batch.push(Entry::new(&source, Level::Warning, &text));
        }
        let mut attempt = Attempt::default();
        loop {
            match log.append_chunk(&batch, &mut attempt).await.map_err(at) {
                Ok(_) => {
                    is_failing = false;
                    break;
                }
                // Once more might be once too many.
                Err(error) if attempt.is_lost => {
                    tracing::warn!("{error}; {} lines may be missing", batch.len());
                    break;
                }
                Err(error) if error.is_retryable() || error.kind == ErrorKind::Unknown => {
                    tracing::debug!("{error}; trying again");
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) if error.kind == ErrorKind::Closed => return,
                // The next lines may fare better, once whatever is broken is repaired.
                Err(error) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!("{error}; lines are dropped until it takes some again");
                    }
                    dropped.fetch_add(own + count, Ordering::Relaxed);
                    tokio::time::sleep(PAUSE).await;
                    break;
                }
            }
        }
    }
}

fn at(error: StoreError) -> StoreError {
    error.context("the cluster log")
}

fn nonsense() -> StoreError {
    StoreError::new(ErrorKind::Corrupt, "the store's answer does not fit the question")
}

/// The beginning of the keys of lines.
const LINE: &str = "line/";

fn header_key() -> Key {
    Key::new("header").expect("the name is short and not empty")
}

/// Returns the number of a line by its key; `None` if it is not that of a line.
fn line_number(key: &Key) -> Option<u64> {
    let digits = std::str::from_utf8(key.as_bytes().strip_prefix(LINE.as_bytes())?).ok()?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    (digits == format!("{number:016x}")).then_some(number)
}

fn line_key(number: u64) -> Result<Key, StoreError> {
    Key::new(format!("{LINE}{number:016x}"))
}
