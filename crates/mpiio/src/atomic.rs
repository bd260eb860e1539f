//! Accesses to files in atomic mode: each is done while its bytes are locked, and under no other lock.
//!
//! No process waits for a lock while it holds one, or while others wait for it in a collective call to which they hold a lock. A holder
//! does nothing but read or write, so it always releases.
//!
//! - An independent access locks its own bytes, and waits for them.
//! - A collective one begins with a meeting: the first process learns what all want. Where their bytes are disjoint, or all read, it tries to
//!   lock everything from the first of them to the last, without waiting, and all go on together: the MPI library may then touch the bytes
//!   between the pieces too, as it does to write many small ones at once. Where they overlap, or somebody else holds some of it, each process
//!   goes on as if alone.
//! - An access at the shared pointer, whose bytes nobody knows before, locks the whole file.

use std::ffi::c_int;
use std::os::unix::fs::FileExt;

use nacre::lock::{Block, BlockingLock, Datatype, Description, Member, Mode};
use nacre_lock::Pattern;

use crate::failure::Failure;
use crate::mpi::{self, MPI_File, MPI_Status, result};
use crate::session;
use crate::table::{self, Atomic, hold};
use crate::transfer::{Memory, Operation, Place};
use crate::view::Access;

/// The maximum length of the descriptions that are gathered for a collective access. With more, each process goes on alone.
const GATHERED_MAX: usize = 16 << 20;

/// The number of bytes after which a write of pieces checks again that its lock is held.
const CHECK_BYTES: u64 = 1 << 20;

/// An access that is known in full: the operation, the program's memory, and the bytes of the file.
struct Request<'a> {
    file: MPI_File,
    atomic: &'a Atomic,
    operation: Operation,
    memory: Memory,
    /// The number of bytes.
    bytes: u64,
}

/// Reads or writes a file in atomic mode. Returns the status of what was done.
///
/// # Safety
///
/// The memory holds the elements that it is said to.
pub unsafe fn access(
    file: MPI_File,
    atomic: &Atomic,
    operation: Operation,
    memory: Memory,
) -> Result<MPI_Status, Failure> {
    let numbers = match mpi::is_no_type(memory.datatype) {
        true => None,
        false => mpi::numbers(memory.datatype)?,
    };
    let count = u64::try_from(memory.count).ok();
    let bytes = numbers.zip(count).and_then(|(numbers, count)| numbers.size.checked_mul(count));
    let allowed = if operation.writes { atomic.mode.writes } else { atomic.mode.reads };
    // The MPI library says what is wrong with it, and touches nothing.
    let bytes = bytes.filter(|_| allowed).unwrap_or(0);
    let request = Request { file, atomic, operation, memory, bytes };
    // SAFETY: as the caller says.
    unsafe {
        match (operation.place, operation.collective && atomic.party.size > 1) {
            (Place::Shared, false) => request.at_the_shared_pointer(),
            (Place::Shared, true) => request.in_order(),
            (_, false) => request.alone(),
            (_, true) => request.together(),
        }
    }
}

impl Request<'_> {
    fn lock_mode(&self) -> Mode {
        if self.operation.writes { Mode::Exclusive } else { Mode::Shared }
    }

    /// Has the MPI library do what is asked for.
    ///
    /// # Safety
    ///
    /// The memory holds the elements that it is said to.
    unsafe fn run(&self, collective: bool) -> Result<MPI_Status, Failure> {
        let mut status = mpi::status_of(0)?;
        let operation = Operation { collective, ..self.operation };
        // SAFETY: as the caller says; the status is one.
        let code = unsafe { operation.run(self.file, self.memory, &mut status) };
        result(
            code.ok_or_else(|| Failure::Own("this MPI library lacks the call for large counts".to_owned()))?,
        )?;
        Ok(status)
    }

    /// Returns the bytes of the file, for an access that begins at an offset in elementary types.
    fn bytes_of_file(&self, offset: i64) -> Result<Access, Failure> {
        let view = table::view(self.file, self.atomic)?;
        if view.etype_bytes == 0 || !self.bytes.is_multiple_of(view.etype_bytes) {
            let text = format!(
                "{} bytes are no whole number of elementary types of {} bytes",
                self.bytes, view.etype_bytes
            );
            return Err(Failure::Own(text));
        }
        let access = u64::try_from(offset).ok().and_then(|offset| view.access(offset, self.bytes));
        access.ok_or_else(|| Failure::Own(format!("offset {offset} is not within a file")))
    }

    /// Returns the offset at which the access begins, in elementary types.
    fn offset(&self) -> Result<i64, Failure> {
        Ok(match self.operation.place {
            Place::At(offset) => offset,
            Place::Individual | Place::Shared => mpi::position(self.file)?,
        })
    }

    /// Reads or writes while this process has locked the bytes.
    ///
    /// # Safety
    ///
    /// The memory holds the elements that it is said to.
    unsafe fn alone(&self) -> Result<MPI_Status, Failure> {
        // Other threads use the pointer before or after.
        let _pointer = (self.operation.place == Place::Individual).then(|| hold(&self.atomic.pointer));
        if self.bytes == 0 {
            // SAFETY: as the caller says.
            return unsafe { self.run(false) };
        }
        let offset = self.offset()?;
        let access = self.bytes_of_file(offset)?;
        // What has to be copied is copied before others are kept out.
        let packed = match &access.pieces {
            Some(_) if self.operation.writes => {
                let numbers = mpi::numbers(self.memory.datatype)?.unwrap_or_default();
                // SAFETY: as the caller says.
                let packed = unsafe {
                    mpi::pack(self.memory.buffer, self.memory.count as u64, self.memory.datatype, numbers)
                };
                let impossible = || Failure::Own("the elements in memory cannot be packed".to_owned());
                Some(packed?.ok_or_else(impossible)?)
            }
            _ => None,
        };
        let lock = session::lock(&self.atomic.locks, &access.description, self.lock_mode())?;
        lock.check()?;
        let status = match (&access.pieces, packed) {
            (Some(pieces), Some(packed)) => self.write_pieces(pieces, &packed, &lock, offset)?,
            // SAFETY: as the caller says.
            _ => unsafe { self.run(false) }?,
        };
        // Since when it was lost is not known, so neither is whether somebody else wrote meanwhile.
        lock.check()?;
        lock.release()?;
        Ok(status)
    }

    /// Writes pieces of the file one by one. The MPI library would read and write the bytes between them too.
    fn write_pieces(
        &self,
        pieces: &Pattern,
        packed: &[u8],
        lock: &BlockingLock,
        offset: i64,
    ) -> Result<MPI_Status, Failure> {
        let closed = || Failure::Own("the file is not open for writing".to_owned());
        let file = self.atomic.file.as_ref().ok_or_else(closed)?;
        let (mut rest, mut unchecked) = (packed, 0);
        for region in pieces.regions() {
            let length = usize::try_from(region.length).unwrap_or(usize::MAX).min(rest.len());
            let (piece, behind) = rest.split_at(length);
            if unchecked > CHECK_BYTES {
                lock.check()?;
                unchecked = 0;
            }
            file.write_all_at(piece, region.offset).map_err(|error| {
                Failure::Own(format!("cannot write {length} bytes at {}: {error}", region.offset))
            })?;
            // A short piece costs a call of the system, like a page.
            unchecked += region.length.max(4096);
            rest = behind;
        }
        if self.operation.place == Place::Individual {
            let etypes = self.bytes / table::view(self.file, self.atomic)?.etype_bytes;
            mpi::seek(self.file, offset + etypes as i64)?;
        }
        Ok(mpi::status_of(self.bytes)?)
    }

    /// Reads or writes with all other processes.
    ///
    /// # Safety
    ///
    /// The memory holds the elements that it is said to.
    unsafe fn together(&self) -> Result<MPI_Status, Failure> {
        let party = &self.atomic.party;
        // Whatever is wrong with this process's own part, it says when it goes on alone.
        let described = match self.bytes {
            0 => Some(Description::contiguous(0, 0)),
            _ => self
                .offset()
                .and_then(|offset| self.bytes_of_file(offset))
                .ok()
                .map(|access| access.description),
        };
        let all =
            party.gather(&described.map(|described| described.encode()).unwrap_or_default(), GATHERED_MAX)?;
        let lock = match &all {
            Some(all) if party.rank == 0 => self.lock_of_all(all),
            _ => None,
        };
        let mut verdict = [u8::from(lock.is_some())];
        party.tell(&mut verdict)?;
        if verdict == [0] {
            // SAFETY: as the caller says.
            return unsafe { self.alone() };
        }
        // SAFETY: as the caller says.
        self.under_the_lock_of_the_first(lock, || unsafe { self.run(true) })
    }

    /// Locks everything from the first to the last byte that a collective access touches, if nobody else holds any of it, and if the
    /// processes write no byte twice.
    fn lock_of_all(&self, all: &[Vec<u8>]) -> Option<BlockingLock> {
        let mut members = Vec::with_capacity(all.len());
        let (mut bytes, mut bounds): (u64, Option<(u64, u64)>) = (0, None);
        for description in all {
            let description = Description::decode(description).ok()?;
            let pattern = Pattern::new(&description).ok()?;
            bytes = bytes.checked_add(pattern.byte_count())?;
            if let Some(region) = pattern.bounds() {
                let (start, end) = bounds.unwrap_or((region.offset, region.end()));
                bounds = Some((start.min(region.offset), end.max(region.end())));
            }
            members.push(member(description)?);
        }
        let (start, end) = bounds?;
        if self.operation.writes {
            let union = Pattern::new(&Datatype::Struct { members }.at(0)).ok()?;
            if union.byte_count() != bytes {
                return None;
            }
        }
        self.atomic.locks.try_lock(start..end, self.lock_mode()).ok()?
    }

    /// Does something collective while the first process holds a lock, and tells all processes if it was lost meanwhile.
    fn under_the_lock_of_the_first<T>(
        &self,
        lock: Option<BlockingLock>,
        act: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let done = act();
        released(self.atomic, lock)?;
        done
    }

    /// Reads or writes at the shared pointer.
    ///
    /// # Safety
    ///
    /// The memory holds the elements that it is said to.
    unsafe fn at_the_shared_pointer(&self) -> Result<MPI_Status, Failure> {
        let lock = self.atomic.locks.lock(whole(), self.lock_mode())?;
        // SAFETY: as the caller says.
        let done = unsafe { self.run(false) };
        lock.check()?;
        lock.release()?;
        done
    }

    /// Reads or writes at the shared pointer, in the order of the processes.
    ///
    /// # Safety
    ///
    /// The memory holds the elements that it is said to.
    unsafe fn in_order(&self) -> Result<MPI_Status, Failure> {
        let lock = whole_of_the_first(self.atomic, self.lock_mode())?;
        // SAFETY: as the caller says.
        self.under_the_lock_of_the_first(lock, || unsafe { self.run(true) })
    }
}

/// Does something to a file in atomic mode that concerns all of it, such as a change of its size. Collective.
pub fn whole_file(atomic: &Atomic, act: impl FnOnce() -> c_int) -> Result<c_int, Failure> {
    let lock = whole_of_the_first(atomic, Mode::Exclusive)?;
    let code = act();
    released(atomic, lock)?;
    Ok(code)
}

fn whole() -> Description {
    Description::contiguous(0, nacre_lock::OFFSET_MAX)
}

/// Locks the whole file, by the first process. All of them have to be here before it waits.
fn whole_of_the_first(atomic: &Atomic, mode: Mode) -> Result<Option<BlockingLock>, Failure> {
    atomic.party.meet()?;
    let locked = match atomic.party.rank {
        0 => Some(atomic.locks.lock(whole(), mode)),
        _ => None,
    };
    let mut failed = [u8::from(matches!(locked, Some(Err(_))))];
    atomic.party.tell(&mut failed)?;
    match locked {
        Some(locked) => Ok(Some(locked?)),
        None if failed == [1] => Err(Failure::Elsewhere),
        None => Ok(None),
    }
}

/// Waits until all processes have done what the lock of the first one is for, and releases it.
fn released(atomic: &Atomic, lock: Option<BlockingLock>) -> Result<(), Failure> {
    atomic.party.meet()?;
    let released = lock.map(|lock| lock.check().and_then(|()| lock.release()));
    let mut failed = [u8::from(matches!(released, Some(Err(_))))];
    atomic.party.tell(&mut failed)?;
    match released {
        Some(released) => Ok(released?),
        None if failed == [1] => Err(Failure::Elsewhere),
        None => Ok(()),
    }
}

/// Returns a description as the member of a struct at displacement 0.
fn member(description: Description) -> Option<Member> {
    let block = |count: u64, displacement: u64| {
        Some(Block { count, displacement: i64::try_from(displacement).ok()? })
    };
    Some(match description {
        Description::Contiguous(region) => {
            let block = block(1, region.offset)?;
            Member { count: 1, displacement: block.displacement, of: Datatype::Bytes(region.length) }
        }
        Description::List(regions) => {
            let blocks =
                regions.iter().map(|region| block(region.length, region.offset)).collect::<Option<_>>()?;
            Member {
                count: 1,
                displacement: 0,
                of: Datatype::Hindexed { blocks, of: Box::new(Datatype::byte()) },
            }
        }
        Description::Datatype(view) => {
            let displacement = i64::try_from(view.displacement).ok()?;
            Member { count: view.count, displacement, of: view.datatype }
        }
    })
}
