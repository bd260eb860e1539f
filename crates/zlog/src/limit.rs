//! The limits of logs.

use std::time::Duration;

/// The maximum length of an entry, in bytes. The shortest has one byte.
pub const ENTRY_BYTES_MAX: usize = 1 << 20;
/// The maximum number of tags of an entry.
pub const TAGS_MAX: usize = 16;
/// The maximum length of a tag, in bytes. The shortest has one byte.
pub const TAG_BYTES_MAX: usize = 255;
/// The maximum length of a log's name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// The maximum number of objects that the entries of a view are spread over.
pub const WIDTH_MAX: u32 = 4096;
/// The maximum number of consecutive positions that are in one object.
pub const UNIT_MAX: u32 = 4096;
/// The maximum number of views of a log. Views whose entries are all trimmed do not count.
pub const VIEWS_MAX: usize = 256;
/// The maximum number of entries that one handle writes at a time.
pub const BATCH_ENTRIES_MAX: usize = 4096;
/// The maximum number of bytes that one handle writes at a time, unless a single entry has more.
pub const BATCH_BYTES_MAX: usize = 4 << 20;
/// The maximum number of bytes of entries that wait in one handle, or are on their way from it: whoever appends more waits.
pub const WAITING_BYTES_MAX: usize = 32 << 20;
/// The length of a small entry: smaller ones are kept in one extent, so that each takes no memory of the store's own.
pub const SMALL_BYTES_MAX: usize = 2 << 10;
/// The maximum length of an extent of several small entries, in bytes.
pub const PACKET_BYTES_MAX: usize = 64 << 10;
/// The number of positions that one object of a view can hold: each has [`SLOT_BYTES`] of the offset space.
pub const POSITIONS_PER_OBJECT_MAX: u64 = nacre_object::limit::OFFSET_MAX / SLOT_BYTES;
/// The distance of two positions' places in the byte stream of entries. Most of it is never written, and takes no space.
pub const SLOT_BYTES: u64 = 2 << 20;
/// The greatest number of bytes that a place takes in an object: of the longest entry with its tags, the packet's head and the index, and
/// what a store leaves free beside them.
pub(crate) const PLACE_BYTES_MAX: u64 = (1 << 20) + (16 << 10);

/// The time for which a reader waits for an entry whose position was given out, before it fills the position, unless it is
/// told another one.
pub const FILL_AFTER: Duration = Duration::from_secs(1);
/// The time for which a client waits for somebody else's recovery of a log, before it recovers the log itself.
pub const RECOVER_AFTER: Duration = Duration::from_secs(1);
/// The time for which a client tries again where a store does not answer, unless it is told another one.
pub const PATIENCE: Duration = Duration::from_secs(30);
