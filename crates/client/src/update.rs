//! Updates: a change computed from what is there, made once nobody else has changed that meanwhile.

use std::time::{Duration, Instant};

use bytes::Bytes;
use nacre_object::limit::REFUSAL_BYTES_MAX;
use nacre_object::{ByteRange, ErrorKind, Intent, RangeRead, StoreError};

use crate::Object;
use crate::object::Written;
use crate::versioned::KeyWritten;

/// The limits of an update. The default is [`UpdateOptions::ATTEMPTS`] attempts, for as long as they take.
///
/// ```
/// use std::time::Duration;
///
/// let options = nacre::UpdateOptions::default().attempts(100).timeout(Duration::from_secs(5));
/// ```
///
/// ```
/// # use std::time::Duration;
/// use nacre::{Change, UpdateOptions};
///
/// let object = nacre::open("mem:")?.blocking().object("counter")?;
/// let options = UpdateOptions::default().attempts(100).timeout(Duration::from_secs(5));
/// let settled = object.update_with(0..1, &options, |old| Change::Write(vec![old[0] + 1], ()))?;
/// assert!(settled.version.is_some());
/// # Ok::<(), nacre::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpdateOptions {
    /// The greatest number of attempts.
    pub attempts: u64,
    /// The time after which no further attempt begins. An attempt that has begun lasts as long as its requests do.
    pub timeout: Option<Duration>,
}

/// The decision of an update's closure, with a value for the caller.
///
/// ```
/// use nacre::{Change, UpdateOptions};
///
/// let object = nacre::open("mem:")?.blocking().object("seats")?;
/// object.write(0, [3u8].to_vec())?;
/// let mut take = || {
///     object.update_with(0..1, &UpdateOptions::default(), |left| {
///         // What the closure gives is the value of the whole.
///         if left[0] == 0 { Change::Keep(false) } else { Change::Write(vec![left[0] - 1], true) }
///     })
/// };
/// for _ in 0..3 {
///     assert!(take()?.value);
/// }
/// let last = take()?;
/// assert_eq!((last.value, last.version), (false, None));
/// # Ok::<(), nacre::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<B, T = ()> {
    /// The new bytes are written, if nobody else has changed the old ones.
    Write(B, T),
    /// Nothing is written, and the update ends.
    Keep(T),
}

/// The result of an update.
///
/// ```
/// let object = nacre::open("mem:")?.blocking().object("greeting")?;
/// object.write(0, "hello")?;
/// let updated: nacre::Updated = object.update(0..5, |old| old.to_ascii_uppercase())?;
/// // Nobody else wrote meanwhile.
/// assert_eq!(updated.refusals, 0);
/// assert_eq!(object.read(0..5)?.version, updated.version);
/// # Ok::<(), nacre::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Updated {
    /// The version that the new bytes carry.
    pub version: u64,
    /// The number of times that another writer was faster.
    pub refusals: u64,
}

/// The result of an update whose closure decides.
///
/// ```
/// use nacre::{Change, Settled, UpdateOptions};
///
/// let object = nacre::open("mem:")?.blocking().object("votes")?;
/// let settled: Settled<usize> = object.update_key_with("ada", &UpdateOptions::default(), |votes| {
///     let count = votes.map_or(0, |votes| votes.len()) + 1;
///     Change::Write("x".repeat(count), count)
/// })?;
/// assert_eq!(settled.value, 1);
/// # Ok::<(), nacre::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settled<T = ()> {
    /// The value that the closure gave with its last decision.
    pub value: T,
    /// The version that the new bytes carry; `None` if the closure decided to keep the old ones.
    pub version: Option<u64>,
    /// The number of times that another writer was faster.
    pub refusals: u64,
}

impl UpdateOptions {
    /// The default of [`UpdateOptions::attempts`].
    pub const ATTEMPTS: u64 = 10_000;

    /// Returns the options with another number of attempts.
    pub fn attempts(mut self, attempts: u64) -> Self {
        self.attempts = attempts;
        self
    }

    /// Returns the options with a time after which no further attempt begins.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl Default for UpdateOptions {
    fn default() -> Self {
        Self { attempts: Self::ATTEMPTS, timeout: None }
    }
}

/// Counts the attempts that another writer was faster than.
struct Attempts<'a> {
    options: &'a UpdateOptions,
    begun: Instant,
    refusals: u64,
}

impl<'a> Attempts<'a> {
    fn new(options: &'a UpdateOptions) -> Self {
        Self { options, begun: Instant::now(), refusals: 0 }
    }

    /// Counts a conflict. Fails if there is to be no further attempt.
    fn lost(&mut self) -> Result<(), StoreError> {
        self.refusals += 1;
        let late = self.options.timeout.is_some_and(|timeout| self.begun.elapsed() >= timeout);
        if self.refusals < self.options.attempts && !late {
            return Ok(());
        }
        let times = match self.refusals {
            1 => "once".to_owned(),
            refusals => format!("{refusals} times"),
        };
        let text = format!("other writers were faster {times}; nothing was changed");
        Err(StoreError::new(ErrorKind::Busy, text))
    }

    fn settled<T>(&self, value: T, version: Option<u64>) -> Settled<T> {
        Settled { value, version, refusals: self.refusals }
    }
}

impl Settled<()> {
    /// Returns the result of an update that always writes.
    fn written(self) -> Updated {
        Updated { version: self.version.unwrap_or_default(), refusals: self.refusals }
    }
}

impl Object {
    /// Reads a range, passes it to `change`, and writes the result if no other client wrote meanwhile; otherwise starts
    /// again from what the other writer left.
    ///
    /// `change` gets exactly the bytes of the range, with zeros past the end of the fork, and may be called several
    /// times; its result is written at the beginning of the range and must not be longer than it. The range may be up
    /// to 1 MiB. [`Object::update_with`] has limits to be set, and a closure that may decide to write nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if other writers were faster [`UpdateOptions::ATTEMPTS`] times; nothing was changed.
    /// [`ErrorKind::Invalid`] if the range is too long, or the new bytes longer than it; nothing was changed.
    /// [`ErrorKind::Unknown`] if the new bytes of the last attempt may or may not have been written. Otherwise the
    /// store's. Dropping the future stops the update; an attempt that is under way may still take effect.
    pub async fn update<B: Into<Bytes>>(
        &self,
        range: impl Into<ByteRange>,
        mut change: impl FnMut(&[u8]) -> B,
    ) -> Result<Updated, StoreError> {
        let options = UpdateOptions::default();
        let settled = self.update_with(range, &options, |old| Change::Write(change(old), ())).await?;
        Ok(settled.written())
    }

    /// Updates a range as [`Object::update`] does, within limits, by a closure that may decide to keep what is there, and
    /// gives a value to the caller: what it found, or why it keeps it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nacre::Error> {
    /// use nacre::{Change, UpdateOptions};
    ///
    /// let seats = nacre::open("mem:")?.object("seats")?;
    /// seats.write(0, vec![2]).await?;
    /// // Takes a seat, unless none is left.
    /// let take = |old: &[u8]| match old[0].checked_sub(1) {
    ///     Some(left) => Change::Write(vec![left], Ok(left)),
    ///     None => Change::Keep(Err("sold out")),
    /// };
    /// let options = UpdateOptions::default();
    /// assert_eq!(seats.update_with(0..1, &options, take).await?.value, Ok(1));
    /// assert_eq!(seats.update_with(0..1, &options, take).await?.value, Ok(0));
    /// let none = seats.update_with(0..1, &options, take).await?;
    /// assert_eq!((none.value, none.version), (Err("sold out"), None));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`Object::update`], with [`ErrorKind::Busy`] as soon as the limits are reached.
    pub async fn update_with<B: Into<Bytes>, T>(
        &self,
        range: impl Into<ByteRange>,
        options: &UpdateOptions,
        mut change: impl FnMut(&[u8]) -> Change<B, T>,
    ) -> Result<Settled<T>, StoreError> {
        let range = range.into();
        let failed = |kind, text: String| Err(self.context(StoreError::new(kind, text), "update"));
        if range.len > REFUSAL_BYTES_MAX as u64 {
            let text = format!("a range of {} bytes; an update may span {REFUSAL_BYTES_MAX}", range.len);
            return failed(ErrorKind::Invalid, text);
        }
        let len = range.len as usize;
        let mut attempts = Attempts::new(options);
        let mut read = self.read_with(range, Intent::Update).await?;
        loop {
            let Some(old) = self.whole_of(range, &read).await? else {
                attempts.lost().map_err(|error| self.context(error, "update"))?;
                read = self.read_with(range, Intent::Update).await?;
                continue;
            };
            let (new, value) = match change(&old) {
                Change::Write(new, value) => (new.into(), value),
                Change::Keep(value) => return Ok(attempts.settled(value, None)),
            };
            if new.len() > len {
                return failed(ErrorKind::Invalid, format!("{} new bytes for a range of {len}", new.len()));
            }
            match self.write_if_range(range.offset, new, range, read.version).await? {
                Written::Done { version } => return Ok(attempts.settled(value, Some(version))),
                // The refusal brought the fresh bytes along, so there is no need to read them again.
                Written::Refused(now) => read = now,
            }
            attempts.lost().map_err(|error| self.context(error, "update"))?;
        }
    }

    /// Returns all bytes of a range, with zeros past the end of the fork, from a reply that may give only its beginning: a reply
    /// has no more than so many extents. `None` if the rest was changed since the reply.
    async fn whole_of(&self, range: ByteRange, read: &RangeRead) -> Result<Option<Bytes>, StoreError> {
        let len = range.len as usize;
        if read.next.is_none() && read.data.len() == len {
            return Ok(Some(read.data.clone()));
        }
        let mut bytes = vec![0; len];
        let mut put = |offset: u64, data: &Bytes| {
            let at = (offset - range.offset) as usize;
            let count = data.len().min(len - at);
            bytes[at..at + count].copy_from_slice(&data[..count]);
        };
        put(range.offset, &read.data);
        let (mut at, mut next) = (range.offset, read.next);
        while let Some(from) = next {
            if from <= at || from >= range.end() {
                return Err(self.nonsense("update"));
            }
            let rest = self.read_with(from..range.end(), Intent::Update).await?;
            // Nothing newer is in the rest, so it is what it was when the reply was given.
            if rest.version > read.version {
                return Ok(None);
            }
            put(from, &rest.data);
            (at, next) = (from, rest.next);
        }
        Ok(Some(bytes.into()))
    }

    /// Reads a key, passes its value to `change`, and sets it to the result if no other client changed it meanwhile;
    /// otherwise starts again. `change` may be called several times; it gets `None` if there is no such key.
    ///
    /// # Errors
    /// Those of [`Object::update`]. [`ErrorKind::Invalid`] if the key is not 1 to 1,024 bytes long.
    pub async fn update_key<B: Into<Bytes>>(
        &self,
        key: impl AsRef<[u8]>,
        mut change: impl FnMut(Option<&[u8]>) -> B,
    ) -> Result<Updated, StoreError> {
        let options = UpdateOptions::default();
        let settled = self.update_key_with(key, &options, |old| Change::Write(change(old), ())).await?;
        Ok(settled.written())
    }

    /// Updates a key as [`Object::update_key`] does, within limits, by a closure that may decide to keep what is there.
    ///
    /// # Errors
    /// Those of [`Object::update_key`], with [`ErrorKind::Busy`] as soon as the limits are reached.
    pub async fn update_key_with<B: Into<Bytes>, T>(
        &self,
        key: impl AsRef<[u8]>,
        options: &UpdateOptions,
        mut change: impl FnMut(Option<&[u8]>) -> Change<B, T>,
    ) -> Result<Settled<T>, StoreError> {
        let mut attempts = Attempts::new(options);
        loop {
            // Where many update the key, its master lets them read it one after another.
            let found = self.versioned_key_with(&key, Intent::Update).await?;
            let (new, value) = match change(found.as_ref().map(|found| &found.value[..])) {
                Change::Write(new, value) => (new, value),
                Change::Keep(value) => return Ok(attempts.settled(value, None)),
            };
            let version = found.map_or(0, |found| found.version);
            if let KeyWritten::Done { version } = self.set_key_if(&key, new, version).await? {
                return Ok(attempts.settled(value, Some(version)));
            }
            attempts.lost().map_err(|error| self.context(error, "update a key of"))?;
        }
    }
}
