//! One rank of a walk: the state machine that a program drives.

use super::centralized::{Master, Worker};
use super::counter::Counters;
use super::message::{Message, Outbox, Shutdown, Unit};
use super::peer::{Peer, PeerOptions, Peers};
use super::proximity::RequestVector;
use super::queue::Queue;
use super::random::{Choose, Random};
use super::shutdown::{Balance, Leave};
use super::split_queue::{EqualSplit, RandomSplit, Split};
use super::{Algorithm, Options};

/// One rank. `R` is the source of its random choices.
#[derive(Clone, Debug)]
pub struct Rank<R = Random> {
    role: Role,
    leave: Leave,
    balance: Balance,
    counters: Counters,
    random: R,
}

#[derive(Clone, Debug)]
enum Role {
    Peer(Peer),
    Master(Master),
    Worker(Worker),
}

impl Rank {
    /// Creates rank `rank` of `ranks`.
    ///
    /// # Panics
    ///
    /// If `rank` is not below `ranks`, or PA-DRQS was given the nodes of another number of ranks.
    pub fn new(rank: u32, ranks: u32, options: &Options) -> Self {
        Self::with_random(rank, ranks, options, Random::part(options.seed, u64::from(rank)))
    }
}

impl<R: Choose> Rank<R> {
    /// Like [`Rank::new`], with choices made by `random`.
    pub fn with_random(rank: u32, ranks: u32, options: &Options, random: R) -> Self {
        assert!(rank < ranks, "rank {rank} of {ranks}");
        let peer = |split: &'static dyn Split, peers| {
            Role::Peer(Peer::new(
                rank,
                ranks,
                PeerOptions {
                    split,
                    peers,
                    back_off: options.back_off,
                    units_per_message_max: options.units_per_message_max,
                    rule: options.token_rule,
                },
            ))
        };
        let role = match options.algorithm {
            Algorithm::Cp if rank == 0 => Role::Master(Master::new(ranks, options.single_reader)),
            Algorithm::Cp => Role::Worker(Worker::new(options.keeps_one, options.units_per_message_max)),
            Algorithm::Drqs | Algorithm::HDrqs => peer(&RandomSplit, Peers::Random),
            Algorithm::Deqs => peer(&EqualSplit, Peers::Random),
            Algorithm::PaDrqs => {
                assert_eq!(options.nodes.ranks(), ranks, "the nodes are those of another job");
                let vector = RequestVector::new(options.nodes.clone(), rank, options.refined);
                peer(&RandomSplit, Peers::Vector(vector))
            }
        };
        Self {
            role,
            leave: Leave::new(rank, ranks, options.shutdown_rule),
            balance: Balance::default(),
            counters: Counters::new(ranks, options.count_peers),
            random,
        }
    }

    /// Handles a message. The replies are in `outbox` afterwards.
    pub fn handle<W: Unit>(
        &mut self,
        now_ns: u64,
        from: u32,
        message: Message<W>,
        queue: &mut (impl Queue<W> + ?Sized),
        outbox: &mut Outbox<W>,
    ) {
        self.counters.count_received(&message);
        let Self { role, leave, counters, random, balance } = self;
        let running = leave.is_running();
        let mut send = |to, message: Message<W>| {
            counters.count_sent(to, &message);
            outbox.push(to, message);
        };
        match message {
            Message::Request if !running => send(from, Message::Refusal),
            Message::Request => match role {
                Role::Peer(peer) => match peer.request(from, queue, random) {
                    Some(units) => send(from, Message::Work(units)),
                    None => send(from, Message::Refusal),
                },
                Role::Master(master) => master.request(from),
                // Nobody asks a worker; an answer costs little.
                Role::Worker(_) => send(from, Message::Refusal),
            },
            Message::Refusal => match role {
                Role::Peer(peer) => peer.refusal(now_ns, from, random),
                Role::Worker(worker) => worker.reply_received(),
                Role::Master(_) => {}
            },
            Message::Work(units) => match role {
                Role::Peer(peer) => peer.work(from, units, queue),
                Role::Worker(worker) if running => worker.work(units, queue),
                // Nothing is begun any more.
                Role::Worker(worker) => {
                    worker.reply_received();
                    queue.put(units);
                }
                Role::Master(_) => queue.put(units),
            },
            Message::Results(units) => queue.put(units),
            Message::Token(colour) if running => {
                if let Role::Peer(peer) = role {
                    peer.token(colour);
                }
            }
            // The token has no purpose any more.
            Message::Token(_) => {}
            Message::Stop => leave.halt(Shutdown::Stopped, send),
            Message::Halt(ending) => leave.halt(ending, send),
            Message::Drained { sent, received } => leave.drained(from, sent, received, balance),
            Message::Exit => leave.exit(send),
        }
        self.poll(now_ns, queue, outbox);
    }

    /// Does whatever is possible now. To be called when the queue became idle, when work was added to it or done, and
    /// at [`next_timeout_ns`](Self::next_timeout_ns); calling it more often does no harm.
    pub fn poll<W: Unit>(
        &mut self,
        now_ns: u64,
        queue: &mut (impl Queue<W> + ?Sized),
        outbox: &mut Outbox<W>,
    ) {
        let Self { role, leave, counters, random, balance } = self;
        if leave.over().is_some() {
            return;
        }
        let mut send = |to, message: Message<W>| {
            counters.count_sent(to, &message);
            outbox.push(to, message);
        };
        if leave.is_running() {
            let done = match role {
                Role::Peer(peer) => peer.step(now_ns, queue, random, &mut send),
                Role::Master(master) => master.step(queue, &mut send),
                Role::Worker(worker) => {
                    worker.step(queue, &mut send);
                    false
                }
            };
            if done {
                leave.halt(Shutdown::Finished, &mut send);
            }
        }
        if !leave.is_running()
            && let Role::Master(master) = role
        {
            master.dismiss(&mut send);
        }
        let counted = (counters.counted_sent, counters.counted_received);
        let asking = match role {
            Role::Peer(peer) => peer.is_asking(),
            Role::Worker(worker) => worker.is_asking(),
            Role::Master(_) => false,
        };
        let Self { leave, counters, .. } = self;
        leave.step(asking, counted, balance, |to, message: Message<W>| {
            counters.count_sent(to, &message);
            outbox.push(to, message);
        });
    }

    /// Makes all ranks stop: from the time at which the request reaches it, each keeps what it has queued, and work in
    /// flight arrives before [`is_finished`](Self::is_finished). The engine is responsible for units in work. Does
    /// nothing if the end was announced already.
    pub fn stop<W: Unit>(
        &mut self,
        now_ns: u64,
        queue: &mut (impl Queue<W> + ?Sized),
        outbox: &mut Outbox<W>,
    ) {
        let Self { leave, counters, .. } = self;
        leave.stop(|to, message: Message<W>| {
            counters.count_sent(to, &message);
            outbox.push(to, message);
        });
        self.poll(now_ns, queue, outbox);
    }

    /// Returns the next time at which [`poll`](Self::poll) must be called, even if nothing has happened.
    pub fn next_timeout_ns(&self) -> Option<u64> {
        match &self.role {
            Role::Peer(peer) if self.leave.is_running() => peer.next_timeout_ns(),
            _ => None,
        }
    }

    /// Returns the shutdown announced to this rank, if any: from then on its engine should begin nothing (there is
    /// nothing to begin, or it has to stop), while messages still have to be handled.
    pub fn shutdown(&self) -> Option<Shutdown> {
        self.leave.announced()
    }

    /// Returns whether the walk is over: no message is in flight to this rank, and none will be sent to it.
    pub fn is_finished(&self) -> bool {
        self.leave.over().is_some()
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns whether a request of this rank is open.
    pub fn is_asking(&self) -> bool {
        match &self.role {
            Role::Peer(peer) => peer.is_asking(),
            Role::Worker(worker) => worker.is_asking(),
            Role::Master(_) => false,
        }
    }

    /// Returns the source of its random choices.
    #[cfg(any(test, feature = "testkit"))]
    pub(crate) fn random_mut(&mut self) -> &mut R {
        &mut self.random
    }

    /// Hashes everything that decides what it does next, except the time and earlier random choices: ranks with equal
    /// hashes behave alike.
    #[cfg(any(test, feature = "testkit"))]
    pub(crate) fn fingerprint(&self, hasher: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        self.leave.hash(hasher);
        match &self.role {
            Role::Peer(peer) => peer.fingerprint(hasher),
            Role::Master(master) => master.hash(hasher),
            Role::Worker(worker) => worker.hash(hasher),
        }
    }
}
