//! The command line of `nacre`. The flags of each command are defined beside the command.

use std::any::TypeId;
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use nacre::{ByteRange, Fork, stage};
use nacre_daemon::STORE_FORMAT;
use nacre_quantity::Escaped;
use nacre_shell::manual::STYLES;
use nacre_shell::usage;
use nacre_walk_cli::THREADS_MAX;

use crate::command::*;
use crate::configuration;
use crate::failure::Failure;
use crate::manual::MANUAL;
use crate::name;
use crate::quantity::{Size, Time, parse_size};
use crate::session::FENCE_VARIABLE;

const AFTER_HELP: &str = "\
Names may contain any bytes: \\xNN stands for a byte, \\\\ for a backslash. Sizes may have units: 4096, 64KiB, 1GiB.

Exit codes: 0 success; 1 failure; 2 wrong usage; 3 a guard did not hold, and standard output shows the current state; 128 and \
the signal's number, such as 130 for Ctrl-C, if a signal ended the command before its work was done. A command that runs until \
it is stopped, as a server does, then ends with 0.";

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
            "{}\nengines: file: (stores up to format {STORE_FORMAT}), mem:, nacre:// and unix: (servers), rados:// (with librados, loaded on \
             first use)\n\
             planes of the reflector: {}; programs for the kernel {}",
            env!("CARGO_PKG_VERSION"),
            planes.join(", "),
            nacre_planes::plane::OBJECTS,
        )
    })
}

impl Line {
    /// Reads a command line, and the configuration file if it starts a daemon. An error in the line itself, or the help that it
    /// asks for, is printed here.
    pub fn read(words: Vec<OsString>) -> Result<Line, Failure> {
        let mut command = with_negative_numbers(MANUAL.with_examples(Line::command()));
        // An empty variable is none, as one that is set for a single command and then emptied.
        for (flag, variable) in [("key", KEY_VARIABLE), ("fence", FENCE_VARIABLE)] {
            if std::env::var_os(variable).is_some_and(|value| value.is_empty()) {
                command = command.mut_arg(flag, |arg| arg.env(Resettable::Reset));
            }
        }
        let matches = match command.clone().try_get_matches_from(&words) {
            Ok(matches) => matches,
            Err(error) => match wrong_variable(&error, &words) {
                Some(failure) => return Err(failure),
                None => return Err(refuse(negative_value(&command, &words).unwrap_or(error), &words)),
            },
        };
        refuse_fence_of_lock(&matches)?;
        let words = configuration::complete(&command, words, &matches)?;
        let matches = command.try_get_matches_from(&words).map_err(|error| refuse(error, &words))?;
        Line::from_arg_matches(&matches).map_err(|error| refuse(error, &words))
    }
}

/// Allows negative values for all numbers of a command and of its subcommands: their parsers refuse them and name the range.
/// Otherwise a word such as -1 would be taken for a flag.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let negative = |arg: Arg| match is_number(&arg) {
        true => arg.allow_negative_numbers(true),
        false => arg,
    };
    command.mut_args(negative).mut_subcommands(with_negative_numbers)
}

/// Returns the error about a negative quantity with a unit, such as `-1s`, behind an option that takes none. The parser takes such a
/// word for a flag, and says nothing of the option.
fn negative_value(command: &clap::Command, words: &[OsString]) -> Option<clap::Error> {
    let is_option = |word: &OsString| word.to_string_lossy().starts_with('-');
    let is_negative = |word: &OsString| {
        let word = word.to_string_lossy();
        word.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let pairs = words.windows(2).enumerate();
    pairs.filter(|(_, pair)| is_option(&pair[0]) && is_negative(&pair[1])).find_map(|(at, pair)| {
        let mut joined = pair[0].clone();
        joined.push("=");
        joined.push(&pair[1]);
        let line = words[..at].iter().chain([&joined]).chain(&words[at + 2..]);
        let error = command.clone().try_get_matches_from(line).err()?;
        (error.kind() == ErrorKind::ValueValidation).then_some(error)
    })
}

/// Returns whether the value of an argument is a number, a size or a time.
fn is_number(arg: &Arg) -> bool {
    let numbers = [
        TypeId::of::<u8>(),
        TypeId::of::<u16>(),
        TypeId::of::<u32>(),
        TypeId::of::<u64>(),
        TypeId::of::<usize>(),
        TypeId::of::<NonZeroUsize>(),
        TypeId::of::<f64>(),
        TypeId::of::<Duration>(),
        TypeId::of::<Time>(),
        TypeId::of::<Size>(),
    ];
    let kind = arg.get_value_parser().type_id();
    arg.get_action().takes_values() && numbers.iter().any(|number| kind == *number)
}

/// The messages of the standard library's parsers, and those that replace them.
const WORDS: [(&str, &str); 7] = [
    ("invalid digit found in string", "it is not a whole number from 0 on"),
    ("cannot parse integer from empty string", "a number is needed"),
    ("number too large to fit in target type", "the number is too large"),
    ("number too small to fit in target type", "the number is too small"),
    ("invalid float literal", "it is not a number"),
    ("invalid socket address syntax", "it is not an IP address with a port, such as 192.0.2.1:7400"),
    ("invalid IP address syntax", "it is not an IP address"),
];

/// Prints an error in the command line, or the help that was asked for. Returns the failure that ends the program.
fn refuse(mut error: clap::Error, words: &[OsString]) -> Failure {
    if is_behind_option(&error, words) {
        // The tip is to put "--" before the word, which would then still not be the option's value.
        error.remove(ContextKind::Suggested);
    }
    let message = usage::message(&error);
    let better = Some(&message).filter(|_| error.use_stderr()).and_then(|message| in_words(message));
    usage::refuse(&error, better.as_ref().unwrap_or(&message))
}

/// Returns a message of the command line's parser with the words of this program; `None` if it has them already.
fn in_words(text: &str) -> Option<String> {
    let known = WORDS.iter().find(|(own, _)| text.contains(own));
    known.map(|(own, better)| text.replace(own, better)).or_else(|| range_in_words(text))
}

/// Returns an error in a setting that was read as a flag, as one line.
pub fn setting_error(error: &clap::Error) -> String {
    let text = anstream::adapter::strip_str(&usage::message(error)).to_string();
    let line = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
    in_words(line).unwrap_or_else(|| line.to_owned())
}

/// Returns whether an error is about a word that begins as a short flag, behind an option whose value it may be.
fn is_behind_option(error: &clap::Error, words: &[OsString]) -> bool {
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return false };
    error.kind() == ErrorKind::UnknownArgument
        && !flag.starts_with("--")
        && words.windows(2).any(|pair| {
            let (option, word) = (pair[0].to_string_lossy(), pair[1].to_string_lossy());
            option.starts_with('-') && !option.contains('=') && word.starts_with(flag.as_str())
        })
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
    Purge(administration::PurgeArgs),
    CopyObjects(copy::Args),
    Class(class::Args),
    Map(map::Args),
    Balance(balance::Args),
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
    Rank(rank::Args),
    Fail(fail::Args),
    Mpirun(mpirun::Args),
    #[command(hide = true)]
    MpirunLauncher(mpirun::attached::Args),
    #[command(hide = true)]
    MpirunNode(mpirun::node::Args),
    #[command(hide = true)]
    MpirunWatchdog(watchdog::Args),
    Watch(watch::WatchArgs),
    Notify(watch::NotifyArgs),
    Walk(Box<walk::Args>),
    Query(query::Args),
    Browse(browse::Args),
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
    nacre_quantity::count_parser::<usize>(0..=u64::MAX)(text)
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
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_size)]
    pub offset: u64,
    /// Length of the range [default: to the end]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub length: Option<u64>,
}

impl RangeArgs {
    /// Returns the range asked for.
    pub fn range(&self) -> ByteRange {
        let rest = ByteRange::ALL.end().saturating_sub(self.offset);
        ByteRange::new(self.offset, self.length.unwrap_or(rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_number_is_no_flag() {
        let line = with_negative_numbers(Line::command());
        let mut built = line.clone();
        built.build();
        let mut waiting = vec![(vec!["nacre".to_owned()], built)];
        let mut tried = 0;
        while let Some((path, command)) = waiting.pop() {
            for arg in command.get_arguments().filter(|arg| is_number(arg)) {
                let mut words = path.clone();
                match (arg.get_long(), arg.get_index()) {
                    (Some(long), _) => words.push(format!("--{long}")),
                    (None, index) => words.extend(vec!["1".to_owned(); index.unwrap_or(1) - 1]),
                }
                words.push("-1".to_owned());
                let error = line.clone().try_get_matches_from(&words).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ValueValidation, "{words:?}: {error}");
                tried += 1;
            }
            for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
                let path = path.iter().cloned().chain([inner.get_name().to_owned()]).collect();
                waiting.push((path, inner.clone()));
            }
        }
        assert!(tried > 60, "{tried}");
    }
}
