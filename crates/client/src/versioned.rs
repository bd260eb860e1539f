//! Keys with their versions: conditional changes of single keys.

use std::collections::VecDeque;

use bytes::Bytes;
use nacre_object::limit::PAGE_ENTRIES_MAX;
use nacre_object::{
    Answer, Found, Guard, Intent, Key, KeyRange, Outcome, ReadOp, Refusal, StoreError, Transaction,
    Versioned, WriteOp,
};

#[cfg(doc)]
use crate::ErrorKind;
use crate::Object;
use crate::object::name;

/// The result of a conditional change of a key.
///
/// ```
/// use nacre::KeyWritten;
///
/// let object = nacre::open("mem:")?.blocking().object("settings")?;
/// // Only if there is none yet.
/// let KeyWritten::Done { version } = object.set_key_if("colour", "green", 0)? else { panic!("it was set") };
/// assert_eq!(object.set_key_if("colour", "red", 0)?, KeyWritten::Refused { version });
/// # Ok::<(), nacre::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyWritten {
    /// The key is set or removed.
    Done {
        /// The object's new version, which is the key's if it was set.
        version: u64,
    },
    /// The key had another version: nothing was changed.
    Refused {
        /// The key's version; 0 if there is no such key.
        version: u64,
    },
}

impl Object {
    /// Returns the value of a key with its version, or `None` if there is no such key.
    ///
    /// # Errors
    /// Those of a [read](crate#errors).
    pub async fn versioned_key(&self, key: impl AsRef<[u8]>) -> Result<Option<Versioned>, StoreError> {
        self.versioned_key_with(key, Intent::Look).await
    }

    /// Returns the value of a key with its version, as [`Object::versioned_key`] does, with a hint at its intended use.
    ///
    /// # Errors
    /// Those of a [read](crate#errors).
    pub async fn versioned_key_with(
        &self,
        key: impl AsRef<[u8]>,
        intent: Intent,
    ) -> Result<Option<Versioned>, StoreError> {
        match self.ask(ReadOp::VersionedKey { key: name(key)?, intent }, "read a key of").await? {
            Answer::VersionedValue(found) => Ok(found),
            _ => Err(self.nonsense("read a key of")),
        }
    }

    /// Lists the keys of a range with their values and versions, in ascending order, page by page.
    pub fn versioned_keys(&self, range: KeyRange) -> VersionedKeys {
        VersionedKeys { object: self.clone(), range, page: VecDeque::new(), over: false }
    }

    /// Sets a key on the condition that it is still of a version that was read; 0 if there was no such key.
    ///
    /// # Errors
    /// Those of a [write](crate#errors). [`ErrorKind::Unknown`]: the key may or may not be set. It cannot be set
    /// twice on the same condition, so trying again does no harm; a conflict with a greater version may then be the
    /// own first attempt.
    pub async fn set_key_if(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
        version: u64,
    ) -> Result<KeyWritten, StoreError> {
        let key = name(key)?;
        let write = WriteOp::SetKey { key: key.clone(), value: value.into() };
        self.change_key(key, write, version, "set a key of").await
    }

    /// Removes a key on the condition that it is still of a version that was read.
    ///
    /// # Errors
    /// Those of a [write](crate#errors). [`ErrorKind::Unknown`]: the key may or may not be gone. Trying again does no
    /// harm.
    pub async fn remove_key_if(&self, key: impl AsRef<[u8]>, version: u64) -> Result<KeyWritten, StoreError> {
        let key = name(key)?;
        self.change_key(key.clone(), WriteOp::RemoveKey { key }, version, "remove a key of").await
    }

    async fn change_key(
        &self,
        key: Key,
        write: WriteOp,
        version: u64,
        attempted: &str,
    ) -> Result<KeyWritten, StoreError> {
        let transaction = Transaction::new().guard(Guard::KeyVersion { key, version }).change(write);
        match self.apply(transaction, attempted).await? {
            Outcome::Done(done) => Ok(KeyWritten::Done { version: done.version }),
            Outcome::Refused(Refusal { found: Found::KeyVersion(version), .. }) => {
                Ok(KeyWritten::Refused { version })
            }
            Outcome::Refused(_) => Err(self.nonsense(attempted)),
        }
    }
}

/// The keys of an object with their values and versions, in ascending order.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), nacre::Error> {
/// let object = nacre::open("mem:")?.object("ages")?;
/// let version = object.set_key("ada", "36").await?;
/// let mut keys: nacre::VersionedKeys = object.versioned_keys(nacre::KeyRange::all());
/// let (_, found) = keys.next().await?.unwrap();
/// assert_eq!((&found.value[..], found.version), (&b"36"[..], version));
/// # Ok(())
/// # }
/// ```
#[derive(derive_more::Debug)]
#[debug("VersionedKeys")]
pub struct VersionedKeys {
    object: Object,
    range: KeyRange,
    page: VecDeque<(Key, Versioned)>,
    over: bool,
}

impl VersionedKeys {
    /// Returns the next key with its value and version, or `None` after the last. Each page shows the object as it stood
    /// at one moment.
    ///
    /// # Errors
    /// Those of a [read](crate#errors). The next call asks for the same page again.
    pub async fn next(&mut self) -> Result<Option<(Key, Versioned)>, StoreError> {
        if self.page.is_empty() && !self.over {
            let range = self.range.clone();
            let read = ReadOp::VersionedKeys { range, limit: PAGE_ENTRIES_MAX as u32, values: true };
            match self.object.ask(read, "list the keys of").await? {
                Answer::VersionedKeys(page) => {
                    self.over = !page.more || page.entries.is_empty();
                    self.page = page.entries.into();
                }
                _ => return Err(self.object.nonsense("list the keys of")),
            }
            if let Some((last, _)) = self.page.back() {
                self.range.after = Some(last.to_bytes());
            }
        }
        Ok(self.page.pop_front())
    }
}
