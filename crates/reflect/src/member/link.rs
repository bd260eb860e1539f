//! An established membership: heartbeats, detection of a silent reflector, and leaving.

use std::net::SocketAddr;

use super::attempt::Purpose;
use super::gap::Gaps;
use super::{Member, MemberEvent, Target};
use crate::wire::{Heartbeat, Joined, Pulse, Reason, Request};

/// The number of times that a member announces its leaving. After that it gives up: it expires soon enough.
const LEAVE_TRIES: u32 = 5;
/// The least and the greatest wait for the answer to a heartbeat, in microseconds, where the delay is short.
const ANSWER_US: std::ops::RangeInclusive<u64> = 20_000..=120_000;
/// The number of datagrams of the group after which their silence means something.
const STEADY: u32 = 16;
/// The least silence after them that does, in microseconds, and in intervals between them.
const SILENT_US: u64 = 250_000;
const SILENT_GAPS: u64 = 8;

/// An established membership.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) target: Target,
    pub(super) session: u64,
    pub(super) seen: SocketAddr,
    pub(super) members: u32,
    pub(super) sequence: bool,
    pub(super) gaps: Gaps,
    pub(super) state_version: u64,
    pub(super) delay_us: Option<u64>,
    pub(super) beat_due_us: u64,
    heartbeat_us: u64,
    /// The newest proof that the reflector sent, and the number of the heartbeat that it answered.
    pub(super) proof: (u64, u32),
    /// The number of the last heartbeat.
    number: u32,
    beat_us: u64,
    /// The number of heartbeats since the last answer.
    unanswered: u32,
    /// The reflector's clock in its last answer, and the time at which that came, in microseconds.
    pulse: Option<(u64, u64)>,
    /// The number of datagrams of the group since their last silence, the time of the last one, and the usual interval
    /// between them, in microseconds.
    heard: u32,
    heard_us: u64,
    gap_us: u64,
}

impl Link {
    pub(super) fn new(now_us: u64, target: Target, joined: &Joined) -> Self {
        Link {
            target,
            session: joined.session,
            seen: joined.seen,
            members: joined.members,
            sequence: joined.sequence,
            gaps: Gaps::default(),
            state_version: joined.state_version,
            delay_us: None,
            // The first two come at once and soon: they measure the delay.
            beat_due_us: now_us,
            heartbeat_us: u64::from(joined.heartbeat_ms) * 1000,
            proof: (joined.proof, 0),
            number: 0,
            beat_us: now_us,
            unanswered: 0,
            pulse: None,
            heard: 0,
            heard_us: now_us,
            gap_us: 0,
        }
    }

    /// Returns the wait for an answer before the next heartbeat is sent without one, in microseconds: a quarter of the
    /// usual interval, but not long, or more if the delay is long.
    fn answer_us(&self) -> u64 {
        let delays_us = self.delay_us.unwrap_or(0).saturating_mul(2).min(self.heartbeat_us);
        (self.heartbeat_us / 4).clamp(*ANSWER_US.start(), *ANSWER_US.end()).max(delays_us)
    }

    /// Notes a datagram of the group.
    pub(super) fn heard(&mut self, now_us: u64) {
        let gap_us = now_us.saturating_sub(self.heard_us);
        self.gap_us = if self.heard == 0 { 0 } else { self.gap_us - self.gap_us / 8 + gap_us / 8 };
        self.heard_us = now_us;
        self.heard = self.heard.saturating_add(1);
    }

    /// Returns the time of the next heartbeat, in microseconds. Where datagrams came steadily and come no more, that is
    /// soon: either nobody sends, or the reflector is gone.
    pub(super) fn due_us(&self) -> u64 {
        self.silent_from_us().map_or(self.beat_due_us, |from_us| self.beat_due_us.min(from_us))
    }

    /// Returns the time from which on silence means something, in microseconds; `None` if datagrams do not come steadily.
    fn silent_from_us(&self) -> Option<u64> {
        (self.heard >= STEADY).then(|| self.heard_us + (self.gap_us * SILENT_GAPS).max(SILENT_US))
    }
}

/// A membership that is being left.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) target: Target,
    pub(super) sequence: bool,
    session: u64,
    tries: u32,
    pub(super) due_us: u64,
}

impl Leaving {
    pub(super) fn is(&self, from: SocketAddr, session: u64) -> bool {
        self.target.reflector == from && self.session == session
    }
}

impl Member {
    /// Sends a heartbeat if one is due, or gives the reflector up.
    pub(super) fn beat(&mut self, now_us: u64) {
        let Some(link) = self.current.as_mut().filter(|link| now_us >= link.due_us()) else { return };
        if link.unanswered >= self.options.missed_max {
            // The others are tried first: this one had its chance.
            let target = link.target;
            if self.places.first() == Some(&target) {
                self.places.rotate_left(1);
            }
            return self.lose(now_us, 0);
        }
        if link.silent_from_us().is_some_and(|from_us| now_us >= from_us) {
            // One question for each silence: who talked may just have stopped.
            link.heard = 0;
        }
        link.number += 1;
        link.unanswered += 1;
        link.beat_us = now_us;
        link.beat_due_us = now_us + self.random.around(link.answer_us());
        let (reflector_us, hold_us) = match link.pulse {
            Some((reflector_us, came_us)) => {
                (reflector_us, (now_us - came_us).try_into().unwrap_or(u32::MAX))
            }
            None => (0, 0),
        };
        let heartbeat = Heartbeat {
            group: link.target.group,
            number: link.number,
            session: link.session,
            client_us: now_us,
            reflector_us,
            hold_us,
            state_version: self.state_version,
            proof: link.proof.0,
        };
        let to = link.target.reflector;
        self.transmit(to, Request::Heartbeat(heartbeat).encode());
    }

    pub(super) fn pulse(&mut self, now_us: u64, from: SocketAddr, pulse: Pulse) {
        if !self.is_in(from, pulse.session) {
            return;
        }
        let Some(link) = &mut self.current else { return };
        if (link.proof.1..=link.number).contains(&pulse.number) {
            link.proof = (pulse.proof, pulse.number);
        }
        if pulse.number != link.number {
            // An answer to an earlier heartbeat shows as well that somebody is there.
            link.unanswered = link.unanswered.min(1);
            return;
        }
        let delay_us = now_us.saturating_sub(pulse.client_us);
        let first = link.pulse.is_none();
        link.delay_us = Some(link.delay_us.map_or(delay_us, |before| before - before / 8 + delay_us / 8));
        link.pulse = Some((pulse.reflector_us, now_us));
        link.members = pulse.members;
        link.state_version = pulse.state_version;
        link.unanswered = 0;
        link.heartbeat_us = u64::from(pulse.heartbeat_ms) * 1000;
        // The second heartbeat tells the reflector the delay that the first one measured.
        let next_us = if first { link.answer_us() } else { link.heartbeat_us };
        link.beat_due_us = link.beat_us + next_us - self.random.next() % (next_us / 8 + 1);
    }

    /// Notes that the reflector is silent, or does not know this member, and begins to join again, from the place of
    /// this number on.
    pub(super) fn lose(&mut self, now_us: u64, turn: usize) {
        let Some(link) = self.current.take() else { return };
        self.events.push_back(MemberEvent::Lost { target: link.target });
        self.drop_fetch();
        self.give = None;
        self.begin(now_us, Purpose::Enter, turn);
    }

    pub(super) fn goodbye(&mut self, now_us: u64, from: SocketAddr, session: u64, reason: Reason) {
        if let Some(at) = self.leaving.iter().position(|leaving| leaving.is(from, session)) {
            return self.has_left(at);
        }
        if self.is_in(from, session) {
            // Whoever was sent away does not come back by itself.
            if matches!(reason, Reason::Kicked | Reason::Banned | Reason::TokenExpired) {
                if let Some(link) = self.current.take() {
                    self.events.push_back(MemberEvent::Lost { target: link.target });
                }
                self.attempt = None;
                self.drop_fetch();
                self.give = None;
                return self.events.push_back(MemberEvent::Refused { reason, last: true });
            }
            // One that shuts down will not take anybody: the next one is tried first.
            self.lose(now_us, usize::from(reason == Reason::Closing));
        }
    }

    pub(super) fn begin_leaving(&mut self, now_us: u64, link: Link) {
        let Link { target, sequence, session, .. } = link;
        self.leaving.push(Leaving { target, sequence, session, tries: 0, due_us: now_us });
        self.leave_on(now_us);
    }

    /// Announces the leaving again, to reflectors that have not confirmed it.
    pub(super) fn leave_on(&mut self, now_us: u64) {
        let mut at = 0;
        while at < self.leaving.len() {
            let leaving = &mut self.leaving[at];
            if now_us < leaving.due_us {
                at += 1;
                continue;
            }
            if leaving.tries >= LEAVE_TRIES {
                self.has_left(at);
                continue;
            }
            let wait_us = (self.options.retry_ms << leaving.tries) * 1000;
            leaving.tries += 1;
            leaving.due_us = now_us + self.random.around(wait_us);
            let request = Request::Leave { group: leaving.target.group, session: leaving.session };
            let to = leaving.target.reflector;
            self.transmit(to, request.encode());
            at += 1;
        }
    }

    pub(super) fn has_left(&mut self, at: usize) {
        self.leaving.swap_remove(at);
        if self.is_out() {
            self.events.push_back(MemberEvent::Left);
        }
    }
}
