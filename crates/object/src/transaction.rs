//! Transactions: a client's requests about one object.

use bytes::Bytes;

use crate::limit::*;
use crate::{ByteRange, ErrorKind, Fork, Key, StoreError};

/// Guards, reads and writes on one object, applied wholly or not at all.
///
/// Guards and reads see the object as it stood before the transaction. Writes take effect in order, and only if
/// every guard holds.
///
/// ```
/// use nacre_object::{ByteRange, Fork, Transaction};
///
/// // Replace the first four bytes, unless they changed since they were read at version 7.
/// let transaction = Transaction::new()
///     .if_version(Fork::DEFAULT, ByteRange::new(0, 4), 7)
///     .write(Fork::DEFAULT, 0, "next");
/// # assert!(transaction.validate().is_ok());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// The guards. All must hold; the first that does not is reported.
    pub guards: Vec<Guard>,
    /// The reads, answered in order from the state before the writes.
    pub reads: Vec<ReadOp>,
    /// The writes, applied in order.
    pub writes: Vec<WriteOp>,
}

/// A condition on the object as it stood before the transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The object exists.
    Exists,
    /// The object does not exist.
    Absent,
    /// Nothing in the range is newer than `version`: the conditional write.
    Region {
        /// The fork.
        fork: Fork,
        /// The range.
        range: ByteRange,
        /// The region version that the caller read.
        version: u64,
    },
    /// `version` is greater than the region version of the range: the paper's protocol, in which the client
    /// proposes the version that it read plus one. The transaction is then stamped with the greater of the
    /// proposals and the object's next version.
    Proposal {
        /// The fork.
        fork: Fork,
        /// The range.
        range: ByteRange,
        /// The proposed version, at most [`PROPOSAL_MAX`].
        version: u64,
    },
    /// The key's value passes the check.
    Key {
        /// The key.
        key: Key,
        /// The check of its value.
        check: Check,
    },
    /// The attribute's value passes the check.
    Attribute {
        /// The attribute.
        name: Key,
        /// The check of its value.
        check: Check,
    },
    /// The object's version is `version`: nothing of it has changed since it had that version. An object that never
    /// existed has version 0, and one that was removed keeps its version.
    Version {
        /// The version.
        version: u64,
    },
    /// The key was last set by the transaction of this version, and is still there; 0: there is no such key. Versions are
    /// never given twice, so a key that was removed and set again has another one, whatever its value.
    KeyVersion {
        /// The key.
        key: Key,
        /// The version that the caller read, or 0.
        version: u64,
    },
    /// The fork is `size` bytes long; one that does not exist is 0 bytes long.
    Size {
        /// The fork.
        fork: Fork,
        /// The size in bytes.
        size: u64,
    },
    /// The session of number `token` is not fenced: `token` is not below the object's fence
    /// ([`WriteOp::RaiseFence`]), and is not one of its fenced sessions ([`WriteOp::FenceSession`]).
    ///
    /// Sessions are numbered in ascending order by whoever grants them. A refusal shows the fence
    /// ([`Found::Fence`](crate::Found::Fence)); if the token is not below it, its own session is fenced.
    Fence {
        /// The number of the caller's session.
        token: u64,
    },
}

/// A check of a value. Comparisons are bytewise and fail where there is no value, except `NotEqual`, which holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// The presence of any value.
    Present,
    /// The absence of a value.
    Absent,
    /// The value equals this one.
    Equal(Bytes),
    /// The value, if any, differs from this one.
    NotEqual(Bytes),
    /// The value is less than this one.
    Less(Bytes),
    /// The value is less than this one, or equals it.
    LessOrEqual(Bytes),
    /// The value is greater than this one.
    Greater(Bytes),
    /// The value is greater than this one, or equals it.
    GreaterOrEqual(Bytes),
}

impl Check {
    /// Returns whether a value passes.
    pub fn holds(&self, value: Option<&[u8]>) -> bool {
        match (self, value) {
            (Check::Present, value) => value.is_some(),
            (Check::Absent, value) => value.is_none(),
            (Check::NotEqual(_), None) => true,
            (_, None) => false,
            (Check::Equal(operand), Some(value)) => value == operand,
            (Check::NotEqual(operand), Some(value)) => value != operand,
            (Check::Less(operand), Some(value)) => value < operand.as_ref(),
            (Check::LessOrEqual(operand), Some(value)) => value <= operand.as_ref(),
            (Check::Greater(operand), Some(value)) => value > operand.as_ref(),
            (Check::GreaterOrEqual(operand), Some(value)) => value >= operand.as_ref(),
        }
    }

    /// Returns the value compared with; empty if there is none.
    pub fn operand(&self) -> &[u8] {
        match self {
            Check::Present | Check::Absent => &[],
            Check::Equal(operand)
            | Check::NotEqual(operand)
            | Check::Less(operand)
            | Check::LessOrEqual(operand)
            | Check::Greater(operand)
            | Check::GreaterOrEqual(operand) => operand,
        }
    }
}

/// Returns the error for an append of `len` bytes to a fork of `size` bytes, if the end would be past [`OFFSET_MAX`].
pub fn appended_too_far(size: u64, len: usize) -> StoreError {
    let text =
        format!("appending {len} bytes to a fork of {size} ends past the greatest offset, {OFFSET_MAX}");
    StoreError::new(ErrorKind::Invalid, text)
}

/// The use that the caller intends for what it reads: a hint to the master, never a promise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Intent {
    /// Looking at it.
    #[default]
    Look,
    /// Writing the same region or key soon, on condition that it did not change. Where many do so to one region or key, the
    /// master may let them read one after another, so that most of their writes succeed.
    Update,
}

/// A question about the object as it stood before the transaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ReadOp {
    /// Bytes of a range, with its extents and its region version.
    Range {
        /// The fork.
        fork: Fork,
        /// The range.
        range: ByteRange,
        /// The caller's intent.
        intent: Intent,
    },
    /// The extents and the region version of a range, without the bytes.
    Extents {
        /// The fork.
        fork: Fork,
        /// The range.
        range: ByteRange,
    },
    /// The object at a glance.
    Stat,
    /// Forks, in ascending order of their names.
    Forks {
        /// The fork after which the page begins; `None` for the first page.
        after: Option<Fork>,
        /// The maximum number of forks; greater values count as [`PAGE_ENTRIES_MAX`].
        limit: u32,
    },
    /// The value of one key.
    Key {
        /// The key.
        key: Key,
    },
    /// Keys, in ascending order.
    Keys {
        /// The range of keys.
        range: KeyRange,
        /// The maximum number of keys; greater values count as [`PAGE_ENTRIES_MAX`].
        limit: u32,
        /// True if the values are to be given too.
        values: bool,
    },
    /// The value of one attribute.
    Attribute {
        /// Its name.
        name: Key,
    },
    /// All attributes with their values.
    Attributes,
    /// The value of one key, with the version of the transaction that set it.
    VersionedKey {
        /// The key.
        key: Key,
        /// The caller's intent.
        intent: Intent,
    },
    /// Keys as in [`ReadOp::Keys`], with the versions of the transactions that set them.
    VersionedKeys {
        /// The range of keys.
        range: KeyRange,
        /// The maximum number of keys; greater values count as [`PAGE_ENTRIES_MAX`].
        limit: u32,
        /// True if the values are to be given too.
        values: bool,
    },
    /// The object's fence and its fenced sessions.
    Fences,
}

impl ReadOp {
    /// Returns the read of a key with its version, without the intent to change it.
    pub fn versioned_key(key: Key) -> Self {
        Self::VersionedKey { key, intent: Intent::Look }
    }
}

/// A range of keys: those that meet all three conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct KeyRange {
    /// The bound that keys must be greater than.
    pub after: Option<Bytes>,
    /// The bound that keys must be less than.
    pub before: Option<Bytes>,
    /// The bytes that keys must begin with.
    pub prefix: Bytes,
}

impl KeyRange {
    /// Returns the range of all keys.
    pub fn all() -> Self {
        Self::default()
    }

    /// Returns the range of the keys that begin with `prefix`.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        Self { prefix: prefix.into(), ..Self::default() }
    }

    /// Returns whether a key is in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        key.starts_with(&self.prefix)
            && self.after.as_ref().is_none_or(|after| key > after.as_ref())
            && self.before.as_ref().is_none_or(|before| key < before.as_ref())
    }
}

/// A change of the object. Every one but `Remove` makes the object exist if it does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteOp {
    /// Does nothing more than that. Guard with `Absent` to be its only creator.
    Create,
    /// Writes extents of one fork, in order; the fork grows to hold them.
    Extents {
        /// The fork.
        fork: Fork,
        /// The offsets in bytes, and the bytes.
        extents: Vec<(u64, Bytes)>,
    },
    /// Writes bytes at the end of a fork: from the size on that it has after the writes before this one. Creates the fork if
    /// there is none. A read of the fork's extents in the same transaction shows the size before all writes, and with that the
    /// offset of the first append. [`Invalid`](crate::ErrorKind::Invalid) if the end would be past [`OFFSET_MAX`].
    Append {
        /// The fork.
        fork: Fork,
        /// The bytes.
        data: Bytes,
    },
    /// Makes a range read as zeros. Neither makes a fork nor changes its size.
    Zero {
        /// The fork.
        fork: Fork,
        /// The range.
        range: ByteRange,
    },
    /// Sets the size of a fork, and creates it if there is none.
    Truncate {
        /// The fork.
        fork: Fork,
        /// The new size in bytes.
        size: u64,
    },
    /// Removes a fork; does nothing to one that never existed.
    RemoveFork {
        /// The fork.
        fork: Fork,
    },
    /// Replaces the content of one fork with another's, in a time that does not depend on the amount: what `fork` held
    /// is gone, and `from` is removed. Every byte of `fork`, data and holes to the end of the offset space, then
    /// carries this transaction's version; `from` is left as by `RemoveFork`. Where there is no fork `from`, neither
    /// changes: guard its region version to be sure of what is taken.
    ReplaceFork {
        /// The fork whose content is replaced; created if there is none.
        fork: Fork,
        /// The fork whose content is taken; any other one.
        from: Fork,
    },
    /// Sets a key.
    SetKey {
        /// The key.
        key: Key,
        /// Its value.
        value: Bytes,
    },
    /// Removes a key, if it is there.
    RemoveKey {
        /// The key.
        key: Key,
    },
    /// Sets an attribute.
    SetAttribute {
        /// Its name.
        name: Key,
        /// Its value.
        value: Bytes,
    },
    /// Removes an attribute, if it is there.
    RemoveAttribute {
        /// Its name.
        name: Key,
    },
    /// Raises the object's fence to `token`, unless it is as high already: sessions of lower numbers are fenced.
    RaiseFence {
        /// The least number of a session that passes from now on.
        token: u64,
    },
    /// Fences one session, and no other one.
    ///
    /// An object keeps at most [`FENCED_SESSIONS_MAX`] fenced sessions beside its fence. One more raises the fence above
    /// the lowest of them, which is the session that began first. No fenced session is ever let in by that, but one that
    /// began before the lowest of them and is not fenced itself is shut out with it, and has to be granted a new number.
    FenceSession {
        /// The number of the session.
        session: u64,
    },
    /// Removes the object: forks, keys and attributes. Its version, its fence and its fenced sessions stay.
    Remove,
}

impl Transaction {
    /// Creates an empty transaction.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a guard.
    pub fn guard(mut self, guard: Guard) -> Self {
        self.guards.push(guard);
        self
    }

    /// Adds a read.
    pub fn read(mut self, read: ReadOp) -> Self {
        self.reads.push(read);
        self
    }

    /// Adds a change.
    pub fn change(mut self, write: WriteOp) -> Self {
        self.writes.push(write);
        self
    }

    /// Guards a region: nothing in it may be newer than `version`.
    pub fn if_version(self, fork: Fork, range: ByteRange, version: u64) -> Self {
        self.guard(Guard::Region { fork, range, version })
    }

    /// Guards a fork's size: it is `size` bytes long.
    pub fn if_size(self, fork: Fork, size: u64) -> Self {
        self.guard(Guard::Size { fork, size })
    }

    /// Reads a range, with its extents and its region version.
    pub fn read_range(self, fork: Fork, range: ByteRange) -> Self {
        self.read(ReadOp::Range { fork, range, intent: Intent::Look })
    }

    /// Writes bytes at an offset.
    pub fn write(self, fork: Fork, offset: u64, data: impl Into<Bytes>) -> Self {
        self.change(WriteOp::Extents { fork, extents: vec![(offset, data.into())] })
    }

    /// Writes bytes at the end of a fork. See [`WriteOp::Append`].
    pub fn append(self, fork: Fork, data: impl Into<Bytes>) -> Self {
        self.change(WriteOp::Append { fork, data: data.into() })
    }

    /// Checks every limit of the model (module [`limit`](crate::limit)); [`ErrorKind::Invalid`] if one is exceeded.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if a limit of [`limit`](crate::limit) is exceeded, with the
    /// limit in the text.
    pub fn validate(&self) -> Result<(), StoreError> {
        let operations = self.guards.len() + self.reads.len() + self.writes.len();
        at_most("operations in one transaction", operations, OPERATIONS_MAX)?;
        let mut payload_bytes = 0;
        let mut extents = 0;
        for guard in &self.guards {
            payload_bytes += guard.validate()?;
        }
        for read in &self.reads {
            if let ReadOp::Range { range, .. } | ReadOp::Extents { range, .. } = read {
                range.validate()?;
            }
        }
        for write in &self.writes {
            payload_bytes += write.validate()?;
            match write {
                WriteOp::Extents { extents: list, .. } => extents += list.len(),
                WriteOp::Append { .. } => extents += 1,
                _ => {}
            }
        }
        at_most("extents in one transaction", extents, EXTENTS_PER_TRANSACTION_MAX)?;
        at_most("payload bytes in one transaction", payload_bytes, TRANSACTION_BYTES_MAX)
    }
}

impl Guard {
    /// Checks the guard, and returns its payload in bytes.
    fn validate(&self) -> Result<usize, StoreError> {
        match self {
            Guard::Exists
            | Guard::Absent
            | Guard::Version { .. }
            | Guard::KeyVersion { .. }
            | Guard::Size { .. }
            | Guard::Fence { .. } => Ok(0),
            Guard::Region { range, .. } => range.validate().map(|()| 0),
            Guard::Proposal { range, version, .. } => {
                range.validate()?;
                if *version > PROPOSAL_MAX {
                    let text = format!("proposed version {version} is above the limit of {PROPOSAL_MAX}");
                    return Err(StoreError::new(ErrorKind::Invalid, text));
                }
                Ok(0)
            }
            Guard::Key { check, .. } | Guard::Attribute { check, .. } => Ok(check.operand().len()),
        }
    }
}

impl WriteOp {
    /// Checks the change, and returns its payload in bytes.
    fn validate(&self) -> Result<usize, StoreError> {
        match self {
            WriteOp::Create
            | WriteOp::RemoveFork { .. }
            | WriteOp::RemoveKey { .. }
            | WriteOp::RemoveAttribute { .. }
            | WriteOp::RaiseFence { .. }
            | WriteOp::FenceSession { .. }
            | WriteOp::Remove => Ok(0),
            WriteOp::Extents { extents, .. } => {
                let mut bytes = 0;
                for (offset, data) in extents {
                    ByteRange::new(*offset, data.len() as u64).validate()?;
                    bytes += data.len();
                }
                Ok(bytes)
            }
            WriteOp::Append { data, .. } => Ok(data.len()),
            WriteOp::ReplaceFork { fork, from } if fork == from => {
                let text = format!("fork \"{fork}\" cannot be replaced by itself");
                Err(StoreError::new(ErrorKind::Invalid, text))
            }
            WriteOp::ReplaceFork { .. } => Ok(0),
            WriteOp::Zero { range, .. } => range.validate().map(|()| 0),
            WriteOp::Truncate { size, .. } => ByteRange::new(0, *size).validate().map(|()| 0),
            WriteOp::SetKey { value, .. } => {
                at_most("bytes in the value of a key", value.len(), VALUE_BYTES_MAX)?;
                Ok(value.len())
            }
            WriteOp::SetAttribute { value, .. } => {
                at_most("bytes in an attribute", value.len(), ATTRIBUTE_BYTES_MAX)?;
                Ok(value.len())
            }
        }
    }
}

fn at_most(subject: &str, found: usize, limit: usize) -> Result<(), StoreError> {
    if found <= limit {
        return Ok(());
    }
    Err(StoreError::new(ErrorKind::Invalid, format!("{found} {subject}; the limit is {limit}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_enforced_with_a_sentence() {
        let too_long = Transaction::new().write(Fork::DEFAULT, 0, vec![0; TRANSACTION_BYTES_MAX + 1]);
        assert_eq!(
            too_long.validate().unwrap_err().message,
            "16777217 payload bytes in one transaction; the limit is 16777216"
        );
        let past_the_end = Transaction::new().write(Fork::DEFAULT, OFFSET_MAX, "x");
        assert_eq!(past_the_end.validate().unwrap_err().kind, ErrorKind::Invalid);
        let at_the_end = Transaction::new().write(Fork::DEFAULT, OFFSET_MAX - 1, "x");
        assert!(at_the_end.validate().is_ok());
        let overflow = Transaction::new().read_range(Fork::DEFAULT, ByteRange::new(u64::MAX, 2));
        assert!(overflow.validate().is_err());
        let mut many = Transaction::new();
        many.writes = vec![WriteOp::Create; OPERATIONS_MAX + 1];
        assert!(many.validate().is_err());
    }

    #[test]
    fn checks_compare_bytewise() {
        let operand = Bytes::from_static(b"m");
        assert!(Check::Less(operand.clone()).holds(Some(b"a")));
        assert!(!Check::Less(operand.clone()).holds(None));
        assert!(Check::NotEqual(operand.clone()).holds(None));
        assert!(Check::GreaterOrEqual(operand.clone()).holds(Some(b"m")));
        assert!(!Check::Greater(operand.clone()).holds(Some(b"m")));
        assert!(Check::LessOrEqual(operand.clone()).holds(Some(b"m")));
        assert!(Check::Equal(operand).holds(Some(b"m")));
        assert!(Check::Absent.holds(None) && !Check::Absent.holds(Some(b"")));
        assert!(Check::Present.holds(Some(b"")));
    }
}
