//! The walk of a tree that is in no file system of this machine, such as the namespace of a store.
//!
//! - A [`Source`] lists a directory in pages, by its inode number: renaming what the walk has passed cannot lead it elsewhere.
//! - A page says where the next one begins. That is queued before the entries of the first one are visited, so that the pages
//!   of a huge directory are shared out too, and no more than one page of each thread is in memory.
//! - Everything else is the same as in a walk of file systems: queues, directories, visitors, and what these are told.

use std::cell::OnceCell;
use std::ffi::{CStr, CString};
use std::sync::Arc;

use rustix::fs::CWD;
use rustix::io::Errno;

use crate::directory::{Directory, TreePosition};
use crate::entry::{Entry, FileKind, Metadata};
use crate::error::Operation;
use crate::pool::{Names, Work};
use crate::scan::{Node, Scanner, child_path};
use crate::walk::{Opened, Verdict, Visitor};

/// A tree of directories and other inodes, whose numbers are unique in it and never given twice.
pub trait Source: Send + Sync + std::fmt::Debug {
    /// Finds what the path of a root leads to; a link at its end is not followed.
    ///
    /// # Errors
    /// The error number that the system would give.
    fn find(&self, root: &CStr) -> Result<Metadata, Errno>;

    /// Returns the name of the tree, by which a checkpoint knows it again.
    fn name(&self) -> String;

    /// Returns whether nothing of it can be read any more. What is left of the walk then fails for that reason alone.
    fn is_lost(&self) -> bool {
        false
    }

    /// Returns the inode number of an entry.
    ///
    /// # Errors
    /// The error number that the system would give.
    fn look(&self, directory: u64, name: &CStr) -> Result<u64, Errno>;

    /// Returns the metadata of an inode.
    ///
    /// # Errors
    /// The error number that the system would give.
    fn stat(&self, inode: u64) -> Result<Metadata, Errno>;

    /// Lists a page of a directory, from the first entry whose name is greater than `after`. With `metadata`, each entry has
    /// its metadata.
    ///
    /// # Errors
    /// The error number that the system would give.
    fn list(&self, directory: u64, after: &[u8], metadata: bool) -> Result<Listing, Errno>;
}

/// A page of a directory.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// The entries.
    pub items: Vec<Item>,
    /// The name after which the next page begins, if there is one.
    pub next: Option<Vec<u8>>,
}

/// An entry of a page.
#[derive(Clone, Debug)]
pub struct Item {
    /// The name.
    pub name: Vec<u8>,
    /// The inode's number.
    pub inode: u64,
    /// The inode's type.
    pub kind: FileKind,
    /// The inode's metadata, where it was asked for.
    pub metadata: Option<Metadata>,
}

/// The depth from which on a directory is looked for among those above it at some depths only.
const LOOP_DEPTH_ALWAYS: u32 = 64;

impl<V: Visitor> Scanner<'_, V> {
    /// Enters a directory of a source; `None` if it must not be entered, or its visitor declines it.
    pub fn open_listed(
        &mut self,
        source: &dyn Source,
        parent: Option<&Node<V>>,
        name: &CStr,
        (root, inode): (u32, u64),
    ) -> Option<Node<V>> {
        let depth = parent.map_or(0, |parent| parent.depth() + 1);
        let inode = match parent {
            Some(parent) => {
                // A damaged tree may lead in a circle. One with several ways around is found before there are very many ways
                // through it. Further down it is enough to look at some depths, so that a chain of a million directories costs
                // no more than a few steps for each.
                let is_due = depth < LOOP_DEPTH_ALWAYS || depth.is_power_of_two();
                if is_due && parent.is_within_inode(inode) {
                    self.fail_in(Some(parent), name, Operation::Loop, Errno::LOOP);
                    return None;
                }
                inode
            }
            None => match source.find(name) {
                Ok(found) => found.inode(),
                Err(errno) => {
                    self.fail_in(None, name, Operation::Open, errno);
                    return None;
                }
            },
        };
        let opened = Opened {
            directory: parent.map(|parent| &**parent),
            descriptor: CWD,
            name,
            root,
            depth,
            renamed: false,
            source: Some((source, inode)),
        };
        let state = self.visitor.enter(&opened)?;
        let place = TreePosition { parent: parent.cloned(), name, root, inode };
        let directory = Directory::listed(place, self.budget, state);
        self.progress.count(&self.progress.directories, 1);
        Some(directory)
    }

    /// Reads a page of a directory of a source, queues the rest, and visits the entries.
    pub fn read_after(&mut self, directory: Node<V>, after: &[u8]) {
        let Some(source) = self.source else {
            // The unit is from a walk of another tree.
            self.visitor.incomplete(&directory);
            self.fail(directory.path_bytes(), Operation::List, Errno::INVAL);
            return self.release(directory);
        };
        let read = || source.list(directory.inode(), after, self.options.metadata);
        match self.timed(&self.progress.reading, read) {
            Ok(page) => {
                if let Some(next) = page.next {
                    directory.hold();
                    self.queue.push(self.own, Work::Listing(Arc::clone(&directory), next));
                }
                if let Some(children) = self.visit_page(&directory, &page.items) {
                    directory.hold();
                    self.queue.push(self.own, Work::Children(Arc::clone(&directory), children));
                }
            }
            Err(errno) => {
                self.visitor.incomplete(&directory);
                // A directory that is gone was found by its number, so it was not moved, but removed, and was empty.
                let operation = match after.is_empty() && errno != Errno::NOENT {
                    true => Operation::Open,
                    false => Operation::List,
                };
                self.fail(directory.path_bytes(), operation, errno);
            }
        }
        self.release(directory);
    }

    /// Visits the entries of a page, and returns the names of those to descend into, if there are any.
    fn visit_page(&mut self, directory: &Node<V>, items: &[Item]) -> Option<Names> {
        let prefix = OnceCell::new();
        let mut children = Names::default();
        let mut visited = 0;
        for item in items {
            let name = match CString::new(&item.name[..]) {
                Ok(name) if is_name(&item.name) => name,
                // Whoever writes to what is behind a source can make names that lead elsewhere.
                _ => {
                    self.visitor.incomplete(directory);
                    let mut path = child_path(Some(directory), c"");
                    path.extend_from_slice(&item.name);
                    self.fail(path, Operation::Stat, Errno::INVAL);
                    continue;
                }
            };
            let metadata = item.metadata.as_ref();
            let entry = Entry {
                directory: Some(directory),
                descriptor: None,
                prefix: &prefix,
                name: &name,
                kind: metadata.map_or(item.kind, Metadata::kind),
                inode: item.inode,
                metadata,
                layout: None,
                root: directory.root(),
                depth: directory.depth() + 1,
            };
            visited += 1;
            if self.visitor.visit(&entry) == Verdict::Descend && entry.kind == FileKind::Directory {
                children.push(&name, item.inode);
            }
        }
        self.progress.count(&self.progress.entries, visited);
        self.visitor.visited(directory);
        (!children.is_empty()).then_some(children)
    }
}

/// Checks that an entry that was listed by an earlier run is still in its place.
pub(crate) fn is_listed(source: &dyn Source, directory: u64, name: &CStr, inode: u64) -> Result<(), Errno> {
    match source.look(directory, name)? == inode {
        true => Ok(()),
        false => Err(Errno::STALE),
    }
}

fn is_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.iter().any(|byte| matches!(byte, b'/' | 0))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::num::NonZeroUsize;
    use std::path::Path;
    use std::sync::Mutex;

    use super::*;
    use crate::entry::{Inode, Time};
    use crate::walk::{Ended, Options, Walk};
    use crate::{Queue, Unit, WalkError};

    /// A tree in memory: the entries of each directory by its number. Inodes without entries are files.
    #[derive(Debug, Default)]
    struct Tree {
        directories: BTreeMap<u64, BTreeMap<Vec<u8>, u64>>,
        page: usize,
    }

    impl Tree {
        fn kind(&self, inode: u64) -> FileKind {
            match self.directories.contains_key(&inode) {
                true => FileKind::Directory,
                false => FileKind::File,
            }
        }
    }

    impl Source for Tree {
        fn find(&self, root: &CStr) -> Result<Metadata, Errno> {
            if root == c"root" { self.stat(1) } else { Err(Errno::NOENT) }
        }

        fn name(&self) -> String {
            "tree".to_owned()
        }

        fn look(&self, directory: u64, name: &CStr) -> Result<u64, Errno> {
            let entries = self.directories.get(&directory).ok_or(Errno::NOTDIR)?;
            entries.get(name.to_bytes()).copied().ok_or(Errno::NOENT)
        }

        fn stat(&self, inode: u64) -> Result<Metadata, Errno> {
            let time = Time::from_nanoseconds(-1);
            let kind = self.kind(inode);
            Metadata::of(&Inode {
                number: inode,
                kind,
                mode: 0o644,
                links: 1,
                user: 7,
                group: 8,
                size: inode,
                accessed: time,
                modified: time,
                changed: time,
            })
        }

        fn list(&self, directory: u64, after: &[u8], metadata: bool) -> Result<Listing, Errno> {
            let entries = self.directories.get(&directory).ok_or(Errno::NOENT)?;
            let mut items: Vec<Item> = Vec::new();
            for (name, inode) in entries.iter().filter(|(name, _)| &name[..] > after) {
                if items.len() == self.page {
                    let next = items.last().map(|item| item.name.clone());
                    return Ok(Listing { items, next });
                }
                items.push(Item {
                    name: name.clone(),
                    inode: *inode,
                    kind: self.kind(*inode),
                    metadata: if metadata { Some(self.stat(*inode)?) } else { None },
                });
            }
            Ok(Listing { items, next: None })
        }
    }

    /// A visitor that keeps everything, and stops the walk after each directory.
    struct Keeper<'a> {
        queue: Arc<Queue<()>>,
        paths: &'a Mutex<Vec<(Vec<u8>, u64)>>,
        errors: &'a Mutex<Vec<WalkError>>,
        left: u64,
    }

    impl Visitor for Keeper<'_> {
        type State = ();

        fn enter(&mut self, directory: &Opened<'_, ()>) -> Option<()> {
            assert_eq!(directory.stat().unwrap().kind(), FileKind::Directory);
            Some(())
        }

        fn visit(&mut self, entry: &Entry<'_, ()>) -> Verdict {
            let mut path = Vec::new();
            entry.write_path(&mut path);
            self.paths.lock().unwrap().push((path, entry.metadata.map_or(0, Metadata::size)));
            Verdict::Descend
        }

        fn visited(&mut self, _: &Directory<()>) {
            self.queue.stop();
        }

        fn leave(&mut self, _: &Directory<()>) {
            self.left += 1;
        }

        fn failed(&mut self, error: WalkError) {
            self.errors.lock().unwrap().push(error);
        }
    }

    /// The end of walks: all paths with their sizes, the errors, and the number of directories that were left.
    type Walked = (Vec<(Vec<u8>, u64)>, Vec<WalkError>, u64);

    /// Walks a tree, and returns all paths with their sizes, the errors, and the number of directories that were left. If `again`,
    /// another walk goes on whenever one stops.
    fn walked(tree: Tree, metadata: bool, again: bool) -> Walked {
        let threads = NonZeroUsize::new(3).unwrap();
        let tree: Arc<dyn Source> = Arc::new(tree);
        let walk = || {
            let mut walk = Walk::new(Options { threads, metadata, ..Options::default() });
            walk.set_source(Arc::clone(&tree));
            walk.add_root(Path::new("root")).unwrap();
            walk
        };
        let (paths, errors) = (Mutex::default(), Mutex::default());
        let keepers = |walk: &Walk<()>| {
            let keeper =
                || Keeper { queue: Arc::clone(walk.queue()), paths: &paths, errors: &errors, left: 0 };
            [keeper(), keeper(), keeper()]
        };
        let (mut this, mut left) = (walk(), 0);
        let mut visitors = keepers(&this);
        this.start(0, &mut visitors[0]).unwrap();
        while this.run(&mut visitors[..]) == Ended::Stopped {
            if again {
                let units = postcard::to_stdvec(&this.frontier(|_| {})).unwrap();
                left += visitors.iter().map(|keeper| keeper.left).sum::<u64>();
                this = walk();
                this.queue().put(postcard::from_bytes(&units).unwrap());
                visitors = keepers(&this);
            }
        }
        left += visitors.iter().map(|keeper| keeper.left).sum::<u64>();
        drop(visitors);
        let mut paths = paths.into_inner().unwrap();
        paths.sort();
        (paths, errors.into_inner().unwrap(), left)
    }

    /// Returns a tree with directories of up to nine pages, and the paths of everything in it with their sizes.
    fn sample() -> (Tree, Vec<(Vec<u8>, u64)>) {
        let mut tree = Tree { page: 10, ..Tree::default() };
        let (mut expected, mut next) = (vec![(b"root".to_vec(), 1)], 2);
        tree.directories.insert(1, BTreeMap::new());
        for directory in 0..30 {
            let (number, path) = (next, format!("root/d{directory}"));
            next += 1;
            expected.push((path.clone().into_bytes(), number));
            tree.directories.get_mut(&1).unwrap().insert(format!("d{directory}").into_bytes(), number);
            let mut entries = BTreeMap::new();
            for file in 0..directory * 3 {
                expected.push((format!("{path}/{file}").into_bytes(), next));
                entries.insert(file.to_string().into_bytes(), next);
                next += 1;
            }
            tree.directories.insert(number, entries);
        }
        expected.sort();
        (tree, expected)
    }

    #[test]
    fn every_entry_of_a_source_is_visited_once_however_often_the_walk_stops() {
        let (tree, expected) = sample();
        assert_eq!(walked(tree, true, false), (expected, Vec::new(), 31));
    }

    #[test]
    fn what_is_left_of_a_walk_is_walked_by_another_one() {
        let (tree, expected) = sample();
        let (paths, errors, _) = walked(tree, true, true);
        assert_eq!((paths, errors), (expected, Vec::new()));
    }

    #[test]
    fn a_directory_that_has_left_its_place_since_is_missing() {
        let (mut tree, _) = sample();
        tree.directories.get_mut(&1).unwrap().remove(&b"d29"[..]).unwrap();
        let mut walk = Walk::new(Options::default());
        walk.set_source(Arc::new(tree));
        walk.add_root(Path::new("root")).unwrap();
        let (paths, errors) = (Mutex::default(), Mutex::default());
        let keeper = || Keeper { queue: Arc::clone(walk.queue()), paths: &paths, errors: &errors, left: 0 };
        let mut keepers: Vec<Keeper<'_>> = (0..Options::default().threads.get()).map(|_| keeper()).collect();
        // One with the name or the number of another is another one.
        for (name, inode) in [("d29", 900), ("d28", 900)] {
            let path = name.as_bytes().to_vec();
            walk.queue().put(vec![Unit { path, inodes: vec![inode], ..Unit::default() }]);
        }
        while walk.run(&mut keepers[..]) == Ended::Stopped {}
        drop(keepers);
        assert!(paths.into_inner().unwrap().is_empty());
        let errors: Vec<WalkError> = errors.into_inner().unwrap();
        assert!(errors.len() == 2 && errors.iter().all(WalkError::is_missing), "{errors:?}");
    }

    #[test]
    fn names_that_lead_elsewhere_and_circles_are_errors() {
        let entries = |names: &[(&[u8], u64)]| -> BTreeMap<Vec<u8>, u64> {
            names.iter().map(|(name, to)| (name.to_vec(), *to)).collect()
        };
        let directories = [
            (1, entries(&[(b"..", 9), (b"a/b", 9), (b"zero\0", 9), (b"circle", 2), (b"file", 9)])),
            // Two ways, so that there would be 2^64 paths of 64 names.
            (2, entries(&[(b"again", 2), (b"and back", 1)])),
        ];
        let (paths, errors, _) = walked(Tree { directories: directories.into(), page: 3 }, false, false);
        assert!(paths.contains(&(b"root/file".to_vec(), 0)) && paths.contains(&(b"root/circle".to_vec(), 0)));
        assert!(paths.len() < 20, "{}", paths.len());
        let of = |operation| errors.iter().filter(|error| error.operation == operation).count();
        assert_eq!((of(Operation::Stat), of(Operation::Loop), errors.len()), (3, 2, 5), "{errors:?}");
    }
}
