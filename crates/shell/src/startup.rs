//! What a program finds when it starts, before the language's runtime puts it in order: whether standard output is closed.
//!
//! The runtime opens `/dev/null` in its place, so that no file that the program opens becomes its output. A command such as
//! `nacre get report >&-` would then succeed, and what it printed would be lost.

use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::fcntl_getfd;
use rustix::stdio::{dup2_stdout, stdout};

/// True if standard output was closed at the start.
static CLOSED: AtomicBool = AtomicBool::new(false);

// SAFETY: The loader calls what is in this section before `main`, as functions of the C calling convention, which this one is. It
// makes one system call, and needs nothing of the runtime.
#[allow(unsafe_code)]
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    CLOSED.store(fcntl_getfd(stdout()).is_err(), Ordering::Relaxed);
}

/// Has writing to standard output fail if it was closed when the program started. To be called at the beginning of `main`.
pub fn keep_output_closed() {
    if !CLOSED.load(Ordering::Relaxed) {
        return;
    }
    // A socket without a peer takes nothing, and says so. The runtime would not report a descriptor that is closed.
    if let Ok(nowhere) = UnixDatagram::unbound() {
        let _ = dup2_stdout(&nowhere);
    }
}
