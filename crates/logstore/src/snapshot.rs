//! Snapshots: the index in a file, with the log position that each covers.
//!
//! A snapshot is taken while transactions continue: each shard is copied under its lock, a step at a time (module
//! `index_writer`), and the log from the snapshot's position on is applied again on top of it. That is
//! harmless, because a record is skipped where the object's version is not below the record's. A snapshot becomes valid,
//! by its renaming, only when every effect that it may hold is synced in the log. Two are kept, so that damage to one
//! loses nothing.
//!
//! A snapshot is written into a file that is kept in reserve for it (module `space`), and the file of a dropped snapshot
//! becomes the next one's: on a full volume there is always room for a snapshot.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use nacre_object::limit::FENCED_SESSIONS_MAX;
use nacre_object::{ByteRange, ErrorKind, Fork, Key, ObjectId, StoreError, Versioned};

use crate::binding::FrameBinding;
use crate::codec::{Reader, crc32c};
use crate::disk::Disk;
use crate::engine::Engine;
use crate::extent_map::{Chunk, Entry};
use crate::fences::FencedSessions;
use crate::forks::ForkNode;
use crate::index_writer::STEP_ITEMS;
use crate::log::Position;
use crate::node::Node;
use crate::recall::KeptWrites;
use crate::record::CHUNK_BYTES_MAX;
use crate::space::{SNAPSHOT_BEGUN, SNAPSHOT_RESERVE, is_full};

/// The number of snapshots that are kept.
pub const KEPT: usize = 2;
/// The greatest number of a snapshot. A file with a greater one in its name is not a store's.
const SNAPSHOT_NUMBER_MAX: u64 = u64::MAX >> 1;
/// The size in bytes at which a frame is closed, and so the loss where a frame is lost in all snapshots.
pub(crate) const FRAME_BYTES: usize = 4 << 10;
/// The maximum length of a frame in bytes: the largest value of a key, and room for what surrounds it.
pub(crate) const FRAME_BYTES_MAX: usize = 4 << 20;

pub(crate) const FRAME_HEADER: u8 = 1;
pub(crate) const FRAME_ITEMS: u8 = 2;
pub(crate) const FRAME_END: u8 = 3;
/// Padding, which readers may skip: zeros, or the latest writes (module `recall`).
pub(crate) const FRAME_PADDING: u8 = 4;
/// The bytes in front of the body of a frame: magic number, checksum, length, kind.
pub(crate) const FRAME_HEAD_BYTES: u64 = 13;
/// The length in bytes of the frames that padding is cut into, so that little memory is taken for it.
pub(crate) const PADDING_BYTES: u64 = 64 << 10;

pub(crate) const ITEM_OBJECT: u8 = 1;
pub(crate) const ITEM_FORK: u8 = 2;
const ITEM_KEY: u8 = 3;
pub(crate) const ITEM_ATTRIBUTE: u8 = 4;
pub(crate) const ITEM_DATA: u8 = 5;
pub(crate) const ITEM_HOLE: u8 = 6;
pub(crate) const ITEM_SEGMENT: u8 = 7;
/// The base of a fork, behind the fork; since format 2.
pub(crate) const ITEM_BASE: u8 = 8;
/// A key with its version; since format 3. Keys without one, of older formats, count as set when the object was last
/// written.
pub(crate) const ITEM_VERSIONED_KEY: u8 = 9;
/// The fenced sessions of the object, behind it; since format 3.
pub(crate) const ITEM_FENCED_SESSIONS: u8 = 10;

/// Returns the name of a snapshot's file.
pub fn snapshot_name(number: u64) -> String {
    format!("snapshot-{number:010}")
}

/// Returns the number in the name of a snapshot's file; `None` for other names.
pub fn parse_snapshot_name(name: &str) -> Option<u64> {
    let number = name.strip_prefix("snapshot-")?.parse().ok()?;
    (snapshot_name(number) == name && number <= SNAPSHOT_NUMBER_MAX).then_some(number)
}

/// Returns whether a file of this name is a snapshot that an earlier program did not complete.
pub fn is_temporary(name: &str) -> bool {
    name.strip_suffix(".tmp").is_some_and(|name| parse_snapshot_name(name).is_some())
}

/// The kept snapshots, and the inputs of the next one.
#[derive(Debug)]
pub struct SnapshotState {
    /// The numbers of the snapshots that are kept, the oldest first, each with the position at which replay begins.
    pub snapshots: Vec<(u64, Position)>,
    /// The number of snapshots that there must be before any of the log is given up.
    pub snapshots_needed: usize,
    /// The current length of snapshots' files in bytes, while they are being made longer; they must not become shorter
    /// again.
    pub snapshot_bytes_min: u64,
    /// The number of items of a snapshot that are written under the lock of a shard. Tests lower it, and then each
    /// step is written to the file separately.
    pub step_items: u64,
}

impl Default for SnapshotState {
    fn default() -> Self {
        Self { snapshots: Vec::new(), snapshots_needed: KEPT, snapshot_bytes_min: 0, step_items: STEP_ITEMS }
    }
}

impl SnapshotState {
    /// Returns whether a snapshot that is kept needs a segment's records. While there are fewer snapshots than are
    /// kept, all of the log is needed: should the only one be damaged, it is replayed from its beginning.
    pub fn pins(&self, segment: u32) -> bool {
        self.snapshots.len() < self.snapshots_needed
            || self.snapshots.first().is_none_or(|(_, position)| segment >= position.segment)
    }
}

/// The contents of the first frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotHeader {
    /// The store's random identity.
    pub store: [u8; 16],
    /// The version of the format.
    pub format: u32,
    /// The position at which replay begins.
    pub position: Position,
    /// The number of the first record that is replayed.
    pub sequence: u64,
    /// The number of transactions with tokens in the log before that record. 0 in snapshots before format 3.
    pub tokens: u64,
    /// The version up to which removed objects may have been forgotten before that record. 0 in snapshots before format 4.
    pub floor: u64,
}

impl Engine {
    /// Returns whether enough was appended since the last snapshot for another one.
    pub(crate) fn snapshot_is_due(&self) -> bool {
        let spacing_bytes = self.options.snapshot_bytes.max(self.snapshot_spacing_bytes());
        self.log.since_snapshot_bytes() >= spacing_bytes
    }

    /// Returns the bytes of log from a snapshot to the next one, unless room is needed: one and a half times the
    /// length of the snapshot, so that the index is never most of what is written. If that is more than
    /// the options ask for it is less, down to three quarters of the length: replaying that much takes about half as long
    /// as loading the snapshot.
    pub(crate) fn snapshot_spacing_bytes(&self) -> u64 {
        // The estimate is never less than the length, and for a small store it is most of it.
        let bytes = self.snapshot_bytes_likely();
        (bytes + bytes / 2).min(self.options.snapshot_bytes.max(bytes / 4 * 3))
    }

    /// Takes a snapshot. Blocks; transactions continue.
    pub(crate) fn snapshot(self: &Arc<Self>, work: &mut SnapshotState) -> Result<(), StoreError> {
        let since_bytes = self.log.since_snapshot_bytes();
        // A record of moves that stands before the position has its effects in the index, and so in the snapshot: none is
        // on its way now. Those behind are replayed, whatever the snapshot knows of them; so the cleaner goes on.
        let cleaning = self.maintenance.cleaning.lock();
        let begun = self.log.begin_snapshot();
        drop(cleaning);
        let position = begun.position;
        let number = work.snapshots.last().map_or(1, |(number, _)| number + 1);
        let name = snapshot_name(number);
        let error = |error: io::Error| {
            let path = self.disk.describe(&name);
            let kind = if is_full(&error) { ErrorKind::OutOfSpace } else { ErrorKind::Io };
            StoreError::new(
                kind,
                format!("cannot write the index to {path}: {error}; the log still has it all"),
            )
        };
        let footprint = self.space.index.footprint();
        let written = self.write_snapshot(work, begun).map_err(error);
        if written.as_ref().is_err_and(|error| error.kind == ErrorKind::OutOfSpace) {
            self.space.index.underestimated();
        }
        let named = written.and_then(|bytes| {
            // Nothing that the snapshot holds may be news to the log after a crash.
            self.log.wait_blocking(self.log.last_batch())?;
            self.log.sync()?;
            let failures = self.name_failures();
            let renamed = self.disk.rename(SNAPSHOT_BEGUN, &name);
            renamed.and_then(|()| self.sync_names(failures)).map(|()| bytes).map_err(|cause| {
                let _ = self.return_snapshot_file(&name);
                error(cause)
            })
        });
        let bytes = named.inspect_err(|_| {
            // A replay would still begin at the snapshot before.
            self.log.count_replayed(since_bytes);
            // What was written stays in reserve; if it cannot be put there, the next snapshot tries again.
            let _ = self.return_snapshot_file(SNAPSHOT_BEGUN);
            self.count_snapshots();
        })?;
        self.space.index.took_snapshot(bytes, footprint);
        work.snapshots.push((number, position));
        let superfluous = work.snapshots.len().saturating_sub(KEPT);
        work.snapshots.drain(..superfluous);
        self.maintenance.set_pinned(work);
        self.maintenance.counters.snapshots.store(work.snapshots.len() as u64, Ordering::Relaxed);
        self.retire_snapshots(work);
        // Where there is no room for more, transactions that need more will be told.
        let _ = self.fill_reserve();
        Ok(())
    }

    /// Reuses the file of a snapshot that is not kept any more for the next one, and removes others, old and damaged
    /// ones.
    pub(crate) fn retire_snapshots(&self, work: &SnapshotState) {
        let files = self.disk.list().unwrap_or_default();
        let mut reserved = files.iter().any(|(name, _)| name == SNAPSHOT_RESERVE);
        for number in files.iter().filter_map(|(name, _)| parse_snapshot_name(name)) {
            if work.snapshots.iter().any(|(kept, _)| *kept == number) {
                continue;
            }
            let name = snapshot_name(number);
            let result = match reserved {
                true => self.disk.remove(&name),
                false => self.disk.rename(&name, SNAPSHOT_RESERVE),
            };
            reserved = true;
            if let Err(error) = result {
                tracing::warn!("cannot remove {}: {error}", self.disk.describe(&name));
            }
        }
        self.count_snapshots();
    }
}

impl SnapshotHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&self.format.to_le_bytes());
        out.extend_from_slice(&self.store);
        out.extend_from_slice(&self.position.segment.to_le_bytes());
        out.extend_from_slice(&self.position.offset.to_le_bytes());
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&self.tokens.to_le_bytes());
        out.extend_from_slice(&self.floor.to_le_bytes());
        out
    }

    fn decode(body: Bytes) -> Option<Self> {
        let mut reader = Reader::new(body);
        let format = reader.u32()?;
        let store = reader.array()?;
        let position = Position { segment: reader.u32()?, offset: reader.u64()? };
        let sequence = reader.u64()?;
        let tokens = if format < 3 { 0 } else { reader.u64()? };
        let floor = if format < 4 { 0 } else { reader.u64()? };
        Some(Self { store, format, position, sequence, tokens, floor })
    }
}

/// A snapshot that was read.
#[derive(derive_more::Debug)]
#[debug("Snapshot")]
pub struct Snapshot {
    /// Its header.
    pub header: SnapshotHeader,
    /// The ends of the segments before its position, in bytes.
    pub segment_ends: Vec<(u32, u64)>,
    /// Its objects.
    pub objects: Vec<(ObjectId, Node)>,
    /// The latest writes with tokens before its position.
    pub writes: KeptWrites,
}

/// The damage that makes a snapshot unusable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The offset of the frame that is not sound.
    pub offset: u64,
}

/// Reads a snapshot of a store from its bytes.
pub fn decode_snapshot(bytes: Bytes, store: &[u8; 16]) -> Result<Snapshot, Damage> {
    let mut loader = Loader::default();
    let binding = FrameBinding::new(store);
    // A first frame that is sound in neither format is damaged, in whichever it is.
    let is_format_1 = decode_frame(&bytes, 0, binding).is_none() && decode_frame_1(&bytes, 0).is_some();
    let mut offset = 0;
    while offset < bytes.len() {
        let damage = Damage { offset: offset as u64 };
        let frame = match is_format_1 {
            true => decode_frame_1(&bytes, offset),
            false => decode_frame(&bytes, offset, binding),
        };
        let (kind, body, next) = frame.ok_or(damage.clone())?;
        if loader.frame(kind, body).is_none() || loader.ended && next != bytes.len() {
            return Err(damage);
        }
        offset = next;
    }
    match loader.header {
        Some(header) if loader.ended => {
            let Loader { segment_ends, objects, writes, .. } = loader;
            Ok(Snapshot { header, segment_ends, objects, writes })
        }
        _ => Err(Damage { offset: offset as u64 }),
    }
}

/// Bytes of a snapshot that are read at a time to check it.
const CHECK_BYTES: u64 = 1 << 20;

/// Checks a snapshot of `len` bytes as [`decode_snapshot`] does, without holding more of it than a frame and what is read at
/// a time. `read` returns that many bytes from an offset on.
///
/// # Errors
///
/// Those of `read`.
pub fn check_snapshot(
    len: u64,
    store: &[u8; 16],
    mut read: impl FnMut(u64, u64) -> io::Result<Bytes>,
) -> io::Result<Result<(), Damage>> {
    let binding = FrameBinding::new(store);
    let mut loader = Loader::default();
    let mut is_format_1 = None;
    let (mut begin, mut window) = (0, Bytes::new());
    let mut offset = 0;
    while offset < len {
        let held = window.slice(((offset - begin) as usize).min(window.len())..);
        if (held.len() as u64) < frame_bytes(&held).min(len - offset) {
            window = read(offset, frame_bytes(&held).max(CHECK_BYTES).min(len - offset))?;
            begin = offset;
            // The frame may turn out to be longer.
            if frame_bytes(&window) <= window.len() as u64 || window.len() as u64 == len - offset {
                continue;
            }
            window = read(offset, frame_bytes(&window).min(len - offset))?;
        }
        let at = (offset - begin) as usize;
        // A first frame that is sound in neither format is damaged, in whichever it is.
        let is_format_1 = *is_format_1.get_or_insert_with(|| {
            decode_frame(&window, at, binding).is_none() && decode_frame_1(&window, at).is_some()
        });
        let frame = match is_format_1 {
            true => decode_frame_1(&window, at),
            false => decode_frame_of(&window, at, begin, binding),
        };
        let Some((kind, body, next)) = frame else { return Ok(Err(Damage { offset })) };
        let next = begin + next as u64;
        if loader.frame(kind, body).is_none() || loader.ended && next != len {
            return Ok(Err(Damage { offset }));
        }
        loader.forget();
        offset = next;
    }
    Ok(if loader.header.is_some() && loader.ended { Ok(()) } else { Err(Damage { offset }) })
}

/// Returns how long the frame is, in either format, whose beginning is given; its head alone where that is not whole.
fn frame_bytes(bytes: &[u8]) -> u64 {
    let word =
        |at: usize| bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u32::from_le_bytes(*word));
    let longest = [word(0), word(8)].into_iter().filter(|len| *len as usize <= FRAME_BYTES_MAX).max();
    FRAME_HEAD_BYTES + u64::from(longest.unwrap_or(0))
}

/// Decodes the body of a frame of items alone; returns the objects that begin in it.
#[cfg(feature = "sim")]
pub fn decode_items(body: Bytes) -> Option<Vec<ObjectId>> {
    let mut loader = Loader::default();
    let mut reader = Reader::new(body);
    while reader.remaining() > 0 {
        loader.item(&mut reader)?;
    }
    Some(loader.objects.into_iter().map(|(id, _)| id).collect())
}

/// Decodes a frame; returns its kind, its body, and the offset of the next one.
pub(crate) fn decode_frame(bytes: &Bytes, at: usize, binding: FrameBinding) -> Option<(u8, Bytes, usize)> {
    decode_frame_of(bytes, at, 0, binding)
}

/// Decodes a frame in a part of a snapshot that begins at `begin`.
fn decode_frame_of(
    bytes: &Bytes,
    at: usize,
    begin: u64,
    binding: FrameBinding,
) -> Option<(u8, Bytes, usize)> {
    let word = |at: usize| bytes.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word));
    let len = word(at + 8)? as usize;
    if word(at)? != binding.magic() || len == 0 || len > FRAME_BYTES_MAX {
        return None;
    }
    let end = at + 12 + len;
    if crc32c(bytes.get(at + 8..end)?) ^ binding.mask(begin + at as u64) != word(at + 4)? {
        return None;
    }
    Some((bytes[at + 12], bytes.slice(at + 13..end), end))
}

/// Decodes a frame of format 1, which consists of length, CRC, and the bytes that the CRC covers; returns the same as
/// [`decode_frame`].
pub(crate) fn decode_frame_1(bytes: &Bytes, at: usize) -> Option<(u8, Bytes, usize)> {
    let len = u32::from_le_bytes(*bytes[at..].first_chunk()?) as usize;
    let crc = u32::from_le_bytes(*bytes[at + 4..].first_chunk()?);
    if len == 0 || len > FRAME_BYTES_MAX {
        return None;
    }
    let end = at.checked_add(8)?.checked_add(len)?;
    let framed = bytes.get(at + 8..end)?;
    if crc32c(framed) != crc {
        return None;
    }
    Some((framed[0], bytes.slice(at + 9..end), end))
}

/// A builder of objects from items.
#[derive(Default)]
pub(crate) struct Loader {
    pub(crate) header: Option<SnapshotHeader>,
    pub(crate) segment_ends: Vec<(u32, u64)>,
    pub(crate) objects: Vec<(ObjectId, Node)>,
    writes: KeptWrites,
    fork: Option<Fork>,
    entries: ForkNode,
    pub(crate) items: u64,
    pub(crate) ended: bool,
    /// True if items are missing since the last object began, which is then a stand-in for the objects that those items
    /// belong to.
    pub(crate) is_broken: bool,
    /// The objects that lost items.
    pub(crate) broken: Vec<ObjectId>,
    /// True if frames are missing, possibly the first or the last.
    is_partial: bool,
}

impl Loader {
    /// Continues after missing items: anything before the next object is useless.
    pub(crate) fn break_off(&mut self) {
        self.is_partial = true;
        self.finish_fork();
        if let Some((id, _)) = self.objects.pop()
            && !self.is_broken
        {
            self.broken.push(id);
        }
        // Any name will do.
        if let Ok(id) = ObjectId::try_from("damaged") {
            self.objects.push((id, Node::default()));
            self.fork = Some(Fork::DEFAULT);
            self.is_broken = true;
        }
    }

    pub(crate) fn frame(&mut self, kind: u8, body: Bytes) -> Option<()> {
        match (kind, self.header.is_some(), self.ended) {
            (FRAME_HEADER, false, false) => self.header = Some(SnapshotHeader::decode(body)?),
            (FRAME_ITEMS, has_header, false) if has_header || self.is_partial => {
                let mut reader = Reader::new(body);
                while reader.remaining() > 0 {
                    self.item(&mut reader)?;
                    self.items += 1;
                }
            }
            (FRAME_PADDING, has_header, false) if has_header || self.is_partial => self.writes.add(body)?,
            (FRAME_END, has_header, false) if has_header || self.is_partial => {
                let items = u64::from_le_bytes(*body.first_chunk()?);
                if items != self.items && !self.is_partial {
                    return None;
                }
                self.finish_fork();
                self.ended = true;
            }
            _ => return None,
        }
        Some(())
    }

    pub(crate) fn finish_fork(&mut self) {
        if let (Some(name), Some((_, node))) = (self.fork.take(), self.objects.last_mut()) {
            node.forks.insert(name, std::mem::take(&mut self.entries));
        }
    }

    /// Forgets the content of the frames so far, except what the next one continues from.
    fn forget(&mut self) {
        if let Some((id, _)) = self.objects.pop() {
            self.objects.clear();
            self.objects.push((id, Node::default()));
        }
        self.entries = ForkNode::default();
        self.writes = KeptWrites::default();
    }

    fn item(&mut self, reader: &mut Reader) -> Option<()> {
        let own = |bytes: Bytes| Bytes::copy_from_slice(&bytes);
        match reader.u8()? {
            ITEM_OBJECT => {
                self.finish_fork();
                if std::mem::take(&mut self.is_broken) {
                    self.objects.pop();
                }
                let id = ObjectId::new(own(reader.bytes()?)).ok()?;
                // An object that was begun again: what there is of the first attempt is of no use.
                self.objects.pop_if(|(last, _)| *last == id);
                let mut node = Node {
                    exists: reader.u8()? != 0,
                    version: reader.varint()?,
                    tombstone_version: reader.varint()?,
                    ..Node::default()
                };
                let fence = reader.varint()?;
                if fence > 0 {
                    node.fences = FencedSessions::below(fence);
                }
                self.objects.push((id, node));
            }
            ITEM_FORK => {
                self.finish_fork();
                self.objects.last()?;
                self.fork = Some(Fork::new(own(reader.bytes()?)).ok()?);
                self.entries.exists = reader.u8()? != 0;
                self.entries.size = reader.varint()?;
            }
            ITEM_BASE => {
                self.fork.as_ref()?;
                self.entries.base = reader.varint()?;
                self.objects.last_mut()?.1.replaced = true;
            }
            kind @ (ITEM_KEY | ITEM_VERSIONED_KEY) => {
                let key = Key::new(own(reader.bytes()?)).ok()?;
                let value = own(reader.bytes()?);
                let node = &mut self.objects.last_mut()?.1;
                let version = if kind == ITEM_KEY { node.version } else { reader.varint()? };
                node.keys.insert(key, Versioned { value, version });
            }
            ITEM_FENCED_SESSIONS => {
                let count = usize::try_from(reader.varint()?).ok()?;
                let node = &mut self.objects.last_mut()?.1;
                let gaps = (0..count.min(FENCED_SESSIONS_MAX + 1)).map(|_| reader.varint());
                node.fences = FencedSessions::from_gaps(node.fences.least(), gaps)?;
            }
            ITEM_ATTRIBUTE => {
                let name = Key::new(own(reader.bytes()?)).ok()?;
                let value = own(reader.bytes()?);
                self.objects.last_mut()?.1.attributes.insert(name, value);
            }
            ITEM_SEGMENT => {
                let id = u32::try_from(reader.varint()?).ok()?;
                self.segment_ends.push((id, reader.varint()?));
            }
            kind @ (ITEM_DATA | ITEM_HOLE) => {
                self.fork.as_ref()?;
                let entry = decode_entry(kind, reader)?;
                if !self.entries.map.push(entry) && !self.is_broken {
                    return None;
                }
            }
            _ => return None,
        }
        Some(())
    }
}

fn decode_entry(kind: u8, reader: &mut Reader) -> Option<Entry> {
    let range = ByteRange::new(reader.varint()?, reader.varint()?);
    range.validate().ok()?;
    let version = reader.varint()?;
    if range.len == 0 {
        return None;
    }
    if kind == ITEM_HOLE {
        return Some(Entry::hole(range, version));
    }
    let segment = u32::try_from(reader.varint()?).ok()?;
    let offset = u32::try_from(reader.varint()?).ok()?;
    let len = u32::try_from(reader.varint()?).ok()?;
    let skip = u32::try_from(reader.varint()?).ok()?;
    let crc = reader.u32()?;
    let fits = u64::from(skip) + range.len <= u64::from(len) && len as usize <= CHUNK_BYTES_MAX;
    if !fits || segment == u32::MAX {
        return None;
    }
    let chunk = Chunk { segment, offset, len, crc };
    Some(Entry::piece(range.offset, version, chunk, skip, range.len as u32))
}

/// Reads all of a file.
pub fn read_file(disk: &dyn Disk, name: &str) -> io::Result<Bytes> {
    let file = disk.open(name)?;
    let mut bytes = vec![0; file.size()? as usize];
    file.read_at(0, &mut bytes)?;
    Ok(bytes.into())
}
