//! The rate of epochs and of updates of a map, in a folder that is synced: one by one, and with many proposed at once.
//!
//! `cargo run -p nacre-map --example commits -- FOLDER`

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use nacre_logstore::{LogStore, Options};
use nacre_map::{ClusterMap, ProposeOptions, Update};
use nacre_object::{ObjectStore, Transaction, WriteOp};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("name a folder that does not exist yet")?;
    let store = Arc::new(LogStore::open(folder.as_ref(), Options { create: true, ..Options::default() })?);
    // What a map cannot be faster than: one write after another.
    let object = "plain".parse()?;
    let begun = Instant::now();
    for round in 0..500 {
        let write = WriteOp::SetKey { key: "key".parse()?, value: format!("{round}").into() };
        store.apply(&object, Transaction::new().change(write)).await?;
    }
    println!("plain writes, one by one: {:.0}/s", 500.0 / begun.elapsed().as_secs_f64());
    for (waiting, gather_ms) in [(1, 0), (16, 0), (256, 0), (256, 10)] {
        let map = ClusterMap::new(store.clone(), &format!("m{waiting}-{gather_ms}"))?;
        let gather = Duration::from_millis(gather_ms);
        let proposer = map.proposer(ProposeOptions { gather });
        let rounds = 2000 / waiting + 8;
        let begun = Instant::now();
        for round in 0..rounds {
            let update =
                |number| Update::new("bench").set(format!("{number}").parse().unwrap(), format!("{round}"));
            for committed in join_all((0..waiting).map(|number| proposer.propose(update(number)))).await {
                committed?;
            }
        }
        let (seconds, updates) = (begun.elapsed().as_secs_f64(), (rounds * waiting) as f64);
        let epochs = map.header().await?.map_or(0, |header| header.epoch) as f64;
        println!(
            "{waiting:4} at once, gathered for {gather_ms:2} ms: {:8.0} updates/s in {:6.0} epochs/s",
            updates / seconds,
            epochs / seconds
        );
    }
    Ok(())
}
