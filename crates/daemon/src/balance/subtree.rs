//! The subtrees of the daemon's metadata rank, as its balancer sees and moves them: a directory that is placed at a rank is one
//! resource, with all sequencers of the rank that belong to it.
//!
//! The directory's place changes first, so that new sequencers below it are created at the other rank. Then those that are here are
//! handed over, some at a time, each by a migration of its own. So each sequencer has one rank at every moment, and the place
//! says where all of them belong: what is left when a rank ends in the middle is a stray of it, which it moves there later.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use futures::{StreamExt, stream};
use nacre_balance::{Kind, Metrics, Migration, Phase, Resource, ResourceId, Strays};
use nacre_meta::inode::Ino;
use nacre_meta::place::RankNumber;
use nacre_meta::role::subtree::{FoundSubtrees, Subtree};
use nacre_meta::role::{Handle, Mode};
use nacre_object::{ErrorKind, ObjectId, StoreError};

use super::Known;

/// The number of sequencers of a subtree that are handed over at the same time.
const AT_ONCE: usize = 8;

/// The subtrees that are being moved away from here, by their directories.
#[derive(Clone, Default)]
pub(super) struct Departures(Arc<Mutex<HashMap<Ino, Departure>>>);

/// A subtree that is being moved away.
struct Departure {
    migration: Migration,
    sequencers: HashSet<ObjectId>,
}

impl Departures {
    fn lock(&self) -> MutexGuard<'_, HashMap<Ino, Departure>> {
        // Each change is one step, so nothing is half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the progress of all of them.
    pub(super) fn migrations(&self) -> Vec<Migration> {
        self.lock().values().map(|departure| departure.migration.clone()).collect()
    }

    /// Returns whether a sequencer goes with one of them.
    pub(super) fn has(&self, sequencer: &ObjectId) -> bool {
        self.lock().values().any(|departure| departure.sequencers.contains(sequencer))
    }

    /// Moves what a rank has of a subtree to another rank. Returns once all of that is durable.
    ///
    /// # Errors
    /// `Unavailable` if the other rank does not answer: if none of it has moved yet, the subtree stays where it is. `Busy` if
    /// somebody has placed it elsewhere meanwhile.
    pub(super) async fn depart(
        &self,
        rank: &Handle,
        id: ResourceId,
        subtree: Subtree,
        to: RankNumber,
        mode: Mode,
    ) -> Result<(), StoreError> {
        let (own, directory, count) = (rank.rank(), subtree.directory, subtree.sequencers.len());
        let progress = self.begin(own, id, &subtree, to)?;
        rank.reach(to).await?;
        // Otherwise it is what was left of an earlier move.
        let is_here = subtree.rank == own;
        if is_here && !rank.place(directory, own, to).await? {
            let text = "the directory was placed elsewhere meanwhile, or is placed at no rank any more";
            return Err(StoreError::new(ErrorKind::Busy, text));
        }
        progress.change(|migration| migration.phase = Phase::Moving);
        let migrations = subtree.sequencers.into_iter().map(|sequencer| {
            let rank = rank.clone();
            async move { rank.migrate(&sequencer, to, mode).await }
        });
        let mut migrations = stream::iter(migrations).buffer_unordered(AT_ONCE);
        let mut moved = 0;
        while let Some(outcome) = migrations.next().await {
            match outcome {
                Ok(()) => moved += 1,
                // It was removed, or somebody else has moved it.
                Err(error) if error.kind == ErrorKind::Invalid => {}
                Err(error) if is_here && moved == 0 => {
                    let is_back = rank.place(directory, to, own).await.unwrap_or(false);
                    let stays = if is_back { "; the subtree stays where it was" } else { "" };
                    let message = format!("{}{stays}", error.message);
                    return Err(StoreError::new(error.kind, message));
                }
                Err(error) => {
                    let text =
                        format!("{moved} of {count} sequencers have moved, and the others follow later");
                    return Err(error.context(text));
                }
            }
            progress.change(|migration| {
                migration.members = migration.members.map(|left| left.saturating_sub(1));
            });
        }
        Ok(())
    }

    fn begin(
        &self,
        own: RankNumber,
        id: ResourceId,
        subtree: &Subtree,
        to: RankNumber,
    ) -> Result<Progress, StoreError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let migration = Migration {
            id,
            from: format!("rank {own}"),
            to: format!("rank {to}"),
            phase: Phase::Asking,
            since_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            members: Some(subtree.sequencers.len() as u64),
        };
        let mut departures = self.lock();
        if departures.contains_key(&subtree.directory) {
            return Err(StoreError::new(ErrorKind::Busy, "it is being moved already"));
        }
        let sequencers = subtree.sequencers.iter().cloned().collect();
        departures.insert(subtree.directory, Departure { migration, sequencers });
        Ok(Progress { departures: self.clone(), directory: subtree.directory })
    }
}

/// The progress of one subtree, which is over when this is dropped.
struct Progress {
    departures: Departures,
    directory: Ino,
}

impl Progress {
    fn change(&self, change: impl FnOnce(&mut Migration)) {
        if let Some(departure) = self.departures.lock().get_mut(&self.directory) {
            change(&mut departure.migration);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.departures.lock().remove(&self.directory);
    }
}

/// Puts the sequencers of a rank together that belong to placed directories. One of which it is not known yet where it belongs
/// counts in the metrics, and is not offered to be moved; nor is a subtree that is on its way. Returns the subtrees that belong
/// to other ranks.
pub(super) fn arrange(
    found: FoundSubtrees,
    own: RankNumber,
    departures: &Departures,
    known: &mut HashMap<ResourceId, Known>,
    metrics: &mut Metrics,
    resources: &mut Vec<Resource>,
) -> Strays {
    let mut owners: HashMap<&ObjectId, Option<usize>> =
        found.unknown.iter().map(|sequencer| (sequencer, None)).collect();
    for (at, subtree) in found.subtrees.iter().enumerate() {
        owners.extend(subtree.sequencers.iter().map(|sequencer| (sequencer, Some(at))));
    }
    let (mut loads, mut unknown_load) = (vec![0.0; found.subtrees.len()], 0.0);
    resources.retain(|resource| {
        let Some(Known::Sequencer(object)) = known.get(&resource.id) else { return true };
        let Some(owner) = owners.get(object) else { return true };
        match owner {
            Some(at) => loads[*at] += resource.load,
            None => unknown_load += resource.load,
        }
        known.remove(&resource.id);
        false
    });
    let sequencer_load = unknown_load + resources.iter().map(|resource| resource.load).sum::<f64>();
    metrics.kinds[Kind::Sequencer as usize] = sequencer_load;
    metrics.kinds[Kind::Subtree as usize] = loads.iter().sum();
    drop(owners);
    let mut strays = Strays::new();
    let departing: HashSet<Ino> = departures.lock().keys().copied().collect();
    for (subtree, load) in found.subtrees.into_iter().zip(loads) {
        // A path may be too long to be a name.
        let id = ResourceId::new(Kind::Subtree, &subtree.name)
            .or_else(|_| ResourceId::new(Kind::Subtree, &subtree.directory.object().to_string()));
        // Two have one path if they were renamed while they were looked at: the later one waits for the next tick.
        let is_free = |id: &ResourceId| !departing.contains(&subtree.directory) && !known.contains_key(id);
        let Some(id) = id.ok().filter(is_free) else { continue };
        if subtree.rank != own {
            strays.insert(id.clone(), subtree.rank);
        }
        resources.push(Resource { id: id.clone(), load });
        known.insert(id, Known::Subtree(subtree));
    }
    metrics.resources = resources.len() as f64;
    strays
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequencer(number: u64) -> ObjectId {
        Ino(number).state_object()
    }

    fn subtree(directory: u64, rank: RankNumber, name: &str, sequencers: &[u64]) -> Subtree {
        let sequencers = sequencers.iter().map(|number| sequencer(*number)).collect();
        Subtree { directory: Ino(directory), rank, name: name.to_owned(), sequencers }
    }

    /// The sequencers 10 to 15 of a rank, each with its number as its load.
    fn sensed() -> (HashMap<ResourceId, Known>, Metrics, Vec<Resource>) {
        let (mut known, mut resources, mut metrics) = (HashMap::new(), Vec::new(), Metrics::default());
        for number in 10..16 {
            let id = super::super::resource_id(&sequencer(number)).unwrap();
            known.insert(id.clone(), Known::Sequencer(sequencer(number)));
            resources.push(Resource { id, load: number as f64 });
        }
        metrics.count(&resources);
        (known, metrics, resources)
    }

    fn shown(resources: &[Resource]) -> Vec<(String, f64)> {
        resources.iter().map(|resource| (resource.id.to_string(), resource.load)).collect()
    }

    #[test]
    fn what_belongs_to_a_placed_directory_is_one_resource() {
        let (mut known, mut metrics, mut resources) = sensed();
        let found = FoundSubtrees {
            subtrees: vec![
                subtree(2, 0, "/jobs", &[10, 11]),
                subtree(3, 1, "/home", &[12]),
                subtree(4, 0, &"/long".repeat(1000), &[]),
                // It had this path a moment ago.
                subtree(5, 0, "/home", &[]),
            ],
            unknown: vec![sequencer(13)],
        };
        let departures = Departures::default();
        let strays = arrange(found, 0, &departures, &mut known, &mut metrics, &mut resources);
        assert_eq!(strays, Strays::from([("subtree:/home".parse().unwrap(), 1)]));
        let long = format!("subtree:{}", Ino(4).object());
        let sequencers = [14, 15].map(|number| (format!("sequencer:{}", sequencer(number)), number as f64));
        let [first, second] = sequencers;
        let subtrees = [("subtree:/jobs", 21.0), ("subtree:/home", 12.0), (&*long, 0.0)];
        let subtrees = subtrees.map(|(name, load)| (name.to_owned(), load));
        assert_eq!(shown(&resources), [vec![first, second], subtrees.to_vec()].concat());
        assert_eq!((metrics.kinds, metrics.resources), ([33.0, 42.0, 0.0], 5.0));
        assert_eq!(metrics.own_load, 75.0, "all of it is work of the rank");
        assert_eq!(known.len(), 5);
    }

    #[test]
    fn a_subtree_on_its_way_is_not_moved_again_and_shows_what_is_left() {
        let (mut known, mut metrics, mut resources) = sensed();
        let departures = Departures::default();
        let jobs = subtree(2, 0, "/jobs", &[10, 11]);
        let progress = departures.begin(0, "subtree:/jobs".parse().unwrap(), &jobs, 1).unwrap();
        assert!(departures.begin(0, "subtree:/other".parse().unwrap(), &jobs, 2).is_err());
        let found = || FoundSubtrees { subtrees: vec![jobs.clone()], unknown: Vec::new() };
        arrange(found(), 0, &departures, &mut known, &mut metrics, &mut resources);
        assert_eq!((resources.len(), metrics.kinds[0]), (4, 21.0));
        progress.change(|migration| migration.members = Some(1));
        let migrations = departures.migrations();
        let [migration] = &migrations[..] else { panic!("one is under way: {migrations:?}") };
        assert_eq!((&*migration.from, &*migration.to, migration.members), ("rank 0", "rank 1", Some(1)));
        assert!(departures.has(&sequencer(10)) && !departures.has(&sequencer(12)));
        drop(progress);
        assert!(departures.migrations().is_empty());
        let (mut known, mut metrics, mut resources) = sensed();
        arrange(found(), 0, &departures, &mut known, &mut metrics, &mut resources);
        assert_eq!(resources.len(), 5);
    }
}
