//! Long lists, page by page.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use nacre_object::limit::PAGE_ENTRIES_MAX;
use nacre_object::{Key, KeyRange, ObjectId, ObjectStore, StoreError};

use crate::Object;

/// The objects of a store, in ascending order of their ids.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), nacre::Error> {
/// let store = nacre::open("mem:")?;
/// store.object("a")?.create().await?;
/// let mut objects: nacre::Objects = store.list();
/// while let Some(id) = objects.next().await? {
///     println!("{id}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(derive_more::Debug)]
#[debug("Objects")]
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    after: Option<ObjectId>,
    page: VecDeque<ObjectId>,
    over: bool,
}

impl Objects {
    pub(crate) fn new(store: Arc<dyn ObjectStore>, after: Option<ObjectId>) -> Self {
        Self { store, after, page: VecDeque::new(), over: false }
    }

    /// Returns the next object, or `None` after the last. Objects that are created or removed meanwhile may or may not
    /// appear.
    ///
    /// # Errors
    /// Those of a [read](crate#errors). The next call asks for the same page again.
    pub async fn next(&mut self) -> Result<Option<ObjectId>, StoreError> {
        if self.page.is_empty() && !self.over {
            self.page = self.store.list(self.after.as_ref(), PAGE_ENTRIES_MAX).await?.into();
            match self.page.back() {
                None => self.over = true,
                Some(last) => self.after = Some(last.clone()),
            }
        }
        Ok(self.page.pop_front())
    }
}

/// The keys of an object with their values, in ascending order.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), nacre::Error> {
/// let object = nacre::open("mem:")?.object("ages")?;
/// object.set_key("ada", "36").await?;
/// let mut keys: nacre::Keys = object.keys(nacre::KeyRange::all());
/// let (name, age) = keys.next().await?.unwrap();
/// assert_eq!((name.as_bytes(), &age[..]), (&b"ada"[..], &b"36"[..]));
/// assert!(keys.next().await?.is_none());
/// # Ok(())
/// # }
/// ```
#[derive(derive_more::Debug)]
#[debug("Keys")]
pub struct Keys {
    object: Object,
    range: KeyRange,
    values: bool,
    page: VecDeque<(Key, Bytes)>,
    over: bool,
}

impl Keys {
    pub(crate) fn new(object: Object, range: KeyRange, values: bool) -> Self {
        Self { object, range, values, page: VecDeque::new(), over: false }
    }

    /// Returns the next key and its value, or `None` after the last. Each page shows the object as it stood at one
    /// moment.
    ///
    /// # Errors
    /// Those of a [read](crate#errors). The next call asks for the same page again.
    pub async fn next(&mut self) -> Result<Option<(Key, Bytes)>, StoreError> {
        if self.page.is_empty() && !self.over {
            let range = self.range.clone();
            let page = self.object.key_page(range, PAGE_ENTRIES_MAX as u32, self.values).await?;
            self.over = !page.more || page.entries.is_empty();
            self.page = page.entries.into();
            match self.page.back() {
                None => self.over = true,
                Some((last, _)) => self.range.after = Some(last.to_bytes()),
            }
        }
        Ok(self.page.pop_front())
    }
}

/// The keys of an object without their values, in ascending order.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), nacre::Error> {
/// let object = nacre::open("mem:")?.object("ages")?;
/// object.set_key("ada", "36").await?;
/// let mut names: nacre::KeyNames = object.key_names(nacre::KeyRange::all());
/// assert_eq!(names.next().await?.unwrap().as_bytes(), b"ada");
/// assert!(names.next().await?.is_none());
/// # Ok(())
/// # }
/// ```
#[derive(derive_more::Debug)]
#[debug("KeyNames")]
pub struct KeyNames(pub(crate) Keys);

impl KeyNames {
    /// Returns the next key, or `None` after the last. Each page shows the object as it stood at one moment.
    ///
    /// # Errors
    /// Those of a [read](crate#errors). The next call asks for the same page again.
    pub async fn next(&mut self) -> Result<Option<Key>, StoreError> {
        Ok(self.0.next().await?.map(|(key, _)| key))
    }
}
