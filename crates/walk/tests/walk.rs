//! Tests of the walk against a naive one, on trees with everything that file systems allow.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nacre_walk::{
    Directory, Ended, Entry, FileKind, Opened, Options, Queue, Unit, Verdict, Visitor, Walk, WalkError,
};

/// A visitor that counts the visits of every path.
#[derive(Default)]
struct Recorder {
    seen: BTreeMap<PathBuf, u32>,
    left: BTreeMap<PathBuf, u32>,
    errors: Vec<WalkError>,
    /// The number of visits after which the walk stops, and its queue.
    stop_after: Option<(usize, std::sync::Arc<nacre_walk::Queue<()>>)>,
}

impl Visitor for Recorder {
    type State = ();

    fn enter(&mut self, _directory: &Opened<'_, ()>) -> Option<()> {
        Some(())
    }

    fn visit(&mut self, entry: &Entry<'_, ()>) -> Verdict {
        *self.seen.entry(entry.path()).or_default() += 1;
        if let Some((after, queue)) = &self.stop_after
            && self.seen.len() == *after
        {
            queue.stop();
        }
        Verdict::Descend
    }

    fn leave(&mut self, directory: &nacre_walk::Directory<()>) {
        *self.left.entry(OsStr::from_bytes(&directory.path_bytes()).into()).or_default() += 1;
    }

    fn failed(&mut self, error: WalkError) {
        self.errors.push(error);
    }
}

fn naive(path: &Path, into: &mut Vec<PathBuf>) {
    into.push(path.to_owned());
    if path.symlink_metadata().unwrap().is_dir() {
        for entry in path.read_dir().unwrap() {
            naive(&entry.unwrap().path(), into);
        }
    }
}

fn options(threads: usize) -> Options {
    Options { threads: NonZeroUsize::new(threads).unwrap(), ..Options::default() }
}

fn merge(visitors: Vec<Recorder>) -> Recorder {
    let mut all = Recorder::default();
    for visitor in visitors {
        for (path, times) in visitor.seen {
            *all.seen.entry(path).or_default() += times;
        }
        for (path, times) in visitor.left {
            *all.left.entry(path).or_default() += times;
        }
        all.errors.extend(visitor.errors);
    }
    all
}

fn walk(root: &Path, options: Options) -> Recorder {
    let mut visitors: Vec<Recorder> = (0..options.threads.get()).map(|_| Recorder::default()).collect();
    let mut walk = Walk::new(options);
    let number = walk.add_root(root).unwrap();
    walk.start(number, &mut visitors[0]).unwrap();
    assert_eq!(walk.run(&mut visitors), Ended::Done);
    merge(visitors)
}

fn check(root: &Path, kept: &Recorder) {
    let mut expected = Vec::new();
    naive(root, &mut expected);
    expected.sort();
    assert_eq!(kept.seen.keys().cloned().collect::<Vec<_>>(), expected);
    assert!(kept.seen.values().all(|times| *times == 1));
    let directories: Vec<_> =
        expected.into_iter().filter(|path| path.symlink_metadata().unwrap().is_dir()).collect();
    assert_eq!(kept.left.keys().cloned().collect::<Vec<_>>(), directories);
    assert!(kept.left.values().all(|times| *times == 1));
    assert_eq!(kept.errors, []);
}

#[test]
fn entries_are_visited_in_the_order_of_their_inode_numbers_on_request() {
    struct Inodes(Vec<u64>);

    impl Visitor for Inodes {
        type State = ();

        fn enter(&mut self, _directory: &Opened<'_, ()>) -> Option<()> {
            Some(())
        }

        fn visit(&mut self, entry: &Entry<'_, ()>) -> Verdict {
            if entry.directory.is_some() {
                self.0.push(entry.inode);
            }
            Verdict::Descend
        }

        fn failed(&mut self, error: WalkError) {
            panic!("{error}");
        }
    }

    let folder = tempfile::tempdir().unwrap();
    for number in 0..300 {
        std::fs::write(folder.path().join(format!("file {}", number * 7919 % 300)), "").unwrap();
    }
    let inodes = |by_inode| {
        let mut visitors = [Inodes(Vec::new())];
        let mut walk = Walk::new(Options { by_inode, metadata: false, ..options(1) });
        let number = walk.add_root(folder.path()).unwrap();
        walk.start(number, &mut visitors[0]).unwrap();
        assert_eq!(walk.run(&mut visitors), Ended::Done);
        visitors.into_iter().next().unwrap().0
    };
    let (mut listed, ordered) = (inodes(false), inodes(true));
    assert_eq!(ordered.len(), 300);
    assert!(ordered.is_sorted());
    listed.sort_unstable();
    assert_eq!(listed, ordered);
}

fn tree(root: &Path) {
    let mut folder = root.to_owned();
    for depth in 0..40 {
        folder.push(format!("level {depth}"));
        std::fs::create_dir(&folder).unwrap();
        for number in 0..depth * 3 {
            std::fs::write(folder.join(format!("file {number}")), "content").unwrap();
        }
        for number in 0..depth % 7 {
            std::fs::create_dir(folder.join(format!("empty {number}"))).unwrap();
        }
    }
    let large = root.join("large");
    std::fs::create_dir(&large).unwrap();
    for number in 0..5000 {
        std::fs::write(large.join(format!("entry {number}")), "").unwrap();
        if number % 10 == 0 {
            std::fs::create_dir(large.join(format!("folder {number}"))).unwrap();
            symlink("..", large.join(format!("folder {number}/up"))).unwrap();
        }
    }
    symlink(root, root.join("loop")).unwrap();
    std::fs::write(root.join(OsStr::from_bytes(b"not \xff UTF-8\nand two lines")), "").unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
}

#[test]
fn every_entry_is_visited_once() {
    let folder = tempfile::tempdir().unwrap();
    tree(folder.path());
    for threads in [1, 2, 3, 8] {
        for metadata in [true, false] {
            for read_bytes in [4096, 1 << 16] {
                let kept = walk(folder.path(), Options { metadata, read_bytes, ..options(threads) });
                check(folder.path(), &kept);
            }
        }
    }
}

#[test]
fn a_stopped_walk_goes_on_here_or_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    tree(folder.path());
    for stop_after in [1, 2, 50, 300, 1000, 2500] {
        let options = Options { read_bytes: 4096, ..options(2) };
        let mut walk = Walk::new(options.clone());
        let mut visitors: Vec<Recorder> = (0..2)
            .map(|_| Recorder { stop_after: Some((stop_after, walk.queue().clone())), ..Recorder::default() })
            .collect();
        let number = walk.add_root(folder.path()).unwrap();
        walk.start(number, &mut visitors[0]).unwrap();
        assert_eq!(walk.run(&mut visitors), Ended::Stopped);
        let mut begun = Vec::new();
        let units: Vec<Unit> = walk.frontier(|directory| begun.push(directory.path_bytes()));
        let distinct: std::collections::BTreeSet<_> = begun.iter().collect();
        assert_eq!(distinct.len(), begun.len());

        let mut second = Walk::new(options);
        second.add_root(folder.path()).unwrap();
        second.queue().put(units);
        let mut others: Vec<Recorder> = (0..2).map(|_| Recorder::default()).collect();
        assert_eq!(second.run(&mut others), Ended::Done);
        // Elsewhere: together they saw everything once. Directories that were begun are left in both.
        let seen_before: Vec<Recorder> = visitors
            .iter()
            .map(|visitor| Recorder { seen: visitor.seen.clone(), ..Recorder::default() })
            .collect();
        let mut both = merge(seen_before.into_iter().chain(others).collect());
        both.left.values_mut().for_each(|times| *times = 1);
        for path in visitors.iter().flat_map(|visitor| visitor.left.keys()) {
            both.left.insert(path.clone(), 1);
        }
        check(folder.path(), &both);
        // Here.
        visitors.iter_mut().for_each(|visitor| visitor.stop_after = None);
        assert_eq!(walk.run(&mut visitors), Ended::Done);
        check(folder.path(), &merge(visitors));
    }
}

/// A visitor that counts the visits of each inode.
#[derive(Default)]
struct Inodes {
    seen: BTreeMap<u64, u32>,
    errors: Vec<WalkError>,
    stop_after: Option<(usize, std::sync::Arc<nacre_walk::Queue<()>>)>,
}

impl Visitor for Inodes {
    type State = ();

    fn enter(&mut self, _directory: &Opened<'_, ()>) -> Option<()> {
        Some(())
    }

    fn visit(&mut self, entry: &Entry<'_, ()>) -> Verdict {
        *self.seen.entry(entry.inode).or_default() += 1;
        if let Some((after, queue)) = &self.stop_after
            && self.seen.len() == *after
        {
            queue.stop();
        }
        Verdict::Descend
    }

    fn failed(&mut self, error: WalkError) {
        self.errors.push(error);
    }
}

#[test]
fn what_was_renamed_is_found_and_what_was_moved_away_is_told() {
    use std::os::unix::fs::MetadataExt;
    let inode = |path: &Path| path.symlink_metadata().unwrap().ino();
    let inodes = |path: &Path| {
        let mut paths = Vec::new();
        naive(path, &mut paths);
        paths.iter().map(|path| inode(path)).collect::<Vec<u64>>()
    };
    for (round, metadata) in [(0, true), (1, false), (2, true)] {
        let folder = tempfile::tempdir().unwrap();
        let (root, outside) = (folder.path().join("root"), folder.path().join("outside"));
        std::fs::create_dir_all(&outside).unwrap();
        for number in 0..60 {
            for inner in 0..5 {
                let inner = root.join(format!("directory {number}/inner {inner}/innermost"));
                std::fs::create_dir_all(&inner).unwrap();
                std::fs::write(inner.join("file"), "x").unwrap();
            }
        }
        let there: Vec<u64> = inodes(&root);
        let mut begun = Inodes::default();
        let mut first = Walk::new(Options { metadata, ..options(1) });
        first.add_root(&root).unwrap();
        begun.stop_after = Some((150 + 40 * round, first.queue().clone()));
        let mut visitors = [begun];
        first.start(0, &mut visitors[0]).unwrap();
        assert_eq!(first.run(&mut visitors), Ended::Stopped);
        let [mut all] = visitors;
        let units = first.frontier(|_| {});

        let mut away = Vec::new();
        for number in 0..60 {
            let directory = root.join(format!("directory {number}"));
            match number % 5 {
                0 => std::fs::rename(&directory, root.join(format!("{number} renamed"))).unwrap(),
                // Another one takes its place.
                1 => {
                    std::fs::rename(&directory, root.join(format!("another name {number}"))).unwrap();
                    std::fs::create_dir_all(directory.join("inner 0/decoy")).unwrap();
                }
                // What is in it is renamed, deep inside.
                2 => {
                    let inner = directory.join("inner 3");
                    std::fs::rename(inner.join("innermost"), inner.join("renamed")).unwrap();
                    std::fs::rename(inner, directory.join("0")).unwrap();
                }
                3 => {
                    away.extend(inodes(&directory));
                    std::fs::rename(&directory, outside.join(format!("{number}"))).unwrap();
                }
                _ => {}
            }
        }
        let mut second = Walk::new(Options { metadata, ..options(2) });
        second.add_root(&root).unwrap();
        second.queue().put(units);
        let mut visitors = [Inodes::default(), Inodes::default()];
        assert_eq!(second.run(&mut visitors), Ended::Done);
        let mut errors = Vec::new();
        for visitor in visitors {
            visitor.seen.into_iter().for_each(|(inode, times)| *all.seen.entry(inode).or_default() += times);
            errors.extend(visitor.errors);
        }
        for inode in there {
            let times = all.seen.get(&inode).copied().unwrap_or(0);
            assert!(times == 1 || times == 0 && away.contains(&inode), "{inode} was visited {times} times");
        }
        let unvisited = away.iter().any(|inode| !all.seen.contains_key(inode));
        assert!(unvisited, "something was moved away that was still to be visited");
        assert!(!errors.is_empty() && errors.iter().all(WalkError::is_missing), "{errors:?}");
        for error in errors {
            assert!(error.to_string().contains("moved or removed"), "{error}");
        }
    }
}

#[test]
fn what_is_given_away_is_visited_by_the_other() {
    let folder = tempfile::tempdir().unwrap();
    tree(folder.path());
    let options = Options { read_bytes: 4096, ..options(1) };
    let mut walks: Vec<Walk<()>> = (0..3).map(|_| Walk::new(options.clone())).collect();
    let mut visitors: Vec<[Recorder; 1]> = (0..3).map(|_| [Recorder::default()]).collect();
    for walk in &mut walks {
        walk.add_root(folder.path()).unwrap();
    }
    walks[0].start(0, &mut visitors[0][0]).unwrap();
    let mut turn = 0;
    while walks.iter().any(|walk| !walk.queue().is_idle()) {
        let (from, to) = (turn % 3, (turn + 1 + turn / 5 % 2) % 3);
        visitors[from][0].stop_after =
            Some((visitors[from][0].seen.len() + 1 + turn * 7 % 200, walks[from].queue().clone()));
        walks[from].run(&mut visitors[from]);
        let given = walks[from].queue().take(walks[from].queue().units() / 2 + 1);
        walks[to].queue().put(given);
        turn += 1;
    }
    assert!(turn > 10, "{turn}");
    let mut all = merge(visitors.into_iter().flatten().collect());
    all.left.values_mut().for_each(|times| *times = 1);
    check(folder.path(), &all);
}

#[test]
fn the_rest_of_a_large_directory_is_divided_and_every_part_is_visited() {
    rest_is_divided(0);
}

#[test]
fn the_rest_of_a_large_directory_far_below_its_root_is_divided_as_well() {
    rest_is_divided(70);
}

fn rest_is_divided(levels: usize) {
    let folder = tempfile::tempdir().unwrap();
    let large = folder.path().join("d/".repeat(levels));
    std::fs::create_dir_all(&large).unwrap();
    for number in 0..6000 {
        std::fs::write(large.join(format!("file {number}")), "").unwrap();
    }
    let options = Options { read_bytes: 4096, ..options(1) };
    let mut first = Walk::new(options.clone());
    let mut visitors = vec![Recorder::default()];
    first.add_root(folder.path()).unwrap();
    first.start(0, &mut visitors[0]).unwrap();
    visitors[0].stop_after = Some((200 + levels, first.queue().clone()));
    first.run(&mut visitors);
    // As others ask one after the other.
    let mut given: Vec<Unit> = (0..3).flat_map(|_| first.queue().take(1)).collect();
    // Positions of ext4 are hashes, between which there is a middle.
    if rustix::fs::statfs(folder.path()).unwrap().f_type as u64 == 0xEF53 {
        assert_eq!(given.len(), 3, "{given:?}");
        assert!(given[1].until == given[0].position && given[2].until == given[1].position, "{given:?}");
        assert_eq!(first.queue().units(), 1, "the first part stays");
    }
    assert_eq!(first.run(&mut visitors), Ended::Done);
    while let Some(unit) = given.pop() {
        let mut other = Walk::new(options.clone());
        let mut visitor = [Recorder::default()];
        other.add_root(folder.path()).unwrap();
        other.queue().put(vec![unit]);
        visitor[0].stop_after = Some((300, other.queue().clone()));
        if other.run(&mut visitor) == Ended::Stopped {
            given.extend(other.queue().take(1));
            assert_eq!(other.run(&mut visitor), Ended::Done);
        }
        visitors.extend(visitor);
    }
    let mut all = merge(visitors);
    all.left.values_mut().for_each(|times| *times = 1);
    check(folder.path(), &all);
}

#[test]
fn directories_with_long_paths_are_given_away_few_at_a_time() {
    use rustix::fs::{Mode, OFlags, mkdirat, open, openat};

    let folder = tempfile::tempdir().unwrap();
    let name = "d".repeat(200);
    let mut at = open(folder.path(), OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..60 {
        mkdirat(&at, &name, Mode::RWXU).unwrap();
        at = openat(&at, &name, OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    (0..200).for_each(|number| mkdirat(&at, format!("{number}"), Mode::RWXU).unwrap());
    let mut walk = Walk::new(options(1));
    let stop_after = Some((1 + 60 + 200, walk.queue().clone()));
    let mut visitors = [Recorder { stop_after, ..Recorder::default() }];
    let number = walk.add_root(folder.path()).unwrap();
    walk.start(number, &mut visitors[0]).unwrap();
    assert_eq!(walk.run(&mut visitors), Ended::Stopped);
    let mut given = std::collections::BTreeSet::new();
    loop {
        let units = walk.queue().take(256);
        let bytes: usize = units.iter().map(|unit| unit.path.len()).sum();
        assert!(bytes < 3 << 19, "{bytes}");
        if units.is_empty() {
            break;
        }
        given.extend(units.into_iter().map(|unit| unit.path));
    }
    assert_eq!((given.len(), walk.queue().units()), (200, 0));
    Command::new("rm").arg("-rf").arg(folder.path()).status().unwrap();
}

/// A visitor that panics at everything below the root.
struct Panicking;

impl Visitor for Panicking {
    type State = ();

    fn enter(&mut self, _directory: &Opened<'_, ()>) -> Option<()> {
        Some(())
    }

    fn visit(&mut self, entry: &Entry<'_, ()>) -> Verdict {
        assert_eq!(entry.depth, 0, "as is wanted");
        Verdict::Descend
    }

    fn failed(&mut self, error: WalkError) {
        panic!("{error}");
    }
}

#[test]
fn a_visitor_that_panics_ends_the_walk_of_all_threads() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "").unwrap();
    let mut walk = Walk::new(options(3));
    let mut visitors = [Panicking, Panicking, Panicking];
    let number = walk.add_root(folder.path()).unwrap();
    walk.start(number, &mut visitors[0]).unwrap();
    let run = std::panic::AssertUnwindSafe(|| walk.run(&mut visitors));
    assert!(std::panic::catch_unwind(run).is_err());
}

/// A visitor that looks for work to give away once it has begun a directory, and then stops the walk.
struct Giver {
    queue: std::sync::Arc<nacre_walk::Queue<()>>,
    given: Vec<Unit>,
    seen: Vec<PathBuf>,
}

impl Visitor for Giver {
    type State = ();

    fn enter(&mut self, _directory: &Opened<'_, ()>) -> Option<()> {
        Some(())
    }

    fn visit(&mut self, entry: &Entry<'_, ()>) -> Verdict {
        self.seen.push(entry.path());
        if entry.depth == 1 && !self.queue.is_stopped() {
            assert_eq!(self.queue.units(), 1, "the rest of the directory is queued");
            self.given = self.queue.take(10);
            self.queue.stop();
        }
        Verdict::Descend
    }

    fn failed(&mut self, error: WalkError) {
        panic!("{error}");
    }
}

#[test]
fn a_rest_that_could_not_be_given_away_is_read_to_its_end_before_the_walk_stops() {
    // Its positions are mere counts, and its names stay the same.
    let root = Path::new("/proc/sys/kernel");
    let mut walk = Walk::new(Options { metadata: false, read_bytes: 4096, ..options(1) });
    let mut visitors = [Giver { queue: walk.queue().clone(), given: Vec::new(), seen: Vec::new() }];
    let number = walk.add_root(root).unwrap();
    walk.start(number, &mut visitors[0]).unwrap();
    walk.run(&mut visitors);
    let left = walk.frontier(|_| {});
    assert!(left.iter().all(|unit| unit.position.is_none()), "{left:?}");
    let [Giver { given, mut seen, .. }] = visitors;
    assert_eq!(given, []);
    let mut expected: Vec<PathBuf> = root.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    expected.push(root.to_owned());
    expected.sort();
    seen.sort();
    assert_eq!(seen, expected);
}

#[test]
fn a_tree_is_handed_out_entry_by_entry() {
    let folder = tempfile::tempdir().unwrap();
    tree(folder.path());
    let mut walk = Walk::new(options(1));
    let mut visitors = [Recorder::default()];
    walk.add_root(folder.path()).unwrap();
    walk.start(0, &mut visitors[0]).unwrap();
    let mut left = walk.queue().take(1);
    while let Some(unit) = left.pop() {
        walk.queue().assign(unit);
        assert_eq!(walk.run(&mut visitors), Ended::Done);
        left.extend(walk.queue().found());
    }
    let mut kept = merge(visitors.into());
    // Directories are left whenever they are let go of.
    kept.left.values_mut().for_each(|times| *times = 1);
    let directories: Vec<PathBuf> =
        kept.seen.keys().filter(|path| !path.is_symlink() && path.is_dir()).cloned().collect();
    assert!(directories.iter().all(|path| kept.left.contains_key(path)));
    check(folder.path(), &kept);
}

#[test]
fn the_last_directory_stays_where_it_is_if_it_is_far_below_its_root() {
    let unit = |levels: usize| Unit { path: b"d/d".to_vec(), inodes: vec![1; levels], ..Unit::default() };
    let walk = Walk::<()>::new(options(1));
    walk.queue().put(vec![unit(2)]);
    assert_eq!(walk.queue().take(1), [unit(2)]);
    walk.queue().put(vec![unit(100)]);
    assert_eq!((walk.queue().take(1), walk.queue().units()), (Vec::new(), 1));
    walk.queue().put(vec![unit(101)]);
    assert_eq!((walk.queue().take(5), walk.queue().units()), (vec![unit(100)], 1));
    assert!(!walk.queue().is_idle());
}

#[test]
fn deep_paths_need_no_more_than_their_names() {
    let folder = tempfile::tempdir().unwrap();
    // 40 times 200 bytes: no system call takes that as one path.
    let name = "d".repeat(200);
    let mut at =
        rustix::fs::open(folder.path(), rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty()).unwrap();
    for _ in 0..40 {
        rustix::fs::mkdirat(&at, &name, rustix::fs::Mode::RWXU).unwrap();
        at =
            rustix::fs::openat(&at, &name, rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty()).unwrap();
    }
    let kept = walk(folder.path(), options(2));
    assert_eq!(kept.seen.len(), 41);
    assert!(kept.seen.values().all(|times| *times == 1));
    assert_eq!(kept.errors, []);
    let longest = kept.seen.keys().map(|path| path.as_os_str().len()).max().unwrap();
    assert!(longest > 8000, "{longest}");
    std::process::Command::new("rm").arg("-rf").arg(folder.path()).status().unwrap();
}

/// A visitor whose state of a directory is its depth, and is packed.
struct Levels {
    seen: Vec<PathBuf>,
    left: Vec<PathBuf>,
    /// The number of visits after which the walk stops, and its queue.
    stop_after: Option<(usize, Arc<Queue<u32>>)>,
}

/// The number of directories that were packed.
static PACKED: AtomicUsize = AtomicUsize::new(0);

impl Visitor for Levels {
    type State = u32;

    fn enter(&mut self, directory: &Opened<'_, u32>) -> Option<u32> {
        Some(directory.depth)
    }

    fn visit(&mut self, entry: &Entry<'_, u32>) -> Verdict {
        self.seen.push(entry.path());
        if let Some((after, queue)) = &self.stop_after
            && self.seen.len() == *after
        {
            queue.stop();
        }
        Verdict::Descend
    }

    fn leave(&mut self, directory: &Directory<u32>) {
        assert_eq!(*directory.state(), directory.depth());
        assert_eq!(directory.parent().map(|parent| *parent.state()), directory.depth().checked_sub(1));
        self.left.push(OsStr::from_bytes(&directory.path_bytes()).into());
    }

    fn pack(state: &u32, child: &u32, packed: &mut Vec<u8>) -> bool {
        assert_eq!(state + 1, *child);
        PACKED.fetch_add(1, Ordering::Relaxed);
        packed.extend_from_slice(&state.to_le_bytes());
        true
    }

    fn unpack(packed: &[u8], child: &u32) -> u32 {
        let state = u32::from_le_bytes(packed.try_into().unwrap());
        assert_eq!(state + 1, *child);
        state
    }

    fn failed(&mut self, error: WalkError) {
        panic!("{error}");
    }
}

#[test]
fn directories_of_a_chain_are_packed_and_left_as_any_others() {
    let folder = tempfile::tempdir().unwrap();
    let mut at = folder.path().to_owned();
    for depth in 0..400 {
        at.push("d");
        std::fs::create_dir(&at).unwrap();
        let branches = if depth % 40 == 0 { 3 } else { 0 };
        for number in 0..branches {
            std::fs::create_dir(at.join(format!("{number}"))).unwrap();
            std::fs::write(at.join(format!("{number}/file")), "").unwrap();
        }
    }
    let mut expected = Vec::new();
    naive(folder.path(), &mut expected);
    expected.sort();
    let directories: Vec<PathBuf> = expected.iter().filter(|path| path.is_dir()).cloned().collect();
    let seen_by = |visitors: &[Levels]| {
        let mut seen: Vec<PathBuf> = visitors.iter().flat_map(|visitor| visitor.seen.clone()).collect();
        seen.sort();
        seen
    };
    for (threads, stop_after) in [(1, None), (1, Some(100)), (1, Some(350)), (1, Some(420)), (4, Some(70))] {
        let before = PACKED.load(Ordering::Relaxed);
        let mut walk = Walk::new(options(threads));
        let stop_after = stop_after.map(|after| (after, Arc::clone(walk.queue())));
        let visitor = |stop_after| Levels { seen: Vec::new(), left: Vec::new(), stop_after };
        let mut visitors: Vec<Levels> = (0..threads).map(|_| visitor(stop_after.clone())).collect();
        let number = walk.add_root(folder.path()).unwrap();
        walk.start(number, &mut visitors[0]).unwrap();
        walk.run(&mut visitors);
        // Elsewhere, where what is packed has to be located.
        let units = walk.frontier(|directory| assert_eq!(*directory.state(), directory.depth()));
        for unit in &units {
            let names = unit.path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
            assert_eq!(names.count(), unit.inodes.len());
        }
        let mut second = Walk::new(options(threads));
        second.add_root(folder.path()).unwrap();
        second.queue().put(units);
        let mut others: Vec<Levels> = (0..threads).map(|_| visitor(None)).collect();
        assert_eq!(second.run(&mut others), Ended::Done);
        let mut both = [seen_by(&visitors), seen_by(&others)].concat();
        both.sort();
        assert_eq!(both, expected);
        // Here.
        visitors.iter_mut().for_each(|visitor| visitor.stop_after = None);
        assert_eq!(walk.run(&mut visitors), Ended::Done);
        assert_eq!(seen_by(&visitors), expected);
        let mut left: Vec<PathBuf> = visitors.iter().flat_map(|visitor| visitor.left.clone()).collect();
        left.sort();
        assert_eq!(left, directories);
        let packed = PACKED.load(Ordering::Relaxed) - before;
        assert!(packed > 300 || threads > 1, "{packed}");
    }
}

#[test]
fn roots_of_every_kind() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert_eq!(walk(&file, options(2)).seen.len(), 1);
    let link = folder.path().join("link");
    symlink(folder.path(), &link).unwrap();
    assert_eq!(walk(&link, options(2)).seen.len(), 1);
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    check(&empty, &walk(&empty, options(2)));
    let mut nothing = Walk::new(options(1));
    let number = nothing.add_root(&folder.path().join("nothing")).unwrap();
    let error = nothing.start(number, &mut Recorder::default()).unwrap_err();
    assert!(error.vanished());
    assert!(error.to_string().contains("nothing"), "{error}");
    assert_eq!(nothing.run(&mut [Recorder::default()]), Ended::Done);
    assert_eq!(FileKind::Link.letter(), 'l');
}

/// A visitor that mounts a file system on a directory after it was looked at, and before it is opened.
struct Mounter {
    precious: PathBuf,
    seen: Vec<PathBuf>,
    mount_points: Vec<PathBuf>,
    incomplete: usize,
}

impl Visitor for Mounter {
    type State = ();

    fn enter(&mut self, _directory: &Opened<'_, ()>) -> Option<()> {
        Some(())
    }

    fn visit(&mut self, entry: &Entry<'_, ()>) -> Verdict {
        if entry.path().ends_with("directory") {
            let mounted = Command::new("mount").arg("--bind").arg(&self.precious).arg(entry.path()).status();
            assert!(mounted.unwrap().success());
        }
        self.seen.push(entry.path());
        Verdict::Descend
    }

    fn leave(&mut self, _directory: &nacre_walk::Directory<()>) {}

    fn failed(&mut self, error: WalkError) {
        panic!("{error:?}");
    }

    fn mount_point(&mut self, path: Vec<u8>) {
        self.mount_points.push(OsStr::from_bytes(&path).into());
    }

    fn incomplete(&mut self, _directory: &nacre_walk::Directory<()>) {
        self.incomplete += 1;
    }
}

#[test]
fn what_is_mounted_on_a_directory_during_the_walk_is_not_entered() {
    const INSIDE: &str = "NACRE_TEST_IN_NAMESPACE";
    let Some(folder) = std::env::var_os(INSIDE) else {
        // Again in a mount namespace of its own, which ends with it.
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("unshare");
        command.args(["--mount", "--map-root-user"]).arg(std::env::current_exe().unwrap());
        command.args(["--exact", "what_is_mounted_on_a_directory_during_the_walk_is_not_entered"]);
        let ended = command.env(INSIDE, folder.path()).output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
        return;
    };
    for metadata in [false, true] {
        let folder = PathBuf::from(&folder).join(if metadata { "metadata" } else { "names" });
        let (tree, precious) = (folder.join("tree"), folder.join("precious"));
        std::fs::create_dir_all(tree.join("directory/below")).unwrap();
        std::fs::create_dir(&precious).unwrap();
        std::fs::write(precious.join("keep"), "").unwrap();
        let mut visitors = [Mounter { precious, seen: Vec::new(), mount_points: Vec::new(), incomplete: 0 }];
        let mut walk = Walk::new(Options { metadata, ..options(1) });
        let number = walk.add_root(&tree).unwrap();
        walk.start(number, &mut visitors[0]).unwrap();
        assert_eq!(walk.run(&mut visitors), Ended::Done);
        let [visitor] = visitors;
        assert_eq!(visitor.mount_points, [tree.join("directory")]);
        assert_eq!(visitor.incomplete, 1);
        assert!(!visitor.seen.iter().any(|path| path.ends_with("keep")), "{:?}", visitor.seen);
    }
}
