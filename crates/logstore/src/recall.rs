//! The window of writes of a store that is opened: what the log still has of the tokens in it.
//!
//! The tokens behind the snapshot's position come with the replay. Those before it are looked for in the segments that
//! are still there, backwards from the position. What is behind the older of two snapshots is always there. A store that
//! is closed writes a snapshot, behind which all of the log may be given up, so it writes the latest tokens again.

use std::time::SystemTime;

use bytes::Bytes;
use nacre_object::window::{Window, Written};

use crate::engine::Engine;
use crate::log::{Position, Purpose};
use crate::record::{self, Body, Repeatable};
use crate::scan::{Item, Scan};
use crate::segment::{SEGMENT_HEAD_BYTES, Segment, SegmentHeader, SegmentTable};

/// The bytes of log before the snapshot's position after which no further segment is read for its tokens.
const LOOKED_THROUGH_BYTES_MAX: u64 = 64 << 20;

/// The number of tokens that are written again when a store is closed, at most; fewer where segments are small.
const WRITTEN_AGAIN_MAX: usize = 4096;
/// The part of a segment that they may take.
const WRITTEN_AGAIN_SHARE: usize = 16;

/// Returns the window of the writes before a position, behind which records from number `sequence` on are replayed.
/// `tokens` is the number of writes with tokens before it.
pub fn window(table: &SegmentTable, position: Position, sequence: u64, tokens: u64, writes: usize) -> Window {
    let mut again = None;
    let found = tokens_before(table, position, sequence, tokens.min(writes as u64) as usize, &mut again);
    let first = tokens - found.len() as u64;
    let mut window = Window::new(writes, tokens);
    window.recover(first, &found.into_iter().rev().collect::<Vec<Written>>());
    if let Some((first, writes)) = again {
        window.recover(first, &writes);
    }
    window
}

/// Returns a position behind every one that a client may have been told, for a store whose writes cannot be counted any
/// more: there were never as many writes as there have been nanoseconds. `known` is the greatest count that is known.
pub fn fresh_position(known: u64) -> u64 {
    let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |age| age.as_nanos() as u64);
    age.max(known.saturating_add(1 << 40))
}

/// Returns the latest writes with tokens before a position, the newest first; at most `most`. The latest record of
/// tokens that were written again, if there is one, goes to `again`.
fn tokens_before(
    table: &SegmentTable,
    mut position: Position,
    mut sequence: u64,
    most: usize,
    again: &mut Option<(u64, Vec<Written>)>,
) -> Vec<Written> {
    let mut found = Vec::new();
    let mut looked_through_bytes = 0;
    while found.len() < most && looked_through_bytes < LOOKED_THROUGH_BYTES_MAX {
        let Some(segment) = table.get(position.segment) else { break };
        let bytes = match read(&segment, position.offset) {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::warn!("cannot read {}: {error}; fewer repeated writes are recognised", segment.name);
                break;
            }
        };
        looked_through_bytes += bytes.len() as u64;
        let header = SegmentHeader::decode(&bytes).filter(|header| header.id == segment.id);
        let mut records = Vec::new();
        for item in Scan::new(bytes, segment.binding, SEGMENT_HEAD_BYTES as usize) {
            let Item::Record { record, .. } = item else { continue };
            let (mut token, mut tokens) = (None, None);
            match record.body {
                Body::Transaction {
                    version, repeatable: Some(Repeatable { token: its, existed }), ..
                } => {
                    token = Some(Written { token: its, version, existed });
                }
                Body::Tokens { first, writes } => tokens = Some((first, writes)),
                Body::Transaction { .. } | Body::Moves(_) | Body::Mark => {}
            }
            records.push((record.sequence, token, tokens));
        }
        for (number, token, tokens) in records.into_iter().rev() {
            // Behind a gap nothing is certain: the record that is missing may have had a token.
            if number + 1 != sequence {
                return found;
            }
            sequence = number;
            if again.is_none() {
                *again = tokens;
            }
            found.extend(token.filter(|_| found.len() < most));
        }
        match header {
            Some(SegmentHeader { predecessor, predecessor_end, .. }) if predecessor > 0 => {
                position = Position { segment: predecessor, offset: predecessor_end };
            }
            _ => break,
        }
    }
    found
}

impl Engine {
    /// Writes the latest tokens into the log again, if there is room for them. Not done with every snapshot: the cleaner
    /// takes snapshots to make room, and on a full store it would make it for these records alone.
    pub(crate) fn write_tokens_again(&self) {
        let end = self.log.tokens();
        if !self.persistent || end == 0 {
            return;
        }
        // A transaction holds its shard's lock from its place in the log until its token is in the window.
        self.shards.iter().for_each(|shard| drop(shard.lock()));
        let share_bytes = self.options.segment_bytes as usize / WRITTEN_AGAIN_SHARE;
        let most = (share_bytes / (2 * record::TOKEN_BYTES_MAX)).min(WRITTEN_AGAIN_MAX);
        let (first, writes) = self.window.lock().latest(end, most);
        let mut head = record::encode_tokens(first, &writes);
        let record_bytes = record::record_bytes(head.len(), 0) as u64;
        // Only where there is plenty: without it fewer writes are recognised, and nothing else is lost.
        if !writes.is_empty()
            && self.log.has_room(2 * record_bytes, Purpose::Write)
            && self.log.append(&mut head, &[], Purpose::Write).is_ok_and(|appended| appended.rolled)
        {
            self.maintenance.nudge();
        }
    }
}

/// Reads a segment up to an offset.
fn read(segment: &Segment, end: u64) -> std::io::Result<Bytes> {
    let mut bytes = vec![0; end.min(segment.capacity) as usize];
    segment.file.read_at(0, &mut bytes)?;
    Ok(bytes.into())
}
