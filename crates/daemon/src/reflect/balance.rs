//! The balancer of a reflector: what it learns of the groups, and how it moves one to another reflector.
//!
//! A group is moved by its location's entry in the map, as by hand, so that its members lose nothing. Whoever moves it looks
//! after it until its members have gone. Where the other reflector does not answer, or is lost on the way, the entry is set
//! back before members are told to go to somebody who is not there.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures::future::{BoxFuture, FutureExt};
use nacre_balance::limit::PUBLISHED_RESOURCES_MAX;
use nacre_balance::{
    Driver, GroupLoad, Kind, Metrics, Migrate, Migration, Move, Phase, Published, Reflector, Resource,
    ResourceId, Sense,
};
use nacre_object::{ErrorKind, Escaped, ObjectStore, StoreError};
use nacre_reflect::control::{ControlOptions, RELAY_MS};
use nacre_reflect::location::{IDS_MAX, LocationEntry, check_address};
use nacre_reflect::table::GroupId;
use nacre_reflect::wire::Reflectors;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::administration::Tasks;
use super::location_map::{LocationMap, Snapshot};
use super::persistence::Locations;
use crate::balance::{Balancing, Processor, memory_bytes};

/// The maximum number of groups that the balancer looks at: the busiest ones.
const GROUPS_MAX: usize = 10_000;
/// The interval at which the data thread is asked for the load, and the one where nobody balances.
const SAMPLE: Duration = Duration::from_millis(500);
const SAMPLE_IDLE: Duration = Duration::from_secs(5);
/// The time after a tick for which somebody balances.
const ASKED: Duration = Duration::from_secs(60);
/// The number of groups that are on their way at the same time.
const AT_ONCE: usize = 8;
/// The author of the balancer's changes, in the history of the map.
const AUTHOR: &str = "reflect, balancer";
/// The interval at which a move is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// The time in which the other reflector has to answer. Members are not told to move before five seconds without an answer.
const ANSWER_MAX: Duration = Duration::from_secs(4);
/// The time after which the few who have not moved are left to themselves: a relay does not last longer.
const MOVE_MAX: Duration = Duration::from_millis(RELAY_MS - 1000);

/// The load of the reflector now.
#[derive(Clone, Debug, Default)]
pub(super) struct LoadNow {
    /// The busiest groups with members, but for those whose members are on their way.
    pub groups: Vec<GroupNow>,
    /// The datagrams and the copies of all groups per second, and their members.
    pub datagrams: f64,
    pub copies: f64,
    pub members: u64,
    /// The bytes that wait for full devices.
    pub waiting_bytes: u64,
    /// The groups whose members are on their way.
    pub departing: Vec<Departing>,
}

/// The load of a group now.
#[derive(Clone, Debug)]
pub(super) struct GroupNow {
    pub id: GroupId,
    /// The location whose group it is.
    pub location: Option<String>,
    /// True if the reflector is in charge of that location, and another one would make the same group for it and let the same
    /// members in.
    pub is_movable: bool,
    pub members: u64,
    pub datagrams: f64,
    pub copies: f64,
}

/// The progress of a group whose members are on their way.
#[derive(Clone, Debug)]
pub(super) struct Departing {
    pub location: String,
    pub to: SocketAddr,
    pub is_asking: bool,
    pub is_relayed: bool,
    pub members: u64,
    /// The time since the location moved, in milliseconds.
    pub for_ms: u64,
}

/// Starts to balance a reflector; `None` if none of its addresses can be named in the map of locations.
///
/// # Errors
/// `Io` if no thread can be started.
pub(super) fn start(
    store: Arc<dyn ObjectStore>,
    tasks: Tasks,
    locations: Arc<Locations>,
    control: &ControlOptions,
    shared: &[SocketAddr],
    ids: u32,
) -> Result<Option<Balancing>, StoreError> {
    let own = if control.advertised.is_empty() { &control.own } else { &control.advertised };
    // Where ports are shared: a port that is a group of its own has no room for others.
    let ports: HashSet<u16> = shared.iter().map(SocketAddr::port).collect();
    let usable = own.iter().find(|address| check_address(address).is_ok() && ports.contains(&address.port()));
    let Some(address) = usable.copied() else {
        tracing::info!(
            "no groups are moved to or from this reflector by the balancer: it has no shared port at an address that \
             others reach; name one with --advertise"
        );
        return Ok(None);
    };
    let settings = (&control.group_default, &control.state_default, &control.token_keys, &control.suppliers);
    let settings = format!("{:032x}", xxh3_128(format!("{settings:?}").as_bytes()));
    let shared = Arc::new(Shared {
        map: LocationMap::new(store.clone(), AUTHOR)?,
        tasks,
        locations,
        address,
        own: own.clone(),
        ids,
        settings,
        latest: Mutex::default(),
        known: Mutex::default(),
        seats: Mutex::default(),
        published_at: Mutex::default(),
        turn: tokio::sync::Mutex::default(),
    });
    let source = Source { shared: shared.clone(), processor: Processor::default() };
    let mover = Arc::new(Mover(shared.clone()));
    let driver = Driver::new(store, &format!("reflector {address}"), Box::new(source), mover)?;
    let work = async move {
        tokio::select! {
            () = driver.run() => {}
            () = shared.keep_sampling() => {}
        }
    };
    Balancing::of(work).map(Some)
}

/// The data of a reflector's balancer.
struct Shared {
    map: LocationMap,
    tasks: Tasks,
    locations: Arc<Locations>,
    /// The address at which others move groups to this reflector, and all by which the map may name it.
    address: SocketAddr,
    own: Vec<SocketAddr>,
    ids: u32,
    settings: String,
    /// The load when it was last looked at, and the time since 1970; `None` before that, and once the reflector has ended.
    latest: Mutex<Option<(LoadNow, Duration)>>,
    /// The groups that were last offered to be moved.
    known: Mutex<HashMap<ResourceId, (String, GroupId)>>,
    /// The reflectors that take part, by number.
    seats: Mutex<Vec<(usize, Reflector)>>,
    /// The time of the last tick at which the load was published.
    published_at: Mutex<Option<Instant>>,
    /// Held by the move that changes the map: each change is conditional on all others.
    turn: tokio::sync::Mutex<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What was half done is done anew at the next tick.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn invalid(why: impl Into<String>) -> StoreError {
    StoreError::new(ErrorKind::Invalid, why.into())
}

/// What the data thread knows of a group that was moved.
enum Left {
    /// It has not been told yet that the location has moved.
    NotYet,
    /// Members are on their way.
    Departing(Departing),
    /// No members are on their way.
    Done,
}

impl Shared {
    /// Asks the data thread for the load, for ever.
    async fn keep_sampling(&self) {
        loop {
            self.sample().await;
            let is_asked = lock(&self.published_at).is_some_and(|at| at.elapsed() < ASKED);
            tokio::time::sleep(if is_asked { SAMPLE } else { SAMPLE_IDLE }).await;
        }
    }

    async fn sample(&self) {
        let load = self.tasks.ask(|core| core.load(GROUPS_MAX)).await;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        *lock(&self.latest) = load.ok().map(|load| (load, now));
    }

    /// Returns the name of a reflector for people: by its number, if it has one.
    fn name(&self, address: SocketAddr) -> String {
        let text = address.to_string();
        let seats = lock(&self.seats);
        match seats.iter().find(|(_, seat)| seat.address == text) {
            Some((number, _)) => format!("reflector {number}"),
            None => format!("reflector {text}"),
        }
    }

    /// Moves the group of a location to another reflector. Returns when its members have moved.
    async fn relocate(&self, id: &ResourceId, to: usize) -> Result<(), StoreError> {
        let known = lock(&self.known).get(id).cloned();
        let (location, here) = known.ok_or_else(|| invalid("the reflector does not have it any more"))?;
        let (target, first_id) = {
            let seats = lock(&self.seats);
            let target = seats.iter().find(|(number, _)| *number == to).map(|(_, seat)| seat.clone());
            // Below it, anybody may join groups by their ids.
            (target, seats.iter().map(|(_, seat)| seat.ids).max().unwrap_or(0).max(self.ids))
        };
        let target = target.ok_or_else(|| invalid("that reflector has not published its load lately"))?;
        if target.settings != self.settings {
            return Err(invalid(
                "groups have other settings there (token keys, limits, sequence numbers, states), or another program \
                 version runs; start both alike, or limit where groups may go with \"nacre balance mask\"",
            ));
        }
        let to: SocketAddr = target
            .address
            .parse()
            .map_err(|_| invalid("the address that it has published cannot be read"))?;
        if to.is_ipv4() != self.address.is_ipv4() {
            return Err(invalid(format!(
                "members of an IPv4 reflector cannot move to an IPv6 one, or back: {to}"
            )));
        }
        let choose = |all: &Snapshot| place(all, &location, &self.own, here, to, first_id);
        let (from, moved) = {
            let _turn = self.turn.lock().await;
            self.map.change_among_all(&location, choose).await?
        };
        let outcome = self.follow(&location, here).await;
        let outcome = match outcome {
            Ok(()) => Ok(()),
            Err(why) => Err(self.set_back(&location, from, moved, &why).await),
        };
        self.sample().await;
        outcome
    }

    /// Waits until the members of a location's group have moved.
    ///
    /// # Errors
    /// A sentence with the reason why they cannot.
    async fn follow(&self, location: &str, here: GroupId) -> Result<(), String> {
        let begun = Instant::now();
        let (mut was_relayed, mut first) = (false, None);
        // What cannot be read now is read in the background, or below.
        let _ = self.locations.follow().await;
        loop {
            let name = location.to_owned();
            let left = self.tasks.ask(move |core| {
                if core.is_in_charge(here, &name) {
                    return Left::NotYet;
                }
                let departing = core.departing(here).filter(|departing| departing.location == name);
                departing.map_or(Left::Done, Left::Departing)
            });
            let passed = begun.elapsed();
            // Where this reflector has ended, its members find the new place.
            let Ok(left) = left.await else { return Ok(()) };
            // A few may be gone without a word. If most of them stay, they are not let in there.
            let are_most_left = match &left {
                Left::Departing(departing) => departing.members * 2 > *first.get_or_insert(departing.members),
                Left::NotYet | Left::Done => false,
            };
            match left {
                Left::Done => return Ok(()),
                Left::NotYet if passed < ANSWER_MAX => drop(self.locations.follow().await),
                Left::NotYet => return Err("the map of locations cannot be read back".to_owned()),
                Left::Departing(_) if passed >= MOVE_MAX && are_most_left => {
                    return Err("most members do not get in there".to_owned());
                }
                Left::Departing(_) if passed >= MOVE_MAX => return Ok(()),
                Left::Departing(departing) if departing.is_relayed => was_relayed = true,
                Left::Departing(departing) if departing.is_asking && passed < ANSWER_MAX => {}
                Left::Departing(_) if was_relayed => {
                    return Err("that reflector was lost while members moved".to_owned());
                }
                Left::Departing(_) => return Err("that reflector does not answer".to_owned()),
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Sets the entry of a location back, unless somebody has changed it since. Returns the error that says so.
    async fn set_back(
        &self,
        location: &str,
        from: LocationEntry,
        moved: LocationEntry,
        why: &str,
    ) -> StoreError {
        let text = match self.map.change(location, Some(moved), Some(from)).await {
            Ok(super::Changed::Done { .. }) => format!("{why}; the group stays where it was"),
            Ok(super::Changed::Refused(_)) => format!("{why}, and somebody else has moved it since"),
            Err(error) => {
                let shown = Escaped::of(location);
                format!("{why}, and the location \"{shown}\" could not be set back to {from}: {error}")
            }
        };
        let _ = self.locations.follow().await;
        StoreError::new(ErrorKind::Unavailable, text)
    }
}

/// Returns the place of a location whose group is moved: the other reflector takes the place of the one in charge, or changes
/// places with it if it is a standby. The group keeps its id if no other location has it, and nobody may join it by its id
/// alone; otherwise it gets one that is free everywhere.
///
/// # Errors
/// A sentence, if the location is not here any more, or if its group cannot be moved alone.
fn place(
    all: &Snapshot,
    location: &str,
    own: &[SocketAddr],
    here: GroupId,
    to: SocketAddr,
    first_id: u32,
) -> Result<LocationEntry, String> {
    let from = all.entries.get(location).ok_or("there is no such location any more")?;
    let in_charge = from.reflectors.first();
    if !own.contains(&in_charge) || (GroupId { port: in_charge.port(), id: from.group }) != here {
        return Err("the reflector is not in charge of it any more".to_owned());
    }
    let is_same = |address: &SocketAddr| own.contains(address) && address.port() == here.port;
    let mut others = all.entries.iter().filter(|(name, _)| *name != location);
    let sharing = others
        .find(|(_, entry)| entry.group == from.group && entry.reflectors.as_slice().iter().any(is_same));
    if let Some((other, _)) = sharing {
        return Err(format!("it has its group together with the location \"{}\"", Escaped::of(other)));
    }
    let mut reflectors = from.reflectors.as_slice().to_vec();
    let group = match reflectors.iter().position(|address| *address == to) {
        Some(standby) => {
            // It has that group for this location already.
            reflectors.swap(0, standby);
            from.group
        }
        None => {
            reflectors[0] = to;
            let others = all.entries.iter().filter(|(name, _)| *name != location);
            let taken: HashSet<u32> = others.map(|(_, entry)| entry.group).collect();
            let is_free = |id: &u32| !taken.contains(id);
            let kept = Some(from.group).filter(|id| *id >= first_id && is_free(id));
            let free = kept.or_else(|| {
                // Members of a location that was removed stay in its group until they leave. So it is not always the lowest id
                // that is free, which may be that group's.
                let count = IDS_MAX.checked_sub(first_id).filter(|count| *count > 0)?;
                let begin = (xxh3_64(location.as_bytes()) % u64::from(count)) as u32;
                (0..count).map(|at| first_id + (begin + at) % count).find(is_free)
            });
            free.ok_or("no id is free there for its group")?
        }
    };
    let reflectors = Reflectors::new(&reflectors).ok_or("it names too many reflectors")?;
    Ok(LocationEntry { reflectors, group })
}

struct Source {
    shared: Arc<Shared>,
    processor: Processor,
}

impl Sense for Source {
    fn sense(&mut self, _now: Duration) -> Option<(usize, Metrics, Vec<Resource>)> {
        let (processor_now, processor) = self.processor.measure();
        let (load, _) = lock(&self.shared.latest).clone()?;
        let mut known = lock(&self.shared.known);
        known.clear();
        let mut resources = Vec::new();
        for group in load.groups.iter().filter(|group| group.is_movable) {
            let Some(location) = &group.location else { continue };
            if let Ok(id) = ResourceId::new(Kind::Group, location) {
                known.insert(id.clone(), (location.clone(), group.id));
                resources.push(Resource { id, load: group.copies });
            }
        }
        let mut metrics = Metrics {
            request_rate: load.copies,
            queue_length: load.waiting_bytes as f64 / 1024.0,
            processor,
            processor_now,
            memory_bytes: memory_bytes(),
            ..Metrics::default()
        };
        metrics.count(&resources);
        // Groups that cannot be moved are work all the same.
        metrics.kinds[Kind::Group as usize] = load.copies;
        (metrics.own_load, metrics.all_load) = (load.copies, load.copies);
        let further = [("reflector", 1.0), ("members", load.members as f64), ("datagrams", load.datagrams)];
        metrics.further.extend(further.map(|(name, value)| (name.to_owned(), value)));
        // The driver has it by its address.
        Some((0, metrics, resources))
    }

    fn reflector(&mut self) -> Option<Reflector> {
        *lock(&self.shared.published_at) = Some(Instant::now());
        let latest = lock(&self.shared.latest);
        let groups = latest.iter().flat_map(|(load, _)| &load.groups).take(PUBLISHED_RESOURCES_MAX);
        let groups = groups.map(|group| GroupLoad {
            group: group.id.to_string(),
            location: group.location.clone(),
            members: group.members,
            datagrams_per_second: group.datagrams,
            copies_per_second: group.copies,
        });
        Some(Reflector {
            address: self.shared.address.to_string(),
            ids: self.shared.ids,
            settings: self.shared.settings.clone(),
            groups: groups.collect(),
        })
    }

    fn migrations(&mut self) -> Vec<Migration> {
        let Some((load, at)) = lock(&self.shared.latest).clone() else { return Vec::new() };
        let from = self.shared.name(self.shared.address);
        let at_ms = u64::try_from(at.as_millis()).unwrap_or(u64::MAX);
        let migration = |departing: Departing| {
            let id = ResourceId::new(Kind::Group, &departing.location).ok()?;
            let phase = if departing.is_asking { Phase::Asking } else { Phase::Moving };
            let since_ms = at_ms.saturating_sub(departing.for_ms);
            let (from, to, members) = (from.clone(), self.shared.name(departing.to), Some(departing.members));
            Some(Migration { id, from, to, phase, since_ms, members })
        };
        load.departing.into_iter().filter_map(migration).collect()
    }
}

struct Mover(Arc<Shared>);

impl Migrate for Mover {
    fn migrate(&self, wanted: &Move) -> BoxFuture<'static, Result<(), StoreError>> {
        let (shared, id, to) = (self.0.clone(), wanted.id.clone(), wanted.to);
        async move { shared.relocate(&id, to).await }.boxed()
    }

    fn at_once(&self) -> usize {
        AT_ONCE
    }

    fn learn(&self, others: &[Published]) {
        let seats = others.iter().filter_map(|other| Some((other.rank, other.reflector.clone()?)));
        *lock(&self.0.seats) = seats.collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(list: &[(&str, &str)]) -> Snapshot {
        let mut all = Snapshot::default();
        all.entries.extend(list.iter().map(|(name, entry)| ((*name).to_owned(), entry.parse().unwrap())));
        all
    }

    fn moved(list: &[(&str, &str)], id: u32) -> Result<String, String> {
        let own = ["192.0.2.1:7400".parse().unwrap(), "192.0.2.9:7400".parse().unwrap()];
        let to = "192.0.2.2:7400".parse().unwrap();
        place(&all(list), "a", &own, GroupId { port: 7400, id }, to, 1024).map(|entry| entry.to_string())
    }

    #[test]
    fn a_group_that_is_moved_gets_an_id_that_nobody_else_has() {
        let place = |list: &[(&str, &str)]| moved(list, 5).unwrap().parse::<LocationEntry>().unwrap();
        let free = place(&[("a", "5 192.0.2.1:7400")]);
        assert_eq!(free.reflectors.first(), "192.0.2.2:7400".parse().unwrap());
        assert!(free.group > 1024, "that was perhaps the id of a location whose members are still there");
        let [next, after] = [0, 1].map(|further| format!("{} 192.0.2.3:7400", free.group + further));
        let taken = [("a", "5 192.0.2.1:7400"), ("b", &*next), ("c", &*after)];
        assert!(!(free.group..free.group + 2).contains(&place(&taken).group));
        let kept = [("a", "1030 192.0.2.9:7400,192.0.2.4:7400"), ("b", "1024 192.0.2.2:7400")];
        assert_eq!(moved(&kept, 1030).unwrap(), "1030 192.0.2.2:7400,192.0.2.4:7400");
    }

    #[test]
    fn a_standby_that_gets_a_group_changes_places() {
        let list = [("a", "5 192.0.2.1:7400,192.0.2.4:7400,192.0.2.2:7400")];
        assert_eq!(moved(&list, 5).unwrap(), "5 192.0.2.2:7400,192.0.2.4:7400,192.0.2.1:7400");
    }

    #[test]
    fn what_is_not_here_or_shared_stays() {
        assert!(moved(&[], 5).unwrap_err().contains("no such location"));
        assert!(moved(&[("a", "5 192.0.2.3:7400,192.0.2.1:7400")], 5).unwrap_err().contains("in charge"));
        assert!(moved(&[("a", "6 192.0.2.1:7400")], 5).unwrap_err().contains("in charge"));
        let shared = [("a", "5 192.0.2.1:7400"), ("b", "5 192.0.2.9:7400")];
        assert!(moved(&shared, 5).unwrap_err().contains("location \"b\""));
    }
}
