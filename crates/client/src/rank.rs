//! Metadata ranks: which there are, what they do, and which sequencers they have authority over.
//!
//! Each rank is a daemon, or several of which one has the authority. A sequencer begins at rank 0, unless it is created below a
//! directory that is pinned to another one, and is moved by [`Sequencer::migrate`](crate::sequencer::Sequencer::migrate) while
//! programs use it.
//!
//! ```no_run
//! # async fn example() -> Result<(), nacre::Error> {
//! use nacre::rank::Mode;
//!
//! let store = nacre::open("nacre://localhost:6470")?;
//! for rank in store.ranks().await? {
//!     let load = store.rank_load(rank.rank).await?;
//!     println!("rank {}: {} requests per second", rank.rank, load.requests_per_second);
//! }
//! store.sequencer("log").await?.migrate(1, Mode::Client).await?;
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeMap;

export! {
    /// ```no_run
    /// # async fn example() -> Result<(), nacre::Error> {
    /// use nacre::rank::{Mode, RANK_MAX, RankLoad, RankNumber, RankStatus, ResourceLoad};
    ///
    /// let store = nacre::open("nacre://localhost:6470")?;
    /// let ranks: Vec<RankStatus> = store.ranks().await?;
    /// let busiest: RankNumber = ranks.last().map_or(0, |rank| rank.rank);
    /// assert!(busiest <= RANK_MAX);
    /// let RankLoad { resources, queue, .. } = store.rank_load(busiest).await?;
    /// println!("{queue} requests wait");
    /// for ResourceLoad { id, requests_per_second, held, .. } in resources {
    ///     println!("{id}: {requests_per_second}; cached by somebody: {held}");
    /// }
    /// assert_eq!("proxy".parse(), Ok(Mode::Proxy));
    /// # Ok(())
    /// # }
    /// ```
    "The load of a rank. Rates are those of about the last 5 seconds." nacre_meta::load::RankLoad;
    "The load of a sequencer." nacre_meta::load::ResourceLoad;
    "The words of modes, for messages." nacre_meta::place::MODES;
    "The way in which clients reach a sequencer after a migration." nacre_meta::place::Mode;
    "The greatest number of a rank." nacre_meta::place::RANK_MAX;
    "The number of a metadata rank." nacre_meta::place::RankNumber;
    "A rank, as the store shows it." nacre_meta::role::RankStatus;
}
use nacre_meta::inode::Ino;
use nacre_meta::role::{authority, pin};
use nacre_object::StoreError;

use crate::store::Store;

impl Store {
    /// Returns all metadata ranks that a daemon ever had the authority of, in ascending order.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn ranks(&self) -> Result<Vec<RankStatus>, StoreError> {
        authority::ranks(self).await
    }

    /// Returns the load of a metadata rank, with that of its busiest sequencers, at most 1,000.
    ///
    /// # Errors
    ///
    /// `Unavailable` if it does not answer, `Unsupported` if the store has no metadata rank.
    pub async fn rank_load(&self, rank: RankNumber) -> Result<RankLoad, StoreError> {
        self.meta_session().await?.load(rank).await
    }

    /// Returns the directories that are pinned to metadata ranks.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn rank_pins(&self) -> Result<BTreeMap<Ino, RankNumber>, StoreError> {
        pin::all(self).await
    }

    /// Pins a directory to a metadata rank, or frees it: sequencers that are first used below it from then on are that
    /// rank's. Those that were used before stay where they are.
    ///
    /// # Errors
    ///
    /// Those of the store; `OutOfSpace` if there are as many pins as there may be.
    pub async fn set_rank_pin(&self, directory: Ino, rank: Option<RankNumber>) -> Result<(), StoreError> {
        pin::set(self, directory, rank).await
    }
}
