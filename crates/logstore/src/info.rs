//! A store's report on itself.

#[cfg(feature = "sim")]
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::Serialize;

use crate::engine::Engine;
#[cfg(feature = "sim")]
use crate::extent_map::Place;
#[cfg(feature = "sim")]
use crate::footprint::Footprint;
use crate::segment::{FORMAT_VERSION, SEGMENT_HEAD_BYTES, Segment};
#[cfg(feature = "sim")]
use crate::space::BLOCK_BYTES;

/// A store at a glance. Counters begin at the opening of the store.
#[derive(Clone, Debug, Serialize)]
pub struct Info {
    /// The version of the on-disk format.
    pub format: u32,
    /// The version of the program.
    pub version: &'static str,
    /// `always`, `interval(N ms)` or `none`.
    pub durability: String,
    /// True if the store outlives its process.
    pub persistent: bool,
    /// The reason why the store takes no more writes, if it takes none.
    pub read_only: Option<String>,
    /// Objects that exist.
    pub objects: u64,
    /// Pieces of extents in the index.
    pub extents: u64,
    /// Memory that these pieces take, in bytes.
    pub extent_index_bytes: u64,
    /// The greatest version of any object.
    pub version_max: u64,
    /// The number of segments. This and the figures of the log and of segments below are 0 for a volatile store.
    pub segments: u64,
    /// The sum of their sizes, in bytes, spare files included.
    pub segment_bytes: u64,
    /// Bytes that the index refers to.
    pub live_bytes: u64,
    /// Bytes that all files of the store take: segments, reserve and snapshots; of a volatile store the memory that its
    /// blocks take, and its index by estimate.
    pub taken_bytes: u64,
    /// The maximum number of bytes that they may take, if there is a bound besides the volume's.
    pub capacity_bytes: Option<u64>,
    /// Bytes that are free on the store's volume, if it has one.
    pub volume_free_bytes: Option<u64>,
    /// Transactions that were refused because there was no space.
    pub out_of_space: u64,
    /// Payload that transactions wrote, in bytes.
    pub user_bytes: u64,
    /// Bytes written to the log, moves included.
    pub log_bytes: u64,
    /// Bytes that the cleaner moved.
    pub moved_bytes: u64,
    /// Bytes of log written for each byte of payload; `None` where transactions wrote none, or there is no log.
    pub write_amplification: Option<f64>,
    /// Segments cleaned.
    pub segments_cleaned: u64,
    /// Batches committed.
    pub batches: u64,
    /// Records committed.
    pub records: u64,
    /// Syncs of segments.
    pub syncs: u64,
    /// Snapshots of the index that are kept.
    pub snapshots: u64,
    /// Log written since the last snapshot, in bytes: what an opening would have to replay.
    pub replay_bytes: u64,
    /// The segments, the oldest first.
    pub segment_list: Vec<SegmentInfo>,
}

/// A segment at a glance.
#[derive(Clone, Debug, Serialize)]
pub struct SegmentInfo {
    /// The file.
    pub file: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// The number of bytes that the log has written to it; 0 if it is only made ready.
    pub written_bytes: u64,
    /// Bytes that the index refers to.
    pub live_bytes: u64,
}

impl Engine {
    /// Returns the store at a glance. Takes a time that grows with the number of segments, not with that of
    /// objects.
    pub(crate) fn info(self: &Arc<Self>) -> Info {
        let footprint = self.space.index.footprint();
        let describe = |segment: Arc<Segment>| {
            let end = segment.end.load(Ordering::Relaxed);
            SegmentInfo {
                file: self.disk.describe(&segment.name),
                bytes: segment.capacity,
                written_bytes: if end > SEGMENT_HEAD_BYTES { end } else { 0 },
                live_bytes: segment.live_bytes(),
            }
        };
        let segments: Vec<SegmentInfo> = self.table.all().into_iter().map(describe).collect();
        let counters = &self.maintenance.counters;
        let user_bytes = self.user_bytes.load(Ordering::Relaxed);
        let log_bytes = self.log.counters.log_bytes.load(Ordering::Relaxed);
        Info {
            format: FORMAT_VERSION,
            version: env!("CARGO_PKG_VERSION"),
            durability: self.options.durability.to_string(),
            persistent: self.memory.is_none(),
            read_only: self.log.failure().map(|failure| failure.message.clone()),
            objects: self.names.read().len() as u64,
            extents: footprint.extents as u64,
            extent_index_bytes: footprint.extent_memory_bytes as u64,
            version_max: self.space.index.version_max(),
            segments: segments.len() as u64,
            segment_bytes: self.table.capacity_bytes() + self.space.spare_bytes(),
            live_bytes: self.live_bytes(),
            taken_bytes: self.taken_bytes(),
            capacity_bytes: self.space.capacity_bytes,
            volume_free_bytes: self.disk.volume().ok().flatten().map(|volume| volume.available_bytes),
            out_of_space: self.space.refused(),
            user_bytes,
            log_bytes,
            moved_bytes: counters.moved_bytes.load(Ordering::Relaxed),
            write_amplification: (user_bytes > 0 && self.memory.is_none())
                .then(|| log_bytes as f64 / user_bytes as f64),
            segments_cleaned: counters.cleaned.load(Ordering::Relaxed),
            batches: self.log.counters.batches.load(Ordering::Relaxed),
            records: self.log.counters.records.load(Ordering::Relaxed),
            syncs: self.log.counters.syncs.buckets().iter().sum(),
            snapshots: counters.snapshots.load(Ordering::Relaxed),
            replay_bytes: self.log.since_snapshot_bytes(),
            segment_list: segments,
        }
    }
}

#[cfg(feature = "sim")]
impl Engine {
    pub(crate) fn check_counts(&self) {
        let mut live: HashMap<u32, u64> = HashMap::new();
        let mut footprint = Footprint::default();
        let (mut live_bytes, mut memory_bytes) = (0, 0);
        for shard in &self.shards {
            let shard = shard.lock();
            for (name, node) in shard.iter() {
                footprint += node.footprint(name.as_bytes());
                for entry in node.forks.values().flat_map(|fork| fork.map.iter()) {
                    if let Place::Data { chunk, .. } = entry.place() {
                        *live.entry(chunk.segment).or_default() += entry.len();
                    }
                }
            }
            if self.memory.is_some() {
                assert_eq!(shard.blocks().live().collect::<HashMap<_, _>>(), live, "live bytes of blocks");
                memory_bytes += shard.blocks().memory_bytes();
                live_bytes += std::mem::take(&mut live).into_values().sum::<u64>();
            }
        }
        if let Some(memory) = &self.memory {
            assert_eq!((memory.live_bytes(), memory.block_bytes()), (live_bytes, memory_bytes as u64));
        }
        let segments = self.table.all();
        for segment in &segments {
            let found = live.remove(&segment.id).unwrap_or(0);
            assert_eq!(segment.live_bytes(), found, "live bytes of {}", segment.name);
        }
        assert!(live.is_empty(), "the index refers to segments that are gone: {live:?}");
        assert_eq!(self.space.index.footprint(), footprint, "what the index takes");
    }

    /// Checks the counters of the files. See [`crate::LogStore::check_files`].
    #[cfg(feature = "sim")]
    pub(crate) fn check_files(&self) {
        let files = self.disk.list().expect("a disk of a test lists its files");
        let found: u64 = files.iter().map(|(_, bytes)| bytes.next_multiple_of(BLOCK_BYTES)).sum();
        assert_eq!(self.file_bytes(), found, "what is taken, and what {files:?} take");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LogStore, Options};

    #[test]
    fn a_glance_at_the_store_takes_no_look_at_its_objects() {
        let store = LogStore::memory(Options::default());
        let engine = Arc::clone(&store.owner.engine);
        let shards: Vec<_> = engine.shards.iter().map(|shard| shard.lock()).collect();
        let (send, answer) = std::sync::mpsc::channel();
        let asking = store.clone();
        std::thread::spawn(move || send.send((asking.info().objects, asking.failure())));
        // Should it wait for an object, it waits forever.
        let answer = answer.recv_timeout(std::time::Duration::from_secs(60));
        drop(shards);
        assert_eq!(answer, Ok((0, None)));
    }
}
