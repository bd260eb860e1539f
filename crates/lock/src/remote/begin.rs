//! The beginning of a session, and its own thread.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::Duration;

use nacre_object::{ErrorKind, StoreError};
use nacre_rpc::Address;
use nacre_rpc::client::{Host, Link, LinkOptions};
use tokio::runtime;
use tokio::sync::{Notify, oneshot};

use super::call::number;
use super::drive::{Core, Servers};
use super::share::{BackgroundWaker, Driver, Shared};
use super::{Inner, Session, State};
use crate::message::SessionId;
use crate::wire::ServerSlot;

/// The longest pause between attempts to reach a server: a lease may be short.
const BACKOFF_MAX: Duration = Duration::from_millis(250);

/// Begins a session and drives it until its last handle is gone. `ready` gets the first handle.
pub(super) async fn run(
    servers: Vec<Address>,
    mut options: LinkOptions,
    mut ready: oneshot::Sender<Result<Session, StoreError>>,
) {
    options.keeps_session = false;
    options.backoff_max = options.backoff_max.min(BACKOFF_MAX);
    let (options, host, kick) =
        (Arc::new(options), Arc::new(Host::new(false)), Arc::<BackgroundWaker>::default());
    let begun = tokio::select! {
        begun = begin(&servers, &options, &host, &kick) => begun,
        // Nobody waits for the session any more.
        () = ready.closed() => return,
    };
    let (session, slot, first) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            // The caller may be gone.
            let _ = ready.send(Err(error));
            return;
        }
    };
    let state = Arc::new(State {
        session,
        lost: OnceLock::new(),
        ends_ns: AtomicU64::new(u64::MAX),
        ended: AtomicBool::new(false),
        changed: Notify::new(),
    });
    let shared = Shared::new(state.clone(), kick.clone(), runtime::Handle::current(), |shared| {
        Core::new(shared.clone(), state.clone(), Servers { slot, servers, options, host, kick }, first)
    });
    let (over, ended) = tokio::sync::watch::channel(false);
    let inner = Inner { shared: shared.clone(), tickets: AtomicU64::new(0), ended };
    if ready.send(Ok(Session { inner: Arc::new(inner) })).is_err() {
        return;
    }
    let driven = Driven(shared.clone());
    shared.keep().await;
    state.end();
    shared.with(Driver::Background, Core::finish);
    drop(driven);
    // Those who wait may be gone.
    let _ = over.send(true);
}

/// Sees to it that nobody waits for a session that is no longer driven, also if its thread panics.
struct Driven(Arc<Shared>);

impl Drop for Driven {
    fn drop(&mut self) {
        self.0.state.end();
        self.0.abandon();
    }
}

/// Asks the first server for a number.
async fn begin(
    servers: &[Address],
    options: &Arc<LinkOptions>,
    host: &Arc<Host>,
    kick: &Arc<BackgroundWaker>,
) -> Result<(SessionId, ServerSlot, Arc<Link>), StoreError> {
    let Some(first) = servers.first() else {
        return Err(StoreError::new(ErrorKind::Invalid, "no lock server is named"));
    };
    let keeper = Waker::from(kick.clone());
    let link = Link::shared(first.clone(), (), options.clone(), host.clone(), keeper);
    let (session, slot) = tokio::select! {
        numbered = number(link.clone()) => numbered?,
        () = attend(&link, kick) => unreachable!("a link is attended to without end"),
    };
    if slot.server != 0 || slot.servers as usize != servers.len() {
        let text = format!(
            "{first} is lock server {} of {}, and not the first of {}",
            slot.server + 1,
            slot.servers,
            servers.len()
        );
        return Err(StoreError::new(ErrorKind::Invalid, text));
    }
    Ok((SessionId(session), slot, link))
}

/// The pause before a link that cannot be watched, for want of descriptors, is looked at again.
const UNWATCHED: Duration = Duration::from_millis(10);

/// Sends over a link and receives from it, and gives a silent server up, until this is dropped.
async fn attend(link: &Link, kick: &BackgroundWaker) {
    loop {
        let watch = match link.watch() {
            Ok(Some(watch)) => watch,
            Ok(None) => {
                kick.0.notified().await;
                continue;
            }
            Err(_) => {
                tokio::time::sleep(UNWATCHED).await;
                link.flush();
                link.receive();
                continue;
            }
        };
        while link.flush().connection == watch.connection() {
            let Some(look_at) = link.watch_silence() else { break };
            tokio::select! {
                () = kick.0.notified() => {}
                () = tokio::time::sleep_until(look_at.into()) => {}
                Ok(()) = poll_fn(|context| watch.poll_readable(context)) => drop(link.receive()),
            }
        }
    }
}
