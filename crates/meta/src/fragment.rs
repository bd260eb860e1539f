//! Fragments: the objects that hold the entries of a directory.
//!
//! A directory begins as one fragment, which is the object of its inode, and a fragment that has become too large is split in
//! two by the hashes of the names (as in Patil and Gibson, *Scale and Concurrency of GIGA+*, FAST 2011). Fragment `i` of depth
//! `r` holds the names whose hashes end with the `r` bits of `i`; its split makes fragment `i + 2^r`, which takes those whose bit
//! `r` is 1, and both have depth `r + 1` then. Fragments go with their directory only.
//!
//! A split moves the entries in the order of their names, some at a time, each time by an intent ([`crate::intent`]). Each
//! fragment says itself up to which name that has come ([`Bounds`]), so at every moment each name belongs to one fragment, and a
//! transaction that is conditional on the version of the bounds finds it there or fails. Whoever adds entries takes the next
//! step. So nothing waits for a split, and one that its rank left is continued by others.
//!
//! The order in which fragments are read matters where all of them are: entries go only from a fragment to those that are split
//! off it, so who reads those later misses no entry, and may see one twice.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use nacre_object::{Answer, KeyPage, KeyRange, ObjectId, ReadOp, StoreError, Transaction};

use crate::codec::{Reader, Writer};
use crate::directory::{CLAIM, Entry, MOVES, NAME_BYTES_MAX, entry_key};
use crate::error::{Error, Result};
use crate::inode::{Ino, Inode, InodeKind, PREFIX, RECORD, key, object};
use crate::intent::{Claim, Part, Target, Transfer};
use crate::namespace::PAGE_ENTRIES_MAX;
use crate::rank::{
    ATTEMPTS_MAX, Loaded, LookupResult, Rank, at_version, corrupt, nonsense, too_busy, unclaimed, versioned,
};

/// The key of a fragment's bounds.
pub(crate) const BOUNDS: &[u8] = b"b";
/// The number of entries above which a fragment is split, unless the rank has another one.
pub(crate) const SPLIT_ENTRIES: u64 = 100_000;
/// The greatest depth of a fragment.
const DEPTH_MAX: u8 = 10;
/// The maximum number of fragments of a directory.
pub(crate) const FRAGMENTS_MAX: u64 = 1 << DEPTH_MAX;
/// The number of times that a fragment is counted while it grows to its limit.
const COUNTS: u64 = 64;
/// The number of new entries for each step of a split.
const STEP_EVERY: u64 = 16;
/// The number of entries among which one step of a split finds those to be moved.
const STEP_ENTRIES: u32 = 512;
/// The number of times that a fragment is looked for in a directory in which it should be.
const SEARCHES_MAX: usize = 64;
/// The number of fragments that one search reads.
const SEARCH_READS_MAX: usize = 64;
/// The number of fragments that are read side by side.
const READS_MAX: usize = 64;
const FORMAT: u8 = 1;

/// Returns the hash of a name: FNV-1a of 64 bits, with the last steps of MurmurHash3.
pub(crate) fn hash(name: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in name {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

/// The name of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Fragment {
    pub directory: Ino,
    /// Its number; the object of the inode is number 0.
    pub index: u64,
}

impl Fragment {
    /// Returns the fragment that every directory has.
    pub fn first(directory: Ino) -> Fragment {
        Fragment { directory, index: 0 }
    }

    pub fn object(self) -> ObjectId {
        match self.index {
            0 => self.directory.object(),
            index => object(format!("{PREFIX}e/{}/{index:x}", self.directory)),
        }
    }

    pub fn target(self) -> Target {
        match self.index {
            0 => Target::Inode(self.directory),
            _ => Target::Fragment(self),
        }
    }

    fn at(self, index: u64) -> Fragment {
        Fragment { index, ..self }
    }
}

/// Returns the number of a number's bits, up to the highest that is 1.
fn bits(index: u64) -> u8 {
    (u64::BITS - index.leading_zeros()) as u8
}

/// Returns the fragment that a fragment was split off.
fn parent(index: u64) -> u64 {
    match bits(index) {
        0 => 0,
        bits => index & !(1_u64 << (bits - 1)),
    }
}

/// Returns whether a bit of a hash is 1.
pub(crate) fn has_bit(hash: u64, bit: u8) -> bool {
    (hash >> bit) & 1 == 1
}

fn with_bit(index: u64, bit: u8) -> u64 {
    index | (1_u64 << bit)
}

fn low(hash: u64, bits: u8) -> u64 {
    hash & ((1_u64 << bits) - 1)
}

/// The entries that a fragment holds, of all entries of its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// The number of bits that the hashes of its names have in common.
    pub depth: u8,
    pub state: State,
}

/// The state of a fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It holds all entries with these hashes.
    Whole,
    /// It is being split: those with a further bit have been moved up to this name.
    Splitting(Bytes),
    /// It was split off another one, from which its entries have been moved up to this name.
    Filling(Bytes),
}

impl Bounds {
    /// Returns the bounds of a directory that was never split.
    fn all() -> Bounds {
        Bounds { depth: 0, state: State::Whole }
    }

    pub fn encode(&self) -> Bytes {
        let mut out = Writer::begin(FORMAT);
        let (state, name) = match &self.state {
            State::Whole => (0, &[][..]),
            State::Splitting(name) => (1, &name[..]),
            State::Filling(name) => (2, &name[..]),
        };
        out.u8(self.depth).u8(state).bytes(name);
        out.finish()
    }

    pub fn decode(bytes: &[u8]) -> std::result::Result<Bounds, StoreError> {
        let mut reader = Reader::begin("the bounds of a directory's fragment", FORMAT, bytes)?;
        let (depth, state) = (reader.u8()?, reader.u8()?);
        let name = reader.bytes(NAME_BYTES_MAX)?;
        let state = match state {
            0 if name.is_empty() => State::Whole,
            1 if depth < DEPTH_MAX => State::Splitting(name),
            2 if depth > 0 => State::Filling(name),
            other => return Err(reader.wrong(format_args!("it cannot be in state {other}"))),
        };
        if depth > DEPTH_MAX {
            return Err(reader.wrong(format_args!("its depth is {depth}")));
        }
        reader.end()?;
        Ok(Bounds { depth, state })
    }

    /// Returns the fragment that a name belongs to according to these bounds of fragment `index`, or that knows more about it;
    /// `None` if it is this one. The hash must end with the bits of `index`.
    pub fn elsewhere(&self, index: u64, name: &[u8], hash: u64) -> Option<u64> {
        // The first of the fragments that were split off this one and have a name with this hash.
        let below = (bits(index)..self.depth).find(|bit| has_bit(hash, *bit));
        if let Some(bit) = below {
            return Some(with_bit(index, bit));
        }
        match &self.state {
            State::Splitting(moved) if has_bit(hash, self.depth) && name <= &moved[..] => {
                Some(with_bit(index, self.depth))
            }
            State::Filling(moved) if name > &moved[..] => Some(parent(index)),
            _ => None,
        }
    }

    /// Returns the fragments that were split off fragment `index`, which has these bounds.
    pub fn below(&self, index: u64) -> impl Iterator<Item = u64> + use<> {
        let splits = u8::from(matches!(self.state, State::Splitting(_)));
        (bits(index)..self.depth + splits).map(move |bit| with_bit(index, bit))
    }

    /// Returns whether fragment `index` with these bounds is to hold a name.
    pub fn holds(&self, index: u64, name: &[u8]) -> bool {
        let hash = hash(name);
        low(hash, self.depth) == index && self.elsewhere(index, name, hash).is_none()
    }

    /// Reads bounds from an answer; a fragment without any holds all entries. Returns the version of their key too.
    pub fn of(answer: Option<&Answer>) -> Result<(Bounds, u64)> {
        match versioned(answer)? {
            Some(value) => Ok((Bounds::decode(&value.value)?, value.version)),
            None => Ok((Bounds::all(), 0)),
        }
    }
}

/// The fragment in which a name's entry is or would be, as it was read.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub fragment: Fragment,
    pub bounds: Bounds,
    /// The version of the key of the bounds; 0 if there is none.
    pub version: u64,
    /// The version of the key of the last intent.
    pub moves: u64,
}

impl Place {
    /// Begins a transaction on the fragment, on condition that the names still belong there and that the directory is as it
    /// was loaded, as far as it is in the same object.
    pub fn transaction(&self, directory: &Loaded) -> Transaction {
        let transaction = Transaction::new().guard(at_version(key(BOUNDS), self.version)).guard(unclaimed());
        match self.fragment.index {
            0 => transaction.guard(at_version(key(RECORD), directory.record)),
            _ => transaction,
        }
    }

    /// Begins the part of an intent that concerns the fragment, under the same conditions.
    pub fn part(&self, directory: &Loaded) -> Part {
        let part = Part::new(self.fragment.target(), self.moves).at(key(BOUNDS), self.version);
        match self.fragment.index {
            0 => part.at(key(RECORD), directory.record),
            _ => part,
        }
    }
}

/// A fragment as it was read.
#[derive(Clone, Debug)]
pub(crate) struct FoundFragment {
    pub place: Place,
    /// The version of the object.
    pub version: u64,
    pub answers: Vec<Answer>,
}

impl Rank {
    /// Reads a fragment, and asks further questions about its object. If an intent has claimed it, it is brought to its end
    /// first. `None` if there is no such fragment.
    pub(crate) async fn find_fragment(
        &self,
        fragment: Fragment,
        further: &[ReadOp],
    ) -> Result<Option<FoundFragment>> {
        let bounds = ReadOp::versioned_key(key(BOUNDS));
        if fragment.index == 0 {
            let reads = [&[bounds][..], further].concat();
            let LookupResult::Found(loaded, mut answers) = self.find(fragment.directory, reads).await? else {
                return Ok(None);
            };
            let (bounds, version) = Bounds::of(answers.first())?;
            let place = Place { fragment, bounds, version, moves: loaded.moves };
            return Ok(Some(FoundFragment { place, version: loaded.version, answers: answers.split_off(1) }));
        }
        for _ in 0..ATTEMPTS_MAX {
            let claim = ReadOp::Key { key: key(CLAIM) };
            let reads = [&[claim, ReadOp::versioned_key(key(MOVES)), bounds.clone()][..], further].concat();
            let mut done = self.read(&fragment.object(), reads).await?;
            if let Some(Answer::Value(Some(claim))) = done.answers.first() {
                self.help(Claim::decode(claim)?, &fragment.object()).await?;
                continue;
            }
            let moves = versioned(done.answers.get(1))?.map_or(0, |value| value.version);
            let (bounds, version) = match Bounds::of(done.answers.get(2))? {
                // Nothing, or what is left of a split that did not begin.
                (_, 0) => return Ok(None),
                found => found,
            };
            let place = Place { fragment, bounds, version, moves };
            let answers = done.answers.split_off(3);
            return Ok(Some(FoundFragment { place, version: done.version, answers }));
        }
        Err(too_busy())
    }

    /// Finds the place of a name in a directory, and asks further questions about it.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`].
    pub(crate) async fn find_place(
        &self,
        directory: Ino,
        name: &[u8],
        further: &[ReadOp],
    ) -> Result<(Loaded, Place, Vec<Answer>)> {
        let hash = hash(name);
        for _ in 0..SEARCHES_MAX {
            let reads = [&[ReadOp::versioned_key(key(BOUNDS))][..], further].concat();
            let LookupResult::Found(loaded, mut answers) = self.find(directory, reads).await? else {
                return Err(Error::NotFound);
            };
            if loaded.inode.kind != InodeKind::Directory {
                return Err(Error::NotDirectory);
            }
            let (bounds, version) = Bounds::of(answers.first())?;
            let fragment = Fragment::first(directory);
            let Some(next) = bounds.elsewhere(0, name, hash) else {
                let place = Place { fragment, bounds, version, moves: loaded.moves };
                return Ok((*loaded, place, answers.split_off(1)));
            };
            // All fragments are about as deep as the first one: most of the time this is the right one at once.
            let mut index = low(hash, bounds.depth);
            if index == 0 {
                index = next;
            }
            for _ in 0..SEARCH_READS_MAX {
                index = match self.find_fragment(fragment.at(index), further).await? {
                    Some(found) => match found.place.bounds.elsewhere(index, name, hash) {
                        None => return Ok((*loaded, found.place, found.answers)),
                        Some(index) => index,
                    },
                    // The directory was removed meanwhile.
                    None if index == next => 0,
                    None => match parent(index) {
                        0 => next,
                        index => index,
                    },
                };
                if index == 0 {
                    break;
                }
            }
        }
        // Only a split that goes on at this very moment leads astray, and never for long.
        Err(corrupt(format!("a part of directory {directory} is missing: check the namespace")))
    }

    /// Reads all fragments of a directory, each before those that were split off it, and asks further questions about each.
    /// `None` if the directory was removed.
    pub(crate) async fn all_fragments(
        &self,
        directory: Ino,
        further: &[ReadOp],
    ) -> Result<Option<Vec<FoundFragment>>> {
        let mut found = Vec::new();
        let mut next = vec![Fragment::first(directory)];
        while !next.is_empty() {
            let fragments = std::mem::take(&mut next).into_iter();
            let reads = fragments.map(|fragment| self.find_fragment(fragment, further));
            let read: Vec<Option<FoundFragment>> =
                stream::iter(reads).buffered(READS_MAX).try_collect().await?;
            for fragment in read {
                let Some(fragment) = fragment else { return Ok(None) };
                let place = &fragment.place;
                next.extend(place.bounds.below(place.fragment.index).map(|index| place.fragment.at(index)));
                found.push(fragment);
            }
        }
        Ok(Some(found))
    }

    /// Reads the entries of a directory behind a name, at most `limit`, in the order of their names. Returns also whether there are
    /// more.
    pub(crate) async fn list_entries(
        &self,
        directory: Ino,
        after: &Bytes,
        limit: usize,
    ) -> Result<(Loaded, Vec<(Bytes, Entry)>, bool)> {
        let keys = |limit: usize| {
            let range = KeyRange { after: bound(after), ..KeyRange::prefix(&b"e"[..]) };
            ReadOp::Keys { range, limit: limit as u32, values: true }
        };
        let reads = vec![ReadOp::versioned_key(key(BOUNDS)), keys(limit)];
        let LookupResult::Found(loaded, answers) = self.find(directory, reads).await? else {
            return Err(Error::NotFound);
        };
        if loaded.inode.kind != InodeKind::Directory {
            return Err(Error::NotDirectory);
        }
        let (mut entries, mut more) = (Vec::new(), false);
        if !loaded.inode.is_split {
            let page = key_page(answers.get(1))?;
            for (key, value) in &page.entries {
                entries.push((key.to_bytes().slice(1..), Entry::decode(value)?));
            }
            return Ok((*loaded, entries, page.more));
        }
        // The names are spread evenly over the fragments, so each has about the same share of the next ones.
        let (bounds, _) = Bounds::of(answers.first())?;
        let share = (((2 * limit) >> bounds.depth) + 16).min(limit);
        let Some(found) = self.all_fragments(directory, &[keys(share)]).await? else {
            self.load(directory).await?;
            return Err(corrupt(format!("a part of directory {directory} is missing: check the namespace")));
        };
        let mut merged = BTreeMap::new();
        // The name up to which every fragment has said all that it has.
        let mut end: Option<Bytes> = None;
        for fragment in &found {
            let page = key_page(fragment.answers.first())?;
            for (key, value) in &page.entries {
                // Of an entry that was moved in between the later one counts.
                merged.insert(key.to_bytes().slice(1..), value);
            }
            if page.more {
                let (last, _) = page.entries.last().ok_or_else(nonsense)?;
                let last = last.to_bytes().slice(1..);
                end = Some(end.map_or(last.clone(), |end| end.min(last)));
            }
        }
        for (name, value) in merged {
            if entries.len() == limit || end.as_ref().is_some_and(|end| name > *end) {
                more = true;
                break;
            }
            entries.push((name, Entry::decode(value)?));
        }
        Ok((*loaded, entries, more || end.is_some()))
    }

    /// Takes a turn in the split of a fragment to which an entry was added, if it is its turn: counts the fragment, begins the
    /// split, or moves some entries.
    pub(crate) async fn grew(&self, place: &Place, name: &[u8]) {
        let every = (self.split_entries / COUNTS).max(1);
        let every = match place.bounds.state {
            State::Whole => every,
            _ => every.min(STEP_EVERY),
        };
        // Other bits than those that tell the fragment.
        if !(hash(name) >> 32).is_multiple_of(every) {
            return;
        }
        let done = match place.bounds.state {
            State::Whole => self.split_if_large(place).await,
            State::Splitting(_) => self.continue_split(place.fragment).await,
            State::Filling(_) => self.continue_split(place.fragment.at(parent(place.fragment.index))).await,
        };
        if let Err(error) = done {
            // The entry stands, and the split goes on with a later one.
            tracing::debug!(%error, "a step in the split of a directory is left to others");
        }
    }

    async fn split_if_large(&self, place: &Place) -> Result<()> {
        let child = place.fragment.at(with_bit(place.fragment.index, place.bounds.depth));
        if place.bounds.depth >= DEPTH_MAX {
            return Ok(());
        }
        let (mut count, mut after) = (0, None);
        loop {
            let range = KeyRange { after, ..KeyRange::prefix(&b"e"[..]) };
            let keys = ReadOp::Keys { range, limit: PAGE_ENTRIES_MAX as u32, values: false };
            let done = self.read(&place.fragment.object(), vec![keys]).await?;
            let Some(Answer::Keys(page)) = done.answers.first() else { return Err(nonsense()) };
            count += page.entries.len() as u64;
            if count > self.split_entries {
                return self.begin_split(place.fragment, child).await;
            }
            after = page.entries.last().map(|(key, _)| key.to_bytes()).filter(|_| page.more);
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// Begins the split of a fragment. Nothing happens if others change the same.
    async fn begin_split(&self, fragment: Fragment, child: Fragment) -> Result<()> {
        let bounds = ReadOp::versioned_key(key(BOUNDS));
        let found = self.find(fragment.directory, vec![bounds.clone()]).await?;
        let LookupResult::Found(directory, answers) = found else { return Ok(()) };
        let place = match fragment.index {
            0 => {
                let (bounds, version) = Bounds::of(answers.first())?;
                Place { fragment, bounds, version, moves: directory.moves }
            }
            _ => match self.find_fragment(fragment, &[]).await? {
                Some(found) => found.place,
                None => return Ok(()),
            },
        };
        if place.bounds.state != State::Whole || with_bit(fragment.index, place.bounds.depth) != child.index {
            return Ok(());
        }
        // What an earlier attempt has left of the new object, if there was one.
        let reads = vec![ReadOp::Key { key: key(CLAIM) }, ReadOp::versioned_key(key(MOVES)), bounds];
        let done = self.read(&child.object(), reads).await?;
        if let Some(Answer::Value(Some(claim))) = done.answers.first() {
            return self.help(Claim::decode(claim)?, &child.object()).await;
        }
        let moves = versioned(done.answers.get(1))?.map_or(0, |value| value.version);
        if versioned(done.answers.get(2))?.is_some() {
            return Ok(());
        }
        let depth = place.bounds.depth;
        let splitting = Bounds { depth, state: State::Splitting(Bytes::new()) };
        let filling = Bounds { depth: depth + 1, state: State::Filling(Bytes::new()) };
        let mut part = place.part(&directory).set(key(BOUNDS), Some(splitting.encode()));
        if fragment.index == 0 && !directory.inode.is_split {
            // Programs that know nothing of fragments refuse the record from now on.
            let inode = Inode { is_split: true, ..directory.inode.clone() };
            part = part.set(key(RECORD), Some(inode.encode()));
        }
        // Conditional on the version of the object: a helper that was asleep must not make it again when it has gone with its
        // directory.
        let new = Part { version: Some(done.version), ..Part::new(child.target(), moves) }
            .at(key(BOUNDS), 0)
            .set(key(BOUNDS), Some(filling.encode()));
        self.execute(vec![part, new]).await.map(|_| ())
    }

    /// Moves the next entries of a fragment that is being split.
    async fn continue_split(&self, fragment: Fragment) -> Result<()> {
        let Some(source) = self.find_fragment(fragment, &[]).await?.map(|found| found.place) else {
            return Ok(());
        };
        let (depth, State::Splitting(after)) = (source.bounds.depth, &source.bounds.state) else {
            return Ok(());
        };
        let child = fragment.at(with_bit(fragment.index, depth));
        let Some(target) = self.find_fragment(child, &[]).await?.map(|found| found.place) else {
            return Ok(());
        };
        if !matches!(&target.bounds.state, State::Filling(name) if name == after) {
            // Somebody has moved some in between.
            return Ok(());
        }
        let range = KeyRange { after: bound(after), ..KeyRange::prefix(&b"e"[..]) };
        let keys = ReadOp::Keys { range, limit: STEP_ENTRIES, values: false };
        let done = self.read(&fragment.object(), vec![keys]).await?;
        let Some(Answer::Keys(page)) = done.answers.first() else { return Err(nonsense()) };
        if page.more && page.entries.is_empty() {
            return Err(nonsense());
        }
        // Names that are added meanwhile in front of this one are moved too.
        let upto = page.entries.last().map(|(key, _)| key.to_bytes().slice(1..)).filter(|_| page.more);
        let (ours, theirs) = match &upto {
            Some(name) => (
                Bounds { depth, state: State::Splitting(name.clone()) },
                Bounds { depth: depth + 1, state: State::Filling(name.clone()) },
            ),
            None => {
                let whole = Bounds { depth: depth + 1, state: State::Whole };
                (whole.clone(), whole)
            }
        };
        let transfer = Transfer { from: fragment.index, bit: depth, after: after.clone(), upto };
        let part = |place: &Place, bounds: Bounds| Part {
            transfer: Some(transfer.clone()),
            ..Part::new(place.fragment.target(), place.moves)
                .at(key(BOUNDS), place.version)
                .set(key(BOUNDS), Some(bounds.encode()))
        };
        self.execute(vec![part(&source, ours), part(&target, theirs)]).await.map(|_| ())
    }
}

fn key_page(answer: Option<&Answer>) -> Result<&KeyPage> {
    match answer {
        Some(Answer::Keys(page)) => Ok(page),
        _ => Err(nonsense()),
    }
}

/// Returns the key behind which the entries of greater names are; `None` if all are greater.
pub(crate) fn bound(name: &[u8]) -> Option<Bytes> {
    (!name.is_empty()).then(|| entry_key(name).to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_decode_to_themselves_and_no_part_of_them_decodes() {
        let name = Bytes::from_static(b"name");
        for (depth, state) in [
            (0, State::Whole),
            (3, State::Splitting(Bytes::new())),
            (3, State::Splitting(name.clone())),
            (10, State::Filling(name)),
        ] {
            let bounds = Bounds { depth, state };
            let bytes = bounds.encode();
            assert_eq!(Bounds::decode(&bytes).unwrap(), bounds);
            for end in 0..bytes.len() {
                assert!(Bounds::decode(&bytes[..end]).is_err(), "{end} bytes");
            }
        }
        for wrong in
            [&[1, 11, 0, 0, 0, 0, 0][..], &[1, 10, 1, 0, 0, 0, 0], &[1, 0, 2, 0, 0, 0, 0], &[2, 0, 0]]
        {
            assert!(Bounds::decode(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn hashes_are_those_that_are_written_down() {
        assert_eq!(hash(b""), 0xefd0_1f60_ba99_2926);
        assert_eq!(hash(b"results.csv"), 0x2286_ef3c_0f99_f28f);
    }

    /// Returns the fragment of a name among those that have bounds, as a search from the first one finds it.
    fn search(fragments: &[(u64, Bounds)], name: &[u8]) -> u64 {
        let (mut index, hash) = (0, hash(name));
        for _ in 0..100 {
            let (_, bounds) = fragments.iter().find(|(found, _)| *found == index).unwrap();
            match bounds.elsewhere(index, name, hash) {
                None => return index,
                Some(next) => index = next,
            }
        }
        panic!("the search goes round")
    }

    #[test]
    fn every_name_belongs_to_one_fragment_before_during_and_after_a_split() {
        let whole = |depth| Bounds { depth, state: State::Whole };
        let cursor = Bytes::from_static(b"name 5");
        let splitting = Bounds { depth: 2, state: State::Splitting(cursor.clone()) };
        let filling = Bounds { depth: 3, state: State::Filling(cursor) };
        let trees = [
            vec![(0, whole(0))],
            vec![(0, whole(1)), (1, whole(1))],
            // Of three fragments, number 1 is deeper than number 0, and is being split again.
            vec![(0, whole(1)), (1, splitting), (3, whole(2)), (5, filling)],
            vec![(0, whole(1)), (1, whole(3)), (3, whole(2)), (5, whole(3))],
        ];
        for tree in trees {
            let mut below: Vec<u64> = vec![0];
            let mut reached = Vec::new();
            while let Some(index) = below.pop() {
                reached.push(index);
                let (_, bounds) = tree.iter().find(|(found, _)| *found == index).unwrap();
                below.extend(bounds.below(index));
            }
            reached.sort_unstable();
            assert_eq!(reached, tree.iter().map(|(index, _)| *index).collect::<Vec<_>>());
            for number in 0..500 {
                let name = format!("name {number}");
                let holding: Vec<u64> = tree
                    .iter()
                    .filter(|(index, bounds)| bounds.holds(*index, name.as_bytes()))
                    .map(|(index, _)| *index)
                    .collect();
                assert_eq!(holding, [search(&tree, name.as_bytes())], "{name}");
            }
        }
    }
}
