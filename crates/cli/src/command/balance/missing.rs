//! Pins of what is not there: they are kept, and hold once it comes, so that is noted and no failure.

use nacre::fs::{Ino, InodeKind, SEQUENCER};
use nacre::sequencer::SEQUENCER_PREFIX;
use nacre_balance::{Kind, ResourceId};
use nacre_daemon::reflect::{Snapshot, location_map};
use nacre_quantity::unescape;

use crate::command::fs::typed;
use crate::command::map::default_author;
use crate::output;

/// The beginning of the names of sequencers in the namespace: those of the objects with their states.
const STATE_PREFIX: &[u8] = b"nacre/fs/s/";
/// The beginning of the names of subtrees whose paths are not known: those of the objects of their directories.
const DIRECTORY_PREFIX: &str = "nacre/fs/i/";

/// Says so on standard error if a resource is not there. A store that cannot tell says nothing.
pub async fn note(store: &nacre::Store, resource: &ResourceId) {
    let why = match resource.kind {
        Kind::Sequencer => sequencer(store, &resource.name).await,
        Kind::Subtree => subtree(store, &resource.name).await,
        Kind::Group => group(store, &resource.name).await,
    };
    if let Some(why) = why {
        output::complain(&format!("nacre: {resource} is pinned, but {why}"));
    }
}

/// Returns why there is no sequencer of a name, as that is printed.
async fn sequencer(store: &nacre::Store, shown: &str) -> Option<String> {
    let name = unescape(shown.as_bytes()).ok()?;
    // One of the namespace has no object before it is used.
    if name.starts_with(STATE_PREFIX) {
        return None;
    }
    let object = [SEQUENCER_PREFIX.as_bytes(), &name].concat();
    if store.object(object).ok()?.stat().await.ok()?.exists {
        return None;
    }
    if name.starts_with(b"/")
        && let Some(found) = typed::look(store, &name).await.ok()?
        && found.kind == InodeKind::Typed(SEQUENCER.to_owned())
    {
        let object = found.ino.state_object();
        return Some(format!(
            "no sequencer has that name; the one at that path is balanced as sequencer:{object}"
        ));
    }
    Some("there is no such sequencer yet".to_owned())
}

/// Returns why there is no subtree at a path, as that is printed.
async fn subtree(store: &nacre::Store, shown: &str) -> Option<String> {
    let directory = match shown.strip_prefix(DIRECTORY_PREFIX) {
        Some(number) => Ino(u64::from_str_radix(number, 16).ok()?),
        None => match typed::look(store, &unescape(shown.as_bytes()).ok()?).await.ok()? {
            Some(found) if found.kind == InodeKind::Directory => found.ino,
            _ => return Some("there is no such directory yet".to_owned()),
        },
    };
    match store.rank_pins().await.ok()?.contains_key(&directory) {
        true => None,
        false => {
            Some(format!("the directory is no subtree yet; \"nacre rank pin {shown} RANK\" makes it one"))
        }
    }
}

/// Returns why there is no group of a location.
async fn group(store: &nacre::Store, location: &str) -> Option<String> {
    let map = location_map(store, &default_author()).ok()?;
    let read = map.read(&Snapshot::default()).await.ok()?;
    match read.is_some_and(|read| read.entries.contains_key(location)) {
        true => None,
        false => Some("there is no such location yet".to_owned()),
    }
}
