//! The threads of a copy: they walk the source, or wait for its only file, and help each other with large files.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nacre_walk::{Options as WalkOptions, Queue, Walk};
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::copy::data::{BUFFER_BYTES, Halt};
use crate::copy::destination::Destination;
use crate::copy::job::{Job, JobContext};
use crate::copy::{Copy, Shared, file, visitor};
use crate::error::EntryError;

impl Shared {
    fn around(&self) -> JobContext<'_> {
        JobContext { control: &self.control, cuts: &self.cuts, bytes: &self.counters.bytes }
    }

    /// Works on a large file with all idle threads.
    pub fn run(&self, job: Job, buffer: &mut [u8]) -> Result<(), Halt> {
        self.jobs.run(job, &self.around(), buffer, || {
            if let Some(call) = &*self.call.lock() {
                call();
            }
        })
    }

    /// Helps other threads with a large file, and returns whether there was work.
    pub fn help(&self, buffer: &mut Vec<u8>) -> bool {
        buffer.resize(BUFFER_BYTES, 0);
        self.jobs.help(&self.around(), buffer)
    }

    fn attach<S: Send + Sync + 'static>(&self, queue: &Arc<Queue<S>>) {
        self.control.attach(queue);
        let queue = Arc::clone(queue);
        *self.call.lock() = Some(Box::new(move || queue.call()));
    }
}

impl Copy {
    /// Walks the whole source with a visitor for each thread.
    pub(super) fn walk<V: nacre_walk::Visitor<State: 'static>>(&self, visitor: impl Fn() -> V) {
        self.walk_with(true, visitor, |walk, visitors| {
            walk.run(visitors);
        });
    }

    /// Passes a walk and its visitors to `work`, which runs it; it begins at the source if `begin` is set.
    pub(super) fn walk_with<V: nacre_walk::Visitor<State: 'static>, T>(
        &self,
        begin: bool,
        visitor: impl Fn() -> V,
        work: impl FnOnce(&mut Walk<V::State>, &mut [V]) -> T,
    ) -> T {
        let options = WalkOptions {
            threads: self.shared.options.threads,
            // Files are opened, and asked when they are.
            metadata: self.shared.options.selection.filter.needs_metadata(),
            cross_mounts: self.shared.options.cross_mounts,
            keep_open: true,
            keep_access_times: true,
            ..WalkOptions::default()
        };
        let mut visitors: Vec<V> = (0..options.threads.get()).map(|_| visitor()).collect();
        let mut walk = Walk::new(options);
        self.shared.attach(walk.queue());
        let started = walk
            .add_root(&self.source_path)
            .map_err(|_| EntryError::new(self.source.path_bytes(), "cannot copy", Errno::INVAL))
            .and_then(|root| match begin {
                true => walk.start(root, &mut visitors[0]).map_err(EntryError::from),
                false => Ok(()),
            });
        if let Err(failure) = started {
            self.shared.failures.add(failure);
        }
        let done = work(&mut walk, &mut visitors);
        *self.shared.call.lock() = None;
        done
    }

    /// Copies a source that is a single file: the other threads help with it, if it is large.
    pub(super) fn copy_one(&self, top: &Arc<Destination>) {
        self.alone(|buffer| {
            let item = file::Item {
                shared: &self.shared,
                role: file::Role::Alone,
                source: self.source.parent(),
                source_name: self.source.name(),
                destination: top,
                name: self.destination.name(),
            };
            visitor::account(&self.shared, self.kind, item.copy(self.kind, buffer), || {
                self.source.path_bytes()
            });
        });
    }

    /// Does work in this thread while the others help with its large files.
    pub(super) fn alone(&self, work: impl FnOnce(&mut Vec<u8>)) {
        let over = AtomicBool::new(false);
        let calls = (Mutex::new(0_u64), parking_lot::Condvar::new());
        let calls = Arc::new(calls);
        let caller = Arc::clone(&calls);
        *self.shared.call.lock() = Some(Box::new(move || {
            *caller.0.lock() += 1;
            caller.1.notify_all();
        }));
        std::thread::scope(|scope| {
            for _ in 1..self.shared.options.threads.get() {
                scope.spawn(|| {
                    let (mut buffer, mut known) = (Vec::new(), 0);
                    loop {
                        let mut now = calls.0.lock();
                        while *now == known && !over.load(Ordering::SeqCst) {
                            calls.1.wait(&mut now);
                        }
                        known = *now;
                        drop(now);
                        if over.load(Ordering::SeqCst) {
                            break;
                        }
                        self.shared.help(&mut buffer);
                    }
                });
            }
            work(&mut Vec::new());
            let _lock = calls.0.lock();
            over.store(true, Ordering::SeqCst);
            calls.1.notify_all();
        });
        *self.shared.call.lock() = None;
    }
}
