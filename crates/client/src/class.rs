//! Object classes: methods in Lua that run on one object, at the server that keeps it.
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
pub use nacre_class::{
    Bound, Bounds, CallError, Called, Catalogue, Class, ClassError, Classes, Failure, Method, Record, Request,
};
use nacre_object::{ErrorKind, StoreError};

use crate::blocking::BlockingObject;
#[cfg(feature = "servers")]
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

impl Store {
    /// Returns the classes of the store. Their methods run at the servers of a store that has servers; and in this process
    /// if it has none, or the handle acts for a session ([`Store::for_session`]) or under a lock.
    pub fn classes(&self) -> &Classes {
        self.classes.get_or_init(|| {
            let classes = Classes::new(self.objects.clone());
            #[cfg(feature = "servers")]
            if let (Opened::Remote(remote), false) = (&self.opened, self.calls_here) {
                return classes.called_by(Box::new(AtServers(remote.clone())));
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
