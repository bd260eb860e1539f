//! An object store behind one server or several.

mod call;
mod drive;
mod link;
mod rendezvous;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use nacre_object::limit::PAGE_ENTRIES_MAX;
use nacre_object::{ErrorKind, ObjectId, ObjectStore, Outcome, Reply, StoreError, Transaction};

use crate::key::ClusterKey;
use crate::remote::call::{AdminCall, ApplyCall, ListCall};
use crate::remote::drive::Host;
use crate::remote::link::Link;
use crate::stream::Address;

pub use rendezvous::Rendezvous;

/// How to reach the servers.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// The cluster key, for servers that have one.
    pub key: Option<ClusterKey>,
    /// Connections to each server.
    pub connections: usize,
    /// How long connecting and introducing oneself may take.
    pub connect_timeout: Duration,
    /// A server that says nothing at all for so long, although requests are under way, is given up.
    pub silence_timeout: Duration,
    /// The pause after the first failed attempt to connect; it doubles with each further one.
    pub backoff_min: Duration,
    /// The longest such pause.
    pub backoff_max: Duration,
    /// Drive the connections on a thread of their own even where the caller has a runtime.
    pub own_thread: bool,
}

impl Default for RemoteOptions {
    fn default() -> Self {
        Self {
            key: None,
            connections: 1,
            connect_timeout: Duration::from_secs(5),
            silence_timeout: Duration::from_secs(30),
            backoff_min: Duration::from_millis(20),
            backoff_max: Duration::from_secs(2),
            own_thread: false,
        }
    }
}

/// Keeps objects on servers. Cheap to clone; the connections close when the last clone is gone.
///
/// Connections are made when they are first needed, on the runtime of the caller, or on a thread of the store's
/// own where the caller has none. What a reply carries are slices of the buffer that it was received in: copy
/// small values out if they are to be kept for long.
#[derive(Clone)]
pub struct RemoteStore {
    inner: Arc<Inner>,
}

struct Inner {
    servers: Vec<Server>,
    rendezvous: Rendezvous,
}

struct Server {
    address: Address,
    links: Vec<Arc<Link>>,
    next: AtomicUsize,
}

impl Server {
    fn link(&self) -> &Arc<Link> {
        match &self.links[..] {
            [link] => link,
            links => &links[self.next.fetch_add(1, Ordering::Relaxed) % links.len()],
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for link in self.servers.iter().flat_map(|server| &server.links) {
            link.close();
        }
    }
}

impl RemoteStore {
    /// A store behind the servers at these addresses. Nothing is connected yet.
    ///
    /// Objects are spread over the servers by rendezvous hashing of their ids over the addresses as given
    /// ([`Rendezvous`]), so every client must name the servers alike; their order does not matter.
    pub fn new(addresses: &[Address], options: RemoteOptions) -> Result<RemoteStore, StoreError> {
        let invalid = |text: String| Err(StoreError::new(ErrorKind::Invalid, text));
        if addresses.is_empty() {
            return invalid("no server address given".to_owned());
        }
        if options.connections == 0 || options.connections > 64 {
            return invalid(format!(
                "{} connections to each server; it must be 1 to 64",
                options.connections
            ));
        }
        for (index, address) in addresses.iter().enumerate() {
            if addresses[..index].contains(address) {
                return invalid(format!("server {address} is named twice"));
            }
        }
        let options = Arc::new(options);
        let host = Arc::new(Host::new(options.own_thread));
        let servers = addresses.iter().map(|address| Server {
            address: address.clone(),
            links: (0..options.connections)
                .map(|_| Link::new(address.clone(), options.clone(), host.clone()))
                .collect(),
            next: AtomicUsize::new(0),
        });
        let servers: Vec<Server> = servers.collect();
        let rendezvous = Rendezvous::new(addresses.iter().map(|address| address.to_string()));
        Ok(RemoteStore { inner: Arc::new(Inner { servers, rendezvous }) })
    }

    /// Connects to every server. Fails if none can be reached, or if one refuses this client for good.
    pub async fn connect(&self) -> Result<(), StoreError> {
        let attempts =
            self.inner.servers.iter().map(|server| ListCall::start(server.link().clone(), None, 1));
        let mut failure = None;
        let mut reached = false;
        for result in futures::future::join_all(attempts).await {
            match result {
                Ok(_) => reached = true,
                Err(error) if error.kind == ErrorKind::Unavailable => failure = Some(error),
                Err(error) => return Err(error),
            }
        }
        match failure {
            Some(error) if !reached => Err(error),
            _ => Ok(()),
        }
    }

    /// The addresses of the servers.
    pub fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.inner.servers.iter().map(|server| &server.address)
    }

    /// The server that keeps an object.
    pub fn server_of(&self, object: &ObjectId) -> &Address {
        &self.inner.servers[self.inner.rendezvous.place(object.as_bytes())].address
    }

    /// Calls a method of the administration of the server at `address`, one of the store's. Reports on its progress
    /// go to `report` while the reply is awaited.
    pub fn call(
        &self,
        address: &Address,
        method: &str,
        argument: Bytes,
        report: impl FnMut(Bytes) + Send + 'static,
    ) -> Reply<Bytes> {
        let Some(server) = self.inner.servers.iter().find(|server| server.address == *address) else {
            let text = format!("server {address} is none of this store's");
            return Reply::ready(Err(StoreError::new(ErrorKind::Invalid, text)));
        };
        let report = Box::new(report);
        Reply::pending(AdminCall::start(server.link().clone(), method.to_owned(), argument, report))
    }

    /// Asks every server for a page, and merges the pages.
    fn list_all(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        let calls: Vec<ListCall> = self
            .inner
            .servers
            .iter()
            .map(|server| ListCall::start(server.link().clone(), after.cloned(), limit))
            .collect();
        Reply::pending(async move {
            let mut pages = Vec::with_capacity(calls.len());
            for page in futures::future::join_all(calls).await {
                pages.push(page?);
            }
            Ok(merge(pages, limit))
        })
    }
}

impl ObjectStore for RemoteStore {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        if let Err(error) = transaction.validate() {
            return Reply::ready(Err(error));
        }
        let server = &self.inner.servers[self.inner.rendezvous.place(object.as_bytes())];
        Reply::Pending(Box::pin(ApplyCall::start(server.link().clone(), object.clone(), transaction)))
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        let limit = limit.min(PAGE_ENTRIES_MAX);
        if limit == 0 {
            return Reply::ready(Ok(Vec::new()));
        }
        match &self.inner.servers[..] {
            [server] => Reply::pending(ListCall::start(server.link().clone(), after.cloned(), limit)),
            _ => self.list_all(after, limit),
        }
    }
}

/// Merges pages of several servers. A page that is not empty may end before its server's last object, so what
/// other servers have beyond its end must wait for the next round.
fn merge(pages: Vec<Vec<ObjectId>>, limit: usize) -> Vec<ObjectId> {
    let Some(end) = pages.iter().filter_map(|page| page.last()).min().cloned() else { return Vec::new() };
    let mut merged: Vec<ObjectId> = pages.into_iter().flatten().filter(|object| *object <= end).collect();
    merged.sort_unstable();
    // Servers that changed their places in the list of addresses may have left the same object on two of them.
    merged.dedup();
    merged.truncate(limit);
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_pages_leave_nothing_out() {
        let ids =
            |text: &str| -> Vec<ObjectId> { text.split_whitespace().map(|id| id.parse().unwrap()).collect() };
        assert_eq!(merge(vec![ids("a c"), ids("b d e"), ids("")], 10), ids("a b c"));
        assert_eq!(merge(vec![ids("a c"), ids("b d e")], 2), ids("a b"));
        assert_eq!(merge(vec![ids(""), ids("x")], 10), ids("x"));
        assert_eq!(merge(vec![ids(""), ids("")], 10), ids(""));
    }
}
