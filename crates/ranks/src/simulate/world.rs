//! Some ranks, the tree that they walk, and the messages between them, as one value. Nothing happens by itself: the
//! owner of a [`World`] asks which steps are possible and takes one. After every step the world checks these
//! invariants:
//!
//! - no node is begun twice;
//! - when the end is announced, no work is left in any queue, in work or in flight, and every node was visited;
//! - nothing arrives at a rank that has left;
//! - at the end no message is in flight, and every node that was uncovered was either visited once or is in exactly one
//!   queue.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::{Choose, Message, Options, Outbox, PlainQueue, Queue, Random, Rank, Shutdown, Unit};

/// A node of a [`Tree`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Node(pub u32);

impl Unit for Node {
    fn size_bytes(&self) -> u64 {
        4
    }
}

/// A tree whose only property is its shape. Node 0 is the root.
#[derive(Clone, Debug)]
pub struct Tree {
    children: Vec<Vec<u32>>,
}

impl Tree {
    /// Builds a tree from every node's parent: node `i + 1` hangs below `parents[i]`, which is at most `i`.
    pub fn new(parents: &[u32]) -> Self {
        let mut children = vec![Vec::new(); parents.len() + 1];
        for (index, parent) in parents.iter().enumerate() {
            children[*parent as usize].push(index as u32 + 1);
        }
        Self { children }
    }

    /// Creates a random tree of `nodes` (at least 1), with a shape between a star and a chain.
    pub fn random(nodes: u32, random: &mut Random) -> Self {
        let reach = 1 + random.below(u64::from(nodes));
        let parents: Vec<u32> = (0..u64::from(nodes) - 1)
            .map(|index| {
                let first = (index + 1).saturating_sub(reach);
                (first + random.below(index + 1 - first)) as u32
            })
            .collect();
        Self::new(&parents)
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> u32 {
        self.children.len() as u32
    }
}

/// A step that can be taken next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The oldest message from the first rank to the second arrives.
    Deliver(u32, u32),
    /// The rank begins a unit of work.
    Begin(u32),
    /// The rank finishes the unit that it began first.
    Finish(u32),
    /// The rank's timeout is reached.
    Timeout(u32),
    /// The rank is asked to stop.
    Stop(u32),
}

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The end was announced too early.
    Early(String),
    /// A node was begun for the second time.
    Twice(Node),
    /// A message arrived at a rank that had left.
    AfterExit {
        /// The sender.
        from: u32,
        /// The rank that had left.
        to: u32,
        /// The name of the message.
        message: &'static str,
    },
    /// Nodes were lost, or are pending twice at the end.
    Lost(String),
    /// No step is possible, and the walk is not over.
    Stuck,
    /// The walk does not terminate.
    Endless,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Early(why) => write!(f, "the end was announced too early: {why}"),
            Self::Twice(node) => write!(f, "node {} was begun twice", node.0),
            Self::AfterExit { from, to, message } => {
                write!(f, "a {message} from rank {from} arrived at rank {to}, which had left")
            }
            Self::Lost(what) => write!(f, "at the end: {what}"),
            Self::Stuck => f.write_str("nothing can happen any more, and it is not over"),
            Self::Endless => f.write_str("it does not come to an end"),
        }
    }
}

/// Ranks, tree and network.
#[derive(Clone, Debug)]
pub struct World<R = Random> {
    tree: Arc<Tree>,
    ranks: Vec<Rank<R>>,
    queues: Vec<PlainQueue<Node>>,
    in_work: Vec<VecDeque<Node>>,
    /// The messages from every rank to every rank, oldest first.
    channels: Vec<VecDeque<Message<Node>>>,
    begun: Vec<bool>,
    finished: Vec<bool>,
    threads: usize,
    assigned_only: bool,
    now_ns: u64,
    outbox: Outbox<Node>,
}

impl World<Random> {
    /// Creates `ranks` at the beginning of their walk of `tree`, each with `threads` to work.
    pub fn new(tree: Arc<Tree>, ranks: u32, threads: usize, options: &Options) -> Self {
        let random = |rank| Random::part(options.seed, u64::from(rank));
        Self::with_random(tree, ranks, threads, options, random)
    }
}

impl<R: Choose> World<R> {
    /// Creates a world like [`World::new`], with each rank's choices made by what `random` returns for it.
    pub fn with_random(
        tree: Arc<Tree>,
        ranks: u32,
        threads: usize,
        options: &Options,
        random: impl Fn(u32) -> R,
    ) -> Self {
        let nodes = tree.nodes() as usize;
        let mut queues = vec![PlainQueue::default(); ranks as usize];
        queues[0].put(vec![Node(0)]);
        Self {
            tree,
            ranks: (0..ranks).map(|rank| Rank::with_random(rank, ranks, options, random(rank))).collect(),
            queues,
            in_work: vec![VecDeque::new(); ranks as usize],
            channels: vec![VecDeque::new(); (ranks * ranks) as usize],
            begun: vec![false; nodes],
            finished: vec![false; nodes],
            threads,
            assigned_only: options.algorithm.has_master(),
            now_ns: 0,
            outbox: Outbox::new(),
        }
    }

    /// Puts the root into this rank's queue instead of rank 0's, as a checkpoint may have left it. To be called before
    /// [`start`](Self::start).
    pub fn place_root(&mut self, rank: u32) {
        let root = self.queues[0].take(1);
        self.queues[rank as usize].put(root);
    }

    /// Polls every rank for the first time. To be called once, before any step.
    ///
    /// # Errors
    /// A violated invariant.
    pub fn start(&mut self) -> Result<(), Violation> {
        (0..self.ranks.len() as u32).try_for_each(|rank| self.poll(rank))
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// Returns one of the ranks.
    pub fn rank(&self, rank: u32) -> &Rank<R> {
        &self.ranks[rank as usize]
    }

    pub(crate) fn rank_mut(&mut self, rank: u32) -> &mut Rank<R> {
        &mut self.ranks[rank as usize]
    }

    /// Returns the time in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Advances the time.
    pub fn advance(&mut self, ns: u64) {
        self.now_ns += ns;
    }

    /// Returns the number of nodes that were begun.
    pub fn begun(&self) -> u32 {
        self.begun.iter().filter(|begun| **begun).count() as u32
    }

    /// Returns the earliest timeout of any rank.
    pub fn next_timeout_ns(&self) -> Option<u64> {
        self.ranks.iter().filter_map(Rank::next_timeout_ns).min()
    }

    /// Returns the shutdown, if all ranks have left.
    pub fn ended(&self) -> Option<Shutdown> {
        self.ranks.iter().all(Rank::is_finished).then(|| self.ranks[0].shutdown()).flatten()
    }

    /// Appends the possible steps to `steps`: deliveries, beginnings and ends of work, and timeouts not after
    /// `until_ns`.
    pub fn possible(&self, until_ns: u64, steps: &mut Vec<Step>) {
        let ranks = self.ranks();
        for from in 0..ranks {
            for to in 0..ranks {
                if !self.channels[(from * ranks + to) as usize].is_empty() {
                    steps.push(Step::Deliver(from, to));
                }
            }
        }
        for rank in 0..ranks {
            let index = rank as usize;
            if self.can_begin(index) {
                steps.push(Step::Begin(rank));
            }
            if !self.in_work[index].is_empty() {
                steps.push(Step::Finish(rank));
            }
            if self.ranks[index].next_timeout_ns().is_some_and(|timeout_ns| timeout_ns <= until_ns) {
                steps.push(Step::Timeout(rank));
            }
        }
    }

    /// Returns whether the rank can begin a unit: an engine begins nothing once the end was announced to its rank.
    fn can_begin(&self, index: usize) -> bool {
        self.in_work[index].len() < self.threads
            && self.ranks[index].shutdown().is_none()
            && self.queues[index].can_begin(self.assigned_only)
    }

    /// Takes a step, which must be possible.
    ///
    /// # Errors
    /// A violated invariant.
    pub fn take(&mut self, step: Step) -> Result<(), Violation> {
        match step {
            Step::Deliver(from, to) => {
                let ranks = self.ranks();
                let Some(message) = self.channels[(from * ranks + to) as usize].pop_front() else {
                    return Ok(());
                };
                let index = to as usize;
                if self.ranks[index].is_finished() {
                    return Err(Violation::AfterExit { from, to, message: message.name() });
                }
                let Self { ranks, queues, outbox, now_ns, .. } = self;
                ranks[index].handle(*now_ns, from, message, &mut queues[index], outbox);
                self.sent(to)
            }
            Step::Begin(rank) => {
                let index = rank as usize;
                let Some(node) = self.queues[index].begin(self.assigned_only) else { return Ok(()) };
                if std::mem::replace(&mut self.begun[node.0 as usize], true) {
                    return Err(Violation::Twice(node));
                }
                self.in_work[index].push_back(node);
                Ok(())
            }
            Step::Finish(rank) => {
                let index = rank as usize;
                let Some(node) = self.in_work[index].pop_front() else { return Ok(()) };
                self.finish(index, node);
                self.poll(rank)
            }
            Step::Timeout(rank) => self.poll(rank),
            Step::Stop(rank) => {
                let Self { ranks, queues, outbox, now_ns, .. } = self;
                ranks[rank as usize].stop(*now_ns, &mut queues[rank as usize], outbox);
                self.sent(rank)
            }
        }
    }

    /// Takes a step at another time, and returns to the present.
    pub(crate) fn take_at(&mut self, now_ns: u64, step: Step) -> Result<(), Violation> {
        let present_ns = std::mem::replace(&mut self.now_ns, now_ns);
        let result = self.take(step);
        self.now_ns = present_ns;
        result
    }

    fn finish(&mut self, index: usize, node: Node) {
        self.finished[node.0 as usize] = true;
        let tree = self.tree.clone();
        self.queues[index].finish(tree.children[node.0 as usize].iter().map(|child| Node(*child)));
    }

    fn poll(&mut self, rank: u32) -> Result<(), Violation> {
        let Self { ranks, queues, outbox, now_ns, .. } = self;
        ranks[rank as usize].poll(*now_ns, &mut queues[rank as usize], outbox);
        self.sent(rank)
    }

    /// Puts the messages of `from` in flight, and checks the invariants if it announced the end.
    fn sent(&mut self, from: u32) -> Result<(), Violation> {
        let mut announced = self.ranks() == 1;
        while let Some((to, message)) = self.outbox.pop() {
            announced |= matches!(message, Message::Halt(_));
            self.channels[(from * self.ranks.len() as u32 + to) as usize].push_back(message);
        }
        if from == 0 && announced && self.ranks[0].shutdown() == Some(Shutdown::Finished) {
            self.check_announced().map_err(Violation::Early)?;
        }
        if self.ended().is_some() { self.check_end() } else { Ok(()) }
    }

    fn check_announced(&self) -> Result<(), String> {
        for (rank, queue) in self.queues.iter().enumerate() {
            if !queue.is_idle() {
                return Err(format!(
                    "rank {rank} has {} queued and {} in work",
                    queue.len(),
                    queue.working()
                ));
            }
        }
        for (index, channel) in self.channels.iter().enumerate() {
            if let Some(message) = channel.iter().find(|message| message.units() > 0) {
                let (from, to) = (index / self.ranks.len(), index % self.ranks.len());
                return Err(format!(
                    "a {} message is under way from rank {from} to rank {to}",
                    message.name()
                ));
            }
        }
        match self.finished.iter().position(|finished| !finished) {
            Some(node) => Err(format!("node {node} was not visited")),
            None => Ok(()),
        }
    }

    fn check_end(&self) -> Result<(), Violation> {
        let lost = |what| Err(Violation::Lost(what));
        if let Some(index) = self.channels.iter().position(|channel| !channel.is_empty()) {
            let (from, to) = (index / self.ranks.len(), index % self.ranks.len());
            let message = self.channels[index][0].name();
            return lost(format!("a {message} is under way from rank {from} to rank {to}"));
        }
        let mut places = vec![0u32; self.begun.len()];
        for node in self.queues.iter().flat_map(PlainQueue::pending) {
            places[node.0 as usize] += 1;
        }
        let mut uncovered = vec![false; self.begun.len()];
        uncovered[0] = true;
        for (node, children) in self.tree.children.iter().enumerate() {
            for child in children {
                uncovered[*child as usize] = self.finished[node];
            }
        }
        for node in 0..places.len() {
            let (seen, expected) = (places[node] + u32::from(self.begun[node]), u32::from(uncovered[node]));
            if seen != expected {
                return lost(format!("node {node} is in {seen} places instead of {expected}"));
            }
        }
        Ok(())
    }

    /// Hashes everything that decides what can still happen, except the time. Counts that only grow are left out.
    pub fn fingerprint(&self, hasher: &mut impl Hasher) {
        for rank in &self.ranks {
            rank.fingerprint(hasher);
        }
        self.queues.hash(hasher);
        self.in_work.hash(hasher);
        self.begun.hash(hasher);
        for channel in &self.channels {
            hasher.write_usize(channel.len());
            for message in channel {
                match message {
                    Message::Drained { .. } => message.name().hash(hasher),
                    message => message.hash(hasher),
                }
            }
        }
    }
}
