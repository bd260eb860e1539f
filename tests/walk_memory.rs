//! The memory of `nacre walk`, whatever the tree. It is the only test of its program, so that the memory that it
//! measures of its children is theirs alone.

mod harness;

use std::fs;

use harness::{program, run_with};
use nix::sys::resource::{UsageWho, getrusage};

const BOUND_KIB: i64 = 64 << 10;

#[test]
fn memory_does_not_grow_with_the_tree() {
    let folder = harness::folder();
    // A directory of many names, and more files with several names than are kept in memory.
    let (large, names) = (folder.path().join("large"), folder.path().join("names"));
    fs::create_dir(&large).unwrap();
    fs::create_dir(&names).unwrap();
    for number in 0..80_000 {
        let path = large.join(format!("a file with a rather long name, number {number}"));
        fs::write(&path, if number % 1000 == 0 { "x" } else { "" }).unwrap();
        fs::hard_link(&path, names.join(format!("{number}"))).unwrap();
        if number % 2 == 0 {
            fs::hard_link(&path, names.join(format!("again {number}"))).unwrap();
        }
    }
    for number in 0..10_000 {
        fs::create_dir(folder.path().join(format!("directory {number}"))).unwrap();
    }
    let checkpoint = folder.path().with_extension("checkpoint");
    let everything = ["--top", "100", "--histogram", "size,age,depth,owner,type", "--every", "20ms"];
    for words in [
        &["--json"][..],
        &["--json", "--threads", "16"],
        &[&["--json", "--checkpoint", checkpoint.to_str().unwrap()], &everything[..]].concat(),
        &["--list", "--json", "--fields", "path,type,size,allocated,mode,user,group,mtime,links,inode,depth"],
    ] {
        let mut command = program();
        command.arg("walk").arg(folder.path()).args(words);
        let printed = run_with(command, b"").ok();
        if words[0] == "--json" {
            let summary: serde_json::Value = serde_json::from_slice(&printed).unwrap();
            assert_eq!(summary["hard_links"], serde_json::json!({ "names": 200_000, "files": 80_000 }));
            assert_eq!(summary["files"]["apparent"], 80);
            assert_eq!(summary["directories"]["entries"], 10_003);
        } else {
            assert_eq!(printed.split(|byte| *byte == b'\n').count(), 210_004);
        }
        let peak_kib = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap().max_rss();
        println!("{words:?}: the most so far is {peak_kib} KiB");
        assert!(peak_kib > 1000 && peak_kib <= BOUND_KIB, "{words:?}: {peak_kib} KiB");
    }
}
