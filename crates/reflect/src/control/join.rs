//! Joining and leaving.
//!
//! An address is not recorded before it has returned its cookie. The joins of a source are limited only then:
//! otherwise an attacker that forges an address could use up the joins of its true owner.

use std::net::{IpAddr, SocketAddr};

use super::{Control, Counter, Event, PARTS_PER_PROOF, Proofs, Seat, Shown};
use crate::host::{Incoming, Now};
use crate::rate::Owner;
use crate::table::{GroupId, GroupIndex, MemberIndex, Path, Terms};
use crate::token::{self, Identity, Permit, Rights};
use crate::wire::{Answer, Join, Joined, Reason};

impl Control {
    /// Returns whether a source may be sent anything at all.
    pub(super) fn may_send_to(&self, to: SocketAddr, local: SocketAddr) -> bool {
        let ip = to.ip().to_canonical();
        let options = &self.options;
        let right = match ip {
            IpAddr::V4(ip) => !ip.is_broadcast() && ip.octets()[0] != 0 && !options.broadcast.contains(&ip),
            IpAddr::V6(_) => true,
        };
        let own = options.own.iter().chain([&local]).any(|own| {
            let own_ip = own.ip().to_canonical();
            own.port() == to.port()
                && (own_ip == ip || own_ip.is_unspecified() && local.ip().to_canonical() == ip)
        });
        right
            && !own
            && !ip.is_multicast()
            && !ip.is_unspecified()
            && (options.loopback || !ip.is_loopback())
            && to.port() != 0
            && (options.privileged || to.port() >= 1024)
    }

    pub(super) fn join(&mut self, now: Now, incoming: &Incoming<'_>, id: GroupId, join: Join<'_>) {
        let (from, nonce) = (incoming.from, join.nonce);
        let refused = |reason, retry_ms| Answer::Refused { nonce, reason, retry_ms };
        if self.closing {
            return self.answer_unproven(now, incoming, Counter::Closing, &refused(Reason::Closing, 0));
        }
        let group = self.table.find(id).filter(|group| !self.group_control(*group).removed);
        let Some(group) = group else {
            let answer = refused(Reason::UnknownGroup, 0);
            return self.answer_unproven(now, incoming, Counter::UnknownGroup, &answer);
        };
        if let Some((address, group)) = self.redirect(group) {
            let answer = Answer::Redirect { nonce, address, group };
            return self.answer_unproven(now, incoming, Counter::Redirected, &answer);
        }

        // The proof.
        let known = self.table.member_of(id, from);
        let younger_than_ms = match known {
            Some(index) => Some(self.seat(index).joined_ms),
            None => self.departed.younger_than_ms(self.secret.session(id, from, 0)),
        };
        let created_ms = self.secret.check(&join.cookie, id, from, now.ms);
        if let (Some(index), Some(_)) = (known, created_ms)
            && self.seat(index).nonce == nonce
        {
            // The same JOIN again, or its copy: its answer may have been lost.
            self.count(Counter::JoinedAgain);
            return self.welcome(incoming, group, index);
        }
        let Some(created_ms) =
            created_ms.filter(|created_ms| younger_than_ms.is_none_or(|than| *created_ms > than))
        else {
            if join.cookie != [0; _] {
                self.count(Counter::CookieInvalid);
            }
            let created_ms = younger_than_ms.map_or(now.ms, |than| now.ms.max(than + 1));
            let cookie = self.secret.cookie(id, from, created_ms);
            let answer = Answer::Challenge { nonce, cookie, seen: from };
            return self.answer_unproven(now, incoming, Counter::Challenged, &answer);
        };

        let permit = match self.admit(now, group, known, incoming.path, from, join.token) {
            Ok(permit) => permit,
            Err((counter, reason, retry_ms)) => {
                self.count(counter);
                return self.send(incoming.path.local, from, &refused(reason, retry_ms));
            }
        };
        let Permit { rights, identity, expires_unix_s } = permit;
        let asks_for_tokens = self.table.group(group).options.token;
        let may_supply = self.may_supply(asks_for_tokens, rights.state, from.ip());
        let owner =
            identity.map_or_else(|| Owner::of_address(from.ip()), |Identity(bytes)| Owner::Identity(bytes));
        let wanted = Terms { echo: join.echo, owner, sends: rights.send, receives: rights.receive };
        let (terms, leaves) = self.relay_terms(group, from, join.leaves, wanted);
        // What a member may fetch is not filled up by joining again; nor is what it may send, which is its owner's.
        let state_bucket_ns = known.map_or(0, |index| self.seat(index).state_bucket_ns);
        let index = self.table.join_on(group, incoming.path, from, terms, now.ms);
        let member = self.table.member_mut(index);
        (member.heartbeat, member.delay_us) = (0, 0);
        self.joins += 1;
        let session = self.secret.session(id, from, self.joins);
        let seat = Seat {
            session,
            nonce,
            joined_ms: created_ms.max(now.ms),
            state_bucket_ns,
            keeps_state: join.keeps_state && may_supply,
            proofs: Proofs { sent_us: now.ns / 1000, way_us: u32::MAX, ..Proofs::default() },
            // What it has proven so far is that it got its cookie.
            proven_ms: created_ms.min(now.ms),
            parts: PARTS_PER_PROOF,
            announced_ms: self.times().0,
            token: asks_for_tokens.then(|| Box::new(Shown { identity, until_unix_s: expires_unix_s })),
        };
        self.seat_for(index, seat);
        self.relay_joined(now, group, index, leaves, wanted);
        if known.is_some() {
            self.count(Counter::Rejoined);
        } else {
            self.count(Counter::Joined);
            self.emit(Event::Joined { group: id, address: from });
            self.state_wanted(now, group);
        }
        self.welcome(incoming, group, index);
    }

    /// Checks if a client that has proven its address may join.
    ///
    /// # Errors
    /// The counter and the reason of the refusal, and the time after which to try again, in milliseconds; 0 for not at
    /// all.
    fn admit(
        &mut self,
        now: Now,
        group: GroupIndex,
        known: Option<MemberIndex>,
        path: Path,
        from: SocketAddr,
        token: &[u8],
    ) -> Result<Permit, (Counter, Reason, u32)> {
        let source = self.secret.source(from.ip());
        if !self.join_sources.take(source, now.ns) {
            return Err((Counter::TooManyJoins, Reason::TooManyJoins, 1000));
        }
        let location = self.group_control(group).location.as_deref();
        let group = self.table.group(group);
        let mut permit = Permit { rights: Rights::ALL, identity: None, expires_unix_s: u64::MAX };
        if group.options.token {
            let keys = &self.options.token_keys;
            let verdict = token::verify(keys, token, group.id, location, from.ip(), now.unix_s);
            permit = verdict.map_err(|reason| (Self::refuse_count(reason), reason, 0))?;
        }
        if let Some(left_ms) = self.banned_ms(now, group.id, permit.identity, from.ip()) {
            return Err((Counter::Banned, Reason::Banned, left_ms));
        }
        let full = group.live >= group.options.members_max
            || self.table.members_len() >= self.options.members_max as usize;
        if known.is_none() && full || !group.takes(path) {
            return Err((Counter::Full, Reason::Full, self.options.expiry_ms));
        }
        Ok(permit)
    }

    /// Tells a member that it has joined.
    fn welcome(&mut self, incoming: &Incoming<'_>, group: GroupIndex, index: MemberIndex) {
        let (state_version, state_bytes, state_pending) = self.announced_state(group);
        let (heartbeat_ms, expiry_ms) = self.times();
        // It is told another interval than when it joined if its JOIN came again.
        self.seats[index.0 as usize].announced_ms = heartbeat_ms;
        let (seat, group) = (self.seat(index), self.table.group(group));
        let joined = Joined {
            nonce: seat.nonce,
            session: seat.session,
            seen: incoming.from,
            heartbeat_ms,
            expiry_ms,
            members: group.live,
            sequence: group.options.sequence,
            state_pending,
            state_version,
            state_bytes,
            proof: self.secret.proof(seat.session, seat.proofs.newest),
        };
        self.send(incoming.path.local, incoming.from, &Answer::Joined(joined));
    }

    pub(super) fn leave(&mut self, now: Now, incoming: &Incoming<'_>, id: GroupId, session: u64) {
        match self.member(id, incoming.from, session) {
            Some(index) => self.dismiss(now, index, Reason::Left),
            None => self.not_member(now, incoming, session),
        }
    }

    /// Answers an address that takes itself for a member: it may have been one before the reflector was restarted.
    pub(super) fn not_member(&mut self, now: Now, incoming: &Incoming<'_>, session: u64) {
        let answer = Answer::Refused { nonce: session, reason: Reason::NotMember, retry_ms: 0 };
        self.answer_unproven(now, incoming, Counter::NotMember, &answer);
    }
}
