//! The balancer of the daemon's metadata rank: what it learns of the rank, and how it moves sequencers and subtrees away. That of
//! a reflector is `reflect/balance.rs`.

mod subtree;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures::future::{BoxFuture, FutureExt};
use nacre_balance::limit::PUBLISHED_MIGRATIONS_MAX;
use nacre_balance::{
    Driver, Kind, Metrics, Migrate, Migration, Mode, Move, Phase, Resource, ResourceId, Sense, Strays,
};
use nacre_meta::role::subtree::{Subtree, Subtrees};
use nacre_meta::role::{self, Handle, SEQUENCER_PREFIX};
use nacre_object::{ErrorKind, ObjectId, ObjectStore, StoreError};
use nacre_quantity::Escaped;
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::oneshot;

use self::subtree::Departures;

/// The maximum number of sequencers that the balancer looks at: the busiest ones.
const RESOURCES_MAX: usize = 10_000;
/// The time over which the load of the processor is averaged.
const PROCESSOR_AVERAGE: Duration = Duration::from_secs(60);

/// The thread of a rank's balancer. Dropping this ends it.
pub(crate) struct Balancing {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Balancing {
    /// Starts to balance a rank. `name` is that of the daemon.
    ///
    /// # Errors
    /// `Io` if no thread can be started.
    pub(crate) fn start(
        store: Arc<dyn ObjectStore>,
        name: &str,
        rank: Handle,
    ) -> Result<Balancing, StoreError> {
        let (known, departures) = (Table::default(), Departures::default());
        let source = Source {
            rank: rank.clone(),
            known: known.clone(),
            subtrees: Subtrees::default(),
            departures: departures.clone(),
            processor: Processor::default(),
            is_moving: false,
        };
        let mover = Mover { rank, known, departures };
        let driver = Driver::new(store, name, Box::new(source), Arc::new(mover))?;
        Self::of(driver.run())
    }

    /// Starts a thread with the work of a balancer, which ends when this is dropped.
    ///
    /// # Errors
    /// `Io` if no thread can be started.
    pub(crate) fn of(work: impl Future<Output = ()> + Send + 'static) -> Result<Balancing, StoreError> {
        let failed = |error: std::io::Error| {
            StoreError::new(ErrorKind::Io, format!("cannot start the thread that balances load: {error}"))
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (stop, stopped) = oneshot::channel::<()>();
        let work = async move {
            tokio::select! {
                () = work => {}
                _ = stopped => {}
            }
        };
        let thread = std::thread::Builder::new()
            .name("nacre-balance".to_owned())
            .spawn(move || {
                runtime.block_on(work);
                // A policy that still runs changes nothing, and may take some seconds to end.
                runtime.shutdown_background();
            })
            .map_err(failed)?;
        Ok(Balancing { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Balancing {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that balances load ended in a panic");
        }
    }
}

/// The meaning of a resource: a sequencer, or the sequencers of a subtree.
#[derive(Clone)]
enum Known {
    /// The sequencer in an object.
    Sequencer(ObjectId),
    /// The sequencers of a subtree that the rank has.
    Subtree(Subtree),
}

/// The resources that were last looked at.
#[derive(Clone, Default)]
struct Table(Arc<Mutex<HashMap<ResourceId, Known>>>);

impl Table {
    fn lock(&self) -> MutexGuard<'_, HashMap<ResourceId, Known>> {
        // A table that was half filled is filled anew at the next tick.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the name by which a sequencer is balanced: as people type it, or its object if it is in the namespace.
fn resource_id(object: &ObjectId) -> Option<ResourceId> {
    let name = match object.as_bytes().strip_prefix(SEQUENCER_PREFIX.as_bytes()) {
        Some(name) => Escaped(name).to_string(),
        None => object.to_string(),
    };
    ResourceId::new(Kind::Sequencer, &name).ok()
}

struct Source {
    rank: Handle,
    known: Table,
    /// What is known of placed directories.
    subtrees: Subtrees,
    departures: Departures,
    processor: Processor,
    /// True if a sequencer was being moved when the rank was last looked at.
    is_moving: bool,
}

impl Sense for Source {
    fn sense(&mut self, _now: Duration) -> Option<(usize, Metrics, Vec<Resource>)> {
        let load = self.rank.load(RESOURCES_MAX);
        let (processor_now, processor) = self.processor.measure();
        if load.epoch == 0 {
            return None;
        }
        self.is_moving = load.resources.iter().any(|resource| resource.moving);
        let mut known = self.known.lock();
        known.clear();
        let mut resources = Vec::with_capacity(load.resources.len());
        // One that is on its way to another rank is not there to be moved again.
        for resource in load.resources.iter().filter(|resource| !resource.moving) {
            if let Some(id) = resource_id(&resource.id) {
                known.insert(id.clone(), Known::Sequencer(resource.id.clone()));
                resources.push(Resource { id, load: resource.requests_per_second });
            }
        }
        let mut metrics = Metrics {
            request_rate: load.requests_per_second,
            queue_length: load.queue as f64,
            processor,
            processor_now,
            memory_bytes: memory_bytes(),
            ..Metrics::default()
        };
        metrics.count(&resources);
        metrics.all_load = metrics.own_load + load.forwarded_per_second;
        metrics.further.insert("sessions".to_owned(), load.sessions as f64);
        Some((load.rank as usize, metrics, resources))
    }

    fn arrange<'a>(
        &'a mut self,
        metrics: &'a mut Metrics,
        resources: &'a mut Vec<Resource>,
    ) -> BoxFuture<'a, Result<Strays, StoreError>> {
        async move {
            // The busiest come first, as the rank has listed them.
            let sequencers: Vec<ObjectId> = {
                let known = self.known.lock();
                let objects = resources.iter().filter_map(|resource| match known.get(&resource.id) {
                    Some(Known::Sequencer(object)) => Some(object.clone()),
                    _ => None,
                });
                objects.collect()
            };
            let found = self.rank.subtrees(&mut self.subtrees, &sequencers).await?;
            let (own, mut known) = (self.rank.rank(), self.known.lock());
            Ok(subtree::arrange(found, own, &self.departures, &mut known, metrics, resources))
        }
        .boxed()
    }

    fn migrations(&mut self) -> Vec<Migration> {
        let mut all = self.departures.migrations();
        // The rank is not held up each second for nothing: those of the balancer itself are known anyway.
        if self.is_moving {
            let migrations = migrations(&self.rank, &self.departures);
            self.is_moving = !migrations.is_empty();
            all.extend(migrations);
        }
        all
    }
}

/// Returns the migrations of sequencers that a rank makes, whoever wants them, but for those that go with a subtree.
fn migrations(rank: &Handle, departures: &Departures) -> Vec<Migration> {
    let migrating = rank.migrating(PUBLISHED_MIGRATIONS_MAX);
    if migrating.is_empty() {
        return Vec::new();
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let from = format!("rank {}", rank.rank());
    let migration = |(object, to, passed): (ObjectId, u32, Duration)| {
        let since_ms = u64::try_from(now.saturating_sub(passed).as_millis()).unwrap_or(u64::MAX);
        let (id, from, to) = (resource_id(&object)?, from.clone(), format!("rank {to}"));
        Some(Migration { id, from, to, phase: Phase::Moving, since_ms, members: None })
    };
    migrating.into_iter().filter(|(object, ..)| !departures.has(object)).filter_map(migration).collect()
}

struct Mover {
    rank: Handle,
    known: Table,
    departures: Departures,
}

impl Migrate for Mover {
    fn migrate(&self, wanted: &Move) -> BoxFuture<'static, Result<(), StoreError>> {
        let known = self.known.lock().get(&wanted.id).cloned();
        let (rank, departures) = (self.rank.clone(), self.departures.clone());
        let (id, to) = (wanted.id.clone(), u32::try_from(wanted.to));
        let mode = match wanted.mode {
            Mode::Client => role::Mode::Client,
            Mode::Proxy => role::Mode::Proxy,
            Mode::ProxyHalf => role::Mode::ProxyHalf,
        };
        async move {
            match (known, to) {
                (Some(Known::Sequencer(object)), Ok(to)) => rank.migrate(&object, to, mode).await,
                (Some(Known::Subtree(subtree)), Ok(to)) => {
                    departures.depart(&rank, id, subtree, to, mode).await
                }
                _ => Err(StoreError::new(ErrorKind::Invalid, "the rank does not have it any more")),
            }
        }
        .boxed()
    }
}

/// The load of the processor by this process.
#[derive(Default)]
pub(crate) struct Processor {
    last: Option<(Instant, f64)>,
    average: f64,
}

impl Processor {
    /// Returns the load since the last measurement, and the average over the last minute, where 1 is one processor.
    pub(crate) fn measure(&mut self) -> (f64, f64) {
        let spent = clock_gettime(ClockId::ProcessCPUTime);
        let (now, spent_s) = (Instant::now(), spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9);
        let Some((before, spent_before_s)) = self.last.replace((now, spent_s)) else { return (0.0, 0.0) };
        let passed_s = now.duration_since(before).as_secs_f64().max(1e-3);
        let load = ((spent_s - spent_before_s) / passed_s).max(0.0);
        let kept = (-passed_s / PROCESSOR_AVERAGE.as_secs_f64()).exp();
        self.average = self.average * kept + load * (1.0 - kept);
        (load, self.average)
    }
}

/// Returns the resident memory of this process; 0 if the system does not say.
pub(crate) fn memory_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok());
    kibibytes.unwrap_or_default() * 1024.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequencers_are_named_as_people_type_them() {
        let shown = |id: &[u8]| resource_id(&ObjectId::new(id.to_vec()).unwrap()).unwrap().to_string();
        assert_eq!(shown(b"nacre/sequencers/orders"), "sequencer:orders");
        assert_eq!(shown(b"nacre/sequencers/a\xff b"), "sequencer:a\\xff b");
        assert_eq!(shown(b"nacre/fs/s/17"), "sequencer:nacre/fs/s/17");
    }

    #[test]
    fn the_process_is_measured() {
        let mut processor = Processor::default();
        assert_eq!(processor.measure(), (0.0, 0.0));
        let (load, average) = processor.measure();
        assert!(load >= 0.0 && average >= 0.0 && load.is_finite());
        assert!(memory_bytes() > 0.0);
    }
}
