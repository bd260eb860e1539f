//! The sessions that an object has fenced.
//!
//! Invariants: the sessions ascend without duplicates, none is below the least that passes, and there are at most
//! [`FENCED_SESSIONS_MAX`].

use nacre_object::Fences;
use nacre_object::limit::FENCED_SESSIONS_MAX;

/// The fenced sessions of an object: all below one number, and some above it. Most objects have none, and it takes no
/// memory of its own then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FencedSessions {
    least: u64,
    sessions: Vec<u64>,
}

impl FencedSessions {
    /// Creates the set without any session.
    pub const fn none() -> Self {
        Self { least: 0, sessions: Vec::new() }
    }

    /// Creates the set in which all sessions below `least` are fenced.
    pub fn below(least: u64) -> Self {
        Self { least, sessions: Vec::new() }
    }

    /// Creates the set with sessions in ascending order: the distance of the first one from `least`, and of every other
    /// one from the one before. `None` unless that is what they are, and no more than may be kept.
    pub fn from_gaps(least: u64, gaps: impl IntoIterator<Item = Option<u64>>) -> Option<Self> {
        let mut sessions: Vec<u64> = Vec::new();
        for gap in gaps {
            let gap = gap?;
            let session = sessions.last().copied().unwrap_or(least).checked_add(gap)?;
            if gap == 0 && !sessions.is_empty() || sessions.len() == FENCED_SESSIONS_MAX {
                return None;
            }
            sessions.push(session);
        }
        sessions.shrink_to_fit();
        Some(Self { least, sessions })
    }

    /// Returns the least number of a session that passes, unless it is fenced individually.
    pub fn least(&self) -> u64 {
        self.least
    }

    /// Returns the fenced sessions that are not below the least, in ascending order.
    pub fn sessions(&self) -> &[u64] {
        &self.sessions
    }

    /// Returns whether a session is fenced.
    pub fn is_fenced(&self, session: u64) -> bool {
        session < self.least || self.sessions.binary_search(&session).is_ok()
    }

    /// Fences all sessions below `least`.
    pub fn raise(&mut self, least: u64) {
        if least <= self.least {
            return;
        }
        self.least = least;
        let gone = self.sessions.partition_point(|session| *session < least);
        if gone > 0 {
            self.sessions = self.sessions[gone..].to_vec();
        }
    }

    /// Fences one session. Where that is one more than may be kept, the least rises above the lowest of them.
    pub fn fence(&mut self, session: u64) {
        if session < self.least {
            return;
        }
        let Err(at) = self.sessions.binary_search(&session) else { return };
        let mut sessions = Vec::with_capacity(self.sessions.len() + 1);
        sessions.extend_from_slice(&self.sessions[..at]);
        sessions.push(session);
        sessions.extend_from_slice(&self.sessions[at..]);
        self.sessions = sessions;
        if self.sessions.len() > FENCED_SESSIONS_MAX {
            // There are sessions above the lowest, so that there is a number above it.
            self.raise(self.sessions[0] + 1);
        }
    }

    /// Returns the answer to a read of the fences.
    pub fn read(&self) -> Fences {
        Fences { fence: self.least, sessions: self.sessions.to_vec() }
    }
}
