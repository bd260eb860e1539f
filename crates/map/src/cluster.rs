//! The servers of a store: the map of them, the beacons that they send, and the monitors that mark them down and up.
//!
//! Beacons are keys of an object of their own, overwritten again and again; the map changes only with what matters. Every
//! server runs [`run`]; the first few that are up are monitors too, over which the others watch. Several of them may decide the same at once: each
//! change of the map is conditional on the entry, so one of them makes it, and only that one says so in the log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use nacre_object::limit::PAGE_ENTRIES_MAX;
use nacre_object::{
    Answer, ErrorKind, Key, KeyRange, ObjectId, ObjectStore, Outcome, ReadOp, StoreError, Transaction,
    WriteOp,
};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::health::{Monitor, Observed, Pulse, Settings, Standing};
use crate::log::{Level, Writer};
use crate::map::{ClusterMap, News};
use crate::propose::{ProposeError, Proposer};
use crate::state::State;
use crate::update::Update;

/// The name of the map of servers.
pub const SERVERS_MAP: &str = "servers";
/// The object with the beacons.
pub const BEACONS_OBJECT: &str = "nacre/beacons";
/// The number of servers that are monitors.
const MONITORS: usize = 3;
/// The time that a server takes at most to say that it stops.
const STOP_MAX: Duration = Duration::from_millis(500);

/// The state of a server, as its entry has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// A server that sends beacons.
    Up,
    /// A server that was silent for too long.
    Down,
    /// A server that ended in good order.
    Stopped,
}

impl From<Phase> for Standing {
    fn from(phase: Phase) -> Standing {
        match phase {
            Phase::Up => Standing::Up,
            Phase::Down => Standing::Down,
            Phase::Stopped => Standing::Stopped,
        }
    }
}

/// An entry of the map of servers; its value is this as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerEntry {
    /// The number of the server among those of the store.
    pub rank: u64,
    /// The address by which clients reach it.
    pub address: String,
    /// Its roles.
    pub roles: Vec<String>,
    /// Its state.
    pub state: Phase,
    /// The number of times that it went down and was not up for long since.
    pub downs: u32,
    /// The number that it chose at its start.
    pub incarnation: u64,
}

impl ServerEntry {
    /// Reads an entry's value; `None` if it is not one of a server.
    pub fn decode(value: &[u8]) -> Option<ServerEntry> {
        serde_json::from_slice(value).ok()
    }

    fn encode(&self) -> Result<Bytes, StoreError> {
        encode(self)
    }
}

/// The load of a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Load {
    /// The time since its start, in seconds.
    pub up_s: u64,
    /// Open connections.
    pub connections: u64,
    /// Requests that wait for the store.
    pub in_flight: u64,
    /// Requests since its start.
    pub requests: u64,
    /// The error for which its store takes no writes, if there is one.
    #[serde(alias = "trouble")]
    pub error: Option<String>,
}

/// A beacon; the value of a server's key is this as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Beacon {
    /// The number that the server chose at its start.
    pub incarnation: u64,
    /// The number of the beacon since.
    pub sequence: u64,
    /// The epoch of the map of servers that it knows.
    pub epoch: u64,
    /// Its load.
    pub load: Load,
}

fn encode(value: &impl Serialize) -> Result<Bytes, StoreError> {
    serde_json::to_vec(value)
        .map(Bytes::from)
        .map_err(|error| StoreError::new(ErrorKind::Invalid, error.to_string()))
}

/// The settings of a server that takes part.
#[derive(Debug)]
pub struct Options {
    /// Its name, which no other server of the store has.
    pub name: String,
    /// Its number among those of the store.
    pub rank: u64,
    /// The address by which clients reach it.
    pub address: String,
    /// Its roles.
    pub roles: Vec<String>,
    /// The time between two beacons.
    pub interval: Duration,
    /// The settings of its monitor.
    pub health: Settings,
}

/// The source of a server's load.
pub type LoadSource = Box<dyn Fn() -> BoxFuture<'static, Load> + Send + Sync>;

/// Returns the latest beacons of all servers, by their names.
///
/// # Errors
/// Those of the store.
pub async fn beacons(store: &dyn ObjectStore) -> Result<BTreeMap<String, Beacon>, StoreError> {
    let object = ObjectId::new(BEACONS_OBJECT)?;
    let (mut found, mut range) = (BTreeMap::new(), KeyRange::all());
    loop {
        let read = ReadOp::Keys { range: range.clone(), limit: PAGE_ENTRIES_MAX as u32, values: true };
        let Outcome::Done(done) = store.apply(&object, Transaction::new().read(read)).await? else {
            return Ok(found);
        };
        let Some(Answer::Keys(page)) = done.answers.into_iter().next() else { return Ok(found) };
        for (key, value) in &page.entries {
            // What others may have put there is no beacon.
            let name = std::str::from_utf8(key.as_bytes());
            if let (Ok(name), Ok(beacon)) = (name, serde_json::from_slice(value)) {
                found.insert(name.to_owned(), beacon);
            }
        }
        match page.entries.last() {
            Some((last, _)) if page.more => range.after = Some(last.to_bytes()),
            _ => return Ok(found),
        }
    }
}

/// Returns the latest beacons of some servers, by their names.
async fn beacons_of(
    store: &dyn ObjectStore,
    names: &[String],
) -> Result<BTreeMap<String, Beacon>, StoreError> {
    let keys = names.iter().map(|name| Ok(ReadOp::Key { key: Key::try_from(name.as_str())? }));
    let reads = keys.collect::<Result<Vec<_>, StoreError>>()?;
    let mut found = BTreeMap::new();
    let transaction = Transaction { reads, ..Transaction::new() };
    let Outcome::Done(done) = store.apply(&ObjectId::new(BEACONS_OBJECT)?, transaction).await? else {
        return Ok(found);
    };
    for (name, answer) in names.iter().zip(done.answers) {
        if let Answer::Value(Some(value)) = answer
            && let Ok(beacon) = serde_json::from_slice(&value)
        {
            found.insert(name.clone(), beacon);
        }
    }
    Ok(found)
}

/// The beacons of a server: sent beside its work on the map, so that a map that is slow to answer makes no server look
/// silent.
struct Sender {
    store: Arc<dyn ObjectStore>,
    object: ObjectId,
    key: Key,
    load: LoadSource,
    incarnation: u64,
    sequence: u64,
    interval: Duration,
    patience: Duration,
    epoch: Arc<AtomicU64>,
    /// True while it is silent.
    is_quiet: Arc<AtomicBool>,
}

impl Sender {
    /// Sends beacons for ever.
    async fn run(mut self) {
        let mut ticks = interval(self.interval);
        // After a pause the beacons that were missed are of no use.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if self.is_quiet.load(Ordering::Relaxed) {
                continue;
            }
            match timeout(self.patience, self.send()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!("beacons: {error}"),
                Err(_) => tracing::debug!("beacons: the store has not answered for {:?}", self.patience),
            }
        }
    }

    async fn send(&mut self) -> Result<(), StoreError> {
        self.sequence += 1;
        let beacon = Beacon {
            incarnation: self.incarnation,
            sequence: self.sequence,
            epoch: self.epoch.load(Ordering::Relaxed),
            load: (self.load)().await,
        };
        let write = WriteOp::SetKey { key: self.key.clone(), value: encode(&beacon)? };
        self.store.apply(&self.object, Transaction::new().change(write)).await?;
        Ok(())
    }
}

/// A server that takes part.
struct Server {
    store: Arc<dyn ObjectStore>,
    options: Options,
    key: Key,
    writer: Writer,
    proposer: Proposer,
    map: ClusterMap,
    /// The map of servers as it is known.
    state: State,
    /// Its epoch, for the beacons.
    epoch: Arc<AtomicU64>,
    incarnation: u64,
    monitor: Monitor,
    began: Instant,
    /// True once it has said that it has started.
    announced: bool,
    /// True once it has entered itself, and as long as the map still has that epoch.
    registered: bool,
    /// The server that has taken its name, if there is one.
    rival: Option<NameConflict>,
    /// Keeps the beacons back.
    is_quiet: Arc<AtomicBool>,
}

/// Another server that runs under the same name.
struct NameConflict {
    /// Its latest beacon.
    pulse: Option<Pulse>,
    /// The number of looks since, in a row, that found no other one.
    looks: u32,
}

/// Takes part until `stop` completes: sends beacons, is in the map, and watches over the others. What the store fails with is
/// waited for.
///
/// # Errors
/// `Invalid` if the name cannot be that of an entry.
pub async fn run(
    store: Arc<dyn ObjectStore>,
    options: Options,
    load: LoadSource,
    writer: Writer,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), StoreError> {
    let map = ClusterMap::new(store.clone(), SERVERS_MAP)?;
    // The silence of a shorter time than that of two beacons says nothing.
    let mut options = options;
    options.health.silence = options.health.silence.max(options.interval * 2);
    let key = Key::try_from(options.name.as_str())?;
    let incarnation = rand::random::<u32>().into();
    let epoch = Arc::new(AtomicU64::new(0));
    let is_quiet = Arc::new(AtomicBool::new(false));
    let sender = Sender {
        store: store.clone(),
        object: ObjectId::new(BEACONS_OBJECT)?,
        key: key.clone(),
        load,
        incarnation,
        sequence: 0,
        interval: options.interval,
        patience: options.health.silence,
        epoch: epoch.clone(),
        is_quiet: is_quiet.clone(),
    };
    let mut server = Server {
        key,
        proposer: map.proposer(Default::default()),
        state: State::default(),
        epoch,
        incarnation,
        monitor: Monitor::new(options.health),
        began: Instant::now(),
        announced: false,
        registered: false,
        rival: None,
        is_quiet,
        store,
        options,
        writer,
        map,
    };
    tokio::select! {
        () = stop => {}
        () = sender.run() => {}
        () = server.run() => {}
    }
    let _ = timeout(STOP_MAX, server.leave()).await;
    Ok(())
}

impl Server {
    /// Keeps this server in the map and watches over the others, for ever.
    async fn run(&mut self) {
        let patience = self.options.health.silence;
        let mut ticks = interval(self.options.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            match timeout(patience, self.tick()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!("the map of servers: {error}"),
                Err(_) => tracing::debug!("the map of servers: the store has not answered for {patience:?}"),
            }
        }
    }

    async fn tick(&mut self) -> Result<(), StoreError> {
        self.refresh().await?;
        self.stand().await?;
        self.look().await
    }

    async fn refresh(&mut self) -> Result<(), StoreError> {
        let read = self.read().await;
        self.epoch.store(self.state.epoch(), Ordering::Relaxed);
        read
    }

    async fn read(&mut self) -> Result<(), StoreError> {
        loop {
            match self.map.news(&self.state).await? {
                News::Nothing => return Ok(()),
                News::Records(records, header) => {
                    let advanced = self.state.advance(&records, &header);
                    advanced.map_err(|error| StoreError::new(ErrorKind::Corrupt, error.to_string()))?;
                    if self.state.epoch() >= header.epoch {
                        return Ok(());
                    }
                }
                News::Everything(state) => {
                    // The map was made anew, or the store has lost its latest epochs, which may be those of this server.
                    let is_later = state.epoch() >= self.state.epoch();
                    self.registered &= is_later && state.incarnation() == self.state.incarnation();
                    self.state = state;
                    return Ok(());
                }
            }
        }
    }

    fn entry(&self) -> Option<ServerEntry> {
        ServerEntry::decode(&self.state.get(self.key.as_bytes())?.value)
    }

    /// Proposes this server's own entry, on condition that it is unchanged since it was read.
    async fn enter(&mut self, entry: &ServerEntry) -> Result<bool, StoreError> {
        let version = self.state.get(self.key.as_bytes()).map_or(0, |entry| entry.version);
        self.propose(self.key.clone(), version, entry).await
    }

    async fn propose(&self, key: Key, version: u64, entry: &ServerEntry) -> Result<bool, StoreError> {
        let update =
            Update::new(self.options.name.clone()).if_version(key.clone(), version).set(key, entry.encode()?);
        match self.proposer.propose(update).await {
            Ok(_) => Ok(true),
            // Another one has changed it; it is read again before the next attempt.
            Err(ProposeError::Refused(refused)) => {
                tracing::debug!("the map of servers: {refused}");
                Ok(false)
            }
            Err(ProposeError::Store(error)) => Err(error),
        }
    }

    /// Sees to it that this server is in the map. Of two that run under one name, each enters itself once at its start: the
    /// later one has the name, and the other gives way as long as it sees its beacons.
    async fn stand(&mut self) -> Result<(), StoreError> {
        match self.entry() {
            Some(entry) if entry.incarnation == self.incarnation => {
                self.registered = true;
                self.rival = None;
                self.is_quiet.store(false, Ordering::Relaxed);
                Ok(())
            }
            Some(_) if self.registered => self.give_way().await,
            _ => self.register().await,
        }
    }

    /// Is silent while another server of this name sends beacons, and enters this one again if none does any more.
    async fn give_way(&mut self) -> Result<(), StoreError> {
        let name = self.options.name.clone();
        if self.rival.is_none() {
            let text = format!(
                "another server has taken the name {name}; this one sends no beacons until that one ends: give each server \
                 a name of its own"
            );
            tracing::warn!("{text}");
            self.writer.write(Level::Warning, &text);
            self.is_quiet.store(true, Ordering::Relaxed);
        }
        let found = beacons_of(&*self.store, std::slice::from_ref(&name)).await?;
        let pulse = found.get(&name).filter(|beacon| beacon.incarnation != self.incarnation);
        let pulse = pulse.map(|beacon| Pulse { incarnation: beacon.incarnation, sequence: beacon.sequence });
        let looks = match &self.rival {
            Some(rival) if rival.pulse == pulse => rival.looks + 1,
            _ => 0,
        };
        self.rival = Some(NameConflict { pulse, looks });
        // By looks rather than by time: while the store does not answer, nobody's beacons are seen.
        let Options { interval, health, .. } = &self.options;
        if f64::from(looks) * interval.as_secs_f64() > health.silence.as_secs_f64() {
            self.register().await?;
        }
        Ok(())
    }

    /// Enters this server. One that is down in the map stays so until the monitors have seen enough of its beacons.
    async fn register(&mut self) -> Result<(), StoreError> {
        let before = self.entry();
        let state = match before.as_ref().map(|before| before.state) {
            Some(Phase::Down) => Phase::Down,
            _ => Phase::Up,
        };
        let entry = ServerEntry {
            rank: self.options.rank,
            address: self.options.address.clone(),
            roles: self.options.roles.clone(),
            state,
            downs: before.map_or(0, |before| before.downs),
            incarnation: self.incarnation,
        };
        if self.enter(&entry).await? {
            self.registered = true;
            if !std::mem::replace(&mut self.announced, true) {
                self.writer.write(Level::Info, &format!("server {} has started", self.options.name));
            }
            self.refresh().await?;
        }
        Ok(())
    }

    /// Says that the server stops.
    async fn leave(&mut self) -> Result<(), StoreError> {
        loop {
            self.refresh().await?;
            let Some(entry) = self.entry().filter(|entry| entry.incarnation == self.incarnation) else {
                return Ok(());
            };
            // A monitor may change it at the same time.
            if self.enter(&ServerEntry { state: Phase::Stopped, ..entry }).await? {
                self.writer.write(Level::Info, &format!("server {} has stopped", self.options.name));
                return Ok(());
            }
        }
    }

    /// Returns the monitors if this server is none of them: the first that are up, in the order of their names.
    fn monitors(&self) -> Option<Vec<String>> {
        let others = self.state.entries().iter().take_while(|(name, _)| **name < self.key);
        let up = others.filter_map(|(name, value)| {
            let is_up = ServerEntry::decode(&value.value).is_some_and(|entry| entry.state == Phase::Up);
            String::from_utf8(name.as_bytes().to_vec()).ok().filter(|_| is_up)
        });
        Some(up.take(MONITORS).collect()).filter(|up: &Vec<String>| up.len() == MONITORS)
    }

    /// Looks at the beacons of the servers that this one watches over, and makes the changes that are due. A monitor
    /// watches over all of them, the others over the monitors: should these die all at once, others take their place.
    async fn look(&mut self) -> Result<(), StoreError> {
        let monitors = self.monitors();
        let beacons = match &monitors {
            None => beacons(&*self.store).await?,
            Some(monitors) => beacons_of(&*self.store, monitors).await?,
        };
        let mut servers = Vec::new();
        for (name, value) in self.state.entries() {
            let (Ok(name), Some(entry)) =
                (std::str::from_utf8(name.as_bytes()), ServerEntry::decode(&value.value))
            else {
                continue;
            };
            if monitors.as_ref().is_some_and(|monitors| monitors.iter().all(|monitor| monitor != name)) {
                continue;
            }
            let pulse = beacons
                .get(name)
                .map(|beacon| Pulse { incarnation: beacon.incarnation, sequence: beacon.sequence });
            servers.push(Observed {
                name: name.to_owned(),
                standing: entry.state.into(),
                downs: entry.downs,
                pulse,
            });
        }
        for decision in self.monitor.look(self.began.elapsed(), &servers) {
            // A server knows that it is up itself.
            let is_own_end = decision.name == self.options.name && decision.standing == Standing::Down;
            let key = Key::try_from(decision.name.as_str())?;
            let Some(value) = self.state.get(key.as_bytes()).filter(|_| !is_own_end) else { continue };
            let Some(entry) = ServerEntry::decode(&value.value) else { continue };
            let seconds = decision.since.as_secs_f64();
            let (state, level, text) = match decision.standing {
                Standing::Up => {
                    (Phase::Up, Level::Info, format!("is up again, after {seconds:.1} s of beacons"))
                }
                _ => (
                    Phase::Down,
                    Level::Warning,
                    format!("is down: it has sent no beacon for {seconds:.1} s"),
                ),
            };
            let entry = ServerEntry { state, downs: decision.downs, ..entry };
            if self.propose(key, value.version, &entry).await? {
                self.writer.write(level, &format!("server {} {text}", decision.name));
            }
        }
        Ok(())
    }
}
