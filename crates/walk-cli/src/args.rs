//! The arguments of `walk`.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use nacre_quantity::parse_time;
use nacre_walk::list::Field;
use nacre_walk::report::histogram::Measure;

use crate::Filters;

const AFTER_HELP: &str = "\
Entries that vanish while the walk goes on are counted apart, and are no failure. A reader that goes away, such as head, \
ends the walk without a word.

Exit codes: 0 everything was visited; 1 something was not, and the first errors are on standard error; 2 wrong usage, or \
a root does not exist; 128 and the signal's number, such as 130 for Ctrl-C, if one ended the walk (with ranks, 1).";

/// Count or list everything below some roots
///
/// Every entry is visited once. Symbolic links are reported and never followed. Without --list, a summary is printed.
/// It counts the bytes of a file with several hard links once, while rankings and histograms count every name. Filters
/// select what is counted or listed; only --prune, --exclude-from, --depth and mount points keep the walk out of
/// directories.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Files and directories to start at; one below another is visited once. "nacre walk" also takes nacre:/PATH, in the
    /// namespace of the store
    #[arg(required = true, value_name = "ROOT")]
    pub roots: Vec<PathBuf>,
    /// Number of threads [default: one per processor]
    #[arg(long, value_name = "N", value_parser = parse_threads)]
    pub threads: Option<NonZeroUsize>,
    /// Descend into other file systems that are mounted below the roots
    #[arg(long, conflicts_with = "one_file_system")]
    pub cross_mounts: bool,
    /// Stay on the file systems of the roots (the default)
    #[arg(long)]
    pub one_file_system: bool,

    /// List entries as they are found, in no particular order
    #[arg(long, help_heading = "Output", conflicts_with_all = ["top", "histogram", "depth_summary"])]
    pub list: bool,
    /// Fields to list for each entry, in this order [default: path; with --json path,type]
    #[arg(
        long,
        help_heading = "Output",
        value_name = "FIELD,…",
        value_delimiter = ',',
        requires = "list",
        value_parser = field_parser()
    )]
    pub fields: Vec<Field>,
    /// End each listed entry with a NUL byte instead of a newline
    #[arg(long, short = '0', help_heading = "Output", requires = "list")]
    pub null: bool,
    /// Show the N largest files, and the N largest directories by entries and by the bytes of everything below them
    #[arg(long, help_heading = "Output", value_name = "N", value_parser = nacre_quantity::count_parser::<u32>(1..=10_000))]
    pub top: Option<u32>,
    /// Show histograms of these quantities, separated by commas
    #[arg(long, help_heading = "Output", value_name = "OF", value_delimiter = ',', value_parser = measure_parser())]
    pub histogram: Vec<Measure>,
    /// Show the entries, directories, files and bytes of every level below the roots; those deeper than level 4096 together
    #[arg(long, help_heading = "Output")]
    pub depth_summary: bool,
    /// Draw the histograms to this file
    #[arg(long, help_heading = "Output", value_name = "FILE.svg", requires = "histogram")]
    pub picture: Option<PathBuf>,

    /// The filters
    #[command(flatten)]
    pub filters: Filters,
    /// Files with an object on this object storage target (OST) of Lustre, by its number; may be repeated to match any
    #[arg(
        long,
        help_heading = "Filters",
        value_name = "N",
        value_parser = nacre_quantity::count_parser::<u32>(0..=u64::from(u32::MAX))
    )]
    pub ost: Vec<u32>,

    /// Write every error to this file, one per line; with --json, as JSON
    #[arg(long, help_heading = "Output", value_name = "FILE")]
    pub errors: Option<PathBuf>,

    /// Save the progress and the remaining work to this file periodically, and on SIGTERM and SIGINT; it is removed
    /// when the walk is done
    #[arg(long, help_heading = "Checkpoints", value_name = "FILE")]
    pub checkpoint: Option<PathBuf>,
    /// Interval between checkpoints
    #[arg(long, help_heading = "Checkpoints", value_name = "TIME", default_value = "30s", value_parser = parse_time)]
    pub every: Duration,
    /// Resume from this checkpoint, with the same roots and flags, and save to it again (or to --checkpoint)
    #[arg(long, help_heading = "Checkpoints", value_name = "FILE")]
    pub resume: Option<PathBuf>,
}

impl Args {
    /// Returns the flags, with their values, that two runs must share to be the same walk.
    pub fn identity(&self) -> Vec<(String, String)> {
        let flags: [(&str, String); 7] = [
            ("ROOT", format!("{:?}", self.roots)),
            ("--cross-mounts", self.cross_mounts.to_string()),
            ("--list", self.list.to_string()),
            ("--fields", format!("{:?}", self.fields)),
            ("--top", format!("{:?}", self.top)),
            ("--histogram", format!("{:?}", self.histogram)),
            ("--null", self.null.to_string()),
        ];
        let mut flags: Vec<_> = flags.map(|(flag, value)| (flag.to_owned(), value)).into();
        // Only where they are given: checkpoints from before there were such flags are of walks without them.
        if self.depth_summary {
            flags.push(("--depth-summary".to_owned(), true.to_string()));
        }
        if !self.ost.is_empty() {
            flags.push(("--ost".to_owned(), format!("{:?}", self.ost)));
        }
        flags.extend(self.filters.identity());
        flags
    }

    /// Returns the filters that are given, with their values as they are typed.
    pub fn given_filters(&self) -> Vec<(String, String)> {
        let mut given = self.filters.given();
        if !self.ost.is_empty() {
            let osts: Vec<String> = self.ost.iter().map(u32::to_string).collect();
            given.push(("--ost".to_owned(), osts.join(", ")));
        }
        given
    }

    /// Returns whether any filter is given.
    pub fn is_filtered(&self) -> bool {
        self.filters.is_given() || !self.ost.is_empty()
    }
}

/// Returns the parser of a field's name.
fn field_parser() -> impl TypedValueParser<Value = Field> {
    let names = Field::ALL.map(|field| PossibleValue::new(field.name()).help(field.description()));
    PossibleValuesParser::new(names)
        .try_map(|name| Field::ALL.into_iter().find(|field| field.name() == name).ok_or("no such field"))
}

/// Returns the parser of a measure's name.
fn measure_parser() -> impl TypedValueParser<Value = Measure> {
    let names = Measure::ALL.map(|measure| PossibleValue::new(measure.name()).help(measure.description()));
    PossibleValuesParser::new(names).try_map(|name| {
        Measure::ALL.into_iter().find(|measure| measure.name() == name).ok_or("no such measure")
    })
}

/// The maximum number of threads; more take longer to start than any tree to walk.
pub const THREADS_MAX: u64 = 1024;

/// Parses a number of threads.
///
/// # Errors
/// A message if the text is no number or the number is out of range.
pub fn parse_threads(text: &str) -> Result<NonZeroUsize, String> {
    let threads = nacre_quantity::count_parser::<usize>(1..=THREADS_MAX)(text)?;
    NonZeroUsize::new(threads).ok_or_else(|| "it must be at least 1".to_owned())
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
    fn a_walk_without_newer_flags_is_that_of_a_checkpoint_which_knows_of_none() {
        let value = |name: &str, words: &[&str]| {
            let identity = Line::parse_from([&["walk"][..], words].concat()).args.identity();
            identity.into_iter().find(|(flag, _)| flag == name).map(|(_, value)| value)
        };
        assert_eq!(value("--depth-summary", &["."]), None);
        assert_eq!(value("--depth-summary", &[".", "--depth-summary"]).as_deref(), Some("true"));
        assert_eq!(value("--ost", &["."]), None);
        assert_eq!(value("--ost", &[".", "--ost", "7", "--ost", "12"]).as_deref(), Some("[7, 12]"));
    }
}
