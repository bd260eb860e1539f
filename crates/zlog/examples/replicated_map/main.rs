//! A replicated map on a log, with two replicas, a snapshot, and a third replica that begins with it.
//!
//! ```text
//! cargo run -p nacre-zlog --example replicated_map
//! ```

mod replica;

use std::sync::Arc;

use nacre_logstore::{LogStore, Options};
use nacre_zlog::{Directory, Log, Shape};
use replica::{Command, Replica};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let store = Arc::new(LogStore::memory(Options::default()));
    Directory::new(store.clone())?.create("map", Shape::default()).await?;
    let open = async || -> Result<Replica, Box<dyn std::error::Error + Send + Sync>> {
        Replica::open(store.clone(), Log::open(store.clone(), "map", Default::default()).await?).await
    };
    let (mut one, mut other) = (open().await?, open().await?);
    one.change(Command::Set { key: "tea".into(), value: "3".into() }).await?;
    println!("the other replica reads tea = {:?}", other.get("tea").await?);
    let raise = Command::SetIf { key: "tea".into(), expected: Some("3".into()), value: "4".into() };
    println!("the first change from 3 to 4 was made: {}", one.change(raise.clone()).await?);
    println!("the second one was made: {}", other.change(raise).await?);
    other.change(Command::Remove { key: "coffee".into() }).await?;
    println!("the log is trimmed before position {}", one.take_snapshot().await?);
    println!("a third replica reads {:?}", open().await?.all().await?);
    Ok(())
}
