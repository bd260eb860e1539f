//! `nacre diff`: the difference between two sweeps.

use std::io;
use std::path::PathBuf;

use nacre_index::difference::{Change, Changed, Counts, DifferenceError, compare};
use nacre_quantity::Escaped;
use serde_json::{Map, Value};

use crate::failure::Failure;
use crate::output;
use crate::quantity;
use crate::session::Context;

const AFTER_HELP: &str = "\
Exit codes: 0 no differences; 1 differences; 2 the indices could not be compared, the differences could not be printed, or \
one of the sweeps could not read a directory, so that its contents are unknown; as those of diff.";

/// Compare two sweeps of a file tree
///
/// OLD and NEW are indices written by "nacre walk ROOT --index FILE.sqlite". Each line begins with + for a created
/// entry, - for a removed one, ~ for a changed one, followed by the names of the fields that differ, or > for a moved
/// one. Moves are detected by device and inode, and for files also by modification time. What is in a moved directory
/// is listed only if it was changed. Access times are not compared.
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The index of the earlier sweep
    old: PathBuf,
    /// The index of the later sweep
    new: PathBuf,
    /// Print only the totals
    #[arg(long)]
    summary: bool,
}

/// Runs `nacre diff`.
pub fn run(session: &Context, args: &Args) -> Result<(), Failure> {
    let mut written = Ok(());
    let report = &mut |changed: &Changed| {
        if !args.summary {
            written = output::line(&if session.json { json(changed) } else { text(changed) });
        }
        written.is_ok()
    };
    let counts = compare(&args.old, &args.new, report).map_err(|error| match error {
        error @ (DifferenceError::Open(_) | DifferenceError::Filters(..)) => {
            Failure::Usage(error.to_string())
        }
        error => Failure::Command { code: 2, sentence: Some(error.to_string()) },
    })?;
    if written.is_err() {
        Failure::output_of_comparison(written)?;
        // There was a difference to print.
        return Err(Failure::Command { code: 1, sentence: None });
    }
    if args.summary {
        Failure::output_of_comparison(summarise(session, &counts))?;
    }
    Failure::output_of_comparison(output::flush())?;
    if counts.unknown > 0 {
        let directories = match counts.unknown {
            1 => "one directory".to_owned(),
            number => format!("{} directories", quantity::grouped(number)),
        };
        let sentence = format!(
            "the contents of {directories} are unknown or incomplete, because a sweep could not read them"
        );
        return Err(Failure::Command { code: 2, sentence: Some(sentence) });
    }
    match counts.is_same() {
        true => Ok(()),
        false => Err(Failure::Command { code: 1, sentence: None }),
    }
}

fn text(changed: &Changed) -> String {
    let path = Escaped(&changed.path);
    let fields = match changed.fields.is_empty() {
        true => String::new(),
        false => format!("  ({})", changed.fields.join(", ")),
    };
    match (changed.change, &changed.from) {
        (Change::Created, _) => format!("+ {path}"),
        (Change::Removed, _) => format!("- {path}"),
        (Change::Moved, Some(from)) => format!("> {} -> {path}{fields}", Escaped(from)),
        (Change::Changed | Change::Moved, _) => format!("~ {path}{fields}"),
    }
}

fn json(changed: &Changed) -> String {
    let mut json = Map::new();
    json.insert("change".into(), changed.change.word().into());
    output::put_bytes(&mut json, "path", &changed.path);
    if let Some(from) = &changed.from {
        output::put_bytes(&mut json, "from", from);
    }
    json.insert("type".into(), changed.kind.clone().into());
    if !changed.fields.is_empty() {
        json.insert("fields".into(), changed.fields.clone().into());
    }
    Value::Object(json).to_string()
}

fn summarise(session: &Context, counts: &Counts) -> io::Result<()> {
    let Counts { created, removed, changed, moved, unknown } = *counts;
    if session.json {
        let json = serde_json::json!({
            "made": created, "removed": removed, "changed": changed, "moved": moved, "unknown_directories": unknown,
        });
        return output::line(&json.to_string());
    }
    let grouped = quantity::grouped;
    let line = format!(
        "{} made, {} removed, {} changed, {} moved",
        grouped(created),
        grouped(removed),
        grouped(changed),
        grouped(moved)
    );
    output::line(&line)
}
