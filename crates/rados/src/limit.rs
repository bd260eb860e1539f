//! The number of bytes that OSDs let one object have: their setting `osd_max_object_size`.
//!
//! A client does not see the settings of OSDs, only its own of the same name, which is the same where the cluster's
//! configuration is shared. So OSDs are asked: an operation that would make one byte zero and then fails in any case,
//! because an attribute is compared to what it never is, fails with EFBIG before that if the byte lies too far out. It
//! changes nothing, and names an object that is not there.

use std::ffi::CStr;

use crate::error::errno;
use crate::sys::{Pool, WriteStep, flag};

const SETTING: &CStr = c"osd_max_object_size";
/// The name of an object that no object of Nacre has, because it has another prefix.
const PROBE: &CStr = c"nacre-probe";
/// The maximum number of bytes that the class writes into one object, whatever is set: Lua in an OSD takes offsets of 31 bits.
pub(crate) const HARD_MAX: u64 = (1 << 31) - 1;

/// Returns the maximum number of bytes that one object of a pool may have; `None` if no OSD tells now.
pub(crate) async fn object_bytes_max(pool: &Pool) -> Option<u64> {
    let Some(set) = pool.setting(SETTING) else { return Some(HARD_MAX) };
    if fits(pool, set.saturating_sub(1)).await? && !fits(pool, set).await? {
        return Some(set.min(HARD_MAX));
    }
    // The OSDs have another setting than this client: bytes below `low` fit, the one at `high` does not.
    let (mut low, mut high) = (0, HARD_MAX);
    while low < high {
        let middle = low + (high - low) / 2;
        match fits(pool, middle).await? {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    Some(low)
}

/// Returns whether an object may have a byte at an offset. Returns `None` if no OSD tells, because this user must not
/// write or none can be reached.
async fn fits(pool: &Pool, offset: u64) -> Option<bool> {
    let steps = [WriteStep::Zero { offset }, WriteStep::IfXattr(c"nacre", b"never")];
    match -pool.write(PROBE, &steps, flag::FULL_TRY).await.code {
        errno::EFBIG => Some(false),
        errno::ECANCELED | errno::ENOENT | errno::ENODATA => Some(true),
        _ => None,
    }
}
