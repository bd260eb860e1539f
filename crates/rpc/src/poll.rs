//! Polling before sleeping.
//!
//! A thread that sleeps until something arrives is woken by an interrupt to its processor. Where that processor has gone idle, as most of
//! all on virtual machines, this takes several times as long as a short request does otherwise. So a thread that has just had something to
//! do looks for more without sleeping for a while, and gives its processor to whoever else wants it between two looks.
//!
//! - [`Polling`] decides when to look again and when to sleep. It is a pure state machine that is told the time.
//! - [`Poller`] does so for a runtime of one thread: a task that lets the runtime look at all its sockets. Connections tell it,
//!   each by a [`Tap`] of its own, what came and whether they wait for more.
//!
//! Polling ends by itself where it does harm or no good: a thread whose processor is given back late competes with others
//! for it, and one that waits in vain again and again only burns it. Then nothing is polled for a while, the longer the more
//! often that happens. A thread that has nothing to do sleeps.

use std::collections::HashMap;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::runtime::{self, Handle, RuntimeFlavor};

/// The variable of the environment that sets for how long is polled, as in `200us`; `0us` is not at all.
pub const VARIABLE: &str = "NACRE_POLL";
/// The time for which is polled where nothing else is said.
pub const TIME_DEFAULT: Duration = Duration::from_micros(200);
/// The longest time for which may be polled.
pub const TIME_MAX: Duration = Duration::from_millis(10);

/// The first pause in polling, and the longest one: each is twice as long as the one before if it follows at once.
const PAUSE_MIN: Duration = Duration::from_millis(25);
const PAUSE_MAX: Duration = Duration::from_millis(1600);
/// The number of waits in a row that were polled in vain after which polling pauses.
const MISSED_MAX: u32 = 8;
/// The time for which others may have the processor before the thread sleeps rather than looks again: a processor that does
/// not go idle wakes it soon enough, and gets more done at a time. It is that of a small request.
const SHARED_MAX: Duration = Duration::from_micros(25);
/// The time within which a second late return of the processor, or one after a pause, shows that others go on to want it.
const LATE_WITHIN: Duration = Duration::from_millis(20);

/// Parses the time for which is polled before sleeping.
///
/// # Errors
/// A sentence, if the text is no time or one above [`TIME_MAX`].
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let time = nacre_quantity::parse_time(text)?;
    if time > TIME_MAX {
        return Err(format!("\"{text}\" is too long to poll; it is {} ms at most", TIME_MAX.as_millis()));
    }
    Ok(time)
}

/// Returns the time for which is polled: that of the environment, or the default.
pub fn time() -> Duration {
    static TIME: LazyLock<Duration> = LazyLock::new(|| match std::env::var(VARIABLE) {
        Err(_) => TIME_DEFAULT,
        Ok(text) => parse_time(&text).unwrap_or_else(|why| {
            tracing::warn!("{VARIABLE}: {why}; polling for {} µs", TIME_DEFAULT.as_micros());
            TIME_DEFAULT
        }),
    });
    *TIME
}

/// The next step of a thread that has nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Gives the processor to others, and looks again.
    Look,
    /// Sleeps until something arrives.
    Sleep,
}

/// Decides whether a thread that waits looks again or sleeps. Times count from any beginning.
#[derive(Debug)]
pub struct Polling {
    time: Duration,
    /// The time at which the current wait began, while it is polled.
    since: Option<Duration>,
    /// Set when others had the processor for long enough.
    shared: bool,
    /// The number of waits in a row that were polled in vain.
    missed: u32,
    /// The time at which the processor was last given back late.
    late: Option<Duration>,
    /// The end of the last pause, and its length.
    paused_until: Duration,
    pause: Duration,
}

impl Polling {
    /// Creates the state of a thread that polls for `time` before it sleeps; zero to sleep at once.
    pub fn new(time: Duration) -> Polling {
        Polling {
            time,
            since: None,
            shared: false,
            missed: 0,
            late: None,
            paused_until: Duration::ZERO,
            pause: PAUSE_MIN,
        }
    }

    /// Notes that something came: the wait, if it was polled, was so to some purpose.
    pub fn came(&mut self) {
        if self.since.is_some() {
            self.missed = 0;
        }
        self.stop();
    }

    /// Notes that another wait begins, or that none goes on.
    pub fn stop(&mut self) {
        (self.since, self.shared) = (None, false);
    }

    /// Returns what to do where there is nothing.
    pub fn step(&mut self, now: Duration) -> Step {
        if self.time.is_zero() || now < self.paused_until || self.shared {
            self.stop();
            return Step::Sleep;
        }
        let since = *self.since.get_or_insert(now);
        if now.saturating_sub(since) < self.time {
            return Step::Look;
        }
        self.stop();
        self.missed += 1;
        if self.missed >= MISSED_MAX {
            // The next one in vain is enough for another pause.
            self.missed = MISSED_MAX - 1;
            self.pause(now);
        }
        Step::Sleep
    }

    /// Notes that the processor was given to others, and came back at `now` after so long.
    pub fn gave_way(&mut self, took: Duration, now: Duration) {
        self.shared = took > SHARED_MAX;
        if took <= self.time.max(SHARED_MAX) {
            return;
        }
        let before = self.late.replace(now).map(|late| late.max(self.paused_until));
        if before.is_some_and(|before| now.saturating_sub(before) < LATE_WITHIN) {
            self.pause(now);
        }
    }

    fn pause(&mut self, now: Duration) {
        let at_once = now.saturating_sub(self.paused_until) < LATE_WITHIN && !self.paused_until.is_zero();
        self.pause = if at_once { (self.pause * 2).min(PAUSE_MAX) } else { PAUSE_MIN };
        self.paused_until = now + self.pause;
    }
}

/// The polling of a runtime of one thread.
#[derive(Clone, Debug, Default)]
pub struct Poller {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Counts what came, and what was sent.
    came: AtomicU64,
    sent: AtomicU64,
    /// The number of taps, and of those that wait for something.
    taps: AtomicUsize,
    awaiting: AtomicUsize,
    /// True while the task sleeps.
    asleep: AtomicBool,
    waker: AtomicWaker,
}

/// The pollers of clients, by their runtimes.
static POLLERS: LazyLock<Mutex<HashMap<runtime::Id, Poller>>> = LazyLock::new(Mutex::default);

impl Poller {
    /// Starts to poll in the caller's runtime, which has one thread, for as long as it runs.
    ///
    /// # Panics
    ///
    /// If the caller has no runtime.
    pub fn run(&self, time: Duration) {
        if !time.is_zero() {
            tokio::spawn(Task::new(&self.shared, time, None));
        }
    }

    /// Returns the number of taps, and how often something came.
    pub(crate) fn load(&self) -> (usize, u64) {
        (self.shared.taps.load(Ordering::Relaxed), self.shared.came.load(Ordering::Relaxed))
    }

    /// Returns a tap for a connection that is driven in the caller's runtime, which polls from now on until its last tap is
    /// dropped. `None` if there is no runtime, or one of several threads: there the thread that looks at the sockets need not
    /// be the one that polls.
    pub fn tap_here() -> Option<Tap> {
        let (time, handle) = (time(), Handle::try_current().ok()?);
        if time.is_zero() || handle.runtime_flavor() != RuntimeFlavor::CurrentThread {
            return None;
        }
        let id = handle.id();
        let mut pollers = POLLERS.lock();
        if let Some(poller) = pollers.get(&id) {
            return Some(poller.tap());
        }
        let poller = Poller::default();
        let tap = poller.tap();
        pollers.insert(id, poller.clone());
        // A runtime that ends drops the task at once, which takes the poller out again.
        drop(pollers);
        handle.spawn(Task::new(&poller.shared, time, Some(id)));
        Some(tap)
    }

    /// Returns a tap, which waits for nothing yet.
    pub fn tap(&self) -> Tap {
        self.shared.taps.fetch_add(1, Ordering::SeqCst);
        Tap { shared: self.shared.clone(), awaits: false }
    }
}

/// A connection's part in the polling of its thread.
#[derive(Debug)]
pub struct Tap {
    shared: Arc<Shared>,
    awaits: bool,
}

impl Tap {
    /// Notes that something came.
    pub fn came(&self) {
        self.shared.came.fetch_add(1, Ordering::SeqCst);
        self.shared.wake();
    }

    /// Notes that something was sent, which begins another wait.
    pub fn sent(&self) {
        self.shared.sent.fetch_add(1, Ordering::SeqCst);
        self.shared.wake();
    }

    /// Notes whether the connection waits for something.
    pub fn set_awaits(&mut self, awaits: bool) {
        match (std::mem::replace(&mut self.awaits, awaits), awaits) {
            (false, true) => {
                self.shared.awaiting.fetch_add(1, Ordering::SeqCst);
                self.shared.wake();
            }
            (true, false) => _ = self.shared.awaiting.fetch_sub(1, Ordering::SeqCst),
            _ => {}
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.set_awaits(false);
        if self.shared.taps.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.shared.wake();
        }
    }
}

impl Shared {
    /// Wakes the task if it sleeps.
    fn wake(&self) {
        if self.asleep.load(Ordering::SeqCst) {
            self.waker.wake();
        }
    }
}

/// The task of a poller. It has nothing to do itself, but while it is about to run, its runtime looks at the sockets and does
/// not sleep.
struct Task {
    shared: Arc<Shared>,
    polling: Polling,
    epoch: Instant,
    /// The counts that were seen last.
    came: u64,
    sent: u64,
    /// The runtime, if the task ends with the last tap.
    client: Option<runtime::Id>,
}

impl Task {
    fn new(shared: &Arc<Shared>, time: Duration, client: Option<runtime::Id>) -> Task {
        let (polling, epoch) = (Polling::new(time), Instant::now());
        Task { shared: shared.clone(), polling, epoch, came: 0, sent: 0, client }
    }

    /// Handles what has happened since the last look. Returns whether anything did.
    fn look(&mut self) -> bool {
        let came = self.shared.came.load(Ordering::SeqCst);
        let sent = self.shared.sent.load(Ordering::SeqCst);
        let (comes, sends) = (came != self.came, sent != self.sent);
        (self.came, self.sent) = (came, sent);
        if comes {
            self.polling.came();
        } else if sends {
            self.polling.stop();
        }
        comes || sends
    }

    /// Has the task run again when something happens.
    fn sleep(&mut self, context: &Context<'_>) -> Poll<()> {
        if let Some(id) = self.client {
            let mut pollers = POLLERS.lock();
            // Taps are made under this lock.
            if self.shared.taps.load(Ordering::SeqCst) == 0 {
                pollers.remove(&id);
                self.client = None;
                return Poll::Ready(());
            }
        }
        self.shared.waker.register(context.waker());
        self.shared.asleep.store(true, Ordering::SeqCst);
        if self.look() {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl Future for Task {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let task = &mut *self;
        task.shared.asleep.store(false, Ordering::SeqCst);
        let happened = task.look();
        if task.shared.awaiting.load(Ordering::SeqCst) == 0 {
            task.polling.stop();
            return task.sleep(context);
        }
        let now = task.epoch.elapsed();
        if task.polling.step(now) == Step::Sleep {
            return task.sleep(context);
        }
        if !happened {
            std::thread::yield_now();
            let then = task.epoch.elapsed();
            task.polling.gave_way(then.saturating_sub(now), then);
        }
        // The runtime runs whatever else is ready, looks at its sockets, and comes back to this task.
        let _ = pin!(tokio::task::yield_now()).poll(context);
        Poll::Pending
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        // The numbers of runtimes that have ended are used again.
        if let Some(id) = self.client {
            POLLERS.lock().remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_micros(200);

    fn us(time: u64) -> Duration {
        Duration::from_micros(time)
    }

    /// A thread with a clock of its own.
    struct Thread {
        polling: Polling,
        now: Duration,
    }

    impl Thread {
        fn new(time: Duration) -> Thread {
            Thread { polling: Polling::new(time), now: us(5_000_000) }
        }

        /// Waits for something that comes after so long; returns for how long was polled, and whether it was had without
        /// sleeping.
        fn wait(&mut self, comes_after: Duration, gives_way: Duration) -> (Duration, bool) {
            let began = self.now;
            while self.polling.step(self.now) == Step::Look {
                self.now += gives_way;
                self.polling.gave_way(gives_way, self.now);
                if self.now >= began + comes_after {
                    self.polling.came();
                    return (self.now - began, true);
                }
            }
            let polled = self.now - began;
            self.now = self.now.max(began + comes_after);
            self.polling.came();
            (polled, false)
        }

        fn is_paused(&mut self) -> bool {
            let paused = self.polling.step(self.now) == Step::Sleep;
            self.polling.stop();
            paused
        }

        /// Passes the time until the pause is over, and returns it.
        fn pause(&mut self) -> Duration {
            let began = self.now;
            while self.is_paused() {
                self.now += us(1000);
            }
            self.now - began
        }
    }

    #[test]
    fn what_comes_soon_is_had_without_sleeping() {
        let mut thread = Thread::new(TIME);
        for _ in 0..1000 {
            assert_eq!(thread.wait(us(50), us(1)), (us(50), true));
        }
        assert_eq!(thread.wait(us(5000), us(1)), (TIME, false));
        assert_eq!(thread.wait(us(50), us(1)), (us(50), true));
    }

    #[test]
    fn a_time_of_zero_is_not_polled() {
        let mut thread = Thread::new(Duration::ZERO);
        assert_eq!(thread.wait(us(1), us(1)), (us(0), false));
    }

    #[test]
    fn waits_in_vain_are_paid_for_rarely() {
        let mut thread = Thread::new(TIME);
        let began = thread.now;
        let mut polled = Duration::ZERO;
        // A request each millisecond, for a minute.
        for _ in 0..60_000 {
            polled += thread.wait(us(1000), us(1)).0;
        }
        assert!(polled.as_secs_f64() / (thread.now - began).as_secs_f64() < 0.001, "{polled:?}");
    }

    #[test]
    fn a_wait_that_is_rewarded_makes_good_for_those_that_are_not() {
        let mut thread = Thread::new(TIME);
        for _ in 0..1000 {
            for _ in 1..MISSED_MAX {
                assert_eq!(thread.wait(us(1000), us(1)), (TIME, false));
            }
            assert_eq!(thread.wait(us(50), us(1)), (us(50), true));
        }
    }

    #[test]
    fn a_thread_that_others_compete_with_pauses_for_longer_and_longer() {
        let mut thread = Thread::new(TIME);
        let (late, mut pauses) = (us(3000), Vec::new());
        // What it waits for is always there when the processor comes back.
        for _ in 0..2 {
            thread.wait(us(50), late);
        }
        for _ in 0..8 {
            pauses.push(thread.pause());
            thread.wait(us(50), late);
        }
        assert_eq!(pauses, [25, 50, 100, 200, 400, 800, 1600, 1600].map(Duration::from_millis));
        // Once they are gone it goes on, and a pause that comes much later is a short one.
        thread.pause();
        for _ in 0..100_000 {
            assert!(thread.wait(us(50), us(1)).1);
        }
        thread.wait(us(50), late);
        thread.wait(us(50), late);
        assert_eq!(thread.pause(), PAUSE_MIN);
    }

    #[test]
    fn one_late_return_in_a_while_is_an_accident() {
        let mut thread = Thread::new(TIME);
        for _ in 0..100 {
            assert!(thread.wait(us(50), us(3000)).1);
            assert!(!thread.is_paused());
            thread.now += LATE_WITHIN;
        }
    }

    #[test]
    fn a_thread_whose_processor_is_shared_sleeps_and_does_not_pause() {
        let mut thread = Thread::new(TIME);
        for _ in 0..1000 {
            assert_eq!(thread.wait(us(150), us(60)), (us(60), false));
            assert_eq!(thread.wait(us(50), us(60)), (us(60), true));
            assert_eq!(thread.wait(us(50), us(5)), (us(50), true));
        }
    }

    #[test]
    fn times_are_read_and_bounded() {
        assert_eq!(parse_time("200us"), Ok(TIME_DEFAULT));
        assert_eq!(parse_time("0us"), Ok(Duration::ZERO));
        assert_eq!(parse_time("10ms"), Ok(TIME_MAX));
        for wrong in ["", "200", "11ms", "1s", "-1us"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }

    /// Returns whether the task of the current runtime's poller sleeps, once it has had its turn.
    async fn sleeps(tap: &Tap) -> bool {
        tokio::task::yield_now().await;
        tap.shared.asleep.load(Ordering::SeqCst)
    }

    #[tokio::test]
    async fn a_runtime_polls_only_while_something_is_waited_for() {
        // For longer than any other program on the machine may hold up the test.
        let poller = Poller::default();
        poller.run(Duration::from_secs(3600));
        let (mut tap, mut other) = (poller.tap(), poller.tap());
        assert!(sleeps(&tap).await);
        tap.sent();
        assert!(sleeps(&tap).await, "nobody waits for anything");
        other.set_awaits(true);
        assert!(!sleeps(&tap).await);
        tap.came();
        assert!(!sleeps(&tap).await);
        tap.set_awaits(true);
        drop(other);
        assert!(!sleeps(&tap).await);
        tap.set_awaits(false);
        assert!(sleeps(&tap).await);
        assert!(sleeps(&tap).await);
    }

    #[tokio::test]
    async fn the_connections_of_a_runtime_share_a_poller_until_the_last_is_gone() {
        let (tap, other, id) =
            (Poller::tap_here().unwrap(), Poller::tap_here().unwrap(), Handle::current().id());
        assert!(Arc::ptr_eq(&tap.shared, &other.shared));
        assert!(sleeps(&tap).await);
        drop(tap);
        assert!(sleeps(&other).await);
        assert!(POLLERS.lock().contains_key(&id));
        drop(other);
        tokio::task::yield_now().await;
        assert!(!POLLERS.lock().contains_key(&id));
        // It begins again with the next connection.
        let tap = Poller::tap_here().unwrap();
        assert!(sleeps(&tap).await);
        assert!(POLLERS.lock().contains_key(&id));
    }

    #[test]
    fn a_poller_ends_with_its_runtime() {
        let runtime = runtime::Builder::new_current_thread().build().unwrap();
        let id = runtime.handle().id();
        let tap = runtime.block_on(async { Poller::tap_here() }).unwrap();
        assert!(POLLERS.lock().contains_key(&id));
        drop(runtime);
        assert!(!POLLERS.lock().contains_key(&id));
        tap.came();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_runtime_of_several_threads_does_not_poll() {
        assert!(Poller::tap_here().is_none());
    }
}
