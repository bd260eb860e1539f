//! The selection of entries to count or list, and of directories to descend into, in the manner of `find`.
//!
//! All conditions must hold. Directories that a [`Filter`] refuses are walked nevertheless; only a [`Descent`] keeps
//! the walk out of directories.

mod parse;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use nacre_quantity::Escaped;
pub use parse::{Comparison, Days, Depths, Group, Kinds, Reference, Size, User};

use crate::entry::{Entry, FileKind, Metadata, Time};
use crate::lustre::Layout;
use crate::walk::Verdict;

/// The conditions on entries to count or list.
#[derive(Debug, Default)]
pub struct Filter {
    /// Patterns of names, of which one must match.
    pub names: Option<GlobSet>,
    /// Kinds, of which one must match.
    pub kinds: Option<Kinds>,
    /// Conditions on the size, all of which must hold.
    pub sizes: Vec<Size>,
    /// Conditions on the days since the last modification, all of which must hold.
    pub ages: Vec<Days>,
    /// Conditions on the days since the last access, all of which must hold.
    pub accesses: Vec<Days>,
    /// Conditions on the days since the last change of the inode, all of which must hold.
    pub changes: Vec<Days>,
    /// The time that ages are relative to.
    pub now: Time,
    /// The time after which an entry must be modified.
    pub newer: Option<Time>,
    /// Owners, of which one must match.
    pub users: Vec<u32>,
    /// Groups, of which one must match.
    pub groups: Vec<u32>,
    /// The OSTs of Lustre on one of which a file must have an object. Only [`Filter::matches_layout`] compares them.
    pub osts: Vec<u32>,
    /// The minimum depth.
    pub depth_min: u32,
    /// True if there are no conditions. [`Filter::ready`] sets it.
    pub plain: bool,
}

impl Filter {
    /// Prepares the filter once all conditions are set.
    pub fn ready(mut self) -> Filter {
        self.plain =
            self.names.is_none() && self.kinds.is_none() && self.depth_min == 0 && !self.needs_metadata();
        self
    }

    /// Returns whether it needs an entry's metadata.
    pub fn needs_metadata(&self) -> bool {
        let ages = [&self.ages, &self.accesses, &self.changes];
        !self.sizes.is_empty()
            || ages.iter().any(|ages| !ages.is_empty())
            || self.newer.is_some()
            || !self.users.is_empty()
            || !self.groups.is_empty()
            || self.needs_layout()
    }

    /// Returns whether it needs a file's layout on Lustre. An entry that [`Filter::matches`] has to be passed to
    /// [`Filter::matches_layout`] too then, because asking for a layout takes a call of its own.
    pub fn needs_layout(&self) -> bool {
        !self.osts.is_empty()
    }

    /// Returns whether an entry that it matches otherwise is to be counted or listed.
    pub fn matches_layout(&self, layout: Option<&Layout>) -> bool {
        !self.needs_layout()
            || layout.is_some_and(|layout| layout.osts.iter().any(|ost| self.osts.contains(ost)))
    }

    /// Returns whether an entry is to be counted or listed.
    #[inline]
    pub fn matches<S>(&self, entry: &Entry<'_, S>) -> bool {
        self.plain || self.matches_all(entry)
    }

    fn matches_all<S>(&self, entry: &Entry<'_, S>) -> bool {
        if entry.depth < self.depth_min || self.kinds.is_some_and(|kinds| !kinds.contains(entry.kind)) {
            return false;
        }
        self.matches_name(OsStr::from_bytes(base_name(entry)))
            && (!self.needs_metadata()
                || entry.metadata.is_some_and(|metadata| self.matches_values(metadata)))
    }

    /// Returns whether an entry that is known by its name and metadata is to be counted or listed, at whatever depth.
    pub fn matches_metadata(&self, name: &OsStr, metadata: &Metadata) -> bool {
        self.kinds.is_none_or(|kinds| kinds.contains(metadata.kind()))
            && self.matches_name(name)
            && self.matches_values(metadata)
    }

    fn matches_name(&self, name: &OsStr) -> bool {
        self.names.as_ref().is_none_or(|names| names.is_match(name))
    }

    fn matches_values(&self, metadata: &Metadata) -> bool {
        let modified = metadata.modified();
        self.sizes.iter().all(|size| size.matches(metadata.size()))
            && self.ages.iter().all(|days| days.matches(self.now, modified))
            && self.accesses.iter().all(|days| days.matches(self.now, metadata.accessed()))
            && self.changes.iter().all(|days| days.matches(self.now, metadata.changed()))
            && self.newer.is_none_or(|newer| modified > newer)
            && (self.users.is_empty() || self.users.contains(&metadata.user()))
            && (self.groups.is_empty() || self.groups.contains(&metadata.group()))
    }
}

/// The conditions on directories to descend into and on entries to skip entirely.
#[derive(Debug, Default)]
pub struct Descent {
    /// Patterns of names to skip.
    pub prune: Option<GlobSet>,
    /// Patterns of whole paths to skip.
    pub prune_paths: Option<GlobSet>,
    /// Patterns from files, which are relative to each root.
    pub exclude: Option<Gitignore>,
    /// The maximum depth.
    pub depth_max: Option<u32>,
}

impl Descent {
    /// Returns whether it skips nothing.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.prune.is_none()
            && self.prune_paths.is_none()
            && self.exclude.is_none()
            && self.depth_max.is_none()
    }

    /// Returns whether an entry is neither reported nor entered. Roots were named explicitly, so they never are
    /// excluded.
    pub fn excludes<S>(&self, entry: &Entry<'_, S>) -> bool {
        if entry.depth == 0 {
            return false;
        }
        let name = OsStr::from_bytes(entry.name.to_bytes());
        if self.prune.as_ref().is_some_and(|prune| prune.is_match(name)) {
            return true;
        }
        self.prune_paths.as_ref().is_some_and(|prune| prune.is_match(entry.path()))
            || self.exclude.as_ref().is_some_and(|exclude| {
                let is_directory = entry.kind == FileKind::Directory;
                exclude.matched(entry.path_below_root(), is_directory).is_ignore()
            })
    }

    /// Returns whether to descend into a directory that is not excluded.
    pub fn verdict<S>(&self, entry: &Entry<'_, S>) -> Verdict {
        if self.depth_max.is_some_and(|max| entry.depth >= max) { Verdict::Pass } else { Verdict::Descend }
    }
}

/// The entries that a walk acts on, and the directories that it enters.
#[derive(Debug, Default)]
pub struct Selection {
    /// The entries that it acts on.
    pub filter: Filter,
    /// The directories that it enters.
    pub descent: Descent,
}

/// A selection's decision on one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// True if the entry is one to act on.
    pub selected: bool,
    /// The decision whether to enter it, if it is a directory.
    pub verdict: Verdict,
}

impl Selection {
    /// Decides on an entry.
    #[inline]
    pub fn choose<S>(&self, entry: &Entry<'_, S>) -> Choice {
        let verdict = if self.descent.is_plain() {
            Verdict::Descend
        } else if self.descent.excludes(entry) {
            return Choice { selected: false, verdict: Verdict::Pass };
        } else {
            self.descent.verdict(entry)
        };
        Choice { selected: self.filter.matches(entry), verdict }
    }
}

/// Returns the last name of an entry's path, for a root without trailing slashes.
fn base_name<'a, S>(entry: &'a Entry<'_, S>) -> &'a [u8] {
    let name = entry.name.to_bytes();
    if entry.depth > 0 {
        return name;
    }
    let end = name.iter().rposition(|byte| *byte != b'/').map_or(name.len().min(1), |last| last + 1);
    let name = &name[..end];
    match name.iter().rposition(|byte| *byte == b'/') {
        Some(slash) if name.len() > 1 => &name[slash + 1..],
        _ => name,
    }
}

/// Compiles patterns: `*` and `?` match a slash and a leading dot too, as in `find`.
///
/// # Errors
/// A message if a pattern is invalid.
pub fn globs<'a>(
    patterns: impl IntoIterator<Item = &'a String>,
    ignored_case: impl IntoIterator<Item = &'a String>,
) -> Result<Option<GlobSet>, String> {
    let mut set = GlobSetBuilder::new();
    let mut empty = true;
    let patterns = patterns.into_iter().map(|pattern| (pattern, false));
    for (pattern, ignore_case) in patterns.chain(ignored_case.into_iter().map(|pattern| (pattern, true))) {
        let glob = GlobBuilder::new(pattern)
            .case_insensitive(ignore_case)
            .literal_separator(false)
            .build()
            .map_err(|error| format!("\"{pattern}\" is not a pattern: {}", error.kind()))?;
        set.add(glob);
        empty = false;
    }
    if empty {
        return Ok(None);
    }
    set.build().map(Some).map_err(|error| format!("the patterns are too large: {error}"))
}

/// Reads files of patterns as in `.gitignore`, relative to each root.
///
/// # Errors
/// A message if a file cannot be read or a pattern is invalid.
pub fn exclusions(files: &[PathBuf]) -> Result<Option<Gitignore>, String> {
    if files.is_empty() {
        return Ok(None);
    }
    // Paths below this one are matched as they are: a root may hold a directory of its own name.
    let mut builder = GitignoreBuilder::new(".");
    for file in files {
        let shown = Escaped::of(file);
        let text = std::fs::read(file).map_err(|error| format!("cannot read \"{shown}\": {error}"))?;
        for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = std::str::from_utf8(line)
                .map_err(|_| format!("line {} of \"{shown}\" is not UTF-8", number + 1))?;
            builder
                .add_line(Some(file.clone()), line.trim_end_matches('\r'))
                .map_err(|error| format!("line {} of \"{shown}\": {error}", number + 1))?;
        }
    }
    let built = builder.build();
    built.map(Some).map_err(|error| {
        let files: Vec<String> = files.iter().map(|file| format!("\"{}\"", Escaped::of(file))).collect();
        format!("the patterns of {} are too large: {error}", files.join(", "))
    })
}
