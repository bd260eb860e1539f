//! Signals, which are the program's own: threads of this library take none of them.

use std::mem::MaybeUninit;
use std::ptr;

/// Calls a function while this thread takes no signals, so that threads that it starts never take any.
pub fn blocked<T>(act: impl FnOnce() -> T) -> T {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: the sets are written before they are used.
    let changed = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr())
    };
    let done = act();
    if changed == 0 {
        // SAFETY: the call that changed the mask has written the one before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    }
    done
}
