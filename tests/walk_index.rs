//! Sweeps kept as databases and as Parquet files, through the built program: what is in them, what is never replaced,
//! queries, differences, and sweeps that take what did not change from an earlier one.

#[path = "walk_index/browse.rs"]
mod browse;
mod harness;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use base64::Engine;
use harness::tree::{self, find};
use harness::{Ended, Random, program, run_with};
use serde_json::{Value, json};

#[track_caller]
fn run(words: &[&str]) -> Ended {
    let mut command = program();
    command.args(words);
    run_with(command, b"")
}

#[track_caller]
fn sweep(root: &str, index: &str, words: &[&str]) {
    run(&[&["walk", root, "--index", index][..], words].concat()).ok();
}

/// Returns the rows of a query, each as a JSON object.
#[track_caller]
fn rows(words: &[&str]) -> Vec<Value> {
    let text = run(&[&["query", "--json"][..], words].concat()).text();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the bytes of a column that may not be UTF-8.
fn bytes(row: &Value, column: &str) -> Vec<u8> {
    match row[column].as_str() {
        Some(text) => text.as_bytes().to_vec(),
        None => {
            let coded = row[format!("{column}_base64")].as_str().unwrap();
            base64::engine::general_purpose::STANDARD.decode(coded).unwrap()
        }
    }
}

fn path(folder: &tempfile::TempDir, name: &str) -> String {
    folder.path().join(name).to_str().unwrap().to_owned()
}

/// The values of an entry that `find` and an index both give.
type Facts = BTreeMap<Vec<u8>, String>;

fn facts_of_find(root: &str) -> Facts {
    let records = find(&[root, "-printf", "%y %m %n %U %G %s %b %D %i %p\\0"]);
    let parse = |record: Vec<u8>| {
        let mut words = record.splitn(10, |byte| *byte == b' ');
        let facts: Vec<String> =
            (0..9).map(|_| String::from_utf8(words.next().unwrap().to_vec()).unwrap()).collect();
        (words.next().unwrap().to_vec(), facts.join(" "))
    };
    records.into_iter().map(parse).collect()
}

fn facts_of_index(index: &str) -> Facts {
    let sql = "SELECT path(directory, name) AS path, type || ' ' || printf('%o', mode) || ' ' || links || ' ' || uid || ' ' \
               || gid || ' ' || size || ' ' || (allocated / 512) || ' ' || device || ' ' || inode AS facts FROM entries";
    let rows = rows(&[index, "--sql", sql]);
    let facts = |row: &Value| (bytes(row, "path"), row["facts"].as_str().unwrap().to_owned());
    rows.iter().map(facts).collect()
}

#[test]
fn an_index_holds_what_find_finds() {
    let (folder, place) = (harness::folder(), harness::folder());
    tree::make(folder.path());
    let root = folder.path().to_str().unwrap();
    for threads in ["1", "3"] {
        let index = path(&place, "index.sqlite");
        sweep(root, &index, &["--threads", threads]);
        assert_eq!(facts_of_index(&index), facts_of_find(root));
        assert!(!Path::new(&format!("{index}.partial")).exists());
        // Sums of a directory are what its entries add up to.
        let summary = run(&["walk", root, "--json"]).json();
        let totals = "SELECT count(*) AS entries FROM entries";
        assert_eq!(rows(&[&index, "--sql", totals])[0]["entries"], summary["total"]["entries"]);
        let by_type = rows(&[&index, "--by", "type"]);
        for (letter, key) in [("f", "files"), ("d", "directories"), ("l", "links")] {
            let row = by_type.iter().find(|row| row["type"] == letter).unwrap();
            for column in ["entries", "apparent", "allocated"] {
                assert_eq!(row[column], summary[key][column], "{key} {column}");
            }
        }
        let directories = rows(&[&index, "--by", "directory", "--top", "5"]);
        let top = run(&["walk", root, "--json", "--top", "5"]).json();
        let largest: Vec<&Value> = directories.iter().map(|row| &row["allocated"]).collect();
        let expected = top["top"]["directories_by_bytes"].as_array().unwrap();
        assert_eq!(largest, expected.iter().map(|row| &row["allocated"]).collect::<Vec<_>>());
        let shallow = rows(&[&index, "--by", "directory", "--levels", "0"]);
        assert_eq!(shallow.len(), 1);
        assert_eq!(shallow[0]["directory"], root);
    }
}

#[test]
fn only_indices_are_replaced() {
    let folder = harness::folder();
    let root = path(&folder, "tree");
    fs::create_dir(&root).unwrap();
    fs::write(format!("{root}/file"), "x").unwrap();
    let (precious, index, link) = (path(&folder, "precious"), path(&folder, "index"), path(&folder, "link"));
    for contents in ["my thesis", "SQLite format 3\0 of another program"] {
        fs::write(&precious, contents).unwrap();
        run(&["walk", &root, "--index", &precious]).failed(2, &["not an index", "is not replaced"]);
        assert_eq!(fs::read_to_string(&precious).unwrap(), contents);
        fs::write(format!("{index}.partial"), contents).unwrap();
        run(&["walk", &root, "--index", &index]).failed(2, &["not an index", "partial"]);
        assert_eq!(fs::read_to_string(format!("{index}.partial")).unwrap(), contents);
        run(&["query", &precious]).failed(2, &["is not an index"]);
    }
    fs::remove_file(format!("{index}.partial")).unwrap();
    sweep(&root, &index, &[]);
    symlink(&index, &link).unwrap();
    run(&["walk", &root, "--index", &link]).failed(2, &["not an index"]);
    run(&["walk", &root, "--index", &root]).failed(2, &["not an index"]);
    fs::write(format!("{root}/another"), "x").unwrap();
    sweep(&root, &index, &[]);
    assert_eq!(rows(&[&index, "--list", "--type", "f"]).len(), 2);
    for words in [&["--list"][..], &["--checkpoint", "c"], &["--resume", "c"]] {
        let words = [&["walk", &root, "--index", &index][..], words].concat();
        assert_eq!(run(&words).code, 2);
    }
}

/// Returns a command that a user runs who owns nothing.
fn nobody(copy: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(copy);
    command
}

#[test]
fn what_one_sweep_could_not_read_is_no_difference_and_is_said() {
    let (folder, place) = (harness::folder(), harness::folder());
    let (root, copy) = (path(&folder, "tree"), path(&place, "nacre"));
    fs::create_dir_all(format!("{root}/closed/below")).unwrap();
    fs::write(format!("{root}/open"), "x").unwrap();
    fs::copy(program().get_program(), &copy).unwrap();
    for (path, mode) in
        [(folder.path(), 0o755), (place.path(), 0o777), (Path::new(&format!("{root}/closed")), 0o700)]
    {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let (ours, theirs) = (path(&place, "ours"), path(&place, "theirs"));
    sweep(&root, &ours, &[]);
    let mut command = nobody(Path::new(&copy));
    command.args(["walk", &root, "--index", &theirs]);
    let ended = run_with(command, b"");
    assert_eq!(ended.code, 1, "{ended:?}");
    let errors = rows(&[&theirs, "--sql", "SELECT path, operation, errno FROM errors"]);
    assert_eq!(errors, [json!({ "path": format!("{root}/closed"), "operation": "open", "errno": 13 })]);
    for (old, new) in [(&ours, &theirs), (&theirs, &ours)] {
        let ended = run(&["diff", old, new]);
        assert_eq!(ended.failed(2, &["one directory", "could not read"]), "");
    }
    let ncdu = run(&["query", &theirs, "--ncdu", "-"]).json();
    assert!(ncdu[3].to_string().contains("\"read_error\":true"), "{ncdu}");
}

#[test]
fn a_sweep_that_is_interrupted_leaves_what_was_there_and_says_what_it_is() {
    let (folder, place) = (harness::folder(), harness::folder());
    let (root, index) = (path(&folder, "tree"), path(&place, "index"));
    fs::create_dir(&root).unwrap();
    sweep(&root, &index, &[]);
    let before = fs::read(&index).unwrap();
    for number in 0..20_000 {
        fs::write(format!("{root}/{number}"), "").unwrap();
    }
    // It is killed as soon as it has begun; on a machine that is slow to kill it comes to its end, and is tried again.
    let partial = format!("{index}.partial");
    let signals = [rustix::process::Signal::TERM, rustix::process::Signal::KILL];
    for signal in signals {
        let mut interrupted = false;
        for _ in 0..50 {
            fs::write(&index, &before).unwrap();
            let mut command = program();
            command.args(["walk", &root, "--index", &index, "--threads", "1"]);
            command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
            let mut child = command.spawn().unwrap();
            while !Path::new(&partial).exists() && child.try_wait().unwrap().is_none() {}
            harness::send(&mut child, signal);
            let ended = harness::wait(&mut child, harness::PATIENCE);
            let said = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
            // It may have been killed after the index had got its name, too.
            if !ended.success() && Path::new(&partial).exists() {
                interrupted = true;
                assert_eq!(fs::read(&index).unwrap(), before, "{signal:?}");
                assert_eq!(run(&["query", &partial]).code, 2);
                // The signal may have come before it was caught.
                if said.contains("interrupted") {
                    let about = run(&["query", &partial, "--incomplete", "--json"]).json();
                    assert_eq!(about["state"], "interrupted");
                }
                break;
            }
        }
        assert!(interrupted, "no sweep was interrupted by {signal:?}");
        sweep(&root, &index, &[]);
        assert_eq!(rows(&[&index, "--sql", "SELECT count(*) AS n FROM entries"])[0]["n"], 20_001);
        assert!(!Path::new(&partial).exists());
    }
}

#[test]
fn a_parquet_file_is_for_other_programs_and_has_its_name_only_when_it_is_complete() {
    let (folder, place) = (harness::folder(), harness::folder());
    let (root, file) = (path(&folder, "tree"), path(&place, "sweep.parquet"));
    let partial = format!("{file}.partial");
    fs::create_dir(&root).unwrap();
    for number in 0..20_000 {
        fs::write(format!("{root}/{number}"), "").unwrap();
    }
    // As above: on a machine that is slow to kill it comes to its end, and is tried again.
    let mut killed = false;
    for _ in 0..50 {
        let mut command = program();
        command.args(["walk", &root, "--index", &file, "--threads", "1"]);
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let mut child = command.spawn().unwrap();
        while !Path::new(&partial).exists() && child.try_wait().unwrap().is_none() {}
        harness::send(&mut child, rustix::process::Signal::KILL);
        harness::wait(&mut child, harness::PATIENCE);
        if !Path::new(&file).exists() {
            killed = true;
            break;
        }
        fs::remove_file(&file).unwrap();
    }
    assert!(killed && Path::new(&partial).exists(), "no sweep was killed");
    sweep(&root, &file, &[]);
    assert!(!Path::new(&partial).exists());
    let bytes = fs::read(&file).unwrap();
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
    let database = path(&place, "sweep.sqlite");
    sweep(&root, &database, &[]);
    run(&["query", &file]).failed(2, &["Parquet", "SQLite"]);
    run(&["diff", &database, &file]).failed(2, &["Parquet", "SQLite"]);
    run(&["walk", &root, "--index", &database, "--since", &file]).failed(2, &["Parquet", "SQLite"]);
    run(&["walk", &root, "--index", &file, "--since", &database]).failed(2, &["--since", "SQLite"]);
    let other = path(&place, "sweep.csv");
    run(&["walk", &root, "--index", &other]).failed(2, &[".sqlite", ".parquet"]);
    assert!(!Path::new(&other).exists());
}

#[test]
fn queries_select_add_up_and_change_nothing() {
    let folder = harness::folder();
    let root = path(&folder, "tree");
    fs::create_dir_all(format!("{root}/a/b")).unwrap();
    for (name, size, owner) in
        [("a/x.dat", 100, 11), ("a/b/y.dat", 2000, 12), ("z.TXT", 30, 12), ("none", 4, 11)]
    {
        let file = format!("{root}/{name}");
        fs::write(&file, vec![1; size]).unwrap();
        chown(&file, Some(owner), Some(owner + 100)).unwrap();
    }
    fs::hard_link(format!("{root}/a/b/y.dat"), format!("{root}/again.dat")).unwrap();
    let index = path(&folder, "index");
    sweep(&root, &index, &[]);
    let before = fs::read(&index).unwrap();
    let sums = |words: &[&str], key: &str| -> BTreeMap<String, (u64, u64)> {
        let rows = rows(&[&[index.as_str()][..], words].concat());
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        rows.iter()
            .map(|row| {
                (text(&row[key]), (row["entries"].as_u64().unwrap(), row["apparent"].as_u64().unwrap()))
            })
            .collect()
    };
    let expected = |pairs: &[(&str, (u64, u64))]| -> BTreeMap<String, (u64, u64)> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect()
    };
    // The bytes of what has two names count once.
    assert_eq!(
        sums(&["--by", "extension"], "extension"),
        expected(&[("dat", (3, 2100)), ("txt", (1, 30)), ("null", (1, 4))])
    );
    let where_owners = ["--by", "owner", "--where", "uid IN (11, 12)"];
    let owners = sums(&where_owners, "owner");
    assert_eq!(owners.values().copied().collect::<BTreeSet<_>>(), BTreeSet::from([(2, 104), (3, 2030)]));
    assert_eq!(sums(&["--by", "group", "--user", "11", "--type", "f"], "group").len(), 1);
    assert_eq!(
        sums(&["--by", "size"], "size"),
        expected(&[("4..7", (1, 4)), ("16..31", (1, 30)), ("64..127", (1, 100)), ("1024..2047", (2, 2000))])
    );
    assert_eq!(sums(&["--by", "age"], "age").values().map(|sum| sum.0).sum::<u64>(), 8);
    assert_eq!(sums(&["--by", "depth"], "depth").values().map(|sum| sum.0).collect::<Vec<_>>(), [1, 4, 2, 1]);
    let listed = |words: &[&str]| -> BTreeSet<String> {
        let rows = rows(&[&[index.as_str()][..], words].concat());
        rows.iter().map(|row| row["path"].as_str().unwrap().strip_prefix(&root).unwrap().to_owned()).collect()
    };
    assert_eq!(listed(&["--top", "1", "--where", "links = 1"]), BTreeSet::from(["/a/x.dat".into()]));
    assert_eq!(listed(&["--group", "111"]), BTreeSet::from(["/a/x.dat".into(), "/none".into()]));
    assert_eq!(listed(&["--name", "*.dat", "--where", "size > 100 -- large"]).len(), 2);
    let text = run(&["query", &index, "--by", "extension"]).text();
    assert!(text.starts_with("EXTENSION") && text.contains("dat"), "{text}");
    let paths = "SELECT path FROM directory_paths ORDER BY path";
    let text = run(&["query", &index, "--sql", paths]).text();
    assert_eq!(text, format!("path\n{root}\n{root}/a\n{root}/a/b"));
    for forbidden in [
        "DELETE FROM entries",
        "CREATE TABLE t (x)",
        "PRAGMA user_version = 7",
        "ATTACH 'other' AS other",
        "VACUUM INTO 'copy'",
        "SELECT",
        "SELECT 1; DELETE FROM entries",
    ] {
        let ended = run(&["query", &index, "--sql", forbidden]);
        assert!(ended.code != 0, "{forbidden}");
    }
    run(&["query", &index, "--sql", "SELECT 1; DELETE FROM entries"]).failed(2, &["one statement only"]);
    assert_eq!(fs::read(&index).unwrap(), before);
    let about = run(&["query", &index, "--json"]).json();
    assert_eq!(
        (&about["entries"], &about["state"], &about["roots"]),
        (&json!(8), &json!("complete"), &json!([root]))
    );
    run(&["query", &index, "--by", "directory", "--user", "11"]).failed(2, &["cannot be filtered"]);
    let about = run(&["query", &index]).text();
    assert!(about.contains("whole: yes") && !about.contains("--"), "{about}");
    let filtered = path(&folder, "filtered");
    run(&["walk", &root, "--index", &filtered, "--name", "*.dat", "--depth", "..3", "--size", "-1MiB"]).ok();
    let about = run(&["query", &filtered]).text();
    for line in ["--name: \"*.dat\"", "--depth: 0..3", "--size: -1MiB", "whole: no, filters left entries out"]
    {
        assert!(about.lines().any(|shown| shown == line), "{line} is not in {about}");
    }
    assert_eq!(about.matches("--").count(), 3, "{about}");
}

#[test]
fn ncdu_gets_the_whole_tree() {
    let (folder, place) = (harness::folder(), harness::folder());
    fs::create_dir_all(folder.path().join("a/b")).unwrap();
    fs::write(folder.path().join("a/b/file \"quoted\" \n"), "12345").unwrap();
    fs::hard_link(folder.path().join("a/b/file \"quoted\" \n"), folder.path().join("second")).unwrap();
    symlink("a", folder.path().join("link")).unwrap();
    let (root, index) = (folder.path().to_str().unwrap(), path(&place, "index"));
    sweep(root, &index, &[]);
    let export = run(&["query", &index, "--ncdu", "-"]).json();
    let exported = path(&place, "exported");
    run(&["query", &index, "--ncdu", &exported]).ok();
    let read = || serde_json::from_slice::<Value>(&fs::read(&exported).unwrap()).unwrap();
    assert_eq!(read(), export);
    // Nothing that exists is replaced, least of all the index, under whatever name.
    let before = fs::read(&index).unwrap();
    let (second, link) = (path(&place, "second"), path(&place, "link"));
    fs::hard_link(&index, &second).unwrap();
    symlink(&index, &link).unwrap();
    for name in [&index, &second, &link] {
        run(&["query", &index, "--ncdu", name]).failed(2, &[name, "is the index itself"]);
    }
    assert_eq!(fs::read(&index).unwrap(), before);
    run(&["query", &index, "--ncdu", &exported]).failed(2, &[&exported, "already exists"]);
    assert_eq!(read(), export);
    run(&["query", &index, "--ncdu", "/dev/null"]).ok();
    assert_eq!((&export[0], &export[1], &export[2]["progname"]), (&json!(1), &json!(2), &json!("nacre")));
    fn flat(item: &Value, at: &str, found: &mut BTreeMap<String, Value>) {
        match item {
            Value::Array(items) => {
                let path = format!("{at}/{}", items[0]["name"].as_str().unwrap());
                found.insert(path.clone(), items[0].clone());
                items[1..].iter().for_each(|item| flat(item, &path, found));
            }
            item => drop(found.insert(format!("{at}/{}", item["name"].as_str().unwrap()), item.clone())),
        }
    }
    let mut found = BTreeMap::new();
    flat(&export[3], "", &mut found);
    let paths: BTreeSet<String> = found.keys().map(|path| path[1..].to_owned()).collect();
    let expected = find(&[root, "-print0"]).into_iter().map(|path| String::from_utf8(path).unwrap());
    assert_eq!(paths, expected.collect());
    let file = &found[&format!("/{root}/second")];
    assert_eq!((&file["asize"], &file["nlink"], &file["hlnkc"]), (&json!(5), &json!(2), &json!(true)));
    assert_eq!(found[&format!("/{root}/link")]["notreg"], true);
}

/// Waits until the clock of the file system is past the times that are there, so that a sweep can trust them.
fn settle(folder: &Path) {
    let begun = SystemTime::now();
    let probe = folder.join("probe of the clock");
    loop {
        fs::write(&probe, "").unwrap();
        let now = fs::metadata(&probe).unwrap().modified().unwrap();
        if now.duration_since(begun).is_ok_and(|passed| passed > Duration::from_millis(150)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the lines of a difference, without the fields.
fn differences(old: &str, new: &str, root: &str) -> BTreeSet<String> {
    let mut command = program();
    command.args(["diff", old, new, "--json"]);
    let ended = command.output().unwrap();
    let text = String::from_utf8(ended.stdout).unwrap();
    let shorten =
        |path: &Value| path.as_str().unwrap().strip_prefix(root).unwrap().trim_start_matches('/').to_owned();
    let lines: BTreeSet<String> = text
        .lines()
        .map(|line| {
            let row: Value = serde_json::from_str(line).unwrap();
            let from = row.get("from").map(|from| format!("{} -> ", shorten(from))).unwrap_or_default();
            format!("{} {from}{}", row["change"].as_str().unwrap(), shorten(&row["path"]))
        })
        .collect();
    assert_eq!(ended.status.code(), Some(i32::from(!lines.is_empty())));
    lines
}

#[test]
fn diff_tells_what_was_made_removed_changed_and_moved() {
    let (folder, place) = (harness::folder(), harness::folder());
    let root = folder.path();
    for directory in ["stays/below", "goes/deep", "moves/inner", "target"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    for file in [
        "stays/same",
        "stays/written",
        "stays/below/mode",
        "goes/deep/file",
        "moves/inner/a",
        "moves/b",
        "away",
    ] {
        fs::write(root.join(file), file).unwrap();
    }
    let (name, old, new) = (root.to_str().unwrap(), path(&place, "old"), path(&place, "new"));
    sweep(name, &old, &[]);
    assert_eq!(differences(&old, &old, name), BTreeSet::new());
    assert_eq!(run(&["diff", &old, &old]).text(), "");
    fs::write(root.join("stays/written"), "longer than before").unwrap();
    fs::set_permissions(root.join("stays/below/mode"), fs::Permissions::from_mode(0o600)).unwrap();
    // Removed last, so that no inode is given to something new.
    fs::create_dir(root.join("fresh")).unwrap();
    fs::write(root.join("fresh/file"), "new").unwrap();
    fs::rename(root.join("moves"), root.join("target/moved")).unwrap();
    fs::write(root.join("target/moved/b"), "changed on the way").unwrap();
    fs::rename(root.join("away"), root.join("stays/below/back")).unwrap();
    fs::remove_dir_all(root.join("goes")).unwrap();
    sweep(name, &new, &["--threads", "1"]);
    let expected = [
        "changed stays/written",
        "changed stays/below/mode",
        "changed target/moved/b",
        "made fresh",
        "made fresh/file",
        "moved away -> stays/below/back",
        "moved moves -> target/moved",
        "removed goes",
        "removed goes/deep",
        "removed goes/deep/file",
    ];
    assert_eq!(differences(&old, &new, name), expected.map(str::to_owned).into());
    let text = run(&["diff", &old, &new]);
    assert_eq!(text.code, 1);
    // The exit code tells that there are differences also where nobody reads them, but not where they cannot be written.
    for words in
        [&["diff", &old, &new][..], &["diff", &old, &new, "--json"], &["diff", &old, &new, "--summary"]]
    {
        harness::unread(program().args(words), 1);
        harness::unwritten(program().args(words), 2);
    }
    harness::unread(program().args(["diff", &old, &old, "--summary"]), 0);
    harness::unwritten(program().args(["diff", &old, &old, "--summary"]), 2);
    let filtered = path(&place, "filtered");
    sweep(name, &filtered, &["--type", "f"]);
    run(&["diff", &old, &filtered]).failed(2, &["different filters", "--type"]);
}

/// Makes a random change below a folder. Adds the inodes of files that are written in place, which no directory tells of.
fn change(random: &mut Random, root: &Path, in_place: &mut BTreeSet<u64>) {
    let mut all: Vec<PathBuf> = Vec::new();
    let mut pending = vec![root.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                pending.push(entry.path());
            }
            all.push(entry.path());
        }
    }
    all.sort();
    let directories: Vec<&PathBuf> = all.iter().filter(|path| path.is_dir()).collect();
    let within = match directories.len() as u64 {
        0 => root.to_owned(),
        number => directories[random.below(number) as usize].clone(),
    };
    let name = within.join(format!("n{}", random.below(40)));
    let any = (!all.is_empty()).then(|| all[random.below(all.len() as u64) as usize].clone());
    match (random.below(7), any) {
        (0 | 1, _) | (_, None) => drop(fs::create_dir(&name)),
        (2 | 3, _) if !name.exists() => fs::write(&name, vec![0; random.below(5000) as usize]).unwrap(),
        (4, Some(any)) if any.is_file() => {
            fs::write(&any, vec![1; random.below(9000) as usize]).unwrap();
            in_place.insert(fs::metadata(&any).unwrap().ino());
        }
        (5, Some(any)) if any.is_dir() => drop(fs::remove_dir_all(any)),
        (5, Some(any)) => fs::remove_file(any).unwrap(),
        (_, Some(any)) => drop(fs::rename(any, &name)),
    }
}

#[test]
fn a_sweep_since_another_one_equals_a_full_one_but_for_what_was_written_in_place() {
    let (folder, place) = (harness::folder(), harness::folder());
    let root = folder.path();
    let mut random = Random::from_environment();
    let (name, old, new) = (root.to_str().unwrap(), path(&place, "old"), path(&place, "new"));
    let full = path(&place, "full");
    (0..120).for_each(|_| change(&mut random, root, &mut BTreeSet::new()));
    sweep(name, &old, &[]);
    let mut in_place = BTreeSet::new();
    for _ in 0..6 {
        settle(place.path());
        sweep(name, &old, &["--since", &old]);
        (0..random.below(12)).for_each(|_| change(&mut random, root, &mut in_place));
        sweep(name, &new, &["--since", &old]);
        sweep(name, &full, &[]);
        let (seen, truth) = (facts_of_index(&new), facts_of_index(&full));
        assert_eq!(truth, facts_of_find(name));
        assert!(seen.keys().eq(truth.keys()), "the names are those of now");
        for (path, facts) in &truth {
            let path = PathBuf::from(std::ffi::OsString::from_vec(path.clone()));
            let identity = fs::symlink_metadata(&path).map(|about| about.ino()).unwrap();
            let known = &seen[path.as_os_str().as_bytes()];
            assert!(known.ends_with(&format!(" {identity}")), "{path:?}: {known}");
            assert!(known == facts || in_place.contains(&identity), "{path:?}: {known}, not {facts}");
        }
    }
}

#[test]
fn a_sweep_since_another_one_takes_files_from_it_and_says_what_it_cannot_see() {
    let (folder, place) = (harness::folder(), harness::folder());
    let root = folder.path();
    fs::create_dir(root.join("quiet")).unwrap();
    fs::create_dir(root.join("busy")).unwrap();
    for file in ["quiet/file", "quiet/linked", "busy/file"] {
        fs::write(root.join(file), "before").unwrap();
    }
    fs::hard_link(root.join("quiet/linked"), root.join("busy/linked")).unwrap();
    settle(place.path());
    let (name, old, new) = (root.to_str().unwrap(), path(&place, "old"), path(&place, "new"));
    sweep(name, &old, &[]);
    for file in ["quiet/file", "quiet/linked", "busy/file"] {
        fs::write(root.join(file), "written in place").unwrap();
    }
    fs::write(root.join("busy/another"), "").unwrap();
    sweep(name, &new, &["--since", &old]);
    let sizes: BTreeMap<String, u64> = rows(&[&new, "--list", "--type", "f"])
        .iter()
        .map(|row| {
            let path = row["path"].as_str().unwrap().strip_prefix(name).unwrap();
            (path.to_owned(), row["size"].as_u64().unwrap())
        })
        .collect();
    // The first one is the stale one: its directory has not changed.
    let expected = [
        ("/quiet/file", 6),
        ("/quiet/linked", 16),
        ("/busy/file", 16),
        ("/busy/linked", 16),
        ("/busy/another", 0),
    ];
    assert_eq!(sizes, expected.map(|(path, size)| (path.to_owned(), size)).into());
    run(&["walk", name, "--index", &new, "--since", &old, "--type", "f"]).failed(2, &["without filters"]);
    run(&["walk", name, "--index", &new, "--since", "/etc/passwd"]).failed(2, &["not an index"]);
}

#[test]
fn entries_are_selected_by_group_access_and_change() {
    let folder = harness::folder();
    for (name, days, group) in [("old", 40, 7), ("recent", 1, 8), ("fresh", 0, 7)] {
        let file = folder.path().join(name);
        fs::write(&file, "x").unwrap();
        let accessed = SystemTime::now() - Duration::from_secs(days * 86_400 + 3600);
        let times = fs::FileTimes::new().set_accessed(accessed);
        fs::File::options().write(true).open(&file).unwrap().set_times(times).unwrap();
        chown(&file, None, Some(group)).unwrap();
    }
    let root = folder.path().to_str().unwrap();
    let listed = |words: &[&str]| -> BTreeSet<String> {
        let words = [&["walk", root, "--list", "--type", "f"][..], words].concat();
        let text = run(&words).text();
        text.lines().map(|line| line.rsplit('/').next().unwrap().to_owned()).collect()
    };
    let names =
        |names: &[&str]| -> BTreeSet<String> { names.iter().map(|name| (*name).to_owned()).collect() };
    assert_eq!(listed(&["--group", "7"]), names(&["old", "fresh"]));
    assert_eq!(listed(&["--group", "7", "--group", "8"]), names(&["old", "recent", "fresh"]));
    assert_eq!(listed(&["--atime", "+30"]), names(&["old"]));
    assert_eq!(listed(&["--atime", "-2"]), names(&["recent", "fresh"]));
    assert_eq!(listed(&["--ctime", "0", "--group", "8"]), names(&["recent"]));
    assert_eq!(listed(&["--ctime", "+0"]), names(&[]));
    let summary = run(&["walk", root, "--type", "f", "--json", "--histogram", "group,access,change"]).json();
    let groups: Vec<(u64, u64)> = summary["histograms"]["group"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["gid"].as_u64().unwrap(), row["entries"].as_u64().unwrap()))
        .collect();
    assert_eq!(groups, [(7, 2), (8, 1)]);
    let access: BTreeMap<i64, u64> = summary["histograms"]["access"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["from"].as_i64().unwrap(), row["entries"].as_u64().unwrap()))
        .collect();
    assert_eq!((access[&0], access[&1], access[&32]), (1, 1, 1));
    assert_eq!(summary["histograms"]["change"][0]["entries"], 3);
}

#[test]
fn a_list_is_removed_where_it_is_still_true() {
    let (folder, place) = (harness::folder(), harness::folder());
    let root = path(&folder, "tree");
    fs::create_dir_all(format!("{root}/a/b")).unwrap();
    fs::create_dir(format!("{root}/c")).unwrap();
    let files = ["same", "written", "replaced", "gone", "a/b/deep", "c/behind", "a/odd \n name"];
    for file in files {
        fs::write(format!("{root}/{file}"), file).unwrap();
    }
    fs::write(format!("{root}/hidden"), "before").unwrap();
    symlink("/etc/passwd", format!("{root}/link")).unwrap();
    let (index, list) = (path(&place, "index"), path(&place, "list"));
    sweep(&root, &index, &[]);
    fs::write(&list, run(&["query", &index, "--list", "--json"]).ok()).unwrap();
    let remove = |words: &[&str]| run(&[&["remove", "--json"][..], words].concat());
    remove(&["--from", &list]).failed(2, &["--yes", "--dry-run"]);
    remove(&["--yes", "--from", "/no/such/list"]).failed(2, &["cannot read the list"]);
    assert_eq!(remove(&["--yes", "--from", &list, &root]).code, 2);

    fs::write(format!("{root}/written"), "something longer").unwrap();
    // Neither its size nor its time says so, but that of its inode does, once the clock of the file system has gone on.
    settle(place.path());
    let time = fs::metadata(format!("{root}/hidden")).unwrap().modified().unwrap();
    fs::write(format!("{root}/hidden"), "others").unwrap();
    fs::File::options().write(true).open(format!("{root}/hidden")).unwrap().set_modified(time).unwrap();
    fs::write(format!("{root}/new"), "replaced").unwrap();
    fs::rename(format!("{root}/new"), format!("{root}/replaced")).unwrap();
    fs::remove_file(format!("{root}/gone")).unwrap();
    // Whoever could rename a directory could otherwise lead the removal elsewhere.
    fs::rename(format!("{root}/c"), format!("{root}/elsewhere")).unwrap();
    symlink("elsewhere", format!("{root}/c")).unwrap();

    let parse = |ended: &Ended| serde_json::from_slice::<Value>(&ended.stdout).unwrap();
    let dry = remove(&["--dry-run", "--from", &list]);
    assert_eq!(parse(&dry)["removed"], 4);
    assert!(Path::new(&format!("{root}/same")).exists());
    let some = remove(&["--yes", "--from", &list, "--name", "deep"]);
    assert_eq!((&parse(&some)["removed"], &parse(&some)["not_selected"]), (&json!(1), &json!(3)));
    assert!(!Path::new(&format!("{root}/a/b/deep")).exists());
    let ended = remove(&["--yes", "--from", &list, "--threads", "3"]);
    assert_eq!(ended.code, 1);
    let json = parse(&ended);
    // The file that is gone, and the one that was removed just now.
    assert_eq!((&json["removed"], &json["vanished"]), (&json!(3), &json!(2)));
    let reasons: BTreeMap<String, String> = json["first_errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| {
            let path = error["path"].as_str().unwrap().strip_prefix(&root).unwrap();
            (path.to_owned(), error["reason"].as_str().unwrap().to_owned())
        })
        .collect();
    assert!(reasons["/written"].contains("was changed") && reasons["/replaced"].contains("another entry"));
    assert!(reasons["/c/behind"].contains("symbolic link") && reasons["/a/b"].contains("is a directory"));
    assert!(reasons["/hidden"].contains("was changed"));
    for kept in ["written", "hidden", "replaced", "elsewhere/behind", "a/b"] {
        assert!(Path::new(&format!("{root}/{kept}")).exists(), "{kept}");
    }
    for removed in ["same", "a/odd \n name"] {
        assert!(!Path::new(&format!("{root}/{removed}")).exists(), "{removed}");
    }
    assert!(fs::symlink_metadata(format!("{root}/link")).is_err() && Path::new("/etc/passwd").exists());

    // A walk's list will do as well, if it says the inodes.
    let fields = "path,type,ctime,inode";
    let listed = run(&["walk", &root, "--list", "--json", "--type", "f", "--fields", fields]).ok();
    let mut command = program();
    command.args(["remove", "--yes", "--from", "-", "--json"]);
    assert_eq!(run_with(command, &listed).json()["removed"], 4);
    let mut command = program();
    command.args(["remove", "--yes", "--from", "-"]);
    run_with(command, b"{\"path\":\"x\"}\n").failed(1, &["line 1 of", "no inode"]);
    let mut command = program();
    command.args(["remove", "--yes", "--from", "-"]);
    run_with(command, b"{\"path\":\"x\",\"inode\":1}\n").failed(1, &["line 1 of", "neither \"ctime\""]);
}
