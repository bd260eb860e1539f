//! `nacre fs`: the namespace of a store, looked at and changed.

mod change;
mod check;
mod look;
mod move_bytes;
mod quota;
mod recursive;
pub mod typed;

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use bytes::Bytes;
use nacre::Store;
use nacre::fs::{Attributes, Credentials, Error, InodeKind, Rank, RankOptions};
use nacre_quantity::Escaped;
use nacre_walk::{FileKind, Inode, Metadata, Time};
use rustix::io::Errno;

use crate::failure::Failure;
use crate::output;
use crate::session::Context;

const AFTER_HELP: &str = "\
Paths are typed as they are, as those of any file, and not with the escapes with which they are printed: where a listing shows \
a\\x0ab, a shell such as bash takes $'a\\nb', and \\\\ stands for one backslash. With --json a path is printed as it is, or, if it is not \
UTF-8, as base64.";

/// View and change the namespace: directories, files and links on the objects of a store
///
/// Paths begin at the root of the namespace, with or without a slash. The permissions of the calling user apply. They
/// do not restrict anyone who holds the store's key or writes its objects directly.
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    Ls(look::LsArgs),
    Stat(look::StatArgs),
    Find(look::FindArgs),
    Tree(look::TreeArgs),
    Cat(move_bytes::CatArgs),
    Get(move_bytes::GetArgs),
    Put(move_bytes::PutArgs),
    Mkdir(change::MkdirArgs),
    Mv(change::MvArgs),
    Rm(change::RmArgs),
    Ln(change::LnArgs),
    Chmod(change::ChmodArgs),
    Chown(change::ChownArgs),
    Create(typed::CreateArgs),
    Call(typed::CallArgs),
    Check(check::Args),
    Quota(quota::Args),
}

/// Runs `nacre fs`.
pub async fn run(session: &Context, args: Args) -> Result<(), Failure> {
    let fills = matches!(&args.action, Action::Put(_) | Action::Mkdir(_) | Action::Ln(_) | Action::Create(_));
    // What has methods needs a class, or a metadata rank: neither is in a folder that is no store yet.
    let is_typed = matches!(&args.action, Action::Create(_));
    let opened = if fills && !is_typed { session.open_to_fill()? } else { session.open()? };
    let store = opened.patient();
    if let Action::Create(args) = &args.action {
        typed::check(&store, args).await?;
    }
    let tree = Tree::open(&store, fills, session.json).await?;
    let done = match args.action {
        Action::Ls(args) => look::ls(&tree, args).await,
        Action::Stat(args) => look::stat(&tree, args).await,
        Action::Find(args) => look::find(&tree, args).await,
        Action::Tree(args) => look::tree(&tree, args).await,
        Action::Cat(args) => move_bytes::cat(&tree, args).await,
        Action::Get(args) => move_bytes::get(&tree, args).await,
        Action::Put(args) => {
            let has_servers = matches!(session.parsed_uri()?.engine, nacre::Engine::Servers(_));
            move_bytes::put(&tree, has_servers.then_some(&opened), args).await
        }
        Action::Mkdir(args) => change::mkdir(&tree, args).await,
        Action::Mv(args) => change::mv(&tree, args).await,
        Action::Rm(args) => change::rm(&tree, args).await,
        Action::Ln(args) => change::ln(&tree, args).await,
        Action::Chmod(args) => change::chmod(&tree, args).await,
        Action::Chown(args) => change::chown(&tree, args).await,
        Action::Create(args) => typed::create(&tree, args).await,
        Action::Call(args) => typed::call(session, &tree, args).await,
        Action::Check(args) => check::run(&tree, &args).await,
        Action::Quota(args) => quota::run(&tree, args).await,
    };
    tree.close().await;
    done
}

/// The namespace, for the user who called.
pub struct Tree {
    pub store: Store,
    pub rank: Rank,
    pub user: Credentials,
    json: bool,
}

impl Tree {
    /// Opens the namespace of a store for the user who called, and makes one first if `fills`.
    pub async fn open(store: &Store, fills: bool, json: bool) -> Result<Tree, Failure> {
        let user = caller();
        let options = RankOptions { create: fills, owner: user.clone(), ..RankOptions::default() };
        let rank = store.rank(options).await.map_err(|error| match error {
            Error::NotFound => Failure::Failed(format!(
                "{} has no namespace yet; \"nacre fs mkdir\" and \"nacre fs put\" make one",
                store.name()
            )),
            error => failure(error, format_args!("cannot open the namespace of {}", store.name())),
        })?;
        Ok(Tree { store: store.clone(), rank, user, json })
    }

    pub async fn close(&self) {
        if let Err(error) = self.rank.close().await {
            output::complain(&format!("nacre: the log of this command stays in the store: {error}"));
        }
    }

    /// Finds what a path leads to.
    pub async fn find(&self, path: &Path, follow: bool, attempted: &str) -> Result<Attributes, Failure> {
        let found = self.rank.resolve(&self.user, path.bytes(), follow).await;
        found.map_err(|error| failure(error, format_args!("cannot {attempted} {path}")))
    }

    /// Finds the directory that a path's last component is or would be in, and that component.
    pub async fn parent(&self, path: &Path, attempted: &str) -> Result<(Attributes, Bytes), Failure> {
        let found = self.rank.resolve_parent(&self.user, path.bytes()).await;
        found.map_err(|error| failure(error, format_args!("cannot {attempted} {path}")))
    }

    /// Finds the directory of something that is not to be a directory itself, which a slash at the end would ask for.
    async fn parent_of_file(&self, path: &Path, attempted: &str) -> Result<(Attributes, Bytes), Failure> {
        let found = self.parent(path, attempted).await?;
        match path.bytes().ends_with(b"/") {
            true => Err(failure(Error::NotFound, format_args!("cannot {attempted} {path}"))),
            false => Ok(found),
        }
    }

    /// Lists a directory, page by page.
    async fn list(
        &self,
        directory: &Attributes,
        path: &Path,
        attributes: bool,
        mut entry: impl AsyncFnMut(nacre::fs::Listed) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut after = Bytes::new();
        loop {
            let page = self.rank.readdir(&self.user, directory.ino, &after, 1024, attributes).await;
            let page = page.map_err(|error| failure(error, format_args!("cannot list {path}")))?;
            after = page.entries.last().map_or(after, |listed| listed.name.clone());
            let is_last = !page.more || page.entries.is_empty();
            for listed in page.entries {
                entry(listed).await?;
            }
            if is_last {
                return Ok(());
            }
        }
    }
}

/// A path in the namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path(OsString);

impl From<OsString> for Path {
    fn from(path: OsString) -> Self {
        Path(path)
    }
}

impl Path {
    fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Returns the path of an entry of the directory at this path.
    fn join(&self, name: &[u8]) -> Path {
        let mut path = self.0.clone().into_vec();
        if !path.is_empty() && !path.ends_with(b"/") {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        Path(OsString::from_vec(path))
    }

    /// Returns the first `len` bytes.
    fn up_to(self, len: usize) -> Path {
        let mut path = self.0.into_vec();
        path.truncate(len);
        Path(OsString::from_vec(path))
    }

    /// Returns the last component; `None` if there is none.
    fn name(&self) -> Option<Bytes> {
        let mut names = self.bytes().split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        names.next_back().map(Bytes::copy_from_slice)
    }
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", Escaped(if self.bytes().is_empty() { b"/" } else { self.bytes() }))
    }
}

/// Returns the failure of a call on the namespace.
pub(super) fn failure(error: Error, attempted: impl std::fmt::Display) -> Failure {
    match error {
        Error::Store(error) => error.context(attempted).into(),
        Error::Fenced => Failure::Failed(format!("{attempted}: {error}; try again")),
        error => Failure::Failed(format!("{attempted}: {error}")),
    }
}

/// Returns the type of file that an inode is; `typed` is that of one with methods.
pub(super) fn file_kind(kind: &InodeKind, typed: FileKind) -> FileKind {
    match kind {
        InodeKind::File => FileKind::File,
        InodeKind::Directory => FileKind::Directory,
        InodeKind::Symlink => FileKind::Link,
        InodeKind::Fifo => FileKind::Pipe,
        InodeKind::Socket => FileKind::Socket,
        InodeKind::Typed(_) => typed,
    }
}

/// Returns the metadata of an inode as a file has it; `typed` is the type of one with methods.
pub(super) fn metadata_of(found: &Attributes, typed: FileKind) -> Result<Metadata, Errno> {
    Metadata::of(&Inode {
        number: found.ino.0,
        kind: file_kind(&found.kind, typed),
        mode: found.mode,
        links: found.links,
        user: found.uid,
        group: found.gid,
        size: found.size,
        accessed: Time::from_nanoseconds(found.atime),
        modified: Time::from_nanoseconds(found.mtime),
        changed: Time::from_nanoseconds(found.ctime),
    })
}

/// Returns the user and the groups of this process.
pub(super) fn caller() -> Credentials {
    let groups = rustix::process::getgroups().unwrap_or_default();
    Credentials {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        groups: groups.into_iter().map(|group| group.as_raw()).collect(),
    }
}

/// Returns permission bits without those that this process's mask takes away.
fn masked(mode: u32) -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    let mask = mask.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o022);
    mode & !mask
}

/// Returns kind and permissions as `ls -l` shows them.
fn mode_text(kind: &InodeKind, mode: u32) -> String {
    let mut text = String::with_capacity(10);
    text.push(match kind {
        InodeKind::File => '-',
        InodeKind::Directory => 'd',
        InodeKind::Symlink => 'l',
        InodeKind::Fifo => 'p',
        InodeKind::Socket => 's',
        InodeKind::Typed(_) => 't',
    });
    for (shift, special, set, unset) in [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => set,
            (true, false) => unset,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_look_as_ls_shows_them() {
        assert_eq!(mode_text(&InodeKind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode_text(&InodeKind::File, 0o4754), "-rwsr-xr--");
        assert_eq!(mode_text(&InodeKind::Symlink, 0o2060), "l---rwS---");
        assert_eq!(mode_text(&InodeKind::Typed("sequencer".into()), 0o7000), "t--S--S--T");
    }

    #[test]
    fn paths_join_with_one_slash() {
        let join = |path: &str, name: &str| Path(path.into()).join(name.as_bytes()).to_string();
        assert_eq!(join("", "a"), "a");
        assert_eq!(join("/", "a"), "/a");
        assert_eq!(join("b/", "a"), "b/a");
        assert_eq!(join("/b", "a"), "/b/a");
        assert_eq!(Path("/b//c/".into()).name().unwrap(), "c");
        assert_eq!(Path("/".into()).name(), None);
    }
}
