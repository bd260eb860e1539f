//! `nacre compare`: compares two files or directories with everything in them, on all processors.

use std::io;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use nacre_tree::copy::{Aspects, Copy, Differing, Options, StartError};
use nacre_walk_cli::Filters;
use serde_json::{Map, Value, json};

use crate::command::copy_tree::shown;
use crate::command::remove::{complain, failure_json};
use crate::failure::Failure;
use crate::session::Context;
use crate::{interrupt, output, quantity};

const AFTER_HELP: &str = "\
Exit codes: 0 no differences; 1 differences; 2 something could not be compared or printed, or wrong usage, as those of cmp \
and diff; 128 and the signal's number, such as 130 for Ctrl-C, if one ended the comparison.";

/// Compare two files or directory trees, using all processors
///
/// Each difference is printed on one line, with its path relative to both roots. An entry that differs in several ways
/// is printed once. Names, types, sizes, contents, link targets, owners, modes, modification times, extended attributes
/// and ACLs are compared. Links are not followed. Access times are left unchanged where the system allows it.
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The file, link or directory
    source: PathBuf,
    /// The tree to compare it with
    destination: PathBuf,
    /// Ignore owners, modes, times of modification and attributes
    #[arg(long, conflicts_with = "metadata_only")]
    contents_only: bool,
    /// Do not read contents: assume that files of equal size and time of modification are equal
    #[arg(long)]
    metadata_only: bool,
    /// Print nothing, and stop at the first difference
    #[arg(long, short)]
    quiet: bool,
    /// Descend into other file systems that are mounted below the source
    #[arg(long)]
    cross_mounts: bool,
    /// Ignore extended attributes and ACLs
    #[arg(long)]
    no_xattrs: bool,
    /// Number of threads [default: one per processor]
    #[arg(long, value_name = "N", value_parser = nacre_walk_cli::parse_threads)]
    threads: Option<NonZeroUsize>,
    #[command(flatten)]
    filters: Filters,
}

/// The size of the ranges in which large files are shared out, in bytes.
const CHUNK_BYTES: u64 = 64 << 20;

/// Runs `nacre compare`.
pub fn run(session: &Context, args: Args) -> Result<(), Failure> {
    let selection = args.filters.selection(nacre_walk_cli::now()).map_err(Failure::Usage)?;
    let threads = args.threads.or_else(|| std::thread::available_parallelism().ok());
    let options = Options {
        threads: threads.unwrap_or(NonZeroUsize::MIN),
        chunk_bytes: CHUNK_BYTES,
        checksum: false,
        force: false,
        fsync: false,
        cross_mounts: args.cross_mounts,
        extended: !args.no_xattrs,
        mirror: false,
        mirror_empty: false,
        selection: Arc::new(selection),
    };
    let usage = |refusal: StartError| Failure::Usage(refusal.to_string());
    let comparison = Copy::for_comparison(&args.source, &args.destination, options).map_err(usage)?;
    let aspects = Aspects {
        contents: !args.metadata_only,
        metadata: !args.contents_only,
        // Entries that are not selected are not known to be missing in the source.
        extras: !args.filters.is_given(),
        ..Aspects::ALL
    };
    let (count, unwritten) = (AtomicU64::new(0), OnceLock::new());
    let report = |differing: Differing| {
        count.fetch_add(1, Ordering::Relaxed);
        if args.quiet {
            return comparison.control().stop();
        }
        let line = if session.json { described_in_json(&differing) } else { differing.to_string() };
        if let Err(error) = output::line(&line) {
            // The first error is the cause of the others.
            let _ = unwritten.set(error);
            comparison.control().stop();
        }
    };
    let done = interrupt::stopping(
        || comparison.control().stop(),
        || shown(&comparison, "comparing", || comparison.compare(aspects, &report)),
    )?;
    done.map_err(usage)?;
    let differences = count.load(Ordering::Relaxed);
    let differs = || Err(Failure::Command { code: 1, sentence: None });
    if let Some(error) = unwritten.into_inner() {
        Failure::output_of_comparison(Err(error))?;
        return differs();
    }
    if args.quiet && differences > 0 {
        return differs();
    }
    conclude(session, &args, &comparison, differences)
}

fn conclude(session: &Context, args: &Args, comparison: &Copy, differences: u64) -> Result<(), Failure> {
    let errors = comparison.failures().count();
    let stopped = comparison.control().is_stopped();
    Failure::output_of_comparison(print_totals(session, args, comparison, differences))?;
    if stopped {
        return Err(Failure::Interrupted("interrupted: not everything was compared".into()));
    }
    let failed = |sentence: String| Err(Failure::Command { code: 2, sentence: Some(sentence) });
    if errors > 0 {
        complain(comparison.failures());
        return failed(format!("{}; not everything was compared", quantity::count(errors, "error")));
    }
    match differences {
        0 => Ok(()),
        _ => Err(Failure::Command { code: 1, sentence: None }),
    }
}

fn print_totals(session: &Context, args: &Args, comparison: &Copy, differences: u64) -> io::Result<()> {
    let same = comparison.counters().verified.load(Ordering::Relaxed);
    let errors = comparison.failures().count();
    if session.json {
        let json = json!({
            "same": same,
            "different": differences,
            "errors": errors,
            "first_errors": comparison.failures().first().iter().map(failure_json).collect::<Vec<_>>(),
            "interrupted": comparison.control().is_stopped(),
        });
        output::line(&json.to_string())?;
    } else if !args.quiet && (differences > 0 || errors > 0) {
        let same = quantity::grouped(same);
        output::line(&format!("{} differ, {same} the same", quantity::grouped(differences)))?;
    }
    output::flush()
}

fn described_in_json(differing: &Differing) -> String {
    let mut json = Map::new();
    output::put_bytes(&mut json, "path", &differing.path);
    json.insert("type".into(), serde_json::to_value(differing.kind).unwrap_or_default());
    json.insert("difference".into(), differing.difference.name().into());
    Value::Object(json).to_string()
}
