//! Sweeps of made trees, in this process: what an index holds, as a database and as a Parquet file, what is never replaced,
//! differences, and sweeps that take what did not change from an earlier one.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, OsStr};
use std::fs;
use std::num::NonZeroUsize;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nacre_index::contents::{Contents, Order, ROOTS};
use nacre_index::difference::{Changed, compare};
use nacre_index::query::{By, Condition, Query};
use nacre_index::{Earlier, Ending, Index, OpenError, Settings, SweepRecorder, WriteError, Writer};
use nacre_walk::collect::{Collector, Request};
use nacre_walk::filter::{Filter, Selection};
use nacre_walk::lustre::{FileSystems, LayoutReader};
use nacre_walk::report::{Shape, Shared, Sums};
use nacre_walk::{Options, Time, Walk};
use parquet::basic::{LogicalType, TimeUnit};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use rustix::io::Errno;

fn now() -> Time {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    Time { seconds: now.as_secs() as i64, nanoseconds: now.subsec_nanos() }
}

fn settings(root: &Path) -> Settings {
    let roots = vec![root.as_os_str().as_bytes().to_vec()];
    Settings { roots, flags: Vec::new(), whole: true, began: now(), since: None, layouts: false }
}

/// Walks a tree into an index. Returns the number of entries.
fn sweep(root: &Path, index: &Path, since: Option<&Path>, threads: usize) -> u64 {
    sweep_with(root, index, since, threads, None)
}

/// Walks a tree into an index, with layouts if there are readers of them.
fn sweep_with(
    root: &Path,
    index: &Path,
    since: Option<&Path>,
    threads: usize,
    layouts: Option<fn() -> LayoutReader>,
) -> u64 {
    let since_bytes = since.map(|since| since.as_os_str().as_bytes().to_vec());
    let settings = Settings { since: since_bytes, layouts: layouts.is_some(), ..settings(root) };
    let writer = Writer::create(index, &settings, threads).unwrap();
    let selection = Selection { filter: Filter::default().ready(), ..Selection::default() };
    let request = Request { selection, shape: Shape::default(), json: false };
    let threads = NonZeroUsize::new(threads).unwrap();
    let mut walk = Walk::<Sums>::new(Options { threads, metadata: since.is_none(), ..Options::default() });
    let number = walk.add_root(root).unwrap();
    let shared = Arc::<Shared>::default();
    let mut earlier = since.map(|since| Earlier::open(since, threads.get()).unwrap().into_iter());
    let mut collectors: Vec<Collector<'_>> = (0..threads.get())
        .map(|_| {
            let mut collector = Collector::new(&request, (None, None), walk.queue(), &shared, threads.get());
            let earlier = earlier.as_mut().and_then(Iterator::next);
            collector.set_recorder(Box::new(SweepRecorder::new(&writer, earlier)));
            if let Some(reader) = layouts {
                collector.set_layouts(reader());
            }
            collector
        })
        .collect();
    walk.start(number, &mut collectors[0]).unwrap();
    walk.run(&mut collectors);
    let entries = collectors.iter().map(|collector| collector.report.total().entries).sum();
    collectors.iter_mut().for_each(Collector::flush);
    drop(collectors);
    writer.finish(Ending::Complete, now()).unwrap();
    entries
}

/// The facts of all entries of a tree: type, mode, links, owner, group, size, blocks, device and inode.
type Facts = BTreeMap<Vec<u8>, Vec<u64>>;

fn facts_of_tree(root: &Path) -> Facts {
    let mut facts = Facts::new();
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        let about = fs::symlink_metadata(&path).unwrap();
        if about.is_dir() {
            pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let numbers = [
            u64::from(about.mode() & 0o7777),
            about.nlink(),
            about.uid().into(),
            about.gid().into(),
            about.size(),
            about.blocks(),
            about.dev(),
            about.ino(),
        ];
        facts.insert(path.into_os_string().into_vec(), numbers.into());
    }
    facts
}

fn facts_of_index(index: &Path) -> Facts {
    let index = Index::open(index, false).unwrap();
    let sql = "SELECT path(directory, name), mode, links, uid, gid, size, allocated / 512, device, inode FROM entries";
    let mut facts = Facts::new();
    let row = &mut |_: &[String], values: &[rusqlite::types::ValueRef<'_>]| {
        use rusqlite::types::ValueRef;
        let (ValueRef::Text(path) | ValueRef::Blob(path)) = values[0] else { panic!("a path is bytes") };
        let numbers = values[1..].iter().map(|value| value.as_i64().unwrap() as u64).collect();
        assert!(facts.insert(path.to_vec(), numbers).is_none(), "every path is there once");
        true
    };
    Query::plain(sql).run(&index, row).unwrap();
    facts
}

fn make(root: &Path) {
    for directory in ["a/b/c", "d", "empty"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    for (number, directory) in ["", "a", "a/b", "a/b/c", "d"].iter().enumerate() {
        for file in 0..number * 40 {
            fs::write(root.join(directory).join(format!("{file}.dat")), vec![1; file * 10]).unwrap();
        }
    }
    fs::write(root.join("d").join(OsStr::from_bytes(b"not \xff text")), "x").unwrap();
    fs::hard_link(root.join("a/1.dat"), root.join("d/second name")).unwrap();
    std::os::unix::fs::symlink("nowhere", root.join("link")).unwrap();
}

fn folders() -> (tempfile::TempDir, PathBuf, tempfile::TempDir) {
    let (tree, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let root = tree.path().to_owned();
    (tree, root, place)
}

#[test]
fn an_index_holds_every_entry_once() {
    let (_tree, root, place) = folders();
    make(&root);
    let index = place.path().join("index");
    for threads in [1, 3] {
        let entries = sweep(&root, &index, None, threads);
        let facts = facts_of_index(&index);
        assert_eq!(facts, facts_of_tree(&root));
        assert_eq!(facts.len() as u64, entries);
        assert!(!place.path().join("index.partial").exists());
    }
}

#[test]
fn nothing_but_an_index_is_replaced() {
    let (_tree, root, place) = folders();
    let (index, partial) = (place.path().join("index"), place.path().join("index.partial"));
    for file in [&index, &partial] {
        fs::write(file, "SQLite format 3\0 of somebody else").unwrap();
        assert!(matches!(Writer::create(&index, &settings(&root), 1), Err(WriteError::Foreign(_))));
        assert_eq!(fs::read(file).unwrap(), b"SQLite format 3\0 of somebody else");
        fs::remove_file(file).unwrap();
    }
    let first = Writer::create(&index, &settings(&root), 1).unwrap();
    assert!(matches!(Writer::create(&index, &settings(&root), 1), Err(WriteError::Busy(_))));
    // Somebody else is faster with the name.
    fs::write(&index, "mine").unwrap();
    assert!(matches!(first.finish(Ending::Complete, now()), Err(WriteError::Foreign(_))));
    assert_eq!(fs::read(&index).unwrap(), b"mine");
}

#[test]
fn an_interrupted_sweep_leaves_the_earlier_index_and_is_refused() {
    let (_tree, root, place) = folders();
    make(&root);
    let (index, partial) = (place.path().join("index"), place.path().join("index.partial"));
    sweep(&root, &index, None, 1);
    let before = fs::read(&index).unwrap();
    Writer::create(&index, &settings(&root), 1).unwrap().finish(Ending::Interrupted, now()).unwrap();
    assert_eq!(fs::read(&index).unwrap(), before);
    assert!(matches!(Index::open(&partial, false), Err(OpenError::Incomplete(_))));
    assert!(Index::open(&partial, true).is_ok());
    sweep(&root, &index, None, 1);
    assert!(!partial.exists());
}

/// Returns the rows of a Parquet file, each with its values by the names of their columns.
fn rows_of_parquet(file: &Path) -> Vec<BTreeMap<String, Field>> {
    let reader = SerializedFileReader::new(fs::File::open(file).unwrap()).unwrap();
    let rows = reader.get_row_iter(None).unwrap();
    rows.map(|row| row.unwrap().into_columns().into_iter().collect()).collect()
}

fn number(row: &BTreeMap<String, Field>, column: &str) -> i64 {
    match row[column] {
        Field::Long(number) => number,
        ref other => panic!("{column} is a number, not {other:?}"),
    }
}

fn facts_of_parquet(file: &Path) -> Facts {
    let mut facts = Facts::new();
    for row in rows_of_parquet(file) {
        let path = match (&row["path"], &row["path_bytes"]) {
            (Field::Str(text), Field::Null) => text.clone().into_bytes(),
            (Field::Str(text), Field::Bytes(bytes)) => {
                // The text is what people read, and loses nothing either.
                assert_eq!(nacre_quantity::unescape(text.as_bytes()).unwrap(), bytes.data());
                bytes.data().to_vec()
            }
            other => panic!("a path is text, not {other:?}"),
        };
        let columns = ["mode", "links", "uid", "gid", "size", "allocated", "device", "inode"];
        let mut numbers = columns.map(|column| number(&row, column) as u64);
        numbers[5] /= 512;
        assert!(facts.insert(path, numbers.into()).is_none(), "every path is there once");
    }
    facts
}

#[test]
fn a_parquet_file_holds_every_entry_once() {
    let (_tree, root, place) = folders();
    make(&root);
    let file = place.path().join("sweep.parquet");
    for threads in [1, 3] {
        let entries = sweep(&root, &file, None, threads);
        let facts = facts_of_parquet(&file);
        assert_eq!(facts, facts_of_tree(&root));
        assert_eq!(facts.len() as u64, entries);
        assert!(!place.path().join("sweep.parquet.partial").exists());
    }
    let about = root.join("d/second name").metadata().unwrap();
    let row = rows_of_parquet(&file)
        .into_iter()
        .find(|row| row["path"] == Field::Str(root.join("d/second name").to_str().unwrap().to_owned()))
        .unwrap();
    assert_eq!(row["type"], Field::Str("f".to_owned()));
    assert_eq!(number(&row, "depth"), 2);
    assert_eq!(number(&row, "mtime"), about.mtime() * 1_000_000_000 + about.mtime_nsec());
    let user = nix::unistd::User::from_uid(about.uid().into()).unwrap();
    assert_eq!(row["user"], user.map_or(Field::Null, |user| Field::Str(user.name)));
}

#[test]
fn times_of_a_parquet_file_are_timestamps_in_utc() {
    let (_tree, root, place) = folders();
    let file = place.path().join("sweep.parquet");
    sweep(&root, &file, None, 1);
    let reader = SerializedFileReader::new(fs::File::open(&file).unwrap()).unwrap();
    let schema = reader.metadata().file_metadata().schema_descr();
    let types: BTreeMap<&str, Option<&LogicalType>> =
        schema.columns().iter().map(|column| (column.name(), column.logical_type_ref())).collect();
    for time in ["atime", "mtime", "ctime"] {
        assert_eq!(types[time], Some(&LogicalType::timestamp(true, TimeUnit::NANOS)));
    }
    for text in ["path", "type", "user", "group"] {
        assert_eq!(types[text], Some(&LogicalType::String));
    }
}

#[test]
fn nothing_but_a_sweep_is_replaced_by_a_parquet_file() {
    let (_tree, root, place) = folders();
    make(&root);
    let file = place.path().join("sweep.parquet");
    let partial = place.path().join("sweep.parquet.partial");
    for other in [&file, &partial] {
        fs::write(other, "PAR1 of somebody else PAR1").unwrap();
        assert!(matches!(Writer::create(&file, &settings(&root), 1), Err(WriteError::Foreign(_))));
        assert_eq!(fs::read(other).unwrap(), b"PAR1 of somebody else PAR1");
        fs::remove_file(other).unwrap();
    }
    sweep(&root, &file, None, 1);
    let before = fs::read(&file).unwrap();
    // A sweep that is killed leaves what it has written so far, which the next one replaces.
    fs::write(&partial, &before[..before.len() / 2]).unwrap();
    let interrupted = Writer::create(&file, &settings(&root), 1).unwrap();
    assert!(matches!(Writer::create(&file, &settings(&root), 1), Err(WriteError::Busy(_))));
    interrupted.finish(Ending::Interrupted, now()).unwrap();
    assert_eq!(fs::read(&file).unwrap(), before);
    assert_eq!(rows_of_parquet(&partial).len(), 0);
    fs::write(root.join("fresh"), "").unwrap();
    sweep(&root, &file, None, 1);
    assert_eq!(facts_of_parquet(&file), facts_of_tree(&root));
    assert!(!partial.exists());
}

/// A file system of Lustre, on which the files whose names are numbers have that many stripes, on the OSTs from 0 on.
struct Striped;

impl FileSystems for Striped {
    fn kind(&self, _path: &[u8]) -> Result<u64, Errno> {
        Ok(0x0bd0_0bd0)
    }

    fn attribute(&self, path: &[u8], _name: &CStr, value: &mut [u8]) -> Result<usize, Errno> {
        let name = Path::new(OsStr::from_bytes(path)).file_name().unwrap();
        let stripes: u32 = name.to_str().and_then(|name| name.parse().ok()).ok_or(Errno::NODATA)?;
        let mut layout = [0x0bd1_0bd0_u32.to_ne_bytes(), 1_u32.to_ne_bytes()].concat();
        layout.extend([0; 16]);
        layout.extend((1_u32 << 20).to_ne_bytes());
        layout.extend((stripes as u16).to_ne_bytes());
        layout.extend([0; 2]);
        for ost in 0..stripes {
            layout.extend([0; 20]);
            layout.extend(ost.to_ne_bytes());
        }
        value[..layout.len()].copy_from_slice(&layout);
        Ok(layout.len())
    }
}

#[test]
fn layouts_are_kept_where_they_are_known() {
    let (_tree, root, place) = folders();
    for file in ["0", "1", "3", "other"] {
        fs::write(root.join(file), "").unwrap();
    }
    let (database, columns) = (place.path().join("sweep.sqlite"), place.path().join("sweep.parquet"));
    for index in [&database, &columns] {
        sweep_with(&root, index, None, 1, Some(|| LayoutReader::new(Box::new(Striped))));
    }
    let index = Index::open(&database, false).unwrap();
    let mut rows = Vec::new();
    let sql = "SELECT name, stripe_count, stripe_size, pool IS NULL, osts FROM entries JOIN layouts USING (id) ORDER BY name";
    let row = &mut |_: &[String], values: &[rusqlite::types::ValueRef<'_>]| {
        let text = |column: usize| values[column].as_str().unwrap().to_owned();
        rows.push((text(0), [1, 2, 3].map(|column| values[column].as_i64().unwrap()), text(4)));
        true
    };
    Query::plain(sql).run(&index, row).unwrap();
    let expected = [("0", 0, "[]"), ("1", 1, "[0]"), ("3", 3, "[0,1,2]")];
    assert_eq!(
        rows,
        expected.map(|(name, count, osts)| (name.to_owned(), [count, 1 << 20, 1], osts.to_owned()))
    );
    let mut known = 0;
    for row in rows_of_parquet(&columns) {
        let Field::Str(path) = &row["path"] else { panic!("a path is text") };
        let name = Path::new(path).strip_prefix(&root).unwrap().to_str().unwrap();
        match expected.iter().find(|(known, ..)| *known == name) {
            Some((_, count, _)) => {
                known += 1;
                assert_eq!((number(&row, "stripe_count"), number(&row, "stripe_size")), (*count, 1 << 20));
                let Field::ListInternal(osts) = &row["osts"] else { panic!("OSTs are a list") };
                assert_eq!(osts.elements(), (0..*count).map(Field::Long).collect::<Vec<_>>());
            }
            None => {
                assert_eq!((&row["stripe_count"], &row["osts"]), (&Field::Null, &Field::Null));
            }
        }
        assert_eq!(row["pool"], Field::Null);
    }
    assert_eq!(known, 3);
    // Without being asked for, they are nowhere.
    sweep(&root, &columns, None, 1);
    assert!(rows_of_parquet(&columns).iter().all(|row| !row.contains_key("osts")));
}

#[test]
fn the_extension_decides_the_format_and_questions_are_for_databases() {
    let (_tree, root, place) = folders();
    let file = place.path().join("sweep.parquet");
    sweep(&root, &file, None, 1);
    for error in [
        Index::open(&file, true).unwrap_err().to_string(),
        compare(&file, &file, &mut |_| true).unwrap_err().to_string(),
        Earlier::open(&file, 1).unwrap_err().to_string(),
    ] {
        assert!(error.contains("Parquet") && error.contains("SQLite"), "{error}");
    }
    let since = Settings { since: Some(b"old.sqlite".to_vec()), ..settings(&root) };
    assert!(matches!(Writer::create(&file, &since, 1), Err(WriteError::Since(_))));
    let error = Writer::create(&place.path().join("sweep.csv"), &settings(&root), 1).unwrap_err().to_string();
    assert!(error.contains(".sqlite") && error.contains(".parquet"), "{error}");
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
}

#[test]
fn sums_count_the_bytes_of_a_file_once() {
    let (_tree, root, place) = folders();
    for (name, size) in [("a.dat", 100), ("b.dat", 1000), ("c.TXT", 7), ("none", 1)] {
        fs::write(root.join(name), vec![0; size]).unwrap();
    }
    fs::hard_link(root.join("b.dat"), root.join("again.dat")).unwrap();
    let path = place.path().join("index");
    sweep(&root, &path, None, 2);
    let index = Index::open(&path, false).unwrap();
    let sums = |by, condition: &Condition| {
        let mut rows = Vec::new();
        let row = &mut |_: &[String], values: &[rusqlite::types::ValueRef<'_>]| {
            let key = values[0].as_str().map_or_else(|_| "-".to_owned(), str::to_owned);
            rows.push((key, values[1].as_i64().unwrap(), values[2].as_i64().unwrap()));
            true
        };
        Query::sums(by, condition, None, 100).run(&index, row).unwrap();
        rows.sort();
        rows
    };
    let all = Condition::default();
    let expected = [("-", 1, 1), ("dat", 3, 1100), ("txt", 1, 7)];
    assert_eq!(
        sums(By::Extension, &all),
        expected.map(|(key, entries, bytes)| (key.to_owned(), entries, bytes))
    );
    for by in By::ALL {
        assert!(!sums(by, &all).is_empty(), "{by:?}");
    }
    let mut large = Condition::default();
    large.and_sql("size > 50 -- only these");
    let files: Vec<_> = sums(By::Type, &large).into_iter().filter(|row| row.0 == "f").collect();
    assert_eq!(files, [("f".to_owned(), 3, 1100)]);
    for forbidden in [
        "DELETE FROM entries",
        "ATTACH 'x' AS x",
        "CREATE TABLE t (x)",
        "SELECT 1; SELECT 2",
        "VACUUM INTO 'x'",
    ] {
        assert!(Query::plain(forbidden).run(&index, &mut |_, _| true).is_err(), "{forbidden}");
    }
}

#[test]
fn contents_come_in_every_order_also_from_a_sweep_that_was_killed() {
    let (_tree, root, place) = folders();
    fs::create_dir_all(root.join("b/inner")).unwrap();
    fs::write(root.join("b/inner/file"), vec![1; 100_000]).unwrap();
    fs::write(root.join("a"), vec![1; 10_000]).unwrap();
    let (a, b, raw) = (&b"a"[..], &b"b"[..], &b"c\xff"[..]);
    fs::write(root.join(OsStr::from_bytes(raw)), vec![1; 20_000]).unwrap();
    let path = place.path().join("index");
    sweep(&root, &path, None, 1);
    for killed in [false, true] {
        if killed {
            // It is made when everything is written.
            let database = rusqlite::Connection::open(&path).unwrap();
            database.execute_batch("DROP INDEX directories_by_place").unwrap();
        }
        let index = Index::open(&path, false).unwrap();
        let roots = Contents::of(&index, ROOTS, Order::Name, 10).unwrap();
        assert_eq!((roots.count, roots.entries.len()), (1, 1));
        let top = roots.entries[0].directory.unwrap();
        for (order, expected) in [(Order::Name, [a, b, raw]), (Order::Apparent, [b, raw, a])] {
            let contents = Contents::of(&index, top.id, order, 10).unwrap();
            let names: Vec<&[u8]> = contents.entries.iter().map(|entry| &entry.name[..]).collect();
            assert_eq!(names, expected, "{order:?}");
            assert_eq!(contents.apparent, contents.entries.iter().map(|entry| entry.apparent).sum::<u64>());
            let entered = contents.entries.iter().find(|entry| entry.kind == "d").unwrap();
            assert!(entered.apparent >= 100_000 && entered.directory.is_some_and(|inner| inner.entries == 1));
        }
    }
}

/// Returns the lines of a difference: change, earlier path and path below the root.
fn differences(old: &Path, new: &Path, root: &Path) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    let mut count = 0;
    let below = |path: &[u8]| {
        let path = Path::new(OsStr::from_bytes(path)).strip_prefix(root).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let report = &mut |changed: &Changed| {
        count += 1;
        let from = changed.from.as_ref().map(|from| format!("{} -> ", below(from))).unwrap_or_default();
        lines.insert(format!("{} {from}{}", changed.change.word(), below(&changed.path)));
        true
    };
    let counts = compare(old, new, report).unwrap();
    assert_eq!(counts.created + counts.removed + counts.changed + counts.moved, count);
    assert_eq!((counts.is_same(), counts.unknown), (count == 0, 0));
    lines
}

#[test]
fn a_difference_is_what_was_made_removed_changed_and_moved() {
    let (_tree, root, place) = folders();
    for directory in ["stays/below", "goes/deep", "moves/inner", "target"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    for file in ["stays/same", "stays/written", "goes/deep/file", "moves/inner/a", "moves/b", "away"] {
        fs::write(root.join(file), file).unwrap();
    }
    let (old, new) = (place.path().join("old"), place.path().join("new"));
    sweep(&root, &old, None, 1);
    assert_eq!(differences(&old, &old, &root), BTreeSet::new());
    fs::write(root.join("stays/written"), "longer than before").unwrap();
    fs::create_dir(root.join("fresh")).unwrap();
    fs::write(root.join("fresh/file"), "new").unwrap();
    fs::rename(root.join("moves"), root.join("target/moved")).unwrap();
    fs::write(root.join("target/moved/b"), "changed on the way").unwrap();
    fs::rename(root.join("away"), root.join("stays/below/back")).unwrap();
    // Last, so that nothing new is given its inode.
    fs::remove_dir_all(root.join("goes")).unwrap();
    sweep(&root, &new, None, 2);
    let expected = [
        "changed stays/written",
        "changed target/moved/b",
        "made fresh",
        "made fresh/file",
        "moved away -> stays/below/back",
        "moved moves -> target/moved",
        "removed goes",
        "removed goes/deep",
        "removed goes/deep/file",
    ];
    assert_eq!(differences(&old, &new, &root), expected.map(str::to_owned).into());
}

/// Waits until the clock of the file system is past the times that are there, so that a sweep can trust them.
fn settle(folder: &Path) {
    let probe = folder.join("probe of the clock");
    fs::write(&probe, "").unwrap();
    let begun = fs::metadata(&probe).unwrap().modified().unwrap();
    loop {
        fs::write(&probe, "x").unwrap();
        let now = fs::metadata(&probe).unwrap().modified().unwrap();
        if now.duration_since(begun).is_ok_and(|passed| passed > Duration::from_millis(150)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Makes a random change below a folder. Adds the inodes of files that are written in place, which no directory tells of.
fn change(random: &mut impl FnMut(u64) -> u64, root: &Path, in_place: &mut BTreeSet<u64>) {
    let all: Vec<PathBuf> = facts_of_tree(root)
        .into_keys()
        .map(|path| PathBuf::from(std::ffi::OsString::from_vec(path)))
        .filter(|path| path != root)
        .collect();
    let directories: Vec<&PathBuf> = all.iter().filter(|path| path.is_dir()).collect();
    let within = match directories.len() as u64 {
        0 => root.to_owned(),
        number => directories[random(number) as usize].clone(),
    };
    let name = within.join(format!("n{}", random(40)));
    let any = (!all.is_empty()).then(|| all[random(all.len() as u64) as usize].clone());
    match (random(7), any) {
        (0 | 1, _) | (_, None) => drop(fs::create_dir(&name)),
        (2 | 3, _) if !name.exists() => fs::write(&name, vec![0; random(5000) as usize]).unwrap(),
        (4, Some(any)) if any.is_file() => {
            fs::write(&any, vec![1; random(9000) as usize]).unwrap();
            in_place.insert(fs::metadata(&any).unwrap().ino());
        }
        (5, Some(any)) if any.is_dir() => fs::remove_dir_all(any).unwrap(),
        (5, Some(any)) => fs::remove_file(any).unwrap(),
        (_, Some(any)) => drop(fs::rename(any, &name)),
    }
}

#[test]
fn a_sweep_since_another_one_equals_a_full_one_but_for_what_was_written_in_place() {
    let seed = std::env::var("NACRE_SEED")
        .ok()
        .map_or_else(|| u64::from(now().nanoseconds), |seed| seed.parse().unwrap());
    println!("NACRE_SEED={seed}");
    let mut state = seed | 1;
    let mut random = move |bound: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % bound
    };
    let (_tree, root, place) = folders();
    let [old, new, full] = ["old", "new", "full"].map(|name| place.path().join(name));
    let mut in_place = BTreeSet::new();
    (0..120).for_each(|_| change(&mut random, &root, &mut in_place));
    in_place.clear();
    sweep(&root, &old, None, 2);
    for _ in 0..5 {
        settle(place.path());
        sweep(&root, &old, Some(&old), 2);
        for _ in 0..random(12) {
            change(&mut random, &root, &mut in_place);
        }
        sweep(&root, &new, Some(&old), 2);
        sweep(&root, &full, None, 2);
        let (seen, truth) = (facts_of_index(&new), facts_of_index(&full));
        assert_eq!(truth, facts_of_tree(&root));
        assert!(seen.keys().eq(truth.keys()), "the names are those of now");
        for (path, facts) in &truth {
            let inode = facts[facts.len() - 1];
            assert_eq!(seen[path].last(), Some(&inode));
            assert!(
                seen[path] == *facts || in_place.contains(&inode),
                "{path:?}: {:?}, not {facts:?}",
                seen[path]
            );
        }
    }
}

#[test]
fn files_of_an_unchanged_directory_are_taken_from_the_earlier_sweep() {
    let (_tree, root, place) = folders();
    for directory in ["quiet", "busy"] {
        fs::create_dir(root.join(directory)).unwrap();
    }
    for file in ["quiet/file", "quiet/linked", "busy/file"] {
        fs::write(root.join(file), "before").unwrap();
    }
    fs::hard_link(root.join("quiet/linked"), root.join("busy/linked")).unwrap();
    settle(place.path());
    let (old, new) = (place.path().join("old"), place.path().join("new"));
    sweep(&root, &old, None, 1);
    for file in ["quiet/file", "quiet/linked", "busy/file"] {
        fs::write(root.join(file), "written in place").unwrap();
    }
    fs::write(root.join("busy/another"), "").unwrap();
    sweep(&root, &new, Some(&old), 1);
    let facts = facts_of_index(&new);
    let size = |file: &str| facts[root.join(file).as_os_str().as_bytes()][4];
    // The first one is stale: its directory has not changed.
    let sizes = ["quiet/file", "quiet/linked", "busy/file", "busy/linked", "busy/another"].map(size);
    assert_eq!(sizes, [6, 16, 16, 16, 0]);
}

#[test]
fn a_file_that_got_another_name_and_was_written_there_is_examined_again() {
    let (_tree, root, place) = folders();
    let [old, new] = ["old", "new"].map(|name| place.path().join(name));
    for directory in ["quiet/deep", "busy"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    for file in ["quiet/deep/file", "quiet/deep/other", "busy/file"] {
        fs::write(root.join(file), "four").unwrap();
    }
    settle(place.path());
    sweep(&root, &old, None, 2);
    fs::hard_link(root.join("quiet/deep/file"), root.join("busy/second name")).unwrap();
    fs::write(root.join("busy/second name"), vec![1; 100_000]).unwrap();
    sweep(&root, &new, Some(&old), 2);
    assert_eq!(facts_of_index(&new), facts_of_tree(&root));
    // The sums of the directories above it follow.
    let sums = |index: &Path| {
        let index = Index::open(index, false).unwrap();
        let mut sums = Vec::new();
        let sql = "SELECT path, apparent, allocated, complete FROM directories JOIN directory_paths USING (id) ORDER BY path";
        let row = &mut |_: &[String], values: &[rusqlite::types::ValueRef<'_>]| {
            sums.push((
                values[0].as_bytes().unwrap().to_vec(),
                [1, 2, 3].map(|column| values[column].as_i64().unwrap()),
            ));
            true
        };
        Query::plain(sql).run(&index, row).unwrap();
        sums
    };
    let full = place.path().join("full");
    sweep(&root, &full, None, 2);
    assert_eq!(sums(&new), sums(&full));
}
