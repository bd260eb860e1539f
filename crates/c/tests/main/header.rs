//! The header and the list of versioned symbols are those of the code.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap()
}

/// Returns the header that the code makes.
fn header() -> String {
    let configuration = cbindgen::Config::from_file(path("cbindgen.toml")).unwrap();
    let builder = cbindgen::Builder::new().with_config(configuration).with_src(path("src/lib.rs"));
    let mut text = Vec::new();
    builder.generate().unwrap().write(&mut text);
    String::from_utf8(text).unwrap()
}

/// Returns the functions that a header declares.
fn functions(header: &str) -> BTreeSet<&str> {
    // What stands before a bracket, in lines that are not of a comment.
    let lines = header.lines().filter(|line| !line.trim_start().starts_with(['*', '/']));
    let names = lines
        .filter_map(|line| line.split_once('('))
        .filter_map(|(before, _)| before.rsplit([' ', '*']).next().filter(|name| name.starts_with("nacre_")));
    names.collect()
}

#[test]
fn the_committed_header_is_that_of_the_code() {
    let generated = header();
    if std::env::var_os("NACRE_UPDATE").is_some() {
        std::fs::write(path("include/nacre.h"), &generated).unwrap();
    }
    assert!(
        generated == read("include/nacre.h"),
        "make it anew: NACRE_UPDATE=1 cargo test -p nacre-c header"
    );
}

#[test]
fn every_function_has_a_version() {
    let (header, map) = (read("include/nacre.h"), read("nacre.map"));
    let versioned: BTreeSet<&str> =
        map.split([' ', '\n', ';']).filter(|name| name.starts_with("nacre_")).collect();
    let declared = functions(&header);
    assert!(declared.len() > 90, "{declared:?}");
    assert_eq!(versioned, declared);
}
