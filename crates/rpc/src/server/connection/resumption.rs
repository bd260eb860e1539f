//! Attaching sessions to a connection and detaching them.

use std::sync::Arc;
use std::task::{Context, Poll};

use nacre_object::{ErrorKind, StoreError};

use super::Connection;
use crate::control::{self, Beginning, SessionKey};
use crate::frame::MessageKind;
use crate::limit::FEATURE_ERROR_PLACES;
use crate::server::sessions::{Session, SessionState};

impl Connection {
    /// Begins a session, or starts to resume one.
    pub(super) fn begin(&mut self, id: u64, beginning: &Beginning) {
        if !self.handlers.is_empty() || self.session.is_some() || self.draining {
            let text = "a session begins before anything else";
            return control::put_error(&mut self.outbox, id, &StoreError::new(ErrorKind::Invalid, text));
        }
        self.features = beginning.features;
        if !beginning.session.is_none()
            && let Some(session) = self.shared.sessions.find(&beginning.session)
        {
            // Nothing else is handled until the session has been taken over.
            self.resuming = Some((session, id));
            return;
        }
        self.begin_anew(id, beginning.kept);
    }

    fn begin_anew(&mut self, id: u64, kept: bool) {
        if kept {
            match self.shared.sessions.begin() {
                Ok(session) => self.session = session,
                Err(error) => return control::put_error(&mut self.outbox, id, &error),
            }
        }
        self.put_begun(id, false);
    }

    fn put_begun(&mut self, id: u64, kept: bool) {
        let session = self.session.as_ref().map_or(SessionKey::NONE, |session| session.key());
        let features = self.features & (self.shared.services.features() | FEATURE_ERROR_PLACES);
        self.outbox.places = features & FEATURE_ERROR_PLACES != 0;
        let beginning = Beginning { features, kept, session };
        control::put_beginning(&mut self.outbox, MessageKind::BEGUN, id, &beginning);
    }

    /// Takes over the session that the peer wants to resume, as soon as its old connection has released it. Returns
    /// whether it was taken over, or a new one begun.
    pub(super) fn resume(&mut self, context: &mut Context<'_>) -> bool {
        let Some((session, id)) = &self.resuming else { return false };
        let Poll::Ready(kept) = session.poll_resume(context) else { return false };
        let (session, id) = (session.clone(), *id);
        self.resuming = None;
        match kept {
            Some(SessionState { handlers, mailbox }) => {
                (self.handlers, self.mailbox, self.session) = (handlers, mailbox, Some(session));
                self.handlers.iter_mut().for_each(|handler| handler.resumed());
                self.put_begun(id, true);
                self.mailbox.resumed();
            }
            None => self.begin_anew(id, true),
        }
        true
    }

    /// Releases the session, which waits for its next connection for a limited time.
    pub(super) fn detach(&mut self, session: Arc<Session>) {
        for handler in &mut self.handlers {
            handler.cancel_all(&self.mailbox);
            handler.broken();
        }
        self.mailbox.detached();
        let kept =
            SessionState { handlers: std::mem::take(&mut self.handlers), mailbox: self.mailbox.clone() };
        let number = session.detach(kept);
        let (shared, expiring) = (self.shared.clone(), session.clone());
        let expiry = tokio::spawn(async move {
            tokio::time::sleep(shared.limits.session_timeout).await;
            shared.sessions.expire(&expiring, number);
        });
        session.expires(number, expiry.abort_handle());
    }
}
