//! Cycles among sessions that wait for each other.
//!
//! One operation after the other is free of deadlock. A program that holds one guard while it asks for another is not: two
//! of them can wait for each other. A cycle is reported, not broken: a program with several threads may yet release what
//! another of its threads is waited for.

use std::collections::{BTreeMap, BTreeSet};

use crate::message::SessionId;
use crate::server::Wait;

/// Returns one cycle for each group of sessions that wait for each other, given who waits for whom. The waits may come from
/// several servers. A session that waits for itself is a cycle of one.
pub fn cycles(waits: impl IntoIterator<Item = (SessionId, SessionId)>) -> Vec<Vec<SessionId>> {
    let mut edges: BTreeMap<SessionId, BTreeSet<SessionId>> = BTreeMap::new();
    for (waiting, holder) in waits {
        edges.entry(waiting).or_default().insert(holder);
    }
    let mut found = Vec::new();
    let mut finished = BTreeSet::new();
    let starts: Vec<SessionId> = edges.keys().copied().collect();
    for start in starts {
        // Depth first, with the path in `path` and what each of its sessions still has to look at.
        let mut path = vec![start];
        let mut rest: Vec<Vec<SessionId>> = vec![successors(&edges, start)];
        while let Some(last) = rest.last_mut() {
            match last.pop() {
                Some(next) if finished.contains(&next) => {}
                Some(next) => {
                    if let Some(at) = path.iter().position(|session| *session == next) {
                        found.push(path[at..].to_vec());
                        // Its members are not looked at again, so each group is reported once.
                        finished.extend(&path[at..]);
                    } else {
                        path.push(next);
                        rest.push(successors(&edges, next));
                    }
                }
                None => {
                    rest.pop();
                    finished.extend(path.pop());
                }
            }
        }
    }
    found
}

fn successors(edges: &BTreeMap<SessionId, BTreeSet<SessionId>>, of: SessionId) -> Vec<SessionId> {
    edges.get(&of).into_iter().flatten().copied().collect()
}

/// The search for cycles of waits that span servers, which no server sees alone.
///
/// Nobody sees all servers at one moment, and waits that were seen at different moments can make a cycle that never was. So
/// two looks are compared, the second of which begins when the first is complete: a wait that is the same in both (the same
/// requests at the same byte, which its holder cannot have released and had again before the one that waits) lasted from the
/// one to the other, and all that lasted did so at the moment between.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    last: BTreeSet<Seen>,
    standing: BTreeSet<Vec<SessionId>>,
}

/// A wait, and where it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    /// The server.
    pub server: u32,
    /// The server's epoch.
    pub epoch: u64,
    /// The wait.
    pub wait: Wait,
}

impl Watch {
    /// Handles what was seen at all servers, after the last look was complete. Returns the cycles that no look has shown
    /// before. A cycle that one server sees alone is that server's to report.
    pub fn look(&mut self, seen: impl IntoIterator<Item = Seen>) -> Vec<Vec<SessionId>> {
        let seen: BTreeSet<Seen> = seen.into_iter().collect();
        let lasting: Vec<Seen> = seen.intersection(&self.last).copied().collect();
        let mut servers: BTreeMap<(SessionId, SessionId), BTreeSet<u32>> = BTreeMap::new();
        for Seen { server, wait, .. } in &lasting {
            servers.entry((wait.session, wait.holder)).or_default().insert(*server);
        }
        let spans = |cycle: &Vec<SessionId>| {
            let next = cycle.iter().cycle().skip(1);
            let mut places = cycle.iter().zip(next).map(|(from, to)| &servers[&(*from, *to)]);
            let first = places.next().cloned().unwrap_or_default();
            places.fold(first, |common, place| &common & place).is_empty()
        };
        let found = cycles(lasting.iter().map(|seen| (seen.wait.session, seen.wait.holder)));
        let standing: BTreeSet<Vec<SessionId>> =
            found.into_iter().filter(spans).map(from_the_least).collect();
        let new = standing.difference(&self.standing).cloned().collect();
        (self.last, self.standing) = (seen, standing);
        new
    }

    /// The cycles that the last two looks have shown, each from its session of the least number on.
    pub fn standing(&self) -> impl Iterator<Item = &[SessionId]> {
        self.standing.iter().map(Vec::as_slice)
    }
}

/// Returns a cycle from its least session on, so that it is the same however it was found.
fn from_the_least(mut cycle: Vec<SessionId>) -> Vec<SessionId> {
    let least = (0..cycle.len()).min_by_key(|index| cycle[*index]).unwrap_or(0);
    cycle.rotate_left(least);
    cycle
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wait at a server: of one session for another, by requests that are numbered like their sessions.
    fn seen(server: u32, session: u64, holder: u64) -> Seen {
        let (request, held_by) = (session, holder);
        let wait = Wait { session: SessionId(session), request, byte: 0, holder: SessionId(holder), held_by };
        Seen { server, epoch: 1, wait }
    }

    #[test]
    fn cycles_over_servers_are_reported_once_and_only_if_they_lasted() {
        let sessions = |cycle: &[u64]| cycle.iter().copied().map(SessionId).collect::<Vec<_>>();
        let mut watch = Watch::default();
        // The one wait was over when the other began.
        assert!(watch.look([seen(0, 1, 2)]).is_empty());
        assert!(watch.look([seen(1, 2, 1)]).is_empty());
        assert!(watch.look([seen(0, 1, 2)]).is_empty());
        // Both are seen, but not yet twice.
        assert!(watch.look([seen(0, 1, 2), seen(1, 2, 1)]).is_empty());
        assert_eq!(watch.look([seen(1, 2, 1), seen(0, 1, 2)]), [sessions(&[1, 2])]);
        assert!(watch.look([seen(1, 2, 1), seen(0, 1, 2)]).is_empty(), "it was told");
        assert_eq!(watch.standing().count(), 1);
        // A new wait by another request of the same session is a new wait.
        let again = Seen { wait: Wait { request: 7, ..seen(0, 1, 2).wait }, ..seen(0, 1, 2) };
        assert!(watch.look([seen(1, 2, 1), again]).is_empty());
        assert_eq!(watch.standing().count(), 0);
        assert_eq!(watch.look([seen(1, 2, 1), again]), [sessions(&[1, 2])]);
        // What a server sees alone it reports itself.
        let alone = [seen(0, 3, 4), seen(0, 4, 3)];
        assert!(watch.look(alone).is_empty() && watch.look(alone).is_empty());
        let longer = [seen(0, 6, 5), seen(1, 5, 7), seen(2, 7, 6), seen(1, 8, 6)];
        assert!(watch.look(longer).is_empty());
        assert_eq!(watch.look(longer), [sessions(&[5, 7, 6])]);
    }

    fn found(waits: &[(u64, u64)]) -> Vec<Vec<u64>> {
        let mut found: Vec<Vec<u64>> =
            cycles(waits.iter().map(|wait| (SessionId(wait.0), SessionId(wait.1))))
                .into_iter()
                .map(|cycle| cycle.into_iter().map(|session| session.0).collect())
                .collect();
        found.iter_mut().for_each(|cycle| cycle.sort_unstable());
        found.sort();
        found
    }

    #[test]
    fn cycles_are_found_and_chains_are_none() {
        assert_eq!(found(&[(1, 2), (2, 3), (1, 3), (4, 3)]), Vec::<Vec<u64>>::new());
        assert_eq!(found(&[(1, 2), (2, 3), (3, 1), (4, 1)]), [[1, 2, 3]]);
        assert_eq!(found(&[(5, 5)]), [[5]]);
        assert_eq!(found(&[(1, 2), (2, 1), (3, 4), (4, 3), (2, 3)]), [[1, 2], [3, 4]]);
    }
}
