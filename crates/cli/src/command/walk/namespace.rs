//! The namespace of a store, as the walk lists it.

use std::ffi::{CStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;

use nacre::ErrorKind;
use nacre::fs::{Attributes, EXECUTE, Error, Ino, InodeKind};
use nacre_walk::{FileKind, Item, Listing, Metadata, Source};
use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::runtime::{Handle, Runtime};

use crate::command::fs::{self, Tree, file_kind, metadata_of};
use crate::command::tree_path::PREFIX;
use crate::failure::Failure;
use crate::output;
use crate::session::Context;

/// The number of entries that are read together: as many as a large batch of a file system holds.
const PAGE_ENTRIES: usize = 512;

/// The number of threads that talk to the store; those of the walk wait for them.
const RUNTIME_THREADS: usize = 2;

/// The number of directories above a root after which their tree must be damaged.
const LEVELS_MAX: usize = 1 << 20;

/// A namespace that is being walked.
pub struct Opened {
    runtime: Runtime,
    namespace: Arc<Namespace>,
}

impl Opened {
    /// Opens the namespace of the store that the command line names.
    pub fn new(session: &Context) -> Result<Opened, Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(RUNTIME_THREADS)
            .enable_all()
            .build()
            .map_err(Failure::io("start the program's runtime"))?;
        let tree = runtime.block_on(async {
            let store = session.open()?.patient();
            Tree::open(&store, false, session.json).await
        })?;
        let namespace = Namespace { tree, handle: runtime.handle().clone(), first: Mutex::new(None) };
        Ok(Opened { runtime, namespace: Arc::new(namespace) })
    }

    /// Returns what the walk lists.
    pub fn source(&self) -> Arc<dyn Source> {
        Arc::clone(&self.namespace) as Arc<dyn Source>
    }

    /// Returns the places of roots, which are paths in the namespace: the numbers of the inodes from its root directory down to each.
    /// So one that is below another is found whatever links lead to it.
    pub fn places(&self, roots: &[OsString]) -> Result<Vec<PathBuf>, Failure> {
        // One root is below no other.
        if let [root] = roots {
            return Ok(vec![root.into()]);
        }
        self.runtime.block_on(async {
            let mut places = Vec::new();
            for root in roots {
                places.push(self.namespace.place(root).await?);
            }
            Ok(places)
        })
    }

    /// Closes it, and says what was wrong with the store if something was.
    pub fn close(self) {
        self.runtime.block_on(self.namespace.tree.close());
        if let Some(Broken { sentence, .. }) = self.namespace.first.lock().take() {
            output::complain(&format!("nacre: {sentence}"));
        }
        self.runtime.shutdown_background();
    }
}

/// The first failure of the store.
struct Broken {
    sentence: String,
    /// True if nothing can be read any more.
    lost: bool,
}

/// The namespace, for the user who called.
struct Namespace {
    tree: Tree,
    handle: Handle,
    first: Mutex<Option<Broken>>,
}

impl std::fmt::Debug for Namespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Namespace")
    }
}

impl Namespace {
    /// Returns the place of a root.
    async fn place(&self, root: &OsString) -> Result<PathBuf, Failure> {
        let (tree, path) = (&self.tree, fs::Path::from(root.clone()));
        let cannot = |error| fs::failure(error, format_args!("cannot walk {path}"));
        let found = tree.find(&path, false, "walk").await?;
        let mut numbers = Vec::new();
        let mut here = match found.kind {
            InodeKind::Directory => found,
            _ => {
                numbers.push(found.ino.to_string());
                tree.parent(&path, "walk").await?.0
            }
        };
        while here.ino != Ino::ROOT && numbers.len() < LEVELS_MAX {
            numbers.push(here.ino.to_string());
            here = tree.rank.resolve_from(&tree.user, here.ino, b"..", true).await.map_err(cannot)?;
        }
        numbers.push("/".to_owned());
        Ok(numbers.iter().rev().collect())
    }

    /// Waits for a call, on a thread of the walk. A store that is lost was waited for once, and not for each directory.
    fn call<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Errno> {
        if self.is_lost() {
            return Err(Errno::IO);
        }
        self.handle.block_on(work).map_err(|error| {
            if let Error::Store(failed) = &error {
                let lost = matches!(failed.kind, ErrorKind::Unavailable | ErrorKind::Closed);
                let mut first = self.first.lock();
                if first.as_ref().is_none_or(|before| lost && !before.lost) {
                    *first = Some(Broken { sentence: failed.to_string(), lost });
                }
            }
            Errno::from_raw_os_error(error.errno())
        })
    }
}

impl Source for Namespace {
    fn find(&self, root: &CStr) -> Result<Metadata, Errno> {
        let path = root.to_bytes().strip_prefix(PREFIX).unwrap_or(root.to_bytes());
        metadata(&self.call(self.tree.rank.resolve(&self.tree.user, path, false))?)
    }

    fn name(&self) -> String {
        self.tree.store.name().to_owned()
    }

    fn is_lost(&self) -> bool {
        self.first.lock().as_ref().is_some_and(|broken| broken.lost)
    }

    fn look(&self, directory: u64, name: &CStr) -> Result<u64, Errno> {
        let found = self.tree.rank.lookup(&self.tree.user, Ino(directory), name.to_bytes());
        Ok(self.call(found)?.ino.0)
    }

    fn stat(&self, inode: u64) -> Result<Metadata, Errno> {
        metadata(&self.call(self.tree.rank.stat(Ino(inode)))?)
    }

    fn list(&self, directory: u64, after: &[u8], with_metadata: bool) -> Result<Listing, Errno> {
        let (rank, user, directory) = (&self.tree.rank, &self.tree.user, Ino(directory));
        let page = self.call(async {
            let page = rank.readdir(user, directory, after, PAGE_ENTRIES, with_metadata).await?;
            // Whoever may read the names alone may not go down.
            if !with_metadata && page.entries.iter().any(|entry| entry.kind == InodeKind::Directory) {
                rank.access(user, directory, EXECUTE).await?;
            }
            Ok(page)
        })?;
        let next = page.entries.last().filter(|_| page.more).map(|last| last.name.to_vec());
        let items = page.entries.into_iter().map(|entry| {
            Ok(Item {
                name: entry.name.to_vec(),
                inode: entry.ino.0,
                kind: file_kind(&entry.kind, FileKind::File),
                metadata: entry.attributes.as_ref().map(metadata).transpose()?,
            })
        });
        Ok(Listing { items: items.collect::<Result<_, Errno>>()?, next })
    }
}

/// Returns the metadata that an inode has on a mount, where one with methods is an empty file.
fn metadata(found: &Attributes) -> Result<Metadata, Errno> {
    metadata_of(found, FileKind::File)
}
