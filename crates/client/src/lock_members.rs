//! The lock servers of a store one by one, of which some may be away.

use bytes::Bytes;
use futures::future::join_all;
use nacre_object::{ErrorKind, StoreError};
use nacre_rpc::Address;
use serde_json::{Value, json};

use crate::administration::{Report, not_understood};
use crate::engine::Opened;
use crate::store::Store;

/// The answer of one lock server, or the reason why there is none.
///
/// ```no_run
/// # async fn example() -> Result<(), nacre::Error> {
/// let store = nacre::open("nacre://one,two")?;
/// for nacre::MemberReport { server, report } in store.locks_by_server().await? {
///     match report {
///         Ok(report) => println!("{server}: {}", report["locks"]),
///         Err(error) => println!("{server} is away: {error}"),
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MemberReport {
    /// The address of the server.
    pub server: String,
    /// The answer.
    pub report: Result<Value, StoreError>,
}

impl Store {
    /// Returns the lock requests at every lock server, as [`Store::locks`] does, and shows also those of the others where some
    /// servers cannot be reached.
    ///
    /// # Errors
    ///
    /// `Unsupported` if the store has no lock servers, otherwise the reason why none of them answers.
    pub async fn locks_by_server(&self) -> Result<Vec<MemberReport>, StoreError> {
        self.ask_each("locks", |server| async move {
            let mut all = Value::Null;
            let mut after = Value::Null;
            loop {
                let mut page = self.ask_lock_server(&server, "locks", json!({ "after": after })).await?;
                after = page["next"].take();
                match (all["locks"].as_array_mut(), page["locks"].as_array_mut()) {
                    (Some(known), Some(more)) => known.append(more),
                    _ => all = page,
                }
                if after.is_null() {
                    return Ok(all);
                }
            }
        })
        .await
    }

    /// Takes a lock session's leases away at every lock server that can be reached, as [`Store::break_lock_session`] does. In each
    /// answer `broken` says whether the session had a lease there.
    ///
    /// # Errors
    ///
    /// Those of [`Store::locks_by_server`].
    pub async fn break_lock_session_by_server(&self, session: u64) -> Result<Vec<MemberReport>, StoreError> {
        let argument = json!({ "session": session });
        self.ask_each("break-lock-session", |server| {
            let argument = argument.clone();
            async move { self.ask_lock_server(&server, "break-lock-session", argument).await }
        })
        .await
    }

    /// Asks all lock servers at once.
    async fn ask_each<F>(
        &self,
        method: &'static str,
        ask: impl Fn(Address) -> F,
    ) -> Result<Vec<MemberReport>, StoreError>
    where
        F: Future<Output = Result<Value, StoreError>>,
    {
        let failed = |error: StoreError| error.context(format_args!("{method} of {} failed", self.name()));
        let places: Vec<Address> = match &self.opened {
            #[cfg(feature = "servers")]
            Opened::Remote(remote) => remote.addresses().await.map_err(failed)?,
            _ => {
                // It says why there are none.
                let reports = self.administer_with(method, Value::Null, |_| ()).await?;
                let reported = |Report { server, report }| MemberReport { server, report: Ok(report) };
                return Ok(reports.into_iter().map(reported).collect());
            }
        };
        let answers = places.iter().map(|server| async {
            MemberReport { report: ask(server.clone()).await, server: server.to_string() }
        });
        let answers = join_all(answers).await;
        match answers.iter().find_map(|answer| answer.report.as_ref().err()) {
            Some(error) if answers.iter().all(|answer| answer.report.is_err()) => Err(failed(error.clone())),
            _ => Ok(answers),
        }
    }

    async fn ask_lock_server(
        &self,
        server: &Address,
        method: &str,
        argument: Value,
    ) -> Result<Value, StoreError> {
        let unsupported = |text: String| StoreError::new(ErrorKind::Unsupported, text);
        let text: Bytes = match &self.opened {
            #[cfg(feature = "servers")]
            Opened::Remote(remote) => {
                let argument = argument.to_string().into();
                remote.call(server, method, argument, |_| ()).await?
            }
            _ => return Err(unsupported(format!("{} has no lock server", self.name()))),
        };
        serde_json::from_slice(&text).map_err(|_| not_understood(server))
    }
}
