//! `nacre copy-objects`: copies objects from one store to another, including their versions.

use std::ffi::{OsStr, OsString};

use nacre::{Engine, Uri};
use nacre_quantity::Escaped;
use serde_json::json;

use crate::failure::Failure;
use crate::progress::Bar;
use crate::session::{Context, Purpose};
use crate::{output, quantity};

/// Copy all objects of a store to another store, with their versions
///
/// Objects that the destination already has are not copied again. An interrupted copy therefore continues where it
/// stopped, and a later one transfers only what has changed since. This also moves a site from one machine to Ceph, and
/// back. A server that is being restarted is waited for, 10 seconds or the repeat_timeout in the store's URI.
///
/// Each object is copied at a single version, even while others write. Objects that cannot be copied (because they are
/// damaged, or change faster than they can be read) are listed, all others are copied, and the exit code is 1. So is a
/// namespace that changes all the time; otherwise its directories and links are copied as they were at one moment. The
/// records of lock servers (nacre/locks) are left out: the servers of the destination have their own.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The store to copy from
    source: OsString,
    /// The store to copy to; a folder is created if it does not exist
    destination: OsString,
}

/// Returns whether two uris name one folder, which a process can open only once.
fn same_folder(source: &OsStr, destination: &OsStr) -> bool {
    let folder = |uri: &OsStr| match Uri::from_os_str(uri).ok()? {
        Uri { engine: Engine::Folder(path), .. } => std::fs::canonicalize(path).ok(),
        _ => None,
    };
    folder(source).is_some_and(|source| Some(source) == folder(destination))
}

/// Runs `nacre copy-objects`.
pub async fn run(session: &Context, args: Args) -> Result<(), Failure> {
    if same_folder(&args.source, &args.destination) {
        return Err(Failure::Usage(format!("{} cannot be copied to itself", Escaped::of(&args.source))));
    }
    let source = session.open_at(&args.source, Purpose::Use)?.patient();
    let destination = session.open_at(&args.destination, Purpose::Fill)?.patient();
    let mut bar = Bar::bytes(None);
    let mut seen = 0;
    let mut skipped = Vec::new();
    let progress = |object: &nacre::ObjectId, so_far: &nacre::Copied| {
        if nacre_daemon::is_lock_ledger(object) {
            skipped.push(object.to_string());
        }
        bar.add(so_far.bytes - seen);
        seen = so_far.bytes;
    };
    let copied = source.copy_objects(&destination, progress).await?;
    drop(bar);
    destination.close()?;
    if session.json {
        let failed = copied.failed.iter();
        let failed = failed.map(|(id, error)| json!({ "object": id.to_string(), "error": error.message }));
        let json = json!({
            "objects": copied.objects,
            "unchanged": copied.unchanged,
            "bytes": copied.bytes,
            "skipped": skipped,
            "failed": failed.collect::<Vec<_>>(),
        });
        output::line(&json.to_string())?;
    } else {
        output::line(&format!(
            "{}, {} of them the same before; {} written",
            quantity::count(copied.objects, "object"),
            quantity::grouped(copied.unchanged),
            quantity::size(copied.bytes)
        ))?;
        for object in &skipped {
            let text = format!("nacre: object \"{object}\" has a lock server's records, and was not copied");
            output::complain(&text);
        }
        for (_, error) in &copied.failed {
            output::complain(&format!("nacre: {error}"));
        }
    }
    if copied.failed.is_empty() {
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "{} of {} not copied; a later run retries them",
        quantity::count(copied.failed.len() as u64, "object"),
        source.name()
    )))
}
