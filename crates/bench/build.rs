//! Puts the commit of the sources into the program as `NACRE_COMMIT`, for results to name. Where the sources are not in a
//! repository, it has none.

use std::path::Path;
use std::process::{Command, Stdio};

fn main() {
    // The crates tell whether the sources are those of the commit, and the others which commit it is.
    let folders = ["build.rs", "..", "../../Cargo.toml", "../../Cargo.lock"].map(String::from);
    let heads = ["HEAD", "logs/HEAD"].map(|file| git(&["rev-parse", "--git-path", file]));
    for watched in folders.into_iter().chain(heads.into_iter().flatten()) {
        // What does not exist would count as changed at every build.
        if Path::new(&watched).exists() {
            println!("cargo::rerun-if-changed={watched}");
        }
    }
    // An archive of the sources that was unpacked into a folder of another repository is none of its commits.
    let is_tracked = git(&["ls-files", "--error-unmatch", "Cargo.toml"]).is_some();
    let commit = git(&["describe", "--always", "--dirty", "--tags"]).filter(|_| is_tracked);
    if let Some(commit) = commit {
        println!("cargo::rustc-env=NACRE_COMMIT={commit}");
    }
}

/// Returns what a command of git prints; `None` if it fails, or there is no git.
fn git(words: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    // A build changes nothing in the repository, not even the times in its index.
    command.args(words).env("GIT_OPTIONAL_LOCKS", "0").stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
