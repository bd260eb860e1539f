//! The reserve of a store through crashes and restarts, and the store's count of what it takes.

use std::io;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use bytes::Bytes;
use nacre_logstore::disk::{Disk, DiskFile, Volume};
use nacre_logstore::sim::{Faults, SimDisk};
use nacre_logstore::{Committer, LogStore, Options};
use nacre_object::testkit::block_on;
use nacre_object::{
    ByteRange, ErrorKind, Fork, Guard, Key, ObjectId, ObjectStore, Outcome, StoreError, Transaction, WriteOp,
};

/// The time after which a test counts as hanging.
const PATIENCE: Duration = Duration::from_secs(60);

fn options() -> Options {
    Options { segment_bytes: 64 << 10, committer: Committer::Caller, ..Options::default() }
}

fn sized(capacity_bytes: u64) -> Faults {
    Faults { capacity_bytes: Some(capacity_bytes), ..Faults::default() }
}

fn open(disk: &Arc<SimDisk>, options: Options) -> LogStore {
    LogStore::open_on(Arc::clone(disk) as _, options).unwrap()
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

/// Writes objects of `bytes` bytes until one is refused; returns their number.
fn fill(store: &LogStore, bytes: usize) -> u32 {
    for number in 0.. {
        if let Err(error) = write(store, &format!("object-{number}"), 0, vec![number as u8; bytes]) {
            assert_eq!(error.kind, ErrorKind::OutOfSpace, "{error}");
            return number;
        }
    }
    unreachable!("the disk has an end");
}

fn used_bytes(disk: &SimDisk) -> u64 {
    disk.list().unwrap().iter().map(|(_, bytes)| *bytes).sum()
}

fn files(disk: &SimDisk, prefix: &str) -> Vec<(String, u64)> {
    disk.list().unwrap().into_iter().filter(|(name, _)| name.starts_with(prefix)).collect()
}

#[test]
fn a_snapshot_that_a_crash_brings_back_is_still_the_next_ones_file() {
    let mut came_back = 0;
    for seed in 0..40 {
        let disk = Arc::new(SimDisk::new(seed, sized(3 << 20)));
        let store = open(&disk, options());
        let count = fill(&store, 8000);
        store.snapshot().unwrap();
        // The power goes off, and somebody else takes what is left of the disk before it is back.
        let disk = disk.after_crash(Faults::default());
        disk.set_faults(sized(used_bytes(&disk)));
        let disk = Arc::new(disk);
        came_back += u32::from(files(&disk, "snapshot-").len() > 2);
        let store = open(&disk, options());
        for number in 0..count {
            remove(&store, &format!("object-{number}")).unwrap();
        }
        store.compact().unwrap();
        assert!(fill(&store, 8000) >= count - 10, "seed {seed}: what was removed left no room");
        store.check_counts();
        store.check_files();
    }
    assert!(came_back > 5, "{came_back} crashes undid the last renaming");
}

#[test]
fn the_log_names_no_segment_without_a_header() {
    let disk = Arc::new(SimDisk::new(1, sized(3 << 20)));
    let store = open(&disk, options());
    fill(&store, 8000);
    disk.set_faults(sized(used_bytes(&disk)));
    let key = Key::try_from("absent").unwrap();
    // Records that are garbage as soon as they are written: the log leaves its segments before they are full.
    let mut left = 0;
    for _ in 0..3000 {
        let snapshots = files(&disk, "snapshot-");
        apply(&store, "object-0", Transaction::new().change(WriteOp::RemoveKey { key: key.clone() }))
            .unwrap();
        if files(&disk, "snapshot-") != snapshots {
            left += 1;
            let found =
                LogStore::scrub_closed_on(Arc::new(disk.after_kill(Faults::default())), |_| {}).unwrap();
            assert_eq!(found.findings, [], "what a process that is killed here leaves is undamaged");
        }
    }
    assert!(left > 0, "the store was never short of room");
    store.check_files();
}

/// A disk on which the store's process is, in effect, killed whenever a snapshot gets its name.
struct Watched {
    disk: Arc<SimDisk>,
    images: Mutex<Vec<SimDisk>>,
}

impl Disk for Watched {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.open(name)
    }
    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.create(name, bytes)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)?;
        if to.starts_with("snapshot-") {
            self.images.lock().unwrap().push(self.disk.after_kill(Faults::default()));
        }
        Ok(())
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }
    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        self.disk.list()
    }
    fn sync_names(&self) -> io::Result<()> {
        self.disk.sync_names()
    }
    fn volume(&self) -> io::Result<Option<Volume>> {
        self.disk.volume()
    }
}

#[test]
fn a_snapshot_names_no_segment_before_its_header_is_written() {
    let disk = Arc::new(SimDisk::new(1, sized(3 << 20)));
    let watched = Arc::new(Watched { disk: Arc::clone(&disk), images: Mutex::default() });
    let store = LogStore::open_on(Arc::clone(&watched) as _, options()).unwrap();
    fill(&store, 8000);
    disk.set_faults(sized(used_bytes(&disk)));
    watched.images.lock().unwrap().clear();
    let key = Key::try_from("absent").unwrap();
    // Records that are garbage as soon as they are written: the log leaves its segments before they are full.
    for _ in 0..3000 {
        apply(&store, "object-0", Transaction::new().change(WriteOp::RemoveKey { key: key.clone() }))
            .unwrap();
    }
    let images = std::mem::take(&mut *watched.images.lock().unwrap());
    assert!(!images.is_empty(), "the store was never short of room");
    for image in images {
        let image = Arc::new(image);
        let store = open(&image, options());
        // What goes on from there has to be sound too.
        write(&store, "object-0", 0, "1").unwrap();
        assert_eq!(store.scrub(|_| {}).unwrap().findings, []);
    }
}

#[test]
fn a_restart_on_a_full_volume_gives_nothing_of_the_reserve_back() {
    // With a little less room segments would be half as large.
    let disk = Arc::new(SimDisk::new(1, sized((32 << 20) + 1000)));
    let follows = || Options { segment_bytes: 0, ..options() };
    let store = open(&disk, follows());
    let spares = files(&disk, "reserve-0");
    assert!(spares.iter().all(|(_, bytes)| *bytes == 128 << 10) && !spares.is_empty(), "{spares:?}");
    let count = fill(&store, 100_000);
    let spares = files(&disk, "reserve-0");
    for create in [true, false] {
        // Somebody else has taken a part of the disk by now, and takes whatever is given back.
        let full = sized(used_bytes(&disk));
        let disk = Arc::new(disk.after_kill(full));
        let store = open(&disk, Options { create, ..follows() });
        // The segment that was ready may be one of them now.
        let kept = files(&disk, "reserve-0");
        assert!(spares.iter().all(|spare| kept.contains(spare)), "create {create}: {spares:?}, {kept:?}");
        disk.set_faults(sized(used_bytes(&disk)));
        for number in 0..count {
            remove(&store, &format!("object-{number}")).unwrap();
        }
        assert!(fill(&store, 100_000) >= count - 5, "what was removed left no room");
        store.check_files();
    }
    drop(store);
}

#[test]
fn what_cuts_extents_on_a_full_disk_leaves_the_index_writable() {
    let disk = Arc::new(SimDisk::new(1, sized(4 << 20)));
    let store = open(&disk, options());
    let count = fill(&store, 60_000);
    disk.set_faults(sized(used_bytes(&disk)));
    let mut holes =
        (1..count).flat_map(|number| (0..60_000).step_by(100).map(move |offset| (number, offset)));
    let error = holes.find_map(|(number, offset)| {
        let range = ByteRange::new(offset, 1);
        let zero = Transaction::new().change(WriteOp::Zero { fork: Fork::DEFAULT, range });
        apply(&store, &format!("object-{number}"), zero).err()
    });
    let error = error.expect("holes that free nothing were punched without end");
    assert_eq!(error.kind, ErrorKind::OutOfSpace, "{error}");
    store.snapshot().unwrap();
    for number in 0..count {
        remove(&store, &format!("object-{number}")).unwrap();
    }
    assert!(fill(&store, 60_000) >= count - 3, "what was removed left no room");
    store.check_counts();
    store.check_files();
}

#[test]
fn numbers_that_grow_in_place_leave_removals_room() {
    let disk = Arc::new(SimDisk::new(1, sized(4 << 20)));
    let store = open(&disk, options());
    let block = 300u64;
    let mut blocks = 0;
    while write(&store, "file", 2 * blocks * block, vec![1; block as usize]).is_ok() {
        blocks += 1;
    }
    disk.set_faults(sized(used_bytes(&disk)));
    // The same bytes at versions that take nine bytes where they took two.
    for number in 0..blocks {
        let range = ByteRange::new(2 * number * block, block);
        let version = (1 << 60) + number;
        let guard = Guard::Proposal { fork: Fork::DEFAULT, range, version };
        let larger =
            Transaction::new().guard(guard).write(Fork::DEFAULT, range.offset, vec![2; block as usize]);
        if let Err(error) = apply(&store, "file", larger) {
            assert_eq!(error.kind, ErrorKind::OutOfSpace, "{error}");
            break;
        }
    }
    remove(&store, "file").unwrap();
    for number in 0..blocks * 9 / 10 {
        write(&store, "file", 2 * number * block, vec![3; block as usize]).unwrap();
    }
    store.check_counts();
    store.check_files();
}

#[test]
fn a_full_disk_does_not_use_up_the_numbers_of_segments() {
    let disk = Arc::new(SimDisk::new(1, sized(4 << 20)));
    let store = open(&disk, options());
    fill(&store, 8000);
    let newest = |disk: &SimDisk| files(disk, "segment-").pop().unwrap().0;
    let before = newest(&disk);
    for _ in 0..1000 {
        assert!(write(&store, "more", 0, vec![0; 50_000]).is_err());
    }
    remove(&store, "object-0").unwrap();
    for number in 1..20 {
        write(&store, &format!("object-{number}"), 0, vec![0; 8000]).unwrap();
    }
    let number = |name: &str| name.strip_prefix("segment-").unwrap().parse::<u32>().unwrap();
    let (before, after) = (number(&before), number(&newest(&disk)));
    assert!(after - before < 100, "segment {before} is followed by {after}");
}

/// A disk that lets one walk through a segment pass at a time.
struct SteppedDisk {
    disk: SimDisk,
    steps: Arc<Mutex<Option<Steps>>>,
}

struct Steps {
    begun: mpsc::Sender<()>,
    pass: mpsc::Receiver<()>,
}

struct SteppedFile {
    file: Arc<dyn DiskFile>,
    steps: Arc<Mutex<Option<Steps>>>,
}

/// The offset of a segment's first record, in bytes.
const SEGMENT_HEAD_BYTES: u64 = 128;

impl SteppedDisk {
    fn guard(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(SteppedFile { file, steps: Arc::clone(&self.steps) })
    }
}

impl Disk for SteppedDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.open(name).map(|file| self.guard(file))
    }
    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.create(name, bytes).map(|file| self.guard(file))
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }
    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        self.disk.list()
    }
    fn sync_names(&self) -> io::Result<()> {
        self.disk.sync_names()
    }
    fn volume(&self) -> io::Result<Option<Volume>> {
        self.disk.volume()
    }
}

impl DiskFile for SteppedFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if offset == SEGMENT_HEAD_BYTES
            && let Some(steps) = &*self.steps.lock().unwrap()
        {
            // Errors say that the test is over.
            let _ = steps.begun.send(());
            let _ = steps.pass.recv();
        }
        self.file.read_at(offset, buffer)
    }
    fn write_at(&self, offset: u64, parts: &[Bytes]) -> io::Result<()> {
        self.file.write_at(offset, parts)
    }
    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }
    fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.file.set_size(bytes)
    }
}

#[test]
fn whoever_needs_the_maintenance_finds_it_between_two_steps_of_a_compaction() {
    // The steps do not wait for a thread that stands still before it asks for the maintenance, as on a busy machine.
    assert!((0..5).any(|_| finds_it_between_two_steps()), "a snapshot waits for the end of a compaction");
}

/// Takes a snapshot during a compaction. Returns false if the compaction made many steps before.
fn finds_it_between_two_steps() -> bool {
    const OBJECTS: u32 = 400;
    let steps = Arc::new(Mutex::new(None));
    let disk = SteppedDisk { disk: SimDisk::new(1, Faults::default()), steps: Arc::clone(&steps) };
    let store =
        LogStore::open_on(Arc::new(disk), Options { committer: Committer::Thread, ..options() }).unwrap();
    for number in 0..OBJECTS {
        write(&store, &format!("object-{number}"), 0, vec![number as u8; 8000]).unwrap();
    }
    // A quarter of each segment: too little for it to be cleaned without being asked.
    for number in (0..OBJECTS).step_by(4) {
        remove(&store, &format!("object-{number}")).unwrap();
    }
    let (begun, is_begun) = mpsc::channel();
    let (go_on, pass) = mpsc::channel();
    *steps.lock().unwrap() = Some(Steps { begun, pass });
    let compaction = std::thread::spawn({
        let store = store.clone();
        move || store.compact()
    });
    is_begun.recv_timeout(PATIENCE).unwrap();
    let (done, is_done) = mpsc::channel();
    let snapshot = std::thread::spawn({
        let store = store.clone();
        move || done.send(store.snapshot()).unwrap()
    });
    // One step after the other, each begun before it is asked whether the snapshot is taken.
    let mut passed = 0;
    let taken = 'steps: loop {
        if let Ok(taken) = is_done.recv_timeout(Duration::from_millis(20)) {
            break Some(taken);
        }
        go_on.send(()).unwrap();
        passed += 1;
        // While the snapshot is being taken no step begins.
        while is_begun.recv_timeout(Duration::from_millis(20)).is_err() && !snapshot.is_finished() {
            if compaction.is_finished() {
                break 'steps None;
            }
        }
    };
    let found = taken.is_some() && !compaction.is_finished() && passed < 40;
    println!("a snapshot was taken after {passed} steps");
    if let Some(taken) = taken {
        taken.unwrap();
    }
    drop((go_on, is_begun));
    compaction.join().unwrap().unwrap();
    snapshot.join().unwrap();
    assert!(store.info().segments_cleaned > 10, "{:?}", store.info());
    found
}
