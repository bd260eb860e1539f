//! A simulated disk: synced bytes survive a crash, the others may be lost, kept, or torn.
//!
//! The seed decides everything, so that a failing run can be repeated. Each file has two images, the live one
//! that the store reads and writes (a page cache), and the durable one, and a list of pending writes from
//! the one to the other. At a crash each pending write is kept, lost, or torn at the borders of 512-byte sectors, and
//! a prefix of the pending changes of names is kept.
//!
//! A failed sync behaves as on Linux: what it could not write still counts as written. The live image keeps it, nothing
//! is pending any more, and a later sync succeeds without it. The same happens when the system writes a file back on
//! its own and fails ([`Faults::writeback_error_at`]); then the next sync of the file reports it, once. This outlives
//! the process ([`SimDisk::after_kill`]); a loss of power ends it, and the unwritten bytes are gone.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::disk::{Disk, DiskFile, Volume};

const SECTOR_BYTES: usize = 512;

/// The faults of a disk, each at the number of an operation that changes or syncs something, counted from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The operation during which the power goes off: it and all later ones fail.
    pub crash_at: Option<u64>,
    /// The operation that fails, with an effect as uncertain as after a crash.
    pub error_at: Option<u64>,
    /// The operation at which the system writes back the pending bytes of some file, and fails.
    pub writeback_error_at: Option<u64>,
    /// Bytes that fit on the disk.
    pub capacity_bytes: Option<u64>,
}

/// A kind of operation, for [`SimDisk::set_hook`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// [`Disk::create`].
    Create,
    /// [`Disk::rename`]; the hook gets the new name.
    Rename,
    /// [`Disk::remove`].
    Remove,
    /// [`Disk::sync_names`]; the hook gets an empty name.
    SyncNames,
    /// [`DiskFile::write_at`].
    Write,
    /// [`DiskFile::sync`].
    Sync,
    /// [`DiskFile::set_size`].
    SetSize,
}

/// The moment at which a hook is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Before the operation has its effect.
    Before,
    /// After the operation, and before the store gets its result.
    After,
}

/// A function that is called around operations, on the thread that makes them: to hold one open, or to let other
/// threads run. The name is the file's name at that moment.
pub type Hook = Arc<dyn Fn(Moment, Operation, &str) + Send + Sync>;

/// A simulated disk.
#[derive(derive_more::Debug)]
#[debug("SimDisk")]
pub struct SimDisk {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    hook: RwLock<Option<Hook>>,
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

#[derive(Clone, Default)]
struct FileState {
    live: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<(usize, Vec<u8>)>,
    /// True if write-back failed and no sync has reported it yet.
    unreported: bool,
}

#[derive(Clone)]
enum NameChange {
    Create(String, usize),
    /// The old name, the new one, and the file.
    Rename(String, String, usize),
    Remove(String),
}

fn change_names(names: &mut BTreeMap<String, usize>, change: &NameChange) {
    match change {
        NameChange::Create(name, file) => {
            names.insert(name.clone(), *file);
        }
        NameChange::Rename(from, to, file) => {
            // Whatever became of earlier changes, a file never has two names: no journal leaves it with both.
            names.retain(|name, other| name != from && other != file);
            names.insert(to.clone(), *file);
        }
        NameChange::Remove(name) => {
            names.remove(name);
        }
    }
}

impl FileState {
    fn zeros(bytes: usize) -> Self {
        let image = vec![0; bytes];
        Self { live: image.clone(), durable: image, ..Self::default() }
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        write_into(&mut self.live, offset, bytes);
        self.pending.push((offset, bytes.to_vec()));
    }

    /// Extends the file with zeros, or truncates it; pending writes beyond its end are dropped.
    fn cut(&mut self, bytes: usize) {
        self.live.resize(bytes, 0);
        for (offset, data) in &mut self.pending {
            data.truncate(bytes.saturating_sub(*offset));
        }
        self.pending.retain(|(_, data)| !data.is_empty());
    }

    /// Writes everything back to the durable image, and sets its size.
    fn write_back(&mut self) {
        for (offset, bytes) in self.pending.drain(..) {
            write_into(&mut self.durable, offset, &bytes);
        }
        self.durable.resize(self.live.len(), 0);
    }

    /// Writes some of the pending writes back to the durable image, sector by sector, and forgets the others.
    fn write_back_some(&mut self, rng: &mut SmallRng, chance: f64) {
        for (offset, bytes) in self.pending.drain(..) {
            let mut at = 0;
            while at < bytes.len() {
                let len = (SECTOR_BYTES - (offset + at) % SECTOR_BYTES).min(bytes.len() - at);
                if rng.random_bool(chance) {
                    write_into(&mut self.durable, offset + at, &bytes[at..at + len]);
                }
                at += len;
            }
        }
    }
}

/// Returns the chance of each pending sector to reach the device. It is the same for a whole failure: nothing,
/// everything, or each sector by chance.
fn chance(rng: &mut SmallRng) -> f64 {
    match rng.random_range(0..4) {
        0 => 0.0,
        1 => 1.0,
        2 => 0.5,
        _ => 0.9,
    }
}

impl State {
    fn new(seed: u64, faults: Faults) -> Self {
        Self {
            rng: SmallRng::seed_from_u64(seed),
            faults,
            operations: 0,
            crashed: false,
            files: Vec::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            pending_names: Vec::new(),
        }
    }

    /// Counts an operation; fails if the operation is to fail.
    fn operation(&mut self) -> io::Result<()> {
        self.operations += 1;
        if self.faults.crash_at == Some(self.operations) {
            self.crashed = true;
        }
        self.alive()?;
        if self.faults.writeback_error_at == Some(self.operations) {
            self.fail_writeback();
        }
        if self.faults.error_at == Some(self.operations) {
            return Err(io::Error::other("simulated I/O error"));
        }
        Ok(())
    }

    fn alive(&self) -> io::Result<()> {
        if self.crashed { Err(io::Error::other("the simulated power is off")) } else { Ok(()) }
    }

    fn fail_writeback(&mut self) {
        let dirty: Vec<usize> =
            (0..self.files.len()).filter(|file| !self.files[*file].pending.is_empty()).collect();
        if !dirty.is_empty() {
            let file = dirty[self.rng.random_range(0..dirty.len())];
            let chance = chance(&mut self.rng);
            self.files[file].write_back_some(&mut self.rng, chance);
            self.files[file].unreported = true;
        }
    }

    fn change(&mut self, change: NameChange) -> io::Result<()> {
        self.alive()?;
        change_names(&mut self.names, &change);
        self.pending_names.push(change);
        self.operation()
    }

    /// Returns the bytes of all files together.
    fn used_bytes(&self) -> u64 {
        self.names.values().map(|file| self.files[*file].live.len() as u64).sum()
    }

    /// Fails if the disk has no room for `bytes` more.
    fn take_space(&self, bytes: u64) -> io::Result<()> {
        match self.faults.capacity_bytes {
            Some(capacity) if bytes > 0 && self.used_bytes() + bytes > capacity => {
                Err(io::ErrorKind::StorageFull.into())
            }
            _ => Ok(()),
        }
    }

    fn sync(&mut self, file: usize) -> io::Result<()> {
        let result = self.operation();
        self.alive()?;
        if result.is_err() {
            let chance = chance(&mut self.rng);
            self.files[file].write_back_some(&mut self.rng, chance);
            return result;
        }
        let file = &mut self.files[file];
        file.write_back();
        if std::mem::take(&mut file.unreported) {
            return Err(io::Error::other("simulated I/O error of an earlier write-back"));
        }
        Ok(())
    }

    fn sync_names(&mut self) -> io::Result<()> {
        let result = self.operation();
        self.alive()?;
        let count = self.pending_names.len();
        let reached = if result.is_ok() { count } else { self.rng.random_range(0..=count) };
        for change in self.pending_names.drain(..).take(reached) {
            change_names(&mut self.durable_names, &change);
        }
        result
    }
}

fn write_into(image: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if image.len() < offset + bytes.len() {
        image.resize(offset + bytes.len(), 0);
    }
    image[offset..offset + bytes.len()].copy_from_slice(bytes);
}

impl SimDisk {
    /// Creates an empty disk.
    pub fn new(seed: u64, faults: Faults) -> Self {
        Self::with(State::new(seed, faults))
    }

    fn with(state: State) -> Self {
        Self { shared: Arc::new(Shared { state: Mutex::new(state), hook: RwLock::new(None) }) }
    }

    /// Sets the faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.shared.state.lock().faults = faults;
    }

    /// Sets a function that is called before and after every operation that changes or syncs something.
    pub fn set_hook(&self, hook: Hook) {
        *self.shared.hook.write() = Some(hook);
    }

    /// Returns the number of operations so far.
    pub fn operations(&self) -> u64 {
        self.shared.state.lock().operations
    }

    /// Returns whether the power went off.
    pub fn has_crashed(&self) -> bool {
        self.shared.state.lock().crashed
    }

    /// Returns the disk as the machine finds it after a crash at this moment. This one continues as if there had been
    /// none.
    pub fn after_crash(&self, faults: Faults) -> SimDisk {
        let mut state = self.shared.state.lock();
        let state = &mut *state;
        let mut fresh = State::new(state.rng.random(), faults);
        let kept = state.rng.random_range(0..=state.pending_names.len());
        let mut names = state.durable_names.clone();
        state.pending_names[..kept].iter().for_each(|change| change_names(&mut names, change));
        let chance = chance(&mut state.rng);
        for (name, index) in names {
            let file = &state.files[index];
            let mut file = FileState {
                durable: file.durable.clone(),
                pending: file.pending.clone(),
                ..FileState::default()
            };
            file.write_back_some(&mut state.rng, chance);
            file.live = file.durable.clone();
            fresh.names.insert(name, fresh.files.len());
            fresh.files.push(file);
        }
        fresh.durable_names = fresh.names.clone();
        Self::with(fresh)
    }

    /// Returns the disk as another process finds it after this one was killed: nothing written is lost, and nothing
    /// more of it is durable.
    pub fn after_kill(&self, faults: Faults) -> SimDisk {
        let mut state = self.shared.state.lock();
        let mut fresh = State::new(state.rng.random(), faults);
        let named = |change: &NameChange| match change {
            NameChange::Create(_, file) | NameChange::Rename(_, _, file) => Some(*file),
            NameChange::Remove(_) => None,
        };
        let mut reachable: Vec<usize> = state.pending_names.iter().filter_map(named).collect();
        reachable.extend(state.names.values().chain(state.durable_names.values()));
        fresh.files.resize_with(state.files.len(), FileState::default);
        reachable.sort_unstable();
        reachable.dedup();
        for index in reachable {
            let file = &mut fresh.files[index];
            *file = state.files[index].clone();
            // The system may have forgotten a file that nobody had open, and with it that there is something to report.
            file.unreported &= state.rng.random_bool(0.5);
        }
        fresh.names = state.names.clone();
        fresh.durable_names = state.durable_names.clone();
        fresh.pending_names = state.pending_names.clone();
        Self::with(fresh)
    }

    /// Flips a bit of a file.
    pub fn flip(&self, name: &str, byte: u64, bit: u8) {
        let mut state = self.shared.state.lock();
        let Some(index) = state.names.get(name).copied() else { return };
        let file = &mut state.files[index];
        let byte = byte as usize;
        let pending = file
            .pending
            .iter_mut()
            .filter_map(|(offset, bytes)| byte.checked_sub(*offset).and_then(|within| bytes.get_mut(within)));
        let images = [&mut file.live, &mut file.durable].into_iter().filter_map(|image| image.get_mut(byte));
        pending.chain(images).for_each(|byte| *byte ^= 1 << (bit % 8));
    }

    /// Returns a file's bytes.
    pub fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.shared.state.lock();
        state.names.get(name).map(|index| state.files[*index].live.clone())
    }
}

impl Shared {
    /// Makes an operation on an open file, with the hook around it.
    fn around_file<T>(
        &self,
        operation: Operation,
        file: usize,
        run: impl FnOnce(&mut State) -> io::Result<T>,
    ) -> io::Result<T> {
        // Files are renamed while they are open.
        let name =
            self.state.lock().names.iter().find(|(_, named)| **named == file).map(|(name, _)| name.clone());
        self.around(operation, name.as_deref().unwrap_or_default(), run)
    }

    /// Makes an operation, with the hook around it.
    fn around<T>(
        &self,
        operation: Operation,
        name: &str,
        run: impl FnOnce(&mut State) -> io::Result<T>,
    ) -> io::Result<T> {
        // Neither lock is held while the hook runs: it may wait, and use the disk.
        let hook = self.hook.read().clone();
        let call = |moment| {
            if let Some(hook) = &hook {
                hook(moment, operation, name);
            }
        };
        call(Moment::Before);
        let result = run(&mut self.state.lock());
        call(Moment::After);
        result
    }

    fn file(self: &Arc<Self>, file: usize) -> Arc<dyn DiskFile> {
        Arc::new(SimFile { shared: Arc::clone(self), file })
    }
}

impl Disk for SimDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let state = self.shared.state.lock();
        state.alive()?;
        let file = *state.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(self.shared.file(file))
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.shared.around(Operation::Create, name, |state| {
            state.alive()?;
            if state.names.contains_key(name) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            state.take_space(bytes)?;
            let file = state.files.len();
            state.files.push(FileState::zeros(bytes as usize));
            state.change(NameChange::Create(name.to_string(), file))?;
            Ok(file)
        })?;
        Ok(self.shared.file(file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.shared.around(Operation::Rename, to, |state| {
            let file = *state.names.get(from).ok_or(io::ErrorKind::NotFound)?;
            state.change(NameChange::Rename(from.to_string(), to.to_string(), file))
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.shared.around(Operation::Remove, name, |state| {
            if !state.names.contains_key(name) {
                return Err(io::ErrorKind::NotFound.into());
            }
            state.change(NameChange::Remove(name.to_string()))
        })
    }

    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let state = self.shared.state.lock();
        state.alive()?;
        let sizes =
            state.names.iter().map(|(name, file)| (name.clone(), state.files[*file].live.len() as u64));
        Ok(sizes.collect())
    }

    fn volume(&self) -> io::Result<Option<Volume>> {
        let state = self.shared.state.lock();
        Ok(state.faults.capacity_bytes.map(|total_bytes| Volume {
            total_bytes,
            available_bytes: total_bytes.saturating_sub(state.used_bytes()),
        }))
    }

    fn sync_names(&self) -> io::Result<()> {
        self.shared.around(Operation::SyncNames, "", State::sync_names)
    }
}

struct SimFile {
    shared: Arc<Shared>,
    file: usize,
}

impl DiskFile for SimFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let state = self.shared.state.lock();
        state.alive()?;
        let image = &state.files[self.file].live;
        let from = offset as usize;
        let bytes = image.get(from..from + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }

    fn write_at(&self, offset: u64, parts: &[Bytes]) -> io::Result<()> {
        self.shared.around_file(Operation::Write, self.file, |state| {
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
                state.files[self.file].write(offset, part);
                offset += part.len();
            }
            state.operation()
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.shared.around_file(Operation::Sync, self.file, |state| state.sync(self.file))
    }

    fn size(&self) -> io::Result<u64> {
        let state = self.shared.state.lock();
        state.alive()?;
        Ok(state.files[self.file].live.len() as u64)
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.shared.around_file(Operation::SetSize, self.file, |state| {
            state.alive()?;
            let old_bytes = state.files[self.file].live.len() as u64;
            state.take_space(bytes.saturating_sub(old_bytes))?;
            state.files[self.file].cut(bytes as usize);
            state.operation()?;
            // A size is metadata, which a journal keeps.
            state.files[self.file].durable.resize(bytes as usize, 0);
            Ok(())
        })
    }
}
