//! Capabilities: who may use a shared resource exclusively, and for how long (Sevilla et al., *Malacology*, sections 4.3 and
//! 5.2.1): a state machine without clock or I/O.
//!
//! Requests for a resource stand in one line. At its head, a request to *cache* the resource becomes a *grant*, which lasts
//! until the holder gives it back; a request to be *served* is answered by the rank itself while nobody holds the resource.
//! When others wait, the holder is asked for the resource, as its policy has it. A holder that does not answer is granted
//! no further lease, and loses the resource when its lease is over: by its own clock it has stopped using it then.
//!
//! Invariants:
//! - A resource has at most one holder, and nothing is served while it has one.
//! - A resource goes to somebody else only when its holder has given it back, or the holder's lease is over.
//! - Whoever waits is answered once, unless its session ends or it gives up before.
//! - A program decides no more about a resource for which somebody has waited for [`SWAY`] leases.

mod decide;
mod program;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use self::decide::Past;
pub use self::program::{Decision, Party, ProgramName, Programs, SWAY, Undecided, View, WAITERS_MAX};

/// The number of a session.
pub type Session = u64;
/// The number of a grant, which no other grant of the rank has.
pub type Grant = u64;
/// The caller's number of a request that waits. It grows from one request to the next.
pub type Ticket = u64;

/// The most sessions of a rank.
pub const SESSIONS_MAX: usize = 1 << 20;

/// The session that held a resource before the rank began, and is not known yet.
const UNKNOWN: Session = 0;

/// The bits of a session's number that are shown to others: whoever knows all of them can speak for the session.
const SHOWN_BITS: Session = (1 << 24) - 1;

/// Returns a session as it is shown to others: at least 1.
pub(crate) fn shown(session: Session) -> Session {
    (session & SHOWN_BITS).max(1)
}

/// A policy: how long a holder may keep a resource that others wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// The holder is asked for it at once.
    #[default]
    BestEffort,
    /// The holder is asked for it when it had it for so long.
    Hold(Duration),
    /// The holder may complete so many operations, counted from the grant, within a time, also counted from there.
    Quota {
        /// The operations.
        operations: u64,
        /// The time.
        within: Duration,
    },
    /// No caching: each operation is a round trip to the rank.
    RoundTrip,
    /// A program in Lua decides when the holder is asked for it, and who is next.
    Lua(ProgramName),
}

impl Policy {
    /// Returns whether the resource may be cached.
    pub fn caches(self) -> bool {
        self != Policy::RoundTrip
    }
}

/// The words of policies, for messages.
pub const POLICIES: &str = "best-effort, round-trip, hold=TIME, quota=COUNT, quota=COUNT/TIME or lua=NAME";
/// The time for which a holder may use a quota unless it is said.
const QUOTA_TIME: Duration = Duration::from_millis(100);

impl std::fmt::Display for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Policy::BestEffort => f.write_str("best-effort"),
            Policy::Hold(time) => write!(f, "hold={}", Shown(*time)),
            Policy::Quota { operations, within } => write!(f, "quota={operations}/{}", Shown(*within)),
            Policy::RoundTrip => f.write_str("round-trip"),
            Policy::Lua(name) => write!(f, "lua={name}"),
        }
    }
}

/// A time in whole milliseconds, or else in microseconds.
struct Shown(Duration);

impl std::fmt::Display for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.as_micros() {
            us if us.is_multiple_of(1000) => write!(f, "{}ms", us / 1000),
            us => write!(f, "{us}us"),
        }
    }
}

impl std::str::FromStr for Policy {
    type Err = String;

    /// Parses a policy: `best-effort`, `round-trip`, `hold=TIME`, `quota=COUNT`, `quota=COUNT/TIME` or `lua=NAME`.
    fn from_str(text: &str) -> Result<Policy, String> {
        match Policy::from_record(text)? {
            Policy::Quota { operations: 0, .. } => Err("a quota is of at least 1 position".to_owned()),
            policy => Ok(policy),
        }
    }
}

impl Policy {
    /// Parses a policy as the record of an inode has it: also a quota of no positions, which used to be allowed.
    pub(crate) fn from_record(text: &str) -> Result<Policy, String> {
        let time = |text: &str| {
            let time = nacre_quantity::parse_time(text)?;
            match time <= crate::wire::HOLD_MAX {
                true => Ok(time),
                false => Err(format!("{text} is longer than {} s", crate::wire::HOLD_MAX.as_secs())),
            }
        };
        let (word, value) = text.split_once('=').unwrap_or((text, ""));
        match (word, value) {
            ("best-effort", "") => Ok(Policy::BestEffort),
            ("round-trip", "") => Ok(Policy::RoundTrip),
            ("hold", value) => Ok(Policy::Hold(time(value)?)),
            ("lua", value) => Ok(Policy::Lua(value.parse()?)),
            ("quota", value) => {
                let (count, within) = match value.split_once('/') {
                    Some((count, within)) => (count, time(within)?),
                    None => (value, QUOTA_TIME),
                };
                let operations = count.parse().map_err(|_| format!("\"{count}\" is not a count"))?;
                Ok(Policy::Quota { operations, within })
            }
            _ => Err(format!("\"{text}\" is not a policy: {POLICIES}")),
        }
    }
}

/// An order of the state machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order<R> {
    /// The resource is granted to whoever waits with this ticket.
    Grant {
        /// The resource.
        resource: R,
        /// The session.
        session: Session,
        /// The request.
        ticket: Ticket,
        /// The grant.
        grant: Grant,
    },
    /// The request is to be served now.
    Serve {
        /// The resource.
        resource: R,
        /// The request.
        ticket: Ticket,
    },
    /// The resource is not cached: the request gets no grant.
    NotCached {
        /// The request.
        ticket: Ticket,
    },
    /// The holder is asked for the resource.
    Revoke {
        /// The resource.
        resource: R,
        /// The holder.
        session: Session,
        /// The grant.
        grant: Grant,
        /// The operations, counted from the grant, that it may still complete; none if it is to give it back at once.
        quota: Option<u64>,
    },
    /// The holder's lease was over, or its session ended, before it gave the resource back.
    Lost {
        /// The resource.
        resource: R,
    },
    /// The session's lease is over.
    Lapsed {
        /// The session.
        session: Session,
    },
}

/// The progress of asking a holder for its resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Revocation {
    /// No demand: nobody waits, or it is not time yet.
    No,
    /// A holder that was told its quota, and will be asked for the resource at this time.
    Quota(Duration),
    /// A holder that was told nothing, and will be asked at this time, as a program has it.
    Later(Duration),
    /// A holder that was asked at this time.
    Yes(Duration),
}

#[derive(Clone, Debug)]
struct Hold {
    session: Session,
    grant: Grant,
    since: Duration,
    revocation: Revocation,
    /// The time at which the lease of an unknown session is over at the latest.
    until: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Wanted {
    Cache(Session),
    Serve(Option<Session>),
}

/// A request in the line.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    wanted: Wanted,
    since: Duration,
}

#[derive(Clone, Debug, Default)]
struct Resource {
    policy: Policy,
    hold: Option<Hold>,
    /// True if nobody gets it any more: it is leaving the rank.
    frozen: bool,
    /// The waiters, in the order in which they came. With a policy that allows no caching, none of them waits to cache it.
    line: BTreeMap<Ticket, Waiter>,
    /// The request that a program wants to be next.
    chosen: Option<Ticket>,
    /// Whoever has just given it back, for a program.
    released: Option<Party>,
    /// The use of it by sessions, if it has the policy of a program.
    past: BTreeMap<Session, Past>,
}

#[derive(Clone, Debug)]
struct Lease {
    until: Duration,
    /// The place of the session among all that the rank has begun.
    order: u64,
    /// True if it is not renewed any more, because the session did not give back what it was asked for.
    broken: bool,
}

/// Counts for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Grants.
    pub grants: u64,
    /// Times that a holder was asked for a resource.
    pub revocations: u64,
    /// Resources that were given back.
    pub releases: u64,
    /// Resources that were lost with their holders.
    pub losses: u64,
    /// Sessions that did not give back what they were asked for.
    pub broken: u64,
    /// Requests that were served by the rank.
    pub served: u64,
    /// The time for which resources that were given back had been held, in microseconds.
    pub held_us: u64,
    /// The operations of holders, as they told them.
    pub operations: u64,
    /// Decisions of programs.
    pub decisions: u64,
    /// Decisions that a program failed to make.
    pub undecided: u64,
}

/// The resources of a rank, with the sessions of its clients.
#[derive(Clone, Debug)]
pub struct Capabilities<R> {
    lease: Duration,
    /// The time that a holder has for giving a resource back.
    patience: Duration,
    resources: HashMap<R, Resource>,
    sessions: BTreeMap<Session, Lease>,
    /// The resources that are held while others wait, or by a session that is not known.
    watched: BTreeSet<R>,
    grants: Grant,
    /// The number of sessions that were begun.
    begun: u64,
    /// A time before which nothing is due.
    quiet_until: Duration,
    counts: Counts,
    programs: Option<Arc<dyn Programs>>,
}

/// The reason why a call about a grant has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotHeld;

impl<R: Clone + Eq + Hash + Ord> Capabilities<R> {
    /// Creates a rank's state without resources. Grants are numbered from `first` on.
    pub fn new(lease: Duration, first: Grant) -> Self {
        Capabilities {
            lease,
            patience: lease / 2,
            resources: HashMap::new(),
            sessions: BTreeMap::new(),
            watched: BTreeSet::new(),
            grants: first,
            begun: 0,
            quiet_until: Duration::ZERO,
            counts: Counts::default(),
            programs: None,
        }
    }

    /// Returns the counts.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the number of sessions.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Returns whether a session has a lease.
    pub fn has_session(&self, session: Session) -> bool {
        self.sessions.contains_key(&session)
    }

    /// Begins a session, or renews its lease. Returns whether the lease was renewed: one that did not give back what it
    /// was asked for only waits for its end, and one more than [`SESSIONS_MAX`] is not begun.
    pub fn renew(&mut self, now: Duration, session: Session) -> bool {
        let full = self.sessions.len() >= SESSIONS_MAX && !self.sessions.contains_key(&session);
        if session == UNKNOWN || full {
            return false;
        }
        let until = now + self.lease;
        self.quiet_until = self.quiet_until.min(until);
        let lease = self.sessions.entry(session).or_insert_with(|| {
            self.begun += 1;
            Lease { until, order: self.begun, broken: false }
        });
        if !lease.broken {
            lease.until = lease.until.max(until);
        }
        !lease.broken
    }

    /// Ends a session whose client uses nothing any more.
    pub fn end(&mut self, now: Duration, session: Session, out: &mut Vec<Order<R>>) {
        if self.sessions.remove(&session).is_some() {
            self.drop_session(now, session, out);
        }
    }

    /// Adds a resource, which nobody holds, or which a session that is not known may hold until its lease is over.
    pub fn add(&mut self, now: Duration, resource: R, policy: Policy, held_for: Option<Duration>) {
        let hold = held_for.map(|time| Hold {
            session: UNKNOWN,
            grant: 0,
            since: now,
            revocation: Revocation::No,
            until: now + time,
        });
        if hold.is_some() {
            self.watched.insert(resource.clone());
            self.quiet_until = Duration::ZERO;
        }
        self.prepare(policy);
        self.resources.insert(resource, Resource { policy, hold, ..Resource::default() });
    }

    /// Removes a resource. Returns the tickets of those who waited.
    pub fn remove(&mut self, resource: &R) -> Vec<Ticket> {
        self.watched.remove(resource);
        let removed = self.resources.remove(resource).unwrap_or_default();
        removed.line.into_keys().collect()
    }

    /// Returns a resource's policy.
    pub fn policy(&self, resource: &R) -> Option<Policy> {
        self.resources.get(resource).map(|resource| resource.policy)
    }

    /// Returns who holds a resource, if anybody does, and since when; session 0 for a holder that is not known.
    pub fn holder(&self, resource: &R) -> Option<(Session, Duration)> {
        let hold = self.resources.get(resource)?.hold.as_ref()?;
        Some((hold.session, hold.since))
    }

    /// Returns the number of requests that wait for a resource.
    pub fn waiting(&self, resource: &R) -> usize {
        self.resources.get(resource).map_or(0, |resource| resource.line.len())
    }

    /// Changes a resource's policy. It holds for the present holder too.
    pub fn set_policy(&mut self, now: Duration, resource: &R, policy: Policy, out: &mut Vec<Order<R>>) {
        self.prepare(policy);
        let Some(found) = self.resources.get_mut(resource) else { return };
        found.policy = policy;
        found.chosen = None;
        if !matches!(policy, Policy::Lua(_)) {
            found.past.clear();
        }
        if !policy.caches() {
            found.line.retain(|ticket, waiter| {
                let cache = matches!(waiter.wanted, Wanted::Cache(_));
                if cache {
                    out.push(Order::NotCached { ticket: *ticket });
                }
                !cache
            });
        }
        if let Some(hold) = &mut found.hold
            && let Revocation::Quota(_) | Revocation::Later(_) = hold.revocation
        {
            hold.revocation = Revocation::No;
        }
        self.go_on(now, resource, out);
    }

    /// Stops a resource before it leaves the rank: whoever asks for it waits from now on, and its holder is asked for it at
    /// once, whatever its policy.
    pub fn freeze(&mut self, now: Duration, resource: &R, out: &mut Vec<Order<R>>) {
        let Some(found) = self.resources.get_mut(resource) else { return };
        found.frozen = true;
        self.go_on(now, resource, out);
    }

    /// Returns whether a request would be served at once: nobody holds the resource, and nobody waits for it.
    pub fn is_free(&self, resource: &R) -> bool {
        self.resources
            .get(resource)
            .is_some_and(|resource| resource.hold.is_none() && !resource.frozen && resource.line.is_empty())
    }

    /// Counts a request that was served at once.
    pub fn count_served(&mut self) {
        self.counts.served += 1;
    }

    /// Asks for a grant of the resource.
    pub fn acquire(
        &mut self,
        now: Duration,
        resource: &R,
        session: Session,
        ticket: Ticket,
        out: &mut Vec<Order<R>>,
    ) {
        self.enter(now, resource, ticket, Wanted::Cache(session), out);
    }

    /// Asks to be served by the rank.
    pub fn serve(
        &mut self,
        now: Duration,
        resource: &R,
        session: Option<Session>,
        ticket: Ticket,
        out: &mut Vec<Order<R>>,
    ) {
        self.enter(now, resource, ticket, Wanted::Serve(session), out);
    }

    fn enter(
        &mut self,
        now: Duration,
        resource: &R,
        ticket: Ticket,
        wanted: Wanted,
        out: &mut Vec<Order<R>>,
    ) {
        let Some(found) = self.resources.get_mut(resource) else { return };
        if matches!(wanted, Wanted::Cache(_)) && !found.policy.caches() {
            return out.push(Order::NotCached { ticket });
        }
        found.line.insert(ticket, Waiter { wanted, since: now });
        if let Policy::Lua(_) = found.policy {
            if let Some(session) = wanted.session() {
                found.past(now, session).requests += 1;
            }
            // It is decided anew, unless the program would not see who has come.
            if found.line.len() <= WAITERS_MAX
                && let Some(hold) = &mut found.hold
                && let Revocation::Later(_) = hold.revocation
            {
                hold.revocation = Revocation::No;
            }
        }
        self.go_on(now, resource, out);
    }

    /// Gives a request up. Returns whether it waited.
    pub fn give_up(&mut self, now: Duration, resource: &R, ticket: Ticket, out: &mut Vec<Order<R>>) -> bool {
        let Some(found) = self.resources.get_mut(resource) else { return false };
        let waited = found.line.remove(&ticket).is_some();
        self.go_on(now, resource, out);
        waited
    }

    /// Checks that a session holds a resource by a grant.
    ///
    /// # Errors
    /// If it does not.
    pub fn check(&self, resource: &R, session: Session, grant: Grant) -> Result<(), NotHeld> {
        let hold = self.resources.get(resource).and_then(|resource| resource.hold.as_ref());
        match hold {
            Some(hold) if hold.session == session && hold.grant == grant && session != UNKNOWN => Ok(()),
            _ => Err(NotHeld),
        }
    }

    /// Takes a resource back from its holder, who did so many operations. The caller takes the resource's state in first, and
    /// calls [`Capabilities::go_on`] then.
    ///
    /// # Errors
    /// If the session does not hold it by that grant.
    pub fn release(
        &mut self,
        now: Duration,
        resource: &R,
        session: Session,
        grant: Grant,
        operations: u64,
    ) -> Result<(), NotHeld> {
        self.check(resource, session, grant)?;
        let found = self.resources.get_mut(resource).ok_or(NotHeld)?;
        let hold = found.hold.take().ok_or(NotHeld)?;
        let held = now.saturating_sub(hold.since);
        self.counts.releases += 1;
        self.counts.held_us += held.as_micros() as u64;
        self.counts.operations += operations;
        if let Policy::Lua(_) = found.policy {
            let past = found.past(now, session);
            past.operations = past.operations.saturating_add(operations);
            found.released = Some(found.party(&self.sessions, Some(session), held));
        }
        self.watched.remove(resource);
        Ok(())
    }

    /// Takes in that a session held a resource before the rank began. Returns its grant.
    ///
    /// # Errors
    /// If somebody else holds it, or nobody may have held it, or the time for this is over.
    pub fn assert(
        &mut self,
        now: Duration,
        resource: &R,
        session: Session,
        out: &mut Vec<Order<R>>,
    ) -> Result<Grant, NotHeld> {
        if self.sessions.get(&session).is_none_or(|lease| lease.broken) {
            return Err(NotHeld);
        }
        let hold =
            self.resources.get_mut(resource).and_then(|resource| resource.hold.as_mut()).ok_or(NotHeld)?;
        if hold.session != UNKNOWN {
            return Err(NotHeld);
        }
        self.grants += 1;
        *hold = Hold { session, grant: self.grants, since: now, revocation: Revocation::No, until: now };
        let grant = self.grants;
        self.watched.remove(resource);
        self.go_on(now, resource, out);
        Ok(grant)
    }

    /// Asks a holder again who may not have heard it, because its connection broke.
    pub fn remind(&mut self, resource: &R, out: &mut Vec<Order<R>>) {
        let Some(found) = self.resources.get(resource) else { return };
        let Some(hold) = &found.hold else { return };
        let quota = match (hold.revocation, found.policy) {
            (Revocation::No | Revocation::Later(_), _) => return,
            (Revocation::Quota(_), Policy::Quota { operations, .. }) => Some(operations),
            _ => None,
        };
        let (session, grant) = (hold.session, hold.grant);
        out.push(Order::Revoke { resource: resource.clone(), session, grant, quota });
    }

    /// Takes a resource back of which its holder got nothing.
    pub fn vacate(&mut self, now: Duration, resource: &R, out: &mut Vec<Order<R>>) {
        if let Some(found) = self.resources.get_mut(resource) {
            found.hold = None;
            self.watched.remove(resource);
            self.go_on(now, resource, out);
        }
    }

    /// Takes a resource away from a session that says that it does not use it. Returns whether it held it.
    pub fn disown(&mut self, resource: &R, session: Session) -> bool {
        let Some(found) = self.resources.get_mut(resource) else { return false };
        let held = found.hold.as_ref().is_some_and(|hold| hold.session == session && session != UNKNOWN);
        if held {
            found.hold = None;
            self.counts.losses += 1;
            self.watched.remove(resource);
        }
        held
    }

    /// Answers whoever may be answered now, and asks the holder for the resource if it is time.
    pub fn go_on(&mut self, now: Duration, resource: &R, out: &mut Vec<Order<R>>) {
        let Some(found) = self.resources.get_mut(resource) else { return };
        let programs = self.programs.as_deref();
        found.choose(now, self.lease, &self.sessions, programs, &mut self.counts);
        while found.hold.is_none()
            && !found.frozen
            && let Some((ticket, waiter)) = found.pop()
        {
            match waiter.wanted {
                Wanted::Serve(_) => {
                    self.counts.served += 1;
                    out.push(Order::Serve { resource: resource.clone(), ticket });
                }
                Wanted::Cache(session) if self.sessions.get(&session).is_some_and(|lease| !lease.broken) => {
                    self.grants += 1;
                    self.counts.grants += 1;
                    let grant = self.grants;
                    if let Policy::Lua(_) = found.policy {
                        found.past(now, session).grants += 1;
                    }
                    found.hold =
                        Some(Hold { session, grant, since: now, revocation: Revocation::No, until: now });
                    out.push(Order::Grant { resource: resource.clone(), session, ticket, grant });
                }
                Wanted::Cache(_) => out.push(Order::NotCached { ticket }),
            }
        }
        if found.decide(now, self.lease, &self.sessions, programs, &mut self.counts) {
            self.quiet_until = Duration::ZERO;
        }
        let wanted = found.frozen || !found.line.is_empty() || !found.policy.caches();
        let Some(hold) = found.hold.as_mut().filter(|hold| wanted || hold.session == UNKNOWN) else {
            self.watched.remove(resource);
            return;
        };
        if self.watched.insert(resource.clone()) {
            self.quiet_until = Duration::ZERO;
        }
        if hold.session == UNKNOWN {
            return;
        }
        let mut ask = |hold: &mut Hold, quota: Option<u64>, revocation: Revocation| {
            hold.revocation = revocation;
            self.counts.revocations += 1;
            self.quiet_until = Duration::ZERO;
            let (session, grant) = (hold.session, hold.grant);
            out.push(Order::Revoke { resource: resource.clone(), session, grant, quota });
        };
        match (hold.revocation, found.policy) {
            (Revocation::Yes(_), _) => {}
            _ if found.frozen => ask(hold, None, Revocation::Yes(now)),
            (Revocation::Quota(until) | Revocation::Later(until), _) if now < until => {}
            (Revocation::No, Policy::Quota { operations, within }) if now < hold.since + within => {
                let until = hold.since + within;
                ask(hold, Some(operations), Revocation::Quota(until));
            }
            (Revocation::No, Policy::Hold(time)) if now < hold.since + time => {
                self.quiet_until = Duration::ZERO
            }
            _ => ask(hold, None, Revocation::Yes(now)),
        }
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Duration, out: &mut Vec<Order<R>>) {
        if now < self.quiet_until {
            return;
        }
        let lapsed: Vec<Session> = {
            let over = self.sessions.iter().filter(|(_, lease)| lease.until <= now);
            over.map(|(session, _)| *session).collect()
        };
        for session in lapsed {
            self.sessions.remove(&session);
            out.push(Order::Lapsed { session });
            self.drop_session(now, session, out);
        }
        for resource in self.watched.iter().cloned().collect::<Vec<R>>() {
            let Some(hold) = self.resources.get_mut(&resource).and_then(|found| found.hold.as_mut()) else {
                continue;
            };
            match hold.revocation {
                _ if hold.session == UNKNOWN => {
                    if hold.until <= now {
                        self.lose(now, &resource, out);
                    }
                    continue;
                }
                Revocation::Yes(requested) if requested + self.patience <= now => {
                    if let Some(lease) = self.sessions.get_mut(&hold.session).filter(|lease| !lease.broken) {
                        lease.broken = true;
                        self.counts.broken += 1;
                    }
                }
                _ => {}
            }
            self.go_on(now, &resource, out);
        }
        self.quiet_until = self.next_due();
    }

    /// Returns a time before which [`Capabilities::tick`] need not be called; none if nothing is due at all.
    pub fn next_deadline(&self) -> Option<Duration> {
        let due = if self.quiet_until.is_zero() { self.next_due() } else { self.quiet_until };
        (due < Duration::MAX).then_some(due)
    }

    fn next_due(&self) -> Duration {
        let mut due = Duration::MAX;
        for lease in self.sessions.values() {
            due = due.min(lease.until);
        }
        for resource in &self.watched {
            let Some(found) = self.resources.get(resource) else { continue };
            let Some(hold) = &found.hold else { continue };
            due = due.min(match (hold.revocation, found.policy) {
                _ if hold.session == UNKNOWN => hold.until,
                // A broken session loses the resource with its lease.
                (Revocation::Yes(_), _)
                    if self.sessions.get(&hold.session).is_none_or(|lease| lease.broken) =>
                {
                    continue;
                }
                (Revocation::Yes(requested), _) => requested + self.patience,
                (Revocation::Quota(until) | Revocation::Later(until), _) => until,
                (Revocation::No, Policy::Hold(time)) => hold.since + time,
                (Revocation::No, _) => continue,
            });
        }
        due
    }

    /// Takes away what a session held and waited for.
    fn drop_session(&mut self, now: Duration, session: Session, out: &mut Vec<Order<R>>) {
        let concerned: Vec<R> = {
            let concerned = self.resources.iter().filter(|(_, resource)| {
                let waits = |wanted: &Wanted| match wanted {
                    Wanted::Cache(of) => *of == session,
                    Wanted::Serve(of) => *of == Some(session),
                };
                resource.hold.as_ref().is_some_and(|hold| hold.session == session)
                    || resource.line.values().any(|waiter| waits(&waiter.wanted))
            });
            concerned.map(|(resource, _)| resource.clone()).collect()
        };
        for found in self.resources.values_mut() {
            found.past.remove(&session);
        }
        for resource in concerned {
            let Some(found) = self.resources.get_mut(&resource) else { continue };
            found.line.retain(|ticket, waiter| match waiter.wanted {
                Wanted::Cache(of) if of == session => {
                    out.push(Order::NotCached { ticket: *ticket });
                    false
                }
                _ => true,
            });
            match found.hold.as_ref().is_some_and(|hold| hold.session == session) {
                true => self.lose(now, &resource, out),
                false => self.go_on(now, &resource, out),
            }
        }
    }

    fn lose(&mut self, now: Duration, resource: &R, out: &mut Vec<Order<R>>) {
        if let Some(found) = self.resources.get_mut(resource) {
            found.hold = None;
            self.counts.losses += 1;
            self.watched.remove(resource);
            out.push(Order::Lost { resource: resource.clone() });
            self.go_on(now, resource, out);
        }
    }
}
