//! The namespace: directories, files and links on the objects of a store.
//!
//! ```
//! use nacre::fs::{Creation, Credentials, Kind, RankOptions};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), nacre::fs::Error> {
//! let store = nacre::open("mem:")?;
//! let rank = store.rank(RankOptions { create: true, ..Default::default() }).await?;
//! let user = Credentials::root();
//!
//! let (root, name) = rank.resolve_parent(&user, b"/results").await?;
//! let results = rank.create(&user, root.ino, &name, Creation::new(Kind::Directory, 0o755)).await?;
//! let file = rank.create(&user, results.ino, b"run-1", Creation::new(Kind::File, 0o644)).await?;
//! rank.write_file(file.ino, 0, "42\n".into()).await?;
//!
//! let found = rank.resolve(&user, b"/results/run-1", true).await?;
//! assert_eq!(rank.read_file(found.ino, 0, 1024).await?, "42\n");
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

pub use nacre_meta::inode::{Ino, Kind, Layout};
pub use nacre_meta::*;

use crate::store::Store;

impl Store {
    /// Opens a rank: a handle on the namespace that is kept in the store.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if there is no namespace, and none is to be created.
    pub async fn rank(&self, options: RankOptions) -> Result<Rank> {
        Rank::open(Arc::new(self.clone()), options).await
    }
}
