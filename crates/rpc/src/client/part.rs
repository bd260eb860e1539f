//! Parts of replies that came ahead of the replies' ends, until their callers take them.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::control::{cost, detached};
use crate::error::WireError;
use crate::limit::{EVENT_BYTES_MAX, EVENT_OVERHEAD_BYTES, WINDOW_BYTES};

/// The bytes of parts that may wait for a caller: a window, what waited at the server when the reply ended, and one
/// more part. A server that sends more violates the protocol.
const UNREAD_BYTES_MAX: usize = 2 * WINDOW_BYTES + EVENT_BYTES_MAX + EVENT_OVERHEAD_BYTES;

/// The parts of one reply.
#[derive(Debug, Default)]
pub(super) struct Parts {
    queue: VecDeque<Bytes>,
    /// The bytes of the queue, as the window counts them.
    unread: usize,
    /// The bytes that were consumed but not yet reported to the server.
    consumed: usize,
}

impl Parts {
    /// Adds a part; with `latest`, it takes the place of the earlier ones.
    ///
    /// # Errors
    ///
    /// If the server has sent more than the window allows.
    pub(super) fn push(&mut self, body: Bytes, latest: bool) -> Result<(), WireError> {
        if latest {
            self.clear();
        }
        let bytes = cost(&body);
        if self.unread + bytes > UNREAD_BYTES_MAX {
            return Err(WireError::Malformed("more parts of a reply than its window allows"));
        }
        self.unread += bytes;
        self.queue.push_back(detached(body));
        Ok(())
    }

    /// Counts a part as consumed whose caller is gone.
    pub(super) fn skip(&mut self, body: &Bytes) {
        self.consumed += cost(body);
    }

    /// Takes the next part.
    pub(super) fn take(&mut self) -> Option<Bytes> {
        let part = self.queue.pop_front()?;
        self.unread -= cost(&part);
        self.consumed += cost(&part);
        Some(part)
    }

    /// Discards all parts, which counts as consuming them.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.consumed += std::mem::take(&mut self.unread);
    }

    /// Returns the number of consumed bytes to be reported to the server, once they reach a quarter of the window.
    pub(super) fn report(&mut self) -> Option<u32> {
        // A window is far below 4 GiB.
        (self.consumed >= WINDOW_BYTES / 4).then(|| std::mem::take(&mut self.consumed) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_window_allows_is_kept_and_more_is_refused() {
        let part = Bytes::from(vec![0; EVENT_BYTES_MAX]);
        let mut parts = Parts::default();
        for _ in 0..UNREAD_BYTES_MAX / cost(&part) {
            parts.push(part.clone(), false).unwrap();
        }
        assert!(parts.push(part.clone(), false).is_err());
        assert_eq!(parts.report(), None);
        parts.take().unwrap();
        assert_eq!(parts.report(), Some(cost(&part) as u32));
        // Where only the latest part matters, any number may come.
        for _ in 0..100 {
            parts.push(part.clone(), true).unwrap();
        }
        assert_eq!(parts.take(), Some(part));
        assert_eq!(parts.take(), None);
    }
}
