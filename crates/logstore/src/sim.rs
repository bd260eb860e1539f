//! A simulated disk: what was synced survives a crash, the rest may be lost, kept, or torn.
//!
//! Everything is decided by the seed, so that a failing run can be run again. Two images are kept: the live one, which
//! the store sees, and what is pending on its way to the durable one. At a crash each pending write is kept, lost, or
//! torn at the borders of 512-byte sectors, and of the pending changes of names a prefix is kept.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::disk::{Disk, DiskFile, Volume};

const SECTOR_BYTES: usize = 512;

/// What goes wrong, and when: the number of an operation that changes or syncs something, counted from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The power goes off during this operation: it and all later ones fail.
    pub crash_at: Option<u64>,
    /// This operation fails, and its effect is as uncertain as after a crash.
    pub error_at: Option<u64>,
    /// Bytes that fit on the disk.
    pub capacity_bytes: Option<u64>,
}

/// A simulated disk.
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

struct State {
    rng: SmallRng,
    faults: Faults,
    operations: u64,
    crashed: bool,
    files: Vec<FileState>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    pending_names: Vec<NameChange>,
}

#[derive(Default)]
struct FileState {
    live: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<(usize, Vec<u8>)>,
}

enum NameChange {
    Create(String, usize),
    Rename(String, String),
    Remove(String),
}

fn change_names(names: &mut BTreeMap<String, usize>, change: &NameChange) {
    match change {
        NameChange::Create(name, file) => {
            names.insert(name.clone(), *file);
        }
        NameChange::Rename(from, to) => {
            if let Some(file) = names.remove(from) {
                names.insert(to.clone(), file);
            }
        }
        NameChange::Remove(name) => {
            names.remove(name);
        }
    }
}

impl State {
    /// Counts an operation; an error if it fails. The caller makes its effect first, as far as it has one.
    fn operation(&mut self) -> io::Result<()> {
        self.operations += 1;
        if self.faults.crash_at == Some(self.operations) {
            self.crashed = true;
        }
        if self.faults.error_at == Some(self.operations) {
            return Err(io::Error::other("simulated I/O error"));
        }
        self.alive()
    }

    fn alive(&self) -> io::Result<()> {
        if self.crashed { Err(io::Error::other("the simulated power is off")) } else { Ok(()) }
    }

    fn change(&mut self, change: NameChange) -> io::Result<()> {
        if std::env::var("NACRE_SEED").is_ok() {
            match &change {
                NameChange::Create(a, _) => eprintln!("{} create {a}", self.operations),
                NameChange::Rename(a, b) => eprintln!("{} rename {a} {b}", self.operations),
                NameChange::Remove(a) => eprintln!("{} remove {a}", self.operations),
            }
        }
        self.alive()?;
        change_names(&mut self.names, &change);
        self.pending_names.push(change);
        self.operation()
    }

    /// Bytes of all files together.
    fn used_bytes(&self) -> u64 {
        self.names.values().map(|file| self.files[*file].live.len() as u64).sum()
    }

    /// An error if the disk has no room for so many bytes more.
    fn take_space(&self, bytes: u64) -> io::Result<()> {
        match self.faults.capacity_bytes {
            Some(capacity) if bytes > 0 && self.used_bytes() + bytes > capacity => {
                Err(io::ErrorKind::StorageFull.into())
            }
            _ => Ok(()),
        }
    }

    fn write(&mut self, file: usize, offset: usize, bytes: &[u8]) {
        let file = &mut self.files[file];
        write_into(&mut file.live, offset, bytes);
        file.pending.push((offset, bytes.to_vec()));
    }
}

fn write_into(image: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if image.len() < offset + bytes.len() {
        image.resize(offset + bytes.len(), 0);
    }
    image[offset..offset + bytes.len()].copy_from_slice(bytes);
}

impl SimDisk {
    /// An empty disk.
    pub fn new(seed: u64, faults: Faults) -> Self {
        let state = State {
            rng: SmallRng::seed_from_u64(seed),
            faults,
            operations: 0,
            crashed: false,
            files: Vec::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            pending_names: Vec::new(),
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Changes what goes wrong from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.state.lock().faults = faults;
    }

    /// How many operations there were.
    pub fn operations(&self) -> u64 {
        self.state.lock().operations
    }

    /// Whether the power went off.
    pub fn has_crashed(&self) -> bool {
        self.state.lock().crashed
    }

    /// The disk as the machine finds it after a crash that happens now.
    pub fn after_crash(&self, faults: Faults) -> SimDisk {
        let mut state = self.state.lock();
        let state = &mut *state;
        let seed = state.rng.random();
        let kept = state.rng.random_range(0..=state.pending_names.len());
        let mut names = state.durable_names.clone();
        state.pending_names[..kept].iter().for_each(|change| change_names(&mut names, change));
        // Whole crashes are of one temper: all lost, all kept, or each sector by chance.
        let chance = match state.rng.random_range(0..4) {
            0 => 0.0,
            1 => 1.0,
            2 => 0.5,
            _ => 0.9,
        };
        let disk = SimDisk::new(seed, faults);
        let mut fresh = disk.state.lock();
        for (name, index) in names {
            let file = &state.files[index];
            let mut image = file.durable.clone();
            for (offset, bytes) in &file.pending {
                let mut at = 0;
                while at < bytes.len() {
                    let len = (SECTOR_BYTES - (offset + at) % SECTOR_BYTES).min(bytes.len() - at);
                    if state.rng.random_bool(chance) {
                        write_into(&mut image, offset + at, &bytes[at..at + len]);
                    }
                    at += len;
                }
            }
            let index = fresh.files.len();
            fresh.files.push(FileState { live: image.clone(), durable: image, pending: Vec::new() });
            fresh.names.insert(name, index);
        }
        fresh.durable_names = fresh.names.clone();
        drop(fresh);
        disk
    }

    /// The disk as another process finds it after this one was killed: nothing written is lost.
    pub fn after_kill(&self, faults: Faults) -> SimDisk {
        let state = self.state.lock();
        let disk = SimDisk::new(state.operations, faults);
        let mut fresh = disk.state.lock();
        for (name, index) in &state.names {
            let image = state.files[*index].live.clone();
            let index = fresh.files.len();
            fresh.files.push(FileState { live: image.clone(), durable: image, pending: Vec::new() });
            fresh.names.insert(name.clone(), index);
        }
        fresh.durable_names = fresh.names.clone();
        drop(fresh);
        disk
    }

    /// Flips a bit of a file.
    pub fn flip(&self, name: &str, byte: u64, bit: u8) {
        let mut state = self.state.lock();
        let Some(index) = state.names.get(name).copied() else { return };
        let file = &mut state.files[index];
        for image in [&mut file.live, &mut file.durable] {
            if let Some(byte) = image.get_mut(byte as usize) {
                *byte ^= 1 << (bit % 8);
            }
        }
    }

    /// A file's bytes.
    pub fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state.lock();
        state.names.get(name).map(|index| state.files[*index].live.clone())
    }
}

impl Disk for SimDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let state = self.state.lock();
        state.alive()?;
        let file = *state.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(SimFile { state: Arc::clone(&self.state), file }))
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.state.lock();
        state.alive()?;
        if state.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.take_space(bytes)?;
        let file = state.files.len();
        let image = vec![0; bytes as usize];
        state.files.push(FileState { live: image.clone(), durable: image, pending: Vec::new() });
        state.change(NameChange::Create(name.to_string(), file))?;
        Ok(Arc::new(SimFile { state: Arc::clone(&self.state), file }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state.lock();
        if !state.names.contains_key(from) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.change(NameChange::Rename(from.to_string(), to.to_string()))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state.lock();
        if !state.names.contains_key(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.change(NameChange::Remove(name.to_string()))
    }

    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let state = self.state.lock();
        state.alive()?;
        let sizes =
            state.names.iter().map(|(name, file)| (name.clone(), state.files[*file].live.len() as u64));
        Ok(sizes.collect())
    }

    fn volume(&self) -> io::Result<Option<Volume>> {
        let state = self.state.lock();
        Ok(state.faults.capacity_bytes.map(|total_bytes| Volume {
            total_bytes,
            available_bytes: total_bytes.saturating_sub(state.used_bytes()),
        }))
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        state.operation()?;
        state.pending_names.clear();
        state.durable_names = state.names.clone();
        Ok(())
    }
}

struct SimFile {
    state: Arc<Mutex<State>>,
    file: usize,
}

impl DiskFile for SimFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let state = self.state.lock();
        state.alive()?;
        let image = &state.files[self.file].live;
        let from = offset as usize;
        let bytes = image.get(from..from + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }

    fn write_at(&self, offset: u64, parts: &[Bytes]) -> io::Result<()> {
        let mut state = self.state.lock();
        state.alive()?;
        let end = offset + parts.iter().map(|part| part.len() as u64).sum::<u64>();
        let old_bytes = state.files[self.file].live.len() as u64;
        state.take_space(end.saturating_sub(old_bytes))?;
        let mut offset = offset as usize;
        let failing = state.faults.error_at == Some(state.operations + 1);
        let cut = state.rng.random_range(0..=parts.len());
        for (index, part) in parts.iter().enumerate() {
            // A write that fails may still have got part of the way.
            if failing && index >= cut {
                break;
            }
            state.write(self.file, offset, part);
            offset += part.len();
        }
        state.operation()
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        state.operation()?;
        let file = &mut state.files[self.file];
        file.pending.clear();
        file.durable = file.live.clone();
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        let state = self.state.lock();
        state.alive()?;
        Ok(state.files[self.file].live.len() as u64)
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        state.alive()?;
        let old_bytes = state.files[self.file].live.len() as u64;
        state.take_space(bytes.saturating_sub(old_bytes))?;
        state.files[self.file].live.resize(bytes as usize, 0);
        state.operation()?;
        // A size is metadata, which a journal keeps.
        state.files[self.file].durable.resize(bytes as usize, 0);
        state.files[self.file].pending.retain(|(offset, data)| (offset + data.len()) as u64 <= bytes);
        Ok(())
    }
}
