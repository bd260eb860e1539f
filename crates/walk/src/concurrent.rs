//! Tests of a walk's threads under a scheduler that switches between them at every synchronisation point, as a seed
//! decides: `cargo test -p nacre-walk --features shuttle --lib concurrent`. `NACRE_ITERATIONS` sets the number of
//! histories.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use crossbeam_deque::Worker;
use shuttle::thread;

use crate::Unit;
use crate::directory::{self, Budget, Directory, TreePosition};
use crate::getdents::Records;
use crate::pool::{Found, Queue, Work};

fn iterations() -> usize {
    std::env::var("NACRE_ITERATIONS").map_or(400, |text| text.parse().expect("NACRE_ITERATIONS is a number"))
}

fn check(test: impl Fn() + Send + Sync + 'static) {
    let test = Arc::new(test);
    let also = Arc::clone(&test);
    shuttle::check_random(move || test(), iterations());
    shuttle::check_pct(move || also(), iterations(), 3);
}

fn open_directory(path: &Path) -> Arc<Directory<()>> {
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    let budget = Arc::new(Budget::new(0, false));
    let descriptor = directory::open(None, &name, false, &budget).unwrap();
    Directory::new(TreePosition { parent: None, name: &name, root: 0, inode: 0 }, descriptor, ())
}

#[test]
fn a_directory_is_read_once_though_others_close_it_and_open_it_again() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..12 {
        std::fs::write(folder.path().join(format!("{number} {}", "x".repeat(100))), "").unwrap();
    }
    let path = folder.path().to_owned();
    check(move || {
        let directory = open_directory(&path);
        directory.learn_stability(&directory.descriptor().unwrap());
        let closers: Vec<_> = (0..2)
            .map(|_| {
                let directory = Arc::clone(&directory);
                thread::spawn(move || {
                    for _ in 0..3 {
                        directory.close_for_now();
                        directory.descriptor().unwrap();
                    }
                })
            })
            .collect();
        let mut seen = BTreeMap::new();
        let mut buffer = [0; 300];
        loop {
            let (_, len) = directory.read(&mut buffer).unwrap();
            if len == 0 {
                break;
            }
            let records = Records(&buffer[..len]);
            if let Some(last) = records.clone().last() {
                directory.set_position(last.next);
            }
            records.for_each(|record| *seen.entry(record.name.to_owned()).or_insert(0) += 1);
        }
        closers.into_iter().for_each(|closer| closer.join().unwrap());
        assert_eq!(seen.len(), 12);
        assert!(seen.values().all(|times| *times == 1), "{seen:?}");
    });
}

/// Runs one thread of a walk on a tree of numbers: each node has two children on the next level.
fn work(queue: &Queue<()>, own: &Worker<Work<()>>, number: usize, levels: usize) -> Vec<Vec<u8>> {
    let mut done = Vec::new();
    while !queue.is_stopped() {
        let calls = queue.calls();
        let work = match queue.pop(own).or_else(|| queue.steal(number)) {
            Some(work) => work,
            None => match queue.wait(number, calls) {
                Found::Work(work) => work,
                Found::Call => continue,
                Found::Nothing => break,
            },
        };
        let Work::Located(unit) = work else { unreachable!("nothing else is queued") };
        if unit.path.len() < levels {
            for below in [b'a', b'b'] {
                let path = [&unit.path[..], &[below]].concat();
                queue.push(own, Work::Located(Unit { path, ..Unit::default() }));
            }
        }
        done.push(unit.path);
        queue.count_out();
    }
    done
}

fn every_node(levels: usize) -> Vec<Vec<u8>> {
    let mut nodes = vec![Vec::new()];
    let mut at = 0;
    while at < nodes.len() {
        let node: Vec<u8> = nodes[at].clone();
        at += 1;
        if node.len() < levels {
            nodes.extend([b'a', b'b'].map(|below| [&node[..], &[below]].concat()));
        }
    }
    nodes.sort();
    nodes
}

#[test]
fn every_piece_is_done_once_and_all_threads_end() {
    check(|| {
        const THREADS: usize = 3;
        const LEVELS: usize = 2;
        let (queue, workers) = Queue::<()>::new(THREADS);
        let queue = Arc::new(queue);
        queue.keep_open();
        let threads: Vec<_> = workers
            .into_iter()
            .enumerate()
            .map(|(number, own)| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || work(&queue, &own, number, LEVELS))
            })
            .collect();
        // Work comes from outside while they run, and some goes there; they may find nothing and sleep in between.
        queue.put(vec![Unit::default()]);
        let mut given = queue.take(2);
        queue.call();
        queue.put(std::mem::take(&mut given));
        while !queue.wait_idle(std::time::Duration::from_secs(1)) {}
        queue.close();
        let mut done: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        done.sort();
        assert_eq!(done, every_node(LEVELS));
        assert!(queue.is_idle() && queue.units() == 0);
    });
}

#[test]
fn a_stop_ends_all_threads_and_what_is_left_is_queued() {
    check(|| {
        const LEVELS: usize = 3;
        let (queue, workers) = Queue::<()>::new(2);
        let queue = Arc::new(queue);
        queue.put(vec![Unit::default()]);
        let threads: Vec<_> = workers
            .into_iter()
            .enumerate()
            .map(|(number, own)| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || (work(&queue, &own, number, LEVELS), own))
            })
            .collect();
        queue.stop();
        let (mut seen, mut workers) = (Vec::new(), Vec::new());
        for thread in threads {
            let (done, own) = thread.join().unwrap();
            seen.extend(done);
            workers.push(own);
        }
        // Below what is left is the rest of the tree.
        while let Some(Work::Located(unit)) = queue.steal(0) {
            let left = every_node(LEVELS).into_iter().filter(|node| node.starts_with(&unit.path));
            seen.extend(left);
            queue.count_out();
        }
        seen.sort();
        assert_eq!(seen, every_node(LEVELS));
        assert!(queue.is_idle());
    });
}
