//! Completions, help and manual pages, and the commands that the manual names.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::harness::{self, Server, file, program, run_with};

#[test]
fn bash_completes_commands_planes_files_and_the_objects_of_the_store() {
    let folder = harness::folder();
    let server = Server::start(folder.path().join("store").to_str().unwrap(), &[]);
    for name in ["report", "report 2", "reports", "other"] {
        server.run(["keys", "set", name, "key", "value"]).ok();
    }
    fs::write(folder.path().join("a-file"), "").unwrap();
    // As bash calls it when the last word is to be completed.
    let completed = |words: &[&str]| {
        let script = r#"
            PATH="$(dirname "$NACRE"):$PATH"
            source <(nacre completions bash)
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_TYPE=9
            _clap_complete_nacre nacre "${!#}"
            printf '%s\n' "${COMPREPLY[@]}"
        "#;
        let mut bash = std::process::Command::new("bash");
        bash.args(["-c", script, "bash", "nacre"]).args(words).current_dir(folder.path());
        bash.env("NACRE", program().get_program()).env("NACRE_STORE", &server.uri);
        let said = run_with(bash, b"").text();
        said.lines()
            .map(|line| line.trim_end().to_owned())
            .filter(|line| !line.is_empty())
            .collect::<Vec<_>>()
    };
    // A store that does not answer soon, as on a busy machine, has no objects for whoever waits at a prompt.
    let of_store = |words: &[&str], expected: &[&str]| {
        let found = (0..20).map(|_| completed(words)).find(|found| found == expected);
        assert_eq!(found.unwrap_or_else(|| completed(words)), expected, "{words:?}");
    };
    // A name with a space would be two words.
    of_store(&["stat", "rep"], &["report", "reports"]);
    of_store(&["stat", "reports"], &["reports"]);
    let other = format!("--store={}", server.uri);
    of_store(&[&other, "get", "ot"], &["other"]);
    assert_eq!(completed(&["--store", "unix:/nowhere/at/all", "get", "ot"]), [""; 0]);
    assert_eq!(completed(&["put", "other", "a-f"]), ["a-file"]);
    assert_eq!(completed(&["reflect", "serve", "--plane", "x"]), ["xdp"]);
    let commands = completed(&[""]);
    assert!(commands.contains(&"put".to_owned()), "{commands:?}");
    assert!(!commands.iter().any(|command| command == "tour-client"), "{commands:?}");
}

#[test]
fn shells_and_manual_readers_get_what_they_want() {
    let run = |words: &[&str]| {
        let mut command = program();
        command.args(words);
        run_with(command, b"")
    };
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completions", shell]).text();
        assert!(script.contains("NACRE_COMPLETE"), "{shell}: {script}");
    }
    let bash = run(&["completions", "bash"]).ok();
    let mut check = std::process::Command::new("bash");
    check.arg("-n");
    assert_eq!(run_with(check, &bash).ok(), b"", "bash finds no fault with the script");

    let man = run(&["man"]).text();
    assert!(man.contains(".TH") && man.contains("nacre\\-extents"), "{man}");
    let folder = harness::folder();
    run(&["man", "--folder", folder.path().to_str().unwrap()]).ok();
    let write = fs::read_to_string(folder.path().join("nacre-write.1")).unwrap();
    assert!(write.contains("if\\-version"), "{write}");
    assert!(folder.path().join("nacre-keys-set.1").exists());
    assert!(!folder.path().join("nacre-tour-client.1").exists());
    let help = run(&["help", "keys", "set"]).text();
    assert!(help.contains("Usage: nacre keys set"), "{help}");
    assert_eq!(run(&["help"]).text(), run(&["--help"]).text());
    let version = run(&["--version"]).text();
    assert!(
        version.starts_with(concat!("nacre ", env!("CARGO_PKG_VERSION"), "\nengines: file:")),
        "{version}"
    );
    assert!(version.contains("sendto, batch, ring, kernel, xdp; programs for the kernel "), "{version}");
    assert_eq!(run(&["-V"]).text(), concat!("nacre ", env!("CARGO_PKG_VERSION")));
    let commands: Vec<String> = man
        .lines()
        .filter_map(|line| line.strip_prefix("nacre\\-")?.split_once('('))
        .map(|(command, _)| command.replace('\\', ""))
        .collect();
    assert!(commands.len() > 15, "{commands:?}");
    // What another program does is its own to explain.
    for command in commands.iter().filter(|command| *command != "bench") {
        assert_eq!(run(&[command, "--help"]).code, 0, "{command}");
    }
}

#[test]
fn the_version_names_the_format_of_stores() {
    let folder = harness::folder();
    let store = file(&folder.path().join("store"));
    let run = |words: &[&str]| {
        let mut command = program();
        command.args(words);
        run_with(command, b"")
    };
    run(&["write", "a", "x", "--store", &store]).ok();
    let format = run(&["info", "--json", "--store", &store]).json()[0]["report"]["format"].clone();
    let version = run(&["--version"]).text();
    assert!(version.contains(&format!("file: (stores up to format {format}), mem:")), "{version}");
}

/// Returns the commands of this program that stand as code in a text of the manual, word by word. Comments behind them are
/// set off by two spaces.
fn commands_in(text: &str) -> Vec<Vec<&str>> {
    // Code stands between two backticks, or two times three of them.
    let lines = text.split('`').skip(1).step_by(2).flat_map(str::lines);
    let commands = lines.flat_map(|line| {
        let line = line.trim().trim_start_matches("$ ");
        line.split("  ").next().unwrap_or_default().split("&&")
    });
    commands
        .filter_map(|command| command.trim().strip_prefix("nacre "))
        .map(|words| words.split_whitespace().collect())
        .collect()
}

#[test]
fn commands_in_the_manual_of_operators_exist_with_their_flags() {
    const GROUPS: [&str; 9] = ["attr", "class", "fs", "keys", "map", "rank", "reflect", "sequencer", "zlog"];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let (mut found, mut helps) = (0, BTreeMap::new());
    for page in ["tasks.md", "operate.md"] {
        let text = fs::read_to_string(folder.join(page)).unwrap();
        for words in commands_in(&text) {
            let is_name = |word: &&&str| word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
            let depth = if GROUPS.contains(&words[0]) { 2 } else { 1 };
            let names = words.iter().take(depth).take_while(|word| !word.starts_with('-')).filter(is_name);
            let names: Vec<&str> = names.copied().collect();
            // What another program does is its own to explain.
            if names.first() == Some(&"bench") {
                continue;
            }
            let help: &String = helps.entry(names.join(" ")).or_insert_with(|| {
                let mut command = program();
                command.args(&names).arg("--help");
                run_with(command, b"").text()
            });
            for word in words.iter().filter(|word| word.starts_with("--")) {
                let flag = word.split('=').next().unwrap_or(word);
                let ends = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-');
                let is_there = help.split(flag).skip(1).any(ends);
                assert!(is_there, "{page}: nacre {} has no {flag}", words.join(" "));
                found += 1;
            }
        }
    }
    assert!(found > 30, "{found}");
}
