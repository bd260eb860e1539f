//! The limit that the disk sets: one loop writes as many entries as all writers have under way, and syncs them.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use super::client::content;
use super::point::Point;
use crate::BenchError;
use crate::kit::latency::Latencies;
use crate::kit::peer::temporary_folder;

/// The length of the file, which is written before: no write makes it longer, so a sync has only content to bring to the disk.
const FILE_BYTES: u64 = 256 << 20;

/// Returns the number of entries that were written and synced within the window, and the latencies of the syncs.
pub(super) fn measure(
    point: &Point,
    folder: Option<&Path>,
    window: Duration,
) -> Result<(u64, Latencies), BenchError> {
    let folder = temporary_folder(folder)?;
    let file = File::create(folder.path().join("disk")).map_err(BenchError::io("make a file"))?;
    let failed = |error: rustix::io::Errno| BenchError::io("write and sync a file")(error.into());
    let chunk = content(1 << 20, 0);
    for number in 0..FILE_BYTES >> 20 {
        file.write_all_at(&chunk, number << 20).map_err(BenchError::io("write a file"))?;
    }
    rustix::fs::fsync(&file).map_err(failed)?;
    let entries = u64::from(point.writers * point.depth);
    let entry = content(point.entry_bytes, 1);
    let batch: Vec<u8> = entry.repeat(entries as usize);
    let mut latencies = Latencies::new()?;
    let (mut written, mut offset) = (0, 0);
    let begun = Instant::now();
    while begun.elapsed() < window {
        if offset + batch.len() as u64 > FILE_BYTES {
            offset = 0;
        }
        let started = Instant::now();
        file.write_all_at(&batch, offset).map_err(BenchError::io("write a file"))?;
        rustix::fs::fdatasync(&file).map_err(failed)?;
        latencies.record_many(started.elapsed(), entries);
        offset += batch.len() as u64;
        written += entries;
    }
    // As many as in a window that ends with a sync.
    let share = window.as_secs_f64() / begun.elapsed().as_secs_f64();
    Ok(((written as f64 * share) as u64, latencies))
}
