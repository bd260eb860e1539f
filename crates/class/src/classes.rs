//! The handle on the classes of a store: installing them, looking at them, calling their methods.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures::future::BoxFuture;
use nacre_object::{ObjectStore, StoreError};

use crate::bounds::Bounds;
use crate::catalogue::{Catalogue, Class};
use crate::error::{CallError, ClassError};
use crate::osd::{self, OsdRuntime, Osds};
use crate::registry::{Record, Registry, StoreRegistry, newest};
use crate::runtime::{Called, Request, Runtime};
use crate::validate::{sound, validate};

/// The place where methods run, if that is not this process.
pub trait Caller: Send + Sync {
    /// Calls a method of the current class of a name.
    fn call<'a>(&'a self, request: &'a Request<'a>) -> BoxFuture<'a, Result<Called, CallError>>;
}

/// The classes of a store, and the place where their methods run: the machines of this process, or elsewhere.
#[derive(derive_more::Debug)]
#[debug("Classes")]
pub struct Classes {
    store: Arc<dyn ObjectStore>,
    registry: Box<dyn Registry>,
    runtime: Runtime,
    caller: Option<Box<dyn Caller>>,
    osds: Option<OsdRuntime>,
}

impl Classes {
    /// Creates a handle on the classes that a store holds.
    pub fn new(store: Arc<dyn ObjectStore>) -> Self {
        let registry = Box::new(StoreRegistry::new(store.clone()));
        Self::with(store, registry, Runtime::default())
    }

    /// Creates a handle with a registry and a runtime of one's own.
    #[doc(hidden)]
    pub fn with(store: Arc<dyn ObjectStore>, registry: Box<dyn Registry>, runtime: Runtime) -> Self {
        Self { store, registry, runtime, caller: None, osds: None }
    }

    /// Makes methods run elsewhere. Classes are still checked in this process before they are installed.
    #[doc(hidden)]
    pub fn called_by(self, caller: Box<dyn Caller>) -> Self {
        Self { caller: Some(caller), ..self }
    }

    /// Makes methods run in the OSDs that keep the objects. Classes that cannot be bounded there are refused.
    #[doc(hidden)]
    pub fn run_in(self, osds: Box<dyn Osds>) -> Self {
        Self { osds: Some(OsdRuntime::new(osds)), ..self }
    }

    /// Returns the runtime.
    #[doc(hidden)]
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Returns the classes that are current, asking the registry.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn catalogue(&self) -> Result<Arc<Catalogue>, StoreError> {
        self.registry.catalogue().await
    }

    /// Calls a method. Its class is the one that is current when the call begins, and stays the same to its end.
    ///
    /// # Errors
    ///
    /// As [`Runtime::call`]; where the method runs at a server, as [`network::call`](crate::network::call).
    pub async fn call(&self, request: &Request<'_>) -> Result<Called, CallError> {
        if let Some(caller) = &self.caller {
            return caller.call(request).await;
        }
        // Boxed, so that a call that does not go there stays small.
        if let Some(osds) = &self.osds
            && let Some(called) = Box::pin(osds.call(&*self.registry, request)).await?
        {
            return Ok(called);
        }
        let catalogue = self.catalogue().await?;
        self.runtime.call(&*self.store, &catalogue, request).await
    }

    /// Installs a text as the next version of a class, which may be new. Returns the version; a text and bounds that are
    /// current already make none.
    ///
    /// # Errors
    ///
    /// [`ClassError::Refused`] if the class is not sound, [`ClassError::Conflict`] if somebody else was faster.
    pub async fn put(&self, name: &str, text: Bytes, bounds: Bounds) -> Result<u64, ClassError> {
        let class = self.checked(name, text, bounds)?;
        let latest = self.registry.latest(name).await?;
        if let Some(current) = &latest
            && (current.removed, &current.text[..], current.bounds) == (false, &class.text[..], class.bounds)
        {
            return Ok(current.version);
        }
        let before = latest.map_or(0, |record| record.version);
        self.add(name, before, |version| record(version, &class)).await
    }

    /// Makes the text of an earlier version the next version: of the given one, or of the one before the newest.
    ///
    /// # Errors
    ///
    /// [`ClassError::Missing`] if there is no such version, and as [`Classes::put`].
    pub async fn rollback(&self, name: &str, version: Option<u64>) -> Result<u64, ClassError> {
        let history = self.registry.history(name).await?;
        let wanted = match version {
            Some(version) => history.iter().find(|record| record.version == version && !record.removed),
            None => history.iter().skip(1).find(|record| !record.removed),
        };
        let Some(old) = wanted else {
            return Err(ClassError::Missing { name: name.to_owned(), version });
        };
        // The rules may have changed since.
        let class = self.checked(name, old.text.clone().into(), old.bounds)?;
        let restored = Some(old.version);
        let before = history.first().map_or(0, |record| record.version);
        self.add(name, before, |version| Record { restored, ..record(version, &class) }).await
    }

    /// Removes a class. Its versions are kept, and [`Classes::rollback`] brings it back.
    ///
    /// # Errors
    ///
    /// [`ClassError::Missing`] if there is none.
    pub async fn remove(&self, name: &str) -> Result<u64, ClassError> {
        let history = self.registry.history(name).await?;
        let &Record { version: before, bounds, .. } = newest(name, &history)?;
        self.add(name, before, |version| Record {
            version,
            text: Vec::new(),
            methods: Vec::new(),
            bounds,
            removed: true,
            restored: None,
            made_s: now_s(),
        })
        .await
    }

    /// Returns the versions of a class that are kept, newest first.
    ///
    /// # Errors
    ///
    /// [`ClassError::Missing`] if there never was one.
    pub async fn history(&self, name: &str) -> Result<Vec<Record>, ClassError> {
        let history = self.registry.history(name).await?;
        if history.is_empty() {
            return Err(ClassError::Missing { name: name.to_owned(), version: None });
        }
        Ok(history)
    }

    /// Checks a class; for OSDs also in the form in which they run it.
    fn checked(&self, name: &str, text: Bytes, bounds: Bounds) -> Result<Class, ClassError> {
        let class = validate(&self.runtime, name, text, bounds)?;
        if self.osds.is_some() {
            let refused = |reason: &dyn fmt::Display| ClassError::Refused {
                name: name.to_owned(),
                reason: format!("Ceph's OSDs cannot run it: {reason}"),
            };
            let bounded = osd::without_bounds(&class.text).map_err(|error| refused(&error))?;
            // With its counters it may be longer than texts of classes are.
            sound(&self.runtime, name, bounded.into(), bounds).map_err(|error| match error {
                ClassError::Refused { reason, .. } => refused(&reason),
                error => error,
            })?;
        }
        Ok(class)
    }

    async fn add(
        &self,
        name: &str,
        before: u64,
        make: impl FnOnce(u64) -> Record,
    ) -> Result<u64, ClassError> {
        let version = before + 1;
        match self.registry.add(name, make(version)).await? {
            true => Ok(version),
            false => Err(ClassError::Conflict { name: name.to_owned() }),
        }
    }
}

fn record(version: u64, class: &Class) -> Record {
    Record {
        version,
        text: class.text.to_vec(),
        methods: class.methods.clone(),
        bounds: class.bounds,
        removed: false,
        restored: None,
        made_s: now_s(),
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
