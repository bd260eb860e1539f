//! The balancer at a rank: it publishes the rank's metrics, reads those of the others, decides, and makes the moves away
//! from itself.
//!
//! Nothing here holds a lock of the rank. What is read of the store is waited for no longer than half a tick, and policies
//! run on a thread of their own.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::future::BoxFuture;
use nacre_map::log::{Entry, Level, Log};
use nacre_object::{ErrorKind, ObjectStore, StoreError};
use nacre_quantity::Escaped;

use crate::decide::{Balancer, Decision, Move, Note, Tick};
use crate::ledger::Ledger;
use crate::limit::PUBLISHED_MOVES_MAX;
use crate::metric::Metrics;
use crate::publish::{MadeMove, Participants, Published, participants, publish, published};
use crate::registry::{InForce, Registry};
use crate::resource::Resource;
use crate::setting::Settings;

/// The moves away from a driver's rank.
pub trait Migrate: Send + Sync + 'static {
    /// Makes a move, and returns once it is durable. A move whose future is dropped may go on.
    fn migrate(&self, wanted: &Move) -> BoxFuture<'static, Result<(), StoreError>>;
}

/// A driver's view of its rank: load, and what can be moved.
pub trait Sense: Send + 'static {
    /// Returns the number of the rank, the metrics and the resources; `None` while the daemon is no rank.
    fn sense(&mut self, now: Duration) -> Option<(usize, Metrics, Vec<Resource>)>;
}

/// The balancer at a rank.
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
    /// The warnings of the tick before, which are not said again.
    said: Vec<String>,
    settings: Settings,
    /// True if somebody has asked for balancing, as the map was last read.
    is_asked: bool,
}

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
    /// Creates the driver of a rank. `name` is that of its daemon, for the cluster log.
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
            tokio::time::sleep_until(begun + self.settings.tick()).await;
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
        let Some((rank, metrics, resources)) = self.sense.sense(now) else {
            // Whoever takes the rank over begins anew.
            self.core = None;
            self.loaded = 0;
            return None;
        };
        if self.core.as_ref().is_none_or(|core| core.rank != rank) {
            self.core = Some(Core::new(rank));
            self.loaded = 0;
        }
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
        self.load(&in_force, within, warnings).await;
        let mut core = self.core.take()?;
        let at_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let own = Published::new(rank, at_ms, core.balancer.in_force(), &metrics, &resources, &self.moves);
        let store = self.registry.store().clone();
        let others = async {
            publish(&*store, &own).await?;
            published(&*store).await
        };
        let others = match patient(within, others).await {
            Ok(others) => others,
            Err(error) => {
                warnings.push(format!("the load of other ranks cannot be read: {error}"));
                self.core = Some(core);
                return None;
            }
        };
        if core.balancer.policy().is_none() {
            self.core = Some(core);
            return None;
        }
        let others = match participants(others, now, self.settings.tick()) {
            Participants::All(others) => others,
            Participants::Silent { rank, .. } => {
                warnings.push(silent(rank));
                self.core = Some(core);
                return None;
            }
        };
        for MadeMove { at_ms, made } in
            others.iter().filter(|other| other.rank != rank).flat_map(|other| &other.moves)
        {
            // A clock that is ahead must not make the move look newer than those to come.
            core.ledger.observe(made, Duration::from_millis(*at_ms).min(now), self.settings.tick());
        }
        let mut ranks: Vec<Metrics> = others.into_iter().map(|other| other.metrics).collect();
        // What was just measured is not older than what was read; a slow clock may have made this rank look silent.
        match ranks.get_mut(rank) {
            Some(own) => *own = metrics,
            None => {
                warnings.push(silent(rank));
                self.core = Some(core);
                return None;
            }
        }
        let settings = self.settings.clone();
        let decided = tokio::task::spawn_blocking(move || {
            let tick = Tick { now, ranks: &ranks, resources: &resources };
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

    /// Makes moves, one after another, within a tick.
    async fn carry_out(&mut self, moves: &[Move], warnings: &mut Vec<String>) {
        let end = tokio::time::Instant::now() + self.settings.tick();
        for (at, wanted) in moves.iter().enumerate() {
            match tokio::time::timeout_at(end, self.migrate.migrate(wanted)).await {
                Ok(Ok(())) => {
                    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                    let at_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
                    if self.moves.len() >= PUBLISHED_MOVES_MAX {
                        self.moves.remove(0);
                    }
                    self.moves.push(MadeMove { at_ms, made: wanted.clone() });
                }
                Ok(Err(error)) => {
                    let (id, to) = (wanted.id.to_string(), wanted.to);
                    warnings.push(format!("cannot move {} to rank {to}: {error}", Escaped::of(&id)));
                    if let Some(core) = &mut self.core {
                        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                        core.ledger.failed(&wanted.id, now, self.settings.tick());
                    }
                }
                Err(_) => {
                    warnings.push(format!(
                        "moving {wanted} takes longer than a tick; the moves behind it are not begun"
                    ));
                    if let Some(core) = &mut self.core {
                        moves[at + 1..].iter().for_each(|behind| core.ledger.not_begun(&behind.id));
                    }
                    return;
                }
            }
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

/// The warning about a rank without which nothing can be decided: the same at every tick, so that it is said once.
fn silent(rank: usize) -> String {
    format!("rank {rank} has not published its load lately; nothing is moved")
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
