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
/// A content that is being put into a file. Dropped without [`Put::commit`] or [`Put::abort`], it leaves its objects to be removed with the file, or by `nacre fs check`; those of a new file, which nobody sees, by the latter.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), nacre::fs::Error> {
/// use nacre::fs::{Creation, Credentials, Ino, InodeKind, Put, RankOptions};
///
/// let store = nacre::open("mem:")?;
/// let rank = store.rank(RankOptions { create: true, ..Default::default() }).await?;
/// let user = Credentials::root();
/// let file = rank.create(&user, Ino::ROOT, b"results", Creation::new(InodeKind::File, 0o644)).await?;
/// // The old content stands until the new one is complete.
/// let mut put: Put<'_> = rank.put(&user, file.ino).await?;
/// put.write(b"first half, ").await?;
/// put.write(b"second half").await?;
/// assert_eq!(put.commit().await?, 23);
/// assert_eq!(rank.read_file(file.ino, 0, 100).await?, "first half, second half");
///
/// // A new file is not there until it is complete.
/// let mut put = rank.put_new(&user, Ino::ROOT, b"summary", 0o644).await?;
/// put.write(b"42").await?;
/// assert!(rank.lookup(&user, Ino::ROOT, b"summary").await.is_err());
/// put.commit().await?;
/// assert_eq!(rank.lookup(&user, Ino::ROOT, b"summary").await?.size, 2);
/// # Ok(())
/// # }
/// ```
pub use nacre_meta::Put;
/// An inode of a program's own type, as its methods are called.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), nacre::fs::Error> {
/// use nacre::fs::{Creation, Credentials, Ino, InodeKind, RankOptions, Typed, WRITE};
///
/// let store = nacre::open("mem:")?;
/// let rank = store.rank(RankOptions { create: true, ..Default::default() }).await?;
/// let user = Credentials::root();
/// let kind = InodeKind::Typed("counter".into());
/// let inode = rank.create(&user, Ino::ROOT, b"visits", Creation::new(kind, 0o644)).await?;
/// // The object in which the inode's state is, for methods of the class of that name.
/// let Typed { name, object, .. } = rank.typed(&user, inode.ino, WRITE).await?;
/// assert_eq!((name.as_str(), object), ("counter", inode.ino.state_object()));
/// # Ok(())
/// # }
/// ```
pub use nacre_meta::Typed;
pub use nacre_meta::inode::SEQUENCER;
export! {
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nacre::fs::Error> {
    /// use nacre::fs::{Attributes, Creation, Credentials, Ino, InodeKind, Rank, RankOptions};
    ///
    /// let store = nacre::open("mem:")?;
    /// let rank: Rank = store.rank(RankOptions { create: true, owner: Credentials::new(1000, 1000), ..Default::default() }).await?;
    /// let ada = Credentials::new(1000, 1000);
    /// let file: Attributes = rank.create(&ada, Ino::ROOT, b"notes", Creation::new(InodeKind::File, 0o600)).await?;
    /// assert_eq!((file.uid, file.mode & 0o777), (1000, 0o600));
    ///
    /// // Others may not read it.
    /// let bob = Credentials::new(1001, 1001);
    /// assert!(matches!(rank.access(&bob, file.ino, nacre::fs::READ).await, Err(nacre::fs::Error::Denied)));
    /// let found = rank.resolve(&ada, b"/notes", true).await?;
    /// assert_eq!(found.ino, file.ino);
    /// rank.close().await?;
    /// # Ok(())
    /// # }
    /// ```
    "The number of an inode. No number is ever given twice in a store." nacre_meta::inode::Ino;
    "The kind of an inode." nacre_meta::inode::InodeKind;
}
export! {
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nacre::fs::Error> {
    /// use nacre::fs::{Attributes, Creation, Credentials, Ino, InodeKind, Rank, RankOptions};
    ///
    /// let store = nacre::open("mem:")?;
    /// let rank: Rank = store.rank(RankOptions { create: true, owner: Credentials::new(1000, 1000), ..Default::default() }).await?;
    /// let ada = Credentials::new(1000, 1000);
    /// let file: Attributes = rank.create(&ada, Ino::ROOT, b"notes", Creation::new(InodeKind::File, 0o600)).await?;
    /// assert_eq!((file.uid, file.mode & 0o777), (1000, 0o600));
    ///
    /// // Others may not read it.
    /// let bob = Credentials::new(1001, 1001);
    /// assert!(matches!(rank.access(&bob, file.ino, nacre::fs::READ).await, Err(nacre::fs::Error::Denied)));
    /// let found = rank.resolve(&ada, b"/notes", true).await?;
    /// assert_eq!(found.ino, file.ino);
    /// rank.close().await?;
    /// # Ok(())
    /// # }
    /// ```
    "The attributes of an inode. Times are in nanoseconds since 1970." nacre_meta::Attributes;
    "The inode to be made by [`Rank::create`]." nacre_meta::Creation;
    "The user and the groups that a call is made for." nacre_meta::Credentials;
    "A failure of a call on the namespace." nacre_meta::Error;
    "A handle on the namespace that makes changes of it." nacre_meta::Rank;
    "The settings of a rank." nacre_meta::RankOptions;
}
export! {
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nacre::fs::Error> {
    /// use std::sync::Arc;
    ///
    /// use nacre::fs::{Clock, Creation, Credentials, Ino, InodeKind, RankOptions, SetAttributes, SetTime};
    ///
    /// let store = nacre::open("mem:")?;
    /// let clock: Clock = Arc::new(|| 1_000_000_000);
    /// let rank = store.rank(RankOptions { create: true, clock: Some(clock), ..Default::default() }).await?;
    /// let user = Credentials::root();
    /// let file = rank.create(&user, Ino::ROOT, b"notes", Creation::new(InodeKind::File, 0o644)).await?;
    /// assert_eq!(file.mtime, 1_000_000_000);
    ///
    /// let set = SetAttributes { mode: Some(0o600), mtime: Some(SetTime::To(7)), ..Default::default() };
    /// let file = rank.set_attributes(&user, file.ino, &set).await?;
    /// assert_eq!((file.mode & 0o777, file.mtime), (0o600, 7));
    /// # Ok(())
    /// # }
    /// ```
    "A source of the present time, in nanoseconds since 1970." nacre_meta::Clock;
    "Changes of attributes; what is `None` stays." nacre_meta::SetAttributes;
    "A time to be set." nacre_meta::SetTime;
}
pub use nacre_meta::{
    EXECUTE, NAME_BYTES_MAX, PAGE_ENTRIES_MAX, PATH_BYTES_MAX, READ, SIZE_MAX, WRITE, check_name,
};
export! {
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nacre::fs::Error> {
    /// use nacre::fs::{Finding, RankOptions, Report, Unfinished};
    ///
    /// let store = nacre::open("mem:")?;
    /// let rank = store.rank(RankOptions { create: true, ..Default::default() }).await?;
    /// // With `true` it mends what it can.
    /// let report: Report = rank.check(false).await?;
    /// for Finding { text, .. } in &report.findings {
    ///     println!("{text}");
    /// }
    /// for Unfinished { ino, bytes, .. } in &report.unfinished {
    ///     println!("{bytes} bytes of inode {ino} are being put, or were left by a put that was killed");
    /// }
    /// assert!(report.is_clean());
    /// # Ok(())
    /// # }
    /// ```
    "Something that is wrong with a namespace, or was left behind." nacre_meta::Finding;
    "The result of a check." nacre_meta::Report;
    "Content that no reader sees: it is being put or removed, or whoever did that was killed." nacre_meta::Unfinished;
}
export! {
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nacre::fs::Error> {
    /// use nacre::fs::{Creation, Credentials, Ino, InodeKind, Listed, Page, RankOptions};
    ///
    /// let store = nacre::open("mem:")?;
    /// let rank = store.rank(RankOptions { create: true, ..Default::default() }).await?;
    /// let user = Credentials::root();
    /// for name in ["a", "b", "c"] {
    ///     rank.create(&user, Ino::ROOT, name.as_bytes(), Creation::new(InodeKind::File, 0o644)).await?;
    /// }
    /// let mut after = bytes::Bytes::new();
    /// loop {
    ///     let Page { entries, more } = rank.readdir(&user, Ino::ROOT, &after, 2, false).await?;
    ///     for Listed { name, ino, .. } in &entries {
    ///         println!("{name:?}: {ino:?}");
    ///     }
    ///     if !more {
    ///         break;
    ///     }
    ///     after = entries.last().unwrap().name.clone();
    /// }
    /// # Ok(())
    /// # }
    /// ```
    "An entry of a directory." nacre_meta::Listed;
    "A page of a directory, in the order of the names' bytes." nacre_meta::Page;
}
export! {
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nacre::fs::Error> {
    /// use nacre::fs::{Creation, Credentials, Error, Ino, InodeKind, Limits, Quota, RankOptions, Usage};
    ///
    /// let store = nacre::open("mem:")?;
    /// let rank = store.rank(RankOptions { create: true, ..Default::default() }).await?;
    /// let user = Credentials::root();
    /// let results = rank.create(&user, Ino::ROOT, b"results", Creation::new(InodeKind::Directory, 0o755)).await?.ino;
    /// rank.set_quota(&user, results, Limits { bytes: Some(1000), entries: None }).await?;
    ///
    /// let file = rank.create(&user, results, b"run-1", Creation::new(InodeKind::File, 0o644)).await?.ino;
    /// rank.write_file(file, 0, vec![0; 800].into()).await?;
    /// assert_eq!(rank.append_file(file, vec![0; 300].into()).await, Err(Error::QuotaExceeded));
    ///
    /// let Quota { root, used: Usage { bytes, .. }, .. } = rank.quota(file).await?.unwrap();
    /// assert!(root == results && (800..=1000).contains(&bytes));
    /// # Ok(())
    /// # }
    /// ```
    "The limits of a quota; `None`: no limit." nacre_meta::Limits;
    "A quota of what is in a directory and everything below it." nacre_meta::Quota;
    "An amount of what a quota limits." nacre_meta::Usage;
}
use nacre_object::StoreError;
export! {
    /// ```
    /// use nacre::stream::{Layout, Piece};
    ///
    /// // Stripes of 64 KiB over four objects.
    /// let layout = Layout { unit_bytes: 64 << 10, width: 4, object_bytes: 1 << 20 };
    /// assert!(layout.is_sound());
    /// // The second stripe begins in the second object.
    /// let pieces: Vec<Piece> = layout.pieces(60 << 10, 8 << 10).collect();
    /// assert_eq!((pieces[0].object, pieces[0].len), (0, 4 << 10));
    /// assert_eq!((pieces[1].object, pieces[1].offset, pieces[1].at), (1, 0, 64 << 10));
    /// ```
    "The way in which a stream's bytes are dealt out to objects: stripes of `unit_bytes` go round `width` objects until each of them holds `object_bytes`, then round the next `width` ones." nacre_object::stripe::Layout;
    "A piece of a byte range of a stream: what one object holds of it, without a gap." nacre_object::stripe::Piece;
}

#[cfg(feature = "class")]
use crate::class::{Called, Request};
use crate::engine::Opened;
use crate::sequencer::Sequencer;
use crate::store::Store;

impl Store {
    /// Opens a rank: a handle on the namespace that is kept in the store.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if there is no namespace, and none is to be created.
    pub async fn rank(&self, options: RankOptions) -> Result<Rank, Error> {
        Rank::open(Arc::new(self.clone()), options).await
    }

    /// Returns a handle on the same store that answers reads of directories and inodes of the namespace from memory, as far as its
    /// servers promise to tell before any of that changes. It answers what the store would: each change that was acknowledged is
    /// seen by every later read. A change by this handle or another one waits until nobody relies on what was before, for two
    /// seconds at most if somebody cannot be reached.
    ///
    /// Clones of the handle share what they know; the handle that it was made from does not. Of a store without servers it is a handle
    /// like any other. Made from the handle of a lock ([`Lock::store`](crate::lock::Lock::store)), it answers from memory even when the
    /// lock is lost: take the lock by the caching handle instead.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nacre::fs::Error> {
    /// use nacre::fs::{Ino, RankOptions};
    ///
    /// let store = nacre::open("mem:")?;
    /// let rank = store.caching().rank(RankOptions { create: true, ..Default::default() }).await?;
    /// assert_eq!(rank.stat(Ino::ROOT).await?.ino, Ino::ROOT);
    /// # Ok(())
    /// # }
    /// ```
    pub fn caching(&self) -> Store {
        let (Opened::Remote(remote), None) = (&self.opened, &self.cached) else { return self.clone() };
        let cached = nacre_remote::LeasedStore::over(self.objects.clone(), remote.clone());
        Store { objects: Arc::new(cached.clone()), cached: Some(cached), ..self.clone() }
    }

    /// Ends the caching of a handle that [`Store::caching`] made, and of its clones, so that no change waits for them any more. They ask
    /// the store each time from now on. A program that ends without this may keep others waiting for two seconds. Returns when the
    /// servers have been told, or cannot be reached.
    pub async fn end_caching(&self) {
        if let Some(cached) = &self.cached {
            cached.end().await;
        }
    }

    /// Returns a handle on a sequencer of the namespace, which [`Creation::sequencer`] makes. Whether the user may use it is
    /// for the caller to ask ([`Rank::typed`]).
    ///
    /// # Errors
    ///
    /// `Unsupported` if the store has no metadata rank.
    pub async fn sequencer_inode(&self, ino: Ino) -> Result<Sequencer, StoreError> {
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
    ) -> Result<Called, CallError> {
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
            return Err(Error::Unsupported("a sequencer is not a class".into()).into());
        }
        let request = Request::new(&typed.object, &typed.name, method).input(input);
        let request = Request { fence: typed.fence, ..request };
        self.classes().call(&request).await.map_err(CallError::Method)
    }
}

/// The failure of a call of a method of an inode.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), nacre::fs::Error> {
/// use nacre::fs::{CallError, Creation, Credentials, Ino, InodeKind, RankOptions};
///
/// let store = nacre::open("mem:")?;
/// let rank = store.rank(RankOptions { create: true, ..Default::default() }).await?;
/// let user = Credentials::root();
/// let file = rank.create(&user, Ino::ROOT, b"notes", Creation::new(InodeKind::File, 0o644)).await?;
/// // A file has no methods.
/// let error = store.call_inode(&rank, &user, file.ino, "read", "").await.unwrap_err();
/// assert!(matches!(error, CallError::Namespace(_)));
/// # Ok(())
/// # }
/// ```
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
