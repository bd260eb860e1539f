//! `nacre copy` where the source or the destination is in the namespace of a store.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use nacre::fs::{Attributes, Error, Ino, InodeKind};
use nacre_quantity::Escaped;
use nacre_tree::copy::Plan;
use nacre_walk::{FileKind, Metadata};
use rustix::process::{Resource, Rlimit};

use super::local::{Local, is_directory_by_name, open};
use super::mounted::{Seen, devices, overlap, seen};
use super::namespace::{Namespace, locate_target};
use super::side::Side;
use super::{Ends, Pass, Progress, Purpose, Same, Settings};
use crate::command::fs::{self, Tree};
use crate::failure::Failure;
use crate::progress::Ticker;
use crate::quantity;
use crate::session::Context;

/// The number of pieces of work that are under way at a time: while one waits for the store, others go on.
pub const WIDTH: usize = 16;

/// A copy that was asked for.
pub struct Request<'a> {
    pub source: &'a Path,
    pub destination: &'a Path,
    /// The path of the source in the namespace, if it is there.
    pub from: Option<OsString>,
    /// The path of the destination in the namespace, if it is there.
    pub to: Option<OsString>,
    pub checksum: bool,
    pub extended: bool,
    pub cross_mounts: bool,
    pub width: Option<usize>,
    pub verify: bool,
    pub dry_run: bool,
}

/// A function that is given what would be done, and with which path.
pub type Report<'a> = dyn Fn(&'static str, &[u8]) + 'a;

/// A source: where it is, whether it is a directory, and the name of a copy in a directory.
struct Located<D> {
    place: (D, CString),
    is_directory: bool,
    own: Option<CString>,
}

/// Copies, or finds out what a copy would do. Failures of entries are in the progress. `plan` and its function are given what would be
/// done.
pub fn run(
    session: &Context,
    request: &Request<'_>,
    progress: &Progress,
    plan: (&Plan, &Report<'_>),
) -> Result<(), Failure> {
    raise_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Failure::io("start the program's runtime"))?;
    let ticker = Ticker::bytes();
    let done = ticker.show_during(
        |bar| {
            let entries = progress.counters.entries.load(Ordering::Relaxed);
            bar.set_message(format!("{} entries", quantity::grouped(entries)));
            bar.set_position(progress.counters.bytes.load(Ordering::Relaxed));
        },
        || {
            runtime.block_on(async {
                let fills = request.to.is_some() && !request.dry_run;
                let opened = if fills { session.open_to_fill()? } else { session.open()? };
                let tree = Tree::open(&opened.patient(), fills, session.json).await?;
                let done = between(&tree, request, progress, plan).await;
                tree.close().await;
                done
            })
        },
    );
    runtime.shutdown_background();
    done
}

/// Copies between the sides that the request names.
async fn between(
    tree: &Tree,
    request: &Request<'_>,
    progress: &Progress,
    plan: (&Plan, &Report<'_>),
) -> Result<(), Failure> {
    let (local, remote) = (Local::new(request.extended), Namespace::new(tree, request.extended));
    let path = request.source.as_os_str().as_bytes().to_vec();
    match (&request.from, &request.to) {
        (Some(from), Some(to)) => {
            let (source, found) = namespace_source(tree, from, request).await?;
            let target = namespace_target(tree, to, &source, request).await?;
            let (own, parent) = (Seen::itself(found.ino), Seen::itself(target.0));
            check_apart(tree, Some(own), (Some(parent), &target.1), request).await?;
            // Both sides are one tree, and each has its own view of it.
            let other = Namespace::new(tree, request.extended);
            let ends = Ends { from: source.place, to: target, path, mounts: Vec::new() };
            pass((&remote, &other), &ends, request, progress, plan).await;
        }
        (Some(from), None) => {
            let (source, found) = namespace_source(tree, from, request).await?;
            let target = local_target(&source, request)?;
            let parent = match local.look(&target.0, c".").await {
                Ok(Some(parent)) => seen(tree, &parent).await,
                _ => None,
            };
            check_apart(tree, Some(Seen::itself(found.ino)), (parent, &target.1), request).await?;
            let ends = Ends { from: source.place, to: target, path, mounts: Vec::new() };
            pass((&remote, &local), &ends, request, progress, plan).await;
        }
        (None, to) => {
            let (source, found) = local_source(&local, request).await?;
            let to = to.clone().unwrap_or_default();
            let target = namespace_target(tree, &to, &source, request).await?;
            let parent = Seen::itself(target.0);
            check_apart(tree, seen(tree, &found).await, (Some(parent), &target.1), request).await?;
            let ends = Ends { from: source.place, to: target, path, mounts: devices(tree) };
            pass((&local, &remote), &ends, request, progress, plan).await;
        }
    }
    Ok(())
}

/// Makes the passes that the request asks for.
async fn pass<S: Side, T: Side>(
    sides: (&S, &T),
    ends: &Ends<S, T>,
    request: &Request<'_>,
    progress: &Progress,
    (plan, report): (&Plan, &Report<'_>),
) {
    let settings = Settings {
        same: if request.checksum { Same::Contents } else { Same::Time },
        extended: request.extended,
        cross_mounts: request.cross_mounts,
        width: request.width.unwrap_or(WIDTH),
    };
    let purpose = match request.dry_run {
        true => Purpose::Preview(plan, report),
        false => Purpose::Copy,
    };
    Pass::new(sides, ends, &settings, progress, purpose).run().await;
    if request.verify && progress.failures.count() == 0 && !progress.control.is_stopped() {
        Pass::new(sides, ends, &settings, progress, Purpose::Verify).run().await;
    }
}

/// Raises the limit on open files as far as possible: each directory under way on this machine has one.
fn raise_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(u64::MAX).min(1 << 16);
    if limit.current.is_some_and(|current| current < wanted) {
        // Without it, a very deep tree is not copied, and its path is in the message.
        let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit });
    }
}

/// Returns the refusal of a copy.
fn refused(request: &Request<'_>, why: impl std::fmt::Display) -> Failure {
    let (source, destination) = (Escaped::of(request.source), Escaped::of(request.destination));
    Failure::Usage(format!("cannot copy \"{source}\" to \"{destination}\": {why}"))
}

/// Returns the refusal of a copy for what the namespace says.
fn refused_by(error: Error, request: &Request<'_>) -> Failure {
    match error {
        Error::Store(_) => {
            fs::failure(error, format_args!("cannot copy \"{}\"", Escaped::of(request.source)))
        }
        error => refused(request, error),
    }
}

async fn local_source(
    local: &Local,
    request: &Request<'_>,
) -> Result<(Located<<Local as Side>::Directory>, Metadata), Failure> {
    let place = Local::locate(request.source).map_err(|error| refused(request, error))?;
    let found = match local.look(&place.0, &place.1).await {
        Ok(Some(found)) => found,
        Ok(None) => return Err(refused(request, "there is no such file or directory")),
        Err(cause) => return Err(refused(request, cause)),
    };
    let own = match request.source.file_name() {
        Some(name) => CString::new(name.as_bytes()).ok(),
        None => Some(place.1.clone()).filter(|name| name.as_bytes() != b"."),
    };
    Ok((Located { place, is_directory: found.kind() == FileKind::Directory, own }, found))
}

async fn namespace_source(
    tree: &Tree,
    path: &OsStr,
    request: &Request<'_>,
) -> Result<(Located<Ino>, Attributes), Failure> {
    let by = |error| refused_by(error, request);
    let by_name = is_directory_by_name(Path::new(path));
    let found = tree.rank.resolve(&tree.user, path.as_bytes(), by_name).await.map_err(by)?;
    let own = Path::new(path).file_name().and_then(|name| CString::new(name.as_bytes()).ok());
    let place = match by_name {
        true => (found.ino, c".".to_owned()),
        false => {
            let (parent, name) = tree.rank.resolve_parent(&tree.user, path.as_bytes()).await.map_err(by)?;
            (parent.ino, CString::new(&name[..]).map_err(|error| refused(request, error))?)
        }
    };
    let is_directory = found.kind == InodeKind::Directory;
    Ok((Located { place, is_directory, own }, found))
}

/// Returns the name that the copy has in a directory.
fn own_name<D>(source: &Located<D>, request: &Request<'_>) -> Result<CString, Failure> {
    source.own.clone().ok_or_else(|| refused(request, "the source has no name of its own; name the copy"))
}

fn local_target<D>(
    source: &Located<D>,
    request: &Request<'_>,
) -> Result<(<Local as Side>::Directory, CString), Failure> {
    let path = request.destination;
    let opened = |path: &Path| open(path).map_err(|error| refused(request, error));
    if is_directory_by_name(path) {
        return Ok((opened(path)?, own_name(source, request)?));
    }
    if let Ok(there) = path.symlink_metadata() {
        if there.is_symlink() {
            return Err(refused(request, "the destination is a symbolic link"));
        }
        if there.is_dir() && !source.is_directory {
            return Ok((opened(path)?, own_name(source, request)?));
        }
        if !there.is_dir() && source.is_directory {
            return Err(refused(request, "the destination is not a directory"));
        }
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let name = path.file_name().unwrap_or_default().as_bytes();
    let directory = open(parent).map_err(|error| {
        refused(request, format_args!("the directory \"{}\" has to exist: {error}", Escaped::of(parent)))
    })?;
    Ok((directory, CString::new(name).map_err(|error| refused(request, error))?))
}

async fn namespace_target<D>(
    tree: &Tree,
    path: &OsStr,
    source: &Located<D>,
    request: &Request<'_>,
) -> Result<(Ino, CString), Failure> {
    let by = |error| refused_by(error, request);
    let by_name = is_directory_by_name(Path::new(path));
    let within = locate_target(tree, path.as_bytes(), by_name, source.is_directory).await.map_err(by)?;
    if let Some(directory) = within {
        return Ok((directory, own_name(source, request)?));
    }
    let (parent, name) =
        tree.rank.resolve_parent(&tree.user, path.as_bytes()).await.map_err(|error| match error {
            Error::NotFound => refused(request, "the directory that the copy is to be in has to exist"),
            error => refused_by(error, request),
        })?;
    match tree.rank.lookup(&tree.user, parent.ino, &name).await {
        Ok(there) if there.kind == InodeKind::Symlink => {
            return Err(refused(request, "the destination is a symbolic link"));
        }
        Ok(there) if source.is_directory && there.kind != InodeKind::Directory => {
            return Err(refused(request, "the destination is not a directory"));
        }
        Ok(_) | Err(Error::NotFound) => {}
        Err(error) => return Err(by(error)),
    }
    Ok((parent.ino, CString::new(&name[..]).map_err(|error| refused(request, error))?))
}

/// Checks that a copy is made neither of itself nor into itself, where both ends are in the namespace or in a mount of it.
async fn check_apart(
    tree: &Tree,
    source: Option<Seen>,
    (parent, name): (Option<Seen>, &CStr),
    request: &Request<'_>,
) -> Result<(), Failure> {
    let (Some(source), Some(parent)) = (source, parent) else { return Ok(()) };
    match overlap(tree, source, (parent, name)).await {
        Ok(None) => Ok(()),
        Ok(Some(why)) => Err(refused(request, why)),
        Err(error) => Err(refused_by(error, request)),
    }
}
