//! `nacre-mpi remove`.
//!
//! Every rank removes the files of its part, and each directory that is empty when the rank leaves it. Those that several
//! ranks work on may stay: when all ranks are done, rank 0 walks what is left, which is little unless something cannot be
//! removed. What fails then is what counts. With filters no directory is removed, and nothing is left for rank 0.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use nacre_quantity::{count, grouped, size};
use nacre_ranks::{self as algorithm, Shutdown};
use nacre_tree::remove::{Counted, List, ROUNDS_MAX, Removal, Restriction};
use nacre_tree::{Control, EntryErrors};
use nacre_walk::filter::Selection;
use nacre_walk_cli::CommandError;

use crate::job::JobError;
use crate::output::Output;
use crate::progress::{Figures, Work};
use crate::tree::{Common, Faults, Lines, Part, Rank, Totals, path_line};
use crate::walk::{agree, end, fail, printer};

/// Remove files and directory trees, on all ranks of this job
///
/// Links are removed and never followed. Other file systems that are mounted below are not entered. A job has nobody to
/// ask, so it needs --yes or --dry-run. With filters, only the files, links and other entries that they select are removed,
/// and directories stay. The exit code is 0 only if everything to be removed is gone.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct Args {
    /// Files, links or directories
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Remove them
    #[arg(long, short)]
    yes: bool,
    /// Count what would be removed, and change nothing
    #[arg(long, conflicts_with_all = ["yes", "errors"])]
    dry_run: bool,
    /// With --dry-run: also print every path; with --json, as one object per line before the totals
    #[arg(long, requires = "dry_run")]
    list: bool,
    #[command(flatten)]
    common: Common,
}

/// Runs `nacre-mpi remove`.
///
/// # Errors
/// [`JobError`] if the job cannot continue.
pub fn run(rank: &mut Rank<'_>, args: &Args) -> Result<i32, JobError> {
    let (options, threads) = rank.plan(&args.common);
    let prepared = rank.selection(&args.common)?.and_then(|selection| prepare(args, threads, selection));
    let removal = match agree(&rank.network, prepared) {
        Ok(removal) => removal,
        Err(code) => return Ok(code),
    };
    if let Err(code) = agree(&rank.network, see_the_same(rank, &removal)?) {
        return Ok(code);
    }
    if args.dry_run {
        return dry_run(rank, args, &removal, &options);
    }
    let errors = match agree(&rank.network, rank.error_file(&args.common)) {
        Ok(errors) => errors,
        Err(code) => return Ok(code),
    };
    let restricted = args.common.filters.is_given();
    let (_, mut output) = Output::new(printer(&rank.network)?, rank.network.size());
    let sample = |pending| Figures::Work(Work { entries: removal.entries(), pending, ..Work::default() });
    rank.show_progress(&args.common, &mut output, Box::new(sample))?;
    let mut failures = EntryErrors::default();
    let mut ended = Shutdown::Finished;
    for round in 1..=ROUNDS_MAX {
        // What changed in an earlier round may have settled.
        failures = EntryErrors::default();
        let (phase, changed) = removal.run_part(rank.network.is_root(), &failures, |walk, visitors| {
            rank.walk_together((walk, visitors), &options, &mut output, None, removal.control())
        });
        ended = phase?;
        let changed = rank.any(&mut output, changed)?;
        if ended == Shutdown::Stopped || !restricted || !changed || round == ROUNDS_MAX {
            break;
        }
    }
    let mut interrupted = ended == Shutdown::Stopped;
    if !restricted {
        failures = EntryErrors::default();
        if !interrupted && rank.network.is_root() {
            let removed = rank.alongside(&mut output, removal.control(), || removal.run())?;
            (failures, interrupted) = (removed.failures, removed.stopped);
        }
        // The others wait for this, asleep.
        rank.network.decide(0);
    }
    let part = Part {
        counts: vec![removal.entries(), removal.removed_directories()],
        failures: Faults::of(&failures),
        interrupted,
        ..Part::default()
    };
    let code = match rank.gather(part, errors, &mut output)? {
        Some(totals) => report(rank, &totals),
        None => 0,
    };
    Ok(rank.network.decide(code))
}

fn prepare(args: &Args, threads: NonZeroUsize, selection: Selection) -> Result<Removal, CommandError> {
    let removal = Removal::new(&args.paths, threads);
    let removal = removal.map_err(|refusal| CommandError::Usage(refusal.to_string()))?;
    if !args.yes && !args.dry_run {
        let sentence =
            "nothing was removed: a job has nobody to ask; give --yes, or check first with --dry-run";
        return Err(CommandError::Usage(sentence.to_owned()));
    }
    Ok(match args.common.filters.is_given() {
        true => removal.restricted(Restriction { selection, empty_directories: false }),
        false => removal,
    })
}

/// Checks that all ranks see the same paths, as they do in file systems that their nodes share.
fn see_the_same(rank: &Rank<'_>, removal: &Removal) -> Result<Result<(), CommandError>, JobError> {
    let seen = removal.inodes();
    let first: Vec<u64> = rank.network.same(&seen)?;
    if seen == first {
        return Ok(Ok(()));
    }
    let number = rank.network.number();
    Ok(Err(CommandError::Usage(format!(
        "rank {number} sees others than rank 0 under these paths: they have to be in file systems that all nodes share"
    ))))
}

fn report(rank: &Rank<'_>, totals: &Totals) -> i32 {
    let (removed, errors) = (totals.count(0), totals.failures.count);
    if rank.json {
        let json = serde_json::json!({
            "removed": removed, "directories": totals.count(1), "errors": errors,
            "interrupted": totals.interrupted, "first_errors": totals.failures.json(),
        });
        println!("{json}");
    } else {
        println!("{} removed", count(removed, "entry", "entries"));
    }
    if totals.interrupted {
        let removed = grouped(removed);
        return fail(&format!("interrupted: {removed} removed; run the same command again to continue"));
    }
    if errors == 0 {
        return 0;
    }
    totals.failures.complain();
    fail(&format!("{} not removed", if errors == 1 { "1 entry was".to_owned() } else { were(errors) }))
}

fn were(entries: u64) -> String {
    format!("{} entries were", grouped(entries))
}

/// Counts what would be removed, and lists it if asked to.
fn dry_run(
    rank: &mut Rank<'_>,
    args: &Args,
    removal: &Removal,
    options: &algorithm::Options,
) -> Result<i32, JobError> {
    let (forwarder, mut output) = Output::new(printer(&rank.network)?, rank.network.size());
    let (lines, control, json) = (Lines::new(forwarder), Control::default(), rank.json);
    let list = |path: &[u8]| lines.print(&path_line(None, path, json));
    let list = args.list.then_some(&list as List<'_>);
    let (phase, counted) =
        removal.count_part(rank.network.is_root(), true, &control, list, |walk, visitors| {
            rank.walk_together((walk, visitors), options, &mut output, Some(&lines), &control)
        });
    let Counted { entries, directories, files, bytes, errors } = counted;
    let part = Part {
        counts: vec![entries, directories, files, bytes, errors],
        interrupted: phase? == Shutdown::Stopped,
        ..Part::default()
    };
    let Some(totals) = rank.gather(part, None, &mut output)? else { return Ok(rank.network.decide(0)) };
    if let Some(error) = output.failure() {
        return Ok(rank.network.decide(end(Err(CommandError::output(error)))));
    }
    let of = |place| totals.count(place);
    let (entries, directories, files, bytes, errors) = (of(0), of(1), of(2), of(3), of(4));
    if rank.json {
        let json = serde_json::json!({
            "dry_run": true, "entries": entries, "directories": directories, "files": files, "bytes": bytes,
            "errors": errors,
        });
        println!("{json}");
    } else {
        println!(
            "would remove {}: {}, {} of {}",
            count(entries, "entry", "entries"),
            count(directories, "directory", "directories"),
            count(files, "file", "files"),
            size(bytes)
        );
    }
    let code = match (totals.interrupted, errors) {
        (true, _) => fail("interrupted: not everything was counted"),
        (false, 0) => 0,
        (false, _) => fail(&format!("{} could not be examined", count(errors, "path", "paths"))),
    };
    Ok(rank.network.decide(code))
}
