//! The flags of `walk`.

use crate::filter::{Days, Depths, Kinds, Reference, Size, User};
use crate::list::Field;
use crate::report::histogram::Measure;
use std::num::NonZeroUsize;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
Exit codes: 0 everything was visited; 1 something was not, and the first errors are on standard error; 2 wrong usage, or \
a root does not exist. Entries that vanish while the walk goes on are counted apart, and are no failure. A reader that \
goes away, such as head, ends the walk without a word.";

/// Count or list everything below some roots
///
/// Every entry is visited once. Symbolic links are reported and never followed. Without --list the summary is printed:
/// bytes of a file with several hard links are counted once in it, while rankings and histograms count every name.
/// Filters decide what is counted or listed; only --prune, --exclude-from, --depth and mount points keep the walk out of
/// directories.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Files and directories to begin at; one below another is visited once
    #[arg(required = true, value_name = "ROOT")]
    pub roots: Vec<PathBuf>,
    /// Threads that visit [default: one for each processor]
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,
    /// Go on in other file systems that are mounted below the roots
    #[arg(long, conflicts_with = "one_file_system")]
    pub cross_mounts: bool,
    /// Stay in the file systems of the roots, which is the default
    #[arg(long)]
    pub one_file_system: bool,

    /// List entries as they are found, in no particular order
    #[arg(long, help_heading = "What to print", conflicts_with_all = ["top", "histogram"])]
    pub list: bool,
    /// What to list of each entry, in this order [default: path; with --json path,type]
    #[arg(
        long,
        help_heading = "What to print",
        value_name = "FIELD,…",
        value_delimiter = ',',
        requires = "list"
    )]
    pub fields: Vec<Field>,
    /// End each entry of the list with a zero byte instead of a line's end
    #[arg(long, short = '0', help_heading = "What to print", requires = "list")]
    pub null: bool,
    /// The N largest files, directories by entries, and directories by the bytes of everything below them
    #[arg(long, help_heading = "What to print", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub top: Option<u32>,
    /// How entries are spread; several with commas between
    #[arg(long, help_heading = "What to print", value_name = "OF", value_delimiter = ',')]
    pub histogram: Vec<Measure>,

    /// Entries with a name like this, * ? [a-z] {a,b} as in a shell; may be repeated, any of them
    #[arg(long, help_heading = "Filters", value_name = "GLOB")]
    pub name: Vec<String>,
    /// The same without regard to upper and lower case
    #[arg(long, help_heading = "Filters", value_name = "GLOB")]
    pub iname: Vec<String>,
    /// Entries of these types: f,d,l,p,s,c,b as in find
    #[arg(long = "type", help_heading = "Filters", value_name = "TYPE,…")]
    pub kinds: Option<Kinds>,
    /// Entries larger than +N, smaller than -N, or of N; c (bytes), b, k, M, G round up to the unit as find does,
    /// KiB, MiB, GiB are exact
    #[arg(long, help_heading = "Filters", value_name = "[+-]N", allow_hyphen_values = true)]
    pub size: Vec<Size>,
    /// Entries modified more than +N, less than -N, or N whole days ago
    #[arg(long, help_heading = "Filters", value_name = "[+-]N", allow_hyphen_values = true)]
    pub mtime: Vec<Days>,
    /// Entries modified after a file was, or after a date: 2026-01-31, 2026-01-31T12:00, @1767225600
    #[arg(long, help_heading = "Filters", value_name = "FILE|DATE")]
    pub newer: Option<Reference>,
    /// Entries of this owner; may be repeated, any of them
    #[arg(long, help_heading = "Filters", value_name = "NAME|UID")]
    pub user: Vec<User>,
    /// Entries that many levels below their root: 2, 1..3, ..3 or 2..; deeper ones are not even looked at
    #[arg(long, help_heading = "Filters", value_name = "MIN..MAX")]
    pub depth: Option<Depths>,
    /// Neither report nor enter what has a name like this, or, with a slash in it, a path
    #[arg(long, help_heading = "Filters", value_name = "GLOB")]
    pub prune: Vec<String>,
    /// The same for what the patterns in this file match, which are written as in .gitignore
    #[arg(long, help_heading = "Filters", value_name = "FILE")]
    pub exclude_from: Vec<PathBuf>,
}
