//! A map in its object: how it is read, whole or what is missing, by transactions on any store.
//!
//! | key | value |
//! |---|---|
//! | `header` | identity, epoch, number of the latest change, oldest record, totals |
//! | `state/entry/NAME` | an entry |
//! | `state/setting/NAME` | a part of the configuration |
//! | `history/EPOCH` | the record of an epoch, its number as 16 hexadecimal digits |

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nacre_object::limit::PAGE_ENTRIES_MAX;
use nacre_object::{
    Answer, Check, ErrorKind, Escaped, Guard, Key, KeyPage, KeyRange, ObjectId, ObjectStore, Outcome, ReadOp,
    StoreError, Transaction, WriteOp,
};

use crate::codec;
use crate::follow::{FollowOptions, Follower};
use crate::limit::{BYTES_MAX, ENTRIES_MAX, MAP_NAME_BYTES_MAX, TRIM_MAX, VALIDATORS_MAX};
use crate::propose::{ProposeOptions, Proposer};
use crate::random::Random;
use crate::state::{Change, Header, Missing, Record, Space, State, Value};
use crate::update::UpdateId;

/// The beginning of the ids of objects that hold maps.
pub const MAP_PREFIX: &str = "nacre/map/";
/// The number of records that one read asks for. A record has about 1 MiB at most, and a reply 16 MiB: of long records
/// there are fewer in a page.
const RECORDS_PER_READ: u32 = 256;

/// The number of attempts to read a map as a whole while it changes.
const STATE_ATTEMPTS_MAX: u32 = 20;
/// The longest pause after the first attempt that others have spoilt.
const PAUSE_MIN: Duration = Duration::from_micros(200);
/// The longest pause after any.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// A map of a store: a handle by which it is read. Cheap to clone.
#[derive(Clone, derive_more::Debug)]
#[debug("ClusterMap")]
pub struct ClusterMap {
    store: Arc<dyn ObjectStore>,
    name: Arc<str>,
    object: ObjectId,
    random: Random,
}

/// The news of a map for a reader.
#[derive(Debug)]
pub(crate) enum News {
    /// Nothing: it knows the map as it is.
    Nothing,
    /// The epochs that follow what it knows, at least one, in order, and the header at the moment of the read. There may
    /// be more of them than one reply holds: whoever comes to an earlier epoch than that of the header asks again.
    Records(Vec<Record>, Header),
    /// The whole map: the records that are kept do not reach back to what it knows.
    Everything(State),
}

impl ClusterMap {
    /// Returns a handle on a map of a store, whether it exists or not.
    ///
    /// # Errors
    /// `Invalid` if the name is not one that a map can have.
    pub fn new(store: Arc<dyn ObjectStore>, name: &str) -> Result<ClusterMap, StoreError> {
        check_name(name)?;
        let object = ObjectId::new(format!("{MAP_PREFIX}{name}"))?;
        Ok(ClusterMap { store, name: name.into(), object, random: Random::default() })
    }

    /// Replaces the source of pauses and ids; without this, nobody can foresee them.
    pub fn with_random(self, random: Random) -> ClusterMap {
        ClusterMap { random, ..self }
    }

    /// Returns an id that no other update has.
    pub(crate) fn update_id(&self) -> UpdateId {
        UpdateId(self.random.number())
    }

    pub(crate) fn random(&self) -> &Random {
        &self.random
    }

    /// Returns the map's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the object that holds the map.
    pub fn object(&self) -> &ObjectId {
        &self.object
    }

    /// Returns the store that the map is in.
    pub fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// Returns a proposer of updates of the map.
    pub fn proposer(&self, options: ProposeOptions) -> Proposer {
        Proposer::new(self.clone(), options)
    }

    /// Follows the map: a copy of it that is kept up to date.
    pub fn follow(&self, options: FollowOptions) -> Follower {
        Follower::new(self.clone(), options)
    }

    /// Returns the map's header; `None` if it has no epoch yet.
    ///
    /// # Errors
    /// Those of the store; `Corrupt` if the header cannot be read.
    pub async fn header(&self) -> Result<Option<Header>, StoreError> {
        let done = self.read(vec![read_header()]).await?;
        self.header_of(done.into_iter().next())
    }

    /// Returns one entry, and the map's epoch at which it was read.
    ///
    /// # Errors
    /// Those of the store; `Corrupt` if the entry cannot be read.
    pub async fn get(&self, name: &Key) -> Result<(Option<Value>, u64), StoreError> {
        let mut answers =
            self.read(vec![read_header(), ReadOp::Key { key: state_key(Space::Entry, name)? }]).await?;
        let value = match answers.pop() {
            Some(Answer::Value(value)) => {
                value.as_ref().map(codec::decode_value).transpose().map_err(|error| self.at(error))?
            }
            _ => return Err(self.nonsense()),
        };
        let header = self.header_of(answers.pop())?;
        Ok((value, header.map_or(0, |header| header.epoch)))
    }

    /// Returns the whole map. It needs a tokio runtime with a clock around it.
    ///
    /// # Errors
    /// Those of the store; `Corrupt` if the map cannot be read, and `Busy` if it changes faster than it can be read and
    /// keeps too short a history.
    pub async fn state(&self) -> Result<State, StoreError> {
        for attempt in 0..STATE_ATTEMPTS_MAX {
            if let Some(state) = self.state_once().await? {
                return Ok(state);
            }
            tokio::time::sleep(self.pause(attempt)).await;
        }
        let text = "it changes faster than it can be read, and its history is too short for what changes meanwhile; try \
                    again, or keep more epochs with \"nacre map limits --history\"";
        Err(self.at(StoreError::new(ErrorKind::Busy, text)))
    }

    /// Brings a copy of the map up to date: by the epochs that it lacks, in order, or as a whole where they are not kept. Begin
    /// with `State::default()`. Returns whether the copy has changed. A call that is dropped leaves it at some epoch. It needs a
    /// tokio runtime with a clock around it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let store = std::sync::Arc::new(nacre_object::testkit::MemoryStore::new());
    /// use nacre_map::{ClusterMap, State, Update};
    ///
    /// let map = ClusterMap::new(store, "policies")?;
    /// let mut copy = State::default();
    /// assert!(!map.catch_up(&mut copy).await?);
    /// let update = Update::new("ada").set("balancer".parse()?, "greedy");
    /// map.proposer(Default::default()).propose(update).await?;
    /// assert!(map.catch_up(&mut copy).await?);
    /// assert_eq!((copy.epoch(), copy.header()), (1, map.header().await?));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`ClusterMap::state`].
    pub async fn catch_up(&self, state: &mut State) -> Result<bool, StoreError> {
        let mut changed = false;
        loop {
            match self.news(state).await? {
                News::Nothing => return Ok(changed),
                News::Records(records, header) => {
                    let advanced = state.advance(&records, &header);
                    advanced.map_err(|error| self.at(corrupt(&error.to_string())))?;
                    changed = true;
                    // Where one reply does not hold all records, more of them are asked for.
                    if state.epoch() >= header.epoch {
                        return Ok(true);
                    }
                }
                News::Everything(whole) => {
                    *state = whole;
                    return Ok(true);
                }
            }
        }
    }

    /// Returns the records of the epochs after `epoch`, in order, as far as they are kept; at most `limit`, and those that
    /// fit into one reply.
    ///
    /// # Errors
    /// Those of the store; `Corrupt` if a record cannot be read.
    pub async fn history(&self, epoch: u64, limit: u32) -> Result<Vec<Record>, StoreError> {
        Ok(self.records(epoch, limit).await?.1)
    }

    /// Reads the map page by page, while it may change. Returns `None` if it was removed meanwhile, or if so much changed
    /// that the records do not cover it.
    ///
    /// Pages that are read at different epochs are made one state by the records between the first epoch and the last: each
    /// says all of what it changes, so it does no harm to apply one that a page shows already.
    async fn state_once(&self) -> Result<Option<State>, StoreError> {
        let mut state = State::default();
        let mut first: Option<Header> = None;
        let mut last: Option<Header> = None;
        for space in [Space::Entry, Space::Setting] {
            let mut range = KeyRange::prefix(state_prefix(space));
            loop {
                let keys =
                    ReadOp::Keys { range: range.clone(), limit: PAGE_ENTRIES_MAX as u32, values: true };
                let mut answers = self.read(vec![read_header(), keys]).await?;
                let page = self.page_of(answers.pop())?;
                let header = self.header_of(answers.pop())?;
                match (&first, &header) {
                    (None, None) => return Ok(Some(State::default())),
                    (None, Some(header)) => first = Some(*header),
                    (Some(first), Some(header)) if first.incarnation == header.incarnation => {}
                    (Some(_), _) => return Ok(None),
                }
                last = header;
                for (key, value) in &page.entries {
                    let name = Key::new(key.to_bytes().slice(state_prefix(space).len()..))?;
                    let value = codec::decode_value(value).map_err(|error| self.at(error))?;
                    state.put(space, &name, Some(value));
                }
                // What is read at different epochs may be more than the map ever had, but not by this much.
                if state.entries.len() as u64 > 2 * ENTRIES_MAX
                    || state.settings.len() > 4 * VALIDATORS_MAX
                    || state.bytes > 2 * BYTES_MAX
                {
                    return Err(self.at(corrupt("the map has more entries than any map can")));
                }
                match page.entries.last() {
                    Some((last, _)) if page.more => range.after = Some(last.to_bytes()),
                    _ => break,
                }
            }
        }
        let (Some(first), Some(mut last)) = (first, last) else { return Ok(None) };
        (state.incarnation, state.epoch, state.version) = (first.incarnation, first.epoch, first.version);
        while state.epoch < last.epoch {
            let (header, records) = self.records(state.epoch, RECORDS_PER_READ).await?;
            match header {
                Some(header) if header.incarnation == first.incarnation => last = header,
                _ => return Ok(None),
            }
            for record in &records {
                if state.apply(record).is_err() {
                    return Ok(None);
                }
            }
            if records.is_empty() {
                return Ok(None);
            }
        }
        state.oldest = last.oldest;
        // Where they differ, another client has written into the object, and no guard by this header would hold.
        match state.header() == Some(last) {
            true => Ok(Some(state)),
            false => {
                Err(self
                    .at(corrupt("the map cannot be read: its entries are not those that its header counts")))
            }
        }
    }

    /// Returns the header and records after an epoch, all as they were at one moment.
    async fn records(&self, epoch: u64, limit: u32) -> Result<(Option<Header>, Vec<Record>), StoreError> {
        let after = history_key(epoch)?.to_bytes();
        let range =
            KeyRange { after: Some(after), before: None, prefix: Bytes::from_static(HISTORY.as_bytes()) };
        let mut answers = self.read(vec![read_header(), ReadOp::Keys { range, limit, values: true }]).await?;
        let page = self.page_of(answers.pop())?;
        let header = self.header_of(answers.pop())?;
        let records = page.entries.iter().map(|(_, value)| codec::decode_record(value));
        let mut records: Vec<Record> = records.collect::<Result<_, _>>().map_err(|error| self.at(error))?;
        // Another client may have put any record there.
        let last = header.as_ref().map_or(0, |header| header.epoch);
        records.retain(|record| record.epoch <= last);
        if records.windows(2).any(|pair| pair[0].epoch + 1 != pair[1].epoch) {
            return Err(
                self.at(corrupt("the records of the map cannot be read: they do not follow each other"))
            );
        }
        Ok((header, records))
    }

    /// Returns what a state lacks of the map as it is now, or the beginning of it: one page of records, so that nobody who
    /// was away for long holds the whole history in memory.
    pub(crate) async fn news(&self, state: &State) -> Result<News, StoreError> {
        let (header, records) = self.records(state.epoch(), RECORDS_PER_READ).await?;
        match state.missing(header.as_ref()) {
            Missing::Nothing => return Ok(News::Nothing),
            Missing::Everything => return self.state().await.map(News::Everything),
            Missing::After(_) => {}
        }
        // A page is read at one moment, and its records follow each other. They follow the state too, unless another client
        // has removed some.
        match (header, records.first()) {
            (Some(header), Some(first)) if first.epoch == state.epoch() + 1 => {
                Ok(News::Records(records, header))
            }
            _ => self.state().await.map(News::Everything),
        }
    }

    /// Puts an epoch into the object, on condition that the header is still `before`. `after` is the header with the epoch,
    /// but for its oldest record. Returns the header that the map has since, or `None` if another epoch was first.
    pub(crate) async fn commit(
        &self,
        before: Option<&Header>,
        after: Header,
        record: &Record,
        history: u64,
    ) -> Result<Option<Header>, StoreError> {
        let key = header_key();
        let check = before.map_or(Check::Absent, |header| Check::Equal(codec::encode_header(header)));
        let mut transaction = Transaction::new().guard(Guard::Key { key: key.clone(), check });
        // Records beyond the bound go in the same transaction; not all at once, should the bound have become smaller.
        let begin = before.map_or(1, |header| header.oldest);
        let oldest =
            (record.epoch + 1).saturating_sub(history).clamp(begin, begin + TRIM_MAX).min(record.epoch);
        for epoch in begin..oldest {
            transaction = transaction.change(WriteOp::RemoveKey { key: history_key(epoch)? });
        }
        let value = codec::encode_record(record);
        transaction = transaction.change(WriteOp::SetKey { key: history_key(record.epoch)?, value });
        for (space, change) in last_changes(record) {
            let key = state_key(space, &change.name)?;
            transaction = transaction.change(match &change.new {
                Some(value) => {
                    let (value, version, epoch) = (value.clone(), change.version, record.epoch);
                    WriteOp::SetKey { key, value: codec::encode_value(&Value { value, version, epoch }) }
                }
                None => WriteOp::RemoveKey { key },
            });
        }
        let after = Header { oldest, ..after };
        transaction = transaction.change(WriteOp::SetKey { key, value: codec::encode_header(&after) });
        match self.store.apply(&self.object, transaction).await.map_err(|error| self.at(error))? {
            Outcome::Done(_) => Ok(Some(after)),
            Outcome::Refused(_) => Ok(None),
        }
    }

    async fn read(&self, reads: Vec<ReadOp>) -> Result<Vec<Answer>, StoreError> {
        let transaction = Transaction { reads, ..Transaction::new() };
        match self.store.apply(&self.object, transaction).await.map_err(|error| self.at(error))? {
            Outcome::Done(done) => Ok(done.answers),
            Outcome::Refused(_) => Err(self.nonsense()),
        }
    }

    fn header_of(&self, answer: Option<Answer>) -> Result<Option<Header>, StoreError> {
        match answer {
            Some(Answer::Value(value)) => {
                value.map(|value| codec::decode_header(&value)).transpose().map_err(|error| self.at(error))
            }
            _ => Err(self.nonsense()),
        }
    }

    fn page_of(&self, answer: Option<Answer>) -> Result<KeyPage, StoreError> {
        match answer {
            Some(Answer::Keys(page)) => Ok(page),
            _ => Err(self.nonsense()),
        }
    }

    pub(crate) fn at(&self, error: StoreError) -> StoreError {
        error.context(format_args!("map \"{}\"", self.name))
    }

    /// Returns the pause after an attempt, counted from 0, that others have spoilt: of random length, and longer each time,
    /// so that those who are in each other's way come apart.
    pub(crate) fn pause(&self, attempt: u32) -> Duration {
        self.random.part(PAUSE_MIN.saturating_mul(1 << attempt.min(16)).min(PAUSE_MAX))
    }

    pub(crate) fn nonsense(&self) -> StoreError {
        self.at(StoreError::new(ErrorKind::Corrupt, "the store's answer does not fit the question"))
    }
}

fn corrupt(text: &str) -> StoreError {
    StoreError::new(ErrorKind::Corrupt, text)
}

/// Returns the last change of each name that a record changes.
fn last_changes(record: &Record) -> impl Iterator<Item = (Space, &Change)> {
    let changes = record.updates.iter().flat_map(|update| &update.changes);
    let last: BTreeMap<(Space, &Key), &Change> =
        changes.map(|change| ((change.space, &change.name), change)).collect();
    last.into_iter().map(|((space, _), change)| (space, change))
}

/// Lists the maps of a store by their names, in ascending order.
///
/// # Errors
/// Those of the store.
pub async fn list(store: &dyn ObjectStore) -> Result<Vec<String>, StoreError> {
    let mut names = Vec::new();
    let mut after = ObjectId::new(MAP_PREFIX)?;
    loop {
        let page = store.list(Some(&after), PAGE_ENTRIES_MAX).await?;
        for object in &page {
            match object.as_bytes().strip_prefix(MAP_PREFIX.as_bytes()).map(std::str::from_utf8) {
                // Objects that others gave such a name are no maps.
                Some(Ok(name)) if check_name(name).is_ok() => names.push(name.to_owned()),
                Some(_) => {}
                None => return Ok(names),
            }
        }
        match page.last() {
            Some(last) => after = last.clone(),
            None => return Ok(names),
        }
    }
}

/// Checks a map's name: letters, digits, `.`, `_` and `-`, beginning with a letter or a digit.
///
/// # Errors
/// `Invalid` with the reason.
pub fn check_name(name: &str) -> Result<(), StoreError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let text = if name.len() > MAP_NAME_BYTES_MAX {
        format!("the name of a map has at most {MAP_NAME_BYTES_MAX} bytes")
    } else if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) || !name.chars().all(allowed) {
        let rules =
            "it must begin with a letter or a digit, and consist of letters, digits, \".\", \"_\" and \"-\"";
        format!("\"{}\" is not a valid name for a map: {rules}", Escaped::of(name))
    } else {
        return Ok(());
    };
    Err(StoreError::new(ErrorKind::Invalid, text))
}

/// The beginning of the keys of records.
const HISTORY: &str = "history/";

fn header_key() -> Key {
    Key::new("header").expect("the name is short and not empty")
}

fn read_header() -> ReadOp {
    ReadOp::Key { key: header_key() }
}

fn state_prefix(space: Space) -> &'static str {
    match space {
        Space::Entry => "state/entry/",
        Space::Setting => "state/setting/",
    }
}

fn state_key(space: Space, name: &Key) -> Result<Key, StoreError> {
    Key::new([state_prefix(space).as_bytes(), name.as_bytes()].concat())
}

fn history_key(epoch: u64) -> Result<Key, StoreError> {
    Key::new(format!("{HISTORY}{epoch:016x}"))
}
