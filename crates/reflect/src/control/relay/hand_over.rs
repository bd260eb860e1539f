//! Members on their way: each gets copies from the old reflector until its session there is over, and then from the new one.

use std::net::SocketAddr;

use super::{ArrivingMember, Relay};
use crate::control::{Control, Counter};
use crate::host::Now;
use crate::table::{GroupId, GroupIndex, MemberIndex, Terms};
use crate::wire::Reason;
use crate::wire::relay::{Item, ItemKind};

impl Control {
    /// Returns the terms on which a member joins at the new reflector that leaves this session at the old one: it gets no
    /// copies yet.
    pub(in crate::control) fn relay_terms(
        &self,
        index: GroupIndex,
        from: SocketAddr,
        leaves: Option<u64>,
        terms: Terms,
    ) -> (Terms, Option<u64>) {
        let is_new = |relay: &&Relay| !relay.is_old && relay.ended_ms.is_none();
        let Some(relay) = self.group_control(index).relay.as_deref().filter(is_new) else {
            return (terms, None);
        };
        // Who joins again meanwhile has still to leave.
        match leaves.or_else(|| relay.coming_at.get(&from).copied()) {
            None => (terms, None),
            leaves => (Terms { receives: false, ..terms }, leaves),
        }
    }

    /// Notes that a member has joined: at the new reflector it is claimed, at the old one it can be.
    pub(in crate::control) fn relay_joined(
        &mut self,
        now: Now,
        group: GroupIndex,
        index: MemberIndex,
        leaves: Option<u64>,
        terms: Terms,
    ) {
        let (address, session) = (self.table.member(index).address, self.seat(index).session);
        let Some(relay) =
            self.controls[group.0 as usize].relay.as_mut().filter(|relay| relay.ended_ms.is_none())
        else {
            return;
        };
        if relay.is_old {
            relay.sessions.insert(session, address);
        } else if let Some(leaves) = leaves {
            let coming =
                relay.coming.entry(leaves).or_insert(ArrivingMember { address, terms, sent: Vec::new() });
            (coming.address, coming.terms) = (address, terms);
            relay.coming_at.insert(address, leaves);
            relay.channel.push(Item::of_session(ItemKind::Claim, leaves));
            self.send_relay(now, group, false);
        }
    }

    /// Notes that a session is over at the old reflector.
    pub(in crate::control) fn relay_left(&mut self, now: Now, group: GroupIndex, session: u64) {
        let Some(relay) = self.controls[group.0 as usize].relay.as_mut() else { return };
        if relay.is_old && relay.ended_ms.is_none() {
            relay.sessions.remove(&session);
            relay.claims.remove(&session);
            relay.channel.push(Item::of_session(ItemKind::Left, session));
            self.count(Counter::RelayHanded);
            self.send_relay(now, group, false);
        }
    }

    /// Gives a member copies here from now on, and orders the datagrams that it has sent meanwhile.
    pub(super) fn has_come(&mut self, now: Now, group: GroupIndex, session: u64) {
        let Some(relay) = self.controls[group.0 as usize].relay.as_mut() else { return };
        let Some(coming) = relay.coming.remove(&session) else { return };
        let is_last = relay.coming_at.get(&coming.address) == Some(&session);
        if is_last {
            relay.coming_at.remove(&coming.address);
        }
        for waiting in coming.sent {
            relay.bytes -= waiting.bytes();
            relay.wait(waiting);
        }
        if is_last {
            self.receive_here(now, group, coming.address, coming.terms);
        }
    }

    pub(super) fn receive_here(&mut self, now: Now, group: GroupIndex, address: SocketAddr, terms: Terms) {
        let id = self.table.group(group).id;
        let Some(index) = self.table.member_of(id, address).filter(|_| terms.receives) else { return };
        let member = self.table.member(index);
        let (heard_ms, heartbeat, delay_us) = (member.heard_ms, member.heartbeat, member.delay_us);
        let path = self.table.group(group).lanes[member.lane as usize].path;
        let seat = self.seat(index).clone();
        let here = self.table.join_on(group, path, address, terms, now.ms);
        let member = self.table.member_mut(here);
        (member.heard_ms, member.heartbeat, member.delay_us) = (heard_ms, heartbeat, delay_us);
        self.seat_for(here, seat);
    }

    /// Removes a member that is at the new reflector, and has not said here that it left.
    pub(super) fn take_away(&mut self, now: Now, index: GroupIndex, session: u64) {
        let id: GroupId = self.table.group(index).id;
        let Some(relay) = &mut self.controls[index.0 as usize].relay else { return };
        relay.claims.remove(&session);
        let address = relay.sessions.get(&session).copied();
        match address.and_then(|address| self.member(id, address, session)) {
            Some(member) => self.dismiss(now, member, Reason::Left),
            None => {
                let Some(relay) = &mut self.controls[index.0 as usize].relay else { return };
                relay.channel.push(Item::of_session(ItemKind::Left, session));
            }
        }
    }
}
