//! Full stores whose removals free nothing, chunks as large as segments, and files that nobody expects: none of them may
//! leave a store that cannot be emptied, opened or checked.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use nacre_logstore::disk::{Disk, FolderDisk};
use nacre_logstore::sim::{Faults, Moment, Operation, SimDisk};
use nacre_logstore::{Committer, LogStore, Options};
use nacre_object::testkit::block_on;
use nacre_object::{
    ByteRange, ErrorKind, Fork, Key, ObjectId, ObjectStore, Outcome, StoreError, Transaction, WriteOp,
};

fn options() -> Options {
    Options { segment_bytes: 64 << 10, committer: Committer::Caller, ..Options::default() }
}

fn sized(capacity_bytes: u64) -> Faults {
    Faults { capacity_bytes: Some(capacity_bytes), ..Faults::default() }
}

fn open(disk: &Arc<SimDisk>) -> LogStore {
    LogStore::open_on(Arc::clone(disk) as _, options()).unwrap()
}

fn apply(store: &LogStore, name: &str, transaction: Transaction) -> Result<(), StoreError> {
    let reply = store.apply(&ObjectId::try_from(name).unwrap(), transaction);
    store.turn()?;
    block_on(reply).map(|outcome| assert!(matches!(outcome, Outcome::Done(_)), "{outcome:?}"))
}

fn write(store: &LogStore, name: &str, offset: u64, data: impl Into<Bytes>) -> Result<(), StoreError> {
    apply(store, name, Transaction::new().write(Fork::DEFAULT, offset, data))
}

fn remove(store: &LogStore, name: &str) -> Result<(), StoreError> {
    apply(store, name, Transaction::new().change(WriteOp::Remove))
}

/// Writes objects of `bytes` bytes until one is refused; returns how many there are.
fn fill(store: &LogStore, bytes: usize) -> u32 {
    for number in 0.. {
        if let Err(error) = write(store, &format!("object-{number}"), 0, vec![number as u8; bytes]) {
            assert_eq!(error.kind, ErrorKind::OutOfSpace, "{error}");
            return number;
        }
    }
    unreachable!("the disk has an end");
}

/// Takes away what is left of the disk.
fn fill_up(disk: &SimDisk) {
    let used = disk.list().unwrap().iter().map(|(_, bytes)| *bytes).sum();
    disk.set_faults(sized(used));
}

/// Repeats a removal until it is refused or has been done `times` times; returns how often it was done.
fn repeat(times: u32, mut removal: impl FnMut(u32) -> Result<(), StoreError>) -> u32 {
    for number in 0..times {
        if let Err(error) = removal(number) {
            assert_eq!(error.kind, ErrorKind::OutOfSpace, "{error}");
            return number;
        }
    }
    times
}

/// Checks that a full store can be emptied, and written to again.
fn check_it_empties(store: &LogStore, count: u32) {
    store.snapshot().unwrap();
    for number in 0..count {
        remove(store, &format!("object-{number}")).unwrap();
    }
    store.compact().unwrap();
    store.snapshot().unwrap();
    write(store, "new", 0, vec![1; 8000]).unwrap();
    store.check_counts();
    store.check_files();
}

#[test]
fn removals_of_absent_objects_leave_room_to_empty_a_full_store() {
    let disk = Arc::new(SimDisk::new(1, sized(4 << 20)));
    let store = open(&disk);
    let count = fill(&store, 8000);
    fill_up(&disk);
    let done = repeat(20_000, |number| remove(&store, &format!("absent-{number:06}")));
    assert!(done < 20_000, "tombstones take room, and there is none");
    let image = Arc::new(disk.after_kill(Faults::default()));
    fill_up(&image);
    check_it_empties(&store, count);
    check_it_empties(&open(&image), count);
}

#[test]
fn sessions_are_fenced_in_a_full_store_as_long_as_its_index_has_room_and_leave_room_to_empty_it() {
    let disk = Arc::new(SimDisk::new(1, sized(4 << 20)));
    let store = open(&disk);
    let count = fill(&store, 8000);
    fill_up(&disk);
    let fence = |name: &str, session: u64| {
        let fence = Transaction::new().change(WriteOp::FenceSession { session: (1 << 60) + session });
        apply(&store, name, fence)
    };
    // A single session takes some of the index's last room.
    let fenced = repeat(1024 * count, |number| {
        fence(&format!("object-{}", number % count), u64::from(number / count))
    });
    assert!(fenced > 100 && fenced < 1024 * count, "{fenced} sessions of {count} objects");
    // All that are older than one take none, so that whoever still writes can be shut out of any object.
    for number in 0..count {
        let raise = Transaction::new().change(WriteOp::RaiseFence { token: 1 << 59 });
        apply(&store, &format!("object-{number}"), raise).unwrap();
    }
    let image = Arc::new(disk.after_kill(Faults::default()));
    fill_up(&image);
    check_it_empties(&store, count);
    check_it_empties(&open(&image), count);
}

#[test]
fn removals_of_empty_forks_leave_room_to_empty_a_full_store() {
    let disk = Arc::new(SimDisk::new(1, sized(4 << 20)));
    let store = open(&disk);
    let fork = |number: u32| Fork::new(format!("fork-{number:05}")).unwrap();
    for number in 0..6000 {
        apply(&store, "forks", Transaction::new().write(fork(number), 0, Vec::new())).unwrap();
    }
    store.snapshot().unwrap();
    store.snapshot().unwrap();
    let count = fill(&store, 8000);
    fill_up(&disk);
    let done = repeat(6000, |number| {
        apply(&store, "forks", Transaction::new().change(WriteOp::RemoveFork { fork: fork(number) }))
    });
    assert!(done < 6000, "holes take room, and there is none");
    check_it_empties(&store, count);
    remove(&store, "forks").unwrap();
}

#[test]
fn chunks_as_large_as_a_segment_leave_room_for_the_index() {
    for (capacity, block) in [(8 << 20, 60_000), (16 << 20, 60_000), (16 << 20, 30_000)] {
        let disk = Arc::new(SimDisk::new(1, sized(capacity)));
        let store = open(&disk);
        let mut blocks = 0;
        while write(&store, "file", blocks * block, vec![1; block as usize]).is_ok() {
            blocks += 1;
        }
        fill_up(&disk);
        store.snapshot().unwrap();
        let left = blocks * 9 / 10;
        for number in left..blocks {
            let range = ByteRange::new(number * block, block);
            apply(&store, "file", Transaction::new().change(WriteOp::Zero { fork: Fork::DEFAULT, range }))
                .unwrap();
        }
        let size = left * block;
        apply(&store, "file", Transaction::new().change(WriteOp::Truncate { fork: Fork::DEFAULT, size }))
            .unwrap();
        // Pieces in the middle of what is left, so that segments are cleaned.
        for number in 0..2 * left {
            let at = number % left * block + number * 37 % (block / 8000) * 8000;
            write(&store, "file", at, vec![2; 4000]).unwrap();
        }
        store.snapshot().unwrap();
        remove(&store, "file").unwrap();
        write(&store, "new", 0, vec![1; 8000]).unwrap();
        store.check_counts();
        store.check_files();
    }
}

#[test]
fn removals_that_free_nothing_leave_room_to_empty_a_store_of_large_chunks() {
    let disk = Arc::new(SimDisk::new(1, sized(16 << 20)));
    let store = open(&disk);
    let count = fill(&store, 60_000);
    fill_up(&disk);
    let key = Key::try_from("absent").unwrap();
    let nothing = || Transaction::new().change(WriteOp::RemoveKey { key: key.clone() });
    let done = repeat(1500, |_| apply(&store, "object-0", nothing()));
    assert!(done > 700, "{done} removals found room");
    check_it_empties(&store, count);
}

/// A 3,000-byte object whose payload rots in the first segment, with neighbours that are removed. Returns the segment's name.
fn with_a_damaged_segment(disk: &SimDisk, store: &LogStore) -> String {
    const BYTE: u8 = 0xab;
    write(store, "victim", 0, vec![BYTE; 3000]).unwrap();
    for number in 0..40u8 {
        write(store, &format!("object-{number}"), 0, vec![number; 5000]).unwrap();
    }
    let find = |name: &str| {
        let bytes = disk.bytes(name).unwrap();
        bytes.windows(100).position(|window| window.iter().all(|byte| *byte == BYTE))
    };
    let mut files = disk.list().unwrap().into_iter();
    let (segment, at) = files.find_map(|(name, _)| find(&name).map(|at| (name, at as u64))).unwrap();
    disk.flip(&segment, at + 1000, 3);
    for number in 0..11 {
        remove(store, &format!("object-{number}")).unwrap();
    }
    segment
}

#[test]
fn a_segment_is_freed_only_after_its_last_removal_is_durable() {
    let disk = Arc::new(SimDisk::new(3, Faults::default()));
    let store = open(&disk);
    let segment = with_a_damaged_segment(&disk, &store);
    store.snapshot().unwrap();
    store.snapshot().unwrap();
    let spare = segment.replace("segment", "reserve");
    let (images, pending) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let syncs = Arc::new(Mutex::new(0));
    disk.set_hook({
        let (disk, store) = (Arc::clone(&disk), store.clone());
        let (images, pending, syncs) = (Arc::clone(&images), Arc::clone(&pending), Arc::clone(&syncs));
        Arc::new(move |moment, operation, name| {
            let is_freed = operation == Operation::Rename && name == spare
                || operation == Operation::Remove && name == segment;
            if moment == Moment::After && is_freed {
                let mut images = images.lock().unwrap();
                images.push(disk.after_kill(Faults::default()));
                images.extend((0..20).map(|_| disk.after_crash(Faults::default())));
            }
            if moment == Moment::After && operation == Operation::Sync && name.starts_with("segment-") {
                let turn = {
                    let mut syncs = syncs.lock().unwrap();
                    *syncs += 1;
                    *syncs
                };
                // While the moves are synced somebody writes; while that is synced, the last reference goes away.
                let name = match turn {
                    1 => "other",
                    2 => "victim",
                    _ => return,
                };
                let replace = Transaction::new().write(Fork::DEFAULT, 0, vec![0xcd; 3000]);
                pending.lock().unwrap().push(store.apply(&ObjectId::try_from(name).unwrap(), replace));
            }
        })
    });
    store.compact().unwrap();
    assert!(*syncs.lock().unwrap() >= 2, "the last reference was taken away while the cleaner synced");
    // Once it is durable the segment can go.
    store.turn().unwrap();
    store.compact().unwrap();
    disk.set_hook(Arc::new(|_, _, _| {}));
    for image in std::mem::take(&mut *images.lock().unwrap()) {
        open(&Arc::new(image));
    }
}

#[test]
fn a_damaged_segment_is_freed_when_nothing_refers_to_it() {
    let disk = Arc::new(SimDisk::new(3, Faults::default()));
    let store = open(&disk);
    let segment = with_a_damaged_segment(&disk, &store);
    store.compact().unwrap();
    let is_there = || store.info().segment_list.iter().any(|info| info.file == segment);
    assert!(is_there(), "it holds what cannot be moved");
    for name in std::iter::once("victim".to_owned()).chain((0..40).map(|number| format!("object-{number}"))) {
        write(&store, &name, 0, vec![1; 5000]).unwrap();
    }
    store.compact().unwrap();
    store.compact().unwrap();
    assert!(!is_there(), "{:?}", store.info().segment_list);
}

#[test]
fn a_snapshot_that_fails_leaves_the_log_to_be_counted() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let store = open(&disk);
    for number in 0..40u8 {
        write(&store, &format!("object-{number}"), 0, vec![number; 5000]).unwrap();
    }
    let before = store.info().replay_bytes;
    assert!(before > 0);
    disk.set_faults(Faults { error_at: Some(disk.operations() + 1), ..Faults::default() });
    store.snapshot().unwrap_err();
    disk.set_faults(Faults::default());
    assert_eq!(store.info().replay_bytes, before);
}

#[test]
fn files_with_the_last_numbers_in_their_names_are_not_the_stores() {
    for name in ["segment-4294967295", "reserve-4294967295", "snapshot-18446744073709551615"] {
        for bytes in [0, 200, 64 << 10] {
            let disk = Arc::new(SimDisk::new(1, Faults::default()));
            let store = open(&disk);
            write(&store, "object", 0, vec![1; 1000]).unwrap();
            store.close().unwrap();
            drop(store);
            disk.create(name, bytes).unwrap();
            LogStore::scrub_closed_on(Arc::clone(&disk) as _, |_| {}).unwrap();
            let store = open(&disk);
            fill_some(&store);
            store.snapshot().unwrap();
            store.close().unwrap();
            drop(store);
            open(&disk).check_counts();
            assert!(disk.list().unwrap().contains(&(name.to_owned(), bytes)), "{name} is somebody else's");
        }
    }
}

fn fill_some(store: &LogStore) {
    for number in 0..40u8 {
        write(store, &format!("object-{number}"), 0, vec![number; 5000]).unwrap();
    }
}

#[test]
fn a_store_is_made_where_making_one_was_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let disk = FolderDisk::open(folder.path(), true).unwrap();
    // The first step towards the superblock.
    disk.create("nacre-store.tmp", 0).unwrap();
    drop(disk);
    let store = LogStore::open(folder.path(), options()).unwrap();
    write(&store, "object", 0, vec![1; 1000]).unwrap();
}

/// A figure of this process's memory in bytes, by its name in `/proc/self/status`.
fn memory_bytes(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Run by [`a_scrub_takes_no_memory_for_the_index`] in a process of its own.
const SCRUB_ALONE: &str = "NACRE_SCRUB_ALONE";

#[test]
fn a_scrub_takes_no_memory_for_the_index() {
    if std::env::var_os(SCRUB_ALONE).is_none() {
        let test = "a_scrub_takes_no_memory_for_the_index";
        let program = std::env::current_exe().unwrap();
        let status = std::process::Command::new(program)
            .args(["--exact", test])
            .env(SCRUB_ALONE, "1")
            .status()
            .unwrap();
        assert!(status.success(), "the scrub in a process of its own failed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        segment_bytes: 1 << 20,
        durability: nacre_logstore::Durability::None,
        ..Options::default()
    };
    let store = LogStore::open(folder.path(), options).unwrap();
    for object in 0..70 {
        let set = |number| {
            let key = Key::try_from(format!("key-{number:06}").as_str()).unwrap();
            WriteOp::SetKey { key, value: vec![1; 200].into() }
        };
        let transaction =
            (0..2000).fold(Transaction::new(), |transaction, number| transaction.change(set(number)));
        let id = ObjectId::try_from(format!("object-{object}").as_str()).unwrap();
        block_on(store.apply(&id, transaction)).unwrap();
    }
    store.snapshot().unwrap();
    store.snapshot().unwrap();
    let files = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap());
    let snapshots = files.filter(|file| file.file_name().to_string_lossy().starts_with("snapshot-"));
    let bytes: u64 = snapshots.map(|file| file.metadata().unwrap().len()).sum();
    assert!(bytes > 50 << 20, "{bytes} bytes of snapshots");
    // The peak begins anew.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = memory_bytes("VmRSS:");
    assert_eq!(store.scrub(|_| {}).unwrap().findings, []);
    let grown = memory_bytes("VmHWM:").saturating_sub(before);
    assert!(grown < 16 << 20, "the scrub took {grown} bytes");
}

/// Writes and removes an object that a small disk may refuse, with a few small ones before it, and checks that a small
/// object has room afterwards.
fn check_room_beside_a_large_record(capacity: u64, large: usize, kept: u32) {
    let disk = Arc::new(SimDisk::new(1, sized(capacity)));
    let store = open(&disk);
    let what = |step: &str, error: StoreError| {
        panic!("{large} bytes on a disk of {capacity}, {kept} kept, {step}: {error}: {:?}", store.info())
    };
    let _ = write(&store, "large", 0, vec![1; large]);
    let count = fill(&store, 8000);
    remove(&store, "large").unwrap_or_else(|error| what("a removal", error));
    for number in kept.min(count)..count {
        remove(&store, &format!("object-{number}")).unwrap_or_else(|error| what("a removal", error));
    }
    let _ = write(&store, "large", 0, vec![1; large]);
    remove(&store, "large").unwrap_or_else(|error| what("the last removal", error));
    write(&store, "small", 0, vec![1; 4000]).unwrap_or_else(|error| what("a small write", error));
    store.check_counts();
    store.check_files();
}

#[test]
fn a_large_record_leaves_room_for_small_ones_when_it_is_gone_or_refused() {
    for capacity in (10..20).map(|tenths| tenths * 80_000) {
        for large in (1..16).map(|count| count * 40_000) {
            for kept in [0, 1, 3] {
                check_room_beside_a_large_record(capacity, large, kept);
            }
        }
    }
}
