//! Object classes: methods in Lua that run on one object, at the server or the OSD that keeps it.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = nacre::open("mem:")?;
//! let text = "
//!   function vote(input, output)
//!     local votes = (tonumber((nacre.get(input:str()))) or 0) + 1
//!     nacre.set(input:str(), tostring(votes))
//!     output:append(tostring(votes))
//!   end
//!   objclass.register(vote)";
//! store.classes().put("votes", text.into(), Default::default()).await?;
//!
//! let election = store.object("election")?;
//! assert_eq!(election.call("votes.vote", "ada").await?.output, "1");
//! assert_eq!(election.call("votes.vote", "ada").await?.output, "2");
//! # Ok(())
//! # }
//! ```

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures::executor::block_on;
#[cfg(feature = "servers")]
use nacre_class::Caller;
/// A positive error number, as Linux has them.
///
/// Numbers of errors as classes return them and users read them:
///
/// ```
/// use nacre::class::{Errno, errno};
///
/// let number: Errno = errno::ENOENT;
/// assert_eq!(errno::name(number), Some("ENOENT"));
/// println!("{}", errno::text(number));
/// ```
pub use nacre_class::errno::Errno;
export! {
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// use nacre::class::{Bound, Bounds, CallError, Request};
    ///
    /// let store = nacre::open("mem:")?;
    /// let text = "function spin(input, output) while true do end end objclass.register(spin)";
    /// let bounds = Bounds { instructions: 100_000, ..Bounds::default() };
    /// store.classes().put("slow", text.into(), bounds).await?;
    ///
    /// // A call may have tighter bounds than its class.
    /// let object = "object".parse()?;
    /// let request = Request::new(&object, "slow", "spin").input("");
    /// let request = Request { bounds: Some(Bounds { instructions: 10_000, ..bounds }), ..request };
    /// let error = store.classes().call(&request).await.unwrap_err();
    /// assert!(matches!(error, CallError::Exceeded { bound: Bound::Instructions, .. }));
    /// assert!(Bounds::MAX.wall >= Duration::from_millis(1));
    /// # Ok(())
    /// # }
    /// ```
    "A bound that a call exceeded." nacre_class::Bound;
    "The bounds of one call, nested calls included. A call that exceeds one of them changes nothing." nacre_class::Bounds;
    "A call to be made." nacre_class::Request;
}
export! {
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use nacre::class::{CallError, Called, Classes, Failure, errno};
    ///
    /// let store = nacre::open("mem:")?;
    /// let classes: &Classes = store.classes();
    /// let text = r#"
    ///   function open(input, output)
    ///     output:append(nacre.get("door") or "shut")
    ///     if input:str() ~= "sesame" then error(-objclass.EACCES or "no") end
    ///   end
    ///   objclass.register(open)"#;
    /// classes.put("door", text.into(), Default::default()).await?;
    ///
    /// let cave = store.object("cave")?;
    /// let Called { output, wrote, .. } = cave.call("door.open", "sesame").await?;
    /// assert_eq!((&output[..], wrote), (&b"shut"[..], false));
    ///
    /// match cave.call("door.open", "barley").await.unwrap_err() {
    ///     CallError::Failed { errno, failure, .. } => {
    ///         let Failure { message, log, .. } = *failure;
    ///         println!("{} {message} {log:?}", errno::text(errno));
    ///     }
    ///     error => return Err(error.into()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    "A call that took no effect, or of which it is not known." nacre_class::CallError;
    "The outcome of a call that took effect." nacre_class::Called;
    "The classes of a store, and the place where their methods run: the machines of this process, or elsewhere." nacre_class::Classes;
    "A failed method's last words." nacre_class::Failure;
    "Error numbers: the ones that `objclass` names for scripts, and their texts." nacre_class::errno;
}
export! {
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::sync::Arc;
    ///
    /// use nacre::class::{Catalogue, Class, ClassError, Method, Record};
    ///
    /// let store = nacre::open("mem:")?;
    /// let classes = store.classes();
    /// let text = "function read(input, output) end objclass.register(read)";
    /// classes.put("reader", text.into(), Default::default()).await?;
    /// classes.put("reader", format!("{text} -- better").into(), Default::default()).await?;
    ///
    /// let catalogue: Arc<Catalogue> = classes.catalogue().await?;
    /// let class: &Class = catalogue.class("reader")?;
    /// assert_eq!(class.version, 2);
    /// let Method { name, .. } = &class.methods[0];
    /// assert_eq!(name, "read");
    ///
    /// // Every version is kept.
    /// let history: Vec<Record> = classes.history("reader").await?;
    /// assert_eq!(history.len(), 2);
    /// assert!(matches!(classes.history("writer").await, Err(ClassError::Missing { .. })));
    /// # Ok(())
    /// # }
    /// ```
    "The classes that are current at one epoch. A call sees one catalogue from its beginning to its end." nacre_class::Catalogue;
    "A class that can be called: a text at a version." nacre_class::Class;
    "A change of the classes that was not made." nacre_class::ClassError;
    "A method, as its class declares it." nacre_class::Method;
    "One version of a class." nacre_class::Record;
}
#[cfg(feature = "rados")]
use nacre_class::osd::{Osds, Script, ScriptRun};
#[cfg(feature = "rados")]
use nacre_object::ObjectId;
use nacre_object::{ErrorKind, StoreError};

use crate::blocking::BlockingObject;
#[cfg(any(feature = "servers", feature = "rados"))]
use crate::engine::Opened;
use crate::object::Object;
use crate::store::Store;

/// The classes of a store's handles, with the machines that run their methods in this process.
pub(crate) type Shared = Arc<OnceLock<Classes>>;

/// Servers that run methods.
#[cfg(feature = "servers")]
struct AtServers(nacre_remote::RemoteStore);

#[cfg(feature = "servers")]
impl Caller for AtServers {
    fn call<'a>(
        &'a self,
        request: &'a Request<'a>,
    ) -> futures::future::BoxFuture<'a, Result<Called, CallError>> {
        Box::pin(async move {
            let link = self.0.link_to(request.object).await?;
            nacre_class::network::call(link, request).await
        })
    }
}

/// OSDs that run methods.
#[cfg(feature = "rados")]
struct InOsds(nacre_rados::RadosStore);

#[cfg(feature = "rados")]
impl Osds for InOsds {
    fn load(&self, before: &[u8], body: &str) -> Arc<dyn Script> {
        Arc::new(OsdScript { store: self.0.clone(), program: nacre_rados::Program::new(before, body) })
    }
}

/// A script for OSDs, with the store on whose objects they run it.
#[cfg(feature = "rados")]
struct OsdScript {
    store: nacre_rados::RadosStore,
    program: nacre_rados::Program,
}

#[cfg(feature = "rados")]
impl Script for OsdScript {
    fn run<'a>(
        &'a self,
        object: &'a ObjectId,
        request: &'a [u8],
    ) -> futures::future::BoxFuture<'a, Result<ScriptRun, StoreError>> {
        Box::pin(async move {
            let run = self.store.run(object, &self.program, request).await?;
            Ok(ScriptRun { version: run.version, output: run.output })
        })
    }
}

impl Store {
    /// Returns the classes of the store. Their methods run at the servers of a store that has servers, and in the OSDs of a
    /// Ceph cluster; and in this process if there is neither, or the handle acts for a session ([`Store::for_session`]) or
    /// under a lock.
    pub fn classes(&self) -> &Classes {
        self.classes.get_or_init(|| {
            let classes = Classes::new(self.objects.clone());
            #[cfg(feature = "servers")]
            if let (Opened::Remote(remote), false) = (&self.opened, self.calls_here) {
                return classes.called_by(Box::new(AtServers(remote.clone())));
            }
            #[cfg(feature = "rados")]
            if let (Opened::Rados(rados), false) = (&self.opened, self.calls_here) {
                return classes.run_in(Box::new(InOsds(rados.clone())));
            }
            classes
        })
    }
}

impl Object {
    /// Calls a method of a class, named `CLASS.METHOD`. It sees the object as it stood, and takes effect wholly or not at all.
    ///
    /// # Errors
    ///
    /// [`CallError::Failed`] with the method's error number, [`CallError::Exceeded`] if it was stopped at a bound: nothing was
    /// changed then. [`CallError::Store`] of the kind `Unknown` if the connection broke while it may have taken effect, and
    /// of the kind `Invalid` if the name has no dot.
    pub async fn call(&self, method: &str, input: impl Into<Bytes>) -> Result<Called, CallError> {
        let Some((class, method)) = method.split_once('.') else {
            let text = format!("\"{method}\" is not CLASS.METHOD");
            return Err(self.context(StoreError::new(ErrorKind::Invalid, text), "call a method of").into());
        };
        let request = Request::new(self.id(), class, method).input(input);
        self.store().classes().call(&request).await
    }
}

impl BlockingObject {
    /// Calls a method of a class. See [`Object::call`].
    ///
    /// # Errors
    ///
    /// Those of [`Object::call`].
    pub fn call(&self, method: &str, input: impl Into<Bytes>) -> Result<Called, CallError> {
        block_on(self.nonblocking().call(method, input))
    }
}
