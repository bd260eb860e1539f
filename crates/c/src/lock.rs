//! Locks on the bytes of files.

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nacre::Error;
use nacre::lock::{BlockingLock, Description, Mode, OFFSET_MAX, Request};

use crate::argument::{handle_slot, name, required};
use crate::code::{Failure, NACRE_CLOSED, call};
use crate::handle::{self, Handle, get};
use crate::pattern::nacre_pattern;
use crate::store::nacre_store;

/// Others may hold the same bytes in this mode too.
pub const NACRE_LOCK_SHARED: c_int = 0;
/// Exclusive: nobody else may hold any of the bytes.
pub const NACRE_LOCK_EXCLUSIVE: c_int = 1;

/// Locked bytes of a file.
pub struct nacre_lock {
    /// None once it is released.
    lock: Mutex<Option<BlockingLock>>,
    store: nacre_store,
}

impl Handle for nacre_lock {
    const WHAT: &'static str = "a lock";
}

impl nacre_lock {
    fn held<T>(&self, ask: impl FnOnce(&BlockingLock) -> Result<T, Error>) -> Result<T, Failure> {
        // Nothing is changed while it is locked, but that it is released.
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let released = || Failure::new(NACRE_CLOSED, "the lock was released");
        Ok(ask(lock.as_ref().ok_or_else(released)?)?)
    }
}

/// Locks the bytes of a pattern in a file, all of it if the pattern is NULL. A file is named by 1 to 255 bytes of UTF-8; it is the object of
/// that name, which need not exist. `mode` is NACRE_LOCK_SHARED or NACRE_LOCK_EXCLUSIVE. Waits for bytes that others hold for `wait_ms`
/// milliseconds: not at all if it is 0, for ever if it is negative. NACRE_BUSY if others still hold some then, or a lock server was started
/// again and waits for its former clients.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_lock_acquire(
    store: *mut nacre_store,
    file: *const c_void,
    file_length: usize,
    pattern: *mut nacre_pattern,
    mode: c_int,
    wait_ms: i64,
    lock: *mut *mut nacre_lock,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let slot = handle_slot(lock)?;
        let store = get(store)?;
        let file = store.open()?.file(name(file, file_length, "the name of the file")?)?;
        let description = match pattern.is_null() {
            true => Description::contiguous(0, OFFSET_MAX),
            false => get(pattern)?.description().clone(),
        };
        let mode = match mode {
            NACRE_LOCK_SHARED => Mode::Shared,
            NACRE_LOCK_EXCLUSIVE => Mode::Exclusive,
            _ => return Err(Failure::invalid(format!("{mode} is not a mode of a lock"))),
        };
        let request = Request::new(description, mode);
        let request = match u64::try_from(wait_ms) {
            Err(_) => request,
            Ok(0) => request.without_wait(),
            Ok(wait_ms) => request.wait(Duration::from_millis(wait_ms)),
        };
        let lock = file.lock_by(&request)?;
        let lock = Mutex::new(Some(lock));
        slot.put(nacre_lock { lock, store: store.further(store.open()?.clone()) });
        Ok(())
    })
}

/// Stores the lock's fencing token: the number of its session, for nacre_store_for_session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_lock_token(lock: *mut nacre_lock, token: *mut u64) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let slot = required(token, "the token")?;
        slot.set(get(lock)?.held(|lock| Ok(lock.token()))?);
        Ok(())
    })
}

/// Checks that a lock is held. NACRE_CLOSED if it is lost.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_lock_check(lock: *mut nacre_lock) -> c_int {
    call(|| get(lock)?.held(BlockingLock::check))
}

/// Returns a handle on the store that acts under the lock: once the lock is lost or released, everything through it fails, and the store
/// refuses what is still under way. To be closed by nacre_store_close.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_lock_store(lock: *mut nacre_lock, store: *mut *mut nacre_store) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let slot = handle_slot(store)?;
        let lock = get(lock)?;
        slot.put(lock.store.further(lock.held(|lock| Ok(lock.store()))?));
        Ok(())
    })
}

/// Releases a lock, and ends the handle in any case. NACRE_CLOSED if the lock was lost before: what was done under it may have failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_lock_release(lock: *mut nacre_lock) -> c_int {
    call(|| {
        let lock = handle::take(lock)?;
        let held = lock.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
        let released = || Failure::new(NACRE_CLOSED, "the lock was released");
        Ok(held.ok_or_else(released)?.release()?)
    })
}
