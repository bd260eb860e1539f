//! The flags of walks and copies of file trees, and what they ask for: shared by `nacre` and `nacre-mpi`.
//!
//! A [`Plan`] is built from the flags ([`Args`]). A program makes the same plan in each of its processes
//! ([`Plan::begin_at`] the same time), gives its threads [`Plan::collectors`], takes what they have [`Counted`], saves, sends
//! and merges it, and prints with [`Plan::finish`] and [`Plan::print`].

#![forbid(unsafe_code)]

mod args;
mod copies;
mod counted;
mod filters;

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

pub use args::{Args, THREADS_MAX, parse_threads};
pub use copies::{CopyFlags, parse_chunk};
pub use counted::{Counted, StoppedWalk, quoted};
pub use filters::Filters;
use nacre_quantity::Escaped;
use nacre_walk::checkpoint::{Head, Loaded};
use nacre_walk::collect::{Collector, Request};
use nacre_walk::filter::{Filter, Selection};
use nacre_walk::list::{Field, Format, Lister, Output};
use nacre_walk::lustre::LayoutReader;
use nacre_walk::report::{Report, Shape, Shared, Sums, picture, print};
use nacre_walk::{Options, Queue, Source, Time, Walk, WalkError};
use rustix::fs::{AtFlags, CWD, Statx, StatxFlags, makedev};

/// The error with which a walk ends.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The usage is wrong, or a root does not exist: exit code 2.
    #[error("{0}")]
    Usage(String),
    /// Something could not be visited or done: exit code 1.
    #[error("{0}")]
    Failed(String),
    /// The reader of the output is gone: exit code 0, without a message.
    #[error("the reader of the output has closed it")]
    Unread,
}

impl CommandError {
    /// Converts a failure to write to standard output.
    pub fn output(error: io::Error) -> CommandError {
        match error.kind() {
            io::ErrorKind::BrokenPipe => CommandError::Unread,
            _ => CommandError::Failed(format!("cannot write to standard output: {error}")),
        }
    }
}

/// A walk as requested by the flags.
#[derive(Debug)]
pub struct Plan {
    /// The roots that are walked, as they were given.
    pub roots: Vec<PathBuf>,
    /// The tree that the roots are in, if it is in no file system of this machine.
    pub source: Option<Arc<dyn Source>>,
    /// Roots that are walked as part of another one, each with that one.
    pub dropped: Vec<(PathBuf, PathBuf)>,
    /// The options of the walk.
    pub options: Options,
    /// The entries to count or list, and how.
    pub request: Request,
    /// The format of the listing, if entries are listed.
    pub format: Option<Format>,
    /// Reads the layouts of files on Lustre.
    pub layouts: bool,
    /// The file into which the histograms are drawn.
    pub picture: Option<PathBuf>,
    /// The file to which all errors are written.
    pub errors: Option<PathBuf>,
    /// The parameters of the walk that a checkpoint records.
    pub head: Head,
}

impl Plan {
    /// Builds the plan from the flags.
    ///
    /// # Errors
    /// [`CommandError::Usage`] if a flag is invalid or a root does not exist.
    pub fn new(args: &Args, json: bool) -> Result<Plan, CommandError> {
        let places = places(&args.roots)?;
        let is_one_mount = |one: &Path, other: &Path| args.cross_mounts || mount(one) == mount(other);
        Plan::at(args, json, places, is_one_mount)
    }

    /// Builds the plan of a walk of the tree of a source, in which the roots are at these places.
    ///
    /// # Errors
    /// [`CommandError::Usage`] if a flag is invalid, or means nothing in such a tree.
    pub fn over(
        args: &Args,
        json: bool,
        source: Arc<dyn Source>,
        places: Vec<PathBuf>,
    ) -> Result<Plan, CommandError> {
        let refused = [
            ("--cross-mounts", args.cross_mounts, "nothing is mounted below its directories"),
            ("--ost", !args.ost.is_empty(), "it is not on Lustre"),
            ("--fields", args.fields.iter().any(|field| field.needs_layout()), "it has no stripes of Lustre"),
        ];
        if let Some((flag, _, why)) = refused.iter().find(|(_, given, _)| *given) {
            let root = Escaped::of(&args.roots[0]);
            return Err(CommandError::Usage(format!("cannot walk \"{root}\" with {flag}: {why}")));
        }
        let mut plan = Plan::at(args, json, places, |_, _| true)?;
        plan.head.flags.push(("--store".to_owned(), source.name()));
        plan.source = Some(source);
        Ok(plan)
    }

    fn at(
        args: &Args,
        json: bool,
        places: Vec<PathBuf>,
        is_one_mount: impl Fn(&Path, &Path) -> bool,
    ) -> Result<Plan, CommandError> {
        let now = now();
        let (roots, dropped) = distinct(&args.roots, &places, is_one_mount);
        let selection = args.filters.selection(now).map_err(CommandError::Usage)?;
        let filter = Filter { osts: args.ost.clone(), ..selection.filter }.ready();
        let selection = Selection { filter, ..selection };
        let place = |root: &PathBuf| {
            let same = |other: &PathBuf| other.as_os_str() == root.as_os_str();
            args.roots.iter().position(same).map(|at| &places[at])
        };
        if !selection.descent.is_plain()
            && let Some((root, within)) = dropped.iter().find(|(root, within)| place(root) != place(within))
        {
            return Err(CommandError::Usage(format!(
                "cannot walk \"{}\" as a part of \"{}\" with --depth, --prune or --exclude-from, which may leave it out; \
                 walk it by itself",
                Escaped::of(root),
                Escaped::of(within)
            )));
        }
        let fields = match (&args.fields[..], json) {
            ([], false) => vec![Field::Path],
            ([], true) => vec![Field::Path, Field::Type],
            (fields, _) => fields.to_vec(),
        };
        let escape = !args.null && io::stdout().is_terminal();
        let format = args.list.then_some(Format { fields, json, null: args.null, escape });
        let metadata = selection.filter.needs_metadata()
            || format.as_ref().is_none_or(|format| format.fields.iter().any(|field| field.needs_metadata()));
        let needs_layout = |format: &Format| format.fields.iter().any(|field| field.needs_layout());
        let layouts = selection.filter.needs_layout() || format.as_ref().is_some_and(needs_layout);
        let options = Options {
            metadata,
            cross_mounts: args.cross_mounts,
            threads: args.threads.unwrap_or(Options::default().threads),
            ..Options::default()
        };
        let shape = Shape {
            top: args.top.unwrap_or(0) as usize,
            histograms: args.histogram.clone(),
            levels: args.depth_summary,
            now: now.seconds,
        };
        if let Some(picture) = &args.picture
            && picture.extension().is_none_or(|extension| extension != "svg")
        {
            let shown = Escaped::of(picture);
            let sentence =
                format!("cannot draw \"{shown}\": pictures are SVG; name a file that ends in .svg");
            return Err(CommandError::Usage(sentence));
        }
        let mut flags = args.identity();
        flags.push(("the places of the roots".into(), format!("{places:?}")));
        flags.push((WALKED.into(), format!("{roots:?}")));
        flags.push(("--json of a list".into(), (json && args.list).to_string()));
        let head = Head { flags, now, newer: selection.filter.newer };
        let (picture, errors) = (args.picture.clone(), args.errors.clone());
        let request = Request { selection, shape, json };
        let source = None;
        Ok(Plan { roots, source, dropped, options, request, format, layouts, picture, errors, head })
    }

    /// Continues with the contents of a checkpoint. Must be called before [`Plan::collectors`].
    ///
    /// # Errors
    /// A message if the checkpoint is of another walk.
    pub fn adopt(&mut self, loaded: &Loaded) -> Result<(), String> {
        let mut head = self.head.clone();
        if !loaded.head.flags.iter().any(|(flag, _)| flag == WALKED) {
            // Older checkpoints do not say.
            head.flags.retain(|(flag, _)| flag != WALKED);
        }
        if let Some((flag, there, here)) = loaded.head.difference(&head) {
            return Err(match (as_typed(&there), as_typed(&here)) {
                (Some(there), Some(here)) => {
                    format!("it is of another walk: {flag} was {there}, and is {here} now")
                }
                _ => format!("it is of another walk: {flag} is not what it was"),
            });
        }
        let roots = self.roots.len();
        if !loaded.report.has_shape(&self.request.shape)
            || loaded.units.iter().any(|unit| unit.root as usize >= roots)
        {
            return Err("it is damaged: its counts are not those that were requested".into());
        }
        self.begin_at(loaded.head.now, loaded.head.newer);
        Ok(())
    }

    /// Sets the time that ages are relative to, and the time that `--newer` compares with: those of the run that began
    /// the walk, or of its first rank. Must be called before [`Plan::collectors`].
    pub fn begin_at(&mut self, now: Time, newer: Option<Time>) {
        self.head.now = now;
        self.head.newer = newer;
        self.request.selection.filter.now = now;
        self.request.selection.filter.newer = newer;
        self.request.shape.now = now.seconds;
    }

    /// Creates a walk with the roots registered and nothing queued.
    ///
    /// # Errors
    /// [`CommandError::Usage`] if a root's path cannot be used.
    pub fn walk(&self) -> Result<Walk<Sums>, CommandError> {
        let mut walk = Walk::new(self.options.clone());
        if let Some(source) = &self.source {
            walk.set_source(Arc::clone(source));
        }
        for root in &self.roots {
            walk.add_root(root).map_err(|error| cannot_walk(root, error))?;
        }
        Ok(walk)
    }

    /// Opens the file to which errors are written. A resumed walk appends to it.
    ///
    /// # Errors
    /// [`CommandError::Usage`] if it cannot be opened.
    pub fn error_log(&self, resumed: bool) -> Result<Option<Output>, CommandError> {
        let Some(path) = &self.errors else { return Ok(None) };
        let mut options = std::fs::OpenOptions::new();
        options.create(true).write(true).append(resumed).truncate(!resumed);
        let file = options.open(path).map_err(|error| {
            CommandError::Usage(format!("cannot write errors to \"{}\": {error}", Escaped::of(path)))
        })?;
        Ok(Some(Output::new(Box::new(file))))
    }

    /// Creates visitors for all threads of this process. `errors` is given every error, beside those kept in the
    /// report.
    pub fn collectors<'a>(
        &'a self,
        output: &'a Output,
        errors: Option<&'a Output>,
        queue: &Arc<Queue<Sums>>,
        shared: &Arc<Shared>,
    ) -> Vec<Collector<'a>> {
        let threads = self.options.threads.get();
        let lister = || self.format.as_ref().map(|format| Lister::new(format, output));
        let collector = |_| {
            let outputs = (lister(), errors);
            let mut collector = Collector::new(&self.request, outputs, queue, shared, threads);
            if self.layouts {
                collector.set_layouts(LayoutReader::default());
            }
            collector
        };
        (0..threads).map(collector).collect()
    }

    /// Visits the roots themselves, and queues them.
    ///
    /// # Errors
    /// [`CommandError::Usage`] if a root cannot be read.
    pub fn start(&self, walk: &Walk<Sums>, visitor: &mut Collector<'_>) -> Result<(), CommandError> {
        for root in 0..self.roots.len() {
            walk.start(root as u32, visitor)
                .map_err(|error| cannot_walk(error.path(), io::Error::from_raw_os_error(error.errno)))?;
        }
        Ok(())
    }

    /// Returns the roots' paths as bytes.
    pub fn root_bytes(&self) -> Vec<Vec<u8>> {
        self.roots.iter().map(|root| root.as_os_str().as_bytes().to_vec()).collect()
    }

    /// Adds up the counts that were kept in parts; called once everything is merged.
    ///
    /// # Errors
    /// [`CommandError::Failed`] if the temporary file of hard links failed.
    pub fn finish(&self, counted: &mut Counted) -> Result<(), CommandError> {
        let Counted { report, links, shared } = counted;
        report.finish(&self.root_bytes(), std::mem::take(&mut *shared.partial.lock()));
        report.count_links(links).map_err(|error| {
            CommandError::Failed(format!(
                "cannot keep apart files with several names: {error}; they are kept in a temporary file, in the folder \
                 that TMPDIR names"
            ))
        })
    }

    /// Prints a report, unless entries were listed, and draws the histograms if requested.
    ///
    /// # Errors
    /// If the report or the picture cannot be written.
    pub fn print(&self, report: &Report, output: &mut impl Write) -> Result<(), CommandError> {
        if let Some(picture) = &self.picture {
            let cannot = |error: &dyn std::fmt::Display| {
                let shown = Escaped::of(picture);
                CommandError::Failed(format!("cannot write the picture \"{shown}\": {error}"))
            };
            let svg = picture::svg(&report.histograms).map_err(|error| cannot(&error))?;
            std::fs::write(picture, svg).map_err(|error| cannot(&error))?;
        }
        let printed = match (&self.format, self.request.json) {
            (Some(_), _) => Ok(()),
            (None, true) => writeln!(output, "{}", print::json(report)),
            (None, false) => print::text(report, output),
        };
        printed.and_then(|()| output.flush()).map_err(CommandError::output)
    }

    /// Returns the complaints for standard error, one for each line, and the result of the command.
    pub fn verdict(&self, report: &Report) -> (Vec<String>, Result<(), CommandError>) {
        let problems = &report.problems;
        let unvisited = problems.errors + problems.missing;
        if unvisited == 0 {
            return (Vec::new(), Ok(()));
        }
        let mut lines: Vec<String> = problems.first.iter().take(SHOWN).map(ToString::to_string).collect();
        let missing = problems.missing_first.iter().take(SHOWN);
        lines.extend(missing.map(|path| WalkError::missing(path.clone()).to_string()));
        if unvisited > lines.len() as u64 {
            let more = nacre_quantity::grouped(unvisited - lines.len() as u64);
            lines.push(match &self.errors {
                Some(file) => format!("… and {more} more, all of them in \"{}\"", Escaped::of(file)),
                None => format!("… and {more} more; --errors FILE gives all of them"),
            });
        }
        let sentence = match unvisited {
            1 => "one directory or entry could not be visited".to_owned(),
            unvisited => {
                let unvisited = nacre_quantity::grouped(unvisited);
                format!("{unvisited} directories or entries could not be visited")
            }
        };
        (lines, Err(CommandError::Failed(sentence)))
    }
}

/// Returns the value of a flag in a checkpoint, where it stands as Rust prints it for debugging, as a user types it; `None` if it is of
/// another form.
fn as_typed(value: &str) -> Option<String> {
    let value = value.strip_prefix("Some(").and_then(|rest| rest.strip_suffix(')')).unwrap_or(value);
    match value {
        "nothing" | "None" | "[]" | "false" => return Some("not given".to_owned()),
        "true" => return Some("given".to_owned()),
        _ => {}
    }
    let list = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_number = value.bytes().all(|byte| byte.is_ascii_digit());
    list.filter(|list| list.starts_with('"')).or(is_number.then_some(value)).map(str::to_owned)
}

/// The roots that are left when those that are parts of others were dropped, as a checkpoint names them. Its units have the
/// numbers of these, and which ones they are changes with what is mounted.
const WALKED: &str = "the list of roots that are no parts of others";

/// The maximum number of errors that are shown.
const SHOWN: usize = 10;

/// Returns standard output without the line buffering of the standard library.
///
/// # Errors
/// If the descriptor cannot be duplicated.
pub fn raw_stdout() -> io::Result<std::fs::File> {
    io::stdout().as_fd().try_clone_to_owned().map(Into::into)
}

/// Returns the time that ages of a walk that begins now are relative to.
pub fn now() -> Time {
    // A clock that stands before 1970 has more to complain about than ages.
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    Time { seconds: now.as_secs() as i64, nanoseconds: now.subsec_nanos() }
}

/// Returns the error of a root that cannot be walked.
fn cannot_walk(root: &Path, why: impl std::fmt::Display) -> CommandError {
    CommandError::Usage(format!("cannot walk \"{}\": {why}", Escaped::of(root)))
}

type Dropped = Vec<(PathBuf, PathBuf)>;

/// Returns the places of the roots in file systems of this machine.
fn places(roots: &[PathBuf]) -> Result<Vec<PathBuf>, CommandError> {
    let mut places = Vec::new();
    for root in roots {
        // A root that is a link is visited as a link.
        let place = match (root.parent(), root.file_name()) {
            (Some(parent), Some(name)) if root.is_symlink() && !ends_in_slash(root) => {
                let parent = if parent.as_os_str().is_empty() { ".".as_ref() } else { parent };
                parent.canonicalize().map(|parent| parent.join(name))
            }
            _ => root.canonicalize(),
        };
        places.push(place.map_err(|error| cannot_walk(root, error))?);
    }
    Ok(places)
}

/// Returns the roots without those that are visited as part of others, and those that were dropped.
fn distinct(
    roots: &[PathBuf],
    places: &[PathBuf],
    is_one_mount: impl Fn(&Path, &Path) -> bool,
) -> (Vec<PathBuf>, Dropped) {
    let (mut kept, mut dropped) = (Vec::new(), Vec::new());
    for (number, place) in places.iter().enumerate() {
        let within = places.iter().enumerate().find(|(other, outer)| {
            *other != number
                && place.starts_with(outer)
                && (*outer != place || *other < number)
                && (*outer == place || is_one_mount(place, outer))
        });
        match within {
            Some((other, _)) => dropped.push((roots[number].clone(), roots[other].clone())),
            None => kept.push(roots[number].clone()),
        }
    }
    (kept, dropped)
}

/// Returns the number of the mount that a path is on. A walk of one mount does not reach entries on another.
fn mount(place: &Path) -> Option<u64> {
    rustix::fs::statx(CWD, place, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::MNT_ID)
        .ok()
        .map(|stat| mount_of(&stat))
}

fn mount_of(stat: &Statx) -> u64 {
    match StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::MNT_ID) {
        true => stat.stx_mnt_id,
        // Linux before 5.8 does not number them.
        false => makedev(stat.stx_dev_major, stat.stx_dev_minor),
    }
}

fn ends_in_slash(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"/")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn flags_of_another_walk_are_named_as_they_are_typed() {
        for (stored, typed) in [
            ("None", Some("not given")),
            ("Some(5)", Some("5")),
            ("[\"*1\", \"b\"]", Some("\"*1\", \"b\"")),
            ("[]", Some("not given")),
            ("true", Some("given")),
            ("[Size(At, 4096)]", None),
            ("Some(Days { at: 3 })", None),
        ] {
            assert_eq!(as_typed(stored).as_deref(), typed, "{stored}");
        }
    }

    #[test]
    fn a_walk_goes_on_with_the_roots_that_it_had_after_parts_of_others_were_dropped() {
        let args = Line::parse_from(["walk", ".", "/proc"]).args;
        let mut plan = Plan::new(&args, false).unwrap();
        let mut head = plan.head.clone();
        let mut adopted = |head: &Head| {
            let report = Report::new(&plan.request.shape);
            plan.adopt(&Loaded { head: head.clone(), report, units: Vec::new() })
        };
        assert_eq!(adopted(&head), Ok(()));
        let at = head.flags.iter().position(|(flag, _)| flag == WALKED).unwrap();
        head.flags[at].1 = "[\".\"]".to_owned();
        assert!(adopted(&head).unwrap_err().contains(WALKED));
        // Older checkpoints do not have it.
        head.flags.remove(at);
        assert_eq!(adopted(&head), Ok(()));
    }

    #[test]
    fn mounts_are_told_apart_where_the_system_does_not_number_them() {
        let mount = |place: &str| {
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            let mut stat = rustix::fs::statx(CWD, place, flags, StatxFlags::MNT_ID).unwrap();
            // As on Linux before 5.8.
            stat.stx_mask &= !StatxFlags::MNT_ID.bits();
            stat.stx_mnt_id = 0;
            mount_of(&stat)
        };
        assert_ne!(mount("/"), mount("/proc"));
        assert_eq!(mount("/proc"), mount("/proc/self/fd"));
    }
}
