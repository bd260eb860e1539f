//! Full volumes: real file systems of a few hundred megabytes that a server fills, empties and overwrites.
//!
//! They are mounted for these tests, which requires root. Without it the tests print that they are skipped; the same
//! guarantees are checked on simulated disks by the tests of `crates/logstore`.

mod harness;

use std::collections::VecDeque;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Random, Server, file};
use nacre::{ErrorKind, Fork, Key, Outcome, Transaction, WriteOp};

const MIB: u64 = 1 << 20;

/// A file system of its own, unmounted when the test is over.
struct Volume {
    /// The mount point; empty except for files of the file system's own.
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Volume {
    /// Creates and mounts a volume of so many bytes. Without root it prints a message and returns `None`.
    fn new(bytes: u64) -> Option<Volume> {
        if !rustix::process::geteuid().is_root() {
            println!("mounting a file system takes root: this test was not run");
            return None;
        }
        let folder = harness::folder();
        let path = folder.path().join("volume");
        std::fs::create_dir(&path).unwrap();
        let image = folder.path().join("image");
        let file = std::fs::File::create(&image).unwrap();
        file.set_len(bytes).unwrap();
        let run = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
        let ext4 = run(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image))
            && run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&path));
        if !ext4 {
            // Without loop devices, a file system in memory is used.
            let size = format!("size={bytes}");
            let mounted = run(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&path));
            assert!(mounted, "neither a loop device nor a tmpfs could be mounted");
        }
        Some(Volume { path, _folder: folder })
    }

    fn store(&self) -> String {
        file(&self.path.join("store"))
    }

    /// Returns the bytes that are still available to any user.
    fn available_bytes(&self) -> u64 {
        let volume = rustix::fs::statvfs(&self.path).unwrap();
        volume.f_bavail * volume.f_frsize
    }

    /// Takes all the space that is left, as another program might.
    fn fill_up(&self, name: &str) {
        let file = std::fs::File::create(self.path.join(name)).unwrap();
        let mut bytes = self.available_bytes();
        let mut offset = 0;
        while bytes >= 4096 {
            match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), offset, bytes) {
                Ok(()) => offset += bytes,
                Err(_) => bytes /= 2,
            }
        }
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // The server that used it may still be ending; a lazy unmount completes when it has.
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}

fn content(seed: u64, bytes: u64) -> Vec<u8> {
    let mut content =
        seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes().repeat(bytes.div_ceil(8) as usize);
    content.truncate(bytes as usize);
    content
}

/// Writes objects of so many bytes until one is refused, with advice in the error. Returns the number of objects.
fn fill(server: &Server, from: u64, object_bytes: u64) -> u64 {
    let store = nacre::open(&server.uri).unwrap().blocking();
    for number in from.. {
        let object = store.object(format!("object-{number:06}")).unwrap();
        let Err(error) = object.write(0, content(number, object_bytes)) else { continue };
        assert_eq!(error.kind, ErrorKind::OutOfSpace, "{error}");
        for part in ["the store is full", "live data", "remove objects or give the store more room"] {
            assert!(error.message.contains(part), "{error}");
        }
        return number;
    }
    unreachable!("a volume has an end");
}

fn check(server: &Server, numbers: impl Iterator<Item = u64>, object_bytes: u64) {
    let store = nacre::open(&server.uri).unwrap().blocking();
    for number in numbers {
        let object = store.object(format!("object-{number:06}")).unwrap();
        let read = object.read(0..object_bytes).unwrap();
        assert!(read.data == content(number, object_bytes), "object {number} is not what was written");
    }
}

fn remove(server: &Server, numbers: impl Iterator<Item = u64>) {
    let store = nacre::open(&server.uri).unwrap().blocking();
    for number in numbers {
        assert!(store.object(format!("object-{number:06}")).unwrap().remove().unwrap());
    }
}

#[test]
fn a_full_volume_is_no_dead_end() {
    let Some(volume) = Volume::new(200 * MIB) else { return };
    const OBJECT_BYTES: u64 = MIB;
    let server = Server::start(&volume.store(), &[]);
    let count = fill(&server, 0, OBJECT_BYTES);
    // The capacity of the volume except for its own tables, a few segments and the reserve.
    assert!(count * OBJECT_BYTES >= 160 * MIB, "only {count} objects of 1 MiB found room");
    // Nothing was lost by the refusal, and a write that takes less space is accepted.
    check(&server, 0..count, OBJECT_BYTES);
    remove(&server, 0..10);
    let more = fill(&server, 1000, OBJECT_BYTES) - 1000;
    assert!(more >= 8, "{more} objects found the room of 10 that were removed");

    // The result is the same after a kill at the worst moment, any number of times.
    server.kill();
    let server = Server::start(&volume.store(), &[]);
    check(&server, (10..count).chain(1000..1000 + more), OBJECT_BYTES);
    remove(&server, 10..20);
    server.run(["compact"]).ok();
    let again = fill(&server, 2000, OBJECT_BYTES) - 2000;
    assert!(again >= 8, "{again} objects found the room of 10 that were removed");
    assert!(server.stop(rustix::process::Signal::TERM).success(), "a full store is closed in good order");

    // Another program takes the rest.
    volume.fill_up("somebody-else");
    let server = Server::start(&volume.store(), &[]);
    remove(&server, 20..30);
    let last = fill(&server, 3000, OBJECT_BYTES) - 3000;
    check(&server, (30..count).chain(2000..2000 + again).chain(3000..3000 + last), OBJECT_BYTES);
    remove(&server, 30..count);
    check(&server, (1000..1000 + more).chain(2000..2000 + again), OBJECT_BYTES);
    assert!(fill(&server, 4000, OBJECT_BYTES) - 4000 >= (count - 30) * 9 / 10);
}

/// Overwrites blocks at random, many at a time, and records the contents of each.
fn overwrite(server: &Server, blocks: u64, writes: u64, random: &mut Random, generations: &mut Vec<u64>) {
    const DEPTH: usize = 32;
    let store = nacre::open(&server.uri).unwrap();
    let object = store.object("blocks").unwrap();
    let first = generations.is_empty();
    generations.resize(blocks as usize, 0);
    let done = |result: Result<Outcome, nacre_object::StoreError>| {
        if let Err(error) = result {
            panic!("{error}\n{}", server.run(["info", "--json"]).json()[0]["report"]);
        }
    };
    futures::executor::block_on(async {
        let mut under_way: VecDeque<(u64, _)> = VecDeque::new();
        for step in 0..writes {
            let mut index = if first { step } else { random.below(blocks) };
            // Of two concurrent writes of a block, either may come last.
            while under_way.iter().any(|(other, _)| *other == index) {
                index = random.below(blocks);
            }
            generations[index as usize] += 1;
            let data = content(index << 32 | generations[index as usize], BLOCK_BYTES);
            let write = Transaction::new().write(Fork::DEFAULT, index * BLOCK_BYTES, data);
            under_way.push_back((index, store.apply(object.id(), write)));
            if under_way.len() == DEPTH {
                done(under_way.pop_front().unwrap().1.await);
            }
        }
        for (_, reply) in under_way {
            done(reply.await);
        }
    });
}

const BLOCK_BYTES: u64 = 4096;

fn check_blocks(server: &Server, generations: &[u64]) {
    let object = nacre::open(&server.uri).unwrap().blocking().object("blocks").unwrap();
    // Many blocks with each read.
    const BATCH: usize = 64;
    for (batch, generations) in generations.chunks(BATCH).enumerate() {
        let first = (batch * BATCH) as u64;
        let end = first + generations.len() as u64;
        let read = object.read(first * BLOCK_BYTES..end * BLOCK_BYTES).unwrap();
        assert_eq!(read.data.len(), generations.len() * BLOCK_BYTES as usize);
        let blocks = read.data.chunks(BLOCK_BYTES as usize);
        for ((index, generation), block) in (first..).zip(generations).zip(blocks) {
            let expected = content(index << 32 | generation, BLOCK_BYTES);
            assert!(block == expected, "block {index} is not the last one");
        }
    }
}

/// Returns how many of so many blocks the tests below overwrite: a quarter, in which the cleaner goes through a log with a tenth
/// of garbage more than twice, unless NACRE_FULL_ROUNDS says how often all of them.
fn overwritten(blocks: u64) -> u64 {
    let rounds = std::env::var("NACRE_FULL_ROUNDS");
    rounds.map_or(blocks / 4, |text| blocks * text.parse::<u64>().expect("NACRE_FULL_ROUNDS is a number"))
}

#[test]
fn a_store_works_at_nine_tenths_of_its_volume() {
    let Some(volume) = Volume::new(64 * MIB) else { return };
    let mut random = Random::from_environment();
    let live_bytes = volume.available_bytes() / 10 * 9;
    let blocks = live_bytes / BLOCK_BYTES;
    let mut generations = Vec::new();
    let server = Server::start(&volume.store(), &["--durability", "none"]);
    overwrite(&server, blocks, blocks, &mut random, &mut generations);
    overwrite(&server, blocks, overwritten(blocks), &mut random, &mut generations);
    check_blocks(&server, &generations);
    // Another program takes what is left: the store needs no more than it has.
    volume.fill_up("somebody-else");
    overwrite(&server, blocks, overwritten(blocks) / 2, &mut random, &mut generations);
    server.kill();
    let server = Server::start(&volume.store(), &["--durability", "none"]);
    check_blocks(&server, &generations);
    overwrite(&server, blocks, overwritten(blocks) / 4, &mut random, &mut generations);
    check_blocks(&server, &generations);
}

/// Returns the bytes that a folder occupies in its file system, itself included, as `du` counts them.
fn taken(path: &Path) -> u64 {
    let files = std::fs::read_dir(path).unwrap().filter_map(|entry| entry.ok()?.metadata().ok());
    files.chain([std::fs::metadata(path).unwrap()]).map(|metadata| metadata.blocks() * 512).sum()
}

#[test]
fn a_capacity_is_a_bound_for_small_objects_and_for_keys_too() {
    let capacity = 8 * MIB;
    for keys in [false, true] {
        let folder = harness::folder();
        let flags = ["--capacity", "8MiB", "--durability", "none"];
        let server = Server::start(&file(folder.path()), &flags);
        let store = nacre::open(&server.uri).unwrap();
        let write = |number: u64| {
            // The store keeps ten times as many bytes as the data has.
            let data = content(number, 100);
            match keys {
                true => {
                    let key = Key::try_from(format!("key-{number:08}").as_str()).unwrap();
                    let set = WriteOp::SetKey { key, value: data.into() };
                    store.apply(store.object("keys").unwrap().id(), Transaction::new().change(set))
                }
                false => {
                    let write = Transaction::new().write(Fork::DEFAULT, 0, data);
                    store.apply(store.object(format!("object-{number:08}")).unwrap().id(), write)
                }
            }
        };
        let error = futures::executor::block_on(async {
            for number in (0..).step_by(64) {
                let replies: Vec<_> = (number..number + 64).map(write).collect();
                assert!(taken(folder.path()) <= capacity, "{} bytes", taken(folder.path()));
                for reply in replies {
                    if let Err(error) = reply.await {
                        return error;
                    }
                }
            }
            unreachable!("a capacity has an end");
        });
        assert_eq!(error.kind, ErrorKind::OutOfSpace, "{error}");
        let found = taken(folder.path());
        assert!(found <= capacity && found > capacity * 6 / 10, "{found} bytes, keys: {keys}");
        for number in 0..if keys { 1 } else { 500 } {
            let name = if keys { "keys".to_owned() } else { format!("object-{number:08}") };
            let remove = Transaction::new().change(WriteOp::Remove);
            futures::executor::block_on(store.apply(store.object(&name).unwrap().id(), remove)).unwrap();
        }
        server.run(["compact"]).ok();
        assert!(taken(folder.path()) <= capacity, "{} bytes, keys: {keys}", taken(folder.path()));
        futures::executor::block_on(write(0)).unwrap();
    }
}

#[test]
fn a_capacity_is_a_bound_and_can_be_filled() {
    let folder = harness::folder();
    let mut random = Random::from_environment();
    let capacity = 32 * MIB;
    let flags = ["--capacity", "32MiB", "--durability", "none"];
    let server = Server::start(&file(folder.path()), &flags);
    let blocks = capacity / 10 * 9 / BLOCK_BYTES;
    let mut generations = Vec::new();
    for writes in [blocks, overwritten(blocks)] {
        overwrite(&server, blocks, writes, &mut random, &mut generations);
        assert!(taken(folder.path()) <= capacity, "{} bytes of files", taken(folder.path()));
    }
    check_blocks(&server, &generations);
    let store = nacre::open(&server.uri).unwrap().blocking();
    let error = store.object("large").unwrap().write(0, vec![1; 6 << 20]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::OutOfSpace);
    assert!(error.message.contains("its capacity is 33554432 bytes"), "{error}");
    assert!(taken(folder.path()) <= capacity);
    // Nothing was changed by the refusal, and a transaction that shrinks the data is accepted.
    check_blocks(&server, &generations);
    store.object("blocks").unwrap().truncate(0).unwrap();
    store.object("large").unwrap().write(0, vec![1; 6 << 20]).unwrap();
    assert!(taken(folder.path()) <= capacity);
}

#[test]
fn garbage_is_found_before_a_write_is_refused() {
    const OBJECT_BYTES: u64 = MIB / 2;
    let Some(volume) = Volume::new(200 * MIB) else { return };
    // 150 MiB are available, 100 of them live and 48 garbage.
    let spoiler = std::fs::File::create(volume.path.join("somebody-else")).unwrap();
    let excess = volume.available_bytes() - 160 * MIB;
    rustix::fs::fallocate(&spoiler, rustix::fs::FallocateFlags::empty(), 0, excess).unwrap();
    let server = Server::start(&volume.store(), &[]);
    let store = nacre::open(&server.uri).unwrap().blocking();
    let put = |number: u64, seed: u64| {
        store.object(format!("object-{number:06}")).unwrap().write(0, content(seed, OBJECT_BYTES))
    };
    for number in 0..200 {
        put(number, number).unwrap();
    }
    for number in (0..192).step_by(2) {
        put(number, number).unwrap();
    }
    for number in 200..260 {
        put(number, number).unwrap();
    }
    check(&server, 0..260, OBJECT_BYTES);
}
