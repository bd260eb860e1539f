//! The ways of a datagram to its copies: a member's is admitted or refused whole; those that another reflector relayed, and those
//! that a program in the kernel handed over, were admitted there.

use nacre_reflect::host::{Host, Now, Relayed};
use nacre_reflect::table::{GroupIndex, Lane, Table};
use nacre_reflect::wire;

use super::fan_out::{AdmittedDatagram, FanOut, has_receivers};
use super::{ForwardError, Forwarder};
use crate::plane::Rescue;
use crate::system::message::{HEADROOM, Received};

/// The longest payload of UDP over IPv4, in bytes.
const PAYLOAD_MAX: usize = 65_507;

impl Forwarder {
    /// Admits or refuses a datagram, and copies it as far as possible.
    pub(super) fn payload(
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
        let Forwarder { plane, backlog, inbox, counters, by_group, options, limit_ns, .. } = self;
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
        // Where the oldest may go, there is room for one more.
        let keeps_all = group.options.max_age_ms == 0;
        let age_limit_ns = match keeps_all {
            true => u64::MAX,
            false => u64::from(group.options.max_age_ms) * 1_000_000,
        };
        *limit_ns = age_limit_ns.max(*limit_ns);
        // What has waited in the socket for too long is refused before anything else is done with it.
        if received.age_ns >= age_limit_ns {
            counters.backlog += 1;
            of_group.backlog += 1;
            return Ok(());
        }
        let except = (!echo).then_some(received.from);
        let head = if group.options.sequence { wire::DATA_HEAD_BYTES } else { 0 };
        if received.len + head > PAYLOAD_MAX {
            counters.too_long += 1;
            of_group.too_long += 1;
            return Ok(());
        }
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
        let Some(elsewhere) = elsewhere.filter(|_| !refused) else {
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
    pub(super) fn copy_relayed(
        &mut self,
        host: &mut dyn Host,
        relayed: Relayed,
        now: Now,
    ) -> Result<(), ForwardError> {
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

    /// Copies, as far as possible, the datagrams that a program in the kernel has handed over until now. Those that it hands
    /// over meanwhile, which may be more than can be copied, are later than what sockets hold, and have their turn after it.
    pub(super) fn take_rescues(&mut self, host: &mut dyn Host, now: Now) -> Result<(), ForwardError> {
        self.take_rescues_up_to(self.plane.rescues_max(), host, now)
    }

    pub(super) fn take_rescues_up_to(
        &mut self,
        most: u64,
        host: &mut dyn Host,
        now: Now,
    ) -> Result<(), ForwardError> {
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
}

/// Writes the header of the next datagram of a group, if it is numbered and there is room for it.
fn number(table: &mut Table, index: GroupIndex, head: &mut [u8]) {
    if !head.is_empty() {
        let group = table.group_mut(index);
        head.copy_from_slice(&wire::data_head(group.sequence));
        group.sequence += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use nacre_reflect::host::{Incoming, Outgoing};
    use nacre_reflect::table::{GroupId, GroupOptions};

    use super::*;
    use crate::forward::{ForwardOptions, Listeners};
    use crate::plane::{CopyProgress, LaneBatch, Plane, PlaneError, PlaneKind};

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
