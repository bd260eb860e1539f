//! `nacre-mpi walk`: the command `nacre walk`, carried out by all ranks of a job.
//!
//! Every rank makes the same plan from the same flags. Rank 0 visits the roots; the algorithm shares out the work
//! below; at the end, and at every checkpoint, each rank sends its counts to rank 0, and rank 0 prints.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io::{self, IsTerminal};
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nacre_quantity::Escaped;
use nacre_ranks::proximity::Nodes;
use nacre_ranks::{self as algorithm, Algorithm, Shutdown};
use nacre_walk::collect::Collector;
use nacre_walk::report::level::Levels;
use nacre_walk::report::partial::Received;
use nacre_walk::report::{Report, Sums, Tally};
use nacre_walk::{Snapshot, Unit, Walk};
use nacre_walk_cli::{self as command, CommandError, Counted, Plan, StoppedWalk};

use crate::job::{self, JobError, Until};
use crate::measure::{Measured, Measurements};
use crate::network::Network;
use crate::output::{Output, Printer};
use crate::processor::{self, Mask, Shares};
use crate::progress::{Figures, Progress};

/// Count or list everything below some roots, on all ranks of this job
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct Args {
    /// Algorithm that distributes the work among the ranks: drqs, deqs, pa-drqs or h-drqs
    #[arg(
        long,
        value_name = "NAME",
        default_value_t = Algorithm::HDrqs,
        value_parser = without_master,
        help_heading = "Ranks"
    )]
    pub algorithm: Algorithm,
    /// Take the centralised algorithm, cp, with which the study compares the others
    #[arg(long, conflicts_with = "algorithm", hide = true)]
    pub cp: bool,
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Ranks")]
    pub seed: u64,
    /// Write measurements of every rank to this file, as JSON
    #[arg(long, value_name = "FILE", help_heading = "Ranks")]
    pub measurements: Option<PathBuf>,
    /// Show the progress of all ranks on standard error also if that is not a terminal, as under most launchers: a line
    /// every ten seconds, and one at the end
    #[arg(long, help_heading = "Ranks")]
    pub progress: bool,
    #[command(flatten)]
    pub walk: command::Args,
}

impl Args {
    /// Returns the algorithm that distributes the work.
    fn algorithm(&self) -> Algorithm {
        if self.cp { Algorithm::Cp } else { self.algorithm }
    }
}

/// Reads the name of an algorithm. The one with a master is not for users: it is slower, and keeps no checkpoints.
fn without_master(name: &str) -> Result<Algorithm, String> {
    let offered = || Algorithm::ALL.into_iter().filter(|algorithm| !algorithm.has_master());
    let found = offered().find(|algorithm| algorithm.name().eq_ignore_ascii_case(name));
    found.ok_or_else(|| {
        let names: Vec<&str> = offered().map(Algorithm::name).collect();
        format!("choose one of {}", names.join(", "))
    })
}

/// The result that a rank sends to rank 0 at the end of a phase.
#[derive(serde::Serialize, serde::Deserialize)]
struct Part {
    /// The counts of this phase; taken out by rank 0.
    report: Option<Report>,
    /// The counts of directories that are begun, which the rank continues: by their numbers among the sums that it has
    /// sent before.
    begun: Vec<(u32, Tally)>,
    /// The work that is left in its queue.
    units: Vec<Unit>,
    /// The number of pieces of output that rank 0 must have received.
    pieces: u64,
    /// The number of reports of its progress that rank 0 must have received, and the progress itself.
    reports: u64,
    figures: Figures,
    /// True if a signal has asked the program to end.
    interrupted: bool,
    measured: Measured,
    /// The reason why this rank failed, if it did.
    failure: Option<String>,
}

/// The pause between two looks at what is listed while the roots are visited.
const START_PAUSE: Duration = Duration::from_micros(200);

/// Rank 0's decision to continue after a phase, in place of an exit code.
const GO_ON: i32 = -1;

/// The first byte of each message of a rank's result: a piece of its files with several names, one of its sums of
/// directories, its counts of levels if they are wanted, or its [`Part`], which comes last.
const LINKS: u8 = 0;
const LAST: u8 = 1;
const SUMS: u8 = 2;
const LEVELS: u8 = 3;

/// Walks, and returns the exit code of this rank.
pub fn run(args: &Args, json: bool, network: Network<Unit>, interrupted: &AtomicBool) -> i32 {
    let mut walk = Rank { network, args, json, interrupted };
    match walk.run() {
        Ok(code) => code,
        Err(error) => {
            // Others may wait for this rank for ever: the whole job ends.
            eprintln!("nacre-mpi: rank {}: {error}", walk.network.number());
            walk.network.abort(1)
        }
    }
}

struct Rank<'a> {
    network: Network<Unit>,
    args: &'a Args,
    json: bool,
    interrupted: &'a AtomicBool,
}

impl Rank<'_> {
    fn run(&mut self) -> Result<i32, JobError> {
        let began = Instant::now();
        let numbers = self.network.share(node_number());
        let nodes = Nodes::new(&numbers);
        let masks = self.network.share_masks(&processor::mask());
        let mut plan = match self.agree(self.plan(&numbers, &masks)) {
            Ok(plan) => plan,
            Err(code) => return Ok(code),
        };
        let mut counted = Counted::new(&plan);
        let loaded = match self.agree(self.load(&mut plan, &mut counted)) {
            Ok(loaded) => loaded,
            Err(code) => return Ok(code),
        };
        // Ages count from the same moment everywhere.
        let (now, newer, live) = self.network.same(&(plan.head.now, plan.head.newer, self.is_live()))?;
        plan.begin_at(now, newer);
        let plan = plan;

        let (forwarder, mut output) = Output::new(printer(&self.network)?, self.network.size());
        let listing = nacre_walk::list::Output::new(Box::new(forwarder));
        let mut walk = match self.agree(plan.walk()) {
            Ok(walk) => walk,
            Err(code) => return Ok(code),
        };
        let engine = walk.queue().clone();
        if live {
            let engine = engine.clone();
            let sample = move |pending| Figures::Walk(Snapshot { pending, ..engine.snapshot() });
            output.show_progress(Progress::new(Box::new(sample), self.network.size()));
        }
        let errors = match self.agree(plan.error_log(self.resumes())) {
            Ok(errors) => errors,
            Err(code) => return Ok(code),
        };
        let mut collectors = plan.collectors(&listing, errors.as_ref(), &engine, &counted.shared);
        let started = match loaded {
            Some(units) => {
                walk.queue().put(units);
                Ok(())
            }
            None if self.network.is_root() && !self.resumes() => {
                self.start(&plan, &mut walk, &mut collectors[0], &mut output)?
            }
            None => Ok(()),
        };
        if let Err(code) = self.agree(started) {
            return Ok(code);
        }
        let mut options = algorithm::Options::new(self.args.algorithm(), self.network.size(), self.args.seed);
        options.count_peers = self.args.measurements.is_some();
        options.nodes = Arc::new(nodes);
        let mut entries =
            if options.algorithm.has_master() { walk.queue().take(usize::MAX) } else { Vec::new() };
        let target = self.args.walk.checkpoint.as_deref().or(self.args.walk.resume.as_deref());
        let first = match target.filter(|_| self.network.is_root()) {
            // What cannot be saved later is not begun.
            Some(file) => {
                collectors
                    .iter_mut()
                    .for_each(|collector| collector.take(&mut counted.report, &mut counted.links));
                let standing = counted.stand(&mut walk);
                counted.write(file, &plan, &standing)
            }
            None => Ok(()),
        };
        if let Err(code) = self.agree(first) {
            return Ok(code);
        }

        loop {
            let due =
                target.filter(|_| self.network.is_root()).map(|_| Instant::now() + self.args.walk.every);
            let until = Until { interrupted: self.interrupted, checkpoint_at: due, stopped: &|| {} };
            let threads = || {
                walk.run(&mut collectors);
                collectors.iter_mut().for_each(Collector::flush);
            };
            let phase = job::run_phase(
                &mut self.network,
                &engine,
                threads,
                &options,
                std::mem::take(&mut entries),
                &mut output,
                &until,
            );
            if let Some(progress) = output.progress_mut() {
                progress.clear();
            }
            let phase = phase?;
            for collector in &mut collectors {
                collector.take(&mut counted.report, &mut counted.links);
            }
            let StoppedWalk { begun, units } = counted.stand(&mut walk);
            let part = Part {
                report: Some(std::mem::replace(&mut counted.report, Report::new(&plan.request.shape))),
                begun,
                units,
                pieces: output.sent(),
                reports: output.progress().map_or(0, Progress::sent),
                figures: Figures::Walk(engine.snapshot()),
                interrupted: self.interrupted.load(Ordering::Relaxed),
                measured: Measured::new(&phase, &self.network, walk.queue().progress(), began.elapsed()),
                failure: None,
            };
            let code = match self.gather(part, &mut counted, &mut output)? {
                None => 0,
                Some(parts) => self.conclude(&plan, phase.ending, target, &mut counted, parts, &output),
            };
            let code = self.network.decide(code);
            if code != GO_ON {
                return Ok(code);
            }
            entries = phase.entries;
        }
    }

    /// Visits the roots in another thread: this one takes what is listed meanwhile, which may be more than is kept until then.
    fn start(
        &self,
        plan: &Plan,
        walk: &mut Walk<Sums>,
        collector: &mut Collector<'_>,
        output: &mut Output<'_>,
    ) -> Result<Result<(), CommandError>, JobError> {
        std::thread::scope(|scope| {
            let started = scope.spawn(move || plan.start(walk, collector));
            let mut talk = Ok(false);
            while !started.is_finished() {
                if talk.is_ok() {
                    talk = output.go_on(&self.network);
                } else {
                    // Nobody waits for what is not taken any more.
                    output.close();
                }
                std::thread::sleep(START_PAUSE);
            }
            let started = started.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            talk.map_err(JobError::from)?;
            Ok(started)
        })
    }

    fn resumes(&self) -> bool {
        self.args.walk.resume.is_some()
    }

    /// Returns whether the progress is to be shown. What rank 0 says holds.
    fn is_live(&self) -> bool {
        let listing = self.args.walk.list && io::stdout().is_terminal();
        self.args.progress || io::stderr().is_terminal() && !listing
    }

    /// Loads the checkpoint on rank 0, if the walk is resumed, and returns its units.
    fn load(&self, plan: &mut Plan, counted: &mut Counted) -> Result<Option<Vec<Unit>>, CommandError> {
        let flags = &self.args.walk;
        let Some(file) = flags.resume.as_ref().or(flags.checkpoint.as_ref()) else { return Ok(None) };
        if self.args.algorithm().has_master() {
            let sentence = "cp keeps no checkpoints: it is there for comparison; leave --cp out";
            return Err(CommandError::Usage(sentence.to_owned()));
        }
        if !self.network.is_root() {
            return Ok(None);
        }
        if !self.resumes() {
            return match file.symlink_metadata() {
                Ok(_) => Err(CommandError::Usage(format!(
                    "the file \"{}\" already exists; continue from it with --resume, or remove it",
                    Escaped::of(file)
                ))),
                Err(_) => Ok(None),
            };
        }
        let cannot = |error: &dyn std::fmt::Display| {
            CommandError::Usage(format!("cannot resume from \"{}\": {error}", Escaped::of(file)))
        };
        let loaded = counted.load(file).map_err(|error| cannot(&error))?;
        plan.adopt(&loaded).map_err(|error| cannot(&error))?;
        counted.report = loaded.report;
        Ok(Some(loaded.units))
    }

    /// Builds the plan from the flags, with the number of threads that this rank's processors allow.
    fn plan(&self, numbers: &[u64], masks: &[Mask]) -> Result<Plan, CommandError> {
        let mut args = self.args.walk.clone();
        if self.args.algorithm().has_threads() {
            let shares = Shares { nodes: numbers, masks };
            args.threads = args.threads.or(NonZeroUsize::new(shares.threads(self.network.number() as usize)));
        } else {
            args.threads = Some(NonZeroUsize::MIN);
        }
        let mut plan = Plan::new(&args, self.json)?;
        plan.options.profile = self.args.measurements.is_some();
        if let Some(errors) = &mut plan.errors {
            // A file for each rank: not every shared file system can have several append to one.
            errors.as_mut_os_string().push(format!(".{}", self.network.number()));
        }
        Ok(plan)
    }

    fn agree<T>(&self, done: Result<T, CommandError>) -> Result<T, i32> {
        agree(&self.network, done)
    }

    /// Sends all counts to rank 0, which returns all parts, without the reports.
    fn gather(
        &self,
        mut part: Part,
        counted: &mut Counted,
        output: &mut Output<'_>,
    ) -> Result<Option<Vec<Part>>, JobError> {
        if !self.network.is_root() {
            let links = counted.links.take();
            let sent = links.send(|bytes| {
                self.network.send_part(&[&[LINKS], bytes].concat());
                Ok(())
            });
            let mut partial = counted.shared.partial.lock();
            let sums = partial.send(|bytes| {
                self.network.send_part(&[&[SUMS], bytes].concat());
                Ok(())
            });
            // Directories that are begun remember their numbers.
            partial.clear_sums();
            part.failure = sent.and(sums).err().map(|error| error.to_string());
            if let Some(levels) = part.report.as_ref().and_then(|report| report.levels.as_ref()) {
                let bytes = postcard::to_stdvec(levels).map_err(io::Error::other)?;
                self.network.send_part(&[&[LEVELS], &bytes[..]].concat());
            }
            let bytes = postcard::to_stdvec(&part).map_err(io::Error::other)?;
            self.network.send_part(&[&[LAST], &bytes[..]].concat());
            if let Some(progress) = output.progress_mut() {
                progress.finish_sending()?;
            }
            return Ok(None);
        }
        let mut parts: Vec<Option<Part>> = (0..self.network.size()).map(|_| None).collect();
        let mut sums: Vec<Received> = (0..self.network.size()).map(|_| Received::default()).collect();
        part.report.take().into_iter().for_each(|report| counted.report.merge(report));
        parts[0] = Some(part);
        let sent = |part: &Option<Part>| part.as_ref().map(|part| (part.pieces, part.reports));
        while !output.is_complete(parts.iter().map(sent)) {
            let mut quiet = !output.go_on(&self.network)?;
            while let Some((from, bytes)) = self.network.receive_part() {
                quiet = false;
                let nonsense = || JobError::Nonsense(from);
                match bytes.split_first() {
                    Some((&LINKS, bytes)) => {
                        counted.links.receive(bytes).then_some(()).ok_or_else(nonsense)?
                    }
                    Some((&SUMS, bytes)) => {
                        let mut partial = counted.shared.partial.lock();
                        sums[from as usize].add(&mut partial, bytes).then_some(()).ok_or_else(nonsense)?
                    }
                    Some((&LEVELS, bytes)) => {
                        let levels = Levels::decode(bytes).ok_or_else(nonsense)?;
                        counted.report.levels.as_mut().ok_or_else(nonsense)?.merge(&levels);
                    }
                    Some((&LAST, bytes)) => {
                        let mut part: Part = postcard::from_bytes(bytes).map_err(|_| nonsense())?;
                        for (node, _) in &mut part.begun {
                            *node = sums[from as usize].number(*node).ok_or_else(nonsense)?;
                        }
                        part.report.take().into_iter().for_each(|report| counted.report.merge(report));
                        parts[from as usize] = Some(part);
                    }
                    _ => return Err(nonsense()),
                }
            }
            if quiet {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        Ok(Some(parts.into_iter().flatten().collect()))
    }

    /// Saves or prints the result on rank 0, and returns its decision.
    fn conclude(
        &self,
        plan: &Plan,
        ending: Shutdown,
        target: Option<&Path>,
        counted: &mut Counted,
        mut parts: Vec<Part>,
        output: &Output<'_>,
    ) -> i32 {
        if let Some(error) = output.failure() {
            return end(Err(CommandError::output(error)));
        }
        if let Some((rank, failure)) =
            parts.iter().enumerate().find_map(|(rank, part)| Some((rank, part.failure.as_ref()?)))
        {
            return fail(&format!("rank {rank}: {failure}"));
        }
        if ending == Shutdown::Stopped {
            let interrupted = parts.iter().any(|part| part.interrupted);
            let Some(file) = target else {
                return if interrupted { fail("interrupted") } else { GO_ON };
            };
            let mut standing = StoppedWalk { begun: Vec::new(), units: Vec::new() };
            for part in &mut parts {
                standing.begun.append(&mut part.begun);
                standing.units.append(&mut part.units);
            }
            return match counted.write(file, plan, &standing) {
                Ok(()) if interrupted => {
                    let file = command::quoted(file);
                    fail(&format!("interrupted; run the same command with --resume {file} to continue"))
                }
                Err(error) if interrupted => end(Err(error)),
                Ok(()) => GO_ON,
                // It goes on without; a later one may succeed.
                Err(error) => {
                    eprintln!("nacre-mpi: {error}");
                    GO_ON
                }
            };
        }
        if let Some(progress) = output.progress() {
            progress.conclude(parts.iter().map(|part| &part.figures));
        }
        for (root, within) in &plan.dropped {
            let (root, within) = (Escaped::of(root), Escaped::of(within));
            eprintln!("nacre-mpi: \"{root}\" is visited as part of \"{within}\"");
        }
        let printed =
            plan.finish(counted).and_then(|()| plan.print(&counted.report, &mut io::stdout().lock()));
        if let Err(error) = printed {
            return end(Err(error));
        }
        if let Some(file) = target
            && let Err(error) = std::fs::remove_file(file)
        {
            let file = Escaped::of(file);
            eprintln!(
                "nacre-mpi: cannot remove the checkpoint \"{file}\", which is no longer needed: {error}"
            );
        }
        if let Some(file) = &self.args.measurements {
            let measurements = Measurements::new(
                self.args.algorithm(),
                plan.options.threads.get(),
                parts.iter().map(|part| &part.measured),
            );
            if let Err(error) = measurements.write(file) {
                return fail(&format!("cannot write \"{}\": {error}", Escaped::of(file)));
            }
        }
        let (lines, verdict) = plan.verdict(&counted.report);
        lines.iter().for_each(|line| eprintln!("nacre-mpi: {line}"));
        end(verdict)
    }
}

/// Returns the result if all ranks succeeded; otherwise one of the failed ranks prints its error, and all return the
/// greatest exit code.
pub fn agree<T>(network: &Network<Unit>, done: Result<T, CommandError>) -> Result<T, i32> {
    let code = match &done {
        Ok(_) => 0,
        Err(CommandError::Usage(_)) => 2,
        Err(_) => 1,
    };
    let codes = network.share(code);
    let worst = codes.iter().copied().max().unwrap_or(0);
    let first = codes.iter().position(|code| *code == worst).unwrap_or(0) as u32;
    match done {
        Ok(value) if worst == 0 => Ok(value),
        // Ranks mostly fail for the same reason: one of them says it.
        Err(error) if first == network.number() => {
            eprintln!("nacre-mpi: {error}");
            Err(worst as i32)
        }
        _ => Err(worst as i32),
    }
}

/// Returns the printer of standard output, which rank 0 has.
///
/// # Errors
/// If it cannot be started.
pub fn printer(network: &Network<Unit>) -> Result<Option<Printer>, JobError> {
    if !network.is_root() {
        return Ok(None);
    }
    Ok(Some(Printer::new(io::stdout().as_fd().try_clone_to_owned()?.into())?))
}

/// Prints the job's error, if any, and returns its exit code.
pub fn end(verdict: Result<(), CommandError>) -> i32 {
    match verdict {
        Ok(()) | Err(CommandError::Unread) => 0,
        Err(error @ CommandError::Usage(_)) => {
            fail(&error.to_string());
            2
        }
        Err(error) => fail(&error.to_string()),
    }
}

/// Prints a sentence on standard error, and returns the exit code 1.
pub fn fail(sentence: &str) -> i32 {
    eprintln!("nacre-mpi: {sentence}");
    1
}

/// Returns a number that identifies this node: a hash of its name.
pub fn node_number() -> u64 {
    let name = nix::sys::utsname::uname().map(|name| name.nodename().to_owned()).ok();
    BuildHasherDefault::<DefaultHasher>::default().hash_one(name)
}
