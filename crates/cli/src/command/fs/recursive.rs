//! `nacre fs put --recursive` and `get --recursive`: whole trees, from local folders to the namespace and back, by the copies of
//! [`across`](crate::command::across).

use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};

use nacre::fs::{Error, InodeKind, check_name};
use nacre_quantity::Escaped;
use serde_json::json;

use super::move_bytes::{interrupted, with_remains};
use super::{Path, Tree, failure};
use crate::command::across::command::WIDTH;
use crate::command::across::mounted::{self, Seen};
use crate::command::across::{Ends, Local, Namespace, Pass, Progress, Purpose, Same, Settings, Side};
use crate::command::transfer::destination;
use crate::failure::Failure;
use crate::interrupt::Interruption;
use crate::output;
use crate::quantity;

/// A copy replaces what is there, file by file.
const SETTINGS: Settings = Settings { same: Same::Never, extended: true, cross_mounts: true, width: WIDTH };

/// Runs `nacre fs put --recursive`.
pub async fn put(tree: &Tree, folder: PathBuf, path: Path) -> Result<(), Failure> {
    let interruption = Interruption::catch()?;
    let attempted = format!("cannot put {}", Escaped::of(&folder));
    let shown = Escaped::of(&folder).to_string();
    let real = std::fs::canonicalize(&folder).map_err(Failure::io(format!("open {shown}")))?;
    let (parent, name, path) = match tree.rank.resolve(&tree.user, path.bytes(), true).await {
        Ok(found) if found.kind == InodeKind::Directory => {
            let name = real.file_name().ok_or_else(|| {
                Failure::Usage(format!("{path} exists; name the directory that {shown} is stored as"))
            })?;
            let below = path.join(name.as_bytes());
            (found.ino, CString::new(name.as_bytes()), below)
        }
        Ok(_) => return Err(failure(Error::NotDirectory, format_args!("cannot put {shown} into {path}"))),
        Err(Error::NotFound) => {
            let (parent, name) = tree.parent(&path, "create").await?;
            (parent.ino, CString::new(&name[..]), path)
        }
        Err(error) => return Err(failure(error, format_args!("cannot create {path}"))),
    };
    let name = name.map_err(|error| Failure::Usage(format!("cannot create {path}: {error}")))?;
    let from = Local::locate(&real).map_err(Failure::io(format!("open {shown}")))?;
    let (source, target) = (Local::new(SETTINGS.extended), Namespace::new(tree, SETTINGS.extended));
    if let Ok(Some(found)) = source.look(&from.0, &from.1).await
        && let Some(found) = mounted::seen(tree, &found).await
    {
        check_apart(tree, found, (Seen::itself(parent), &name), &attempted).await?;
    }
    let given = folder.into_os_string().into_encoded_bytes();
    let ends = Ends { from, to: (parent, name), path: given, mounts: mounted::devices(tree) };
    copy(
        (&source, &target),
        &ends,
        interruption,
        tree.json,
        (attempted, true),
        ("stored in", path.to_string()),
    )
    .await
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
    let to = Local::locate(&local).map_err(Failure::io(format!("create the folder {shown}")))?;
    let interruption = Interruption::catch()?;
    let attempted = format!("cannot get {path}");
    let (source, target) = (Namespace::new(tree, SETTINGS.extended), Local::new(SETTINGS.extended));
    if let Ok(Some(parent)) = target.look(&to.0, c".").await
        && let Some(parent) = mounted::seen(tree, &parent).await
    {
        check_apart(tree, Seen::itself(found.ino), (parent, &to.1), &attempted).await?;
    }
    let from = (found.ino, c".".to_owned());
    let ends = Ends { from, to, path: path.bytes().to_vec(), mounts: Vec::new() };
    copy((&source, &target), &ends, interruption, tree.json, (attempted, false), ("fetched to", shown)).await
}

/// Checks that a copy is made neither of itself nor into itself, by way of a mount.
async fn check_apart(tree: &Tree, source: Seen, to: (Seen, &CStr), attempted: &str) -> Result<(), Failure> {
    match mounted::overlap(tree, source, to).await {
        Ok(None) => Ok(()),
        Ok(Some(why)) => Err(Failure::Failed(format!("{attempted}: {why}"))),
        Err(error) => Err(failure(error, attempted)),
    }
}

/// Copies, and prints the result: what was done, and where.
async fn copy<S: Side, T: Side>(
    sides: (&S, &T),
    ends: &Ends<S, T>,
    interruption: Interruption,
    json: bool,
    (attempted, leaves_parts): (String, bool),
    (did, place): (&str, String),
) -> Result<(), Failure> {
    let progress = Progress::default();
    let pass = Pass::new(sides, ends, &SETTINGS, &progress, Purpose::Copy);
    let mut run = pin!(pass.run());
    tokio::select! {
        () = &mut run => {}
        () = interruption.wait() => {
            progress.control.stop();
            run.await;
        }
    }
    let failed = progress.failures.count();
    for failure in progress.notes.first().iter().chain(&progress.failures.first()) {
        output::complain(&format!("nacre: {failure}"));
    }
    if progress.control.is_stopped() {
        let failure = interrupted(attempted);
        // What is removed of it in the end is not known here.
        return Err(if leaves_parts { with_remains(failure) } else { failure });
    }
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let counters = &progress.counters;
    let (files, bytes) = (get(&progress.files), get(&counters.bytes_copied));
    let directories = get(&counters.directories);
    if json {
        let value = json!({
            "files": files,
            "linked": get(&counters.linked),
            "bytes": bytes,
            "directories": directories,
            "others": get(&counters.copied) - files,
            "failed": failed,
        });
        output::line(&value.to_string())?;
    } else {
        output::line(&format!(
            "{} in {} and {} {did} {place}",
            quantity::count(bytes, "byte"),
            quantity::count(files, "file"),
            nacre_quantity::count(directories, "directory", "directories"),
        ))?;
    }
    match failed {
        0 => Ok(()),
        failed => {
            let entries = nacre_quantity::count(failed, "entry", "entries");
            Err(Failure::Failed(format!("{entries} could not be copied")))
        }
    }
}
