//! Measurements of the embedded engine that the read/modify/write workload does not cover: large appends against the
//! disk's own speed, the time to reopen after a crash, and the memory of the index.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nacre_object::{ByteRange, Fork, ObjectId, Outcome, ReadOp, Transaction, WriteOp};

use crate::BenchError;
use crate::kit::peer::{find_program, temporary_folder};
use crate::kit::process::together;
use crate::kit::server::{self, Durability, ServerPlan, Servers};

const MIB: usize = 1 << 20;

/// Measures appends of 1 MiB to one object by one client, each durable before the next, in bytes per second.
pub(super) async fn append(folder: Option<&Path>, window: Duration) -> Result<f64, BenchError> {
    let folder = temporary_folder(folder)?;
    let store = server::open(&format!("file:{}", folder.path().join("store").display())).await?;
    let object = ObjectId::try_from("append")?;
    // Not all alike, so that nothing on the way can make it smaller.
    let payload: Vec<u8> =
        (0..MIB as u32).map(|byte| (byte.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let payload = Bytes::from(payload);
    let begun = Instant::now();
    let mut appended = 0;
    while begun.elapsed() < window {
        let transaction = Transaction::new().write(Fork::DEFAULT, appended, payload.clone());
        store.apply(&object, transaction).await?;
        appended += MIB as u64;
    }
    let rate = appended as f64 / begun.elapsed().as_secs_f64();
    store.close()?;
    Ok(rate)
}

/// Measures such appends by `fio`, in the same folder, in bytes per second.
pub(super) fn append_by_fio(folder: Option<&Path>, window: Duration) -> Result<f64, BenchError> {
    let fio = find_program("fio", "fio")?;
    let folder = temporary_folder(folder)?;
    let output = Command::new(fio)
        .args(["--name=append", "--rw=write", "--bs=1m", "--fdatasync=1", "--ioengine=psync"])
        .args(["--size=16g", "--output-format=json", "--time_based=0"])
        .arg(format!("--runtime={}", window.as_secs().max(1)))
        .arg(format!("--directory={}", folder.path().display()))
        .output()
        .map_err(BenchError::io("run fio"))?;
    let wrong = |what: &str| {
        let said = String::from_utf8_lossy(&output.stderr);
        BenchError::peer("fio", format!("{what}: {}", said.lines().next().unwrap_or_default()))
    };
    let json: serde_json::Value =
        serde_json::from_slice(&output.stdout).map_err(|_| wrong("its results are not JSON"))?;
    json["jobs"][0]["write"]["bw_bytes"].as_f64().ok_or_else(|| wrong("its results lack the rate"))
}

/// The results of reopening a store after a crash.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub(super) struct Reopening {
    /// The number of extents in the index.
    pub(super) extents: u64,
    /// The size of the log that the start had to replay, in bytes: what was written since the last snapshot of the index when
    /// the server was killed.
    pub(super) log_bytes: u64,
    /// The time from the start of the server until it listens, in seconds.
    pub(super) open_s: f64,
    /// The memory of the server after that, less that of an empty one, per extent, in bytes.
    pub(super) resident_bytes_per_extent: f64,
    /// The memory of the index of extents, as reported by the engine, per extent, in bytes.
    pub(super) index_bytes_per_extent: f64,
}

/// Fills a server with extents of 1 KiB, kills it, and starts it again.
pub(super) async fn reopen(
    program: &Path,
    folder: Option<PathBuf>,
    extents: u64,
) -> Result<Reopening, BenchError> {
    let extents = extents / OBJECTS * OBJECTS;
    let plan = ServerPlan {
        // The log is the same; only the filling is quicker.
        durability: Durability::None,
        // No snapshot is due by the length of the log. The server takes some all the same while the index grows, because
        // their files have to become longer, so the log to be replayed is not all that was written.
        snapshot_bytes: Some(1 << 40),
        ..ServerPlan::volatile(1)
    };
    let empty_bytes = Servers::start(program, plan, folder.as_deref()).await?.memory_bytes();
    let mut servers = Servers::start(program, plan, folder.as_deref()).await?;
    fill(&servers.uri, extents).await?;
    // Before the kill: after the start the server may take a snapshot, and the count starts over.
    let log_bytes =
        info(&server::open(&servers.uri).await?).await?["replay_bytes"].as_u64().unwrap_or_default();
    let open_s = servers.kill_and_restart().await?.as_secs_f64();
    let resident_bytes = servers.memory_bytes().saturating_sub(empty_bytes);
    let store = server::open(&servers.uri).await?;
    // Every extent is there, up to the last one of the last object.
    for object in 0..OBJECTS {
        let last = (extents / OBJECTS - 1) * STRIDE;
        let read = ReadOp::Extents { fork: Fork::DEFAULT, range: ByteRange::new(last, EXTENT_BYTES as u64) };
        match store.apply(&object_id(object)?, Transaction::new().read(read)).await? {
            Outcome::Done(done) if done.version > 0 && done.existed => {}
            _ => {
                return Err(BenchError::Lost(format!("object {object} is gone after the server was killed")));
            }
        }
    }
    let info = info(&store).await?;
    let number = |name: &str| info[name].as_f64().unwrap_or_default();
    if number("extents") < extents as f64 {
        let text =
            format!("{} of {extents} extents are there after the server was killed", number("extents"));
        return Err(BenchError::Lost(text));
    }
    Ok(Reopening {
        extents,
        log_bytes,
        open_s,
        resident_bytes_per_extent: resident_bytes as f64 / extents as f64,
        index_bytes_per_extent: number("extent_index_bytes") / number("extents"),
    })
}

/// Returns what the only server of a store reports.
async fn info(store: &nacre::Store) -> Result<serde_json::Value, BenchError> {
    let reports = store.info().await?;
    Ok(reports.into_iter().next().map(|report| report.report).unwrap_or_default())
}

const EXTENT_BYTES: usize = 1 << 10;
/// The distance between extents, without which they would be merged.
const STRIDE: u64 = 2 * EXTENT_BYTES as u64;
const OBJECTS: u64 = 64;
const EXTENTS_PER_WRITE: u64 = 64;

fn object_id(object: u64) -> Result<ObjectId, BenchError> {
    Ok(ObjectId::try_from(format!("fill/{object}").as_str())?)
}

/// Writes `extents` extents, spread over the objects.
async fn fill(uri: &str, extents: u64) -> Result<(), BenchError> {
    let store = server::open(uri).await?;
    let payload = Bytes::from(vec![7; EXTENT_BYTES]);
    let fillers = (0..OBJECTS).map(async |object| {
        let object = object_id(object)?;
        let mut extent = 0;
        while extent < extents / OBJECTS {
            let next = (extent + EXTENTS_PER_WRITE).min(extents / OBJECTS);
            let extents = (extent..next).map(|extent| (extent * STRIDE, payload.clone())).collect();
            let write = WriteOp::Extents { fork: Fork::DEFAULT, extents };
            store.apply(&object, Transaction::new().change(write)).await?;
            extent = next;
        }
        Ok(())
    });
    together(fillers).await.map(drop)
}
