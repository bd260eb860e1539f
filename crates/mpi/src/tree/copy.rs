//! `nacre-mpi copy`.
//!
//! 1. All ranks walk the source. Each makes the directories of its part, and copies the files. Left for later are files with
//!    several names, as another rank may have met another name, and files larger than a chunk.
//! 2. The names of files with several names are sent to the ranks that the files' inode numbers stand for, which copy the
//!    first name of each and link the others to it, after step 3 if the file is large.
//! 3. Large files are begun by the ranks that met them. Their ranges are the work that the algorithm shares out, and the
//!    ranks that began them end them. This is done for some files at a time.
//! 4. All ranks walk the source once more, and give directories their metadata. A mirror removes here what only the destination
//!    has.
//! 5. With `--verify`, all ranks walk the source and compare.
//!
//! What is left for later is kept on disk beyond some number. So a rank needs memory for the files that it copies, and for the
//! walk.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nacre_quantity::{count, grouped, size};
use nacre_ranks::{self as algorithm, Shutdown};
use nacre_tree::Control;
use nacre_tree::copy::{Copy, Counters, Differing, LeftOver, Plan, Sight, StartError, Worker};
use nacre_walk::filter::Selection;
use nacre_walk_cli::{CommandError, CopyFlags};
use serde_json::{Map, Value};

use crate::job::JobError;
use crate::output::Output;
use crate::progress::{Figures, Work};
use crate::spill::Spill;
use crate::tree::range::{self, LeftLater, Sharing, lock};
use crate::tree::{Common, Faults, Lines, Part, Rank, Totals, path_line, put_path};
use crate::walk::{agree, end, fail, printer};

/// Copy a directory tree, on all ranks of this job
///
/// DESTINATION is the path of the copy itself. Running the same command again copies only what differs, and so continues
/// a copy that was interrupted or killed. Write DIRECTORY/ to create the copy in a directory, under the source's name. All
/// nodes have to share both file systems. Files larger than a chunk are copied by several ranks. The exit code is 0 only
/// if the copy is complete. A job has nobody to ask, so --mirror needs --yes or --dry-run.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct Args {
    /// The directory to copy
    source: PathBuf,
    /// The path of the copy, or DIRECTORY/ to create it in
    destination: PathBuf,
    #[command(flatten)]
    flags: CopyFlags,
    /// Make the destination a mirror of the source: remove what the source does not have
    #[arg(long, conflicts_with_all = ["filters", "cross_mounts"])]
    mirror: bool,
    /// With --mirror: remove
    #[arg(long, short, requires = "mirror")]
    yes: bool,
    /// Count what would be copied and removed, judging by types, sizes, times, modes and owners, and change nothing
    #[arg(long, conflicts_with_all = ["yes", "verify", "checksum"])]
    dry_run: bool,
    /// With --dry-run: also print every path; with --json, as one object per line before the totals
    #[arg(long, requires = "dry_run")]
    list: bool,
    #[command(flatten)]
    common: Common,
}

/// Runs `nacre-mpi copy`.
///
/// # Errors
/// [`JobError`] if the job cannot continue.
pub fn run(rank: &mut Rank<'_>, args: &Args) -> Result<i32, JobError> {
    let (options, threads) = rank.plan(&args.common);
    let prepared = rank.selection(&args.common)?.and_then(|selection| prepare(args, threads, selection));
    let copy = match agree(&rank.network, prepared) {
        Ok(copy) => copy,
        Err(code) => return Ok(code),
    };
    let errors = match agree(&rank.network, rank.error_file(&args.common)) {
        Ok(errors) => errors,
        Err(code) => return Ok(code),
    };
    if args.dry_run {
        return dry_run(rank, args, (&copy, errors), &options);
    }
    let begun = if rank.network.is_root() { copy.begin_together().map_err(refused) } else { Ok(None) };
    let _lock = match agree(&rank.network, begun) {
        Ok(lock) => lock,
        Err(code) => return Ok(code),
    };
    if let Err(code) = agree(&rank.network, see_the_same(rank, &copy)?) {
        return Ok(code);
    }
    let (counting, bytes_total) = (Control::default(), AtomicU64::new(0));
    let (_, mut output) = Output::new(printer(&rank.network)?, rank.network.size());
    let sample = |pending| Figures::Work(Work { bytes_total: get(&bytes_total), ..progress(&copy, pending) });
    rank.show_progress(&args.common, &mut output, Box::new(sample))?;
    let counts = rank.network.is_root() && output.progress().is_some();
    let ended = std::thread::scope(|scope| {
        if counts {
            // As long as the ranks copy; the time left is shown if it is faster.
            scope.spawn(|| {
                let counted = copy.count(&counting);
                if !counting.is_stopped() {
                    bytes_total.store(counted.bytes, Ordering::Relaxed);
                }
            });
        }
        let _stop = StopAtEnd(&counting);
        let mut job = Job { rank: &mut *rank, copy: &copy, options: &options, threads };
        match job.run(&mut output)? {
            Shutdown::Finished if args.flags.verify => job.verify(&mut output),
            ended => Ok(ended),
        }
    })?;
    let part = Part {
        counts: counts_of(copy.counters()),
        failures: Faults::of(copy.failures()),
        notes: Faults::of(copy.notes()),
        interrupted: ended == Shutdown::Stopped,
        ..Part::default()
    };
    let code = match rank.gather(part, errors, &mut output)? {
        Some(totals) => report(rank, args, &copy, &totals),
        None => 0,
    };
    Ok(rank.network.decide(code))
}

/// Returns the progress of this rank.
pub fn progress(copy: &Copy, pending: u64) -> Work {
    let counters = copy.counters();
    Work {
        entries: get(&counters.entries),
        bytes: get(&counters.bytes),
        errors: copy.failures().count(),
        pending,
        bytes_total: 0,
    }
}

/// Stops counting, however the work ends.
struct StopAtEnd<'a>(&'a Control);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

fn prepare(args: &Args, threads: NonZeroUsize, selection: Selection) -> Result<Copy, CommandError> {
    let options = args.flags.options(threads, args.mirror, selection);
    let copy = directories_only(Copy::new(&args.source, &args.destination, options).map_err(refused)?)?;
    if args.mirror && !args.yes && !args.dry_run {
        let sentence = "nothing was copied or removed: a job has nobody to ask; give --yes, or check first with --dry-run";
        return Err(CommandError::Usage(sentence.to_owned()));
    }
    Ok(copy)
}

/// Returns a refusal as an error of the command.
pub fn refused(refusal: StartError) -> CommandError {
    CommandError::Usage(refusal.to_string())
}

/// Refuses a source that is no directory.
pub fn directories_only(copy: Copy) -> Result<Copy, CommandError> {
    match copy.is_directory() {
        true => Ok(copy.together()),
        false => Err(CommandError::Usage(
            "the source is not a directory: ranks share out trees; for a single file there are nacre copy and nacre compare"
                .to_owned(),
        )),
    }
}

/// Checks that all ranks see the same directories, as they do in file systems that their nodes share.
///
/// # Errors
/// If the network failed.
pub fn see_the_same(rank: &Rank<'_>, copy: &Copy) -> Result<Result<(), CommandError>, JobError> {
    let seen = copy.sights();
    let said = seen.as_ref().ok().map(|sights| sights.map(|sight| (sight.inode, sight.born)));
    let first = rank.network.same(&said)?;
    let first = first.map(|sights| sights.map(|(inode, born)| Sight { inode, born }));
    let number = rank.network.number();
    let are_others = |seen: &[Sight; 2], first: &[Sight; 2]| {
        seen.iter().zip(first).any(|(seen, first)| !seen.may_be(first))
    };
    Ok(match (seen, first) {
        (Err(refusal), _) => Err(refused(refusal)),
        (Ok(seen), Some(first)) if are_others(&seen, &first) => Err(CommandError::Usage(format!(
            "rank {number} sees another source or destination than rank 0: both have to be in file systems that all nodes share"
        ))),
        _ => Ok(()),
    })
}

/// The error of a job whose destination can no longer be used.
pub fn broken(refusal: StartError) -> JobError {
    JobError::Io(io::Error::other(refusal.to_string()))
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// The copy as one rank makes it.
struct Job<'a, 'b> {
    rank: &'a mut Rank<'b>,
    copy: &'a Copy,
    options: &'a algorithm::Options,
    threads: NonZeroUsize,
}

impl Job<'_, '_> {
    fn run(&mut self, output: &mut Output<'_>) -> Result<Shutdown, JobError> {
        let copy = self.copy;
        let left = LeftLater::new();
        let leave = |later: LeftOver| left.add(later);
        let begin = self.rank.network.is_root();
        let (rank, options) = (&mut *self.rank, self.options);
        let ended = copy.copy_part(begin, &leave, |walk, visitors| {
            rank.walk_together((walk, visitors), options, output, None, copy.control())
        });
        let ended = ended.map_err(broken)??;
        let (mut linked, mut large) = left.into_inner()?;
        if ended == Shutdown::Stopped {
            return Ok(ended);
        }
        let mut names = Spill::new();
        let ranks = u64::from(self.rank.network.size());
        self.rank.distribute(&mut linked, &mut names, |name| {
            // Numbers of one file system may all be even, or the like.
            let inode = name.inodes.first().copied().unwrap_or(0);
            ((inode.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % ranks) as u32
        })?;
        let again = LeftLater::new();
        if self.is_stopped(output)? || self.copy_names(names, Some(&again), output)? {
            return Ok(Shutdown::Stopped);
        }
        let (names, mut large_too) = again.into_inner()?;
        for large in [&mut large, &mut large_too] {
            if self.copy_large(large, output)? == Shutdown::Stopped {
                return Ok(Shutdown::Stopped);
            }
        }
        if self.copy_names(names, None, output)? {
            return Ok(Shutdown::Stopped);
        }
        let rank = &mut *self.rank;
        if begin {
            // A mirror may have much to remove there.
            rank.alongside(output, copy.control(), || copy.finish_root())?.map_err(broken)?;
        }
        let ended = copy.finish_part(begin, |walk, visitors| {
            rank.walk_together((walk, visitors), options, output, None, copy.control())
        });
        let ended = ended.map_err(broken)??;
        rank.alongside(output, copy.control(), || copy.sync_part())?;
        // A signal that comes at the end may have kept a rank from making its part durable.
        match self.is_stopped(output)? {
            true => Ok(Shutdown::Stopped),
            false => Ok(ended),
        }
    }

    /// Compares everything with its copy, unless something was not copied.
    fn verify(&mut self, output: &mut Output<'_>) -> Result<Shutdown, JobError> {
        let copy = self.copy;
        let begin = self.rank.network.is_root();
        if self.rank.any(output, copy.failures().count() > 0)? {
            return Ok(Shutdown::Finished);
        }
        if begin {
            self.rank.alongside(output, copy.control(), || copy.verify_root())?.map_err(broken)?;
        }
        let left = LeftLater::new();
        let leave = |later: LeftOver| left.add(later);
        let (rank, options) = (&mut *self.rank, self.options);
        let ended = copy.verify_part(begin, &leave, |walk, visitors| {
            rank.walk_together((walk, visitors), options, output, None, copy.control())
        });
        let ended = ended.map_err(broken)??;
        let (_, mut large) = left.into_inner()?;
        if self.is_stopped(output)? || ended == Shutdown::Stopped {
            return Ok(Shutdown::Stopped);
        }
        let sharing = Sharing { options, threads: self.threads, control: copy.control() };
        let report = |differing: Differing| copy.differs_from_copy(differing);
        range::compare(self.rank, copy, &mut large, sharing, (&report, None), output)
    }

    /// Returns whether the program is to end, which is so for all ranks if it is for one. All ranks wait for each other.
    fn is_stopped(&mut self, output: &mut Output<'_>) -> Result<bool, JobError> {
        let stopped = self.rank.interrupted.load(Ordering::Relaxed) || self.copy.control().is_stopped();
        self.rank.any(output, stopped)
    }

    /// Copies files with several names, of all of which this rank has all names, and returns whether the program is to end.
    /// Large files are left for `later`, if that is given.
    fn copy_names(
        &mut self,
        names: Spill,
        later: Option<&LeftLater>,
        output: &mut Output<'_>,
    ) -> Result<bool, JobError> {
        let copy = self.copy;
        let (names, failed, working) = (Mutex::new(names), Mutex::new(None), AtomicUsize::new(0));
        let next = || {
            let mut names = lock(&names);
            let name = names.pop().unwrap_or_else(|error| {
                *lock(&failed) = Some(error);
                None
            });
            working.fetch_add(usize::from(name.is_some()), Ordering::SeqCst);
            name
        };
        let work = || {
            let _stop = StopOnPanic(copy.control());
            let mut worker = Worker::default();
            loop {
                if let Some(name) = next() {
                    let left = copy.copy_entry(&name.path, later.is_some(), &mut worker);
                    if let (Some(left), Some(later)) = (left, later) {
                        later.add(LeftOver { path: name.path, later: left });
                    }
                    working.fetch_sub(1, Ordering::SeqCst);
                } else if working.load(Ordering::SeqCst) == 0 || copy.control().is_stopped() {
                    break;
                } else if !copy.help(&mut worker) {
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        };
        let threads = self.threads.get();
        let all = || {
            std::thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(work);
                }
            });
        };
        self.rank.alongside(output, copy.control(), all)?;
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(JobError::Io(error)),
            None => self.is_stopped(output),
        }
    }

    /// Copies large files by ranges, which are shared out among all ranks.
    fn copy_large(&mut self, large: &mut Spill, output: &mut Output<'_>) -> Result<Shutdown, JobError> {
        let copy = self.copy;
        let sharing = Sharing { options: self.options, threads: self.threads, control: copy.control() };
        let mut worker = Worker::default();
        while let Some(files) = range::next_files(self.rank, large, output)? {
            let (mut ranges, mut held) = (Vec::new(), Vec::new());
            let begin = || {
                for file in &files {
                    let (missing, record) = copy.begin_ranges(file, &mut worker);
                    ranges.extend(missing);
                    held.extend(record);
                }
            };
            self.rank.alongside(output, copy.control(), begin)?;
            let ended = range::share_out(self.rank, ranges, sharing, output, |range, worker| {
                copy.copy_range(range, worker);
            })?;
            drop(held);
            if ended == Shutdown::Stopped {
                return Ok(ended);
            }
            let end = || files.iter().for_each(|file| copy.end_ranges(file, &mut worker));
            self.rank.alongside(output, copy.control(), end)?;
            if self.is_stopped(output)? {
                return Ok(Shutdown::Stopped);
            }
        }
        Ok(Shutdown::Finished)
    }
}

/// Stops the work if a thread panics: the others would wait for it for ever.
struct StopOnPanic<'a>(&'a Control);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
}

/// The names of the counts that ranks send, in JSON.
const NAMES: [&str; 8] =
    ["directories", "copied", "linked", "unchanged", "removed", "vanished", "bytes", "chunks_resumed"];

/// The place of the number of compared entries, behind those.
const VERIFIED: usize = NAMES.len();

fn counts_of(counters: &Counters) -> Vec<u64> {
    let all = [
        &counters.directories,
        &counters.copied,
        &counters.linked,
        &counters.unchanged,
        &counters.removed,
        &counters.vanished,
        &counters.bytes_copied,
        &counters.chunks_resumed,
        &counters.verified,
    ];
    all.map(get).to_vec()
}

fn report(rank: &Rank<'_>, args: &Args, copy: &Copy, totals: &Totals) -> i32 {
    let errors = totals.failures.count;
    if rank.json {
        let mut map = Map::new();
        put_path(&mut map, "destination", copy.destination().as_os_str().as_bytes());
        for (place, name) in NAMES.iter().enumerate() {
            map.insert((*name).to_owned(), totals.count(place).into());
        }
        let verified: Value = if args.flags.verify { totals.count(VERIFIED).into() } else { Value::Null };
        map.insert("verified".to_owned(), verified);
        map.insert("left_out".to_owned(), totals.notes.count.into());
        map.insert("first_left_out".to_owned(), totals.notes.json().into());
        map.insert("errors".to_owned(), errors.into());
        map.insert("first_errors".to_owned(), totals.failures.json().into());
        map.insert("interrupted".to_owned(), totals.interrupted.into());
        println!("{}", Value::Object(map));
    } else {
        totals.notes.complain();
        let verified = match args.flags.verify {
            true => format!("; {} compared", grouped(totals.count(VERIFIED))),
            false => String::new(),
        };
        println!("{}{verified}", described(totals));
    }
    if totals.interrupted {
        return fail("interrupted: run the same command again to continue");
    }
    if errors == 0 {
        return 0;
    }
    totals.failures.complain();
    fail(&format!("{}; the copy is not complete", count(errors, "error", "errors")))
}

fn described(totals: &Totals) -> String {
    let of = |place| totals.count(place);
    let mut text = format!(
        "{}, {} copied ({}), {} unchanged",
        count(of(0), "directory", "directories"),
        count(of(1) + of(2), "other", "others"),
        size(of(6)),
        grouped(of(3))
    );
    if of(4) > 0 {
        text += &format!(", {} removed", grouped(of(4)));
    }
    if of(5) > 0 {
        text += &format!(", {} vanished meanwhile", grouped(of(5)));
    }
    text
}

/// Finds out what the copy would do, and lists it if asked to.
fn dry_run(
    rank: &mut Rank<'_>,
    args: &Args,
    (copy, errors): (&Copy, Option<File>),
    options: &algorithm::Options,
) -> Result<i32, JobError> {
    let (forwarder, mut output) = Output::new(printer(&rank.network)?, rank.network.size());
    let (lines, planned, json) = (Lines::new(forwarder), Plan::default(), rank.json);
    let report = |differing: Differing| {
        let Some(action) = planned.add(copy, &differing) else { return };
        if args.list {
            let path = if differing.path.is_empty() && !json { &b"."[..] } else { &differing.path[..] };
            lines.print(&path_line(Some(("action", action)), path, json));
        }
    };
    let begin = rank.network.is_root();
    if begin {
        let root = || {
            lines.begin();
            let previewed = copy.preview_root(&report);
            lines.flush();
            previewed
        };
        rank.alongside(&mut output, copy.control(), root)?.map_err(broken)?;
    }
    let ended = copy.preview_part(begin, &report, |walk, visitors| {
        rank.walk_together((walk, visitors), options, &mut output, Some(&lines), copy.control())
    });
    let ended = ended.map_err(broken)??;
    let part = Part {
        interrupted: rank.any(&mut output, copy.control().is_stopped())? || ended == Shutdown::Stopped,
        counts: [&planned.copied, &planned.bytes, &planned.adjusted, &planned.removed, &planned.linked]
            .map(get)
            .to_vec(),
        failures: Faults::of(copy.failures()),
        ..Part::default()
    };
    let Some(totals) = rank.gather(part, errors, &mut output)? else { return Ok(rank.network.decide(0)) };
    if let Some(error) = output.failure() {
        return Ok(rank.network.decide(end(Err(CommandError::output(error)))));
    }
    let (copied, bytes, adjusted, removed) =
        (totals.count(0), totals.count(1), totals.count(2), totals.count(3));
    let (linked, errors) = (totals.count(4), totals.failures.count);
    if rank.json {
        let json = serde_json::json!({
            "dry_run": true, "copied": copied, "bytes": bytes, "linked": linked, "adjusted": adjusted,
            "removed": removed, "errors": errors, "first_errors": totals.failures.json(),
        });
        println!("{json}");
    } else {
        let mut text = format!("would copy {} ({})", count(copied, "entry", "entries"), size(bytes));
        if linked > 0 {
            text += &format!(", link {}", count(linked, "entry", "entries"));
        }
        if adjusted > 0 {
            text += &format!(", adjust the metadata of {}", grouped(adjusted));
        }
        if args.mirror {
            text += &format!(", remove {}", count(removed, "entry", "entries"));
        }
        println!("{text}");
    }
    let code = match (totals.interrupted, errors) {
        (true, _) => fail("interrupted: nothing was copied or removed"),
        (false, 0) => 0,
        (false, _) => {
            totals.failures.complain();
            fail(&format!("{} could not be examined", count(errors, "path", "paths")))
        }
    };
    Ok(rank.network.decide(code))
}
