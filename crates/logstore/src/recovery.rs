//! Opening a store: the newest sound snapshot, and the log after it.
//!
//! Records are numbered without gaps. A part that a crash may have torn off the end of the log was never acknowledged,
//! and is dropped, from the first missing or damaged record on. A record that is known to have been synced
//! (because another one says so) is never dropped: if its head is damaged its tail replaces it, and if both are, opening
//! fails and names the place. Damage to its payload is left for readers to find by its checksum.
//!
//! Records that are not known to have been synced are written again before their effects become visible; see module
//! `unproven`.
//!
//! Without a sound snapshot the log is replayed from its beginning, which is there for as long as there were never two
//! snapshots at a time: nothing is freed before (see [`SnapshotState::pins`]).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use nacre_object::window::Window;
use nacre_object::{ErrorKind, ObjectId, StoreError};

use crate::binding::Binding;
use crate::codec::crc32c;
use crate::disk::{Disk, DiskFile, NoDisk};
use crate::engine::Engine;
use crate::extent_map::{Chunk, Place};
use crate::footprint::Footprint;
use crate::log::{Log, Logged, Position};
use crate::memory::Memory;
use crate::node::Node;
use crate::record::{Body, Effect, Moved, Record, Repeatable};
use crate::scan::{Item, Scan};
use crate::segment::{
    FORMAT_VERSION, SEGMENT_HEAD_BYTES, Segment, SegmentHeader, SegmentTable, parse_segment_name,
    segment_name,
};
use crate::snapshot::SnapshotState;
use crate::snapshot::{self, KEPT, Snapshot, decode_snapshot, parse_snapshot_name, read_file, snapshot_name};
use crate::space::{SNAPSHOT_BEGUN, SNAPSHOT_RESERVE};
use crate::superblock::{self, Superblock};
use crate::{Opened, Options, recall, repair, unproven};

/// A segment that is replayed.
struct Part {
    id: u32,
    bytes: Bytes,
    from: usize,
}

/// The log from the snapshot's position on.
#[derive(Default)]
struct Replay {
    parts: Vec<Part>,
    /// The items of the parts, in order: an index into `parts`, and the item.
    items: Vec<(usize, Item)>,
    /// The end of the log: an index into `parts`, and an offset in bytes.
    end: Option<(usize, usize)>,
    /// The number of the next record.
    sequence: u64,
    /// The last record that is known to have been synced.
    synced: u64,
    /// The last record that a segment without a header says was synced, and that segment's file.
    headless: Option<(u64, String)>,
}

/// Opens the store on a disk, making one if the disk is empty.
pub fn open(disk: Arc<dyn Disk>, options: Options) -> Result<(Engine, Opened), StoreError> {
    let io = |action: &str, error: std::io::Error| {
        StoreError::new(ErrorKind::Io, format!("cannot {action}: {error}"))
    };
    let files = disk.list().map_err(|error| io("list the store's files", error))?;
    let superblock = Superblock::load_or_create(&*disk, &files)?;
    let mut opened = Opened::default();
    let mut segments: Vec<(u32, u64)> = Vec::new();
    let mut numbers: Vec<u64> = Vec::new();
    for (name, size) in &files {
        if let Some(id) = parse_segment_name(name) {
            segments.push((id, *size));
        } else if let Some(number) = parse_snapshot_name(name) {
            numbers.push(number);
        } else if superblock::is_temporary(name) || snapshot::is_temporary(name) {
            // What was not finished. Should it stay, the next opening finds it again.
            let _ = disk.remove(name);
        } else if name == SNAPSHOT_BEGUN {
            // Nor was this, but its space is kept for the next one.
            let _ = disk.rename(name, SNAPSHOT_RESERVE);
        }
    }
    segments.sort_unstable();
    numbers.sort_unstable();
    let (mut loaded, mut state, damages) = load_snapshot(&*disk, &numbers, &superblock, &mut opened)?;
    unproven::rename_snapshots(&*disk, &numbers, &mut state)?;
    // A crash may have undone the last renaming of one that was not kept any more.
    let superfluous = state.snapshots.len().saturating_sub(KEPT);
    state.snapshots.drain(..superfluous);
    let header = loaded.as_ref().map(|snapshot| snapshot.header);
    let kept = loaded.as_mut().map(|snapshot| std::mem::take(&mut snapshot.writes)).unwrap_or_default();
    let start = header.map_or(Position { segment: 0, offset: 0 }, |header| header.position);

    let table = SegmentTable::default();
    for (id, size) in &segments {
        let name = segment_name(*id);
        let file = disk.open(&name).map_err(|error| io(&format!("open {}", disk.describe(&name)), error))?;
        let segment = Segment::new(*id, binding(&*file, *id, &superblock), *size, file);
        segment.sealed.store(true, Ordering::Relaxed);
        segment.end.store(*size, Ordering::Relaxed);
        table.insert(Arc::new(segment));
    }
    if loaded.is_none() && !damages.is_empty() {
        check_beginning(&*disk, &table, &damages)?;
    }
    let mut replay = read_log(&*disk, &table, &segments, start, &superblock)?;
    replay.sequence = header.map_or(1, |header| header.sequence);
    find_end(&*disk, &mut replay, &mut opened)?;
    replay.rewrite_unproven(&*disk, &table, start, &superblock)?;

    let tail = match replay.end {
        Some((index, end)) => table.get(replay.parts[index].id).map(|segment| (segment, end as u64)),
        None if start.segment > 0 => table.get(start.segment).map(|segment| (segment, start.offset)),
        None => None,
    };
    let (committer, durability) = (options.committer, options.durability);
    let log = Log::new(superblock.store, committer, durability, tail.clone(), replay.sequence);
    log.count_replayed(opened.replayed_bytes);
    let next_segment = segments.last().map_or(0, |(id, _)| *id).max(start.segment) + 1;
    let engine = Engine::new(Arc::clone(&disk), options, superblock.store, None, log, table);
    engine.space.pool.lock().next_segment = next_segment;
    engine.count_snapshots();
    // A file below the snapshot's position that it does not know was kept to be used again.
    let spare: Vec<u32> = loaded
        .iter()
        .flat_map(|snapshot| {
            let below = segments.iter().map(|(id, _)| *id).filter(|id| *id < start.segment);
            below.filter(|id| snapshot.segment_ends.iter().all(|(known, _)| known != id))
        })
        .collect();
    if let Some(snapshot) = loaded {
        engine.load(snapshot.segment_ends, snapshot.objects);
    }
    if let Some(header) = &header {
        engine.log.set_tokens(header.tokens);
        engine.log.set_floor(header.floor);
        *engine.window.lock() = recall::window(&engine.table, header, kept, engine.options.window_writes());
    }
    for (part, item) in replay.items {
        if let Item::Record { at, record, .. } = item {
            engine.replay(replay.parts[part].id, at, record);
        }
    }
    let is_lost = !damages.is_empty() || files.iter().any(|(name, _)| repair::is_snapshot_set_aside(name));
    if header.is_none() && is_lost {
        // A snapshot that is lost may have counted from where a repair started over.
        let tokens = recall::fresh_position(engine.log.tokens());
        engine.log.set_tokens(tokens);
        *engine.window.lock() = Window::new(engine.options.window_writes(), tokens);
    }
    for (index, part) in replay.parts.iter().enumerate() {
        if let Some(segment) = engine.table.get(part.id) {
            let end = match replay.end {
                Some((last, end)) if last == index => end,
                _ => part.bytes.len(),
            };
            segment.end.store(end as u64, Ordering::Relaxed);
        }
    }
    let tail = tail.map_or(0, |(segment, _)| segment.id);
    engine.settle_after_replay(tail, &spare, &state, &files, &mut opened)?;
    engine.maintenance.counters.snapshots.store(state.snapshots.len() as u64, Ordering::Relaxed);
    engine.maintenance.set_pinned(&state);
    *engine.maintenance.work.lock() = state;
    Ok((engine, opened))
}

fn read_header(file: &dyn DiskFile) -> Option<SegmentHeader> {
    let mut bytes = [0; SEGMENT_HEAD_BYTES as usize];
    file.read_at(0, &mut bytes).ok().and_then(|()| SegmentHeader::decode(&bytes))
}

/// Returns the binding of a segment's records. A segment without a header was never used, or its header is torn off.
fn binding(file: &dyn DiskFile, id: u32, superblock: &Superblock) -> Binding {
    let own = read_header(file).filter(|header| header.id == id && header.store == superblock.store);
    let format = own.map_or(FORMAT_VERSION, |header| header.format);
    Binding::new(format, &superblock.store, id)
}

/// Returns the newest sound snapshot, the list of snapshots, and the damage in others.
fn load_snapshot(
    disk: &dyn Disk,
    numbers: &[u64],
    superblock: &Superblock,
    opened: &mut Opened,
) -> Result<(Option<Snapshot>, SnapshotState, Vec<String>), StoreError> {
    let mut state = SnapshotState::default();
    let mut chosen: Option<(u64, Snapshot)> = None;
    let mut damages = Vec::new();
    for number in numbers.iter().rev() {
        let name = snapshot_name(*number);
        let path = disk.describe(&name);
        let bytes = read_file(disk, &name).map_err(|error| {
            let text = format!("cannot read {path}: {error}");
            StoreError::new(ErrorKind::Io, text).with_place(&path, 0).with_source(error)
        })?;
        match decode_snapshot(bytes, &superblock.store) {
            Ok(snapshot) if snapshot.header.format > FORMAT_VERSION => {
                return Err(newer(&path, snapshot.header.format));
            }
            Ok(snapshot) if snapshot.header.store != superblock.store => {
                let text = format!("{path} belongs to another store; take it out of this folder");
                return Err(StoreError::new(ErrorKind::Corrupt, text));
            }
            Ok(snapshot) => {
                // Of an older one only the position is of interest: whether it is kept, and what it pins.
                state.snapshots.insert(0, (*number, snapshot.header.position));
                if chosen.is_none() {
                    chosen = Some((*number, snapshot));
                }
            }
            Err(damage) => {
                tracing::warn!(
                    "{path} is damaged at offset {}; another snapshot or the log replaces it",
                    damage.offset
                );
                damages.push(format!("{path} at offset {}", damage.offset));
                opened.damaged_snapshots += 1;
            }
        }
    }
    Ok((chosen.map(|(_, snapshot)| snapshot), state, damages))
}

/// Checks that the log is complete from its very beginning, as it must be where no snapshot is sound;
/// [`ErrorKind::Corrupt`] if it is not.
fn check_beginning(disk: &dyn Disk, table: &SegmentTable, damages: &[String]) -> Result<(), StoreError> {
    let first = table.all().into_iter().find_map(|segment| {
        let header = read_header(&*segment.file)?;
        (header.id == segment.id).then_some((segment, header))
    });
    let why = match first {
        Some((_, header)) if header.predecessor == 0 => return Ok(()),
        Some((segment, header)) => format!(
            "{}, its oldest remaining segment, continues from segment {}",
            disk.describe(&segment.name),
            header.predecessor
        ),
        None => "no segment of it has a header".to_string(),
    };
    let text = format!(
        "every snapshot of the index is damaged ({}), and the log cannot be replayed from its beginning: {why}",
        damages.join(", ")
    );
    Err(StoreError::new(ErrorKind::Corrupt, text))
}

pub(crate) fn newer(path: &str, format: u32) -> StoreError {
    let text = format!(
        "{path} is of format {format}, and this program knows formats up to {FORMAT_VERSION}; use a newer program"
    );
    StoreError::new(ErrorKind::Unsupported, text)
}

/// Reads the log from a position on, and finds its end.
fn read_log(
    disk: &dyn Disk,
    table: &SegmentTable,
    segments: &[(u32, u64)],
    start: Position,
    superblock: &Superblock,
) -> Result<Replay, StoreError> {
    let mut replay = Replay::default();
    let read = |segment: &Segment| {
        let mut bytes = vec![0; segment.capacity as usize];
        segment.file.read_at(0, &mut bytes).map(|()| Bytes::from(bytes)).map_err(|error| {
            let path = disk.describe(&segment.name);
            let text = format!("cannot read {path}: {error}");
            StoreError::new(ErrorKind::Io, text).with_place(path, 0).with_source(error)
        })
    };
    for (id, _) in segments.iter().filter(|(id, _)| *id >= start.segment) {
        let Some(segment) = table.get(*id) else { continue };
        let path = disk.describe(&segment.name);
        let bytes = read(&segment)?;
        let from = if *id == start.segment { start.offset as usize } else { SEGMENT_HEAD_BYTES as usize };
        if *id > start.segment {
            // A segment without a header of its own was made ready and never used, or a crash tore its header off with
            // what was first written to it. Records in it that were known to be synced say that it is damaged instead.
            let header = SegmentHeader::decode(&bytes);
            if let Some(header) = &header
                && header.store != superblock.store
            {
                let text =
                    format!("{path} belongs to another store than the superblock; nothing was changed");
                return Err(StoreError::new(ErrorKind::Corrupt, text));
            }
            let Some(header) = header.filter(|header| header.id == *id) else {
                let synced = synced_by(Scan::new(bytes, segment.binding, SEGMENT_HEAD_BYTES as usize));
                if synced > replay.headless.as_ref().map_or(0, |(most, _)| *most) {
                    replay.headless = Some((synced, path));
                }
                continue;
            };
            if header.format > FORMAT_VERSION {
                return Err(newer(&path, header.format));
            }
            // A segment that the log left again when an earlier opening dropped its torn end may still be here: the
            // newer one goes on from where that opening cut the log.
            while replay.parts.last().is_some_and(|last| last.id > header.predecessor) {
                replay.parts.pop();
            }
            let known = replay.parts.last().map_or(start.segment, |last| last.id);
            if header.predecessor != known {
                // If its header was torn off, so was what stands in it; the records there will tell.
                let Some(before) = table.get(header.predecessor) else {
                    let missing = disk.describe(&segment_name(header.predecessor));
                    let text = format!("{missing} is missing, and {path} continues from it");
                    return Err(StoreError::new(ErrorKind::Corrupt, text));
                };
                let from = SEGMENT_HEAD_BYTES as usize;
                replay.parts.push(Part { id: before.id, bytes: read(&before)?, from });
            }
            if let Some(before) = replay.parts.last_mut() {
                before.bytes.truncate(header.predecessor_end as usize);
            }
        }
        replay.parts.push(Part { id: *id, bytes, from });
    }
    if start.segment > 0 && replay.parts.first().is_none_or(|part| part.id != start.segment) {
        let path = disk.describe(&segment_name(start.segment));
        let text = format!("{path}, from which the log has to be replayed, is missing");
        return Err(StoreError::new(ErrorKind::Corrupt, text));
    }
    for (index, part) in replay.parts.iter().enumerate() {
        let Some(segment) = table.get(part.id) else { continue };
        let scan = Scan::new(part.bytes.clone(), segment.binding, part.from);
        replay.items.extend(scan.map(|item| (index, item)));
    }
    Ok(replay)
}

/// Returns the last record that any of the items says was synced; 0 if none does.
fn synced_by<T: std::borrow::Borrow<Item>>(items: impl Iterator<Item = T>) -> u64 {
    let synced = items.map(|item| match item.borrow() {
        Item::Record { record, .. } => record.synced,
        Item::Gap { .. } => 0,
    });
    synced.max().unwrap_or(0)
}

/// Finds the end of the log: before the first record that is missing or unsound and not known to have been synced.
/// Everything behind it is taken out of the replay.
fn find_end(disk: &dyn Disk, replay: &mut Replay, opened: &mut Opened) -> Result<(), StoreError> {
    let synced = synced_by(replay.items.iter().map(|(_, item)| item));
    // A snapshot is written when everything before its position is synced.
    let synced = synced.max(replay.sequence - 1);
    replay.synced = synced;
    replay.end = replay.parts.first().map(|part| (0, part.from));
    let mut sound_items = 0;
    for (index, (part, item)) in replay.items.iter().enumerate() {
        // Bytes that belong to no record are unused, or torn, or damaged: the next record's number will tell.
        let Item::Record { at, record, healed } = item else { continue };
        if record.sequence != replay.sequence {
            break;
        }
        if record.sequence > synced && !payload_is_sound(&replay.parts[*part].bytes, *at, record) {
            break;
        }
        opened.replayed_records += 1;
        opened.replayed_bytes += u64::from(record.record_bytes);
        opened.healed_records += u64::from(*healed);
        replay.end = Some((*part, at + record.record_bytes as usize));
        replay.sequence = record.sequence + 1;
        sound_items = index + 1;
    }
    if replay.sequence <= synced {
        let (part, offset) = replay.end.unwrap_or((0, 0));
        let path = disk.describe(&segment_name(replay.parts[part].id));
        let text = format!(
            "{path} is damaged at offset {offset} or behind: record {} of the log is missing there, and its copy too",
            replay.sequence
        );
        return Err(StoreError::new(ErrorKind::Corrupt, text).with_place(path, offset as u64));
    }
    // Without this the records of a segment whose header the device lost would be taken for torn, and removed.
    if let Some((synced, path)) = &replay.headless
        && replay.sequence <= *synced
    {
        let text = format!(
            "{path} has lost its header, and holds records of the log from {} on that were synced",
            replay.sequence
        );
        return Err(StoreError::new(ErrorKind::Corrupt, text).with_place(path, 0));
    }
    let dropped = replay.items.drain(sound_items..);
    opened.torn_records = dropped.filter(|(_, item)| matches!(item, Item::Record { .. })).count() as u64;
    Ok(())
}

impl Replay {
    /// Makes the replayed log durable: writes again everything that is not proven to be on the device. `start` is the
    /// position at which replay begins.
    fn rewrite_unproven(
        &self,
        disk: &dyn Disk,
        table: &SegmentTable,
        start: Position,
        superblock: &Superblock,
    ) -> Result<(), StoreError> {
        let Some((last, last_end)) = self.end else { return Ok(()) };
        let mut before = start;
        for (index, part) in self.parts.iter().enumerate().take(last + 1) {
            let end = if index == last { last_end } else { part.bytes.len() };
            // The end of what is proven in this segment. Where that is nothing, its header is not proven either.
            let mut from = if part.id == start.segment { part.from } else { 0 };
            for (_, item) in self.items.iter().filter(|(part, _)| *part == index) {
                if let Item::Record { at, record, .. } = item
                    && record.sequence <= self.synced
                {
                    from = at + record.record_bytes as usize;
                }
            }
            let Some(segment) = table.get(part.id) else { continue };
            // A segment that was cut short ends before the snapshot's position; what was lost of it is for its readers to find.
            let there = part.bytes.len();
            let mut bytes = vec![part.bytes.slice(from.min(end).min(there)..end.min(there))];
            if from == 0 && SegmentHeader::decode(&part.bytes).is_none_or(|header| header.id != part.id) {
                // It was torn off, and only the header of the next segment tells that this one is part of the log. That
                // segment may be dropped.
                let header = SegmentHeader {
                    store: superblock.store,
                    id: part.id,
                    format: segment.binding.format(),
                    predecessor: before.segment,
                    predecessor_end: before.offset,
                };
                bytes = vec![header.encode(), part.bytes.slice((SEGMENT_HEAD_BYTES as usize).min(end)..end)];
            }
            unproven::rewrite(disk, &segment, from as u64, &bytes)?;
            before = Position { segment: part.id, offset: end as u64 };
        }
        Ok(())
    }
}

pub(crate) fn payload_is_sound(bytes: &Bytes, at: usize, record: &Record) -> bool {
    let mut offset = at + record.head_bytes as usize;
    let mut sound = |len: u32, crc: u32| {
        let chunk = bytes.get(offset..offset + len as usize);
        offset += len as usize;
        chunk.is_some_and(|chunk| crc32c(chunk) == crc)
    };
    match &record.body {
        Body::Transaction { effects, .. } => effects.iter().all(|effect| match effect {
            Effect::Chunk { len, crc, .. } => *len == 0 || sound(*len, *crc),
            _ => true,
        }),
        Body::Moves(moves) => moves.iter().all(|moved| sound(moved.len, moved.crc)),
        Body::Tokens { .. } | Body::Floor(_) | Body::Mark => true,
    }
}

impl Engine {
    /// Takes over the contents of a snapshot.
    pub(crate) fn load(&self, segment_ends: Vec<(u32, u64)>, objects: Vec<(ObjectId, Node)>) {
        for (id, end) in segment_ends {
            if let Some(segment) = self.table.get(id) {
                segment.end.store(end.min(segment.capacity), Ordering::Relaxed);
            }
        }
        for (id, node) in objects {
            self.shard(&id).lock().insert(&id, node);
        }
    }

    /// Applies a record of the log to the index.
    pub(crate) fn replay(&self, segment: u32, at: usize, record: Record) {
        let payload_offset = at as u32 + record.head_bytes;
        match record.body {
            Body::Transaction { object, version, effects, repeatable } => {
                if let Some(Repeatable { token, existed }) = repeatable {
                    let position = self.log.tokens();
                    self.log.set_tokens(position + 1);
                    self.window.lock().insert(position, &token, version, existed);
                }
                let mut shard = self.shard(&object).lock();
                let node = shard.get_or_default(&object);
                // As it was found when the record was written.
                if !object.is_remembered() {
                    node.rise(self.log.floor(), 0);
                }
                if node.version < version {
                    // Live bytes are counted when all is replayed.
                    node.apply(
                        &effects,
                        version,
                        &mut Logged { segment, offset: payload_offset, changes: None },
                    );
                }
            }
            Body::Moves(moves) => {
                let mut offset = payload_offset;
                for moved in moves {
                    let Moved { len, crc, .. } = moved;
                    self.repoint(&moved, Chunk { segment, offset, len, crc }, false);
                    offset += len;
                }
            }
            Body::Tokens { first, writes } => self.window.lock().recover(first, &writes),
            Body::Floor(floor) => self.log.set_floor(floor.max(self.log.floor())),
            Body::Mark => {}
        }
    }

    /// Counts live bytes, collects names, and removes the segments that are not needed.
    fn settle_after_replay(
        &self,
        tail: u32,
        spare: &[u32],
        state: &SnapshotState,
        files: &[(String, u64)],
        opened: &mut Opened,
    ) -> Result<(), StoreError> {
        // Nothing was counted during the replay, which may pass through references to segments that are gone.
        let (mut footprint, mut version_max) = (Footprint::default(), 0);
        let mut names = BTreeSet::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.find_removed(self.log.floor());
            for (name, node) in shard.iter() {
                if node.exists {
                    names.insert(name.clone());
                }
                footprint += node.footprint(name.as_bytes());
                version_max = version_max.max(node.version);
                for entry in node.forks.values().flat_map(|fork| fork.map.iter()) {
                    let Place::Data { chunk, .. } = entry.place() else { continue };
                    if self.table.get(chunk.segment).is_none() {
                        let path = self.disk.describe(&segment_name(chunk.segment));
                        let text = format!("{path} is missing, and object {name} has data in it");
                        return Err(StoreError::new(ErrorKind::Corrupt, text));
                    }
                    self.table.add_live(chunk.segment, entry.len() as i64);
                    opened.extents += 1;
                }
            }
        }
        opened.objects = names.len() as u64;
        *self.names.write() = names;
        self.space.index.reset(footprint, version_max);
        let mut pool = self.space.pool.lock();
        // What a crash tore off goes from its end, so that no remainder goes on from what is gone. Files are kept in reserve
        // rather than removed: on a full volume their space would be somebody else's. Their headers are cleared first,
        // should a crash find them under their old names.
        let mut torn = false;
        for segment in self.table.all().into_iter().rev().filter(|segment| segment.id > tail) {
            self.table.remove(segment.id);
            unproven::clear_header(&*self.disk, &segment)?;
            self.discard(&mut pool, segment);
            torn = true;
        }
        if torn {
            let io = |error| StoreError::new(ErrorKind::Io, format!("cannot remove torn segments: {error}"));
            self.sync_names(0).map_err(io)?;
        }
        for segment in self.table.all() {
            let pinned = state.pins(segment.id) && segment.id < tail && !spare.contains(&segment.id);
            if segment.live_bytes() == 0 && segment.id != tail && !pinned {
                self.table.remove(segment.id);
                self.discard(&mut pool, segment);
            }
        }
        self.adopt_reserve(&mut pool, files);
        Ok(())
    }
}

/// Creates a volatile store.
pub fn in_memory(options: Options) -> Engine {
    let log = Log::new([0; 16], options.committer, options.durability, None, 1);
    let (disk, table) = (Arc::new(NoDisk), SegmentTable::default());
    let mut engine = Engine::new(disk, options, [0; 16], Some(Memory::default()), log, table);
    // Without random numbers, repetitions are not recognised, and nothing else is lost.
    engine.window_id = superblock::identity().ok();
    engine
}
