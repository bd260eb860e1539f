//! The background of a session: its binding to a connection, its lease, and what its sequencers are asked for.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nacre_rpc::Address;
use nacre_rpc::client::{Event, Host, Link, Subscription};
use tokio::sync::oneshot;

use super::call::{self, AttachRequest, BareRequest, Introduces, Lost};
use super::{Inner, Route, new_number};
use crate::clock;
use crate::service::{Call, Reply};
use crate::wire::{self, Introduction};

/// The pause before the rank is looked for again.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// The time that the end of a session may take.
const END_MAX: Duration = Duration::from_secs(1);
/// The time that a daemon has for answering a request to be bound, as long as no standby takes over from it.
const ATTACH_MAX: Duration = Duration::from_secs(2);

/// The time that a rank has for renewing a lease before it is looked for anew.
const RENEWED_MAX: Duration = Duration::from_millis(500);

/// The lease as the client counts it: from before it was asked for, and less what clocks drift apart.
struct Lease {
    until: Option<Duration>,
    /// The time from one renewal to the next.
    renew: Duration,
}

impl Lease {
    fn renewed(&mut self, sent: Duration, lease: Duration) {
        self.until = Some(sent + lease - lease / 16);
        self.renew = lease / 3;
    }

    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| clock::now() >= until)
    }

    async fn over(&self) {
        match self.until {
            Some(until) => tokio::time::sleep(until.saturating_sub(clock::now())).await,
            None => std::future::pending().await,
        }
    }
}

/// The links that were made, so that one that is good is used again.
#[derive(Default)]
struct Links(Vec<Arc<Link>>);

impl Links {
    fn get(&mut self, inner: &Inner, address: &Address) -> Arc<Link> {
        if let Some(known) = self.0.iter().find(|link| link.address().to_string() == address.to_string()) {
            return known.clone();
        }
        let link = inner.link(address.clone(), inner.host.clone());
        self.0.push(link.clone());
        link
    }

    /// Drops a link over which nothing is to be sent any more.
    fn discard(&mut self, link: &Arc<Link>) {
        link.close();
        self.0.retain(|known| !Arc::ptr_eq(known, link));
    }
}

impl Inner {
    /// Creates a link to a daemon that may act for the rank.
    fn link(&self, address: Address, host: Arc<Host>) -> Arc<Link> {
        let introduces =
            Introduces(Introduction { rank: self.rank, caller: self.caller, client: self.client });
        Link::new(address, introduces, self.link_options.clone(), host)
    }
}

/// Runs until the session is ended, or its last handle is gone.
pub(super) async fn run(inner: Arc<Inner>, mut ended: oneshot::Receiver<oneshot::Sender<()>>) {
    let mut links = Links::default();
    let mut lease = Lease { until: None, renew: Duration::from_secs(1) };
    let mut hint: Vec<String> = Vec::new();
    // The daemon whose binding ended last: one that does not answer is not to delay those that do.
    let mut left: Option<Address> = None;
    let mut pause = PAUSE_MIN;
    let mut bound_to_the_end = None;
    let acknowledge = loop {
        if lease.is_over() {
            let_go(&inner, &mut lease);
        }
        let bound = tokio::select! {
            bound = bind(&inner, &mut links, &hint, left.as_ref(), ATTACH_MAX) => bound,
            acknowledge = &mut ended => break acknowledge.ok(),
            // What is held is given up in time, whether the rank answers or not.
            () = lease.over() => continue,
        };
        match bound {
            Ok((route, mut subscription, attached, sent)) => {
                pause = PAUSE_MIN;
                lease.renewed(sent, attached.lease);
                inner.route.send_replace(Some(route.clone()));
                match serve_session(&inner, &route, &mut subscription, &mut lease, attached.lease, &mut ended)
                    .await
                {
                    Ending::Ended(acknowledge) => {
                        // Without the subscription the rank would take nothing back from the session any more.
                        bound_to_the_end = Some(subscription);
                        break acknowledge;
                    }
                    Ending::Lapsed => {
                        inner.unbind();
                        let_go(&inner, &mut lease);
                    }
                    Ending::Moved(addresses) => {
                        inner.unbind();
                        hint = addresses;
                        left = Some(route.link.address().clone());
                        links.discard(&route.link);
                        route.round_trips.close();
                    }
                }
            }
            Err(lost) => {
                let (addresses, why) = match lost {
                    Lost::Moved(addresses, why) => (addresses, why),
                    Lost::Failed(why) => (Vec::new(), why),
                };
                *inner.error.lock() = Some(why);
                hint = addresses;
                // Programs that lost the same rank must not all come back at the same moment.
                tokio::select! {
                    () = tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.0))) => {}
                    acknowledge = &mut ended => break acknowledge.ok(),
                }
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    };
    farewell(&inner).await;
    drop(bound_to_the_end);
    for link in links.0 {
        link.close();
    }
    if let Some(acknowledge) = acknowledge {
        // Whoever waited may be gone.
        let _ = acknowledge.send(());
    }
}

/// Gives up what is held, and goes on as another session.
fn let_go(inner: &Inner, lease: &mut Lease) {
    inner.drop_all();
    inner.number.store(new_number(), Ordering::Relaxed);
    lease.until = None;
}

type Bound = (Route, Subscription<AttachRequest>, wire::Attached, Duration);

/// Binds the session to a connection to the rank, and says what it holds. The daemon that was left is asked last. One that does
/// not answer is waited for until a standby has taken over from it, and `attach_max` at most.
async fn bind(
    inner: &Arc<Inner>,
    links: &mut Links,
    hint: &[String],
    left: Option<&Address>,
    attach_max: Duration,
) -> Result<Bound, Lost> {
    let mut last = None;
    let (mut candidates, epoch) = inner.candidates(hint).await;
    candidates.sort_by_key(|address| Some(address) == left);
    for address in candidates {
        let link = links.get(inner, &address);
        let session = inner.number.load(Ordering::Relaxed);
        let sent = clock::now();
        let request = AttachRequest { session, inner: inner.clone() };
        let late = || {
            let text = format!("the daemon at {address} does not answer");
            nacre_object::StoreError::new(nacre_object::ErrorKind::Unavailable, text)
        };
        let started = Subscription::start(link.clone(), request);
        let started = tokio::select! {
            started = tokio::time::timeout(attach_max, started) => started,
            // Who has taken over is not among those that are still to be asked.
            () = inner.until_taken_over(epoch) => {
                links.discard(&link);
                return Err(Lost::Moved(Vec::new(), late()));
            }
        };
        let refused = match started.unwrap_or_else(|_| Err(late())) {
            Ok((frame, Some(subscription))) if frame.kind == wire::ATTACHED => {
                let attached = wire::get_attached(&frame.body).map_err(|error| Lost::Failed(error.into()))?;
                let number = inner.connections.load(Ordering::Relaxed);
                let host = Arc::new(Host::new(false));
                let round_trips = inner.link(address, host);
                let route = Route { rank: inner.rank, link, round_trips, number };
                assert_holds(inner, &route).await?;
                return Ok((route, subscription, attached, sent));
            }
            Ok((frame, _)) if frame.kind == wire::LAPSED => {
                inner.drop_all();
                inner.number.store(new_number(), Ordering::Relaxed);
                call::refusal(&link, &frame)
            }
            Ok((frame, _)) => call::refusal(&link, &frame),
            Err(error) => {
                links.discard(&link);
                call::lost(error)
            }
        };
        match (&last, &refused) {
            // What another daemon says of who has the authority is better than that one is not there.
            (Some(Lost::Moved(known, _)), Lost::Moved(addresses, _))
                if !known.is_empty() && addresses.is_empty() => {}
            _ => last = Some(refused),
        }
    }
    Err(last.unwrap_or_else(|| {
        let text = "no address of a metadata rank is known";
        Lost::Failed(nacre_object::StoreError::new(nacre_object::ErrorKind::Unavailable, text))
    }))
}

/// Says what the session holds; what it does not hold any more is given up.
async fn assert_holds(inner: &Inner, route: &Route) -> Result<(), Lost> {
    for state in inner.held() {
        let Some(grant) = state.grant(inner.rank) else { continue };
        match call::ask(route, &state.id, Call::Assert(grant)).await? {
            Reply::Granted { grant: now, .. } => state.asserted(route, grant, Some(now)),
            _ => state.asserted(route, grant, None),
        }
    }
    Ok(())
}

/// The reason why a binding is of no use any more.
enum Ending {
    /// The session ends; whom to tell, if anybody waits.
    Ended(Option<oneshot::Sender<()>>),
    Lapsed,
    Moved(Vec<String>),
}

/// Renews the lease and handles what the rank asks for, as long as the binding lasts.
async fn serve_session(
    inner: &Arc<Inner>,
    route: &Route,
    subscription: &mut Subscription<AttachRequest>,
    lease: &mut Lease,
    length: Duration,
    ended: &mut oneshot::Receiver<oneshot::Sender<()>>,
) -> Ending {
    let mut renew_at = clock::now() + lease.renew;
    loop {
        tokio::select! {
            event = subscription.next() => match event {
                Some(Ok(Event::Pushed(payload))) => {
                    if let Ok(revoked) = wire::get_revoked(&payload) {
                        match inner.state(&revoked.id) {
                            Some(state) => state.revoked(route, revoked.grant, revoked.quota),
                            None => return Ending::Moved(Vec::new()),
                        }
                    } else if let Ok(moving) = wire::get_moving(&payload) {
                        inner.expect(&moving);
                    }
                }
                // Bound anew, it is told again what it missed.
                Some(Ok(Event::Missed(_)) | Err(_)) | None => return Ending::Moved(Vec::new()),
            },
            () = inner.until_left(route.number) => return Ending::Moved(Vec::new()),
            acknowledge = &mut *ended => return Ending::Ended(acknowledge.ok()),
            () = lease.over() => return Ending::Lapsed,
            () = tokio::time::sleep(renew_at.saturating_sub(clock::now())) => {
                let sent = clock::now();
                if let Some(ending) = renew(inner, route, lease, RENEWED_MAX.min(length / 4)).await {
                    return ending;
                }
                lease.renewed(sent, length);
                renew_at = sent + lease.renew;
            }
        }
    }
}

/// Asks the rank, for some time, to renew the lease. Returns why the binding is over if it does not.
async fn renew(inner: &Inner, route: &Route, lease: &Lease, within: Duration) -> Option<Ending> {
    let asked = call::exchange(&route.link, BareRequest(wire::RENEW));
    let renewed = tokio::select! {
        renewed = tokio::time::timeout(within, asked) => renewed,
        () = lease.over() => return Some(Ending::Lapsed),
        // Calls wait for another binding meanwhile.
        () = inner.until_left(route.number) => return Some(Ending::Moved(Vec::new())),
    };
    match renewed {
        Ok(Ok(frame)) if frame.kind == wire::DONE => None,
        Ok(Ok(frame)) if frame.kind == wire::LAPSED => Some(Ending::Lapsed),
        Ok(Ok(frame)) => Some(match call::refusal(&route.link, &frame) {
            Lost::Moved(addresses, _) => Ending::Moved(addresses),
            Lost::Failed(_) => Ending::Moved(Vec::new()),
        }),
        Ok(Err(_)) | Err(_) => Some(Ending::Moved(Vec::new())),
    }
}

/// Gives back what the session holds, and ends it.
async fn farewell(inner: &Inner) {
    inner.over.store(true, Ordering::SeqCst);
    let Some(route) = inner.route.send_replace(None) else { return inner.drop_all() };
    for state in inner.held() {
        state.finish(&route);
    }
    // A rank that does not answer lets the lease lapse.
    let _ = tokio::time::timeout(END_MAX, call::exchange(&route.link, BareRequest(wire::END))).await;
}

#[cfg(test)]
mod tests {
    use nacre_object::testkit::MemoryStore;
    use nacre_object::{ObjectStore, Transaction, WriteOp};
    use nacre_rpc::client::LinkOptions;
    use tokio::net::TcpListener;

    use super::*;
    use crate::remote::{Session, SessionOptions};
    use crate::role::authority::{self, Authority};

    /// A time that no test waits for.
    const LONG: Duration = Duration::from_secs(3600);
    /// The time after which something that should happen counts as not happening.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Writes down which daemon has the authority of rank 0.
    async fn name(store: &MemoryStore, epoch: u64, address: &str) {
        let (name, addresses) = ("a daemon".to_owned(), vec![address.to_owned()]);
        let named = Authority { epoch, name, addresses, ..Authority::default() };
        let write = WriteOp::SetKey { key: "authority".parse().unwrap(), value: named.encode() };
        store.apply(&authority::object(0).unwrap(), Transaction::new().change(write)).await.unwrap();
    }

    /// Returns a session with rank 0 whose background has ended.
    async fn inner(store: &Arc<MemoryStore>) -> Arc<Inner> {
        let options = SessionOptions {
            store: store.clone(),
            rank: 0,
            addresses: Vec::new(),
            link: LinkOptions { connect_timeout: LONG, ..LinkOptions::default() },
            patience: LONG,
        };
        let session = Session::begin(options).unwrap();
        let inner = session.ranks.rank(0).unwrap();
        session.end().await;
        inner
    }

    /// Returns a daemon that says nothing, although connections to it are accepted, as if it were stopped; and its address.
    async fn silent() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (listener, address)
    }

    #[tokio::test]
    async fn a_daemon_that_says_nothing_is_waited_for_until_a_standby_has_taken_over() {
        let store = Arc::new(MemoryStore::new());
        let inner = inner(&store).await;
        let (listener, address) = silent().await;
        name(&store, 1, &address).await;
        let mut links = Links::default();
        let taken_over = async {
            // It is known by now which daemon the store names.
            let connection = listener.accept().await.unwrap();
            name(&store, 2, &address).await;
            connection
        };
        let bound = tokio::time::timeout(PATIENCE, async {
            tokio::join!(bind(&inner, &mut links, &[], None, LONG), taken_over).0
        });
        let refused = bound.await.expect("it waits for the daemon that says nothing").err();
        assert!(matches!(refused, Some(Lost::Moved(..))), "{refused:?}");
        assert!(links.0.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_daemon_that_is_named_for_the_first_time_has_taken_over_from_nobody() {
        let store = Arc::new(MemoryStore::new());
        let inner = inner(&store).await;
        name(&store, 1, "127.0.0.1:1").await;
        // The store did not answer when it was asked for the daemon that a request to be bound is sent to.
        let taken_over = tokio::time::timeout(PATIENCE, inner.until_taken_over(None)).await;
        assert!(taken_over.is_err(), "the daemon that is asked is taken for another one");
        // It answered that there is none.
        tokio::time::timeout(PATIENCE, inner.until_taken_over(Some(0))).await.unwrap();
    }

    #[tokio::test]
    async fn a_binding_that_calls_have_left_is_over_while_it_is_renewed() {
        let inner = inner(&Arc::new(MemoryStore::new())).await;
        let (listener, address) = silent().await;
        let link = || inner.link(address.parse().unwrap(), inner.host.clone());
        let route = Route { rank: 0, link: link(), round_trips: link(), number: 1 };
        let lease = Lease { until: None, renew: LONG };
        let left = async {
            // The renewal is under way.
            let connection = listener.accept().await.unwrap();
            inner.leave(1);
            connection
        };
        let renewed = tokio::time::timeout(PATIENCE, async {
            tokio::join!(renew(&inner, &route, &lease, LONG), left).0
        });
        let ending = renewed.await.expect("it waits for the daemon that says nothing");
        assert!(matches!(ending, Some(Ending::Moved(_))));
    }
}
