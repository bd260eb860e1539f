//! A reflector's data in the store: the states of groups, and the map of locations. All of it waits for the store, on
//! the thread beside the data thread, which gets the results by messages.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use nacre::Store;
use nacre_object::Escaped;
use nacre_object::watch::Watch;
use nacre_planes::forward::read_clocks;
use nacre_reflect::control::Event;
use nacre_reflect::location::LocationEntry;
use nacre_reflect::state::{Checkpoints, Saved};
use nacre_reflect::table::GroupId;
use nacre_reflect::wire::Reflectors;
use nacre_rpc::repeated::Repeated;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{Mutex, oneshot};
use tokio::task::JoinSet;

use super::administration::Tasks;
use super::location_map::{Changed, LocationMap, Snapshot};

/// The prefix of the ids of objects with states.
const STATE_PREFIX: &str = "reflect/state/";
/// The interval at which the map is read without an event of its watch, as others may have changed it.
const LOOK: Duration = Duration::from_millis(500);
/// The wait after an event, for those that follow it: so nobody who changes the map again and again keeps this thread busy.
const GATHER: Duration = Duration::from_millis(20);
/// The wait after the map could not be read.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// The number of tries to change the map while others change the same location.
const TRIES: usize = 16;
/// The longest wait for states to be stored when the reflector ends.
const LAST: Duration = Duration::from_secs(5);
/// The author of a daemon's changes, in the history of the map.
const AUTHOR: &str = "reflect";

/// Returns the map of locations in a store. `author` is named in its history as the author of changes.
pub fn location_map(store: &Store, author: &str) -> Result<LocationMap, nacre::Error> {
    LocationMap::new(Arc::new(store.clone()), author)
}

/// Sets the place of a location, or removes it, whatever its present place. Returns the epoch of the map.
///
/// # Errors
/// A sentence, if there is no location to remove, nothing can be at the place, the store fails, or others keep changing
/// the location.
pub async fn relocate(map: &LocationMap, name: &str, to: Option<LocationEntry>) -> Result<u64, String> {
    to.map_or(Ok(()), |entry| entry.check())?;
    let failed = |error: nacre::Error| error.message;
    let mut from = map.place(name).await.map_err(failed)?;
    if to.is_none() && from.is_none() {
        return Err(format!("there is no location \"{}\"", Escaped::of(name)));
    }
    for _ in 0..TRIES {
        match map.change(name, from, to).await.map_err(failed)? {
            Changed::Done { epoch } => return Ok(epoch),
            Changed::Refused(now) => from = now,
        }
    }
    Err(format!("location \"{}\" is changed by others all the time; try again", Escaped::of(name)))
}

/// The map that this reflector follows.
pub(super) struct Locations {
    map: LocationMap,
    tasks: Tasks,
    /// The map as the control plane was last told of it.
    announced: Mutex<Snapshot>,
    /// The standbys of locations here for which none are named.
    standbys: Vec<SocketAddr>,
    /// True if other reflectors may use the store.
    shared: bool,
    /// True once the secret of relays has been read.
    has_secret: AtomicBool,
}

impl Locations {
    pub(super) fn new(
        store: &Store,
        tasks: Tasks,
        standbys: Vec<SocketAddr>,
        shared: bool,
    ) -> Result<Locations, nacre::Error> {
        let announced = Mutex::new(Snapshot::default());
        let has_secret = AtomicBool::new(false);
        Ok(Locations { map: location_map(store, AUTHOR)?, tasks, announced, standbys, shared, has_secret })
    }

    /// Returns the map as it was last read.
    pub(super) async fn snapshot(&self) -> Snapshot {
        self.announced.lock().await.clone()
    }

    /// Reads the map and tells the control plane what has changed.
    pub(super) async fn follow(&self) -> Result<(), nacre::Error> {
        let mut announced = self.announced.lock().await;
        let Some(snapshot) = self.map.read(&announced).await? else { return Ok(()) };
        if !snapshot.entries.is_empty() && !self.has_secret.load(Ordering::Relaxed) {
            // Before any location can move.
            let (secret, shared) = (self.map.relay_secret().await?, self.shared);
            self.tasks.give(move |core| core.control.set_relay_secret(&secret, shared));
            self.has_secret.store(true, Ordering::Relaxed);
        }
        let gone = announced.entries.keys().filter(|name| !snapshot.entries.contains_key(*name));
        let mut changes: Vec<(String, Option<LocationEntry>)> =
            gone.map(|name| (name.clone(), None)).collect();
        changes.extend(
            snapshot
                .entries
                .iter()
                .filter(|(name, entry)| announced.entries.get(*name) != Some(*entry))
                .map(|(name, entry)| (name.clone(), Some(*entry))),
        );
        *announced = snapshot;
        let (done, waiting) = oneshot::channel();
        self.tasks.give(move |core| {
            let now = read_clocks();
            for (name, entry) in changes {
                match &entry {
                    Some(entry) => {
                        tracing::info!(location = name, place = %entry, "a location has its place")
                    }
                    None => tracing::info!(location = name, "a location was removed"),
                }
                core.control.set_location(now, &name, entry);
            }
            // Whoever waited may have gone.
            let _ = done.send(());
        });
        // If the data thread has ended, nobody follows any more.
        let _ = waiting.await;
        Ok(())
    }

    /// Follows the map for ever.
    pub(super) async fn keep_following(&self) {
        let mut failing = false;
        let mut watch = None;
        loop {
            // It is there before the map is read, so that no change falls between the two. A store that cannot watch is looked at.
            if watch.is_none() {
                watch = self.map.watch().await.ok();
            }
            let wait = match self.follow().await {
                Ok(()) => {
                    if std::mem::take(&mut failing) {
                        tracing::info!("the map of locations can be read again");
                    }
                    LOOK
                }
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(%error, "the map of locations cannot be read; it stays as it was");
                    }
                    LOOK_AGAIN
                }
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = hint(&mut watch), if !failing => {}
            }
        }
    }

    /// Changes the map, and follows the change at once.
    pub(super) async fn relocate(
        &self,
        name: &str,
        to: Option<(SocketAddr, u32, Vec<SocketAddr>)>,
    ) -> Result<u64, String> {
        let entry = match to {
            None => None,
            Some((reflector, group, mut standbys)) => {
                if standbys.is_empty() {
                    standbys.extend(self.standbys.iter().filter(|standby| **standby != reflector));
                }
                standbys.insert(0, reflector);
                let reflectors = Reflectors::new(&standbys)
                    .ok_or_else(|| format!("{} reflectors are too many for a location", standbys.len()))?;
                Some(LocationEntry { reflectors, group })
            }
        };
        let epoch = relocate(&self.map, name, entry).await?;
        self.follow().await.map_err(|error| error.message)?;
        Ok(epoch)
    }
}

/// Waits for an event of a watch. One that has ended is taken away, and nothing comes any more: the next look begins another.
async fn hint(watch: &mut Option<Watch>) {
    if let Some(events) = watch {
        if let Some(Ok(_)) = events.next().await {
            // Further changes are often close behind. They are about what is read now.
            tokio::time::sleep(GATHER).await;
            while let Poll::Ready(Some(Ok(_))) = events.try_next() {}
            return;
        }
        *watch = None;
    }
    std::future::pending().await
}

/// Carries out the control plane's requests to the store, until it ends.
pub(super) async fn keep_states(store: Store, tasks: Tasks, mut wanted: UnboundedReceiver<Event>) {
    let checkpoints = Checkpoints::new(Arc::new(store), STATE_PREFIX);
    let repeated = Arc::new(std::sync::Mutex::new(Repeated::default()));
    let mut under_way = JoinSet::new();
    loop {
        tokio::select! {
            event = wanted.recv() => match event {
                None => break,
                Some(event) => drop(under_way.spawn(serve(checkpoints.clone(), tasks.clone(), repeated.clone(), event))),
            },
            Some(_) = under_way.join_next() => {}
        }
    }
    let rest = async { while under_way.join_next().await.is_some() {} };
    if tokio::time::timeout(LAST, rest).await.is_err() {
        tracing::error!("some states were not stored before the end");
    }
}

type SharedRepeated = Arc<std::sync::Mutex<Repeated>>;

async fn serve(checkpoints: Checkpoints<Store>, tasks: Tasks, repeated: SharedRepeated, event: Event) {
    match event {
        Event::LoadState { group, name } => match checkpoints.load(&name).await {
            Ok(found) => {
                worked(&repeated);
                tasks.give(move |core| {
                    core.control.state_loaded(read_clocks(), group, found.version, found.bytes);
                });
            }
            Err(error) => failed(&tasks, &repeated, group, &name, &error),
        },
        Event::StoreState { group, name, base, bytes } => match checkpoints.save(&name, base, &bytes).await {
            Ok(Saved::Stored(version)) => {
                worked(&repeated);
                tasks.give(move |core| core.control.state_stored(read_clocks(), group, version));
            }
            Ok(Saved::Newer(version)) => {
                worked(&repeated);
                tasks.give(move |core| core.control.state_conflict(read_clocks(), group, version));
            }
            Err(error) => failed(&tasks, &repeated, group, &name, &error),
        },
        Event::Joined { .. } | Event::Left { .. } => {}
    }
}

fn worked(repeated: &SharedRepeated) {
    let over = repeated.lock().unwrap_or_else(PoisonError::into_inner).ended();
    if let Some(unreported) = over {
        tracing::info!(failures = unreported, "states can be stored and loaded again");
    }
}

fn failed(tasks: &Tasks, repeated: &SharedRepeated, group: GroupId, name: &str, error: &nacre::Error) {
    let due = repeated.lock().unwrap_or_else(PoisonError::into_inner).happened(Instant::now());
    match due {
        None => {}
        Some(1) => {
            tracing::warn!(%group, name, %error, "a state was neither stored nor loaded; it is tried again");
        }
        Some(failures) => {
            tracing::warn!(failures, %error, "states are still neither stored nor loaded; they are tried again");
        }
    }
    tasks.give(move |core| core.control.state_failed(read_clocks(), group));
}
