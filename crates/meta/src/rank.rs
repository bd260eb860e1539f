//! Ranks: what makes changes of the namespace.
//!
//! Every change is made by conditional transactions, and what spans objects by intents ([`crate::intent`]), which any
//! rank finishes that comes upon them. So any number of ranks may work on a store at the same time, in processes that
//! know nothing of each other, and none of them waits for one that has gone away (Carns et al., section V, names the
//! namespace as a use of conditional updates).
//!
//! A rank that caches what it has read needs more: nobody may change that behind its back. It is opened as
//! [`RankOptions::exclusive`] and raises the fence of every object that it changes to its own number, which refuses
//! the changes of ranks that were opened before it, wherever it has been.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use nacre_object::{
    Answer, Check, Done, ErrorKind, Guard, ObjectId, ObjectStore, Outcome, ReadOp, StoreError, Transaction,
    Versioned, WriteOp,
};
use parking_lot::Mutex;

use crate::create::Recent;
use crate::credentials::{Credentials, WRITE};
use crate::directory::{CHANGED, CLAIM, MOVES, decode_time};
use crate::error::{Error, Result};
use crate::fragment::{Fragment, SPLIT_ENTRIES};
use crate::inode::{Content, Ino, Inode, InodeKind, Layout, PREFIX, RECORD, SEQUENCER, key, key_of, object};
use crate::intent::Claim;
use crate::quota::Reserve;
use crate::unmade::Unmade;

/// The key of the version of the namespace's format, in the object of the namespace itself.
pub(crate) const FORMAT_KEY: &[u8] = b"f";
/// The key of the next id.
const IDS_KEY: &[u8] = b"n";
/// The key of the number of the last exclusive rank.
const FENCE_KEY: &[u8] = b"x";
/// The beginning of the keys of ranks that have logs.
pub(crate) const RANK_KEY: &[u8] = b"r";
const FORMAT: u8 = 1;
/// The first id that is given out.
const FIRST_ID: u64 = 16;
/// The numbers of ids that a rank takes at first, and at most.
const IDS_MIN: u64 = 16;
const IDS_MAX: u64 = 4096;
/// The maximum number of notes that are removed from a log together.
const STALE_MAX: usize = 1024;
/// The number of times that others may be first, or that a reply may be lost, before a call gives up.
pub(crate) const ATTEMPTS_MAX: usize = 1000;

/// A source of the present time, in nanoseconds since 1970.
pub type Clock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// The settings of a rank.
#[derive(Clone, Default, derive_more::Debug)]
pub struct RankOptions {
    /// True if an empty store gets a namespace; its root belongs to [`RankOptions::owner`].
    pub create: bool,
    /// The owner of a new root.
    pub owner: Credentials,
    /// True if all ranks that were opened before are to be fenced, object by object, as this one comes to them.
    pub exclusive: bool,
    /// The number of entries above which a directory, or a part of one, is split; 100,000 if there is none.
    pub split_entries: Option<u64>,
    /// The clock; that of the system if there is none.
    #[debug(skip)]
    pub clock: Option<Clock>,
}

/// A handle on the namespace that makes changes of it. See the module. (The daemon that keeps sequencers by its authority is a
/// [`crate::service::ActiveRank`].)
#[derive(derive_more::Debug)]
#[debug("Rank")]
pub struct Rank {
    pub(crate) store: Arc<dyn ObjectStore>,
    clock: Clock,
    /// The number by which this rank's changes pass fences.
    token: AtomicU64,
    pub(crate) exclusive: bool,
    ids: futures::lock::Mutex<Ids>,
    log: futures::lock::Mutex<Log>,
    pub(crate) split_entries: u64,
    pub(crate) open: Mutex<HashMap<Ino, Open>>,
    /// The inodes without objects whose numbers this rank has given out.
    pub(crate) unmade: Unmade,
    /// The directories in which something was made lately.
    pub(crate) recent: Recent,
    /// This rank's reserves of quotas.
    pub(crate) reserves: Mutex<HashMap<u64, Reserve>>,
    /// The number of calls that have something to be finished by others if they do not finish it themselves.
    pub(crate) unfinished: AtomicUsize,
}

#[derive(Default)]
struct Ids {
    free: Range<u64>,
    taken: u64,
}

/// The rank's log of changes that it is about to make.
#[derive(Default)]
struct Log {
    number: Option<u64>,
    /// The content of the log, so that it is written once.
    notes: std::collections::HashSet<Bytes>,
    /// Keys that are of no use any more, to be removed with the next change of the log.
    stale: Vec<Bytes>,
}

/// An inode of a program's own type, as its methods are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Typed {
    /// The type: a class, or [`SEQUENCER`].
    pub name: String,
    /// The object with its state, on which a method of the class is called.
    pub object: ObjectId,
    /// The fence under which it is called, if there is one.
    pub fence: Option<u64>,
}

/// A file that is open at this rank.
#[derive(Default)]
pub(crate) struct Open {
    pub count: usize,
    /// The links that were removed while the file was open, with the fragments of directories that they were in.
    pub gone: Vec<(Fragment, u64)>,
}

/// An inode as it was read.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    pub ino: Ino,
    pub inode: Inode,
    /// The version of the record's key; 0 if the inode has no object yet ([`crate::unmade`]).
    pub record: u64,
    /// The version of the key of the last intent.
    pub moves: u64,
    /// The version of the object.
    pub version: u64,
}

impl Loaded {
    /// Returns an inode that has no object yet.
    pub fn unmade(ino: Ino, inode: Inode) -> Loaded {
        Loaded { ino, inode, record: 0, moves: 0, version: 0 }
    }

    /// Returns whether the inode has an object.
    pub fn is_made(&self) -> bool {
        self.record != 0
    }

    /// Begins a transaction that replaces the record, on condition that nobody did so since it was loaded, and that no intent has
    /// claimed the object.
    pub fn replacement(&self, inode: &Inode) -> Transaction {
        // The version of the key alone would let the transaction make an object again that was made and removed since.
        let unchanged = match self.record {
            0 => Guard::Version { version: 0 },
            record => at_version(key(RECORD), record),
        };
        Transaction::new()
            .guard(unchanged)
            .guard(unclaimed())
            .change(WriteOp::SetKey { key: key(RECORD), value: inode.encode() })
    }
}

/// The object of an inode as it was read.
struct ReadInode {
    /// The inode, if there is one.
    loaded: Option<Loaded>,
    /// The version of the object.
    version: u64,
    /// The answers to further questions.
    answers: Vec<Answer>,
}

impl ReadInode {
    fn result(self) -> LookupResult {
        match self.loaded {
            Some(loaded) => LookupResult::Found(Box::new(loaded), self.answers),
            None => LookupResult::Missing(self.version),
        }
    }
}

/// The result of looking for an inode.
pub(crate) enum LookupResult {
    Found(Box<Loaded>, Vec<Answer>),
    /// No inode; the version of its object tells whether there was one.
    Missing(u64),
}

/// The number of reads by which an inode is read.
const INODE_READS: usize = 4;

/// Returns the reads by which an inode is read from its object.
pub(crate) fn inode_reads() -> [ReadOp; INODE_READS] {
    [
        ReadOp::versioned_key(key(RECORD)),
        ReadOp::Key { key: key(CLAIM) },
        ReadOp::versioned_key(key(MOVES)),
        ReadOp::Key { key: key(CHANGED) },
    ]
}

/// Returns the object of the namespace itself.
pub(crate) fn namespace_object() -> ObjectId {
    object(format!("{PREFIX}tree"))
}

/// Returns the object of a rank's log.
pub(crate) fn log_object(rank: u64) -> ObjectId {
    object(format!("{PREFIX}r/{rank:016x}"))
}

/// Returns the key of the object of the namespace by which a rank's log is found.
pub(crate) fn rank_key(rank: u64) -> nacre_object::Key {
    key_of([RANK_KEY, &rank.to_be_bytes()].concat())
}

/// Returns the guard that no intent has claimed the object.
pub(crate) fn unclaimed() -> Guard {
    Guard::Key { key: key(CLAIM), check: Check::Absent }
}

/// Returns the guard that a key was last set by the transaction of a version; 0: that it is not there.
pub(crate) fn at_version(name: nacre_object::Key, version: u64) -> Guard {
    Guard::KeyVersion { key: name, version }
}

pub(crate) fn nonsense() -> Error {
    StoreError::new(ErrorKind::Corrupt, "the store gave an answer that does not fit the question").into()
}

pub(crate) fn too_busy() -> Error {
    StoreError::new(ErrorKind::Busy, "others change the same again and again; try again").into()
}

pub(crate) fn corrupt(text: impl Into<String>) -> Error {
    StoreError::new(ErrorKind::Corrupt, text).into()
}

/// Returns the value of an answer about a versioned key.
pub(crate) fn versioned(answer: Option<&Answer>) -> Result<Option<&Versioned>> {
    match answer {
        Some(Answer::VersionedValue(value)) => Ok(value.as_ref()),
        _ => Err(nonsense()),
    }
}

fn number(bytes: &[u8]) -> Result<u64> {
    let bytes = bytes.try_into().map_err(|_| corrupt("a number of the namespace is not 8 bytes long"))?;
    Ok(u64::from_le_bytes(bytes))
}

fn encode_number(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_le_bytes())
}

impl Rank {
    /// Opens a rank on a store.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the store has no namespace, and none is to be created.
    pub async fn open(store: Arc<dyn ObjectStore>, options: RankOptions) -> Result<Rank> {
        let clock = options.clock.unwrap_or_else(|| Arc::new(now));
        let rank = Rank {
            store,
            clock,
            token: AtomicU64::new(0),
            exclusive: options.exclusive,
            ids: Default::default(),
            log: Default::default(),
            split_entries: options.split_entries.unwrap_or(SPLIT_ENTRIES).max(1),
            reserves: Default::default(),
            open: Default::default(),
            unmade: Default::default(),
            recent: Default::default(),
            unfinished: Default::default(),
        };
        rank.begin(options.create, &options.owner).await?;
        Ok(rank)
    }

    async fn begin(&self, create: bool, owner: &Credentials) -> Result<()> {
        let namespace = namespace_object();
        for _ in 0..ATTEMPTS_MAX {
            let format = ReadOp::versioned_key(key(FORMAT_KEY));
            let fence = ReadOp::versioned_key(key(FENCE_KEY));
            let done = self.read(&namespace, vec![format, fence]).await?;
            let fence = versioned(done.answers.get(1))?;
            let last = fence.map_or(Ok(0), |value| number(&value.value))?;
            match versioned(done.answers.first())? {
                Some(format) if format.value[..] != [FORMAT] => {
                    return Err(corrupt("the namespace has a format of another program"));
                }
                Some(_) if !self.exclusive => {
                    self.token.store(last, Ordering::Relaxed);
                    return self.create_root(create, owner).await;
                }
                Some(_) => {
                    let token = self.next_id().await?;
                    self.token.store(token, Ordering::Relaxed);
                    let transaction = Transaction::new()
                        .guard(at_version(key(FENCE_KEY), fence.map_or(0, |value| value.version)))
                        .change(WriteOp::SetKey { key: key(FENCE_KEY), value: encode_number(token) });
                    match self.change(&namespace, transaction).await {
                        Ok(true) => return self.create_root(create, owner).await,
                        Ok(false) | Err(Error::Fenced) => {}
                        Err(error) => return Err(error),
                    }
                }
                None if !create => return Err(Error::NotFound),
                None => {
                    let transaction = Transaction::new()
                        .guard(at_version(key(FORMAT_KEY), 0))
                        .change(WriteOp::SetKey { key: key(FORMAT_KEY), value: vec![FORMAT].into() })
                        .change(WriteOp::SetKey { key: key(IDS_KEY), value: encode_number(FIRST_ID) });
                    settled(self.change(&namespace, transaction).await)?;
                }
            }
        }
        Err(too_busy())
    }

    /// Makes the root directory, if there is none.
    async fn create_root(&self, create: bool, owner: &Credentials) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            match self.find(Ino::ROOT, Vec::new()).await? {
                LookupResult::Found(..) => return Ok(()),
                LookupResult::Missing(_) if !create => return Err(Error::NotFound),
                LookupResult::Missing(0) => {
                    let now = self.now();
                    let layout = Layout::default().within(self.store.limits().await?.fork_bytes_max);
                    let root = Inode {
                        kind: InodeKind::Directory,
                        mode: 0o755,
                        uid: owner.uid,
                        gid: owner.gid,
                        atime: now,
                        mtime: now,
                        ctime: now,
                        btime: now,
                        links: vec![Ino::ROOT.0],
                        size: 0,
                        layout,
                        content: 0,
                        contents: Vec::<Content>::new(),
                        parent: Ino::ROOT,
                        target: Bytes::new(),
                        quota: 0,
                        tree: 0,
                        is_split: false,
                    };
                    settled(self.create_inode(Ino::ROOT, &root).await)?;
                }
                LookupResult::Missing(_) => return Err(corrupt("the root directory was removed")),
            }
        }
        Err(too_busy())
    }

    /// Gives back what this rank has reserved of quotas, and removes its log, unless a call did not finish what it began, or a put was
    /// dropped: then others find it there. No call may be under way.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn close(&self) -> Result<()> {
        self.return_reserves().await;
        let mut log = self.log.lock().await;
        if let Some(number) = log.number
            && self.unfinished.load(Ordering::Relaxed) == 0
        {
            *log = Log::default();
            self.remove_log(number).await?;
        }
        Ok(())
    }

    async fn remove_log(&self, number: u64) -> Result<()> {
        let remove = Transaction::new().guard(Guard::Exists).change(WriteOp::Remove);
        self.change(&log_object(number), remove).await?;
        self.forget_log(number).await
    }

    /// Takes a log that was removed off the list of logs.
    pub(crate) async fn forget_log(&self, number: u64) -> Result<()> {
        let forget =
            Transaction::new().guard(Guard::Exists).change(WriteOp::RemoveKey { key: rank_key(number) });
        self.change(&namespace_object(), forget).await?;
        Ok(())
    }

    /// Returns the number of this rank's log, if it has one.
    pub(crate) async fn log_number(&self) -> Option<u64> {
        self.log.lock().await.number
    }

    /// Returns the present time in nanoseconds since 1970.
    pub fn now(&self) -> i64 {
        (self.clock)()
    }

    /// Returns the number by which this rank's changes pass fences; 0 if there was never an exclusive rank.
    pub fn token(&self) -> u64 {
        self.token.load(Ordering::Relaxed)
    }

    /// Reads from an object.
    pub(crate) async fn read(&self, object: &ObjectId, reads: Vec<ReadOp>) -> Result<Done> {
        let transaction = Transaction { reads, ..Transaction::default() };
        match self.store.apply(object, transaction).await? {
            Outcome::Done(done) => Ok(done),
            Outcome::Refused(_) => Err(nonsense()),
        }
    }

    /// Applies a transaction that changes something, unless this rank is fenced at the object.
    pub(crate) async fn apply(&self, object: &ObjectId, mut transaction: Transaction) -> Result<Outcome> {
        let token = self.token();
        let guard = transaction.guards.len();
        transaction.guards.push(Guard::Fence { token });
        if self.exclusive && token > 0 {
            // First of all, because a transaction may end with the removal of the object.
            transaction.writes.insert(0, WriteOp::RaiseFence { token });
        }
        match self.store.apply(object, transaction).await? {
            Outcome::Refused(refusal) if refusal.guard == guard => Err(Error::Fenced),
            outcome => Ok(outcome),
        }
    }

    /// Applies a transaction that changes something. Returns false if a guard did not hold.
    pub(crate) async fn change(&self, object: &ObjectId, transaction: Transaction) -> Result<bool> {
        Ok(matches!(self.apply(object, transaction).await?, Outcome::Done(_)))
    }

    /// Returns an id that is never given out again: for an inode, a link, a content or an intent.
    pub(crate) async fn next_id(&self) -> Result<u64> {
        let mut ids = self.ids.lock().await;
        for _ in 0..ATTEMPTS_MAX {
            if let Some(id) = ids.free.next() {
                return Ok(id);
            }
            let namespace = namespace_object();
            let done = self.read(&namespace, vec![ReadOp::versioned_key(key(IDS_KEY))]).await?;
            let next = versioned(done.answers.first())?.ok_or_else(|| corrupt("the namespace has no ids"))?;
            let begin = number(&next.value)?;
            let end = begin + ids.taken.clamp(IDS_MIN, IDS_MAX);
            // Not by `apply`: an id is of use to a rank that is fenced, which takes a new number.
            let transaction = Transaction::new()
                .guard(at_version(key(IDS_KEY), next.version))
                .change(WriteOp::SetKey { key: key(IDS_KEY), value: encode_number(end) });
            match self.store.apply(&namespace, transaction).await {
                Ok(Outcome::Done(_)) => {
                    ids.free = begin..end;
                    ids.taken += end - begin;
                }
                Ok(Outcome::Refused(_)) => {}
                // If it took effect, its ids are lost.
                Err(error) if error.kind == ErrorKind::Unknown => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(too_busy())
    }

    /// Looks for an inode, and asks further questions about its object. If an intent has claimed the object, it is
    /// brought to its end first: nobody sees one half of a change that spans objects. An inode whose number this rank has given out is
    /// found before it has an object, too.
    pub(crate) async fn find(&self, ino: Ino, further: Vec<ReadOp>) -> Result<LookupResult> {
        // In this order: a call that makes the inode in between forgets it when the object is there, and this call has seen it before.
        let unmade = self.unmade.get(ino);
        let mut read = self.read_inode(ino, further).await?;
        if read.loaded.is_none() && read.version == 0 {
            read.loaded = unmade.map(|inode| Loaded::unmade(ino, Inode::clone(&inode)));
        }
        Ok(read.result())
    }

    /// The same of an inode as its object has it.
    pub(crate) async fn find_made(&self, ino: Ino, further: Vec<ReadOp>) -> Result<LookupResult> {
        self.read_inode(ino, further).await.map(ReadInode::result)
    }

    async fn read_inode(&self, ino: Ino, further: Vec<ReadOp>) -> Result<ReadInode> {
        for _ in 0..ATTEMPTS_MAX {
            let mut reads = Vec::with_capacity(INODE_READS + further.len());
            reads.extend(inode_reads());
            reads.extend(further.iter().cloned());
            let mut done = self.read(&ino.object(), reads).await?;
            if done.answers.len() < INODE_READS + further.len() {
                return Err(nonsense());
            }
            if let Some(Answer::Value(Some(claim))) = done.answers.get(1) {
                self.help(Claim::decode(claim)?, &ino.object()).await?;
                continue;
            }
            let Some(record) = versioned(done.answers.first())? else {
                let answers = done.answers.split_off(INODE_READS);
                return Ok(ReadInode { loaded: None, version: done.version, answers });
            };
            let mut inode = Inode::decode(&record.value)?;
            if let Some(Answer::Value(Some(time))) = done.answers.get(3) {
                let time = decode_time(time).ok_or_else(nonsense)?;
                inode.mtime = time;
                inode.ctime = inode.ctime.max(time);
            }
            let loaded = Loaded {
                ino,
                inode,
                record: record.version,
                moves: versioned(done.answers.get(2))?.map_or(0, |value| value.version),
                version: done.version,
            };
            let (loaded, version, answers) =
                (Some(loaded), done.version, done.answers.split_off(INODE_READS));
            return Ok(ReadInode { loaded, version, answers });
        }
        Err(too_busy())
    }

    /// Loads an inode that should be there.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it was removed.
    pub(crate) async fn load(&self, ino: Ino) -> Result<Loaded> {
        match self.find(ino, Vec::new()).await? {
            LookupResult::Found(loaded, _) => Ok(*loaded),
            LookupResult::Missing(_) => Err(Error::NotFound),
        }
    }

    /// Makes an inode, unless there is one of that number or ever was.
    pub(crate) async fn create_inode(&self, ino: Ino, inode: &Inode) -> Result<bool> {
        let transaction = Transaction::new()
            .guard(Guard::Version { version: 0 })
            .change(WriteOp::SetKey { key: key(RECORD), value: inode.encode() });
        self.change(&ino.object(), transaction).await
    }

    /// Replaces the record of an inode on condition that nobody did so since it was loaded. Returns false if somebody
    /// did.
    pub(crate) async fn store_inode(&self, loaded: &Loaded, inode: &Inode) -> Result<bool> {
        self.change_inode(loaded, loaded.replacement(inode)).await
    }

    /// Applies a transaction that replaces the record of an inode and changes more of its object. Returns false if a guard did not hold.
    pub(crate) async fn change_inode(&self, loaded: &Loaded, transaction: Transaction) -> Result<bool> {
        let changed = self.change(&loaded.ino.object(), transaction).await?;
        if changed && !loaded.is_made() {
            self.unmade.forget(loaded.ino);
        }
        Ok(changed)
    }

    /// Changes the record of an inode, again and again until nobody else was faster.
    pub(crate) async fn update_inode(
        &self,
        ino: Ino,
        mut change: impl FnMut(&mut Inode) -> Result<()>,
    ) -> Result<Inode> {
        for _ in 0..ATTEMPTS_MAX {
            let loaded = self.load(ino).await?;
            let mut inode = loaded.inode.clone();
            change(&mut inode)?;
            if inode == loaded.inode || self.store_inode(&loaded, &inode).await? {
                return Ok(inode);
            }
        }
        Err(too_busy())
    }

    /// Returns what a method of an inode of a program's own type is called on, for a user who has the `wanted` rights.
    ///
    /// # Errors
    /// [`Error::Denied`], [`Error::NotFound`]; [`Error::Unsupported`] if the inode has no methods.
    pub async fn typed(&self, user: &Credentials, ino: Ino, wanted: u32) -> Result<Typed> {
        let inode = self.load(ino).await?.inode;
        user.check(&inode, wanted)?;
        let name = match inode.kind {
            InodeKind::Typed(name) => name,
            kind => {
                let text = format!("it is a {}, which has no methods", kind.name());
                return Err(Error::Unsupported(text.into()));
            }
        };
        let (object, token) = (ino.state_object(), self.token());
        let fence = (token > 0).then_some(token);
        // A sequencer's state has the fence of the metadata rank that hands out its positions.
        if name != SEQUENCER && self.exclusive && wanted & WRITE != 0 {
            let raise = Transaction::new().change(WriteOp::RaiseFence { token });
            self.change(&object, raise).await?;
        }
        Ok(Typed { name, object, fence })
    }

    /// Removes the state of an inode that is gone.
    pub(crate) async fn remove_state(&self, ino: Ino) -> Result<()> {
        // Not by `apply`: the state has a fence of its own. A metadata rank that has it in memory finds that it is gone, and
        // none makes it again, since it looks for the inode first.
        let remove = Transaction::new().guard(Guard::Exists).change(WriteOp::Remove);
        self.store.apply(&ino.state_object(), remove).await?;
        Ok(())
    }

    /// Writes down a note in this rank's log, unless it is there already. What others have to finish or undo if this
    /// rank goes away is found by it.
    pub(crate) async fn note(&self, name: Bytes, value: Bytes) -> Result<u64> {
        let mut log = self.log.lock().await;
        for _ in 0..ATTEMPTS_MAX {
            let number = match log.number {
                Some(number) => number,
                None => {
                    let number = self.begin_log().await?;
                    log.number = Some(number);
                    number
                }
            };
            if log.notes.contains(&name) {
                return Ok(number);
            }
            let mut transaction = Transaction::new()
                .guard(Guard::Exists)
                .change(WriteOp::SetKey { key: key_of(name.clone()), value: value.clone() });
            let stale = log.stale.len().min(STALE_MAX);
            for name in &log.stale[..stale] {
                transaction = transaction.change(WriteOp::RemoveKey { key: key_of(name.clone()) });
            }
            if self.change(&log_object(number), transaction).await? {
                log.stale.drain(..stale);
                log.notes.insert(name);
                return Ok(number);
            }
            // Somebody has finished this rank's work, because it seemed to have gone away. It goes on with a new log.
            *log = Log::default();
        }
        Err(too_busy())
    }

    /// Begins a log, and returns its number.
    async fn begin_log(&self) -> Result<u64> {
        for _ in 0..ATTEMPTS_MAX {
            let number = self.next_id().await?;
            // The name first: a log that nobody finds would be of no use.
            let register = Transaction::new()
                .guard(Guard::Exists)
                .change(WriteOp::SetKey { key: rank_key(number), value: encode_number(self.now() as u64) });
            self.change(&namespace_object(), register).await?;
            let create = Transaction::new()
                .guard(Guard::Version { version: 0 })
                .change(WriteOp::SetKey { key: key(b"n"), value: encode_number(number) });
            if self.change(&log_object(number), create).await? {
                return Ok(number);
            }
            // A check came by in between.
        }
        Err(too_busy())
    }

    /// Forgets a note, and what others wrote down about it: it is removed from the log later, together with others.
    pub(crate) async fn forget(&self, name: &Bytes, about: Option<Bytes>) {
        let mut log = self.log.lock().await;
        if log.notes.remove(name) {
            log.stale.push(name.clone());
            log.stale.extend(about);
        }
    }
}

/// Returns the time of the system's clock, in nanoseconds since 1970.
fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64)
}

/// Turns a lost reply to a change that may be tried again into one that had no effect: the caller looks.
pub(crate) fn settled(result: Result<bool>) -> Result<bool> {
    match result {
        Err(error) if error.is_unknown() => Ok(false),
        result => result,
    }
}
