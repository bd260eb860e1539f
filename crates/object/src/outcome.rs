//! The results of a transaction.

use bytes::Bytes;

use crate::{Extent, Fork, Key};

/// The outcome of a transaction, when the store did not fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every guard held: the reads are answered, the writes took effect.
    Done(Done),
    /// A guard did not hold: nothing was changed.
    Refused(Refusal),
}

/// A transaction whose guards all held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// The version that was stamped on the writes; the object's version if there were none.
    pub version: u64,
    /// True if the object existed before the transaction.
    pub existed: bool,
    /// One answer for each read, in order.
    pub answers: Vec<Answer>,
}

/// A transaction of which a guard did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The first guard, in order, that did not hold.
    pub guard: usize,
    /// The state that the guard found instead.
    pub found: Found,
    /// The object's version.
    pub version: u64,
}

/// The state that made a guard fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// For `Exists`, `Absent` and `Version`: whether the object exists. Its version is the refusal's.
    Object {
        /// True if it exists.
        exists: bool,
    },
    /// For `Region` and `Proposal`: the region as it stands, so that the loser of a race can try again at once.
    /// Its data is cut at [`REFUSAL_BYTES_MAX`](crate::limit::REFUSAL_BYTES_MAX).
    Region(RangeRead),
    /// For `Key` and `Attribute`: the value, or `None` if there is none.
    Value(Option<Bytes>),
    /// For `Fence`: the object's fence, the least number of a session that passes unless it is fenced by itself. The
    /// caller's own session is, if its token is not below this.
    Fence(u64),
    /// For `KeyVersion`: the version of the transaction that last set the key, or 0 if there is no such key.
    KeyVersion(u64),
    /// For `Size`: the fork's size in bytes, or 0 if there is no such fork.
    Size(u64),
}

/// The answer to one read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The answer to `Range` and `Extents`.
    Range(RangeRead),
    /// The answer to `Stat`.
    Stat(Stat),
    /// The answer to `Forks`.
    Forks(ForkPage),
    /// The answer to `Key` and `Attribute`: the value, or `None` if there is none.
    Value(Option<Bytes>),
    /// The answer to `Keys` and `Attributes`.
    Keys(KeyPage),
    /// The answer to `VersionedKey`: the value and its version, or `None` if there is none.
    VersionedValue(Option<Versioned>),
    /// The answer to `VersionedKeys`.
    VersionedKeys(VersionedKeyPage),
    /// The answer to `Fences`.
    Fences(Fences),
}

/// A range of a fork, as it stood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeRead {
    /// The bytes, from the first of the range on; holes and ranges never written are zeros. Short where the fork
    /// ends before the range does, or where the answer was cut. Empty for a read of extents alone.
    pub data: Bytes,
    /// The extents of the range, clipped to it, in ascending order; short where the answer was cut.
    pub extents: Vec<Extent>,
    /// The region version of the whole range that was asked for, also where the answer was cut.
    pub version: u64,
    /// The fork's size in bytes; 0 if there is no such fork.
    pub size: u64,
    /// The first byte that the answer does not cover, if it was cut. `None` if it covers the whole range.
    pub next: Option<u64>,
}

/// An object at a glance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// True if the object exists.
    pub exists: bool,
    /// The version of the last transaction that wrote it, removed or not; 0 if it never existed.
    pub version: u64,
    /// Its fence: the least number of a session that passes, unless it is fenced by itself.
    pub fence: u64,
    /// The number of its forks.
    pub forks: u64,
    /// The sum of its forks' sizes, in bytes.
    pub bytes: u64,
    /// The number of its keys.
    pub keys: u64,
    /// The number of its attributes.
    pub attributes: u64,
}

/// A page of an object's forks, in ascending order of their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForkPage {
    /// Names and sizes in bytes.
    pub entries: Vec<(Fork, u64)>,
    /// True if there are more, after the last of these.
    pub more: bool,
}

/// A page of an object's keys or attributes, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyPage {
    /// Keys and values; values are empty where none were asked for.
    pub entries: Vec<(Key, Bytes)>,
    /// True if there are more, after the last of these. It may be true of an empty page, if earlier reads of the same
    /// transaction filled the reply.
    pub more: bool,
}

/// The value of a key, and its version.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Versioned {
    /// The value; empty where values were not asked for.
    pub value: Bytes,
    /// The version of the transaction that last set the key; at least 1.
    pub version: u64,
}

/// A page of an object's keys with their versions, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionedKeyPage {
    /// Keys, with values and versions.
    pub entries: Vec<(Key, Versioned)>,
    /// True if there are more, as in [`KeyPage::more`].
    pub more: bool,
}

/// The sessions that an object shuts out by [`Guard::Fence`](crate::Guard::Fence).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fences {
    /// The least number of a session that passes: all lower ones are fenced.
    pub fence: u64,
    /// The sessions above it that are fenced too, in ascending order; at most
    /// [`FENCED_SESSIONS_MAX`](crate::limit::FENCED_SESSIONS_MAX).
    pub sessions: Vec<u64>,
}

impl Fences {
    /// Returns whether a session is fenced.
    pub fn is_fenced(&self, session: u64) -> bool {
        session < self.fence || self.sessions.binary_search(&session).is_ok()
    }
}
