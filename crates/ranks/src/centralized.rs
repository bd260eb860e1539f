//! CP, the centralised parallel walk that the paper starts from (algorithm 1, section II-B): rank 0 is the master and
//! holds the only queue, every other rank is a worker. A worker asks for one entry, a file or a directory; it processes
//! a file, or lists a directory and sends all its children back; then it asks again. When the queue is empty and every
//! worker waits for work, everything is done: the workers' results travel before their next requests, so none can be in
//! flight then.
//!
//! In the paper's enhancement a worker keeps one of the entries that it found instead of asking for the next one (section V).
//!
//! LANL's implementation gave all directories to one worker, which then was the bottleneck (section II-B); that too is an option.
//!
//! A master without workers (one rank) works by itself.

use std::collections::VecDeque;

use super::message::{Message, Unit};
use super::queue::Queue;

/// The worker that reads directories where there is a single reader.
const READER: u32 = 1;

/// Rank 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Master {
    workers: u32,
    single_reader: bool,
    /// The workers that asked while the queue was empty.
    parked: VecDeque<u32>,
}

impl Master {
    pub(super) fn new(ranks: u32, single_reader: bool) -> Self {
        Self { workers: ranks - 1, single_reader: single_reader && ranks > 2, parked: VecDeque::new() }
    }

    pub(super) fn request(&mut self, from: u32) {
        self.parked.push_back(from);
    }

    /// Refuses all waiting workers, because the end was announced.
    pub(super) fn dismiss<W>(&mut self, mut send: impl FnMut(u32, Message<W>)) {
        for worker in self.parked.drain(..) {
            send(worker, Message::Refusal);
        }
    }

    /// Hands out the available units. Returns whether everything is done.
    pub(super) fn step<W>(
        &mut self,
        queue: &mut (impl Queue<W> + ?Sized),
        mut send: impl FnMut(u32, Message<W>),
    ) -> bool {
        if self.workers == 0 {
            if !queue.is_assigned()
                && let Some(unit) = queue.take(1).pop()
            {
                queue.assign(unit);
            }
            return queue.is_idle();
        }
        if self.single_reader {
            self.deal_by_kind(queue, send);
            return queue.is_idle() && self.parked.len() == self.workers as usize;
        }
        while !queue.is_empty() && !self.parked.is_empty() {
            let units = queue.take(1);
            if units.is_empty() {
                break;
            }
            if let Some(worker) = self.parked.pop_front() {
                send(worker, Message::Work(units));
            }
        }
        queue.is_idle() && self.parked.len() == self.workers as usize
    }

    /// Gives directories to the reader, and everything else to the other workers.
    fn deal_by_kind<W>(
        &mut self,
        queue: &mut (impl Queue<W> + ?Sized),
        mut send: impl FnMut(u32, Message<W>),
    ) {
        if let Some(place) = self.parked.iter().position(|worker| *worker == READER)
            && let Some(unit) = queue.take_one(true)
        {
            self.parked.remove(place);
            send(READER, Message::Work(vec![unit]));
        }
        while let Some(place) = self.parked.iter().position(|worker| *worker != READER) {
            let Some(unit) = queue.take_one(false) else { return };
            if let Some(worker) = self.parked.remove(place) {
                send(worker, Message::Work(vec![unit]));
            }
        }
    }
}

/// Any rank but 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Worker {
    keeps_one: bool,
    units_per_message_max: usize,
    asking: bool,
}

impl Worker {
    pub(super) fn new(keeps_one: bool, units_per_message_max: usize) -> Self {
        Self { keeps_one, units_per_message_max: units_per_message_max.max(1), asking: false }
    }

    pub(super) fn is_asking(&self) -> bool {
        self.asking
    }

    pub(super) fn reply_received(&mut self) {
        self.asking = false;
    }

    pub(super) fn work<W>(&mut self, units: Vec<W>, queue: &mut (impl Queue<W> + ?Sized)) {
        self.asking = false;
        let mut units = units.into_iter();
        if let Some(unit) = units.next() {
            queue.assign(unit);
        }
        // The master sends one at a time; whatever else came would go back to it.
        let rest: Vec<W> = units.collect();
        if !rest.is_empty() {
            queue.put(rest);
        }
    }

    /// Sends results back, those of a large directory while it is still read, and asks again once the assigned unit is done.
    pub(super) fn step<W: Unit>(
        &mut self,
        queue: &mut (impl Queue<W> + ?Sized),
        mut send: impl FnMut(u32, Message<W>),
    ) {
        if self.asking {
            return;
        }
        // The entries of a directory may be more than fit into memory at once.
        while queue.len() > self.units_per_message_max {
            let units = queue.take(self.units_per_message_max);
            if units.is_empty() {
                break;
            }
            send(0, Message::Results(units));
        }
        if queue.is_assigned() {
            return;
        }
        let kept = if self.keeps_one { queue.take(1).pop() } else { None };
        while !queue.is_empty() {
            let units = queue.take(self.units_per_message_max);
            if units.is_empty() {
                break;
            }
            send(0, Message::Results(units));
        }
        match kept {
            Some(unit) => queue.assign(unit),
            None => {
                self.asking = true;
                send(0, Message::Request);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PlainQueue;

    struct Entry;

    impl Unit for Entry {
        fn size_bytes(&self) -> u64 {
            4
        }
    }

    #[test]
    fn a_worker_sends_the_entries_of_a_large_directory_while_it_reads_it() {
        let mut worker = Worker::new(false, 10);
        let mut queue = PlainQueue::<Entry>::new([]);
        let mut sent = Vec::new();
        worker.work(vec![Entry], &mut queue);
        assert!(queue.begin(true).is_some());
        queue.put((0..25).map(|_| Entry).collect());
        worker
            .step(&mut queue, |to, message: Message<Entry>| sent.push((to, message.name(), message.units())));
        assert_eq!(sent, [(0, "results", 10), (0, "results", 10)]);
        queue.finish([]);
        worker
            .step(&mut queue, |to, message: Message<Entry>| sent.push((to, message.name(), message.units())));
        assert_eq!(sent[2..], [(0, "results", 5), (0, "request", 0)]);
    }
}
