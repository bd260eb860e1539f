//! The part of a session that its threads share, and who drives it.
//!
//! Whoever has something to do does it: a program's thread that locks or unlocks encodes its calls under the session's lock,
//! and a task in the program's own runtime, the *attendant*, sends them, receives the replies, feeds the state machine
//! and wakes those who wait. So a lock takes no switch between threads of the program. The session's own thread, the
//! *background*, does the same for programs without a runtime, and whatever is due though no thread of the program runs:
//! renewals, the ends of waits, assertions after a restart.
//!
//! Invariants:
//! - The state machine is changed only by [`Shared::with`], under one lock, and each change ends with
//!   [`Core::settle`](super::drive::Core::settle): the lease's end is published before anybody is told of a lock, and whoever
//!   was granted a lock counts as told before its time is looked at.
//! - Those who wait are told after the lock is given back, so nothing of theirs runs under it. A grant whose waiter is gone by
//!   then is released.
//! - Calls join a link's outbox under the session's lock, so they are sent in the order in which the state machine made them.
//!   Sockets are used without it, except that the first calls of a large operation are sent while the others are encoded.
//! - The background does not depend on the program: it sleeps without watching the sockets (*rests*) only while attendants
//!   are at work, and at most [`REST`] at a time. When it wakes up it sends and receives all that there is. Before it sleeps
//!   for longer it watches the sockets and announces itself (`asleep`); whoever encodes calls then wakes it. So a program that
//!   stops polling delays what is its own by twice [`REST`] at most, and never a renewal.

use std::collections::HashSet;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake};
use std::time::{Duration, Instant};

use futures::task::AtomicWaker;
use nacre_rpc::client::{Link, Watch};
use nacre_rpc::poll::{Poller, Tap};
use parking_lot::Mutex;
use tokio::runtime;
use tokio::sync::Notify;

use super::State;
use super::drive::{Core, Notice};

/// The longest time for which the background leaves the sockets to attendants before it looks itself.
const REST: Duration = Duration::from_millis(10);
/// The time for which the background watches the sockets after a caller without a runtime needed it.
const WATCH: Duration = Duration::from_millis(100);
/// The number of rounds of an attendant before other tasks of the runtime get their turn.
const ROUNDS_MAX: usize = 8;

/// The thread that drives the session at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Driver {
    /// A thread of the program, which leaves it to others to send.
    Caller,
    /// The attendant of a server, which sends what is for it.
    Attendant(u32),
    /// The session's own thread, which sends everything.
    Background,
}

/// Wakes the background.
#[derive(Default)]
pub(super) struct BackgroundWaker(pub Notify);

impl Wake for BackgroundWaker {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

pub(super) struct Shared {
    pub state: Arc<State>,
    core: Mutex<Core>,
    pub kick: Arc<BackgroundWaker>,
    /// Counts what attendants are told and do.
    activity: AtomicU64,
    /// True while the background sleeps until something happens.
    asleep: AtomicBool,
    /// Set when a caller without an attendant relies on the background.
    needed: AtomicBool,
    /// Counts what the background has looked at.
    looks: AtomicU64,
    /// True if calls wait for room in a link.
    crowded: AtomicBool,
    /// True if replies are waited for.
    awaits: AtomicBool,
    /// The background's runtime.
    runtime: runtime::Handle,
    /// The runtimes that watch no sockets, because they were built without.
    blind: Mutex<HashSet<runtime::Id>>,
}

impl Shared {
    pub(super) fn new(
        state: Arc<State>,
        kick: Arc<BackgroundWaker>,
        runtime: runtime::Handle,
        core: impl FnOnce(&Weak<Shared>) -> Core,
    ) -> Arc<Shared> {
        Arc::new_cyclic(|shared| Shared {
            state,
            core: Mutex::new(core(shared)),
            kick,
            activity: AtomicU64::new(0),
            asleep: AtomicBool::new(false),
            needed: AtomicBool::new(false),
            looks: AtomicU64::new(0),
            crowded: AtomicBool::new(false),
            awaits: AtomicBool::new(false),
            runtime,
            blind: Mutex::default(),
        })
    }

    /// Runs a step of the session, and sends and reports what results from it.
    pub(super) fn with<T>(&self, driver: Driver, act: impl FnOnce(&mut Core) -> T) -> T {
        let mut core = self.core.lock();
        let result = act(&mut core);
        core.settle();
        self.send(&mut core, driver);
        self.crowded.store(core.waiting > 0, Ordering::Relaxed);
        self.awaits.store(core.awaits(), Ordering::Relaxed);
        let notices = std::mem::take(&mut core.notices);
        drop(core);
        if !notices.is_empty() {
            self.notify(notices, driver);
        }
        result
    }

    fn notify(&self, notices: Vec<Notice>, driver: Driver) {
        let mut unreceived = Vec::new();
        for notice in notices {
            match notice {
                Notice::Had(id, reply) => {
                    // The caller may be gone: then nobody holds it.
                    if reply.send(Ok(())).is_err() {
                        unreceived.push(id);
                    }
                }
                Notice::Failed(reply, error) => _ = reply.send(Err(error)),
                Notice::Released(released) => _ = released.send(()),
            }
        }
        if !unreceived.is_empty() {
            self.with(driver, |core| unreceived.into_iter().for_each(|id| core.release(id)));
        }
    }

    /// Sees to it that somebody sends what was encoded.
    fn send(&self, core: &mut Core, driver: Driver) {
        if driver != Driver::Background && (core.is_due_earlier() || core.is_closing()) {
            self.kick();
        }
        if core.touched.is_empty() {
            return;
        }
        for server in std::mem::take(&mut core.touched) {
            if let Some(line) = core.lines.get_mut(&server) {
                line.encoded_bytes = 0;
            }
            if driver == Driver::Background || driver == Driver::Attendant(server) {
                continue;
            }
            if self.attend(core, server) {
                self.activity.fetch_add(1, Ordering::SeqCst);
                if self.asleep.load(Ordering::SeqCst) {
                    self.kick();
                }
            } else {
                self.need();
            }
        }
    }

    /// Wakes the attendant of a server, which is made if there is none. Returns false if there can be none for the calling
    /// thread.
    fn attend(&self, core: &mut Core, server: u32) -> bool {
        let Ok(handle) = runtime::Handle::try_current() else { return false };
        let Some(line) = core.lines.get_mut(&server) else { return false };
        let looks = self.looks.load(Ordering::Relaxed);
        if let Some(attendant) = line.attendant.as_ref().filter(|attendant| attendant.is_there()) {
            if attendant.runtime == handle.id() {
                attendant.used.store(looks, Ordering::Relaxed);
                attendant.call();
                return true;
            }
            // One thread after the other is to be woken, not all for each reply.
            if attendant.used.load(Ordering::Relaxed) + 2 > looks {
                return false;
            }
            attendant.end();
        }
        // The session's own runtime is the background's.
        if self.runtime.id() == handle.id() || self.blind.lock().contains(&handle.id()) {
            return false;
        }
        let Some(shared) = core.shared.upgrade().filter(|_| line.link.connection().is_some()) else {
            return false;
        };
        let attendant = Arc::new(Attendant {
            runtime: handle.id(),
            waker: AtomicWaker::new(),
            called: AtomicBool::new(true),
            over: AtomicBool::new(false),
            used: AtomicU64::new(looks),
        });
        line.attendant = Some(attendant.clone());
        let leaving = Leaving(attendant, shared.clone());
        let post = AttendantSlot { shared, server, link: line.link.clone(), leaving };
        handle.spawn(post.attend());
        true
    }

    /// Has the background watch the sockets for some time.
    pub(super) fn need(&self) {
        self.needed.store(true, Ordering::Release);
        self.kick();
    }

    /// Wakes the background.
    pub(super) fn kick(&self) {
        self.kick.0.notify_one();
    }
}

/// Returns when one of some sockets can be read.
fn ready(context: &mut Context<'_>, watched: &[(u32, Watch)]) -> Poll<()> {
    let mut any = Poll::Pending;
    for (_, watch) in watched {
        if let Poll::Ready(Ok(())) = watch.poll_readable(context) {
            any = Poll::Ready(());
        }
    }
    any
}

/// The task in a program's runtime that sends to a server and receives from it.
pub(super) struct Attendant {
    runtime: runtime::Id,
    waker: AtomicWaker,
    /// Set when there is something to send.
    called: AtomicBool,
    over: AtomicBool,
    /// The looks of the background when it was last called.
    used: AtomicU64,
}

impl Attendant {
    fn is_there(&self) -> bool {
        !self.over.load(Ordering::Acquire)
    }

    fn call(&self) {
        self.called.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Ends it. Others see to its server from now on.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// Takes note that an attendant is gone, also when its runtime ends.
struct Leaving(Arc<Attendant>, Arc<Shared>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Release);
        // Others may rely on it.
        self.1.need();
    }
}

/// The place of an attendant.
struct AttendantSlot {
    shared: Arc<Shared>,
    server: u32,
    link: Arc<Link>,
    /// Dropped also if the runtime ends before the task begins.
    leaving: Leaving,
}

impl AttendantSlot {
    async fn attend(self) {
        let AttendantSlot { shared, server, link, leaving } = self;
        let attendant = &leaving.0;
        // Without it, the background does all. A runtime that was built to watch nothing panics.
        let watch = match catch_unwind(AssertUnwindSafe(|| link.watch())) {
            Ok(Ok(Some(watch))) => watch,
            Ok(_) => return,
            Err(_) => {
                shared.blind.lock().insert(attendant.runtime);
                return;
            }
        };
        let connection = watch.connection();
        let mut tap = Poller::tap_here();
        let mut blocked = false;
        poll_fn(|context| {
            attendant.waker.register(context.waker());
            for _ in 0..ROUNDS_MAX {
                if attendant.over.load(Ordering::Acquire) {
                    return Poll::Ready(());
                }
                let mut sends = attendant.called.swap(false, Ordering::AcqRel);
                if blocked && let Poll::Ready(ready) = watch.poll_writable(context) {
                    if ready.is_err() {
                        return Poll::Ready(());
                    }
                    sends = true;
                }
                let mut receives = false;
                if let Poll::Ready(ready) = watch.poll_readable(context) {
                    if ready.is_err() {
                        return Poll::Ready(());
                    }
                    let flow = link.receive();
                    shared.activity.fetch_add(1, Ordering::SeqCst);
                    shared.with(Driver::Attendant(server), |core| core.take_in(server));
                    if flow.connection != connection {
                        return Poll::Ready(());
                    }
                    receives = true;
                }
                if sends || receives {
                    if let Some(tap) = &tap {
                        if receives { tap.came() } else { tap.sent() }
                    }
                    let flow = link.flush();
                    if flow.connection != connection {
                        shared.with(Driver::Attendant(server), |core| core.take_in(server));
                        return Poll::Ready(());
                    }
                    // Where there was no room for a call there may be some now.
                    shared.resume(server);
                    blocked = flow.blocked;
                } else {
                    if let Some(tap) = &mut tap {
                        tap.set_awaits(shared.awaits.load(Ordering::Relaxed));
                    }
                    return Poll::Pending;
                }
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

impl Shared {
    /// Drops those who wait.
    pub(super) fn abandon(&self) {
        // Whoever is woken may run at once, and use the session.
        let abandoned = self.core.lock().abandon();
        drop(abandoned);
    }

    /// Drives the session until it has ended.
    pub(super) async fn keep(self: &Arc<Self>) {
        let mut watched: Vec<(u32, Watch)> = Vec::new();
        let mut watch_until = Instant::now();
        let mut seen = 0;
        let mut tap = Poller::tap_here();
        loop {
            let activity = self.activity.load(Ordering::SeqCst);
            let links = self.core.lock().links();
            let mut blocked = false;
            let mut silence: Option<Instant> = None;
            for (_, link) in &links {
                link.receive();
                silence = silence.into_iter().chain(link.watch_silence()).min();
            }
            let next = self.with(Driver::Background, Core::look);
            let Some(next) = next else { return };
            for (server, link) in &links {
                let flow = link.flush();
                blocked |= flow.blocked;
                if flow.connection == 0 {
                    // Whether it broke just now, the session has to know.
                    self.with(Driver::Background, |core| core.take_in(*server));
                }
            }
            if self.crowded.load(Ordering::Relaxed) {
                self.with(Driver::Background, |core| {
                    links.iter().for_each(|(server, _)| core.resume(*server))
                });
                blocked = true;
            }
            self.looks.fetch_add(1, Ordering::Relaxed);
            let now = Instant::now();
            if self.needed.swap(false, Ordering::AcqRel) {
                watch_until = now + WATCH;
            }
            let rests = std::mem::replace(&mut seen, activity) != activity && now >= watch_until;
            let mut until = next.until.into_iter().chain(silence).min();
            match rests {
                true => watched.clear(),
                false => self.watch(&links, &mut watched),
            }
            let sleeps = !rests && !blocked && now >= watch_until;
            if sleeps {
                self.asleep.store(true, Ordering::SeqCst);
                if self.activity.load(Ordering::SeqCst) != activity {
                    self.asleep.store(false, Ordering::SeqCst);
                    continue;
                }
            } else {
                until = Some(until.map_or(now + REST, |until| until.min(now + REST)));
            }
            if let Some(tap) = &mut tap {
                // Attendants poll themselves.
                tap.set_awaits(!rests && self.awaits.load(Ordering::Relaxed));
            }
            let sleep = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.kick.0.notified() => tap.iter().for_each(Tap::sent),
                () = sleep => {}
                () = poll_fn(|context| ready(context, &watched)) => tap.iter().for_each(Tap::came),
            }
            self.asleep.store(false, Ordering::SeqCst);
        }
    }

    /// Watches the sockets of all connections that there are.
    fn watch(&self, links: &[(u32, Arc<Link>)], watched: &mut Vec<(u32, Watch)>) {
        let mut known = std::mem::take(watched);
        for (server, link) in links {
            let Some(connection) = link.connection() else { continue };
            let same = |(at, watch): &(u32, Watch)| at == server && watch.connection() == connection;
            match known.iter().position(same) {
                Some(index) => watched.push(known.swap_remove(index)),
                // A socket that cannot be watched is looked at when something else happens.
                None => watched.extend(link.watch().ok().flatten().map(|watch| (*server, watch))),
            }
        }
    }

    /// Encodes calls for which there was no room.
    fn resume(&self, server: u32) {
        if self.crowded.load(Ordering::Relaxed) {
            self.with(Driver::Caller, |core| core.resume(server));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;
    use std::sync::atomic::AtomicUsize;

    use nacre_rpc::client::{Host, LinkOptions};
    use tokio::sync::oneshot;

    use super::super::drive::{Order, Servers};
    use super::*;
    use crate::client::{Method, Protocol};
    use crate::message::SessionId;
    use crate::table::Mode;
    use crate::wire::{ServerSlot, described};
    use crate::{Description, Pattern};

    /// Takes the session's lock when it is woken.
    struct Uses(Arc<Shared>, AtomicUsize);

    impl Wake for Uses {
        fn wake(self: Arc<Self>) {
            let free = self.0.core.try_lock().is_some();
            self.1.fetch_add(if free { 1 } else { 1000 }, Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn whoever_waits_when_the_session_is_given_up_is_woken_without_its_lock() {
        let state = Arc::new(State {
            session: SessionId(1),
            lost: OnceLock::new(),
            ends_ns: AtomicU64::new(u64::MAX),
            ended: AtomicBool::new(false),
            changed: Notify::new(),
        });
        let (options, host) = (Arc::new(LinkOptions::default()), Arc::new(Host::new(false)));
        // Nobody listens there, and nobody is asked.
        let address: nacre_rpc::Address = "127.0.0.1:1".parse().unwrap();
        let kick = Arc::<BackgroundWaker>::default();
        let slot = ServerSlot { server: 0, servers: 1, stripe_bytes: 1 << 16 };
        let link = Link::shared(address.clone(), (), options.clone(), host.clone(), kick.clone().into());
        let shared = Shared::new(state.clone(), kick.clone(), runtime::Handle::current(), |shared| {
            let reached = Servers { slot, servers: vec![address], options, host, kick };
            Core::new(shared.clone(), state, reached, link)
        });
        let description = Description::contiguous(0, 10);
        let pattern = Pattern::new(&description).unwrap();
        let (reply, mut answer) = oneshot::channel();
        let order = Order {
            ticket: 1,
            file: "f".into(),
            description: described(&pattern, None).unwrap(),
            pattern,
            mode: Mode::Exclusive,
            method: Method::default(),
            protocol: Protocol::default(),
            wait: None,
            deadline: None,
            reply,
        };
        shared.with(Driver::Caller, |core| core.lock(order));
        let uses = Arc::new(Uses(shared.clone(), AtomicUsize::new(0)));
        let waker = uses.clone().into();
        let mut context = Context::from_waker(&waker);
        let mut answer = std::pin::pin!(&mut answer);
        assert!(answer.as_mut().poll(&mut context).is_pending());
        shared.abandon();
        assert_eq!(uses.1.load(Ordering::SeqCst), 1);
        assert!(answer.as_mut().poll(&mut context).is_ready());
    }
}
