//! A store that is 60 % full of live data and overwritten at random stays within its bound indefinitely.

mod harness;

use std::collections::VecDeque;

use harness::{Random, Server, file};
use nacre::{Fork, Transaction};

const BLOCK_BYTES: u64 = 4096;
const LIVE_BYTES: u64 = 12 << 20;
const SEGMENT_BYTES: u64 = 1 << 20;
/// The number of times that the store is overwritten.
const CYCLES: u64 = 10;
/// The number of writes that are under way at once.
const DEPTH: usize = 64;

fn block(index: u64, generation: u64) -> Vec<u8> {
    let word = (index << 40 | generation).to_le_bytes();
    word.into_iter().cycle().take(BLOCK_BYTES as usize).collect()
}

/// Returns the bytes of all files of a folder.
fn folder_bytes(folder: &std::path::Path) -> u64 {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    // A file may disappear between being listed and being examined.
    files.filter_map(|file| file.metadata().ok()).map(|metadata| metadata.len()).sum()
}

#[test]
fn random_overwrites_stay_within_the_bound() {
    let mut random = Random::from_environment();
    let folder = harness::folder();
    let flags = ["--segment-bytes", "1MiB", "--snapshot-bytes", "4MiB", "--durability", "none"];
    let server = Server::start(&file(folder.path()), &flags);
    let store = nacre::open(&server.uri).unwrap();
    let object = store.object("blocks").unwrap();
    let blocks = LIVE_BYTES / BLOCK_BYTES;
    let mut generations = vec![0u64; blocks as usize];
    let mut written_bytes = 0;
    for cycle in 0..CYCLES {
        futures::executor::block_on(async {
            let mut under_way = VecDeque::new();
            for step in 0..blocks {
                // First every block once; then random ones.
                let mut index = if cycle == 0 { step } else { random.below(blocks) };
                // Of two concurrent writes of a block, either may come last.
                while under_way.iter().any(|(other, _)| *other == index) {
                    index = random.below(blocks);
                }
                let generation = &mut generations[index as usize];
                *generation += 1;
                let data = block(index, *generation);
                let write = Transaction::new().write(Fork::DEFAULT, index * BLOCK_BYTES, data);
                under_way.push_back((index, store.apply(object.id(), write)));
                written_bytes += BLOCK_BYTES;
                if under_way.len() == DEPTH {
                    under_way.pop_front().unwrap().1.await.unwrap();
                }
                if step % (blocks / 4) == 0 {
                    check(&server, folder.path());
                }
            }
            for (_, reply) in under_way {
                reply.await.unwrap();
            }
        });
        check(&server, folder.path());
    }
    let info = server.run(["info", "--json"]).json()[0]["report"].clone();
    println!("{} MiB written over {} MiB of live data: {info}", written_bytes >> 20, LIVE_BYTES >> 20);
    assert!(info["segments_cleaned"].as_u64().unwrap() > 0, "the cleaner had work to do");
    assert!(info["live_bytes"].as_u64().unwrap() >= LIVE_BYTES);
    // And no blocks were mixed up.
    let object = store.blocking().object("blocks").unwrap();
    for (index, generation) in generations.iter().enumerate() {
        let offset = index as u64 * BLOCK_BYTES;
        let read = object.read(offset..offset + BLOCK_BYTES).unwrap();
        let found = (0..=*generation + 1).find(|other| read.data == block(index as u64, *other));
        assert_eq!(found, Some(*generation), "block {index}");
    }
}

/// Checks that the log takes at most 1.6 times the live data and four segments.
fn check(server: &Server, folder: &std::path::Path) {
    let info = server.run(["info", "--json"]).json()[0]["report"].clone();
    let number = |name: &str| info[name].as_u64().unwrap();
    let bound = number("live_bytes") * 16 / 10 + 4 * SEGMENT_BYTES;
    assert!(number("segment_bytes") <= bound, "{} bytes, {bound} allowed: {info}", number("segment_bytes"));
    // The files agree, apart from the snapshots of the index, which is small here.
    let files = folder_bytes(folder);
    assert!(files <= bound + (1 << 20), "{files} bytes of files, {bound} allowed: {info}");
}
