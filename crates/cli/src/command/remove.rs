//! `nacre remove`: removes files and directories, on all processors.

mod list;

use std::io::{IsTerminal, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use nacre_quantity::Escaped;
use nacre_tree::Control;
use nacre_tree::remove::{Counted, Removal, Removed, Restriction, default_threads};
use nacre_walk_cli::Filters;
use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::progress::Ticker;
use crate::session::Context;
use crate::{interrupt, output, quantity};

/// Remove files and directory trees, using all processors
///
/// Links are removed and never followed. Other file systems that are mounted below are not entered. Unless --yes is
/// given, counts first and asks for confirmation, and refuses if it cannot ask. With filters, only the files, links and
/// other entries that they select are removed, and directories stay. The exit code is 0 only if everything to be
/// removed is gone.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Files, links or directories
    #[arg(required_unless_present = "from", value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Remove the files of this list instead, - for standard input: JSON lines from "nacre query --list --json", or
    /// from "nacre walk --list --json --fields path,inode,ctime". Each file is checked first: it stays if it is no longer
    /// the listed one, was changed, or is selected by no filter. Directories stay
    #[arg(
        long,
        value_name = "LIST",
        conflicts_with_all = ["paths", "list", "empty_directories", "depth", "prune", "exclude_from"]
    )]
    from: Option<PathBuf>,
    /// Do not count or ask first
    #[arg(long, short)]
    yes: bool,
    /// Count what would be removed, and change nothing
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
    /// With --dry-run: also print every path; with --json, as one object per line before the totals
    #[arg(long, requires = "dry_run")]
    list: bool,
    /// Number of threads [default: one per processor, at least 8]
    #[arg(long, value_name = "N", value_parser = nacre_walk_cli::parse_threads)]
    threads: Option<NonZeroUsize>,
    /// With filters: also remove directories that are then empty, except those given as arguments
    #[arg(long, requires = "filters")]
    empty_directories: bool,
    #[command(flatten)]
    filters: Filters,
}

/// The number of failures that are printed; `--json` gives more.
const FAILURES_SHOWN: usize = 20;

/// The time limit for counting the entries that an interrupted removal has left.
const COUNTING_MAX: Duration = Duration::from_secs(3);

/// Runs `nacre remove`.
pub fn run(session: &Context, args: Args) -> Result<(), Failure> {
    if let Some(from) = &args.from {
        return list::run(session, &args, from);
    }
    let asks = !args.yes && !args.dry_run;
    let can_ask = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    let threads = args.threads.unwrap_or_else(default_threads);
    let removal =
        Removal::new(&args.paths, threads).map_err(|refusal| Failure::Usage(refusal.to_string()))?;
    let selection = args.filters.selection(nacre_walk_cli::now()).map_err(Failure::Usage)?;
    let removal = match args.filters.is_given() {
        true => removal.restricted(Restriction { selection, empty_directories: args.empty_directories }),
        false => removal,
    };
    if asks && !can_ask {
        let text =
            "nothing was removed: there is no terminal to ask on; give --yes, or check first with --dry-run";
        return Err(Failure::Usage(text.into()));
    }
    let counted = if args.yes { None } else { Some(count(session, &removal, &args)?) };
    if let Some(counted) = counted.filter(|_| args.dry_run) {
        return dry_run(session, &counted);
    }
    if let Some(counted) = counted
        && !confirmed(&args, &counted)?
    {
        return Err(Failure::Failed("nothing was removed".into()));
    }
    let total = counted.map(|counted| counted.entries);
    let ticker = Ticker::entries(total);
    let removed = interrupt::stopping(
        || removal.control().stop(),
        || ticker.during(|| removal.entries(), || removal.run()),
    )?;
    report(session, &removal, &removed)
}

/// Counts the entries to be removed, and lists them if asked to.
fn count(session: &Context, removal: &Removal, args: &Args) -> Result<Counted, Failure> {
    let control = Control::default();
    let list = |path: &[u8]| {
        let line = match session.json {
            true => {
                let mut json = Map::new();
                output::put_bytes(&mut json, "path", path);
                format!("{}\n", Value::Object(json)).into_bytes()
            }
            false => [&output::shown(path)[..], b"\n"].concat(),
        };
        // A line that is no longer read stops the listing; flushing at the end reports the error.
        if output::raw(&line).is_err() {
            control.stop();
        }
    };
    let list = args.list.then_some(&list as nacre_tree::remove::List<'_>);
    let counted = interrupt::stopping(|| control.stop(), || removal.count(true, &control, list))?;
    if control.is_stopped() {
        output::flush()?;
        return Err(Failure::Failed("interrupted: nothing was removed".into()));
    }
    Ok(counted)
}

fn described(counted: &Counted) -> String {
    let entries = match counted.entries {
        1 => "1 entry".to_owned(),
        entries => format!("{} entries", quantity::grouped(entries)),
    };
    let directories = match counted.directories {
        1 => "1 directory".to_owned(),
        directories => format!("{} directories", quantity::grouped(directories)),
    };
    let files = quantity::count(counted.files, "file");
    format!("{entries}: {directories}, {files} of {}", quantity::size(counted.bytes))
}

fn dry_run(session: &Context, counted: &Counted) -> Result<(), Failure> {
    if session.json {
        let json = json!({
            "dry_run": true, "entries": counted.entries, "directories": counted.directories,
            "files": counted.files, "bytes": counted.bytes, "errors": counted.errors,
        });
        output::line(&json.to_string())?;
    } else {
        output::line(&format!("would remove {}", described(counted)))?;
    }
    match counted.errors {
        0 => Ok(()),
        errors => Err(Failure::Failed(format!("{} could not be examined", quantity::count(errors, "path")))),
    }
}

/// Asks for confirmation on a terminal.
fn confirmed(args: &Args, counted: &Counted) -> Result<bool, Failure> {
    let names: Vec<String> =
        args.paths.iter().take(3).map(|path| format!("\"{}\"", Escaped::of(path))).collect();
    let more = if args.paths.len() > 3 { ", …" } else { "" };
    ask(&format!("Remove {}{more} ({})?", names.join(", "), described(counted)))
}

/// Asks a question on the terminal that is answered by yes or no.
pub fn ask(question: &str) -> Result<bool, Failure> {
    let mut terminal = std::io::stderr();
    write!(terminal, "{question} [y/N] ")
        .and_then(|()| terminal.flush())
        .map_err(Failure::io("ask on the terminal"))?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).map_err(Failure::io("read the answer"))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

fn report(session: &Context, removal: &Removal, removed: &Removed) -> Result<(), Failure> {
    let errors = removed.failures.count();
    let left = removed.stopped.then(|| left(removal));
    if session.json {
        let mut json = json!({
            "removed": removed.entries, "directories": removed.directories, "errors": errors,
            "interrupted": removed.stopped,
            "first_errors": removed.failures.first().iter().map(failure_json).collect::<Vec<_>>(),
        });
        if let Some((left, all)) = left {
            json["left"] = left.into();
            json["left_is_all"] = all.into();
        }
        output::line(&json.to_string())?;
    } else {
        output::line(&format!("{} removed", entries(removed.entries)))?;
    }
    if let Some((left, all)) = left {
        let at_least = if all { "" } else { "at least " };
        let text = format!(
            "interrupted: {} removed, {at_least}{} left; run the same command again to continue",
            quantity::grouped(removed.entries),
            quantity::grouped(left)
        );
        return Err(Failure::Failed(text));
    }
    if errors == 0 {
        return Ok(());
    }
    complain(&removed.failures);
    Err(Failure::Failed(format!("{} not removed", entries_were(errors))))
}

fn entries(number: u64) -> String {
    if number == 1 { "1 entry".into() } else { format!("{} entries", quantity::grouped(number)) }
}

fn entries_were(number: u64) -> String {
    if number == 1 { "1 entry was".into() } else { format!("{} entries were", quantity::grouped(number)) }
}

/// Counts the entries that an interrupted removal has left. Returns their number, and whether these are all.
fn left(removal: &Removal) -> (u64, bool) {
    let control = Control::default();
    let (done, waiting) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let control = &control;
        scope.spawn(move || {
            if waiting.recv_timeout(COUNTING_MAX) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                control.stop();
            }
        });
        let counted = removal.count(false, control, None);
        drop(done);
        (counted.entries, !control.is_stopped())
    })
}

/// Prints the first failures, each on a line.
pub fn complain(failures: &nacre_tree::EntryErrors) {
    let first = failures.first();
    for failure in first.iter().take(FAILURES_SHOWN) {
        output::complain(&format!("nacre: {failure}"));
    }
    let more = failures.count().saturating_sub(FAILURES_SHOWN as u64);
    if more > 0 {
        output::complain(&format!("nacre: … and {} more", quantity::grouped(more)));
    }
}

/// Returns a failure as JSON.
pub fn failure_json(failure: &nacre_tree::EntryError) -> Value {
    let mut json = Map::new();
    output::put_bytes(&mut json, "path", &failure.path);
    json.insert("attempted".into(), failure.attempted.into());
    json.insert("reason".into(), failure.reason().into());
    if let nacre_tree::Cause::System(errno) = failure.cause {
        json.insert("errno".into(), errno.into());
    }
    Value::Object(json)
}
