//! `scripts/install-deps` lists every program that tests and studies start.
//!
//! A machine that happens to have a program installed hides that the list lacks it; a fresh machine then fails. So the
//! sources are searched for the names of programs, and each must be in the list or be part of every Debian system.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Programs of Debian's essential packages, and those that building with Cargo requires anyway.
const GIVEN: &[&str] = &["bash", "cp", "du", "env", "grep", "rm", "sh"];

/// Calls whose first argument is the name of a program.
const CALLS: &[&str] = &["Command::new(", "self.batch("];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Collects every Rust source below a folder, except for build output.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Returns the names of programs that a source starts, where they are literals.
fn programs(text: &str) -> impl Iterator<Item = &str> {
    CALLS.iter().flat_map(|call| text.split(call).skip(1)).filter_map(|rest| {
        let (name, _) = rest.trim_start().strip_prefix('"')?.split_once('"')?;
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
        (!name.is_empty() && name.bytes().all(is_name)).then_some(name)
    })
}

#[test]
fn every_program_that_is_started_is_installed_by_the_script() {
    let script = std::fs::read_to_string(root().join("scripts/install-deps")).unwrap();
    let listed: Vec<&str> =
        script.lines().filter_map(|line| line.strip_prefix("program:")?.split_whitespace().next()).collect();
    let mut files = Vec::new();
    for folder in ["crates", "tests", "examples"] {
        sources(&root().join(folder), &mut files);
    }
    let mut started: BTreeMap<String, PathBuf> = BTreeMap::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for name in programs(&text) {
            started.entry(name.to_string()).or_insert_with(|| file.clone());
        }
    }
    // These are commands of clap, not programs.
    for command in ["nacre", "reflect", "study", "walk-tree"] {
        started.remove(command);
    }
    for known in ["ip", "tc", "ethtool", "unshare"] {
        assert!(started.contains_key(known), "the search no longer finds `{known}`; it has to be mended");
    }
    let missing: Vec<_> = started
        .iter()
        .filter(|(name, _)| !listed.contains(&name.as_str()) && !GIVEN.contains(&name.as_str()))
        .map(|(name, file)| format!("{name}, started by {}", file.display()))
        .collect();
    assert!(missing.is_empty(), "not in scripts/install-deps:\n{}", missing.join("\n"));
}
