//! The command line of `nacre`. The flags of each command are defined beside the command.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use nacre::{ByteRange, Fork, stage};
use nacre_quantity::Escaped;
use nacre_shell::manual::STYLES;
use nacre_walk_cli::THREADS_MAX;

use crate::command::*;
use crate::configuration;
use crate::failure::Failure;
use crate::manual::MANUAL;
use crate::name;
use crate::quantity::parse_size;
use crate::session::FENCE_VARIABLE;

const AFTER_HELP: &str = "\
Names may contain any bytes: \\xNN stands for a byte, \\\\ for a backslash. Sizes may have units: 4096, 64KiB, 1GiB.

Exit codes: 0 success; 1 failure; 2 wrong usage; 3 a guard did not hold, and standard output shows the current state.";

/// The environment variable that names the file with the cluster's key.
const KEY_VARIABLE: &str = "NACRE_KEY";

/// An object store with versioned extents and conditional writes.
///
/// A store holds objects. An object has forks (byte streams in which every byte carries a version), keys and
/// attributes. A conditional write is refused if anything in its range is newer than what was read.
#[derive(Debug, Parser)]
#[command(name = "nacre", version, long_version = inside(), styles = STYLES, after_help = AFTER_HELP)]
#[command(max_term_width = 110)]
pub struct Line {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    pub command: Command,
}

/// Returns the version, and what this program holds: its engines, roles, and the reflector's planes.
fn inside() -> &'static str {
    use nacre_planes::plane::PlaneKind;
    static TEXT: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    TEXT.get_or_init(|| {
        let planes = PlaneKind::ALL.map(|kind| match kind.object() {
            Some(Err(why)) => format!("{kind} (not included: {why})"),
            _ => kind.to_string(),
        });
        format!(
            "{}\nengines: file:, mem:, nacre:// and unix: (servers), rados:// (with librados, loaded on first use)\n\
             planes of the reflector: {}; programs for the kernel {}",
            env!("CARGO_PKG_VERSION"),
            planes.join(", "),
            nacre_planes::plane::OBJECTS,
        )
    })
}

impl Line {
    /// Reads a command line, and the configuration file if it starts a daemon. An error in the line itself is printed,
    /// and ends the program with exit code 2.
    pub fn read(words: Vec<OsString>) -> Result<Line, Failure> {
        let mut command = MANUAL.with_examples(Line::command());
        // An empty variable is none, as one that is set for a single command and then emptied.
        for (flag, variable) in [("key", KEY_VARIABLE), ("fence", FENCE_VARIABLE)] {
            if std::env::var_os(variable).is_some_and(|value| value.is_empty()) {
                command = command.mut_arg(flag, |arg| arg.env(Resettable::Reset));
            }
        }
        let matches = match command.clone().try_get_matches_from(&words) {
            Ok(matches) => matches,
            Err(error) => return Err(wrong_variable(&error, &words).unwrap_or_else(|| refuse(&error))),
        };
        refuse_fence_of_lock(&matches)?;
        let words = configuration::complete(&command, words, &matches)?;
        let matches = command.try_get_matches_from(words).unwrap_or_else(|error| refuse(&error));
        Ok(Line::from_arg_matches(&matches).unwrap_or_else(|error| refuse(&error)))
    }
}

/// The messages of the standard library's parsers of numbers, and those that replace them.
const NUMBERS: [(&str, &str); 5] = [
    ("invalid digit found in string", "it is not a whole number"),
    ("cannot parse integer from empty string", "a number is needed"),
    ("number too large to fit in target type", "the number is too large"),
    ("number too small to fit in target type", "the number is too small"),
    ("invalid float literal", "it is not a number"),
];

/// Prints an error in the command line, and ends the program with exit code 2; or prints the help that was asked for, and
/// ends it with 0.
fn refuse(error: &clap::Error) -> ! {
    let coloured = error.render().ansi().to_string();
    let number = NUMBERS.iter().find(|(text, _)| coloured.contains(text));
    match number.map(|(text, better)| coloured.replace(text, better)).or_else(|| range_in_words(&coloured)) {
        Some(better) => {
            // The stream leaves colours out where they are not wanted.
            let _ = write!(anstream::stderr(), "{better}");
            std::process::exit(error.exit_code());
        }
        None => error.exit(),
    }
}

/// Returns a message of the parser of numbers, such as "300 is not in 0..=255", in words; `None` if it is another one.
fn range_in_words(text: &str) -> Option<String> {
    let (before, after) = text.split_once(" is not in ")?;
    let number = before.rfind(' ')? + 1;
    let end = after.find(|c: char| !c.is_ascii_digit() && !"-.=".contains(c)).unwrap_or(after.len());
    let (least, most) = after[..end].split_once("..=")?;
    Some(format!("{}it must be {least} to {most}{}", &before[..number], &after[end..]))
}

/// Returns the failure that the variable with the session is wrong, if that is what the error is about: it would name the flag.
fn wrong_variable(error: &clap::Error, words: &[OsString]) -> Option<Failure> {
    let value = std::env::var_os(FENCE_VARIABLE)?;
    let about = matches!(error.get(ContextKind::InvalidArg), Some(ContextValue::String(name)) if name.contains("--fence"));
    let given = words.iter().any(|word| word.to_string_lossy().starts_with("--fence"));
    let text =
        format!("{FENCE_VARIABLE} is \"{}\", which is not the number of a lock session", Escaped::of(&value));
    (about && !given).then_some(Failure::Usage(text))
}

/// Refuses `--fence` of `nacre lock`, whose command acts for the session of the lock. The variable may be set: it is that
/// of a lock around this one.
fn refuse_fence_of_lock(matches: &ArgMatches) -> Result<(), Failure> {
    let typed = |matches: &ArgMatches| matches.value_source("fence") == Some(ValueSource::CommandLine);
    match matches.subcommand() {
        Some(("lock", lock)) if typed(lock) || typed(matches) => {
            let text = "--fence is not for \"nacre lock\": its command acts for the session of the new lock";
            Err(Failure::Usage(text.to_owned()))
        }
        _ => Ok(()),
    }
}

/// Parses the number of a lock session.
pub fn session_number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "it is not the number of a lock session".to_owned())
}

/// The options of every command.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Store to use: unix:PATH or nacre://HOST:PORT,… for servers, file:PATH for a folder [default: $NACRE_STORE (not
    /// read by serve, reflect and bench), or else the socket of the user's own server]
    #[arg(long, global = true, value_name = "URI", help_heading = "Global options")]
    pub store: Option<OsString>,
    /// File with the cluster key, for servers that require it
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = KEY_VARIABLE,
        hide_env_values = true,
        help_heading = "Global options"
    )]
    pub key: Option<PathBuf>,
    /// Act for this lock session: objects at which it is fenced refuse its changes
    #[arg(
        long,
        global = true,
        value_name = "SESSION",
        env = FENCE_VARIABLE,
        value_parser = session_number,
        hide_env_values = true,
        help_heading = "Global options"
    )]
    pub fence: Option<u64>,
    /// Print JSON
    #[arg(long, global = true, help_heading = "Global options")]
    pub json: bool,
}

/// The commands, in the order of the help.
#[derive(Debug, Subcommand)]
pub enum Command {
    Serve(Box<serve::Args>),
    Put(transfer::PutArgs),
    Get(transfer::GetArgs),
    Write(write::Args),
    Read(read::Args),
    Apply(apply::Args),
    Extents(extents::Args),
    Stat(stat::Args),
    Fence(fence::Args),
    Ls(ls::Args),
    Rm(rm::Args),
    Keys(keys::KeysArgs),
    Attr(keys::AttrArgs),
    Info(administration::InfoArgs),
    Scrub(administration::ScrubArgs),
    Compact(administration::CompactArgs),
    CopyObjects(copy::Args),
    Class(class::Args),
    Map(map::Args),
    Fs(fs::Args),
    Mount(mount::Args),
    Zlog(zlog::Args),
    Ping(ping::Args),
    Status(status::Args),
    Top(top::Args),
    Log(log::Args),
    Lock(lock::Args),
    Locks(locks::Args),
    Sequencer(sequencer::Args),
    Fail(fail::Args),
    Mpirun(mpirun::Args),
    Watch(watch::WatchArgs),
    Notify(watch::NotifyArgs),
    Walk(Box<walk::Args>),
    Query(query::Args),
    Diff(diff::Args),
    Copy(copy_tree::Args),
    Compare(compare::Args),
    Remove(remove::Args),
    #[command(subcommand)]
    Reflect(reflect::Command),
    Keygen(keygen::Args),
    Bench(bench::Args),
    Tour(tour::Args),
    #[command(hide = true)]
    TourClient(tour::ClientArgs),
    Completions(shell::CompletionsArgs),
    Man(shell::ManArgs),
}

/// A fork of an object.
#[derive(Args, Clone, Debug)]
pub struct ForkArgs {
    /// Use this fork instead of the default one
    #[arg(long, value_name = "NAME", value_parser = name::fork())]
    pub fork: Option<Fork>,
}

impl ForkArgs {
    /// Returns the fork to be read.
    pub fn fork(&self) -> Fork {
        self.fork.clone().unwrap_or_default()
    }

    /// Returns the fork to be written. Reserved names are refused.
    pub fn own(&self) -> Result<Fork, Failure> {
        let fork = self.fork();
        if stage::is_reserved(&fork) {
            let text = format!(
                "fork names that begin with \"{}\" are reserved; choose another one",
                stage::RESERVED
            );
            return Err(Failure::Usage(text));
        }
        Ok(fork)
    }
}

/// Parses a count.
pub fn count(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "it is not a count".to_owned())
}

/// Parses a count that must not be zero.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    nacre_quantity::count_parser::<usize>(1..=u64::MAX)(text)
}

/// Parses a number of threads.
pub fn threads(text: &str) -> Result<usize, String> {
    match at_least_one(text)? {
        count if count as u64 > THREADS_MAX => Err(format!("at most {THREADS_MAX} threads are supported")),
        count => Ok(count),
    }
}

/// A byte range.
#[derive(Args, Clone, Debug)]
pub struct RangeArgs {
    /// Start of the range
    #[arg(long, allow_negative_numbers = true, value_name = "SIZE", default_value = "0", value_parser = parse_size)]
    pub offset: u64,
    /// Length of the range [default: to the end]
    #[arg(long, allow_negative_numbers = true, value_name = "SIZE", value_parser = parse_size)]
    pub length: Option<u64>,
}

impl RangeArgs {
    /// Returns the range asked for.
    pub fn range(&self) -> ByteRange {
        let rest = ByteRange::ALL.end().saturating_sub(self.offset);
        ByteRange::new(self.offset, self.length.unwrap_or(rest))
    }
}
