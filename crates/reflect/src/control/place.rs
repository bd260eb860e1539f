//! Locations: the place of each, the redirection of joins, and the moving of members.
//!
//! A reflector is *in charge* of a location if the map names it first, and a *standby* if the map names it later. Both
//! take members: a standby takes those that cannot reach the reflector in charge, and tells them at intervals to move
//! there, so that a divided group comes together again. A member that is to move stays one until it has
//! left: it joins the next group before it leaves this one.

use std::net::SocketAddr;

use super::{Control, Counter};
use crate::host::{Incoming, Now};
use crate::location::LocationEntry;
use crate::table::{GroupId, GroupIndex, MemberIndex};
use crate::wire::{Answer, Reason};

/// The number of rounds for each time that a standby asks its members to move.
const STANDBY_ROUNDS: u64 = 8;

/// The place that the members of a group have to move to.
#[derive(Clone, Debug)]
pub(super) struct Moving {
    pub(super) location: String,
    entry: LocationEntry,
    /// True if this reflector is a standby of that place: it takes members as well.
    standby: bool,
    /// The time at which they were to begin, in milliseconds.
    since_ms: u64,
}

/// A group whose members are on their way to another place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure<'a> {
    /// The location that has moved.
    pub location: &'a str,
    /// Its place now.
    pub to: &'a LocationEntry,
    /// True while the reflector there is asked for a relay; no member has been told to move then.
    pub is_asking: bool,
    /// True while the group's datagrams are relayed.
    pub is_relayed: bool,
    /// The members that have yet to leave.
    pub members: u32,
    /// The time at which the location moved, in milliseconds of the monotonic clock.
    pub since_ms: u64,
}

impl Control {
    /// Applies a change of the map: the location is at `entry` now, or has been removed.
    pub fn set_location(&mut self, now: Now, name: &str, entry: Option<LocationEntry>) {
        let before = match &entry {
            Some(entry) => self.locations.insert(name.to_owned(), *entry),
            None => self.locations.remove(name),
        };
        if before == entry {
            return;
        }
        let was_here = before.and_then(|entry| self.here(&entry)).map(|(id, _)| id);
        let is_here = entry.and_then(|entry| self.here(&entry));
        if let Some(id) = was_here
            && is_here.is_none_or(|(new, _)| new != id)
            && self.groups_here.get(&id).is_some_and(|(of, _)| of == name)
        {
            self.groups_here.remove(&id);
            if let Some(index) = self.table.find(id) {
                let state_name = self.state_name(index);
                let location = name.to_owned();
                let control = self.group_control_mut(index);
                control.location = None;
                let since_ms = now.ms;
                control.moving = entry.map(|entry| Moving { location, entry, standby: false, since_ms });
                self.close_relay(now, index);
                if let Some(entry) = entry {
                    let own = before.and_then(|before| self.own_of(&before));
                    self.open_relay(index, name, own, &entry);
                }
                if self.state_name(index) != state_name {
                    self.rename_state(now, index);
                }
            }
        }
        if let Some((id, standby)) = is_here {
            let state_name = self.table.find(id).map(|index| (index, self.state_name(index)));
            self.groups_here.insert(id, (name.to_owned(), standby));
            if self.table.find(id).is_none()
                && let Some(options) = self.options.group_default
            {
                self.set_group(id, options);
                self.set_state(now, id, self.options.state_default);
            }
            if let Some(index) = self.table.find(id) {
                self.close_relay(now, index);
            }
            self.settle(id);
            if let Some((index, before)) = state_name
                && self.state_name(index) != before
            {
                self.rename_state(now, index);
            }
            // Another reflector may have stored a newer state meanwhile.
            if was_here != Some(id) {
                self.forget_state(now, id);
            }
        }
    }

    /// Returns all locations, as the map gave them.
    pub fn locations(&self) -> impl Iterator<Item = (&str, &LocationEntry)> {
        self.locations.iter().map(|(name, entry)| (name.as_str(), entry))
    }

    /// Returns the location whose group this is, and true if this reflector is in charge of it.
    pub fn location_of(&self, group: GroupIndex) -> Option<(&str, bool)> {
        let (name, standby) = self.groups_here.get(&self.table.get_group(group)?.id)?;
        Some((name, !standby))
    }

    /// Returns the progress of a group whose members are on their way to another place; `None` if none are.
    pub fn departure(&self, group: GroupIndex) -> Option<Departure<'_>> {
        let members = self.table.get_group(group)?.live;
        let moving = self.controls.get(group.0 as usize)?.moving.as_ref()?;
        (members > 0 && !moving.standby).then(|| Departure {
            location: &moving.location,
            to: &moving.entry,
            is_asking: self.waits_for_relay(group),
            is_relayed: self.is_relayed(group),
            members,
            since_ms: moving.since_ms,
        })
    }

    /// Applies the map's entry for a group of this reflector to the group's control data.
    pub(super) fn settle(&mut self, id: GroupId) {
        let (Some(index), Some((name, standby))) = (self.table.find(id), self.groups_here.get(&id)) else {
            return;
        };
        let (name, standby) = (name.clone(), *standby);
        let entry = self.locations.get(&name).copied();
        let control = self.group_control_mut(index);
        control.location = Some(name.clone());
        control.moving = entry.filter(|_| standby).map(|entry| Moving {
            location: name,
            entry,
            standby: true,
            since_ms: 0,
        });
    }

    /// Returns the group that a place means if it is at this reflector, and true if the reflector is a standby there.
    pub(super) fn here(&self, entry: &LocationEntry) -> Option<(GroupId, bool)> {
        let is_own = |address: &SocketAddr| match &self.options.advertised[..] {
            [] => self.options.own.contains(address),
            advertised => advertised.contains(address),
        };
        let at = entry.reflectors.as_slice().iter().position(is_own)?;
        Some((GroupId { port: entry.reflectors.as_slice()[at].port(), id: entry.group }, at > 0))
    }

    /// Returns the listener of this reflector that a place names, if it names one as it is bound.
    fn own_of(&self, entry: &LocationEntry) -> Option<SocketAddr> {
        entry.reflectors.as_slice().iter().find(|address| self.options.own.contains(address)).copied()
    }

    /// Returns the reflector and the group that a client is to join instead of this group, if there is one.
    pub(super) fn redirect(&self, group: GroupIndex) -> Option<(SocketAddr, u32)> {
        let moving = self.group_control(group).moving.as_ref().filter(|moving| !moving.standby)?;
        // Nobody goes before what is said here is heard there.
        if self.waits_for_relay(group) {
            return None;
        }
        Some((moving.entry.reflectors.first(), moving.entry.group))
    }

    /// Tells a member to move if it has to, and if its turn has come.
    pub(super) fn request_move(&mut self, now: Now, index: MemberIndex, round: u64) {
        let member = self.table.member(index);
        let (address, local) = (member.address, self.local_of(index));
        let group = member.group;
        let Some(moving) = &self.controls[group.0 as usize].moving else { return };
        let (location, entry, standby) = (moving.location.clone(), moving.entry, moving.standby);
        if standby && self.standby_is_due(now, group) {
            self.open_relay(group, &location, self.own_of(&entry), &entry);
        }
        let is_turn = round.is_multiple_of(STANDBY_ROUNDS);
        let may_go = !standby || self.may_go_back(group, entry.reflectors.first(), is_turn);
        if !may_go || self.waits_for_relay(group) {
            return;
        }
        let session = self.seat(index).session;
        let to = entry.reflectors.first();
        self.count(Counter::MovesTold);
        let answer = Answer::Move { session, address: to, group: entry.group, location: &location };
        self.send(local, address, &answer);
    }

    pub(super) fn locate(&mut self, now: Now, incoming: &Incoming<'_>, nonce: u64, location: &str) {
        let (counter, answer) = match self.locations.get(location) {
            Some(entry) => {
                let (group, reflectors) = (entry.group, entry.reflectors);
                (Counter::Located, Answer::Location { nonce, group, reflectors })
            }
            None => {
                let reason = Reason::UnknownLocation;
                (Counter::UnknownLocation, Answer::Refused { nonce, reason, retry_ms: 1000 })
            }
        };
        self.answer_unproven(now, incoming, counter, &answer);
    }
}
