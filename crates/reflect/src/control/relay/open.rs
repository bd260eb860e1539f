//! How a relay begins: the old reflector asks for it, the new one answers with a cookie, and takes the first step once that came
//! back.

use std::net::SocketAddr;

use super::Relay;
use crate::control::{Control, Counter};
use crate::host::{Incoming, Now};
use crate::location::LocationEntry;
use crate::table::GroupIndex;
use crate::wire::COOKIE_BYTES;
use crate::wire::relay::{Accept, Key, Open, Step};

/// The time for which a reflector that does not answer is asked for a relay before members move without, in milliseconds.
const OPENING_MS: u64 = 5000;
/// The interval between requests, in milliseconds.
const ASK_MS: u64 = 100;
/// The number of relays that are remembered, so that none begins twice.
const ENDED_MAX: usize = 256;
/// The time from one hand-over by a standby to the next, in milliseconds.
const STANDBY_MS: u64 = 11_000;
/// The number of requests by a standby that nobody answers for each time that members are told to move all the same: who
/// they are to move to is mostly gone, and if it comes back they are not to find it before the relay does.
const STANDBY_TRIES: u32 = 6;

/// A request for a relay that is not answered yet.
#[derive(derive_more::Debug)]
pub(in crate::control) struct Opening {
    nonce: u64,
    #[debug("…")]
    cookie: [u8; COOKIE_BYTES],
    location: String,
    group: u32,
    peer: SocketAddr,
    local: SocketAddr,
    /// The time of the first request, in milliseconds; `None` while another relay of the group is running.
    since_ms: Option<u64>,
    asked_ms: u64,
}

impl Control {
    /// Asks the reflector that a group's members are to move to for a relay, from the listener `own`, or from any that the
    /// group has.
    pub(in crate::control) fn open_relay(
        &mut self,
        index: GroupIndex,
        location: &str,
        own: Option<SocketAddr>,
        entry: &LocationEntry,
    ) {
        let (peer, group) = (entry.reflectors.first(), entry.group);
        if self.table.group(index).live == 0 || !self.can_relay(peer) {
            return;
        }
        let id = self.table.group(index).id;
        let is_local = |own: &&SocketAddr| own.port() == id.port && own.is_ipv4() == peer.is_ipv4();
        let Some(local) = own.iter().chain(&self.options.own).find(is_local).copied() else { return };
        self.relays.requests += 1;
        let nonce = self.secret.session(id, peer, !self.relays.requests);
        self.group_control_mut(index).opening = Some(Box::new(Opening {
            nonce,
            cookie: [0; _],
            location: location.to_owned(),
            group,
            peer,
            local,
            since_ms: None,
            asked_ms: 0,
        }));
        self.follow_relay(index);
    }

    fn can_relay(&self, peer: SocketAddr) -> bool {
        self.relays.key.is_some() && (self.relays.shared || self.options.own.contains(&peer))
    }

    /// Returns whether a standby's members may move to the reflector in charge now.
    pub(in crate::control) fn may_go_back(&self, index: GroupIndex, peer: SocketAddr, is_turn: bool) -> bool {
        let unanswered = self.group_control(index).unanswered;
        let without = unanswered > 0 && unanswered.is_multiple_of(STANDBY_TRIES) || !self.can_relay(peer);
        self.is_relayed(index) || is_turn && without
    }

    /// Returns whether members of this group are not to move yet.
    pub(in crate::control) fn waits_for_relay(&self, index: GroupIndex) -> bool {
        self.group_control(index).opening.is_some()
    }

    /// Returns true once in a while, for a standby that hands its members over to the reflector in charge.
    pub(in crate::control) fn standby_is_due(&mut self, now: Now, index: GroupIndex) -> bool {
        let control = self.group_control_mut(index);
        let due =
            now.ms >= control.handed_ms + STANDBY_MS && control.relay.is_none() && control.opening.is_none();
        if due {
            control.handed_ms = now.ms;
        }
        due
    }

    /// Answers a request for a relay. `None` if it is not genuine.
    pub(super) fn relay_asked(&mut self, now: Now, incoming: &Incoming<'_>, key: &Key) -> Option<()> {
        let open = Open::decode(incoming.bytes, key).ok()?;
        let (from, local) = (incoming.from, incoming.path.local);
        // As long as the map is not read that says so here too, it is asked again.
        let entry = self.locations.get(open.location);
        let Some((id, false)) = entry.and_then(|entry| self.here(entry)) else { return Some(()) };
        let Some(index) = self.table.find(id).filter(|_| id.id == open.group) else { return Some(()) };
        match &self.group_control(index).relay {
            Some(relay) if !relay.is_old && relay.number == open.nonce && relay.peer == from => {
                self.send_receipt(now, index);
                return Some(());
            }
            Some(relay) if relay.is_old || relay.ended_ms.is_none() => return Some(()),
            _ => {}
        }
        if self.secret.check(&open.cookie, id, from, now.ms).is_none() {
            if !self.answer_sources.take(self.secret.source(from.ip()), now.ns) {
                self.count(Counter::SourceBusy);
                return Some(());
            }
            let cookie = self.secret.cookie(id, from, now.ms);
            self.send_bytes(local, from, Accept { nonce: open.nonce, cookie }.encode(key));
            return Some(());
        }
        // What was said in a relay that is over can be said again by whoever has recorded it.
        if self.relays.begun.contains(&open.nonce) {
            return Some(());
        }
        self.drop_relay(index);
        self.relays.begun.push_back(open.nonce);
        if self.relays.begun.len() > ENDED_MAX {
            self.relays.begun.pop_front();
        }
        let [on, back] = key.of_relay(&open);
        self.begin_relay(now, index, false, open.nonce, [back, on], from, local);
        Some(())
    }

    /// Takes the answer to a request: the cookie goes back. `None` if it is not genuine.
    pub(super) fn relay_accepted(&mut self, now: Now, incoming: &Incoming<'_>, key: &Key) -> Option<()> {
        let accept = Accept::decode(incoming.bytes, key).ok()?;
        let controls = &mut self.controls;
        let is_requested = |index: &&GroupIndex| {
            let opening = controls[index.0 as usize].opening.as_ref();
            opening.is_some_and(|opening| opening.nonce == accept.nonce && opening.peer == incoming.from)
        };
        let index = *self.relays.groups.iter().find(is_requested)?;
        // The keys depend on the cookie, and the first one may be on its way back already.
        if let Some(opening) =
            self.controls[index.0 as usize].opening.as_mut().filter(|of| of.cookie == [0; _])
        {
            opening.cookie = accept.cookie;
            opening.asked_ms = 0;
            self.ask_for_relay(now, index);
        }
        Some(())
    }

    /// Begins a relay that was asked for, by the first step that the new reflector takes.
    pub(super) fn first_step(
        &mut self,
        now: Now,
        incoming: &Incoming<'_>,
        number: u64,
        to_new: bool,
    ) -> Option<()> {
        let key = self.relays.key?;
        let controls = &self.controls;
        let is_requested = |index: &&GroupIndex| {
            let opening = controls[index.0 as usize].opening.as_ref();
            opening.is_some_and(|opening| opening.nonce == number && opening.peer == incoming.from)
        };
        let index = *self.relays.groups.iter().find(is_requested).filter(|_| !to_new)?;
        if self.group_control(index).relay.is_some() {
            return Some(());
        }
        let opening = self.controls[index.0 as usize].opening.as_ref()?;
        let Opening { nonce, cookie, group, peer, local, .. } = **opening;
        let [on, back] = key.of_relay(&Open { nonce, cookie, group, location: &opening.location });
        Step::decode(incoming.bytes, &back).ok()?;
        self.group_control_mut(index).opening = None;
        self.begin_relay(now, index, true, nonce, [on, back], peer, local);
        self.relay_step(now, incoming, to_new)
    }

    /// Asks for a relay, unless another of the group is still running, or the time for that is over.
    pub(super) fn ask_for_relay(&mut self, now: Now, index: GroupIndex) {
        let (Some(key), control) = (self.relays.key, &mut self.controls[index.0 as usize]) else { return };
        let continues = |relay: &Relay| relay.is_old || relay.ended_ms.is_none();
        if control.opening.is_none() || control.relay.as_deref().is_some_and(continues) {
            return;
        }
        self.drop_relay(index);
        let control = &mut self.controls[index.0 as usize];
        let Some(opening) = &mut control.opening else { return };
        let since_ms = *opening.since_ms.get_or_insert(now.ms);
        if now.ms >= since_ms + OPENING_MS {
            control.opening = None;
            control.unanswered += 1;
            return self.count(Counter::RelayUnanswered);
        }
        if now.ms >= opening.asked_ms + ASK_MS {
            opening.asked_ms = now.ms;
            let Opening { nonce, cookie, group, peer, local, .. } = **opening;
            let bytes = Open { nonce, cookie, group, location: &opening.location }.encode(&key);
            self.send_bytes(local, peer, bytes);
        }
    }
}
