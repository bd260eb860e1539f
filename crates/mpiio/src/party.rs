//! The processes that opened a file together, and what they tell each other.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use nacre_quantity::Escaped;

use crate::failure::Failure;
use crate::mpi::{self, Code, MPI_Comm, MPI_Request, byte, error_class_io};

// SAFETY: they are defined in constant.c, with these types.
unsafe extern "C" {
    safe static nacre_mpi_comm_type_shared: c_int;
    safe fn nacre_mpi_errors_return() -> mpi_sys::MPI_Errhandler;
}

/// The environment variable with the number of seconds for which a process that opened a file waits for the others to show that they
/// have this library too.
const WAIT_VARIABLE: &str = "NACRE_MPIIO_WAIT";

/// The number of seconds if the variable says nothing. All processes were inside `MPI_File_open` a moment ago, so that nothing of the
/// program can delay them.
const WAIT_SECONDS: u64 = 60;

/// The most that counts of the time between two looks for the others.
const STEP_MAX: Duration = Duration::from_millis(100);

/// Returns the error of a call that is not about a file.
fn result(code: c_int) -> Result<(), Failure> {
    mpi::result(code).map_err(Failure::NotReported)
}

/// Returns the address of bytes, and none for no bytes: Rust has them at address 1, which Open MPI takes for `MPI_IN_PLACE`.
fn address(bytes: &[u8]) -> *const c_void {
    if bytes.is_empty() { std::ptr::null() } else { bytes.as_ptr().cast() }
}

/// Returns the time for which a process waits for the others.
///
/// # Errors
///
/// A sentence, if the environment asks for something else than a time.
pub fn wait() -> Result<Duration, String> {
    let text = std::env::var_os(WAIT_VARIABLE).unwrap_or_default();
    if text.is_empty() {
        return Ok(Duration::from_secs(WAIT_SECONDS));
    }
    // Without any time, one process would give up while another finds all of them.
    let seconds = text.to_str().and_then(|text| text.parse::<u64>().ok()).filter(|seconds| *seconds > 0);
    seconds.map(Duration::from_secs).ok_or_else(|| {
        format!("{WAIT_VARIABLE}={} is wrong: it is a number of seconds, from 1 on", Escaped::of(&text))
    })
}

/// Waits until a request is complete, but no longer than something allows it. Returns whether it is complete.
///
/// MPI libraries spin where they wait. Where there are more processes than processors, that keeps these from whoever is waited for, such as
/// a rank that writes, or a lock server. So this gives its processor to others.
fn complete(request: &mut MPI_Request, mut goes_on: impl FnMut() -> bool) -> Result<bool, Failure> {
    while !mpi::test(request).map_err(Failure::NotReported)? {
        if !goes_on() {
            return Ok(false);
        }
        std::thread::yield_now();
    }
    Ok(true)
}

/// Begins a call, and waits for it as [`complete`] does.
///
/// # Safety
///
/// The call writes a request where it is told to if it succeeds, and what it uses is left to it until it is complete.
unsafe fn wait_for(
    begin: impl FnOnce(*mut MPI_Request) -> c_int,
    goes_on: impl FnMut() -> bool,
) -> Result<bool, Failure> {
    let mut request = MaybeUninit::uninit();
    result(begin(request.as_mut_ptr()))?;
    // SAFETY: the call succeeded, so the request is written.
    complete(&mut unsafe { request.assume_init() }, goes_on)
}

/// Returns whether all processes of a communicator come here. Those that do not have this library never do, and must not be waited for.
fn everybody_is_here(communicator: MPI_Comm) -> Result<bool, Failure> {
    // A wrong one is an error of the atomic mode, which all of them have to hear of.
    let wait = wait().unwrap_or(Duration::from_secs(WAIT_SECONDS));
    let (mut looked, mut waited) = (Instant::now(), Duration::ZERO);
    let goes_on = || {
        // Time in which this process stood still does not count: the whole job may have been suspended, and a process that gives up
        // is missed for ever by those that do not.
        let now = Instant::now();
        waited += now.duration_since(looked).min(STEP_MAX);
        looked = now;
        waited <= wait
    };
    // SAFETY: the call writes its request, and uses no memory of ours. If it does not complete, it is left as it is: a collective call cannot
    // be cancelled.
    unsafe { wait_for(|request| mpi_sys::PMPI_Ibarrier(communicator, request), goes_on) }
}

/// The processes that opened a file together, in a communicator of this library's own. Not freed when it is dropped, because that
/// is collective.
#[derive(Clone, Copy)]
pub struct Party {
    communicator: MPI_Comm,
    /// The number of this process.
    pub rank: usize,
    /// The number of processes.
    pub size: usize,
}

// SAFETY: handles on MPI's objects may be used by any thread; MPI itself forbids what it does not allow.
unsafe impl Send for Party {}
// SAFETY: as above.
unsafe impl Sync for Party {}

impl Party {
    /// Joins the processes of the communicator by which a file was opened; none if one of them does not have this library, and so does not
    /// answer. Collective over them.
    pub fn of(opened_by: MPI_Comm) -> Result<Option<Party>, Failure> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: the results are written to variables of the types that MPI declares.
        unsafe {
            result(mpi_sys::PMPI_Comm_rank(opened_by, &mut rank))?;
            result(mpi_sys::PMPI_Comm_size(opened_by, &mut size))?;
        }
        if size > 1 && !everybody_is_here(opened_by)? {
            return Ok(None);
        }
        // A communicator without the attributes of the program's own, and its error handler.
        let mut communicator = opened_by;
        // SAFETY: the result is written to a variable of its type.
        unsafe {
            result(mpi_sys::PMPI_Comm_split(opened_by, 0, rank, &mut communicator))?;
            result(mpi_sys::PMPI_Comm_set_errhandler(communicator, nacre_mpi_errors_return()))?;
        }
        let number = |number: c_int| usize::try_from(number).unwrap_or(0);
        Ok(Some(Party { communicator, rank: number(rank), size: number(size) }))
    }

    /// Returns the communicator. Errors of calls with it are returned.
    pub fn communicator(&self) -> MPI_Comm {
        self.communicator
    }

    /// Returns whether all processes share the memory of one node, as all of them say. Collective.
    pub fn is_on_one_node(&self) -> Result<bool, Failure> {
        let (mut node, mut size) = (self.communicator, 0);
        // SAFETY: the results are written to variables of their types; the communicator of the node is freed once.
        unsafe {
            result(mpi_sys::PMPI_Comm_split_type(
                self.communicator,
                nacre_mpi_comm_type_shared,
                0,
                mpi::info_null(),
                &mut node,
            ))?;
            let sized = mpi_sys::PMPI_Comm_size(node, &mut size);
            mpi_sys::PMPI_Comm_free(&mut node);
            result(sized)?;
        }
        let all = self.agree(usize::try_from(size) == Ok(self.size))?;
        Ok(all.into_iter().all(|all| all))
    }

    /// Leaves the other processes. Collective over them.
    pub fn leave(mut self) {
        // SAFETY: the handle is not used again. If MPI does not free it, it stays.
        unsafe { mpi_sys::PMPI_Comm_free(&mut self.communicator) };
    }

    /// Tells rank 0's bytes to all. All give the same length.
    pub fn broadcast(&self, bytes: &mut [u8]) -> Result<(), Failure> {
        let Ok(length) = c_int::try_from(bytes.len()) else {
            return Err(Failure::NotReported(Code(error_class_io())));
        };
        let (buffer, communicator) = (bytes.as_mut_ptr().cast(), self.communicator);
        // SAFETY: the call writes its request. The buffer has as many bytes as is said, and is borrowed until the call is complete.
        let begin =
            |request| unsafe { mpi_sys::PMPI_Ibcast(buffer, length, byte(), 0, communicator, request) };
        // SAFETY: as above.
        unsafe { wait_for(begin, || true) }.map(drop)
    }

    /// Returns whether each process succeeded, as all of them say.
    pub fn agree(&self, success: bool) -> Result<Vec<bool>, Failure> {
        let all = self.all_of(&[u8::from(success)])?;
        Ok(all.into_iter().map(|byte| byte == 1).collect())
    }

    /// Returns the bytes of each process, one behind the other. All give the same number, which is small.
    fn all_of(&self, mine: &[u8]) -> Result<Vec<u8>, Failure> {
        let mut all = vec![0u8; mine.len() * self.size];
        let (byte, length, communicator) = (byte(), mine.len() as c_int, self.communicator);
        let (from, into) = (mine.as_ptr().cast(), all.as_mut_ptr().cast());
        // SAFETY: the call writes its request. There are `length` bytes of each process, of which there are `size`, and both buffers stay until
        // the call is complete.
        let begin = |request| unsafe {
            mpi_sys::PMPI_Iallgather(from, length, byte, into, length, byte, communicator, request)
        };
        // SAFETY: as above.
        unsafe { wait_for(begin, || true) }?;
        Ok(all)
    }

    /// Waits until all are here.
    pub fn meet(&self) -> Result<(), Failure> {
        // SAFETY: the call writes its request.
        let begin = |request| unsafe { mpi_sys::PMPI_Ibarrier(self.communicator, request) };
        // SAFETY: the call uses no memory of ours.
        unsafe { wait_for(begin, || true) }.map(drop)
    }

    /// Sends bytes to each process, and receives some from each, of the lengths that the others send. Collective.
    pub fn exchange(&self, outgoing: &[&[u8]], incoming: &mut [&mut [u8]]) -> Result<(), Failure> {
        let mut requests = Vec::with_capacity(2 * self.size);
        let mut begun = Ok(());
        let mut begin = |length: usize, post: &mut dyn FnMut(c_int, *mut MPI_Request) -> c_int| {
            let mut request = MaybeUninit::uninit();
            let length = c_int::try_from(length).map_err(|_| Failure::NotReported(Code(error_class_io())))?;
            result(post(length, request.as_mut_ptr()))?;
            // SAFETY: the call succeeded, so the request is written.
            requests.push(unsafe { request.assume_init() });
            Ok(())
        };
        let (byte, communicator) = (byte(), self.communicator);
        for (process, bytes) in incoming.iter_mut().enumerate() {
            if process == self.rank {
                bytes.copy_from_slice(outgoing[process]);
            } else if begun.is_ok() && !bytes.is_empty() {
                // SAFETY: the slice has this many bytes, and this function returns only when the request is complete.
                begun = begin(bytes.len(), &mut |length, request| unsafe {
                    let (buffer, from) = (bytes.as_mut_ptr().cast(), process as c_int);
                    mpi_sys::PMPI_Irecv(buffer, length, byte, from, 0, communicator, request)
                });
            }
        }
        for (process, bytes) in outgoing.iter().enumerate() {
            if process != self.rank && begun.is_ok() && !bytes.is_empty() {
                // SAFETY: as above.
                begun = begin(bytes.len(), &mut |length, request| unsafe {
                    let (buffer, to) = (bytes.as_ptr().cast(), process as c_int);
                    mpi_sys::PMPI_Isend(buffer, length, byte, to, 0, communicator, request)
                });
            }
        }
        // All of them, also after an error: MPI uses the memory until then.
        for request in &mut requests {
            begun = begun.and(complete(request, || true).map(drop));
        }
        begun
    }

    /// Gathers everybody's bytes, up to a length for all together; rank 0 gets them, and nothing if they are longer.
    pub fn gather(&self, bytes: &[u8], all_max: usize) -> Result<Option<Vec<Vec<u8>>>, Failure> {
        let lengths = self.all_of(&(bytes.len() as u64).to_le_bytes())?;
        let lengths: Vec<u64> = lengths
            .chunks_exact(8)
            .map(|length| length.try_into().map_or(u64::MAX, u64::from_le_bytes))
            .collect();
        let all = lengths.iter().fold(0u64, |all, length| all.saturating_add(*length));
        if all > all_max.min(i32::MAX as usize) as u64 {
            return Ok(None);
        }
        let counts: Vec<c_int> = lengths.iter().map(|length| *length as c_int).collect();
        let starts: Vec<c_int> = counts
            .iter()
            .scan(0, |at, count| {
                let start = *at;
                *at += count;
                Some(start)
            })
            .collect();
        let mut gathered = vec![0u8; all as usize];
        let into = if gathered.is_empty() { std::ptr::null_mut() } else { gathered.as_mut_ptr().cast() };
        let byte = byte();
        // SAFETY: the bytes of process `i` go to `counts[i]` bytes from `starts[i]` on, all of which are within `gathered`.
        result(unsafe {
            mpi_sys::PMPI_Gatherv(
                address(bytes),
                bytes.len() as c_int,
                byte,
                into,
                counts.as_ptr(),
                starts.as_ptr(),
                byte,
                0,
                self.communicator,
            )
        })?;
        if self.rank != 0 {
            return Ok(Some(Vec::new()));
        }
        let parts = starts.iter().zip(&counts);
        Ok(Some(
            parts
                .map(|(start, count)| gathered[*start as usize..(*start + *count) as usize].to_vec())
                .collect(),
        ))
    }
}
