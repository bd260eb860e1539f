//! The loads that ranks tell each other: one object, in which each rank overwrites a key of its own at every tick. Reflectors
//! do the same in an object of their own ([`crate::reflector`]).

use std::time::Duration;

use bytes::Bytes;
use nacre_object::limit::PAGE_ENTRIES_MAX;
use nacre_object::{
    Answer, ErrorKind, Key, KeyRange, ObjectId, ObjectStore, Outcome, ReadOp, StoreError, Transaction,
    WriteOp,
};
use serde::{Deserialize, Serialize};

use crate::decide::Move;
use crate::limit::{PUBLISHED_MOVES_MAX, PUBLISHED_RESOURCES_MAX, RANKS_MAX};
use crate::metric::Metrics;
use crate::migration::{self, Migration};
use crate::reflector::Reflector;
use crate::resource::{Resource, Strays};

/// The object with what ranks publish.
pub const LOAD_OBJECT: &str = "nacre/balance/load";
/// The format of what they publish.
const FORMAT: u32 = 1;
/// The number of ticks after which what a rank has published says nothing about it any more.
const FRESH_TICKS: u32 = 3;

/// A move that a rank has made, and when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MadeMove {
    /// The time, in milliseconds since 1970, by the clock of the rank.
    pub at_ms: u64,
    /// The move.
    pub made: Move,
}

/// A rank's published load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Published {
    format: u32,
    /// The rank.
    pub rank: usize,
    /// The time, in milliseconds since 1970, by the clock of the rank.
    pub at_ms: u64,
    /// The name and the version of the policy in force there.
    pub policy: Option<(String, u64)>,
    /// Its metrics.
    pub metrics: Metrics,
    /// Its biggest resources, in descending order of load.
    pub resources: Vec<Resource>,
    /// Its latest moves, in order.
    pub moves: Vec<MadeMove>,
    /// The moves away from it that are under way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub migrations: Vec<Migration>,
    /// Those of its resources that belong to other ranks, to which it moves them.
    #[serde(default, skip_serializing_if = "Strays::is_empty")]
    pub strays: Strays,
    /// The reflector, if this is about one, and `rank` is its number among those that are balanced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reflector: Option<Reflector>,
}

impl Published {
    /// Creates what a rank publishes; only the biggest resources and the latest moves are taken.
    pub fn new(
        rank: usize,
        at_ms: u64,
        policy: Option<(String, u64)>,
        metrics: &Metrics,
        resources: &[Resource],
        moves: &[MadeMove],
    ) -> Self {
        let mut biggest: Vec<&Resource> = resources.iter().collect();
        biggest.sort_by(|a, b| b.load.total_cmp(&a.load).then_with(|| a.id.cmp(&b.id)));
        let resources = biggest.into_iter().take(PUBLISHED_RESOURCES_MAX).cloned().collect();
        let moves = moves[moves.len().saturating_sub(PUBLISHED_MOVES_MAX)..].to_vec();
        let (migrations, strays, reflector) = (Vec::new(), Strays::new(), None);
        let metrics = metrics.clone();
        Self { format: FORMAT, rank, at_ms, policy, metrics, resources, moves, migrations, strays, reflector }
    }

    /// Checks what another one has published.
    fn check(&self, rank: usize) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(format!("it has format {}, which a newer program made", self.format));
        }
        if self.rank != rank || rank >= RANKS_MAX {
            return Err(format!("it says that it is rank {}", self.rank));
        }
        if self.resources.len() > PUBLISHED_RESOURCES_MAX || self.moves.len() > PUBLISHED_MOVES_MAX {
            return Err("it has too many resources or moves".to_owned());
        }
        let mut loads = self.resources.iter().map(|resource| resource.load);
        if loads.any(|load| !load.is_finite() || load < 0.0) {
            return Err("the load of a resource cannot be".to_owned());
        }
        if self.strays.len() > PUBLISHED_RESOURCES_MAX
            || self.strays.values().any(|rank| *rank as usize >= RANKS_MAX)
        {
            return Err("it has too many strays, or strays of ranks that cannot be".to_owned());
        }
        migration::check(&self.migrations)?;
        self.reflector.as_ref().map_or(Ok(()), Reflector::check)?;
        self.metrics.check()
    }
}

pub(crate) fn key(rank: usize) -> Result<Key, StoreError> {
    Key::new(format!("{rank:08}"))
}

/// Publishes.
///
/// # Errors
/// Those of the store.
pub async fn publish(store: &dyn ObjectStore, published: &Published) -> Result<(), StoreError> {
    let (key, value) = (key(published.rank)?, encode(published)?);
    let transaction = Transaction::new().change(WriteOp::SetKey { key, value });
    store.apply(&ObjectId::new(LOAD_OBJECT)?, transaction).await.map(drop)
}

pub(crate) fn encode(published: &Published) -> Result<Bytes, StoreError> {
    let value = serde_json::to_vec(published);
    value.map(Bytes::from).map_err(|error| StoreError::new(ErrorKind::Invalid, error.to_string()))
}

/// Returns what all ranks have published, in the order of their numbers. What cannot be read is left out.
///
/// # Errors
/// Those of the store.
pub async fn published(store: &dyn ObjectStore) -> Result<Vec<Published>, StoreError> {
    Ok(entries(store, LOAD_OBJECT).await?.into_iter().filter_map(|entry| entry.read).collect())
}

/// A key of an object with loads.
#[derive(Clone, Debug)]
pub(crate) struct LoadEntry {
    /// The number.
    pub rank: usize,
    /// The value.
    pub value: Bytes,
    /// The load that it describes; `None` if it cannot be read.
    pub read: Option<Published>,
}

/// Returns the keys of an object with loads that can be numbers, in order.
pub(crate) async fn entries(store: &dyn ObjectStore, object: &str) -> Result<Vec<LoadEntry>, StoreError> {
    let object = object.parse::<ObjectId>()?;
    let mut found: Vec<LoadEntry> = Vec::new();
    let mut range = KeyRange::all();
    loop {
        let keys = ReadOp::Keys { range: range.clone(), limit: PAGE_ENTRIES_MAX as u32, values: true };
        let done = match store.apply(&object, Transaction::new().read(keys)).await? {
            Outcome::Done(done) => done,
            Outcome::Refused(_) => return Err(nonsense()),
        };
        let Some(Answer::Keys(page)) = done.answers.into_iter().next() else { return Err(nonsense()) };
        for (name, value) in &page.entries {
            let rank = std::str::from_utf8(name.as_bytes()).ok().and_then(|text| text.parse::<usize>().ok());
            if let Some(rank) = rank.filter(|rank| *rank < RANKS_MAX)
                && found.len() < RANKS_MAX
            {
                let read = serde_json::from_slice::<Published>(value).ok();
                let read = read.filter(|read| read.check(rank).is_ok());
                found.push(LoadEntry { rank, value: value.clone(), read });
            }
        }
        match page.entries.last() {
            Some((last, _)) if page.more => range.after = Some(last.to_bytes()),
            _ => break,
        }
    }
    // Of two keys for one number ("1" and "00000001") the one that can be read counts.
    found.sort_by_key(|entry| (entry.rank, entry.read.is_none()));
    found.dedup_by_key(|entry| entry.rank);
    Ok(found)
}

/// Decodes bytes as what rank 0 publishes, and checks that what decodes does so again. Returns whether it did.
pub(crate) fn fuzz(bytes: &[u8]) -> bool {
    let read =
        |bytes: &[u8]| serde_json::from_slice::<Published>(bytes).ok().filter(|read| read.check(0).is_ok());
    let Some(found) = read(bytes) else { return false };
    let again = serde_json::to_vec(&found).ok().and_then(|again| read(&again));
    assert_eq!(again.map(|again| again.moves.len()), Some(found.moves.len()));
    true
}

fn nonsense() -> StoreError {
    StoreError::new(ErrorKind::Corrupt, "the store's answer does not fit the question")
}

/// The ranks that take part.
#[derive(Clone, Debug, PartialEq)]
pub enum Participants {
    /// All of them, in the order of their numbers.
    All(Vec<Published>),
    /// One is silent, so that nothing can be decided.
    Silent {
        /// The rank.
        rank: usize,
        /// The time since it published something; `None` if it never did.
        since: Option<Duration>,
    },
}

/// Returns whether what was published is of the latest ticks.
pub(crate) fn is_fresh(read: &Published, now: Duration, tick: Duration) -> bool {
    now.abs_diff(Duration::from_millis(read.at_ms)) <= tick * FRESH_TICKS
}

/// Returns the ranks that take part, of what was published: those from 0 to the last one that published something in the
/// latest ticks. What is of a later time than now by as much is not fresh either: it would stay so after the rank is gone.
pub fn participants(published: Vec<Published>, now: Duration, tick: Duration) -> Participants {
    let age = |read: &Published| now.saturating_sub(Duration::from_millis(read.at_ms));
    let is_fresh = |read: &Published| is_fresh(read, now, tick);
    let count = published.iter().filter(|read| is_fresh(read)).map(|read| read.rank + 1).max().unwrap_or(0);
    let mut known = published.into_iter().peekable();
    let mut all = Vec::with_capacity(count);
    for rank in 0..count {
        match known.next_if(|read| read.rank == rank) {
            Some(read) if is_fresh(&read) => all.push(read),
            silent => return Participants::Silent { rank, since: silent.as_ref().map(age) },
        }
    }
    Participants::All(all)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nacre_object::testkit::{MemoryStore, block_on};

    use super::*;

    fn of(rank: usize, at_ms: u64) -> Published {
        Published::new(rank, at_ms, None, &Metrics::default(), &[], &[])
    }

    #[test]
    fn ranks_read_what_others_publish_and_pass_over_the_rest() {
        let store: Arc<dyn ObjectStore> = Arc::new(MemoryStore::new());
        let resource = Resource { id: "sequencer:a".parse().unwrap(), load: 3.0 };
        let full = Published::new(1, 7, Some(("hash".to_owned(), 2)), &Metrics::default(), &[resource], &[]);
        block_on(async {
            publish(&*store, &of(0, 5)).await.unwrap();
            publish(&*store, &full).await.unwrap();
            publish(&*store, &of(0, 6)).await.unwrap();
            let mut transaction = Transaction::new();
            for (name, value) in [("00000002", "{"), ("x", "{}"), ("00000003", "null")] {
                let (key, value) = (Key::new(name).unwrap(), Bytes::from(value));
                transaction = transaction.change(WriteOp::SetKey { key, value });
            }
            store.apply(&ObjectId::new(LOAD_OBJECT).unwrap(), transaction).await.unwrap();
            // One that claims to be another rank.
            let value = serde_json::to_vec(&of(0, 9)).unwrap().into();
            let lie = WriteOp::SetKey { key: key(4).unwrap(), value };
            store.apply(&ObjectId::new(LOAD_OBJECT).unwrap(), Transaction::new().change(lie)).await.unwrap();
            assert_eq!(published(&*store).await.unwrap(), [of(0, 6), full]);
        });
    }

    #[test]
    fn a_silent_rank_is_named_and_ranks_that_are_gone_at_the_end_are_not_waited_for() {
        let (now, tick) = (Duration::from_secs(100), Duration::from_secs(10));
        let fresh = |rank| of(rank, 95_000);
        let stale = |rank| of(rank, 20_000);
        assert_eq!(
            participants(vec![fresh(0), fresh(1), stale(2)], now, tick),
            Participants::All(vec![fresh(0), fresh(1)])
        );
        let silent = Participants::Silent { rank: 0, since: Some(Duration::from_secs(80)) };
        assert_eq!(participants(vec![stale(0), fresh(1)], now, tick), silent);
        let silent = Participants::Silent { rank: 1, since: None };
        assert_eq!(participants(vec![fresh(0), fresh(2)], now, tick), silent);
        assert_eq!(participants(Vec::new(), now, tick), Participants::All(Vec::new()));
        // One whose clock was far ahead, and who may be gone for long.
        let ahead = vec![fresh(0), of(1, 1_000_000), of(1023, u64::MAX)];
        assert_eq!(participants(ahead, now, tick), Participants::All(vec![fresh(0)]));
    }

    #[test]
    fn only_the_biggest_resources_are_published() {
        let resources: Vec<Resource> = (0..1000)
            .map(|number| Resource {
                id: format!("subtree:/{number}").parse().unwrap(),
                load: f64::from(number),
            })
            .collect();
        let published = Published::new(0, 0, None, &Metrics::default(), &resources, &[]);
        assert_eq!(published.resources.len(), PUBLISHED_RESOURCES_MAX);
        assert_eq!(published.resources[0].load, 999.0);
    }
}
