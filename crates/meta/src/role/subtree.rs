//! The subtrees of a rank: directories that are placed at a rank ([`super::pin`]), each with the sequencers that were created in it
//! or below it.
//!
//! A sequencer belongs to the nearest placed directory above it; what counts is the directory in which its inode was created. A
//! rank needs nothing of this for a request. It is looked up for those who move load, in a bounded number of reads at a time.
//! What was looked up is remembered, also if the look is given up in the middle: the directory of a sequencer for good, as it never
//! changes, and the directories above until they are read again, the oldest first, since they may be renamed.

use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use nacre_object::limit::PAGE_ENTRIES_MAX;
use nacre_object::{
    Answer, ErrorKind, KeyRange, ObjectId, ObjectStore, Outcome, ReadOp, StoreError, Transaction,
};
use nacre_quantity::Escaped;

use super::pin;
use crate::directory::{Entry, entry_key};
use crate::fragment::{BOUNDS, Bounds, Fragment};
use crate::inode::{Ino, InodeKind, key};
use crate::place::RankNumber;

/// The most reads of one look, but for those of directories' entries.
const READS_MAX: usize = 4096;
/// The reads that are under way at a time.
const READS_AT_ONCE: usize = 64;
/// The reads after which what was read is remembered.
const READS_TOGETHER: usize = 4 * READS_AT_ONCE;
/// The most known directories that are read again at one look.
const READ_AGAIN_MAX: usize = 512;
/// The number of sequencers above which those that were not asked about are forgotten.
const SEQUENCERS_MAX: usize = 1 << 17;
/// The most directories that are remembered.
const DIRECTORIES_MAX: usize = 1 << 16;
/// The most pages of entries that are read for the names of directories: in one directory, and at one look.
const PAGES_MAX: usize = 64;
const PAGES_PER_LOOK_MAX: usize = 2 * PAGES_MAX;
/// The number of looks after which a name that was not found is looked for again.
const SEARCH_AGAIN: u64 = 64;
/// The most bytes of a path. What has a longer one is named by its object.
const PATH_BYTES_MAX: usize = 4096;

/// A directory that is placed at a rank, with sequencers of the rank that looked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subtree {
    /// The directory.
    pub directory: Ino,
    /// The rank at which it is placed.
    pub rank: RankNumber,
    /// Its present path, escaped as it is printed, or the name of its object if no path was found.
    pub name: String,
    /// Those of the sequencers that belong to it.
    pub sequencers: Vec<ObjectId>,
}

/// The result of a look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundSubtrees {
    /// The subtrees that are placed at the rank, and those of others to which some of the sequencers belong.
    pub subtrees: Vec<Subtree>,
    /// The sequencers of which the bound of reads left open where they belong.
    pub unknown: Vec<ObjectId>,
}

/// The knowledge of directories and sequencers from one look to the next.
#[derive(Debug, Default)]
pub struct Subtrees {
    /// The directories in which sequencers were created; `None` for one whose inode is gone.
    sequencers: HashMap<Ino, Option<Ino>>,
    directories: HashMap<Ino, Directory>,
    /// The number of looks.
    looks: u64,
}

/// What is known of a directory.
#[derive(Debug)]
struct Directory {
    /// The directory that it is in; `None` if it was removed.
    parent: Option<Ino>,
    /// The look at which that was read.
    read: u64,
    name: Name,
}

/// The name of a directory in the one that it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Name {
    Unknown,
    /// The object with the entry, and the name.
    Known(ObjectId, Bytes),
    /// It was not found, and is not looked for before this look.
    NotFound(u64),
}

/// The nearest placed directory above a sequencer.
#[derive(Clone, Copy)]
enum Nearest {
    Placed(Ino),
    /// There is none.
    Free,
    Unknown,
}

/// What a directory is called.
enum Path {
    Known(String),
    /// It has no path that could be found.
    None,
    /// It has yet to be looked for.
    Unknown,
}

impl Subtrees {
    /// Looks which of a rank's sequencers, the busiest of which come first, belong to placed directories, and which directories
    /// are placed at the rank.
    pub(super) async fn look(
        &mut self,
        store: &dyn ObjectStore,
        rank: RankNumber,
        sequencers: &[ObjectId],
    ) -> Result<FoundSubtrees, StoreError> {
        let placed = pin::all(store).await?;
        if placed.is_empty() {
            *self = Subtrees::default();
            return Ok(FoundSubtrees::default());
        }
        self.looks += 1;
        let mut left = READS_MAX;
        let asked: Vec<(&ObjectId, Ino)> =
            sequencers.iter().filter_map(|id| Some((id, Ino::of_state_object(id)?))).collect();
        self.read_sequencers(store, &asked, &mut left).await?;
        self.read_again(store, &mut left).await?;
        let above = asked.iter().filter_map(|(_, ino)| self.sequencers.get(ino).copied().flatten());
        let starts: Vec<Ino> = placed.keys().copied().chain(above).collect();
        self.read_directories(store, &starts, &mut left).await?;

        let mut found = FoundSubtrees::default();
        let mut members: BTreeMap<Ino, Vec<ObjectId>> = BTreeMap::new();
        let mut known = HashMap::new();
        for (id, ino) in asked {
            let nearest = match self.sequencers.get(&ino) {
                Some(Some(directory)) => self.nearest(&placed, &mut known, *directory),
                Some(None) => Nearest::Free,
                None => Nearest::Unknown,
            };
            match nearest {
                Nearest::Placed(directory) => members.entry(directory).or_default().push(id.clone()),
                Nearest::Free => {}
                Nearest::Unknown => found.unknown.push(id.clone()),
            }
        }
        let shown: Vec<(Ino, RankNumber)> = placed
            .into_iter()
            .filter(|(directory, at)| *at == rank || members.contains_key(directory))
            .collect();
        let directories: Vec<Ino> = shown.iter().map(|(directory, _)| *directory).collect();
        self.read_names(store, &directories, &mut left).await?;
        for (directory, rank) in shown {
            let sequencers = members.remove(&directory).unwrap_or_default();
            let name = match self.path(directory) {
                Path::Known(path) => path,
                // A pin is left behind by a directory that is removed.
                Path::None if sequencers.is_empty() => continue,
                Path::None => directory.object().to_string(),
                // Rules about it go by its path.
                Path::Unknown => {
                    found.unknown.extend(sequencers);
                    continue;
                }
            };
            found.subtrees.push(Subtree { directory, rank, name, sequencers });
        }
        Ok(found)
    }

    /// Reads in which directories sequencers were created. Where too many are known, those that were not asked about are forgotten.
    async fn read_sequencers(
        &mut self,
        store: &dyn ObjectStore,
        asked: &[(&ObjectId, Ino)],
        left: &mut usize,
    ) -> Result<(), StoreError> {
        if self.sequencers.len() >= SEQUENCERS_MAX {
            let live: HashSet<Ino> = asked.iter().map(|(_, ino)| *ino).collect();
            self.sequencers.retain(|ino, _| live.contains(ino));
        }
        let missing = asked.iter().map(|(_, ino)| *ino).filter(|ino| !self.sequencers.contains_key(ino));
        // Where others are busy each time, there is something left for the directories of those that are known.
        let missing: Vec<Ino> = missing.take(*left - *left / 4).collect();
        *left -= missing.len();
        for part in missing.chunks(READS_TOGETHER) {
            self.sequencers.extend(parents(store, part.to_vec()).await?);
        }
        Ok(())
    }

    /// Reads again where known directories are, those first of which that is known for the longest time.
    async fn read_again(&mut self, store: &dyn ObjectStore, left: &mut usize) -> Result<(), StoreError> {
        let mut known: Vec<(u64, Ino)> =
            self.directories.iter().map(|(ino, directory)| (directory.read, *ino)).collect();
        known.sort_unstable();
        // The other half is for those that are not known yet.
        known.truncate(READ_AGAIN_MAX.min(*left / 2));
        *left -= known.len();
        for part in known.chunks(READS_TOGETHER) {
            for (ino, parent) in parents(store, part.iter().map(|(_, ino)| *ino).collect()).await? {
                if let Some(directory) = self.directories.get_mut(&ino) {
                    if directory.parent != parent {
                        directory.name = Name::Unknown;
                    }
                    (directory.parent, directory.read) = (parent, self.looks);
                }
            }
        }
        Ok(())
    }

    /// Reads where directories are, and those above them, and forgets all others.
    async fn read_directories(
        &mut self,
        store: &dyn ObjectStore,
        starts: &[Ino],
        left: &mut usize,
    ) -> Result<(), StoreError> {
        let (mut needed, mut next) = (HashSet::new(), starts.to_vec());
        while !next.is_empty() {
            let mut missing = Vec::new();
            for mut at in next {
                while at != Ino::ROOT && needed.insert(at) {
                    match self.directories.get(&at) {
                        Some(Directory { parent: Some(parent), .. }) => at = *parent,
                        Some(_) => break,
                        None => {
                            missing.push(at);
                            break;
                        }
                    }
                }
            }
            missing.truncate((*left).min(DIRECTORIES_MAX.saturating_sub(self.directories.len())));
            *left -= missing.len();
            for part in missing.chunks(READS_TOGETHER) {
                for (ino, parent) in parents(store, part.to_vec()).await? {
                    let directory = Directory { parent, read: self.looks, name: Name::Unknown };
                    self.directories.insert(ino, directory);
                }
            }
            next = missing.iter().filter_map(|ino| self.directories.get(ino)?.parent).collect();
        }
        self.directories.retain(|ino, _| needed.contains(ino));
        Ok(())
    }

    /// Returns the nearest placed directory at or above a directory. `known` is what was found of others, to which this is added.
    fn nearest(
        &self,
        placed: &BTreeMap<Ino, RankNumber>,
        known: &mut HashMap<Ino, Nearest>,
        directory: Ino,
    ) -> Nearest {
        let (mut at, mut passed) = (directory, Vec::new());
        let nearest = loop {
            if let Some(nearest) = known.get(&at) {
                break *nearest;
            }
            if placed.contains_key(&at) {
                break Nearest::Placed(at);
            }
            passed.push(at);
            // Only a damaged namespace has more above it than there are directories.
            if at == Ino::ROOT || passed.len() > self.directories.len() + 1 {
                break Nearest::Free;
            }
            match self.directories.get(&at) {
                Some(Directory { parent: Some(parent), .. }) => at = *parent,
                Some(_) => break Nearest::Free,
                None => break Nearest::Unknown,
            }
        };
        known.extend(passed.into_iter().map(|directory| (directory, nearest)));
        nearest
    }

    /// Learns the names of directories and of all above them: those that are known are looked at again, and the others are
    /// looked for.
    async fn read_names(
        &mut self,
        store: &dyn ObjectStore,
        directories: &[Ino],
        left: &mut usize,
    ) -> Result<(), StoreError> {
        let mut named: HashSet<Ino> = HashSet::new();
        for directory in directories {
            let mut at = *directory;
            while let Some(Directory { parent: Some(parent), .. }) = self.directories.get(&at)
                && named.insert(at)
            {
                at = *parent;
            }
        }
        let known = named.iter().filter_map(|ino| match &self.directories.get(ino)?.name {
            Name::Known(place, name) => Some((*ino, place.clone(), name.clone())),
            _ => None,
        });
        let known: Vec<(Ino, ObjectId, Bytes)> = known.take(*left).collect();
        *left -= known.len();
        let looks = known.into_iter().map(|(ino, place, name)| async move {
            let is_there = has_entry(store, place, name, ino).await?;
            Ok::<_, StoreError>((ino, is_there))
        });
        let looked: Vec<(Ino, bool)> =
            stream::iter(looks).buffer_unordered(READS_AT_ONCE).try_collect().await?;
        for (ino, _) in looked.into_iter().filter(|(_, is_there)| !is_there) {
            if let Some(directory) = self.directories.get_mut(&ino) {
                directory.name = Name::Unknown;
            }
        }
        let mut wanted: BTreeMap<Ino, HashSet<Ino>> = BTreeMap::new();
        for ino in named {
            let Some(Directory { parent: Some(parent), name, .. }) = self.directories.get(&ino) else {
                continue;
            };
            let is_wanted = match name {
                Name::Unknown => true,
                Name::Known(..) => false,
                Name::NotFound(until) => *until <= self.looks,
            };
            if is_wanted {
                wanted.entry(*parent).or_default().insert(ino);
            }
        }
        let mut pages = PAGES_PER_LOOK_MAX;
        for (parent, mut children) in wanted {
            if pages < PAGES_MAX {
                break;
            }
            for (ino, place, name) in search(store, parent, &mut children, &mut pages).await? {
                if let Some(directory) = self.directories.get_mut(&ino) {
                    directory.name = Name::Known(place, name);
                }
            }
            for ino in children {
                if let Some(directory) = self.directories.get_mut(&ino) {
                    directory.name = Name::NotFound(self.looks + SEARCH_AGAIN);
                }
            }
        }
        Ok(())
    }

    /// Returns the path of a directory.
    fn path(&self, directory: Ino) -> Path {
        let (mut at, mut names, mut len) = (directory, Vec::new(), 0);
        while at != Ino::ROOT {
            let (parent, name) = match self.directories.get(&at) {
                Some(Directory { parent: Some(parent), name: Name::Known(_, name), .. }) => (*parent, name),
                Some(Directory { parent: Some(_), name: Name::Unknown, .. }) | None => return Path::Unknown,
                Some(_) => return Path::None,
            };
            len += 1 + name.len();
            if len > PATH_BYTES_MAX {
                return Path::None;
            }
            names.push(name);
            at = parent;
        }
        let mut path = Vec::with_capacity(len);
        for name in names.into_iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        match path.is_empty() {
            true => Path::Known("/".to_owned()),
            false => Path::Known(Escaped(&path).to_string()),
        }
    }
}

/// Reads in which directories inodes are, or were created. One that cannot be read is taken for gone, as the check of the
/// namespace reports it.
async fn parents(store: &dyn ObjectStore, inodes: Vec<Ino>) -> Result<Vec<(Ino, Option<Ino>)>, StoreError> {
    let reads = inodes.into_iter().map(|ino| async move {
        match pin::parent(store, ino).await {
            Ok(parent) => Ok((ino, parent)),
            Err(error) if error.kind == ErrorKind::Corrupt => Ok((ino, None)),
            Err(error) => Err(error),
        }
    });
    stream::iter(reads).buffer_unordered(READS_AT_ONCE).try_collect().await
}

/// Returns whether an object has an entry of this name for an inode.
async fn has_entry(
    store: &dyn ObjectStore,
    place: ObjectId,
    name: Bytes,
    ino: Ino,
) -> Result<bool, StoreError> {
    let look = Transaction::new().read(ReadOp::Key { key: entry_key(&name) });
    let Outcome::Done(done) = store.apply(&place, look).await? else { return Ok(false) };
    let Some(Answer::Value(Some(entry))) = done.answers.into_iter().next() else { return Ok(false) };
    Ok(Entry::decode(&entry).is_ok_and(|entry| entry.ino == ino))
}

/// Looks for directories among the entries of the one that they are in. Returns those that it finds, which are taken from
/// `wanted`, each with the object of its entry and its name.
async fn search(
    store: &dyn ObjectStore,
    parent: Ino,
    wanted: &mut HashSet<Ino>,
    pages: &mut usize,
) -> Result<Vec<(Ino, ObjectId, Bytes)>, StoreError> {
    let (mut found, mut fragments) = (Vec::new(), vec![Fragment::first(parent)]);
    let mut left = PAGES_MAX;
    while let Some(fragment) = fragments.pop() {
        let object = fragment.object();
        let mut after = None;
        loop {
            if wanted.is_empty() || left == 0 {
                return Ok(found);
            }
            (left, *pages) = (left - 1, *pages - 1);
            let range = KeyRange { after: after.take(), ..KeyRange::prefix(&b"e"[..]) };
            let entries = ReadOp::Keys { range, limit: PAGE_ENTRIES_MAX as u32, values: true };
            let reads = Transaction::new().read(ReadOp::versioned_key(key(BOUNDS))).read(entries);
            let Outcome::Done(done) = store.apply(&object, reads).await? else { break };
            let (bounds, Some(Answer::Keys(page))) = (Bounds::of(done.answers.first()), done.answers.get(1))
            else {
                break;
            };
            for (name, value) in &page.entries {
                let Ok(entry) = Entry::decode(value) else { continue };
                if entry.kind == InodeKind::Directory && wanted.remove(&entry.ino) {
                    found.push((entry.ino, object.clone(), name.to_bytes().slice(1..)));
                }
            }
            match page.entries.last() {
                Some((last, _)) if page.more => after = Some(last.to_bytes()),
                _ => {
                    let below = bounds.into_iter().flat_map(|(bounds, _)| bounds.below(fragment.index));
                    fragments.extend(below.map(|index| Fragment { directory: parent, index }));
                    break;
                }
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nacre_object::testkit::MemoryStore;

    use super::*;
    use crate::attribute::Attributes;
    use crate::capability::Policy;
    use crate::credentials::Credentials;
    use crate::namespace::Creation;
    use crate::rank::{Rank, RankOptions};

    /// A namespace whose directories are split when they have few entries.
    struct Tree {
        store: Arc<MemoryStore>,
        rank: Rank,
        user: Credentials,
    }

    impl Tree {
        async fn new() -> Tree {
            let store = Arc::new(MemoryStore::new());
            let options = RankOptions { create: true, split_entries: Some(32), ..RankOptions::default() };
            let rank = Rank::open(store.clone(), options).await.unwrap();
            Tree { store, rank, user: Credentials::root() }
        }

        async fn make(&self, directory: Ino, name: &str, creation: Creation) -> Ino {
            let made: Attributes =
                self.rank.create(&self.user, directory, name.as_bytes(), creation).await.unwrap();
            made.ino
        }

        async fn directory(&self, above: Ino, name: &str) -> Ino {
            self.make(above, name, Creation::new(InodeKind::Directory, 0o755)).await
        }

        async fn sequencer(&self, directory: Ino, name: &str) -> ObjectId {
            let creation = Creation::sequencer(Policy::BestEffort, 0o644);
            self.make(directory, name, creation).await.state_object()
        }
    }

    fn shown(found: &FoundSubtrees) -> Vec<(&str, RankNumber, usize)> {
        let mut shown: Vec<_> =
            found.subtrees.iter().map(|one| (&*one.name, one.rank, one.sequencers.len())).collect();
        shown.sort_unstable();
        shown
    }

    #[tokio::test]
    async fn a_sequencer_belongs_to_the_nearest_placed_directory_above_it() {
        let tree = Tree::new().await;
        let jobs = tree.directory(Ino::ROOT, "jobs").await;
        let deep = tree.directory(jobs, "deep").await;
        let inner = tree.directory(deep, "inner").await;
        let home = tree.directory(Ino::ROOT, "home").await;
        let asked = [
            tree.sequencer(jobs, "a").await,
            tree.sequencer(inner, "b").await,
            tree.sequencer(home, "c").await,
            tree.sequencer(Ino::ROOT, "d").await,
            "nacre/sequencers/log".parse().unwrap(),
        ];
        let mut known = Subtrees::default();
        let none = known.look(&*tree.store, 0, &asked).await.unwrap();
        assert_eq!(none, FoundSubtrees::default());
        pin::set(&*tree.store, jobs, Some(0)).await.unwrap();
        pin::set(&*tree.store, home, Some(2)).await.unwrap();
        let found = known.look(&*tree.store, 0, &asked).await.unwrap();
        assert_eq!(shown(&found), [("/home", 2, 1), ("/jobs", 0, 2)]);
        let found = found.subtrees.into_iter().find(|one| one.directory == jobs).unwrap();
        assert_eq!(found.sequencers, asked[..2]);
        // A directory of its own below, which has nothing of this rank.
        pin::set(&*tree.store, inner, Some(0)).await.unwrap();
        let found = known.look(&*tree.store, 0, &asked[..1]).await.unwrap();
        assert_eq!(shown(&found), [("/jobs", 0, 1), ("/jobs/deep/inner", 0, 0)]);
        known.sequencers.extend((0..SEQUENCERS_MAX as u64).map(|number| (Ino((1 << 40) + number), None)));
        let found = known.look(&*tree.store, 0, &asked[..1]).await.unwrap();
        assert_eq!(shown(&found), [("/jobs", 0, 1), ("/jobs/deep/inner", 0, 0)]);
        assert_eq!(known.sequencers.len(), 1, "of too many, those that were not asked about are forgotten");
        // Of others, only those to which something belongs.
        let found = known.look(&*tree.store, 1, &asked[1..2]).await.unwrap();
        assert_eq!(shown(&found), [("/jobs/deep/inner", 0, 1)]);
        pin::set(&*tree.store, Ino::ROOT, Some(1)).await.unwrap();
        let found = known.look(&*tree.store, 1, &asked).await.unwrap();
        assert_eq!(
            shown(&found),
            [("/", 1, 1), ("/home", 2, 1), ("/jobs", 0, 1), ("/jobs/deep/inner", 0, 1)]
        );
        assert!(found.unknown.is_empty());
    }

    #[tokio::test]
    async fn a_directory_has_its_present_path_also_in_a_large_one() {
        let tree = Tree::new().await;
        let many = tree.directory(Ino::ROOT, "many").await;
        for number in 0..200 {
            tree.directory(many, &format!("other-{number}")).await;
        }
        let placed = tree.directory(many, "a b").await;
        let below = tree.directory(placed, "below").await;
        let asked = [tree.sequencer(below, "s").await];
        pin::set(&*tree.store, placed, Some(3)).await.unwrap();
        let mut known = Subtrees::default();
        let found = known.look(&*tree.store, 3, &asked).await.unwrap();
        assert_eq!(shown(&found), [("/many/a b", 3, 1)]);
        // Renamed where it is, moved elsewhere, and with what is above it.
        tree.rank.rename(&tree.user, (many, b"a b"), (many, b"c"), false).await.unwrap();
        let found = known.look(&*tree.store, 3, &asked).await.unwrap();
        assert_eq!(shown(&found), [("/many/c", 3, 1)]);
        tree.rank.rename(&tree.user, (Ino::ROOT, b"many"), (Ino::ROOT, b"few"), false).await.unwrap();
        tree.rank.rename(&tree.user, (many, b"c"), (Ino::ROOT, b"d"), false).await.unwrap();
        let found = known.look(&*tree.store, 3, &asked).await.unwrap();
        assert_eq!(shown(&found), [("/d", 3, 1)]);
        // Out of it, what is below belongs to nobody.
        tree.rank.rename(&tree.user, (placed, b"below"), (many, b"below"), false).await.unwrap();
        let found = known.look(&*tree.store, 3, &asked).await.unwrap();
        assert_eq!((shown(&found), found.unknown.len()), (vec![("/d", 3, 0)], 0));
    }

    #[tokio::test]
    async fn a_look_reads_no_more_than_its_bound_and_the_next_one_goes_on() {
        let tree = Tree::new().await;
        let jobs = tree.directory(Ino::ROOT, "jobs").await;
        let sequencer = tree.sequencer(jobs, "s").await;
        pin::set(&*tree.store, jobs, Some(0)).await.unwrap();
        // Inodes that are gone take a read as well, and the busiest come first.
        let gone = (0..READS_MAX as u64).map(|number| Ino((1 << 40) + number).state_object());
        let asked: Vec<ObjectId> = gone.chain([sequencer.clone()]).collect();
        let mut known = Subtrees::default();
        let found = known.look(&*tree.store, 0, &asked).await.unwrap();
        assert_eq!(found.unknown.len(), READS_MAX / 4 + 1);
        assert_eq!(found.unknown.last(), Some(&sequencer));
        assert_eq!(shown(&found), [("/jobs", 0, 0)], "some reads are kept for directories");
        let found = known.look(&*tree.store, 0, &asked).await.unwrap();
        assert_eq!((shown(&found), found.unknown.len()), (vec![("/jobs", 0, 1)], 0));
    }

    #[tokio::test]
    async fn a_pin_of_a_directory_that_is_gone_shows_nothing() {
        let tree = Tree::new().await;
        let jobs = tree.directory(Ino::ROOT, "jobs").await;
        pin::set(&*tree.store, jobs, Some(0)).await.unwrap();
        let mut known = Subtrees::default();
        assert_eq!(shown(&known.look(&*tree.store, 0, &[]).await.unwrap()), [("/jobs", 0, 0)]);
        tree.rank.rmdir(&tree.user, Ino::ROOT, b"jobs").await.unwrap();
        assert_eq!(known.look(&*tree.store, 0, &[]).await.unwrap(), FoundSubtrees::default());
    }
}
