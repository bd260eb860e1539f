//! `nacre-mpi copy`, `compare` and `remove`: the work of these commands of `nacre`, done by all ranks of a job.
//!
//! Every rank makes the same plan from the same flags and walks a part of the tree, which the algorithms share out as in
//! [`crate::walk`]. What cannot be done where it is met is done in a later phase. Between two phases all ranks wait for
//! each other, asleep. At the end each rank sends its counts and errors to rank 0, which prints them.

pub mod compare;
pub mod copy;
mod range;
pub mod remove;

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nacre_quantity::{Escaped, grouped};
use nacre_ranks::proximity::Nodes;
use nacre_ranks::{self as algorithm, Algorithm, Shutdown};
use nacre_tree::{Cause, Control, EntryError, EntryErrors};
use nacre_walk::filter::Selection;
use nacre_walk::{Unit, Visitor, Walk};
use nacre_walk_cli::{CommandError, Filters, parse_threads};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::engine::{MESSAGE_BYTES_MAX, message_bytes};
use crate::job::{self, JobError, Until};
use crate::network::Network;
use crate::output::{Forwarder, Output};
use crate::processor::{self, Shares};
use crate::progress::{Figures, Progress, Sample};
use crate::spill::Spill;
use crate::walk::node_number;

/// The flags that these commands have in common.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct Common {
    /// Algorithm that distributes the work among the ranks: drqs, deqs, pa-drqs or h-drqs
    #[arg(
        long,
        value_name = "NAME",
        default_value_t = Algorithm::HDrqs,
        value_parser = parse_algorithm,
        help_heading = "Ranks"
    )]
    pub algorithm: Algorithm,
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Ranks")]
    pub seed: u64,
    /// Threads of each rank, with h-drqs [default: its part of the processors]
    #[arg(long, value_name = "N", value_parser = parse_threads, help_heading = "Ranks")]
    pub threads: Option<NonZeroUsize>,
    /// Show the progress of all ranks on standard error also if that is not a terminal, as under most launchers: a line
    /// every ten seconds, and one at the end
    #[arg(long, help_heading = "Ranks")]
    pub progress: bool,
    /// Write the errors of each rank, up to a thousand, to a file: FILE.0, FILE.1 and so on, by the number of the rank
    #[arg(long, value_name = "FILE", help_heading = "Ranks")]
    pub errors: Option<PathBuf>,
    #[command(flatten)]
    pub filters: Filters,
}

/// Parses the name of an algorithm without a master.
fn parse_algorithm(name: &str) -> Result<Algorithm, String> {
    match name.parse::<Algorithm>() {
        Ok(algorithm) if algorithm.has_master() => {
            Err("cp is there for comparison, in walks: choose one of drqs, deqs, pa-drqs, h-drqs".to_owned())
        }
        parsed => parsed.map_err(|error| error.to_string()),
    }
}

/// The number of errors that are printed; `--json` gives more.
const SHOWN: usize = 20;

/// The maximum number of errors in JSON.
const FIRST_MAX: usize = 1000;

/// The maximum number of errors that rank 0 remembers, to recognise those that several ranks have met.
const KNOWN_MAX: usize = 20_000;

/// The size of the pieces in which lines are sent to rank 0, in bytes.
const PIECE_BYTES: usize = 32 << 10;

/// The maximum number of units that are sent to other ranks at once; of those with long paths there are fewer.
const PORTION: usize = 4096;

/// The pause of a rank that waits for others.
const PAUSE: Duration = Duration::from_millis(1);

/// One rank of the job.
pub struct Rank<'a> {
    network: Network<Unit>,
    interrupted: &'a AtomicBool,
    json: bool,
}

/// Runs a command, and returns the exit code of this rank.
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
    /// Returns the options of the algorithm, and the number of this rank's threads.
    fn plan(&self, common: &Common) -> (algorithm::Options, NonZeroUsize) {
        let numbers = self.network.share(node_number());
        let masks = self.network.share_masks(&processor::mask());
        let mut options = algorithm::Options::new(common.algorithm, self.network.size(), common.seed);
        options.nodes = Arc::new(Nodes::new(&numbers));
        if !common.algorithm.has_threads() {
            return (options, NonZeroUsize::MIN);
        }
        let shares = Shares { nodes: &numbers, masks: &masks };
        let own = NonZeroUsize::new(shares.threads(self.network.number() as usize));
        (options, common.threads.or(own).unwrap_or(NonZeroUsize::MIN))
    }

    /// Returns what the filters select; ages count from the same moment on all ranks.
    fn selection(&self, common: &Common) -> Result<Result<Selection, CommandError>, JobError> {
        let now = self.network.same(&nacre_walk_cli::now())?;
        Ok(common.filters.selection(now).map_err(CommandError::Usage))
    }

    /// Creates the file of this rank's errors, if it is wanted: what cannot be written later is not begun.
    fn error_file(&self, common: &Common) -> Result<Option<File>, CommandError> {
        let Some(file) = &common.errors else { return Ok(None) };
        let mut file = file.clone();
        file.as_mut_os_string().push(format!(".{}", self.network.number()));
        match File::create(&file) {
            Ok(created) => Ok(Some(created)),
            Err(error) => {
                let file = Escaped::of(&file);
                Err(CommandError::Usage(format!("cannot write errors to \"{file}\": {error}")))
            }
        }
    }

    /// Has the progress shown, if rank 0 says so.
    fn show_progress<'a>(
        &self,
        common: &Common,
        output: &mut Output<'a>,
        sample: Sample<'a>,
    ) -> Result<(), JobError> {
        if self.network.same(&(common.progress || io::stderr().is_terminal()))? {
            output.show_progress(Progress::new(sample, self.network.size()));
        }
        Ok(())
    }

    /// Walks with all ranks, each with its own part.
    fn walk_together<V: Visitor>(
        &mut self,
        (walk, visitors): (&mut Walk<V::State>, &mut [V]),
        options: &algorithm::Options,
        output: &mut Output<'_>,
        lines: Option<&Lines>,
        control: &Control,
    ) -> Result<Shutdown, JobError> {
        let engine = walk.queue().clone();
        let threads = || {
            if let Some(lines) = lines {
                lines.begin();
            }
            walk.run(visitors);
            if let Some(lines) = lines {
                lines.flush();
            }
        };
        let until = Until { interrupted: self.interrupted, checkpoint_at: None, stopped: &|| control.stop() };
        let phase = job::run_phase(&mut self.network, &engine, threads, options, Vec::new(), output, &until)?;
        Ok(phase.ending)
    }

    /// Returns whether `mine` is true on any rank. All ranks wait here for each other, asleep.
    fn any(&self, output: &mut Output<'_>, mine: bool) -> Result<bool, JobError> {
        if !self.network.is_root() {
            self.network.send_part(&[u8::from(mine)]);
            return Ok(self.network.decide(0) != 0);
        }
        let (mut any, mut waiting) = (mine, self.network.size() - 1);
        while waiting > 0 {
            let mut quiet = !self.talk(output)?;
            while waiting > 0
                && let Some((_, bytes)) = self.network.receive_part()
            {
                any |= bytes == [1_u8];
                waiting -= 1;
                quiet = false;
            }
            if quiet && waiting > 0 {
                std::thread::sleep(PAUSE);
            }
        }
        Ok(self.network.decide(i32::from(any)) != 0)
    }

    /// Sends each unit to the rank that `to` gives, and receives those of this rank.
    fn distribute(
        &self,
        units: &mut Spill,
        own: &mut Spill,
        to: impl Fn(&Unit) -> u32,
    ) -> Result<(), JobError> {
        let mut ready: Vec<(u32, Vec<u8>)> = Vec::new();
        let next = || -> Result<Option<(u32, Vec<u8>)>, JobError> {
            if ready.is_empty() {
                let mut by_rank: BTreeMap<u32, Vec<Unit>> = BTreeMap::new();
                let (mut portion, mut bytes) = (0, 0);
                while portion < PORTION
                    && bytes < MESSAGE_BYTES_MAX
                    && let Some(unit) = units.pop()?
                {
                    portion += 1;
                    bytes += message_bytes(&unit);
                    by_rank.entry(to(&unit)).or_default().push(unit);
                }
                for (rank, units) in by_rank {
                    ready.push((rank, postcard::to_stdvec(&units).map_err(io::Error::other)?));
                }
            }
            Ok(ready.pop())
        };
        let receive = |from: u32, bytes: Vec<u8>| -> Result<(), JobError> {
            let units: Vec<Unit> = postcard::from_bytes(&bytes).map_err(|_| JobError::Nonsense(from))?;
            for unit in units {
                own.push(unit)?;
            }
            Ok(())
        };
        self.network.exchange(next, receive)
    }

    /// Does work of this rank in another thread, while this one communicates. A signal that asks the program to end stops
    /// it.
    fn alongside<T: Send>(
        &self,
        output: &mut Output<'_>,
        control: &Control,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, JobError> {
        let done = std::thread::scope(|scope| {
            let work = scope.spawn(work);
            let mut talk = Ok(());
            while !work.is_finished() {
                if self.interrupted.load(Ordering::Relaxed) {
                    control.stop();
                }
                if talk.is_ok() {
                    talk = self.talk(output).map(drop);
                }
                std::thread::sleep(PAUSE);
            }
            let done = work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            talk.map(|()| done)
        })?;
        // What it has printed is on its way before rank 0 is told how much that is.
        while self.talk(output)? || !output.is_empty() {
            std::thread::sleep(PAUSE);
        }
        Ok(done)
    }

    /// Sends, prints and shows what there is, without waiting, and returns whether there was output.
    fn talk(&self, output: &mut Output<'_>) -> Result<bool, JobError> {
        let busy = output.go_on(&self.network)?;
        output.report_progress(&self.network, || 0, Instant::now())?;
        Ok(busy)
    }

    /// Sends this rank's counts and errors to rank 0, which returns those of all ranks. The rank's own errors are written to
    /// `errors`, if that is given.
    fn gather(
        &mut self,
        part: Part,
        errors: Option<File>,
        output: &mut Output<'_>,
    ) -> Result<Option<Totals>, JobError> {
        if let Some(mut errors) = errors {
            errors.write_all(&part.failures.lines(self.json))?;
        }
        let part = Part {
            pieces: output.sent(),
            reports: output.progress().map_or(0, Progress::sent),
            figures: output.progress().map(Progress::figures),
            ..part
        };
        if !self.network.is_root() {
            self.network.send_part(&postcard::to_stdvec(&part).map_err(io::Error::other)?);
            if let Some(progress) = output.progress_mut() {
                progress.finish_sending()?;
            }
            return Ok(None);
        }
        let mut parts: Vec<Option<Part>> = (0..self.network.size()).map(|_| None).collect();
        parts[0] = Some(part);
        let sent = |part: &Option<Part>| part.as_ref().map(|part| (part.pieces, part.reports));
        while !output.is_complete(parts.iter().map(sent)) {
            let mut quiet = !output.go_on(&self.network)?;
            while let Some((from, bytes)) = self.network.receive_part() {
                let part = postcard::from_bytes(&bytes).map_err(|_| JobError::Nonsense(from))?;
                parts[from as usize] = Some(part);
                quiet = false;
            }
            if quiet {
                std::thread::sleep(PAUSE);
            }
        }
        let parts: Vec<Part> = parts.into_iter().flatten().collect();
        if let Some(progress) = output.progress_mut() {
            progress.clear();
            progress.conclude(parts.iter().filter_map(|part| part.figures.as_ref()));
        }
        let mut totals = Totals::default();
        for part in parts {
            totals.add(part);
        }
        Ok(Some(totals))
    }
}

/// The result of a rank.
#[derive(Default, Serialize, Deserialize)]
struct Part {
    /// The counts, of which each command knows the meaning.
    counts: Vec<u64>,
    failures: Faults,
    /// The entries that were left out on purpose.
    notes: Faults,
    interrupted: bool,
    /// The number of pieces of output, and of reports of the progress, that rank 0 must have received.
    pieces: u64,
    reports: u64,
    figures: Option<Figures>,
}

/// The errors of a rank.
#[derive(Default, Serialize, Deserialize)]
struct Faults {
    count: u64,
    first: Vec<Fault>,
}

impl Faults {
    fn of(errors: &EntryErrors) -> Faults {
        Faults { count: errors.count(), first: errors.first().into_iter().map(Fault::from).collect() }
    }

    /// Returns a line for each, as text or as JSON.
    fn lines(&self, json: bool) -> Vec<u8> {
        let lines = self.first.iter().map(|fault| match json {
            true => format!("{}\n", fault.json()),
            false => format!("{fault}\n"),
        });
        lines.collect::<String>().into_bytes()
    }
}

/// An error, as it is sent to rank 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Fault {
    path: Vec<u8>,
    attempted: String,
    reason: String,
    errno: Option<i32>,
}

impl From<EntryError> for Fault {
    fn from(error: EntryError) -> Fault {
        let errno = if let Cause::System(errno) = error.cause { Some(errno) } else { None };
        let (attempted, reason) = (error.attempted.to_owned(), error.reason());
        Fault { path: error.path, attempted, reason, errno }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} \"{}\": {}", self.attempted, Escaped(&self.path), self.reason)
    }
}

impl Fault {
    fn json(&self) -> Value {
        let mut json = Map::new();
        put_path(&mut json, "path", &self.path);
        json.insert("attempted".to_owned(), self.attempted.as_str().into());
        json.insert("reason".to_owned(), self.reason.as_str().into());
        if let Some(errno) = self.errno {
            json.insert("errno".to_owned(), errno.into());
        }
        Value::Object(json)
    }
}

/// The errors of all ranks. Those that several ranks have met are counted once.
#[derive(Default)]
struct AllFaults {
    count: u64,
    first: Vec<Fault>,
    known: HashSet<Fault>,
}

impl AllFaults {
    fn add(&mut self, faults: Faults) {
        self.count += faults.count;
        for fault in faults.first {
            if self.known.contains(&fault) {
                self.count -= 1;
            } else if self.known.len() < KNOWN_MAX {
                if self.first.len() < FIRST_MAX {
                    self.first.push(fault.clone());
                }
                self.known.insert(fault);
            }
        }
    }

    /// Prints the first ones, each on a line.
    fn complain(&self) {
        for fault in self.first.iter().take(SHOWN) {
            eprintln!("nacre-mpi: {fault}");
        }
        let more = self.count.saturating_sub(SHOWN as u64);
        if more > 0 {
            eprintln!("nacre-mpi: … and {} more", grouped(more));
        }
    }

    fn json(&self) -> Vec<Value> {
        self.first.iter().map(Fault::json).collect()
    }
}

/// The results of all ranks.
#[derive(Default)]
struct Totals {
    counts: Vec<u64>,
    failures: AllFaults,
    notes: AllFaults,
    interrupted: bool,
}

impl Totals {
    fn add(&mut self, part: Part) {
        self.counts.resize(self.counts.len().max(part.counts.len()), 0);
        for (sum, count) in self.counts.iter_mut().zip(part.counts) {
            *sum += count;
        }
        self.failures.add(part.failures);
        self.notes.add(part.notes);
        self.interrupted |= part.interrupted;
    }

    /// Returns a sum; 0 for one that no rank has sent.
    fn count(&self, place: usize) -> u64 {
        self.counts.get(place).copied().unwrap_or(0)
    }
}

/// Lines of a rank's threads, which are sent to rank 0 in pieces.
struct Lines {
    pending: Mutex<(Vec<u8>, Forwarder)>,
    /// False until another thread takes what is sent: before, lines are kept, as whoever sends them would wait for itself.
    taken: AtomicBool,
}

impl Lines {
    fn new(forwarder: Forwarder) -> Lines {
        Lines { pending: Mutex::new((Vec::new(), forwarder)), taken: AtomicBool::new(false) }
    }

    /// Has lines sent from now on; called by a thread beside the one that communicates.
    fn begin(&self) {
        self.taken.store(true, Ordering::Relaxed);
    }

    /// Prints a whole line.
    fn print(&self, line: &[u8]) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.0.extend_from_slice(line);
        if pending.0.len() >= PIECE_BYTES && self.taken.load(Ordering::Relaxed) {
            send(&mut pending);
        }
    }

    /// Sends what was printed; called by the threads that print, as it may wait for the one that communicates.
    fn flush(&self) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if !pending.0.is_empty() {
            send(&mut pending);
        }
    }
}

fn send((pending, forwarder): &mut (Vec<u8>, Forwarder)) {
    // An output that was closed is told by its other end.
    let _ = forwarder.write_all(pending);
    pending.clear();
}

/// Returns the line of a path: as JSON, with `before`, or as text.
fn path_line(before: Option<(&str, &str)>, path: &[u8], json: bool) -> Vec<u8> {
    if json {
        let mut map = Map::new();
        if let Some((name, value)) = before {
            map.insert(name.to_owned(), value.into());
        }
        put_path(&mut map, "path", path);
        return format!("{}\n", Value::Object(map)).into_bytes();
    }
    let before = before.map_or_else(String::new, |(_, value)| format!("{value}\t"));
    [before.as_bytes(), path, b"\n"].concat()
}

/// Adds a path to a JSON object: as text, or in Base64 if it is not UTF-8.
fn put_path(map: &mut Map<String, Value>, name: &str, path: &[u8]) {
    match std::str::from_utf8(path) {
        Ok(text) => map.insert(name.to_owned(), text.into()),
        Err(_) => map.insert(format!("{name}_base64"), STANDARD.encode(path).into()),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_several_ranks_have_met_counts_once() {
        let fault = |path: &str| Fault {
            path: path.into(),
            attempted: "cannot open the directory".to_owned(),
            reason: "no".to_owned(),
            errno: Some(13),
        };
        let mut all = AllFaults::default();
        all.add(Faults { count: 3, first: vec![fault("a"), fault("b"), fault("a")] });
        // A rank may have more errors than it sends.
        all.add(Faults { count: 10, first: vec![fault("b"), fault("c")] });
        assert_eq!((all.count, all.first), (11, vec![fault("a"), fault("b"), fault("c")]));
    }
}
