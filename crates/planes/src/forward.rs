//! The path of a datagram through user space: received in batches, classified (control messages, members' payload,
//! datagrams of non-members), admitted or refused whole, and copied by a [`Plane`]; copies that a device cannot take yet
//! wait for it in order.
//!
//! Invariants:
//! - A datagram is admitted once for all its receivers, or refused once for all of them and counted by reason.
//! - An admitted datagram is kept until each device has taken its copies, or until it is older than its group wants it;
//!   copies given up for that are counted. Where too many wait, a group with an age limit loses its oldest. A later
//!   datagram of a group never overtakes an earlier one on the same device. A full device delays only the copies that
//!   go through it.
//! - Whoever is heard of is confirmed as a neighbour: a full device takes no questions of the kernel, which would forget
//!   the neighbour, and then drop copies that sockets have taken.
//! - There is no busy waiting: a full device is tried again after a timer, while the rest goes on.
//! - What comes faster than it can be copied is refused by the kernel, before it waits: a socket that is behind is closed to
//!   payload until it is empty. Datagrams for the reflector itself always come in.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nacre_reflect::host::{Host, Incoming, Now, Outgoing};
use nacre_reflect::pages::Pages;
use nacre_reflect::table::{Change, GroupIndex, MemberIndex, Path};
use nacre_reflect::wire;

use crate::plane::{CopyCounts, LaneBatch, Plane, PlaneError};
use crate::system::message::{BATCH, HEADROOM, Head, Inbox, Received};
use crate::system::{self, Poll};

mod admit;
mod backlog;
mod counter;
mod fan_out;
mod intake;
mod listen;
mod replace;

use backlog::{Backlog, QueuedCopies};
pub use counter::Counters;
use intake::Intake;
pub use listen::Listeners;

/// Options of a forwarder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardOptions {
    /// The greatest number of bytes of payload that may wait for devices, all in all.
    pub backlog_bytes: usize,
    /// The greatest number of datagrams that may wait for one device.
    pub backlog_datagrams: usize,
    /// The interval of the plane's maintenance ([`Plane::maintain`]), in milliseconds.
    pub maintain_ms: u64,
}

impl Default for ForwardOptions {
    fn default() -> Self {
        ForwardOptions { backlog_bytes: 64 << 20, backlog_datagrams: 16_384, maintain_ms: 100 }
    }
}

/// An error that stops a forwarder.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// A socket could not be opened or bound.
    #[error("cannot listen on {address}: {why}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        why: io::Error,
    },
    /// Waiting for sockets failed.
    #[error("cannot wait for datagrams: {0}")]
    Wait(io::Error),
    /// The plane failed.
    #[error(transparent)]
    Plane(#[from] PlaneError),
}

/// Event ids that are not sockets: the waker, and the plane's rescues.
const WAKE: u64 = u64::MAX;
const RESCUE: u64 = u64::MAX - 1;
/// The greatest number of batches read from a socket before others have their turn.
const BATCHES: usize = 4;
/// The greatest number of places of a queue worked on before others have their turn.
const PLACES: usize = 256;
/// The part of its interval by which work that is done now and then may be late, so that the thread need not wake for it
/// alone.
pub const LATE: u64 = 4;

/// Reads the clocks that the reflector uses.
pub fn read_clocks() -> Now {
    system::now()
}

/// Has the calling thread, which is to run a forwarder, let in soon when datagrams wait, rather than for long.
pub fn be_prompt() {
    system::be_prompt();
}

/// Copies the members' datagrams, with a plane, for a host.
#[derive(derive_more::Debug)]
#[debug("Forwarder")]
pub struct Forwarder {
    listeners: Arc<Listeners>,
    plane: Box<dyn Plane>,
    options: ForwardOptions,
    poll: Poll,
    wake: Arc<OwnedFd>,
    inbox: Inbox,
    backlog: Backlog,
    counters: Counters,
    by_group: Vec<Counters>,
    /// The copies that planes made that were replaced.
    copy_counts_before: CopyCounts,
    /// The number of datagrams that each socket had dropped when it was last known.
    dropped: Vec<u32>,
    /// How each socket keeps up with what comes, and the number of those that are closed to payload.
    intakes: Vec<Intake>,
    closed: usize,
    /// The longest age limit of the groups whose datagrams are in the present batch, in nanoseconds; 0 if there are none.
    limit_ns: u64,
    /// True if all sockets were found empty in one turn since the plane was last told so.
    emptied: bool,
    /// The second of the clock in which each member was last confirmed as a neighbour, by its place in the table.
    confirmed_s: Pages<u32>,
    /// The groups that are relayed, whose datagrams no program in the kernel takes.
    relayed: HashSet<GroupIndex>,
    ready: Vec<(u64, bool, bool)>,
    maintain_ms: u64,
}

impl Forwarder {
    /// Creates a forwarder that receives from `listeners`.
    ///
    /// # Errors
    /// [`ForwardError::Wait`] if the sockets cannot be waited for.
    pub fn new(
        listeners: Arc<Listeners>,
        mut plane: Box<dyn Plane>,
        options: ForwardOptions,
    ) -> Result<Self, ForwardError> {
        plane.bound(options.backlog_datagrams);
        let poll = Poll::new().map_err(ForwardError::Wait)?;
        let wake = Arc::new(system::event().map_err(ForwardError::Wait)?);
        poll.add(wake.as_fd(), WAKE).map_err(ForwardError::Wait)?;
        if let Some(ready) = plane.rescue_ready() {
            poll.add(ready, RESCUE).map_err(ForwardError::Wait)?;
        }
        for (at, (_, socket)) in listeners.sockets().enumerate() {
            poll.add(socket, at as u64).map_err(ForwardError::Wait)?;
            // Another forwarder may have left it closed.
            system::open_to_payload(socket);
        }
        let sockets = listeners.addresses().count();
        Ok(Forwarder {
            dropped: vec![0; sockets],
            intakes: vec![Intake::default(); sockets],
            closed: 0,
            limit_ns: 0,
            emptied: false,
            confirmed_s: Pages::default(),
            relayed: HashSet::new(),
            listeners,
            plane,
            options,
            poll,
            wake,
            inbox: Inbox::new(),
            backlog: Backlog::default(),
            counters: Counters::default(),
            by_group: Vec::new(),
            copy_counts_before: CopyCounts::default(),
            ready: Vec::new(),
            maintain_ms: 0,
        })
    }

    /// Runs one turn: waits for datagrams (`timeout` at most, or until it is woken), takes those that came, copies what
    /// can be copied, and sends the host's datagrams. After each datagram for the host the plane follows the table's
    /// changes, before any answer is sent. Changes that the host made between turns are followed first.
    ///
    /// # Errors
    /// After an error of the plane, admitted datagrams still wait: give them to another plane with [`Self::set_plane`].
    pub fn poll(&mut self, host: &mut dyn Host, timeout: Duration) -> Result<(), ForwardError> {
        let now = read_clocks();
        self.follow(host, now)?;
        self.take_rescues(host, now)?;
        let soon = self.backlog.next_ns().map_or(u64::MAX, |next_ns| next_ns.saturating_sub(now.ns));
        // Maintenance waits a little for a datagram to wake this thread.
        let maintain_ms = self.maintain_ms + self.options.maintain_ms / LATE;
        let soon = soon.min(maintain_ms.saturating_sub(now.ms) * 1_000_000);
        self.ready.clear();
        // A closed socket that is empty by now is opened at once.
        let timeout = if self.closed > 0 { Duration::ZERO } else { timeout };
        let ready = self.poll.wait(timeout.min(Duration::from_nanos(soon)));
        self.ready.extend(ready.map_err(ForwardError::Wait)?);
        let now = read_clocks();
        // Sockets that are not told of are empty, unless there were too many to tell of.
        let mut emptied = self.ready.len() < system::READY_MAX;
        for at in 0..self.ready.len() {
            match self.ready[at] {
                (WAKE, ..) => system::lower(self.wake.as_fd()),
                (RESCUE, ..) => self.take_rescues(host, now)?,
                (socket, readable, reported) => {
                    let socket = socket as usize;
                    if reported {
                        self.take_reports(socket);
                    }
                    if readable {
                        emptied &= self.receive(host, socket, now)?;
                    }
                }
            }
        }
        if self.closed > 0 {
            // Nothing may tell of a closed socket any more.
            for socket in 0..self.intakes.len() {
                let told = |&(of, readable, _): &(u64, bool, bool)| readable && of == socket as u64;
                if self.intakes[socket].is_closed() && !self.ready.iter().any(told) {
                    emptied &= self.receive(host, socket, now)?;
                }
            }
        }
        self.emptied |= emptied;
        for queue in 0..self.backlog.queues_len() {
            if self.backlog.due(queue, now.ns) {
                self.drain(host, queue, now)?;
            }
        }
        if now.ms >= self.maintain_ms {
            self.maintain_ms = now.ms + self.options.maintain_ms;
            self.plane.maintain(host.table())?;
            if self.emptied {
                self.plane.settle();
                self.emptied = false;
            }
            // The sockets tell by what they receive; to ask thousands of them each time would cost more than it says.
            self.counters.did(self.plane.done());
        }
        Ok(())
    }

    /// Returns a handle that ends the waiting of a turn, from any thread.
    pub fn waker(&self) -> Waker {
        Waker(self.wake.clone())
    }

    /// Returns the counters. The work of a kernel program is included as of the last [`Self::refresh`] or maintenance.
    pub fn counters(&self) -> Counters {
        Counters { copy_counts: self.copy_counts_before + self.plane.copy_counts(), ..self.counters }
    }

    /// Returns the counters of one group, without its bytes in the kernel.
    pub fn group_counters(&self, group: GroupIndex) -> Counters {
        let mut counters = self.by_group.get(group.0 as usize).copied().unwrap_or_default();
        counters.did(self.plane.group_done(group));
        counters
    }

    /// Updates the counters with what the plane and the sockets did by themselves. Turns ask the plane now and then,
    /// too.
    pub fn refresh(&mut self) {
        self.counters.did(self.plane.done());
        for (at, (_, socket)) in self.listeners.sockets().enumerate() {
            if let Some(dropped) = system::dropped(socket) {
                self.counters.dropped(&mut self.dropped[at], dropped);
            }
        }
    }

    /// Returns the bytes of payload that wait for devices.
    pub fn waiting_bytes(&self) -> usize {
        self.backlog.bytes()
    }

    /// Returns the sockets.
    pub fn listeners(&self) -> &Arc<Listeners> {
        &self.listeners
    }

    /// Returns the plane.
    pub fn plane(&self) -> &dyn Plane {
        &*self.plane
    }

    /// Copies what other reflectors have relayed, and lets the plane follow the table; then sends the host's datagrams.
    fn follow(&mut self, host: &mut dyn Host, now: Now) -> Result<(), ForwardError> {
        self.follow_from(host, now, None)
    }

    /// Does what [`Self::follow`] does. If one of the host's datagrams goes to the member that was just heard of, that one
    /// confirms it as a neighbour, which is a system call less.
    fn follow_from(
        &mut self,
        host: &mut dyn Host,
        now: Now,
        heard: Option<(u16, SocketAddr)>,
    ) -> Result<(), ForwardError> {
        while let Some(relayed) = host.relayed(now) {
            self.follow_changes(host)?;
            self.copy_relayed(host, relayed, now)?;
        }
        self.follow_changes(host)?;
        while let Some(outgoing) = host.outgoing() {
            let Outgoing { local, to, .. } = outgoing;
            let member = heard.and_then(|(port, from)| {
                let member =
                    host.table().sender(port, from).filter(|_| (local.port(), to) == (port, from))?;
                self.confirms(member, now).then_some(member)
            });
            let send = if member.is_some() { system::message::answer } else { system::message::send };
            let sent = self.listeners.sender(local).is_some_and(|(socket, source)| {
                let mut tries = 0..4;
                // A socket tells an error that the network reported for an earlier datagram instead of sending the next.
                tries.any(|_| send(socket, Head { source, tos: 0 }, to, &outgoing.bytes).is_ok())
            });
            if sent {
                self.counters.outgoing += 1;
            } else {
                self.counters.outgoing_failed += 1;
            }
        }
        Ok(())
    }

    fn follow_changes(&mut self, host: &mut dyn Host) -> Result<(), PlaneError> {
        let Forwarder { plane, backlog, by_group, relayed, .. } = self;
        let mut followed = Ok(());
        host.table().take_changes(|table, change| {
            match change {
                Change::GroupAdded(group) => {
                    let at = group.0 as usize;
                    by_group.resize(by_group.len().max(at + 1), Counters::default());
                    by_group[at] = Counters::default();
                }
                Change::Rewritten { group, lane } => backlog.rewritten(table, group, lane),
                Change::GroupRemoved(group) => {
                    for _ in 0..backlog.removed(group) {
                        plane.finished(group);
                    }
                    relayed.remove(&group);
                }
                Change::GroupChanged(group) => match table.get_group(group).is_some_and(|of| of.relayed) {
                    true => drop(relayed.insert(group)),
                    // Sockets may still hold datagrams of it, which no program in the kernel may overtake.
                    false if relayed.remove(&group) => plane.hold(),
                    false => {}
                },
                Change::Joined(_) | Change::Left { .. } => {}
            }
            if followed.is_ok() {
                followed = plane.follow(table, change);
            }
        });
        followed
    }

    /// Takes the datagrams that have come to a socket. Returns true if those were all.
    fn receive(&mut self, host: &mut dyn Host, socket: usize, now: Now) -> Result<bool, ForwardError> {
        for _ in 0..BATCHES {
            let (local, fd) = self.listeners.get(socket);
            let count = match self.inbox.receive(fd, local) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.caught_up(socket);
                    return Ok(true);
                }
                // What the network reported is told once in place of a datagram.
                Err(_) => continue,
            };
            if let Some(dropped) = self.inbox.dropped {
                self.counters.dropped(&mut self.dropped[socket], dropped);
            }
            self.counters.received += count as u64;
            let full_ns = (count == BATCH).then(|| read_clocks().ns);
            let mut waited_ns = 0;
            self.limit_ns = 0;
            // What was admitted before any of these.
            self.take_rescues(host, now)?;
            for at in 0..count {
                let Some((received, bytes)) = self.inbox.get(at) else {
                    self.counters.too_long += 1;
                    continue;
                };
                waited_ns = waited_ns.max(received.age_ns);
                if wire::is_control(&bytes[HEADROOM..]) {
                    self.counters.control += 1;
                    let Received { path, from, .. } = received;
                    host.control(now, Incoming { path, from, bytes: &bytes[HEADROOM..] });
                    self.follow_from(host, now, Some((path.local.port(), from)))?;
                    if let Some(member) = host.table().sender(path.local.port(), from) {
                        self.confirm(member, path, from, now);
                    }
                } else {
                    self.payload(host, at, received, now)?;
                }
            }
            if !self.relayed.is_empty() {
                // What was said for others to hear is not to wait for the next turn.
                self.follow(host, now)?;
            }
            if !self.inbox.full {
                self.caught_up(socket);
                return Ok(true);
            }
            if let Some(full_ns) = full_ns
                && self.intakes[socket].is_late(full_ns, waited_ns, self.limit_ns)
            {
                self.close(socket);
            }
        }
        Ok(false)
    }

    /// Has the kernel refuse the payload that comes to a socket from now on.
    fn close(&mut self, socket: usize) {
        let (_, fd) = self.listeners.get(socket);
        // Where it cannot be closed, what is too old is refused when it is received.
        if system::close_to_payload(fd).is_ok() {
            self.intakes[socket].close();
            self.closed += 1;
        }
    }

    /// Notes that a socket was found empty, which opens it to payload.
    fn caught_up(&mut self, socket: usize) {
        if self.intakes[socket].caught_up() {
            let (_, fd) = self.listeners.get(socket);
            system::open_to_payload(fd);
            self.closed -= 1;
        }
    }

    /// Confirms a member that was heard of as a neighbour, once a second at most.
    fn confirm(&mut self, member: MemberIndex, path: Path, from: SocketAddr, now: Now) {
        if !self.confirms(member, now) {
            return;
        }
        if let Some((socket, source)) = self.listeners.sender(path.local) {
            // Where there is no way to it nothing is to be confirmed.
            let _ = system::message::confirm(socket, Head { source, tos: 0 }, from);
        }
    }

    /// Returns whether a member is to be confirmed as a neighbour in this second, which is noted as done.
    fn confirms(&mut self, member: MemberIndex, now: Now) -> bool {
        let (at, second) = (member.0 as usize, (now.ms / 1000) as u32);
        while self.confirmed_s.len() <= at {
            self.confirmed_s.push(0);
        }
        std::mem::replace(&mut self.confirmed_s[at], second) != second
    }

    /// Continues the copies that wait for a device.
    fn drain(&mut self, host: &mut dyn Host, queue: usize, now: Now) -> Result<(), ForwardError> {
        let Forwarder { plane, backlog, counters, by_group, .. } = self;
        let table = host.table();
        let mut copies = 0;
        for _ in 0..PLACES {
            let Some(&mut queued) = backlog.queue(queue).front() else { break };
            let QueuedCopies { datagram: at, lane, next, mut end } = queued;
            let datagram = backlog.datagram(at);
            let group = datagram.about.group;
            if datagram.about.until_ns <= now.ns {
                let left = backlog.left(table, &queued);
                counters.too_old += left;
                by_group[group.0 as usize].too_old += left;
                // The plane may still hold copies of what is before.
                end = next;
                if let Some(queued) = backlog.queue(queue).front() {
                    queued.end = end;
                }
            }
            let datagram = backlog.datagram(at);
            let number = lane;
            let lane = &table.group(group).lanes[usize::from(lane)];
            let lane_batch = LaneBatch {
                group,
                number,
                lane,
                positions: next.min(end)..end,
                except: datagram.about.except,
                tos: datagram.about.tos,
                payload: &datagram.payload,
            };
            let progress = plane.copy(&lane_batch)?;
            counters.took(progress);
            by_group[group.0 as usize].took(progress);
            copies += progress.copies;
            if progress.full {
                let queue = backlog.queue(queue);
                if let Some(queued) = queue.front() {
                    queued.next = progress.next;
                }
                queue.full(now.ns, copies);
                break;
            }
            if let Some((group, true)) = backlog.pop(queue) {
                plane.finished(group);
            }
        }
        Ok(())
    }

    /// Takes the errors that the network reported to a socket. They must not keep it from sending.
    fn take_reports(&mut self, socket: usize) {
        let (_, fd) = self.listeners.get(socket);
        self.counters.reported += system::message::take_reports(fd);
        system::take_error(fd);
    }
}

/// Ends the waiting of a [`Forwarder`].
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Ends the present wait, or the next one.
    pub fn wake(&self) {
        system::raise(self.0.as_fd());
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
