//! `nacre fs check`.

use serde_json::json;

use super::{Tree, failure};
use crate::failure::Failure;
use crate::{output, quantity};

/// Check the whole namespace
///
/// Finds what killed commands left behind, and entries, inodes and content that are inconsistent. Fails if any problem
/// is found and not repaired. Others may use the namespace meanwhile: the content of their puts, and that of puts that
/// were killed, is counted apart, and is no problem.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Repair inconsistencies, and finish or undo what was left behind; the outcome of a concurrent call elsewhere may
    /// become unknown
    #[arg(long)]
    mend: bool,
}

/// Runs `nacre fs check`.
pub async fn run(tree: &Tree, args: &Args) -> Result<(), Failure> {
    let report = tree.rank.check(args.mend).await;
    let report = report.map_err(|error| failure(error, "cannot check the namespace"))?;
    if tree.json {
        let finding =
            |finding: &nacre::fs::Finding| json!({ "finding": finding.text, "mended": finding.repaired });
        let findings: Vec<_> = report.findings.iter().map(finding).collect();
        let unfinished = report.unfinished.iter().map(|one| {
            json!({ "inode": one.ino.0, "content": one.content, "objects": one.objects, "bytes": one.bytes })
        });
        let value = json!({
            "clean": report.is_clean(),
            "directories": report.directories,
            "files": report.files,
            "others": report.others,
            "entries": report.entries,
            "bytes": report.bytes,
            "objects": report.objects,
            "unfinished": unfinished.collect::<Vec<_>>(),
            "ranks": report.ranks,
            "changed": report.changed,
            "findings": findings,
        });
        output::line(&value.to_string())?;
    } else {
        for finding in &report.findings {
            let repaired = if finding.repaired { " (mended)" } else { "" };
            output::line(&format!("{}{repaired}", finding.text))?;
        }
        output::line(&format!(
            "{} {}, {} of {} in {}, {}",
            quantity::grouped(report.directories),
            if report.directories == 1 { "directory" } else { "directories" },
            quantity::count(report.files, "file"),
            quantity::count(report.bytes, "byte"),
            quantity::count(report.objects, "object"),
            quantity::count(report.others, "other inode"),
        ))?;
        for one in &report.unfinished {
            output::line(&format!(
                "{} in {} of inode {} being put or removed, or left by a command that was killed",
                quantity::count(one.bytes, "byte"),
                quantity::count(one.objects, "object"),
                one.ino
            ))?;
        }
        if report.ranks > 0 {
            output::line(&format!(
                "{} still running, or killed: --mend finishes what they left",
                quantity::count(report.ranks, "rank")
            ))?;
        }
    }
    let left = report.findings.iter().filter(|finding| !finding.repaired).count() as u64;
    if report.changed {
        let text = "entries changed during the check, so entries and inodes were not compared; try again";
        return Err(Failure::Failed(text.to_owned()));
    }
    match left {
        0 => Ok(()),
        _ => Err(Failure::Failed(format!(
            "{} left; --mend repairs what it can",
            quantity::count(left, "finding")
        ))),
    }
}
