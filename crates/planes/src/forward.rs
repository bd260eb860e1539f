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

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nacre_reflect::host::{Host, Incoming, Now, Outgoing, Relayed};
use nacre_reflect::pages::Pages;
use nacre_reflect::table::{Change, GroupIndex, Lane, MemberIndex, Path, Table};
use nacre_reflect::wire;

use crate::plane::{CopyCounts, LaneBatch, Plane, PlaneError, Rescue, kernel};
use crate::system::message::{HEADROOM, Head, Inbox, Received};
use crate::system::{self, Poll};

mod backlog;
mod counter;
mod listen;

use backlog::{About, Backlog, QueuedCopies};
pub use counter::Counters;
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
/// The longest time given to a plane that is replaced to send what it holds, in milliseconds.
const HAND_ON_MS: u64 = 1000;
/// The greatest number of datagrams that are taken over at once from a plane that is replaced.
const HAND_ON_RESCUES: u64 = 1 << 16;
/// The longest payload of UDP over IPv4, in bytes.
const PAYLOAD_MAX: usize = 65_507;

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
        }
        Ok(Forwarder {
            dropped: vec![0; listeners.addresses().count()],
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

    /// Replaces the plane. The new one is told of the whole table: each group as added, and each member as joined, in
    /// the order of their places, between which there may be gaps, and those without a place at the end. Datagrams that wait stay, and go out by the new
    /// plane. A plane in the kernel would overtake them: so before it begins, the sockets are emptied, and the devices
    /// are waited for, up to a second. Only what comes in at the very moment of the change may then be overtaken, and
    /// what a device's queue still holds by a plane that bypasses it.
    ///
    /// # Errors
    /// [`ForwardError::Plane`] or [`ForwardError::Wait`] if the new plane cannot take over.
    pub fn set_plane(&mut self, host: &mut dyn Host, plane: Box<dyn Plane>) -> Result<(), ForwardError> {
        // Changes that were not followed yet are part of the state that the new plane is told of.
        let _ = self.follow_changes(host);
        let from = read_clocks();
        let mut now = from;
        while self.hand_on(host, now, plane.kind().in_kernel()).is_ok_and(|done| !done)
            && now.ms < from.ms + HAND_ON_MS
        {
            std::thread::sleep(Duration::from_millis(1));
            now = read_clocks();
        }
        self.refresh();
        // Those that it cannot copy any more wait for the new one.
        let _ = self.take_rescues_up_to(HAND_ON_RESCUES, host, read_clocks());
        // A plane that goes takes what it told of with it.
        for (counters, group) in self.by_group.iter_mut().zip(0..) {
            counters.did(self.plane.group_done(GroupIndex(group)));
        }
        self.copy_counts_before = self.copy_counts_before + self.plane.copy_counts();
        self.plane = plane;
        self.emptied = false;
        let waiting = self.backlog.all_handed();
        self.plane.bound(self.options.backlog_datagrams);
        if let Some(ready) = self.plane.rescue_ready() {
            self.poll.add(ready, RESCUE).map_err(ForwardError::Wait)?;
        }
        self.plane.hold();
        let table = host.table();
        for (index, group) in table.groups() {
            self.plane.follow(table, Change::GroupAdded(index))?;
            // Before its members, so that the plane has no time to let anything overtake it.
            for _ in 0..waiting.get(&index).copied().unwrap_or_default() {
                self.plane.waits(index);
            }
            for entry in group.lanes.iter().flat_map(|lane| &lane.entries) {
                if let Some(member) = entry.member() {
                    self.plane.follow(table, Change::Joined(member))?;
                }
            }
        }
        // Those who only send are in no lane.
        for member in (0..table.members_end()).map(MemberIndex) {
            if table.get_member(member).is_some_and(|there| !there.receives()) {
                self.plane.follow(table, Change::Joined(member))?;
            }
        }
        Ok(())
    }

    /// Empties the plane that is to be replaced, as far as devices have room. Returns true once that is done. Nothing
    /// can be taken from a plane that fails.
    fn hand_on(&mut self, host: &mut dyn Host, now: Now, backlog: bool) -> Result<bool, ForwardError> {
        self.take_rescues_up_to(HAND_ON_RESCUES, host, now)?;
        if backlog {
            let received = self.counters.received;
            for socket in 0..self.dropped.len() {
                self.receive(host, socket, now)?;
            }
            for queue in 0..self.backlog.queues_len() {
                if self.backlog.due(queue, now.ns) {
                    self.drain(host, queue, now)?;
                }
            }
            if self.counters.received != received {
                return Ok(false);
            }
        }
        Ok(self.plane.flush(&mut self.counters.copies) && !(backlog && self.backlog.next_ns().is_some()))
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
                    return Ok(true);
                }
                // What the network reported is told once in place of a datagram.
                Err(_) => continue,
            };
            if let Some(dropped) = self.inbox.dropped {
                self.counters.dropped(&mut self.dropped[socket], dropped);
            }
            self.counters.received += count as u64;
            // What was admitted before any of these.
            self.take_rescues(host, now)?;
            for at in 0..count {
                let Some((received, bytes)) = self.inbox.get(at) else {
                    self.counters.too_long += 1;
                    continue;
                };
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
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Admits or refuses a datagram, and copies it as far as possible.
    fn payload(
        &mut self,
        host: &mut dyn Host,
        at: usize,
        received: Received,
        now: Now,
    ) -> Result<(), ForwardError> {
        let table = host.table();
        let Some(sender) = table.sender(received.path.local.port(), received.from) else {
            self.counters.non_members += 1;
            return Ok(());
        };
        self.confirm(sender, received.path, received.from, now);
        let Forwarder { plane, backlog, inbox, counters, by_group, options, .. } = self;
        let (index, echo, bucket, sends) = {
            let member = table.member(sender);
            (member.group, member.echo, member.bucket, member.sends)
        };
        if !sends {
            counters.non_members += 1;
            return Ok(());
        }
        let group = table.group(index);
        let of_group = &mut by_group[index.0 as usize];
        let except = (!echo).then_some(received.from);
        let head = if group.options.sequence { wire::DATA_HEAD_BYTES } else { 0 };
        if received.len + head > PAYLOAD_MAX {
            counters.too_long += 1;
            of_group.too_long += 1;
            return Ok(());
        }
        // Where the oldest may go, there is room for one more.
        let keeps_all = group.options.max_age_ms == 0;
        // What has waited in the socket for too long is too much, too.
        let too_old = !keeps_all && received.age_ns >= u64::from(group.options.max_age_ms) * 1_000_000;
        let full = backlog.bytes() >= options.backlog_bytes;
        let mut refuses = |lane: &Lane| {
            let queue = backlog.queue_of(lane.path.device);
            let full = full || backlog.queue(queue).len() >= options.backlog_datagrams;
            full && (keeps_all || !backlog.holds(queue, index))
        };
        let group_relayed = group.relayed;
        let elsewhere = if group_relayed { host.receivers_elsewhere(index) } else { Some(0) };
        let table = host.table();
        let group = table.group(index);
        let mut lanes = group.lanes.iter().filter(|lane| has_receivers(lane, except));
        let refused = match full && !keeps_all {
            true => lanes.all(&mut refuses),
            false => lanes.any(&mut refuses),
        };
        let Some(elsewhere) = elsewhere.filter(|_| !refused && !too_old) else {
            counters.backlog += 1;
            of_group.backlog += 1;
            return Ok(());
        };
        // Where it is copied for a while is no matter of the sender's.
        let receivers = u64::from(group.receivers()) + u64::from(elsewhere);
        let copies = receivers.saturating_sub(u64::from(!echo));
        if !table.admit(sender, now.ns, copies, plane.buckets(bucket, index)) {
            counters.over_rate += 1;
            of_group.over_rate += 1;
            return Ok(());
        }
        for counters in [&mut *counters, &mut *of_group] {
            counters.admitted += 1;
            counters.admitted_bytes += received.len as u64;
        }
        let Some((_, bytes)) = inbox.get(at) else { return Ok(()) };
        if group_relayed {
            let here = host.relay(now, index, Some(sender), except, received.tos, &bytes[HEADROOM..]);
            if !here {
                return Ok(());
            }
        }
        let table = host.table();
        number(table, index, &mut bytes[HEADROOM - head..HEADROOM]);
        let payload = &bytes[HEADROOM - head..];
        let whole =
            AdmittedDatagram { from: None, except, tos: received.tos, age_ns: received.age_ns, payload };
        let mut fan_out = FanOut { plane: &mut **plane, backlog, counters, of_group, options, now };
        fan_out.fan_out(table, index, whole)
    }

    /// Copies a datagram that another reflector relayed, as far as possible.
    fn copy_relayed(&mut self, host: &mut dyn Host, relayed: Relayed, now: Now) -> Result<(), ForwardError> {
        let Forwarder { plane, backlog, counters, by_group, options, .. } = self;
        let table = host.table();
        let Relayed { group, except, tos, mut payload } = relayed;
        let Some(of) = table.get_group(group) else { return Ok(()) };
        let (sequence, live) = (of.options.sequence, of.receivers());
        if sequence {
            payload.splice(0..0, [0; wire::DATA_HEAD_BYTES]);
            number(table, group, &mut payload[..wire::DATA_HEAD_BYTES]);
        }
        let of_group = &mut by_group[group.0 as usize];
        if payload.len() > PAYLOAD_MAX {
            counters.undeliverable += u64::from(live);
            return Ok(());
        }
        let mut fan_out = FanOut { plane: &mut **plane, backlog, counters, of_group, options, now };
        fan_out.fan_out(
            table,
            group,
            AdmittedDatagram { from: None, except, tos, age_ns: 0, payload: &payload },
        )
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

    /// Copies, as far as possible, the datagrams that a program in the kernel has handed over until now. Those that it hands
    /// over meanwhile, which may be more than can be copied, are later than what sockets hold, and have their turn after it.
    fn take_rescues(&mut self, host: &mut dyn Host, now: Now) -> Result<(), ForwardError> {
        self.take_rescues_up_to(self.plane.rescues_max(), host, now)
    }

    fn take_rescues_up_to(&mut self, most: u64, host: &mut dyn Host, now: Now) -> Result<(), ForwardError> {
        for _ in 0..most {
            let Some(rescue) = self.plane.rescue() else { break };
            let Forwarder { plane, backlog, counters, by_group, options, .. } = self;
            let table = host.table();
            let Rescue { group, lane, generation, position, except, tos, mut payload } = rescue;
            let Some(of) = table.get_group(group) else { continue };
            let (sequence, live) = (of.options.sequence, of.live);
            // What was handed over before the group was relayed comes before what is. Whoever sent it with an echo is not
            // known any more; nor need it be where nothing was copied yet.
            if of.relayed && (lane, position) == (0, 0) {
                let sender = except.and_then(|from| {
                    let mut members = of.lanes.iter().flat_map(|lane| &lane.entries);
                    members.find(|entry| entry.address == from).and_then(|entry| entry.member())
                });
                if !host.relay(now, group, sender, except, tos, &payload) {
                    plane.finished(group);
                    continue;
                }
            }
            let table = host.table();
            if sequence {
                payload.splice(0..0, [0; wire::DATA_HEAD_BYTES]);
                number(table, group, &mut payload[..wire::DATA_HEAD_BYTES]);
            }
            let of_group = &mut by_group[group.0 as usize];
            let mut fan_out = FanOut { plane: &mut **plane, backlog, counters, of_group, options, now };
            if payload.len() > PAYLOAD_MAX {
                fan_out.counters.undeliverable += u64::from(live);
                fan_out.plane.finished(group);
                continue;
            }
            let from = Some((lane, generation, position as usize));
            fan_out.fan_out(
                table,
                group,
                AdmittedDatagram { from, except, tos, age_ns: 0, payload: &payload },
            )?;
        }
        Ok(())
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

/// Writes the header of the next datagram of a group, if it is numbered and there is room for it.
fn number(table: &mut Table, index: GroupIndex, head: &mut [u8]) {
    if !head.is_empty() {
        let group = table.group_mut(index);
        head.copy_from_slice(&wire::data_head(group.sequence));
        group.sequence += 1;
    }
}

/// Returns whether a lane has members who get copies of what `except` sends.
fn has_receivers(lane: &Lane, except: Option<SocketAddr>) -> bool {
    let gets = |address: SocketAddr| Some(address) != except;
    let mut members = lane.entries.iter().filter(|entry| entry.member().is_some());
    lane.live > 1 || lane.live == 1 && members.any(|entry| gets(entry.address))
}

/// An admitted datagram.
struct AdmittedDatagram<'a> {
    /// The lane, its generation and the position from which on there are no copies yet; `None` if it is fresh.
    from: Option<(u16, u8, usize)>,
    except: Option<SocketAddr>,
    tos: u8,
    /// The time since it came, in nanoseconds.
    age_ns: u64,
    payload: &'a [u8],
}

/// The means by which an admitted datagram is copied.
struct FanOut<'a> {
    plane: &'a mut dyn Plane,
    backlog: &'a mut Backlog,
    counters: &'a mut Counters,
    of_group: &'a mut Counters,
    options: &'a ForwardOptions,
    now: Now,
}

impl FanOut<'_> {
    /// Copies an admitted datagram as far as possible, and keeps it for the devices that are full.
    fn fan_out(
        &mut self,
        table: &Table,
        index: GroupIndex,
        whole: AdmittedDatagram<'_>,
    ) -> Result<(), ForwardError> {
        let AdmittedDatagram { from, except, tos, payload, .. } = whole;
        let (first, position) = match from {
            None => (0, 0),
            Some((lane, generation, position)) => {
                let known = table.group(index).lanes.get(usize::from(lane));
                (lane, known.and_then(|lane| lane.position_now(generation, position)).unwrap_or(position))
            }
        };
        // A failure of the plane does not end the loop: the datagram is admitted, so the remaining lanes get it from the queues.
        let mut failed = None;
        // One copy in memory, however many devices are full.
        let mut kept = None;
        for (lane, number) in table.group(index).lanes.iter().zip(0_u16..).skip(usize::from(first)) {
            let end = lane.entries.len();
            let mut next = if number == first { position.min(end) } else { 0 };
            if next == end || !has_receivers(lane, except) {
                continue;
            }
            let queue = self.backlog.queue_of(lane.path.device);
            // A datagram may not overtake those that wait for the same device; other devices are not held up by it.
            if self.backlog.queue(queue).len() == 0 && failed.is_none() {
                let lane_batch =
                    LaneBatch { group: index, number, lane, positions: next..end, except, tos, payload };
                match self.plane.copy(&lane_batch) {
                    Err(error) => failed = Some(error),
                    Ok(progress) => {
                        self.counters.took(progress);
                        self.of_group.took(progress);
                        if !progress.full {
                            continue;
                        }
                        // The rest of this lane waits from here on; no receiver gets the datagram twice.
                        next = progress.next;
                        self.backlog.queue(queue).full(self.now.ns, progress.copies);
                    }
                }
            }
            let datagram = match kept {
                Some(datagram) => datagram,
                None => *kept.insert(self.keep(table, index, &whole)),
            };
            // The datagram is kept before older ones are given up, since that may finish the group's last one in the kernel.
            self.make_space(table, queue, index);
            self.backlog.push(queue, QueuedCopies { datagram, lane: number, next, end });
        }
        // A program in the kernel refuses the group's next datagrams until the torn one is finished. One that is kept again
        // is finished when it leaves the queues.
        if from.is_some() && kept.is_none() {
            self.plane.finished(index);
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Keeps a datagram. A program in the kernel lets none overtake it.
    fn keep(&mut self, table: &Table, index: GroupIndex, whole: &AdmittedDatagram<'_>) -> u32 {
        let in_kernel = self.plane.kind().in_kernel();
        if whole.from.is_none() && in_kernel {
            self.plane.waits(index);
        }
        let until_ns = match table.group(index).options.max_age_ms {
            0 => u64::MAX,
            ms => self.now.ns + (u64::from(ms) * 1_000_000).saturating_sub(whole.age_ns),
        };
        let handed = whole.from.is_some() || in_kernel;
        let about = About { group: index, except: whole.except, tos: whole.tos, until_ns, handed };
        self.backlog.keep(about, whole.payload)
    }

    /// Makes room for one more datagram of a group with an age limit in a queue, by giving up its oldest ones.
    fn make_space(&mut self, table: &Table, queue: usize, index: GroupIndex) {
        if table.group(index).options.max_age_ms == 0 {
            return;
        }
        // A program in the kernel refuses what comes beyond the bound, and does not know what is the oldest.
        let most = match self.plane.kind().in_kernel() {
            true => self.options.backlog_datagrams.min(kernel::BOUND_GROUP as usize) / 2,
            false => self.options.backlog_datagrams,
        };
        while self.backlog.queue(queue).len() >= most.max(1)
            || self.backlog.bytes() >= self.options.backlog_bytes
        {
            if !self.backlog.holds(queue, index) {
                break;
            }
            let (left, finished) = self.backlog.shed(table, queue, index);
            self.counters.too_old += left;
            self.of_group.too_old += left;
            if finished {
                self.plane.finished(index);
            }
        }
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

#[cfg(test)]
mod tests {
    use nacre_reflect::table::{GroupId, GroupOptions};

    use super::*;
    use crate::plane::{CopyProgress, PlaneKind};

    /// A plane whose program hands over more than user space can copy.
    struct Overloaded {
        handed: u64,
        taken: u64,
    }

    impl Plane for Overloaded {
        fn kind(&self) -> PlaneKind {
            PlaneKind::Kernel
        }

        fn copy(&mut self, lane_batch: &LaneBatch<'_>) -> Result<CopyProgress, PlaneError> {
            Ok(CopyProgress { next: lane_batch.positions.end, ..CopyProgress::default() })
        }

        fn rescue(&mut self) -> Option<Rescue> {
            self.taken += 1;
            self.handed += 1;
            assert!(self.taken < 100_000, "the sockets never have their turn");
            Some(Rescue {
                group: GroupIndex(0),
                lane: 0,
                generation: 0,
                position: 0,
                except: None,
                tos: 0,
                payload: vec![1],
            })
        }

        fn rescues_max(&self) -> u64 {
            self.handed - self.taken
        }
    }

    #[derive(Default)]
    struct Desk(Table);

    impl Host for Desk {
        fn table(&mut self) -> &mut Table {
            &mut self.0
        }

        fn control(&mut self, _: Now, _: Incoming<'_>) {}

        fn outgoing(&mut self) -> Option<Outgoing> {
            None
        }
    }

    #[test]
    fn a_turn_ends_however_much_a_program_hands_over() {
        let listeners = Listeners::open(&[SocketAddr::from(([127, 0, 0, 1], 0))]).unwrap();
        let plane = Box::new(Overloaded { handed: 10, taken: 0 });
        let mut forwarder = Forwarder::new(listeners, plane, ForwardOptions::default()).unwrap();
        let mut desk = Desk::default();
        desk.0.set_group(GroupId { port: 7400, id: 0 }, GroupOptions::default());
        forwarder.poll(&mut desk, Duration::ZERO).unwrap();
    }
}
