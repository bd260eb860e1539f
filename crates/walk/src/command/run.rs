//! A walk in this process, from its flags to its exit code.

use crate::checkpoint::{self, LoadError, Loaded, Saved};
use crate::command::watch::Watch;
use crate::command::{Args, Collector, CommandError, Plan, raw_stdout};
use crate::list::Output;
use crate::report::link::HardLinks;
use crate::report::{Report, Shared, Sums, Tally, node_of};
use crate::{Ended, Unit, Walk};
use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The inverse of the largest share of the time that saving checkpoints may take.
const SAVING_PART_MAX: u32 = 20;

/// Walks in this process, and prints to standard output. `complain` is given lines for standard error.
///
/// # Errors
/// [`CommandError`] if the usage is wrong, or something could not be visited or written.
pub fn run(args: &Args, json: bool, mut complain: impl FnMut(&str)) -> Result<(), CommandError> {
    let mut plan = Plan::new(args, json)?;
    for (root, within) in &plan.dropped {
        complain(&format!("{root:?} is visited as part of {within:?}"));
    }
    let target = args.checkpoint.as_deref().or(args.resume.as_deref());
    if let Some(file) = &args.checkpoint
        && args.resume.as_ref() != Some(file)
        && file.symlink_metadata().is_ok()
    {
        return Err(CommandError::Usage(format!(
            "there is a file {file:?} already; go on from it with --resume, or remove it"
        )));
    }
    let mut counted = Counted::new(&plan);
    let mut resumed = None;
    if let Some(file) = &args.resume {
        let cannot = |error: &dyn std::fmt::Display| {
            CommandError::Usage(format!("cannot go on from {file:?}: {error}"))
        };
        let loaded = counted.load(file).map_err(|error| cannot(&error))?;
        plan.adopt(&loaded).map_err(|error| cannot(&error))?;
        counted.report = loaded.report;
        resumed = Some(loaded.units);
    }
    let output = Output::new(Box::new(raw_stdout().map_err(CommandError::output)?));
    let errors = plan.error_log(resumed.is_some())?;
    let mut walk = plan.walk()?;
    let mut collectors = plan.collectors(&output, errors.as_ref(), walk.queue(), &counted.shared);
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
        counted.save(target, &plan, &mut walk, &mut collectors, &output)?;
        watch.set_due(args.every);
    }
    let walked = std::thread::scope(|scope| {
        if watch.is_needed() {
            scope.spawn(|| watch.run());
            scope.spawn(|| watch.wait_for_signals());
        }
        let _end = EndOnDrop(&watch);
        counted.walk(target, args, &plan, &mut walk, &mut collectors, &output, &watch, &mut complain)
    });
    walked?;
    plan.finish(&mut counted)?;
    plan.print(&counted.report, &mut io::stdout().lock())?;
    if let Some(target) = target
        && let Err(error) = std::fs::remove_file(target)
    {
        complain(&format!("cannot remove the checkpoint {target:?}, which is of no more use: {error}"));
    }
    let (lines, end) = plan.verdict(&counted.report);
    lines.iter().for_each(|line| complain(line));
    match errors.and_then(|errors| errors.failure()) {
        Some(error) => Err(CommandError::Failed(format!("cannot write all errors to a file: {error}"))),
        None => end,
    }
}

/// Ends the watch when dropped, even if a visitor panics, because its threads are joined.
struct EndOnDrop<'a>(&'a Watch);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The counts of this process, apart from those that its threads still hold.
pub struct Counted {
    /// The report, which can be merged and sent.
    pub report: Report,
    /// The files with several names, which are sent separately.
    pub links: HardLinks,
    /// The sums of directories that are counted in parts, which are sent separately too.
    pub shared: Arc<Shared>,
}

/// The state of a stopped walk.
pub struct Standing {
    /// The directories that are begun, by their node numbers in the partial sums, with their counts so far.
    pub begun: Vec<(u32, Tally)>,
    /// The work that is left.
    pub units: Vec<Unit>,
}

impl Counted {
    /// Creates empty counts.
    pub fn new(plan: &Plan) -> Counted {
        let shared = Arc::<Shared>::default();
        Counted { report: Report::new(&plan.shape), links: HardLinks::new(&shared.spill, 1), shared }
    }

    /// Loads a checkpoint and adds its counts, except its report, which is returned with the rest.
    ///
    /// # Errors
    /// [`LoadError`] if the file cannot be read or is no intact checkpoint.
    pub fn load(&mut self, file: &Path) -> Result<Loaded, LoadError> {
        checkpoint::load(file, &mut self.links, &mut self.shared.partial.lock())
    }

    /// Walks to the end, with checkpoints in between.
    #[allow(clippy::too_many_arguments, reason = "the pieces of one function that is called once")]
    fn walk(
        &mut self,
        target: Option<&Path>,
        args: &Args,
        plan: &Plan,
        walk: &mut Walk<Sums>,
        collectors: &mut [Collector<'_>],
        output: &Output,
        watch: &Watch,
        complain: &mut impl FnMut(&str),
    ) -> Result<(), CommandError> {
        loop {
            let ended = walk.run(collectors);
            if ended == Ended::Done {
                return self.take(collectors, output);
            }
            let Some(target) = target else {
                // Somebody who lists could not write.
                self.take(collectors, output)?;
                continue;
            };
            let signalled = watch.is_signalled();
            if !signalled && !watch.is_due() && !output.is_closed() {
                continue;
            }
            let begun = Instant::now();
            let saved = self.save(target, plan, walk, collectors, output);
            if signalled {
                saved?;
                return Err(CommandError::Failed(format!(
                    "interrupted; the same command with --resume {} goes on from here",
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

    /// Takes the counts of the threads, and makes them write what they have listed.
    ///
    /// # Errors
    /// If writing the listing failed.
    pub fn take(&mut self, collectors: &mut [Collector<'_>], output: &Output) -> Result<(), CommandError> {
        for collector in collectors {
            collector.flush();
            collector.take(&mut self.report, &mut self.links);
        }
        output.failure().map_or(Ok(()), |error| Err(CommandError::output(error)))
    }

    /// Returns the state of a stopped walk.
    pub fn stand(&self, walk: &mut Walk<Sums>) -> Standing {
        let (mut begun, mut partial) = (Vec::new(), self.shared.partial.lock());
        let units = walk.frontier(|directory| {
            begun.push((node_of(directory, &mut partial), directory.state().tally()));
        });
        Standing { begun, units }
    }

    /// Writes a checkpoint.
    ///
    /// # Errors
    /// [`CommandError::Failed`] if it cannot be written.
    pub fn write(&self, target: &Path, plan: &Plan, standing: &Standing) -> Result<(), CommandError> {
        let Standing { begun, units } = standing;
        let saved = Saved {
            head: &plan.head,
            report: &self.report,
            partial: &self.shared.partial.lock(),
            begun,
            units,
            links: &self.links,
        };
        checkpoint::save(target, &saved).map_err(|error| {
            CommandError::Failed(format!("cannot save the checkpoint {}: {error}", quoted(target)))
        })
    }

    /// Saves a stopped walk.
    fn save(
        &mut self,
        target: &Path,
        plan: &Plan,
        walk: &mut Walk<Sums>,
        collectors: &mut [Collector<'_>],
        output: &Output,
    ) -> Result<(), CommandError> {
        self.take(collectors, output)?;
        let standing = self.stand(walk);
        self.write(target, plan, &standing)
    }
}

/// Quotes a path for a shell.
fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}
