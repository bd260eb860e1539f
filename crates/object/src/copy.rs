//! Copying of objects from one store to another with their versions: the way for a site to grow from one machine to a
//! cluster, and back.
//!
//! The seam has no call that sets versions, and needs none: a transaction that proposes a version is stamped with it if
//! it is ahead of the object's ([`Guard::Proposal`]). So an object is *replayed*: its extents are written in ascending
//! order of their versions, all those of one version in one transaction that proposes it; keys and attributes go along,
//! or take versions that no extent has; the last transaction proposes the object's own version. (Everything that
//! carries one version was written by one transaction, and so fits into one again; or it replaced another fork, and
//! does so again: [`Write::ReplaceFork`].)
//!
//! **One version.** A copy is the original as of one version. Everything that a copy must know of an object in advance
//! is read in one transaction, with its bytes and keys as far as a reply holds them, so small objects are copied
//! however often they are written. Other bytes are read on the condition that they did not change since; if they did,
//! the object is started again, and only the newer part is left to do. A copy of an object that changes faster than
//! that is given up after [`ATTEMPTS_MAX`] attempts, and reported.
//!
//! **Not yet whole.** At each moment the copy is what the original would look like if nothing newer than the copy's
//! version had been written yet. An interrupted copy resumes from there, at the destination's version, without any
//! record beside the objects. For the same reason, copying again later brings over only what changed since. An object
//! that takes several transactions has the fork [`MARK`] from the first to the last: its presence marks a copy that is
//! not complete. There is no such moment where a removed object was copied before, or where one transaction does it
//! all.
//!
//! **What is not copied**: staged forks and everything else that has a reserved name ([`crate::stage`]), and what
//! cannot be seen through the seam, which is the versions of objects that were removed, and of forks other than the
//! default one that do not exist (any more). Clients must not carry versions that they read in the one store over to
//! the other for those. Nor are versions of keys: a key of the copy has the version of the transaction that brought it,
//! which is not greater than the object's. Fences and fenced sessions are copied. Where such a fork is created after a first copy was made, its oldest holes get a newer version
//! in the copy.

mod look;
mod pairs;
mod plan;
mod replay;

use look::Look;

use crate::limit::PAGE_ENTRIES_MAX;
use crate::*;

/// The maximum number of times that a copy of an object is started because the object was written to meanwhile.
pub const ATTEMPTS_MAX: usize = 20;
/// The fork that an object has in the destination as long as its copy is not complete.
pub const MARK: &str = ".nacre.copying";

/// The result of a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Objects that are now the same in both stores.
    pub objects: u64,
    /// Objects among these that were the same already.
    pub unchanged: u64,
    /// Bytes of extents that were written.
    pub bytes: u64,
    /// Objects that were not copied, or not wholly, with the reason.
    pub failed: Vec<(ObjectId, StoreError)>,
}

/// Copies all objects of a store into another one, in the order of their ids. `progress` is called after each
/// transaction that was written, and after each object, with the totals so far. An object that cannot be copied
/// (because it is damaged, is written all the time, or has a different namesake in the destination) is reported, and
/// the others are still copied.
///
/// # Errors
///
/// Errors that would affect the next object too: a store that cannot be reached, is full or takes no writes. What was
/// copied stays, and the next attempt resumes from there.
pub async fn copy_objects(
    source: &dyn ObjectStore,
    destination: &dyn ObjectStore,
    mut progress: impl FnMut(&ObjectId, &Copied),
) -> Result<Copied, StoreError> {
    let mut totals = Copied::default();
    let mut after = None;
    loop {
        let page = source.list(after.as_ref(), PAGE_ENTRIES_MAX).await?;
        let Some(last) = page.last() else { return Ok(totals) };
        for object in &page {
            let mut wrote = |bytes| {
                totals.bytes += bytes;
                progress(object, &totals);
            };
            match copy_one(source, destination, object, &mut wrote).await {
                Ok(unchanged) => {
                    totals.objects += 1;
                    totals.unchanged += u64::from(unchanged);
                }
                Err(error) if is_of_the_store(error.kind) => return Err(error),
                Err(error) => totals.failed.push((object.clone(), error)),
            }
            progress(object, &totals);
        }
        after = Some(last.clone());
    }
}

/// Copies one object, or the part of it that the destination does not have yet.
///
/// # Errors
///
/// Those of the stores; [`ErrorKind::Busy`] if the object is written all the time, or another client writes the copy;
/// [`ErrorKind::Invalid`] if the destination has an object of this name that is no earlier state of it.
pub async fn copy_object(
    source: &dyn ObjectStore,
    destination: &dyn ObjectStore,
    object: &ObjectId,
) -> Result<Copied, StoreError> {
    let mut copied = Copied { objects: 1, ..Copied::default() };
    copied.unchanged =
        u64::from(copy_one(source, destination, object, &mut |bytes| copied.bytes += bytes).await?);
    Ok(copied)
}

/// Returns whether a failure is one of the store rather than of an object.
fn is_of_the_store(kind: ErrorKind) -> bool {
    use ErrorKind::*;
    matches!(kind, OutOfSpace | ReadOnly | Unavailable | Unknown | Denied | Closed)
}

/// Copies one object; returns true if there was nothing to do. `wrote` gets the bytes of each transaction.
async fn copy_one(
    source: &dyn ObjectStore,
    destination: &dyn ObjectStore,
    object: &ObjectId,
    wrote: &mut dyn FnMut(u64),
) -> Result<bool, StoreError> {
    for _ in 0..ATTEMPTS_MAX {
        let copy = Copy { source, destination, object, wrote: &mut *wrote };
        // Where there is nothing, the source changed meanwhile. What was brought over stands.
        let done = copy.run().await;
        if let Some(unchanged) =
            done.map_err(|error| error.context(format_args!("copying object \"{object}\"")))?
        {
            return Ok(unchanged);
        }
    }
    let text = format!(
        "copying object \"{object}\": it is written all the time, and {ATTEMPTS_MAX} attempts did not find it at one \
         version; try again when it is quiet"
    );
    Err(StoreError::new(ErrorKind::Busy, text))
}

/// The copying of one object.
struct Copy<'a> {
    source: &'a dyn ObjectStore,
    destination: &'a dyn ObjectStore,
    object: &'a ObjectId,
    wrote: &'a mut dyn FnMut(u64),
}

impl Copy<'_> {
    /// Runs the copy; returns whether there was nothing to do, or `None` if the source was written to meanwhile.
    async fn run(mut self) -> Result<Option<bool>, StoreError> {
        // Forks that only one of the two has are looked at in the other as well.
        let Some(to) = Look::outline(self.destination, self.object, &[]).await? else { return Ok(None) };
        let Some(mut from) = Look::whole(self.source, self.object, &to.names(), &[]).await? else {
            return Ok(None);
        };
        let Some(to) = Look::outline(self.destination, self.object, &from.names()).await? else {
            return Ok(None);
        };
        if from.stat.version == 0 || from.stat == to.stat && !to.marked {
            return Ok(Some(true));
        }
        if to.stat.version >= from.stat.version {
            return Err(differs(&from, &to));
        }
        let mut steps = plan::steps(&from, &to).ok_or_else(|| differs(&from, &to))?;
        // What has to be read still may be little enough to be read together with all the rest.
        let missing = from.missing(&steps);
        if !missing.is_empty() {
            let Some(again) = Look::whole(self.source, self.object, &to.names(), &missing).await? else {
                return Ok(None);
            };
            if !to.covers(&again) {
                return Ok(None);
            }
            steps = plan::steps(&again, &to).ok_or_else(|| differs(&again, &to))?;
            from = again;
        }
        let Some(()) = self.replay(&from, &to, steps).await? else { return Ok(None) };
        match Look::outline(self.destination, self.object, &[]).await? {
            Some(copy) if copy.equals(&from) && !copy.marked => Ok(Some(false)),
            Some(copy) => {
                let text = format!("the copy is {:?}, the original {:?}", copy.stat, from.stat);
                Err(StoreError::new(ErrorKind::Corrupt, text))
            }
            None => Err(StoreError::new(ErrorKind::Busy, "somebody else writes the copy")),
        }
    }
}

fn differs(from: &Look, to: &Look) -> StoreError {
    let text = format!(
        "the destination has an object of that name at version {} which is not an earlier state of the source's at \
         version {}: remove it there first",
        to.stat.version, from.stat.version
    );
    StoreError::new(ErrorKind::Invalid, text)
}
