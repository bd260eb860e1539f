//! Named maps of versioned entries: small state that a whole system agrees on, such as its servers, its policies and its
//! places.
//!
//! A *map* is kept in one object of a store. Every change of it makes a new *epoch*: there are no gaps between epochs, and
//! none is made twice. Updates are conditional, and may change many entries at once; validators in Lua see each change
//! before it is made (Sevilla et al., *Malacology*, section 4.1). A [`Proposer`] makes epochs, a [`Follower`] keeps a copy
//! up to date and delivers every epoch in order.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let store = std::sync::Arc::new(nacre_object::testkit::MemoryStore::new());
//! use nacre_map::{ClusterMap, Followed, Update};
//!
//! let map = ClusterMap::new(store, "policies")?;
//! let proposer = map.proposer(Default::default());
//! let mut follower = map.follow(Default::default());
//! assert_eq!(follower.next().await?, Followed::Snapshot);
//!
//! let made = proposer.propose(Update::new("ada").set("balancer".parse()?, "greedy")).await?;
//! assert_eq!(made.epoch, 1);
//! follower.wait_for(made.epoch).await?;
//! let entry = follower.state().get(b"balancer").unwrap();
//! assert_eq!((&entry.value[..], entry.version), (&b"greedy"[..], 1));
//!
//! // Whoever saw version 1 may change it, once.
//! let change = |value: &'static str| Update::new("eve").set("balancer".parse().unwrap(), value);
//! proposer.propose(change("spread").if_version("balancer".parse()?, 1)).await?;
//! assert!(proposer.propose(change("pack").if_version("balancer".parse()?, 1)).await.is_err());
//! # Ok(())
//! # }
//! ```
//!
//! `docs/map.md` has the formats and the commands.

#![forbid(unsafe_code)]

pub mod cluster;
pub mod codec;
mod follow;
pub mod health;
pub mod limit;
pub mod log;
mod map;
mod propose;
mod random;
mod state;
mod update;
mod validator;

pub use follow::{FollowOptions, Followed, Follower};
pub use map::{ClusterMap, MAP_PREFIX, check_name, list};
pub use propose::{Committed, ProposeError, ProposeOptions, Proposer};
pub use random::Random;
pub use state::{
    Change, Header, Incarnation, Limits, Missing, OutOfOrder, Record, Space, State, Updated, Value,
};
pub use update::{Condition, Refused, Update, UpdateId};
pub use validator::{BOUNDS, Validator};
