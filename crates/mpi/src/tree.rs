//! `nacre-mpi copy`, `compare` and `remove`: the work of `nacre copy`, `compare` and `remove`, done by all ranks of a job.
//!
//! Every rank makes the same plan from the same flags, and walks a part of the source; the algorithm shares out the walk.
//! What cannot be done by the rank that meets it is done in further stages: see [`nacre_tree::Share`].

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use std::{io, io::Write};

use nacre_ranks::hybrid::SharedQueue;
use nacre_ranks::proximity::Nodes;
use nacre_ranks::{self as algorithm, Algorithm, Shutdown};
use nacre_tree::copy::{Aspects, Copy, Difference, Differing, Options, RangeCopier};
use nacre_tree::remove::{Removal, Restriction};
use nacre_tree::{EntryErrors, Share, Stage};
use nacre_walk::report::partial::{Partial, Received};
use nacre_walk::{Unit, Visitor, Walk};
use nacre_walk_cli::{CommandError, Filters, parse_threads};
use serde::{Deserialize, Serialize};

use crate::job::{self, JobError, Until};
use crate::network::Network;
use crate::output::{Output, Printer};
use crate::processor::{self, Shares};
use crate::walk::{agree, fail, node_number};

/// The flags of all these commands.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct Common {
    /// Algorithm that shares out the work among the ranks: drqs, deqs, pa-drqs or h-drqs
    #[arg(long, value_name = "NAME", default_value_t = Algorithm::HDrqs, value_parser = parse_algorithm, help_heading = "Ranks")]
    algorithm: Algorithm,
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Ranks")]
    seed: u64,
    /// Threads of each rank, for h-drqs [default: its part of the processors]
    #[arg(long, value_name = "N", value_parser = parse_threads, help_heading = "Ranks")]
    threads: Option<NonZeroUsize>,
    #[command(flatten)]
    filters: Filters,
}

/// Parses the name of an algorithm without a master.
pub fn parse_algorithm(name: &str) -> Result<Algorithm, String> {
    match name.parse::<Algorithm>() {
        Ok(algorithm) if algorithm.has_master() => {
            Err("it is there for the study alone: choose one of drqs, deqs, pa-drqs, h-drqs".to_owned())
        }
        parsed => parsed.map_err(|error| error.to_string()),
    }
}

/// Copy a directory with everything in it, by all ranks of this job
///
/// The destination is the copy itself; an interrupted copy goes on with the same command. See nacre copy. Files larger than
/// a chunk are shared out by ranges.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct CopyArgs {
    /// A directory
    source: PathBuf,
    /// The copy, or DIRECTORY/ to make it in
    destination: PathBuf,
    /// Compare contents, instead of sizes and times, to find out what differs
    #[arg(long)]
    checksum: bool,
    /// Replace links and files that are where a directory has to be, and devices, pipes and sockets that are where
    /// something else has to be
    #[arg(long, short)]
    force: bool,
    /// Make every file durable before it gets its name, and everything before the job ends
    #[arg(long)]
    fsync: bool,
    /// Go on in other file systems that are mounted below the source
    #[arg(long)]
    cross_mounts: bool,
    /// Do without extended attributes and ACLs
    #[arg(long)]
    no_xattrs: bool,
    /// Remove what is at the destination and not in the source; needs --yes
    #[arg(long, conflicts_with = "filters", requires = "yes")]
    mirror: bool,
    /// With --mirror: yes, remove
    #[arg(long, short, requires = "mirror")]
    yes: bool,
    /// Share out files that are larger than this, in chunks of this size
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_chunk)]
    chunk: u64,
    #[command(flatten)]
    common: Common,
}

/// Compare two directories with everything in them, by all ranks of this job
///
/// Each difference is a line. Exit codes: 0 nothing differs; 1 something differs; 2 something could not be compared. See nacre
/// compare.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct CompareArgs {
    /// A directory
    source: PathBuf,
    /// What it is compared with
    destination: PathBuf,
    /// Compare no owners, modes, times and attributes
    #[arg(long, conflicts_with = "metadata_only")]
    contents_only: bool,
    /// Read no contents: files of the same size and time are taken for the same
    #[arg(long)]
    metadata_only: bool,
    /// Go on in other file systems that are mounted below the source
    #[arg(long)]
    cross_mounts: bool,
    /// Do without extended attributes and ACLs
    #[arg(long)]
    no_xattrs: bool,
    #[command(flatten)]
    common: Common,
}

/// Remove files and directories with everything in them, by all ranks of this job
///
/// It does not ask: see nacre walk for what is there. With filters only what they select is removed, and directories stay.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct RemoveArgs {
    /// Files, links or directories
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Yes, remove: a job has nobody to ask
    #[arg(long, short)]
    yes: bool,
    /// With filters: remove directories too that are empty then, but for those that are named
    #[arg(long, requires = "filters")]
    empty_directories: bool,
    #[command(flatten)]
    common: Common,
}

fn parse_chunk(text: &str) -> Result<u64, String> {
    match nacre_quantity::parse_size(text)? {
        size if size < 4096 => Err("a chunk has at least 4096 bytes".to_owned()),
        size => Ok(size),
    }
}

/// One rank of the job.
pub struct Rank<'a> {
    network: Network<Unit>,
    interrupted: &'a AtomicBool,
    json: bool,
}

/// The largest piece in which ranks send each other what they have collected, in bytes.
const PIECE_BYTES: usize = 1 << 20;

/// The number of large files that are shared out at a time.
const FILES_MAX: usize = 256;

/// The number of names that are handed to the threads at a time.
const NAMES_MAX: usize = 4096;

/// The errors of a rank, as it sends them to rank 0.
#[derive(Default, Serialize, Deserialize)]
struct Faults {
    count: u64,
    first: Vec<String>,
}

/// The number of errors that are printed.
const SHOWN: usize = 20;

impl Faults {
    fn of(errors: &EntryErrors) -> Faults {
        let first = errors.first();
        Faults { count: errors.count(), first: first.iter().take(SHOWN).map(ToString::to_string).collect() }
    }
}

/// Runs one of the commands, and returns the exit code of this rank.
pub fn run(
    network: Network<Unit>,
    json: bool,
    interrupted: &AtomicBool,
    work: impl FnOnce(&mut Rank<'_>) -> Result<i32, JobError>,
) -> i32 {
    let mut rank = Rank { network, interrupted, json };
    match work(&mut rank) {
        Ok(code) => code,
        Err(error) => {
            // Others may wait for this rank for ever: the whole job ends.
            eprintln!("nacre-mpi: rank {}: {error}", rank.network.number());
            rank.network.abort(1)
        }
    }
}

impl Rank<'_> {
    /// Copies a directory.
    ///
    /// # Errors
    /// [`JobError`] if the job cannot go on.
    pub fn copy(&mut self, args: &CopyArgs) -> Result<i32, JobError> {
        let (options, threads) = self.plan(&args.common);
        let made = self.selection(&args.common).and_then(|selection| {
            let options = Options {
                threads,
                chunk_bytes: args.chunk,
                checksum: args.checksum,
                force: args.force,
                fsync: args.fsync,
                cross_mounts: args.cross_mounts,
                extended: !args.no_xattrs,
                mirror: args.mirror,
                selection: Arc::new(selection),
            };
            Copy::new(&args.source, &args.destination, options).map_err(refused).and_then(directories)
        });
        let copy = match agree(&self.network, made) {
            Ok(copy) => copy,
            Err(code) => return Ok(code),
        };
        let begun = if self.network.is_root() { copy.begin_together().map_err(refused) } else { Ok(None) };
        let _lock = match agree(&self.network, begun) {
            Ok(lock) => lock,
            Err(code) => return Ok(code),
        };
        let share = Share::default();
        let mut ended = self.walk_together(&options, |begin, run| {
            copy.run_part(Stage::Parts(&share), begin, |walk, visitors| run(&mut Part { walk, visitors }))
        })?;
        if ended == Shutdown::Finished {
            let linked = std::mem::take(&mut *share.linked.lock());
            let linked = self.redistribute(linked)?;
            ended = self.copy_linked(&copy, &share, linked)?;
        }
        if ended == Shutdown::Finished {
            let large = std::mem::take(&mut *share.large.lock());
            ended = self.copy_large(&copy, large, &options)?;
        }
        if ended == Shutdown::Finished {
            let directories = self.collect(&share)?;
            if self.network.is_root() {
                copy.run_part(Stage::Last(&directories), true, |walk, visitors| {
                    walk.run(visitors);
                })
                .map_err(|refusal| JobError::Io(io::Error::other(refusal.to_string())))?;
            }
            copy.sync().map_err(|refusal| JobError::Io(io::Error::other(refusal.to_string())))?;
        }
        self.report_copy(&copy, ended)
    }

    /// Compares two directories.
    ///
    /// # Errors
    /// [`JobError`] if the job cannot go on.
    pub fn compare(&mut self, args: &CompareArgs) -> Result<i32, JobError> {
        let (options, threads) = self.plan(&args.common);
        let made = self.selection(&args.common).and_then(|selection| {
            let options = Options {
                threads,
                chunk_bytes: 64 << 20,
                checksum: false,
                force: false,
                fsync: false,
                cross_mounts: args.cross_mounts,
                extended: !args.no_xattrs,
                mirror: false,
                selection: Arc::new(selection),
            };
            let made = Copy::for_comparison(&args.source, &args.destination, options);
            made.map_err(refused).and_then(directories)
        });
        let comparison = match agree(&self.network, made) {
            Ok(comparison) => comparison,
            Err(code) => return Ok(code),
        };
        let aspects = Aspects {
            contents: !args.metadata_only,
            metadata: !args.contents_only,
            accessed: false,
            extras: !args.common.filters.is_given(),
            below_missing: false,
        };
        let printer = match self.network.is_root() {
            true => Some(Printer::new(nacre_walk_cli::raw_stdout()?)?),
            false => None,
        };
        let (forwarder, mut output) = Output::new(printer, self.network.size());
        let (forwarder, count, json) = (Mutex::new(forwarder), AtomicU64::new(0), self.json);
        let report = |differing: Differing| {
            count.fetch_add(1, Ordering::Relaxed);
            // A reader that went away is told by the output's other end.
            if let Ok(mut forwarder) = forwarder.lock() {
                let _ = forwarder.write_all(described(&differing, json).as_bytes());
            }
        };
        let share = Share::default();
        let ended = self.walk_with(&options, &mut output, |begin, run| {
            comparison.compare_part((aspects, &report), Stage::Parts(&share), begin, |walk, visitors| {
                run(&mut Part { walk, visitors })
            })
        })?;
        // What others have printed may be under way.
        let sent = self.network.share(output.sent());
        let is_whole = |output: &mut Output| {
            output.is_empty() && (1..sent.len()).all(|rank| output.received(rank as u32) == sent[rank])
        };
        while self.network.is_root() && !is_whole(&mut output) {
            if !output.go_on(&self.network)? {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        if ended == Shutdown::Finished {
            let directories = self.collect(&share)?;
            if self.network.is_root() {
                let report = |differing: Differing| {
                    count.fetch_add(1, Ordering::Relaxed);
                    let _ = io::stdout().lock().write_all(described(&differing, json).as_bytes());
                };
                comparison
                    .compare_part((aspects, &report), Stage::Last(&directories), true, |walk, visitors| {
                        walk.run(visitors);
                    })
                    .map_err(|refusal| JobError::Io(io::Error::other(refusal.to_string())))?;
            }
        }
        let same = self.sum(comparison.counters().verified.load(Ordering::Relaxed));
        let different = self.sum(count.load(Ordering::Relaxed));
        let failures = self.failures(comparison.failures())?;
        let code = match self.network.is_root() {
            true => {
                if json {
                    println!(
                        "{}",
                        serde_json::json!({ "same": same, "different": different, "errors": failures.count })
                    );
                } else if different > 0 || failures.count > 0 {
                    println!("{different} differ, {same} the same");
                }
                failures.first.iter().take(SHOWN).for_each(|line| eprintln!("nacre-mpi: {line}"));
                match (ended, failures.count, different) {
                    (Shutdown::Stopped, ..) => 2.max(fail("interrupted: not everything was compared")),
                    (_, 1.., _) => {
                        2.max(fail(&format!("{} errors; not everything was compared", failures.count)))
                    }
                    (_, _, 0) => 0,
                    _ => 1,
                }
            }
            false => 0,
        };
        Ok(self.network.decide(code))
    }

    /// Removes files and directories.
    ///
    /// # Errors
    /// [`JobError`] if the job cannot go on.
    pub fn remove(&mut self, args: &RemoveArgs) -> Result<i32, JobError> {
        let (options, threads) = self.plan(&args.common);
        let made = self.selection(&args.common).and_then(|selection| {
            let removal = Removal::new(&args.paths, threads);
            let removal = removal.map_err(|refusal| CommandError::Usage(refusal.to_string()))?;
            if !args.yes {
                let text = "nothing was removed: a job has nobody to ask; say --yes";
                return Err(CommandError::Usage(text.to_owned()));
            }
            Ok(match args.common.filters.is_given() {
                true => {
                    removal.restricted(Restriction { selection, empty_directories: args.empty_directories })
                }
                false => removal,
            })
        });
        let removal = match agree(&self.network, made) {
            Ok(removal) => removal,
            Err(code) => return Ok(code),
        };
        let ended = self.walk_together(&options, |begin, run| {
            Ok(removal.run_part(begin, |walk, visitors| run(&mut Part { walk, visitors })))
        })?;
        let mut errors = EntryErrors::default();
        if ended == Shutdown::Finished && self.network.is_root() {
            // Directories that several ranks worked on, what came meanwhile, and what cannot be removed.
            errors = removal.run().failures;
        }
        let removed = self.sum(removal.entries());
        let code = match self.network.is_root() {
            true => {
                let failures = Faults::of(&errors);
                if self.json {
                    println!("{}", serde_json::json!({ "removed": removed, "errors": failures.count }));
                } else {
                    println!("{removed} entries removed");
                }
                failures.first.iter().for_each(|line| eprintln!("nacre-mpi: {line}"));
                match (ended, failures.count) {
                    (Shutdown::Stopped, _) => fail("interrupted: the same command goes on"),
                    (_, 0) => 0,
                    (_, count) => fail(&format!("{count} entries were not removed")),
                }
            }
            false => 0,
        };
        Ok(self.network.decide(code))
    }

    /// Returns the options of the algorithm, and the number of this rank's threads.
    fn plan(&self, common: &Common) -> (algorithm::Options, NonZeroUsize) {
        let numbers = self.network.share(node_number());
        let masks = self.network.share_masks(&processor::mask());
        let mut options = algorithm::Options::new(common.algorithm, self.network.size(), common.seed);
        options.nodes = Arc::new(Nodes::new(&numbers));
        let shares = Shares { nodes: &numbers, masks: &masks };
        let own = NonZeroUsize::new(shares.threads(self.network.number() as usize));
        let threads = match common.algorithm.has_threads() {
            true => common.threads.or(own).unwrap_or(NonZeroUsize::MIN),
            false => NonZeroUsize::MIN,
        };
        (options, threads)
    }

    fn selection(&self, common: &Common) -> Result<nacre_walk::filter::Selection, CommandError> {
        common.filters.selection(nacre_walk_cli::now()).map_err(CommandError::Usage)
    }

    /// Walks with all ranks, without output.
    fn walk_together(
        &mut self,
        options: &algorithm::Options,
        prepare: impl FnOnce(
            bool,
            &mut Runner<'_>,
        ) -> Result<Result<Shutdown, JobError>, nacre_tree::copy::StartError>,
    ) -> Result<Shutdown, JobError> {
        let (_, mut output) = Output::new(None, self.network.size());
        self.walk_with(options, &mut output, prepare)
    }

    /// Walks with all ranks: `prepare` makes this rank's walk, which begins at the root or not, and has it run.
    fn walk_with(
        &mut self,
        options: &algorithm::Options,
        output: &mut Output,
        prepare: impl FnOnce(
            bool,
            &mut Runner<'_>,
        ) -> Result<Result<Shutdown, JobError>, nacre_tree::copy::StartError>,
    ) -> Result<Shutdown, JobError> {
        let begin = self.network.is_root();
        let until = Until { interrupted: self.interrupted, checkpoint_at: None };
        let network = &mut self.network;
        let mut run = |part: &mut dyn Runs| part.run(network, options, output, &until);
        prepare(begin, &mut run).map_err(|refusal| JobError::Io(io::Error::other(refusal.to_string())))?
    }

    /// Gives each rank the names of the files that it is to copy: all names of a file go to the same one.
    fn redistribute(&mut self, names: Vec<(u64, Unit)>) -> Result<Vec<Unit>, JobError> {
        let ranks = self.network.size() as usize;
        let mut by_rank: Vec<Vec<Unit>> = vec![Vec::new(); ranks];
        for (inode, unit) in names {
            // Numbers of one file system are often all even, or the like.
            let hash = inode.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            by_rank[hash as usize % ranks].push(unit);
        }
        self.exchange_units(by_rank)
    }

    fn exchange_units(&mut self, by_rank: Vec<Vec<Unit>>) -> Result<Vec<Unit>, JobError> {
        let mut pieces = Vec::new();
        for mut units in by_rank {
            let mut out = Vec::new();
            while !units.is_empty() {
                let mut bytes = 0;
                let many = units.iter().take_while(|unit| {
                    let before = bytes;
                    bytes += unit.path.len() + 8 * unit.inodes.len() + 16;
                    before < PIECE_BYTES
                });
                let rest = units.split_off(many.count());
                out.push(
                    postcard::to_stdvec(&std::mem::replace(&mut units, rest)).map_err(io::Error::other)?,
                );
            }
            pieces.push(out);
        }
        let mut units = Vec::new();
        for (from, bytes) in self.network.exchange(pieces)? {
            let more: Vec<Unit> = postcard::from_bytes(&bytes).map_err(|_| JobError::Nonsense(from))?;
            units.extend(more);
        }
        Ok(units)
    }

    /// Copies the names that this rank was given.
    fn copy_linked(&mut self, copy: &Copy, share: &Share, names: Vec<Unit>) -> Result<Shutdown, JobError> {
        let interrupted = self.interrupted;
        let done = copy.run_part(Stage::Linked(share), false, |walk, visitors| {
            let queue = walk.queue().clone();
            queue.keep_open();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    for names in names.chunks(NAMES_MAX) {
                        names.iter().for_each(|name| queue.assign(name.clone()));
                        while !queue.wait_idle(Duration::from_millis(100)) {
                            if interrupted.load(Ordering::Relaxed) {
                                return queue.stop();
                            }
                        }
                    }
                    queue.close();
                });
                walk.run(visitors);
            });
        });
        done.map_err(|refusal| JobError::Io(io::Error::other(refusal.to_string())))?;
        let stopped = self.sum(u64::from(interrupted.load(Ordering::Relaxed)));
        Ok(if stopped == 0 { Shutdown::Finished } else { Shutdown::Stopped })
    }

    /// Copies large files by ranges, which the algorithm shares out among all ranks.
    fn copy_large(
        &mut self,
        copy: &Copy,
        large: Vec<Unit>,
        options: &algorithm::Options,
    ) -> Result<Shutdown, JobError> {
        let mut to_root: Vec<Vec<Unit>> = vec![Vec::new(); self.network.size() as usize];
        to_root[0] = large;
        let files = self.exchange_units(to_root)?;
        let mut files = files.chunks(FILES_MAX);
        loop {
            let some = files.next().unwrap_or_default();
            if self.network.decide(i32::from(!some.is_empty())) == 0 {
                return Ok(Shutdown::Finished);
            }
            let (mut ranges, mut records) = (Vec::new(), Vec::new());
            for file in some {
                let (chunks, record) = copy.begin_ranges(file);
                ranges.extend(chunks.into_iter().map(|chunk| Unit { position: Some(chunk), ..file.clone() }));
                records.extend(record);
            }
            // Units are given away from the front and taken from the back.
            let queue = SharedQueue::new(ranges);
            let threads = || {
                std::thread::scope(|scope| {
                    for _ in 0..copy.threads().get() {
                        scope.spawn(|| {
                            let mut state = RangeCopier::default();
                            while let Some(unit) = queue.begin(false) {
                                copy.copy_range(&unit, &mut state);
                                queue.finish([]);
                            }
                        });
                    }
                });
            };
            let until = Until { interrupted: self.interrupted, checkpoint_at: None };
            let ended = job::run_shared(&mut self.network, &queue, threads, options, &until)?;
            drop(records);
            if ended == Shutdown::Stopped {
                return Ok(ended);
            }
            some.iter().for_each(|file| copy.end_ranges(file));
        }
    }

    /// Brings the directories that several ranks have worked on to rank 0.
    fn collect(&mut self, share: &Share) -> Result<Partial, JobError> {
        let mut pieces = vec![Vec::new(); self.network.size() as usize];
        share.directories.lock().send(|bytes| {
            pieces[0].push(bytes.to_vec());
            Ok(())
        })?;
        let mut received: Vec<Received> = (0..self.network.size()).map(|_| Received::default()).collect();
        let mut all = Partial::default();
        for (from, bytes) in self.network.exchange(pieces)? {
            if !received[from as usize].add(&mut all, &bytes) {
                return Err(JobError::Nonsense(from));
            }
        }
        Ok(all)
    }

    /// Adds up a number over all ranks.
    fn sum(&self, number: u64) -> u64 {
        self.network.share(number).iter().sum()
    }

    /// Brings the errors of all ranks to rank 0.
    fn failures(&mut self, errors: &EntryErrors) -> Result<Faults, JobError> {
        let mut pieces = vec![Vec::new(); self.network.size() as usize];
        pieces[0].push(postcard::to_stdvec(&Faults::of(errors)).map_err(io::Error::other)?);
        let mut all = Faults::default();
        for (from, bytes) in self.network.exchange(pieces)? {
            let more: Faults = postcard::from_bytes(&bytes).map_err(|_| JobError::Nonsense(from))?;
            all.count += more.count;
            all.first.extend(more.first);
        }
        Ok(all)
    }

    fn report_copy(&mut self, copy: &Copy, ended: Shutdown) -> Result<i32, JobError> {
        let counters = copy.counters();
        let of = |counter: &AtomicU64| self.sum(counter.load(Ordering::Relaxed));
        let [directories, copied, linked, unchanged, removed, vanished, bytes] = [
            of(&counters.directories),
            of(&counters.copied),
            of(&counters.linked),
            of(&counters.unchanged),
            of(&counters.removed),
            of(&counters.vanished),
            of(&counters.bytes_copied),
        ];
        let left_out = self.failures(copy.notes())?;
        let failures = self.failures(copy.failures())?;
        let mut code = 0;
        if self.network.is_root() {
            if self.json {
                let json = serde_json::json!({
                    "directories": directories, "copied": copied, "linked": linked, "unchanged": unchanged,
                    "removed": removed, "vanished": vanished, "bytes": bytes, "left_out": left_out.count,
                    "errors": failures.count, "interrupted": ended == Shutdown::Stopped,
                });
                println!("{json}");
            } else {
                let others = copied + linked;
                println!(
                    "{directories} directories, {others} others copied ({bytes} bytes), {unchanged} unchanged, {removed} removed"
                );
            }
            let lines = left_out.first.iter().take(SHOWN).chain(failures.first.iter().take(SHOWN));
            lines.for_each(|line| eprintln!("nacre-mpi: {line}"));
            code = match (ended, failures.count) {
                (Shutdown::Stopped, _) => {
                    fail("interrupted: the same command goes on where this one stopped")
                }
                (_, 0) => 0,
                (_, count) => fail(&format!("{count} errors; the copy is not complete")),
            };
        }
        Ok(self.network.decide(code))
    }
}

type Runner<'a> = dyn FnMut(&mut dyn Runs) -> Result<Shutdown, JobError> + 'a;

/// A walk that is ready to run with the other ranks.
trait Runs {
    fn run(
        &mut self,
        network: &mut Network<Unit>,
        options: &algorithm::Options,
        output: &mut Output,
        until: &Until<'_>,
    ) -> Result<Shutdown, JobError>;
}

struct Part<'a, V: Visitor> {
    walk: &'a mut Walk<V::State>,
    visitors: &'a mut [V],
}

impl<V: Visitor> Runs for Part<'_, V> {
    fn run(
        &mut self,
        network: &mut Network<Unit>,
        options: &algorithm::Options,
        output: &mut Output,
        until: &Until<'_>,
    ) -> Result<Shutdown, JobError> {
        let engine = self.walk.queue().clone();
        let threads = || {
            self.walk.run(self.visitors);
        };
        let phase = job::run_phase(network, &engine, threads, options, Vec::new(), output, until)?;
        Ok(phase.ending)
    }
}

fn refused(refusal: nacre_tree::copy::StartError) -> CommandError {
    CommandError::Usage(refusal.to_string())
}

fn directories(copy: Copy) -> Result<Copy, CommandError> {
    match copy.is_directory() {
        true => Ok(copy),
        false => Err(CommandError::Usage(
            "the source is no directory: nacre copy and nacre compare do that".to_owned(),
        )),
    }
}

fn described(differing: &Differing, json: bool) -> String {
    let path = String::from_utf8_lossy(if differing.path.is_empty() { &b"."[..] } else { &differing.path });
    let difference = differing.difference;
    if json {
        return format!("{}\n", serde_json::json!({ "path": path, "difference": difference.name() }));
    }
    let path = path.escape_debug();
    match difference {
        Difference::Missing => format!("only in the source: {path}\n"),
        Difference::Extra => format!("only in the destination: {path}\n"),
        difference => format!("differ ({}): {path}\n", difference.name()),
    }
}
