//! Threads for accesses that go on after the non-blocking call that began them has returned.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex};

use crate::signals;
use crate::table::hold;

/// The maximum number of threads. Each of them waits for a lock, or moves bytes under one, so that one alone would get on with all.
const THREADS_MAX: usize = 8;

/// Something to do.
pub type Work = Box<dyn FnOnce() + Send>;

struct Queue {
    work: VecDeque<Work>,
    threads: usize,
    /// The number of threads that wait for work.
    idle: usize,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue { work: VecDeque::new(), threads: 0, idle: 0 });
static ADDED: Condvar = Condvar::new();

/// Has a thread do something soon. Does it at once if no thread can be started.
pub fn run(work: Work) {
    let mut queue = hold(&QUEUE);
    if queue.work.len() >= queue.idle && queue.threads < THREADS_MAX {
        let thread = std::thread::Builder::new().name("nacre-io".to_owned());
        match signals::blocked(|| thread.spawn(serve)) {
            Ok(_) => queue.threads += 1,
            Err(_) if queue.threads == 0 => {
                drop(queue);
                return work();
            }
            Err(_) => {}
        }
    }
    queue.work.push_back(work);
    drop(queue);
    ADDED.notify_one();
}

fn serve() {
    let mut queue = hold(&QUEUE);
    loop {
        if let Some(work) = queue.work.pop_front() {
            drop(queue);
            // The program would wait forever for what was not done.
            if catch_unwind(AssertUnwindSafe(work)).is_err() {
                std::process::abort();
            }
            queue = hold(&QUEUE);
        } else {
            queue.idle += 1;
            queue = ADDED.wait(queue).unwrap_or_else(|poisoned| poisoned.into_inner());
            queue.idle -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn work_is_done_while_other_work_waits() {
        let (release, wait) = channel::<()>();
        let (done, dones) = channel();
        let first = done.clone();
        run(Box::new(move || {
            wait.recv().unwrap();
            first.send(0).unwrap();
        }));
        for number in 1..=20 {
            let done = done.clone();
            run(Box::new(move || done.send(number).unwrap()));
        }
        let mut others: Vec<i32> = dones.iter().take(20).collect();
        others.sort_unstable();
        assert_eq!(others, (1..=20).collect::<Vec<_>>());
        release.send(()).unwrap();
        assert_eq!(dones.recv().unwrap(), 0);
    }
}
