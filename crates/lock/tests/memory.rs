//! The memory of held locks, by what the allocator gave.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nacre_lock::message::{Call, LockSpec, SessionId};
use nacre_lock::server::{Server, Settings};
use nacre_lock::table::Mode;
use nacre_lock::{Datatype, OFFSET_MAX, Pattern};

struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is handed to the system's allocator as it comes.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The bytes for each of many held locks, of one file each or all of one, without their patterns.
fn bytes_per_lock(locks: u64, files: u64) -> usize {
    let mut server = Server::new(Settings::default());
    let mut out = Vec::new();
    let now = Duration::ZERO;
    let names: Vec<String> = (0..files).map(|i| format!("{i}")).collect();
    let before = ALLOCATED.load(Ordering::Relaxed);
    let mut of_patterns = 0;
    for i in 0..locks {
        // A thousand sessions.
        let session = SessionId(i % 1000);
        server.handle(now, session, 0, Call::Open, &mut out);
        let pattern = Pattern::new(&Datatype::byte().vector(16, 1, 64).at(i * 1024)).unwrap();
        of_patterns += pattern.memory_bytes();
        let spec = LockSpec {
            file: names[(i % files) as usize].as_str().into(),
            operation: i,
            mode: Mode::Exclusive,
            pattern,
        };
        let call = Call::Acquire { request: i, spec: Some(spec), until: Some(OFFSET_MAX) };
        server.handle(now, session, 0, call, &mut out);
        out.clear();
    }
    assert_eq!(server.request_counts(), (locks as usize, 0));
    let taken = ALLOCATED.load(Ordering::Relaxed) - before;
    taken.saturating_sub(of_patterns) / locks as usize
}

#[test]
fn a_held_lock_takes_at_most_512_bytes_and_its_pattern() {
    for locks in [10_000, 30_000, 60_000] {
        let bytes = bytes_per_lock(locks, 1);
        assert!(bytes <= 512, "{bytes} bytes for each of {locks} locks of one file");
        eprintln!("{bytes} bytes for each of {locks} locks of one file");
    }
}
