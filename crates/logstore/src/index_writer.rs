//! The writing of a snapshot: the index in frames, shard by shard, a step at a time.
//!
//! A transaction waits for one step at most: the lock of a shard is released after [`STEP_ITEMS`] items or
//! [`PORTION_BYTES`] bytes, even in the middle of an object. The snapshot then does not hold such an object's
//! state at one moment, but that at the first step, mixed with effects of later transactions. These are in the log
//! behind the snapshot's position, and their versions are above the one that the snapshot gives the object; so each of
//! them is replayed, and afterwards every key and every byte that any of them wrote is as the last one left it. This
//! holds for every effect whose result does not depend on the earlier state ([`Node::may_be_replayed`]). An object
//! that had another kind of effect meanwhile is written again from its beginning, over what the snapshot has of it.

use std::io;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::atomic::Ordering;

use bytes::Bytes;
use nacre_object::limit::OFFSET_MAX;
use nacre_object::{Fork, Key, ObjectId};

use crate::binding::FrameBinding;
use crate::codec::{crc32c, put_bytes, put_varint};
use crate::disk::DiskFile;
use crate::engine::Engine;
use crate::extent_map::{Entry, Place};
use crate::log::SnapshotBegun;
use crate::name::Name;
use crate::node::Node;
use crate::record::Effect;
use crate::segment::FORMAT_VERSION;
use crate::shard::Shard;
use crate::snapshot::SnapshotState;
use crate::snapshot::{
    FRAME_BYTES, FRAME_END, FRAME_HEAD_BYTES, FRAME_HEADER, FRAME_ITEMS, FRAME_PADDING, ITEM_ATTRIBUTE,
    ITEM_BASE, ITEM_DATA, ITEM_FENCED_SESSIONS, ITEM_FORK, ITEM_HOLE, ITEM_OBJECT, ITEM_SEGMENT,
    ITEM_VERSIONED_KEY, PADDING_BYTES, SnapshotHeader,
};
use crate::sync::{Mutex, unlock_fair};

/// The number of items after which the lock of a shard is given back.
pub(crate) const STEP_ITEMS: u64 = 512;
/// The number of bytes after which it is.
pub(crate) const PORTION_BYTES: usize = 256 << 10;
/// The number of bytes that are gathered before they are written.
const WRITE_BYTES: usize = 1 << 20;
/// The number of written bytes after which they are synced, so that the log's syncs never wait for all of them.
const SYNC_BYTES: u64 = 8 << 20;
/// The number of times that an object is begun again, because of such effects. Then it is written as a whole.
const RESTARTS_MAX: usize = 3;

/// A writer that gathers items into frames.
struct Frames {
    binding: FrameBinding,
    /// The offset in the file of the first byte of `out`.
    offset: u64,
    out: Vec<u8>,
    body: Vec<u8>,
    items: u64,
    /// The beginning of the current object.
    mark: Mark,
}

/// A place between two items, to which a writer can go back.
#[derive(Default)]
struct Mark {
    /// The offset in the file of the frame that the item behind it is in.
    frame: u64,
    /// The number of bytes in front of it in the body of that frame, and these bytes if the frame has been closed.
    body_bytes: usize,
    body: Option<Vec<u8>>,
    items: u64,
}

impl Frames {
    fn new(binding: FrameBinding) -> Self {
        Self { binding, offset: 0, out: Vec::new(), body: Vec::new(), items: 0, mark: Mark::default() }
    }

    /// Marks the current place.
    fn mark(&mut self) {
        self.mark = Mark { frame: self.end(), body_bytes: self.body.len(), body: None, items: self.items };
    }

    /// Goes back to the place that was marked last. What was written to the file behind it is written over: a snapshot is
    /// not longer because an object was begun again, and has room in its file.
    fn go_back(&mut self) {
        match self.mark.body.take() {
            Some(body) => self.body = body,
            None => self.body.truncate(self.mark.body_bytes),
        }
        match self.mark.frame.checked_sub(self.offset) {
            Some(bytes) => self.out.truncate(bytes as usize),
            None => {
                self.out.clear();
                self.offset = self.mark.frame;
            }
        }
        self.items = self.mark.items;
    }

    fn frame(&mut self, kind: u8, body: &[u8]) {
        let begin = self.out.len();
        let mask = self.binding.mask(self.offset + begin as u64);
        self.out.extend_from_slice(&self.binding.magic().to_le_bytes());
        self.out.extend_from_slice(&[0; 4]);
        self.out.extend_from_slice(&(body.len() as u32 + 1).to_le_bytes());
        self.out.push(kind);
        self.out.extend_from_slice(body);
        let crc = crc32c(&self.out[begin + 8..]) ^ mask;
        self.out[begin + 4..begin + 8].copy_from_slice(&crc.to_le_bytes());
    }

    fn gathered_bytes(&self) -> usize {
        self.out.len() + self.body.len()
    }

    /// Returns the length that the file must have for the gathered items.
    fn end(&self) -> u64 {
        self.offset + self.out.len() as u64
    }

    /// Writes the gathered bytes to the file.
    fn write_to(&mut self, file: &dyn DiskFile) -> io::Result<()> {
        let bytes = Bytes::from(std::mem::take(&mut self.out));
        let len = bytes.len() as u64;
        if len > 0 {
            file.write_at(self.offset, &[bytes])?;
        }
        self.offset += len;
        Ok(())
    }

    fn item(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        put(&mut self.body);
        self.items += 1;
        if self.body.len() >= FRAME_BYTES {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if !self.body.is_empty() {
            let body = std::mem::take(&mut self.body);
            if self.mark.body.is_none() {
                self.mark.body = Some(body[..self.mark.body_bytes].to_vec());
            }
            self.frame(FRAME_ITEMS, &body);
        }
    }

    /// Adds an object from its beginning, or continues it; returns the place to continue from, if `step` ends
    /// before the object does.
    fn node(&mut self, id: &ObjectId, node: &Node, from: Cursor, step: BatchLimits) -> Option<Cursor> {
        let (key, fork) = match from {
            Cursor::Beginning => {
                self.object(id, node);
                (Some(None), None)
            }
            Cursor::Key(key) => (Some(Some(key)), None),
            Cursor::Fork(name, start) => (None, Some((name, start))),
        };
        if let Some(last) = key {
            let from = last.as_ref().map_or(Unbounded, Excluded);
            for (name, found) in node.keys.range::<Key, _>((from, Unbounded)) {
                self.item(|out| {
                    out.push(ITEM_VERSIONED_KEY);
                    put_bytes(out, name.as_bytes());
                    put_bytes(out, &found.value);
                    put_varint(out, found.version);
                });
                if step.is_full(self) {
                    return Some(Cursor::Key(name.clone()));
                }
            }
        }
        let first = fork.as_ref().map_or(Unbounded, |(name, _): &(Fork, u64)| Included(name));
        for (name, found) in node.forks.range::<Fork, _>((first, Unbounded)) {
            let begun = fork.as_ref().filter(|(begun, _)| begun == name).map(|(_, start)| *start);
            let start = begun.unwrap_or(0);
            if begun.is_none() {
                self.item(|out| {
                    out.push(ITEM_FORK);
                    put_bytes(out, name.as_bytes());
                    out.push(u8::from(found.exists));
                    put_varint(out, found.size);
                });
                if found.base > 0 {
                    self.item(|out| {
                        out.push(ITEM_BASE);
                        put_varint(out, found.base);
                    });
                }
                if step.is_full(self) {
                    return Some(Cursor::Fork(name.clone(), 0));
                }
            }
            for entry in found.map.overlapping(start, OFFSET_MAX) {
                // What was there before may have been overwritten with a piece that begins earlier.
                let entry = entry.clip(start, OFFSET_MAX);
                self.item(|out| put_entry(out, &entry));
                if step.is_full(self) {
                    return Some(Cursor::Fork(name.clone(), entry.end()));
                }
            }
        }
        None
    }

    /// Adds what an object is without its keys and forks.
    fn object(&mut self, id: &ObjectId, node: &Node) {
        self.item(|out| {
            out.push(ITEM_OBJECT);
            put_bytes(out, id.as_bytes());
            out.push(u8::from(node.exists));
            put_varint(out, node.version);
            put_varint(out, node.tombstone_version);
            put_varint(out, node.fences.least());
        });
        if !node.fences.sessions().is_empty() {
            self.item(|out| {
                out.push(ITEM_FENCED_SESSIONS);
                put_varint(out, node.fences.sessions().len() as u64);
                let mut before = node.fences.least();
                for session in node.fences.sessions() {
                    put_varint(out, session - before);
                    before = *session;
                }
            });
        }
        for (name, value) in &node.attributes {
            self.item(|out| {
                out.push(ITEM_ATTRIBUTE);
                put_bytes(out, name.as_bytes());
                put_bytes(out, value);
            });
        }
    }
}

/// The place in an object up to which it is written.
#[derive(Clone)]
enum Cursor {
    Beginning,
    /// Behind this key.
    Key(Key),
    /// A fork whose header is written, and an offset in it.
    Fork(Fork, u64),
}

/// A step of the index: the items added while a shard is locked.
#[derive(Clone, Copy)]
struct BatchLimits {
    /// The numbers of items and of bytes that there may be at its end.
    items: u64,
    bytes: usize,
}

impl BatchLimits {
    /// Begins one after the items gathered so far.
    fn begin(frames: &Frames, items: u64) -> Self {
        Self { items: frames.items + items, bytes: frames.gathered_bytes() + PORTION_BYTES }
    }

    const ENDLESS: Self = Self { items: u64::MAX, bytes: usize::MAX };

    fn is_full(&self, frames: &Frames) -> bool {
        frames.items >= self.items || frames.gathered_bytes() >= self.bytes
    }
}

fn put_entry(out: &mut Vec<u8>, entry: &Entry) {
    match entry.place() {
        Place::Hole => {
            out.push(ITEM_HOLE);
            put_varint(out, entry.start());
            put_varint(out, entry.len());
            put_varint(out, entry.version());
        }
        Place::Data { chunk, skip } => {
            out.push(ITEM_DATA);
            put_varint(out, entry.start());
            put_varint(out, entry.len());
            put_varint(out, entry.version());
            put_varint(out, u64::from(chunk.segment));
            put_varint(out, u64::from(chunk.offset));
            put_varint(out, u64::from(chunk.len));
            put_varint(out, u64::from(skip));
            out.extend_from_slice(&chunk.crc.to_le_bytes());
        }
    }
}

impl Engine {
    /// Writes the index into the file that is in reserve for it; returns the resulting length in bytes. The file keeps
    /// its size for a later snapshot that needs it, unless that is far too large and larger than files are made at the
    /// moment.
    pub(crate) fn write_snapshot(&self, work: &SnapshotState, begun: SnapshotBegun) -> io::Result<u64> {
        let SnapshotBegun { position, sequence, tokens, floor } = begun;
        let (store, format) = (self.identity, FORMAT_VERSION);
        let header = SnapshotHeader { store, format, position, sequence, tokens, floor };
        let file = self.begin_snapshot_file(work)?;
        let mut synced_bytes = 0;
        let mut write = |frames: &mut Frames| {
            self.extend_file_of_snapshot(&*file, frames.end())?;
            frames.write_to(&*file)?;
            // An object that was begun again is written over.
            if frames.offset.saturating_sub(synced_bytes) >= SYNC_BYTES {
                synced_bytes = frames.offset;
                file.sync()?;
            }
            Ok(())
        };
        // Allocated at this length at once, if possible, rather than bit by bit.
        let _ = self.extend_file_of_snapshot(&*file, self.snapshot_bytes_likely());
        let mut frames = Frames::new(FrameBinding::new(&self.identity));
        frames.frame(FRAME_HEADER, &header.encode());
        for segment in self.table.all().iter().filter(|segment| segment.sealed.load(Ordering::Acquire)) {
            frames.item(|out| {
                out.push(ITEM_SEGMENT);
                put_varint(out, u64::from(segment.id));
                put_varint(out, segment.end.load(Ordering::Relaxed));
            });
        }
        for shard in &self.shards {
            self.write_shard(shard, work.step_items, &mut frames, &mut write)?;
        }
        frames.flush();
        let items = frames.items;
        write(&mut frames)?;
        let end = frames.offset + FRAME_HEAD_BYTES + size_of::<u64>() as u64;
        let file_bytes_max = self.snapshot_file_bytes_max().max(work.snapshot_bytes_min);
        // Every shard was locked since the position was taken, so all writes before it are in the window.
        let writes = self.encode_writes_before(tokens, file_bytes_max.saturating_sub(end));
        let writes_bytes: u64 = writes.iter().map(|body| FRAME_HEAD_BYTES + body.len() as u64).sum();
        if !self.is_tight() {
            // Without it there are fewer of them, and nothing else is lost.
            let _ = self.extend_file_of_snapshot(&*file, end + writes_bytes);
        }
        let file_bytes = file.size()?.min(file_bytes_max);
        let mut padding = file_bytes.saturating_sub(end);
        for body in writes {
            let frame_bytes = FRAME_HEAD_BYTES + body.len() as u64;
            if frame_bytes > padding {
                break;
            }
            frames.frame(FRAME_PADDING, &body);
            padding -= frame_bytes;
        }
        write(&mut frames)?;
        while padding >= FRAME_HEAD_BYTES {
            let frame = padding.min(PADDING_BYTES + FRAME_HEAD_BYTES);
            frames.frame(FRAME_PADDING, &vec![0; (frame - FRAME_HEAD_BYTES) as usize]);
            write(&mut frames)?;
            padding -= frame;
        }
        frames.frame(FRAME_END, &items.to_le_bytes());
        write(&mut frames)?;
        // A remainder that is no frame goes.
        if file.size()? > frames.offset {
            file.set_size(frames.offset)?;
        }
        file.sync()?;
        Ok(end)
    }

    /// Writes a shard, and releases its lock after each step. The snapshot needs only the objects that exist when it
    /// begins: later ones are in the log behind its position. One that disappears meanwhile was removed
    /// and then forgotten: the floor that covers it is the snapshot's, or behind its position in the log too.
    fn write_shard(
        &self,
        shard: &Mutex<Shard>,
        step_items: u64,
        frames: &mut Frames,
        write: &mut impl FnMut(&mut Frames) -> io::Result<()>,
    ) -> io::Result<()> {
        let names: Vec<Name> = shard.lock().iter().map(|(name, _)| name.clone()).collect();
        let mut names = names.iter();
        let mut begun: Option<Begun> = None;
        loop {
            let locked = shard.lock();
            let mut step = BatchLimits::begin(frames, step_items);
            while !step.is_full(frames) {
                let Some(object) = begun.take().or_else(|| names.next().map(Begun::new)) else {
                    drop(locked);
                    return write(frames);
                };
                let Some(node) = locked.get(&object.id) else {
                    if !matches!(object.from, Cursor::Beginning) {
                        // The part of it that was written was there before it was removed.
                        frames.go_back();
                        step = BatchLimits::begin(frames, step_items);
                        self.watched.store(0, Ordering::SeqCst);
                    }
                    continue;
                };
                begun = self.write_object(object, node, frames, step_items, &mut step);
            }
            // The next step asks for the same lock again at once.
            unlock_fair(locked);
            if step_items < STEP_ITEMS {
                frames.flush();
            }
            if frames.gathered_bytes() >= WRITE_BYTES || step_items < STEP_ITEMS {
                write(frames)?;
            }
        }
    }

    /// Writes an object, or continues it; returns how it has to be continued.
    fn write_object(
        &self,
        mut object: Begun,
        node: &Node,
        frames: &mut Frames,
        step_items: u64,
        step: &mut BatchLimits,
    ) -> Option<Begun> {
        let is_begun = !matches!(object.from, Cursor::Beginning);
        if !is_begun {
            frames.mark();
        } else if self.watched_changed.load(Ordering::SeqCst) {
            frames.go_back();
            *step = BatchLimits::begin(frames, step_items);
            object.from = Cursor::Beginning;
            object.restarts += 1;
        }
        let is_whole = object.restarts > RESTARTS_MAX;
        let from = std::mem::replace(&mut object.from, Cursor::Beginning);
        // The object's shard is locked: nothing comes between what is written now and the watch.
        self.watched_changed.store(false, Ordering::SeqCst);
        let object_step = if is_whole { BatchLimits::ENDLESS } else { *step };
        let Some(rest) = frames.node(&object.id, node, from, object_step) else {
            self.watched.store(0, Ordering::SeqCst);
            return None;
        };
        self.watched.store(self.hash(&object.id), Ordering::SeqCst);
        object.from = rest;
        Some(object)
    }
}

impl Node {
    /// Returns whether the results of effects do not depend on the object's earlier state: then they may be applied
    /// again to an object that already has them, and later ones, in a part.
    pub(crate) fn may_be_replayed(&self, effects: &[Effect]) -> bool {
        effects.iter().all(|effect| match effect {
            Effect::Create
            | Effect::Chunk { .. }
            | Effect::SetKey { .. }
            | Effect::RemoveKey { .. }
            | Effect::SetAttribute { .. }
            | Effect::RemoveAttribute { .. }
            | Effect::RaiseFence { .. }
            | Effect::FenceSession { .. } => true,
            // Behind the end it makes no hole, and whether that is where it reaches depends on the size.
            Effect::Zero { fork, range } => {
                self.forks.get(fork).is_some_and(|found| range.end() <= found.size)
            }
            // These depend on the fork's size, on whether there is one, or on what it holds.
            Effect::Truncate { .. }
            | Effect::RemoveFork { .. }
            | Effect::ReplaceFork { .. }
            | Effect::Remove => false,
        })
    }
}

/// An object that is being written.
struct Begun {
    id: ObjectId,
    from: Cursor,
    restarts: usize,
}

impl Begun {
    fn new(name: &Name) -> Self {
        Self { id: name.to_id(), from: Cursor::Beginning, restarts: 0 }
    }
}
