//! Signals, which are the program's own: threads of this library take none of them, and none comes of what it does in the program's threads.
//!
//! SIGPIPE ends a program that writes to a connection that was closed, such as that to a lock server that has ended. The program's threads
//! write to servers when they lock and release bytes.

use std::mem::MaybeUninit;
use std::ptr;

/// Calls a function while this thread takes no signals, so that threads that it starts never take any.
pub fn blocked<T>(act: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::uninit();
    // SAFETY: the call fills the set.
    let _before = Before::block(unsafe {
        libc::sigfillset(all.as_mut_ptr());
        all.assume_init()
    });
    act()
}

/// Calls a function that writes to connections. The signal that comes of it where one was closed is not for the program.
pub fn without_pipe<T>(act: impl FnOnce() -> T) -> T {
    let _before = Before::block(pipe());
    act()
}

/// The signals that were blocked in this thread, which are so again when this is dropped.
struct Before(Option<libc::sigset_t>);

impl Before {
    fn block(signals: libc::sigset_t) -> Before {
        let mut before = MaybeUninit::uninit();
        // SAFETY: the set that is read was filled, and the other one is memory of its type, which is used only if the call has filled it.
        unsafe {
            let code = libc::pthread_sigmask(libc::SIG_BLOCK, &signals, before.as_mut_ptr());
            Before((code == 0).then(|| before.assume_init()))
        }
    }
}

impl Drop for Before {
    fn drop(&mut self) {
        let Some(before) = self.0 else { return };
        let (mut pending, now) = (MaybeUninit::uninit(), libc::timespec { tv_sec: 0, tv_nsec: 0 });
        // SAFETY: the sets are memory of their type, and those that are read were filled.
        unsafe {
            // Otherwise it would come as soon as it is not blocked any more.
            if libc::sigismember(&before, libc::SIGPIPE) == 0
                && libc::sigpending(pending.as_mut_ptr()) == 0
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_pipe_does_not_end_a_program_that_does_not_ignore_it() {
        // SAFETY: the calls take no memory, but for the ends of the pipe, whose array is long enough, and one byte. The child calls
        // nothing that is not allowed after a fork of a process with several threads.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::signal(libc::SIGPIPE, libc::SIG_DFL);
                let mut ends = [0; 2];
                libc::pipe(ends.as_mut_ptr());
                libc::close(ends[0]);
                let write = || libc::write(ends[1], [0u8].as_ptr().cast(), 1) == -1;
                let failed = without_pipe(write) && blocked(write);
                libc::_exit(if failed { 7 } else { 8 });
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            status
        };
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status:#x}");
    }
}
