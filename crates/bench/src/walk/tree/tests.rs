//! Tests of trees against the output of `find`.

use std::process::Command;

use super::*;

/// Returns a small shape with entries of every kind.
fn shape() -> Shape {
    Shape {
        directories: 60,
        fan_out: 5,
        depth: 5,
        files: 700,
        large_directories: 2,
        large_entries: 5000,
        chains: 2,
        chain_depth: 120,
        symbolic_links: 40,
        hard_links: 30,
        file_bytes_max: 1 << 32,
    }
}

/// Returns one line for every entry below a root, sorted: kind, bytes, links, time to the nanosecond, path, target,
/// inode.
fn listing(root: &Path) -> Vec<String> {
    let format = "%y %s %n %T@ %P %l %i\\0";
    let output = Command::new("find").arg(root).args(["-mindepth", "1", "-printf", format]).output();
    let output = output.expect("find is not installed; on Debian: apt-get install findutils");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines: Vec<String> = text.split_terminator('\0').map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Returns the listing without the values that a file system chooses: inode numbers and the sizes of directories.
fn portable(root: &Path) -> Vec<String> {
    let portable = |line: String| {
        let (line, _inode) = line.rsplit_once(' ').unwrap();
        let (kind, rest) = line.split_once(' ').unwrap();
        let (bytes, rest) = rest.split_once(' ').unwrap();
        format!("{kind} {} {rest}", if kind == "d" { "-" } else { bytes })
    };
    let mut lines: Vec<String> = listing(root).into_iter().map(portable).collect();
    lines.sort();
    lines
}

#[test]
fn a_tree_is_what_its_manifest_says() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("tree");
    let tree = Tree::open_or_create(&root, 7, &shape(), 2, false).unwrap();
    assert!(!tree.reused);
    let totals = tree.manifest.as_ref().unwrap().totals.clone();
    let found = listing(&root);
    let fields = |line: &String| -> Vec<String> { line.split(' ').map(str::to_owned).collect() };
    let found: Vec<Vec<String>> = found.iter().map(fields).collect();
    let of = |kind: &'static str| found.iter().filter(move |fields| fields[0] == kind);
    let bytes = |fields: &Vec<String>| fields[1].parse::<u64>().unwrap();
    let inode = |fields: &Vec<String>| fields.last().unwrap().clone();
    assert_eq!(totals.entries, found.len() as u64);
    assert_eq!(totals.entries, shape().entries());
    assert_eq!(totals.directories, of("d").count() as u64);
    assert_eq!(totals.symbolic_links, of("l").count() as u64);
    assert_eq!(totals.symbolic_link_bytes, of("l").map(bytes).sum::<u64>());
    assert_eq!(totals.files + totals.hard_links, of("f").count() as u64);
    assert_eq!(totals.apparent_bytes_by_name, of("f").map(bytes).sum::<u64>());
    let inodes: std::collections::HashMap<String, u64> =
        of("f").map(|fields| (inode(fields), bytes(fields))).collect();
    assert_eq!(totals.files, inodes.len() as u64);
    assert_eq!(totals.apparent_bytes, inodes.values().sum::<u64>());
    let linked: std::collections::HashSet<String> =
        of("f").filter(|fields| fields[2] != "1").map(inode).collect();
    assert_eq!(totals.files_with_hard_links, linked.len() as u64);
    let paths = || found.iter().map(|fields| fields[4].as_str());
    assert_eq!(totals.path_bytes_longest, paths().map(str::len).max().unwrap() as u64);
    assert_eq!(totals.deepest, paths().map(|path| path.split('/').count()).max().unwrap() as u64);
    assert!(totals.deepest > 120);
    let mut sizes = std::collections::HashMap::new();
    for path in paths() {
        *sizes.entry(path.rsplit_once('/').map_or("", |(above, _)| above)).or_insert(0u64) += 1;
    }
    assert_eq!(totals.largest_directory, *sizes.values().max().unwrap());
    // Sizes are of all magnitudes.
    assert!(of("f").any(|fields| bytes(fields) > 1 << 30) && of("f").any(|fields| bytes(fields) == 0));
    drop(tree);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the tree and its manifest are removed");
}

#[test]
fn a_seed_gives_one_tree_with_any_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let shape = Shape { large_entries: 1500, ..shape() };
    let make = |name: &str, seed, threads| {
        let root = folder.path().join(name);
        let _tree = Tree::open_or_create(&root, seed, &shape, threads, true).unwrap();
        portable(&root)
    };
    let first = make("first", 1, 1);
    assert_eq!(first, make("second", 1, 4));
    assert_ne!(first, make("third", 2, 4));
}

#[test]
fn a_tree_is_made_once_and_never_over_something_else() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("tree");
    let small = Shape { large_directories: 0, chains: 0, ..shape() };
    let marked = |tree: Tree| (tree.reused, tree.root.join("mark").exists());
    assert_eq!(marked(Tree::open_or_create(&root, 1, &small, 2, true).unwrap()), (false, false));
    std::fs::write(root.join("mark"), "").unwrap();
    assert_eq!(marked(Tree::open_or_create(&root, 1, &small, 2, false).unwrap()), (true, true));
    assert!(root.join("mark").exists(), "a tree that was there stays");
    // Another seed is another tree.
    assert_eq!(marked(Tree::open_or_create(&root, 2, &small, 2, true).unwrap()), (false, false));
    // One that was interrupted is made again.
    let mut manifest = Manifest::of(&root).unwrap();
    manifest.complete = false;
    manifest.write(&root).unwrap();
    std::fs::write(root.join("mark"), "").unwrap();
    assert_eq!(marked(Tree::open_or_create(&root, 2, &small, 2, true).unwrap()), (false, false));
    // Somebody's own files are left alone.
    let own = folder.path().join("own");
    std::fs::create_dir(&own).unwrap();
    std::fs::write(own.join("file"), "").unwrap();
    let error = Tree::open_or_create(&own, 1, &small, 2, false).err().unwrap().to_string();
    assert!(error.contains("was not made by this study"), "{error}");
    assert!(own.join("file").exists());
}

#[test]
fn shapes_that_cannot_be_made_are_refused() {
    let refused = |shape: Shape| Plan::new(1, &shape).err().expect("refused").to_string();
    assert!(refused(Shape { depth: 1, ..shape() }).contains("do not fit"));
    assert!(refused(Shape { file_bytes_max: 1000, ..shape() }).contains("power of two"));
    assert!(refused(Shape { chain_depth: 100_000, ..shape() }).contains("deep"));
    assert!(refused(Shape { files: 0, ..shape() }).contains("hard links"));
}
