//! Requests of non-blocking accesses: generalized requests that are complete from the beginning.
//!
//! A non-blocking access in atomic mode is done inside the call that begins it. MPI allows that: the call does not wait for another process to
//! call anything, because whoever holds a lock is on its way to release it.

use std::ffi::{c_int, c_void};

use crate::mpi::{self, Code, MPI_Request, MPI_Status};

/// Tells the status of a request.
///
/// # Safety
///
/// `bytes` is the state of a request of [`completed`], which is a count in the place of a pointer, and the status is one.
unsafe extern "C" fn query(bytes: *mut c_void, status: *mut MPI_Status) -> c_int {
    // SAFETY: MPI gives a status to be filled in.
    let status = unsafe { &mut *status };
    match mpi::set_bytes(status, bytes.addr() as u64) {
        Ok(()) => mpi::success(),
        Err(Code(code)) => code,
    }
}

unsafe extern "C" fn free(_bytes: *mut c_void) -> c_int {
    mpi::success()
}

unsafe extern "C" fn cancel(_bytes: *mut c_void, _complete: c_int) -> c_int {
    // It is done, and cannot be undone.
    mpi::success()
}

/// Makes a request that is complete, of an access that transferred so many bytes.
///
/// # Safety
///
/// `request` points to where the program wants the request.
pub unsafe fn completed(bytes: u64, request: *mut MPI_Request) -> Result<(), Code> {
    let state = std::ptr::without_provenance_mut(bytes as usize);
    // SAFETY: the functions are of the types that MPI declares, and take the state for what it is.
    unsafe {
        mpi::result(mpi_sys::PMPI_Grequest_start(Some(query), Some(free), Some(cancel), state, request))?;
        mpi::result(mpi_sys::PMPI_Grequest_complete(*request))
    }
}
