//! `nacre copy`: copies files and directories with all their attributes, on all processors.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use nacre_quantity::Escaped;
use nacre_tree::copy::{Copy, Counters, Differing, Plan};
use nacre_tree::remove::Counted;
use nacre_tree::{Control, EntryErrors};
use nacre_walk::filter::Selection;
use nacre_walk_cli::{CopyFlags, Filters};
use serde_json::{Map, Value, json};

use crate::command::across::Progress;
use crate::command::across::command::{Request, run as run_across};
use crate::command::remove::{complain, failure_json};
use crate::command::tree_path::in_namespace;
use crate::failure::Failure;
use crate::progress::Ticker;
use crate::session::Context;
use crate::{interrupt, output, quantity};

/// Copy a file or directory tree, using all processors
///
/// DESTINATION is the path of the copy itself. Running the same command again copies only what differs, and so
/// continues an interrupted copy. Write DIRECTORY/ to create the copy in a directory, under the source's name. Owners
/// (as root), modes, times of modification and access, extended attributes, ACLs, links and holes are preserved. Links are
/// never followed. Nothing at the destination is removed, except with --mirror. With filters, only the entries that they
/// select are copied, and the directories that lead to them. The exit code is 0 only if the copy is complete.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The file, link or directory to copy; nacre:/PATH is one in the namespace of the store
    source: PathBuf,
    /// The path of the copy, or DIRECTORY/ to create it in; nacre:/PATH is one in the namespace of the store
    destination: PathBuf,
    #[command(flatten)]
    flags: CopyFlags,
    /// Make the destination a mirror of the source: remove what the source does not have. Asks for confirmation first,
    /// and refuses if it cannot ask
    #[arg(long, conflicts_with = "filters")]
    mirror: bool,
    /// With --mirror: do not ask
    #[arg(long, short, requires = "mirror")]
    yes: bool,
    /// Count what would be copied and removed, judging by types, sizes, times of modification, modes and owners, and
    /// change nothing
    #[arg(long, conflicts_with_all = ["yes", "verify", "checksum"])]
    dry_run: bool,
    /// With --dry-run: also print every path; with --json, as one object per line before the totals
    #[arg(long, requires = "dry_run")]
    list: bool,
    /// Number of threads [default: one per processor]; with the namespace of a store, of files under way [default: 16]
    #[arg(long, value_name = "N", value_parser = nacre_walk_cli::parse_threads)]
    threads: Option<NonZeroUsize>,
    #[command(flatten)]
    filters: Filters,
}

/// Runs `nacre copy`.
pub fn run(session: &Context, args: Args) -> Result<(), Failure> {
    let (from, to) = (in_namespace(&args.source)?, in_namespace(&args.destination)?);
    if from.is_some() || to.is_some() {
        return across(session, &args, (from, to));
    }
    let selection = args.filters.selection(nacre_walk_cli::now()).map_err(Failure::Usage)?;
    let threads = args.threads.or_else(|| std::thread::available_parallelism().ok());
    let options = args.flags.options(threads.unwrap_or(NonZeroUsize::MIN), args.mirror, selection);
    let usage = |refusal: nacre_tree::copy::StartError| Failure::Usage(refusal.to_string());
    let copy = Copy::new(&args.source, &args.destination, options).map_err(usage)?;
    if args.dry_run {
        let planned = plan(session, &copy, &args)?;
        return dry_run(session, copy.failures(), &planned, copy.is_mirror());
    }
    if args.mirror && !args.yes {
        if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
            let text = "nothing was copied or removed: there is no terminal to ask on; give --yes, or check first with --dry-run";
            return Err(Failure::Usage(text.into()));
        }
        let planned = plan(session, &copy, &args)?;
        if get(&planned.removed) > 0 && !confirm(&args, &planned)? {
            return Err(Failure::Failed("nothing was copied or removed".into()));
        }
    }
    let done = interrupt::stopping(
        || copy.control().stop(),
        || {
            shown(&copy, "", || copy.run())?;
            let good = copy.failures().count() == 0 && !copy.control().is_stopped();
            if args.flags.verify && good { shown(&copy, "comparing", || copy.verify()) } else { Ok(()) }
        },
    )?;
    done.map_err(usage)?;
    let outcome = Outcome {
        destination: copy.destination(),
        counters: copy.counters(),
        failures: copy.failures(),
        notes: copy.notes(),
        stopped: copy.control().is_stopped(),
    };
    report(session, &outcome, args.flags.verify)
}

/// Copies to the namespace of a store, or from there.
fn across(
    session: &Context,
    args: &Args,
    (from, to): (Option<OsString>, Option<OsString>),
) -> Result<(), Failure> {
    let selection = Selection::default();
    let threads = args.threads.unwrap_or(NonZeroUsize::MIN);
    let options = args.flags.options(threads, args.mirror, selection);
    let refused = [
        ("--mirror", args.mirror),
        ("--force", options.force),
        ("--fsync", options.fsync),
        ("filters", args.filters.is_given()),
    ];
    if let Some((flag, _)) = refused.iter().find(|(_, given)| *given) {
        return Err(Failure::Usage(format!(
            "{flag} cannot be used with the namespace of a store; mount it with \"nacre mount DIR\", and name paths in DIR"
        )));
    }
    let request = Request {
        source: &args.source,
        destination: &args.destination,
        from,
        to,
        checksum: options.checksum,
        extended: options.extended,
        cross_mounts: options.cross_mounts,
        width: args.threads.map(NonZeroUsize::get),
        verify: args.flags.verify,
        dry_run: args.dry_run,
    };
    let (planned, unwritten, progress) = (Plan::default(), OnceLock::new(), Progress::default());
    let list = |action: &'static str, path: &[u8]| {
        if args.list
            && let Err(error) = list_planned(session.json, action, path)
        {
            // The first error is the cause of the others.
            let _ = unwritten.set(error);
            progress.control.stop();
        }
    };
    interrupt::stopping(
        || progress.control.stop(),
        || run_across(session, &request, &progress, (&planned, &list)),
    )??;
    if let Some(error) = unwritten.into_inner() {
        return Err(error.into());
    }
    let stopped = progress.control.is_stopped();
    if args.dry_run {
        return match stopped {
            true => Err(Failure::Failed("interrupted: nothing was copied or removed".into())),
            false => dry_run(session, &progress.failures, &planned, false),
        };
    }
    let outcome = Outcome {
        destination: &args.destination,
        counters: &progress.counters,
        failures: &progress.failures,
        notes: &progress.notes,
        stopped,
    };
    report(session, &outcome, args.flags.verify)
}

/// Prints what a copy would do with an entry.
fn list_planned(json: bool, action: &str, path: &[u8]) -> std::io::Result<()> {
    let line = match json {
        true => {
            let mut map = Map::new();
            map.insert("action".into(), action.into());
            output::put_bytes(&mut map, "path", path);
            format!("{}\n", Value::Object(map)).into_bytes()
        }
        false => {
            let path = if path.is_empty() { &b"."[..] } else { path };
            [action.as_bytes(), b"\t", &output::shown(path)[..], b"\n"].concat()
        }
    };
    output::raw(&line)
}

/// Finds out what a copy would do, and lists it if asked to.
fn plan(session: &Context, copy: &Copy, args: &Args) -> Result<Plan, Failure> {
    let (planned, unwritten) = (Plan::default(), OnceLock::new());
    let report = |differing: Differing| {
        let Some(action) = planned.add(copy, &differing) else { return };
        if !args.list {
            return;
        }
        if let Err(error) = list_planned(session.json, action, &differing.path) {
            // The first error is the cause of the others.
            let _ = unwritten.set(error);
            copy.control().stop();
        }
    };
    let done = interrupt::stopping(|| copy.control().stop(), || copy.preview(&report))?;
    done.map_err(|refusal| Failure::Usage(refusal.to_string()))?;
    if let Some(error) = unwritten.into_inner() {
        return Err(error.into());
    }
    match copy.control().is_stopped() {
        true => Err(Failure::Failed("interrupted: nothing was copied or removed".into())),
        false => Ok(planned),
    }
}

fn described_plan(planned: &Plan, mirror: bool) -> String {
    let entries = |number| {
        if number == 1 { "1 entry".into() } else { format!("{} entries", quantity::grouped(number)) }
    };
    let copied = format!("copy {} ({})", entries(get(&planned.copied)), quantity::size(get(&planned.bytes)));
    let adjusted = match get(&planned.adjusted) {
        0 => String::new(),
        number => format!(", adjust the metadata of {}", quantity::grouped(number)),
    };
    let linked = match get(&planned.linked) {
        0 => String::new(),
        number => format!(", link {}", entries(number)),
    };
    let removed = if mirror { format!(", remove {}", entries(get(&planned.removed))) } else { String::new() };
    format!("{copied}{linked}{adjusted}{removed}")
}

fn dry_run(session: &Context, failures: &EntryErrors, planned: &Plan, mirror: bool) -> Result<(), Failure> {
    let errors = failures.count();
    if session.json {
        let json = json!({
            "dry_run": true, "copied": get(&planned.copied), "bytes": get(&planned.bytes),
            "linked": get(&planned.linked), "adjusted": get(&planned.adjusted), "removed": get(&planned.removed),
            "errors": errors,
            "first_errors": failures.first().iter().map(failure_json).collect::<Vec<_>>(),
        });
        output::line(&json.to_string())?;
    } else {
        output::line(&format!("would {}", described_plan(planned, mirror)))?;
    }
    match errors {
        0 => Ok(()),
        errors => {
            complain(failures);
            Err(Failure::Failed(format!("{} could not be examined", quantity::count(errors, "path"))))
        }
    }
}

/// Asks for confirmation on a terminal.
fn confirm(args: &Args, planned: &Plan) -> Result<bool, Failure> {
    let (source, destination) = (Escaped::of(&args.source), Escaped::of(&args.destination));
    let question = format!("Mirror \"{source}\" to \"{destination}\" ({})?", described_plan(planned, true));
    crate::command::remove::ask(&question)
}

/// Does work and shows its progress, against a total that is counted meanwhile.
pub fn shown<T>(copy: &Copy, verb: &'static str, work: impl FnOnce() -> T) -> T {
    let (counting, counted) = (Control::default(), OnceLock::<Counted>::new());
    let ticker = Ticker::bytes();
    let show = || {
        std::thread::scope(|scope| {
            if ticker.is_shown() {
                scope.spawn(|| {
                    let total = copy.count(&counting);
                    if !counting.is_stopped() {
                        let _ = counted.set(total);
                    }
                });
            }
            let result = work();
            counting.stop();
            result
        })
    };
    let counters = copy.counters();
    ticker.show_during(
        |bar| {
            let entries = quantity::grouped(get(&counters.entries));
            bar.set_message(format!("{verb} {entries} entries").trim().to_owned());
            if let Some(total) = counted.get()
                && bar.length().is_none()
            {
                Ticker::know(bar, total.bytes);
            }
            bar.set_position(get(&counters.bytes));
        },
        show,
    )
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// The result of a copy.
struct Outcome<'a> {
    destination: &'a Path,
    counters: &'a Counters,
    failures: &'a EntryErrors,
    notes: &'a EntryErrors,
    stopped: bool,
}

fn report(session: &Context, outcome: &Outcome<'_>, verified: bool) -> Result<(), Failure> {
    let Outcome { destination, counters, failures, notes, stopped } = *outcome;
    let errors = failures.count();
    if session.json {
        let list = |failures: &EntryErrors| failures.first().iter().map(failure_json).collect::<Vec<_>>();
        let mut map = Map::new();
        output::put_bytes(&mut map, "destination", destination.as_os_str().as_bytes());
        let json = json!({
            "directories": get(&counters.directories),
            "copied": get(&counters.copied),
            "linked": get(&counters.linked),
            "unchanged": get(&counters.unchanged),
            "removed": get(&counters.removed),
            "vanished": get(&counters.vanished),
            "bytes": get(&counters.bytes_copied),
            "chunks_resumed": get(&counters.chunks_resumed),
            "verified": if verified { Some(get(&counters.verified)) } else { None },
            "left_out": notes.count(),
            "first_left_out": list(notes),
            "errors": errors,
            "first_errors": list(failures),
            "interrupted": stopped,
        });
        if let Value::Object(rest) = json {
            map.extend(rest);
        }
        output::line(&Value::Object(map).to_string())?;
    } else {
        complain(notes);
        output::line(&described(counters, verified))?;
    }
    if stopped {
        let text = "interrupted: run the same command again to continue";
        return Err(Failure::Failed(text.into()));
    }
    if errors == 0 {
        return Ok(());
    }
    complain(failures);
    Err(Failure::Failed(format!("{}; the copy is not complete", quantity::count(errors, "error"))))
}

fn described(counters: &Counters, verified: bool) -> String {
    let directories = match get(&counters.directories) {
        1 => "1 directory".to_owned(),
        number => format!("{} directories", quantity::grouped(number)),
    };
    let copied = get(&counters.copied) + get(&counters.linked);
    let mut text = format!(
        "{directories}, {} copied ({}), {} unchanged",
        quantity::count(copied, "other"),
        quantity::size(get(&counters.bytes_copied)),
        quantity::grouped(get(&counters.unchanged))
    );
    let removed = get(&counters.removed);
    if removed > 0 {
        text.push_str(&format!(", {} removed", quantity::grouped(removed)));
    }
    let vanished = get(&counters.vanished);
    if vanished > 0 {
        text.push_str(&format!(", {} vanished meanwhile", quantity::grouped(vanished)));
    }
    if verified {
        text.push_str(&format!("; {} compared", quantity::grouped(get(&counters.verified))));
    }
    text
}
