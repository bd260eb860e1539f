//! The other ranks, as a rank reaches them: to forward requests, and before it hands a sequencer over.

use std::time::Duration;

use nacre_object::{ErrorKind, ObjectId, StoreError};
use parking_lot::Mutex;

use super::{Options, authority};
use crate::load::RankLoad;
use crate::place::{Caller, RankNumber};
use crate::remote::{Session, SessionOptions};
use crate::service::{Call, Reply};

/// The time for which another rank is waited for. The client whose request is forwarded asks again then.
const PATIENCE: Duration = Duration::from_secs(2);

/// The sessions with other ranks, which begin when they are first needed.
pub(super) struct Peers {
    options: SessionOptions,
    session: Mutex<Option<Session>>,
}

impl Peers {
    pub fn new(options: &Options) -> Peers {
        let options = SessionOptions {
            store: options.store.clone(),
            rank: options.rank,
            addresses: options.servers.clone(),
            link: options.link.clone(),
            patience: PATIENCE,
        };
        Peers { options, session: Mutex::default() }
    }

    fn session(&self, rank: RankNumber) -> Result<Session, StoreError> {
        let mut session = self.session.lock();
        if let Some(session) = &*session {
            return Ok(session.clone());
        }
        let begun = Session::begin_as(SessionOptions { rank, ..self.options.clone() }, Caller::Rank)?;
        Ok(session.insert(begun).clone())
    }

    /// Ends the sessions that have begun.
    pub fn end(&self) {
        drop(self.session.lock().take());
    }

    /// Waits until a rank answers.
    ///
    /// # Errors
    /// `Invalid` if there is no such rank, `Unavailable` if it does not answer in time.
    pub async fn reach(&self, rank: RankNumber) -> Result<(), StoreError> {
        // A session takes a thread, and anybody may name a rank.
        if authority::read(&*self.options.store, rank).await?.is_none() {
            let text =
                format!("there is no metadata rank {rank}; \"nacre rank ls\" lists those that are there");
            return Err(StoreError::new(ErrorKind::Invalid, text));
        }
        self.session(rank)?.reach(rank).await
    }

    /// Waits until a rank that was reached answers once more. What was known of it may be about a daemon that has just ended.
    ///
    /// # Errors
    /// `Unavailable` if it does not answer in time.
    pub async fn answers(&self, rank: RankNumber) -> Result<(), StoreError> {
        self.session(rank)?.answers(rank).await
    }

    /// Makes a call at a rank.
    pub async fn call(&self, rank: RankNumber, id: &ObjectId, call: Call) -> Result<Reply, StoreError> {
        self.session(rank)?.call_at(rank, id, call).await
    }

    /// Returns the load of a rank.
    pub async fn load(&self, rank: RankNumber) -> Result<RankLoad, StoreError> {
        self.session(rank)?.load(rank).await
    }
}
