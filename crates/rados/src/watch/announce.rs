//! Announcements: a writer tells those who watch an object what it has changed, after the write.
//!
//! There is one task for an object as long as there is something to announce. What is written while an announcement is under
//! way goes into the next one together. One that is not answered at once, because a client that watches hangs, holds up the next
//! one for a moment only.

use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::Arc;
use std::time::Duration;

use nacre_object::ObjectId;
use tokio::task::JoinSet;

use super::Shared;
use super::message::{self, LINKS_MAX, Link};
use crate::error::errno;
use crate::name::object_name;
use crate::native::HEADER;
use crate::read::header_of;
use crate::record::{Author, Header};
use crate::sys::{ReadStep, WriteStep, flag};

/// The time that OSDs wait for clients to answer an announcement, in seconds.
const ANSWER_SECONDS: u64 = 2;
/// The time for which an announcement holds up the next one.
const PATIENCE: Duration = Duration::from_millis(200);
/// The number of announcements of one object that may be under way.
const UNDER_WAY_MAX: usize = 16;

/// Announces what there is to announce of an object, until there is nothing more.
pub(super) async fn announce(shared: Arc<Shared>, object: ObjectId) {
    let name: Arc<CStr> = object_name(&object).into();
    let mut under_way = JoinSet::new();
    while let Some(links) = shared.take_unannounced(&object) {
        let operation = shared.pool.notify(&name, &message::changes(&links), ANSWER_SECONDS);
        let (theirs, object, name) = (Arc::clone(&shared), object.clone(), Arc::clone(&name));
        under_way.spawn(async move {
            let completed = operation.await;
            let answer = completed.answers.into_iter().next().map(|answer| answer.into_bytes());
            let answers = message::answers(0, answer.unwrap_or_default());
            if completed.code >= 0 && answers.is_some_and(|answers| answers.connections == 0) {
                theirs.unmark(&object, &name).await;
            }
        });
        loop {
            tokio::select! {
                _ = under_way.join_next() => if under_way.is_empty() { break },
                () = tokio::time::sleep(PATIENCE) => if under_way.len() < UNDER_WAY_MAX { break },
            }
        }
    }
    while under_way.join_next().await.is_some() {}
}

/// Adds a change of an object to those that are to be announced. Returns whether the object had none.
fn add(unannounced: &mut HashMap<ObjectId, Vec<Link>>, object: &ObjectId, link: Link) -> bool {
    let Some(links) = unannounced.get_mut(object) else {
        unannounced.insert(object.clone(), vec![link]);
        return true;
    };
    let full = links.len() >= LINKS_MAX;
    match links.last_mut() {
        Some(last) if full => last.join(link),
        _ => links.push(link),
    }
    false
}

impl Shared {
    /// Adds a change to what is to be announced. Returns whether nobody is at it yet.
    pub(super) fn is_first(&self, object: &ObjectId, link: Link) -> bool {
        add(&mut self.unannounced.lock(), object, link)
    }

    /// Takes out what is to be announced of an object; `None`, and the next change is the first again, if that is nothing.
    fn take_unannounced(&self, object: &ObjectId) -> Option<Vec<Link>> {
        let mut unannounced = self.unannounced.lock();
        let links = std::mem::take(unannounced.get_mut(object)?);
        if links.is_empty() {
            unannounced.remove(object);
            return None;
        }
        Some(links)
    }

    /// Clears the mark of an object that nobody watches, if the object is still as it is found. Whoever has begun to watch it
    /// meanwhile sets the mark again.
    async fn unmark(&self, object: &ObjectId, name: &CStr) {
        let completed = self.pool.read(name, &[ReadStep::Xattrs], 0).await;
        let Ok((before, _)) = header_of(&self.pool, &self.location, object, completed, 0) else { return };
        if !before.watched {
            return;
        }
        let after = Header { watched: false, author: Author::Token(self.tokens.next()), ..before };
        let (before, after) = (before.encode(), after.encode());
        let steps = [WriteStep::IfXattr(HEADER, &before), WriteStep::SetXattr(HEADER, &after)];
        let code = self.pool.write(name, &steps, flag::FULL_TRY).await.code;
        if code < 0 && code != -errno::ECANCELED {
            tracing::debug!(%object, code, "the mark of an object that nobody watches stays");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_beyond_the_limit_become_one_with_the_last() {
        let (mut unannounced, object) = (HashMap::new(), ObjectId::try_from("a").unwrap());
        for version in 1..=200 {
            let first = add(&mut unannounced, &object, Link::one(Some(version - 1), version));
            assert_eq!(first, version == 1);
        }
        let links = unannounced.remove(&object).unwrap();
        assert_eq!(links.len(), LINKS_MAX);
        let last = Link { previous: Some(63), version: 200, changes: 137 };
        assert_eq!(links.last(), Some(&last));
    }
}
