//! Requests of non-blocking accesses: generalized requests, which the program waits for as for others.
//!
//! An access goes on in the background, where nothing calls the MPI library: not all programs let several threads do so. A thread of the
//! program completes the request, when it waits for requests or tests them. Whoever waits for one of this library's requests waits for its
//! access first, without MPI. That ends, because whoever holds bytes that the access wants is on its way to release them, and needs nothing
//! from this process for it.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, OnceLock};

use crate::atomic::{Moved, Rest};
use crate::background;
use crate::failure::Failure;
use crate::mpi::{self, Code, MPI_Request, MPI_Status};
use crate::table::hold;

/// The end of an access, once its request is complete: the number of bytes, or an error code.
type Outcome = OnceLock<Result<u64, c_int>>;

/// A request that is not complete.
struct Pending {
    request: MPI_Request,
    outcome: Arc<Outcome>,
    /// The call that began the access.
    call: &'static str,
    /// The end of the access in the background, once it is there.
    done: Option<Moved>,
}

// SAFETY: a handle on an object of MPI may be used by any thread that may call MPI, and others only keep this value.
unsafe impl Send for Pending {}

type All = HashMap<usize, Pending>;

static PENDING: LazyLock<Mutex<All>> = LazyLock::new(Mutex::default);

/// The number of requests in [`PENDING`], so that nothing is looked up where there is none.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Tells that an access is done.
static DONE: Condvar = Condvar::new();

fn key(request: MPI_Request) -> usize {
    request.0 as usize
}

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

impl Pending {
    fn complete(self, outcome: Result<u64, c_int>) {
        // It is set once, here.
        let _ = self.outcome.set(outcome);
        // SAFETY: the request is one that was started, and is completed once. Should MPI fail, nobody could be told.
        unsafe { mpi_sys::PMPI_Grequest_complete(self.request) };
    }

    /// Completes the request with the result of its access, which is done.
    fn finish(mut self) {
        let done = self.done.take().map_or(Err(Failure::Elsewhere), Moved::finish);
        let call = self.call;
        self.complete(done.map_err(|failure| {
            let code = failure.code();
            failure.said(call);
            code
        }));
    }
}

/// Creates a request.
///
/// # Safety
///
/// `request` points to where the program wants the request.
unsafe fn start(call: &'static str, request: *mut MPI_Request) -> Result<Pending, Code> {
    let outcome = Arc::new(Outcome::new());
    let state = Arc::into_raw(outcome.clone());
    // SAFETY: the functions are of the types that MPI declares, and take the state for what it is.
    unsafe {
        let state = state.cast_mut().cast();
        let code = mpi_sys::PMPI_Grequest_start(Some(query), Some(free), Some(cancel), state, request);
        mpi::result(code).inspect_err(|_| drop(Arc::from_raw(state.cast_const().cast::<Outcome>())))?;
        Ok(Pending { request: *request, outcome, call, done: None })
    }
}

/// Creates a complete request of an access, given the number of bytes that it transferred.
///
/// # Safety
///
/// `request` points to where the program wants the request.
pub unsafe fn completed(call: &'static str, bytes: u64, request: *mut MPI_Request) -> Result<(), Code> {
    // SAFETY: as the caller says.
    let pending = unsafe { start(call, request) }?;
    pending.complete(Ok(bytes));
    Ok(())
}

/// Creates a request that is complete when the program has waited for it, and the rest of the access is done in the background.
///
/// # Safety
///
/// `request` points to where the program wants the request.
pub unsafe fn in_background(call: &'static str, rest: Rest, request: *mut MPI_Request) -> Result<(), Code> {
    // SAFETY: as the caller says.
    let pending = unsafe { start(call, request) }?;
    let key = key(pending.request);
    hold(&PENDING).insert(key, pending);
    COUNT.fetch_add(1, Ordering::Relaxed);
    background::run(Box::new(move || {
        let done = rest();
        if let Some(pending) = hold(&PENDING).get_mut(&key) {
            pending.done = Some(done);
        }
        DONE.notify_all();
    }));
    Ok(())
}

/// Takes a request out, and completes it.
fn finish(mut all: MutexGuard<'_, All>, key: usize) {
    let pending = all.remove(&key);
    // Completing one may call the program's functions.
    drop(all);
    if let Some(pending) = pending {
        COUNT.fetch_sub(1, Ordering::Relaxed);
        pending.finish();
    }
}

/// Returns whether a request is not complete though its access is done.
fn is_done(all: &All, key: usize) -> bool {
    all.get(&key).is_some_and(|pending| pending.done.is_some())
}

/// Returns whether requests of accesses are not complete. Whoever waits for one has got it from the call that counted it, so that nothing
/// else has to be in order with the count.
#[inline]
pub fn is_any_pending() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

/// Completes requests whose accesses are done.
pub fn complete_done() {
    loop {
        let all = hold(&PENDING);
        let Some(key) = all.keys().copied().find(|key| is_done(&all, *key)) else { return };
        finish(all, key);
    }
}

/// Waits for the accesses of requests, and completes these. Others are left as they are.
pub fn wait_for_all(requests: &[MPI_Request]) {
    for request in requests {
        wait_for(key(*request));
    }
}

fn wait_for(key: usize) {
    let mut all = hold(&PENDING);
    while all.contains_key(&key) {
        if is_done(&all, key) {
            return finish(all, key);
        }
        all = DONE.wait(all).unwrap_or_else(|poisoned| poisoned.into_inner());
    }
}

/// Waits for one of the accesses of requests, and completes all of these that are done. Others are left as they are.
pub fn wait_for_any(requests: &[MPI_Request]) {
    let mut all = hold(&PENDING);
    let keys: Vec<usize> =
        requests.iter().map(|request| key(*request)).filter(|key| all.contains_key(key)).collect();
    // Another thread may have completed one meanwhile.
    while !keys.is_empty() && keys.iter().all(|key| all.contains_key(key) && !is_done(&all, *key)) {
        all = DONE.wait(all).unwrap_or_else(|poisoned| poisoned.into_inner());
    }
    drop(all);
    complete_done();
}

/// Waits for all accesses, and completes their requests.
pub fn finish_all() {
    while let Some(key) = first_key() {
        wait_for(key);
    }
}

fn first_key() -> Option<usize> {
    hold(&PENDING).keys().next().copied()
}
