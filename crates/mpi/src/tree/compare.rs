//! `nacre-mpi compare`.
//!
//! Every rank compares the entries of its part. A directory that several ranks work on is compared by the one that meets it in
//! its parent. The ranges of large files are compared after the walk, by all ranks. Rank 0 prints the lines of all.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nacre_quantity::{count, grouped};
use nacre_ranks::Shutdown;
use nacre_tree::copy::{Aspects, Copy, Differing, LeftOver, Options, Report};
use nacre_walk::filter::Selection;
use nacre_walk_cli::{CommandError, parse_chunk};
use serde_json::{Map, Value};

use crate::job::JobError;
use crate::output::Output;
use crate::progress::Figures;
use crate::tree::copy::{broken, directories_only, progress, refused, see_the_same};
use crate::tree::range::{self, LeftLater, Sharing};
use crate::tree::{Common, Faults, Lines, Part, Rank, Totals, put_path};
use crate::walk::{agree, end, fail, printer};

const AFTER_HELP: &str = "\
Exit codes: 0 no differences; 1 differences; 2 something could not be compared, or wrong usage; as those of cmp and diff.";

/// Compare two directory trees, on all ranks of this job
///
/// Each difference is printed on one line, with its path relative to both roots. An entry that differs in several ways
/// is printed once. Names, types, sizes, contents, link targets, owners, modes, modification times, extended attributes
/// and ACLs are compared. Links are not followed.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The directory
    source: PathBuf,
    /// The tree to compare it with
    destination: PathBuf,
    /// Ignore owners, modes, times and attributes
    #[arg(long, conflicts_with = "metadata_only")]
    contents_only: bool,
    /// Do not read contents: assume that files of equal size and time are equal
    #[arg(long)]
    metadata_only: bool,
    /// Descend into other file systems that are mounted below the source
    #[arg(long)]
    cross_mounts: bool,
    /// Ignore extended attributes and ACLs
    #[arg(long)]
    no_xattrs: bool,
    /// Split files larger than this into chunks of this size, which the ranks share out
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_chunk)]
    chunk: u64,
    #[command(flatten)]
    common: Common,
}

/// The exit code where something could not be compared.
const TROUBLE: i32 = 2;

/// Runs `nacre-mpi compare`.
///
/// # Errors
/// [`JobError`] if the job cannot continue.
pub fn run(rank: &mut Rank<'_>, args: &Args) -> Result<i32, JobError> {
    let (options, threads) = rank.plan(&args.common);
    let prepared = rank.selection(&args.common)?.and_then(|selection| prepare(args, threads, selection));
    let comparison = match agree(&rank.network, prepared) {
        Ok(comparison) => comparison,
        Err(code) => return Ok(code),
    };
    if let Err(code) = agree(&rank.network, see_the_same(rank, &comparison)?) {
        return Ok(code);
    }
    let errors = match agree(&rank.network, rank.error_file(&args.common)) {
        Ok(errors) => errors,
        Err(code) => return Ok(code),
    };
    let aspects = Aspects {
        contents: !args.metadata_only,
        metadata: !args.contents_only,
        // Entries that are not selected are not known to be missing in the source.
        extras: !args.common.filters.is_given(),
        ..Aspects::ALL
    };
    let (forwarder, mut output) = Output::new(printer(&rank.network)?, rank.network.size());
    let sample = |pending| Figures::Work(progress(&comparison, pending));
    rank.show_progress(&args.common, &mut output, Box::new(sample))?;
    let (lines, differences, json) = (Lines::new(forwarder), AtomicU64::new(0), rank.json);
    let report = |differing: Differing| {
        differences.fetch_add(1, Ordering::Relaxed);
        let line = if json { described_in_json(&differing) } else { differing.to_string() };
        lines.print(format!("{line}\n").as_bytes());
    };
    let begin = rank.network.is_root();
    let (left, control) = (LeftLater::new(), comparison.control());
    let leave = |later: LeftOver| left.add(later);
    if begin {
        // In another thread: what only the destination has there may be more lines than are kept until they are sent.
        let root = || {
            lines.begin();
            let compared = comparison.compare_root((aspects, &report));
            lines.flush();
            compared
        };
        rank.alongside(&mut output, control, root)?.map_err(broken)?;
    }
    let ended = comparison.compare_part(begin, (aspects, &report), Some(&leave), |walk, visitors| {
        rank.walk_together((walk, visitors), &options, &mut output, Some(&lines), control)
    });
    let (_, mut large) = left.into_inner()?;
    let mut ended = ended.map_err(broken)??;
    if rank.any(&mut output, control.is_stopped())? {
        ended = Shutdown::Stopped;
    }
    if ended == Shutdown::Finished {
        let sharing = Sharing { options: &options, threads, control };
        let said = (&report as Report<'_>, Some(&lines));
        ended = range::compare(rank, &comparison, &mut large, sharing, said, &mut output)?;
    }
    let part = Part {
        counts: vec![
            comparison.counters().verified.load(Ordering::Relaxed),
            differences.load(Ordering::Relaxed),
        ],
        failures: Faults::of(comparison.failures()),
        interrupted: ended == Shutdown::Stopped,
        ..Part::default()
    };
    let code = match rank.gather(part, errors, &mut output)? {
        Some(totals) => match output.failure() {
            // There was a difference to print.
            Some(error) => match CommandError::output(error) {
                CommandError::Unread => 1,
                error => {
                    end(Err(error));
                    TROUBLE
                }
            },
            None => conclude(rank, &totals),
        },
        None => 0,
    };
    Ok(rank.network.decide(code))
}

fn prepare(args: &Args, threads: NonZeroUsize, selection: Selection) -> Result<Copy, CommandError> {
    let options = Options {
        threads,
        chunk_bytes: args.chunk,
        checksum: false,
        force: false,
        fsync: false,
        cross_mounts: args.cross_mounts,
        extended: !args.no_xattrs,
        mirror: false,
        mirror_empty: false,
        selection: Arc::new(selection),
    };
    let comparison = Copy::for_comparison(&args.source, &args.destination, options).map_err(refused)?;
    directories_only(comparison)
}

fn conclude(rank: &Rank<'_>, totals: &Totals) -> i32 {
    let (same, differences, errors) = (totals.count(0), totals.count(1), totals.failures.count);
    if rank.json {
        let json = serde_json::json!({
            "same": same, "different": differences, "errors": errors,
            "first_errors": totals.failures.json(), "interrupted": totals.interrupted,
        });
        println!("{json}");
    } else if differences > 0 || errors > 0 {
        println!("{} differ, {} the same", grouped(differences), grouped(same));
    }
    if totals.interrupted {
        fail("interrupted: not everything was compared");
        return TROUBLE;
    }
    if errors > 0 {
        totals.failures.complain();
        fail(&format!("{}; not everything was compared", count(errors, "error", "errors")));
        return TROUBLE;
    }
    i32::from(differences > 0)
}

fn described_in_json(differing: &Differing) -> String {
    let mut json = Map::new();
    put_path(&mut json, "path", &differing.path);
    json.insert("type".to_owned(), serde_json::to_value(differing.kind).unwrap_or_default());
    json.insert("difference".to_owned(), differing.difference.name().into());
    Value::Object(json).to_string()
}
