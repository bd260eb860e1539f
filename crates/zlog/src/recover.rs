//! Recovery, and changes of view.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use nacre_map::Update;
use nacre_object::{ErrorKind, ObjectId, StoreError, Transaction, WriteOp};

use crate::directory::{WHO, create_objects, sequencer_error};
use crate::error::LogError;
use crate::layout::{self, View};
use crate::limit::VIEWS_MAX;
use crate::log::{Inner, Recovered};
use crate::sequencer::SequencerError;
use crate::state::{CachedViews, Proposed, Shape, Views, propose, too_many_views, views_entry};
use crate::stripe::{Stripe, StripeError};

/// The number of attempts at a recovery that others may spoil.
const RECOVERIES_MAX: u32 = 50;

impl Inner {
    /// Seals the objects of the last view, finds out the tail, makes the sequencer go on from there, and publishes the new epoch:
    /// in this order. A request of an earlier epoch is refused from the first of these steps on, and nobody can know the new epoch
    /// before the last: so the tail stays what it was found to be (section 5.2.2).
    ///
    /// With a shape, a new view begins at the tail. With a version, nothing is done if the views have another one.
    pub async fn recover(&self, shape: Option<Shape>, version: Option<u64>) -> Result<Recovered, LogError> {
        let mut least = 0;
        for attempt in 0..RECOVERIES_MAX {
            if attempt > 0 {
                let longest = Duration::from_millis(1 << attempt.min(8));
                tokio::time::sleep(self.options.random.part(longest)).await;
            }
            let known = match self.views().await {
                Err(error @ LogError::Missing(_)) if attempt > 0 => {
                    // The log was deleted meanwhile, and the sequencer may have been installed after that.
                    self.apply(&layout::head(self.id)?, Transaction::new().change(WriteOp::Remove)).await?;
                    return Err(error);
                }
                known => known?,
            };
            if version.is_some_and(|version| version != known.version) {
                let epoch = known.views.epoch();
                return Ok(Recovered { epoch, tail: known.views.last().start, sealed: 0 });
            }
            let view = known.views.last();
            let epoch = known.views.epoch().max(least) + 1;
            let seals = (0..view.width).map(|index| async move {
                let object = layout::object(self.id, view, index)?;
                let end = self.seal_object(&object, epoch).await?;
                Ok(view.position_after(index, end))
            });
            let mut tail = view.start;
            let (mut other, mut missing) = (None, false);
            for sealed in join_all(seals).await {
                match sealed {
                    Ok(end) => tail = tail.max(end),
                    // Somebody else recovers it at the same time, or has begun to: the one with the greater epoch wins.
                    Err(StripeError::Epoch(Some(found))) => other = other.max(Some(found)),
                    Err(StripeError::Epoch(None)) => missing = true,
                    Err(StripeError::Store(error)) => return Err(error.into()),
                }
            }
            if let Some(found) = other {
                least = found;
                continue;
            }
            if missing {
                // It may be gone with its view, or with the whole log.
                if self.views().await?.version != known.version {
                    continue;
                }
                let text = "an object is missing; if the log was to be deleted, delete it again";
                return Err(LogError::Corrupt(text.to_owned()));
            }
            let mut views = known.views.clone();
            let last = views.views.len() - 1;
            views.views[last].epoch = epoch;
            let (mut created, mut replaced) = (None, None);
            // The objects are sealed, so the recovery is completed even if there can be no further view.
            let is_full = shape.is_some() && tail > view.start && views.views.len() >= VIEWS_MAX;
            if let Some(Shape { width, unit }) = shape.filter(|_| !is_full) {
                let generation = self.options.random.number();
                let next = View { start: tail, epoch, generation, width, unit, closed: false };
                create_objects(&*self.store, self.id, &next).await?;
                // A view without entries is replaced.
                replaced = (views.views[last].start == tail).then(|| views.views.remove(last));
                views.views.push(next.clone());
                views.close();
                created = Some(next);
            }
            let installed = match self.sequencer.install(epoch, tail).await {
                Ok(()) => true,
                Err(SequencerError::Epoch(found)) => {
                    least = found.unwrap_or(epoch);
                    false
                }
                Err(error) => return Err(sequencer_error(error)),
            };
            if installed && self.publish(&known, views).await?.is_some() {
                tracing::info!(log = self.name, epoch, tail, "the log was recovered");
                if let Some(view) = replaced {
                    self.remove_objects(&view).await;
                }
                if is_full {
                    return Err(too_many_views());
                }
                return Ok(Recovered { epoch, tail, sealed: view.width });
            }
            least = least.max(epoch);
            // Nobody knows the objects that were made.
            if let Some(view) = created {
                self.remove_objects(&view).await;
            }
        }
        let text = "others recover the log again and again; try again";
        Err(StoreError::new(ErrorKind::Busy, text).into())
    }

    /// Seals one object, as long as it takes. If a reply is lost, the repetition finds the object at this epoch, which is not less.
    async fn seal_object(&self, object: &ObjectId, epoch: u64) -> Result<u64, StripeError> {
        let mut patience = self.patience();
        let stripe = Stripe { store: &*self.store, object, epoch, closed: false };
        loop {
            match stripe.seal().await {
                Err(StripeError::Store(error)) => match patience.wait(error.clone()).await {
                    Ok(()) => {}
                    Err(_) => return Err(error.into()),
                },
                result => return result,
            }
        }
    }

    /// Replaces the views that are known by others. Returns `None` if somebody else has done so before.
    pub async fn publish(&self, known: &CachedViews, views: Views) -> Result<Option<()>, LogError> {
        let entry = views_entry();
        let update = Update::new(WHO).if_version(entry.clone(), known.version).set(entry, views.encode()?);
        match propose(&self.proposer, update).await? {
            Proposed::Done(version) => {
                *self.known.lock() = Arc::new(CachedViews { views, version });
                Ok(Some(()))
            }
            Proposed::Refused => Ok(None),
        }
    }

    /// Removes the objects of a view that is no view any more. What is left of them if the store fails takes room until the log is
    /// deleted, and does no harm.
    pub async fn remove_objects(&self, view: &View) {
        for index in 0..view.width {
            let Ok(object) = self.object(view, index) else { return };
            if let Err(error) = self.apply(&object, Transaction::new().change(WriteOp::Remove)).await {
                tracing::warn!(log = self.name, %object, %error, "an object that is no longer needed was \
                                                                  not removed");
            }
        }
    }
}
