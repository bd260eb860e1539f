//! The balancer at a rank or a reflector: it publishes the metrics, reads those of the others, decides, and makes the moves
//! away from itself. Between two ticks it publishes the progress of moves where that has changed.
//!
//! Nothing here holds a lock of the rank. What is read of the store is waited for no longer than half a tick, and policies
//! run on a thread of their own.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{BoxFuture, select_all};
use nacre_map::log::{Entry, Level, Log};
use nacre_object::{ErrorKind, ObjectStore, StoreError};
use nacre_quantity::Escaped;

use crate::decide::{Balancer, Decision, Move, Note, Tick};
use crate::ledger::Ledger;
use crate::limit::{LATE_MOVES_MAX, PUBLISHED_MIGRATIONS_MAX, PUBLISHED_MOVES_MAX, REMEMBERED_MAX};
use crate::metric::Metrics;
use crate::migration::{Migration, Phase};
use crate::publish::{MadeMove, Participants, Published, participants, publish, published};
use crate::reflector::{self, Reflector, count_moved, present};
use crate::registry::{InForce, Registry};
use crate::resource::{Kind, Resource, ResourceId, Strays};
use crate::setting::Settings;

/// The moves away from a driver's rank.
pub trait Migrate: Send + Sync + 'static {
    /// Makes a move, and returns once it is durable. A move that fails leaves the resource where it was; of a subtree it may leave a
    /// part, which is a stray ([`Strays`]) from then on.
    fn migrate(&self, wanted: &Move) -> BoxFuture<'static, Result<(), StoreError>>;

    /// Returns the number of moves that are made at the same time.
    fn at_once(&self) -> usize {
        1
    }

    /// Learns what all have published, before moves are made of it.
    fn learn(&self, others: &[Published]) {
        let _ = others;
    }
}

/// A driver's view of its rank: load, and what can be moved.
pub trait Sense: Send + 'static {
    /// Returns the number of the rank, the metrics and the resources; `None` while the daemon is no rank.
    fn sense(&mut self, now: Duration) -> Option<(usize, Metrics, Vec<Resource>)>;

    /// Puts resources together that move as one, for which the store may have to be asked: after [`Sense::sense`], at ticks at
    /// which somebody has asked for balancing. Metrics change with it. Returns the resources that belong to other ranks.
    ///
    /// # Errors
    /// Those of the store. Nothing is moved then.
    fn arrange<'a>(
        &'a mut self,
        metrics: &'a mut Metrics,
        resources: &'a mut Vec<Resource>,
    ) -> BoxFuture<'a, Result<Strays, StoreError>> {
        let _ = (metrics, resources);
        futures::future::ready(Ok(Strays::new())).boxed()
    }

    /// Returns the reflector that this is, if it is one: it has a number by its address then, and not the one of
    /// [`Sense::sense`].
    fn reflector(&mut self) -> Option<Reflector> {
        None
    }

    /// Returns the moves away from here that are under way, whoever wants them.
    fn migrations(&mut self) -> Vec<Migration> {
        Vec::new()
    }
}

/// The interval at which the progress of moves is looked at.
const PROGRESS: Duration = Duration::from_secs(1);

/// The balancer at a rank, or at a reflector.
#[derive(derive_more::Debug)]
#[debug("Driver({name})")]
pub struct Driver {
    name: String,
    registry: Registry,
    log: Log,
    sense: Box<dyn Sense>,
    migrate: Arc<dyn Migrate>,
    /// `None` while a decision is made on another thread, or after that thread panicked.
    core: Option<Core>,
    /// The policy that is loaded, or could not be: its version.
    loaded: u64,
    moves: Vec<MadeMove>,
    /// The moves of this tick, as far as they are not made.
    planned: Vec<Migration>,
    /// The moves that took longer than their tick.
    late: Vec<(Move, Making)>,
    /// The failures of moves that were reported, by resource, until a move of it succeeds.
    failures: HashMap<ResourceId, String>,
    /// The load that was last published, and of a reflector the value of its key.
    own: Option<Published>,
    held: Bytes,
    /// The warnings of the tick before, which are not said again.
    said: Vec<String>,
    settings: Settings,
    /// True if somebody has asked for balancing, as the map was last read.
    is_asked: bool,
}

/// A move that is being made. It goes on if this is dropped.
type Making = tokio::task::JoinHandle<Result<(), StoreError>>;

/// The state of decisions.
struct Core {
    balancer: Balancer,
    ledger: Ledger,
    rank: usize,
}

impl Core {
    fn new(rank: usize) -> Self {
        Self { balancer: Balancer::new(rank), ledger: Ledger::default(), rank }
    }
}

impl Driver {
    /// Creates the driver of a rank or a reflector. `name` is that of its daemon, for the cluster log.
    ///
    /// # Errors
    /// None that a store is the cause of.
    pub fn new(
        store: Arc<dyn ObjectStore>,
        name: &str,
        sense: Box<dyn Sense>,
        migrate: Arc<dyn Migrate>,
    ) -> Result<Driver, StoreError> {
        Ok(Driver {
            name: name.to_owned(),
            log: Log::new(store.clone(), Default::default())?,
            registry: Registry::new(store)?,
            sense,
            migrate,
            core: None,
            loaded: 0,
            moves: Vec::new(),
            planned: Vec::new(),
            late: Vec::new(),
            failures: HashMap::new(),
            own: None,
            held: Bytes::new(),
            said: Vec::new(),
            settings: Settings::default(),
            is_asked: false,
        })
    }

    /// Runs until the future is dropped: a tick each time after a pause, which begins with the tick before.
    pub async fn run(mut self) {
        // Where ticks are shorter than by default, the first pause is, too. What cannot be read now is read at the first tick.
        if let Ok(in_force) = patient(self.settings.tick() / 2, self.registry.current()).await {
            self.settings.tick_ms = self.settings.tick_ms.min(in_force.settings.tick_ms);
        }
        let mut begun = tokio::time::Instant::now();
        loop {
            let due = begun + self.settings.tick();
            while tokio::time::Instant::now() < due {
                tokio::time::sleep_until(due.min(tokio::time::Instant::now() + PROGRESS)).await;
                if tokio::time::Instant::now() < due {
                    self.publish_progress().await;
                }
            }
            begun = tokio::time::Instant::now();
            self.tick().await;
        }
    }

    /// Makes one tick. Returns what was decided, if anything could be. Whatever fails is in the cluster log.
    pub async fn tick(&mut self) -> Option<Decision> {
        let mut warnings = Vec::new();
        let decision = self.try_tick(&mut warnings).await;
        self.say(warnings).await;
        decision
    }

    async fn try_tick(&mut self, warnings: &mut Vec<String>) -> Option<Decision> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.own = None;
        self.take_late(now, warnings);
        let Some((mut rank, mut metrics, mut resources)) = self.sense.sense(now) else {
            // Whoever takes the rank over begins anew.
            self.core = None;
            self.loaded = 0;
            return None;
        };
        let within = self.settings.tick() / 2;
        let in_force = match patient(within, self.registry.current()).await {
            Ok(in_force) => in_force,
            Err(error) => {
                // A store where nobody balances is not written to because it did not answer once.
                if self.is_asked || error.kind == ErrorKind::Corrupt {
                    warnings.push(format!("the balancer's settings cannot be read: {error}"));
                }
                return None;
            }
        };
        self.settings = in_force.settings.clone();
        self.is_asked = in_force != InForce::default();
        if !self.is_asked {
            // Where nobody balances, nothing is written. Versions may begin anew after that.
            self.core = None;
            self.loaded = 0;
            return None;
        }
        let strays = match patient(within, self.sense.arrange(&mut metrics, &mut resources)).await {
            Ok(strays) => strays,
            Err(error) => {
                warnings.push(format!("placed directories cannot be read: {error}; nothing is moved"));
                return None;
            }
        };
        // A resource that is on its way is not there to be moved again.
        resources.retain(|resource| self.late.iter().all(|(late, _)| late.id != resource.id));
        let store = self.registry.store().clone();
        let reflector = self.sense.reflector();
        let mut others = Vec::new();
        if let Some(reflector) = &reflector {
            match patient(within, reflector::claim(&*store, reflector, now)).await {
                Ok(Some(claim)) => (rank, self.held, others) = (claim.number, claim.held, claim.published),
                Ok(None) => {
                    warnings.push("there are more reflectors than can be balanced".to_owned());
                    return None;
                }
                Err(error) => {
                    warnings.push(format!("the load of other reflectors cannot be read: {error}"));
                    return None;
                }
            }
        }
        if self.core.as_ref().is_none_or(|core| core.rank != rank) {
            self.core = Some(Core::new(rank));
            self.loaded = 0;
        }
        self.load(&in_force, within, warnings).await;
        let mut core = self.core.take()?;
        let at_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let in_force = core.balancer.in_force();
        let mut own = Published::new(rank, at_ms, in_force, &metrics, &resources, &self.moves);
        own.migrations = self.migrations();
        let listed = own.resources.iter().filter_map(|resource| strays.get_key_value(&resource.id));
        own.strays = listed.map(|(id, rank)| (id.clone(), *rank)).collect();
        let is_reflector = reflector.is_some();
        own.reflector = reflector;
        let exchanged = async {
            self.publish_own(own.clone()).await?;
            // A reflector has read what the others published already.
            if is_reflector { Ok(others) } else { published(&*store).await }
        };
        let others = match patient(within, exchanged).await {
            Ok(others) => others,
            Err(error) => {
                let holder = if is_reflector { "reflectors" } else { "ranks" };
                warnings.push(format!("the load of other {holder} cannot be read: {error}"));
                self.core = Some(core);
                return None;
            }
        };
        if core.balancer.policy().is_none() {
            self.core = Some(core);
            return None;
        }
        let (others, numbers) = match self.participants(others, &own, now) {
            Ok(found) => found,
            Err(warning) => {
                warnings.push(warning);
                self.core = Some(core);
                return None;
            }
        };
        self.migrate.learn(&others);
        // What is moved because it is pinned, or is left of a subtree, tells nothing of the moves that policies make.
        let moves = others.iter().filter(|other| other.rank != rank).flat_map(|other| &other.moves);
        for MadeMove { at_ms, made } in moves.filter(|past| !past.made.is_pin) {
            // A clock that is ahead must not make the move look newer than those to come.
            core.ledger.observe(made, Duration::from_millis(*at_ms).min(now), self.settings.tick());
        }
        retain_whole(&mut resources, &others, rank);
        let mut ranks: Vec<Metrics> = others.into_iter().map(|other| other.metrics).collect();
        // What was just measured is not older than what was read; a slow clock may have made this rank look silent.
        let position = if is_reflector { numbers.binary_search(&rank).ok() } else { Some(rank) };
        match position.and_then(|position| ranks.get_mut(position)) {
            Some(own) => *own = metrics,
            None => {
                warnings.push(silent(rank));
                self.core = Some(core);
                return None;
            }
        }
        let settings = self.settings.with_strays(&strays);
        let decided = tokio::task::spawn_blocking(move || {
            let tick = Tick { now, ranks: &ranks, numbers: &numbers, resources: &resources };
            let decision = core.balancer.tick(&tick, &settings, &mut core.ledger);
            (core, decision)
        });
        let Ok((core, decision)) = decided.await else {
            warnings.push("a bug in the balancer ended its thread; it begins anew".to_owned());
            return None;
        };
        self.core = Some(core);
        warnings.extend(decision.notes.iter().filter(|note| note.is_warning()).map(Note::to_string));
        self.carry_out(&decision.moves, warnings).await;
        Some(decision)
    }

    /// Returns those that take part in a decision, in order, and the numbers of reflectors.
    ///
    /// # Errors
    /// A sentence about a rank without which nothing can be decided.
    fn participants(
        &self,
        mut published: Vec<Published>,
        own: &Published,
        now: Duration,
    ) -> Result<(Vec<Published>, Vec<usize>), String> {
        let tick = self.settings.tick();
        if own.reflector.is_none() {
            return match participants(published, now, tick) {
                Participants::All(others) => Ok((others, Vec::new())),
                Participants::Silent { rank, .. } => Err(silent(rank)),
            };
        }
        // It was read before this one published.
        published.retain(|read| read.rank != own.rank);
        published.push(own.clone());
        published.sort_by_key(|read| read.rank);
        let mut others = present(published, now, tick);
        count_moved(&mut others, own.rank, self.late.iter().map(|(late, _)| late));
        let numbers = others.iter().map(|read| read.rank).collect();
        Ok((others, numbers))
    }

    /// Returns the moves under way: those that the rank or the reflector knows of, and those of this tick.
    fn migrations(&mut self) -> Vec<Migration> {
        let mut migrations = self.sense.migrations();
        let known = migrations.len();
        for planned in &self.planned {
            if migrations[..known].iter().all(|migration| migration.id != planned.id) {
                migrations.push(planned.clone());
            }
        }
        migrations.truncate(PUBLISHED_MIGRATIONS_MAX);
        migrations
    }

    async fn publish_own(&mut self, own: Published) -> Result<(), StoreError> {
        let store = self.registry.store().clone();
        match own.reflector {
            None => publish(&*store, &own).await?,
            Some(_) => match reflector::publish(&*store, &own, &self.held).await? {
                Some(held) => self.held = held,
                None => {
                    let text = "another reflector has its number; it gets another one at the next tick";
                    return Err(StoreError::new(ErrorKind::Busy, text));
                }
            },
        }
        self.own = Some(own);
        Ok(())
    }

    /// Publishes the moves that are under way and those that were made, if they are others than before.
    async fn publish_progress(&mut self) {
        let Some(own) = self.own.clone() else { return };
        let mut changed = own.clone();
        (changed.migrations, changed.moves) = (self.migrations(), self.moves.clone());
        if changed != own {
            // What is not published now is published at the next tick.
            let within = self.settings.tick() / 2;
            let _ = patient(within, self.publish_own(changed)).await;
        }
    }

    /// Takes the outcomes of moves that took longer than their tick.
    fn take_late(&mut self, now: Duration, warnings: &mut Vec<String>) {
        for (made, mut making) in std::mem::take(&mut self.late) {
            match (&mut making).now_or_never() {
                None => {
                    if let Some(core) = &mut self.core {
                        core.ledger.goes_on(&made.id, now);
                    }
                    self.late.push((made, making));
                }
                Some(ended) => self.ended(&made, flat(ended), warnings),
            }
        }
    }

    /// Notes the outcome of a move.
    fn ended(&mut self, made: &Move, outcome: Result<(), StoreError>, warnings: &mut Vec<String>) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.planned.retain(|planned| planned.id != made.id);
        match outcome {
            Ok(()) => {
                let at_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
                if self.moves.len() >= PUBLISHED_MOVES_MAX {
                    self.moves.remove(0);
                }
                self.moves.push(MadeMove { at_ms, made: made.clone() });
                self.failures.remove(&made.id);
                if let Some(core) = self.core.as_mut().filter(|_| made.is_pin) {
                    core.ledger.arrived(&made.id);
                }
            }
            Err(error) => {
                let (id, holder, to) = (made.id.to_string(), made.id.kind.holder(), made.to);
                let text = format!("cannot move {} to {holder} {to}: {error}", Escaped::of(&id));
                if let Some(core) = &mut self.core {
                    core.ledger.failed(&made.id, now, self.settings.tick());
                }
                // It is tried again, less and less often, and is not worth a line each time.
                if self.failures.get(&made.id) != Some(&text) {
                    if self.failures.len() >= REMEMBERED_MAX {
                        self.failures.clear();
                    }
                    self.failures.insert(made.id.clone(), text.clone());
                    warnings.push(text);
                }
            }
        }
    }

    /// Loads the policy in force, if that is another one than before. If it cannot be had, the one before stays.
    async fn load(&mut self, in_force: &InForce, within: Duration, warnings: &mut Vec<String>) {
        let Some(core) = &mut self.core else { return };
        if in_force.version == self.loaded {
            return;
        }
        let Some(stored) = &in_force.policy else {
            core.balancer.remove();
            self.loaded = in_force.version;
            return;
        };
        match self.registry.fetch(in_force, stored, within).await {
            Ok(policy) => {
                core.balancer.install(Arc::new(policy));
                self.loaded = in_force.version;
            }
            Err((error, is_worth_another)) => {
                let stays = match core.balancer.in_force() {
                    Some((name, version)) => format!("\"{name}\" of version {version} stays in force"),
                    None => "nothing is balanced".to_owned(),
                };
                warnings.push(format!(
                    "version {} of the policy cannot be used: {error}; {stays}",
                    in_force.version
                ));
                if !is_worth_another {
                    self.loaded = in_force.version;
                }
            }
        }
    }

    /// Makes moves within a tick, in order, and as many at once as there may be.
    async fn carry_out(&mut self, moves: &[Move], warnings: &mut Vec<String>) {
        if moves.is_empty() {
            return;
        }
        if self.late.len() >= LATE_MOVES_MAX {
            warnings.push(format!("{} moves are still under way; no more are begun", self.late.len()));
            return self.not_begun(moves);
        }
        let end = tokio::time::Instant::now() + self.settings.tick();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let since_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let planned = moves.iter().map(|wanted| {
            let holder = wanted.id.kind.holder();
            let [from, to] = [wanted.from, wanted.to].map(|number| format!("{holder} {number}"));
            Migration { id: wanted.id.clone(), from, to, phase: Phase::Waiting, since_ms, members: None }
        });
        // Beside those that took longer than their tick.
        self.planned.extend(planned);
        let (mut begun, mut making): (usize, Vec<(Move, Making)>) = (0, Vec::new());
        loop {
            while making.len() < self.migrate.at_once().max(1)
                && let Some(wanted) = moves.get(begun)
            {
                begun += 1;
                if let Some(planned) = self.planned.iter_mut().find(|planned| planned.id == wanted.id) {
                    planned.phase = Phase::Moving;
                }
                making.push((wanted.clone(), tokio::spawn(self.migrate.migrate(wanted))));
            }
            if making.is_empty() {
                break;
            }
            // A short one is not worth a line of progress.
            let wake = end.min(tokio::time::Instant::now() + PROGRESS / 4);
            let first = select_all(making.iter_mut().map(|(_, making)| making));
            let first = tokio::time::timeout_at(wake, first).await.ok().map(|(ended, at, _)| (ended, at));
            match first {
                Some((ended, at)) => {
                    let (made, _) = making.remove(at);
                    self.ended(&made, flat(ended), warnings);
                }
                None if tokio::time::Instant::now() >= end => break,
                None => self.publish_progress().await,
            }
        }
        if let Some((late, _)) = making.first() {
            warnings
                .push(format!("moving {late} takes longer than a tick; the moves behind it are not begun"));
            self.late.append(&mut making);
            self.not_begun(&moves[begun..]);
        }
        self.publish_progress().await;
    }

    /// Notes that moves are not begun.
    fn not_begun(&mut self, moves: &[Move]) {
        self.planned.retain(|planned| moves.iter().all(|wanted| wanted.id != planned.id));
        if let Some(core) = &mut self.core {
            moves.iter().for_each(|wanted| core.ledger.not_begun(&wanted.id));
        }
    }

    /// Appends what has not been said at the tick before to the cluster log. A store that does not take it loses it.
    async fn say(&mut self, warnings: Vec<String>) {
        let new: Vec<&String> = warnings.iter().filter(|text| !self.said.contains(text)).collect();
        let source = format!("{}, balancer", self.name);
        let entries: Vec<Entry> = new.iter().map(|text| Entry::new(&source, Level::Warning, text)).collect();
        if !entries.is_empty() {
            let _ = patient(self.settings.tick() / 2, self.log.append(&entries)).await;
        }
        self.said = warnings;
    }
}

/// Leaves out the subtrees of which a part has yet to come from another rank: they are moved on once all of it is here.
fn retain_whole(resources: &mut Vec<Resource>, others: &[Published], rank: usize) {
    let others = others.iter().filter(|other| other.rank != rank);
    let coming: HashSet<&ResourceId> =
        others.flat_map(|other| &other.migrations).map(|migration| &migration.id).collect();
    resources.retain(|resource| resource.id.kind != Kind::Subtree || !coming.contains(&resource.id));
}

/// The warning about a rank without which nothing can be decided: the same at every tick, so that it is said once.
fn silent(rank: usize) -> String {
    format!("rank {rank} has not published its load lately; nothing is moved")
}

/// Returns the outcome of a move.
fn flat(ended: Result<Result<(), StoreError>, tokio::task::JoinError>) -> Result<(), StoreError> {
    ended.unwrap_or_else(|error| {
        Err(StoreError::new(ErrorKind::Io, format!("moving it ended early: {error}")))
    })
}

/// Waits for a store no longer than a time.
async fn patient<T>(
    within: Duration,
    future: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(within, future).await {
        Ok(result) => result,
        Err(_) => Err(StoreError::new(
            ErrorKind::Unavailable,
            format!("the store did not answer within {within:?}"),
        )),
    }
}
