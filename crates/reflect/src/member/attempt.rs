//! Joining: asking for the place of a location, proving the address, and trying the next reflector if one does
//! not answer.

use std::net::SocketAddr;

use super::link::Link;
use super::{Member, MemberEvent, PLACES_MAX, Target, Wanted};
use crate::wire::{COOKIE_BYTES, Join, Joined, Reason, Request};

/// The greatest number of challenges answered at once before the timer is waited for.
const CHALLENGES_MAX: u32 = 8;
/// The greatest number of redirections followed in one attempt.
const REDIRECTS_MAX: u32 = 8;

/// The purpose of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Joining a group. Goes on until it succeeds.
    Enter,
    /// Moving because a reflector said so. Given up if it fails there.
    Move,
    /// Proving the address again, or showing another token, at the same place. The member stays in meanwhile.
    Renew,
}

/// The question that is asked at the moment.
#[derive(Clone, Copy, Debug)]
enum Question {
    /// A request for the place of the location, to this reflector.
    Locate(SocketAddr),
    /// A request to join this group.
    Join(Target),
}

/// An attempt to join.
#[derive(derive_more::Debug)]
pub(super) struct Attempt {
    purpose: Purpose,
    question: Question,
    nonce: u64,
    #[debug("…")]
    cookie: [u8; COOKIE_BYTES],
    /// The number of times that this question was asked here.
    tries: u32,
    /// The number of the present place or reflector, counted on from the first round to the last.
    turn: usize,
    challenges: u32,
    redirects: u32,
    pub(super) due_us: u64,
}

impl Member {
    /// Begins to join, at the place of this number.
    pub(super) fn begin(&mut self, now_us: u64, purpose: Purpose, turn: usize) {
        let question = match (&self.wanted, &self.places[..]) {
            (_, places @ [_, ..]) => Question::Join(places[turn % places.len()]),
            (Wanted::Location { reflectors, .. }, []) if !reflectors.is_empty() => {
                Question::Locate(reflectors[turn % reflectors.len()])
            }
            _ => {
                self.attempt = None;
                return;
            }
        };
        self.ask(now_us, purpose, question, turn);
    }

    pub(super) fn move_requested(&mut self, now_us: u64, target: Target) {
        // It is told again and again until it has left. One attempt at a time is enough.
        if self.attempt.is_none() && self.target() != Some(target) {
            self.ask(now_us, Purpose::Move, Question::Join(target), 0);
        }
    }

    /// Begins to join again where the member is.
    pub(super) fn renew(&mut self, now_us: u64) {
        if let (Some(target), None) = (self.target(), &self.attempt) {
            self.ask(now_us, Purpose::Renew, Question::Join(target), 0);
        }
    }

    fn ask(&mut self, now_us: u64, purpose: Purpose, question: Question, turn: usize) {
        let redirects = self.attempt.as_ref().map_or(0, |attempt| attempt.redirects);
        self.attempt = Some(Attempt {
            purpose,
            question,
            nonce: self.random.next(),
            cookie: [0; _],
            tries: 0,
            turn,
            challenges: 0,
            redirects,
            due_us: now_us,
        });
    }

    /// Asks, asks again, or asks at the next place, if it is time.
    pub(super) fn try_on(&mut self, now_us: u64) {
        let Some(attempt) = self.attempt.as_ref().filter(|attempt| now_us >= attempt.due_us) else { return };
        if attempt.tries >= self.options.tries {
            return self.next_place(now_us, None);
        }
        self.put(now_us);
        if let Some(attempt) = &mut self.attempt {
            let wait_ms = (self.options.retry_ms << attempt.tries.min(16)).min(self.options.retry_max_ms);
            attempt.tries += 1;
            attempt.challenges = 0;
            attempt.due_us = now_us + self.random.around(wait_ms * 1000);
        }
    }

    /// Sends the question.
    fn put(&mut self, _now_us: u64) {
        let Some(attempt) = &self.attempt else { return };
        let (to, bytes) = match attempt.question {
            Question::Locate(reflector) => {
                let Wanted::Location { name, .. } = &self.wanted else { return };
                (reflector, Request::Locate { nonce: attempt.nonce, location: name }.encode())
            }
            Question::Join(target) => {
                // Who goes by its own wish tells nobody what only its reflector is to know.
                let was_sent = attempt.purpose != Purpose::Enter;
                let leaves = self.current.as_ref().filter(|link| was_sent && link.target != target);
                let join = Join {
                    group: target.group,
                    echo: self.options.echo,
                    keeps_state: self.options.keeps_state,
                    nonce: attempt.nonce,
                    cookie: attempt.cookie,
                    leaves: leaves.map(|link| link.session),
                    token: &self.options.token,
                };
                (target.reflector, Request::Join(join).encode())
            }
        };
        self.transmit(to, bytes);
    }

    /// Goes on to the next place: at once within a round, and after growing waits between rounds.
    fn next_place(&mut self, now_us: u64, not_before_us: Option<u64>) {
        let Some(attempt) = self.attempt.take() else { return };
        if attempt.purpose == Purpose::Renew {
            return self.lose(now_us, 0);
        }
        if attempt.purpose == Purpose::Move {
            if let Question::Join(target) = attempt.question {
                self.events.push_back(MemberEvent::MoveFailed { target });
            }
            return;
        }
        let turn = attempt.turn + 1;
        let places = match (&self.wanted, attempt.question) {
            (Wanted::Location { reflectors, .. }, Question::Locate(_)) => reflectors.len(),
            _ => self.places.len(),
        };
        let round_is_over = turn.is_multiple_of(places.max(1));
        self.rounds += u32::from(round_is_over);
        if round_is_over
            && let (Wanted::Location { .. }, Question::Join(_)) = (&self.wanted, attempt.question)
        {
            // Nobody there takes it: the location may have moved.
            self.places.clear();
        }
        self.begin(now_us, Purpose::Enter, turn);
        let wait_ms = (self.options.retry_ms << self.rounds.min(16)).min(self.options.retry_max_ms);
        let wait_us = if round_is_over { self.random.around(wait_ms * 1000) } else { 0 };
        if let Some(attempt) = &mut self.attempt {
            attempt.due_us = (now_us + wait_us).max(not_before_us.unwrap_or(0));
        }
    }

    fn is_asked(&self, from: SocketAddr, nonce: u64) -> bool {
        self.attempt.as_ref().is_some_and(|attempt| {
            let to = match attempt.question {
                Question::Locate(reflector) => reflector,
                Question::Join(target) => target.reflector,
            };
            to == from && attempt.nonce == nonce
        })
    }

    pub(super) fn challenged(
        &mut self,
        now_us: u64,
        from: SocketAddr,
        nonce: u64,
        cookie: [u8; COOKIE_BYTES],
    ) {
        if !self.is_asked(from, nonce) {
            return;
        }
        if let Some(attempt) = &mut self.attempt
            && matches!(attempt.question, Question::Join(_))
        {
            attempt.cookie = cookie;
            attempt.challenges += 1;
            if attempt.challenges <= CHALLENGES_MAX {
                self.put(now_us);
            }
        }
    }

    pub(super) fn joined(&mut self, now_us: u64, from: SocketAddr, joined: Joined) {
        if !self.is_asked(from, joined.nonce) {
            return;
        }
        let Some(Question::Join(target)) = self.attempt.as_ref().map(|attempt| attempt.question) else {
            return;
        };
        let renewed = self.attempt.take().is_some_and(|attempt| attempt.purpose == Purpose::Renew);
        self.rounds = 0;
        let link = Link::new(now_us, target, &joined);
        if let Some(last) = self.current.replace(link)
            && last.target != target
        {
            self.begin_leaving(now_us, last);
        }
        // The place that took it is the first to be tried again.
        self.places.retain(|place| *place != target);
        self.places.insert(0, target);
        self.places.truncate(PLACES_MAX);
        let (seen, members) = (joined.seen, joined.members);
        if !renewed {
            self.events.push_back(MemberEvent::Joined { target, seen, members, again: self.was_in });
        }
        self.was_in = true;
        self.give = None;
        self.drop_fetch();
        let news = joined.state_version > self.state_version || joined.state_pending;
        if self.wants_fetch || self.options.wants_state && news {
            self.fetch_state(now_us);
        }
    }

    pub(super) fn refused(
        &mut self,
        now_us: u64,
        from: SocketAddr,
        nonce: u64,
        reason: Reason,
        retry_ms: u32,
    ) {
        if self.is_in(from, nonce) {
            match reason {
                // The reflector was started again, or has let this member expire.
                Reason::NotMember => self.lose(now_us, 0),
                Reason::Stale => self.renew(now_us),
                _ => {}
            }
            return;
        }
        if let Some(at) = self.leaving.iter().position(|leaving| leaving.is(from, nonce)) {
            return self.has_left(at);
        }
        if !self.is_asked(from, nonce) {
            return;
        }
        let last = matches!(
            reason,
            Reason::TokenMissing
                | Reason::TokenExpired
                | Reason::TokenGroup
                | Reason::TokenAddress
                | Reason::TokenForged
                | Reason::TokenMalformed
                | Reason::Banned
        );
        self.events.push_back(MemberEvent::Refused { reason, last });
        if last {
            // Whoever only wanted to show another token, or to move, stays in with what it has.
            self.attempt = None;
            return;
        }
        let wait_us = self.random.around(u64::from(retry_ms).min(self.options.retry_max_ms * 4) * 1000);
        self.next_place(now_us, Some(now_us + wait_us));
    }

    pub(super) fn redirected(&mut self, now_us: u64, from: SocketAddr, nonce: u64, target: Target) {
        if !self.is_asked(from, nonce) {
            return;
        }
        let Some(attempt) = &mut self.attempt else { return };
        let (Question::Join(_), true) = (attempt.question, attempt.redirects < REDIRECTS_MAX) else { return };
        attempt.redirects += 1;
        let (purpose, turn) = (attempt.purpose, attempt.turn);
        self.ask(now_us, purpose, Question::Join(target), turn);
        self.try_on(now_us);
    }

    pub(super) fn located(
        &mut self,
        now_us: u64,
        from: SocketAddr,
        nonce: u64,
        group: u32,
        reflectors: &[SocketAddr],
    ) {
        if !self.is_asked(from, nonce) {
            return;
        }
        if let Some(Question::Locate(_)) = self.attempt.as_ref().map(|attempt| attempt.question) {
            self.places = reflectors.iter().map(|&reflector| Target { reflector, group }).collect();
            self.begin(now_us, Purpose::Enter, 0);
            self.try_on(now_us);
        }
    }
}
