//! The search for sessions that wait for each other in a cycle.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Output, Server};
use crate::message::SessionId;
use crate::table::RequestKey;

/// The steps of all searches that one call leads to: waiting requests that are looked at, and requests in their way. What needs
/// more is given up. A search is made for every request that begins to wait, and one call can make thousands of them do so: the
/// end of a session moves those behind its locks, and the end of a grace period serves all that came meanwhile.
const STEPS_MAX: usize = 1 << 12;

/// The number of cycles that are reported for one session while its requests wait.
const CYCLES_PER_SESSION_MAX: usize = 16;

impl Server {
    /// Reports a cycle of sessions that the wait of a request has closed, unless it was reported since the session of the
    /// request began to wait.
    ///
    /// A request waits for those who hold its byte and for those before it in line, who wait for the holders that refuse the
    /// first of them. A session that waits for itself is reported, too.
    pub(super) fn report_cycle(&mut self, key: RequestKey, out: &mut Vec<Output>) {
        let mut steps = self.cycle_steps;
        let found = self.find_cycle(key, &mut steps);
        self.cycle_steps = steps;
        let Some(sessions) = found else { return };
        let Some(session) = sessions.first().and_then(|first| self.sessions.get_mut(first)) else { return };
        if session.cycles.len() < CYCLES_PER_SESSION_MAX && !session.cycles.contains(&sessions) {
            session.cycles.push(sessions.clone());
            out.push(Output::Cycle { sessions });
        }
    }

    /// Returns the sessions of a cycle that begins with the wait of a request. `steps` are those taken so far.
    fn find_cycle(&self, key: RequestKey, steps: &mut usize) -> Option<Vec<SessionId>> {
        let start = self.requests.get(&key)?.session;
        // The session through which the search came to each; sessions are looked at once, with all their waits.
        let mut came_from: HashMap<SessionId, SessionId> = HashMap::new();
        let mut open = vec![start];
        // Requests of one session that wait for the same byte have the same holders in their way.
        let mut seen = HashSet::new();
        while let Some(session) = open.pop() {
            let mut holders = Vec::new();
            let others = self.sessions.get(&session).filter(|_| session != start);
            let others = others.into_iter().flat_map(|found| found.waiting.iter().copied());
            for waiting in others.chain((session == start).then_some(key)) {
                *steps += 1;
                if *steps > STEPS_MAX {
                    return None;
                }
                let Some(request) = self.requests.get(&waiting) else { continue };
                let Some(file) = self.files.get(&request.file) else { continue };
                let byte = file.table.progress(waiting).and_then(|progress| progress.next);
                // All requests of a file have one copy of its name.
                if !seen.insert((Arc::as_ptr(&request.file), byte, request.mode, session)) {
                    continue;
                }
                self.blocking(waiting, |holder, _| {
                    holders.push(holder);
                    *steps += 1;
                    *steps < STEPS_MAX
                });
            }
            holders.sort_unstable();
            holders.dedup();
            for holder in holders {
                if holder == start {
                    let mut sessions = vec![session];
                    let mut at = session;
                    while at != start {
                        at = came_from[&at];
                        sessions.push(at);
                    }
                    sessions.reverse();
                    return Some(sessions);
                }
                let waits = self.sessions.get(&holder).is_some_and(|found| !found.waiting.is_empty());
                if waits && !came_from.contains_key(&holder) {
                    came_from.insert(holder, session);
                    open.push(holder);
                }
            }
        }
        None
    }

    /// Calls `visit` with the sessions, and requests of theirs, that keep a waiting request from its byte, until it returns
    /// false.
    pub(super) fn blocking(&self, key: RequestKey, mut visit: impl FnMut(SessionId, RequestKey) -> bool) {
        let Some(file) = self.requests.get(&key).and_then(|request| self.files.get(&request.file)) else {
            return;
        };
        let first = file.table.progress(key).and_then(|progress| file.table.line(progress.next?).next());
        for waiting in [Some(key), first.filter(|first| *first != key)].into_iter().flatten() {
            file.table.blockers(waiting, |holder, owner| match self.programs.get(&owner.program) {
                Some(session) => visit(*session, holder),
                None => true,
            });
        }
    }
}
