//! The namespace: directories, files and links on the objects of a store.
//!
//! ```
//! use nacre::fs::{Creation, Credentials, InodeKind, RankOptions};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), nacre::fs::Error> {
//! let store = nacre::open("mem:")?;
//! let rank = store.rank(RankOptions { create: true, ..Default::default() }).await?;
//! let user = Credentials::root();
//!
//! let (root, name) = rank.resolve_parent(&user, b"/results").await?;
//! let results = rank.create(&user, root.ino, &name, Creation::new(InodeKind::Directory, 0o755)).await?;
//! let file = rank.create(&user, results.ino, b"run-1", Creation::new(InodeKind::File, 0o644)).await?;
//! rank.write_file(file.ino, 0, "42\n".into()).await?;
//!
//! let found = rank.resolve(&user, b"/results/run-1", true).await?;
//! assert_eq!(rank.read_file(found.ino, 0, 1024).await?, "42\n");
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

#[cfg(feature = "class")]
use bytes::Bytes;
pub use nacre_meta::inode::{Ino, InodeKind, Layout, SEQUENCER};
pub use nacre_meta::*;
use nacre_object::StoreError;

#[cfg(feature = "class")]
use crate::class::{Called, Request};
use crate::sequencer::Sequencer;
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

    /// Returns a handle on a sequencer of the namespace, which [`Creation::sequencer`] makes. Whether the user may use it is
    /// for the caller to ask ([`Rank::typed`]).
    ///
    /// # Errors
    ///
    /// `Unsupported` if the store has no servers.
    pub async fn sequencer_inode(&self, ino: Ino) -> std::result::Result<Sequencer, StoreError> {
        self.sequencer_of(&ino.state_object()).await
    }

    /// Calls a method of an inode whose type is a class. It sees the inode's state as it stood, and takes effect wholly or not
    /// at all, unless a later exclusive rank has taken the inode over. A method that its class declares to change nothing
    /// needs permission to read, any other one permission to write.
    ///
    /// # Errors
    ///
    /// [`CallError::Namespace`] with [`Error::Denied`], [`Error::NotFound`], or [`Error::Unsupported`] if the inode has no such
    /// methods; [`CallError::Method`] if the method failed: nothing was changed then, as far as the store knows.
    #[cfg(feature = "class")]
    pub async fn call_inode(
        &self,
        rank: &Rank,
        user: &Credentials,
        ino: Ino,
        method: &str,
        input: impl Into<Bytes>,
    ) -> std::result::Result<Called, CallError> {
        let kind = rank.stat(ino).await?.kind;
        let catalogue = self.classes().catalogue().await.map_err(Error::Store)?;
        let methods = match catalogue.classes.get(kind.name()) {
            Some(class) => &class.methods[..],
            None => &[],
        };
        // A method that is not there fails by itself.
        let reads = methods.iter().any(|known| known.name == method && !known.writes);
        let typed = rank.typed(user, ino, if reads { READ } else { WRITE }).await?;
        if typed.name == SEQUENCER {
            return Err(Error::Unsupported("a sequencer is no class".into()).into());
        }
        let request = Request::new(&typed.object, &typed.name, method).input(input);
        let request = Request { fence: typed.fence, ..request };
        self.classes().call(&request).await.map_err(CallError::Method)
    }
}

/// The failure of a call of a method of an inode.
#[cfg(feature = "class")]
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The namespace refused it, or the inode is not there.
    #[error(transparent)]
    Namespace(#[from] Error),
    /// The method failed.
    #[error(transparent)]
    Method(crate::class::CallError),
}
