//! Following one object: one watch of RADOS for all watchers of the object in this process.
//!
//! A follower knows a version, that which its watchers were told last. It gets *links*, each of which says that a change led
//! from one version to another, from all writers and in any order: those that continue what is known are told as changes. Where one is
//! missing, or the version that is read shows changes of which there is no link, they have a moment to arrive; then a gap
//! stands for them. A version that is one above the known one needs no link: nothing can be between them.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::CString;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nacre_object::watch::{Cause, Gap, Watch, WatchOptions};
use nacre_object::{ErrorKind, ObjectId, StoreError};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::message::{self, Link, MESSAGE_BYTES_MAX, Message};
use super::{Shared, closed};
use crate::error::{Attempt, errno, failed};
use crate::name::object_name;
use crate::native::HEADER;
use crate::read::header_of;
use crate::record::{Author, Header};
use crate::sys::{Acknowledger, ReadStep, Signal, Signals, WatchHandle, WriteStep, flag};

/// The time for which announcements may be late before a gap stands for them.
const LATENESS: Duration = Duration::from_millis(250);
/// The shortest time between two looks at the version of an object; the next constant is the longest.
const POLL_MIN: Duration = Duration::from_millis(1);
const POLL_MAX: Duration = Duration::from_secs(24 * 3600);
/// The time between two looks at the watch itself, and whether anybody still watches.
const TICK: Duration = Duration::from_secs(1);
/// The time without a confirmation by the OSD after which notifications may have been missed: librados asks for one every five
/// seconds.
const UNCONFIRMED: Duration = Duration::from_secs(20);
/// The number of events of RADOS that may wait for the follower.
const SIGNALS_MAX: usize = 64;
/// The number of links that may wait for others.
const LINKS_KEPT_MAX: usize = 4096;
/// The number of notifications that are remembered, because RADOS may repeat them.
const REMEMBERED_MAX: usize = 64;
/// The number of repetitions of one notification that may wait for its answer. RADOS repeats one now and then; others could do it
/// without an end.
const REPETITIONS_MAX: usize = 64;
/// The number of times that a mark is tried to be set on an object that others write meanwhile.
const ATTEMPTS_MAX: u32 = 8;

/// A watch that is to begin.
pub(super) struct Join {
    pub(super) options: WatchOptions,
    pub(super) reply: oneshot::Sender<Result<Watch, StoreError>>,
}

/// A failure, and whether trying again can help.
struct Failure {
    error: StoreError,
    is_final: bool,
}

impl Failure {
    fn new(code: i32, error: StoreError) -> Failure {
        let denied = matches!(-code, errno::EPERM | errno::EACCES | errno::EOPNOTSUPP);
        // A client that is blocklisted stays so; an object is not there because the pool is not; and what the OSD answered is
        // no header.
        let is_final = denied || matches!(-code, errno::ESHUTDOWN | errno::ENOENT) || code >= 0;
        Failure { error, is_final }
    }
}

/// The reason why the follower wakes.
enum Woken {
    Signal(Signal),
    Join(Option<Join>),
    Time,
}

/// Follows an object until nobody watches it, or until watching it fails for good.
pub(super) async fn follow(shared: Arc<Shared>, object: ObjectId, mut joins: mpsc::UnboundedReceiver<Join>) {
    let mut follower = Follower::new(shared, object);
    let ended = match follower.register().await {
        Ok(version) => {
            follower.versions.restart(version);
            follower.run(&mut joins).await
        }
        // Watching takes the right to write. Those who follow something look from time to time where they cannot watch.
        Err(Failure { error, .. }) if error.kind == ErrorKind::Denied => {
            Err(error.with_kind(ErrorKind::Unsupported).context("watching an object"))
        }
        Err(failure) => Err(failure.error),
    };
    let Err(error) = ended else { return };
    let mut failed: Vec<Join> = follower.waiting.drain(..).map(|(_, join)| join).collect();
    {
        // After this, whoever wants to watch the object starts another follower.
        let mut followed = follower.shared.followed.lock();
        follower.shared.hub.end(&follower.object, &error);
        followed.remove(&follower.object);
        failed.extend(std::iter::from_fn(|| joins.try_recv().ok()));
    }
    for join in failed {
        join.reply.send(Err(error.clone())).ok();
    }
}

/// The versions of an object that its watchers were told, and those to be told.
#[derive(Debug, Default)]
struct Versions {
    known: u64,
    /// The version that the object was last found to have.
    seen: u64,
    /// Links that do not continue what is known, by the versions that they lead to.
    links: BTreeMap<u64, Link>,
    /// A version that the object had, and the time until which links up to it may be late.
    due: Option<(u64, Instant)>,
    /// What is to be told, in order.
    told: Vec<Told>,
}

/// What watchers are told of versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Changed(u64),
    Gap(Gap),
}

impl Versions {
    /// Begins anew at a version.
    fn restart(&mut self, version: u64) {
        if version < self.known {
            // They are of changes that the store has lost.
            self.links.clear();
        }
        (self.known, self.seen, self.due) = (version, version, None);
        self.advance(Instant::now());
    }

    /// Takes links in.
    fn learn(&mut self, links: &[Link], now: Instant) {
        for link in links {
            if link.version > self.known {
                self.links.insert(link.version, *link);
            }
        }
        self.advance(now);
        // Somebody who is not a client of ours may announce what never was.
        if self.links.len() > LINKS_KEPT_MAX {
            self.links.clear();
        }
    }

    /// Tells what continues what is known.
    fn advance(&mut self, now: Instant) {
        while let Some((&version, &link)) = self.links.first_key_value() {
            if version > self.known {
                if version == self.known + 1 || link.previous == Some(self.known) && link.changes == 1 {
                    self.told.push(Told::Changed(version));
                } else if link.previous == Some(self.known) {
                    let changes = (link.changes > 0).then_some(link.changes);
                    let gap = Gap { version, changes, notifications: Some(0), cause: Cause::Slow };
                    self.told.push(Told::Gap(gap));
                } else {
                    break;
                }
                self.known = version;
            }
            self.links.remove(&version);
        }
        if self.due.is_some_and(|(version, _)| version <= self.known) {
            self.due = None;
        }
        let missing = match self.links.first_key_value() {
            Some((version, link)) => {
                link.previous.filter(|previous| *previous > self.known).unwrap_or(*version)
            }
            None => self.seen,
        };
        if missing > self.known {
            self.due.get_or_insert((missing, now + LATENESS));
        }
    }

    /// Takes in the version that the object was found to have, after all links that were taken in before. Changes of which no link
    /// says anything may be late, unless it is `at_once` that they are to be told.
    fn saw(&mut self, version: u64, at_once: bool, now: Instant) {
        if version < self.known {
            // The store has lost changes, or somebody removed the object with Ceph's own tools.
            self.told.push(Told::Gap(Gap::unknown(version, Cause::Unannounced)));
            self.restart(version);
        } else if version == self.known + 1 {
            self.told.push(Told::Changed(version));
            self.known = version;
            self.advance(now);
        } else if version > self.known && at_once {
            self.miss(version, now);
        } else {
            self.seen = version;
            self.advance(now);
        }
    }

    /// Returns whether a version that the object was found to have has been told, or never will be because the store has lost it.
    fn is_over(&self, version: u64) -> bool {
        version <= self.known || version > self.seen
    }

    /// Gives up waiting for links whose time is over.
    fn expire(&mut self, now: Instant) {
        while let Some((version, until)) = self.due
            && until <= now
        {
            self.due = None;
            self.miss(version, now);
        }
    }

    /// Tells that changes up to a version are missing.
    fn miss(&mut self, version: u64, now: Instant) {
        if version > self.known {
            let gap = Gap { version, changes: None, notifications: Some(0), cause: Cause::Unannounced };
            self.told.push(Told::Gap(gap));
            self.known = version;
        }
        self.advance(now);
    }
}

/// A notification that RADOS has delivered.
struct Remembered {
    id: u64,
    state: Arc<Mutex<Answering>>,
}

/// The answer to a notification.
#[derive(Default)]
struct Answering {
    /// The ids under which RADOS waits for it, each with the watch that it came by: the watch may have been repaired in between.
    awaited: Vec<(Acknowledger, u64)>,
    answer: Option<Bytes>,
}

struct Follower {
    shared: Arc<Shared>,
    object: ObjectId,
    name: CString,
    versions: Versions,
    /// The watch of RADOS, unless it is broken.
    watch: Option<(WatchHandle, Signals)>,
    /// True if the OSD has not confirmed the watch for long.
    unconfirmed: bool,
    /// Watches that begin once the version that each was promised is told to the others.
    waiting: Vec<(u64, Join)>,
    remembered: VecDeque<Remembered>,
}

/// Watchers are told if nobody follows the object for them any more because of a panic.
impl Drop for Follower {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let error = StoreError::new(ErrorKind::Io, "the task that follows the object died");
            self.shared.hub.end(&self.object, &error);
        }
    }
}

impl Follower {
    fn new(shared: Arc<Shared>, object: ObjectId) -> Follower {
        Follower {
            name: object_name(&object),
            shared,
            object,
            versions: Versions::default(),
            watch: None,
            unconfirmed: false,
            waiting: Vec::new(),
            remembered: VecDeque::new(),
        }
    }

    async fn run(&mut self, joins: &mut mpsc::UnboundedReceiver<Join>) -> Result<(), StoreError> {
        // What a location made by hand says may be anything.
        let poll = self.shared.location.watch_poll.clamp(POLL_MIN, POLL_MAX);
        let tick = poll.min(TICK);
        let mut next_tick = Instant::now() + tick;
        let mut next_look = Instant::now() + poll;
        loop {
            self.tell();
            let wake = self.versions.due.map_or(next_tick, |(_, until)| until.min(next_tick));
            let signal = async {
                match &mut self.watch {
                    Some((_, signals)) => signals.next().await.unwrap_or(Signal::Broken),
                    None => std::future::pending().await,
                }
            };
            let woken = tokio::select! {
                signal = signal => Woken::Signal(signal),
                join = joins.recv() => Woken::Join(join),
                () = tokio::time::sleep_until(wake) => Woken::Time,
            };
            let failed = match woken {
                Woken::Signal(signal) => self.take(signal).await,
                Woken::Join(Some(join)) => self.join(join).await,
                Woken::Join(None) => return Ok(()),
                Woken::Time => Ok(()),
            };
            if let Err(Failure { error, is_final: true }) = failed {
                return Err(error);
            }
            let now = Instant::now();
            self.versions.expire(now);
            if now < next_tick {
                continue;
            }
            next_tick = now + tick;
            let look = now >= next_look;
            if look {
                next_look = now + poll;
            }
            if let Err(Failure { error, is_final: true }) = self.check(look).await {
                return Err(error);
            }
            self.tell();
            if self.waiting.is_empty() && !self.shared.hub.has_watchers(&self.object) {
                // Whoever joins does so under this lock.
                let mut followed = self.shared.followed.lock();
                match joins.try_recv() {
                    Ok(join) => self.waiting.push((self.versions.known, join)),
                    Err(_) => {
                        followed.remove(&self.object);
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Hands what is to be told to the watchers, and lets those begin that were waiting for it.
    fn tell(&mut self) {
        let hub = &self.shared.hub;
        for told in self.versions.told.drain(..) {
            match told {
                Told::Changed(version) => {
                    hub.changed(&self.object, version, nacre_object::Reply::ready(Ok(())));
                }
                Told::Gap(gap) => hub.gap(&self.object, gap),
            }
        }
        let versions = &self.versions;
        for (_, join) in self.waiting.extract_if(.., |(promised, _)| versions.is_over(*promised)) {
            // The hash is for engines that ask whether an object is watched.
            join.reply.send(hub.watch(&self.object, 0, versions.known, &join.options)).ok();
        }
    }

    /// Takes an event of RADOS in.
    async fn take(&mut self, signal: Signal) -> Result<(), Failure> {
        let Some((watch, _)) = &self.watch else { return Ok(()) };
        let acknowledger = watch.acknowledger();
        match signal {
            Signal::Broken => return self.repair().await,
            Signal::TooLong { id } => acknowledger.acknowledge(id, &[]),
            Signal::Notified { id, payload, room: _room } => match message::decode(payload) {
                None => acknowledger.acknowledge(id, &[]),
                Some(Message::Changes(links)) => {
                    acknowledger.acknowledge(id, &[]);
                    self.versions.learn(&links, Instant::now());
                }
                Some(Message::Notification { links, id: notification, timeout, payload }) => {
                    self.versions.learn(&links, Instant::now());
                    // It comes after all changes whose replies its sender had seen, whoever made them.
                    let found = self.read().await;
                    if let Ok(header) = &found {
                        self.versions.saw(header.version, true, Instant::now());
                    }
                    self.tell();
                    self.deliver(acknowledger, id, notification, timeout, payload);
                    found?;
                }
            },
        }
        Ok(())
    }

    /// Delivers a notification to the watchers, and answers it when they have, or when their time is over.
    fn deliver(
        &mut self,
        acknowledger: Acknowledger,
        id: u64,
        notification: u64,
        timeout: Duration,
        payload: Bytes,
    ) {
        if let Some(known) = self.remembered.iter().find(|known| known.id == notification) {
            // RADOS repeats it, after a break or at another OSD.
            let mut state = known.state.lock();
            let Answering { awaited, answer } = &mut *state;
            match answer {
                Some(answer) => acknowledger.acknowledge(id, answer),
                None if awaited.len() < REPETITIONS_MAX => awaited.push((acknowledger, id)),
                None => {}
            }
            return;
        }
        let state = Arc::new(Mutex::new(Answering { awaited: vec![(acknowledger, id)], answer: None }));
        if self.remembered.len() >= REMEMBERED_MAX {
            self.remembered.pop_front();
        }
        self.remembered.push_back(Remembered { id: notification, state: Arc::clone(&state) });
        let outcome = self.shared.hub.notify_as(&self.object, notification, payload, timeout);
        let mut answers = self.shared.answers.lock();
        while answers.try_join_next().is_some() {}
        answers.spawn(async move {
            // Where there is no outcome, the empty answer says that the watchers missed it.
            let answer =
                outcome.await.map_or_else(|_| Bytes::new(), |outcome| message::outcome(&outcome).into());
            let mut answering = state.lock();
            for (acknowledger, id) in answering.awaited.drain(..) {
                acknowledger.acknowledge(id, &answer);
            }
            answering.answer = Some(answer);
        });
    }

    /// Lets another watcher in. It is promised the version that the object has now.
    async fn join(&mut self, join: Join) -> Result<(), Failure> {
        let found = match self.watch {
            Some(_) => self.read().await.map(|header| header.version),
            None => self.repair().await.map(|()| self.versions.known),
        };
        match found {
            Ok(version) => {
                self.versions.saw(version, false, Instant::now());
                self.waiting.push((version, join));
                Ok(())
            }
            Err(failure) => {
                join.reply.send(Err(failure.error.clone())).ok();
                Err(failure)
            }
        }
    }

    /// Looks whether the watch is sound, and, if it is time for a `look`, at the version of the object and its mark.
    async fn check(&mut self, look: bool) -> Result<(), Failure> {
        let Some((watch, signals)) = &self.watch else { return self.repair().await };
        let Some(confirmed) = watch.confirmed() else { return self.repair().await };
        let lost = signals.has_lost();
        let unconfirmed = confirmed > UNCONFIRMED;
        let confirmed_again = std::mem::replace(&mut self.unconfirmed, unconfirmed) && !unconfirmed;
        if lost || confirmed_again {
            // Of changes, the version tells. Notifications were too many, or may have come while the OSD could not be reached.
            let cause = if lost { Cause::Slow } else { Cause::Broken };
            let gap = Gap { version: self.versions.known, changes: Some(0), notifications: None, cause };
            self.versions.told.push(Told::Gap(gap));
        }
        if look {
            // The mark is set again if a writer found nobody just before this watch began, or does not know it.
            let version = self.mark().await?;
            self.versions.saw(version, false, Instant::now());
        }
        Ok(())
    }

    /// Watches the object anew.
    async fn repair(&mut self) -> Result<(), Failure> {
        // It is ended before another one begins.
        self.watch = None;
        let version = self.register().await?;
        self.versions.told.push(Told::Gap(Gap::unknown(version, Cause::Broken)));
        self.versions.restart(version);
        Ok(())
    }

    /// Begins to watch the object, of which RADOS has to have something for that. Returns its version.
    async fn register(&mut self) -> Result<u64, Failure> {
        self.mark().await?;
        let Shared { pool, location, .. } = &*self.shared;
        let (registering, signals) = pool.watch(&self.name, SIGNALS_MAX, MESSAGE_BYTES_MAX);
        // It goes on where nobody waits for it any more, and the watch then ends.
        let registered = tokio::time::timeout(location.timeout, tokio::spawn(registering.finish())).await;
        let code = match registered {
            Ok(Ok(Ok(watch))) => {
                self.watch = Some((watch, signals));
                self.unconfirmed = false;
                // Changes from here on are announced.
                return self.mark().await;
            }
            Ok(Ok(Err(code))) => code,
            // The thread is about to end.
            Ok(Err(_)) => return Err(Failure { error: closed(), is_final: true }),
            Err(_) => -errno::ETIMEDOUT,
        };
        let mut failure = Failure::new(code, failed(code, Attempt::Read, location, &self.object));
        // Somebody removed it meanwhile.
        failure.is_final &= code != -errno::ENOENT;
        Err(failure)
    }

    async fn read(&self) -> Result<Header, Failure> {
        let Shared { pool, location, marker, .. } = &*self.shared;
        // The floor of before the look: an earlier one than that of now does no harm, a later one might.
        let floor = marker.floor(&self.object).shown;
        let completed = pool.read(&self.name, &[ReadStep::Xattrs], 0).await;
        let code = completed.code;
        let found = header_of(pool, location, &self.object, completed, floor);
        found.map(|(header, _)| header).map_err(|error| Failure::new(code, error))
    }

    /// Has the object's header say that it is watched. One of which there is no trace gets a header by that, which says nothing else
    /// but the floor: its second version, up to which a purge may raise what the object shows before the header is there. Returns the
    /// version.
    async fn mark(&self) -> Result<u64, Failure> {
        let Shared { pool, location, tokens, marker, .. } = &*self.shared;
        let mut header = self.read().await?;
        for _ in 0..ATTEMPTS_MAX {
            if header.watched {
                return Ok(header.version);
            }
            let is_new = header.is_absent();
            // Whoever makes a header knows the floor by a mark in the index, whatever the header says.
            let mut mark = None;
            if is_new {
                let set = marker.mark(&self.object).await.map_err(|error| {
                    let code = if error.kind == ErrorKind::Denied { -errno::EPERM } else { -errno::EIO };
                    Failure::new(code, error)
                })?;
                header = Header::absent(set.floor.start);
                mark = Some(set);
            }
            let marked = Header { watched: true, author: Author::Token(tokens.next()), ..header };
            let (before, after) = (header.encode(), marked.encode());
            let condition = if is_new { WriteStep::CreateNew } else { WriteStep::IfXattr(HEADER, &before) };
            let steps = [condition, WriteStep::SetXattr(HEADER, &after)];
            let code = pool.write(&self.name, &steps, flag::FULL_TRY).await.code;
            // Where the outcome is not known, the mark is left to the listings.
            if let Some(mark) = mark.filter(|_| code != -errno::ETIMEDOUT) {
                marker.unmark(&mark);
            }
            match -code {
                code if code <= 0 => return Ok(header.version),
                errno::ECANCELED | errno::EEXIST | errno::ENOENT => {}
                // Without the mark, the looks remain.
                errno::ENOSPC | errno::EDQUOT if !is_new => return Ok(header.version),
                _ => return Err(Failure::new(code, failed(code, Attempt::Read, location, &self.object))),
            }
            header = self.read().await?;
        }
        // Others write it all the time: the next look sets the mark.
        Ok(header.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(known: u64) -> Versions {
        let mut versions = Versions::default();
        versions.restart(known);
        versions
    }

    fn gap(version: u64) -> Told {
        let (changes, notifications) = (None, Some(0));
        Told::Gap(Gap { version, changes, notifications, cause: Cause::Unannounced })
    }

    #[test]
    fn links_in_any_order_are_told_in_order_and_once() {
        let (mut versions, now) = (versions(3), Instant::now());
        // The last one proposed its version, and leaves others out.
        let links = [Link::one(Some(3), 4), Link::one(Some(4), 5), Link::one(Some(5), 90)];
        versions.learn(&links[2..], now);
        versions.learn(&links[1..2], now);
        assert!(versions.told.is_empty() && versions.due.is_some());
        versions.learn(&links, now);
        versions.learn(&links, now);
        assert_eq!(versions.told, [4, 5, 90].map(Told::Changed));
        assert_eq!(versions.due, None);
    }

    #[test]
    fn a_change_that_is_not_announced_in_time_is_a_gap() {
        let (mut versions, now) = (versions(3), Instant::now());
        versions.learn(&[Link::one(Some(5), 6)], now);
        versions.expire(now);
        assert!(versions.told.is_empty());
        versions.expire(now + LATENESS);
        assert_eq!(versions.told, [gap(5), Told::Changed(6)]);
        // It comes all the same.
        versions.learn(&[Link::one(Some(3), 4)], now);
        assert_eq!(versions.told.len(), 2);
    }

    #[test]
    fn a_version_that_is_found_is_told_once_its_announcements_are_late() {
        let (mut versions, now) = (versions(3), Instant::now());
        // Nothing can be between two versions in a row.
        versions.saw(4, false, now);
        assert_eq!(std::mem::take(&mut versions.told), [Told::Changed(4)]);
        versions.saw(7, false, now);
        versions.learn(&[Link::one(Some(4), 5)], now);
        assert_eq!(std::mem::take(&mut versions.told), [Told::Changed(5)]);
        versions.expire(now + LATENESS);
        assert_eq!(std::mem::take(&mut versions.told), [gap(7)]);
        versions.saw(9, true, now);
        assert_eq!(std::mem::take(&mut versions.told), [gap(9)]);
        versions.saw(2, false, now);
        let lost = Told::Gap(Gap::unknown(2, Cause::Unannounced));
        assert_eq!((std::mem::take(&mut versions.told), versions.known), (vec![lost], 2));
    }

    #[test]
    fn nobody_waits_for_a_version_that_the_store_has_lost() {
        let (mut versions, now) = (versions(3), Instant::now());
        versions.saw(7, false, now);
        assert!(versions.is_over(3) && !versions.is_over(7), "its announcements may be late");
        // Another look, and a link that leads to a part of it.
        versions.saw(7, false, now);
        versions.learn(&[Link::one(Some(3), 4)], now);
        assert!(!versions.is_over(7));
        versions.saw(2, false, now);
        assert!(versions.is_over(7) && versions.due.is_none());
    }

    #[test]
    fn changes_that_became_one_keep_their_number() {
        let (mut versions, now) = (versions(3), Instant::now());
        versions.learn(&[Link { previous: Some(3), version: 9, changes: 6 }], now);
        let (changes, notifications) = (Some(6), Some(0));
        let gap = Gap { version: 9, changes, notifications, cause: Cause::Slow };
        assert_eq!(versions.told, [Told::Gap(gap)]);
        // The number of those that are missing is not known if they had begun before.
        versions.learn(&[Link { previous: Some(8), version: 12, changes: 4 }], now);
        assert_eq!(versions.due, Some((12, now + LATENESS)));
    }

    #[test]
    fn links_that_lead_nowhere_do_not_pile_up() {
        let (mut versions, now) = (versions(3), Instant::now());
        for number in 0..3 * LINKS_KEPT_MAX as u64 {
            versions.learn(&[Link::one(None, 1000 + 2 * number)], now);
        }
        assert!(versions.links.len() <= LINKS_KEPT_MAX);
        versions.expire(now + LATENESS);
        assert_eq!(versions.told.first(), Some(&gap(1000)));
    }
}
