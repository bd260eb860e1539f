//! An object store behind one or more servers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures::channel::oneshot;
use nacre_object::limit::PAGE_ENTRIES_MAX;
use nacre_object::watch::{Notified, Watch, WatchOptions};
use nacre_object::{ErrorKind, ObjectId, ObjectStore, Outcome, Reply, StoreError, Transaction};
use nacre_rpc::client::{Greeted, Greeter, Greeting, Host, Link, LinkOptions, nonsense};
use nacre_rpc::{Address, ClusterKey};

use crate::administer::AdminCall;
use crate::apply::{ApplyCall, ListCall};
use crate::join::{self, Answer};
use crate::once;
use crate::rendezvous::Rendezvous;
use crate::roster::{self, JoinedMembers, Roster};
use crate::writer::Writer;
use crate::{request, watch};

/// The settings of a remote store.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// The cluster key, for servers that have one.
    pub key: Option<ClusterKey>,
    /// The user id that servers at Unix sockets must run as; if `None`, this process's own user or root.
    pub owner: Option<u32>,
    /// The number of connections to each server, 1 to 64.
    pub connections: usize,
    /// The time limit for connecting together with the handshake.
    pub connect_timeout: Duration,
    /// The time after which a server that sends nothing at all, although requests are under way, is given up.
    pub silence_timeout: Duration,
    /// The pause after the first failed attempt to connect; it doubles with each further failure.
    pub backoff_min: Duration,
    /// The longest pause between attempts to connect.
    pub backoff_max: Duration,
    /// The time for which a write whose reply was lost is repeated, as long as the server recognises it, before it ends
    /// as `Unknown`; zero if writes are not to be repeated.
    pub repeat_timeout: Duration,
    /// Whether to drive the connections on a separate thread even if the caller has a runtime.
    pub own_thread: bool,
}

impl Default for RemoteOptions {
    fn default() -> Self {
        Self {
            key: None,
            owner: None,
            connections: 1,
            connect_timeout: Duration::from_secs(5),
            silence_timeout: Duration::from_secs(30),
            backoff_min: Duration::from_millis(20),
            backoff_max: Duration::from_secs(2),
            repeat_timeout: Duration::from_secs(10),
            own_thread: false,
        }
    }
}

impl RemoteOptions {
    fn link(&self) -> LinkOptions {
        LinkOptions {
            key: self.key.clone(),
            owner: self.owner,
            connect_timeout: self.connect_timeout,
            silence_timeout: self.silence_timeout,
            backoff_min: self.backoff_min,
            backoff_max: self.backoff_max,
            features: once::REPETITION | request::APPEND,
            ..Default::default()
        }
    }
}

/// An object store on servers. Cheap to clone; the connections close when the last clone is dropped.
///
/// Connections are established when they are first needed, on the runtime of the caller, or on a thread of the store's
/// own if the caller has none. The bytes in a reply are slices of the buffer that it was received in: copy small values
/// if they are kept for long.
#[derive(Clone, derive_more::Debug)]
#[debug("RemoteStore")]
pub struct RemoteStore {
    inner: Arc<Inner>,
}

struct Inner {
    roster: Arc<Roster>,
    options: Arc<LinkOptions>,
    /// The number of connections to each server.
    connections: usize,
    repeat_timeout: Duration,
    host: Arc<Host>,
    /// A line to each of the given addresses.
    contacts: Vec<Line>,
    cluster: OnceLock<Cluster>,
    /// The number of watches.
    watches: Arc<AtomicUsize>,
}

/// The servers, once the members are known.
struct Cluster {
    servers: Vec<Server>,
    rendezvous: Rendezvous,
}

/// A link, and the numbers of the writes that go over it.
#[derive(Clone)]
struct Line {
    link: Arc<Link>,
    writer: Arc<Writer>,
}

/// The kind of address that a link leads to.
#[derive(Clone, Copy, Debug)]
enum Role {
    /// An address that the client was given, by its index; the server there is the member that it claims to be.
    Contact(usize),
    /// The address of a member, by its index.
    Member(usize),
}

/// Checks that a server is the expected member of the expected store.
struct Introduction {
    role: Role,
    roster: Arc<Roster>,
    writer: Arc<Writer>,
}

impl Introduction {
    async fn join(&self, greeting: &mut Greeting) -> Result<(), StoreError> {
        loop {
            let known = self.roster.known();
            let proof = known.map(|known| &known.proof);
            let frame = greeting.ask(|outbox, id| join::put_join(outbox, id, proof)).await?;
            match (join::get_answer(&frame).map_err(nonsense)?, known) {
                (Answer::Joined(own), Some(known)) => {
                    let wanted = match self.role {
                        Role::Contact(index) => known.contacts[index],
                        Role::Member(member) => member,
                    };
                    if own == wanted {
                        return Ok(());
                    }
                    let name = |member: usize| known.members.names().get(member).map_or("?", String::as_str);
                    let text = format!("it says that it is member {}, not {}", name(own), name(wanted));
                    return Err(StoreError::new(ErrorKind::Invalid, text));
                }
                (Answer::Members(theirs), Some(known)) => return Err(roster::changed(known, &theirs)),
                (Answer::Members(theirs), None) => {
                    // Its answer alone need not determine the members.
                    let outcome = self.roster.follow();
                    if let Role::Contact(index) = self.role {
                        self.roster.reply_received(index, Ok(theirs));
                    }
                    match outcome {
                        Some(outcome) => outcome.await.unwrap_or_else(|_| Err(unsettled()))?,
                        // The round has ended meanwhile: the members are known, or are no longer asked for.
                        None if self.roster.known().is_some() => {}
                        None => return Err(unsettled()),
                    }
                }
                (Answer::Joined(_), None) => {
                    return Err(nonsense("it agreed to a list that it was not shown"));
                }
            }
        }
    }
}

impl Greeter for Introduction {
    fn greet<'a>(&'a self, greeting: &'a mut Greeting) -> Greeted<'a> {
        Box::pin(async move {
            self.join(greeting).await?;
            self.writer.open(greeting).await
        })
    }

    fn failed(&self, error: &StoreError) {
        self.writer.failed();
        if let Role::Contact(index) = self.role {
            self.roster.reply_received(index, Err(error.clone()));
        }
    }
}

impl Line {
    fn new(
        address: &Address,
        role: Role,
        roster: &Arc<Roster>,
        options: &Arc<LinkOptions>,
        host: &Arc<Host>,
        repeats: bool,
    ) -> Line {
        let writer = Arc::new(Writer::new(repeats));
        let introduction = Introduction { role, roster: roster.clone(), writer: writer.clone() };
        Line { link: Link::new(address.clone(), introduction, options.clone(), host.clone()), writer }
    }
}

fn unsettled() -> StoreError {
    StoreError::new(ErrorKind::Unavailable, "the members of the store could not be found out")
}

struct Server {
    address: Address,
    lines: Vec<Line>,
    next: AtomicUsize,
}

impl Server {
    fn line(&self) -> &Line {
        match &self.lines[..] {
            [line] => line,
            lines => &lines[self.next.fetch_add(1, Ordering::Relaxed) % lines.len()],
        }
    }

    fn link(&self) -> &Arc<Link> {
        &self.line().link
    }
}

impl Cluster {
    /// Returns the server that keeps an object.
    fn keeper(&self, object: &ObjectId) -> &Server {
        &self.servers[self.rendezvous.choose(object.as_bytes())]
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let servers = self.cluster.get().map_or(&[][..], |cluster| &cluster.servers);
        for line in servers.iter().flat_map(|server| &server.lines).chain(&self.contacts) {
            line.link.close();
            line.writer.failed();
        }
    }
}

impl Inner {
    /// Returns the servers, if the members are known.
    fn cluster(&self) -> Option<&Cluster> {
        match self.cluster.get() {
            Some(cluster) => Some(cluster),
            None => self.roster.known().map(|known| self.cluster.get_or_init(|| self.settle(known))),
        }
    }

    /// Creates the servers of the members. A member at one of the given addresses is reached there, the others by their
    /// names.
    fn settle(&self, known: &JoinedMembers) -> Cluster {
        let line = |address: &Address, role| {
            let repeats = !self.repeat_timeout.is_zero();
            Line::new(address, role, &self.roster, &self.options, &self.host, repeats)
        };
        let servers = known.members.names().iter().enumerate().map(|(member, name)| {
            let contact = known.contacts.iter().position(|at| *at == member);
            let (address, mut lines) = match contact {
                Some(index) => (self.roster.given[index].clone(), vec![self.contacts[index].clone()]),
                // A name that is not an address belongs to a server that keeps a store by itself, which the client must
                // have been given; any other such name leads nowhere, and fails when it is tried.
                None => (name.parse().unwrap_or_else(|_| Address::Tcp(name.clone())), Vec::new()),
            };
            while lines.len() < self.connections {
                lines.push(line(&address, Role::Member(member)));
            }
            Server { address, lines, next: AtomicUsize::new(0) }
        });
        let servers = servers.collect();
        // One of several addresses of a member is enough.
        for (index, contact) in self.contacts.iter().enumerate() {
            if known.contacts[..index].contains(&known.contacts[index]) {
                contact.link.close();
            }
        }
        Cluster { servers, rendezvous: known.members.rendezvous() }
    }

    /// Learns the members from the given servers, if they are not known yet.
    async fn learn(&self) -> Result<&Cluster, StoreError> {
        if let Some(cluster) = self.cluster() {
            return Ok(cluster);
        }
        let wait = self.roster.wait();
        if wait.begun {
            self.contacts.iter().for_each(|contact| contact.link.ask());
        }
        let closed = || StoreError::new(ErrorKind::Closed, "the store was closed");
        wait.outcome.await.unwrap_or_else(|_| Err(closed()))?;
        self.cluster().ok_or_else(closed)
    }
}

impl RemoteStore {
    /// Creates a store behind the servers at these addresses, without connecting yet.
    ///
    /// The servers report the members of the store; the addresses may be spelt in any way, and need not be those of all
    /// members. Objects are spread over the members by rendezvous hashing of their ids over the members' names
    /// ([`Rendezvous`]).
    ///
    /// # Errors
    ///
    /// `Invalid` if no address is given, or one twice, or an option is out of range.
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
        let host = Arc::new(Host::new(options.own_thread));
        let (connections, repeat_timeout) = (options.connections, options.repeat_timeout);
        let options = Arc::new(options.link());
        let roster = Arc::new(Roster::new(addresses.to_vec()));
        let contacts = addresses.iter().enumerate().map(|(index, address)| {
            let repeats = !repeat_timeout.is_zero();
            Line::new(address, Role::Contact(index), &roster, &options, &host, repeats)
        });
        let contacts = contacts.collect();
        let cluster = OnceLock::new();
        let watches = Arc::default();
        let inner = Inner { roster, options, connections, repeat_timeout, host, contacts, cluster, watches };
        Ok(RemoteStore { inner: Arc::new(inner) })
    }

    /// Connects to every server. Fails if none can be reached, or if one refuses this client.
    pub async fn connect(&self) -> Result<(), StoreError> {
        let servers = &self.inner.learn().await?.servers;
        let attempts = servers.iter().map(|server| ListCall::start(server.link().clone(), None, 1));
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

    /// Returns the addresses of the servers. Connects to the given ones first if the members are not known yet.
    ///
    /// # Errors
    ///
    /// The reason why the members could not be found out.
    pub async fn addresses(&self) -> Result<Vec<Address>, StoreError> {
        Ok(self.inner.learn().await?.servers.iter().map(|server| server.address.clone()).collect())
    }

    /// Returns the settings of the links to the servers, for links of other services.
    pub fn link_options(&self) -> LinkOptions {
        (*self.inner.options).clone()
    }

    /// Returns the address of the server that keeps an object. Connects to the given ones first if the members are not
    /// known yet.
    ///
    /// # Errors
    ///
    /// The reason why the members could not be found out.
    pub async fn server_of(&self, object: &ObjectId) -> Result<Address, StoreError> {
        Ok(self.inner.learn().await?.keeper(object).address.clone())
    }

    /// Returns a link to the server that keeps an object, for requests of other services. Connects to the given addresses
    /// first if the members are not known yet.
    ///
    /// # Errors
    ///
    /// The reason why the members could not be found out.
    pub async fn link_to(&self, object: &ObjectId) -> Result<Arc<Link>, StoreError> {
        Ok(self.inner.learn().await?.keeper(object).link().clone())
    }

    /// Returns the index of the server that keeps an object, and the first link to it; `None` if the members are not known yet.
    pub(crate) fn keeper(&self, object: &ObjectId) -> Option<(usize, Arc<Link>)> {
        let cluster = self.inner.cluster()?;
        let index = cluster.rendezvous.choose(object.as_bytes());
        Some((index, cluster.servers.get(index)?.lines.first()?.link.clone()))
    }

    /// Calls a method of the administration of the server at `address`, one of the store's. Progress reports go to
    /// `report` while the reply is awaited.
    pub fn call(
        &self,
        address: &Address,
        method: &str,
        argument: Bytes,
        report: impl FnMut(Bytes) + Send + 'static,
    ) -> Reply<Bytes> {
        let (address, method) = (address.clone(), method.to_owned());
        self.on_cluster(move |cluster| {
            let Some(server) = cluster.servers.iter().find(|server| server.address == address) else {
                let text = format!("server {address} is not one of this store's servers");
                return Reply::ready(Err(StoreError::new(ErrorKind::Invalid, text)));
            };
            Reply::pending(AdminCall::start(server.link().clone(), method, argument, Box::new(report)))
        })
    }

    /// Starts a call on the servers: at once if the members are known, otherwise as soon as they are, whether the reply
    /// is awaited or not.
    fn on_cluster<T: Send + Unpin + 'static>(
        &self,
        start: impl FnOnce(&Cluster) -> Reply<T> + Send + 'static,
    ) -> Reply<T> {
        if let Some(cluster) = self.inner.cluster() {
            return start(cluster);
        }
        let inner = self.inner.clone();
        let task = async move {
            match inner.learn().await {
                Ok(cluster) => start(cluster).await,
                Err(error) => Err(error),
            }
        };
        spawned(&self.inner.host, task)
    }
}

/// Returns the reply that a task makes; the task continues whether the reply is awaited or not.
fn spawned<T: Send + Unpin + 'static>(
    host: &Host,
    task: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Reply<T> {
    let (sender, result) = oneshot::channel();
    let task = async move {
        // The caller may be gone.
        let _ = sender.send(task.await);
    };
    if let Err(error) = host.spawn(task) {
        return Reply::ready(Err(error));
    }
    let ended = || StoreError::new(ErrorKind::Closed, "the runtime that drove the connection has ended");
    Reply::pending(async move { result.await.unwrap_or_else(|_| Err(ended())) })
}

impl ObjectStore for RemoteStore {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        if let Err(error) = transaction.validate() {
            return Reply::ready(Err(error));
        }
        let object = object.clone();
        let repeat_timeout = self.inner.repeat_timeout;
        self.on_cluster(move |cluster| {
            let Line { link, writer } = cluster.keeper(&object).line().clone();
            let call = ApplyCall::start(link, writer, object, transaction, repeat_timeout);
            match call.held() {
                // It is sent whether its reply is awaited or not, as any other.
                Some(link) => spawned(link.host(), call),
                None => Reply::Pending(Box::pin(call)),
            }
        })
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        let limit = limit.min(PAGE_ENTRIES_MAX);
        if limit == 0 {
            return Reply::ready(Ok(Vec::new()));
        }
        let after = after.cloned();
        self.on_cluster(move |cluster| {
            let mut calls = cluster
                .servers
                .iter()
                .map(|server| ListCall::start(server.link().clone(), after.clone(), limit));
            if cluster.servers.len() == 1
                && let Some(call) = calls.next()
            {
                return Reply::pending(call);
            }
            let calls: Vec<ListCall> = calls.collect();
            Reply::pending(async move {
                let mut pages = Vec::with_capacity(calls.len());
                for page in futures::future::join_all(calls).await {
                    pages.push(page?);
                }
                Ok(merge(pages, limit))
            })
        })
    }

    fn watch(&self, object: &ObjectId, options: WatchOptions) -> Reply<Watch> {
        let (object, watches, connections) =
            (object.clone(), self.inner.watches.clone(), self.inner.connections);
        self.on_cluster(move |cluster| {
            let link = cluster.keeper(&object).link().clone();
            Reply::pending(watch::watch(link, object, options, watches, connections))
        })
    }

    fn notify(&self, object: &ObjectId, payload: Bytes, timeout: Duration) -> Reply<Notified> {
        let object = object.clone();
        self.on_cluster(move |cluster| {
            let link = cluster.keeper(&object).link().clone();
            let host = link.clone();
            // It is sent whether its reply is awaited or not, as any other request.
            spawned(host.host(), watch::notify(link, object, payload, timeout))
        })
    }
}

/// Merges pages of several servers. A page that is not empty may end before its server's last object, so objects of
/// other servers beyond its end must wait for the next round.
fn merge(pages: Vec<Vec<ObjectId>>, limit: usize) -> Vec<ObjectId> {
    let Some(end) = pages.iter().filter_map(|page| page.last()).min().cloned() else { return Vec::new() };
    let mut merged: Vec<ObjectId> = pages.into_iter().flatten().filter(|object| *object <= end).collect();
    merged.sort_unstable();
    // A change of the list of members may have left the same object on two servers.
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
