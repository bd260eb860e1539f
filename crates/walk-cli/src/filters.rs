//! The flags by which a walk, a copy or a removal is restricted to some entries.

use std::fmt::Display;
use std::path::PathBuf;

use nacre_quantity::Escaped;
use nacre_walk::Time;
use nacre_walk::filter::{
    Days, Depths, Descent, Filter, Group, Kinds, Reference, Selection, Size, User, exclusions, globs,
};

/// The flags of a selection of entries.
#[derive(clap::Args, Clone, Debug, Default)]
#[group(id = "filters", multiple = true)]
pub struct Filters {
    /// Entries whose names match, with * ? [a-z] {a,b} as in a shell; may be repeated to match any
    #[arg(long, help_heading = "Filters", value_name = "GLOB")]
    pub name: Vec<String>,
    /// Like --name, but ignoring case
    #[arg(long, help_heading = "Filters", value_name = "GLOB")]
    pub iname: Vec<String>,
    /// Entries of these types: f,d,l,p,s,c,b, as in find
    #[arg(long = "type", help_heading = "Filters", value_name = "TYPE,…")]
    pub kinds: Option<Kinds>,
    /// Entries larger than +N, smaller than -N, or of size N; c (bytes), b, k, M, G round up to the unit as in find,
    /// KiB, MiB, GiB are exact
    #[arg(long, help_heading = "Filters", value_name = "[+-]N", allow_hyphen_values = true)]
    pub size: Vec<Size>,
    /// Entries modified more than +N, less than -N, or N whole days ago
    #[arg(long, help_heading = "Filters", value_name = "[+-]N", allow_hyphen_values = true)]
    pub mtime: Vec<Days>,
    /// Like --mtime, by the last access, if the file system records it
    #[arg(long, help_heading = "Filters", value_name = "[+-]N", allow_hyphen_values = true)]
    pub atime: Vec<Days>,
    /// Like --mtime, by the last change of the inode: contents, owner, permissions or name
    #[arg(long, help_heading = "Filters", value_name = "[+-]N", allow_hyphen_values = true)]
    pub ctime: Vec<Days>,
    /// Entries modified after this file, or after a date in local time: 2026-01-31, 2026-01-31T12:00, @1767225600
    #[arg(long, help_heading = "Filters", value_name = "FILE|DATE")]
    pub newer: Option<Reference>,
    /// Entries of this owner; may be repeated to match any
    #[arg(long, help_heading = "Filters", value_name = "NAME|UID")]
    pub user: Vec<User>,
    /// Entries of this group; may be repeated to match any
    #[arg(long, help_heading = "Filters", value_name = "NAME|GID")]
    pub group: Vec<Group>,
    /// Entries at these levels below their root: 2, 1..3, ..3 or 2..; deeper ones are not visited
    #[arg(long, help_heading = "Filters", value_name = "MIN..MAX")]
    pub depth: Option<Depths>,
    /// Neither report nor enter entries whose names match, or, if the pattern has a slash, whose paths match
    #[arg(long, help_heading = "Filters", value_name = "GLOB")]
    pub prune: Vec<String>,
    /// Like --prune, with the patterns in this file, in the format of .gitignore
    #[arg(long, help_heading = "Filters", value_name = "FILE")]
    pub exclude_from: Vec<PathBuf>,
}

impl Filters {
    /// Returns whether any of them is given.
    pub fn is_given(&self) -> bool {
        let lists = [&self.name, &self.iname, &self.prune];
        lists.iter().any(|list| !list.is_empty())
            || self.kinds.is_some()
            || !self.size.is_empty()
            || [&self.mtime, &self.atime, &self.ctime].iter().any(|ages| !ages.is_empty())
            || self.newer.is_some()
            || !self.user.is_empty()
            || !self.group.is_empty()
            || self.depth.is_some()
            || !self.exclude_from.is_empty()
    }

    /// Returns the flags with their values.
    pub fn identity(&self) -> Vec<(String, String)> {
        let flags: [(&str, String); 13] = [
            ("--name", format!("{:?}", self.name)),
            ("--iname", format!("{:?}", self.iname)),
            ("--type", format!("{:?}", self.kinds)),
            ("--size", format!("{:?}", self.size)),
            ("--mtime", format!("{:?}", self.mtime)),
            ("--atime", format!("{:?}", self.atime)),
            ("--ctime", format!("{:?}", self.ctime)),
            ("--newer", format!("{:?}", self.newer)),
            ("--user", format!("{:?}", self.user)),
            ("--group", format!("{:?}", self.group)),
            ("--depth", format!("{:?}", self.depth)),
            ("--prune", format!("{:?}", self.prune)),
            ("--exclude-from", format!("{:?}", self.exclude_from)),
        ];
        flags.map(|(flag, value)| (flag.to_owned(), value)).into()
    }

    /// Returns the flags that are given, with their values as they are typed.
    pub fn given(&self) -> Vec<(String, String)> {
        fn all<T>(values: &[T], text: impl Fn(&T) -> String) -> String {
            values.iter().map(text).collect::<Vec<_>>().join(", ")
        }
        fn one<T: Display>(value: Option<&T>) -> String {
            value.map(T::to_string).unwrap_or_default()
        }
        let quoted = |patterns: &[String]| all(patterns, |pattern| format!("{pattern:?}"));
        let flags: [(&str, String); 13] = [
            ("--name", quoted(&self.name)),
            ("--iname", quoted(&self.iname)),
            ("--type", one(self.kinds.as_ref())),
            ("--size", all(&self.size, Size::to_string)),
            ("--mtime", all(&self.mtime, Days::to_string)),
            ("--atime", all(&self.atime, Days::to_string)),
            ("--ctime", all(&self.ctime, Days::to_string)),
            ("--newer", one(self.newer.as_ref())),
            ("--user", all(&self.user, |user| user.0.to_string())),
            ("--group", all(&self.group, |group| group.0.to_string())),
            ("--depth", one(self.depth.as_ref())),
            ("--prune", quoted(&self.prune)),
            ("--exclude-from", all(&self.exclude_from, |file| format!("\"{}\"", Escaped::of(file)))),
        ];
        let given = flags.into_iter().filter(|(_, value)| !value.is_empty());
        given.map(|(flag, value)| (flag.to_owned(), value)).collect()
    }

    /// Returns what they select, at a time that ages are relative to.
    ///
    /// # Errors
    /// A message if a pattern is invalid, or a file that a flag names cannot be read.
    pub fn selection(&self, now: Time) -> Result<Selection, String> {
        let (prune_paths, prune): (Vec<&String>, Vec<&String>) =
            self.prune.iter().partition(|pattern| pattern.contains('/'));
        let filter = Filter {
            names: globs(&self.name, &self.iname)?,
            kinds: self.kinds,
            sizes: self.size.clone(),
            ages: self.mtime.clone(),
            accesses: self.atime.clone(),
            changes: self.ctime.clone(),
            now,
            newer: self.newer.as_ref().map(Reference::time).transpose()?,
            users: self.user.iter().map(|user| user.0).collect(),
            groups: self.group.iter().map(|group| group.0).collect(),
            depth_min: self.depth.map_or(0, |depths| depths.min),
            ..Filter::default()
        }
        .ready();
        let descent = Descent {
            prune: globs(prune, [])?,
            prune_paths: globs(prune_paths, [])?,
            exclude: exclusions(&self.exclude_from)?,
            depth_max: self.depth.and_then(|depths| depths.max),
        };
        Ok(Selection { filter, descent })
    }
}
