//! Cycles among sessions that wait for each other.
//!
//! One operation after the other is free of deadlock. A program that holds one guard while it asks for another is not: two
//! of them can wait for each other. A cycle is reported, not broken: a program with several threads may yet release what
//! another of its threads is waited for.

use std::collections::{BTreeMap, BTreeSet};

use crate::message::SessionId;

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

#[cfg(test)]
mod tests {
    use super::*;

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
