//! The calls of the library for programs without an async runtime.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::executor::block_on;
use nacre_object::stage::Staged;
use nacre_object::{
    ByteRange, Fences, Fork, Key, KeyPage, KeyRange, ObjectId, Outcome, RangeRead, Stat, StoreError,
    Transaction, Versioned,
};

use crate::administration::Report;
use crate::object::{Appended, Extents, Object, Written};
use crate::pager::{KeyNames, Keys, Objects};
use crate::store::Store;
use crate::transfer::{Download, PIECE_BYTES, Upload, source_error, target_error};
use crate::update::{Change, Settled, UpdateOptions, Updated};
use crate::versioned::{KeyWritten, VersionedKeys};

/// A [`Store`] whose calls block the calling thread.
///
/// ```
/// let store = nacre::open("mem:")?.blocking();
/// for name in ["a", "b"] {
///     store.object(name)?.create()?;
/// }
/// let names: Vec<_> = store.list().collect::<Result<_, _>>()?;
/// assert_eq!(names.len(), 2);
/// # Ok::<(), nacre::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct BlockingStore {
    store: Store,
}

/// An [`Object`] whose calls block the calling thread.
///
/// ```
/// let store = nacre::open("mem:")?.blocking();
/// let object: nacre::BlockingObject = store.object("greeting")?;
/// object.write(0, "hello")?;
/// assert_eq!(object.read(0..5)?.data, "hello");
/// assert_eq!(object.stat()?.bytes, 5);
/// # Ok::<(), nacre::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct BlockingObject {
    object: Object,
}

/// An iterator over the objects of a store. See [`Objects`].
///
/// ```
/// let store = nacre::open("mem:")?.blocking();
/// store.object("a")?.create()?;
/// store.object("b")?.create()?;
/// let mut objects: nacre::BlockingObjects = store.list();
/// assert_eq!(objects.next().unwrap()?.to_string(), "a");
/// let mut rest = store.list_after("a".parse()?);
/// assert_eq!(rest.next().unwrap()?.to_string(), "b");
/// # Ok::<(), nacre::Error>(())
/// ```
#[derive(derive_more::Debug)]
#[debug("BlockingObjects")]
pub struct BlockingObjects(Objects);

/// An iterator over the keys of an object. See [`Keys`].
///
/// ```
/// let object = nacre::open("mem:")?.blocking().object("ages")?;
/// object.set_key("ada", "36")?;
/// object.set_key("bob", "41")?;
/// let keys: nacre::BlockingKeys = object.keys(nacre::KeyRange::all());
/// for entry in keys {
///     let (name, age) = entry?;
///     println!("{name}: {age:?}");
/// }
/// # Ok::<(), nacre::Error>(())
/// ```
#[derive(derive_more::Debug)]
#[debug("BlockingKeys")]
pub struct BlockingKeys(Keys);

/// An iterator over the keys of an object without their values. See [`KeyNames`].
///
/// ```
/// let object = nacre::open("mem:")?.blocking().object("ages")?;
/// object.set_key("ada", "36")?;
/// let mut names: nacre::BlockingKeyNames = object.key_names(nacre::KeyRange::all());
/// assert_eq!(names.next().unwrap()?.to_string(), "ada");
/// assert!(names.next().is_none());
/// # Ok::<(), nacre::Error>(())
/// ```
#[derive(derive_more::Debug)]
#[debug("BlockingKeyNames")]
pub struct BlockingKeyNames(KeyNames);

/// An iterator over the keys of an object with their versions. See [`VersionedKeys`].
///
/// ```
/// let object = nacre::open("mem:")?.blocking().object("ages")?;
/// let version = object.set_key("ada", "36")?;
/// let mut keys: nacre::BlockingVersionedKeys = object.versioned_keys(nacre::KeyRange::all());
/// let (_, found) = keys.next().unwrap()?;
/// assert_eq!(found.version, version);
/// assert!(keys.next().is_none());
/// # Ok::<(), nacre::Error>(())
/// ```
#[derive(derive_more::Debug)]
#[debug("BlockingVersionedKeys")]
pub struct BlockingVersionedKeys(VersionedKeys);

impl BlockingStore {
    pub(crate) fn new(store: Store) -> Self {
        Self { store }
    }

    /// Returns the store with calls that are awaited.
    pub fn nonblocking(&self) -> &Store {
        &self.store
    }

    /// Connects to the servers now. See [`Store::connect`].
    ///
    /// # Errors
    /// Those of [`Store::connect`].
    pub fn connect(&self) -> Result<(), StoreError> {
        block_on(self.store.connect())
    }

    /// Reports the state of every part of the store. See [`Store::info`].
    ///
    /// # Errors
    /// Those of [`Store::info`].
    pub fn info(&self) -> Result<Vec<Report>, StoreError> {
        block_on(self.store.info())
    }

    /// Reads and checks every byte of the store. See [`Store::scrub`].
    ///
    /// # Errors
    /// Those of [`Store::scrub`].
    pub fn scrub(&self, progress: impl FnMut(Report) + Send + 'static) -> Result<Vec<Report>, StoreError> {
        block_on(self.store.scrub(progress))
    }

    /// Gives back the space of what was overwritten and removed. See [`Store::compact`].
    ///
    /// # Errors
    /// Those of [`Store::compact`].
    pub fn compact(&self) -> Result<Vec<Report>, StoreError> {
        block_on(self.store.compact())
    }

    /// Takes away what removed objects leave behind in a pool of a Ceph cluster. See [`Store::purge`].
    ///
    /// # Errors
    /// Those of [`Store::purge`].
    pub fn purge(
        &self,
        older_than: std::time::Duration,
        dry_run: bool,
        progress: impl FnMut(Report) + Send + 'static,
    ) -> Result<Vec<Report>, StoreError> {
        block_on(self.store.purge(older_than, dry_run, progress))
    }

    /// Returns the results of conditional writes. See [`Store::regions`].
    ///
    /// # Errors
    /// Those of [`Store::regions`].
    pub fn regions(&self, limit: usize) -> Result<Vec<Report>, StoreError> {
        block_on(self.store.regions(limit))
    }

    /// Forgets the counts of regions. See [`Store::clear_regions`].
    ///
    /// # Errors
    /// Those of [`Store::clear_regions`].
    pub fn clear_regions(&self) -> Result<(), StoreError> {
        block_on(self.store.clear_regions())
    }

    /// Closes a store of this process. See [`Store::close`].
    ///
    /// # Errors
    /// Those of [`Store::close`].
    pub fn close(&self) -> Result<(), StoreError> {
        self.store.close()
    }

    /// Returns a handle that acts for one session. See [`Store::for_session`].
    ///
    /// # Errors
    /// Those of [`Store::for_session`].
    pub fn for_session(&self, session: u64) -> BlockingStore {
        BlockingStore { store: self.store.for_session(session) }
    }

    /// Returns a handle that waits for servers that are away. See [`Store::patient`].
    pub fn patient(&self) -> BlockingStore {
        BlockingStore { store: self.store.patient() }
    }

    /// Returns an object of the store. See [`Store::object`].
    ///
    /// # Errors
    /// Those of [`Store::object`].
    pub fn object(&self, id: impl AsRef<[u8]>) -> Result<BlockingObject, StoreError> {
        Ok(BlockingObject { object: self.store.object(id)? })
    }

    /// Applies a transaction to one object. See [`Store::apply`].
    ///
    /// # Errors
    /// Those of [`Store::apply`].
    pub fn apply(&self, object: &ObjectId, transaction: Transaction) -> Result<Outcome, StoreError> {
        block_on(self.store.apply(object, transaction))
    }

    /// Lists all objects. See [`Store::list`].
    ///
    /// # Errors
    /// Those of [`Store::list`].
    pub fn list(&self) -> BlockingObjects {
        BlockingObjects(self.store.list())
    }

    /// Lists the objects after one. See [`Store::list_after`].
    ///
    /// # Errors
    /// Those of [`Store::list_after`].
    pub fn list_after(&self, after: ObjectId) -> BlockingObjects {
        BlockingObjects(self.store.list_after(after))
    }
}

impl Iterator for BlockingObjects {
    type Item = Result<ObjectId, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        block_on(self.0.next()).transpose()
    }
}

impl Iterator for BlockingKeys {
    type Item = Result<(Key, Bytes), StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        block_on(self.0.next()).transpose()
    }
}

impl Iterator for BlockingKeyNames {
    type Item = Result<Key, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        block_on(self.0.next()).transpose()
    }
}

impl Iterator for BlockingVersionedKeys {
    type Item = Result<(Key, Versioned), StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        block_on(self.0.next()).transpose()
    }
}

macro_rules! mirror {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(
            #[doc = concat!("See [`Object::", stringify!($name), "`].")]
            ///
            /// # Errors
            #[doc = concat!("Those of [`Object::", stringify!($name), "`].")]
            pub fn $name(&self, $($argument: $type),*) -> Result<$result, StoreError> {
                block_on(self.object.$name($($argument),*))
            }
        )*
    };
}

impl BlockingObject {
    mirror! {
        read(range: impl Into<ByteRange>) -> RangeRead;
        write(offset: u64, data: impl Into<Bytes>) -> u64;
        write_vectored(extents: Vec<(u64, Bytes)>) -> u64;
        append(data: impl Into<Bytes>) -> Appended;
        write_if(offset: u64, data: impl Into<Bytes>, version: u64) -> Written;
        extents(range: impl Into<ByteRange>) -> Extents;
        stat() -> Stat;
        forks() -> Vec<(Fork, u64)>;
        staged() -> Vec<Staged>;
        remove_staged(idle: Duration) -> Vec<Staged>;
        create() -> bool;
        zero(range: impl Into<ByteRange>) -> u64;
        truncate(size: u64) -> u64;
        remove_fork() -> u64;
        remove() -> bool;
        key(key: impl AsRef<[u8]>) -> Option<Bytes>;
        set_key(key: impl AsRef<[u8]>, value: impl Into<Bytes>) -> u64;
        remove_key(key: impl AsRef<[u8]>) -> u64;
        key_page(range: KeyRange, limit: u32, values: bool) -> KeyPage;
        versioned_key(key: impl AsRef<[u8]>) -> Option<Versioned>;
        set_key_if(key: impl AsRef<[u8]>, value: impl Into<Bytes>, version: u64) -> KeyWritten;
        remove_key_if(key: impl AsRef<[u8]>, version: u64) -> KeyWritten;
        attribute(attribute: impl AsRef<[u8]>) -> Option<Bytes>;
        attributes() -> Vec<(Key, Bytes)>;
        set_attribute(attribute: impl AsRef<[u8]>, value: impl Into<Bytes>) -> u64;
        remove_attribute(attribute: impl AsRef<[u8]>) -> u64;
        fence_session(session: u64) -> u64;
        raise_fence(least: u64) -> u64;
        fences() -> Fences;
    }

    /// Returns the object with calls that are awaited.
    pub fn nonblocking(&self) -> &Object {
        &self.object
    }

    /// Returns the object's id. See [`Object::id`].
    ///
    /// # Errors
    /// Those of [`Object::id`].
    pub fn id(&self) -> &ObjectId {
        self.object.id()
    }

    /// Returns the object with another of its forks. See [`Object::fork`].
    ///
    /// # Errors
    /// Those of [`Object::fork`].
    pub fn fork(&self, name: impl AsRef<[u8]>) -> Result<BlockingObject, StoreError> {
        Ok(BlockingObject { object: self.object.fork(name)? })
    }

    /// Updates a range. See [`Object::update`].
    ///
    /// # Errors
    /// Those of [`Object::update`].
    pub fn update<B: Into<Bytes>>(
        &self,
        range: impl Into<ByteRange>,
        change: impl FnMut(&[u8]) -> B,
    ) -> Result<Updated, StoreError> {
        block_on(self.object.update(range, change))
    }

    /// Updates a key. See [`Object::update_key`].
    ///
    /// # Errors
    /// Those of [`Object::update_key`].
    pub fn update_key<B: Into<Bytes>>(
        &self,
        key: impl AsRef<[u8]>,
        change: impl FnMut(Option<&[u8]>) -> B,
    ) -> Result<Updated, StoreError> {
        block_on(self.object.update_key(key, change))
    }

    /// Updates a range within limits. See [`Object::update_with`].
    ///
    /// # Errors
    /// Those of [`Object::update_with`].
    pub fn update_with<B: Into<Bytes>, T>(
        &self,
        range: impl Into<ByteRange>,
        options: &UpdateOptions,
        change: impl FnMut(&[u8]) -> Change<B, T>,
    ) -> Result<Settled<T>, StoreError> {
        block_on(self.object.update_with(range, options, change))
    }

    /// Updates a key within limits. See [`Object::update_key_with`].
    ///
    /// # Errors
    /// Those of [`Object::update_key_with`].
    pub fn update_key_with<B: Into<Bytes>, T>(
        &self,
        key: impl AsRef<[u8]>,
        options: &UpdateOptions,
        change: impl FnMut(Option<&[u8]>) -> Change<B, T>,
    ) -> Result<Settled<T>, StoreError> {
        block_on(self.object.update_key_with(key, options, change))
    }

    /// Lists the keys of a range with their versions. See [`Object::versioned_keys`].
    ///
    /// # Errors
    /// Those of [`Object::versioned_keys`].
    pub fn versioned_keys(&self, range: KeyRange) -> BlockingVersionedKeys {
        BlockingVersionedKeys(self.object.versioned_keys(range))
    }

    /// Lists the keys of a range. See [`Object::keys`].
    ///
    /// # Errors
    /// Those of [`Object::keys`].
    pub fn keys(&self, range: KeyRange) -> BlockingKeys {
        BlockingKeys(self.object.keys(range))
    }

    /// Lists the keys of a range without their values. See [`Object::key_names`].
    ///
    /// # Errors
    /// Those of [`KeyNames::next`].
    pub fn key_names(&self, range: KeyRange) -> BlockingKeyNames {
        BlockingKeyNames(self.object.key_names(range))
    }

    /// Replaces the fork's content. See [`Object::put`].
    ///
    /// # Errors
    /// Those of [`Object::put`].
    pub fn put(&self, source: impl io::Read) -> Result<u64, StoreError> {
        self.put_sized(source, None)
    }

    /// Replaces the fork's content with a source of known length. See [`Object::put_sized`].
    ///
    /// # Errors
    /// Those of [`Object::put_sized`].
    pub fn put_sized(&self, mut source: impl io::Read, bytes: Option<u64>) -> Result<u64, StoreError> {
        let mut upload = block_on(Upload::new(&self.object, bytes))?;
        let mut stored = || loop {
            let mut piece = BytesMut::zeroed(PIECE_BYTES);
            let mut filled = 0;
            while filled < PIECE_BYTES {
                match source.read(&mut piece[filled..]) {
                    Ok(0) => break,
                    Ok(count) => filled += count,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(self.object.context(source_error(error), "store all of")),
                }
            }
            piece.truncate(filled);
            block_on(upload.push(piece.freeze()))?;
            if filled < PIECE_BYTES {
                return block_on(upload.finish());
            }
        };
        let stored = stored();
        block_on(upload.end(stored))
    }

    /// Writes the bytes of a range to `target`. See [`Object::get`].
    ///
    /// # Errors
    /// Those of [`Object::get`].
    pub fn get(&self, range: impl Into<ByteRange>, mut target: impl io::Write) -> Result<u64, StoreError> {
        let mut download = Download::new(&self.object, range.into());
        let mut bytes = 0;
        let failed = |error| self.object.context(target_error(error), "fetch all of");
        while let Some(piece) = block_on(download.next())? {
            target.write_all(&piece).map_err(failed)?;
            bytes += piece.len() as u64;
        }
        target.flush().map_err(failed)?;
        Ok(bytes)
    }
}
