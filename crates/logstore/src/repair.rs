//! Checks and repairs of the files of a store that is not open, whether or not it can be opened.
//!
//! A repair does, in this order, what a person could do with `docs/format.md`: it replaces files that cannot be read whole
//! by copies of what can be read; it rewrites the identity and headers from what is left of them; it restores a
//! damaged head from its tail, and a damaged tail from its head. If the store then opens, the repair is complete. If not,
//! it builds the index from the sound parts of the snapshots and of the log ([`crate::salvage`]). Files that are no longer
//! usable are set aside under another name; nothing is removed.

use std::sync::Arc;

use bytes::Bytes;
use nacre_object::{ErrorKind, StoreError};

use crate::binding::Binding;
use crate::check::{self, read_device};
use crate::disk::{Disk, DiskFile};
use crate::record::Record;
use crate::recovery::{self, payload_is_sound};
use crate::salvage;
use crate::scan::{Item, Scan};
use crate::scrub::{ScrubProgress, ScrubReport};
use crate::segment::{FORMAT_VERSION, SEGMENT_HEAD_BYTES, Segment, SegmentHeader, parse_segment_name};
use crate::snapshot::{KEPT, decode_snapshot, parse_snapshot_name, snapshot_name};
use crate::superblock::{SUPERBLOCK, Superblock};
use crate::view::View;
use crate::{Committer, LogStore, Options};

/// The files of a store, and the contents of their headers.
pub struct Survey {
    /// The superblock, or its content according to the segments' headers.
    pub superblock: Superblock,
    /// True if the superblock's file exists with a sound copy.
    pub has_superblock: bool,
    /// The segments, in ascending order.
    pub segments: Vec<SurveyedSegment>,
    /// The numbers of the snapshots, in ascending order.
    pub snapshots: Vec<u64>,
}

/// A segment's file.
pub struct SurveyedSegment {
    /// The segment.
    pub segment: Segment,
    /// Its header, if a copy of it is sound.
    pub header: Option<SegmentHeader>,
    /// The end of its records, if the header of the next segment says it.
    pub end: Option<u64>,
}

impl Survey {
    /// Looks at the files on a disk.
    pub fn new(disk: &dyn Disk) -> Result<Self, StoreError> {
        let files = disk.list().map_err(|error| io("list the store's files", &error))?;
        let superblock = match disk.open(SUPERBLOCK).and_then(|file| read_device(&*file, file.size()?)) {
            Ok((bytes, _)) => Superblock::decode(&bytes),
            Err(_) => None,
        };
        let mut found = Vec::new();
        for (name, size) in &files {
            let Some(id) = parse_segment_name(name) else { continue };
            let file =
                disk.open(name).map_err(|error| io(&format!("open {}", disk.describe(name)), &error))?;
            let mut head = [0; SEGMENT_HEAD_BYTES as usize];
            let header = file.read_device(0, &mut head).ok().and_then(|_| SegmentHeader::decode(&head));
            // A file that is used again has the header of its former life until it gets its own.
            found.push((id, *size, file, header.filter(|header| header.id == id)));
        }
        found.sort_unstable_by_key(|(id, ..)| *id);
        let named = superblock.or_else(|| {
            let header = found.iter().rev().find_map(|(.., header)| *header)?;
            Some(Superblock { format: FORMAT_VERSION, store: header.store })
        });
        let Some(named) = named else {
            let text = "neither a superblock nor a segment's header is left to say which store this is; \
                        it is not one, or there is nothing to repair it from";
            return Err(StoreError::new(ErrorKind::Corrupt, text));
        };
        if named.format > FORMAT_VERSION {
            return Err(recovery::newer(&disk.describe(SUPERBLOCK), named.format));
        }
        let mut segments: Vec<SurveyedSegment> = found
            .into_iter()
            .map(|(id, size, file, header)| {
                let header = header.filter(|header| header.store == named.store);
                let binding = match header {
                    Some(header) => Binding::new(header.format, &named.store, id),
                    None => guess(&*file, size, id, &named.store),
                };
                SurveyedSegment { segment: Segment::new(id, binding, size, file), header, end: None }
            })
            .collect();
        for index in 0..segments.len() {
            let Some(header) = segments[index].header else { continue };
            if let Some(before) = segments.iter_mut().find(|other| other.segment.id == header.predecessor) {
                before.end = Some(header.predecessor_end.min(before.segment.capacity));
            }
        }
        let mut snapshots: Vec<u64> =
            files.iter().filter_map(|(name, _)| parse_snapshot_name(name)).collect();
        snapshots.sort_unstable();
        Ok(Self { superblock: named, has_superblock: superblock.is_some(), segments, snapshots })
    }
}

/// Returns the binding of the records of a segment whose header is lost: by the format in which any record is found,
/// the newest first, so that no payload can choose.
fn guess(file: &dyn DiskFile, size: u64, id: u32, store: &[u8; 16]) -> Binding {
    let newest = Binding::new(FORMAT_VERSION, store, id);
    let Ok((bytes, _)) = read_device(file, size) else { return newest };
    let holds = |binding: &Binding| {
        let mut scan = Scan::new(bytes.clone(), *binding, SEGMENT_HEAD_BYTES as usize);
        scan.any(|item| matches!(item, Item::Record { .. }))
    };
    let mut bindings = (1..=FORMAT_VERSION).rev().map(|format| Binding::new(format, store, id));
    bindings.find(holds).unwrap_or(newest)
}

fn io(what: &str, error: &std::io::Error) -> StoreError {
    StoreError::new(ErrorKind::Io, format!("cannot {what}: {error}"))
}

/// Checks all files as they are, and changes none: repairs that are needed to open the store are made in a view of the
/// disk.
pub fn scrub(disk: &Arc<dyn Disk>, progress: impl FnMut(ScrubProgress)) -> Result<ScrubReport, StoreError> {
    let options = Options { committer: Committer::Caller, create: false, ..Options::default() };
    let options = options.with_segments(&**disk)?;
    match recovery::open(view(disk)?, options.clone()) {
        Ok((engine, _)) => {
            let mut report = ScrubReport::default();
            check::superblock(&**disk, &mut report);
            engine.scrub_snapshots(&**disk, &mut report);
            engine.scrub_segments(&mut report, progress)?;
            Ok(report)
        }
        Err(error) if matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Io) => {
            scrub_unopened(disk, options, error, progress)
        }
        Err(error) => Err(error),
    }
}

fn view(disk: &Arc<dyn Disk>) -> Result<Arc<dyn Disk>, StoreError> {
    let view = View::new(Arc::clone(disk)).map_err(|error| io("list the store's files", &error))?;
    Ok(Arc::new(view))
}

/// Checks all files of a store that cannot be opened. Its losses are those of a repair: one is made in a view of the
/// disk.
fn scrub_unopened(
    disk: &Arc<dyn Disk>,
    options: Options,
    why: StoreError,
    mut progress: impl FnMut(ScrubProgress),
) -> Result<ScrubReport, StoreError> {
    let survey = Survey::new(&**disk)?;
    let mut report = ScrubReport { unopened: Some(why.message), ..ScrubReport::default() };
    check::superblock(&**disk, &mut report);
    for number in &survey.snapshots {
        check::snapshot(&**disk, *number, &survey.superblock.store, &mut report);
    }
    let total_bytes = survey.segments.iter().map(|found| found.segment.capacity).sum();
    let mut state = ScrubProgress { bytes: 0, total_bytes };
    let mut suspects = Vec::new();
    for found in &survey.segments {
        suspects.extend(check::segment(&**disk, &found.segment, found.end, &mut report));
        state.bytes += found.segment.capacity;
        progress(state);
    }
    drop(survey);
    let repaired = repair(view(disk)?, options, |_| {});
    // Which chunks are live only the repaired store knows; without one, whatever may be lost is named.
    for suspect in suspects.iter().filter(|suspect| suspect.is_record || repaired.is_err()) {
        if let Some(object) = &suspect.object {
            report.blame(suspect.finding, object);
        }
    }
    match repaired {
        Ok(repaired) => take_losses(&**disk, repaired, &mut report),
        Err(error) => tracing::warn!("what is lost is not known: {error}"),
    }
    Ok(report)
}

/// Adds the losses in a report on the repaired files to a report on the files as they are.
fn take_losses(disk: &dyn Disk, repaired: ScrubReport, report: &mut ScrubReport) {
    let present: Vec<String> =
        disk.list().unwrap_or_default().iter().map(|(name, _)| disk.describe(name)).collect();
    for mut finding in repaired.findings.into_iter().filter(|finding| !finding.objects.is_empty()) {
        let (from, to) = (finding.offset, finding.offset + finding.bytes);
        let same = report.findings.iter_mut().find(|known| {
            known.file == finding.file && known.offset < to && from < known.offset + known.bytes
        });
        if !present.contains(&finding.file) {
            finding.what = "the file is missing, and objects have data in it".into();
            (finding.offset, finding.bytes) = (0, to);
        }
        match same {
            Some(known) => {
                finding.objects.retain(|object| !known.objects.contains(object));
                known.objects.append(&mut finding.objects);
            }
            None => report.findings.push(finding),
        }
    }
    report.lost = repaired.lost;
}

/// Repairs what can be repaired, so that the store opens; then scrubs it, and reports what is lost.
pub fn repair(
    disk: Arc<dyn Disk>,
    options: Options,
    progress: impl FnMut(ScrubProgress),
) -> Result<ScrubReport, StoreError> {
    let options = Options { committer: Committer::Caller, ..options };
    let mut repaired = Vec::new();
    let mut lost = Vec::new();
    replace_unreadable(&*disk, &mut repaired)?;
    let survey = Survey::new(&*disk)?;
    repair_superblock(&*disk, &survey, &mut repaired)?;
    repair_segments(&*disk, &survey, &mut repaired)?;
    // Headers are what they were before from here on.
    let survey = Survey::new(&*disk)?;
    let mut snapshots = Vec::new();
    for number in &survey.snapshots {
        let name = snapshot_name(*number);
        let path = disk.describe(&name);
        let result = disk.open(&name).and_then(|file| read_device(&*file, file.size()?));
        let (bytes, _) = result.map_err(|error| io(&format!("read {path}"), &error))?;
        if decode_snapshot(bytes.clone(), &survey.superblock.store).is_err() {
            set_aside(&*disk, &name, &mut repaired)?;
        }
        snapshots.push((*number, bytes));
    }
    let store = match LogStore::open_on(Arc::clone(&disk), options.clone()) {
        Ok(store) => store,
        Err(error) if error.kind == ErrorKind::Corrupt => {
            repaired.push(format!("the index was rebuilt from what is sound, because {}", error.message));
            salvage::rebuild(&disk, &options, survey, snapshots, &mut repaired, &mut lost)?;
            LogStore::open_on(disk, options)?
        }
        Err(error) => return Err(error),
    };
    // From now on the log's beginning may go.
    while store.info().snapshots < KEPT as u64 {
        store.snapshot()?;
    }
    let report = store.scrub(progress)?;
    store.close()?;
    lost.extend_from_slice(&report.lost);
    Ok(ScrubReport { repaired, lost, ..report })
}

/// The size of a sector in bytes: the unit that is tried again where a larger piece cannot be read.
const SECTOR_BYTES: usize = 4096;

/// Replaces files that cannot be read whole by copies with zeros for the unreadable parts, which are then damage like
/// any other.
fn replace_unreadable(disk: &dyn Disk, repaired: &mut Vec<String>) -> Result<(), StoreError> {
    let files = disk.list().map_err(|error| io("list the store's files", &error))?;
    // A repair that was killed between setting a file aside and putting its copy in its place.
    for (copy, _) in &files {
        let Some(name) = copy.strip_suffix(".tmp").filter(|name| parse_segment_name(name).is_some()) else {
            continue;
        };
        if files.iter().all(|(other, _)| other != name) {
            disk.rename(copy, name)
                .and_then(|()| disk.sync_names())
                .map_err(|error| io(&format!("rename {}", disk.describe(copy)), &error))?;
            repaired.push(format!("{} was taken up as {name}", disk.describe(copy)));
        }
    }
    let files = disk.list().map_err(|error| io("list the store's files", &error))?;
    for (name, size) in files {
        if name != SUPERBLOCK && parse_segment_name(&name).is_none() && parse_snapshot_name(&name).is_none() {
            continue;
        }
        let path = disk.describe(&name);
        let file = disk.open(&name).map_err(|error| io(&format!("open {path}"), &error))?;
        let mut bytes = vec![0; size as usize];
        if file.read_device(0, &mut bytes).is_ok() {
            continue;
        }
        let mut unreadable = 0;
        for (index, piece) in bytes.chunks_mut(SECTOR_BYTES).enumerate() {
            if file.read_device((index * SECTOR_BYTES) as u64, piece).is_err() {
                piece.fill(0);
                unreadable += piece.len();
            }
        }
        let copy = format!("{name}.tmp");
        let write = || {
            let file = disk.create(&copy, 0)?;
            file.write_at(0, &[bytes.into()])?;
            file.sync()
        };
        // What a repair left that did not come to its end; usually there is nothing.
        let _ = disk.remove(&copy);
        write().map_err(|error| io(&format!("write {}", disk.describe(&copy)), &error))?;
        set_aside(disk, &name, repaired)?;
        disk.rename(&copy, &name)
            .and_then(|()| disk.sync_names())
            .map_err(|error| io(&format!("rename {}", disk.describe(&copy)), &error))?;
        repaired.push(format!("{path} was copied, but for {unreadable} bytes that cannot be read"));
    }
    Ok(())
}

/// The beginning of the names of files that were set aside.
const SET_ASIDE: &str = "damaged-";

/// Returns whether a file of this name is a snapshot that a repair set aside.
pub fn is_snapshot_set_aside(name: &str) -> bool {
    name.strip_prefix(SET_ASIDE).is_some_and(|name| name.starts_with("snapshot-"))
}

/// Gives a file a name under which it is kept, and under which no program takes it for a store's.
pub fn set_aside(disk: &dyn Disk, name: &str, repaired: &mut Vec<String>) -> Result<(), StoreError> {
    let path = disk.describe(name);
    let files = disk.list().map_err(|error| io("list the store's files", &error))?;
    let mut kept = format!("{SET_ASIDE}{name}");
    let mut number = 1;
    while files.iter().any(|(file, _)| *file == kept) {
        number += 1;
        kept = format!("{SET_ASIDE}{name}-{number}");
    }
    disk.rename(name, &kept)
        .and_then(|()| disk.sync_names())
        .map_err(|error| io(&format!("rename {path}"), &error))?;
    repaired.push(format!("{path} was set aside as {}", disk.describe(&kept)));
    Ok(())
}

fn repair_superblock(disk: &dyn Disk, survey: &Survey, repaired: &mut Vec<String>) -> Result<(), StoreError> {
    let path = disk.describe(SUPERBLOCK);
    let bytes = disk.open(SUPERBLOCK).and_then(|file| read_device(&*file, file.size()?));
    let sound = bytes.as_ref().map_or(0, |(bytes, _)| Superblock::sound_copies(bytes));
    if sound == 2 {
        return Ok(());
    }
    if !survey.has_superblock && bytes.is_ok() {
        set_aside(disk, SUPERBLOCK, repaired)?;
    }
    survey.superblock.write(disk).map_err(|error| io(&format!("write {path}"), &error))?;
    let from = if survey.has_superblock { "its sound copy" } else { "the headers of the segments" };
    repaired.push(format!("{path} was rewritten from {from}"));
    Ok(())
}

/// The last record of a segment, while headers are repaired.
struct Last {
    segment: u32,
    end: u64,
    sequence: u64,
    /// The end of the record before, if a crash may have torn this one: its payload is unsound.
    torn_from: Option<u64>,
}

fn repair_segments(disk: &dyn Disk, survey: &Survey, repaired: &mut Vec<String>) -> Result<(), StoreError> {
    let mut last = Last { segment: 0, end: 0, sequence: 0, torn_from: None };
    for found in &survey.segments {
        let segment = &found.segment;
        let path = disk.describe(&segment.name);
        let len = found.end.unwrap_or(segment.capacity);
        let (bytes, _) =
            read_device(&*segment.file, len).map_err(|error| io(&format!("read {path}"), &error))?;
        let mut writes: Vec<(u64, Bytes, String)> = Vec::new();
        let mut first = None;
        let (mut end, mut torn_from) = (SEGMENT_HEAD_BYTES, None);
        let mut sequence = 0;
        for item in Scan::new(bytes.clone(), segment.binding, SEGMENT_HEAD_BYTES as usize) {
            let Item::Record { at, record, healed } = item else { continue };
            torn_from = (!payload_is_sound(&bytes, at, &record)).then_some(end);
            end = at as u64 + u64::from(record.record_bytes);
            first.get_or_insert(record.sequence);
            sequence = record.sequence;
            twins(segment, &bytes, at, &record, healed, &mut writes);
        }
        let Some(first) = first else { continue };
        let sound = SegmentHeader::sound_copies(&bytes);
        let header = match found.header {
            Some(header) if sound < 2 => Some((header, "its sound copy")),
            // What an opening cut off is not taken up again: its records' numbers were given to others. Where it cut a torn
            // record off, the next segment begins with that record's number.
            None if first > last.sequence || first == last.sequence && last.torn_from.is_some() => {
                let predecessor_end = last.torn_from.filter(|_| first == last.sequence).unwrap_or(last.end);
                let header = SegmentHeader {
                    store: survey.superblock.store,
                    id: segment.id,
                    format: segment.binding.format(),
                    predecessor: last.segment,
                    predecessor_end,
                };
                Some((header, "the segments around it"))
            }
            _ => None,
        };
        if let Some((header, from)) = header {
            writes.push((0, header.encode(), format!("the segment's header, from {from}")));
        }
        for (offset, bytes, what) in writes {
            let write = segment.file.write_at(offset, &[bytes]).and_then(|()| segment.file.sync());
            write.map_err(|error| io(&format!("write {path}"), &error))?;
            repaired.push(format!("{path} at offset {offset}: {what}"));
        }
        last = Last { segment: segment.id, end, sequence, torn_from };
    }
    Ok(())
}

/// Adds the writes that restore a record's head, tail and padding.
fn twins(
    segment: &Segment,
    bytes: &Bytes,
    at: usize,
    record: &Record,
    healed: bool,
    writes: &mut Vec<(u64, Bytes, String)>,
) {
    let head_bytes = record.head_bytes as usize;
    let tail = at + record.record_bytes as usize - head_bytes;
    let copy = |from: usize, magic: u32| {
        let mut copy = bytes[from..from + head_bytes].to_vec();
        copy[..4].copy_from_slice(&magic.to_le_bytes());
        Bytes::from(copy)
    };
    if healed {
        writes.push((
            at as u64,
            copy(tail, segment.binding.head_magic()),
            "a record's head, from its tail".into(),
        ));
    } else if !check::tail_is_sound(bytes, segment, tail, record) {
        writes.push((
            tail as u64,
            copy(at, segment.binding.tail_magic()),
            "a record's tail, from its head".into(),
        ));
    }
    let payload_end = at + head_bytes + record.body.payload_bytes();
    if bytes[payload_end..tail].iter().any(|byte| *byte != 0) {
        writes.push((payload_end as u64, vec![0; tail - payload_end].into(), "padding".into()));
    }
}
