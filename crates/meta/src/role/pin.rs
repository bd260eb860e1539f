//! The pins of directories: the ranks that get what is created below them.
//!
//! They are the keys of the object `nacre/ranks/pins`: the number of the directory's inode in 16 hexadecimal digits; the value
//! is 1, the version of the format, and the rank, little-endian. A sequencer's rank is looked up when its state is created,
//! and stands in its record from then on, so nothing of this is read with a request. Where load is balanced, a pinned directory
//! is one resource, and its pin says where all that is below it belongs ([`super::subtree`]).

use std::collections::BTreeMap;

use bytes::Bytes;
use nacre_object::limit::PAGE_ENTRIES_MAX;
use nacre_object::{
    Answer, Check, ErrorKind, Guard, Key, KeyRange, ObjectId, ObjectStore, Outcome, ReadOp, StoreError,
    Transaction, WriteOp,
};

use crate::inode::{Ino, Inode, RECORD};
use crate::place::{RANK_MAX, RankNumber};

/// The object with the pins.
pub const OBJECT: &str = "nacre/ranks/pins";
/// The most pins: one read finds all of them.
pub const PINS_MAX: usize = PAGE_ENTRIES_MAX;
const VERSION: u8 = 1;
/// The most directories above a sequencer that are looked at.
const DEPTH_MAX: usize = 10_000;

fn id() -> Result<ObjectId, StoreError> {
    OBJECT.parse()
}

/// Encodes a pin.
fn encode(rank: RankNumber) -> Bytes {
    let mut out = vec![VERSION];
    out.extend_from_slice(&rank.to_le_bytes());
    out.into()
}

/// Decodes a pin; `None` if the bytes are none.
pub fn decode(bytes: &[u8]) -> Option<RankNumber> {
    let bytes: &[u8; 5] = bytes.try_into().ok()?;
    let rank = RankNumber::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]);
    (bytes[0] == VERSION && rank <= RANK_MAX).then_some(rank)
}

fn directory(key: &Key) -> Option<Ino> {
    let text = std::str::from_utf8(key.as_bytes()).ok()?;
    u64::from_str_radix(text, 16).ok().map(Ino).filter(|ino| ino.to_string() == text)
}

/// Returns all pins.
///
/// # Errors
/// Those of the store; `Corrupt` if the object holds something else.
pub async fn all(store: &dyn ObjectStore) -> Result<BTreeMap<Ino, RankNumber>, StoreError> {
    let damaged = || StoreError::new(ErrorKind::Corrupt, format!("object \"{OBJECT}\" holds no pins"));
    let range = KeyRange::all();
    let read = ReadOp::Keys { range, limit: PINS_MAX as u32, values: true };
    let Outcome::Done(done) = store.apply(&id()?, Transaction::new().read(read)).await? else {
        return Err(damaged());
    };
    let Some(Answer::Keys(page)) = done.answers.into_iter().next() else { return Err(damaged()) };
    let pins = page.entries.iter().map(|(key, value)| Some((directory(key)?, decode(value)?)));
    pins.collect::<Option<_>>().ok_or_else(damaged)
}

/// Pins a directory to a rank, or frees it.
///
/// # Errors
/// Those of the store; `OutOfSpace` if there are as many pins as there may be.
pub async fn set(
    store: &dyn ObjectStore,
    directory: Ino,
    rank: Option<RankNumber>,
) -> Result<(), StoreError> {
    let key: Key = directory.to_string().parse()?;
    let change = match rank {
        Some(rank) => {
            let pins = all(store).await?;
            if pins.len() >= PINS_MAX - 1
                && !pins.contains_key(&directory)
                && !remove_stale(store, &pins).await?
            {
                let text = format!("there are {} pins already; remove some", pins.len());
                return Err(StoreError::new(ErrorKind::OutOfSpace, text));
            }
            WriteOp::SetKey { key, value: encode(rank) }
        }
        None => WriteOp::RemoveKey { key },
    };
    store.apply(&id()?, Transaction::new().change(change)).await.map(drop)
}

/// Removes the pins of directories that are gone, which have no path by which somebody could. Returns whether there were any.
async fn remove_stale(store: &dyn ObjectStore, pins: &BTreeMap<Ino, RankNumber>) -> Result<bool, StoreError> {
    let mut removal = Transaction::new();
    for directory in pins.keys() {
        match parent(store, *directory).await {
            // Numbers of inodes are not given out again.
            Ok(None) => removal = removal.change(WriteOp::RemoveKey { key: directory.to_string().parse()? }),
            Ok(Some(_)) => {}
            Err(error) if error.kind == ErrorKind::Corrupt => {}
            Err(error) => return Err(error),
        }
    }
    let is_any = !removal.writes.is_empty();
    if is_any {
        store.apply(&id()?, removal).await?;
    }
    Ok(is_any)
}

/// Pins a directory to a rank, on condition that it is pinned to the rank `from`. Returns whether it was.
///
/// # Errors
/// Those of the store.
pub async fn replace(
    store: &dyn ObjectStore,
    directory: Ino,
    from: RankNumber,
    to: RankNumber,
) -> Result<bool, StoreError> {
    let key: Key = directory.to_string().parse()?;
    let change = Transaction::new()
        .guard(Guard::Key { key: key.clone(), check: Check::Equal(encode(from)) })
        .change(WriteOp::SetKey { key, value: encode(to) });
    let outcome = store.apply(&id()?, change).await?;
    Ok(matches!(outcome, Outcome::Done(_)))
}

/// Returns the directory in which a directory is, or in which another inode was created; `None` if the inode is gone.
///
/// # Errors
/// Those of the store; `Corrupt` if the inode cannot be read.
pub(super) async fn parent(store: &dyn ObjectStore, ino: Ino) -> Result<Option<Ino>, StoreError> {
    let look = Transaction::new().read(ReadOp::Key { key: Key::new(Bytes::from_static(RECORD))? });
    let Outcome::Done(done) = store.apply(&ino.object(), look).await? else { return Ok(None) };
    let Some(Answer::Value(Some(record))) = done.answers.into_iter().next() else { return Ok(None) };
    Ok(Some(Inode::decode(&record)?.parent))
}

/// Returns the rank of what is created in a directory: that of the nearest directory above it that is pinned, itself
/// included, or rank 0.
///
/// # Errors
/// Those of the store.
pub async fn rank_of(store: &dyn ObjectStore, directory: Ino) -> Result<RankNumber, StoreError> {
    let pins = all(store).await?;
    if pins.is_empty() {
        return Ok(0);
    }
    let mut at = directory;
    for _ in 0..DEPTH_MAX {
        if let Some(rank) = pins.get(&at) {
            return Ok(*rank);
        }
        if at == Ino::ROOT {
            break;
        }
        // A directory that was removed meanwhile, with all that was in it, is in none.
        let Some(above) = parent(store, at).await? else { break };
        at = above;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use nacre_object::testkit::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn pins_are_set_replaced_and_removed() {
        let store = MemoryStore::new();
        assert_eq!(rank_of(&store, Ino(9)).await.unwrap(), 0);
        set(&store, Ino(9), Some(3)).await.unwrap();
        set(&store, Ino::ROOT, Some(2)).await.unwrap();
        set(&store, Ino::ROOT, Some(1)).await.unwrap();
        assert_eq!(all(&store).await.unwrap(), BTreeMap::from([(Ino::ROOT, 1), (Ino(9), 3)]));
        assert_eq!(rank_of(&store, Ino(9)).await.unwrap(), 3);
        assert_eq!(rank_of(&store, Ino::ROOT).await.unwrap(), 1);
        // What is not there any more has no directory above it.
        assert_eq!(rank_of(&store, Ino(10)).await.unwrap(), 0);
        assert!(replace(&store, Ino(9), 3, 4).await.unwrap());
        assert!(!replace(&store, Ino(9), 3, 5).await.unwrap(), "it is another rank's by now");
        assert!(!replace(&store, Ino(10), 3, 5).await.unwrap(), "it is not pinned");
        assert_eq!(all(&store).await.unwrap(), BTreeMap::from([(Ino::ROOT, 1), (Ino(9), 4)]));
        set(&store, Ino(9), None).await.unwrap();
        assert_eq!(all(&store).await.unwrap(), BTreeMap::from([(Ino::ROOT, 1)]));
        assert_eq!(decode(&encode(RANK_MAX)), Some(RANK_MAX));
        assert_eq!((decode(&encode(RANK_MAX + 1)), decode(b"1")), (None, None));
    }

    #[tokio::test]
    async fn pins_of_directories_that_are_gone_make_room_for_others() {
        let store = MemoryStore::new();
        let record = || Key::new(Bytes::from_static(RECORD)).unwrap();
        let mut all_pins = Transaction::new();
        for number in 1..PINS_MAX as u64 {
            let key = Ino(number).to_string().parse().unwrap();
            all_pins = all_pins.change(WriteOp::SetKey { key, value: encode(1) });
            // What cannot be read is taken for there.
            let damaged = WriteOp::SetKey { key: record(), value: Bytes::from_static(b"?") };
            store.apply(&Ino(number).object(), Transaction::new().change(damaged)).await.unwrap();
        }
        store.apply(&id().unwrap(), all_pins).await.unwrap();
        let late = Ino(PINS_MAX as u64);
        assert_eq!(set(&store, late, Some(2)).await.unwrap_err().kind, ErrorKind::OutOfSpace);
        set(&store, Ino(7), Some(2)).await.unwrap();
        for number in [8, 9] {
            let remove = Transaction::new().change(WriteOp::Remove);
            store.apply(&Ino(number).object(), remove).await.unwrap();
        }
        set(&store, late, Some(2)).await.unwrap();
        let pins = all(&store).await.unwrap();
        assert_eq!((pins.len(), pins.get(&late), pins.get(&Ino(7))), (PINS_MAX - 2, Some(&2), Some(&2)));
        assert!(!pins.contains_key(&Ino(8)) && !pins.contains_key(&Ino(9)));
    }
}
