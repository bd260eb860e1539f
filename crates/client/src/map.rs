//! Maps: small named state that a whole system agrees on, changed epoch by epoch.
//!
//! ```
//! use nacre::map::{Followed, Update};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = nacre::open("mem:")?;
//! let map = store.map("policies")?;
//! let mut follower = map.follow(Default::default());
//! assert_eq!(follower.next().await?, Followed::Snapshot);
//!
//! let proposer = map.proposer(Default::default());
//! let made = proposer.propose(Update::new("ada").set("balancer".parse()?, "greedy")).await?;
//! assert_eq!(follower.wait_for(made.epoch).await?, 1);
//! assert_eq!(follower.state().get(b"balancer").unwrap().value, "greedy");
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

/// A source of random numbers. Clones share it.
///
/// ```
/// use std::time::Duration;
///
/// use nacre::map::Random;
///
/// // Waiting times that can be had again, for tests.
/// let (one, same) = (Random::seeded(7), Random::seeded(7));
/// let second = Duration::from_secs(1);
/// assert_eq!(one.part(second), same.part(second));
/// assert!(Random::default().part(second) <= second);
/// ```
pub use nacre_map::Random;
pub use nacre_map::{BOUNDS, MAP_PREFIX, check_name, list};
export! {
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use nacre::map::{Change, ClusterMap, Committed, ProposeError, ProposeOptions, Proposer, Refused, Update};
    ///
    /// let store = nacre::open("mem:")?;
    /// let map: ClusterMap = store.map("policies")?;
    /// let proposer: Proposer = map.proposer(ProposeOptions::default());
    /// let name: nacre::Key = "balancer".parse()?;
    ///
    /// // The first one, if there is none yet.
    /// let Committed { epoch, changes } =
    ///     proposer.propose(Update::new("ada").set(name.clone(), "greedy").if_absent(name.clone())).await?;
    /// let Change { old, new, version, .. } = &changes[0];
    /// assert_eq!((epoch, old.is_none(), new.as_deref(), *version), (1, true, Some(&b"greedy"[..]), 1));
    ///
    /// match proposer.propose(Update::new("bob").set(name.clone(), "lazy").if_absent(name)).await {
    ///     Err(ProposeError::Refused(Refused::Version { found: Some(found), .. })) => assert_eq!(found.value, "greedy"),
    ///     other => panic!("{other:?}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    "A change of one name." nacre_map::Change;
    "An update that took effect." nacre_map::Committed;
    "A map of a store: a handle by which it is read. Cheap to clone." nacre_map::ClusterMap;
    "An update that took no effect, or of which it is not known." nacre_map::ProposeError;
    "The settings of a proposer." nacre_map::ProposeOptions;
    "Proposes updates of a map. Cheap to clone; all clones gather their updates together." nacre_map::Proposer;
    "The reason why an update took no effect, though the store did not fail." nacre_map::Refused;
    "Changes of a map that take effect together, in one epoch, if all of their conditions hold." nacre_map::Update;
    "The value of an entry." nacre_map::Value;
}
export! {
    /// ```
    /// use nacre::map::{Condition, Space, UpdateId};
    ///
    /// // What an update may ask for: an epoch, or the version of an entry or a setting.
    /// let conditions = [
    ///     Condition::Epoch(7),
    ///     Condition::Version { space: Space::Entry, name: "balancer".parse()?, version: 3 },
    /// ];
    /// println!("{conditions:?}, asked by {:?}", UpdateId([1; 16]));
    /// # Ok::<(), nacre::Error>(())
    /// ```
    "A condition on the map as it stood before the update." nacre_map::Condition;
    "A kind of names in a map." nacre_map::Space;
    "The id of an update, chosen at random. It proves who made an epoch when the reply to its proposal was lost." nacre_map::UpdateId;
}
export! {
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use nacre::map::{FollowOptions, Followed, Follower, Record, State, Update, Updated};
    ///
    /// let store = nacre::open("mem:")?;
    /// let map = store.map("policies")?;
    /// let mut follower: Follower = map.follow(FollowOptions::default());
    /// assert_eq!(follower.next().await?, Followed::Snapshot);
    ///
    /// map.proposer(Default::default()).propose(Update::new("ada").set("balancer".parse()?, "greedy")).await?;
    /// let Followed::Epoch(Record { epoch: 1, updates, .. }) = follower.next().await? else { panic!("nothing was missed") };
    /// let Updated { author, changes, .. } = &updates[0];
    /// assert_eq!((author.as_str(), changes.len()), ("ada", 1));
    /// // The follower's copy has it, and so has one that is read at once.
    /// let state: State = map.state().await?;
    /// assert_eq!(follower.state().get(b"balancer"), state.get(b"balancer"));
    /// # Ok(())
    /// # }
    /// ```
    "The settings of a follower." nacre_map::FollowOptions;
    "A step of a follower's copy." nacre_map::Followed;
    "A copy of a map that is kept up to date. It needs a tokio runtime with a clock around its calls." nacre_map::Follower;
    "The record of an epoch." nacre_map::Record;
    "A map at one epoch." nacre_map::State;
    "An update that took effect." nacre_map::Updated;
}
export! {
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use nacre::map::{Header, Incarnation, Missing, OutOfOrder, State, Update};
    ///
    /// let store = nacre::open("mem:")?;
    /// let map = store.map("policies")?;
    /// let proposer = map.proposer(Default::default());
    /// for value in ["greedy", "lazy"] {
    ///     proposer.propose(Update::new("ada").set("balancer".parse()?, value)).await?;
    /// }
    /// let header: Header = map.header().await?.unwrap();
    /// assert_eq!((header.epoch, header.entries), (2, 1));
    ///
    /// // A copy that knows nothing lacks all epochs, and takes none out of order.
    /// let mut copy = State::default();
    /// assert_eq!(copy.incarnation(), Incarnation::default());
    /// assert_eq!(copy.missing(Some(&header)), Missing::After(0));
    /// let second = map.history(1, 1).await?.pop().unwrap();
    /// assert!(matches!(copy.apply(&second), Err(OutOfOrder { known: 0, .. })));
    /// assert_eq!(map.state().await?.missing(Some(&header)), Missing::Nothing);
    /// # Ok(())
    /// # }
    /// ```
    "A map at a glance." nacre_map::Header;
    "A map's identity, chosen at random by its first update. A map whose object was removed and that was made again has another one, so that its epochs are not taken for those of before." nacre_map::Incarnation;
    "The difference between a state and the map as its header has it now." nacre_map::Missing;
    "A record that does not follow a state." nacre_map::OutOfOrder;
}
export! {
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use nacre::map::{Limits, Validator};
    ///
    /// let store = nacre::open("mem:")?;
    /// let map = store.map("policies")?;
    /// let proposer = map.proposer(Default::default());
    /// proposer.set_limits("ada", &Limits { entries: 100, ..Limits::default() }).await?;
    ///
    /// let text = "function validate(change) if change.new == 'evil' then return 'no' end end";
    /// let validator = Validator { prefix: "balancer".into(), text: text.into() };
    /// proposer.set_validator("ada", "good", &validator).await?;
    /// assert_eq!(map.state().await?.limits()?.entries, 100);
    /// assert!(nacre::map::limit::ENTRIES_MAX > 100);
    /// # Ok(())
    /// # }
    /// ```
    "The bounds of a map, part of its configuration." nacre_map::Limits;
    "A validator of a map." nacre_map::Validator;
    "Every limit of a map, in one place." nacre_map::limit;
}
use nacre_object::StoreError;

use crate::store::Store;

impl Store {
    /// Returns a handle on a map of the store, whether it exists or not.
    ///
    /// # Errors
    ///
    /// `Invalid` if the name is not one that a map can have.
    pub fn map(&self, name: &str) -> Result<ClusterMap, StoreError> {
        ClusterMap::new(Arc::new(self.clone()), name)
    }
}
