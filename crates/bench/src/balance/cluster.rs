//! A store, and the metadata ranks in front of it, each within its share of a processor.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nacre_balance::{BalanceError, Registry, published, shipped};
use tempfile::TempDir;

use super::point::{Point, System};
use super::share::{Limited, Means};
use crate::BenchError;
use crate::kit::machine::now_ns;
use crate::kit::peer::temporary_folder;
use crate::kit::server::{self, Daemon, Durability};
use crate::sequencer::failover::create;

/// The metadata ranks.
pub(super) const RANKS: u32 = 3;
/// The rank that a sequencer is moved to by hand.
const TARGET: u32 = 1;
/// The author of changes of the balancer's settings.
const AUTHOR: &str = "bench";
/// The longest wait for ranks to act, and to publish.
const PATIENCE: Duration = Duration::from_secs(60);
/// The wait of the policy that ships as "conservative", as its text has it.
const WAIT: &str = "local WAIT = 120\n";
/// The time around that of a move by a policy within which the sequencer's pause is looked for.
const AROUND: Duration = Duration::from_millis(200);

/// A move of a sequencer. Times are those of the clock that all processes of the machine have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moved {
    pub(super) sequencer: u32,
    pub(super) from: u32,
    pub(super) to: u32,
    /// The time at which it was done.
    pub(super) at: Duration,
    /// The time within which the sequencer's pause lies.
    pub(super) within: (Duration, Duration),
}

/// The servers of a measurement. Dropping it ends them.
pub(super) struct Cluster {
    store: nacre::Store,
    registry: Registry,
    ranks: Vec<Limited>,
    keeper: Daemon,
    _folder: TempDir,
}

/// Returns the name of a sequencer.
pub(super) fn name(number: u32) -> String {
    format!("study-{number}")
}

/// Returns the time of the clock that all processes of the machine have in common.
pub(super) fn now() -> Duration {
    Duration::from_nanos(now_ns())
}

/// Returns the time since 1970, which ranks go by.
fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn failed(error: BalanceError) -> BenchError {
    match error {
        BalanceError::Store(error) => error.into(),
        error => BenchError::Process(format!("the balancer's settings were not changed: {error}")),
    }
}

/// Returns the text of a policy that ships, with the wait of the study if it has one.
///
/// # Errors
/// If there is no such policy, or it has no wait that could be shortened.
fn policy_text(policy: &str, wait_ms: u64) -> Result<String, BenchError> {
    let missing = |what: &str| BenchError::Process(format!("the policy \"{policy}\" {what}"));
    let text = shipped(policy).ok_or_else(|| missing("does not ship"))?.text;
    if policy != "conservative" {
        return Ok(text.to_owned());
    }
    match text.contains(WAIT) {
        true => Ok(text.replace(WAIT, &format!("local WAIT = {}\n", wait_ms as f64 / 1e3))),
        false => Err(missing("has another wait than the study takes it to have")),
    }
}

impl Cluster {
    /// Starts the servers, and creates the sequencers, all of them at rank 0.
    ///
    /// # Errors
    /// If a server cannot be started, or a rank does not act.
    pub(super) async fn start(
        program: &Path,
        means: &Means,
        point: &Point,
        folder: Option<&Path>,
    ) -> Result<Cluster, BenchError> {
        let folder = temporary_folder(folder)?;
        let place = match point.durability {
            Durability::Volatile => "mem:".to_owned(),
            _ => format!("file:{}", folder.path().join("store").display()),
        };
        let mut words = vec!["--store", &place, "--roles", "store"];
        if point.durability == Durability::None {
            words.extend(["--durability", "none"]);
        }
        let keeper = Daemon::start(program, &words).await?;
        let store = server::open(&keeper.uri).await?;
        let registry = Registry::new(Arc::new(store.clone()))?;
        // Before the ranks start: they tick by the settings that they find.
        let settings = registry.change(AUTHOR, |mut known| {
            known.settings.tick_ms = point.tick_ms;
            Ok(known)
        });
        settings.await.map_err(failed)?;
        let mut ranks = Vec::new();
        for rank in 0..RANKS {
            let number = rank.to_string();
            // A rank that polled would use up its share by waiting.
            let ours = ["--meta-rank", &number, "--poll", "0us"];
            let words = [&["--store", &keeper.uri, "--roles", "store,meta"][..], &ours].concat();
            ranks.push(means.start(program, &words, rank, point.share_percent).await?);
        }
        for rank in 0..RANKS {
            let until = Instant::now() + PATIENCE;
            // A rank that is not there yet does not answer, which is no error here.
            while !store.rank_load(rank).await.is_ok_and(|load| load.epoch > 0) {
                if Instant::now() > until {
                    return Err(BenchError::Process(format!("metadata rank {rank} does not act")));
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        for number in 0..point.clients.len() as u32 {
            create(&store, &name(number)).await?;
        }
        Ok(Cluster { store, registry, ranks, keeper, _folder: folder })
    }

    /// Returns the URI that clients open.
    pub(super) fn uri(&self) -> &str {
        &self.keeper.uri
    }

    /// Returns the processor time that each rank has used.
    pub(super) fn cpu_times(&self) -> Vec<Duration> {
        self.ranks.iter().map(|rank| rank.daemon.cpu_time()).collect()
    }

    /// Does what the system is about: puts a policy into force, or moves the sequencer with the fewest clients at once. Returns the
    /// moves that were made by hand.
    ///
    /// # Errors
    /// If that fails.
    pub(super) async fn act(&self, point: &Point) -> Result<Vec<Moved>, BenchError> {
        if let Some(policy) = point.system.policy() {
            let text = policy_text(policy, point.wait_ms)?;
            self.registry.set(AUTHOR, policy, &text).await.map_err(failed)?;
        }
        let Some(mode) = point.system.mode() else { return Ok(Vec::new()) };
        let least = (0u32..).zip(&point.clients).min_by_key(|(_, clients)| **clients);
        let sequencer = least.map_or(0, |(number, _)| number);
        let handle = self.store.sequencer(&name(sequencer)).await?;
        let begun = now();
        handle.migrate(TARGET, mode).await?;
        let at = now();
        Ok(vec![Moved { sequencer, from: 0, to: TARGET, at, within: (begun, at + AROUND) }])
    }

    /// Stops balancing, and returns the moves that the policy has made, in the order of their times.
    ///
    /// # Errors
    /// If the ranks do not publish what they have moved.
    pub(super) async fn moved_by_policy(&self, system: System) -> Result<Vec<Moved>, BenchError> {
        if system.policy().is_none() {
            return Ok(Vec::new());
        }
        self.registry.off(AUTHOR).await.map_err(failed)?;
        let (off_ms, until) = (since_1970().as_millis(), Instant::now() + PATIENCE);
        let ranks = loop {
            let ranks = published(&self.store).await?;
            let fresh = ranks.iter().filter(|rank| u128::from(rank.at_ms) > off_ms).count();
            if fresh >= RANKS as usize {
                break ranks;
            }
            if Instant::now() > until {
                let text = format!("{fresh} of {RANKS} ranks publish their load and their moves");
                return Err(BenchError::Process(text));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let (read, read_since_1970) = (now(), since_1970());
        let number = |text: &str| text.strip_prefix("study-").and_then(|number| number.parse::<u32>().ok());
        let mut moved: Vec<Moved> = ranks
            .iter()
            .flat_map(|rank| &rank.moves)
            .filter_map(|known| {
                let age = read_since_1970.saturating_sub(Duration::from_millis(known.at_ms));
                let at = read.saturating_sub(age);
                Some(Moved {
                    sequencer: number(&known.made.id.name)?,
                    from: known.made.from as u32,
                    to: known.made.to as u32,
                    at,
                    within: (at.saturating_sub(AROUND), at + AROUND),
                })
            })
            .collect();
        moved.sort_by_key(|moved| moved.at);
        Ok(moved)
    }
}

#[cfg(test)]
mod tests {
    use nacre_balance::Policy;

    use super::*;

    #[test]
    fn the_policies_of_the_study_ship_and_the_conservative_one_waits_as_long_as_it_is_told() {
        for system in System::ALL {
            let Some(policy) = system.policy() else { continue };
            let text = policy_text(policy, 1500).unwrap();
            // A busy machine may stop a policy for its time.
            let made = (0..20).find_map(|_| match Policy::new(policy, 1, &text) {
                Err(error) if error.is_late => None,
                made => Some(made),
            });
            assert!(made.unwrap().is_ok(), "{policy}");
            assert_eq!(text.contains("local WAIT = 1.5\n"), policy == "conservative", "{text}");
        }
        assert!(policy_text("gready", 0).is_err());
    }
}
