//! One thread's recorder: it numbers directories and entries, and hands them on in batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::SyncSender;

use nacre_walk::lustre::Layout;
use nacre_walk::record::{Place, Recorder};
use nacre_walk::report::Sums;
use nacre_walk::{Directory, Entry, FileKind, Metadata, Opened, Operation, WalkError};
use rustix::io::Errno;

use crate::schema::{DIRECTORIES_MAX, NUMBER_BITS, nanoseconds};
use crate::since::{Earlier, Kept};
use crate::write::{Format, Shared, Writer};

/// The number of entries, and of bytes of names and lists of OSTs, at which a batch is handed on.
const BATCH_ENTRIES: usize = 1024;
const BATCH_BYTES: usize = 64 << 10;

/// An entry on its way to the writer.
#[derive(Debug)]
pub(crate) struct EntryRow {
    pub id: u64,
    name: (u32, u32),
    pub depth: u32,
    pub kind: FileKind,
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: i64,
    pub allocated: i64,
    pub atime: i64,
    pub mtime: i64,
    pub ctime: i64,
    pub device: i64,
    pub inode: i64,
    pub layout: Option<Box<Layout>>,
}

/// A directory on its way to the writer, once everything below it was visited.
#[derive(Debug)]
pub(crate) struct DirectoryRow {
    pub id: u64,
    pub parent: u64,
    pub name: Vec<u8>,
    pub root: u32,
    pub depth: u32,
    pub device: i64,
    pub inode: i64,
    pub mtime: i64,
    pub ctime: i64,
    pub complete: bool,
    pub entries: i64,
    pub apparent: i64,
    pub allocated: i64,
}

/// The entries that one thread met since it last handed something on.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub entries: Vec<EntryRow>,
    names: Vec<u8>,
    /// The number of OSTs in the layouts of all entries.
    osts: usize,
    pub directories: Vec<DirectoryRow>,
    pub errors: Vec<WalkError>,
    pub mount_points: Vec<Vec<u8>>,
    pub users: Vec<u32>,
    pub groups: Vec<u32>,
}

impl Batch {
    /// Returns the name of an entry; its whole path on the way into a Parquet file.
    pub fn name(&self, entry: &EntryRow) -> &[u8] {
        &self.names[entry.name.0 as usize..entry.name.1 as usize]
    }

    /// Returns the length of all names and lists of OSTs.
    pub fn bytes(&self) -> usize {
        self.names.len() + self.osts * size_of::<u32>()
    }

    /// Returns the entries without what else was met.
    pub fn only_entries(self) -> Batch {
        Batch { entries: self.entries, names: self.names, osts: self.osts, ..Batch::default() }
    }

    fn is_full(&self) -> bool {
        let others = self.directories.len() + self.errors.len() + self.mount_points.len();
        self.entries.len() + others >= BATCH_ENTRIES || self.bytes() >= BATCH_BYTES
    }
}

/// The state of a directory that is being walked.
struct Known {
    number: u64,
    /// The identity and times when it was opened; 0 for a device that could not be asked for.
    device: i64,
    inode: i64,
    mtime: i64,
    ctime: i64,
    entries: AtomicU32,
    incomplete: Arc<AtomicBool>,
    /// The entries that an earlier index holds of it.
    earlier: Option<Kept>,
}

/// The recorder of one thread.
#[derive(derive_more::Debug)]
#[debug("SweepRecorder")]
pub struct SweepRecorder {
    shared: Arc<Shared>,
    sender: SyncSender<Batch>,
    batch: Batch,
    /// True if entries are handed on with their whole paths.
    paths: bool,
    /// The owner and group of the last entry, which most others share.
    last: Option<(u32, u32)>,
    earlier: Option<Earlier>,
    /// The mark of the directory in which the next error is.
    failing: Option<Arc<AtomicBool>>,
    open: bool,
}

impl SweepRecorder {
    /// Creates the recorder of one thread. With an earlier index, what did not change is taken from it.
    pub fn new(writer: &Writer, earlier: Option<Earlier>) -> SweepRecorder {
        SweepRecorder {
            shared: Arc::clone(writer.shared()),
            sender: writer.sender(),
            batch: Batch::default(),
            paths: writer.format() == Format::Parquet,
            last: None,
            earlier,
            failing: None,
            open: true,
        }
    }

    fn hand_on(&mut self) -> bool {
        let batch = std::mem::take(&mut self.batch);
        self.last = None;
        // Whoever receives is gone only if it failed.
        self.open = self.open && self.sender.send(batch).is_ok();
        self.open
    }

    fn hand_on_if_full(&mut self) {
        if self.batch.is_full() {
            self.hand_on();
        }
    }
}

impl Recorder for SweepRecorder {
    fn enter(&mut self, directory: &Opened<'_, Sums>) -> Option<Place> {
        let number = self.shared.directories.fetch_add(1, Ordering::Relaxed) + 1;
        if number >= DIRECTORIES_MAX {
            self.shared.full.store(true, Ordering::Relaxed);
            self.shared.failed.store(true, Ordering::Relaxed);
            self.open = false;
        }
        // Asked before its entries are read: if it changes later, its time then is a later one than is kept here.
        let stat = directory.stat().ok();
        let times =
            stat.as_ref().map_or((0, 0), |stat| (nanoseconds(stat.modified()), nanoseconds(stat.changed())));
        let earlier = self.earlier.as_mut().and_then(|earlier| {
            let above = match directory.directory {
                None => 0,
                Some(parent) => parent.state().place::<Known>()?.earlier.as_ref()?.number,
            };
            earlier.directory(above, directory.name.to_bytes(), stat.as_ref()?)
        });
        Some(Box::new(Known {
            number,
            device: stat.as_ref().map_or(0, |stat| stat.device() as i64),
            inode: stat.as_ref().map_or(0, |stat| stat.inode() as i64),
            mtime: times.0,
            ctime: times.1,
            entries: AtomicU32::new(0),
            incomplete: Arc::new(AtomicBool::new(stat.is_none())),
            earlier,
        }))
    }

    fn metadata(&mut self, entry: &Entry<'_, Sums>) -> Result<Option<Metadata>, Errno> {
        let known = entry.directory.and_then(|directory| directory.state().place::<Known>());
        if let Some(earlier) = known.and_then(|known| known.earlier.as_ref())
            && let Some(metadata) = earlier.metadata(entry.name.to_bytes(), entry.kind, entry.inode)
        {
            return Ok(Some(metadata));
        }
        entry.stat().map(Some)
    }

    fn record(&mut self, entry: &Entry<'_, Sums>) {
        let Some(metadata) = entry.metadata else { return };
        let id = match entry.directory {
            None => self.shared.roots.fetch_add(1, Ordering::Relaxed),
            Some(directory) => {
                let Some(known) = directory.state().place::<Known>() else { return };
                known.number << NUMBER_BITS | u64::from(known.entries.fetch_add(1, Ordering::Relaxed))
            }
        };
        let (uid, gid) = (metadata.user(), metadata.group());
        if self.last != Some((uid, gid)) {
            self.last = Some((uid, gid));
            self.batch.users.push(uid);
            self.batch.groups.push(gid);
        }
        self.batch.osts += entry.layout.map_or(0, |layout| layout.osts.len());
        let begin = self.batch.names.len() as u32;
        match self.paths {
            true => entry.write_path(&mut self.batch.names),
            false => self.batch.names.extend_from_slice(entry.name.to_bytes()),
        }
        self.batch.entries.push(EntryRow {
            id,
            name: (begin, self.batch.names.len() as u32),
            depth: entry.depth,
            kind: entry.kind,
            mode: metadata.mode() & 0o7777,
            links: metadata.links(),
            uid,
            gid,
            size: i64::try_from(metadata.size()).unwrap_or(i64::MAX),
            allocated: i64::try_from(metadata.allocated()).unwrap_or(i64::MAX),
            atime: nanoseconds(metadata.accessed()),
            mtime: nanoseconds(metadata.modified()),
            ctime: nanoseconds(metadata.changed()),
            // The numbers are kept as they are; those beyond 2^63 appear as negative ones.
            device: metadata.device() as i64,
            inode: metadata.inode() as i64,
            layout: entry.layout.map(|layout| Box::new(layout.clone())),
        });
        self.hand_on_if_full();
    }

    fn pause(&mut self) -> bool {
        self.open
    }

    fn incomplete(&mut self, directory: &Directory<Sums>) {
        // What is wrong comes next.
        self.failing = directory.state().place::<Known>().map(|known| Arc::clone(&known.incomplete));
    }

    fn leave(&mut self, directory: &Directory<Sums>) {
        let Some(known) = directory.state().place::<Known>() else { return };
        let parent = directory.parent();
        let parent = parent.as_ref().and_then(|parent| parent.state().place::<Known>());
        let sums = directory.state().tally();
        self.batch.directories.push(DirectoryRow {
            id: known.number,
            parent: parent.map_or(0, |parent| parent.number),
            name: directory.name().to_bytes().to_vec(),
            root: directory.root(),
            depth: directory.depth(),
            device: known.device,
            inode: known.inode,
            mtime: known.mtime,
            ctime: known.ctime,
            complete: !known.incomplete.load(Ordering::Relaxed),
            entries: i64::try_from(sums.entries).unwrap_or(i64::MAX),
            apparent: i64::try_from(sums.apparent).unwrap_or(i64::MAX),
            allocated: i64::try_from(sums.allocated).unwrap_or(i64::MAX),
        });
        self.hand_on_if_full();
    }

    fn mount_point(&mut self, path: &[u8]) {
        self.failing = None;
        self.batch.mount_points.push(path.to_vec());
        self.hand_on_if_full();
    }

    fn failed(&mut self, error: &WalkError) {
        // The entry of a directory that cannot be opened is there; one without metadata is not.
        if let Some(incomplete) = self.failing.take()
            && matches!(error.operation, Operation::List | Operation::Stat)
        {
            incomplete.store(true, Ordering::Relaxed);
        }
        self.batch.errors.push(error.clone());
        self.hand_on_if_full();
    }

    fn flush(&mut self) -> bool {
        self.hand_on()
    }
}

#[cfg(test)]
mod tests {
    use nacre_walk::Time;

    use super::*;
    use crate::difference::compare;
    use crate::write::{Ending, Settings};

    const THEN: Time = Time { seconds: 1_700_000_000, nanoseconds: 0 };

    fn entry(batch: &mut Batch, directory: u64, number: u64, name: &str, kind: FileKind) {
        let begin = batch.names.len() as u32;
        batch.names.extend_from_slice(name.as_bytes());
        batch.entries.push(EntryRow {
            id: directory << NUMBER_BITS | number,
            name: (begin, batch.names.len() as u32),
            depth: 1,
            kind,
            mode: 0o755,
            links: 1,
            uid: 0,
            gid: 0,
            size: 0,
            allocated: 0,
            atime: 0,
            mtime: 0,
            ctime: 0,
            device: 1,
            inode: 7,
            layout: None,
        });
    }

    fn directory(id: u64, parent: u64, name: &str) -> DirectoryRow {
        DirectoryRow {
            id,
            parent,
            name: name.into(),
            root: 0,
            depth: 0,
            device: 1,
            inode: 7,
            mtime: 0,
            ctime: 0,
            complete: true,
            entries: 1,
            apparent: 0,
            allocated: 0,
        }
    }

    #[test]
    fn a_parquet_file_has_row_groups_of_bounded_size_and_knows_how_the_sweep_was() {
        use parquet::file::reader::{FileReader, SerializedFileReader};

        use crate::columns::GROUP_ROWS;

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sweep.parquet");
        let roots = vec![b"root".to_vec(), b"not \xff text".to_vec()];
        let flags = vec![("--name".to_owned(), "\"*.dat\"".to_owned())];
        let settings = Settings { roots, flags, whole: false, began: THEN, since: None, layouts: false };
        let writer = Writer::create(&path, &settings, 1).unwrap();
        let batches = GROUP_ROWS as u64 / 1000 + 3;
        for number in 0..batches {
            let mut batch = Batch::default();
            (0..1000)
                .for_each(|file| entry(&mut batch, 1, number * 1000 + file, "root/file", FileKind::File));
            batch.directories.push(directory(2 + number, 1, "file"));
            batch.mount_points.push(b"root/mounted".to_vec());
            writer.sender().send(batch).unwrap();
        }
        writer.finish(Ending::Complete, THEN).unwrap();
        let reader = SerializedFileReader::new(std::fs::File::open(&path).unwrap()).unwrap();
        let groups: Vec<i64> = reader.metadata().row_groups().iter().map(|group| group.num_rows()).collect();
        assert_eq!(groups.len(), 2);
        assert!(groups.iter().all(|rows| *rows <= GROUP_ROWS as i64));
        assert_eq!(groups.iter().sum::<i64>(), batches as i64 * 1000);
        let known = reader.metadata().file_metadata().key_value_metadata().unwrap();
        let value = |key: &str| {
            let known = known.iter().find(|known| known.key == format!("nacre.{key}")).unwrap();
            known.value.clone().unwrap()
        };
        assert_eq!((value("state"), value("whole")), ("complete".into(), "false".into()));
        assert_eq!(value("roots"), "root\nnot \\xff text");
        assert_eq!(value("flag --name"), "\"*.dat\"");
        assert_eq!(
            (value("began"), value("mount_points")),
            (nanoseconds(THEN).to_string(), batches.to_string())
        );
    }

    #[test]
    fn a_directory_that_was_listed_twice_costs_neither_the_sweep_nor_comparisons() {
        let folder = tempfile::tempdir().unwrap();
        // The directory "again" in the root, listed that many times, with one file.
        let sweep = |times: u64| {
            let path = folder.path().join(times.to_string());
            let roots = vec![b"root".to_vec()];
            let settings =
                Settings { roots, flags: Vec::new(), whole: true, began: THEN, since: None, layouts: false };
            let writer = Writer::create(&path, &settings, 1).unwrap();
            let mut batch = Batch::default();
            entry(&mut batch, 0, 0, "root", FileKind::Directory);
            batch.directories.push(directory(1, 0, "root"));
            for number in 0..times {
                entry(&mut batch, 1, number, "again", FileKind::Directory);
                entry(&mut batch, 2 + number, 0, "file", FileKind::File);
                batch.directories.push(directory(2 + number, 1, "again"));
            }
            writer.sender().send(batch).unwrap();
            writer.finish(Ending::Complete, THEN).unwrap();
            path
        };
        let [none, once, twice] = [0, 1, 2].map(sweep);
        for (old, new) in [(&once, &twice), (&twice, &once), (&twice, &twice)] {
            let counts = compare(old, new, &mut |changed| panic!("{changed:?}")).unwrap();
            assert!(counts.is_same() && counts.unknown == 0, "{counts:?}");
        }
        let removed = compare(&twice, &none, &mut |_| true).unwrap();
        let created = compare(&none, &twice, &mut |_| true).unwrap();
        assert_eq!((removed.removed, created.created), (2, 2));
    }
}
