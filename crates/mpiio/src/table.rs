//! The files that this process has open, and those among them that are in atomic mode.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use nacre::lock::{BlockingFile, Datatype, Description, FileView};
use nacre_lock::{Pattern, PatternError};
use nacre_quantity::Escaped;

use crate::exchange::agreed;
use crate::failure::Failure;
use crate::file;
use crate::hint::Hints;
use crate::identity::{self, Identity};
use crate::mpi::{self, KeptStatus, MPI_Comm, MPI_File, MPI_Info, Mode};
use crate::party::{self, Party};
use crate::view::View;

/// A file that is open.
pub struct Open {
    /// Its handle.
    key: usize,
    /// Its path, absolute, so that it means the same later.
    path: PathBuf,
    /// The accesses that it was opened for.
    pub mode: Mode,
    /// The file's identity; known to the first of the processes that opened it.
    pub identity: Option<Result<Identity, String>>,
    /// The processes that opened it; none if not all of them have this library.
    pub party: Option<Party>,
    /// The hints about its locks, which hold in atomic mode.
    pub hints: Arc<Mutex<Hints>>,
    /// The sentence about a wrong hint that it was opened with, or a wrong variable of the environment. Its atomic mode cannot be set then.
    pub wrong_setting: Option<String>,
    atomic: RwLock<Option<Arc<Atomic>>>,
    /// The atomic mode that it was in last, whose writes may not be on the device yet.
    ended: Mutex<Option<Arc<Atomic>>>,
    /// True once processes have written each other's bytes, which all of them know.
    exchanged: Arc<AtomicBool>,
}

/// The state of a file in atomic mode.
pub struct Atomic {
    /// The processes that opened it.
    pub party: Party,
    /// The file by whose name its bytes are locked.
    pub locks: BlockingFile,
    /// The hints about its locks.
    pub hints: Arc<Mutex<Hints>>,
    /// The file itself.
    pub file: File,
    /// The accesses that it was opened for.
    pub mode: Mode,
    /// The individual pointer, in elementary types. The MPI library's own is put there when the atomic mode ends.
    pub pointer: Mutex<i64>,
    /// The view, once it has been asked for.
    pub view: Mutex<Option<Arc<View>>>,
    /// The result of the split collective operation that has begun.
    pub split: Mutex<Option<KeptStatus>>,
    /// True once processes have written each other's bytes.
    pub exchanged: Arc<AtomicBool>,
}

static FILES: RwLock<BTreeMap<usize, Arc<Open>>> = RwLock::new(BTreeMap::new());

/// The files in atomic mode.
static ATOMIC: Counts = Counts::new();

/// The number of [`Counts`], as the power of two.
const COUNTS_BITS: u32 = 8;

/// Counts of files by their handles. Where a file's count is zero it is not among them, so that nothing is looked up for it; where it is
/// not, it may be.
struct Counts([AtomicUsize; 1 << COUNTS_BITS]);

impl Counts {
    const fn new() -> Counts {
        Counts([const { AtomicUsize::new(0) }; 1 << COUNTS_BITS])
    }

    /// Returns the count of a file, which it may share with others. Handles are addresses of allocations, whose last bits are alike, or
    /// small numbers; the product has bits of all of theirs at its upper end.
    #[inline]
    fn of(&self, key: usize) -> &AtomicUsize {
        let mixed = (key as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.0[(mixed >> (u64::BITS - COUNTS_BITS)) as usize]
    }
}

/// Returns the guard of a lock that a panic of another thread leaves as it should be.
pub fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn key(file: MPI_File) -> usize {
    file as usize
}

/// Notes that a file was opened, and returns it. Collective over the processes of the communicator.
pub fn opened(file: MPI_File, name: &CStr, mode: Mode, communicator: MPI_Comm, info: MPI_Info) -> Arc<Open> {
    let path = identity::path(Path::new(OsStr::from_bytes(name.to_bytes())));
    // What is wrong with a communicator by which a file was opened shows in atomic mode, which cannot be set then.
    let party = Party::of(communicator).ok().flatten();
    let identity = party.is_some_and(|party| party.rank == 0).then(|| identity::of_path(&path));
    let path = std::path::absolute(&path).unwrap_or(path);
    let (hints, wrong_hint) = match Hints::default().with(info) {
        Ok(hints) => (Arc::new(Mutex::new(hints)), None),
        Err(sentence) => (Arc::default(), Some(sentence)),
    };
    let wrong_setting =
        wrong_hint.or_else(|| party::wait().err()).or_else(|| crate::mode::is_initial().err());
    let (atomic, ended, exchanged) = (RwLock::new(None), Mutex::default(), Arc::default());
    let key = key(file);
    let open =
        Arc::new(Open { key, path, mode, identity, party, hints, wrong_setting, atomic, ended, exchanged });
    let mut files = FILES.write().unwrap_or_else(|poisoned| poisoned.into_inner());
    files.insert(key, open.clone());
    open
}

/// Notes that a file is being closed. Returns the processes that opened it.
pub fn closed(file: MPI_File) -> Option<Party> {
    let mut files = FILES.write().unwrap_or_else(|poisoned| poisoned.into_inner());
    let open = files.remove(&key(file))?;
    drop(files);
    open.set_atomic(None);
    open.party
}

/// Returns a file that is open.
pub fn find(file: MPI_File) -> Option<Arc<Open>> {
    let files = FILES.read().unwrap_or_else(|poisoned| poisoned.into_inner());
    files.get(&key(file)).cloned()
}

/// Returns whether a file may be in atomic mode. Most calls on files begin with this, so it is one look at memory that seldom changes. MPI
/// has the program order a call behind the one that sets the mode; what that has written is seen under the locks behind this.
#[inline]
pub fn may_be_atomic(file: MPI_File) -> bool {
    ATOMIC.of(key(file)).load(Ordering::Relaxed) > 0
}

/// Returns what there is to a file in atomic mode; none if it is in the other mode.
pub fn atomic(file: MPI_File) -> Option<Arc<Atomic>> {
    find(file)?.atomic()
}

impl Open {
    /// Returns what there is to its atomic mode, if it is in that.
    pub fn atomic(&self) -> Option<Arc<Atomic>> {
        self.atomic.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// Sets its mode.
    pub fn set_atomic(&self, new: Option<Arc<Atomic>>) {
        let mut atomic = self.atomic.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        let count = ATOMIC.of(self.key);
        count.fetch_add(usize::from(new.is_some()), Ordering::Relaxed);
        let old = std::mem::replace(&mut *atomic, new);
        count.fetch_sub(usize::from(old.is_some()), Ordering::Relaxed);
        if old.is_some() {
            *hold(&self.ended) = old;
        }
    }

    /// Returns what tells whether processes have written each other's bytes, for the state of its atomic mode.
    pub fn exchanged(&self) -> Arc<AtomicBool> {
        self.exchanged.clone()
    }

    /// Flushes to the device what this library has written. Collective if processes have written each other's bytes: a process's own are on
    /// the device when all have flushed.
    pub fn flush(&self) -> Result<(), Failure> {
        let known = self.atomic().or_else(|| hold(&self.ended).clone());
        let flushed =
            known.filter(|known| known.mode.writes).map_or(Ok(()), |known| file::flush(&known.file));
        match self.party {
            Some(party) if self.exchanged.load(Ordering::Acquire) => agreed(&party, flushed),
            _ => flushed,
        }
    }

    /// Returns whether this library deletes the file when it is closed, in the place of the MPI library. That would also delete it where it
    /// was opened, and could not be put in atomic mode.
    pub fn is_deleted_here(&self) -> bool {
        self.mode.is_deleted_on_close && crate::mode::is_initial().unwrap_or(true)
    }

    /// Deletes the file.
    pub fn delete(&self) -> Result<(), Failure> {
        std::fs::remove_file(&self.path).map_err(|error| {
            let sentence = format!("cannot delete {}: {error}", Escaped::of(&self.path));
            Failure::File(mpi::error_class_of(&error), sentence)
        })
    }

    /// Deletes the file if it was made by being opened, and has stayed empty, so that the program can make it again.
    pub fn unmake(&self) {
        let is_empty = |metadata: std::fs::Metadata| metadata.is_file() && metadata.len() == 0;
        if self.mode.is_new && self.path.symlink_metadata().is_ok_and(is_empty) {
            // A file that stays behind is empty.
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Opens the file itself, which this library reads and writes on its own.
    pub fn open_itself(&self, identity: &Identity) -> Result<File, String> {
        let failed = |why: String| format!("cannot open {} once more: {why}", Escaped::of(&self.path));
        let mut options = File::options();
        options.read(self.mode.reads).write(self.mode.writes);
        let file = options.open(&self.path).map_err(|error| failed(error.to_string()))?;
        match identity::of_file(&file).map_err(failed)? == *identity {
            true => Ok(file),
            false => Err(failed("it is another file by now".to_owned())),
        }
    }
}

/// Returns the view of a file in atomic mode.
pub fn view(file: MPI_File, atomic: &Atomic) -> Result<Arc<View>, mpi::Code> {
    let mut known = hold(&atomic.view);
    if let Some(view) = known.as_ref() {
        return Ok(view.clone());
    }
    let raw = mpi::view(file)?;
    let etype = mpi::numbers(raw.etype.handle())?.unwrap_or_default();
    let decoded = if raw.is_native { crate::datatype::decode(raw.filetype.handle())? } else { None };
    // A file type without bytes stands for one of which nothing is known: everything is locked.
    let (numbers, filetype) =
        decoded.map_or_else(Default::default, |decoded| (decoded.numbers, decoded.exact));
    let filetype = filetype.filter(|filetype| !is_too_large(filetype));
    let displacement = u64::try_from(raw.displacement).unwrap_or(0);
    let view = Arc::new(View { displacement, etype_bytes: etype.size, numbers, filetype });
    *known = Some(view.clone());
    Ok(view)
}

/// Returns whether a file type has more parts than a lock may have. It is not kept: each access would copy all of it, only to be refused.
fn is_too_large(filetype: &Datatype) -> bool {
    let view = FileView { displacement: 0, count: 1, datatype: filetype.clone() };
    let refused = Pattern::new(&Description::Datatype(view)).err();
    matches!(refused, Some(PatternError::TooManyItems | PatternError::TooDeep))
}

#[cfg(test)]
mod tests {
    use nacre::lock::Block;

    use super::*;

    #[test]
    fn files_are_counted_apart_whatever_their_handles() {
        // Allocations of one size, of pages, and numbers.
        for distance in [1, 16, 0x1b0, 4096, 1 << 20] {
            for first in [0, 0x5581_7bd3_c2a0_usize, 0x7f3a_9000_0010] {
                let counts = Counts::new();
                let keys: Vec<usize> = (0..64).map(|file| first + file * distance).collect();
                keys.iter().for_each(|key| _ = counts.of(*key).fetch_add(1, Ordering::Relaxed));
                let counted = |key: &usize| counts.of(*key).load(Ordering::Relaxed);
                let most = keys.iter().map(counted).max();
                assert!(most < Some(6), "{first:#x} and {distance}: {most:?} files have one count");
                keys.iter().for_each(|key| _ = counts.of(*key).fetch_sub(1, Ordering::Relaxed));
                assert!(keys.iter().all(|key| counted(key) == 0), "{first:#x} and {distance}");
            }
        }
    }

    #[test]
    fn a_file_type_with_more_parts_than_a_lock_may_have_is_too_large() {
        let pieces = |count: i64| {
            let blocks =
                (0..count).map(|piece| Block { count: 1, displacement: 3 * piece + piece % 2 }).collect();
            Datatype::Indexed { blocks, of: Box::new(Datatype::byte()) }
        };
        assert!(is_too_large(&pieces(nacre_lock::ITEMS_MAX as i64)));
        assert!(!is_too_large(&pieces(1000)));
        // What lies before the file at one displacement may be within it at another.
        let early = Datatype::Indexed {
            blocks: vec![Block { count: 1, displacement: -8 }],
            of: Box::new(Datatype::byte()),
        };
        assert!(!is_too_large(&early));
    }
}
