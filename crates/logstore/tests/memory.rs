//! The size of the process that has a store open.

use std::process::Command;

use bytes::Bytes;
use nacre_logstore::{Durability, LogStore, Options};
use nacre_object::testkit::block_on;
use nacre_object::{ErrorKind, Fork, ObjectId, ObjectStore, Transaction, WriteOp};

/// Set for a test that runs again in a process of its own.
const AGAIN: &str = "NACRE_TEST_AGAIN";

/// Runs a test of this program in a process of its own, in which nothing else takes memory.
fn alone(test: &str, run: impl FnOnce()) {
    if std::env::var_os(AGAIN).is_some() {
        return run();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let ended = command.args(["--exact", test, "--nocapture"]).env(AGAIN, "1").output().unwrap();
    let shown = String::from_utf8_lossy(&ended.stdout);
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() && shown.contains("1 passed"), "{shown}\n{errors}");
}

/// Runs a test of this program alone, on a store in a folder.
fn in_a_folder(test: &str, run: impl FnOnce(&LogStore)) {
    alone(test, || {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { durability: Durability::None, segment_bytes: 4 << 20, ..Options::default() };
        run(&LogStore::open(folder.path(), options).unwrap());
    });
}

/// Returns a size of this process in bytes, by its name in the kernel's account.
fn process_bytes(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn write(store: &LogStore, object: &ObjectId, extents: Vec<(u64, Bytes)>) {
    let write = WriteOp::Extents { fork: Fork::DEFAULT, extents };
    block_on(store.apply(object, Transaction::new().change(write))).unwrap();
}

#[test]
fn small_objects_take_little_memory() {
    in_a_folder("small_objects_take_little_memory", |store| {
        let data = Bytes::from(vec![7; 64]);
        let make = |objects: std::ops::Range<u64>, extents: u64| {
            for index in objects {
                let object = ObjectId::try_from(&*format!("object-{index:07}")).unwrap();
                write(store, &object, (0..extents).map(|extent| (extent * 128, data.clone())).collect());
            }
        };
        make(0..1_000, 1);
        let empty = process_bytes("VmRSS");
        let objects = 200_000;
        make(1_000..1_000 + objects, 1);
        let small = process_bytes("VmRSS");
        let each = (small - empty) / objects;
        assert!(each <= 280, "{each} bytes for an object of one extent");
        let (large, extents) = (2_000, 100);
        make(1_000_000..1_000_000 + large, extents);
        let each = (process_bytes("VmRSS") - small) / (large * extents);
        assert!(each <= 64, "{each} bytes for an extent of an object of {extents}");
    });
}

fn make_and_remove(store: &LogStore, objects: std::ops::Range<u64>) {
    let data = Bytes::from(vec![7; 64]);
    for index in objects {
        write(store, &numbered(index), vec![(0, data.clone())]);
        block_on(store.apply(&numbered(index), Transaction::new().change(WriteOp::Remove))).unwrap();
    }
}

#[test]
fn removed_objects_take_no_memory() {
    in_a_folder("removed_objects_take_no_memory", |store| {
        // As many as are remembered.
        make_and_remove(store, 0..70_000);
        let before = process_bytes("VmRSS");
        make_and_remove(store, 70_000..350_000);
        let grown = process_bytes("VmRSS").saturating_sub(before);
        assert!(grown <= 16 << 20, "{grown} bytes more for 280,000 removed objects");
        assert!(store.removed_objects() <= 66_000, "{} are remembered", store.removed_objects());
        store.check_counts();
    });
}

#[test]
fn objects_removed_from_a_volatile_store_take_no_memory() {
    alone("objects_removed_from_a_volatile_store_take_no_memory", || {
        let store = LogStore::memory(Options::default());
        make_and_remove(&store, 0..70_000);
        let before = process_bytes("VmRSS");
        make_and_remove(&store, 70_000..350_000);
        let grown = process_bytes("VmRSS").saturating_sub(before);
        assert!(grown <= 16 << 20, "{grown} bytes more for 280,000 removed objects");
        store.check_counts();
    });
}

#[test]
fn a_compaction_holds_what_it_moves_and_no_more() {
    in_a_folder("a_compaction_holds_what_it_moves_and_no_more", |store| {
        let before = process_bytes("VmRSS");
        let object = ObjectId::try_from("object").unwrap();
        let (chunk_bytes, chunks, stride) = (64 << 10, 256u64, 1 << 10);
        let whole = Bytes::from(vec![7; chunk_bytes as usize]);
        let most = Bytes::from(vec![8; stride as usize - 64]);
        for chunk in 0..chunks {
            write(store, &object, vec![(chunk * chunk_bytes, whole.clone())]);
        }
        // Of each chunk there remain pieces of 64 bytes.
        for chunk in 0..chunks {
            let begin = chunk * chunk_bytes;
            let starts = (begin..begin + chunk_bytes).step_by(stride as usize);
            write(store, &object, starts.map(|start| (start + 64, most.clone())).collect());
        }
        store.compact().unwrap();
        assert!(store.info().moved_bytes > 0, "nothing was moved");
        let grown = process_bytes("VmHWM").saturating_sub(before);
        assert!(grown <= 64 << 20, "{grown} bytes more at most");
    });
}

/// Fills a store with objects of 16 blocks until it refuses one; returns the number of objects.
fn fill(store: &LogStore, block_bytes: usize) -> u64 {
    let block = Bytes::from(vec![7; block_bytes]);
    let extents: Vec<_> = (0..16).map(|index| (index * block_bytes as u64, block.clone())).collect();
    let write = WriteOp::Extents { fork: Fork::DEFAULT, extents };
    let mut created = 0;
    loop {
        match block_on(store.apply(&numbered(created), Transaction::new().change(write.clone()))) {
            Ok(_) => created += 1,
            Err(error) if error.kind == ErrorKind::OutOfSpace => return created,
            Err(error) => panic!("{error}"),
        }
    }
}

fn numbered(index: u64) -> ObjectId {
    ObjectId::try_from(&*format!("object-{index:07}")).unwrap()
}

#[test]
fn a_volatile_store_stays_within_its_capacity() {
    alone("a_volatile_store_stays_within_its_capacity", || {
        let capacity = 64 << 20;
        let store = LogStore::memory(Options { capacity_bytes: Some(capacity), ..Options::default() });
        let before = process_bytes("VmRSS");
        // What one round leaves scattered is of no use to the next, whose blocks have another size.
        for (round, block_bytes) in [4096, 64, 65_536, 300, 1000, 16_384].into_iter().enumerate() {
            let created = fill(&store, block_bytes);
            let taken = store.info().taken_bytes;
            assert!(
                taken <= capacity && taken > capacity / 4 * 3,
                "{taken} bytes taken by {created} objects"
            );
            for index in (0..created).filter(|index| round % 2 == 1 || index % 50 > 0) {
                block_on(store.apply(&numbered(index), Transaction::new().change(WriteOp::Remove))).unwrap();
            }
            assert!(store.info().live_bytes <= taken / 20, "removals give memory back at once");
        }
        // The allocator cannot use all that small blocks leave for large ones.
        let most = process_bytes("VmHWM") - before;
        assert!(most <= 2 * capacity, "{most} bytes for a store of {capacity}");
    });
}
