//! Holders and waiters, for reports.

use std::collections::BTreeMap;

use super::{File, Server};
use crate::message::{FileName, RequestNumber, SessionId, Token};
use crate::table::{Acquired, Mode, RequestKey};

/// A request, as shown to people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The request's place in the listing.
    pub key: RequestKey,
    /// The file.
    pub file: FileName,
    /// The session.
    pub session: SessionId,
    /// The request's number in the session.
    pub request: RequestNumber,
    /// The mode.
    pub mode: Mode,
    /// The first byte that it asks for, and the end, exclusive, of the last.
    pub bounds: (u64, u64),
    /// The part that it holds.
    pub progress: Acquired,
    /// True if it waits for `progress.next`.
    pub waits: bool,
    /// True if its session's lease is gone, and it is held only until the session's fence is up.
    pub lapsed: bool,
    /// The number of its newest grant.
    pub token: Token,
}

/// A wait of a request for one of another session, which is in its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Wait {
    /// The session that waits.
    pub session: SessionId,
    /// The place of its request in the listing.
    pub request: RequestKey,
    /// The byte that it waits for.
    pub byte: u64,
    /// The session in its way.
    pub holder: SessionId,
    /// The place of that session's request in the listing.
    pub held_by: RequestKey,
}

impl Server {
    /// Up to `limit` requests, in the order in which they came, from behind a place in the listing.
    pub fn list(&self, after: Option<RequestKey>, limit: usize) -> Vec<Listed> {
        let from = after.map_or(0, |key| key.saturating_add(1));
        let requests = self.requests.range(from..).take(limit);
        requests
            .filter_map(|(key, request)| {
                let view = self.files.get(&request.file)?.table.view(*key)?;
                Some(Listed {
                    key: *key,
                    file: request.file.clone(),
                    session: request.session,
                    request: request.number,
                    mode: request.mode,
                    bounds: view.bounds,
                    progress: view.progress,
                    waits: view.waits,
                    lapsed: !self.is_live(request.session),
                    token: self.token(*key),
                })
            })
            .collect()
    }

    /// The requests that stand in line for a byte of a file, in the order in which they are served.
    pub fn line(&self, file: &FileName, byte: u64) -> Vec<(SessionId, RequestNumber)> {
        let line = self.files.get(file).into_iter().flat_map(|file| file.table.line(byte));
        line.filter_map(|key| self.requests.get(&key))
            .map(|request| (request.session, request.number))
            .collect()
    }

    /// The number of requests, and how many of them wait.
    pub fn request_counts(&self) -> (usize, usize) {
        (self.requests.len(), self.files.values().map(|file| file.table.waiters()).sum())
    }

    /// Up to `limit` waits here, one for each request that waits and each session in its way. Those of several servers
    /// together show the cycles that span servers ([`Watch`](crate::cycle::Watch)).
    pub fn waits(&self, limit: usize) -> Vec<Wait> {
        let mut waits = Vec::new();
        for (session, request) in
            self.sessions.iter().flat_map(|(id, session)| session.waiting.iter().map(|key| (*id, *key)))
        {
            let byte = |file: &File| file.table.progress(request)?.next;
            let byte = self.requests.get(&request).and_then(|found| byte(self.files.get(&found.file)?));
            let Some(byte) = byte else { continue };
            // The same session may be in the way with many requests; any of them will do, but always the same.
            let mut holders: BTreeMap<SessionId, RequestKey> = BTreeMap::new();
            let mut visits = 0;
            self.blocking(request, |holder, held_by| {
                let known = holders.entry(holder).or_insert(held_by);
                *known = held_by.min(*known);
                visits += 1;
                visits < limit
            });
            for (holder, held_by) in holders {
                if waits.len() >= limit {
                    return waits;
                }
                waits.push(Wait { session, request, byte, holder, held_by });
            }
        }
        waits
    }
}
