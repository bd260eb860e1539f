//! Scrubbing: reading every byte that the store wrote, from the device, and checking it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nacre_object::{ByteRange, Fork, ObjectId, StoreError};
use serde::Serialize;

use crate::check::{self, DamagedChunk};
use crate::disk::Source;
use crate::engine::Engine;
use crate::extent_map::Place;
use crate::segment::SEGMENT_HEAD_BYTES;
use crate::snapshot::{parse_snapshot_name, snapshot_name};
use crate::sync::unlock_fair;

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
    /// garbage. In a store that cannot be opened these are the objects that may have lost bytes.
    pub objects: Vec<String>,
}

/// What an object lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Loss {
    /// The object.
    pub object: String,
    /// What of it is lost, such as "bytes 4096 to 8191 of the default fork".
    pub what: String,
}

/// What a scrub found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ScrubReport {
    /// Files read.
    pub files: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Where they were read from.
    pub source: Source,
    /// Why the store cannot be opened, if it cannot.
    pub unopened: Option<String>,
    /// Damage, file by file.
    pub findings: Vec<Finding>,
    /// What is lost, object by object.
    pub lost: Vec<Loss>,
    /// What was repaired.
    pub repaired: Vec<String>,
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
            check::superblock(&*self.disk, &mut report);
            // Also those that were damaged when the store was opened, and are not used.
            let files = self.disk.list().unwrap_or_default();
            for number in files.iter().filter_map(|(name, _)| parse_snapshot_name(name)) {
                // While the work's lock is held, no snapshot's file becomes another one's.
                let work = self.maintenance.work.lock();
                if self.disk.open(&snapshot_name(number)).is_ok() {
                    check::snapshot(&*self.disk, number, &self.identity, &mut report);
                }
                unlock_fair(work);
            }
        }
        for (id, end) in segments {
            // Holding a segment keeps its file from being used again; what was freed meanwhile is garbage.
            if let Some(segment) = self.table.get(id) {
                let lost = |chunk: &DamagedChunk<'_>| self.losses(chunk);
                check::segment(&*self.disk, &segment, Some(end), self.persistent, &mut report, &lost);
            }
            state.bytes += end;
            progress(state);
        }
        Ok(report)
    }

    /// What of the object is still read from a chunk.
    fn losses(&self, damaged: &DamagedChunk<'_>) -> Vec<Loss> {
        let shard = self.shard(damaged.object).lock();
        let Some(node) = shard.get(damaged.object) else { return Vec::new() };
        let mut losses = Vec::new();
        for (fork, entries) in &node.forks {
            for entry in entries.map.iter() {
                if let Place::Data { chunk, .. } = entry.place()
                    && chunk.segment == damaged.segment
                    && chunk.offset == damaged.offset
                {
                    let range = ByteRange::new(entry.start(), entry.len());
                    losses.push(Loss::bytes(damaged.object, fork, range));
                }
            }
        }
        losses
    }
}

impl Loss {
    /// Bytes of a fork.
    pub(crate) fn bytes(object: &ObjectId, fork: &Fork, range: ByteRange) -> Self {
        let last = range.end().saturating_sub(1);
        let fork = match *fork == Fork::DEFAULT {
            true => "the default fork".to_owned(),
            false => format!("fork \"{fork}\""),
        };
        Self { object: object.to_string(), what: format!("bytes {} to {last} of {fork}", range.offset) }
    }
}
