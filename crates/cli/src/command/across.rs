//! Copies of trees from this machine to the namespace of a store, back, and within it: of `nacre copy` and `nacre fs put` and `get` with
//! `--recursive`.
//!
//! - A copy is made of pieces of work ([`Job`]): a page of a directory, or an entry. Some are under way at a time, and the newest of the
//!   others is next, so that what waits is about a page for each level of the tree.
//! - A directory gets its metadata when everything in it is done, so one that may not be written is filled too.
//! - A file gets its name when it is complete, and its time of modification last, by which the next copy knows that it is.
//! - What cannot be copied is noted, and the rest is copied.

pub mod command;
mod entry;
mod local;
pub mod mounted;
mod namespace;
mod side;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
pub use local::Local;
use nacre_tree::copy::attributes::{Attributes, Preserver};
use nacre_tree::copy::{Counters, Plan};
use nacre_tree::{Cause, Control, EntryError, EntryErrors};
use nacre_walk::{FileKind, Metadata};
pub use namespace::Namespace;
use side::Item;
pub use side::Side;

/// The test by which a file is not copied again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Same {
    /// Its size and its time of modification.
    Time,
    /// Its contents.
    Contents,
    /// Nothing.
    Never,
}

/// The settings of a copy.
pub struct Settings {
    /// The test by which a file is not copied again.
    pub same: Same,
    /// Keeps extended attributes.
    pub extended: bool,
    /// Continues in other file systems that are mounted below the source.
    pub cross_mounts: bool,
    /// The number of pieces of work that are under way at a time.
    pub width: usize,
}

/// The progress and the result of a copy, for all threads.
#[derive(Default)]
pub struct Progress {
    pub counters: Counters,
    /// The number of files among the entries that were copied.
    pub files: AtomicU64,
    pub failures: EntryErrors,
    pub notes: EntryErrors,
    pub control: Control,
}

/// The purpose of going through a tree.
pub enum Purpose<'a> {
    /// Copying it.
    Copy,
    /// Finding out what a copy would do. The function is given what it would do with which path.
    Preview(&'a Plan, &'a dyn Fn(&'static str, &[u8])),
    /// Comparing it with its copy.
    Verify,
}

/// The place of a source, and that of its copy: each the open directory that it is in, and its name.
pub struct Ends<S: Side, T: Side> {
    pub from: (S::Directory, CString),
    pub to: (T::Directory, CString),
    /// The path of the source, as it was given.
    pub path: Vec<u8>,
    /// The devices by which the source may lead into the copy: those of mounts of the namespace that the copy is made in.
    pub mounts: Vec<u64>,
}

/// A pass through a tree.
pub struct Pass<'a, S: Side, T: Side> {
    source: &'a S,
    target: &'a T,
    settings: &'a Settings,
    progress: &'a Progress,
    purpose: Purpose<'a>,
    keeper: Preserver,
    ends: &'a Ends<S, T>,
    /// The inode number of the copy of a directory, once there is one, if the source may lead into it.
    copy: Cell<Option<u64>>,
    /// Files with several names, by device and inode number, until all of them were met.
    links: RefCell<HashMap<(u64, u64), Link<S, T>>>,
}

/// A file with several names.
enum Link<S: Side, T: Side> {
    /// Its first name is being copied. The others wait.
    Busy(Vec<Job<S, T>>),
    /// Its copy, and the number of names that were not met yet.
    Done(T::Kept, u32),
}

/// A directory under way.
struct Place<S: Side, T: Side> {
    /// The directory that it is in; `None` for the one in which the source is.
    above: Option<Rc<Place<S, T>>>,
    name: CString,
    to_name: CString,
    from: S::Directory,
    /// `None` where a preview finds none.
    to: Option<T::Directory>,
    /// The metadata that it gets in the end; `None` for the one in which the source is.
    metadata: Option<(Metadata, Attributes)>,
    /// The number of levels below the directory in which the source is.
    depth: u32,
    /// The number of pieces of work in it that are not done.
    left: Cell<usize>,
}

/// The depth from which on a directory is looked for among those above it at some depths only.
const LOOP_DEPTH_ALWAYS: u32 = 64;

impl<S: Side, T: Side> Place<S, T> {
    /// Returns the path of an entry below the source; empty for the source itself.
    fn path(&self, name: &[u8]) -> Vec<u8> {
        let Some(above) = &self.above else { return Vec::new() };
        let mut names = vec![name, self.name.to_bytes()];
        let mut at = above;
        while let Some(above) = &at.above {
            names.push(at.name.to_bytes());
            at = above;
        }
        // The last one is that of the source.
        names.pop();
        names.reverse();
        names.join(&b'/')
    }

    /// Returns whether a directory is this one, or one above it.
    fn is_within(&self, directory: &Metadata) -> bool {
        let identity = (directory.device(), directory.inode());
        let mut at = Some(self);
        while let Some(place) = at {
            if place.metadata.as_ref().is_some_and(|(own, _)| (own.device(), own.inode()) == identity) {
                return true;
            }
            at = place.above.as_deref();
        }
        false
    }
}

/// Drops a chain of directories one after the other: recursion over very many levels would overflow the stack.
impl<S: Side, T: Side> Drop for Place<S, T> {
    fn drop(&mut self) {
        let mut above = self.above.take();
        while let Some(place) = above {
            above = Rc::into_inner(place).and_then(|mut place| place.above.take());
        }
    }
}

/// A piece of work.
enum Job<S: Side, T: Side> {
    /// The rest of a directory.
    List(Rc<Place<S, T>>, Option<S::Cursor>),
    /// An entry, and the name of its copy.
    Entry(Rc<Place<S, T>>, Item, CString),
}

/// The reason why something was not done.
enum Halt {
    /// It failed: the attempted operation, and the reason.
    Failed(&'static str, Cause),
    /// The copy was asked to stop.
    Stopped,
}

/// Returns a constructor of failures.
fn failed(attempted: &'static str) -> impl Fn(Cause) -> Halt {
    move |cause| Halt::Failed(attempted, cause)
}

const STAT: &str = "cannot stat";
const LIST: &str = "cannot read the directory";
const READ: &str = "cannot read";
const WRITE: &str = "cannot write the copy of";
const COPY: &str = "cannot copy";
const KEEP: &str = "cannot keep the metadata of";
const COMPARE: &str = "cannot compare";

/// The fate of an entry.
enum Done<S: Side, T: Side> {
    /// Done; the jobs that follow from it.
    Now(Vec<Job<S, T>>),
    /// Waiting for the first name of its file.
    Later,
}

fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

impl<'a, S: Side, T: Side> Pass<'a, S, T> {
    /// Creates a pass.
    pub fn new(
        (source, target): (&'a S, &'a T),
        ends: &'a Ends<S, T>,
        settings: &'a Settings,
        progress: &'a Progress,
        purpose: Purpose<'a>,
    ) -> Pass<'a, S, T> {
        let (keeper, links) = (Preserver::new(settings.extended), RefCell::default());
        Pass { source, target, settings, progress, purpose, keeper, ends, copy: Cell::new(None), links }
    }

    /// Goes through the tree.
    pub async fn run(&self) {
        let (from, name) = self.ends.from.clone();
        let (to, to_name) = self.ends.to.clone();
        let top = Rc::new(Place {
            above: None,
            name: CString::default(),
            to_name: CString::default(),
            from,
            to: Some(to),
            metadata: None,
            depth: 0,
            left: Cell::new(1),
        });
        let mut waiting = vec![Job::Entry(top, Item { name, metadata: None }, to_name)];
        let mut running = FuturesUnordered::new();
        loop {
            while running.len() < self.settings.width
                && !self.is_stopped()
                && let Some(job) = waiting.pop()
            {
                running.push(self.work(job));
            }
            match running.next().await {
                Some(more) => waiting.extend(more),
                None => break,
            }
        }
    }

    /// Returns whether nothing more is to be begun.
    fn is_stopped(&self) -> bool {
        self.progress.control.is_stopped() || self.source.is_lost() || self.target.is_lost()
    }

    /// Does a piece of work, and returns those that it has found.
    async fn work(&self, job: Job<S, T>) -> Vec<Job<S, T>> {
        let (place, more) = match job {
            Job::List(place, cursor) => {
                let more = self.list(&place, cursor).await;
                (place, more)
            }
            Job::Entry(place, item, to_name) => match self.entry(&place, item, to_name).await {
                Done::Now(more) => (place, more),
                Done::Later => return Vec::new(),
            },
        };
        self.finish(place).await;
        more
    }

    /// Lists a page of a directory.
    async fn list(&self, place: &Rc<Place<S, T>>, cursor: Option<S::Cursor>) -> Vec<Job<S, T>> {
        let page = match self.source.list(&place.from, cursor).await {
            Ok(page) => page,
            Err(cause) => {
                self.fail(place, b"", Halt::Failed(LIST, cause));
                return Vec::new();
            }
        };
        for (name, cause) in page.refused {
            self.fail(place, &name, Halt::Failed(COPY, cause));
        }
        let mut more = Vec::with_capacity(page.items.len() + 1);
        // The last one is next.
        more.extend(page.next.map(|next| Job::List(Rc::clone(place), Some(next))));
        more.extend(page.items.into_iter().rev().map(|item| {
            let name = item.name.clone();
            Job::Entry(Rc::clone(place), item, name)
        }));
        place.left.set(place.left.get() + more.len());
        more
    }

    /// Notes that a piece of work in a directory is done, and leaves the directories that are finished by it.
    async fn finish(&self, place: Rc<Place<S, T>>) {
        let mut place = place;
        loop {
            let left = place.left.get() - 1;
            place.left.set(left);
            let (0, Some(above)) = (left, place.above.clone()) else { return };
            if let (Purpose::Copy, Some((metadata, extended)), Some(to)) =
                (&self.purpose, &place.metadata, &above.to)
            {
                let name = &place.to_name;
                let kept = match self.is_settled(to, name, metadata, extended).await {
                    Ok(true) => Ok(()),
                    Ok(false) => self.target.keep(to, name, metadata, extended).await,
                    Err(cause) => Err(cause),
                };
                if let Err(cause) = kept {
                    self.fail(&place, b"", Halt::Failed(KEEP, cause));
                }
            }
            place = above;
        }
    }

    /// Returns whether a copy has the metadata of its source.
    async fn is_settled(
        &self,
        to: &T::Directory,
        name: &CStr,
        metadata: &Metadata,
        extended: &Attributes,
    ) -> Result<bool, Cause> {
        let Some(there) = self.target.look(to, name).await? else { return Ok(false) };
        if !self.keeper.is_kept(&metadata.0, &there.0) || metadata.modified() != there.modified() {
            return Ok(false);
        }
        if !self.settings.extended {
            return Ok(true);
        }
        let there = self.target.extended(to, name).await?;
        Ok(self.keeper.owed(extended.clone()) == self.keeper.owed(there))
    }

    /// Notes a failure of an entry of a directory, or, without a name, of the directory itself.
    fn fail(&self, place: &Place<S, T>, name: &[u8], halt: Halt) {
        let Halt::Failed(attempted, cause) = halt else { return };
        self.progress.failures.add(EntryError::new(self.shown(place, name), attempted, cause));
    }

    /// Returns the path of an entry as it is shown.
    fn shown(&self, place: &Place<S, T>, name: &[u8]) -> Vec<u8> {
        let mut path = self.ends.path.clone();
        let mut below = place.path(name);
        if name.is_empty() && below.last() == Some(&b'/') {
            below.pop();
        }
        if !below.is_empty() {
            if !path.ends_with(b"/") {
                path.push(b'/');
            }
            path.extend_from_slice(&below);
        }
        path
    }

    /// Does what is to be done with an entry.
    async fn entry(&self, place: &Rc<Place<S, T>>, item: Item, to_name: CString) -> Done<S, T> {
        let name = item.name;
        let metadata = match item.metadata {
            Some(metadata) => *metadata,
            None => match self.source.look(&place.from, &name).await {
                Ok(Some(metadata)) => metadata,
                Ok(None) => {
                    add(&self.progress.counters.vanished, 1);
                    return Done::Now(Vec::new());
                }
                Err(cause) => {
                    self.fail(place, name.to_bytes(), Halt::Failed(STAT, cause));
                    return Done::Now(Vec::new());
                }
            },
        };
        add(&self.progress.counters.entries, 1);
        let done = match metadata.kind() {
            FileKind::Directory => self.directory(place, &name, to_name, metadata).await,
            FileKind::File if metadata.links() > 1 && matches!(self.purpose, Purpose::Copy) => {
                return self.linked(place, name, to_name, metadata).await;
            }
            FileKind::File | FileKind::Link | FileKind::Pipe => {
                self.other(place, &name, &to_name, &metadata).await.map(|()| Vec::new())
            }
            FileKind::Socket => {
                let path = self.shown(place, name.to_bytes());
                self.progress.notes.add(EntryError::new(path, "not copying", Cause::Other("it is a socket")));
                Ok(Vec::new())
            }
            FileKind::CharacterDevice | FileKind::BlockDevice => Err(Halt::Failed(
                COPY,
                Cause::Other("it is a device, which the namespace of a store cannot hold"),
            )),
            FileKind::Unknown => Err(Halt::Failed(COPY, Cause::Other("it has methods, and no content"))),
        };
        Done::Now(done.unwrap_or_else(|halt| {
            self.fail(place, name.to_bytes(), halt);
            Vec::new()
        }))
    }

    /// Enters a directory, and makes its copy if there is none.
    async fn directory(
        &self,
        place: &Rc<Place<S, T>>,
        name: &CStr,
        to_name: CString,
        metadata: Metadata,
    ) -> Result<Vec<Job<S, T>>, Halt> {
        if metadata.is_mount_point() && place.above.is_some() && !self.settings.cross_mounts {
            let why = Cause::Other("another file system is mounted there; --cross-mounts copies it");
            self.progress.notes.add(EntryError::new(self.shown(place, name.to_bytes()), "not copying", why));
            return Ok(Vec::new());
        }
        let depth = place.depth + 1;
        // A damaged namespace may lead in a circle. One with several ways around is found before there are very many ways through it,
        // and further down it is enough to look at some depths.
        if (depth < LOOP_DEPTH_ALWAYS || depth.is_power_of_two()) && place.is_within(&metadata) {
            return Err(Halt::Failed(COPY, Cause::Other("it is below itself")));
        }
        if self.copy.get() == Some(metadata.inode()) && self.ends.mounts.contains(&metadata.device()) {
            return Err(Halt::Failed(COPY, Cause::Other("it is the copy itself, by way of a mount")));
        }
        let from = self.source.enter(&place.from, name).await.map_err(failed("cannot open the directory"))?;
        let extended = self.source.extended(&place.from, name).await.map_err(failed(READ))?;
        let there = match &place.to {
            Some(to) => self.target.look(to, &to_name).await.map_err(failed(WRITE))?,
            None => None,
        };
        if there.is_some_and(|there| there.kind() != FileKind::Directory) {
            let why = "what has its place at the destination is not a directory";
            return Err(Halt::Failed(WRITE, Cause::Other(why)));
        }
        let to = match (&place.to, there, &self.purpose) {
            (Some(to), Some(there), purpose) => {
                let settled = match purpose {
                    Purpose::Copy => true,
                    _ => {
                        let settled = self.is_settled(to, &to_name, &metadata, &extended).await;
                        settled.map_err(failed(COMPARE))?
                    }
                };
                match purpose {
                    Purpose::Preview(..) if !settled => self.plan("adjust", place, name, 0),
                    Purpose::Verify if !settled => {
                        let why = Cause::Other("its metadata differs from that of its copy");
                        self.fail(place, name.to_bytes(), Halt::Failed(COMPARE, why));
                    }
                    _ => self.widen(to, &to_name, &there).await,
                }
                Some(self.target.enter(to, &to_name).await.map_err(failed(WRITE))?)
            }
            (Some(to), None, Purpose::Copy) => {
                Some(self.target.make_directory(to, &to_name).await.map_err(failed(WRITE))?)
            }
            (_, None, Purpose::Verify) => {
                return Err(Halt::Failed(COMPARE, Cause::Other("it has no copy")));
            }
            _ => {
                self.plan("copy", place, name, 0);
                None
            }
        };
        if let (None, Some(above), false) = (&place.above, &place.to, self.ends.mounts.is_empty()) {
            let made = self.target.look(above, &to_name).await.map_err(failed(WRITE))?;
            self.copy.set(made.map(|made| made.inode()));
        }
        let counters = &self.progress.counters;
        add(
            if matches!(self.purpose, Purpose::Verify) { &counters.verified } else { &counters.directories },
            1,
        );
        // Until all that is below it is done, beside the entry itself.
        place.left.set(place.left.get() + 1);
        let directory = Place {
            above: Some(Rc::clone(place)),
            name: name.to_owned(),
            to_name,
            from,
            to,
            metadata: Some((metadata, extended)),
            depth,
            left: Cell::new(1),
        };
        Ok(vec![Job::List(Rc::new(directory), None)])
    }

    /// Lets the owner write to a directory at the destination for the time of the copy, as `cp` does: it gets its mode in the end.
    async fn widen(&self, to: &T::Directory, name: &CStr, there: &Metadata) {
        if self.keeper.is_root() || there.mode() & 0o700 == 0o700 || !matches!(self.purpose, Purpose::Copy) {
            return;
        }
        let mut wider = *there;
        wider.0.stx_mode |= 0o700;
        if let Ok(extended) = self.target.extended(to, name).await {
            // If it is not to be, what is in it says so.
            let _ = self.target.keep(to, name, &wider, &extended).await;
        }
    }

    /// Adds an entry to the plan.
    fn plan(&self, action: &'static str, place: &Place<S, T>, name: &CStr, bytes: u64) {
        let Purpose::Preview(plan, report) = &self.purpose else { return };
        add(if action == "adjust" { &plan.adjusted } else { &plan.copied }, 1);
        add(&plan.bytes, bytes);
        report(action, &place.path(name.to_bytes()));
    }
}
