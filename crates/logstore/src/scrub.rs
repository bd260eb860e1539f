//! Scrubbing: reading every byte that the store wrote, and checking it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use nacre_object::StoreError;
use parking_lot::MutexGuard;
use serde::Serialize;

use crate::codec::crc32c;
use crate::engine::Engine;
use crate::extent_map::Place;
use crate::record::{self, Body, Effect, Found, Record};
use crate::scan::{Item, Scan};
use crate::segment::{SEGMENT_HEAD_BYTES, Segment, SegmentHeader};
use crate::snapshot::{decode_snapshot, parse_snapshot_name, read_file, snapshot_name};
use crate::superblock::{SUPERBLOCK, Superblock};

/// How far a scrub has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ScrubProgress {
    /// Bytes read.
    pub bytes: u64,
    /// Bytes to read in all.
    pub total_bytes: u64,
}

/// Damage that a scrub found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The file.
    pub file: String,
    /// Where the damaged piece begins in it.
    pub offset: u64,
    /// How long the piece is, in bytes.
    pub bytes: u64,
    /// What is damaged.
    pub what: String,
    /// The objects that lost bytes by it. Where there are none, nothing is lost: what is damaged has a copy, or is
    /// garbage.
    pub objects: Vec<String>,
}

/// What a scrub found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ScrubReport {
    /// Files read.
    pub files: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Damage, file by file.
    pub findings: Vec<Finding>,
}

impl Engine {
    /// Reads and checks everything, a file at a time. Blocks; transactions and maintenance go on.
    pub(crate) fn scrub(
        self: &Arc<Self>,
        mut progress: impl FnMut(ScrubProgress),
    ) -> Result<ScrubReport, StoreError> {
        let segments: Vec<(u32, u64)> = self
            .table
            .all()
            .into_iter()
            .map(|segment| (segment.id, segment.end.load(Ordering::Relaxed)))
            .filter(|(_, end)| *end > SEGMENT_HEAD_BYTES)
            .collect();
        // What is in the log but not yet on the disk is not the scrub's business; it gets there first.
        self.log.wait_blocking(self.log.last_batch())?;
        let mut report = ScrubReport::default();
        let mut state = ScrubProgress { bytes: 0, total_bytes: segments.iter().map(|(_, end)| *end).sum() };
        if self.persistent {
            self.scrub_superblock(&mut report);
            // Also those that were damaged when the store was opened, and are not used.
            let files = self.disk.list().unwrap_or_default();
            for number in files.iter().filter_map(|(name, _)| parse_snapshot_name(name)) {
                // While the work's lock is held, no snapshot's file becomes another one's.
                let work = self.maintenance.work.lock();
                if self.disk.open(&snapshot_name(number)).is_ok() {
                    self.scrub_snapshot(number, &mut report);
                }
                MutexGuard::unlock_fair(work);
            }
        }
        for (id, end) in segments {
            // Holding a segment keeps its file from being used again; what was freed meanwhile is garbage.
            if let Some(segment) = self.table.get(id) {
                self.scrub_segment(&segment, end, &mut report);
                report.files += 1;
                report.bytes += end;
            }
            state.bytes += end;
            progress(state);
        }
        Ok(report)
    }

    fn scrub_superblock(&self, report: &mut ScrubReport) {
        let file = self.disk.describe(SUPERBLOCK);
        match read_file(&*self.disk, SUPERBLOCK) {
            Ok(bytes) => {
                report.bytes += bytes.len() as u64;
                let sound = Superblock::sound_copies(&bytes);
                if sound < 2 {
                    report.add(
                        &file,
                        0,
                        bytes.len() as u64,
                        format!("{} of 2 copies of the superblock", 2 - sound),
                    );
                }
            }
            Err(error) => report.add(&file, 0, 0, format!("cannot be read: {error}")),
        }
        report.files += 1;
    }

    fn scrub_snapshot(&self, number: u64, report: &mut ScrubReport) {
        let name = snapshot_name(number);
        let file = self.disk.describe(&name);
        match read_file(&*self.disk, &name) {
            Ok(bytes) => {
                report.bytes += bytes.len() as u64;
                if let Err(damage) = decode_snapshot(bytes) {
                    report.add(
                        &file,
                        damage.offset,
                        0,
                        "a frame of the index (another snapshot stands in)".into(),
                    );
                }
            }
            Err(error) => report.add(&file, 0, 0, format!("cannot be read: {error}")),
        }
        report.files += 1;
    }

    fn scrub_segment(&self, segment: &Segment, end: u64, report: &mut ScrubReport) {
        let file = self.disk.describe(&segment.name);
        let mut bytes = vec![0; end as usize];
        if let Err(error) = segment.file.read_at(0, &mut bytes) {
            report.add(&file, 0, end, format!("cannot be read: {error}"));
            return;
        }
        let bytes = Bytes::from(bytes);
        let head = SEGMENT_HEAD_BYTES as usize;
        if self.persistent {
            let sound = SegmentHeader::sound_copies(&bytes);
            if sound < 2 {
                report.add(
                    &file,
                    0,
                    head as u64,
                    format!("{} of 2 copies of the segment's header", 2 - sound),
                );
            }
        }
        for item in Scan::new(bytes.clone(), segment.id, head) {
            match item {
                Item::Gap { at, len } => {
                    report.add(&file, at as u64, len as u64, "records, heads and tails both".into());
                }
                Item::Record { at, record, healed } => {
                    if healed {
                        report.add(
                            &file,
                            at as u64,
                            u64::from(record.head_bytes),
                            "a record's head (its tail is sound)".into(),
                        );
                    }
                    self.scrub_record(segment, &file, &bytes, at, &record, report);
                }
            }
        }
    }

    fn scrub_record(
        &self,
        segment: &Segment,
        file: &str,
        bytes: &Bytes,
        at: usize,
        record: &Record,
        report: &mut ScrubReport,
    ) {
        let mut offset = at + record.head_bytes as usize;
        let mut check = |object: &nacre_object::ObjectId, len: u32, crc: u32| {
            let chunk = &bytes[offset..offset + len as usize];
            if crc32c(chunk) != crc {
                let mut finding = Finding {
                    file: file.to_string(),
                    offset: offset as u64,
                    bytes: u64::from(len),
                    what: "a chunk of payload".into(),
                    objects: Vec::new(),
                };
                if self.refers_to(object, segment.id, offset as u32) {
                    finding.objects.push(object.to_string());
                }
                report.findings.push(finding);
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
            Body::Moves(moves) => moves.iter().for_each(|moved| check(&moved.object, moved.len, moved.crc)),
            Body::Mark => {}
        }
        let tail = at + (record.record_bytes - record.head_bytes) as usize;
        if bytes[offset..tail].iter().any(|byte| *byte != 0) {
            report.add(file, offset as u64, (tail - offset) as u64, "padding".into());
        }
        let sound = matches!(
            record::decode(&bytes.slice(tail..), segment.id),
            Some(Found::Tail(copy, _)) if copy == *record
        );
        if !sound {
            report.add(
                file,
                tail as u64,
                u64::from(record.head_bytes),
                "a record's tail (its head is sound)".into(),
            );
        }
    }

    fn refers_to(&self, object: &nacre_object::ObjectId, segment: u32, offset: u32) -> bool {
        let shard = self.shard(object).lock();
        let Some(node) = shard.get(object) else { return false };
        node.forks.values().flat_map(|fork| fork.map.iter()).any(|entry| match entry.place() {
            Place::Data { chunk, .. } => chunk.segment == segment && chunk.offset == offset,
            Place::Hole => false,
        })
    }
}

impl ScrubReport {
    fn add(&mut self, file: &str, offset: u64, bytes: u64, what: String) {
        self.findings.push(Finding { file: file.to_string(), offset, bytes, what, objects: Vec::new() });
    }
}
