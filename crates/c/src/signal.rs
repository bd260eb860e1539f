//! SIGPIPE, which ends a program that writes to a connection that was closed. Programs in Rust ignore it from the start, others do not, and what
//! they do with it is theirs to say. So it is blocked while a thread is in this library, and the library's own threads, which begin in calls,
//! never have it unblocked.

use std::mem::MaybeUninit;
use std::ptr;

/// SIGPIPE kept from the calling thread, until this value is dropped.
pub struct Blocked {
    /// The signals that were blocked before; nothing if SIGPIPE was one of them.
    before: Option<libc::sigset_t>,
}

impl Blocked {
    /// Blocks SIGPIPE in the calling thread.
    pub fn new() -> Blocked {
        let mut before = MaybeUninit::uninit();
        // SAFETY: the sets are memory of their type, and the one that is read was filled.
        unsafe {
            let pipe = pipe();
            if libc::pthread_sigmask(libc::SIG_BLOCK, &pipe, before.as_mut_ptr()) != 0 {
                return Blocked { before: None };
            }
            let before = before.assume_init();
            Blocked { before: (libc::sigismember(&before, libc::SIGPIPE) == 0).then_some(before) }
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        let Some(before) = self.before else { return };
        let (mut pending, now) = (MaybeUninit::uninit(), libc::timespec { tv_sec: 0, tv_nsec: 0 });
        // SAFETY: the sets are memory of their type, and those that are read were filled.
        unsafe {
            // The one that came of this library's writes is taken off, so that it does not come when it is unblocked.
            if libc::sigpending(pending.as_mut_ptr()) == 0
                && libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 1
            {
                libc::sigtimedwait(&pipe(), ptr::null_mut(), &now);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut());
        }
    }
}

fn pipe() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call fills the set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGPIPE);
        set.assume_init()
    }
}
