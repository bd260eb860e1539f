//! Accesses to files in atomic mode: each is done while its bytes are locked, and under no other lock.
//!
//! No process waits for a lock while it holds one, or while others wait for it in a collective call to which they hold a lock. A holder
//! does nothing but read or write, so it always releases.
//!
//! - An independent access locks its own bytes, and waits for them.
//! - A collective one begins with a meeting: the first process learns what all want. Where their bytes are disjoint, or all read, it tries
//!   to lock everything from the first of them to the last, without waiting, and all go on under that lock. Where they overlap, or somebody
//!   else holds some of it, or the arguments of one are wrong, each process goes on as if alone.
//! - An access at the shared pointer, whose bytes nobody knows before, locks the whole file, and is left to the MPI library.
//!
//! A non-blocking access is an independent one, also if it is collective: others need not have called it yet. It locks, moves and releases
//! its bytes in the background, where nothing calls the MPI library. What needs that library is done in the call, or when the program
//! waits for the request.
//!
//! This library reads and writes the bytes itself, and writes none that are not locked. A system call for each of many small pieces
//! is slow, though. So under a lock for all, processes exchange their pieces first; and a process alone locks what is between them, too,
//! and writes all of it at once. MPI libraries write back what is between the pieces without a lock, which loses what others write there.
//! Only a file type that cannot be described is left to them, under a lock of the whole file.

use std::borrow::Cow;
use std::ffi::c_int;
use std::fs::{File, Metadata};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nacre::lock::{self, Description, Mode, Region};
use nacre_lock::Pattern;

use crate::exchange::{self, Exchange, Wanted};
use crate::failure::Failure;
use crate::file;
use crate::hint::Hints;
use crate::mpi::{self, MPI_Comm, MPI_File, MPI_Offset, MPI_Status, Numbers, OwnedType, Whence, result};
use crate::session::{self, Held};
use crate::table::{self, Atomic, hold};
use crate::transfer::{Memory, Operation, StartPosition};
use crate::view::{Access, Touched, View};
use crate::watchdog;

/// The maximum length of the descriptions that are gathered for a collective access. With more, each process goes on alone.
const GATHERED_MAX: usize = 16 << 20;

/// A program's request: the operation and its memory.
struct Request<'a> {
    file: MPI_File,
    atomic: &'a Atomic,
    operation: Operation,
    memory: Memory,
}

/// A request whose arguments are right: its place in the file.
struct Part {
    /// The offset in elementary types.
    offset: i64,
    /// The number of bytes.
    bytes: u64,
    /// The elements in memory.
    numbers: Numbers,
    access: Access,
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
    let request = Request { file, atomic, operation, memory };
    // SAFETY: as the caller says.
    unsafe {
        match (operation.position, operation.collective && atomic.party.size > 1) {
            (StartPosition::Shared, false) => request.at_the_shared_pointer(),
            (StartPosition::Shared, true) => request.in_order(),
            (_, false) => request.alone(&request.part()?),
            (_, true) => request.together(),
        }
    }
}

/// An access that has begun.
pub enum Begun {
    /// It is done.
    Done(MPI_Status),
    /// Its arguments are right, and its place is known. What is left to do makes no call of the MPI library.
    Rest(Rest),
}

/// Begins to read or write a file in atomic mode, for this process alone.
///
/// # Safety
///
/// The memory holds the elements that it is said to, until nothing is left to do.
pub unsafe fn begin(
    file: MPI_File,
    atomic: &Arc<Atomic>,
    operation: Operation,
    memory: Memory,
) -> Result<Begun, Failure> {
    let request = Request { file, atomic, operation, memory };
    // SAFETY: as the caller says.
    unsafe {
        if operation.position == StartPosition::Shared {
            return Ok(Begun::Done(request.at_the_shared_pointer()?));
        }
        let part = request.part()?;
        let Some(bytes) = request.movable(&part)? else {
            return Ok(Begun::Done(request.alone(&part)?));
        };
        let (atomic, mode, writes) = (atomic.clone(), request.lock_mode(), operation.writes);
        Ok(Begun::Rest(Box::new(move || bytes.transfer(&atomic, &part.access, mode, writes))))
    }
}

/// The part of an access that any thread may do.
pub type Rest = Box<dyn FnOnce() -> Moved + Send>;

/// Bytes that any thread may move between memory and a file.
enum Movable {
    /// The program's own, which it leaves alone until it has waited for the access: their address and number.
    InPlace(*mut u8, usize),
    /// A copy, which is to be written.
    Copy(Vec<u8>),
    /// Room for what is read, which a thread of the program then unpacks.
    Packed(Packed),
}

// SAFETY: MPI has the program leave the bytes to the access, by whichever thread it is done.
unsafe impl Send for Movable {}

impl Movable {
    /// Reads or writes the bytes while they are locked.
    fn transfer(mut self, atomic: &Atomic, access: &Access, mode: Mode, writes: bool) -> Moved {
        let result = self.transferred(atomic, access, mode, writes);
        // Also after a failure: only a thread of the program may free a datatype.
        let packed = if let Movable::Packed(packed) = self { Some(packed) } else { None };
        Moved { result, packed }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Movable::Copy(bytes) => bytes,
            Movable::Packed(packed) => &packed.bytes,
            // SAFETY: the program has this many bytes there, and does not change them meanwhile.
            Movable::InPlace(address, length) => unsafe { std::slice::from_raw_parts(*address, *length) },
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Movable::Copy(bytes) => bytes,
            Movable::Packed(packed) => &mut packed.bytes,
            // SAFETY: the program has room for this many bytes there, and leaves it alone.
            Movable::InPlace(address, length) => unsafe { std::slice::from_raw_parts_mut(*address, *length) },
        }
    }

    fn transferred(
        &mut self,
        atomic: &Atomic,
        access: &Access,
        mode: Mode,
        writes: bool,
    ) -> Result<u64, Failure> {
        let unknown = || Failure::Own("the bytes in the file are not known".to_owned());
        let regions = access.touched.regions().ok_or_else(unknown)?;
        under_lock(atomic, access, mode, |lock, sieved| {
            if writes {
                let bytes = self.bytes();
                write_touched(&atomic.file, regions, sieved, bytes, || Ok(lock.check()?))?;
                Ok(bytes.len() as u64)
            } else {
                Ok(read_touched(&atomic.file, &access.touched, regions, self.bytes_mut())? as u64)
            }
        })
    }
}

/// Bytes of a file for elements in memory that are not contiguous.
struct Packed {
    bytes: Vec<u8>,
    memory: Memory,
    /// The type of the elements, which the program may free before it waits for them.
    datatype: OwnedType,
    numbers: Numbers,
    communicator: MPI_Comm,
}

impl Packed {
    /// Copies the bytes that were read to the elements.
    fn unpack(mut self, done: u64) -> Result<(), Failure> {
        let Memory { buffer, count, .. } = self.memory;
        let (count, datatype) = (u64::try_from(count).unwrap_or(0), self.datatype.handle());
        let done = done as usize;
        // SAFETY: the program has the elements there, and leaves them alone until it has waited for them.
        unsafe {
            if done < self.bytes.len() {
                // The elements behind the end of the file stay as they are.
                let before = mpi::pack(buffer, count, datatype, self.numbers, self.communicator)?;
                self.bytes[done..].copy_from_slice(&before[done..]);
            }
            mpi::unpack(&self.bytes, buffer, count, datatype, self.numbers, self.communicator)
        }
    }
}

/// The end of the part of an access that any thread may do.
pub struct Moved {
    result: Result<u64, Failure>,
    packed: Option<Packed>,
}

impl Moved {
    /// Does the part that only threads of the program may do. Returns the number of bytes before the end of the file.
    pub fn finish(self) -> Result<u64, Failure> {
        let done = self.result?;
        self.packed.map_or(Ok(()), |packed| packed.unpack(done))?;
        Ok(done)
    }
}

impl Request<'_> {
    fn lock_mode(&self) -> Mode {
        if self.operation.writes { Mode::Exclusive } else { Mode::Shared }
    }

    /// Has the MPI library carry out an operation on the file.
    ///
    /// # Safety
    ///
    /// The memory holds the elements that it is said to.
    unsafe fn run(
        &self,
        position: StartPosition,
        collective: bool,
        memory: Memory,
    ) -> Result<MPI_Status, Failure> {
        let mut status = mpi::status_of(0)?;
        let operation = Operation { position, collective, ..self.operation };
        // SAFETY: as the caller says; the status is one.
        let code = unsafe { operation.run(self.file, memory, &mut status) };
        result(
            code.ok_or_else(|| Failure::Own("this MPI library lacks the call for large counts".to_owned()))?,
        )?;
        Ok(status)
    }

    /// Returns the numbers of the elements in memory. The MPI library says what is wrong with the arguments, by the file's error handler.
    ///
    /// # Safety
    ///
    /// The memory holds the elements that it is said to.
    unsafe fn checked(&self) -> Result<Numbers, Failure> {
        let Operation { position, writes, .. } = self.operation;
        let position = if let StartPosition::At(_) = position { position } else { StartPosition::At(0) };
        let allowed = if writes { self.atomic.mode.writes } else { self.atomic.mode.reads };
        // It touches nothing where it is asked for no elements, or for what is not allowed.
        let count = if allowed { self.memory.count.min(0) } else { self.memory.count };
        // SAFETY: as the caller says.
        unsafe { self.run(position, false, Memory { count, ..self.memory }) }?;
        if !allowed {
            let direction = if writes { "writing" } else { "reading" };
            return Err(Failure::Own(format!("the file is not open for {direction}")));
        }
        let uncountable = || Failure::Own("the elements in memory have too many bytes".to_owned());
        mpi::numbers(self.memory.datatype)?.ok_or_else(uncountable)
    }

    /// Returns the number of bytes in memory, which has to be one of whole elementary types, and the view that says so.
    fn measured(&self, numbers: &Numbers) -> Result<(u64, Arc<View>), Failure> {
        let bytes = u64::try_from(self.memory.count).ok().and_then(|count| numbers.size.checked_mul(count));
        let bytes = bytes.filter(|bytes| *bytes <= isize::MAX as u64);
        let bytes = bytes.ok_or_else(|| Failure::Own("there are too many bytes in memory".to_owned()))?;
        let view = table::view(self.file, self.atomic)?;
        if bytes > 0 && (view.etype_bytes == 0 || !bytes.is_multiple_of(view.etype_bytes)) {
            let text = format!(
                "{bytes} bytes are not a whole number of elementary types of {} bytes",
                view.etype_bytes
            );
            return Err(Failure::Own(text));
        }
        Ok((bytes, view))
    }

    /// Checks the arguments and finds the place in the file. Moves the individual pointer behind it, if it is that which tells the place:
    /// other threads then go on from there.
    ///
    /// # Safety
    ///
    /// The memory holds the elements that it is said to.
    unsafe fn part(&self) -> Result<Part, Failure> {
        // SAFETY: as the caller says.
        let numbers = unsafe { self.checked() }?;
        let (bytes, view) = self.measured(&numbers)?;
        let etypes = bytes.checked_div(view.etype_bytes).unwrap_or(0);
        let found = |offset: i64| {
            let access = u64::try_from(offset).ok().and_then(|offset| view.access(offset, bytes));
            let end = i64::try_from(etypes).ok().and_then(|etypes| offset.checked_add(etypes));
            let found = access.zip(end);
            found.ok_or_else(|| Failure::Own(format!("offset {offset} is not within a file")))
        };
        let (offset, access) = match self.operation.position {
            StartPosition::At(offset) => (offset, found(offset)?.0),
            StartPosition::Individual | StartPosition::Shared => {
                let mut pointer = hold(&self.atomic.pointer);
                let offset = *pointer;
                let (access, end) = found(offset)?;
                *pointer = end;
                (offset, access)
            }
        };
        Ok(Part { offset, bytes, numbers, access })
    }

    /// Reads or writes while this process has locked the bytes.
    ///
    /// # Safety
    ///
    /// The memory holds the elements that it is said to.
    unsafe fn alone(&self, part: &Part) -> Result<MPI_Status, Failure> {
        if part.bytes == 0 {
            return Ok(mpi::status_of(0)?);
        }
        // What has to be copied is copied before others are kept out.
        // SAFETY: as the caller says.
        let outgoing = unsafe { self.outgoing(part) }?;
        under_lock(self.atomic, &part.access, self.lock_mode(), |lock, sieved| {
            // SAFETY: as the caller says.
            unsafe { self.transfer(part, &outgoing, Some(lock), sieved) }
        })
    }

    /// Returns the bytes that are to be written, contiguous; none for a read.
    ///
    /// # Safety
    ///
    /// The memory holds the elements that it is said to.
    unsafe fn outgoing(&self, part: &Part) -> Result<Cow<'_, [u8]>, Failure> {
        if !self.operation.writes || matches!(part.access.touched, Touched::Unknown) {
            return Ok(Cow::Borrowed(&[]));
        }
        let Memory { buffer, datatype, .. } = self.memory;
        if !buffer.is_null() && mpi::is_dense(datatype)? {
            // SAFETY: contiguous elements are as many bytes, which are there, as the caller says, and no more than an isize counts.
            let bytes = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), part.bytes as usize) };
            return Ok(Cow::Borrowed(bytes));
        }
        // SAFETY: as the caller says.
        Ok(Cow::Owned(unsafe { self.packed(part) }?))
    }

    /// Returns the bytes in memory if any thread may move them; none if the MPI library has to move them, or if there are none.
    ///
    /// # Safety
    ///
    /// The memory holds the elements that it is said to.
    unsafe fn movable(&self, part: &Part) -> Result<Option<Movable>, Failure> {
        let Memory { buffer, datatype, .. } = self.memory;
        if part.bytes == 0 || matches!(part.access.touched, Touched::Unknown) {
            return Ok(None);
        }
        if !buffer.is_null() && mpi::is_dense(datatype)? {
            // No more than an isize counts, or the part would not be one.
            return Ok(Some(Movable::InPlace(buffer.cast(), part.bytes as usize)));
        }
        if self.operation.writes {
            // SAFETY: as the caller says.
            return Ok(Some(Movable::Copy(unsafe { self.packed(part) }?)));
        }
        Ok(Some(Movable::Packed(Packed {
            bytes: vec![0; part.bytes as usize],
            memory: self.memory,
            datatype: mpi::duplicate(datatype)?,
            numbers: part.numbers,
            communicator: self.atomic.party.communicator(),
        })))
    }

    /// Returns the elements in memory as contiguous bytes.
    ///
    /// # Safety
    ///
    /// The memory holds the elements that it is said to.
    unsafe fn packed(&self, part: &Part) -> Result<Vec<u8>, Failure> {
        let Memory { buffer, count, datatype } = self.memory;
        let communicator = self.atomic.party.communicator();
        // SAFETY: as the caller says.
        unsafe { mpi::pack(buffer, u64::try_from(count).unwrap_or(0), datatype, part.numbers, communicator) }
    }

    /// Reads or writes the bytes of the file, which are locked; those that are sieved, together with the bytes between them.
    ///
    /// # Safety
    ///
    /// The memory holds the elements that it is said to.
    unsafe fn transfer(
        &self,
        part: &Part,
        outgoing: &[u8],
        lock: Option<&Held>,
        sieved: Option<&Pattern>,
    ) -> Result<MPI_Status, Failure> {
        let Some(regions) = part.access.touched.regions() else {
            // SAFETY: as the caller says.
            return unsafe { self.run(StartPosition::At(part.offset), false, self.memory) };
        };
        let done = if self.operation.writes {
            let check = || lock.map_or(Ok(()), |lock| Ok(lock.check()?));
            write_touched(&self.atomic.file, regions, sieved, outgoing, check)?;
            part.bytes
        } else {
            // SAFETY: as the caller says.
            unsafe {
                let touched = &part.access.touched;
                self.read(part, |bytes| read_touched(&self.atomic.file, touched, regions, bytes))
            }?
        };
        Ok(mpi::status_of(done)?)
    }

    /// Reads bytes of the file into memory, by a function that returns how many are before the end of the file. Returns that number.
    ///
    /// # Safety
    ///
    /// The memory has room for the elements that it is said to.
    unsafe fn read(
        &self,
        part: &Part,
        read: impl FnOnce(&mut [u8]) -> Result<usize, Failure>,
    ) -> Result<u64, Failure> {
        let Memory { buffer, count, datatype } = self.memory;
        let length = part.bytes as usize;
        if !buffer.is_null() && mpi::is_dense(datatype)? {
            // SAFETY: contiguous elements are as many bytes, for which there is room, as the caller says, and no more than an isize counts.
            let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
            return Ok(read(bytes)? as u64);
        }
        let mut bytes = vec![0u8; length];
        let done = read(&mut bytes)?;
        if done < length {
            // The elements behind the end of the file stay as they are.
            // SAFETY: as the caller says.
            let before = unsafe { self.packed(part) }?;
            bytes[done..].copy_from_slice(&before[done..]);
        }
        let communicator = self.atomic.party.communicator();
        let count = u64::try_from(count).unwrap_or(0);
        // SAFETY: as the caller says.
        unsafe { mpi::unpack(&bytes, buffer, count, datatype, part.numbers, communicator) }?;
        Ok(done as u64)
    }

    /// Reads or writes with all other processes.
    ///
    /// # Safety
    ///
    /// The memory holds the elements that it is said to.
    unsafe fn together(&self) -> Result<MPI_Status, Failure> {
        let party = &self.atomic.party;
        // SAFETY: as the caller says.
        let part = unsafe { self.part() };
        // A process whose own part is wrong sends nothing; it says so to its program when the others know.
        let told = part.as_ref().map(|part| match part.bytes {
            0 => exchange::told(0, &Description::contiguous(0, 0)),
            bytes => exchange::told(bytes, &part.access.description),
        });
        let all = party.gather(told.as_deref().unwrap_or_default(), GATHERED_MAX)?;
        let (lock, message) = match &all {
            Some(all) if party.rank == 0 => self.lock_of_all(all),
            _ => (None, None),
        };
        // The size by which all processes know where the file ends. Nobody who locks makes it shorter meanwhile.
        let about = message.as_ref().and_then(|_| self.atomic.file.metadata().ok());
        let file_bytes = about.filter(Metadata::is_file).map(|about| about.len());
        let message = message.filter(|_| file_bytes.is_some());
        let (message_bytes, file_bytes) =
            (message.as_ref().map_or(0, Vec::len) as u64, file_bytes.unwrap_or(0));
        let mut verdict = [0; 17];
        verdict[0] = u8::from(lock.is_some());
        verdict[1..9].copy_from_slice(&message_bytes.to_le_bytes());
        verdict[9..].copy_from_slice(&file_bytes.to_le_bytes());
        party.broadcast(&mut verdict)?;
        if verdict[0] == 0 {
            // SAFETY: as the caller says.
            return unsafe { self.alone(&part?) };
        }
        let number = |place: usize| u64::from_le_bytes(std::array::from_fn(|byte| verdict[place + byte]));
        let exchange = match number(1) {
            0 => None,
            length => {
                let mut message = message.unwrap_or_else(|| vec![0; length as usize]);
                party.broadcast(&mut message)?;
                Exchange::new(&message)
            }
        };
        // SAFETY: as the caller says.
        let act = || unsafe {
            let part = part?;
            let outgoing = self.outgoing(&part);
            // What can fail on one process alone comes before the exchange, in which the others count on it.
            let ready = outgoing.is_ok() && mpi::is_dense(self.memory.datatype).is_ok();
            if let Some(exchange) = exchange
                && party.agree(ready)?.into_iter().all(|ready| ready)
            {
                return self.exchanged(&part, &outgoing?, &exchange, number(9), lock.as_ref());
            }
            self.transfer(&part, &outgoing?, lock.as_ref(), None)
        };
        let done = act();
        released(self.atomic, lock)?;
        done
    }

    /// Reads or writes with all other processes, which make the system calls for each other.
    ///
    /// # Safety
    ///
    /// The memory holds the elements that it is said to.
    unsafe fn exchanged(
        &self,
        part: &Part,
        outgoing: &[u8],
        exchange: &Exchange,
        file_bytes: u64,
        lock: Option<&Held>,
    ) -> Result<MPI_Status, Failure> {
        let Atomic { party, file, .. } = self.atomic;
        if self.operation.writes {
            self.atomic.exchanged.store(true, Ordering::Release);
            let check = || lock.map_or(Ok(()), |lock| Ok(lock.check()?));
            exchange.write(party, file, outgoing, check)?;
            return Ok(mpi::status_of(part.bytes)?);
        }
        // SAFETY: as the caller says.
        let done = unsafe { self.read(part, |bytes| exchange.read(party, file, file_bytes, bytes)) };
        Ok(mpi::status_of(done?)?)
    }

    /// Locks everything from the first to the last byte that a collective access touches, if nobody else holds any of it, and if the
    /// processes write no byte twice. Also returns the message of an exchange, if that is the faster way.
    fn lock_of_all(&self, all: &[Vec<u8>]) -> (Option<Held>, Option<Vec<u8>>) {
        // A watchdog ends the process that holds the lock, and no others that write under it.
        if watchdog::is_running() {
            return (None, None);
        }
        let wanted = Wanted::new(all).filter(|wanted| !self.operation.writes || wanted.is_disjoint());
        let Some((wanted, bounds)) = wanted.and_then(|wanted| wanted.bounds().map(|bounds| (wanted, bounds)))
        else {
            return (None, None);
        };
        let lock = session::try_lock(&self.atomic.locks, bounds, self.lock_mode()).ok().flatten();
        let exchanges = lock.is_some() && wanted.gains_by_exchange();
        (lock, exchanges.then(|| exchange::message(all)).flatten())
    }

    /// Reads or writes at the shared pointer.
    ///
    /// # Safety
    ///
    /// The memory holds the elements that it is said to.
    unsafe fn at_the_shared_pointer(&self) -> Result<MPI_Status, Failure> {
        let lock = session::lock(&self.atomic.locks, &whole(self.lock_mode()))?;
        // SAFETY: as the caller says.
        let done = unsafe { self.run(StartPosition::Shared, false, self.memory) };
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
        // MPI libraries do not look for everything that is wrong before they wait for the other processes.
        // SAFETY: as the caller says.
        let checked = unsafe { self.checked() }.and_then(|numbers| self.measured(&numbers));
        // The others go on, whatever is wrong with this process's own part.
        let nothing = Memory { count: 0, datatype: mpi::byte(), ..self.memory };
        let memory = if checked.is_ok() { self.memory } else { nothing };
        let lock = whole_of_the_first(self.atomic, self.lock_mode())?;
        // SAFETY: as the caller says.
        let done = unsafe { self.run(StartPosition::Shared, true, memory) };
        released(self.atomic, lock)?;
        checked?;
        done
    }
}

/// Reads or writes the bytes of an access by a process alone while they are locked, by a function that is given the lock, and the pieces that
/// are to be written together with the bytes between them.
fn under_lock<T>(
    atomic: &Atomic,
    access: &Access,
    mode: Mode,
    act: impl FnOnce(&Held, Option<&Pattern>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let hints = *hold(&atomic.hints);
    let (request, sieved) = lock_of(atomic, &hints, access, mode);
    let lock = session::lock(&atomic.locks, &request)?;
    lock.check()?;
    let mut done = act(&lock, sieved);
    if hints.flushes && mode == Mode::Exclusive && done.is_ok() {
        done = file::flush(&atomic.file).and(done);
    }
    // Since when it was lost is not known, so neither is whether somebody else wrote meanwhile.
    lock.check()?;
    lock.release()?;
    done
}

/// Returns the request for the lock of an access by a process alone, and the pieces that are to be written together with the bytes between
/// them. Those are locked too then. A system call for each piece costs more than to keep others out of the gaps meanwhile.
fn lock_of<'a>(
    atomic: &Atomic,
    hints: &Hints,
    access: &'a Access,
    mode: Mode,
) -> (lock::Request, Option<&'a Pattern>) {
    let may_sieve = mode == Mode::Exclusive && atomic.mode.reads && hints.may_sieve();
    let pieces = access.touched.sieved().filter(|_| may_sieve);
    let bounds = pieces.and_then(Pattern::bounds);
    let all = bounds.map(|bounds| Description::contiguous(bounds.offset, bounds.length));
    (hints.request(all.as_ref().unwrap_or(&access.description), mode), pieces)
}

/// Writes what is touched of a file: each region by itself, or the pieces that are sieved, together with the bytes between them.
fn write_touched(
    file: &File,
    regions: impl Iterator<Item = Region>,
    sieved: Option<&Pattern>,
    bytes: &[u8],
    check: impl Fn() -> Result<(), Failure>,
) -> Result<(), Failure> {
    match sieved {
        Some(pieces) => file::write_sieved(file, pieces, bytes, check),
        None => file::write(file, file::pieces(regions, bytes), check),
    }
}

/// Reads what is touched of a file. Bytes between pieces may be read too, whoever writes them.
fn read_touched(
    file: &File,
    touched: &Touched,
    regions: impl Iterator<Item = Region>,
    bytes: &mut [u8],
) -> Result<usize, Failure> {
    match touched.sieved() {
        Some(pieces) => file::read_sieved(file, pieces, bytes),
        None => file::read(file, regions, bytes),
    }
}

/// Moves the individual pointer of a file in atomic mode. `next` has the MPI library do it.
pub fn seek(
    file: MPI_File,
    atomic: &Atomic,
    offset: MPI_Offset,
    whence: Whence,
    next: impl FnOnce() -> c_int,
) -> Result<c_int, Failure> {
    // The MPI library's own pointer was left where it was when the atomic mode began, and may be moved as well as not. It says what is
    // wrong with a place by the file's error handler, which may ask for the pointer; so that is not held meanwhile.
    let mut seen = *hold(&atomic.pointer);
    while whence == Whence::Current
        && let Some(place) = seen.checked_add(offset)
    {
        mpi::seek(file, place)?;
        let mut pointer = hold(&atomic.pointer);
        if *pointer == seen {
            *pointer = place;
            return Ok(mpi::success());
        }
        // Another thread has moved it.
        seen = *pointer;
    }
    let code = next();
    if code == mpi::success() {
        let place = if whence == Whence::Set { offset } else { mpi::position(file)? };
        *hold(&atomic.pointer) = place;
    }
    Ok(code)
}

/// Makes a change of a whole file in atomic mode, such as one of its size. Collective.
pub fn whole_file(atomic: &Atomic, act: impl FnOnce() -> c_int) -> Result<c_int, Failure> {
    let lock = whole_of_the_first(atomic, Mode::Exclusive)?;
    let code = act();
    released(atomic, lock)?;
    Ok(code)
}

/// Returns the request for the lock of the whole file, about which there are no hints.
fn whole(mode: Mode) -> lock::Request {
    lock::Request::new(Description::contiguous(0, nacre_lock::OFFSET_MAX), mode)
}

/// Locks the whole file, by the first process. All of them have to be here before it waits.
fn whole_of_the_first(atomic: &Atomic, mode: Mode) -> Result<Option<Held>, Failure> {
    atomic.party.meet()?;
    let locked = match atomic.party.rank {
        0 => Some(session::lock(&atomic.locks, &whole(mode))),
        _ => None,
    };
    let mut failed = [u8::from(matches!(locked, Some(Err(_))))];
    atomic.party.broadcast(&mut failed)?;
    match locked {
        Some(locked) => Ok(Some(locked?)),
        None if failed == [1] => Err(Failure::Elsewhere),
        None => Ok(None),
    }
}

/// Waits until all processes have done what the lock of the first one is for, and releases it.
fn released(atomic: &Atomic, lock: Option<Held>) -> Result<(), Failure> {
    atomic.party.meet()?;
    let released = lock.map(|lock| lock.check().and_then(|()| lock.release()));
    let mut failed = [u8::from(matches!(released, Some(Err(_))))];
    atomic.party.broadcast(&mut failed)?;
    match released {
        Some(released) => Ok(released?),
        None if failed == [1] => Err(Failure::Elsewhere),
        None => Ok(()),
    }
}
