//! Measures how many entries per second writers append, and what a write costs by the class `zlog` instead of a transaction.
//!
//! ```text
//! cargo run --release -p nacre-zlog --example append_rate -- [WRITERS] [BYTES] [UNDER_WAY] [FOLDER]
//! ```
//!
//! Each writer has so many appends under way. The store is in memory, or in the folder: then all that is acknowledged is durable.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nacre_class::{Bounds, Catalogue, Class, Request, Runtime, packed};
use nacre_logstore::{LogStore, Options};
use nacre_object::{
    ByteRange, Check, Fork, Guard, Key, ObjectId, ObjectStore, Outcome, Transaction, WriteOp,
};
use nacre_zlog::{Directory, Entry, Log, Shape, limit};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// The time for which each measurement runs.
const TIME: Duration = Duration::from_secs(3);

#[tokio::main]
async fn main() -> Result<(), Error> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: usize| words.get(at).map_or(Ok(default), |word| word.parse());
    let (writers, bytes, under_way) = (number(0, 64)?, number(1, 100)?, number(2, 64)?);
    let store = match words.get(3) {
        Some(folder) => LogStore::open(folder.as_ref(), Options { create: true, ..Options::default() })?,
        None => LogStore::memory(Options::default()),
    };
    let store: Arc<dyn ObjectStore> = Arc::new(store);
    for width in [1, 4] {
        let name = format!("rate-{width}-{:016x}", rand::random::<u64>());
        Directory::new(store.clone())?.create(&name, Shape { width, ..Shape::default() }).await?;
        let log = Log::open(store.clone(), &name, Default::default()).await?;
        let begun = Instant::now();
        let tasks: Vec<_> = (0..writers)
            .map(|_| {
                let (log, data) = (log.clone(), Bytes::from(vec![b'x'; bytes]));
                tokio::spawn(async move {
                    let mut appended = 0_u64;
                    while begun.elapsed() < TIME {
                        let mut appending = Vec::with_capacity(under_way);
                        for _ in 0..under_way {
                            appending.push(log.appender().submit(Entry::new(data.clone())).await?);
                        }
                        for position in appending {
                            position.await?;
                            appended += 1;
                        }
                    }
                    Ok::<u64, Error>(appended)
                })
            })
            .collect();
        let mut appended = 0;
        for task in tasks {
            appended += task.await??;
        }
        let rate = appended as f64 / begun.elapsed().as_secs_f64();
        println!(
            "{writers} writers, {under_way} under way each, {bytes} B, width {width}: {rate:.0} appends/s"
        );
    }
    one_by_one(&*store, bytes).await
}

/// Measures a write of one entry as a transaction, and by the class.
async fn one_by_one(store: &dyn ObjectStore, bytes: usize) -> Result<(), Error> {
    let epoch = || Key::new("epoch");
    let value = Bytes::copy_from_slice(&1_u64.to_be_bytes());
    let object = ObjectId::new(format!("one-by-one-{:016x}", rand::random::<u64>()))?;
    let create = Transaction::new().change(WriteOp::SetAttribute { name: epoch()?, value: value.clone() });
    store.apply(&object, create).await?;
    let data = vec![b'x'; bytes];
    let mut place = 0_u64;
    let (index, entries) = (Fork::new("index")?, Fork::new("data")?);
    let begun = Instant::now();
    while begun.elapsed() < TIME {
        let range = ByteRange::new(place * 16, 16);
        let write = Transaction::new()
            .guard(Guard::Attribute { name: epoch()?, check: Check::Equal(value.clone()) })
            .if_version(index.clone(), range, 0)
            .write(index.clone(), range.offset, vec![1; 16])
            .write(entries.clone(), place * limit::SLOT_BYTES, data.clone());
        assert!(matches!(store.apply(&object, write).await?, Outcome::Done(_)));
        place += 1;
    }
    let native = begun.elapsed() / place as u32;
    let object = ObjectId::new(format!("by-class-{:016x}", rand::random::<u64>()))?;
    let text = include_str!("../../../classes/zlog.lua");
    let class = Class::new("zlog".to_owned(), 1, text.into(), Vec::new(), Bounds::default());
    let (catalogue, runtime) = (Arc::new(Catalogue::of(class)), Runtime::new(1));
    let call = async |method: &str, arguments: serde_json::Value| -> Result<(), Error> {
        let input = packed::pack(arguments.as_array().ok_or("an array")?)?;
        let request = Request::new(&object, "zlog", method).input(input);
        runtime.call(store, &catalogue, &request).await?;
        Ok(())
    };
    call("create", serde_json::json!([1])).await?;
    let text = "x".repeat(bytes);
    let mut place = 0;
    let begun = Instant::now();
    while begun.elapsed() < TIME {
        call("write", serde_json::json!([1, place, text])).await?;
        place += 1;
    }
    let class = begun.elapsed() / place;
    println!("one entry of {bytes} B: {native:.1?} as a transaction, {class:.1?} by the class");
    Ok(())
}
