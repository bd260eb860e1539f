//! `nacre fs put --recursive` and `get --recursive`: whole trees, from local folders to the namespace and back.
//!
//! Depth first, with what is left to do in a list, so that no tree is too deep. A directory gets its permissions and its time when
//! everything below it is there, so one that may not be written is filled too. What cannot be copied is reported, and the rest is
//! copied.

use std::ffi::{OsStr, OsString};
use std::fs::{self, FileTimes, Metadata, Permissions};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use nacre::fs::{Attributes, Creation, Error, Ino, InodeKind, Listed, SetAttributes, SetTime, check_name};
use nacre_quantity::Escaped;
use rustix::fs::OFlags;
use serde_json::json;
use tokio::io::AsyncReadExt;

use super::move_bytes::{copy, fill, interrupted, with_remains};
use super::{Path, Tree, failure};
use crate::command::transfer::{Replacement, destination};
use crate::failure::Failure;
use crate::interrupt::Interruption;
use crate::output;
use crate::quantity;

/// The totals of a copy, and the number of failures.
#[derive(Default)]
struct Totals {
    files: u64,
    bytes: u64,
    directories: u64,
    others: u64,
    failed: u64,
}

impl Totals {
    /// Reports what became of one entry. Returns what ends the command at once.
    fn settle<T>(&mut self, done: Result<T, Failure>) -> Result<Option<T>, Failure> {
        match done {
            Ok(done) => Ok(Some(done)),
            Err(Failure::Failed(text)) => {
                self.failed += 1;
                output::complain(&format!("nacre: {text}"));
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Prints the result.
    fn end(&self, json: bool, did: &str, place: &str) -> Result<(), Failure> {
        if json {
            let value = json!({
                "files": self.files,
                "bytes": self.bytes,
                "directories": self.directories,
                "others": self.others,
                "failed": self.failed,
            });
            output::line(&value.to_string())?;
        } else {
            output::line(&format!(
                "{} in {} and {} {did} {place}",
                quantity::count(self.bytes, "byte"),
                quantity::count(self.files, "file"),
                nacre_quantity::count(self.directories, "directory", "directories"),
            ))?;
        }
        match self.failed {
            0 => Ok(()),
            failed => {
                let entries = nacre_quantity::count(failed, "entry", "entries");
                Err(Failure::Failed(format!("{entries} could not be copied")))
            }
        }
    }
}

/// Something that is left to be put.
enum PutStep {
    /// A local entry.
    Enter { local: PathBuf, parent: Ino, name: Bytes, path: Path },
    /// A directory that is filled.
    Leave { ino: Ino, metadata: Metadata, path: Path },
}

/// Runs `nacre fs put --recursive`.
pub async fn put(tree: &Tree, folder: PathBuf, path: Path) -> Result<(), Failure> {
    let interruption = Interruption::catch()?;
    let mut totals = Totals::default();
    let attempted = format!("cannot put {}", Escaped::of(&folder));
    let shown = tokio::select! {
        done = put_all(tree, folder, path, &mut totals) => done?,
        () = interruption.wait() => return Err(with_remains(interrupted(attempted))),
    };
    totals.end(tree.json, "stored in", &shown)
}

/// Puts a folder with everything in it. Returns the path of it in the namespace.
async fn put_all(tree: &Tree, folder: PathBuf, path: Path, totals: &mut Totals) -> Result<String, Failure> {
    let shown = Escaped::of(&folder).to_string();
    let folder = fs::canonicalize(&folder).map_err(Failure::io(format!("open {shown}")))?;
    let (parent, name, path) = match tree.rank.resolve(&tree.user, path.bytes(), true).await {
        Ok(found) if found.kind == InodeKind::Directory => {
            let name = folder.file_name().ok_or_else(|| {
                Failure::Usage(format!("{path} exists; name the directory that {shown} is stored as"))
            })?;
            let name = Bytes::copy_from_slice(name.as_bytes());
            let below = path.join(&name);
            (found.ino, name, below)
        }
        Ok(_) => return Err(failure(Error::NotDirectory, format_args!("cannot put {shown} into {path}"))),
        Err(Error::NotFound) => {
            let (parent, name) = tree.parent(&path, "create").await?;
            (parent.ino, name, path)
        }
        Err(error) => return Err(failure(error, format_args!("cannot create {path}"))),
    };
    let place = path.to_string();
    let mut steps = vec![PutStep::Enter { local: folder, parent, name, path }];
    while let Some(step) = steps.pop() {
        match step {
            PutStep::Enter { local, parent, name, path } => {
                let done = put_entry(tree, local, parent, name, path, totals).await;
                steps.extend(totals.settle(done)?.into_iter().flatten());
            }
            PutStep::Leave { ino, metadata, path } => {
                let done = keep_attributes(tree, ino, &metadata, &path).await;
                totals.settle(done)?;
            }
        }
    }
    Ok(place)
}

/// Puts one local entry. Returns what is left to be done if it is a folder.
async fn put_entry(
    tree: &Tree,
    local: PathBuf,
    parent: Ino,
    name: Bytes,
    path: Path,
    totals: &mut Totals,
) -> Result<Vec<PutStep>, Failure> {
    let shown = Escaped::of(&local).to_string();
    let attempted = format!("cannot create {path}");
    let unread = || Failure::io(format!("read {shown}"));
    let refused = |error: Error| failure(error, &attempted);
    let metadata = fs::symlink_metadata(&local).map_err(unread())?;
    let kind = metadata.file_type();
    let existing = match tree.rank.lookup(&tree.user, parent, &name).await {
        Ok(found) => Some(found),
        Err(Error::NotFound) => None,
        Err(error) => return Err(refused(error)),
    };
    let create = async |creation: Creation| {
        tree.rank.create(&tree.user, parent, &name, creation).await.map_err(refused)
    };
    if kind.is_dir() {
        let ino = match existing {
            Some(found) if found.kind == InodeKind::Directory => found.ino,
            Some(_) => return Err(refused(Error::NotDirectory)),
            None => create(Creation::new(InodeKind::Directory, 0o700)).await?.ino,
        };
        totals.directories += 1;
        let mut names: Vec<OsString> = Vec::new();
        for entry in fs::read_dir(&local).map_err(unread())? {
            names.push(entry.map_err(unread())?.file_name());
        }
        // The last one is done first.
        names.sort_unstable_by(|one, other| other.cmp(one));
        let mut steps = vec![PutStep::Leave { ino, metadata, path: path.clone() }];
        steps.extend(names.into_iter().map(|name| PutStep::Enter {
            local: local.join(&name),
            parent: ino,
            path: path.join(name.as_bytes()),
            name: Bytes::from(name.into_vec()),
        }));
        return Ok(steps);
    }
    let mut metadata = metadata;
    let ino = if kind.is_file() {
        // A link or a pipe that others have put in its place since it was looked at is neither followed nor waited for.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let mut options = tokio::fs::OpenOptions::new();
        let file = options.read(true).custom_flags(flags).open(&local).await.map_err(unread())?;
        metadata = file.metadata().await.map_err(unread())?;
        if !metadata.is_file() {
            return Err(Failure::Failed(format!("cannot read {shown}: it was replaced meanwhile")));
        }
        let put = match &existing {
            Some(found) => tree.rank.put(&tree.user, found.ino).await,
            None => tree.rank.put_new(&tree.user, parent, &name, 0o600).await,
        };
        let mut put = put.map_err(refused)?;
        // A file of the store itself, where that is in the folder, grows with all that is put. (Those of length 0 may be of the kernel,
        // which does not say how long they are.)
        let length = if metadata.len() == 0 { u64::MAX } else { metadata.len() };
        if let Err(failed) = fill(&mut put, Box::new(file.take(length)), &shown, &attempted).await {
            return Err(match put.abort().await {
                Ok(()) => failed,
                Err(_) => with_remains(failed),
            });
        }
        totals.bytes += put.commit().await.map_err(refused)?;
        totals.files += 1;
        tree.rank.lookup(&tree.user, parent, &name).await.map_err(refused)?.ino
    } else {
        let creation = if kind.is_symlink() {
            let target = fs::read_link(&local).map_err(unread())?;
            Creation::symlink(target.into_os_string().into_vec())
        } else if kind.is_fifo() {
            Creation::new(InodeKind::Fifo, 0o600)
        } else if kind.is_socket() {
            Creation::new(InodeKind::Socket, 0o600)
        } else {
            return Err(Failure::Failed(format!("{attempted}: {shown} is a device")));
        };
        // A link that is there already gives way to the one that is put.
        if existing.is_some_and(|found| found.kind == InodeKind::Symlink) && kind.is_symlink() {
            tree.rank.unlink(&tree.user, parent, &name).await.map_err(refused)?;
        }
        let made = create(creation).await?.ino;
        totals.others += 1;
        made
    };
    keep_attributes(tree, ino, &metadata, &path).await?;
    Ok(Vec::new())
}

/// Gives an inode the permissions and the time of modification of a local entry, and its owner if the caller is root.
async fn keep_attributes(tree: &Tree, ino: Ino, metadata: &Metadata, path: &Path) -> Result<(), Failure> {
    let is_root = tree.user.is_root();
    // A program that others run with its owner's rights does not become one with the rights of who puts it.
    let kept = if is_root || metadata.is_dir() { 0o7777 } else { 0o1777 };
    let time = metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec());
    let set = SetAttributes {
        mode: (!metadata.is_symlink()).then_some(metadata.mode() & kept),
        uid: is_root.then_some(metadata.uid()),
        gid: is_root.then_some(metadata.gid()),
        mtime: Some(SetTime::To(time)),
        ..SetAttributes::default()
    };
    let done = tree.rank.set_attributes(&tree.user, ino, &set).await;
    done.map_err(|error| failure(error, format_args!("cannot set the attributes of {path}")))?;
    Ok(())
}

/// Something that is left to be fetched.
enum GetStep {
    /// A directory.
    Enter { found: Attributes, path: Path, local: PathBuf },
    /// A directory of which everything is fetched.
    Leave { found: Attributes, local: PathBuf },
}

/// Runs `nacre fs get --recursive`.
pub async fn get(tree: &Tree, path: Path, folder: PathBuf) -> Result<(), Failure> {
    let found = tree.find(&path, true, "read").await?;
    if found.kind != InodeKind::Directory {
        return Err(failure(Error::NotDirectory, format_args!("cannot get {path} with --recursive")));
    }
    let local = match path.name() {
        // Also if there is such a folder already.
        Some(name) if folder.is_dir() => {
            let attempted = format!("cannot get {path} into the folder {}", Escaped::of(&folder));
            check_name(&name).map_err(|error| failure(error, attempted))?;
            folder.join(OsStr::from_bytes(&name))
        }
        Some(name) => destination(folder, &name)?,
        None => folder,
    };
    let shown = Escaped::of(&local).to_string();
    let interruption = Interruption::catch()?;
    let mut totals = Totals::default();
    let attempted = format!("cannot get {path}");
    tokio::select! {
        done = get_all(tree, GetStep::Enter { found, path, local }, &mut totals) => done?,
        () = interruption.wait() => return Err(interrupted(attempted)),
    }
    totals.end(tree.json, "fetched to", &shown)
}

async fn get_all(tree: &Tree, first: GetStep, totals: &mut Totals) -> Result<(), Failure> {
    let mut steps = vec![first];
    while let Some(step) = steps.pop() {
        match step {
            GetStep::Enter { found, path, local } => {
                let made = make_folder(&local);
                if totals.settle(made)?.is_none() {
                    continue;
                }
                totals.directories += 1;
                steps.push(GetStep::Leave { found: found.clone(), local: local.clone() });
                let mut below = Vec::new();
                let listed = tree.list(&found, &path, true, async |listed: Listed| {
                    // Whoever writes to the store's objects can make names that lead elsewhere.
                    if let Err(error) = check_name(&listed.name) {
                        let refused = failure(error, format_args!("cannot get {}", path.join(&listed.name)));
                        return totals.settle::<()>(Err(refused)).map(|_| ());
                    }
                    let Some(found) = listed.attributes else { return Ok(()) };
                    let (path, local) =
                        (path.join(&listed.name), local.join(OsString::from_vec(listed.name.to_vec())));
                    if found.kind == InodeKind::Directory {
                        below.push(GetStep::Enter { found, path, local });
                        return Ok(());
                    }
                    let done = get_entry(tree, &found, &path, &local, totals).await;
                    totals.settle(done).map(|_| ())
                });
                let listed = listed.await;
                totals.settle(listed)?;
                steps.extend(below.into_iter().rev());
            }
            GetStep::Leave { found, local } => {
                let done = keep_locally(tree, &found, &local);
                totals.settle(done)?;
            }
        }
    }
    Ok(())
}

/// Makes a folder, unless there is one. A link to one is not followed: others may have made it.
fn make_folder(local: &std::path::Path) -> Result<(), Failure> {
    let shown = Escaped::of(local).to_string();
    match fs::symlink_metadata(local) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(Failure::Failed(format!("cannot create the folder {shown}: there is something else"))),
        Err(_) => fs::DirBuilder::new()
            .mode(0o700)
            .create(local)
            .map_err(Failure::io(format!("create the folder {shown}"))),
    }
}

/// Fetches something that is no directory.
async fn get_entry(
    tree: &Tree,
    found: &Attributes,
    path: &Path,
    local: &std::path::Path,
    totals: &mut Totals,
) -> Result<(), Failure> {
    let shown = Escaped::of(local).to_string();
    match &found.kind {
        InodeKind::File => {}
        InodeKind::Symlink => {
            if local.is_symlink() {
                fs::remove_file(local).map_err(Failure::io(format!("replace {shown}")))?;
            }
            let target = OsString::from_vec(found.target.to_vec());
            symlink(target, local).map_err(Failure::io(format!("create {shown}")))?;
            totals.others += 1;
            return Ok(());
        }
        kind => {
            let text = format!("cannot get {path}: it is of kind {}, and has no content", kind.name());
            return Err(Failure::Failed(text));
        }
    }
    if local.is_symlink() {
        return Err(Failure::Failed(format!("cannot get {path}: {shown} is a symbolic link")));
    }
    let replacement = Replacement::of(local)?;
    let file = replacement.writer()?;
    copy(tree, path, found, file, |error| Failure::io(format!("write to {shown}"))(error)).await?;
    replacement.complete()?;
    totals.files += 1;
    totals.bytes += found.size;
    keep_locally(tree, found, local)
}

/// Gives a local file or folder the permissions and the time of modification of an inode, and its owner if the caller is root.
fn keep_locally(tree: &Tree, found: &Attributes, local: &std::path::Path) -> Result<(), Failure> {
    let set = || {
        let is_root = tree.user.is_root();
        if is_root {
            lchown(local, Some(found.uid), Some(found.gid))?;
        }
        let distance = Duration::from_nanos(found.mtime.unsigned_abs());
        let time = if found.mtime < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance };
        fs::File::open(local)?.set_times(FileTimes::new().set_modified(time))?;
        // A program that others run with its owner's rights does not become one with the rights of who fetches it.
        let mode = if is_root { found.mode } else { found.mode & 0o777 };
        fs::set_permissions(local, Permissions::from_mode(mode))
    };
    set().map_err(Failure::io(format!("set the attributes of {}", Escaped::of(local))))
}
