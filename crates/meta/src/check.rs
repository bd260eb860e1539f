//! The check of a whole namespace, and the work that ranks left behind which went away.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use bytes::Bytes;
use nacre_object::{
    Answer, ByteRange, Escaped, Fork, Guard, Key, KeyRange, ObjectId, ReadOp, Transaction, WriteOp,
};

use crate::directory::{Entry, entry_key, gone_link};
use crate::error::{Error, Result};
use crate::fragment::{Bounds, Fragment, Place};
use crate::inode::{Content, Ino, Inode, InodeKind, LINKS_MAX, PREFIX};
use crate::intent::intent_of;
use crate::namespace::PAGE_ENTRIES_MAX;
use crate::rank::{
    ATTEMPTS_MAX, Loaded, LookupResult, RANK_KEY, Rank, at_version, log_object, namespace_object, nonsense,
    too_busy, unclaimed,
};

/// The number of times that a log is read before the rank is left alone that writes into it.
const RECOVERIES_MAX: usize = 16;
/// Stands for the version of a log that was removed.
const GONE: u64 = u64::MAX;

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The number of directories.
    pub directories: u64,
    /// The number of files that have names.
    pub files: u64,
    /// The number of other inodes.
    pub others: u64,
    /// The number of entries.
    pub entries: u64,
    /// The sum of the files' sizes in bytes.
    pub bytes: u64,
    /// The number of objects with content of files.
    pub objects: u64,
    /// Content that takes space and is no file's.
    pub unfinished: Vec<Unfinished>,
    /// The number of ranks that have logs: they are at work, or went away.
    pub ranks: u64,
    /// A defect, or something that was left behind.
    pub findings: Vec<Finding>,
    /// True if entries changed while the check was under way, so that it could not judge how inodes and entries fit.
    pub changed: bool,
}

impl Report {
    /// Returns whether nothing is wrong that was not repaired.
    pub fn is_clean(&self) -> bool {
        self.findings.iter().all(|finding| finding.repaired) && !self.changed
    }
}

/// Content that no reader sees: it is being put into a file or removed from one, or whoever did that was killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// The file, which has no name yet if it is new.
    pub ino: Ino,
    /// The number of the content.
    pub content: u64,
    /// The number of its objects.
    pub objects: u64,
    /// Their length in bytes.
    pub bytes: u64,
}

/// Something that is wrong with a namespace, or was left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The kind of defect.
    pub text: String,
    /// True if it was repaired.
    pub repaired: bool,
}

/// The name of an object of the namespace.
enum Named {
    Inode(Ino),
    Data { ino: Ino, content: u64, index: u64 },
    State(Ino),
    Fragment(Fragment),
    Quota(u64),
    Log,
    Namespace,
    Other,
}

fn named(object: &ObjectId) -> Option<Named> {
    let rest = object.as_bytes().strip_prefix(PREFIX.as_bytes())?;
    let Ok(rest) = std::str::from_utf8(rest) else { return Some(Named::Other) };
    if let Some(ino) = Ino::of_state_object(object) {
        return Some(Named::State(ino));
    }
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let mut parts = rest.split('/');
    Some(match (parts.next(), parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some("tree"), None, ..) => Named::Namespace,
        (Some("r"), Some(rank), None, ..) if hex(rank).is_some() => Named::Log,
        (Some("q"), Some(quota), None, ..) => hex(quota).map_or(Named::Other, Named::Quota),
        (Some("e"), Some(ino), Some(index), None, _) => match (hex(ino), hex(index)) {
            (Some(ino), Some(index)) if index != 0 => {
                Named::Fragment(Fragment { directory: Ino(ino), index })
            }
            _ => Named::Other,
        },
        (Some("i"), Some(ino), None, ..) => hex(ino).map_or(Named::Other, |ino| Named::Inode(Ino(ino))),
        (Some("d"), Some(ino), Some(content), Some(index), None) => {
            match (hex(ino), hex(content), hex(index)) {
                (Some(ino), Some(content), Some(index)) => Named::Data { ino: Ino(ino), content, index },
                _ => Named::Other,
            }
        }
        _ => Named::Other,
    })
}

impl Rank {
    /// Finishes or undoes what a rank that went away has left: its intents, links that have left a directory and not yet
    /// their inodes, and contents that were not put to their end. Then removes its log, and returns true. Nothing bad
    /// happens if it is at work after all: a call of it may fail as unknown, and if it writes into its log all the time,
    /// the log stays, and this returns false.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn recover(&self, rank: u64) -> Result<bool> {
        let log = log_object(rank);
        let mut finished = HashSet::new();
        for _ in 0..RECOVERIES_MAX {
            let Some((notes, version)) = self.whole_log(rank).await? else { continue };
            let notes: Vec<Key> = notes.into_iter().filter(|note| finished.insert(note.clone())).collect();
            if notes.is_empty() {
                // Only if nothing was added since: the claims of an intent mean nothing without it.
                let remove = Transaction::new()
                    .guard(Guard::Version { version })
                    .change(WriteOp::Create)
                    .change(WriteOp::Remove);
                let is_removed = version == GONE || self.change(&log, remove).await?;
                if is_removed {
                    self.forget_log(rank).await?;
                    return Ok(true);
                }
                continue;
            }
            // What is undecided is undone: whoever began it may have been told long ago that it failed.
            for claim in notes.iter().filter_map(|note| intent_of(rank, note)) {
                self.undo(claim).await?;
                self.drive(claim).await?;
            }
            for note in &notes {
                match note.as_bytes() {
                    [b'd', ino @ ..] => {
                        let ino = Ino(number(ino)?);
                        self.reap_directory(ino, false).await?;
                    }
                    [b'p', rest @ ..] if rest.len() == 16 => {
                        let (ino, content) = rest.split_at(8);
                        self.recover_put(Ino(number(ino)?), number(content)?).await?;
                    }
                    [b'u', rest @ ..] if rest.len() == 16 => {
                        let (ino, link) = rest.split_at(8);
                        self.drop_link(Ino(number(ino)?), number(link)?, None).await?;
                    }
                    _ => {}
                }
            }
        }
        Ok(false)
    }

    /// Adds the links that a rank's log names: they are on their way out, or those of files that have no name yet.
    async fn keep_noted(&self, rank: u64, kept: &mut HashSet<u64>) -> Result<()> {
        for _ in 0..RECOVERIES_MAX {
            let Some((notes, _)) = self.whole_log(rank).await? else { continue };
            for note in notes {
                if let [b'u', rest @ ..] = note.as_bytes()
                    && rest.len() == 16
                {
                    kept.insert(number(&rest[8..])?);
                }
            }
            return Ok(());
        }
        Ok(())
    }

    /// Reads the keys of all notes in a log as they stood at one version of it, which is [`GONE`] if the log was removed.
    /// `None` if it changed meanwhile.
    async fn whole_log(&self, rank: u64) -> Result<Option<(Vec<Key>, u64)>> {
        let mut notes: Vec<Key> = Vec::new();
        let (mut after, mut version) = (None, None);
        loop {
            let range = KeyRange { after, ..KeyRange::all() };
            let read = ReadOp::Keys { range, limit: PAGE_ENTRIES_MAX as u32, values: false };
            let done = self.read(&log_object(rank), vec![read]).await?;
            let now = if done.existed || done.version == 0 { done.version } else { GONE };
            if *version.get_or_insert(now) != now {
                return Ok(None);
            }
            let Some(Answer::Keys(page)) = done.answers.first() else { return Err(nonsense()) };
            let is_note = |key: &&Key| matches!(key.as_bytes(), [b'i' | b'd' | b'p' | b'u', ..]);
            notes.extend(page.entries.iter().map(|(key, _)| key).filter(is_note).cloned());
            after = page.entries.last().map(|(key, _)| key.to_bytes()).filter(|_| page.more);
            if after.is_none() {
                return Ok(Some((notes, now)));
            }
        }
    }

    /// Removes a content that was not put to its end, and those that it replaced if it was.
    async fn recover_put(&self, ino: Ino, content: u64) -> Result<()> {
        let inode = match self.find(ino, Vec::new()).await? {
            LookupResult::Found(loaded, _) => loaded.inode,
            LookupResult::Missing(_) => return Ok(()),
        };
        let is_left = |one: &&Content| one.dead || (one.number == content && inode.content != content);
        let left: Vec<Content> = inode.contents.iter().filter(is_left).copied().collect();
        self.remove_contents(ino, &left).await
    }

    /// Returns the ranks that have logs: those that are at work, and those that went away.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn ranks(&self) -> Result<Vec<u64>> {
        let mut ranks = Vec::new();
        let mut after = None;
        loop {
            let range = KeyRange { after, ..KeyRange::prefix(RANK_KEY) };
            let read = ReadOp::Keys { range, limit: PAGE_ENTRIES_MAX as u32, values: false };
            let done = self.read(&namespace_object(), vec![read]).await?;
            let Some(Answer::Keys(page)) = done.answers.first() else { return Err(nonsense()) };
            for (key, _) in &page.entries {
                ranks.push(number(&key.as_bytes()[RANK_KEY.len()..])?);
            }
            after = page.entries.last().map(|(key, _)| key.to_bytes()).filter(|_| page.more);
            if after.is_none() {
                return Ok(ranks);
            }
        }
    }

    /// Checks the whole namespace; with `repair`, also repairs defects and finishes what ranks left behind that went
    /// away. Keeps about 800 bytes in memory for each file.
    ///
    /// Others may be at work meanwhile: what looks wrong only because it changed is not reported, and nothing is repaired
    /// that is not certain to be wrong. A call of theirs may fail as unknown with `repair`.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn check(&self, repair: bool) -> Result<Report> {
        let mut report = Report::default();
        let own = self.log_number().await;
        let mut scan = Scan::default();
        for rank in self.ranks().await? {
            report.ranks += 1;
            self.keep_noted(rank, &mut scan.kept).await?;
            if repair && Some(rank) != own {
                report.ranks -= u64::from(self.recover(rank).await?);
            }
        }
        let mut after: Option<ObjectId> = Some(ObjectId::new(PREFIX)?);
        loop {
            let page = self.store.list(after.as_ref(), PAGE_ENTRIES_MAX).await?;
            let Some(last) = page.last().cloned() else { break };
            let mut is_end = false;
            for object in page {
                match named(&object) {
                    Some(Named::Inode(ino)) => scan.inodes.push(ino),
                    Some(Named::Data { ino, content, index }) => scan.data.push((ino, content, index)),
                    Some(Named::State(ino)) => scan.states.push(ino),
                    Some(Named::Fragment(fragment)) => scan.fragments.push(fragment),
                    Some(Named::Quota(quota)) => scan.quotas.push(quota),
                    Some(Named::Log | Named::Namespace) => {}
                    Some(Named::Other) => {
                        report.add(format!("object \"{object}\" is none of the namespace's"), false);
                    }
                    None => is_end = true,
                }
            }
            if is_end {
                break;
            }
            after = Some(last);
        }
        for ino in std::mem::take(&mut scan.inodes) {
            self.check_inode(ino, repair, &mut scan, &mut report).await?;
        }
        // Entries and inodes are judged together only if all directories stood still while they were read.
        for (fragment, version) in &scan.read {
            let done = self.read(&fragment.object(), Vec::new()).await?;
            report.changed |= done.version != *version;
        }
        if !report.changed {
            self.check_fragments(repair, &scan, &mut report).await?;
            self.check_links(repair, &mut scan, &mut report).await?;
        }
        self.check_data(repair, &scan, &mut report).await?;
        self.check_states(repair, &scan, &mut report).await?;
        if !report.changed {
            let roots = scan.loaded.iter().filter(|(_, loaded)| loaded.inode.is_quota_root());
            let roots: Vec<(Ino, u64)> = roots.map(|(ino, loaded)| (*ino, loaded.inode.tree)).collect();
            self.check_quotas(repair, own, &scan.quotas, &roots, &mut report).await?;
        }
        Ok(report)
    }

    async fn check_inode(&self, ino: Ino, repair: bool, scan: &mut Scan, report: &mut Report) -> Result<()> {
        let mut is_partial = false;
        for _ in 0..ATTEMPTS_MAX {
            // Finishes the intent that has claimed it, if one has.
            let LookupResult::Found(loaded, _) = self.find(ino, Vec::new()).await? else { return Ok(()) };
            if loaded.inode.kind == InodeKind::Directory {
                let Some(whole) = self.whole_directory(ino).await? else {
                    if is_partial {
                        // What is named there only must not be taken for lost.
                        report.add(format!("a part of directory {ino} is missing"), false);
                        report.changed = true;
                        return Ok(());
                    }
                    is_partial = true;
                    continue;
                };
                let WholeDirectory { entries, gone, read, wrong } = whole;
                if !gone.is_empty() {
                    let text = format!("{} removed entries of directory {ino} are left", gone.len());
                    if repair {
                        self.reap_directory(ino, false).await?;
                    }
                    report.add(text, repair);
                    if repair {
                        continue;
                    }
                    scan.kept.extend(gone);
                }
                scan.directories.insert(ino);
                scan.read.extend(read);
                report.directories += 1;
                for text in wrong {
                    report.add(text, false);
                }
                for (name, (entry, version)) in entries {
                    report.entries += 1;
                    scan.entries.entry(entry.ino).or_insert_with(|| Vec::with_capacity(1)).push(Found {
                        directory: ino,
                        name,
                        entry,
                        version,
                    });
                }
            } else if loaded.inode.links.is_empty() {
                if !self.open.lock().contains_key(&ino) {
                    report.add(format!("inode {ino} has no links left"), repair);
                    if repair {
                        self.drop_link(ino, 0, None).await?;
                        return Ok(());
                    }
                }
            } else if loaded.inode.kind == InodeKind::File {
                // A new file has a link that no directory has, until its content is complete.
                let has_name = !loaded.inode.links.iter().all(|link| scan.kept.contains(link));
                report.files += u64::from(has_name);
                report.bytes += loaded.inode.size;
            } else {
                report.others += 1;
            }
            let left = |one: &&Content| one.number != loaded.inode.content;
            let left: Vec<Content> = loaded.inode.contents.iter().filter(left).copied().collect();
            if !left.is_empty() {
                let text = format!(
                    "inode {ino} has {} contents that were replaced, or not put to their end",
                    left.len()
                );
                // While ranks are at work they may be putting them.
                let is_certain = repair && (report.ranks == 0 || left.iter().all(|content| content.dead));
                if is_certain {
                    self.remove_contents(ino, &left).await?;
                }
                if is_certain || report.ranks == 0 {
                    report.add(text, is_certain);
                }
            }
            scan.loaded.insert(ino, *loaded);
            return Ok(());
        }
        Err(too_busy())
    }

    /// Reads all entries of a directory, as they stood at one version of each of its fragments. `None` if one is missing, or the
    /// directory was removed.
    async fn whole_directory(&self, ino: Ino) -> Result<Option<WholeDirectory>> {
        let mut whole = WholeDirectory::default();
        let Some(found) = self.all_fragments(ino, &[]).await? else { return Ok(None) };
        for found in found {
            let version = self.whole_fragment(&found.place, &mut whole).await?;
            whole.read.insert(found.place.fragment, version);
        }
        Ok(Some(whole))
    }

    /// Reads all entries of a fragment, as they stood at one version of it, which is returned. It is none that the fragment can have
    /// if it has been claimed, or its bounds have changed, since it was looked for.
    async fn whole_fragment(&self, place: &Place, whole: &mut WholeDirectory) -> Result<u64> {
        let Place { fragment, bounds, .. } = place;
        'again: for _ in 0..ATTEMPTS_MAX {
            let (mut entries, mut gone, mut now) = (Vec::new(), Vec::new(), None);
            let mut is_claimed = false;
            let (mut after, mut version) = (None, None);
            loop {
                let range = KeyRange { after, ..KeyRange::all() };
                let read = ReadOp::VersionedKeys { range, limit: PAGE_ENTRIES_MAX as u32, values: true };
                let done = self.read(&fragment.object(), vec![read]).await?;
                if *version.get_or_insert(done.version) != done.version {
                    continue 'again;
                }
                let Some(Answer::VersionedKeys(page)) = done.answers.first() else { return Err(nonsense()) };
                for (key, value) in &page.entries {
                    match key.as_bytes() {
                        [b'e', ..] => {
                            let entry = Entry::decode(&value.value)?;
                            entries.push((key.to_bytes().slice(1..), (entry, value.version)));
                        }
                        [b'g', ..] => gone.extend(gone_link(key)),
                        [b'b'] => now = Some(Bounds::decode(&value.value)?),
                        [b'c'] => is_claimed = true,
                        _ => {}
                    }
                }
                after = page.entries.last().map(|(key, _)| key.to_bytes()).filter(|_| page.more);
                if after.is_some() {
                    continue;
                }
                // Entries that are being moved are in two places.
                if is_claimed || now.as_ref().is_some_and(|now| now != bounds) {
                    return Ok(u64::MAX);
                }
                for (name, _) in entries.iter().filter(|(name, _)| !bounds.holds(fragment.index, name)) {
                    let (shown, directory, index) = (Escaped(name), fragment.directory, fragment.index);
                    whole.wrong.push(format!(
                        "entry \"{shown}\" of directory {directory} is in part {index} of it, where it is not looked for"
                    ));
                }
                whole.entries.extend(entries);
                whole.gone.extend(gone);
                return Ok(done.version);
            }
        }
        Err(too_busy())
    }

    /// Checks that every fragment belongs to a directory.
    async fn check_fragments(&self, repair: bool, scan: &Scan, report: &mut Report) -> Result<()> {
        for &fragment in &scan.fragments {
            if scan.read.contains_key(&fragment) {
                continue;
            }
            // Ends or takes away the claim of an intent, if there is one.
            self.find_fragment(fragment, &[]).await?;
            // Read now: it may be newer than the list of objects, and then its directory has changed too.
            let known = self.all_fragments(fragment.directory, &[]).await?.unwrap_or_default();
            if known.iter().any(|found| found.place.fragment == fragment) {
                report.changed = true;
                continue;
            }
            let object = fragment.object();
            let keys = ReadOp::Keys { range: KeyRange::prefix(&b"e"[..]), limit: 1, values: false };
            let done = self.read(&object, vec![keys]).await?;
            let Some(Answer::Keys(page)) = done.answers.first() else { return Err(nonsense()) };
            if !done.existed {
                continue;
            }
            // What a split that did not begin has left holds nothing.
            let removed = repair && page.entries.is_empty() && {
                let remove = Transaction::new()
                    .guard(Guard::Version { version: done.version })
                    .guard(unclaimed())
                    .change(WriteOp::Remove);
                self.change(&object, remove).await?
            };
            report.add(format!("object \"{object}\" is part of no directory"), removed);
        }
        Ok(())
    }

    /// Checks that entries and inodes fit: every link of an inode is an entry, and every entry is a link.
    async fn check_links(&self, repair: bool, scan: &mut Scan, report: &mut Report) -> Result<()> {
        for (ino, found) in &scan.entries {
            for (place, Found { directory, name, entry, version }) in found.iter().enumerate() {
                let shown = Escaped(name);
                let Some(loaded) = scan.loaded.get(ino) else {
                    // A directory that is newer than the list of objects may hold what was moved there from others. One
                    // that was left to be made later holds nothing.
                    report.changed |= entry.kind == InodeKind::Directory
                        && matches!(self.find(*ino, Vec::new()).await?, LookupResult::Found(..));
                    match self.load_entry(*directory, entry).await? {
                        // It is made later, or is newer than the list of objects.
                        Some(loaded) if place == 0 => report.count(&loaded.inode),
                        Some(_) => {}
                        None => {
                            if self.has_entry_changed(*directory, name, *version).await? {
                                report.changed = true;
                                continue;
                            }
                            let text = format!("entry \"{shown}\" of directory {directory} has no inode");
                            let repaired = repair && self.remove_entry(*directory, name, *version).await?;
                            report.add(text, repaired);
                        }
                    }
                    continue;
                };
                let is_among = loaded.inode.links.contains(&entry.link);
                if !is_among && self.has_changed(loaded).await? {
                    report.changed = true;
                } else if !is_among {
                    let text =
                        format!("entry \"{shown}\" of directory {directory} is not among the links of {ino}");
                    // A record with more links could not be read any more. Those without entries go below, and leave room.
                    let has_room = loaded.inode.links.len() < LINKS_MAX;
                    let repaired = repair && has_room && {
                        let mut inode = loaded.inode.clone();
                        inode.links.push(entry.link);
                        self.store_inode(loaded, &inode).await?
                    };
                    report.add(text, repaired);
                }
                if loaded.inode.kind != entry.kind {
                    let text = format!(
                        "entry \"{shown}\" of directory {directory} is of another kind than its inode"
                    );
                    report.add(text, false);
                }
                if loaded.inode.kind == InodeKind::Directory && loaded.inode.parent != *directory {
                    let text = format!(
                        "directory {ino} is in {directory}, and says it is in {}",
                        loaded.inode.parent
                    );
                    report.add(text, false);
                }
            }
            let links: HashSet<u64> = found.iter().map(|found| found.entry.link).collect();
            if links.len() != found.len() {
                report.add(format!("inode {ino} has two entries for one link"), false);
            }
        }
        if report.changed {
            // Links may have entries that were not read.
            return Ok(());
        }
        // A put may have begun since the first look at the logs; it notes its link before it makes the inode.
        for rank in self.ranks().await? {
            self.keep_noted(rank, &mut scan.kept).await?;
        }
        for (ino, loaded) in &scan.loaded {
            if *ino == Ino::ROOT {
                continue;
            }
            let found = scan.entries.get(ino).map_or(&[][..], Vec::as_slice);
            for link in &loaded.inode.links {
                if found.iter().any(|found| found.entry.link == *link) || scan.kept.contains(link) {
                    continue;
                }
                if self.has_changed(loaded).await? {
                    report.changed = true;
                    continue;
                }
                // A link without an entry never gets one again.
                let is_directory = loaded.inode.kind == InodeKind::Directory;
                if repair && !is_directory {
                    self.drop_link(*ino, *link, None).await?;
                }
                report.add(format!("inode {ino} has a link without an entry"), repair && !is_directory);
            }
        }
        // Everything must be reached from the root: a directory in itself would not be.
        let mut reached = HashSet::from([Ino::ROOT]);
        let mut waiting = vec![Ino::ROOT];
        let mut below: HashMap<Ino, Vec<Ino>> = HashMap::new();
        for (ino, found) in &scan.entries {
            for found in found {
                below.entry(found.directory).or_default().push(*ino);
            }
        }
        while let Some(at) = waiting.pop() {
            for ino in below.get(&at).into_iter().flatten() {
                if reached.insert(*ino) {
                    waiting.push(*ino);
                }
            }
        }
        for directory in scan.directories.iter().filter(|ino| !reached.contains(ino)) {
            report.add(format!("directory {directory} is not reached from the root"), false);
        }
        Ok(())
    }

    /// Returns whether an inode is not as it was loaded any more.
    async fn has_changed(&self, loaded: &Loaded) -> Result<bool> {
        Ok(match self.find(loaded.ino, Vec::new()).await? {
            LookupResult::Found(now, _) => now.record != loaded.record,
            LookupResult::Missing(_) => true,
        })
    }

    /// Returns whether an entry is not as it was read any more.
    async fn has_entry_changed(&self, directory: Ino, name: &[u8], version: u64) -> Result<bool> {
        match self.look_at(directory, name).await {
            Ok(looked) => Ok(looked.entry.is_none_or(|(_, now)| now != version)),
            Err(Error::NotFound) => Ok(true),
            Err(error) => Err(error),
        }
    }

    async fn remove_entry(&self, directory: Ino, name: &[u8], version: u64) -> Result<bool> {
        let looked = match self.look_at(directory, name).await {
            Err(Error::NotFound) => return Ok(false),
            looked => looked?,
        };
        if looked.entry_version() != version {
            return Ok(false);
        }
        let place = &looked.place;
        let transaction = place
            .transaction(&looked.directory)
            .guard(at_version(entry_key(name), version))
            .change(WriteOp::RemoveKey { key: entry_key(name) });
        self.change(&place.fragment.object(), transaction).await
    }

    /// Checks that every object with content belongs to a content of a file.
    async fn check_data(&self, repair: bool, scan: &Scan, report: &mut Report) -> Result<()> {
        for &(ino, content, index) in &scan.data {
            // Read now: the object may be newer than the list.
            let (owned, present) = match self.find(ino, Vec::new()).await? {
                LookupResult::Found(loaded, _) => {
                    let has = |one: &Content| one.number == content && index < one.objects;
                    (loaded.inode.contents.iter().any(has), loaded.inode.content == content)
                }
                LookupResult::Missing(_) => (false, false),
            };
            if owned && present {
                report.objects += 1;
                continue;
            }
            let object = ino.data_object(content, index);
            let size = ReadOp::Extents { fork: Fork::DEFAULT, range: ByteRange::new(0, 0) };
            let done = self.read(&object, vec![size]).await?;
            if !done.existed {
                continue;
            }
            if owned {
                let Some(Answer::Range(read)) = done.answers.first() else { return Err(nonsense()) };
                report.add_unfinished(ino, content, read.size);
                continue;
            }
            if repair {
                let remove = Transaction::new().guard(Guard::Exists).change(WriteOp::Remove);
                self.change(&object, remove).await?;
            }
            report.add(format!("object \"{object}\" belongs to no content of a file"), repair);
        }
        Ok(())
    }

    /// Checks that every state belongs to an inode of a type that has one.
    async fn check_states(&self, repair: bool, scan: &Scan, report: &mut Report) -> Result<()> {
        for &ino in &scan.states {
            // Read now: the object may be newer than the list. No inode is ever made anew under its number.
            let owned = match self.find(ino, Vec::new()).await? {
                LookupResult::Found(loaded, _) => matches!(loaded.inode.kind, InodeKind::Typed(_)),
                LookupResult::Missing(_) => false,
            };
            let object = ino.state_object();
            if owned || !self.read(&object, Vec::new()).await?.existed {
                continue;
            }
            if repair {
                self.remove_state(ino).await?;
            }
            report.add(format!("object \"{object}\" is the state of no inode"), repair);
        }
        Ok(())
    }
}

#[derive(Default)]
struct Scan {
    inodes: Vec<Ino>,
    data: Vec<(Ino, u64, u64)>,
    states: Vec<Ino>,
    fragments: Vec<Fragment>,
    quotas: Vec<u64>,
    loaded: BTreeMap<Ino, Loaded>,
    directories: BTreeSet<Ino>,
    /// The fragments of directories, with the versions at which they were read.
    read: BTreeMap<Fragment, u64>,
    entries: BTreeMap<Ino, Vec<Found>>,
    /// Links without entries that logs or directories name.
    kept: HashSet<u64>,
}

/// A directory as it was read.
#[derive(Default)]
struct WholeDirectory {
    /// The entries, with the versions of their keys.
    entries: Vec<(Bytes, (Entry, u64))>,
    /// The links that have left it and not yet their inodes.
    gone: Vec<u64>,
    /// Its fragments, with the versions at which they were read.
    read: BTreeMap<Fragment, u64>,
    /// The entries that are where they are not found.
    wrong: Vec<String>,
}

struct Found {
    directory: Ino,
    name: Bytes,
    entry: Entry,
    version: u64,
}

impl Report {
    pub(crate) fn add(&mut self, text: String, repaired: bool) {
        self.findings.push(Finding { text, repaired });
    }

    /// Counts an inode that has a name.
    fn count(&mut self, inode: &Inode) {
        match inode.kind {
            InodeKind::File => {
                self.files += 1;
                self.bytes += inode.size;
            }
            InodeKind::Directory => self.directories += 1,
            _ => self.others += 1,
        }
    }

    /// Counts an object of a content that is not the present one of its file. Those of one content come one after another.
    fn add_unfinished(&mut self, ino: Ino, content: u64, bytes: u64) {
        match self.unfinished.last_mut() {
            Some(last) if (last.ino, last.content) == (ino, content) => {
                last.objects += 1;
                last.bytes += bytes;
            }
            _ => self.unfinished.push(Unfinished { ino, content, objects: 1, bytes }),
        }
    }
}

fn number(bytes: &[u8]) -> Result<u64> {
    Ok(u64::from_be_bytes(bytes.try_into().map_err(|_| nonsense())?))
}
