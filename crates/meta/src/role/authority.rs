//! The authority of a rank: who has it, kept in an object of the store.
//!
//! | key | value |
//! |---|---|
//! | `authority` | who has the authority, at which epoch, and a count that grows while it shows itself |
//! | `standby/NAME` | empty: a daemon stands by |
//!
//! The object is `nacre/ranks/NUMBER`. Whoever has the authority renews it before the time to take over has passed: by reading
//! the object as long as nobody stands by, so that an idle store stays as it is, and by counting up once somebody does. A
//! standby takes over when the count has stood still for the time to take over, and an eighth of it for clocks that drift;
//! its transaction raises the object's fence to its epoch, so that the former rank cannot count any more. Since a renewal
//! counts from before it was sent, the former rank has stopped by then.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use nacre_object::{
    Answer, Check, ErrorKind, Found, Guard, Key, KeyRange, ObjectId, ObjectStore, Outcome, Read, StoreError,
    Transaction, Write,
};

use crate::wire::{ADDRESS_BYTES_MAX, ADDRESSES_MAX};

/// The beginning of the ids of objects that hold authorities.
pub const PREFIX: &str = "nacre/ranks/";
const AUTHORITY: &str = "authority";
const STANDBY: &str = "standby/";
const VERSION: u8 = 1;
/// The longest name of a daemon.
const NAME_BYTES_MAX: usize = 200;

/// Returns the object that holds the authority of a rank.
pub fn object(rank: u32) -> Result<ObjectId, StoreError> {
    format!("{PREFIX}{rank}").parse()
}

/// Who has the authority.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Authority {
    /// The epoch, which grows with each daemon that takes it; 0 if none ever did.
    pub epoch: u64,
    /// A count that grows while the daemon shows itself, from a number that it draws.
    pub count: u64,
    /// The time after which a standby takes over.
    pub takeover: Duration,
    /// True if it was given back, so that a standby need not wait.
    pub free: bool,
    /// The name of the daemon.
    pub name: String,
    /// The addresses at which clients reach it; none if they are those of the store.
    pub addresses: Vec<String>,
}

impl Authority {
    /// Encodes it: version, epoch, count, takeover in milliseconds, flag, name, addresses.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.extend_from_slice(&[VERSION]);
        for number in [self.epoch, self.count, self.takeover.as_millis() as u64] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&[u8::from(self.free)]);
        // Names and addresses are checked when the role begins.
        for text in std::iter::once(&self.name).chain(&self.addresses) {
            out.extend_from_slice(&[text.len() as u8]);
            out.extend_from_slice(text.as_bytes());
        }
        out.freeze()
    }

    /// Decodes it; `None` if the bytes are none.
    pub fn decode(bytes: &[u8]) -> Option<Authority> {
        let (head, mut rest) = bytes.split_at_checked(26)?;
        let number = |at: usize| head[at..at + 8].try_into().ok().map(u64::from_le_bytes);
        let free = match head[25] {
            0 => false,
            1 => true,
            _ => return None,
        };
        let mut texts = Vec::new();
        while let Some((length, behind)) = rest.split_first() {
            let (text, behind) = behind.split_at_checked(*length as usize)?;
            texts.push(String::from_utf8(text.to_vec()).ok()?);
            rest = behind;
            if texts.len() > ADDRESSES_MAX + 1 {
                return None;
            }
        }
        let mut texts = texts.into_iter();
        (head[0] == VERSION).then_some(())?;
        Some(Authority {
            epoch: number(1)?,
            count: number(9)?,
            takeover: Duration::from_millis(number(17)?),
            free,
            name: texts.next()?,
            addresses: texts.collect(),
        })
    }
}

/// Reads who has the authority of a rank; `None` if nobody ever had it.
///
/// # Errors
/// Those of the store; `Corrupt` if the object holds something else.
pub async fn read(store: &dyn ObjectStore, rank: u32) -> Result<Option<Authority>, StoreError> {
    let id = object(rank)?;
    let look = Transaction::new().read(Read::Key { key: AUTHORITY.parse()? });
    let Outcome::Done(done) = store.apply(&id, look).await? else { return Err(damaged(&id)) };
    match done.answers.into_iter().next() {
        Some(Answer::Value(None)) => Ok(None),
        Some(Answer::Value(Some(value))) => Authority::decode(&value).map(Some).ok_or_else(|| damaged(&id)),
        _ => Err(damaged(&id)),
    }
}

fn damaged(id: &ObjectId) -> StoreError {
    StoreError::new(ErrorKind::Corrupt, format!("object \"{id}\" holds no authority of a rank"))
}

/// The authority as a daemon sees it and changes it.
pub(super) struct Keeper {
    pub store: Arc<dyn ObjectStore>,
    id: ObjectId,
    own: Authority,
    /// True if no other daemon can have this one's name.
    keeps_store: bool,
    /// The authority that this daemon wrote last.
    written: Option<Authority>,
}

/// The object as it was read.
pub(super) struct Seen {
    pub authority: Option<Authority>,
    /// True if somebody stands by.
    pub standby: bool,
}

impl Keeper {
    pub fn new(options: &super::Options, name: String, addresses: Vec<String>) -> Result<Keeper, StoreError> {
        let long = |text: &String, most: usize| text.len() > most;
        if long(&name, NAME_BYTES_MAX)
            || addresses.len() > ADDRESSES_MAX
            || addresses.iter().any(|address| long(address, ADDRESS_BYTES_MAX))
        {
            let text =
                "the name of a rank has 200 bytes at most, and it has 16 addresses of 255 bytes at most";
            return Err(StoreError::new(ErrorKind::Invalid, text));
        }
        let own = Authority { takeover: options.takeover, name, addresses, ..Authority::default() };
        let (store, id) = (options.store.clone(), object(options.rank)?);
        Ok(Keeper { store, id, own, keeps_store: options.keeps_store, written: None })
    }

    pub fn takeover(&self) -> Duration {
        self.own.takeover
    }

    /// Returns whether an authority is this daemon's, from before it was started again.
    pub fn is_own(&self, authority: &Authority) -> bool {
        authority.name == self.own.name && self.keeps_store
    }

    /// Returns whether an authority is the one that this daemon took last.
    pub fn is_written(&self, authority: &Authority) -> bool {
        let same = |written: &Authority| written.epoch == authority.epoch && written.name == authority.name;
        self.written.as_ref().is_some_and(same)
    }

    pub async fn look(&self) -> Result<Seen, StoreError> {
        let standbys = Read::Keys { range: KeyRange::prefix(STANDBY), limit: 1, values: false };
        let look = Transaction::new().read(Read::Key { key: AUTHORITY.parse()? }).read(standbys);
        let Outcome::Done(done) = self.store.apply(&self.id, look).await? else {
            return Err(damaged(&self.id));
        };
        match &done.answers[..] {
            [Answer::Value(value), Answer::Keys(page)] => {
                let decode = |value: &Bytes| Authority::decode(value).ok_or_else(|| damaged(&self.id));
                let authority = value.as_ref().map(decode).transpose()?;
                Ok(Seen { authority, standby: !page.entries.is_empty() })
            }
            _ => Err(damaged(&self.id)),
        }
    }

    fn standby_key(&self) -> Result<Key, StoreError> {
        format!("{STANDBY}{}", self.own.name).parse()
    }

    /// Tells whoever has the authority that this daemon stands by.
    pub async fn stand_by(&self) -> Result<(), StoreError> {
        let key = self.standby_key()?;
        let tell = Transaction::new().change(Write::SetKey { key, value: Bytes::new() });
        self.store.apply(&self.id, tell).await.map(drop)
    }

    /// Tells that it does not any more.
    pub async fn leave(&self) -> Result<(), StoreError> {
        let leave = Transaction::new().change(Write::RemoveKey { key: self.standby_key()? });
        self.store.apply(&self.id, leave).await.map(drop)
    }

    /// Takes the authority on condition that it is as it was seen. Returns the new epoch, or `None` if it is not.
    pub async fn take(&mut self, seen: Option<&Authority>) -> Result<Option<u64>, StoreError> {
        let epoch = seen.map_or(0, |seen| seen.epoch) + 1;
        // Drawn, so that two daemons of one name, as in two containers, do not both take what one of them wrote for their own.
        let count = rand::random::<u64>() >> 1;
        let own = Authority { epoch, count, free: false, ..self.own.clone() };
        let check = seen.map_or(Check::Absent, |seen| Check::Equal(seen.encode()));
        let take = Transaction::new()
            .guard(Guard::Fence { token: epoch })
            .guard(Guard::Key { key: AUTHORITY.parse()?, check })
            .change(Write::SetKey { key: AUTHORITY.parse()?, value: own.encode() })
            .change(Write::RemoveKey { key: self.standby_key()? })
            .change(Write::RaiseFence { token: epoch });
        let taken = match self.store.apply(&self.id, take).await? {
            Outcome::Done(_) => true,
            Outcome::Refused(refusal) => is(&refusal.found, &own),
        };
        self.written = taken.then_some(own);
        Ok(taken.then_some(epoch))
    }

    /// Counts up, and so shows that this daemon is there. Returns false if another one has the authority.
    pub async fn show(&mut self) -> Result<bool, StoreError> {
        let Some(before) = &self.written else { return Ok(false) };
        let next = Authority { count: before.count + 1, ..before.clone() };
        self.replace(next).await
    }

    /// Gives the authority back, so that a standby takes it at once.
    pub async fn give_back(&mut self) -> Result<bool, StoreError> {
        let Some(before) = &self.written else { return Ok(false) };
        let next = Authority { count: before.count + 1, free: true, ..before.clone() };
        self.replace(next).await
    }

    async fn replace(&mut self, next: Authority) -> Result<bool, StoreError> {
        let change = Transaction::new()
            .guard(Guard::Fence { token: next.epoch })
            .change(Write::SetKey { key: AUTHORITY.parse()?, value: next.encode() });
        let done = matches!(self.store.apply(&self.id, change).await?, Outcome::Done(_));
        self.written = done.then_some(next);
        Ok(done)
    }
}

fn is(found: &Found, authority: &Authority) -> bool {
    matches!(found, Found::Value(Some(value)) if *value == authority.encode())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nacre_object::testkit::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn of_two_daemons_of_one_name_one_has_the_authority() {
        let store = Arc::new(MemoryStore::new());
        let keeper = || {
            let options = crate::role::Options {
                store: store.clone(),
                rank: 0,
                keeps_store: false,
                lease: Duration::from_secs(1),
                takeover: Duration::from_secs(1),
            };
            Keeper::new(&options, "host:1".to_owned(), vec!["host:1".to_owned()]).unwrap()
        };
        let (mut one, mut other) = (keeper(), keeper());
        for epoch in 1..4 {
            let seen = one.look().await.unwrap().authority;
            assert_eq!(one.take(seen.as_ref()).await.unwrap(), Some(epoch));
            assert_eq!(other.take(seen.as_ref()).await.unwrap(), None);
            assert!(one.show().await.unwrap() && !other.show().await.unwrap());
        }
    }
}
