//! Tests of the floor against the contents of a tree.

use super::tree::Shape;
use super::*;

fn shape() -> Shape {
    Shape {
        directories: 200,
        fan_out: 6,
        depth: 6,
        files: 1500,
        large_directories: 1,
        large_entries: 20_000,
        chains: 1,
        chain_depth: 200,
        symbolic_links: 30,
        hard_links: 40,
        file_bytes_max: 1 << 20,
    }
}

#[test]
fn the_floor_finds_everything_once_however_it_is_shared() {
    let folder = tempfile::tempdir().unwrap();
    let tree = Tree::open_or_create(&folder.path().join("tree"), 3, &shape(), 2, false).unwrap();
    let totals = tree.manifest.as_ref().unwrap().totals.clone();
    for threads in [1, 2, 5] {
        let count = floor::walk(&tree.root, threads, true).unwrap();
        assert_eq!((count.entries, count.directories), (totals.entries, totals.directories));
        assert_eq!(count.files, totals.files + totals.hard_links);
        assert_eq!(count.symbolic_links, totals.symbolic_links);
        assert_eq!((count.bytes, count.errors), (totals.apparent_bytes_by_name, 0));
        let names = floor::walk(&tree.root, threads, false).unwrap();
        assert_eq!((names.entries, names.files), (count.entries, count.files));
        assert_eq!(names.bytes_of_all, 0);
    }
    assert!(floor::walk(&tree.root.join("nothing"), 1, true).is_err());
}
