//! Following a map: a copy of it that is kept up to date, epoch by epoch.
//!
//! A watch of the map's object says that something has changed, and the records of the epochs say what: so an event that is
//! missed, late or doubled changes nothing. Where a store cannot watch, and after a break, the header is looked at from time
//! to time.

use std::collections::VecDeque;
use std::time::Duration;

use nacre_object::watch::{Watch, WatchOptions};
use nacre_object::{ErrorKind, StoreError};

use crate::map::{ClusterMap, News};
use crate::state::{Header, Record, State};

/// The settings of a follower.
#[derive(Clone, Debug)]
pub struct FollowOptions {
    /// The time between two looks at a map whose store cannot be watched, and between attempts at a store that does not
    /// answer.
    pub poll: Duration,
}

impl Default for FollowOptions {
    fn default() -> Self {
        Self { poll: Duration::from_secs(1) }
    }
}

/// A step of a follower's copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Followed {
    /// The copy was read as a whole: at the beginning, and where the epochs since the last one known are not kept any more
    /// or are those of another map of that name. The epoch is that of [`Follower::state`].
    Snapshot,
    /// The copy took its next epoch.
    Epoch(Record),
}

/// The source of news.
enum Source {
    /// Not watching yet, or not any more.
    None,
    /// Watching.
    Watch(Watch),
    /// The store cannot watch.
    Polls,
}

/// A copy of a map that is kept up to date. It needs a tokio runtime with a clock around its calls.
#[derive(derive_more::Debug)]
#[debug("Follower")]
pub struct Follower {
    map: ClusterMap,
    options: FollowOptions,
    state: State,
    /// Epochs that were read, and are still to be delivered.
    ready: VecDeque<Record>,
    /// The header by which they were read.
    header: Option<Header>,
    source: Source,
    /// True if the map was read at least once.
    begun: bool,
    /// True if something may have changed since the map was last read.
    stale: bool,
}

impl Follower {
    pub(crate) fn new(map: ClusterMap, options: FollowOptions) -> Self {
        Self {
            map,
            options,
            state: State::default(),
            ready: VecDeque::new(),
            header: None,
            source: Source::None,
            begun: false,
            stale: true,
        }
    }

    /// Returns the map.
    pub fn map(&self) -> &ClusterMap {
        &self.map
    }

    /// Returns the copy, at the epoch of the last step that [`Follower::next`] has returned.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Returns the next step, and waits until there is one. The first one is always a snapshot, of an empty map if there is
    /// none yet; then comes every epoch once and in order, or a snapshot where that cannot be. A call that is dropped
    /// loses nothing.
    ///
    /// A store that does not answer is waited for.
    ///
    /// # Errors
    /// Those of the store that waiting does not heal, among them `Closed`, `Denied` and `Corrupt`. The next call tries again.
    pub async fn next(&mut self) -> Result<Followed, StoreError> {
        loop {
            if let Some(record) = self.ready.pop_front() {
                // They were read as those that follow the state.
                let applied = self.state.apply(&record);
                debug_assert_eq!(applied, Ok(true));
                if let Some(header) = self.header.filter(|_| self.ready.is_empty()) {
                    (self.state.incarnation, self.state.oldest) = (header.incarnation, header.oldest);
                }
                return Ok(Followed::Epoch(record));
            }
            if !self.stale {
                self.wait().await?;
                continue;
            }
            match self.read().await {
                Ok(true) => return Ok(Followed::Snapshot),
                Ok(false) => {}
                Err(error) if waits(&error) => tokio::time::sleep(self.options.poll).await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until the copy has an epoch, or a later one, and discards the steps to it. Returns the epoch that it has.
    ///
    /// # Errors
    /// As [`Follower::next`].
    pub async fn wait_for(&mut self, epoch: u64) -> Result<u64, StoreError> {
        while !self.begun || self.state.epoch() < epoch {
            self.next().await?;
        }
        Ok(self.state.epoch())
    }

    /// Reads what is new. Returns true if that is the whole map.
    async fn read(&mut self) -> Result<bool, StoreError> {
        // The watch is there before the map is read, so that no change falls between the two.
        if matches!(self.source, Source::None) {
            self.source = match self.map.store().watch(self.map.object(), WatchOptions::default()).await {
                Ok(watch) => Source::Watch(watch),
                Err(error) if error.kind == ErrorKind::Unsupported => Source::Polls,
                Err(error) => return Err(self.map.at(error)),
            };
        }
        // Events up to here are about what is read now.
        if let Source::Watch(watch) = &mut self.source {
            while let std::task::Poll::Ready(Some(Ok(_))) = watch.try_next() {}
        }
        if !self.begun {
            self.state = self.map.state().await?;
            (self.begun, self.stale) = (true, false);
            return Ok(true);
        }
        let news = self.map.news(&self.state).await?;
        self.stale = false;
        match news {
            News::Nothing => Ok(false),
            News::Records(records, header) => {
                // Where one reply does not hold them all, the next ones are read when these are delivered.
                self.stale = records.last().is_some_and(|last| last.epoch < header.epoch);
                self.ready = records.into();
                self.header = Some(header);
                Ok(false)
            }
            News::Everything(state) => {
                self.state = state;
                Ok(true)
            }
        }
    }

    /// Waits until something may have changed.
    async fn wait(&mut self) -> Result<(), StoreError> {
        match &mut self.source {
            Source::Watch(watch) => match watch.next().await {
                Some(Ok(_)) => {}
                Some(Err(error)) if !waits(&error) => {
                    (self.source, self.stale) = (Source::None, true);
                    return Err(self.map.at(error));
                }
                // The next one may break as soon.
                Some(Err(_)) | None => {
                    self.source = Source::None;
                    tokio::time::sleep(self.options.poll).await;
                }
            },
            Source::Polls | Source::None => tokio::time::sleep(self.options.poll).await,
        }
        self.stale = true;
        Ok(())
    }
}

/// Returns whether a failure is one that a follower waits for the end of.
fn waits(error: &StoreError) -> bool {
    error.is_retryable() || error.kind == ErrorKind::Unknown
}
