//! The bytes of answers: the chunks that they are parts of, and how these are read.
//!
//! A checksum covers a whole chunk, so a chunk is read and checked whole, once for a
//! request, however many of its parts are wanted. Ranges that were written piece by piece have parts of many chunks.
//! Neighbouring chunks of a segment are read together, because the bytes between them cost less than another
//! call.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use nacre_object::{Answer, ErrorKind, Found, Outcome, StoreError};
use smallvec::SmallVec;

use crate::codec::crc32c;
use crate::extent_map::{Chunk, Entry, Place};
use crate::memory::{self, Block, Blocks};
use crate::node::RangePlan;
use crate::segment::{Segment, SegmentTable};

/// The maximum number of bytes between two chunks that are read together.
const GAP_BYTES_MAX: u64 = 4 << 10;
/// The maximum number of bytes that are read together.
const RUN_BYTES_MAX: u64 = 256 << 10;
/// The length in bytes from which on a chunk that is wanted whole is read to where it is wanted, by a call of its own,
/// rather than with its neighbours and then copied.
const DIRECT_BYTES_MIN: u32 = 8 << 10;

/// The segments that a request reads from. Holding them keeps their files from being reused.
#[derive(Default)]
pub struct Pins {
    /// The segments, in ascending order of their numbers.
    segments: Vec<Arc<Segment>>,
}

impl Pins {
    /// Pins a single segment.
    pub fn of(segment: &Arc<Segment>) -> Self {
        Self { segments: vec![Arc::clone(segment)] }
    }

    fn add(&mut self, id: u32, table: &SegmentTable) {
        if let Err(at) = self.segments.binary_search_by_key(&id, |segment| segment.id) {
            // The index never refers to a segment that is not there.
            self.segments.insert(at, table.get(id).expect("a live segment is in the table"));
        }
    }

    fn get(&self, id: u32) -> Option<&Segment> {
        let at = self.segments.binary_search_by_key(&id, |segment| segment.id).ok()?;
        Some(&self.segments[at])
    }
}

/// The keeper of the chunks that an index refers to.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// The segments of a log.
    Log(&'a SegmentTable),
    /// The blocks of a volatile store's shard.
    Memory(&'a Blocks),
}

/// The bytes to read for a request.
#[derive(Default)]
pub struct Fetches {
    /// The index of each answer (meaningless for a refusal), and its plan.
    list: SmallVec<[(usize, RangePlan); 1]>,
    pins: Pins,
    /// The block of each piece of each plan, in a volatile store.
    blocks: SmallVec<[Block; 1]>,
}

impl Fetches {
    /// Adds the reads for one answer. Called under the lock of the object's shard.
    pub fn add(&mut self, answer: usize, plan: RangePlan, source: Source<'_>) {
        for piece in &plan.pieces {
            let Place::Data { chunk, .. } = piece.place() else { continue };
            match source {
                Source::Log(table) => self.pins.add(chunk.segment, table),
                Source::Memory(blocks) => self.blocks.push(Block::clone(blocks.get(chunk.segment))),
            }
        }
        self.list.push((answer, plan));
    }

    /// Reads the bytes that an outcome lacks; returns false if that would have to wait and must not (`now`).
    ///
    /// # Errors
    ///
    /// `Corrupt` if a chunk is damaged, `Io` if one cannot be read.
    pub fn fill(&mut self, outcome: &mut Outcome, now: bool) -> Result<bool, StoreError> {
        if !self.blocks.is_empty() {
            let mut blocks = std::mem::take(&mut self.blocks).into_iter();
            for (answer, plan) in &mut self.list {
                let data = memory::read(plan, &mut blocks);
                put(outcome, *answer, plan, data);
            }
            return Ok(true);
        }
        // Nearly always: one range, in one piece.
        if let [(answer, plan)] = &mut self.list[..]
            && plan.pieces.len() <= 1
        {
            let Some(data) = read_piece(&self.pins, plan, now)? else { return Ok(false) };
            put(outcome, *answer, plan, data);
            return Ok(true);
        }
        let mut buffers: Vec<BytesMut> =
            self.list.iter().map(|(_, plan)| BytesMut::zeroed(plan.data_bytes)).collect();
        let pieces = self.list.iter().enumerate();
        let pieces =
            pieces.flat_map(|(index, (_, plan))| plan.pieces.iter().map(move |piece| (index, plan, piece)));
        let mut parts: Vec<Part> =
            pieces.filter_map(|(index, plan, piece)| Part::of(index, plan, piece)).collect();
        if !gather(&mut parts, &self.pins, &mut buffers, now, |_, error| Err(error))? {
            return Ok(false);
        }
        for ((answer, plan), data) in self.list.iter_mut().zip(buffers) {
            put(outcome, *answer, plan, data.freeze());
        }
        Ok(true)
    }
}

/// Reads the bytes of a plan of at most one piece.
fn read_piece(pins: &Pins, plan: &RangePlan, now: bool) -> Result<Option<Bytes>, StoreError> {
    if plan.data_bytes == 0 {
        return Ok(Some(Bytes::new()));
    }
    let mut data = BytesMut::zeroed(plan.data_bytes);
    if let Some(mut part) = plan.pieces.first().and_then(|piece| Part::of(0, plan, piece))
        && !gather(
            std::slice::from_mut(&mut part),
            pins,
            std::slice::from_mut(&mut data),
            now,
            |_, error| Err(error),
        )?
    {
        return Ok(None);
    }
    Ok(Some(data.freeze()))
}

/// Puts a range that was read into its answer. Its plan is useless afterwards.
fn put(outcome: &mut Outcome, answer: usize, plan: &mut RangePlan, data: Bytes) {
    let mut read = std::mem::take(&mut plan.read);
    read.data = data;
    match outcome {
        Outcome::Refused(refusal) => refusal.found = Found::Region(read),
        Outcome::Done(done) => done.answers[answer] = Answer::Range(read),
    }
}

/// A part of a chunk that is wanted, and its destination.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The chunk.
    pub chunk: Chunk,
    /// The offset of the part in the chunk.
    pub skip: u32,
    /// The length of the part in bytes.
    pub len: u32,
    /// The index of the buffer that it goes to.
    pub buffer: usize,
    /// Its offset in that buffer.
    pub at: usize,
}

impl Part {
    fn of(buffer: usize, plan: &RangePlan, piece: &Entry) -> Option<Self> {
        let Place::Data { chunk, skip } = piece.place() else { return None };
        let at = (piece.start() - plan.start) as usize;
        let part = Self { chunk, skip, len: piece.len() as u32, buffer, at };
        (at + part.len as usize <= plan.data_bytes).then_some(part)
    }

    fn is_whole(&self) -> bool {
        self.len == self.chunk.len
    }

    fn target<'a>(&self, buffers: &'a mut [BytesMut]) -> &'a mut [u8] {
        &mut buffers[self.buffer][self.at..self.at + self.len as usize]
    }
}

fn end(chunk: &Chunk) -> u64 {
    u64::from(chunk.offset) + u64::from(chunk.len)
}

/// Returns whether the first of some parts is a long chunk that is wanted whole, and by no other part.
fn is_direct(parts: &[Part]) -> bool {
    let (first, next) = (&parts[0], parts.get(1));
    first.is_whole()
        && first.len >= DIRECT_BYTES_MIN
        && next.is_none_or(|next| {
            next.chunk.segment != first.chunk.segment || next.chunk.offset != first.chunk.offset
        })
}

/// Returns the number of parts, from the first on, whose chunks are read together. They are in the order of their chunks.
fn run_len(parts: &[Part]) -> usize {
    if is_direct(parts) {
        return 1;
    }
    let first = &parts[0].chunk;
    let mut run_end = end(first);
    for (index, Part { chunk, .. }) in parts.iter().enumerate().skip(1) {
        let longer_end = run_end.max(end(chunk));
        if chunk.segment != first.segment
            || u64::from(chunk.offset) > run_end + GAP_BYTES_MAX
            || longer_end - u64::from(first.offset) > RUN_BYTES_MAX
            || is_direct(&parts[index..])
        {
            return index;
        }
        run_end = longer_end;
    }
    parts.len()
}

/// Reads each chunk that parts are wanted of, checks it, and copies the parts to their buffers. Returns false if that would
/// have to wait and must not (`now`). Reorders the parts.
///
/// # Errors
///
/// The error that `failed` returns for a part whose chunk is damaged or cannot be read. If it returns none, the part's
/// destination is left as it was.
pub fn gather(
    parts: &mut [Part],
    pins: &Pins,
    buffers: &mut [BytesMut],
    now: bool,
    mut failed: impl FnMut(&Part, StoreError) -> Result<(), StoreError>,
) -> Result<bool, StoreError> {
    // Parts of the same chunk stand together then: no two chunks begin at one place.
    parts.sort_unstable_by_key(|Part { chunk, .. }| u64::from(chunk.segment) << 32 | u64::from(chunk.offset));
    let mut scratch = Vec::new();
    let mut rest = &parts[..];
    while let Some(first) = rest.first() {
        let (run, behind) = rest.split_at(run_len(rest));
        rest = behind;
        // Whoever wants parts has pinned their segments.
        let segment = pins.get(first.chunk.segment).expect("a segment that is read is pinned");
        let Chunk { offset, crc, .. } = first.chunk;
        if let [part] = run
            && part.is_whole()
        {
            match read_chunk(segment, offset, crc, part.target(buffers), now) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => failed(part, error)?,
            }
            continue;
        }
        let run_end = run.iter().map(|part| end(&part.chunk)).max().unwrap_or(0);
        let run_bytes = (run_end - u64::from(offset)) as usize;
        if scratch.len() < run_bytes {
            scratch.resize(run_bytes, 0);
        }
        let scratch = &mut scratch[..run_bytes];
        let are_together = match read_bytes(segment, offset, scratch, now) {
            Ok(true) => true,
            Ok(false) => return Ok(false),
            // What stands between the chunks may be the part that cannot be read.
            Err(_) => false,
        };
        for of_chunk in run.chunk_by(|one, other| one.chunk == other.chunk) {
            let chunk = of_chunk[0].chunk;
            let bytes = &mut scratch[(chunk.offset - offset) as usize..][..chunk.len as usize];
            let result = match are_together {
                true => check_chunk(segment, chunk.offset, chunk.crc, bytes).map(|()| true),
                false => read_chunk(segment, chunk.offset, chunk.crc, bytes, now),
            };
            match result {
                Ok(true) => {
                    for part in of_chunk {
                        let from = part.skip as usize;
                        part.target(buffers).copy_from_slice(&bytes[from..from + part.len as usize]);
                    }
                }
                Ok(false) => return Ok(false),
                Err(error) => of_chunk.iter().try_for_each(|part| failed(part, error.clone()))?,
            }
        }
    }
    Ok(true)
}

/// Fills the buffer with a chunk and checks it; returns false if that would have to wait and must not (`now`).
///
/// # Errors
///
/// `Corrupt` if the chunk is damaged, `Io` if it cannot be read.
pub fn read_chunk(
    segment: &Segment,
    offset: u32,
    crc: u32,
    buffer: &mut [u8],
    now: bool,
) -> Result<bool, StoreError> {
    let there = read_bytes(segment, offset, buffer, now)?;
    if there {
        check_chunk(segment, offset, crc, buffer)?;
    }
    Ok(there)
}

fn read_bytes(segment: &Segment, offset: u32, buffer: &mut [u8], now: bool) -> Result<bool, StoreError> {
    let result = if now {
        segment.file.read_now(u64::from(offset), buffer)
    } else {
        segment.file.read_at(u64::from(offset), buffer).map(|()| true)
    };
    result.map_err(|error| {
        let len = buffer.len();
        if error.kind() == std::io::ErrorKind::UnexpectedEof {
            let text =
                format!("{} is damaged: it ends before the {len} bytes at offset {offset} do", segment.name);
            return StoreError::new(ErrorKind::Corrupt, text).with_place(&segment.name, offset.into());
        }
        let text = format!("cannot read {len} bytes at offset {offset} of {}: {error}", segment.name);
        StoreError::new(ErrorKind::Io, text).with_place(&segment.name, offset.into()).with_source(error)
    })
}

fn check_chunk(segment: &Segment, offset: u32, crc: u32, bytes: &[u8]) -> Result<(), StoreError> {
    if crc32c(bytes) == crc {
        return Ok(());
    }
    let len = bytes.len();
    let text = format!("{} is damaged: the {len} bytes at offset {offset} fail their checksum", segment.name);
    Err(StoreError::new(ErrorKind::Corrupt, text).with_place(&segment.name, offset.into()))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use proptest::prelude::*;

    use super::*;
    use crate::binding::Binding;
    use crate::disk::DiskFile;

    /// A file that counts what is read, and cannot read one of its bytes.
    struct Counted {
        bytes: Vec<u8>,
        unreadable: Option<usize>,
        calls: AtomicUsize,
        read_bytes: AtomicUsize,
    }

    impl DiskFile for Counted {
        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
            let range = offset as usize..offset as usize + buffer.len();
            self.calls.fetch_add(1, Ordering::Relaxed);
            self.read_bytes.fetch_add(buffer.len(), Ordering::Relaxed);
            if self.unreadable.is_some_and(|at| range.contains(&at)) {
                return Err(io::Error::other("a bad sector"));
            }
            let found = self.bytes.get(range).ok_or(io::ErrorKind::UnexpectedEof)?;
            buffer.copy_from_slice(found);
            Ok(())
        }

        fn write_at(&self, _: u64, _: &[Bytes]) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn sync(&self) -> io::Result<()> {
            Ok(())
        }

        fn size(&self) -> io::Result<u64> {
            Ok(self.bytes.len() as u64)
        }

        fn set_size(&self, _: u64) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    fn segment(id: u32, bytes: Vec<u8>, unreadable: Option<usize>) -> (Arc<Counted>, Arc<Segment>) {
        let capacity = bytes.len() as u64;
        let file = Arc::new(Counted {
            bytes,
            unreadable,
            calls: AtomicUsize::new(0),
            read_bytes: AtomicUsize::new(0),
        });
        let binding = Binding::new(3, &[1; 16], id);
        (Arc::clone(&file), Arc::new(Segment::new(id, binding, capacity, file)))
    }

    fn noise(len: usize) -> Vec<u8> {
        (0..len as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
    }

    fn chunk(segment: &Segment, bytes: &[u8], offset: u32, len: u32) -> Chunk {
        let crc = crc32c(&bytes[offset as usize..][..len as usize]);
        Chunk { segment: segment.id, offset, len, crc }
    }

    /// Parts of equal length, one after another in one buffer.
    fn parts_of(chunks: impl IntoIterator<Item = (Chunk, u32)>, len: u32) -> (Vec<Part>, Vec<BytesMut>) {
        let parts: Vec<Part> = chunks
            .into_iter()
            .enumerate()
            .map(|(index, (chunk, skip))| Part { chunk, skip, len, buffer: 0, at: index * len as usize })
            .collect();
        let buffers = vec![BytesMut::zeroed(parts.len() * len as usize)];
        (parts, buffers)
    }

    #[test]
    fn a_chunk_is_read_once_however_many_parts_are_wanted() {
        let bytes = noise(200_000);
        let (file, segment) = segment(1, bytes.clone(), None);
        let large = chunk(&segment, &bytes, 128, 65_536);
        let small = (0..512).map(|index| chunk(&segment, &bytes, 100_000 + index * 150, 64));
        // Parts of the large chunk and small ones take turns.
        let chunks = small.enumerate().flat_map(|(index, small)| [(large, index as u32 * 128), (small, 0)]);
        let (mut parts, mut buffers) = parts_of(chunks, 64);
        assert_eq!(
            gather(&mut parts, &Pins::of(&segment), &mut buffers, false, |_, error| Err(error)),
            Ok(true)
        );
        for (index, pair) in buffers[0].chunks(128).enumerate() {
            assert_eq!(pair[..64], bytes[128 + index * 128..][..64]);
            assert_eq!(pair[64..], bytes[100_000 + index * 150..][..64]);
        }
        assert_eq!(file.calls.load(Ordering::Relaxed), 2);
        assert!(file.read_bytes.load(Ordering::Relaxed) <= 65_536 + 512 * 150);
    }

    #[test]
    fn damage_to_one_chunk_costs_its_own_parts_only() {
        let bytes = noise(50_000);
        let (_, segment) = segment(1, bytes.clone(), Some(1_050));
        let sound = chunk(&segment, &bytes, 2_000, 100);
        let damaged = Chunk { crc: 1, ..chunk(&segment, &bytes, 3_000, 100) };
        let unreadable = chunk(&segment, &bytes, 1_000, 100);
        let beyond = Chunk { offset: 49_950, ..sound };
        let before = chunk(&segment, &bytes, 500, 100);
        let (mut parts, mut buffers) =
            parts_of([before, unreadable, sound, damaged, sound, beyond].map(|chunk| (chunk, 50)), 50);
        let mut kinds = Vec::new();
        let note = |part: &Part, error: StoreError| {
            kinds.push((part.chunk.offset, error.kind));
            Ok(())
        };
        assert_eq!(gather(&mut parts, &Pins::of(&segment), &mut buffers, false, note), Ok(true));
        kinds.sort_by_key(|(offset, _)| *offset);
        let wanted = [(1_000, ErrorKind::Io), (3_000, ErrorKind::Corrupt), (49_950, ErrorKind::Corrupt)];
        assert_eq!(kinds, wanted);
        let place = |at: usize| Some(at + 50);
        let places = [place(500), None, place(2_000), None, place(2_000), None];
        for (found, place) in buffers[0].chunks(50).zip(places) {
            assert_eq!(found, place.map_or(&[0; 50][..], |at| &bytes[at..at + 50]));
        }
        let whole = gather(&mut parts, &Pins::of(&segment), &mut buffers, false, |_, error| Err(error));
        assert!(whole.is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn every_part_arrives_where_it_is_wanted(
            wanted in prop::collection::vec(
                (0u32..2, 0u32..300_000, prop_oneof![1u32..300, 8_000u32..65_537], 0f64..1.0, 0f64..1.0, 0usize..3),
                1..60,
            ),
        ) {
            let contents = [noise(400_000), noise(390_000)];
            let segments = [0, 1].map(|id| segment(id, contents[id as usize].clone(), None).1);
            let pins = Pins { segments: segments.to_vec() };
            let mut buffers = vec![BytesMut::new(); 3];
            let mut parts = Vec::new();
            for (id, offset, len, skip, rest, buffer) in wanted {
                let bytes = &contents[id as usize];
                let chunk = chunk(&segments[id as usize], bytes, offset, len);
                let skip = (f64::from(len - 1) * skip) as u32;
                let len = 1 + (f64::from(len - skip - 1) * rest) as u32;
                let at = buffers[buffer].len();
                buffers[buffer].resize(at + len as usize, 0);
                parts.push(Part { chunk, skip, len, buffer, at });
            }
            let given = parts.clone();
            prop_assert_eq!(gather(&mut parts, &pins, &mut buffers, false, |_, error| Err(error)), Ok(true));
            for part in given {
                let from = (part.chunk.offset + part.skip) as usize;
                let expected = &contents[part.chunk.segment as usize][from..from + part.len as usize];
                prop_assert_eq!(&*part.target(&mut buffers), expected);
            }
        }
    }
}
