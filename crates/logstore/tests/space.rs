//! Room: the operations that have it on a full disk, and the waits for it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use bytes::Bytes;
use nacre_logstore::disk::{Disk, DiskFile, Volume};
use nacre_logstore::sim::{Faults, Moment, Operation, SimDisk};
use nacre_logstore::{Committer, LogStore, Options};
use nacre_object::testkit::block_on;
use nacre_object::{
    Answer, ByteRange, ErrorKind, Fork, Key, ObjectId, ObjectStore, Outcome, StoreError, Transaction, WriteOp,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// The time after which a test counts as hanging.
const PATIENCE: Duration = Duration::from_secs(60);

fn object(name: &str) -> ObjectId {
    ObjectId::try_from(name).unwrap()
}

fn apply(store: &LogStore, name: &str, transaction: Transaction) -> Result<(), StoreError> {
    block_on(store.apply(&object(name), transaction))
        .map(|outcome| assert!(matches!(outcome, Outcome::Done(_))))
}

fn write(store: &LogStore, name: &str, offset: u64, data: impl Into<Bytes>) -> Result<(), StoreError> {
    apply(store, name, Transaction::new().write(Fork::DEFAULT, offset, data))
}

fn read(store: &LogStore, name: &str, range: ByteRange) -> Bytes {
    let read = Transaction::new().read_range(Fork::DEFAULT, range);
    match block_on(store.apply(&object(name), read)).unwrap() {
        Outcome::Done(mut done) => match done.answers.remove(0) {
            Answer::Range(read) => read.data,
            other => panic!("{other:?}"),
        },
        Outcome::Refused(refusal) => panic!("{refusal:?}"),
    }
}

/// A disk whose files can be held up when they are read.
struct BarrierDisk {
    disk: Arc<SimDisk>,
    barrier: Arc<Barrier>,
}

#[derive(Default)]
struct Barrier {
    closed: AtomicBool,
    waiting: Mutex<u32>,
    changed: Condvar,
}

impl Barrier {
    fn pass(&self) {
        if !self.closed.load(Ordering::SeqCst) {
            return;
        }
        let mut waiting = self.waiting.lock().unwrap();
        *waiting += 1;
        self.changed.notify_all();
        while self.closed.load(Ordering::SeqCst) {
            waiting = self.changed.wait(waiting).unwrap();
        }
        *waiting -= 1;
    }

    fn wait_for_somebody(&self) {
        let waiting = self.waiting.lock().unwrap();
        let (waiting, _) =
            self.changed.wait_timeout_while(waiting, PATIENCE, |waiting| *waiting == 0).unwrap();
        assert!(*waiting > 0, "nobody comes to the barrier");
    }

    fn open(&self) {
        let _waiting = self.waiting.lock().unwrap();
        self.closed.store(false, Ordering::SeqCst);
        self.changed.notify_all();
    }
}

struct BarrierFile {
    file: Arc<dyn DiskFile>,
    barrier: Arc<Barrier>,
}

impl BarrierDisk {
    fn guard(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(BarrierFile { file, barrier: Arc::clone(&self.barrier) })
    }
}

impl Disk for BarrierDisk {
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

impl DiskFile for BarrierFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.barrier.pass();
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

/// Holds up `work` in the middle of its reading, and checks that writes which need new segments are done meanwhile.
fn writes_go_on_during(work: impl FnOnce(&LogStore) -> Result<(), StoreError> + Send + 'static) {
    let barrier = Arc::new(Barrier::default());
    let disk =
        BarrierDisk { disk: Arc::new(SimDisk::new(1, Faults::default())), barrier: Arc::clone(&barrier) };
    let options = Options { segment_bytes: 512 << 10, ..Options::default() };
    let store = LogStore::open_on(Arc::new(disk), options).unwrap();
    for number in 0..200u32 {
        write(&store, &format!("object-{number}"), 0, vec![number as u8; 40_000]).unwrap();
    }
    for number in (0..200).step_by(8) {
        apply(&store, &format!("object-{number}"), Transaction::new().change(WriteOp::Remove)).unwrap();
    }
    // What is ready by then suffices for a start, and the work that is held up is not the thread's own.
    store.wait_for_maintenance();
    barrier.closed.store(true, Ordering::SeqCst);
    let worker = std::thread::spawn({
        let store = store.clone();
        move || work(&store)
    });
    barrier.wait_for_somebody();
    let (done, finished) = mpsc::channel();
    let writer = std::thread::spawn({
        let store = store.clone();
        move || {
            for number in 200..205u32 {
                write(&store, &format!("object-{number}"), 0, vec![number as u8; 400_000]).unwrap();
            }
            done.send(()).unwrap();
        }
    });
    let result = finished.recv_timeout(PATIENCE);
    barrier.open();
    result.expect("the writes wait for the work to end");
    writer.join().unwrap();
    worker.join().unwrap().unwrap();
    for number in (0..205u32).filter(|number| *number >= 200 || number % 8 != 0) {
        let bytes = if number < 200 { 40_000 } else { 400_000 };
        let data = read(&store, &format!("object-{number}"), ByteRange::new(0, bytes));
        assert!(
            data.len() as u64 == bytes && data.iter().all(|byte| *byte == number as u8),
            "object {number}"
        );
    }
}

#[test]
fn writes_go_on_while_a_scrub_waits_for_the_disk() {
    writes_go_on_during(|store| {
        let report = store.scrub(|_| {})?;
        assert_eq!(report.findings, []);
        Ok(())
    });
}

#[test]
fn writes_go_on_while_a_compaction_waits_for_the_disk() {
    writes_go_on_during(LogStore::compact);
}

/// A store on a simulated disk of a given size.
struct Full {
    disk: Arc<SimDisk>,
    store: LogStore,
}

fn by_hand() -> Options {
    Options { segment_bytes: 64 << 10, committer: Committer::Caller, ..Options::default() }
}

impl Full {
    fn new(capacity_bytes: u64) -> Self {
        let faults = Faults { capacity_bytes: Some(capacity_bytes), ..Faults::default() };
        let disk = Arc::new(SimDisk::new(1, faults));
        let store = LogStore::open_on(Arc::clone(&disk) as _, by_hand()).unwrap();
        Self { disk, store }
    }

    fn apply(&self, name: &str, transaction: Transaction) -> Result<(), StoreError> {
        let reply = self.store.apply(&object(name), transaction);
        self.store.turn()?;
        block_on(reply).map(|outcome| assert!(matches!(outcome, Outcome::Done(_))))
    }

    fn write(&self, name: &str, offset: u64, data: Vec<u8>) -> Result<(), StoreError> {
        self.apply(name, Transaction::new().write(Fork::DEFAULT, offset, data))
    }

    /// Kills the process and opens the store again; nothing is free on the disk by then.
    fn killed_and_opened(self) -> Self {
        let used: u64 = self.disk.list().unwrap().iter().map(|(_, bytes)| *bytes).sum();
        let faults = Faults { capacity_bytes: Some(used), ..Faults::default() };
        let disk = Arc::new(self.disk.after_kill(faults));
        let store = LogStore::open_on(Arc::clone(&disk) as _, by_hand()).unwrap();
        Self { disk, store }
    }

    /// Leaves no byte free on the disk.
    fn let_others_fill(&self) {
        let used: u64 = self.disk.list().unwrap().iter().map(|(_, bytes)| *bytes).sum();
        self.disk.set_faults(Faults { capacity_bytes: Some(used), ..Faults::default() });
    }
}

/// Fills the store with objects of `bytes` bytes, numbered from `from` on; returns the number of the first one refused.
fn fill(full: &Full, from: u32, bytes: usize) -> u32 {
    for number in from.. {
        match full.write(&format!("object-{number}"), 0, vec![number as u8; bytes]) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.kind, ErrorKind::OutOfSpace, "{error}");
                assert!(error.message.contains("nothing was changed"), "{error}");
                return number;
            }
        }
    }
    unreachable!("the disk has an end");
}

#[test]
fn every_kind_of_removal_finds_room_on_a_full_disk() {
    let full = Full::new(4 << 20);
    let key = |number: u32| Key::try_from(format!("key-{number}").as_str()).unwrap();
    for number in 0..50 {
        let set = WriteOp::SetKey { key: key(number), value: vec![1; 500].into() };
        full.apply("keys", Transaction::new().change(set)).unwrap();
    }
    let fork = Fork::new("fork").unwrap();
    full.apply("forks", Transaction::new().write(fork.clone(), 0, vec![2; 30_000])).unwrap();
    full.write("zeros", 0, vec![3; 30_000]).unwrap();
    full.write("truncated", 0, vec![4; 30_000]).unwrap();
    let count = fill(&full, 0, 8000);
    full.let_others_fill();
    let range = ByteRange::new(5000, 20_000);
    full.apply("zeros", Transaction::new().change(WriteOp::Zero { fork: Fork::DEFAULT, range })).unwrap();
    full.apply("truncated", Transaction::new().change(WriteOp::Truncate { fork: Fork::DEFAULT, size: 10 }))
        .unwrap();
    full.apply("forks", Transaction::new().change(WriteOp::RemoveFork { fork })).unwrap();
    for number in 0..50 {
        full.apply("keys", Transaction::new().change(WriteOp::RemoveKey { key: key(number) })).unwrap();
    }
    let full = full.killed_and_opened();
    for number in 0..count / 2 {
        full.apply(&format!("object-{number}"), Transaction::new().change(WriteOp::Remove)).unwrap();
    }
    // And then there is room again, for as much as was removed, on what the store had all the time.
    let more = fill(&full, 1000, 8000) - 1000;
    assert!(more >= count / 2 - 2, "{more} objects found the room of {}", count / 2);
    for number in count / 2..count {
        let data = read(&full.store, &format!("object-{number}"), ByteRange::new(0, 8000));
        assert!(data.len() == 8000 && data.iter().all(|byte| *byte == number as u8));
    }
    full.store.check_counts();
}

#[test]
fn removals_that_free_nothing_do_not_use_the_room_up() {
    let full = Full::new(4 << 20);
    let count = fill(&full, 0, 8000);
    full.let_others_fill();
    let key = Key::try_from("absent").unwrap();
    for _ in 0..5000 {
        full.apply("object-0", Transaction::new().change(WriteOp::RemoveKey { key: key.clone() })).unwrap();
    }
    full.apply("object-1", Transaction::new().change(WriteOp::Remove)).unwrap();
    for number in 2..count {
        let data = read(&full.store, &format!("object-{number}"), ByteRange::new(0, 8000));
        assert!(data.len() == 8000 && data.iter().all(|byte| *byte == number as u8));
    }
    full.store.check_counts();
}

#[test]
fn overwriting_goes_on_for_ever_at_nine_tenths() {
    let capacity_bytes = 16 << 20;
    let full = Full::new(capacity_bytes);
    let mut rng = SmallRng::seed_from_u64(5);
    // Sixteen records fill one of these small segments.
    let block = 3960;
    let blocks = capacity_bytes / 10 * 9 / block;
    let mut generations = vec![0u8; blocks as usize];
    for step in 0..5 * blocks {
        let number = if step < blocks { step } else { rng.random_range(0..blocks) };
        let generation = &mut generations[number as usize];
        *generation = generation.wrapping_add(1);
        full.write("file", number * block, vec![*generation; block as usize]).unwrap();
        if step == 3 * blocks {
            full.let_others_fill();
        }
    }
    full.store.check_counts();
    let full = full.killed_and_opened();
    for (number, generation) in generations.iter().enumerate() {
        let data = read(&full.store, "file", ByteRange::new(number as u64 * block, block));
        assert!(data.iter().all(|byte| byte == generation), "block {number}");
    }
    full.store.check_counts();
}

#[test]
fn a_chunk_cut_into_crumbs_is_moved_within_the_room_of_the_whole() {
    let full = Full::new(2 << 20);
    full.write("crumbs", 0, vec![1; 60_000]).unwrap();
    for offset in (0..60_000).step_by(20) {
        full.write("crumbs", offset, vec![2]).unwrap();
    }
    full.store.compact().unwrap();
    full.store.compact().unwrap();
    let data = read(&full.store, "crumbs", ByteRange::new(0, 60_000));
    assert!(data.iter().enumerate().all(|(at, byte)| *byte == if at % 20 == 0 { 2 } else { 1 }));
    full.store.check_counts();
}

#[test]
fn bytes_that_one_transaction_writes_twice_are_not_mixed_up_when_they_are_moved() {
    let full = Full::new(4 << 20);
    let twice = Transaction::new()
        .write(Fork::DEFAULT, 0, vec![1; 1000])
        .write(Fork::DEFAULT, 400, vec![2; 50])
        .write(Fork::DEFAULT, 420, vec![3; 10]);
    full.apply("twice", twice).unwrap();
    for number in 0..30 {
        full.write("garbage", 0, vec![number; 8000]).unwrap();
    }
    full.store.compact().unwrap();
    assert!(full.store.info().moved_bytes >= 1000, "{:?}", full.store.info());
    let wanted: Vec<u8> = (0..1000)
        .map(|at| match at {
            420..430 => 3,
            400..450 => 2,
            _ => 1,
        })
        .collect();
    assert_eq!(read(&full.store, "twice", ByteRange::new(0, 1000)), wanted);
    let full = full.killed_and_opened();
    assert_eq!(read(&full.store, "twice", ByteRange::new(0, 1000)), wanted);
}

#[test]
fn keys_fill_a_store_no_further_than_its_snapshots_have_room() {
    let full = Full::new(4 << 20);
    let set = |number: u32| WriteOp::SetKey {
        key: Key::try_from(format!("key-{number:06}").as_str()).unwrap(),
        value: vec![number as u8; 2000].into(),
    };
    let mut count = 0;
    let error = loop {
        match full.apply("keys", Transaction::new().change(set(count))) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind, ErrorKind::OutOfSpace, "{error}");
    assert!(u64::from(count) * 2000 > 512 << 10, "only {count} keys found room");
    full.let_others_fill();
    for _ in 0..3 {
        full.store.snapshot().unwrap();
    }
    let full = full.killed_and_opened();
    for number in 0..count {
        let key = Key::try_from(format!("key-{number:06}").as_str()).unwrap();
        full.apply("keys", Transaction::new().change(WriteOp::RemoveKey { key })).unwrap();
    }
    full.store.check_counts();
    full.write("file", 0, vec![1; 100_000]).unwrap();
}

#[test]
fn a_store_that_cannot_write_its_index_down_closes_and_opens() {
    let full = Full::new(4 << 20);
    let count = fill(&full, 0, 8000);
    // Not even what was in reserve is left.
    full.disk.remove("reserve-snapshot").unwrap();
    full.let_others_fill();
    full.store.close().unwrap();
    let full = full.killed_and_opened();
    full.apply("object-0", Transaction::new().change(WriteOp::Remove)).unwrap();
    for number in 1..count {
        assert_eq!(read(&full.store, &format!("object-{number}"), ByteRange::new(0, 8000)).len(), 8000);
    }
}

#[test]
fn a_capacity_bounds_all_files_together() {
    let capacity_bytes = 3 << 20;
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let options = Options { capacity_bytes: Some(capacity_bytes), snapshot_bytes: 256 << 10, ..by_hand() };
    let store = LogStore::open_on(Arc::clone(&disk) as _, options).unwrap();
    let full = Full { disk, store };
    let taken = || full.disk.list().unwrap().iter().map(|(_, bytes)| *bytes).sum::<u64>();
    let count = fill(&full, 0, 8000);
    assert!(u64::from(count) * 8000 >= capacity_bytes / 10 * 8, "only {count} objects found room");
    // What is written again takes space twice for a moment.
    for number in 0..count / 20 {
        full.apply(&format!("object-{number}"), Transaction::new().change(WriteOp::Remove)).unwrap();
    }
    for round in 0..5 {
        for number in count / 20..count / 2 {
            full.write(&format!("object-{number}"), 0, vec![round; 8000]).unwrap();
            assert!(taken() <= capacity_bytes, "{} bytes", taken());
        }
    }
    full.store.check_counts();
    let too_small = Options { capacity_bytes: Some(1000), ..by_hand() };
    let error = LogStore::open_on(Arc::new(SimDisk::new(1, Faults::default())), too_small).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Invalid, "{error}");
}

/// While the disk holds a snapshot up, one client wants more room in the index than there is, and waits for it. Another one
/// only overwrites, and needs segments.
#[test]
fn overwriting_goes_on_while_another_client_waits_for_a_snapshot() {
    let barrier = Arc::new(Barrier::default());
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let with_barrier = Arc::clone(&barrier);
    disk.set_hook(Arc::new(move |moment, operation, name| {
        if moment == Moment::Before && operation == Operation::Write && name == "reserve-snapshot-begun" {
            with_barrier.pass();
        }
    }));
    let store = LogStore::open_on(disk, Options { segment_bytes: 512 << 10, ..Options::default() }).unwrap();
    write(&store, "file", 0, vec![1; 100_000]).unwrap();
    store.wait_for_maintenance();
    barrier.closed.store(true, Ordering::SeqCst);
    let snapshot = std::thread::spawn({
        let store = store.clone();
        move || store.snapshot()
    });
    barrier.wait_for_somebody();
    // What is left is too little for the last key, and enough for what overwriting may make the index grow by.
    let (asks, set) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let growing = std::thread::spawn({
        let (store, asks, set) = (store.clone(), Arc::clone(&asks), Arc::clone(&set));
        move || {
            let set_key = |number: u32, bytes: usize| {
                let key = Key::try_from(format!("key-{number}").as_str()).unwrap();
                let change = WriteOp::SetKey { key, value: vec![7; bytes].into() };
                apply(&store, "keys", Transaction::new().change(change)).unwrap();
            };
            let mut number = 0;
            while store.index_has_space(20_000) {
                set_key(number, 1000);
                number += 1;
            }
            asks.store(true, Ordering::SeqCst);
            set_key(number, 30_000);
            set.store(true, Ordering::SeqCst);
        }
    });
    while !asks.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    let (done, finished) = mpsc::channel();
    let writing = std::thread::spawn({
        let store = store.clone();
        move || {
            for number in 0..40 {
                write(&store, "file", 0, vec![number; 100_000]).unwrap();
                done.send(()).unwrap();
            }
        }
    });
    let written = (0..40).take_while(|_| finished.recv_timeout(PATIENCE).is_ok()).count();
    let is_waiting = !set.load(Ordering::SeqCst);
    barrier.open();
    for thread in [writing, growing] {
        thread.join().unwrap();
    }
    snapshot.join().unwrap().unwrap();
    assert_eq!(written, 40, "writes while a snapshot was held up");
    assert!(is_waiting, "the index has room for the key");
}

/// Extents take much less of a snapshot than they might, values all of it: what removed extents leave is not room for as
/// many bytes of values.
#[test]
fn a_snapshot_has_room_when_extents_gave_way_to_keys_on_a_tight_disk() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let options = Options { segment_bytes: 64 << 10, committer: Committer::Caller, ..Options::default() };
    let store = LogStore::open_on(Arc::clone(&disk) as _, options).unwrap();
    let apply = |name: &str, change: WriteOp| {
        let reply = store.apply(&object(name), Transaction::new().change(change));
        store.turn()?;
        block_on(reply).map(|outcome| assert!(matches!(outcome, Outcome::Done(_))))
    };
    for thousand in 0..20 {
        let extents =
            (0..1000).map(|number| (2 * (1000 * thousand + number), Bytes::from_static(&[1]))).collect();
        apply("bits", WriteOp::Extents { fork: Fork::DEFAULT, extents }).unwrap();
    }
    for number in 0..800 {
        let extents = vec![(0, Bytes::from(vec![1; 8000]))];
        apply(&format!("object-{number}"), WriteOp::Extents { fork: Fork::DEFAULT, extents }).unwrap();
    }
    let leave = |bytes: u64| {
        let used_bytes: u64 = disk.list().unwrap().iter().map(|(_, bytes)| *bytes).sum();
        disk.set_faults(Faults { capacity_bytes: Some(used_bytes + bytes), ..Faults::default() });
    };
    leave(1 << 20);
    for _ in 0..3 {
        store.snapshot().unwrap();
    }
    leave(1 << 20);
    apply("bits", WriteOp::Remove).unwrap();
    let key = |number: u32| Key::try_from(format!("key-{number:06}").as_str()).unwrap();
    let set = (0..720).take_while(|number| {
        let set = WriteOp::SetKey { key: key(*number), value: vec![7; 1000].into() };
        apply("keys", set).is_ok()
    });
    let set = set.count() as u32;
    assert!(set > 0);
    leave(0);
    store.snapshot().unwrap();
    for number in 0..set {
        apply("keys", WriteOp::RemoveKey { key: key(number) }).unwrap();
    }
    for number in 0..800 {
        apply(&format!("object-{number}"), WriteOp::Remove).unwrap();
    }
}
