//! Parts of replies, which are sent ahead of the replies' ends from wherever they are made.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use bytes::Bytes;
use futures::task::AtomicWaker;
use parking_lot::Mutex;

use crate::control;
use crate::frame::Kind;
use crate::outbox::Outbox;

/// The parts that wait to be sent over one connection.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    state: Mutex<State>,
    /// Whether any request ever had parts: most connections see none.
    used: AtomicBool,
    waker: AtomicWaker,
}

#[derive(Debug, Default)]
struct State {
    /// Requests whose replies have not ended, and the parts of theirs that wait.
    open: HashMap<u64, VecDeque<(Kind, Bytes)>>,
}

impl Mailbox {
    /// A handle for parts of the reply to a request.
    pub(crate) fn open(self: &Arc<Self>, id: u64, kind: Kind) -> Parts {
        self.state.lock().open.entry(id).or_default();
        self.used.store(true, Ordering::Release);
        Parts { mailbox: self.clone(), id, kind }
    }

    /// Writes the parts of a reply that still wait, and takes no more of them.
    pub(crate) fn close(&self, id: u64, outbox: &mut Outbox) {
        if !self.used.load(Ordering::Acquire) {
            return;
        }
        if let Some(parts) = self.state.lock().open.remove(&id) {
            put_all(id, parts, outbox);
        }
    }

    /// Writes all parts that wait, and has `waker` woken by the next one. True if there were any.
    pub(crate) fn collect(&self, waker: &Waker, outbox: &mut Outbox) -> bool {
        if !self.used.load(Ordering::Acquire) {
            return false;
        }
        self.waker.register(waker);
        let mut any = false;
        for (id, parts) in &mut self.state.lock().open {
            any |= !parts.is_empty();
            put_all(*id, std::mem::take(parts), outbox);
        }
        any
    }
}

fn put_all(id: u64, parts: VecDeque<(Kind, Bytes)>, outbox: &mut Outbox) {
    for (kind, body) in parts {
        // A part that is too long is one that nobody sees.
        let _ = control::put_body(outbox, kind, id, &body);
    }
}

/// Where parts of a reply are sent, ahead of its end.
#[derive(Clone, Debug)]
pub struct Parts {
    mailbox: Arc<Mailbox>,
    id: u64,
    kind: Kind,
}

impl Parts {
    /// Sends a part in place of those that have not been sent yet. Does nothing once the reply has ended.
    pub fn replace(&self, body: Bytes) {
        if let Some(parts) = self.mailbox.state.lock().open.get_mut(&self.id) {
            parts.clear();
            parts.push_back((self.kind, body));
        }
        self.mailbox.waker.wake();
    }
}
