//! Segments: the files that the log is cut into, with the amount of each that is still referred to.
//!
//! Invariants:
//! - numbers only grow and are never reused; the log runs through the segments in the order of their numbers;
//! - a segment's header names its predecessor and the end of the predecessor's records, so that bytes that a crash tore
//!   off there are never read again;
//! - `live_bytes` counts the bytes that the index refers to. A sealed segment with none is freed as soon as no
//!   snapshot needs its records.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use crate::binding::Binding;
use crate::choice::Measured;
use crate::codec::crc32c;
use crate::disk::DiskFile;
use crate::space::BLOCK_BYTES;
use crate::sync::{AtomicBool, AtomicI64, AtomicU64, Mutex, RwLock};

/// The offset of a segment's first record, in bytes: behind two copies of its header.
pub const SEGMENT_HEAD_BYTES: u64 = 2 * HEADER_BYTES as u64;
/// The version of the format of everything that is written to disk. A store of a greater one is refused; segments and
/// snapshots of lesser ones are read.
pub const FORMAT_VERSION: u32 = 4;

/// The greatest number of a segment. A file with a greater one in its name is not a store's.
pub const SEGMENT_NUMBER_MAX: u32 = u32::MAX - (1 << 16);

const HEADER_BYTES: usize = 64;
const MAGIC: &[u8; 8] = b"NACRESEG";

/// A file of the log.
pub struct Segment {
    /// Its number.
    pub id: u32,
    /// The binding of its records.
    pub binding: Binding,
    /// Its size in bytes.
    pub capacity: u64,
    /// Its name in the store's folder.
    pub name: String,
    /// The file.
    pub file: Arc<dyn DiskFile>,
    /// The offset at which its records end, in bytes.
    pub end: AtomicU64,
    /// True if the log has continued in the next one.
    pub sealed: AtomicBool,
    /// The last batch that wrote to it, which gives the cleaner its age.
    pub last_batch: AtomicU64,
    /// True if the cleaner could not read all of it: it is left alone until the store is opened again.
    pub damaged: AtomicBool,
    live_bytes: AtomicI64,
    /// The number of pieces that the index referred to and does no longer.
    releases: AtomicU64,
    /// The cost of moving the live bytes.
    measured: Mutex<Option<Measured>>,
}

impl Segment {
    /// Creates a segment on a file.
    pub fn new(id: u32, binding: Binding, capacity: u64, file: Arc<dyn DiskFile>) -> Self {
        Self {
            id,
            binding,
            capacity,
            name: segment_name(id),
            file,
            end: AtomicU64::new(SEGMENT_HEAD_BYTES),
            sealed: AtomicBool::new(false),
            last_batch: AtomicU64::new(0),
            damaged: AtomicBool::new(false),
            live_bytes: AtomicI64::new(0),
            releases: AtomicU64::new(0),
            measured: Mutex::new(None),
        }
    }

    /// Returns the bytes that its file takes.
    fn file_bytes(&self) -> u64 {
        self.capacity.next_multiple_of(BLOCK_BYTES)
    }

    /// Returns the bytes that the index refers to.
    pub fn live_bytes(&self) -> u64 {
        // While an update is under way the count may be off by its size, and so dip below zero.
        self.live_bytes.load(Ordering::Relaxed).max(0) as u64
    }

    /// Returns whether the index refers to nothing in it. Meant for a sealed segment whose last changes are in the log,
    /// where the count is exact.
    ///
    /// # Panics
    ///
    /// If the count is negative: then it is wrong, and the segment must not be given away.
    pub fn is_free(&self) -> bool {
        let live_bytes = self.live_bytes.load(Ordering::Acquire);
        assert!(live_bytes >= 0, "{} has {live_bytes} live bytes", self.name);
        live_bytes == 0
    }

    /// Returns the number of pieces that the index has released. A piece that was overwritten in part counts too.
    pub fn releases(&self) -> u64 {
        self.releases.load(Ordering::Relaxed)
    }

    /// Returns the cost of moving the live bytes, as it was last measured.
    pub fn measured(&self) -> Option<Measured> {
        *self.measured.lock()
    }

    /// Notes the cost of moving the live bytes.
    pub fn set_measured(&self, measured: Measured) {
        *self.measured.lock() = Some(measured);
    }
}

/// Returns the name of a segment's file.
pub fn segment_name(id: u32) -> String {
    format!("segment-{id:010}")
}

/// Returns the number in the name of a segment's file; `None` for other names.
pub fn parse_segment_name(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("segment-")?;
    let id = digits.parse().ok()?;
    (segment_name(id) == name && id <= SEGMENT_NUMBER_MAX).then_some(id)
}

/// The header of a segment, which stands at its beginning twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The store's random identity.
    pub store: [u8; 16],
    /// The segment's number.
    pub id: u32,
    /// The version of the format.
    pub format: u32,
    /// The segment that the log came from; 0 for the first one.
    pub predecessor: u32,
    /// The offset at which the predecessor's records end, in bytes.
    pub predecessor_end: u64,
}

impl SegmentHeader {
    /// Encodes both copies.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(SEGMENT_HEAD_BYTES as usize);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.format.to_le_bytes());
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.store);
        out.extend_from_slice(&self.predecessor_end.to_le_bytes());
        out.extend_from_slice(&self.predecessor.to_le_bytes());
        out.resize(HEADER_BYTES - 4, 0);
        let crc = self.checksum(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out.extend_from_within(..);
        out.into()
    }

    /// Decodes the first copy that is sound.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        bytes.chunks_exact(HEADER_BYTES).take(2).find_map(Self::decode_copy)
    }

    /// Returns the number of sound copies: 0 to 2.
    pub fn sound_copies(bytes: &[u8]) -> usize {
        bytes.chunks_exact(HEADER_BYTES).take(2).filter_map(Self::decode_copy).count()
    }

    fn decode_copy(bytes: &[u8]) -> Option<Self> {
        let (body, crc) = bytes.split_last_chunk::<4>()?;
        if body.first_chunk::<8>()? != MAGIC {
            return None;
        }
        let word = |at: usize| body[at..].first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        let header = Self {
            format: word(8)?,
            id: word(12)?,
            store: *body[16..].first_chunk()?,
            predecessor_end: u64::from_le_bytes(*body[32..].first_chunk()?),
            predecessor: word(40)?,
        };
        (header.checksum(body) == u32::from_le_bytes(*crc)).then_some(header)
    }

    fn checksum(&self, body: &[u8]) -> u32 {
        crc32c(body) ^ if self.format < 2 { 0 } else { crc32c(&self.store) }
    }
}

/// All segments of a store, and their sums.
#[derive(Default)]
pub struct SegmentTable {
    segments: RwLock<BTreeMap<u32, Arc<Segment>>>,
    capacity_bytes: AtomicU64,
    live_bytes: AtomicI64,
}

impl SegmentTable {
    /// Adds a segment.
    pub fn insert(&self, segment: Arc<Segment>) {
        self.capacity_bytes.fetch_add(segment.file_bytes(), Ordering::Relaxed);
        self.segments.write().insert(segment.id, segment);
    }

    /// Removes a segment, and returns it.
    pub fn remove(&self, id: u32) -> Option<Arc<Segment>> {
        let segment = self.segments.write().remove(&id)?;
        self.capacity_bytes.fetch_sub(segment.file_bytes(), Ordering::Relaxed);
        Some(segment)
    }

    /// Returns a segment. The holder of the lock of an object that refers to it finds it here.
    pub fn get(&self, id: u32) -> Option<Arc<Segment>> {
        self.segments.read().get(&id).cloned()
    }

    /// Returns all segments, in ascending order.
    pub fn all(&self) -> Vec<Arc<Segment>> {
        self.segments.read().values().cloned().collect()
    }

    /// Counts bytes that the index refers to from now on, or no longer.
    pub fn add_live(&self, id: u32, bytes: i64) {
        self.add_all_live(&[(id, bytes)]);
    }

    /// Counts live bytes, as [`SegmentTable::add_live`] does, for several segments at once.
    ///
    /// # Panics
    ///
    /// If a segment is gone: then it was freed although the index refers to it, or is to.
    pub fn add_all_live(&self, changes: &[(u32, i64)]) {
        let segments = self.segments.read();
        let mut sum = 0;
        for (id, bytes) in changes {
            let Some(segment) = segments.get(id) else {
                panic!("the index names {}, which was freed", segment_name(*id));
            };
            segment.live_bytes.fetch_add(*bytes, Ordering::Relaxed);
            if *bytes < 0 {
                segment.releases.fetch_add(1, Ordering::Relaxed);
            }
            sum += bytes;
        }
        // A block written again, whole, is the most common change, and changes nothing here.
        if sum != 0 {
            self.live_bytes.fetch_add(sum, Ordering::Relaxed);
        }
    }

    /// Returns the bytes that the index refers to, over all segments.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes.load(Ordering::Relaxed).max(0) as u64
    }

    /// Returns the number of segments.
    pub fn len(&self) -> usize {
        self.segments.read().len()
    }

    /// Returns the maximum number of bytes of one segment that may have to be moved, counting segments that are not
    /// sealed as full.
    pub fn largest_bytes(&self) -> u64 {
        let segments = self.segments.read();
        let bytes =
            segments.values().filter(|segment| !segment.damaged.load(Ordering::Relaxed)).map(|segment| {
                if segment.sealed.load(Ordering::Acquire) { segment.live_bytes() } else { segment.capacity }
            });
        bytes.max().unwrap_or(0)
    }

    /// Returns the bytes that the files of all segments take together.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_damage_to_either_copy() {
        let header = SegmentHeader {
            store: [7; 16],
            id: 9,
            format: FORMAT_VERSION,
            predecessor: 8,
            predecessor_end: 4096,
        };
        let bytes = header.encode();
        assert_eq!(bytes.len() as u64, SEGMENT_HEAD_BYTES);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHeader::decode(&damaged), Some(header));
            assert_eq!(SegmentHeader::sound_copies(&damaged), 1);
        }
    }

    fn table_of_one() -> (SegmentTable, Arc<Segment>) {
        let disk = crate::sim::SimDisk::new(1, crate::sim::Faults::default());
        let file = crate::disk::Disk::create(&disk, &segment_name(1), 4096).unwrap();
        let segment = Arc::new(Segment::new(1, Binding::new(FORMAT_VERSION, &[7; 16], 1), 4096, file));
        let table = SegmentTable::default();
        table.insert(Arc::clone(&segment));
        (table, segment)
    }

    #[test]
    fn a_segment_is_free_when_all_that_was_counted_is_released() {
        let (table, segment) = table_of_one();
        table.add_all_live(&[(1, 100), (1, -40)]);
        assert!(!segment.is_free());
        table.add_live(1, -60);
        assert!(segment.is_free());
    }

    #[test]
    #[should_panic(expected = "segment-0000000001 has -1 live bytes")]
    fn a_count_below_zero_frees_nothing() {
        let (table, segment) = table_of_one();
        table.add_live(1, -1);
        segment.is_free();
    }

    #[test]
    #[should_panic(expected = "the index names segment-0000000001, which was freed")]
    fn the_index_cannot_name_a_segment_that_is_gone() {
        let (table, _) = table_of_one();
        table.remove(1);
        table.add_live(1, 10);
    }

    #[test]
    fn names_are_their_own_inverse() {
        assert_eq!(parse_segment_name(&segment_name(17)), Some(17));
        assert_eq!(parse_segment_name("segment-17"), None);
        assert_eq!(parse_segment_name("snapshot-0000000017"), None);
    }
}
