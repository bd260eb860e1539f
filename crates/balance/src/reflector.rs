//! Reflectors as a balanced set of their own: what they publish beside their metrics, and the numbers by which policies,
//! pins and masks name them.
//!
//! A number is the key of the object [`REFLECTORS_OBJECT`] under which a reflector publishes. A reflector without one takes
//! the lowest that is free; a key that names its address is its own, also after a restart. Keys are written on condition
//! of what they were, so that no two reflectors have one number. A number is free again once its reflector has been silent
//! for a day, or when somebody removes the key.

use std::time::Duration;

use bytes::Bytes;
use nacre_object::{Check, Guard, ObjectId, ObjectStore, Outcome, StoreError, Transaction, WriteOp};
use serde::{Deserialize, Serialize};

use crate::decide::Move;
use crate::limit::{PLACE_BYTES_MAX, PUBLISHED_RESOURCES_MAX, RANKS_MAX, RESOURCE_NAME_BYTES_MAX};
use crate::metric::Metrics;
use crate::publish::{LoadEntry, MadeMove, Published, encode, entries, is_fresh, key};

/// The object with what reflectors publish.
pub const REFLECTORS_OBJECT: &str = "nacre/balance/reflectors";
/// The silence after which a number is free for another reflector.
const GONE: Duration = Duration::from_secs(24 * 3600);
/// The time after a move in which the reflector that got the group may not have measured its load yet, in milliseconds.
const SETTLED_MS: u64 = 2000;
/// The number of attempts to get a number while others do the same.
const ATTEMPTS_MAX: usize = 64;

/// A reflector, as it publishes itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reflector {
    /// The address by which the map of locations names it.
    pub address: String,
    /// The number of groups that anybody may join by their ids; locations are moved to ids from there on.
    pub ids: u32,
    /// The settings that a group would have there, as a checksum: groups are moved only between equal ones.
    pub settings: String,
    /// Its busiest groups, in descending order of load.
    #[serde(default)]
    pub groups: Vec<GroupLoad>,
}

/// The load of a group of a reflector.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupLoad {
    /// The group: a port, or a port and an id.
    pub group: String,
    /// The location whose group it is, if any.
    pub location: Option<String>,
    /// Its members.
    pub members: u64,
    /// The datagrams of its members per second, with decay.
    pub datagrams_per_second: f64,
    /// The copies of them per second, with decay: the load.
    pub copies_per_second: f64,
}

impl Reflector {
    /// Checks what another one has published.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.address.len() > PLACE_BYTES_MAX || self.settings.len() > PLACE_BYTES_MAX {
            return Err(format!("its address or settings have more than {PLACE_BYTES_MAX} bytes"));
        }
        if self.groups.len() > PUBLISHED_RESOURCES_MAX {
            return Err("it has too many groups".to_owned());
        }
        let sound = |value: f64| value.is_finite() && value >= 0.0;
        let is_wrong = |load: &GroupLoad| {
            !sound(load.datagrams_per_second)
                || !sound(load.copies_per_second)
                || load.group.len() > RESOURCE_NAME_BYTES_MAX
                || load.location.as_ref().is_some_and(|name| name.len() > RESOURCE_NAME_BYTES_MAX)
        };
        match self.groups.iter().any(is_wrong) {
            true => Err("the load of a group cannot be".to_owned()),
            false => Ok(()),
        }
    }
}

/// A reflector's number, and what all of them have published.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    /// The number.
    pub number: usize,
    /// The value of its key.
    pub held: Bytes,
    /// The loads of all reflectors, in the order of their numbers, as far as they can be read.
    pub published: Vec<Published>,
}

/// Returns what all reflectors have published, in the order of their numbers. What cannot be read is left out.
///
/// # Errors
/// Those of the store.
pub async fn published_reflectors(store: &dyn ObjectStore) -> Result<Vec<Published>, StoreError> {
    Ok(read(entries(store, REFLECTORS_OBJECT).await?))
}

fn read(entries: Vec<LoadEntry>) -> Vec<Published> {
    let read = entries.into_iter().filter_map(|entry| entry.read);
    read.filter(|published| published.reflector.is_some()).collect()
}

/// Returns those that take part, of what was published: all that published something in the latest ticks.
pub fn present(mut published: Vec<Published>, now: Duration, tick: Duration) -> Vec<Published> {
    published.retain(|read| is_fresh(read, now, tick));
    published
}

/// Counts what was moved lately where it is now: what reflectors published before that, or shortly after, does not show it.
/// `late` are the moves that the reflector `own` is making. Its own load was just measured, and stays.
pub(crate) fn count_moved<'a>(others: &mut [Published], own: usize, late: impl Iterator<Item = &'a Move>) {
    let position =
        |others: &[Published], number: usize| others.binary_search_by_key(&number, |other| other.rank);
    let mut changes: Vec<(usize, f64)> = Vec::new();
    for mover in others.iter() {
        for MadeMove { at_ms, made } in &mover.moves {
            if *at_ms > mover.at_ms {
                changes.push((mover.rank, -made.load));
            }
            let to = position(&*others, made.to).ok().map(|at| &others[at]);
            if to.is_some_and(|to| at_ms.saturating_add(SETTLED_MS) > to.at_ms) {
                changes.push((made.to, made.load));
            }
        }
    }
    changes.extend(late.map(|made| (made.to, made.load)));
    for (number, load) in changes {
        if let Ok(at) = position(&*others, number)
            && number != own
        {
            others[at].metrics.add_group(load);
        }
    }
}

/// Returns the number of a reflector, which takes one if it has none. `None` if all numbers are taken.
pub(crate) async fn claim(
    store: &dyn ObjectStore,
    reflector: &Reflector,
    now: Duration,
) -> Result<Option<Claim>, StoreError> {
    for _ in 0..ATTEMPTS_MAX {
        let entries = entries(store, REFLECTORS_OBJECT).await?;
        let is_own = |entry: &&LoadEntry| {
            let known = entry.read.as_ref().and_then(|read| read.reflector.as_ref());
            known.is_some_and(|known| known.address == reflector.address)
        };
        if let Some(own) = entries.iter().find(is_own) {
            let (number, held) = (own.rank, own.value.clone());
            return Ok(Some(Claim { number, held, published: read(entries) }));
        }
        // What cannot be read may be that of a newer program.
        let is_gone = |read: &Published| now.saturating_sub(Duration::from_millis(read.at_ms)) > GONE;
        let mut free =
            (0..RANKS_MAX).filter_map(|number| match entries.iter().find(|entry| entry.rank == number) {
                None => Some((number, Check::Absent)),
                Some(entry) if entry.read.as_ref().is_some_and(is_gone) => {
                    Some((number, Check::Equal(entry.value.clone())))
                }
                Some(_) => None,
            });
        let Some((number, check)) = free.next() else { return Ok(None) };
        let at_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let mut first = Published::new(number, at_ms, None, &Metrics::default(), &[], &[]);
        first.reflector = Some(Reflector { groups: Vec::new(), ..reflector.clone() });
        // Whether it was written or not, the next look shows.
        replace(store, &first, check).await?;
    }
    Ok(None)
}

/// Publishes, on condition that the key still has the value `held`. Returns the new value, or `None` if another one has
/// the number.
pub(crate) async fn publish(
    store: &dyn ObjectStore,
    published: &Published,
    held: &Bytes,
) -> Result<Option<Bytes>, StoreError> {
    replace(store, published, Check::Equal(held.clone())).await
}

async fn replace(
    store: &dyn ObjectStore,
    published: &Published,
    check: Check,
) -> Result<Option<Bytes>, StoreError> {
    let (key, value) = (key(published.rank)?, encode(published)?);
    let transaction = Transaction::new()
        .guard(Guard::Key { key: key.clone(), check })
        .change(WriteOp::SetKey { key, value: value.clone() });
    match store.apply(&ObjectId::new(REFLECTORS_OBJECT)?, transaction).await? {
        Outcome::Done(_) => Ok(Some(value)),
        Outcome::Refused(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nacre_object::testkit::{MemoryStore, block_on};

    use super::*;

    fn at(address: &str) -> Reflector {
        Reflector { address: address.to_owned(), ..Reflector::default() }
    }

    const NOW: Duration = Duration::from_secs(1_000_000);

    #[test]
    fn numbers_stay_with_addresses_and_are_free_again_after_a_day() {
        let store: Arc<dyn ObjectStore> = Arc::new(MemoryStore::new());
        let number = |address: &str, now: Duration| {
            block_on(claim(&*store, &at(address), now)).unwrap().unwrap().number
        };
        assert_eq!((number("a:1", NOW), number("b:1", NOW)), (0, 1));
        assert_eq!((number("b:1", NOW), number("a:1", NOW)), (1, 0), "as after a restart");
        let later = NOW + GONE;
        let held = block_on(claim(&*store, &at("b:1"), later)).unwrap().unwrap().held;
        let mut still = Published::new(1, later.as_millis() as u64, None, &Metrics::default(), &[], &[]);
        still.reflector = Some(at("b:1"));
        assert!(block_on(publish(&*store, &still, &held)).unwrap().is_some());
        assert_eq!(block_on(publish(&*store, &still, &held)).unwrap(), None, "it has another value now");
        assert_eq!(number("c:1", later), 2, "a day is not over yet");
        assert_eq!(number("d:1", later + Duration::from_secs(1)), 0);
        let known = block_on(published_reflectors(&*store)).unwrap();
        let addresses: Vec<&str> =
            known.iter().filter_map(|one| Some(&*one.reflector.as_ref()?.address)).collect();
        assert_eq!(addresses, ["d:1", "b:1", "c:1"]);
        assert_eq!(present(known, later, Duration::from_secs(10)).len(), 3);
    }

    #[test]
    fn what_was_moved_lately_counts_where_it_is() {
        let moved = |at_ms: u64, to: usize, load: f64| MadeMove {
            at_ms,
            made: Move {
                id: "group:a".parse().unwrap(),
                load,
                from: 0,
                to,
                mode: crate::Mode::Client,
                is_pin: false,
            },
        };
        let of = |rank: usize, at_ms: u64, load: f64, moves: &[MadeMove]| {
            let metrics = Metrics { all_load: load, ..Metrics::default() };
            Published::new(rank, at_ms, None, &metrics, &[], moves)
        };
        let moves = [moved(1000, 2, 1.0), moved(6000, 2, 10.0), moved(9000, 4, 20.0), moved(9000, 7, 5.0)];
        let mut others = vec![of(0, 8000, 40.0, &moves), of(2, 7000, 3.0, &[]), of(4, 20_000, 25.0, &[])];
        let late = moved(0, 2, 100.0).made;
        count_moved(&mut others, 4, std::iter::once(&late));
        let loads: Vec<f64> = others.iter().map(|other| other.metrics.all_load).collect();
        // What the first one moved after it had published has left it; a lie about more than it had is not believed.
        assert_eq!(loads, [15.0, 113.0, 25.0]);
        count_moved(&mut others, 9, std::iter::empty());
        count_moved(&mut others, 9, std::iter::empty());
        assert_eq!(others[0].metrics.all_load, 0.0);
    }

    #[test]
    fn a_number_whose_key_cannot_be_read_is_nobodys() {
        let store: Arc<dyn ObjectStore> = Arc::new(MemoryStore::new());
        let newer = WriteOp::SetKey { key: key(0).unwrap(), value: Bytes::from_static(b"{\"format\":2}") };
        let object = ObjectId::new(REFLECTORS_OBJECT).unwrap();
        block_on(async { store.apply(&object, Transaction::new().change(newer)).await }).unwrap();
        assert_eq!(block_on(claim(&*store, &at("a:1"), NOW)).unwrap().unwrap().number, 1);
    }
}
