//! Shared logs: many clients append entries, and all read them in the same order.
//!
//! ```
//! use nacre::zlog::{Entry, Followed, Shape};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = nacre::open("mem:")?;
//! store.logs()?.create("orders", Shape::default()).await?;
//! let log = store.log("orders").await?;
//!
//! let position = log.append(Entry::new("tea").tag("kitchen")).await?;
//! let mut follower = log.follow(0, Default::default());
//! match follower.next().await? {
//!     Followed::Entry { position: found, entry } => assert_eq!((found, &entry.data[..]), (position, &b"tea"[..])),
//!     Followed::Trimmed { .. } => unreachable!("nothing was trimmed"),
//! }
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

pub use nacre_zlog::*;

use crate::store::Store;

impl Store {
    /// Returns the logs of the store by their names: to create, list, rename and delete them.
    ///
    /// # Errors
    ///
    /// None that a caller could cause.
    pub fn logs(&self) -> Result<Directory, LogError> {
        Directory::new(Arc::new(self.clone()))
    }

    /// Opens a log of the store.
    ///
    /// # Errors
    ///
    /// [`LogError::Missing`] if there is none of that name, and those of the store.
    pub async fn log(&self, name: &str) -> Result<Log, LogError> {
        self.log_with(name, Options::default()).await
    }

    /// Opens a log of the store with settings.
    ///
    /// # Errors
    ///
    /// Those of [`Store::log`].
    pub async fn log_with(&self, name: &str, options: Options) -> Result<Log, LogError> {
        Log::open(Arc::new(self.clone()), name, options).await
    }
}
