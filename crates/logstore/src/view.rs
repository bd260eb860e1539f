//! A read-only view of a disk: changes are kept in memory, and the files behind it stay as they are.
//!
//! Opening and repairing a store fix and rename things. On a view of the disk both can be done to
//! learn what they would find. A write that changes nothing, such as rewriting unproven records on opening, takes no
//! memory.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::disk::{Disk, DiskFile, Source};

/// The number of bytes of a file that are compared at a time with those to be written to it.
const COMPARED_BYTES: usize = 64 << 10;

/// A view of a disk.
pub struct View {
    disk: Arc<dyn Disk>,
    names: Mutex<BTreeMap<String, Name>>,
}

/// The file of a name.
struct Name {
    /// The file's name on the disk behind; `None` if it is not there.
    origin: Option<String>,
    /// The file, once it was opened or made.
    file: Option<Arc<ViewFile>>,
    /// The file's size in bytes before that.
    bytes: u64,
}

struct ViewFile {
    /// The file on the disk behind, if it is there.
    file: Option<Arc<dyn DiskFile>>,
    changes: Mutex<Changes>,
}

/// The differences of a file from the one behind it.
struct Changes {
    bytes: u64,
    /// The length in bytes up to which the file behind shows.
    shown_bytes: u64,
    /// The writes in their order: offsets and bytes.
    pieces: Vec<(u64, Bytes)>,
}

impl View {
    /// Creates a view of a disk as it is now.
    pub fn new(disk: Arc<dyn Disk>) -> io::Result<Self> {
        let files = disk.list()?.into_iter();
        let names = files.map(|(name, bytes)| (name.clone(), Name { origin: Some(name), file: None, bytes }));
        Ok(Self { names: Mutex::new(names.collect()), disk })
    }
}

impl Disk for View {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut names = self.names.lock();
        let known = names.get_mut(name).ok_or(io::ErrorKind::NotFound)?;
        if let (None, Some(origin)) = (&known.file, &known.origin) {
            let file = self.disk.open(origin)?;
            known.file = Some(Arc::new(ViewFile::new(Some(file), known.bytes)));
        }
        let file = known.file.clone().ok_or(io::ErrorKind::NotFound)?;
        Ok(file)
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        let mut names = self.names.lock();
        if names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = Arc::new(ViewFile::new(None, bytes));
        names.insert(name.to_owned(), Name { origin: None, file: Some(file.clone()), bytes });
        Ok(file)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut names = self.names.lock();
        let known = names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        names.insert(to.to_owned(), known);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.names.lock().remove(name).map(|_| ()).ok_or(io::ErrorKind::NotFound.into())
    }

    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let names = self.names.lock();
        let bytes = |known: &Name| known.file.as_ref().map_or(known.bytes, |file| file.changes.lock().bytes);
        Ok(names.iter().map(|(name, known)| (name.clone(), bytes(known))).collect())
    }

    fn sync_names(&self) -> io::Result<()> {
        Ok(())
    }

    /// Describes the file that exists, not the name that it has in the view.
    fn describe(&self, name: &str) -> String {
        let names = self.names.lock();
        let origin = names.get(name).and_then(|known| known.origin.as_deref());
        self.disk.describe(origin.unwrap_or(name))
    }
}

impl ViewFile {
    fn new(file: Option<Arc<dyn DiskFile>>, bytes: u64) -> Self {
        let shown_bytes = if file.is_some() { bytes } else { 0 };
        Self { file, changes: Mutex::new(Changes { bytes, shown_bytes, pieces: Vec::new() }) }
    }

    /// Reads the underlying file with `read`, and puts the changes over it.
    fn read<T: Default>(
        &self,
        offset: u64,
        buffer: &mut [u8],
        read: impl FnOnce(&dyn DiskFile, &mut [u8]) -> io::Result<T>,
    ) -> io::Result<T> {
        let changes = self.changes.lock();
        let end = offset + buffer.len() as u64;
        if end > changes.bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let shown = (changes.shown_bytes.clamp(offset, end) - offset) as usize;
        let (behind, own) = buffer.split_at_mut(shown);
        own.fill(0);
        let result = match &self.file {
            Some(file) if shown > 0 => read(&**file, behind)?,
            _ => T::default(),
        };
        for (at, piece) in &changes.pieces {
            let (from, to) = (offset.max(*at), end.min(at + piece.len() as u64));
            if from < to {
                let target = &mut buffer[(from - offset) as usize..(to - offset) as usize];
                target.copy_from_slice(&piece[(from - at) as usize..(to - at) as usize]);
            }
        }
        Ok(result)
    }

    /// Returns whether the file holds these bytes already.
    fn holds(&self, offset: u64, bytes: &[u8]) -> bool {
        let mut buffer = vec![0; bytes.len().min(COMPARED_BYTES)];
        let mut at = offset;
        bytes.chunks(COMPARED_BYTES).all(|piece| {
            let found = &mut buffer[..piece.len()];
            let is_read = self.read_at(at, found).is_ok();
            at += piece.len() as u64;
            is_read && found == piece
        })
    }
}

impl DiskFile for ViewFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read(offset, buffer, |file, buffer| file.read_at(offset, buffer))
    }

    fn read_device(&self, offset: u64, buffer: &mut [u8]) -> io::Result<Source> {
        self.read(offset, buffer, |file, buffer| file.read_device(offset, buffer))
    }

    fn write_at(&self, offset: u64, parts: &[Bytes]) -> io::Result<()> {
        let mut at = offset;
        for part in parts.iter().filter(|part| !part.is_empty()) {
            if !self.holds(at, part) {
                let mut changes = self.changes.lock();
                changes.bytes = changes.bytes.max(at + part.len() as u64);
                changes.pieces.push((at, part.clone()));
            }
            at += part.len() as u64;
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.changes.lock().bytes)
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        let mut changes = self.changes.lock();
        changes.bytes = bytes;
        changes.shown_bytes = changes.shown_bytes.min(bytes);
        changes.pieces.retain_mut(|(at, piece)| {
            piece.truncate(bytes.saturating_sub(*at) as usize);
            !piece.is_empty()
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Faults, SimDisk};

    fn content(file: &Arc<dyn DiskFile>) -> Vec<u8> {
        let mut bytes = vec![0; file.size().unwrap() as usize];
        file.read_at(0, &mut bytes).unwrap();
        let mut device = vec![0; bytes.len()];
        file.read_device(0, &mut device).unwrap();
        assert_eq!(bytes, device);
        bytes
    }

    #[test]
    fn what_is_changed_in_a_view_is_seen_there_and_nowhere_else() {
        let disk = Arc::new(SimDisk::new(1, Faults::default()));
        let behind = disk.create("old", 8).unwrap();
        behind.write_at(0, &[Bytes::from_static(b"12345678")]).unwrap();
        let view = View::new(Arc::clone(&disk) as _).unwrap();
        let file = view.open("old").unwrap();
        file.write_at(1, &[Bytes::from_static(b"abc"), Bytes::new(), Bytes::from_static(b"d")]).unwrap();
        file.write_at(7, &[Bytes::from_static(b"xy")]).unwrap();
        file.write_at(2, &[Bytes::from_static(b"B")]).unwrap();
        assert_eq!(content(&file), b"1aBcd67xy");
        file.set_size(3).unwrap();
        file.set_size(5).unwrap();
        assert_eq!(content(&file), b"1aB\0\0");
        assert!(file.read_at(4, &mut [0; 2]).is_err());
        view.rename("old", "new").unwrap();
        assert_eq!(view.describe("new"), "old");
        assert!(view.open("old").is_err());
        let created = view.create("made", 2).unwrap();
        assert_eq!(content(&created), [0, 0]);
        assert!(view.create("new", 2).is_err());
        assert_eq!(view.list().unwrap(), [("made".to_owned(), 2), ("new".to_owned(), 5)]);
        view.remove("new").unwrap();
        assert!(view.remove("new").is_err());
        assert_eq!(disk.list().unwrap(), [("old".to_owned(), 8)]);
        assert_eq!(content(&disk.open("old").unwrap()), b"12345678");
    }

    #[test]
    fn writing_what_is_there_takes_no_memory() {
        let disk = Arc::new(SimDisk::new(1, Faults::default()));
        let bytes = Bytes::from(vec![7; 200_000]);
        disk.create("file", 200_000).unwrap().write_at(0, std::slice::from_ref(&bytes)).unwrap();
        let file = ViewFile::new(Some(disk.open("file").unwrap()), 200_000);
        file.write_at(0, &[bytes.slice(..70_000), bytes.slice(70_000..)]).unwrap();
        assert!(file.changes.lock().pieces.is_empty());
        file.write_at(1, &[bytes]).unwrap();
        assert_eq!(file.changes.lock().pieces.len(), 1);
    }
}
