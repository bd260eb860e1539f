//! Requests of non-blocking accesses: generalized requests, which the program waits for as for others.
//!
//! Where any thread may call the MPI library, an access goes on in the background, and its thread completes the request. Elsewhere it is done
//! inside the call that begins it, and the request is complete from the beginning. MPI allows that: the call does not wait for another
//! process to call anything, because whoever holds a lock is on its way to release it.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, OnceLock};

use crate::background;
use crate::failure::Failure;
use crate::mpi::{self, Code, MPI_Request, MPI_Status};

/// The end of an access, once there is one: the number of bytes, or an error code.
type Outcome = OnceLock<Result<u64, c_int>>;

/// The part of an access that is left to do. It returns the number of bytes.
pub type Rest = Box<dyn FnOnce() -> Result<u64, Failure> + Send>;

/// Returns the error code of an access that has ended, or that of success.
fn code_of(outcome: &Outcome) -> c_int {
    match outcome.get() {
        Some(Err(code)) => *code,
        _ => mpi::success(),
    }
}

/// Tells the status of a request.
///
/// # Safety
///
/// `state` is the outcome of a request of [`start`], and the status is one.
unsafe extern "C" fn query(state: *mut c_void, status: *mut MPI_Status) -> c_int {
    // SAFETY: the outcome lives until `free` is called, and MPI gives a status to be filled in.
    let (outcome, status) = unsafe { (&*state.cast_const().cast::<Outcome>(), &mut *status) };
    let bytes = outcome.get().map_or(0, |outcome| outcome.unwrap_or(0));
    if let Err(Code(code)) = mpi::set_bytes(status, bytes) {
        return code;
    }
    let code = code_of(outcome);
    // MPI libraries look at the one or at the other.
    if code != mpi::success() {
        status.MPI_ERROR = code;
    }
    code
}

/// Frees the state of a request.
///
/// # Safety
///
/// `state` is the outcome of a request of [`start`], and is not used again.
unsafe extern "C" fn free(state: *mut c_void) -> c_int {
    // SAFETY: `start` has given it up for the request.
    let outcome = unsafe { Arc::from_raw(state.cast_const().cast::<Outcome>()) };
    // The last function that is called for a request tells its error.
    code_of(&outcome)
}

unsafe extern "C" fn cancel(_state: *mut c_void, _complete: c_int) -> c_int {
    // It is done, or will be, and cannot be undone.
    mpi::success()
}

/// A request that is not complete.
struct Pending {
    request: MPI_Request,
    outcome: Arc<Outcome>,
}

// SAFETY: handles on MPI's objects may be used by any thread, if MPI lets several threads call it at all.
unsafe impl Send for Pending {}

impl Pending {
    fn complete(self, outcome: Result<u64, c_int>) {
        // It is set once, here.
        let _ = self.outcome.set(outcome);
        // SAFETY: the request is one that was started, and is completed once. Should MPI fail, nobody could be told.
        unsafe { mpi_sys::PMPI_Grequest_complete(self.request) };
    }
}

/// Makes a request.
///
/// # Safety
///
/// `request` points to where the program wants the request.
unsafe fn start(request: *mut MPI_Request) -> Result<Pending, Code> {
    let outcome = Arc::new(Outcome::new());
    let state = Arc::into_raw(outcome.clone());
    // SAFETY: the functions are of the types that MPI declares, and take the state for what it is.
    unsafe {
        let state = state.cast_mut().cast();
        let code = mpi_sys::PMPI_Grequest_start(Some(query), Some(free), Some(cancel), state, request);
        mpi::result(code).inspect_err(|_| drop(Arc::from_raw(state.cast_const().cast::<Outcome>())))?;
        Ok(Pending { request: *request, outcome })
    }
}

/// Makes a request that is complete, of an access that transferred so many bytes.
///
/// # Safety
///
/// `request` points to where the program wants the request.
pub unsafe fn completed(bytes: u64, request: *mut MPI_Request) -> Result<(), Code> {
    // SAFETY: as the caller says.
    unsafe { start(request) }?.complete(Ok(bytes));
    Ok(())
}

/// Makes a request that is complete once a thread in the background has done the rest of an access, for a call of the program. MPI lets any
/// thread call it.
///
/// # Safety
///
/// `request` points to where the program wants the request.
pub unsafe fn in_background(call: &'static str, rest: Rest, request: *mut MPI_Request) -> Result<(), Code> {
    // SAFETY: as the caller says.
    let pending = unsafe { start(request) }?;
    background::run(Box::new(move || {
        let done = rest().map_err(|failure| {
            let code = failure.code();
            failure.said(call);
            code
        });
        pending.complete(done);
    }));
    Ok(())
}
