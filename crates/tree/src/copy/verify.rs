//! The visitor that compares a source with its copy, or any two trees.
//!
//! A directory is compared when it is left. Where several processes compare, it may be left by several: then it is compared
//! where it is met in its parent, which happens once, and entering it is silent; the roots are compared before, by one of the
//! processes. The contents of large files are left for later then.

use std::ffi::CStr;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nacre_quantity::Escaped;
use nacre_walk::Directory;
use nacre_walk::WalkError;
use nacre_walk::directory;
use nacre_walk::{Entry, FileKind, Metadata};
use nacre_walk::{Opened, Verdict, Visitor};
use rustix::fs::{CWD, Statx};
use rustix::io::Errno;

use crate::copy::Shared;
use crate::copy::attributes::Named;
use crate::copy::data::{BUFFER_BYTES, Halt, open_for_reading};
use crate::copy::destination::Destination;
use crate::copy::file::{Later, stat_open};
use crate::copy::link::Met;
use crate::copy::mounts::{UNMOUNTED, is_unmounted, spare};
use crate::copy::range::{LeftOver, Leftovers};
use crate::copy::visitor::{FOLDS, SPARE, is_reported, left_out, passed};
use crate::error::EntryError;
use crate::root::Root;

pub const COMPARE: &str = "cannot compare";

/// The properties to compare, beside names, types, sizes, link targets and device numbers.
#[derive(Clone, Copy, Debug)]
pub struct Aspects {
    /// The contents of files.
    pub contents: bool,
    /// Owners, modes, times of modification and extended attributes.
    pub metadata: bool,
    /// Times of access: that of an entry at the destination has to be earlier than the copy.
    pub accessed: bool,
    /// Entries of the destination that the source has not.
    pub extras: bool,
    /// Every entry below a directory that the destination has not, and not the directory alone.
    pub below_missing: bool,
    /// File systems that are mounted below the source and not entered: each is a failure, as it is not compared.
    pub mounts: bool,
    /// Names of one file: those of the source have to be names of one file at the destination, too. Metadata of a file there that
    /// has further names are not adjusted.
    pub links: bool,
}

impl Aspects {
    /// Everything that makes two trees differ.
    pub const ALL: Aspects = Aspects {
        contents: true,
        metadata: true,
        accessed: false,
        extras: true,
        below_missing: false,
        mounts: true,
        links: false,
    };
}

/// The first aspect in which an entry of the source differs from its counterpart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// The destination has no such entry.
    Missing,
    /// The source has no such entry.
    Extra,
    /// The types differ.
    Kind,
    /// The sizes differ.
    Size,
    /// The contents of the files differ.
    Contents,
    /// The links point to different places.
    Target,
    /// The devices have different numbers.
    Device,
    /// Owner, group or mode differ.
    Permissions,
    /// The times of modification differ.
    Modified,
    /// The copy was accessed when it was made.
    Accessed,
    /// The extended attributes or ACLs differ.
    Extended,
    /// The entry of the destination cannot be read.
    Unreadable,
    /// Another name of the same file in the source has a copy, present or planned, that is another file.
    Linked,
    /// Its metadata differ, and it has other names, which would get the source's metadata with it.
    Shared,
}

impl Difference {
    /// Returns its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Difference::Missing => "only-in-source",
            Difference::Extra => "only-in-destination",
            Difference::Kind => "type",
            Difference::Size => "size",
            Difference::Contents => "contents",
            Difference::Target => "target",
            Difference::Device => "device",
            Difference::Permissions => "permissions",
            Difference::Modified => "modified",
            Difference::Accessed => "accessed",
            Difference::Extended => "attributes",
            Difference::Unreadable => "unreadable",
            Difference::Linked => "links",
            Difference::Shared => "shared",
        }
    }

    /// Returns the end of a sentence about the entry of the destination.
    pub fn sentence(self) -> &'static str {
        match self {
            Difference::Missing => "it is missing",
            Difference::Extra => "the source has none",
            Difference::Kind => "it is of another type",
            Difference::Size => "its size differs",
            Difference::Contents => "its contents are others",
            Difference::Target => "it points elsewhere",
            Difference::Device => "it is another device",
            Difference::Permissions => "its owner, group or mode differs",
            Difference::Modified => "its time differs",
            Difference::Accessed => "its time of access is that of the copy",
            Difference::Extended => "its extended attributes or ACLs are others",
            Difference::Unreadable => "it cannot be read",
            Difference::Linked => "it is another file than what the other names stand for",
            Difference::Shared => {
                "its metadata differ from those of the source, and are those of other names, too"
            }
        }
    }
}

/// An entry that differs.
#[derive(Clone, Debug)]
pub struct Differing {
    /// The path below source and destination; empty for these themselves.
    pub path: Vec<u8>,
    /// The type in the source; in the destination, for an entry that only that has.
    pub kind: FileKind,
    /// The size of a file that the destination has not, in bytes.
    pub size: u64,
    /// The difference.
    pub difference: Difference,
}

/// The line about a difference, as people read it.
impl fmt::Display for Differing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = Escaped(if self.path.is_empty() { &b"."[..] } else { &self.path });
        match self.difference {
            Difference::Missing => write!(f, "only in the source: {path}"),
            Difference::Extra => write!(f, "only in the destination: {path}"),
            difference => write!(f, "differ ({}): {path}", difference.name()),
        }
    }
}

/// A callback that is given every difference, from all threads.
pub type Report<'a> = &'a (dyn Fn(Differing) + Sync);

/// The visitor of one thread.
#[derive(derive_more::Debug)]
#[debug("Verifier")]
pub struct Verifier<'a> {
    shared: &'a Shared,
    aspects: Aspects,
    report: Report<'a>,
    top: &'a Arc<Destination>,
    source: &'a Root,
    destination: &'a Root,
    /// The receiver of large files whose contents are compared later.
    leftovers: Option<Leftovers<'a>>,
    buffer: Vec<u8>,
}

/// The counterpart of a directory; none if it is missing.
pub type Counterpart = Option<Arc<Destination>>;

impl<'a> Verifier<'a> {
    pub(crate) fn new(
        shared: &'a Shared,
        (aspects, report): (Aspects, Report<'a>),
        top: &'a Arc<Destination>,
        (source, destination): (&'a Root, &'a Root),
        leftovers: Option<Leftovers<'a>>,
    ) -> Verifier<'a> {
        Verifier { shared, aspects, report, top, source, destination, leftovers, buffer: Vec::new() }
    }

    /// Compares a source that is not a directory with the destination.
    pub fn compare_roots(&mut self, kind: FileKind, buffer: &mut Vec<u8>) {
        let (source, destination) = (self.source, self.destination);
        let names = (source.name(), destination.name());
        self.compare(source.parent(), kind, self.top, names, buffer, Vec::new);
    }

    /// Compares the roots of two trees, which are directories, as far as it is no matter of their entries.
    pub(crate) fn compare_root(&self, source: &CStr) {
        let found = match find_counterpart(Some(self.top), self.destination.name()) {
            Ok(found) => found,
            Err(difference) => {
                return (self.report)(Differing {
                    path: Vec::new(),
                    kind: FileKind::Directory,
                    size: 0,
                    difference,
                });
            }
        };
        let compared: Result<(), Outcome> = match open_for_reading(CWD, source) {
            Ok(source) => self.compare_directory(source.as_fd(), &found, &Vec::<u8>::new),
            Err(errno) if is_reported(errno) => return,
            Err(errno) => Err(errno.into()),
        };
        self.conclude(compared, FileKind::Directory, Vec::new);
    }

    /// Compares one entry, which is not a directory, with its counterpart.
    fn compare(
        &mut self,
        source: BorrowedFd<'_>,
        kind: FileKind,
        destination: &Destination,
        names: (&CStr, &CStr),
        buffer: &mut Vec<u8>,
        path: impl Fn() -> Vec<u8>,
    ) {
        buffer.resize(BUFFER_BYTES, 0);
        self.conclude(self.difference(source, kind, destination, names, buffer), kind, path);
    }

    fn conclude(&self, compared: Result<(), Outcome>, kind: FileKind, path: impl Fn() -> Vec<u8>) {
        match compared {
            Ok(()) => {
                self.shared.counters.verified.fetch_add(1, Ordering::Relaxed);
            }
            Err(Outcome::Differs(difference)) => {
                (self.report)(Differing { path: path(), kind, size: 0, difference });
            }
            Err(Outcome::Missing(size)) => {
                (self.report)(Differing { path: path(), kind, size, difference: Difference::Missing });
            }
            Err(Outcome::Unknown(Errno::NOENT)) => {
                self.shared.counters.vanished.fetch_add(1, Ordering::Relaxed);
            }
            Err(Outcome::Unknown(errno)) => {
                self.shared.failures.add(EntryError::new(self.source.join(&path()), COMPARE, errno));
            }
            Err(Outcome::Later) => {
                if let Some(leftovers) = self.leftovers {
                    leftovers(LeftOver { path: path(), later: Later::Large });
                }
            }
            Err(Outcome::Stopped) => {}
        }
    }

    fn difference(
        &self,
        source: BorrowedFd<'_>,
        kind: FileKind,
        destination: &Destination,
        (source_name, name): (&CStr, &CStr),
        buffer: &mut [u8],
    ) -> Result<(), Outcome> {
        let stat = directory::stat(source, source_name)?;
        let there = destination.stat(name).map_err(|_| Difference::Unreadable)?;
        let compared = match &there {
            Some(copy) => {
                self.difference_to((source, &stat), kind, (destination, copy), (source_name, name), buffer)
            }
            None => Err(Outcome::Missing(size_of(&stat))),
        };
        self.with_links(&stat, there.as_ref(), compared)
    }

    /// Returns how an entry compares if names of files matter: `compared` is the result without them, and `there` what the
    /// destination has under its name.
    fn with_links(
        &self,
        stat: &Statx,
        there: Option<&Statx>,
        compared: Result<(), Outcome>,
    ) -> Result<(), Outcome> {
        if !self.aspects.links {
            return compared;
        }
        const METADATA: [Difference; 2] = [Difference::Permissions, Difference::Extended];
        let is_file = Metadata(*stat).kind() == FileKind::File;
        let existing = there.map(directory::identity);
        // The entry that a copy of this name leaves or changes in its place, if it does not make a new one.
        let (compared, stays) = match compared {
            Ok(()) => (Ok(()), existing),
            Err(Outcome::Differs(difference)) if METADATA.contains(&difference) && is_file => {
                match there.is_some_and(|there| there.stx_nlink > 1) {
                    true => (Err(Difference::Shared.into()), None),
                    false => (Err(difference.into()), existing),
                }
            }
            Err(outcome @ (Outcome::Differs(_) | Outcome::Missing(_))) => (Err(outcome), None),
            unknown => return unknown,
        };
        if stat.stx_nlink < 2 {
            return compared;
        }
        match self.shared.previewed.met(directory::identity(stat), stat.stx_nlink, stays) {
            Met::First => compared,
            Met::Again(Some(first)) if existing == Some(first) => Ok(()),
            // What is in the place of a name is counted apart.
            Met::Again(_) if matches!(compared, Err(Outcome::Differs(Difference::Kind))) => compared,
            Met::Again(_) => Err(Difference::Linked.into()),
        }
    }

    fn difference_to(
        &self,
        (source, stat): (BorrowedFd<'_>, &Statx),
        kind: FileKind,
        (destination, copy): (&Destination, &Statx),
        (source_name, name): (&CStr, &CStr),
        buffer: &mut [u8],
    ) -> Result<(), Outcome> {
        self.differ(stat, copy)?;
        let directory = destination.descriptor()?;
        match kind {
            FileKind::Link => {
                let target = rustix::fs::readlinkat(source, source_name, Vec::new())?;
                if rustix::fs::readlinkat(&directory, name, Vec::new()).as_ref() != Ok(&target) {
                    return Err(Difference::Target.into());
                }
                if self.aspects.metadata && !self.shared.keeper.is_kept(stat, copy) {
                    return Err(Difference::Permissions.into());
                }
            }
            FileKind::File if self.aspects.contents || self.aspects.metadata => {
                let source = Arc::new(open_for_reading(source, source_name)?);
                let copy = open_for_reading(&directory, name);
                let copy = Arc::new(copy.map_err(|_| Difference::Unreadable)?);
                if self.aspects.metadata && !self.shared.keeper.same_extended(source.as_fd(), copy.as_fd())? {
                    return Err(Difference::Extended.into());
                }
                if !self.aspects.contents {
                    return Ok(());
                }
                if self.leftovers.is_some() && stat.stx_size > self.shared.options.chunk_bytes {
                    return Err(Outcome::Later);
                }
                match self.shared.compare((&source, &copy), stat, buffer) {
                    Ok(()) => {}
                    Err(Halt::Differs | Halt::Ended) => return Err(Difference::Contents.into()),
                    Err(Halt::Stopped) => return Err(Outcome::Stopped),
                    Err(Halt::Failed(errno)) => return Err(errno.into()),
                }
            }
            _ => {}
        }
        // Those of files and directories are read where these are open.
        if self.aspects.metadata && !matches!(kind, FileKind::File | FileKind::Directory) {
            let source = Named { directory: source, name: source_name };
            let copy = Named { directory: directory.as_fd(), name };
            if !self.shared.keeper.same_extended_named(&source, &copy)? {
                return Err(Difference::Extended.into());
            }
        }
        Ok(())
    }

    /// Compares type, size and other metadata, without opening either entry.
    fn differ(&self, stat: &Statx, copy: &Statx) -> Result<(), Outcome> {
        let (a, b) = (Metadata(*stat), Metadata(*copy));
        let (metadata, accessed) = (self.aspects.metadata, self.aspects.accessed);
        let differs = [
            (a.kind() != b.kind(), Difference::Kind),
            // A file that says no size is read to its end.
            (
                a.kind() == FileKind::File
                    && (a.size() > 0 || !self.aspects.contents)
                    && a.size() != b.size(),
                Difference::Size,
            ),
            (metadata && a.modified() != b.modified(), Difference::Modified),
            // Others may read either at any time. A copy that was read when it was made has the wrong time. A link cannot be
            // looked at without that.
            (
                accessed
                    && a.kind() != FileKind::Link
                    && b.accessed() >= self.shared.began
                    && a.accessed() < self.shared.began,
                Difference::Accessed,
            ),
            (a.special_device() != b.special_device(), Difference::Device),
            // The owners of links, whose targets matter more, are compared later.
            (
                metadata && a.kind() != FileKind::Link && !self.shared.keeper.is_kept(stat, copy),
                Difference::Permissions,
            ),
        ];
        match differs.into_iter().find(|(differs, _)| *differs) {
            Some((_, difference)) => Err(difference.into()),
            None => Ok(()),
        }
    }

    /// Compares a directory, as far as it is no matter of its entries, and finds those that only the destination has.
    fn compare_directory(
        &self,
        source: BorrowedFd<'_>,
        copy: &Destination,
        path: &dyn Fn() -> Vec<u8>,
    ) -> Result<(), Outcome> {
        let opened = copy.descriptor()?;
        if self.aspects.extras {
            let mut folds = None;
            let unmounted = self.shared.options.mirror && is_unmounted(self.shared, source, copy)?;
            copy.each_beyond(source, |name| {
                let below = join(path(), name);
                if unmounted {
                    let path = self.destination.join(&below);
                    return self.shared.failures.add(EntryError::new(path, SPARE, UNMOUNTED));
                }
                if self.shared.options.mirror
                    && *folds.get_or_insert_with(|| copy.answers_to_unlisted(source)) == Ok(true)
                {
                    let path = self.destination.join(&below);
                    return self.shared.failures.add(EntryError::new(path, SPARE, FOLDS));
                }
                let kind = copy.stat(name).ok().flatten();
                (self.report)(Differing {
                    path: below,
                    kind: kind.map_or(FileKind::Unknown, |stat| Metadata(stat).kind()),
                    size: 0,
                    difference: Difference::Extra,
                });
            })?;
        }
        let (stat, there) = (stat_open(source)?, stat_open(opened.as_fd())?);
        self.differ(&stat, &there)?;
        let same = !self.aspects.metadata || self.shared.keeper.same_extended(source, opened.as_fd())?;
        if same { Ok(()) } else { Err(Difference::Extended.into()) }
    }

    /// Compares a directory of the source where it is met in `parent`, and returns whether to enter it.
    fn compare_where_met(&self, entry: &Entry<'_, Counterpart>, parent: &Directory<Counterpart>) -> Verdict {
        let path = || below(parent, entry.name);
        // What is mounted there is no matter of the comparison, unless the walk goes on in it.
        let crosses = self.shared.options.cross_mounts;
        let is_mount_point = |stat: &Statx| !crosses && Metadata(*stat).is_mount_point();
        if directory::stat(entry.parent(), entry.name).is_ok_and(|stat| is_mount_point(&stat)) {
            return Verdict::Descend;
        }
        let found = match find_counterpart(parent.state().as_ref(), entry.name) {
            Ok(found) => found,
            Err(difference) => {
                (self.report)(Differing { path: path(), kind: FileKind::Directory, size: 0, difference });
                return if self.aspects.below_missing { Verdict::Descend } else { Verdict::Pass };
            }
        };
        let is_compared = |source: BorrowedFd<'_>| -> Result<bool, Errno> {
            let stat = stat_open(source)?;
            Ok(Metadata(stat).kind() == FileKind::Directory
                && (crosses || !directory::is_mounted(&stat, entry.parent(), source)?))
        };
        let compared: Result<(), Outcome> = match open_for_reading(entry.parent(), entry.name) {
            Ok(source) => match is_compared(source.as_fd()) {
                Ok(true) => self.compare_directory(source.as_fd(), &found, &path),
                Ok(false) => return Verdict::Descend,
                Err(errno) => Err(errno.into()),
            },
            Err(errno) if is_reported(errno) => return Verdict::Descend,
            Err(errno) => Err(errno.into()),
        };
        self.conclude(compared, FileKind::Directory, path);
        Verdict::Descend
    }
}

/// Returns the counterpart of a directory, in that of its parent; the difference if there is none.
fn find_counterpart(parent: Option<&Arc<Destination>>, name: &CStr) -> Result<Arc<Destination>, Difference> {
    match parent.map(|parent| parent.find(name)) {
        Some(Ok(found)) => Ok(found),
        None | Some(Err(Errno::NOENT)) => Err(Difference::Missing),
        Some(Err(Errno::NOTDIR | Errno::LOOP)) => Err(Difference::Kind),
        Some(Err(_)) => Err(Difference::Unreadable),
    }
}

/// The reason why two entries are not known to be the same.
enum Outcome {
    Differs(Difference),
    /// The destination has none; the size in bytes if it is a file.
    Missing(u64),
    Unknown(Errno),
    /// The contents are compared later.
    Later,
    Stopped,
}

impl From<Errno> for Outcome {
    fn from(errno: Errno) -> Outcome {
        Outcome::Unknown(errno)
    }
}

impl From<Difference> for Outcome {
    fn from(difference: Difference) -> Outcome {
        Outcome::Differs(difference)
    }
}

fn size_of(stat: &Statx) -> u64 {
    let metadata = Metadata(*stat);
    if metadata.kind() == FileKind::File { metadata.size() } else { 0 }
}

fn below<S>(directory: &Directory<S>, name: &CStr) -> Vec<u8> {
    join(directory.path_below_root(), name)
}

fn join(mut path: Vec<u8>, name: &CStr) -> Vec<u8> {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name.to_bytes());
    path
}

impl Visitor for Verifier<'_> {
    type State = Counterpart;

    fn enter(&mut self, opened: &Opened<'_, Counterpart>) -> Option<Counterpart> {
        if self.shared.control.is_stopped() {
            return None;
        }
        let path = || opened.directory.map_or_else(Vec::new, |parent| below(parent, opened.name));
        let (parent, name) = match opened.directory {
            Some(parent) => (parent.state().as_ref(), opened.name),
            None => (Some(self.top), self.destination.name()),
        };
        let difference = match find_counterpart(parent, name) {
            Ok(mut found) => {
                spare(self.shared, opened.descriptor, &mut found);
                return Some(Some(found));
            }
            Err(difference) => difference,
        };
        if !self.shared.together {
            (self.report)(Differing { path: path(), kind: FileKind::Directory, size: 0, difference });
        }
        self.aspects.below_missing.then_some(None)
    }

    fn visit(&mut self, entry: &Entry<'_, Counterpart>) -> Verdict {
        if self.shared.control.is_stopped() {
            return Verdict::Pass;
        }
        if let Some(verdict) = passed(self.shared, entry) {
            return match (verdict, entry.directory) {
                (Verdict::Descend, Some(parent))
                    if self.shared.together && entry.kind == FileKind::Directory =>
                {
                    self.compare_where_met(entry, parent)
                }
                (verdict, _) => verdict,
            };
        }
        let Some(directory) = entry.directory else { return Verdict::Descend };
        let path = || below(directory, entry.name);
        if left_out(entry).is_some() {
            if entry.kind == FileKind::Socket
                && let Some(counterpart) = directory.state()
                && let Ok(Some(stat)) = counterpart.stat(entry.name)
                && Metadata(stat).kind() != FileKind::Socket
            {
                self.conclude(Err(Difference::Kind.into()), entry.kind, path);
            }
            return Verdict::Pass;
        }
        let Some(counterpart) = directory.state() else {
            let compared = match directory::stat(entry.parent(), entry.name) {
                Ok(stat) => self.with_links(&stat, None, Err(Outcome::Missing(size_of(&stat)))),
                Err(errno) => Err(errno.into()),
            };
            self.conclude(compared, entry.kind, path);
            return Verdict::Pass;
        };
        let mut buffer = std::mem::take(&mut self.buffer);
        let names = (entry.name, entry.name);
        self.compare(entry.parent(), entry.kind, counterpart, names, &mut buffer, path);
        self.buffer = buffer;
        self.shared.counters.entries.fetch_add(1, Ordering::Relaxed);
        Verdict::Pass
    }

    fn leave(&mut self, directory: &Directory<Counterpart>) {
        let Some(counterpart) = directory.state() else { return };
        if !self.shared.control.is_stopped() && !self.shared.together {
            let path = || directory.path_below_root();
            let compared = directory
                .descriptor()
                .map_err(Outcome::Unknown)
                .and_then(|source| self.compare_directory(source.as_fd(), counterpart, &path));
            self.conclude(compared, FileKind::Directory, path);
        }
        counterpart.leave();
    }

    fn pack(state: &Counterpart, child: &Counterpart, packed: &mut Vec<u8>) -> bool {
        packed.push(u8::from(state.is_some()));
        match (state, child) {
            (None, None) => true,
            (Some(state), Some(child)) => state.pack(child),
            // There is nothing that keeps what would be packed.
            (Some(_), None) | (None, Some(_)) => false,
        }
    }

    fn unpack(packed: &[u8], child: &Counterpart) -> Counterpart {
        match child {
            Some(child) if packed == [1] => child.unpack_above(),
            _ => None,
        }
    }

    fn assist(&mut self) -> bool {
        self.shared.help(&mut self.buffer)
    }

    fn mount_point(&mut self, path: Vec<u8>) {
        if self.aspects.mounts {
            let cause = "another file system is mounted there; --cross-mounts continues in it";
            self.shared.failures.add(EntryError::new(path, COMPARE, cause));
        }
    }

    fn failed(&mut self, error: WalkError) {
        if error.vanished() {
            self.shared.counters.vanished.fetch_add(1, Ordering::Relaxed);
        } else {
            self.shared.failures.add(error.into());
        }
    }
}
