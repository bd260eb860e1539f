//! Checks of the files of a store one by one, from the contents of the device.
//!
//! None of it needs the index, which distinguishes damaged data from damaged garbage ([`crate::scrub`]), so a store that
//! cannot be opened is checked too.

use bytes::Bytes;
use nacre_object::ObjectId;

use crate::codec::crc32c;
use crate::disk::{Disk, DiskFile, Source};
use crate::engine::owned;
use crate::record::{self, Body, Effect, Found, Record};
use crate::scan::{Item, Scan};
use crate::scrub::{Finding, ScrubReport};
use crate::segment::{SEGMENT_HEAD_BYTES, Segment, SegmentHeader};
use crate::snapshot::{check_snapshot, snapshot_name};
use crate::superblock::{SUPERBLOCK, Superblock};

/// A damaged piece of a segment: extents of the index in it have to be examined.
pub struct Suspect {
    /// The offset of its first byte in the segment.
    pub from: u64,
    /// The offset one past its last byte.
    pub to: u64,
    /// The index in the report of the finding about it.
    pub finding: usize,
    /// The object that the piece belonged to, according to the remains of a record there.
    pub object: Option<ObjectId>,
    /// True if it is a record that is lost, and not a chunk of a record's payload.
    pub is_record: bool,
}

/// Reads all of a file as the device has it.
pub fn read_device(file: &dyn DiskFile, len: u64) -> std::io::Result<(Bytes, Source)> {
    let mut bytes = vec![0; len as usize];
    let source = file.read_device(0, &mut bytes)?;
    Ok((bytes.into(), source))
}

/// Checks the superblock.
pub fn superblock(disk: &dyn Disk, report: &mut ScrubReport) {
    let path = disk.describe(SUPERBLOCK);
    if let Some(bytes) = whole(disk, SUPERBLOCK, report) {
        let sound = Superblock::sound_copies(&bytes);
        if sound < 2 {
            let what = format!("{} of 2 copies of the superblock", 2 - sound);
            report.add(&path, 0, bytes.len() as u64, what);
        }
    }
}

/// Checks a snapshot of the index.
pub fn snapshot(disk: &dyn Disk, number: u64, store: &[u8; 16], report: &mut ScrubReport) {
    let name = snapshot_name(number);
    report.files += 1;
    let checked = disk.open(&name).and_then(|file| {
        let len = file.size()?;
        check_snapshot(len, store, |offset, len| {
            let mut bytes = vec![0; len as usize];
            let source = file.read_device(offset, &mut bytes)?;
            report.count(0, source);
            Ok(bytes.into())
        })
        .inspect(|_| report.bytes += len)
    });
    match checked {
        Ok(Ok(())) => {}
        Ok(Err(damage)) => {
            let what = "a frame of the index (another snapshot or the log replaces it)".into();
            report.add(&disk.describe(&name), damage.offset, 0, what);
        }
        Err(error) => report.add(&disk.describe(&name), 0, 0, format!("cannot be read: {error}")),
    }
}

fn whole(disk: &dyn Disk, name: &str, report: &mut ScrubReport) -> Option<Bytes> {
    report.files += 1;
    let result = disk.open(name).and_then(|file| read_device(&*file, file.size()?));
    match result {
        Ok((bytes, source)) => {
            report.count(bytes.len() as u64, source);
            Some(bytes)
        }
        Err(error) => {
            report.add(&disk.describe(name), 0, 0, format!("cannot be read: {error}"));
            None
        }
    }
}

/// Checks a segment up to the end of its records, or, where that is not known, up to the last of them. Returns the
/// pieces that may be lost, in ascending order.
pub fn segment(
    disk: &dyn Disk,
    segment: &Segment,
    end: Option<u64>,
    report: &mut ScrubReport,
) -> Vec<Suspect> {
    let mut suspects = Vec::new();
    let path = disk.describe(&segment.name);
    report.files += 1;
    let len = end.unwrap_or(segment.capacity).min(segment.capacity);
    let bytes = match read_device(&*segment.file, len) {
        Ok((bytes, source)) => {
            report.count(bytes.len() as u64, source);
            bytes
        }
        Err(error) => {
            report.add(&path, 0, len, format!("cannot be read: {error}"));
            suspects.push(report.suspect(0, len, None, true));
            return suspects;
        }
    };
    let mut items: Vec<Item> =
        Scan::new(bytes.clone(), segment.binding, SEGMENT_HEAD_BYTES as usize).collect();
    if end.is_none() && matches!(items.last(), Some(Item::Gap { .. })) {
        items.pop();
    }
    if items.is_empty() && end.is_none() {
        // It was made ready, and never used.
        return suspects;
    }
    let sound = SegmentHeader::sound_copies(&bytes);
    if sound < 2 {
        let what = format!("{} of 2 copies of the segment's header", 2 - sound);
        report.add(&path, 0, SEGMENT_HEAD_BYTES, what);
    }
    for item in items {
        match item {
            Item::Gap { at, len } => {
                report.add(&path, at as u64, len as u64, "records, heads and tails both".into());
                let object = record::damaged_object(&bytes[at..at + len]);
                suspects.push(report.suspect(at as u64, len as u64, object, true));
            }
            Item::Record { at, record, healed } => {
                if healed {
                    let what = "a record's head (its tail is sound)".into();
                    report.add(&path, at as u64, u64::from(record.head_bytes), what);
                }
                check_record(segment, &path, &bytes, at, &record, report, &mut suspects);
            }
        }
    }
    suspects
}

fn check_record(
    segment: &Segment,
    path: &str,
    bytes: &Bytes,
    at: usize,
    record: &Record,
    report: &mut ScrubReport,
    suspects: &mut Vec<Suspect>,
) {
    let mut offset = at + record.head_bytes as usize;
    let mut check = |object: &ObjectId, len: u32, crc: u32| {
        if crc32c(&bytes[offset..offset + len as usize]) != crc {
            let (from, len) = (offset as u64, u64::from(len));
            report.add(path, from, len, "a chunk of payload".into());
            suspects.push(report.suspect(from, len, Some(owned(object)), false));
        }
        offset += len as usize;
    };
    match &record.body {
        Body::Transaction { object, effects, .. } => {
            for effect in effects {
                if let Effect::Chunk { len, crc, .. } = effect {
                    check(object, *len, *crc);
                }
            }
        }
        Body::Moves(moves) => {
            for moved in moves {
                check(&moved.object, moved.len, moved.crc);
            }
        }
        Body::Tokens { .. } | Body::Floor(_) | Body::Mark => {}
    }
    let tail = at + (record.record_bytes - record.head_bytes) as usize;
    if bytes[offset..tail].iter().any(|byte| *byte != 0) {
        report.add(path, offset as u64, (tail - offset) as u64, "padding".into());
    }
    if !tail_is_sound(bytes, segment, tail, record) {
        let what = "a record's tail (its head is sound)".into();
        report.add(path, tail as u64, u64::from(record.head_bytes), what);
    }
}

/// Returns whether the tail at an offset is that of a record.
pub fn tail_is_sound(bytes: &Bytes, segment: &Segment, tail: usize, record: &Record) -> bool {
    let found = record::decode(&bytes.slice(tail..), segment.binding, tail as u64);
    matches!(found, Some(Found::Tail(copy, _)) if copy == *record)
}

impl ScrubReport {
    /// Adds a finding.
    pub(crate) fn add(&mut self, file: &str, offset: u64, bytes: u64, what: String) {
        self.findings.push(Finding { file: file.to_string(), offset, bytes, what, objects: Vec::new() });
    }

    /// Names an object that a finding concerns. Objects come one after another.
    pub(crate) fn blame(&mut self, finding: usize, object: &ObjectId) {
        if let Some(finding) = self.findings.get_mut(finding) {
            let object = object.to_string();
            if finding.objects.last() != Some(&object) {
                finding.objects.push(object);
            }
        }
    }

    /// Returns the suspect that the last finding is about.
    fn suspect(&self, from: u64, len: u64, object: Option<ObjectId>, is_record: bool) -> Suspect {
        let finding = self.findings.len().saturating_sub(1);
        Suspect { from, to: from + len, finding, object, is_record }
    }

    fn count(&mut self, bytes: u64, source: Source) {
        self.bytes += bytes;
        self.source = self.source.max(source);
    }
}
