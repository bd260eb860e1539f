//! Following a log: its entries in order, from a position on.
//!
//! Watches of the objects to which entries are appended say that something has changed, and reading says what: so an event that is
//! missed, late or doubled changes nothing. Where a store cannot watch, the log is looked at from time to time.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures::future::try_join_all;
use nacre_object::watch::{Watch, WatchOptions};
use nacre_object::{ErrorKind, ObjectId, StoreError};
use tokio::time::Instant;

use crate::entry::{Entry, Slot};
use crate::error::LogError;
use crate::log::Inner;

/// The number of positions that one read asks for.
const POSITIONS_PER_READ: u64 = 1024;

/// The settings of a follower.
#[derive(Clone, Debug)]
pub struct FollowOptions {
    /// The tag of the entries that are wanted; `None` for all. Entries without it are not read.
    pub tag: Option<Bytes>,
    /// The time between two looks at a log whose store cannot be watched.
    pub poll: Duration,
}

impl Default for FollowOptions {
    fn default() -> Self {
        Self { tag: None, poll: Duration::from_millis(100) }
    }
}

/// A step of a follower.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Followed {
    /// The next entry.
    Entry {
        /// Its position.
        position: u64,
        /// The entry.
        entry: Entry,
    },
    /// Entries that may have been here were trimmed before they were read.
    Trimmed {
        /// The first position that was trimmed.
        from: u64,
        /// The first one that was not.
        to: u64,
    },
}

impl Followed {
    /// Returns the position of the entry, or the first one that was trimmed.
    pub fn position(&self) -> u64 {
        match self {
            Followed::Entry { position, .. } => *position,
            Followed::Trimmed { from, .. } => *from,
        }
    }
}

/// The source of news.
enum Source {
    /// Not watching yet, or not any more.
    None,
    /// Watching the objects of the view that begins here, of this epoch.
    Watches { start: u64, generation: u64, watches: Vec<Watch> },
    /// The store cannot watch.
    Polls,
}

/// Reads a log in order, and waits at its end. It needs a tokio runtime with a clock around its calls.
#[derive(derive_more::Debug)]
#[debug("Follower")]
pub struct Follower {
    log: Arc<Inner>,
    options: FollowOptions,
    /// The position that is read next.
    next: u64,
    ready: VecDeque<Followed>,
    source: Source,
    /// True if nothing was found at the next position when all objects were asked.
    at_end: bool,
    /// True if the last read came to the end of what was written, as far as it asked: the next one is likely to find nothing.
    is_near_end: bool,
    /// The time since which something is known to be missing at the position that is read next.
    hole_since: Option<Instant>,
}

impl Follower {
    pub(crate) fn new(log: Arc<Inner>, from: u64, options: FollowOptions) -> Self {
        let (ready, source) = (VecDeque::new(), Source::None);
        let (at_end, is_near_end) = (false, false);
        Self { log, options, next: from, ready, source, at_end, is_near_end, hole_since: None }
    }

    /// Returns the position after that of the last step: a follower that begins there goes on where this one is.
    pub fn position(&self) -> u64 {
        self.ready.front().map_or(self.next, Followed::position)
    }

    /// Returns whether the next step is there already.
    pub fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns the next step, and waits until there is one. A call that is dropped loses nothing.
    ///
    /// Positions that were filled are passed over. One to which nothing was written, although later ones were, is waited for; after
    /// some time ([`Options::fill_after`](crate::Options::fill_after)) it is filled, unless the handle is for reading only.
    ///
    /// # Errors
    /// [`LogError::Missing`] if the log was deleted, and those of the store that waiting does not heal. The next call tries again.
    pub async fn next(&mut self) -> Result<Followed, LogError> {
        loop {
            if let Some(step) = self.step(u64::MAX).await? {
                return Ok(step);
            }
        }
    }

    /// Returns the next step before a position; `None` if there is none. All before the position is to be given out already, as it
    /// is before [`Log::tail`](crate::Log::tail): then this waits for entries that are on their way, and for nothing else.
    ///
    /// # Errors
    /// As [`Follower::next`].
    pub async fn next_before(&mut self, end: u64) -> Result<Option<Followed>, LogError> {
        loop {
            if self.position() >= end {
                return Ok(None);
            }
            if let Some(step) = self.step(end).await? {
                return Ok(Some(step));
            }
        }
    }

    /// Returns a step, or does something that may lead to one. Everything before `given_out` was given out, if it is not the
    /// greatest number.
    async fn step(&mut self, given_out: u64) -> Result<Option<Followed>, LogError> {
        if let Some(step) = self.ready.pop_front() {
            return Ok(Some(step));
        }
        // The watches are there before the log is read, so that no entry falls between the two.
        self.watch().await?;
        let all = self.next.saturating_add(POSITIONS_PER_READ);
        let upto = if self.at_end { self.run_end().min(all) } else { all };
        self.at_end = false;
        let begun = self.next;
        // If there is nothing, it has to be known before it waits whether anything is behind that. That takes no second round trip, but
        // requests to all objects, which a follower that is far behind does not need.
        let ends = self.is_near_end && upto == all;
        let scan = self.log.scan(self.next, upto, self.options.tag.as_ref(), ends).await?;
        let (mut is_missing, mut written_after) = (false, None);
        for (position, slot) in scan.slots {
            if position > self.next {
                // Beyond the first one that is missing, only whether there is anything counts.
                if slot != Some(Slot::Unwritten) {
                    written_after = Some(position);
                    break;
                }
                continue;
            }
            match slot {
                Some(Slot::Unwritten) => {
                    is_missing = true;
                    continue;
                }
                Some(Slot::Entry(entry)) => self.ready.push_back(Followed::Entry { position, entry }),
                Some(Slot::Trimmed) => self.add_trimmed(position),
                Some(Slot::Filled) | None => {}
            }
            self.next = position + 1;
        }
        self.is_near_end = is_missing || upto < all;
        if self.next > begun {
            self.hole_since = None;
            if let Some(Followed::Trimmed { to, .. }) = self.ready.back_mut()
                && *to == self.next
            {
                // There may be far more that is trimmed than can be looked at.
                let begin = self.log.begin().await?;
                (*to, self.next) = ((*to).max(begin), self.next.max(begin));
            }
            return Ok(None);
        }
        if upto < all {
            // What was written is behind a position that was not, so all objects are asked.
            return Ok(None);
        }
        self.at_end = true;
        self.wait(given_out, written_after.is_some(), scan.written_end).await?;
        Ok(None)
    }

    /// Returns the end of the positions from the next one on that are in its object. It alone has what comes next.
    fn run_end(&self) -> u64 {
        let known = self.log.known();
        match known.views.find(self.next) {
            Some((view, _)) => self.next.saturating_add(view.together(self.next)),
            None => u64::MAX,
        }
    }

    fn add_trimmed(&mut self, position: u64) {
        match self.ready.back_mut() {
            Some(Followed::Trimmed { to, .. }) if *to == position => *to = position + 1,
            _ => self.ready.push_back(Followed::Trimmed { from: position, to: position + 1 }),
        }
    }

    /// Waits until something may have been written at the next position, or fills it if it is missing for too long.
    /// Everything from `written_end` on is not written, if that is known.
    async fn wait(
        &mut self,
        given_out: u64,
        written_after: bool,
        written_end: Option<u64>,
    ) -> Result<(), LogError> {
        let is_hole = written_after
            || (given_out < u64::MAX && self.next < given_out)
            || match written_end {
                Some(end) => end > self.next,
                None => self.log.written_end(self.next).await? > self.next,
            };
        // Reading may have shown that the log has another view since. Nothing more happens to the objects of the one before.
        let known = self.log.known();
        if let Source::Watches { start, generation, .. } = &self.source
            && let Some((view, _)) = known.views.find(self.next)
            && (*start, *generation) != (view.start, view.generation)
        {
            return Ok(());
        }
        let mut deadline = None;
        if is_hole {
            let since = *self.hole_since.get_or_insert_with(Instant::now);
            let due = since + self.log.options.fill_after;
            if Instant::now() >= due && !self.log.options.read_only {
                let end = match given_out {
                    u64::MAX => self.log.written_end(self.next).await?,
                    given_out => given_out,
                };
                tracing::debug!(from = self.next, "fills positions that nobody has written");
                return self.log.fill(self.next, end.min(self.next + POSITIONS_PER_READ)).await;
            }
            deadline =
                Some(if self.log.options.read_only { Instant::now() + self.options.poll } else { due });
        }
        let waited = async {
            match &mut self.source {
                Source::Watches { watches, .. } => match any(watches).await {
                    Ok(()) => Ok(()),
                    Err(error) => {
                        self.source = Source::None;
                        if !waits(&error) {
                            return Err(LogError::Store(error));
                        }
                        tokio::time::sleep(self.options.poll).await;
                        Ok(())
                    }
                },
                Source::Polls | Source::None => {
                    tokio::time::sleep(self.options.poll).await;
                    Ok(())
                }
            }
        };
        match deadline {
            Some(deadline) => tokio::time::timeout_at(deadline, waited).await.unwrap_or(Ok(())),
            None => waited.await,
        }
    }

    /// Watches the objects of the view of the next position.
    async fn watch(&mut self) -> Result<(), LogError> {
        let known = self.log.known();
        let Some((view, _)) = known.views.find(self.next) else { return Ok(()) };
        match &mut self.source {
            Source::Polls => return Ok(()),
            Source::Watches { start, generation, watches }
                if (*start, *generation) == (view.start, view.generation) =>
            {
                // Events up to here are about what is read now.
                for watch in watches {
                    while let Poll::Ready(Some(Ok(_))) = watch.try_next() {}
                }
                return Ok(());
            }
            Source::Watches { .. } | Source::None => {}
        }
        let objects: Vec<ObjectId> =
            (0..view.width).map(|index| self.log.object(view, index)).collect::<Result<_, _>>()?;
        let watches = objects.iter().map(|object| self.log.store.watch(object, WatchOptions::default()));
        self.source = match try_join_all(watches).await {
            Ok(watches) => Source::Watches { start: view.start, generation: view.generation, watches },
            Err(error) if error.kind == ErrorKind::Unsupported => Source::Polls,
            // It is tried again with the next read, which has its own patience.
            Err(error) if waits(&error) => Source::None,
            Err(error) => return Err(error.into()),
        };
        Ok(())
    }
}

/// Waits for an event of any of the watches.
async fn any(watches: &mut [Watch]) -> Result<(), StoreError> {
    poll_fn(|context| {
        for watch in &mut *watches {
            match watch.poll_next(context) {
                Poll::Pending => {}
                Poll::Ready(Some(Ok(_))) => return Poll::Ready(Ok(())),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
                Poll::Ready(None) => {
                    return Poll::Ready(Err(StoreError::new(ErrorKind::Unavailable, "the watch has ended")));
                }
            }
        }
        Poll::Pending
    })
    .await
}

/// Returns whether a failure is one that a follower waits for the end of.
fn waits(error: &StoreError) -> bool {
    error.is_retryable() || error.kind == ErrorKind::Unknown
}
