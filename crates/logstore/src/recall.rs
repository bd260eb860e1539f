//! The window of writes of a store that is opened, rebuilt from the tokens in snapshots and in the log.
//!
//! The replay brings the tokens after the snapshot's position. Those before it are in the snapshot's padding, as
//! many as fit into the file without extending it. So they take no space that
//! is refused to anybody else; on a full volume there are fewer. Missing tokens are searched in the
//! remaining segments, backwards from the position.

use std::time::SystemTime;

use bytes::Bytes;
use nacre_object::WriteToken;
use nacre_object::once::WRITER_BYTES;
use nacre_object::window::{Window, Written};

use crate::codec::{Reader, put_varint};
use crate::engine::Engine;
use crate::log::Position;
use crate::record::{Body, Repeatable};
use crate::scan::{Item, Scan};
use crate::segment::{SEGMENT_HEAD_BYTES, Segment, SegmentHeader, SegmentTable};
use crate::snapshot::{FRAME_HEAD_BYTES, SnapshotHeader};

/// The bytes of log before the snapshot's position after which no further segment is read for its tokens.
const LOOKED_THROUGH_BYTES_MAX: u64 = 64 << 20;

/// The number of writes in one frame of a snapshot.
const FRAME_WRITES: usize = 128;
/// The first byte of the body of padding that holds writes. That of others is 0.
const PADDING_WRITES: u8 = 1;

/// The latest writes in a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptWrites {
    /// The position from which on the store's window was complete; `None` where the snapshot does not tell.
    begin: Option<u64>,
    /// The writes of each frame, with the position of the first. The latest ones come first.
    frames: Vec<(u64, Vec<Written>)>,
}

impl KeptWrites {
    /// Reads the body of a frame of padding; `None` if it cannot be decoded. What later versions may keep in padding
    /// is skipped.
    pub(crate) fn add(&mut self, body: Bytes) -> Option<()> {
        if body.first() == Some(&PADDING_WRITES) {
            let (begin, first, writes) = decode_writes(body)?;
            self.begin = Some(begin);
            self.frames.push((first, writes));
        }
        Some(())
    }
}

/// Encodes some writes, the first of which has position `first`, of a window that begins at position `begin`.
fn encode_writes(begin: u64, first: u64, writes: &[Written]) -> Vec<u8> {
    let mut out = vec![PADDING_WRITES];
    put_varint(&mut out, begin);
    put_varint(&mut out, first);
    put_varint(&mut out, writes.len() as u64);
    // Most writes are of a few writers, so each is named once.
    let mut writers: Vec<[u8; WRITER_BYTES]> = Vec::new();
    for Written { token, version, existed } in writes {
        let index = writers.iter().position(|writer| *writer == token.writer);
        put_varint(&mut out, index.unwrap_or(writers.len()) as u64);
        if index.is_none() {
            writers.push(token.writer);
            out.extend_from_slice(&token.writer);
        }
        put_varint(&mut out, token.sequence << 1 | u64::from(*existed));
        put_varint(&mut out, *version);
    }
    out
}

/// Decodes what [`encode_writes`] wrote.
fn decode_writes(body: Bytes) -> Option<(u64, u64, Vec<Written>)> {
    let mut reader = Reader::new(body);
    reader.u8()?;
    let (begin, first) = (reader.varint()?, reader.varint()?);
    let count = usize::try_from(reader.varint()?).ok()?;
    first.checked_add(count as u64)?;
    let mut writers: Vec<[u8; WRITER_BYTES]> = Vec::new();
    // Each takes at least three bytes.
    let mut writes = Vec::with_capacity(count.min(reader.remaining() / 3));
    for _ in 0..count {
        let index = usize::try_from(reader.varint()?).ok()?;
        if index == writers.len() {
            writers.push(reader.array()?);
        }
        let (writer, number) = (*writers.get(index)?, reader.varint()?);
        let token = WriteToken { writer, sequence: number >> 1 };
        writes.push(Written { token, version: reader.varint()?, existed: number & 1 == 1 });
    }
    (reader.remaining() == 0).then_some((begin, first, writes))
}

impl Engine {
    /// Encodes the latest writes before position `end`, in bodies of frames that take at most `bytes_max` together; the
    /// latest ones come first. No write before that position may still be on its way into the window.
    pub(crate) fn encode_writes_before(&self, end: u64, bytes_max: u64) -> Vec<Vec<u8>> {
        let mut bodies: Vec<Vec<u8>> = Vec::new();
        let (mut first, mut bytes) = (end, 0);
        loop {
            // Bit by bit, so that nobody waits for the window for long.
            let window = self.window.lock();
            let (begin, known, behind) = (window.begin(), window.end() >= end, first);
            let (next, writes) = window.latest(behind, FRAME_WRITES);
            drop(window);
            // A frame without writes tells where the window begins.
            if !known || writes.is_empty() && !bodies.is_empty() {
                return bodies;
            }
            let body = encode_writes(begin, next, &writes);
            bytes += FRAME_HEAD_BYTES + body.len() as u64;
            if bytes > bytes_max {
                return bodies;
            }
            bodies.push(body);
            first = next;
        }
    }
}

/// Returns the window of the writes before a snapshot's position, which keeps at most `most` of them.
pub fn window(table: &SegmentTable, header: &SnapshotHeader, kept: KeptWrites, most: usize) -> Window {
    let tokens = header.tokens;
    let mut window = Window::new(most, tokens);
    for (first, writes) in kept.frames {
        // One that is missing costs all before it.
        if first + writes.len() as u64 != window.begin() {
            break;
        }
        window.recover(first, &writes);
    }
    // What was before the window's beginning is of no use: a repair may have started the count over.
    let begin = kept.begin.unwrap_or(0).max(tokens.saturating_sub(most as u64)).min(tokens);
    if window.begin() > begin {
        let mut again = None;
        let most = (tokens - begin) as usize;
        let found = tokens_before(table, header.position, header.sequence, most, &mut again);
        let first = tokens - found.len() as u64;
        window.recover(first, &found.into_iter().rev().collect::<Vec<Written>>());
        if let Some((first, writes)) = again {
            window.recover(first, &writes);
        }
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
                Body::Transaction { .. } | Body::Moves(_) | Body::Floor(_) | Body::Mark => {}
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

/// Reads a segment up to an offset.
fn read(segment: &Segment, end: u64) -> std::io::Result<Bytes> {
    let mut bytes = vec![0; end.min(segment.capacity) as usize];
    segment.file.read_at(0, &mut bytes)?;
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(number: u64) -> Written {
        let mut writer = [3; WRITER_BYTES];
        writer[7] = (number % 5) as u8;
        let token = WriteToken { writer, sequence: number << 40 };
        Written { token, version: number + 1, existed: number > 2 }
    }

    #[test]
    fn writes_are_kept_in_frames_the_latest_first() {
        let writes: Vec<Written> = (0..300).map(written).collect();
        let mut kept = KeptWrites::default();
        kept.add(Bytes::from(vec![0; 100])).unwrap();
        for range in [200..300, 60..200] {
            let body = encode_writes(1050, 1000 + range.start as u64, &writes[range]);
            assert!(body.len() < 140 * 13 + 5 * 16 + 20, "{} bytes", body.len());
            kept.add(body.into()).unwrap();
        }
        assert_eq!(kept.begin, Some(1050));
        let header = SnapshotHeader {
            store: [0; 16],
            format: 3,
            position: Position { segment: 1, offset: 0 },
            sequence: 1,
            tokens: 1300,
            floor: 0,
        };
        let window = |kept: KeptWrites, most| window(&SegmentTable::default(), &header, kept, most);
        let whole = window(kept.clone(), 1000);
        assert_eq!((whole.begin(), whole.end()), (1060, 1300));
        assert_eq!(whole.latest(1300, 300).1, writes[60..]);
        assert_eq!(window(kept.clone(), 50).begin(), 1250, "a window that is smaller now");
        kept.frames.remove(0);
        assert_eq!(window(kept, 1000).begin(), 1300, "the latest ones are missing");
    }

    #[test]
    fn the_encoding_of_writes_is_pinned() {
        let body = encode_writes(3, 300, &[written(1), written(6), written(2)]);
        let writer = [3, 3, 3, 3, 3, 3, 3, 1, 3, 3, 3, 3, 3, 3, 3, 3];
        let mut expected = vec![1, 3, 0xac, 2, 3, 0];
        expected.extend_from_slice(&writer);
        expected.extend_from_slice(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x40, 2]);
        expected.extend_from_slice(&[0, 0x81, 0x80, 0x80, 0x80, 0x80, 0x80, 3, 7, 1]);
        expected.extend_from_slice(&written(2).token.writer);
        expected.extend_from_slice(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1, 3]);
        assert_eq!(body, expected);
        assert_eq!(decode_writes(body.into()), Some((3, 300, vec![written(1), written(6), written(2)])));
    }

    #[test]
    fn writes_that_make_no_sense_are_refused() {
        let body = encode_writes(0, 7, &[written(1), written(2)]);
        for len in 1..body.len() {
            assert!(KeptWrites::default().add(Bytes::copy_from_slice(&body[..len])).is_none(), "{len} bytes");
        }
        let longer = [&body[..], &[0]].concat();
        assert!(KeptWrites::default().add(longer.into()).is_none());
        let mut endless = vec![PADDING_WRITES];
        (0..3).for_each(|_| put_varint(&mut endless, u64::MAX));
        assert!(KeptWrites::default().add(endless.into()).is_none());
    }
}
