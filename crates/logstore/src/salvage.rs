//! Rebuilding the index of a store that cannot be opened, from the sound parts of its snapshots and its log.
//!
//! The objects that are whole in a snapshot are taken, from the newest one that has them, and all remaining records
//! are applied on top. The losses are reported, object by object. Nothing is invented: an object whose earlier
//! records are gone with the only snapshot that held it is removed rather than shown with holes where it had bytes, and
//! reads of data in a missing segment fail.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use nacre_object::limit::FLOOR_MAX;
use nacre_object::window::Window;
use nacre_object::{ErrorKind, ObjectId, StoreError};

use crate::Options;
use crate::binding::Binding;
use crate::check::read_device;
use crate::disk::Disk;
use crate::engine::Engine;
use crate::extent_map::Place;
use crate::fences::FencedSessions;
use crate::log::Log;
use crate::node::Node;
use crate::recall;
use crate::record::{self, Body, Found, Record};
use crate::recovery::payload_is_sound;
use crate::remains::salvage_snapshot;
use crate::repair::{Survey, SurveyedSegment, set_aside};
use crate::scan::{Item, Scan};
use crate::scrub::LostPart;
use crate::segment::{
    FORMAT_VERSION, SEGMENT_HEAD_BYTES, Segment, SegmentHeader, SegmentTable, segment_name,
};
use crate::shard::Shard;
use crate::snapshot::{SnapshotHeader, snapshot_name};
use crate::sync::Mutex;

/// The name in reports for objects whose names are lost too.
const UNKNOWN: &str = "(unknown, or none)";

/// A record that is left.
struct RemainingRecord {
    segment: u32,
    at: usize,
    record: Record,
}

/// The log as far as it is left.
#[derive(Default)]
struct LeftLog {
    records: Vec<RemainingRecord>,
    /// The end of the last of the records: a segment, and an offset in bytes.
    end: Option<(u32, u64)>,
    /// Gaps in the numbers of the records: the first and the last number of each, with the objects that the bytes there
    /// still name.
    gaps: Vec<(u64, u64, BTreeSet<ObjectId>)>,
}

/// The objects of all snapshots.
#[derive(Default)]
struct Base {
    objects: BTreeMap<ObjectId, Node>,
    segment_ends: Vec<(u32, u64)>,
    /// True if one of the snapshots is whole: then an object that is in none was made later.
    is_whole: bool,
    /// The number of the first record of the log that is needed.
    sequence: u64,
    /// The header of the newest snapshot.
    newest: Option<SnapshotHeader>,
    /// The greatest floor of any snapshot.
    floor: u64,
    broken: BTreeSet<ObjectId>,
}

/// Builds the index and writes it down as the only snapshot. Files of snapshots that are still there are set aside.
pub fn rebuild(
    disk: &Arc<dyn Disk>,
    options: &Options,
    survey: Survey,
    snapshots: Vec<(u64, Bytes)>,
    repaired: &mut Vec<String>,
    lost: &mut Vec<LostPart>,
) -> Result<(), StoreError> {
    let store = survey.superblock.store;
    let mut base = gather(&snapshots, &store);
    let log = read_log(&**disk, &survey)?;
    let table = SegmentTable::default();
    let mut last = 0;
    for found in survey.segments {
        found.segment.sealed.store(true, Ordering::Relaxed);
        found.segment.end.store(found.end.unwrap_or(found.segment.capacity), Ordering::Relaxed);
        last = last.max(found.segment.id);
        table.insert(Arc::new(found.segment));
    }
    if let Some((id, end)) = log.end
        && let Some(segment) = table.get(id)
    {
        segment.end.store(end, Ordering::Relaxed);
    }
    let next = log.records.last().map_or(1, |left| left.record.sequence + 1);
    let sequence = base.newest.map_or(next, |newest| next.max(newest.sequence));
    // A position in segment 0 is that of a snapshot from before the first segment.
    if let Some(newest) = base.newest
        && newest.position.segment > 0
        && table.get(newest.position.segment).is_none()
    {
        let path = disk.describe(&segment_name(newest.position.segment));
        let what =
            format!("what record {} of the log and later ones changed: {path} is missing", newest.sequence);
        lost.push(LostPart { object: UNKNOWN.into(), what });
    }
    let is_complete = base.is_whole || log.records.first().is_none_or(|left| left.record.sequence == 1);
    for (from, to, objects) in &log.gaps {
        if *to < base.sequence {
            continue;
        }
        let records = if from == to { format!("record {from}") } else { format!("records {from} to {to}") };
        let what = format!("what {records} of the log changed");
        match objects.is_empty() {
            true => lost.push(LostPart { object: UNKNOWN.into(), what }),
            false => {
                lost.extend(objects.iter().map(|id| LostPart { object: id.to_string(), what: what.clone() }))
            }
        }
    }

    let nowhere = Log::new(store, options.committer, options.durability, None, sequence);
    let mut engine = Engine::new(Arc::clone(disk), options.clone(), store, None, nowhere, table);
    let known: BTreeSet<ObjectId> = base.objects.keys().cloned().collect();
    engine.load(
        std::mem::take(&mut base.segment_ends),
        std::mem::take(&mut base.objects).into_iter().collect(),
    );
    engine.log.set_floor(base.floor);
    let last_gap = log.gaps.last().map_or(0, |(_, to, _)| *to);
    let mut headless: BTreeMap<ObjectId, u64> = BTreeMap::new();
    for left in log.records {
        if let Body::Transaction { object, version, repeatable, .. } = &left.record.body
            && !is_complete
            && !known.contains(object)
            && !engine.has(object)
        {
            // The first version that is left of an object that no snapshot has, or one that may not be the last. Above a floor
            // only the record can tell that it made the object.
            let is_created = *version == 1 || repeatable.is_some_and(|repeatable| !repeatable.existed);
            if !is_created || left.record.sequence <= last_gap {
                headless.insert(crate::engine::owned(object), *version);
            } else {
                engine.shard(object).lock().get_or_default(object).rise(*version - 1, 0);
            }
        }
        engine.replay(left.segment, left.at, left.record);
    }
    for (object, version) in &headless {
        engine.bury(object);
        let what = format!("all of it: nothing is left of what it was before its version {version}");
        lost.push(LostPart { object: object.to_string(), what });
    }
    for object in base.broken.iter().filter(|object| !known.contains(*object) && !engine.has(object)) {
        let what = "all of it: its part of the index is damaged, and the log has nothing of it".into();
        lost.push(LostPart { object: object.to_string(), what });
    }
    if !is_complete {
        let what =
            "objects that a damaged piece of the index named, and the log that is left does not".into();
        lost.push(LostPart { object: UNKNOWN.into(), what });
    }
    let dangling = engine.dangling();
    for (id, end) in &dangling {
        // Reads of it fail their checksums, and the scrub that follows says what is lost.
        engine.table.insert(add_segment(&**disk, *id, *end, header(&store, *id, log.end))?);
        let path = disk.describe(&segment_name(*id));
        repaired.push(format!("{path}, which is missing, was replaced by one without data"));
        last = last.max(*id);
    }
    // The log goes on behind everything that there is: nothing of that is ever replayed again.
    last += 1;
    let segment =
        add_segment(&**disk, last, u64::from(options.segment_bytes), header(&store, last, log.end))?;
    engine.table.insert(Arc::clone(&segment));
    let tail = Some((segment, SEGMENT_HEAD_BYTES));
    let floor = engine.floor_to_be_safe();
    engine.log = Arc::new(Log::new(store, options.committer, options.durability, tail, sequence));
    engine.log.set_floor(floor);
    // Records that are lost may have had tokens, so the window starts over.
    let tokens = recall::fresh_position(base.newest.map_or(0, |newest| newest.tokens));
    engine.log.set_tokens(tokens);
    *engine.window.lock() = Window::new(engine.options.window_writes(), tokens);
    for (number, _) in &snapshots {
        let name = snapshot_name(*number);
        if disk.list().is_ok_and(|files| files.iter().any(|(file, _)| *file == name)) {
            set_aside(&**disk, &name, repaired)?;
        }
    }
    let engine = Arc::new(engine);
    engine.space.pool.lock().next_segment = last + 1;
    engine.snapshot(&mut engine.maintenance.work.lock())
}

/// Returns the complete objects of all snapshots, each from the newest that has it.
fn gather(snapshots: &[(u64, Bytes)], store: &[u8; 16]) -> Base {
    let mut base = Base { sequence: 1, ..Base::default() };
    for (_, bytes) in snapshots.iter().rev() {
        let remains = salvage_snapshot(bytes, store);
        base.sequence = remains.header.map_or(base.sequence, |header| header.sequence);
        base.newest = base.newest.or(remains.header);
        base.floor = remains.header.map_or(base.floor, |header| header.floor.max(base.floor));
        base.segment_ends.extend(remains.segment_ends);
        base.broken.extend(remains.broken);
        for (id, node) in remains.objects {
            base.objects.entry(id).or_insert(node);
        }
        // Older ones have nothing that is missing here.
        if remains.whole {
            base.is_whole = true;
            break;
        }
    }
    base
}

/// Reads all records that are left, in the order of the log.
fn read_log(disk: &dyn Disk, survey: &Survey) -> Result<LeftLog, StoreError> {
    let mut log = LeftLog::default();
    let mut synced = 0;
    let mut named: Vec<(usize, ObjectId)> = Vec::new();
    let mut chain: Vec<&SurveyedSegment> = Vec::new();
    for found in &survey.segments {
        // What an opening cut off stands between a segment and its predecessor.
        if let Some(header) = found.header {
            chain.retain(|before| before.segment.id <= header.predecessor);
        }
        chain.push(found);
    }
    // One segment at a time is in memory; of those before only the heads of their records.
    let read = |found: &SurveyedSegment| {
        let segment = &found.segment;
        let bytes = read_device(&*segment.file, found.end.unwrap_or(segment.capacity));
        bytes.map(|(bytes, _)| bytes).map_err(|error| {
            let path = disk.describe(&segment.name);
            StoreError::new(ErrorKind::Io, format!("cannot read {path}: {error}"))
        })
    };
    for found in &chain {
        let segment = &found.segment;
        let bytes = read(found)?;
        for item in Scan::new(bytes.clone(), segment.binding, SEGMENT_HEAD_BYTES as usize) {
            match item {
                Item::Record { at, record, healed } => {
                    synced = synced.max(record.synced);
                    let record = detached(&bytes, segment.binding, at, record, healed);
                    log.records.push(RemainingRecord { segment: segment.id, at, record });
                }
                Item::Gap { at, len } => {
                    let object = record::damaged_object(&bytes[at..at + len]);
                    named.extend(object.map(|object| (log.records.len(), object)));
                }
            }
        }
    }
    // What is behind the last record that is known to have been synced may be torn, as at any opening.
    let mut next = None;
    let mut kept = 0;
    let mut loaded: Option<(u32, Bytes)> = None;
    for (index, left) in log.records.iter().enumerate() {
        let record = &left.record;
        let follows = next.is_none_or(|next| next == record.sequence || next <= synced);
        if record.sequence > synced {
            if loaded.as_ref().is_none_or(|(segment, _)| *segment != left.segment) {
                let found = chain.iter().find(|found| found.segment.id == left.segment);
                loaded = found.map(|found| read(found)).transpose()?.map(|bytes| (left.segment, bytes));
            }
            let is_sound = loaded.as_ref().is_some_and(|(_, bytes)| payload_is_sound(bytes, left.at, record));
            if !(follows && is_sound) {
                break;
            }
        }
        if let Some(next) = next
            && next < record.sequence
        {
            let objects = named.iter().filter(|(at, _)| *at == index).map(|(_, object)| object.clone());
            log.gaps.push((next, record.sequence - 1, objects.collect()));
        }
        next = Some(record.sequence + 1);
        log.end = Some((left.segment, left.at as u64 + u64::from(record.record_bytes)));
        kept = index + 1;
    }
    if let Some(next) = next
        && next <= synced
    {
        log.gaps.push((next, synced, named.into_iter().map(|(_, object)| object).collect()));
    }
    log.records.truncate(kept);
    Ok(log)
}

/// Returns a record that shares no memory with its segment: decoded again from a copy of its head, or of its tail if
/// that was read instead.
fn detached(bytes: &Bytes, binding: Binding, at: usize, record: Record, healed: bool) -> Record {
    let head_bytes = record.head_bytes as usize;
    let from = if healed { at + record.record_bytes as usize - head_bytes } else { at };
    let copy = Bytes::copy_from_slice(&bytes[from..from + head_bytes]);
    let Some(Found::Head(copy) | Found::Tail(copy, _)) = record::decode(&copy, binding, from as u64) else {
        debug_assert!(false, "what was sound in its segment is sound in a copy");
        return record;
    };
    copy
}

fn header(store: &[u8; 16], id: u32, end: Option<(u32, u64)>) -> SegmentHeader {
    let (predecessor, predecessor_end) = end.unwrap_or_default();
    SegmentHeader { store: *store, id, format: FORMAT_VERSION, predecessor, predecessor_end }
}

/// Creates a segment that has a header and nothing else.
fn add_segment(
    disk: &dyn Disk,
    id: u32,
    bytes: u64,
    header: SegmentHeader,
) -> Result<Arc<Segment>, StoreError> {
    let name = segment_name(id);
    let write = disk.create(&name, bytes).and_then(|file| {
        file.write_at(0, &[header.encode()])?;
        file.sync()?;
        disk.sync_names()?;
        Ok(file)
    });
    let file = write.map_err(|error| {
        StoreError::new(ErrorKind::Io, format!("cannot create {}: {error}", disk.describe(&name)))
    })?;
    let segment = Segment::new(id, Binding::new(FORMAT_VERSION, &header.store, id), bytes, file);
    segment.sealed.store(true, Ordering::Relaxed);
    Ok(Arc::new(segment))
}

impl Engine {
    /// Returns whether anything is known of an object.
    fn has(&self, object: &ObjectId) -> bool {
        self.shard(object).lock().contains_key(object)
    }

    /// Returns a floor for a store that may have lost a record of it: if it ever forgot anything, the greatest version of any
    /// object of which something is left.
    fn floor_to_be_safe(&self) -> u64 {
        let floor = self.log.floor();
        let versions = |shard: &Mutex<Shard>| {
            let shard = shard.lock();
            shard.values().map(|node| node.version).filter(|version| *version <= FLOOR_MAX).max()
        };
        let greatest = self.shards.iter().filter_map(versions).max().unwrap_or(0);
        if floor == 0 { 0 } else { floor.max(greatest) }
    }

    /// Removes everything about an object except its version and its fences.
    fn bury(&self, object: &ObjectId) {
        let mut shard = self.shard(object).lock();
        if let Some(node) = shard.get_mut(object) {
            let (version, fences) = (node.version, node.fences.clone());
            *node = Node { version, tombstone_version: version, ..Node::default() };
            if fences != FencedSessions::none() {
                node.fences = fences;
            }
        }
    }

    /// Returns the missing segments that the index refers to, with the least lengths in bytes that they must have had.
    fn dangling(&self) -> BTreeMap<u32, u64> {
        let mut missing: BTreeMap<u32, u64> = BTreeMap::new();
        for shard in &self.shards {
            for node in shard.lock().values() {
                for fork in node.forks.values() {
                    for entry in fork.map.iter() {
                        let Place::Data { chunk, .. } = entry.place() else { continue };
                        if self.table.get(chunk.segment).is_some() {
                            continue;
                        }
                        let end = missing.entry(chunk.segment).or_default();
                        *end = (*end).max(u64::from(chunk.offset) + u64::from(chunk.len));
                    }
                }
            }
        }
        missing
    }
}
