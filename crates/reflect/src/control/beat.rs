//! Heartbeats, and the round in which every member is visited: a member that was silent for too long is removed, and
//! one that has to leave or to move is notified. Each tick visits a share of the members, so that no tick is long.

use super::{Control, Counter, PARTS_PER_PROOF};
use crate::host::{Incoming, Now};
use crate::table::{GroupId, MemberIndex};
use crate::wire::{Answer, Heartbeat, Pulse, Reason};

/// The longest delay, in microseconds, that is believed. A longer one is a mistake.
const DELAY_MAX_US: u64 = 60_000_000;

/// The interval between heartbeats for each member there is, and its bounds, in milliseconds: some 60 heartbeats a second
/// come from a thousand members.
const MEMBER_MS: u32 = 16;
const HEARTBEAT_MS: std::ops::RangeInclusive<u32> = 500..=15_000;

/// The state of the round.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// The next member's place to visit.
    next: u32,
    /// The number of rounds that have ended.
    number: u64,
    /// The time of the last tick, in milliseconds.
    last_ms: Option<u64>,
    /// The remainder of the visits that are due, in places times milliseconds.
    due: u64,
}

impl Control {
    pub(super) fn heartbeat(&mut self, now: Now, incoming: &Incoming<'_>, id: GroupId, beat: Heartbeat) {
        let Some(index) = self.member(id, incoming.from, beat.session) else {
            return self.not_member(now, incoming, beat.session);
        };
        if beat.number <= self.table.member(index).heartbeat {
            return self.count(Counter::Replayed);
        }
        let is_newest = self.secret.proof(beat.session, self.seat(index).proofs.newest) == beat.proof;
        let Some(sent_us) = self.take_proof(index, beat.proof) else {
            return self.stale(now, incoming, beat.session);
        };
        let way_us = u32::try_from((now.ns / 1000).saturating_sub(sent_us)).unwrap_or(u32::MAX).max(1);
        let seat = &mut self.seats[index.0 as usize];
        seat.proofs.way_us = seat.proofs.way_us.min(way_us);
        if is_newest {
            self.seats[index.0 as usize].parts = PARTS_PER_PROOF;
        }
        let index = self.follow_path(now, incoming, index);
        let now_us = now.ns / 1000;
        let member = self.table.member_mut(index);
        member.heard_ms = now.ms;
        member.heartbeat = beat.number;
        if beat.reflector_us != 0
            && let Some(delay_us) =
                now_us.checked_sub(beat.reflector_us).and_then(|us| us.checked_sub(beat.hold_us.into()))
            && delay_us < DELAY_MAX_US
        {
            // An eighth of each new measurement, as TCP does it.
            let delay_us = delay_us.max(1) as u32;
            member.delay_us = match member.delay_us {
                0 => delay_us,
                before => before - before / 8 + delay_us / 8,
            }
            .max(1);
        }
        let group = self.table.member(index).group;
        let (state_version, ..) = self.announced_state(group);
        let proof = self.next_proof(now, index);
        let (heartbeat_ms, expiry_ms) = self.times();
        self.seats[index.0 as usize].announced_ms = heartbeat_ms;
        let group = self.table.group(group);
        let pulse = Pulse {
            session: beat.session,
            number: beat.number,
            members: group.live,
            client_us: beat.client_us,
            reflector_us: now_us,
            state_version,
            proof,
            heartbeat_ms,
            expiry_ms,
        };
        self.count(Counter::Heartbeats);
        self.send(incoming.path.local, incoming.from, &Answer::Pulse(pulse));
    }

    /// Follows a member whose datagrams come in by another device, or to another address of the reflector: its copies
    /// go out there. Only the group that the address joined last follows: the others are about to be left, and joining
    /// them anew would make them the ones that it sends to.
    fn follow_path(&mut self, now: Now, incoming: &Incoming<'_>, index: MemberIndex) -> MemberIndex {
        let before = self.table.member(index);
        let group = self.table.group(before.group);
        if group.lanes[before.lane as usize].path == incoming.path
            || self.table.sender(group.id.port, before.address) != Some(index)
            || !group.takes(incoming.path)
        {
            return index;
        }
        let seat = self.seat(index).clone();
        let moved = self.table.take_path(index, incoming.path, now.ms);
        self.seat_for(moved, seat);
        self.count(Counter::PathChanged);
        moved
    }

    /// Returns the interval between heartbeats that is currently announced to members, and the time after which they are removed if
    /// they are silent, in milliseconds.
    pub(super) fn times(&self) -> (u32, u32) {
        let heartbeat_ms = match self.options.heartbeat_ms {
            0 => {
                let members = u32::try_from(self.table.members_len()).unwrap_or(u32::MAX);
                members.saturating_mul(MEMBER_MS).clamp(*HEARTBEAT_MS.start(), *HEARTBEAT_MS.end())
            }
            fixed_ms => fixed_ms,
        };
        (heartbeat_ms, self.expiry_of(heartbeat_ms))
    }

    /// Returns the time after which a member with this announced interval is removed, in milliseconds.
    fn expiry_of(&self, heartbeat_ms: u32) -> u32 {
        match self.options.expiry_ms {
            0 => heartbeat_ms.saturating_mul(2).saturating_add(2000),
            fixed_ms => fixed_ms.max(heartbeat_ms),
        }
    }

    /// Continues the round.
    pub(super) fn go_round(&mut self, now: Now) {
        let end = self.table.members_end();
        let elapsed_ms = now.ms - self.round.last_ms.replace(now.ms).unwrap_or(now.ms).min(now.ms);
        let round_ms = u64::from(self.times().0 / 2).clamp(50, 1000);
        self.round.due += u64::from(end) * elapsed_ms.min(round_ms);
        let visits = (self.round.due / round_ms).min(end.into());
        self.round.due %= round_ms;
        for _ in 0..visits {
            if self.round.next >= end {
                self.round.next = 0;
                self.round.number += 1;
            }
            let index = MemberIndex(self.round.next);
            self.round.next += 1;
            if self.table.get_member(index).is_some() {
                self.look_after(now, index);
            }
        }
    }

    fn look_after(&mut self, now: Now, index: MemberIndex) {
        let member = self.table.member(index);
        let silent_ms = now.ms.saturating_sub(member.heard_ms);
        let group = member.group;
        // A heartbeat brings back what the one before it was answered with: a proof is an interval old when it comes.
        let unproven_ms = now.ms.saturating_sub(self.seat(index).proven_ms);
        let heartbeat_ms = self.seat(index).announced_ms;
        let expiry_ms = self.expiry_of(heartbeat_ms);
        if silent_ms > expiry_ms.into() || unproven_ms > u64::from(expiry_ms) + u64::from(heartbeat_ms) {
            self.dismiss(now, index, Reason::Expired);
        } else if self.seat(index).until_unix_s() <= now.unix_s {
            self.dismiss(now, index, Reason::TokenExpired);
        } else if self.closing {
            self.dismiss(now, index, Reason::Closing);
        } else if self.group_control(group).removed {
            self.dismiss(now, index, Reason::Removed);
        } else {
            self.request_move(now, index, self.round.number);
        }
    }
}
