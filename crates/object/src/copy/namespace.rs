//! The metadata of a namespace, whose objects belong together: a file that is moved leaves one directory for another.
//!
//! Each object is copied at a moment of its own. So all of them are looked at again, in passes, and copied again if they
//! have changed, until a pass finds all of them as they were copied. Versions only grow, so each of them had the version
//! of its copy from the time when it was copied until that pass came to it, and all of them had theirs together when the
//! pass began: the copy is the namespace of that moment. (An object that is made and removed between two looks at it is
//! missed, but not the directory that has named it: that has changed too.)
//!
//! Writing into a file, and calling a method of an inode, change nothing that other objects have to do with; and the check counts
//! what quotas limit. What is newer by no more than that is copied, and is no reason for another pass.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::{Copied, INODES, copy_one, file_names, is_of_the_store, is_same};
use crate::limit::PAGE_ENTRIES_MAX;
use crate::*;

/// The prefix of the ids of all objects of a namespace.
pub(super) const NAMESPACE: &str = "nacre/fs/";
/// The prefix of the ids of the objects that hold the states of inodes with methods.
const STATES: &str = "nacre/fs/s/";
/// The prefix of the ids of the objects with limits and usage of quotas.
const QUOTAS: &str = "nacre/fs/q/";
/// The object of the namespace itself.
const TREE: &str = "nacre/fs/tree";
/// The beginnings of the ids of a namespace's metadata: inodes, further parts of directories, quotas, logs of ranks, states, and the
/// object of the namespace.
const METADATA: [&str; 6] = [INODES, "nacre/fs/e/", QUOTAS, "nacre/fs/r/", STATES, "nacre/fs/t"];
/// The maximum number of passes.
const PASSES_MAX: usize = 10;

/// Copies the metadata of a namespace, all of which was copied before, until the copy is what it was at one moment. If it
/// changes all the time, that is among what could not be copied.
///
/// # Errors
///
/// Those that would affect the next object too.
pub(super) async fn settle(
    source: &dyn ObjectStore,
    destination: &dyn ObjectStore,
    totals: &mut Copied,
    progress: &mut impl FnMut(&ObjectId, &Copied),
) -> Result<(), StoreError> {
    for _ in 0..PASSES_MAX {
        if !pass(source, destination, totals, progress).await? {
            return Ok(());
        }
    }
    let text = format!(
        "copying the namespace: it is changed all the time, and {PASSES_MAX} passes did not find it as it had been \
         copied, so what was moved meanwhile may be missing from the copy, or be there twice; stop what changes it, or \
         try again when it is quiet"
    );
    totals.failed.push((ObjectId::new(TREE)?, StoreError::new(ErrorKind::Busy, text)));
    Ok(())
}

/// Copies all metadata that has changed since it was copied. Returns whether other objects have to do with any of that.
async fn pass(
    source: &dyn ObjectStore,
    destination: &dyn ObjectStore,
    totals: &mut Copied,
    progress: &mut impl FnMut(&ObjectId, &Copied),
) -> Result<bool, StoreError> {
    let mut has_changed = false;
    'prefixes: for prefix in METADATA {
        let mut after = ObjectId::new(prefix)?;
        loop {
            // What was removed since is listed by the destination alone.
            let ours = source.list(Some(&after), PAGE_ENTRIES_MAX).await?;
            let theirs = destination.list(Some(&after), PAGE_ENTRIES_MAX).await?;
            // A page says nothing of what is behind its end.
            let Some(end) = [ours.last(), theirs.last()].into_iter().flatten().min().cloned() else {
                continue 'prefixes;
            };
            let objects: BTreeSet<&ObjectId> =
                ours.iter().chain(&theirs).filter(|object| **object <= end).collect();
            for object in objects {
                if !object.as_bytes().starts_with(prefix.as_bytes()) {
                    continue 'prefixes;
                }
                let mut wrote = |bytes: u64| {
                    totals.bytes += bytes;
                    progress(object, totals);
                };
                let copied = match follow(source, destination, object, &mut has_changed, &mut wrote).await {
                    Ok(false) => continue,
                    Err(error) if is_of_the_store(error.kind) => return Err(error),
                    copied => copied,
                };
                // An earlier failure to copy the object is over, or there is a newer one.
                let failures = totals.failed.len();
                totals.failed.retain(|(failed, _)| failed != object);
                match copied {
                    Ok(_) => {
                        let is_new = theirs.binary_search(object).is_err() || totals.failed.len() < failures;
                        totals.objects += u64::from(is_new);
                    }
                    Err(error) => {
                        has_changed |= error.kind == ErrorKind::Busy;
                        totals.failed.push((object.clone(), error));
                    }
                }
                progress(object, totals);
            }
            after = end;
        }
    }
    Ok(has_changed)
}

/// Copies an object if it has changed since it was copied, and returns whether it had. Sets `has_changed` if other objects
/// have to do with the change.
async fn follow(
    source: &dyn ObjectStore,
    destination: &dyn ObjectStore,
    object: &ObjectId,
    has_changed: &mut bool,
    wrote: &mut dyn FnMut(u64),
) -> Result<bool, StoreError> {
    if is_same(source, destination, object).await? {
        return Ok(false);
    }
    // The copies are compared: nobody else writes those. One that failed may still have been written to.
    let (before, ties_before) = ties(destination, object).await?;
    let copied = copy_one(source, destination, object, &mut 0, wrote).await;
    let (after, ties_after) = ties(destination, object).await?;
    *has_changed |= before != after && (ties_before.is_none() || ties_before != ties_after);
    copied.map(|_| true)
}

/// The parts of an object that others have to do with.
#[derive(Default, PartialEq, Eq)]
struct Ties {
    /// The links of a file.
    links: Vec<u8>,
    /// The number of a file's content.
    content: u64,
    /// The intents that have claimed it, and did last.
    claims: Vec<Option<Bytes>>,
}

/// Returns the version of an object, and its ties if there are changes of the object that others have nothing to do with.
async fn ties(store: &dyn ObjectStore, object: &ObjectId) -> Result<(u64, Option<Ties>), StoreError> {
    let mut transaction = Transaction::new();
    let is_alone = [STATES, QUOTAS].iter().any(|prefix| object.as_bytes().starts_with(prefix.as_bytes()));
    if !is_alone {
        for key in ["a", "c", "m"] {
            transaction = transaction.read(ReadOp::Key { key: Key::new(key)? });
        }
    }
    let Outcome::Done(done) = store.apply(object, transaction).await? else {
        return Err(StoreError::new(ErrorKind::Io, "the store refused a read that had no condition"));
    };
    if is_alone {
        return Ok((done.version, done.existed.then(Ties::default)));
    }
    let mut values = done.answers.into_iter().map(|answer| match answer {
        Answer::Value(value) => value,
        _ => None,
    });
    let record = values.next().flatten();
    let ties = record.as_deref().and_then(file_names).map(|(links, content)| Ties {
        links: links.to_vec(),
        content,
        claims: values.collect(),
    });
    Ok((done.version, ties))
}
