//! Moving the live pieces of segments: their bytes are written to the log again, and then the index refers to the new place.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use nacre_object::StoreError;

use crate::cleaner::Live;
use crate::codec::crc32c;
use crate::engine::Engine;
use crate::extent_map::{Chunk, Entry, Place};
use crate::fetch::{Part, Pins, gather};
use crate::footprint::Footprint;
use crate::log::{Purpose, Refused};
use crate::record::{self, Moved};
use crate::segment::Segment;
use crate::space::SpaceRequest;

impl Engine {
    /// Writes live pieces to the log again, and then makes the index refer to the new place.
    pub(crate) fn relocate(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        batch: Vec<Live>,
    ) -> Result<(), StoreError> {
        let mut payload = Vec::with_capacity(batch.len());
        let mut moves = Vec::with_capacity(batch.len());
        for (Live { object, fork, start, len, version, chunk, skip: _ }, piece) in
            read_pieces(segment, batch)?
        {
            let crc = if len == chunk.len { chunk.crc } else { crc32c(&piece) };
            let source = Some((chunk.segment, chunk.offset));
            moves.push(Moved { object, fork, start, len, version, crc, source });
            payload.push(piece);
        }
        if moves.is_empty() {
            return Ok(());
        }
        let payload_bytes: usize = payload.iter().map(Bytes::len).sum();
        let mut head = record::encode_moves(&moves);
        let record_bytes = record::record_bytes(head.len(), payload_bytes) as u64;
        let appended = loop {
            match self.log.append(&mut head, &payload, Purpose::Clean) {
                Ok(appended) => break appended,
                Err(Refused::Failed(error)) => return Err(error),
                // Cleaning must not wait for cleaning: its own segment is made at once.
                Err(Refused::NeedsSegment(record_bytes)) => {
                    self.grow(&SpaceRequest { record_bytes, growth_bytes: 0, purpose: Purpose::Clean })?;
                }
            }
        };
        if appended.rolled {
            self.settle_reserve(&mut self.space.pool.lock());
        }
        self.log.wait_blocking(appended.batch)?;
        let counters = &self.maintenance.counters;
        counters.moved_bytes.fetch_add(payload_bytes as u64, Ordering::Relaxed);
        counters.move_record_bytes.fetch_add(record_bytes, Ordering::Relaxed);
        let mut offset = appended.payload_offset;
        for moved in moves {
            let chunk = Chunk { segment: appended.segment, offset, len: moved.len, crc: moved.crc };
            offset += moved.len;
            self.repoint(&moved, chunk, true);
        }
        Ok(())
    }

    /// Makes the index refer to a moved piece's new chunk, wherever the fork still holds the bytes that were moved.
    ///
    /// In an object whose forks replaced each other a version is not enough: one transaction may have written the same
    /// range of two forks, one of which now has the other's name. There, and while the store runs (`exact`), the entry
    /// must refer to the very chunk that the piece was moved from. A chunk is in one fork at a time, always at one
    /// offset; so a move is harmless when it comes late, nor when it is replayed on top of a snapshot that knew more
    /// than the log up to there. Elsewhere a replayed move applies by its version: also where the log is salvaged, and
    /// the move that brought the piece to its source is lost.
    pub(crate) fn repoint(&self, moved: &Moved, chunk: Chunk, exact: bool) {
        let mut shard = self.shard(&moved.object).lock();
        let Some(node) = shard.get_mut(&moved.object) else { return };
        let source = moved.source.filter(|_| exact || node.replaced);
        let Some(fork) = node.forks.get_mut(&moved.fork) else { return };
        let end = moved.start + u64::from(moved.len);
        let before = Footprint::of_fork(&moved.fork, &fork.map);
        let still: Vec<Entry> = fork
            .map
            .overlapping(moved.start, end)
            .filter(|entry| match entry.place() {
                Place::Data { chunk, .. } => {
                    let source = source.is_none_or(|source| source == (chunk.segment, chunk.offset));
                    entry.version() == moved.version && source
                }
                Place::Hole => false,
            })
            .map(|entry| entry.clip(moved.start, end))
            .collect();
        for old in still {
            let skip = (old.start() - moved.start) as u32;
            let entry = Entry::piece(old.start(), moved.version, chunk, skip, old.len() as u32);
            // Both sides are counted at once: nobody sees the piece in two segments, or in none.
            let mut changes = vec![(chunk.segment, old.len() as i64)];
            fork.map.replace(old.start(), old.end(), &[entry], |piece, chunk| {
                changes.push((chunk.segment, -(piece.len() as i64)));
            });
            // A replayed move may take a piece out of a segment that was freed since: recovery counts when it is through.
            if exact {
                self.table.add_all_live(&changes);
            }
        }
        self.space.index.add(Footprint::of_fork(&moved.fork, &fork.map) - before);
    }
}

/// Reads pieces of a segment, in the order of their objects, forks and offsets, so that pieces that are read together
/// later are neighbours then. Pieces whose chunks are damaged are left out. All are slices of one buffer, so that little more memory is
/// held than they are long.
fn read_pieces(segment: &Arc<Segment>, mut batch: Vec<Live>) -> Result<Vec<(Live, Bytes)>, StoreError> {
    batch.sort_by(|one, other| {
        let place = |live: &Live| (live.start, live.skip);
        let names = one.object.cmp(&other.object).then_with(|| one.fork.cmp(&other.fork));
        names.then_with(|| place(one).cmp(&place(other)))
    });
    let mut end = 0;
    let mut parts: Vec<Part> = Vec::with_capacity(batch.len());
    for Live { chunk, skip, len, .. } in &batch {
        parts.push(Part { chunk: *chunk, skip: *skip, len: *len, buffer: 0, at: end });
        end += *len as usize;
    }
    let mut buffers = [BytesMut::zeroed(end)];
    // By their offsets in the buffer, which tell the pieces apart.
    let mut lost = HashSet::new();
    let lose = |part: &Part, _| {
        lost.insert(part.at);
        Ok(())
    };
    gather(&mut parts, &Pins::of(segment), &mut buffers, false, lose)?;
    let [buffer] = buffers;
    let bytes = buffer.freeze();
    let mut at = 0;
    let pieces = batch.into_iter().filter_map(|live| {
        let from = at;
        at += live.len as usize;
        (!lost.contains(&from)).then(|| (live, bytes.slice(from..at)))
    });
    Ok(pieces.collect())
}
