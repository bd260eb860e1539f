//! Scrubs that go from the index to the device: everything that cannot be read is named, object by object, and nothing else is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use nacre_logstore::{Committer, Durability, LogStore, Options, ScrubReport};
use nacre_object::testkit::block_on;
use nacre_object::{
    Answer, ByteRange, ErrorKind, Fork, Key, ObjectId, ObjectStore, Outcome, StoreError, Transaction, WriteOp,
};
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};

/// The lengths of the objects "a", "b" and "c", in bytes.
const LENGTHS: [(&str, u64); 3] = [("a", 12_813), ("b", 3_000_000), ("c", 3)];
/// The offset of the record of "a" in every store: behind the segment's header.
const FIRST: u64 = 128;

fn options() -> Options {
    Options { segment_bytes: 8 << 20, committer: Committer::Caller, ..Options::default() }
}

/// A store in a folder with the objects "a", "b" and "c", which all lie in one segment.
struct Base {
    folder: tempfile::TempDir,
}

impl Base {
    fn new() -> Self {
        let base = Self { folder: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap() };
        let mut rng = SmallRng::seed_from_u64(4);
        let store = base.open();
        for (name, len) in LENGTHS {
            let mut data = vec![0; len as usize];
            rng.fill_bytes(&mut data);
            put(&store, name, data);
        }
        let key = Key::try_from("k").unwrap();
        apply(&store, "c", Transaction::new().change(WriteOp::SetKey { key, value: "v".into() }));
        close(store);
        base
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn open(&self) -> LogStore {
        LogStore::open(self.path(), options()).unwrap()
    }

    fn scrub(&self) -> ScrubReport {
        LogStore::scrub_closed(self.path(), |_| {}).unwrap()
    }

    fn repair(&self) -> ScrubReport {
        LogStore::repair(self.path(), options(), |_| {}).unwrap()
    }

    /// Returns the file of the segment with the data: the oldest one that was used.
    fn segment(&self) -> PathBuf {
        let used = |path: &Path| {
            let mut head = [0; 8];
            File::open(path).unwrap().read_exact_at(&mut head, 0).unwrap();
            head != [0; 8]
        };
        let segments = self.files().into_keys().filter(|path| name_of(path).starts_with("segment-"));
        let mut used: Vec<PathBuf> = segments.filter(|path| used(path)).collect();
        used.remove(0)
    }

    fn zero(&self, offset: u64, len: usize) {
        let file = File::options().write(true).open(self.segment()).unwrap();
        file.write_all_at(&vec![0; len], offset).unwrap();
    }

    /// Returns a copy of what is left when the process that has the store open is killed.
    fn killed(&self) -> Self {
        let killed = Self { folder: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap() };
        for (path, (bytes, _)) in self.files() {
            fs::write(killed.path().join(name_of(&path)), bytes).unwrap();
        }
        killed
    }

    /// Returns everything that can be seen of the folder.
    fn files(&self) -> BTreeMap<PathBuf, (Vec<u8>, SystemTime)> {
        let entries = fs::read_dir(self.path()).unwrap().map(|entry| entry.unwrap());
        let seen = |path: &Path| (fs::read(path).unwrap(), fs::metadata(path).unwrap().modified().unwrap());
        entries.map(|entry| entry.path()).map(|path| (path.clone(), seen(&path))).collect()
    }
}

/// Closes the store, so that its folder is free.
fn close(store: LogStore) {
    store.close().unwrap();
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

fn apply(store: &LogStore, name: &str, transaction: Transaction) {
    let reply = store.apply(&ObjectId::try_from(name).unwrap(), transaction);
    store.turn().unwrap();
    assert!(matches!(block_on(reply).unwrap(), Outcome::Done(_)));
}

fn put(store: &LogStore, name: &str, data: Vec<u8>) {
    apply(store, name, Transaction::new().write(Fork::DEFAULT, 0, data));
}

fn get(store: &LogStore, name: &str, range: ByteRange) -> Result<Bytes, StoreError> {
    let read = Transaction::new().read_range(Fork::DEFAULT, range);
    match block_on(store.apply(&ObjectId::try_from(name).unwrap(), read))? {
        Outcome::Done(done) => match &done.answers[0] {
            Answer::Range(read) => Ok(read.data.clone()),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

/// Returns the first bytes of the pieces of 64 KiB that cannot be read, object by object.
fn unreadable(store: &LogStore) -> BTreeSet<(String, u64)> {
    let mut found = BTreeSet::new();
    for (name, len) in LENGTHS {
        for start in (0..len).step_by(64 << 10) {
            if let Err(error) = get(store, name, ByteRange::new(start, 64 << 10)) {
                assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
                found.insert((name.to_owned(), start));
            }
        }
    }
    found
}

/// Returns the first bytes of the pieces of 64 KiB that a report says are lost, object by object.
fn lost(report: &ScrubReport) -> BTreeSet<(String, u64)> {
    let mut found = BTreeSet::new();
    // Where the log's end is missing, nobody knows whose later changes were there.
    for loss in report.lost.iter().filter(|loss| loss.object != "(unknown, or none)") {
        let words: Vec<&str> = loss.what.split(' ').collect();
        let ["bytes", from, "to", to, "of", "the", "default", "fork"] = words[..] else {
            panic!("{loss:?}");
        };
        let (from, to): (u64, u64) = (from.parse().unwrap(), to.parse().unwrap());
        for start in (from..=to).step_by(64 << 10) {
            assert!(found.insert((loss.object.clone(), start)), "lost twice: {loss:?}");
        }
    }
    found
}

fn names(lost: &BTreeSet<(String, u64)>) -> Vec<&str> {
    let mut names: Vec<&str> = lost.iter().map(|(name, _)| name.as_str()).collect();
    names.dedup();
    names
}

fn blamed(report: &ScrubReport) -> Vec<&str> {
    let all = report.findings.iter().flat_map(|finding| &finding.objects).map(String::as_str);
    all.collect::<BTreeSet<&str>>().into_iter().collect()
}

/// Checks that every scrub of a damaged store, with and without a repair, names exactly what cannot be read: these
/// objects, and nothing after they are written again or removed.
fn check_losses(base: &Base, expected: &[&str]) {
    let check = |report: &ScrubReport, context: &str| {
        let lost = lost(report);
        assert_eq!(names(&lost), expected, "{context}: {report:?}");
        assert_eq!(blamed(report), expected, "{context}: {report:?}");
        lost
    };
    let before = base.files();
    let first = check(&base.scrub(), "the first scrub");
    assert!(before == base.files(), "the first scrub changed something");
    assert_eq!(check(&base.repair(), "the repair"), first);
    assert_eq!(check(&base.scrub(), "the scrub behind the repair"), first);
    let store = base.open();
    assert_eq!(unreadable(&store), first, "what cannot be read, and what is said of it");
    assert_eq!(check(&store.scrub(|_| {}).unwrap(), "the scrub of the open store"), first);
    for (name, len) in LENGTHS.into_iter().filter(|(name, _)| expected.contains(name)) {
        match name {
            "b" => apply(&store, name, Transaction::new().change(WriteOp::Remove)),
            _ => put(&store, name, vec![1; len as usize]),
        }
    }
    let report = store.scrub(|_| {}).unwrap();
    assert_eq!((blamed(&report).len(), report.lost.len()), (0, 0), "all was written again: {report:?}");
    close(store);
    let report = base.scrub();
    assert_eq!((blamed(&report).len(), report.lost.len()), (0, 0), "all was written again: {report:?}");
}

#[test]
fn what_a_missing_segment_held_is_lost_until_it_is_written_again() {
    for is_last in [true, false] {
        let base = Base::new();
        let segment = base.segment();
        if !is_last {
            let store = base.open();
            let write = WriteOp::SetKey { key: Key::try_from("k").unwrap(), value: "w".into() };
            apply(&store, "c", Transaction::new().change(write));
            close(store);
        }
        fs::remove_file(&segment).unwrap();
        let report = base.scrub();
        let why = report.unopened.expect("it cannot be opened");
        assert!(why.contains(&name_of(&segment)), "{why}");
        let finding =
            report.findings.iter().find(|finding| finding.file == segment.to_str().unwrap()).unwrap();
        assert!(finding.what.contains("missing"), "{finding:?}");
        assert_eq!(finding.objects, ["a", "b", "c"]);
        assert_eq!(report.lost.len(), 3 + usize::from(is_last), "{:?}", report.lost);
        check_losses(&base, &["a", "b", "c"]);
    }
}

#[test]
fn a_record_that_is_gone_with_head_and_tail_costs_its_object() {
    let base = Base::new();
    base.zero(FIRST, 12_928);
    check_losses(&base, &["a"]);
}

#[test]
fn a_region_that_is_gone_costs_what_lay_in_it() {
    let base = Base::new();
    base.zero(0, 200 << 10);
    check_losses(&base, &["a", "b"]);
}

#[test]
fn a_segment_that_was_cut_short_costs_what_lay_behind() {
    let base = Base::new();
    File::options().write(true).open(base.segment()).unwrap().set_len(1_000_000).unwrap();
    let store = base.open();
    let error = get(&store, "c", ByteRange::new(0, 3)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
    assert!(error.message.contains("ends"), "{error}");
    // The log goes on behind it, also where the index was not written down since.
    put(&store, "later", vec![5; 5000]);
    let killed = base.killed();
    let again = killed.open();
    assert_eq!(get(&again, "later", ByteRange::new(0, 5000)).unwrap(), vec![5; 5000]);
    assert_eq!(unreadable(&again), unreadable(&store));
    drop(again);
    close(store);
    check_losses(&base, &["b", "c"]);
}

#[test]
fn a_payload_that_is_left_of_a_record_is_not_lost() {
    let base = Base::new();
    let bytes = fs::read(base.segment()).unwrap();
    let word = |at: u64| u32::from_le_bytes(*bytes[at as usize..].first_chunk().unwrap()) as usize;
    let head_bytes = (32 + word(FIRST + 12)).next_multiple_of(8);
    let tail = FIRST + (word(FIRST + 8) - head_bytes) as u64;
    base.zero(FIRST, head_bytes);
    base.zero(tail, head_bytes);
    let report = base.scrub();
    assert_eq!(report.findings.len(), 1, "{report:?}");
    assert_eq!((report.findings[0].offset, report.findings[0].objects.len()), (FIRST, 0));
    assert_eq!(report.lost, []);
    assert_eq!(get(&base.open(), "a", ByteRange::new(0, 12_813)).unwrap().len(), 12_813);
}

#[test]
fn a_scrub_of_a_folder_changes_nothing() {
    let base = Base::new();
    let unchanged = |context: &str| {
        let before = base.files();
        let report = base.scrub();
        assert!(before == base.files(), "{context}: the scrub changed something");
        report
    };
    assert_eq!(unchanged("healthy").findings, []);
    // The files of a process that was killed, with a file that it did not come to finish.
    let store = base.open();
    put(&store, "later", vec![3; 100_000]);
    let killed = base.killed();
    fs::write(killed.path().join("nacre-store.tmp"), "unfinished").unwrap();
    close(store);
    let before = killed.files();
    assert_eq!(killed.scrub().findings, []);
    assert!(before == killed.files(), "killed: the scrub changed something");
    let store = killed.open();
    assert_eq!(get(&store, "later", ByteRange::new(0, 100_000)).unwrap(), vec![3; 100_000]);

    let newest = base.files().into_keys().rfind(|path| name_of(path).starts_with("snapshot-")).unwrap();
    File::options().write(true).open(&newest).unwrap().write_all_at(&[0; 64], 64).unwrap();
    let report = unchanged("a damaged snapshot");
    assert!(report.findings.iter().any(|finding| finding.file == newest.to_str().unwrap()), "{report:?}");
    base.zero(FIRST, 20_000);
    assert!(!unchanged("a damaged record").lost.is_empty());
    fs::remove_file(base.segment()).unwrap();
    assert!(unchanged("a missing segment").unopened.is_some());
}

#[test]
fn the_report_of_an_object_in_many_pieces_is_bounded() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let base = Base { folder };
    let store = base.open();
    const PIECES: u64 = 9000;
    for round in 0..9 {
        let piece = |index: u64| ((round * 1000 + index) * 2, Bytes::from_static(b"x"));
        let extents = (0..1000).map(piece).collect();
        let write = WriteOp::Extents { fork: Fork::DEFAULT, extents };
        apply(&store, "many", Transaction::new().change(write));
    }
    put(&store, "last", vec![1; 1000]);
    close(store);
    let last = name_position(&base, b"last");
    base.zero(FIRST, (last - 34 - FIRST) as usize);
    let report = base.scrub();
    assert_eq!(report.lost[0].what, "bytes 0 to 0 of the default fork");
    let rest = &report.lost.last().unwrap().what;
    let listed = report.lost.len() as u64 - 1;
    assert_eq!(*rest, format!("{0} bytes in {0} more pieces", PIECES - listed), "{report:?}");
    assert!(report.lost.len() < 200 && report.lost.iter().all(|loss| loss.object == "many"));
    assert_eq!(blamed(&report), ["many"]);
}

/// Returns the offset in the segment at which the name of an object first stands.
fn name_position(base: &Base, name: &[u8]) -> u64 {
    let bytes = fs::read(base.segment()).unwrap();
    bytes.windows(name.len()).position(|window| window == name).unwrap() as u64
}

#[test]
fn a_store_that_is_written_and_cleaned_meanwhile_is_not_called_damaged() {
    for durability in [Durability::Always, Durability::Interval(Duration::from_millis(1)), Durability::None] {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let options = Options { segment_bytes: 64 << 10, durability, ..Options::default() };
        let store = LogStore::open(folder.path(), options).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for writer in 0..2u64 {
                let (store, stop) = (&store, &stop);
                scope.spawn(move || {
                    let mut rng = SmallRng::seed_from_u64(writer);
                    while !stop.load(Ordering::Relaxed) {
                        let id = ObjectId::try_from(format!("{}", rng.next_u32() % 20).as_str()).unwrap();
                        let offset = u64::from(rng.next_u32() % 50_000);
                        let data = vec![writer as u8; 1 + rng.next_u32() as usize % 9000];
                        let write = Transaction::new().write(Fork::DEFAULT, offset, data);
                        block_on(store.apply(&id, write)).unwrap();
                    }
                });
            }
            for _ in 0..15 {
                let report = store.scrub(|_| {}).unwrap();
                assert_eq!((report.findings, report.lost), (vec![], vec![]), "{durability}");
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
