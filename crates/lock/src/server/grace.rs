//! The time after a restart: sessions come back and assert their locks, and those that do not are fenced.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Output, Record, Server, Settings};
use crate::message::{FileName, LockSpec, Refusal, Reply, RequestNumber, SessionId};
use crate::table::Mode;

impl Server {
    /// Creates a server in the place of one that ended, with the files that sessions may write by its records. Until the
    /// grace period is over it takes asserted locks and grants nothing.
    ///
    /// The grace period is needed even if there are no records: shared locks are on none.
    pub fn restarted(
        now: Duration,
        settings: Settings,
        records: BTreeMap<SessionId, BTreeSet<FileName>>,
    ) -> Self {
        let mut server = Self::new(settings);
        server.grace_until = Some(now + server.settings.grace);
        for file in records.values().flatten() {
            *server.unsettled.entry(file.clone()).or_insert(0) += 1;
        }
        server.remembered = records;
        server
    }

    /// Notes that a session of the former epoch is settled: it is back with all that it holds, or it has ended.
    pub(super) fn settle(&mut self, session: SessionId) {
        for file in self.remembered.remove(&session).into_iter().flatten() {
            self.settle_in(&file);
        }
    }

    fn settle_in(&mut self, file: &FileName) {
        if let Some(sessions) = self.unsettled.get_mut(file) {
            *sessions -= 1;
            if *sessions == 0 {
                self.unsettled.remove(file);
            }
        }
    }

    /// Returns whether the grace period lasts.
    pub fn in_grace(&self) -> bool {
        self.grace_until.is_some()
    }

    /// Returns how long the grace period still lasts, zero if it is over.
    pub fn grace_left(&self, now: Duration) -> Duration {
        self.grace_until.map_or(Duration::ZERO, |until| until.saturating_sub(now))
    }

    /// Returns whether nothing is granted in a file for now.
    pub(super) fn closed(&self, file: &FileName) -> bool {
        self.grace_until.is_some() || self.unsettled.contains_key(file)
    }

    /// Takes a lock that a session held before the restart.
    ///
    /// Where the session held bytes exclusively it is on record with the file, or it was fenced there since: broken by an
    /// administrator, and it does not know it yet. Its bytes may be another's by now.
    pub(super) fn assert(
        &mut self,
        session: SessionId,
        number: RequestNumber,
        spec: LockSpec,
        below: u64,
        out: &mut Vec<Output>,
    ) -> Result<Reply, Refusal> {
        let (mode, file) = (spec.mode, spec.file.clone());
        let holds = spec.pattern.bounds().is_some_and(|bounds| bounds.offset < below);
        let recorded = |found: &super::SessionRecord| found.recorded.contains(&file);
        let shut_out = self.is_shut_out(session, &file, mode);
        if mode == Mode::Exclusive
            && holds
            && (shut_out || !self.sessions.get(&session).is_some_and(recorded))
        {
            return Err(Refusal::Lapsed);
        }
        let key = match self.key(session, number) {
            Some(key) => key,
            None => self.add(session, number, spec, Some(below))?,
        };
        let progress = self.files.get(&file).and_then(|file| file.table.progress(key));
        let progress = progress.ok_or(Refusal::UnknownRequest)?;
        if progress.last.is_some() {
            self.grants += 1;
            let grants = self.grants;
            self.request_mut(key, |request| request.token = grants);
            self.note_use_of(key, out);
        }
        Ok(Reply::Acquired { progress, token: self.token(key) })
    }

    /// Ends the grace period: whoever has not come back is fenced.
    pub(super) fn end_grace(&mut self, out: &mut Vec<Output>) {
        self.grace_until = None;
        let away: Vec<SessionId> = self.remembered.keys().copied().collect();
        for session in away {
            if self.is_live(session) {
                // It is back but has not said that it has asserted everything.
                self.break_session(session, out);
                continue;
            }
            if self.sessions.contains_key(&session) {
                // Its fence is being raised already.
                continue;
            }
            for file in &self.remembered[&session] {
                out.push(Output::Raise { session, file: file.clone() });
            }
        }
        let files: Vec<FileName> = self.files.keys().cloned().collect();
        for file in files {
            self.open_file(&file, out);
        }
    }

    /// Serves the calls that came while a file was closed, if it is not any more.
    pub(super) fn open_file(&mut self, file: &FileName, out: &mut Vec<Output>) {
        if self.closed(file) {
            return;
        }
        let deferred = self.files.get_mut(file).map(|file| std::mem::take(&mut file.deferred));
        for key in deferred.into_iter().flat_map(BTreeMap::into_values) {
            self.request_mut(key, |request| {
                if let Some(pending) = &mut request.pending {
                    pending.deferred = 0;
                }
            });
            self.perform(key, out);
        }
    }

    /// Notes that the fence of a session that did not come back is up in a file.
    pub(super) fn fenced_after_restart(
        &mut self,
        session: SessionId,
        file: &FileName,
        out: &mut Vec<Output>,
    ) {
        let Some(files) = self.remembered.get_mut(&session) else { return };
        let was_there = files.remove(file);
        let last = files.is_empty();
        if was_there {
            self.settle_in(file);
        }
        if last {
            self.remembered.remove(&session);
            if !self.sessions.contains_key(&session) {
                out.push(Output::Record(Record::Gone { session }));
            }
        }
        self.open_file(file, out);
    }
}
