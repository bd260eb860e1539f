//! One object: its bytes, keys and attributes.

use std::time::Duration;

use bytes::Bytes;
use nacre_object::limit::EXTENTS_PER_READ_MAX;
use nacre_object::stage::{self, Staged};
use nacre_object::{
    Answer, ByteRange, Done, ErrorKind, Extent, Fork, Found, Guard, Intent, Key, KeyPage, KeyRange, ObjectId,
    Outcome, RangeRead, ReadOp, Refusal, Stat, StoreError, Transaction, WriteOp,
};

use crate::Store;
use crate::pager::{KeyNames, Keys};

/// An object of a store, and one fork of it: the default one, unless [`Object::fork`] chose another.
///
/// ```
/// let store = nacre::open("mem:")?.blocking();
/// let object = store.object("results")?;
/// object.write(0, "0123456789")?;
/// object.truncate(5)?;
/// assert_eq!(object.append("five")?.offset, 5);
/// object.set_attribute("unit", "mm")?;
///
/// // A fork is a byte stream of its own; one transaction may change several.
/// let notes = object.fork("notes")?;
/// notes.write(0, "measured twice")?;
/// assert_eq!(object.read(0..100)?.data, "01234five");
/// assert_eq!(object.forks()?.len(), 2);
/// assert!(object.remove()?);
/// # Ok::<(), nacre::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Object {
    store: Store,
    id: ObjectId,
    fork: Fork,
}

/// The result of a conditional write.
///
/// ```
/// use nacre::Written;
///
/// let object = nacre::open("mem:")?.blocking().object("page")?;
/// let version = object.write(0, "draft")?;
/// object.write(0, "final")?;
/// let Written::Refused(now) = object.write_if(0, "other", version)? else { panic!("it was overwritten") };
/// // What stands there, with its version: for the next attempt.
/// assert_eq!(now.data, "final");
/// assert!(matches!(object.write_if(0, "other", now.version)?, Written::Done { .. }));
/// # Ok::<(), nacre::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// The bytes are written.
    Done {
        /// The version that they carry.
        version: u64,
    },
    /// Something in the range was newer: nothing was written. The field is the range as it stands now.
    Refused(RangeRead),
}

/// The place of appended bytes.
///
/// ```
/// let object = nacre::open("mem:")?.blocking().object("log")?;
/// object.append("first ")?;
/// let nacre::Appended { offset, version } = object.append("second")?;
/// assert_eq!((offset, version), (6, 2));
/// assert_eq!(object.read(offset..offset + 6)?.data, "second");
/// # Ok::<(), nacre::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The offset of the first byte.
    pub offset: u64,
    /// The version that the bytes carry.
    pub version: u64,
}

/// The extents of a range.
///
/// ```
/// let object = nacre::open("mem:")?.blocking().object("sparse")?;
/// object.write(1 << 30, "far away")?;
/// let nacre::Extents { extents, size, .. } = object.extents(0..2 << 30)?;
/// assert_eq!(size, (1 << 30) + 8);
/// assert!(extents.iter().any(|extent| extent.kind == nacre::ExtentKind::Data && extent.range.len == 8));
/// # Ok::<(), nacre::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extents {
    /// The extents in ascending order, clipped to the range.
    pub extents: Vec<Extent>,
    /// The greatest version in the range.
    pub version: u64,
    /// The fork's size in bytes.
    pub size: u64,
}

impl Object {
    pub(crate) fn new(store: Store, id: ObjectId) -> Self {
        Self { store, id, fork: Fork::DEFAULT }
    }

    /// Returns the object's id.
    pub fn id(&self) -> &ObjectId {
        &self.id
    }

    /// Returns the store that the object belongs to.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the object with another of its forks. Fails only if the name is longer than 255 bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the name is longer than 255 bytes.
    pub fn fork(&self, name: impl AsRef<[u8]>) -> Result<Object, StoreError> {
        let fork = Fork::new(Bytes::copy_from_slice(name.as_ref()))?;
        Ok(Object { fork, ..self.clone() })
    }

    /// Returns the name of the fork.
    pub fn fork_name(&self) -> &Fork {
        &self.fork
    }

    /// Adds to an error the operation that was attempted on this object.
    pub(crate) fn context(&self, error: StoreError, attempted: &str) -> StoreError {
        let operation = [" of", " to"].into_iter().find_map(|suffix| attempted.strip_suffix(suffix));
        let operation = operation.unwrap_or(attempted);
        let error = error.with_operation(operation).with_object(&self.id).with_store(self.store.name());
        error.context(format_args!("cannot {attempted} object \"{}\" of {}", self.id, self.store.name()))
    }

    pub(crate) async fn apply(
        &self,
        transaction: Transaction,
        attempted: &str,
    ) -> Result<Outcome, StoreError> {
        let outcome = self.store.apply(&self.id, transaction).await;
        outcome.map_err(|error| self.context(error, attempted))
    }

    /// Applies a transaction of which no guard can fail.
    pub(crate) async fn done(&self, transaction: Transaction, attempted: &str) -> Result<Done, StoreError> {
        match self.apply(transaction, attempted).await? {
            Outcome::Done(done) => Ok(done),
            Outcome::Refused(_) => Err(self.nonsense(attempted)),
        }
    }

    pub(crate) fn nonsense(&self, attempted: &str) -> StoreError {
        let error = StoreError::new(ErrorKind::Corrupt, "the store's answer does not fit the question");
        self.context(error, attempted)
    }

    /// Applies a transaction of one read.
    pub(crate) async fn ask(&self, read: ReadOp, attempted: &str) -> Result<Answer, StoreError> {
        let done = self.done(Transaction::new().read(read), attempted).await?;
        done.answers.into_iter().next().ok_or_else(|| self.nonsense(attempted))
    }

    /// Reads bytes, with their extents and the version of the range. Short where the fork ends; a range of more than 16
    /// MiB, or of more than 4096 extents, is cut, and `next` is where to continue.
    ///
    /// # Errors
    /// Those of a [read](crate#errors). [`ErrorKind::Invalid`] if the range goes past 2^63.
    pub async fn read(&self, range: impl Into<ByteRange>) -> Result<RangeRead, StoreError> {
        self.read_with(range, Intent::Look).await
    }

    /// Reads bytes, as [`Object::read`] does, with a hint at their intended use.
    ///
    /// # Errors
    /// Those of [`Object::read`].
    pub async fn read_with(
        &self,
        range: impl Into<ByteRange>,
        intent: Intent,
    ) -> Result<RangeRead, StoreError> {
        let read = ReadOp::Range { fork: self.fork.clone(), range: range.into(), intent };
        match self.ask(read, "read").await? {
            Answer::Range(range) => Ok(range),
            _ => Err(self.nonsense("read")),
        }
    }

    /// Writes bytes, replacing any that are there. Returns the version that they carry.
    ///
    /// # Errors
    /// Those of a [write](crate#errors). [`ErrorKind::Unknown`]: the bytes may or may not be written, all of them or
    /// none; writing them again does no harm. [`ErrorKind::Invalid`] if there are more than 16 MiB, or they go past
    /// 2^63.
    pub async fn write(&self, offset: u64, data: impl Into<Bytes>) -> Result<u64, StoreError> {
        self.change(Transaction::new().write(self.fork.clone(), offset, data), "write").await
    }

    /// Writes many extents at once. Returns the version that they carry.
    ///
    /// # Errors
    /// Those of a [write](crate#errors). [`ErrorKind::Unknown`]: the extents may or may not be written, all of them
    /// or none. [`ErrorKind::Invalid`] if there are none, more than 65,536, or more than 16 MiB in all.
    pub async fn write_vectored(&self, extents: Vec<(u64, Bytes)>) -> Result<u64, StoreError> {
        let write = WriteOp::Extents { fork: self.fork.clone(), extents };
        self.change(Transaction::new().change(write), "write").await
    }

    /// Writes bytes at the end of the fork, and returns their place. Appends of several clients follow each other without gaps;
    /// no client loses a race. See [`WriteOp::Append`] for appends that are part of a larger transaction.
    ///
    /// # Errors
    /// Those of a [write](crate#errors). [`ErrorKind::Unknown`]: all of the bytes may or may not be appended, and doing it
    /// again may append them twice. [`ErrorKind::Invalid`] if there are more than 16 MiB, or the end would be past 2^63.
    /// [`ErrorKind::Unsupported`] if the server is older than appends.
    pub async fn append(&self, data: impl Into<Bytes>) -> Result<Appended, StoreError> {
        let size = ReadOp::Extents { fork: self.fork.clone(), range: ByteRange::new(0, 0) };
        let transaction = Transaction::new().read(size).append(self.fork.clone(), data);
        let done = self.done(transaction, "append to").await?;
        match &done.answers[..] {
            [Answer::Range(before)] => Ok(Appended { offset: before.size, version: done.version }),
            _ => Err(self.nonsense("append to")),
        }
    }

    pub(crate) async fn change(&self, transaction: Transaction, attempted: &str) -> Result<u64, StoreError> {
        Ok(self.done(transaction, attempted).await?.version)
    }

    /// Writes bytes on the condition that nothing in their range is newer than `version`.
    ///
    /// # Errors
    /// Those of a [write](crate#errors). [`ErrorKind::Unknown`]: the bytes may or may not be written; if they are,
    /// their version is greater than `version`, so that writing on the same condition again cannot write twice.
    pub async fn write_if(
        &self,
        offset: u64,
        data: impl Into<Bytes>,
        version: u64,
    ) -> Result<Written, StoreError> {
        let data = data.into();
        let range = ByteRange::new(offset, data.len() as u64);
        self.write_if_range(offset, data, range, version).await
    }

    pub(crate) async fn write_if_range(
        &self,
        offset: u64,
        data: Bytes,
        range: ByteRange,
        version: u64,
    ) -> Result<Written, StoreError> {
        let transaction = Transaction::new().if_version(self.fork.clone(), range, version).write(
            self.fork.clone(),
            offset,
            data,
        );
        match self.apply(transaction, "write").await? {
            Outcome::Done(done) => Ok(Written::Done { version: done.version }),
            Outcome::Refused(Refusal { found: Found::Region(now), .. }) => Ok(Written::Refused(now)),
            Outcome::Refused(_) => Err(self.nonsense("write")),
        }
    }

    /// Returns all extents of a range with their versions. If they change while they are read, the reading starts
    /// again.
    ///
    /// # Errors
    /// Those of a [read](crate#errors).
    pub async fn extents(&self, range: impl Into<ByteRange>) -> Result<Extents, StoreError> {
        let whole = range.into();
        'again: loop {
            let mut all = Extents::default();
            let mut rest = whole;
            loop {
                let read = ReadOp::Extents { fork: self.fork.clone(), range: rest };
                let mut transaction = Transaction::new().read(read);
                if rest != whole {
                    transaction = transaction.if_version(self.fork.clone(), whole, all.version);
                }
                let done = match self.apply(transaction, "read the extents of").await? {
                    Outcome::Done(done) => done,
                    Outcome::Refused(_) => continue 'again,
                };
                let Some(Answer::Range(page)) = done.answers.into_iter().next() else {
                    return Err(self.nonsense("read the extents of"));
                };
                if rest == whole {
                    all.version = page.version;
                }
                all.size = page.size;
                debug_assert!(page.extents.len() <= EXTENTS_PER_READ_MAX);
                for extent in page.extents {
                    nacre_object::coalesce(&mut all.extents, extent);
                }
                match page.next {
                    Some(next) if next > rest.offset && next < whole.end() => {
                        rest = ByteRange::new(next, whole.end() - next);
                    }
                    _ => return Ok(all),
                }
            }
        }
    }

    /// Returns the object at a glance. Forks of reserved names ([`stage`]) are not counted.
    ///
    /// # Errors
    /// Those of a [read](crate#errors).
    pub async fn stat(&self) -> Result<Stat, StoreError> {
        let after = Some(Fork::try_from(stage::RESERVED)?);
        let reserved = ReadOp::Forks { after, limit: u32::MAX };
        let done = self.done(Transaction::new().read(ReadOp::Stat).read(reserved), "look at").await?;
        match &done.answers[..] {
            [Answer::Stat(stat), Answer::Forks(page)] => {
                let mut stat = stat.clone();
                for (_, bytes) in page.entries.iter().filter(|(fork, _)| stage::is_reserved(fork)) {
                    stat.forks = stat.forks.saturating_sub(1);
                    stat.bytes = stat.bytes.saturating_sub(*bytes);
                }
                Ok(stat)
            }
            _ => Err(self.nonsense("look at")),
        }
    }

    /// Returns whether a copy of the object to this store has begun and is not complete ([`nacre_object::copy`]): its
    /// content is then an earlier state, or a part of one.
    ///
    /// # Errors
    /// Those of a [read](crate#errors).
    pub async fn is_incomplete_copy(&self) -> Result<bool, StoreError> {
        let mark = Fork::try_from(nacre_object::copy::MARK)?;
        let after = Some(Fork::try_from(stage::RESERVED)?);
        match self.ask(ReadOp::Forks { after, limit: 64 }, "look at").await? {
            // It stands before all other reserved names.
            Answer::Forks(page) => Ok(page.entries.iter().any(|(fork, _)| *fork == mark)),
            _ => Err(self.nonsense("look at")),
        }
    }

    /// Lists the staged forks of the object: content of [`Object::put`]s that are under way, or whose writers died.
    ///
    /// # Errors
    /// Those of a [read](crate#errors).
    pub async fn staged(&self) -> Result<Vec<Staged>, StoreError> {
        let staged = stage::staged(self.store(), &self.id).await;
        staged.map_err(|error| self.context(error, "list the staged forks of"))
    }

    /// Removes the staged forks of the object whose writers have made no progress for `idle`, and returns them. A
    /// writer that is still alive fails, and leaves its fork as it was.
    ///
    /// # Errors
    /// Those of a [write](crate#errors). [`ErrorKind::Unknown`]: some of the forks may be removed; listing them again
    /// tells.
    pub async fn remove_staged(&self, idle: Duration) -> Result<Vec<Staged>, StoreError> {
        let removed = stage::remove_staged(self.store(), &self.id, idle).await;
        removed.map_err(|error| self.context(error, "remove staged forks of"))
    }

    /// Returns the names of all forks and their sizes in bytes, in ascending order of the names, without those of
    /// reserved names ([`stage`]).
    ///
    /// # Errors
    /// Those of a [read](crate#errors).
    pub async fn forks(&self) -> Result<Vec<(Fork, u64)>, StoreError> {
        let mut all: Vec<(Fork, u64)> = Vec::new();
        let mut after = None;
        loop {
            match self.ask(ReadOp::Forks { after, limit: u32::MAX }, "list the forks of").await? {
                Answer::Forks(page) => {
                    let over = page.entries.is_empty() || !page.more;
                    after = page.entries.last().map(|(fork, _)| fork.clone());
                    all.extend(page.entries.into_iter().filter(|(fork, _)| !stage::is_reserved(fork)));
                    if over {
                        return Ok(all);
                    }
                }
                _ => return Err(self.nonsense("list the forks of")),
            }
        }
    }

    /// Creates the object. Returns false if it exists already.
    ///
    /// # Errors
    /// Those of a [write](crate#errors). [`ErrorKind::Unknown`]: the object may or may not exist now, and a second
    /// call that returns false does not tell who created it.
    pub async fn create(&self) -> Result<bool, StoreError> {
        let transaction = Transaction::new().guard(Guard::Absent).change(WriteOp::Create);
        Ok(matches!(self.apply(transaction, "create").await?, Outcome::Done(_)))
    }

    /// Makes a range read as zeros. Returns the version of that change.
    ///
    /// # Errors
    /// Those of a [write](crate#errors). [`ErrorKind::Unknown`]: the range may or may not read as zeros; doing it
    /// again does no harm.
    pub async fn zero(&self, range: impl Into<ByteRange>) -> Result<u64, StoreError> {
        let write = WriteOp::Zero { fork: self.fork.clone(), range: range.into() };
        self.change(Transaction::new().change(write), "zero a range of").await
    }

    /// Sets the size of the fork in bytes. Returns the version of that change.
    ///
    /// # Errors
    /// Those of a [write](crate#errors). [`ErrorKind::Unknown`]: the fork may or may not have the size; doing it
    /// again does no harm unless others append.
    pub async fn truncate(&self, size: u64) -> Result<u64, StoreError> {
        let write = WriteOp::Truncate { fork: self.fork.clone(), size };
        self.change(Transaction::new().change(write), "truncate").await
    }

    /// Removes the fork. Returns the version of that change.
    ///
    /// # Errors
    /// Those of a [write](crate#errors). [`ErrorKind::Unknown`]: the fork may or may not be gone.
    pub async fn remove_fork(&self) -> Result<u64, StoreError> {
        let write = WriteOp::RemoveFork { fork: self.fork.clone() };
        self.change(Transaction::new().change(write), "remove a fork of").await
    }

    /// Removes the object with its forks, keys and attributes. Returns false if it did not exist.
    ///
    /// # Errors
    /// Those of a [write](crate#errors). [`ErrorKind::Unknown`]: the object may or may not be gone, and a second call
    /// that returns false does not tell who removed it.
    pub async fn remove(&self) -> Result<bool, StoreError> {
        let transaction = Transaction::new().guard(Guard::Exists).change(WriteOp::Remove);
        Ok(matches!(self.apply(transaction, "remove").await?, Outcome::Done(_)))
    }

    /// Returns the value of a key, or `None` if there is none.
    ///
    /// # Errors
    /// Those of a [read](crate#errors). [`ErrorKind::Invalid`] if the key is not 1 to 1,024 bytes long.
    pub async fn key(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>, StoreError> {
        match self.ask(ReadOp::Key { key: name(key)? }, "read a key of").await? {
            Answer::Value(value) => Ok(value),
            _ => Err(self.nonsense("read a key of")),
        }
    }

    /// Sets a key. Returns the object's new version.
    ///
    /// # Errors
    /// Those of a [write](crate#errors). [`ErrorKind::Unknown`]: the key may or may not be set; setting it again does
    /// no harm. [`ErrorKind::Invalid`] if the key is not 1 to 1,024 bytes long, or the value is longer than 1 MiB.
    pub async fn set_key(&self, key: impl AsRef<[u8]>, value: impl Into<Bytes>) -> Result<u64, StoreError> {
        let write = WriteOp::SetKey { key: name(key)?, value: value.into() };
        self.change(Transaction::new().change(write), "set a key of").await
    }

    /// Removes a key, if it is there. Returns the object's new version.
    ///
    /// # Errors
    /// Those of a [write](crate#errors). [`ErrorKind::Unknown`]: the key may or may not be gone.
    pub async fn remove_key(&self, key: impl AsRef<[u8]>) -> Result<u64, StoreError> {
        let write = WriteOp::RemoveKey { key: name(key)? };
        self.change(Transaction::new().change(write), "remove a key of").await
    }

    /// Returns one page of the keys of a range, in ascending order: at most `limit` keys, and at most 1,024. Their values are
    /// empty unless `values` is true. While the page's `more` is true, the next one is that of the range after its last key.
    ///
    /// ```
    /// use nacre::KeyRange;
    ///
    /// let object = nacre::open("mem:")?.blocking().object("ages")?;
    /// for name in ["ada", "bob", "cleo"] {
    ///     object.set_key(name, "36")?;
    /// }
    /// let first = object.key_page(KeyRange::all(), 2, false)?;
    /// assert_eq!((first.entries.len(), first.more), (2, true));
    /// let after = first.entries.last().map(|(key, _)| key.to_bytes());
    /// let second = object.key_page(KeyRange { after, ..KeyRange::all() }, 2, false)?;
    /// assert_eq!((second.entries[0].0.as_bytes(), second.more), (&b"cleo"[..], false));
    /// # Ok::<(), nacre::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of a [read](crate#errors).
    pub async fn key_page(&self, range: KeyRange, limit: u32, values: bool) -> Result<KeyPage, StoreError> {
        match self.ask(ReadOp::Keys { range, limit, values }, "list the keys of").await? {
            Answer::Keys(page) => Ok(page),
            _ => Err(self.nonsense("list the keys of")),
        }
    }

    /// Lists the keys of a range without their values, in ascending order, page by page.
    pub fn key_names(&self, range: KeyRange) -> KeyNames {
        KeyNames(Keys::new(self.clone(), range, false))
    }

    /// Lists the keys of a range with their values, in ascending order, page by page.
    pub fn keys(&self, range: KeyRange) -> Keys {
        Keys::new(self.clone(), range, true)
    }

    /// Returns the value of an attribute, or `None` if there is none.
    ///
    /// # Errors
    /// Those of a [read](crate#errors).
    pub async fn attribute(&self, attribute: impl AsRef<[u8]>) -> Result<Option<Bytes>, StoreError> {
        match self.ask(ReadOp::Attribute { name: name(attribute)? }, "read an attribute of").await? {
            Answer::Value(value) => Ok(value),
            _ => Err(self.nonsense("read an attribute of")),
        }
    }

    /// Returns all attributes with their values.
    ///
    /// # Errors
    /// Those of a [read](crate#errors).
    pub async fn attributes(&self) -> Result<Vec<(Key, Bytes)>, StoreError> {
        match self.ask(ReadOp::Attributes, "read the attributes of").await? {
            Answer::Keys(page) => Ok(page.entries),
            _ => Err(self.nonsense("read the attributes of")),
        }
    }

    /// Sets an attribute. Returns the object's new version.
    ///
    /// # Errors
    /// Those of a [write](crate#errors). [`ErrorKind::Unknown`]: the attribute may or may not be set; setting it
    /// again does no harm.
    pub async fn set_attribute(
        &self,
        attribute: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
    ) -> Result<u64, StoreError> {
        let write = WriteOp::SetAttribute { name: name(attribute)?, value: value.into() };
        self.change(Transaction::new().change(write), "set an attribute of").await
    }

    /// Removes an attribute, if it is there. Returns the object's new version.
    ///
    /// # Errors
    /// Those of a [write](crate#errors). [`ErrorKind::Unknown`]: the attribute may or may not be gone.
    pub async fn remove_attribute(&self, attribute: impl AsRef<[u8]>) -> Result<u64, StoreError> {
        let write = WriteOp::RemoveAttribute { name: name(attribute)? };
        self.change(Transaction::new().change(write), "remove an attribute of").await
    }
}

/// Checks a name from the caller: a key's, or an attribute's.
pub(crate) fn name(bytes: impl AsRef<[u8]>) -> Result<Key, StoreError> {
    Key::new(Bytes::copy_from_slice(bytes.as_ref()))
}
