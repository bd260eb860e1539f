//! Intents: changes that span objects, wholly or not at all, whoever goes away in the middle.
//!
//! An intent is a list of parts, one for each object: conditions, and changes of keys. It is written down in its
//! rank's log before anything else. Then
//!
//! 1. each object is *claimed*, in ascending order, by a transaction that judges the part's conditions. While an object
//!    is claimed, nobody else changes it;
//! 2. the intent's *outcome* is written down: committed if every object could be claimed, undone otherwise. That is the
//!    moment at which the change takes effect;
//! 3. each part's changes are made, and each claim is given up, by one transaction for each object.
//!
//! The parts of a split also move entries from one object to the other ([`Transfer`]), while both are claimed: they are copied
//! to the new one before they are removed from the old one, since parts are finished in descending order.
//!
//! Every step can be repeated by anybody at any time. Whoever comes upon a claim takes these steps itself until the
//! claim is gone, so nobody waits for the rank that began it. Three rules make that safe:
//!
//! - Claims are made in the order of the objects, so those who help each other never go round in a circle.
//! - An intent claims an object at most once: each claim sets the key `m` too, and is made on condition of that key's
//!   version. So a helper that was asleep for long cannot claim an object again after its part has been done.
//! - An intent stays in the log until its rank has seen all claims gone; a claim whose intent is not in the log is a
//!   late helper's, and means nothing. It is taken away.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use nacre_object::{
    Answer, Check, Found, Guard, Key, KeyRange, ObjectId, Outcome, ReadOp, StoreError, Transaction, WriteOp,
};

use crate::codec::{Reader, Writer};
use crate::directory::{CLAIM, MOVES, NAME_BYTES_MAX};
use crate::error::{Error, Result};
use crate::fragment::{FRAGMENTS_MAX, Fragment, bound, has_bit, hash};
use crate::inode::{Ino, key, key_of};
use crate::quota::quota_object;
use crate::rank::{
    ATTEMPTS_MAX, Rank, at_version, log_object, namespace_object, nonsense, too_busy, unclaimed, versioned,
};

const FORMAT: u8 = 1;
/// The version of the format of intents that have to do with fragments or quotas. All others are written in the one that every
/// program can read.
const FORMAT_EXTENDED: u8 = 2;
/// The maximum number of parts of an intent in the first format.
const PARTS_MAX: usize = 8;
/// The maximum number of parts of any intent: one that removes a directory has one for each of its fragments.
const PARTS_EXTENDED_MAX: usize = FRAGMENTS_MAX as usize + PARTS_MAX;
/// The number of entries that are moved by one transaction, at most.
const TRANSFER_ENTRIES: u32 = 256;
const OPERATIONS_MAX: usize = 64;
const KEY_BYTES_MAX: usize = 1024;
const VALUE_BYTES_MAX: usize = 128 << 10;
/// The beginnings of the keys of intents and of their outcomes in a log.
pub(crate) const INTENT_KEY: &[u8] = b"i";
pub(crate) const OUTCOME_KEY: &[u8] = b"o";

const COMMITTED: &[u8] = b"\x01";
const UNDONE: &[u8] = b"\x02";

/// The name of an intent: the rank in whose log it is, and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub rank: u64,
    pub number: u64,
}

impl Claim {
    pub fn encode(self) -> Bytes {
        Writer::new().u64(self.rank).u64(self.number).finish()
    }

    pub fn decode(bytes: &[u8]) -> std::result::Result<Claim, StoreError> {
        let mut reader = Reader::new("a claim", bytes);
        let claim = Claim { rank: reader.u64()?, number: reader.u64()? };
        reader.end().map(|()| claim)
    }

    fn intent_key(self) -> Key {
        key_of([INTENT_KEY, &self.number.to_be_bytes()].concat())
    }

    fn outcome_key(self) -> Key {
        key_of([OUTCOME_KEY, &self.number.to_be_bytes()].concat())
    }

    fn guard(self) -> Guard {
        Guard::Key { key: key(CLAIM), check: Check::Equal(self.encode()) }
    }
}

/// An object that an intent changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    /// The object of the namespace itself: only one directory at a time is moved to another one.
    Namespace,
    /// An inode; of a directory the first fragment too.
    Inode(Ino),
    /// A further fragment of a directory.
    Fragment(Fragment),
    /// A quota.
    Quota(u64),
}

impl Target {
    fn object(self) -> ObjectId {
        match self {
            Target::Namespace => namespace_object(),
            Target::Inode(ino) => ino.object(),
            Target::Fragment(fragment) => fragment.object(),
            Target::Quota(quota) => quota_object(quota),
        }
    }

    fn fragment(self) -> Option<Fragment> {
        match self {
            Target::Inode(ino) => Some(Fragment::first(ino)),
            Target::Fragment(fragment) => Some(fragment),
            Target::Namespace | Target::Quota(_) => None,
        }
    }
}

/// The entries that a part moves from one fragment of a directory to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Transfer {
    /// The fragment that they leave; the part of any other one receives them.
    pub from: u64,
    /// The bit of the hash that is 1 of the names that are moved.
    pub bit: u8,
    /// The name after which they begin.
    pub after: Bytes,
    /// The last name; `None`: there is no end.
    pub upto: Option<Bytes>,
}

/// The part of an intent that concerns one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub target: Target,
    /// The version that the key of the last intent must have.
    pub moves: u64,
    /// The version that the object must have, if nothing at all of it may change.
    pub version: Option<u64>,
    /// Keys with the versions that they must have; 0: there must be no such key.
    pub keys: Vec<(Key, u64)>,
    /// Keys with their new values; `None`: the key is removed.
    pub changes: Vec<(Key, Option<Bytes>)>,
    /// True if the object is removed.
    pub remove: bool,
    /// The entries to be moved.
    pub transfer: Option<Transfer>,
}

impl Part {
    pub fn new(target: Target, moves: u64) -> Part {
        Part {
            target,
            moves,
            version: None,
            keys: Vec::new(),
            changes: Vec::new(),
            remove: false,
            transfer: None,
        }
    }

    /// Adds the condition that a key has a version.
    pub fn at(mut self, key: Key, version: u64) -> Part {
        self.keys.push((key, version));
        self
    }

    /// Adds a change of a key.
    pub fn set(mut self, key: Key, value: Option<Bytes>) -> Part {
        self.changes.push((key, value));
        self
    }
}

/// Encodes an intent.
pub(crate) fn encode(parts: &[Part]) -> Bytes {
    let is_plain =
        |part: &Part| part.transfer.is_none() && matches!(part.target, Target::Namespace | Target::Inode(_));
    let is_extended = parts.len() > PARTS_MAX || !parts.iter().all(is_plain);
    let mut out = Writer::begin(if is_extended { FORMAT_EXTENDED } else { FORMAT });
    out.count(parts.len());
    for part in parts {
        let (kind, target, index) = match part.target {
            Target::Namespace => (0, 0, 0),
            Target::Inode(ino) => (1, ino.0, 0),
            Target::Fragment(fragment) => (2, fragment.directory.0, fragment.index),
            Target::Quota(quota) => (3, quota, 0),
        };
        if is_extended {
            out.u8(kind).u64(index);
        }
        out.u64(target).u64(part.moves).flag(part.version.is_some()).u64(part.version.unwrap_or(0));
        out.count(part.keys.len());
        for (key, version) in &part.keys {
            out.bytes(key.as_bytes()).u64(*version);
        }
        out.count(part.changes.len());
        for (key, value) in &part.changes {
            out.bytes(key.as_bytes()).flag(value.is_some());
            out.bytes(value.as_deref().unwrap_or(&[]));
        }
        out.flag(part.remove);
        if is_extended {
            out.flag(part.transfer.is_some());
            if let Some(transfer) = &part.transfer {
                out.u64(transfer.from).u8(transfer.bit).bytes(&transfer.after);
                out.flag(transfer.upto.is_some()).bytes(transfer.upto.as_deref().unwrap_or(&[]));
            }
        }
    }
    out.finish()
}

/// Decodes an intent.
pub(crate) fn decode(bytes: &[u8]) -> std::result::Result<Vec<Part>, StoreError> {
    let (mut reader, format) = Reader::begin_up_to("an intent", FORMAT_EXTENDED, bytes)?;
    let is_extended = format == FORMAT_EXTENDED;
    let mut parts = Vec::new();
    for _ in 0..reader.count(if is_extended { PARTS_EXTENDED_MAX } else { PARTS_MAX })? {
        let kind = if is_extended { Some((reader.u8()?, reader.u64()?)) } else { None };
        let number = reader.u64()?;
        let target = match kind {
            None | Some((0, 0)) if number == 0 => Target::Namespace,
            None | Some((1, 0)) if number != 0 => Target::Inode(Ino(number)),
            Some((2, index)) if index != 0 => Target::Fragment(Fragment { directory: Ino(number), index }),
            Some((3, 0)) => Target::Quota(number),
            _ => return Err(reader.wrong("one of its parts names no object")),
        };
        let moves = reader.u64()?;
        let version = match (reader.flag()?, reader.u64()?) {
            (true, version) => Some(version),
            (false, _) => None,
        };
        let mut part = Part { version, ..Part::new(target, moves) };
        for _ in 0..reader.count(OPERATIONS_MAX)? {
            part.keys.push((Key::new(reader.bytes(KEY_BYTES_MAX)?)?, reader.u64()?));
        }
        for _ in 0..reader.count(OPERATIONS_MAX)? {
            let key = Key::new(reader.bytes(KEY_BYTES_MAX)?)?;
            let is_set = reader.flag()?;
            let value = reader.bytes(VALUE_BYTES_MAX)?;
            part.changes.push((key, is_set.then_some(value)));
        }
        part.remove = reader.flag()?;
        if is_extended && reader.flag()? {
            let (from, bit, after) = (reader.u64()?, reader.u8()?, reader.bytes(NAME_BYTES_MAX)?);
            let has_end = reader.flag()?;
            let upto = reader.bytes(NAME_BYTES_MAX)?;
            if u32::from(bit) >= u64::BITS {
                return Err(reader.wrong("it moves entries by no bit of their hashes"));
            }
            part.transfer = Some(Transfer { from, bit, after, upto: has_end.then_some(upto) });
        }
        parts.push(part);
    }
    reader.end()?;
    Ok(parts)
}

/// The end of an intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Committed,
    Undone,
    /// The intent is not in its log: it came to its end before.
    Forgotten,
}

impl Rank {
    /// Makes a change that spans objects. Returns false if a condition did not hold, and nothing was changed.
    pub(crate) async fn execute(&self, mut parts: Vec<Part>) -> Result<bool> {
        parts.sort_by_key(|part| part.target);
        let number = self.next_id().await?;
        let name: Bytes = [INTENT_KEY, &number.to_be_bytes()].concat().into();
        let rank = self.note(name.clone(), encode(&parts)).await?;
        // The log must stay while claims may lead to it: without their intent they mean nothing, and a change of which
        // one half is made would stay one.
        self.unfinished.fetch_add(1, Ordering::Relaxed);
        let claim = Claim { rank, number };
        let mut result = self.drive(claim).await;
        for _ in 0..3 {
            match &result {
                Err(error) if error.is_unknown() => result = self.drive(claim).await,
                _ => break,
            }
        }
        let end = match result {
            Ok(end) => end,
            Err(error) => return self.abandon(claim, error).await,
        };
        self.unfinished.fetch_sub(1, Ordering::Relaxed);
        let outcome = [OUTCOME_KEY, &number.to_be_bytes()].concat().into();
        self.forget(&name, Some(outcome)).await;
        match end {
            End::Committed => Ok(true),
            End::Undone => Ok(false),
            End::Forgotten => {
                let text = "the rank's log was closed by another one while a change was under way";
                Err(StoreError::new(nacre_object::ErrorKind::Unknown, text).into())
            }
        }
    }

    /// Leaves an intent to others, of which a step failed. Returns true if it is committed all the same.
    async fn abandon(&self, claim: Claim, error: Error) -> Result<bool> {
        let outcome = async {
            self.undo(claim).await?;
            let done =
                self.read(&log_object(claim.rank), vec![ReadOp::Key { key: claim.outcome_key() }]).await?;
            Ok::<_, Error>(done.answers.into_iter().next())
        };
        match outcome.await {
            Ok(Some(Answer::Value(Some(outcome)))) if outcome == COMMITTED => Ok(true),
            Ok(Some(Answer::Value(Some(_)))) => Err(error),
            _ if error.is_unknown() => Err(error),
            // Somebody else may yet commit it.
            _ => Err(StoreError::new(nacre_object::ErrorKind::Unknown, error.to_string()).into()),
        }
    }

    /// Brings the intent that has claimed `object` to its end, and sees that the claim is gone.
    pub(crate) async fn help(&self, claim: Claim, object: &ObjectId) -> Result<()> {
        // Boxed, because those who help may have to help others first.
        let end = Box::pin(self.drive(claim)).await?;
        if end == End::Forgotten {
            self.give_up(claim, object).await?;
        }
        Ok(())
    }

    /// Takes all steps of an intent that are left, up to its end.
    pub(crate) async fn drive(&self, claim: Claim) -> Result<End> {
        let log = log_object(claim.rank);
        for _ in 0..ATTEMPTS_MAX {
            let reads =
                vec![ReadOp::versioned_key(claim.intent_key()), ReadOp::Key { key: claim.outcome_key() }];
            let done = self.read(&log, reads).await?;
            let Some(intent) = versioned(done.answers.first())? else { return Ok(End::Forgotten) };
            let parts = decode(&intent.value)?;
            match done.answers.get(1) {
                Some(Answer::Value(Some(outcome))) if outcome == COMMITTED => {
                    // What receives entries comes before what they leave; and an inode goes after the further objects.
                    for part in parts.iter().rev() {
                        self.finish(claim, part).await?;
                    }
                    return Ok(End::Committed);
                }
                Some(Answer::Value(Some(_))) => {
                    for part in &parts {
                        self.give_up(claim, &part.target.object()).await?;
                    }
                    return Ok(End::Undone);
                }
                _ => {
                    let mut outcome = COMMITTED;
                    for part in &parts {
                        if !self.claim(claim, part).await? {
                            outcome = UNDONE;
                            break;
                        }
                    }
                    self.decide(claim, intent.version, outcome).await?;
                }
            }
        }
        Err(too_busy())
    }

    /// Writes down that an intent is undone, unless its outcome stands already.
    pub(crate) async fn undo(&self, claim: Claim) -> Result<()> {
        let done =
            self.read(&log_object(claim.rank), vec![ReadOp::versioned_key(claim.intent_key())]).await?;
        if let Some(intent) = versioned(done.answers.first())? {
            self.decide(claim, intent.version, UNDONE).await?;
        }
        Ok(())
    }

    async fn decide(&self, claim: Claim, version: u64, outcome: &'static [u8]) -> Result<()> {
        let transaction = Transaction::new()
            .guard(at_version(claim.intent_key(), version))
            .guard(at_version(claim.outcome_key(), 0))
            .change(WriteOp::SetKey { key: claim.outcome_key(), value: Bytes::from_static(outcome) });
        self.change(&log_object(claim.rank), transaction).await.map(|_| ())
    }

    /// Claims an object. Returns false if a condition does not hold.
    async fn claim(&self, claim: Claim, part: &Part) -> Result<bool> {
        let object = part.target.object();
        for _ in 0..ATTEMPTS_MAX {
            let mut transaction =
                Transaction::new().guard(unclaimed()).guard(at_version(key(MOVES), part.moves));
            for (key, version) in &part.keys {
                transaction = transaction.guard(at_version(key.clone(), *version));
            }
            if let Some(version) = part.version {
                transaction = transaction.guard(Guard::Version { version });
            }
            for name in [CLAIM, MOVES] {
                transaction = transaction.change(WriteOp::SetKey { key: key(name), value: claim.encode() });
            }
            match self.apply(&object, transaction).await? {
                Outcome::Done(_) => return Ok(true),
                Outcome::Refused(refusal) => match refusal.found {
                    Found::Value(Some(holder)) if refusal.guard == 0 => {
                        let holder = Claim::decode(&holder)?;
                        if holder == claim {
                            return Ok(true);
                        }
                        self.help(holder, &object).await?;
                    }
                    _ => return Ok(false),
                },
            }
        }
        Err(too_busy())
    }

    /// Makes the changes of a part of a committed intent, unless somebody has done so.
    async fn finish(&self, claim: Claim, part: &Part) -> Result<()> {
        if let Some(transfer) = &part.transfer {
            self.transfer(claim, part.target, transfer).await?;
        }
        let mut transaction = Transaction::new().guard(claim.guard());
        if part.remove {
            transaction = transaction.change(WriteOp::Remove);
        } else {
            for (key, value) in &part.changes {
                transaction = transaction.change(match value {
                    Some(value) => WriteOp::SetKey { key: key.clone(), value: value.clone() },
                    None => WriteOp::RemoveKey { key: key.clone() },
                });
            }
            transaction = transaction.change(WriteOp::RemoveKey { key: key(CLAIM) });
        }
        self.change(&part.target.object(), transaction).await.map(|_| ())
    }

    /// Moves entries of a committed intent: copies them to the fragment that receives them, or removes them from the one that
    /// they leave, unless somebody has finished that part.
    ///
    /// Both objects are claimed until their parts are finished, and the one that the entries leave comes last: as long as the other
    /// one is claimed, all entries are still there to be read.
    async fn transfer(&self, claim: Claim, target: Target, transfer: &Transfer) -> Result<()> {
        let here = target.fragment().ok_or_else(nonsense)?;
        let source = Fragment { index: transfer.from, ..here };
        let leaves = here == source;
        // No name has a zero byte, so this is the first key behind the last name.
        let before = transfer.upto.as_ref().map(|name| Bytes::from([&b"e"[..], &name[..], b"\0"].concat()));
        let mut after = bound(&transfer.after);
        loop {
            let range = KeyRange { after, before: before.clone(), prefix: Bytes::from_static(b"e") };
            let read = ReadOp::Keys { range, limit: TRANSFER_ENTRIES, values: !leaves };
            let done = self.read(&source.object(), vec![read]).await?;
            let Some(Answer::Keys(page)) = done.answers.first() else { return Err(nonsense()) };
            if page.more && page.entries.is_empty() {
                return Err(nonsense());
            }
            let mut transaction = Transaction::new().guard(claim.guard());
            for (key, value) in &page.entries {
                let name = &key.as_bytes()[1..];
                if has_bit(hash(name), transfer.bit) {
                    transaction = transaction.change(match leaves {
                        true => WriteOp::RemoveKey { key: key.clone() },
                        false => WriteOp::SetKey { key: key.clone(), value: value.clone() },
                    });
                }
            }
            if !transaction.writes.is_empty() && !self.change(&here.object(), transaction).await? {
                return Ok(());
            }
            after = page.entries.last().map(|(key, _)| key.to_bytes()).filter(|_| page.more);
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// Takes a claim away that has no effect.
    async fn give_up(&self, claim: Claim, object: &ObjectId) -> Result<()> {
        let transaction =
            Transaction::new().guard(claim.guard()).change(WriteOp::RemoveKey { key: key(CLAIM) });
        self.change(object, transaction).await.map(|_| ())
    }
}

/// Returns the name of an intent, given its key in a rank's log.
pub(crate) fn intent_of(rank: u64, key: &Key) -> Option<Claim> {
    let number = key.as_bytes().strip_prefix(INTENT_KEY)?;
    Some(Claim { rank, number: u64::from_be_bytes(number.try_into().ok()?) })
}
