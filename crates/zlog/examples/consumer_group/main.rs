//! Three workers share out the entries of a log; one of them dies in the middle of an entry, which another one takes over.
//!
//! ```text
//! cargo run -p nacre-zlog --example consumer_group
//! ```

mod group;

use std::sync::Arc;
use std::time::Duration;

use group::Worker;
use nacre_logstore::{LogStore, Options};
use nacre_zlog::{Directory, Entry, Log, Shape};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let store = Arc::new(LogStore::memory(Options::default()));
    Directory::new(store.clone())?.create("orders", Shape::default()).await?;
    let log = Log::open(store.clone(), "orders", Default::default()).await?;
    for order in ["tea", "coffee", "soup", "bread", "salt"] {
        log.append(Entry::new(order)).await?;
    }
    let mut tasks = Vec::new();
    for number in 1..=3 {
        let worker = Worker::join(store.clone(), log.clone(), "kitchen", Duration::from_millis(200))?;
        tasks.push(tokio::spawn(async move {
            // The third one dies with its first entry.
            for _ in 0..20 {
                if let Some(job) = worker.take().await? {
                    println!("worker {number} has position {}: {:?}", job.position, job.entry.data);
                    if number == 3 {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    worker.done(&job).await?;
                } else {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
            Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}
