//! The group's state: fetched from the reflector part by part, and given to it when it asks.

use bytes::Bytes;

use super::{Member, MemberEvent};
use crate::wire::{PART_BYTES, PARTS_MAX, Request, STATE_BYTES_MAX, StateGet, StatePart};

/// The number of requests without progress after which fetching is given up.
const FETCH_TRIES: u32 = 20;
/// The number of repetitions without progress after which giving is given up: the reflector asks another member.
const GIVE_TRIES: u32 = 8;
/// The greatest number of parts that are under way at a time.
const WINDOW: usize = 32;
/// The least and the greatest wait for an answer, in microseconds.
const WAIT_US: std::ops::Range<u64> = 50_000..2_000_000;

/// A state that is being fetched.
#[derive(Debug)]
pub(super) struct Fetch {
    version: u64,
    bytes: Vec<u8>,
    have: Vec<bool>,
    /// The first part that is missing.
    next: usize,
    /// The end of the parts that have been asked for.
    requested: usize,
    tries: u32,
    pub(super) due_us: u64,
}

/// A state that is being given.
#[derive(Debug)]
pub(super) struct Give {
    ask: u32,
    /// The state to give, once the program has answered; `Some(None)` if it has none.
    state: Option<Option<Bytes>>,
    next: usize,
    later: u64,
    /// The end of the parts that have been sent.
    sent: usize,
    tries: u32,
    /// The time to send the parts again that were not taken, in microseconds. `None` while the program has not
    /// answered.
    pub(super) due_us: Option<u64>,
}

impl Member {
    /// Fetches the newest state from the reflector, as soon as the member is in a group. A [`MemberEvent::State`] or
    /// [`MemberEvent::NoState`] follows.
    pub fn fetch_state(&mut self, now_us: u64) {
        self.wants_fetch = true;
        if self.current.is_none() || self.fetch.is_some() {
            return;
        }
        self.wants_fetch = false;
        self.fetch = Some(Fetch {
            version: 0,
            bytes: Vec::new(),
            have: Vec::new(),
            next: 0,
            requested: 0,
            tries: 0,
            due_us: now_us,
        });
        self.fetch_on(now_us);
    }

    /// Drops the fetch, as its reflector is gone: the state is fetched again from the next one.
    pub(super) fn drop_fetch(&mut self) {
        self.wants_fetch |= self.fetch.take().is_some();
    }

    /// Answers a [`MemberEvent::StateAsked`]; `None` if there is no state to give.
    pub fn give_state(&mut self, now_us: u64, ask: u32, state: Option<Bytes>) {
        let state = state.filter(|bytes| bytes.len() <= STATE_BYTES_MAX);
        if let Some(give) = self.give.as_mut().filter(|give| give.ask == ask && give.state.is_none()) {
            give.state = Some(state);
            give.due_us = Some(now_us);
            self.give_on(now_us);
        }
    }

    fn wait_us(&mut self, tries: u32) -> u64 {
        let delay_us = self.current.as_ref().and_then(|link| link.delay_us).unwrap_or(0);
        let wait_us = (delay_us * 2).max(WAIT_US.start) << tries.min(8);
        self.random.around(wait_us.min(WAIT_US.end))
    }

    /// Asks for the missing parts, if it is time.
    pub(super) fn fetch_on(&mut self, now_us: u64) {
        let Some(fetch) = self.fetch.as_ref().filter(|fetch| now_us >= fetch.due_us) else { return };
        let tries = fetch.tries;
        if tries >= FETCH_TRIES {
            self.fetch = None;
            self.events.push_back(MemberEvent::NoState);
            return;
        }
        let wait_us = self.wait_us(tries);
        let (Some(fetch), Some(link)) = (&mut self.fetch, &self.current) else { return };
        let left = if fetch.have.is_empty() { PARTS_MAX as usize } else { fetch.have.len() - fetch.next };
        let parts = left.clamp(1, PARTS_MAX.into());
        fetch.requested = fetch.next + parts;
        fetch.tries += 1;
        fetch.due_us = now_us + wait_us;
        let request = Request::StateGet(StateGet {
            group: link.target.group,
            parts: parts as u16,
            session: link.session,
            version: fetch.version,
            offset: (fetch.next * PART_BYTES) as u32,
            proof: link.proof.0,
        });
        let to = link.target.reflector;
        self.transmit(to, request.encode());
    }

    pub(super) fn state_part(
        &mut self,
        now_us: u64,
        version: u64,
        size: u32,
        offset: u32,
        pending: bool,
        part: &[u8],
    ) {
        let Some(fetch) = &mut self.fetch else { return };
        if version == 0 {
            if !pending {
                self.fetch = None;
                self.events.push_back(MemberEvent::NoState);
            }
            // Else it is asked again when the timer ends.
            return;
        }
        if version < fetch.version {
            return;
        }
        let parts = (size as usize).div_ceil(PART_BYTES).max(1);
        if version > fetch.version || fetch.have.len() != parts || fetch.bytes.len() != size as usize {
            // The state has become newer meanwhile: what is there of the older one is worth nothing.
            fetch.version = version;
            fetch.bytes = vec![0; size as usize];
            fetch.have = vec![false; parts];
            (fetch.next, fetch.tries) = (0, 0);
            // What was asked for from another place on comes of the new version now, or not at all.
            fetch.requested = parts.min(PARTS_MAX.into());
        }
        // The codec has checked that the part lies within the size, and begins where parts begin.
        let (at, number) = (offset as usize, offset as usize / PART_BYTES);
        if let (Some(have), Some(place)) =
            (fetch.have.get_mut(number), fetch.bytes.get_mut(at..at + part.len()))
            && !std::mem::replace(have, true)
        {
            place.copy_from_slice(part);
            fetch.tries = 0;
        }
        while fetch.have.get(fetch.next) == Some(&true) {
            fetch.next += 1;
        }
        if fetch.next == fetch.have.len() {
            self.state_version = version;
            let bytes = Bytes::from(std::mem::take(&mut fetch.bytes));
            self.fetch = None;
            self.events.push_back(MemberEvent::State { version, bytes });
        } else if fetch.next >= fetch.requested {
            fetch.due_us = now_us;
            self.fetch_on(now_us);
        }
    }

    pub(super) fn state_asked(&mut self, now_us: u64, ask: u32) {
        match &mut self.give {
            Some(give) if ask < give.ask => {}
            Some(give) if ask == give.ask => {
                // Asked again: what was sent may have been lost, and a member without a state says so once more.
                if matches!(give.state, Some(None)) {
                    give.due_us = Some(now_us);
                    give.tries = 0;
                    self.give_on(now_us);
                }
            }
            _ => {
                self.give =
                    Some(Give { ask, state: None, next: 0, later: 0, sent: 0, tries: 0, due_us: None });
                if self.options.keeps_state {
                    self.events.push_back(MemberEvent::StateAsked { ask });
                } else {
                    self.give_state(now_us, ask, None);
                }
            }
        }
    }

    pub(super) fn state_taken(&mut self, now_us: u64, ask: u32, next: u32, later: u64) {
        let Some(give) = self.give.as_mut().filter(|give| give.ask == ask) else { return };
        let Some(Some(state)) = &give.state else { return };
        let next = next as usize;
        if next >= state.len() {
            // It has all of it. The question is remembered, so that its repetition is not taken for a new one.
            give.due_us = None;
            give.state = Some(Some(Bytes::new()));
            give.next = 1;
            return;
        }
        let next = next / PART_BYTES;
        if next < give.next || (next == give.next && later == give.later) {
            return;
        }
        give.tries = 0;
        (give.next, give.later) = (next, later);
        self.send_parts(now_us, false);
    }

    /// Sends the parts again that were not taken, if it is time.
    pub(super) fn give_on(&mut self, now_us: u64) {
        let Some(give) = self.give.as_mut().filter(|give| give.due_us.is_some_and(|due_us| now_us >= due_us))
        else {
            return;
        };
        if give.tries >= GIVE_TRIES {
            give.due_us = None;
            return;
        }
        give.tries += 1;
        self.send_parts(now_us, true);
    }

    /// Sends the parts of the window that were not sent yet, or with `again` all that were not taken.
    fn send_parts(&mut self, now_us: u64, again: bool) {
        let wait_us = self.wait_us(self.give.as_ref().map_or(0, |give| give.tries));
        let (Some(give), Some(link)) = (&mut self.give, &self.current) else { return };
        let part = StatePart {
            group: link.target.group,
            ask: give.ask,
            session: link.session,
            size: None,
            offset: 0,
            bytes: &[],
        };
        let mut datagrams = Vec::new();
        match &give.state {
            None => return,
            Some(None) => {
                datagrams.push(Request::StatePart(part).encode());
                give.due_us = None;
            }
            Some(Some(state)) => {
                let parts = state.len().div_ceil(PART_BYTES).max(1);
                let end = parts.min(give.next + WINDOW);
                let first = if again { give.next } else { give.next.max(give.sent) };
                for number in first..end {
                    let after_next = number.wrapping_sub(give.next + 1);
                    if after_next < 64 && give.later >> after_next & 1 == 1 {
                        continue;
                    }
                    let at = number * PART_BYTES;
                    let bytes = &state[at..state.len().min(at + PART_BYTES)];
                    let size = Some(state.len() as u32);
                    datagrams.push(
                        Request::StatePart(StatePart { size, offset: at as u32, bytes, ..part }).encode(),
                    );
                }
                give.sent = give.sent.max(end);
                give.due_us = Some(now_us + wait_us);
            }
        }
        let to = link.target.reflector;
        for bytes in datagrams {
            self.transmit(to, bytes);
        }
    }
}
