//! Holders and waiters, for reports.

use super::Server;
use crate::message::{FileName, RequestNumber, SessionId, Token};
use crate::table::{Mode, Progress, RequestKey};

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
    pub progress: Progress,
    /// True if it waits for `progress.next`.
    pub waits: bool,
    /// True if its session's lease is gone, and it is held only until the session's fence is up.
    pub lapsed: bool,
    /// The number of its newest grant.
    pub token: Token,
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

    /// Which sessions wait for which others here. Those of several servers together show the cycles that span servers
    /// ([`cycles`](crate::cycle::cycles)).
    pub fn waits(&self) -> Vec<(SessionId, SessionId)> {
        let mut waits = Vec::new();
        for (waiting, session) in &self.sessions {
            for key in &session.waiting {
                self.blocking(*key, |holder| {
                    waits.push((*waiting, holder));
                    true
                });
            }
        }
        waits.sort_unstable();
        waits.dedup();
        waits
    }
}
