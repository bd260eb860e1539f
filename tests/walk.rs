//! `nacre walk`, through the built program, compared with `find` and `du`: counting, listing, filters and histograms,
//! and the exit codes.

mod harness;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use base64::Engine;
use harness::tree::{self, find, output, records};
use harness::{Ended, PATIENCE, program, run_with, wait};
use serde_json::{Value, json};

#[track_caller]
fn walk(words: &[&str]) -> Ended {
    let mut command = program();
    command.arg("walk").args(words);
    run_with(command, b"")
}

#[track_caller]
fn listed(words: &[&str]) -> Vec<Vec<u8>> {
    records(&walk(&[words, &["--list", "--null"]].concat()).ok())
}

/// Creates a tree with everything in it, and returns its path as well.
fn folder() -> (tempfile::TempDir, String) {
    let folder = harness::folder();
    tree::make(folder.path());
    let path = folder.path().to_str().unwrap().to_owned();
    (folder, path)
}

/// The output of `find` for an entry.
struct Found {
    path: Vec<u8>,
    kind: u8,
    size: u64,
    allocated: u64,
    inode: (u64, u64),
    links: u64,
    depth: u64,
}

fn found(root: &str) -> Vec<Found> {
    let records = find(&[root, "-printf", "%y %s %b %D %i %n %d %p\\0"]);
    let parse = |record: &Vec<u8>| {
        let mut words = record.splitn(8, |byte| *byte == b' ');
        let kind = words.next().unwrap()[0];
        let mut number = || std::str::from_utf8(words.next().unwrap()).unwrap().parse::<u64>().unwrap();
        let (size, blocks) = (number(), number());
        let inode = (number(), number());
        let (links, depth) = (number(), number());
        let path = words.next().unwrap().to_vec();
        Found { path, kind, size, allocated: blocks * 512, inode, links, depth }
    };
    records.iter().map(parse).collect()
}

#[test]
fn the_summary_is_what_find_and_du_say() {
    let (_folder, root) = folder();
    let found = found(&root);
    let mut seen = BTreeSet::new();
    let tally = |kinds: &[u8], seen: &mut BTreeSet<(u64, u64)>| {
        let (mut entries, mut apparent, mut allocated) = (0, 0, 0);
        for entry in found.iter().filter(|entry| kinds.contains(&entry.kind)) {
            entries += 1;
            if entry.kind == b'd' || entry.links == 1 || seen.insert(entry.inode) {
                apparent += entry.size;
                allocated += entry.allocated;
            }
        }
        json!({ "entries": entries, "apparent": apparent, "allocated": allocated })
    };
    for threads in ["1", "2", "5"] {
        let summary = walk(&[&root, "--json", "--threads", threads]).json();
        for (key, kinds) in [
            ("files", &b"f"[..]),
            ("directories", b"d"),
            ("links", b"l"),
            ("others", b"pscb"),
            ("total", b"fdlpscb"),
        ] {
            seen.clear();
            assert_eq!(summary[key], tally(kinds, &mut seen), "{key}");
        }
        let du = output(Command::new("du").args(["-s", "--block-size=1", &root]), "coreutils");
        let du = String::from_utf8(du).unwrap();
        assert_eq!(summary["total"]["allocated"].to_string(), du.split('\t').next().unwrap());
        let linked: Vec<_> = found.iter().filter(|entry| entry.kind != b'd' && entry.links > 1).collect();
        let files: BTreeSet<_> = linked.iter().map(|entry| entry.inode).collect();
        assert_eq!(summary["hard_links"], json!({ "names": linked.len(), "files": files.len() }));
        assert_eq!(summary["deepest"]["depth"], 302);
        assert_eq!(summary["largest_directory"], json!({ "path": format!("{root}/many"), "entries": 3000 }));
        assert_eq!(summary["errors"], json!({ "count": 0, "first": [] }));
        assert_eq!(summary["vanished"], 0);
        assert_eq!(summary["mount_points"]["count"], 0);
    }
    let text = walk(&[&root]).text();
    for part in
        ["ENTRIES", "files", "hard links: ", "deepest: 302 levels, ", "largest directory: 3,000 entries, "]
    {
        assert!(text.contains(part), "\"{part}\" is not in {text}");
    }
    assert!(!text.contains("errors"), "{text}");
}

#[test]
fn the_largest_and_the_histograms_are_right() {
    let (_folder, root) = folder();
    let found = found(&root);
    let summary =
        walk(&[&root, "--json", "--top", "7", "--histogram", "size,depth,type,owner", "--histogram", "age"])
            .json();
    assert!(summary.get("levels").is_none());
    let exact = |path: &[u8], key: &str, size: u64| match std::str::from_utf8(path) {
        Ok(path) => json!({ "path": path, key: size }),
        Err(_) => {
            let path = base64::engine::general_purpose::STANDARD.encode(path);
            json!({ "path_base64": path, key: size })
        }
    };
    let rank = |mut all: Vec<(u64, &[u8])>, key: &str| -> Vec<Value> {
        // Of files of the same size the one nearer to the root comes first, of directories the deeper one.
        let depth = |path: &[u8]| path.iter().filter(|byte| **byte == b'/').count() as i64;
        let direction = if key == "apparent" { 1 } else { -1 };
        all.sort_by_key(|(size, path)| (std::cmp::Reverse(*size), direction * depth(path), *path));
        all.truncate(7);
        all.into_iter().map(|(size, path)| exact(path, key, size)).collect()
    };
    let files = found.iter().filter(|entry| entry.kind == b'f').map(|entry| (entry.size, &entry.path[..]));
    assert_eq!(summary["top"]["files"], Value::from(rank(files.collect(), "apparent")));
    let (mut entries, mut bytes) = (BTreeMap::new(), BTreeMap::new());
    for entry in found.iter().filter(|entry| entry.kind == b'd') {
        entries.insert(&entry.path[..], 0);
        bytes.insert(&entry.path[..], 0);
    }
    for entry in found.iter().filter(|entry| entry.depth > 0) {
        let mut at = &entry.path[..];
        let mut parent = true;
        while at.len() > root.len() {
            at = &at[..at.iter().rposition(|byte| *byte == b'/').unwrap()];
            *bytes.get_mut(at).unwrap() += entry.allocated;
            *entries.get_mut(at).unwrap() += u64::from(std::mem::take(&mut parent));
        }
    }
    let entries = entries.into_iter().map(|(path, size)| (size, path)).collect();
    let bytes = bytes.into_iter().map(|(path, size)| (size, path)).collect();
    assert_eq!(summary["top"]["directories_by_entries"], Value::from(rank(entries, "entries")));
    assert_eq!(summary["top"]["directories_by_bytes"], Value::from(rank(bytes, "allocated")));

    let histogram = |of: &str| summary["histograms"][of].as_array().unwrap().clone();
    // A scale has no gaps.
    for of in ["size", "age"] {
        let buckets = histogram(of);
        for pair in buckets.windows(2).filter(|pair| pair[0]["to"] != -1) {
            assert_eq!(pair[0]["to"].as_u64().unwrap() + 1, pair[1]["from"].as_u64().unwrap(), "{of}");
        }
    }
    for (of, entries) in [
        ("size", found.iter().filter(|entry| entry.kind == b'f').count()),
        ("depth", found.len()),
        ("type", found.len()),
        ("owner", found.len()),
        ("age", found.len()),
    ] {
        let sum: u64 = histogram(of).iter().map(|bucket| bucket["entries"].as_u64().unwrap()).sum();
        assert_eq!(sum, entries as u64, "{of}");
    }
    for bucket in histogram("size") {
        let (from, to) = (bucket["from"].as_u64().unwrap(), bucket["to"].as_u64().unwrap());
        let within = found.iter().filter(|entry| entry.kind == b'f' && (from..=to).contains(&entry.size));
        let (count, apparent) = within.fold((0, 0), |(count, sum), entry| (count + 1, sum + entry.size));
        assert_eq!((&bucket["entries"], &bucket["apparent"]), (&json!(count), &json!(apparent)), "{bucket}");
    }
    for bucket in histogram("depth") {
        let count = found.iter().filter(|entry| bucket["depth"] == entry.depth).count();
        assert_eq!(bucket["entries"], count);
    }
    for bucket in histogram("owner") {
        let count = find(&[&root, "-uid", &bucket["uid"].to_string(), "-print0"]).len();
        assert_eq!(bucket["entries"], count, "{bucket}");
    }
    let future = histogram("age")[0].clone();
    assert_eq!((&future["to"], &future["entries"]), (&json!(-1), &json!(1)));
    let days = histogram("age").iter().find(|bucket| bucket["from"] == 2).unwrap()["entries"].clone();
    // 49, 71 and 73 hours.
    assert_eq!(days, 3);

    let folder = harness::folder();
    let picture = folder.path().join("spread.svg");
    let words = [&root, "--histogram", "size,age", "--picture", picture.to_str().unwrap()];
    assert!(walk(&words).text().contains("entries by days since their modification"));
    let svg = fs::read_to_string(picture).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    for part in ["files by apparent size", "in the future", "from 1.0 MiB"] {
        assert!(svg.contains(part), "{part}");
    }
    let wrong = walk(&[&root, "--histogram", "size", "--picture", "spread.png"]);
    wrong.failed(2, &["spread.png", "ends in .svg"]);
}

#[test]
fn every_level_has_its_counts() {
    let (_folder, root) = folder();
    let found = found(&root);
    let summary = walk(&[&root, "--json", "--depth-summary", "--threads", "3"]).json();
    let levels = summary["levels"].as_array().unwrap();
    assert_eq!(levels.len(), 303);
    for (depth, level) in levels.iter().enumerate() {
        let within = || found.iter().filter(|entry| entry.depth == depth as u64);
        let of = |kind: u8| within().filter(|entry| entry.kind == kind).count();
        let expected = json!({
            "depth": depth,
            "entries": within().count(),
            "directories": of(b'd'),
            "files": of(b'f'),
            "apparent": within().map(|entry| entry.size).sum::<u64>(),
            "allocated": within().map(|entry| entry.allocated).sum::<u64>(),
        });
        assert_eq!(*level, expected);
    }
    let text = walk(&[&root, "--depth-summary"]).text();
    let (_, table) = text.split_once("\nlevels below the roots\n").unwrap();
    assert_eq!(table.lines().count(), 1 + 303, "{table}");
    let heads: Vec<&str> = table.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(heads, ["LEVEL", "ENTRIES", "DIRECTORIES", "FILES", "APPARENT", "ALLOCATED"]);
}

#[test]
fn lists_are_what_find_prints() {
    let (_folder, root) = folder();
    // Reading directories may change their access times, once.
    find(&[&root, "-print0"]);
    for threads in ["1", "3"] {
        assert_eq!(listed(&[&root, "--threads", threads]), find(&[&root, "-print0"]));
    }
    let format = "%y\\t%s\\t%m\\t%u\\t%g\\t%U\\t%G\\t%T@\\t%A@\\t%C@\\t%n\\t%i\\t%d\\t%p\\0";
    let fields = "type,size,mode,user,group,uid,gid,mtime,atime,ctime,links,inode,depth,path";
    assert_eq!(listed(&[&root, "--fields", fields]), find(&[&root, "-printf", format]));
    // As lines, whatever the names contain.
    let lines = |bytes: Vec<u8>| {
        let mut lines: Vec<Vec<u8>> =
            bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        lines.sort();
        lines
    };
    let ours = walk(&[&root, "--list", "--fields", "path"]).ok();
    assert_eq!(lines(ours), lines(output(Command::new("find").arg(&root), "findutils")));
    let allocated = listed(&[&root, "--fields", "allocated,path"]);
    let expected = found(&root)
        .into_iter()
        .map(|entry| [entry.allocated.to_string().as_bytes(), b"\t", &entry.path].concat());
    assert_eq!(allocated.into_iter().collect::<BTreeSet<_>>(), expected.collect());
}

#[test]
fn a_terminal_is_shown_no_control_characters() {
    let folder = harness::folder();
    fs::write(folder.path().join("clear \x1b[2J it"), "").unwrap();
    let line = format!("'{}' walk --list '{}'", env!("CARGO_BIN_EXE_nacre"), folder.path().display());
    // `script` gives its child a terminal.
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    let shown = String::from_utf8(tree::output(&mut command, "bsdutils")).unwrap();
    assert!(
        shown.contains("/clear \\x1b[2J it") && !shown.contains('"') && !shown.contains('\x1b'),
        "{shown:?}"
    );
}

#[test]
fn json_lines_say_all_of_any_name() {
    let (_folder, root) = folder();
    let fields = "path,type,size,mode,user,uid,mtime,links,inode,depth";
    let bytes = walk(&[&root, "--list", "--json", "--fields", fields]).ok();
    let mut paths = Vec::new();
    for line in String::from_utf8(bytes).unwrap().lines() {
        let value: Value = serde_json::from_str(line).unwrap();
        let path = match value.get("path_base64") {
            Some(exact) => base64::engine::general_purpose::STANDARD.decode(exact.as_str().unwrap()).unwrap(),
            None => value["path"].as_str().unwrap().as_bytes().to_vec(),
        };
        paths.push(path.clone());
        if path.ends_with(b"/before the epoch") {
            assert_eq!(value["mtime"], -1.5);
            assert_eq!(
                (&value["type"], &value["size"], &value["user"]),
                (&json!("file"), &json!(0), &json!("root"))
            );
        }
        if path.ends_with(b"special/zero") {
            assert_eq!(value["user"], "4000000");
            assert_eq!((&value["type"], &value["mode"]), (&json!("character-device"), &json!("0400")));
        }
    }
    paths.sort();
    assert_eq!(paths, find(&[&root, "-print0"]));
    let line = walk(&[&root, "--list", "--json", "--name", "zero"]).json();
    assert_eq!(line, json!({ "path": format!("{root}/special/zero"), "type": "character-device" }));
}

#[test]
fn filters_choose_what_find_chooses() {
    let (_folder, root) = folder();
    let newer = format!("{root}/Ages/25h.TXT");
    let (hidden, inside) = (format!("{root}/names/.h*"), format!("{root}/names/*/inside.c"));
    #[rustfmt::skip]
    let cases: &[(&[&str], &[&str])] = &[
        (&["--name", "*.dat"], &["-name", "*.dat"]),
        (&["--name", "*"], &["-name", "*"]),
        (&["--name", "?5*"], &["-name", "?5*"]),
        (&["--name", "[0-4]*h.TXT"], &["-name", "[0-4]*h.TXT"]),
        (&["--name", "[!e]*"], &["-name", "[!e]*"]),
        (&["--name", "\\[a\\]b\\*c\\?"], &["-name", "\\[a\\]b\\*c\\?"]),
        (&["--name", "*\n*"], &["-name", "*\n*"]),
        (&["--iname", "*.txt"], &["-iname", "*.txt"]),
        (&["--name", "*.dat", "--name", "socket", "--iname", "AGES"],
            &["(", "-name", "*.dat", "-o", "-name", "socket", "-o", "-iname", "ages", ")"]),
        (&["--type", "f"], &["-type", "f"]),
        (&["--type", "d"], &["-type", "d"]),
        (&["--type", "l"], &["-type", "l"]),
        (&["--type", "p"], &["-type", "p"]),
        (&["--type", "s"], &["-type", "s"]),
        (&["--type", "c"], &["-type", "c"]),
        (&["--type", "b"], &["-type", "b"]),
        (&["--type", "d,l,s"], &["-type", "d,l,s"]),
        (&["--size", "1c"], &["-size", "1c"]),
        (&["--size", "+512c"], &["-size", "+512c"]),
        (&["--size", "-512c"], &["-size", "-512c"]),
        (&["--size", "1k"], &["-size", "1k"]),
        (&["--size", "-1k"], &["-size", "-1k"]),
        (&["--size", "+1k"], &["-size", "+1k"]),
        (&["--size", "2b"], &["-size", "2b"]),
        (&["--size", "1w"], &["-size", "1w"]),
        (&["--size", "1M"], &["-size", "1M"]),
        (&["--size", "+1M"], &["-size", "+1M"]),
        (&["--size", "+1G"], &["-size", "+1G"]),
        (&["--size", "+1KiB"], &["-size", "+1024c"]),
        (&["--size", "-1MiB"], &["-size", "-1048576c"]),
        (&["--size", "+100c", "--size", "-1000c"], &["-size", "+100c", "-size", "-1000c"]),
        (&["--mtime", "0"], &["-mtime", "0"]),
        (&["--mtime", "1"], &["-mtime", "1"]),
        (&["--mtime", "+1"], &["-mtime", "+1"]),
        (&["--mtime", "-1"], &["-mtime", "-1"]),
        (&["--mtime", "-3"], &["-mtime", "-3"]),
        (&["--mtime", "+2"], &["-mtime", "+2"]),
        (&["--mtime", "+29"], &["-mtime", "+29"]),
        (&["--mtime", "+20000"], &["-mtime", "+20000"]),
        (&["--newer", &newer], &["-newer", &newer]),
        (&["--newer", "2001-09-09"], &["-newermt", "2001-09-09"]),
        (&["--newer", "@-2"], &["-newermt", "@-2"]),
        (&["--newer", "@-1"], &["-newermt", "@-1"]),
        (&["--user", "root"], &["-user", "root"]),
        (&["--user", "nobody"], &["-user", "nobody"]),
        (&["--user", "4000000"], &["-user", "4000000"]),
        (&["--user", "nobody", "--user", "4000000"], &["(", "-user", "nobody", "-o", "-user", "4000000", ")"]),
        (&["--depth", "0"], &["-maxdepth", "0"]),
        (&["--depth", "1"], &["-mindepth", "1", "-maxdepth", "1"]),
        (&["--depth", "2..3"], &["-mindepth", "2", "-maxdepth", "3"]),
        (&["--depth", "..2"], &["-maxdepth", "2"]),
        (&["--depth", "250.."], &["-mindepth", "250"]),
        (&["--prune", "d"], &["-name", "d", "-prune", "-o"]),
        (&["--prune", "[0-9]*", "--prune", "many"], &["(", "-name", "[0-9]*", "-o", "-name", "many", ")", "-prune", "-o"]),
        (&["--prune", &hidden, "--prune", &inside],
            &["(", "-path", &hidden, "-o", "-path", &inside, ")", "-prune", "-o"]),
        (&["--type", "f", "--name", "*0*", "--size", "+0c", "--mtime", "-2", "--depth", "2", "--prune", "links"],
            &["-mindepth", "2", "-maxdepth", "2", "-path", "*/links", "-prune", "-o", "-type", "f", "-name", "*0*",
              "-size", "+0c", "-mtime", "-2", "-not", "-path", "*/links/*"]),
    ];
    let everything = find(&[&root, "-print0"]);
    for (ours, theirs) in cases {
        let expected = find(&[&[&root[..]], *theirs, &["-print0"]].concat());
        assert_eq!(listed(&[&[&root[..]], *ours].concat()), expected, "{ours:?}");
        assert!(!expected.is_empty(), "{ours:?} is no test if it finds nothing");
        // Summaries select the same entries.
        let summary = walk(&[&[&root[..], "--json"], *ours].concat()).json();
        assert_eq!(summary["total"]["entries"], expected.len(), "{ours:?}");
    }
    assert!(everything.len() > 3000);

    let patterns = harness::folder();
    let file = patterns.path().join("patterns");
    fs::write(&file, "# what is large\n/many\n*.dat\n!1.dat\nd/\nnames/*/inside.c\n").unwrap();
    let left = listed(&[&root, "--exclude-from", file.to_str().unwrap()]);
    let expected = everything.into_iter().filter(|path| {
        let path = path.strip_prefix(root.as_bytes()).unwrap();
        let has = |part: &[u8]| path.windows(part.len()).any(|window| window == part);
        !(path.starts_with(b"/many")
            || (path.ends_with(b".dat") && !path.ends_with(b"/1.dat"))
            || path.starts_with(b"/deep/d")
            || (has(b"/names/") && path.ends_with(b"/inside.c")))
    });
    assert_eq!(left, expected.collect::<Vec<_>>());
}

#[test]
fn files_that_are_not_on_lustre_have_no_layout_and_are_on_no_ost() {
    let folder = harness::folder();
    fs::write(folder.path().join("file"), "x").unwrap();
    let root = folder.path().to_str().unwrap();
    assert_eq!(walk(&[root, "--list", "--ost", "0", "--ost", "1"]).text(), "");
    assert_eq!(walk(&[root, "--ost", "0", "--json"]).json()["total"]["entries"], 0);
    let fields = "stripe_count,stripe_size,pool,osts";
    let listed = walk(&[root, "--list", "--type", "f", "--json", "--fields", fields]).json();
    assert_eq!(listed, json!({ "stripe_count": null, "stripe_size": null, "pool": null, "osts": null }));
    assert_eq!(walk(&[root, "--list", "--type", "f", "--fields", fields]).ok(), b"\t\t\t\n");
    let index = folder.path().join("sweep.sqlite");
    walk(&[root, "--index", index.to_str().unwrap(), "--layouts"]).ok();
}

#[test]
fn wrong_usage_is_said() {
    let ended = walk(&["/tmp", "--threads", "100000"]);
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(ended.stderr.contains("it must be 1 to 1024"), "{ended:?}");
    let folder = harness::folder();
    let root = folder.path().to_str().unwrap();
    walk(&["/no/such/root"]).failed(2, &["/no/such/root", "No such file"]);
    walk(&[root, "/no/such/root"]).failed(2, &["/no/such/root"]);
    walk(&["nacre://results"]).failed(2, &["--store", "nacre:/PATH"]);
    walk(&[root, "--exclude-from", "/no/such/file"]).failed(2, &["/no/such/file"]);
    walk(&[root, "--newer", "/no/such/file"]).failed(2, &["/no/such/file", "2026-01-31"]);
    walk(&[root, "--name", "[a"]).failed(2, &["\"[a\" is not a pattern"]);
    walk(&[root, "--resume", "/no/such/file"]).failed(2, &["cannot resume from", "/no/such/file"]);
    let saved = walk(&[root, "--checkpoint", "/no/such/folder/file"]);
    saved.failed(
        1,
        &["cannot save the checkpoint \"/no/such/folder/file\": there is no folder \"/no/such/folder\"\n"],
    );
    for (words, part) in [
        (&["--size", "5"][..], "needs a unit"),
        (&["--mtime", "soon"], "whole number"),
        (&["--type", "x"], "is not a type"),
        (&["--ost", "x"], "it is not a count"),
        (&["--layouts"], "--index"),
        (&["--user", "nobody at all"], "no user"),
        (&["--depth", "3..1"], "no level"),
        (&["--list", "--top", "3"], "cannot be used with"),
        (&["--list", "--depth-summary"], "cannot be used with"),
        (&["--fields", "path"], "--list"),
        (&["--list", "--fields", "colour"], "invalid value"),
        (&["--top", "0"], "it must be 1 to 10000"),
        (&["--threads", "0"], "it must be 1 to 1024"),
        (&["--every", "5"], "is not a time"),
        (&["--picture", "x.svg"], "--histogram"),
    ] {
        let ended = walk(&[&[root], words].concat());
        assert_eq!(ended.code, 2, "{words:?}: {ended:?}");
        assert!(ended.stderr.contains(part), "{words:?}: {ended:?}");
    }
    assert_eq!(walk(&[]).code, 2);
}

#[test]
fn what_cannot_be_read_is_told_and_the_rest_is_counted() {
    let (folder, root) = folder();
    let closed = folder.path().join("names/closed");
    fs::create_dir_all(closed.join("inside")).unwrap();
    let mode =
        |path: &Path, mode| fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode));
    mode(folder.path(), 0o755).unwrap();
    mode(&closed, 0).unwrap();
    // It can be listed, but its entries cannot be examined.
    let listable = folder.path().join("links");
    mode(&listable, 0o744).unwrap();
    let nobody = |program: &std::ffi::OsStr| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program);
        command
    };
    // The program under test may be in a folder that other users cannot enter.
    let copy = harness::folder();
    mode(copy.path(), 0o755).unwrap();
    let ours = copy.path().join("nacre");
    fs::copy(program().get_program(), &ours).unwrap();

    let mut command = nobody(ours.as_os_str());
    command.args(["walk", &root, "--json"]);
    let ended = run_with(command, b"");
    assert_eq!(ended.code, 1, "{ended:?} (setpriv is in util-linux)");
    let summary: Value = serde_json::from_slice(&ended.stdout).unwrap();
    let unseen = fs::read_dir(&listable).unwrap().count();
    assert_eq!(summary["errors"]["count"], unseen + 1);
    assert_eq!(ended.stderr.lines().count(), 12, "{ended:?}");
    assert!(ended.stderr.contains(&format!("… and {} more; --errors FILE", unseen + 1 - 10)), "{ended:?}");
    let last = ended.stderr.lines().last().unwrap();
    assert_eq!(last, format!("nacre: {} directories or entries could not be visited", unseen + 1));
    assert!(ended.stderr.contains("Permission denied"));
    let all = find(&[&root, "-print0"]).len();
    assert_eq!(summary["total"]["entries"], all - unseen - 1);

    // All of them can be written to a file.
    let file = copy.path().join("errors");
    mode(copy.path(), 0o777).unwrap();
    let paths = |words: &[&str]| {
        let mut command = nobody(ours.as_os_str());
        command.args(["walk", &root]).args(words).arg("--errors").arg(&file);
        assert_eq!(run_with(command, b"").code, 1);
        let lines = fs::read_to_string(&file).unwrap();
        fs::remove_file(&file).unwrap();
        lines.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(paths(&[]).len(), unseen + 1);
    let errors: Vec<Value> =
        paths(&["--json"]).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(errors.len(), unseen + 1);
    assert!(
        errors.iter().all(|error| error["errno"] == rustix::io::Errno::ACCESS.raw_os_error()),
        "{errors:?}"
    );
    let closed_one = errors.iter().find(|error| error["error"] == "open").unwrap();
    assert_eq!(closed_one["path"], closed.to_str().unwrap());
    let mut command = nobody(ours.as_os_str());
    command.args(["walk", &root, "--list", "--json", "--fields", "path,size"]);
    let listed = String::from_utf8(run_with(command, b"").stdout).unwrap();
    let listed_records = listed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    assert_eq!(listed_records.filter(|record| record["error"].is_string()).count(), unseen + 1);

    // Names only, which find lists without examining entries.
    let mut command = nobody(ours.as_os_str());
    command.args(["walk", &root, "--list", "--null"]);
    let ended = run_with(command, b"");
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.starts_with("nacre: cannot open the directory"), "{ended:?}");
    let output = nobody("find".as_ref()).args([&root, "-print0"]).output().unwrap();
    assert_eq!(records(&ended.stdout), records(&output.stdout));
}

#[test]
fn roots_are_walked_once_whatever_they_are() {
    let folder = harness::folder();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::create_dir_all(path("a/b/c")).unwrap();
    fs::create_dir(path("empty")).unwrap();
    fs::write(path("a/file"), "x").unwrap();
    symlink("a", path("link")).unwrap();
    let (a, b, file, link, empty) = (path("a"), path("a/b"), path("a/file"), path("link"), path("empty"));

    assert_eq!(listed(&[&empty]), [empty.as_bytes()]);
    assert_eq!(listed(&[&file]), [file.as_bytes()]);
    assert_eq!(listed(&[&link]), [link.as_bytes()]);
    let slash = format!("{link}/");
    assert_eq!(listed(&[&slash]), find(&[&slash, "-print0"]));
    assert_eq!(listed(&[&empty, &file]).len(), 2);
    assert_eq!(walk(&[&file, "--json"]).json()["files"]["entries"], 1);
    assert_eq!(walk(&[&empty, "--json"]).json()["largest_directory"], json!({ "path": empty, "entries": 0 }));

    for (roots, dropped) in [
        (&[&a[..], &b][..], &b),
        (&[&b, &a], &b),
        (&[&a, &a], &a),
        (&[&a, &format!("{a}/b/../")], &format!("{a}/b/../")),
        (&[&a, &slash], &slash),
        (&[&a, &file], &file),
    ] {
        let ended = walk(&[roots, &["--list", "--null"]].concat());
        assert_eq!(ended.code, 0, "{ended:?}");
        assert!(ended.stderr.contains(&format!("{dropped:?} is visited as part of")), "{ended:?}");
        // Where a filter keeps the walk out of the one, the other would not be visited at all.
        for filter in [["--depth", "..1"], ["--prune", "b"]] {
            let ended = walk(&[roots, &filter].concat());
            if dropped == &b || dropped == &file {
                ended.failed(2, &["as a part of", "walk it by itself"]);
            } else {
                assert_eq!(ended.code, 0, "{ended:?}");
            }
        }
        let kept = roots.iter().find(|root| *root != dropped).unwrap_or(&roots[0]);
        assert_eq!(records(&ended.stdout), find(&[kept, "-print0"]), "{roots:?}");
    }
    // Two names, one of which is a prefix of the other.
    let longer = path("a longer");
    fs::create_dir(&longer).unwrap();
    assert_eq!(listed(&[&a, &longer]).len(), 5);
    // Relative paths are listed as given.
    let mut command = program();
    command.args(["walk", ".", "--list", "--null"]).current_dir(&a);
    let expected: Vec<&[u8]> = vec![b".", b"./b", b"./b/c", b"./file"];
    assert_eq!(records(&run_with(command, b"").ok()), expected);
}

#[test]
fn nobody_reading_is_no_failure() {
    let (_folder, root) = folder();
    for words in [&["--list"][..], &["--list", "--json", "--fields", "path,size"], &["--top", "1000"]] {
        let mut child = program()
            .arg("walk")
            .arg(&root)
            .args(words)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let status = wait(&mut child, PATIENCE);
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert_eq!((status.code(), stderr.as_str()), (Some(0), ""), "{words:?}");
    }
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for words in [&["--list"][..], &[]] {
        let stdout = full.try_clone().unwrap();
        let ended = program().arg("walk").arg(&root).args(words).stdout(stdout).output().unwrap();
        assert_eq!(ended.status.code(), Some(1));
        let stderr = String::from_utf8(ended.stderr).unwrap();
        assert!(stderr.starts_with("nacre: cannot write to standard output: No space left"), "{stderr}");
    }
}
