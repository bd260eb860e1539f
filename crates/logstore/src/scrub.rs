//! Scrubbing: a check of every byte that the store wrote, read from the device.
//!
//! First the files are checked one by one, each against itself. Then the index tells what is lost: every extent that it
//! refers to in a damaged piece, or where the files have nothing, is read from the device.
//! So the state of the log's records does not matter, nor whether they are there at all. Garbage, and sound
//! bytes surrounded by damage, are not reported as lost.
//!
//! The walk through the index proceeds a step at a time and holds the lock of one object's shard for one step. It collects
//! only doubtful extents in that step, and for an object no more losses than [`LOSSES_MAX`].

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nacre_object::{ByteRange, Fork, ObjectId, StoreError};
use serde::Serialize;

use crate::check::{self, Suspect};
use crate::codec::crc32c;
use crate::disk::{Disk, Source};
use crate::engine::Engine;
use crate::extent_map::{Chunk, Entry, Place};
use crate::name::Name;
use crate::node::Node;
use crate::segment::{SEGMENT_HEAD_BYTES, Segment};
use crate::snapshot::{parse_snapshot_name, snapshot_name};
use crate::sync::unlock_fair;

/// The number of objects that are looked up at a time.
const PAGE_OBJECTS: usize = 256;
/// The maximum number of extents and forks that are examined under the lock of a shard at a time.
const STEP_ENTRIES: usize = 1024;
/// The maximum number of losses of one object that are listed one by one.
const LOSSES_MAX: usize = 100;

/// The progress of a scrub.
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
    /// The offset of the damaged piece in the file.
    pub offset: u64,
    /// The length of the piece, in bytes.
    pub bytes: u64,
    /// A description of the damage.
    pub what: String,
    /// The objects that lost bytes by it. If there are none, nothing is lost: the damaged bytes have a copy, or are
    /// garbage. In a store that cannot be opened these are the objects that will have lost something when it is
    /// repaired.
    pub objects: Vec<String>,
}

/// A part of an object that is lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LostPart {
    /// The object.
    pub object: String,
    /// A description of the part, such as "bytes 4096 to 8191 of the default fork".
    pub what: String,
}

/// The report of a scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ScrubReport {
    /// Files read.
    pub files: u64,
    /// Bytes read.
    pub bytes: u64,
    /// The worst source of the bytes read.
    pub source: Source,
    /// The reason why the store cannot be opened, if it cannot.
    pub unopened: Option<String>,
    /// Damage, file by file.
    pub findings: Vec<Finding>,
    /// Lost parts, object by object.
    pub lost: Vec<LostPart>,
    /// Repairs, one sentence each.
    pub repaired: Vec<String>,
}

/// The extent to which a segment was checked, and the damage in it.
struct Checked {
    /// The end of its records when the scrub began, in bytes.
    end: u64,
    /// True if the records of the segment end there forever.
    sealed: bool,
    /// The damaged pieces, in ascending order.
    suspects: Vec<Suspect>,
}

impl Checked {
    /// Returns the finding that concerns a chunk.
    fn finding(&self, chunk: &Chunk) -> Option<usize> {
        let (from, to) = (u64::from(chunk.offset), u64::from(chunk.offset) + u64::from(chunk.len));
        let first = self.suspects.partition_point(|suspect| suspect.to <= from);
        self.suspects.get(first).filter(|suspect| suspect.from < to).map(|suspect| suspect.finding)
    }
}

/// An extent that has to be read to know whether it is lost.
struct UncertainExtent {
    fork: Fork,
    entry: Entry,
    chunk: Chunk,
    /// The segment of the chunk. Holding it keeps its file from being used again.
    segment: Arc<Segment>,
    finding: Option<usize>,
}

/// A place in an object: a fork, and an offset in it.
type Cursor = (Fork, u64);

impl Engine {
    /// Reads and checks everything, a file at a time. Blocks; transactions and maintenance continue.
    pub(crate) fn scrub(
        self: &Arc<Self>,
        progress: impl FnMut(ScrubProgress),
    ) -> Result<ScrubReport, StoreError> {
        let mut report = ScrubReport::default();
        if self.memory.is_some() {
            // There are neither files nor checksums.
            return Ok(ScrubReport { source: Source::Memory, ..report });
        }
        check::superblock(&*self.disk, &mut report);
        self.scrub_snapshots(&*self.disk, &mut report);
        self.scrub_segments(&mut report, progress)?;
        Ok(report)
    }

    /// Checks the snapshots on the store's disk, or on the one behind it, including those that were damaged when the
    /// store was opened and are not used.
    pub(crate) fn scrub_snapshots(&self, disk: &dyn Disk, report: &mut ScrubReport) {
        let files = disk.list().unwrap_or_default();
        for number in files.iter().filter_map(|(name, _)| parse_snapshot_name(name)) {
            let findings = report.findings.len();
            check::snapshot(disk, number, &self.identity, report);
            // A snapshot that is not kept any more has lost its name, and its file is written over, perhaps while it was read.
            if disk.open(&snapshot_name(number)).is_err() {
                report.findings.truncate(findings);
            }
        }
    }

    /// Checks the segments, and reports the losses of objects.
    pub(crate) fn scrub_segments(
        &self,
        report: &mut ScrubReport,
        mut progress: impl FnMut(ScrubProgress),
    ) -> Result<(), StoreError> {
        let mut checked: BTreeMap<u32, Checked> = BTreeMap::new();
        for segment in self.table.all() {
            // In this order: where a sealed segment ends does not change any more.
            let sealed = segment.sealed.load(Ordering::Acquire);
            let end = segment.end.load(Ordering::Relaxed).min(segment.capacity);
            checked.insert(segment.id, Checked { end, sealed, suspects: Vec::new() });
        }
        // What is in the log but not yet on the disk is not the scrub's business; it gets there first.
        self.log.wait_blocking(self.log.last_batch())?;
        let used = |checked: &Checked| if checked.end > SEGMENT_HEAD_BYTES { checked.end } else { 0 };
        let mut state = ScrubProgress { bytes: 0, total_bytes: checked.values().map(used).sum() };
        for (id, checked) in checked.iter_mut().filter(|(_, checked)| used(checked) > 0) {
            // Holding a segment keeps its file from being used again; what was freed meanwhile is garbage.
            if let Some(segment) = self.table.get(*id) {
                let end = Some(checked.end);
                checked.suspects = check::segment(&*self.disk, &segment, end, report);
            }
            state.bytes += checked.end;
            progress(state);
        }
        self.find_losses(&checked, report)
    }

    /// Reads live extents in doubt from the device, object by object, and reports the losses.
    fn find_losses(
        &self,
        checked: &BTreeMap<u32, Checked>,
        report: &mut ScrubReport,
    ) -> Result<(), StoreError> {
        let mut absences = BTreeMap::new();
        let mut last: Option<ObjectId> = None;
        loop {
            let from = last.as_ref().map_or(Unbounded, |last| Excluded(last.as_bytes()));
            let names = self.names.read();
            let page: Vec<ObjectId> =
                names.range::<[u8], _>((from, Unbounded)).take(PAGE_OBJECTS).map(Name::to_id).collect();
            drop(names);
            for object in &page {
                self.find_losses_of(object, checked, &mut absences, report)?;
            }
            last = page.into_iter().next_back();
            if last.is_none() {
                return Ok(());
            }
        }
    }

    /// Reports the losses of an object. `absences` are the findings about segments that have nothing where data should
    /// be.
    fn find_losses_of(
        &self,
        object: &ObjectId,
        checked: &BTreeMap<u32, Checked>,
        absences: &mut BTreeMap<u32, usize>,
        report: &mut ScrubReport,
    ) -> Result<(), StoreError> {
        let mut losses = LostParts::default();
        let mut cursor = Some((Fork::DEFAULT, 0));
        while let Some(from) = cursor {
            let (doubts, durable_batch, next) = self.doubts(object, &from, checked);
            cursor = next;
            if doubts.is_empty() {
                continue;
            }
            self.log.wait_blocking(durable_batch)?;
            for doubt in doubts.iter().filter(|doubt| !doubt.is_readable()) {
                let finding = doubt.finding.unwrap_or_else(|| self.absence(doubt, checked, absences, report));
                report.blame(finding, object);
                losses.add(&doubt.fork, doubt.entry.start(), doubt.entry.len());
            }
        }
        losses.finish(object, &mut report.lost);
        Ok(())
    }

    /// Does one step of the walk through an object: returns the doubtful extents, the batch that has the object's newest
    /// change, and the start of the next step.
    fn doubts(
        &self,
        object: &ObjectId,
        from: &Cursor,
        checked: &BTreeMap<u32, Checked>,
    ) -> (Vec<UncertainExtent>, u64, Option<Cursor>) {
        let shard = self.shard(object).lock();
        let mut doubts = Vec::new();
        let (durable_batch, next) = match shard.get(object) {
            Some(node) => (node.durable_batch, self.doubts_of(node, from, checked, &mut doubts)),
            None => (0, None),
        };
        // The next step asks for the same lock again at once.
        unlock_fair(shard);
        (doubts, durable_batch, next)
    }

    fn doubts_of(
        &self,
        node: &Node,
        (first, start): &Cursor,
        checked: &BTreeMap<u32, Checked>,
        doubts: &mut Vec<UncertainExtent>,
    ) -> Option<Cursor> {
        let mut seen = 0;
        for (name, fork) in node.forks.range::<Fork, _>((Included(first), Unbounded)) {
            let start = if name == first { *start } else { 0 };
            seen += 1;
            for entry in fork.map.overlapping(start, u64::MAX) {
                if seen > STEP_ENTRIES {
                    return Some((name.clone(), entry.start().max(start)));
                }
                seen += 1;
                let Place::Data { chunk, .. } = entry.place() else { continue };
                // What is in segments that the scrub did not find was written since.
                let Some(checked) = checked.get(&chunk.segment) else { continue };
                let is_beyond = u64::from(chunk.offset) + u64::from(chunk.len) > checked.end;
                if is_beyond && !checked.sealed {
                    continue;
                }
                let finding = checked.finding(&chunk);
                if (is_beyond || finding.is_some())
                    && let Some(segment) = self.table.get(chunk.segment)
                {
                    let (fork, entry) = (name.clone(), entry.clip(start, u64::MAX));
                    doubts.push(UncertainExtent { fork, entry, chunk, segment, finding });
                }
            }
            if seen > STEP_ENTRIES {
                return Some((name.clone(), u64::MAX));
            }
        }
        None
    }

    /// Returns the finding about a segment that has nothing where the index has data.
    fn absence(
        &self,
        doubt: &UncertainExtent,
        checked: &BTreeMap<u32, Checked>,
        absences: &mut BTreeMap<u32, usize>,
        report: &mut ScrubReport,
    ) -> usize {
        let (segment, chunk) = (&doubt.segment, &doubt.chunk);
        let index = *absences.entry(segment.id).or_insert_with(|| {
            let end = checked.get(&segment.id).map_or(0, |checked| checked.end);
            let (offset, what) = match end < segment.capacity {
                true => (end, "the log ends here, and objects have data behind"),
                false => (segment.capacity, "the file ends here, and objects have data behind"),
            };
            report.add(&self.disk.describe(&segment.name), offset, 0, what.into());
            report.findings.len() - 1
        });
        if let Some(finding) = report.findings.get_mut(index) {
            let end = u64::from(chunk.offset) + u64::from(chunk.len);
            finding.bytes = finding.bytes.max(end.saturating_sub(finding.offset));
        }
        index
    }
}

impl UncertainExtent {
    /// Returns whether the device has the bytes that the index names.
    fn is_readable(&self) -> bool {
        let offset = u64::from(self.chunk.offset);
        if offset + u64::from(self.chunk.len) > self.segment.capacity {
            return false;
        }
        let mut bytes = vec![0; self.chunk.len as usize];
        self.segment.file.read_device(offset, &mut bytes).is_ok() && crc32c(&bytes) == self.chunk.crc
    }
}

/// The losses of one object, in the order of its forks and their bytes.
#[derive(Default)]
struct LostParts {
    pieces: Vec<(Fork, ByteRange)>,
    /// The number of pieces that are not listed, and their bytes.
    further: (u64, u64),
}

impl LostParts {
    fn add(&mut self, fork: &Fork, start: u64, len: u64) {
        if self.further.0 == 0
            && let Some((last_fork, last)) = self.pieces.last_mut()
            && last_fork == fork
            && last.end() == start
        {
            last.len += len;
        } else if self.pieces.len() < LOSSES_MAX {
            self.pieces.push((fork.clone(), ByteRange::new(start, len)));
        } else {
            self.further = (self.further.0 + 1, self.further.1 + len);
        }
    }

    fn finish(self, object: &ObjectId, lost: &mut Vec<LostPart>) {
        lost.extend(self.pieces.iter().map(|(fork, range)| LostPart::bytes(object, fork, *range)));
        if let (pieces @ 1.., bytes) = self.further {
            let what = format!("{bytes} bytes in {pieces} more pieces");
            lost.push(LostPart { object: object.to_string(), what });
        }
    }
}

impl LostPart {
    /// Describes the loss of bytes of a fork.
    fn bytes(object: &ObjectId, fork: &Fork, range: ByteRange) -> Self {
        let last = range.end().saturating_sub(1);
        let fork = match *fork == Fork::DEFAULT {
            true => "the default fork".to_owned(),
            false => format!("fork \"{fork}\""),
        };
        Self { object: object.to_string(), what: format!("bytes {} to {last} of {fork}", range.offset) }
    }
}

#[cfg(test)]
mod tests {
    use nacre_object::{ObjectStore, Transaction, WriteOp};

    use super::*;
    use crate::{Durability, LogStore, Options};

    #[test]
    fn a_step_is_bounded_and_steps_leave_nothing_out() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { durability: Durability::None, ..Options::default() };
        let store = LogStore::open(folder.path(), options).unwrap();
        let object = ObjectId::try_from("object").unwrap();
        let apply = |transaction| futures::executor::block_on(store.apply(&object, transaction)).unwrap();
        // Extents that do not touch each other, and forks of hardly any.
        for round in 0..5 {
            let extents = (0..1000).map(|index| ((round * 1000 + index) * 3, "xy".into())).collect();
            apply(Transaction::new().change(WriteOp::Extents { fork: Fork::DEFAULT, extents }));
        }
        for number in 0..3000 {
            let fork = Fork::try_from(format!("fork-{number:04}").as_str()).unwrap();
            apply(Transaction::new().write(fork, 7, "z"));
        }
        let engine = &store.owner.engine;
        let all = |segment: Arc<Segment>| {
            let (from, to, finding) = (0, u64::MAX, 0);
            let suspects = vec![Suspect { from, to, finding, object: None, is_record: true }];
            (segment.id, Checked { end: u64::MAX, sealed: true, suspects })
        };
        let checked: BTreeMap<u32, Checked> = engine.table.all().into_iter().map(all).collect();
        let mut cursor = Some((Fork::DEFAULT, 0));
        let mut found = Vec::new();
        while let Some(from) = cursor {
            let (doubts, _, next) = engine.doubts(&object, &from, &checked);
            assert!(doubts.len() <= STEP_ENTRIES + 1, "{} at once", doubts.len());
            found.extend(doubts.iter().map(|doubt| (doubt.fork.clone(), doubt.entry.start())));
            assert!(doubts.iter().all(UncertainExtent::is_readable));
            cursor = next;
        }
        let mut expected: Vec<(Fork, u64)> = (0..5000).map(|index| (Fork::DEFAULT, index * 3)).collect();
        let fork = |number| Fork::try_from(format!("fork-{number:04}").as_str()).unwrap();
        expected.extend((0..3000).map(|number| (fork(number), 7)));
        assert!(found == expected, "{} of {} were seen", found.len(), expected.len());
    }
}
