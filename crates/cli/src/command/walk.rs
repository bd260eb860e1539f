//! `nacre walk`: counts and lists file trees, in this process.

mod index;
mod namespace;
mod watch;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use index::Sweep;
use nacre_quantity::Escaped;
use nacre_walk::collect::Collector;
use nacre_walk::list::Output;
use nacre_walk::report::Sums;
use nacre_walk::{Ended, Source, Unit, Walk};
use nacre_walk_cli::{CommandError, Counted, Plan, quoted, raw_stdout};
use watch::Watch;

use super::tree_path::in_namespace;
use crate::failure::Failure;
use crate::output;
use crate::session::Context;

/// The inverse of the largest share of the time that saving checkpoints may take.
const SAVING_PART_MAX: u32 = 20;

// The flags of `nacre walk`: those of every walk, and those of an index. A documentation comment would become the
// command's description, which comes from those of every walk.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct Args {
    #[command(flatten)]
    walk: nacre_walk_cli::Args,
    #[command(flatten)]
    index: index::Args,
}

/// Runs `nacre walk`.
pub fn run(session: &Context, args: &Args) -> Result<(), Failure> {
    let complain = |line: &str| output::complain(&format!("nacre: {line}"));
    let roots = &args.walk.roots;
    let below = roots.iter().map(|root| in_namespace(root)).collect::<Result<Vec<_>, _>>()?;
    let namespace = match below.iter().position(Option::is_none) {
        None => Some(namespace::Opened::new(session)?),
        Some(local) => {
            if let Some(other) = below.iter().position(Option::is_some) {
                return Err(Failure::Usage(format!(
                    "\"{}\" is in the namespace of a store, and \"{}\" is not: walk them one by one",
                    Escaped::of(&roots[other]),
                    Escaped::of(&roots[local])
                )));
            }
            None
        }
    };
    let walked = match &namespace {
        None => walk(&args.walk, &args.index, session.json, None, complain),
        Some(namespace) => {
            let below: Vec<OsString> = below.into_iter().flatten().collect();
            let places = namespace.places(&below).map_err(|failure| match failure {
                Failure::Failed(sentence) => Failure::Usage(sentence),
                failure => failure,
            })?;
            walk(&args.walk, &args.index, session.json, Some((namespace.source(), places)), complain)
        }
    };
    if let Some(namespace) = namespace {
        namespace.close();
    }
    walked.map_err(|error| match error {
        CommandError::Usage(sentence) => Failure::Usage(sentence),
        CommandError::Failed(sentence) => Failure::Failed(sentence),
        CommandError::Unread => Failure::Unread,
    })
}

/// Walks, and prints to standard output. The roots are in the tree of the source, at these places, if there is one. `complain` is given
/// lines for standard error.
fn walk(
    args: &nacre_walk_cli::Args,
    index: &index::Args,
    json: bool,
    source: Option<(Arc<dyn Source>, Vec<PathBuf>)>,
    mut complain: impl FnMut(&str),
) -> Result<(), CommandError> {
    let mut plan = match source {
        None => Plan::new(args, json)?,
        Some((source, places)) => {
            index.check_without_file_system()?;
            Plan::over(args, json, source, places)?
        }
    };
    let sweep = Sweep::begin(index, args, &mut plan)?;
    for (root, within) in &plan.dropped {
        complain(&format!("\"{}\" is visited as part of \"{}\"", Escaped::of(root), Escaped::of(within)));
    }
    let target = args.checkpoint.as_deref().or(args.resume.as_deref());
    check_checkpoint(args)?;
    let mut counted = Counted::new(&plan);
    let resumed = match &args.resume {
        Some(file) => Some(resume(file, &mut plan, &mut counted)?),
        None => None,
    };
    let output = Output::new(Box::new(raw_stdout().map_err(CommandError::output)?));
    let errors = plan.error_log(resumed.is_some())?;
    let mut walk = plan.walk()?;
    let mut collectors = plan.collectors(&output, errors.as_ref(), walk.queue(), &counted.shared);
    if let Some(sweep) = &sweep {
        sweep.record(&mut collectors)?;
    }
    match resumed {
        Some(units) => walk.queue().put(units),
        None => plan.start(&walk, &mut collectors[0])?,
    }
    let live = io::stderr().is_terminal() && !(args.list && io::stdout().is_terminal());
    let mut watch = Watch::new(walk.queue(), live);
    if let Some(target) = target {
        let caught = watch.catch_signals();
        caught.map_err(|error| CommandError::Failed(format!("cannot wait for signals: {error}")))?;
        // What cannot be saved later is not begun.
        save(&mut counted, target, &plan, &mut walk, &mut collectors, &output)?;
        watch.set_due(args.every);
    } else if sweep.is_some() {
        let caught = watch.catch_signals();
        caught.map_err(|error| CommandError::Failed(format!("cannot wait for signals: {error}")))?;
    }
    let walked = std::thread::scope(|scope| {
        if watch.is_needed() {
            scope.spawn(|| watch.run());
            scope.spawn(|| watch.wait_for_signals());
        }
        let _end = EndOnDrop(&watch);
        walk_on(
            &mut counted,
            (target, sweep.as_ref()),
            args,
            &plan,
            &mut walk,
            &mut collectors,
            &output,
            &watch,
            &mut complain,
        )
    });
    // The recorders hand on what they have, and the writer ends when all of them are gone.
    drop(collectors);
    if let Some(sweep) = sweep {
        sweep.finish(walked)?;
    } else {
        walked?;
    }
    plan.finish(&mut counted)?;
    plan.print(&counted.report, &mut io::stdout().lock())?;
    if let Some(target) = target
        && let Err(error) = std::fs::remove_file(target)
    {
        let shown = Escaped::of(target);
        complain(&format!("cannot remove the checkpoint \"{shown}\", which is no longer needed: {error}"));
    }
    let (lines, end) = plan.verdict(&counted.report);
    lines.iter().for_each(|line| complain(line));
    match errors.and_then(|errors| errors.failure()) {
        Some(error) => Err(CommandError::Failed(format!("cannot write all errors to a file: {error}"))),
        None => end,
    }
}

/// Refuses a checkpoint in the place of a file that the walk does not continue from.
fn check_checkpoint(args: &nacre_walk_cli::Args) -> Result<(), CommandError> {
    if let Some(file) = &args.checkpoint
        && args.resume.as_ref() != Some(file)
        && file.symlink_metadata().is_ok()
    {
        return Err(CommandError::Usage(format!(
            "the file \"{}\" already exists; continue from it with --resume, or remove it",
            Escaped::of(file)
        )));
    }
    Ok(())
}

/// Takes the plan and the counts of a checkpoint, and returns the work that is left.
fn resume(file: &Path, plan: &mut Plan, counted: &mut Counted) -> Result<Vec<Unit>, CommandError> {
    let cannot = |error: &dyn std::fmt::Display| {
        CommandError::Usage(format!("cannot resume from \"{}\": {error}", Escaped::of(file)))
    };
    let loaded = counted.load(file).map_err(|error| cannot(&error))?;
    plan.adopt(&loaded).map_err(|error| cannot(&error))?;
    counted.report = loaded.report;
    Ok(loaded.units)
}

/// Ends the watch when dropped, even if a visitor panics, because its threads are joined.
struct EndOnDrop<'a>(&'a Watch);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Walks to the end, with checkpoints in between.
#[allow(clippy::too_many_arguments, reason = "the pieces of one function that is called once")]
fn walk_on(
    counted: &mut Counted,
    (target, sweep): (Option<&Path>, Option<&Sweep>),
    args: &nacre_walk_cli::Args,
    plan: &Plan,
    walk: &mut Walk<Sums>,
    collectors: &mut [Collector<'_>],
    output: &Output,
    watch: &Watch,
    complain: &mut impl FnMut(&str),
) -> Result<(), CommandError> {
    loop {
        let ended = walk.run(collectors);
        if let Some(target) = target
            && plan.source.as_ref().is_some_and(|source| source.is_lost())
        {
            // What could not be read for that reason alone is still to be walked, as the last checkpoint says.
            return Err(CommandError::Failed(format!(
                "the store was lost; run the same command with --resume {} to continue from the last checkpoint",
                quoted(target)
            )));
        }
        if ended == Ended::Done {
            return counted.take(collectors, output);
        }
        let Some(target) = target else {
            // Somebody who lists could not write.
            counted.take(collectors, output)?;
            match sweep {
                Some(sweep) if sweep.has_failed() => {
                    return Err(CommandError::Failed("the index cannot be written".into()));
                }
                Some(sweep) if watch.is_signalled() => return Err(sweep.interrupted()),
                _ => continue,
            }
        };
        let signalled = watch.is_signalled();
        if !signalled && !watch.is_due() && !output.is_closed() {
            continue;
        }
        let begun = Instant::now();
        let saved = save(counted, target, plan, walk, collectors, output);
        if signalled {
            saved?;
            return Err(CommandError::Failed(format!(
                "interrupted; run the same command with --resume {} to continue",
                quoted(target)
            )));
        }
        match saved {
            Ok(()) => {}
            Err(CommandError::Unread) => return Err(CommandError::Unread),
            // It goes on without; a later one may succeed.
            Err(error) if !output.is_closed() => complain(&error.to_string()),
            Err(error) => return Err(error),
        }
        watch.set_due(args.every.max(begun.elapsed() * SAVING_PART_MAX).max(Duration::from_millis(10)));
    }
}

/// Saves a stopped walk.
fn save(
    counted: &mut Counted,
    target: &Path,
    plan: &Plan,
    walk: &mut Walk<Sums>,
    collectors: &mut [Collector<'_>],
    output: &Output,
) -> Result<(), CommandError> {
    counted.take(collectors, output)?;
    counted.write_all(target, plan, walk)
}
