//! The locations in a store: entries of the map [`LOCATIONS_MAP`], each the name of a location with its place as text. A
//! change of a place is an epoch of that map.
//!
//! Older programs kept places as keys of the object [`OLD_OBJECT`]. They are read there until the first change, which
//! moves them into the map:
//!
//! 1. The old object gets a key that no location can have, the *mark*, and each place in it is *sealed* by a prefix. Older
//!    programs cannot read the object any more: they keep the places that they know, and refuse to change one. A change of
//!    a place that one of them had under way fails, since it is conditional on the place's text as it was.
//! 2. Sealed places are added to the map, where it does not have the location yet.
//! 3. In the old object, only the seal is left of them. So an older program that had read a place before all this does not take
//!    its location for one that is not there any more, and makes it anew, which nobody would notice.
//!
//! The next change continues what was interrupted, and several programs may do it at once. Each reads the map before the
//! old object, and adds places on condition of the map's epoch: so no place is added once another program has added and
//! removed it, and what was changed since is not undone. Readers read the old object first and check that it has not changed
//! since, so that they find each location in one of the two.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use nacre_map::limit::{BYTES_DEFAULT, ENTRIES_DEFAULT};
use nacre_map::{ClusterMap, Committed, Header, Limits, ProposeError, Proposer, Refused, State, Update};
use nacre_object::limit::PAGE_ENTRIES_MAX;
use nacre_object::watch::{Watch, WatchOptions};
use nacre_object::{
    Answer, Check, ErrorKind, Escaped, Found, Guard, Key, KeyRange, ObjectId, ObjectStore, Outcome, ReadOp,
    StoreError, Transaction, WriteOp,
};
use nacre_reflect::location::{LOCATIONS_MAX, LocationEntry};
use nacre_reflect::wire::LOCATION_BYTES_MAX;
use tokio::sync::Mutex;

/// The map of locations.
pub const LOCATIONS_MAP: &str = "locations";
/// The object in which older programs kept the places.
const OLD_OBJECT: &str = "reflect/locations";
/// The object with the secret of relays.
const RELAY_OBJECT: &str = "reflect/locations-relay";
/// The key by which older programs see that they cannot read the old object. A person who lists the keys reads it.
const MARK: &str =
    "The places of all locations are in the map \"locations\" now, which this program is too old for.";
/// The beginning of a sealed place, with which it is none for older programs, and all that stays there of one that is in the map.
const SEAL: &str = "moved ";
/// The number of places that one transaction seals, adds or empties.
const CHUNK: usize = 500;
/// The bytes that the map needs for [`LOCATIONS_MAX`] locations.
const MAP_BYTES: u64 = 32 << 20;
/// The number of attempts while others change the same things.
const ATTEMPTS_MAX: u32 = 20;
/// The same for a change that any other change stands in the way of.
const EPOCH_ATTEMPTS_MAX: u32 = 200;
/// The pause between two of them.
const PAUSE: Duration = Duration::from_millis(10);

const _: () = assert!(MARK.len() > LOCATION_BYTES_MAX, "no location has this name");

/// All locations at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The epoch of the map; 0 if it has none yet.
    pub epoch: u64,
    /// All places.
    pub entries: BTreeMap<String, LocationEntry>,
    /// The state that was read; `None` before the first time.
    seen: Option<Seen>,
}

/// The state of the places in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    /// The version of the old object; `None` once all of its places are in the map.
    old: Option<u64>,
    /// The header of the map.
    header: Option<Header>,
}

/// The outcome of a change of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// The change was made.
    Done {
        /// The epoch of the map with the change.
        epoch: u64,
    },
    /// Another client changed the location meanwhile: this is its place now.
    Refused(Option<LocationEntry>),
}

/// The places in the old object.
#[derive(Debug, Default)]
struct Old {
    version: u64,
    marked: bool,
    places: Vec<(Key, Bytes)>,
}

impl Old {
    /// Returns whether all of them are in the map.
    fn is_moved(&self) -> bool {
        self.marked && self.places.is_empty()
    }
}

/// The map of locations of a store. It needs a tokio runtime with a clock around its calls.
#[derive(derive_more::Debug)]
#[debug("LocationMap")]
pub struct LocationMap {
    store: Arc<dyn ObjectStore>,
    map: ClusterMap,
    proposer: Proposer,
    author: String,
    /// The copy of the map that reads bring up to date, epoch by epoch.
    copy: Mutex<State>,
    old: ObjectId,
    /// True once the old object was seen to have no places left. It is not looked at any more then.
    moved: AtomicBool,
}

impl LocationMap {
    /// Creates a handle on the map of a store. `author` is named in the map's history as the author of changes.
    ///
    /// # Errors
    /// Those of names that are not allowed, which these are.
    pub fn new(store: Arc<dyn ObjectStore>, author: &str) -> Result<LocationMap, StoreError> {
        let map = ClusterMap::new(store.clone(), LOCATIONS_MAP)?;
        let proposer = map.proposer(Default::default());
        Ok(LocationMap {
            store,
            map,
            proposer,
            author: author.to_owned(),
            copy: Mutex::default(),
            old: ObjectId::try_from(OLD_OBJECT)?,
            moved: AtomicBool::new(false),
        })
    }

    /// Reads all locations; `None` if nothing has changed since `known` was read.
    ///
    /// # Errors
    /// Those of the store; `Corrupt` if a place cannot be read.
    pub async fn read(&self, known: &Snapshot) -> Result<Option<Snapshot>, StoreError> {
        let mut copy = self.copy.lock().await;
        let version = match self.is_moved() {
            true => None,
            false => Some(self.old_version().await?),
        };
        self.map.catch_up(&mut copy).await?;
        if known.seen == Some(Seen { old: version, header: copy.header() }) {
            return Ok(None);
        }
        for _ in 0..ATTEMPTS_MAX {
            let old = match self.is_moved() {
                true => None,
                false => Some(self.old().await?),
            };
            self.map.catch_up(&mut copy).await?;
            if let Some(old) = &old
                && self.old_version().await? != old.version
            {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            if old.as_ref().is_some_and(Old::is_moved) {
                self.moved.store(true, Ordering::Relaxed);
            }
            return Self::snapshot(old.filter(|old| !old.is_moved()), &copy).map(Some);
        }
        Err(busy())
    }

    /// Begins a watch of the map, whose events are hints to read it.
    ///
    /// # Errors
    /// Those of the store; `Unsupported` if it cannot watch.
    pub async fn watch(&self) -> Result<Watch, StoreError> {
        self.store.watch(self.map.object(), WatchOptions::default()).await
    }

    fn snapshot(old: Option<Old>, state: &State) -> Result<Snapshot, StoreError> {
        let mut entries = BTreeMap::new();
        for (key, value) in old.iter().flat_map(|old| &old.places) {
            let (name, entry) = old_place(key, value)?;
            entries.insert(name.to_owned(), entry);
        }
        for (key, value) in state.entries() {
            let (name, entry) = place_of(key, &value.value).map_err(|why| unreadable(key, &why))?;
            entries.insert(name.to_owned(), entry);
        }
        if entries.len() > LOCATIONS_MAX {
            return Err(corrupt(format!("there are more than {LOCATIONS_MAX} locations")));
        }
        let seen = Some(Seen { old: old.map(|old| old.version), header: state.header() });
        Ok(Snapshot { epoch: state.epoch(), entries, seen })
    }

    /// Returns the place of one location, as a change would find it. Like a change, it moves the places of older programs
    /// into the map.
    ///
    /// # Errors
    /// `Invalid` if no location can have that name; as [`LocationMap::read`].
    pub async fn place(&self, name: &str) -> Result<Option<LocationEntry>, StoreError> {
        let key = key_of(name)?;
        self.adopt().await?;
        Ok(self.entry(&key).await?.0)
    }

    /// Changes the place of a location, or removes it, if its place is still `from`.
    ///
    /// # Errors
    /// `Invalid` if no location can have that name, or a validator or a limit of the map refuses the change; `Unknown` if
    /// the change may have been made; as [`LocationMap::read`].
    pub async fn change(
        &self,
        name: &str,
        from: Option<LocationEntry>,
        to: Option<LocationEntry>,
    ) -> Result<Changed, StoreError> {
        let key = key_of(name)?;
        self.adopt().await?;
        for _ in 0..ATTEMPTS_MAX {
            let (now, version) = self.entry(&key).await?;
            if now != from {
                return Ok(Changed::Refused(now));
            }
            let update = Update::new(self.author.as_str()).if_version(key.clone(), version);
            let update = match to {
                Some(entry) => update.set(key.clone(), entry.to_string()),
                None => update.remove(key.clone()),
            };
            match self.propose(update).await {
                Ok(made) => return Ok(Changed::Done { epoch: made.epoch }),
                Err(ProposeError::Refused(Refused::Version { .. })) => {}
                Err(error) => return Err(store_error(error)),
            }
        }
        Err(busy())
    }

    /// Moves a location to the place that a function chooses, which sees all locations: on condition that none of them has
    /// changed since. Returns its places before and after.
    ///
    /// # Errors
    /// `Invalid` if the function refuses, with its sentence; as [`LocationMap::change`].
    pub async fn change_among_all(
        &self,
        name: &str,
        choose: impl Fn(&Snapshot) -> Result<LocationEntry, String>,
    ) -> Result<(LocationEntry, LocationEntry), StoreError> {
        let key = key_of(name)?;
        self.adopt().await?;
        let mut known = Snapshot::default();
        for _ in 0..EPOCH_ATTEMPTS_MAX {
            if let Some(changed) = self.read(&known).await? {
                known = changed;
            }
            let gone = || "there is no such location any more".to_owned();
            let chosen = known.entries.get(name).copied().ok_or_else(gone).and_then(|from| {
                let to = choose(&known)?;
                to.check()?;
                Ok((from, to))
            });
            let (from, to) = chosen.map_err(|why| StoreError::new(ErrorKind::Invalid, why))?;
            let update =
                Update::new(self.author.as_str()).if_epoch(known.epoch).set(key.clone(), to.to_string());
            match self.propose(update).await {
                Ok(_) => return Ok((from, to)),
                Err(ProposeError::Refused(Refused::Epoch { .. })) => tokio::time::sleep(PAUSE).await,
                Err(error) => return Err(store_error(error)),
            }
        }
        Err(busy())
    }

    /// Returns the secret from which all reflectors on the store derive the keys of relays. It is made when it is first
    /// wanted, and kept in an object of its own: whoever reads the map does not get it.
    ///
    /// # Errors
    /// `Corrupt` if the object has something else there; or the store's own error.
    pub async fn relay_secret(&self) -> Result<[u8; 32], StoreError> {
        let object = ObjectId::try_from(RELAY_OBJECT)?;
        let mut fresh = [0; 32];
        rustix::rand::getrandom(&mut fresh, rustix::rand::GetRandomFlags::empty()).map_err(|error| {
            StoreError::new(ErrorKind::Unavailable, format!("no random numbers: {error}"))
        })?;
        let key = Key::try_from("secret")?;
        let guard = Guard::Key { key: key.clone(), check: Check::Absent };
        let write = WriteOp::SetKey { key, value: Bytes::copy_from_slice(&fresh) };
        let found = match self.store.apply(&object, Transaction::new().guard(guard).change(write)).await? {
            Outcome::Done(_) => return Ok(fresh),
            Outcome::Refused(refusal) => refusal.found,
        };
        match found {
            Found::Value(Some(secret)) => {
                let wrong = |_| corrupt(format!("the secret of relays in {RELAY_OBJECT} has not 32 bytes"));
                <[u8; 32]>::try_from(&secret[..]).map_err(wrong)
            }
            _ => Err(unexpected()),
        }
    }

    fn is_moved(&self) -> bool {
        self.moved.load(Ordering::Relaxed)
    }

    /// Returns an entry of the map, and the number of the change that wrote it.
    async fn entry(&self, key: &Key) -> Result<(Option<LocationEntry>, u64), StoreError> {
        let Some(found) = self.map.get(key).await?.0 else { return Ok((None, 0)) };
        let (_, entry) = place_of(key, &found.value).map_err(|why| unreadable(key, &why))?;
        Ok((Some(entry), found.version))
    }

    /// Proposes an update, and makes room for as many locations as there may be if the map's limits were never set.
    async fn propose(&self, update: Update) -> Result<Committed, ProposeError> {
        let done = self.proposer.propose(update.clone()).await;
        if !matches!(done, Err(ProposeError::Refused(Refused::Limit(_)))) {
            return done;
        }
        self.raise_limits().await?;
        // Also where they are raised already: another program may have done that since it was refused.
        self.proposer.propose(update).await
    }

    /// Raises the map's limits where they are the default ones.
    async fn raise_limits(&self) -> Result<(), ProposeError> {
        let limits = self.map.state().await?.limits()?;
        if raised(limits) != limits {
            self.proposer.change_limits(&self.author, raised).await?;
        }
        Ok(())
    }

    /// Moves the places of older programs into the map. Returns once there are none left.
    async fn adopt(&self) -> Result<(), StoreError> {
        for _ in 0..ATTEMPTS_MAX {
            if self.is_moved() {
                return Ok(());
            }
            // In this order: see the head of this file.
            let state = self.map.state().await?;
            let old = self.old().await?;
            if old.is_moved() {
                self.moved.store(true, Ordering::Relaxed);
                return Ok(());
            }
            // What cannot be read is reported before anything is changed.
            old.places.iter().try_for_each(|(key, value)| old_place(key, value).map(drop))?;
            if self.seal(&old).await? && self.add(&old, &state).await? {
                self.empty(&old).await?;
            } else {
                tokio::time::sleep(PAUSE).await;
            }
        }
        Err(busy())
    }

    /// Marks the old object and seals its places. Returns false if one of them was changed meanwhile.
    async fn seal(&self, old: &Old) -> Result<bool, StoreError> {
        if !old.marked {
            let mark = WriteOp::SetKey { key: Key::try_from(MARK)?, value: Bytes::new() };
            self.write(Transaction::new().change(mark)).await?;
        }
        let plain: Vec<_> = old.places.iter().filter(|(_, value)| !is_sealed(value)).collect();
        for chunk in plain.chunks(CHUNK) {
            let mut transaction = Transaction::new();
            for (key, value) in chunk {
                let check = Check::Equal(value.clone());
                transaction = transaction
                    .guard(Guard::Key { key: key.clone(), check })
                    .change(WriteOp::SetKey { key: key.clone(), value: sealed(value) });
            }
            if !self.write(transaction).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Adds sealed places to the map, where it does not have the location. Returns false if it has changed since `state`.
    async fn add(&self, old: &Old, state: &State) -> Result<bool, StoreError> {
        let missing: Vec<_> =
            old.places.iter().filter(|(key, _)| state.get(key.as_bytes()).is_none()).collect();
        let mut epoch = state.epoch();
        for chunk in missing.chunks(CHUNK) {
            let mut update = Update::new(self.author.as_str()).if_epoch(epoch);
            for (key, value) in chunk {
                update = update.set(key.clone(), unsealed(value));
            }
            match self.propose(update).await {
                Ok(made) => epoch = made.epoch,
                Err(ProposeError::Refused(Refused::Epoch { .. })) => return Ok(false),
                Err(error) => return Err(store_error(error)),
            }
        }
        Ok(true)
    }

    /// Leaves nothing but the seal of places that are in the map.
    async fn empty(&self, old: &Old) -> Result<(), StoreError> {
        for chunk in old.places.chunks(CHUNK) {
            let mut transaction = Transaction::new();
            for (key, value) in chunk {
                let check = Check::Equal(sealed(value));
                let seal = Bytes::from_static(SEAL.as_bytes());
                transaction = transaction
                    .guard(Guard::Key { key: key.clone(), check })
                    .change(WriteOp::SetKey { key: key.clone(), value: seal });
            }
            // If another one has emptied some of them, the next look at the object shows what is left.
            self.write(transaction).await?;
        }
        Ok(())
    }

    /// Applies a transaction to the old object. Returns false if it was refused.
    async fn write(&self, transaction: Transaction) -> Result<bool, StoreError> {
        Ok(matches!(self.store.apply(&self.old, transaction).await?, Outcome::Done(_)))
    }

    async fn old_version(&self) -> Result<u64, StoreError> {
        match self.store.apply(&self.old, Transaction::new().read(ReadOp::Stat)).await? {
            Outcome::Done(done) => match done.answers.first() {
                Some(Answer::Stat(stat)) => Ok(stat.version),
                _ => Err(unexpected()),
            },
            Outcome::Refused(_) => Err(unexpected()),
        }
    }

    /// Reads the old object as it was at one moment.
    async fn old(&self) -> Result<Old, StoreError> {
        for _ in 0..ATTEMPTS_MAX {
            match self.old_once().await? {
                Some(old) => return Ok(old),
                None => tokio::time::sleep(PAUSE).await,
            }
        }
        Err(busy())
    }

    /// Reads the old object page by page; `None` if it was changed between two of them.
    async fn old_once(&self) -> Result<Option<Old>, StoreError> {
        let mut old = Old::default();
        let mut range = KeyRange::all();
        loop {
            let is_first = range.after.is_none();
            let keys = ReadOp::Keys { range: range.clone(), limit: PAGE_ENTRIES_MAX as u32, values: true };
            let read = Transaction::new().read(ReadOp::Stat).read(keys);
            let (version, page) = match self.store.apply(&self.old, read).await? {
                Outcome::Done(done) => match <[Answer; 2]>::try_from(done.answers) {
                    Ok([Answer::Stat(stat), Answer::Keys(page)]) => (stat.version, page),
                    _ => return Err(unexpected()),
                },
                Outcome::Refused(_) => return Err(unexpected()),
            };
            if is_first {
                old.version = version;
            } else if version != old.version {
                return Ok(None);
            }
            range.after = page.entries.last().filter(|_| page.more).map(|(last, _)| last.to_bytes());
            for (key, value) in page.entries {
                match key.as_bytes() == MARK.as_bytes() {
                    true => old.marked = true,
                    false if value == SEAL.as_bytes() => {}
                    false => old.places.push((key, value)),
                }
            }
            if old.places.len() > LOCATIONS_MAX {
                return Err(corrupt(format!("{OLD_OBJECT} has more than {LOCATIONS_MAX} locations")));
            }
            if range.after.is_none() {
                return Ok(Some(old));
            }
        }
    }
}

/// Returns the limits of a map for as many locations as there may be, but for those that somebody chose.
fn raised(limits: Limits) -> Limits {
    let raise = |found, default, to| if found == default { to } else { found };
    Limits {
        entries: raise(limits.entries, ENTRIES_DEFAULT, LOCATIONS_MAX as u64),
        bytes: raise(limits.bytes, BYTES_DEFAULT, MAP_BYTES),
        ..limits
    }
}

fn is_sealed(value: &[u8]) -> bool {
    value.starts_with(SEAL.as_bytes())
}

fn sealed(value: &Bytes) -> Bytes {
    match is_sealed(value) {
        true => value.clone(),
        false => [SEAL.as_bytes(), &value[..]].concat().into(),
    }
}

fn unsealed(value: &Bytes) -> Bytes {
    match is_sealed(value) {
        true => value.slice(SEAL.len()..),
        false => value.clone(),
    }
}

fn key_of(name: &str) -> Result<Key, StoreError> {
    let invalid = |why: String| StoreError::new(ErrorKind::Invalid, why);
    Key::try_from(name_of(name.as_bytes()).map_err(invalid)?)
}

fn name_of(bytes: &[u8]) -> Result<&str, String> {
    match std::str::from_utf8(bytes) {
        Ok(name) if (1..=LOCATION_BYTES_MAX).contains(&name.len()) => Ok(name),
        _ => Err(format!("a location's name is text of 1 to {LOCATION_BYTES_MAX} bytes")),
    }
}

fn place_of<'a>(key: &'a Key, value: &[u8]) -> Result<(&'a str, LocationEntry), String> {
    let name = name_of(key.as_bytes())?;
    let text = std::str::from_utf8(value).map_err(|_| "a location's place is not text".to_owned())?;
    Ok((name, text.parse()?))
}

fn old_place<'a>(key: &'a Key, value: &Bytes) -> Result<(&'a str, LocationEntry), StoreError> {
    place_of(key, &unsealed(value)).map_err(|why| corrupt(format!("key \"{key}\" of {OLD_OBJECT}: {why}")))
}

fn unreadable(key: &Key, why: &str) -> StoreError {
    corrupt(format!(
        "entry \"{key}\" of the map \"{LOCATIONS_MAP}\": {}; correct it with \"nacre map set\", or remove it with \"nacre \
         map rm\"",
        Escaped::of(why)
    ))
}

fn store_error(error: ProposeError) -> StoreError {
    match error {
        ProposeError::Store(error) => error,
        refused => StoreError::new(
            ErrorKind::Invalid,
            format!("the map \"{LOCATIONS_MAP}\" was not changed: {refused}"),
        ),
    }
}

fn busy() -> StoreError {
    StoreError::new(ErrorKind::Busy, "others change the locations all the time; try again")
}

fn corrupt(why: String) -> StoreError {
    StoreError::new(ErrorKind::Corrupt, format!("the locations cannot be read: {why}"))
}

fn unexpected() -> StoreError {
    corrupt("the store sent the wrong kind of reply".to_owned())
}

#[cfg(test)]
mod tests;
