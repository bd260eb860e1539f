//! A discrete-event simulation of a walk: the real algorithms, between a modelled network and a modelled metadata
//! service, on a tree that is never materialised. From two ranks to Cielo's 8,944 nodes of 16 cores, and 110 million
//! files.
//!
//! A rank has a communicating thread, whose port its messages pass one after the other ([`Network`]), and walking threads: one, and
//! for H-DRQS several. A walking thread reads a directory slice by slice, of [`Study::slice_entries`]. It lists the slice; then the
//! subdirectories in it and the rest of the directory are in the queue, where others can have them; then it calls `lstat` for each
//! entry of the slice. In CP, as published, each entry is a unit: a worker calls `lstat` for it, and if it is a directory,
//! lists all of it and sends the entries to the master.
//!
//! Three things can limit a walk here, and which one does decides how the algorithms compare:
//!
//! - *The walkers*: each waits for the metadata service's latency, entry by entry. Then the time is inversely
//!   proportional to the number of walking threads, whatever the algorithm, and H-DRQS is faster than the same number
//!   of single-threaded processes by the number of threads of each of its processes. That is the paper's setting: 40
//!   processes, on 20 nodes of 16 cores.
//! - *The metadata service*: its rate. Then all algorithms take the same time.
//! - *The master* of CP: its port takes, for each entry, a request and an answer, and handles the entry itself twice,
//!   in and out. Then more workers and faster file systems help the other algorithms but not CP, and the ratio grows
//!   without bound.
//!
//! A ratio between two algorithms therefore says little without the number of threads of each, the rate of the metadata
//! service and the cost of a message; they are all in [`Study`]. The paper's CP also had
//! [a single reader](Study::single_reader), which is a fourth limit: directories, one after the other.
//!
//! A message that arrives while a port is busy waits; since ports are first come, first served, the time at which it
//! will be handled is known at its arrival, and the algorithm is given it at once, with that later time. With
//! [`Study::pauses`] it first waits until the communicating thread looks for messages.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use super::model::{Metadata, Network, Service};
use super::outcome::{Outcome, PAIRS_RANKS_MAX, Profile, RankOutcome};
use super::tree::{Piece, Shape};
use crate::proximity::Nodes;
use crate::{Algorithm, BackOff, Message, Options, Outbox, Pauses, Pausing, Queue, Rank, Traffic, Unit};

/// The parameters of a simulation.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Study {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The number of nodes of the machine.
    pub nodes: u32,
    /// The number of ranks on each node.
    pub ranks_per_node: u32,
    /// The number of walking threads of each rank; above 1 only for H-DRQS.
    pub threads: u32,
    /// The tree.
    pub shape: Shape,
    /// The network.
    pub network: Network,
    /// The metadata service.
    pub metadata: Metadata,
    /// The number of a directory's entries that a thread takes at a time; the rest can be given away.
    pub slice_entries: u64,
    /// The seed of all random choices.
    pub seed: u64,
    /// CP only: workers keep one of the entries that they found.
    pub keeps_one: bool,
    /// CP only: one worker reads all directories.
    pub single_reader: bool,
    /// PA-DRQS only: applies the paper's refinements.
    pub refined: bool,
    /// The waiting times of idle ranks; by default those suited to the number of ranks.
    pub back_off: Option<BackOff>,
    /// The pauses of communicating threads between looks for messages; without them, every message is seen at once.
    pub pauses: Option<Pauses>,
}

impl Study {
    /// Creates a study with the default models.
    pub fn new(algorithm: Algorithm, nodes: u32, ranks_per_node: u32, threads: u32, shape: Shape) -> Self {
        Self {
            algorithm,
            nodes,
            ranks_per_node,
            threads,
            shape,
            network: Network::default(),
            metadata: Metadata::default(),
            slice_entries: 256,
            seed: 1,
            keeps_one: false,
            single_reader: false,
            refined: true,
            back_off: None,
            pauses: None,
        }
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> u32 {
        self.nodes * self.ranks_per_node
    }

    /// Runs the simulation. Returns `None` if the algorithm did not terminate, which is an error in the algorithm.
    pub fn run(&self) -> Option<Outcome> {
        Simulation::new(self).run()
    }
}

/// A rank's queue of pieces, in order, counted in units.
#[derive(Debug, Default)]
struct PieceQueue {
    pieces: VecDeque<Piece>,
    /// Single files, where they are kept apart from directories.
    files: VecDeque<Piece>,
    apart: bool,
    units: u64,
    working: u32,
    assigned: Option<Piece>,
    in_hand: bool,
}

impl PieceQueue {
    fn push(&mut self, piece: Piece) {
        let count = piece.count();
        if count > 0 {
            self.units += count;
            match piece {
                Piece::Files { .. } if self.apart => self.files.push_back(piece),
                _ => self.pieces.push_back(piece),
            }
        }
    }

    fn begin(&mut self, assigned_only: bool) -> Option<Piece> {
        let piece = match self.assigned.take() {
            Some(piece) => {
                self.in_hand = true;
                piece
            }
            None if assigned_only => return None,
            None => self.pieces.pop_back().inspect(|piece| self.units -= piece.count())?,
        };
        self.working += 1;
        Some(piece)
    }
}

impl Queue<Piece> for PieceQueue {
    fn len(&self) -> usize {
        self.units as usize
    }

    fn working(&self) -> usize {
        self.working as usize
    }

    fn is_idle(&self) -> bool {
        self.units == 0 && self.working == 0 && self.assigned.is_none()
    }

    fn take(&mut self, units: usize) -> Vec<Piece> {
        let mut left = units as u64;
        let mut taken = take_front(&mut self.pieces, &mut left);
        taken.append(&mut take_front(&mut self.files, &mut left));
        self.units -= units as u64 - left;
        taken
    }

    fn take_one(&mut self, directory: bool) -> Option<Piece> {
        let mut left = 1;
        let taken = take_front(if directory { &mut self.pieces } else { &mut self.files }, &mut left).pop();
        self.units -= 1 - left;
        taken
    }

    fn put(&mut self, units: Vec<Piece>) {
        for unit in units {
            self.push(unit);
        }
    }

    fn assign(&mut self, unit: Piece) {
        self.assigned = Some(unit);
    }

    fn is_assigned(&self) -> bool {
        self.assigned.is_some() || self.in_hand
    }
}

/// Takes up to `left` units from the front, and decreases `left` by their number.
fn take_front(pieces: &mut VecDeque<Piece>, left: &mut u64) -> Vec<Piece> {
    let mut taken = Vec::new();
    while *left > 0
        && let Some(front) = pieces.front_mut()
    {
        match front {
            Piece::Files { count, depth } if *count > *left => {
                *count -= *left;
                taken.push(Piece::Files { count: *left, depth: *depth });
                *left = 0;
            }
            piece => {
                *left -= piece.count();
                taken.extend(pieces.pop_front());
            }
        }
    }
    taken
}

struct Member {
    rank: Rank,
    queue: PieceQueue,
    /// The time at which the port will be free, in nanoseconds.
    port_free_ns: u64,
    /// The time of the earliest event set for the rank's timeout, in nanoseconds.
    timer_ns: Option<u64>,
    /// With pauses: the messages that it has not seen, and the time at which it last sent or saw one.
    unseen: VecDeque<(u32, Message<Piece>)>,
    happened_ns: u64,
    visited: u64,
    /// The time at which a unit was last done here.
    last_work_ns: u64,
    busy_ns: u64,
    port_ns: u64,
}

impl Member {
    /// Returns the time, not before `now_ns`, at which it looks for messages.
    fn look_ns(&self, now_ns: u64, pauses: &Pauses, algorithm: Algorithm) -> u64 {
        let pausing = if self.rank.is_asking() || algorithm.has_master() {
            Pausing::Asking
        } else if Queue::<Piece>::is_idle(&self.queue) {
            Pausing::Idle
        } else {
            Pausing::Working { gives: self.queue.units > 0 }
        };
        let mut look_ns = self.happened_ns;
        while look_ns < now_ns {
            // A thread that waits for an answer only yields for the first 20 µs.
            let quiet_ns = look_ns - self.happened_ns;
            look_ns += pauses.next_ns(quiet_ns, pausing).max(20_000);
        }
        look_ns
    }
}

enum Event {
    Arrive {
        from: u32,
        to: u32,
        message: Message<Piece>,
    },
    /// A slice was listed: `entries` of it are to be looked up, and `uncovered` holds the subdirectories and the rest.
    Listed {
        rank: u32,
        entries: u64,
        uncovered: Vec<Piece>,
    },
    /// A unit is done: `visited` entries of it, and, for CP, the units that it uncovered.
    Done {
        rank: u32,
        visited: u64,
        uncovered: Vec<Piece>,
    },
    Timer {
        rank: u32,
    },
    /// A communicating thread looks for messages.
    Look {
        rank: u32,
    },
}

struct Simulation<'a> {
    study: &'a Study,
    nodes: Arc<Nodes>,
    members: Vec<Member>,
    service: Service,
    due: BinaryHeap<Reverse<(u64, u64, u32)>>,
    /// Events that are due, indexed by the number in `due`; `free` lists the free indices.
    events: Vec<Option<Event>>,
    free: Vec<u32>,
    order: u64,
    outbox: Outbox<Piece>,
    profile: [u64; 3],
    directories: u64,
    last_visit_ns: u64,
    announced_ns: Option<u64>,
    over_ns: u64,
    over: u32,
}

const CALLBACK: usize = 0;
const STAT: usize = 1;
const READDIR: usize = 2;

impl<'a> Simulation<'a> {
    fn new(study: &'a Study) -> Self {
        let ranks = study.ranks();
        let nodes = Arc::new(Nodes::blocks(ranks, study.ranks_per_node));
        let defaults = Options::new(study.algorithm, 1, study.seed);
        let options = Options {
            back_off: study.back_off.unwrap_or(BackOff::for_ranks(ranks)),
            nodes: nodes.clone(),
            keeps_one: study.keeps_one,
            single_reader: study.single_reader,
            refined: study.refined,
            count_peers: ranks <= PAIRS_RANKS_MAX,
            ..defaults
        };
        let members = (0..ranks)
            .map(|rank| Member {
                rank: Rank::new(rank, ranks, &options),
                queue: PieceQueue { apart: study.single_reader, ..PieceQueue::default() },
                port_free_ns: 0,
                timer_ns: None,
                unseen: VecDeque::new(),
                happened_ns: 0,
                visited: 0,
                last_work_ns: 0,
                busy_ns: 0,
                port_ns: 0,
            })
            .collect();
        Self {
            study,
            nodes,
            members,
            service: Service::new(study.metadata),
            due: BinaryHeap::new(),
            events: Vec::new(),
            free: Vec::new(),
            order: 0,
            outbox: Outbox::new(),
            profile: [0; 3],
            directories: 0,
            last_visit_ns: 0,
            announced_ns: None,
            over_ns: 0,
            over: 0,
        }
    }

    fn at(&mut self, time_ns: u64, event: Event) {
        let place = match self.free.pop() {
            Some(place) => {
                self.events[place as usize] = Some(event);
                place
            }
            None => {
                self.events.push(Some(event));
                self.events.len() as u32 - 1
            }
        };
        self.order += 1;
        self.due.push(Reverse((time_ns, self.order, place)));
    }

    fn run(mut self) -> Option<Outcome> {
        let root = Piece::Directory { directory: self.study.shape.root(), from: 0 };
        self.members[0].queue.push(root);
        for rank in 0..self.members.len() as u32 {
            self.poll(0, rank);
        }
        while let Some(Reverse((now_ns, _, place))) = self.due.pop() {
            let Some(event) = self.events[place as usize].take() else { continue };
            self.free.push(place);
            match event {
                Event::Arrive { from, to, message } => match self.study.pauses {
                    None => self.arrive(now_ns, from, to, message),
                    Some(pauses) => {
                        let look_ns =
                            self.members[to as usize].look_ns(now_ns, &pauses, self.study.algorithm);
                        self.members[to as usize].unseen.push_back((from, message));
                        self.at(look_ns, Event::Look { rank: to });
                    }
                },
                Event::Look { rank } => self.look_for_messages(now_ns, rank),
                // A worker of CP keeps what it found until it is done with the directory.
                Event::Listed { rank, entries, uncovered } if self.study.algorithm.has_master() => {
                    self.look(now_ns, rank, entries, uncovered);
                }
                Event::Listed { rank, entries, uncovered } => {
                    let member = &mut self.members[rank as usize];
                    for piece in uncovered {
                        member.queue.push(piece);
                    }
                    self.look(now_ns, rank, entries, Vec::new());
                    self.poll(now_ns, rank);
                }
                Event::Done { rank, visited, uncovered } => {
                    let member = &mut self.members[rank as usize];
                    member.visited += visited;
                    member.last_work_ns = now_ns;
                    member.queue.working -= 1;
                    member.queue.in_hand = false;
                    for piece in uncovered {
                        member.queue.push(piece);
                    }
                    self.last_visit_ns = now_ns;
                    // A thread that has no more work wakes the communicating one.
                    if Queue::<Piece>::is_idle(&self.members[rank as usize].queue) {
                        self.look_for_messages(now_ns, rank);
                    }
                    self.poll(now_ns, rank);
                }
                Event::Timer { rank } => {
                    let member = &mut self.members[rank as usize];
                    if member.timer_ns == Some(now_ns) {
                        member.timer_ns = None;
                    }
                    if member.rank.next_timeout_ns().is_some_and(|timeout_ns| timeout_ns <= now_ns) {
                        self.look_for_messages(now_ns, rank);
                        self.poll(now_ns, rank);
                    }
                }
            }
        }
        (self.over == self.members.len() as u32).then(|| self.outcome())
    }

    /// Handles the messages that a rank has not seen.
    fn look_for_messages(&mut self, now_ns: u64, rank: u32) {
        while let Some((from, message)) = self.members[rank as usize].unseen.pop_front() {
            self.members[rank as usize].happened_ns = now_ns;
            self.arrive(now_ns, from, rank, message);
        }
    }

    fn arrive(&mut self, now_ns: u64, from: u32, to: u32, message: Message<Piece>) {
        let port_ns = self.study.network.port_ns(message.size_bytes(), message.units());
        let member = &mut self.members[to as usize];
        let handled_ns = now_ns.max(member.port_free_ns) + port_ns;
        member.port_free_ns = handled_ns;
        member.port_ns += port_ns;
        member.rank.handle(handled_ns, from, message, &mut member.queue, &mut self.outbox);
        self.after(handled_ns, to);
    }

    fn poll(&mut self, now_ns: u64, rank: u32) {
        // Threads first: what they begin is not idle.
        self.begin(now_ns, rank);
        let member = &mut self.members[rank as usize];
        let now_ns = now_ns.max(member.port_free_ns);
        member.rank.poll(now_ns, &mut member.queue, &mut self.outbox);
        self.after(now_ns, rank);
    }

    /// Sends the rank's messages, lets its threads begin new work, and sets its timer.
    fn after(&mut self, now_ns: u64, rank: u32) {
        if !self.outbox.is_empty() {
            self.members[rank as usize].happened_ns = now_ns;
        }
        while let Some((to, message)) = self.outbox.pop() {
            let port_ns = self.study.network.port_ns(message.size_bytes(), message.units());
            let alpha_ns = self.study.network.alpha_ns(self.nodes.are_colocated(rank, to));
            let member = &mut self.members[rank as usize];
            let start_ns = now_ns.max(member.port_free_ns);
            member.port_free_ns = start_ns + port_ns;
            member.port_ns += port_ns;
            if rank == 0 && self.announced_ns.is_none() && matches!(message, Message::Halt(_)) {
                self.announced_ns = Some(start_ns);
            }
            // The bytes come out at the other end while they still go in at this one.
            let head_ns = start_ns + self.study.network.handling_ns + alpha_ns;
            self.at(head_ns, Event::Arrive { from: rank, to, message });
        }
        self.begin(now_ns, rank);
        let member = &mut self.members[rank as usize];
        if member.rank.is_finished() {
            if member.timer_ns != Some(u64::MAX) {
                // Counted once; nothing is waited for any more.
                member.timer_ns = Some(u64::MAX);
                self.over += 1;
                self.over_ns = self.over_ns.max(now_ns);
            }
        } else if let Some(timeout_ns) = member.rank.next_timeout_ns()
            && member.timer_ns.is_none_or(|timer_ns| timeout_ns < timer_ns)
        {
            member.timer_ns = Some(timeout_ns);
            self.at(timeout_ns, Event::Timer { rank });
        }
    }

    /// Lets idle threads begin queued work.
    fn begin(&mut self, now_ns: u64, rank: u32) {
        let assigned_only = self.study.algorithm.has_master();
        loop {
            let member = &mut self.members[rank as usize];
            if member.queue.working >= self.study.threads || member.rank.shutdown().is_some() {
                return;
            }
            let Some(piece) = member.queue.begin(assigned_only) else { return };
            if assigned_only {
                self.begin_entry(now_ns, rank, piece)
            } else {
                self.begin_slice(now_ns, rank, piece)
            }
        }
    }

    /// Lists a slice of a directory; its subdirectories and the rest of the directory enter the queue once that is
    /// done.
    fn begin_slice(&mut self, now_ns: u64, rank: u32, piece: Piece) {
        let Piece::Directory { directory, from } = piece else {
            // Only CP has single files as units.
            return self.look(now_ns, rank, piece.count(), Vec::new());
        };
        let listing = self.study.shape.list(directory);
        let begin = u64::from(from);
        let end = (begin + self.study.slice_entries).min(listing.entries());
        let mut uncovered = Vec::new();
        if end < listing.entries() {
            uncovered.push(Piece::Directory { directory, from: end as u32 });
        }
        uncovered.extend(
            listing.between(begin, end).iter().map(|child| Piece::Directory { directory: *child, from: 0 }),
        );
        self.directories += u64::from(from == 0);
        let pages = (end - begin).div_ceil(self.study.metadata.page_entries.max(1)).max(1);
        let listed_ns = self.service.pages(now_ns, pages);
        self.spent(rank, READDIR, listed_ns - now_ns);
        self.at(listed_ns, Event::Listed { rank, entries: end - begin, uncovered });
    }

    /// Calls `lstat` for one entry of CP, and lists all of it if it is a directory.
    fn begin_entry(&mut self, now_ns: u64, rank: u32, piece: Piece) {
        let Piece::Directory { directory, .. } = piece else {
            return self.look(now_ns, rank, piece.count(), Vec::new());
        };
        let listing = self.study.shape.list(directory);
        self.directories += 1;
        let pages = listing.entries().div_ceil(self.study.metadata.page_entries.max(1)).max(1);
        let listed_ns = self.service.pages(now_ns, pages);
        self.spent(rank, READDIR, listed_ns - now_ns);
        let mut uncovered: Vec<Piece> =
            listing.directories.iter().map(|child| Piece::Directory { directory: *child, from: 0 }).collect();
        uncovered.push(Piece::Files { count: listing.files, depth: directory.depth() + 1 });
        // The root was named by the user; every other directory is an entry of its parent.
        let entries = u64::from(directory.depth() > 0);
        self.at(listed_ns, Event::Listed { rank, entries, uncovered });
    }

    /// Calls `lstat` and the callback for some entries.
    fn look(&mut self, now_ns: u64, rank: u32, entries: u64, uncovered: Vec<Piece>) {
        let seen_ns = self.service.stats(now_ns, entries);
        let callback_ns = entries * self.study.metadata.callback_ns;
        self.spent(rank, STAT, seen_ns - now_ns);
        self.spent(rank, CALLBACK, callback_ns);
        self.at(seen_ns + callback_ns, Event::Done { rank, visited: entries, uncovered });
    }

    fn spent(&mut self, rank: u32, on: usize, ns: u64) {
        self.profile[on] += ns;
        self.members[rank as usize].busy_ns += ns;
    }

    fn outcome(self) -> Outcome {
        let seconds = |ns: u64| ns as f64 / 1e9;
        let by_rank: Vec<RankOutcome> = self
            .members
            .iter()
            .map(|member| {
                let counters = member.rank.counters();
                RankOutcome {
                    visited: member.visited,
                    last_work_seconds: seconds(member.last_work_ns),
                    busy_seconds: seconds(member.busy_ns),
                    port_seconds: seconds(member.port_ns),
                    sent: counters.sent,
                    received: counters.received,
                    requests: counters.requests,
                    refusals: counters.refusals_received,
                    units_given: counters.units_given,
                }
            })
            .collect();
        let mut sent = Traffic::default();
        by_rank.iter().for_each(|rank| sent.add(rank.sent));
        let ranks = self.members.len() as u32;
        let walking = ranks - u32::from(self.study.algorithm.has_master() && ranks > 1);
        let available_ns = self.over_ns * u64::from(walking) * u64::from(self.study.threads);
        let busy_ns: u64 = self.profile.iter().sum();
        let profile = Profile {
            callback_seconds: seconds(self.profile[CALLBACK]),
            stat_seconds: seconds(self.profile[STAT]),
            readdir_seconds: seconds(self.profile[READDIR]),
            communication_seconds: by_rank.iter().map(|rank| rank.port_seconds).sum(),
            idle_seconds: seconds(available_ns.saturating_sub(busy_ns)),
        };
        let bytes_by_pair = (ranks <= PAIRS_RANKS_MAX).then(|| {
            let row =
                |member: &Member| member.rank.counters().sent_to.iter().map(|tally| tally.bytes).collect();
            self.members.iter().map(row).collect()
        });
        Outcome {
            algorithm: self.study.algorithm,
            nodes: self.study.nodes,
            ranks,
            threads: self.study.threads,
            entries: self.study.shape.entries,
            directories: self.directories,
            seconds: seconds(self.over_ns),
            announced_seconds: seconds(self.announced_ns.unwrap_or(self.over_ns)),
            last_visit_seconds: seconds(self.last_visit_ns),
            metadata_busy: self.service.busy_ps as f64 / 1e3 / self.over_ns.max(1) as f64,
            sent,
            profile,
            by_rank,
            bytes_by_pair,
            events: self.order,
        }
    }
}

#[cfg(test)]
mod tests;
