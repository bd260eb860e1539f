//! Every limit of the model, in one place.
//!
//! [`Transaction::validate`](crate::Transaction::validate) enforces them; every engine and every server calls it
//! before anything else.

/// The maximum length of an object id, in bytes. The shortest is one byte.
pub const OBJECT_ID_BYTES_MAX: usize = 255;
/// The maximum length of a fork name, in bytes. The empty name is the default fork.
pub const FORK_NAME_BYTES_MAX: usize = 255;
/// The maximum length of a key or attribute name, in bytes. The shortest is one byte.
pub const KEY_BYTES_MAX: usize = 1024;
/// The maximum length of a key's value, in bytes.
pub const VALUE_BYTES_MAX: usize = 1 << 20;
/// The maximum length of an attribute's value, in bytes.
pub const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;
/// The maximum number of attributes of one object.
pub const ATTRIBUTES_MAX: usize = 256;
/// The maximum payload of one transaction, in bytes: extents, values, and the operands of its guards.
pub const TRANSACTION_BYTES_MAX: usize = 16 << 20;
/// The maximum number of guards, reads and writes of one transaction together.
pub const OPERATIONS_MAX: usize = 4096;
/// The maximum number of extents that one transaction writes, over all its vectored writes.
pub const EXTENTS_PER_TRANSACTION_MAX: usize = 65_536;
/// The maximum bytes of data, keys and values that one outcome carries; reads past it are cut, with a continuation.
pub const REPLY_BYTES_MAX: usize = 16 << 20;
/// The maximum bytes of the region that a refusal carries.
pub const REFUSAL_BYTES_MAX: usize = 1 << 20;
/// The maximum number of extents that the answer to one read lists; a read of more is cut, with a continuation.
pub const EXTENTS_PER_READ_MAX: usize = 4096;
/// The maximum number of entries in one page of keys, forks or objects.
pub const PAGE_ENTRIES_MAX: usize = 1024;
/// The maximum number of fenced sessions that an object keeps beside its fence.
pub const FENCED_SESSIONS_MAX: usize = 1024;
/// The offset one past the last byte that a fork can hold: offsets and sizes are at most 2^63 - 1.
pub const OFFSET_MAX: u64 = i64::MAX as u64;
/// The greatest version that a write may propose. It leaves half of the sequence to the object itself, so that no
/// proposal can exhaust it.
pub const PROPOSAL_MAX: u64 = 1 << 62;
/// The greatest version up to which a store forgets removed objects: one that was removed above it is remembered for ever. So
/// no proposal raises the versions of other clients' objects out of the reach of theirs.
pub const FLOOR_MAX: u64 = 1 << 48;
/// The maximum payload of a notification, in bytes.
pub const NOTIFICATION_BYTES_MAX: usize = 60 << 10;
/// The maximum reply of a watcher that acknowledges a notification, in bytes.
pub const ACKNOWLEDGEMENT_BYTES_MAX: usize = 1024;
/// The maximum of such replies that the outcome of one notification carries together, in bytes; the rest is left out.
pub const ACKNOWLEDGEMENTS_BYTES_MAX: usize = 64 << 10;
/// The maximum number of watchers of one object, at one server.
pub const WATCHERS_MAX: usize = 65_536;
/// The longest time for which a notification may wait for its acknowledgements.
pub const NOTIFY_TIMEOUT_MAX: std::time::Duration = std::time::Duration::from_secs(60);
