//! The map from locations to groups and reflectors, which an operator or a program changes while reflectors run.
//!
//! The control plane is given places one by one ([`Control::set_location`](crate::control::Control::set_location))
//! and does not know where they are kept. A [`LocationMap`] keeps them: here, in one object of a Nacre store; another
//! keeper only has to implement the trait.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use nacre_object::{
    Answer, Check, ErrorKind, Guard, Key, KeyRange, ObjectId, ObjectStore, Outcome, ReadOp, Reply,
    StoreError, Transaction, WriteOp, limit::PAGE_ENTRIES_MAX,
};

use crate::wire::{LOCATION_BYTES_MAX, REFLECTORS_MAX, Reflectors};

/// The greatest number of locations.
pub const LOCATIONS_MAX: usize = 100_000;
/// The greatest number of groups that can share a port; their ids are below it.
pub const IDS_MAX: u32 = 1_000_000;

/// The suffix of the id of the object with the secret of relays.
const RELAY_SUFFIX: &str = "-relay";

/// The place of a location: a group, and its reflectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocationEntry {
    /// The reflector in charge, and its standbys, with the group's port at each.
    pub reflectors: Reflectors,
    /// The group's id on that port.
    pub group: u32,
}

impl LocationEntry {
    /// Checks that a group can be there, as far as that can be told without asking its reflectors.
    ///
    /// # Errors
    /// A sentence about the part that cannot be.
    pub fn check(&self) -> Result<(), String> {
        if self.group >= IDS_MAX {
            return Err(format!("no group has the id {}; ids go up to {}", self.group, IDS_MAX - 1));
        }
        let addresses = self.reflectors.as_slice();
        for (index, address) in addresses.iter().enumerate() {
            check_address(address)?;
            if addresses[..index].contains(address) {
                return Err(format!("{address} is named twice"));
            }
        }
        Ok(())
    }
}

/// Checks that a reflector can be at an address.
///
/// # Errors
/// A sentence with the reason.
pub fn check_address(address: &SocketAddr) -> Result<(), String> {
    let is_broadcast = matches!(address.ip(), IpAddr::V4(ip) if ip.is_broadcast());
    let why = match address.ip() {
        _ if address.port() == 0 => "port 0 is none",
        ip if ip.is_unspecified() => "it is not a machine's address; give the one that members reach",
        ip if ip.is_multicast() || is_broadcast => "it is not the address of one machine",
        _ => return Ok(()),
    };
    Err(format!("no reflector can be reached at {address}: {why}"))
}

impl fmt::Display for LocationEntry {
    /// Writes the place as it is stored and read by people: `GROUP REFLECTOR[,STANDBY…]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.group)?;
        for (number, address) in self.reflectors.as_slice().iter().enumerate() {
            write!(f, "{}{address}", if number > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

impl std::str::FromStr for LocationEntry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not a place: GROUP REFLECTOR[,STANDBY…], each as ADDRESS:PORT");
        let (group, addresses) = text.trim().split_once(' ').ok_or_else(wrong)?;
        let group = group.parse().map_err(|_| wrong())?;
        let addresses: Vec<SocketAddr> = addresses
            .split(',')
            .map(|address| address.trim().parse())
            .collect::<Result<_, _>>()
            .map_err(|_| wrong())?;
        let reflectors = Reflectors::new(&addresses)
            .ok_or_else(|| format!("'{text}' names more than {REFLECTORS_MAX} reflectors"))?;
        Ok(LocationEntry { reflectors, group })
    }
}

/// The whole map at one version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The version, which grows with every change.
    pub version: u64,
    /// All places.
    pub entries: BTreeMap<String, LocationEntry>,
}

/// The outcome of a change of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// The change was made.
    Done {
        /// The version of the map with the change.
        version: u64,
    },
    /// Another client changed the location meanwhile: this is its place now.
    Refused(Option<LocationEntry>),
}

/// A store of the map of locations.
pub trait LocationMap: Send + Sync + 'static {
    /// Reads the map; `None` if it is still that of version `known`. With 0, the map is always read.
    fn read(&self, known: u64) -> Reply<Option<Snapshot>>;

    /// Changes the place of a location, or removes it, if its place is still `from`.
    fn change(&self, name: &str, from: Option<LocationEntry>, to: Option<LocationEntry>) -> Reply<Changed>;
}

/// The map as an object of a store: a key for each location, its value the place as text.
#[derive(derive_more::Debug)]
#[debug("ObjectLocationMap")]
pub struct ObjectLocationMap<S: ?Sized> {
    store: Arc<S>,
    object: ObjectId,
}

impl<S: ?Sized> Clone for ObjectLocationMap<S> {
    fn clone(&self) -> Self {
        ObjectLocationMap { store: self.store.clone(), object: self.object.clone() }
    }
}

impl<S: ObjectStore + ?Sized> ObjectLocationMap<S> {
    /// Creates the map in this object, which need not exist yet.
    pub fn new(store: Arc<S>, object: ObjectId) -> Self {
        ObjectLocationMap { store, object }
    }
}

impl<S: ObjectStore + ?Sized> ObjectLocationMap<S> {
    /// Returns the secret from which all reflectors on the store derive the keys of relays. It is made when it is first
    /// wanted, and kept in an object of its own, beside that of the map.
    ///
    /// # Errors
    /// `Corrupt` if the object has something else there; or the store's own error.
    pub async fn relay_secret(&self) -> Result<[u8; 32], StoreError> {
        let object = ObjectId::try_from(format!("{}{RELAY_SUFFIX}", self.object).as_str())?;
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
            nacre_object::Found::Value(Some(secret)) => {
                let secret = secret[..].try_into();
                secret.map_err(|_| corrupt(&object, "the secret of relays has not 32 bytes"))
            }
            _ => Err(unexpected(&object)),
        }
    }
}

impl<S: ObjectStore + ?Sized> LocationMap for ObjectLocationMap<S> {
    fn read(&self, known: u64) -> Reply<Option<Snapshot>> {
        let (store, object) = (self.store.clone(), self.object.clone());
        Reply::pending(async move {
            'again: loop {
                let mut snapshot = Snapshot::default();
                let mut after: Option<Bytes> = None;
                loop {
                    let range = KeyRange { after: after.clone(), ..KeyRange::all() };
                    let transaction = Transaction::new().read(ReadOp::Stat).read(ReadOp::Keys {
                        range,
                        limit: PAGE_ENTRIES_MAX as u32,
                        values: true,
                    });
                    let (version, page) = match store.apply(&object, transaction).await? {
                        Outcome::Done(done) => match <[Answer; 2]>::try_from(done.answers) {
                            Ok([Answer::Stat(stat), Answer::Keys(page)]) => (stat.version, page),
                            _ => return Err(unexpected(&object)),
                        },
                        Outcome::Refused(_) => return Err(unexpected(&object)),
                    };
                    if after.is_none() {
                        if version == known && known != 0 {
                            return Ok(None);
                        }
                        snapshot.version = version;
                    } else if version != snapshot.version {
                        // It was changed between two pages: they do not belong together.
                        continue 'again;
                    }
                    for (key, value) in &page.entries {
                        let name = name_of(key.as_bytes()).map_err(|why| corrupt(&object, why))?;
                        let entry = entry_of(value).map_err(|why| corrupt(&object, why))?;
                        snapshot.entries.insert(name.to_owned(), entry);
                    }
                    if snapshot.entries.len() > LOCATIONS_MAX {
                        return Err(corrupt(&object, format!("it has more than {LOCATIONS_MAX} locations")));
                    }
                    match (page.more, page.entries.last()) {
                        (true, Some((last, _))) => after = Some(last.to_bytes()),
                        _ => return Ok(Some(snapshot)),
                    }
                }
            }
        })
    }

    fn change(&self, name: &str, from: Option<LocationEntry>, to: Option<LocationEntry>) -> Reply<Changed> {
        let key = match name_of(name.as_bytes()).map_err(invalid).and_then(Key::try_from) {
            Ok(key) => key,
            Err(error) => return Reply::ready(Err(error)),
        };
        let check = match from {
            Some(entry) => Check::Equal(Bytes::from(entry.to_string())),
            None => Check::Absent,
        };
        let write = match to {
            Some(entry) => WriteOp::SetKey { key: key.clone(), value: Bytes::from(entry.to_string()) },
            None => WriteOp::RemoveKey { key: key.clone() },
        };
        let transaction = Transaction::new().guard(Guard::Key { key, check }).change(write);
        let (store, object) = (self.store.clone(), self.object.clone());
        Reply::pending(async move {
            match store.apply(&object, transaction).await? {
                Outcome::Done(done) => Ok(Changed::Done { version: done.version }),
                Outcome::Refused(refusal) => match refusal.found {
                    nacre_object::Found::Value(found) => {
                        let entry = found.map(|value| entry_of(&value)).transpose();
                        Ok(Changed::Refused(entry.map_err(|why| corrupt(&object, why))?))
                    }
                    _ => Err(unexpected(&object)),
                },
            }
        })
    }
}

fn name_of(bytes: &[u8]) -> Result<&str, String> {
    match std::str::from_utf8(bytes) {
        Ok(name) if (1..=LOCATION_BYTES_MAX).contains(&name.len()) => Ok(name),
        _ => Err(format!("a location's name is text of 1 to {LOCATION_BYTES_MAX} bytes")),
    }
}

fn entry_of(value: &[u8]) -> Result<LocationEntry, String> {
    std::str::from_utf8(value).map_err(|_| "a location's entry is not text".to_owned())?.parse()
}

fn invalid(why: String) -> StoreError {
    StoreError::new(ErrorKind::Invalid, why)
}

fn corrupt(object: &ObjectId, why: impl fmt::Display) -> StoreError {
    StoreError::new(ErrorKind::Corrupt, format!("the map of locations in the object {object}: {why}"))
}

fn unexpected(object: &ObjectId) -> StoreError {
    corrupt(object, "the store sent the wrong kind of reply")
}
