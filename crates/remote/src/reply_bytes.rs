//! The memory that the reply to a transaction may take, estimated before the reply is made.

use nacre_object::limit::{
    ATTRIBUTE_BYTES_MAX, ATTRIBUTES_MAX, EXTENTS_PER_READ_MAX, FENCED_SESSIONS_MAX, FORK_NAME_BYTES_MAX,
    KEY_BYTES_MAX, PAGE_ENTRIES_MAX, REFUSAL_BYTES_MAX, REPLY_BYTES_MAX, VALUE_BYTES_MAX,
};
use nacre_object::{ByteRange, Extent, Guard, ReadOp, Transaction};

/// The bytes that an answer takes besides its contents.
const ANSWER_BYTES: usize = 128;

/// Returns the most memory that the reply to a transaction takes, in bytes. Values of unknown length count as at most
/// half of the server's account, so that they are never refused for a size that they only might have.
pub(crate) fn reply_bytes(transaction: &Transaction, account_bytes: usize) -> usize {
    let (mut data, mut unknown, mut rest) = (0usize, 0usize, 0usize);
    for read in &transaction.reads {
        rest += ANSWER_BYTES;
        match read {
            ReadOp::Range { range, .. } => {
                data += range.len.min(REPLY_BYTES_MAX as u64) as usize;
                rest += extents(range);
            }
            ReadOp::Extents { range, .. } => rest += extents(range),
            ReadOp::Stat => {}
            ReadOp::Forks { limit, .. } => {
                rest += (*limit as usize).min(PAGE_ENTRIES_MAX) * (FORK_NAME_BYTES_MAX + 64);
            }
            ReadOp::Fences => rest += FENCED_SESSIONS_MAX * size_of::<u64>(),
            ReadOp::Key { .. } | ReadOp::VersionedKey { .. } => unknown += VALUE_BYTES_MAX,
            ReadOp::Keys { limit, values, .. } | ReadOp::VersionedKeys { limit, values, .. } => {
                let value = if *values { VALUE_BYTES_MAX } else { 0 };
                unknown += (*limit as usize).min(PAGE_ENTRIES_MAX) * (KEY_BYTES_MAX + value);
            }
            ReadOp::Attribute { .. } => unknown += ATTRIBUTE_BYTES_MAX,
            ReadOp::Attributes => unknown += ATTRIBUTES_MAX * ATTRIBUTE_BYTES_MAX,
        }
    }
    // At most one guard is refused, and its find is in the reply.
    let found = transaction.guards.iter().map(|guard| match guard {
        Guard::Region { range, .. } | Guard::Proposal { range, .. } => {
            range.len.min(REFUSAL_BYTES_MAX as u64) as usize + extents(range)
        }
        Guard::Key { .. } => VALUE_BYTES_MAX.min(account_bytes / 2),
        Guard::Attribute { .. } => ATTRIBUTE_BYTES_MAX.min(account_bytes / 2),
        _ => 0,
    });
    let found = found.max().unwrap_or(0);
    let data = data.min(REPLY_BYTES_MAX) + unknown.min(REPLY_BYTES_MAX).min(account_bytes / 2);
    (data.min(REPLY_BYTES_MAX) + rest).max(found) + ANSWER_BYTES
}

/// Returns the most memory that the extents of a range take: each of its bytes may be one of its own.
fn extents(range: &ByteRange) -> usize {
    range.len.min(EXTENTS_PER_READ_MAX as u64) as usize * size_of::<Extent>()
}
