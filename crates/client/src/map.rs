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

pub use nacre_map::*;
use nacre_object::StoreError;

use crate::store::Store;

impl Store {
    /// Returns a handle on a map of the store, whether it exists or not.
    ///
    /// # Errors
    ///
    /// `Invalid` if the name is not one that a map can have.
    pub fn map(&self, name: &str) -> Result<Map, StoreError> {
        Map::new(Arc::new(self.clone()), name)
    }
}
